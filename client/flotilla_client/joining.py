"""`Joined`: what several callers publish through one client, put together.

What lives here: a state machine over calls, the outbox and a wire. What is called while a request
of its topic is under way waits, and then goes out together, in the order of the calls; topics do
not wait for each other. Each caller gets its own ids or its own error. Time comes in by `now_ms`.
What must not: sockets, threads, waiting (client.py, aio.py), retry decisions (retry.py), storage
(state.py) or what a request says (operations.py).

The order is the contract, as with a producer: calls get their counters in their order, all that
goes out at once is stored in one commit, and only then is anything of it sent. A topic has one
request under way. What an earlier process or an earlier error left in the outbox is sent first.

Whatever breaks off the caller that does the work (ctrl-C) must harm no other one. So a counter is
noted at its publication before the commit that gives it, and an answer before the commit that
forgets the publication: `restart` finds out from both, and from the outbox, where everything is.
What is taken out of the outbox leaves its counters to what stands behind it. So it is noted before
whose they were: the topic's last counter tells whether that has begun.
"""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Literal, Protocol, assert_never

from flotilla_client import protocol
from flotilla_client.connection import CONNECT_MS_MAX, CONNECTION_LOST
from flotilla_client.errors import (
    BacklogFull,
    BadRequest,
    Busy,
    CounterGap,
    Fenced,
    FlotillaError,
    NoSubscribers,
    OutboxFull,
    Recovered,
    TooLarge,
    TooMany,
    Unavailable,
    Unsupported,
)
from flotilla_client.observer import Operation
from flotilla_client.operations import REFUSED_FOREVER, Ask, Operations, PutResult, kept
from flotilla_client.protocol import Reply, encode_request, is_pattern, topic_of
from flotilla_client.retry import (
    Action,
    Close,
    Done,
    Exchange,
    Failed,
    Listen,
    Pause,
    Send,
)
from flotilla_client.state import Entry

# What a node refuses for what one of them may alone be to blame for: then each is asked alone.
OF_ONE: Final = frozenset({BacklogFull.CODE, BadRequest.CODE, TooLarge.CODE, Unsupported.CODE})
NOTHING: Final = frozenset[str]()
NEVER_MS: Final = float("inf")

# What a caller wants of what nobody subscribes to: a warning, an error, or nothing.
Unheard = Literal["warn", "raise", "allow"]
Explain = Callable[[FlotillaError, Callable[[FlotillaError], None]], None]


class JoinedWire(Protocol):
    """How requests leave. `cause`: why the last `send` returned False."""

    cause: str

    def send(self, endpoint: int, frames: Sequence[bytes], timeout_ms: float) -> bool | None:
        """Send a request; return False if no connection stood in time: then nothing was sent.

        None: there is none yet. Take a turn when there is one, to try again.
        """

    def close(self, endpoint: int) -> None:
        """Close the endpoint's connection: late replies on it are gone."""


@dataclass(slots=True, eq=False)
class Piece:
    """What goes out in one request of a call: `count` publications.

    `counter` 0: it is not stored yet.
    """

    lengths: bytes
    data: bytes
    count: int
    counter: int = 0
    result: PutResult | None = None


class Call:
    """What one caller publishes. `told()` is called once, when it `is_over`: see `results`.

    `topic`: with a delay the lane of one (`protocol.lane_of`), which is sent apart from the topic.
    Without `batches` it waits until the topic's outbox is sent. `has_left`: it was not taken, and
    nobody waits for it. `is_deserted`: nobody waits, whether it was taken or not. `unheard`: what
    comes of it where nobody subscribes.
    """

    __slots__ = (
        "_free",
        "_told",
        "end_ms",
        "error",
        "has_left",
        "is_added",
        "is_deserted",
        "is_over",
        "pieces",
        "topic",
        "unheard",
    )

    def __init__(
        self,
        topic: str,
        batches: Sequence[tuple[bytes, bytes]],
        end_ms: float,
        told: Callable[[], object],
        unheard: Unheard = "warn",
    ) -> None:
        self.topic, self.end_ms, self._told, self.unheard = topic, end_ms, told, unheard
        self.pieces = [Piece(lengths, data, len(lengths) // 4) for lengths, data in batches]
        self.error: Exception | None = None
        self.is_added = self.is_over = self.has_left = self.is_deserted = False
        self._free = [None]  # taken out once: at one stroke, whatever thread comes or is broken off

    def take(self) -> bool:
        """Have it stored and sent from now on, unless its caller has left."""
        self._claim()
        return not self.has_left

    def leave(self) -> bool:
        """Return whether it was not taken, and will not be: its caller waits no longer."""
        if self._claim():
            self.has_left = True
        self.is_deserted = True
        return self.has_left

    def _claim(self) -> bool:
        try:
            self._free.pop()
        except IndexError:
            return False
        return True

    @property
    def is_stored(self) -> bool:
        """Whether it has a counter, so that it may stand in the outbox."""
        return any([piece.counter for piece in self.pieces])

    def results(self) -> list[PutResult]:
        """Return a result for each of its batches. Raises its error, NoSubscribers."""
        assert self.is_over, self.topic
        if self.error is not None:
            raise self.error
        results = [piece.result for piece in self.pieces if piece.result is not None]
        if self.unheard == "raise":
            for result in results:
                if result.stored is False:
                    raise self._no_subscribers(results)
        return results

    def _no_subscribers(self, results: Sequence[PutResult]) -> NoSubscribers:
        topic = topic_of(self.topic)
        message = f"nobody subscribes to {topic!r}, so what was published is not stored"
        if is_pattern(topic):
            message += ": it is a pattern, and a publication goes to one topic"
        stored = sum(result.count for result in results if result.stored is not False)
        return NoSubscribers(message, details={"topic": topic, "stored": stored})

    @property
    def size_bytes(self) -> int:
        """How many bytes it publishes."""
        return sum([len(piece.data) for piece in self.pieces])

    @property
    def warns(self) -> bool:
        """Whether a warning has to say that it was not stored: nobody else will."""
        return self.unheard == "warn" or self.is_over or self.is_deserted

    def end(self, error: Exception | None = None) -> None:
        """Tell the caller."""
        if not self.is_over:
            self.error, self.is_over = error, True
            self._told()

    def keep(self, error: FlotillaError) -> None:
        """Tell the caller that what has no answer yet stays in the outbox."""
        stored = sum(piece.count for piece in self.pieces if piece.result is not None)
        due = sum(piece.count for piece in self.pieces)
        self.end(kept(error, stored, due - stored))


@dataclass(slots=True, eq=False)
class _BatchUnderWay:
    """An entry of the outbox on its way, and whose it is (nobody's: left there by an earlier one).

    `was_sent`: before this machine began it, so that a refusal proves nothing. `until_ms`: of what
    it waits for: a reply of `endpoint`, a connection (`unsent`), the end of a pause (None).
    `attempt_ends_ms`: until when the reply is waited for, however late the connection comes.
    `is_whole`: it can't be parted any more, as an attempt may have happened. `expired`: so many of
    `owned`, the first ones, have left it.
    """

    entry: Entry
    owned: Sequence[tuple[Call, Piece]] = ()
    was_sent: bool = False
    operation: Operation | None = None
    exchange: Exchange | None = None
    ask: Ask | None = None
    unsent: Send | None = None
    endpoint: int | None = None
    until_ms: float = 0.0
    attempt_ends_ms: float = 0.0
    cause: str = "no answer"
    is_retaken: bool = False
    is_whole: bool = False
    refusal: FlotillaError | None = None
    expired: int = 0

    @property
    def is_joined(self) -> bool:
        """Whether it is several callers', who can be asked for singly."""
        return len(self.owned) > 1 and not self.is_whole

    @property
    def is_lost(self) -> bool:
        """Whether no reply will come to its last request: see `Joined.lost`."""
        return self.until_ms == 0.0

    @property
    def is_promised(self) -> bool:
        """Whether somebody who no longer waits was told that it stays in the outbox."""
        return any([call.is_over or call.is_deserted for call, _ in self.owned])

    def note(self, result: PutResult) -> None:
        """Note at each publication what is its own of the batch's result."""
        duplicate, stored, delayed = result.duplicate, result.stored, result.delayed
        for _, piece in self.owned:
            if piece.count == result.count:  # alone, as a rule
                piece.result = result
                continue
            id_ = result.id + piece.counter - self.entry.counter if result.id else 0
            piece.result = PutResult(id_, piece.count, duplicate, stored, delayed)

    def warns(self) -> bool:
        """Return whether a warning has to say that it was not stored."""
        return not self.owned or any([call.warns for call, _ in self.owned])


@dataclass(slots=True, eq=False)
class _Line:
    """A topic's calls in their order, and what is stored of it. `alone`: take so many singly.

    `is_uneven`: somebody may have less time than one before it; `latest_ms`: until when who has
    most of those who were noted.
    """

    topic: str
    waiting: deque[Call] = field(default_factory=deque)
    stored: deque[_BatchUnderWay] = field(default_factory=deque)
    alone: int = 0
    latest_ms: float = 0.0
    is_uneven: bool = False

    @property
    def head(self) -> _BatchUnderWay | None:
        """The batch whose turn it is."""
        return self.stored[0] if self.stored else None

    def note_time(self, call: Call) -> None:
        """Note until when a call waits, behind all others."""
        if call.end_ms < self.latest_ms:
            self.is_uneven = True
        else:
            self.latest_ms = call.end_ms

    def _ends_ms(self, stored: Iterable[_BatchUnderWay]) -> Iterator[float]:
        """Yield the deadlines of who waits for such batches, or behind them, in their order."""
        owned = (call for batch in stored for call, _ in batch.owned)
        calls = itertools.chain(owned, self.waiting)
        return (call.end_ms for call in calls if not (call.is_over or call.has_left))

    def first_end_ms(self) -> float:
        """Return the first deadline of who waits; each new call asks for it, so it looks at few."""
        ends = self._ends_ms(self.stored)
        is_ordered = not self.is_uneven and len(self.stored) < 2
        return next(ends, NEVER_MS) if is_ordered else min(ends, default=NEVER_MS)

    def find_earliest_ms(self) -> float:
        """Return whose time is over first, wherever it stands; find out if it is uneven still."""
        ends = list(self._ends_ms(itertools.islice(self.stored, 1)))
        self.is_uneven = ends != sorted(ends)
        self.latest_ms = max(ends, default=0.0)
        return min(ends, default=NEVER_MS)


class Joined:
    """The publications of a client's callers between their calls and their results.

    Use: `add` calls. While there `is_work`: `turn()`. If it returns None, run `Operations.open`,
    which gives up at `opening_end_ms`; `end_late` meanwhile, `not_opened` if it failed. Else wait
    until then for what comes from one of `endpoints` and hand it to `replied` or `lost`.

    `exchange(ask, end_ms)`: a new retry machine. `check_free(topic)` raises TopicInUse.
    `explain(error, then)` calls `then` with the error in words for people, now or later.
    `late(exchange)`: the error of a caller that can wait no longer, while `exchange` goes on.
    """

    def __init__(
        self,
        operations: Operations,
        exchange: Callable[[Ask, float], Exchange],
        check_free: Callable[[str], None],
        explain: Explain,
        wire: JoinedWire,
        now_ms: Callable[[], float],
        late: Callable[[Exchange | None], FlotillaError],
    ) -> None:
        self._operations, self._state = operations, operations.state
        self._late = late
        self._new_exchange, self._check_free, self._explain = exchange, check_free, explain
        self._wire, self._now_ms = wire, now_ms
        self._lines: dict[str, _Line] = {}
        # While something is taken out: the topic, its last counter before, and what then is due.
        self._taking_out: tuple[str, int, Callable[[], object]] | None = None
        operations.topics_under_way = self._lines  # which resends them by itself

    # --- what the driver asks -------------------------------------------------------------------

    @property
    def is_work(self) -> bool:
        """Whether anybody waits, or a request is under way."""
        return bool(self._lines)

    @property
    def topics(self) -> tuple[str, ...]:
        """To which topics somebody publishes."""
        return tuple(self._lines)

    @property
    def endpoints(self) -> set[int]:
        """From where replies are due."""
        heads = [line.stored[0] for line in self._lines.values() if line.stored]
        asked = [head for head in heads if head.unsent is None and not head.is_lost]
        return {head.endpoint for head in asked if head.endpoint is not None}

    def opening_end_ms(self) -> float:
        """Return until when the opening may try: the first caller's deadline; no caller: now."""
        end_ms = self.first_end_ms()
        return self._now_ms() if end_ms == NEVER_MS else end_ms

    def first_end_ms(self) -> float:
        """Return the first caller's deadline; no caller: never."""
        return min((line.first_end_ms() for line in self._lines.values()), default=NEVER_MS)

    # --- callers --------------------------------------------------------------------------------

    def add(self, call: Call) -> None:
        """Have a call wait for its topic's next batch."""
        call.is_added = True
        line = self._lines.get(call.topic)
        if line is None:
            line = self._lines[call.topic] = _Line(call.topic)
        line.note_time(call)
        line.waiting.append(call)

    def has_waiting(self, topic: str) -> bool:
        """Return whether somebody waits whose publication is not stored yet."""
        return topic in self._lines and bool(self._lines[topic].waiting)

    def restart(self, calls: Iterable[Call]) -> None:
        """Begin anew with the calls that are not over: whoever did the work was broken off.

        Nothing counts of what this machine knew. A publication stands in the outbox under the
        counter that was noted at it, or was never stored, or has its answer.
        """
        self._lines.clear()
        self._operations.resending = ""
        if self._taking_out is not None:
            (topic, counter, begun), self._taking_out = self._taking_out, None
            if self._state.counter(topic) != counter:
                begun()
        for call in calls:
            if call.is_over:
                continue
            line = self._lines.get(call.topic)
            if line is None:
                line = self._lines[call.topic] = _Line(call.topic)
                entries = self._state.outbox(call.topic)
                line.stored.extend(_BatchUnderWay(entry, was_sent=True) for entry in entries)
            call.is_added = True
            line.note_time(call)
            for piece in call.pieces:
                self._find(line, call, piece)
            if call.pieces and all([piece.result for piece in call.pieces]):
                call.end()
            elif not any([piece.counter and not piece.result for piece in call.pieces]):
                line.waiting.append(call)

    @staticmethod
    def _find(line: _Line, call: Call, piece: Piece) -> None:
        """Give a piece back to its batch; note that it is not stored if there is none."""
        if piece.result is not None:
            return
        for batch in line.stored:
            first = batch.entry.counter
            if first <= piece.counter < first + batch.entry.count:
                batch.owned = (*batch.owned, (call, piece))
                return
        piece.counter = 0

    def stop(self, stored: FlotillaError, waiting: FlotillaError) -> None:
        """Tell everybody an error: those whose publications are stored, and those who wait."""
        for line in tuple(self._lines.values()):
            for batch in line.stored:
                for call, _ in batch.owned:
                    call.keep(stored)
                with suppress(Exception):  # a record that can't be written lacks an end, no more
                    self._record(batch, stored)
            for call in line.waiting:
                call.end(_copied(waiting))
        self._lines.clear()

    def forget_the_left(self) -> None:
        """Forget lines on which nobody waits: what they have in the outbox stays there."""
        for topic, line in tuple(self._lines.items()):
            owned = [call for batch in line.stored for call, _ in batch.owned]
            if all([call.is_over or call.has_left for call in (*owned, *line.waiting)]):
                del self._lines[topic]

    # --- what happens ---------------------------------------------------------------------------

    def turn(self) -> float | None:
        """End what is over, store what may be stored, then send what may be sent.

        Returns when to take the next turn at the latest; None: the client's id has to be taken up.
        """
        if not self._lines:
            return NEVER_MS
        if not self._operations.is_open:
            return None
        if not self._expire():
            return None
        self._take()
        next_ms = NEVER_MS
        for line in tuple(self._lines.values()):
            if line.stored:
                head = line.stored[0]
                if head.exchange is None:
                    self._begin(line, head)
                elif head.unsent is not None:
                    self._send(line, head, head.unsent)
            if line.stored or line.waiting:
                due_ms = _due_ms(line)
                if due_ms < next_ms:
                    next_ms = due_ms
            else:
                self._lines.pop(line.topic, None)
        return next_ms

    def replied(self, reply: Reply) -> None:
        """Take a reply; one that is nobody's here is dropped."""
        name, _, _ = reply.request_id.rpartition(".")
        for line in self._lines.values():
            head = line.stored[0] if line.stored else None
            if head is None or head.exchange is None or head.exchange.name != name:
                continue
            if head.until_ms != NEVER_MS:  # it has not failed already
                now_ms = self._now_ms()
                self._act(line, head, head.exchange.replied(reply, now_ms), now_ms)
            return

    def lost(self, endpoint: int, cause: str = CONNECTION_LOST) -> None:
        """No reply will come from an endpoint any more, for that cause."""
        for line in self._lines.values():
            head = line.head
            if head is not None and head.endpoint == endpoint and head.until_ms != NEVER_MS:
                head.until_ms, head.cause = 0.0, cause

    def unconnected(self, endpoint: int, cause: str) -> None:
        """No connection to an endpoint can be had, for that cause."""
        for line in self._lines.values():
            head = line.head
            if head is not None and head.unsent is not None and head.unsent.endpoint == endpoint:
                head.until_ms, head.cause = 0.0, cause

    def _expire(self) -> bool:
        """End the waits, and the callers' patience, whose time has come.

        Returns whether the client's id need not be taken up anew for that.
        """
        now_ms, was_due = self._now_ms(), False
        for line in tuple(self._lines.values()):
            if _due_ms(line) > now_ms:
                continue
            was_due = True
            head = line.head
            if head is not None and head.exchange is not None and now_ms >= head.until_ms:
                self._end_wait(line, head, now_ms)
            self._end_patience(line, self._now_ms())
        return not was_due or self._operations.is_open

    def end_late(self, opening_end_ms: float) -> None:
        """Tell those whose deadline has come while the id is taken up, for others.

        Who has as much time as that itself hears why it failed (`not_opened`).
        """
        late_ms = min(self._now_ms(), math.nextafter(opening_end_ms, 0.0))
        for line in self._lines.values():
            self._end_patience(line, late_ms)

    def not_opened(self, error: FlotillaError) -> None:
        """The client's id could not be taken up. What nobody refused goes on waiting."""
        if isinstance(error, Unavailable):
            now_ms = max(self._now_ms(), self.opening_end_ms())
            # Who is kept must not hear that nothing of it is, as who never had its turn does.
            told = None if isinstance(error, Busy) else error
            for line in self._lines.values():
                self._end_patience(line, now_ms, told)
            self.forget_the_left()
            return
        for line in tuple(self._lines.values()):
            head = line.head
            if head is not None and head.owned:
                definite = error.definite and (head.refusal is None or head.refusal.definite)
                of_head = type(error)(error.message, error.code, definite, dict(error.details))
                self._fail(line, head, of_head)
            while line.waiting:
                line.waiting.popleft().end(error.before_start())
            self._lines.pop(line.topic, None)

    # --- from the callers into the outbox -------------------------------------------------------

    def _take(self) -> None:
        """Give what waits its counters and store it, of all topics in one commit."""
        taken: list[tuple[_Line, list[Call]]] = []
        for line in tuple(self._lines.values()):
            # Of two who send an outbox, and are refused its first, one would remove another's.
            is_resent = line.topic == self._operations.resending
            if line.stored or not line.waiting or is_resent or not self._is_free(line):
                continue
            left = self._state.outbox(line.topic) if self._state.outbox_bytes else []
            if left:
                line.stored.extend(_BatchUnderWay(entry, was_sent=True) for entry in left)
                continue
            calls = _next_calls(line)
            if calls:
                taken.append((line, calls))
        if not taken:
            return
        try:
            self._store(taken)
        except OutboxFull:
            for one in taken:  # what does not fit must not keep others out
                self._store_one(*one)
        except FlotillaError as error:
            for _, calls in taken:
                for call in calls:
                    call.end(_copied(error))

    def _store(self, taken: Sequence[tuple[_Line, list[Call]]]) -> None:
        owned: list[list[Sequence[tuple[Call, Piece]]]] = []
        batches: list[tuple[str, list[tuple[bytes, bytes]]]] = []
        for line, calls in taken:
            parts = _joined(calls)
            owned.append(parts)
            batches.append((line.topic, [_packed(part) for part in parts]))

        def note(entries: Sequence[Sequence[Entry]]) -> None:
            for parts, of_line in zip(owned, entries, strict=True):
                for part, entry in zip(parts, of_line, strict=True):
                    counter = entry.counter
                    for _, piece in part:
                        piece.counter = counter
                        counter += piece.count

        try:
            stored = self._state.enqueue_all(batches, note)
        except FlotillaError as error:
            if error.definite:
                for _, calls in taken:
                    _unstored(calls)
            raise
        for (line, _), parts, entries in zip(taken, owned, stored, strict=True):
            line.stored.extend(map(_BatchUnderWay, entries, parts))

    def _store_one(self, line: _Line, calls: list[Call]) -> None:
        try:
            self._store([(line, calls)])
        except OutboxFull as error:
            if len(calls) == 1:
                calls[0].end(_copied(error))
            else:
                line.waiting.extendleft(reversed(calls))
                line.alone = len(calls)
        except FlotillaError as error:
            for call in calls:
                call.end(_copied(error))

    def _is_free(self, line: _Line) -> bool:
        try:
            self._check_free(line.topic)
        except FlotillaError as error:
            while line.waiting:
                line.waiting.popleft().end(_copied(error))
            return False
        return True

    # --- on the wire ----------------------------------------------------------------------------

    def _begin(self, line: _Line, batch: _BatchUnderWay) -> None:
        """Ask for a batch; for one that nobody here owns as long as the first who waits has."""
        if batch.refusal is not None:  # and the id has been taken up since
            self._fail(line, batch, batch.refusal)
            return
        if batch.owned:
            end_ms = 0.0
            for call, _ in batch.owned:
                if call.end_ms > end_ms:
                    end_ms = call.end_ms
        elif line.waiting:
            end_ms = line.waiting[0].end_ms
        else:
            line.stored.clear()
            return
        try:
            if batch.operation is None:
                batch.operation = self._operations.invoke_put(batch.entry)
        except Exception as error:  # noqa: BLE001, an observer's: its callers get it
            self._break_off(line, batch, error)
            return
        final = OF_ONE if batch.is_joined else NOTHING
        batch.ask = Ask(self._operations.put_request(batch.entry), final=final)
        batch.exchange = self._new_exchange(batch.ask, end_ms)
        now_ms = self._now_ms()
        self._act(line, batch, batch.exchange.started(now_ms), now_ms)

    def _act(
        self, line: _Line, batch: _BatchUnderWay, actions: Sequence[Action], now_ms: float
    ) -> None:
        for action in actions:
            match action:
                case Send(endpoint, _, timeout_ms):
                    batch.endpoint = endpoint
                    batch.attempt_ends_ms = now_ms + timeout_ms
                    batch.until_ms = min(batch.attempt_ends_ms, now_ms + CONNECT_MS_MAX)
                    batch.cause = "no connection"
                    self._send(line, batch, action)
                case Done():
                    self._answered(line, batch, action)
                case Failed(error):
                    batch.endpoint, batch.unsent, batch.until_ms = None, None, NEVER_MS
                    self._explain(error, lambda error: self._refused(line, batch, error))
                case Close(endpoint):
                    self._wire.close(endpoint)
                    self.lost(endpoint)
                case Pause(wait_ms):
                    batch.endpoint, batch.until_ms = None, now_ms + wait_ms
                case Listen(endpoint, timeout_ms):
                    batch.endpoint, batch.until_ms = endpoint, now_ms + timeout_ms
                case _:
                    assert_never(action)

    def _send(self, line: _Line, batch: _BatchUnderWay, send: Send) -> None:
        assert batch.ask is not None, line.topic
        assert batch.exchange is not None, line.topic
        request = batch.ask.request
        request.request_id = send.request_id
        try:
            was_sent = self._wire.send(send.endpoint, encode_request(request), send.timeout_ms)
        except FlotillaError as error:
            self._broken(line, batch, error)
            return
        if was_sent:
            batch.unsent, batch.cause = None, "no answer"
            batch.until_ms = batch.attempt_ends_ms
        elif was_sent is None:
            batch.unsent = send
        else:
            batch.unsent = None
            now_ms = self._now_ms()
            self._act(line, batch, batch.exchange.unsent(now_ms, self._wire.cause), now_ms)

    def unusable(self, endpoint: int, error: FlotillaError) -> None:
        """No connection to an endpoint can be tried, for that error (of a key's file, say)."""
        for line in tuple(self._lines.values()):
            head = line.head
            if head is not None and head.unsent is not None and head.unsent.endpoint == endpoint:
                self._broken(line, head, error)

    def _broken(self, line: _Line, batch: _BatchUnderWay, error: FlotillaError) -> None:
        """End a batch whose request could not leave, and will not."""
        assert batch.exchange is not None, line.topic
        batch.exchange.unsent(self._now_ms(), error.code)
        definite = error.definite and batch.exchange.out_of_time().definite
        self._fail(line, batch, type(error)(error.message, error.code, definite, error.details))

    def _end_wait(self, line: _Line, batch: _BatchUnderWay, now_ms: float) -> None:
        assert batch.exchange is not None, line.topic
        if batch.unsent is not None:
            batch.unsent = None
            actions = batch.exchange.unsent(now_ms, batch.cause)
        elif batch.endpoint is None:
            actions = batch.exchange.resumed(now_ms)
        else:
            actions = batch.exchange.silent(now_ms, batch.cause)
        self._act(line, batch, actions, now_ms)

    # --- answers and errors ---------------------------------------------------------------------

    def _answered(self, line: _Line, batch: _BatchUnderWay, done: Done) -> None:
        """Record the ACK, forget the entry, tell the callers."""
        assert batch.operation is not None, line.topic
        try:
            self._operations.stored(batch.operation, batch.entry, done, batch.note, batch.warns)
        except Exception as error:  # noqa: BLE001, an observer's: its callers get it
            self._break_off(line, batch, error)
            return
        line.stored.popleft()
        for call, _ in batch.owned:
            for piece in call.pieces:
                if piece.result is None:
                    break
            else:
                call.end()
        if not line.stored and not line.waiting:
            self._lines.pop(line.topic, None)

    def _break_off(self, line: _Line, batch: _BatchUnderWay, error: Exception) -> None:
        """An observer, a record or the disk ends this batch; it stays in the outbox."""
        line.stored.clear()
        if isinstance(error, FlotillaError):
            # It may be answered: then the disk alone has failed for certain, to forget it.
            uncertain = type(error)(error.message, error.code, False, error.details)
            for call, _ in batch.owned:
                call.keep(uncertain)
            if not batch.owned and line.waiting:
                line.waiting.popleft().end(error.before_start())
            return
        for call, _ in batch.owned:
            call.end(error)
        if not batch.owned and line.waiting:
            line.waiting.popleft().end(error)

    def _refused(self, line: _Line, batch: _BatchUnderWay, error: FlotillaError) -> None:
        """Take up the id anew where that is what the error asks for; else it is the batch's."""
        assert batch.ask is not None, line.topic
        if line.head is not batch:
            return  # all were told meanwhile that the client is closed
        is_older = (batch.ask.request.epoch or 0) != self._state.epoch
        # While the id is taken up anew, the epoch that fences may be the own one of soon.
        is_older = is_older or (isinstance(error, Fenced) and not self._operations.is_open)
        if isinstance(error, Fenced | Recovered) and is_older:
            batch.exchange, batch.was_sent = None, batch.was_sent or not error.definite
        elif isinstance(error, Recovered) and not batch.is_retaken:
            batch.exchange, batch.was_sent = None, batch.was_sent or not error.definite
            batch.is_retaken = True
            self._operations.reopen()
        elif isinstance(error, CounterGap) or (
            isinstance(error, BadRequest) and "end" in error.details
        ):
            batch.exchange, batch.refusal = None, error
            self._operations.reopen()  # it tells what was lost
        elif (
            isinstance(error, BacklogFull)
            and batch.is_joined
            and (batch.is_promised or not error.definite)
        ):
            batch.exchange, batch.was_sent, batch.is_whole = None, True, True
        else:
            self._fail(line, batch, error)

    def _fail(self, line: _Line, batch: _BatchUnderWay, error: FlotillaError) -> None:
        """Tell a batch's callers its error; take out of the outbox what certainly will not be."""
        if isinstance(error, Unavailable):
            error.definite = False  # it stays in the outbox, so it will happen
        line.stored.clear()
        try:
            self._record(batch, error)
            is_parted = self._take_out(line, batch, error)
        except Exception as failure:  # noqa: BLE001, an observer's or the disk's: its callers get it
            self._taking_out = None
            self._break_off(line, batch, failure)
            return
        self._taking_out = None
        if is_parted:
            return
        for call, _ in batch.owned:
            if "withdrawn" in error.details:
                stored = sum(piece.count for piece in call.pieces if piece.result is not None)
                call.end(_copied(error, stored=stored))
            else:
                call.keep(error)
        if not batch.owned and line.waiting:
            self._fail_behind(line, error)

    def _take_out(self, line: _Line, batch: _BatchUnderWay, error: FlotillaError) -> bool:
        """Take out of the outbox what certainly will not be; return whether its callers go singly.

        Raises what the state's disk does.
        """
        is_forever = error.code in REFUSED_FOREVER
        calls = [call for call, _ in batch.owned]
        counter = self._state.counter(line.topic)
        self._taking_out = line.topic, counter, partial(_refused_in_part, calls, error)
        if isinstance(error, TooMany):
            self._withdraw(batch, error, self._state.withdraw)  # of what follows it takes none
        elif is_forever or (
            batch.owned and not batch.was_sent and error.definite and not batch.is_promised
        ):
            if batch.is_joined and not batch.was_sent and error.code in OF_ONE:
                self._taking_out = line.topic, counter, partial(_unstored, calls)
                self._state.remove(batch.entry)
                _unstored(calls)
                line.waiting.extendleft(reversed(calls))
                line.alone = len(calls)
                return True
            self._withdraw(batch, error, self._state.remove)
        return False

    def _withdraw(
        self, batch: _BatchUnderWay, error: FlotillaError, out: Callable[[Entry], int]
    ) -> None:
        """Take a batch out of the outbox, and what its one caller has behind it."""
        entries = [batch.entry]
        calls = {call for call, _ in batch.owned}
        if len(calls) == 1:
            [call] = calls
            counters = {piece.counter for piece in call.pieces if piece.result is None}
            entries += [
                entry
                for entry in self._state.outbox(call.topic)
                if entry.counter in counters and entry.counter != batch.entry.counter
            ]
        # The last first, as whatever stands behind one that is taken out moves up.
        error.details["withdrawn"] = sum(out(entry) for entry in reversed(entries))

    def _fail_behind(self, line: _Line, error: FlotillaError) -> None:
        """Tell the first who waits what became of one that was left in the outbox."""
        if isinstance(error, Unavailable):
            self._end_patience(line, max(self._now_ms(), line.waiting[0].end_ms), error)
        else:
            line.waiting.popleft().end(error.before_start())

    def _record(self, batch: _BatchUnderWay, error: FlotillaError) -> None:
        if batch.operation is not None:
            operation, batch.operation = batch.operation, None
            self._operations.failed(operation, error)

    def _end_patience(self, line: _Line, now_ms: float, error: FlotillaError | None = None) -> None:
        """Tell those whose deadline has come: what they publish is in the outbox."""
        head = line.head
        if head is not None:
            while head.expired < len(head.owned):
                call = head.owned[head.expired][0]
                # A single one is told by its exchange, which stands still during an opening.
                is_told = len(head.owned) == 1 and self._operations.is_open
                if call.end_ms > now_ms or is_told:
                    break
                head.expired += 1
                call.keep(self._out_of_time(head, error))
        while line.waiting and line.waiting[0].end_ms <= now_ms:
            call = line.waiting.popleft()
            if call.take():
                self._keep(call, self._out_of_time(head, error))
        if line.is_uneven:
            self._end_overtaken(line, now_ms, error)

    def _end_overtaken(self, line: _Line, now_ms: float, error: FlotillaError | None) -> None:
        """Tell those whose deadline has come behind others who have more time.

        Who waits behind these has no place in the outbox before they have theirs.
        """
        head = line.head
        if head is not None and len(head.owned) > 1:
            for call, _ in head.owned:
                if call.end_ms <= now_ms and not call.is_over:
                    call.keep(self._out_of_time(head, error))
        for call in line.waiting:
            if call.end_ms <= now_ms and not (call.is_over or call.has_left):
                call.leave()
                call.has_left = True  # one that was parted from others had been taken
                why, details = "others took all of its time", dict[str, Any]()
                if head is None and self._operations.opening is not None:
                    late = self._late(None)
                    why, details = late.message, late.details
                message = f"{why}: nothing of it is sent or kept"
                call.end(Busy(message, details=details | {"kept": 0}))

    def _out_of_time(
        self, batch: _BatchUnderWay | None, error: FlotillaError | None
    ) -> FlotillaError:
        """Return why a caller's deadline came first; `error`: what has just failed for all."""
        if error is not None:
            return _copied(error)
        return self._late(batch.exchange if batch is not None else None)

    def _keep(self, call: Call, error: FlotillaError) -> None:
        """Put into the outbox what nobody was asked to store before the deadline."""
        try:
            self._check_free(call.topic)
            batches = [(piece.lengths, piece.data) for piece in call.pieces]
            if batches:
                self._operations.enqueue(call.topic, batches)
        except FlotillaError as refusal:
            call.end(_copied(refusal))
        else:
            call.keep(error)


def _due_ms(line: _Line) -> float:
    """Return when something of a line ends at the latest: a wait, or a caller's patience."""
    due_ms = line.waiting[0].end_ms if line.waiting else NEVER_MS
    if line.is_uneven:
        due_ms = min(due_ms, line.find_earliest_ms())
    if line.stored:
        head = line.stored[0]
        if head.until_ms < due_ms:
            due_ms = head.until_ms
        if head.expired < len(head.owned) != 1:  # a single one is told by its exchange
            end_ms = head.owned[head.expired][0].end_ms
            if end_ms < due_ms:
                return end_ms
    return due_ms


def _next_calls(line: _Line) -> list[Call]:
    """Take the calls that fit into one request, one at least, in their order."""
    calls: list[Call] = []
    count = size_bytes = 0
    is_delayed = protocol.topic_of(line.topic) != line.topic
    count_max = protocol.DELAYS_MAX if is_delayed else protocol.BATCH_COUNT_MAX
    while line.waiting:
        call = line.waiting[0]
        for piece in call.pieces:
            size_bytes += len(piece.data)
            count += piece.count
        fits = count <= count_max and size_bytes <= protocol.BATCH_BYTES_MAX
        if calls and (line.alone or not fits or not call.pieces):
            break
        line.waiting.popleft()
        if not call.pieces:
            call.end()  # it waited for what is before it
        elif call.take():
            calls.append(call)
    if line.alone:
        line.alone -= 1
    return calls


def _joined(calls: Sequence[Call]) -> list[Sequence[tuple[Call, Piece]]]:
    """Return what goes into each request: all calls' together, or each batch of the only one."""
    if len(calls) == 1:
        return [((calls[0], piece),) for piece in calls[0].pieces]
    return [[(call, piece) for call in calls for piece in call.pieces]]


def _packed(part: Sequence[tuple[Call, Piece]]) -> tuple[bytes, bytes]:
    if len(part) == 1:
        return part[0][1].lengths, part[0][1].data
    return b"".join([p.lengths for _, p in part]), b"".join([p.data for _, p in part])


def _unstored(calls: Collection[Call]) -> None:
    for call in calls:
        for piece in call.pieces:
            piece.counter = 0


def _refused_in_part(calls: Iterable[Call], error: FlotillaError) -> None:
    """Tell who was broken off as what he publishes was taken out: a part may stand there yet."""
    for call in calls:
        call.end(type(error)(error.message, error.code, False, dict(error.details)))


def _copied(error: FlotillaError, **details: object) -> FlotillaError:
    """Return the error for one caller: raised in several threads, one would mix its traces."""
    return type(error)(error.message, error.code, error.definite, error.details | details)
