"""Where the files of runs lie: in memory, and no longer than the process that runs them.

What lives here: this process's own directory, and the removal of those that dead processes have
left. What must not: anything about what is in there.
"""

from __future__ import annotations

import atexit
import fcntl
import os
import shutil
import tempfile
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Final

MEMORY: Final = Path("/dev/shm")
PREFIX: Final = "flotilla-simulate-"
LOCK: Final = "lock"  # held as long as the directory's process lives, wherever its pid means that


@cache
def memory_directory() -> Path:
    """Return this process's directory, made on the first call; removed when the process ends."""
    parent = MEMORY if MEMORY.is_dir() else Path(tempfile.gettempdir())
    remove_leftovers(parent)
    directory = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
    # Never closed: the kernel lets go of the lock when the process is gone, however it went.
    fcntl.flock(os.open(directory / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC), fcntl.LOCK_EX)
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return directory


def remove_leftovers(parent: Path) -> list[str]:
    """Remove the directories of processes that are gone; return their names."""
    return [path.name for path in sorted(parent.glob(f"{PREFIX}*")) if _remove_if_left(path)]


def _remove_if_left(directory: Path) -> bool:
    """Remove a directory if nobody holds its lock. One without a lock has just been made."""
    with suppress(OSError):
        lock = os.open(directory / LOCK, os.O_RDWR | os.O_CLOEXEC)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(directory, ignore_errors=True)
        finally:
            os.close(lock)
        return True
    return False
