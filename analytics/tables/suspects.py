"""Where the checks have to look closely: what an orderly history does not explain by itself.

Nearly all of a history is in order, and that is cheaper to prove than to search: one aggregation or
one narrow window says for a whole session, bucket or producer that nothing is wrong in it. What is
not proven is in doubt, and goes to the checks, which decide exactly. So a doubt too many costs
time, one too few would hide a violation: each table below says why what it leaves out is sound.

sessions   (client, topic, process, session) whose GETs are not one chain in the order of their
           operations: every answer begins right after its cursor, has no jump inside, and asks
           with what the session got last. In a chain there is no gap, no repeat, no way back
owners     (client, topic) whose sessions' cursors may contradict each other in time
buckets    (topic, bucket) in which more may be known than what was acknowledged, or something else:
           not in each of which a chain of GETs got every acknowledged id once, nobody got anything
           else, and no node holds anything else
watches    (life, topic, bucket) in which a life may lack something that it was owed: all lives in
           such a bucket, and those that got nothing of another one which they passed, or drained.
           A bucket of which another life of the client got something counts as one that it did not
producers  (topic, producer) whose counters do not rise with the ids
timelines  (topic, host, bucket) with a PUT that may have been sent when the topic was known to have
           reached its id
delivered  no doubt: what came of each share on a host, as `marks`, from which id to which
stored     no doubt: what was acknowledged to a producer on a host of each bucket, as `marks`, from
           which counter and moment to which, and up to which id; `fallen`, `late`: not in order
           within the bucket
reached    no doubt: when a topic was first known to have reached an id of a bucket, on each host
claims     no doubt: ids that a topic has reached by cursors, starts, leases and dead letters

Hashes stand for keys and for sets only here: 64 bits of each edge of a run, added up. No rule about
right and wrong: those are in anomalies/.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.window import Window as W

from analytics.common import intervals
from analytics.common.table_store import is_never_any, none_of
from analytics.tables.runs import PLACE, acknowledged_runs, one_host

SESSION: Final = ("run_id", "client_id", "topic", "process", "session")
OWNER: Final = ("run_id", "client_id", "topic")
SHARE: Final = (*OWNER, "bucket")
TOPIC: Final = ("run_id", "topic")
TOPIC_BUCKET: Final = (*TOPIC, "bucket")
PRODUCER: Final = ("run_id", "topic", "producer")
TIMELINE: Final = ("run_id", "topic", "at")
LOW_BITS: Final = 0xFFFF_FFFF
MARKS: Final = ("low", "high", "length")

Keep = Callable[[str, DataFrame], DataFrame]


@dataclass(frozen=True, slots=True)
class Doubts:
    """The tables that the module's docstring describes, but for `producers`, which needs places."""

    sessions: DataFrame
    owners: DataFrame
    buckets: DataFrame
    watches: DataFrame
    timelines: DataFrame
    delivered: DataFrame
    stored: DataFrame
    reached: DataFrame
    claims: DataFrame


def doubts_of(
    puts: DataFrame,
    answers: DataFrame,
    deliveries: DataFrame,
    controls: DataFrame,
    worked: DataFrame,
    told: DataFrame,
    held: DataFrame,
    spans: DataFrame,
    lives: DataFrame,
    keep: Keep,
) -> Doubts:
    """Return what is in doubt. Reads PUTs and GETs a few times each, and sorts each once.

    `held`: the places on the nodes' disks, split.
    """
    sessions = keep("doubtful_sessions", _sessions(spans, answers))
    claims = keep("claims", claims_of(answers, controls, worked, told))
    acks = acknowledged_runs(puts)
    stored = keep("stored", stored_of(acks, extents_of(answers, claims)))
    acknowledged = together(stored, TOPIC_BUCKET)
    delivered = keep("delivered", _delivered(deliveries))
    strange = keep("strange", _strange(acknowledged, delivered, _unacknowledged(held, acks)))
    steady = _steady_owners(spans, sessions)
    buckets = keep("doubtful_buckets", _buckets(acknowledged, delivered, strange, steady))
    reached = keep("reached", _reached(stored, delivered, claims))
    every = _every(acknowledged, delivered, strange)
    return Doubts(
        sessions=sessions,
        owners=keep("doubtful_owners", _owners(spans, sessions, controls)),
        buckets=buckets,
        watches=keep("watches", _watches(lives, every, buckets, delivered, reached)),
        timelines=keep("doubtful_timelines", _timelines(stored, reached)),
        delivered=delivered,
        stored=stored,
        reached=reached,
        claims=claims,
    )


def only(rows: DataFrame, keys: DataFrame, names: Sequence[str]) -> DataFrame:
    """Return the `rows` whose `names` stand in `keys`, of which there are few: nothing moves."""
    if is_never_any(keys) or is_never_any(rows):
        return none_of(rows)
    return _matched(rows, keys, names, "leftsemi")


def without(rows: DataFrame, keys: DataFrame, names: Sequence[str]) -> DataFrame:
    """Return the `rows` whose `names` do not stand in `keys`, of which there are few."""
    if is_never_any(keys):
        return rows
    return _matched(rows, keys, names, "leftanti")


def _matched(rows: DataFrame, keys: DataFrame, names: Sequence[str], how: str) -> DataFrame:
    """Join on `names`; null is a value like any other (a GET of any topic may have none)."""
    few = keys.select(*(F.col(name).alias(f"few_{name}") for name in names)).distinct()
    same = [F.col(name).eqNullSafe(F.col(f"few_{name}")) for name in names]
    return rows.join(F.broadcast(few), same, how)


def spans_of(answers: DataFrame) -> DataFrame:
    """Return what each session came to in each bucket of its operations, on each host."""
    came, answered = F.col("first").isNotNull(), F.col("outcome") == "ok"
    bucket = intervals.bucket_of(F.col("op_id")).alias("bucket")
    return answers.groupBy(*SESSION, one_host(), bucket).agg(
        F.max(_is_odd()).alias("is_odd"),
        F.min(F.when(came, F.col("asked"))).alias("low"),
        F.max("last").alias("top"),
        F.min(F.when(answered, F.col("asked"))).alias("low_known"),
        F.max(F.when(answered, F.col("asked"))).alias("high_known"),
        F.min(F.coalesce("invoke_ns", F.lit(-1))).alias("begin_ns"),
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


def _reaches(spans: DataFrame) -> DataFrame:
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
    lives = _reaches(spans).where(F.col("top").isNotNull())
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
    lives = _reaches(spans).where(F.col("high_known").isNotNull()).select(*subs.columns)
    before = W.partitionBy(*OWNER).orderBy("begin_ns").rowsBetween(W.unboundedPreceding, -1)
    contradiction = (F.max("high_known").over(before) > F.col("low_known")) | (
        F.max("end_ns").over(before) >= F.col("begin_ns")
    )
    both = lives.unionByName(subs)
    unclear = both.withColumn(
        "unclear", contradiction | F.col("begin_ns").isNull() | F.col("end_ns").isNull()
    ).where("unclear")
    return unclear.select(*OWNER).unionByName(sessions.select(*OWNER)).distinct()


def _delivered(deliveries: DataFrame) -> DataFrame:
    """Return what came of each share."""
    return (
        intervals.split(deliveries)
        .groupBy(*SHARE, one_host())
        .agg(
            marks().alias("marks"),
            F.min("end_ns").alias("end_ns"),
            F.max(F.coalesce("invoke_ns", F.lit(-1))).alias("invoke_ns"),
        )
    )


def marks() -> Column:
    """Return the aggregate of runs: a number that two sets of publications under ids share only if
    they are the same, repeats counted, however they are cut into runs.

    A run adds the hash of its first edge and takes off that of its last; neighbours cancel out
    where they touch. Added up in halves of 32 bits, which can't overflow.
    """
    lead = F.xxhash64("producer", "shift", "first")
    trail = F.xxhash64("producer", "shift", F.col("last") + 1)
    pairs = zip(halves(lead), halves(trail), strict=True)
    sums = [F.sum(ahead - behind) for ahead, behind in pairs]
    sums.append(F.sum(F.col("last") - F.col("first") + 1))
    return F.struct(*(one.alias(name) for name, one in zip(MARKS, sums, strict=True)))


def together(marked: DataFrame, keys: Sequence[str]) -> DataFrame:
    """Return (keys, `marks`) of rows that have `marks` already: those of all of them."""
    sums = (F.sum(F.col("marks")[name]).alias(name) for name in MARKS)
    return marked.groupBy(*keys).agg(F.struct(*sums).alias("marks"))


def halves(value: Column) -> tuple[Column, Column]:
    """Return the low and the high 32 bits of a hash, as numbers whose sums can't overflow."""
    return value.bitwiseAND(F.lit(LOW_BITS)), F.shiftrightunsigned(value, 32)


def _unacknowledged(held: DataFrame, acks: DataFrame) -> DataFrame:
    """Return (topic, bucket) in which a node holds what was not acknowledged to stand there."""
    own = only(intervals.split(acks.select(*PLACE, "first", "last")), held, TOPIC_BUCKET)
    return intervals.uncovered(held, own, PLACE).select(*TOPIC_BUCKET).distinct()


def _strange(acknowledged: DataFrame, delivered: DataFrame, held: DataFrame) -> DataFrame:
    """Return (topic, bucket) of which some client got something else than was acknowledged, or of
    which a node holds something else.
    """
    due = acknowledged.withColumnRenamed("marks", "due")
    differing = (
        together(delivered, SHARE)
        .join(due, list(TOPIC_BUCKET), "left")
        .where(~F.col("marks").eqNullSafe(F.col("due")))
    )
    return differing.select(*TOPIC_BUCKET).unionByName(held).distinct()


def _every(acknowledged: DataFrame, delivered: DataFrame, strange: DataFrame) -> DataFrame:
    """Return every (topic, bucket) in which something is known to stand."""
    named = [table.select(*TOPIC_BUCKET) for table in (acknowledged, delivered, strange)]
    return named[0].unionByName(named[1]).unionByName(named[2]).distinct()


def _buckets(
    acknowledged: DataFrame, delivered: DataFrame, strange: DataFrame, steady: DataFrame
) -> DataFrame:
    same = only(delivered.select(*SHARE).distinct(), steady, OWNER)
    every = _every(acknowledged, delivered, strange)
    return every.join(without(same, strange, TOPIC_BUCKET), list(TOPIC_BUCKET), "leftanti")


def _watches(
    lives: DataFrame,
    every: DataFrame,
    buckets: DataFrame,
    delivered: DataFrame,
    reached: DataFrame,
) -> DataFrame:
    """Return each life with the buckets in which it may lack what was known to stand there.

    Above what it has passed only what was known before it drained was owed to it.
    """
    known = F.broadcast(reached.select(*TIMELINE, "bucket", "end_ns"))
    in_reach = intervals.bucket_of(F.col("passed")) >= F.col("bucket")
    in_time = F.col("end_ns") < F.col("drained_ns")
    met = (
        every.join(F.broadcast(lives), list(TOPIC))
        .where(F.col("bucket") >= intervals.bucket_of(F.col("start_id") + 1))
        .join(known, [*TIMELINE, "bucket"], "left")
        .where(in_reach | in_time)
        .drop("end_ns")
    )
    clear = without(met, buckets, TOPIC_BUCKET)
    came = delivered.select(*SHARE).distinct()
    missing = clear.join(came, list(SHARE), "leftanti")
    watched = only(met, buckets, TOPIC_BUCKET).unionByName(missing)
    bounded = clear.where(F.col("fresh_ns").isNotNull() | F.col("over_ns").isNotNull())
    apart = delivered.select(
        *SHARE,
        F.col("at").alias("came_at"),
        F.col("end_ns").alias("least_ns"),
        F.col("invoke_ns").alias("most_ns"),
    )
    is_apart = (F.col("least_ns") < F.col("fresh_ns")) | (F.col("most_ns") > F.col("over_ns"))
    here = F.col("came_at") == F.col("at")
    others = bounded.join(apart, list(SHARE)).where(here & is_apart).select(*met.columns)
    return watched.unionByName(others.distinct())


def claims_of(
    answers: DataFrame, controls: DataFrame, worked: DataFrame, told: DataFrame
) -> DataFrame:
    """Return who said that a topic has reached an id that no GET was given with it: (run_id, topic,
    at, value, end_ns, process, op_id) of cursors that GETs asked with, of SUBs' starts, of groups'
    cursors, of what was leased, and of what dead letters are of.
    """
    beyond = F.col("asked") > F.coalesce("last", F.lit(-1))
    asked = answers.where((F.col("outcome") == "ok") & F.col("topic").isNotNull() & beyond)
    begun = controls.where((F.col("f") == "sub") & (F.col("outcome") == "ok"))
    columns = ("run_id", "topic", one_host())
    what = ("end_ns", "process", "op_id")
    return (
        asked.select(*columns, F.col("asked").alias("value"), *what)
        .unionByName(begun.select(*columns, F.col("start_id").alias("value"), *what))
        .unionByName(_claimed_by_groups(worked).select(*columns, "value", *what))
        .unionByName(_claimed_by_letters(told, worked).select(*columns, "value", *what))
        .where(F.col("value") > 0)
    )


def _claimed_by_groups(worked: DataFrame) -> DataFrame:
    leased = F.array_max(F.transform("leases", lambda run: run[1]))
    value = F.when(F.col("f") == "group", F.col("last_id")).when(F.col("f") == "take", leased)
    return worked.where(F.col("outcome") == "ok").withColumn("value", value)


def _claimed_by_letters(told: DataFrame, worked: DataFrame) -> DataFrame:
    own = ("run_id", "host", "end_ns", "process", "op_id", "letters")
    gets = told.where(F.col("f") == "get").select(*own)
    takes = worked.where((F.col("f") == "take") & (F.col("outcome") == "ok")).select(*own)
    letters = gets.unionByName(takes).withColumn("letter", F.explode("letters"))
    named = {"topic": F.col("letter.topic"), "value": F.col("letter.from_id")}
    return letters.withColumns(named)


def extents_of(answers: DataFrame, claims: DataFrame) -> DataFrame:
    """Return (run_id, topic, at, value, end_ns): what topics were known to have reached by GETs and
    SUBs; what PUTs say of it stands beside.
    """
    given = answers.where(F.col("last").isNotNull() & F.col("topic").isNotNull()).select(
        "run_id", "topic", one_host(), F.col("last").alias("value"), "end_ns"
    )
    return given.unionByName(claims.select(*given.columns))


def _reached(stored: DataFrame, delivered: DataFrame, claims: DataFrame) -> DataFrame:
    columns = (*TIMELINE, "bucket", "end_ns")
    said = claims.withColumn("bucket", intervals.bucket_of(F.col("value")))
    marks = [table.select(*columns) for table in (stored, delivered, said)]
    return (
        marks[0]
        .unionByName(marks[1])
        .unionByName(marks[2])
        .groupBy(*TIMELINE, "bucket")
        .agg(F.min("end_ns").alias("end_ns"))
    )


def stored_of(runs: DataFrame, extents: DataFrame | None = None) -> DataFrame:
    """Return `stored` of acknowledged runs. Two readings: names are not carried along to sort.

    `extents`: what else says that a topic has reached an id; none where no time is in question.
    """
    pieces = intervals.split(
        runs.select(*TOPIC, one_host(), "producer", "shift", "first", "last", "invoke_ns", "end_ns")
    )
    where = (*TIMELINE, "producer", "bucket")
    first_counter, last_counter = (F.col(name) + F.col("shift") for name in ("first", "last"))
    spans = pieces.groupBy(*where).agg(
        marks().alias("marks"),
        F.min(first_counter).alias("low_counter"),
        F.max(last_counter).alias("high_counter"),
        F.max("last").alias("high_id"),
        F.min("end_ns").alias("end_ns"),
        F.max("invoke_ns").alias("invoke_ns"),
    )
    broken = _broken_places(pieces, extents)
    marked = F.broadcast(broken.withColumnRenamed("link", "broken_link"))
    same = F.xxhash64(*where) == F.col("broken_link")
    flags = (F.coalesce(F.col(name), F.lit(False)).alias(name) for name in ("fallen", "late"))
    return spans.join(marked, same, "left").select(*spans.columns, *flags)


def _broken_places(pieces: DataFrame, extents: DataFrame | None) -> DataFrame:
    """Return (link, fallen, late): the rows of `stored`, hashed, that are not in order inside.

    `fallen`: some id is another's, or a counter not above those of lower ids. `late`: a PUT may
    have been sent after the topic was known, on the same host, to have reached its id: it was sent
    after what is above it was known, or its ids and another one's overlap.
    """
    narrow = pieces.select(
        F.xxhash64(*TOPIC_BUCKET).alias("home"),
        F.xxhash64(*TIMELINE, "bucket").alias("time_line"),
        F.xxhash64(*TOPIC_BUCKET, "producer").alias("line"),
        F.xxhash64(*TIMELINE, "producer", "bucket").alias("link"),
        *("first", "last", "invoke_ns", "end_ns"),
        (F.col("first") + F.col("shift")).alias("first_counter"),
        (F.col("last") + F.col("shift")).alias("last_counter"),
    )
    if extents is not None:
        at_value = extents.withColumn("bucket", intervals.bucket_of(F.col("value")))
        narrow = narrow.unionByName(
            at_value.select(
                F.xxhash64(*TOPIC_BUCKET).alias("home"),
                F.xxhash64(*TIMELINE, "bucket").alias("time_line"),
                F.col("value").alias("first"),
                "end_ns",
            ),
            allowMissingColumns=True,
        )
    narrow = narrow.repartition("home")  # both windows stay inside it: rows move once
    # What was given under an id stands before the PUT that may have taken it too late.
    above = W.partitionBy("home", "time_line").orderBy(F.col("first").desc(), "invoke_ns")
    earlier = above.rowsBetween(W.unboundedPreceding, -1)
    earliest_ns = F.min("end_ns").over(earlier)
    lowest_above = F.min(F.when(F.col("link").isNotNull(), F.col("first"))).over(earlier)
    late = (earliest_ns < F.col("invoke_ns")) | (F.col("last") >= lowest_above)
    below = W.partitionBy("home", "line").orderBy("first")
    before = below.rowsBetween(W.unboundedPreceding, -1)
    fallen = (F.col("first") <= F.max("last").over(before)) | (
        F.col("first_counter") <= F.max("last_counter").over(before)
    )
    return (
        narrow.withColumn("late", F.coalesce(late, F.lit(False)))
        .where(F.col("link").isNotNull())  # of a PUT
        .withColumn("fallen", F.coalesce(fallen, F.lit(False)))
        .where(F.col("late") | F.col("fallen"))
        .groupBy("link")
        .agg(F.max("late").alias("late"), F.max("fallen").alias("fallen"))
    )


def _timelines(stored: DataFrame, reached: DataFrame) -> DataFrame:
    """Return the buckets of time lines in which a PUT was sent after its id was reached."""
    spans = stored.groupBy(*TIMELINE, "bucket").agg(
        F.max("late").alias("inside"), F.max("invoke_ns").alias("invoke_ns")
    )
    both = reached.select(*TIMELINE, "bucket", "end_ns").join(spans, [*TIMELINE, "bucket"], "left")
    late = F.col("inside") | F.coalesce(_later_ns() < F.col("invoke_ns"), F.lit(False))
    return both.withColumn("late", late).where("late").select(*TIMELINE, "bucket")


def _later_ns() -> Column:
    """Return when the topic was first known to have reached a higher bucket: a row a bucket."""
    beyond = W.partitionBy(*TIMELINE).orderBy(F.col("bucket").desc())
    return F.min("end_ns").over(beyond.rowsBetween(W.unboundedPreceding, -1))


def producers_of(stored: DataFrame, places: DataFrame) -> DataFrame:
    """Return the producers whose publications, by id, do not have ever higher counters.

    `stored` is of the buckets that are not in doubt, `places` of those that are.
    """
    lacking = {"host": "string", "invoke_ns": "bigint", "end_ns": "bigint"}
    unclear = stored_of(
        places.withColumns({name: F.lit(None).cast(kind) for name, kind in lacking.items()})
    )
    spans = (
        stored.unionByName(unclear)
        .groupBy(*PRODUCER, "bucket")
        .agg(
            F.max("fallen").alias("inside"),
            F.min("low_counter").alias("low"),
            F.max("high_counter").alias("high"),
        )
    )
    before = W.partitionBy(*PRODUCER).orderBy("bucket").rowsBetween(W.unboundedPreceding, -1)
    between = F.coalesce(F.col("low") <= F.max("high").over(before), F.lit(False))
    fallen = spans.withColumn("fallen", F.col("inside") | between).where("fallen")
    return fallen.select(*PRODUCER).distinct()
