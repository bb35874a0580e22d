"""A publication that a subscriber was owed and never got."""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.window import Window as W

from analytics.common import intervals
from analytics.common.schema import evidence, operation
from analytics.common.table_store import few, is_never_any, settled
from analytics.tables.group_standing import lasting, unstored_of
from analytics.tables.lives import EVER, FOREVER
from analytics.tables.owed import is_passed, with_cut
from analytics.tables.runs import LETTER, one_host
from analytics.tables.suspects import TOPIC_BUCKET, only
from analytics.tables.tables import Tables, seen_by

OWNER = ("run_id", "topic", "client_id")
PRODUCER = ("run_id", "topic", "producer")
TIMELINE = ("run_id", "topic", "at")


def lost(tables: Tables) -> DataFrame:
    """Find what was stored while a life stood, and never given to it.

    By a place that is known, above the life's start: below what the life has passed, or a node has
    collected (`prefix`: nothing came before, `middle`), or above, once it has drained (`tail`); or
    at or below the start (`start`). Without a place, but known to be taken, and stored: `unplaced`.
    `unstored`: a PUT was answered "nobody subscribes" although this life stood. `unhanded`: a GET
    brought it, its library has never handed it over, and the cursor has passed it: a run of ids, up
    to `other_id`.
    """
    return (
        _undelivered(tables)
        .unionByName(_below_start(tables))
        .unionByName(_unplaced(tables))
        .unionByName(_unstored(tables))
        .unionByName(_unhanded(tables))
    )


def _undelivered(tables: Tables) -> DataFrame:
    cleared = lasting(tables.cleared, tables).select(*tables.missing.columns)
    passed = tables.missing.where(is_passed()).unionByName(cleared)
    tails = tables.tails.where(F.col("known_ns") < F.col("cut_ns"))
    own = [*OWNER, "at", "begun_ns", "id"]
    tails = tails.join(cleared.select(*own), own, "leftanti")
    word = F.when(F.col("lowest") < F.col("id"), "middle").otherwise("prefix")
    columns = (*OWNER, "bucket", "id", "made_by")
    rows = (
        _with_lowest(passed, tables)
        .select(*columns, word.alias("detail"))
        .unionByName(tails.select(*columns, F.lit("tail").alias("detail")))
    )
    standing = only(tables.places, rows, TOPIC_BUCKET)
    named = (
        rows.join(standing, list(TOPIC_BUCKET))
        .where(F.col("id").between(F.col("first"), F.col("last")))
        .groupBy(
            *OWNER, "id", "detail", "producer", (F.col("id") + F.col("shift")).alias("counter")
        )
        .agg(F.min("made_by").alias("made_by"))
    )
    return seen_by(named, tables, "id", "counter", "put").select(*_evidence("put", "made_by"))


def _with_lowest(rows: DataFrame, tables: Tables) -> DataFrame:
    """Add `lowest`: the lowest id above the life's start that was given to it."""
    if is_never_any(rows):
        return rows.withColumn("lowest", F.lit(None).cast("bigint"))
    which = [*OWNER, "at", "begun_ns"]
    lives = only(tables.lives, rows, which).select(*which, "since_ns", "until_ns", "start_id")
    above = F.greatest("first", F.col("start_id") + 1)
    given = only(tables.deliveries, lives, OWNER).select(
        *OWNER, one_host(), "first", "last", "invoke_ns", "end_ns"
    )
    inside = (F.col("since_ns") <= F.coalesce("invoke_ns", F.lit(EVER))) & (
        F.col("end_ns") <= F.col("until_ns")
    )
    lowest = (
        given.join(F.broadcast(lives), [*OWNER, "at"])
        .where(inside & (F.col("last") > F.col("start_id")))
        .groupBy(*which)
        .agg(F.min(above).alias("lowest"))
    )
    return rows.join(lowest, which, "left")


def _below_start(tables: Tables) -> DataFrame:
    in_time = (F.col("until_ns") == FOREVER) | (F.col("known_ns") < F.col("until_ns"))
    rows = tables.below.where(in_time).withColumn("detail", F.lit("start"))
    rows = rows.groupBy(*OWNER, "id", "detail", "producer", "counter").agg(
        F.min("made_by").alias("made_by")
    )
    return seen_by(rows, tables, "id", "counter", "put").select(*_evidence("made_by", "put"))


def _unplaced(tables: Tables) -> DataFrame:
    passed = tables.unplaced.where(F.col("later_id") <= F.col("passed"))
    with_drain = tables.unplaced.where(F.col("is_here") & F.col("drained_ns").isNotNull())
    drained = with_cut(with_drain, tables.puts, tables.gets, tables.asides).where(
        F.col("taken_ns") < F.col("cut_ns")
    )
    columns = (*OWNER, "producer", "counter", "made_by")
    rows = passed.select(*columns).unionByName(drained.select(*columns))
    made = rows.groupBy(*OWNER, "producer", "counter").agg(F.min("made_by").alias("made_by"))
    tries = tables.puts.where(F.col("outcome") != "fail").select(
        *PRODUCER, "first_counter", "last_counter", operation().alias("put")
    )
    return (
        made.join(only(tries, made, PRODUCER), list(PRODUCER))
        .where(F.col("counter").between(F.col("first_counter"), F.col("last_counter")))
        .groupBy(*made.columns)
        .agg(F.min("put").alias("put"))
        .withColumns({"id": F.lit(None), "detail": F.lit("unplaced")})
        .select(*_evidence("put", "made_by"))
    )


def _evidence(*operations: str) -> list[Column]:
    return evidence(
        run_id=F.col("run_id"),
        topic=F.col("topic"),
        client_id=F.col("client_id"),
        id=F.col("id"),
        producer=F.col("producer"),
        counter=F.col("counter"),
        detail=F.col("detail"),
        operations=F.array_compact(F.array(*operations)),
    )


def _unhanded(tables: Tables) -> DataFrame:
    """Find what libraries got and never handed over, and what the cursor passed later. A GET whose
    library records no hand-overs hands over what it brings. What came with a delay, and dead
    letters, are handed over as all else.
    """
    is_corrupt = F.col("reason").isNotNull() & (F.col("reason") != LETTER)
    intact = tables.deliveries.where(~is_corrupt)
    get = F.struct("invoke_ns", "process", "op_id").alias("get")
    brought = few(
        intact.where("handed_apart").select(*OWNER, one_host(), get, "end_ns", "first", "last")
    )
    if is_never_any(brought):  # then no cursor is looked for
        return brought.select(*evidence())
    hands = tables.handlings.where(F.col("f") == "hand")
    ahead = tables.handlings.where((F.col("f") == "ack") & F.col("first").isNotNull())
    passings = _passings(tables)
    furthest = settled(passings.groupBy(*OWNER).agg(F.max("passed").alias("passed")))
    wanted = settled(
        intervals.split(
            brought.join(furthest, list(OWNER))
            .withColumn("last", F.least("last", "passed"))
            .drop("passed")
            .where(F.col("first") <= F.col("last"))
        )
    )
    others = intact.where(~F.col("handed_apart")).select(*OWNER, "first", "last")
    handed = hands.unionByName(ahead).select(*OWNER, "first", "last").unionByName(others)
    cover = settled(only(intervals.split(handed), wanted, (*OWNER, "bucket")))
    missing = settled(intervals.exploded(intervals.uncovered(wanted, cover, OWNER), "id"))
    first = (
        _passed_later(missing, passings, tables)
        .groupBy(*OWNER, "id")
        .agg(F.min("get").alias("get"))
    )
    place = F.row_number().over(W.partitionBy(*OWNER, "get").orderBy("id"))
    return (
        first.withColumn("run", F.col("id") - place)
        .groupBy(*OWNER, "get", "run")
        .agg(F.min("id").alias("id"), F.max("id").alias("until_id"))
        .select(
            *evidence(
                run_id=F.col("run_id"),
                topic=F.col("topic"),
                client_id=F.col("client_id"),
                id=F.col("id"),
                other_id=F.col("until_id"),
                detail=F.lit("unhanded"),
                operations=F.array(operation("get.process", "get.op_id")),
            )
        )
    )


def _passings(tables: Tables) -> DataFrame:
    """Return (owner, at, t_ns, passed): when a client's cursor was seen at an id."""
    asked = tables.gets.where((F.col("outcome") == "ok") & F.col("asked").isNotNull()).select(
        *OWNER, one_host(), F.col("invoke_ns").alias("t_ns"), F.col("asked").alias("passed")
    )
    steps = tables.handlings
    done = steps.where((F.col("f") == "ack") & F.col("first").isNull())
    stored = steps.where(F.col("cursor").isNotNull())
    own = (*OWNER, "at", "t_ns")
    is_drained = (F.col("f") == "phase") & (F.col("phase") == "drained")
    drained = tables.asides.where(is_drained & F.col("client_id").isNotNull()).select(
        *OWNER, one_host(), "t_ns", F.col("last_id").alias("passed")
    )
    asked = asked.unionByName(drained)
    return asked.unionByName(done.select(*own, F.col("last").alias("passed"))).unionByName(
        stored.select(*own, F.col("cursor").alias("passed"))
    )


def _passed_later(missing: DataFrame, passings: DataFrame, tables: Tables) -> DataFrame:
    """Return the rows of `missing` whose id the cursor passed after it was brought, while the same
    subscription lasted.
    """
    marks = only(passings, missing, OWNER)
    later = (F.col("passed") >= F.col("id")) & (F.col("t_ns") > F.col("end_ns"))
    passed = (
        missing.join(marks, [*OWNER, "at"])
        .where(later)
        .groupBy(*missing.columns)
        .agg(F.min("t_ns").alias("passed_ns"))
    )
    left = (
        tables.acts.where(F.col("f") == "unsub")
        .select(*OWNER, "at", "from_ns", "latest_ns")
        .withColumnsRenamed({name: f"left_{name}" for name in (*OWNER, "at")})
    )
    same = [F.col(name) == F.col(f"left_{name}") for name in OWNER]
    between = (F.col("from_ns") < F.col("passed_ns")) & (
        F.col("latest_ns") > F.coalesce("get.invoke_ns", F.lit(EVER))
    )
    may_have_left = (F.col("left_at") != F.col("at")) | between
    return passed.join(left, [*same, may_have_left], "leftanti")


def _unstored(tables: Tables) -> DataFrame:
    """Find PUTs that found no subscriber, though a life stood before they were sent and after they
    were answered. A duplicate's id may be 0 for being old.
    """
    refused = (F.col("outcome") == "ok") & (F.col("first_id") == 0) & ~F.col("duplicate")
    puts = tables.puts.where(refused).select(
        *(*PRODUCER, "first_counter", "last_counter", "invoke_ns", "end_ns"),
        one_host(),
        operation().alias("put"),
    )
    stood = (F.col("begun_ns") < F.col("invoke_ns")) & (F.col("end_ns") < F.col("until_ns"))
    columns = (*OWNER, "producer", "first_counter", "last_counter", "put", "made_by")
    by_lives = settled(puts).join(F.broadcast(tables.lives), list(TIMELINE)).where(stood)
    by_groups = unstored_of(tables).withColumnsRenamed({"group": "client_id", "made": "made_by"})
    return (
        by_lives.select(*columns)
        .unionByName(by_groups.select(*columns))
        .withColumn("counter", F.explode(F.sequence("first_counter", "last_counter")))
        .groupBy(*OWNER, "producer", "counter")
        .agg(F.min(F.struct("put", "made_by")).alias("proof"))
        .select(*OWNER, "producer", "counter", "proof.*")
        .withColumns({"id": F.lit(None), "detail": F.lit("unstored")})
        .select(*_evidence("put", "made_by"))
    )
