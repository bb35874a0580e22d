"""Publications that expire, in a real cluster whose leader is killed: who is given what, when."""

from __future__ import annotations

import time
from datetime import timedelta
from pathlib import Path

import pytest

from cluster.local.local import LocalCluster
from flotilla_client import Client, Publication, Unsupported
from tests.conftest import ClusterFactory
from tests.waiting import until

SHORT_S = 0.8
LONG_S = 3600


@pytest.fixture
def cluster(local_cluster: ClusterFactory) -> LocalCluster:
    return local_cluster(3)


def test_what_has_expired_is_given_to_nobody_though_the_leader_is_killed_in_between(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    endpoints = [*cluster.endpoints().values()]
    with (
        Client(endpoints, state_dir=tmp_path / "writer") as writer,
        Client(endpoints, state_dir=tmp_path / "reader") as reader,
    ):
        reader.subscribe("t")
        with pytest.raises(Unsupported) as caught:
            writer.publish("t", "too early", expires=1)
        assert (caught.value.details["needs"], caught.value.definite) == (5, True)
        cluster.upgrade()
        writer.publish("t", "short", expires=SHORT_S)
        writer.publish("t", "stays", key="k")
        writer.publish("t", "long", expires=timedelta(seconds=LONG_S))
        writer.publish_many("t", [Publication("gone", expires=SHORT_S), "last"])
        assert [message.publication for message in reader.read("t", 1, 9)] == [
            *(b"short", b"stays", b"long", b"gone", b"last")
        ]
        cluster.kill(cluster.leader())
        time.sleep(SHORT_S)
        writer.publish("t", "after")  # an entry of the new leader: the log's time goes on
        until(lambda: [m.id for m in reader.read("t", 2, 9)] == [2, 3])
        messages = list(reader.messages("t", idle=0.3))
        assert [(each.id, each.publication, each.expires_ms) for each in messages] == [
            (2, b"stays", None),
            (3, b"long", LONG_S * 1000),
            (5, b"last", None),
            (6, b"after", None),
        ]
