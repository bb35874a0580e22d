"""How long things took: latencies, staleness, the share of time with progress, recoveries.

What lives here: a few small Spark jobs whose results are numbers. What must not: bounds that these
are held against (verdict.py), series over time (the report's).
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import accumulate
from math import ceil
from operator import itemgetter
from typing import Final

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F
from pyspark.sql.window import Window as W

from analytics.common.table_store import made_of
from analytics.common.verdict import Quantiles
from analytics.tables.runs import acknowledged_runs, one_host
from analytics.tables.tables import Tables

SECOND_NS: Final = 1_000_000_000
PERCENTILES: Final = (0.5, 0.9, 0.99, 0.999)
STEPS: Final = 512  # times are counted in classes, each 1/512 wider than the one before
CLASSES_MAX: Final = 100_000  # of all functions: from a nanosecond to a year are 20,000 of each
STALENESS_SAMPLES: Final = 200_000  # publications that are looked at; ids are taken evenly
SILENCE_NS: Final = SECOND_NS  # no progress: that long without an acknowledged PUT, or longer


def latencies(tables: Tables) -> tuple[Quantiles, ...]:
    """Return how long operations took that were answered `ok`; a GET's time includes its wait."""
    parts = [
        tables.puts.withColumn("f", F.lit("put")),
        tables.gets.withColumn("f", F.lit("get")),
        tables.controls,
    ]
    took = F.col("end_ns") - F.col("invoke_ns")
    timed = (F.col("outcome") == "ok") & F.col("invoke_ns").isNotNull()  # null: it is gone
    durations = [part.where(timed).select("f", took.alias("took_ns")) for part in parts]
    rows = _quantiles(durations[0].unionByName(durations[1]).unionByName(durations[2]))
    return tuple(sorted(rows, key=lambda one: one.of))


def staleness(tables: Tables, acknowledged: int) -> Quantiles | None:
    """Return the quantiles of `delays`. None when nothing can be compared."""
    rows = delays(tables, acknowledged).withColumn("f", F.lit("staleness"))
    return next(iter(_quantiles(rows)), None)


def delays(tables: Tables, acknowledged: int) -> DataFrame:
    """Return (given_ns, took_ns): when a publication was first handed to a subscriber, and how
    long after its acknowledgment that was; zero when it came before.

    `acknowledged`: how many there are, to choose the sample by: every n-th id. Clocks are compared
    on one host.
    """
    step = max(1, acknowledged // STALENESS_SAMPLES)
    acks = _sampled(
        acknowledged_runs(tables.puts).select(
            "run_id", "topic", one_host(), "first", "last", F.col("end_ns").alias("acked_ns")
        ),
        step,
    )
    acks = acks.groupBy("run_id", "topic", "at", "id").agg(F.min("acked_ns").alias("acked_ns"))
    given = _sampled(
        tables.deliveries.select(
            "run_id", "topic", one_host(), "client_id", "first", "last", "end_ns"
        ),
        step,
    )
    first = given.groupBy("run_id", "topic", "at", "client_id", "id").agg(
        F.min("end_ns").alias("given_ns")
    )
    late = F.greatest(F.col("given_ns") - F.col("acked_ns"), F.lit(0)).alias("took_ns")
    return first.join(acks, ["run_id", "topic", "at", "id"]).select("given_ns", late)


def progress_share(ticks: DataFrame, events: DataFrame) -> float | None:
    """Return the share of time in which PUTs were acknowledged: all but long silences.

    From the first acknowledgment to the phase `heal`, when publishers stop soon, or to the last
    one. A silence counts from SILENCE_NS on, and then as a whole. None without two moments.
    """
    seconds = _seconds(ticks)
    heals = events.where((F.col("f") == "phase") & (F.col("phase") == "heal"))
    bounds = (
        seconds.agg(F.min("first_ns").alias("begin_ns"), F.max("last_ns").alias("last_ns"))
        .crossJoin(heals.agg(F.min("t_ns").alias("heal_ns")))
        .select("begin_ns", F.coalesce("heal_ns", "last_ns").alias("end_ns"))
        .first()
    )
    if bounds is None or bounds.begin_ns is None or bounds.end_ns <= bounds.begin_ns:
        return None
    # A silence this long ends in a later second than it began in; a day is 86,400 rows.
    next_ns = F.lead("first_ns").over(W.partitionBy("run_id").orderBy("second"))
    next_ns = F.coalesce(next_ns, F.lit(bounds.end_ns))
    silence = F.least(next_ns, F.lit(bounds.end_ns)) - F.col("last_ns")
    silent = seconds.select(silence.alias("ns")).where(F.col("ns") >= SILENCE_NS).agg(F.sum("ns"))
    row = silent.first()
    assert row is not None, "an aggregate without groups has one row"
    return 1 - int(row[0] or 0) / int(bounds.end_ns - bounds.begin_ns)


def first_after(acks: DataFrame, ticks: DataFrame, moments_ns: Iterable[int]) -> dict[int, int]:
    """Return {moment: when the first PUT after it was acknowledged}, of those that have one.

    `acks`: (end_ns) of the PUTs that were acknowledged.
    """
    rows = [{"moment_ns": moment_ns} for moment_ns in sorted(set(moments_ns))]
    if not rows:
        return {}
    moments = made_of(acks.sparkSession, rows, "moment_ns BIGINT").withColumn(
        "second", _second_of("moment_ns")
    )
    timed = acks.select("end_ns", _second_of("end_ns").alias("second"))
    after = F.col("end_ns") > F.col("moment_ns")
    near = timed.join(F.broadcast(moments), "second").where(after).select("moment_ns", "end_ns")
    firsts = _seconds(ticks).select(
        F.col("second").alias("then"), F.col("first_ns").alias("end_ns")
    )
    far = firsts.join(F.broadcast(moments), F.col("then") > F.col("second"))
    found = near.unionByName(far.select("moment_ns", "end_ns")).groupBy("moment_ns")
    firsts_after = found.agg(F.min("end_ns").alias("first_ns")).collect()
    return {row.moment_ns: row.first_ns for row in firsts_after}


def _seconds(ticks: DataFrame) -> DataFrame:
    return ticks.groupBy("run_id", _second_of("first_ns").alias("second")).agg(
        F.min("first_ns").alias("first_ns"), F.max("last_ns").alias("last_ns")
    )


def _second_of(moment_ns: str) -> Column:
    return F.floor(F.col(moment_ns) / SECOND_NS)


def _sampled(runs: DataFrame, step: int) -> DataFrame:
    """Return one row for each id of `runs` that `step` divides."""
    begin = F.ceil(F.col("first") / step).cast("bigint") * step
    ids = F.sequence(begin, F.col("last"), F.lit(step).cast("bigint"))
    # Left out first: a row that is exploded costs far more than one that is not.
    some = runs.where(begin <= F.col("last"))
    return some.withColumn("id", F.explode(ids)).drop("first", "last")


def _quantiles(durations: DataFrame) -> list[Quantiles]:
    """Return the quantiles of `took_ns` by `f`; each is the greatest time of its class."""
    width = F.floor(F.log(F.greatest("took_ns", F.lit(1))) * STEPS).alias("width")
    classes = durations.groupBy("f", width).agg(
        F.count(F.lit(1)).alias("count"), F.max("took_ns").alias("most")
    )
    found: dict[str, list[Row]] = defaultdict(list)
    for row in classes.limit(CLASSES_MAX).collect():
        found[row.f].append(row)
    return [_in_ms(f, sorted(rows, key=itemgetter("width"))) for f, rows in found.items()]


def _in_ms(f: str, classes: Sequence[Row]) -> Quantiles:
    reached = tuple(accumulate(row["count"] for row in classes))
    ranks = (ceil(share * reached[-1]) for share in PERCENTILES)
    p50_ms, p90_ms, p99_ms, p999_ms = (
        classes[bisect_left(reached, rank)].most / 1e6 for rank in ranks
    )
    most_ms = classes[-1].most / 1e6
    return Quantiles(f, reached[-1], p50_ms, p90_ms, p99_ms, p999_ms, most_ms)
