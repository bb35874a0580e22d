"""The journal's rules one by one, and its life on a real disk.

What must not: damaged files (test_segments.py), power losses (test_journal_crashes.py).
"""

from __future__ import annotations

from pathlib import Path

import pytest

from cluster.log import journal as journal_module
from cluster.log.files import Files
from cluster.log.journal import Journal
from cluster.log.segments import (
    COMMAND_BYTES_MAX,
    CorruptJournal,
    MissingJournal,
)
from tests.unit.memory_disk import (
    NO_OP,
    ROOT,
    SMALL_BYTES,
    MemoryDisk,
    ProcessStopped,
    command,
    entries,
    filled,
    lose_unsynced,
    open_journal,
)


@pytest.fixture
def disk() -> MemoryDisk:
    return MemoryDisk()


@pytest.fixture
def journal(disk: MemoryDisk) -> Journal:
    return filled(disk, 5)


# --- rule 1: adding -------------------------------------------------------------------------


def test_an_empty_journal_begins_at_index_1_in_term_0_without_a_vote(disk: MemoryDisk) -> None:
    journal = open_journal(disk)
    assert (journal.first_index, journal.last_index, journal.last_term) == (1, 0, 0)
    assert (journal.term, journal.vote) == (0, None)
    assert not journal.dirty
    with pytest.raises(IndexError):
        journal.entry(0)


def test_entries_come_back_as_tuples_of_bytes_and_ints(journal: Journal) -> None:
    assert journal.entry(1) == (command(1), 1, 1)
    assert journal.entry(5) == (command(5), 5, 1)
    for entry in (journal.entry(1), *journal.entries(1, 9)):
        assert type(entry) is tuple
        assert [type(part) for part in entry] == [bytes, int, int]


def test_an_entry_that_is_not_held_raises_index_error(journal: Journal) -> None:
    for index in (0, 6):
        with pytest.raises(IndexError):
            journal.entry(index)


def test_slices_end_with_the_log_and_are_empty_where_it_holds_nothing(journal: Journal) -> None:
    everything = entries(journal)
    for first in range(1, 8):
        for count in range(7):
            assert journal.entries(first, count) == everything[first - 1 : first - 1 + count]
    assert journal.entries(0, 3) == []


def test_an_entry_that_is_here_is_skipped_and_nothing_after_it_lost(journal: Journal) -> None:
    journal.add(command(3), 3, 1)
    assert journal.last_index == 5
    assert not journal.dirty


def test_a_conflicting_entry_replaces_the_suffix(disk: MemoryDisk, journal: Journal) -> None:
    journal.add(command("new"), 4, 2)
    assert [entry[1:] for entry in entries(journal)] == [(1, 1), (2, 1), (3, 1), (4, 2)]
    assert journal.entry(4) == (command("new"), 4, 2)
    journal.sync()
    assert entries(open_journal(disk)) == entries(journal)


def test_a_committed_entry_is_never_replaced(journal: Journal) -> None:
    journal.note_commit(4)
    with pytest.raises(ProcessStopped, match="settled up to 4"):
        journal.add(command("x"), 4, 2)
    journal.add(command("x"), 5, 2)


def test_an_applied_entry_is_never_replaced(journal: Journal) -> None:
    journal.advance(4)
    with pytest.raises(ProcessStopped, match="settled up to 4"):
        journal.add(command("x"), 4, 2)
    journal.add(command("x"), 5, 2)


@pytest.mark.parametrize("index", [0, 7])
def test_a_gap_is_fatal(journal: Journal, index: int) -> None:
    with pytest.raises(AssertionError, match=f"gap: entry {index}"):
        journal.add(command("x"), index, 1)


@pytest.mark.parametrize("bad", [b"", b"\x02x", b"\x03", bytes(COMMAND_BYTES_MAX + 1)])
def test_only_regular_commands_and_no_ops_of_bounded_size_are_taken(
    journal: Journal, bad: bytes
) -> None:
    with pytest.raises(AssertionError, match="entry 6"):
        journal.add(bad, 6, 1)


# --- rule 2: a reset contradicts nothing ----------------------------------------------------


@pytest.mark.parametrize(("index", "term"), [(9, 1), (6, 1), (4, 3)])
def test_a_reset_begins_anew_and_is_durable(
    disk: MemoryDisk, journal: Journal, index: int, term: int
) -> None:
    journal.reset(index, term)
    assert entries(journal) == [(NO_OP, index, term)]
    assert not journal.dirty
    lost = disk.after_power_loss(lose_unsynced, "durable")
    assert entries(open_journal(lost)) == [(NO_OP, index, term)]
    assert len(disk.list(ROOT, ".log")) == 1


def test_a_snapshot_that_contradicts_committed_entries_stops_the_node(journal: Journal) -> None:
    journal.note_commit(4)
    with pytest.raises(ProcessStopped, match="contradicts"):
        journal.reset(4, 2)


def test_a_snapshot_below_the_first_entry_stops_the_node(disk: MemoryDisk) -> None:
    journal = open_journal(disk)
    journal.reset(100, 3)
    with pytest.raises(ProcessStopped, match="contradicts"):
        journal.reset(50, 3)


# --- reset and compaction (rule 3) ----------------------------------------------------------


def test_reset_is_durable_and_keeps_term_and_vote(disk: MemoryDisk, journal: Journal) -> None:
    journal.set_term(7, "b")
    journal.reset(50, 6)
    again = open_journal(disk.after_power_loss(lose_unsynced, "durable"))
    assert (again.first_index, again.last_index, again.last_term) == (50, 50, 6)
    assert (again.term, again.vote) == (7, "b")
    assert again.commit_index == 50
    again.add(command(51), 51, 7)
    assert [entry[1] for entry in entries(again)] == [50, 51]


def test_reset_behind_the_commit_index_is_refused(journal: Journal) -> None:
    journal.note_commit(4)
    with pytest.raises(ProcessStopped, match="contradicts"):
        journal.reset(3, 1)


def test_compaction_drops_whole_segments_below_the_durable_index(disk: MemoryDisk) -> None:
    journal = filled(disk, 40, segment_bytes=SMALL_BYTES)
    segments_before = len(disk.list(ROOT, ".log"))
    size_before = journal.size_bytes
    begun = len(disk.operations)
    dropped = journal.compact(20)
    assert dropped > 2
    assert disk.operations[begun:] == ["unlink", "fsync_directory"] * dropped
    assert len(disk.list(ROOT, ".log")) == segments_before - dropped
    assert journal.size_bytes < size_before
    assert 1 < journal.first_index <= 20
    assert journal.entry(journal.first_index) == (
        command(journal.first_index),
        journal.first_index,
        1,
    )
    assert journal.term_at(20) == 1
    assert journal.term_at(journal.first_index - 1) is None
    assert journal.compact(20) == 0
    assert entries(open_journal(disk)) == entries(journal)


def test_compaction_goes_on_where_it_stopped(disk: MemoryDisk) -> None:
    journal = filled(disk, 40, segment_bytes=SMALL_BYTES)
    whole = filled(MemoryDisk(), 40, segment_bytes=SMALL_BYTES)
    due = whole.compact(20)
    assert due > 2
    for _ in range(due):
        assert journal.compact(20, lambda: True) == 1
        assert entries(open_journal(disk)) == entries(journal)
    assert journal.compact(20, lambda: True) == 0
    assert entries(journal) == entries(whole)


@pytest.mark.parametrize("durable", range(1, 41))
def test_the_entry_at_the_durable_index_always_stays(disk: MemoryDisk, durable: int) -> None:
    journal = filled(disk, 40, segment_bytes=SMALL_BYTES)
    journal.compact(durable)
    assert journal.term_at(durable) == 1
    assert journal.last_index == 40


def test_compaction_keeps_the_last_entry_whatever_it_is_told() -> None:
    for count in range(20, 28):  # among them one that has just filled its segment
        disk = MemoryDisk()
        journal = filled(disk, count, segment_bytes=SMALL_BYTES)
        journal.compact(10**9)
        assert journal.entry(count) == (command(count), count, 1)
        assert open_journal(disk).last_index == count


def test_compaction_keeps_keep_bytes_of_log(disk: MemoryDisk) -> None:
    journal = filled(disk, 60, segment_bytes=SMALL_BYTES, keep_bytes=1000)
    journal.compact(60)
    assert 1000 <= journal.size_bytes <= 1000 + 2 * SMALL_BYTES


def test_compaction_never_drops_what_only_a_buffer_replaces(disk: MemoryDisk) -> None:
    journal = filled(disk, 20, segment_bytes=SMALL_BYTES)
    journal.add(command(21), 21, 1)
    journal.compact(21)
    again = open_journal(disk.after_power_loss(lose_unsynced, "durable"))
    assert again.term_at(21) == 1


def test_replaced_entries_in_a_dropped_segments_successor_are_ignored(disk: MemoryDisk) -> None:
    """1..10 | 11..20, then 9' ..: when the segment with 1..8 is gone, 11.. must not be a base."""
    journal = filled(disk, 20, segment_bytes=SMALL_BYTES)
    journal.set_term(2, None)
    for index in range(9, 60):
        journal.add(command(f"{index}'"), index, 2)
        journal.sync()
    for durable in range(1, 60):
        journal.compact(durable)
        assert entries(open_journal(disk, segment_bytes=SMALL_BYTES)) == entries(journal)


# --- rule 4: slices and memory --------------------------------------------------------------


def test_slices_are_capped_in_entries(disk: MemoryDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = filled(disk, 9)
    monkeypatch.setattr(journal_module, "SLICE_ENTRIES_MAX", 4)
    assert [entry[1] for entry in journal.entries(4, 99)] == [4, 5, 6, 7]


def test_slices_are_capped_in_bytes_but_not_below_two_entries(
    disk: MemoryDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = filled(disk, 9)
    monkeypatch.setattr(journal_module, "SLICE_BYTES_MAX", 3 * len(command(1)))
    assert [entry[1] for entry in journal.entries(4, 99)] == [4, 5, 6]
    monkeypatch.setattr(journal_module, "SLICE_BYTES_MAX", 1)
    assert [entry[1] for entry in journal.entries(4, 99)] == [4, 5]


def test_entries_evicted_from_the_cache_are_read_from_disk_even_before_a_sync(
    disk: MemoryDisk,
) -> None:
    journal = open_journal(disk, cache_bytes=500)
    for index in range(1, 30):
        journal.add(command(index), index, 1)
    assert len(journal._cache) < 5
    assert entries(journal) == [(command(index), index, 1) for index in range(1, 30)]
    assert journal.dirty
    journal.add(command("new"), 3, 2)
    assert entries(journal)[2:] == [(command("new"), 3, 2)]
    for index in range(4, 30):
        journal.add(command(index), index, 2)
    assert len(journal._cache) < 5
    assert entries(journal)[3:] == [(command(index), index, 2) for index in range(4, 30)]


def test_a_large_buffer_is_written_without_a_sync(
    disk: MemoryDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_module, "BUFFER_BYTES_MAX", 100)
    journal = open_journal(disk)
    for index in range(1, 10):
        journal.add(command(index), index, 1)
    assert len(journal._buffer) < 100
    assert journal.dirty


def test_memory_per_entry_outside_the_cache_is_at_most_24_bytes(disk: MemoryDisk) -> None:
    journal = open_journal(disk)
    arrays = (journal._positions, journal._sizes, journal._terms)
    assert sum(part.itemsize for part in arrays) <= 24


def test_a_damaged_entry_is_found_when_it_is_read_and_stops_the_node(disk: MemoryDisk) -> None:
    filled(disk, 5)
    journal = open_journal(disk)
    (inode,) = disk.names.values()
    inode.data[inode.data.index(command(3))] ^= 1
    assert journal.entry(2) == (command(2), 2, 1)
    with pytest.raises(ProcessStopped, match="entry 3 of term 1 is damaged"):
        journal.entry(3)
    del inode.data[20:]
    with pytest.raises(ProcessStopped, match="entry 2 of term 1 is damaged"):
        journal.entry(2)


# --- rule 5: term, vote, commit index -------------------------------------------------------


def test_term_and_vote_survive_a_power_loss_after_sync(disk: MemoryDisk) -> None:
    journal = open_journal(disk)
    for term, vote in ((3, None), (3, "node-ü"), (4, "c"), (9, None)):
        journal.set_term(term, vote)
        assert journal.dirty
        journal.sync()
        again = open_journal(disk.after_power_loss(lose_unsynced, "durable"))
        assert (again.term, again.vote) == (term, vote)


def test_an_unchanged_vote_costs_no_sync(disk: MemoryDisk) -> None:
    journal = open_journal(disk)
    journal.set_term(3, "a")
    journal.sync()
    done = len(disk.operations)
    journal.set_term(3, "a")
    assert not journal.dirty
    journal.sync()
    assert len(disk.operations) == done


@pytest.mark.parametrize(("term", "vote"), [(2, None), (3, "b"), (3, None)])
def test_a_term_never_goes_back_and_a_vote_never_changes(
    disk: MemoryDisk, term: int, vote: str | None
) -> None:
    journal = open_journal(disk)
    journal.set_term(3, "a")
    with pytest.raises(AssertionError, match=r"\(3, a\) ->"):
        journal.set_term(term, vote)


def test_every_segment_stands_alone(disk: MemoryDisk) -> None:
    journal = open_journal(disk, segment_bytes=SMALL_BYTES)
    journal.set_term(5, "a")
    for index in range(1, 60):
        journal.add(command(index), index, 5)
        journal.sync()
    journal.compact(59)
    again = open_journal(disk)
    assert (again.term, again.vote) == (5, "a")


def test_the_commit_hint_stays_within_the_log(disk: MemoryDisk, journal: Journal) -> None:
    journal.note_commit(99)
    assert journal.commit_index == 5
    journal.note_commit(3)
    assert journal.commit_index == 3
    assert not journal.dirty, "a hint is not worth a sync"
    journal.close()
    assert open_journal(disk).commit_index == 3


def test_the_commit_hint_is_at_least_the_first_entry(disk: MemoryDisk) -> None:
    journal = open_journal(disk)
    assert journal.commit_index == 1
    journal.reset(70, 2)
    journal.note_commit(1)
    assert journal.commit_index == 70


def test_a_closed_journal_is_closed_once_and_durable(disk: MemoryDisk) -> None:
    journal = filled(disk, 3)
    journal.add(command(4), 4, 1)
    journal.close()
    journal.close()
    again = open_journal(disk.after_power_loss(lose_unsynced, "durable"))
    assert again.last_index == 4


# --- recovery -------------------------------------------------------------------------------


def test_open_refuses_a_directory_without_a_journal(tmp_path: Path) -> None:
    with pytest.raises(MissingJournal, match="no journal"):
        Journal.open(tmp_path / "absent")


def test_create_refuses_a_directory_with_a_journal(disk: MemoryDisk, journal: Journal) -> None:
    with pytest.raises(AssertionError, match="already holds"):
        Journal.create(ROOT, disk)


# --- rule 6: fail-stop ----------------------------------------------------------------------


@pytest.mark.parametrize("operation", ["write", "fdatasync"])
def test_a_failed_sync_stops_the_node_and_is_not_retried(disk: MemoryDisk, operation: str) -> None:
    journal = filled(disk, 3)
    journal.add(command(4), 4, 1)
    disk.error_in = operation
    before = len(disk.operations)
    with pytest.raises(ProcessStopped, match=f"injected into {operation}"):
        journal.sync()
    assert disk.operations[before:].count(operation) == 1


@pytest.mark.parametrize(
    "operation", ["open_append", "truncate", "rename", "fsync_directory", "unlink"]
)
def test_a_failed_reset_stops_the_node(disk: MemoryDisk, operation: str) -> None:
    journal = filled(disk, 3)
    disk.error_in = operation
    with pytest.raises(ProcessStopped, match=f"injected into {operation}"):
        journal.reset(9, 1)


def test_a_failed_removal_in_compaction_stops_the_node(disk: MemoryDisk) -> None:
    journal = filled(disk, 30, segment_bytes=SMALL_BYTES)
    disk.error_in = "unlink"
    with pytest.raises(ProcessStopped, match="injected into unlink"):
        journal.compact(30)


@pytest.mark.parametrize("cause", ["buffer", "cache"])
def test_a_failed_write_within_add_stops_the_node(
    disk: MemoryDisk, monkeypatch: pytest.MonkeyPatch, cause: str
) -> None:
    if cause == "buffer":
        monkeypatch.setattr(journal_module, "BUFFER_BYTES_MAX", 1)
    journal = open_journal(disk, cache_bytes=1 << 20 if cause == "buffer" else 0)
    disk.error_in = "write"
    with pytest.raises(ProcessStopped, match="injected into write"):
        journal.add(command(1), 1, 1)


def test_a_write_that_writes_nothing_is_an_error(
    disk: MemoryDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = filled(disk, 3)
    journal.add(command(4), 4, 1)
    monkeypatch.setattr(disk, "write", lambda _fd, _data: 0)
    with pytest.raises(ProcessStopped, match="wrote 0"):
        journal.sync()


# --- the real disk --------------------------------------------------------------------------


def test_the_real_disk_keeps_a_life_with_rolls_compaction_and_reset(tmp_path: Path) -> None:
    directory = tmp_path / "node" / "journal"
    journal = filled(Files(), 30, directory=directory, segment_bytes=SMALL_BYTES)
    journal.compact(15)
    assert journal.first_index > 1
    journal.add(command("new"), 28, 2)
    journal.close()
    again = open_journal(Files(), directory)
    assert again.entry(28) == (command("new"), 28, 2)
    assert again.first_index == journal.first_index
    again.reset(100, 2)
    again.close()
    assert entries(open_journal(Files(), directory)) == [(NO_OP, 100, 2)]
    (segment,) = directory.iterdir()
    with segment.open("ab") as file:
        file.write(b"torn")
    size = segment.stat().st_size
    open_journal(Files(), directory).close()
    assert b"torn" not in segment.read_bytes()
    assert segment.stat().st_size > size - 4, "closing adds its own record"


@pytest.mark.parametrize("name", ["notes.log", "1.log", "-0000000000000000009.log"])
def test_a_file_that_is_no_segment_by_its_name_is_told_and_not_read(
    tmp_path: Path, name: str
) -> None:
    Journal.create(tmp_path / "journal")
    (tmp_path / "journal" / name).touch()
    with pytest.raises(CorruptJournal, match=f"{name} .* no segment of a journal by its name"):
        Journal.open(tmp_path / "journal")
