"""The format of the Raft log's segment files: header, checksummed records, how damage shows.

What must not live here: the log itself, when a segment is begun or dropped, any access to a disk.
Reasons for the format: docs/decisions/0001-journal.md.

A segment is a header (magic, format version, sequence of its first record, CRC), then records: CRC,
payload's length, durable size of the segment when the record was made, kind, payload.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from pathlib import Path
from zlib import crc32

COMMAND_BYTES_MAX = 4 << 20
"""Largest command; below 2**24, which `_PLAUSIBLE` relies on to find the start of a record."""

ENTRY, HARD_STATE, COMMIT_HINT, BASE = 1, 2, 3, 4
"""Kinds of records. BASE is an entry with which the log begins anew, whatever came before."""

FORMAT_VERSION = 1
_MAGIC = b"FLOTLOG\0"
_HEADER = struct.Struct("<8sIQ")  # magic, format version, sequence of the first record
_CRC = struct.Struct("<I")
_HEAD = struct.Struct("<IIB")  # payload's length, durable size when it was made, kind
_ENTRY = struct.Struct("<QQ")  # index, term; the command follows
_HARD_STATE = struct.Struct("<QB")  # term, whether there is a vote; the vote follows (UTF-8)
_COMMIT_HINT = struct.Struct("<Q")
_OVERHEAD_BYTES = _CRC.size + _HEAD.size
_PLAUSIBLE = re.compile(
    rb"(?s).{4}(?:.{3}\x00.{4}[\x01\x04].{6}\x00\x00.{6}\x00\x00[\x00\x01]"
    rb"|.\x00\x00\x00.{4}[\x02\x03])"
)
"""What a record may begin with: an entry's index and term are PLACE_MAX at most, other kinds short.

A torn command may be full of what looks like records, and the checksum of each would go over all
that is behind it: a pattern that fits numbers in rows makes a start take minutes.
"""
_COMMAND_TYPE_MAX = 1
_U32 = 0xFFFFFFFF

SEGMENT_NAME = re.compile(r"[0-9]{20}\.log")
HEADER_BYTES = _HEADER.size + _CRC.size
ENTRY_OVERHEAD_BYTES = _OVERHEAD_BYTES + _ENTRY.size
"""What an entry's record takes besides its command, which ends it."""
RECORD_BYTES_MAX = ENTRY_OVERHEAD_BYTES + COMMAND_BYTES_MAX
"""The largest record."""


class JournalError(Exception):
    """The journal cannot be used as it is."""


class CorruptJournal(JournalError):
    """Something that was once durable is damaged: `file`, `offset` in bytes, `reason`."""

    def __init__(self, file: Path, offset: int, reason: str) -> None:
        self.file, self.offset, self.reason = file, offset, reason
        super().__init__(
            f"journal {file} is corrupt at offset {offset}: {reason}. To rebuild this node from "
            "the others: stop it, move its data directory away, start it again with an empty one; "
            "it copies the state from the leader and is readmitted."
        )


class ContradictedJournal(JournalError):
    """The leader's log differs in entries that this node knows to be committed."""

    def __init__(self, index: int, term: int, settled_index: int) -> None:
        super().__init__(
            f"the leader's entry {index} of term {term} contradicts this log, which is settled up "
            f"to {settled_index}: some node's data directory was put back to an older state. A "
            "directory must never be restored from a backup: wipe that node, and it is brought up "
            "from the others."
        )


class MissingJournal(JournalError):
    """There is no segment where a journal should be."""


class UnsupportedJournal(JournalError):
    """A segment was written in a format that this program does not know."""


class Segment:
    """One file: its place among the others, and what has been put into it.

    `start`: position of its first byte in the journal; `end`: its size in bytes, what is buffered
    included; `records`: their number; `last_index`: of its last entry (higher ones are replaced).
    """

    __slots__ = (
        "end",
        "fd",
        "header",
        "last_index",
        "path",
        "records",
        "salt",
        "sequence",
        "start",
    )

    def __init__(self, directory: Path, sequence: int, start: int) -> None:
        self.path = directory / f"{sequence:020d}.log"
        self.fd = -1
        self.sequence = sequence
        self.start = start
        self.end = HEADER_BYTES
        head = _HEADER.pack(_MAGIC, FORMAT_VERSION, sequence)
        self.header = head + _CRC.pack(crc32(head))
        self.salt = crc32(self.header)
        self.records = 0
        self.last_index = 0

    def encode(self, buffer: bytearray, kind: int, synced: int, fixed: bytes, tail: bytes) -> int:
        """Add a record to `buffer`, the segment's next bytes; return its offset.

        `synced`: how much of the segment is durable. The checksum starts from the record's place,
        so that a record's bytes are valid nowhere else, not even inside a command.
        """
        offset = self.end
        head = _HEAD.pack(len(fixed) + len(tail), synced, kind) + fixed
        buffer += _CRC.pack(crc32(tail, crc32(head, (self.salt + offset) & _U32)))
        buffer += head
        buffer += tail
        self.end = offset + _CRC.size + len(head) + len(tail)
        self.records += 1
        return offset

    def scan(self, data: bytes) -> Iterator[tuple[int, int]]:
        """Take over the records in `data`, the file's content; yield (kind, offset) of each.

        Ends before the first bad record, at `end`. Raises CorruptJournal, UnsupportedJournal.
        """
        self._check_header(data)
        while end := self._record_end(data, self.end, self.end):
            kind = data[self.end + _OVERHEAD_BYTES - 1]
            if self.records == 0 and kind != HARD_STATE:
                break
            yield kind, self.end
            self.end = end
            self.records += 1

    def pass_over(self, data: bytes, offset: int) -> tuple[int, int]:
        """Pass over good records; `data`: the file's bytes from the record at `offset` on.

        Returns the offset behind the last good one, and the size that a record there says it has.
        """
        at, size = 0, _OVERHEAD_BYTES
        while end := self._record_end(data, at, offset + at):
            at = end
        if at + _OVERHEAD_BYTES <= len(data):
            size += _HEAD.unpack_from(data, at + _CRC.size)[0]
        return offset + at, size

    def check_torn(self, data: bytes) -> None:
        """Raise CorruptJournal unless the bytes from `end` on may never have been durable.

        A bad record was durable if a later good one says so. Good records of the same unsynced
        write don't: a disk may lose the first page of a write and keep the second.
        """
        if self.records == 0:
            raise CorruptJournal(self.path, self.end, "term and vote are missing")
        at = self.end + 1
        while found := _PLAUSIBLE.search(data, at):
            at = found.start()
            durable = _HEAD.unpack_from(data, at + _CRC.size)[1]
            if self.end < durable <= at and self._record_end(data, at, at):
                reason = f"bad record, durable before the good one at {at} was made"
                raise CorruptJournal(self.path, self.end, reason)
            at += 1

    def command(self, data: bytes, offset: int, idx: int, term: int) -> bytes:
        """Return the command of the entry (idx, term), whose record at `offset` is `data`."""
        if not self._record_end(data, 0, offset):
            raise CorruptJournal(self.path, offset, f"entry {idx} of term {term} is damaged")
        found = _ENTRY.unpack_from(data, _OVERHEAD_BYTES)
        assert found == (idx, term), f"{found} at {offset}, not {idx, term}"
        return data[ENTRY_OVERHEAD_BYTES:]

    def entry(self, data: bytes, offset: int) -> tuple[int, int, int]:
        """Return index, term and command's size of the good ENTRY or BASE record at `offset`."""
        payload = self._payload(data, offset, _ENTRY.size)
        idx, term = _ENTRY.unpack_from(payload)
        if len(payload) == _ENTRY.size or payload[_ENTRY.size] > _COMMAND_TYPE_MAX:
            raise CorruptJournal(self.path, offset, f"entry {idx} is not a regular command")
        return idx, term, len(payload) - _ENTRY.size

    def hard_state(self, data: bytes, offset: int) -> tuple[int, str | None]:
        """Return term and vote of the good HARD_STATE record at `offset`."""
        payload = self._payload(data, offset, _HARD_STATE.size)
        term, voted = _HARD_STATE.unpack_from(payload)
        try:
            return term, str(payload[_HARD_STATE.size :], "utf-8") if voted else None
        except UnicodeDecodeError as error:
            raise CorruptJournal(self.path, offset, f"the vote is no text: {error}") from None

    def commit_hint(self, data: bytes, offset: int) -> int:
        """Return the index in the good COMMIT_HINT record at `offset`."""
        index: int = _COMMIT_HINT.unpack_from(self._payload(data, offset, _COMMIT_HINT.size))[0]
        return index

    def _payload(self, data: bytes, offset: int, least: int) -> memoryview:
        """Return the payload of the good record at `offset`; its kind has `least` bytes or more."""
        size, _, kind = _HEAD.unpack_from(data, offset + _CRC.size)
        if size < least:
            raise CorruptJournal(self.path, offset, f"a record of kind {kind} has {size} bytes")
        start = offset + _OVERHEAD_BYTES
        return memoryview(data)[start : start + size]

    def _record_end(self, data: bytes, at: int, offset: int) -> int:
        """Return where the record data[at:] ends, 0 if it isn't a good one for `offset`."""
        payload = at + _OVERHEAD_BYTES
        if payload > len(data):
            return 0
        length, _, kind = _HEAD.unpack_from(data, at + _CRC.size)
        end: int = payload + length
        if not ENTRY <= kind <= BASE or end > len(data):
            return 0
        body = memoryview(data)[at + _CRC.size : end]
        checksum = crc32(body, (self.salt + offset) & _U32)
        return end if _CRC.unpack_from(data, at)[0] == checksum else 0

    def _check_header(self, data: bytes) -> None:
        if data.startswith(self.header):
            return
        head = data[: _HEADER.size]
        if data[_HEADER.size : HEADER_BYTES] == _CRC.pack(crc32(head)) and head[:8] == _MAGIC:
            _, version, _ = _HEADER.unpack(head)
            if version != FORMAT_VERSION:
                raise UnsupportedJournal(
                    f"{self.path} has format {version}, this program reads {FORMAT_VERSION}"
                )
        raise CorruptJournal(self.path, 0, "bad header")


def entry_fixed(idx: int, term: int, command: bytes) -> bytes:
    """Return what stands before `command` in an entry's payload."""
    assert 0 < len(command) <= COMMAND_BYTES_MAX, f"entry {idx}: command of {len(command)} bytes"
    assert command[0] <= _COMMAND_TYPE_MAX, f"entry {idx}: command of type {command[0]}"
    return _ENTRY.pack(idx, term)


def hard_state_payload(term: int, vote: str | None) -> bytes:
    """Return a HARD_STATE's payload."""
    return _HARD_STATE.pack(term, vote is not None) + (vote or "").encode()


def commit_hint_payload(index: int) -> bytes:
    """Return a COMMIT_HINT's payload."""
    return _COMMIT_HINT.pack(index)
