"""What was put with a delay, and came otherwise than it was put, or not to who was owed it."""

from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from analytics.common import intervals
from analytics.common.schema import DIGEST_DIGITS, KEY, LANE, evidence, operation
from analytics.common.table_store import is_never_any, settled
from analytics.tables.delays import (
    PUBLICATION,
    ROUNDING_NS,
    known_ns,
    publications_of,
    singles_of,
    tries_of,
)
from analytics.tables.group_standing import controls_of, standing
from analytics.tables.lives import EVER, FOREVER, may_have_had
from analytics.tables.owed import came_of, read_of, without_given
from analytics.tables.runs import LETTER
from analytics.tables.suspects import OWNER, TIMELINE, TOPIC_BUCKET, only
from analytics.tables.tables import Tables, with_application
from analytics.tables.times import SURELY, in_ns

TOPIC = ("run_id", "topic")
ID = (*TOPIC, "id")
# What is kept of a life beside its owner and its host.
OF_LIFE = (
    *("begun_ns", "until_ns", "start_id", "passed", "drained_ns", "made_by"),
    *("fresh_ns", "over_ns"),
)


def delayed(tables: Tables) -> DataFrame:
    """Find what contradicts the delays that PUTs asked for, and what was owed and did not come."""
    if is_never_any(tables.lanes) and is_never_any(tables.comings):
        return tables.lanes.select(*evidence())
    came = settled(singles_of(tables.comings))
    tries = settled(tries_of(tables.lanes))
    known = settled(publications_of(tries, came))
    return (
        _as_it_came(came, known)
        .unionByName(_twice(known))
        .unionByName(_out_of_order(known))
        .unionByName(_crowded(came, tables))
        .unionByName(_other_properties(came, tries, tables))
        .unionByName(_not_given(came, tables))
        .unionByName(_passed_over(came, known, tables))
        .unionByName(_unstored(tables))
    )


def _row(detail: str | Column, *operations: str, **fields: str) -> list[Column]:
    """Return the columns of evidence; `fields` are beside topic, producer and counter."""
    return evidence(
        run_id=F.col("run_id"),
        topic=F.col("topic"),
        producer=F.col("producer"),
        counter=F.col("counter"),
        detail=F.lit(detail) if isinstance(detail, str) else detail,
        operations=F.array_compact(F.array(*operations)),
        **{name: F.col(column) for name, column in fields.items()},
    )


def _as_it_came(came: DataFrame, known: DataFrame) -> DataFrame:
    """Find what came as nobody put it, before it was put, or before it was due."""
    columns = ("put", "chances", "is_nowhere", "ms", "sent_ns", F.col("at").alias("tried_at"))
    both = came.join(known.select(*PUBLICATION, *columns), list(PUBLICATION))
    is_here = (F.col("tried_at") == F.col("at")) & (F.col("sent_ns") != EVER)
    passed = F.when(is_here, F.col("end_ns") - F.col("sent_ns"))
    least = in_ns(F.col("ms"), SURELY) - ROUNDING_NS
    failed = (F.col("chances") == 0) | F.col("is_nowhere")
    of_tries = F.when(F.col("put").isNull(), "phantom").when(failed, "aborted")
    of_time = F.when(passed < 0, "future").when(passed < least, "early")
    words = F.array_compact(F.array(of_tries, of_time))
    return (
        both.withColumn("word", F.explode(words))
        .groupBy(*PUBLICATION, "id", "word")
        .agg(F.min("put").alias("put"), F.min("seen").alias("seen"))
        .select(*_row(F.col("word"), "put", "seen", id="id"))
    )


def _twice(known: DataFrame) -> DataFrame:
    rows = known.where(F.size("ids") > 1).withColumn("other", F.col("ids")[1])
    return rows.select(*_row("twice", "seen", id="id", other_id="other"))


def _out_of_order(known: DataFrame) -> DataFrame:
    return known.where(F.col("behind") < F.col("id")).select(
        *_row("order", "seen", id="id", other_id="behind")
    )


def _crowded(came: DataFrame, tables: Tables) -> DataFrame:
    """Find the ids under which something delayed came, and something else stands."""
    ids = settled(came.groupBy(*ID).agg(F.min("seen").alias("seen")))
    keyed = ids.withColumn("bucket", intervals.bucket_of(F.col("id")))
    nothing = F.lit(None).cast("string").alias("producer"), F.lit(None).cast("bigint")
    letters = tables.told.select(*TOPIC, F.explode("letters").alias("letter"))
    buried = tables.worked.where((F.col("f") == "take") & (F.col("outcome") == "ok"))
    letters = letters.unionByName(buried.select(*TOPIC, F.explode("letters").alias("letter")))
    stands = (
        keyed.join(only(tables.places, keyed, TOPIC_BUCKET), list(TOPIC_BUCKET))
        .where(F.col("id").between(F.col("first"), F.col("last")))
        .select(*ID, "producer", (F.col("id") + F.col("shift")).alias("counter"))
    )
    items = buried.select(*TOPIC, F.explode("items").alias("item")).select(
        *TOPIC,
        F.col("item.producer").alias("producer"),
        F.col("item.first_id").alias("first"),
        (F.col("item.first_id") + F.col("item.count") - 1).alias("last"),
        (F.col("item.counter") - F.col("item.first_id")).alias("shift"),
    )
    worked = intervals.exploded(items, "id").select(
        *ID, "producer", (F.col("id") + F.col("shift")).alias("counter")
    )
    dead = letters.select(*TOPIC, F.col("letter.id").alias("id"), *nothing[:1], nothing[1])
    others = stands.unionByName(worked).unionByName(dead.toDF(*stands.columns)).distinct()
    own = came.select(*ID, "producer", "counter").distinct()
    both = own.withColumn("is_own", F.lit(True)).unionByName(
        others.join(ids.select(*ID), list(ID), "leftsemi").withColumn("is_own", F.lit(False))
    )
    crowded = both.groupBy(*ID).agg(F.count(F.lit(1)).alias("standing"))
    return (
        crowded.where(F.col("standing") > 1)
        .join(ids, list(ID))
        .withColumns({"producer": F.lit(None), "counter": F.lit(None)})
        .select(*_row("other", "seen", id="id"))
    )


def _other_properties(came: DataFrame, tries: DataFrame, tables: Tables) -> DataFrame:
    """Find what came with another key or other headers than it was put with."""
    marks = tables.told.where((F.col("f") == "put") & F.endswith("topic", F.lit(LANE))).select(
        *KEY, F.posexplode("marked").alias("at_place", "place"), "properties"
    )
    if is_never_any(marks):
        return tries.select(*evidence())
    put_with = (
        tries.join(marks.withColumn("digest", _digest(F.col("at_place"))), [*KEY, "place"])
        .groupBy(*PUBLICATION)
        .agg(F.collect_set("digest").alias("put_with"))
    )
    own = settled(came.join(put_with, list(PUBLICATION)))
    said = tables.told.where((F.col("f") == "get") & F.col("times").isNotNull()).select(
        *TOPIC, "marked", "properties", F.explode("times").alias("run")
    )
    runs = intervals.split(
        said.withColumns({"first": F.col("run")[0], "last": F.col("run")[1]}).drop("run")
    )
    place = F.array_position(F.coalesce("marked", F.array().cast("array<bigint>")), F.col("id"))
    digest = F.when(place > 0, _digest(place - 1)).otherwise("")
    return (
        own.withColumn("bucket", intervals.bucket_of(F.col("id")))
        .join(only(runs, own, TOPIC), list(TOPIC_BUCKET))
        .where(F.col("id").between(F.col("first"), F.col("last")))
        .where(~F.array_contains("put_with", digest))
        .groupBy(*PUBLICATION, "id")
        .agg(F.min("seen").alias("seen"))
        .select(*_row("content", "seen", id="id"))
    )


def _digest(place: Column) -> Column:
    begin = place.cast("int") * DIGEST_DIGITS + 1
    return F.substring("properties", begin, F.lit(DIGEST_DIGITS))


# --- what is owed ---------------------------------------------------------------------------------


def _not_given(came: DataFrame, tables: Tables) -> DataFrame:
    """Find what came to somebody, and not to who passed its id, or drained."""
    ids = came.groupBy(*PUBLICATION, "id").agg(F.min("seen").alias("seen"))
    lives = tables.lives.select(*OWNER, "at", *OF_LIFE)
    rows = ids.join(F.broadcast(lives), list(TOPIC)).where(F.col("start_id") < F.col("id"))
    missing = settled(without_given(settled(rows), tables.deliveries))
    return _lost(known_ns(missing, came, F.col("id")), F.col("id"), tables, id="id")


def _passed_over(came: DataFrame, known: DataFrame, tables: Tables) -> DataFrame:
    """Find what came to nobody, though what it is ahead of came to who stood all the time."""
    wanted = known.where(F.col("ids").isNull() & F.col("is_stored") & F.col("behind").isNotNull())
    rows = settled(known_ns(_standing_since(wanted, tables), came, F.col("behind")))
    is_known = (F.col("until_ns") == FOREVER) | (F.col("known_ns") < F.col("until_ns"))
    return _lost(rows.where(is_known), F.col("behind"), tables)


def _lost(rows: DataFrame, id_: Column, tables: Tables, **fields: str) -> DataFrame:
    """Return the evidence of those rows whose life has passed an id, or drained, and the id was
    known by then.
    """
    if is_never_any(rows):
        return rows.select(*evidence())
    found = read_of(rows, id_, tables.puts, tables.gets, tables.asides)
    keys = [*PUBLICATION, "client_id", *fields.values()]
    return (
        found.groupBy(*keys)
        .agg(F.min("seen").alias("seen"), F.min("made_by").alias("made_by"))
        .select(*_row("lost", "seen", "made_by", client_id="client_id", **fields))
    )


def _standing_since(rows: DataFrame, tables: Tables) -> DataFrame:
    """Return (row, life) of the lives that stood when a row's publication was first tried, and to
    which it can't have come nameless.
    """
    lives = tables.lives.select(*OWNER, "at", *OF_LIFE)
    stood = F.col("sent_ns").between(F.col("begun_ns") + 1, F.col("until_ns") - 1)
    pairs = rows.join(F.broadcast(lives), list(TIMELINE)).where(stood)
    if is_never_any(pairs):
        return pairs
    is_corrupt = F.col("reason").isNotNull() & (F.col("reason") != LETTER)
    unclear = tables.deliveries.where(is_corrupt | F.col("tells_of_purge"))
    came = settled(came_of(unclear).drop("first", "last").distinct())
    came = came.withColumnsRenamed({name: f"its_{name}" for name in OWNER})
    same = [F.col(name) == F.col(f"its_{name}") for name in OWNER]
    is_before = (F.col("came_at") == F.col("at")) & (F.col("came_ns") < F.col("sent_ns"))
    is_before = F.coalesce(is_before, F.lit(False))
    return pairs.join(came, [*same, may_have_had() & ~is_before], "leftanti")


def _unstored(tables: Tables) -> DataFrame:
    """Find what was answered "nobody subscribes" though somebody did."""
    refused = (F.col("outcome") == "ok") & (F.col("first_id") == 0) & ~F.col("duplicate")
    puts = settled(tables.lanes.where(refused).withColumn("put", operation()))
    if is_never_any(puts):
        return puts.withColumn("counter", F.lit(0)).select(*_row("unstored", "put"))
    stood = (F.col("begun_ns") < F.col("invoke_ns")) & (F.col("end_ns") < F.col("until_ns"))
    lives = tables.lives.select(*OWNER, "at", *OF_LIFE)
    by_lives = puts.join(F.broadcast(lives), list(TIMELINE)).where(stood)
    ours = with_application(puts, tables).where(~F.col("is_application"))
    by_groups = standing(
        ours.select(
            *TIMELINE, "producer", "first_counter", "last_counter", "invoke_ns", "end_ns", "put"
        ),
        controls_of(tables.worked),
        TOPIC,
    ).withColumnsRenamed({"group": "client_id", "made": "made_by"})
    columns = (*OWNER, "producer", "first_counter", "last_counter", "put", "made_by")
    return (
        by_lives.select(*columns)
        .unionByName(by_groups.select(*columns))
        .withColumn("counter", F.explode(F.sequence("first_counter", "last_counter")))
        .groupBy(*OWNER, "producer", "counter")
        .agg(F.min("put").alias("put"), F.min("made_by").alias("made_by"))
        .select(*_row("unstored", "put", "made_by", client_id="client_id"))
    )


# --- what may still wait --------------------------------------------------------------------------


def waiting_count(tables: Tables) -> int:
    """Return of how many that were due nobody saw that they came to everybody."""
    if is_never_any(tables.lanes):
        return 0
    came = settled(singles_of(tables.comings))
    known = publications_of(tries_of(tables.lanes), came)
    stored = known.where("is_stored").join(tables.moments, ["run_id", "at"])
    passed = F.col("last_ns") - F.col("sent_ns")
    is_due = F.col("ms").isNull() | (passed > in_ns(F.col("ms"), SURELY))
    due = settled(stored.where(is_due))
    lasting = settled(_standing_since(due, tables).where(F.col("until_ns") == FOREVER))
    given = lasting.where(F.col("ids").isNotNull()).withColumn("id", F.explode("ids"))
    others = (
        without_given(given, tables.deliveries)
        .groupBy(*PUBLICATION, "client_id")
        .agg(F.count(F.lit(1)).alias("missing"), F.first(F.size("ids")).alias("all"))
    )
    waiting = [
        lasting.where(F.col("ids").isNull()).select(*PUBLICATION),
        others.where(F.col("missing") == F.col("all")).select(*PUBLICATION),
        _unworked(due.where(F.col("ids").isNull()), tables).select(*PUBLICATION),
    ]
    return reduce(DataFrame.unionByName, waiting).distinct().count()


def _unworked(due: DataFrame, tables: Tables) -> DataFrame:
    """Return the rows whose topic has a group that stood when they were tried, and has no end."""
    controls = controls_of(tables.worked)
    ended = controls.where(F.col("f") == "ungroup").select(*TOPIC, "group")
    made = controls.where((F.col("f") == "group") & (F.col("outcome") == "ok"))
    lasting = made.join(ended, [*TOPIC, "group"], "leftanti")
    since = lasting.groupBy(*TIMELINE).agg(F.min("end_ns").alias("made_ns"))
    stood = due.join(F.broadcast(since), list(TIMELINE))
    return stood.where(F.col("made_ns") < F.col("sent_ns"))
