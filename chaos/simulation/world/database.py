"""What a simulated disk does to a node's real SQLite and to the files beside it.

What lives here: the seams in sqlite3, os, tables.py and snapshots.py while a world runs. What
must not: what of the files is durable (stored.py), how SQLite is heard (vfs.py), when a disk is
full or a process ends (world.py).
"""

from __future__ import annotations

import errno
import os
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol
from unittest.mock import patch

from chaos.simulation.disks import vfs
from cluster.log.files import DISK
from cluster.node import maintenance
from cluster.store import snapshots
from flotilla_client import state

if TYPE_CHECKING:
    from chaos.simulation.disks.disk import SimDisk
    from chaos.simulation.disks.stored import StoredFiles


class DiskNode(Protocol):
    """A node, as what its code opens knows it."""

    disk: SimDisk
    image: StoredFiles


# A simulated store is so small that it would never shrink, and be copied in one step.
SPARE_BYTES: Final = 8 * 1024
STEP_BYTES: Final = 16 * 1024
SYNC_BYTES: Final = 40 * 1024
STATE_PAGES: Final = 16  # of a client's log, so that it is carried on into the database

Active = Callable[[], "DiskNode | None"]
Disks = Mapping[str, "StoredFiles"]  # by directory

_rename: Final = os.rename
_unlink: Final = os.unlink
_pwrite: Final = os.pwrite
_make_copy: Final = snapshots.make_copy
_write: Final = snapshots.Download.write
_verify: Final = snapshots.Download.verify


@contextmanager
def patched(active: Active, disks: Disks, salt: int = 1) -> Iterator[None]:
    """Have the real files in some directories on simulated disks.

    `active`: whose code runs. `salt`: what SQLite's random numbers begin with. Pauses between the
    steps of a copy are the world's.
    """
    occupant = getattr(DISK.free_bytes, "__self__", None)
    assert not isinstance(occupant, _FileCalls), "one world at a time"
    calls = _FileCalls(active, disks)
    with (
        _salted(salt),
        patch.object(sqlite3, "connect", vfs.connect),
        patch.object(vfs.LAYER, "find", calls.owner),
        patch.object(vfs.LAYER, "current", calls.current),
        patch.object(os, "fsync", calls.sync),
        patch.object(os, "fdatasync", calls.sync),
        patch.object(os, "rename", calls.rename),
        patch.object(os, "replace", calls.rename),
        patch.object(os, "unlink", calls.unlink),
        patch.object(os, "remove", calls.unlink),
        patch.object(os, "pwrite", calls.pwrite),
        patch.object(os, "posix_fadvise", calls.forget),
        patch.object(DISK, "free_bytes", calls.free_bytes),
        patch.object(maintenance, "SPARE_BYTES", SPARE_BYTES),
        patch.object(snapshots, "STEP_BYTES", STEP_BYTES),
        patch.object(snapshots, "SYNC_BYTES", SYNC_BYTES),
        patch.object(state, "CHECKPOINT_PAGES", STATE_PAGES),
        patch.object(snapshots, "make_copy", calls.make_copy),
        patch.object(snapshots.Download, "write", lambda copy, chunk: calls.write(copy, chunk)),
        patch.object(snapshots.Download, "verify", lambda copy: _verify(copy, calls.pause)),
    ):
        yield


@contextmanager
def _salted(salt: int) -> Iterator[None]:
    vfs.LAYER.seed(salt)
    try:
        yield
    finally:
        vfs.LAYER.seed(0)


class _FileCalls:
    def __init__(self, active: Active, disks: Disks) -> None:
        self._active, self._disks = active, disks

    @property
    def _node(self) -> DiskNode:
        node = self._active()
        assert node is not None, "no node's code runs"
        return node

    def owner(self, path: str) -> StoredFiles | None:
        """Return what knows the file, None if it is on no simulated disk."""
        return self._disks.get(os.path.dirname(path))

    def current(self) -> StoredFiles | None:
        """Return the files of whose code runs."""
        node = self._active()
        return None if node is None else node.image

    def sync(self, descriptor: int) -> None:
        """Take the place of `os.fsync`, of a file or a directory."""
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        files, own = self.owner(path), self._disks.get(path)
        if files is not None:
            files.fsync(path)
        elif own is not None:
            own.sync_names()
        else:
            for place, each in self._disks.items():
                if os.path.dirname(place) == path:
                    each.sync_own_name()

    def pwrite(self, descriptor: int, data: bytes, offset: int) -> int:
        """Take the place of `os.pwrite`."""
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        files = self.owner(path)
        if files is not None:
            files.writing(path, offset, len(data))
        return _pwrite(descriptor, data, offset)

    def forget(self, descriptor: int, offset: int, size: int, advice: int) -> None:
        """Take the place of `os.posix_fadvise`, which is only asked to forget."""
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        files = self.owner(path)
        assert advice == os.POSIX_FADV_DONTNEED, advice
        if files is not None:  # others have lost nothing
            files.forget_cached(path)

    def rename(self, old: str | Path, new: str | Path) -> None:
        """Take the place of `os.rename` and `os.replace`."""
        files = self.owner(str(old))
        if files is None:
            _rename(old, new)
        else:
            files.rename(str(old), str(new))

    def unlink(self, path: str | Path, *, dir_fd: int | None = None) -> None:
        """Take the place of `os.unlink`."""
        files = self.owner(str(path)) if dir_fd is None else None
        if files is None or not os.path.lexists(path):
            _unlink(path, dir_fd=dir_fd)
        else:
            files.unlink(str(path))

    def free_bytes(self, directory: Path) -> int:
        """Take the place of `DISK.free_bytes`."""
        return self._node.disk.free_bytes(directory)

    def pause(self, seconds: float) -> None:
        """Let turns run between the steps of a copy."""
        self._node.image.operate("store_pause")

    def make_copy(self, database: Path, path: Path) -> snapshots.SnapshotInfo:
        """Make a copy, with pauses."""
        return _make_copy(database, path, self.pause)

    def write(self, copy: snapshots.Download, chunk: Any) -> None:
        """Store a piece of a copy, if it has room."""
        if self._node.disk.full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "injected into a copy")
        _write(copy, chunk)
