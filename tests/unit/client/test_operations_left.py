"""What a client keeps of its patterns' topics, whatever an older answer says."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from flotilla_client.observer import Silent
from flotilla_client.operations import Ask, Operations, Steps
from flotilla_client.protocol import ACK, Reply, pack
from flotilla_client.retry import Done
from flotilla_client.state import State


@pytest.fixture
def operations() -> Iterator[Operations]:
    """A client with two patterns, which have brought it two topics."""
    state = State(None)
    operations = Operations(state, Silent())
    state.resumed("c", 1, 0, {}, {"o.eu": 0, "o.us": 0}, patterns={"o.*": 1, "*.eu": 2})
    operations._is_open = True
    yield operations
    state.close()


def answered(steps: Steps[Any], body: dict[str, Any], data: bytes = b"") -> Any:
    """Return what an operation comes to whose one request is answered so."""
    assert isinstance(next(steps), Ask)
    lengths, packed = pack([data]) if data else (b"", b"")
    reply = Reply(ACK, "r", "n", "n", 1, body, lengths, packed)
    with pytest.raises(StopIteration) as ended:
        steps.send(Done(reply, 1))
    return ended.value.value


def test_a_pattern_that_is_left_keeps_what_another_one_brings(operations: Operations) -> None:
    body = {"was_subscribed": True, "topics": ["o.eu"]}
    assert answered(operations.unsubscribe("o.*"), body)
    assert operations.state.cursors() == {"o.eu": 0}
    assert operations.state.patterns() == {"*.eu": 2}


def test_an_answer_from_before_a_pattern_was_left_brings_no_topic(operations: Operations) -> None:
    steps = operations.get(None, 0, 1)
    assert isinstance(next(steps), Ask)
    operations.state.unfollow("o.*")
    lengths, data = pack([b"x"])
    place = {"topic": "o.asia", "id": 1, "count": 1, "cursor": 0, "placed": 0}
    with pytest.raises(StopIteration):
        steps.send(Done(Reply(ACK, "r", "n", "n", 1, place, lengths, data), 1))
    assert operations.state.cursor("o.asia") is None
