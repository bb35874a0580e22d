"""Claims about feature levels: who understands which, and when a cluster's level may be raised."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cluster.members.handshake import can_read, unfit
from cluster.store import commands, snapshots, tables
from cluster.store.commands import Admit, DamagedEntry, Raise, Stamp, decode, encode, level_of
from cluster.store.store import Done, Store
from cluster.wire.levels import (
    ALLOWED,
    BUILD,
    BUILD_0_1,
    Build,
    Sighting,
    UnsupportedLevel,
    objections,
)
from cluster.wire.levels import level_to_reach as reach
from cluster.wire.messages import Extension, Hello
from tests.unit.model_store import MEMBERS
from tests.unit.store_bench import Bench

NEXT = Build("9.0", 1, 6)
THERE = Sighting(NEXT, True, 0.0)


def test_this_build_understands_the_first_level_and_its_own() -> None:
    assert (BUILD.level_min, BUILD.level_max) == (1, 5)
    assert list(ALLOWED) == [1, 2, 3, 4, 5]
    assert not BUILD.understands(0)
    assert not BUILD.understands(6)
    assert not BUILD_0_1.understands(2)


# --- when the level may be raised -----------------------------------------------------------------


def test_level_is_raised_when_every_member_is_there_and_understands_it() -> None:
    assert objections(6, "n1", NEXT, {"n2": THERE, "n3": THERE}) == []
    assert objections(2, "n1", NEXT, {}) == []


@pytest.mark.parametrize(
    ("sighting", "reason"),
    [
        (Sighting(None, False, 7.0), "n3 has not been seen since n1 started"),
        (Sighting(NEXT, False, 42.3), "n3 has not been seen for 42 s"),
        (Sighting(BUILD_0_1, False, 42.3), "n3 has not been seen for 42 s"),
        (
            Sighting(Build("0.2", 1, 2), True, 0.0),
            "n3 runs version 0.2, which understands levels 1 to 2",
        ),
        (
            Sighting(BUILD_0_1, True, 0.0),
            "n3 runs a version that names no levels (0.1), which understands levels 1 to 1",
        ),
        (Sighting(NEXT, False, 0.0), "n3 is connected, and no member yet"),
    ],
)
def test_level_is_not_raised_while_a_member_could_be_left_behind(
    sighting: Sighting, reason: str
) -> None:
    assert objections(3, "n1", NEXT, {"n2": THERE, "n3": sighting}) == [reason]


def test_leader_that_does_not_understand_the_level_itself_says_so() -> None:
    assert objections(7, "n1", Build("1.0", 7, 8), {"n2": Sighting(NEXT, True, 0.0)}) == [
        "n2 runs version 9.0, which understands levels 1 to 6"
    ]
    [reason] = objections(6, "n1", BUILD, {"n2": THERE})
    assert reason.startswith("n1 runs version")


def test_level_to_reach_is_the_highest_that_any_member_knows() -> None:
    assert reach(BUILD, {"n2": THERE, "n3": Sighting(None, False, 1.0)}) == 6
    assert reach(NEXT, {"n2": Sighting(BUILD_0_1, True, 0.0)}) == 6


# --- entries --------------------------------------------------------------------------------------


def test_entry_says_first_which_level_it_takes_to_read_it() -> None:
    assert level_of(encode(1, [Admit("n", "i")])) == 1
    assert level_of(encode(1, [Admit("n", "i"), Raise(2)])) == 2
    assert level_of(b"") == 1


def test_what_0_1_reads_is_written_as_0_1_wrote_it() -> None:
    assert encode(7, [Admit("n", "i")]) == b"\x01\x13\x00\x00\x00" + b'[7,[["M","n","i"]]]'


def test_entry_of_a_level_that_is_not_understood_is_refused() -> None:
    payload = encode(1, [Raise(6)])
    with pytest.raises(DamagedEntry, match="level 6; this node reads up to 5"):
        decode(payload)
    assert decode(payload, 6) == (Stamp(1), [Raise(6)])
    with pytest.raises(DamagedEntry, match="level 0"):
        decode(b"\0" + payload[1:])


@pytest.mark.parametrize("level", ["1", "true", "256", "null", '"2"'])
def test_raise_to_what_is_no_level_is_refused(level: str) -> None:
    text = f'[1,[["L",{level}]]]'.encode()
    with pytest.raises(DamagedEntry, match="Raise's fields"):
        decode(commands._HEAD.pack(2, len(text)) + text)


# --- the store ------------------------------------------------------------------------------------


def test_level_is_raised_once_never_lowered_and_outlives_a_restart(tmp_path: Path) -> None:
    bench = Bench.started(tmp_path / "store.db")
    assert bench.store.level == 1
    assert bench.ok(Raise(2)) == {"level": 2, "before": 1}
    bench.put(0)
    bench.reopen()
    assert bench.store.level == 2
    assert bench.ok(Raise(2)) == {"level": 2, "before": 2}
    bench.reopen()
    assert bench.store.level == 2
    bench.store.close()


def test_a_raise_that_comes_behind_a_higher_one_changes_nothing(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "store.db", {"n1": "one"}, build=Build("later", 1, 9))
    store.apply(1, 1, encode(1, [Raise(9)]))

    [outcome] = store.apply(2, 1, encode(1, [Raise(2)]))

    assert outcome == Done({"level": 9, "before": 9})
    assert store.level == 9
    store.close()


def test_level_that_was_not_committed_is_applied_again(tmp_path: Path) -> None:
    bench = Bench.started(tmp_path / "store.db")
    before = bench.store.applied_index
    bench.store.apply(before + 1, 1, encode(1, [Raise(2)]))
    assert bench.store.level == 2
    bench.reopen()
    assert (bench.store.level, bench.store.applied_index) == (1, before)
    bench.store.close()


def test_level_is_part_of_the_logical_state(tmp_path: Path) -> None:
    one, other = Bench.started(tmp_path / "one.db"), Bench.started(tmp_path / "other.db")
    assert one.store.digest() == other.store.digest()
    one.ok(Raise(2))
    other.ok(Admit("a", MEMBERS["a"]))
    assert one.store.digest() != other.store.digest()
    one.store.close()
    other.store.close()


def test_store_of_a_level_that_is_not_understood_is_refused_and_stays_whole(tmp_path: Path) -> None:
    bench = Bench.started(tmp_path / "store.db")
    bench.ok(Raise(2))
    bench.store.close()
    with pytest.raises(UnsupportedLevel, match="at level 2; this is a version that names no level"):
        Store.open(bench.path, {}, build=BUILD_0_1)
    with pytest.raises(UnsupportedLevel, match="levels 3 to 4"):
        Store.open(bench.path, {}, build=Build("1.0", 3, 4))
    Store.open(bench.path, {}, build=NEXT).close()


def test_version_0_1_refuses_a_store_whose_level_was_raised(tmp_path: Path) -> None:
    """Its check was: `PRAGMA user_version` is 1."""
    bench = Bench.started(tmp_path / "store.db")
    with sqlite3.connect(bench.path) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (1,)
        bench.ok(Raise(2))
        assert connection.execute("PRAGMA user_version").fetchone() == (2,)
    connection.close()
    bench.store.close()


@pytest.mark.parametrize("level", [1, 3])
def test_level_that_was_changed_on_the_disk_is_seen(tmp_path: Path, level: int) -> None:
    bench = Bench.started(tmp_path / "store.db")
    bench.ok(Raise(2))
    bench.store.close()
    with sqlite3.connect(bench.path) as connection:
        connection.execute(f"PRAGMA user_version={level}")
    connection.close()
    with pytest.raises(tables.CorruptStore, match=rf"level, checksum\): \[\(\d+, \d+, {level},"):
        Store.open(bench.path, {}, build=NEXT)


def test_copy_of_the_store_carries_the_level(tmp_path: Path) -> None:
    bench = Bench.started(tmp_path / "store.db")
    bench.ok(Raise(2))
    info = snapshots.make_copy(bench.path, tmp_path / "copy.db", lambda seconds: None)
    bench.store.close()
    with sqlite3.connect(tmp_path / "copy.db") as connection:
        assert tables.read_level(tmp_path / "copy.db", connection) == 2
        assert tables.read_position(tmp_path / "copy.db", connection) == (info.index, info.term)
    connection.close()


class _InterruptedConnection(sqlite3.Connection):
    """A worker's connection: before each statement but the first, `between` is called."""

    between: Callable[[], object] | None = None
    statements = 0

    def execute(self, sql: str, *values: Any) -> sqlite3.Cursor:  # type: ignore[override]
        self.statements += 1
        if self.statements > 1 and self.between is not None:
            self.between()
        return super().execute(sql, *values)


def test_a_level_that_is_raised_while_a_worker_reads_damages_nothing(tmp_path: Path) -> None:
    bench = Bench.started(tmp_path / "store.db")
    before = bench.store.applied_index
    with closing(sqlite3.connect(bench.path, factory=_InterruptedConnection)) as connection:
        connection.between = lambda: bench.ok(Raise(2))
        index, _ = tables.read_position(bench.path, connection)
    assert index in (before, bench.store.applied_index)
    bench.store.close()


# --- Hellos ---------------------------------------------------------------------------------------

MINE = Hello(1, "c", "b", "i", ("a", "b"), False, None, extension=Extension(BUILD, 2))
THEIRS = replace(MINE, node="a", incarnation="j")


def test_builds_that_both_understand_the_clusters_level_fit() -> None:
    assert unfit(MINE, THEIRS) == ""
    assert unfit(MINE, replace(THEIRS, extension=Extension(BUILD, 1))) == ""  # not applied yet
    old = replace(THEIRS, extension=Extension())
    assert unfit(replace(MINE, extension=Extension(BUILD, 1)), old) == ""


def test_either_side_says_which_build_is_too_old() -> None:
    old = replace(THEIRS, extension=Extension())
    said = "a runs a version that names no levels (0.1), which understands levels 1 to 1; "
    assert unfit(MINE, old) == f"{said}the cluster's level is 2: install a newer one"
    newer = replace(THEIRS, extension=Extension(NEXT, 6))
    reason = unfit(MINE, newer)
    assert reason.startswith(f"b runs {BUILD}")
    assert unfit(newer, MINE) == reason


def test_peer_that_cannot_read_an_entry_that_may_be_undone_is_no_member_meanwhile() -> None:
    assert can_read(THEIRS, 2)
    assert not can_read(replace(THEIRS, extension=Extension()), 2)
    assert not can_read(None, 1)
