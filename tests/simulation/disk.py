"""The lab's disks: real files that know what of them would survive a power loss.

What lives here: the journal's `Files` with faults, and images of databases as last made durable.
What must not: when faults happen, and any knowledge of what is in the files.
"""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path
from typing import NoReturn

from chaos.simulation.disks.disk import DiskFailed, PowerLoss
from cluster.log.files import Files


class LabDisk(Files):
    """The disk of one node, over its restarts.

    `power_fails_in`: so many operations until the power goes; from then on nothing works until
    `restart`.
    """

    def __init__(self) -> None:
        self.power_fails_in: int | None = None
        self._off = False
        self._paths: dict[int, Path] = {}
        self._durable: dict[Path, int] = {}  # bytes
        self._image: dict[Path, Path] = {}

    def _operate(self) -> None:
        if self.power_fails_in == 0:
            self._off = True
        if self.power_fails_in is not None:
            self.power_fails_in -= 1
        self.check_power()

    def check_power(self) -> None:
        """Raise PowerLoss if the power is out."""
        if self._off:
            raise PowerLoss

    def stop(self, error: Exception) -> NoReturn:
        """Take the journal's word that its node must not go on."""
        self._off = True
        raise DiskFailed(str(error)) from error

    # --- Files --------------------------------------------------------------------------------

    def open_append(self, path: Path) -> int:  # type: ignore[override]
        self._operate()
        fd = Files.open_append(path)
        self._paths[fd] = path
        self._durable.setdefault(path, 0)
        return fd

    def write(self, fd: int, data: bytearray) -> int:  # type: ignore[override]
        self._operate()
        return os.write(fd, data)

    def forget_cached(self, fd: int) -> None:  # type: ignore[override]
        """Its files are in no cache."""

    def fdatasync(self, fd: int) -> None:  # type: ignore[override]
        self._operate()
        path = self._paths[fd]
        self._durable[path] = os.fstat(fd).st_size

    def truncate(self, fd: int, size: int) -> None:  # type: ignore[override]
        self._operate()
        os.ftruncate(fd, size)
        self._durable[self._paths[fd]] = min(size, self._durable[self._paths[fd]])

    def rename(self, old: Path, new: Path) -> None:  # type: ignore[override]
        self._operate()
        os.replace(old, new)
        self._durable[new] = self._durable.pop(old)
        self._paths = {fd: new if path == old else path for fd, path in self._paths.items()}

    def unlink(self, path: Path) -> None:  # type: ignore[override]
        self._operate()
        os.unlink(path)
        self._durable.pop(path, None)

    def close(self, fd: int) -> None:  # type: ignore[override]
        self._paths.pop(fd, None)
        os.close(fd)

    @staticmethod
    def make_directory(directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)

    @staticmethod
    def fsync_directory(directory: Path) -> None:
        """Names are durable at once here; tests/unit/test_journal_crashes.py loses them."""

    # --- the end of a process -----------------------------------------------------------------

    def restart(self) -> None:
        """Close what the dead process had open; the disk works again."""
        for fd in list(self._paths):
            self.close(fd)
        self.power_fails_in, self._off = None, False

    def lose_unsynced(self, rng: random.Random | None) -> None:
        """Cut each file back to what was synced; with `rng` somewhere between that and its end."""
        for path, durable in self._durable.items():
            if path.exists():
                size = path.stat().st_size
                keep = durable if rng is None else rng.randint(min(durable, size), size)
                os.truncate(path, min(size, keep))
                self._durable[path] = min(size, keep)

    # --- databases ----------------------------------------------------------------------------

    def image(self, database: Path, suffixes: tuple[str, ...]) -> None:
        """Remember these files of the database as durable in their present state."""
        self._image = {}
        for suffix in suffixes:
            file = database.with_name(database.name + suffix)
            if file.exists():
                kept = database.with_name(f"image{suffix}")
                shutil.copyfile(file, kept)
                self._image[file] = kept

    def restore(self, database: Path) -> None:
        """Put the database back to what was durable."""
        for suffix in ("", "-wal", "-shm"):
            database.with_name(database.name + suffix).unlink(missing_ok=True)
        for file, kept in self._image.items():
            shutil.copyfile(kept, file)
