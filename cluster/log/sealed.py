"""Reading back a segment that nobody writes any more, piece by piece, each record's checksum.

What lives here: the reading of a piece, for a worker thread. What must not: which segments there
are (journal.py), when they are read and what follows from damage (node/scrub.py).
"""

from __future__ import annotations

import errno
from dataclasses import dataclass
from pathlib import Path

from cluster.log.files import Files
from cluster.log.segments import (
    ENTRY_OVERHEAD_BYTES,
    HEADER_BYTES,
    RECORD_BYTES_MAX,
    Segment,
)


@dataclass(frozen=True, slots=True)
class Sealed:
    """A segment as the journal knows it. `size_bytes`: of its file."""

    path: Path
    sequence: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class CheckedPiece:
    """What was read of a segment.

    `offset`: where the next piece begins; the segment's size if there is none. `size_bytes`: how
    much was read. `damage`: what is wrong at `damaged_offset`, "" for nothing. Behind damage no
    more is read: a record's place is known by the one before it.
    """

    offset: int
    size_bytes: int
    damage: str = ""
    damaged_offset: int = 0


def check_piece(sealed: Sealed, offset: int, bytes_max: int, files: Files) -> CheckedPiece:
    """Read and check a segment's records from the one at `offset` on, 0 for its header.

    As many as are in `bytes_max`, at least one; not from the kernel's cache but from the disk.
    Raises OSError if the file can't be opened; one that can't be read is damaged.
    """
    descriptor = files.open_read(sealed.path)
    try:
        if not offset:
            files.forget_cached(descriptor)
        return _checked(sealed, descriptor, offset, bytes_max, files)
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        return CheckedPiece(sealed.size_bytes, 0, f"it can't be read: {error.strerror}", offset)
    finally:
        files.close(descriptor)


def _checked(
    sealed: Sealed, descriptor: int, offset: int, bytes_max: int, files: Files
) -> CheckedPiece:
    segment, size_bytes = Segment(sealed.path.parent, sealed.sequence, 0), sealed.size_bytes
    if not offset:
        if files.pread(descriptor, HEADER_BYTES, 0) != segment.header:
            return CheckedPiece(size_bytes, HEADER_BYTES, "bad header", 0)
        offset = HEADER_BYTES
    read_bytes = max(bytes_max, ENTRY_OVERHEAD_BYTES)  # a record says there how long it is
    data = files.pread(descriptor, min(read_bytes, size_bytes - offset), offset)
    end, wanted_bytes = segment.pass_over(data, offset)
    if end == offset and len(data) < wanted_bytes <= min(RECORD_BYTES_MAX, size_bytes - offset):
        data = files.pread(descriptor, wanted_bytes, offset)  # a record that is larger than a piece
        end, wanted_bytes = segment.pass_over(data, offset)
    read_to = offset + len(data)
    if end == size_bytes:
        more = files.pread(descriptor, 1, end)
        return CheckedPiece(end, len(data), "more bytes than were written" if more else "", end)
    if end > offset and read_to - end < wanted_bytes and read_to < size_bytes:
        return CheckedPiece(end, len(data))  # the next record goes beyond what was read
    return CheckedPiece(size_bytes, len(data), "bad record", end)
