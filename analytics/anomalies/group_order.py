"""What contradicts the order of a group's leases that their tokens are, whatever clocks say."""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.window import Window as W

from analytics.common.schema import evidence, operation
from analytics.common.table_store import few, is_never_any, settled
from analytics.tables.group_standing import controls_of
from analytics.tables.groups import (
    GROUP,
    ID,
    accepted_of,
    every_take_of,
    groups_of,
    leases_of,
    named,
    takes_of,
    unmoved,
    unsteady_of,
)
from analytics.tables.runs import one_host
from analytics.tables.tables import Tables


def group_order(tables: Tables) -> DataFrame:
    """Find acks and leases that can't all be of one group."""
    if is_never_any(tables.worked):
        return tables.worked.select(*evidence())
    takes = settled(takes_of(tables.worked))
    leases, accepted = settled(leases_of(takes)), settled(accepted_of(takes))
    stood = groups_of(tables.worked).where("stood").select(*GROUP)
    of_standing = settled(takes.join(F.broadcast(stood), list(GROUP), "leftsemi"))
    return (
        _given_behind(accepted, leases)
        .unionByName(_twice(accepted))
        .unionByName(_attempts(leases))
        .unionByName(_tokens(of_standing))
        .unionByName(_settled_before(tables, stood, of_standing))
        .unionByName(_doubled(leases))
        .unionByName(_overtaken(tables, leases))
        .unionByName(_answered_otherwise(takes))
        .unionByName(_below_its_begin(tables))
    )


def _answered_otherwise(takes: DataFrame) -> DataFrame:
    """Find what two answers to one TAKE that was asked again contradict each other about."""
    is_again = (F.col("outcome") == "ok") & F.col("number").isNotNull() & (F.col("sendings") > 1)
    columns = (*GROUP, "step", "at", "invoke_ns", "end_ns", "seen", "token")
    told = few(
        takes.where(is_again).select(
            *columns, _ids("leases").alias("ids"), _ids("lost").alias("vain")
        )
    )
    if is_never_any(told):
        return told.select(*evidence())
    other = told.select(*(F.col(name).alias(f"its_{name}") for name in told.columns))
    same = [F.col(name) == F.col(f"its_{name}") for name in (*GROUP, "step")]
    both = told.join(other, [*same, F.col("seen") != F.col("its_seen")])
    gave = F.size("ids") > 0
    is_another = gave & (F.size("its_ids") > 0) & (F.col("token") < F.col("its_token"))
    is_before = (F.col("at") == F.col("its_at")) & (F.col("end_ns") < F.col("its_invoke_ns"))
    more = F.when(is_another, F.col("its_ids")).when(
        gave & is_before, F.array_except("its_ids", "ids")
    )
    apart = F.array_union(F.array_except("vain", "its_vain"), F.array_except("its_vain", "vain"))
    nothing = F.array().cast("array<bigint>")
    wrong = F.array_min(F.concat(apart, F.coalesce(more, nothing)))
    return (
        both.withColumn("id", wrong)
        .where(F.col("id").isNotNull())
        .groupBy(*ID)
        .agg(F.min(F.struct("seen", "its_seen")).alias("proof"))
        .select(*evidence(**named("step"), operations=F.array("proof.seen", "proof.its_seen")))
    )


def _ids(runs: str) -> Column:
    """Return all ids of runs, of which the first two numbers are the first and the last id."""
    ids = F.flatten(F.transform(runs, lambda run: F.sequence(run[0], run[1])))
    return F.coalesce(ids, F.array().cast("array<bigint>"))


def _below_its_begin(tables: Tables) -> DataFrame:
    """Find what a group that did not stand gave below where it had last begun: nothing else that
    makes or ends it was under way from before that until the answer.
    """
    own = tables.worked.where(F.col("group").isNotNull())
    unsteady = settled(unsteady_of(own))
    if is_never_any(unsteady):
        return unsteady.withColumn("id", F.lit(0)).select(*evidence(**named("settled")))
    controls = controls_of(own.join(F.broadcast(unsteady), list(GROUP), "leftsemi"))
    is_made = (F.col("f") == "group") & (F.col("outcome") == "ok") & (F.col("last_id") > 0)
    made = controls.where(is_made).select(
        *GROUP,
        F.col("at").alias("made_at"),
        F.col("from_ns").alias("made_from_ns"),
        F.col("end_ns").alias("made_ns"),
        F.col("last_id").alias("made_id"),
        operation().alias("made"),
    )
    takes = every_take_of(own.join(F.broadcast(unsteady), list(GROUP), "leftsemi"))
    below = (
        leases_of(takes)
        .join(F.broadcast(made), list(GROUP))
        .where((F.col("id") <= F.col("made_id")) & (F.col("at") == F.col("made_at")))
        .where(F.col("made_ns") < F.col("begun_ns"))
    )
    others = controls.select(
        *(F.col(name).alias(f"its_{name}") for name in (*GROUP, "at", "from_ns", "end_ns")),
        operation().alias("other"),
    )
    is_over = F.coalesce(F.col("its_end_ns") < F.col("made_from_ns"), F.lit(False))
    is_later = F.col("its_from_ns") > F.col("end_ns")
    may_act = (F.col("its_at") != F.col("at")) | ~(is_over | is_later)
    same = [F.col(name) == F.col(f"its_{name}") for name in GROUP]
    met = [*same, F.col("other") != F.col("made"), may_act]
    return (
        below.join(others, met, "leftanti")
        .groupBy(*ID)
        .agg(F.min(F.struct("made", "seen")).alias("proof"))
        .select(*evidence(**named("settled"), operations=F.array("proof.made", "proof.seen")))
    )


def _doubled(leases: DataFrame) -> DataFrame:
    """Find ids that one answer leases twice."""
    of_answer = leases.groupBy(*ID, "seen").agg(F.count(F.lit(1)).alias("times"))
    found = of_answer.where(F.col("times") > 1).groupBy(*ID).agg(F.min("seen").alias("seen"))
    return found.select(*evidence(**named("doubled"), operations=F.array("seen")))


def _overtaken(tables: Tables, leases: DataFrame) -> DataFrame:
    """Find ids that were given for the first time after one above them was, by the tokens."""
    groups = groups_of(tables.worked).where(F.col("stood") & ~F.col("may_be_ordered"))
    own = leases.join(F.broadcast(groups.select(*GROUP)), list(GROUP), "leftsemi")
    lease = F.min(F.struct("token", "attempt", "seen")).alias("lease")
    first = own.groupBy(*ID).agg(lease).where(F.col("lease.attempt") == 1)
    # A group's ids, in one window: a task's, as many as they are.
    before = W.partitionBy(*GROUP).orderBy("token").rangeBetween(W.unboundedPreceding, -1)
    return (
        first.select(*ID, F.col("lease.token").alias("token"), F.col("lease.seen").alias("seen"))
        .withColumn("highest", F.max(F.struct("id", "seen")).over(before))
        .where(F.col("id") < F.col("highest.id"))
        .select(*evidence(**named("overtaken"), operations=F.array("highest.seen", "seen")))
    )


def _given_behind(accepted: DataFrame, leases: DataFrame) -> DataFrame:
    """Find ids that are leased under a higher token than that of an accepted ack."""
    acks = accepted.select(
        *ID,
        F.col("token").alias("ack_token"),
        F.col("at").alias("ack_at"),
        F.col("invoke_ns").alias("ack_ns"),
        F.col("seen").alias("ack"),
    )
    is_late = (F.col("at") == F.col("ack_at")) & (F.col("end_ns") < F.col("ack_ns"))
    word = F.when(is_late, F.lit("late")).otherwise(F.lit("again"))
    return (
        leases.join(acks, list(ID))
        .where(F.col("token") > F.col("ack_token"))
        .groupBy(*ID, word.alias("word"))
        .agg(F.min(F.struct("ack", "seen")).alias("proof"))
        .select(*evidence(**named(F.col("word")), operations=F.array("proof.ack", "proof.seen")))
    )


def _twice(accepted: DataFrame) -> DataFrame:
    steps = accepted.groupBy(*ID, "step").agg(F.min("seen").alias("seen"))
    both = steps.groupBy(*ID).agg(F.min("seen").alias("one"), F.max("seen").alias("other"))
    return both.where(F.col("one") != F.col("other")).select(
        *evidence(**named("twice"), operations=F.array("one", "other"))
    )


def _attempts(leases: DataFrame) -> DataFrame:
    """Find leases whose attempt is not above that of an older one, or not that of the same one."""
    older = leases.select(
        *ID,
        F.col("token").alias("old_token"),
        F.col("attempt").alias("old_attempt"),
        F.col("seen").alias("old_seen"),
    )
    is_older = F.col("old_token") < F.col("token")
    is_same = F.col("old_token") == F.col("token")
    is_back = (is_older & (F.col("old_attempt") >= F.col("attempt"))) | (
        is_same & (F.col("old_attempt") != F.col("attempt"))
    )
    return (
        leases.join(older, list(ID))
        .where(is_back)
        .groupBy(*ID)
        .agg(F.min(F.struct("old_seen", "seen")).alias("proof"))
        .select(*evidence(**named("attempt"), operations=F.array("proof.old_seen", "proof.seen")))
    )


def _tokens(takes: DataFrame) -> DataFrame:
    """Find tokens of two steps, and those below one that was known before their step began."""
    step = W.partitionBy(*GROUP, "step")
    given = takes.withColumn("begun_ns", F.min("invoke_ns").over(step)).where(
        (F.col("outcome") == "ok") & (F.size("leases") > 0)
    )
    of_step = given.groupBy(*GROUP, "token", "step").agg(F.min("seen").alias("seen"))
    doubled = (
        of_step.groupBy(*GROUP, "token")
        .agg(F.min("seen").alias("one"), F.max("seen").alias("other"))
        .where(F.col("one") != F.col("other"))
    )
    nothing = F.lit(None)
    ends = given.select(
        *GROUP,
        "at",
        F.col("end_ns").alias("t_ns"),
        F.lit(1).alias("rank"),
        F.struct("token", "seen").alias("told"),
        nothing.cast("bigint").alias("token"),
        nothing.cast(given.schema["seen"].dataType).alias("seen"),
    )
    begins = given.where(F.col("begun_ns").isNotNull()).select(
        *GROUP,
        "at",
        F.col("begun_ns").alias("t_ns"),
        F.lit(0).alias("rank"),
        nothing.cast(ends.schema["told"].dataType).alias("told"),
        "token",
        "seen",
    )
    # A group's TAKEs on one host, in one window: a task's, as many as they are.
    before = (
        W.partitionBy(*GROUP, "at").orderBy("t_ns", "rank").rowsBetween(W.unboundedPreceding, -1)
    )
    back = (
        ends.unionByName(begins)
        .withColumn("highest", F.max("told").over(before))
        .where((F.col("rank") == 0) & (F.col("highest.token") > F.col("token")))
        .select(*GROUP, "token", F.col("highest.seen").alias("one"), F.col("seen").alias("other"))
    )
    return (
        doubled.select(*GROUP, "token", "one", "other")
        .unionByName(back)
        .groupBy(*GROUP, F.col("token").alias("id"))
        .agg(F.min(F.struct("one", "other")).alias("proof"))
        .select(*evidence(**named("token"), operations=F.array("proof.one", "proof.other")))
    )


def _settled_before(tables: Tables, stood: DataFrame, takes: DataFrame) -> DataFrame:
    """Find what was leased, or open, after somebody was told that all up to it is settled."""
    made = settled(
        unmoved(tables.worked.where(F.col("group").isNotNull()))
        .where((F.col("f") == "group") & (F.col("outcome") == "ok") & F.col("last_id").isNotNull())
        .join(F.broadcast(stood), list(GROUP), "leftsemi")
        .select(*GROUP, "last_id", "invoke_ns", "end_ns", one_host(), operation().alias("seen"))
    )
    told = made.select(
        *(F.col(name).alias(f"told_{name}") for name in (*GROUP, "at")),
        F.col("last_id").alias("told_id"),
        F.col("end_ns").alias("told_ns"),
        F.col("seen").alias("told"),
    )
    same = [F.col(name) == F.col(f"told_{name}") for name in (*GROUP, "at")]
    back = (
        made.join(F.broadcast(told), same)
        .where((F.col("told_ns") < F.col("invoke_ns")) & (F.col("told_id") > F.col("last_id")))
        .withColumns({"id": F.col("last_id"), "word": F.lit("back")})
    )
    step = W.partitionBy(*GROUP, "step")
    begun = takes.withColumn("invoke_ns", F.min("invoke_ns").over(step))
    leased = (
        leases_of(begun)
        .join(F.broadcast(told), same)
        .where((F.col("told_ns") < F.col("invoke_ns")) & (F.col("told_id") >= F.col("id")))
        .withColumn("word", F.lit("settled"))
    )
    columns = (*ID, "word", "told", "seen")
    return (
        back.select(*columns)
        .unionByName(leased.select(*columns))
        .groupBy(*ID, "word")
        .agg(F.min(F.struct("told", "seen")).alias("proof"))
        .select(*evidence(**named(F.col("word")), operations=F.array("proof.told", "proof.seen")))
    )
