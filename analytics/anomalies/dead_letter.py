"""Dead letters that stand twice or were lost, and those whose publication is alive."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from analytics.common.schema import evidence
from analytics.common.table_store import is_never_any, settled
from analytics.tables.arrivals import leased_since
from analytics.tables.delays import known_ns
from analytics.tables.group_standing import still_there
from analytics.tables.groups import (
    GROUP,
    ID,
    accepted_of,
    groups_of,
    leases_of,
    letters_of,
    named,
    takes_of,
    unmoved,
)
from analytics.tables.lives import FOREVER
from analytics.tables.owed import read_of, without_given
from analytics.tables.suspects import OWNER
from analytics.tables.tables import Tables, with_application

# What is kept of a life beside its owner and its host.
OF_LIFE = (
    *("begun_ns", "until_ns", "start_id", "passed", "drained_ns", "made_by"),
    *("fresh_ns", "over_ns"),
)


def dead_letter(tables: Tables) -> DataFrame:
    """Find what is said of a publication that was given up, and can't be so."""
    letters = settled(letters_of(tables.told, tables.worked))
    if is_never_any(letters):
        return letters.select(*evidence())
    takes = settled(takes_of(tables.worked))
    return (
        _twice(letters)
        .unionByName(_acknowledged(letters, takes))
        .unionByName(_leased(letters, takes))
        .unionByName(_untimely(letters, takes, tables))
        .unionByName(_lost(letters, tables))
    )


def _twice(letters: DataFrame) -> DataFrame:
    place = F.struct("stands_in", "stands_at")
    places = letters.groupBy(*ID, place.alias("place")).agg(F.min("seen").alias("seen"))
    both = places.groupBy(*ID).agg(
        F.min(F.struct("place", "seen")).alias("one"),
        F.max(F.struct("place", "seen")).alias("other"),
    )
    return both.where(F.col("one.place") != F.col("other.place")).select(
        *evidence(**named("twice"), operations=F.array("one.seen", "other.seen"))
    )


def _acknowledged(letters: DataFrame, takes: DataFrame) -> DataFrame:
    acks = accepted_of(takes).select(*ID, F.col("seen").alias("ack"))
    return (
        letters.join(acks, list(ID))
        .groupBy(*ID)
        .agg(F.min(F.struct("ack", "seen")).alias("proof"))
        .select(*evidence(**named("acknowledged"), operations=F.array("proof.ack", "proof.seen")))
    )


def _leased(letters: DataFrame, takes: DataFrame) -> DataFrame:
    """Find what was leased by a TAKE that was sent when its dead letter had been read."""
    leases = leases_of(takes).select(
        *ID, "at", F.col("invoke_ns").alias("take_ns"), F.col("seen").alias("take")
    )
    return (
        letters.join(leases, [*ID, "at"])
        .where(F.col("end_ns") < F.col("take_ns"))
        .groupBy(*ID)
        .agg(F.min(F.struct("seen", "take")).alias("proof"))
        .select(*evidence(**named("leased"), operations=F.array("proof.seen", "proof.take")))
    )


def _untimely(letters: DataFrame, takes: DataFrame, tables: Tables) -> DataFrame:
    """Find letters of what was given too seldom, and those that stand where none belongs."""
    said = unmoved(tables.worked.where(F.col("group").isNotNull() & (F.col("f") != "take")))
    own = (F.col("f") == "group") & (F.col("outcome") != "fail")
    # Who says only how often it is given leaves it to the topic, of which no record says anything.
    leaves = own & F.coalesce(F.col("max_attempts") > 0, F.lit(False))
    topics = said.groupBy(*GROUP).agg(
        F.collect_set(F.when(own, F.col("dead_letter"))).alias("belongs"),
        F.count_if(leaves & F.col("dead_letter").isNull()).alias("leavers"),
    )
    limits = groups_of(tables.worked).select(*GROUP, "attempts_max", "hidden")
    most = leases_of(takes).groupBy(*ID).agg(F.max("attempt").alias("given"))
    known = (
        with_application(letters, tables)
        .where(~F.col("is_application"))
        .join(F.broadcast(topics), list(GROUP))
        .join(F.broadcast(limits), list(GROUP))
        .join(most, list(ID), "left")
    )
    tried = F.coalesce("given", F.lit(0)) + F.col("hidden")
    is_early = F.coalesce(tried < F.col("attempts_max"), F.lit(True))
    is_elsewhere = ~F.array_contains("belongs", F.col("stands_in")) & (F.col("leavers") == 0)
    moment = F.struct(F.col("at"), F.col("end_ns").alias("ns"))
    early = known.where(is_early).withColumns({"word": F.lit("early"), "moments": F.array(moment)})
    early = still_there(early, tables)
    elsewhere = known.where(~is_early & is_elsewhere).withColumn("word", F.lit("elsewhere"))
    return (
        early.select(elsewhere.columns)
        .unionByName(elsewhere)
        .groupBy(*ID, "word")
        .agg(F.min("seen").alias("seen"))
        .select(*evidence(**named(F.col("word")), operations=F.array("seen")))
    )


def _lost(letters: DataFrame, tables: Tables) -> DataFrame:
    """Find letters that somebody was given, and not who passed their place, or drained, or was told
    to begin behind it before they were made.
    """
    came = letters.select(
        "run_id",
        F.struct("topic", "group", "id").alias("letter"),
        F.col("stands_in").alias("topic"),
        F.col("stands_at").alias("id"),
        *("at", "end_ns", "seen"),
    )
    places = came.groupBy("run_id", "topic", "id", "letter").agg(F.min("seen").alias("seen"))
    lives = tables.lives.select(*OWNER, "at", *OF_LIFE)
    owed = places.join(F.broadcast(lives), ["run_id", "topic"])
    owed = settled(owed.where(F.col("start_id").isNotNull()))
    missing = settled(without_given(owed, tables.deliveries))
    if is_never_any(missing):
        return missing.select(*evidence())
    rows = known_ns(missing, came, F.col("id"))
    is_above = F.col("start_id") < F.col("id")
    above = read_of(rows.where(is_above), F.col("id"), tables.puts, tables.gets, tables.asides)
    found = above.unionByName(_begun_behind(rows.where(~is_above), tables))
    proof = F.min(F.struct("client_id", "seen", "made_by")).alias("proof")
    return (
        found.groupBy("run_id", "letter")
        .agg(proof)
        .select("run_id", "letter.topic", "letter.group", "letter.id", "proof")
        .select(
            *evidence(
                **named(F.concat(F.lit("lost "), F.col("proof.client_id"))),
                operations=F.array("proof.seen", "proof.made_by"),
            )
        )
    )


def _begun_behind(rows: DataFrame, tables: Tables) -> DataFrame:
    """Return those `rows`, at or below a life's start, whose letter was made while it stood: behind
    a lease that was asked for after its begin, in a group that stood.
    """
    if is_never_any(rows):
        return rows
    buried = rows.select("run_id", "letter.*").distinct()
    last = leased_since(buried, tables.worked).withColumn("letter", F.struct(*ID[1:]))
    last = last.select("run_id", "at", "letter", "leased_ns")
    is_known = (F.col("until_ns") == FOREVER) | (F.col("known_ns") < F.col("until_ns"))
    return (
        rows.join(last, ["run_id", "at", "letter"])
        .where((F.col("leased_ns") > F.col("begun_ns")) & is_known)
        .select(*rows.columns)
    )
