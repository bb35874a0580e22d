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

# A day is 864,000 rows for the window over ticks; a tick of the busiest topic sorts in a task.
TICK_NS: Final = 100_000_000


def overtaken(asks: DataFrame, marks: DataFrame, keys: Sequence[str]) -> DataFrame:
    """Return the `asks` that were behind: with `mark`, the greatest made before them.

    `asks` has `keys`, `t_ns` and `known`; `marks` has `keys`, `t_ns` and `mark`, a struct whose
    first field `value` is held against `known`. An ask is behind a mark of an earlier `t_ns` whose
    value is greater than what it knew.
    """
    asks = asks.withColumn("tick", _tick())
    marks = marks.select(*keys, "t_ns", "mark").withColumn("tick", _tick())
    in_question = asks.join(_tops(asks, marks, keys), [*keys, "tick"])
    in_question = in_question.where(F.greatest("prior.value", "top.value") > F.col("known"))
    near = marks.join(in_question.select(*keys, "tick").distinct(), [*keys, "tick"], "leftsemi")
    within = W.partitionBy(*keys, "tick").orderBy("t_ns")
    inside = F.max("mark").over(within.rangeBetween(W.unboundedPreceding, -1))
    both = in_question.unionByName(near, allowMissingColumns=True)
    return (
        both.withColumn("mark", F.greatest(inside, "prior"))
        .where(F.col("mark.value") > F.col("known"))
        .drop("tick", "prior", "top")
    )


def _tops(asks: DataFrame, marks: DataFrame, keys: Sequence[str]) -> DataFrame:
    """Return (keys, tick, top, prior): the greatest mark in each tick, and in all before it."""
    ticks = marks.select(*keys, "tick", "mark").unionByName(
        asks.select(*keys, "tick").distinct(), allowMissingColumns=True
    )
    before = W.partitionBy(*keys).orderBy("tick").rowsBetween(W.unboundedPreceding, -1)
    tops = ticks.groupBy(*keys, "tick").agg(F.max("mark").alias("top"))
    return tops.withColumn("prior", F.max("top").over(before))


def _tick() -> Column:
    return F.floor(F.col("t_ns") / TICK_NS).cast("bigint")
