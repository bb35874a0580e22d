"""Whose turn it is: the operations of a client run one at a time, in the order of the calls.

What lives here: the queue of those who wait, each no longer than its own deadline. What must not:
what they wait for.
"""

from __future__ import annotations

import threading
import time
import weakref
from typing import Final

from flotilla_client.errors import Busy

LOOK_MS: Final = 250  # between looks at the queue: a wake-up that Ctrl-C swallowed costs no more


class Ticket:
    """A call's ticket; it lives as long as the call. `place`: what stands in the queue for it.

    `woken` is released when it may have become the first.
    """

    def __init__(self) -> None:
        self.place = weakref.ref(self)
        self.thread = threading.get_ident()
        self.woken = threading.Lock()
        self.woken.acquire()


class Turns(dict["weakref.ref[Ticket]", None]):
    """The tickets of all calls under way; the first one has its turn.

    Use: `try: await_turn(ticket, …) … finally:`, and as the first call behind `finally`
    `pop(ticket.place, None)`, then `wake()`. No lock: this class's methods are C, so that Ctrl-C
    comes before such a call or behind its effect; between taking a lock with a time limit and the
    `try` that releases it there is a place for Ctrl-C. And where a debugger ends a call between
    any two lines, its ticket dies with it.
    """

    def await_turn(self, ticket: Ticket, end_ms: float) -> None:
        """Queue up until the ticket is the first. Raises Busy at `end_ms` (monotonic).

        At once for a call from inside another one of the same thread, an observer's or a signal
        handler's: it would wait for itself.
        """
        if any(other.thread == ticket.thread for other in self.tickets()):
            raise busy("it was called from inside another one")
        self[ticket.place] = None
        while self.tickets()[0] is not ticket:
            left_ms = end_ms - time.monotonic() * 1000
            if left_ms <= 0:
                raise busy("others took all of its time")
            ticket.woken.acquire(timeout=min(left_ms, LOOK_MS) / 1000)

    def tickets(self) -> list[Ticket]:
        """Return the tickets, the one whose turn it is first."""
        found = []
        for place in list(self):  # a list at one stroke, whoever comes or goes
            ticket = place()
            if ticket is None:
                self.pop(place, None)
            else:
                found.append(ticket)
        return found

    def wake(self) -> None:
        """Tell the first that its turn has come."""
        first = next(iter(self.tickets()), None)
        try:
            if first is not None:
                first.woken.release()
        except RuntimeError:
            return  # it has been told


def busy(why: str) -> Busy:
    """Return the error of an operation whose turn never came."""
    message = (
        f"a client runs one operation at a time, and {why}: it was not begun, and nothing of it is"
        " sent or kept"
    )
    return Busy(message, details={"kept": 0})
