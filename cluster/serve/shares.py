"""Fair shares of a turn: who floods a node waits for its own requests, the others do not.

What lives here: how many requests of one connection, or of all of one payer, a turn looks at. What
must not: sockets, a clock of its own, queues (client_port.py, intake.py).

What a turn looks at becomes one entry, so everybody in it waits for all of it. Alone, somebody may
fill a turn: large entries are what makes many small requests fast. While others are there too, a
turn takes few requests of each, so that it stays as short as a turn of theirs alone.
"""

from __future__ import annotations

from typing import Final

# About 34 microseconds a PUT: a quarter of a millisecond, of the millisecond that a PUT takes.
CONNECTION_SHARE: Final = 8
PAYER_SHARE: Final = 32  # of all connections of one: they are many programs, or one that floods
CONTENDED_S: Final = 1.0  # so long after another one's request a share is kept free for it


class Shares:
    """The share of each of those who are told apart by a key: connections, payers or nodes."""

    def __init__(self, requests: int) -> None:
        self._requests = requests
        self._last: object = None
        self._contended_until = float("-inf")

    def note(self, who: object, now: float) -> None:
        """Note that `who` has sent a request."""
        if who != self._last:
            if self._last is not None:
                self._contended_until = now + CONTENDED_S
            self._last = who

    def share(self, now: float, everything: int) -> int:
        """Return how many requests each may have looked at in a turn that looks at `everything`."""
        return min(self._requests, everything) if now < self._contended_until else everything
