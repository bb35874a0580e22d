"""Ids that go back, within a subscriber or along a producer's counters."""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.window import Window as W

from analytics.common import intervals
from analytics.common.schema import KEY, evidence, operation
from analytics.common.table_store import settled
from analytics.tables.runs import counters_of_places
from analytics.tables.tables import Tables, seen_by

PRODUCER = ("run_id", "topic", "producer")


def reordered(tables: Tables) -> DataFrame:
    """Find order that was broken; `detail` says whose.

    `subscriber`: an answer begins at or below the cursor that it was asked with, or goes back
    inside (asking again with an older cursor is the client's right). `producer`: a later counter
    stands under a lower id; the row is the earlier counter at its too high `id`. A second copy of
    what stands lower already is `duplicate_stored`, not this.
    """
    return (
        _below_cursor(tables).unionByName(_back_inside(tables)).unionByName(_along_counters(tables))
    )


def _below_cursor(tables: Tables) -> DataFrame:
    back = tables.unclear_gets.where(F.col("first") <= F.col("asked"))
    return back.withColumn("other_id", F.col("asked")).select(*_subscriber_evidence())


def _back_inside(tables: Tables) -> DataFrame:
    answer = W.partitionBy(*KEY).orderBy("place")
    return (
        tables.deliveries.where(~F.col("is_plain") & F.col("reason").isNull())
        .withColumn("other_id", F.lag("last").over(answer))
        .where(F.col("first") < F.col("other_id"))
        .select(*_subscriber_evidence())
    )


def _subscriber_evidence() -> list[Column]:
    return evidence(
        run_id=F.col("run_id"),
        topic=F.col("topic"),
        client_id=F.col("client_id"),
        id=F.col("first"),
        other_id=F.col("other_id"),
        detail=F.lit("subscriber"),
        operations=F.array(operation()),
    )


def _along_counters(tables: Tables) -> DataFrame:
    back = settled(_first_copies(settled(_late_counters(tables.suspects)), tables.suspects))
    shown = seen_by(back, tables, "id", "counter", "sighting")
    other = F.col("ahead.counter").alias("ahead_counter"), F.col("ahead.id").alias("other_id")
    shown = seen_by(shown.select("*", *other), tables, "other_id", "ahead_counter", "ahead_seen")
    return shown.select(
        *evidence(
            run_id=F.col("run_id"),
            topic=F.col("topic"),
            id=F.col("id"),
            other_id=F.col("other_id"),
            producer=F.col("producer"),
            counter=F.col("counter"),
            detail=F.lit("producer"),
            operations=F.array_compact(F.array("sighting", "ahead_seen")),
        )
    )


def _late_counters(places: DataFrame) -> DataFrame:
    """Return (id, counter) with `ahead`, the greatest counter that stands under a lower id."""
    top = F.struct((F.col("last") + F.col("shift")).alias("counter"), F.col("last").alias("id"))
    prior = intervals.highest_in_buckets_before(places, PRODUCER, prior=top)
    runs = places.join(prior, [*PRODUCER, "bucket"], "left")
    ahead = F.greatest(intervals.highest_before(PRODUCER, "first", top), "prior")
    behind = (
        runs.withColumn("ahead", ahead)
        .where(F.col("ahead.counter") > F.col("first") + F.col("shift"))
        .select(*PRODUCER, "bucket")
    )
    # Runs overlap where ids are inconsistent: then what is behind may begin before what is ahead.
    suspects = behind.unionByName(intervals.crowded(places, PRODUCER)).distinct()
    one = F.struct("counter", "id")
    lower = W.partitionBy(*PRODUCER, "bucket").orderBy("id").rangeBetween(W.unboundedPreceding, -1)
    return (
        intervals.exploded(runs.join(suspects, [*PRODUCER, "bucket"], "leftsemi"), "id")
        .withColumn("counter", F.col("id") + F.col("shift"))
        .withColumn("ahead", F.greatest(F.max(one).over(lower), "prior"))
        .where(F.col("ahead.counter") > F.col("counter"))
        .select(*PRODUCER, "id", "counter", "ahead")
    )


def _first_copies(rows: DataFrame, places: DataFrame) -> DataFrame:
    """Return `rows` without those whose counter stands under a lower id as well."""
    copies = counters_of_places(places).withColumnRenamed("shift", "copy_shift")
    keyed = rows.withColumn("bucket", intervals.bucket_of(F.col("counter")))
    inside = F.col("counter").between(F.col("first"), F.col("last"))
    lower = F.col("counter") - F.col("copy_shift") < F.col("id")
    copied = keyed.join(copies, [*PRODUCER, "bucket"]).where(inside & lower)
    return rows.join(copied.select(*PRODUCER, "counter", "id").distinct(),
                     [*PRODUCER, "counter", "id"], "leftanti")  # fmt: skip
