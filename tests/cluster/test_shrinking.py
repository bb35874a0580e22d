"""A full disk ends nobody, and a store shrinks again: what was read empty serves on."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from cluster.local.local import LocalCluster
from flotilla_client import Client
from tests.cluster.by_hand import ByHand

MIB = 1024 * 1024
RESUME_S_MAX = 15.0
SHRINK_S_MAX = 60.0
CLIENTS = 32
SUBSCRIBED_S_MAX = 30.0  # until each has its topic


def stores(cluster: LocalCluster) -> list[int]:
    """Return the sizes of all nodes' databases."""
    return [(Path(node.data_dir) / "store" / "store.db").stat().st_size for node in cluster.nodes()]


def fill(hand: ByHand, client_id: str, topic: str = "t") -> int:
    """PUT until the disk is full; return the last acknowledged counter."""
    counter = 1
    while True:
        reply = hand.ask("PUT", topic, client_id, counter=counter, publication="x" * 1_000_000)
        if reply["type"] == "NAK" and reply["body"]["error"] == "disk_full":
            return counter - 1
        counter += reply["type"] == "ACK"


def read_all(hand: ByHand, client_id: str, last_id: int) -> None:
    """Read and acknowledge everything."""
    for read in range(last_id):
        assert hand.ack("GET", "t", client_id, last_id=read, text=True)["id"] == read + 1
    hand.ack("GET", "t", client_id, last_id=last_id)


@contextmanager
def _disk(directory: Path) -> Iterator[None]:
    directory.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=200m", "flotilla", directory], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", directory], check=True)


@contextmanager
def _running(directory: Path) -> Iterator[LocalCluster]:
    settings = {
        "limits.disk_free_min_bytes": 64 * MIB,
        "journal.segment_bytes": 4 * MIB,
        "journal.keep_bytes": 4 * MIB,
    }
    with LocalCluster(directory) as cluster:
        cluster.create(3, port=0, settings=settings)
        cluster.start_all()
        yield cluster


@pytest.fixture
def small_disks(tmp_path: Path) -> Iterator[LocalCluster]:
    """Three nodes that run, each on a disk of 200 MB of its own."""
    with ExitStack() as mounted:
        for name in ("n1", "n2", "n3"):
            mounted.enter_context(_disk(tmp_path / "cluster" / name))
        yield mounted.enter_context(_running(tmp_path / "cluster"))


@pytest.mark.slow
@pytest.mark.root
def test_a_disk_that_was_filled_and_read_empty_takes_publications_again(
    small_disks: LocalCluster,
) -> None:
    cluster = small_disks
    leader = cluster.wait_for_leader()
    pids = cluster.pids()
    with ByHand(cluster.endpoints()[leader]) as hand:
        me = str(hand.ack("REQUEST_ID")["client_id"])
        hand.ack("SUB", "t", me)
        counter = fill(hand, me)
        print(f"full with {counter} publications, stores {stores(cluster)}")
        read_all(hand, me, counter)
        began = time.monotonic()
        while hand.ask("PUT", "t", me, counter=counter + 1, publication="x")["type"] == "NAK":
            assert time.monotonic() - began < RESUME_S_MAX, "service does not resume"
            time.sleep(0.05)
        print(f"resumed after {time.monotonic() - began:.1f} s, stores {stores(cluster)}")
        while max(stores(cluster)) > 8 * MIB:
            assert time.monotonic() - began < SHRINK_S_MAX, stores(cluster)
            time.sleep(0.1)  # nothing announces it
        print(f"shrunk after {time.monotonic() - began:.1f} s, stores {stores(cluster)}")
        hand.ack("PUT", "t", me, counter=counter + 2, publication="y")
    assert cluster.pids() == pids


@pytest.mark.slow
@pytest.mark.root
def test_no_node_ends_when_many_clients_fill_the_disks_at_once(small_disks: LocalCluster) -> None:
    cluster = small_disks
    endpoint = cluster.endpoints()[cluster.wait_for_leader()]
    pids = cluster.pids()

    # What fills the disks may hold a leader up for so long that another is elected, and a client by
    # hand asks for its id and its topic once.
    all_subscribe = threading.Barrier(CLIENTS)

    def fill_one(topic: str) -> int:
        with ByHand(endpoint) as hand:
            me = str(hand.ack("REQUEST_ID")["client_id"])
            hand.ack("SUB", topic, me)
            all_subscribe.wait(SUBSCRIBED_S_MAX)
            return fill(hand, me, topic)

    topics = [f"t{number}" for number in range(CLIENTS)]
    with ThreadPoolExecutor(CLIENTS) as clients:
        acknowledged = dict(zip(topics, clients.map(fill_one, topics), strict=True))
    count = sum(acknowledged.values())
    print(f"full with {count} publications of {CLIENTS} clients, stores {stores(cluster)}")
    with Client([*cluster.endpoints().values()]) as client:
        stored = {row.topic: row.last_id for row in client.topics(everything=True)}
    # One more may stand there: of no known outcome at first, and refused when it was tried again.
    assert {stored[topic] - acknowledged[topic] for topic in topics} <= {0, 1}
    assert cluster.pids() == pids
