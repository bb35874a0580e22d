"""Publications that expire, in a real cluster whose leader is killed: who is given what, when."""

from __future__ import annotations

import time
from datetime import timedelta
from pathlib import Path
from threading import Event, Thread

import pytest

from analytics.common.verdict import Verdict
from analytics.twins.judging import judge
from cluster.local.local import LocalCluster
from flotilla_client import Client, Publication, Unsupported
from tests.conftest import ClusterFactory
from tests.waiting import until

SHORT_S = 0.8
LONG_S = 3600
LAG_S = 0.2  # how long what a slow reader reads lives
LAGGED_COUNT = 600


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
        cluster.begin_at_newest_level()
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


@pytest.mark.slow
def test_a_reader_that_lags_by_the_time_to_live_is_given_what_is_left_and_its_record_is_sound(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    cluster.begin_at_newest_level()
    endpoints, record, ended = [*cluster.endpoints().values()], tmp_path / "record", Event()

    def publish() -> None:
        with Client(endpoints, state_dir=tmp_path / "writer", record=record) as writer:
            for number in range(LAGGED_COUNT):
                writer.publish("t", b"%d" % number, expires=LAG_S)
        ended.set()

    given: list[int] = []
    with Client(endpoints, state_dir=tmp_path / "reader", record=record) as reader:
        reader.subscribe("t")
        publishing = Thread(target=publish, daemon=True)
        publishing.start()
        while not ended.is_set():
            delivery = reader.get("t", max_count=2)
            if delivery is not None and not ended.is_set():
                given += [message.id for message in delivery]
            time.sleep(LAG_S / 4)
        publishing.join()
    assert given == sorted(set(given))
    assert len(given) < given[-1]  # it lagged, or this shows nothing
    assert given[-1] > LAGGED_COUNT / 2
    judgement = judge(record)
    assert not {name: rows for name, rows in judgement.evidence.items() if rows}
    assert (judgement.verdict, judgement.reasons) == (Verdict.VALID, ())
