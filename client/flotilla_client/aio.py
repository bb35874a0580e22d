"""`AsyncClient`: `Client` with `await`, over zmq.asyncio.

What lives here: the awaiting twin of `Client`'s loop and of `Connection`'s two waits. What must
not: anything that both sides share (operations.py, retry.py, state.py, `Session`).

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
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Final, NoReturn, Self, TypeVar

import zmq
import zmq.asyncio

from flotilla_client.client import (
    DEADLINE_MS_MAX,
    MESSAGES_COUNT,
    MESSAGES_WAIT_MS,
    STATUS_DEADLINE_MS,
    Session,
    now_ms,
)
from flotilla_client.connection import (
    CONNECT_MS_MAX,
    CONNECTION_LOST,
    NO_REPLY,
    Link,
    framed,
    open_link,
    parsed,
    why_unsent,
    with_endpoints,
)
from flotilla_client.errors import FlotillaError
from flotilla_client.forks import PerProcess
from flotilla_client.losses import Losses
from flotilla_client.names import Address
from flotilla_client.observer import Observer
from flotilla_client.operations import (
    Ask,
    Operations,
    PutResult,
    Steps,
    SubscribeResult,
)
from flotilla_client.probe import PROBE_MS_MAX, explained
from flotilla_client.producer import (
    BATCH_BYTES,
    IN_FLIGHT_MAX,
    LINGER_MS,
    STOP_MS,
    Producer,
    queue_full,
)
from flotilla_client.protocol import encode_request
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
    DEADLINE_MS,
    Action,
    Close,
    Done,
    Exchange,
    Failed,
    Listen,
    Pause,
    Send,
)
from flotilla_client.state import OUTBOX_BYTES_MAX
from flotilla_client.turns import busy

T = TypeVar("T")
LOOK_S: Final = 0.005  # about one fsync: what is waited for takes longer


@dataclass(slots=True)
class _Parts:
    """What a client is made of in one process."""

    session: Session
    context: Any
    links: dict[int, Link] = field(default_factory=dict)
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    def close_link(self, endpoint: int) -> None:
        link = self.links.pop(endpoint, None)
        if link is not None:
            link.close()


class AsyncClient:
    """A client of a Flotilla cluster for asyncio; parameters and errors as `Client`'s.

    One operation runs at a time; cancelling one leaves everything consistent: a cancelled `put` may
    have happened and stays in the outbox, a cancelled `get` has taken nothing.
    """

    def __init__(
        self,
        endpoints: str | Sequence[str],
        *,
        state_dir: str | Path | None = None,
        deadline_ms: float = DEADLINE_MS,
        observer: Observer | None = None,
        rng: random.Random | None = None,
        outbox_bytes_max: int = OUTBOX_BYTES_MAX,
        record: str | Path | None = None,
        key: str | Path | None = None,
    ) -> None:
        def make() -> _Parts:
            session = Session(
                endpoints,
                state_dir=state_dir,
                deadline_ms=deadline_ms,
                observer=observer,
                rng=rng,
                outbox_bytes_max=outbox_bytes_max,
                record=record,
                key=key,
            )
            return _Parts(session, zmq.asyncio.Context.shadow(zmq.Context.instance()))

        self._parts = PerProcess(make, state_dir)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

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
        """Close producers, sockets and state; see `Client.close`."""
        owner, is_done = this_task(), sys.exc_info()[0] is None
        parts = self._parts.existing()
        if parts is None:
            return
        session, end_ms = parts.session, now_ms() + parts.session.deadline_ms
        session.begin_closing()
        producers = tuple(session.producers.values())
        for producer in producers:
            producer.begin_closing()
        for producer in producers:
            await _finished(producer, end_ms)
        async with _Turn(parts.lock, end_ms):
            for endpoint in tuple(parts.links):
                parts.close_link(endpoint)
            session.close(owner, is_done)
        session.operations.warn()

    async def subscribe(self, topic: str) -> SubscribeResult:
        """Subscribe durably; see `Client.subscribe`."""
        return await self._run(self._session.subscribe(topic))

    async def unsubscribe(self, topic: str, *, client_id: str | None = None) -> bool:
        """End a subscription; return whether there was one. Idempotent.

        `client_id`: another client's, whose state directory is lost: nobody else can end it.
        """
        return await self._run(self._session.unsubscribe(topic, client_id))

    async def put(self, topic: str, publication: bytes | str) -> PutResult:
        """Publish; see `Client.put`."""
        [result] = await self.put_many(topic, [publication])
        return result

    async def put_many(self, topic: str, publications: Sequence[bytes | str]) -> list[PutResult]:
        """Publish in order, packed; see `Client.put_many`."""
        return await self._run(self._session.put(topic, publications))

    async def enqueue(self, topic: str, publications: Sequence[bytes | str]) -> int:
        """Put publications into the outbox; see `Client.enqueue`."""
        return await self._run(self._session.enqueue(topic, publications))

    async def flush(self) -> None:
        """Send what stands in the outbox; see `Client.flush`."""
        await self._run(self._operations.flush())

    async def next_counter(self, topic: str) -> int:
        """Return the counter that the topic's next publication gets."""
        return await self._run(self._operations.next_counter(topic))

    def get(
        self,
        topic: str | None = None,
        wait_ms: float = 0,
        max_count: int = 1,
        ack: Ack = "auto",
    ) -> Coroutine[Any, Any, Delivery | None]:
        """Return the next publications, or None within `wait_ms`; see `Client.get`.

        The task that calls it reads.
        """
        check_ack(ack)
        gets = self._session.get(topic, wait_ms, max_count)
        return self._get(Reader(this_task(), topic, ack), gets)

    async def _get(self, reader: Reader, gets: Iterator[Steps[Delivery | None]]) -> Delivery | None:
        readers = self._readers
        self._session.check_open()
        with readers.reading(reader):
            for steps in gets:
                delivery = readers.hand_over(reader, await self._run(steps))
                if delivery is not None:
                    return delivery
        return None

    def messages(
        self, topic: str | None = None, ack: Ack = "auto", idle_ms: float | None = None
    ) -> AsyncMessages:
        """Return an asynchronous iterator over publications; see `Client.messages`."""
        wait_ms = MESSAGES_WAIT_MS if idle_ms is None else idle_ms
        self._session.get(topic, wait_ms, MESSAGES_COUNT)  # wrong arguments are refused here
        return AsyncMessages(self, Loop(topic, ack, wait_ms, is_endless=idle_ms is None))

    async def _fetch(self, loop: Loop) -> Delivery | None:
        for steps in self._session.get(loop.scope, loop.wait_ms, MESSAGES_COUNT):
            delivery = await self._run(steps)
            if delivery is not None:
                return delivery
        return None

    def acknowledge(self, topic: str, last_id: int) -> None:
        """Store that all up to `last_id` is done with; see `Client.acknowledge`."""
        self._session.acknowledge(topic, last_id)

    async def subscribers(self, topic: str) -> list[dict[str, Any]]:
        """Return a topic's subscribers: `client_id`, `cursor`, `backlog` of each."""
        return await self._run(self._operations.subscribers(topic))

    async def adopt(self) -> Losses:
        """Take it as it is what the cluster has lost of what it told this client; see `Client`."""
        return await self._run(self._session.adopt())

    async def topics(self, everything: bool = False) -> list[dict[str, Any]]:
        """Return this client's subscriptions, or every topic (rows as in docs/protocol.md)."""
        return await self._run(self._operations.topics(everything))

    async def status(self, endpoint: int | None = None) -> dict[str, Any]:
        """Return a node's own view of itself; `endpoint` is an index into `endpoints`."""
        return await self._run(self._session.status(endpoint), STATUS_DEADLINE_MS)

    async def upgrade(self, level: int | None = None) -> dict[str, Any]:
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
        steps = self._session.producer(topic, linger_ms, batch_bytes, in_flight_max)
        return AsyncProducer(await self._run(steps))

    # --- driving --------------------------------------------------------------------------------

    async def _run(self, steps: Steps[T], deadline_ms_max: int = DEADLINE_MS_MAX) -> T:
        parts = self._parts.here()
        parts.session.check_open()
        end_ms = now_ms() + min(parts.session.deadline_ms, deadline_ms_max)
        async with _Turn(parts.lock, end_ms):
            result = await self._carry_out(parts, steps, end_ms)
        parts.session.operations.warn()
        return result

    async def _carry_out(self, parts: _Parts, steps: Steps[T], end_ms: float) -> T:
        parts.session.check_open()
        try:
            ask = next(steps)
            while True:
                try:
                    done = await self._exchange(parts, ask, end_ms)
                except FlotillaError as error:
                    ask = steps.throw(error)
                else:
                    ask = steps.send(done)
        except StopIteration as stop:
            result: T = stop.value
            return result

    async def _exchange(self, parts: _Parts, ask: Ask, end_ms: float) -> Done:
        session = parts.session
        exchange = session.exchange(ask, end_ms)
        actions = exchange.started(now_ms())
        while True:
            for action in actions:
                match action:
                    case Done():
                        return action
                    case Failed(error):
                        error = await _explained(error, session.endpoints, session.key is not None)
                        raise with_endpoints(error, session.endpoints)
                    case Close(endpoint):
                        parts.close_link(endpoint)
                    case Pause(wait_ms):
                        session.check_going_on()
                        await asyncio.sleep(wait_ms / 1000)
                        actions = exchange.resumed(now_ms())
                    case Send():
                        session.check_going_on()
                        actions = await self._send(parts, exchange, ask, action)
                    case Listen(endpoint, timeout_ms):
                        actions = await self._listen(parts, exchange, endpoint, timeout_ms)

    async def _send(
        self, parts: _Parts, exchange: Exchange, ask: Ask, action: Send
    ) -> list[Action]:
        ask.request.request_id = action.request_id
        start_ms = now_ms()
        until_ms = start_ms + action.timeout_ms
        connected_ms = start_ms + min(action.timeout_ms, CONNECT_MS_MAX)
        link = await self._link(parts, action.endpoint, connected_ms)
        if isinstance(link, str):
            return exchange.unsent(now_ms(), link)
        ready = await _poll(link, zmq.POLLOUT, connected_ms - now_ms())
        if link.socket not in ready:
            return exchange.unsent(now_ms(), why_unsent(link.monitor in ready))
        try:
            frames = framed(encode_request(ask.request))
            await link.socket.send_multipart(frames, flags=zmq.NOBLOCK)
        except zmq.Again:  # lost between the poll and here
            return exchange.unsent(now_ms())
        return await self._listen(parts, exchange, action.endpoint, until_ms - now_ms())

    async def _listen(
        self, parts: _Parts, exchange: Exchange, endpoint: int, timeout_ms: float
    ) -> list[Action]:
        link = parts.links[endpoint]
        ready = await _poll(link, zmq.POLLIN, timeout_ms)
        if link.socket in ready:
            reply = parsed(await link.socket.recv_multipart())
            return parts.session.replied(exchange, reply, NO_REPLY)
        cause = CONNECTION_LOST if link.monitor in ready else "no answer"
        return parts.session.replied(exchange, None, cause)

    async def _link(self, parts: _Parts, endpoint: int, until_ms: float) -> Link | str:
        """Return the endpoint's link; why there is none, if it has no address by then."""
        link = parts.links.get(endpoint)
        if link is not None and await link.monitor.poll(0):  # lost while nobody listened
            parts.close_link(endpoint)
            link = None
        if link is None:
            address = Address(parts.session.endpoints[endpoint])
            await _until(address.is_over, until_ms)
            if address.failure:
                return address.failure
            link = parts.links[endpoint] = open_link(parts.context, address, parts.session.key)
        return link


class _Turn:
    """The turn of one operation: `async with`. First come, first served; Busy at `end_ms`."""

    def __init__(self, lock: asyncio.Lock, end_ms: float) -> None:
        self._lock, self._end_ms = lock, end_ms

    async def __aenter__(self) -> None:
        try:
            async with asyncio.timeout(max(0.0, self._end_ms - now_ms()) / 1000):
                await self._lock.acquire()
        except TimeoutError:
            raise busy("others took all of its time") from None

    async def __aexit__(self, *_: object) -> None:
        self._lock.release()


async def _explained(
    error: FlotillaError, endpoints: Sequence[str], has_key: bool
) -> FlotillaError:
    """`explained` in a thread, as it waits; without it if no thread is free."""
    explaining = asyncio.to_thread(explained, error, endpoints, has_key)
    try:
        return await asyncio.wait_for(explaining, 2 * PROBE_MS_MAX / 1000)
    except TimeoutError:
        return error


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
        if kind is None:
            self._loop.end_in_order(self._client._readers)
        await self.aclose()

    def __del__(self) -> None:
        self._loop.leave()

    async def aclose(self) -> None:
        """End the loop; with "auto", the message in hand comes again."""
        self._loop.leave()
        self._loop.has_ended = True


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

    async def send(self, publication: bytes | str) -> asyncio.Future[PutResult]:
        """Queue a publication; the future's result has its own id. Errors as `Producer.send`'s."""
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
        """Flush, then stop. What got no answer stays in the outbox."""
        self._producer.begin_closing()
        await _finished(self._producer, now_ms() + self._producer.deadline_ms)
        self._producer.warn()


async def _finished(producer: Producer, end_ms: float) -> None:
    """Await what `Producer.finish` waits for."""
    due = producer.begin_flushing()
    await _until(lambda: producer.has_answered(due), end_ms)
    producer.stop()
    await _until(producer.has_ended, max(end_ms, now_ms()) + STOP_MS)
    producer.finish(0.0)


async def _until(condition: Callable[[], bool], end_ms: float) -> None:
    while not condition() and now_ms() < end_ms:
        await asyncio.sleep(LOOK_S)


async def _poll(link: Link, flags: int, timeout_ms: float) -> set[Any]:
    poller = zmq.asyncio.Poller()
    poller.register(link.socket, flags)
    poller.register(link.monitor, zmq.POLLIN)
    return {ready for ready, _ in await poller.poll(max(0.0, timeout_ms))}
