"""Waiting for what another process does: asked again and again, with a bound."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, TypeVar

WAIT_S_MAX: Final = 60.0  # only a failing test waits as long
POLL_S: Final = 0.02  # a process says nothing when its state changes

Found = TypeVar("Found")


def until(
    look: Callable[[], Found], what: str = "it did not come to that", seconds: float = WAIT_S_MAX
) -> Found:
    """Return the first true value that `look` returns; fail with `what` if none comes in time."""
    give_up_at = time.monotonic() + seconds
    while not (found := look()):
        assert time.monotonic() < give_up_at, what
        time.sleep(POLL_S)
    return found
