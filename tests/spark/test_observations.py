"""The blackout of a fault: the longest silence in its window, as the runner measures it too."""

import random

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from analytics.judge import observations
from analytics.tables.tables import ticks_of
from chaos.workloads.history import longest_gap_ns

pytestmark = pytest.mark.slow

MS = 1_000_000
SECOND_NS = 1_000 * MS
EVENTS = "run_id STRING, f STRING, phase STRING, error STRING, t_ns BIGINT"
INJECT = '{"action": "inject"}'


def blackouts(
    spark: SparkSession, acks_ns: list[int], injections_ns: list[int], heal_ns: int | None
) -> list[float | None]:
    """Return `blackout_ms` of each injection, in order."""
    rows = [("run", "fault", None, INJECT, t_ns) for t_ns in injections_ns]
    rows += [("run", "put", None, None, t_ns) for t_ns in acks_ns]
    rows += [] if heal_ns is None else [("run", "phase", "heal", None, heal_ns)]
    acks = spark.createDataFrame([("run", t_ns) for t_ns in acks_ns], "run_id STRING, end_ns LONG")
    events = spark.createDataFrame(rows, EVENTS)
    ends = events.groupBy("run_id").agg(F.max("t_ns").alias("end_ns"))
    windows = observations._windows(events, ends)
    measured = observations._with_blackout(windows, ticks_of(acks)).orderBy("begin_ns").collect()
    return [row.blackout_ms for row in measured]


def test_acknowledgment_in_flight_does_not_hide_the_silence_behind_it(spark: SparkSession) -> None:
    acks_ns = [ms * MS for ms in (8, 12, 2_030, 3_000, 3_500)]
    assert blackouts(spark, acks_ns, [10 * MS], 3_600 * MS) == [2_018.0]


def test_window_ends_with_the_next_injection_the_healing_or_the_history(
    spark: SparkSession,
) -> None:
    acks_ns = [ms * MS for ms in (8, 30, 49, 52, 88, 2_000)]
    assert blackouts(spark, acks_ns, [10 * MS, 50 * MS], 90 * MS) == [22.0, 36.0]
    assert blackouts(spark, acks_ns, [1_900 * MS], None) == [1_912.0]


def test_blackout_without_an_end_or_a_beginning_is_unknown(spark: SparkSession) -> None:
    acks_ns = [ms * MS for ms in (20, 30)]
    assert blackouts(spark, acks_ns, [10 * MS], 40 * MS) == [None]
    assert blackouts(spark, acks_ns, [25 * MS], 900 * MS) == [None]


@pytest.mark.parametrize("seed", range(4))
def test_spark_and_the_runner_measure_the_same(spark: SparkSession, seed: int) -> None:
    print("seed", seed)
    rng = random.Random(seed)
    end_ns = 12 * SECOND_NS
    quiet = [(at, at + rng.randrange(2 * SECOND_NS)) for at in rng.sample(range(end_ns), 4)]
    drawn = (rng.randrange(end_ns + SECOND_NS) for _ in range(rng.choice((40, 400))))
    acks_ns = sorted(t for t in drawn if not any(begin < t < end for begin, end in quiet))
    begins_ns = sorted(rng.sample(range(SECOND_NS, end_ns), 5))
    expected = [
        None if gap_ns is None else gap_ns / 1e6
        for begin_ns, until_ns in zip(begins_ns, [*begins_ns[1:], end_ns], strict=True)
        for gap_ns in [longest_gap_ns(acks_ns, begin_ns, until_ns)]
    ]
    assert any(expected)
    assert blackouts(spark, acks_ns, begins_ns, end_ns) == expected
