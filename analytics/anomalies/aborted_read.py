"""A publication that stands somewhere although its PUT definitely failed."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from analytics import intervals
from analytics.keeping import settled
from analytics.runs import counters_of_places
from analytics.schema import evidence, operation
from analytics.tables import Tables, seen_by

PRODUCER = ("run_id", "topic", "producer")


def aborted_read(tables: Tables) -> DataFrame:
    """Find counters that stand somewhere, and whose every PUT, over all sessions, failed."""
    # What was acknowledged did not fail: only places that rest on deliveries are in question.
    seen = counters_of_places(tables.unclear_places).unionByName(
        tables.journaled, allowMissingColumns=True
    )
    possible = tables.tried.where(F.col("outcome") != "fail")
    failed = tables.tried.where(F.col("outcome") == "fail").select(
        *PRODUCER, "bucket", "first", "last", operation().alias("put")
    )
    impossible = intervals.uncovered(seen, possible, PRODUCER)
    rows = settled(
        intervals.exploded(intervals.common(impossible, failed, PRODUCER), "counter")
        .withColumn("id", F.col("counter") - F.col("shift"))
        .groupBy(*PRODUCER, "id", "counter")
        .agg(F.min("put").alias("put"))
    )
    return seen_by(rows, tables, "id", "counter", "sighting").select(
        *evidence(
            run_id=F.col("run_id"),
            topic=F.col("topic"),
            id=F.col("id"),
            producer=F.col("producer"),
            counter=F.col("counter"),
            operations=F.array_compact(F.array("put", "sighting")),
        )
    )
