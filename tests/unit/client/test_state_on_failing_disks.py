"""What a client's state has said to be stored stands there after a failed sync and a power loss."""

from __future__ import annotations

import os
import random
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from chaos.simulation.disks.client_disk import ClientDisk
from chaos.simulation.disks.disk import KEEPS
from chaos.simulation.world.database import patched
from flotilla_client import StateUnusable
from flotilla_client import state as state_module
from flotilla_client.observer import Silent
from flotilla_client.reading import Readers
from flotilla_client.state import Entry, State

ONE = (b"\1\0\0\0", b"x")
SEEDS = 25
OPERATIONS = 60


def batch(size: int) -> tuple[bytes, bytes]:
    return size.to_bytes(4, "little"), b"x" * size


@contextmanager
def machine(directory: Path) -> Iterator[ClientDisk]:
    """Give a machine on whose disk the directory is."""
    disk = ClientDisk(directory)
    with patched(lambda: None, {str(directory): disk.image}):
        yield disk


def test_a_state_opened_behind_a_failed_sync_has_nothing_that_the_sync_has_lost(
    tmp_path: Path,
) -> None:
    with machine(tmp_path / "state") as disk:
        state = State(tmp_path / "state")
        state.resumed("me", 1, 0, {}, {})
        disk.fail_sync("store_sync", 1)
        with pytest.raises(StateUnusable):
            state.enqueue("t", [ONE])
        disk.kill(state)
        found = State(tmp_path / "state")
        [*waiting] = found.outbox("t")
        assert found.next_sequence() == 1
        disk.kill(found)
        disk.lose_power("lost", random.Random(1))
        with closing(State(tmp_path / "state")) as left:
            assert (left.outbox("t"), left.sequence) == (waiting, 1)


def test_a_process_goes_on_behind_a_failed_sync_and_loses_nothing_that_it_stores(
    tmp_path: Path,
) -> None:
    with machine(tmp_path / "state") as disk:
        state = State(tmp_path / "state")
        state.resumed("me", 1, 0, {}, {"t": 0})
        state.raise_cursor("t", 3, durable=False)
        disk.fail_sync("store_sync", 1)
        with pytest.raises(StateUnusable) as caught:
            state.enqueue("t", [ONE])
        assert not caught.value.definite
        assert [entry.counter for entry in state.enqueue("t", [ONE, ONE])] == [1, 2]
        disk.kill(state)
        disk.lose_power("lost", random.Random(1))
        with closing(State(tmp_path / "state")) as left:
            assert [entry.counter for entry in left.outbox("t")] == [1, 2]
            assert left.cursor("t") == 3


def acknowledged(state: State) -> None:
    state.raise_cursor("t", 3, durable=False)
    Readers(state, Silent(), {}).acknowledge("t", 3)


def handed_over(state: State) -> None:
    state.hand_over("t", 3, cursor=3, durable=False)
    state.hand_over("t", 3, cursor=3)


@pytest.mark.parametrize("twice", [acknowledged, handed_over])
def test_what_is_told_twice_is_waited_for_though_the_first_was_not(
    tmp_path: Path, twice: Callable[[State], None]
) -> None:
    with machine(tmp_path / "state") as disk:
        state = State(tmp_path / "state")
        state.resumed("me", 1, 0, {}, {"t": 0})
        state.hand_over("t", 3, durable=False)
        twice(state)
        disk.kill(state)
        disk.lose_power("lost", random.Random(1))
        with closing(State(tmp_path / "state")) as left:
            assert (left.cursor("t"), left.handed("t")) == (3, 3)


def test_a_change_that_was_waited_for_is_never_lost_whatever_syncs_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Random changes by processes that are killed, syncs that fail, and power that goes."""
    monkeypatch.setattr(state_module, "CHECKPOINT_PAGES", 20, raising=False)
    for seed in range(SEEDS):
        directory = tmp_path / str(seed)
        with machine(directory) as disk:
            _ClientCourse(random.Random(seed), disk, directory).run()


class _ClientCourse:
    """A client's changes, with what has to stand of each."""

    def __init__(self, rng: random.Random, disk: ClientDisk, directory: Path) -> None:
        self.rng, self.disk, self.directory = rng, disk, directory
        self.sequence = self.cursor = self.counter = 0  # at least
        self.kept: dict[int, Entry] = {}  # that have to be in the outbox, by counter
        self.maybe: set[int] = set()  # that are to be gone, or may be

    def run(self) -> None:
        state = State(self.directory)
        state.resumed("me", 1, 0, {}, {"t": 0})
        for _ in range(OPERATIONS):
            if self.rng.random() < 0.15:
                self.disk.fail_sync("any", self.rng.randint(1, 4))
            with suppress(StateUnusable):  # it happened or not: nothing is due
                self.change(state)
            if self.rng.random() < 0.1:
                state = self.next_process(state)
        self.disk.kill(self.next_process(state))

    def change(self, state: State) -> None:
        kind = self.rng.choice(("enqueue", "sequence", "cursor", "lazy", "acknowledged"))
        if kind == "enqueue":
            [entry] = state.enqueue("t", [batch(self.rng.choice((10, 9_000)))])
            self.kept[entry.counter] = entry
            self.counter = entry.counter
        elif kind == "sequence":
            self.sequence = state.next_sequence()
        elif kind == "cursor":
            state.raise_cursor("t", self.cursor + 1)
            self.cursor += 1
        elif kind == "lazy":
            state.raise_cursor("t", self.cursor + 1, durable=False)
        elif self.kept:
            entry = self.kept.pop(min(self.kept))
            state.acknowledged(entry)

    def next_process(self, state: State) -> State:
        self.disk.kill(state)
        if self.rng.random() < 0.5:
            self.disk.lose_power(self.rng.choice(KEEPS), self.rng)
        found = State(self.directory)
        assert found.client_id == "me"
        assert found.sequence >= self.sequence
        assert (found.cursor("t") or 0) >= self.cursor
        assert found.counter("t") >= self.counter
        outbox = {entry.counter: entry for entry in found.outbox("t")}
        for counter, entry in self.kept.items():
            assert outbox.get(counter) == entry, counter
        return found


def test_a_new_state_directory_outlives_a_power_loss(tmp_path: Path) -> None:
    with machine(tmp_path / "state") as disk:
        state = State(tmp_path / "state")
        state.enqueue("t", [ONE])
        disk.kill(state)
        disk.lose_power("lost", random.Random(1))
        with closing(State(tmp_path / "state")) as left:
            assert left.counter("t") == 1


def test_each_directory_that_is_made_is_made_durable_in_its_parent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: set[str] = set()

    def sync(descriptor: int) -> None:
        synced.add(os.readlink(f"/proc/self/fd/{descriptor}"))

    monkeypatch.setattr(os, "fsync", sync)
    directory = tmp_path / "one" / "two" / "three"
    State(directory).close()
    assert {str(place) for place in (tmp_path, *directory.parents[:2])} <= synced
    synced.clear()
    State(directory).close()  # whoever made it may have been killed before the sync
    assert {str(directory), str(directory.parent)} <= synced


def test_who_may_not_list_the_parent_of_his_directory_can_use_it(tmp_path: Path) -> None:
    parent = tmp_path / "parent"
    State(parent / "state").close()
    parent.chmod(0o300)
    try:
        State(parent / "state").close()
    finally:
        parent.chmod(0o700)


def test_a_state_that_can_have_no_wal_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect = sqlite3.connect

    def without_shared_memory(path: str, **settings: Any) -> sqlite3.Connection:
        return connect(f"file:{path}?vfs=unix-dotfile", uri=True, **settings)

    monkeypatch.setattr(sqlite3, "connect", without_shared_memory)
    with pytest.raises(StateUnusable, match="no WAL: the file system can't share memory"):
        State(tmp_path / "state")
