"""Subscriptions to patterns in a real cluster: topics that come later, and how they are judged."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from analytics.twins.judging import judge
from cluster.local.local import LocalCluster
from flotilla_client import (
    Admin,
    AlreadyAcknowledged,
    AsyncClient,
    BadRequest,
    Client,
    Message,
    UnknownTopic,
    Unsupported,
    cli,
)
from tests.conftest import running

PATIENCE_S = 15.0
pytestmark = pytest.mark.filterwarnings("ignore::flotilla_client.UnheardWarning")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Run three nodes; the first test raises their level."""
    with running(
        tmp_path_factory.mktemp("cluster") / "patterns",
        settings={"raft.election_min_ms": 600, "raft.election_max_ms": 1200},
    ) as made:
        yield made


def options_of(cluster: LocalCluster) -> dict[str, Any]:
    return {"endpoints": [*cluster.endpoints().values()], "timeout": PATIENCE_S}


@pytest.fixture
def shop(cluster: LocalCluster, tmp_path: Path) -> Iterator[Client]:
    with Client(**options_of(cluster), state_dir=tmp_path / "shop") as client:
        yield client


@pytest.fixture
def till(cluster: LocalCluster, tmp_path: Path) -> Iterator[Client]:
    with Client(**options_of(cluster), state_dir=tmp_path / "till") as client:
        yield client


def read_all(client: Client) -> list[Message]:
    """Read all that is there of any topic, one by one."""
    messages = []
    while (delivery := client.get(None, idle=0.2)) is not None:
        messages += delivery
    return messages


def flotilla(cluster: LocalCluster, state: Path, *words: str) -> int:
    endpoints = ",".join(options_of(cluster)["endpoints"])
    return cli.main(["-e", endpoints, "--state", str(state), "--deadline", "15", *words])


def test_a_pattern_needs_the_level_and_says_so(cluster: LocalCluster, shop: Client) -> None:
    with pytest.raises(Unsupported, match="subscriptions to patterns take feature level 4"):
        shop.subscribe("orders.*")
    assert cluster.begin_at_newest_level()["level"] >= 4
    assert not shop.subscribe("level.*").resumed
    assert shop.unsubscribe("level.*")


def test_topics_that_come_later_are_read_from_their_first_publication(
    shop: Client, till: Client
) -> None:
    assert not till.publish("orders.eu", b"nobody hears it", allow_unheard=True).stored
    assert not shop.subscribe("orders.*").resumed
    for number, name in enumerate(("orders.eu", "orders.us", "orders.eu", "orders.eu.de"), 1):
        stored = till.publish(name, b"%d" % number, allow_unheard=True).stored
        assert stored == (name != "orders.eu.de")
    assert [(each.topic, each.id, each.publication) for each in read_all(shop)] == [
        ("orders.eu", 1, b"1"),
        ("orders.us", 1, b"2"),
        ("orders.eu", 2, b"3"),
    ]
    assert shop.patterns() == ["orders.*"]
    with pytest.raises(BadRequest, match=r"comes by the client's pattern 'orders\.\*'"):
        shop.unsubscribe("orders.eu")
    assert shop.subscribe("orders.us").resumed  # by its name as well, from here on
    assert shop.unsubscribe("orders.*")
    assert [row["topic"] for row in shop.topics()] == ["orders.us"]
    with pytest.raises(UnknownTopic):
        shop.get("orders.eu")
    assert shop.unsubscribe("orders.us")
    assert not till.publish("orders.eu", b"nobody hears it", allow_unheard=True).stored


def test_a_process_that_comes_back_reads_on_what_its_patterns_brought_meanwhile(
    cluster: LocalCluster, tmp_path: Path, till: Client
) -> None:
    options = {**options_of(cluster), "state_dir": tmp_path / "reader"}
    with Client(**options) as reader:
        assert not reader.subscribe("jobs.>").resumed
    till.publish("jobs.mail.new", b"1")
    till.publish("jobs.print", b"2")
    with Client(**options) as reader:
        assert [message.publication for message in read_all(reader)] == [b"1", b"2"]
        assert reader.unsubscribe("jobs.>")
        assert not reader.topics()


def test_a_pattern_starts_at_what_its_topics_keep(shop: Client, till: Client) -> None:
    till.subscribe("logs.web")
    till.publish("logs.web", b"before")
    assert dict(shop.subscribe("logs.>", start="earliest").topics) == {"logs.web": 0}
    till.publish("logs.db", b"after")
    assert [each.publication for each in read_all(shop)] == [b"before", b"after"]
    with pytest.raises(BadRequest, match="a pattern starts at"):
        till.subscribe("logs.*", start=1)
    assert shop.unsubscribe("logs.>")
    assert till.unsubscribe("logs.web")


def test_an_asyncio_client_reads_topics_that_come_later(
    cluster: LocalCluster, tmp_path: Path, till: Client
) -> None:
    async def read() -> list[tuple[str, bytes]]:
        options = {**options_of(cluster), "state_dir": tmp_path / "aio"}
        async with AsyncClient(**options) as client:
            await client.subscribe("news.*")
            till.publish("news.eu", b"first")
            found = []
            async for message in client.messages():
                found.append((message.topic, message.publication))
                if len(found) == 1:
                    till.publish("news.us", b"second")
                if len(found) == 2:
                    break
            assert await client.patterns() == ["news.*"]
            await client.unsubscribe("news.*")
            return found

    assert asyncio.run(read()) == [("news.eu", b"first"), ("news.us", b"second")]


def test_the_command_line_takes_patterns(
    cluster: LocalCluster, tmp_path: Path, till: Client, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    state = tmp_path / "cli"
    assert flotilla(cluster, state, "sub", "cli.*") == 0
    assert capfdbinary.readouterr().out == b"subscribed: 0 topics now, and each that comes later\n"
    till.publish("cli.a", b"hello")
    assert flotilla(cluster, state, "get", "--all") == 0
    assert b"hello" in capfdbinary.readouterr().out
    assert flotilla(cluster, state, "topics") == 0
    lines = capfdbinary.readouterr().out.decode().splitlines()
    assert [line.split()[0] for line in lines] == ["topic", "cli.a", "cli.*"]
    with Admin(**options_of(cluster)) as admin:
        [row] = [row for row in admin.patterns() if row.pattern == "cli.*"]
        assert row.missed == ""
    assert flotilla(cluster, state, "admin", "subscriptions") == 0
    assert b"cli.*" in capfdbinary.readouterr().out
    assert flotilla(cluster, state, "unsub", "cli.*") == 0
    assert flotilla(cluster, state, "sub", "cli/#") != 0
    assert b"is no pattern of topics" in capfdbinary.readouterr().err


def test_what_a_pattern_brings_is_judged_as_subscribed(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    record = tmp_path / "record"
    options = {**options_of(cluster), "record": record}
    with Client(**options, state_dir=tmp_path / "a") as reader:
        reader.subscribe("judged.*")
        with Client(**options, state_dir=tmp_path / "b") as writer:
            for number in range(6):
                writer.publish(f"judged.{number % 3}", b"%d" % number)
        assert len(read_all(reader)) == 6
        reader.unsubscribe("judged.*")
    found = {name: rows for name, rows in judge(record).evidence.items() if rows}
    assert not found, found


def test_what_a_pattern_brings_again_from_the_earliest_on_is_judged_as_another_reading(
    cluster: LocalCluster, tmp_path: Path, till: Client
) -> None:
    record = tmp_path / "record"
    till.subscribe("again.a")  # keeps the topic meanwhile
    with Client(**options_of(cluster), state_dir=tmp_path / "a", record=record) as reader:
        for number in range(3):
            till.publish("again.a", b"%d" % number)
        for topic in ("again.a", "again.>"):
            reader.subscribe(topic, start="earliest")
            assert len(read_all(reader)) == 3
            reader.unsubscribe(topic)
    with Client(**options_of(cluster), state_dir=tmp_path / "a", record=record) as reader:
        reader.publish("again.a", b"4")
        reader.subscribe("again.*", start="earliest")
        assert len(read_all(reader)) == 4
    found = {name: rows for name, rows in judge(record).evidence.items() if rows}
    assert not found, found


def test_who_reads_a_topic_that_was_deleted_and_brought_again_is_told_once_and_goes_on(
    cluster: LocalCluster, shop: Client, till: Client
) -> None:
    shop.subscribe("remade.*")
    till.publish_many("remade.a", [b"1", b"2", b"3"])
    assert [message.id for message in shop.get(None, max_count=1) or ()] == [1]
    till.publish("remade.b", b"5")
    assert [message.topic for message in shop.get(None, max_count=1) or ()] == ["remade.b"]
    with Admin(**options_of(cluster)) as boss:
        assert boss.delete_topic("remade.a", ends_subscriptions=True).deleted == 2
        assert boss.delete_topic("remade.b", ends_subscriptions=True).deleted == 1
    till.publish("remade.a", b"4")
    with pytest.raises(UnknownTopic) as missing:
        shop.get(None)
    assert not shop.unsubscribe(missing.value.details["topic"]), "it was ended already"
    with pytest.raises(AlreadyAcknowledged, match=r"after 1 of 'remade\.a' are gone") as caught:
        shop.get(None)
    assert (caught.value.details["topic"], caught.value.details["cursor"]) == ("remade.a", 3)
    assert [message.id for message in shop.get(None) or ()] == [4]
    assert shop.unsubscribe("remade.*")
