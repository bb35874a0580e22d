"""What is reported beside the checks: counts, drains, faults and blackouts. Judges nothing."""

import json
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from analytics import intervals
from analytics.load import History
from analytics.tables import Tables, counters_of_places, counters_of_puts, names
from analytics.verdict import Fault, Observations

PRODUCER: Final = ("run_id", "topic", "producer")
UNDRAINED_SHOWN_MAX: Final = 3
FAULTS_MAX: Final = 10_000  # a fault a second for almost three hours; they are shown one by one
SECOND_NS: Final = 1_000_000_000


def observe(history: History) -> Observations:
    """Return the observations of a run: about a dozen small Spark jobs."""
    tables = history.tables
    undrained = _undrained(tables)
    shown = undrained.orderBy("client_id", "topic").limit(UNDRAINED_SHOWN_MAX).collect()
    return Observations(
        acknowledged=_length(_acknowledged(tables)),
        delivered=_length(tables.deliveries),
        recovered=_length(_recovered(tables)),
        undrained_count=undrained.count(),
        undrained=tuple(f"{row.client_id} {row.topic}" for row in shown),
        unplaced_answers=_unplaced(tables).count(),
        faults=_faults(history),
        rows={name: getattr(tables, name).count() for name in names()},
    )


def _length(runs: DataFrame) -> int:
    total = runs.agg(F.sum(F.col("last") - F.col("first") + 1)).first()
    assert total is not None, "an aggregate without groups has one row"
    return int(total[0] or 0)


def _acknowledged(tables: Tables) -> DataFrame:
    puts = tables.puts.where(F.col("outcome") == "ok")
    return intervals.merged(counters_of_puts(puts), PRODUCER)


def _recovered(tables: Tables) -> DataFrame:
    puts = counters_of_puts(tables.puts)
    seen = intervals.merged(counters_of_places(tables.places), PRODUCER)
    unconfirmed = intervals.uncovered(seen, puts.where(F.col("outcome") == "ok"), PRODUCER)
    unsure = puts.where(F.col("outcome") == "info").select(*PRODUCER, "bucket", "first", "last")
    return intervals.common(unconfirmed, intervals.merged(unsure, PRODUCER), PRODUCER)


def _undrained(tables: Tables) -> DataFrame:
    owner = ["run_id", "client_id", "topic"]
    standing = tables.subscriptions.where(~F.col("ended"))
    return standing.join(tables.drains, owner, "leftanti")


def _unplaced(tables: Tables) -> DataFrame:
    lacking = F.col("asked").isNull() | F.col("topic").isNull()
    return tables.gets.where(F.col("last").isNotNull() & lacking)


def _faults(history: History) -> tuple[Fault, ...]:
    action = F.get_json_object("error", "$.action")
    injected = history.events.where((F.col("f") == "fault") & (action == "inject")).select(
        "t_ns", "error"
    )
    acks = history.tables.puts.where(F.col("outcome") == "ok").select("end_ns")
    gap = F.col("after_ns") - F.col("before_ns")
    rows = (
        _nearest(injected, acks)
        .select("t_ns", "error", (gap / 1e6).alias("blackout_ms"))
        .orderBy("t_ns")
        .limit(FAULTS_MAX)
        .collect()
    )
    return tuple(_fault(row.t_ns, row.error, row.blackout_ms) for row in rows)


def _fault(t_ns: int, error: str, blackout_ms: float | None) -> Fault:
    fields = json.loads(error)
    targets = tuple(str(target) for target in fields.get("targets", ()))
    return Fault(str(fields.get("name", "")), targets, t_ns, blackout_ms)


def _nearest(faults: DataFrame, acks: DataFrame) -> DataFrame:
    """Return `faults` with the last acknowledgment before each and the first after it.

    Acknowledgments are looked at one by one only in a fault's own second; of the other seconds
    the first and the last are enough.
    """
    second = F.floor(F.col("end_ns") / SECOND_NS)
    timed = acks.withColumn("second", second)
    ends = timed.groupBy("second").agg(F.array(F.min("end_ns"), F.max("end_ns")).alias("ends"))
    far = faults.crossJoin(ends.select(F.explode("ends").alias("end_ns")))
    near = faults.withColumn("second", F.floor(F.col("t_ns") / SECOND_NS)).join(timed, "second")
    points = far.unionByName(near.drop("second"))
    end_ns = F.col("end_ns")
    nearest = points.groupBy("t_ns", "error").agg(
        F.max(F.when(end_ns <= F.col("t_ns"), end_ns)).alias("before_ns"),
        F.min(F.when(end_ns > F.col("t_ns"), end_ns)).alias("after_ns"),
    )
    return faults.join(nearest, ["t_ns", "error"], "left")
