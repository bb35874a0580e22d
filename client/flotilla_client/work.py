"""Work that several clients share: what one of them has of a group, and what it says of it.

What lives here: `WorkItem`, a publication as leased; `LeaseBook`, from what a TAKE has brought to
the application and from the application to the next TAKE, without socket, thread or clock; the
steps of both. What must not: the loops' waiting (client.py, aio.py), durable state: there is none.

What is settled goes with the next TAKE, so it costs no request of its own while bodies are quick.
Behind a slow body it is sent at once, so that no acknowledgment waits for the next one's end. A
lease is never extended behind the application's back: a body that hangs has to lose its
publication. What waits here for its turn is extended before it is handed over, if half of its time
is over, once, and is left out if it is somebody else's by then.

A TAKE that got no answer is sent again with its number, before any other: the cluster carries out
each number once. Who leaves waits for nothing then: what comes would be given to nobody. An earlier
attempt may wait at a node still; a higher number ends that.

Ctrl-C may end a change between any two calls. So each one that needs several is made at one stroke,
in an assignment, and what it was made of stays until then: it is made again.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, Literal, get_args

from flotilla_client import checks, protocol
from flotilla_client.checks import Duration, milliseconds
from flotilla_client.errors import (
    AlreadyReading,
    FlotillaError,
    LeaseLost,
    UnknownClient,
    Unsupported,
)
from flotilla_client.forks import check_here, here
from flotilla_client.log import LOG
from flotilla_client.observer import TakeAnswer
from flotilla_client.operations import (
    Ask,
    Operations,
    Steps,
    check_name,
    check_no_pattern,
    check_topic,
)
from flotilla_client.properties import Properties
from flotilla_client.protocol import Reply
from flotilla_client.reading import Message, Owner

PREFETCH: Final = 256  # publications that a loop takes at once; a worker may well lose them again
SLOW_BODY_MS: Final = 100.0  # behind a body that takes longer its acknowledgment waits for nothing
SHORT_WAIT_MS: Final = 500  # for more, while something is in hand that may have to be extended
HALF: Final = 0.5  # of a lease: what is handed over has at least so much of it

WorkAck = Literal["auto", "manual"]
WORK_ACKS: Final = get_args(WorkAck)


@dataclass(slots=True, eq=False)
class WorkItem:
    """A publication that this client has leased: `message` as delivered, and what it does with it.

    `attempt`: how often it was given, this time included. `ack`, `nak` and `extend` may be called
    in any thread; the first of `ack` and `nak` counts. Behind the client's `close` they raise
    Closed, in a child process Forked.
    """

    message: Message
    group: str
    attempt: int
    _book: LeaseBook = field(repr=False)  # in which are all others
    _token: int = field(repr=False)
    _end_ms: float = field(repr=False)
    _lease_ms: float = field(repr=False)
    settled: str = ""  # "ack", "nak", or "lost": the lease was somebody else's by then

    @property
    def topic(self) -> str:
        """The topic's name."""
        return self.message.topic

    @property
    def id(self) -> int:
        """The publication's id in its topic."""
        return self.message.id

    @property
    def publication(self) -> bytes:
        """What was published."""
        return self.message.publication

    @property
    def key(self) -> str | bytes | None:
        """Its key, as it was published."""
        return self.message.key

    @property
    def headers(self) -> Mapping[str, str | bytes]:
        """Its headers, as they were published."""
        return self.message.headers

    @property
    def timestamp(self) -> datetime | None:
        """When the leader took it, in UTC."""
        return self.message.timestamp

    @property
    def redelivered(self) -> bool:
        """Whether it was given before, to whomever."""
        return self.attempt > 1

    @property
    def left_s(self) -> float:
        """How many seconds are left of the lease, by this client's clock; below 0 it is over."""
        return (self._end_ms - self._book.now_ms()) / 1000

    def ack(self) -> None:
        """Say that it is done: nobody is given it again. The cluster hears it soon."""
        self._book.say(self, "ack", 0)

    def extend(self, lease: Duration | None = None) -> Any:
        """Keep it for `lease` (seconds or a timedelta) from now on; None: for as long as before.

        Returns when the cluster has agreed: of an `AsyncClient`, `await` it. Raises LeaseLost where
        somebody else has been given it, or it was settled here: a loop that was left gives back.
        """
        self._book.check_open()
        lease_ms = round(self._lease_ms) if lease is None else lease_of(lease)
        return self._book.extender(self, lease_ms)

    def nak(self, delay: Duration = 0) -> None:
        """Give it back: somebody is given it again, after `delay` (seconds or a timedelta)."""
        self._book.say(self, "nak", milliseconds("delay", delay, 0, protocol.DELAY_MS_MAX))


@dataclass(eq=False)
class LeaseBook:
    """What one client has of one group. `loop`: who works in it, if he has not left.

    `extender(item, lease_ms)`: has an item extended by way of its client. `check_open()`: raises
    Closed where that can tell the cluster nothing any more.

    `hand` was taken and not handed over, `given` handed over and not settled, by id. `asked_for`:
    how many the last TAKE that was answered did ask for. Safe to use from several threads.
    """

    topic: str
    group: str
    now_ms: Callable[[], float]
    extender: Callable[[WorkItem, int], Any]
    check_open: Callable[[], None]
    loop: WorkLoop | None = None
    hand: deque[WorkItem] = field(default_factory=deque)
    given: dict[int, WorkItem] = field(default_factory=dict)
    asked_for: int = 0
    _number: int = 0
    _pending: dict[int, tuple[str, WorkItem, int]] = field(default_factory=dict)  # to be said
    _asked: dict[str, Any] | None = None  # of which no answer is known
    _asked_ms: float = 0.0  # when that was said first
    _exchanges: int = 0  # begun to have it answered
    _may_wait: bool = False  # at a node, an attempt at it that nobody listens for
    _told: dict[int, tuple[str, WorkItem, int]] = field(default_factory=dict)  # said by it
    _extended: WorkItem | None = None  # of what is in hand, as the next to be handed over
    lock: threading.RLock = field(default_factory=threading.RLock)
    _home: int = field(default_factory=here)

    def is_here(self) -> bool:
        """Return whether this is no process that was forked from the one which has the leases."""
        return self._home == here()

    def check_here(self) -> None:
        """Raise Forked in a child: each lease would be worked on, and settled, by two."""
        check_here(self._home, "the work that it has leased is that process's")

    def begin(self, loop: WorkLoop, owner: Owner) -> bool:
        """Let a loop work in it. Raises AlreadyReading.

        What one before has not handed over is given back; who works on what it has handed over goes
        on. Returns False for one that another thread has let work in it just now.
        """
        with self.lock:
            if self.loop is loop:
                return False
            if self.loop is not None and not self.loop.is_left:
                message = (
                    f"another loop of this client works in group {self.group!r} of {self.topic!r};"
                    " close it, or give each worker a client of its own"
                )
                raise AlreadyReading(message, details={"reader": owner.name})
            self.give_back_hand()
            self.loop = loop
            return True

    def say(self, item: WorkItem, kind: str, ms: int) -> None:
        """Note what the application says of an item. Raises Closed, Forked."""
        self.check_here()
        with self.lock:  # or it might be given back in between
            self.check_open()
            self.settle(item, kind, ms)

    def settle(self, item: WorkItem, kind: str, ms: int) -> None:
        """Note what becomes of an item; the first word counts. Raises Forked."""
        self.check_here()
        with self.lock:
            if not item.settled:
                self._pending[item.id] = kind, item, ms
                item.settled = kind
            if self.given.get(item.id) is item:
                del self.given[item.id]

    def extend(self, item: WorkItem, lease_ms: int) -> None:
        """Note that an item takes longer. Raises Forked."""
        self.check_here()
        with self.lock:
            if not item.settled:
                self._pending[item.id] = "extend", item, lease_ms

    def give_back(self) -> None:
        """Note that nobody works on what is here."""
        with self.lock:
            for item in tuple(self.given.values()):
                self.settle(item, "nak", 0)
            self.give_back_hand()

    def give_back_hand(self) -> None:
        """Note that nobody will be handed what is in hand."""
        with self.lock:
            for item in self.hand:
                self.settle(item, "nak", 0)
            self.hand.clear()

    def lose(self) -> None:
        """Note that the cluster knows this client no more: what it had is given to others."""
        with self.lock:
            said = [item for _, item, _ in self._told.values()]
            self._asked, self._told, self._may_wait = None, {}, False
            self._lose(said, "the cluster does not know this client any more")

    def lose_leases(self) -> None:
        """Note that this client has taken up its id anew: what it had is given to others.

        A TAKE that is under way is asked again, and says of what it was to settle that it is lost.
        """
        with self.lock:
            self._lose((), "this client has taken up its id anew")

    def _lose(self, said: Iterable[WorkItem], why: str) -> None:
        pending = (item for _, item, _ in self._pending.values())
        lost = {*self.given.values(), *self.hand, *pending, *said}
        for item in lost:
            item.settled = "lost"
        for what in (self.given, self.hand, self._pending):
            what.clear()
        if lost:
            LOG.warning(
                "%s: %d publications of group %r of %r that it had leased are given to others",
                why,
                len(lost),
                self.group,
                self.topic,
            )

    @property
    def is_unsaid(self) -> bool:
        """Whether the cluster has to be told something."""
        return bool(self._pending or self._asked or self._may_wait)

    @property
    def is_left(self) -> bool:
        """Whether it has to be told something once nobody works here any more."""
        return bool(self.is_unsaid or self.hand or self.given)

    def is_to_be_said(self, item: WorkItem) -> bool:
        """Return whether the cluster has not heard yet what was said of an item."""
        return item.id in self._pending or item.id in self._told

    @property
    def is_crowded(self) -> bool:
        """Whether there may be more to say than goes with one TAKE."""
        return len(self._pending) >= protocol.SETTLE_ROWS_MAX

    def next_item(self) -> WorkItem | None:
        """Return what is handed over next; None: ask first, as what is here is old, or nothing."""
        with self.lock:
            if self._asked or not self.hand:
                return None
            item = self.hand[0]
            left_ms = item._end_ms - self.now_ms()
            # Where an answer takes longer than that, one just extended never has more.
            least_ms = 1.0 if item is self._extended else HALF * item._lease_ms
            if left_ms < least_ms:
                for each in self.hand:
                    self.extend(each, round(each._lease_ms))
                return None
            self.given[item.id] = item
            self.hand.popleft()
            return item

    # --- exchanges ------------------------------------------------------------------------------

    def body(self, max_count: int, lease_ms: int | None, wait_ms: int) -> dict[str, Any]:
        """Return the body of the next TAKE: the one without an answer first.

        That waits no longer than it would now: it may be somebody who leaves.
        """
        with self.lock:
            if self._asked is not None and wait_ms < self._asked["wait_ms"]:
                self._asked, self._may_wait = {**self._asked, "wait_ms": wait_ms}, True
            if self._asked is None:
                self._number += 1
                self._exchanges, self._may_wait = 0, False
                self._asked_ms = self.now_ms()
                rows, told = self._rows()
                asked = {
                    "group": self.group,
                    "number": self._number,
                    "max_count": max_count,
                    "lease_ms": lease_ms,
                    "wait_ms": wait_ms,
                    "expiry": True,
                    **rows,
                }
                left = {id_: said for id_, said in self._pending.items() if id_ not in told}
                self._asked, self._told, self._pending = asked, told, left
            return self._asked

    def _rows(self) -> tuple[dict[str, list[list[int]]], dict[int, tuple[str, WorkItem, int]]]:
        """Return what is to be said in rows, as far as it goes with one TAKE, and all that is in
        them.
        """
        rows: dict[str, list[list[int]]] = {"ack": [], "nak": [], "extend": []}
        wishes = sorted(self._pending.items(), key=lambda wish: wish[0])
        told: dict[int, tuple[str, WorkItem, int]] = {}
        row: list[int] = []
        before = ("", 0, 0)
        count = 0
        for id_, (kind, item, ms) in wishes[: protocol.SETTLED_MAX]:
            now = kind, item._token, ms
            if row and now == before and row[2] == id_ - 1:
                row[2] = id_
            elif count == protocol.SETTLE_ROWS_MAX:
                break
            else:
                count += 1
                row = [item._token, id_, id_] + ([] if kind == "ack" else [ms])
                rows[kind].append(row)
            before = now
            told[id_] = kind, item, ms
        return {f"{kind}s": found for kind, found in rows.items() if found}, told

    def sent(self) -> None:
        """Note that an exchange begins, to have the TAKE of `body` answered."""
        with self.lock:
            self._exchanges += 1

    def answered(self, reply: Reply) -> set[int]:
        """Take in what a TAKE has brought; return the ids whose lease was another's by then."""
        body = reply.body
        with self.lock:
            if self._asked is None:
                return set()  # the client was adopted meanwhile: what it brings is no more its own
            self.asked_for = self._asked["max_count"]
            lost = _ids(body["lost"])
            for id_, (kind, item, ms) in self._told.items():
                if id_ in lost:
                    item.settled = "lost"
                    self.given.pop(id_, None)
                elif kind == "extend":
                    item._end_ms, item._lease_ms = self._asked_ms + ms, ms
            lost |= self._let_go(_ids(body["leases"]))
            hand = deque(item for item in self.hand if item.settled != "lost")
            extended = self._extended
            if hand and self._told.get(hand[0].id, ("",))[0] == "extend":
                extended = hand[0]
            hand += self._brought(reply)
            self.hand, self._extended, self._asked, self._told = hand, extended, None, {}
        if lost:
            LOG.warning(
                "%d publications of group %r of %r were given to others before they were settled",
                len(lost),
                self.group,
                self.topic,
            )
        return lost

    def _let_go(self, news: set[int]) -> set[int]:
        """Note that older leases of what is given anew are over; return the ids that have one.

        Or the older one's settlement, which comes too late, would stand in the way of the newer's.
        """
        older = [*self.given.values(), *self.hand, *(item for _, item, _ in self._pending.values())]
        over = [item for item in older if item.id in news]
        for item in over:
            item.settled = "lost"
            self.given.pop(item.id, None)
            self._pending.pop(item.id, None)
        return {item.id for item in over}

    def _brought(self, reply: Reply) -> Iterator[WorkItem]:
        """Yield what is leased: since it was asked for, for all that this client knows.

        How long an answer has waited to be read nobody can tell: a process that was stopped, or a
        loop of asyncio's that was held up, would otherwise believe in leases that are others'.
        """
        publications = protocol.unpack(reply.lengths, reply.data)
        times = [at_ms for count, at_ms in reply.body.get("timestamps", ()) for _ in range(count)]
        end_ms, lease_ms = self._asked_ms + reply.body["left_ms"], reply.body["lease_ms"]
        token, place = reply.body["token"], 0
        for first, count, attempt in reply.body["leases"]:
            for id_ in range(first, first + count):
                own = reply.properties.get(place) or Properties()
                text = protocol.text_of(publications[place])
                again = attempt > 1
                durations = own.expires_ms or None, own.deliver_after_ms or None
                given = again, times[place], own.key, own.headers, *durations
                message = Message(self.topic, id_, text, *given)
                yield WorkItem(message, self.group, attempt, self, token, end_ms, lease_ms)
                place += 1

    def failed(self, error: FlotillaError) -> None:
        """Take note of a TAKE's error; what was certainly not carried out is said anew.

        An error tells of its own exchange alone. If there was one before, the TAKE may have been
        carried out then, so it is asked for again as it is. Who is known no more has no leases.
        """
        if isinstance(error, UnknownClient):
            self.lose()
            return
        with self.lock:
            if error.definite and self._exchanges == 1 and self._asked is not None:
                self._pending = self._told | self._pending
                self._asked, self._told = None, {}


# --- the steps ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """What a group's SUB says; None: as it stands, or the cluster's default.

    `max_attempts` 0: any number. `start` is of a group that is made.
    """

    lease_ms: int | None = None
    max_attempts: int | None = None
    dead_letter: str | None = None
    ordered_by_key: bool | None = None
    start: str | int = protocol.NEW

    @classmethod
    def of(
        cls,
        lease: Duration | None,
        max_attempts: int | None,
        dead_letter: str | None,
        ordered_by_key: bool | None,
        start: str | int | datetime,
    ) -> GroupSettings:
        """Return checked ones. Raises TypeError, ValueError, BadRequest."""
        lease_ms = None if lease is None else lease_of(lease)
        if max_attempts is not None:
            checks.integer("max_attempts", max_attempts, 0, protocol.ATTEMPTS_MAX)
        if dead_letter is not None:
            check_topic(dead_letter)
        if dead_letter is not None and not max_attempts:
            raise ValueError("dead_letter goes with max_attempts: nothing is given up without")
        if ordered_by_key is not None and type(ordered_by_key) is not bool:
            raise TypeError(f"ordered_by_key is True, False or None, not {ordered_by_key!r}")
        return cls(lease_ms, max_attempts, dead_letter, ordered_by_key, checks.start(start))


def _ids(runs: Iterable[Sequence[int]]) -> set[int]:
    """Return the ids of runs [first id, how many, ...]."""
    return {id_ for first, count, *_ in runs for id_ in range(first, first + count)}


def lease_of(lease: Duration) -> int:
    """Return a lease in ms. Raises TypeError, ValueError."""
    return milliseconds("lease", lease, protocol.LEASE_MS_MIN, protocol.LEASE_MS_MAX)


def check_group(topic: str, group: str) -> None:
    """Refuse, before anything is sent, names that no node accepts.

    Raises TypeError, BadRequest, TooLarge.
    """
    check_topic(topic)
    check_no_pattern(topic)
    check_name("group", "a group's name", group)


def make_group(
    operations: Operations, topic: str, group: str, settings: GroupSettings
) -> Steps[int]:
    """SUB of a group; return up to which id everything is settled."""
    body: dict[str, Any] = {"group": group, "sequence": None}
    body |= {"lease_ms": settings.lease_ms, "max_attempts": settings.max_attempts}
    body |= {"dead_letter": settings.dead_letter}
    if settings.ordered_by_key is not None:
        body["ordered_by_key"] = settings.ordered_by_key
    if settings.start != protocol.NEW:
        body["start"] = settings.start
    reply = yield from _controlled(operations, "group", protocol.SUB, topic, body)
    is_special = settings.ordered_by_key or settings.start != protocol.NEW
    if is_special and "ordered_by_key" not in reply.body:
        message = (
            f"the leader's version knows no groups that are ordered by key or start elsewhere:"
            f" group {group!r} of {topic!r} stands as that version makes them; end it, and make it"
            " anew once all nodes run a newer one"
        )
        raise Unsupported(message, details={"needs": 5})
    return int(reply.body["last_id"])


def end_group(operations: Operations, topic: str, group: str) -> Steps[bool]:
    """UNSUB of a group; return whether there was one."""
    reply = yield from _controlled(operations, "ungroup", protocol.UNSUB, topic, {"group": group})
    return bool(reply.body["was_subscribed"])


def _controlled(
    operations: Operations, f: str, kind: str, topic: str, body: dict[str, Any]
) -> Steps[Reply]:
    yield from operations.opened()
    body = body | {"sequence": operations.state.next_sequence()}
    names = ("lease_ms", "max_attempts", "dead_letter", "ordered_by_key")
    said = {name: body.get(name) for name in names}
    start = body.get("start", protocol.NEW)
    operation = operations.invoke(f, topic, group=body["group"], said=said, start=start)
    done = yield from operations.observed(operation, Ask(operations.request(kind, topic, body)))
    reply: Reply = done.reply
    told = {name: reply.body.get(name) for name in ("last_id", "resumed", "compacted")}
    operations.complete(operation, done, **told)
    return reply


def take(
    operations: Operations, book: LeaseBook, max_count: int, lease_ms: int | None, wait_ms: int
) -> Steps[set[int]]:
    """TAKE: say what is settled, and bring up to `max_count`; return whose lease was lost."""
    yield from operations.opened()
    if max_count and book.hand:  # another thread brought it while this one waited for its turn
        if not book.is_unsaid:
            return set()
        max_count, lease_ms, wait_ms = 0, None, 0
    elif book.given:
        wait_ms = min(wait_ms, SHORT_WAIT_MS)
    body = book.body(max_count, lease_ms, wait_ms)
    book.sent()
    said = {name: body.get(name) for name in ("number", "lease_ms", "acks", "naks", "extends")}
    operation = operations.invoke(
        "take", book.topic, max_count=body["max_count"] or None, group=book.group, said=said
    )
    ask = Ask(operations.request(protocol.TAKE, book.topic, body), body["wait_ms"])
    try:
        done = yield from operations.observed(operation, ask)
    except FlotillaError as error:
        book.failed(error)
        raise
    operations.complete(operation, done, **_brought(done.reply))
    return book.answered(done.reply)


def _brought(reply: Reply) -> dict[str, Any]:
    """Return what an observer hears of a TAKE's answer."""
    body = reply.body
    leased = TakeAnswer(
        body["token"],
        tuple((first, first + count - 1, attempt) for first, count, attempt in body["leases"]),
        tuple((first, first + count - 1) for first, count in body["lost"]),
        body["left_ms"],
        body["lease_ms"],
    )
    ids = leased.ids
    texts = tuple(map(protocol.text_of, protocol.unpack(reply.lengths, reply.data)))
    properties = {ids[place]: own for place, own in reply.properties.items()}
    return {"leased": leased, "publications": texts, "properties": properties}


def begin_extending(item: WorkItem, lease_ms: int) -> None:
    """Note that an item takes longer. Raises LeaseLost where it is settled, Forked."""
    item._book.check_here()
    if item.settled:
        raise lease_lost(item)
    item._book.extend(item, lease_ms)


def lease_lost(item: WorkItem) -> LeaseLost:
    """Return the error of who extends what is not his any more."""
    lease, details = f"the lease of {item.topic} {item.id}", {"id": item.id}
    if item.settled == "lost":
        message = f"{lease} ran out, and group {item.group!r} has given it to somebody else"
        return LeaseLost(f"{message}, or ended", details=details)
    how = "acknowledged" if item.settled == "ack" else "given back"
    return LeaseLost(f"{lease} has ended: it was {how} here", details=details)


class WorkLoop:
    """A loop over work, from its first item until it is left; what it does between exchanges.

    `is_over`: it brings nothing more. `is_left`: its work was given back. WorkItems and
    AsyncWorkItems carry out `wish` until there is an `item`.
    """

    def __init__(
        self,
        book: LeaseBook,
        settings: GroupSettings,
        ack: WorkAck,
        prefetch: int,
        wait_ms: int,
        idle_ms: float | None,
    ) -> None:
        if ack not in WORK_ACKS:
            raise ValueError(f"ack is {ack!r}: one of {', '.join(WORK_ACKS)} is due")
        self.book, self.settings = book, settings
        self.prefetch = checks.integer("prefetch", prefetch, 1, protocol.TAKE_COUNT_MAX)
        self.wait_ms = wait_ms
        self.is_over = self.has_begun = self.is_left = False
        self._is_manual, self._idle_ms = ack == "manual", idle_ms
        self._item: WorkItem | None = None
        self._owner: Owner | None = None
        self._handed_ms = self._idle_since_ms = book.now_ms()
        self._is_slow = False

    def begin(self, owner: Owner) -> None:
        """Begin with the first item that is asked for. Raises AlreadyReading."""
        if self.book.begin(self, owner):
            self.has_begun, self._owner = True, owner

    def come_back(self, owner: Owner) -> None:
        """Take it that the body of the last item has ended, as it is asked for the next one.

        Raises AlreadyReading where somebody else may be in that body, and that acknowledges it.
        """
        last = self._owner or owner
        if not (self._is_manual or last.identity is owner.identity or last.has_ended()):
            message = (
                f"{last.name} runs this loop over group {self.book.group!r} of"
                f" {self.book.topic!r}; give each worker a client of its own"
            )
            raise AlreadyReading(message, details={"reader": last.name})
        self._owner = owner
        now_ms = self.book.now_ms()
        self._is_slow = now_ms - self._handed_ms > SLOW_BODY_MS
        self._idle_since_ms = now_ms
        self._settle("ack")

    def _settle(self, kind: str) -> None:
        if self._item is not None and not self._is_manual:
            self.book.settle(self._item, kind, 0)
        self._item = None

    def item(self) -> WorkItem | None:
        """Return the next item; None: `wish` has to be carried out first."""
        book = self.book
        if book.is_unsaid and (self._is_slow or book.is_crowded):
            return None
        self._item = book.next_item()
        self._handed_ms = book.now_ms()
        return self._item

    def wish(self) -> tuple[int, int | None, int]:
        """Return what to take: how many, for how long, and how long to wait for it."""
        self._is_slow = False
        if self.book.hand or self.book.is_crowded:
            return 0, None, 0
        wait_ms = float(min(self.wait_ms, SHORT_WAIT_MS) if self.book.given else self.wait_ms)
        if self._idle_ms is not None:
            idle_ms = self.book.now_ms() - self._idle_since_ms
            wait_ms = max(0.0, min(wait_ms, self._idle_ms - idle_ms))
        return self.prefetch, self.settings.lease_ms, int(wait_ms)

    @property
    def is_at_end(self) -> bool:
        """Whether it brings nothing more, as another of its threads has ended it, or as nothing has
        come for as long as it was to wait, though it was asked for.
        """
        if self.is_over:
            return True
        if self.book.hand or self._idle_ms is None or not self.book.asked_for:
            return False
        return self.book.now_ms() - self._idle_since_ms >= self._idle_ms

    def end(self) -> None:
        """Bring nothing more, as nothing came. Who works on what was handed over goes on."""
        self.is_over = True
        if self.book.loop in (self, None):  # what comes for another one of its threads is nobody's
            self.book.loop = None
            self.book.give_back_hand()

    def leave(self, is_done: bool) -> bool:
        """Give back what it has; `is_done`: the body of the last item has ended well.

        Return whether it had anything to do with the work. In a child process it has not: that
        goes on in its parent. Nor has one behind whose end another one works.
        """
        if not (self.has_begun and self.book.is_here()):
            self.is_over = self.is_left = True
            return False
        with self.book.lock:  # no other loop begins meanwhile
            is_at_work = not self.is_left and self.book.loop in (self, None)
            self.is_over = self.is_left = True
            if is_at_work:
                self._settle("ack" if is_done else "nak")
                self.book.give_back()
                self.book.loop = None
        return is_at_work
