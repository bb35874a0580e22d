"""The tables that all checks share, made from events once. No rule about right and wrong here.

puts           one row a PUT: producer, first and last counter, outcome, first id
gets           one row a GET: subscriber, cursor it asked with, first and last id that came
deliveries     one row a run of a GET's answer: ids `first`..`last`, counter = id + `shift`
subscriptions  one row from the SUB that made it to the UNSUB that (perhaps) ended it
drains         one row a subscriber that reached a topic's tombstone
places         which publication stands under which id, as anyone saw it: acknowledgments and
               deliveries merged into runs, split at buckets. S subscribers of a topic are one
               here, so most checks do not grow with their number
"""

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.window import Window as W

from analytics import intervals
from analytics.schema import KEY, operation

SESSION: Final = ("run_id", "client_id", "topic", "process", "session")
PLACE: Final = ("run_id", "topic", "producer", "shift")


@dataclass(frozen=True, slots=True)
class Tables:
    """The shared tables; the module's docstring says what a row of each is."""

    puts: DataFrame
    gets: DataFrame
    deliveries: DataFrame
    subscriptions: DataFrame
    drains: DataFrame
    places: DataFrame


def build(events: DataFrame, keep: Callable[[str, DataFrame], DataFrame]) -> Tables:
    """Return the tables of `events`. `keep(name, table)` stores one and returns what was stored."""
    puts = keep("puts", puts_of(events))
    answers = keep("answers", answers_of(events))
    deliveries = keep("deliveries", deliveries_of(answers))
    return Tables(
        puts=puts,
        gets=answers.drop("pieces"),
        deliveries=deliveries,
        subscriptions=keep("subscriptions", subscriptions_of(events)),
        drains=keep("drains", drains_of(events)),
        places=keep("places", places_of(puts, deliveries)),
    )


def names() -> tuple[str, ...]:
    """Return the tables' names."""
    return tuple(field.name for field in fields(Tables))


def puts_of(events: DataFrame) -> DataFrame:
    """Return `puts`. An operation without a completion has the outcome `info`."""
    return _operations(events, "put").select(
        *KEY,
        F.col("client_id").alias("producer"),
        "topic",
        "host",
        F.col("counter").alias("first_counter"),
        (F.col("counter") + F.coalesce("count", F.lit(1)) - 1).alias("last_counter"),
        "outcome",
        F.coalesce("first_id", F.lit(0)).alias("first_id"),
        F.coalesce("duplicate", F.lit(False)).alias("duplicate"),
        "invoke_ns",
        "end_ns",
    )


def answers_of(events: DataFrame) -> DataFrame:
    """Return `gets` with the runs of each answer in `pieces` still an array.

    `first`, `last` are null when nothing came; `had_id` is the highest id that the same session
    was given before.
    """
    pieces = F.concat(_good_pieces(), _bad_pieces())
    answers = _operations(events, "get").select(
        *KEY,
        "client_id",
        "topic",
        "session",
        "asked",
        "outcome",
        "invoke_ns",
        pieces.alias("pieces"),
        F.array_min(F.transform(pieces, lambda piece: piece["first"])).alias("first"),
        F.array_max(F.transform(pieces, lambda piece: piece["last"])).alias("last"),
        intervals.bucket_of(F.col("op_id")).alias("bucket"),
    )
    prior = intervals.highest_in_buckets_before(answers, SESSION, F.col("last"))
    had_id = F.greatest(intervals.highest_before(SESSION, "op_id", F.col("last")), "prior")
    return (
        answers.join(prior, [*SESSION, "bucket"], "left")
        .withColumn("had_id", had_id)
        .drop("bucket", "prior")
    )


def deliveries_of(answers: DataFrame) -> DataFrame:
    """Return `deliveries`. `place` counts within the answer; a corrupt payload has a `reason`."""
    return answers.select(
        *KEY,
        "client_id",
        "topic",
        "session",
        "asked",
        "had_id",
        "invoke_ns",
        F.explode("pieces").alias("piece"),
    ).select(*KEY, "client_id", "topic", "session", "asked", "had_id", "invoke_ns", "piece.*")


def subscriptions_of(events: DataFrame) -> DataFrame:
    """Return `subscriptions`. An UNSUB that may have happened ends one; a repeated SUB does not."""
    subs = _operations(events, "sub").where(F.col("outcome") == "ok")
    unsubs = _operations(events, "unsub").where(F.col("outcome") != "fail")
    steps = _steps(subs, is_end=False).unionByName(_steps(unsubs, is_end=True))
    owner = ("run_id", "client_id", "topic")
    # A client's control requests are few, so this window is bounded by its nature.
    before = (
        W.partitionBy(*owner).orderBy("invoke_ns", "op_id").rowsBetween(W.unboundedPreceding, -1)
    )
    ends_before = F.coalesce(F.sum(F.col("is_end").cast("int")).over(before), F.lit(0))
    step = F.struct(
        "invoke_ns", "op_id", operation().alias("made_by"), "start_id", "begun_ns", "host"
    )
    return (
        steps.withColumn("era", ends_before)
        .groupBy(*owner, "era")
        .agg(F.min(F.when(~F.col("is_end"), step)).alias("first"), F.max("is_end").alias("ended"))
        .where(F.col("first").isNotNull())
        .select(*owner, "first.start_id", "first.begun_ns", "first.host", "first.made_by", "ended")
    )


def drains_of(events: DataFrame) -> DataFrame:
    """Return `drains`: (run_id, client_id, topic), once each."""
    drained = (F.col("f") == "phase") & (F.col("phase") == "drained")
    return events.where(drained).select("run_id", "client_id", "topic").distinct()


def places_of(puts: DataFrame, deliveries: DataFrame) -> DataFrame:
    """Return `places`: (run_id, topic, producer, shift, bucket, first, last), ids."""
    return intervals.merged(intervals.split(sightings_of(puts, deliveries)), PLACE)


def sightings_of(puts: DataFrame, deliveries: DataFrame) -> DataFrame:
    """Return every run of ids that an operation saw a producer's publications under, unmerged."""
    columns = (*KEY, "topic", "producer", "shift", "first", "last")
    acknowledged = acknowledged_runs(puts).select(*columns)
    delivered = deliveries.where(F.col("producer").isNotNull()).select(*columns)
    return acknowledged.unionByName(delivered)


def acknowledged_runs(puts: DataFrame) -> DataFrame:
    """Return the PUTs that were acknowledged and stored, with their ids as `first`..`last`."""
    count = F.col("last_counter") - F.col("first_counter") + 1
    return (
        puts.where((F.col("outcome") == "ok") & (F.col("first_id") > 0))
        .withColumn("first", F.col("first_id"))
        .withColumn("last", F.col("first_id") + count - 1)
        .withColumn("shift", F.col("first_counter") - F.col("first_id"))
    )


def counters_of_puts(puts: DataFrame) -> DataFrame:
    """Return the PUTs as runs of counters, split."""
    return intervals.split(
        puts.withColumnsRenamed({"first_counter": "first", "last_counter": "last"})
    )


def counters_of_places(places: DataFrame) -> DataFrame:
    """Return `places` as runs of counters, split at the counters' buckets."""
    return intervals.split(
        places.select(
            *PLACE,
            (F.col("first") + F.col("shift")).alias("first"),
            (F.col("last") + F.col("shift")).alias("last"),
        )
    )


def seen_by(rows: DataFrame, tables: Tables, id_: str, counter: str, name: str) -> DataFrame:
    """Add `name`: the smallest operation that saw the row's publication under the row's id.

    `rows` has run_id, topic, producer and the columns called `id_` and `counter`. For evidence:
    few rows, joined back to the operations only now.
    """
    sightings = intervals.split(sightings_of(tables.puts, tables.deliveries)).select(
        "run_id", "topic", "producer", "shift", "bucket", "first", "last",
        operation().alias("seen"),
    )  # fmt: skip
    keyed = rows.withColumn("bucket", intervals.bucket_of(F.col(id_))).withColumn(
        "shift", F.col(counter) - F.col(id_)
    )
    return (
        keyed.join(sightings, [*PLACE, "bucket"])
        .where(F.col(id_).between(F.col("first"), F.col("last")))
        .groupBy(*rows.columns)
        .agg(F.min("seen").alias(name))
    )


def _operations(events: DataFrame, function: str) -> DataFrame:
    """Pair each invoke with its completion; a side that is missing leaves nulls."""
    rows = events.where(F.col("f") == function)
    invokes = rows.where(F.col("type") == "invoke").select(
        *KEY,
        *(F.col(name).alias(f"invoke_{name}") for name in _BOTH),
        F.col("last_id").alias("asked"),
        F.col("t_ns").alias("invoke_ns"),
    )
    ends = rows.where(F.col("type") != "invoke").select(
        *KEY,
        *(F.col(name).alias(f"end_{name}") for name in _BOTH),
        *("first_id", "last_id", "items", "corrupt", "duplicate"),
        F.col("type").alias("end_type"),
        F.col("t_ns").alias("end_ns"),
    )
    # The completion knows best: a GET of any topic learns only there which one it was.
    both = {name: F.coalesce(f"end_{name}", f"invoke_{name}") for name in _BOTH}
    outcome = F.coalesce("end_type", F.lit("info"))
    return invokes.join(ends, list(KEY), "full").withColumns(both | {"outcome": outcome})


_BOTH: Final = ("client_id", "session", "topic", "host", "counter", "count")


def _steps(operations: DataFrame, is_end: bool) -> DataFrame:
    nothing = F.lit(None).cast("bigint")
    return operations.select(
        *KEY,
        "client_id",
        "topic",
        "host",
        "invoke_ns",
        F.lit(is_end).alias("is_end"),
        (nothing if is_end else F.col("last_id")).alias("start_id"),
        (nothing if is_end else F.col("end_ns")).alias("begun_ns"),
    )


def _good_pieces() -> Column:
    def piece(item: Column, place: Column) -> Column:
        return F.struct(
            item["first_id"].alias("first"),
            (item["first_id"] + item["count"] - 1).alias("last"),
            item["producer"].alias("producer"),
            (item["counter"] - item["first_id"]).alias("shift"),
            place.alias("place"),
            F.lit(None).cast("string").alias("reason"),
        )

    return F.coalesce(F.transform("items", piece), F.array())


def _bad_pieces() -> Column:
    def piece(bad: Column, place: Column) -> Column:
        return F.struct(
            bad["id"].alias("first"),
            bad["id"].alias("last"),
            F.lit(None).cast("string").alias("producer"),
            F.lit(None).cast("bigint").alias("shift"),
            (F.size("items") + place).alias("place"),
            bad["reason"].alias("reason"),
        )

    return F.coalesce(F.transform("corrupt", piece), F.array())
