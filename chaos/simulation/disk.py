"""A node's disk in memory: it forgets what was not synced, and fails when told to.

What lives here: the files under the journal's and the identity's seam (cluster/files.py), and what
of the store's database survives a power loss. What must not: when faults happen (world.py), and any
knowledge of what is in the files. docs/decisions/0005-simulated-disk.md has the reasoning.
"""

from __future__ import annotations

import errno
import os
import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NoReturn

from cluster.files import Files

PAGE_BYTES: Final = 512  # what a disk writes as a whole
CAPACITY_BYTES: Final = 1 << 40  # no run fills it but by `fill`
KEEPS: Final = ("lost", "torn", "pages", "all")  # what may become of unsynced bytes


class PowerLoss(Exception):
    """The process, or its machine, ended in the middle of an operation."""


class DiskFailed(Exception):
    """What ends a node whose journal could not be written (in place of exiting the process)."""


@dataclass(slots=True, eq=False)
class Inode:
    """A file's bytes. The first `durable_bytes` are on the platter.

    `before`: the content before a truncation that is not durable yet, which a power loss may undo.
    `intact`: of a damaged file, what it would be without the damage; `is_readable`: False once the
    disk can't read it back. Both are for `synced`: what was promised does not shrink by a fault.
    """

    data: bytearray
    durable_bytes: int = 0
    before: bytes | None = None
    intact: bytearray | None = None
    intact_durable_bytes: int = 0
    is_readable: bool = True

    @property
    def synced(self) -> bytes:
        """What the process was told is durable, whatever a fault has made of it since."""
        if self.intact is not None:
            return bytes(self.intact[: self.intact_durable_bytes])
        return bytes(self.data[: self.durable_bytes])

    def spare(self) -> None:
        """Remember the content before a damage."""
        if self.intact is None:
            self.intact, self.intact_durable_bytes = bytearray(self.data), self.durable_bytes

    def grow(self, data: bytes | bytearray) -> None:
        """Add bytes at the end."""
        self.data += data
        if self.intact is not None:
            self.intact += data

    def sync(self) -> None:
        """Take note that all of it is on the platter."""
        self.durable_bytes, self.before = len(self.data), None
        if self.intact is not None:
            self.intact_durable_bytes = len(self.intact)

    def shrink(self, size: int) -> None:
        """Cut the end off, as the process wishes."""
        if size < self.durable_bytes and self.before is None:
            self.before = bytes(self.data[: self.durable_bytes])
        del self.data[size:]
        self.durable_bytes = min(size, self.durable_bytes)
        if self.intact is not None:
            del self.intact[size:]
            self.intact_durable_bytes = min(size, self.intact_durable_bytes)

    def lose_unsynced(self, keep: str, rng: random.Random) -> None:
        """Have the power go; what is left is durable."""
        self.data = bytearray(self.survives(keep, rng))
        self.durable_bytes, self.before = len(self.data), None
        if self.intact is not None:
            del self.intact[self.intact_durable_bytes :]

    def survives(self, keep: str, rng: random.Random) -> bytes:
        """Return what a power loss leaves; `keep` is one of KEEPS."""
        durable, data = self.durable_bytes, self.data
        if self.before is not None and rng.random() < 0.5:
            return self.before
        if keep == "all":
            return bytes(data)
        if keep == "torn":
            return bytes(data[: rng.randint(durable, len(data))])
        if keep == "pages":
            return self._some_pages(rng)
        return bytes(data[:durable])

    def _some_pages(self, rng: random.Random) -> bytes:
        """Keep each unsynced page or not: zeros stand where a later one is kept."""
        found, at = bytearray(self.data[: self.durable_bytes]), self.durable_bytes
        while at < len(self.data):
            end = min(len(self.data), (at // PAGE_BYTES + 1) * PAGE_BYTES)
            if rng.random() < 0.5:
                found += bytes(at - len(found)) + self.data[at:end]
            at = end
        return bytes(found)


class SimDisk(Files):
    """The disk of one node, over its restarts. Paths are only names here.

    `on_sync()` is called for each fdatasync and fsync of a directory (it takes time); it is the
    machine's. Names are durable once their directory is synced; until then each change of them may
    be lost alone.
    """

    def __init__(self, on_sync: Callable[[], None]) -> None:
        self.full = self.low = False  # nothing fits any more; little does
        self.syncs_fail_in: int | None = None  # fdatasyncs until one reports EIO
        self.on_sync = on_sync
        self.lost_power = False
        self.failure: DiskFailed | None = None
        self._crash_kind, self._crash_in = "", 0
        self._names: dict[Path, Inode] = {}
        self._durable_names: dict[Path, Inode] = {}
        self._changes: list[tuple[str, Path, Path | None]] = []
        self._open: dict[int, tuple[Path, Inode]] = {}
        self._fd = 0
        self._dirty: set[Inode] = set()

    def hold_copy(self, other: SimDisk, there: Path, here: Path) -> None:
        """Hold a copy of what lies in a directory of another disk, durably."""
        assert not self._names, "only an empty disk takes a copy"
        for path, inode in other._names.items():
            copy = Inode(bytearray(inode.data))
            copy.sync()
            self._names[here / path.relative_to(there)] = copy
        self._durable_names = dict(self._names)

    # --- faults -------------------------------------------------------------------------------

    def crash_in(self, kind: str, count: int) -> None:
        """Have the process end before the `count`-th operation of a kind from now ("any": all)."""
        assert count >= 1, count
        self._crash_kind, self._crash_in = kind, count

    def check(self) -> None:
        """Raise again what has ended the process: who swallowed it once can't go on."""
        if self.lost_power:
            raise PowerLoss
        if self.failure is not None:
            raise self.failure

    def stop(self, error: Exception) -> NoReturn:
        """Take the journal's word that its node must not go on."""
        self.failure = DiskFailed(repr(error))
        raise self.failure from error

    def operate(self, kind: str) -> None:
        """Take note that an operation begins: it may be the one before which the process ends."""
        if self._crash_in and self._crash_kind in (kind, "any"):
            self._crash_in -= 1
            self.lost_power = self.lost_power or not self._crash_in
        self.check()

    def restart(self) -> None:
        """Forget what the ended process had open; the disk works again."""
        self._open.clear()
        self.lost_power, self.failure = False, None
        self.calm()

    def calm(self) -> None:
        """Call off what was to happen."""
        self._crash_in, self.syncs_fail_in = 0, None

    def lose_unsynced(self, keep: str, rng: random.Random) -> None:
        """Have the power go: `keep` says what may be left of unsynced bytes and names."""
        assert keep in KEEPS, keep
        for kind, path, target in self._changes:
            if keep != "lost" and rng.random() < 0.5:
                _change(self._durable_names, self._names, kind, path, target)
        self._changes.clear()
        self._names = dict(sorted(self._durable_names.items()))
        for inode in self._names.values():
            if inode in self._dirty:
                inode.lose_unsynced(keep, rng)
            else:
                inode.sync()  # its name alone was not
        self._dirty.clear()

    def wipe(self) -> None:
        """Remove everything."""
        assert not self._open, "a process has files open"
        self._names, self._durable_names = {}, {}
        self._changes.clear()
        self._dirty.clear()

    def damage(self, suffix: str, rng: random.Random, cut: bool) -> str:
        """Flip a bit of a file whose name ends in `suffix`, or cut its end; return what was done.

        "" if there is no such file with something in it.
        """
        paths = [path for path, inode in self._names.items() if path.name.endswith(suffix)]
        paths = [path for path in sorted(paths) if self._names[path].data]
        if not paths:
            return ""
        path = rng.choice(paths)
        inode = self._names[path]
        at = rng.randrange(len(inode.data))
        inode.spare()
        if cut:
            del inode.data[at:]
            inode.durable_bytes = min(inode.durable_bytes, at)
            return f"{path.name} cut to {at} bytes"
        inode.data[at] ^= 1 << rng.randrange(8)
        return f"{path.name} flipped at {at}"

    @property
    def is_synced(self) -> bool:
        """True if a power loss now would lose no byte of a file."""
        return not self._dirty

    # --- Files --------------------------------------------------------------------------------

    def open_append(self, path: Path) -> int:  # type: ignore[override]
        self.operate("open")
        if path not in self._names:
            self._names[path] = Inode(bytearray())
            self._changes.append(("create", path, None))
        self._fd += 1
        self._open[self._fd] = (path, self._names[path])
        return self._fd

    def write(self, fd: int, data: bytearray) -> int:  # type: ignore[override]
        self.operate("write")
        if self.full:
            raise OSError(errno.ENOSPC, "injected into write")
        inode = self._open[fd][1]
        inode.grow(data)
        self._dirty.add(inode)
        return len(data)

    def pread(self, fd: int, size: int, offset: int) -> bytes:
        self.check()
        path, inode = self._open[fd]
        return self._readable(path, inode)[offset : offset + size]

    def fdatasync(self, fd: int) -> None:  # type: ignore[override]
        self.operate("fdatasync")
        inode = self._open[fd][1]
        if self.syncs_fail_in is not None:
            self.syncs_fail_in -= 1
            if self.syncs_fail_in <= 0:
                raise OSError(errno.EIO, "injected into fdatasync")
        self.on_sync()
        inode.sync()
        self._dirty.discard(inode)

    def truncate(self, fd: int, size: int) -> None:
        self.operate("truncate")
        inode = self._open[fd][1]
        inode.shrink(size)
        self._dirty.add(inode)

    def rename(self, old: Path, new: Path) -> None:  # type: ignore[override]
        self.operate("rename")
        self._names[new] = self._names.pop(old)
        self._changes.append(("rename", old, new))

    def unlink(self, path: Path) -> None:  # type: ignore[override]
        self.operate("unlink")
        del self._names[path]
        self._changes.append(("unlink", path, None))

    def close(self, fd: int) -> None:
        self._open.pop(fd, None)

    def read(self, path: Path) -> bytes:  # type: ignore[override]
        self.check()
        return self._readable(path, self._names[path])

    @staticmethod
    def _readable(path: Path, inode: Inode) -> bytes:
        if not inode.is_readable:
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
        return bytes(inode.data)

    def list(self, directory: Path, suffix: str = "") -> list[str]:  # type: ignore[override]
        depth = len(directory.parts)
        inside = {path.parts[depth] for path in self._names if directory in path.parents}
        return sorted(name for name in inside if name.endswith(suffix))

    def make_directory(self, directory: Path) -> None:  # type: ignore[override]
        self.operate("make_directory")

    def fsync_directory(self, directory: Path) -> None:  # type: ignore[override]
        self.operate("fsync_directory")
        self.on_sync()
        others = {p: i for p, i in self._durable_names.items() if p.parent != directory}
        here = {p: i for p, i in self._names.items() if p.parent == directory}
        self._durable_names = others | here
        self._changes = [change for change in self._changes if change[1].parent != directory]

    def free_bytes(self, directory: Path) -> int:  # type: ignore[override]
        return 0 if self.full or self.low else CAPACITY_BYTES


def _change(
    names: dict[Path, Inode], written: dict[Path, Inode], kind: str, path: Path, new: Path | None
) -> None:
    """Let one change of names reach the platter, as far as what it needs has."""
    if kind == "create" and path in written:
        names[path] = written[path]
    elif kind == "unlink":
        names.pop(path, None)
    elif kind == "rename" and new is not None:
        inode = names.pop(path, None) or written.get(new)
        if inode is not None:
            names[new] = inode


class StoreImage:
    """What of a node's SQLite database is on the platter: the file as last synced, and a WAL.

    The database file changes only in a checkpoint, which ends in its fsync; so a copy of it taken
    after each is what is durable. Of the WAL everything may be, down to what the last checkpoint
    had synced of it: SQLite's own checksums decide how much of a cut one counts.
    """

    def __init__(self, database: Path) -> None:
        self._database = database
        self._wal = database.with_name(f"{database.name}-wal")
        self._data: bytes | None = None
        self._wal_head, self._wal_bytes = b"", 0
        self.checkpointing = False  # from its beginning until what it has done is durable

    def wipe(self) -> None:
        """Remove everything."""
        shutil.rmtree(self._database.parent, ignore_errors=True)
        self._data, self._wal_head, self._wal_bytes = None, b"", 0
        self.checkpointing = False

    def take(self) -> None:
        """Take note that the database as it stands is durable."""
        self.checkpointing = False
        if self._database.exists():
            self._data = self._database.read_bytes()
            self._wal_head, self._wal_bytes = self._read_wal_head(), _size(self._wal)

    def take_after_job(self) -> None:
        """Take note of what a worker's job has made durable: nothing unless it was a checkpoint."""
        if self.checkpointing:
            self.take()

    def keep_through(self, close: Callable[[], None]) -> None:
        """Close the database as a killed process does: without the checkpoint of a real close."""
        if not self._database.exists():
            close()
            return
        data, kept = self._database.read_bytes(), self._wal.with_name("kept-wal")
        if self._wal.exists():
            os.link(self._wal, kept)  # the checkpoint reads it, and removes the name alone
        close()
        self._restore(data)
        if kept.exists():
            kept.rename(self._wal)

    def lose_unsynced(self, keep: str, rng: random.Random) -> None:
        """Put the database back to what a power loss leaves; no process may have it open."""
        checkpointing, self.checkpointing = self.checkpointing, False
        if checkpointing and rng.random() < 0.5:
            self._tear(rng)
            return
        written = _size(self._wal)
        same = self._read_wal_head() == self._wal_head
        durable = min(self._wal_bytes, written) if same else 0
        sizes = {"lost": durable, "all": written}
        self._restore(self._data)
        if written:
            os.truncate(self._wal, sizes[keep] if keep in sizes else rng.randint(durable, written))

    def _tear(self, rng: random.Random) -> None:
        """Have the power go while a checkpoint writes to the database: any of its pages is new.

        It has synced the WAL before, all of it.
        """
        old, new = self._data or b"", self._database.read_bytes()
        torn = bytearray()
        for at in range(0, len(new), PAGE_BYTES):
            page = (old if rng.random() < 0.5 else new)[at : at + PAGE_BYTES]
            torn += page.ljust(min(PAGE_BYTES, len(new) - at), b"\0")
        self._restore(bytes(torn))

    def damage(self, rng: random.Random) -> str:
        """Flip a bit of the database's file, durably; return what was done."""
        if self._data is None or not self._database.exists():
            return ""
        at = rng.randrange(min(len(self._data), _size(self._database)))
        bit = 1 << rng.randrange(8)
        self._data = self._data[:at] + bytes([self._data[at] ^ bit]) + self._data[at + 1 :]
        with self._database.open("r+b") as file:
            byte = os.pread(file.fileno(), 1, at)[0]
            os.pwrite(file.fileno(), bytes([byte ^ bit]), at)
        return f"{self._database.name} flipped at {at}"

    def _read_wal_head(self) -> bytes:
        if not self._wal.exists():
            return b""
        with self._wal.open("rb") as file:
            return file.read(_WAL_HEAD_BYTES)

    def _restore(self, data: bytes | None) -> None:
        self._database.with_name(f"{self._database.name}-shm").unlink(missing_ok=True)
        self._database.unlink(missing_ok=True)
        if data is not None:
            self._database.write_bytes(data)


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


_WAL_HEAD_BYTES: Final = 32  # with the salts, which change when a WAL is begun anew
