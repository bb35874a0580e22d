"""A payload that is not what its producer wrote."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from analytics.common.schema import evidence, operation
from analytics.tables.runs import LETTER
from analytics.tables.tables import Tables


def corrupt(tables: Tables) -> DataFrame:
    """Find deliveries whose format, checksum or topic did not check out; `detail` says which."""
    is_bad = F.col("reason").isNotNull() & (F.col("reason") != LETTER)
    bad = tables.deliveries.where(~F.col("is_plain") & is_bad)
    return bad.select(
        *evidence(
            run_id=F.col("run_id"),
            topic=F.col("topic"),
            client_id=F.col("client_id"),
            id=F.col("first"),
            detail=F.col("reason"),
            operations=F.array(operation()),
        )
    )
