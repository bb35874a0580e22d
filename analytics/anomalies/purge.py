"""What is said to be purged though no purge named it, and what was given though one had."""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from analytics.common import intervals
from analytics.common.schema import KEY, evidence, operation
from analytics.common.table_store import is_never_any, settled
from analytics.tables.groups import NS_OF_MS
from analytics.tables.runs import acknowledged_runs, one_host
from analytics.tables.tables import Tables, with_application

ROW = (*KEY, "client_id", "topic")
TOLD = (*ROW, "first", "last", "gone_as", "end_ns")


def purge(tables: Tables) -> DataFrame:
    """Find answers that say more than was purged, answers of what was purged before, and of what
    somebody had been told is gone.

    The purges of an application's cluster stand in no record of it: what it is told is believed.
    What is said to have expired is held against what its PUT asked for, where that is on record; so
    is a `gap` that no purge explains where something expires: who knows no expiry is told that.
    """
    told, names = _not_named(tables), ["run_id", "topic"]
    expiring = F.broadcast(tables.expiring)
    gaps = told.where(F.col("gone_as") == "gap").join(expiring, names, "leftsemi")
    others = told.where(F.col("gone_as") == "purged").unionByName(
        told.where(F.col("gone_as") == "gap").join(expiring, names, "leftanti")
    )
    unsaid = others.withColumn("id", F.col("last")).select(*_evidence("unsaid", F.lit(None)))
    expired = tables.gets.where(F.col("gone_as") == "expired").select(*TOLD, one_host())
    return (
        unsaid.unionByName(_kept(tables))
        .unionByName(_of_expiry(expired, tables))
        .unionByName(_of_expiry(gaps, tables))
        .unionByName(_alive(tables))
        .unionByName(_late(tables))
    )


def _late(tables: Tables) -> DataFrame:
    """Find the lowest id of an answer that had expired by the clock of the leader that stored it,
    and gave it.
    """
    led = tables.led
    if is_never_any(led):
        return (
            led.select(*KEY)
            .withColumns({"client_id": F.lit(""), "topic": F.lit(""), "id": F.lit(0)})
            .select(*_evidence("late", F.lit(None)))
        )
    gets = (
        tables.deliveries.where(~F.col("tells_of_purge"))
        .join(led, list(KEY))
        .select(
            *ROW, "node", "term", one_host(), "first", "last", F.col("invoke_ns").alias("asked_ns")
        )
    )
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
    passed = (F.col("asked_ns") - F.col("put_ns")) * 99
    return (
        gets.join(settled(puts), ["run_id", "topic", "node", "term", "at"])
        .where((low <= high) & (passed > F.col("run")[2] * (100 * NS_OF_MS)))
        .groupBy(*ROW)
        .agg(F.min(low).alias("id"))
        .select(*_evidence("late", F.lit(None)))
    )


def _not_named(tables: Tables) -> DataFrame:
    """Return the answers of which no purge that was asked for by then names all."""
    told = settled(
        with_application(tables.gets.where("tells_of_purge"), tables)
        .where(~F.col("is_application") & (F.col("gone_as") != "expired"))
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
        return told.select(*evidence())
    ends = intervals.split(told.drop("gone_as"))
    stored = acknowledged_runs(tables.puts).select(
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
    passed = (F.col("end_ns") - F.col("invoke_ns")) * 100
    is_early = ~F.col("duplicate") & (F.col("at") == F.col("put_at"))
    is_early = is_early & (passed < F.col("ms") * (99 * NS_OF_MS))
    word = F.when(F.col("ms").isNull(), "unsaid").when(is_early, "early")
    return (
        ids.withColumn("ms", ms)
        .withColumn("word", word)
        .where(F.col("word").isNotNull())
        .groupBy(*ROW, "word")
        .agg(F.min("id").alias("id"))
        .select(*_evidence(F.col("word"), F.lit(None)))
    )


def _kept(tables: Tables) -> DataFrame:
    done = _purges(tables, "purged")
    return _given_of(tables, done, "kept")


def _alive(tables: Tables) -> DataFrame:
    """Find what was given to anybody after somebody had been told that it is gone. What expires
    does so by a leader's clock: the next one's may be behind.
    """
    told = with_application(tables.gets.where("tells_of_purge"), tables)
    is_gap = (F.col("gone_as") == "gap") & ~F.col("is_application")
    gaps = told.where(is_gap).join(F.broadcast(tables.expiring), ["run_id", "topic"], "leftanti")
    told = told.where(F.col("gone_as") == "purged").select(gaps.columns).unionByName(gaps)
    told = told.select(
        F.col("run_id").alias("purge_run_id"),
        F.col("topic").alias("purge_topic"),
        one_host().alias("purge_at"),
        F.col("last").alias("purge_id"),
        F.col("end_ns").alias("purge_ns"),
    )
    return _given_of(tables, told, "alive")


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
