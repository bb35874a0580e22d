"""Operation numbers without a hole: plants add operations and take some away.

The operations of a client have the even numbers 2, 4, 6, … (operations.py), so that a plant can put
others between them; those of a process that a plant has made have any. A recorder counts 1, 2, 3:
each number moves by what was added and taken away up to it. That is little, so each bucket of
numbers has only its own of it.
"""

import json
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from analytics.common.intervals import BUCKET_SIZE, bucket_of

Key = tuple[str, int]  # process, number
STEPS: Final = (
    "ARRAY<STRUCT<process: STRING, bucket: BIGINT, is_even: BOOLEAN, before: BIGINT,"
    " steps: ARRAY<STRUCT<at: BIGINT, by: BIGINT>>>>"
)


@dataclass(frozen=True, slots=True)
class Numbers:
    """Per process where numbers begin to move, in order, and by how much in all up to there.

    `even`: the processes that have the even numbers beside that.
    """

    places: Mapping[str, tuple[int, ...]]
    moved: Mapping[str, tuple[int, ...]]
    even: frozenset[str]

    def of(self, process: str, number: int) -> int:
        """Return which number an operation has among those that are there."""
        reached = bisect_right(self.places.get(process, ()), number)
        base = number // 2 if process in self.even else 0
        return base + (self.moved[process][reached - 1] if reached else 0)


def numbers_of(before: Iterable[Key], after: Iterable[Key], even: Iterable[str]) -> Numbers:
    """Return how numbers move where the operations `before` became those `after`."""
    old, new = set(before), set(after)
    steps: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for keys, by in ((new - old, 1), (old - new, -1)):
        for process, number in keys:
            steps[process].append((number, by))
    ordered = {process: sorted(of_process) for process, of_process in steps.items()}
    return Numbers(
        {process: tuple(at for at, _ in of) for process, of in ordered.items()},
        {process: tuple(accumulate(by for _, by in of)) for process, of in ordered.items()},
        frozenset(even),
    )


def renumbered(operations: DataFrame, numbers: Numbers, number_max: int) -> DataFrame:
    """Return `operations` (process, op_id) with numbers without a hole.

    `number_max`: the highest that one has before.
    """
    rows = []
    for process, places in numbers.places.items():
        moved = (0, *numbers.moved[process])
        steps = [moved[place + 1] - moved[place] for place in range(len(places))]
        for bucket in range(places[0] // BUCKET_SIZE, number_max // BUCKET_SIZE + 1):
            first = bisect_right(places, bucket * BUCKET_SIZE - 1)
            last = bisect_right(places, (bucket + 1) * BUCKET_SIZE - 1)
            own = [{"at": places[one], "by": steps[one]} for one in range(first, last)]
            row = {"process": process, "bucket": bucket, "is_even": process in numbers.even}
            rows.append(row | {"before": moved[first], "steps": own})
    literal = F.inline(F.from_json(F.lit(json.dumps(rows)), STEPS))
    table = F.broadcast(operations.sparkSession.range(1).select(literal))
    zero = F.lit(0).cast("bigint")
    inside = F.aggregate(
        "steps",
        zero,
        lambda total, step: total + F.when(step["at"] <= F.col("op_id"), step["by"]).otherwise(0),
    )
    base = F.when(F.coalesce("is_even", F.lit(True)), F.floor(F.col("op_id") / 2)).otherwise(zero)
    number = base + F.coalesce(F.col("before") + inside, zero)
    bucketed = operations.withColumn("bucket", bucket_of(F.col("op_id")))
    joined = bucketed.join(table, ["process", "bucket"], "left")
    return joined.withColumn("op_id", number.cast("bigint")).select(*operations.columns)
