"""A turn's time: how much of it may go into what can as well go on in the next turn.

What lives here: the shares and the measuring of them. What must not: a clock of its own.

A leader's heartbeats leave once a turn, so a turn must end well within the period of heartbeats
(80 ms by default, a quarter of the shortest election), whatever clients ask for and whatever has
piled up. What takes long is therefore done in steps, each short (a few milliseconds), and each
share of the turn ends with the first step after its time. At least one step of a share is done
each turn, so that everything comes to its end.

The shares come to four fifths of a heartbeat: the rest is for the fdatasync.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

# In heartbeats: 10 ms is an eighth of the default.
PEERS_SHARE: Final = 1 / 4  # what peers sent: a leader that was away has megabytes of it
REQUESTS_SHARE: Final = 1 / 8  # looking at what clients sent
APPLY_SHARE: Final = 1 / 8  # committed entries: after a hiccup hundreds at once
ANSWERS_SHARE: Final = 1 / 8  # reads, woken GETs, what takes long to answer
REPLIES_SHARE: Final = 1 / 16  # encoding them
CHORES_SHARE: Final = 1 / 20  # pages given back, garbage: nobody waits for them


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
