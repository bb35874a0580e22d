"""What of the real files in a directory is on the platter: only what was seen to be synced.

What lives here: the files under SQLite and the copies of it, each with what a power loss leaves,
and their names. What must not: whose they are and when anything fails (node.py, disk.py), how the
product's calls come here (vfs.py, database.py). Decision 0005 has the reasoning.
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from chaos.simulation.disks.disk import KEEPS, OWN_SYNC, PAGE_BYTES
from chaos.simulation.disks.vfs import LAYER

CACHE_PAGE_BYTES: Final = 4096  # what the kernel keeps, writes, and drops when a sync has failed

# The simulator's own, whatever a world has put in their places.
_rename: Final = os.rename
_unlink: Final = os.unlink
_pwrite: Final = os.pwrite

Operate = Callable[[str], None]


@dataclass(slots=True, eq=False)
class Stored:
    """A file: `platter` is what a power loss leaves of it if nothing else is written back.

    `dirty`: its pages of the cache that differ, if its writes are told; None: all that differs.
    `dropped` {page: its bytes}: a failed sync has reported these once and forgotten them, so no
    later sync writes them, unless they are written again. `removed`: the content of a file whose
    name is gone, until that is durable.
    """

    platter: bytearray = field(default_factory=bytearray)
    dirty: set[int] | None = None
    dropped: dict[int, bytes] = field(default_factory=dict)
    removed: bytes | None = None

    def sync(self, path: str) -> None:
        """Have all of it on the platter, but for what was dropped."""
        if self.dropped:
            self.platter = bytearray(self.without_dropped(Path(path).read_bytes()))
        else:
            self._read_into_platter(path)
        if self.dirty is not None:
            self.dirty.clear()

    def _read_into_platter(self, path: str) -> None:
        with open(path, "rb", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            if size != len(self.platter):
                self.platter = bytearray(size)
            count = file.readinto(self.platter)
            assert count == size, f"{count} of {size} bytes of {path}"

    def fail(self, path: str) -> None:
        """Drop what the sync should have written: the cache has it, and calls it clean."""
        data = Path(path).read_bytes()
        pages = self.dirty if self.dirty is not None else range(_pages(len(data)))
        for page in pages:
            now = _page(data, page)
            if now and now != _page(self.platter, page):
                self.dropped[page] = now
        if self.dirty is not None:
            self.dirty.clear()

    def write(self, offset: int, count: int) -> None:
        """Take note that a part is written."""
        pages = range(offset // CACHE_PAGE_BYTES, _pages(offset + count))
        if self.dropped:
            for page in pages:
                self.dropped.pop(page, None)
        if self.dirty is not None:
            self.dirty.update(pages)

    def without_dropped(self, data: bytes) -> bytes:
        """Return what is on the platter of a file that reads as `data` once it is written back."""
        kept = bytearray(data)
        for page, was in list(self.dropped.items()):
            if _page(data, page) != was:
                del self.dropped[page]  # written again
                continue
            begin = page * CACHE_PAGE_BYTES
            kept[begin : begin + len(was)] = _page(self.platter, page).ljust(len(was), b"\0")[
                : len(was)
            ]
        return bytes(kept)

    def survives(self, data: bytes, keep: str, rng: random.Random) -> bytes:
        """Return what a power loss leaves of a file that reads as `data`; `keep`: one of KEEPS."""
        old = bytes(self.platter)
        if self.dropped:
            data = self.without_dropped(data)
        if keep == "all" or data == old:
            return data
        if keep == "lost":
            return old
        size = rng.choice((len(old), len(data), max(len(old), len(data))))
        written = [at for at in range(0, size, PAGE_BYTES) if _differs(old, data, at)]
        if keep == "torn":
            new = set(written[: rng.randint(0, len(written))])
        else:
            new = {at for at in written if rng.random() < 0.5}
        left = bytearray(old[:size].ljust(size, b"\0"))
        for at in new:
            piece = data[at : min(at + PAGE_BYTES, size)]
            left[at : at + len(piece)] = piece
        return bytes(left)


def _pages(size: int) -> int:
    return -(-size // CACHE_PAGE_BYTES)


def _page(data: bytes | bytearray, number: int) -> bytes:
    return bytes(data[number * CACHE_PAGE_BYTES : (number + 1) * CACHE_PAGE_BYTES])


def _differs(old: bytes, new: bytes, at: int) -> bool:
    return old[at : at + PAGE_BYTES] != new[at : at + PAGE_BYTES]


class StoredFiles:
    """A directory of real files, over the lives of the processes that use it.

    `operate(kind)` is called before each operation: it may let time pass, and raises what ends the
    process, or what the operation reports. `is_job`: whether that is a worker's. Names are durable
    once the directory is synced; until then each change of them may be lost alone. `sealed`: the
    process has ended; what its connections do while they are closed does not happen.
    """

    def __init__(
        self, directory: Path, operate: Operate, is_job: Callable[[], bool] = lambda: False
    ) -> None:
        self.directory = directory
        self.sealed = False
        self._is_full = False
        self.is_job = is_job
        self.operate = operate
        self._place = str(directory)
        self._files: dict[int, Stored] = {}  # by their numbers in the real file system
        self._names: dict[str, int] = {}  # as seen last
        self._durable_names: dict[str, int] = {}
        self._changes: list[tuple[str, str, str]] = []  # what, name, new name
        self._is_named = False  # the directory itself, in its parent

    # --- what the product does ------------------------------------------------------------------

    def opening(self, path: str) -> bool:
        """See `vfs.Watcher`: turns run between a job's transactions."""
        self._begin("store_open")
        return self.is_job()

    def reading(self, path: str) -> None:
        """See `vfs.Watcher`."""
        if not self.sealed:
            self.operate("store_read")

    def is_written_aloud(self, path: str) -> bool:
        """See `vfs.Watcher`: whether they fit counts when the disk is full, which is seldom."""
        return self._is_full

    def fill(self, full: bool) -> None:
        """Take note that the disk is full, or has room again."""
        self._is_full = full
        LAYER.listen(self)

    def writing(self, path: str, offset: int, count: int) -> None:
        """See `vfs.Watcher`; a checkpoint writes to the database, or a copy grows."""
        grows = self._is_full and offset + count > os.path.getsize(path)
        self._begin("store_grow" if grows else "store_write")
        stored = self._stored(path)
        if not path.endswith((".db", ".new")):
            stored.write(offset, count)  # of other files not all writes are told
            return
        if stored.dirty is None:
            stored.dirty = self._differing(path, stored)
        stored.write(offset, count)

    def truncating(self, path: str, size: int) -> None:
        """See `vfs.Watcher`."""
        self._begin("store_truncate")

    def syncing(self, path: str, kind: str = "store_sync") -> None:
        """See `vfs.Watcher`: have a file on the platter."""
        if self.sealed:
            raise OSError("the process has ended")
        self._look()
        name, failed = os.path.basename(path), None
        try:
            self.operate(kind)
        except OSError as error:
            failed = error
        if os.path.exists(path):
            stored = self._stored(path)
            if failed is None:
                stored.sync(path)
            else:
                stored.fail(path)
        if failed is not None:
            raise failed
        if name.endswith(("-wal", "-journal")) and self._is_new(name):
            self._keep_names()  # SQLite's first sync of such a file is one of the directory too
        self.operate("store_synced")

    def deleting(self, path: str) -> bool:
        """See `vfs.Watcher`; nothing is deleted by a process that has ended."""
        if not self.sealed and os.path.exists(path):
            self.unlink(path)
        return True

    def sleeping(self, seconds: float) -> None:
        """See `vfs.Watcher`."""
        if not self.sealed:
            self.operate("store_wait")

    def fsync(self, path: str) -> None:
        """Have a file on the platter, in place of `os.fsync`."""
        self.syncing(path, OWN_SYNC)

    def unlink(self, path: str) -> None:
        """Remove a name, in place of `os.unlink`."""
        self._begin("store_unlink")
        name = os.path.basename(path)
        if name in self._names:
            stored = self._files[self._names.pop(name)]
            stored.removed = Path(path).read_bytes()
            self._changes.append(("unlink", name, ""))
        _unlink(path)

    def rename(self, path: str, target: str) -> None:
        """Change a name, in place of `os.rename` and `os.replace`."""
        self._begin("store_rename")
        name, new = os.path.basename(path), os.path.basename(target)
        if new in self._names:
            self._files[self._names[new]].removed = Path(target).read_bytes()
        if name in self._names:
            self._names[new] = self._names.pop(name)
            self._changes.append(("rename", name, new))
        _rename(path, target)

    def forget_cached(self, path: str) -> None:
        """Read what is on the platter, in place of `posix_fadvise`."""
        self._look()
        stored = self._stored(path)
        if stored.dropped:
            Path(path).write_bytes(stored.without_dropped(Path(path).read_bytes()))
            stored.dropped.clear()

    def sync_names(self) -> None:
        """Have all names on the platter, in place of an fsync of the directory."""
        self._begin("store")
        self._keep_names()
        self.operate("store_synced")

    def sync_own_name(self) -> None:
        """Have the directory's own name on the platter: its parent was synced."""
        self._is_named = self.directory.exists()

    def _begin(self, kind: str) -> None:
        if self.sealed:
            raise OSError("the process has ended")
        self._look()
        self.operate(kind)

    # --- faults ---------------------------------------------------------------------------------

    def lose_unsynced(self, keep: str, rng: random.Random) -> None:
        """Put the files back to what a power loss leaves; no process may have one open."""
        assert keep in KEEPS, keep
        self._look()
        if not self._is_named and (keep == "lost" or rng.random() < 0.5):
            self.wipe()
            return
        names = dict(self._durable_names)
        for what, name, new in self._changes:
            if keep == "all" or (keep != "lost" and rng.random() < 0.5):
                self._apply(names, what, name, new)
        contents = {
            name: self._survives(number, keep, rng) for name, number in sorted(names.items())
        }
        self.wipe()
        self.directory.mkdir(parents=True)
        for name, data in contents.items():
            (self.directory / name).write_bytes(data)
        self.settle()

    def _apply(self, names: dict[str, int], what: str, name: str, new: str) -> None:
        """Let one change of names reach the platter, as far as what it needs has."""
        if what == "create":
            names[name] = int(new)
        elif what == "unlink":
            names.pop(name, None)
        else:
            number = names.pop(name, None) or self._names.get(new)
            if number is not None:
                names[new] = number

    def _survives(self, number: int, keep: str, rng: random.Random) -> bytes:
        stored = self._files[number]
        paths = [name for name, other in self._names.items() if other == number]
        if stored.removed is None and paths:
            data = (self.directory / paths[0]).read_bytes()
        else:
            data = stored.removed or b""
        return stored.survives(data, keep, rng)

    def durable(self, begin: str = "") -> dict[str, bytes]:
        """Return {name: content} of what a power loss would leave if nothing is written back.

        `begin`: of files whose names begin so.
        """
        if not self._is_named:
            return {}
        names = sorted(each for each in self._durable_names.items() if each[0].startswith(begin))
        return {name: bytes(self._files[number].platter) for name, number in names}

    def wipe(self) -> None:
        """Remove everything."""
        shutil.rmtree(self.directory, ignore_errors=True)
        self._files.clear()
        self._names, self._durable_names = {}, {}
        self._changes.clear()
        self._is_named = False

    def settle(self) -> None:
        """Take all that is there for durable."""
        self._files.clear()
        self._names, self._durable_names = {}, {}
        self._changes.clear()
        self._look()
        for name, number in self._names.items():
            self._files[number].platter = bytearray((self.directory / name).read_bytes())
        self._keep_names()
        self._is_named = self.directory.exists()

    def damage(self, name: str, rng: random.Random) -> str:
        """Flip a bit of a file, on the platter and as it is read; return what was done."""
        path = self.directory / name
        self._look()
        if name not in self._names or not path.stat().st_size:
            return ""
        stored = self._stored(str(path))
        at, bit = rng.randrange(path.stat().st_size), 1 << rng.randrange(8)
        with path.open("r+b") as file:
            byte = os.pread(file.fileno(), 1, at)[0]
            _pwrite(file.fileno(), bytes([byte ^ bit]), at)
        if at < len(stored.platter):
            stored.platter[at] ^= bit
        return f"{name} flipped at {at}"

    # --- the real directory ---------------------------------------------------------------------

    def _look(self) -> None:
        """Take note of files that have come, and of those that went without a word."""
        try:
            with os.scandir(self._place) as entries:
                found = {entry.name: entry.inode() for entry in entries}
        except FileNotFoundError:
            found = {}
        if found == self._names:
            return
        for name, number in sorted(found.items()):
            if self._names.get(name) != number:
                self._files[number] = Stored()
                self._changes.append(("create", name, str(number)))
        for name in sorted(self._names.keys() - found.keys()):
            self._changes.append(("unlink", name, ""))
        self._names = found

    def _keep_names(self) -> None:
        self._look()
        self._durable_names = dict(self._names)
        self._changes.clear()
        kept = set(self._names.values())
        self._files = {number: file for number, file in self._files.items() if number in kept}

    def _is_new(self, name: str) -> bool:
        """Return whether a power loss may leave none by this name, or an older one."""
        return self._durable_names.get(name) != self._names.get(name)

    def _stored(self, path: str) -> Stored:
        return self._files[self._names[os.path.basename(path)]]

    def _differing(self, path: str, stored: Stored) -> set[int]:
        data, old = Path(path).read_bytes(), stored.platter
        return {page for page in range(_pages(len(data))) if _page(data, page) != _page(old, page)}
