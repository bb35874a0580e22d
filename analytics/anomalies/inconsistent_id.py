"""One id under which different publications were seen."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from analytics.common import intervals
from analytics.common.schema import evidence, operation
from analytics.common.table_store import is_never_any, settled
from analytics.tables.groups import every_letter_of
from analytics.tables.suspects import TOPIC_BUCKET, only
from analytics.tables.tables import Tables, contents_of, seen_by

DIGITS = 8  # of a digest that are shown
ID = ("run_id", "topic", "id")


def inconsistent_id(tables: Tables) -> DataFrame:
    """Find ids that acknowledgments, answers or nodes tell apart.

    So do dead letters, which nobody put. The smaller (producer, counter) is the evidence's, the
    greatest other one its `detail`. Where applications recorded, it is the contents' digests that
    differ, and `detail` has two of them; of two dead letters it has both.
    """
    apart = settled(_told_apart(tables))
    letters = _where_letters_stand(tables)
    if is_never_any(letters):
        return apart.unionByName(_differing(tables).join(apart, list(ID), "leftanti"))
    beside = settled(_beside(letters, tables).join(apart, list(ID), "leftanti"))
    found = apart.unionByName(beside)
    several = settled(_several(letters).join(found, list(ID), "leftanti"))
    found = found.unionByName(several)
    return found.unionByName(_differing(tables).join(found, list(ID), "leftanti"))


def _where_letters_stand(tables: Tables) -> DataFrame:
    """Return a row a dead letter and place, with an answer that brought it: letters are few."""
    words = F.concat_ws(" ", F.lit("letter"), "topic", "group", F.col("id").cast("string"))
    return settled(
        every_letter_of(tables.told, tables.worked)
        .withColumn("words", words)
        .groupBy(
            "run_id",
            F.col("stands_in").alias("in"),
            F.col("stands_at").alias("at"),
            *("topic", "group", "id"),
        )
        .agg(F.min("seen").alias("seen"), F.min("words").alias("letter"))
        .select("run_id", F.col("in").alias("topic"), F.col("at").alias("id"), "seen", "letter")
    )


def _beside(letters: DataFrame, tables: Tables) -> DataFrame:
    """Find dead letters where something stands that somebody put."""
    here = letters.withColumn("bucket", intervals.bucket_of(F.col("id")))
    places = only(tables.places, here, TOPIC_BUCKET)
    content = F.struct("producer", (F.col("id") + F.col("shift")).alias("counter"))
    return (
        here.join(places, list(TOPIC_BUCKET))
        .where(F.col("id").between(F.col("first"), F.col("last")))
        .groupBy(*ID)
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


def _several(letters: DataFrame) -> DataFrame:
    """Find the ids under which different dead letters came."""
    one = F.struct("letter", "seen")
    ids = letters.groupBy(*ID).agg(
        F.count(F.lit(1)).alias("letters"), F.min(one).alias("least"), F.max(one).alias("most")
    )
    return ids.where(F.col("letters") > 1).select(
        *evidence(
            run_id=F.col("run_id"),
            topic=F.col("topic"),
            id=F.col("id"),
            detail=F.concat_ws(", ", "least.letter", "most.letter"),
            operations=F.array("least.seen", "most.seen"),
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
