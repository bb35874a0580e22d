"""Nodes whose disks contradict each other."""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.window import Window as W

from analytics.common.schema import evidence
from analytics.tables.tables import Tables

DIGITS = 8  # of a digest that are shown


def replica_divergence(tables: Tables) -> DataFrame:
    """Find indexes at which two nodes hold different committed entries, or different states, or at
    which a node's entry is of a term below that of an earlier one.

    `id` is the index; `detail` has `entry` or `state`, and the two nodes with what they hold.
    """
    both = _differing(tables.truth, "entry").unionByName(_differing(tables.truth, "state"))
    return both.unionByName(_terms_back(tables.truth))


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
