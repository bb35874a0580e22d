"""What each operation of a client does between its exchanges.

What lives here: one generator an operation. It yields an `Ask`, is sent the ACK (`Done`) or has the
error thrown in, changes the durable state in the right order and returns the result. `Client` and
`AsyncClient` drive the same generators. What must not: sockets, clocks, retries, `await`.

The order is the contract: a PUT stands in the outbox before it is asked, and an `Observer` hears of
an operation before it is asked and of its outcome before the outbox changes. What a GET has brought
goes on to the application, and moves the cursor, by way of reading.py.
"""

from __future__ import annotations

import functools
import itertools
import uuid
import warnings
from collections import deque
from collections.abc import Callable, Container, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeVar

import orjson

from flotilla_client import checks, losses, protocol
from flotilla_client.errors import (
    BY_CODE,
    AlreadyAcknowledged,
    BacklogFull,
    BadRequest,
    ClusterRecovered,
    Compacted,
    CounterGap,
    DiskFull,
    Expired,
    Fenced,
    FlotillaError,
    Forgotten,
    Gap,
    Moved,
    Purged,
    QuotaExceeded,
    Recovered,
    Refused,
    StaleRequest,
    TooLarge,
    TooMany,
    Unauthorized,
    Unavailable,
    UnheardWarning,
    UnknownClient,
    Unsupported,
)
from flotilla_client.losses import Losses
from flotilla_client.observer import Observer, Operation, Outcome, RecoveryObserver, Silent
from flotilla_client.old_names import level_of_caller
from flotilla_client.protocol import ProtocolError, Reply, Request
from flotilla_client.reading import Delivery, Readers
from flotilla_client.retry import Done, Exchange
from flotilla_client.rows import LevelRaised, NodeStatus, SubscriberInfo, TopicInfo
from flotilla_client.state import Entry, State

RESUMES_MAX: Final = 3  # each needs another process that resumes the same id at the same moment
GET_SLICE_MS: Final = 5_000  # a parked GET's dead node is noticed that much later, no more
LAST_IDS_BYTES_MAX: Final = 12 * 1024  # of one GET: its header has HEADER_BYTES_MAX
GET_SLICES_MIN: Final = 4  # in a deadline: others come to their turn; see attempt_timeout_ms
EXPIRED_RUNS_MAX: Final = 1_000  # that one `get` or `read` passes; more with the next one
# What this library knows that others may not: what it is sent is made for who asks.
KNOWN: Final[Mapping[str, Any]] = {"properties": True, "expiry": True}
KNOWN_WITH_RUNS: Final[Mapping[str, Any]] = {**KNOWN, "runs": True}
# Whoever asks, whenever: what a PUT is `too_many` of (a client's topics, ids) never gets fewer.
REFUSED_FOREVER: Final = frozenset({"too_large", "bad_request", "too_many"})


@dataclass(frozen=True, slots=True)
class Ask:
    """A request to be exchanged. `wait_ms`: how long the node may hold it. `final`: see Exchange.

    `endpoint`: the only one to ask (None: wherever the leader is). `opens`: nobody publishes before
    its answer, as it sends again what an earlier process has left. So does each REQUEST_ID.
    """

    request: Request
    wait_ms: int = 0
    final: frozenset[str] = frozenset()
    endpoint: int | None = None
    opens: bool = False


class Turn:
    """A wish of steps: TURN, to wait until no other operation of this client has the turn, and to
    have it; BACK, to give it back. What runs one at a time anyhow has it to its end.
    """


T = TypeVar("T")
TURN: Final = Turn()
BACK: Final = Turn()
Steps = Generator[Ask | Turn, Any, T]  # is sent the Done of an Ask


def next_ask(steps: Steps[T], step: Callable[[], Ask | Turn]) -> Ask:
    """Return what steps ask next, where they have the turn."""
    wish = step()
    while isinstance(wish, Turn):
        wish = steps.send(None)
    return wish


@dataclass(frozen=True, slots=True)
class SubscribeResult:
    """`last_id`: only later ids will be delivered. `resumed`: was subscribed already.

    Of a pattern `last_id` is 0, and `topics` {topic: the same of it} are those that there are now.
    """

    last_id: int
    resumed: bool
    topics: Mapping[str, int] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, slots=True)
class PutResult:
    """`id` of the first of `count` publications, 0 without one. `duplicate`: the broker had them.

    `stored`: True: they stand on a majority of the nodes until every subscriber has them. False:
    they are gone, as nobody subscribes to the topic. None: they are duplicates of what the broker
    took so long ago that it no longer knows which. `delayed`: they wait, and have no id before they
    are due (`id` 0).
    """

    id: int
    count: int
    duplicate: bool
    stored: bool | None
    delayed: bool = False


_UNHEARD: Final = Operation(0, "", "put", "")  # every PUT, where nobody hears of any


def new_nonce() -> str:
    """Return a name that no other process has."""
    return uuid.uuid4().hex


class Operations:
    """The operations of one client on its state. `new_nonce()`: a name no other process has."""

    def __init__(
        self,
        state: State,
        observer: Observer,
        new_nonce: Callable[[], str] = new_nonce,
        name: str = "",
    ) -> None:
        self.state = state
        self._is_heard = type(observer) is not Silent
        self._name = name  # by which the cluster knows this client; "": by the id that it gives
        self._observer = observer
        self._new_nonce = new_nonce
        self._is_open = False  # for this object; the state knows whether for anybody
        self._numbers = itertools.count(1)  # also counts for producers' threads
        self._told: dict[str, int] = {}  # cursors that the broker has been told
        self.readers = Readers(state, observer, self._told)
        self._gone: dict[str, int] = {}  # up to where the application was told what is gone
        # By topic what an answer has brought behind what is compacted away, to be given next, each
        # with the first id of what is gone in front of it.
        self._behind: dict[str, deque[tuple[int, Delivery]]] = {}
        self._unheard: set[str] = set()  # topics in which something was not stored, ever
        self._warn_of: deque[str] = deque()  # of those, what the application has not been told
        self.topics_under_way: Container[str] = ()  # whose outbox is being sent by somebody else
        self.resending = ""  # the topic whose outbox is being sent by an opening
        self.resent: Callable[[], object] = lambda: None  # called when that is over
        self.taken_up: Callable[[], object] = lambda: None  # called when that is: the epoch is new
        self._openings = 0  # of which the newest may say so
        # What opening waits for: the id is taken up, or what waited in the outbox sent again.
        self.opening: Exchange | None = None

    # --- opening --------------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        """Whether this client's id has been taken up, and its outbox sent again."""
        return self._is_open and self.state.is_open

    def open(self) -> Steps[None]:
        """Take up this client's id (or get a first one), then resend the outbox."""
        if self.is_open:
            return
        yield TURN
        if not self.state.is_open:
            yield from self._take_up()
        self._is_open = True
        yield from self._recover()
        yield BACK

    def adopt(self) -> Steps[Losses]:
        """Take it as it is what the cluster has lost of what it told this client; return what.

        One that the cluster does not know at all becomes a new client of it. What waits in the
        outbox is kept in either case, and sent; but not by one that the cluster has forgotten, as
        it may be stored.
        """
        self.reopen()
        try:
            lost = yield from self._take_up(adopts=True)
        except UnknownClient as error:
            # First its new id: if nobody gives it one, it has let go of nothing yet.
            first = yield from self._first()
            lost = self._become_another(isinstance(error, Forgotten))
            self._taken_up(first)
        self._is_open = True
        self._told.clear()
        try:
            yield from self._recover()
        except Unavailable:
            if not lost:
                raise
            # What is lost is told now or never; what waits goes first with the next operation.
            self._is_open = False
        return lost

    def _become_another(self, is_forgotten: bool) -> Losses:
        """Have no id any more, nor subscriptions; return what that costs."""
        state = self.state
        cursors = state.cursors()
        self._forget(cursors)
        if is_forgotten:
            unanswered = state.begin_anew()
            return Losses({}, {}, tuple(cursors), is_unknown=True, unanswered=unanswered)
        acknowledged = state.acknowledged_counters()
        publications = {topic: last for topic, last in acknowledged.items() if last}
        state.renew()
        return Losses(publications, {}, tuple(cursors), is_unknown=True)

    def _take_up(self, adopts: bool = False) -> Steps[Losses]:
        """Take up this client's id, or get a first one. Raises ClusterRecovered."""
        state = self.state
        try:
            done = yield from self._request_id()
        except UnknownClient as error:
            raise error if adopts else self._foreign(error) from error
        body = done.reply.body
        lost = losses.found(state.acknowledged_counters(), state.had(), body, state.patterns())
        if lost and not adopts:
            raise self._put_back(lost)
        if lost:
            kept = {topic: last_id for topic, (last_id, _) in lost.deliveries.items()}
            state.lower(lost.publications, kept, lost.subscriptions)
            self._forget((*kept, *lost.subscriptions))
        self._taken_up(done)
        return lost

    def _taken_up(self, done: Done) -> None:
        """Store who the broker says this client is.

        What a process before, of the same name, was handed, nobody knows: it may be all there was.
        """
        self.opening = None
        self._behind.clear()
        state, body = self.state, done.reply.body
        is_first = bool(self._name) and not state.client_id
        subscriptions, placed = body.get("subscriptions", {}), body.get("placed", {})
        patterns = body.get("patterns", {})
        heard = {*state.cursors()} if patterns else set[str]()
        recovery = body.get("recovery")  # a node of version 0.1 does not say
        if recovery is not None and isinstance(self._observer, RecoveryObserver):
            self._observer.on_taken_up(recovery)
        # Before it is stored: whoever is broken off behind that has nothing left to do.
        self.taken_up()
        if recovery not in (None, state.recovery):
            self.readers.fetch_anew()
            self._told.clear()  # perhaps it has lost what it was told
        ends, handed = body.get("ends", {}), dict[str, int]()
        if is_first:
            handed = {topic: ends.get(topic, protocol.INTEGER_MAX) for topic in subscriptions}
        state.resumed(
            body["client_id"],
            body["epoch"],
            body.get("sequence") or 0,
            body.get("counters", {}),
            subscriptions,
            placed,
            patterns,
            handed,
            recovery,
        )
        for topic in sorted(subscriptions.keys() - heard):
            if any(protocol.matches(pattern, topic) for pattern in patterns):
                at = placed.get(topic, 0)
                self._record_brought(topic, subscriptions[topic], at, _by(done))

    def _forget(self, topics: Iterable[str]) -> None:
        """Let nobody acknowledge, by coming back, what has other ids now or none."""
        for topic in topics:
            self.readers.forget(topic)

    def reopen(self) -> None:
        """Take up the id anew before the next operation: the new epoch fences what is under way."""
        self.state.reopen()

    def _request_id(self) -> Steps[Done]:
        """Resume with a sequence that is stored before it is sent, and a nonce of this process.

        The nonce is not stored: a process that starts after a crash takes a later sequence, and a
        copy of the state directory must not be taken for a retry of the original.
        """
        if not self.state.client_id:
            return (yield from self._first())
        for attempt in range(1, RESUMES_MAX + 1):
            body = {
                "sequence": self.state.next_sequence(),
                "nonce": self._new_nonce(),
                "recovery": self._recovery_met(),
            }
            request = replace(self.request(protocol.REQUEST_ID, "", body), epoch=None)
            try:
                done: Done = yield Ask(request)
                return done
            except StaleRequest as error:
                if attempt == RESUMES_MAX:
                    raise
                self.state.raise_sequence(error.details["expected"] - 1)
        raise AssertionError(RESUMES_MAX)

    def _first(self) -> Steps[Done]:
        """Get a first id; or take up, or make, the client of the own name.

        Another process may have made it meanwhile (BadRequest), or asked for more than this one
        knows of (StaleRequest): then it is asked again, each time in another's way.
        """
        if not self._name:
            first: Done = yield Ask(Request(protocol.REQUEST_ID, "", "", "", None, {}))
            return first
        for attempt in range(1, RESUMES_MAX + 1):
            body = {"sequence": self.state.next_sequence(), "nonce": self._new_nonce()}
            body |= {"create": True}
            try:
                done: Done = yield Ask(Request(protocol.REQUEST_ID, "", "", self._name, None, body))
                return done
            except StaleRequest as error:
                if attempt == RESUMES_MAX:
                    raise
                self.state.raise_sequence(error.details["expected"] - 1)
            except BadRequest:
                if attempt == RESUMES_MAX:
                    raise
        raise AssertionError(RESUMES_MAX)

    def _recovery_met(self) -> str:
        """Return the last recovery that this client has met, "" if none.

        A directory of before clients stored it: its epoch tells whether there was one. A name that
        no recovery has makes the broker vouch for nothing but its own cursors.
        """
        if self.state.recovery is not None:
            return self.state.recovery
        return "" if self.state.epoch < protocol.EPOCHS_A_RECOVERY else "unknown"

    def _put_back(self, lost: Losses) -> ClusterRecovered:
        directory = self.state.directory
        command = f"flotilla --state {directory} adopt" if directory else "Client.adopt()"
        message = (
            "the cluster was recovered from one node's data, or its data put back, and has lost"
            f" what it told this client: {'; '.join(lost.sentences())}. `{command}` takes that as"
            " it is"
        )
        details = lost.details() | {"directory": str(directory or "")}
        return ClusterRecovered(message, details=details)

    def _foreign(self, error: UnknownClient) -> UnknownClient:
        where = self.state.directory or "in memory"
        if isinstance(error, Forgotten):
            message = (
                f"{error.message}. `adopt` makes this state ({where}) a new client's; what waits in"
                " its outbox may be stored, and is not sent again by itself"
            )
            return Forgotten(message, definite=error.definite, details=error.details)
        message = (
            f"{error.message}: this state ({where}) belongs to another cluster, or the cluster was"
            " emptied, or recovered from a node that had not heard of it; use another state"
            " directory (on the command line: --state DIR), or `adopt` makes this one a new"
            " client's, with what waits in its outbox"
        )
        return UnknownClient(message, definite=error.definite, details=error.details)

    def _recover(self) -> Steps[None]:
        """Resend what an earlier process left without an answer.

        A topic that is full, a quota that is used up, a permission that is gone, or a cluster that
        takes no properties yet, must not keep this client from anything else: it stays in the
        outbox, and the topic's next publication or `flush` sends it first and reports.
        """
        final = frozenset({BacklogFull.CODE, DiskFull.CODE, QuotaExceeded.CODE})
        self._openings += 1
        number = self._openings
        try:
            for topic in self.state.topics_waiting():
                if topic in self.topics_under_way:
                    continue
                self.resending = topic
                try:
                    for entry in self.state.outbox(topic):
                        yield from self._resend(entry, final)
                except (BacklogFull, DiskFull, QuotaExceeded, Unauthorized, Unsupported):
                    continue
                finally:
                    if number == self._openings:  # a closed event loop's ends when it is collected
                        self.resending = ""
                        self.resent()
        finally:
            self.opening = None

    # --- subscriptions --------------------------------------------------------------------------

    def subscribe(self, topic: str, start: str | int = protocol.NEW) -> Steps[SubscribeResult]:
        """SUB to a topic, or to a pattern; the cursor stands before this returns."""
        check_topic(topic)
        if self.state.cursor(topic) is None:
            check_subscribed(topic)
        yield from self.opened()
        body: dict[str, Any] = {"sequence": self.state.next_sequence()}
        if start != protocol.NEW:
            body["start"] = start
        operation = self.invoke("sub", topic, start=start)
        done = yield from self.observed(operation, Ask(self.request(protocol.SUB, topic, body)))
        if "pattern" in done.reply.body:
            return self._followed(operation, done)
        cursor, resumed = done.reply.body["last_id"], bool(done.reply.body.get("resumed"))
        placed = done.reply.body.get("placed", 0)
        is_moved = placed != self.state.placed(topic)
        with _carried_out():
            last_id = cursor if is_moved else max(cursor, self.state.cursor(topic) or 0)
            self.complete(operation, done, last_id=last_id, resumed=resumed, cursor=cursor)
            if is_moved:
                self._place(topic, last_id, placed)
            else:
                self.state.raise_cursor(topic, last_id)
        return SubscribeResult(last_id, resumed)

    def seek(self, topic: str, start: str | int) -> Steps[int]:
        """SEEK; the cursor stands there before this returns; return the id behind which it reads.

        On record it is an UNSUB and a SUB at once: what is read from here on is another reading.
        """
        check_topic(topic)
        yield from self.opened()
        body = {"sequence": self.state.next_sequence(), "start": start}
        operations = self.invoke("unsub", topic), self.invoke("sub", topic, start=start)
        try:
            done = yield from self.asked(Ask(self.request(protocol.SEEK, topic, body)))
        except FlotillaError as error:
            for operation in operations:
                self.failed(operation, error)
            raise
        cursor: int = done.reply.body["last_id"]
        with _carried_out():
            self.complete(operations[0], done)
            self.complete(operations[1], done, last_id=cursor, resumed=False, cursor=cursor)
            self._place(topic, cursor, done.reply.body["placed"])
        return cursor

    def _place(self, topic: str, cursor: int, placed: int, durable: bool = True) -> None:
        """Go on where a subscription was placed, unless that is known already."""
        if self.state.place(topic, cursor, placed, durable):
            self.readers.forget(topic)
            self._behind.pop(topic, None)
            self._told.pop(topic, None)
            self._gone.pop(topic, None)

    def unsubscribe(self, topic: str) -> Steps[bool]:
        """UNSUB, of a pattern with all that it alone has brought; return whether there was one."""
        check_topic(topic)
        yield from self.opened()
        own = [name for name in self.state.cursors() if _is_of(topic, name)]
        operations = [self.invoke("unsub", name) for name in (topic, *own)]
        body = {"sequence": self.state.next_sequence()}
        try:
            done = yield from self.asked(Ask(self.request(protocol.UNSUB, topic, body)))
        except FlotillaError as error:
            for operation in operations:
                self.failed(operation, error)
            raise
        kept = done.reply.body.get("topics", own)
        with _carried_out():
            for operation in operations:
                if operation.topic in kept:
                    message = f"{operation.topic} is subscribed to by its name, or another pattern"
                    self.failed(operation, BadRequest(message))
                else:
                    self.complete(operation, done)
                    self._drop(operation.topic)
            self.state.wait_for_changes()  # once: a pattern may have brought a thousand topics
            if topic in self.state.patterns():
                self.state.unfollow(topic)
        return bool(done.reply.body.get("was_subscribed"))

    def _drop(self, topic: str) -> None:
        self.state.drop_cursor(topic, durable=False)
        self.readers.forget(topic)
        self._behind.pop(topic, None)
        self._told.pop(topic, None)

    # --- patterns -------------------------------------------------------------------------------

    def _followed(self, operation: Operation, done: Done) -> SubscribeResult:
        """Store a subscription to a pattern, and where it says that those to its topics stand."""
        body, resumed = done.reply.body, bool(done.reply.body.get("resumed"))
        with _carried_out():
            self.complete(operation, done, last_id=0, resumed=resumed, cursor=0)
            self.state.follow(operation.topic, body["pattern"])
            for topic, cursor in body["topics"].items():
                self._bring(topic, cursor, body["placed"].get(topic, 0), _by(done), durable=False)
            self.state.wait_for_changes()  # once for all: there may be a thousand
        return SubscribeResult(0, resumed, body["topics"])

    def patterns(self) -> Steps[list[str]]:
        """Return the patterns that this client subscribes to."""
        yield from self.opened()
        return sorted(self.state.patterns())

    def _bring(self, topic: str, cursor: int, placed: int, by: _By, durable: bool = True) -> None:
        """Store a subscription that a pattern has brought, unless it is known already."""
        if self.state.cursor(topic) is None or self.state.placed(topic) != placed:
            self._record_brought(topic, cursor, placed, by)
        if placed:
            self._place(topic, cursor, placed, durable)
        else:
            self.state.raise_cursor(topic, cursor, durable)

    def _record_brought(self, topic: str, cursor: int, placed: int, by: _By) -> None:
        """Have it on record as a SUB, which would be answered so: it is owed what comes behind.

        One that was placed begins elsewhere than at the end: what was read before may come again.
        """
        operation = self.invoke("sub", topic, start=cursor + 1 if placed else protocol.NEW)
        outcome = Outcome(*by, topic=topic, last_id=cursor, resumed=True, cursor=cursor)
        self._observer.on_complete(operation, outcome)

    def _heard_of(
        self, topic: str, cursor: int, placed: int, patterns: Mapping[str, int], by: _By
    ) -> bool:
        """Take note of a topic that an answer names first; return whether that is so.

        `patterns`: those when it was asked for. If others stand by now it is of before.
        """
        if self.state.cursor(topic) is not None or patterns != self.state.patterns():
            return False
        if not any(protocol.matches(pattern, topic) for pattern in patterns):
            return False
        self._bring(topic, cursor, placed, by)
        return True

    # --- publishing -----------------------------------------------------------------------------

    def enqueue(self, topic: str, batches: Sequence[tuple[bytes, bytes]]) -> int:
        """Put batches into the outbox, and ask nobody; return how many publications they hold."""
        entries = self.state.enqueue(topic, batches, provisional=not self.state.is_open)
        return sum(entry.count for entry in entries)

    def next_counter(self, topic: str) -> Steps[int]:
        """Return the counter that the topic's next publication gets."""
        check_topic(topic)
        yield from self.opened()
        return self.state.counter(topic) + 1

    def put_request(self, entry: Entry) -> Request:
        """Return the request that stores an entry of the outbox."""
        body = {"counter": entry.counter, "count": entry.count}
        (client_id, epoch), topic = self.state.identity, protocol.topic_of(entry.topic)
        data = entry.lengths, entry.data
        return Request(protocol.PUT, "", topic, client_id, epoch or None, body, *data)

    def invoke_put(self, entry: Entry) -> Operation:
        """Record that an entry of the outbox is about to be sent."""
        return self.invoke("put", entry.topic, entry=entry) if self._is_heard else _UNHEARD

    def stored(
        self,
        operation: Operation,
        entry: Entry,
        done: Done,
        note: Callable[[PutResult], None] = lambda result: None,
        warns: Callable[[], bool] = lambda: True,
    ) -> PutResult:
        """Record the ACK of a PUT, let `note` hear of the result, and forget the entry.

        `warns()`: whether a warning has to say it if it was not stored.
        """
        body, count = done.reply.body, entry.count
        stored, is_delayed = _was_stored(body), bool(body.get("delayed"))
        id_, is_duplicate = 0 if is_delayed else body["id"], bool(body.get("duplicate"))
        result = PutResult(id_, count, is_duplicate, stored, is_delayed and stored is not False)
        if stored is False and warns():
            self._warn_once(protocol.topic_of(entry.topic))
        # On record what is delayed has its place, as if it stood in a topic of its own.
        if self._is_heard:
            said = {"first_id": body["id"], "count": count, "duplicate": is_duplicate}
            self.complete(operation, done, **said)
        note(result)
        self.state.acknowledged(entry)
        return result

    def _warn_once(self, topic: str) -> None:
        if topic not in self._unheard:
            self._unheard.add(topic)
            self._warn_of.append(topic)

    def warn(self) -> None:
        """Issue the warnings that are due, one a topic and client. In the application's thread."""
        while self._warn_of:
            topic = self._warn_of.popleft()
            message = f"nobody subscribes to {topic!r}: what is published there is not stored"
            warnings.warn(UnheardWarning(message), stacklevel=level_of_caller())

    def _resend(self, entry: Entry, final: frozenset[str]) -> Steps[PutResult]:
        operation = self.invoke_put(entry)
        try:
            ask = Ask(self.put_request(entry), final=final, opens=True)
            done = yield from self.asked(ask)
        except FlotillaError as error:
            if isinstance(error, Unavailable):
                error.definite = False  # it stays in the outbox, so it will happen
            self.failed(operation, error)
            if isinstance(error, TooMany):  # so of what follows it takes none
                error.details["withdrawn"] = self.state.withdraw(entry)
            elif error.code in REFUSED_FOREVER:
                error.details["withdrawn"] = self.state.remove(entry)
            raise
        return self.stored(operation, entry, done)

    # --- reading --------------------------------------------------------------------------------

    def get(
        self, topic: str | None, wait_ms: int, max_count: int, in_loop: bool = False
    ) -> Steps[Delivery | None]:
        """GET; nobody has it in hand before `readers` has handed it over.

        `in_loop`: over messages, which a loop is given from one answer until it has all of them. So
        it takes several runs of one, too. Who asks by hand is asked for each time: what he is given
        is no older than his call.

        Who was told what is gone and comes back goes on behind it: a process that dies in between
        is told again. What has expired, or is compacted away, is passed at once: nobody waits for
        it.
        """
        if topic is not None:
            check_topic(topic)
        yield from self.opened()
        self.go_on_behind_what_is_gone()
        if in_loop and (next_run := self._next_run(topic, max_count)) is not None:
            return next_run
        for _ in range(EXPIRED_RUNS_MAX):
            try:
                return (yield from self._get(topic, wait_ms, max_count, in_loop))
            except (Expired, Compacted) as error:
                if "last_id" in error.details:
                    self.readers.pass_over(error.details["topic"], error.details["last_id"])
        return None

    def _get(
        self, topic: str | None, wait_ms: int, max_count: int, in_loop: bool
    ) -> Steps[Delivery | None]:
        """GET once."""
        body, told = self._position(topic)
        body |= {
            "max_count": max_count,
            "wait_ms": wait_ms,
            **(KNOWN_WITH_RUNS if in_loop else KNOWN),
        }
        had, patterns = ({}, {}) if topic else (self.state.cursors(), self.state.patterns())
        placed = {name: self.state.placed(name) for name in (had if topic is None else (topic,))}
        operation = self.invoke(
            "get", topic or "", last_id=body.get("last_id"), max_count=max_count
        )
        ask = Ask(self.request(protocol.GET, topic or "", body), wait_ms)
        try:
            done = yield from self.asked(ask)
        except (Purged, Gap, Expired, Compacted) as error:
            self._told |= told  # it says what is gone when it has taken note of them
            if self._note_gone(operation, error, had, patterns):
                raise
            return None
        except (Moved, AlreadyAcknowledged) as error:
            self.failed(operation, error)
            if self._stands_ahead(error, placed):
                raise
            return None
        except FlotillaError as error:
            self.failed(operation, error)
            raise
        self._told |= told
        if "cursor" in (body := done.reply.body):
            name, cursor, at = body["topic"], body["cursor"], body["placed"]
            if self._heard_of(name, cursor, at, patterns, _by(done)):
                had[name], placed[name] = cursor, at
        delivery, behind = self._news(done.reply, placed)
        besides = [(self._beside(operation), self._beside(operation)) for _ in behind]
        passed_id, sent_id = 0, body.get("id") or 0
        if "passed" in body:
            operation, passed_id = self._pass(operation, done, had, placed)
        if delivery is None:
            named = body.get("topic") or operation.topic
            self.complete(operation, done, topic=named, count=0, first_id=sent_id or None)
        else:
            asked_with = self._asked_with(delivery.topic, sent_id - 1, had)
            self.complete(operation, done, **_brought(delivery), **asked_with)
        if delivery is not None and behind:
            self._note_behind(done, delivery, zip(behind, besides, strict=True))
        if passed_id:
            self.readers.pass_over(body["topic"], passed_id)
        return delivery

    def _stands_ahead(self, error: Moved | AlreadyAcknowledged, placed: Mapping[str, int]) -> bool:
        """Go on where a subscription stands; return whether the application has to hear it first.

        What was moved stands where its application has sought. Else it was ended with its topic,
        and a pattern has brought that again; or its client's id was used by hand. Who comes back
        goes on from there, as a process that begins does. `placed`: by which entries subscriptions
        were placed when it was asked.
        """
        topic, cursor = error.details.get("topic"), error.details["cursor"]
        if isinstance(error, Moved):
            self._place(error.details["topic"], cursor, error.details["placed"])
            return False
        if topic is None:  # of an older node: nothing says which it is
            return True
        is_moved = placed.get(topic, 0) != self.state.placed(topic)
        if is_moved or (self.state.cursor(topic) or 0) >= cursor:
            return False  # another thread has sought, or got further, since it was asked
        self._gone[topic] = cursor
        return True

    def _note_behind(
        self,
        done: Done,
        delivery: Delivery,
        behind: Iterable[tuple[Delivery, tuple[Operation, Operation]]],
    ) -> None:
        """Keep what an answer has brought behind what is compacted away, for the next calls.

        On record each part is two operations, as what follows what is gone always is. No request
        has said what they ask with: nobody has what came before them yet.
        """
        topic, last_id = delivery.topic, delivery.last_id
        runs = self._behind[topic] = deque()
        for run, (told, rest) in behind:
            first_id, gone_id = last_id + 1, run.first_id - 1
            gone = _gone(done, Compacted.CODE, topic, first_id, gone_id)
            self.failed(told, gone, cursor=last_id, is_unsaid=True)
            self.complete(rest, done, **_brought(run), cursor=gone_id, is_unsaid=True)
            runs.append((first_id, run))
            last_id = run.last_id

    def begin_loop(self) -> None:
        """Have a new loop over messages ask: what an earlier one has left is older than it."""
        self._behind.clear()

    def _next_run(self, topic: str | None, max_count: int) -> Delivery | None:
        """Return what an answer has brought besides, if this subscriber has come to it by now.

        Who stands elsewhere, or wants fewer at once, asks anew.
        """
        name = next(iter(self._behind), "") if topic is None else topic
        if not (runs := self._behind.get(name)):
            return None
        first_id, run = runs.popleft()
        place = self.state.cursor(name), self.state.placed(name)
        if place != (first_id - 1, run.placed) or len(run.publications) > max_count:
            self._behind.pop(name, None)
            return None
        if not runs:
            self._behind.pop(name, None)
        self.readers.pass_over(name, run.first_id - 1)
        return run

    def tell(self) -> Steps[None]:
        """Tell the cluster what is acknowledged, by GETs whose answers nobody is handed."""
        self._behind.clear()
        for _ in range(0, len(self.state.cursors()), protocol.ANY_TOPIC_COUNT_MAX):
            cursors = self.state.cursors()
            if any(self._told.get(topic) != cursor for topic, cursor in cursors.items()):
                yield from self.get(None, 0, 1)

    def _note_gone(
        self,
        operation: Operation,
        error: Purged | Gap | Expired | Compacted,
        had: dict[str, int],
        patterns: Mapping[str, int],
    ) -> bool:
        """Note what a GET was told is gone; return whether the application has yet to hear it."""
        topic, start = error.details["topic"], error.details["first_id"] - 1
        if self._heard_of(topic, start, 0, patterns, _by(error)):
            had[topic] = start
        if self._is_old(error):
            self.failed(operation, error)
            return False
        self.failed(operation, error, **self._asked_with(topic, start, had))
        if not isinstance(error, Expired | Compacted):
            self._gone[error.details["topic"]] = error.details["last_id"]
        return True

    def _pass(
        self, operation: Operation, done: Done, had: dict[str, int], placed: Mapping[str, int]
    ) -> tuple[Operation, int]:
        """Take note of what an answer says is gone in front of what it brings.

        The operation ends with that. Return the one that brings the rest, and up to which id this
        subscriber passes it then (0: it does not). Both began when the request was sent; the second
        one asks behind what is gone.
        """
        details = done.reply.body["passed"]
        topic, start, gone_id = details["topic"], details["first_id"] - 1, details["last_id"]
        error = _gone(done, details["error"], topic, start + 1, gone_id)
        is_old = self._is_old(error)
        is_said = operation.topic and not is_old
        rest = self._beside(operation, gone_id if is_said else operation.last_id)
        self.failed(operation, error, **({} if is_old else self._asked_with(topic, start, had)))
        if is_old or placed.get(topic, 0) != self.state.placed(topic):
            return rest, 0
        if topic in had:
            had[topic] = gone_id
        return rest, gone_id

    def _beside(self, operation: Operation, last_id: int | None = None) -> Operation:
        """Record that what an answer tells or brings besides was asked with the same request."""
        number = next(self._numbers)
        beside = replace(operation, number=number, beside=operation.number, last_id=last_id)
        self._observer.on_invoke(beside)
        return beside

    def _is_old(self, error: Purged | Gap | Expired | Compacted) -> bool:
        """Return whether this subscriber has all that is gone; what it has not is left in it.

        The broker may be behind: then it is told.
        """
        topic, details = error.details["topic"], error.details
        cursor = self.state.cursor(topic) or 0
        if cursor < details["last_id"]:
            details["first_id"] = max(details["first_id"], cursor + 1)
            if "missed" in details:
                details["missed"] = details["last_id"] + 1 - details["first_id"]
            return False
        self._told.pop(topic, None)
        del details["first_id"], details["last_id"]
        return True

    def go_on_behind_what_is_gone(self) -> None:
        """Move the cursor over what the application was told is gone: it has come back, or left."""
        for topic in tuple(self._gone):
            self.readers.pass_over(topic, self._gone.pop(topic, 0))  # another thread may have

    def _position(self, topic: str | None) -> tuple[dict[str, Any], dict[str, int]]:
        """Return the body's part that says what this subscriber has, and the cursors in it.

        More topics than fit: those that the broker knows already stay out, as their cursors
        there are the same.
        """
        cursors = self.state.cursors()
        if topic is not None:
            told = {topic: cursors[topic]} if topic in cursors else {}
            body: dict[str, Any] = {"last_id": cursors.get(topic)}
            if placed := self.state.placed(topic):
                body["placed"] = placed
            return body, told
        news_first = sorted(cursors, key=lambda name: self._told.get(name) == cursors[name])
        told, placed_by = {}, dict[str, int]()
        left_bytes = LAST_IDS_BYTES_MAX
        for name in news_first[: protocol.ANY_TOPIC_COUNT_MAX]:
            left_bytes -= len(orjson.dumps({name: cursors[name]}))
            if left_bytes < 0:
                break
            told[name] = cursors[name]
            if at := self.state.placed(name):
                left_bytes -= len(orjson.dumps({name: at}))
                placed_by[name] = at
        return {"last_ids": told} | ({"placed": placed_by} if placed_by else {}), told

    def _asked_with(self, topic: str, start: int, had: Mapping[str, int]) -> dict[str, Any]:
        """Return what an outcome says of what the client had; the answer begins at `start`.

        If the topic did not fit into the request, and the broker had less, it says that as well.
        """
        cursor = had.get(topic)
        is_unsaid = cursor is not None and start < cursor and self._told.get(topic) != cursor
        return {"cursor": cursor, "is_unsaid": is_unsaid}

    def _news(
        self, reply: Reply, placed: Mapping[str, int]
    ) -> tuple[Delivery | None, list[Delivery]]:
        """Return what a GET brought, without what this subscriber has already, and its other runs.

        `placed`: by which entry each subscription was placed when it was asked for.
        """
        if not reply.body.get("count"):
            return None, []
        first_id, topic = reply.body["id"], reply.body["topic"]
        at = placed.get(topic, 0)
        if at != self.state.placed(topic):
            return None, []  # the subscription was moved meanwhile
        delivery, *behind = _delivered(reply, at)
        known = max(0, (self.state.cursor(topic) or 0) + 1 - first_id)
        if known >= len(delivery.publications):
            self._told.pop(topic, None)  # the broker does not know, so it is told again
            return None, []
        return delivery.since(first_id + known, 0) if known else delivery, behind

    def read(
        self, topic: str, from_id: int, max_count: int, known: Mapping[str, Any] = KNOWN
    ) -> Steps[list[Delivery]]:
        """READ, by nobody in particular; it moves nothing, and nothing is in hand.

        From the first on that has not expired, and is not compacted away. `known`: with it one
        run, `KNOWN_WITH_RUNS`: as many as one answer holds.
        """
        check_topic(topic)
        runs = 0
        while True:
            body = {"from_id": from_id, "max_count": max_count, **known}
            try:
                done = yield Ask(Request(protocol.READ, "", topic, body=body))
            except (Expired, Compacted) as error:
                runs += 1
                if runs == EXPIRED_RUNS_MAX:
                    raise
                from_id = error.details["last_id"] + 1
                continue
            reply: Reply = done.reply
            return _delivered(reply, 0) if reply.body.get("count") else []

    def subscribers(self, topic: str) -> Steps[list[SubscriberInfo]]:
        """TOPICS of one topic's subscribers, by nobody in particular."""
        check_topic(topic)
        rows: list[dict[str, Any]] = []
        more = True
        while more:
            after = rows[-1]["client_id"] if rows else ""
            body = {"all": True, "subscribers": True, "after": after}
            done = yield Ask(Request(protocol.TOPICS, "", topic, body=body))
            news = done.reply.body.get("subscribers", [])  # a node of 0.1 answers with topics
            rows += news
            more = bool(news) and bool(done.reply.body.get("more"))
        return [SubscriberInfo.of(row) for row in rows]

    def end_subscription(self, topic: str, client_id: str) -> Steps[bool]:
        """UNSUB in another client's name, as by hand: its own process need not exist any more."""
        if client_id == self.state.client_id:
            return (yield from self.unsubscribe(topic))
        done = yield Ask(Request(protocol.UNSUB, "", topic, client_id))
        return bool(done.reply.body.get("was_subscribed"))

    def topics(self, everything: bool) -> Steps[list[TopicInfo]]:
        """TOPICS; the client's own with its own cursors, which the broker may not know yet.

        With `everything` the request names no client, so it needs no session: before one is open
        the stored epoch is the previous process's.
        """
        if everything:
            pages = self._topic_pages(Request(protocol.TOPICS, ""), {"all": True})
            return [TopicInfo.of(row) for row in (yield from pages)]
        yield from self.opened()
        cursors, rows = self.state.cursors(), []
        for row in (yield from self._topic_pages(self.request(protocol.TOPICS, "", {}), {})):
            cursor = max(row["cursor"], cursors.get(row["topic"], 0))
            backlog = max(0, row["last_id"] - cursor)
            rows.append(TopicInfo.of(row | {"cursor": cursor, "backlog": backlog}))
        return rows

    def _topic_pages(self, request: Request, body: dict[str, Any]) -> Steps[list[dict[str, Any]]]:
        rows: list[dict[str, Any]] = []
        more = True
        while more:
            after = rows[-1]["topic"] if rows else ""
            done = yield from self.asked(Ask(replace(request, body=body | {"after": after})))
            rows += done.reply.body["topics"]
            more = bool(done.reply.body.get("more"))
        return rows

    def status(self, endpoint: int | None) -> Steps[NodeStatus]:
        """STATUS of the node at an endpoint, or of the one that is asked first."""
        done = yield Ask(Request(protocol.STATUS, ""), endpoint=endpoint)
        said = {"node": done.reply.node, "leader": done.reply.leader, **done.reply.body}
        return NodeStatus.of(said)

    def upgrade(self, level: int | None) -> Steps[LevelRaised]:
        """UPGRADE; it is answered by the leader, whichever node is asked."""
        body = {} if level is None else {"level": level}
        done: Done = yield Ask(Request(protocol.UPGRADE, "", body=body))
        return LevelRaised.of(done.reply.body)

    # --- the common part ------------------------------------------------------------------------

    def request(self, kind: str, topic: str, body: dict[str, Any]) -> Request:
        """Return a request of this client; its id is filled in when it is sent."""
        epoch = self.state.epoch or None
        return Request(kind, "", topic, self.state.client_id, epoch, body)

    def invoke(
        self,
        f: str,
        topic: str,
        last_id: int | None = None,
        entry: Entry | None = None,
        max_count: int | None = None,
        start: str | int = protocol.NEW,
        group: str = "",
        said: Mapping[str, Any] | None = None,
    ) -> Operation:
        """Record that an operation begins; `entry`: what a PUT is about to send.

        `said`: what it says of its `group`.
        """
        sent: dict[str, Any] = {}
        if entry is not None:
            sent = {
                "counter": entry.counter,
                "count": entry.count,
                "lengths": entry.lengths,
                "data": entry.data,
            }
        number, state = next(self._numbers), self.state
        operation = Operation(
            number,
            state.client_id,
            f,
            topic,
            last_id=last_id,
            max_count=max_count,
            epoch=state.epoch,
            start=None if start == protocol.NEW else str(start),
            group=group,
            said=said or {},
            **sent,
        )
        self._observer.on_invoke(operation)
        return operation

    def complete(self, operation: Operation, done: Done, **fields: Any) -> None:
        """Record that an operation succeeded."""
        reply = done.reply
        fields.setdefault("topic", operation.topic)
        outcome = Outcome(done.attempts, reply.node, reply.leader, reply.term, **fields)
        self._observer.on_complete(operation, outcome)

    def failed(self, operation: Operation, error: FlotillaError, **fields: Any) -> None:
        """Record that an operation did not succeed."""
        details = error.details
        gone = details if isinstance(error, Purged | Gap | Expired | Compacted) else {}
        outcome = Outcome(
            details.get("attempts", 0),
            details.get("node", ""),
            details.get("leader", ""),
            details.get("term", 0),
            error.code,
            error.definite,
            gone.get("topic", operation.topic),
            first_id=gone.get("first_id"),
            last_id=gone.get("last_id"),
            **fields,
        )
        self._observer.on_complete(operation, outcome)

    def observed(self, operation: Operation, ask: Ask) -> Steps[Done]:
        """Ask, and record the error if it fails; a success is recorded by the caller."""
        try:
            return (yield from self.asked(ask))
        except FlotillaError as error:
            self.failed(operation, error)
            raise

    def asked(self, ask: Ask) -> Steps[Done]:
        """Ask; where the cluster was put back under a running client, take up its id anew first.

        The same is asked again if nothing was lost, otherwise ClusterRecovered says what.
        """
        try:
            done: Done = yield ask
            return done
        except Fenced:
            if not self.state.is_open:  # it may be this client that takes up its id anew
                yield TURN
                yield BACK
            if not self._is_outdated(ask):
                raise
        except Recovered as error:
            yield from self._retaken(error, ask)
        except (CounterGap, BadRequest) as error:
            if isinstance(error, CounterGap) or "end" in error.details:
                yield from self._retaken(error, ask)
            raise
        request = replace(ask.request, epoch=self.state.epoch)
        if "sequence" in request.body:  # REQUEST_ID took a later one
            request.body = request.body | {"sequence": self.state.next_sequence()}
        again: Done = yield replace(ask, request=request)
        return again

    def _is_outdated(self, ask: Ask) -> bool:
        """Return whether another operation of this client has taken up its id since."""
        return (ask.request.epoch or 0) != self.state.epoch

    def _retaken(self, refusal: Refused, ask: Ask) -> Steps[None]:
        yield TURN
        try:
            if not self._is_outdated(ask):
                self.reopen()
                yield from self._take_up()
        except FlotillaError as error:
            # Whether the operation happened is for its own attempts to say.
            definite = error.definite and refusal.definite
            raise type(error)(error.message, error.code, definite, error.details) from refusal
        yield BACK

    def opened(self) -> Steps[None]:
        """Take up the client's id, unless that was done: before an operation begins."""
        yield from _before_start(self.open())


def _before_start(steps: Steps[None]) -> Steps[None]:
    """Run steps that come before an operation: their failure means that it never began."""
    try:
        yield from steps
    except FlotillaError as error:
        raise error.before_start() from error


@contextmanager
def _carried_out() -> Iterator[None]:
    """Take note of what the cluster has done: whoever fails at that does not deny it."""
    try:
        yield
    except FlotillaError as error:
        raise type(error)(error.message, error.code, False, error.details) from error


def kept(error: FlotillaError, stored: int, left: int) -> FlotillaError:
    """Return the error of publications that stay in the outbox: what they wait for may pass."""
    details = error.details | {"stored": stored, "kept": left, "reason": error.message}
    if not left:
        return type(error)(error.message, error.code, error.definite, details)
    what = "it stays in the outbox and is" if left == 1 else f"{left} stay in the outbox and are"
    message = f"{error.message}; {what} sent before the next one"
    return type(error)(message, error.code, False, details)


_By = tuple[int, str, str, int]  # an answer's attempts, node, leader and term


def _by(answer: Done | FlotillaError) -> _By:
    """Return who has given an answer, as `Outcome` begins."""
    if isinstance(answer, Done):
        reply = answer.reply
        return answer.attempts, reply.node, reply.leader, reply.term
    said = answer.details
    return (
        said.get("attempts", 0),
        said.get("node", ""),
        said.get("leader", ""),
        said.get("term", 0),
    )


def _is_of(pattern: str, topic: str) -> bool:
    """Return whether a name is a pattern, and a topic of it."""
    is_pattern = protocol.has_wildcard(pattern) and not protocol.has_wildcard(topic)
    return is_pattern and protocol.matches(pattern, topic)


def _was_stored(body: Mapping[str, Any]) -> bool | None:
    """Return what an ACK of a PUT says; a node of version 0.1 has no word for it."""
    if "stored" in body:
        stored: bool | None = body["stored"]
        return stored
    return bool(body["id"]) or (None if body.get("duplicate") else False)


def _gone(done: Done, code: str, topic: str, first_id: int, last_id: int) -> Expired | Compacted:
    """Return the error of what an answer that brings something says is gone."""
    reply, missed = done.reply, last_id + 1 - first_id
    details = {"topic": topic, "first_id": first_id, "last_id": last_id, "missed": missed}
    details |= {"attempts": done.attempts, "node": reply.node, "leader": reply.leader}
    details |= {"term": reply.term}
    error = BY_CODE[code]("what the answer brings begins behind that", details=details)
    assert isinstance(error, Expired | Compacted), error
    return error


def _brought(delivery: Delivery) -> dict[str, Any]:
    """Return what an outcome says of publications that a GET has brought."""
    return {
        "topic": delivery.topic,
        "first_id": delivery.first_id,
        "count": len(delivery.publications),
        "publications": delivery.publications,
        "properties": delivery.properties,
        "timestamps": delivery.timestamps,
    }


def _delivered(reply: Reply, placed: int) -> list[Delivery]:
    """Return the publications of an answer, a delivery a run; `placed`: see `Delivery`."""
    body, found, place = reply.body, list[Delivery](), 0
    texts = tuple(map(protocol.text_of, protocol.unpack(reply.lengths, reply.data)))
    behind = body.get("runs", ())
    runs = [(body["id"], len(texts) - sum(count for _, count in behind)), *behind]
    timestamps = deque(body.get("timestamps", ()))
    for first_id, count in runs:
        own = {
            first_id + at - place: properties
            for at, properties in reply.properties.items()
            if place <= at < place + count
        }
        delivery = Delivery(
            body["topic"],
            first_id,
            texts[place : place + count],
            properties=own,
            timestamps=_timestamps(first_id, count, timestamps),
            placed=placed,
        )
        found.append(delivery)
        place += count
    return found


def _timestamps(
    first_id: int, count: int, runs: deque[Sequence[Any]]
) -> tuple[tuple[int, int | None], ...]:
    """Take so many out of runs of (count, time), as a reply says them; return (last id, time)."""
    found, last_id, end_id = [], first_id - 1, first_id + count - 1
    while runs and last_id < end_id:
        more, timestamp_ms = runs.popleft()
        if last_id + more > end_id:
            runs.appendleft((last_id + more - end_id, timestamp_ms))
            more = end_id - last_id
        last_id += more
        found.append((last_id, timestamp_ms))
    return tuple(found)


def slices(wait_ms: float, deadline_ms: float) -> Iterator[int]:
    """Split a GET's wait into waits of a quarter of the deadline, `GET_SLICE_MS` at most.

    One of 0 for no wait.
    """
    wait_ms = int(wait_ms)
    slice_ms = max(1, min(GET_SLICE_MS, int(deadline_ms / GET_SLICES_MIN)))
    yield min(wait_ms, slice_ms)
    for start_ms in range(slice_ms, wait_ms, slice_ms):
        yield min(wait_ms - start_ms, slice_ms)


def check_topic(topic: str) -> None:
    """Refuse, before anything is stored or sent, a name that no node accepts.

    Raises TypeError, or BadRequest, TooLarge, the same as a node would.
    """
    _check_topic(topic if type(topic) is str else checks.topic_name(topic))


def check_no_pattern(topic: str) -> None:
    """Refuse a pattern, of here or of elsewhere, where one topic is due. Raises BadRequest."""
    if protocol.is_pattern(topic):
        raise BadRequest(protocol.no_pattern(topic))


def check_subscribed(topic: str) -> None:
    """Refuse a new subscription to what is a pattern elsewhere, or is none. Raises BadRequest."""
    if not protocol.has_wildcard(topic):
        check_no_pattern(topic)
        return
    try:
        protocol.check_followed(topic)
    except ProtocolError as error:
        raise BY_CODE[error.code](error.message, details=error.details) from error


def check_client_id(client_id: object) -> None:
    """Refuse, before anything is sent, what is no client's id.

    Raises TypeError, BadRequest, TooLarge.
    """
    check_name("client_id", "a client's id", client_id)


def check_name(argument: str, what: str, value: object) -> None:
    """Refuse what is no name of anything but a topic. Raises TypeError, BadRequest, TooLarge."""
    if not isinstance(value, str):
        raise TypeError(f"{argument} is a text, not {type(value).__name__}")
    if not value or not value.isprintable():
        raise BadRequest(f"{what} is printable text, and not empty")
    if len(value.encode()) > protocol.NAME_BYTES_MAX:
        limit = protocol.NAME_BYTES_MAX
        raise TooLarge(f"{what} has {limit} bytes at most", details={"limit": limit})


@functools.lru_cache(maxsize=1024)  # a bound, not a need: checking again is cheap
def _check_topic(topic: str) -> None:
    if not topic or not topic.isprintable():  # also keeps lone surrogates from the encoder
        raise BadRequest("a topic's name is printable text, and not empty")
    try:
        request = Request(protocol.SUB, "check", topic, "check")
        protocol.decode_request(protocol.encode_request(request))
    except ProtocolError as error:
        raise BY_CODE[error.code](error.message, details=error.details) from error
