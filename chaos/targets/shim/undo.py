"""What a power loss leaves of a node's files: unsynced writes undone, the last of them torn.

What lives here: reading the undo log that shim.c wrote, and undoing a part of it. What must not:
the processes (they are dead by then), and which node loses power when.

After Pillai et al., "All File Systems Are Not Created Equal" (OSDI 2014): what is not synced may
survive as any first part of the writes to a file, or as any of its pages; files are independent of
each other, and so are the names in a directory. Names go back in their order, as in a file system
with a journal of its metadata.
"""

from __future__ import annotations

import os
import random
import shutil
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

BYTES, SYNCED, CREATED, RENAMED, REMOVED = range(1, 6)  # shim.c's enum kind
PAGE_BYTES: Final = 4096  # of the kernel's cache: what is written back at once
_RECORD: Final = struct.Struct("<4I4Q")  # shim.c's struct record

Keeps = Literal["lost", "torn", "pages"]
KEEPS: Final[tuple[Keeps, ...]] = ("lost", "torn", "pages")


@dataclass(frozen=True)
class UnsyncedRemainder:
    """What is left of a file's unsynced writes. Drawn from `rng`, file by file.

    `lost`: nothing. `torn`: any first part, the write at its end cut anywhere. `pages`: any pages.
    """

    keeps: Keeps
    rng: random.Random


LOST: Final = UnsyncedRemainder("lost", random.Random(0))  # which draws nothing


@dataclass(frozen=True)
class Loss:
    """What a power loss undid: writes (the torn ones too), changes of names, and torn writes."""

    writes: int
    names: int
    torn: int


@dataclass(frozen=True)
class WriteRecord:
    """One record of the log. `place`: where it stands there. Fields as in shim.c."""

    place: int
    kind: int
    inode: int
    offset: int
    new_bytes: int
    old_size: int
    first: str
    second: str
    old: bytes


def lose_power(log: Path, directory: Path, choice: UnsyncedRemainder) -> Loss:
    """Undo unsynced changes below `directory` as `choice` says; forget the rest of the log."""
    unsynced = _unsynced(list(_read(log)))
    kept = _kept(log)
    files = _by_inode(directory, kept)
    writes = torn = 0
    for inode in sorted({record.inode for record in unsynced if record.kind == BYTES}):
        own = [r for r in unsynced if r.kind == BYTES and r.inode == inode]
        if inode in files:
            undone, cut = _undo_bytes(files[inode], own, choice)
            writes, torn = writes + undone, torn + cut
    names = _undo_names([r for r in unsynced if r.kind != BYTES], kept, choice)
    forget(log)
    return Loss(writes, names, torn)


def trim(log: Path) -> None:
    """Cut off a record that a SIGKILL left unfinished: what it announced was never done."""
    if log.exists():
        end = max((r.place + _size(r) for r in _read(log)), default=0)
        os.truncate(log, end)


def forget(log: Path) -> None:
    """Take everything that is on the disk now for durable."""
    log.unlink(missing_ok=True)
    shutil.rmtree(_kept(log), ignore_errors=True)


def _kept(log: Path) -> Path:
    return log.with_name(log.name + ".kept")


def _read(log: Path) -> Iterator[WriteRecord]:
    data = log.read_bytes() if log.exists() else b""
    place = 0
    while place + _RECORD.size <= len(data):
        fields = _RECORD.unpack_from(data, place)
        kind, first, second, new_bytes, inode, offset, old_size, old_bytes = fields
        begin = place + _RECORD.size
        ends = (begin + first, begin + first + second, begin + first + second + old_bytes)
        if ends[2] > len(data):
            return
        names = (os.fsdecode(data[begin : ends[0]]), os.fsdecode(data[ends[0] : ends[1]]))
        old = data[ends[1] : ends[2]]
        yield WriteRecord(place, kind, inode, offset, new_bytes, old_size, *names, old)
        place = ends[2]


def _size(record: WriteRecord) -> int:
    names = len(os.fsencode(record.first)) + len(os.fsencode(record.second))
    return _RECORD.size + names + len(record.old)


def _unsynced(records: Sequence[WriteRecord]) -> list[WriteRecord]:
    until: dict[int, int] = {}
    for record in records:
        if record.kind == SYNCED:
            until[record.inode] = max(record.offset, until.get(record.inode, 0))
    changes = [record for record in records if record.kind != SYNCED]
    return [record for record in changes if record.place >= until.get(record.inode, 0)]


def _by_inode(*directories: Path) -> dict[int, Path]:
    files = (path for directory in directories for path in directory.rglob("*"))
    return {path.stat().st_ino: path for path in files if path.is_file()}


def _undo_bytes(
    path: Path, records: Sequence[WriteRecord], choice: UnsyncedRemainder
) -> tuple[int, int]:
    """Undo a file's records in part; return how many, and how many of them were torn."""
    now = path.read_bytes()
    if choice.keeps == "pages":
        path.write_bytes(_mixed(now, _undone(now, records), choice.rng))
        return len(records), 0
    survivors = 0 if choice.keeps == "lost" else choice.rng.randint(0, len(records))
    left = _undone(now, records[survivors:])
    torn = _tear(now, left, records[survivors:], choice)
    path.write_bytes(left if torn is None else torn)
    return len(records) - survivors, torn is not None


def _undone(data: bytes, records: Sequence[WriteRecord]) -> bytes:
    content = bytearray(data)
    for record in reversed(records):
        content[record.offset : record.offset + len(record.old)] = record.old
        missing = record.old_size - len(content)
        content += bytes(max(0, missing))
        del content[record.old_size :]
    return bytes(content)


def _tear(
    now: bytes, left: bytes, undone: Sequence[WriteRecord], choice: UnsyncedRemainder
) -> bytes | None:
    """Return `left` with a first part of the first undone write, None if there is none to tear."""
    if choice.keeps != "torn" or not undone or undone[0].new_bytes < 2:
        return None
    first = undone[0]
    written = _undone(now, undone[1:])[first.offset : first.offset + first.new_bytes]
    part = written[: choice.rng.randrange(1, first.new_bytes)]
    return left[: first.offset] + part + left[first.offset + len(part) :]


def _mixed(new: bytes, old: bytes, rng: random.Random) -> bytes:
    """Return pages of either; one that was to be appended and is missing reads as zeros."""
    size = rng.choice((len(new), len(old)))
    content = bytearray()
    for at in range(0, size, PAGE_BYTES):
        page = rng.choice((new, old))[at : at + PAGE_BYTES]
        content += page.ljust(min(PAGE_BYTES, size - at), b"\0")[: size - at]
    return bytes(content)


def _undo_names(records: Sequence[WriteRecord], kept: Path, choice: UnsyncedRemainder) -> int:
    undone = 0
    for inode in sorted({record.inode for record in records}):
        own = [record for record in records if record.inode == inode]
        survivors = 0 if choice.keeps == "lost" else choice.rng.randint(0, len(own))
        for record in reversed(own[survivors:]):
            _undo_name(record, kept / f"{record.inode}-{record.place}")
        undone += len(own) - survivors
    return undone


def _undo_name(record: WriteRecord, saved: Path) -> None:
    """Undo one change of a name; each may have been announced without having been done."""
    first, second = Path(record.first), Path(record.second)
    if record.kind == CREATED:
        first.unlink(missing_ok=True)
    elif record.kind == RENAMED and not first.exists():
        second.rename(first)
        if saved.exists():
            saved.rename(second)
    elif record.kind == REMOVED and saved.exists():
        saved.rename(first)
