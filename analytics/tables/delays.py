"""What was put with a delay, and what came of it (docs/checks.md, "Delays").

No rule about right and wrong here, no life and no group: anomalies/delayed.py has them.

lanes     one row a PUT to a topic's lane: `topic` is the topic; `delays` null: it does not say them
comings   one row a run that an answer brought: ids `first`..`last`, counter = id + `shift`
moments   (run_id, at, last_ns): when on a host the last operation was begun or ended
"""

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.window import Window as W

from analytics.common import intervals
from analytics.common.schema import KEY, LANE, OPERATIONS, operation
from analytics.common.table_store import none_of
from analytics.tables.lives import EVER
from analytics.tables.runs import first_of, has_taken, one_host
from analytics.tables.times import SURELY, in_ns

ROUNDING_NS: Final = 2_000_000  # the log's time is told in ms, at both ends of a delay
WHOSE: Final = ("run_id", "topic", "producer")
PUBLICATION: Final = (*WHOSE, "counter")


def delays_of(puts: DataFrame, events: DataFrame) -> dict[str, DataFrame]:
    """Return the tables by their names."""
    return {
        "lanes": _lanes_of(puts, events),
        "comings": _comings_of(events),
        "moments": _moments_of(events),
    }


def nothing_delayed(puts: DataFrame, events: DataFrame) -> dict[str, DataFrame]:
    """Return the tables of a run in which nothing was put with a delay, nor came so."""
    return {name: none_of(table) for name, table in delays_of(puts, events).items()}


def _lanes_of(puts: DataFrame, events: DataFrame) -> DataFrame:
    invoked = events.where((F.col("f") == "put") & (F.col("type") == "invoke"))
    said = invoked.where(F.col("delays").isNotNull()).select(*KEY, "delays")
    own = puts.where(F.endswith("topic", F.lit(LANE)) & F.col("first_counter").isNotNull())
    return own.join(said, list(KEY), "left").select(
        *KEY,
        F.regexp_replace("topic", f"{LANE}$", "").alias("topic"),
        *("producer", "first_counter", "last_counter", "outcome", "first_id", "duplicate"),
        *("delays", "end_ns"),
        F.coalesce("invoke_ns", F.lit(EVER)).alias("invoke_ns"),
        one_host(),
    )


def _comings_of(events: DataFrame) -> DataFrame:
    answers = events.where(F.col("f").isin("get", "take") & (F.col("type") == "ok"))
    runs = answers.where(F.col("delayed").isNotNull()).withColumn("item", F.explode("delayed"))
    return runs.select(
        *KEY,
        "topic",
        F.col("item.producer").alias("producer"),
        F.col("item.first_id").alias("first"),
        (F.col("item.first_id") + F.col("item.count") - 1).alias("last"),
        (F.col("item.counter") - F.col("item.first_id")).alias("shift"),
        one_host(),
        F.col("t_ns").alias("end_ns"),
    )


def _moments_of(events: DataFrame) -> DataFrame:
    operations = events.where(F.col("f").isin(*OPERATIONS))
    return operations.groupBy("run_id", one_host()).agg(F.max("t_ns").alias("last_ns"))


def singles_of(comings: DataFrame) -> DataFrame:
    """Return (PUBLICATION, id, at, end_ns, seen): a row an id and answer."""
    runs = comings.select(*WHOSE, "shift", "first", "last", "at", "end_ns", operation("process"))
    named = runs.withColumnRenamed(runs.columns[-1], "seen")
    ids = intervals.exploded(named, "id")
    return ids.withColumn("counter", F.col("id") + F.col("shift")).drop("shift")


def tries_of(lanes: DataFrame) -> DataFrame:
    """Return a row a counter and PUT: PUBLICATION, `place` (null: nobody was told one), the least
    and the most ms that it says of the counter, and the columns of the PUT.
    """
    is_placed = (F.col("outcome") == "ok") & (F.col("first_id") > 0)
    runs = lanes.withColumn("up", F.when(is_placed, F.col("first_id") - F.col("first_counter")))
    runs = runs.withColumnsRenamed({"first_counter": "first", "last_counter": "last"})
    each = intervals.exploded(runs, "counter")
    own = F.filter("delays", lambda run: F.col("counter").between(run[0], run[1]))
    ms = F.transform(own, lambda run: run[2])
    return each.select(
        *PUBLICATION,
        *KEY[1:],
        *("outcome", "first_id", "duplicate", "invoke_ns", "end_ns", "at"),
        (F.col("counter") + F.col("up")).alias("place"),
        F.array_min(ms).alias("least_ms"),
        F.array_max(ms).alias("most_ms"),
    )


def _up() -> Column:
    return F.col("place") - F.col("counter")


def first_tries_of(tries: DataFrame) -> DataFrame:
    """Return (PUBLICATION, at, sent_ns): where and when each was first tried, of the tries that may
    have succeeded; and `due_ns`: behind which moment it came, as far as its delay is known. Those
    that were tried on two hosts go.
    """
    known = tries.where(F.col("outcome") != "fail").groupBy(*PUBLICATION).agg(
        F.min("at").alias("at"),
        F.max("at").alias("other_at"),
        first_of(has_taken(), F.col("invoke_ns"), _up()).alias("sent_ns"),
        F.min("least_ms").alias("least_ms"),
        F.max("most_ms").alias("most_ms"),
    )  # fmt: skip
    is_known = (F.col("least_ms") == F.col("most_ms")) & (F.col("sent_ns") != EVER)
    least = F.greatest(in_ns(F.col("least_ms"), SURELY) - ROUNDING_NS, F.lit(0))
    due = F.col("sent_ns") + F.coalesce(F.when(is_known, least), F.lit(0))
    here = known.where(F.col("at") == F.col("other_at"))
    return here.select(*PUBLICATION, "at", "sent_ns", due.alias("due_ns"))


def publications_of(tries: DataFrame, came: DataFrame) -> DataFrame:
    """Return what is known of each: PUBLICATION and

    `put` (null: nobody tried it), `chances`: how many tries may have succeeded, `at` and `sent_ns`:
    where and when it was first tried (null: on two hosts, or by none), `ms` (null: not known),
    `place`, `is_nowhere`, `is_stored` (if somebody subscribed), `ids` under which it came, in
    order (null: it did not), `seen`, and `behind`: the lowest id of what it is ahead of.
    """
    chance = F.col("outcome") != "fail"
    ok = F.col("outcome") == "ok"
    nowhere = ok & (F.col("first_id") == 0) & ~F.col("duplicate")
    known = tries.groupBy(*PUBLICATION).agg(
        F.min(operation()).alias("put"),
        F.count_if(chance).alias("chances"),
        F.min(F.when(chance, F.col("at"))).alias("one_at"),
        F.max(F.when(chance, F.col("at"))).alias("other_at"),
        first_of(has_taken(), F.when(chance, F.col("invoke_ns")), _up()).alias("tried_ns"),
        F.min(F.when(chance, F.col("least_ms"))).alias("least_ms"),
        F.max(F.when(chance, F.col("most_ms"))).alias("most_ms"),
        F.min("place").alias("place"),
        F.max(nowhere).alias("is_nowhere"),
        F.max(ok).alias("is_told"),
    )
    brought = came.groupBy(*PUBLICATION).agg(
        F.array_sort(F.collect_set("id")).alias("ids"), F.min("seen").alias("seen")
    )
    here = F.col("one_at") == F.col("other_at")
    both = known.join(brought, list(PUBLICATION), "full").select(
        *PUBLICATION,
        *("put", "place", "is_told", "ids", "seen"),
        F.coalesce("is_nowhere", F.lit(False)).alias("is_nowhere"),
        F.coalesce("chances", F.lit(0)).alias("chances"),
        F.when(here, F.col("one_at")).alias("at"),
        F.when(here, F.col("tried_ns")).alias("sent_ns"),
        F.when(F.col("least_ms") == F.col("most_ms"), F.col("least_ms")).alias("ms"),
        F.col("ids")[0].alias("id"),
    )
    told = both.where(F.coalesce("is_told", F.lit(False)) | F.col("ids").isNotNull())
    taken = told.groupBy(*WHOSE).agg(F.max("counter").alias("taken"))
    is_taken = F.coalesce(F.col("counter") <= F.col("taken"), F.lit(False))
    named = both.join(taken, list(WHOSE), "left").withColumn(
        "is_stored", is_taken & (F.col("chances") > 0) & ~F.col("is_nowhere")
    )
    ranged = _ranged(named)
    by_place = _following(ranged, ("run_id", "topic"), "place")
    by_counter = _following(ranged, WHOSE, "counter")
    return (
        named.join(by_place, list(PUBLICATION), "left")
        .join(by_counter, list(PUBLICATION), "left")
        .withColumn("behind", F.least("by_place", "by_counter"))
        .drop("taken", "is_told", "by_place", "by_counter")
    )


def _ranged(rows: DataFrame) -> DataFrame:
    """Return the rows whose delay is known, each in several `span`s of the delays of its topic.

    Of those, in order, a span of level n has 2 ** n that follow each other. A row stands (`id`) in
    the spans that hold its own delay, one a level, and it `asks` in its own and those few others
    that together hold all longer ones. Where a topic has one delay, that is one span.
    """
    known = rows.where(F.col("ms").isNotNull())
    of_topic = W.partitionBy("run_id", "topic")
    delays = known.select("run_id", "topic", "ms").distinct()
    ranks = delays.select(
        *("run_id", "topic", "ms"),
        (F.row_number().over(of_topic.orderBy("ms")) - 1).alias("rank"),
        F.ceil(F.log2(F.count(F.lit(1)).over(of_topic))).cast("int").alias("levels"),
    )

    def at(level: Column) -> Column:
        return F.call_function("shiftright", F.col("rank"), level)

    def span(level: Column, number: Column, stands: bool, asks: bool) -> Column:
        fields = {"level": level, "number": number, "stands": F.lit(stands), "asks": F.lit(asks)}
        return F.struct(*(value.alias(name) for name, value in fields.items()))

    own = F.array(span(F.lit(0), F.col("rank"), stands=True, asks=True))
    levels = F.sequence(F.lit(0), F.col("levels"))
    wider = F.filter(levels, lambda level: level > 0)
    above = F.filter(levels, lambda level: (level < F.col("levels")) & (at(level) % 2 == 0))
    spans = F.concat(
        own,
        F.transform(wider, lambda level: span(level, at(level), stands=True, asks=False)),
        F.transform(above, lambda level: span(level, at(level) + 1, stands=False, asks=True)),
    )
    each = known.join(ranks, ["run_id", "topic", "ms"]).withColumn("one", F.explode(spans))
    return each.withColumns(
        {
            "span": F.struct("one.level", "one.number"),
            "asks": F.col("one.asks"),
            "id": F.when(F.col("one.stands"), F.col("id")),
        }
    )


def _following(ranged: DataFrame, whose: tuple[str, ...], place: str) -> DataFrame:
    """Return (PUBLICATION, `by_<place>`): the lowest id of those with a higher place, and a delay
    that is as long. Its windows stay inside a bucket of places, or run over one row a bucket.
    """
    keys = (*whose, "span")
    ordered = ranged.where(F.col(place).isNotNull()).select(
        *dict.fromkeys((*PUBLICATION, *keys)),
        *("id", "asks"),
        (-F.col(place)).alias("order"),
        (-intervals.bucket_of(F.col(place))).alias("bucket"),
    )
    higher = W.partitionBy(*keys, "bucket").orderBy("order").rangeBetween(W.unboundedPreceding, -1)
    before = W.partitionBy(*keys).orderBy("bucket").rowsBetween(W.unboundedPreceding, -1)
    lowest = ordered.groupBy(*keys, "bucket").agg(F.min("id").alias("lowest"))
    beyond = lowest.select(*keys, "bucket", F.min("lowest").over(before).alias("beyond"))
    return (
        ordered.withColumn("inside", F.min("id").over(higher))
        .where("asks")
        .join(beyond, [*keys, "bucket"], "left")
        .groupBy(*PUBLICATION)
        .agg(F.min(F.least("inside", "beyond")).alias(f"by_{place}"))
    )


def known_ns(rows: DataFrame, came: DataFrame, id_: Column) -> DataFrame:
    """Add `known_ns`: when an answer that brought something delayed under an id had ended first, on
    the row's host `at`; null: none had.
    """
    first = came.groupBy("run_id", "topic", "at", F.col("id").alias("known_id")).agg(
        F.min("end_ns").alias("known_ns")
    )
    keyed = rows.withColumn("known_id", id_)
    joined = keyed.join(first, ["run_id", "topic", "at", "known_id"], "left")
    return joined.select(*rows.columns, "known_ns")
