"""Work shared by several clients of a real cluster: who gets what, once, whoever is killed."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import orjson
import pytest

from cluster.local.local import LocalCluster
from flotilla_client import (
    Admin,
    AlreadyReading,
    AsyncClient,
    Client,
    LeaseLost,
    NotSubscribed,
    UnknownTopic,
    WorkItem,
    cli,
)

PATIENCE_MS = 15_000


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Run three nodes at the level of groups."""
    made = LocalCluster(tmp_path_factory.mktemp("cluster") / "work")
    made.create(3, settings={"raft.election_min_ms": 1500, "raft.election_max_ms": 3000})
    made.start_all()
    made.wait_for_leader()
    made.upgrade()
    yield made
    made.down(patience_s=0.0)
    print(made.tails())


@pytest.fixture
def clients(cluster: LocalCluster) -> Iterator[Any]:
    """Return what makes clients; they are closed behind the test."""
    made: list[Client] = []

    def make() -> Client:
        made.append(Client([*cluster.endpoints().values()], deadline_ms=PATIENCE_MS))
        return made[-1]

    yield make
    for client in made:
        client.close()


@pytest.fixture
def topic(tmp_path: Path, clients: Any) -> str:
    """Return a topic of the test's own, whose group g has three publications to do."""
    name = tmp_path.name
    client = clients()
    client.make_group(name, "g", lease=60)
    client.put_many(name, ["1", "2", "3"])
    return name


def texts(items: Any) -> list[bytes]:
    return [item.publication for item in items]


def row_of(cluster: LocalCluster, topic: str) -> dict[str, Any]:
    with Admin([*cluster.endpoints().values()]) as admin:
        [row] = [row for row in admin.groups() if row["topic"] == topic]
    return row


def test_a_body_that_ends_acknowledges_and_the_loop_ends_when_nothing_comes(
    cluster: LocalCluster, clients: Any, topic: str
) -> None:
    assert texts(clients().work(topic, "g", idle=0)) == [b"1", b"2", b"3"]
    row = row_of(cluster, topic)
    assert (row["cursor"], row["backlog"], row["leased"]) == (3, 0, 0)
    assert texts(clients().work(topic, "g", idle=0)) == []


def test_a_body_that_raises_gives_back_what_it_has_and_what_waits_behind_it(
    clients: Any, topic: str
) -> None:
    seen: list[WorkItem] = []

    def work() -> None:
        with clients().work(topic, "g") as items:
            for item in items:
                seen.append(item)
                if item.id == 2:
                    raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        work()
    assert [item.settled for item in seen] == ["ack", "nak"]
    found = [
        (item.id, item.attempt, item.redelivered) for item in clients().work(topic, "g", idle=0)
    ]
    assert found == [(2, 2, True), (3, 2, True)]


def test_two_clients_share_what_there_is(clients: Any, topic: str) -> None:
    first, second = clients().work(topic, "g", prefetch=1), clients().work(topic, "g", prefetch=2)
    one = next(first)
    assert texts([next(second), next(second)]) == [b"2", b"3"]
    assert one.publication == b"1"
    first.close()
    second.close()


def test_who_waits_is_woken_by_a_publication_and_by_what_is_given_back(
    clients: Any, topic: str
) -> None:
    with clients().work(topic, "g") as items, clients().work(topic, "g") as others:
        held = [next(items) for _ in range(3)]
        got: list[WorkItem] = []
        waiting = threading.Thread(target=lambda: got.append(next(others)))
        waiting.start()
        held[2].nak()
        items.close()
        waiting.join(PATIENCE_MS / 1000)
        assert [item.id for item in got] == [3]


def test_a_lease_that_runs_out_is_another_s_and_its_late_extension_is_refused(
    clients: Any, topic: str
) -> None:
    slow = clients().work(topic, "g", lease=0.2, ack="manual")
    late = next(slow)
    [taken, *_] = clients().work(topic, "g", idle=timedelta(seconds=2), prefetch=10)
    assert (taken.id, taken.attempt) == (1, 2)
    with pytest.raises(LeaseLost, match="given it to somebody else"):
        late.extend()
    assert late.settled == "lost"


def test_an_item_that_is_extended_stays(clients: Any, topic: str) -> None:
    slow = clients().work(topic, "g", lease=0.5, prefetch=1)
    item = next(slow)
    item.extend(60)
    assert item.left_s > 50
    assert texts(clients().work(topic, "g", idle=1.0)) == [b"2", b"3"]
    slow.close()


def test_what_is_given_back_with_a_delay_comes_when_it_is_over(clients: Any, topic: str) -> None:
    client = clients()
    seen = []
    for item in client.work(topic, "g", idle=1.0):
        seen.append((item.id, item.attempt))
        if item.attempt == 1 and item.id == 1:
            item.nak(delay=0.3)
    assert seen == [(1, 1), (2, 1), (3, 1), (1, 2)]


def test_dead_letters_say_why_and_from_where(
    clients: Any, topic: str, tmp_path: Path, cluster: LocalCluster
) -> None:
    endpoints = [*cluster.endpoints().values()]
    with Client(endpoints, state_dir=tmp_path / "reader") as reader:
        reader.subscribe(f"{topic}.dead")
        settings = {"max_attempts": 2, "dead_letter": f"{topic}.dead"}
        for item in clients().work(topic, "g", idle=1.0, **settings):
            if item.id == 2:
                item.nak()
        [letter] = reader.messages(f"{topic}.dead", idle_ms=1_000)
    assert letter.publication == b"2"
    assert letter.headers["dead-letter-topic"] == topic
    assert letter.headers["dead-letter-id"] == "2"
    assert row_of(cluster, topic)["cursor"] == 3


def test_a_client_has_one_loop_a_group_and_the_next_begins_where_it_was_left(
    clients: Any, topic: str
) -> None:
    client = clients()
    first = client.work(topic, "g")
    assert next(first).id == 1
    with pytest.raises(AlreadyReading):
        next(client.work(topic, "g"))
    del first
    assert texts(client.work(topic, "g", idle=0)) == [b"1", b"2", b"3"]


def test_a_group_that_is_ended_ends_its_workers(clients: Any, topic: str) -> None:
    items = clients().work(topic, "g", prefetch=1)
    next(items)
    other = clients()
    assert other.end_group(topic, "g")
    assert not other.end_group(topic, "g")
    with pytest.raises((NotSubscribed, UnknownTopic)):
        next(items)


def test_a_client_that_is_closed_gives_back_what_it_has(clients: Any, topic: str) -> None:
    client = clients()
    items = client.work(topic, "g")
    next(items)
    next(items)
    client.close()
    assert texts(clients().work(topic, "g", idle=1.0)) == [b"2", b"3"]


def test_the_same_with_asyncio(cluster: LocalCluster, clients: Any, topic: str) -> None:
    async def fail(client: AsyncClient) -> None:
        async with client.work(topic, "g") as items:
            await anext(items)
            raise ZeroDivisionError

    async def work() -> list[tuple[int, int]]:
        seen = []
        async with AsyncClient([*cluster.endpoints().values()]) as client:
            with pytest.raises(ZeroDivisionError):
                await fail(client)
            items = client.work(topic, "g", idle=0.5, lease=1)
            async for item in items:
                seen.append((item.id, item.attempt))
                if item.id == 2:
                    await item.extend(60)
                    await asyncio.sleep(0.7)  # 3 is extended before it is handed over
            assert await client.end_group(topic, "g")
        return seen

    assert asyncio.run(work()) == [(1, 2), (2, 2), (3, 2)]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"lease": 0.01}, "lease"),
        ({"idle": -1}, "idle"),
        ({"ack": "never"}, "ack"),
        ({"prefetch": 0}, "prefetch"),
        ({"max_attempts": 2}, "go together"),
    ],
)
def test_wrong_arguments_are_refused_at_once(
    clients: Any, arguments: dict[str, Any], said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        clients().work("t", "g", **arguments)


def test_the_command_line_works_and_acknowledges_what_it_has_written(
    cluster: LocalCluster, topic: str, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    endpoints = ",".join(cluster.endpoints().values())
    assert cli.main(["-e", endpoints, "work", topic, "--group", "g", "--count", "1"]) == cli.OK
    assert capfdbinary.readouterr().out == b"1\n"
    assert cli.main(["-e", endpoints, "work", topic, "--group", "g", "--all", "--json"]) == cli.OK
    rows = [orjson.loads(line) for line in capfdbinary.readouterr().out.splitlines()]
    assert [(row["id"], row["attempt"]) for row in rows] == [(2, 1), (3, 1)]
    code = cli.main(["-e", endpoints, "work", topic, "--group", "g"])
    assert code == cli.NOTHING_NEW
    assert row_of(cluster, topic)["backlog"] == 0
    assert cli.main(["-e", endpoints, "admin", "subscriptions"]) == cli.OK
    assert topic.encode() in capfdbinary.readouterr().out
    dropped = ["admin", "drop-group", topic, "g", "--yes"]
    assert cli.main(["-e", endpoints, *dropped]) == cli.OK
