"""What a simulated disk does to a node's real SQLite: no room, a checkpoint that is cut short.

What lives here: the seams in sqlite3, cluster.tables and cluster.snapshots while a world runs. What
must not: what of the files is durable (disk.py), when a disk is full or a process ends (world.py).

SQLite itself is on a memory filesystem that never fills, so where it would be told ENOSPC the
product is told what SQLite makes of it.
"""

from __future__ import annotations

import errno
import os
import random
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from unittest.mock import patch
from urllib.parse import quote

from cluster import snapshots, tables, upkeep
from cluster.files import DISK

if TYPE_CHECKING:
    from chaos.simulation.node import SimNode

SPARE_BYTES: Final = 8 * 1024  # a simulated store is so small that it would never shrink
GROWS_SHARE: Final = 0.5  # of checkpoints need room: the others write over old pages alone

Active = Callable[[], "SimNode | None"]

_connect: Final[Callable[..., sqlite3.Connection]] = sqlite3.connect
_commit: Final = tables.Database.commit
_checkpoint: Final = tables.checkpoint
_make_copy: Final = snapshots.make_copy
_write: Final = snapshots.Download.write
_verify: Final = snapshots.Download.verify


@contextmanager
def seated(active: Active, rng: random.Random) -> Iterator[None]:
    """Have the stores' files, of all nodes, on the disk of whoever is `active` at the time.

    Pauses between the steps of a copy are left out: virtual time does not pass in them.
    """
    assert "fsync_directory" not in vars(DISK), "one world at a time"
    seats = _Seats(active, rng)
    with (
        patch.object(sqlite3, "connect", _connect_alone),
        patch.object(DISK, "fsync_directory", seats.sync_directory),
        patch.object(tables.Database, "commit", lambda database: seats.commit(database)),
        patch.object(tables, "checkpoint", seats.checkpoint),
        patch.object(upkeep, "SPARE_BYTES", SPARE_BYTES),
        patch.object(snapshots, "make_copy", seats.make_copy),
        patch.object(snapshots.Download, "write", lambda copy, chunk: seats.write(copy, chunk)),
        patch.object(snapshots.Download, "verify", lambda copy: _verify(copy, _no_pause)),
    ):
        yield


class _Seats:
    def __init__(self, active: Active, rng: random.Random) -> None:
        self._active, self._rng = active, rng

    @property
    def _node(self) -> SimNode:
        node = self._active()
        assert node is not None, "no node's code runs"
        return node

    def sync_directory(self, directory: Path) -> None:
        """A process may end before the store's directory is synced."""
        self._node.disk.operate("store")

    def commit(self, database: tables.Database) -> None:
        """Commit, which makes the WAL longer."""
        if self._node.disk.full:
            raise _full()
        _commit(database)

    def checkpoint(self, path: Path) -> int:
        """Move the WAL into the database, which may make that longer."""
        node = self._node
        if node.disk.full and self._rng.random() < GROWS_SHARE:
            raise _full()
        node.image.checkpointing = True
        return _checkpoint(path)

    def make_copy(self, database: Path, path: Path) -> snapshots.SnapshotInfo:
        """Make a copy, which takes as much room as the database."""
        if self._node.disk.full:
            raise _full()
        return _make_copy(database, path, _no_pause)

    def write(self, copy: snapshots.Download, chunk: Any) -> None:
        """Store a piece of a copy."""
        if self._node.disk.full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "injected into a copy")
        _write(copy, chunk)


def _connect_alone(database: str | Path, uri: bool = False, **options: Any) -> sqlite3.Connection:
    """Open a database that no other process has: the WAL's index is in memory, locks are kept.

    The files and what is written to them are the same; a third of the system calls are left.
    """
    if uri or database == ":memory:":
        return _connect(database, uri=uri, **options)
    return _connect(f"file:{quote(str(database))}?vfs=unix-excl", uri=True, **options)


def _full() -> sqlite3.OperationalError:
    error = sqlite3.OperationalError("database or disk is full")
    error.sqlite_errorcode = sqlite3.SQLITE_FULL
    return error


def _no_pause(seconds: float) -> None:
    """Go on at once."""
