"""Two publications whose ids contradict the order in which they were made."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from analytics.common.schema import evidence, operation
from analytics.tables.tables import Tables, seen_by


def realtime_order(tables: Tables) -> DataFrame:
    """Find publications at an id that their topic was known to have reached before they were tried.

    One row a publication: its `id`, and as `other_id` what was known first of those at or above it.
    A publication counts as sent when it was first tried: an earlier try may have stored it. Clocks
    are compared, so only on one host.
    """
    return seen_by(tables.late, tables, "id", "counter", "sighting").select(
        *evidence(
            run_id=F.col("run_id"),
            topic=F.col("topic"),
            id=F.col("id"),
            other_id=F.col("above.value"),
            producer=F.col("producer"),
            counter=F.col("counter"),
            operations=F.array_compact(
                F.array(operation("above.process", "above.op_id"), "sighting")
            ),
        )
    )
