"""The benchmark's arithmetic and arguments, and one short run on real processes."""

from __future__ import annotations

import asyncio
from pathlib import Path

import orjson
import pytest
from click.testing import CliRunner, Result

from chaos.bench import broker_loads, brokers
from chaos.bench.cli import bench
from chaos.bench.figures import BenchError, Figure, SampleSpread, quantile, timed
from chaos.bench.loads import END, PUBLICATION
from chaos.bench.machine import Processors
from chaos.bench.measures import MEASURES, PEERS


def run(*arguments: str) -> Result:
    return CliRunner().invoke(bench, arguments)


def test_a_quantile_is_a_value_of_the_sample() -> None:
    values = [5.0, 1.0, 4.0, 2.0, 3.0]
    assert [quantile(values, share) for share in (0.2, 0.21, 0.5, 0.99, 1.0)] == [1, 2, 3, 5, 5]
    assert quantile([7.0], 0.01) == 7
    assert quantile([float(n) for n in range(1, 1001)], 0.99) == 990


def test_an_empty_sample_is_no_figure() -> None:
    with pytest.raises(BenchError, match="--seconds"):
        SampleSpread.of([])


def test_a_small_sample_has_no_p99() -> None:
    assert SampleSpread.of([1.0] * 99).p99 is None
    assert SampleSpread.of([1.0] * 98 + [2.0, 3.0], 10).p99 == 20


def test_a_duration_is_told_in_ms_against_the_others_median() -> None:
    figure = timed("name", "title", [0.004, 0.002, 0.009], {"echo": [0.001, 0.002, 0.5]})
    assert (figure.value, figure.unit, figure.against) == (4.0, "ms", {"echo": 2.0})
    assert figure.ratio("echo") == 2.0
    assert figure.spread == SampleSpread(4.0, None, 9.0, 3)


def test_a_figure_s_json_holds_its_ratios() -> None:
    row = Figure("rate", "a rate", 10.0, "/s", {"echo": 40.0}).as_json()
    assert row["against"] == {"echo": {"value": 40.0, "ratio": 0.25}}
    assert "p99" not in row, "a rate has no spread"


def test_the_share_of_others_leaves_out_our_own_time_and_idling() -> None:
    before, after = Processors(100.0, 50.0, 10.0), Processors(120.0, 65.0, 13.0)
    assert after.others_share(before) == pytest.approx((15 - 3) / 20)
    assert before.others_share(before) == 0.0


def test_publications_are_100_bytes_and_the_last_one_is_told_apart() -> None:
    assert len(PUBLICATION) == len(END) == 100
    assert PUBLICATION != END


@pytest.mark.parametrize(
    "arguments",
    [("--seconds", "0"), ("--seconds", "31"), ("--kills", "0"), ("--only", "nothing"), ("extra",)],
    ids=" ".join,
)
def test_arguments_out_of_bounds_are_refused_before_anything_starts(
    arguments: tuple[str, ...], tmp_path: Path
) -> None:
    # Should one be let through, what then runs is short and elsewhere.
    result = run("--only=memory", f"--dir={tmp_path}", *arguments)
    assert result.exit_code == 2
    assert "Error" in result.output


def test_help_names_every_measure() -> None:
    result = run("--help")
    assert result.exit_code == 0
    assert all(name in result.output for name in MEASURES)


def test_a_broker_whose_program_is_missing_is_told_with_what_brings_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(brokers, "SYSTEM_PATHS", str(tmp_path))
    result = run("--only=memory", f"--dir={tmp_path / 'runs'}", "--peers=etcd")
    assert result.exit_code == 2
    assert "apt-get install etcd-server" in result.output
    assert not (tmp_path / "runs").exists()


def test_a_broker_of_no_known_name_and_peers_that_nobody_named_are_refused(tmp_path: Path) -> None:
    result = run("--only=memory", f"--dir={tmp_path}", "--peers=kafka", "--peers=nats")
    assert result.exit_code == 2
    assert "there are nats, etcd" in result.output
    result = run("--only=peers", f"--dir={tmp_path}")
    assert result.exit_code == 2
    assert "--peers" in result.output


def test_a_broker_that_does_not_start_is_told_with_what_it_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "nats-server"
    program.write_text("#!/bin/sh\necho no such option\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with (
        pytest.raises(BenchError, match=r"nats does not start.*no such option"),
        brokers.running("nats", tmp_path / "nats"),
    ):
        raise AssertionError("it runs")


def test_a_young_cluster_s_lost_answer_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker_loads, "ATTEMPT_S_MAX", 0.01)
    asked = 0

    async def ready() -> bool:
        nonlocal asked
        asked += 1
        if asked == 1:
            await asyncio.Event().wait()  # its request was lost: no answer will come
        return asked == 3

    asyncio.run(broker_loads.await_leader("nats", ready))
    assert asked == 3


def test_a_cluster_that_never_answers_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker_loads, "ATTEMPT_S_MAX", 0.01)
    monkeypatch.setattr(broker_loads, "LEADER_S_MAX", 0.05)

    async def ready() -> bool:
        return await asyncio.Event().wait()

    with pytest.raises(BenchError, match="nats has no leader"):
        asyncio.run(broker_loads.await_leader("nats", ready))


@pytest.mark.needs("nats-server")
def test_nats_is_measured_beside_ours_and_ended(tmp_path: Path) -> None:
    report, parent = tmp_path / "figures.json", tmp_path / "runs"
    result = run("--only=peers", "--peers=nats", "--seconds=1", f"--json={report}",
                 f"--dir={parent}")  # fmt: skip
    assert result.exit_code == 0, result.output
    figures = {each["name"]: each for each in orjson.loads(report.read_bytes())["figures"]}
    for name in ("beside_latency", "beside_rate"):
        [(title, beside)] = figures[name]["against"].items()
        assert title.startswith("nats (")
        assert "fsync" in title
        assert beside["value"] > 0
    assert list(parent.iterdir()) == []


@pytest.mark.needs("nats-server")
def test_a_group_is_measured_beside_their_pull_consumer(tmp_path: Path) -> None:
    report, parent = tmp_path / "figures.json", tmp_path / "runs"
    result = run("--only=groups", "--peers=nats", "--seconds=1", f"--json={report}",
                 f"--dir={parent}")  # fmt: skip
    assert result.exit_code == 0, result.output
    [figure] = orjson.loads(report.read_bytes())["figures"]
    assert figure["value"] > 0
    assert any(title.startswith("nats, pull consumer") for title in figure["against"])
    assert list(parent.iterdir()) == []


@pytest.mark.slow
def test_a_short_run_measures_a_real_cluster_and_leaves_nothing_behind(tmp_path: Path) -> None:
    report, parent = tmp_path / "figures.json", tmp_path / "runs"
    only = [f"--only={name}" for name in MEASURES if name not in ("restart", PEERS)]
    result = run("--seconds=1", "--kills=1", "--seed=1", f"--json={report}", f"--dir={parent}",
                 *only)  # fmt: skip
    assert result.exit_code == 0, result.output
    document = orjson.loads(report.read_bytes())
    figures = {figure["name"]: figure for figure in document["figures"]}
    assert {"put_latency", "put_rate", "batch_rate", "delivery", "failover"} <= figures.keys()
    for figure in figures.values():
        assert figure["value"] > 0, figure
        assert all(other["ratio"] > 0 for other in figure["against"].values()), figure
    assert set(figures["put_latency"]["against"]) == {"ZeroMQ echo", "fdatasync"}
    assert document["seed"] == 1
    assert document["machine"]["cores"] >= 1
    assert list(parent.iterdir()) == []
