"""One publication that stands under two ids."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from analytics.common import intervals
from analytics.common.schema import evidence
from analytics.common.table_store import settled
from analytics.tables.runs import counters_of_places
from analytics.tables.tables import Tables, seen_by

PRODUCER = ("run_id", "topic", "producer")


def duplicate_stored(tables: Tables) -> DataFrame:
    """Find a (producer, topic, counter) that acknowledgments, answers or nodes
    show under several ids.

    `id` is the lowest of them, `other_id` the highest.
    """
    runs = counters_of_places(tables.suspects)
    # Merged runs of one shift never overlap: where two do, a counter has two ids.
    suspects = runs.join(intervals.crowded(runs, PRODUCER), [*PRODUCER, "bucket"], "leftsemi")
    twice = settled(
        intervals.exploded(suspects, "counter")
        .withColumn("stands", F.col("counter") - F.col("shift"))
        .groupBy(*PRODUCER, "counter")
        .agg(F.min("stands").alias("id"), F.max("stands").alias("other_id"))
        .where(F.col("id") < F.col("other_id"))
    )
    shown = seen_by(twice, tables, "id", "counter", "sighting")
    return seen_by(shown, tables, "other_id", "counter", "other_sighting").select(
        *evidence(
            run_id=F.col("run_id"),
            topic=F.col("topic"),
            id=F.col("id"),
            other_id=F.col("other_id"),
            producer=F.col("producer"),
            counter=F.col("counter"),
            operations=F.array_compact(F.array("sighting", "other_sighting")),
        )
    )
