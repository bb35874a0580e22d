"""A publication that nobody ever tried to put, and that was seen, or taken."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from analytics.common import intervals
from analytics.common.schema import OPERATION, evidence
from analytics.common.table_store import is_never_any, settled
from analytics.tables.counters import beyond_of
from analytics.tables.garbage import taken_of
from analytics.tables.runs import counters_of_places
from analytics.tables.tables import Tables, seen_by

PRODUCER = ("run_id", "topic", "producer")


def phantom(tables: Tables) -> DataFrame:
    """Find (producer, topic, counter) that stands somewhere, and in no PUT's invoke; or is the
    first one of those that none held, between two that were taken.
    """
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
    seen_ones = seen_by(rows, tables, "id", "counter", "sighting").unionByName(
        _skipped(rows, tables)
    )
    return seen_ones.select(
        *evidence(
            run_id=F.col("run_id"),
            topic=F.col("topic"),
            id=F.col("id"),
            producer=F.col("producer"),
            counter=F.col("counter"),
            operations=F.array_compact(F.array("sighting")),
        )
    )


def _skipped(seen: DataFrame, tables: Tables) -> DataFrame:
    """Return the first counters of the holes of which nothing was seen, and of what nodes have
    taken beyond all tries.
    """
    own = seen.select(*(F.col(name).alias(f"seen_{name}") for name in (*PRODUCER, "counter")))
    same = [F.col(name) == F.col(f"seen_{name}") for name in PRODUCER]
    inside = F.col("seen_counter").between(F.col("first"), F.col("last"))
    skipped = tables.untried.join(own, [*same, inside], "leftanti").select(
        *PRODUCER,
        F.lit(None).cast("bigint").alias("id"),
        F.col("first").alias("counter"),
        F.col("seen").alias("sighting"),
    )
    beyond = beyond_of(taken_of(tables.truth), tables.doubts.stored, tables.puts)
    if is_never_any(beyond):
        return skipped
    is_above = F.col("tried").isNull() | (F.col("seen_counter") > F.col("tried"))
    is_untried = F.col("tried").isNull() | (F.col("tried") < F.col("taken"))
    by_nodes = beyond.where(is_untried).join(own, [*same, is_above], "leftanti")
    return skipped.unionByName(
        by_nodes.select(
            *PRODUCER,
            F.lit(None).cast("bigint").alias("id"),
            F.coalesce(F.col("tried") + 1, "taken").alias("counter"),
            F.lit(None).cast(OPERATION).alias("sighting"),
        )
    )
