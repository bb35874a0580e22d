"""What a client of more topics than a GET can name tells the broker, and says that it has told."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from flotilla_client import operations as operations_module
from flotilla_client.errors import Compacted, Expired, FlotillaError, Gap, Purged
from flotilla_client.observer import Operation, Outcome, Silent
from flotilla_client.operations import Ask, Operations
from flotilla_client.protocol import ACK, Reply, pack
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
