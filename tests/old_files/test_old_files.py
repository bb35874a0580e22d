"""What version 0.1 left on disks is opened: nodes' data, clients' states, recorded histories.

The archive's maker, make_0_1.py, says what is in it.
"""

from __future__ import annotations

import shutil
import tarfile
from pathlib import Path
from typing import Final

import pytest

from analytics.common.verdict import Verdict
from analytics.twins import judging
from cluster.local.local import LocalCluster
from flotilla_client import Client

ARCHIVE: Final = Path(__file__).with_name("0.1.tar.xz")
MEMBERS: Final = ("n1", "n2", "n3")
A: Final = [f"a{number}".encode() for number in range(60)]
B: Final = [f"b{number}".encode() for number in range(41)]
WAIT_S: Final = 5.0


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """Return where the files of 0.1 are, as it left them."""
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(tmp_path / "0.1", filter="data")
    return tmp_path / "0.1"


def everything(client: Client, topic: str, count: int) -> list[bytes]:
    """Return so many publications of the topic, and see that there are no more."""
    found: list[bytes] = []
    while len(found) < count:
        delivery = client.get(topic, idle=WAIT_S, max_count=count, ack="manual")
        assert delivery is not None, found
        found += delivery.publications
        client.acknowledge(topic, delivery.last_id)
    assert client.get(topic, ack="manual") is None
    return found


def test_nodes_and_clients_go_on_from_the_disks_of_0_1(old: Path, tmp_path: Path) -> None:
    cluster = LocalCluster(tmp_path / "cluster")
    cluster.create(len(MEMBERS))
    for name in MEMBERS:
        shutil.copytree(old / "cluster" / name / "data", tmp_path / "cluster" / name / "data")
    with cluster:
        cluster.start_all()
        cluster.wait_for_leader()
        endpoints = list(cluster.endpoints().values())
        with Client(endpoints, state_dir=old / "writer") as writer:
            writer.flush()  # what was written down when its process was killed
            put = writer.publish("a", "new")
            assert (put.id, put.duplicate) == (len(A) + 2, False)
        after = [b"pending", b"new"]
        with Client(endpoints, state_dir=old / "reader") as reader:
            assert everything(reader, "a", 42) == A[20:] + after
            assert everything(reader, "b", 41) == B
        with Client(endpoints, state_dir=old / "late") as late:
            assert everything(late, "a", 62) == A + after


@pytest.mark.parametrize("record", ["run", "record"])
def test_a_history_of_0_1_is_read_and_nothing_wrong_is_found_in_it(old: Path, record: str) -> None:
    """It is not called valid: 0.1 did not write down what its files hold."""
    judgement = judging.judge(old / record)
    assert {name: rows for name, rows in judgement.evidence.items() if rows} == {}
    assert judgement.verdict is Verdict.UNKNOWN
    assert any("does not say what its files hold" in reason for reason in judgement.reasons)
