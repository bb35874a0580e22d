"""From when on a peer counts, and until when it was last seen."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest

from cluster.members.identity import Identity
from cluster.members.membership import hello_of
from cluster.node.linked import Linked
from cluster.wire.levels import BUILD, LEVEL_FIRST
from cluster.wire.messages import Hello

HELLO = hello_of(Identity("c", "b", "two", started=True), ["a", "b", "c"], BUILD)


class LinkedBench:
    """What node "a" knows of "b", a member, and of "c", which nobody has seen."""

    def __init__(self, began_s: float = 0.0) -> None:
        self.hellos: dict[str, Hello | None] = {"b": HELLO, "c": None}
        self.takes_part, self.log_level = True, LEVEL_FIRST
        context: Any = SimpleNamespace(
            settings=SimpleNamespace(others=("b", "c"), majority=2),
            seniority=SimpleNamespace(takes_part=lambda now: self.takes_part),
            hellos=lambda: dict(self.hellos),
            peers=SimpleNamespace(hello_of=lambda name: self.hellos[name]),
            neighbours=mock.Mock(),
        )
        members = {"b": "two", "c": "three"}
        self.linked = Linked(
            context, mock.Mock(), lambda name: (members[name], 9), lambda: self.log_level, began_s
        )

    def refresh(self, now: float, is_pending: bool = False) -> set[str]:
        self.linked.refresh(now, is_pending)
        return set(self.linked.names)


@pytest.fixture
def bench() -> LinkedBench:
    return LinkedBench()


def test_who_stood_aside_hears_those_who_were_connected_all_the_while(bench: LinkedBench) -> None:
    bench.takes_part = False
    assert bench.refresh(1.0) == bench.refresh(2.0) == set()
    bench.takes_part = True
    assert bench.refresh(3.0) == {"b"}
    bench.takes_part = False
    assert bench.refresh(4.0) == set()


def test_who_can_read_the_log_again_is_heard_as_the_entry_that_was_too_new_is_replaced(
    bench: LinkedBench,
) -> None:
    bench.log_level = BUILD.level_max + 1
    assert bench.refresh(1.0, is_pending=True) == set()
    bench.log_level = LEVEL_FIRST
    assert bench.refresh(2.0) == {"b"}


def test_a_silence_counts_from_the_end_of_the_connection(bench: LinkedBench) -> None:
    for now in (1.0, 2.0, 100.0):
        bench.refresh(now)
    assert bench.linked.sightings(100.0)["b"].silent_s == 0.0
    bench.hellos["b"] = None
    bench.refresh(100.5)
    assert bench.linked.sightings(103.5)["b"].silent_s == 3.0
    assert bench.linked.sightings(103.5)["c"].silent_s == 103.5


def test_nobody_is_silent_for_longer_than_it_was_looked_for() -> None:
    # Who joins becomes a member late, and has not noted what was connected until then.
    assert LinkedBench(began_s=100.0).linked.sightings(103.5)["c"].silent_s == 3.5
