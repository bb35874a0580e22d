"""What contradicts the order of time, found once for all checks that ask: publications whose topic
had reached their id before they were first tried, and answers of a term after a higher one's.

No rule about what that proves: those are in anomalies/. Times are compared on one host only.
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.window import Window as W

from analytics.common import intervals
from analytics.common.schema import KEY, OPERATIONS, operation
from analytics.common.table_store import few, is_never_any, settled
from analytics.tables.runs import (
    PLACE,
    acknowledged_runs,
    first_of,
    has_taken,
    one_host,
)
from analytics.tables.suspects import PRODUCER, TIMELINE, Doubts, only

TERM = ("run_id", "at", "term")
ABOVE = "STRUCT<end_ns: BIGINT, value: BIGINT, process: STRING, op_id: BIGINT>"


def with_first_try(rows: DataFrame, tried: DataFrame) -> DataFrame:
    """Add `tried_ns` and `at`: when and where each row's publication was first tried.

    `rows` has run_id, topic, producer, counter; `tried` has the PUTs of their buckets of counters,
    as `tries_of_puts`. Rows whose tries were not all on one host, or that have none which may have
    succeeded, go. A try whose invoke is gone may have been the first. What was answered to be no
    duplicate was taken by that try.
    """
    if is_never_any(rows):
        return rows.select(
            "*",
            F.lit(None).cast("bigint").alias("tried_ns"),
            F.lit(None).cast("string").alias("at"),
        )
    tries = tried.where(F.col("outcome") != "fail").select(
        *(*PRODUCER, "bucket", "first", "last"),
        one_host(),
        F.coalesce("invoke_ns", F.lit(-1)).alias("tried_ns"),
        *(has_taken().alias("has_taken"), "up"),
    )
    keyed = rows.withColumn("bucket", intervals.bucket_of(F.col("counter")))
    own = [*PRODUCER, "bucket"]
    counter = [*PRODUCER, "counter"]
    first_tries = (
        intervals.exploded(only(tries, keyed, own), "counter")
        .groupBy(*counter)
        .agg(
            first_of(F.col("has_taken"), F.col("tried_ns"), F.col("up")).alias("tried_ns"),
            F.min("at").alias("at"),
            F.max("at").alias("other_at"),
        )
        .where(F.col("at") == F.col("other_at"))
    )
    return rows.join(first_tries, counter).select(*rows.columns, "tried_ns", "at")


def out_of_time_of(acks: DataFrame, doubts: Doubts) -> DataFrame:
    """Return the places of those of `unclear_acks` that are in a doubtful time line."""
    own = acks.withColumn("at", one_host())
    return only(own, doubts.timelines, [*TIMELINE, "bucket"]).select(*PLACE, "first", "last")


def maybe_late_of(out_of_time: DataFrame, loose: DataFrame, tried: DataFrame) -> DataFrame:
    """Return (run_id, topic, producer, id, counter, bucket, at, tried_ns): which publications may
    have been late. Few: what no acknowledgment names, and what stands in a doubtful time line.
    """
    places = out_of_time.unionByName(loose.select(*out_of_time.columns))
    ids = intervals.exploded(places, "id")
    named = ids.select(*PRODUCER, "id", (F.col("id") + F.col("shift")).alias("counter")).distinct()
    return with_first_try(named, tried).select(
        *(*PRODUCER, "id", "counter", "at", "tried_ns"),
        intervals.bucket_of(F.col("id")).alias("bucket"),
    )


def sent_late_of(rows: DataFrame, acks: DataFrame, given: DataFrame, doubts: Doubts) -> DataFrame:
    """Return (run_id, topic, producer, id, counter, at, tried_ns, above_ns): the late publications
    among `rows`.

    `above_ns`: when the topic was first known to have reached `id` or more. `acks` and `given` have
    what was acknowledged and given in the buckets of `rows`, split.
    """
    where = [*TIMELINE, "bucket"]
    if is_never_any(rows):
        nothing = F.lit(None).cast("bigint").alias("above_ns")
        return rows.select(*PRODUCER, "id", "counter", "at", "tried_ns", nothing)
    marks = _marks(acks, given, doubts.claims)
    near = only(marks, rows, where).select(*where, F.col("value").alias("id"), "end_ns")
    above = W.partitionBy(*where).orderBy(F.col("id").desc())
    # A row a bucket: 1/8,192 of the ids.
    beyond = W.partitionBy(*TIMELINE).orderBy(F.col("bucket").desc())
    # What only a node holds may stand in a bucket of which nobody knew anything.
    reached = (
        doubts.reached.select(*where, "end_ns")
        .unionByName(rows.select(*where), allowMissingColumns=True)
        .groupBy(*where)
        .agg(F.min("end_ns").alias("end_ns"))
    )
    later = reached.select(
        *where,
        F.min("end_ns").over(beyond.rowsBetween(W.unboundedPreceding, -1)).alias("later_ns"),
    )
    inside_ns = F.min("end_ns").over(above.rangeBetween(W.unboundedPreceding, 0))
    return (
        rows.unionByName(near, allowMissingColumns=True)
        .withColumn("inside_ns", inside_ns)
        .where(F.col("counter").isNotNull())
        .join(later, where, "left")
        .withColumn("above_ns", F.least("inside_ns", "later_ns"))
        .where(F.col("above_ns") < F.col("tried_ns"))
        .select(*PRODUCER, "id", "counter", "at", "tried_ns", "above_ns")
    )


def with_above(
    late: DataFrame, puts: DataFrame, answers: DataFrame, claims: DataFrame
) -> DataFrame:
    """Return `late` with `above` for `above_ns`: what was first known of the topic at or above
    `id`: end_ns, value, process, op_id.
    """
    if is_never_any(late):
        return late.drop("above_ns").withColumn("above", F.lit(None).cast(ABOVE))
    acks = intervals.split(acknowledged_runs(puts))
    given = answers.withColumn("bucket", intervals.bucket_of(F.col("last")))
    marks = _marks(acks, given, claims).withColumn("above_ns", F.col("end_ns"))
    first = only(marks, late, [*TIMELINE, "above_ns"])
    return (
        late.join(first.drop("bucket"), [*TIMELINE, "above_ns"])
        .where(F.col("value") >= F.col("id"))
        .groupBy(*PRODUCER, "id", "counter", "at", "tried_ns")
        .agg(F.min(F.struct("end_ns", "value", "process", "op_id")).alias("above"))
    )


def extents_of(puts: DataFrame, answers: DataFrame, claims: DataFrame) -> DataFrame:
    """Return (TIMELINE, t_ns, mark): what says that a topic has reached an id, for as_of."""
    columns = ("run_id", "topic", one_host(), F.col("end_ns").alias("t_ns"))
    told = F.struct(F.col("last").alias("value"), "process", "op_id").alias("mark")
    given = answers.where(F.col("last").isNotNull() & F.col("topic").isNotNull())
    claimed = claims.select(
        *TIMELINE,
        F.col("end_ns").alias("t_ns"),
        F.struct("value", "process", "op_id").alias("mark"),
    )
    acknowledged = acknowledged_runs(puts).select(*columns, told)
    return acknowledged.unionByName(given.select(*columns, told)).unionByName(claimed)


def _marks(acks: DataFrame, given: DataFrame, claims: DataFrame) -> DataFrame:
    """Return what says that a topic has reached an id (`value`), in its bucket.

    `acks` and `given` have a `bucket`, that of their `last`. Whether an answer stands there as a
    whole or run by run is one: nobody was told of its lower runs at another time.
    """
    columns = (*TIMELINE, "bucket", "value", "end_ns", "process", "op_id")
    heard = given.where(F.col("last").isNotNull() & F.col("topic").isNotNull())
    said = claims.withColumn("bucket", intervals.bucket_of(F.col("value")))
    told = [
        table.withColumn("value", F.col("last")).withColumn("at", one_host()).select(*columns)
        for table in (acks, heard)
    ]
    return told[0].unionByName(told[1]).unionByName(said.select(*columns))


def late_terms_of(tallies: DataFrame, events: DataFrame) -> DataFrame:
    """Return (run_id, term, other_term, earlier, later): a term with an answer to what was sent
    after an answer of a higher one; and the smallest two operations that show it.
    """
    answered = tallies.where(F.col("term").isNotNull() & F.col("answered_ns").isNotNull())
    terms = answered.groupBy("run_id", one_host(), "term").agg(
        F.min("answered_ns").alias("answered_ns"), F.max("sent_ns").alias("sent_ns")
    )
    # A row a term.
    higher = W.partitionBy("run_id", "at").orderBy(F.col("term").desc())
    first = F.min(F.struct("answered_ns", F.col("term").alias("term")))
    doubtful = few(
        terms.withColumn("higher", first.over(higher.rowsBetween(W.unboundedPreceding, -1)))
        .where(F.col("higher.answered_ns") < F.col("sent_ns"))
        .select(
            *TERM,
            F.col("higher.term").alias("other_term"),
            F.col("higher.answered_ns").alias("other_ns"),
        )
    )
    operations = F.col("f").isin(*OPERATIONS)
    ends = events.where((F.col("type") == "ok") & operations).select(
        *KEY, one_host(), "term", "t_ns", "invoke_ns"
    )
    # Only what was sent later, as far as its end repeats when, is looked up.
    sent_later = F.coalesce("invoke_ns", "t_ns") > F.col("other_ns")
    late = settled(ends.join(F.broadcast(doubtful), list(TERM)).where(sent_later))
    invokes = events.where((F.col("type") == "invoke") & operations)
    sent = only(invokes.select(*KEY, F.col("t_ns").alias("sent_ns")), late, KEY)
    proven = settled(
        late.join(sent, list(KEY), "left")  # where its invoke is gone, the end says when
        .where(F.coalesce("sent_ns", "invoke_ns") > F.col("other_ns"))
        .groupBy("run_id", "at", "term", "other_term", "other_ns")
        .agg(F.min(operation()).alias("later"))
    )
    earlier = ends.select(
        "run_id",
        "at",
        F.col("term").alias("other_term"),
        F.col("t_ns").alias("other_ns"),
        operation().alias("earlier"),
    )
    shown = ["run_id", "at", "other_term", "other_ns"]
    return (
        proven.join(only(earlier, proven, shown), shown)
        .groupBy("run_id", "term")
        .agg(F.min(F.struct("other_term", "earlier", "later")).alias("proof"))
        .select("run_id", "term", "proof.*")
    )
