"""What may be owed to a life, and when what was known. anomalies/lost.py says what is lost.

missing   ids, known to stand above a life's start, that its client was never given, if the life
          has passed them or drained
tails     those that the life has not passed: with `known_ns` and `cut_ns`
below     publications at or below a life's start that were first tried after it had begun, and
          that its client was never given: with `known_ns`
unplaced  publications not known to stand anywhere, but known to be taken, and stored, for some life
          stood meanwhile: with the lives that are owed them, as they stood so, or a lower counter
          of the producer stands at or above their start
cleared   ids, known to stand above what a life has passed, that it was never given, and that a node
          has collected, above what was purged of the topic. They may have expired
"""

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from analytics.common import intervals
from analytics.common.table_store import is_never_any, settled
from analytics.tables.lives import EVER, FOREVER, HOME, may_have_had
from analytics.tables.order import with_first_try
from analytics.tables.runs import (
    LETTER,
    acknowledged_runs,
    counters_of_places,
    one_host,
    tries_of_puts,
)
from analytics.tables.suspects import (
    OWNER,
    PRODUCER,
    SHARE,
    TIMELINE,
    TOPIC,
    TOPIC_BUCKET,
    Doubts,
    only,
)

LIFE: Final = (
    *(*HOME, "begun_ns", "until_ns", "start_id", "passed", "drained_ns", "made_by"),
    *("fresh_ns", "over_ns"),
)
READING: Final = (*HOME, "begun_ns")


def missing_of(watches: DataFrame, places: DataFrame, given: DataFrame) -> DataFrame:
    """Return `missing`: the columns of a life, bucket, id.

    `places` and `given` (split) have what stands, and what was given, in the buckets of `watches`.
    """
    if is_never_any(watches):
        return watches.select(*LIFE, "bucket", F.lit(None).cast("bigint").alias("id"))
    known = intervals.merged(
        only(places, watches, TOPIC_BUCKET).select(*TOPIC_BUCKET, "first", "last"), TOPIC
    )
    reach = F.least("last", "passed")
    owed = (
        known.join(watches, list(TOPIC_BUCKET))
        .withColumn("first", F.greatest("first", F.col("start_id") + 1))
        .withColumn(
            "last",
            F.when(F.col("drained_ns").isNotNull(), F.col("last"))
            .when(F.col("passed").isNotNull(), reach)
            .otherwise(-1),
        )
        .where(F.col("first") <= F.col("last"))
    )
    came = only(came_of(given, "bucket"), watches, SHARE)
    readings = watches.select(*READING, "bucket", "fresh_ns", "over_ns").distinct()
    cover = (
        came.join(readings, list(SHARE))
        .where(may_have_had())
        .select(*READING, "bucket", "first", "last")
    )
    return intervals.exploded(intervals.uncovered(owed, cover, READING), "id").select(
        *LIFE, "bucket", "id"
    )


def came_of(deliveries: DataFrame, *others: str) -> DataFrame:
    """Return what came to clients, as runs of ids, and when and where: `may_have_had`."""
    return deliveries.select(
        *(*OWNER, *others),
        *("first", "last"),
        one_host().alias("came_at"),
        F.coalesce("invoke_ns", F.lit(EVER)).alias("came_from_ns"),
        F.col("end_ns").alias("came_ns"),
    )


def tails_of(
    missing: DataFrame,
    asides: DataFrame,
    puts: DataFrame,
    gets: DataFrame,
    deliveries: DataFrame,
) -> DataFrame:
    """Return `tails`."""
    tails = missing.where(~is_passed() & F.col("drained_ns").isNotNull())
    return with_known(with_cut(tails, puts, gets, asides), puts, deliveries)


def is_passed() -> Column:
    """Return whether a life has passed a row's `id`."""
    return F.coalesce(F.col("id") <= F.col("passed"), F.lit(False))


def below_of(
    tried_after: DataFrame, puts: DataFrame, gets: DataFrame, deliveries: DataFrame
) -> DataFrame:
    """Return `below`."""
    return with_known(without_given(tried_after, deliveries), puts, deliveries)


def tried_after_of(
    puts: DataFrame, loose: DataFrame, lives: DataFrame, doubts: Doubts
) -> DataFrame:
    """Return the publications at or below a life's start that were first tried after its begin:
    the columns of a life, producer, counter, id.
    """
    started = F.broadcast(lives.where(F.col("start_id") > 0))
    begins = F.col("bucket") * intervals.BUCKET_SIZE
    spots = settled(
        doubts.stored.groupBy(*TIMELINE, "bucket")
        .agg(F.max("invoke_ns").alias("invoke_ns"))
        .join(started, list(TIMELINE))
        .where((begins <= F.col("start_id")) & (F.col("invoke_ns") > F.col("begun_ns")))
        .select(*TIMELINE, "bucket")
        .distinct()
    )
    acks = intervals.split(acknowledged_runs(puts).withColumn("at", one_host()))
    after = (
        only(acks, spots, (*TIMELINE, "bucket"))
        .join(started, list(TIMELINE))
        .where((F.col("first") <= F.col("start_id")) & (F.col("invoke_ns") > F.col("begun_ns")))
    )
    columns = (*LIFE, "producer", "shift", "first", F.least("last", "start_id").alias("last"))
    others = loose.join(started, list(TOPIC)).where(F.col("first") <= F.col("start_id"))
    ids = intervals.exploded(after.select(*columns).unionByName(others.select(*columns)), "id")
    rows = (
        ids.withColumn("counter", F.col("id") + F.col("shift"))
        .drop("shift")
        .withColumnRenamed("at", "life_at")
        .distinct()
    )
    tried = with_first_try(rows, tries_of_puts(puts))
    return tried.where(
        (F.col("at") == F.col("life_at")) & (F.col("tried_ns") > F.col("begun_ns"))
    ).drop("life_at", "tried_ns")


def unsaid_of(puts: DataFrame, applications: DataFrame, lives: DataFrame) -> DataFrame:
    """Return (run_id, topic, producer, first_counter, last_counter) of the PUTs of which no answer
    says where they stand, and that were sent while a life stood.
    """
    unsaid = (F.col("outcome") == "info") | ((F.col("outcome") == "ok") & (F.col("first_id") <= 0))
    stood = F.col("invoke_ns").between(F.col("begun_ns") + 1, F.col("until_ns"))
    return (
        puts.where(unsaid & F.col("first_counter").isNotNull())
        .withColumn("at", one_host())
        .join(F.broadcast(lives.select(*TIMELINE, "begun_ns", "until_ns")), list(TIMELINE))
        .where(stood)
        .join(applications, "run_id", "leftanti")
        .select(*PRODUCER, "first_counter", "last_counter")
    )


def nowhere_of(unsaid: DataFrame, tried: DataFrame, unclear: DataFrame) -> DataFrame:
    """Return the publications of `unsaid` (`unsaid_of`) that stand nowhere: PRODUCER, counter, at,
    tried_ns.

    `tried` has the PUTs of their buckets of counters, `unclear` what stands where something is in
    doubt: elsewhere nothing does but what was acknowledged.
    """
    counters = F.explode(F.sequence("first_counter", "last_counter")).alias("counter")
    rows = unsaid.where(F.col("first_counter") <= F.col("last_counter")).select(*PRODUCER, counters)
    rows = rows.distinct().withColumn("bucket", intervals.bucket_of(F.col("counter")))
    runs = (*PRODUCER, "bucket", "first", "last")
    acknowledged = tried.where((F.col("outcome") == "ok") & (F.col("first_id") > 0)).select(*runs)
    standing = acknowledged.unionByName(counters_of_places(unclear).select(*runs))
    placed = intervals.exploded(only(standing, rows, (*PRODUCER, "bucket")), "counter")
    left = rows.join(placed, [*PRODUCER, "counter"], "leftanti").drop("bucket")
    return with_first_try(left, tried)


def unplaced_of(
    nowhere: DataFrame, puts: DataFrame, deliveries: DataFrame, places: DataFrame, lives: DataFrame
) -> DataFrame:
    """Return `unplaced`: the columns of a life, producer, counter, `taken_ns`, `later_id`, the
    lowest place of a later counter of the producer, and `is_here`: whether that was on its host.
    """
    taken = settled(with_taken(nowhere, puts, deliveries))
    own = F.broadcast(lives.select(*LIFE))
    stood = F.col("tried_ns").between(F.col("begun_ns") + 1, F.col("until_ns") - 1)
    stood = stood & (F.col("taken_ns") < F.col("until_ns"))
    stored = settled(taken.join(own, list(TIMELINE)).where(stood).select(*taken.columns).distinct())
    near = only(places, stored, PRODUCER).select(*PRODUCER, "shift", "first", "last")
    of_lower = F.least("last", F.col("counter") - 1 - F.col("shift"))
    of_later = F.greatest("first", F.col("counter") + 1 - F.col("shift"))
    bounds = (
        F.max(F.when(F.col("first") <= of_lower, of_lower)).alias("lower_id"),
        F.min(F.when(of_later <= F.col("last"), of_later)).alias("later_id"),
    )
    bounded = stored.join(near, list(PRODUCER), "left").groupBy(*stored.columns).agg(*bounds)
    is_here = F.col("at") == F.col("tried_at")
    is_above = F.coalesce(F.col("lower_id") >= F.col("start_id"), F.lit(False))
    is_passed = F.coalesce(F.col("later_id") <= F.col("passed"), F.lit(False))
    may_lack = is_passed | (is_here & F.col("drained_ns").isNotNull())
    owed = settled(
        bounded.withColumnRenamed("at", "tried_at")
        .join(own, list(TOPIC))
        .where(((is_here & stood) | is_above) & may_lack)
        .withColumn("is_here", is_here)
    )
    rows = owed.join(
        _unread(owed, places, deliveries), [*READING, "producer", "counter"], "leftanti"
    )
    return rows.drop("lower_id", "tried_at", "tried_ns")


def _unread(owed: DataFrame, places: DataFrame, deliveries: DataFrame) -> DataFrame:
    """Return READING, producer and counter of the rows of `owed` whose publication may be what
    their life was given damaged, or was told is gone, where nothing else is known to stand.
    """
    keys = (*READING, "producer", "counter")
    if is_never_any(owed):
        return owed.select(*keys)
    is_letter = F.coalesce(F.col("reason") == LETTER, F.lit(False))
    nameless = deliveries.where(F.col("producer").isNull() & ~is_letter)
    came = came_of(only(nameless, owed, OWNER)).join(F.broadcast(owed), list(OWNER))
    between = {
        "first": F.greatest("first", F.coalesce("lower_id", F.lit(0)) + 1),
        "last": F.least("last", F.col("later_id") - 1),
    }
    is_before = (F.col("came_at") == F.col("tried_at")) & (F.col("came_ns") < F.col("tried_ns"))
    may_be = may_have_had() & ~F.coalesce(is_before, F.lit(False))
    spots = settled(
        intervals.split(came.where(may_be).withColumns(between).select(*keys, "first", "last"))
    )
    standing = only(places, spots, TOPIC_BUCKET).select(*TOPIC_BUCKET, "first", "last")
    homes = spots.select(*keys, "bucket").distinct()
    known = homes.join(standing, list(TOPIC_BUCKET)).select(*keys, "bucket", "first", "last")
    return intervals.uncovered(spots, known, keys).select(*keys).distinct()


def cleared_of(
    collected: DataFrame, lives: DataFrame, places: DataFrame, deliveries: DataFrame
) -> DataFrame:
    """Return `cleared`: the columns of a life, bucket, id."""
    partly = collected.where(~F.col("is_plain"))
    start = F.greatest("start_id", "purged_id", F.coalesce("passed", F.lit(0)))
    over = lives.where((F.col("until_ns") == FOREVER) & F.col("start_id").isNotNull())
    met = (
        over.join(F.broadcast(partly), list(TOPIC))
        .withColumns({"start_id": start, "passed": F.col("floor")})
        .where(F.col("start_id") < F.col("passed"))
        .withColumn("drained_ns", F.lit(None).cast("bigint"))
    )
    low, high = (intervals.bucket_of(one) for one in (F.col("start_id") + 1, F.col("passed")))
    watches = settled(met.select(*LIFE, F.explode(F.sequence(low, high)).alias("bucket")))
    return missing_of(watches, places, intervals.split(deliveries))


def with_known(rows: DataFrame, puts: DataFrame, deliveries: DataFrame) -> DataFrame:
    """Add `known_ns`: when each row's `id` was first known on the row's host; null if never."""
    if is_never_any(rows):
        return rows.withColumn("known_ns", F.lit(None).cast("bigint"))
    columns = (*TIMELINE, "bucket", "first", "last", "end_ns")
    seen = [
        intervals.split(table.withColumn("at", one_host())).select(*columns)
        for table in (acknowledged_runs(puts), deliveries)
    ]
    keyed = rows.withColumn("bucket", intervals.bucket_of(F.col("id")))
    marks = only(seen[0].unionByName(seen[1]), keyed, TOPIC_BUCKET)
    # Id by id: each row held against all marks of its bucket is the square of what was lost.
    known = (
        intervals.exploded(marks, "id")
        .groupBy(*TIMELINE, "id")
        .agg(F.min("end_ns").alias("known_ns"))
    )
    return rows.join(known, [*TIMELINE, "id"], "left").select(*rows.columns, "known_ns")


def without_given(rows: DataFrame, deliveries: DataFrame) -> DataFrame:
    """Return the `rows` whose `id` their life was never given."""
    if is_never_any(rows):
        return rows
    keyed = rows.withColumn("bucket", intervals.bucket_of(F.col("id")))
    given = intervals.exploded(only(intervals.split(came_of(deliveries)), keyed, SHARE), "id")
    given = given.withColumnsRenamed({name: f"given_{name}" for name in (*OWNER, "id")})
    same = [F.col(name) == F.col(f"given_{name}") for name in (*OWNER, "id")]
    return rows.join(given, [*same, may_have_had()], "leftanti")


def with_taken(rows: DataFrame, puts: DataFrame, deliveries: DataFrame) -> DataFrame:
    """Add `taken_ns`: when each row's publication was first known, on the row's host, to be taken:
    by itself or by a later counter of its producer. Those never known to be taken go.
    """
    done = puts.where(F.col("outcome") == "ok").select(
        *PRODUCER, one_host(), F.col("last_counter").alias("reach"), "end_ns"
    )
    given = deliveries.where(F.col("producer").isNotNull()).select(
        *PRODUCER, one_host(), (F.col("last") + F.col("shift")).alias("reach"), "end_ns"
    )
    marks = only(done.unionByName(given), rows, PRODUCER)
    return (
        rows.join(marks, [*PRODUCER, "at"])
        .where(F.col("reach") >= F.col("counter"))
        .groupBy(*rows.columns)
        .agg(F.min("end_ns").alias("taken_ns"))
    )


def with_cut(rows: DataFrame, puts: DataFrame, gets: DataFrame, asides: DataFrame) -> DataFrame:
    """Add `cut_ns` to rows of lives that drained: what was known before it, they have. Rows of a
    life whose cut is not known go.
    """
    if is_never_any(rows):
        return rows.withColumn("cut_ns", F.lit(None).cast("bigint"))
    drained = rows.select(*HOME, "drained_ns").distinct()
    is_tombstone = (F.col("f") == "phase") & (F.col("phase") == "tombstone")
    phases = (
        asides.where(is_tombstone)
        .groupBy("run_id", one_host())
        .agg(F.min("t_ns").alias("phase_ns"))
    )
    sent = only(puts.withColumn("at", one_host()), drained, TIMELINE).select(*TIMELINE, "invoke_ns")
    tombstones = (
        sent.join(F.broadcast(phases), ["run_id", "at"])
        .where(F.col("invoke_ns") >= F.col("phase_ns"))
        .groupBy(*TIMELINE)
        .agg(F.min("invoke_ns").alias("sent_ns"))
    )
    by_tombstone = drained.join(tombstones, list(TIMELINE)).withColumn(
        "cut_ns", F.least("sent_ns", "drained_ns")
    )
    others = drained.join(phases.select("run_id").distinct(), "run_id", "leftanti")
    answered = (F.col("outcome") == "ok") & F.col("topic").isNotNull()
    asked = only(gets.where(answered).withColumn("at", one_host()), others, HOME).select(
        *HOME, "invoke_ns", "end_ns"
    )
    before = F.when(F.col("end_ns") <= F.col("drained_ns"), F.col("invoke_ns"))
    by_get = (
        others.join(asked, list(HOME), "left")
        .groupBy(*HOME, "drained_ns")
        .agg(F.coalesce(F.max(before), "drained_ns").alias("cut_ns"))
    )
    columns = [*HOME, "drained_ns", "cut_ns"]
    cuts = by_tombstone.select(*columns).unionByName(by_get.select(*columns))
    return rows.join(cuts, [*HOME, "drained_ns"])


def read_of(
    rows: DataFrame, id_: Column, puts: DataFrame, gets: DataFrame, asides: DataFrame
) -> DataFrame:
    """Return those rows whose life has passed an id, or has drained and it was known by then
    (`known_ns`).
    """
    if is_never_any(rows):
        return rows
    passed = rows.where(F.col("passed") >= id_)
    cut = with_cut(rows.where(F.col("drained_ns").isNotNull()), puts, gets, asides)
    by_then = cut.where(F.col("known_ns") < F.col("cut_ns")).select(*rows.columns)
    return passed.unionByName(by_then)
