"""The node's worker thread and its start: which errors end it, and what they say."""

from __future__ import annotations

import errno
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest

from cluster.keys.directory import KeysError
from cluster.log.files import DISK, EXIT_STATUS
from cluster.log.journal import Journal
from cluster.members.identity import IDENTITY_NAME, Identity
from cluster.node import node
from cluster.node.node import Node, ThreadWorker
from cluster.raft.ready import Timing
from cluster.serve.shares import rest_s
from cluster.settings import config
from cluster.store.store import Store
from cluster.store.tables import CorruptStore

WAIT_S = 10.0
ENOUGH_S = 60.0  # for a process to end; it takes about one


@pytest.fixture
def worker() -> ThreadWorker:
    return ThreadWorker()


def outcome_of(worker: ThreadWorker, job: Callable[[], Any]) -> tuple[str, Any]:
    """Return ("done", result) or ("failed", error) of a job, delivered as by the loop."""
    outcomes: list[tuple[str, Any]] = []
    worker.submit(
        job,
        lambda result: outcomes.append(("done", result)),
        lambda e: outcomes.append(("failed", e)),
    )
    assert not worker.idle
    assert select.select([worker.wake], [], [], WAIT_S)[0], "the worker does not wake the loop"
    worker.deliver()
    assert worker.idle
    [outcome] = outcomes
    return outcome


def raising(error: Exception) -> Callable[[], None]:
    def job() -> None:
        raise error

    return job


def test_a_result_is_delivered_in_the_loop_s_thread(worker: ThreadWorker) -> None:
    assert outcome_of(worker, threading.get_ident) != ("done", threading.get_ident())
    threads = []
    worker.submit(lambda: None, lambda _: threads.append(threading.get_ident()), raising)
    select.select([worker.wake], [], [], WAIT_S)
    worker.deliver()
    assert threads == [threading.get_ident()]


def test_a_disk_s_error_is_told_to_who_submitted(worker: ThreadWorker) -> None:
    error = OSError("no room")
    assert outcome_of(worker, raising(error)) == ("failed", error)


@pytest.mark.parametrize("error", [CorruptStore(Path("store.db"), "torn"), ZeroDivisionError()])
def test_a_damaged_store_or_a_defect_ends_the_loop(worker: ThreadWorker, error: Exception) -> None:
    with pytest.raises(type(error)):
        outcome_of(worker, raising(error))


def test_one_job_over_the_limit_fails(worker: ThreadWorker) -> None:
    free = threading.Event()
    failed: list[Exception] = []
    done: list[None] = []
    for _ in range(node.WORKER_JOBS_MAX + 2):  # one may have been taken by the thread
        worker.submit(lambda: free.wait(WAIT_S), lambda _: done.append(None), failed.append)
    free.set()
    while not worker.idle:
        assert select.select([worker.wake], [], [], WAIT_S)[0]
        worker.deliver()
    assert len(failed) + len(done) == node.WORKER_JOBS_MAX + 2
    assert 1 <= len(failed) <= 2


def test_a_loop_that_is_woken_finds_the_result(
    worker: ThreadWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[int] = []
    told = threading.Event()

    class Wake:
        def send(self, _byte: bytes) -> None:
            found.append(len(worker._results))
            told.set()

    monkeypatch.setattr(worker, "_wake", Wake())
    worker.submit(lambda: None, lambda _: None, lambda _: None)

    assert told.wait(WAIT_S)
    assert found == [1]


def test_a_result_that_comes_behind_the_last_look_wakes_the_loop_again(
    worker: ThreadWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []

    class Results(deque[Callable[[], None]]):
        """Has a second job end just when it is seen that there is no result left."""

        def __bool__(self) -> bool:
            if len(self) or done != ["first"]:
                return len(self) > 0
            worker.submit(lambda: "second", done.append, done.append)
            done.append("looked")
            assert select.select([worker.wake], [], [], WAIT_S)[0]
            return False

    monkeypatch.setattr(worker, "_results", Results())
    worker.submit(lambda: "first", done.append, done.append)
    assert select.select([worker.wake], [], [], WAIT_S)[0]

    worker.deliver()

    assert done == ["first", "looked"]
    assert select.select([worker.wake], [], [], WAIT_S)[0], "the second result is not heard of"
    worker.deliver()
    assert done == ["first", "looked", "second"]


# --- settings ---


def test_what_is_set_for_raft_reaches_the_replica_and_its_connections(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "node.toml"
    file.write_text(
        'cluster_id = "c"\nnode = "n1"\ndata_dir = "data"\n'
        'client_listen = "127.0.0.1:1"\npeer_listen = "127.0.0.1:2"\n'
        "[members]\n"
        + "".join(f'n{number} = "127.0.0.1:{number}"\n' for number in (1, 2, 3))
        + "[raft]\nelection_min_ms = 401\nelection_max_ms = 802\nheartbeat_ms = 103\n"
        "fallback_ms = 1304\ntakeover_ms = 4505\n"
    )
    settings = config.load(file, {})
    made: list[dict[str, Any]] = []
    monkeypatch.setattr(node, "PeerPort", lambda *_, **named: made.append(named))
    stub = SimpleNamespace(_settings=settings, _watch=None, _rng=None, _keys=None)

    Node._open_peers(stub, Identity.create("c", "n1"))  # type: ignore[arg-type]
    replica = node._replica_settings(settings, {}, DISK, None)

    assert made[0]["takeover_ms"] == 4505
    assert replica.takeover_s == 4.505
    assert replica.timing == Timing(0.401, 0.802, 0.103, 1.304)
    assert (replica.announced["raft.heartbeat_ms"], replica.announced["admins"]) == (103, "admin")


# --- turns ---


def test_behind_a_turn_of_a_node_rests_begin_on_both_ports(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter((10.0, 10.25, 10.5))  # begun, answered, ended
    monkeypatch.setattr(node.time, "monotonic", lambda: next(times))
    turning = mock.MagicMock(_keys=None, _health=None, _observer=None)
    turning._poller.poll.return_value = []
    turning._replica.stored = 7
    Node._turn(turning, 0.0)
    turning._clients.turned.assert_called_once_with(0.5, 10.5, 7)
    turning._peers.turned.assert_called_once_with(10.5 + rest_s(0.5))


def test_who_is_told_to_stop_again_and_again_ends_as_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter((10.0, 14.0))
    monkeypatch.setattr(node.time, "monotonic", lambda: next(times))
    stopping = mock.MagicMock(_stop_at=None)
    for _ in range(2):
        Node.stop(stopping, signal.SIGTERM, None)
    assert stopping._stop_at == 10.0 + node.STOPPING_S_MAX
    stopping._replica.frontend.stop.assert_called_once_with()


# --- keys ---


def test_keys_that_can_not_be_used_are_told_until_they_can() -> None:
    """Who was revoked in them is let in meanwhile."""
    running, keys = mock.MagicMock(), mock.MagicMock()
    keys.look.side_effect = KeysError("revoked: is not whole")
    Node._follow_keys(running, keys, 1.0)
    running._event.assert_called_once_with("keys_unusable", "error", reason="revoked: is not whole")
    running._show_keys.assert_called_with(is_unusable=True)
    keys.look.side_effect = None
    Node._follow_keys(running, keys, 2.0)
    running._show_keys.assert_called_with(is_unusable=False)


# --- starting ---


# As a node whose store is opened where no page is left.
ON_A_FULL_DISK = """
import sqlite3
from cluster.node import node
def fill(*_):
    database = sqlite3.connect(":memory:")
    database.execute("PRAGMA max_page_count = 1")
    database.execute("CREATE TABLE t (x)")
node.Node = fill
node.main()
"""


def started(directory: Path, *command: str, **settings: str) -> subprocess.CompletedProcess[str]:
    """Run a node that cannot start; return how it ended."""
    values = {
        "cluster_id": "c",
        "node": "n1",
        "data_dir": str(directory / "data"),
        "client_listen": f"127.0.0.1:{free_port()}",
        "peer_listen": f"127.0.0.1:{free_port()}",
    } | settings
    values["members.n1"] = values["peer_listen"]
    file = directory / "node.toml"
    file.write_text("".join(f'{key} = "{value}"\n' for key, value in values.items()))
    return subprocess.run(
        [sys.executable, *(command or ("-m", "cluster")), "--config", str(file)],
        capture_output=True,
        text=True,
        timeout=ENOUGH_S,
        env={"PYTHONPATH": ":".join(sys.path)},
    )


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_a_data_directory_that_cannot_be_made_is_one_line_and_a_wrong_setting(
    tmp_path: Path,
) -> None:
    (tmp_path / "file").touch()  # root may write anywhere, but not below a file
    ended = started(tmp_path, data_dir=str(tmp_path / "file" / "data"))
    reason = f"data_dir: cannot make {tmp_path}/file/data: Not a directory"
    assert (ended.returncode, ended.stderr) == (78, f"flotilla-node: {reason}\n")


@pytest.mark.parametrize("key", ["client_listen", "peer_listen"])
def test_a_port_that_is_taken_is_one_line_and_a_wrong_setting(tmp_path: Path, key: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        address = f"127.0.0.1:{holder.getsockname()[1]}"
        ended = started(tmp_path, **{key: address})
    assert (ended.returncode, ended.stderr) == (78, f"flotilla-node: {key}: {address} is taken\n")


@pytest.mark.parametrize("key", ["client_listen", "peer_listen"])
def test_an_address_that_is_not_ours_is_told_with_the_system_s_reason(
    tmp_path: Path, key: str
) -> None:
    ended = started(tmp_path, **{key: "192.0.2.1:7001"})  # for documentation alone: RFC 5737
    assert ended.returncode == 78
    assert ended.stderr.startswith(f"flotilla-node: {key}: 192.0.2.1:7001: ")
    assert ended.stderr.count("\n") == 1


def test_a_file_that_can_t_be_read_is_one_line_on_how_to_go_on(tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    data_dir.mkdir()
    (data_dir / IDENTITY_NAME).symlink_to("/proc/self/mem")  # reading its beginning is EIO
    ended = started(tmp_path, data_dir=str(data_dir))
    assert ended.returncode == 74
    last = ended.stderr.splitlines()[-1]
    assert last.startswith("flotilla-node: a disk or file failed this node: ")
    assert f"{data_dir}/{IDENTITY_NAME}" in last
    assert "start the node with an empty one" in last


def test_a_store_whose_disk_fails_is_a_failed_disk_and_no_defect(tmp_path: Path) -> None:
    data_dir, members = tmp_path / "data", {"n1": "1"}
    Journal.create(data_dir / "journal")
    Store.open(data_dir / "store" / "store.db", members).close()
    Identity("c", "n1", "1", members, started=True).save(data_dir)
    (data_dir / "store" / "store.db-shm").mkdir()  # SQLite can't write it
    ended = started(tmp_path, data_dir=str(data_dir))
    assert ended.returncode == 74
    last = ended.stderr.splitlines()[-1]
    assert "a disk or file failed this node: the store's database: attempt to write" in last


def test_a_full_disk_is_to_be_given_room_and_no_replica_to_be_removed(tmp_path: Path) -> None:
    last = started(tmp_path, "-c", ON_A_FULL_DISK).stderr.splitlines()[-1]
    assert "disk is full" in last
    assert "Make room" in last
    assert "empty one" not in last


# --- garbage collections --------------------------------------------------------------------------

COLLECTIONS = """
import gc
import weakref
from cluster.node.node import shorten_collections
modules = len(gc.get_objects())
shorten_collections()
assert len(gc.get_objects()) < modules / 100, "it looks at the modules"
state = [{"cursor": number} for number in range(10_000)]
gc.collect()
assert len(gc.get_objects()) < 1_000, "it looks at what the one before has left"
class Object: pass
one = Object()
one.self = one
seen = weakref.ref(one)
del one
gc.collect()
assert seen() is None, "a new cycle is left"
"""


def test_a_full_collection_looks_at_nothing_that_an_earlier_one_has_left() -> None:
    subprocess.run([sys.executable, "-c", COLLECTIONS], check=True, timeout=60)


@pytest.mark.parametrize("command", [[], ["recover"]], ids=["node", "recover"])
def test_an_output_that_cannot_be_written_is_one_line_and_exit_74(command: list[str]) -> None:
    with Path("/dev/full").open("wb") as full:
        ended = subprocess.run(
            [sys.executable, "-m", "cluster", *command, "--help"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert ended.returncode == EXIT_STATUS
    full_disk = os.strerror(errno.ENOSPC)
    assert ended.stderr == f"flotilla-node: the output cannot be written: {full_disk}\n"
