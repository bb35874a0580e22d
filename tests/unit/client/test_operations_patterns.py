"""A subscription to a pattern: what it costs the client's disk."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flotilla_client.observer import Silent
from flotilla_client.operations import Operations, Steps, new_nonce
from flotilla_client.protocol import ACK, Reply
from flotilla_client.retry import Done
from flotilla_client.state import OUTBOX_BYTES_MAX, State

TOPICS = {f"m.{number}": number for number in range(100)}


@pytest.fixture
def waited(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[bool]]:
    """Yield of each change whether its disk was waited for."""
    begins: list[bool] = []
    prepare, wait = State._prepare_change, State.wait_for_changes

    def noted(self: State, directory: Path, durable: bool) -> None:
        begins.append(durable)
        prepare(self, directory, durable)

    def noted_wait(self: State) -> None:
        begins.append(True)
        wait(self)

    monkeypatch.setattr(State, "_prepare_change", noted)
    monkeypatch.setattr(State, "wait_for_changes", noted_wait)
    monkeypatch.setattr(Operations, "opened", lambda self: iter(()))
    return begins


def answered(steps: Steps[Any], body: dict[str, Any]) -> Any:
    """Run steps that ask once to their end."""
    next(steps)
    with pytest.raises(StopIteration) as caught:
        steps.send(Done(Reply(ACK, "r", "n1", "n1", 1, body), 1))
    return caught.value.value


def test_a_pattern_of_many_topics_waits_for_the_disk_a_few_times(
    tmp_path: Path, waited: list[bool]
) -> None:
    state = State(tmp_path / "s", OUTBOX_BYTES_MAX)
    operations = Operations(state, Silent(), new_nonce, "")
    waited.clear()
    body = {"pattern": 7, "topics": TOPICS, "placed": {"m.3": 5}, "resumed": False}
    assert answered(operations.subscribe("m.*"), body).topics == TOPICS
    assert (len(waited) > len(TOPICS), sum(waited) < 5) == (True, True)
    assert waited[-1], "what came last is on no disk yet"
    state.close()

    state = State(tmp_path / "s", OUTBOX_BYTES_MAX)
    assert (state.cursors(), state.placed("m.3"), state.patterns()) == (TOPICS, 5, {"m.*": 7})
    operations = Operations(state, Silent(), new_nonce, "")
    waited.clear()
    assert answered(operations.unsubscribe("m.*"), {"was_subscribed": True, "topics": ["m.8"]})
    assert sum(waited) < 5
    assert waited[-1], "what came last is on no disk yet"
    assert (state.cursors(), state.patterns()) == ({"m.8": 8}, {})
    state.close()
