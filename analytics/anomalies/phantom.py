"""A publication that nobody ever tried to put."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from analytics.common import intervals
from analytics.common.schema import evidence
from analytics.common.table_store import settled
from analytics.tables.runs import counters_of_places
from analytics.tables.tables import Tables, seen_by

PRODUCER = ("run_id", "topic", "producer")


def phantom(tables: Tables) -> DataFrame:
    """Find (producer, topic, counter) that stands somewhere, and in no PUT's invoke."""
    # What was acknowledged was tried: only places that rest on deliveries are in question.
    seen = counters_of_places(tables.unclear_places).unionByName(
        tables.journaled, allowMissingColumns=True
    )
    invented = intervals.uncovered(seen, tables.tried, PRODUCER)
    rows = settled(
        intervals.exploded(invented, "counter")
        .withColumn("id", F.col("counter") - F.col("shift"))
        .select(*PRODUCER, "id", "counter")
    )
    return seen_by(rows, tables, "id", "counter", "sighting").select(
        *evidence(
            run_id=F.col("run_id"),
            topic=F.col("topic"),
            id=F.col("id"),
            producer=F.col("producer"),
            counter=F.col("counter"),
            operations=F.array_compact(F.array("sighting")),
        )
    )
