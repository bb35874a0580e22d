"""A disk in memory that forgets what was not synced, and journals on it.

What lives here: what the journal's and the identity's tests share. What must not: tests.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from cluster.log.files import Files
from cluster.log.journal import Journal

ROOT = Path("/disk/journal")
SMALL_BYTES = 200  # a segment of a few entries
NO_OP = b"\x01"


class Crash(Exception):
    """The power goes out."""


class ProcessStopped(Exception):
    """What `on_failure` raises in place of ending the process."""


def stop(error: Exception) -> NoReturn:
    raise ProcessStopped(str(error)) from error


@dataclass
class MemoryFile:
    data: bytearray = field(default_factory=bytearray)
    durable: bytes = b""


class MemoryDisk(Files):
    """A disk that loses what was not synced, and its power before the operation `crash_at`."""

    def __init__(self, names: dict[Path, MemoryFile] | None = None) -> None:
        self.names = names or {}
        self.durable_names = dict(self.names)
        self.fds: dict[int, MemoryFile] = {}
        self.operations: list[str] = []
        self.crash_at: int | None = None
        self.error_in = ""

    def _step(self, operation: str) -> None:
        if len(self.operations) == self.crash_at:
            raise Crash(operation)
        self.operations.append(operation)
        if operation == self.error_in:
            raise OSError(errno.EIO, f"injected into {operation}")

    def open_append(self, path: Path) -> int:  # type: ignore[override]
        self._step("open_append")
        fd = len(self.operations)  # none is given twice
        self.fds[fd] = self.names.setdefault(path, MemoryFile())
        return fd

    def write(self, fd: int, data: bytearray) -> int:  # type: ignore[override]
        self._step("write")
        written = max(1, len(data) // 2)  # a short write is allowed at any time
        self.fds[fd].data += data[:written]
        return written

    def pread(self, fd: int, size: int, offset: int) -> bytes:  # type: ignore[override]
        return bytes(self.fds[fd].data[offset : offset + size])

    def forget_cached(self, fd: int) -> None:  # type: ignore[override]
        """Its files are in no cache."""

    def fdatasync(self, fd: int) -> None:  # type: ignore[override]
        self._step("fdatasync")
        self.fds[fd].durable = bytes(self.fds[fd].data)

    def truncate(self, fd: int, size: int) -> None:  # type: ignore[override]
        self._step("truncate")
        del self.fds[fd].data[size:]

    def rename(self, old: Path, new: Path) -> None:  # type: ignore[override]
        self._step("rename")
        self.names[new] = self.names.pop(old)

    def unlink(self, path: Path) -> None:  # type: ignore[override]
        self._step("unlink")
        del self.names[path]

    def close(self, fd: int) -> None:  # type: ignore[override]
        del self.fds[fd]

    def read(self, path: Path) -> bytes:  # type: ignore[override]
        return bytes(self.names[path].data)

    def list(self, directory: Path, suffix: str = "") -> list[str]:  # type: ignore[override]
        return sorted(path.name for path in self.names if path.name.endswith(suffix))

    def make_directory(self, directory: Path) -> None:  # type: ignore[override]
        self._step("make_directory")

    def fsync_directory(self, directory: Path) -> None:  # type: ignore[override]
        self._step("fsync_directory")
        self.durable_names = dict(self.names)

    def after_power_loss(self, keep: Callable[[bytes, bytes], bytes], names: str) -> MemoryDisk:
        """Return what is found later: `keep(durable, written)` of each file."""
        survivors = self.durable_names if names == "durable" else self.names
        found = {}
        for path, inode in survivors.items():
            data = keep(inode.durable, bytes(inode.data))
            found[path] = MemoryFile(bytearray(data), data)
        return MemoryDisk(found)


def lose_unsynced(durable: bytes, _written: bytes) -> bytes:
    return durable


def keep_everything(_durable: bytes, written: bytes) -> bytes:
    return written


def tear_in_half(durable: bytes, written: bytes) -> bytes:
    return written[: (len(durable) + len(written)) // 2]


def lose_first_page(durable: bytes, written: bytes) -> bytes:
    """Keep the second half of what was not synced, zeros where its first half was."""
    middle = (len(durable) + len(written)) // 2
    return durable + bytes(max(0, middle - len(durable))) + written[max(middle, len(durable)) :]


def command(tag: object, size: int = 20) -> bytes:
    return b"\0" + str(tag).encode().ljust(size, b".")


def open_journal(disk: Files, directory: Path = ROOT, **options: Any) -> Journal:
    if not Journal.exists(directory, disk):
        Journal.create(directory, disk)
    defaults = {"segment_bytes": 1 << 20, "keep_bytes": 0, "on_failure": stop}
    return Journal.open(directory, files=disk, **defaults | options)


def filled(disk: Files, count: int, **options: Any) -> Journal:
    """Return a journal with entries 1..count of term 1, each synced on its own."""
    journal = open_journal(disk, **options)
    for index in range(1, count + 1):
        journal.add(command(index), index, 1)
        journal.sync()
    return journal


def entries(journal: Journal) -> list[tuple[bytes, int, int]]:
    return [journal.entry(at) for at in range(journal.first_index, journal.last_index + 1)]
