"""What chaos/run/simulated.py promises: an experiment in virtual time, its history whole."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from analytics.twins import find_all
from chaos.faults import FAULTS
from chaos.run import launch
from chaos.run.plan import RunPlan
from chaos.run.run_result import RunResult
from chaos.run.simulated import NAME, SimulatedRun, simulator_plan
from chaos.simulation.plan.plan import CLIENTS_MAX
from chaos.spec import experiment
from chaos.targets import TargetError, UnsupportedFault
from chaos.workloads.history import read

SHORT = """
about = "a leader and then all nodes, killed"
[workload]
topics = ["alpha"]
[[clients]]
kind = "publisher"
count = 1
rate_per_s = 20
[[clients]]
kind = "subscriber"
[[faults]]
name = "kill-leader"
hold_s = 0.5
quiet_s = 1.5
[[faults]]
name = "kill-all"
hold_s = 0.2
quiet_s = 2
[phases]
steady_s = 0.5
[expect]
acknowledged_min = 20
"""


def able(name: str) -> list[str]:
    """Return the targets that can do an experiment."""
    return launch.able(launch.load(name))


class NothingShown:
    """Shows nothing."""

    def stage(self, title: str, expected_s: float) -> None: ...
    def tick(self, status: str) -> None: ...
    def say(self, line: str) -> None: ...


def _plan(directory: Path, text: str = SHORT, seed: int = 5) -> RunPlan:
    parsed = experiment.parse(text, "short", FAULTS)
    return RunPlan(experiment=parsed, seed=seed, duration_s=0.0, directory=directory)


def _events(directory: Path) -> list[dict[str, Any]]:
    return [event for file in sorted((directory / "history").glob("*")) for event in read(file)]


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, RunResult]:
    """Return a run's directory and outcome."""
    directory = tmp_path_factory.mktemp("run")
    return directory, SimulatedRun(_plan(directory), 3, NothingShown()).run()


def test_a_run_comes_to_its_end_and_finds_nothing(done: tuple[Path, RunResult]) -> None:
    directory, outcome = done
    assert (outcome.finished, outcome.problems) == (True, [])
    assert outcome.acknowledged >= 20
    assert outcome.delivered >= outcome.acknowledged - 1
    assert not any(find_all(_events(directory)).values())


def test_each_fault_is_measured_and_stands_in_the_history(done: tuple[Path, RunResult]) -> None:
    directory, outcome = done
    assert [injection.name for injection in outcome.injections] == ["kill-leader", "kill-all"]
    assert [len(injection.targets) for injection in outcome.injections] == [1, 3]
    assert all(injection.gap_ms for injection in outcome.injections)
    rows = [json.loads(event["error"]) for event in _events(directory) if event["f"] == "fault"]
    assert [row["action"] for row in rows] == ["inject", "heal", "inject", "heal"]


def test_every_line_is_of_the_run_that_run_json_names(done: tuple[Path, RunResult]) -> None:
    directory, outcome = done
    document = json.loads((directory / "run.json").read_bytes())
    assert {event["run_id"] for event in _events(directory)} == {document["run_id"]}
    assert (document["target"], document["nodes"]) == ("simulated", ["a", "b", "c"])
    assert document["outcome"]["acknowledged"] == outcome.acknowledged


@pytest.mark.slow
def test_the_same_seed_is_the_same_history_and_another_one_is_not(
    done: tuple[Path, RunResult], tmp_path: Path
) -> None:
    SimulatedRun(_plan(tmp_path / "same"), 3, NothingShown()).run()
    SimulatedRun(_plan(tmp_path / "other", seed=6), 3, NothingShown()).run()
    assert _events(tmp_path / "same") == _events(done[0])
    assert _events(tmp_path / "other") != _events(done[0])


@pytest.mark.parametrize("name", [name for name in experiment.names() if NAME in able(name)])
def test_an_experiment_that_can_be_simulated_becomes_a_plan(tmp_path: Path, name: str) -> None:
    loaded = launch.load(name)
    plan = RunPlan(experiment=loaded, seed=1, duration_s=60.0, directory=tmp_path)
    simulated = simulator_plan(plan, 3)
    assert simulated.duration_s >= 60.0
    assert simulated.clients == sum(group.count for group in loaded.workload.groups)


def test_nearly_all_experiments_can_be_simulated() -> None:
    names = experiment.names()
    assert len([name for name in names if NAME in able(name)]) > 0.9 * len(names)


def test_too_many_clients_or_windows_and_strange_faults_are_refused(tmp_path: Path) -> None:
    long = replace(_plan(tmp_path, SHORT), duration_s=86_400.0)
    with pytest.raises(TargetError, match=r"simulated: \d+ windows, 5000 are the most"):
        simulator_plan(long, 3)
    crowd = SHORT.replace("count = 1", f"count = {CLIENTS_MAX}")
    with pytest.raises(TargetError, match="are the most"):
        simulator_plan(_plan(tmp_path, crowd), 3)
    with pytest.raises(UnsupportedFault, match="simulated cannot do clock-step"):
        simulator_plan(_plan(tmp_path, SHORT.replace("kill-all", "clock-step")), 3)
