"""What the clients of a simulation do: publish, read, subscribe and leave, until all is drained.

What lives here: the script of one client process, the roles it is drawn from, and what a script
knows of the run's course (`Course`). What must not: retries, connections (clients.py), the course
itself (crowd.py).

As in chaos/workloads: a publication without an answer stays in the outbox and goes first next time;
a subscriber reads until it has the tombstone of every topic that it is subscribed to.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol

from chaos.simulation.clients.callers import Callers
from chaos.simulation.clients.clients import Calling, ClientWire, Process, Script, Wish
from chaos.simulation.clients.dressing import EXPIRING, MARK, SOON, dressed
from chaos.simulation.clients.pipes import QUEUED_MAX, Pipe
from chaos.simulation.clients.working import Working
from chaos.workloads import payload
from chaos.workloads.history import DRAINED
from flotilla_client import (
    Fenced,
    FlotillaError,
    Forgotten,
    Losses,
    NotSubscribed,
    QuotaExceeded,
    TooLarge,
    TooMany,
    UnknownTopic,
    WorkItem,
)
from flotilla_client.batches import as_bytes
from flotilla_client.operations import PutResult
from flotilla_client.properties import Properties
from flotilla_client.protocol import PUBLICATION_BYTES_MAX, lane_of, topic_of
from flotilla_client.reading import Ack, Delivery, Message
from flotilla_client.work import LeaseBook

REFUSED_PAUSE_S: Final = 0.1  # after an error that came at once: ask ten times a second, no more
ACKNOWLEDGED_SHARE: Final = 0.7  # of manual deliveries; the others have to come again
LOOPS_SHARE: Final = 0.5  # of the processes that can read in loops
LOOP_MESSAGES_MAX: Final = 6
IDLE_S: Final = 0.2  # between looks at the course
POURED_MAX: Final = 6  # publications at once for a background producer, most of them a batch each
DRESSED_SHARE: Final = 0.5  # of what clients with properties publish has some
CALLERS_APART_S: Final = 0.02  # at most: about a round trip, so that they meet
OVERSIZED_BYTES: Final = PUBLICATION_BYTES_MAX + 1
FILLER: Final = "abcdefghijklmnopqrstuvwxyz" * (PUBLICATION_BYTES_MAX // 26 + 1)

Step = Generator[Wish, Any, object]  # a part of a script, with some result


def begin_anew(process: Process, course: Course) -> Script:
    """Take it that the cluster has forgotten a process's client, and become another one."""
    client_id = process.session.state.client_id
    course.forgotten(process, client_id)
    while True:
        try:
            lost = yield from process.adopt()
        except Fenced:
            raise
        except FlotillaError as error:
            course.refused(process.name.partition("/")[0], error)
            yield REFUSED_PAUSE_S
        else:
            course.begun_anew(process, client_id, lost)
            return


@dataclass(frozen=True, slots=True, kw_only=True)
class Role:
    """What a client does, as drawn by the swarm. Weights: 0 = never.

    `pause_s`: mean time between two operations; `batch_count`, `size_bytes`: the most publications
    of a PUT, the largest filler; `reads_any`: one GET over all topics; `is_manual`: what was handed
    over is acknowledged at once or not at all, else with the next GET, or `is_at_most_once` before;
    `in_flight`: batches of a background producer that are under way at once, 0 for one PUT after
    the other; `is_hasty`: it publishes before anything else, and goes back on an UNSUB at once.
    `is_awaiting`: it uses `AsyncClient`, and cancels some of what it asks. `callers`: so many
    publish at once at most, each for itself, 0 for one after the other. `has_properties`: half of
    what it publishes does; `expires`: so much of all of it does, if it has any, `expires_soon`: all
    of that before long; `delays`: so many of its PUTs have a delay, but of what callers or
    producers publish; `is_old`: it knows of none. `works`: in the groups of its topics, with a
    lease of `lease_ms` and dead letters behind `max_attempts` (0: none), of which so many name the
    topic as `own_letters` says, waiting for one of `take_waits_ms` and giving back `naks` of what
    they have; `is_ordered`: which it would have by key, None: as they are.
    """

    topics: tuple[str, ...]
    puts: float = 0.0
    gets: float = 0.0
    churns: float = 0.0
    lists: float = 0.0
    oversized: float = 0.0
    works: float = 0.0
    lease_ms: int = 500
    max_attempts: int = 0
    own_letters: float = 0.6
    take_waits_ms: Sequence[int] = (0, 0, 100, 1_000)
    naks: float = 0.15
    is_ordered: bool | None = None
    pause_s: float = 0.1
    batch_count: int = 1
    size_bytes: int = 100
    get_count: int = 100
    get_wait_ms: int = 500
    in_flight: int = 0
    callers: int = 0
    reads_any: bool = False
    is_manual: bool = False
    is_hasty: bool = False
    is_awaiting: bool = False
    is_at_most_once: bool = False
    has_properties: bool = False
    expires: float = 0.0
    expires_soon: bool = False
    delays: float = 0.0
    is_old: bool = False

    @property
    def ack(self) -> Ack:
        """How it reads."""
        if self.is_at_most_once:
            return "at-most-once"
        return "manual" if self.is_manual else "auto"

    @classmethod
    def of(cls, knobs: Mapping[str, Any]) -> Role:
        """Return the role that a plan's JSON describes."""
        return cls(**{**knobs, "topics": tuple(knobs["topics"])})


def delivered(message: Message) -> Delivery:
    """Return a message as the delivery of it alone."""
    durations = message.expires_ms or 0, message.deliver_after_ms or 0
    own = Properties(message.key, message.headers, *durations)
    return Delivery(
        message.topic,
        message.id,
        (message.publication,),
        int(message.redelivered),
        {} if own == Properties() else {message.id: own},
        ((message.id, message.timestamp_ms),),
    )


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of all topics when somebody asks for a listing.

    `ends`: the highest id of each that was ever acknowledged to anybody; `index`: an entry that is
    committed.
    """

    ends: Mapping[str, int]
    index: int


class Hears(Protocol):
    """Who hears what clients' scripts have to say."""

    @property
    def takes_properties(self) -> bool:
        """Whether the cluster has come to the level of publications with properties."""

    @property
    def takes_expiry(self) -> bool:
        """Whether it has come to that of publications that expire."""

    def made(self, process: Process, topic: str, counter: int, publications: Sequence[str]) -> None:
        """Hear what a client will publish, before it is given its counter."""

    def told(self, process: Process, topic: str, counter: int, id_: int) -> None:
        """Hear which id one of several callers is told for what stands under a counter."""

    def out_of_order(self, client: str, text: str) -> None:
        """Hear of a publication that is stored twice, or before one that was called for earlier."""

    def not_stored(self, process: Process, topic: str, publication: str) -> None:
        """Hear that a publication is said to be stored neither now nor later, for certain."""

    def forgotten(self, process: Process, client_id: str) -> None:
        """Hear that the cluster says to have forgotten a client, before it begins anew."""

    def begun_anew(self, process: Process, client_id: str, lost: Losses) -> None:
        """Hear what a client is told of its losses that was forgotten, with the id that it had."""

    def handed_over(self, client: str, delivery: Delivery) -> None:
        """Hear what a client's application was given, and whether that may be for another time."""

    def acknowledged(self, client: str, topic: str, last_id: int) -> None:
        """Hear up to where an application has said, and heard, that it is done."""

    def given(self, client: str, item: WorkItem) -> None:
        """Hear what a worker was given."""

    def worked(self, client: str, item: WorkItem) -> None:
        """Hear that an item is done, and that the cluster has agreed."""

    def leased(self, client: str, item: WorkItem, asked_ms: float) -> None:
        """Hear of an item that was brought to a client, and when it asked for it first."""

    def told_lost(self, client: str, item: WorkItem) -> None:
        """Hear that an acknowledgment of an item came too late, as its worker is told."""

    def believed(self, client: str, item: WorkItem, until_ms: float) -> None:
        """Hear until when an item that was extended may be taken to be leased, at most."""

    def spoken(self, client: str, item: WorkItem, kind: str, ms: int) -> None:
        """Hear what a worker says of an item."""

    def taking(self, client: str, book: LeaseBook) -> None:
        """Hear what the next TAKE of a client says."""

    def agreed(self, client: str, item: WorkItem, kind: str, ms: int) -> None:
        """Hear that the cluster has heard that of an item, and agreed."""

    def loop_left(self, client: str, book: LeaseBook) -> None:
        """Hear that a loop over a group was left."""

    def known(self) -> Known:
        """Return what is known of all topics."""

    def listed(self, client: str, rows: Sequence[Mapping[str, Any]], known: Known) -> None:
        """Hear how all topics stand, as a client was told; `known`: before it asked."""


class Course(Hears, Protocol):
    """The course of the run, as far as a client has to know it."""

    is_publishing: bool
    tombstones: Mapping[str, int] | None

    def refused(self, client: str, error: FlotillaError) -> None:
        """Hear of an operation's error."""

    def flushed(self, client: str, process: Process) -> None:
        """Hear that a client's outbox is empty and that it will publish no more."""

    def drained(self, client: str) -> None:
        """Hear that a client has the tombstone of each of its topics."""


class ClientScript:
    """One process's script. `name` is the client's."""

    def __init__(
        self,
        name: str,
        role: Role,
        process: Process,
        course: Course,
        rng: random.Random,
        wire: ClientWire,
    ) -> None:
        self._name, self._role, self._course, self._rng = name, role, course, rng
        self._process, self._wire = process, wire
        self._pipes: dict[str, Pipe] = {}
        process.is_old = role.is_old
        self._operations = process.session.operations
        self._state = process.session.state
        self._readers = self._operations.readers
        self._perhaps = set(role.topics if role.churns else ())  # may be subscribed to, unknown
        self._number = rng.randrange(len(role.topics))
        # One or the other: what is in hand by one is not given to the other.
        self._is_looping = process.has_loops and rng.random() < LOOPS_SHARE
        self._callers = Callers(name, process, course) if role.callers else None
        settings = role.max_attempts, role.own_letters, role.take_waits_ms, role.naks
        work = role.topics, role.lease_ms, *settings, role.is_ordered
        self._working = Working(name, *work, process, course, rng, wire)
        self._actions: dict[Callable[[], Script], float] = {
            self._publishes(): role.puts,
            self._read: role.gets,
            self._churn: role.churns,
            self._list: role.lists,
            self._publish_oversized: role.oversized,
            self._working.work: role.works,
        }

    def run(self) -> Script:
        """Take part in the run from here to its end; stop early only when fenced."""
        while True:
            try:
                yield from self._take_part()
            except Fenced as error:
                self._course.refused(self._name, error)
                return
            except Forgotten as error:
                self._course.refused(self._name, error)
                yield from self._begin_anew()
            else:
                self._course.drained(self._name)
                return

    def _take_part(self) -> Script:
        if self._role.is_hasty and self._role.puts:
            yield from self._tried(self._publish)
        if self._role.gets:
            yield from self._subscribe_all()
        yield from self._steady()
        yield from self._tried(self._empty_pipes)
        yield from self._until_done(self._flush, meanwhile=self._make_room)
        self._course.flushed(self._name, self._process)
        while self._course.tombstones is None:
            yield IDLE_S  # whoever is slow keeps those from their end who wait for room
            yield from self._tried(self._make_room)
        yield from self._drain(self._course.tombstones)
        if self._role.works:
            yield from self._until_done(self._working.drain)

    def _begin_anew(self) -> Script:
        """Take it that the cluster has forgotten this client, and become another one."""
        while self._pipes:
            _, pipe = self._pipes.popitem()
            pipe.end()
        yield from begin_anew(self._process, self._course)
        self._working.begin_anew()

    def _steady(self) -> Script:
        actions, weights = list(self._actions), list(self._actions.values())
        while self._course.is_publishing:
            yield self._rng.expovariate(1 / self._role.pause_s)
            [action] = self._rng.choices(actions, weights)
            yield from self._tried(action)

    def _tried(self, action: Callable[[], Step]) -> Script:
        """Do it once; an error but a fence is told and then forgotten, as the history has it."""
        try:
            yield from action()
        except (Fenced, Forgotten):
            raise
        except FlotillaError as error:
            self._course.refused(self._name, error)
            yield REFUSED_PAUSE_S

    def _until_done(
        self, action: Callable[[], Script], meanwhile: Callable[[], Script] | None = None
    ) -> Script:
        """Try until it succeeds; `meanwhile`: a full topic has to be read before it takes more."""
        while True:
            try:
                yield from action()
            except (Fenced, Forgotten):
                raise
            except FlotillaError as error:
                self._course.refused(self._name, error)
                yield REFUSED_PAUSE_S
            else:
                return
            if meanwhile is not None:
                yield from self._tried(meanwhile)

    # --- publishing -----------------------------------------------------------------------------

    def _publishes(self) -> Callable[[], Script]:
        if self._role.in_flight:
            return self._pour
        return self._publish if self._callers is None else self._publish_together

    def _publish_together(self) -> Script:
        """Let several callers publish, of whom none waits for the others."""
        callers, role, rng = self._callers, self._role, self._rng
        assert callers is not None, role
        yield self._operations.next_counter(self._next_topic())
        calls: list[Calling] = []
        numbers: dict[int, int] = {}  # by the place among the calls
        delay_s = 0.0

        def texts(place: int, topic: str) -> list[str]:
            filler = self._filler(rng.randint(0, role.size_bytes))
            numbers[place], text = callers.text(topic, filler)
            return [text]

        for place in range(rng.randint(2, role.callers)):
            topic = rng.choice(role.topics)
            calls.append((delay_s, topic, partial(texts, place, topic)))
            delay_s += rng.choice((0.0, 0.0, rng.uniform(0.0, CALLERS_APART_S)))
        fence: Fenced | Forgotten | None = None
        answered = yield from self._process.put_together(calls)
        for place, one in enumerate(answered):
            topic = calls[place][1]
            try:
                [result] = one.results()
            except FlotillaError as error:
                fence = error if isinstance(error, Fenced | Forgotten) else fence
                self._course.refused(self._name, error)
                if error.definite and place in numbers:
                    self._deny(topic, callers.refused(numbers[place]))
            else:
                counter = callers.counter_of(topic, numbers[place])
                self._course.told(self._process, topic, counter, result.id)
        if fence is not None:
            raise fence

    def _deny(self, topic: str, text: str) -> None:
        if text:
            self._course.not_stored(self._process, topic, text)

    def _publish(self) -> Script:
        topic, count = self._next_topic(), self._rng.randint(1, self._role.batch_count)
        first = yield self._operations.next_counter(topic)
        may_wait = self._role.delays and self._course.takes_expiry
        if may_wait and self._rng.random() < self._role.delays:
            # To all that is checked of publishers its lane is another topic, as to the client.
            topic = lane_of(topic, is_delayed=True)
            first = self._state.counter(topic) + 1
        texts = [self._payload(topic, first + place) for place in range(count)]
        self._course.made(self._process, topic, first, texts)
        try:
            yield from self._process.put(topic_of(topic), list(map(dressed, texts)))
        except FlotillaError as error:
            if error.definite:  # of what takes several batches the first may be stored
                for text in texts[error.details.get("stored", 0) :]:
                    self._course.not_stored(self._process, topic, text)
            raise

    def _pour(self) -> Script:
        """Let a background producer publish, without waiting for an answer."""
        topic = self._next_topic()
        counter = yield self._operations.next_counter(topic)
        pipe = self._pipes.get(topic)
        if pipe is None:
            seeded = random.Random(self._rng.getrandbits(64))
            pipe = Pipe(self._wire, self._process, topic, self._role.in_flight, seeded)
            self._pipes[topic] = pipe
        if pipe.error is not None:
            del self._pipes[topic]
            pipe.end()
            raise pipe.error
        room = min(self._role.batch_count, POURED_MAX, QUEUED_MAX - pipe.queued)
        for _ in range(self._rng.randint(min(1, room), room)):
            number = counter + pipe.queued
            text = self._payload(topic, number)
            self._course.made(self._process, topic, number, [text])
            future = pipe.publish(as_bytes(dressed(text)))
            future.add_done_callback(partial(self._answered, topic, text))

    def _answered(self, topic: str, text: str, future: Future[PutResult]) -> None:
        error = future.exception()
        if isinstance(error, FlotillaError):
            self._course.refused(self._name, error)
            if error.definite:
                self._course.not_stored(self._process, topic, text)

    def _empty_pipes(self) -> Script:
        """Wait for the answers of all producers, and end them; raise what has stopped one."""
        while self._pipes:
            _, pipe = self._pipes.popitem()
            while not pipe.is_answered:
                pipe.hurry()
                yield IDLE_S
            pipe.end()
            if pipe.error is not None:
                raise pipe.error

    def _payload(self, topic: str, counter: int) -> str:
        size = self._rng.randint(0, self._role.size_bytes)
        return payload.make(self._state.client_id, topic, counter, self._filler(size))

    def _filler(self, size: int) -> str:
        """Return so much text; it is marked where the publication is to have properties."""
        may_expire = self._role.expires and self._course.takes_expiry
        if may_expire and self._rng.random() < self._role.expires:
            return (SOON if self._role.expires_soon else EXPIRING) + FILLER[:size]
        may_be = self._role.has_properties and self._course.takes_properties
        is_marked = may_be and self._rng.random() < DRESSED_SHARE
        return (MARK if is_marked else "") + FILLER[:size]

    def _publish_oversized(self) -> Script:
        """Hand over a publication that no node takes: the library must refuse it and go on."""
        try:
            yield from self._process.put(self._next_topic(), ["\0" * OVERSIZED_BYTES])
        except TooLarge:
            return
        raise AssertionError(f"a publication of {OVERSIZED_BYTES} bytes was taken")

    def _flush(self) -> Script:
        yield from self._process.flush()

    # --- reading --------------------------------------------------------------------------------

    def _subscribe_all(self) -> Script:
        for topic in self._role.topics:

            def subscribe(topic: str = topic) -> Script:
                try:
                    yield self._operations.subscribe(topic)
                except (TooMany, QuotaExceeded) as error:
                    self._course.refused(self._name, error)

            yield from self._until_done(subscribe)

    def _read(self) -> Script:
        topic = None if self._role.reads_any else self._next_topic()
        if topic is not None and self._state.cursor(topic) is None:
            yield IDLE_S
            return
        yield from self._get(topic)

    def _make_room(self) -> Script:
        """Take what is there for this client: a topic may be full of it, or of its groups'.

        Of a SUB without an answer it does not know whether it stands, and does not read what others
        are refused for: so it leaves.
        """
        for topic in sorted(self._perhaps):
            if self._state.cursor(topic) is None:
                yield self._operations.unsubscribe(topic)
            self._perhaps.discard(topic)
        yield from self._catch_up()
        if self._role.works:
            yield from self._working.drain()

    def _catch_up(self) -> Script:
        """Read every topic to its end, for now."""
        for topic in sorted(self._state.cursors()):
            while (yield from self._get_or_leave(topic)):
                pass

    @property
    def _idle_s(self) -> float:
        """How long it waits where nothing was to be read: in the end others may wait for it."""
        pause_s = self._role.pause_s
        return pause_s if self._course.is_publishing else min(pause_s, IDLE_S)

    def _get(self, topic: str | None) -> Step:
        """GET once; return whether the application was given something, acknowledged or not."""
        role = self._role
        if self._is_looping:
            return (yield from self._loop(topic))
        delivery = yield from self._process.get(topic, role.get_wait_ms, role.get_count, role.ack)
        if delivery is None:
            yield self._idle_s
            return False
        self._course.handed_over(self._name, delivery)
        if role.is_manual and self._rng.random() < ACKNOWLEDGED_SHARE:
            self._acknowledge(delivery.topic, delivery.last_id)
        return True

    def _loop(self, topic: str | None) -> Step:
        """Read some in a loop; leave it in order, by an error, or when there is no more.

        In the end for want of more alone: what was fetched and not handed over comes again, and a
        quota may let it come no faster than once in some seconds.
        """
        role, rng, name = self._role, self._rng, self._name
        count, taken = rng.randint(1, LOOP_MESSAGES_MAX), 0

        def take(message: Message) -> str:
            nonlocal taken
            taken += 1
            self._course.handed_over(name, delivered(message))
            if role.is_manual and rng.random() < ACKNOWLEDGED_SHARE:
                self._acknowledge(message.topic, message.id)
            goes_on = taken < count or not self._course.is_publishing
            return "" if goes_on else rng.choice(("break", "error"))

        left = yield from self._process.loop(topic, role.get_wait_ms, role.ack, take)
        if left is not None and not role.is_manual:
            self._course.acknowledged(name, left.topic, left.id)
        if not taken:
            yield self._idle_s
        return taken > 0

    def _acknowledge(self, topic: str, last_id: int) -> None:
        self._readers.acknowledge(topic, last_id)
        self._course.acknowledged(self._name, topic, last_id)

    def _churn(self) -> Script:
        topic = self._next_topic()
        if self._state.cursor(topic) is None:
            yield self._operations.subscribe(topic)
        else:
            yield self._operations.unsubscribe(topic)
            if self._role.is_hasty:
                yield self._operations.subscribe(topic)

    def _list(self) -> Script:
        if self._rng.random() < 0.5:
            yield self._operations.topics(False)
            return
        known = self._course.known()
        rows = yield self._operations.topics(True)
        self._course.listed(self._name, rows, known)

    def _drain(self, tombstones: Mapping[str, int]) -> Script:
        for topic in sorted(self._state.cursors()):
            while self._state.cursor(topic) is not None:
                self._readers.come_back(self._process.owner, topic)
                cursor = self._state.cursor(topic) or 0
                if cursor >= tombstones.get(topic, 0):
                    self._process.recorder.mark_phase(DRAINED, topic=topic, last_id=cursor)
                    break
                yield from self._tried(partial(self._get_or_leave, topic))

    def _get_or_leave(self, topic: str) -> Step:
        """As `_get`; who has left already, by an UNSUB without an answer, leaves."""
        try:
            return (yield from self._get(topic))
        except (NotSubscribed, UnknownTopic) as error:
            self._course.refused(self._name, error)
            yield self._operations.unsubscribe(topic)
            return False

    def _next_topic(self) -> str:
        self._number += 1
        return self._role.topics[self._number % len(self._role.topics)]
