"""A subscription that the broker forgot, or that answered though there was none."""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from analytics.common.schema import KEY, evidence, operation
from analytics.common.table_store import settled
from analytics.tables.lives import EVER
from analytics.tables.runs import one_host
from analytics.tables.suspects import only
from analytics.tables.tables import Tables

HOME = ("run_id", "client_id", "topic", "at")


def subscription(tables: Tables) -> DataFrame:
    """Find answers that contradict what the client had subscribed to, or had asked for.

    `forgotten`: a SUB was answered as a new one though a life stood. `kept`: one that was sent once
    resumed though its client surely had none. `denied`: a GET failed for
    want of a subscription though one stood. `unsubscribed`: a GET was answered though its client
    surely had none. `topic`: asked for one topic (the row's), answered with another one. `limit`:
    an answer brought more than it was asked for.
    """
    news = (F.col("f") == "sub") & (F.col("outcome") == "ok") & ~F.col("resumed")
    forgotten = _during_lives(tables.controls.where(news), tables, "forgotten")
    denied = _during_lives(tables.gets.where("is_denied"), tables, "denied")
    is_other = (F.col("outcome") == "ok") & F.col("asked_topic").isNotNull()
    others = tables.gets.where(is_other).drop("topic")
    other = others.withColumnRenamed("asked_topic", "topic").select(*_evidence("topic"))
    excessive = tables.gets.where("is_excessive").select(*_evidence("limit"))
    return (
        forgotten.unionByName(denied)
        .unionByName(_kept(tables))
        .unionByName(_unsubscribed(tables))
        .unionByName(other)
        .unionByName(excessive)
    )


def _during_lives(operations: DataFrame, tables: Tables, word: str) -> DataFrame:
    """Return the evidence of operations during all of which a life of their client stood."""
    own = operations.select(*KEY, "client_id", "topic", one_host(), "invoke_ns", "end_ns")
    stood = (F.col("begun_ns") < F.col("invoke_ns")) & (F.col("end_ns") < F.col("until_ns"))
    lives = tables.lives.select(*HOME, "begun_ns", "until_ns", "made_by")
    return own.join(F.broadcast(lives), list(HOME)).where(stood).select(*_evidence(word, "made_by"))


def _kept(tables: Tables) -> DataFrame:
    """Return the evidence of SUBs that resumed, at their first attempt, what can't have stood: each
    other SUB was sent after they were answered, or had acted before an UNSUB that was answered
    before they were sent.
    """
    once = (F.col("f") == "sub") & (F.col("outcome") == "ok") & (F.col("attempt") == 1)
    subs = settled(
        tables.controls.where(once & F.col("resumed")).select(
            *(*KEY, "client_id", "topic", "end_ns"),
            one_host(),
            F.coalesce("invoke_ns", F.lit(EVER)).alias("invoke_ns"),
        )
    )
    followers = settled(
        tables.acts.where((F.col("f") == "sub") & F.col("topic").rlike("[*>]"))
        .select("run_id", "client_id")
        .distinct()
    )
    subs = subs.join(followers, ["run_id", "client_id"], "leftanti")  # what a pattern has begun
    gone = tables.acts.where((F.col("f") == "unsub") & (F.col("outcome") == "ok")).select(
        *HOME, "from_ns", F.col("end_ns").alias("gone_ns")
    )
    left = (
        subs.join(gone, list(HOME))
        .where(F.col("gone_ns") < F.col("invoke_ns"))
        .groupBy(*KEY)
        .agg(F.max("from_ns").alias("left_ns"))
    )
    known = settled(subs.join(left, list(KEY), "left"))
    others = tables.acts.where(F.col("f") == "sub").select(
        *(F.col(name).alias(f"other_{name}") for name in (*HOME, "process", "op_id")),
        F.col("from_ns").alias("other_ns"),
        "latest_ns",
    )
    same = [F.col(name) == F.col(f"other_{name}") for name in ("run_id", "client_id", "topic")]
    is_another = (F.col("process") != F.col("other_process")) | (
        F.col("op_id") != F.col("other_op_id")
    )
    is_later = F.col("other_ns") > F.col("end_ns")
    is_over = F.coalesce(F.col("latest_ns") < F.col("left_ns"), F.lit(False))
    may_stand = (F.col("at") != F.col("other_at")) | ~(is_later | is_over)
    stood = [*same, is_another, may_stand]
    return known.join(others, stood, "leftanti").select(*_evidence("kept"))


def _unsubscribed(tables: Tables) -> DataFrame:
    """Return the evidence of answers to who was gone: of the clients that may have been, each GET
    is looked at.
    """
    absences = tables.absences
    answered = F.col("outcome") == "ok"
    names_it = F.col("topic") != ""  # one of any topic that brought nothing names none
    gets = tables.gets.where(answered & names_it).select(
        *KEY, "client_id", "topic", one_host(), "invoke_ns", "end_ns"
    )
    sent_ns = F.coalesce("invoke_ns", F.lit(EVER))
    away = (F.col("after_ns") < sent_ns) & (F.col("end_ns") < F.col("before_ns"))
    met = only(gets, absences, HOME).join(F.broadcast(absences), list(HOME))
    return met.where(away).distinct().select(*_evidence("unsubscribed"))


def _evidence(word: str, *others: str) -> list[Column]:
    return evidence(
        run_id=F.col("run_id"),
        topic=F.col("topic"),
        client_id=F.col("client_id"),
        detail=F.lit(word),
        operations=F.array(*others, operation()),
    )
