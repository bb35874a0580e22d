"""Each machine's Raft log as its disk has it, followed while it grows.

What lives here: reading the durable bytes of a journal as they come, by the format alone
(docs/decisions/0001-journal.md). What must not: the journal and its segments, which are checked by
this; a disk that was damaged (durable.py reads one whole).
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from chaos.simulation.disks.disk import Inode, SimDisk
from chaos.simulation.disks.durable import journal_files
from chaos.simulation.world.node import SimNode

HEADER_BYTES: Final = 24  # magic, version, sequence, CRC
_HEAD: Final = Struct("<IIIB")  # CRC, payload's length, durable size then, kind
_ENTRY: Final = Struct("<QQ")  # index, term
_HARD_STATE: Final = Struct("<QB")  # term, whether there is a vote
_KIND_ENTRY, _KIND_HARD_STATE, _KIND_BASE = 1, 2, 4


class Mirror:
    """The durable log of one machine.

    `terms`: of its entries, by index; `last_index`, `last_term`: of the last one; `base_index`:
    where the log begins, everything before is in the store. `term`, `vote`: the hard state.
    """

    def __init__(self, node: SimNode) -> None:
        self.node = node
        self._life = -1
        self._disk: SimDisk | None = None  # at the last look
        self._changes = -1  # of it, by then
        self._journals: list[Inode] = []  # in their order, as long as nobody's name changes
        self._names_changes = -1
        self._read: dict[Inode, int] = {}
        self._begin()

    def _begin(self) -> None:
        self.terms: dict[int, int] = {}
        self.base_index = self.last_index = self.term = 0
        self.vote: str | None = None
        self._read.clear()

    @property
    def last_term(self) -> int:
        """The term of the last entry, 0 without one."""
        return self.terms.get(self.last_index, 0)

    def holds(self, index: int, term: int) -> bool:
        """Return whether an entry is in the log, or before its beginning."""
        return self.terms.get(index) == term or 0 < index < self.base_index

    def look(self) -> Mirror:
        """Read what has become durable since the last look; return itself."""
        node = self.node
        disk, life = node.disk, node.life
        if disk.durable_changes == self._changes and life == self._life and disk is self._disk:
            return self
        if life != self._life:  # what a dead process left may be cut
            self._life = life
            self._begin()
        if disk is not self._disk or disk.durable_names_changes != self._names_changes:
            self._names_changes = disk.durable_names_changes
            self._journals = [inode for _, inode in journal_files(disk)]
        self._disk, self._changes = disk, disk.durable_changes
        for inode in self._journals:
            at = self._read.get(inode, HEADER_BYTES)
            if inode.durable_bytes > at:
                self._read[inode] = self._follow(inode, at)
        return self

    def _follow(self, inode: Inode, at: int) -> int:
        data, end = inode.data, inode.durable_bytes
        if inode.intact is not None:  # what was promised does not shrink by a fault
            data, end = inode.intact, inode.intact_durable_bytes
        while at + _HEAD.size <= end:
            _, length, _, kind = _HEAD.unpack_from(data, at)
            body = at + _HEAD.size
            if not length or body + length > end:
                break
            if kind == _KIND_HARD_STATE:
                self.term, voted = _HARD_STATE.unpack_from(data, body)
                vote = bytes(data[body + _HARD_STATE.size : body + length])
                self.vote = vote.decode() if voted else None
            elif kind in (_KIND_ENTRY, _KIND_BASE):
                self._add(kind, *_ENTRY.unpack_from(data, body))
            at = body + length
        return at

    def _add(self, kind: int, index: int, term: int) -> None:
        if kind == _KIND_BASE:
            self.terms.clear()
        if not self.terms or index <= self.base_index:
            self.terms.clear()
            self.base_index = index
        for later in range(index + 1, self.last_index + 1):
            self.terms.pop(later, None)
        self.terms[index] = term
        self.last_index = index
