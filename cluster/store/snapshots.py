"""Copies of the store's database for members that are too far behind: made, checked, swapped in.

What lives here: files, and how SQLite copies what is in them. What must not: who copies what for
whom, and when (`cluster/members/catchup.py`); the connection to the peer.

`make_copy` and `Download.verify` take seconds and belong into a worker thread; the rest is quick.
"""

from __future__ import annotations

import errno
import hashlib
import os
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol
from urllib.parse import quote

from cluster.log.files import DISK
from cluster.store import rows, tables

STEP_BYTES: Final = 1024 * 1024  # copied or read at once, then a pause
STEP_PAUSE_S: Final = 0.002  # leaves the disk and the interpreter to the node's loop
SYNC_BYTES: Final = 8 * 1024 * 1024  # written between two fdatasync: the journal's wait behind one
LOOK_INSTRUCTIONS: Final = 64  # of SQLite's, between two looks at a copy: about 20 rows
READER_BUSY_MS_MAX: Final = 5_000  # a checkpoint may hold up the start of a copy
# What a copy, made or pulled, has to leave free: a journal whose disk is full ends its node.
COPY_LEAVES_BYTES: Final = 16 * 1024 * 1024
# A store of version 0.1 up to this size is made anew at the start, in about a second, so that its
# file can shrink; a larger one would keep its node away for too long.
REMADE_BYTES_MAX: Final = 256 * 1024 * 1024
_INSTALL: Final = ".install"


class DamagedCopy(OSError):
    """A copy is not what was announced: drop it and fetch it again."""


class Chunk(Protocol):
    """A piece of a copy with what the whole is (`cluster.wire.messages.SnapshotChunk`)."""

    @property
    def snapshot_id(self) -> str:
        """Names the copy at its source."""

    @property
    def index(self) -> int:
        """The copy's applied index."""

    @property
    def term(self) -> int:
        """The copy's applied term."""

    @property
    def size_bytes(self) -> int:
        """The whole copy's size."""

    @property
    def digest(self) -> bytes:
        """The whole copy's SHA-256."""

    @property
    def offset(self) -> int:
        """Where `data` begins."""

    @property
    def data(self) -> bytes:
        """The piece."""


@dataclass(frozen=True)
class SnapshotInfo:
    """What a finished copy is: applied (index, term), size and SHA-256 of the file."""

    index: int
    term: int
    size_bytes: int
    digest: bytes


@dataclass(frozen=True)
class Verified:
    """A downloaded copy that is whole and on disk.

    `members` {name: incarnation} and the cluster's feature `level` stand in it.
    """

    path: Path
    index: int
    term: int
    members: dict[str, str]
    level: int


# --- the source ---------------------------------------------------------------------------------


def make_copy(
    database: Path, path: Path, pause: Callable[[float], None] = time.sleep
) -> SnapshotInfo:
    """Copy what the database holds, as of its last commit, to `path`; return what it is.

    One read transaction spans the whole copy, so it is consistent; the database may be written
    meanwhile. `pause(seconds)` is called between steps. Raises OSError, sqlite3.Error,
    CorruptStore.
    """
    path.unlink(missing_ok=True)
    with closing(tables.connect(database, READER_BUSY_MS_MAX)) as source:
        check_room(path.parent, tables.used_bytes(source))
        _copy_in_steps(database, source, path, pause)
    _check_rows(path, database, pause)
    with open(path, "rb") as file:
        os.fsync(file.fileno())
    with closing(_open_whole(path)) as connection:
        index, term = tables.read_position(database, connection)
    return SnapshotInfo(index, term, path.stat().st_size, _digest_of(path, pause))


def check_room(directory: Path, size_bytes: int) -> None:
    """Raise OSError if a file of so many bytes would leave the disk too full for the journal."""
    free_bytes = DISK.free_bytes(directory)
    if free_bytes - size_bytes < COPY_LEAVES_BYTES:
        what = f"a copy of {size_bytes} bytes has no room in {free_bytes}"
        raise OSError(errno.ENOSPC, what, str(directory))


def _copy_in_steps(
    database: Path, source: sqlite3.Connection, path: Path, pause: Callable[[float], None]
) -> None:
    """Have SQLite copy, and pause it each time that the copy has grown by STEP_BYTES."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CREAT, 0o640)  # SQLite takes an empty file
    copied_bytes = synced_bytes = 0

    def look() -> int:
        nonlocal copied_bytes, synced_bytes
        size_bytes = os.fstat(descriptor).st_size
        steps = (size_bytes - copied_bytes) // STEP_BYTES
        if steps:
            copied_bytes += steps * STEP_BYTES
            pause(STEP_PAUSE_S * steps)
        if size_bytes - synced_bytes >= SYNC_BYTES:
            synced_bytes = size_bytes
            os.fdatasync(descriptor)
        return 0

    source.set_progress_handler(look, LOOK_INSTRUCTIONS)
    try:
        tables.copy_used(database, source, path)
    finally:
        source.set_progress_handler(None, 0)
        os.close(descriptor)


def _check_rows(path: Path, database: Path, pause: Callable[[float], None]) -> None:
    """Keep a damaged row from being handed on: the copy's digest would vouch for it."""
    read_bytes = 0

    def read(size_bytes: int) -> None:
        nonlocal read_bytes
        read_bytes += size_bytes
        if read_bytes >= STEP_BYTES:
            read_bytes = 0
            pause(STEP_PAUSE_S)

    with closing(_open_whole(path)) as connection:
        rows.check_rows(database, connection, read)


def _open_whole(path: Path) -> sqlite3.Connection:
    """Open a finished copy without leaving a WAL beside it."""
    return sqlite3.connect(f"file:{quote(str(path))}?immutable=1", uri=True)


def _digest_of(path: Path, pause: Callable[[float], None]) -> bytes:
    hasher = hashlib.sha256()
    with open(path, "rb") as file:
        while data := file.read(STEP_BYTES):
            hasher.update(data)
            pause(STEP_PAUSE_S)
    return hasher.digest()


def read_chunk(path: Path, copy: SnapshotInfo, offset: int, size_bytes_max: int) -> bytes:
    """Return a piece of the copy; b"" at its end. Raises OSError, DamagedCopy."""
    with open(path, "rb") as file:
        data = os.pread(file.fileno(), size_bytes_max, offset)
    if len(data) < min(size_bytes_max, copy.size_bytes - offset):
        raise DamagedCopy(f"{path} ends at {offset + len(data)}, not {copy.size_bytes}")
    return data


# --- the receiver -------------------------------------------------------------------------------


class Download:
    """One copy on its way in, piece by piece; it goes on at `offset` after a lost connection."""

    def __init__(self, path: Path, chunk: Chunk) -> None:
        """Begin the download that `chunk` is the first piece of; the caller then writes it.

        Raises OSError if there is no room for the whole.
        """
        DISK.make_directory(path.parent)
        check_room(path.parent, chunk.size_bytes)
        self.path = path
        self.snapshot_id = chunk.snapshot_id
        self.info = _info_of(chunk)
        self.offset = 0
        self._file = open(path, "wb", buffering=0)  # noqa: SIM115 - closed by verify or abandon

    @property
    def is_complete(self) -> bool:
        """True once every byte has come."""
        return self.offset == self.info.size_bytes

    def write(self, chunk: Chunk) -> None:
        """Store the next piece. Raises DamagedCopy if it is not the next one of this copy."""
        if chunk.snapshot_id != self.snapshot_id or _info_of(chunk) != self.info:
            raise DamagedCopy(f"a piece of {chunk.snapshot_id!r} in {self.snapshot_id!r}")
        if chunk.offset != self.offset:
            raise DamagedCopy(f"a piece at {chunk.offset}, {self.offset} is expected")
        if self.offset + len(chunk.data) > self.info.size_bytes:
            raise DamagedCopy(f"more than the {self.info.size_bytes} bytes announced")
        self._file.write(chunk.data)
        self.offset += len(chunk.data)

    def verify(self, pause: Callable[[float], None] = time.sleep) -> Verified:
        """Make the copy durable and check it. Raises DamagedCopy, OSError.

        Reads it back from the file, so a fault of this node's disk shows as well.
        """
        assert self.is_complete, f"{self.offset} of {self.info.size_bytes} bytes"
        os.fsync(self._file.fileno())
        self._file.close()
        DISK.fsync_directory(self.path.parent)
        if _digest_of(self.path, pause) != self.info.digest:
            raise DamagedCopy(f"{self.path}: digest differs from the announced one")
        return self._inspect()

    def _inspect(self) -> Verified:
        try:
            with closing(_open_whole(self.path)) as connection:
                tables.check_format(self.path, connection)
                position = tables.read_position(self.path, connection)
                members = tables.read_members(self.path, connection)
                level = tables.read_level(self.path, connection)
        except (sqlite3.DatabaseError, tables.CorruptStore) as error:
            raise DamagedCopy(f"{self.path}: {error}") from error
        if position != (self.info.index, self.info.term):
            raise DamagedCopy(f"{self.path}: at {position}, announced {self.info}")
        return Verified(self.path, *position, members, level)

    def abandon(self) -> None:
        """Drop what has come."""
        self._file.close()
        self.path.unlink(missing_ok=True)


def _info_of(chunk: Chunk) -> SnapshotInfo:
    return SnapshotInfo(chunk.index, chunk.term, chunk.size_bytes, chunk.digest)


# --- swapping in --------------------------------------------------------------------------------


def install(copy: Path, database: Path) -> None:
    """Put a verified copy in the database's place; the store must be closed.

    A crash at any point leaves the old database or, after the first rename, a finished copy that
    `remove_leftovers` puts in place. In between the old file without its WAL, or the new one with
    the old WAL, would be garbage, so neither is ever all that there is.
    """
    os.replace(copy, tables.side_file(database, _INSTALL))
    DISK.fsync_directory(database.parent)
    _finish_install(database)


def _finish_install(database: Path) -> None:
    tables.remove_log(database)
    os.replace(tables.side_file(database, _INSTALL), database)
    DISK.fsync_directory(database.parent)


def remove_leftovers(database: Path) -> None:
    """Finish an installation that was cut short and remove unfinished copies, before opening."""
    if tables.side_file(database, _INSTALL).exists():
        _finish_install(database)
    for pattern in ("copy-*", "download*"):
        for file in database.parent.glob(pattern):
            file.unlink()


def make_shrinkable(database: Path) -> bool:
    """Make a store of version 0.1 anew, before it is opened, so that its file can shrink.

    Returns False if that has to wait for another start: the store is too large, or its disk too
    full. Raises CorruptStore, sqlite3.Error, OSError.
    """
    if not database.exists() or tables.file_is_shrinkable(database):
        return True
    copy = tables.side_file(database, tables.REMADE)
    copy.unlink(missing_ok=True)
    with closing(tables.connect(database, READER_BUSY_MS_MAX)) as source:
        tables.check_format(database, source)
        size_bytes = tables.used_bytes(source)
        room_bytes = DISK.free_bytes(database.parent) - COPY_LEAVES_BYTES
        if size_bytes > min(REMADE_BYTES_MAX, room_bytes):
            return False
        tables.copy_used(database, source, copy)
    with open(copy, "rb") as file:
        os.fsync(file.fileno())
    install(copy, database)
    return True
