"""Leases that were given while an older one held, or too soon, and what was refused in vain."""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.window import Window as W

from analytics.common import intervals
from analytics.common.schema import NUMBER_MAX, evidence, operation
from analytics.common.table_store import few, is_never_any, settled
from analytics.tables.groups import (
    GROUP,
    ID,
    LEASE,
    groups_of,
    in_vain,
    is_accepted,
    leases_of,
    letters_of,
    named,
    settlements_of,
    steady_of,
    takes_of,
)
from analytics.tables.lives import EVER
from analytics.tables.runs import one_host
from analytics.tables.suspects import only
from analytics.tables.tables import Tables, successes_of, with_application
from analytics.tables.times import NS_OF_MS, SURELY, in_ns

WORKER = (*GROUP, "client_id", "epoch", "at")


def group_lease(tables: Tables) -> DataFrame:
    """Find what two had at once, was given too soon or more often than seen, or settled in vain."""
    if is_never_any(tables.worked):
        return tables.worked.select(*evidence())
    takes = settled(takes_of(tables.worked))
    leases = settled(leases_of(takes))
    said = settled(settlements_of(takes))
    letters = settled(letters_of(tables.told, tables.worked))
    return (
        _shared(tables, leases, said, letters)
        .unionByName(_soon(leases, said))
        .unionByName(_refused(tables, leases, said))
        .unionByName(_jumps(tables, leases))
        .unionByName(_foreign(leases, said, tables.worked))
        .unionByName(_over(leases, said, letters, tables.worked))
        .unionByName(_unsaid(takes, said))
    )


def _shared(tables: Tables, leases: DataFrame, said: DataFrame, letters: DataFrame) -> DataFrame:
    """Find leases of which a newer one, or a dead letter, came before they can have run out.

    Until then nothing else was said of the older one than extensions, of which the shortest counts;
    and its client had no newer process then.
    """
    beyond = F.lit(NUMBER_MAX + 1).cast("bigint")  # above all tokens
    newer = _as_newer(leases, F.col("token")).unionByName(_as_newer(letters, beyond))
    others = said.where(F.col("word") != "acks").groupBy(*LEASE, "client_id").agg(
        F.min(_until()).alias("shortest_ns"),
        F.count_if(F.col("word") == "naks").alias("naks"),
        F.count_if(is_accepted()).alias("accepted"),
    )  # fmt: skip
    is_newer = (F.col("new_token") > F.col("token")) & (F.col("new_at") == F.col("at"))
    is_letter = F.col("new_token") == beyond  # one of before: then it is leased though dead
    is_newer = is_newer & (~is_letter | (F.col("new_ns") > F.col("invoke_ns")))
    both = settled(leases.join(newer, list(ID)).where(is_newer & F.col("invoke_ns").isNotNull()))
    told = both.join(others, [*LEASE, "client_id"], "left")
    until_ns = F.col("invoke_ns") + in_ns(F.col("left_ms"))
    extended = F.when(F.col("accepted") > 0, F.col("shortest_ns"))
    held = F.coalesce(extended, F.least("shortest_ns", until_ns))
    held = (F.coalesce("naks", F.lit(0)) == 0) & (F.col("new_ns") < held)
    met, whose = few(told.where(held)), ("run_id", *WORKER[3:])
    went_on = only(successes_of(tables), met, whose)
    last = went_on.groupBy(*whose).agg(F.max("invoke_ns").alias("last_ns"))
    return (
        met.join(last, list(whose))
        .where(F.col("last_ns") > F.col("new_ns"))
        .groupBy(*ID)
        .agg(F.min(F.struct("seen", "new_seen")).alias("proof"))
        .select(*evidence(**named("shared"), operations=F.array("proof.seen", "proof.new_seen")))
    )


def _as_newer(given: DataFrame, token: Column) -> DataFrame:
    return given.select(
        *ID,
        token.alias("new_token"),
        F.col("at").alias("new_at"),
        F.col("end_ns").alias("new_ns"),
        F.col("seen").alias("new_seen"),
    )


def _until() -> Column:
    """Return until when what a TAKE says of an id lasts at the least."""
    return F.col("begun_ns") + in_ns(F.col("ms"))


def _soon(leases: DataFrame, said: DataFrame) -> DataFrame:
    """Find what was given back with a delay, and given again before that was over.

    The log's time is told in milliseconds, and clocks may differ by a hundredth in how fast they
    go.
    """
    naks = said.where((F.col("word") == "naks") & is_accepted())
    until_ns = F.col("begun_ns") + in_ns(F.col("ms"), SURELY) - 2 * NS_OF_MS
    naks = naks.where(F.col("begun_ns") > EVER).select(
        *ID,
        F.col("token").alias("nak_token"),
        F.col("at").alias("nak_at"),
        until_ns.alias("until_ns"),
        F.col("seen").alias("nak"),
    )
    is_later = (F.col("token") > F.col("nak_token")) & (F.col("at") == F.col("nak_at"))
    return (
        leases.join(naks, list(ID))
        .where(is_later & (F.col("end_ns") < F.col("until_ns")))
        .groupBy(*ID)
        .agg(F.min(F.struct("nak", "seen")).alias("proof"))
        .select(*evidence(**named("soon"), operations=F.array("proof.nak", "proof.seen")))
    )


def _refused(tables: Tables, leases: DataFrame, said: DataFrame) -> DataFrame:
    """Find what was settled in vain by who surely had it: nobody said anything else of that lease,
    and no purge took it.
    """
    groups = with_application(groups_of(tables.worked), tables)
    judged = groups.where(F.col("stood") & ~F.col("is_application")).select(*GROUP)
    purges = tables.asides.where(F.col("f").isin("purge", "purged"))
    purged = purges.groupBy("run_id", "topic").agg(F.max("last_id").alias("purged_id"))
    words = W.partitionBy(*LEASE)
    alone = F.count(F.lit(1)).over(words) == 1
    vain = settled(
        said.withColumns({"is_alone": alone, "is_vain": in_vain()})
        .where(F.col("is_alone") & F.col("is_vain") & F.col("epoch").isNotNull())
        .join(F.broadcast(judged), list(GROUP), "leftsemi")
        .join(F.broadcast(purged), ["run_id", "topic"], "left")
        .where(F.col("id") > F.coalesce("purged_id", F.lit(0)))
        .select(*LEASE, *WORKER[3:], F.col("end_ns").alias("told_ns"), F.col("seen").alias("vain"))
    )
    until_ns = F.col("invoke_ns") + in_ns(F.col("left_ms"))
    return (
        leases.join(vain, [*LEASE, *WORKER[3:]])
        .where(F.col("told_ns") < until_ns)
        .groupBy(*ID)
        .agg(F.min(F.struct("seen", "vain")).alias("proof"))
        .select(*evidence(**named("refused"), operations=F.array("proof.seen", "proof.vain")))
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


def _foreign(leases: DataFrame, said: DataFrame, worked: DataFrame) -> DataFrame:
    """Find what was accepted of who was never given that lease, since its group was last ended."""
    whose = [F.col("its_epoch").eqNullSafe(F.col("epoch"))]
    names = (*LEASE, "client_id")
    whose += [F.col(name) == F.col(f"its_{name}") for name in names]
    columns = (*names, "epoch", "at", "end_ns")
    own = leases.select(*(F.col(name).alias(f"its_{name}") for name in columns))
    is_end = (F.col("f") == "ungroup") & (F.col("outcome") == "ok")
    of_group = worked.where(is_end & F.col("group").isNotNull()).groupBy(*GROUP, one_host())
    ends = of_group.agg(F.collect_list(F.struct("invoke_ns", "end_ns")).alias("ends"))
    done = said.where(is_accepted()).join(F.broadcast(ends), [*GROUP, "at"], "left")
    was_ended = F.exists(
        "ends",
        lambda end: (F.col("its_end_ns") < end["invoke_ns"]) & (end["end_ns"] < F.col("begun_ns")),
    )
    was_ended = (F.col("its_at") == F.col("at")) & F.coalesce(was_ended, F.lit(False))
    return (
        done.join(own, [*whose, ~was_ended], "leftanti")
        .groupBy(*ID)
        .agg(F.min("seen").alias("seen"))
        .select(*evidence(**named("foreign"), operations=F.array("seen")))
    )


def _unsaid(takes: DataFrame, said: DataFrame) -> DataFrame:
    """Find what a TAKE was told to have settled in vain, and none of its step had named."""
    told = takes.where((F.col("outcome") == "ok") & (F.size("lost") > 0))
    runs = told.select(*GROUP, "step", "seen", F.explode("lost").alias("run"))
    bounds = {"first": F.col("run")[0], "last": F.col("run")[1]}
    ids = intervals.exploded(runs.withColumns(bounds).drop("run"), "id")
    named_ids = said.select(*ID, F.col("step").alias("its_step"))
    same = [ids[name] == named_ids[name] for name in ID]
    is_its = F.col("step").eqNullSafe(F.col("its_step"))
    return (
        ids.join(named_ids, [*same, is_its], "leftanti")
        .groupBy(*ID)
        .agg(F.min("seen").alias("seen"))
        .select(*evidence(**named("unsaid"), operations=F.array("seen")))
    )


def _over(leases: DataFrame, said: DataFrame, letters: DataFrame, worked: DataFrame) -> DataFrame:
    """Find what was accepted of a lease that an ack or a nak had ended, or that was refused before;
    and naks and extends of one behind which somebody had another one, or of what was dead or
    settled.
    """
    done = settled(
        said.where(is_accepted()).select(*LEASE, "client_id", "at", "word", "begun_ns", "seen")
    )
    ended = said.where(is_accepted() & (F.col("word") != "extends")).select(
        *LEASE, "at", F.col("word").alias("end_word"), "end_ns", F.col("seen").alias("end")
    )
    are_acks = (F.col("word") == "acks") & (F.col("end_word") == "acks")
    later = leases.select(
        *(*ID, "at", "end_ns"),
        F.col("token").alias("later_token"),
        F.col("seen").alias("end"),
    )
    is_later = (F.col("later_token") > F.col("token")) & (F.col("word") != "acks")
    columns = (*ID, "begun_ns", "end_ns", "end", "seen")
    both = done.join(ended, [*LEASE, "at"]).where(~are_acks).select(*columns)
    both = both.unionByName(done.join(later, [*ID, "at"]).where(is_later).select(*columns))
    refused = said.where((F.col("outcome") == "ok") & F.col("is_lost")).select(
        *(*LEASE, "client_id", "at", "end_ns"), F.col("seen").alias("end")
    )
    both = both.unionByName(done.join(refused, [*LEASE, "client_id", "at"]).select(*columns))
    others = settled(done.where(F.col("word") != "acks"))
    dead = letters.select(*ID, "at", "end_ns", F.col("seen").alias("end"))
    both = both.unionByName(others.join(dead, [*ID, "at"]).select(*columns))
    is_told = (F.col("f") == "group") & (F.col("outcome") == "ok")
    told = worked.where(is_told).join(F.broadcast(steady_of(worked)), list(GROUP), "leftsemi")
    told = told.select(
        *(*GROUP, one_host(), "end_ns"), F.col("last_id").alias("until"), operation().alias("end")
    )
    behind = others.join(told, [*GROUP, "at"]).where(F.col("until") >= F.col("id"))
    both = both.unionByName(behind.select(*columns))
    return (
        both.where(F.col("end_ns") < F.col("begun_ns"))
        .groupBy(*ID)
        .agg(F.min(F.struct("end", "seen")).alias("proof"))
        .select(*evidence(**named("over"), operations=F.array("proof.end", "proof.seen")))
    )
