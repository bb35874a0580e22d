"""Keys, headers and times in a real cluster: every way in and out, a raise of the level, a kill."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.local.local import LocalCluster
from flotilla_client import AsyncClient, Client, Message, Publication, Unsupported
from tests.cluster.by_hand import ByHand
from tests.conftest import ClusterFactory

HEADERS: dict[str, str | bytes] = {"trace": b"\x00\x01", "kind": "größe"}
CLOCKS_MS = 1_000  # one machine: its nodes' clocks are one


@pytest.fixture
def cluster(local_cluster: ClusterFactory) -> LocalCluster:
    return local_cluster(3)


@pytest.fixture
def reader(cluster: LocalCluster, tmp_path: Path) -> Iterator[Client]:
    with Client([*cluster.endpoints().values()], state_dir=tmp_path / "reader") as client:
        client.subscribe("t")
        yield client


def said(message: Message) -> tuple[bytes, str | bytes | None, dict[str, str | bytes]]:
    return message.publication, message.key, dict(message.headers)


def test_properties_come_out_as_they_went_in_whatever_way_they_took(
    cluster: LocalCluster, reader: Client, tmp_path: Path
) -> None:
    endpoints = [*cluster.endpoints().values()]
    with Client(endpoints, state_dir=tmp_path / "writer") as client:
        client.publish("t", "before")
        with pytest.raises(Unsupported) as caught:
            client.publish("t", "too early", key="k")
        assert (caught.value.details["needs"], caught.value.definite) == (4, True)
        client.publish("t", "plain still goes")
        cluster.begin_at_newest_level()
        since_ms = time.time() * 1000
        client.publish("t", "one", key="k", headers=HEADERS)
        client.publish_many(
            "t", ["plain", Publication(b"\xff", b"raw"), Publication("x", headers={})]
        )
        client.enqueue("t", [Publication("later", "k2")])
        client.flush()
        with client.producer("t") as producer:
            producer.send("produced", key="k3")
            producer.send("not")
            producer.flush()

    async def publish() -> None:
        async with AsyncClient(endpoints) as client:
            await asyncio.gather(
                *(client.publish("t", f"{n}", key=f"{n}" if n % 2 else None) for n in range(4))
            )

    asyncio.run(publish())
    messages = list(reader.messages("t", idle=0))
    assert list(map(said, messages)) == [
        (b"before", None, {}),
        (b"plain still goes", None, {}),
        (b"one", "k", HEADERS),
        (b"plain", None, {}),
        (b"\xff", b"raw", {}),
        (b"x", None, {}),
        (b"later", "k2", {}),
        (b"produced", "k3", {}),
        (b"not", None, {}),
        (b"0", None, {}),
        (b"1", "1", {}),
        (b"2", None, {}),
        (b"3", "3", {}),
    ]
    assert [message.timestamp for message in messages[:2]] == [None, None]
    times = [message.timestamp_ms or 0 for message in messages[2:]]
    assert times == sorted(times)
    assert since_ms - CLOCKS_MS <= times[0] <= times[-1] <= time.time() * 1000 + CLOCKS_MS


def test_what_was_put_is_the_same_after_a_kill_of_the_leader_and_a_restart_of_all(
    cluster: LocalCluster, reader: Client, tmp_path: Path
) -> None:
    cluster.begin_at_newest_level()
    endpoints = [*cluster.endpoints().values()]
    with Client(endpoints, state_dir=tmp_path / "writer") as client:
        client.publish("t", "1", key="k1", headers=HEADERS)
        dead = cluster.wait_for_leader()
        cluster.kill(dead)
        client.publish("t", "2", key="k2")
        delivery = reader.get("t", max_count=9, ack="manual")
        assert delivery is not None
        before = list(delivery)
    cluster.start(dead)
    for name in cluster.endpoints():
        cluster.kill(name)
        cluster.start(name)
    cluster.wait_for_leader()
    with Client(endpoints, state_dir=tmp_path / "other") as other:
        other.subscribe("t")
        other.publish("t", "3")
    after = list(reader.messages("t", idle=0))
    assert after[:2] == before
    assert [each.timestamp_ms for each in after[:2]] == [each.timestamp_ms for each in before]
    times = [message.timestamp_ms or 0 for message in after]
    assert times == sorted(times)
    assert list(map(said, after)) == [(b"1", "k1", HEADERS), (b"2", "k2", {}), (b"3", None, {})]


def test_what_a_dead_process_left_in_its_outbox_goes_out_with_its_properties(
    cluster: LocalCluster, reader: Client, tmp_path: Path
) -> None:
    cluster.begin_at_newest_level()
    with Client("127.0.0.1:1", state_dir=tmp_path / "writer") as offline:
        offline.enqueue("t", [Publication("a", "k", HEADERS), "b"])
    with Client([*cluster.endpoints().values()], state_dir=tmp_path / "writer") as client:
        client.open()
    assert list(map(said, reader.messages("t", idle=0))) == [
        (b"a", "k", HEADERS),
        (b"b", None, {}),
    ]


def test_who_asks_by_hand_gets_the_text_alone(
    cluster: LocalCluster, reader: Client, tmp_path: Path
) -> None:
    cluster.begin_at_newest_level()
    endpoint = next(iter(cluster.endpoints().values()))
    with ByHand(endpoint) as hand, Client(endpoint) as client:
        me = hand.ack("REQUEST_ID")["client_id"]
        hand.ack("SUB", "t", me)
        client.publish("t", "text", key="k")
        got = hand.ack("GET", "t", me, text=True)
        assert got == {"topic": "t", "id": 1, "count": 1, "publication": "text"}
        told = hand.ack("GET", "t", me, text=True, properties=True)
        assert told["publication"] == "text"
        [[count, timestamp_ms]] = told["timestamps"]
        assert (count, type(timestamp_ms)) == (1, int)
