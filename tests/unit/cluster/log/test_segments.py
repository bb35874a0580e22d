"""Recovery: torn tails are cut off, damage is refused with its place, nothing is defaulted."""

from __future__ import annotations

from pathlib import Path
from zlib import crc32

import pytest

from cluster.log import segments
from cluster.log.segments import (
    COMMIT_HINT,
    ENTRY,
    HARD_STATE,
    HEADER_BYTES,
    CorruptJournal,
    Segment,
    UnsupportedJournal,
    commit_hint_payload,
    entry_fixed,
    hard_state_payload,
)
from tests.unit.memory_disk import (
    NO_OP,
    ROOT,
    SMALL_BYTES,
    MemoryDisk,
    MemoryFile,
    command,
    entries,
    filled,
    lose_unsynced,
    open_journal,
)


@pytest.fixture
def disk() -> MemoryDisk:
    return MemoryDisk()


def only_file(disk: MemoryDisk) -> tuple[Path, bytes]:
    ((path, inode),) = disk.names.items()
    return path, bytes(inode.data)


def with_content(path: Path, data: bytes) -> MemoryDisk:
    return MemoryDisk({path: MemoryFile(bytearray(data), data)})


def test_a_tail_torn_at_any_byte_is_cut_off_and_the_rest_kept() -> None:
    disk = MemoryDisk()
    journal = filled(disk, 4)
    path, before = only_file(disk)
    journal.add(command(5), 5, 1)
    journal.sync()
    _, data = only_file(disk)
    for size in range(len(before), len(data)):
        for rest in (b"", b"\0", bytes(64)):
            torn = with_content(path, data[:size] + rest)
            again = open_journal(torn)
            assert [entry[1] for entry in entries(again)] == [1, 2, 3, 4], (size, rest)
            assert torn.names[path].durable == before, "cut off durably"
            again.add(command("new"), 5, 2)
            again.sync()
            assert open_journal(torn).entry(5) == (command("new"), 5, 2)


def record_offsets(data: bytes) -> list[int]:
    segment = Segment(ROOT, 0, 0)
    return [offset for _, offset in segment.scan(data)]


def test_a_flipped_bit_in_any_earlier_byte_is_refused_with_file_and_offset() -> None:
    disk = MemoryDisk()
    filled(disk, 4)
    path, data = only_file(disk)
    offsets = record_offsets(data)
    for at in range(offsets[-1]):
        damaged = bytearray(data)
        damaged[at] ^= 1 << (at % 8)
        begin = max([offset for offset in offsets if offset <= at], default=0)
        with pytest.raises(CorruptJournal, match="To rebuild this node from the others") as raised:
            open_journal(with_content(path, bytes(damaged)))
        assert (raised.value.file, raised.value.offset) == (path, begin), at
        assert f"{path} is corrupt at offset {begin}" in str(raised.value)


def test_a_flipped_bit_in_the_last_record_cannot_be_told_from_a_torn_tail() -> None:
    disk = MemoryDisk()
    filled(disk, 4)
    path, data = only_file(disk)
    for at in range(record_offsets(data)[-1], len(data)):
        damaged = bytearray(data)
        damaged[at] ^= 1 << (at % 8)
        assert open_journal(with_content(path, bytes(damaged))).last_index == 3, at


def test_clean_closing_makes_damage_to_the_last_entry_evident() -> None:
    disk = MemoryDisk()
    filled(disk, 4).close()
    path, data = only_file(disk)
    damaged = bytearray(data)
    damaged[data.index(command(4))] ^= 1
    with pytest.raises(CorruptJournal):
        open_journal(with_content(path, bytes(damaged)))


def test_a_lost_first_page_of_an_unsynced_write_is_a_torn_tail() -> None:
    disk = MemoryDisk()
    journal = filled(disk, 2)
    path, before = only_file(disk)
    for index in range(3, 9):
        journal.add(command(index), index, 1)
    journal.sync()
    _, data = only_file(disk)
    for hole in range(len(before), len(data)):
        torn = with_content(path, data[:hole] + b"\xff" + data[hole + 1 :])
        again = open_journal(torn)
        assert 2 <= again.last_index < 8
        assert len(torn.names[path].data) <= hole


def test_a_torn_command_is_looked_through_once_whatever_it_is_full_of(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    disk = MemoryDisk()
    journal = open_journal(disk, segment_bytes=1 << 20)
    number = 0x4E01  # a record's length, durable size and kind, by its bytes
    journal.add(b"\0" + number.to_bytes(4, "little") * 10_000, 1, 1)
    journal.sync()
    path, data = only_file(disk)
    checked_bytes = 0

    def counted(part: bytes, value: int = 0) -> int:
        nonlocal checked_bytes
        checked_bytes += len(part)
        return crc32(part, value)

    torn = with_content(path, data[:-1])
    monkeypatch.setattr(segments, "crc32", counted)
    assert open_journal(torn).last_index == 0
    assert checked_bytes < 2 * len(data)


def test_damage_is_told_by_any_later_record_and_not_by_the_next_one_alone() -> None:
    disk = MemoryDisk()
    journal = filled(disk, 1)
    for index in (2, 3):  # of one write: neither says of the other that it was durable
        journal.add(command(index), index, 1)
    journal.sync()
    journal.add(command(4), 4, 1)
    journal.sync()
    path, data = only_file(disk)
    damaged = bytearray(data)
    damaged[data.index(command(2))] ^= 1
    with pytest.raises(CorruptJournal, match="bad record, durable"):
        open_journal(with_content(path, bytes(damaged)))


def test_a_record_is_valid_at_its_own_place_only() -> None:
    """A command that holds a copy of the journal must not make its torn tail look like damage."""
    disk = MemoryDisk()
    journal = filled(disk, 4)
    path, copied = only_file(disk)
    before = len(copied)
    journal.add(b"\0" + copied, 5, 1)
    journal.sync()
    _, data = only_file(disk)
    assert open_journal(with_content(path, data[:-1])).last_index == 4
    assert len(data) - 1 > before


def test_a_bad_record_in_a_finished_segment_is_corruption_even_at_its_end(
    disk: MemoryDisk,
) -> None:
    filled(disk, 20, segment_bytes=SMALL_BYTES)
    first = ROOT / disk.list(ROOT, ".log")[0]
    del disk.names[first].data[-1:]
    with pytest.raises(CorruptJournal, match="others follow"):
        open_journal(disk)


def test_a_missing_segment_is_noticed(disk: MemoryDisk) -> None:
    filled(disk, 30, segment_bytes=SMALL_BYTES)
    second = disk.list(ROOT, ".log")[1]
    del disk.names[ROOT / second]
    with pytest.raises(CorruptJournal, match="begins at record"):
        open_journal(disk)


@pytest.mark.parametrize("size", [0, 1, HEADER_BYTES - 1, HEADER_BYTES, HEADER_BYTES + 5])
def test_missing_term_and_vote_are_never_defaulted(disk: MemoryDisk, size: int) -> None:
    open_journal(disk)
    path, data = only_file(disk)
    with pytest.raises(CorruptJournal):
        open_journal(with_content(path, data[:size]))


def segment_with(*records: tuple[int, bytes]) -> MemoryDisk:
    """Return a disk with one well-formed segment of these records."""
    segment = Segment(ROOT, 0, 0)
    buffer = bytearray(segment.header)
    for kind, payload in records:
        segment.encode(buffer, kind, 0, payload, b"")
    return with_content(segment.path, bytes(buffer))


FIRST = (HARD_STATE, hard_state_payload(5, "a"))


@pytest.mark.parametrize(
    ("records", "reason"),
    [
        ([(COMMIT_HINT, commit_hint_payload(1))], "term and vote are missing"),
        ([FIRST, (HARD_STATE, hard_state_payload(4, None))], "term 4 after 5"),
        ([FIRST, *((ENTRY, entry_fixed(i, 1, NO_OP) + NO_OP) for i in (1, 3))], "entry 3 after 1"),
        ([FIRST, (ENTRY, entry_fixed(1, 1, NO_OP) + b"\x02")], "not a regular command"),
        ([FIRST, (ENTRY, entry_fixed(1, 1, NO_OP))], "not a regular command"),
        ([FIRST, (ENTRY, b"short")], "a record of kind 1 has 5 bytes"),
        ([(HARD_STATE, b"")], "a record of kind 2 has 0 bytes"),
        ([(HARD_STATE, hard_state_payload(5, "a") + b"\xff")], "the vote is no text"),
        ([FIRST, (COMMIT_HINT, b"\x01"), FIRST], "a record of kind 3 has 1 bytes"),
    ],
)
def test_well_formed_nonsense_is_refused(records: list[tuple[int, bytes]], reason: str) -> None:
    with pytest.raises(CorruptJournal, match=reason):
        open_journal(segment_with(*records))


def test_another_format_version_is_named_and_not_called_damage(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("cluster.log.segments.FORMAT_VERSION", 9)
        disk = segment_with(FIRST)
    with pytest.raises(UnsupportedJournal, match="format 9, this program reads 1"):
        open_journal(disk)


def test_what_a_killed_process_wrote_is_synced_before_it_is_believed(disk: MemoryDisk) -> None:
    journal = filled(disk, 3)
    journal.add(command(4), 4, 1)
    journal._write()
    killed = MemoryDisk(disk.names)
    assert open_journal(killed).last_index == 4
    assert open_journal(killed.after_power_loss(lose_unsynced, "durable")).last_index == 4
