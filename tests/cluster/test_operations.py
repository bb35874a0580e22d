"""The procedures of docs/operations.md that no other test follows: backing up, and a lost node."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cluster.local.local import LocalCluster
from flotilla_client import Client, ClusterRecovered
from tests.cluster.test_observe import fetch, metrics_of
from tests.cluster.test_recover import call_it, data_of, recover
from tests.conftest import running
from tests.waiting import until


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    """Return three running nodes with keys, as they are by default, and with pages."""
    with running(tmp_path / "cluster", keys=True, pages=True) as made:
        yield made


def client_of(cluster: LocalCluster, directory: Path) -> Client:
    return Client(list(cluster.endpoints().values()), state_dir=directory, key=cluster.key)


def ready(cluster: LocalCluster, name: str) -> bool:
    return fetch(cluster.pages()[name], "/readyz")[0] == 200


def follower_of(cluster: LocalCluster) -> str:
    leader = cluster.wait_for_leader()
    return next(name for name in cluster.endpoints() if name != leader)


def is_as_far_as_its_leader(cluster: LocalCluster, name: str) -> bool:
    statuses, leader = cluster.statuses(), cluster.leader()
    if leader not in statuses or name not in statuses:
        return False
    return bool(statuses[name]["applied_index"] == statuses[leader]["commit_index"])


def status_of(cluster: LocalCluster) -> str:
    """Return what `flotilla status` says."""
    command = [sys.executable, "-m", "flotilla_client.cli", "--key", str(cluster.key)]
    return subprocess.check_output(
        [*command, "-e", ",".join(cluster.endpoints().values()), "status"], text=True
    )


def read(client: Client) -> list[str]:
    return [message.publication.decode() for message in client.messages("t", idle=0.1)]


# --- backing up -----------------------------------------------------------------------------------


def copy_of_a_stopped_node(cluster: LocalCluster, name: str, backup: Path) -> None:
    cluster.kill(name, "TERM")
    shutil.copytree(data_of(cluster, name), backup)
    cluster.start(name)


def snapshot_of_a_running_node(cluster: LocalCluster, name: str, backup: Path) -> None:
    """A snapshot of a file system has all files as they are at one moment: as if time stood."""
    cluster.kill(name, "STOP")
    shutil.copytree(data_of(cluster, name), backup)
    cluster.kill(name, "CONT")


@pytest.mark.slow
@pytest.mark.parametrize("copy", [copy_of_a_stopped_node, snapshot_of_a_running_node])
def test_a_copy_of_one_node_s_data_is_brought_back_and_each_client_hears_what_it_has_lost(
    cluster: LocalCluster, tmp_path: Path, copy: Callable[[LocalCluster, str, Path], None]
) -> None:
    backup, node = tmp_path / "backup", follower_of(cluster)
    with client_of(cluster, tmp_path / "reader") as reader:
        reader.subscribe("t")
        with client_of(cluster, tmp_path / "writer") as writer:
            writer.publish_many("t", ["1", "2", "3", "4"])
            assert read(reader) == ["1", "2", "3", "4"]
            writer.publish("t", "5")
            until(lambda: is_as_far_as_its_leader(cluster, node), cluster.tails())
            copy(cluster, node, backup)
            writer.publish("t", "lost")  # the others serve, and nobody waits for the one
            until(lambda: ready(cluster, node))
            assert read(reader) == ["5", "lost"]

    # All disks are lost.
    cluster.down()
    for name in cluster.endpoints():
        cluster.wipe(name)
    done = recover("--from", backup, "--to", data_of(cluster, node), "--yes")
    assert done.returncode == 0, done.stderr
    found = re.search(r'cluster_id = "(.*?)"', done.stdout)
    assert found is not None, done.stdout
    assert f"flotilla-keys rename {found[1]}" in done.stdout
    call_it(cluster, found[1], *cluster.endpoints())
    keys = [sys.executable, "-m", "cluster.keys.cli", "rename"]
    subprocess.run([*keys, "--dir", str(cluster.keys_dir), found[1]], check=True)
    cluster.start_all()
    cluster.wait_for_leader()
    for name in cluster.endpoints():
        until(lambda name=name: ready(cluster, name), cluster.tails())

    with client_of(cluster, tmp_path / "reader") as reader:
        with pytest.raises(ClusterRecovered) as caught:
            reader.get("t")
        [(kept, had)] = caught.value.details["deliveries"].values()
        # All is in the copy; that it is committed a node writes down as it stops, or soon.
        assert had == 6
        assert kept == 5 or (kept == 4 and copy is snapshot_of_a_running_node)
        reader.adopt()
        with client_of(cluster, tmp_path / "writer") as writer:
            with pytest.raises(ClusterRecovered, match="1 acknowledged publication to t lost"):
                writer.publish("t", "6")
            writer.adopt()
            assert writer.publish("t", "6").id == 6
        assert read(reader) == ["5", "6"][kept - 4 :]


@pytest.mark.slow
def test_a_subscriber_that_stores_what_it_reads_has_all_for_another_cluster(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    stored = tmp_path / "stored"

    def store(until_id: int) -> None:
        """Store as docs/operations.md says, by a process that dies between storing and `ack`."""
        lines = stored.read_text().splitlines() if stored.exists() else []
        last_id = int(lines[-1].split()[0]) if lines else 0
        with client_of(cluster, tmp_path / "backup") as reader, open(stored, "a") as file:
            for message in reader.messages("t", ack="manual"):
                if message.id > last_id:
                    file.write(f"{message.id} {message.publication.decode()}\n")
                    file.flush()
                    os.fsync(file.fileno())
                else:
                    assert message.redelivered, message.id
                if message.id == until_id:
                    return
                message.ack()

    with client_of(cluster, tmp_path / "backup") as reader:
        reader.subscribe("t")
    with client_of(cluster, tmp_path / "writer") as writer:
        writer.publish_many("t", [f"p{number}" for number in range(1, 51)])
    store(20)
    cluster.kill(cluster.wait_for_leader())
    store(50)
    texts = [line.split()[1] for line in stored.read_text().splitlines()]
    assert texts == [f"p{number}" for number in range(1, 51)], "each once, in order"

    cluster.down()
    with (
        running(tmp_path / "another", 1) as another,
        Client(list(another.endpoints().values()), state_dir=tmp_path / "new") as reader,
        Client(list(another.endpoints().values()), state_dir=tmp_path / "again") as writer,
    ):
        reader.subscribe("t")
        writer.publish_many("t", texts)
        assert read(reader) == texts


# --- a lost node ----------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_lost_node_is_waited_for_and_then_replaced_before_the_next_one_goes(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    lost = follower_of(cluster)
    leader = cluster.wait_for_leader()
    page = cluster.pages()[leader]

    def is_away() -> bool:
        """What the alert FlotillaMemberAway asks."""
        return metrics_of(page)["flotilla_peer_connected", lost] == 0

    def lag() -> float:
        return metrics_of(page)["flotilla_peer_lag_entries", lost]

    with client_of(cluster, tmp_path / "client") as client:
        client.subscribe("t")
        cluster.kill(lost)
        until(is_away)
        endpoint = cluster.endpoints()[lost].removeprefix("tcp://")
        assert f"{endpoint} is unavailable: connection refused" in status_of(cluster)
        members = cluster.statuses()[leader]["members"]
        assert [name for name, member in members.items() if not member["connected"]] == [lost]
        assert members[lost]["silent_ms"] > 0
        client.publish_many("t", [f"{number}" for number in range(100)])  # nobody has to do a thing

        # It comes back by itself, with its disk.
        cluster.start(lost)
        until(lambda: ready(cluster, lost) and not is_away() and lag() == 0)

        # Its disk does not.
        cluster.wipe(lost)
        until(is_away)
        client.publish("t", "without it")
        cluster.start(lost)
        until(lambda: ready(cluster, lost) and not is_away() and lag() == 0)

        # Only now may the next one go.
        cluster.kill(leader)
        assert client.publish("t", "without the next one").id == 102
        assert len(read(client)) == 102
