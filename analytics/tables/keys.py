"""What the keys of the PUTs say of ids: which nothing can have replaced, and which something has.

What lives here: this of ids that were gone, or may have been, when an operation ended. What must
not: what somebody was told of that (anomalies/).
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.window import Window as W

from analytics.common.schema import DIGEST_DIGITS, KEY
from analytics.common.table_store import settled
from analytics.tables.runs import acknowledged_runs, one_host
from analytics.tables.tables import Tables


def of_ids(spans: DataFrame, tables: Tables) -> DataFrame:
    """Return the ids of spans (KEY, topic, at, end_ns, `first`, `last`) that an `ok` PUT stored.

    `is_keyless`: it has no properties, so no key. `is_latest`: all behind it are known up to one
    that was surely stored after `end_ns`, and none has its key. `is_replaced`: a later one has it,
    below that one if there is one. And which PUT has stored it (`put_at`, `put_ns`, `duplicate`).
    """
    puts = _puts_of(spans, tables)
    ids = (
        spans.join(_stored_behind(spans, puts), list(KEY), "left")
        .join(_known(puts), ["run_id", "topic"])
        .where(F.col("id").between(F.col("first"), F.col("last")))
    )
    is_known = (F.col("id") < F.col("behind_id")) & (F.col("run_last") >= F.col("behind_id") - 1)
    is_next = F.coalesce(F.col("next_id") < F.col("behind_id"), F.lit(False))
    has_key = F.col("marked") & F.col("key").isNotNull()
    is_replaced = F.col("key").isNotNull() & F.col("next_id").isNotNull()
    is_replaced = is_replaced & (is_next | F.col("behind_id").isNull())
    return ids.withColumns(
        {
            "is_keyless": ~F.col("marked"),
            "is_latest": F.coalesce(has_key & is_known & ~is_next, F.lit(False)),
            "is_replaced": is_replaced,
        }
    ).select(
        *(*spans.columns, "id", "is_keyless", "is_latest", "is_replaced"),
        *("put_at", "put_ns", "duplicate"),
    )


def _puts_of(spans: DataFrame, tables: Tables) -> DataFrame:
    """Return what was put to the topics of which somebody was told so, with its keys."""
    topics = F.broadcast(spans.select("run_id", "topic").distinct())
    marks = tables.told.where(F.col("f") == "put").select(*KEY, "marked", "keyed", "keys")
    return settled(
        acknowledged_runs(tables.puts)
        .join(topics, ["run_id", "topic"], "leftsemi")
        .join(marks, list(KEY), "left")
        .select(
            *(*KEY, "topic", "first", "last", "duplicate", "marked", "keyed", "keys"),
            one_host().alias("put_at"),
            F.col("invoke_ns").alias("put_ns"),
        )
    )


def _known(puts: DataFrame) -> DataFrame:
    """Return each id that was put: its key, where the next one of that is, and up to where all
    behind it are known.
    """
    topic = W.partitionBy("run_id", "topic")
    place = F.array_position("keyed", F.col("id"))
    start = ((place - 1) * DIGEST_DIGITS + 1).cast("int")
    key = F.when(place > 0, F.substr("keys", start, F.lit(DIGEST_DIGITS)))
    first_said = W.partitionBy("run_id", "topic", "id").orderBy("duplicate", "put_ns", "op_id")
    begins = F.coalesce(F.col("id") != F.lag("id").over(topic.orderBy("id")) + 1, F.lit(True))
    return (
        puts.withColumn("id", F.explode(F.sequence("first", "last")))
        .withColumn("place", F.row_number().over(first_said))
        .where(F.col("place") == 1)
        .select(
            *("run_id", "topic", "id", "duplicate", "put_at", "put_ns"),
            F.coalesce(F.array_contains("marked", F.col("id")), F.lit(False)).alias("marked"),
            key.alias("key"),
            begins.cast("int").alias("begins"),
        )
        .withColumn("run", F.sum("begins").over(topic.orderBy("id")))
        .withColumn("run_last", F.max("id").over(W.partitionBy("run_id", "topic", "run")))
        .withColumn(
            "next_id", F.lead("id").over(W.partitionBy("run_id", "topic", "key").orderBy("id"))
        )
    )


def _stored_behind(spans: DataFrame, puts: DataFrame) -> DataFrame:
    """Return for each answer the lowest id that was surely stored after it came."""
    later = puts.where(~F.col("duplicate")).select(
        *("run_id", "topic"), F.col("put_at").alias("at"), "put_ns", F.col("first").alias("put_id")
    )
    return (
        spans.join(later, ["run_id", "topic", "at"])
        .where(F.col("put_ns") > F.col("end_ns"))
        .groupBy(*KEY)
        .agg(F.min("put_id").alias("behind_id"))
    )
