"""A term with two leaders."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from analytics.common.schema import evidence
from analytics.tables.tables import Tables


def leaders_per_term(tables: Tables) -> DataFrame:
    """Find terms that two nodes led: one answered as the leader, or its log says so.

    `id` is the term. Which operations: the first answer of each, of those that answered.
    """
    said = tables.truth.where(F.col("kind") == "leadership").select("run_id", "term", "node")
    answered = tables.leaders.select("run_id", "term", "node", "seen")
    led = answered.unionByName(said, allowMissingColumns=True)
    one = F.struct("node", "seen")
    terms = (
        led.groupBy("run_id", "term", "node")
        .agg(F.min("seen").alias("seen"))
        .groupBy("run_id", "term")
        .agg(F.min(one).alias("least"), F.max(one).alias("most"))
    )
    return terms.where(F.col("least.node") != F.col("most.node")).select(
        *evidence(
            run_id=F.col("run_id"),
            id=F.col("term"),
            detail=F.concat_ws(" ", F.lit("term:"), "least.node", "most.node"),
            operations=F.array_compact(F.array("least.seen", "most.seen")),
        )
    )
