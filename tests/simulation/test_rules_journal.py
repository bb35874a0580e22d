"""Rules 1 to 6 of docs/raft.md: what happens with each, and without it.

Rule 4's tuples and rule 5's checksums and torn tails have no schedule here: with rule 2 a list in
the place of a tuple does no harm (clear() decides by index and term), and damaged files are the
business of tests/unit/test_journal.py and test_journal_crashes.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from chaos.simulation.disks.disk import DiskFailed
from cluster.log import journal as journal_module
from cluster.log.files import FailStop
from cluster.log.journal import Journal
from cluster.raft.log import Log
from cluster.store import tables
from cluster.wire.messages import AppendEntries
from tests.simulation.disk import LabDisk
from tests.simulation.schedules import Stage, compare_with_and_without

# --- 1: add appends, skips or replaces; deleteEntriesFrom drops nothing ---------------------------


def late_heartbeat(directory: Path) -> list[str]:
    """A heartbeat is delayed past an entry; then the leader dies (audit: e01 b)."""
    stage = Stage(directory)
    stage.net.cut_off("c", "a", "b")
    recorded = stage.record("a", "b")
    stage.lab.run(0.2)
    heartbeat = [each for each in recorded if isinstance(each, AppendEntries)][-1]
    stage.publish("a", "x")
    stage.net.put("a", "b", heartbeat)
    stage.lab.turn("b")
    stage.lab.crash("a")
    return stage.damage("b")


def test_a_late_heartbeat_drops_nothing(tmp_path: Path) -> None:
    def delete_entries_from(log: Log, position: int) -> None:
        index = log.first_index + position
        journal: Any = log._storage
        journal._truncate(index - journal.first_index)
        log.last_index, log.last_term = index - 1, log.term_at(index - 1) or 0

    compare_with_and_without(
        late_heartbeat,
        lambda patch: patch.setattr(Log, "deleteEntriesFrom", delete_entries_from),
        tmp_path,
        "lost acknowledged x",
    )


# --- 2: a log that holds the store's last entry stays ---------------------------------------------


def restart_with_entries_beyond_the_store(directory: Path) -> list[str]:
    """An entry is acknowledged by the journals alone when all processes die (audit: e05 c)."""
    stage = Stage(directory)
    stage.net.cut_off("c", "a", "b")
    stage.publish("a", "x")
    stage.lab.crash("a", "b", "c")
    stage.lab.start("b", "c")
    return stage.damage("b")


def reset_always(patch: pytest.MonkeyPatch) -> None:
    def begin_anew(log: Log, index: int, term: int) -> None:
        log._base = log.last_index, log.last_term = index, term

    patch.setattr(Log, "begin_anew", begin_anew)


def test_a_restart_keeps_the_entries_beyond_the_store(tmp_path: Path) -> None:
    compare_with_and_without(
        restart_with_entries_beyond_the_store, reset_always, tmp_path, "lost acknowledged x"
    )


# --- 3: no entry is dropped that the database does not hold durably -------------------------------


def power_loss_after_compaction(directory: Path) -> list[str]:
    """All journals are compacted, then all nodes lose their power."""
    stage = Stage(directory, segment_bytes=1024, keep_bytes=0)
    stage.publish("a", *(f"x{number}" for number in range(8)))
    stage.lab.run(0.3)
    names = stage.lab.names
    for name in names:
        stage.lab.compact(name)
    stage.publish("a", "y")
    stage.lab.may_end = (AssertionError,)
    for name in names:
        stage.lab.lose_power(name)
    stage.lab.start(*names)
    stage.lab.run(0.1)
    if stage.lab.ended:
        return [f"{name} ended: {error}" for name, error in stage.lab.ended.items()]
    return stage.damage("b")


def compact_without_checkpoint(patch: pytest.MonkeyPatch) -> None:
    image = LabDisk.image

    def image_of_what_is_durable(disk: LabDisk, database: Path, suffixes: tuple[str, ...]) -> None:
        if suffixes == ("",):
            image(disk, database, suffixes)

    patch.setattr(LabDisk, "image", image_of_what_is_durable)
    patch.setattr(tables, "checkpoint", lambda path: 10**6)


def test_compaction_waits_for_the_database(tmp_path: Path) -> None:
    compare_with_and_without(
        power_loss_after_compaction, compact_without_checkpoint, tmp_path, "ended"
    )


# --- 4: slices are capped, but never below two entries --------------------------------------------


def backlog_for_a_follower(directory: Path) -> list[str]:
    """A follower is behind by more than a slice holds."""
    stage = Stage(directory)
    stage.lab.may_end = (AssertionError,)
    stage.net.cut_off("c", "a", "b")
    for letter in "xyz":
        stage.put("a", letter * 4096)
        stage.lab.run(0.2)
    stage.net.heal()
    stage.lab.run(1.0)
    if stage.lab.ended:
        return [f"{name} ended: {error!r}" for name, error in stage.lab.ended.items()]
    lag = stage.raft("a").applied_index - stage.raft("c").applied_index
    return [f"c lags {lag} entries"] if lag else stage.damage("a")


def test_a_slice_is_never_empty(tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(journal_module, "SLICE_BYTES_MAX", 1024)
        compare_with_and_without(
            backlog_for_a_follower,
            lambda inner: inner.setattr(journal_module, "SLICE_ENTRIES_MIN", 0),
            tmp_path,
            "ended",
        )


# --- 5: term and vote are on disk before anybody hears of them ------------------------------------


def voter_restarts(directory: Path) -> list[str]:
    """A voter dies after its vote and is asked by a second candidate in the same term."""
    stage = Stage(directory)
    stage.net.cut_off("c", "a", "b")
    stage.campaign("b")
    stage.lab.turn("b")
    stage.lab.turn("a")  # votes
    stage.net.cut_one_way("b", "a")
    stage.lab.step()  # b leads, but nobody hears of it
    stage.lab.crash("a")
    stage.net.cut.clear()
    stage.net.cut_off("b", "a", "c")
    stage.lab.start("a")
    stage.lab.step()
    stage.campaign("c")
    stage.lab.run(0.1)
    return stage.lab.oracle.evidence


def forget_term_and_vote(patch: pytest.MonkeyPatch) -> None:
    def set_term(journal: Journal, term: int, vote: str | None) -> None:
        journal._term, journal._vote = term, vote

    patch.setattr(Journal, "set_term", set_term)


def test_a_vote_outlives_the_process(tmp_path: Path) -> None:
    compare_with_and_without(voter_restarts, forget_term_and_vote, tmp_path, "lead term")


# --- 6: an error of the disk ends the process, and no fsync is tried twice ------------------------


def failing_fsync(directory: Path) -> list[str]:
    """The follower's fdatasync fails once; the kernel has dropped what it could not write."""
    stage = Stage(directory)
    stage.lab.may_end = (DiskFailed,)
    stage.net.cut_off("c", "a", "b")
    stage.lab.disks["b"].next_sync_fails = True
    stage.put("a", "x")
    stage.lab.run(0.2)
    if "b" in stage.lab.nodes:
        stage.lab.lose_power("b")
    else:
        stage.lab.disks["b"].lose_unsynced(None)
    stage.lab.ended.clear()
    stage.lab.crash("a")
    stage.lab.start("b")
    return stage.damage("b")


def test_a_failed_fsync_is_the_end(tmp_path: Path) -> None:
    compare_with_and_without(
        failing_fsync,
        lambda patch: patch.setattr(FailStop, "__exit__", lambda *arguments: True),
        tmp_path,
        "lost acknowledged x",
    )
