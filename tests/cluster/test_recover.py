"""A cluster whose majority is gone goes on from the one data directory that is left."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cluster.identity import Identity
from cluster.local import LocalCluster
from cluster.recovery import BACKUP_NAME
from flotilla import Client
from tests.conftest import ClusterFactory

PATIENCE_S = 20
EXIT_ABORTED = 1
EXIT_DATA = 65


def recover(*arguments: object, answer: str = "") -> subprocess.CompletedProcess[str]:
    """Run `flotilla-node recover` as an operator does."""
    return subprocess.run(
        [sys.executable, "-m", "cluster", "recover", *map(str, arguments)],
        capture_output=True,
        text=True,
        input=answer,
        check=False,
    )


def data_of(cluster: LocalCluster, name: str) -> Path:
    return Path(cluster.node(name).data_dir)


def endpoints(cluster: LocalCluster) -> list[str]:
    return list(cluster.endpoints().values())


def call_it(cluster: LocalCluster, cluster_id: str, *names: str) -> None:
    """Write the cluster's id into the nodes' configuration."""
    for name in names:
        file = cluster.directory / name / "node.toml"
        lines = [line for line in file.read_text().splitlines() if "cluster_id" not in line]
        file.write_text("\n".join([f'cluster_id = "{cluster_id}"', *lines, ""]))


def events(cluster: LocalCluster, name: str, event: str) -> list[dict[str, Any]]:
    lines = cluster.log_file(name).read_text().splitlines()
    records = [json.loads(line) for line in lines if line.startswith("{")]
    return [record for record in records if record["event"] == event]


def await_that(happened: Callable[[], object], cluster: LocalCluster) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not happened():
        assert time.monotonic() < deadline, cluster.tails()
        time.sleep(0.05)


def test_an_operator_recovers_all_that_the_survivor_had_and_no_old_node_joins(
    local_cluster: ClusterFactory, tmp_path: Path
) -> None:
    cluster = local_cluster(3)
    with (
        Client(endpoints(cluster), state_dir=tmp_path / "reader") as reader,
        Client(endpoints(cluster), state_dir=tmp_path / "writer") as writer,
    ):
        reader.subscribe("t")
        for number in range(20):
            writer.put("t", f"{number}")
        assert reader.get("t", max_count=5) is not None
    running = recover("--from", data_of(cluster, "n3"), "--in-place", "--yes")
    assert running.returncode == EXIT_DATA
    assert "in use by another process" in running.stderr
    cluster.down()
    shutil.copytree(data_of(cluster, "n1"), tmp_path / "old-n1")
    for name in ("n1", "n2"):
        cluster.wipe(name)

    looked = recover("--from", data_of(cluster, "n3"), "--in-place", answer="n\n")
    assert looked.returncode == EXIT_ABORTED
    assert "What may be lost" in looked.stdout
    assert "node n3 of cluster 'local', members n1, n2, n3" in looked.stdout
    options = ("--cluster-id", "new", "--yes")
    done = recover("--from", data_of(cluster, "n3"), "--in-place", *options)
    assert done.returncode == 0, done.stderr
    assert 'set cluster_id = "new"' in done.stdout
    assert Identity.load(data_of(cluster, "n3") / BACKUP_NAME) is not None

    # An old node under its old configuration is refused by every handshake, on both sides.
    call_it(cluster, "new", "n2", "n3")
    shutil.copytree(tmp_path / "old-n1", data_of(cluster, "n1"))
    for name in ("n1", "n2", "n3"):
        cluster.start(name)
    for name, other in (("n1", "'new'"), ("n3", "'local'")):
        refusals = f"belongs to cluster {other}"
        await_that(lambda r=refusals, n=name: r in cluster.log_file(n).read_text(), cluster)
    assert cluster.leader() is None
    # Under the new one it does not even start.
    cluster.kill("n1")
    call_it(cluster, "new", "n1")
    cluster.start("n1")
    await_that(lambda: "n1" not in cluster.pids(), cluster)
    assert cluster.exit_codes["n1"] == EXIT_DATA
    assert "If the cluster was recovered" in cluster.log_file("n1").read_text()
    assert events(cluster, "n3", "recovered_waits"), "it says for whom"

    cluster.wipe("n1")
    cluster.start("n1")
    cluster.wait_for_leader()
    with (
        Client(endpoints(cluster), state_dir=tmp_path / "reader") as reader,
        Client(endpoints(cluster), state_dir=tmp_path / "writer") as writer,
    ):
        assert writer.put("t", "more").id == 21
        got = [int(message.id) for message in reader.messages("t", idle_ms=100)]
    assert got == list(range(6, 22)), "exactly once, across the recovery too"
    terms = {body["term"] for body in cluster.statuses().values()}
    assert min(terms) > 1_000_000

    # Once it goes on, it is a cluster as any other: each node dies and comes back, one is wiped.
    for name in ("n3", "n1"):
        cluster.kill(name)
        cluster.wait_for_leader()
        cluster.start(name)
    cluster.wipe("n3")
    cluster.start("n3")
    await_that(lambda: events(cluster, "n3", "readmitted"), cluster)
    with Client(endpoints(cluster), state_dir=tmp_path / "writer") as writer:
        assert writer.put("t", "after all").id == 22


def test_a_recovery_may_make_a_cluster_of_one_which_serves_at_once(
    local_cluster: ClusterFactory, tmp_path: Path
) -> None:
    cluster = local_cluster(3)
    with Client(endpoints(cluster), state_dir=tmp_path / "me") as client:
        client.subscribe("t")
        client.put("t", "a")
    cluster.down()
    made = tmp_path / "made"
    options = ("--cluster-id", "alone", "--yes", "--members", "n2")
    assert recover("--from", data_of(cluster, "n2"), "--to", made, *options).returncode == 0
    file = cluster.directory / "n2" / "node.toml"
    lines = [line for line in file.read_text().splitlines() if not line.startswith("members.n")]
    address = next(line for line in file.read_text().splitlines() if "members.n2" in line)
    text = "\n".join([*lines, address, ""]).replace(str(data_of(cluster, "n2")), str(made))
    file.write_text(text)
    call_it(cluster, "alone", "n2")
    cluster.start("n2")
    await_that(lambda: cluster.leader() == "n2", cluster)
    with Client(cluster.endpoints()["n2"], state_dir=tmp_path / "me") as client:
        assert client.put("t", "b").id == 2
        assert [message.publication for message in client.messages("t", idle_ms=50)] == [b"a", b"b"]


def test_a_node_whose_directory_has_other_members_says_so_and_ends(
    local_cluster: ClusterFactory,
) -> None:
    cluster = local_cluster(1)
    cluster.down()
    file = cluster.directory / "n1" / "node.toml"
    others = 'members.n2 = "127.0.0.1:2"\nmembers.n3 = "127.0.0.1:3"\n'
    file.write_text(file.read_text() + others)
    cluster.start("n1")
    await_that(lambda: not cluster.pids(), cluster)
    assert cluster.exit_codes["n1"] == EXIT_DATA
    assert "belongs to a cluster of n1, configured are n1, n2, n3" in cluster.tails()
