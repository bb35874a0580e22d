"""What went past a lost publication: the answer or the drain without which nothing was owed.

What lives here: finding it for the few witnesses that are shown. It stands in no row of evidence:
to look it up for each would read all GETs again. What must not: judging (anomalies/lost.py).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from analytics.common.schema import NUMBER_MAX
from analytics.common.verdict import CheckResult, Witness, WitnessOperation
from analytics.tables.tables import Tables

LOST: Final = "lost"
BELOW_START: Final = "start"
OWNER: Final = ("run_id", "topic", "client_id")


def with_passages(tables: Tables, results: Iterable[CheckResult]) -> list[CheckResult]:
    """Return `results`; the witnesses of `lost` have the operation that went past them as well."""
    return [_passed(tables, one) if one.name == LOST else one for one in results]


def _passed(tables: Tables, result: CheckResult) -> CheckResult:
    passers = _passers(tables, result.witnesses)
    witnesses = tuple(
        replace(one, operations=(*one.operations, passers[place])) if place in passers else one
        for place, one in enumerate(result.witnesses)
    )
    return replace(result, witnesses=witnesses)


def _passers(tables: Tables, witnesses: Sequence[Witness]) -> Mapping[int, WitnessOperation]:
    """Return by its place in `witnesses` what first went past each: one job, none without any."""
    passed = [
        F.when(_goes_past(one), F.lit(place))
        for place, one in enumerate(witnesses)
        # What has no id, or stands below a start, is owed whatever went past it.
        if one.id is not None and one.detail != BELOW_START
    ]
    if not passed:
        return {}
    places = F.explode(F.array_compact(F.array(*passed))).alias("place")
    first = F.min(F.struct("at_ns", "process", "op_id")).alias("first")
    any_of = reduce(lambda left, right: left | right, (one.isNotNull() for one in passed))
    rows = _strides(tables).where(any_of).select("at_ns", "process", "op_id", places)
    found = rows.groupBy("place").agg(first).select("place", "first.process", "first.op_id")
    return {row.place: WitnessOperation(row.process, row.op_id) for row in found.collect()}


def _goes_past(witness: Witness) -> Column:
    owner = (F.col(name).eqNullSafe(F.lit(getattr(witness, name))) for name in OWNER)
    return reduce(lambda left, right: left & right, owner, F.col("reach") > F.lit(witness.id))


def _strides(tables: Tables) -> DataFrame:
    """Return how far subscribers got by which operation; a drain goes past all there is."""
    columns = (*OWNER, "process", "op_id")
    answers = tables.gets.where(F.col("outcome") == "ok").select(
        *columns, F.col("last").alias("reach"), F.col("end_ns").alias("at_ns")
    )
    drained = (F.col("f") == "phase") & (F.col("phase") == "drained") & F.col("op_id").isNotNull()
    drains = tables.asides.where(drained).select(
        *columns, F.lit(NUMBER_MAX + 1).alias("reach"), F.col("t_ns").alias("at_ns")
    )
    return answers.unionByName(drains)
