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

What he has asked for may cost more than that turn shows. An entry is applied in a later turn, on
every node, and answers may be large. So what requests and answers weigh counts as well.

A connection that reads a long topic rests while anybody publishes, whoever's it is. With one key,
or without keys, it cost eight callers 41 % of their PUTs, and costs them 12 % so.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Final, Generic, TypeVar

from flotilla_client.protocol import (
    HEADER_BYTES_MAX,
    SUB,
    TAKE,
    UNSUB,
    ProtocolError,
    decode_request,
    has_wildcard,
)

WEIGHT_S: Final = 34e-6  # what a PUT costs its leader, about
# A quarter of a millisecond, of the millisecond that a PUT takes.
CONNECTION_SHARE: Final = 8
PAYER_SHARE: Final = 32  # of all connections of one: they are many programs, or one that floods
CONTENDED_S: Final = 1.0  # so long after another one's request a share is kept free for it
WEIGHT_BYTES: Final = 4_096  # of a request weigh as much as one more: copied, sent twice, synced
# The same of an answer, which one node reads and encrypts, and none syncs.
WEIGHT_ANSWER_BYTES: Final = 8_192
# The same of a header's names and numbers: a GET of any topic says of a thousand where it is, which
# takes about a microsecond each.
WEIGHT_FIELDS: Final = 32
# The same of what an answer lists: up to three microseconds each, where they are looked up.
WEIGHT_ROWS: Final = 12
WEIGHT_IDS: Final = 16  # of those that a TAKE settles: two microseconds each, on every node
WEIGHT_PATTERN: Final = 256  # who follows a pattern, or follows it no more, looks at all topics
REST_TURNS: Final = 6  # as long as so many turns is who had all of his share not read
# The same of one connection that reads a long topic while anybody publishes, whoever's they are. A
# subscriber that is just as fast as a producer rests too, so it is less.
READER_TURNS: Final = 4
REST_S_MAX: Final = 0.1  # a turn may have been long for another reason
# Of a queue's places one part of so many is for the others. Who waits for publications has his
# places for a minute and takes them again, so that he would keep all others out.
OTHERS_PART: Final = 4

Who = TypeVar("Who", bound=Hashable)


def rest_s(turn_s: float, turns: int = REST_TURNS) -> float:
    """Return how long one rests behind a turn of `turn_s` in which he had all of his share."""
    return min(REST_S_MAX, turns * turn_s)


def places_of_one(places: int) -> int:
    """Return how many of a queue's places one principal may have."""
    return places - places // OTHERS_PART


def weight(frames: Sequence[bytes]) -> int:
    """Return as how many small requests one counts."""
    fields = frames[0].count(b":", 0, HEADER_BYTES_MAX) if frames else 0
    asked = _weight_of_what_is_asked(frames)
    return 1 + asked + sum(map(len, frames)) // WEIGHT_BYTES + fields // WEIGHT_FIELDS


def _weight_of_what_is_asked(frames: Sequence[bytes]) -> int:
    """Return as how many more a request counts that asks for much in a few bytes."""
    if not frames or not (b'"TAKE"' in frames[0] or b'SUB"' in frames[0]):
        return 0
    try:
        request = decode_request(frames)
    except ProtocolError:
        return 0  # it will be refused
    if request.type == TAKE:
        rows = (row for name in ("acks", "naks", "extends") for row in request.body[name])
        return int(sum(row[2] + 1 - row[1] for row in rows)) // WEIGHT_IDS
    is_of_pattern = request.type in (SUB, UNSUB) and has_wildcard(request.topic)
    return WEIGHT_PATTERN if is_of_pattern else 0


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
        self._spent: dict[Who, tuple[int, int]] = {}  # weight, turns
        self.rest_s = 0.0  # how long the longest of the last rests was
        self.next_end = float("inf")

    def __contains__(self, who: Who) -> bool:
        return who in self._until

    def spent(self, who: Who, weight: int = 0, turns: int = REST_TURNS) -> None:
        """Note that somebody has had all of his share of this turn, requests of that weight.

        Of what goes into the log the most is done in a later turn: so its weight counts as well.
        He rests as long as so many turns.
        """
        self._spent[who] = max((weight, turns), self._spent.get(who, (0, 0)))

    def begin(self, turn_s: float, now: float) -> bool:
        """Let those rest who had all of their share of a turn that took `turn_s`; False: nobody."""
        if not self._spent:
            return False
        rests_s = {
            who: rest_s(max(turn_s, weight * WEIGHT_S), turns)
            for who, (weight, turns) in self._spent.items()
        }
        self.rest_s = max(rests_s.values())
        self._until.update((who, now + own_s) for who, own_s in rests_s.items())
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
