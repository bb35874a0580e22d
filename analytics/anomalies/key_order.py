"""What contradicts that a group gave the publications of a key one after the other, in order.

Two of one key with ids Y < X: when X was leased, Y was settled, so no lease of Y has a higher token
and no ack of Y that is sent later is accepted.
"""

from pyspark.sql import DataFrame, WindowSpec
from pyspark.sql import functions as F
from pyspark.sql.window import Window as W

from analytics.common import intervals
from analytics.common.schema import DIGEST_DIGITS, KEY, evidence, operation
from analytics.common.table_store import is_never_any, settled
from analytics.tables.groups import (
    GROUP,
    ID,
    accepted_of,
    keys_of,
    leases_of,
    named,
    ordered_of,
    said_keys_of,
    takes_of,
)
from analytics.tables.runs import acknowledged_runs
from analytics.tables.tables import Tables

OF_KEY = (*GROUP, "key")


def key_order(tables: Tables) -> DataFrame:
    """Find publications of groups that are ordered by key, given before another of their key."""
    if is_never_any(tables.worked):
        return tables.worked.select(*evidence())
    ordered = F.broadcast(ordered_of(tables.worked))
    takes = settled(takes_of(tables.worked).join(ordered, list(GROUP), "leftsemi"))
    keys = settled(keys_of(said_keys_of(takes)))
    leases = settled(leases_of(takes).join(keys, list(ID)))
    return (
        _changed(tables)
        .unionByName(_together(leases))
        .unionByName(_again(leases))
        .unionByName(_held(leases, _acks(takes).join(keys, list(ID))))
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


def _acks(takes: DataFrame) -> DataFrame:
    """Return the accepted acks, each with the time at which its step was first asked for."""
    step = W.partitionBy(*GROUP, "step")
    return accepted_of(takes.withColumn("invoke_ns", F.min("invoke_ns").over(step)))


def _held(leases: DataFrame, acks: DataFrame) -> DataFrame:
    """Find ids that somebody had before an ack of one before them was sent, and accepted."""
    columns = (*ID, "key", "at")
    one, other = F.struct("invoke_ns", "seen"), F.struct("end_ns", "seen")
    said = acks.where(F.col("invoke_ns").isNotNull()).groupBy(*columns)
    given = leases.groupBy(*columns).agg(F.min(other).alias("lease"))
    rows = said.agg(F.max(one).alias("ack")).join(given, list(columns), "full")
    before = _before(W.partitionBy(*OF_KEY, "at").orderBy("id"))
    rows = rows.withColumn("first", F.max("ack").over(before))
    early = rows.where(F.col("first.invoke_ns") > F.col("lease.end_ns"))
    return _proofs(early.select(*ID, F.col("lease.seen").alias("seen"), "first"), "held")


def _before(rows: WindowSpec) -> WindowSpec:
    """Return the window of the rows with lower ids."""
    return rows.rangeBetween(W.unboundedPreceding, -1)


def _proofs(early: DataFrame, word: str) -> DataFrame:
    """Return the evidence: `seen` was given the id, and `first` says of one before it what is."""
    rows = early.select(*ID, "seen", F.col("first.seen").alias("other"))
    found = rows.groupBy(*ID).agg(F.min(F.struct("seen", "other")).alias("proof"))
    operations = F.array("proof.seen", "proof.other")
    return found.select(*evidence(**named(word), operations=operations))
