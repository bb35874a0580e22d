"""Two processes of a name, empty directories, copies, forged hellos: who lives stays a member."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from cluster.local.local import LocalCluster, _ask_status
from cluster.local.ports import free_ports
from cluster.members.handshake import REPORT_MS
from cluster.wire import messages
from cluster.wire.frames import FrameReader, framed
from cluster.wire.levels import Build
from cluster.wire.messages import Extension, Hello, PeerRefused, Refusal
from tests.cluster.by_hand import ByHand
from tests.conftest import ANSWER_MS, PATIENT, ClusterFactory
from tests.waiting import until

EXIT_EVICTED = 77
TAKEOVER_MS = 1_500  # half of the default: short, and over two of the nodes' signs of life


@pytest.fixture
def cluster(local_cluster: ClusterFactory) -> LocalCluster:
    return local_cluster(3, {"raft.takeover_ms": TAKEOVER_MS})


class Double:
    """A second process of a cluster's node, with its own ports and data directory."""

    def __init__(self, cluster: LocalCluster, name: str, directory: Path) -> None:
        directory.mkdir()
        self.data_dir, self.log = directory / "data", directory / "node.log"
        self.config = directory / "node.toml"
        client, peer = free_ports(2, directory)
        self.endpoint = f"tcp://127.0.0.1:{client}"
        own = (cluster.directory / name / "node.toml").read_text().splitlines()
        changed = {"client_listen": f"127.0.0.1:{client}", "peer_listen": f"127.0.0.1:{peer}"}
        changed |= {"data_dir": str(self.data_dir)}
        kept = [line for line in own if line.split(" = ")[0] not in changed]
        lines = kept + [f"{key} = {json.dumps(value)}" for key, value in changed.items()]
        self.config.write_text("\n".join(lines) + "\n")
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = [sys.executable, "-m", "cluster", "--config", str(self.config)]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(command, stderr=log, env=dict(os.environ))

    def status(self) -> dict[str, Any]:
        return _ask_status(self.endpoint, None, ANSWER_MS) or {}

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()


@pytest.fixture
def doubles(cluster: LocalCluster, tmp_path: Path) -> Iterator[Callable[[str], Double]]:
    made: list[Double] = []

    def make(name: str) -> Double:
        made.append(Double(cluster, name, tmp_path / f"double-{len(made) + 1}"))
        return made[-1]

    yield make
    for double in made:
        double.kill()
        if double.log.exists():
            print(double.log.read_text()[-3000:])


def lines(log: Path, event: str) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in log.read_text().splitlines() if line.startswith("{")]
    return [line for line in found if line["event"] == event]


def members_seen(cluster: LocalCluster, leader: str) -> dict[str, bool]:
    status = cluster.statuses(ANSWER_MS)[leader]
    return {name: each["connected"] for name, each in status["members"].items()}


def incarnation(cluster: LocalCluster, name: str) -> str:
    text = (Path(cluster.node(name).data_dir) / "identity.json").read_text()
    return str(json.loads(text)["incarnation"])


def assert_rare(lines: list[dict[str, Any]], of: int = 1) -> None:
    """Assert that each `of` so many things is told once in REPORT_MS, however long it took."""
    times = [datetime.fromisoformat(line["timestamp"]) for line in lines]
    lasted_ms = (times[-1] - times[0]).total_seconds() * 1000 if times else 0.0
    assert len(lines) <= of * (1 + lasted_ms // REPORT_MS + 1), lines


# --- the name is taken ----------------------------------------------------------------------------


# n1 dials both others. n3 dials nobody: its double has to ask why nobody dials it.
NAMES = ["n1", pytest.param("n3", marks=pytest.mark.slow)]


@pytest.mark.parametrize("doubled", NAMES)
def test_an_empty_double_of_a_living_node_is_refused_on_both_sides_and_harms_nobody(
    doubled: str, cluster: LocalCluster, doubles: Callable[[str], Double]
) -> None:
    before = {name: incarnation(cluster, name) for name in cluster.endpoints()}
    others = sorted(before.keys() - {doubled})
    double = doubles(doubled)
    double.start()
    until(lambda: double.status().get("waiting_for"), "the double does not say what it waits for")
    until(lambda: "has to be silent" in str(double.status()["waiting_for"]), "waits for what?")
    time.sleep(3 * TAKEOVER_MS / 1000)  # nothing may happen: there is no event to wait for
    told = double.status()["waiting_for"]
    assert all(before[doubled] in line for line in told), told
    assert double.status()["role"] == "joining"
    # The double, those who refuse it, and the living node say so, each at the level of an error.
    assert {line["level"] for line in lines(double.log, "peer_refusedby")} == {"error"}
    for name in others:
        refusals = lines(cluster.log_file(name), "peer_doubled")
        assert {line["level"] for line in refusals} == {"error"}
        assert_rare(refusals)
    warned = lines(cluster.log_file(doubled), "doubled")
    assert warned
    assert warned[0]["level"] == "error"
    # The cluster is what it was, and stands the loss of a node.
    assert {name: incarnation(cluster, name) for name in before} == before
    assert len(cluster.pids()) == 3
    cluster.kill("n2")
    leader = cluster.wait_for_leader()
    until(lambda: members_seen(cluster, leader).get(doubled, leader == doubled), "not connected")
    with ByHand(cluster.endpoints()[leader]) as hand:
        until(lambda: hand.ask("TOPICS", all=True)["type"] == "ACK", "the leader does not serve")


@pytest.mark.slow
def test_two_doubled_nodes_do_not_take_the_cluster_down(
    cluster: LocalCluster, doubles: Callable[[str], Double]
) -> None:
    for name in ("n1", "n2"):
        doubles(name).start()
    time.sleep(3 * TAKEOVER_MS / 1000)  # as above
    leader = cluster.wait_for_leader()
    with ByHand(cluster.endpoints()[leader]) as hand:
        me = hand.ack("REQUEST_ID")["client_id"]
        hand.ack("SUB", "t", me)
        hand.ack("PUT", "t", me, counter=1, publication="x")
    assert len(cluster.pids()) == 3, cluster.tails()


@pytest.mark.slow
@pytest.mark.parametrize("doubled", ["n1", "n3"])
def test_a_copy_of_a_living_nodes_directory_takes_no_part(
    doubled: str, cluster: LocalCluster, doubles: Callable[[str], Double]
) -> None:
    double = doubles(doubled)
    shutil.copytree(Path(cluster.node(doubled).data_dir), double.data_dir)
    double.start()
    until(lambda: len(double.status().get("refused_by", {})) == 2, "the copy is not refused")
    reasons = double.status()["refused_by"]
    assert all("a copy of it, which is forbidden" in reason for reason in reasons.values())
    assert not any(each["connected"] for each in double.status()["members"].values())
    until(lambda: lines(cluster.log_file(doubled), "doubled"), "it is not told of its copy")
    assert len(cluster.pids()) == 3, cluster.tails()


# --- the name is free -----------------------------------------------------------------------------


def test_a_wiped_node_is_readmitted_soon_after_the_stated_time(cluster: LocalCluster) -> None:
    cluster.wait_for_leader()
    old = incarnation(cluster, "n1")
    # It falls silent with the last that a peer heard of it: at this time or later.
    asked_s = time.monotonic()
    heard_s = asked_s - cluster.statuses(ANSWER_MS)["n2"]["members"]["n1"]["silent_ms"] / 1000
    cluster.kill("n1")
    died = time.monotonic()
    cluster.wipe("n1")
    cluster.start("n1")
    until(lambda: cluster.statuses().get("n1", {}).get("role") == "follower", cluster.tails())
    now_s = time.monotonic()
    assert now_s - heard_s >= TAKEOVER_MS / 1000, f"readmitted after {now_s - heard_s:.2f} s"
    print(f"readmitted {now_s - died:.1f} s after its death; stated are {TAKEOVER_MS / 1000} s")
    assert incarnation(cluster, "n1") != old


@pytest.mark.slow
def test_an_evicted_process_ends_and_says_so(
    cluster: LocalCluster, doubles: Callable[[str], Double]
) -> None:
    cluster.wait_for_leader()
    cluster.kill("n1", "STOP")
    double = doubles("n1")
    double.start()
    until(lambda: double.status().get("role") == "follower", "the double is not admitted")
    new = json.loads((double.data_dir / "identity.json").read_text())["incarnation"]
    cluster.kill("n1", "CONT")
    until(lambda: "n1" not in cluster.pids(), "the evicted process goes on")
    assert cluster.exit_codes["n1"] == EXIT_EVICTED
    evicted = lines(cluster.log_file("n1"), "evicted")
    assert len(evicted) == 1
    assert evicted[0]["level"] == "error"
    assert f"readmitted as incarnation {new}" in evicted[0]["reason"]
    # Started again it ends again, and the new one stays a member.
    cluster.start("n1")
    until(lambda: "n1" not in cluster.pids(), "the evicted directory is used")
    assert cluster.exit_codes["n1"] == EXIT_EVICTED
    assert double.status()["role"] in ("follower", "leader")


# --- forged hellos --------------------------------------------------------------------------------


def peer_address(cluster: LocalCluster, name: str) -> tuple[str, int]:
    config = tomllib.loads((cluster.directory / name / "node.toml").read_text())
    host, port = config["peer_listen"].rsplit(":", 1)
    return host, int(port)


def forge(
    cluster: LocalCluster, target: str, hello: Hello, *more: messages.Message
) -> list[messages.Message]:
    """Say a Hello, and more, to a node; return what it answers until it closes, or a second."""
    said: list[messages.Message] = []
    reader = FrameReader(messages.FRAME_BYTES_MAX)
    with socket.create_connection(peer_address(cluster, target), timeout=1.0) as raw:
        raw.sendall(b"".join(map(framed, (hello, *more))))
        with contextlib.suppress(TimeoutError, ConnectionResetError):
            while data := raw.recv(1 << 16):
                reader.feed(data)
                while (message := reader.next()) is not None:
                    said.append(message)
    return said


@pytest.mark.slow
def test_no_strangers_word_ends_a_node_that_is_without_a_majority(cluster: LocalCluster) -> None:
    before = {name: incarnation(cluster, name) for name in cluster.endpoints()}
    names = tuple(sorted(before))
    cluster.wait_for_leader()
    for name in ("n1", "n2"):
        cluster.kill(name)
    too_new = Extension(Build("9.0", 1, 99), 99)
    for name in ("n1", "n2", "n1", "n2"):
        for index in (0, 2**40):
            hello = Hello(1, "local", name, "forged", names, False, None, index)
            forge(cluster, "n3", replace(hello, extension=too_new))
            forge(cluster, "n3", hello, PeerRefused(Refusal.EVICTED, "evicted: says a stranger"))
    assert lines(cluster.log_file("n3"), "peer_unfit")
    assert lines(cluster.log_file("n3"), "peer_refusedby")
    cluster.start("n1")  # the forgers hold no place: what is left is a majority at once
    leader = cluster.wait_for_leader()
    assert leader in ("n1", "n3")
    assert sorted(cluster.pids()) == ["n1", "n3"]
    assert {name: incarnation(cluster, name) for name in before} == before


@pytest.mark.slow
def test_forged_hellos_for_two_names_leave_the_leader_and_its_members(
    local_cluster: ClusterFactory,
) -> None:
    cluster = local_cluster(3, {"raft.takeover_ms": TAKEOVER_MS, **PATIENT})
    leader = cluster.wait_for_leader()
    term = cluster.statuses(ANSWER_MS)[leader]["term"]
    before = {name: incarnation(cluster, name) for name in cluster.endpoints()}
    names = tuple(sorted(before))
    deadline = time.monotonic() + 3 * TAKEOVER_MS / 1000
    number = 0
    while time.monotonic() < deadline:
        number += 1
        for name, target in (("n1", "n2"), ("n1", "n3"), ("n2", "n3")):
            for fresh, index, what in (
                (True, 0, f"forged-{number}"),
                (False, 2**40, f"forged-{number}"),
                (False, 0, before[name]),
            ):
                hello = Hello(1, "local", name, what, names, fresh, None, index)
                if number % 2:  # from a cluster of a level that nobody here can have
                    hello = replace(hello, extension=Extension(Build("9.0", 1, 99), 99))
                said = forge(cluster, target, hello)
                assert isinstance(said[-1], PeerRefused), said
                assert said[-1].kind == Refusal.DOUBLED
    assert cluster.wait_for_leader() == leader
    assert cluster.statuses(ANSWER_MS)[leader]["term"] == term, "an election"
    assert {name: incarnation(cluster, name) for name in before} == before
    assert all(members_seen(cluster, leader).values())
    for name in names:
        assert_rare(lines(cluster.log_file(name), "peer_doubled"), of=2)


# --- what operators are told ----------------------------------------------------------------------


def test_settings_that_differ_are_told_once(tmp_path: Path) -> None:
    with LocalCluster(tmp_path / "cluster") as cluster:
        cluster.create(3, port=0)
        config = cluster.directory / "n3" / "node.toml"
        config.write_text(
            config.read_text() + "raft.heartbeat_ms = 70\nlimits.relays_max = 9\nadmins = []\n"
        )
        cluster.start_all()
        cluster.wait_for_leader()
        logs = {name: cluster.log_file(name) for name in cluster.endpoints()}
        until(lambda: all(lines(log, "settings_differ") for log in logs.values()), cluster.tails())
        time.sleep(1.5)  # three signs of life later it is still said once a peer
        differing = {
            "raft.heartbeat_ms": [80, 70], "limits.relays_max": [4096, 9], "admins": ["admin", ""]
        }  # fmt: skip
        for name in ("n1", "n2"):
            (said,) = lines(logs[name], "settings_differ")
            assert (said["level"], said["peer"]) == ("warning", "n3")
            assert said["mine_and_theirs"] == differing
        assert len(lines(logs["n3"], "settings_differ")) == 2
        assert cluster.statuses(ANSWER_MS)["n1"]["settings_differ"] == {"n3": differing}


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('cluster_id = "other"', "belongs to cluster 'local', this node to 'other'"),
        ('members.n3 = "127.0.0.1:1"', "knows the members"),
    ],
)
def test_a_joining_node_of_wrong_settings_says_what_it_waits_for(
    tmp_path: Path, line: str, reason: str
) -> None:
    with LocalCluster(tmp_path / "cluster") as cluster:
        cluster.create(3, port=0)
        config = cluster.directory / "n1" / "node.toml"
        key = line.split(" = ")[0]
        kept = [each for each in config.read_text().splitlines() if each.split(" = ")[0] != key]
        if "members" in key:
            kept = [
                each.replace("members.n3", "members.n9") for each in config.read_text().splitlines()
            ]
        else:
            kept.append(line)
        config.write_text("\n".join(kept) + "\n")
        cluster.start_all()
        until(lambda: reason in str(cluster.statuses().get("n1", {}).get("waiting_for")), "what?")
        for node in ("n1", "n2"):
            log = cluster.log_file(node)
            until(lambda log=log: lines(log, "peer_handshakerefused"), f"{node} says it too")
            assert lines(log, "peer_handshakerefused")[0]["level"] == "warning"
