"""`AsyncClient`: the same behaviour with await, and cancellation that loses nothing."""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import Callable, Coroutine
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from flotilla_client import (
    AsyncClient,
    Client,
    FlotillaError,
    NotSubscribed,
    RecordError,
    Unavailable,
)
from flotilla_client.aio import AsyncMessages, AsyncWorkItems
from flotilla_client.client import Messages, WorkItems
from flotilla_client.observer import Operation, Outcome, Silent
from flotilla_client.operations import Operations
from flotilla_client.protocol import GET, PUT, SUB, TAKE, pack
from flotilla_client.state import State
from tests.unit.fake_node import TIMEOUT_S, FakeCluster, FakeNode, client_of, nak


def _run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, 30))


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("kind", [PUT, SUB, GET, TAKE])
def test_what_a_closed_loop_has_left_under_way_is_over_in_the_next(
    node: FakeNode, kind: str
) -> None:
    client = AsyncClient(node.endpoint, state_dir=node.new_directory(), timeout=TIMEOUT_S)
    left: dict[str, Callable[[], Coroutine[Any, Any, Any]]] = {
        PUT: lambda: client.publish("t", "a"),
        SUB: lambda: client.subscribe("u"),
        GET: lambda: client.get("t", idle=9),
        TAKE: lambda: client.work("t", "g").__anext__(),
    }

    async def leave() -> None:
        await left[kind]()

    loop = asyncio.new_event_loop()
    loop.run_until_complete(client.subscribe("t"))
    node.always(kind, "deaf" if kind in (PUT, TAKE) else None)
    node.always(SUB, nak("overloaded", retry_after_ms=2_000) if kind == SUB else None)
    task = loop.create_task(leave())
    asked = loop.run_in_executor(None, node.await_requests, kind, 2 if kind == SUB else 1)
    loop.run_until_complete(asked)
    loop.close()
    node.always(kind, None)

    async def go_on() -> None:
        await client.publish("t", "b")
        await client.subscribe("v")
        delivery = await client.get("t", timeout=2, max_count=2)
        assert delivery is not None
        assert delivery.publications == ((b"a", b"b") if kind == PUT else (b"b",))
        await client.close()

    _run(go_on())
    assert not task.done()


def test_an_opening_that_is_collected_late_lets_nobody_send_what_a_newer_one_sends() -> None:
    state = State(None)
    operations = Operations(state, Silent())
    state.resumed("c", 1, 0, {}, {})
    state.enqueue("t", [pack([b"a"])])
    older, newer = operations._recover(), operations._recover()
    next(older)
    next(newer)
    older.close()
    assert operations.resending == "t"
    newer.close()
    assert operations.resending == ""
    state.close()


def test_it_offers_what_the_client_offers() -> None:
    def public(kind: type) -> set[str]:
        return {name for name in vars(kind) if not name.startswith("_")}

    assert public(AsyncClient) == public(Client)
    assert public(AsyncMessages) == public(Messages) | {"aclose"}
    assert public(AsyncWorkItems) == public(WorkItems) | {"aclose"}


def test_what_is_put_is_got_once_and_in_order(node: FakeNode) -> None:
    async def work() -> None:
        async with AsyncClient(node.endpoint, state_dir=node.new_directory()) as client:
            assert (await client.subscribe("t")).last_id == 0
            assert (await client.publish("t", "a")).id == 1
            await client.publish_many("t", ["b", "c"])
            delivery = await client.get("t", idle=1)
            assert delivery is not None
            assert delivery.publications == (b"a",)
            rest = [message.publication async for message in client.messages("t", idle=0)]
            assert rest == [b"b", b"c"]
            assert (await client.topics())[0]["backlog"] == 0
            assert (await client.status(0))["node"] == "a"
            assert await client.upgrade() == {"level": 2, "before": 1}
            assert await client.unsubscribe("t")
            with pytest.raises(NotSubscribed):
                await client.get("t")

    _run(work())


def test_a_loop_that_ends_with_a_task_under_way_leaves_no_error_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    left = list[object]()
    monkeypatch.setattr(sys, "unraisablehook", lambda error: left.append(error.exc_value))

    async def leave() -> None:
        parts = AsyncClient(["127.0.0.1:1"])._parts.here()
        parts._begin("a connection, say", asyncio.Event().wait)  # type: ignore[arg-type]
        await asyncio.sleep(0)  # it has begun

    loop = asyncio.new_event_loop()
    loop.run_until_complete(leave())
    loop.close()
    gc.collect()
    assert left == []


def test_loops_use_it_one_after_the_other_and_not_at_once(node: FakeNode) -> None:
    client = AsyncClient(node.endpoint, state_dir=node.new_directory())
    asyncio.run(client.subscribe("t"))
    asyncio.run(client.publish("t", "first"))

    async def work() -> None:
        await client.publish("t", "second")
        with pytest.raises(RuntimeError, match="another event loop's, which runs"):
            await asyncio.to_thread(asyncio.run, client.publish("t", "elsewhere"))
        assert (await client.publish("t", "third")).id == 3
        await client.close()

    _run(work())


def test_tasks_of_a_later_loop_wait_for_their_turn_at_a_group(node: FakeNode) -> None:
    client = AsyncClient(node.endpoint, timeout=TIMEOUT_S)

    async def work() -> None:
        node.cluster.topics["t"].append(b"a")
        async with client.work("t", "g", ack="manual") as items:
            item = await anext(items)
            asked = len(node.of_type(TAKE))
            node.script(TAKE, "deaf")  # it is asked for again when an attempt's time is over
            wanted = asyncio.ensure_future(anext(items))
            await asyncio.to_thread(node.await_requests, TAKE, asked + 1)
            await item.extend()
            wanted.cancel()

    asyncio.run(work())
    asyncio.run(work())
    asyncio.run(client.close())


def test_closing_while_nobody_is_reached_leaves_no_error_behind() -> None:
    async def work() -> None:
        left: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, about: left.append(about))
        client = AsyncClient("127.0.0.1:1", timeout=20)
        put = asyncio.create_task(client.publish("t", "a"))
        parts = client._parts.here()
        while "open" not in parts._tasks:
            await asyncio.sleep(0)
        opening = parts._tasks["open"]
        await client.close()
        with pytest.raises(FlotillaError):
            await put
        await asyncio.wait([opening])
        assert opening.exception() is None
        assert left == []

    _run(work())


def test_closing_ends_what_pauses_between_two_attempts(node: FakeNode, tmp_path: Path) -> None:
    node.always(GET, nak("overloaded", retry_after_ms=5_000))

    async def work() -> None:
        client = AsyncClient(node.endpoint, state_dir=tmp_path, timeout=30)
        await client.subscribe("t")
        reading = asyncio.create_task(client.get("t"))
        while not client._parts.here()._pauses:
            await asyncio.sleep(0.01)
        await client.close()
        with pytest.raises(Unavailable, match="closed"):
            await asyncio.wait_for(reading, 1)

    _run(work())


def test_a_put_whose_answer_is_lost_is_stored_once_and_a_dead_node_is_left() -> None:
    async def work() -> None:
        cluster = FakeCluster()
        with FakeNode("a", cluster) as a, FakeNode("b", cluster) as b:
            async with AsyncClient(
                [a.endpoint, b.endpoint], state_dir=a.new_directory(), timeout=3
            ) as client:
                await client.subscribe("t")
                a.script(PUT, "silent")
                assert (await client.publish("t", "x")).duplicate
                b.stop()
                assert (await client.publish("t", "y")).id == 2

    _run(work())


def test_without_any_node_it_is_unavailable() -> None:
    async def work() -> None:
        async with AsyncClient("127.0.0.1:1", timeout=0.3) as client:
            with pytest.raises(Unavailable) as caught:
                await client.publish("t", "x")
            assert not caught.value.definite
            assert caught.value.details["kept"] == 1
            assert "127.0.0.1:1: connection refused" in caught.value.message

    _run(work())


def test_silence_closes_the_socket(node: FakeNode) -> None:
    async def work() -> None:
        async with AsyncClient(
            node.endpoint, state_dir=node.new_directory(), timeout=0.3
        ) as client:
            await client.open()
            assert list(client._parts.here().links) == [0]
            node.always(PUT, "deaf")
            with pytest.raises(Unavailable):
                await client.publish("t", "x")
            assert list(client._parts.here().links) == []

    _run(work())


def test_a_cancelled_get_has_taken_nothing_and_the_next_one_works(node: FakeNode) -> None:
    async def work() -> None:
        async with AsyncClient(node.endpoint, state_dir=node.new_directory()) as client:
            await client.subscribe("t")
            getting = asyncio.create_task(client.get("t", idle=20))
            await asyncio.to_thread(node.await_requests, GET, 1)
            getting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await getting
            await client.publish("t", "x")
            delivery = await client.get("t")
            assert delivery is not None
            assert delivery.publications == (b"x",)

    _run(work())


def test_a_loop_whose_wait_was_cancelled_goes_on_in_another_task(node: FakeNode) -> None:
    async def work() -> None:
        async with AsyncClient(node.endpoint, state_dir=node.new_directory()) as client:
            await client.subscribe("t")
            messages = client.messages("t")
            waiting = asyncio.create_task(anext(messages))
            await asyncio.to_thread(node.await_requests, GET, 1)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            await client.publish("t", "x")
            assert (await anext(messages)).publication == b"x"

    _run(work())


@pytest.mark.parametrize("has_producer", [False, True])
def test_a_cancelled_close_closes_at_once_and_keeps_what_has_no_answer(
    has_producer: bool, node: FakeNode, tmp_path: Path
) -> None:
    async def publish() -> None:
        async with AsyncClient(node.endpoint, state_dir=tmp_path / "state") as client:
            if has_producer:
                out = await client.producer("t")
                sent.set_result(await out.send("x"))
            else:
                sent.set_result(await client.publish_soon("t", "x"))

    async def cancelled() -> None:
        nonlocal sent
        sent = asyncio.get_running_loop().create_future()
        publishing = asyncio.create_task(publish())
        answer = await sent
        await asyncio.to_thread(node.await_requests, PUT, 1)
        publishing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await publishing
        with pytest.raises(Unavailable):
            await answer

    sent: asyncio.Future[Any]
    node.always(PUT, "deaf")
    asyncio.run(cancelled())
    with closing(State(tmp_path / "state")) as state:
        assert state.waiting() == 1


def test_a_producer_whose_close_is_cancelled_lets_others_publish(
    node: FakeNode, tmp_path: Path
) -> None:
    async def publish(client: AsyncClient) -> None:
        async with await client.producer("t") as out:
            answers.append(await out.send("x"))

    async def cancelled() -> None:
        async with AsyncClient(node.endpoint, state_dir=tmp_path) as client:
            await client.subscribe("t")
            node.always(PUT, "deaf")
            publishing = asyncio.create_task(publish(client))
            await asyncio.to_thread(node.await_requests, PUT, 1)
            publishing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await publishing
            with pytest.raises(Unavailable):
                await answers[0]
            node.always(PUT, None)
            assert (await client.publish("t", "y")).id == 2

    answers: list[asyncio.Future[Any]] = []
    asyncio.run(cancelled())
    assert node.cluster.topics["t"] == [b"x", b"y"]


def test_a_cancelled_put_stays_in_the_outbox(node: FakeNode, tmp_path: Path) -> None:
    async def work() -> None:
        async with AsyncClient(node.endpoint, state_dir=tmp_path) as client:
            await client.subscribe("t")
            node.script(PUT, "deaf")
            putting = asyncio.create_task(client.publish("t", "x"))
            await asyncio.to_thread(node.await_requests, PUT, 1)
            putting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await putting
            assert node.cluster.topics["t"] == []
            await client.flush()
            assert node.cluster.topics["t"] == [b"x"]

    _run(work())


def test_tasks_share_one_client_in_turn(node: FakeNode) -> None:
    async def work() -> None:
        async with AsyncClient(node.endpoint, state_dir=node.new_directory()) as client:
            await client.subscribe("t")
            results = await asyncio.gather(*(client.publish("t", str(n)) for n in range(20)))
            assert sorted(result.id for result in results) == list(range(1, 21))

    _run(work())


def test_a_take_is_answered_before_another_task_takes_of_its_group(node: FakeNode) -> None:
    """Two answers to one TAKE would bring the same twice."""
    with client_of(node) as publisher:
        publisher.subscribe("t")
        publisher.publish("t", "a")

    async def scenario() -> None:
        async with AsyncClient(node.endpoint, timeout=TIMEOUT_S) as client:
            items = client.work("t", "g", ack="manual")
            item = await anext(items)
            node.script(TAKE, "deaf")  # it is asked for again when an attempt's time is over
            wanted = asyncio.ensure_future(anext(items))
            await asyncio.to_thread(node.await_requests, TAKE, 2)
            await item.extend()
            wanted.cancel()

    _run(scenario())
    exchanges = {
        request.request_id.rpartition(".")[0]
        for request in node.of_type(TAKE)
        if request.body["number"] == 2
    }
    assert len(exchanges) == 1


def test_its_producer_is_awaited(node: FakeNode) -> None:
    async def work() -> None:
        async with AsyncClient(node.endpoint, state_dir=node.new_directory()) as client:
            await client.subscribe("t")
            async with await client.producer("t") as out:
                futures = [await out.send(str(number)) for number in range(50)]
                await out.flush()
                assert [(await future).id for future in futures] == list(range(1, 51))

    _run(work())


def test_a_producer_that_writes_to_a_slow_disk_holds_up_no_other_task(
    node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work() -> None:
        async with AsyncClient(
            node.endpoint, state_dir=node.new_directory(), timeout=0.1
        ) as client:
            await client.subscribe("t")
            out = await client.producer("t")
            waits: list[float] = []
            monkeypatch.setattr(out._producer, "has_ended", lambda: False)
            changed = out._producer._queue.changed
            monkeypatch.setattr(changed, "wait_for", lambda _, timeout: waits.append(timeout))
            await out.close()
            assert waits == []

    _run(work())


def test_a_producer_of_another_process_closes_nothing(
    node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work() -> None:
        async with AsyncClient(node.endpoint, state_dir=node.new_directory()) as client:
            await client.subscribe("t")
            out = await client.producer("t")
            with monkeypatch.context() as forked:
                forked.setattr(out._producer, "_pid", 0)
                await out.close()
            await (await out.send("on"))

    _run(work())


class FullRecord(Silent):
    """An observer whose disk is full by the time something ends."""

    def on_complete(self, operation: Operation, outcome: Outcome) -> None:
        if operation.f == "put":
            raise RecordError("the disk is full", definite=False)


def test_a_refusal_that_no_record_takes_is_told_to_who_published(node: FakeNode) -> None:
    node.always(PUT, nak("unauthorized"))

    async def work() -> None:
        state = node.new_directory()
        async with AsyncClient(node.endpoint, state_dir=state, observer=FullRecord()) as client:
            await client.subscribe("t")
            with pytest.raises(RecordError) as told:
                await client.publish("t", "a")
            assert not told.value.definite

    _run(work())


def test_a_client_whose_record_is_full_is_closed_and_tells_all_who_wait(node: FakeNode) -> None:
    node.always(PUT, "deaf")

    async def work() -> None:
        state = node.new_directory()
        client = AsyncClient(node.endpoint, state_dir=state, observer=FullRecord())
        await client.open()
        asked = [asyncio.create_task(client.publish(topic, "a")) for topic in "abc"]
        await asyncio.to_thread(node.await_requests, PUT, 3)
        await client.close()
        assert [type(error) for error in await asyncio.gather(*asked, return_exceptions=True)] == [
            Unavailable
        ] * 3
        await AsyncClient(node.endpoint, state_dir=state).close()

    _run(work())


def test_who_publishes_is_told_though_all_of_the_client_s_own_tasks_are_cancelled() -> None:
    async def work() -> None:
        client = AsyncClient("127.0.0.1:1")
        parts, told = client._parts.here(), list[FlotillaError]()
        parts.here()
        refused = Unavailable("nobody is there", details={"causes": {0: "connection refused"}})
        parts._explain(refused, told.append)
        [explaining] = parts._tasks.values()
        explaining.cancel()
        await asyncio.wait([explaining])
        assert [refused.message in error.message for error in told] == [True]
        await client.close()

    _run(work())
