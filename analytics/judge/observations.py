"""What is reported beside the checks: counts, drains, faults and blackouts. Judges nothing."""

from collections.abc import Mapping
from functools import reduce
from typing import Any, Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.window import Window as W

from analytics.common import intervals
from analytics.common.table_store import few, is_never_any, kept_length, settled
from analytics.common.verdict import InjectedFault, Observations
from analytics.judge import timing
from analytics.judge.liveness import Healing, named, with_healing, with_recovery
from analytics.judge.load import History
from analytics.tables.groups import GROUP, groups_of
from analytics.tables.runs import PLACE, acknowledged_runs, counters_of_places, counters_of_puts
from analytics.tables.suspects import TOPIC_BUCKET, only, without
from analytics.tables.tables import Tables, names

PRODUCER: Final = ("run_id", "topic", "producer")
UNDRAINED_SHOWN_MAX: Final = 3
FAULTS_MAX: Final = 10_000  # a fault a second for almost three hours; they are shown one by one
SECOND_NS: Final = 1_000_000_000


def observe(history: History) -> Observations:
    """Return the observations of a run: about a dozen small Spark jobs."""
    tables = history.tables
    undrained = settled(_undrained(tables))
    shown = undrained.orderBy("client_id", "topic").limit(UNDRAINED_SHOWN_MAX).collect()
    acknowledged = _acknowledged(tables)
    waiting = sorted(f"{row.topic} {row.group}" for row in _waiting(tables))
    return Observations(
        acknowledged=acknowledged,
        delivered=_delivered(tables),
        recovered=_length(_recovered(tables)),
        undrained_count=undrained.count(),
        undrained=tuple(f"{row.client_id} {row.topic}" for row in shown),
        unplaced_answers=_unplaced(tables).count(),
        faults=_faults(history),
        rows=_lengths({name: getattr(tables, name) for name in names()}),
        is_drain_due=not history.is_application,
        latencies=timing.latencies(tables),
        staleness=timing.staleness(tables, acknowledged),
        progress_share=timing.progress_share(tables.ticks, tables.asides),
        waiting_count=len(waiting),
        waiting=tuple(waiting[:UNDRAINED_SHOWN_MAX]),
    )


def _delivered(tables: Tables) -> int:
    """Return how many publications came to subscribers and workers; what they were told is gone did
    not, though to the checks it has.
    """
    came = _total(tables.doubts.delivered.agg(F.sum("marks.length")))
    told = tables.gets.where("tells_of_purge").agg(F.sum(F.col("last") - F.col("first") + 1))
    return came - _total(told) + _leased(tables)


def _lengths(tables: Mapping[str, DataFrame]) -> dict[str, int]:
    """Return how many rows each table has: one job, none for those in the driver."""
    found = {name: kept_length(table) for name, table in tables.items()}
    counts = [
        table.agg(F.count(F.lit(1)).alias("rows")).select(F.lit(name).alias("name"), "rows")
        for name, table in tables.items()
        if found[name] is None
    ]
    if counts:
        found |= {row.name: row.rows for row in reduce(DataFrame.unionByName, counts).collect()}
    return {name: int(found[name] or 0) for name in tables}


def _length(runs: DataFrame) -> int:
    return _total(runs.agg(F.sum(F.col("last") - F.col("first") + 1)))


def _total(sums: DataFrame) -> int:
    total = sums.first()
    assert total is not None, "an aggregate without groups has one row"
    return int(total[0] or 0)


def _leased(tables: Tables) -> int:
    """Return how many publications workers were given, repeats included."""
    takes = tables.worked.where((F.col("f") == "take") & (F.col("outcome") == "ok"))
    if is_never_any(takes):
        return 0
    runs = takes.select(F.explode("leases").alias("run"))
    return _total(runs.agg(F.sum(F.col("run")[1] - F.col("run")[0] + 1)))


def _acknowledged(tables: Tables) -> int:
    """Return how many publications were confirmed. Where nothing is in doubt, each once."""
    puts, buckets = tables.puts.where(F.col("outcome") == "ok"), tables.doubts.buckets
    without_ids = puts.where(F.col("first_id") <= 0)
    producers = few(tables.producers.unionByName(without_ids.select(*PRODUCER)).distinct())
    runs = intervals.split(acknowledged_runs(puts).select(*PLACE, "first", "last"))
    clear = without(tables.doubts.stored, buckets, TOPIC_BUCKET)
    unclear = only(tables.unclear_acks.select(*runs.columns), buckets, TOPIC_BUCKET).unionByName(
        only(without(runs, buckets, TOPIC_BUCKET), producers, PRODUCER)
    )
    counters = [counters_of_places(unclear), counters_of_puts(without_ids)]
    columns = (*PRODUCER, "bucket", "first", "last")
    doubtful = counters[0].select(*columns).unionByName(counters[1].select(*columns))
    once = without(clear, producers, PRODUCER)
    length = once.agg(F.sum("marks.length"))
    return _total(length) + _length(intervals.merged(settled(doubtful), PRODUCER))


def _recovered(tables: Tables) -> DataFrame:
    """Return what was seen without an acknowledgment: only in buckets in doubt can it be."""
    seen = counters_of_places(tables.seen_places)
    unconfirmed = settled(
        intervals.uncovered(
            intervals.merged(seen, PRODUCER), tables.tried.where(F.col("outcome") == "ok"), PRODUCER
        )
    )
    unsure = tables.tried.where(F.col("outcome") == "info").select(
        *PRODUCER, "bucket", "first", "last"
    )
    return intervals.common(unconfirmed, intervals.merged(unsure, PRODUCER), PRODUCER)


def _undrained(tables: Tables) -> DataFrame:
    owner = ["run_id", "client_id", "topic"]
    standing = tables.subscriptions.where(~F.col("ended"))
    return standing.join(tables.drains, owner, "leftanti")


def _waiting(tables: Tables) -> list[Any]:
    """Return the groups that stood and that nobody has seen settled: rows of topic and group."""
    if is_never_any(tables.worked):
        return []
    is_settled = (F.col("f") == "phase") & (F.col("phase") == "settled")
    said = tables.asides.where(is_settled).groupBy(*GROUP)
    seen = said.agg(F.min(F.coalesce("last_id", F.lit(0))).alias("settled_id"))
    stood = groups_of(tables.worked).where(F.col("stood") & F.col("start").isNotNull())
    # Such a row is believed as far as an answer has said it.
    is_told = F.col("settled_id") <= F.coalesce("until", F.lit(0))
    known = stood.join(seen, list(GROUP), "left").where(~F.coalesce(is_told, F.lit(False)))
    return known.select("topic", "group").collect()


def _unplaced(tables: Tables) -> DataFrame:
    lacking = F.col("asked").isNull() | F.col("topic").isNull()
    return tables.gets.where(F.col("last").isNotNull() & lacking)


def _faults(history: History) -> tuple[InjectedFault, ...]:
    tables = history.tables
    rows = (
        _with_blackout(_windows(tables.asides, tables.ends), tables.ticks)
        .select("begin_ns", "error", "blackout_ms", "silence_ms")
        .orderBy("begin_ns")
        .limit(FAULTS_MAX)
        .collect()
    )
    faults = [_fault(*row) for row in rows]
    healed = with_healing(faults, _healings(tables.asides), history.truth.members)
    ends_ns = (fault.healed_ns for fault in healed if fault.healed_ns is not None)
    acks = tables.puts.where(F.col("outcome") == "ok")
    return with_recovery(healed, timing.first_after(acks, tables.ticks, ends_ns))


def _fault(
    t_ns: int, error: str, blackout_ms: float | None, silence_ms: float | None
) -> InjectedFault:
    name, targets = named(error)
    return InjectedFault(name, targets, t_ns, blackout_ms, silence_ms)


def _healings(events: DataFrame) -> list[Healing]:
    heals = F.get_json_object("error", "$.action") == "heal"
    rows = events.where((F.col("f") == "fault") & heals).select("t_ns", "error")
    found = rows.orderBy("t_ns").limit(FAULTS_MAX).collect()
    return [Healing(row.t_ns, *named(row.error)) for row in found]


def _windows(asides: DataFrame, ends: DataFrame) -> DataFrame:
    """Return (run_id, error, begin_ns, until_ns) of each injection.

    A window ends with the next injection, with the phase `heal`, or with the history: the first of
    these. It is the rule of the runner (chaos/workloads/history.py), stated anew, as everything
    here is.
    """
    injects = F.get_json_object("error", "$.action") == "inject"
    heals = (F.col("f") == "phase") & (F.col("phase") == "heal")
    healed = asides.where(heals).groupBy("run_id").agg(F.min("t_ns").alias("heal_ns"))
    next_ns = F.lead("t_ns").over(W.partitionBy("run_id").orderBy("t_ns"))  # over faults: few
    healed_ns = F.when(F.col("heal_ns") > F.col("t_ns"), F.col("heal_ns"))
    return (
        asides.where((F.col("f") == "fault") & injects)
        .withColumn("next_ns", next_ns)
        .join(ends, "run_id")
        .join(healed, "run_id", "left")
        .select(
            "run_id",
            "error",
            F.col("t_ns").alias("begin_ns"),
            F.least("next_ns", healed_ns, "end_ns").alias("until_ns"),
        )
    )


def _with_blackout(windows: DataFrame, ticks: DataFrame) -> DataFrame:
    """Add `blackout_ms`: the longest time without an acknowledgment in each window.

    The first silence reaches back to the last acknowledgment before the window, the last one ends
    with the window. Null when nothing was acknowledged before, or nothing in the second half; then
    `silence_ms` still says how long it was quiet at least.
    """
    begin_ns, until_ns = F.col("begin_ns"), F.col("until_ns")
    before_ns, after_ns = F.col("before_ns"), F.coalesce("after_ns", "until_ns")
    ends_inside = F.col("after_ns").isNull() | (F.col("after_ns") > begin_ns)
    measured = (
        _silences_of(windows, ticks)
        .where(ends_inside & (before_ns <= until_ns))
        .groupBy("run_id", "begin_ns", "error", "until_ns")
        .agg(
            F.min("before_ns").alias("first_ns"),
            F.max("before_ns").alias("last_ns"),
            F.max(F.least(after_ns, until_ns) - before_ns).alias("longest_ns"),
        )
        .where(F.col("first_ns") <= begin_ns)
        .withColumn("silence_ms", F.col("longest_ns") / 1e6)
        .withColumn(
            "blackout_ms",
            F.when(F.col("last_ns") * 2 >= begin_ns + until_ns, F.col("silence_ms")),
        )
        .select("run_id", "begin_ns", "error", "blackout_ms", "silence_ms")
    )
    return windows.join(measured, ["run_id", "begin_ns", "error"], "left")


def _silences_of(windows: DataFrame, ticks: DataFrame) -> DataFrame:
    """Return each window with the silences (before_ns, after_ns) that can matter to it.

    All silences of the seconds in which it begins and ends; of the other seconds the longest
    inside, and the one from the second's last acknowledgment to the next (null: there is none).
    """
    timed = ticks.withColumn("second", F.floor(F.col("first_ns") / SECOND_NS))
    within = W.partitionBy("run_id", "second").orderBy("first_ns")
    next_ns = F.lead("first_ns").over(within)  # null: the second has none any more
    inside = timed.select(
        "run_id",
        "second",
        _silence(F.col("first_ns"), F.col("last_ns")).alias("in_tick"),
        _silence(F.col("last_ns"), next_ns).alias("behind"),
    )
    longest = inside.groupBy("run_id", "second").agg(
        F.max(F.greatest("in_tick", "behind")).alias("silence")
    )
    columns = ("silence.before_ns", "silence.after_ns")
    far = longest.select("run_id", *columns).unionByName(_between_seconds(timed))
    borders = F.array(*(F.floor(F.col(name) / SECOND_NS) for name in ("begin_ns", "until_ns")))
    near = (
        windows.withColumn("second", F.explode(borders))
        .join(inside, ["run_id", "second"])
        .withColumn("silence", F.explode(F.array("in_tick", "behind")))
        .where(F.col("silence.after_ns").isNotNull())
        .select(*windows.columns, *columns)
    )
    return windows.join(far, "run_id").unionByName(near)


def _silence(before_ns: Column, after_ns: Column) -> Column:
    """Return a silence, which is greater than a shorter one."""
    length = (after_ns - before_ns).alias("length")
    return F.struct(length, before_ns.alias("before_ns"), after_ns.alias("after_ns"))


def _between_seconds(timed: DataFrame) -> DataFrame:
    """Return the silence from the last acknowledgment of each second to the next one."""
    seconds = timed.groupBy("run_id", "second").agg(
        F.min("first_ns").alias("first_ns"), F.max("last_ns").alias("before_ns")
    )
    # A row a second that had acknowledgments: a day is 86,400 rows for the window.
    after_ns = F.lead("first_ns").over(W.partitionBy("run_id").orderBy("second"))
    return seconds.select("run_id", "before_ns", after_ns.alias("after_ns"))
