"""Two publications whose ids contradict the order in which they were made."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.window import Window as W

from analytics import intervals
from analytics.doubts import only
from analytics.runs import acknowledged_runs, counters_of_puts, one_host
from analytics.schema import KEY, evidence, operation
from analytics.tables import Tables

TIMELINE = ("run_id", "topic", "at")
PRODUCER = ("run_id", "topic", "producer")


def realtime_order(tables: Tables) -> DataFrame:
    """Find PUTs below the id of a PUT that was acknowledged before they were sent.

    One row a PUT: its `id`, and as `other_id` that of the PUT above it which was acknowledged
    first. A publication counts as sent when it was first tried: an earlier try may have stored it.
    Clocks are compared, so only on one host.
    """
    late = _first_tried(_overtaken(tables), tables)
    return late.where(F.col("above.end_ns") < F.col("tried_ns")).select(
        *evidence(
            run_id=F.col("run_id"),
            topic=F.col("topic"),
            id=F.col("id"),
            other_id=F.col("above.id"),
            producer=F.col("producer"),
            counter=F.col("counter"),
            operations=F.array(operation("above.process", "above.op_id"), operation()),
        )
    )


def _overtaken(tables: Tables) -> DataFrame:
    """Return PUTs that were sent behind the acknowledgment of a higher id, with it as `above`."""
    puts = acknowledged_runs(tables.puts).select(
        *KEY,
        "topic",
        one_host(),
        "producer",
        F.col("first_counter").alias("counter"),
        F.col("first").alias("id"),
        "invoke_ns",
        "end_ns",
        intervals.bucket_of(F.col("first")).alias("bucket"),
    )
    puts = only(puts, tables.doubts.timelines, TIMELINE)
    done = F.struct("end_ns", "id", "process", "op_id")
    inside = W.partitionBy(*TIMELINE, "bucket").orderBy(F.col("id").desc())
    above = F.min(done).over(inside.rangeBetween(W.unboundedPreceding, -1))
    firsts = puts.groupBy(*TIMELINE, "bucket").agg(F.min(done).alias("first"))
    # A row a bucket: 1/65,536 of the ids.
    beyond = W.partitionBy(*TIMELINE).orderBy(F.col("bucket").desc())
    later = firsts.select(
        *TIMELINE,
        "bucket",
        F.min("first").over(beyond.rowsBetween(W.unboundedPreceding, -1)).alias("later"),
    )
    return (
        puts.withColumn("above", above)
        .join(later, [*TIMELINE, "bucket"])
        .withColumn("above", F.least("above", "later"))
        .where(F.col("above.end_ns") < F.col("invoke_ns"))
        .drop("bucket", "later", "at")
    )


def _first_tried(late: DataFrame, tables: Tables) -> DataFrame:
    """Add `tried_ns`: when the first of all PUTs of the row's publication was sent. Few rows."""
    # A try whose invoke is gone may have been sent before all others.
    tries = counters_of_puts(tables.puts).select(
        *PRODUCER, "bucket", "first", "last", F.coalesce("invoke_ns", F.lit(-1)).alias("tried_ns")
    )
    keyed = late.withColumn("bucket", intervals.bucket_of(F.col("counter")))
    tries = only(tries, keyed, (*PRODUCER, "bucket"))
    return (
        keyed.join(tries, [*PRODUCER, "bucket"])
        .where(F.col("counter").between(F.col("first"), F.col("last")))
        .groupBy(*late.columns)
        .agg(F.min("tried_ns").alias("tried_ns"))
    )
