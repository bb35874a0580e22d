"""What a client of more topics than a GET can name tells the broker, and says that it has told."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest

from flotilla_client import operations as operations_module
from flotilla_client.client import Session
from flotilla_client.errors import (
    AlreadyAcknowledged,
    Compacted,
    Expired,
    FlotillaError,
    Gap,
    Moved,
    Purged,
    Unavailable,
)
from flotilla_client.observer import Operation, Outcome, Silent
from flotilla_client.operations import Ask, Operations, Steps, Turn
from flotilla_client.properties import Enveloped, Properties, encode
from flotilla_client.protocol import ACK, Reply, decode_reply, encode_reply, pack
from flotilla_client.retry import Done
from flotilla_client.state import State

ROOM_FOR_ONE = 8  # bytes


class NotesEnds(Silent):
    """Notes which operations there are, and how they end."""

    def __init__(self) -> None:
        self.begun: list[Operation] = []
        self.outcomes: list[Outcome] = []

    def on_invoke(self, operation: Operation) -> None:
        self.begun.append(operation)

    def on_complete(self, operation: Operation, outcome: Outcome) -> None:
        self.outcomes.append(outcome)


@pytest.fixture
def seen() -> NotesEnds:
    return NotesEnds()


@pytest.fixture
def operations(monkeypatch: pytest.MonkeyPatch, seen: NotesEnds) -> Iterator[Operations]:
    """A client that has read two topics up to 3; the broker may not have heard of it."""
    monkeypatch.setattr(operations_module, "LAST_IDS_BYTES_MAX", ROOM_FOR_ONE)
    state = State(None)
    operations = Operations(state, seen)
    state.resumed("c", 1, 0, {}, {"t": 3, "u": 3})
    operations._is_open = True
    yield operations
    state.close()


def ask(operations: Operations, answer: dict[str, Any] | FlotillaError) -> dict[str, int]:
    """Have a GET of any topic answered; return what it has told."""
    steps = operations.get(None, 0, 9)
    asked = next(steps)
    assert isinstance(asked, Ask)
    told: dict[str, int] = asked.request.body["last_ids"]
    lengths, data = pack([b"x"] * 9)
    try:
        if isinstance(answer, FlotillaError):
            steps.throw(answer)
        else:
            steps.send(Done(Reply(ACK, "r", "n", "n", 1, answer, lengths, data), 1))
    except (StopIteration, Purged):
        return told
    pytest.fail("the GET is asked again")


@pytest.mark.parametrize("kind", [Purged, Gap, Expired, Compacted])
def test_who_is_told_of_what_it_has_already_tells_that_next(
    operations: Operations, kind: type[FlotillaError]
) -> None:
    """It told the same topic for ever, was told the same, and was given nothing (seed 282)."""
    gone = {"topic": "u", "first_id": 1, "last_id": 3}
    assert ask(operations, kind("gone", details=gone)) == {"t": 3}
    assert ask(operations, {"count": 0}) == {"u": 3}


def tell_all(operations: Operations) -> None:
    for topic, cursor in operations.state.cursors().items():
        assert ask(operations, {"count": 0}) == {topic: cursor}


@pytest.mark.parametrize("kind", [Purged, Gap, Expired, Compacted])
def test_a_broker_that_tells_of_what_it_was_told_is_told_again(
    operations: Operations, kind: type[FlotillaError]
) -> None:
    tell_all(operations)
    gone = {"topic": "u", "first_id": 1, "last_id": 3}
    assert ask(operations, kind("gone", details=gone)) == {"t": 3}
    assert ask(operations, {"count": 0}) == {"u": 3}


def test_a_broker_that_brings_what_it_was_told_is_told_again(operations: Operations) -> None:
    operations.state.raise_cursor("u", 9)
    tell_all(operations)
    assert ask(operations, {"topic": "u", "id": 1, "count": 9}) == {"t": 3}
    assert ask(operations, {"count": 0}) == {"u": 9}


def taken_up(steps: Steps[Any], recovery: str, **body: Any) -> None:
    """Have an id taken up at a cluster that knows all of it but the acknowledgments."""
    asked = next(steps)
    while isinstance(asked, Turn):
        asked = next(steps)
    body |= {"client_id": "c", "epoch": 2, "recovery": recovery, "counters": {}}
    body |= {"subscriptions": {"t": 0, "u": 0}, "ends": {"t": 3, "u": 3}}
    with pytest.raises(StopIteration):
        steps.send(Done(Reply(ACK, "r", "n", "n", 1, body), 1))


def test_a_cluster_that_was_recovered_is_told_again_what_is_acknowledged(
    operations: Operations,
) -> None:
    """A client by a name says it as it is closed, and has no other memory."""
    operations.state.resumed("c", 1, 0, {}, {"t": 3, "u": 3}, recovery="before")
    tell_all(operations)
    assert list(operations.tell()) == []
    taken_up(operations._take_up(), "behind", settled={"t": 3, "u": 3})
    assert isinstance(next(operations.tell()), Ask)


def test_a_cluster_whose_data_were_put_back_is_told_again_by_who_adopts_that(
    operations: Operations,
) -> None:
    operations.state.resumed("c", 1, 0, {}, {"t": 3, "u": 3}, recovery="before")
    tell_all(operations)
    taken_up(operations.adopt(), "before")
    assert isinstance(next(operations.tell()), Ask)


@pytest.mark.parametrize(("first_id", "is_unsaid"), [(1, True), (4, False)])
def test_of_a_topic_that_had_no_room_it_is_recorded_if_the_broker_does_not_know(
    operations: Operations, seen: NotesEnds, first_id: int, is_unsaid: bool
) -> None:
    """A SUB behind a crash may be answered with the broker's own cursor (seed 1115)."""
    gone = {"topic": "u", "first_id": first_id, "last_id": 8}
    ask(operations, Purged("gone", details=gone))
    operations._told.clear()  # as at another beginning
    operations._gone.clear()
    ask(operations, {"topic": "u", "id": first_id, "count": 9})
    assert [outcome.cursor for outcome in seen.outcomes] == [3, 3]
    assert [outcome.is_unsaid for outcome in seen.outcomes] == [is_unsaid] * 2
    assert [outcome.first_id for outcome in seen.outcomes] == [4, 4]


def test_what_an_answer_passes_is_an_operation_of_its_own_that_was_told_so(
    operations: Operations, seen: NotesEnds
) -> None:
    passed = {"error": "expired", "topic": "t", "first_id": 4, "last_id": 8, "missed": 5}
    ask(operations, {"topic": "t", "id": 9, "count": 9, "passed": passed})
    told, given = seen.outcomes
    assert (told.error, told.first_id, told.last_id, told.cursor) == ("expired", 4, 8, 3)
    assert (given.error, given.first_id, given.count) == ("", 9, 9)
    assert given.cursor == 8
    assert [each.beside for each in seen.begun] == [None, seen.begun[0].number]
    assert seen.begun[1].number != seen.begun[0].number
    assert operations.state.cursor("t") == 8


def test_what_an_answer_passes_that_the_client_has_already_is_told_next(
    operations: Operations, seen: NotesEnds
) -> None:
    passed = {"error": "compacted", "topic": "u", "first_id": 1, "last_id": 2, "missed": 2}
    ask(operations, {"topic": "u", "id": 3, "count": 1, "passed": passed})
    told, given = seen.outcomes
    assert (told.error, told.first_id, told.last_id) == ("compacted", None, None)
    assert (given.first_id, given.count, operations.state.cursor("u")) == (4, 8, 3)
    assert ask(operations, {"count": 0}) == {"u": 3}


def test_what_an_answer_passes_of_one_topic_is_asked_for_behind_it(
    operations: Operations, seen: NotesEnds
) -> None:
    passed = {"error": "expired", "topic": "t", "first_id": 4, "last_id": 8, "missed": 5}
    steps = operations.get("t", 0, 9)
    next(steps)
    answer = {"topic": "t", "id": 9, "count": 1, "passed": passed}
    with pytest.raises(StopIteration):
        steps.send(Done(Reply(ACK, "r", "n", "n", 1, answer, *pack([b"x"])), 1))
    assert [each.last_id for each in seen.begun] == [3, 8]
    assert operations.state.cursor("t") == 8


def test_a_subscription_that_was_moved_meanwhile_passes_nothing(
    operations: Operations, seen: NotesEnds
) -> None:
    passed = {"error": "expired", "topic": "t", "first_id": 4, "last_id": 8, "missed": 5}
    steps = operations.get("t", 0, 9)
    next(steps)
    operations.state.place("t", 1, entry=7)
    answer = {"topic": "t", "id": 9, "count": 1, "passed": passed}
    with pytest.raises(StopIteration):
        steps.send(Done(Reply(ACK, "r", "n", "n", 1, answer, *pack([b"x"])), 1))
    assert operations.state.cursor("t") == 1
    assert seen.outcomes[-1].count == 0


def test_of_a_topic_that_was_told_what_was_told_is_recorded_whatever_comes(
    operations: Operations, seen: NotesEnds
) -> None:
    ask(operations, {"topic": "t", "id": 1, "count": 9})
    assert [(outcome.cursor, outcome.is_unsaid) for outcome in seen.outcomes] == [(3, False)]


# --- several runs in an answer --------------------------------------------------------------------

# 4 to 6 are there, 9, and 12 and 13; what is between them is compacted away.
RUNS: dict[str, Any] = {
    "topic": "t",
    "id": 4,
    "count": 3,
    "runs": [[9, 1], [12, 2]],
    "timestamps": [[2, 100], [3, 200], [1, None]],
}


def given(steps: Any) -> Any:
    """Return what a GET that needs no exchange brings."""
    with pytest.raises(StopIteration) as stop:
        next(steps)
    return stop.value.value


def first_of_runs(operations: Operations, topic: str | None = "t", max_count: int = 9) -> Any:
    """Have a GET answered with all of them; return what it gives."""
    steps = operations.get(topic, 0, max_count, in_loop=True)
    asked = next(steps)
    assert isinstance(asked, Ask)
    assert asked.request.body["runs"] is True
    texts = [b"4", b"5", Enveloped(encode(Properties("k", {}, 0)) + b"6"), b"9", b"12", b"13"]
    lengths, data = pack(texts)
    reply = decode_reply(encode_reply(Reply(ACK, "r", "n", "n", 1, dict(RUNS), lengths, data)))
    with pytest.raises(StopIteration) as stop:
        steps.send(Done(reply, 1))
    return stop.value.value


@pytest.mark.parametrize("topic", ["t", None])
def test_several_runs_are_given_one_after_the_other_by_one_exchange(
    operations: Operations, seen: NotesEnds, topic: str | None
) -> None:
    delivery = first_of_runs(operations, topic)
    assert [(each.id, each.publication, each.timestamp_ms, each.key) for each in delivery] == [
        (4, b"4", 100, None),
        (5, b"5", 100, None),
        (6, b"6", 200, "k"),
    ]
    operations.state.raise_cursor("t", 6)
    delivery = given(operations.get(topic, 0, 9, in_loop=True))
    assert [(each.id, each.publication, each.timestamp_ms) for each in delivery] == [(9, b"9", 200)]
    assert operations.state.cursor("t") == 8
    operations.state.raise_cursor("t", 9)
    delivery = given(operations.get(topic, 0, 9, in_loop=True))
    assert [(each.id, each.timestamp_ms) for each in delivery] == [(12, 200), (13, None)]
    operations.state.raise_cursor("t", 13)
    assert isinstance(next(operations.get(topic, 0, 9, in_loop=True)), Ask)

    # On record it is as if each had been told of what is gone, and asked behind it.
    ends = [(one.error, one.first_id, one.last_id, one.count, one.cursor) for one in seen.outcomes]
    assert ends == [
        ("", 4, None, 3, 3 if topic is None else None),
        ("compacted", 7, 8, None, 6),
        ("", 9, None, 1, 8),
        ("compacted", 10, 11, None, 9),
        ("", 12, None, 2, 11),
    ]
    assert [one.is_unsaid for one in seen.outcomes] == [False, True, True, True, True]
    first, *besides = seen.begun[:5]
    assert {one.beside for one in besides} == {first.number}
    assert {one.last_id for one in besides} == {None}
    assert len({one.number for one in seen.begun}) == 6


def test_who_asks_by_hand_is_given_nothing_older_than_his_call(operations: Operations) -> None:
    first_of_runs(operations)
    operations.state.raise_cursor("t", 6)
    asked = next(operations.get("t", 0, 9))
    assert isinstance(asked, Ask)
    assert "runs" not in asked.request.body


def test_a_new_loop_is_given_nothing_older_than_itself(operations: Operations) -> None:
    first_of_runs(operations)
    operations.state.raise_cursor("t", 6)  # and there the loop was left
    session: Any = SimpleNamespace(operations=operations, get=lambda *_: None)
    Session.loop(session, "t", "auto", None)
    assert isinstance(next(operations.get("t", 0, 9, in_loop=True)), Ask)


@pytest.mark.parametrize("what", ["back", "few", "moved", "unsubscribed", "anew", "tells"])
def test_whoever_is_not_where_an_answer_goes_on_asks_anew(
    operations: Operations, what: str
) -> None:
    first_of_runs(operations)
    state = operations.state
    if what != "back":  # it has not acknowledged what came
        state.raise_cursor("t", 6)
    if what == "moved":
        operations._place("t", 6, 7)
    if what == "unsubscribed":
        operations._drop("t")
        state.raise_cursor("t", 6)
    if what == "anew":
        reply = Reply(ACK, "r", "n", "n", 1, {"client_id": "c", "epoch": 2}, b"", b"")
        operations._taken_up(Done(reply, 1))
        operations._is_open = True
        state.raise_cursor("t", 6)
    if what == "tells":
        assert isinstance(next(operations.tell()), Ask)
    elif what == "few":
        operations.state.raise_cursor("t", 6)
        steps = operations.get("t", 0, 1, in_loop=True)
        assert given(steps).first_id == 9
        state.raise_cursor("t", 9)
        assert isinstance(next(operations.get("t", 0, 1, in_loop=True)), Ask), "two follow"
    else:
        assert isinstance(next(operations.get("t", 0, 9, in_loop=True)), Ask)
    assert not operations._behind


def test_an_answer_of_several_runs_of_a_subscription_that_was_moved_brings_none(
    operations: Operations,
) -> None:
    steps = operations.get("t", 0, 9, in_loop=True)
    next(steps)
    operations.state.place("t", 1, entry=7)
    lengths, data = pack([b"x"] * 6)
    with pytest.raises(StopIteration) as stop:
        steps.send(Done(Reply(ACK, "r", "n", "n", 1, dict(RUNS), lengths, data), 1))
    assert stop.value.value is None
    assert not operations._behind


def test_of_what_is_gone_a_client_has_missed_what_it_had_not(operations: Operations) -> None:
    steps = operations.get("u", 0, 9)
    assert isinstance(next(steps), Ask)
    gone = {"topic": "u", "first_id": 1, "last_id": 5, "missed": 5}
    with pytest.raises(Gap) as told:
        steps.throw(Gap("gone", details=gone))
    assert (told.value.details["first_id"], told.value.details["missed"]) == (4, 2)


def test_who_is_told_that_a_subscription_was_moved_goes_on_where_it_stands(
    operations: Operations,
) -> None:
    steps = operations.get("t", 0, 9)
    assert isinstance(next(steps), Ask)
    with pytest.raises(StopIteration):
        steps.throw(Moved("moved", details={"topic": "t", "cursor": 1, "placed": 7}))
    assert (operations.state.cursor("t"), operations.state.placed("t")) == (1, 7)


def stands_at_5(operations: Operations, steps: Steps[Any]) -> int | None:
    """Have a GET told that `t` stands at 5; return the cursor as its application comes back."""
    with suppress(StopIteration, AlreadyAcknowledged):
        steps.throw(AlreadyAcknowledged("gone", details={"topic": "t", "cursor": 5}))
    operations.go_on_behind_what_is_gone()
    return operations.state.cursor("t")


def test_who_is_told_that_a_subscription_stands_further_hears_it_and_goes_on_there(
    operations: Operations,
) -> None:
    steps = operations.get(None, 0, 9)
    next(steps)
    with pytest.raises(AlreadyAcknowledged):
        steps.throw(AlreadyAcknowledged("gone", details={"topic": "t", "cursor": 5}))
    assert operations.state.cursor("t") == 3, "it has not come back"
    operations.go_on_behind_what_is_gone()
    assert operations.state.cursor("t") == 5


def test_what_another_thread_has_sought_or_got_since_is_not_passed(operations: Operations) -> None:
    steps = operations.get(None, 0, 9)
    next(steps)
    operations.state.place("t", 1, entry=7)
    assert stands_at_5(operations, steps) == 1
    operations.state.raise_cursor("t", 8)
    steps = operations.get(None, 0, 9)
    next(steps)
    assert stands_at_5(operations, steps) == 8


def test_of_an_older_node_it_is_heard_and_nothing_is_passed(operations: Operations) -> None:
    steps = operations.get(None, 0, 9)
    next(steps)
    with pytest.raises(AlreadyAcknowledged):
        steps.throw(AlreadyAcknowledged("gone", details={"cursor": 5}))
    operations.go_on_behind_what_is_gone()
    assert operations.state.cursors() == {"t": 3, "u": 3}


def test_what_an_earlier_process_left_is_never_refused_for_certain_by_time_alone(
    operations: Operations, seen: NotesEnds
) -> None:
    operations.state.enqueue("t", [pack([b"x"])])
    steps = operations._recover()
    assert isinstance(next(steps), Ask)
    with pytest.raises(Unavailable) as late:
        steps.throw(Unavailable("late", "", True))
    assert not late.value.definite
    assert [outcome.definite for outcome in seen.outcomes] == [False]
    assert operations.state.topics_waiting() == ["t"]
