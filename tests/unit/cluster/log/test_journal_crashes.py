"""The journal loses nothing promised: a power loss before any operation, and a dumb model.

What lives here: tests that crash the disk. What must not: tests of single rules (test_journal.py).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from cluster.log.journal import Journal
from tests.unit.memory_disk import (
    NO_OP,
    ROOT,
    SMALL_BYTES,
    Crash,
    MemoryDisk,
    command,
    entries,
    keep_everything,
    lose_first_page,
    lose_unsynced,
    open_journal,
    tear_in_half,
)

LOSSES = [
    pytest.param(keep, names, id=f"{keep.__name__}-{names}-names")
    for keep in (lose_unsynced, keep_everything, tear_in_half, lose_first_page)
    for names in ("durable", "latest")
]


# --- crash points ---------------------------------------------------------------------------


@dataclass
class JournalModel:
    """What a journal holds, as a dict; `floor`: below it entries may be missing."""

    entries: dict[int, tuple[bytes, int]] = field(default_factory=dict)
    floor: int = 1
    hard_state: tuple[int, str | None] = (0, None)

    def add(self, command: bytes, index: int, term: int) -> None:
        if self.entries.get(index, (b"", -1))[1] != term:
            self.entries = {i: kept for i, kept in self.entries.items() if i < index}
            self.entries[index] = (command, term)

    def reset(self, index: int, term: int) -> None:
        self.entries, self.floor = {index: (NO_OP, term)}, index

    def copy(self) -> JournalModel:
        return replace(self, entries=dict(self.entries))

    def matches(self, journal: Journal) -> bool:
        """Return whether `journal` may be this: only entries below the floor are missing."""
        kept = {index: (command, term) for command, index, term in entries(journal)}
        expected = {i: entry for i, entry in self.entries.items() if i >= journal.first_index}
        return (
            kept == expected
            and (not self.entries or journal.first_index <= self.floor)
            and (journal.term, journal.vote) == self.hard_state
        )


class Twins:
    """A journal and its model, driven together; `possible`: what a power loss may leave."""

    def __init__(self, disk: MemoryDisk) -> None:
        self.disk = disk
        self.model = JournalModel()
        self.possible = [self.model.copy()]
        self.journal = open_journal(disk, segment_bytes=SMALL_BYTES, cache_bytes=600)

    def _changed(self) -> None:
        self.possible.append(self.model.copy())

    def _durable(self) -> None:
        self.possible = [self.model.copy()]

    def add(self, command: bytes, index: int, term: int) -> None:
        self.model.add(command, index, term)
        self._changed()
        self.journal.add(command, index, term)

    def set_term(self, term: int, vote: str | None) -> None:
        self.model.hard_state = (term, vote)
        self._changed()
        self.journal.set_term(term, vote)

    def sync(self) -> None:
        self.journal.sync()
        self._durable()

    def compact(self, durable: int) -> None:
        for state in (self.model, *self.possible):
            state.floor = max(state.floor, durable)
        self.journal.compact(durable)
        self._durable()

    def reset(self, index: int, term: int) -> None:
        self.model.reset(index, term)
        self._changed()
        self.journal.reset(index, term)
        self._durable()

    def assert_recovers(self, keep: Callable[[bytes, bytes], bytes], names: str) -> MemoryDisk:
        found = self.disk.after_power_loss(keep, names)
        again = open_journal(found, segment_bytes=SMALL_BYTES)
        assert any(state.matches(again) for state in self.possible), (
            f"{entries(again)} {again.term} is none of {self.possible}"
        )
        return found


def eventful_life(twins: Twins) -> None:
    """Roll, replace, compact and reset, some of it several times between two syncs."""
    twins.set_term(1, "a")
    for index in range(1, 25):
        twins.add(command(index), index, 1)
        if index % 2:
            twins.sync()
    twins.set_term(2, None)
    twins.set_term(2, "b")
    for index in range(18, 30):
        twins.add(command(f"{index}'"), index, 2)
    twins.sync()
    twins.compact(12)
    for index in range(30, 40):
        twins.add(command(index), index, 2)
    twins.compact(33)
    twins.add(command(40), 40, 2)
    twins.reset(90, 3)
    for index in range(91, 100):
        twins.add(command(index), index, 3)
        twins.sync()
    twins.reset(200, 3)


@pytest.mark.parametrize(("keep", "names"), LOSSES)
def test_a_power_loss_before_any_operation_loses_nothing_promised(
    keep: Callable[[bytes, bytes], bytes], names: str
) -> None:
    crash_at = 0
    while True:
        disk = MemoryDisk()
        Journal.create(ROOT, disk)
        twins = Twins(disk)
        disk.crash_at = len(disk.operations) + crash_at
        try:
            eventful_life(twins)
        except Crash:
            twins.assert_recovers(keep, names)
            crash_at += 1
        else:
            break
    assert crash_at > 100, "the life has become too quiet to prove anything"


def test_what_a_process_syncs_behind_one_that_was_killed_survives_a_power_loss() -> None:
    """A killed process leaves files and names that no fsync has followed; they look as others."""
    kill_at = 0
    while True:
        disk = MemoryDisk()
        Journal.create(ROOT, disk)
        twins = Twins(disk)
        disk.crash_at = len(disk.operations) + kill_at
        try:
            eventful_life(twins)
        except Crash:
            disk.crash_at = None
        else:
            break
        second = open_journal(disk, segment_bytes=SMALL_BYTES)
        second.add(command("behind"), second.last_index + 1, 9)
        second.set_term(9, "c")
        second.sync()
        third = open_journal(disk.after_power_loss(lose_unsynced, "durable"))
        assert entries(third) == entries(second), f"killed before operation {kill_at}"
        assert (third.term, third.vote) == (9, "c")
        kill_at += 1
    assert kill_at > 100, "the life has become too quiet to prove anything"


@pytest.mark.parametrize(("keep", "names"), LOSSES)
def test_a_power_loss_during_creation_leaves_a_whole_journal_or_none(
    keep: Callable[[bytes, bytes], bytes], names: str
) -> None:
    for crash_at in range(20):
        disk = MemoryDisk()
        disk.crash_at = crash_at
        try:
            Journal.create(ROOT, disk)
        except Crash:
            found = disk.after_power_loss(keep, names)
            assert entries(open_journal(found)) == []
        else:
            assert crash_at > 6
            return
    pytest.fail("creation takes more than 20 operations")


# --- a dumb model ---------------------------------------------------------------------------


class JournalMachine(RuleBasedStateMachine):
    """Any life of a journal, with clean restarts and power losses, equals the model's."""

    @initialize()
    def begin(self) -> None:
        self.twins = Twins(MemoryDisk())
        self.serial = 0

    @property
    def last(self) -> int:
        return max(self.twins.model.entries, default=0)

    @rule(count=st.integers(1, 6), size=st.sampled_from([1, 20, 150]))
    def append(self, count: int, size: int) -> None:
        for _ in range(count):
            self.serial += 1
            term = max(1, self.twins.model.hard_state[0])
            self.twins.add(command(self.serial, size), self.last + 1, term)

    @precondition(lambda self: self.twins.model.entries)
    @rule(data=st.data())
    def add_again(self, data: st.DataObject) -> None:
        journal = self.twins.journal
        index = data.draw(st.integers(journal.first_index, journal.last_index))
        self.twins.add(*journal.entry(index))

    @precondition(lambda self: self.last > self.twins.journal.commit_index)
    @rule(data=st.data())
    def replace(self, data: st.DataObject) -> None:
        journal = self.twins.journal
        index = data.draw(st.integers(journal.commit_index + 1, self.last))
        self.new_term(vote=None)
        self.serial += 1
        self.twins.add(command(self.serial), index, self.twins.model.hard_state[0])

    @rule(vote=st.sampled_from([None, "a", "b"]))
    def new_term(self, vote: str | None) -> None:
        term = max(self.twins.model.hard_state[0], self.twins.journal.last_term) + 1
        self.twins.set_term(term, vote)

    @precondition(lambda self: self.twins.model.entries)
    @rule(data=st.data())
    def commit(self, data: st.DataObject) -> None:
        journal = self.twins.journal
        journal.note_commit(data.draw(st.integers(journal.commit_index, self.last)))

    @rule()
    def sync(self) -> None:
        self.twins.sync()

    @precondition(lambda self: self.twins.model.entries)
    @rule(data=st.data())
    def compact(self, data: st.DataObject) -> None:
        journal = self.twins.journal
        self.twins.compact(data.draw(st.integers(journal.first_index, journal.commit_index)))

    @rule(ahead=st.integers(0, 9))
    def reset(self, ahead: int) -> None:
        journal = self.twins.journal
        index = max(journal.commit_index, 1) + ahead
        held = None if ahead else journal.term_at(index)  # what is committed is not contradicted
        self.twins.reset(index, max(1, self.twins.model.hard_state[0]) if held is None else held)

    @rule()
    def restart(self) -> None:
        self.twins.journal.close()
        self.reopen(MemoryDisk(self.twins.disk.names))

    @rule(loss=st.sampled_from(LOSSES))
    def lose_power(self, loss: Any) -> None:
        found = self.twins.assert_recovers(*loss.values)
        again = open_journal(found)
        self.twins.model = next(state for state in self.twins.possible if state.matches(again))
        self.reopen(found)

    def reopen(self, disk: MemoryDisk) -> None:
        model = self.twins.model
        self.twins = Twins(disk)
        self.twins.model = model
        self.twins._durable()

    @invariant()
    def same(self) -> None:
        if hasattr(self, "twins"):
            journal, model = self.twins.journal, self.twins.model
            assert model.matches(journal), f"{entries(journal)} is not {model}"
            assert journal.last_index == self.last
            assert journal.entries(journal.first_index, 3) == entries(journal)[:3]
            assert not journal.dirty or len(self.twins.possible) > 1


TestJournalMachine = JournalMachine.TestCase
TestJournalMachine.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
