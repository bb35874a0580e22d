"""What a run leaves that is killed itself (SIGKILL) is cleared away by the next one."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

import pytest

from chaos.targets import TargetError, leftovers
from chaos.targets.leftovers import RunLock, sweep
from cluster.local.local import LocalCluster

WAIT_S = 20.0
KILLED = """
import os, random, signal, sys
from pathlib import Path
from chaos.faults import FAULTS, support
from chaos.targets import leftovers
from chaos.targets.kinds import KINDS
kind, directory, *faults = sys.argv[1:]
leftovers.run_locks_directory = lambda: Path(directory) / "claims"
target = KINDS[kind](Path(directory) / "cluster", 3)
support.prepare(target, faults)
target.up()
for fault in faults:
    rng = random.Random(1)
    FAULTS[fault].inject(target, FAULTS[fault].choose(target, rng), rng)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(autouse=True)
def claims(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(leftovers, "run_locks_directory", lambda: tmp_path / "claims")
    return tmp_path / "claims"


def die(kind: str, directory: Path, *faults: str) -> None:
    """Let a process break a cluster and die."""
    done = subprocess.run(
        [sys.executable, "-c", KILLED, kind, str(directory), *faults],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path or "." for path in sys.path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr


def namespaces() -> set[str]:
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True)
    return {line.split()[0] for line in listed.stdout.splitlines()}


def holders_of_packets(spaces: set[str]) -> list[str]:
    """Return the processes in these namespaces that run packets.py."""
    found = []
    for space in spaces:
        pids = subprocess.run(["ip", "netns", "pids", space], capture_output=True, text=True)
        for pid in pids.stdout.split():
            with suppress(FileNotFoundError, ProcessLookupError):
                if b"packets.py" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    found.append(pid)
    return found


def states(pids: Iterable[int]) -> list[str]:
    """Return how those of these processes are that have not ended: "R", "S", "T", …"""
    found = []
    for pid in pids:
        with suppress(FileNotFoundError, ProcessLookupError):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            found.append(fields[0])
    return [state for state in found if state not in "ZX"]  # ended, whoever has to bury it


def test_paused_processes_of_a_dead_run_are_ended(tmp_path: Path, claims: Path) -> None:
    die("local", tmp_path, "pause-follower")
    assert len(LocalCluster(tmp_path / "cluster").pids()) == 3
    assert sweep() == [f"local: {tmp_path / 'cluster'}"]
    assert LocalCluster(tmp_path / "cluster").pids() == {}
    assert sweep() == []
    assert list(claims.iterdir()) == []


def test_a_paused_process_of_a_dead_run_is_ended_though_its_directory_is_gone(
    tmp_path: Path, claims: Path
) -> None:
    die("local", tmp_path, "pause-leader")
    pids = LocalCluster(tmp_path / "cluster").pids().values()
    deadline_s = time.monotonic() + WAIT_S
    while "T" not in states(pids):  # a signal arrives when its process is next scheduled
        assert time.monotonic() < deadline_s, states(pids)
    assert len(states(pids)) == 3
    shutil.rmtree(tmp_path / "cluster")
    assert sweep() == [f"local: {tmp_path / 'cluster'}"]
    assert states(pids) == []
    assert list(claims.iterdir()) == []


@pytest.mark.root
@pytest.mark.needs("ip", "iptables")
def test_namespaces_of_a_dead_run_go_with_all_that_is_in_them(tmp_path: Path, claims: Path) -> None:
    interfaces = set(os.listdir("/sys/class/net"))
    die("namespaces", tmp_path, "clogged-links", "isolate-leader")
    [claim] = claims.iterdir()
    label = json.loads(claim.read_text())["label"]  # another run may be making some as well
    made = {name for name in namespaces() if name.startswith(f"{label}-")}
    assert len(made) >= 4
    deadline_s = time.monotonic() + WAIT_S
    while holders_of_packets(made):  # they end by themselves, without a sweep
        assert time.monotonic() < deadline_s
        time.sleep(0.05)
    assert sweep() == [f"namespaces: {tmp_path / 'cluster'} {label}"]
    assert not namespaces() & made
    assert LocalCluster(tmp_path / "cluster").pids() == {}
    assert leftovers.host_interface(label) not in set(os.listdir("/sys/class/net")) - interfaces


def recorder(calls: list[tuple[Path, str]]) -> dict[str, Callable[[Path, str], None]]:
    return {"local": lambda directory, label: calls.append((directory, label))}


def test_a_living_run_is_left_alone_until_it_ends(tmp_path: Path) -> None:
    calls: list[tuple[Path, str]] = []
    claim = RunLock("local", tmp_path, "x")
    claim.take()
    assert sweep(recorder(calls)) == []
    claim.release()
    claim.release()
    assert sweep(recorder(calls)) == []
    assert calls == []


def test_two_living_runs_cannot_have_one_label(tmp_path: Path) -> None:
    first, second, other = (RunLock("compose", tmp_path, label) for label in ("a", "a", "b"))
    first.take()
    other.take()
    with pytest.raises(TargetError, match="a is in use by another run"):
        second.take()
    first.release()
    second.take()
    for claim in (second, other):
        claim.release()


def test_a_claim_that_is_just_being_taken_is_left_alone(tmp_path: Path, claims: Path) -> None:
    claims.mkdir(mode=0o700)
    (claims / "new.json").write_text("")
    calls: list[tuple[Path, str]] = []
    assert sweep(recorder(calls)) == []
    assert (claims / "new.json").exists()
