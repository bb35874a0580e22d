"""cluster/local/local.py: the directory and the processes of a local cluster, with stub nodes."""

from __future__ import annotations

import errno
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.local import processes
from cluster.local.errors import LocalError
from cluster.local.local import LocalCluster, LocalNode
from cluster.settings.config import ConfigError, load
from tests.conftest import ANSWER_MS

ENDED_S_MAX = 30.0  # of a stub that was told to end, on a busy machine
STUB = (sys.executable, str(Path(__file__).with_name("stub_node.py")))
START_TIMEOUT_S = 60  # a second or two; on a machine with forty others to run, thirty


@pytest.fixture
def made(tmp_path: Path) -> Iterator[LocalCluster]:
    cluster = LocalCluster(tmp_path / "cluster", STUB)
    cluster.create(3)
    yield cluster
    cluster.down(patience_s=0.1)


@pytest.fixture
def running(made: LocalCluster) -> LocalCluster:
    _start_all(made)
    return made


def _start_all(cluster: LocalCluster) -> None:
    cluster.start_all()
    deadline = time.monotonic() + START_TIMEOUT_S
    while len(cluster.statuses()) < len(cluster.nodes()):
        assert time.monotonic() < deadline, cluster.tails()


def _rows(cluster: LocalCluster) -> list[dict[str, object]]:
    return json.loads((cluster.directory / "cluster.json").read_text())["nodes"]


def test_a_created_cluster_has_a_file_that_every_node_accepts(made: LocalCluster) -> None:
    configs = [load(made.directory / name / "node.toml", {}) for name in ("n1", "n2", "n3")]

    assert [config.node for config in configs] == ["n1", "n2", "n3"]
    assert all(config.members == configs[0].members for config in configs)
    assert [config.peer_listen for config in configs] == list(configs[0].members.values())
    assert list(made.endpoints().values()) == [f"tcp://{c.client_listen}" for c in configs]


def test_ports_follow_from_the_one_given(tmp_path: Path) -> None:
    cluster = LocalCluster(tmp_path / "cluster", STUB)
    port = _hundred_free_ports(tmp_path)

    cluster.create(3, port)

    config = load(tmp_path / "cluster" / "n2" / "node.toml", {})
    assert config.client_listen == f"127.0.0.1:{port + 2}"
    assert config.peer_listen == f"127.0.0.1:{port + 102}"


def _hundred_free_ports(directory: Path) -> int:
    probe = LocalCluster(directory / "probe", STUB)
    probe.create(1)
    return int(probe.endpoints()["n1"].rpartition(":")[2]) - 1


def test_a_taken_port_is_named(running: LocalCluster, tmp_path: Path) -> None:
    port = int(running.endpoints()["n1"].rpartition(":")[2])

    with pytest.raises(LocalError, match=f"{port}.*is taken.*--port"):
        LocalCluster(tmp_path / "other", STUB).create(3, port - 1)


def test_a_port_that_is_not_for_us_is_told_as_such(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Forbidden(socket.socket):
        def bind(self, address: object) -> None:
            raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(socket, "socket", Forbidden)
    with pytest.raises(LocalError, match=r"port 81, 181: permission denied.*--port"):
        LocalCluster(tmp_path, STUB).create(1, 80)


def test_settings_reach_every_node(tmp_path: Path) -> None:
    LocalCluster(tmp_path, STUB).create(3, settings={"limits.parked_gets_max": 7})

    assert load(tmp_path / "n3" / "node.toml", {}).limits.parked_gets_max == 7


def test_settings_that_a_node_would_refuse_are_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="did you mean"):
        LocalCluster(tmp_path, STUB).create(3, settings={"limits.parked_get_max": 7})


def test_a_number_of_nodes_without_a_clear_majority_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LocalError, match="4 nodes make no cluster"):
        LocalCluster(tmp_path, STUB).create(4)


def test_a_directory_holds_one_cluster(made: LocalCluster) -> None:
    with pytest.raises(LocalError, match="already"):
        LocalCluster(made.directory, STUB).create(3)


def test_a_directory_without_a_cluster_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(LocalError, match="flotilla-cluster up"):
        LocalCluster(tmp_path, STUB).nodes()
    with pytest.raises(LocalError, match="flotilla-cluster up"):
        LocalCluster(tmp_path / "nowhere", STUB).nodes()


def test_cluster_json_follows_a_node_from_start_to_death(running: LocalCluster) -> None:
    assert all(row["pid"] for row in _rows(running))
    assert set(_rows(running)[0]) == {"name", "endpoint", "pid", "data_dir"}

    running.kill("n1")

    assert [row["pid"] is None for row in _rows(running)] == [True, False, False]


def test_another_leads_after_the_leader_is_killed(running: LocalCluster) -> None:
    first = running.leader()
    assert first is not None

    running.kill(first)

    assert running.wait_for_leader() != first


def test_another_process_object_sees_and_kills_the_same_nodes(running: LocalCluster) -> None:
    other = LocalCluster(running.directory, STUB)
    assert other.pids() == running.pids()

    other.kill("n2")

    assert "n2" not in running.pids()


def test_a_restarted_node_is_a_new_process(running: LocalCluster) -> None:
    before = running.pids()["n2"]

    after = running.restart("n2")

    assert after != before
    assert running.pids()["n2"] == after


def test_a_frozen_node_restarts(running: LocalCluster) -> None:
    before = running.pids()["n1"]
    running.kill("n1", "STOP")
    assert running.restart("n1") != before


def test_a_dead_node_restarts(running: LocalCluster) -> None:
    running.kill("n3")

    assert running.restart("n3") == running.pids()["n3"]


@pytest.mark.parametrize("act", ["restart", "wipe"])
def test_a_node_that_ends_when_it_is_looked_at_is_restarted_and_wiped(
    running: LocalCluster, monkeypatch: pytest.MonkeyPatch, act: str
) -> None:
    look = running.node

    def look_and_end(name: str) -> LocalNode:
        row = look(name)
        if row.pid is not None and os.path.exists(f"/proc/{row.pid}"):
            process = os.pidfd_open(row.pid)
            os.kill(row.pid, signal.SIGKILL)
            assert processes.ends(process, ENDED_S_MAX)
            os.close(process)
        return row

    with monkeypatch.context() as patched:
        patched.setattr(running, "node", look_and_end)
        getattr(running, act)("n2")

    assert ("n2" in running.pids()) == (act == "restart")


def test_a_running_node_is_not_started_twice(running: LocalCluster) -> None:
    with pytest.raises(LocalError, match="n1 runs already"):
        running.start("n1")


def test_a_dead_node_cannot_be_killed(made: LocalCluster) -> None:
    with pytest.raises(LocalError, match="n1 does not run"):
        made.kill("n1")


def test_an_unknown_node_is_told_the_known_ones(made: LocalCluster) -> None:
    with pytest.raises(LocalError, match="no node 'n9'; there are n1, n2, n3"):
        made.start("n9")


def test_a_frozen_node_is_silent_until_it_goes_on(running: LocalCluster) -> None:
    running.kill("n1", "STOP")
    assert "n1" not in running.statuses()
    assert "n1" in running.pids()

    running.kill("n1", "CONT")
    assert sorted(running.statuses(ANSWER_MS)) == ["n1", "n2", "n3"]


def test_a_wiped_node_is_dead_and_has_no_data(running: LocalCluster) -> None:
    data = Path(running.node("n1").data_dir)
    assert data.exists()

    running.wipe("n1")

    assert not data.exists()
    assert "n1" not in running.pids()


def test_a_pid_that_now_belongs_to_a_stranger_is_neither_believed_nor_killed(
    made: LocalCluster,
) -> None:
    stranger = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    rows = _rows(made)
    rows[0]["pid"] = stranger.pid
    (made.directory / "cluster.json").write_text(json.dumps({"nodes": rows}))

    assert made.pids() == {}
    with pytest.raises(LocalError, match="n1 does not run"):
        made.kill("n1")
    assert stranger.poll() is None
    stranger.communicate(b"\n")


def test_down_stops_all_in_order(running: LocalCluster) -> None:
    assert running.down() == []
    assert running.pids() == {}


def test_down_stops_a_frozen_node_too(running: LocalCluster) -> None:
    running.kill("n1", "STOP")

    assert running.down() == []


def test_down_takes_who_ends_between_two_signals_for_stopped(
    running: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As under an init that buries at once: the node is gone before it is told to go on."""
    send = signal.pidfd_send_signal

    def send_and_bury(process: int, number: int) -> None:
        if processes.ends(process, 0.0):
            raise ProcessLookupError(errno.ESRCH, os.strerror(errno.ESRCH))
        send(process, number)
        if number == signal.SIGTERM:
            assert processes.ends(process, ENDED_S_MAX)

    monkeypatch.setattr(signal, "pidfd_send_signal", send_and_bury)
    assert running.down() == []
    assert running.pids() == {}


def test_who_ends_before_its_signal_comes_does_not_run(
    running: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def bury(process: int, number: int) -> None:
        raise ProcessLookupError(errno.ESRCH, os.strerror(errno.ESRCH))

    with monkeypatch.context() as patch:
        patch.setattr(signal, "pidfd_send_signal", bury)
        with pytest.raises(LocalError, match="n1 does not run"):
            running.kill("n1", "STOP")


def test_down_kills_and_names_those_that_do_not_stop(made: LocalCluster) -> None:
    (made.directory / "deaf").touch()
    _start_all(made)

    assert made.down(patience_s=0.1) == ["n1", "n2", "n3"]
    assert made.pids() == {}


def test_waiting_for_a_leader_ends_at_once_when_the_nodes_die(tmp_path: Path) -> None:
    broken = (sys.executable, "-c", "import sys; sys.exit('the disk is gone')")
    with LocalCluster(tmp_path, broken) as cluster:
        cluster.create(3)
        cluster.start_all()
        with pytest.raises(LocalError, match=r"[01] of 3 nodes live(?s:.)*the disk is gone"):
            cluster.wait_for_leader(timeout_s=60)


def test_waiting_for_a_leader_ends_with_its_timeout(running: LocalCluster) -> None:
    for name in ("n1", "n2", "n3"):
        running.kill(name, "STOP")

    with pytest.raises(LocalError, match="no leader within 0 s"):
        running.wait_for_leader(timeout_s=0.1)


def test_settings_of_the_shell_do_not_reach_the_nodes(
    made: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLOTILLA_NODE", "n1")

    _start_all(made)

    assert sorted(body["node"] for body in made.statuses(ANSWER_MS).values()) == ["n1", "n2", "n3"]


def test_leaving_the_context_stops_the_nodes(tmp_path: Path) -> None:
    with LocalCluster(tmp_path, STUB) as cluster:
        cluster.create(1)
        pid = cluster.start("n1")

    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_node_that_is_just_becoming_another_program_is_not_taken_for_dead(
    tmp_path: Path,
) -> None:
    node = (sys.executable, "-S", "-c", "import time; time.sleep(5)")
    words = ("env", "A=B") * 60  # an exec() each; between two of them a process has no arguments
    cluster = LocalCluster(tmp_path / "cluster", node, prefix=lambda name: words)
    cluster.create(3)
    pid = cluster.start("n1")
    deadline = time.monotonic() + 0.5
    while time.monotonic() < deadline:
        assert cluster.pids() == {"n1": pid}
    cluster.kill("n1")


def test_how_a_node_ended_is_known_though_its_first_thread_ends_before_the_others(
    tmp_path: Path,
) -> None:
    words = (
        "import ctypes, os, threading, time",
        "last = lambda: (time.sleep(0.5), os._exit(7))",
        "threading.Thread(target=last).start()",
        "ctypes.CDLL(None).pthread_exit(None)",
    )
    cluster = LocalCluster(tmp_path / "cluster", (sys.executable, "-S", "-c", "; ".join(words)))
    cluster.create(3)
    pid = cluster.start("n1")
    deadline = time.monotonic() + START_TIMEOUT_S
    while cluster.pids():
        assert time.monotonic() < deadline, f"{pid} lives"

    assert cluster.exit_codes == {"n1": 7}


def test_nothing_is_written_into_a_directory_that_is_no_cluster_s(tmp_path: Path) -> None:
    (tmp_path / "passwd").touch()
    with pytest.raises(LocalError, match=f"{tmp_path} is no cluster's directory: it holds 'passw"):
        LocalCluster(tmp_path).create(1)
    assert [path.name for path in tmp_path.iterdir()] == ["passwd"]
    (tmp_path / "passwd").unlink()
    (tmp_path / "n1").mkdir()  # as a creation leaves it that was killed
    LocalCluster(tmp_path).create(1)
