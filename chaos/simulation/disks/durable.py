"""What of the Raft log a simulated disk would still have after a power loss.

What lives here: reading a journal's durable bytes, and which of them it has proved to be durable.
What must not: the journal itself: it is the one that is checked.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from zlib import crc32

from chaos.simulation.disks.disk import Inode, SimDisk
from cluster.log import segments
from cluster.log.segments import CorruptJournal, Segment


def journal_files(disk: SimDisk) -> list[tuple[Path, Inode]]:
    """Return the journal's files, as far as their names are durable, in order."""
    journals = [each for each in disk._durable_names.items() if each[0].name.endswith(".log")]
    return sorted(journals, key=lambda each: each[0].name)  # all of them are of one directory


def proved_bytes(path: Path, data: bytes) -> int:
    """Return how many of a segment's first bytes are older than the sync before its last record.

    If one of them is damaged, the last record proves that it is no torn write.
    """
    segment, last = Segment(path.parent, int(path.stem), 0), 0
    try:
        for _, offset in segment.scan(data):
            last = offset
    except CorruptJournal:
        return 0
    return int.from_bytes(data[last + 8 : last + 12], "little") if last else 0


def record_edges(path: Path, data: bytes) -> list[int]:
    """Return where the records in a segment's first bytes begin; its beginning, if none does."""
    segment = Segment(path.parent, int(path.stem), 0)
    try:
        return [offset for _, offset in segment.scan(data)] or [0]
    except CorruptJournal:
        return [0]


def _synced(inode: Inode) -> bytes:
    return inode.synced


class DurableLog:
    """The entries on a disk, as if undamaged.

    `first_index`: where the log begins. `terms`: of its entries, by index.
    `term`: the last that is recorded. `checksums`: of the payloads, by index; a BASE has none: it
    is only where the log begins.
    """

    def __init__(self, disk: SimDisk, bytes_of: Callable[[Inode], bytes] = _synced) -> None:
        self.first_index = self.term = 0
        self.terms: dict[int, int] = {}
        self.checksums: dict[int, int] = {}
        for path, inode in journal_files(disk):
            self._take(path, bytes_of(inode))

    @classmethod
    def as_read(cls, disk: SimDisk) -> DurableLog:
        """Return what a process that opens the journal now finds, damage included."""
        return cls(disk, lambda inode: bytes(inode.data[: inode.durable_bytes]))

    def holds(self, index: int, term: int) -> bool:
        """Return whether the entry is in the log, or before its beginning and so in the store."""
        return self.terms.get(index) == term or 0 < index < self.first_index

    def _take(self, path: Path, data: bytes) -> None:
        segment = Segment(path.parent, int(path.stem), 0)
        try:
            for kind, offset in segment.scan(data):
                if kind == segments.HARD_STATE:
                    self.term, _ = segment.hard_state(data, offset)
                elif kind in (segments.ENTRY, segments.BASE):
                    index, term, size = segment.entry(data, offset)
                    self._add(kind, index, term)
                    begin = offset + segments.ENTRY_OVERHEAD_BYTES
                    if kind == segments.ENTRY:
                        self.checksums[index] = crc32(data[begin + 1 : begin + size])
        except CorruptJournal:
            return  # a torn header: nothing in it is durable

    def _add(self, kind: int, index: int, term: int) -> None:
        if kind == segments.BASE:
            self.terms.clear()
            self.checksums.clear()
            self.first_index = index
        elif not self.terms:
            self.first_index = index
        for later in range(index, index + len(self.terms)):
            if self.terms.pop(later, None) is None:
                break
        self.terms[index] = term
