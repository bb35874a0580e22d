"""Processes of this machine, as /proc shows them.

What lives here: a process's arguments, and whether it has ended. What must not: whose it is, and
signals (local.py; chaos/targets/leftovers.py).
"""

from __future__ import annotations

import select
import time
from pathlib import Path
from typing import Final

PROCESSES: Final = Path("/proc")
ENDED: Final = (b"Z", b"X")
KERNEL_THREAD: Final = 0x0020_0000  # PF_KTHREAD, of a status' flags
EXEC_TIMEOUT_S: Final = 5.0  # of a moment that is some microseconds long on an idle machine
EXEC_INTERVAL_S: Final = 0.0001


def arguments(pid: int) -> list[bytes]:
    """Return a process's arguments; none if it has ended, or is a thread of the kernel's.

    In the middle of an exec() it has none for a moment, and with a prefix a node goes through two:
    whoever looked then would take it for dead, and leave it alive for good. One that is about to
    end has none either, before it is a zombie: whoever looked then could not learn how it ended.
    """
    deadline = time.monotonic() + EXEC_TIMEOUT_S
    while True:
        try:
            words = (PROCESSES / str(pid) / "cmdline").read_bytes()
            status = _status(pid)
        except (FileNotFoundError, ProcessLookupError):
            return []
        has_none = status[0] in ENDED or int(status[6]) & KERNEL_THREAD
        if words or has_none or time.monotonic() >= deadline:
            return words.split(b"\0")
        time.sleep(EXEC_INTERVAL_S)


def is_zombie(pid: int) -> bool:
    """Return whether it waits for its parent to bury it, or just has been buried."""
    return _status(pid)[0] in ENDED


def _status(pid: int) -> list[bytes]:
    """Return what stands behind the name in its status: state, parent and so on (proc(5))."""
    return (PROCESSES / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()


def ends(process: int, timeout_s: float) -> bool:
    """Wait for the end of the process of a pidfd; return whether it has come."""
    poll = select.poll()
    poll.register(process, select.POLLIN)  # a pidfd is readable once its process has ended
    return bool(poll.poll(timeout_s * 1000))
