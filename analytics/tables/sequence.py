"""Whether all operations of each process are there, once, in order, with ends that agree; and
whether it goes on from session to session, on one host in each.

A process numbers what it begins (invokes and single events) 1, 2, 3, … in the order of its lines.
The tallies of buckets of these numbers (tallies.py) prove that of all of them at once, and that
each end repeats its invoke: count, least and greatest number, sums of mixed numbers against those
that they have to be, and hashes of what the invokes said less those of what the ends repeat. Where
that is not proven, be it for an operation without an end, the bucket is looked at number by number.

No file and no verdict: load.py reads, completeness.py says what a hole means.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, reduce
from itertools import accumulate
from typing import Any, Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.window import Window as W

from analytics.common.table_store import made_of
from analytics.intake.strict import BLOCK
from analytics.tables.tallies import (
    BUCKET_BITS,
    BUCKET_SIZE,
    ROW,
    bucket_of,
    is_begin,
    is_of_operation,
    mixed,
    of_end,
    of_invoke,
    summed,
)

PROCESSES_SHOWN_MAX: Final = 20  # of which a sentence says what is wrong; the others are counted
# What is wrong with an operation -> what is said of how many.
DOUBLED, CONTRADICTING, EARLY, ORPHANED = "doubled", "contradicting", "early", "orphaned"
SENTENCES: Final[Mapping[str, str]] = {
    DOUBLED: "operations with two invokes or two ends, left out",
    CONTRADICTING: "operations whose end contradicts the invoke, left out",
    EARLY: "operations whose end stands before the invoke, left out",
    ORPHANED: "ends without an invoke",
}

Target = tuple[str, int]  # a process and a bucket of its numbers


@dataclass(frozen=True, slots=True)
class Examined:
    """`holes`: what is missing, or not to be believed, a sentence each.

    `broken`: (process, op_id) of the operations that are to be left out; None without any.
    """

    holes: tuple[str, ...]
    broken: DataFrame | None


@dataclass(slots=True)
class _Bucket:
    """What the begins of a bucket come to, and whether all ends in it are proven to agree."""

    count: int = 0
    low: int = 0
    high: int = 0
    mixed: int = 0
    is_proven: bool = True


def examined(tallies: DataFrame, events: DataFrame, is_of_lines: bool) -> Examined:
    """Return what is wrong with the operations in `events`, of one run, by their `tallies`.

    `is_of_lines`: they have `block` and `row`, the order of their lines in the files; a history
    that is kept as Parquet has no order.
    """
    rows = _by_bucket(tallies).collect()
    buckets, unordered = _buckets_of(rows), _unordered(rows) if is_of_lines else []
    unproven = [
        (process, number)
        for process, of_process in buckets.items()
        for number, bucket in of_process.items()
        if not bucket.is_proven or process in unordered
    ]
    gaps = {process: found for process in sorted(buckets) if (found := _gap(buckets[process]))}
    holes = [*_gap_sentences(events, gaps)]
    holes += [
        f"{process}: its operations do not begin in the order of their numbers"
        for process in unordered
        if process not in gaps
    ][:PROCESSES_SHOWN_MAX]
    if is_of_lines:
        holes += _displaced(rows)
    if not unproven:
        return Examined(tuple(holes), None)
    wrong = _wrong(only_in(events, unproven), is_of_lines)
    kinds = (
        wrong.groupBy("kind")
        .agg(F.count(F.lit(1)).alias("count"), F.min(F.struct("process", "op_id")).alias("least"))
        .collect()
    )
    holes += [
        f"{row['count']} {SENTENCES[row.kind]}, such as {row.least.process} op {row.least.op_id}"
        for row in sorted(kinds)
    ]
    broken = wrong.where(F.col("kind") != ORPHANED).select("process", "op_id")
    return Examined(tuple(holes), broken if any(row.kind != ORPHANED for row in kinds) else None)


def leave_out(events: DataFrame, broken: DataFrame) -> DataFrame:
    """Return `events` without the operations in `broken`; single events stay."""
    marked = broken.select("process", "op_id", F.lit(True).alias("is_broken"))
    joined = events.join(F.broadcast(marked), ["process", "op_id"], "left")
    kept = joined.where(F.col("is_broken").isNull() | ~is_of_operation())
    return kept.select(*events.columns)


def only_in(events: DataFrame, targets: Iterable[Target]) -> DataFrame:
    """Return the events of these buckets of processes."""
    named = [{"process": process, "bucket": bucket} for process, bucket in targets]
    wanted = made_of(events.sparkSession, named, "process STRING, bucket BIGINT")
    rows = events.withColumn("bucket", bucket_of(F.col("op_id")))
    return rows.join(F.broadcast(wanted), ["process", "bucket"], "left_semi")


# --- what the tallies come to ---------------------------------------------------------------------


def _by_bucket(tallies: DataFrame) -> DataFrame:
    """Return what the numbers of a process come to, by block of the file, bucket, session, host."""
    return tallies.groupBy("process", BLOCK, "bucket", "session", "host").agg(
        F.sum("begun").alias("begun"),
        F.min("low").alias("low"),
        F.max("high").alias("high"),
        F.sum("mixed").alias("mixed"),
        summed("said").alias("said"),
        F.max("is_disordered").alias("is_disordered"),
        F.max("early").alias("early"),
    )


def _buckets_of(rows: Sequence[Any]) -> dict[str, dict[int, _Bucket]]:
    """Return the buckets of each process, over all blocks of its file."""
    buckets: dict[str, dict[int, _Bucket]] = defaultdict(dict)
    sums: dict[Target, list[int]] = defaultdict(lambda: [0, 0, 0])
    for row in rows:
        bucket = buckets[row.process].setdefault(row.bucket, _Bucket())
        if row.begun:
            bucket.low = min(bucket.low or row.low, row.low)
            bucket.high = max(bucket.high, row.high)
        bucket.count += row.begun
        bucket.mixed += row.mixed
        total = sums[row.process, row.bucket]
        total[:] = [left + right for left, right in zip(total, row.said, strict=True)]
        bucket.is_proven = not any(total)
    return buckets


def _unordered(rows: Sequence[Any]) -> list[str]:
    """Return the processes whose lines do not stand in the order of their numbers."""
    blocks: dict[str, dict[int, list[Any]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        blocks[row.process][row[BLOCK]].append(row)
    found = []
    for process, of_process in sorted(blocks.items()):
        last = 0
        for _, parts in sorted(of_process.items()):
            first = min((row.low for row in parts if row.begun), default=last + 1)
            early = max((row.early or 0 for row in parts), default=0)
            if any(row.is_disordered for row in parts) or first != last + 1 or early > last:
                found.append(process)
                break
            last = max((row.high for row in parts if row.begun), default=last)
    return found


# --- sessions and hosts ---------------------------------------------------------------------------


def _displaced(rows: Sequence[Any]) -> list[str]:
    """Return the processes that go back to an earlier session, or to another host within one. A
    line that does not say its session stands anywhere.
    """
    sessions: dict[str, dict[int, list[Any]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        if row.session is not None:
            sessions[row.process][row.session].append(row)
    wrong = ((process, _wrong_sessions(own)) for process, own in sorted(sessions.items()))
    return [f"{process}: {said}" for process, said in wrong if said][:PROCESSES_SHOWN_MAX]


def _wrong_sessions(sessions: Mapping[int, list[Any]]) -> str:
    """Return what is wrong with the sessions of a process, "" if nothing is."""
    high = 0
    for session, parts in sorted(sessions.items()):
        if len({row.host for row in parts}) > 1:
            return f"session {session} is of two hosts"
        begun = [row for row in parts if row.begun]
        if any(row.low < high for row in begun):
            return f"session {session} stands before an earlier one"
        high = max([high, *(row.high for row in begun)])
    return ""


# --- numbers that are missing ---------------------------------------------------------------------


def _gap(buckets: Mapping[int, _Bucket]) -> tuple[int, _Bucket] | None:
    """Return the first bucket in which a number is missing or comes twice; None without any."""
    begun = {number: bucket for number, bucket in sorted(buckets.items()) if bucket.count}
    last = max(begun, default=-1)
    for place, (number, bucket) in enumerate(begun.items()):
        if number != place:
            return place, _Bucket()
        base = number << BUCKET_BITS
        first = base or 1
        end = bucket.high if number == last else base + BUCKET_SIZE - 1
        total = _mixed_up_to()[end - base + 1] - _mixed_up_to()[first - base]
        seen = (bucket.low, bucket.high, bucket.count, bucket.mixed)
        if seen != (first, end, end - first + 1, total):
            return number, bucket
    return None


def _gap_sentences(events: DataFrame, gaps: Mapping[str, tuple[int, _Bucket]]) -> Iterable[str]:
    """Yield for each process which number is missing, or comes twice, first."""
    shown = dict(list(gaps.items())[:PROCESSES_SHOWN_MAX])
    if not shown:
        return
    targets = [(process, number) for process, (number, _) in shown.items()]
    begins = only_in(events.where(is_begin()), targets).select("process", "bucket", "op_id")
    base = F.greatest(F.col("bucket") * BUCKET_SIZE, F.lit(1)) - 1
    before = F.coalesce(F.lag("op_id").over(W.partitionBy("process").orderBy("op_id")), base)
    rows = begins.withColumn("before", before).where(F.col("op_id") != F.col("before") + 1)
    first = {
        row.process: row.least
        for row in rows.groupBy("process")
        .agg(F.min(F.struct("op_id", "before")).alias("least"))
        .collect()
    }
    for process, (number, bucket) in shown.items():
        if process not in first:
            missing = max(bucket.high + 1, number << BUCKET_BITS, 1)
            yield f"{process}: op {missing} is missing"
        elif first[process].op_id <= first[process].before:
            yield f"{process}: two lines begin op {first[process].op_id}"
        else:
            missing = first[process].before + 1
            yield f"{process}: op {missing} is missing, op {first[process].op_id} is there"
    if len(gaps) > len(shown):
        yield f"and operations of {len(gaps) - len(shown)} more processes"


@lru_cache(maxsize=1)
def _mixed_up_to() -> tuple[int, ...]:
    """Return the sums of the mixed offsets below each offset of a bucket."""
    return tuple(accumulate(map(mixed, range(BUCKET_SIZE)), initial=0))


# --- invokes and their ends -----------------------------------------------------------------------


def _wrong(events: DataFrame, is_of_lines: bool) -> DataFrame:
    """Return (process, op_id, kind) of the operations that are not one invoke and its end."""
    is_invoke, is_end = is_of_operation() & is_begin(), is_of_operation() & ~is_begin()
    invoked, ended = of_invoke(), of_end()
    place = F.struct(BLOCK, ROW) if is_of_lines else F.lit(0)
    found = events.where(is_of_operation()).groupBy("process", "op_id").agg(
        F.count_if(is_invoke).alias("invokes"),
        F.count_if(is_end).alias("ends"),
        F.max(F.when(is_invoke, F.struct(*_named(invoked)))).alias("invoke"),
        F.max(F.when(is_end, F.struct(*_named(ended)))).alias("end"),
        F.min(F.when(is_invoke, place)).alias("invoked_at"),
        F.min(F.when(is_end, place)).alias("ended_at"),
        F.min(F.when(is_end, F.col("t_ns"))).alias("ended_ns"),
    )  # fmt: skip
    contradicts = reduce(
        lambda left, right: left | right,
        (
            F.col("end")[name].isNotNull() & ~F.col("end")[name].eqNullSafe(F.col("invoke")[name])
            for name in invoked
        ),
    )
    kind = (
        F.when((F.col("invokes") > 1) | (F.col("ends") > 1), DOUBLED)
        .when(F.col("invokes") == 0, ORPHANED)
        .when((F.col("ends") == 1) & contradicts, CONTRADICTING)
        .when(F.col("ended_at") < F.col("invoked_at"), EARLY)
        .when(F.col("ended_ns") < F.col("invoke.invoke_ns"), EARLY)
    )
    return found.select("process", "op_id", kind.alias("kind")).where(F.col("kind").isNotNull())


def _named(values: Mapping[str, Column]) -> list[Column]:
    return [value.alias(name) for name, value in values.items()]
