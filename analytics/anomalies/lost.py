"""An acknowledged publication that a subscriber was owed and never got."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from analytics import intervals
from analytics.doubts import SHARE, TOPIC_BUCKET, only
from analytics.schema import evidence, operation
from analytics.tables import Tables

OWNER = ("run_id", "topic", "client_id")


def lost(tables: Tables) -> DataFrame:
    """Find what was acknowledged and not delivered, by id, to a subscription that never ended.

    Owed are ids above the subscription's start: below the highest one that the subscriber got
    (`prefix`: nothing came before, `middle`), and, once it has drained, also above it (`tail`).
    `unstored`: the PUT was answered "nobody subscribes" although this subscription stood.
    `unhanded`: a GET brought it, its library has never handed it over, and the cursor has passed it
    (`other_id`).
    """
    return _undelivered(tables).unionByName(_unstored(tables)).unionByName(_unhanded(tables))


def _undelivered(tables: Tables) -> DataFrame:
    doubtful = tables.doubts.shares
    cover = only(
        intervals.split(tables.deliveries.select(*OWNER, "first", "last")), doubtful, SHARE
    )
    missing = intervals.exploded(intervals.uncovered(_owed(tables), cover, OWNER), "id")
    proof = F.min(F.struct("put", "producer", (F.col("id") + F.col("shift")).alias("counter")))
    tail = F.col("highest").isNull() | (F.col("id") > F.col("highest"))
    place = F.when(tail, "tail").when(F.col("id") < F.col("lowest"), "prefix").otherwise("middle")
    return (
        missing.join(tables.due, ["run_id", "topic", "bucket"])
        .where(F.col("id").between(F.col("first"), F.col("last")))
        .groupBy(*OWNER, "id", "made_by", place.alias("detail"))
        .agg(proof.alias("proof"))
        .select(
            *evidence(
                run_id=F.col("run_id"),
                topic=F.col("topic"),
                client_id=F.col("client_id"),
                id=F.col("id"),
                producer=F.col("proof.producer"),
                counter=F.col("proof.counter"),
                detail=F.col("detail"),
                operations=F.array("proof.put", "made_by"),
            )
        )
    )


def _unhanded(tables: Tables) -> DataFrame:
    hands = tables.handlings.where(F.col("f") == "hand")
    passed = (
        tables.gets.where((F.col("outcome") == "ok") & F.col("asked").isNotNull())
        .select(*OWNER, F.col("asked").alias("passed"))
        .unionByName(hands.select(*OWNER, F.col("cursor").alias("passed")))
        .groupBy(*OWNER)
        .agg(F.max("passed").alias("passed"))
    )
    standing = tables.subscriptions.where(~F.col("ended")).select(*OWNER, "start_id")
    brought = tables.deliveries.where("handed_apart").select(
        *OWNER, operation().alias("get"), "first", "last"
    )
    wanted = intervals.split(
        brought.join(standing, list(OWNER))
        .join(passed, list(OWNER))
        .withColumn("first", F.greatest("first", F.col("start_id") + 1))
        .withColumn("last", F.least("last", "passed"))
    )
    others = tables.deliveries.where(~F.col("handed_apart")).select(*OWNER, "first", "last")
    ahead = tables.handlings.where((F.col("f") == "ack") & F.col("first").isNotNull())
    handed = hands.unionByName(ahead).select(*OWNER, "first", "last").unionByName(others)
    cover = only(intervals.split(handed), wanted, (*OWNER, "bucket"))
    missing = intervals.uncovered(wanted, cover, OWNER)
    return (
        intervals.exploded(missing, "id")
        .groupBy(*OWNER, "id", "passed")
        .agg(F.min("get").alias("get"))
        .select(
            *evidence(
                run_id=F.col("run_id"),
                topic=F.col("topic"),
                client_id=F.col("client_id"),
                id=F.col("id"),
                other_id=F.col("passed"),
                detail=F.lit("unhanded"),
                operations=F.array("get"),
            )
        )
    )


def _owed(tables: Tables) -> DataFrame:
    """Return the runs of acknowledged ids that each standing subscription must have got."""
    doubtful = tables.doubts.shares
    first = F.greatest("first", F.col("start_id") + 1)
    last = F.when(F.col("drained"), F.col("last")).otherwise(
        F.least("last", F.coalesce(F.col("highest"), F.lit(0)))
    )
    return (
        intervals.merged(tables.due, ("run_id", "topic"))
        .join(doubtful.select(*SHARE), list(TOPIC_BUCKET))
        .join(_watchers(tables), list(OWNER))
        .withColumns({"first": first, "last": last})
        .where(F.col("first") <= F.col("last"))
    )


def _watchers(tables: Tables) -> DataFrame:
    """Return subscriptions that never ended, with what their owner got and whether it drained."""
    got = tables.doubts.delivered.groupBy(*OWNER).agg(
        F.min("lowest").alias("lowest"), F.max("highest").alias("highest")
    )
    drained = tables.drains.select(*OWNER, F.lit(True).alias("is_drained"))
    return (
        tables.subscriptions.where(~F.col("ended"))
        .join(got, list(OWNER), "left")
        .join(drained, list(OWNER), "left")
        .withColumn("drained", F.coalesce("is_drained", F.lit(False)))
        .select(*OWNER, "start_id", "made_by", "lowest", "highest", "drained")
    )


def _unstored(tables: Tables) -> DataFrame:
    """Find PUTs sent after a SUB was acknowledged that found no subscriber.

    Clocks are compared, so only on one host. A duplicate's id may be 0 for being old.
    """
    refused = (F.col("outcome") == "ok") & (F.col("first_id") == 0) & ~F.col("duplicate")
    standing = tables.subscriptions.where(~F.col("ended")).withColumnRenamed("host", "at")
    puts = tables.puts.where(refused).withColumn("put", operation())
    pairs = puts.join(standing, ["run_id", "topic"]).where(
        F.col("host").eqNullSafe(F.col("at")) & (F.col("invoke_ns") > F.col("begun_ns"))
    )
    return pairs.select(
        *OWNER,
        "producer",
        F.explode(F.sequence("first_counter", "last_counter")).alias("counter"),
        F.array("put", "made_by").alias("operations"),
    ).select(
        *evidence(
            run_id=F.col("run_id"),
            topic=F.col("topic"),
            client_id=F.col("client_id"),
            producer=F.col("producer"),
            counter=F.col("counter"),
            detail=F.lit("unstored"),
            operations=F.col("operations"),
        )
    )
