"""Nodes whose disks contradict each other."""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from analytics.common.schema import evidence
from analytics.tables.tables import Tables

DIGITS = 8  # of a digest that are shown


def replica_divergence(tables: Tables) -> DataFrame:
    """Find indexes at which two nodes hold different committed entries, or different states.

    `id` is the index; `detail` has `entry` or `state`, and the two nodes with what they hold.
    """
    return _differing(tables.truth, "entry").unionByName(_differing(tables.truth, "state"))


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
