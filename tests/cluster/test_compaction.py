"""A topic that is compacted, in a real cluster whose leader is killed: what is left, for whom."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from analytics import twins
from analytics.common.verdict import Verdict
from cluster.local.local import LocalCluster
from flotilla_client import Admin, BadRequest, Client, Publication, Unsupported
from tests.conftest import ClusterFactory

WAIT_S = 15.0
KEYS = 60
# It dies with what came behind the seventh in hand, and with what it had not handed over yet.
READER_THAT_DIES = """
import os, sys; from flotilla_client import Client
endpoints, state, record = sys.argv[1:]
client = Client(endpoints, state_dir=state, record=record)
client.subscribe("t", start="earliest")
for message in client.messages("t"):
    if message.id == 13:
        os._exit(0)
"""


@pytest.fixture
def cluster(local_cluster: ClusterFactory) -> LocalCluster:
    return local_cluster(3)


def until(is_so: Callable[[], bool]) -> None:
    end = time.monotonic() + WAIT_S
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_of_each_key_the_last_stays_though_the_leader_is_killed_in_between(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    endpoints = [*cluster.endpoints().values()]
    with (
        Client(endpoints, state_dir=tmp_path / "writer") as writer,
        Client(endpoints, state_dir=tmp_path / "reader") as reader,
        Client(endpoints, state_dir=tmp_path / "late") as late,
        Admin(endpoints) as admin,
    ):
        with pytest.raises(Unsupported):
            admin.create_topic("t", compact=True)
        cluster.begin_at_newest_level()
        made = admin.create_topic("t", compact=True)
        assert (made.policy.compact, made.policy.keep) == (True, "forever")
        with pytest.raises(BadRequest, match="compact"):
            admin.create_topic("u", compact=True, keep="unread")
        reader.subscribe("t")
        for round_ in range(3):
            for key in ("a", "b"):
                writer.publish("t", f"{key}{round_}", key=key)
        writer.publish("t", "of no key")
        # What somebody who stands in the topic has not read is there, for everybody.
        assert [each.id for each in late.read("t", 1, 99) or ()] == [1, 2, 3, 4, 5, 6, 7]
        cluster.kill(cluster.leader())
        got = list(reader.messages("t", idle=1.0))
        assert [each.id for each in got] == [1, 2, 3, 4, 5, 6, 7]
        reader.get("t", timeout=0.2)  # it says what it has
        writer.publish("t", "a3", key="a")  # an entry of the new leader compacts
        until(lambda: admin.show_topic("t").compacted_id == 7)
        assert [each.id for each in late.read("t", 1, 99) or ()] == [5, 6, 7, 8]
        late.make_group("t", "g", start="earliest")  # it keeps what it has not settled
        late.subscribe("t", start="earliest")
        texts = [each.publication for each in late.messages("t", idle=1.0)]
        assert texts == [b"a2", b"b2", b"of no key", b"a3"]
        assert [each.publication for each in reader.messages("t", idle=1.0)] == [b"a3"]
        group = [item.publication for item in late.work("t", group="g", start="earliest", idle=1.0)]
        assert group == [b"a2", b"b2", b"of no key", b"a3"]


def test_keys_that_stand_apart_take_few_exchanges_and_the_record_of_them_is_sound(
    local_cluster: ClusterFactory, tmp_path: Path
) -> None:
    """An exchange for each of them, before an answer might have several runs."""
    cluster = local_cluster(1)
    cluster.begin_at_newest_level()
    endpoints, record = [*cluster.endpoints().values()], tmp_path / "record"
    with (
        Client(endpoints, state_dir=tmp_path / "writer", record=record) as writer,
        Admin(endpoints) as admin,
    ):
        admin.create_topic("t", compact=True)
        for number in range(KEYS):
            writer.publish_many(
                "t", [Publication("v", key=f"k{number}"), Publication("x", key="x")]
            )
        writer.publish("t", "end", key="x")
        until(lambda: writer.publish("t", "y", key="y").id > 0 and compacted(admin) > 2 * KEYS)
    command = [sys.executable, "-c", READER_THAT_DIES, ",".join(endpoints)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path or "." for path in sys.path)}
    subprocess.run([*command, tmp_path / "reader", record], env=environment, check=True)
    with Client(endpoints, state_dir=tmp_path / "reader", record=record) as reader:
        got = [(each.id, each.redelivered) for each in reader.messages("t", idle=0.5)]
        assert got[0] == (13, True)
        assert [id_ for id_, _ in got[: KEYS - 6]] == list(range(13, 2 * KEYS, 2))
        assert not any(redelivered for _, redelivered in got[1:])
        assert reader._session._exchanges < 10

        begun, found = reader._session._exchanges, list[int]()
        while runs := reader.read_runs("t", found[-1] + 1 if found else 1, 10_000):
            found += [message.id for delivery in runs for message in delivery]
        assert found[:KEYS] == list(range(1, 2 * KEYS, 2))
        assert reader._session._exchanges - begun < 10
        alone = reader.read("t", 1, 10_000)
        assert alone is not None
        assert [message.id for message in alone] == [1], "one run"
    read = [sys.executable, "-m", "flotilla_client.cli", "-e", ",".join(endpoints), "read", "t"]
    texts = _texts(read)
    assert (texts[: KEYS + 1], texts.count("v")) == (["v"] * KEYS + ["end"], KEYS)
    assert _texts([*read, "--count", "7"]) == ["v"] * 7
    judgement = twins.judge(record)
    assert judgement.verdict is not Verdict.INVALID, judgement.evidence
    assert not any(judgement.evidence.values()), judgement.evidence


def _texts(command: list[str]) -> list[str]:
    return subprocess.check_output(command, text=True, timeout=60).split()


def compacted(admin: Admin) -> int:
    return admin.show_topic("t").compacted_id
