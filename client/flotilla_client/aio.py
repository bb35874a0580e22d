"""`AsyncClient`: `Client` with `await`.

What lives here: the awaiting twin of `Client`'s loop and of `EndpointSockets`' two waits, and who
hears of what comes, as several operations are under way at once. What must not: anything that both
sides share (operations.py, retry.py, state.py, `Session`).

The state directory is written in the event loop, one fsync an operation (about a millisecond), and
not in a thread: between the moment a hand-over is stored and the moment the caller has its delivery
there must be no `await`, or a cancelled `get` would have taken what it never returned.

`get` and `__anext__` are plain functions that return a coroutine: the task that calls them reads,
also where another one awaits for it (`asyncio.wait_for`).
"""

from __future__ import annotations

import asyncio
import random
import sys
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Final, NoReturn, Self, TypeVar, assert_never

import zmq

from flotilla_client.batches import Publishable, publication_of
from flotilla_client.checks import Duration
from flotilla_client.client import (
    CLOSE_MS,
    NOT_GIVEN_BACK,
    NOT_TOLD,
    STATUS_DEADLINE_MS,
    Session,
    end_of_words,
    now_ms,
    unheard_of,
)
from flotilla_client.connection import (
    CONNECT_MS_MAX,
    CONNECTION_LOST,
    NO_REPLY,
    NO_SOCKET,
    Link,
    NoSocketLeft,
    has_come,
    is_lost,
    open_link,
    parsed,
    received,
    sent,
    why_unsent,
    with_endpoints,
)
from flotilla_client.errors import FlotillaError
from flotilla_client.forks import PerProcess, owned
from flotilla_client.joining import NEVER_MS, Call, Unheard
from flotilla_client.log import LOG
from flotilla_client.losses import Losses
from flotilla_client.names import Address
from flotilla_client.observer import Observer
from flotilla_client.old_names import deadline_of, idle_of, warn_of
from flotilla_client.operations import (
    BACK,
    Ask,
    Operations,
    PutResult,
    Steps,
    SubscribeResult,
    Turn,
)
from flotilla_client.probe import PROBE_MS_MAX, UNCONNECTED, explained
from flotilla_client.producer import (
    BATCH_BYTES,
    IN_FLIGHT_MAX,
    LINGER_MS,
    STOP_MS,
    Producer,
    finish_all,
    queue_full,
)
from flotilla_client.protocol import Reply, encode_request
from flotilla_client.reading import (
    Ack,
    Delivery,
    Loop,
    Message,
    Owner,
    Reader,
    Readers,
    check_ack,
    this_task,
)
from flotilla_client.retry import (
    DEADLINE_MS_MAX,
    Action,
    Close,
    Done,
    Exchange,
    Failed,
    Listen,
    Pause,
    Send,
)
from flotilla_client.rows import LevelRaised, NodeStatus, SubscriberInfo, TopicInfo
from flotilla_client.soon import Unanswered, no_room
from flotilla_client.spans import Tracer
from flotilla_client.state import OUTBOX_BYTES_MAX
from flotilla_client.turns import busy
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
NOT_BEGUN: Final = "flotilla: it was not begun, and nothing of it is sent or kept"
BEGUN: Final = "flotilla: it may have happened; if not, it stays in the outbox, and is sent"
LOOK_S: Final = 0.005  # about one fsync: what is waited for takes longer


class _Box:
    """Where an operation under way finds what has come for it from `endpoint`, or why nothing.

    `is_waiting`: for publications.
    """

    __slots__ = ("endpoint", "is_waiting", "news", "waiter")

    def __init__(self, is_waiting: bool) -> None:
        self.is_waiting = is_waiting
        self.endpoint: int | None = None
        self.news: deque[Reply | str] = deque()
        self.waiter: asyncio.Future[None] | None = None

    def put(self, news: Reply | str) -> None:
        """Wake the operation, if it waits."""
        self.news.append(news)
        if self.waiter is not None:
            _settle(self.waiter)


class _AsyncParts:
    """What a client is made of in one process: what is under way, and who hears of what comes.

    Sockets are read when the event loop says that there is something, and what comes goes to the
    operation whose request it answers: several are under way at once, on the same connection.
    """

    def __init__(self, session: Session) -> None:
        self.session = session
        self.context: Any = zmq.Context.instance()
        self.links: dict[int, Link] = {}
        self.lock = asyncio.Lock()
        self.takes: dict[tuple[str, str], asyncio.Lock] = {}  # by topic and group
        self.boxes: dict[str, _Box] = {}  # by the names of exchanges
        self.joined = session.joined(self, self._explain, now_ms)
        session.operations.resent = self._resent
        self.soon = _Soon()
        self.cause = ""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._news: list[asyncio.Future[None]] = []  # of those who wait for a connection
        self._pauses: dict[asyncio.Future[None], None] = {}  # in their order
        self._tasks: dict[object, asyncio.Task[None]] = {}  # by what they are for
        self._is_pumping = False
        self._due_ms = NEVER_MS
        self._opening_end_ms = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def here(self) -> asyncio.AbstractEventLoop:
        """Return the loop that runs; what another one has left under way is over.

        Raises RuntimeError while that one runs, in another thread: no call of either would end.
        """
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            if self._loop is not None:
                if self._loop.is_running():
                    raise RuntimeError(
                        "this AsyncClient is another event loop's, which runs in another thread:"
                        " give each loop a client of its own"
                    )
                self._move()
            self._loop = loop
        return loop

    def _move(self) -> None:
        self._loop = None
        self.close_all()
        self.takes = {}
        self.lock = asyncio.Lock()
        self.joined.stop(*self.session.closing_errors())
        self.session.operations.resending = ""
        self._news, self._tasks, self._timer = [], {}, None
        self.soon, self._pauses = _Soon(), {}
        self._is_pumping, self._due_ms = False, NEVER_MS

    # --- what is joined ---------------------------------------------------------------------------

    def add(self, call: Call) -> None:
        """Publish, joined with all that is called before the loop comes to it."""
        self.joined.add(call)
        self.pump_soon()

    def pump_soon(self) -> None:
        """Go on with what is joined, behind what is due in the loop now."""
        if not self._is_pumping:
            self._is_pumping = True
            (self._loop or self.here()).call_soon(self._pump)

    def _resent(self) -> None:
        """A topic's outbox may be sent by who publishes to it again."""
        if self._loop is not None and not self._loop.is_closed():
            self.pump_soon()

    def _pump(self) -> None:
        self._is_pumping, joined = False, self.joined
        try:
            due_ms = joined.turn()
        except FlotillaError as error:  # the disk's
            joined.stop(error, error)
            return
        except Exception as error:
            defect = FlotillaError(f"a defect of the client: {error!r}", "internal", False)
            joined.stop(defect, defect)
            raise
        if due_ms is None:
            if "open" in self._tasks:
                joined.end_late(self._opening_end_ms)
            self._begin("open", self._open)
            due_ms = joined.first_end_ms()
            if due_ms >= self._opening_end_ms:
                return  # the opening ends by then
        if due_ms < self._due_ms:
            self._set_timer(due_ms)

    def _set_timer(self, due_ms: float) -> None:
        """Look again then, and no later."""
        if self._timer is not None:
            self._timer.cancel()
        self._due_ms = due_ms
        left_s = max(0.0, due_ms - now_ms()) / 1000
        self._timer = self.here().call_later(left_s, self._look)

    def _look(self) -> None:
        self._due_ms, self._timer = NEVER_MS, None
        self._pump()

    def _begin(self, purpose: object, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Begin a task of its own, unless there is one for that purpose; pump behind its end."""

        def ended(_: asyncio.Task[None]) -> None:
            self._tasks.pop(purpose, None)
            self.pump_soon()

        if purpose not in self._tasks:
            self._tasks[purpose] = self.here().create_task(work())
            # Not by the task itself: one that is collected behind its loop's end runs without one.
            self._tasks[purpose].add_done_callback(ended)

    async def _open(self) -> None:
        end_ms = self._opening_end_ms = self.joined.opening_end_ms()
        try:
            async with _AsyncTurn(self.lock, end_ms) as turn:
                await turn.take()
                await self.carry_out(self.session.operations.open(), end_ms, turn)
        except FlotillaError as error:
            self.joined.not_opened(error)

    def _explain(self, error: FlotillaError, then: Callable[[FlotillaError], None]) -> None:
        told = with_endpoints(error, self.session.endpoints)

        async def explain() -> None:
            nonlocal told
            told = await self.explained(error)

        if UNCONNECTED.isdisjoint(error.details.get("causes", {}).values()):
            then(told)
        else:
            self._begin(error, explain)
            # However it ends: an application may cancel it, with all others.
            self._tasks[error].add_done_callback(lambda _: then(told))

    async def explained(self, error: FlotillaError) -> FlotillaError:
        """`explained` in a thread, as it waits; without it if no thread is free."""
        endpoints = self.session.endpoints
        explaining = asyncio.to_thread(explained, error, endpoints, self.session.key is not None)
        with suppress(TimeoutError):
            error = await asyncio.wait_for(explaining, 2 * PROBE_MS_MAX / 1000)
        return with_endpoints(error, endpoints)

    # --- connections ------------------------------------------------------------------------------

    def send(self, endpoint: int, frames: Sequence[bytes], timeout_ms: float) -> bool | None:
        """See `joining.Wire`."""
        link = self._standing(endpoint)
        if link is not None and sent(link, frames):
            if has_come(link):
                self._look_soon(endpoint)
            return True

        async def connect() -> None:
            try:
                cause = await self.connected(endpoint, now_ms() + min(timeout_ms, CONNECT_MS_MAX))
            except FlotillaError as error:
                self.joined.unusable(endpoint, error)
                return
            if cause:
                self.joined.unconnected(endpoint, cause)

        self._begin(endpoint, connect)
        return None

    def close(self, endpoint: int) -> None:
        """See `joining.Wire`: whoever waits for a reply on it gets none."""
        link = self.links.pop(endpoint, None)
        if link is not None:
            if self._loop is not None:
                self._loop.remove_reader(link.socket.getsockopt(zmq.FD))
                self._loop.remove_reader(link.monitor.getsockopt(zmq.FD))
            link.close()
            self._gone(endpoint, CONNECTION_LOST)

    def close_all(self) -> None:
        """Close every connection."""
        for endpoint in tuple(self.links):
            self.close(endpoint)

    async def connected(self, endpoint: int, until_ms: float) -> str:
        """Wait for a connection to the endpoint; return why there is none by then, "" if one is."""
        link = self._standing(endpoint)
        if link is None:
            address = Address(self.session.endpoints[endpoint])
            await _until(address.is_over, until_ms)
            if address.failure:
                return address.failure
            try:
                link = self.links.get(endpoint) or self._opened(endpoint, address)
            except NoSocketLeft:
                return NO_SOCKET
        while self.links.get(endpoint) is link and not is_lost(link):
            if link.socket.getsockopt(zmq.EVENTS) & zmq.POLLOUT:
                return ""
            if not await self._heard(until_ms):
                return why_unsent(lost=False)
        return why_unsent(lost=True)

    def _standing(self, endpoint: int) -> Link | None:
        """Return the endpoint's link, unless it was lost."""
        link = self.links.get(endpoint)
        if link is not None and is_lost(link):
            self.close(endpoint)
            return None
        return link

    def _opened(self, endpoint: int, address: Address) -> Link:
        link = self.links[endpoint] = open_link(self.context, address, self.session.key)
        loop = self.here()
        loop.add_reader(link.socket.getsockopt(zmq.FD), self._look_at, endpoint)
        loop.add_reader(link.monitor.getsockopt(zmq.FD), self._look_at_monitor, endpoint)
        self._look_soon(endpoint)
        return link

    async def _heard(self, until_ms: float) -> bool:
        """Wait until something has happened to a link; return whether it has by then."""
        loop = self.here()
        waiter = loop.create_future()
        self._news.append(waiter)
        timer = loop.call_later(max(0.0, until_ms - now_ms()) / 1000, waiter.cancel)
        try:
            await asyncio.wait([waiter])
        finally:
            timer.cancel()
        return not waiter.cancelled()

    def _look_soon(self, endpoint: int) -> None:
        """Look at a link: its descriptor says nothing of what a send or a look has seen by then."""
        self.here().call_soon(self._look_at_monitor, endpoint)

    def _look_at_monitor(self, endpoint: int) -> None:
        """Take what has come on a link, and the news that it was lost."""
        link = self.links.get(endpoint)
        if link is not None:
            self._look_at(endpoint)
            if is_lost(link):
                self._gone(endpoint, CONNECTION_LOST)

    def _look_at(self, endpoint: int) -> None:
        """Take what has come on a link."""
        link = self.links.get(endpoint)
        if link is None:
            return
        for frames in received(link):
            reply = parsed(frames)
            if reply is None:
                self._gone(endpoint, NO_REPLY)
            else:
                self._replied(reply)
        if self._news:
            news, self._news = self._news, []
            for waiter in news:
                _settle(waiter)

    def _replied(self, reply: Reply) -> None:
        box = None
        if self.boxes:
            box = self.boxes.get(reply.request_id.rpartition(".")[0])
        if box is not None:
            box.put(reply)
        elif self.joined.is_work:
            self.session.heard_ms = now_ms()
            self.joined.replied(reply)
            self.pump_soon()

    def _gone(self, endpoint: int, cause: str) -> None:
        for box in self.boxes.values():
            if box.endpoint == endpoint and box.waiter is not None:
                box.put(cause)
        if self.joined.is_work:
            self.joined.lost(endpoint, cause)
            self.pump_soon()

    def end_waits(self) -> None:
        """Let nobody wait for publications any longer: the client is about to be closed."""
        for box in tuple(self.boxes.values()):
            if box.is_waiting:
                box.put("the client was closed")

    def end_all(self) -> None:
        """Let nothing wait any longer: the client is closed."""
        self.joined.stop(*self.session.closing_errors())
        for box in tuple(self.boxes.values()):
            box.put("the client was closed")
        for waiter in tuple(self._pauses):
            _settle(waiter)

    # --- operations -------------------------------------------------------------------------------

    async def carry_out(self, steps: Steps[T], end_ms: float, turn: _AsyncTurn) -> T:
        """Drive steps to their end; they have the turn, or take it when they need it."""
        try:
            wish = next(steps)
            while True:
                if isinstance(wish, Turn):
                    if wish is BACK:
                        turn.give_back()
                    else:
                        await turn.take()
                    wish = steps.send(None)
                    continue
                try:
                    done = await self._exchange(wish, end_ms)
                except FlotillaError as error:
                    wish = steps.throw(error)
                else:
                    wish = steps.send(done)
        except StopIteration as stop:
            result: T = stop.value
            return result
        finally:
            steps.close()  # and not when it is collected: what it had under way is over now

    async def _exchange(self, ask: Ask, end_ms: float) -> Done:
        exchange = self.session.exchange(ask, end_ms)
        box = self.boxes[exchange.name] = _Box(ask.wait_ms > 0)
        try:
            return await self._exchanged(exchange, ask, box)
        finally:
            del self.boxes[exchange.name]

    async def _exchanged(self, exchange: Exchange, ask: Ask, box: _Box) -> Done:
        actions = exchange.started(now_ms())
        while True:
            for action in actions:
                match action:
                    case Done():
                        return action
                    case Failed(error):
                        raise await self.explained(error)
                    case Close(endpoint):
                        self.close(endpoint)
                    case Pause(wait_ms):
                        await self._pause(wait_ms)
                        actions = exchange.resumed(now_ms())
                    case Send():
                        self.session.check_going_on(box.is_waiting)
                        actions = await self._send(exchange, ask, action, box)
                    case Listen(endpoint, timeout_ms):
                        actions = await self._listen(exchange, endpoint, timeout_ms, box)
                    case _:
                        assert_never(action)

    async def _pause(self, wait_ms: float) -> None:
        """Sleep, until the client is closed at most."""
        self.session.check_going_on()
        waiter = self.here().create_future()
        timer = self.here().call_later(wait_ms / 1000, _settle, waiter)
        self._pauses[waiter] = None
        try:
            await waiter
        finally:
            self._pauses.pop(waiter, None)
            timer.cancel()

    async def _send(self, exchange: Exchange, ask: Ask, action: Send, box: _Box) -> list[Action]:
        ask.request.request_id = action.request_id
        start_ms, endpoint = now_ms(), action.endpoint
        link = self._standing(endpoint)
        if link is None or not sent(link, encode_request(ask.request)):
            until_ms = start_ms + min(action.timeout_ms, CONNECT_MS_MAX)
            cause = await self.connected(endpoint, until_ms)
            link = self.links.get(endpoint)
            if cause or link is None or not sent(link, encode_request(ask.request)):
                return exchange.unsent(now_ms(), cause or why_unsent(lost=False))
        if has_come(link):
            self._look_soon(endpoint)
        left_ms = start_ms + action.timeout_ms - now_ms()
        return await self._listen(exchange, endpoint, left_ms, box)

    async def _listen(
        self, exchange: Exchange, endpoint: int, timeout_ms: float, box: _Box
    ) -> list[Action]:
        link = self.links.get(endpoint)
        if not box.news and (link is None or is_lost(link)):
            return self.session.replied(exchange, None, CONNECTION_LOST)
        if not box.news:
            loop = self.here()
            box.endpoint, box.waiter = endpoint, loop.create_future()
            timer = loop.call_later(max(0.0, timeout_ms) / 1000, _settle, box.waiter)
            try:
                await box.waiter
            finally:
                timer.cancel()
                box.waiter = None
        news = box.news.popleft() if box.news else "no answer"
        if isinstance(news, str):
            self.session.check_going_on(box.is_waiting)
            return self.session.replied(exchange, None, news)
        return self.session.replied(exchange, news)


class _Soon:
    """What was published soon and has no answer, in one event loop."""

    def __init__(self) -> None:
        self._unanswered = Unanswered()
        self._turn = asyncio.Lock()  # who waits for room is served first
        self._change: asyncio.Future[None] | None = None  # somebody waits for an answer

    async def room(self, end_ms: float) -> None:
        """Wait until one more may come. Raises Overloaded at `end_ms`."""
        if self._unanswered.has_room() and not self._turn.locked():
            return
        try:
            async with asyncio.timeout(max(0.0, end_ms - now_ms()) / 1000), self._turn:
                while not self._unanswered.has_room():
                    await self._changed()
        except TimeoutError:
            raise no_room() from None

    async def drained(self, end_ms: float) -> None:
        """Wait until all have their answer, until `end_ms` at most."""
        with suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, end_ms - now_ms()) / 1000):
                while self._unanswered.count:
                    await self._changed()

    async def _changed(self) -> None:
        if self._change is None or self._change.done():
            self._change = asyncio.get_running_loop().create_future()
        await asyncio.wait([self._change])

    def begin(self, call: Call, future: asyncio.Future[PutResult]) -> None:
        """Count a call until its future is done; who cancels that takes it back, if in time."""
        unanswered, size_bytes = self._unanswered, call.size_bytes
        unanswered.count += 1
        unanswered.size_bytes += size_bytes

        def done(future: asyncio.Future[PutResult]) -> None:
            if future.cancelled():
                call.leave()
            unanswered.count -= 1
            unanswered.size_bytes -= size_bytes
            if self._change is not None:
                _settle(self._change)

        future.add_done_callback(done)

    @staticmethod
    def told(call: Call, future: asyncio.Future[PutResult]) -> None:
        """Answer a call's future, unless it was cancelled, or nobody can ask it any more."""
        if future.done() or future.get_loop().is_closed():
            return
        try:
            [result] = call.results()
        except Exception as error:  # noqa: BLE001, whatever it is, it is the caller's
            future.set_exception(error)
        else:
            future.set_result(result)


def _settle(future: asyncio.Future[None]) -> None:
    """Wake who waits for it, unless its loop was closed under him."""
    if not (future.done() or future.get_loop().is_closed()):
        future.set_result(None)


class AsyncClient:
    """A client of a Flotilla cluster for asyncio; parameters and errors as `Client`'s.

    Operations run beside each other: what several tasks publish is joined, and reads wait for
    nobody. What changes the client itself (`subscribe`, `adopt`, …) takes turns. Cancelling one
    leaves the others alone: a cancelled `publish` was never taken, or may have happened and stays
    in the outbox if not (the error's notes say which); a cancelled `get` has taken nothing.
    """

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

        def make() -> _AsyncParts:
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
            )
            with session.closed_if_broken_off():
                return _AsyncParts(session)

        self._parts = PerProcess(make, owned(state_dir, name))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._close(is_done=kind is None)

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
        """When a node last answered; see `Client.heard_ms`."""
        return self._session.heard_ms

    async def open(self) -> None:
        """Take up this client's id at the cluster and resend the outbox; operations do it too."""
        await self._run(self._operations.open())

    async def close(self) -> None:
        """Close producers, sockets and state; see `Client.close`. Cancelled, it does so at once."""
        await self._close(is_done=sys.exc_info()[0] is None)

    async def _close(self, is_done: bool) -> None:
        owner = this_task()
        parts = self._parts.existing()
        if parts is None:
            return
        parts.here()
        try:
            await self._end(parts, owner, is_done)
        except asyncio.CancelledError:  # it waits for nobody any more, and is closed all the same
            self._shut_at_once(parts, owner, is_done)
            raise
        parts.session.operations.warn()

    async def _end(self, parts: _AsyncParts, owner: Owner, is_done: bool) -> None:
        session, end_ms = parts.session, now_ms() + parts.session.deadline_ms
        await parts.soon.drained(end_ms)
        words_end_ms = end_of_words(end_ms)
        try:
            await self._give_back_work(words_end_ms)
            for steps in session.last_words(owner, is_done):
                try:
                    await self._read(steps, words_end_ms - now_ms())
                except FlotillaError as error:
                    LOG.warning(NOT_TOLD, session.name, error)
        except Exception:  # an observer's, or a record's: it is closed all the same
            await self._shut(parts, owner, end_ms, is_done)
            raise
        await self._shut(parts, owner, end_ms, is_done)

    @staticmethod
    def _shut_at_once(parts: _AsyncParts, owner: Owner, is_done: bool) -> None:
        session = parts.session
        session.begin_closing()
        parts.end_all()
        finish_all(tuple(session.producers.values()), now_ms())
        parts.close_all()
        session.close(owner, is_done)

    @staticmethod
    async def _shut(parts: _AsyncParts, owner: Owner, end_ms: float, is_done: bool) -> None:
        session = parts.session
        session.begin_closing()
        parts.end_all()
        producers = tuple(session.producers.values())
        for producer in producers:
            producer.begin_closing()
        for producer in producers:
            await _finished(producer, end_ms)
        # Its time may be over, as it waited for answers; who is under way ends at the next look.
        async with _AsyncTurn(parts.lock, max(end_ms, now_ms() + CLOSE_MS)) as turn:
            await turn.take()
            parts.close_all()
            session.close(owner, is_done)

    async def subscribe(self, topic: str, start: str | int | datetime = "new") -> SubscribeResult:
        """Subscribe durably; see `Client.subscribe`."""
        return await self._run(self._session.subscribe(topic, start))

    async def seek(self, topic: str, start: str | int | datetime) -> int:
        """Move the own subscription to `start`, to either side; see `Client.seek`."""
        return await self._run(self._session.seek(topic, start))

    async def read(self, topic: str, from_id: int, max_count: int = 1) -> Delivery | None:
        """Return publications of a topic from an id on; see `Client.read`."""
        return await self._read(self._session.read(topic, from_id, max_count))

    async def read_runs(self, topic: str, from_id: int, max_count: int = 1) -> list[Delivery]:
        """Return publications of a topic in all runs of one answer; see `Client.read_runs`."""
        return await self._read(self._session.read_runs(topic, from_id, max_count))

    async def unsubscribe(self, topic: str, *, client_id: str | None = None) -> bool:
        """End a subscription; return whether there was one. Idempotent.

        `client_id`: another client's, whose state directory is lost: nobody else can end it.
        """
        return await self._run(self._session.unsubscribe(topic, client_id))

    async def publish(
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
        """Publish, joined with what other tasks publish meanwhile; see `Client.publish`."""
        parts = self._parts.here()
        with parts.session.spans.publishing(topic) as span:
            own = publication_of(publication, key, headers, expires, deliver_after)
            publication = span.carried(own)
            unheard = unheard_of(allow_unheard)
            result = await self._publish_one(parts, topic, publication, timeout, unheard)
            span.stored(result)
        return result

    async def publish_many(
        self,
        topic: str,
        publications: Sequence[Publishable],
        *,
        timeout: Duration | None = None,
        allow_unheard: bool = False,
    ) -> list[PutResult]:
        """Publish in order, packed; see `Client.publish_many`."""
        with self._session.spans.publishing(topic) as span:
            carried = span.all_carried(publications)
            return await self._publish_all(topic, carried, timeout, unheard_of(allow_unheard))

    async def publish_soon(
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
    ) -> asyncio.Future[PutResult]:
        """Publish without waiting for the answer, which the future has; see `Client.publish_soon`.

        It waits only for room. The event loop sends what is there.
        """
        parts = self._parts.here()
        future: asyncio.Future[PutResult] = parts.here().create_future()
        session, unheard = parts.session, unheard_of(allow_unheard)
        end_ms = session.end_ms(timeout)

        def told() -> None:
            parts.soon.told(call, future)

        with session.spans.publishing(topic) as span:
            own = publication_of(publication, key, headers, expires, deliver_after)
            publication = span.carried(own)
            call = session.put_one(topic, publication, end_ms, told, unheard)
            await parts.soon.room(end_ms)
            session.check_open()
            parts.soon.begin(call, future)
            parts.add(call)
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
    ) -> Coroutine[Any, Any, PutResult]:
        """Publish; see `Client.put`. It warns where it is called, not where it is awaited."""
        warn_of("put", "publish; with allow_unheard=True it raises no NoSubscribers")
        publication = publication_of(publication, key, headers, expires)
        return self._publish_one(self._parts.here(), topic, publication, None, "warn")

    @staticmethod
    async def _publish_one(
        parts: _AsyncParts,
        topic: str,
        publication: Publishable,
        timeout: Duration | None,
        unheard: Unheard,
    ) -> PutResult:
        session, told = parts.session, parts.here().create_future()
        end_ms = session.end_ms(timeout)
        call = session.put_one(topic, publication, end_ms, partial(_settle, told), unheard)
        parts.add(call)
        try:
            await told
        except asyncio.CancelledError as error:
            _leave([call], error)
            raise
        session.operations.warn()
        [result] = call.results()
        return result

    async def _publish_all(
        self,
        topic: str,
        publications: Sequence[Publishable],
        timeout: Duration | None,
        unheard: Unheard,
    ) -> list[PutResult]:
        session = self._session
        end_ms = session.end_ms(timeout)
        [call] = await self._publish(
            lambda told: [session.put(topic, publications, end_ms, told, unheard)]
        )
        return call.results()

    def put_many(
        self, topic: str, publications: Sequence[Publishable]
    ) -> Coroutine[Any, Any, list[PutResult]]:
        """Publish in order, packed; see `Client.put_many`, and `put` here."""
        warn_of("put_many", "publish_many; with allow_unheard=True it raises no NoSubscribers")
        return self._publish_all(topic, publications, None, "warn")

    async def enqueue(self, topic: str, publications: Sequence[Publishable]) -> int:
        """Put publications into the outbox; see `Client.enqueue`."""
        session, end_ms = self._session, self._end_ms()
        lane, steps = session.enqueue(topic, publications)
        if self._parts.here().joined.has_waiting(lane):  # and was called before
            await self._publish(lambda told: [Call(lane, (), end_ms, told)])
        return await self._run(steps, end_ms - now_ms())

    async def flush(self) -> None:
        """Send what stands in the outbox; see `Client.flush`."""
        session, end_ms = self._session, self._end_ms()
        try:
            await self._run(session.operations.open())
            for call in await self._publish(partial(session.flush, end_ms)):
                call.results()
        except FlotillaError as error:
            raise session.not_flushed(error) from error

    async def next_counter(self, topic: str) -> int:
        """Return the counter that the topic's next publication gets."""
        return await self._run(self._operations.next_counter(topic))

    def get(
        self,
        topic: str | None = None,
        wait_ms: float | None = None,
        max_count: int = 1,
        ack: Ack = "auto",
        *,
        timeout: Duration | None = None,
        idle: Duration | None = None,
    ) -> Coroutine[Any, Any, Delivery | None]:
        """Return the next publications, or None if none came; see `Client.get`.

        The task that calls it reads.
        """
        check_ack(ack)
        idle_ms = idle_of(idle, "wait_ms", wait_ms)
        gets = self._session.get(topic, max_count, idle_ms, timeout)
        return self._get(Reader(this_task(), topic, ack), gets)

    async def _get(
        self, reader: Reader, gets: Iterator[tuple[Steps[Delivery | None], float]]
    ) -> Delivery | None:
        readers = self._readers
        self._session.check_open()
        try:
            with readers.reading(reader):
                for steps, deadline_ms_max in gets:
                    delivery = readers.hand_over(reader, await self._read(steps, deadline_ms_max))
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
    ) -> AsyncMessages:
        """Return an asynchronous iterator over publications; see `Client.messages`."""
        return AsyncMessages(
            self, self._session.loop(topic, ack, idle_of(idle, "idle_ms", idle_ms))
        )

    async def _fetch(self, loop: Loop) -> Delivery | None:
        for steps, _ in self._session.gets_of(loop):
            delivery = await self._read(steps)
            if delivery is not None:
                return delivery
        return None

    async def make_group(
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
        """Let what is published to a topic be work for a group; see `Client.make_group`."""
        settings = GroupSettings.of(lease, max_attempts, dead_letter, ordered_by_key, start)
        check_group(topic, group)
        return await self._run(make_group(self._operations, topic, group, settings))

    async def end_group(self, topic: str, group: str) -> bool:
        """End a group, whoever works in it; return whether there was one."""
        check_group(topic, group)
        return await self._run(end_group(self._operations, topic, group))

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
    ) -> AsyncWorkItems:
        """Return an asynchronous iterator over a group's publications; see `Client.work`."""
        settings = GroupSettings.of(lease, max_attempts, dead_letter, ordered_by_key, start)
        session = self._session
        return AsyncWorkItems(
            self, session.work(topic, group, settings, ack, prefetch, idle, self._extend)
        )

    async def _extend(self, item: WorkItem, lease_ms: int) -> None:
        book, end_ms = item._book, self._end_ms()
        begin_extending(item, lease_ms)
        while book.is_to_be_said(item):
            await self._take(book, 0, None, 0, end_ms)
        if item.settled == "lost":
            raise lease_lost(item)

    async def _take(
        self,
        book: LeaseBook,
        max_count: int,
        lease_ms: int | None,
        wait_ms: int,
        end_ms: float,
    ) -> None:
        """TAKE; one at a time of a group, each is answered before the next."""
        parts = self._parts.here()
        parts.here()
        lock = parts.takes.setdefault((book.topic, book.group), asyncio.Lock())
        async with _AsyncTurn(lock, end_ms) as turn:
            await turn.take()
            steps = take(self._operations, book, max_count, lease_ms, wait_ms)
            await self._read(steps, end_ms - now_ms())

    async def _say_what_is_settled(self, book: LeaseBook, end_ms: float) -> None:
        """Tell the cluster what was said so far of work that others of this client still do."""
        while book.is_unsaid:
            await self._take(book, 0, None, 0, end_ms)

    async def _give_back(self, book: LeaseBook, end_ms: float) -> None:
        """Tell the cluster all that is to be told of work that nobody here does any more."""
        while book.is_left:
            book.give_back()
            await self._take(book, 0, None, 0, end_ms)

    def _begin_ending(self) -> Sequence[LeaseBook]:
        self._parts.here().end_waits()
        return self._session.begin_ending()

    async def _give_back_work(self, end_ms: float) -> None:
        for book in self._begin_ending():
            try:
                await self._give_back(book, end_ms)
            except FlotillaError as error:
                LOG.warning(NOT_GIVEN_BACK, book.group, book.topic, error)

    def acknowledge(self, topic: str, last_id: int) -> None:
        """Store that all up to `last_id` is done with; see `Client.acknowledge`."""
        self._session.acknowledge(topic, last_id)

    async def subscribers(self, topic: str) -> list[SubscriberInfo]:
        """Return a topic's subscribers: `client_id`, `cursor`, `backlog` of each."""
        return await self._read(self._operations.subscribers(topic))

    async def adopt(self) -> Losses:
        """Take it as it is what the cluster has lost of what it told this client; see `Client`."""
        return await self._run(self._session.adopt())

    async def topics(self, everything: bool = False) -> list[TopicInfo]:
        """Return this client's subscriptions, or every topic (rows as in docs/protocol.md)."""
        return await self._read(self._session.topics(everything))

    async def patterns(self) -> list[str]:
        """Return the patterns of topics that this client subscribes to."""
        return await self._read(self._operations.patterns())

    async def status(self, endpoint: int | None = None) -> NodeStatus:
        """Return a node's own view of itself; `endpoint` is an index into `endpoints`."""
        return await self._read(self._session.status(endpoint), STATUS_DEADLINE_MS)

    async def upgrade(self, level: int | None = None) -> LevelRaised:
        """Raise the cluster's feature level to `level`; None: to the highest that any member has.

        Returns the level now and `before`. Raises NotUpgraded unless every member is connected and
        understands it. There is no way back: see "Upgrade" in docs/deploy.md.
        """
        return await self._run(self._session.upgrade(level))

    async def producer(
        self,
        topic: str,
        *,
        linger_ms: float = LINGER_MS,
        batch_bytes: int = BATCH_BYTES,
        in_flight_max: int = IN_FLIGHT_MAX,
    ) -> AsyncProducer:
        """Return the topic's background producer; it alone publishes to the topic until closed."""
        end_ms = self._end_ms()
        steps = self._session.producer(topic, linger_ms, batch_bytes, in_flight_max)
        if topic in self._parts.here().joined.topics:  # and was called before
            await self._publish(lambda told: [Call(topic, (), end_ms, told)])
        return AsyncProducer(await self._run(steps, end_ms - now_ms()))

    # --- driving --------------------------------------------------------------------------------

    async def _run(self, steps: Steps[T], deadline_ms_max: float = DEADLINE_MS_MAX) -> T:
        """Run what changes the client itself: one at a time."""
        return await self._drive(steps, deadline_ms_max, is_alone=True)

    async def _read(self, steps: Steps[T], deadline_ms_max: float = DEADLINE_MS_MAX) -> T:
        """Run what only asks, beside all else."""
        return await self._drive(steps, deadline_ms_max, is_alone=False)

    async def _drive(self, steps: Steps[T], deadline_ms_max: float, is_alone: bool) -> T:
        parts = self._parts.here()
        parts.here()
        session = parts.session
        session.check_open()
        end_ms = now_ms() + min(session.deadline_ms, deadline_ms_max)
        async with _AsyncTurn(parts.lock, end_ms, is_alone) as turn:
            if is_alone:
                await turn.take()
                session.check_open()
            result = await parts.carry_out(steps, end_ms, turn)
        session.operations.warn()
        return result

    def _end_ms(self) -> float:
        return now_ms() + self._session.deadline_ms

    async def _publish(
        self, make: Callable[[Callable[[], object]], Sequence[Call]]
    ) -> Sequence[Call]:
        """Publish what `make(told)` returns, joined with what other tasks do."""
        parts = self._parts.here()
        told = parts.here().create_future()
        calls: Sequence[Call] = ()

        def look() -> None:
            if all(call.is_over for call in calls):
                _settle(told)

        calls = make(look)
        for call in calls:
            parts.add(call)
        try:
            if calls:
                await told
        except asyncio.CancelledError as error:
            _leave(calls, error)
            raise
        parts.session.operations.warn()
        return calls


def _leave(calls: Sequence[Call], error: asyncio.CancelledError) -> None:
    """Say of cancelled calls what is known of them."""
    error.add_note(NOT_BEGUN if all([call.leave() for call in calls]) else BEGUN)


class _AsyncTurn:
    """The turn of one operation: `async with`, and `take` it. First come, first served.

    `is_alone`: it has it to its end. Raises Busy at `end_ms`.
    """

    def __init__(self, lock: asyncio.Lock, end_ms: float, is_alone: bool = False) -> None:
        self._lock, self._end_ms = lock, end_ms
        self._is_taken, self._is_alone = False, is_alone

    async def take(self) -> None:
        """Wait for it, unless one has it."""
        if self._is_taken:
            return
        try:
            async with asyncio.timeout(max(0.0, self._end_ms - now_ms()) / 1000):
                await self._lock.acquire()
        except TimeoutError:
            raise busy("others took all of its time") from None
        self._is_taken = True

    def give_back(self) -> None:
        """Let others have it, unless the operation has to be alone to its end."""
        if self._is_taken and not self._is_alone:
            self._is_taken = False
            self._lock.release()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._is_taken:
            self._lock.release()


class AsyncMessages(AsyncIterator[Message]):
    """`Messages` for asyncio."""

    def __init__(self, client: AsyncClient, loop: Loop) -> None:
        self._client, self._loop = client, loop

    def __anext__(self) -> Coroutine[Any, Any, Message]:
        """Return the next message, once there is one; "auto": the one before is acknowledged."""
        return self._next(this_task())

    async def _next(self, owner: Owner) -> Message:
        loop, readers = self._loop, self._client._readers
        if loop.has_ended:
            raise StopAsyncIteration
        reader = loop.enter(owner, readers)
        try:
            while (message := readers.next_message(reader)) is None:
                if loop.has_ended:  # another task has closed it meanwhile
                    raise StopAsyncIteration
                delivery = await self._client._fetch(loop)
                if delivery is not None:
                    readers.fetched(reader, delivery)
                elif not loop.is_endless:
                    loop.has_ended = True
                    raise StopAsyncIteration
        except BaseException:
            loop.leave()
            raise
        loop.is_waiting = False
        return message

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if kind is None:
                self._loop.end_in_order(self._client._readers)
        finally:  # the disk may refuse the acknowledgment: the loop has ended all the same
            await self.close()

    def __del__(self) -> None:
        self._loop.leave()

    async def close(self) -> None:
        """End the loop, in whatever task; see `Messages.close`."""
        self._loop.close()

    aclose = close  # what `contextlib.aclosing` calls


class AsyncWorkItems(AsyncIterator[WorkItem]):
    """`WorkItems` for asyncio."""

    def __init__(self, client: AsyncClient, loop: WorkLoop) -> None:
        self._client, self._loop = client, loop

    async def __anext__(self) -> WorkItem:
        """Return the next item, once there is one; "auto": the one before is acknowledged."""
        client, loop = self._client, self._loop
        if loop.is_over:
            raise StopAsyncIteration
        loop.book.check_here()
        operations, book, end_ms = client._operations, loop.book, client._end_ms()
        if not loop.has_begun:
            await client._run(make_group(operations, book.topic, book.group, loop.settings))
            loop.begin(this_task())
        loop.come_back(this_task())
        while (item := loop.item()) is None:
            await client._take(book, *loop.wish(), end_ms)
            end_ms = client._end_ms()
            if loop.is_at_end:
                loop.end()
                await client._say_what_is_settled(book, end_ms)
                raise StopAsyncIteration
        return item

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            await self._end(is_done=True)
            return
        try:
            await self._end(is_done=False)
        except FlotillaError as late:  # the application has its own error to look at
            LOG.warning(NOT_GIVEN_BACK, self._loop.book.group, self._loop.book.topic, late)

    def __del__(self) -> None:
        if not self._loop.is_over:
            self._loop.leave(is_done=False)

    async def close(self) -> None:
        """End the loop; what it was left with, or others still have of it, is given back, now."""
        await self._end(is_done=False)

    aclose = close  # what `contextlib.aclosing` calls

    async def _end(self, is_done: bool) -> None:
        if self._loop.leave(is_done):
            await self._client._give_back(self._loop.book, self._client._end_ms())


class AsyncProducer:
    """`Producer` for asyncio: `send` waits while the queue is full, and returns a future.

    It looks now and then (`LOOK_S`) whether what it waits for has come, in place of a thread each:
    those are few, and the application's as well.
    """

    def __init__(self, producer: Producer) -> None:
        self._producer = producer
        self._sending = asyncio.Lock()  # who waits for room is served first

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def send(
        self,
        publication: Publishable,
        *,
        key: str | bytes | None = None,
        headers: Mapping[str, str | bytes] | None = None,
        expires: float | timedelta | None = None,
    ) -> asyncio.Future[PutResult]:
        """Queue a publication; the future's result has its own id. Errors as `Producer.send`'s."""
        publication = publication_of(publication, key, headers, expires)
        end_ms = now_ms() + self._producer.deadline_ms
        try:
            async with asyncio.timeout(self._producer.deadline_ms / 1000), self._sending:
                while not self._producer.has_room() and now_ms() < end_ms:
                    await asyncio.sleep(LOOK_S)
                return asyncio.wrap_future(self._producer.send_by(publication, end_ms))
        except TimeoutError:
            raise queue_full() from None

    async def flush(self) -> None:
        """Wait until all sent so far has its answer or its error; see `Producer.flush`."""
        end_ms = now_ms() + self._producer.deadline_ms + STOP_MS
        due = self._producer.begin_flushing()
        await _until(lambda: self._producer.has_answered(due), end_ms)
        self._producer.check_flushed(due)
        self._producer.warn()

    async def close(self) -> None:
        """Flush, then stop; see `Producer.close`. Cancelled, it stops at once."""
        if self._producer.is_here():
            self._producer.begin_closing()
            try:
                await _finished(self._producer, now_ms() + self._producer.deadline_ms)
            except asyncio.CancelledError:  # or nobody could publish to the topic any more
                self._producer.finish(now_ms())
                raise
        self._producer.warn()


async def _finished(producer: Producer, end_ms: float) -> None:
    """Await what `Producer.finish` waits for."""
    due = producer.begin_flushing()
    await _until(lambda: producer.has_answered(due), end_ms)
    producer.stop()
    await _until(producer.has_ended, max(end_ms, now_ms()) + STOP_MS)
    producer.let_go()


async def _until(condition: Callable[[], bool], end_ms: float) -> None:
    while not condition() and now_ms() < end_ms:
        await asyncio.sleep(LOOK_S)
