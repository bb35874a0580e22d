"""Latencies, staleness, progress and recovery: numbers of a history."""

import json

import pytest
from pyspark.sql import SparkSession

from analytics.common import session
from analytics.common.table_store import InDriver
from analytics.intake import truth
from analytics.judge import timing
from analytics.judge.load import parse
from analytics.tables.tables import Tables, build, ticks_of
from analytics.tables.tallies import tallies_of
from tests.spark.histories import RunRecorder

pytestmark = pytest.mark.slow

MS = 1_000_000
ACKS = "run_id STRING, end_ns BIGINT"


@pytest.fixture(scope="module")
def tables(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Tables:
    """PUTs of 1 ms and one of 53; the latter's batch came to `s` late, and again, to `r` early."""
    run = RunRecorder()
    run.sub("s", "t")
    for counter in range(1, 10):
        run.put("p", "t", counter, "ok", first_id=counter, last_id=counter)
    slow = run.invoke("p", "put", "t", counter=10, count=2)
    run.wait(50)
    run.get("r", "t", 9, [[10, "p", 10, 2]])
    run.complete(slow, "ok", first_id=10, last_id=11)
    run.wait(100)
    run.get("s", "t", 9, [[10, "p", 10, 2]])
    run.get("s", "t", 9, [[10, "p", 10, 2]], session=1)
    run.put("p", "t", 12, "info", error="timeout")
    rows = spark.createDataFrame([(json.dumps(row),) for row in run.rows], "value STRING")
    session.fit(spark, len(run.rows), size_bytes=0)
    keeper = InDriver(spark, tmp_path_factory.mktemp("kept"))
    events = keeper.table("events", parse(rows))
    tallies = keeper.table("tallies", tallies_of(events))
    return build(events, tallies, truth.none(spark), keeper.table)


def test_latencies_are_of_what_was_answered(tables: Tables) -> None:
    found = {one.of: one for one in timing.latencies(tables)}
    assert {of: one.count for of, one in found.items()} == {"get": 3, "put": 10, "sub": 1}
    put = found["put"]
    assert (put.p50_ms, put.p90_ms, put.p99_ms, put.max_ms) == (1.0, 1.0, 53.0, 53.0)


def test_staleness_is_from_acknowledgment_to_first_delivery(tables: Tables) -> None:
    all_ids = timing.staleness(tables, acknowledged=11)
    assert all_ids is not None
    assert (all_ids.count, all_ids.p50_ms, all_ids.max_ms) == (4, 0.0, 102.0)
    every_second = timing.staleness(tables, 2 * timing.STALENESS_SAMPLES)
    assert every_second is not None
    assert every_second.count == 2


def test_progress_is_all_time_but_long_silences(spark: SparkSession) -> None:
    times_ms = (500, 900, 2_000, 2_100, 4_500)
    acks = spark.createDataFrame([("run", ms * MS) for ms in times_ms], ACKS)
    phases = "run_id STRING, f STRING, phase STRING, t_ns BIGINT"
    heal = spark.createDataFrame([("run", "phase", "heal", 8_500 * MS)], phases)
    silent_ms = (2_000 - 900) + (4_500 - 2_100) + (8_500 - 4_500)
    ticks = ticks_of(acks)
    assert timing.progress_share(ticks, heal) == pytest.approx(1 - silent_ms / 8_000)
    assert timing.progress_share(ticks, heal.limit(0)) == pytest.approx(1 - 3_500 / 4_000)
    assert timing.progress_share(ticks_of(acks.limit(1)), heal.limit(0)) is None


def test_first_acknowledgment_after_a_moment(spark: SparkSession) -> None:
    acks = spark.createDataFrame([("run", ms * MS) for ms in (100, 300, 2_000, 2_001)], ACKS)
    moments = [ms * MS for ms in (50, 100, 300, 2_000, 2_001)]
    assert timing.first_after(acks, ticks_of(acks), moments) == {
        50 * MS: 100 * MS,
        100 * MS: 300 * MS,
        300 * MS: 2_000 * MS,
        2_000 * MS: 2_001 * MS,
    }
    assert timing.first_after(acks, ticks_of(acks), []) == {}
