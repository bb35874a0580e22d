"""What had been said before a moment: rows on a time line, in two levels.

A mark is something that held from a moment on (an id was acknowledged, a cursor was taken); an ask
is a moment at which something must not be behind the marks. Time is cut into ticks, so that every
window stays inside a tick or runs over one row a tick, and only ticks in which an ask may be behind
are looked into. Nothing here knows what is marked. Clocks are the caller's: `keys` has the host.
"""

from collections.abc import Sequence
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.window import Window as W

from analytics.common.session import is_set_for_short
from analytics.common.table_store import few, is_never_any, kept_length, none_of, settled
from analytics.tables.suspects import only

# A day is 864,000 rows for the window over ticks; a tick of the busiest topic sorts in a task.
TICK_NS: Final = 100_000_000


def overtaken(asks: DataFrame, marks: DataFrame, keys: Sequence[str]) -> DataFrame:
    """Return the `asks` that were behind: with `mark`, the greatest made before them.

    `asks` has `keys`, `t_ns` and `known`; `marks` has `keys`, `t_ns` and `mark`, a struct whose
    first field `value` is held against `known`. An ask is behind a mark of an earlier `t_ns` whose
    value is greater than what it knew.
    """
    columns = asks.columns
    asks = few(asks).withColumn("tick", _tick())
    marks = settled(_before_last(marks.select(*keys, "t_ns", "mark"), asks, keys))
    marks = marks.withColumn("tick", _tick())
    tops = _tops(asks, marks, keys)
    in_question = few(
        asks.join(tops, [*keys, "tick"]).where(F.greatest("prior", "top") > F.col("known"))
    )
    if is_never_any(in_question):
        nothing = F.lit(None).cast(marks.schema["mark"].dataType)
        return in_question.select(*columns, nothing.alias("mark"))
    near = only(marks, in_question, [*keys, "tick"]).select(
        *keys, "tick", "t_ns", F.col("mark.value").alias("value")
    )
    within = W.partitionBy(*keys, "tick").orderBy("t_ns")
    inside = F.max("value").over(within.rangeBetween(W.unboundedPreceding, -1))
    behind = few(
        in_question.unionByName(near, allowMissingColumns=True)
        .withColumn("value", F.greatest(inside, "prior"))
        .where(F.col("value") > F.col("known"))
        .select(*columns, "value")
    )
    return _with_marks(behind, marks, keys)


def _before_last(marks: DataFrame, asks: DataFrame, keys: Sequence[str]) -> DataFrame:
    """Return the marks made before the last ask of their time line: the others say nothing."""
    if is_never_any(asks) or is_never_any(marks):
        return none_of(marks)
    if not is_set_for_short(asks.sparkSession) and kept_length(asks) is not None:
        # Of few asks one number says which files, and which parts of them, need not be read.
        latest = asks.agg(F.max("t_ns")).first()
        assert latest is not None, "an aggregate without groups has one row"
        marks = marks.where(F.col("t_ns") < F.lit(latest[0]))
    last = asks.groupBy(*keys).agg(F.max("t_ns").alias("last_ns"))
    met = marks.join(F.broadcast(last), list(keys)).where(F.col("t_ns") < F.col("last_ns"))
    return met.select(*marks.columns)


def _with_marks(behind: DataFrame, marks: DataFrame, keys: Sequence[str]) -> DataFrame:
    """Add `mark` to each ask: the greatest of those with its `value` made before it. Few rows."""
    found = only(
        marks.select(*keys, F.col("t_ns").alias("made_ns"), "mark", F.col("mark.value")),
        behind,
        [*keys, "value"],
    )
    columns = [name for name in behind.columns if name != "value"]
    return (
        behind.join(found, [*keys, "value"])
        .where(F.col("made_ns") < F.col("t_ns"))
        .groupBy(*columns)
        .agg(F.max("mark").alias("mark"))
    )


def _tops(asks: DataFrame, marks: DataFrame, keys: Sequence[str]) -> DataFrame:
    """Return (keys, tick, top, prior): the greatest value in each tick, and in all before it."""
    ticks = marks.select(*keys, "tick", F.col("mark.value").alias("value")).unionByName(
        asks.select(*keys, "tick").distinct(), allowMissingColumns=True
    )
    before = W.partitionBy(*keys).orderBy("tick").rowsBetween(W.unboundedPreceding, -1)
    tops = ticks.groupBy(*keys, "tick").agg(F.max("value").alias("top"))
    return tops.withColumn("prior", F.max("top").over(before))


def _tick() -> Column:
    return F.floor(F.col("t_ns") / TICK_NS).cast("bigint")
