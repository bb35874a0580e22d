"""A store shrinks again: a disk that was filled and read empty serves on, without a restart."""

from __future__ import annotations

import subprocess
import time
from functools import partial
from pathlib import Path

import pytest

from cluster.local.local import LocalCluster
from tests.cluster.by_hand import ByHand

MIB = 1024 * 1024
RESUME_S_MAX = 15.0
SHRINK_S_MAX = 60.0


def stores(cluster: LocalCluster) -> list[int]:
    """Return the sizes of all nodes' databases."""
    return [(Path(node.data_dir) / "store" / "store.db").stat().st_size for node in cluster.nodes()]


def fill(hand: ByHand, client_id: str) -> int:
    """PUT until the disk is full; return the last acknowledged counter."""
    counter = 1
    while True:
        reply = hand.ask("PUT", "t", client_id, counter=counter, publication="x" * 1_000_000)
        if reply["type"] == "NAK" and reply["body"]["error"] == "disk_full":
            return counter - 1
        counter += reply["type"] == "ACK"


def read_all(hand: ByHand, client_id: str, last_id: int) -> None:
    """Read and acknowledge everything."""
    for read in range(last_id):
        assert hand.ack("GET", "t", client_id, last_id=read, text=True)["id"] == read + 1
    hand.ack("GET", "t", client_id, last_id=last_id)


@pytest.mark.slow
@pytest.mark.root
def test_a_disk_that_was_filled_and_read_empty_takes_publications_again(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    for name in ("n1", "n2", "n3"):
        disk = tmp_path / "cluster" / name
        disk.mkdir(parents=True)
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=200m", "flotilla", disk], check=True)
        request.addfinalizer(partial(subprocess.run, ["umount", "-l", disk], check=True))
    settings = {
        "limits.disk_free_min_bytes": 64 * MIB,
        "journal.segment_bytes": 4 * MIB,
        "journal.keep_bytes": 4 * MIB,
    }
    with LocalCluster(tmp_path / "cluster") as cluster:
        cluster.create(3, port=0, settings=settings)
        cluster.start_all()
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
