"""What chaos/targets promises of what is left: whose claims are believed, and when one is over."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from chaos import cli
from chaos.targets import TargetError, leftovers, namespaces
from chaos.targets.leftovers import RunLock, sweep
from chaos.targets.namespaces import NamespacesTarget

WAIT_S = 10.0
SLEEPER = (sys.executable, "-c", "import signal\nsignal.pause()")


# They know their processes by one name, /runs/dead: one after the other.
pytestmark = pytest.mark.xdist_group("leftovers")


@pytest.fixture(autouse=True)
def claims(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Claims of these tests only."""
    monkeypatch.setattr(leftovers, "run_locks_directory", lambda: tmp_path / "claims")
    return tmp_path / "claims"


def dead_claim(claims: Path, kind: str, label: str, directory: Path = Path("/runs/dead")) -> Path:
    """Write what a run that was killed has left."""
    claims.mkdir(mode=0o700, exist_ok=True)
    file = claims / f"{label}.json"
    file.write_text(json.dumps({"kind": kind, "directory": str(directory), "label": label}))
    return file


def test_a_claim_that_cannot_be_cleared_is_kept_and_told_and_the_others_are_cleared(
    claims: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stuck, gone = dead_claim(claims, "compose", "a"), dead_claim(claims, "local", "b")
    missing = dead_claim(claims, "namespaces", "c")
    cleared: list[str] = []

    def fails(directory: Path, label: str) -> None:
        raise TargetError("no docker here")

    def is_missing(directory: Path, label: str) -> None:
        raise FileNotFoundError("ip")

    clears = {
        "compose": fails,
        "namespaces": is_missing,
        "local": lambda directory, label: cleared.append(label),
    }
    assert sweep(clears) == ["local: /runs/dead b"]
    assert cleared == ["b"]
    assert (stuck.exists(), gone.exists(), missing.exists()) == (True, False, True)
    assert capsys.readouterr().err.splitlines() == [
        "left for another time: compose: /runs/dead a: no docker here",
        "left for another time: namespaces: /runs/dead c: ip",
    ]
    clears["compose"] = clears["namespaces"] = clears["local"]
    assert len(sweep(clears)) == 2
    assert list(claims.iterdir()) == []


def test_a_tool_that_is_missing_or_hangs_leaves_the_claim(
    claims: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = dead_claim(claims, "compose", "a")
    monkeypatch.setenv("PATH", "/nonexistent")
    assert sweep() == []
    assert file.exists()
    assert "No such file or directory: 'docker'" in capsys.readouterr().err


BROKEN = [
    (b"{bad", "it is no claim of ours"),
    (b"\xff", "it is no claim of ours"),
    (b"[" * 100_000, "it is no claim of ours"),
    (b'["kind", "directory", "label"]', "it is no claim of ours"),
    (b'{"kind": "local", "label": ""}', "it is no claim of ours"),
    (b'{"kind": "local", "directory": 7, "label": ""}', "it is no claim of ours"),
    (b'{"kind": "flood", "directory": "/x", "label": ""}', "there is no target 'flood'"),
    (b'{"kind": "local", "directory": "x", "label": ""}', "'x' is no absolute path"),
    (b"{}", "it is no claim of ours"),
]


@pytest.mark.parametrize(("content", "complaint"), BROKEN, ids=range(len(BROKEN)))
def test_a_claim_that_cannot_be_read_is_named_and_kept_and_the_others_are_cleared(
    claims: Path, capsys: pytest.CaptureFixture[str], content: bytes, complaint: str
) -> None:
    other = dead_claim(claims, "local", "z")
    broken = claims / "a.json"
    broken.write_bytes(content)
    done = CliRunner().invoke(cli.commands, ["heal"])
    assert (done.exit_code, done.stdout) == (0, "local: /runs/dead z\n")
    [line] = done.stderr.splitlines()
    assert line.startswith(f"left for another time: {broken}: {complaint}")
    assert (broken.exists(), other.exists()) == (True, False)
    claim = RunLock("compose", claims, "next")  # what a run does then
    claim.take()
    claim.release()


def test_a_claim_of_what_has_no_name_is_kept_and_named(
    claims: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    claims.mkdir(mode=0o700)
    broken = claims / "a.json"
    broken.write_bytes(b'{"kind": "compose", "directory": "/x", "label": "a\\u0000b"}')
    assert sweep() == []
    assert broken.exists()
    assert "embedded null byte" in capsys.readouterr().err


def test_a_directory_among_the_claims_is_named(
    claims: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (claims / "a.json").mkdir(parents=True)
    claims.chmod(0o700)
    assert sweep() == []
    assert f"{claims / 'a.json'}: it is no claim of ours" in capsys.readouterr().err


@pytest.mark.parametrize("label", ["", "x"])
def test_what_a_living_run_uses_is_not_cleared_for_a_dead_one(
    claims: Path, capsys: pytest.CaptureFixture[str], label: str
) -> None:
    dead = dead_claim(claims, "local", label)
    living = RunLock("local", Path("/runs/dead"), "")
    living.take()
    cleared: list[str] = []
    clears = {"local": lambda directory, label: cleared.append(label)}
    assert sweep(clears) == []
    assert "another run uses the same now" in capsys.readouterr().err
    living.release()
    assert len(sweep(clears)) == 1
    assert (cleared, dead.exists()) == ([label], False)


# --- processes ------------------------------------------------------------------------------------

Spawn = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def spawn() -> Iterator[Spawn]:
    """Start a process that does nothing but live, with these arguments; it ends with the test."""
    started: list[subprocess.Popen[bytes]] = []

    def start(*arguments: str) -> subprocess.Popen[bytes]:
        started.append(subprocess.Popen([*SLEEPER, *arguments]))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait(WAIT_S)


def test_a_paused_node_whose_directory_is_gone_is_ended_and_nobody_else(
    claims: Path, tmp_path: Path, spawn: Spawn
) -> None:
    directory = tmp_path / "run" / "cluster"
    directory.mkdir(parents=True)
    dead_claim(claims, "local", "", directory)
    file = str(directory / "n1" / "node.toml")
    paused, running = spawn("--config", file), spawn("--config", file.replace("n1", "n2"))
    others = [
        spawn("--config", str(tmp_path / "run" / "cluster2" / "n1" / "node.toml")),
        spawn("--config", str(directory / "deep" / "n1" / "node.toml")),
        spawn("--config", str(directory / "n1" / "other.toml")),
        spawn(file),
        spawn("--config", file, "more"),
        spawn(),
    ]
    os.kill(paused.pid, signal.SIGSTOP)
    shutil.rmtree(tmp_path / "run")
    assert sweep() == [f"local: {directory}"]
    assert [paused.wait(WAIT_S), running.wait(WAIT_S)] == [-signal.SIGKILL] * 2
    assert [other.poll() for other in others] == [None] * len(others)
    assert list(claims.iterdir()) == []


def test_a_node_that_cannot_be_ended_keeps_its_claim(
    claims: Path,
    spawn: Spawn,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    claim = dead_claim(claims, "local", "")
    node = spawn("--config", "/runs/dead/n1/node.toml")
    with monkeypatch.context() as patch:
        patch.setattr(leftovers, "DEATH_S_MAX", 0.05)
        patch.setattr(signal, "pidfd_send_signal", lambda process, number: None)
        assert sweep() == []
    assert f"processes [{node.pid}] still run 0.05 s after SIGKILL" in capsys.readouterr().err
    assert (claim.exists(), node.poll()) == (True, None)
    assert sweep() == ["local: /runs/dead"]
    assert (claim.exists(), node.wait(WAIT_S)) == (False, -signal.SIGKILL)


def test_a_node_in_the_middle_of_its_exec_is_found() -> None:
    for _ in range(20):  # posix_spawn returns in the middle of it
        words = ["env", *SLEEPER, "--config", "/runs/dead/n1/node.toml"]
        node = os.posix_spawnp(words[0], words, os.environ)
        leftovers.clear_processes(Path("/runs/dead"), "")
        ended, status = os.waitpid(node, os.WNOHANG)
        if not ended:
            os.kill(node, signal.SIGKILL)
            os.waitpid(node, 0)
        assert (ended, os.waitstatus_to_exitcode(status)) == (node, -signal.SIGKILL)


def test_the_nodes_of_a_network_are_found_by_a_relative_directory(
    tmp_path: Path, spawn: Spawn, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = spawn("--config", str(tmp_path / "cluster" / "n1" / "node.toml"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(leftovers, "output", lambda command: "")  # no namespaces here
    leftovers.clear_namespaces(Path("cluster"), "flotilla-none")
    assert node.wait(WAIT_S) == -signal.SIGKILL


def test_a_process_of_another_user_is_none_of_a_claim_s(
    spawn: Spawn, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = spawn("--config", "/runs/dead/n1/node.toml")
    user = os.geteuid()
    with monkeypatch.context() as patch:
        patch.setattr(os, "geteuid", lambda: user + 1)
        leftovers.clear_processes(Path("/runs/dead"), "")
    assert node.poll() is None


# --- whose claims are believed --------------------------------------------------------------------


@pytest.mark.parametrize("mode", [0o755, 0o770, 0o1777])
def test_claims_that_others_could_have_written_or_read_are_not_believed(
    claims: Path, mode: int
) -> None:
    dead_claim(claims, "local", "a")
    claims.chmod(mode)
    for use in (sweep, RunLock("local", claims).take):
        with pytest.raises(TargetError, match=f"mode 700, and is of user .* mode {mode:o}"):
            use()
    claims.chmod(0o700)
    assert len(sweep({"local": lambda directory, label: None})) == 1


def test_claims_in_somebody_else_s_directory_are_not_believed(
    claims: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead_claim(claims, "local", "a")
    user = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: user + 1)
    with pytest.raises(TargetError, match=rf"(?s)of user {user + 1} .*TMPDIR"):
        sweep()


def test_a_link_to_a_directory_of_claims_is_not_followed(claims: Path, tmp_path: Path) -> None:
    (tmp_path / "ours").mkdir(mode=0o700)
    claims.symlink_to(tmp_path / "ours")
    with pytest.raises(TargetError, match="must be a directory"):
        RunLock("local", tmp_path).take()


@pytest.fixture
def target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> NamespacesTarget:
    """A target of namespaces on a machine that seems to have all it needs; nothing is up."""
    monkeypatch.setattr(namespaces, "_check_machine", lambda: None)
    return NamespacesTarget(tmp_path / "cluster", 3)


def test_the_claim_on_namespaces_is_released_when_they_are_gone_and_not_before(
    target: NamespacesTarget, claims: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held: list[int] = []

    def clear(directory: Path, label: str) -> None:
        held.append(len(list(claims.iterdir())))

    monkeypatch.setattr(namespaces, "clear_namespaces", clear)
    target._claim.take()
    target.down()
    assert held == [1]
    assert list(claims.iterdir()) == []


def test_a_network_that_could_not_be_removed_stays_claimed(
    target: NamespacesTarget, claims: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def clear(directory: Path, label: str) -> None:
        raise TargetError("ip netns delete: busy")

    monkeypatch.setattr(namespaces, "clear_namespaces", clear)
    target._claim.take()
    with pytest.raises(TargetError, match="busy"):
        target.down()
    assert len(list(claims.iterdir())) == 1
    target._claim.release()


def test_packets_that_nobody_held_are_told_when_all_is_down(
    target: NamespacesTarget, claims: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forget() -> None:
        raise TargetError("n1: who held its packets had ended")

    cleared: list[str] = []
    monkeypatch.setattr(namespaces, "clear_namespaces", lambda _, label: cleared.append(label))
    monkeypatch.setattr(target._network, "forget", forget)
    target._claim.take()
    with pytest.raises(TargetError, match="had ended"):
        target.down()
    assert cleared == [target._label]
    assert list(claims.iterdir()) == []
