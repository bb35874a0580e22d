"""The tables that all checks share, made from events once. No rule about right and wrong here.

puts           one row a PUT: producer, first and last counter, outcome, first id
gets           one row a GET: subscriber, cursor it asked with, first and last id that came
deliveries     one row a run of a GET's answer: ids `first`..`last`, counter = id + `shift`
controls       one row a SUB or UNSUB, with what the broker said of the cursor
subscriptions  one row from the SUB that made it to the UNSUB that (perhaps) ended it
drains         one row a subscriber that reached a topic's tombstone
leaders        one row a (term, node) that answered as the leader of the term, first operation
truth, nodes   what stood on the nodes' disks at the end, and which nodes there were (truth.py)
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
from analytics.schema import DIGEST_DIGITS, KEY, operation
from analytics.truth import Truth

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
    controls: DataFrame
    leaders: DataFrame
    truth: DataFrame
    nodes: DataFrame


def build(events: DataFrame, truth: Truth, keep: Callable[[str, DataFrame], DataFrame]) -> Tables:
    """Return the tables of a run. `keep(name, table)` stores one and returns what was stored."""
    puts = keep("puts", puts_of(events))
    controls = keep("controls", controls_of(events))
    answers = keep("answers", answers_of(events))
    deliveries = keep("deliveries", deliveries_of(answers))
    return Tables(
        puts=puts,
        gets=answers.drop("pieces"),
        deliveries=deliveries,
        subscriptions=keep("subscriptions", subscriptions_of(controls)),
        drains=keep("drains", drains_of(events)),
        places=keep("places", places_of(puts, deliveries)),
        controls=controls,
        leaders=keep("leaders", leaders_of(events)),
        truth=keep("truth", truth.rows.where(~F.col("malformed")).drop("malformed")),
        nodes=keep("nodes", truth.nodes),
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
        "epoch",
        F.col("counter").alias("first_counter"),
        (F.col("counter") + F.coalesce("count", F.lit(1)) - 1).alias("last_counter"),
        "outcome",
        F.coalesce("first_id", F.lit(0)).alias("first_id"),
        F.coalesce("duplicate", F.lit(False)).alias("duplicate"),
        "invoke_ns",
        "end_ns",
        "digests",
    )


def answers_of(events: DataFrame) -> DataFrame:
    """Return `gets` with the runs of each answer in `pieces` still an array.

    `first`, `last` are null when nothing came; `sent_id` then says from where on the broker sent
    what the client had by then, null if it sent nothing. `had_id` is the highest id that the same
    session was given before, `told_id` the highest cursor that it had an answer to. `digests`: it
    was recorded by an application, whose publications do not say who put them: its runs have no
    producer.
    """
    pieces = F.concat(_good_pieces(), _bad_pieces(), _nameless_pieces())
    answers = _operations(events, "get").select(
        *KEY,
        "client_id",
        "topic",
        "session",
        "host",
        "epoch",
        "asked",
        F.col("first_id").alias("sent_id"),
        "outcome",
        "invoke_ns",
        "end_ns",
        "digests",
        pieces.alias("pieces"),
        F.array_min(F.transform(pieces, lambda piece: piece["first"])).alias("first"),
        F.array_max(F.transform(pieces, lambda piece: piece["last"])).alias("last"),
        intervals.bucket_of(F.col("op_id")).alias("bucket"),
    )
    highest = {"had_id": F.col("last"), "told_id": F.when(F.col("outcome") == "ok", F.col("asked"))}
    priors = {f"prior_{name}": value for name, value in highest.items()}
    before = {
        name: F.greatest(intervals.highest_before(SESSION, "op_id", value), f"prior_{name}")
        for name, value in highest.items()
    }
    lower = intervals.highest_in_buckets_before(answers, SESSION, **priors)
    joined = answers.join(lower, [*SESSION, "bucket"], "left")
    return joined.withColumns(before).drop("bucket", *priors)


def deliveries_of(answers: DataFrame) -> DataFrame:
    """Return `deliveries`. `place` counts within the answer; a corrupt payload has a `reason`.

    `is_nameless`: recorded by an application.
    """
    return (
        answers.select(
            *KEY,
            "client_id",
            "topic",
            "session",
            "host",
            "asked",
            "had_id",
            "invoke_ns",
            "end_ns",
            F.col("digests").isNotNull().alias("is_nameless"),
            F.explode("pieces").alias("piece"),
        )
        .select("*", "piece.*")
        .drop("piece")
    )


def controls_of(events: DataFrame) -> DataFrame:
    """Return `controls`. `start_id`: only later ids come; `cursor`: where the broker has it."""
    columns = ("client_id", "session", "topic", "host", "epoch", "outcome", "invoke_ns", "end_ns")
    answered = (F.col("last_id").alias("start_id"), "resumed", "cursor")
    made = [
        _operations(events, f).select(*KEY, F.lit(f).alias("f"), *columns, *answered)
        for f in ("sub", "unsub")
    ]
    return made[0].unionByName(made[1])


def subscriptions_of(controls: DataFrame) -> DataFrame:
    """Return `subscriptions`. An UNSUB that may have happened ends one; a repeated SUB does not."""
    subs = controls.where((F.col("f") == "sub") & (F.col("outcome") == "ok"))
    unsubs = controls.where((F.col("f") == "unsub") & (F.col("outcome") != "fail"))
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


def leaders_of(events: DataFrame) -> DataFrame:
    """Return `leaders`: (run_id, term, node, seen), `seen` the smallest operation it answered.

    An acknowledgment bears the name and the term of the node that made it, which it makes while it
    leads; a refusal may come from any node, and name whom that one takes for the leader.
    """
    return (
        events.where((F.col("type") == "ok") & F.col("node").isNotNull())
        .where(F.col("f").isin("put", "get", "sub", "unsub") & F.col("term").isNotNull())
        .groupBy("run_id", "term", "node")
        .agg(F.min(operation()).alias("seen"))
    )


def places_of(puts: DataFrame, deliveries: DataFrame) -> DataFrame:
    """Return `places`: (run_id, topic, producer, shift, bucket, first, last), ids."""
    return intervals.merged(intervals.split(sightings_of(puts, deliveries)), PLACE)


def sightings_of(puts: DataFrame, deliveries: DataFrame) -> DataFrame:
    """Return every run of ids that an operation saw a producer's publications under, unmerged."""
    columns = (*KEY, "topic", "producer", "shift", "first", "last")
    acknowledged = acknowledged_runs(puts).select(*columns)
    delivered = deliveries.where(F.col("producer").isNotNull()).select(*columns)
    return acknowledged.unionByName(delivered)


def contents_of(puts: DataFrame, gets: DataFrame) -> DataFrame:
    """Return (run_id, process, op_id, topic, id, digest): what applications saw under which id.

    A row a publication and sighting: digests can't be folded into runs.
    """
    acknowledged = acknowledged_runs(puts).where(F.col("digests").isNotNull())
    delivered = gets.where(F.col("digests").isNotNull())
    columns = (*KEY, "topic", "first", "digests")
    each = F.regexp_extract_all("digests", F.lit(f".{{{DIGEST_DIGITS}}}"), F.lit(0))
    return (
        acknowledged.select(*columns)
        .unionByName(delivered.select(*columns))
        .select(*KEY, "topic", "first", F.posexplode(each).alias("place", "digest"))
        .select(*KEY, "topic", (F.col("first") + F.col("place")).alias("id"), "digest")
    )


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


def one_host() -> Column:
    """Return the row's host as `at`, for keys of what compares clocks: unknown is one host too."""
    return F.coalesce("host", F.lit("")).alias("at")


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
        "epoch",
        F.col("last_id").alias("asked"),
        F.col("t_ns").alias("invoke_ns"),
    )
    ends = rows.where(F.col("type") != "invoke").select(
        *KEY,
        *(F.col(name).alias(f"end_{name}") for name in _BOTH),
        *("first_id", "last_id", "items", "corrupt", "duplicate", "resumed", "cursor"),
        F.col("type").alias("end_type"),
        F.col("t_ns").alias("end_ns"),
    )
    # The completion knows best: a GET of any topic learns only there which one it was.
    both = {name: F.coalesce(f"end_{name}", f"invoke_{name}") for name in _BOTH}
    outcome = F.coalesce("end_type", F.lit("info"))
    asked = F.coalesce("asked", "cursor")
    together = both | {"outcome": outcome, "asked": asked}
    return invokes.join(ends, list(KEY), "full").withColumns(together)


_BOTH: Final = ("client_id", "session", "topic", "host", "counter", "count", "digests")


def _steps(operations: DataFrame, is_end: bool) -> DataFrame:
    nothing = F.lit(None).cast("bigint")
    return operations.select(
        *KEY,
        "client_id",
        "topic",
        "host",
        "invoke_ns",
        F.lit(is_end).alias("is_end"),
        (nothing if is_end else F.col("start_id")).alias("start_id"),
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


def _nameless_pieces() -> Column:
    piece = F.struct(
        F.col("first_id").alias("first"),
        F.col("last_id").alias("last"),
        F.lit(None).cast("string").alias("producer"),
        F.lit(None).cast("bigint").alias("shift"),
        F.lit(0).alias("place"),
        F.lit(None).cast("string").alias("reason"),
    )
    return F.when(F.col("digests").isNotNull(), F.array(piece)).otherwise(F.array())
