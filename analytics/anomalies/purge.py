"""What is said to be purged though no purge named it, and what was given though one had."""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from analytics.common.schema import KEY, evidence, operation
from analytics.common.table_store import settled
from analytics.tables.runs import one_host
from analytics.tables.tables import Tables, with_application

ROW = (*KEY, "client_id", "topic")


def purge(tables: Tables) -> DataFrame:
    """Find answers that say more than was purged, and answers of what was purged before.

    The purges of an application's cluster stand in no record of it: what it is told is believed.
    """
    return _unsaid(tables).unionByName(_kept(tables))


def _unsaid(tables: Tables) -> DataFrame:
    told = settled(
        with_application(tables.gets.where("tells_of_purge"), tables)
        .where(~F.col("is_application"))
        .select(*ROW, F.col("last").alias("id"), "end_ns", one_host())
    )
    asked = _purges(tables, "purge")
    same = [F.col(name) == F.col(f"purge_{name}") for name in ("run_id", "topic")]
    is_before = (F.col("at") != F.col("purge_at")) | (F.col("purge_ns") < F.col("end_ns"))
    named = [*same, F.col("purge_id") >= F.col("id"), is_before]
    return told.join(F.broadcast(asked), named, "leftanti").select(
        *_evidence("unsaid", F.lit(None))
    )


def _kept(tables: Tables) -> DataFrame:
    done = _purges(tables, "purged")
    brought = tables.gets.where(~F.col("tells_of_purge") & F.col("first").isNotNull())
    rows = brought.select(*ROW, F.col("first").alias("id"), "invoke_ns", one_host())
    same = [F.col(name) == F.col(f"purge_{name}") for name in ("run_id", "topic", "at")]
    gone = [*same, F.col("id") <= F.col("purge_id"), F.col("purge_ns") < F.col("invoke_ns")]
    return (
        rows.join(F.broadcast(done), gone)
        .groupBy(*ROW, "id")
        .agg(F.max("purge_id").alias("gone"))
        .select(*_evidence("kept", F.col("gone")))
    )


def _purges(tables: Tables, f: str) -> DataFrame:
    """Return the purges that were asked for, or carried out: few."""
    return tables.asides.where(F.col("f") == f).select(
        F.col("run_id").alias("purge_run_id"),
        F.col("topic").alias("purge_topic"),
        one_host().alias("purge_at"),
        F.col("last_id").alias("purge_id"),
        F.col("t_ns").alias("purge_ns"),
    )


def _evidence(detail: str, other_id: Column) -> list[Column]:
    return evidence(
        run_id=F.col("run_id"),
        topic=F.col("topic"),
        client_id=F.col("client_id"),
        id=F.col("id"),
        other_id=other_id,
        detail=F.lit(detail),
        operations=F.array(operation()),
    )
