"""Claims about what the simulator sees of work that stands still and of indexes out of date."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from chaos.simulation.checks import upkeep
from chaos.simulation.checks.upkeep import Upkeep
from cluster.store import commands
from cluster.store.commands import MakeGroup, Put, Raise, Register, Subscribe, Take
from cluster.store.outcomes import Done
from cluster.store.store import Store
from cluster.wire.levels import LEVEL_OF_PATTERNS
from flotilla_client.protocol import pack

WHO = "c", None


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    """A store with a topic, somebody who reads it, and a group that has leased two of three."""
    monkeypatch.setattr("cluster.store.topics.KEPT_MIN", 1)
    store = Store.open(tmp_path / "store.db", {"a": "1"})
    operations = (
        Raise(LEVEL_OF_PATTERNS),
        Register("c", True, None, ""),
        Subscribe(*WHO, "t", None),
        MakeGroup(*WHO, "t", None, "g", 1_000, None, None),
        Put(*WHO, "t", 0, *pack([b"1", b"2", b"3"])),
        Take(*WHO, "t", "g", 1, 2, 1_000, None, [], [], []),
    )
    for operation in operations:
        [outcome] = store.apply(store.applied_index + 1, 1, commands.encode(1, [operation]))
        assert isinstance(outcome, Done), outcome
    yield store
    store.close()


def empty_world() -> SimpleNamespace:
    net = SimpleNamespace(taps=[], send_taps=[])
    return SimpleNamespace(watchers=[], observers=[], net=net)


def watching(told: list[str] | None = None) -> Upkeep:
    """Return a watch over nothing; `told`: what it tells."""
    world = empty_world()
    world.knob = {"takeover_s": 3.0}.__getitem__
    tell = None if told is None else SimpleNamespace(fail=lambda check, text: told.append(text))
    return Upkeep(cast("Any", world), cast("Any", tell))


def test_a_group_that_counts_wrongly_is_seen(store: Store) -> None:
    [group] = store.groups._groups.values()
    assert group.leased == 2
    assert [*upkeep._of_groups(store)] == []
    for name, wrong in (("leased", 1), ("timed", 9), ("timers", []), ("head", 1), ("due", {2})):
        right = getattr(group, name)
        setattr(group, name, wrong)
        assert len([*upkeep._of_groups(store)]) == 1, name
        setattr(group, name, right)
    group.held["d"] = {2}
    assert len([*upkeep._of_groups(store)]) == 1
    del group.held["d"]
    store.groups._open_count += 1
    assert [what for what, _, _ in upkeep._of_groups(store)] == ["open"]


def test_an_index_of_what_is_unread_that_is_out_of_date_is_seen(store: Store) -> None:
    watch = watching()
    store.read_any("c", {}, 1, 1_000, None, {})
    [kept] = store._topics._unread.values()
    assert [*watch._unread(store)] == []
    assert kept._queued
    [topic] = store._topics.active.values()
    topic.subscribers["c"].cursor = 3  # and nobody is told
    assert len([*watch._unread(store)]) == 1
    kept.stirred["t"] = None
    assert [*watch._unread(store)] == []


def test_a_job_that_nobody_does_is_seen_at_once_and_a_segment_later() -> None:
    watch = watching()
    worker = SimpleNamespace(idle=True)
    maintenance = SimpleNamespace(_checkpointing=False, _compact_below=None)
    node = SimpleNamespace(name="a", _worker=worker, _maintenance=maintenance)
    server = SimpleNamespace(_copying=False, _waiting=set())
    member = SimpleNamespace(
        _server=server,
        scrub=SimpleNamespace(_is_reading=False),
        journal=SimpleNamespace(damaged_index=0),
        checkpointed_index=7,
        store=SimpleNamespace(checkpoint_index=7),
        reaper=SimpleNamespace(_after=0, _silent=[], _silent_count=0),
    )

    def found() -> list[tuple[str, float]]:
        wrong = watch._jobs(cast("Any", node), cast("Any", member))
        return [(what, patience_s) for what, _, patience_s in wrong]

    assert found() == []
    maintenance._checkpointing = True
    assert [patience_s for _, patience_s in found()] == [upkeep.AT_ONCE_S]
    worker.idle = False
    assert found() == []
    server._waiting.add("b")
    assert found() == [("waiting", upkeep.AT_ONCE_S)]
    server._copying = True
    member.journal.damaged_index = 7
    assert found() == [("damaged", upkeep.COMPACTION_S_MAX)]
    worker.idle, server._copying, member.journal.damaged_index = True, False, 0
    server._waiting.clear()
    maintenance._checkpointing = False
    member.store.checkpoint_index, member.reaper._silent_count = 8, 1
    assert found() == [("asked 8 0", upkeep.ASKED_S_MAX), ("silent clients", upkeep.AT_ONCE_S)]
    worker.idle, member.reaper._after = False, 1
    assert found() == []


def test_what_is_wrong_for_longer_than_it_may_be_is_a_failure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    failures: list[str] = []
    world = empty_world()
    invariants = SimpleNamespace(fail=lambda check, text: failures.append(text))
    watch = Upkeep(cast("Any", world), cast("Any", invariants))
    clock, wrong = [0.0], [("what", "it is so", 1.0)]
    node = SimpleNamespace(name="a", life=1, clock=lambda: clock[0])
    node.replica = SimpleNamespace(member=None)
    node.disk = SimpleNamespace(low=False, full=False)
    monkeypatch.setattr(upkeep, "TURNS_PER_LOOK", 1)
    monkeypatch.setattr(watch, "_wrong", lambda *about: iter(wrong))

    def look(at_s: float) -> int:
        clock[0] = at_s
        watch._turned(cast("Any", node))
        return len(failures)

    assert look(0.0) == 0
    assert look(0.9) == 0
    wrong.clear()
    assert look(0.95) == 0
    wrong.append(("what", "it is so", 1.0))
    assert look(1.5) == 0
    node.life = 2  # another process
    assert look(2.6) == 0
    assert look(3.6) == 1


def test_what_a_majority_has_agreed_on_and_a_node_does_not_know_is_seen() -> None:
    comparison = SimpleNamespace(agreed=4)
    marks = {4: "d", 8: "e", 12: "f"}

    def agreed(*told: dict[int, str]) -> int:
        return upkeep._agreed_by(cast("Any", comparison), told, marks, 2)

    assert agreed() == 0
    assert agreed({4: "d"}, {8: "another", 16: "g"}) == 0
    assert agreed({8: "another", 12: "f"}, {8: "e"}) == 8


def test_who_asks_for_a_copy_too_early_and_who_goes_on_condemned_are_seen() -> None:
    failures: list[str] = []
    world = empty_world()
    invariants = SimpleNamespace(fail=lambda check, text: failures.append(text))
    watch = Upkeep(cast("Any", world), cast("Any", invariants))
    fetch = SimpleNamespace(_pause_until_s=2.0)
    node = SimpleNamespace(name="a", life=1, clock=lambda: 2.0, replica=None)
    node.replica = SimpleNamespace(_fetch=fetch)

    watch._asks_in_time(cast("Any", node), "b")
    assert not failures
    fetch._pause_until_s = 2.1
    watch._asks_in_time(cast("Any", node), "b")
    assert len(failures) == 1
    node.replica = None
    watch._observe("node_failed", {"node": "a", "error": "CondemnedState"})
    watch._observe("emptied", {"node": "a"})
    watch._turned(cast("Any", node))
    assert len(failures) == 1
    watch._observe("node_failed", {"node": "a", "error": "CondemnedState"})
    watch._turned(cast("Any", node))
    assert len(failures) == 2


@pytest.mark.parametrize(
    ("slept_s", "until_s", "life", "is_seen"),
    [
        (1.6, 7.1, 1, True),
        (1.4, 7.1, 1, False),  # too short to count
        (1.6, 7.0, 1, False),  # and silent for long enough since
        (1.6, 7.1, 2, False),  # another process
    ],
)
def test_a_leader_that_counts_a_silence_that_it_slept_through_is_seen(
    slept_s: float, until_s: float, life: int, is_seen: bool
) -> None:
    told: list[str] = []
    leader = SimpleNamespace(name="a", life=1, slept=(life, slept_s, until_s), clock=lambda: 10.0)
    watching(told)._was_awake(cast("Any", leader), "c")
    assert bool(told) == is_seen


def test_a_log_that_is_cut_too_short_is_seen() -> None:
    told: list[str] = []
    watch, node = watching(told), cast("Any", SimpleNamespace(name="a"))
    journal = SimpleNamespace(first_index=1, size_bytes=90, _damaged_sequence=-1)
    settings = SimpleNamespace(keep_bytes=100)
    member = cast("Any", SimpleNamespace(journal=journal, settings=settings))
    watch._keeps_log(node, member)
    assert told == [], "it was not cut"
    journal.first_index, journal.size_bytes = 5, 100
    watch._keeps_log(node, member)
    assert told == []
    journal.first_index, journal.size_bytes, journal._damaged_sequence = 7, 99, 0
    watch._keeps_log(node, member)
    assert told == [], "what is damaged is of no use to anybody"
    journal.first_index, journal._damaged_sequence = 9, -1
    watch._keeps_log(node, member)
    assert len(told) == 1


@pytest.mark.parametrize("name", ["copy-2.db", "download.db"])
def test_a_copy_that_is_begun_on_a_disk_without_room_is_seen(tmp_path: Path, name: str) -> None:
    told: list[str] = []
    watch = watching(told)
    disk = SimpleNamespace(low=True, full=False, times_freed=0)
    server = SimpleNamespace(_copying=True)
    node = cast("Any", SimpleNamespace(name="a", life=1, disk=disk))
    node.image = SimpleNamespace(directory=tmp_path)
    node.as_member = SimpleNamespace(_server=server)
    watch._leaves_room(node)
    (tmp_path / "copy-1.db").touch()  # of a job that was under way when the room was gone
    server._copying = False
    for _ in range(2):
        watch._leaves_room(node)
    disk.times_freed = 1  # and was short of room again
    (tmp_path / "copy-3.db").touch()
    watch._leaves_room(node)
    assert told == []
    (tmp_path / name).touch()
    watch._leaves_room(node)
    assert len(told) == 1
