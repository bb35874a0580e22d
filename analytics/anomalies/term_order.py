"""A term that answered after a later one."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from analytics.common.schema import evidence
from analytics.tables.tables import Tables


def term_order(tables: Tables) -> DataFrame:
    """Find terms (`id`) in which something was answered that was sent after an answer of a higher
    term (`other_id`). Clocks are compared, so only on one host.
    """
    return tables.late_terms.select(
        *evidence(
            run_id=F.col("run_id"),
            id=F.col("term"),
            other_id=F.col("other_term"),
            operations=F.array("earlier", "later"),
        )
    )
