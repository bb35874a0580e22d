"""What contradicts that a group gave the publications of a key one after the other, in order.

Two of one key with ids Y < X: when X was leased, Y was settled. So no lease of Y has a higher
token, nothing that is said later of its lease is accepted, and somebody had said that it is done.
"""

from pyspark.sql import Column, DataFrame, WindowSpec
from pyspark.sql import functions as F
from pyspark.sql.window import Window as W

from analytics.common import intervals
from analytics.common.schema import DIGEST_DIGITS, KEY, PURGES, evidence, operation
from analytics.common.table_store import few, is_never_any, settled
from analytics.tables.group_standing import lasting
from analytics.tables.groups import (
    GROUP,
    ID,
    groups_of,
    is_accepted,
    keys_of,
    leases_of,
    named,
    ordered_of,
    said_keys_of,
    settlements_of,
    takes_of,
)
from analytics.tables.lives import EVER, FOREVER
from analytics.tables.runs import acknowledged_runs
from analytics.tables.tables import Tables, with_application

OF_KEY = (*GROUP, "key")


def key_order(tables: Tables) -> DataFrame:
    """Find publications of groups that are ordered by key, given before another of their key."""
    if is_never_any(tables.worked):
        return tables.worked.select(*evidence())
    ordered = F.broadcast(ordered_of(tables.worked))
    takes = settled(takes_of(tables.worked).join(ordered, list(GROUP), "leftsemi"))
    keys = settled(keys_of(said_keys_of(takes)))
    leases = settled(leases_of(takes).join(keys, list(ID)))
    said = settled(settlements_of(takes))
    return (
        _changed(tables)
        .unionByName(_together(leases))
        .unionByName(_again(leases))
        .unionByName(_held(leases, said.where(is_accepted()).join(keys, list(ID))))
        .unionByName(_open(leases, said, tables))
    )


def _changed(tables: Tables) -> DataFrame:
    """Find ids of which two answers say different keys, in whatever group, or an answer another one
    than it was put with.
    """
    one = F.struct("key", "seen")
    told = settled(said_keys_of(takes_of(tables.worked)))
    ids = told.select(*ID).distinct()
    said = told.unionByName(_put_keys_of(tables).join(ids, ["run_id", "topic", "id"]))
    ids = said.groupBy(*ID).agg(F.min(one).alias("least"), F.max(one).alias("most"))
    return ids.where(F.col("least.key") != F.col("most.key")).select(
        *evidence(**named("changed"), operations=F.array("least.seen", "most.seen"))
    )


def _put_keys_of(tables: Tables) -> DataFrame:
    """Return (run_id, topic, id, key, seen) of what was acknowledged by a PUT that names keys: ""
    where it names none.
    """
    said = tables.told.where((F.col("f") == "put") & (F.size("keyed") > 0))
    puts = acknowledged_runs(tables.puts).select(*KEY, "topic", "first", "last")
    both = puts.join(said.select(*KEY, "keyed", "keys"), list(KEY))
    ids = intervals.exploded(both.select("*", operation().alias("seen")), "id")
    place = F.array_position("keyed", F.col("id"))
    start = ((place - 1) * DIGEST_DIGITS + 1).cast("int")
    key = F.when(place > 0, F.substr("keys", start, F.lit(DIGEST_DIGITS))).otherwise("")
    return ids.select("run_id", "topic", "id", "seen", key.alias("key"))


def _together(leases: DataFrame) -> DataFrame:
    """Find ids that one take was given behind others of their key."""
    of_take = W.partitionBy(*OF_KEY, "token")
    first = F.min(F.struct("id", "seen")).over(of_take).alias("first")
    both = leases.select(*ID, "seen", first).where(F.col("first.id") < F.col("id"))
    return _proofs(both, "together")


def _again(leases: DataFrame) -> DataFrame:
    """Find ids of which one before them, of their key, has a lease with a higher token."""
    highest = F.max(F.struct("token", "seen"))
    given = leases.groupBy(*ID, "key").agg(
        F.min(F.struct("token", "seen")).alias("first_lease"), highest.alias("last_lease")
    )
    before = _before(W.partitionBy(*OF_KEY).orderBy("id"))
    found = given.withColumn("first", F.max("last_lease").over(before))
    early = found.where(F.col("first.token") > F.col("first_lease.token"))
    return _proofs(early.select(*ID, F.col("first_lease.seen").alias("seen"), "first"), "again")


def _held(leases: DataFrame, accepted: DataFrame) -> DataFrame:
    """Find ids that somebody had before anything that was said of the lease of one before them was
    sent, and accepted.
    """
    columns = (*ID, "key", "at")
    one = F.struct(F.col("begun_ns").alias("invoke_ns"), "seen")
    other = F.struct("end_ns", "seen")
    said = accepted.where(F.col("begun_ns") > EVER).groupBy(*columns)
    given = leases.groupBy(*columns).agg(F.min(other).alias("lease"))
    rows = said.agg(F.max(one).alias("ack")).join(given, list(columns), "full")
    before = _before(W.partitionBy(*OF_KEY, "at").orderBy("id"))
    rows = rows.withColumn("first", F.max("ack").over(before))
    early = rows.where(F.col("first.invoke_ns") > F.col("lease.end_ns"))
    return _proofs(early.select(*ID, F.col("lease.seen").alias("seen"), "first"), "held")


def _open(leases: DataFrame, said: DataFrame, tables: Tables) -> DataFrame:
    """Find ids that were leased though one before them, of their key, had been leased before they
    were asked for, and nobody had begun to acknowledge it by the answer.

    That one can be no dead letter, have expired, or been purged: only its acks end it.
    """
    key = (*OF_KEY, "at")
    acks = said.where(F.col("word") == "acks").groupBy(*ID).agg(
        F.min("invoke_ns").alias("ack_ns"),
        F.min("at").alias("ack_at"),
        F.max("at").alias("other_at"),
        F.count_if(F.col("invoke_ns").isNull()).alias("lone"),
    )  # fmt: skip
    first = F.min(F.struct("end_ns", "at", "seen")).alias("first_lease")
    spans = (
        leases.groupBy(*ID, "key")
        .agg(first, F.max("attempt").alias("attempt"))
        .join(acks, list(ID), "left")
        .select(
            *(*ID, "key", "attempt"),
            F.col("first_lease.at").alias("at"),
            F.col("first_lease.end_ns").alias("open_ns"),
            F.col("first_lease.seen").alias("holder"),
            F.coalesce("ack_ns", F.lit(FOREVER)).alias("over_ns"),
            *("ack_at", "other_at", "lone"),
        )
        .where(F.col("ack_at").isNull() | _all_here())
    )
    rows = spans.select(*ID, "key", "at", "over_ns").unionByName(
        leases.select(*ID, "key", "at", "begun_ns", "end_ns", "seen"), allowMissingColumns=True
    )
    before = _before(W.partitionBy(*key).orderBy("id"))
    latest = rows.withColumn("latest_ns", F.max("over_ns").over(before))
    doubtful = few(latest.where(F.col("latest_ns") > F.col("end_ns")).drop("over_ns", "latest_ns"))
    if is_never_any(doubtful):
        return doubtful.select(*evidence())
    groups = with_application(groups_of(tables.worked), tables)
    limits = groups.where(~F.col("is_application")).select(*GROUP, "hidden", "attempts_max")
    purges = tables.asides.where(F.col("f").isin(*PURGES))
    purged = purges.groupBy("run_id", "topic").agg(F.max("last_id").alias("purged_id"))
    may_be = F.coalesce(F.col("attempt") + F.col("hidden") >= F.col("attempts_max"), F.lit(False))
    lower = lasting(
        spans.join(F.broadcast(limits), list(GROUP))
        .join(F.broadcast(purged), ["run_id", "topic"], "left")
        .where(~may_be & (F.col("id") > F.coalesce("purged_id", F.lit(0)))),
        tables,
    )
    lower = lower.select(*key, F.col("id").alias("lower_id"), "open_ns", "over_ns", "holder")
    is_open = (F.col("open_ns") < F.col("begun_ns")) & (F.col("over_ns") > F.col("end_ns"))
    early = doubtful.join(lower, list(key)).where((F.col("lower_id") < F.col("id")) & is_open)
    first = F.struct(F.col("holder").alias("seen"))
    return _proofs(early.select(*ID, "seen", first.alias("first")), "open")


def _all_here() -> Column:
    """Return whether all acks of a row's id were sent on the host of its lease."""
    here = (F.col("ack_at") == F.col("at")) & (F.col("other_at") == F.col("at"))
    return here & (F.col("lone") == 0)


def _before(rows: WindowSpec) -> WindowSpec:
    """Return the window of the rows with lower ids."""
    return rows.rangeBetween(W.unboundedPreceding, -1)


def _proofs(early: DataFrame, word: str) -> DataFrame:
    """Return the evidence: `seen` was given the id, and `first` says of one before it what is."""
    rows = early.select(*ID, "seen", F.col("first.seen").alias("other"))
    found = rows.groupBy(*ID).agg(F.min(F.struct("seen", "other")).alias("proof"))
    operations = F.array("proof.seen", "proof.other")
    return found.select(*evidence(**named(word), operations=operations))
