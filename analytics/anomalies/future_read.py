"""A publication that was given before anybody had tried to put it."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from analytics.common import intervals
from analytics.common.schema import evidence, operation
from analytics.tables.runs import PLACE, one_host
from analytics.tables.suspects import TOPIC_BUCKET, only
from analytics.tables.tables import Tables


def future_read(tables: Tables) -> DataFrame:
    """Find publications that a GET brought whose end is before their first try.

    Their topic had reached their id by then, so they are among the `late` ones. Clocks are
    compared, so only on one host; a publication that nobody may have put is another check's.
    """
    rows = (
        tables.late.withColumn("bucket", intervals.bucket_of(F.col("id")))
        .withColumn("shift", F.col("counter") - F.col("id"))
        .drop("above")
    )
    given = intervals.split(
        tables.deliveries.where(F.col("producer").isNotNull()).select(
            *(*PLACE, "first", "last", "end_ns"), one_host(), operation().alias("get")
        )
    )
    early = F.col("end_ns") < F.col("tried_ns")
    inside = F.col("id").between(F.col("first"), F.col("last"))
    return (
        rows.join(only(given, rows, TOPIC_BUCKET), [*PLACE, "at", "bucket"])
        .where(early & inside)
        .groupBy("run_id", "topic", "id", "producer", "counter")
        .agg(F.min("get").alias("get"))
        .select(
            *evidence(
                run_id=F.col("run_id"),
                topic=F.col("topic"),
                id=F.col("id"),
                producer=F.col("producer"),
                counter=F.col("counter"),
                operations=F.array("get"),
            )
        )
    )
