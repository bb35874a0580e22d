"""Nodes whose disks contradict each other."""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.window import Window as W

from analytics.common import intervals
from analytics.common.schema import evidence
from analytics.tables.suspects import without
from analytics.tables.tables import Tables

HOLDER = ("run_id", "node", "topic")
DIGITS = 8  # of a digest that are shown


def replica_divergence(tables: Tables) -> DataFrame:
    """Find indexes at which two nodes hold different committed entries, or different states, or at
    which a node's entry is of a term below that of an earlier one; and topics that are not the same
    on two nodes whose states are.

    `id` is the index; `detail` has `entry` or `state`, and the two nodes with what they hold.
    """
    both = _differing(tables.truth, "entry").unionByName(_differing(tables.truth, "state"))
    return both.unionByName(_terms_back(tables.truth)).unionByName(_unequal(tables))


def _unequal(tables: Tables) -> DataFrame:
    """Find topics that two nodes of one state do not have alike: their ends, their floors, how many
    ids they hold above these. Of a topic in which something expires nobody counts what is held.
    """
    truth = tables.truth
    states = (
        truth.where(F.col("kind") == "state")
        .groupBy("run_id", "node")
        .agg(F.sort_array(F.collect_set(F.struct("index", "digest"))).alias("states"))
    )
    ends = (
        truth.where(F.col("kind") == "topic")
        .groupBy(*HOLDER)
        .agg(F.max("last_id").alias("last_id"), F.max("floor_id").alias("floor_id"))
    )
    held = truth.where((F.col("kind") == "held") & (F.col("first_id") > 0)).select(
        *HOLDER,
        F.col("first_id").alias("first"),
        (F.col("first_id") + F.coalesce("count", F.lit(1)) - 1).alias("last"),
    )
    kept = without(held, tables.expiring, ("run_id", "topic"))
    above = F.greatest(F.lit(0), F.col("last") - F.greatest(F.col("first") - 1, F.col("floor_id")))
    counts = (
        intervals.merged(intervals.split(kept), HOLDER)
        .join(ends, list(HOLDER))
        .groupBy(*HOLDER)
        .agg(F.sum(above).alias("held"))
    )
    said = F.struct("last_id", "floor_id", F.coalesce("held", F.lit(0)).alias("held"))
    nodes = states.withColumn("nodes", F.count(F.lit(1)).over(W.partitionBy("run_id", "states")))
    return (
        ends.join(counts, list(HOLDER), "left")
        .select(*HOLDER, said.alias("said"))
        .join(nodes.where(F.col("nodes") > 1), ["run_id", "node"])
        .groupBy("run_id", "states", "topic", "nodes")
        .agg(
            F.count(F.lit(1)).alias("told"),
            F.min("said").alias("least"),
            F.max("said").alias("most"),
            F.sort_array(F.collect_set("node")).alias("names"),
        )
        .where((F.col("told") < F.col("nodes")) | (F.col("least") != F.col("most")))
        .groupBy("run_id", "topic")
        .agg(F.min("names").alias("names"))
        .select(
            *evidence(
                run_id=F.col("run_id"),
                topic=F.col("topic"),
                detail=F.concat(F.lit("content: "), F.array_join("names", " ")),
                operations=F.array(),
            )
        )
    )


def _terms_back(truth: DataFrame) -> DataFrame:
    """Find the highest index of a term that stands above one of a higher term on its node."""
    terms = (
        truth.where(F.col("kind") == "entry")
        .groupBy("run_id", "node", F.coalesce("term", F.lit(0)).alias("term"))
        .agg(F.min("index").alias("low"), F.max("index").alias("high"))
    )
    above = W.partitionBy("run_id", "node").orderBy(F.desc("term"))
    before = above.rowsBetween(W.unboundedPreceding, -1)
    return (
        terms.withColumn("lowest", F.min(F.struct("low", "term")).over(before))
        .where(F.col("high") > F.col("lowest.low"))
        .groupBy("run_id", F.col("high").alias("index"))
        .agg(F.min(F.struct("node", "term", "lowest")).alias("one"))
        .select(
            *evidence(
                run_id=F.col("run_id"),
                id=F.col("index"),
                other_id=F.col("one.lowest.low"),
                detail=F.concat(
                    F.lit("term: "), "one.node", F.lit("/"), "one.term", F.lit(" "),
                    "one.lowest.term",
                ),
                operations=F.array(),
            )
        )
    )  # fmt: skip


def _differing(truth: DataFrame, kind: str) -> DataFrame:
    held = F.struct("term", "digest", "node")
    indexes = (
        truth.where(F.col("kind") == kind)
        .groupBy("run_id", "index")
        .agg(F.min(held).alias("least"), F.max(held).alias("most"))
    )
    same = F.col("least.term").eqNullSafe(F.col("most.term"))
    same &= F.col("least.digest") == F.col("most.digest")
    return indexes.where(~same).select(
        *evidence(
            run_id=F.col("run_id"),
            id=F.col("index"),
            detail=F.concat_ws(" ", F.lit(f"{kind}:"), _shown("least"), _shown("most")),
            operations=F.array(),
        )
    )


def _shown(one: str) -> Column:
    digits = F.substring(F.col(f"{one}.digest"), 1, DIGITS)
    return F.concat_ws("/", f"{one}.node", F.col(f"{one}.term").cast("string"), digits)
