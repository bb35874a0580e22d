"""What chaos/targets promises: faults become signals and docker commands, errors TargetErrors."""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from chaos.targets import TargetError, commands, compose, disks, leftovers, local
from chaos.targets.compose import ComposeTarget
from chaos.targets.local import LocalTarget
from cluster.local.local import LocalCluster

SLEEPER = (
    "import signal, sys; signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))\nsignal.pause()"
)
WAIT_S = 10.0


@pytest.fixture(autouse=True)
def claims(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Claims of these tests only: nothing of other runs is cleared away."""
    monkeypatch.setattr(leftovers, "run_locks_directory", lambda: tmp_path / "claims")
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


# --- ends that no fault explains ----------------------------------------------------------------


def await_end(target: LocalTarget, node: str) -> None:
    deadline_s = time.monotonic() + WAIT_S
    while node in pids(target):
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


def test_local_tells_each_end_that_no_fault_explains_once_with_its_manner(
    sleepers: LocalTarget,
) -> None:
    sleepers._cluster._command = (sys.executable, "-c", "import sys; sys.exit(3)")
    sleepers.kill(["n1"])
    sleepers.start(["n1"])
    os.kill(pids(sleepers)["n2"], signal.SIGKILL)
    for node in ("n1", "n2"):
        await_end(sleepers, node)
    assert sleepers.ended() == [
        "n1 ended by itself (exit code 3)",
        "n2 ended by itself (SIGKILL)",
    ]
    assert sleepers.ended() == []


def test_local_faults_explain_the_ends_that_they_make(sleepers: LocalTarget) -> None:
    sleepers.kill(["n1"])
    sleepers.wipe(["n2"])
    os.kill(pids(sleepers)["n3"], signal.SIGSTOP)
    sleepers.resume(["n3"])
    sleepers.start(["n1", "n2"])
    assert sleepers.ended() == []
    sleepers.down()
    assert sleepers.ended() == []


@pytest.mark.parametrize("then", ["start", "kill", "wipe"])
def test_local_tells_an_end_although_a_fault_or_a_start_follows(
    sleepers: LocalTarget, then: str
) -> None:
    os.kill(pids(sleepers)["n2"], signal.SIGKILL)
    await_end(sleepers, "n2")
    getattr(sleepers, then)(["n2"])
    assert sleepers.ended() == ["n2 ended by itself (SIGKILL)"]


class FakeShim:
    """Remembers what it is told; `fields` is what a node's process would find and count."""

    def __init__(self) -> None:
        self.fields = {"sync_fails": 0, "space_bytes": -1, "writes_refused": 0}
        self.fields["log_syncs_failed"] = 0

    def words(self) -> list[str]:
        return []

    def order(self, **fields: int) -> None:
        self.fields |= fields

    def ordered(self, name: str) -> int:
        return self.fields[name]

    def lose_power(self, choice: object) -> None:
        self.fields["lost"] = 1

    def forget(self) -> None: ...


@pytest.fixture
def shims(sleepers: LocalTarget) -> dict[str, Any]:
    """Shims of these nodes that do nothing."""
    made: dict[str, Any] = {node: FakeShim() for node in sleepers.nodes}
    sleepers._shims = made
    return made


def test_local_an_end_while_a_disk_is_full_or_fails_is_the_fault_s(
    sleepers: LocalTarget, shims: dict[str, Any]
) -> None:
    sleepers.fill(["n1"], 0)
    sleepers.fail_syncs(["n2"])
    for node in ("n1", "n2"):
        os.kill(pids(sleepers)[node], signal.SIGKILL)
        await_end(sleepers, node)
    sleepers.free(["n1"])
    shims["n1"].fields["writes_refused"] = 1
    sleepers.mend_syncs(["n2"])
    assert sleepers.ended() == []
    sleepers.start(["n1"])
    assert shims["n1"].fields["writes_refused"] == 0
    os.kill(pids(sleepers)["n1"], signal.SIGKILL)  # it has room
    await_end(sleepers, "n1")
    assert sleepers.ended() == ["n1 ended by itself (SIGKILL)"]


def test_local_a_node_that_goes_on_after_a_failed_fsync_is_a_finding_and_all_is_mended(
    sleepers: LocalTarget, shims: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "DEATH_S_MAX", 0.2)
    died = local.LocalTarget._await_deaths
    monkeypatch.setattr(local.LocalTarget, "_await_deaths", lambda *_: None)
    sleepers.fail_syncs(["n1", "n2"])
    shims["n1"].fields["log_syncs_failed"] = 1
    with pytest.raises(TargetError, match=r"\['n1'\] went on when an fsync of the journal"):
        sleepers.mend_syncs(["n1", "n2"])
    monkeypatch.setattr(local, "DEATH_S_MAX", WAIT_S)
    died(sleepers, ["n1", "n2"])
    assert all(shims[node].fields["lost"] for node in ("n1", "n2"))
    assert not any(shims[node].fields["sync_fails"] for node in ("n1", "n2"))
    assert sleepers.ended() == []


def test_local_a_second_failed_fsync_is_a_finding_whatever_the_node_died_of(
    sleepers: LocalTarget, shims: dict[str, Any]
) -> None:
    for node, failures in (("n1", 1), ("n2", 2)):
        sleepers.fail_syncs([node])
        shims[node].fields["log_syncs_failed"] = failures
        os.kill(pids(sleepers)[node], signal.SIGKILL)
        await_end(sleepers, node)
    with pytest.raises(TargetError, match=r"\['n2'\] went on when an fsync of the journal"):
        sleepers.mend_syncs(["n1", "n2"])


def test_local_a_node_that_had_nothing_to_sync_is_no_finding(
    sleepers: LocalTarget, shims: dict[str, Any]
) -> None:
    sleepers.fail_syncs(["n1"])
    sleepers.mend_syncs(["n1"])
    assert pids(sleepers).keys() == {"n2", "n3"}
    sleepers.start(["n1"])
    sleepers.slow_syncs(["n1"], 5)
    sleepers.mend_syncs(["n1"])  # nothing failed: it lives on
    assert pids(sleepers).keys() == {"n1", "n2", "n3"}


def test_local_a_disk_that_could_not_be_damaged_is_whole(sleepers: LocalTarget) -> None:
    with pytest.raises(TargetError, match="nothing is proved to be durable"):
        sleepers.flip_bit("n1", random.Random(1))
    assert sleepers._recovery.unsound == set()
    sleepers.rebuild(["n1"])
    assert pids(sleepers).keys() == {"n1", "n2", "n3"}
    assert sleepers.ended() == []


def test_local_a_damaged_disk_explains_its_node_s_end_until_it_is_emptied(
    sleepers: LocalTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disks, "flip_bit", lambda *_: "somewhere")
    sleepers.flip_bit("n1", random.Random(1))
    sleepers._cluster._command = (sys.executable, "-c", "import sys; sys.exit(65)")
    sleepers.start(["n1"])
    await_end(sleepers, "n1")
    assert sleepers.ended() == []
    sleepers.rebuild(["n1"])
    await_end(sleepers, "n1")
    assert sleepers.ended() == ["n1 ended by itself (exit code 65)"]


def test_local_down_is_harmless_twice_and_before_up(sleepers: LocalTarget, tmp_path: Path) -> None:
    sleepers.down()
    sleepers.down()
    LocalTarget(tmp_path / "never", 3).down()
    assert pids(sleepers) == {}


@pytest.mark.parametrize("lost", ["cluster", "cluster/cluster.json"])
def test_local_down_ends_its_nodes_and_nobody_else_s_though_their_directory_is_gone(
    sleepers: LocalTarget, tmp_path: Path, lost: str
) -> None:
    other = LocalCluster(tmp_path / "other", (sys.executable, "-c", SLEEPER))
    other.create(1)
    other.start("n1")
    sleepers.pause(["n2"])
    gone = tmp_path / "gone"
    (tmp_path / lost).rename(gone)
    sleepers._claim.take()
    sleepers.down()
    gone.rename(tmp_path / lost)
    assert pids(sleepers) == {}
    assert list(sleepers._cluster.exit_codes.values()) == [-signal.SIGKILL] * 3
    assert list((tmp_path / "claims").iterdir()) == []
    assert other.pids().keys() == {"n1"}
    other.down()


def test_local_errors_are_target_errors(sleepers: LocalTarget) -> None:
    with pytest.raises(TargetError, match="holds a cluster already"):
        sleepers.up()


class Docker:
    """Answers docker's commands; remembers them."""

    def __init__(self, without: str = "") -> None:
        self.commands: list[str] = []
        self.without = without
        self.lives: dict[str, str] = {}
        self.codes: dict[str, str] = {}

    def __call__(self, arguments: Sequence[str]) -> str:
        line = " ".join(arguments)
        self.commands.append(line)
        if self.without and line.startswith(self.without):
            raise TargetError(f"{line}: exit 1")
        if "inspect" in arguments:
            told = {compose.LIFE: self.lives, "{{.State.ExitCode}}": self.codes}
            answers, usual = told.get(arguments[3], {}), "0 running 0"
            usual = usual if arguments[3] == compose.LIFE else "running"
            found = [each.removeprefix("id-of-") for each in arguments if "id-of-" in each]
            return "".join(f"{answers.get(node, usual)}\n" for node in found)
        return f"id-of-{arguments[-1]}\n" if "ps" in arguments else ""


def test_compose_kills_with_one_command_so_that_all_die_at_once() -> None:
    docker = Docker()
    target = ComposeTarget(3, docker)
    target.up()
    target.kill(["n1", "n3"])
    target.start(["n1", "n3"])
    deeds = [line for line in docker.commands if not line.startswith("docker inspect")]
    assert deeds[-2:] == [
        "docker kill id-of-n1 id-of-n3",
        "docker start id-of-n1 id-of-n3",
    ]


def test_compose_tells_each_end_that_docker_has_made_good_and_those_it_has_not() -> None:
    docker = Docker()
    target = ComposeTarget(3, docker)
    assert target.ended() == []
    target.up()
    docker.lives = {"n1": "2 running 0", "n2": "1 restarting 70", "n3": "0 exited 74"}
    assert target.ended() == [
        "n1 ended by itself (docker has started it again)",
        "n1 ended by itself (docker has started it again)",
        "n2 ended by itself (exit code 70)",
        "n3 ended by itself (exit code 74)",
    ]
    assert target.ended() == []
    docker.lives["n2"] = "3 running 0"
    target.kill(["n2"])
    assert len(target.ended()) == 2


def test_compose_faults_explain_their_ends_and_a_start_sets_docker_s_count_back() -> None:
    docker = Docker()
    target = ComposeTarget(3, docker)
    target.up()
    docker.lives = {"n1": "2 running 0"}
    assert len(target.ended()) == 2
    target.kill(["n1"])
    docker.lives = {"n1": "2 exited 137"}
    assert target.ended() == []
    target.start(["n1"])
    docker.lives = {"n1": "1 running 0"}
    assert target.ended() == ["n1 ended by itself (docker has started it again)"]


def test_compose_says_when_a_container_had_to_be_killed_to_stop() -> None:
    docker = Docker()
    target = ComposeTarget(3, docker)
    target.up()
    docker.codes = {"n1": "143", "n2": "137"}
    target.stop(["n1"])
    with pytest.raises(TargetError, match="n2 did not end in order: docker stop had to kill it"):
        target.stop(["n2"])


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
    with pytest.raises(TargetError, match=r"sleep 60.*timed out after 0\.1 s"):
        commands.output(["sleep", "60"], seconds_max=0.1)
