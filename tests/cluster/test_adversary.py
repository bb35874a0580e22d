"""What an adversary found: none of it may kill a node, lose a publication or spread damage."""

from __future__ import annotations

import json
import re
import resource
import socket
import sqlite3
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest
import zmq

from cluster.local.local import LocalCluster
from flotilla_client import Client
from flotilla_client.protocol import TEXT_HEADER_BYTES_MAX
from tests.cluster.by_hand import ByHand
from tests.conftest import PATIENT, ClusterFactory

WAIT_S = 10.0
REPLY_MS = 5_000
FEW_DESCRIPTORS = 128
MANY_CONNECTIONS = 200
SMALLEST_SEGMENT = {"journal.segment_bytes": 64 * 1024, "journal.keep_bytes": 64 * 1024}


def refusal(endpoint: str, header: bytes) -> str:
    """Send a header as it is; return the error code of the NAK."""
    with zmq.Context() as context, context.socket(zmq.REQ) as client:
        client.setsockopt(zmq.LINGER, 0)
        client.connect(f"tcp://{endpoint.removeprefix('tcp://')}")
        client.send(header)
        assert client.poll(REPLY_MS), f"no reply to {header[:100]!r}"
        return str(json.loads(client.recv_multipart()[0])["body"]["error"])


def wait_until_one_is_dead(cluster: LocalCluster, names: list[str]) -> str:
    deadline = time.monotonic() + WAIT_S
    while True:
        alive = cluster.pids()
        for name in names:
            if name not in alive:
                return name
        assert time.monotonic() < deadline, f"{names} live\n{cluster.tails()}"


# --- one packet ---------------------------------------------------------------------------------


@pytest.mark.slow
def test_no_single_request_ends_a_node(local_cluster: ClusterFactory) -> None:
    cluster = local_cluster(3, PATIENT)
    leader = cluster.wait_for_leader()
    follower = next(name for name in cluster.endpoints() if name != leader)
    with ByHand(cluster.endpoints()[follower]) as hand:
        me = hand.ack("REQUEST_ID")["client_id"]
    deep = b"[" * 1000 + b"]" * 1000
    long = b"\x7f" * (TEXT_HEADER_BYTES_MAX - 200)  # five bytes each in a message that quotes it
    for endpoint in cluster.endpoints().values():
        assert refusal(endpoint, b'{"type":"STATUS","v":' + deep + b"}") == "bad_request"
        assert refusal(endpoint, b'{"type":' + deep + b"}") == "bad_request"
        get = b'{"type":"GET","client_id":"%s","body":{"last_ids":{"%s":1}}}'
        assert refusal(endpoint, get % (me.encode(), long)) == "too_large"
    assert len(cluster.pids()) == 3, cluster.tails()
    assert cluster.wait_for_leader() == leader


# --- many connections -----------------------------------------------------------------------------


@contextmanager
def soft_descriptor_limit(limit: int) -> Iterator[None]:
    """Let processes that are started meanwhile begin with `limit`."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_idle_connections_do_not_take_the_journals_descriptors(
    local_cluster: ClusterFactory,
) -> None:
    with soft_descriptor_limit(FEW_DESCRIPTORS):
        cluster = local_cluster(3, SMALLEST_SEGMENT)
    endpoint = cluster.endpoints()[cluster.wait_for_leader()].removeprefix("tcp://")
    host, port = endpoint.rsplit(":", 1)
    with ExitStack() as stack, ByHand(endpoint) as hand:
        me = hand.ack("REQUEST_ID")["client_id"]
        hand.ack("SUB", "t", me)
        for _ in range(MANY_CONNECTIONS):
            stack.enter_context(socket.create_connection((host, int(port))))
        for counter in range(1, 21):  # several segments
            hand.ack("PUT", "t", me, counter=counter, publication="x" * 20_000)
    assert len(cluster.pids()) == 3, cluster.tails()


# --- the first batch is refused, the second is not ------------------------------------------------


def test_a_producers_first_batch_that_is_refused_is_not_overtaken_and_lost(
    local_cluster: ClusterFactory, tmp_path: Path
) -> None:
    cluster = local_cluster(3, {"limits.backlog_bytes_max": 64 * 1024})
    endpoints = list(cluster.endpoints().values())
    with (
        Client(endpoints, state_dir=tmp_path / "reader") as reader,
        Client(endpoints, timeout=8) as writer,
    ):
        reader.subscribe("t")
        reader.publish("t", bytes(60_000))
        with writer.producer("t", linger_ms=0, batch_bytes=8_000) as out:
            large, small = out.send(b"A" * 7_900), out.send(b"B" * 200)
            assert reader.get("t") is not None
            assert reader.get("t", idle=5) is not None  # tells the broker of the first
            assert (large.result(8).id, small.result(8).id) == (2, 3)


# --- flipped bits -------------------------------------------------------------------------------


def flip_bits(database: Path, pattern: bytes) -> None:
    """Flip a bit in every place of a database at rest that looks like `pattern`."""
    with closing(sqlite3.connect(database)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    damaged = bytearray(database.read_bytes())
    places = [match.start() for match in re.finditer(pattern, damaged)]
    assert places, f"no {pattern!r} in {database}"
    for place in places:
        damaged[place] ^= 1
    database.write_bytes(damaged)


@pytest.mark.slow
def test_a_damaged_store_is_not_copied_to_a_wiped_node(local_cluster: ClusterFactory) -> None:
    cluster = local_cluster(3)
    wiped, *damaged = cluster.endpoints()
    with ByHand(cluster.endpoints()[cluster.wait_for_leader()]) as hand:
        me = hand.ack("REQUEST_ID")["client_id"]
        hand.ack("SUB", "t", me)
        hand.ack("PUT", "t", me, counter=1, publication="x" * 2_000)
    deadline = time.monotonic() + WAIT_S
    while len({status["applied_index"] for status in cluster.statuses().values()}) > 1:
        assert time.monotonic() < deadline, "the others did not apply the PUT"
    cluster.down()
    for name in damaged:
        flip_bits(Path(cluster.node(name).data_dir) / "store" / "store.db", b"x{1000}")
    cluster.wipe(wiped)
    cluster.start_all()
    source = wait_until_one_is_dead(cluster, damaged)
    assert "checksum" in cluster.log_file(source).read_text()
    assert "readmitted" not in cluster.log_file(wiped).read_text()
