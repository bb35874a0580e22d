"""One id under which different publications were seen."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from analytics.common import intervals
from analytics.common.schema import evidence, operation
from analytics.common.table_store import settled
from analytics.tables.groups import every_letter_of
from analytics.tables.suspects import TOPIC_BUCKET, only
from analytics.tables.tables import Tables, contents_of, seen_by

DIGITS = 8  # of a digest that are shown


def inconsistent_id(tables: Tables) -> DataFrame:
    """Find ids that acknowledgments, answers or nodes tell apart.

    So do dead letters, which nobody put. The smaller (producer, counter) is the evidence's, the
    greatest other one its `detail`. Where applications recorded, it is the contents' digests that
    differ, and `detail` has two of them.
    """
    apart = settled(_told_apart(tables))
    return apart.unionByName(_differing(tables)).unionByName(_letters(apart, tables))


def _letters(apart: DataFrame, tables: Tables) -> DataFrame:
    """Find dead letters where something stands that somebody put, and nothing else."""
    letters = settled(every_letter_of(tables.told, tables.worked))
    here = letters.select(
        "run_id",
        F.col("stands_in").alias("topic"),
        F.col("stands_at").alias("id"),
        intervals.bucket_of(F.col("stands_at")).alias("bucket"),
        F.col("seen"),
        F.concat_ws(" ", F.lit("letter"), "topic", "group", F.col("id").cast("string")).alias(
            "letter"
        ),
    )
    places = only(tables.places, here, TOPIC_BUCKET)
    content = F.struct("producer", (F.col("id") + F.col("shift")).alias("counter"))
    return (
        here.join(places, list(TOPIC_BUCKET))
        .where(F.col("id").between(F.col("first"), F.col("last")))
        .join(apart.select("run_id", "topic", "id"), ["run_id", "topic", "id"], "leftanti")
        .groupBy("run_id", "topic", "id")
        .agg(
            F.min(content).alias("content"),
            F.min("seen").alias("seen"),
            F.min("letter").alias("letter"),
        )
        .select(
            *evidence(
                run_id=F.col("run_id"),
                topic=F.col("topic"),
                id=F.col("id"),
                producer=F.col("content.producer"),
                counter=F.col("content.counter"),
                detail=F.col("letter"),
                operations=F.array("seen"),
            )
        )
    )


def _differing(tables: Tables) -> DataFrame:
    one = F.struct("digest", operation().alias("seen"))
    ids = (
        contents_of(tables.puts, tables.gets)
        .groupBy("run_id", "topic", "id")
        .agg(F.min(one).alias("least"), F.max(one).alias("most"))
    )
    shown = (F.substring(F.col(f"{which}.digest"), 1, DIGITS) for which in ("least", "most"))
    return ids.where(F.col("least.digest") != F.col("most.digest")).select(
        *evidence(
            run_id=F.col("run_id"),
            topic=F.col("topic"),
            id=F.col("id"),
            detail=F.concat_ws(" ", F.lit("contents"), *shown),
            operations=F.array("least.seen", "most.seen"),
        )
    )


def _told_apart(tables: Tables) -> DataFrame:
    topic = ("run_id", "topic")
    # Merged runs of one producer and shift never overlap: where two do, an id has two contents.
    places = tables.unclear_places
    suspects = places.join(intervals.crowded(places, topic), [*topic, "bucket"], "leftsemi")
    content = F.struct("producer", (F.col("id") + F.col("shift")).alias("counter"))
    torn = settled(
        intervals.exploded(suspects, "id")
        .groupBy(*topic, "id")
        .agg(F.min(content).alias("least"), F.max(content).alias("most"))
        .where(F.col("least") != F.col("most"))
        .select(*topic, "id", "least.*", "most")
    )
    shown = seen_by(torn, tables, "id", "counter", "sighting")
    others = shown.select(
        *topic,
        "id",
        F.col("most.producer").alias("producer"),
        F.col("most.counter").alias("counter"),
        F.struct("producer", "counter", "sighting").alias("lesser"),
    )
    return seen_by(others, tables, "id", "counter", "other_sighting").select(
        *evidence(
            run_id=F.col("run_id"),
            topic=F.col("topic"),
            id=F.col("id"),
            producer=F.col("lesser.producer"),
            counter=F.col("lesser.counter"),
            detail=F.concat_ws(" ", "producer", F.col("counter").cast("string")),
            operations=F.array_compact(F.array("lesser.sighting", "other_sighting")),
        )
    )
