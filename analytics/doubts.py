"""Where the checks have to look closely: what an orderly history does not explain by itself.

Nearly all of a history is in order, and that is cheaper to prove than to search: one aggregation or
one narrow window says for a whole session, bucket or producer that nothing is wrong in it. What is
not proven is in doubt, and goes to the checks, which decide exactly. So a doubt too many costs
time, one too few would hide a violation: each table below says why what it leaves out is sound.

sessions   (client, topic, process, session) whose GETs are not one chain in the order of their
           operations: every answer begins right after its cursor, has no jump inside, and asks
           with what the session got last. In a chain there is no gap, no repeat, no way back
owners     (client, topic) whose sessions' cursors may contradict each other in time
shares     (client, topic, bucket) that was not delivered just as it was acknowledged; `came` false:
           nothing of it was
buckets    (topic, bucket) in which ids may stand for more than one publication: not in each of
           which a chain of GETs got every acknowledged id once, and nobody got anything else
producers  (topic, producer) whose counters do not rise with the ids
delivered  no doubt: what came of each share, as `marks`
timelines  (topic, host) with a PUT that may have been sent after a higher id's acknowledgment

Hashes stand for keys and for sets only here: 64 bits of each edge of a run, added up. No rule about
right and wrong: those are in anomalies/.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.window import Window as W

from analytics import intervals
from analytics.runs import acknowledged_runs, one_host

SESSION: Final = ("run_id", "client_id", "topic", "process", "session")
OWNER: Final = ("run_id", "client_id", "topic")
SHARE: Final = (*OWNER, "bucket")
TOPIC_BUCKET: Final = ("run_id", "topic", "bucket")
PRODUCER: Final = ("run_id", "topic", "producer")
TIMELINE: Final = ("run_id", "topic", "at")
LOW_BITS: Final = 0xFFFF_FFFF

Keep = Callable[[str, DataFrame], DataFrame]


@dataclass(frozen=True, slots=True)
class Doubts:
    """The tables that the module's docstring describes, but for `producers`, which needs places."""

    sessions: DataFrame
    owners: DataFrame
    shares: DataFrame
    buckets: DataFrame
    timelines: DataFrame
    delivered: DataFrame


def doubts_of(
    puts: DataFrame,
    answers: DataFrame,
    deliveries: DataFrame,
    controls: DataFrame,
    subscriptions: DataFrame,
    keep: Keep,
) -> Doubts:
    """Return what is in doubt. Reads the PUTs twice, the GETs three times; sorts each once."""
    spans = keep("spans", _spans(answers))
    sessions = keep("doubtful_sessions", _sessions(spans, answers))
    acknowledged = keep("acknowledged_marks", marks_of(acknowledged_runs(puts), TOPIC_BUCKET))
    delivered = keep("delivered_marks", marks_of(deliveries, SHARE))
    shares = keep("doubtful_shares", _shares(acknowledged, delivered, subscriptions))
    steady = _steady_owners(spans, sessions)
    return Doubts(
        sessions=sessions,
        owners=keep("doubtful_owners", _owners(spans, sessions, controls)),
        shares=shares,
        buckets=keep("doubtful_buckets", _buckets(acknowledged, delivered, shares, steady)),
        timelines=keep("doubtful_timelines", _timelines(puts)),
        delivered=delivered,
    )


def only(rows: DataFrame, keys: DataFrame, names: Sequence[str]) -> DataFrame:
    """Return the `rows` whose `names` stand in `keys`, of which there are few: nothing moves."""
    return _matched(rows, keys, names, "leftsemi")


def without(rows: DataFrame, keys: DataFrame, names: Sequence[str]) -> DataFrame:
    """Return the `rows` whose `names` do not stand in `keys`, of which there are few."""
    return _matched(rows, keys, names, "leftanti")


def _matched(rows: DataFrame, keys: DataFrame, names: Sequence[str], how: str) -> DataFrame:
    """Join on `names`; null is a value like any other (a GET of any topic may have none)."""
    few = keys.select(*(F.col(name).alias(f"few_{name}") for name in names)).distinct()
    same = [F.col(name).eqNullSafe(F.col(f"few_{name}")) for name in names]
    return rows.join(F.broadcast(few), same, how)


def _spans(answers: DataFrame) -> DataFrame:
    """Return what each session came to in each bucket of its operations."""
    came, answered = F.col("first").isNotNull(), F.col("outcome") == "ok"
    return answers.groupBy(*SESSION, intervals.bucket_of(F.col("op_id")).alias("bucket")).agg(
        F.max(_is_odd()).alias("is_odd"),
        F.min(F.when(came, F.col("asked"))).alias("low"),
        F.max("last").alias("top"),
        F.min(F.when(answered, F.col("asked"))).alias("low_known"),
        F.max(F.when(answered, F.col("asked"))).alias("high_known"),
        F.min("invoke_ns").alias("begin_ns"),
        F.max("invoke_ns").alias("last_invoke_ns"),
        F.max(F.coalesce("end_ns", "invoke_ns")).alias("end_ns"),
    )


def _is_odd() -> Column:
    """Return whether a GET can be no link of a chain, whatever stands beside it."""
    begins_after = F.coalesce(F.col("first") == F.col("asked") + 1, F.lit(False))
    wrong = F.col("first").isNotNull() & ~(begins_after & F.col("is_plain"))
    return wrong | F.col("invoke_ns").isNull() | F.col("session").isNull()


def _sessions(spans: DataFrame, answers: DataFrame) -> DataFrame:
    """Return the sessions that are no chain, within a bucket or from one to the next."""
    before = W.partitionBy(*SESSION).orderBy("bucket").rowsBetween(W.unboundedPreceding, -1)
    broken = (
        F.col("is_odd")
        | (F.col("low") != F.max("top").over(before))
        | (F.col("low_known") < F.max("high_known").over(before))
        | (F.col("begin_ns") < F.max("last_invoke_ns").over(before))
    )
    between = spans.withColumn("broken", F.coalesce(broken, F.lit(False))).where("broken")
    bucket = intervals.bucket_of(F.col("op_id"))
    link = F.xxhash64(*SESSION, bucket)
    inside = only(
        spans.withColumn("link", F.xxhash64(*SESSION, "bucket")),
        _broken_links(answers, link),
        ["link"],
    )
    return between.select(*SESSION).unionByName(inside.select(*SESSION)).distinct()


def _broken_links(answers: DataFrame, link: Column) -> DataFrame:
    """Return the (hashed) session and bucket in which a GET does not follow those before it."""
    before = W.partitionBy("link").orderBy("op_id").rowsBetween(W.unboundedPreceding, -1)
    known = F.when(F.col("outcome") == "ok", F.col("asked"))
    came = F.when(F.col("first").isNotNull(), F.col("asked"))
    broken = (
        (F.col("came") != F.max("last").over(before))
        | (F.col("known") < F.max("known").over(before))
        | (F.col("invoke_ns") < F.max("invoke_ns").over(before))
    )
    narrow = answers.select(
        link.alias("link"), "op_id", came.alias("came"), known.alias("known"), "last", "invoke_ns"
    )
    return narrow.withColumn("broken", broken).where("broken").select("link").distinct()


def _lives(spans: DataFrame) -> DataFrame:
    """Return a row a session: the ids it got, the cursors it asked with, and from when to when."""
    return spans.groupBy(*SESSION).agg(
        F.min("low").alias("low"),
        F.max("top").alias("top"),
        F.min("low_known").alias("low_known"),
        F.max("high_known").alias("high_known"),
        F.min("begin_ns").alias("begin_ns"),
        F.max("end_ns").alias("end_ns"),
    )


def _steady_owners(spans: DataFrame, sessions: DataFrame) -> DataFrame:
    """Return the (client, topic) that got every id once at most: chains, one above the other."""
    below = W.partitionBy(*OWNER).orderBy("low", "top").rowsBetween(W.unboundedPreceding, -1)
    lives = _lives(spans).where(F.col("top").isNotNull())
    overlapping = lives.withColumn("reach", F.max("top").over(below)).where(
        F.col("low") < F.col("reach")
    )
    owners = lives.select(*OWNER).distinct()
    return without(without(owners, overlapping, OWNER), sessions, OWNER)


def _owners(spans: DataFrame, sessions: DataFrame, controls: DataFrame) -> DataFrame:
    """Return the owners whose sessions, and SUBs that name a cursor, are not one after the other
    with cursors that never fall.
    """
    named = (F.col("f") == "sub") & (F.col("outcome") == "ok") & F.col("cursor").isNotNull()
    subs = controls.where(named).select(
        *OWNER,
        F.col("cursor").alias("low_known"),
        F.col("cursor").alias("high_known"),
        F.col("invoke_ns").alias("begin_ns"),
        "end_ns",
    )
    lives = _lives(spans).where(F.col("high_known").isNotNull()).select(*subs.columns)
    before = W.partitionBy(*OWNER).orderBy("begin_ns").rowsBetween(W.unboundedPreceding, -1)
    contradiction = (F.max("high_known").over(before) > F.col("low_known")) | (
        F.max("end_ns").over(before) >= F.col("begin_ns")
    )
    both = lives.unionByName(subs)
    unclear = both.withColumn(
        "unclear", contradiction | F.col("begin_ns").isNull() | F.col("end_ns").isNull()
    ).where("unclear")
    return unclear.select(*OWNER).unionByName(sessions.select(*OWNER)).distinct()


def marks_of(runs: DataFrame, keys: Sequence[str]) -> DataFrame:
    """Return (keys, `marks`): a number that two sets of publications under ids share only if they
    are the same, repeats counted, however they are cut into runs.

    A run adds the hash of its first edge and takes off that of its last; neighbours cancel out
    where they touch. Added up in halves of 32 bits, which can't overflow.
    """
    lead = F.xxhash64("producer", "shift", "first")
    trail = F.xxhash64("producer", "shift", F.col("last") + 1)
    sums = [F.sum(half(lead) - half(trail)) for half in (_low, _high)]
    names = ("low", "high", "length")
    sums.append(F.sum(F.col("last") - F.col("first") + 1))
    marks = F.struct(*(one.alias(name) for name, one in zip(names, sums, strict=True)))
    return intervals.split(runs).groupBy(*keys).agg(marks.alias("marks"))


def _low(value: Column) -> Column:
    return value.bitwiseAND(F.lit(LOW_BITS))


def _high(value: Column) -> Column:
    return F.shiftrightunsigned(value, 32)


def _shares(acknowledged: DataFrame, delivered: DataFrame, subscriptions: DataFrame) -> DataFrame:
    due = acknowledged.withColumnRenamed("marks", "due")
    differing = (
        delivered.join(due, list(TOPIC_BUCKET), "left")
        .where(~F.col("marks").eqNullSafe(F.col("due")))
        .select(*SHARE, F.lit(True).alias("came"))
    )
    standing = subscriptions.where(~F.col("ended")).select(*OWNER).distinct()
    missing = (
        due.join(F.broadcast(standing), ["run_id", "topic"])
        .join(delivered, list(SHARE), "leftanti")
        .select(*SHARE, F.lit(False).alias("came"))
    )
    return differing.unionByName(missing)


def _buckets(
    acknowledged: DataFrame, delivered: DataFrame, shares: DataFrame, steady: DataFrame
) -> DataFrame:
    every = (
        acknowledged.select(*TOPIC_BUCKET).unionByName(delivered.select(*TOPIC_BUCKET)).distinct()
    )
    strange = shares.where("came")
    same = only(without(delivered, strange, SHARE), steady, OWNER)
    return every.join(without(same, strange, TOPIC_BUCKET), list(TOPIC_BUCKET), "leftanti")


def _timelines(puts: DataFrame) -> DataFrame:
    """Return the time lines on which a PUT was sent after some higher id was acknowledged."""
    bucket = intervals.bucket_of(F.col("first"))
    acks = acknowledged_runs(puts).select(
        "run_id", "topic", one_host(), bucket.alias("bucket"), "first", "invoke_ns", "end_ns"
    )
    above = W.partitionBy("link").orderBy(F.col("first").desc())
    earliest_ns = F.min("end_ns").over(above.rowsBetween(W.unboundedPreceding, -1))
    narrow = acks.select(
        F.xxhash64(*TIMELINE, "bucket").alias("link"), "first", "invoke_ns", "end_ns"
    )
    inside = (
        narrow.withColumn("late", earliest_ns < F.col("invoke_ns")).where("late").select("link")
    )
    spans = acks.groupBy(*TIMELINE, "bucket").agg(
        F.min("end_ns").alias("end_ns"), F.max("invoke_ns").alias("invoke_ns")
    )
    beyond = W.partitionBy(*TIMELINE).orderBy(F.col("bucket").desc())
    later_ns = F.min("end_ns").over(beyond.rowsBetween(W.unboundedPreceding, -1))
    between = spans.withColumn("late", later_ns < F.col("invoke_ns")).where("late")
    linked = spans.withColumn("link", F.xxhash64(*TIMELINE, "bucket"))
    return (
        between.select(*TIMELINE)
        .unionByName(only(linked, inside, ["link"]).select(*TIMELINE))
        .distinct()
    )


def producers_of(places: DataFrame) -> DataFrame:
    """Return the producers whose publications, by counter, do not stand under ever higher ids.

    `places` split by counters: `first`, `last` are counters.
    """
    first_id, last_id = F.col("first") - F.col("shift"), F.col("last") - F.col("shift")
    link = F.xxhash64(*PRODUCER, "bucket")
    below = W.partitionBy("link").orderBy("first").rowsBetween(W.unboundedPreceding, -1)
    fallen = (F.col("first") <= F.max("last").over(below)) | (
        F.col("first_id") <= F.max("last_id").over(below)
    )
    narrow = places.select(
        link.alias("link"), "first", "last", first_id.alias("first_id"), last_id.alias("last_id")
    )
    inside = narrow.withColumn("fallen", fallen).where("fallen").select("link")
    spans = places.groupBy(*PRODUCER, "bucket").agg(
        F.min(first_id).alias("low_id"), F.max(last_id).alias("high_id")
    )
    before = W.partitionBy(*PRODUCER).orderBy("bucket").rowsBetween(W.unboundedPreceding, -1)
    between = spans.withColumn("fallen", F.col("low_id") <= F.max("high_id").over(before)).where(
        "fallen"
    )
    return (
        between.select(*PRODUCER)
        .unionByName(only(spans.withColumn("link", link), inside, ["link"]).select(*PRODUCER))
        .distinct()
    )
