"""Fair shares of a turn: who floods a node waits for its own requests, the others do not.

What lives here: how many requests of one connection, or of all of one payer, a turn looks at, how
long a payer is not read who has had his share, and how many of a queue's places he may have. What
must not: sockets, a clock of its own, queues (client_port.py, intake.py, relays.py).

What a turn looks at becomes one entry, so everybody in it waits for all of it. Alone, somebody may
fill a turn: large entries are what makes many small requests fast. While others are there too, a
turn takes few requests of each, so that it stays as short as a turn of theirs alone.

Short turns are not enough. Who sends without a pause has his share in each of them, so the others
find a processor, a disk and a log that are busy whenever they come. So he is not read for some
turns' time behind a turn in which he had all of his share; TCP then makes him wait. Measured: one
producer of 155,000 publications a second made another principal's PUTs take 6.5 times as long in
the median; beside rests of six turns it has 126,000, and they take 1.25 times as long.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Final, Generic, TypeVar

from flotilla_client.protocol import HEADER_BYTES_MAX

# About 34 microseconds a PUT: a quarter of a millisecond, of the millisecond that a PUT takes.
CONNECTION_SHARE: Final = 8
PAYER_SHARE: Final = 32  # of all connections of one: they are many programs, or one that floods
CONTENDED_S: Final = 1.0  # so long after another one's request a share is kept free for it
WEIGHT_BYTES: Final = 4_096  # of a request weigh as much as one more: copied, sent twice, synced
# The same of a header's names and numbers: a GET of any topic says of a thousand where it is, which
# takes about a microsecond each.
WEIGHT_FIELDS: Final = 32
REST_TURNS: Final = 6  # as long as so many turns is who had all of his share not read
REST_S_MAX: Final = 0.1  # a turn may have been long for another reason
# Of a queue's places one part of so many is for the others. Who waits for publications has his
# places for a minute and takes them again, so that he would keep all others out.
OTHERS_PART: Final = 4

Who = TypeVar("Who", bound=Hashable)


def rest_s(turn_s: float) -> float:
    """Return how long one rests behind a turn of `turn_s` in which he had all of his share."""
    return min(REST_S_MAX, REST_TURNS * turn_s)


def places_of_one(places: int) -> int:
    """Return how many of a queue's places one principal may have."""
    return places - places // OTHERS_PART


def weight(frames: Sequence[bytes]) -> int:
    """Return as how many small requests one counts."""
    fields = frames[0].count(b":", 0, HEADER_BYTES_MAX) if frames else 0
    return 1 + sum(map(len, frames)) // WEIGHT_BYTES + fields // WEIGHT_FIELDS


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

    def is_contended(self, now: float) -> bool:
        """Return whether several have sent requests lately."""
        return now < self._contended_until

    def share(self, now: float, everything: int) -> int:
        """Return how many requests each may have looked at in a turn that looks at `everything`."""
        return min(self._requests, everything) if self.is_contended(now) else everything


class Rests(Generic[Who]):
    """Who is not read for a while, because a turn has looked at all of his share."""

    def __init__(self) -> None:
        self._until: dict[Who, float] = {}
        self._spent: set[Who] = set()
        self.rest_s = 0.0  # how long the last rests were
        self.next_end = float("inf")

    def __contains__(self, who: Who) -> bool:
        return who in self._until

    def spent(self, who: Who) -> None:
        """Note that somebody has had all of his share of this turn."""
        self._spent.add(who)

    def begin(self, turn_s: float, now: float) -> bool:
        """Let those rest who had all of their share of a turn that took `turn_s`; False: nobody."""
        if not self._spent:
            return False
        self.rest_s = rest_s(turn_s)
        self._until.update(dict.fromkeys(self._spent, now + self.rest_s))
        self._spent.clear()
        self.next_end = min(self._until.values())
        return True

    def end(self, now: float) -> bool:
        """Let those go on whose time has come; False: nobody."""
        if now < self.next_end:
            return False
        self._until = {who: until for who, until in self._until.items() if until > now}
        self.next_end = min(self._until.values(), default=float("inf"))
        return True
