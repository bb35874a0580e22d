"""Counters of producers that no PUT held, though later ones were taken; and what was acknowledged
as stored nowhere, and once more. No rule about right and wrong here: anomalies/phantom.py,
aborted_read.py and duplicate_stored.py say what follows.

The broker takes no counter before all lower ones. So each counter between two that PUTs `ok` hold
was tried, and not in vain. Of a bucket of counters whose tries follow each other one aggregation
proves it: hashes of where they begin and end add up to those of its first and its last one.
"""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.window import Window as W

from analytics.common import intervals
from analytics.common.schema import operation
from analytics.common.table_store import few, is_never_any, settled
from analytics.tables.runs import counters_of_puts
from analytics.tables.suspects import LOW_BITS, PRODUCER, only, without

HOLE = (*PRODUCER, "first", "last")


def torn_of(puts: DataFrame) -> DataFrame:
    """Return (producer, bucket, prior): of counters whose tries do not follow each other, or not
    those before them, which end with `prior`. Of a run as it should be there are none.
    """
    # Of numbers alone: what has texts in it is aggregated by sorting all PUTs.
    spans = (
        _tries(puts)
        .groupBy(*PRODUCER, "bucket")
        .agg(
            F.min("first_counter").alias("low"),
            F.max("last_counter").alias("high"),
            F.sum(_edge("first_counter") - _edge("last_counter", 1)).alias("edges"),
        )
    )
    lower = W.partitionBy(*PRODUCER).orderBy("bucket").rowsBetween(W.unboundedPreceding, -1)
    is_torn = F.col("edges") != _edge("low") - _edge("high", 1)
    return (
        spans.withColumn("prior", F.max("high").over(lower))
        .where(is_torn | (F.col("low") > F.col("prior") + 1))
        .select(*PRODUCER, "bucket", "prior")
    )


def untried_of(puts: DataFrame, torn: DataFrame) -> DataFrame:
    """Return the holes between two taken counters, with `seen`, the PUT behind: mostly none.

    `torn`: the buckets in which they begin or end, as `torn_of` finds them.
    """
    order = W.partitionBy(*PRODUCER, "bucket").orderBy("first_counter", "process", "op_id")
    reach = F.max("last_counter").over(order.rowsBetween(W.unboundedPreceding, -1))
    holes = settled(
        _tries(puts)
        .join(F.broadcast(torn), [*PRODUCER, "bucket"])
        .withColumn("reach", F.greatest("prior", reach))
        .select(*_hole(F.col("reach"), F.col("first_counter"), operation()))
        .where(F.col("first") <= F.col("last"))
    )
    taken = _taken(only(puts, holes, PRODUCER))
    held = (F.col("least") < F.col("first")) & (F.col("last") < F.col("most"))
    found = holes.join(F.broadcast(taken), list(PRODUCER)).where(held)
    return found.groupBy(*HOLE).agg(F.min("seen").alias("seen"))


def refused_of(puts: DataFrame) -> DataFrame:
    """Return the counters between two taken ones all of whose tries failed, as split runs, with
    `put`, such a try.
    """
    failed = settled(
        counters_of_puts(puts.where(F.col("outcome") == "fail")).select(
            *PRODUCER, "bucket", "first", "last", operation().alias("put")
        )
    )
    if is_never_any(failed):
        return failed
    where = (*PRODUCER, "bucket")
    others = counters_of_puts(puts.where(F.col("outcome") != "fail"))
    in_vain = settled(intervals.uncovered(failed, only(others, failed, where), PRODUCER))
    taken = _taken(only(puts, in_vain, PRODUCER))
    clipped = {
        "first": F.greatest("first", F.col("least") + 1),
        "last": F.least("last", F.col("most") - 1),
    }
    held = in_vain.join(F.broadcast(taken), list(PRODUCER)).withColumns(clipped)
    return held.where(F.col("first") <= F.col("last")).select(*failed.columns)


def denied_of(puts: DataFrame, forgotten: DataFrame) -> DataFrame:
    """Return (producer, bucket): where counters were answered, not as duplicates, to be stored
    nowhere; not of clients that are forgotten.
    """
    denied = puts.where((F.col("outcome") == "ok") & (F.col("first_id") == 0) & ~F.col("duplicate"))
    own = without(denied, forgotten.withColumnRenamed("client_id", "producer"), PRODUCER[::2])
    return counters_of_puts(own).select(*PRODUCER, "bucket").distinct()


def said_again_of(puts: DataFrame, denied: DataFrame) -> DataFrame:
    """Return a row a counter and PUT `ok` that has an id or is no duplicate, of those buckets of
    `denied` in which two such may overlap: `id` (null: stored nowhere), `epoch`, `seen`.

    Where they follow each other, hashes of where they begin and end add up, as above. So what
    nobody ever subscribed to is proven, and not looked at.
    """
    where = (*PRODUCER, "bucket")
    told = (F.col("outcome") == "ok") & ((F.col("first_id") > 0) | ~F.col("duplicate"))
    shift = F.when(F.col("first_id") > 0, F.col("first_counter") - F.col("first_id"))
    answers = only(counters_of_puts(puts.where(told).withColumn("shift", shift)), denied, where)
    spans = answers.groupBy(*where).agg(
        F.min("first").alias("low"),
        F.max("last").alias("high"),
        F.sum(_edge("first") - _edge("last", 1)).alias("edges"),
    )
    torn = settled(spans.where(F.col("edges") != _edge("low") - _edge("high", 1)).select(*where))
    near = only(answers, torn, where).select(
        *PRODUCER, "shift", "epoch", operation().alias("seen"), "first", "last"
    )
    each = intervals.exploded(near, "counter")
    return each.withColumn("id", F.col("counter") - F.col("shift")).drop("shift")


def _tries(puts: DataFrame) -> DataFrame:
    return puts.where(F.col("first_counter").isNotNull()).withColumn(
        "bucket", intervals.bucket_of(F.col("first_counter"))
    )


def _taken(puts: DataFrame) -> DataFrame:
    """Return the lowest and the highest counter that was taken of each producer."""
    taken = puts.where((F.col("outcome") == "ok") & F.col("first_counter").isNotNull())
    return taken.groupBy(*PRODUCER).agg(
        F.min("first_counter").alias("least"), F.max("last_counter").alias("most")
    )


def _edge(name: str, more: int = 0) -> Column:
    return F.xxhash64(F.col(name) + more).bitwiseAND(F.lit(LOW_BITS))


def _hole(below: Column, above: Column, seen: Column) -> list[Column]:
    bounds = ((below + 1).alias("first"), (above - 1).alias("last"))
    return [*(F.col(name) for name in PRODUCER), *bounds, seen.alias("seen")]


def beyond_of(taken: DataFrame, stored: DataFrame, puts: DataFrame) -> DataFrame:
    """Return (PRODUCER, taken, tried): counters that a node has taken, above all that were
    acknowledged, with the highest one that was tried, null if none was. In an orderly run few.

    `taken`: (HOLDER, taken) of the nodes; `stored`: what was acknowledged to each producer.
    """
    if is_never_any(taken):
        nothing = F.lit(None).cast("bigint").alias("tried")
        return taken.select(*PRODUCER, "taken", nothing)
    most = taken.groupBy(*PRODUCER).agg(F.max("taken").alias("taken"))
    said = stored.groupBy(*PRODUCER).agg(F.max("high_counter").alias("said"))
    doubtful = few(
        most.join(said, list(PRODUCER), "left")
        .where(F.coalesce(F.col("taken") > F.col("said"), F.lit(True)))
        .drop("said")
    )
    tries = only(puts, doubtful, PRODUCER).groupBy(*PRODUCER)
    ok = F.when(F.col("outcome") == "ok", F.col("last_counter"))
    tried = tries.agg(F.max("last_counter").alias("tried"), F.max(ok).alias("said"))
    above = F.coalesce(F.col("taken") > F.col("said"), F.lit(True))
    return settled(doubtful.join(tried, list(PRODUCER), "left").where(above).drop("said"))
