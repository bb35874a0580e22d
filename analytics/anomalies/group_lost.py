"""Publications that a group says are settled, and that nobody can have settled."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.window import Window as W

from analytics.common import intervals
from analytics.common.schema import evidence
from analytics.common.table_store import is_never_any, settled
from analytics.tables.groups import (
    GROUP,
    acks_of,
    groups_of,
    leases_of,
    letters_of,
    named,
    takes_of,
)
from analytics.tables.runs import acknowledged_runs
from analytics.tables.tables import Tables, with_application


def group_lost(tables: Tables) -> DataFrame:
    """Find ids up to where all is settled that no ack names, and that are no dead letters."""
    if is_never_any(tables.worked):
        return tables.worked.select(*evidence())
    groups = settled(_judged(tables))
    takes = settled(takes_of(tables.worked))
    wanted = groups.withColumns(
        {
            "first": F.greatest("start", F.coalesce("purged_id", F.lit(0))) + 1,
            "last": F.col("until"),
        }
    ).select(*GROUP, "made_by", "first", "last")
    missing = settled(
        intervals.uncovered(
            intervals.split(wanted), intervals.split(_explained(tables, groups, takes)), GROUP
        )
    )
    place = F.row_number().over(W.partitionBy(*GROUP).orderBy("id"))
    return (
        _lasting(intervals.exploded(missing, "id"), tables)
        .withColumn("run", F.col("id") - place)
        .groupBy(*GROUP, "made_by", "run")
        .agg(F.min("id").alias("id"), F.max("id").alias("other_id"))
        .select(
            *evidence(
                **named("settled"),
                other_id=F.col("other_id"),
                operations=F.array("made_by"),
            )
        )
    )


def _lasting(missing: DataFrame, tables: Tables) -> DataFrame:
    """Return the ids that can't have expired: in a topic in which some do, those known not to."""
    topics = F.broadcast(tables.expiring)
    stored = acknowledged_runs(tables.puts).join(topics, ["run_id", "topic"], "leftsemi")
    if is_never_any(stored):
        return missing.join(topics, ["run_id", "topic"], "leftanti")
    ids = stored.withColumn("id", F.explode(F.sequence("first", "last")))
    is_its = F.exists("expires", lambda run: F.col("id").between(run[0], run[1]))
    known = ids.where(~F.coalesce(is_its, F.lit(False))).select("run_id", "topic", "id").distinct()
    others = missing.join(topics, ["run_id", "topic"], "leftanti")
    return others.unionByName(missing.join(known, ["run_id", "topic", "id"], "leftsemi"))


def _judged(tables: Tables) -> DataFrame:
    """Return the groups that stood, as `groups_of`, with `purged_id`.

    Not those in which what nobody was seen to be given may have become a dead letter.
    """
    groups = with_application(groups_of(tables.worked), tables)
    is_open = F.col("attempts_max").isNotNull() & (F.col("hidden") >= F.col("attempts_max"))
    purged = (
        tables.asides.where(F.col("f").isin("purge", "purged"))
        .groupBy("run_id", "topic")
        .agg(F.max("last_id").alias("purged_id"))
    )
    judged = F.col("stood") & F.col("start").isNotNull() & ~F.col("is_application")
    return groups.where(judged & ~is_open).join(F.broadcast(purged), ["run_id", "topic"], "left")


def _explained(tables: Tables, groups: DataFrame, takes: DataFrame) -> DataFrame:
    """Return runs of the ids that were acknowledged, are dead letters, or may be."""
    columns = (*GROUP, "first", "last")
    done = acks_of(takes).select(*columns)
    one = (F.col("id").alias("first"), F.col("id").alias("last"))
    letters = letters_of(tables.told, tables.worked).select(*GROUP, *one)
    often = F.col("attempt") + F.col("hidden") >= F.col("attempts_max")
    limits = groups.select(*GROUP, "hidden", "attempts_max")
    maybe = leases_of(takes).join(F.broadcast(limits), list(GROUP)).where(often)
    return done.unionByName(letters).unionByName(maybe.select(*GROUP, *one))
