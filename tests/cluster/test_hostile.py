"""Bad bytes on the ports and on the disk: typed errors, no crash, nobody else is hurt."""

from __future__ import annotations

import json
import os
import random
import socket
import struct
import subprocess
import time
import tomllib
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq

from cluster.local.local import LocalCluster
from flotilla_client.protocol import ERRORS, decode_reply
from tests.cluster.by_hand import ByHand
from tests.conftest import ANSWER_MS, PATIENT, ClusterFactory, running

SEED = 20_261
PEER_FRAMES = 40_000  # of them all, a tenth in the quick tests
# A busy machine keeps followers from their leader for a while; nobody stands up for that here.
CALM = {"raft.election_min_ms": 3_000, "raft.election_max_ms": 3_500}
WINDOW = 200  # messages in flight: below half of `limits.client_queue_max`
EXIT_DATA = 65


def highest_term(cluster: LocalCluster) -> int:
    return max(status["term"] for status in cluster.statuses(ANSWER_MS).values())


@pytest.fixture
def cluster(local_cluster: ClusterFactory) -> LocalCluster:
    return local_cluster(3, PATIENT)


@pytest.fixture(scope="module")
def unhurt(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Return a cluster for all who harm no file and no process of it."""
    with running(tmp_path_factory.mktemp("hostile") / "cluster", settings=PATIENT) as made:
        yield made


def state(cluster: LocalCluster) -> dict[str, object]:
    """What clients can see of the replicated state."""
    with ByHand(next(iter(cluster.endpoints().values()))) as hand:
        return hand.ack("TOPICS", all=True)


def prepared(cluster: LocalCluster) -> str:
    with ByHand(next(iter(cluster.endpoints().values()))) as hand:
        me = str(hand.ack("REQUEST_ID")["client_id"])
        hand.ack("SUB", "t", me)
        hand.ack("PUT", "t", me, counter=1, publication="kept")
        return me


# --- the client port ------------------------------------------------------------------------------


def mutated_messages(rng: random.Random, count: int) -> Iterator[list[bytes]]:
    """Yield random and mutated messages; none of them names a client that exists."""
    kinds = ["SUB", "UNSUB", "PUT", "GET", "TOPICS", "STATUS", "PUT"]
    for number in range(count):
        if rng.random() < 0.2:
            yield [rng.randbytes(rng.randrange(60)) for _ in range(rng.randrange(5))]
            continue
        header = {
            "type": rng.choice(kinds),
            "topic": "t",
            "client_id": "stranger",
            "request_id": str(number),
            "body": {"counter": 1, "publication": "x", "last_id": 0, "max_count": 2},
        }
        frames = [bytearray(json.dumps(header).encode())]
        if rng.random() < 0.3:
            frames += [bytearray(struct.pack("<2I", 1, 2)), bytearray(b"abc")]
        target = rng.choice(frames)
        for _ in range(rng.randrange(4)):
            target[rng.randrange(len(target))] = rng.randrange(256)
        if rng.random() < 0.2:
            del target[rng.randrange(len(target)) :]
        yield [bytes(frame) for frame in frames]


@pytest.mark.parametrize("count", [5_000, pytest.param(60_000, marks=pytest.mark.slow)])
def test_bad_messages_on_the_client_port_get_typed_naks_and_change_nothing(
    unhurt: LocalCluster, count: int
) -> None:
    print("seed", SEED)
    prepared(unhurt)
    before = state(unhurt)
    endpoint = unhurt.endpoints()[unhurt.wait_for_leader()]
    with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
        dealer.setsockopt(zmq.LINGER, 0)
        dealer.connect(endpoint)
        in_flight = 0
        codes: set[str] = set()

        def take_reply() -> None:
            assert dealer.poll(10_000), "a message got no reply"
            reply = decode_reply(dealer.recv_multipart()[1:])
            if not reply.ok:
                assert reply.body["error"] in ERRORS, reply
                assert reply.body["definite"] is True, reply
                codes.add(reply.body["error"])

        for message in mutated_messages(random.Random(SEED), count):
            dealer.send_multipart([b"", *message])
            in_flight += 1
            if in_flight >= WINDOW:
                take_reply()
                in_flight -= 1
        for _ in range(in_flight):
            take_reply()
    assert {"bad_request", "unknown_client"} <= codes
    assert state(unhurt) == before
    assert len(unhurt.pids()) == 3, unhurt.tails()


def test_a_message_without_the_delimiter_gets_a_nak(unhurt: LocalCluster) -> None:
    with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
        dealer.setsockopt(zmq.LINGER, 0)
        dealer.connect(next(iter(unhurt.endpoints().values())))
        dealer.send(b'{"type": "STATUS", "request_id": "x"}')
        assert dealer.poll(10_000)
        assert decode_reply(dealer.recv_multipart()[1:]).body["error"] == "bad_request"


# --- the peer port --------------------------------------------------------------------------------


def peer_address(cluster: LocalCluster, name: str) -> tuple[str, int]:
    config = Path(cluster.node(name).data_dir).parent / "node.toml"
    host, port = tomllib.loads(config.read_text())["peer_listen"].rsplit(":", 1)
    return host, int(port)


def bad_frames(rng: random.Random) -> bytes:
    """Return a few frames: random bytes, or well framed and checksummed nonsense."""
    frames = []
    for _ in range(4):
        body = rng.randbytes(rng.randrange(1, 80))
        if rng.random() < 0.5:
            frames.append(struct.pack("<II", len(body), zlib.crc32(body)) + body)
        else:
            frames.append(body)
    return b"".join(frames)


@pytest.mark.parametrize(
    "frames",
    [
        PEER_FRAMES // 10,
        pytest.param(PEER_FRAMES, marks=[pytest.mark.slow, pytest.mark.timeout(600)]),
    ],
)
@pytest.mark.slow
def test_garbage_on_the_peer_port_hurts_nobody(local_cluster: ClusterFactory, frames: int) -> None:
    print("seed", SEED)
    rng = random.Random(SEED)
    cluster = local_cluster(3, settings=CALM)
    me = prepared(cluster)
    before = state(cluster)
    term = highest_term(cluster)
    names = list(cluster.endpoints())
    addresses = [peer_address(cluster, name) for name in names]
    with ByHand(cluster.endpoints()[names[0]]) as hand:
        for number in range(frames // 4):
            with socket.create_connection(addresses[number % 3]) as stranger:
                stranger.sendall(bad_frames(rng))
            if number % 1000 == 0:
                assert hand.ack("GET", "t", me, last_id=0, text=True)["publication"] == "kept"
    assert state(cluster) == before
    assert len(cluster.pids()) == 3, cluster.tails()
    assert max(status["term"] for status in cluster.statuses(ANSWER_MS).values()) == term, (
        "an election"
    )


# --- the data directory ---------------------------------------------------------------------------


def last_segment(cluster: LocalCluster, name: str) -> Path:
    return sorted((Path(cluster.node(name).data_dir) / "journal").glob("*.log"))[-1]


def start_and_wait(cluster: LocalCluster, name: str) -> subprocess.CompletedProcess[str]:
    """Run a node in the foreground until it refuses to start."""
    import sys

    config = Path(cluster.node(name).data_dir).parent / "node.toml"
    return subprocess.run(
        [sys.executable, "-m", "cluster", "--config", str(config)],
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )


def test_a_torn_tail_is_cut_and_the_node_starts(cluster: LocalCluster) -> None:
    me = prepared(cluster)
    cluster.kill("n1")
    with last_segment(cluster, "n1").open("ab") as file:
        file.write(b"\x40\0\0\0half a record")
    cluster.start("n1")
    cluster.wait_for_leader()
    with ByHand(cluster.endpoints()["n1"]) as hand:
        deadline = time.monotonic() + 10
        reply = hand.ask("GET", "t", me, last_id=0, text=True)
        while reply["type"] == "NAK" and time.monotonic() < deadline:
            reply = hand.ask("GET", "t", me, last_id=0, text=True)
        assert reply["body"].get("publication") == "kept", reply


def test_a_flipped_bit_in_the_journal_refuses_with_file_and_offset(cluster: LocalCluster) -> None:
    prepared(cluster)
    cluster.kill("n2")
    segment = last_segment(cluster, "n2")
    damaged = bytearray(segment.read_bytes())
    damaged[len(damaged) // 2] ^= 0x10
    segment.write_bytes(damaged)
    ended = start_and_wait(cluster, "n2")
    assert ended.returncode == EXIT_DATA, ended
    assert segment.name in ended.stderr
    assert "offset" in ended.stderr
    assert "readmitted" in ended.stderr, "says how to rebuild the node"


def test_a_flipped_bit_in_the_identity_refuses(cluster: LocalCluster) -> None:
    cluster.kill("n3")
    file = Path(cluster.node("n3").data_dir) / "identity.json"
    damaged = bytearray(file.read_bytes())
    damaged[len(damaged) // 2] ^= 0x01
    file.write_bytes(damaged)
    ended = start_and_wait(cluster, "n3")
    assert ended.returncode == EXIT_DATA, ended
    assert "identity.json" in ended.stderr


def test_a_data_directory_is_used_by_one_process_at_a_time(unhurt: LocalCluster) -> None:
    ended = start_and_wait(unhurt, "n1")
    assert ended.returncode == EXIT_DATA, ended
    assert str(unhurt.pids()["n1"]) in ended.stderr


# --- the disk is full ---------------------------------------------------------------------------


@pytest.mark.root
def test_a_full_disk_is_a_typed_nak_and_service_resumes(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    disk = tmp_path / "small-disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=160m", "flotilla", disk], check=True)
    request.addfinalizer(lambda: subprocess.run(["umount", "-l", disk], check=True))
    with LocalCluster(disk / "cluster") as cluster:
        cluster.create(3, port=0, settings={"limits.disk_free_min_bytes": 64 * 1024 * 1024})
        cluster.start_all()
        leader = cluster.wait_for_leader()
        me = prepared(cluster)
        with ByHand(cluster.endpoints()[leader]) as hand:
            ballast = disk / "ballast"
            with ballast.open("wb") as file:
                os.posix_fallocate(file.fileno(), 0, 110 * 1024 * 1024)
            acknowledged = refill_until_refused(hand, me)
            assert hand.ack("GET", "t", me, last_id=0, text=True)["publication"] == "kept"
            ballast.unlink()
            counter = acknowledged + 1
            deadline = time.monotonic() + 10
            while hand.ask("PUT", "t", me, counter=counter, publication="x")["type"] == "NAK":
                assert time.monotonic() < deadline, "service does not resume"
            assert hand.ack("TOPICS", "", me)["topics"][0]["last_id"] == counter


def refill_until_refused(hand: ByHand, client_id: str) -> int:
    """PUT until the node says disk_full; return the last acknowledged counter."""
    acknowledged = 1
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        counter = acknowledged + 1
        reply = hand.ask("PUT", "t", client_id, counter=counter, publication="x" * 1000)
        if reply["type"] == "NAK":
            assert reply["body"]["error"] == "disk_full", reply
            assert reply["body"]["definite"] is True
            return acknowledged
        acknowledged = counter
    raise AssertionError("PUT was never refused")
