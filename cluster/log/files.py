"""The seam between what a node keeps and the disk: thin calls, which a simulator replaces.

What must not live here: any knowledge of what is in the files, retries, buffering.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

EXIT_STATUS = 74
"""Exit status after a disk failure (sysexits.h: EX_IOERR)."""


class Files:
    """Do what a node's files need of a disk. Any call may raise OSError."""

    write = staticmethod(os.write)
    pread = staticmethod(os.pread)
    fdatasync = staticmethod(os.fdatasync)
    truncate = staticmethod(os.ftruncate)
    rename = staticmethod(os.replace)
    unlink = staticmethod(os.unlink)
    close = staticmethod(os.close)

    @staticmethod
    def open_append(path: Path) -> int:
        """Open `path` (created when missing) for reads anywhere and writes at its end."""
        return os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o640)

    @staticmethod
    def open_read(path: Path) -> int:
        """Open `path`, which must exist, for reads anywhere."""
        return os.open(path, os.O_RDONLY)

    @staticmethod
    def read(path: Path) -> bytes:
        """Return the whole content of `path`; its name is in the error of a read that fails."""
        try:
            return path.read_bytes()
        except OSError as error:
            error.filename = str(path)
            raise

    @staticmethod
    def forget_cached(fd: int) -> None:
        """Have reads give what is on the disk, not what is in the kernel's cache; `fd` is synced.

        What a failed sync was to write stays in the cache, is called clean, and no later sync
        writes it: a process that comes after that one would take it for durable.
        """
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)

    @staticmethod
    def list(directory: Path, suffix: str = "") -> list[str]:
        """Return the names in `directory` that end in `suffix`, sorted; none if it is missing."""
        names = os.listdir(directory) if directory.exists() else []
        return sorted(name for name in names if name.endswith(suffix))

    @staticmethod
    def make_directory(directory: Path) -> None:
        """Create `directory` and its parents; each that is made is durable in its own parent."""
        made = [each for each in directory.parents if not each.exists()]
        directory.mkdir(mode=0o750, parents=True, exist_ok=True)
        for each in (directory, *made):
            Files.fsync_directory(each.parent)

    @staticmethod
    def fsync_directory(directory: Path) -> None:
        """Make the creations, renames and removals in `directory` durable."""
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    @staticmethod
    def free_bytes(directory: Path) -> int:
        """Return how many bytes may still be written where `directory` is."""
        disk = os.statvfs(directory)
        return disk.f_bavail * disk.f_frsize


DISK = Files()
"""The machine's own disk."""


def exit_process(error: Exception) -> NoReturn:
    """Say `error` in one line and end the process: a replica with a broken log must not vote."""
    sys.stderr.write(f"fatal: the journal failed, this node stops: {error!r}\n")
    sys.stderr.flush()
    os._exit(EXIT_STATUS)


class FailStop:
    """Hand errors of these kinds to `on_failure`, which must not return: nobody may retry them."""

    def __init__(
        self, on_failure: Callable[[Exception], NoReturn], *kinds: type[Exception]
    ) -> None:
        self._on_failure, self._kinds = on_failure, kinds

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, self._kinds):
            self._on_failure(error)
