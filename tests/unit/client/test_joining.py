"""What several callers publish through one client goes out together, and each hears of its own."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from flotilla_client import (
    AsyncClient,
    BacklogFull,
    BadRequest,
    Busy,
    Client,
    Closed,
    FlotillaError,
    OutboxFull,
    Publication,
    PutResult,
    Recovered,
    StateUnusable,
    TooLarge,
    TopicInUse,
    Unavailable,
    UnknownClient,
    connection,
    protocol,
)
from flotilla_client.joining import NEVER_MS, Call, Joined, _BatchUnderWay, _Line
from flotilla_client.observer import Operation, Outcome, Silent
from flotilla_client.operations import Ask
from flotilla_client.protocol import (
    ACK,
    GET,
    NAK,
    PUBLICATION_BYTES_MAX,
    PUT,
    REQUEST_ID,
    TOPICS,
    Reply,
    Request,
    decode_request,
    pack,
    text_of,
    unpack,
)
from flotilla_client.retry import NO_ANSWER_YET
from flotilla_client.state import Entry, State
from tests.unit.fake_node import TIMEOUT_S, FakeNode, client_of, impatient, nak

CALLERS = 5
PATIENCE_S = 20.0
SHORT_S = 0.2


class Caller:
    """A thread that publishes, and what it was told."""

    def __init__(
        self, client: Client, topic: str, *texts: str, timeout: float | None = None
    ) -> None:
        self.results: list[PutResult] = []
        self.error: BaseException | None = None
        self._work = (client, topic, texts, timeout)
        self._thread = threading.Thread(target=self._put)
        before = len(client._parts.here().turns)
        self._thread.start()
        while self._thread.is_alive() and len(client._parts.here().turns) <= before:
            time.sleep(0.001)

    def _put(self) -> None:
        client, topic, texts, timeout = self._work
        try:
            self.results = client.publish_many(topic, texts, timeout=timeout)
        except BaseException as error:  # noqa: BLE001, a thread's end would swallow it
            self.error = error

    def end(self) -> Caller:
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()
        return self

    @property
    def is_waiting(self) -> bool:
        return self._thread.is_alive()

    @property
    def ids(self) -> list[int]:
        assert self.error is None, self.error
        return [result.id for result in self.results]


@contextmanager
def under_way(node: FakeNode, client: Client, topic: str = "t") -> Iterator[Caller]:
    """Have a caller's request under way until the block ends; it is the `first` of its topic."""
    count = len(node.of_type(PUT))
    with node.cluster.lock:
        first = Caller(client, topic, "first")
        node.await_requests(PUT, count + 1)
        yield first
    first.end()


def sizes(node: FakeNode) -> list[int]:
    return [request.body["count"] for request in node.of_type(PUT)]


# --- the machine ----------------------------------------------------------------------------------


class SlowWire:
    """Has a connection from the moment that it is told so. `sent`: the requests that went out."""

    cause = "no connection"
    is_connected: bool | None = None

    def __init__(self) -> None:
        self.sent: list[Request] = []

    def send(self, endpoint: int, frames: Sequence[bytes], timeout_ms: float) -> bool | None:
        if self.is_connected:
            self.sent.append(decode_request(list(frames)))
        return self.is_connected

    def close(self, endpoint: int) -> None:
        """Nothing is open."""


def test_a_connection_that_comes_late_makes_no_deadline_later(node: FakeNode) -> None:
    with client_of(node) as client:
        client.subscribe("t")
        session, wire, clock = client._session, SlowWire(), [0.0]
        joined = session.joined(wire, lambda error, then: then(error), lambda: clock[0])
        call = session.put("t", ["x"], 300.0, lambda: None)
        joined.add(call)
        joined.turn()
        clock[0] = 299.0
        wire.is_connected = True
        assert joined.turn() == 300.0
        clock[0] = 300.0
        joined.turn()
        assert isinstance(call.error, Unavailable)
        assert not joined.is_work


def test_who_waits_for_what_was_published_before_waits_for_its_answer(node: FakeNode) -> None:
    with client_of(node) as client:
        client.subscribe("t")
        session, wire = client._session, SlowWire()
        wire.is_connected = True
        joined = session.joined(wire, lambda error, then: then(error), lambda: 0.0)
        published = session.put("t", ["x"], 300.0, lambda: None)
        flushed = Call("t", (), 300.0, lambda: None)
        joined.add(published)
        joined.add(flushed)
        joined.turn()
        assert (published.is_stored, published.is_over, flushed.is_over) == (True, False, False)


def test_who_is_answered_while_the_disk_is_full_is_not_told_that_nothing_is_stored(
    node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: Entry) -> None:
        raise StateUnusable("the disk is full")

    with client_of(node) as client:
        client.subscribe("t")
        with monkeypatch.context() as patches:
            patches.setattr(client._session.state, "acknowledged", fail)
            with pytest.raises(StateUnusable) as caught:
                client.publish("t", "x")
        assert (caught.value.definite, caught.value.details["stored"]) == (False, 1)
        client.flush()
    assert node.cluster.topics["t"] == [b"x"]


def test_who_has_as_much_time_as_the_opening_hears_why_that_failed(node: FakeNode) -> None:
    with client_of(node) as client:
        session, clock = client._session, [0.0]
        joined = session.joined(SlowWire(), lambda error, then: then(error), lambda: clock[0])
        calls = {}
        for topic, end_ms in (("long", 300.0), ("short", 200.0)):
            calls[topic] = session.put(topic, ["x"], end_ms, lambda: None)
            joined.add(calls[topic])
            if topic == "long":
                assert joined.turn() is None
                opening_end_ms = joined.opening_end_ms()
        opening = session.exchange(Ask(Request(REQUEST_ID, "", "", "", None, {})), 300.0)
        opening.started(clock[0])
        opening.unsent(clock[0], "on holiday")
        clock[0] = 250.0
        joined.end_late(opening_end_ms)
        assert [call.is_over for call in calls.values()] == [False, True]
        clock[0] = 300.0
        joined.end_late(opening_end_ms)
        assert not calls["long"].is_over
        joined.not_opened(Unavailable("that is why", details={"causes": {node.endpoint: "this"}}))
        for topic, causes in (("long", "this"), ("short", "on holiday")):
            with pytest.raises(Unavailable) as caught:
                calls[topic].results()
            assert caught.value.details["causes"] == {node.endpoint: causes}
            assert caught.value.details["kept"] == 1
        assert not joined.is_work


def _taken_out_and_interrupted(state: State) -> Callable[[Entry], int]:
    """Return what takes an entry out of the outbox, behind which ctrl-C comes."""
    before = state.remove

    def interrupted(entry: Entry) -> int:
        before(entry)
        raise KeyboardInterrupt

    return interrupted


def test_who_is_broken_off_behind_a_refusal_has_nobody_take_another_s_answer_for_his_own(
    node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    with client_of(node) as client:
        client.subscribe("t")
        session, wire, clock = client._session, SlowWire(), [0.0]
        wire.is_connected = True
        joined = session.joined(wire, lambda error, then: then(error), lambda: clock[0])
        a, b, kept = (
            session.put("t", [text], end_ms, lambda: None)
            for text, end_ms in (("a", 900.0), ("b", 900.0), ("kept", 100.0))
        )
        joined.add(a)
        joined.add(b)
        joined.turn()
        joined.add(kept)
        clock[0] = 100.0
        joined.turn()
        assert isinstance(kept.error, Unavailable)
        with monkeypatch.context() as patch:
            patch.setattr(session.state, "remove", _taken_out_and_interrupted(session.state))
            refusal = Reply(NAK, wire.sent[-1].request_id, "n", "n", 1, {"error": "too_large"})
            with pytest.raises(KeyboardInterrupt):
                joined.replied(refusal)
        joined.restart([a, b])
        del wire.sent[:]
        stored = list[bytes]()
        while joined.is_work:
            joined.turn()
            [request] = wire.sent[-1:]
            acknowledged = {"id": len(stored) + 1}
            stored += map(text_of, unpack(request.lengths, request.data))
            joined.replied(Reply(ACK, request.request_id, "n", "n", 1, acknowledged))
        assert stored == [b"kept", b"a", b"b"]
        assert [a.results()[0].id, b.results()[0].id] == [2, 3]


def test_who_is_broken_off_as_all_of_a_refused_call_is_taken_out_leaves_it_an_error(
    node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    with client_of(node) as client:
        client.subscribe("t")
        session, wire = client._session, SlowWire()
        wire.is_connected = True
        joined = session.joined(wire, lambda error, then: then(error), lambda: 0.0)
        call = session.put("t", [b"x" * 700_000] * 2, 900.0, lambda: None)
        assert len(call.pieces) == 2
        joined.add(call)
        joined.turn()
        with monkeypatch.context() as patch:
            patch.setattr(session.state, "remove", _taken_out_and_interrupted(session.state))
            refusal = Reply(NAK, wire.sent[-1].request_id, "n", "n", 1, {"error": "too_large"})
            with pytest.raises(KeyboardInterrupt):
                joined.replied(refusal)
        joined.restart([call])
        assert isinstance(call.error, TooLarge)
        assert not call.error.definite


def test_nothing_is_due_while_the_words_of_an_error_are_looked_for(node: FakeNode) -> None:
    with client_of(node) as client:
        client.subscribe("t")
        session, wire, clock = client._session, SlowWire(), [0.0]
        explained: list[Callable[[], None]] = []

        def explain(error: FlotillaError, then: Callable[[FlotillaError], None]) -> None:
            explained.append(lambda: then(error))

        joined = session.joined(wire, explain, lambda: clock[0])
        call = session.put("t", ["x"], 300.0, lambda: None)
        joined.add(call)
        joined.turn()
        clock[0] = 300.0
        assert joined.turn() == NEVER_MS
        [told] = explained
        told()
        assert isinstance(call.error, Unavailable)


def test_no_reply_is_due_from_an_endpoint_that_another_topic_s_silence_has_closed(
    node: FakeNode,
) -> None:
    with client_of(node) as client:
        client.subscribe("a")
        session, wire, clock = client._session, SlowWire(), [0.0]
        wire.is_connected = True
        joined = session.joined(wire, lambda error, then: then(error), lambda: clock[0])
        for topic in ("a", "b", "a"):
            joined.add(session.put(topic, ["x"], 9_000.0, lambda: None))
            joined.turn()
        clock[0] = 500.0
        [first, _] = wire.sent
        joined.replied(Reply(ACK, first.request_id, "n", "n", 1, {"id": 1}))
        joined.turn()  # the second of "a" is sent behind that of "b", and waits longer
        assert joined.endpoints == {0}
        clock[0] = 1_000.0
        assert joined.turn() == 0.0
        assert joined.endpoints == set()


def test_who_waits_for_the_id_to_be_taken_up_anew_is_told_at_the_deadline(node: FakeNode) -> None:
    with client_of(node) as client:
        client.subscribe("t")
        session, wire, clock = client._session, SlowWire(), [0.0]
        wire.is_connected = True
        joined = session.joined(wire, lambda error, then: then(error), lambda: clock[0])
        calls = [session.put(topic, ["x"], 300.0, lambda: None) for topic in "ab"]
        for call in calls:
            joined.add(call)
        joined.turn()
        body = {"error": "recovered", "definite": True}
        joined.replied(Reply(NAK, wire.sent[0].request_id, "n", "n", 1, body))
        assert joined.turn() is None
        clock[0] = 300.0
        joined.not_opened(Unavailable("nobody answers", details={"attempts": 3}))
        for call in calls:
            with pytest.raises(Unavailable, match="nobody answers; it stays in the outbox"):
                call.results()
        assert not joined.is_work


@pytest.mark.parametrize("is_async", [False, True])
def test_a_cluster_that_is_silent_when_it_was_put_back_keeps_nobody_beyond_its_deadline(
    is_async: bool, node: FakeNode, tmp_path: Path
) -> None:
    async def publish() -> BaseException | None:
        async with AsyncClient(node.endpoint, state_dir=tmp_path) as client:
            await client.open()
            node.always(REQUEST_ID, "deaf")
            try:
                await asyncio.wait_for(client.publish("t", "x", timeout=1.0), PATIENCE_S)
            except FlotillaError as error:
                return error
        return None

    with client_of(node, tmp_path) as client:
        client.subscribe("t")
    node.script(PUT, nak("recovered"))
    if is_async:
        error = asyncio.run(publish())
    else:
        with Client(node.endpoint, state_dir=tmp_path) as client:
            client.open()
            node.always(REQUEST_ID, "deaf")
            error = Caller(client, "t", "x", timeout=1.0).end().error
    assert isinstance(error, Unavailable)
    assert error.details["kept"] == 1
    assert len(node.of_type(PUT)) == 1


def test_what_a_node_says_beside_the_opening_says_nothing_of_that(node: FakeNode) -> None:
    with client_of(node) as client:
        session = client._session
        opening = session.exchange(Ask(Request(REQUEST_ID, "", "", "", None, {})), 300.0)
        opening.started(0.0)
        opening.unsent(0.0, "on holiday")
        session.exchange(Ask(Request("STATUS", "", "", "", None, {}), endpoint=0), 300.0)
        assert session.late().details["causes"] == {node.endpoint: "on holiday"}
        client.subscribe("t")
        assert "causes" not in session.late().details, "it is open"


def test_a_thread_hears_why_what_waited_in_the_outbox_is_not_sent_yet(
    node: FakeNode, tmp_path: Path
) -> None:
    with client_of(node, tmp_path) as client:
        client.enqueue("t", ["left"])
    node.always(PUT, "deaf")
    with Client(node.endpoint, state_dir=tmp_path, timeout=5 * SHORT_S) as client:
        long = Caller(client, "u", "long")
        node.await_requests(PUT, 1)
        with pytest.raises(Unavailable) as caught:
            client.publish("u", "short", timeout=SHORT_S)
        assert caught.value.details["causes"].keys() == {node.endpoint}
        assert isinstance(long.end().error, Unavailable)
        assert client._session.operations.opening is None


# --- threads --------------------------------------------------------------------------------------


def test_what_is_called_while_a_request_is_under_way_goes_out_together(node: FakeNode) -> None:
    with client_of(node) as client:
        client.subscribe("t")
        with under_way(node, client) as first:
            callers = [Caller(client, "t", f"{number}") for number in range(CALLERS)]
        assert [first.ids, *[caller.end().ids for caller in callers]] == [
            [number] for number in range(1, CALLERS + 2)
        ]
        assert sizes(node) == [1, CALLERS]
        assert client._session.state.outbox() == []
    assert node.cluster.topics["t"] == [b"first", b"0", b"1", b"2", b"3", b"4"]


def test_each_of_several_gets_the_ids_of_its_own_publications(node: FakeNode) -> None:
    with client_of(node) as client:
        client.subscribe("t")
        with under_way(node, client):
            callers = [Caller(client, "t", *"ab"), Caller(client, "t"), Caller(client, "t", *"cde")]
        assert [caller.end().ids for caller in callers] == [[2], [], [4]]
        assert [result.count for caller in callers for result in caller.results] == [2, 3]


def test_topics_do_not_wait_for_each_other(node: FakeNode) -> None:
    with client_of(node) as client:
        client.subscribe("t")
        client.subscribe("u")
        node.cluster.full.add("full")
        with impatient(client, 4):
            full = Caller(client, "full", "x")
        node.await_requests(PUT, 1)
        for number in range(1, CALLERS):
            assert Caller(client, "t", "x").end().ids == [number]
            assert Caller(client, "u", "x").end().ids == [number]
        assert full.is_waiting
        full.end()
        assert isinstance(full.error, BacklogFull)
        assert full.error.definite


def test_a_topic_hears_at_once_that_another_one_found_its_connection_lost(
    node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = iter([True])
    with client_of(node, timeout=PATIENCE_S) as client:
        client.subscribe("t")
        client.subscribe("u")
        node.script(PUT, "deaf")
        first = Caller(client, "t", "x")
        node.await_requests(PUT, 1)
        monkeypatch.setattr(connection, "is_lost", lambda _: next(lost, False))
        second = Caller(client, "u", "y")
        node.await_requests(PUT, 3, timeout_s=1.5)  # an attempt lasts 2.5 s
        assert (first.end().ids, second.end().ids) == ([1], [1])


def test_what_is_stored_of_several_callers_and_topics_is_synced_once(
    node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[bool] = []
    commit = State._commit

    def counted(state: State, *statements: Any, durable: bool = True) -> None:
        synced.append(durable)
        commit(state, *statements, durable=durable)

    with client_of(node) as client:
        client.open()
        with under_way(node, client):
            callers = [Caller(client, topic, "x") for topic in "tuv" * 2]
            monkeypatch.setattr(State, "_commit", counted)
        for caller in callers:
            caller.end()
        assert synced.count(True) == 1
    assert len(node.of_type(PUT)) == 1 + 3


def test_one_that_is_refused_harms_no_other(node: FakeNode) -> None:
    node.cluster.refused = b"bad"
    with client_of(node) as client:
        client.subscribe("t")
        with under_way(node, client):
            texts = ["a", "b", "bad", "c", "d"]
            callers = [Caller(client, "t", text) for text in texts]
            with pytest.raises(TooLarge):
                client.publish("t", b"x" * (PUBLICATION_BYTES_MAX + 1))
            with pytest.raises(BadRequest):
                client.publish("", "x")
        bad = callers.pop(2).end()
        assert [caller.end().ids for caller in callers] == [[2], [3], [4], [5]]
        assert isinstance(bad.error, BadRequest)
        assert bad.error.definite
        assert client.next_counter("t") == 6
    assert node.cluster.topics["t"] == [b"first", b"a", b"b", b"c", b"d"]


def test_one_whose_deadline_ends_leaves_the_others_to_go_on(node: FakeNode) -> None:
    with client_of(node, timeout=9) as client:
        client.subscribe("t")
        with under_way(node, client):
            with impatient(client, 1):
                hasty = Caller(client, "t", "hasty")
            callers = [Caller(client, "t", f"{number}") for number in range(CALLERS)]
            node.script(PUT, "deaf")
        hasty.end()
        assert isinstance(hasty.error, Unavailable)
        assert (hasty.error.definite, hasty.error.details["kept"]) == (False, 1)
        assert [caller.end().ids for caller in callers] == [[3], [4], [5], [6], [7]]
    assert node.cluster.topics["t"] == [b"first", b"hasty", b"0", b"1", b"2", b"3", b"4"]


def test_all_whose_deadline_ends_find_their_publications_in_the_outbox(node: FakeNode) -> None:
    state = node.new_directory()
    with client_of(node, state) as client:
        client.subscribe("t")
    with client_of(node, state, timeout=0.7) as client:
        client.open()
        node.always(PUT, "deaf")
        callers = [Caller(client, "t", f"{number}") for number in range(CALLERS)]
        for caller in callers:
            assert isinstance(caller.end().error, Unavailable)
            assert caller.error.definite is False  # type: ignore[union-attr]
        kept = [entry.data for entry in client._session.state.outbox("t")]
        assert b"".join(kept) == b"01234"
        node.always(PUT, None)
    with client_of(node, state) as client:
        client.flush()
        assert client._session.state.outbox() == []
    assert node.cluster.topics["t"] == [b"0", b"1", b"2", b"3", b"4"]


def test_an_outbox_without_room_for_one_has_room_for_another(node: FakeNode) -> None:
    with client_of(node, outbox_bytes_max=40) as client:
        client.subscribe("t")
        with under_way(node, client):
            callers = [Caller(client, "t", text) for text in ("a", "b" * 60, "c")]
        assert callers[0].end().ids == [2]
        assert isinstance(callers[1].end().error, OutboxFull)
        assert callers[2].end().ids == [3]


def test_who_is_broken_off_while_it_works_for_all_harms_no_other(node: FakeNode) -> None:
    class Broken(Silent):
        count = 0

        def on_invoke(self, operation: Operation) -> None:
            self.count += operation.f == "put"
            if operation.f == "put" and self.count == 2:
                raise KeyboardInterrupt

    with client_of(node, observer=Broken()) as client:
        client.subscribe("t")
        with under_way(node, client):
            callers = [Caller(client, "t", f"{number}") for number in range(CALLERS)]
        assert isinstance(callers[0].end().error, KeyboardInterrupt)
        assert [caller.end().ids for caller in callers[1:]] == [[3], [4], [5], [6]]
        assert client._session.state.outbox() == []
    assert node.cluster.topics["t"] == [b"first", b"0", b"1", b"2", b"3", b"4"]


@pytest.mark.parametrize(
    ("method", "what", "turn"),
    [
        ("enqueue_all", "", 1),  # the first one's is stored by then
        ("acknowledged", "", 1),
        ("acknowledged", "", 2),
        ("_commit", "INSERT INTO outbox", 1),  # between its return and what is done behind it
        ("_commit", "DELETE FROM outbox", 1),
        ("_commit", "DELETE FROM outbox", 2),
    ],
)
def test_who_is_broken_off_around_a_commit_has_nothing_stored_twice(
    method: str, what: str, turn: int, node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = getattr(State, method)
    calls = 0

    def interrupted(state: State, *arguments: Any, **options: Any) -> Any:
        nonlocal calls
        result = before(state, *arguments, **options)
        if not what or arguments[0][0].startswith(what):
            calls += 1
            if calls == turn:
                raise KeyboardInterrupt
        return result

    with client_of(node) as client:
        client.subscribe("t")
        with under_way(node, client) as first:
            callers = [Caller(client, "t", f"{number}") for number in range(CALLERS)]
            monkeypatch.setattr(State, method, interrupted)
        ended = [first, *[caller.end() for caller in callers]]
        assert [isinstance(one.error, KeyboardInterrupt) for one in ended].count(True) == 1
        for number, one in enumerate(ended, 1):
            assert one.error or one.ids == [number]
        assert client._session.state.outbox() == []
    assert node.cluster.topics["t"] == [b"first", b"0", b"1", b"2", b"3", b"4"]


def test_an_observer_that_fails_ends_its_own_batch_alone(node: FakeNode) -> None:
    class Failing(Silent):
        def on_complete(self, operation: Operation, outcome: Outcome) -> None:
            if (operation.f, operation.topic) == ("put", "fails"):
                raise ZeroDivisionError

    with client_of(node, observer=Failing()) as client:
        client.subscribe("t")
        client.subscribe("fails")
        with under_way(node, client):
            callers = [Caller(client, topic, "x") for topic in ("t", "fails", "t")]
        assert isinstance(callers[1].end().error, ZeroDivisionError)
        assert [callers[0].end().ids, callers[2].end().ids] == [[2], [3]]


def test_closing_tells_all_who_publish(node: FakeNode) -> None:
    client = client_of(node)
    client.open()
    node.always(PUT, "deaf")
    callers = [Caller(client, "t", f"{number}") for number in range(3)]
    node.await_requests(PUT, 1)
    client.close()
    errors = [caller.end().error for caller in callers]
    assert isinstance(errors[0], Unavailable)
    for error in errors[1:]:
        assert isinstance(error, Unavailable | Closed)


def test_what_is_enqueued_between_two_calls_stands_between_them(node: FakeNode) -> None:
    with client_of(node) as client:
        client.subscribe("t")
        with under_way(node, client):
            before = len(client._parts.here().turns)
            one = Caller(client, "t", "one")
            enqueuing = threading.Thread(target=client.enqueue, args=("t", ["two"]))
            enqueuing.start()
            while len(client._parts.here().turns) < before + 2:
                time.sleep(0.001)
            three = Caller(client, "t", "three")
        assert [one.end().ids, three.end().ids] == [[2], [4]]
        enqueuing.join()
    assert node.cluster.topics["t"] == [b"first", b"one", b"two", b"three"]


def test_a_thread_with_less_time_than_another_takes_up_the_id_for_hears_from_whom_nothing_came(
    node: FakeNode,
) -> None:
    node.always("REQUEST_ID", "deaf")
    with client_of(node) as client:
        long = Caller(client, "long", "x", timeout=5 * SHORT_S)
        node.await_requests("REQUEST_ID", 1)
        short = Caller(client, "short", "x", timeout=SHORT_S).end()
        assert long.is_waiting
        for caller, cause in ((short, NO_ANSWER_YET), (long.end(), "no answer")):
            assert isinstance(caller.error, Unavailable)
            assert caller.error.details["causes"] == {node.endpoint: cause}
            assert caller.error.details["kept"] == 1


# --- tasks ----------------------------------------------------------------------------------------


def awaited(node: FakeNode, work: Callable[[AsyncClient], Coroutine[Any, Any, None]]) -> None:
    async def scenario() -> None:
        async with AsyncClient(node.endpoint, state_dir=node.new_directory(), timeout=9) as client:
            await client.subscribe("t")
            await work(client)

    asyncio.run(asyncio.wait_for(scenario(), PATIENCE_S))


def test_what_tasks_publish_at_once_goes_out_in_one_request(node: FakeNode) -> None:
    async def work(client: AsyncClient) -> None:
        await client.publish("t", "first")
        results = await asyncio.gather(*[client.publish("t", str(number)) for number in range(256)])
        assert [result.id for result in results] == list(range(2, 258))
        assert sizes(node) == [1, 256]

    awaited(node, work)
    assert node.cluster.topics["t"][1:] == [b"%d" % number for number in range(256)]


def test_a_cancelled_task_leaves_the_others_alone_and_is_told_what_is_known(
    node: FakeNode,
) -> None:
    async def work(client: AsyncClient) -> None:
        node.cluster.lock.acquire()
        try:
            tasks = [asyncio.create_task(client.publish("t", f"{number}")) for number in range(2)]
            await asyncio.to_thread(node.await_requests, PUT, 1)
            tasks += [
                asyncio.create_task(client.publish("t", f"{number}")) for number in range(2, 5)
            ]
            await asyncio.sleep(0)
            tasks[0].cancel()  # its request is under way
            tasks[3].cancel()  # waits for the next one
            await asyncio.wait([tasks[0], tasks[3]])
        finally:
            node.cluster.lock.release()
        notes = []
        for task in (tasks.pop(3), tasks.pop(0)):
            with pytest.raises(asyncio.CancelledError) as caught:
                await task
            notes += caught.value.__notes__
        assert "not begun" in notes[0]
        assert "may have happened" in notes[1]
        assert [result.id for result in await asyncio.gather(*tasks)] == [2, 3, 4]
        assert client._session.state.outbox() == []

    awaited(node, work)
    assert node.cluster.topics["t"] == [b"0", b"1", b"2", b"4"]


def test_what_is_refused_when_its_caller_was_cancelled_stays_in_the_outbox(
    node: FakeNode,
) -> None:
    async def work(client: AsyncClient) -> None:
        client._session.deadline_ms = 1_500  # a busy node answers in time
        node.cluster.full.add("t")
        task = asyncio.create_task(client.publish("t", "cancelled"))
        await asyncio.to_thread(node.await_requests, PUT, 1)
        task.cancel()
        await asyncio.wait([task])
        client._session.deadline_ms = 4_000  # so long after the first one's, however busy it is
        with pytest.raises(BacklogFull):
            await client.publish("t", "refused")
        node.cluster.full.clear()
        client._session.deadline_ms = 9_000
        assert (await client.publish("t", "next")).id == 2

    awaited(node, work)
    assert node.cluster.topics["t"] == [b"cancelled", b"next"]


def test_what_is_refused_behind_the_deadline_of_one_stays_in_the_outbox_for_all(
    node: FakeNode,
) -> None:
    with client_of(node) as client:
        client.subscribe("t")
        with under_way(node, client):
            with impatient(client, 0.9):
                hasty = Caller(client, "t", "hasty")
            with impatient(client, 2):
                patient = Caller(client, "t", "patient")
            node.always(PUT, nak("disk_full"))
        for caller in (hasty, patient):
            assert isinstance(caller.end().error, FlotillaError)
            assert caller.error.details["kept"] == 1  # type: ignore[union-attr]
            assert not caller.error.definite  # type: ignore[union-attr]
        node.always(PUT, None)
        client.flush()
    assert node.cluster.topics["t"] == [b"first", b"hasty", b"patient"]


def test_who_is_refused_while_the_disk_fails_is_told_that_and_publishes_it_with_the_next(
    node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(entry: object) -> int:
        raise StateUnusable("disk I/O error")

    with client_of(node) as client:
        client.subscribe("t")
        node.always(PUT, nak("too_large"))
        with monkeypatch.context() as patch:
            patch.setattr(client._session.state, "remove", failing)
            refused = Caller(client, "t", "refused").end()
        assert isinstance(refused.error, StateUnusable)
        assert refused.error.details["kept"] == 1
        node.always(PUT, None)
        assert client.publish("t", "next").id == 2
    assert node.cluster.topics["t"] == [b"refused", b"next"]


def test_tasks_that_get_and_put_do_not_wait_for_each_other(node: FakeNode) -> None:
    async def work(client: AsyncClient) -> None:
        await client.subscribe("u")
        gets = [asyncio.create_task(client.get(topic, idle=15)) for topic in "tu"]
        await asyncio.to_thread(node.await_requests, GET, 2)
        begun_s = time.monotonic()
        await client.publish("nobody's", "x", allow_unheard=True)
        await client.topics()
        assert time.monotonic() - begun_s < 10.0
        await asyncio.gather(client.publish("u", "of u"), client.publish("t", "of t"))
        deliveries = await asyncio.gather(*gets)
        assert [d.publications for d in deliveries if d] == [(b"of t",), (b"of u",)]

    awaited(node, work)


@pytest.mark.parametrize("delay", [None, 60])
def test_what_a_task_enqueues_stands_behind_what_was_put_before(
    node: FakeNode, delay: int | None
) -> None:
    async def work(client: AsyncClient) -> None:
        putting = asyncio.create_task(client.publish("t", "put", deliver_after=delay))
        await asyncio.sleep(0)
        await client.enqueue("t", [Publication("enqueued", deliver_after=delay)])
        await putting
        await client.flush()

    awaited(node, work)
    assert [text_of(each) for each in node.cluster.topics["t"]] == [b"put", b"enqueued"]


def test_calls_with_delays_are_joined_as_far_as_a_batch_may_have_them(
    node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protocol, "DELAYS_MAX", 2)

    async def work(client: AsyncClient) -> None:
        calls = (client.publish("t", str(number), deliver_after=60 + number) for number in range(9))
        await asyncio.gather(*calls)

    awaited(node, work)
    assert [text_of(each) for each in node.cluster.topics["t"]] == [b"%d" % n for n in range(9)]


def test_what_a_task_enqueues_stands_behind_what_waits_for_an_answer(node: FakeNode) -> None:
    async def work(client: AsyncClient) -> None:
        with node.cluster.lock:
            tasks = [asyncio.create_task(client.publish("t", "under way"))]
            await asyncio.to_thread(node.await_requests, PUT, 1)
            tasks += [asyncio.create_task(client.publish("t", "waits"))]
            await asyncio.sleep(0)
            enqueuing = asyncio.create_task(client.enqueue("t", ["enqueued"]))
            await asyncio.sleep(0)
        await asyncio.gather(*tasks, enqueuing)
        await client.flush()

    awaited(node, work)
    assert node.cluster.topics["t"] == [b"under way", b"waits", b"enqueued"]


def test_what_an_opening_sends_again_nobody_else_sends_meanwhile(
    node: FakeNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put, may_answer = node.cluster._put, threading.Event()

    def put_when_told(request: Request) -> tuple[dict[str, Any], bytes, bytes]:
        assert may_answer.wait(PATIENCE_S)
        return put(request)

    monkeypatch.setattr(node.cluster, "_put", put_when_told)
    with client_of(node) as subscriber:
        subscriber.subscribe("t")
    with client_of(node, tmp_path) as before:
        before.open()
        for text in ("refused", "kept"):
            before.enqueue("t", [text])
    node.cluster.refused = b"refused"
    results: list[PutResult] = []

    async def publish(client: AsyncClient) -> None:
        for text in ("a", "b"):
            results.append(await client.publish("t", text))

    async def run() -> None:
        async with AsyncClient(node.endpoint, state_dir=tmp_path) as client:
            opening = asyncio.create_task(client.topics())
            await asyncio.to_thread(node.await_requests, PUT, 1)
            publishing = asyncio.create_task(publish(client))
            await asyncio.sleep(SHORT_S)  # in which nothing is sent; or it is, and lies there
            may_answer.set()
            with pytest.raises(BadRequest):
                await opening
            await publishing

    asyncio.run(run())
    assert node.cluster.topics["t"] == [b"kept", b"a", b"b"]
    assert [result.id for result in results] == [2, 3]


def test_a_task_publishes_while_the_first_get_of_all_waits(node: FakeNode, tmp_path: Path) -> None:
    with client_of(node, tmp_path) as client:
        client.subscribe("t")

    async def run() -> None:
        async with AsyncClient(node.endpoint, state_dir=tmp_path, timeout=PATIENCE_S) as client:
            reading = asyncio.create_task(anext(client.messages("t")))
            await asyncio.sleep(0)
            await client.publish("t", "x", timeout=3.0)  # the GET may wait for 5 s
            assert (await reading).publication == b"x"

    asyncio.run(run())


def test_a_producer_begins_behind_what_a_task_has_published_before(
    node: FakeNode, tmp_path: Path
) -> None:
    with client_of(node) as subscriber:
        subscriber.subscribe("t")
    node.cluster.full.add("t")

    async def run() -> None:
        async with AsyncClient(node.endpoint, state_dir=tmp_path) as client:
            publishing = asyncio.create_task(client.publish("t", "refused", timeout=5 * SHORT_S))
            await asyncio.to_thread(node.await_requests, PUT, 1)
            async with await client.producer("t") as producer:
                sent = await producer.send("a")
                with pytest.raises(BacklogFull) as caught:
                    await publishing
                assert caught.value.definite
                node.cluster.full.clear()
                assert (await sent).id == 1
            assert (await client.publish("t", "b")).id == 2

    asyncio.run(run())
    assert node.cluster.topics["t"] == [b"a", b"b"]


def test_no_producer_begins_while_its_topic_is_published_to(node: FakeNode, tmp_path: Path) -> None:
    async def run() -> None:
        async with AsyncClient(node.endpoint, state_dir=tmp_path) as client:
            await client.open()
            node.script(PUT, "late")
            publishing = asyncio.create_task(client.publish("t", "x", allow_unheard=True))
            await asyncio.to_thread(node.await_requests, PUT, 1)
            with pytest.raises(TopicInUse, match="a producer begins behind that"):
                await client._run(client._session.producer("t", 0.0, 1, 1))
            await client.publish("u", "the next request", allow_unheard=True)
            await publishing

    asyncio.run(run())


def test_nobody_is_fenced_by_the_own_client_which_takes_up_its_id_anew(
    node: FakeNode, tmp_path: Path
) -> None:
    with client_of(node, tmp_path) as client:
        client.subscribe("t")

    async def run() -> None:
        async with AsyncClient(node.endpoint, state_dir=tmp_path, timeout=TIMEOUT_S) as client:
            await client.open()
            reading = asyncio.create_task(client.get("t", idle=SHORT_S))
            await asyncio.to_thread(node.await_requests, GET, 1)
            node.script(TOPICS, nak("recovered"))
            node.script(REQUEST_ID, "late")  # behind the answer to the GET, of the epoch of before
            await client.topics()
            assert await reading is None

    asyncio.run(run())


def test_a_batch_of_the_epoch_of_before_waits_for_the_new_one(node: FakeNode) -> None:
    with client_of(node) as client:
        client.subscribe("t")
        session, wire = client._session, SlowWire()
        wire.is_connected = True
        joined = session.joined(wire, lambda error, then: then(error), lambda: 0.0)
        call = session.put("t", ["x"], 300.0, lambda: None)
        joined.add(call)
        joined.turn()
        client._operations.reopen()
        body = {"error": "fenced", "definite": True}
        joined.replied(Reply(NAK, wire.sent[0].request_id, "n", "n", 1, body))
        assert joined.turn() is None
        client.open()
        joined.turn()
        [_, again] = wire.sent
        joined.replied(Reply(ACK, again.request_id, "n", "n", 1, {"id": 1}))
        assert call.results()[0].id == 1


def refused(client: Client, code: str, is_definite: bool) -> tuple[SlowWire, Joined, Call]:
    """Have a publication refused by what makes its client take up its id anew."""
    client.subscribe("t")
    session, wire = client._session, SlowWire()
    wire.is_connected = True
    joined = session.joined(wire, lambda error, then: then(error), lambda: 0.0)
    call = session.put("t", ["x"], 300.0, lambda: None)
    joined.add(call)
    joined.turn()
    body = {"error": code, "definite": is_definite}
    joined.replied(Reply(NAK, wire.sent[0].request_id, "n", "n", 1, body))
    assert joined.turn() is None
    return wire, joined, call


def test_a_batch_that_is_refused_as_recovered_behind_its_new_id_says_so(node: FakeNode) -> None:
    with client_of(node) as client:
        wire, joined, call = refused(client, "recovered", is_definite=True)
        client.open()
        joined.turn()
        body = {"error": "recovered", "definite": True}
        joined.replied(Reply(NAK, wire.sent[-1].request_id, "n", "n", 1, body))
        with pytest.raises(Recovered):
            call.results()


@pytest.mark.parametrize("is_definite", [True, False])
def test_what_was_refused_in_doubt_stays_so_when_the_id_is_refused_for_certain(
    node: FakeNode, is_definite: bool
) -> None:
    with client_of(node) as client:
        _, joined, call = refused(client, "counter_gap", is_definite)
        joined.not_opened(UnknownClient("nobody knows it", definite=True))
        with pytest.raises(UnknownClient) as told:
            call.results()
    assert told.value.definite == is_definite


def test_tasks_take_up_the_id_once(node: FakeNode) -> None:
    async def work() -> None:
        async with AsyncClient(node.endpoint) as client:
            first = [client.publish(f"t{n}", "x", allow_unheard=True) for n in range(9)]
            await asyncio.gather(*first)
            await asyncio.gather(*[client.topics() for _ in range(3)])

    asyncio.run(work())
    assert len(node.of_type("REQUEST_ID")) == 1


def test_a_task_behind_one_with_more_time_is_told_in_its_own(node: FakeNode) -> None:
    """One that is on its way is kept, one that waits behind others never was there."""

    async def work(client: AsyncClient) -> None:
        node.script(PUT, "deaf")
        sent = [
            asyncio.create_task(client.publish("t", "long")),
            asyncio.create_task(client.publish("t", "short", timeout=SHORT_S)),
        ]
        await asyncio.to_thread(node.await_requests, PUT, 1)
        waits = [
            asyncio.create_task(client.publish("t", "longer")),
            asyncio.create_task(client.publish("t", "shorter", timeout=SHORT_S)),
        ]
        with pytest.raises(Unavailable) as kept:
            await sent[1]
        assert kept.value.details["kept"] == 1
        with pytest.raises(Busy) as gone:
            await waits[1]
        assert gone.value.definite
        assert len(node.of_type(PUT)) == 1, "its attempt has 2.5 s"
        await asyncio.gather(sent[0], waits[0])

    awaited(node, work)
    assert node.cluster.topics["t"] == [b"long", b"short", b"longer"]


async def close_when_idle(client: AsyncClient) -> None:
    """Close a client that nobody has answered, once it says no more why: a busy machine is slow."""
    if tasks := [*client._parts.here()._tasks.values()]:
        await asyncio.wait(tasks)
    await client.close()


def test_the_first_deadline_is_of_who_has_least_time_and_waits() -> None:
    line = _Line("t")
    for end_ms in (300.0, 100.0, 200.0):
        call = Call("t", (), end_ms, lambda: None)
        line.note_time(call)
        line.waiting.append(call)
    assert line.first_end_ms() == 100.0
    line.waiting[1].leave()
    assert line.first_end_ms() == 200.0


@pytest.mark.parametrize("due", [{"t": Busy}, {"t": Busy, "u": Unavailable}])
def test_a_task_with_less_time_than_the_id_is_taken_up_for_is_told_in_its_own(
    due: dict[str, type[FlotillaError]],
) -> None:
    async def work() -> None:
        client = AsyncClient("127.0.0.1:1", timeout=15 * SHORT_S)
        long = asyncio.create_task(client.publish("t", "long"))
        await asyncio.sleep(SHORT_S / 4)  # it is under way
        short = [client.publish(topic, "short", timeout=SHORT_S) for topic in due]
        errors = await asyncio.gather(*short, return_exceptions=True)
        assert [type(error) for error in errors] == [*due.values()]
        assert not long.done()
        with pytest.raises(Unavailable):
            await long
        assert client._session._exchanges < 10
        await close_when_idle(client)

    asyncio.run(work())


def test_a_task_behind_another_of_its_topic_hears_why_the_id_is_not_taken_up_yet() -> None:
    async def work() -> None:
        client = AsyncClient("127.0.0.1:1", timeout=10 * SHORT_S)
        long = asyncio.create_task(client.publish("t", "long"))
        await asyncio.sleep(SHORT_S / 4)  # it is under way
        with pytest.raises(Busy) as error:
            await client.publish("t", "short", timeout=SHORT_S)
        assert error.value.details["causes"].keys() == {"127.0.0.1:1"}
        assert (error.value.definite, error.value.details["kept"]) == (True, 0)
        with pytest.raises(Unavailable):
            await long
        await close_when_idle(client)

    asyncio.run(work())


def test_a_task_whose_time_is_over_while_another_takes_up_the_id_hears_that_it_is_kept() -> None:
    async def work() -> None:
        client = AsyncClient("127.0.0.1:1", name="a", timeout=5 * SHORT_S)
        subscribing = asyncio.create_task(client.subscribe("t"))
        await asyncio.sleep(SHORT_S / 4)  # it has the turn
        with pytest.raises(Unavailable) as error:
            await client.publish("t", "a", timeout=SHORT_S)
        assert type(error.value) is Unavailable
        assert (error.value.definite, error.value.details["kept"]) == (False, 1)
        assert [entry.count for entry in client._session.state.outbox("t")] == [1]
        with pytest.raises(Unavailable):
            await subscribing
        await close_when_idle(client)

    asyncio.run(work())


@pytest.mark.parametrize("is_cancelled", [False, True])
def test_a_task_with_less_time_ends_no_attempt_to_reach_a_cluster(is_cancelled: bool) -> None:
    async def work() -> None:
        client = AsyncClient("127.0.0.1:1", timeout=5 * SHORT_S)
        long = asyncio.create_task(client.publish("t", "long"))
        short = asyncio.create_task(client.publish("t", "short", timeout=SHORT_S))
        if is_cancelled:
            await asyncio.sleep(0)  # both wait
            short.cancel()
        with pytest.raises(asyncio.CancelledError if is_cancelled else Busy):
            await short
        with pytest.raises(Unavailable):
            await long
        assert client._session._exchanges < 10, "it asks again only as the first time was over"
        await close_when_idle(client)

    asyncio.run(work())


def test_a_task_that_was_parted_from_one_with_more_time_is_told_in_its_own(node: FakeNode) -> None:
    node.cluster.refused = b"bad"

    async def work(client: AsyncClient) -> None:
        node.script(PUT, "", "", "deaf")  # all of them, the refused one, the one behind it
        bad, *long = [asyncio.create_task(client.publish("t", text)) for text in ("bad", "a", "b")]
        short = asyncio.create_task(client.publish("t", "c", timeout=5 * SHORT_S))
        long.append(asyncio.create_task(client.publish("t", "d")))
        for task, error in ((bad, BadRequest), (short, Busy)):
            with pytest.raises(error):
                await task
        assert not any(task.done() for task in long)
        await asyncio.gather(*long)

    awaited(node, work)
    assert node.cluster.topics["t"] == [b"a", b"b", b"d"], "c was told that nothing of it is sent"


def test_what_is_published_soon_behind_what_has_more_time_is_told_in_its_own(
    node: FakeNode,
) -> None:
    with client_of(node) as client:
        client.subscribe("t")
        node.script(PUT, "deaf")
        first = client.publish_soon("t", "first")
        node.await_requests(PUT, 1)
        long = client.publish_soon("t", "long")
        short = client.publish_soon("t", "short", timeout=SHORT_S)
        assert isinstance(short.exception(PATIENCE_S), Busy)
        assert not long.done()
        assert [first.result().id, long.result().id] == [1, 2]
    assert node.cluster.topics["t"] == [b"first", b"long"]


def test_an_awaited_error_is_of_its_own_caller(node: FakeNode) -> None:
    node.cluster.refused = b"bad"

    async def work(client: AsyncClient) -> None:
        texts = ["a", "bad", "b", "c"]
        results = await asyncio.gather(
            *[client.publish("t", text) for text in texts], return_exceptions=True
        )
        assert isinstance(results[1], BadRequest)
        assert [r.id for r in results if isinstance(r, PutResult)] == [1, 2, 3]

    awaited(node, work)
    assert node.cluster.topics["t"] == [b"a", b"b", b"c"]


def test_an_error_is_not_shared_between_callers(node: FakeNode) -> None:
    node.always(PUT, ("nak", "fenced", {}))

    async def work(client: AsyncClient) -> None:
        results = await asyncio.gather(
            *[client.publish("t", text) for text in "abc"], return_exceptions=True
        )
        assert all(isinstance(result, FlotillaError) for result in results)
        assert len({id(result) for result in results}) == 3

    awaited(node, work)


def test_who_goes_on_with_another_one_s_work_finds_each_publication_in_its_own_batch() -> None:
    line = _Line("t")
    lengths, data = pack([b"a"])
    line.stored.extend(_BatchUnderWay(Entry("t", counter, lengths, data)) for counter in (1, 2))
    call = Call("t", [(lengths, data)], 1_000.0, lambda: None)
    [piece] = call.pieces
    piece.counter = 2
    Joined._find(line, call, piece)
    assert [[each.counter for _, each in batch.owned] for batch in line.stored] == [[], [2]]


def test_who_is_parted_from_others_is_stored_no_more_before_its_next_turn(node: FakeNode) -> None:
    """Whoever goes on with it looks for it in the outbox, under the counter that it has."""
    with client_of(node) as client:
        client.subscribe("t")
        session = client._session
        joined = session.joined(SlowWire(), lambda error, then: then(error), lambda: 0.0)
        calls = [session.put("t", [text], 300.0, lambda: None) for text in "ab"]
        for call in calls:
            joined.add(call)
        joined.turn()
        line = joined._lines["t"]
        [batch] = line.stored
        assert [call.is_stored for call in calls] == [True, True]
        assert joined._take_out(line, batch, BacklogFull("full", "backlog_full", True))
        assert [call.is_stored for call in calls] == [False, False]
        assert [*line.waiting] == calls
        assert session.state.outbox("t") == []
