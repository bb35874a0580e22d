"""Simulated workers come to the end of their groups."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock

import pytest

from chaos.simulation.clients import working
from chaos.simulation.clients.working import DEAD, Working

STEPS_MAX = 50


def test_a_group_that_keeps_the_room_of_all_is_drained_before_another_one_is_empty(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of seed 1653: five might be open, and all five were dead letters, whose turn never came."""
    backlogs = {"x": 2, DEAD: 5}
    monkeypatch.setattr(working, "_backlog", lambda operations, topic: (topic, False))
    monkeypatch.setattr(working, "take", lambda operations, book, *how: (book.topic, True))
    monkeypatch.setattr(working, "make_group", lambda operations, topic, *how: (topic, False))
    process = cast(Any, SimpleNamespace(session=SimpleNamespace(operations=None)))
    settings = 500, 1, 0.0, (0,), 0.5, None
    course, wire = cast(Any, Mock()), cast(Any, SimpleNamespace(now=0.0))
    worker = Working("one", ("x",), *settings, process, course, random.Random(7), wire)
    steps, answer = worker.drain(), None
    for _ in range(STEPS_MAX):
        try:
            topic, is_take = steps.send(answer)
        except StopIteration:
            break
        if is_take and (topic == DEAD or not backlogs[DEAD]):
            backlogs[topic] = 0
        answer = backlogs[topic]
    assert backlogs == {"x": 0, DEAD: 0}
