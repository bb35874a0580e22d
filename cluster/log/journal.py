"""The Raft log on disk: entries, term and vote in checksummed segment files.

What lives here: the log's index and cache in memory, recovery, and the rules by which entries are
added, replaced and dropped. What must not: the bytes of a record (segments.py), any meaning of a
command, elections, sockets, clocks, and when to sync or compact: the caller's turn has that order.

The format and the reasons for it: docs/decisions/0001-journal.md. Called from one thread.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

from cluster.log import segments
from cluster.log.entries import NO_OP, Entry
from cluster.log.files import DISK, FailStop, Files, exit_process
from cluster.log.sealed import Sealed
from cluster.log.segments import (
    SEGMENT_NAME,
    ContradictedJournal,
    CorruptJournal,
    JournalError,
    MissingJournal,
    Segment,
)
from cluster.settings.config import JournalSettings

CACHE_BYTES = 16 << 20
"""Recent commands kept in memory, with CACHE_ENTRY_BYTES each: followers rarely lag further."""
CACHE_ENTRY_BYTES = 128
"""What a cached command costs besides its bytes: object header, dict slot, key."""
SLICE_ENTRIES_MAX = 256
"""Longest slice returned: Raft asks for "all the rest" once a message."""
SLICE_BYTES_MAX = 4 << 20
"""A slice ends before its commands exceed this: one message to a follower."""
SLICE_ENTRIES_MIN = 2
"""No slice is cut shorter: whoever asks has to make progress."""
BUFFER_BYTES_MAX = 8 << 20
"""Records above this are written out without waiting for a sync: bounds the memory of a turn."""


def capped(entries: list[Entry]) -> list[Entry]:
    """Return as many of the entries, from the first on, as one slice may have."""
    size_bytes = 0
    for count, entry in enumerate(entries[:SLICE_ENTRIES_MAX]):
        size_bytes += len(entry[0])
        if size_bytes > SLICE_BYTES_MAX and count >= SLICE_ENTRIES_MIN:
            return entries[:count]
    return entries[:SLICE_ENTRIES_MAX]


def _never() -> bool:
    return False


class Journal:
    """Keep the log's entries, term and vote; nothing is promised before `sync` has returned.

    `applied_index`: what the caller's state machine holds. Entries up to it are never replaced.
    """

    def __init__(
        self,
        directory: Path,
        segment_bytes: int,
        keep_bytes: int,
        cache_bytes: int,
        files: Files,
        on_failure: Callable[[Exception], NoReturn],
    ) -> None:
        """Set up the memory alone: use `open`."""
        self.applied_index = 0
        self._directory, self._files = directory, files
        self._segment_bytes, self._keep_bytes = segment_bytes, keep_bytes
        self._cache_bytes_max = cache_bytes
        self._fail_stop = FailStop(on_failure, OSError, JournalError)
        self._segments: list[Segment] = []
        self._synced = 0  # durable bytes of the last segment
        self._buffer = bytearray()
        self._term, self._commit = 0, 0
        self._vote: str | None = None
        self._damaged_sequence = -1  # of the newest segment that is known to be damaged
        self._forget(1)

    @classmethod
    def create(cls, directory: Path, files: Files = DISK) -> None:
        """Write an empty journal (term 0, no vote) into `directory`, which must not hold one."""
        assert not cls.exists(directory, files), f"{directory} already holds a journal"
        files.make_directory(directory)
        journal = cls(
            directory,
            JournalSettings.segment_bytes,
            JournalSettings.keep_bytes,
            CACHE_BYTES,
            files,
            exit_process,
        )
        journal._start_segment()
        files.close(journal._segments[0].fd)

    @classmethod
    def open(
        cls,
        directory: Path,
        segment_bytes: int = JournalSettings.segment_bytes,
        keep_bytes: int = JournalSettings.keep_bytes,
        *,
        cache_bytes: int = CACHE_BYTES,
        files: Files = DISK,
        on_failure: Callable[[Exception], NoReturn] = exit_process,
    ) -> Journal:
        """Recover the journal in `directory`; a torn tail is cut off.

        Raises MissingJournal, CorruptJournal, UnsupportedJournal, OSError. Later failures of the
        disk go to `on_failure`, which must not return.
        """
        journal = cls(directory, segment_bytes, keep_bytes, cache_bytes, files, on_failure)
        names = files.list(directory, ".log")
        if not names:
            raise MissingJournal(f"no journal in {directory}")
        files.fsync_directory(directory)  # a killed process may have left the last name unsynced
        for name in names:
            journal._load(name, is_last=name == names[-1])
        return journal

    @staticmethod
    def exists(directory: Path, files: Files = DISK) -> bool:
        """Return whether `directory` holds a journal."""
        return bool(files.list(directory, ".log"))

    # What our own side asks

    @property
    def first_index(self) -> int:
        """The index of the first entry kept (1 in an empty journal)."""
        return self._first

    @property
    def last_index(self) -> int:
        """The index of the last entry (0 in an empty journal)."""
        return self._first + len(self._terms) - 1

    @property
    def last_term(self) -> int:
        """The term of the last entry (0 in an empty journal)."""
        return self._terms[-1] if self._terms else 0

    @property
    def dirty(self) -> bool:
        """Whether something is not yet durable."""
        return self._segments[-1].end != self._synced

    @property
    def size_bytes(self) -> int:
        """The size of all segments, what is buffered included."""
        return self._end() - self._segments[0].start

    def sealed(self) -> list[Sealed]:
        """Return the segments that nothing is written to any more, the oldest first."""
        return [Sealed(each.path, each.sequence, each.end) for each in self._segments[:-1]]

    def holds(self, sealed: Sealed) -> bool:
        """Return whether a segment has not been dropped meanwhile."""
        return any(each.sequence == sealed.sequence for each in self._segments)

    def note_damage(self, sealed: Sealed) -> None:
        """Have a damaged segment dropped, with those before it, as soon as the store allows it."""
        self._damaged_sequence = max(self._damaged_sequence, sealed.sequence)

    @property
    def damaged_index(self) -> int:
        """Up to where a checkpoint has to come for a damaged segment to be dropped; 0: for none.

        Also 0 while the log does not go on behind it.
        """
        damaged = [each for each in self._segments[:-1] if each.sequence <= self._damaged_sequence]
        index = damaged[-1].last_index + 1 if damaged else 0
        return index if index < self.last_index else 0

    def term_at(self, index: int) -> int | None:
        """Return the term of the entry at `index`, None when the journal does not hold it."""
        at = index - self._first
        return self._terms[at] if 0 <= at < len(self._terms) else None

    def small_entries(self, after_index: int, bytes_max: int) -> Iterator[tuple[int, bytes]]:
        """Yield (index, command) of the entries above `after_index` of at most so many bytes."""
        for at in range(max(0, after_index + 1 - self._first), len(self._terms)):
            if self._sizes[at] <= bytes_max:
                command, index, _ = self._entry(at)
                yield index, command

    def sync(self) -> None:
        """Make everything durable that was added so far: at most one write and one fdatasync."""
        segment = self._segments[-1]
        if segment.end == self._synced:
            return
        with self._fail_stop:
            self._write()
            self._files.fdatasync(segment.fd)
            self._synced = segment.end
            if segment.end >= self._segment_bytes:
                self._start_segment()

    def reset(self, index: int, term: int) -> None:
        """Drop all entries and begin at (index, term), the last one that a snapshot covers.

        Durable on return; term and vote stay. The snapshot must be durable before.
        """
        committed = self.commit_index
        with self._fail_stop:
            differs = index < committed or self.term_at(index) != term
            if self._terms and index <= committed and differs:
                raise JournalError(
                    f"the store stands at index {index} of term {term}, which contradicts the "
                    f"journal in {self._directory}: committed from {self._first} to {committed}"
                )
        self.sync()
        with self._fail_stop:
            old = len(self._segments)
            self._start_segment((index, term))
            self._drop_segments(old)

    def compact(self, durable_index: int, enough: Callable[[], bool] = _never) -> int:
        """Drop the oldest segments below `durable_index`, durable in the store; return how many.

        The entry at `durable_index` stays, and at least `keep_bytes` of log, but for damaged
        segments and those before them: nobody can be given what is in them, nor could this journal
        be opened again. One is dropped, then more until `enough()`: each waits for the disk, and
        there can be hundreds.
        """
        self.sync()
        below = min(durable_index, self.last_index - 1)  # a leader that offers a copy needs two
        count = 0
        for segment in self._segments[:-1]:
            later_bytes = self._end() - segment.start - segment.end
            is_kept = later_bytes < self._keep_bytes and segment.sequence > self._damaged_sequence
            if segment.last_index >= below or is_kept:
                break
            count += 1
        with self._fail_stop:
            return self._drop_segments(count, enough)

    # Entries, term and vote

    def entries(self, first_index: int, count: int) -> list[Entry]:
        """Return up to `count` entries from `first_index` on, none where it is not held.

        Capped: SLICE_ENTRIES_MAX, SLICE_BYTES_MAX.
        """
        start = first_index - self._first
        return [] if start < 0 else self._slice(start, min(start + count, len(self._terms)))

    def entry(self, index: int) -> Entry:
        """Return the entry at `index`. Raises IndexError where it is not held."""
        if not self._first <= index <= self.last_index:
            raise IndexError(f"entry {index} of [{self._first}, {self.last_index}]")
        return self._entry(index - self._first)

    def add(self, command: bytes, idx: int, term: int) -> None:
        """Append an entry; skip it if (idx, term) is here; replace what conflicts with it."""
        if idx == self._first + len(self._terms) or self._make_room(idx, term):
            self._append(segments.ENTRY, command, idx, term)

    @property
    def term(self) -> int:
        """The recorded term."""
        return self._term

    @property
    def vote(self) -> str | None:
        """Whom this node voted for in the recorded term."""
        return self._vote

    def set_term(self, term: int, vote: str | None) -> None:
        """Record term and vote; durable with the next `sync`, like everything else."""
        if (term, vote) == (self._term, self._vote):
            return
        assert term > self._term or (term == self._term and self._vote is None), (
            f"({self._term}, {self._vote}) -> ({term}, {vote})"
        )
        self._term, self._vote = term, vote
        self._put(segments.HARD_STATE, segments.hard_state_payload(self._term, self._vote))

    @property
    def commit_index(self) -> int:
        """The hint, within what the log proves: its first entry is always committed."""
        return max(self._first, min(self._commit, self.last_index))

    def note_commit(self, index: int) -> None:
        """Remember a hint, written with the next segment or on closing."""
        self._commit = index

    def advance(self, applied_index: int) -> None:
        """Note up to where the caller's state machine has applied the entries."""
        self.applied_index = applied_index

    def close(self) -> None:
        """Make everything durable and close the files; a second call does nothing."""
        if not self._segments:
            return
        self._put(segments.COMMIT_HINT, segments.commit_hint_payload(self._commit))
        self.sync()
        for segment in self._segments:
            self._files.close(segment.fd)
        self._segments.clear()

    # Adding

    def _make_room(self, idx: int, term: int) -> bool:
        """Remove what conflicts with (idx, term); return whether it is to be appended then."""
        assert self._first <= idx <= self.last_index, (
            f"gap: entry {idx} does not follow [{self._first}, {self.last_index}]"
        )
        if self.term_at(idx) == term:
            return False
        committed, applied = self.commit_index, self.applied_index
        with self._fail_stop:
            if idx <= max(committed, applied):
                raise ContradictedJournal(idx, term, max(committed, applied))
        self._truncate(idx - self._first)
        return True

    def _append(self, kind: int, command: bytes, idx: int, term: int) -> None:
        fixed = segments.entry_fixed(idx, term, command)
        self._index(self._put(kind, fixed, command), len(command), idx, term)
        self._cache[idx] = command
        self._cache_bytes += len(command) + CACHE_ENTRY_BYTES
        if len(self._buffer) >= BUFFER_BYTES_MAX:
            with self._fail_stop:
                self._write()
        if self._cache_bytes > self._cache_bytes_max:
            self._evict()

    def _index(self, position: int, size: int, idx: int, term: int) -> None:
        self._positions.append(position)
        self._sizes.append(size)
        self._terms.append(term)
        self._segments[-1].last_index = idx

    def _put(self, kind: int, fixed: bytes, tail: bytes = b"") -> int:
        """Buffer a record; return its position."""
        segment = self._segments[-1]
        return segment.start + segment.encode(self._buffer, kind, self._synced, fixed, tail)

    def _write(self) -> None:
        """Write the buffer out, without waiting for the disk."""
        fd = self._segments[-1].fd
        while self._buffer:
            written = self._files.write(fd, self._buffer)
            if written <= 0:
                raise OSError(f"write of {len(self._buffer)} bytes wrote {written}")
            del self._buffer[:written]

    def _end(self) -> int:
        """Return the position behind the last record."""
        return self._segments[-1].start + self._segments[-1].end if self._segments else 0

    def _next_sequence(self) -> int:
        """Return how many records there have ever been before the next one."""
        return self._segments[-1].sequence + self._segments[-1].records if self._segments else 0

    # Dropping

    def _forget(self, first: int) -> None:
        """Empty the log in memory; its next entry is `first`."""
        self._first = first
        self._positions, self._sizes, self._terms = array("Q"), array("I"), array("Q")
        self._cache: dict[int, bytes] = {}  # of the indexes from _cache_first to the last
        self._cache_first, self._cache_bytes = first, 0

    def _truncate(self, at: int) -> None:
        """Forget the entries from position `at` on."""
        for idx in range(max(self._cache_first, self._first + at), self.last_index + 1):
            self._cache_bytes -= len(self._cache.pop(idx)) + CACHE_ENTRY_BYTES
        del self._positions[at:], self._sizes[at:], self._terms[at:]
        self._cache_first = min(self._cache_first, self._first + at)

    def _evict(self) -> None:
        """Shrink the cache; what leaves it must be written, so that it can be read again."""
        unwritten = self._end() - len(self._buffer)
        while self._cache_bytes > self._cache_bytes_max and self._cache:
            if self._positions[self._cache_first - self._first] >= unwritten:
                with self._fail_stop:
                    self._write()
                unwritten = self._end()
            self._evict_first()

    def _evict_first(self) -> None:
        self._cache_bytes -= len(self._cache.pop(self._cache_first)) + CACHE_ENTRY_BYTES
        self._cache_first += 1

    def _drop_segments(self, count: int, enough: Callable[[], bool] = _never) -> int:
        """Remove the `count` oldest segments, each durably before the next; return how many.

        A crash must leave no gap, and a disk may reorder removals between two directory fsyncs.
        """
        dropped = 0
        for segment in self._segments[:count]:
            self._files.unlink(segment.path)
            self._files.fsync_directory(self._directory)
            self._files.close(segment.fd)
            dropped += 1
            if enough():
                break
        del self._segments[:dropped]
        gone = bisect_left(self._positions, self._segments[0].start)
        self._first += gone
        del self._positions[:gone], self._sizes[:gone], self._terms[:gone]
        while self._cache and self._cache_first < self._first:
            self._evict_first()
        return dropped

    def _start_segment(self, base: tuple[int, int] | None = None) -> None:
        """Go on in a new file that stands alone: term and vote, commit hint, the base if any.

        The previous one must be durable. Under its name the new file is complete or absent.
        """
        segment = Segment(self._directory, self._next_sequence(), self._end())
        unfinished = self._directory / "unfinished"
        segment.fd = self._files.open_append(unfinished)
        self._files.truncate(segment.fd, 0)  # left by a crash
        self._segments.append(segment)
        self._synced = 0
        self._buffer += segment.header
        self._put(segments.HARD_STATE, segments.hard_state_payload(self._term, self._vote))
        self._put(segments.COMMIT_HINT, segments.commit_hint_payload(self._commit))
        if base is not None:
            self._forget(base[0])
            self._append(segments.BASE, NO_OP, *base)
        self._write()
        self._files.fdatasync(segment.fd)
        self._files.rename(unfinished, segment.path)
        self._files.fsync_directory(self._directory)
        self._synced = segment.end

    # Reading

    def _slice(self, start: int, stop: int) -> list[Entry]:
        entries: list[Entry] = []
        size_bytes = 0
        for at in range(start, min(stop, start + SLICE_ENTRIES_MAX)):
            size_bytes += self._sizes[at]
            if size_bytes > SLICE_BYTES_MAX and len(entries) >= SLICE_ENTRIES_MIN:
                break
            entries.append(self._entry(at))
        return entries

    def _entry(self, at: int) -> Entry:
        idx = self._first + at
        command = self._cache.get(idx)
        if command is None:
            with self._fail_stop:
                command = self._read(at)
        return command, idx, self._terms[at]

    def _read(self, at: int) -> bytes:
        """Return the command at position `at` from its file, verified again."""
        position = self._positions[at]
        found = bisect_right(self._segments, position, key=lambda segment: segment.start)
        segment = self._segments[found - 1]
        offset = position - segment.start
        size = segments.ENTRY_OVERHEAD_BYTES + self._sizes[at]
        data = self._files.pread(segment.fd, size, offset)
        return segment.command(data, offset, self._first + at, self._terms[at])

    # Recovering

    def _load(self, name: str, *, is_last: bool) -> None:
        """Replay the segment `name` and make it the last one."""
        segment = self._open_segment(self._directory / name)
        if is_last:  # the others were synced before it was begun
            self._files.fdatasync(segment.fd)  # a killed process may have left it unsynced
            self._files.forget_cached(segment.fd)
        data = self._files.read(segment.path)
        for kind, offset in segment.scan(data):
            self._replay(segment, data, kind, offset)
        if segment.end < len(data) or not segment.records:
            if not is_last:
                raise CorruptJournal(segment.path, segment.end, "bad record, others follow")
            segment.check_torn(data)
            self._files.truncate(segment.fd, segment.end)
            self._files.fdatasync(segment.fd)
        self._synced = segment.end

    def _open_segment(self, path: Path) -> Segment:
        if not SEGMENT_NAME.fullmatch(path.name):
            raise CorruptJournal(path, 0, "it is no segment of a journal by its name")
        sequence, expected = int(path.stem), self._next_sequence()
        if self._segments and sequence != expected:
            raise CorruptJournal(path, 0, f"begins at record {sequence}, not at {expected}")
        segment = Segment(self._directory, sequence, self._end())
        segment.fd = self._files.open_append(path)
        self._segments.append(segment)
        return segment

    def _replay(self, segment: Segment, data: bytes, kind: int, offset: int) -> None:
        """Take over one record."""
        if kind == segments.COMMIT_HINT:
            self._commit = segment.commit_hint(data, offset)
        elif kind == segments.HARD_STATE:
            term, vote = segment.hard_state(data, offset)
            if term < self._term:
                raise CorruptJournal(segment.path, offset, f"term {term} after {self._term}")
            self._term, self._vote = term, vote
        else:
            self._replay_entry(segment, data, kind, offset)

    def _replay_entry(self, segment: Segment, data: bytes, kind: int, offset: int) -> None:
        idx, term, size = segment.entry(data, offset)
        # At or below the first: the log so far is replaced remains of a dropped segment's time.
        if kind == segments.BASE or not self._terms or idx <= self._first:
            self._forget(idx)
        elif idx <= self.last_index:
            self._truncate(idx - self._first)
        elif idx > self.last_index + 1:
            raise CorruptJournal(segment.path, offset, f"entry {idx} after {self.last_index}")
        self._index(segment.start + offset, size, idx, term)
        self._cache_first = idx + 1
