"""From a history to the small series of its page: one aggregation in Spark a plot. Draws nothing.

Only aggregates are collected: at most `SLICES_MAX` rows a plot, and named numbers of faults, phases
and terms. Every window is over slices of time, or inside a bucket of ids.
"""

from collections.abc import Iterable
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.window import Window as W

from analytics.common.verdict import Observations
from analytics.judge import timing
from analytics.report.data import (
    NS_PER_MS,
    Axis,
    Lead,
    Series,
    Spread,
    axis_over,
    bands_of,
    filled,
    phases_of,
    summed,
)
from analytics.tables.runs import acknowledged_runs
from analytics.tables.tables import Tables

MARKS_MAX: Final = 10_000  # phases: two a fault, and a fault a second for over an hour
LEADS_MAX: Final = 2_000  # (node, term): an election a second for half an hour
QUANTILES: Final = (0.5, 0.99)
QUANTILE_ACCURACY: Final = 1_000  # its inverse is the error in rank; memory a slice grows with it

DELIVERED: Final = "delivered"
RATES: Final = {"ok": "acknowledged", "info": "unknown", "fail": "refused"}  # of PUTs, by outcome


def collect(events: DataFrame, tables: Tables, seen: Observations) -> Series | None:
    """Return the series of a run: seven Spark jobs. `seen`: what has been found out about it.

    None when they were recorded on several hosts: monotonic clocks of two hosts cannot be compared.
    """
    span = events.agg(
        F.min("t_ns").alias("begin_ns"),
        F.max("t_ns").alias("end_ns"),
        F.count_distinct("host").alias("hosts"),
    ).first()
    assert span is not None, "an aggregate without groups has one row"
    if span.begin_ns is None or span.hosts > 1:
        return None
    axis = axis_over(span.begin_ns, span.end_ns)
    return Series(
        axis=axis,
        rates=_rates(axis, tables),
        latency=_spread(axis, put_latencies(tables.puts)),
        staleness=_spread(axis, _staleness(tables, seen.acknowledged)),
        unseen=summed(axis, _by_slice(unseen_steps(axis, tables), "step")),
        phases=phases_of(axis, _marks(events)),
        bands=bands_of(axis, seen.faults),
        leads=_leads(axis, events),
    )


def slice_of(axis: Axis, t_ns: Column) -> Column:
    """Return the number of the slice that a time is in."""
    return F.floor((t_ns - axis.origin_ns) / axis.width_ns).cast("int")


def _by_slice(rows: DataFrame, value: str) -> dict[int, float]:
    return {row.slice: row[value] for row in rows.collect()}


# --- how many ---------------------------------------------------------------------------------


def _rates(axis: Axis, tables: Tables) -> dict[str, list[float | None]]:
    points: dict[str, dict[int, float]] = {name: {} for name in (*RATES.values(), DELIVERED)}
    for row in counts(axis, tables).collect():
        points[row.name][row.slice] = round(row.publications / axis.width_s, 3)
    return {name: filled(axis, own, otherwise=0.0) for name, own in points.items()}


def counts(axis: Axis, tables: Tables) -> DataFrame:
    """Return (name, slice, publications), by when their operation ended; those that did."""
    size = F.col("last_counter") - F.col("first_counter") + 1
    rate = F.coalesce(*(F.when(F.col("outcome") == kind, F.lit(RATES[kind])) for kind in RATES))
    put = tables.puts.select(rate.alias("name"), "end_ns", size.alias("size"))
    got = tables.deliveries.select(
        F.lit(DELIVERED).alias("name"), "end_ns", (F.col("last") - F.col("first") + 1).alias("size")
    )
    return (
        put.unionByName(got)
        .where(F.col("end_ns").isNotNull())
        .groupBy("name", slice_of(axis, F.col("end_ns")).alias("slice"))
        .agg(F.sum("size").alias("publications"))
    )


# --- how long ---------------------------------------------------------------------------------


def put_latencies(puts: DataFrame) -> DataFrame:
    """Return (t_ns, ms) of each acknowledged PUT, from before its first send to its answer."""
    lasted_ms = (F.col("end_ns") - F.col("invoke_ns")) / NS_PER_MS
    timed = (F.col("outcome") == "ok") & F.col("invoke_ns").isNotNull()  # null: it is gone
    return puts.where(timed).select(F.col("end_ns").alias("t_ns"), lasted_ms.alias("ms"))


def _staleness(tables: Tables, acknowledged: int) -> DataFrame:
    waited_ms = F.col("took_ns") / NS_PER_MS
    return timing.delays(tables, acknowledged).select(
        F.col("given_ns").alias("t_ns"), waited_ms.alias("ms")
    )


def _spread(axis: Axis, samples: DataFrame) -> Spread:
    at = slice_of(axis, F.col("t_ns")).alias("slice")
    quantiles = F.percentile_approx("ms", list(QUANTILES), QUANTILE_ACCURACY)
    rows = (
        samples.groupBy(at)
        .agg(quantiles.alias("quantiles"), F.max("ms").alias("most"))
        .select("slice", "most", *(F.get("quantiles", F.lit(n)).alias(f"q{n}") for n in (0, 1)))
        .collect()
    )

    def series(name: str) -> list[float | None]:
        return filled(axis, {row.slice: round(row[name], 3) for row in rows}, otherwise=None)

    return Spread(p50=series("q0"), p99=series("q1"), most=series("most"))


# --- how far behind ---------------------------------------------------------------------------


def unseen_steps(axis: Axis, tables: Tables) -> DataFrame:
    """Return (slice, step): by how much the number of unseen publications changes in a slice.

    For each subscription that never ended: the highest id acknowledged, less the highest one that
    it has (at first: where it started), where that is more than nothing; summed over all of them.
    """
    owner = ("run_id", "client_id", "topic")
    acked = acknowledged_runs(tables.puts)
    reach = _highest(axis, acked, ("run_id", "topic"))
    standing = tables.subscriptions.where(~F.col("ended")).select(*owner, "start_id")
    owed = standing.join(reach, ["run_id", "topic"]).withColumnRenamed("highest", "acked")
    got = (
        _highest(axis, tables.deliveries, owner)
        .join(standing, [*owner])
        .withColumnRenamed("highest", "got")
    )
    up_to_now = W.partitionBy(*owner).orderBy("slice")  # over slices: 1,000 at most
    so_far = up_to_now.rowsBetween(W.unboundedPreceding, 0)
    has = F.greatest("start_id", F.coalesce(F.max("got").over(so_far), F.lit(0)))
    lag = F.greatest(F.coalesce(F.max("acked").over(so_far), F.lit(0)) - has, F.lit(0))
    return (
        owed.unionByName(got, allowMissingColumns=True)
        .groupBy(*owner, "start_id", "slice")
        .agg(F.max("acked").alias("acked"), F.max("got").alias("got"))
        .withColumn("lag", lag)
        .withColumn("step", F.col("lag") - F.coalesce(F.lag("lag").over(up_to_now), F.lit(0)))
        .groupBy("slice")
        .agg(F.sum("step").alias("step"))
    )


def _highest(axis: Axis, runs: DataFrame, keys: Iterable[str]) -> DataFrame:
    at = slice_of(axis, F.col("end_ns")).alias("slice")
    return runs.groupBy(*keys, at).agg(F.max("last").alias("highest"))


# --- who, and what was done to them -----------------------------------------------------------


def _marks(events: DataFrame) -> list[tuple[int, str]]:
    is_phase = (F.col("f") == "phase") & (F.col("phase") != "drained")
    marks = events.where(is_phase).select("t_ns", "phase").orderBy("t_ns").limit(MARKS_MAX)
    return [(row.t_ns, row.phase) for row in marks.collect()]


def _leads(axis: Axis, events: DataFrame) -> tuple[Lead, ...]:
    answered = (F.col("type") != "invoke") & F.col("node").isNotNull() & F.col("term").isNotNull()
    rows = (
        events.where(answered)
        .groupBy("node", "term")
        .agg(
            F.min("t_ns").alias("begin_ns"), F.max("t_ns").alias("end_ns"), F.count("*").alias("n")
        )
        .orderBy("begin_ns", "node")
        .limit(LEADS_MAX)
        .collect()
    )
    return tuple(
        Lead(row.node, row.term, axis.seconds(row.begin_ns), axis.seconds(row.end_ns), row.n)
        for row in rows
    )
