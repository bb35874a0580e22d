"""Clients by a name, on a real cluster: killed, started elsewhere, going on."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.local.local import LocalCluster
from flotilla_client import Client, Fenced
from tests.conftest import PATIENT, running

PATIENCE_S = 20
VALID = 0
READER = """
    import os, signal, sys
    from flotilla_client import Client
    client = Client(sys.argv[1], name="billing", timeout=20, record=sys.argv[2])
    for message in client.messages("orders"):
        print(message.id, int(message.redelivered), flush=True)
        if message.id == 3:
            os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Run three nodes, at the level of version 0.3 at first."""
    with running(tmp_path_factory.mktemp("cluster") / "names", settings=PATIENT) as made:
        yield made


def test_a_reader_that_is_killed_goes_on_without_a_disk(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    endpoints, record = ",".join(cluster.endpoints().values()), tmp_path / "record"
    cluster.begin_at_newest_level()
    with Client(endpoints, name="billing", timeout=PATIENCE_S, record=record) as client:
        client.subscribe("orders")
        with Client(endpoints, timeout=PATIENCE_S, record=record) as shop:
            futures = [shop.publish_soon("orders", str(number)) for number in range(6)]
            assert [future.result(PATIENCE_S).id for future in futures] == [1, 2, 3, 4, 5, 6]
    command = [sys.executable, "-c", textwrap.dedent(READER), endpoints, str(record)]
    read = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert read.stdout.split("\n")[:3] == ["1 1", "2 1", "3 1"], read
    with Client(endpoints, name="billing", timeout=PATIENCE_S, record=record) as client:
        ids = [message.id for message in client.messages("orders", idle=0.2)]
    # What was acknowledged in the dead process's memory alone comes again; nothing is skipped.
    assert ids == list(range(ids[0], 7))
    assert ids[0] <= 3
    with Client(endpoints, name="billing", timeout=PATIENCE_S, record=record) as client:
        assert client.get("orders", timeout=2) is None  # it was closed in order
    # The record calls nothing acknowledged that only the dead process knew.
    command = [sys.executable, "-c", "from flotilla_commands import check; check()"]
    options = ["--judge", "twins", "--no-report"]
    judged = subprocess.run([*command, str(record), *options], timeout=60, check=False)
    assert judged.returncode == VALID


def test_the_newest_process_has_the_name(cluster: LocalCluster) -> None:
    endpoints = [*cluster.endpoints().values()]
    with Client(endpoints, name="only", timeout=PATIENCE_S) as older:
        older.subscribe("mine")
        with Client(endpoints, name="only", timeout=PATIENCE_S) as newer:
            assert newer.publish("mine", "a").id == 1
            with pytest.raises(Fenced):
                older.publish("mine", "b")
