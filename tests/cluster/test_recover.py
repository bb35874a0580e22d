"""A cluster whose majority is gone goes on from the one data directory that is left."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from cluster.local.local import LocalCluster
from cluster.members.identity import Identity
from cluster.recovery.recovery import BACKUP_NAME
from flotilla_client import Client, ClusterRecovered, Unavailable, UnknownClient, UnknownTopic
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


def await_all_at(cluster: LocalCluster, survivor: str) -> None:
    """Wait until a node has what clients were told: a majority without it is enough for that."""

    def has_all() -> bool:
        statuses, leader = cluster.statuses(), cluster.leader()
        if leader not in statuses or survivor not in statuses:
            return False
        return bool(statuses[leader]["commit_index"] <= statuses[survivor].get("last_index", 0))

    await_that(has_all, cluster)


@pytest.mark.slow
def test_an_operator_recovers_all_that_the_survivor_had_and_no_old_node_joins(
    local_cluster: ClusterFactory, tmp_path: Path
) -> None:
    """The whole way of an operator, 13 s of it starts and ends of nodes, one after the other."""
    cluster = local_cluster(3)
    with (
        Client(endpoints(cluster), state_dir=tmp_path / "reader") as reader,
        Client(endpoints(cluster), state_dir=tmp_path / "writer") as writer,
    ):
        reader.subscribe("t")
        for number in range(20):
            writer.publish("t", f"{number}")
        assert reader.get("t", max_count=5) is not None
    await_all_at(cluster, "n3")
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
        assert writer.publish("t", "more").id == 21
        got = [int(message.id) for message in reader.messages("t", idle=0.1)]
    assert got == list(range(6, 22)), "exactly once, across the recovery too"

    # The last one may copy the store still: before, it is no member to kill the others beside.
    def terms() -> list[int]:
        return [body["term"] for body in cluster.statuses().values()]

    await_that(lambda: len(terms()) == 3 and all(terms()), cluster)
    assert min(terms()) > 1_000_000

    # Once it goes on, it is a cluster as any other: each node dies and comes back, one is wiped.
    for name in ("n3", "n1"):
        cluster.kill(name)
        cluster.wait_for_leader()
        cluster.start(name)
    cluster.wipe("n3")
    cluster.start("n3")
    await_that(lambda: events(cluster, "n3", "readmitted"), cluster)
    with Client(endpoints(cluster), state_dir=tmp_path / "writer") as writer:
        assert writer.publish("t", "after all").id == 22


@pytest.mark.slow
def test_a_recovery_may_make_a_cluster_of_one_which_serves_at_once(
    local_cluster: ClusterFactory, tmp_path: Path
) -> None:
    cluster = local_cluster(3)
    with Client(endpoints(cluster), state_dir=tmp_path / "me") as client:
        client.subscribe("t")
        client.publish("t", "a")
    await_all_at(cluster, "n2")
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
        assert client.publish("t", "b").id == 2
        assert [message.publication for message in client.messages("t", idle=0.05)] == [b"a", b"b"]


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


# --- what clients had been told, and the survivor had not -----------------------------------------


class Aftermath:
    """A cluster recovered from n3, which was down while clients went on with n1 and n2.

    `work(cluster)` is what they did meanwhile.
    """

    def __init__(self, cluster: LocalCluster, work: Callable[[], None]) -> None:
        self.cluster = cluster
        await_all_at(cluster, "n3")
        cluster.kill("n3", "TERM")
        work()
        cluster.down()
        for name in ("n1", "n2"):
            cluster.wipe(name)

    def recover(self) -> None:
        self.cluster.recover("n3")
        self.cluster.start_all()
        self.cluster.wait_for_leader()


@pytest.fixture
def closed_at_last() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def texts(client: Client, topic: str = "t") -> list[str]:
    return [message.publication.decode() for message in client.messages(topic, idle=0.1)]


@pytest.mark.slow
def test_what_was_acknowledged_and_lost_is_said_and_nothing_is_skipped_or_dropped(
    local_cluster: ClusterFactory, tmp_path: Path, closed_at_last: ExitStack
) -> None:
    cluster = local_cluster(3)
    nodes = endpoints(cluster)

    def open_(name: str, timeout: float = 15) -> Client:
        return Client(nodes, state_dir=tmp_path / name, timeout=timeout)

    late = closed_at_last.enter_context(open_("late"))
    running = closed_at_last.enter_context(open_("running"))
    with open_("reader") as reader, open_("writer") as writer:
        reader.subscribe("t")
        running.subscribe("t")
        writer.publish_many("t", ["1", "2", "3"])
        assert texts(reader) == texts(running) == ["1", "2", "3"]

    def work() -> None:
        with open_("reader") as reader, open_("writer") as writer:
            writer.publish_many("t", ["lost 4", "lost 5"])
            assert texts(reader) == texts(running) == ["lost 4", "lost 5"]
            reader.subscribe("lost topic")
            late.subscribe("t")

    aftermath = Aftermath(cluster, work)
    with open_("writer", 0.5) as writer, pytest.raises(Unavailable):
        writer.publish("t", "waits in the outbox")
    aftermath.recover()

    # A client that starts after the recovery: told before anything, and for as long as it takes.
    for _ in range(2):
        with open_("writer") as writer, pytest.raises(ClusterRecovered) as caught:
            writer.publish("t", "too early")
        assert caught.value.definite
        assert caught.value.details["publications"] == {"t": 2}
        assert "2 acknowledged publications to t lost" in str(caught.value)
        assert f"flotilla --state {tmp_path / 'writer'} adopt" in str(caught.value)
    with open_("other") as other:
        other.publish_many("t", ["new 4", "new 5", "new 6"])  # over the ids that were lost
    with open_("writer") as writer:
        assert writer.adopt().publications == {"t": 2}
        assert not writer.adopt()
        assert writer.publish("t", "after it").id == 8
    with open_("reader") as reader:
        with pytest.raises(ClusterRecovered) as caught:
            reader.get("t")
        assert caught.value.details["deliveries"] == {"t": (3, 5)}
        assert caught.value.details["subscriptions"] == ["lost topic"]
        reader.adopt()
        assert texts(reader) == ["new 4", "new 5", "new 6", "waits in the outbox", "after it"]
        with pytest.raises(UnknownTopic):
            reader.get("lost topic")

    # One that runs across the recovery must not skip either.
    with pytest.raises(ClusterRecovered):
        running.get("t")
    running.adopt()
    assert texts(running) == ["new 4", "new 5", "new 6", "waits in the outbox", "after it"]
    # And one that the recovered cluster has never heard of becomes a new client.
    with pytest.raises(UnknownClient):
        late.get("t")
    assert late.adopt().is_unknown
    assert late.subscribe("t").last_id == 8


@pytest.mark.slow
def test_clients_to_whom_nothing_was_lost_notice_nothing(
    local_cluster: ClusterFactory, tmp_path: Path
) -> None:
    cluster = local_cluster(3)
    nodes = endpoints(cluster)
    with Client(nodes, state_dir=tmp_path / "me") as me, me.producer("t") as producer:
        me.subscribe("t")
        me.subscribe("u")
        producer.send("1").result()
        me.publish("u", "1")
        assert texts(me) == ["1"]
        Aftermath(cluster, lambda: None).recover()
        assert me.publish("u", "2").id == 2
        assert texts(me, "u") == ["1", "2"]
        producer.send("2").result()
        me.subscribe("v")
        assert texts(me) == ["2"]
        assert {row["topic"] for row in me.topics()} == {"t", "u", "v"}


@pytest.mark.slow
def test_the_command_line_says_what_is_lost_and_adopts(
    local_cluster: ClusterFactory, tmp_path: Path
) -> None:
    cluster = local_cluster(3)
    nodes = ",".join(endpoint.removeprefix("tcp://") for endpoint in endpoints(cluster))

    def flotilla(*words: str) -> tuple[int, str, str]:
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "flotilla_client.cli",
                "-e",
                nodes,
                "--state",
                tmp_path / "s",
                *words,
            ],
            capture_output=True,
            text=True,
            check=False,
        )
        return done.returncode, done.stdout, done.stderr

    assert flotilla("sub", "t")[0] == 0
    Aftermath(cluster, lambda: print(flotilla("put", "t", "a")))
    command = [sys.executable, "-c", "from cluster.local.cli import main; main()", "recover"]
    directory = ["--dir", str(cluster.directory)]
    refused = subprocess.run([*command, *directory, "n3"], input="n\n", text=True, check=False)
    assert refused.returncode == EXIT_ABORTED
    done = subprocess.run(
        [*command, "--yes", *directory, "n3"], capture_output=True, text=True, check=True
    )
    assert "What may be lost" in done.stdout
    assert "up --dir" in done.stdout
    cluster.start_all()
    cluster.wait_for_leader()
    code, _, error = flotilla("put", "t", "b")
    assert (code, "cluster_recovered: " in error, "adopt" in error) == (3, True, True)
    assert flotilla("adopt")[:2] == (0, "1 acknowledged publication to t lost\n")
    assert flotilla("adopt")[:2] == (0, "nothing is lost\n")
    assert flotilla("put", "t", "b")[:2] == (0, "1\n")
