"""A topic that is compacted, in a real cluster whose leader is killed: what is left, for whom."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from cluster.local.local import LocalCluster
from flotilla_client import Admin, BadRequest, Client, Unsupported
from tests.conftest import ClusterFactory

WAIT_S = 15.0


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
        cluster.upgrade()
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
