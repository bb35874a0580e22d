"""One publication that stands under two ids, or under none and was acknowledged once more."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from analytics.common import intervals
from analytics.common.schema import evidence
from analytics.common.table_store import is_never_any, settled
from analytics.tables.runs import counters_of_places
from analytics.tables.tables import Tables, seen_by, with_application

PRODUCER = ("run_id", "topic", "producer")


def duplicate_stored(tables: Tables) -> DataFrame:
    """Find a (producer, topic, counter) that acknowledgments, answers or nodes
    show under several ids.

    `id` is the lowest of them, `other_id` the highest. Or of which one answer says that it is
    stored nowhere, and another one has an id (`id`, the lowest) or is no duplicate either.
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
    named = seen_by(shown, tables, "other_id", "counter", "other_sighting").select(
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
    return named.unionByName(_acknowledged_once_more(twice, tables))


def _acknowledged_once_more(twice: DataFrame, tables: Tables) -> DataFrame:
    """Find what was stored nowhere and acknowledged again. Where an application recorded, both
    answers are of one epoch: else its client may have been dropped, and made anew.
    """
    if is_never_any(tables.said_again):
        return tables.said_again.select(*evidence())
    with_life = with_application(tables.said_again, tables).withColumn(
        "life", F.when(F.col("is_application"), F.col("epoch")).otherwise(-1)
    )
    is_placed = F.col("id").isNotNull()
    answers = with_life.where(F.col("life").isNotNull()).groupBy(*PRODUCER, "counter", "life")
    told = answers.agg(
        F.count(F.lit(1)).alias("answers"),
        F.min(F.when(~is_placed, F.col("seen"))).alias("denial"),
        F.max(F.when(~is_placed, F.col("seen"))).alias("other_denial"),
        F.min(F.when(is_placed, F.struct("id", "seen"))).alias("placed"),
    )
    again = told.where(F.col("denial").isNotNull() & (F.col("answers") > 1))
    proof = F.struct(
        F.col("placed").isNull().alias("is_nowhere"),
        F.col("placed.id").alias("id"),
        "denial",
        F.coalesce("placed.seen", "other_denial").alias("other"),
    )
    return (
        again.groupBy(*PRODUCER, "counter")
        .agg(F.min(proof).alias("proof"))
        .join(twice, [*PRODUCER, "counter"], "leftanti")
        .select(
            *evidence(
                run_id=F.col("run_id"),
                topic=F.col("topic"),
                id=F.col("proof.id"),
                producer=F.col("producer"),
                counter=F.col("counter"),
                detail=F.lit("nowhere"),
                operations=F.array("proof.denial", "proof.other"),
            )
        )
    )
