"""What chaos/targets promises: faults become signals and docker commands, errors TargetErrors."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from chaos.targets import TargetError, compose, leftovers
from chaos.targets.compose import ComposeTarget
from chaos.targets.local import LocalTarget
from cluster.local import LocalCluster

SLEEPER = (
    "import signal, sys; signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))\nsignal.pause()"
)


@pytest.fixture(autouse=True)
def claims(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Claims of these tests only: nothing of other runs is cleared away."""
    monkeypatch.setattr(leftovers, "claims_directory", lambda: tmp_path / "claims")
    return tmp_path / "claims"


@pytest.fixture
def sleepers(tmp_path: Path) -> Iterator[LocalTarget]:
    """A local target whose nodes are processes that do nothing but live."""
    target = LocalTarget(tmp_path / "cluster", 3)
    target._cluster = LocalCluster(tmp_path / "cluster", (sys.executable, "-c", SLEEPER))
    target._cluster.create(3)
    target.start(["n1", "n2", "n3"])
    yield target
    target.down()


def pids(target: LocalTarget) -> dict[str, int]:
    return target._cluster.pids()


def test_local_kill_sends_every_signal_before_it_waits_for_a_death(
    sleepers: LocalTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, order = pids(sleepers), []
    kill, died = os.kill, LocalTarget._await_deaths
    monkeypatch.setattr(os, "kill", lambda *args: (order.append(args), kill(*args)))
    monkeypatch.setattr(
        LocalTarget, "_await_deaths", lambda *args: (order.append("wait"), died(*args))
    )
    sleepers.kill(["n1", "n3"])
    assert order == [(before["n1"], signal.SIGKILL), (before["n3"], signal.SIGKILL), "wait"]
    assert pids(sleepers) == {"n2": before["n2"]}


def test_local_start_leaves_a_node_alone_that_runs(sleepers: LocalTarget) -> None:
    sleepers.kill(["n1"])
    before = pids(sleepers)
    sleepers.start(["n1", "n2", "n3"])
    after = pids(sleepers)
    assert after.keys() == {"n1", "n2", "n3"}
    assert {name: after[name] for name in before} == before


def test_local_down_is_harmless_twice_and_before_up(sleepers: LocalTarget, tmp_path: Path) -> None:
    sleepers.down()
    sleepers.down()
    LocalTarget(tmp_path / "never", 3).down()
    assert pids(sleepers) == {}


def test_local_errors_are_target_errors(sleepers: LocalTarget) -> None:
    with pytest.raises(TargetError, match="holds a cluster already"):
        sleepers.up()


class Docker:
    """Answers docker's commands; remembers them."""

    def __init__(self, without: str = "") -> None:
        self.commands: list[str] = []
        self.without = without

    def __call__(self, arguments: Sequence[str]) -> str:
        line = " ".join(arguments)
        self.commands.append(line)
        if self.without and line.startswith(self.without):
            raise TargetError(f"{line}: exit 1")
        if "inspect" in arguments:
            return "running\n" * len([each for each in arguments if each.startswith("id-of-")])
        return f"id-of-{arguments[-1]}\n" if "ps" in arguments else ""


def test_compose_kills_with_one_command_so_that_all_die_at_once() -> None:
    docker = Docker()
    target = ComposeTarget(3, docker)
    target.up()
    target.kill(["n1", "n3"])
    target.start(["n1", "n3"])
    assert docker.commands[-2:] == [
        "docker kill id-of-n1 id-of-n3",
        "docker start id-of-n1 id-of-n3",
    ]


def test_compose_takes_the_old_command_where_there_is_no_other() -> None:
    docker = Docker(without="docker compose")
    ComposeTarget(3, docker).up()
    assert docker.commands[2].startswith("docker-compose -p flotilla-chaos -f")


def test_compose_without_any_docker_says_so_before_anything_is_made() -> None:
    with pytest.raises(TargetError, match="neither `docker compose` nor `docker-compose`"):
        ComposeTarget(3, Docker(without="docker"))


def test_compose_starts_afresh_and_leaves_nothing_behind() -> None:
    docker = Docker()
    target = ComposeTarget(3, docker)
    target.up()
    target.down()
    target.down()
    verbs = [line.split("compose.yaml ")[-1] for line in docker.commands if " -p " in line]
    assert verbs[:2] == ["down --volumes", "up --detach --build"]
    assert verbs[-1] == "down --volumes"
    assert verbs.count("down --volumes") == 2


def test_compose_has_the_nodes_and_ports_of_its_file(monkeypatch: pytest.MonkeyPatch) -> None:
    text = compose.COMPOSE_FILE.read_text(encoding="utf-8")
    assert all(f"\n  {node}:\n" in text for node in compose.NODES)
    monkeypatch.setenv("FLOTILLA_PORT_2", "9002")
    endpoints = ComposeTarget(3, Docker()).endpoints()
    assert endpoints["n1"] == "tcp://127.0.0.1:7001"
    assert endpoints["n2"] == "tcp://127.0.0.1:9002"
    with pytest.raises(TargetError, match="3 nodes, not 5"):
        ComposeTarget(5, Docker())


def test_a_command_that_fails_tells_its_stderr_and_one_that_is_missing_its_name() -> None:
    script = "import sys; sys.exit('no such container')"
    with pytest.raises(TargetError, match=r"exit 1: no such container"):
        compose.run_command([sys.executable, "-c", script])
    with pytest.raises(TargetError, match="no-such-program"):
        compose.run_command(["no-such-program"])
    assert compose.run_command([sys.executable, "-c", "print('x')"]) == "x\n"
