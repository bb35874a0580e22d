"""`Client`: the library's front door.

What lives here: the public methods, the lock round them, and the loop that carries out a retry
machine's actions on sockets. What must not: decisions of an operation (operations.py), about
retries (retry.py) or about storage (state.py).
"""

from __future__ import annotations

import copy
import random
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Final, NoReturn, Self, TypeVar, assert_never

from flotilla_client import checks, retry
from flotilla_client.batches import (
    FLAG,
    Publishable,
    batch_of,
    batches_of,
    lane_for,
    publication_of,
)
from flotilla_client.checks import Duration
from flotilla_client.connection import (
    CONNECT_MS_MAX,
    CONNECTION_LOST,
    NO_REPLY,
    REQUESTS_QUEUED_MAX,
    EndpointSockets,
    with_endpoints,
)
from flotilla_client.errors import (
    AlreadyReading,
    Busy,
    Closed,
    FlotillaError,
    RecordError,
    StateRequired,
    TopicInUse,
    Unavailable,
)
from flotilla_client.forks import PerProcess, owned
from flotilla_client.joining import Call, Explain, Joined, JoinedWire, Unheard
from flotilla_client.keys import key_file
from flotilla_client.log import LOG
from flotilla_client.losses import Losses
from flotilla_client.observer import Observer, Silent
from flotilla_client.old_names import deadline_of, idle_of, warn_of
from flotilla_client.operations import (
    GET_SLICES_MIN,
    KNOWN,
    KNOWN_WITH_RUNS,
    Ask,
    Operations,
    PutResult,
    Steps,
    SubscribeResult,
    check_client_id,
    check_name,
    check_topic,
    kept,
    new_nonce,
    next_ask,
    slices,
)
from flotilla_client.probe import explained
from flotilla_client.producer import (
    BATCH_BYTES,
    IN_FLIGHT_MAX,
    LINGER_MS,
    LINGER_MS_MAX,
    Producer,
    finish_all,
)
from flotilla_client.protocol import (
    BATCH_BYTES_MAX,
    INTEGER_MAX,
    LEVEL_MAX,
    REQUEST_ID,
    Reply,
    encode_request,
)
from flotilla_client.reading import (
    Ack,
    Delivery,
    Loop,
    Message,
    Owner,
    Reader,
    Readers,
    this_thread,
)
from flotilla_client.recording import Recording
from flotilla_client.retry import (
    DEADLINE_MS,
    DEADLINE_MS_MAX,
    Action,
    Close,
    Done,
    Exchange,
    Failed,
    Listen,
    Pause,
    Routes,
    Send,
)
from flotilla_client.rows import LevelRaised, NodeStatus, SubscriberInfo, TopicInfo
from flotilla_client.soon import SoonPublisher
from flotilla_client.spans import Tracer, spans_of
from flotilla_client.state import OUTBOX_BYTES_MAX, State
from flotilla_client.turns import LOOK_MS, Ticket, Turns
from flotilla_client.work import (
    PREFETCH,
    GroupSettings,
    LeaseBook,
    WorkAck,
    WorkItem,
    WorkLoop,
    begin_extending,
    check_group,
    end_group,
    lease_lost,
    make_group,
    take,
)

T = TypeVar("T")
_HOST_AND_PORT: Final = re.compile(r"(?:tcp://)?[^\s/\0]+:([0-9]{1,5})")
_SOCKET_FILE: Final = re.compile(r"ipc://([^\0]+)")
SOCKET_FILE_BYTES_MAX: Final = 107  # of its name: the operating system's
PORT_MAX: Final = 65_535  # TCP's
MESSAGES_COUNT: Final = 100  # publications that `messages` fetches at once
MESSAGES_WAIT_MS: Final = 5_000  # how long one GET of `messages` waits; it asks again
WORDS_MS_MAX: Final = 2_000  # what a client that is closed takes to give back and tell all it has
ANSWER_MS_MAX: Final = 1_000  # of a GET with a `timeout`: that much is left for its answer
ANSWER_SHARE: Final = 0.25  # …or so much of it, if that is less
CLOSE_MS: Final = CONNECT_MS_MAX + LOOK_MS  # `close` waits so long at least for its turn
JOIN_MS: Final = 200  # behind the deadline: who publishes is told by whoever does it for all
NOT_GIVEN_BACK: Final = "what this client has of group %r of %r is left to its leases: %s"
NOT_TOLD: Final = "what client %r has acknowledged last, the cluster does not know: %s"
STATUS_DEADLINE_MS: Final = 1_500  # STATUS asks one node only: it answers at once or is down


def endpoints_of(endpoints: str | Sequence[str]) -> tuple[str, ...]:
    """Return the endpoints of a list or of one text with commas. Raises TypeError, ValueError.

    Each is HOST:PORT, or a ZeroMQ address, `tcp://HOST:PORT` or `ipc://FILE`.
    """
    listed = endpoints.split(",") if isinstance(endpoints, str) else endpoints
    names = [_endpoint_text(endpoint) for endpoint in checks.several("endpoints", listed)]
    found = tuple(name for name in names if name)
    if not found:
        raise ValueError("a client needs an endpoint: HOST:PORT")
    for endpoint in found:
        _check_endpoint(endpoint)
    return found


def _endpoint_text(endpoint: object) -> str:
    if not isinstance(endpoint, str):
        raise TypeError(f"an endpoint is a text, HOST:PORT, not {type(endpoint).__name__}")
    return checks.text("an endpoint", endpoint).strip()


def _check_endpoint(endpoint: str) -> None:
    file = _SOCKET_FILE.fullmatch(endpoint)
    if file is not None:
        if len(file[1].encode()) > SOCKET_FILE_BYTES_MAX:
            limit = f"a socket's file has {SOCKET_FILE_BYTES_MAX} bytes of name at most"
            raise ValueError(f"{endpoint!r} is no endpoint: {limit}")
        return
    match = _HOST_AND_PORT.fullmatch(endpoint)
    if match is None:
        raise ValueError(f"{endpoint!r} is no endpoint: HOST:PORT is due")
    if not 1 <= int(match[1]) <= PORT_MAX:
        raise ValueError(f"{endpoint!r} is no endpoint: a port is from 1 to {PORT_MAX}")


def _checked_name(name: object, state_dir: object) -> str:
    """Return a client's name, "" for none. Raises TypeError, ValueError, BadRequest, TooLarge."""
    if name is None:
        return ""
    if not isinstance(name, str):
        raise TypeError(f"a client's name is a text, not {type(name).__name__}")
    if state_dir is not None:
        raise ValueError("a state directory has its client's id: give `state_dir` or `name`")
    check_name("name", "a client's name", name)
    return name


def unheard_of(allow_unheard: bool) -> Unheard:
    """Return what comes of a publication that nobody subscribes to. Raises TypeError."""
    if allow_unheard is False:
        return "raise"
    return "allow" if checks.flag("allow_unheard", allow_unheard) else "raise"


def now_ms() -> float:
    """Return the monotonic time."""
    return time.monotonic() * 1000


def _nothing() -> None:
    """Do nothing."""


def end_of_words(end_ms: float) -> float:
    """Return until when `close`, which has until `end_ms`, gives work back and tells cursors.

    One time for all of it. What is not told costs no publication: leases run out, and what is
    above a cursor that the cluster does not know is handed over again.
    """
    return min(now_ms() + WORDS_MS_MAX, max(end_ms, now_ms() + CLOSE_MS))


class Session:
    """What one client is made of, without the sockets: `Client` and `AsyncClient` have one each."""

    def __init__(
        self,
        endpoints: str | Sequence[str],
        *,
        state_dir: str | Path | None = None,
        deadline_ms: float = DEADLINE_MS,
        observer: Observer | None = None,
        rng: random.Random | None = None,
        outbox_bytes_max: int = OUTBOX_BYTES_MAX,
        new_nonce: Callable[[], str] = new_nonce,
        record: str | Path | None = None,
        key: str | Path | None = None,
        name: str | None = None,
        tracer: Tracer | None = None,
        open_state: Callable[[Path | None, int], State] = State,
    ) -> None:
        self.endpoints = endpoints_of(endpoints)
        self.deadline_ms = deadline_ms
        self.name = _checked_name(name, state_dir)
        checks.integer("outbox_bytes_max", outbox_bytes_max, 1, INTEGER_MAX)
        directory = checks.directory("state_dir", state_dir)
        record = checks.directory("record", record)
        if observer is not None and not isinstance(observer, Observer):
            raise TypeError(f"observer has on_invoke and on_complete: {type(observer).__name__}")
        if observer is not None and record is not None:
            raise ValueError("a recording is an observer: give `observer` or `record`, not both")
        if rng is not None and not isinstance(rng, random.Random):
            raise TypeError(f"rng is a random.Random, not {type(rng).__name__}")
        self.key = key_file(key)
        self.spans = spans_of(tracer)
        self.producers: dict[str, Producer] = {}
        self.books: dict[tuple[str, str], LeaseBook] = {}  # by topic and group
        self.heard_ms: float | None = None
        self.look: Callable[[], None] = _nothing
        self._rng = rng or random.Random()
        self._routes = Routes(range(len(self.endpoints)), self.endpoints)
        self._exchanges = 0
        self._name = f"{self._rng.getrandbits(64):016x}"
        self._joined: Joined
        self._is_closed = self._is_ending = False
        self._recording: Recording | None = None
        self.state = open_state(directory, outbox_bytes_max)
        with self.closed_if_broken_off():
            if record is not None:
                observer = self._recording = Recording(record)
            heard_by = Silent() if observer is None else observer
            self.operations = Operations(self.state, heard_by, new_nonce, self.name)
            self.operations.taken_up = partial(_lose_leases, self.books)

    def exchange(self, ask: Ask, end_ms: float) -> Exchange:
        """Return the retry machine for a request of an operation that gives up at `end_ms`."""
        self._exchanges += 1
        exchange = Exchange(
            self._routes if ask.endpoint is None else Routes((ask.endpoint,), self.endpoints),
            f"{self._name}-{self._exchanges}",
            retry.exchange_deadline_ms(end_ms, ask.wait_ms),
            retry.attempt_timeout_ms(self.deadline_ms, ask.wait_ms),
            self._rng,
            ask.final,
        )
        if ask.opens or ask.request.type == REQUEST_ID:
            self.operations.opening = exchange
        return exchange

    @property
    def is_closed(self) -> bool:
        """Whether closing has begun."""
        return self._is_closed

    def late(self, exchange: Exchange | None = None) -> FlotillaError:
        """Return the error of a publication that is on its way at the deadline.

        `exchange`: what is under way for it; None: what the opening waits for, if it does.
        """
        under_way = exchange or self.operations.opening
        if under_way is None:
            return Unavailable("no answer before the deadline", definite=False)
        late = under_way.out_of_time()
        return with_endpoints(Unavailable(late.message, "", False, late.details), self.endpoints)

    def closing_errors(self) -> tuple[FlotillaError, FlotillaError]:
        """Return the error of what is under way when `close` comes, and of what has not begun."""
        message = "the client was closed before an answer came"
        return Unavailable(message, definite=False), Closed("the client is closed")

    def begin_closing(self) -> None:
        """Let no operation begin any more, and those under way try no longer."""
        self._is_closed = True

    def check_open(self) -> None:
        """Raise Closed once closing has begun."""
        if self._is_closed:
            raise Closed("the client is closed")

    def begin_ending(self) -> Sequence[LeaseBook]:
        """Let nobody wait for publications any more; return the work that is to be given back."""
        self._is_ending = True
        return tuple(self.books.values())

    def check_at_work(self) -> None:
        """Raise Closed once work is given back, or closing has begun."""
        if self._is_ending:
            raise Closed("the client is closed: what it was at work on is given back")
        self.check_open()

    def check_going_on(self, is_waiting: bool = False) -> None:
        """Raise the error of an operation that `close` overtakes; it may have happened.

        Sooner where it `is_waiting` for publications: it would be in the way of what `close` has to
        say. What waits looks so now and then: `look` is called as well.
        """
        if self._is_closed or (is_waiting and self._is_ending):
            raise self.closing_errors()[0]
        self.look()

    def subscribe(self, topic: str, start: str | int | datetime) -> Steps[SubscribeResult]:
        """Return the steps of a SUB, which stands until UNSUB: by whom, without a directory?"""
        self.check_open()
        check_topic(topic)
        begin = checks.start(start)
        if self.state.directory is None and not self.name:
            raise StateRequired(
                "a subscription outlives this process, and without a state directory or a name"
                " nobody could read on or end it, while the nodes keep everything for it: give the"
                " client one, Client(endpoints, state_dir=DIR) or Client(endpoints, name=NAME)"
            )
        return self.operations.subscribe(topic, begin)

    def seek(self, topic: str, start: str | int | datetime) -> Steps[int]:
        """Return the steps of a SEEK."""
        self.check_open()
        check_topic(topic)
        return self.operations.seek(topic, checks.start(start))

    def read(self, topic: str, from_id: int, max_count: int) -> Steps[Delivery | None]:
        """Return the steps of a READ of one run."""
        return _first(self.read_runs(topic, from_id, max_count, KNOWN))

    def read_runs(
        self,
        topic: str,
        from_id: int,
        max_count: int,
        known: Mapping[str, Any] = KNOWN_WITH_RUNS,
    ) -> Steps[list[Delivery]]:
        """Return the steps of a READ."""
        check_topic(topic)
        checks.integer("from_id", from_id, 1, INTEGER_MAX)
        checks.integer("max_count", max_count, 1, INTEGER_MAX)
        return self.operations.read(topic, from_id, max_count, known)

    def unsubscribe(self, topic: str, client_id: str | None) -> Steps[bool]:
        """Return the steps of an UNSUB; `client_id` None: of the client's own subscription."""
        check_topic(topic)
        if client_id is None:
            return self.operations.unsubscribe(topic)
        check_client_id(client_id)
        return self.operations.end_subscription(topic, client_id)

    def put(
        self,
        topic: str,
        publications: Sequence[Publishable],
        end_ms: float,
        told: Callable[[], object],
        unheard: Unheard = "warn",
    ) -> Call:
        """Return a call to be joined with others. Wrong arguments are refused here."""
        self.check_open()
        check_topic(topic)
        batches = batches_of(publications)
        return Call(lane_for(topic, batches), batches, end_ms, told, unheard)

    def put_one(
        self,
        topic: str,
        publication: Publishable,
        end_ms: float,
        told: Callable[[], object],
        unheard: Unheard = "warn",
    ) -> Call:
        """Return the call of one publication, as `put`."""
        self.check_open()
        check_topic(topic)
        batches = (batch_of(publication),)
        has_properties = batches[0][0][3] >= FLAG
        lane = lane_for(topic, batches) if has_properties else topic
        return Call(lane, batches, end_ms, told, unheard)

    def end_ms(self, timeout: Duration | None) -> float:
        """Return until when a call tries. Raises TypeError, ValueError."""
        if timeout is None:
            return now_ms() + self.deadline_ms
        return now_ms() + checks.milliseconds("timeout", timeout, 1, DEADLINE_MS_MAX)

    def flush(self, end_ms: float, told: Callable[[], object]) -> list[Call]:
        """Return calls that are over when the outbox has been sent, but for producers' topics."""
        topics = dict.fromkeys((*self.state.topics_waiting(), *self._joined.topics))
        return [Call(topic, (), end_ms, told) for topic in topics if topic not in self.producers]

    def not_flushed(self, error: FlotillaError) -> FlotillaError:
        """Return the error of a flush: what could not be sent stays in the outbox."""
        if "withdrawn" in error.details:
            return error
        return kept(error, 0, self.state.waiting())

    def joined(self, wire: JoinedWire, explain: Explain, now_ms: Callable[[], float]) -> Joined:
        """Return what joins this client's calls."""
        self._joined = Joined(
            self.operations,
            self.exchange,
            self._check_free,
            explain,
            wire,
            now_ms,
            self.late,
        )
        return self._joined

    def enqueue(self, topic: str, publications: Sequence[Publishable]) -> tuple[str, Steps[int]]:
        """Return under which name publications are counted, and the steps that enqueue them.

        None of these asks anybody.
        """
        check_topic(topic)
        batches = batches_of(publications)
        lane = lane_for(topic, batches)

        def steps() -> Steps[int]:
            yield from ()
            self._check_free(lane)
            return self.operations.enqueue(lane, batches)

        return lane, steps()

    def get(
        self,
        topic: str | None,
        max_count: int,
        idle_ms: float | None,
        timeout: Duration | None = None,
    ) -> Iterator[tuple[Steps[Delivery | None], float]]:
        """Yield the steps of one GET after the other until the wait is over, with their deadlines.

        `idle_ms`: how long a node waits for something to come; None: not at all, or as long as the
        timeout has room for. A deadline is in ms from then on; what the node waits comes on top.
        """
        if topic is not None:
            check_topic(topic)
        checks.integer("max_count", max_count, 1, INTEGER_MAX)
        if timeout is None:
            return self._gets(topic, idle_ms or 0, max_count)
        if idle_ms:
            raise TypeError("timeout includes idle: give one of them")
        timeout_ms = checks.milliseconds("timeout", timeout, 1, DEADLINE_MS_MAX)
        return self._gets_within(topic, timeout_ms, max_count)

    def gets_of(self, loop: Loop) -> Iterator[tuple[Steps[Delivery | None], float]]:
        """Yield what `get` does, for a loop over messages."""
        return self._gets(loop.scope, loop.wait_ms, MESSAGES_COUNT, in_loop=True)

    def _gets(
        self, topic: str | None, wait_ms: float, max_count: int, in_loop: bool = False
    ) -> Iterator[tuple[Steps[Delivery | None], float]]:
        until_ms = now_ms() + wait_ms
        for slice_ms in slices(wait_ms, self.deadline_ms):
            left_ms = max(0, int(until_ms - now_ms()))  # less than the slices, if one took longer
            steps = self.operations.get(topic, min(slice_ms, left_ms), max_count, in_loop)
            yield steps, DEADLINE_MS_MAX
            if now_ms() >= until_ms:
                return

    def _gets_within(
        self, topic: str | None, timeout_ms: float, max_count: int
    ) -> Iterator[tuple[Steps[Delivery | None], float]]:
        """Yield GETs that all end in time: what a node does not wait is left for its answer.

        What is before them, to take up the id, has all of the time.
        """
        end_ms = now_ms() + timeout_ms
        margin_ms = min(ANSWER_MS_MAX, timeout_ms * ANSWER_SHARE)
        if not self.operations.is_open:
            yield self.operations.opened(), timeout_ms
        while True:
            left_ms = end_ms - now_ms()
            wait_ms = max(0, int(min(MESSAGES_WAIT_MS, left_ms - margin_ms)))
            yield self.operations.get(topic, wait_ms, max_count), left_ms - wait_ms
            if end_ms - now_ms() <= margin_ms:
                return

    def loop(self, topic: str | None, ack: Ack, idle_ms: float | None) -> Loop:
        """Return a loop over messages. Wrong arguments are refused here."""
        wait_ms = MESSAGES_WAIT_MS if idle_ms is None else idle_ms
        self.get(topic, MESSAGES_COUNT, wait_ms)
        self.operations.begin_loop()
        return Loop(topic, ack, wait_ms, is_endless=idle_ms is None)

    def acknowledge(self, topic: str, last_id: int) -> None:
        """Store that the application is done with all up to `last_id`."""
        checks.topic_name(topic)
        checks.integer("last_id", last_id, 0, INTEGER_MAX)
        self.check_open()
        self.operations.readers.acknowledge(topic, last_id)

    def adopt(self) -> Steps[Losses]:
        """Return the steps of an adoption, under which no producer can go on."""
        if self.producers:
            raise TopicInUse(f"close the producers first: {', '.join(sorted(self.producers))}")
        if self._recording is not None:
            raise RecordError(
                "what was recorded before an adoption does not hold behind it: adopt without"
                " `record`, then begin a new record, in a new directory",
                details={"file": str(self._recording.path)},
            )
        late = Unavailable("the client was adopted before an answer came", definite=False)
        self._joined.stop(late, late.before_start())
        lost = yield from self.operations.adopt()
        for book in tuple(self.books.values()):
            book.lose()  # it is another client now, or the cluster another one
        return lost

    def topics(self, everything: bool) -> Steps[list[TopicInfo]]:
        """Return the steps of a TOPICS."""
        return self.operations.topics(checks.flag("everything", everything))

    def status(self, endpoint: int | None) -> Steps[NodeStatus]:
        """Return the steps of a STATUS; `endpoint` is an index into `endpoints`."""
        if endpoint is not None:
            checks.integer("endpoint", endpoint, 0, len(self.endpoints) - 1)
        return self.operations.status(endpoint)

    def upgrade(self, level: int | None) -> Steps[LevelRaised]:
        """Return the steps of an UPGRADE."""
        if level is not None:
            checks.integer("level", level, 1, LEVEL_MAX)
        return self.operations.upgrade(level)

    def producer(
        self, topic: str, linger_ms: float, batch_bytes: int, in_flight_max: int
    ) -> Steps[Producer]:
        """Return the steps that end in a new producer."""
        check_topic(topic)
        checks.number("linger_ms", linger_ms, 0, LINGER_MS_MAX)
        checks.integer("batch_bytes", batch_bytes, 1, BATCH_BYTES_MAX)
        checks.integer("in_flight_max", in_flight_max, 1, REQUESTS_QUEUED_MAX - 1)
        return self._producer(topic, linger_ms, batch_bytes, in_flight_max)

    def _producer(
        self, topic: str, linger_ms: float, batch_bytes: int, in_flight_max: int
    ) -> Steps[Producer]:
        yield from self.operations.next_counter(topic)
        self._check_free(topic)
        if topic in self._joined.topics:  # which alone sends, and takes out, what is its own
            raise TopicInUse(f"{topic} is published to: a producer begins behind that")
        turn = ExitStack()  # of those that share the state; it is the producer's until it is closed

        def closed() -> None:
            del self.producers[topic]
            turn.close()

        turn.enter_context(self.state.turn(self.deadline_ms / 1000))
        try:
            producer = self.producers[topic] = Producer(
                self.operations,
                topic,
                self.endpoints,
                self.key,
                copy.deepcopy(self._routes),
                self.deadline_ms,
                self._rng,
                closed,
                linger_ms,
                batch_bytes,
                in_flight_max,
            )
            producer.start()
        except BaseException:  # no descriptor or no thread can be had, ctrl-C
            broken_off = self.producers.pop(topic, None)
            if broken_off is not None:
                broken_off.give_up()
            turn.close()
            raise
        return producer

    def work(
        self,
        topic: str,
        group: str,
        settings: GroupSettings,
        ack: WorkAck,
        prefetch: int,
        idle: Duration | None,
        extender: Callable[[WorkItem, int], Any],
    ) -> WorkLoop:
        """Return a loop over a group's work. Raises TypeError, ValueError, BadRequest."""
        self.check_open()
        check_group(topic, group)
        idle_ms = None if idle is None else checks.milliseconds("idle", idle, 0, DEADLINE_MS_MAX)
        book = self.books.get((topic, group))
        if book is None:
            book = LeaseBook(topic, group, now_ms, extender, self.check_at_work)
            self.books[topic, group] = book
        wait_ms = int(min(MESSAGES_WAIT_MS, self.deadline_ms / GET_SLICES_MIN))
        return WorkLoop(book, settings, ack, prefetch, wait_ms, idle_ms)

    def replied(self, exchange: Exchange, reply: Reply | None, cause: str = "") -> list[Action]:
        """Pass a reply on, or None: silence, a lost connection or another cause."""
        if reply is None:
            return exchange.silent(now_ms(), cause)
        self.heard_ms = now_ms()
        return exchange.replied(reply, self.heard_ms)

    def close(self, owner: Owner, is_done: bool) -> None:
        """Close the state and the recording; producers and sockets have been closed.

        `is_done`: the owner is done with what its last `get` has brought.
        """
        self.begin_closing()
        try:
            if is_done and not self.state.is_closed:
                self.operations.readers.come_back(owner, None)
                self.operations.go_on_behind_what_is_gone()
        finally:
            try:
                self.state.close()
            finally:
                if self._recording is not None:
                    self._recording.close()

    @contextmanager
    def closed_if_broken_off(self) -> Iterator[None]:
        """Close the session if its client can't be made: it would have the directory for ever."""
        try:
            yield
        except BaseException:
            self.close(this_thread(), is_done=False)
            raise

    def last_words(self, owner: Owner, is_done: bool) -> Iterator[Steps[None]]:
        """Yield what a client has to say before it is closed: one by name has no other memory."""
        if self.name and self.state.is_open and not self._is_closed:
            if is_done:
                self.operations.readers.come_back(owner, None)
                self.operations.go_on_behind_what_is_gone()
            yield self.operations.tell()

    def _check_free(self, topic: str) -> None:
        if topic in self.producers:
            raise TopicInUse(f"{topic} has an open producer, which alone publishes to it")


def _first(steps: Steps[list[Delivery]]) -> Steps[Delivery | None]:
    found = yield from steps
    return found[0] if found else None


def _lose_leases(books: Mapping[tuple[str, str], LeaseBook]) -> None:
    """Take note that a new epoch has none of the leases of the one before."""
    for book in tuple(books.values()):
        book.lose_leases()


class _Parts:
    """What a client is made of in one process.

    `is_midway`: whoever had the turn may have been broken off anywhere, with a request or a reply
    on a socket in part.
    """

    def __init__(self, session: Session, lead: Callable[[_Parts, Ticket], None]) -> None:
        self.session, self.turns = session, Turns()
        self.connection = EndpointSockets(session.endpoints, session.key)
        self.joined = session.joined(self.connection, self._explain, now_ms)
        self.connection.lost = self.joined.lost
        self.is_midway = False
        self.publisher = SoonPublisher(
            self.turns,
            partial(lead, self),
            session.operations.warn,
            session.state.directory,
            session.deadline_ms,
        )

    def settle(self) -> None:
        """Make good what a broken off turn has left."""
        if self.is_midway:
            self.connection.close_all()
            tickets = self.turns.tickets()
            self.joined.restart([c for one in tickets for c in one.joining if c.is_added])
        self.is_midway = True

    def _explain(self, error: FlotillaError, then: Callable[[FlotillaError], None]) -> None:
        error = explained(error, self.session.endpoints, self.session.key is not None)
        then(with_endpoints(error, self.session.endpoints))


class Client:
    """A client of a Flotilla cluster.

    `endpoints`: HOST:PORT of any of the nodes, a list or one text with commas. `state_dir`: where
    this client keeps its id, cursors and outbox. `name`: instead, the id by which the cluster knows
    it, wherever its processes run; cursors and counters are the cluster's, and what has no answer
    when a process dies, nobody sends again. Without either nothing survives the process, and it
    can't subscribe.
    `timeout` (seconds or a timedelta, 15 s): how long a call tries, every wait included.
    `observer`: hears of every operation. `record`: instead, a directory in which `flotilla-check`
    finds them all (docs/recording.md). `rng`: for jitter. `key`: the file of this client's key, for
    a cluster that asks for one (docs/security.md); None: the file that FLOTILLA_KEY names, if it is
    set. `tracer`: OpenTelemetry's, for spans of what is published (docs/tracing.md). Safe to use
    from several threads: what they publish is joined, all else runs one at a time (Busy). A child
    process needs a client of its own (Forked), or has one: without `state_dir` this becomes a new
    one there.

    Every method may raise FlotillaError: `definite` says whether the operation may have happened.
    Opening is lazy: the constructor touches these files only (StateError, RecordError,
    KeyUnusable).
    """

    _open_state: Callable[[Path | None, int], State] = State

    def __init__(
        self,
        endpoints: str | Sequence[str],
        *,
        state_dir: str | Path | None = None,
        deadline_ms: float | None = None,
        observer: Observer | None = None,
        rng: random.Random | None = None,
        outbox_bytes_max: int = OUTBOX_BYTES_MAX,
        record: str | Path | None = None,
        key: str | Path | None = None,
        name: str | None = None,
        timeout: Duration | None = None,
        tracer: Tracer | None = None,
    ) -> None:
        patience_ms = deadline_of(timeout, deadline_ms)

        def make() -> _Parts:
            session = Session(
                endpoints,
                state_dir=state_dir,
                deadline_ms=patience_ms,
                observer=observer,
                rng=rng,
                outbox_bytes_max=outbox_bytes_max,
                record=record,
                key=key,
                name=name,
                tracer=tracer,
                open_state=self._open_state,
            )
            with session.closed_if_broken_off():
                return _Parts(session, self._lead)

        self._parts = PerProcess(make, owned(state_dir, name))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._close(is_done=kind is None)

    def __reduce__(self) -> NoReturn:
        raise TypeError("a client cannot be handed to another process: make one there")

    @property
    def _session(self) -> Session:
        return self._parts.here().session

    @property
    def _operations(self) -> Operations:
        return self._session.operations

    @property
    def _readers(self) -> Readers:
        return self._operations.readers

    @property
    def endpoints(self) -> tuple[str, ...]:
        """The nodes' addresses, in the order given."""
        return self._session.endpoints

    @property
    def client_id(self) -> str:
        """The id that the cluster gave this client, "" before the first operation ever."""
        return self._session.state.client_id

    @property
    def heard_ms(self) -> float | None:
        """When a node last answered (monotonic; None: none yet). A producer's answers aside."""
        return self._session.heard_ms

    def open(self) -> None:
        """Take up this client's id at the cluster and resend the outbox; operations do it too."""
        self._run(self._operations.open())

    def close(self) -> None:
        """Close producers (they send what they have, up to the deadline), sockets and state.

        What this thread's last `get` has brought is acknowledged, unless an exception is on its
        way through here. Ctrl-C ends the waiting, and it is closed. In a process forked from the
        one that made the client: do nothing.
        """
        self._close(is_done=sys.exc_info()[0] is None)

    def _close(self, is_done: bool) -> None:
        # `with` says itself how its body ended: it may stand where another exception is handled.
        owner = this_thread()
        parts = self._parts.existing()
        if parts is None:
            return
        try:
            self._end(parts, owner, now_ms() + parts.session.deadline_ms, is_done)
        except Exception:
            raise
        except BaseException:  # ctrl-C: it waits for nobody any more, and is closed all the same
            with suppress(FlotillaError):  # others are under way: then it can be closed again
                self._shut(parts, owner, now_ms(), is_done)
            raise
        parts.session.operations.warn()

    def _end(self, parts: _Parts, owner: Owner, end_ms: float, is_done: bool) -> None:
        session = parts.session
        parts.publisher.finish(end_ms)
        words_end_ms = end_of_words(end_ms)
        try:
            self._give_back_work(words_end_ms)
            for steps in session.last_words(owner, is_done):
                try:
                    self._run(steps, words_end_ms - now_ms())
                except FlotillaError as error:
                    LOG.warning(NOT_TOLD, session.name, error)
        except Exception:  # an observer's, or a record's: it is closed all the same
            self._shut(parts, owner, end_ms, is_done)
            raise
        self._shut(parts, owner, end_ms, is_done)

    def _shut(self, parts: _Parts, owner: Owner, end_ms: float, is_done: bool) -> None:
        session = parts.session
        session.begin_closing()
        finish_all(tuple(session.producers.values()), end_ms)

        def close() -> None:
            parts.connection.close_all()
            session.close(owner, is_done)

        # Its time may be over, as it waited for answers; who is under way ends at the next look.
        self._in_turn(parts, max(end_ms, now_ms() + CLOSE_MS), close)

    def subscribe(self, topic: str, start: str | int | datetime = "new") -> SubscribeResult:
        """Subscribe durably; ids above the result's `last_id` will be delivered.

        `start`: "new": behind all that is there; "earliest": the first publication that the topic
        keeps; an id: the first to be read; a datetime: the first that was published then or later,
        by its timestamp. A subscription that stands goes on where it is, whatever
        `start` says: `seek` moves it. Raises StateRequired without a state directory, Gap where
        that id is not kept any more, and Unsupported below feature level 4 but for "new".

        A `topic` may be a pattern: `orders.*.eu` (`*`: one word between dots), `orders.>` (`>`: one
        or more, at the end). Then it is of all topics that are called so, as far as this client may
        read them: those that there are (`start` "new" or "earliest"), and each that comes later,
        from its first publication on; a PUT to such a name makes the topic. `get` and `messages`
        without a topic bring them. Takes feature level 4.
        """
        return self._run(self._session.subscribe(topic, start))

    def seek(self, topic: str, start: str | int | datetime) -> int:
        """Move the own subscription to `start`, to either side; return the id behind which it is.

        What is in hand, or was fetched, is nobody's any more; what was acknowledged may so be read
        again. Raises NotSubscribed, Gap, and as `subscribe`.
        """
        return self._run(self._session.seek(topic, start))

    def read(self, topic: str, from_id: int, max_count: int = 1) -> Delivery | None:
        """Return publications of a topic from an id on, None where it has none yet.

        No subscription is needed, and nothing moves: nothing is in hand, and nothing to be
        acknowledged. As many as one answer holds, `max_count` at most; what has expired is passed:
        then the first one has a higher id. Linearizable. Raises Gap where that id is not kept any
        more, Expired or Compacted where a thousand runs are gone one behind the other (of these,
        `details["last_id"]`: it goes on behind that), BadRequest beyond the next id, UnknownTopic.
        """
        return self._run(self._session.read(topic, from_id, max_count))

    def read_runs(self, topic: str, from_id: int, max_count: int = 1) -> list[Delivery]:
        """As `read`, with what follows in the same answer; empty where `read` is None.

        Of a compacted topic what is left stands apart, each run a delivery of its own: up to 128
        publications of those come at once. Go on behind the last one's `last_id`.
        """
        return self._run(self._session.read_runs(topic, from_id, max_count))

    def unsubscribe(self, topic: str, *, client_id: str | None = None) -> bool:
        """End a subscription; return whether there was one. Idempotent.

        With a pattern's end those of its topics that were not subscribed to by name, and are of no
        other pattern. A topic that a pattern brings is left with that alone: BadRequest.
        `client_id`: another client's, whose state directory is lost: nobody else can end it.
        """
        return self._run(self._session.unsubscribe(topic, client_id))

    def publish(
        self,
        topic: str,
        publication: Publishable,
        *,
        key: str | bytes | None = None,
        headers: Mapping[str, str | bytes] | None = None,
        expires: float | timedelta | None = None,
        deliver_after: float | timedelta | None = None,
        timeout: Duration | None = None,
        allow_unheard: bool = False,
    ) -> PutResult:
        """Publish; returns when it is on disk on a majority of the nodes.

        What other threads publish meanwhile goes out with it, in the order of the calls. `key`,
        `headers`: stored and handed over with it, as in a `Publication` (Unsupported below feature
        level 4). `expires` (seconds or a timedelta): so long after it was stored it is given to
        nobody any more (Unsupported below level 5). `deliver_after` (the same): it is stored now,
        and comes into its topic so long after, where it gets its id, among others by the order of
        due times; the result is `delayed` (Unsupported below level 5). Counters, and so what waits
        for what, are apart from those of what is published at once. `timeout` (seconds or a
        timedelta): of the whole call, every wait included; None: the client's.

        Raises NoSubscribers if nobody subscribes to the topic and no policy keeps it: then it is
        not stored, and will not be. `allow_unheard`: the result's `stored` says it instead.

        An error that is not definite (`Unavailable` never is) leaves the publication in the outbox:
        it will be sent, once and in order, before the topic's next one, by `flush`, or by the next
        process that opens this state directory. Raises TopicInUse while a producer is open.
        """
        ticket, session = Ticket(), self._session
        end_ms, unheard = session.end_ms(timeout), unheard_of(allow_unheard)
        with session.spans.publishing(topic) as span:
            own = publication_of(publication, key, headers, expires, deliver_after)
            publication = span.carried(own)
            call = session.put_one(topic, publication, end_ms, ticket.waker(), unheard)
            self._publish(ticket, [call], end_ms)
            [result] = call.results()
            span.stored(result)
        return result

    def publish_many(
        self,
        topic: str,
        publications: Sequence[Publishable],
        *,
        timeout: Duration | None = None,
        allow_unheard: bool = False,
    ) -> list[PutResult]:
        """Publish in order, packed into as few batches as possible; one result a batch.

        All of them stand in the outbox before the first is sent: all will be stored, or with a
        definite error none but the first `details["stored"]`. If the error is not definite, the
        other `details["kept"]` stay in the outbox. Those with a key, headers or an expiry are given
        as `Publication`. All else as `publish`.
        """
        ticket, session = Ticket(), self._session
        end_ms, unheard = session.end_ms(timeout), unheard_of(allow_unheard)
        with session.spans.publishing(topic) as span:
            carried = span.all_carried(publications)
            call = session.put(topic, carried, end_ms, ticket.waker(), unheard)
            self._publish(ticket, [call], end_ms)
            return call.results()

    def publish_soon(
        self,
        topic: str,
        publication: Publishable,
        *,
        key: str | bytes | None = None,
        headers: Mapping[str, str | bytes] | None = None,
        expires: float | timedelta | None = None,
        deliver_after: float | timedelta | None = None,
        timeout: Duration | None = None,
        allow_unheard: bool = False,
    ) -> Future[PutResult]:
        """Publish without waiting for the answer; the future has it, or the error of `publish`.

        The order of calls is the order of ids, that of `publish` included. A thread of the client's
        sends what is there, as much as goes into a request; callbacks of futures run in it, and
        must call nothing of this client. It waits only while 16 MiB or 100,000 publications have no
        answer; raises Overloaded at the deadline. `close` and `flush` wait for the answers.
        A future that is cancelled in time takes its publication back: it was never there.
        """
        parts = self._parts.here()
        end_ms, unheard = parts.session.end_ms(timeout), unheard_of(allow_unheard)
        with parts.session.spans.publishing(topic) as span:
            own = publication_of(publication, key, headers, expires, deliver_after)
            publication = span.carried(own)

            def make(told: Callable[[], None]) -> Call:
                return parts.session.put_one(topic, publication, end_ms, told, unheard)

            future = parts.publisher.publish(make)
            span.follow(future)
        return future

    def put(
        self,
        topic: str,
        publication: Publishable,
        *,
        key: str | bytes | None = None,
        headers: Mapping[str, str | bytes] | None = None,
        expires: float | timedelta | None = None,
    ) -> PutResult:
        """Publish; the old name of `publish`.

        Where nobody subscribes it warns (UnheardWarning), and returns `stored` False.
        """
        warn_of("put", "publish; with allow_unheard=True it raises no NoSubscribers")
        ticket = Ticket()
        session, end_ms = self._session, self._end_ms()
        publication = publication_of(publication, key, headers, expires)
        call = session.put_one(topic, publication, end_ms, ticket.waker())
        self._publish(ticket, [call], end_ms)
        [result] = call.results()
        return result

    def put_many(self, topic: str, publications: Sequence[Publishable]) -> list[PutResult]:
        """Publish in order, packed; the old name of `publish_many`, as `put` is of `publish`."""
        warn_of("put_many", "publish_many; with allow_unheard=True it raises no NoSubscribers")
        ticket = Ticket()
        session, end_ms = self._session, self._end_ms()
        call = session.put(topic, publications, end_ms, ticket.waker())
        self._publish(ticket, [call], end_ms)
        return call.results()

    def enqueue(self, topic: str, publications: Sequence[Publishable]) -> int:
        """Put publications into the outbox, all or none, and ask no node; return how many.

        They are sent, once and in order, before the topic's next publication, by `flush`, or by the
        next process that opens this state directory. Raises OutboxFull, TopicInUse.
        """
        _, steps = self._session.enqueue(topic, publications)
        return self._run(steps)

    def flush(self) -> None:
        """Send what stands in the outbox: what earlier errors left, and what was enqueued."""
        ticket, end_ms = Ticket(), self._end_ms()
        try:
            self._run(self._operations.open())
            calls = self._session.flush(end_ms, ticket.waker())
            self._publish(ticket, calls, end_ms)
            for call in calls:
                call.results()
        except FlotillaError as error:
            raise self._session.not_flushed(error) from error

    def next_counter(self, topic: str) -> int:
        """Return the counter that the topic's next publication gets."""
        return self._run(self._operations.next_counter(topic))

    def get(
        self,
        topic: str | None = None,
        wait_ms: float | None = None,
        max_count: int = 1,
        ack: Ack = "auto",
        *,
        timeout: Duration | None = None,
        idle: Duration | None = None,
    ) -> Delivery | None:
        """Return the next publications of a topic (None: of any of mine), or None if none came.

        It takes what there is. `timeout` (seconds or a timedelta): it waits for something to come,
        and the whole call ends by then; None is returned only where a node has said that there is
        none, else Unavailable is raised. `idle` instead, as in `messages`: it ends if none came for
        that long; the client's timeout, for whom no node answers, comes on top.

        What is not acknowledged comes again after a crash, with `redelivered` set. `ack`: when it
        is acknowledged.

        "auto": when this thread comes back for the topic's next, or closes the client.
        "manual": when `acknowledge` is called; before that, the next `get` returns it again.
        "at-most-once": before it is returned, so that a crash in between loses it.

        Raises AlreadyReading while another thread reads the topic, or has not acknowledged what it
        was handed.
        """
        idle_ms = idle_of(idle, "wait_ms", wait_ms)
        gets, readers = self._session.get(topic, max_count, idle_ms, timeout), self._readers
        self._session.check_open()
        reader = Reader(this_thread(), topic, ack)
        try:
            with readers.reading(reader):
                for steps, deadline_ms_max in gets:
                    delivery = readers.hand_over(reader, self._run(steps, deadline_ms_max))
                    if delivery is not None:
                        return delivery
        except BaseException:  # ctrl-C, behind the hand-over as well
            reader.is_broken_off = True
            raise
        return None

    def messages(
        self,
        topic: str | None = None,
        ack: Ack = "auto",
        idle_ms: float | None = None,
        *,
        idle: Duration | None = None,
    ) -> Messages:
        """Return an iterator over publications, one by one, that waits for more.

        It ends only if none came for `idle` (seconds or a timedelta). `ack` as in `get`: with
        "auto" each is acknowledged when the loop comes back for the next one. One that the loop was
        left with, by an exception or `break`, comes again, with `redelivered` set; inside `with
        client.messages() as messages` it is acknowledged unless an exception has left the `with`.

        Raises AlreadyReading as `get`; one loop reads a topic at a time, in one thread.
        """
        idle_ms = idle_of(idle, "idle_ms", idle_ms)
        return Messages(self, self._session.loop(topic, ack, idle_ms))

    def _fetch(self, loop: Loop) -> Delivery | None:
        for steps, _ in self._session.gets_of(loop):
            delivery = self._run(steps)
            if delivery is not None:
                return delivery
        return None

    # --- work that several clients share --------------------------------------------------------

    def make_group(
        self,
        topic: str,
        group: str,
        *,
        lease: Duration | None = None,
        max_attempts: int | None = None,
        dead_letter: str | None = None,
        ordered_by_key: bool | None = None,
        start: str | int | datetime = "new",
    ) -> int:
        """Let what is published to a topic be work for a group, as `work` does.

        A group that is there stays as it is, but for the settings that are said. Returns the id up
        to which everything is settled. `lease` (seconds or a timedelta, 30 s): how long a worker
        has a publication. What was given `max_attempts` times goes to the topic `dead_letter`,
        while somebody subscribes there; None: to the one that the topic's policy names, or
        BadRequest if it names none. 0: it is given any number of times, as at first. Raises
        Unsupported below feature level 4.

        Two things are chosen when it is made. `ordered_by_key`: publications with one key are given
        one after the other and in order, whoever gets them: the next one when the one before is
        acknowledged or a dead letter; those without a key are free. True or False where the group
        stands otherwise raises AnotherChoice; None joins it as it is. `start`: where it begins, as
        in `subscribe`; a group that stands goes on where it is. Both take feature level 5.
        """
        settings = GroupSettings.of(lease, max_attempts, dead_letter, ordered_by_key, start)
        check_group(topic, group)
        return self._run(make_group(self._operations, topic, group, settings))

    def end_group(self, topic: str, group: str) -> bool:
        """End a group, whoever works in it; return whether there was one."""
        check_group(topic, group)
        return self._run(end_group(self._operations, topic, group))

    def work(
        self,
        topic: str,
        group: str,
        *,
        lease: Duration | None = None,
        max_attempts: int | None = None,
        dead_letter: str | None = None,
        ordered_by_key: bool | None = None,
        start: str | int | datetime = "new",
        prefetch: int = PREFETCH,
        ack: WorkAck = "auto",
        idle: Duration | None = None,
    ) -> WorkItems:
        """Return an iterator over a group's publications that shares them with other clients.

        Each is leased to one client; the group is made if need be, as by `make_group`. With `ack`
        "auto" an item is acknowledged when the loop comes back for the next one, unless the body
        has said `item.ack()` or `item.nak()`; "manual": only by these. One that the loop was left
        with is given back, at once inside `with client.work(...) as items` where an exception has
        left it, else when the iterator is closed or its lease runs out.

        An item has at least half of its lease when it is handed over. A body that takes longer says
        `item.extend()`. It ends only if nothing came for `idle`; what other threads then still
        have ("manual") stays theirs. Raises AlreadyReading: one loop of a client works in a group
        at a time; with "auto", in one thread.
        """
        settings = GroupSettings.of(lease, max_attempts, dead_letter, ordered_by_key, start)
        session = self._session
        return WorkItems(
            self, session.work(topic, group, settings, ack, prefetch, idle, self._extend)
        )

    def _extend(self, item: WorkItem, lease_ms: int) -> None:
        book, end_ms = item._book, self._end_ms()
        begin_extending(item, lease_ms)
        while book.is_to_be_said(item):
            self._run(take(self._operations, book, 0, None, 0), end_ms - now_ms())
        if item.settled == "lost":
            raise lease_lost(item)

    def _say_what_is_settled(self, book: LeaseBook, end_ms: float) -> None:
        """Tell the cluster what was said so far of work that others of this client still do."""
        while book.is_unsaid:
            self._run(take(self._operations, book, 0, None, 0), end_ms - now_ms())

    def _give_back(self, book: LeaseBook, end_ms: float) -> None:
        """Tell the cluster all that is to be told of work that nobody here does any more."""
        while book.is_left:
            book.give_back()
            self._run(take(self._operations, book, 0, None, 0), end_ms - now_ms())

    def _give_back_work(self, end_ms: float) -> None:
        for book in self._session.begin_ending():
            try:
                self._give_back(book, end_ms)
            except FlotillaError as error:
                LOG.warning(NOT_GIVEN_BACK, book.group, book.topic, error)

    def acknowledge(self, topic: str, last_id: int) -> None:
        """Store that all up to `last_id` is done with; the broker hears of it with the next GET.

        Never moves back. Raises NotDelivered beyond what was handed over, NotSubscribed.
        """
        self._session.acknowledge(topic, last_id)

    def subscribers(self, topic: str) -> list[SubscriberInfo]:
        """Return a topic's subscribers: `client_id`, `cursor`, `backlog` of each."""
        return self._run(self._operations.subscribers(topic))

    def adopt(self) -> Losses:
        """Take it as it is what the cluster has lost of what it told this client; return what.

        The way on after ClusterRecovered, and after UnknownClient, which makes this a new client.
        What waits in the outbox is kept and sent, but after Forgotten: then it may be stored, and
        is returned (`Losses.unanswered`) instead. Without a loss it changes nothing. Producers have
        to be closed before (TopicInUse). Raises RecordError in a client that records: begin a new
        record behind it.
        """
        return self._run(self._session.adopt())

    def topics(self, everything: bool = False) -> list[TopicInfo]:
        """Return this client's subscriptions, or every topic (rows as in docs/protocol.md)."""
        return self._run(self._session.topics(everything))

    def patterns(self) -> list[str]:
        """Return the patterns of topics that this client subscribes to."""
        return self._run(self._operations.patterns())

    def status(self, endpoint: int | None = None) -> NodeStatus:
        """Return a node's own view of itself; `endpoint` is an index into `endpoints`."""
        return self._run(self._session.status(endpoint), STATUS_DEADLINE_MS)

    def upgrade(self, level: int | None = None) -> LevelRaised:
        """Raise the cluster's feature level to `level`; None: to the highest that any member has.

        Returns the level now and `before`. Raises NotUpgraded unless every member is connected and
        understands it. There is no way back: see "Upgrade" in docs/deploy.md.
        """
        return self._run(self._session.upgrade(level))

    def producer(
        self,
        topic: str,
        *,
        linger_ms: float = LINGER_MS,
        batch_bytes: int = BATCH_BYTES,
        in_flight_max: int = IN_FLIGHT_MAX,
    ) -> Producer:
        """Return the topic's background producer; it alone publishes to the topic until closed."""
        return self._run(self._session.producer(topic, linger_ms, batch_bytes, in_flight_max))

    # --- driving --------------------------------------------------------------------------------

    def _run(self, steps: Steps[T], deadline_ms_max: float = DEADLINE_MS_MAX) -> T:
        parts = self._parts.here()
        parts.session.check_open()
        end_ms = now_ms() + min(parts.session.deadline_ms, deadline_ms_max)

        def work() -> T:
            with parts.session.state.turn(max(0.0, end_ms - now_ms()) / 1000):
                return self._carry_out(parts, steps, end_ms)

        result = self._in_turn(parts, end_ms, work)
        parts.session.operations.warn()
        return result

    def _end_ms(self) -> float:
        return now_ms() + self._session.deadline_ms

    def _publish(self, ticket: Ticket, calls: Sequence[Call], end_ms: float) -> None:
        """Publish, joined with what other threads do: by one of them, for all."""
        if not calls:
            return
        ticket.joining, parts = calls, self._parts.here()
        try:
            self._in_turn(parts, end_ms + JOIN_MS, partial(self._lead, parts, ticket), ticket)
        except Busy:
            if all([call.leave() for call in calls]):
                raise
            for call in calls:  # it is stored, and another call takes all of its time
                call.keep(parts.session.late())
        finally:
            for call in calls:
                if not call.is_over:
                    call.leave()
        parts.session.operations.warn()

    def _lead(self, parts: _Parts, ticket: Ticket) -> None:
        """Do the work of all who publish until one's own is done; then the next one does it."""
        if ticket.is_over():
            return
        session, joined = parts.session, parts.joined
        with session.state.turn(session.deadline_ms / 1000):
            parts.settle()
            while not ticket.is_over():
                for call in parts.turns.joining():
                    if not call.is_added:
                        joined.add(call)
                if session.is_closed:
                    joined.stop(*session.closing_errors())
                elif (due_ms := joined.turn()) is None:
                    self._open_joined(parts)
                elif not ticket.is_over():
                    self._await_joined(parts, ticket, due_ms)
            joined.forget_the_left()
            parts.is_midway = False

    def _open_joined(self, parts: _Parts) -> None:
        joined, session = parts.joined, parts.session
        end_ms = joined.opening_end_ms()
        session.look = partial(self._end_late, parts, end_ms)
        try:
            self._drive(parts, session.operations.open(), end_ms)
        except FlotillaError as error:
            joined.not_opened(error)
        finally:
            session.look = _nothing

    @staticmethod
    def _end_late(parts: _Parts, opening_end_ms: float) -> None:
        """Tell those who came while the id is taken up, and have less time than that has."""
        for call in parts.turns.joining():
            if not call.is_added:
                parts.joined.add(call)
        parts.joined.end_late(opening_end_ms)

    def _await_joined(self, parts: _Parts, ticket: Ticket, due_ms: float) -> None:
        """Wait for a reply to what is joined, or for its time; in a pause for the next call too."""
        joined = parts.joined
        left_ms, endpoints = max(0.0, due_ms - now_ms()), joined.endpoints
        if endpoints:
            news = parts.connection.receive_any(endpoints, min(left_ms, LOOK_MS))
            for endpoint, reply in news:
                if isinstance(reply, str):
                    joined.lost(endpoint, reply)
                else:
                    parts.session.heard_ms = now_ms()
                    joined.replied(reply)
        else:
            ticket.woken.acquire(timeout=min(left_ms, LOOK_MS) / 1000)

    def _in_turn(
        self, parts: _Parts, end_ms: float, work: Callable[[], T], ticket: Ticket | None = None
    ) -> T:
        ticket, turns = ticket or Ticket(), parts.turns
        try:
            turns.await_turn(ticket, end_ms)
            return work()
        finally:
            turns.pop(ticket.place, None)  # the first call here: see Turns
            turns.wake()

    def _carry_out(self, parts: _Parts, steps: Steps[T], end_ms: float) -> T:
        parts.session.check_open()
        parts.settle()
        try:
            result = self._drive(parts, steps, end_ms)
        except FlotillaError:
            parts.is_midway = False
            raise
        parts.is_midway = False
        return result

    def _drive(self, parts: _Parts, steps: Steps[T], end_ms: float) -> T:
        try:
            ask = next_ask(steps, partial(next, steps))
            while True:
                try:
                    with parts.session.state.away() if ask.wait_ms else nullcontext():
                        done = self._exchange(parts, ask, end_ms)
                except FlotillaError as error:
                    ask = next_ask(steps, partial(steps.throw, error))
                else:
                    ask = next_ask(steps, partial(steps.send, done))
        except StopIteration as stop:
            result: T = stop.value
            return result
        finally:
            steps.close()  # and not when it is collected: what it had under way is over now

    def _exchange(self, parts: _Parts, ask: Ask, end_ms: float) -> Done:
        session, connection = parts.session, parts.connection
        exchange = session.exchange(ask, end_ms)
        actions = exchange.started(now_ms())
        while True:
            for action in actions:
                match action:
                    case Done():
                        return action
                    case Failed(error):
                        error = explained(error, session.endpoints, session.key is not None)
                        raise with_endpoints(error, session.endpoints)
                    case Close(endpoint):
                        connection.close(endpoint)
                        parts.joined.lost(endpoint)
                    case Pause(wait_ms):
                        self._pause(session, now_ms() + wait_ms)
                        actions = exchange.resumed(now_ms())
                    case Send():
                        session.check_going_on(ask.wait_ms > 0)
                        actions = self._send(parts, exchange, ask, action)
                    case Listen(endpoint, timeout_ms):
                        actions = self._listen(parts, exchange, ask, endpoint, timeout_ms)
                    case _:
                        assert_never(action)

    @staticmethod
    def _pause(session: Session, until_ms: float) -> None:
        session.check_going_on()
        while (left_ms := until_ms - now_ms()) > 0:
            time.sleep(min(left_ms, LOOK_MS) / 1000)
            session.check_going_on()

    def _send(self, parts: _Parts, exchange: Exchange, ask: Ask, action: Send) -> list[Action]:
        ask.request.request_id = action.request_id
        frames, until_ms = encode_request(ask.request), now_ms() + action.timeout_ms
        if not parts.connection.send(action.endpoint, frames, action.timeout_ms):
            return exchange.unsent(now_ms(), parts.connection.cause)
        return self._listen(parts, exchange, ask, action.endpoint, until_ms - now_ms())

    def _listen(
        self, parts: _Parts, exchange: Exchange, ask: Ask, endpoint: int, timeout_ms: float
    ) -> list[Action]:
        connection, until_ms = parts.connection, now_ms() + timeout_ms
        try:
            reply = connection.receive(endpoint, min(timeout_ms, LOOK_MS))
            while reply is None and connection.cause != NO_REPLY and now_ms() < until_ms:
                parts.session.check_going_on(ask.wait_ms > 0)
                reply = connection.receive(endpoint, min(until_ms - now_ms(), LOOK_MS))
        except ConnectionResetError:
            return parts.session.replied(exchange, None, CONNECTION_LOST)
        if reply is not None and not exchange.is_asked(reply):
            parts.joined.replied(reply)
        return parts.session.replied(exchange, reply, connection.cause)


class Messages(Iterator[Message]):
    """The iterator that `Client.messages` returns; as a context manager it is left in order."""

    def __init__(self, client: Client, loop: Loop) -> None:
        self._client, self._loop = client, loop

    def __next__(self) -> Message:
        """Return the next message, once there is one; "auto": the one before is acknowledged."""
        loop, readers = self._loop, self._client._readers
        if loop.has_ended:
            raise StopIteration
        try:
            reader = loop.enter(this_thread(), readers)
            while (message := readers.next_message(reader)) is None:
                if loop.has_ended:  # another thread has closed it meanwhile
                    raise StopIteration
                delivery = self._client._fetch(loop)
                if delivery is not None:
                    readers.fetched(reader, delivery)
                elif not loop.is_endless:
                    loop.has_ended = True
                    raise StopIteration
        except AlreadyReading:
            raise  # the loop may be another thread's
        except BaseException:
            loop.leave()
            raise
        loop.is_waiting = False
        return message

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if kind is None:
                self._loop.end_in_order(self._client._readers)
        finally:  # the disk may refuse the acknowledgment: the loop has ended all the same
            self.close()

    def __del__(self) -> None:
        self._loop.leave()

    def close(self) -> None:
        """End the loop; with "auto", the message in hand comes again.

        A thread that waits in it ends with its next answer, some seconds later at most.
        """
        self._loop.close()


class WorkItems(Iterator[WorkItem]):
    """The iterator that `Client.work` returns; as a context manager it is left in order."""

    def __init__(self, client: Client, loop: WorkLoop) -> None:
        self._client, self._loop = client, loop

    def __next__(self) -> WorkItem:
        """Return the next item, once there is one; "auto": the one before is acknowledged."""
        client, loop = self._client, self._loop
        if loop.is_over:
            raise StopIteration
        loop.book.check_here()
        operations, book, end_ms = client._operations, loop.book, client._end_ms()
        if not loop.has_begun:
            client._run(make_group(operations, book.topic, book.group, loop.settings))
            loop.begin(this_thread())
        loop.come_back(this_thread())
        while (item := loop.item()) is None:
            client._run(take(operations, book, *loop.wish()), end_ms - now_ms())
            end_ms = client._end_ms()
            if loop.is_at_end:
                loop.end()
                client._say_what_is_settled(book, end_ms)
                raise StopIteration
        return item

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self._end(is_done=True)
            return
        try:
            self._end(is_done=False)
        except FlotillaError as late:  # the application has its own error to look at
            LOG.warning(NOT_GIVEN_BACK, self._loop.book.group, self._loop.book.topic, late)

    def __del__(self) -> None:
        if not self._loop.is_over:
            self._loop.leave(is_done=False)

    def close(self) -> None:
        """End the loop; what it was left with, or others still have of it, is given back, now."""
        self._end(is_done=False)

    def _end(self, is_done: bool) -> None:
        if self._loop.leave(is_done):
            self._client._give_back(self._loop.book, self._client._end_ms())
