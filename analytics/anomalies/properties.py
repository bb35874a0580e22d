"""Times that go back, batches of two times, and ids of two times, or two keys or headers."""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.window import Window as W

from analytics.common import intervals
from analytics.common.schema import DIGEST_DIGITS, KEY, evidence, operation
from analytics.common.table_store import settled
from analytics.tables.runs import acknowledged_runs
from analytics.tables.suspects import only
from analytics.tables.tables import Tables
from analytics.tables.times import ID, TOPIC, runs_of, times_of


def properties(tables: Tables) -> DataFrame:
    """Find what answers and acknowledgments say of ids and can't all be so.

    Times are looked at where runs of one time begin and end: of runs that overlap with two times
    one has a smaller time behind a greater one there.
    """
    runs = settled(runs_of(tables.told))
    times = settled(times_of(runs))
    return (
        _back(times)
        .unionByName(_of_batches(times, tables))
        .unionByName(_two(times, "time", "at_ms"))
        .unionByName(_two(_contents(tables.told, runs), "content", "digest"))
    )


def _back(times: DataFrame) -> DataFrame:
    """Find ids with a smaller time than one before them, a bucket at a time."""
    known = F.struct(
        F.col("most.at_ms").alias("at_ms"),
        (-F.col("id")).alias("minus_id"),
        F.col("most.seen").alias("seen"),
    )
    rows = times.withColumns({"bucket": intervals.bucket_of(F.col("id")), "known": known})
    of_bucket = W.partitionBy(*TOPIC, "bucket").orderBy("id")
    of_topic = W.partitionBy(*TOPIC).orderBy("bucket")
    so_far = (W.unboundedPreceding, -1)
    buckets = rows.groupBy(*TOPIC, "bucket").agg(F.max("known").alias("greatest"))
    earlier = buckets.select(
        *TOPIC,
        "bucket",
        F.max("greatest").over(of_topic.rowsBetween(*so_far)).alias("earlier"),
    )
    inside = rows.withColumn("inside", F.max("known").over(of_bucket.rowsBetween(*so_far)))
    latest = F.greatest("inside", "earlier")
    return (
        inside.join(earlier, [*TOPIC, "bucket"])
        .withColumn("latest", latest)
        .where(F.col("least.at_ms") < F.col("latest.at_ms"))
        .select(
            *evidence(
                run_id=F.col("run_id"),
                topic=F.col("topic"),
                id=F.col("id"),
                other_id=-F.col("latest.minus_id"),
                detail=_detail("back", F.col("latest.at_ms"), F.col("least.at_ms")),
                operations=F.array("latest.seen", "least.seen"),
            )
        )
    )


def _of_batches(times: DataFrame, tables: Tables) -> DataFrame:
    """Find batches of which two publications are said to have two times."""
    ids = settled(times.withColumn("bucket", intervals.bucket_of(F.col("id"))))
    batches = acknowledged_runs(tables.puts).where(F.col("first") < F.col("last"))
    runs = batches.select(*TOPIC, "first", "last", F.col("first").alias("first_id"))
    pieces = only(intervals.split(runs), ids, (*TOPIC, "bucket"))
    return (
        intervals.inside(ids.drop("bucket"), "id", pieces.distinct(), TOPIC)
        .groupBy(*TOPIC, F.col("first_id").alias("id"))
        .agg(F.min("least").alias("least"), F.max("most").alias("most"))
        .where(F.col("least.at_ms") != F.col("most.at_ms"))
        .select(
            *evidence(
                run_id=F.col("run_id"),
                topic=F.col("topic"),
                id=F.col("id"),
                detail=_detail("batch", F.col("least.at_ms"), F.col("most.at_ms")),
                operations=F.array("least.seen", "most.seen"),
            )
        )
    )


def _contents(told: DataFrame, runs: DataFrame) -> DataFrame:
    """Return of each id that has properties by any word the least and the greatest digest.

    Who says the time of such an id, and nothing of properties, was given none: "".
    """
    pattern = F.lit(f".{{{DIGEST_DIGITS}}}")
    each = F.regexp_extract_all("properties", pattern, F.lit(0))
    marks = settled(
        told.where(F.col("marked").isNotNull())
        .select(*KEY, "topic", F.explode(F.arrays_zip("marked", each.alias("digest"))).alias("one"))
        .select(*KEY, "topic", F.col("one.marked").alias("id"), F.col("one.digest").alias("digest"))
    )
    given = (
        intervals.inside(marks.select(*ID).distinct(), "id", intervals.split(runs), TOPIC)
        .select(*KEY, "topic", "id")
        .join(marks, [*KEY, "topic", "id"], "leftanti")
        .withColumn("digest", F.lit(""))
    )
    one = F.struct("digest", operation().alias("seen"))
    said = marks.unionByName(given).groupBy(*ID)
    return said.agg(F.min(one).alias("least"), F.max(one).alias("most"))


def _two(ids: DataFrame, word: str, name: str) -> DataFrame:
    """Find ids of which two things are said."""
    least, most = F.col(f"least.{name}"), F.col(f"most.{name}")
    return ids.where(least != most).select(
        *evidence(
            run_id=F.col("run_id"),
            topic=F.col("topic"),
            id=F.col("id"),
            detail=_detail(word, least, most),
            operations=F.array("least.seen", "most.seen"),
        )
    )


def _detail(word: str, one: Column, other: Column) -> Column:
    return F.concat_ws(" ", F.lit(word), one.cast("string"), other.cast("string"))
