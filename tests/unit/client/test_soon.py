"""`publish`, `publish_soon` and what comes of them, with threads and with asyncio alike."""

from __future__ import annotations

import asyncio
import inspect
import pickle
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import CancelledError
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from flotilla_client import (
    AsyncClient,
    Busy,
    Client,
    Closed,
    NoSubscribers,
    NotDelivered,
    Overloaded,
    Unavailable,
    aio,
    soon,
)
from flotilla_client.joining import Call
from flotilla_client.protocol import GET, PUT, pack
from flotilla_client.turns import Ticket, Turns
from tests.unit.fake_node import FakeNode, client_of, nak

COUNT = 300
PATIENCE_S = 20.0
LONG_S = 2.0


def async_client_of(node: FakeNode, directory: Path | None = None, **settings: Any) -> AsyncClient:
    return AsyncClient([node.endpoint], state_dir=directory, **{"timeout": 10, **settings})


def heard(node: FakeNode, directory: Path, topic: str = "t") -> None:
    with client_of(node, directory) as client:
        client.subscribe(topic)


# --- both clients are alike -----------------------------------------------------------------------


def test_both_clients_have_the_same_names_with_the_same_arguments() -> None:
    def public(of: type) -> dict[str, Any]:
        return {name: what for name, what in inspect.getmembers(of) if not name.startswith("_")}

    ours, theirs = public(Client), public(AsyncClient)
    assert ours.keys() == theirs.keys()
    for name in ours:
        if callable(ours[name]):
            mine, other = inspect.signature(ours[name]), inspect.signature(theirs[name])
            assert list(mine.parameters.values()) == list(other.parameters.values()), name
    constructors = inspect.signature(Client), inspect.signature(AsyncClient)
    assert constructors[0].parameters == constructors[1].parameters


# --- publish --------------------------------------------------------------------------------------


def test_what_nobody_subscribes_to_is_an_error_unless_that_is_allowed(
    node: FakeNode, tmp_path: Path
) -> None:
    with client_of(node, tmp_path) as client:
        with pytest.raises(NoSubscribers, match="nobody subscribes to 't'") as caught:
            client.publish("t", "lost")
        assert caught.value.definite
        assert caught.value.details == {"topic": "t", "stored": 0}
        assert client.publish("t", "lost", allow_unheard=True).stored is False
        with pytest.raises(NoSubscribers):
            client.publish_many("t", ["a", "b"])
        with pytest.raises(NoSubscribers, match="it is a pattern, and a publication goes to one"):
            client.publish("t.*", "lost")
        with pytest.raises(NoSubscribers):
            client.publish_soon("t", "lost").result(PATIENCE_S)
        client.subscribe("t")
        assert client.publish("t", "kept").stored


def test_the_same_with_asyncio(node: FakeNode, tmp_path: Path) -> None:
    async def run() -> None:
        async with async_client_of(node, tmp_path) as client:
            with pytest.raises(NoSubscribers):
                await client.publish("t", "lost")
            with pytest.raises(NoSubscribers):
                await client.publish_many("t", ["lost"])
            with pytest.raises(NoSubscribers):
                await (await client.publish_soon("t", "lost"))
            await client.subscribe("t")
            assert (await client.publish("t", "kept")).stored

    asyncio.run(run())


def test_a_timeout_holds_for_the_whole_call_and_the_publication_is_kept(
    node: FakeNode, tmp_path: Path
) -> None:
    heard(node, tmp_path / "s")
    node.always(PUT, "silent")
    with client_of(node, tmp_path / "c", timeout=60) as client:
        client.open()
        with pytest.raises(Unavailable) as caught:
            client.publish("t", "kept", timeout=timedelta(milliseconds=300))
        assert caught.value.details["kept"] == 1
    for bad, error in ((0, ValueError), ("1", TypeError), (10**9, ValueError)):
        with client_of(node, tmp_path / "c") as client, pytest.raises(error, match="timeout"):
            client.publish("t", "never taken", timeout=bad)  # type: ignore[arg-type]


# --- publish_soon ---------------------------------------------------------------------------------


def test_futures_have_their_own_ids_in_the_order_of_the_calls(
    node: FakeNode, tmp_path: Path
) -> None:
    heard(node, tmp_path / "s")
    with client_of(node, tmp_path / "c") as client:
        futures = [client.publish_soon("t", str(number)) for number in range(COUNT)]
        last = client.publish("t", "behind all of them")
        ids = [future.result(0).id for future in futures]
    assert ids == list(range(1, COUNT + 1))
    assert last.id == COUNT + 1
    assert len(node.of_type(PUT)) < COUNT / 2  # joined


def test_futures_with_asyncio_are_in_order_too(node: FakeNode, tmp_path: Path) -> None:
    heard(node, tmp_path / "s")

    async def run() -> list[int]:
        async with async_client_of(node, tmp_path / "c") as client:
            futures = [await client.publish_soon("t", str(number)) for number in range(COUNT)]
            await client.flush()
            assert all(future.done() for future in futures)
            return [future.result().id for future in futures]

    assert asyncio.run(run()) == list(range(1, COUNT + 1))
    assert len(node.of_type(PUT)) < COUNT / 2


def test_other_calls_between_them_keep_their_place(node: FakeNode, tmp_path: Path) -> None:
    with client_of(node, tmp_path) as client:
        client.subscribe("t")
        first = client.publish_soon("t", "a")
        delivery = client.get("t", timeout=5)
        second = client.publish_soon("t", "b")
        client.flush()
        assert first.result(0).id == 1
        assert second.result(0).id == 2
        assert delivery is not None
        assert delivery.publications == (b"a",)


def test_a_call_stands_behind_all_that_have_queued_up_and_joins_the_last_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(soon, "TICKET_COUNT_MAX", 2)
    end_ms = time.monotonic() * 1000 + PATIENCE_S * 1000

    def call(topic: str, told: Callable[[], None] = lambda: None) -> Call:
        return Call(topic, [pack([b"x"])], end_ms, told)

    def publish(topic: str) -> None:
        publisher.publish(partial(call, topic))

    turns, has_turn, reads = Turns(), Ticket([call("first")]), Ticket()
    publisher = soon.SoonPublisher(turns, lambda ticket: None, lambda: None, None, 1_000.0)
    turns.add(has_turn)
    for text in ("a", "b", "c"):
        publish(text)
    turns.add(reads)
    publish("d")
    joined = [[each.topic for each in ticket.joining] for ticket in turns.tickets()]
    assert joined == [["first"], ["a", "b"], ["c"], [], ["d"]]
    assert [each.topic for each in turns.joining()] == ["first", "a", "b", "c"]
    publisher.begin_closing()
    for future in tuple(publisher._futures.values()):
        assert future.cancel()
    for ticket in (has_turn, reads):
        turns.pop(ticket.place)
    publisher.finish(0.0)


def test_several_threads_publish_soon_and_each_keeps_its_order(
    node: FakeNode, tmp_path: Path
) -> None:
    heard(node, tmp_path / "s")
    ids: dict[int, list[int]] = {}

    def work(number: int) -> None:
        futures = [client.publish_soon("t", f"{number}-{n}") for n in range(COUNT)]
        ids[number] = [future.result(PATIENCE_S).id for future in futures]

    with client_of(node, tmp_path / "c") as client:
        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_S)
    assert all(of_one == sorted(of_one) for of_one in ids.values())
    assert sorted(id_ for of_one in ids.values() for id_ in of_one) == list(range(1, 4 * COUNT + 1))


def test_close_waits_for_the_answers(node: FakeNode, tmp_path: Path) -> None:
    heard(node, tmp_path / "s")
    with client_of(node, tmp_path / "c") as client:
        futures = [client.publish_soon("t", str(number)) for number in range(COUNT)]
    assert all(future.done() for future in futures)
    with pytest.raises(Closed):
        client.publish_soon("t", "late")


def test_what_has_no_answer_stands_in_the_outbox_and_the_next_process_sends_it(
    node: FakeNode, tmp_path: Path
) -> None:
    heard(node, tmp_path / "s")
    node.always(PUT, "silent")
    with client_of(node, tmp_path / "c") as client:
        client.open()
        futures = [client.publish_soon("t", str(number), timeout=0.3) for number in range(3)]
        for future in futures:
            error = future.exception(PATIENCE_S)
            assert isinstance(error, Unavailable)
            assert not error.definite
    node.always(PUT, None)
    with client_of(node, tmp_path / "c") as client:
        client.open()
    with client_of(node, tmp_path / "s") as client:
        delivery = client.get("t", timeout=5, max_count=10)
    assert delivery is not None
    assert delivery.publications == (b"0", b"1", b"2")


def test_one_that_is_refused_leaves_the_others_alone(node: FakeNode, tmp_path: Path) -> None:
    heard(node, tmp_path / "s")
    node.script(PUT, nak("unauthorized"))
    with client_of(node, tmp_path / "c") as client:
        first = client.publish_soon("t", "refused")
        assert first.exception(PATIENCE_S) is not None
        assert client.publish_soon("t", "stored").result(PATIENCE_S).id == 1


def test_a_future_that_is_cancelled_in_time_takes_its_publication_back(
    node: FakeNode, tmp_path: Path
) -> None:
    heard(node, tmp_path / "s")
    node.script(PUT, "silent")
    with client_of(node, tmp_path / "c") as client:
        client.open()
        first = client.publish_soon("t", "first")
        node.await_requests(PUT, 1)
        taken_back = client.publish_soon("t", "taken back")
        assert taken_back.cancel()
        with pytest.raises(CancelledError):
            taken_back.result(0)
        assert first.result(PATIENCE_S).id == 1
        assert client.publish("t", "second").id == 2


def test_who_publishes_does_not_wait_for_a_callback(node: FakeNode) -> None:
    entered, may_go_on, in_time = threading.Event(), threading.Event(), []

    def callback(_: object) -> None:
        entered.set()
        in_time.append(may_go_on.wait(LONG_S))

    with client_of(node) as client:
        client.subscribe("t")
        with node.cluster.lock:
            first = client.publish_soon("t", "first")
            first.add_done_callback(callback)
        assert entered.wait(PATIENCE_S)
        second = client.publish_soon("t", "second")
        may_go_on.set()
        assert second.result(PATIENCE_S).id == 2
    assert in_time == [True]


def test_callbacks_run_in_the_client_s_thread_whoever_has_done_the_work(node: FakeNode) -> None:
    threads: list[str] = []
    with client_of(node) as client:
        client.subscribe("t")
        client.subscribe("u")
        node.script(PUT, "late")  # behind the answer to the next one
        leader = threading.Thread(target=client.publish, args=("t", "x"))
        leader.start()
        node.await_requests(PUT, 1)
        future = client.publish_soon("u", "x")
        future.add_done_callback(lambda _: threads.append(threading.current_thread().name))
        leader.join()
        assert future.result(PATIENCE_S).id == 1
    assert threads == ["flotilla-publisher"]


def test_a_callback_that_raises_whatever_it_is_ends_nobody_else_s_work(
    node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[object] = []
    monkeypatch.setattr(threading, "excepthook", lambda args: said.append(args.exc_type))
    with client_of(node) as client:
        client.subscribe("t")
        with node.cluster.lock:
            futures = [client.publish_soon("t", "x") for _ in range(3)]
            for future in futures:
                future.add_done_callback(lambda _: sys.exit())
        assert [future.result(PATIENCE_S).id for future in futures] == [1, 2, 3]
        assert client.publish_soon("t", "x").result(PATIENCE_S).id == 4
        assert client.publish("t", "x").id == 5
    assert said == [SystemExit] * 3


def test_who_publishes_more_than_is_answered_waits_and_is_told(
    node: FakeNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(soon, "UNANSWERED_COUNT_MAX", 2)
    heard(node, tmp_path / "s")
    node.always(PUT, "silent")
    with client_of(node, tmp_path / "c", timeout=2) as client:
        client.open()
        for _ in range(2):
            client.publish_soon("t", "x")
        with pytest.raises(Overloaded):
            client.publish_soon("t", "x", timeout=0.1)

    async def run() -> None:
        async with async_client_of(node, tmp_path / "a", timeout=1) as client:
            futures = [await client.publish_soon("t", "x") for _ in range(2)]
            with pytest.raises(Overloaded):
                await client.publish_soon("t", "x", timeout=0.1)
            for future in futures:
                with pytest.raises(Unavailable):
                    await future

    asyncio.run(run())


# --- reading --------------------------------------------------------------------------------------


def test_what_is_answered_makes_room_for_as_much(
    node: FakeNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(soon, "UNANSWERED_BYTES_MAX", 250)
    heard(node, tmp_path / "s")

    async def run() -> None:
        async with async_client_of(node, tmp_path / "a") as client:
            for _ in range(5):
                await (await client.publish_soon("t", "x" * 100, timeout=LONG_S))

    with client_of(node, tmp_path / "c") as client:
        for _ in range(5):
            client.publish_soon("t", "x" * 100, timeout=LONG_S).result(PATIENCE_S)
    asyncio.run(run())


def test_who_waits_for_room_has_it_before_who_comes_when_there_is_some(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(soon, "UNANSWERED_COUNT_MAX", 1)
    end_ms = time.monotonic() * 1000 + PATIENCE_S * 1000

    async def run() -> None:
        waiting, loop, order = aio._Soon(), asyncio.get_running_loop(), list[str]()
        first = loop.create_future()

        async def come(name: str) -> None:
            await waiting.room(end_ms)
            order.append(name)
            waiting.begin(Call("t", [], end_ms, lambda: None), loop.create_future())

        waiting.begin(Call("t", [], end_ms, lambda: None), first)
        tasks = [asyncio.create_task(come("who waited"))]
        await asyncio.sleep(0)
        first.set_result(None)
        await asyncio.sleep(0)  # there is room, and who waits has not had the time to see it
        tasks.append(asyncio.create_task(come("who came")))
        for _ in range(10):
            await asyncio.sleep(0)
        assert order == ["who waited"]
        for task in tasks:
            task.cancel()

    asyncio.run(run())


def test_an_awaited_future_that_is_cancelled_takes_its_call_back() -> None:
    async def run() -> None:
        call = Call("t", [], 0.0, lambda: None)
        future = asyncio.get_running_loop().create_future()
        aio._Soon().begin(call, future)
        future.cancel()
        await asyncio.sleep(0)
        assert call.has_left

    asyncio.run(run())


def test_a_message_acknowledges_itself_and_all_before_it(node: FakeNode, tmp_path: Path) -> None:
    with client_of(node, tmp_path) as client:
        client.subscribe("t")
        client.publish_many("t", ["a", "b", "c"])
        messages = client.messages("t", ack="manual", idle=1)
        next(messages)
        second = next(messages)
        second.ack()
        messages.close()
        again = client.get("t", timeout=5, max_count=9, ack="manual")
        assert again is not None
        assert again.publications == (b"c",)
        again.ack()
        assert client.get("t") is None
    copy = pickle.loads(pickle.dumps(second))
    assert copy == second
    with pytest.raises(NotDelivered):
        copy.ack()


@pytest.mark.parametrize("what", ["another call", "the id"])
def test_what_is_published_soon_is_told_in_its_own_time_whatever_takes_longer(
    what: str, node: FakeNode
) -> None:
    def subscribe() -> None:
        with pytest.raises(Unavailable):
            client.subscribe("t")

    node.always("SUB" if what == "another call" else "REQUEST_ID", "deaf")
    with Client(node.endpoint, name="a", timeout=LONG_S) as client:
        if what == "another call":
            client.open()
            longer = threading.Thread(target=subscribe)
            longer.start()
            node.await_requests("SUB", 1)
        else:
            long = client.publish_soon("t", "long")
            node.await_requests("REQUEST_ID", 1)
        short = client.publish_soon("u", "short", timeout=0.2)
        error = short.exception(LONG_S / 2)
        assert isinstance(error, Busy if what == "another call" else Unavailable)
        if what == "another call":
            assert error.definite
            longer.join()
        else:
            assert (error.definite, error.details["kept"]) == (False, 1)
            assert isinstance(long.exception(), Unavailable)


def test_a_get_with_a_timeout_ends_in_time_and_says_if_nobody_answered(
    node: FakeNode, tmp_path: Path
) -> None:
    with client_of(node, tmp_path, timeout=60) as client:
        client.subscribe("t")
        assert client.get("t", timeout=5) is None
        node.always(GET, "silent")
        with pytest.raises(Unavailable):
            client.get("t", timeout=0.3)
        with pytest.raises(TypeError, match="timeout includes idle"):
            client.get("t", idle=0.1, timeout=1)
