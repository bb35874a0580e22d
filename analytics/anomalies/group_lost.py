"""Publications that a group says are settled, and that nobody can have settled."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.window import Window as W

from analytics.common import intervals
from analytics.common.schema import evidence, operation
from analytics.common.table_store import few, is_never_any, settled
from analytics.tables.dead_letters import read_of
from analytics.tables.group_standing import still_there
from analytics.tables.groups import (
    GROUP,
    acks_of,
    groups_of,
    in_vain,
    leases_of,
    letters_of,
    named,
    settlements_of,
    takes_of,
)
from analytics.tables.lives import EVER
from analytics.tables.runs import one_host
from analytics.tables.suspects import only
from analytics.tables.tables import Tables, with_application


def group_lost(tables: Tables) -> DataFrame:
    """Find ids up to where all is settled that no ack names but in vain, or none that was sent by
    then, and that are no dead letters.
    """
    if is_never_any(tables.worked):
        return tables.worked.select(*evidence())
    groups = few(_judged(tables))
    takes = settled(takes_of(tables.worked))
    above = F.greatest("start", F.coalesce("purged_id", F.lit(0))) + 1
    # Below what was to be purged later, what was said to be settled before that.
    below = {"first": F.col("start") + 1, "last": F.least("told_id", above - 1)}
    columns = (*GROUP, "made_by", "first", "last")
    wanted = (
        groups.withColumns({"first": above, "last": F.col("until")})
        .select(*columns)
        .unionByName(groups.where(F.col("told_id").isNotNull()).withColumns(below).select(*columns))
        .unionByName(_given_later(tables, groups).select(*columns))
    )
    done, excused = _done(takes), _excused(tables, groups, takes)
    explained = done.select(*GROUP, "first", "last").unionByName(excused)
    missing = few(intervals.uncovered(intervals.split(wanted), intervals.split(explained), GROUP))
    never = intervals.exploded(missing, "id").withColumn("word", F.lit("settled"))
    never = never.select(*GROUP, "id", "word", F.array("made_by").alias("seen"))
    early = _told_early(tables, groups, done)
    excuses = excused.withColumnRenamed("first", "id").select(*GROUP, "id")
    ranges = wanted.select(*GROUP, "first", "last")
    early = (
        early.join(F.broadcast(ranges), list(GROUP))
        .where(F.col("id").between(F.col("first"), F.col("last")))
        .join(excuses, [*GROUP, "id"], "leftanti")
        .withColumn("word", F.lit("early"))
    )
    rows = few(never.unionByName(early.select(*never.columns)))
    place = F.row_number().over(W.partitionBy(*GROUP, "word").orderBy("id"))
    return (
        still_there(_with_moments(rows, tables, groups), tables)
        .withColumn("run", F.col("id") - place)
        .groupBy(*GROUP, "word", "run")
        .agg(F.min(F.struct("id", "seen")).alias("lowest"), F.max("id").alias("other_id"))
        .select(*GROUP, "word", "lowest.id", "lowest.seen", "other_id")
        .select(
            *evidence(
                **named(F.col("word")),
                other_id=F.col("other_id"),
                operations=F.col("seen"),
            )
        )
    )


def _told_early(tables: Tables, groups: DataFrame, done: DataFrame) -> DataFrame:
    """Return the ids (GROUP, id, `seen`) of which somebody was told that they are settled before
    each ack of them was sent: few are acknowledged at all after that.
    """
    told = _tellings(tables, groups)
    ranges = groups.select(*GROUP, (F.col("start") + 1).alias("low"))
    behind = (
        done.join(F.broadcast(told.join(ranges, list(GROUP))), [*GROUP, "at"])
        .where((F.col("told_ns") < F.col("invoke_ns")) & (F.col("told_id") >= F.col("first")))
        .withColumn("first", F.greatest("first", "low"))
        .withColumn("last", F.least("last", "told_id"))
        .where(F.col("first") <= F.col("last"))
        .select(*GROUP, "at", "told_ns", "told", "seen", "first", "last")
    )
    asked = few(
        intervals.exploded(behind, "id")
        .groupBy(*GROUP, "at", "id")
        .agg(F.min(F.struct("told_ns", "told")).alias("told"), F.min("seen").alias("ack"))
    )
    if is_never_any(asked):
        return asked.select(*GROUP, "id", F.array("ack").alias("seen"))
    keyed = asked.withColumn("bucket", intervals.bucket_of(F.col("id")))
    acks = intervals.split(
        done.select(
            *(*GROUP, "first", "last"),
            F.col("at").alias("ack_at"),
            F.coalesce("invoke_ns", F.lit(EVER)).alias("ack_ns"),
        )
    )
    near = only(acks, keyed, (*GROUP, "bucket")).drop("bucket")
    is_in_time = (F.col("ack_at") != F.col("at")) | (F.col("ack_ns") <= F.col("told.told_ns"))
    in_time = intervals.inside(asked, "id", near, GROUP).where(is_in_time)
    late = asked.join(in_time.select(*GROUP, "at", "id"), [*GROUP, "at", "id"], "leftanti")
    return (
        late.groupBy(*GROUP, "id")
        .agg(F.min(F.struct("told", "ack")).alias("proof"))
        .select(*GROUP, "id", F.array("proof.told.told", "proof.ack").alias("seen"))
    )


def _with_moments(rows: DataFrame, tables: Tables, groups: DataFrame) -> DataFrame:
    """Add when, on each host, somebody was told first that a row's id is settled."""
    told = _tellings(tables, groups).select(
        *GROUP, "told_id", F.struct("at", "told_ns").alias("one")
    )
    moment = F.struct(F.col("one.at").alias("at"), F.col("one.told_ns").alias("ns"))
    said = F.when(F.col("told_id") >= F.col("id"), moment)
    return (
        rows.join(F.broadcast(told), list(GROUP), "left")
        .groupBy(*rows.columns)
        .agg(F.collect_list(said).alias("moments"))
    )


def _tellings(tables: Tables, groups: DataFrame) -> DataFrame:
    """Return (GROUP, at, told_id, told_ns, told): who was told that so much is settled.

    Of what says no more than one before it did nothing follows. A group's few, in one window.
    """
    made = (F.col("f") == "group") & (F.col("outcome") == "ok") & (F.col("last_id") > 0)
    told = tables.worked.where(made).join(F.broadcast(groups), list(GROUP), "leftsemi")
    before = W.partitionBy(*GROUP, "at").orderBy("end_ns").rowsBetween(W.unboundedPreceding, -1)
    return (
        told.select(*GROUP, one_host(), "last_id", "end_ns", operation().alias("told"))
        .withColumn("said_id", F.max("last_id").over(before))
        .where(F.coalesce(F.col("last_id") > F.col("said_id"), F.lit(True)))
        .drop("said_id")
        .withColumnsRenamed({"last_id": "told_id", "end_ns": "told_ns"})
    )


def _given_later(tables: Tables, groups: DataFrame) -> DataFrame:
    """Return `groups` with runs of ids below what was to be purged, that somebody was given who
    asked for them after somebody was told that they are settled: no purge had them by then.
    """
    purged = groups.where(F.col("purged_id").isNotNull())
    told = _tellings(tables, purged).select(
        *GROUP, "at", F.col("told_id").alias("said_id"), "told_ns"
    )
    given = only(tables.deliveries.where(~F.col("tells_of_purge")), purged, ("run_id", "topic"))
    given = given.select("run_id", "topic", one_host(), "first", "last", "invoke_ns").distinct()
    ends = ("last", "said_id", "purged_id", "until")
    return (
        purged.join(told, list(GROUP))
        .join(given, ["run_id", "topic", "at"])
        .where(F.col("invoke_ns") > F.col("told_ns"))
        .withColumns({"first": F.greatest("first", F.col("start") + 1), "last": F.least(*ends)})
        .where(F.col("first") <= F.col("last"))
    )


def _judged(tables: Tables) -> DataFrame:
    """Return the groups that stood, as `groups_of`, with `purged_id`; and `told_id`: up to where
    one was said to be settled before anything of its topic was to be purged.

    Not those in which what nobody was seen to be given may have become a dead letter that nobody
    has read.
    """
    groups = with_application(groups_of(tables.worked), tables)
    may_be = F.col("attempts_max").isNotNull() & (F.col("hidden") >= F.col("attempts_max"))
    purged = (
        tables.asides.where(F.col("f").isin("purge", "purged"))
        .select("run_id", "topic", "last_id", "t_ns", one_host())
        .groupBy("run_id", "topic")
        .agg(
            F.max("last_id").alias("purged_id"),
            F.min("t_ns").alias("purge_ns"),
            F.when(F.min("at") == F.max("at"), F.min("at")).alias("purge_at"),
        )
    )
    groups = _with_floors(groups, tables)
    judged = F.col("stood") & F.col("start").isNotNull() & ~F.col("is_application")
    known = few(groups.where(judged))
    read = few(read_of(known, tables).withColumn("is_read", F.lit(True)))
    known = known.join(read, list(GROUP), "left")
    known = known.withColumn("is_read", F.coalesce("is_read", F.lit(False))).drop("floor")
    is_open = may_be & ~F.col("is_read")
    told = _told_before(tables, purged)
    found = known.where(~is_open).join(F.broadcast(purged), ["run_id", "topic"], "left")
    return found.join(F.broadcast(told), list(GROUP), "left")


def _told_before(tables: Tables, purged: DataFrame) -> DataFrame:
    """Return up to where each group was said to be settled before the first purge of its topic."""
    made = (F.col("f") == "group") & (F.col("outcome") == "ok") & F.col("group").isNotNull()
    answers = tables.worked.where(made).select(*GROUP, "last_id", "end_ns", one_host())
    is_before = (F.col("at") == F.col("purge_at")) & (F.col("end_ns") < F.col("purge_ns"))
    return (
        answers.join(F.broadcast(purged), ["run_id", "topic"])
        .where(is_before)
        .groupBy(*GROUP)
        .agg(F.max("last_id").alias("told_id"))
    )


def _with_floors(groups: DataFrame, tables: Tables) -> DataFrame:
    """Let what a node has collected count as settled."""
    floors = tables.collected.where("is_plain").select("run_id", "topic", "floor")
    known = groups.join(F.broadcast(floors), ["run_id", "topic"], "left")
    return known.withColumn("until", F.greatest("until", "floor"))


def _excused(tables: Tables, groups: DataFrame, takes: DataFrame) -> DataFrame:
    """Return the ids, as runs of one, that are dead letters, or may be."""
    one = (F.col("id").alias("first"), F.col("id").alias("last"))
    letters = letters_of(tables.told, tables.worked).select(*GROUP, *one)
    often = F.col("attempt") + F.col("hidden") >= F.col("attempts_max")
    limits = groups.where(~F.col("is_read")).select(*GROUP, "hidden", "attempts_max")
    maybe = leases_of(takes).join(F.broadcast(limits), list(GROUP)).where(often)
    return letters.unionByName(maybe.select(*GROUP, *one))


def _done(takes: DataFrame) -> DataFrame:
    """Return runs of what acks name, but for what was surely said in vain: of few TAKEs."""
    columns = (*GROUP, "first", "last", "at", "invoke_ns", "seen")
    is_refused = F.coalesce((F.col("outcome") == "ok") & (F.size("lost") > 0), F.lit(False))
    others = acks_of(takes.where(~is_refused)).select(*columns)
    said = settlements_of(takes.where(is_refused)).withColumn("is_vain", in_vain())
    kept = said.where((F.col("word") == "acks") & ~F.col("is_vain"))
    one = (F.col("id").alias("first"), F.col("id").alias("last"))
    return others.unionByName(kept.select(*GROUP, *one, *columns[5:]))
