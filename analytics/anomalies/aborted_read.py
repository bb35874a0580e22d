"""A publication that stands somewhere although its PUT was answered that it is not stored."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from analytics.common import intervals
from analytics.common.schema import OPERATION, evidence, operation
from analytics.common.table_store import is_never_any, settled
from analytics.tables.counters import beyond_of, refused_of
from analytics.tables.garbage import taken_of
from analytics.tables.runs import counters_of_places, counters_of_puts
from analytics.tables.suspects import only
from analytics.tables.tables import Tables, seen_by

PRODUCER = ("run_id", "topic", "producer")


def aborted_read(tables: Tables) -> DataFrame:
    """Find counters that stand somewhere, and whose every PUT, over all sessions, failed; or of
    which a PUT was told that nobody subscribes, and where no acknowledgment places them. And those
    whose every PUT failed, that nobody saw, between two that were taken.
    """
    # What was acknowledged did not fail: only places that rest on deliveries are in question.
    seen = counters_of_places(tables.unclear_places).unionByName(
        tables.journaled, allowMissingColumns=True
    )
    possible = tables.tried.where(F.col("outcome") != "fail")
    failed = tables.tried.where(F.col("outcome") == "fail").select(
        *PRODUCER, "bucket", "first", "last", operation().alias("put")
    )
    impossible = intervals.uncovered(seen, possible, PRODUCER)
    denied = intervals.common(impossible, failed, PRODUCER).unionByName(
        intervals.common(counters_of_places(tables.loose_places), _nowhere(tables), PRODUCER)
    )
    rows = settled(
        intervals.exploded(denied, "counter")
        .withColumn("id", F.col("counter") - F.col("shift"))
        .groupBy(*PRODUCER, "id", "counter")
        .agg(F.min("put").alias("put"))
    )
    refused = intervals.uncovered(settled(refused_of(tables.puts)), settled(seen), PRODUCER)
    every = intervals.exploded(refused, "counter").select(*PRODUCER, "counter", "put")
    every = every.unionByName(_taken_by_nodes(tables, settled(seen)).select(*every.columns))
    nowhere = every.groupBy(*PRODUCER, "counter")
    taken = nowhere.agg(F.min("put").alias("put")).withColumns(
        {"id": F.lit(None).cast("bigint"), "sighting": F.lit(None).cast(OPERATION)}
    )
    sighted = seen_by(rows, tables, "id", "counter", "sighting")
    return sighted.unionByName(taken).select(
        *evidence(
            run_id=F.col("run_id"),
            topic=F.col("topic"),
            id=F.col("id"),
            producer=F.col("producer"),
            counter=F.col("counter"),
            operations=F.array_compact(F.array("put", "sighting")),
        )
    )


def _taken_by_nodes(tables: Tables, seen: DataFrame) -> DataFrame:
    """Return the last counters that a node has taken, of which every PUT failed and nothing was
    seen.
    """
    beyond = beyond_of(taken_of(tables.truth), tables.doubts.stored, tables.puts)
    own = beyond.where(F.col("taken") <= F.col("tried")).select(
        *PRODUCER, F.col("taken").alias("counter")
    )
    if is_never_any(beyond):
        return own.withColumn("put", F.lit(None).cast(OPERATION))
    tries = only(tables.puts, own, PRODUCER).select(
        *PRODUCER, "outcome", "first_counter", "last_counter", operation().alias("put")
    )
    failed = (
        own.join(tries, list(PRODUCER))
        .where(F.col("counter").between(F.col("first_counter"), F.col("last_counter")))
        .groupBy(*own.columns)
        .agg(F.count_if(F.col("outcome") != "fail").alias("chances"), F.min("put").alias("put"))
        .where(F.col("chances") == 0)
        .drop("chances")
    )
    known = only(seen, own, PRODUCER).select(
        *(F.col(name).alias(f"seen_{name}") for name in PRODUCER), "first", "last"
    )
    same = [F.col(name) == F.col(f"seen_{name}") for name in PRODUCER]
    inside = F.col("counter").between(F.col("first"), F.col("last"))
    return failed.join(known, [*same, inside], "leftanti")


def _nowhere(tables: Tables) -> DataFrame:
    """Return the counters of which a PUT said, not of a duplicate, that they are stored nowhere."""
    said = (F.col("outcome") == "ok") & (F.col("first_id") == 0) & ~F.col("duplicate")
    loose = counters_of_places(tables.loose_places)
    puts = counters_of_puts(only(tables.puts.where(said), loose, PRODUCER))
    return puts.select(*PRODUCER, "bucket", "first", "last", operation().alias("put"))
