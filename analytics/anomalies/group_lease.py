"""Leases that were given while an older one held, and attempts that jump."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from analytics.common.schema import evidence
from analytics.common.table_store import is_never_any, settled
from analytics.tables.groups import (
    GROUP,
    ID,
    LEASE,
    NS_OF_MS,
    accepted_of,
    given_back_of,
    groups_of,
    leases_of,
    named,
    takes_of,
)
from analytics.tables.tables import Tables, with_application

WORKER = (*GROUP, "client_id", "epoch", "at")


def group_lease(tables: Tables) -> DataFrame:
    """Find publications that two had at once, and those that were given more often than seen."""
    if is_never_any(tables.worked):
        return tables.worked.select(*evidence())
    takes = settled(takes_of(tables.worked))
    leases = settled(leases_of(takes))
    jumps, foreign = _jumps(tables, leases), _foreign(takes, leases)
    return _shared(takes, leases).unionByName(jumps).unionByName(foreign)


def _shared(takes: DataFrame, leases: DataFrame) -> DataFrame:
    """Find leases of which a newer one was answered before they can have run out.

    Unless something was said of the older one meanwhile; and its client had no newer process then.
    """
    older = leases.withColumn("until_ns", F.col("invoke_ns") + F.col("left_ms") * NS_OF_MS)
    newer = leases.select(
        *ID,
        F.col("token").alias("new_token"),
        F.col("at").alias("new_at"),
        F.col("end_ns").alias("new_ns"),
        F.col("seen").alias("new_seen"),
    )
    is_newer = (F.col("new_token") > F.col("token")) & (F.col("new_at") == F.col("at"))
    both = settled(
        older.join(newer, list(ID)).where(is_newer & (F.col("new_ns") < F.col("until_ns")))
    )
    said = given_back_of(takes).select(*LEASE, "client_id").distinct()
    went_on = takes.where((F.col("outcome") == "ok") & F.col("epoch").isNotNull())
    last = went_on.groupBy(*WORKER).agg(F.max("invoke_ns").alias("last_ns"))
    return (
        both.join(said, [*LEASE, "client_id"], "leftanti")
        .join(last, list(WORKER))
        .where(F.col("last_ns") > F.col("new_ns"))
        .groupBy(*ID)
        .agg(F.min(F.struct("seen", "new_seen")).alias("proof"))
        .select(*evidence(**named("shared"), operations=F.array("proof.seen", "proof.new_seen")))
    )


def _jumps(tables: Tables, leases: DataFrame) -> DataFrame:
    """Find ids of which more attempts are on no record than TAKEs may have hidden."""
    hidden = groups_of(tables.worked).select(*GROUP, "hidden")
    given = leases.groupBy(*ID).agg(
        F.max(F.struct("attempt", "seen")).alias("most"),
        F.count_distinct("attempt").alias("attempts"),
    )
    missing = F.col("most.attempt") - F.col("attempts")
    doubtful = given.join(F.broadcast(hidden), list(GROUP)).where(missing > F.col("hidden"))
    return (
        with_application(doubtful, tables)
        .where(~F.col("is_application"))
        .select(*evidence(**named("jump"), operations=F.array("most.seen")))
    )


def _foreign(takes: DataFrame, leases: DataFrame) -> DataFrame:
    """Find acks that were accepted of who was never given that lease."""
    whose = [F.col("its_epoch").eqNullSafe(F.col("epoch"))]
    names = (*LEASE, "client_id")
    whose += [F.col(name) == F.col(f"its_{name}") for name in names]
    own = leases.select(*(F.col(name).alias(f"its_{name}") for name in (*names, "epoch")))
    return (
        accepted_of(takes)
        .join(own, whose, "leftanti")
        .groupBy(*ID)
        .agg(F.min("seen").alias("seen"))
        .select(*evidence(**named("foreign"), operations=F.array("seen")))
    )
