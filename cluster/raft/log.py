"""The log as Raft sees it: what storage holds, and behind it what a step adds to be written.

What lives here: rules 1 and 2 of docs/raft.md (what is appended, skipped or replaced), in the shape
of pysyncobj's Journal. What must not: files, and what may never be replaced, which the journal
refuses.
"""
# ruff: noqa: N802, N803 (pysyncobj's names)

from __future__ import annotations

import pysyncobj.journal

from cluster.log import journal
from cluster.log.entries import NO_OP, Entry
from cluster.raft.ready import Storage


class Log(pysyncobj.journal.Journal):  # type: ignore[misc]  # pysyncobj is untyped
    """Storage with the entries of this step behind it, which `take` hands out.

    Whoever takes them has to write them to the storage before the next step.
    """

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._added: list[Entry] = []
        self._base: tuple[int, int] | None = None  # the log begins anew there, once it is written
        self._hard_state = storage.term, storage.vote
        self._hard_state_changed = False
        self.last_index, self.last_term = storage.last_index, storage.last_term

    def take(
        self,
    ) -> tuple[tuple[int, int] | None, tuple[int, str | None] | None, list[Entry]]:
        """Return what is to be written: where to begin anew, term and vote, entries."""
        taken = self._base, self._hard_state if self._hard_state_changed else None, self._added
        if self._added:
            self._added = []
        self._base, self._hard_state_changed = None, False
        return taken

    @property
    def first_index(self) -> int:
        """The index of the first entry."""
        if self._base is not None:
            return self._base[0]
        return self._storage.first_index

    def term_at(self, index: int) -> int | None:
        """Return the term of the entry at `index`, None when the log does not hold it."""
        if self._added and index >= self._added[0][1]:
            at = index - self._added[0][1]
            return self._added[at][2] if at < len(self._added) else None
        if self._base is not None:
            return self._base[1] if index == self._base[0] else None
        return self._storage.term_at(index)

    def entries(self, first_index: int, count: int) -> list[Entry]:
        """Return up to `count` entries from `first_index` on, capped as the journal's slices."""
        added = self._added
        if not added:
            return self._before(first_index, count)
        offset = added[0][1]
        if first_index >= offset:
            start = first_index - offset
            return journal.capped(added[start : start + count])
        found = self._before(first_index, min(count, offset - first_index))
        if len(found) < offset - first_index or len(found) == count:
            return found
        return journal.capped(found + added[: count - len(found)])

    def _before(self, first_index: int, count: int) -> list[Entry]:
        if self._base is None:
            return self._storage.entries(first_index, count)
        index, term = self._base
        return [(NO_OP, index, term)] if first_index == index and count else []

    def begin_anew(self, index: int, term: int) -> None:
        """Let the log begin at (index, term), the last entry that a copy of a store covers.

        Unless it is in the log: then everything stays (rule 2).
        """
        if self.term_at(index) == term:
            return
        self._added.clear()
        self._base = index, term
        self.last_index, self.last_term = index, term

    # --- what pysyncobj's core calls --------------------------------------------------------------

    def __len__(self) -> int:
        return self.last_index + 1 - self.first_index

    def __getitem__(self, item: int | slice) -> tuple[bytes, int, int] | list[Entry]:
        """Return the place of the first or the last entry, without a command, or a capped list."""
        if item == -1:
            return b"", self.last_index, self.last_term
        if item == 0:
            return b"", self.first_index, 0
        assert isinstance(item, slice), item
        first = self.first_index
        stop = self.last_index + 1 if item.stop is None else first + item.stop
        return self.entries(first + item.start, stop - (first + item.start))

    def add(self, command: bytes, idx: int, term: int) -> None:
        """Append an entry; skip it if (idx, term) is here; replace what conflicts with it."""
        if idx != self.last_index + 1:
            assert self.first_index <= idx <= self.last_index, (
                f"gap: entry {idx} does not follow [{self.first_index}, {self.last_index}]"
            )
            if self.term_at(idx) == term:
                return
            if self._added:
                del self._added[max(0, idx - self._added[0][1]) :]
        self._added.append((command, idx, term))
        self.last_index, self.last_term = idx, term

    def deleteEntriesFrom(self, entryFrom: int) -> None:
        """Do nothing: `add` finds out which entries conflict (rule 1)."""

    def deleteEntriesTo(self, entryTo: int) -> None:
        """Refuse: only the journal drops entries."""
        raise AssertionError(f"deleteEntriesTo({entryTo}): pysyncobj's compaction must be off")

    def clear(self) -> None:
        """Refuse: pysyncobj loads no dump."""
        raise AssertionError("clear: pysyncobj must load no dump")

    def setCurrentTerm(self, term: int, votedForNodeId: str | None) -> None:
        """Note term and vote, to be written with this step's entries."""
        if (term, votedForNodeId) != self._hard_state:
            self._hard_state = term, votedForNodeId
            self._hard_state_changed = True

    def getCurrentTerm(self) -> int:
        """Return the recorded term."""
        return self._hard_state[0]

    def getVotedForNodeId(self) -> str | None:
        """Return whom this node voted for in the recorded term."""
        return self._hard_state[1]

    def setRaftCommitIndex(self, raftCommitIndex: int) -> None:
        """Do nothing: the caller writes the hint."""

    def getRaftCommitIndex(self) -> int:
        """Return the hint that was written, within what the log proves."""
        return max(self.first_index, self._storage.commit_index)

    def _destroy(self) -> None:
        """Do nothing: the storage is the caller's."""
