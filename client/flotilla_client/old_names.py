"""Old names of the public surface: they work as they did, and say what is said instead.

What lives here: the warning, and the old arguments read as what they are now. What must not: what a
name does (client.py, aio.py).

Who calls is told once a place, as Python does it for any DeprecationWarning; in a program's own
code, not in the library's. They go with version 2.0.
"""

from __future__ import annotations

import sys
import warnings

from flotilla_client import checks
from flotilla_client.checks import Duration
from flotilla_client.retry import DEADLINE_MS, DEADLINE_MS_MAX


def warn_of(old: str, new: str) -> None:
    """Issue the DeprecationWarning of an old name, for whoever called the library."""
    message = f"flotilla_client: {old} is an old name, which goes with version 2.0: say {new}"
    warnings.warn(message, DeprecationWarning, stacklevel=level_of_caller())


def level_of_caller() -> int:
    """Return the `stacklevel` (of who called this) of the first function that is not ours."""
    frame, level = sys._getframe(1), 1
    while (
        frame.f_back and frame.f_globals.get("__name__", "").partition(".")[0] == "flotilla_client"
    ):
        frame, level = frame.f_back, level + 1
    return level


def deadline_of(timeout: Duration | None, deadline_ms: float | None) -> float:
    """Return how long a call of a client tries, in ms. Raises TypeError, ValueError."""
    if deadline_ms is not None:
        warn_of("deadline_ms", "timeout, in seconds")
        checks.number("deadline_ms", deadline_ms, 1, DEADLINE_MS_MAX)
    if timeout is not None:
        return checks.milliseconds("timeout", timeout, 1, DEADLINE_MS_MAX)
    return DEADLINE_MS if deadline_ms is None else deadline_ms


def idle_of(idle: Duration | None, old: str, old_ms: float | None) -> float | None:
    """Return for how long nothing may come, in ms; None: nobody said. Raises TypeError, ValueError.

    `old`, `old_ms`: the old argument that says the same.
    """
    if old_ms is None:
        return None if idle is None else checks.milliseconds("idle", idle, 0, DEADLINE_MS_MAX)
    warn_of(old, "idle, in seconds")
    if idle is not None:
        raise TypeError(f"idle and {old} say the same: give one of them")
    return checks.number(old, old_ms, 0, DEADLINE_MS_MAX)
