"""What nodes have collected as garbage, and which acknowledged PUTs they still have to hold.

docs/checks.md (`ack_not_durable`) says when a node need not hold a publication: it has taken its
counter, and has collected its id; or has taken its counter, if it has no id, or was delayed.

What every node has passed needs no look at each: in a drained run that is nearly all. What was
acknowledged to a producer in a bucket of ids says so for all its PUTs; only those of other buckets
are read. No rule about majorities here.
"""

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from analytics.common import intervals
from analytics.common.schema import ANY_ID, LANE, PURGES
from analytics.common.table_store import few
from analytics.tables.suspects import PRODUCER, TOPIC, only

HOLDER: Final = (*PRODUCER, "node")


def uncollected_of(
    puts: DataFrame, stored: DataFrame, truth: DataFrame, nodes: DataFrame, asides: DataFrame
) -> DataFrame:
    """Return the PUTs that were acknowledged, and that some node whose disk was read has to hold.

    `puts` as in tables.py, `truth`, `nodes` and `asides` too; `stored` as in suspects.py.
    """
    read = nodes.where("is_collected").select("run_id", "node")
    floors = _least(floors_of(truth, read, asides), read, TOPIC, "floor")
    taken = _least(taken_of(truth), read, PRODUCER, "taken")
    at_all = read.select("run_id").distinct()

    def uncollected(rows: DataFrame) -> DataFrame:
        """Return those of rows that no node is excused from: as `excused` wants them."""
        return (
            rows.join(F.broadcast(at_all), "run_id", "leftsemi")
            .join(F.broadcast(floors), list(TOPIC), "left")
            .join(F.broadcast(taken), list(PRODUCER), "left")
            .withColumns(
                {
                    "floor": F.coalesce("floor", F.lit(0)),
                    "taken": F.coalesce("taken", F.lit(-1)),
                }
            )
            .where(F.col("last_counter") > excused())
            .drop("floor", "taken", "shift")
        )

    acknowledged = puts.where(F.col("outcome") == "ok").select(
        *(*PRODUCER, "process", "op_id", "first_counter", "last_counter", "first_id"),
        (F.col("first_counter") - F.col("first_id")).alias("shift"),
    )
    # As if one PUT had the highest counter of a bucket and its highest id.
    highest = stored.select(
        *(*PRODUCER, "bucket", F.lit(1).alias("first_id")),
        F.col("high_counter").alias("last_counter"),
        (F.col("high_counter") - F.col("high_id")).alias("shift"),
    )
    where = (*PRODUCER, "bucket")
    unproven = few(uncollected(highest).select(*where))
    last_id = F.col("last_counter") - F.col("shift")
    placed = acknowledged.where(F.col("first_id") > 0)
    placed = only(placed.withColumn("bucket", intervals.bucket_of(last_id)), unproven, where)
    elsewhere = acknowledged.where(F.col("first_id") <= 0)
    return uncollected(elsewhere.unionByName(placed.drop("bucket")))


def _least(said: DataFrame, nodes: DataFrame, keys: tuple[str, ...], name: str) -> DataFrame:
    """Return the least `name` of all nodes, of the keys of which every node says one."""
    size = nodes.groupBy("run_id").agg(F.count(F.lit(1)).alias("nodes"))
    return (
        said.join(F.broadcast(nodes), ["run_id", "node"], "leftsemi")
        .groupBy(*keys)
        .agg(F.min(name).alias(name), F.count(F.lit(1)).alias("sayings"))
        .join(F.broadcast(size), "run_id")
        .where(F.col("sayings") == F.col("nodes"))
        .select(*keys, name)
    )


def floors_of(truth: DataFrame, nodes: DataFrame, asides: DataFrame) -> DataFrame:
    """Return (run_id, node, topic, floor): up to which id each of `nodes` (run_id, node) has
    collected a topic, or need not have it as purges name it. A policy's row names no id.
    """
    columns = ("run_id", "node", "topic", "floor_id")
    is_named = F.col("f").isin(*PURGES) & (F.col("last_id") < ANY_ID)
    named = asides.where(is_named).select("run_id", "topic", F.col("last_id").alias("floor_id"))
    return (
        truth.where(F.col("kind") == "topic")
        .select(*columns)
        .unionByName(named.join(nodes, "run_id").select(*columns))
        .groupBy("run_id", "node", "topic")
        .agg(F.max("floor_id").alias("floor"))
    )


def taken_of(truth: DataFrame) -> DataFrame:
    """Return (HOLDER, taken): up to which counter a node has taken a producer's publications."""
    return (
        truth.where(F.col("kind") == "counter")
        .groupBy(*HOLDER)
        .agg(F.max("counter").alias("taken"))
    )


def excused() -> Column:
    """Return the highest counter that a node need not hold, of a PUT beside `floor` and `taken`."""
    is_collectable = (F.col("first_id") > 0) & ~F.endswith("topic", F.lit(LANE))
    collected = F.when(is_collectable, F.col("floor") + F.col("shift"))
    return F.least("taken", F.coalesce(collected, "taken"))
