"""Who reads a client's subscriptions, what they have in hand, and what they have acknowledged.

What lives here: the one way from what a GET has brought to the application, and from the
application back to the cursor; the rule that a subscription has one reader at a time. What must
not: GETs (operations.py), sockets, the durable tables (state.py).

In hand is what an application was handed and has not acknowledged. `ack` says when it does:

    auto          when whoever reads comes back for the next one
    manual        when the application calls `acknowledge`
    at-most-once  just before it is handed over: a crash in between loses it

The order is the contract. An acknowledgment is recorded before the cursor moves; a hand-over is
stored, then recorded, before the application has it. So whatever a kill cuts off: what the cursor
has passed was acknowledged on record, and what was handed over before is known to be.
"""

from __future__ import annotations

import asyncio
import threading
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Final, Literal, get_args

from flotilla_client.errors import AlreadyReading, NotDelivered, NotSubscribed
from flotilla_client.forks import check_here, here
from flotilla_client.observer import Handling, HandlingObserver, Observer
from flotilla_client.properties import Properties
from flotilla_client.state import State

Ack = Literal["auto", "manual", "at-most-once"]
ACKS: Final = get_args(Ack)
Acknowledge = Callable[[str, int], None]  # by topic and last id


def acknowledge_by(acknowledge: Acknowledge | None, topic: str, last_id: int) -> None:
    """Acknowledge by way of the client that has handed it over. Raises NotDelivered."""
    if acknowledge is None:
        message = f"{topic}: id {last_id} was not handed over by a client of this process"
        raise NotDelivered(message, details={"last_id": 0})
    acknowledge(topic, last_id)


@dataclass(frozen=True, slots=True)
class Message:
    """One publication as delivered.

    `redelivered`: it may have been handed over before, and was not acknowledged. False is certain,
    after kill -9 as well; after a power cut not of what `ack="manual"` handed over last.
    `timestamp_ms`: when the leader took it, by its clock, since 1970; it never goes back from id to
    id. None: that was not kept then. `key` (None: none), `headers`: as they were published.
    `expires_ms`: so long after it came into its topic it is given to nobody any more; None: it
    never expires. `deliver_after_ms`: so long before that it was stored; None: it was not delayed.
    """

    topic: str
    id: int
    publication: bytes
    redelivered: bool = field(default=False, compare=False)
    timestamp_ms: int | None = field(default=None, compare=False)
    key: str | bytes | None = None
    headers: Mapping[str, str | bytes] = field(default_factory=dict, hash=False)
    expires_ms: int | None = None
    deliver_after_ms: int | None = None
    _acknowledge: Acknowledge | None = field(default=None, compare=False, repr=False)

    def ack(self) -> None:
        """Acknowledge it and all before it of its topic; see `Client.acknowledge`.

        Raises NotDelivered for one that `read` has returned, or that was in another process.
        """
        acknowledge_by(self._acknowledge, self.topic, self.id)

    def __reduce__(self) -> tuple[Any, ...]:
        own = self.timestamp_ms, self.key, self.headers, self.expires_ms, self.deliver_after_ms
        return Message, (self.topic, self.id, self.publication, self.redelivered, *own)

    @property
    def timestamp(self) -> datetime | None:
        """`timestamp_ms` as a date, in UTC."""
        at_ms = self.timestamp_ms
        return None if at_ms is None else datetime.fromtimestamp(at_ms / 1000, UTC)


@dataclass(frozen=True, slots=True)
class Delivery:
    """Consecutive publications of one topic; `first_id` is the first one's id.

    `redelivered_count`: so many of them, the first ones, are redelivered: see `Message`.
    `properties` {id: …} of those that have some. `timestamps`: runs of (last id, timestamp_ms).
    `placed`: by which entry the subscription was placed that they were asked for.
    """

    topic: str
    first_id: int
    publications: tuple[bytes, ...]
    redelivered_count: int = field(default=0, compare=False)
    properties: Mapping[int, Properties] = field(default_factory=dict, hash=False)
    timestamps: tuple[tuple[int, int | None], ...] = field(default=(), compare=False)
    placed: int = field(default=0, compare=False, repr=False)
    _acknowledge: Acknowledge | None = field(default=None, compare=False, repr=False)

    def ack(self) -> None:
        """Acknowledge all of it, and all before it; see `Message.ack`."""
        acknowledge_by(self._acknowledge, self.topic, self.last_id)

    def __reduce__(self) -> tuple[Any, ...]:
        own = self.redelivered_count, self.properties, self.timestamps, self.placed
        return Delivery, (self.topic, self.first_id, self.publications, *own)

    @property
    def last_id(self) -> int:
        """The id of the last publication."""
        return self.first_id + len(self.publications) - 1

    def __iter__(self) -> Iterator[Message]:
        for number in range(len(self.publications)):
            yield self.message(self.first_id + number, number < self.redelivered_count)

    def message(self, id_: int, redelivered: bool) -> Message:
        """Return one of the publications, by its id."""
        publication = self.publications[id_ - self.first_id]
        at_ms = None
        if self.timestamps:  # the first run that ends with the id, or behind it
            at_ms = self.timestamps[bisect_left(self.timestamps, (id_,))][1]
        own = self.properties.get(id_) or Properties()
        durations = own.expires_ms or None, own.deliver_after_ms or None
        given = redelivered, at_ms, own.key, own.headers, *durations
        return Message(self.topic, id_, publication, *given, self._acknowledge)

    def up_to(self, last_id: int) -> Delivery:
        """Return what of it is not behind an id."""
        publications = self.publications[: last_id + 1 - self.first_id]
        whole = bisect_left(self.timestamps, (last_id,))  # so many runs end before it
        rest = [(last_id, at_ms) for _, at_ms in self.timestamps[whole : whole + 1]]
        return replace(
            self, publications=publications, timestamps=(*self.timestamps[:whole], *rest)
        )

    def since(self, first_id: int, redelivered_count: int) -> Delivery:
        """Return what of it is not before an id."""
        publications = self.publications[first_id - self.first_id :]
        return replace(
            self,
            first_id=first_id,
            publications=publications,
            redelivered_count=redelivered_count,
            properties={id_: own for id_, own in self.properties.items() if id_ >= first_id},
        )


@dataclass(frozen=True, slots=True)
class Owner:
    """A thread or a task that reads: it comes back for the next one, or ends without."""

    identity: object
    name: str
    has_ended: Callable[[], bool]
    is_thread: bool = False


def this_thread() -> Owner:
    """Return the thread that asks."""
    thread = threading.current_thread()
    return Owner(thread, f"thread {thread.name}", lambda: not thread.is_alive(), True)


def this_task() -> Owner:
    """Return the asyncio task that asks; the thread outside of any."""
    try:
        task = asyncio.current_task()
    except RuntimeError:  # no event loop runs yet
        task = None
    if task is None:
        return this_thread()
    loop = task.get_loop()  # which may be closed with the task in it
    return Owner(task, f"task {task.get_name()}", lambda: task.done() or loop.is_closed())


def check_ack(ack: str) -> None:
    """Raise ValueError for what `ack` can't be."""
    if ack not in ACKS:
        raise ValueError(f"ack is {ack!r}: one of {', '.join(ACKS)} is due")


@dataclass(slots=True, eq=False)
class Reader:
    """Who reads `scope` (a topic, None: any): one `get`, or a loop over `messages`.

    `is_over`: no more; what a loop has in hand then comes again. Set without a lock, as a loop may
    be left in a finalizer. `is_broken_off`: a `get` that was, so that nobody has what it was to
    return. Of a loop, `batch`: which ids of `delivery`, which a GET has brought of `topic`, were
    not handed over.
    """

    owner: Owner
    scope: str | None
    ack: Ack
    is_loop: bool = False
    is_over: bool = False
    is_broken_off: bool = False
    topic: str = ""
    delivery: Delivery | None = None
    batch: deque[int] = field(default_factory=deque)

    def is_of(self, owner: Owner) -> bool:
        """Return whether it is this thread or task that reads."""
        return self.owner.identity is owner.identity

    def has_ended_for(self, owner: Owner) -> bool:
        """Return whether it reads no more; a thread that asks is in no `get` of before.

        It may look as if it was: ctrl-C can cut off the end of a `get`.
        """
        is_cut_off = self.is_of(owner) and owner.is_thread and not self.is_loop
        return self.is_over or is_cut_off or self.owner.has_ended()

    def has_left(self) -> bool:
        """Return whether it will not come back for what it has in hand."""
        is_left = self.is_broken_off or (self.is_loop and self.is_over)
        return is_left or self.owner.has_ended()


@dataclass(slots=True, eq=False)
class _Hand:
    """What a reader has in hand of a topic; `placed`: by which entry the subscription was then."""

    reader: Reader
    first_id: int
    last_id: int
    placed: int

    def is_free(self, owner: Owner) -> bool:
        """Return whether the owner may be handed the same."""
        return self.reader.has_left() or self.reader.is_of(owner)


class Readers:
    """The readers of one client. Safe to use from several threads.

    `told`: the cursors that the cluster has been told, by topic.
    """

    def __init__(self, state: State, observer: Observer, told: Mapping[str, int]) -> None:
        self._state, self._told = state, told
        self._observer = observer if isinstance(observer, HandlingObserver) else None
        self._home = here()
        self._lock = threading.RLock()
        self._open: list[Reader] = []
        self._hands: dict[str, _Hand] = {}  # by topic

    # --- who reads ------------------------------------------------------------------------------

    @contextmanager
    def reading(self, reader: Reader) -> Iterator[None]:
        """Let it read for one `get`. Raises AlreadyReading, ValueError."""
        self.begin(reader)
        try:
            yield
        finally:
            reader.is_over = True

    def begin(self, reader: Reader) -> None:
        """Let it read until it `is_over`: its owner is done with what its last `get` brought.

        Raises AlreadyReading, ValueError.
        """
        check_ack(reader.ack)
        with self._lock:
            self._open = [one for one in self._open if not one.has_ended_for(reader.owner)]
            for other in self._open:
                if None in (reader.scope, other.scope) or reader.scope == other.scope:
                    what = "any topic" if other.scope is None else other.scope
                    raise _already_reading(other.owner, f"reads {what}")
            for topic, hand in self._hands.items():
                if reader.scope in (None, topic) and not hand.is_free(reader.owner):
                    what = f"has {topic} up to id {hand.last_id} in hand, unacknowledged"
                    raise _already_reading(hand.reader.owner, what)
            self.come_back(reader.owner, reader.scope, durable=False)
            self._open.append(reader)

    # --- hand-over ------------------------------------------------------------------------------

    def hand_over(self, reader: Reader, delivery: Delivery | None) -> Delivery | None:
        """Return what a GET has brought, for the application: it is in hand from now on."""
        if delivery is None:
            return None
        topic, last_id = delivery.topic, delivery.last_id
        with self._lock, self._state.turn():
            cursor = self._state.cursor(topic)
            if cursor is None or cursor >= last_id:
                return None  # another thread has unsubscribed meanwhile, or acknowledged it
            if self._state.placed(topic) != delivery.placed:
                return None  # it was moved meanwhile
            first_id = max(delivery.first_id, cursor + 1)
            redelivered_count = self._hand_over(reader, topic, first_id, last_id)
        return replace(delivery.since(first_id, redelivered_count), _acknowledge=self.acknowledge)

    def fetched(self, reader: Reader, delivery: Delivery) -> None:
        """Take what a GET has brought for a loop."""
        assert not reader.batch, (reader.topic, reader.batch[0])
        reader.topic = delivery.topic
        reader.delivery = replace(delivery, _acknowledge=self.acknowledge)
        reader.batch.extend(range(delivery.first_id, delivery.last_id + 1))

    def next_message(self, reader: Reader) -> Message | None:
        """Return a loop's next message, as it has come back for one; None: a GET is due.

        None as well behind its end, by whatever thread: another one may read by now.
        """
        with self._lock, self._state.turn():
            if reader.is_over:
                return None
            topic, cursor = reader.topic, self._state.cursor(reader.topic)
            if reader.delivery is not None and self._state.placed(topic) != reader.delivery.placed:
                reader.batch.clear()  # the subscription was moved meanwhile
            while reader.batch and reader.delivery is not None and cursor is not None:
                id_ = reader.batch.popleft()
                if id_ > cursor:
                    redelivered = bool(self._hand_over(reader, topic, id_, id_))
                    return reader.delivery.message(id_, redelivered)
            reader.batch.clear()
            reader.delivery = None
            self.done(reader, durable=False)
            return None

    def _hand_over(self, reader: Reader, topic: str, first_id: int, last_id: int) -> int:
        """Put ids in hand; return how many of them may have been handed over before."""
        state, before = self._state, self._hands.get(topic)
        state.check_open()
        redelivered_count = max(0, min(state.handed(topic), last_id) + 1 - first_id)
        placed = state.placed(topic)
        is_going_on = (
            before is not None
            and (before.reader, before.placed) == (reader, placed)
            and before.last_id < first_id
        )
        if before is not None and not is_going_on and before.is_free(reader.owner):
            self._tell("release", topic, before.last_id, before.first_id)
        hand = _Hand(reader, first_id, last_id, placed)
        if reader.ack == "at-most-once":
            self._tell("ack", topic, last_id, first_id)
            state.hand_over(topic, last_id, cursor=last_id)
            self._hands.pop(topic, None)
        elif reader.ack == "manual":
            if before is not None and is_going_on:
                hand.first_id = before.first_id
            state.hand_over(topic, last_id, durable=False)
            self._hands[topic] = hand
        else:
            done_id = before.last_id if before is not None and is_going_on else 0
            if done_id:
                self._tell("ack", topic, done_id)
            state.hand_over(topic, last_id, cursor=done_id)
            self._hands[topic] = hand
        self._tell("hand", topic, last_id, first_id, redelivered_count)
        return redelivered_count

    # --- acknowledgment -------------------------------------------------------------------------

    def acknowledge(self, topic: str, last_id: int) -> None:
        """Store that all up to `last_id` is done with.

        Raises NotSubscribed, NotDelivered: beyond what was ever handed over, and Forked: a message
        that a child process has inherited brings its parent's readers along.
        """
        check_here(self._home, "what it was handed is acknowledged there")
        with self._lock, self._state.turn():
            cursor, handed = self._state.cursor(topic), self._state.handed(topic)
            if cursor is None:
                raise NotSubscribed(f"no subscription to {topic}, so nothing to acknowledge")
            if last_id > handed:
                message = f"{topic}: id {last_id} was not handed over, {handed} was the last"
                raise NotDelivered(message, details={"last_id": handed})
            if last_id > cursor:
                self._acknowledge(topic, last_id, durable=True)
            else:
                self._state.raise_cursor(topic, last_id)  # by coming back; nobody waited for that

    def come_back(self, owner: Owner, topic: str | None, durable: bool = True) -> None:
        """Acknowledge what the owner's `get` has brought of a topic (None: of any)."""
        if not self._hands:
            return
        with self._lock, self._state.turn():
            for name, hand in tuple(self._hands.items()):
                reader = hand.reader
                is_its = reader.is_of(owner) and not (reader.is_loop or reader.is_broken_off)
                if topic in (None, name) and is_its:
                    self._done(name, hand, durable)

    def done(self, reader: Reader, durable: bool = True) -> None:
        """Acknowledge what a loop has in hand: it has come back, or was left in order."""
        with self._lock, self._state.turn():
            for topic, hand in tuple(self._hands.items()):
                if hand.reader is reader:
                    self._done(topic, hand, durable)

    def forget(self, topic: str) -> None:
        """Take note that the subscription has ended: what was fetched of it is nobody's."""
        with self._lock:
            self._hands.pop(topic, None)
            for reader in self._open:
                if reader.topic == topic:
                    reader.batch.clear()

    def pass_over(self, topic: str, last_id: int) -> None:
        """Go on behind `last_id`: what is up to there is gone, and in nobody's hand any more."""
        with self._lock, self._state.turn():
            cursor = self._state.cursor(topic)
            if cursor is None or cursor >= last_id:
                return
            self._state.raise_cursor(topic, last_id, durable=False)
            self._let_go(topic, last_id)

    def fetch_anew(self) -> None:
        """Drop what loops have fetched and not handed over: another history has other ids."""
        with self._lock:
            for reader in self._open:
                reader.batch.clear()

    def _done(self, topic: str, hand: _Hand, durable: bool) -> None:
        if hand.placed != self._state.placed(topic):
            # A SEEK got no answer, and was heard of as the id was taken up: it comes as was sought.
            self._hands.pop(topic)
        elif hand.reader.ack == "auto":
            self._acknowledge(topic, hand.last_id, durable)

    def _acknowledge(self, topic: str, last_id: int, durable: bool) -> None:
        self._state.check_open()
        self._tell("ack", topic, last_id)
        self._state.raise_cursor(topic, last_id, durable)
        self._let_go(topic, last_id)

    def _let_go(self, topic: str, last_id: int) -> None:
        hand = self._hands.get(topic)
        if hand is not None and hand.last_id <= last_id:
            del self._hands[topic]

    def _stored(self, topic: str) -> int | None:
        """Return up to where a topic is acknowledged even if this process ends now.

        Without a directory the cluster alone can know that; 0: as far as this process knows.
        """
        if self._state.directory is not None:
            return self._state.cursor(topic)
        return self._told.get(topic, 0)

    def _tell(
        self, f: str, topic: str, last_id: int, first_id: int | None = None, redelivered: int = 0
    ) -> None:
        if self._observer is not None:
            client_id, cursor = self._state.client_id, self._stored(topic)
            handling = Handling(f, client_id, topic, last_id, first_id, cursor, redelivered)
            self._observer.on_handling(handling)


class Loop:
    """A loop over `messages`, of the thread or task that takes its first one until it is left.

    An exception ends it, and the next one taken begins a new one: whatever was in hand comes again.
    `has_ended`: for good, by whatever thread. `is_waiting`: for a message.
    """

    def __init__(self, scope: str | None, ack: Ack, wait_ms: float, is_endless: bool) -> None:
        check_ack(ack)
        self.scope, self.wait_ms, self.is_endless = scope, wait_ms, is_endless
        self.has_ended = self.is_waiting = False
        self._ack: Ack = ack
        self._reader: Reader | None = None

    def enter(self, owner: Owner, readers: Readers) -> Reader:
        """Return the loop's reader, who `is_waiting` from now on.

        Raises AlreadyReading: another one runs this loop, or reads the topic.
        """
        reader = self._reader
        if reader is not None and not reader.owner.has_ended():
            if self.is_waiting or not reader.is_of(owner):
                raise _already_reading(reader.owner, "runs this loop")
        else:
            reader = self._reader = Reader(owner, self.scope, self._ack, is_loop=True)
            try:
                readers.begin(reader)
            except BaseException:
                self.leave()
                raise
        self.is_waiting = True
        return reader

    def end_in_order(self, readers: Readers) -> None:
        """Acknowledge what is in hand: the application is done with it."""
        if self._reader is not None:
            readers.done(self._reader)

    def close(self) -> None:
        """End it for good. Whatever is in hand comes again."""
        self.has_ended = True
        self.leave()

    def leave(self) -> None:
        """End it. Whatever is in hand comes again."""
        reader, self._reader, self.is_waiting = self._reader, None, False
        if reader is not None:
            reader.is_over = True


def _already_reading(owner: Owner, what: str) -> AlreadyReading:
    message = (
        f"{owner.name} {what}: a subscription has one reader at a time; acknowledge and let it"
        " end, or give each reader a client (a state directory) of its own"
    )
    return AlreadyReading(message, details={"reader": owner.name})
