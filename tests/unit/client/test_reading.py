"""What a subscriber is promised: each publication, again after a crash only, to one reader."""

from __future__ import annotations

import asyncio
import gc
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest

from flotilla_client import (
    AlreadyReading,
    AsyncClient,
    Client,
    Expired,
    NotDelivered,
    NotSubscribed,
    Purged,
    StateUnusable,
    operations,
    protocol,
)
from flotilla_client.observer import Handling, Silent
from flotilla_client.reading import ACKS, Delivery, Reader, this_thread
from flotilla_client.state import State
from tests.unit.fake_node import FakeNode, client_of, nak, texts_of

WAIT_S: Final = 30


@pytest.fixture
def client(node: FakeNode) -> Any:
    with client_of(node) as client:
        client.subscribe("t")
        client.publish_many("t", ["a", "b", "c"])
        yield client


def in_thread(work: Callable[[], Any]) -> Any:
    """Return what `work` returns in another thread, that lives until the pool is left."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(work).result(WAIT_S)


def ids(client: Client, **how: Any) -> list[tuple[int, bool]]:
    return [(one.id, one.redelivered) for one in client.messages("t", idle=0, **how)]


class Noting(Silent):
    """Notes what is handed over, acknowledged and released."""

    def __init__(self) -> None:
        self.handlings: list[Handling] = []

    def on_handling(self, handling: Handling) -> None:
        self.handlings.append(handling)


# --- when a loop acknowledges -------------------------------------------------------------------


def test_a_message_is_acknowledged_when_the_loop_comes_back(client: Client) -> None:
    cursors = []
    for message in client.messages("t", idle=0):
        cursors.append((message.id, client._session.state.cursor("t")))
    assert cursors == [(1, 0), (2, 1), (3, 2)]
    assert client._session.state.cursor("t") == 3


def test_a_message_whose_body_raises_comes_again_and_says_so(client: Client) -> None:
    def read() -> None:
        for message in client.messages("t"):
            1 // (2 - message.id)

    with pytest.raises(ZeroDivisionError):
        read()
    assert ids(client) == [(2, True), (3, False)]


@pytest.mark.parametrize("is_loop", [False, True])
def test_coming_back_passes_nothing_of_what_was_sought_without_an_answer(
    client: Client, is_loop: bool
) -> None:
    """The taking up of the id tells where the subscription is: what is in hand was elsewhere."""
    messages = client.messages("t")

    def read() -> int:
        if is_loop:
            return next(messages).id
        delivery = client.get("t")
        assert delivery is not None
        return delivery.first_id

    before = read(), read()
    heard_of_a_seek(client._session.state)
    assert (before, (read(), read(), read())) == ((1, 2), (1, 2, 3))


def heard_of_a_seek(state: State) -> None:
    entry = state.placed("t") + 1
    state.resumed(state.client_id, state.epoch, state.sequence, {}, {"t": 0}, {"t": entry})


def test_a_message_that_the_loop_was_left_with_comes_again_and_says_so(client: Client) -> None:
    for message in client.messages("t"):
        if message.id == 2:
            break
    assert ids(client) == [(2, True), (3, False)]


def test_a_loop_left_in_order_as_a_context_acknowledges_and_by_an_exception_it_does_not(
    client: Client,
) -> None:
    def read(divisor: int) -> float:
        with client.messages("t") as messages:
            return next(messages).id / divisor

    assert read(1) == 1
    with pytest.raises(ZeroDivisionError):
        read(0)
    assert ids(client) == [(2, True), (3, False)]


def test_a_loop_has_ended_though_the_disk_refuses_its_last_acknowledgment(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    messages = client.messages("t")

    def read() -> None:
        with messages:
            assert next(messages).id == 1
            monkeypatch.setattr(State, "raise_cursor", _no_disk)

    with pytest.raises(StateUnusable):
        read()
    monkeypatch.undo()
    assert ids(client) == [(1, True), (2, False), (3, False)]
    assert list(messages) == []


def _no_disk(*_: Any) -> None:
    raise StateUnusable("the disk is full")


def test_a_loop_that_another_thread_closes_ends_where_it_waits(
    client: Client, node: FakeNode
) -> None:
    messages, found = client.messages("other"), list[Any]()
    client.subscribe("other")
    waiting = threading.Thread(target=lambda: found.extend(messages))
    waiting.start()
    node.await_requests(protocol.GET, 1)
    messages.close()
    client.publish("other", "a")
    waiting.join(10)
    assert (waiting.is_alive(), found) == (False, [])
    assert [(one.id, one.redelivered) for one in client.messages("other", idle=0)] == [(1, False)]


def test_a_loop_that_is_closed_before_what_it_has_fetched_is_handed_over_hands_over_nothing(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    messages, fetch = client.messages("t"), client._fetch

    def closed_meanwhile(loop: Any) -> Any:
        delivery = fetch(loop)
        messages.close()
        return delivery

    monkeypatch.setattr(client, "_fetch", closed_meanwhile)
    assert next(messages, None) is None
    monkeypatch.undo()
    assert not next(client.messages("t")).redelivered


def test_a_message_acknowledged_by_name_does_not_come_again(client: Client) -> None:
    for message in client.messages("t"):
        client.acknowledge("t", message.id)
        break
    assert ids(client) == [(2, False), (3, False)]


def test_manual_comes_again_until_it_is_acknowledged_and_at_most_once_never(
    client: Client,
) -> None:
    for message in client.messages("t", ack="manual"):
        if message.id == 2:
            break
    client.acknowledge("t", 1)
    for message in client.messages("t", ack="at-most-once"):
        assert (message.id, message.redelivered) == (2, True)
        break
    assert ids(client) == [(3, False)]


def test_a_loop_passes_over_what_was_acknowledged_by_hand_meanwhile(client: Client) -> None:
    messages = client.messages("t", ack="manual", idle=0)
    assert [next(messages).id for _ in range(4)] == [1, 2, 3, 1], "nothing was acknowledged"
    client.acknowledge("t", 3)
    client.publish("t", "d")
    assert next(messages).id == 4


def test_an_ended_loop_stays_ended_and_one_that_failed_goes_on(
    client: Client, node: FakeNode
) -> None:
    messages = client.messages("t", idle=0)
    assert len(list(messages)) == 3
    client.publish("t", "d")
    assert list(messages) == []
    messages = client.messages("t", idle=0)
    node.script("GET", ("nak", "internal", {}))
    with pytest.raises(Exception, match="internal"):
        next(messages)
    assert [message.id for message in messages] == [4]


def test_what_was_fetched_of_a_subscription_that_ended_is_not_handed_over(
    client: Client,
) -> None:
    messages = client.messages("t", idle=0)
    assert next(messages).id == 1
    client.unsubscribe("t")
    client.subscribe("t")
    client.publish("t", "new")
    assert [message.publication for message in messages] == [b"new"]
    messages = client.messages("t", idle=0)
    client.unsubscribe("t")
    with pytest.raises(NotSubscribed):
        next(messages)
    assert client._session.state.cursors() == {}


# --- when a get acknowledges --------------------------------------------------------------------


def test_what_a_get_returned_is_acknowledged_by_the_next_one_of_the_topic(
    client: Client, node: FakeNode, tmp_path: Path
) -> None:
    client.subscribe("u")
    client.publish("u", "x")
    assert client.get("t") is not None
    assert client.get("u") is not None
    assert client._session.state.cursors() == {"t": 0, "u": 0}
    delivery = client.get("t", max_count=2)
    assert delivery is not None
    assert (delivery.first_id, delivery.last_id, delivery.redelivered_count) == (2, 3, 0)
    assert client.get() is None
    assert client._session.state.cursors() == {"t": 3, "u": 1}


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError])
def test_what_a_get_has_not_returned_it_does_not_acknowledge_by_coming_back(
    node: FakeNode, error: type[BaseException]
) -> None:
    class Failing(Silent):
        def on_handling(self, handling: Handling) -> None:
            if handling.f == "hand" and errors:
                raise errors.pop()

    errors = [error]
    with client_of(node, observer=Failing()) as client:
        client.subscribe("t")
        client.publish_many("t", ["a", "b"])
        with pytest.raises(error):
            client.get("t")
        again = [(one.id, one.redelivered) for one in client.messages("t", idle=0)]
        assert again == [(1, True), (2, False)]


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError])
def test_what_an_asynchronous_get_has_not_returned_it_does_not_acknowledge_by_coming_back(
    node: FakeNode, error: type[BaseException]
) -> None:
    async def work() -> None:
        async with AsyncClient(node.endpoint, state_dir=node.new_directory()) as client:
            await client.subscribe("t")
            await client.publish_many("t", ["a", "b"])
            hand_over = client._readers.hand_over

            def failing(*about: Any) -> Any:
                hand_over(*about)
                raise error

            client._readers.hand_over = failing  # type: ignore[method-assign, assignment]
            with pytest.raises(error):
                await client.get("t")
            client._readers.hand_over = hand_over  # type: ignore[method-assign]
            again = [(one.id, one.redelivered) async for one in client.messages("t", idle=0)]
            assert again == [(1, True), (2, False)]

    asyncio.run(work())


def test_closing_acknowledges_what_a_get_returned_unless_an_exception_is_on_its_way(
    node: FakeNode, tmp_path: Path
) -> None:
    def read(divisor: int) -> float:
        with client_of(node, tmp_path) as client:
            [message] = list(client.get("t") or ())
            return message.id / divisor

    with client_of(node, tmp_path) as client:
        client.subscribe("t")
        client.publish_many("t", ["a", "b", "c"])
    assert read(1) == 1
    with pytest.raises(ZeroDivisionError):
        read(0)
    client = client_of(node, tmp_path)
    try:
        [message] = list(client.get("t") or ())
        assert (message.id, message.redelivered) == (2, True)
    finally:
        client.close()
    with client_of(node, tmp_path) as client:
        assert ids(client) == [(3, False)]


def test_a_body_that_ends_well_where_another_exception_is_handled_acknowledges(
    node: FakeNode, tmp_path: Path
) -> None:
    with client_of(node, state_dir=tmp_path / "one") as client:
        client.subscribe("t")
        client.publish_many("t", ["a", "b"])

    async def read_one() -> None:
        async with AsyncClient(node.endpoint, state_dir=tmp_path / "one") as client:
            assert (await client.get("t")).first_id == 2

    try:
        raise LookupError("the last attempt")
    except LookupError:
        with client_of(node, state_dir=tmp_path / "one") as client:
            assert client.get("t").first_id == 1
        asyncio.run(read_one())
    with client_of(node, state_dir=tmp_path / "one") as client:
        assert client.get("t") is None


def test_closing_leaves_what_another_thread_has_in_hand(node: FakeNode, tmp_path: Path) -> None:
    client = client_of(node, tmp_path)
    client.subscribe("t")
    client.publish("t", "a")
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(client.get, "t").result(WAIT_S) is not None
        client.close()
    with client_of(node, tmp_path) as client:
        assert ids(client) == [(1, True)]


def test_an_acknowledgment_is_waited_for_though_coming_back_has_made_it(
    node: FakeNode, tmp_path: Path
) -> None:
    with client_of(node, tmp_path) as client:
        client.subscribe("t")
        client.publish("t", "a")
        state = client._session.state
        assert client.get("t") is not None
        assert client.get("t") is None
        assert (state.cursor("t"), state._unwaited) == (1, 1)
        client.acknowledge("t", 1)
        assert state._unwaited == 0


def test_what_a_get_has_brought_is_handed_to_nobody_behind_a_move(client: Client) -> None:
    operations = client._session.operations
    readers, reader = operations.readers, Reader(this_thread(), "t", "auto")
    brought = Delivery("t", 1, (b"a", b"b", b"c"))
    with readers.reading(reader):
        operations._place("t", 1, 7)  # as another thread has it moved, before that is handed over
        assert readers.hand_over(reader, brought) is None
        handed = readers.hand_over(reader, replace(brought, placed=7))
    assert handed is not None
    assert handed.first_id == 2


def test_what_a_loop_has_fetched_is_handed_to_nobody_behind_a_move(client: Client) -> None:
    operations = client._session.operations
    readers, reader = operations.readers, Reader(this_thread(), "t", "auto", is_loop=True)
    with readers.reading(reader):
        operations._place("t", 1, 7)
        readers.fetched(reader, Delivery("t", 1, (b"a", b"b", b"c")))
        assert readers.next_message(reader) is None
        readers.fetched(reader, Delivery("t", 1, (b"a", b"b", b"c"), placed=7))
        message = readers.next_message(reader)
    assert message is not None
    assert message.id == 2


def test_a_loop_fetches_anew_behind_a_recovery(client: Client, node: FakeNode) -> None:
    messages = client.messages("t", idle=0)
    assert next(messages).id == 1
    before = len(node.of_type(protocol.GET))
    client._session.operations.readers.fetch_anew()
    assert next(messages).id == 2
    assert len(node.of_type(protocol.GET)) == before + 1


def test_what_ack_can_be_is_said(client: Client) -> None:
    for call in (client.get, client.messages, AsyncClient("127.0.0.1:1").get):
        with pytest.raises(ValueError, match="auto, manual, at-most-once"):
            call("t", ack="none")  # type: ignore[arg-type]
    assert ACKS == ("auto", "manual", "at-most-once")


# --- acknowledging by name ----------------------------------------------------------------------


def test_what_was_not_handed_over_cannot_be_acknowledged(client: Client) -> None:
    for last_id in (1, 10**6):
        with pytest.raises(NotDelivered):
            client.acknowledge("t", last_id)
    with pytest.raises(NotSubscribed):
        client.acknowledge("elsewhere", 1)
    messages = client.messages("t", ack="manual")
    assert next(messages).id == 1
    with pytest.raises(NotDelivered, match="1 was the last"):
        client.acknowledge("t", 2)
    client.acknowledge("t", 1)
    client.acknowledge("t", 0)
    messages.close()
    assert [id_ for id_, _ in ids(client)] == [2, 3]


def test_a_restarted_program_may_acknowledge_what_the_one_before_was_handed(
    node: FakeNode, tmp_path: Path
) -> None:
    with client_of(node, tmp_path) as client:
        client.subscribe("t")
        client.publish_many("t", ["a", "b", "c"])
        client.get("t", max_count=2, ack="manual")
    with client_of(node, tmp_path) as client:
        with pytest.raises(NotDelivered):
            client.acknowledge("t", 3)
        client.acknowledge("t", 2)
        assert texts_of(client, "t") == [b"c"]


def test_a_directory_of_before_hand_overs_were_stored_opens(tmp_path: Path) -> None:
    state = State(tmp_path)
    state.raise_cursor("t", 7)
    state._database.execute("DROP TABLE handed")
    state.close()
    state = State(tmp_path)
    assert (state.cursor("t"), state.handed("t")) == (7, 7)
    state.hand_over("t", 9)
    state.close()
    state = State(tmp_path)
    assert (state.cursor("t"), state.handed("t")) == (7, 9)
    state.drop_cursor("t")
    assert state.handed("t") == 0
    state.close()


# --- what is purged -----------------------------------------------------------------------------


def purge(node: FakeNode, last_id: int, first_id: int = 1) -> None:
    """Let the next GET be told that ids are purged."""
    node.script(protocol.GET, nak("purged", topic="t", first_id=first_id, last_id=last_id))


@pytest.mark.parametrize("topic", ["t", None])
def test_who_has_not_read_what_is_purged_is_told_once_and_goes_on_behind_it(
    client: Client, node: FakeNode, topic: str | None
) -> None:
    purge(node, 2)
    with pytest.raises(Purged) as e:
        client.get(topic)
    gone = {name: e.value.details[name] for name in ("topic", "first_id", "last_id")}
    assert gone == {"topic": "t", "first_id": 1, "last_id": 2}
    assert texts_of(client, topic) == [b"c"]


def test_who_dies_before_it_goes_on_behind_a_purge_is_told_again(
    node: FakeNode, tmp_path: Path
) -> None:
    with client_of(node, tmp_path / "own") as client:
        client.subscribe("t")
        client.publish_many("t", ["a", "b", "c"])
        purge(node, 2)
        with pytest.raises(Purged):
            client.get("t")
        shutil.copytree(tmp_path / "own", tmp_path / "died")
    with client_of(node, tmp_path / "died") as client:
        assert client._session.state.cursor("t") == 0
        purge(node, 2)
        with pytest.raises(Purged):
            client.get("t")
        assert texts_of(client, "t") == [b"c"]


def test_a_purge_of_what_a_subscriber_has_is_none_to_it(client: Client, node: FakeNode) -> None:
    client.get("t", max_count=2)
    purge(node, 2)  # the broker did not know yet: it is told with the next question
    assert client.get("t") is None
    assert texts_of(client, "t") == [b"c"]
    client.publish("t", "d")
    purge(node, 4)
    with pytest.raises(Purged) as e:
        client.get("t")
    assert (e.value.details["first_id"], e.value.details["last_id"]) == (4, 4)


def test_what_is_in_hand_when_it_is_purged_may_be_acknowledged(
    client: Client, node: FakeNode
) -> None:
    client.get("t", max_count=2, ack="manual")
    purge(node, 1)
    with pytest.raises(Purged):
        client.get("t", ack="manual")
    again = client.get("t", max_count=2, ack="manual")
    assert again is not None
    assert (again.publications, again.redelivered_count) == ((b"b", b"c"), 1)
    for last_id in (1, 2):
        client.acknowledge("t", last_id)
    assert client._session.state.cursor("t") == 2


def test_what_is_gone_is_in_nobodys_hand(client: Client) -> None:
    client.get("t", max_count=2, ack="manual")
    client._readers.pass_over("t", 2)
    assert in_thread(lambda: texts_of(client, "t")) == [b"c"]


def test_a_loop_ends_with_what_is_purged_and_the_next_one_goes_on(
    client: Client, node: FakeNode
) -> None:
    purge(node, 2)
    with pytest.raises(Purged):
        next(client.messages("t"))
    assert ids(client) == [(3, False)]


# --- what has expired ---------------------------------------------------------------------------


def expire(node: FakeNode, kind: str, first_id: int, last_id: int) -> None:
    """Let the next request of a type be told that ids have expired."""
    node.script(kind, nak("expired", topic="t", first_id=first_id, last_id=last_id))


@pytest.mark.parametrize("topic", ["t", None])
def test_who_reads_goes_on_behind_what_has_expired_and_is_told_nothing(
    client: Client, node: FakeNode, topic: str | None
) -> None:
    expire(node, protocol.GET, 1, 1)
    expire(node, protocol.GET, 2, 2)
    assert texts_of(client, topic) == [b"c"]
    assert client._session.state.cursor("t") == 3


def test_what_has_expired_in_more_runs_than_one_get_passes_is_passed_by_the_next(
    client: Client, node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operations, "EXPIRED_RUNS_MAX", 2)
    expire(node, protocol.GET, 1, 1)
    expire(node, protocol.GET, 2, 2)
    assert client.get("t") is None
    assert texts_of(client, "t") == [b"c"]


def test_a_read_begins_behind_what_has_expired(client: Client, node: FakeNode) -> None:
    expire(node, protocol.READ, 1, 2)
    delivery = client.read("t", 1)
    assert delivery is not None
    assert (delivery.first_id, delivery.publications) == (3, (b"c",))


def test_who_can_take_one_run_asks_for_one(client: Client, node: FakeNode) -> None:
    client.read("t", 1)
    client.read_runs("t", 1)
    assert [each.body.get("runs") for each in node.of_type(protocol.READ)] == [False, True]


def test_a_read_of_too_many_runs_says_where_it_goes_on(
    client: Client, node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operations, "EXPIRED_RUNS_MAX", 2)
    expire(node, protocol.READ, 1, 1)
    expire(node, protocol.READ, 2, 2)
    with pytest.raises(Expired) as e:
        client.read("t", 1)
    assert (e.value.details["last_id"], e.value.definite) == (2, True)
    assert client.read("t", 3) is not None


# --- one reader at a time -----------------------------------------------------------------------


@pytest.mark.parametrize("ack", ACKS)
def test_four_threads_in_messages_of_one_client_are_handed_each_id_once(
    node: FakeNode, ack: Any
) -> None:
    with client_of(node) as client:
        client.subscribe("t")
        client.publish_many("t", [str(number) for number in range(200)])
        handed: list[int] = []
        refused: list[AlreadyReading] = []
        begin = threading.Barrier(4)

        def read() -> None:
            begin.wait(WAIT_S)
            try:
                for message in client.messages("t", ack, idle=0):
                    handed.append(message.id)
                    if ack == "manual":
                        client.acknowledge("t", message.id)
            except AlreadyReading as error:
                refused.append(error)

        with ThreadPoolExecutor(4) as pool:
            for thread in [pool.submit(read) for _ in range(4)]:
                thread.result(WAIT_S)
        assert sorted(handed) == list(range(1, 201))
        assert refused == [] or "one reader at a time" in str(refused[0])


@pytest.mark.parametrize("first", ["t", None])
@pytest.mark.parametrize("second", ["t", None])
def test_who_reads_beside_a_loop_is_refused_until_it_is_left(
    client: Client, first: str | None, second: str | None
) -> None:
    messages = client.messages(first)
    assert next(messages).id == 1
    for refused in (
        lambda: client.get(second),
        lambda: client.get(second, ack="at-most-once"),
        lambda: next(client.messages(second)),
        lambda: in_thread(lambda: client.get(second)),
        lambda: in_thread(lambda: next(messages)),
    ):
        with pytest.raises(AlreadyReading, match="thread MainThread"):
            refused()
    assert next(messages).id == 2
    messages.close()
    assert in_thread(lambda: ids(client)) == [(2, True), (3, False)]


def test_topics_are_read_beside_each_other(client: Client) -> None:
    client.subscribe("u")
    client.publish("u", "x")
    assert next(client.messages("t")).id == 1
    messages = client.messages("t")
    assert next(messages).id == 1
    assert in_thread(lambda: client.get("u")) is not None


@pytest.mark.parametrize("ack", ["auto", "manual"])
def test_what_a_thread_has_in_hand_no_other_one_is_given(client: Client, ack: Any) -> None:
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(client.get, "t", ack=ack).result(WAIT_S) is not None
        for scope in ("t", None):
            with pytest.raises(AlreadyReading, match="up to id 1 in hand"):
                client.get(scope)
        client.acknowledge("t", 1)
        assert texts_of(client, "t") == [b"b", b"c"]


def test_what_an_ended_thread_had_in_hand_comes_again(client: Client) -> None:
    assert in_thread(lambda: client.get("t", max_count=2)) is not None
    assert ids(client) == [(1, True), (2, True), (3, False)]


def test_all_that_a_manual_loop_has_in_hand_is_released(node: FakeNode) -> None:
    observer = Noting()
    with client_of(node, observer=observer) as client:
        client.subscribe("t")
        client.publish_many("t", ["a", "b", "c"])
        messages = client.messages("t", ack="manual")
        assert [next(messages).id, next(messages).id] == [1, 2]
        messages.close()
        assert client.get("t", ack="manual") is not None
    released = [one for one in observer.handlings if one.f == "release"]
    assert [(one.first_id, one.last_id) for one in released] == [(1, 2)]


def test_at_most_once_gets_of_many_threads_have_nothing_in_common(client: Client) -> None:
    with ThreadPoolExecutor(1) as pool:
        delivery = pool.submit(client.get, "t", ack="at-most-once").result(WAIT_S)
        assert delivery is not None
        assert delivery.last_id == 1
        assert texts_of(client, "t") == [b"b", b"c"]


def test_a_loop_that_only_the_collector_ends_is_ended(client: Client) -> None:
    ring: list[Any] = [client.messages("t")]
    ring.append(ring)
    assert next(ring[0]).id == 1
    with pytest.raises(AlreadyReading):
        client.get("t")
    del ring
    gc.collect()
    assert ids(client) == [(1, True), (2, False), (3, False)]


# --- the same for asyncio -----------------------------------------------------------------------


def test_four_tasks_in_messages_of_one_client_are_handed_each_id_once(
    node: FakeNode, tmp_path: Path
) -> None:
    async def work() -> None:
        async with AsyncClient(node.endpoint, state_dir=tmp_path) as client:
            await client.subscribe("t")
            await client.publish_many("t", [str(number) for number in range(200)])
            handed: list[int] = []

            async def read() -> None:
                async for message in client.messages("t", idle=0):
                    handed.append(message.id)
                    await asyncio.sleep(0)

            results = await asyncio.gather(*(read() for _ in range(4)), return_exceptions=True)
            assert [type(one) for one in results if one] == [AlreadyReading] * 3
            assert handed == list(range(1, 201))

    asyncio.run(work())


def test_a_task_acknowledges_as_a_thread_does(node: FakeNode, tmp_path: Path) -> None:
    async def ids_of(client: AsyncClient) -> list[tuple[int, bool]]:
        return [(one.id, one.redelivered) async for one in client.messages("t", idle=0)]

    async def work() -> None:
        async with AsyncClient(node.endpoint, state_dir=tmp_path) as client:
            await client.subscribe("t")
            await client.publish_many("t", list("abcdef"))
            async for message in client.messages("t"):
                if message.id == 2:
                    break
            assert await asyncio.wait_for(client.get("t"), WAIT_S) is not None
            delivery = await asyncio.wait_for(client.get("t"), WAIT_S)  # of the same task
            assert delivery is not None
            assert (delivery.first_id, delivery.redelivered_count) == (3, 0)
            with pytest.raises(AlreadyReading, match="task"):
                await asyncio.create_task(_get_of(client))
            async with client.messages("t") as messages:
                assert (await anext(messages)).id == 4
            messages = client.messages("t")
            assert (await anext(messages)).id == 5
            with pytest.raises(AlreadyReading):
                await asyncio.create_task(_next_of(messages))
            await messages.aclose()
            assert await ids_of(client) == [(5, True), (6, False)]
            with pytest.raises(NotDelivered):
                client.acknowledge("t", 7)

    async def _get_of(client: AsyncClient) -> object:
        return await client.get("t")

    async def _next_of(messages: Any) -> object:
        return await anext(messages)

    asyncio.run(work())


def test_an_asynchronous_loop_has_ended_though_the_disk_refuses_its_last_acknowledgment(
    node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def read(messages: Any) -> None:
        async with messages:
            assert (await anext(messages)).id == 1
            monkeypatch.setattr(State, "raise_cursor", _no_disk)

    async def work() -> None:
        async with AsyncClient(node.endpoint, state_dir=node.new_directory()) as client:
            await client.subscribe("t")
            await client.publish_many("t", ["a", "b"])
            messages = client.messages("t")
            with pytest.raises(StateUnusable):
                await read(messages)
            monkeypatch.undo()
            again = [one.id async for one in client.messages("t", idle=0)]
            assert again == [1, 2]
            assert [one async for one in messages] == []

    asyncio.run(work())


def test_an_asynchronous_loop_that_another_task_closes_ends_where_it_waits(node: FakeNode) -> None:
    async def read(messages: Any) -> list[Any]:
        return [message async for message in messages]

    async def work() -> None:
        async with AsyncClient(node.endpoint, state_dir=node.new_directory()) as client:
            await client.subscribe("t")
            messages = client.messages("t")
            waiting = asyncio.create_task(read(messages))
            await asyncio.to_thread(node.await_requests, protocol.GET, 1)
            await messages.close()
            await client.publish("t", "a")
            assert await asyncio.wait_for(waiting, 10) == []

    asyncio.run(work())


def test_an_asynchronous_client_is_closed_as_the_other(node: FakeNode, tmp_path: Path) -> None:
    async def read(raised: bool) -> list[tuple[int, bool]]:
        async with AsyncClient(node.endpoint, state_dir=tmp_path) as client:
            found = [(one.id, one.redelivered) for one in await client.get("t") or ()]
            if raised:
                raise ZeroDivisionError(found)
            return found

    with client_of(node, tmp_path) as client:
        client.subscribe("t")
        client.publish_many("t", ["a", "b"])
    assert asyncio.run(read(raised=False)) == [(1, False)]
    with pytest.raises(ZeroDivisionError):
        asyncio.run(read(raised=True))
    assert asyncio.run(read(raised=False)) == [(2, True)]


# --- killed at any moment -----------------------------------------------------------------------

READER: Final = """
import sys
from flotilla_client import Client

endpoint, state, ack = sys.argv[1:]
with Client(endpoint, state) as client:
    for message in client.messages("t", ack):
        print(message.id, message.redelivered, flush=True)
        if ack == "manual":
            client.acknowledge("t", message.id)
        print("done", message.id, flush=True)
"""
PUBLICATIONS: Final = 400


def killed_reader(node: FakeNode, state: Path, ack: str, after: int) -> list[str]:
    """Return what a reader has written to a pipe until it was killed, which the kernel keeps."""
    with subprocess.Popen(
        [sys.executable, "-c", READER, node.endpoint, str(state), ack],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(after)]
        process.send_signal(signal.SIGKILL)
        return [line for line in [*lines, *process.stdout] if line.endswith("\n")]


# Each kill is a Python of its own: 0.3 s, and more on a busy machine.
@pytest.mark.parametrize(("ack", "kills"), [("auto", 10), ("manual", 3), ("at-most-once", 3)])
def test_a_reader_killed_at_random_moments_loses_nothing_and_says_what_comes_again(
    node: FakeNode, tmp_path: Path, ack: Any, kills: int
) -> None:
    seed = random.randrange(2**32)
    rng = random.Random(seed)
    with client_of(node, tmp_path) as client:
        client.subscribe("t")
        client.publish_many("t", [str(number) for number in range(PUBLICATIONS)])
    lines: list[str] = []
    for _ in range(kills):
        after = rng.randint(1, PUBLICATIONS // kills)
        lines += killed_reader(node, tmp_path, ack, after)
    with client_of(node, tmp_path) as client:
        rest = ids(client)
    rows = [line.split() for line in lines]
    begun = [(int(row[0]), row[1] == "True") for row in rows if row[0] != "done"] + rest
    done = {int(row[1]) for row in rows if row[0] == "done"} | {id_ for id_, _ in rest}
    if ack == "manual":  # it acknowledges before it says so
        done |= {id_ for id_, _ in begun}
    lost = set(range(1, PUBLICATIONS + 1)) - done
    assert len(lost) <= (kills if ack == "at-most-once" else 0), f"seed {seed}: {lost}"
    assert dict(begun).keys() | lost == set(range(1, PUBLICATIONS + 1)), f"seed {seed}"
    seen: set[int] = set()
    unseen = 0
    for id_, redelivered in begun:
        assert id_ not in seen or ack != "at-most-once", f"seed {seed}: {id_} again"
        assert id_ not in seen or redelivered, f"seed {seed}: {id_} again, unsaid"
        unseen += redelivered and id_ not in seen
        seen.add(id_)
    assert unseen <= kills, f"seed {seed}: killed between the mark and the first line"


def test_what_was_in_hand_acknowledges_nothing_of_a_subscription_that_has_ended(
    client: Client,
) -> None:
    assert client.get("t", idle=0) is not None
    client.unsubscribe("t")
    client.subscribe("t")
    client.publish("t", "d")
    readers = client._session.operations.readers
    assert readers._hands == {}
    readers.come_back(this_thread(), None)
    assert client._session.state.cursor("t") == 3
