"""The report's series, from histories small enough to know every number, and its files."""

import json
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from analytics.common import session
from analytics.common.table_store import InDriver
from analytics.common.verdict import (
    InjectedFault,
    Observations,
    Report,
    Verdict,
    Witness,
    WitnessOperation,
)
from analytics.intake.truth import none
from analytics.judge.load import History, LoadedFiles, parse
from analytics.report import page
from analytics.report.data import Band, Lead, PhaseSpan, Series
from analytics.report.operations import fetch, timeline
from analytics.report.page import write_report
from analytics.report.series import collect
from analytics.tables.tables import build
from analytics.tables.tallies import tallies_of
from tests.report import samples
from tests.spark.histories import Row, RunRecorder, clean_run

MS = 1_000_000


class TimedRun(RunRecorder):
    """A recorder that is told the time: `at` ms after the first row."""

    def at(self, at_ms: int, row: Row) -> Row:
        row["t_ns"] = row["wall_ns"] = 10**12 + at_ms * MS
        return row

    def operation(
        self, begin_ms: int, end_ms: int, client: str, f: str, outcome: str, **fields: Any
    ) -> None:
        """Record an operation; fields that start with `asked_` are the invoke's."""
        asked = {k.removeprefix("asked_"): v for k, v in fields.items() if k.startswith("asked_")}
        told = {k: v for k, v in fields.items() if not k.startswith("asked_")}
        invoke = self.at(begin_ms, self.invoke(client, f, "t", **asked))
        self.at(end_ms, self.complete(invoke, outcome, **told))

    def phase(self, at_ms: int, name: str, **fields: Any) -> None:
        row = {"process": "runner", "op_id": at_ms, "f": "phase", "phase": name, **fields}
        self.at(at_ms, self._add(row, "info"))


def recorded() -> list[Row]:
    """Return a run of 0.7 s in which a leader dies: every number in the tests is from here."""
    run = TimedRun()
    run.operation(0, 10, "s", "sub", "ok", last_id=0)
    run.operation(1, 11, "gone", "sub", "ok", last_id=0)
    run.operation(12, 13, "gone", "unsub", "ok")
    run.phase(20, "warmup")
    led = {"node": "n1", "term": 1}
    run.operation(50, 90, "p", "put", "ok", asked_counter=1, asked_count=2, first_id=1, **led)
    items = [[1, "p", 1, 2]]
    run.operation(100, 150, "s", "get", "ok", asked_last_id=0, items=items, count=2, first_id=1)
    run.fault("kill", "inject")
    run.at(200, run.rows[-1])
    run.operation(160, 260, "p", "put", "info", asked_counter=3, error="timeout")
    run.operation(300, 310, "p", "put", "fail", asked_counter=4, error="electing")
    run.fault("kill", "heal")
    run.at(420, run.rows[-1])
    led = {"node": "n2", "term": 2}
    run.operation(320, 450, "p", "put", "ok", asked_counter=3, first_id=3, **led)
    items = [[3, "p", 3, 1]]
    run.operation(400, 620, "s", "get", "ok", asked_last_id=2, items=items, count=1, first_id=3)
    run.phase(700, "drained", client_id="s", topic="t", last_id=3)
    return run.rows


def kept(spark: SparkSession, rows: list[Row], directory: Path) -> History:
    """Return the history of `rows`, its tables kept as a check keeps them.

    Otherwise the plan of each would have in it those of all that it is made of.
    """
    lines = spark.createDataFrame([(json.dumps(row),) for row in rows], "value STRING")
    session.fit(spark, len(rows), size_bytes=0)
    keeper, truth = InDriver(spark, directory / "parquet"), none(spark)
    events = keeper.table("events", parse(lines))
    tables = build(events, keeper.table("tallies", tallies_of(events)), truth, keeper.table)
    return History(LoadedFiles(rows[0]["run_id"]), events, tables, keeper, truth)


@pytest.fixture(scope="module")
def history(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> History:
    return kept(spark, recorded(), tmp_path_factory.mktemp("run"))


@pytest.fixture(scope="module")
def seen() -> Observations:
    begin_ns, healed_ns = (10**12 + at_ms * MS for at_ms in (200, 420))
    kill = InjectedFault("kill", ("node-1",), begin_ns, 360.0, healed_ns=healed_ns)
    return replace(samples.observations((kill,)), acknowledged=3)


@pytest.fixture(scope="module")
def series(history: History, seen: Observations) -> Series:
    collected = collect(history.events, history.tables, seen)
    assert collected is not None
    return collected


@pytest.mark.slow
def test_rates_count_publications_by_the_end_of_their_operation(series: Series) -> None:
    assert (series.axis.count, series.axis.width_s) == (8, 0.1)
    assert {name: list(values) for name, values in series.rates.items()} == {
        "acknowledged": [20, 0, 0, 0, 10, 0, 0, 0],
        "delivered": [0, 20, 0, 0, 0, 0, 10, 0],
        "unknown": [0, 0, 10, 0, 0, 0, 0, 0],
        "refused": [0, 0, 0, 10, 0, 0, 0, 0],
    }


@pytest.mark.slow
def test_latency_and_staleness_are_where_there_are_samples_and_nowhere_else(
    series: Series,
) -> None:
    nothing = [None] * 8
    assert series.latency.p50 == [40, *nothing[:3], 130, *nothing[:3]]
    assert series.latency.most == series.latency.p99 == series.latency.p50
    assert series.staleness.p50 == [None, 60, *nothing[:4], 170, None]


@pytest.mark.slow
def test_unseen_is_what_standing_subscriptions_lack(series: Series) -> None:
    assert series.unseen == [2, 0, 0, 0, 1, 1, 0, 0]


@pytest.mark.slow
def test_faults_phases_and_leaders_have_their_times(series: Series) -> None:
    assert series.phases == (PhaseSpan("warmup", 0.02, 0.7),)
    assert series.bands == (Band("kill", ("node-1",), 0.2, 0.42, True),)
    assert series.leads == (Lead("n1", 1, 0.09, 0.09, 1), Lead("n2", 2, 0.45, 0.45, 1))


@pytest.mark.slow
def test_clocks_of_two_hosts_are_not_put_on_one_axis(history: History, seen: Observations) -> None:
    elsewhere = F.when(F.col("process") == "p", F.lit("far")).otherwise(F.col("host"))
    events = history.events.withColumn("host", elsewhere)
    assert collect(events, history.tables, seen) is None


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", [3])
def test_series_of_a_random_run_are_those_that_a_loop_counts(
    spark: SparkSession, tmp_path: Path, seed: int
) -> None:
    print("seed", seed)
    rows = clean_run(seed)
    history = kept(spark, rows, tmp_path)
    series = collect(history.events, history.tables, samples.observations(()))
    assert series is not None
    assert series.axis.count > 5
    expected, lags = counted(rows, series.axis.origin_ns, series.axis.count)
    for name, by_slice in expected.items():
        assert [round(rate * series.axis.width_s) for rate in series.rates[name]] == by_slice
    assert series.unseen == lags
    assert any(lags)


def counted(rows: list[Row], origin_ns: int, slices: int) -> tuple[dict[str, list[int]], list[int]]:
    """Return publications acknowledged and delivered, and those unseen, slice by slice."""
    totals: dict[str, list[int]] = defaultdict(lambda: [0] * slices)
    acked, has, lags = 0, {}, [0] * slices
    left_ns = {row["client_id"]: row["t_ns"] for row in rows if row["f"] == "unsub"}  # the last
    counts = {
        (row["process"], row["op_id"]): row["count"]
        for row in rows
        if row["f"] == "put" and row["type"] == "invoke"
    }
    for row in rows:
        at = (row["t_ns"] - origin_ns) // (100 * MS)
        kind = (row["f"], row["type"])
        if kind == ("put", "ok"):
            count = counts[row["process"], row["op_id"]]
            totals["acknowledged"][at] += count
            acked = max(acked, row["first_id"] + count - 1 if row["first_id"] else 0)
        elif kind == ("sub", "ok") and row["t_ns"] > left_ns.get(row["client_id"], 0):
            has.setdefault(row["client_id"], row["last_id"])
        elif kind == ("get", "ok"):
            totals["delivered"][at] += row["count"]
            if row["client_id"] in has and row["items"]:
                last = max(item[0] + item[3] - 1 for item in row["items"])
                has[row["client_id"]] = max(has[row["client_id"]], last)
        lags[at:] = [sum(max(acked - cursor, 0) for cursor in has.values())] * (slices - at)
    return dict(totals), lags


# --- files ----------------------------------------------------------------------------------------


def judged(history: History, seen: Observations) -> Report:
    """Return a report of the recorded run, with a witness whose operations are in it."""
    told = samples.report()
    operations = (
        WitnessOperation("p", 1, ("history/p.jsonl:1", "history/p.jsonl:2")),
        WitnessOperation("s", 2),
    )
    witness = Witness("run", samples.TOPIC, "s", 1, None, "p", 1, "tail", operations)
    checks = (replace(told.checks[0], witnesses=(witness,)), *told.checks[1:])
    directory = str(history.keeper.cache).removesuffix("/parquet")
    return replace(told, directory=directory, checks=checks, observations=seen, reasons=())


@pytest.mark.slow
def test_operations_of_witnesses_are_fetched_and_no_others(
    history: History, seen: Observations
) -> None:
    report = judged(history, seen)
    events = fetch(history.events, report.checks[0].witnesses)
    assert {key: [one["type"] for one in own] for key, own in events.items()} == {
        ("p", 1): ["invoke", "ok"],
        ("s", 2): ["invoke", "ok"],
    }
    drawn = timeline(report.checks[0].witnesses[0].operations, events, 10**12)
    assert drawn is not None
    assert [(bar.words, bar.lasted_ms) for bar in drawn.bars] == [
        ("PUT t counters 1–2 → ids 1–2 (leader n1, term 1)", 40.0),
        ("GET t after id 0 → ids 1–2", 50.0),
    ]


@pytest.mark.slow
def test_report_writes_page_and_data_into_the_run_s_directory(
    history: History, seen: Observations
) -> None:
    report = judged(history, seen)
    assert write_report(history, report) == report
    directory = Path(report.directory)
    text = (directory / "report.html").read_text(encoding="utf-8")
    assert "PUT t counters 1–2 → ids 1–2" in text
    assert 'href="history/p.jsonl"' in text
    assert json.loads((directory / "report.json").read_text())["verdict"] == "invalid"


@pytest.mark.slow
def test_page_that_cannot_be_made_is_a_reason_for_doubt_and_hides_nothing(
    history: History, seen: Observations, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> str:
        raise ZeroDivisionError("on purpose")

    monkeypatch.setattr(page, "_page_of", broken)
    report = judged(history, seen)
    invalid = write_report(history, report)
    valid = write_report(history, replace(report, checks=report.checks[1:2]))
    assert invalid.reasons == ("no page was made: ZeroDivisionError: on purpose",)
    assert (invalid.verdict, valid.verdict) == (Verdict.INVALID, Verdict.UNKNOWN)
    written = json.loads((Path(report.directory) / "report.json").read_text())
    assert written["reasons"] == list(invalid.reasons)
