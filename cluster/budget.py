"""A turn's time: how much of it may go into what can as well go on in the next turn.

What lives here: the shares and the measuring of them. What must not: a clock of its own.

A leader's heartbeats leave once a turn, so a turn must end well within a heartbeat (80 ms by
default, a quarter of the shortest election), whatever clients ask for and whatever has piled up.
What takes long is therefore done in steps, each short (a few milliseconds at most on a slow
machine), and each share of the turn ends with the first step after its time. At least one step of
a share is done each turn, so that everything ends at some time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

CHORES_S: Final = 0.004  # garbage, pages given back: nobody waits for them


class Budget:
    """What is left of one share. `clock()`: monotonic seconds."""

    def __init__(self, clock: Callable[[], float], seconds: float) -> None:
        self._clock, self._seconds = clock, seconds
        self._end_s = 0.0

    def begin(self) -> None:
        """Begin the turn's share."""
        self._end_s = self._clock() + self._seconds

    def spent(self) -> bool:
        """Return whether the share is over: asked after each step."""
        return self._clock() >= self._end_s
