"""A node's disk in memory: it forgets what was not synced, and fails when told to.

What lives here: the files under the journal's and the identity's seam (cluster/log/files.py), and
when an operation fails or is the process's last. What must not: when faults happen (world.py),
the store's files (stored.py), and any knowledge of what is in files.
docs/decisions/0005-simulated-disk.md has the reasoning.
"""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NoReturn

from cluster.log.files import Files

PAGE_BYTES: Final = 512  # what a disk writes as a whole
CAPACITY_BYTES: Final = 1 << 40  # no run fills it but by `fill`
# What a sync is of: a file of the journal or the identity, a directory of theirs, a file of the
# store, its directory.
SYNCS: Final = ("fdatasync", "fsync_directory", "store_sync", "store")
OWN_SYNC: Final = "store_fsync"  # a "store_sync" by the product itself, and not by SQLite
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
    `dropped`: from where to where a failed sync has lost the bytes: they are read from the cache
    until that forgets them, and no later sync writes them. `cached`: what reads give until then of
    a file that nobody writes to any more, where the platter has gone bad.
    """

    data: bytearray
    durable_bytes: int = 0
    before: bytes | None = None
    intact: bytearray | None = None
    intact_durable_bytes: int = 0
    is_readable: bool = True
    dropped: tuple[int, int] | None = None
    cached: bytes | None = None

    @property
    def synced(self) -> bytes:
        """What the process was told is durable, whatever a fault has made of it since.

        But for what a failed sync has dropped: that it was told of.
        """
        if self.intact is not None:
            return self._without_dropped(self.intact[: self.intact_durable_bytes])
        return self._without_dropped(self.data[: self.durable_bytes])

    def _without_dropped(self, data: bytearray) -> bytes:
        if self.dropped is None:
            return bytes(data)
        begin, end = self.dropped
        if end >= len(data):
            return bytes(data[:begin])
        return bytes(data[:begin]) + bytes(end - begin) + bytes(data[end:])

    def fail(self) -> None:
        """Drop what a sync should have written; the cache calls it clean."""
        begin = self.durable_bytes if self.dropped is None else self.dropped[0]
        if len(self.data) > begin:
            self.dropped = (begin, len(self.data))
        self.sync()

    def forget(self) -> None:
        """Read from now on what is on the platter, and no more from the cache."""
        self.data = bytearray(self._without_dropped(self.data))
        self.durable_bytes = min(self.durable_bytes, len(self.data))
        if self.intact is not None:
            self.intact = bytearray(self._without_dropped(self.intact))
            self.intact_durable_bytes = min(self.intact_durable_bytes, len(self.intact))
        self.dropped = self.cached = None

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
        if self.dropped is not None:
            begin, end = self.dropped
            self.dropped = (begin, min(end, size)) if size > begin else None
        if self.intact is not None:
            del self.intact[size:]
            self.intact_durable_bytes = min(size, self.intact_durable_bytes)

    def lose_unsynced(self, keep: str, rng: random.Random) -> None:
        """Have the power go; what is left is durable."""
        self.forget()
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
    be lost alone. `on_full` is called when it becomes full, and when it has room again. `rng`
    decides how much of a process's last write is done. `durable_changes` grows with every change of
    what is durable, `durable_names_changes` with those that are of names too: who follows them need
    not look in vain.
    """

    def __init__(
        self,
        on_sync: Callable[[], None],
        on_full: Callable[[bool], None] = lambda full: None,
        rng: random.Random | None = None,
    ) -> None:
        self.low = False  # little fits any more
        self.times_freed = 0  # how often it has got room again
        self.on_sync, self.on_full = on_sync, on_full
        self.on_read: Callable[[], None] = lambda: None  # before a file is opened to be read
        self._full = self._has_ended = False
        self._fails_kind, self._fails_in, self._fails_last = "", 0, False
        self._rng = rng or random.Random(0)
        self.lost_power = False
        self.failure: DiskFailed | None = None
        self._crash_kind, self._crash_in = "", 0
        self._names: dict[Path, Inode] = {}
        self._durable_names: dict[Path, Inode] = {}
        self._changes: list[tuple[str, Path, Path | None]] = []
        self._open: dict[int, tuple[Path, Inode]] = {}
        self._fd = 0
        self._dirty: set[Inode] = set()
        self.durable_changes = self.durable_names_changes = 0

    def hold_copy(self, other: SimDisk, there: Path, here: Path) -> None:
        """Hold a copy of what lies in a directory of another disk, durably."""
        assert not self._names, "only an empty disk takes a copy"
        for path, inode in other._names.items():
            copy = Inode(bytearray(inode.data))
            copy.sync()
            self._names[here / path.relative_to(there)] = copy
        self._durable_names = dict(self._names)
        self._names_are_durable()

    # --- faults -------------------------------------------------------------------------------

    @property
    def full(self) -> bool:
        """True while nothing fits any more."""
        return self._full

    @full.setter
    def full(self, full: bool) -> None:
        if full != self._full:
            self._full = full
            self.on_full(full)

    def make_room(self) -> None:
        """Let everything fit again."""
        self.full = self.low = False
        self.times_freed += 1

    def fail_sync(self, kind: str, count: int, ends: bool = False) -> None:
        """Have the `count`-th sync of a kind from now report EIO, once.

        The kinds are SYNCS, OWN_SYNC, and "any" of them. `ends`: and the process end before its
        next operation.
        """
        assert count >= 1, count
        assert kind in (*SYNCS, OWN_SYNC, "any"), kind
        self._fails_kind, self._fails_in, self._fails_last = kind, count, ends

    @property
    def is_to_fail(self) -> bool:
        """True while a sync is going to report an error."""
        return self._fails_in > 0

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
        """Take note that an operation begins: it may be the one before which the process ends.

        Raises OSError if it fails.
        """
        group = kind.partition("_")[0] if kind.startswith("store_") else kind
        kinds = (kind, "store_sync") if kind == OWN_SYNC else (kind,)
        if self._crash_in and self._crash_kind in (*kinds, group, "any"):
            self._crash_in -= 1
            self.lost_power = self.lost_power or not self._crash_in
        self.check()
        if self._full and kind in ("write", "store_grow"):
            raise OSError(errno.ENOSPC, "injected into a write")
        if self._fails_in and kinds[-1] in SYNCS and self._fails_kind in (*kinds, "any"):
            self._fails_in -= 1
            if not self._fails_in:
                if self._fails_last:
                    self.crash_in("any", 1)
                raise OSError(errno.EIO, f"injected into {kind}")

    def restart(self) -> None:
        """Forget what the ended process had open; the disk works again."""
        self._open.clear()
        self.lost_power, self.failure, self._has_ended = False, None, False
        self.calm()

    def calm(self) -> None:
        """Call off what was to happen."""
        self._crash_in = self._fails_in = 0

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
                inode.forget()
                inode.sync()  # its name alone was not
        self._dirty.clear()
        self._names_are_durable()

    def wipe(self) -> None:
        """Remove everything."""
        assert not self._open, "a process has files open"
        self._names, self._durable_names = {}, {}
        self._names_are_durable()
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

    def open_read(self, path: Path) -> int:  # type: ignore[override]
        self.on_read()
        self.operate("open")
        if path not in self._names:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        self._fd += 1
        self._open[self._fd] = (path, self._names[path])
        return self._fd

    def write(self, fd: int, data: bytearray) -> int:  # type: ignore[override]
        try:
            self.operate("write")
        except PowerLoss:
            if not self._has_ended:  # a write that is cut short leaves some of its records
                self._has_ended = True
                self._grow(fd, data[: self._rng.randint(0, len(data))])
            raise
        self._grow(fd, data)
        return len(data)

    def _grow(self, fd: int, data: bytes | bytearray) -> None:
        inode = self._open[fd][1]
        inode.grow(data)
        self._dirty.add(inode)

    def pread(self, fd: int, size: int, offset: int) -> bytes:
        self.check()
        path, inode = self._open[fd]
        return self._readable(path, inode)[offset : offset + size]

    def fdatasync(self, fd: int) -> None:  # type: ignore[override]
        inode = self._open[fd][1]
        try:
            self.operate("fdatasync")
        except OSError:
            inode.fail()
            self.durable_changes += 1
            self._dirty.discard(inode)
            raise
        self.on_sync()
        inode.sync()
        self.durable_changes += 1
        self._dirty.discard(inode)

    def forget_cached(self, fd: int) -> None:  # type: ignore[override]
        self.check()
        self._open[fd][1].forget()

    def truncate(self, fd: int, size: int) -> None:
        self.operate("truncate")
        inode = self._open[fd][1]
        inode.shrink(size)
        self._dirty.add(inode)

    def rename(self, old: Path, new: Path) -> None:  # type: ignore[override]
        assert old.parent == new.parent, f"{old} to {new}: one sync has both names on the platter"
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
        return bytes(inode.data) if inode.cached is None else inode.cached

    def list(self, directory: Path, suffix: str = "") -> list[str]:  # type: ignore[override]
        parts = directory.parts
        depth = len(parts)
        inside = {path.parts[depth] for path in self._names if path.parts[:depth] == parts}
        return sorted(name for name in inside if name.endswith(suffix))

    def make_directory(self, directory: Path) -> None:  # type: ignore[override]
        self.operate("make_directory")

    def fsync_directory(self, directory: Path) -> None:  # type: ignore[override]
        self.operate("fsync_directory")
        self.on_sync()
        touched: list[Path | None] = []
        rest: list[tuple[str, Path, Path | None]] = []
        for change in self._changes:
            if change[1].parent == directory:
                touched += change[1:]
            else:
                rest.append(change)
        for path in touched:
            if path in self._names:
                self._durable_names[path] = self._names[path]
            elif path is not None:
                self._durable_names.pop(path, None)
        self._changes = rest
        self._names_are_durable()

    def _names_are_durable(self) -> None:
        self.durable_changes += 1
        self.durable_names_changes += 1

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
