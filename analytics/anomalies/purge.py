"""What is said to be purged though no purge named it, and what was given though one had."""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from analytics.common import intervals
from analytics.common.schema import KEY, evidence, operation
from analytics.common.table_store import is_never_any, none_of, settled
from analytics.tables import keys
from analytics.tables.groups import every_take_of
from analytics.tables.runs import acknowledged_runs, one_host
from analytics.tables.suspects import only
from analytics.tables.tables import Tables, with_application
from analytics.tables.times import SURELY, in_ns

ROW = (*KEY, "client_id", "topic")
TOLD = (*ROW, "first", "last", "gone_as", "end_ns")
SPAN = ("first", "last", "asked_ns")


def purge(tables: Tables) -> DataFrame:
    """Find answers that say more than was purged, answers of what was purged before, and of what
    somebody had been told is gone.

    The purges of an application's cluster stand in no record of it: what it is told is believed.
    What is said to have expired is held against what its PUT asked for, where that is on record.
    What is said to be compacted away is held against the keys of what was put. Who knows no expiry
    is told a `gap` of both: one that no purge and nothing replaced explains is held against what
    there is in its topic.
    """
    told, replaced = _not_named(tables), _replaced(tables)
    gaps = told.where(F.col("gone_as") == "gap").join(replaced, list(KEY), "leftanti")
    kinds = F.broadcast(tables.expiring)
    gaps = gaps.join(kinds, ["run_id", "topic"], "left")
    gaps = gaps if is_never_any(told) else settled(gaps)
    plain = gaps.where(F.col("is_compacted").isNull()).select(*told.columns)
    others = told.where(F.col("gone_as") == "purged").unionByName(plain)
    unsaid = others.withColumn("id", F.col("last")).select(*_evidence("unsaid", F.lit(None)))
    expired = tables.gets.where(F.col("gone_as") == "expired").select(*TOLD, one_host())
    of_expiry = _of_expiry(
        expired.unionByName(gaps.where("has_expiry").select(*told.columns)), tables
    )
    both = gaps.where(F.col("has_expiry") & F.col("is_compacted")).select(*KEY)
    compacted = gaps.where("is_compacted").select(*told.columns, "has_expiry")
    if not is_never_any(of_expiry):
        of_expiry = settled(of_expiry)
        not_expired = of_expiry.select(*KEY, F.lit(True).alias("is_not_expired")).distinct()
        compacted = compacted.join(not_expired, list(KEY), "left")
        compacted = compacted.where(~F.col("has_expiry") | F.col("is_not_expired"))
        of_expiry = of_expiry.join(both, list(KEY), "leftanti")
    return (
        unsaid.unionByName(_kept(tables))
        .unionByName(of_expiry.select(*_evidence(F.col("word"), F.lit(None))))
        .unionByName(_of_compaction(compacted.select(*told.columns), tables))
        .unionByName(_alive(tables, replaced))
        .unionByName(_late(tables))
    )


def _late(tables: Tables) -> DataFrame:
    """Find the lowest id of an answer that had expired by the clock of the leader that stored it,
    and gave it. Who asks again for a TAKE is given what was leased when that was first asked for.
    """
    led = tables.led
    if is_never_any(led):
        return (
            led.select(*KEY)
            .withColumns({"client_id": F.lit(""), "topic": F.lit(""), "id": F.lit(0)})
            .select(*_evidence("late", F.lit(None)))
        )
    gets = _given(tables).join(led, list(KEY)).select(*ROW, *SPAN, "at", "node", "term")
    stored = acknowledged_runs(tables.puts).where(
        ~F.col("duplicate") & F.col("expires").isNotNull()
    )
    puts = stored.join(led, list(KEY)).select(
        *("run_id", "topic", "node", "term"),
        one_host(),
        F.explode("expires").alias("run"),
        F.col("first").alias("put_first"),
        F.col("last").alias("put_last"),
        F.col("end_ns").alias("put_ns"),
    )
    low = F.greatest("first", "put_first", F.col("run")[0])
    high = F.least("last", "put_last", F.col("run")[1])
    passed = (F.col("asked_ns") - F.col("put_ns")) * SURELY
    return (
        gets.join(settled(puts), ["run_id", "topic", "node", "term", "at"])
        .where((low <= high) & (passed > in_ns(F.col("run")[2]) * 100))
        .groupBy(*ROW)
        .agg(F.min(low).alias("id"))
        .select(*_evidence("late", F.lit(None)))
    )


def _given(tables: Tables) -> DataFrame:
    """Return the runs of ids that GETs and TAKEs brought, with `at`, and when they were asked for:
    of a TAKE, when its step was first sent.
    """
    gets = tables.deliveries.where(~F.col("tells_of_purge")).withColumn(
        "asked_ns", F.col("invoke_ns")
    )
    takes = every_take_of(tables.worked).where(F.col("outcome") == "ok")
    takes = takes.withColumn("run", F.explode("leases")).select(
        *KEY,
        F.col("group").alias("client_id"),
        *("topic", "host"),
        F.col("run")[0].alias("first"),
        F.col("run")[1].alias("last"),
        F.col("begun_ns").alias("asked_ns"),
    )
    given = gets.select(*ROW, "host", *SPAN).unionByName(takes)
    return given.select(*ROW, *SPAN, one_host())


def _not_named(tables: Tables) -> DataFrame:
    """Return the answers of which no purge that was asked for by then names all."""
    told = settled(
        with_application(tables.gets.where("tells_of_purge"), tables)
        .where(~F.col("is_application") & F.col("gone_as").isin("purged", "gap"))
        .select(*TOLD, one_host())
    )
    asked = _purges(tables, "purge")
    same = [F.col(name) == F.col(f"purge_{name}") for name in ("run_id", "topic")]
    is_before = (F.col("at") != F.col("purge_at")) | (F.col("purge_ns") < F.col("end_ns"))
    named = [*same, F.col("purge_id") >= F.col("last"), is_before]
    return told.join(F.broadcast(asked), named, "leftanti")


def _of_expiry(told: DataFrame, tables: Tables) -> DataFrame:
    """Find the lowest ids of an answer that never expire (`unsaid`), or had not yet (`early`)."""
    if is_never_any(told):
        return told.select(*ROW, F.lit("").alias("word"), F.col("first").alias("id"))
    ends = intervals.split(told.drop("gone_as"))
    stored = only(acknowledged_runs(tables.puts), told, ("run_id", "topic")).select(
        *("run_id", "topic", "first", "last", "invoke_ns", "duplicate", "expires"),
        one_host().alias("put_at"),
    )
    pieces = intervals.split(stored).withColumnsRenamed({"first": "put_first", "last": "put_last"})
    low, high = F.greatest("first", "put_first"), F.least("last", "put_last")
    ids = (
        settled(ends)
        .join(pieces, ["run_id", "topic", "bucket"])
        .where(low <= high)
        .withColumn("id", F.explode(F.sequence(low, high)))
    )
    is_its = F.filter("expires", lambda run: F.col("id").between(run[0], run[1]))
    ms = F.get(F.get(is_its, F.lit(0)), F.lit(2))
    # Clocks of two machines may differ by a hundredth in how fast they go.
    passed = F.col("end_ns") - F.col("invoke_ns")
    is_early = ~F.col("duplicate") & (F.col("at") == F.col("put_at"))
    is_early = is_early & (passed < in_ns(F.col("ms"), SURELY))
    word = F.when(F.col("ms").isNull(), "unsaid").when(is_early, "early")
    return (
        ids.withColumn("ms", ms)
        .withColumn("word", word)
        .where(F.col("word").isNotNull())
        .groupBy(*ROW, "word")
        .agg(F.min("id").alias("id"))
    )


def _of_compaction(gaps: DataFrame, tables: Tables) -> DataFrame:
    """Find the lowest ids that nothing can have replaced (`unsaid`), that nothing did (`latest`),
    and that were stored while the subscription stood that was told so (`unread`).
    """
    told = tables.gets.where(F.col("gone_as") == "compacted").select(*TOLD, one_host())
    told = told.unionByName(gaps)
    if is_never_any(told):
        return told.withColumn("id", F.col("first")).select(*_evidence("unsaid", F.lit(None)))
    words = F.array_compact(
        F.array(
            F.when(F.col("is_keyless"), "unsaid"),
            F.when(F.col("is_latest"), "latest"),
            F.when(F.col("is_unread"), "unread"),
        )
    )
    return (
        _ids_of(settled(told), tables)
        .withColumn("word", F.explode(words))
        .groupBy(*ROW, "word")
        .agg(F.min("id").alias("id"))
        .select(*_evidence(F.col("word"), F.lit(None)))
    )


def _ids_of(told: DataFrame, tables: Tables) -> DataFrame:
    """Return the ids of which answers say that they are gone, and what is known of their keys."""
    is_unread = ~F.col("duplicate") & (F.col("put_at") == F.col("at"))
    is_unread = is_unread & F.coalesce(F.col("put_ns") > F.col("stood_ns"), F.lit(False))
    ids = keys.of_ids(told, tables).join(_stood(told, tables), list(KEY), "left")
    return ids.withColumn("is_unread", is_unread)


def _replaced(tables: Tables) -> DataFrame:
    """Return (KEY) of the gaps that may be what is compacted away, as all of each was replaced.

    Perhaps nobody was told that the topic is compacted.
    """
    gaps = tables.gets.where(F.col("gone_as") == "gap").select(*TOLD, one_host())
    if is_never_any(tables.told):
        gaps = none_of(gaps)
    if not is_never_any(gaps):
        keyed = tables.told.where((F.col("f") == "put") & F.col("keyed").isNotNull())
        topics = F.broadcast(keyed.select("run_id", "topic").distinct())
        gaps = settled(gaps.join(topics, ["run_id", "topic"], "leftsemi"))
    if is_never_any(gaps):
        return gaps.select(*KEY)
    is_its = F.col("is_replaced") & ~F.col("is_unread")
    counted = _ids_of(gaps, tables).groupBy(*KEY).agg(F.count_if(is_its).alias("count"))
    all_of_it = F.col("count") == F.col("last") - F.col("first") + 1
    return settled(gaps.join(counted, list(KEY)).where(all_of_it).select(*KEY))


def _stood(told: DataFrame, tables: Tables) -> DataFrame:
    """Return for each answer since when its subscription surely stands, if that is known."""
    begun = F.coalesce("invoke_ns", F.lit(-1)).alias("begun_ns")
    controls = tables.controls.select(
        *("run_id", "client_id", "topic", "f", "outcome", begun),
        F.col("op_id").alias("control_id"),
        F.col("end_ns").alias("done_ns"),
        one_host().alias("control_at"),
    )
    last = F.max_by(F.struct("f", "outcome"), F.struct("begun_ns", "control_id"))
    is_unclear = (F.col("control_at") != F.col("at")) | (F.col("outcome") == "info")
    return (
        told.join(controls, ["run_id", "client_id", "topic"])
        .where(F.col("begun_ns") < F.col("end_ns"))
        .groupBy(*KEY)
        .agg(
            last.alias("newest"),
            F.bool_or(is_unclear).alias("is_unclear"),
            F.max("done_ns").alias("stood_ns"),
        )
        .where(~F.col("is_unclear") & (F.col("newest.f") == "sub"))
        .where(F.col("newest.outcome") == "ok")
        .select(*KEY, "stood_ns")
    )


def _kept(tables: Tables) -> DataFrame:
    done = _purges(tables, "purged")
    return _given_of(tables, done, "kept")


def _alive(tables: Tables, replaced: DataFrame) -> DataFrame:
    """Find what was given to anybody after somebody had been told that it is gone.

    Of what was purged or dropped, all below is gone as well; of what has expired or was replaced,
    which who does not know these words is told with that for what was dropped, those ids alone.
    """
    names = ["run_id", "topic"]
    expiring = F.broadcast(tables.expiring.select(*names, F.lit(True).alias("expires")))
    told = with_application(tables.gets.where("tells_of_purge"), tables)
    told = told.join(expiring, names, "left")
    of_keys = replaced.withColumn("is_replaced", F.lit(True))
    told = told.join(F.broadcast(of_keys), list(KEY), "left")
    is_gap = (F.col("gone_as") == "gap") & ~F.col("is_application") & F.col("expires").isNull()
    is_gap = is_gap & F.col("is_replaced").isNull()
    is_for_good = (F.col("gone_as") == "purged") | is_gap
    up_to = told.where(is_for_good).select(
        F.col("run_id").alias("purge_run_id"),
        F.col("topic").alias("purge_topic"),
        one_host().alias("purge_at"),
        F.col("last").alias("purge_id"),
        F.col("end_ns").alias("purge_ns"),
    )
    return _given_of(tables, up_to, "alive").unionByName(_again(tables, told.where(~is_for_good)))


def _again(tables: Tables, told: DataFrame) -> DataFrame:
    """Find the lowest id of an answer that somebody had been told is gone, before it was sent."""
    gone = settled(
        told.select(
            *("run_id", "topic"),
            one_host(),
            F.col("first").alias("gone_first"),
            F.col("last").alias("gone_last"),
            F.col("end_ns").alias("told_ns"),
        )
    )
    if is_never_any(gone):
        return gone.select(*evidence())
    low, high = F.greatest("first", "gone_first"), F.least("last", "gone_last")
    lowest = F.min(F.struct(low.alias("id"), F.col("gone_last").alias("gone"))).alias("lowest")
    return (
        _given(tables)
        .join(F.broadcast(gone), ["run_id", "topic", "at"])
        .where((low <= high) & (F.col("told_ns") < F.col("asked_ns")))
        .groupBy(*ROW)
        .agg(lowest)
        .select(*ROW, "lowest.id", "lowest.gone")
        .select(*_evidence("alive", F.col("gone")))
    )


def _given_of(tables: Tables, gone: DataFrame, word: str) -> DataFrame:
    """Return the evidence of GETs and TAKEs that brought what was gone before they were sent."""
    gone = settled(gone)
    brought = tables.gets.where(~F.col("tells_of_purge") & F.col("first").isNotNull())
    rows = brought.select(*ROW, F.col("first").alias("id"), "invoke_ns", one_host())
    lowest = F.array_min(F.transform("leases", lambda run: run[0]))
    takes = tables.worked.where((F.col("f") == "take") & (F.col("outcome") == "ok")).select(
        *KEY,
        F.col("group").alias("client_id"),
        "topic",
        lowest.alias("id"),
        "invoke_ns",
        one_host(),
    )
    both = rows.unionByName(takes.where(F.col("id").isNotNull()))
    same = [F.col(name) == F.col(f"purge_{name}") for name in ("run_id", "topic", "at")]
    met = [*same, F.col("id") <= F.col("purge_id"), F.col("purge_ns") < F.col("invoke_ns")]
    return (
        both.join(F.broadcast(gone), met)
        .groupBy(*ROW, "id")
        .agg(F.max("purge_id").alias("gone"))
        .select(*_evidence(word, F.col("gone")))
    )


def _purges(tables: Tables, f: str) -> DataFrame:
    """Return the purges that were asked for, or carried out: few."""
    return tables.asides.where(F.col("f") == f).select(
        F.col("run_id").alias("purge_run_id"),
        F.col("topic").alias("purge_topic"),
        one_host().alias("purge_at"),
        F.col("last_id").alias("purge_id"),
        F.col("t_ns").alias("purge_ns"),
    )


def _evidence(detail: str | Column, other_id: Column) -> list[Column]:
    return evidence(
        run_id=F.col("run_id"),
        topic=F.col("topic"),
        client_id=F.col("client_id"),
        id=F.col("id"),
        other_id=other_id,
        detail=F.lit(detail) if isinstance(detail, str) else detail,
        operations=F.array(operation()),
    )
