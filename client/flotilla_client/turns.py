"""Whose turn it is: the operations of a client run one at a time, in the order of the calls.

Those that publish, next to each other in the queue, are done together, by the first of them.

What lives here: the queue of those who wait, each no longer than its own deadline. What must not:
what they wait for.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Final

from flotilla_client.errors import Busy
from flotilla_client.joining import Call

LOOK_MS: Final = 250  # between looks at the queue: a wake-up that Ctrl-C swallowed costs no more


class Ticket:
    """A call's ticket; it lives as long as the call. `place`: what stands in the queue for it.

    `woken` is released when it may have become the first. `joining`: what it publishes, joined
    with what others do (joining.py): whoever has the turn may do it for all of them.
    """

    def __init__(self, joining: Sequence[Call] = ()) -> None:
        self.joining = joining
        self.place = weakref.ref(self)
        self.thread = threading.get_ident()
        self.woken = threading.Lock()
        self.woken.acquire()

    def is_over(self) -> bool:
        """Return whether others have done all of it."""
        for call in self.joining:
            if not call.is_over:
                return False
        return bool(self.joining)

    def waker(self) -> Callable[[], None]:
        """Return what wakes it; that does not keep it alive."""
        place = self.place

        def wake() -> None:
            ticket = place()
            if ticket is not None:
                ticket.wake()

        return wake

    def wake(self) -> None:
        """Have it look again."""
        try:
            self.woken.release()
        except RuntimeError:
            return  # it has been told


class Turns(dict["weakref.ref[Ticket]", None]):
    """The tickets of all calls under way; the first one has its turn.

    Use: `try: await_turn(ticket, …) … finally:`, and as the first call behind `finally`
    `pop(ticket.place, None)`, then `wake()`. No lock: this class's methods are C, so that Ctrl-C
    comes before such a call or behind its effect; between taking a lock with a time limit and the
    `try` that releases it there is a place for Ctrl-C. And where a debugger ends a call between
    any two lines, its ticket dies with it.
    """

    def await_turn(self, ticket: Ticket, end_ms: float) -> None:
        """Queue up until the ticket is the first, or over. Raises Busy at `end_ms` (monotonic).

        At once for a call from inside another one of the same thread, an observer's or a signal
        handler's: it would wait for itself.
        """
        if self and any([other.thread == ticket.thread for other in self.tickets()]):
            raise busy("it was called from inside another one")
        self.add(ticket)
        if list(self)[0] is ticket.place:  # noqa: RUF015, at one stroke; as a rule it is
            return
        while self.tickets()[0] is not ticket and not ticket.is_over():
            left_ms = end_ms - time.monotonic() * 1000
            if left_ms <= 0:
                raise busy("others took all of its time")
            ticket.woken.acquire(timeout=min(left_ms, LOOK_MS) / 1000)

    def add(self, ticket: Ticket) -> None:
        """Queue up, behind all who are here; at one stroke."""
        self.setdefault(ticket.place)

    def await_place(
        self, ticket: Ticket, woken: Callable[[], None], look: Callable[[], None]
    ) -> None:
        """Wait until a ticket that has been added is the first, or over.

        Call `woken` whenever it was woken, and `look` now and then.
        """
        self.add(ticket)
        look_s = time.monotonic()
        while not (ticket.is_over() or self.tickets()[0] is ticket):
            ticket.woken.acquire(timeout=LOOK_MS / 1000)
            woken()
            if time.monotonic() >= look_s + LOOK_MS / 1000:  # each call that joins it wakes it
                look()
                look_s = time.monotonic()

    def is_last(self, ticket: Ticket) -> bool:
        """Return whether nobody has queued up behind it."""
        return list(self)[-1:] == [ticket.place]

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
        if self:
            for first in self.tickets()[:1]:
                first.wake()

    def joining(self) -> list[Call]:
        """Return what is to be published together, in the order of the calls.

        That ends at a call of another kind: it would lose its turn to all that come behind it.
        """
        found: list[Call] = []
        for ticket in self.tickets():
            if not ticket.joining:
                break
            found += ticket.joining
        return found


def busy(why: str) -> Busy:
    """Return the error of an operation whose turn never came."""
    message = (
        f"a client runs one operation at a time, and {why}: it was not begun, and nothing of it is"
        " sent or kept"
    )
    return Busy(message, details={"kept": 0})
