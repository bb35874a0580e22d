"""What a group's workers were given, and nobody put so."""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from analytics.common import intervals
from analytics.common.schema import evidence, operation
from analytics.common.table_store import few, is_never_any, settled
from analytics.tables import as_of
from analytics.tables.following import known_of
from analytics.tables.groups import ID, every_letter_of, named
from analytics.tables.lives import EVER
from analytics.tables.owed import read_of, without_given
from analytics.tables.runs import (
    counters_of_places,
    first_of,
    has_taken,
    one_host,
    tries_of_puts,
)
from analytics.tables.suspects import OWNER, only
from analytics.tables.tables import Tables

PUBLICATION = ("run_id", "topic", "producer", "counter")
PLACE = ("run_id", "topic", "id")
# What is kept of a life beside its owner and its host.
OF_LIFE = (
    *("begun_ns", "until_ns", "start_id", "passed", "drained_ns", "made_by"),
    *("fresh_ns", "over_ns"),
)


def group_content(tables: Tables) -> DataFrame:
    """Find payloads that do not check out, and publications that no PUT put there by then."""
    if is_never_any(tables.worked):
        return tables.worked.select(*evidence())
    takes = tables.worked.where(
        (F.col("f") == "take") & (F.col("outcome") == "ok") & F.col("group").isNotNull()
    ).select("run_id", "topic", "group", "items", "corrupt", "end_ns", one_host(), _seen())
    bad = takes.withColumn("bad", F.explode("corrupt")).withColumn("id", F.col("bad.id"))
    brought = settled(_brought(takes))
    rows = (
        bad.select(*ID, "seen", F.lit("corrupt").alias("word"))
        .unionByName(_tried(brought, tables))
        .unionByName(_elsewhere(brought, tables))
        .unionByName(_of_workers_alone(brought, tables))
    )
    return (
        rows.groupBy(*ID, "word")
        .agg(F.min("seen").alias("seen"))
        .select(*evidence(**named(F.col("word")), operations=F.array("seen")))
    )


def _of_workers_alone(brought: DataFrame, tables: Tables) -> DataFrame:
    """Find what is wrong with where something stands that has no place but by TAKEs: in the order
    of its producer, of real time, and for who never had it.
    """
    wanted = settled(
        brought.select(*PUBLICATION).distinct()
        .withColumn("bucket", intervals.bucket_of(F.col("counter")))
    )  # fmt: skip
    near = only(tables.places, wanted, PUBLICATION[:3])
    placed = intervals.exploded(
        only(counters_of_places(near), wanted, (*PUBLICATION[:3], "bucket")), "counter"
    )
    alone = few(brought.join(placed.select(*PUBLICATION), list(PUBLICATION), "leftanti"))
    if is_never_any(alone):
        return alone.select(*ID, "seen", F.lit("").alias("word"))
    return (
        _out_of_order(alone, brought, near)
        .unionByName(_behind(alone, tables))
        .unionByName(_lost(alone, tables))
    )


def _out_of_order(alone: DataFrame, brought: DataFrame, near: DataFrame) -> DataFrame:
    """Find those above which a lower counter of their producer stands, or a higher one below."""
    runs = brought.select(
        *PUBLICATION[:3],
        (F.col("counter") - F.col("id")).alias("shift"),
        F.col("id").alias("first"),
        F.col("id").alias("last"),
    ).unionByName(near.select(*PUBLICATION[:3], "shift", "first", "last"))
    others = runs.select(
        *(F.col(name).alias(f"its_{name}") for name in (*PUBLICATION[:3], "shift", "first", "last"))
    )
    same = [F.col(name) == F.col(f"its_{name}") for name in PUBLICATION[:3]]
    own_place = F.col("counter") - F.col("its_shift")  # where the run would have that counter
    lower = F.least("its_last", own_place - 1) > F.greatest("id", F.col("its_first") - 1)
    higher = F.greatest("its_first", own_place + 1) < F.least("id", F.col("its_last") + 1)
    found = alone.join(others, [*same, lower | higher], "leftsemi")
    return found.select(*ID, "seen", F.lit("order").alias("word"))


def _behind(alone: DataFrame, tables: Tables) -> DataFrame:
    """Find those below what their topic was known to have reached before they were first tried."""
    possible = only(tables.puts.where(F.col("outcome") != "fail"), alone, PUBLICATION[:3]).select(
        *PUBLICATION[:3],
        "first_counter",
        "last_counter",
        one_host().alias("put_at"),
        F.coalesce("invoke_ns", F.lit(EVER)).alias("put_ns"),
    )
    tried = (
        alone.join(possible, list(PUBLICATION[:3]))
        .where(F.col("counter").between(F.col("first_counter"), F.col("last_counter")))
        .groupBy(*ID, "seen")
        .agg(
            F.min("put_at").alias("at"),
            F.max("put_at").alias("other_at"),
            F.min("put_ns").alias("t_ns"),
        )
    )
    asks = settled(
        tried.where(F.col("at") == F.col("other_at"))
        .withColumn("known", F.col("id") - 1)
        .drop("other_at")
    )
    timeline = ("run_id", "topic", "at")
    mark = F.struct("value", "process", "op_id").alias("mark")
    claims = tables.doubts.claims.select(*timeline, F.col("end_ns").alias("t_ns"), mark)
    known = known_of(tables.puts, tables.gets, tables.worked).unionByName(claims)
    found = as_of.overtaken(asks, only(known, asks, timeline), timeline)
    return found.select(*ID, "seen", F.lit("behind").alias("word"))


def _lost(alone: DataFrame, tables: Tables) -> DataFrame:
    """Find those that a subscriber was never given who passed their place, or drained."""
    came = alone.select(*ID, "at", "end_ns", "seen")
    rows = came.select(*ID, "seen", "at", F.col("end_ns").alias("told_ns"))
    lives = tables.lives.select(*OWNER, "at", *OF_LIFE).withColumnRenamed("at", "life_at")
    owed = rows.join(F.broadcast(lives), ["run_id", "topic"])
    owed = settled(
        owed.where(F.col("start_id") < F.col("id"))
        .withColumn("known_ns", F.when(F.col("at") == F.col("life_at"), F.col("told_ns")))
        .drop("at", "told_ns")
        .withColumnRenamed("life_at", "at")
    )
    missing = settled(without_given(owed, tables.deliveries))
    found = read_of(missing, F.col("id"), tables.puts, tables.gets, tables.asides)
    word = F.concat(F.lit("lost "), "client_id")
    return found.select(*ID, "seen", word.alias("word"))


def _seen() -> Column:
    return operation().alias("seen")


def _brought(takes: DataFrame) -> DataFrame:
    """Return a row an id and TAKE."""
    runs = takes.withColumn("item", F.explode("items")).select(
        *("run_id", "topic", "group", "end_ns", "at", "seen"),
        F.col("item.producer").alias("producer"),
        (F.col("item.counter") - F.col("item.first_id")).alias("shift"),
        F.col("item.first_id").alias("first"),
        (F.col("item.first_id") + F.col("item.count") - 1).alias("last"),
    )
    singles = intervals.exploded(runs, "id")
    return singles.withColumn("counter", F.col("id") + F.col("shift")).drop("shift")


def _tried(brought: DataFrame, tables: Tables) -> DataFrame:
    """Find what nobody tried to put, what failed, and what was sent later."""
    wanted = settled(
        brought.select(*PUBLICATION).distinct()
        .withColumn("bucket", intervals.bucket_of(F.col("counter")))
    )  # fmt: skip
    ok = F.col("outcome") == "ok"
    own = tries_of_puts(tables.puts)
    nowhere = ok & (F.col("first_id") == 0) & ~F.col("duplicate")
    puts = only(own, wanted, (*PUBLICATION[:3], "bucket")).select(
        *(*PUBLICATION[:3], "bucket", "first", "last", "outcome", one_host(), "invoke_ns", "up"),
        nowhere.alias("is_nowhere"),
        has_taken().alias("has_taken"),
    )
    sent = F.when(F.col("outcome") != "fail", F.coalesce("invoke_ns", F.lit(EVER)))
    tries = (
        wanted.join(puts, [*PUBLICATION[:3], "bucket"])
        .where(F.col("counter").between(F.col("first"), F.col("last")))
        .groupBy(*PUBLICATION)
        .agg(
            F.count_if(F.col("outcome") != "fail").alias("chances"),
            F.count_if("is_nowhere").alias("denials"),
            F.collect_set(F.col("counter") + F.col("up")).alias("placed"),
            F.min(F.when(F.col("outcome") != "fail", F.col("at"))).alias("one_at"),
            F.max(F.when(F.col("outcome") != "fail", F.col("at"))).alias("other_at"),
            first_of(F.col("has_taken"), sent, F.col("up")).alias("sent_ns"),
        )
    )
    here = (F.col("one_at") == F.col("at")) & (F.col("other_at") == F.col("at"))
    is_nowhere = (F.col("denials") > 0) & ~F.array_contains("placed", F.col("id"))
    word = (
        F.when(F.col("chances").isNull(), "phantom")
        .when((F.col("chances") == 0) | is_nowhere, "aborted")
        .when(here & (F.col("sent_ns") > F.col("end_ns")), "future")
    )
    found = brought.join(tries, list(PUBLICATION), "left").withColumn("word", word)
    return found.where(F.col("word").isNotNull()).select(*ID, "seen", "word")


def _elsewhere(brought: DataFrame, tables: Tables) -> DataFrame:
    """Find ids at which something else stands, and publications that stand under another id."""
    own = brought.select(*PUBLICATION, "id").distinct()
    shift = (F.col("counter") - F.col("id")).alias("shift")
    spots = settled(
        own.select(*PUBLICATION, "id", shift).withColumn("bucket", intervals.bucket_of(F.col("id")))
    )
    places = tables.places.select(
        "run_id", "topic", "bucket", "first", "last",
        F.col("producer").alias("its_producer"), F.col("shift").alias("its_shift"),
    )  # fmt: skip
    share = ("run_id", "topic", "bucket")
    at_id = (
        spots.join(only(places, spots, share), list(share))
        .where(F.col("id").between(F.col("first"), F.col("last")))
        .select(
            "run_id", "topic", "id", F.col("its_producer").alias("producer"),
            (F.col("id") + F.col("its_shift")).alias("counter"),
        )
    )  # fmt: skip
    here = at_id.unionByName(own.select(*at_id.columns)).distinct()
    crowded = here.groupBy(*PLACE).agg(F.count(F.lit(1)).alias("standing"))
    letters = every_letter_of(tables.told, tables.worked).select(
        "run_id", F.col("stands_in").alias("topic"), F.col("stands_at").alias("id")
    )
    apart = crowded.where(F.col("standing") > 1).select(*PLACE).unionByName(letters)
    other = brought.join(apart.distinct(), list(PLACE), "leftsemi")
    producers = ("run_id", "topic", "its_producer")
    wanted = own.select(
        *("run_id", "topic", "counter"), F.col("producer").alias("its_producer")
    ).distinct()
    of_producer = (
        wanted.join(only(places, settled(wanted), producers), list(producers))
        .where((F.col("counter") - F.col("its_shift")).between(F.col("first"), F.col("last")))
        .select(
            "run_id", "topic", F.col("its_producer").alias("producer"), "counter",
            (F.col("counter") - F.col("its_shift")).alias("id"),
        )
    )  # fmt: skip
    spread = (
        of_producer.unionByName(own.select(*of_producer.columns))
        .distinct()
        .groupBy(*PUBLICATION)
        .agg(F.count(F.lit(1)).alias("standing"))
    )
    twice = brought.join(spread.where(F.col("standing") > 1), list(PUBLICATION), "leftsemi")
    return other.select(*ID, "seen", F.lit("other").alias("word")).unionByName(
        twice.select(*ID, "seen", F.lit("twice").alias("word"))
    )
