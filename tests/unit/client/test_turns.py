"""A deadline is of the call, its turn awaited included; Ctrl-C leaves no turn taken."""

from __future__ import annotations

import asyncio
import itertools
import socket
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any

import pytest

import flotilla_client
from flotilla_client import (
    Admin,
    AlreadyReading,
    AsyncClient,
    Busy,
    Client,
    Closed,
    Delivery,
    FlotillaError,
    LeaseLost,
    Overloaded,
    Unavailable,
)
from flotilla_client import client as client_module
from flotilla_client import producer as producer_module
from flotilla_client.client import CLOSE_MS, WORDS_MS_MAX, now_ms
from flotilla_client.observer import Operation, Outcome, Silent
from flotilla_client.operations import Ask, Operations, Steps
from flotilla_client.protocol import ACK, GET, PUT, TAKE, Reply, Request
from flotilla_client.retry import Listen
from flotilla_client.turns import LOOK_MS
from tests.unit.fake_node import FakeNode, client_of, impatient, nak
from tests.unit.interrupting import breaks_off, interrupted, is_collected

TIMEOUT_S = 0.8
DEADLINE_MS = 1000 * TIMEOUT_S
SLACK_MS = (
    600  # for a loaded machine; the second of those that wait in turn would need another 1,000
)
DEAD = "127.0.0.1:1"
LONG_S = 2.4  # a timeout two thirds of which are more than SLACK_MS
CALLERS = 6
GROUPS = 6
INTERRUPTIONS_MIN = 100

Call = Callable[[Client], Any]
CALLS: dict[str, Call] = {
    "open": lambda c: c.open(),
    "publish": lambda c: c.publish("t", "a"),
    "publish_many": lambda c: c.publish_many("t", ["a"] * 3),
    "subscribe": lambda c: c.subscribe("t"),
    "unsubscribe": lambda c: c.unsubscribe("t"),
    "flush": lambda c: c.flush(),
    "next_counter": lambda c: c.next_counter("t"),
    "get": lambda c: c.get("t"),
    "topics": lambda c: c.topics(),
    "all topics": lambda c: c.topics(everything=True),
    "status": lambda c: c.status(),
    "producer": lambda c: c.producer("t"),
    "seek": lambda c: c.seek("t", "earliest"),
    "read": lambda c: c.read("t", 1),
    "read_runs": lambda c: c.read_runs("t", 1),
    "make_group": lambda c: c.make_group("t", "g"),
    "end_group": lambda c: c.end_group("t", "g"),
    "patterns": lambda c: c.patterns(),
    "subscribers": lambda c: c.subscribers("t"),
    "upgrade": lambda c: c.upgrade(),
    "adopt": lambda c: c.adopt(),
}


def _timed(call: Callable[[], object]) -> tuple[float, FlotillaError | None]:
    begun_s, error = time.monotonic(), None
    try:
        call()
    except FlotillaError as raised:
        error = raised
    return (time.monotonic() - begun_s) * 1000, error


def _at_once(calls: list[Callable[[], object]]) -> list[tuple[float, FlotillaError | None]]:
    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(_timed, calls))


@pytest.mark.parametrize("kind", ["refused", "silent"])
def test_six_puts_at_once_all_end_at_the_deadline(
    kind: str, node: FakeNode, tmp_path: Path
) -> None:
    node.always("REQUEST_ID", "deaf")
    endpoint = DEAD if kind == "refused" else node.endpoint
    with Client(endpoint, state_dir=tmp_path, timeout=TIMEOUT_S) as client:
        ended = _at_once([lambda: client.publish("t", "a")] * CALLERS)
        kept = [error for _, error in ended if error is not None and not error.definite]
        busy = [error for _, error in ended if isinstance(error, Busy)]
        assert max(took_ms for took_ms, _ in ended) < DEADLINE_MS + SLACK_MS
        assert len(kept) + len(busy) == CALLERS
        assert all(error.definite and error.details["kept"] == 0 for error in busy)
        assert len(client._session.state.outbox()) == len(kept) >= 1


@pytest.mark.parametrize("name", CALLS)
def test_no_call_waits_for_its_turn_longer_than_its_deadline(
    name: str, node: FakeNode, tmp_path: Path
) -> None:
    with Client(DEAD, state_dir=tmp_path, timeout=TIMEOUT_S) as client:
        calls: list[Callable[[], object]] = [lambda: CALLS[name](client)] * CALLERS
        for took_ms, error in _at_once(calls):
            assert took_ms < DEADLINE_MS + SLACK_MS
            assert isinstance(error, Unavailable | AlreadyReading)  # one `get` at a time reads


@pytest.mark.parametrize("name", CALLS)
def test_no_awaited_call_waits_longer_either(name: str, tmp_path: Path) -> None:
    async def timed(client: AsyncClient) -> None:
        begun_s = time.monotonic()
        with pytest.raises((Unavailable, AlreadyReading)):
            await CALLS[name](client)  # type: ignore[arg-type]
        assert time.monotonic() - begun_s < (DEADLINE_MS + SLACK_MS) / 1000

    async def scenario() -> None:
        async with AsyncClient(DEAD, state_dir=tmp_path, timeout=TIMEOUT_S) as client:
            await asyncio.gather(*[timed(client) for _ in range(CALLERS)])

    asyncio.run(scenario())


ACTS: dict[str, Callable[[Admin], object]] = {
    "topics": lambda a: a.topics(),
    "topic": lambda a: a.topic("t"),
    "clients": lambda a: a.clients(),
    "client": lambda a: a.client("c"),
    "subscriptions": lambda a: a.subscriptions(),
    "groups": lambda a: a.groups(),
    "users": lambda a: a.users(),
    "remove_user": lambda a: a.remove_user("u"),
    "drop_client": lambda a: a.drop_client("c"),
    "purge": lambda a: a.purge("t"),
    "delete_topic": lambda a: a.delete_topic("t"),
    "audit": lambda a: a.audit(),
    "transfer_leader": lambda a: a.transfer_leader(),
    "checkpoint": lambda a: a.checkpoint(),
    "settings": lambda a: a.settings(0),
}


@pytest.mark.parametrize("name", ACTS)
def test_what_an_administrator_asks_ends_at_the_deadline_too(name: str) -> None:
    with Admin(DEAD, timeout=TIMEOUT_S) as admin:
        took_ms, error = _timed(lambda: ACTS[name](admin))
    assert took_ms < DEADLINE_MS + SLACK_MS
    assert isinstance(error, Unavailable)


@pytest.mark.parametrize("wait_ms", [400, 1_500])
def test_a_get_ends_within_its_wait_and_its_deadline(wait_ms: int, node: FakeNode) -> None:
    with client_of(node, timeout=TIMEOUT_S) as client:
        client.subscribe("t")
        node.always(GET, "deaf")
        took_ms, error = _timed(lambda: client.get("t", idle=wait_ms / 1000))
        assert isinstance(error, Unavailable)
        assert len(node.of_type(GET)) >= 3
        assert took_ms < DEADLINE_MS + wait_ms + SLACK_MS


def test_a_get_waits_no_longer_in_all_though_one_of_its_slices_took_longer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_ms, waits = 0.0, []
    monkeypatch.setattr(client_module, "now_ms", lambda: now_ms)
    operations = SimpleNamespace(get=lambda topic, wait_ms, count, in_loop: waits.append(wait_ms))
    session: Any = SimpleNamespace(deadline_ms=4_000, operations=operations)
    for _ in client_module.Session._gets(session, "t", 3_000.0, 1):
        now_ms += 1_250.0
    assert waits == [1_000, 1_000, 500]


def test_a_waiting_get_gives_way_within_a_quarter_of_the_deadline(node: FakeNode) -> None:
    with client_of(node, timeout=TIMEOUT_S) as client:
        client.subscribe("t")
        found: list[Any] = []
        thread = threading.Thread(target=lambda: found.append(client.get("t", idle=20)))
        thread.start()
        node.await_requests(GET, 1)
        took_ms, error = _timed(lambda: client.publish("t", "a"))
        assert error is None
        assert took_ms < DEADLINE_MS / 4 + SLACK_MS
        thread.join(10)
        assert found[0].publications == (b"a",)


def test_turns_are_had_in_the_order_of_the_calls(node: FakeNode) -> None:
    with client_of(node) as client:
        client.subscribe("t")
        reading = threading.Thread(target=lambda: client.get("t", idle=0.5))
        reading.start()
        node.await_requests(GET, 1)
        threads = []
        for number in range(CALLERS):
            threads.append(threading.Thread(target=client.publish, args=("t", str(number))))
            threads[-1].start()
            while len(client._parts.here().turns) < number + 2:
                time.sleep(0.001)
        for thread in [*threads, reading]:
            thread.join(10)
    assert node.cluster.topics["t"] == [b"%d" % number for number in range(CALLERS)]


def test_a_call_from_inside_another_is_told_so_at_once(node: FakeNode) -> None:
    errors: list[FlotillaError | None] = []

    class Meddling(Silent):
        def on_invoke(self, operation: Operation) -> None:
            errors.append(_timed(lambda: client.publish("u", "b"))[1])

    with client_of(node, observer=Meddling()) as client:
        took_ms, _ = _timed(lambda: client.unsubscribe("t"))
    assert took_ms < DEADLINE_MS
    assert isinstance(errors[0], Busy)
    assert "inside" in errors[0].message


# --- producers ----------------------------------------------------------------------------------


def _stuck(node: FakeNode, count: int, **options: Any) -> tuple[Client, list[Any]]:
    """Return a client with producers of which no publication is answered."""
    client = client_of(node, timeout=TIMEOUT_S)
    outs = [client.producer(f"t{number}", **options) for number in range(count)]
    node.always(PUT, "deaf")
    for out in outs:
        out.send("a")
    return client, outs


def test_a_flush_ends_at_the_deadline_and_says_how_many_are_due(node: FakeNode) -> None:
    node.always(PUT, "deaf")
    with client_of(node, timeout=TIMEOUT_S) as client:
        out = client.producer("t", linger_ms=0)
        out.send("a")
        node.await_requests(PUT, 1)
        out.deadline_ms = DEADLINE_MS / 4
        took_ms, error = _timed(out.flush)
        assert took_ms < DEADLINE_MS / 4 + SLACK_MS
        assert isinstance(error, Unavailable)
        assert (error.definite, error.details["pending"]) == (False, 1)


def _opened_late(node: FakeNode) -> None:
    """Have a client's opening take two thirds of its deadline."""
    node.script("REQUEST_ID", "deaf", "deaf")


@pytest.mark.parametrize("has_tasks", [False, True])
def test_a_flush_that_opens_the_client_has_one_deadline(has_tasks: bool, node: FakeNode) -> None:
    directory = node.new_directory()
    with client_of(node, directory) as client:
        client.enqueue("t", ["a"])
    _opened_late(node)
    node.always(PUT, "deaf")

    async def flushed() -> None:
        async with AsyncClient(node.endpoint, state_dir=directory, timeout=LONG_S) as client:
            await client.flush()

    def flush() -> None:
        with client_of(node, directory, timeout=LONG_S) as client:
            client.flush()

    took_ms, error = _timed(partial(asyncio.run, flushed()) if has_tasks else flush)
    assert isinstance(error, Unavailable)
    assert len(node.of_type(PUT)) >= 1
    assert LONG_S <= took_ms / 1000 < LONG_S + SLACK_MS / 1000


@pytest.mark.parametrize("has_tasks", [False, True])
def test_a_get_with_a_timeout_has_all_of_it_to_take_up_the_id(
    has_tasks: bool, node: FakeNode
) -> None:
    """Its first attempt meets silence, and takes a second: more than is left for an answer."""
    directory = node.new_directory()
    with client_of(node, directory) as client:
        client.subscribe("t")
        client.publish("t", "a")
    node.script("REQUEST_ID", "deaf")

    async def got() -> Delivery | None:
        async with AsyncClient(node.endpoint, state_dir=directory, timeout=3) as client:
            return await client.get("t", timeout=LONG_S)

    def get() -> Delivery | None:
        with Client(node.endpoint, state_dir=directory, timeout=3) as client:
            return client.get("t", timeout=LONG_S)

    delivery = asyncio.run(got()) if has_tasks else get()
    assert delivery is not None
    assert delivery.publications == (b"a",)


@pytest.mark.parametrize("has_tasks", [False, True])
def test_a_get_whose_time_the_id_has_taken_says_not_that_there_is_nothing(
    has_tasks: bool, node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = node.new_directory()
    with client_of(node, directory) as client:
        client.subscribe("t")
    opened = Operations.opened

    def slowly(operations: Operations) -> Steps[None]:
        was_open = operations.is_open
        yield from opened(operations)
        if not was_open:
            time.sleep(1.2 * TIMEOUT_S)

    monkeypatch.setattr(Operations, "opened", slowly)

    async def got() -> None:
        async with AsyncClient(node.endpoint, state_dir=directory) as client:
            with pytest.raises(Unavailable):
                await client.get("t", timeout=TIMEOUT_S)

    def get() -> None:
        with Client(node.endpoint, state_dir=directory) as client, pytest.raises(Unavailable):
            client.get("t", timeout=TIMEOUT_S)

    asyncio.run(got()) if has_tasks else get()


@pytest.mark.parametrize("has_tasks", [False, True])
def test_the_first_item_of_work_has_one_deadline(has_tasks: bool, node: FakeNode) -> None:
    _opened_late(node)
    node.always(TAKE, "deaf")

    async def taken() -> None:
        async with AsyncClient(node.endpoint, timeout=LONG_S) as client:
            begun_s = time.monotonic()
            with pytest.raises(Unavailable):
                await anext(client.work("t", "g", idle=0))
            took.append(time.monotonic() - begun_s)

    def take() -> None:
        with Client(node.endpoint, timeout=LONG_S) as client:
            begun_s = time.monotonic()
            with pytest.raises(Unavailable):
                next(client.work("t", "g", idle=0))
            took.append(time.monotonic() - begun_s)

    took: list[float] = []
    if has_tasks:
        asyncio.run(taken())
    else:
        take()
    assert len(node.of_type(TAKE)) >= 1
    assert took[0] < LONG_S + SLACK_MS / 1000


def test_an_item_is_extended_within_one_deadline(node: FakeNode) -> None:
    with client_of(node) as reader:
        reader.subscribe("t")
        reader.publish("t", "a")
    with Client(node.endpoint, timeout=LONG_S) as client:
        items = client.work("t", "g")
        item = next(items)
        with impatient(client):
            node.always(TAKE, "deaf")
            with pytest.raises(Unavailable):
                item.extend()
        node.script(TAKE, "deaf", "deaf", None)  # the one that had no answer is asked for first
        took_ms, error = _timed(item.extend)
        assert isinstance(error, Unavailable)
        assert took_ms < 1000 * LONG_S + SLACK_MS
        node.always(TAKE, None)
        items.close()


@pytest.mark.parametrize("how", ["ack", "nak"])
def test_what_is_settled_cannot_be_extended(how: str, node: FakeNode) -> None:
    with client_of(node) as client:
        client.subscribe("t")
        client.publish("t", "a")
        item = next(client.work("t", "g", ack="manual"))
        # The loop is gone by now, and what it had with it.
        assert item.settled == "nak"
        if how == "ack":
            items = client.work("u", "g", ack="manual")
            client.subscribe("u")
            client.publish("u", "a")
            item = next(items)
            item.ack()
        before = len(node.requests)
        with pytest.raises(LeaseLost, match="acknowledged here" if how == "ack" else "given back"):
            item.extend()
        assert len(node.requests) == before


@pytest.mark.parametrize("has_tasks", [False, True])
def test_closing_gives_the_work_of_many_groups_back_in_one_time(
    has_tasks: bool, node: FakeNode
) -> None:
    with client_of(node) as publisher:
        publisher.subscribe("t")
        publisher.publish("t", "a")

    async def worked() -> float:
        client = AsyncClient(node.endpoint)
        items = [client.work("t", f"g{number}") for number in range(GROUPS)]
        for each in items:
            await anext(each)
        node.always(TAKE, "deaf")
        begun_s = time.monotonic()
        await client.close()
        return time.monotonic() - begun_s

    def work() -> float:
        client = Client(node.endpoint)
        items = [client.work("t", f"g{number}") for number in range(GROUPS)]
        for each in items:
            next(each)
        node.always(TAKE, "deaf")
        begun_s = time.monotonic()
        client.close()
        return time.monotonic() - begun_s

    took_s = asyncio.run(worked()) if has_tasks else work()
    assert took_s < (WORDS_MS_MAX + CLOSE_MS + SLACK_MS) / 1000


@pytest.mark.parametrize("has_tasks", [False, True])
def test_closing_gives_back_what_it_has_while_another_one_asks_for_work(
    has_tasks: bool, node: FakeNode
) -> None:
    with client_of(node) as publisher:
        publisher.subscribe("t")
        publisher.publish("t", "a")

    async def worked() -> None:
        client = AsyncClient(node.endpoint)
        await anext(client.work("t", "g"))
        node.script(TAKE, "deaf")
        closing = asyncio.create_task(client.close())
        await asyncio.to_thread(node.await_requests, TAKE, 2)
        client.work("t", "another group")
        await closing

    def work() -> None:
        client = Client(node.endpoint)
        next(client.work("t", "g"))
        node.script(TAKE, "deaf")
        errors: list[tuple[float, FlotillaError | None]] = []
        closing = threading.Thread(target=lambda: errors.append(_timed(client.close)))
        closing.start()
        node.await_requests(TAKE, 2)
        client.work("t", "another group")
        closing.join(10)
        assert [error for _, error in errors] == [None]

    asyncio.run(worked()) if has_tasks else work()


def test_closing_many_producers_takes_one_deadline(node: FakeNode) -> None:
    client, outs = _stuck(node, 4)
    futures = [out.send("b") for out in outs]
    took_ms, error = _timed(client.close)
    assert error is None
    assert took_ms < DEADLINE_MS + SLACK_MS
    for future in futures:
        kept = future.exception(0)
        assert isinstance(kept, Unavailable)
        assert not kept.definite


def test_what_a_producer_closed_at_the_deadline_leaves_is_sent_by_the_next(node: FakeNode) -> None:
    state = node.new_directory()
    with client_of(node, state) as client:
        client.subscribe("t")
    node.always(PUT, "deaf")
    client = client_of(node, state, timeout=0.3)
    out = client.producer("t", linger_ms=60_000, batch_bytes=2)
    futures = [out.send(text) for text in "abcdef"]
    client.close()
    assert all(future.done() for future in futures)
    node.always(PUT, None)
    with client_of(node, state) as client:
        client.flush()
    assert node.cluster.topics["t"] == [b"a", b"b", b"c", b"d", b"e", b"f"]


def test_closing_ends_what_other_threads_do(node: FakeNode) -> None:
    node.always("REQUEST_ID", "deaf")
    client = client_of(node, timeout=3 * TIMEOUT_S)
    errors: list[tuple[float, FlotillaError | None]] = []
    work = threading.Thread(target=lambda: errors.append(_timed(lambda: client.publish("t", "a"))))
    work.start()
    node.await_requests("REQUEST_ID", 1)
    took_ms, error = _timed(client.close)
    work.join(10)
    assert error is None
    assert took_ms < 2 * DEADLINE_MS
    assert isinstance(errors[0][1], Unavailable)


def test_closing_ends_where_nobody_answers_what_was_published_soon(
    node: FakeNode, tmp_path: Path
) -> None:
    """Its deadline is over by then, and whoever has the turn is asked to end it."""
    with socket.socket() as hole:
        hole.bind(("127.0.0.1", 0))
        hole.listen(0)  # a connection stands, and nothing is ever said on it
        endpoint = f"127.0.0.1:{hole.getsockname()[1]}"
        client = Client(endpoint, state_dir=tmp_path, timeout=TIMEOUT_S)
        futures = [client.publish_soon("t", "a") for _ in range(CALLERS)]
        took_ms, error = _timed(client.close)
    assert error is None
    assert took_ms < DEADLINE_MS + CLOSE_MS + SLACK_MS
    # One whose turn had not come when the client was closed is told that.
    assert all(isinstance(each.exception(TIMEOUT_S), Unavailable | Closed) for each in futures)
    client_of(node, tmp_path).close()


def test_closing_waits_for_no_attempt_of_another_thread(node: FakeNode) -> None:
    """The deadline is long: an attempt has 2.5 s of it."""
    client = client_of(node, timeout=60)
    client.subscribe("t")
    node.always("TOPICS", "deaf")
    errors: list[tuple[float, FlotillaError | None]] = []
    work = threading.Thread(target=lambda: errors.append(_timed(client.topics)))
    work.start()
    node.await_requests("TOPICS", 1)
    took_ms, error = _timed(client.close)
    work.join(10)
    assert error is None
    assert took_ms < LOOK_MS + SLACK_MS
    assert isinstance(errors[0][1], Unavailable)


def test_a_pause_that_a_node_has_asked_for_ends_with_closing(node: FakeNode) -> None:
    session = client_of(node)._session
    ended: list[tuple[float, FlotillaError | None]] = []
    until_ms = now_ms() + 10 * DEADLINE_MS
    pause = threading.Thread(
        target=lambda: ended.append(_timed(lambda: Client._pause(session, until_ms)))
    )
    pause.start()
    session.begin_closing()
    pause.join(10)
    [(took_ms, error)] = ended
    assert isinstance(error, Unavailable)
    assert took_ms < DEADLINE_MS + SLACK_MS
    session.state.close()


def test_closing_waits_for_a_task_under_way_where_its_own_deadline_is_over(
    node: FakeNode, tmp_path: Path
) -> None:
    """What was published soon has taken all of it, and another task still has the turn."""
    node.always("SUB", "deaf")
    node.always(PUT, "deaf")

    async def closed() -> float:
        client = AsyncClient(node.endpoint, state_dir=tmp_path, timeout=TIMEOUT_S)
        future = await client.publish_soon("t", "a", timeout=10 * TIMEOUT_S)
        closing = asyncio.create_task(client.close())
        await asyncio.sleep(TIMEOUT_S / 2)
        subscribing = asyncio.create_task(client.subscribe("t"))
        begun_ms = now_ms()
        await closing
        took_ms = now_ms() - begun_ms
        for ended in (subscribing, future):
            with pytest.raises(Unavailable):
                await ended
        return took_ms

    assert asyncio.run(closed()) < DEADLINE_MS / 2 + CLOSE_MS + SLACK_MS
    client_of(node, tmp_path).close()


def test_a_task_s_pause_ends_with_closing(node: FakeNode) -> None:
    node.always("SUB", nak("overloaded", retry_after_ms=5_000))

    async def closed() -> float:
        client = AsyncClient(node.endpoint, state_dir=node.new_directory(), timeout=60)
        subscribing = asyncio.create_task(client.subscribe("t"))
        await asyncio.to_thread(node.await_requests, "SUB", 1)
        await asyncio.sleep(LOOK_MS / 1000)  # it has heard that it is to wait
        begun_ms = now_ms()
        await client.close()
        took_ms = now_ms() - begun_ms
        with pytest.raises(Unavailable, match="closed"):
            await subscribing
        return took_ms

    assert asyncio.run(closed()) < LOOK_MS + SLACK_MS


def test_many_tasks_at_a_full_queue_all_end_at_the_deadline(
    node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(producer_module, "QUEUE_COUNT_MAX", 1)

    async def timed(out: Any) -> None:
        begun_s = time.monotonic()
        with pytest.raises(Overloaded):
            await out.send("x")
        assert time.monotonic() - begun_s < (DEADLINE_MS + SLACK_MS) / 1000

    async def scenario() -> None:
        async with AsyncClient(node.endpoint, timeout=10 * TIMEOUT_S) as client:
            out = await client.producer("t", linger_ms=60_000)
            await out.send("first")
            out._producer.deadline_ms = DEADLINE_MS
            await asyncio.gather(*[timed(out) for _ in range(60)])

    with pytest.warns(flotilla_client.UnheardWarning):
        asyncio.run(scenario())


def test_awaited_sends_to_a_full_queue_keep_their_order(
    node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(producer_module, "QUEUE_COUNT_MAX", 2)

    async def scenario() -> None:
        async with AsyncClient(node.endpoint, state_dir=node.new_directory()) as client:
            await client.subscribe("t")
            async with await client.producer("t", linger_ms=0) as out:
                await asyncio.gather(*[out.send(str(number)) for number in range(50)])
                await out.flush()

    asyncio.run(scenario())
    assert node.cluster.topics["t"] == [b"%d" % number for number in range(50)]


# --- Ctrl-C -------------------------------------------------------------------------------------


def _ended_at_a_line(work: Callable[[], object], place: int) -> bool:
    """Do the work, and end it before the `place`-th line, signal or not, as a debugger can."""
    steps = 0

    def at(frame: FrameType, event: str, _: object) -> Any:
        nonlocal steps
        if "/flotilla_client/" not in frame.f_code.co_filename or is_collected(frame):
            return None
        steps += 1
        if steps == place:
            sys.settrace(None)
            raise KeyboardInterrupt
        return at

    before = sys.gettrace()
    sys.settrace(at)
    try:
        work()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False


@breaks_off
@pytest.mark.parametrize(
    "end", [interrupted, pytest.param(_ended_at_a_line, marks=pytest.mark.slow)]
)
def test_ctrl_c_anywhere_in_a_put_leaves_a_client_that_works(
    end: Callable[[Callable[[], object], int], bool], node: FakeNode
) -> None:
    with client_of(node) as client:
        client.subscribe("t")
        for place in itertools.count(1):
            is_broken = end(lambda: client.publish("t", f"put {place}"), place)  # noqa: B023
            if end is interrupted:
                thread = threading.Thread(target=client.publish, args=("t", f"after {place}"))
                thread.start()
                thread.join(10)
                assert not thread.is_alive(), place
            else:
                client.publish("t", f"after {place}")
            if not is_broken:
                break
        state = client._session.state
        assert (state.outbox(), state._settled().outbox_bytes) == ([], 0)
    assert place > INTERRUPTIONS_MIN
    stored = node.cluster.topics["t"]
    assert len(set(stored)) == len(stored)
    order = [int(text.split()[1]) * 2 + text.startswith(b"after") for text in stored]
    assert order == sorted(order)
    assert [text for text in stored if text.startswith(b"after")] == [
        b"after %d" % number for number in range(1, place + 1)
    ]


def test_an_observer_that_fails_in_its_own_way_ends_its_operation_alone(node: FakeNode) -> None:
    class Failing(Silent):
        def on_complete(self, operation: Operation, outcome: Outcome) -> None:
            raise ZeroDivisionError

    with client_of(node, observer=Failing()) as client:
        for _ in range(2):
            with pytest.raises(ZeroDivisionError):
                client.subscribe("t")
        assert client.status()["node"] == "a"


@breaks_off
def test_ctrl_c_anywhere_in_a_send_leaves_a_producer_that_works(node: FakeNode) -> None:
    with client_of(node) as client:
        client.subscribe("t")
        out = client.producer("t", linger_ms=0)
        for place in itertools.count(1):
            is_broken = interrupted(lambda: out.send(f"send {place}"), place)  # noqa: B023
            assert out.send(f"after {place}").result(10).stored, place
            if not is_broken:
                break
        client.close()
    stored = node.cluster.topics["t"]
    order = [int(text.split()[1]) * 2 + text.startswith(b"after") for text in stored]
    assert order == sorted(set(order))
    assert order[-1] == place * 2 + 1


def test_who_listens_passes_on_the_answer_to_what_another_call_has_published(
    node: FakeNode,
) -> None:
    """It comes while the id is taken up anew, or once the caller has left."""
    others, passed_on = Reply(ACK, "another.1", "a", "a", 1, {}), list[Reply]()
    with client_of(node) as client:
        ask = Ask(Request(GET, ""))
        exchange = client._session.exchange(ask, now_ms() + DEADLINE_MS)
        exchange.started(now_ms())
        parts: Any = SimpleNamespace(
            session=client._session,
            joined=SimpleNamespace(replied=passed_on.append),
            connection=SimpleNamespace(receive=lambda endpoint, timeout_ms: others, cause=""),
        )
        [action] = client._listen(parts, exchange, ask, 0, 1.0)
    assert passed_on == [others]
    assert isinstance(action, Listen)
