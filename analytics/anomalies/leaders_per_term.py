"""A term with two leaders."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from analytics.schema import evidence
from analytics.tables import Tables


def leaders_per_term(tables: Tables) -> DataFrame:
    """Find terms in which two nodes acknowledged operations as the leader. `id` is the term."""
    one = F.struct("node", "seen")
    terms = tables.leaders.groupBy("run_id", "term").agg(
        F.min(one).alias("least"), F.max(one).alias("most")
    )
    return terms.where(F.col("least.node") != F.col("most.node")).select(
        *evidence(
            run_id=F.col("run_id"),
            id=F.col("term"),
            detail=F.concat_ws(" ", F.lit("term:"), "least.node", "most.node"),
            operations=F.array("least.seen", "most.seen"),
        )
    )
