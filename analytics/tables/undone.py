"""UNSUBs, and ends of groups, of unknown outcome that surely never acted. No rule about right and
wrong here.

What superseded such an end found what it was to end, and nothing else can have made that anew.
"""

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from analytics.common.schema import KEY
from analytics.common.table_store import few, is_never_any
from analytics.tables.following import WILD
from analytics.tables.lives import EVER
from analytics.tables.runs import one_host


def without_idle(
    controls: DataFrame, begins: str, place: Sequence[str], denied: DataFrame
) -> DataFrame:
    """Return `controls`; what ends something in vain has failed. `begins`: the function that makes
    it; `place`: what names it, beside the client that ends it. `denied`: of what somebody was told
    that it is not there. That is left out, and so are followers of patterns.
    """
    names = (*KEY, *place, "client_id", "topic", "f", "outcome", "epoch", "resumed", "attempt")
    rows = controls.select(
        *dict.fromkeys(names),
        "end_ns",
        one_host(),
        F.coalesce("invoke_ns", F.lit(EVER)).alias("from_ns"),
    )
    is_end = ~F.col("f").isin(begins, "take")
    unclear = few(rows.where(is_end & (F.col("outcome") == "info")))
    if is_never_any(unclear):
        return controls
    made = rows.where((F.col("f") == begins) & (F.col("outcome") != "fail"))
    patterned = made.where(F.col("topic").rlike(WILD)).select("run_id", "client_id")
    unclear = unclear.join(denied.select(*place), list(place), "leftanti")
    if begins == "sub":
        unclear = unclear.join(patterned, ["run_id", "client_id"], "leftanti")
    found = _found_it(unclear, rows.where(F.col("f") != "take"), begins, place)
    idle = found.join(_others(made, place), _may_have_made_it(place), "leftanti")
    marks = F.broadcast(idle.select(*KEY, F.lit(True).alias("is_idle")))
    outcome = F.when(F.col("is_idle"), "fail").otherwise(F.col("outcome"))
    joined = controls.join(marks, list(KEY), "left").withColumn("outcome", outcome)
    return joined.select(*controls.columns)


def _found_it(unclear: DataFrame, rows: DataFrame, begins: str, place: Sequence[str]) -> DataFrame:
    """Return those that were superseded by what found what they were to end (`found`), with when
    that had ended.
    """
    own = list(dict.fromkeys((*place, "client_id", "topic", "at")))
    shows = (F.col("f") == begins) & F.col("resumed") & (F.col("attempt") == 1)
    done = rows.where(F.col("outcome") == "ok").select(
        *own,
        *(F.col(name).alias(f"done_{name}") for name in ("process", "epoch", "from_ns")),
        F.struct(
            F.col("end_ns"),
            F.coalesce(~shows, F.lit(True)).alias("is_other"),
            F.col("process"),
            F.col("op_id"),
        ).alias("first"),
    )
    is_newer = F.coalesce(F.col("done_epoch") > F.col("epoch"), F.lit(False))
    is_superseded = (F.col("done_process") == F.col("process")) | is_newer
    return (
        unclear.join(done, own)
        .where(is_superseded & (F.col("done_from_ns") > F.col("from_ns")))
        .groupBy(*dict.fromkeys((*KEY, *own)), "from_ns")
        .agg(F.min("first").alias("found"))
        .where(~F.col("found.is_other"))
    )


def _others(made: DataFrame, place: Sequence[str]) -> DataFrame:
    names = (*dict.fromkeys((*place, "client_id", "topic")), "process", "op_id", "outcome", "at")
    columns = (*names, "from_ns", "end_ns")
    return made.select(*(F.col(name).alias(f"its_{name}") for name in columns))


def _may_have_made_it(place: Sequence[str]) -> list[Column]:
    """Return of what else may have made it: what is not of its host, or was sent in time and had
    not ended before.
    """
    same = [F.col(name) == F.col(f"its_{name}") for name in place]
    is_itself = (F.col("its_process") == F.col("found.process")) & (
        F.col("its_op_id") == F.col("found.op_id")
    )
    was_over = (F.col("its_outcome") == "ok") & (F.col("its_end_ns") < F.col("from_ns"))
    is_apart = (F.col("its_at") == F.col("at")) & (
        (F.col("its_from_ns") > F.col("found.end_ns")) | was_over
    )
    return [*same, ~is_itself, ~F.coalesce(is_apart, F.lit(False))]
