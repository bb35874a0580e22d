"""A simulated client of the library that reads where it likes, and as nobody else does.

What lives here: the script of its processes, and when these end. What must not: what it is to be
given (checks/travels.py).

It starts anywhere, seeks to either side, reads by id, lists what it has, and subscribes to
patterns, of topics of the crowd and of those to which clients by hand publish. It is not on record:
what these publish says nothing of itself. In the end it leaves.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from random import Random
from typing import Any, Final, Protocol, TypeVar

from chaos.simulation.clients.clients import ClientWire, Process, Script, SimClient
from chaos.simulation.clients.compactor import COMPACTED_TOPIC
from chaos.simulation.clients.follower import FAR_PATTERNS, FAR_TOPICS
from chaos.simulation.clients.replayer import KEPT_TOPIC, NOT_THERE
from flotilla_client import Fenced, FlotillaError, Forgotten, SubscribeResult
from flotilla_client.operations import KNOWN, KNOWN_WITH_RUNS, Steps
from flotilla_client.properties import Publication
from flotilla_client.protocol import EARLIEST, NEW
from flotilla_client.reading import Ack, Delivery
from flotilla_client.rows import TopicInfo

T = TypeVar("T")
TRAVELLER: Final = "traveller"
TRODDEN: Final = "trodden"  # a topic of its own, which keeps what was read
TRODDEN_SHARE: Final = 0.65  # of its steps are about that
PAUSE_S: Final = 0.03
REFUSED_PAUSE_S: Final = 0.1
LIFE_S: Final = (1.0, 7.0)  # of a process
DEAD_S: Final = 0.2
# So many moves are given less time than an answer takes, and of so many the process ends with it.
HASTY_SHARE: Final = 0.15
HASTY_MS: Final = (2, 5, 15)
SHORT_SHARE: Final = 0.1
CRASHES: Final = ("now", "invoke", "complete", "complete", "handed")
ACKS: Final[tuple[Ack, ...]] = ("auto", "auto", "manual")
TOPICS_MAX: Final = 2  # of the crowd
OWN_SHARE: Final = 0.7  # of the other steps are about topics that it subscribes to
TWICE_SHARE: Final = 0.2  # of its SUBs are said once more
# What it does where it is subscribed, with its share, and elsewhere.
STEPS: Final = {
    "get": 0.42,
    "any": 0.12,
    "seek": 0.16,
    "put": 0.14,
    "read": 0.08,
    "list": 0.05,
    "leave": 0.03,
}
AWAY: Final = {"subscribe": 0.55, "read": 0.1, "any": 0.15, "pattern": 0.1, "put": 0.1}
PUT_MAX: Final = 4  # publications at once
LASTING_SHARE: Final = 0.75  # of these do not expire, or all would be gone
EXPIRES_MS: Final = (5, 150, 1_000, 3_600_000)
KEYS: Final = ("a", "b", "c", None)
BEHIND_ACK_SHARE: Final = 0.5  # of what is handed over is acknowledged, "manual"
WAITS_MS: Final = (0, 0, 0, 100)
COUNTS: Final = (1, 3, 3, 50)
AHEAD: Final = 2  # ids behind a topic's end that it asks for as well


class TravelHearer(Protocol):
    """Who hears what a traveller is told (checks/travels.py)."""

    def refused(self, client: str, error: FlotillaError) -> None:
        """Hear of an operation's error."""

    def end_of(self, topic: str) -> int:
        """Return a topic's last id, more or less."""

    def known_ends(self) -> Mapping[str, int]:
        """Return the highest id of each topic that was ever acknowledged to anybody."""

    def subscribed(self, process: Process, topic: str, result: SubscribeResult, had: int) -> None:
        """Hear of a SUB's success; `had`: up to which id its application is done."""

    def sought(self, process: Process, topic: str, start: str | int, cursor: int) -> None:
        """Hear of a SEEK's success."""

    def in_doubt(self, process: Process, topic: str) -> None:
        """Hear that nobody knows whether a subscription was changed."""

    def left(self, process: Process, topic: str) -> None:
        """Hear of an UNSUB's success."""

    def got(
        self,
        process: Process,
        topic: str | None,
        ends: Mapping[str, int],
        delivery: Delivery | None,
    ) -> None:
        """Hear what a GET has brought; `ends`: what was known before."""

    def acknowledged(self, process: Process, topic: str, last_id: int) -> None:
        """Hear up to where the application is done."""

    def gap_told(self, process: Process, topic: str | None, error: FlotillaError) -> None:
        """Hear what a GET was told is gone."""

    def was_read(
        self,
        topic: str,
        from_id: int,
        max_count: int,
        end: int,
        deliveries: Sequence[Delivery],
    ) -> None:
        """Hear what a READ has brought; `end`: up to which id there was something before."""

    def not_read(self, topic: str, from_id: int, error: FlotillaError) -> None:
        """Hear of a READ's error."""

    def listed(self, rows: Sequence[TopicInfo], cursors: Mapping[str, int]) -> None:
        """Hear of a listing of its own topics; `cursors`: where it stands."""

    def stands(self, process: Process) -> None:
        """Look at where a process takes its subscriptions to stand."""

    def gone(self, process: Process) -> None:
        """Hear that it has left everything."""

    def begun_anew(self) -> None:
        """Hear that it has become another client."""


class Travelling:
    """One process of it. `is_over()`: whether it is to leave."""

    def __init__(
        self,
        process: Process,
        hearer: TravelHearer,
        topics: Sequence[str],
        rng: Random,
        is_over: Callable[[], bool],
    ) -> None:
        self._process, self._hearer, self._rng, self._is_over = process, hearer, rng, is_over
        self._operations, self._state = process.session.operations, process.session.state
        self._topics = (TRODDEN, *topics, KEPT_TOPIC, COMPACTED_TOPIC, *FAR_TOPICS[:2])
        self._made = 0
        self._ack = rng.choice(ACKS)

    def run(self) -> Script:
        """Travel until it is over, then leave."""
        while True:
            yield self._rng.expovariate(1 / PAUSE_S)
            try:
                if self._is_over():
                    yield from self._leave_all()
                    return
                yield from self._step()
                self._hearer.stands(self._process)
            except Fenced as error:
                self._hearer.refused(TRAVELLER, error)
                return
            except Forgotten as error:
                self._hearer.refused(TRAVELLER, error)
                yield from self._begin_anew()
            except FlotillaError as error:
                self._hearer.refused(TRAVELLER, error)
                yield REFUSED_PAUSE_S

    def _begin_anew(self) -> Script:
        try:
            yield from self._process.adopt()
        except FlotillaError as error:
            self._hearer.refused(TRAVELLER, error)
            yield REFUSED_PAUSE_S
        else:
            self._hearer.begun_anew()

    def _step(self) -> Script:
        rng, topic = self._rng, self._rng.choice(self._topics)
        own = [each for each in self._topics if self._state.cursor(each) is not None]
        if rng.random() < TRODDEN_SHARE:
            topic = TRODDEN
        elif own and rng.random() < OWN_SHARE:
            topic = rng.choice(own)
        steps = AWAY if self._state.cursor(topic) is None else STEPS
        [step] = rng.choices(list(steps), list(steps.values()))
        if step == "get":
            yield from self._get(topic)
        elif step == "any":
            yield from self._get(None)
        elif step == "seek":
            yield from self._seek(topic)
        elif step == "read":
            yield from self._read(topic)
        elif step == "list":
            rows = yield self._operations.topics(False)
            self._hearer.listed(rows, self._state.cursors())
        elif step == "subscribe":
            yield from self._subscribe(topic, self._start(topic))
        elif step == "put":
            yield from self._put()
        elif step == "leave":
            yield from self._leave(topic)
        elif patterns := sorted(self._state.patterns()):
            yield from self._leave(rng.choice(patterns))
        else:
            yield from self._subscribe(rng.choice(FAR_PATTERNS), rng.choice((NEW, EARLIEST)))

    def _put(self) -> Script:
        """Publish to its own topic: some of it expires, some of it has a key."""
        rng, made = self._rng, list[Publication]()
        for _ in range(rng.randint(1, PUT_MAX)):
            self._made += 1
            text = f"{self._process.name} {self._made}"
            lasts = rng.random() < LASTING_SHARE
            expires = None if lasts else rng.choice(EXPIRES_MS) / 1000
            made.append(Publication(text, rng.choice(KEYS), {"of": text}, expires))
        yield from self._process.put(TRODDEN, made)

    def _start(self, topic: str) -> str | int:
        near = self._rng.randint(1, self._hearer.end_of(topic) + AHEAD)
        starts: tuple[str | int, ...] = (NEW, EARLIEST, EARLIEST, near, near, near)
        return self._rng.choice(starts)

    def _moved(self, steps: Steps[T]) -> Generator[Any, Any, T]:
        """Carry out what moves a subscription; at times its answer comes too late, or to nobody."""
        session, deadline_ms = self._process.session, self._process.session.deadline_ms
        if self._rng.random() < HASTY_SHARE:
            session.deadline_ms = self._rng.choice(HASTY_MS)
        if self._rng.random() < SHORT_SHARE:
            self._process.observer.crash_at = "complete"
        try:
            result: T = yield steps
            return result
        finally:
            session.deadline_ms = deadline_ms

    def _subscribe(self, topic: str, start: str | int) -> Script:
        done_to = self._state.cursor(topic) or 0
        try:
            result = yield from self._moved(self._operations.subscribe(topic, start))
        except FlotillaError as error:
            self._doubt(topic, error)
            raise
        self._hearer.subscribed(self._process, topic, result, done_to)
        # Once more: it stands where it is, whatever is asked for.
        if self._rng.random() < TWICE_SHARE:
            done_to = self._state.cursor(topic) or 0
            again = yield self._operations.subscribe(topic, NEW)
            self._hearer.subscribed(self._process, topic, again, done_to)

    def _seek(self, topic: str) -> Script:
        start = self._start(topic)
        try:
            cursor = yield from self._moved(self._operations.seek(topic, start))
        except FlotillaError as error:
            self._doubt(topic, error)
            raise
        self._hearer.sought(self._process, topic, start, cursor)

    def _leave(self, topic: str) -> Script:
        try:
            yield from self._moved(self._operations.unsubscribe(topic))
        except FlotillaError as error:
            self._doubt(topic, error)
            raise
        self._hearer.left(self._process, topic)

    def _doubt(self, topic: str, error: FlotillaError) -> None:
        if not error.definite:
            self._hearer.in_doubt(self._process, topic)

    def _get(self, topic: str | None) -> Script:
        rng, hearer = self._rng, self._hearer
        ends = hearer.known_ends()
        asked = topic, rng.choice(WAITS_MS), rng.choice(COUNTS), self._ack
        try:
            delivery = yield from self._process.get(*asked)
        except FlotillaError as error:
            hearer.gap_told(self._process, topic, error)
            if topic is None or error.code not in NOT_THERE:
                raise
            yield from self._leave(topic)  # an UNSUB was carried out, and its answer lost
            return
        hearer.got(self._process, topic, ends, delivery)
        if delivery is not None and self._ack == "manual" and rng.random() < BEHIND_ACK_SHARE:
            last_id = rng.randint(delivery.first_id, delivery.last_id)
            self._operations.readers.acknowledge(delivery.topic, last_id)
            hearer.acknowledged(self._process, delivery.topic, last_id)

    def _read(self, topic: str) -> Generator[Any, Any, None]:
        rng, hearer = self._rng, self._hearer
        from_id = rng.randint(1, hearer.end_of(topic) + 1)
        end, max_count = hearer.known_ends().get(topic, 0), rng.choice(COUNTS)
        known = rng.choice((KNOWN, KNOWN_WITH_RUNS))
        try:
            found = yield self._operations.read(topic, from_id, max_count, known)
        except FlotillaError as error:
            hearer.not_read(topic, from_id, error)
            raise
        hearer.was_read(topic, from_id, max_count, end, found)

    def _leave_all(self) -> Script:
        """End every subscription, of which it need not know."""
        for pattern in sorted({*self._state.patterns(), *FAR_PATTERNS}):
            yield self._operations.unsubscribe(pattern)
        for topic in sorted({*self._state.cursors(), *self._topics}):
            yield self._operations.unsubscribe(topic)
        self._hearer.gone(self._process)


def keep_ending(
    client: SimClient, wire: ClientWire, rng: Random, is_over: Callable[[], bool]
) -> None:
    """End its process now and then, at any point, and start another one."""

    def end() -> None:
        if not is_over():
            client.crash(rng.choice(CRASHES))
            wire.after(rng.uniform(*LIFE_S), end)

    def begin() -> None:
        if not is_over():
            client.start()  # unless one lives
            wire.after(DEAD_S, begin)

    begin()
    wire.after(rng.uniform(*LIFE_S), end)
