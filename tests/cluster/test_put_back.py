"""Directories put back to an older state: what that costs is said, and nobody is stuck."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from cluster.local.local import LocalCluster
from flotilla_client import Client, ClusterRecovered, Unavailable
from tests.conftest import ClusterFactory
from tests.unit.fake_node import impatient


@pytest.fixture
def cluster(local_cluster: ClusterFactory) -> LocalCluster:
    return local_cluster(1)


@pytest.fixture
def kept_open() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def open_(cluster: LocalCluster, directory: Path) -> Client:
    [endpoint] = cluster.endpoints().values()
    return Client(endpoint, state_dir=directory, timeout=15)


def texts(client: Client) -> list[str]:
    return [message.publication.decode() for message in client.messages("t", idle=0.05)]


# --- a client's state directory -------------------------------------------------------------------


def test_what_is_put_from_an_older_state_directory_is_never_taken_for_a_duplicate(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    with open_(cluster, tmp_path / "reader") as reader:
        reader.subscribe("t")
    with open_(cluster, tmp_path / "now") as client:
        client.publish_many("t", ["1", "2"])
    shutil.copytree(tmp_path / "now", tmp_path / "backup")
    with open_(cluster, tmp_path / "now") as client:
        client.publish_many("t", ["3", "4"])
    with open_(cluster, tmp_path / "backup") as client:
        assert not client.publish("t", "5").duplicate
    with open_(cluster, tmp_path / "reader") as reader:
        assert texts(reader) == ["1", "2", "3", "4", "5"]


def test_what_an_older_state_directory_still_had_to_send_is_stored_once(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    with open_(cluster, tmp_path / "reader") as reader:
        reader.subscribe("t")
    with open_(cluster, tmp_path / "now") as client:
        client.publish("t", "1")
        cluster.kill("n1", "STOP")
        with impatient(client), pytest.raises(Unavailable):
            client.publish("t", "2")
    shutil.copytree(tmp_path / "now", tmp_path / "backup")
    cluster.kill("n1", "CONT")
    for directory, text in (("now", "3"), ("backup", "4")):
        with open_(cluster, tmp_path / directory) as client:
            client.publish("t", text)
    with open_(cluster, tmp_path / "reader") as reader:
        assert texts(reader) == ["1", "2", "3", "4"]


def test_a_reader_with_an_older_state_directory_goes_on_where_the_broker_knows_it(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    with open_(cluster, tmp_path / "now") as reader:
        reader.subscribe("t")
        reader.publish_many("t", ["1", "2"])
        assert texts(reader) == ["1", "2"]
    shutil.copytree(tmp_path / "now", tmp_path / "backup")
    with open_(cluster, tmp_path / "now") as reader:
        reader.publish_many("t", ["3", "4"])
        assert texts(reader) == ["3", "4"]
        reader.publish("t", "5")
    with open_(cluster, tmp_path / "backup") as reader:
        assert texts(reader) == ["5"]


def test_the_subscription_of_a_lost_directory_is_found_and_ended(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    """Nobody else could: what it has not read would be kept for it for ever."""
    with open_(cluster, tmp_path / "lost") as lost, open_(cluster, tmp_path / "reader") as reader:
        lost.subscribe("t")
        reader.subscribe("t")
        reader.publish_many("t", ["1", "2"])
        assert texts(reader) == ["1", "2"]
        lost_id, reader_id = lost.client_id, reader.client_id
    shutil.rmtree(tmp_path / "lost")

    def flotilla(*words: str) -> tuple[int, str]:
        [endpoint] = cluster.endpoints().values()
        command = [sys.executable, "-m", "flotilla_client.cli", "-e", endpoint, "--state"]
        done = subprocess.run(
            [*command, tmp_path / "operator", *words], capture_output=True, text=True, check=False
        )
        return done.returncode, done.stdout

    code, lines = flotilla("topics", "--subscribers", "t", "--json")
    rows = {row["client_id"]: row["backlog"] for row in map(json.loads, lines.splitlines())}
    assert (code, rows) == (0, {lost_id: 2, reader_id: 0})
    assert flotilla("unsub", "t", "--client", lost_id) == (0, "unsubscribed\n")
    assert flotilla("unsub", "t", "--client", lost_id) == (0, "was not subscribed\n")
    assert flotilla("unsub", "t", "--client", "nobody")[0] == 3
    with open_(cluster, tmp_path / "reader") as reader:
        assert [row["client_id"] for row in reader.subscribers("t")] == [reader_id]
        assert reader.subscribers("nowhere") == []
        assert reader.unsubscribe("t", client_id=reader_id), "its own, as without the name"
        assert reader.topics() == []


# --- the nodes' data directories ------------------------------------------------------------


def test_data_that_was_put_back_by_hand_is_told_to_all_whom_it_concerns(
    cluster: LocalCluster, tmp_path: Path, kept_open: ExitStack
) -> None:
    """Forbidden, and bound to be done: nobody can notice it but a client that knows more."""
    with open_(cluster, tmp_path / "me") as client:
        client.subscribe("t")
        client.publish_many("t", ["1", "2"])
        assert texts(client) == ["1", "2"]
    cluster.down()
    data = Path(cluster.node("n1").data_dir)
    shutil.copytree(data, tmp_path / "backup")
    cluster.start_all()
    running = kept_open.enter_context(open_(cluster, tmp_path / "running"))
    running.publish_many("t", ["3", "4", "5"])
    with open_(cluster, tmp_path / "me") as client:
        assert texts(client) == ["3", "4", "5"]
        client.publish("t", "6")
    cluster.down()
    shutil.rmtree(data)
    shutil.copytree(tmp_path / "backup", data)
    cluster.start_all()

    with open_(cluster, tmp_path / "me") as client:
        with pytest.raises(ClusterRecovered) as caught:
            client.get("t")
        assert caught.value.details["publications"] == {"t": 1}
        assert caught.value.details["deliveries"] == {"t": (2, 5)}
        client.adopt()
        client.publish("t", "another 3")
        assert texts(client) == ["another 3"], "under an id that it had read before"
    # The one that runs was not known then: the cluster says so, and it becomes a new client.
    assert running.adopt().is_unknown
    assert running.publish("t", "another 4").id == 4
