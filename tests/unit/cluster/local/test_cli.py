"""cluster/local/cli.py: `flotilla-cluster` from the outside, with stub nodes."""

from __future__ import annotations

import errno
import functools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from click.testing import CliRunner, Result

from cluster.local import cli as local_cli
from cluster.local.cli import Watch
from cluster.local.errors import LocalError
from cluster.local.local import LocalCluster, LocalNode
from flotilla_client.keys import read_key

STUB = (sys.executable, str(Path(__file__).with_name("stub_node.py")))
ENOUGH_S = 30  # for a command to end; it takes under one
MAIN = """
import functools, sys
from cluster.local import cli as local_cli
local_cli.LocalCluster = functools.partial(local_cli.LocalCluster, command={command!r})
local_cli.main()
"""


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    stubbed = functools.partial(LocalCluster, command=STUB)
    monkeypatch.setattr(local_cli, "LocalCluster", stubbed)
    yield tmp_path / "cluster"
    stubbed(tmp_path / "cluster").down(patience_s=0.1)


def _run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(
        local_cli.commands, [str(each) for each in arguments], catch_exceptions=False
    )


def _up(directory: Path) -> LocalCluster:
    result = _run("up", "--dir", directory, "--port", "0", "--detach")
    assert result.exit_code == 0, result.output
    return LocalCluster(directory, STUB)


def _process(directory: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", MAIN.format(command=STUB), *arguments, "--dir", str(directory)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={"PYTHONPATH": ":".join(sys.path), "COLUMNS": "100"},
    )


def test_up_begins_a_new_cluster_at_the_newest_level_and_leaves_an_older_one_at_its_own(
    directory: Path,
) -> None:
    _up(directory)
    asked = (directory / "upgrades").read_text().splitlines()
    assert [json.loads(line) for line in asked] == [{"level": None}]  # all that they know
    _run("down", "--dir", directory)
    _up(directory)
    assert (directory / "upgrades").read_text().splitlines() == asked


def test_up_that_ended_before_a_leader_came_begins_at_the_newest_level_the_next_time(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(LocalCluster, "wait_for_leader", Mock(side_effect=LocalError("none")))
        with pytest.raises(LocalError):
            _up(directory)
    _up(directory)
    assert (directory / "upgrades").read_text().splitlines() == ['{"level": null}']


def test_up_detached_leaves_a_cluster_that_the_other_commands_work_on(directory: Path) -> None:
    cluster = _up(directory)
    assert set(cluster.pids()) == {"n1", "n2", "n3"}

    assert "leader" in _run("status", "--dir", directory).output
    assert "n1: SIGKILL" in _run("kill", "--dir", directory, "n1").output
    assert "n1" not in cluster.pids()
    assert "n1: pid" in _run("restart", "--dir", directory, "n1").output
    assert "n1" in cluster.pids()
    assert "wiped" in _run("wipe", "--dir", directory, "n2").output
    assert "stopped" in _run("down", "--dir", directory).output
    assert cluster.pids() == {}


def test_up_prints_the_endpoints_and_what_to_do_next(directory: Path) -> None:
    result = _run("up", "--dir", directory, "--port", "0", "--detach")

    endpoints = LocalCluster(directory, STUB).endpoints()
    addresses = ",".join(each.removeprefix("tcp://") for each in endpoints.values())
    assert f"flotilla --endpoints {addresses} status" in result.output
    assert f"flotilla-cluster down --dir {directory}" in result.output


def test_up_prints_commands_by_their_paths_where_the_search_path_lacks_them(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scripts = directory.parent / "my scripts"
    scripts.mkdir()
    for name in ("flotilla", "flotilla-cluster"):
        (scripts / name).touch()
    monkeypatch.setattr(sys, "argv", [str(scripts / "flotilla-cluster")])
    monkeypatch.setenv("PATH", str(directory))

    output = _run("up", "--dir", directory, "--port", "0", "--detach").output

    assert f"  '{scripts}/flotilla' --endpoints" in output
    assert f"  '{scripts}/flotilla-cluster' kill --dir {directory} leader" in output


def test_up_detached_leaves_the_nodes_alone_when_nobody_reads_what_it_prints(
    directory: Path,
) -> None:
    process = _process(directory, "up", "--port", "0", "--detach")
    assert process.stdout is not None
    process.stdout.close()

    process.wait(timeout=ENOUGH_S)

    cluster = LocalCluster(directory, STUB)
    assert set(cluster.pids()) == {"n1", "n2", "n3"}
    assert cluster.leader() is not None


def test_up_makes_keys_and_says_where_the_clients_file_is(directory: Path) -> None:
    result = _run("up", "--dir", directory, "--port", "0", "--detach")
    file = directory / "keys" / "clients" / "app.key"
    assert f"export FLOTILLA_KEY={file}\n" in result.output
    assert "INSECURE" not in result.output
    key = read_key(file)
    server = (directory / "keys" / "server.key").read_text().splitlines()[1].split()
    for text in (key.secret, server[2]):
        assert text not in result.output
    modes = {file.stat().st_mode & 0o777 for file in (directory / "keys").rglob("*")}
    assert modes == {0o600, 0o700}
    with pytest.raises(LocalError, match="holds a cluster with keys: --insecure is for a new one"):
        _run("up", "--dir", directory, "--insecure", "--detach")


def test_up_without_keys_says_so_loudly_each_time_and_listens_on_loopback(directory: Path) -> None:
    for _ in range(2):  # a directory of an earlier version has none either
        result = _run("up", "--dir", directory, "--port", "0", "--insecure", "--detach")
        assert "INSECURE: this cluster has no keys" in result.output
        assert "FLOTILLA_KEY" not in result.output
        result = _run("up", "--dir", directory, "--detach")
        assert "INSECURE: this cluster has no keys" in result.output
        _run("down", "--dir", directory)
    endpoints = LocalCluster(directory, STUB).endpoints().values()
    assert all(each.startswith("tcp://127.0.0.1:") for each in endpoints)


def test_kill_and_restart_take_leader_and_all_for_names(directory: Path) -> None:
    cluster = _up(directory)
    leader = cluster.leader()

    assert f"{leader}: SIGKILL" in _run("kill", "--dir", directory, "leader").output
    assert leader not in cluster.pids()
    assert len(cluster.pids()) == 2
    assert _run("kill", "--dir", directory, "all").output.count("SIGKILL") == 2
    assert cluster.pids() == {}
    all_dead = r"no node leads; dead: n1, n2, n3\. `flotilla-cluster restart NODE` starts one"
    with pytest.raises(LocalError, match=all_dead):
        _run("status", "--dir", directory)
    for word, problem in (("leader", all_dead), ("all", "no node runs: `flotilla-cluster restart")):
        with pytest.raises(LocalError, match=problem):
            _run("kill", "--dir", directory, word)
    assert _run("restart", "--dir", directory, "all").output.count("pid") == 3
    assert len(cluster.pids()) == 3


def test_a_node_that_ends_again_at_once_is_not_called_restarted(directory: Path) -> None:
    _up(directory)
    _run("kill", "--dir", directory, "n2")
    (directory / "n2" / "node.toml").write_text("no such thing")
    with pytest.raises(LocalError, match=r"n2 has ended again(.|\n)*node.log:"):
        _run("restart", "--dir", directory, "n2")


def test_up_starts_again_what_the_directory_holds(directory: Path) -> None:
    cluster = _up(directory)
    endpoints = cluster.endpoints()
    cluster.down()

    again = _up(directory)

    assert again.endpoints() == endpoints
    assert len(again.pids()) == 3


def test_up_does_not_change_the_size_of_a_cluster(directory: Path) -> None:
    _up(directory)

    with pytest.raises(LocalError, match="holds a cluster of 3 nodes, not 5"):
        _run("up", "--dir", directory, "--nodes", "5")


def test_up_leaves_nothing_behind_when_no_leader_comes(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = (sys.executable, "-c", "import time; time.sleep(60)", "the stub")
    cluster = LocalCluster(directory, broken)
    monkeypatch.setattr(local_cli, "LocalCluster", lambda _: cluster)
    monkeypatch.setattr(cluster, "wait_for_leader", functools.partial(cluster.wait_for_leader, 0.2))

    with pytest.raises(LocalError, match="no leader within"):
        _run("up", "--dir", directory, "--port", "0", "--detach")

    assert cluster.pids() == {}


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_up_in_the_foreground_stops_all_when_it_is_stopped(
    directory: Path, stop: signal.Signals
) -> None:
    process = _process(directory, "up", "--port", "0")
    assert process.stdout is not None
    for line in process.stdout:
        if "ctrl-C" in line:
            break
    cluster = LocalCluster(directory, STUB)
    assert len(cluster.pids()) == 3

    process.send_signal(stop)

    rest, _ = process.communicate(timeout=ENOUGH_S)
    assert process.returncode == 0, rest
    assert "stopped" in rest
    assert cluster.pids() == {}


def test_a_silent_node_is_shown_with_the_program_that_it_was_last_seen_with() -> None:
    def seen(version: str | None, levels: list[int] | None, silent_ms: int) -> dict[str, Any]:
        row = {"version": version, "levels": levels, "silent_ms": silent_ms}
        return {"versions": {"flotilla": "0.2.0", "levels": [1, 2]}, "members": {"n3": row}}

    statuses = {"n1": seen("0.1.9", [1, 1], 9_000), "n2": seen("0.2.0", [1, 2], 4_000)}
    assert local_cli._program("n3", statuses) == ("0.2.0", "1-2")
    assert local_cli._program("n1", statuses) == ("0.2.0", "1-2")
    assert local_cli._program("n3", {"n1": seen(None, None, 9_000)}) == ("", "")
    assert local_cli._program("n3", {"n1": seen("", [1, 1], 9_000)}) == ("", "1-1")
    old = {"versions": {"flotilla": "0.1.0"}, "members": {"n3": {"connected": False}}}
    assert local_cli._program("n1", {"n1": old}) == ("0.1.0", "1-1")
    assert local_cli._program("n3", {"n1": old}) == ("", "")


def test_an_error_is_one_line_and_exit_1(tmp_path: Path) -> None:
    process = _process(tmp_path / "nowhere", "status")

    output, _ = process.communicate(timeout=ENOUGH_S)

    assert process.returncode == 1
    assert output.startswith("Error: ")
    assert output.count("\n") == 1
    assert "flotilla-cluster up" in output


def test_the_watch_tells_deaths_and_new_leaders(directory: Path) -> None:
    cluster = _up(directory)
    watch = Watch(cluster)
    assert watch.roles() == [], "what is so already is not news"
    leader = cluster.leader()
    assert leader is not None

    cluster.kill(leader)

    successor = cluster.wait_for_leader()
    deadline = time.monotonic() + ENOUGH_S
    told = watch.roles()
    # A node that is slow to answer once is told as silent, and its role when it answers again.
    while not any(line.startswith(f"{successor} is leader") for line in told):
        assert time.monotonic() < deadline, told
        told += watch.roles()
    assert told.count(f"{leader} is dead") == 1


def test_the_watch_tells_each_change_once(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alive = [LocalNode(name, "tcp://127.0.0.1:1", 7, "") for name in ("n1", "n2", "n3")]
    dead = [replace(alive[0], pid=None), *alive[1:]]
    leads, follows = {"role": "leader", "term": 1}, {"role": "follower", "term": 1}
    polls: list[tuple[list[LocalNode], dict[str, Any], list[str]]] = [
        (alive, {"n1": leads, "n2": follows, "n3": follows}, []),
        (alive, {"n1": leads, "n2": follows}, ["n3 is silent"]),
        (dead, {"n2": follows, "n3": follows}, ["n1 is dead", "n3 is follower (term 1)"]),
        (dead, {"n2": leads | {"term": 2}, "n3": follows}, ["n2 is leader (term 2)"]),
        (dead, {"n2": leads | {"term": 2}, "n3": follows}, []),
    ]
    cluster = LocalCluster(directory, STUB)
    cluster.create(3)
    watch = Watch(cluster)

    for nodes, statuses, news in polls:
        monkeypatch.setattr(cluster, "nodes", lambda nodes=nodes: nodes)
        monkeypatch.setattr(cluster, "statuses", lambda statuses=statuses: statuses)
        assert watch.roles() == news


def test_the_watch_shows_new_urgent_lines_alone(directory: Path) -> None:
    cluster = LocalCluster(directory, STUB)
    cluster.create(3)
    log = cluster.log_file("n2")
    log.write_text(_line("error", "old") + "\n")
    watch = Watch(cluster)

    with log.open("a") as file:
        file.write(_line("info", "fine") + "\n" + _line("warning", "slow disk") + "\nSegfault\nhal")

    assert [line.partition(" ")[2] for line in watch.warnings()] == [
        _line("warning", "slow disk"),
        "Segfault",
    ]
    with log.open("a") as file:
        file.write("f a line\n")
    assert [line.partition(" ")[2] for line in watch.warnings()] == ["half a line"]


def _line(level: str, event: str) -> str:
    return json.dumps({"level": level, "event": event})


def test_a_full_disk_is_one_line_and_exit_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full() -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))  # as a write's, it names no file

    monkeypatch.setattr(local_cli, "commands", full)
    with pytest.raises(SystemExit) as caught:
        local_cli.main()
    assert caught.value.code == 1
    assert capsys.readouterr().err == "Error: No space left on device\n"
