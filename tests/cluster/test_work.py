"""Work shared by several clients of a real cluster: who gets what, once, whoever is killed."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import orjson
import pytest

from cluster.local.local import LocalCluster
from flotilla_client import (
    Admin,
    AlreadyReading,
    AnotherChoice,
    AsyncClient,
    Client,
    GroupInfo,
    LeaseLost,
    NotSubscribed,
    Publication,
    Unavailable,
    UnknownTopic,
    WorkItem,
    cli,
)
from flotilla_client.operations import GET_SLICES_MIN
from tests.conftest import PATIENT, running

PATIENCE_S = 15.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Run three nodes at the level of groups."""
    with running(tmp_path_factory.mktemp("cluster") / "work", settings=PATIENT) as made:
        made.begin_at_newest_level()
        yield made


@pytest.fixture
def clients(cluster: LocalCluster) -> Iterator[Any]:
    """Return what makes clients; they are closed behind the test."""
    made: list[Client] = []

    def make() -> Client:
        made.append(Client([*cluster.endpoints().values()], timeout=PATIENCE_S))
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
    client.publish_many(name, ["1", "2", "3"])
    return name


def texts(items: Any) -> list[bytes]:
    return [item.publication for item in items]


def row_of(cluster: LocalCluster, topic: str) -> GroupInfo:
    with Admin([*cluster.endpoints().values()]) as admin:
        [row] = [row for row in admin.groups() if row.topic == topic]
    return row


def test_a_body_that_ends_acknowledges_and_the_loop_ends_when_nothing_comes(
    cluster: LocalCluster, clients: Any, topic: str
) -> None:
    assert texts(clients().work(topic, "g", idle=0)) == [b"1", b"2", b"3"]
    row = row_of(cluster, topic)
    assert (row.cursor, row.backlog, row.leased) == (3, 0, 0)
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
        waiting.join(PATIENCE_S)
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
        [letter] = reader.messages(f"{topic}.dead", idle=1)
    assert letter.publication == b"2"
    assert letter.headers["dead-letter-topic"] == topic
    assert letter.headers["dead-letter-id"] == "2"
    assert row_of(cluster, topic).cursor == 3


def test_a_limit_of_attempts_is_taken_back(
    clients: Any, topic: str, cluster: LocalCluster, tmp_path: Path
) -> None:
    with Client([*cluster.endpoints().values()], state_dir=tmp_path / "reader") as reader:
        reader.subscribe(f"{topic}.dead")
        client = clients()
        client.make_group(topic, "g", max_attempts=1, dead_letter=f"{topic}.dead")
        client.make_group(topic, "g", max_attempts=0)
        assert row_of(cluster, topic).max_attempts == 0
        for item in client.work(topic, "g", idle=1.0):
            if item.attempt < 3:
                item.nak()
        assert row_of(cluster, topic).cursor == 3
        assert list(reader.messages(f"{topic}.dead", idle=0)) == []


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


def test_a_task_that_is_cancelled_as_it_waits_leaves_at_once_and_takes_nothing_more(
    cluster: LocalCluster, clients: Any, topic: str
) -> None:
    assert texts(clients().work(topic, "g", idle=0)) == [b"1", b"2", b"3"]

    async def work() -> None:
        async with AsyncClient([*cluster.endpoints().values()], timeout=PATIENCE_S) as client:

            async def wait() -> None:
                async with client.work(topic, "g") as items:
                    async for _ in items:
                        raise AssertionError("there is nothing")

            waiting = asyncio.create_task(wait())
            while not client._session.books or not client._session.books[topic, "g"]._asked:
                await asyncio.sleep(0)
            await client.status()  # what was asked before has come to the node
            waiting.cancel()
            began_s = time.monotonic()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            assert time.monotonic() - began_s < PATIENCE_S / GET_SLICES_MIN / 2
            assert (await client.publish(topic, "4")).stored
            given = [(item.id, item.attempt) async for item in client.work(topic, "g", idle=0)]
            assert given == [(4, 1)]

    asyncio.run(work())


def test_what_comes_when_the_connection_of_who_waited_has_gone_is_another_s(
    clients: Any, topic: str
) -> None:
    assert texts(clients().work(topic, "g", idle=0)) == [b"1", b"2", b"3"]
    gone = clients()

    def wait() -> None:
        with pytest.raises(Unavailable):
            next(gone.work(topic, "g"))

    waiting = threading.Thread(target=wait)
    waiting.start()
    while not gone._session.books or not gone._session.books[topic, "g"]._asked:
        waiting.join(0.01)
    gone.close()
    waiting.join(PATIENCE_S)
    other = clients()
    other.publish(topic, "4")
    given = [(item.id, item.attempt) for item in other.work(topic, "g", idle=0)]
    assert given == [(4, 1)]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"lease": 0.01}, "lease"),
        ({"idle": -1}, "idle"),
        ({"ack": "never"}, "ack"),
        ({"prefetch": 0}, "prefetch"),
        ({"dead_letter": "d"}, "goes with max_attempts"),
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
    assert row_of(cluster, topic).backlog == 0
    assert cli.main(["-e", endpoints, "admin", "subscriptions"]) == cli.OK
    assert topic.encode() in capfdbinary.readouterr().out
    dropped = ["admin", "drop-group", topic, "g", "--yes"]
    assert cli.main(["-e", endpoints, *dropped]) == cli.OK


# --- ordered by key, and moved --------------------------------------------------------------------


def test_workers_are_given_the_publications_of_a_key_one_after_the_other(
    tmp_path: Path, clients: Any
) -> None:
    topic, keys = tmp_path.name, ["a", "b", "c"]
    clients().make_group(topic, "g", ordered_by_key=True)
    published = [Publication(str(n), key=keys[n % 3]) for n in range(30)]
    clients().publish_many(topic, [*published, "free"])
    done: dict[object, list[int]] = {key: [] for key in (*keys, None)}
    at_work: dict[object, str] = {}
    lock = threading.Lock()

    def work(name: str) -> None:
        with clients().work(topic, "g", prefetch=4, idle=2, ordered_by_key=True) as items:
            for item in items:
                with lock:
                    if item.key is not None:
                        assert at_work.setdefault(item.key, name) == name, item.key
                    done[item.key].append(item.id)
                    at_work.pop(item.key, None)
                item.ack()

    with ThreadPoolExecutor(4) as pool:
        for future in [pool.submit(work, name) for name in "1234"]:
            future.result()
    assert done == {key: [*range(at, 31, 3)] for at, key in enumerate(keys, 1)} | {None: [31]}


def test_a_group_is_joined_as_it_was_made_by_either_client(
    cluster: LocalCluster, topic: str, clients: Any
) -> None:
    with pytest.raises(AnotherChoice) as refused:
        clients().make_group(topic, "g", ordered_by_key=True)
    assert refused.value.details["ordered_by_key"] is False
    assert not row_of(cluster, topic).ordered_by_key

    async def begin() -> int:
        async with AsyncClient([*cluster.endpoints().values()]) as client:
            return await client.make_group(topic, "h", ordered_by_key=True, start="earliest")

    assert asyncio.run(begin()) == 0
    assert clients().make_group(topic, "i", start=3) == 2


def test_the_command_line_makes_a_group_by_key_shows_it_and_moves_it(
    cluster: LocalCluster, topic: str, capfdbinary: pytest.CaptureFixture[bytes], clients: Any
) -> None:
    command = ["-e", ",".join(cluster.endpoints().values())]
    clients().make_group(topic, "keeps all", start="earliest")
    how = ["--group", "k", "--ordered-by-key", "--start", "earliest", "--all"]
    assert cli.main([*command, "work", topic, *how]) == cli.OK
    assert capfdbinary.readouterr().out == b"1\n2\n3\n"
    assert cli.main([*command, "admin", "subscriptions", "--json"]) == cli.OK
    rows = [orjson.loads(line) for line in capfdbinary.readouterr().out.splitlines()]
    [row] = [row for row in rows if row["topic"] == topic and row.get("group") == "k"]
    assert (row["ordered_by_key"], row["behind"], row["cursor"]) == (True, 0, 3)
    moved = ["admin", "seek-group", topic, "k", "2", "--yes"]
    assert cli.main([*command, *moved]) == cli.OK
    assert cli.main([*command, "work", topic, "--group", "k", "--all"]) == cli.OK
    assert capfdbinary.readouterr().out.endswith(b"2\n3\n")
    assert cli.main([*command, "admin", "seek-group", topic, "k", "soon", "--yes"]) == 2
    assert b"'soon' is none of new, earliest" in capfdbinary.readouterr().err
