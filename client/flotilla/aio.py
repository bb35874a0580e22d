"""`AsyncClient`: `Client` with `await`, over zmq.asyncio.

What lives here: the awaiting twin of `Client`'s loop and of `Connection`'s two waits. What must
not: anything that both sides share (operations.py, retry.py, state.py, `Session`).

The state directory is written in the event loop, one fsync an operation (about a millisecond), and
not in a thread: between the moment a cursor is stored and the moment the caller has its delivery
there must be no `await`, or a cancelled `get` would lose what it was about to return.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import zmq
import zmq.asyncio

from flotilla.client import (
    DEADLINE_MS_MAX,
    MESSAGES_COUNT,
    MESSAGES_WAIT_MS,
    STATUS_DEADLINE_MS,
    Ack,
    Session,
    now_ms,
)
from flotilla.connection import (
    CONNECT_MS_MAX,
    Link,
    framed,
    open_link,
    parsed,
    why_unsent,
    with_endpoints,
)
from flotilla.errors import FlotillaError
from flotilla.losses import Losses
from flotilla.observer import Observer
from flotilla.operations import (
    Ask,
    Delivery,
    Message,
    PutResult,
    Steps,
    SubscribeResult,
)
from flotilla.producer import BATCH_BYTES, IN_FLIGHT_MAX, LINGER_MS, Producer
from flotilla.protocol import Reply, encode_request
from flotilla.retry import (
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
from flotilla.state import OUTBOX_BYTES_MAX

T = TypeVar("T")


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
    ) -> None:
        self._session = Session(
            endpoints,
            state_dir=state_dir,
            deadline_ms=deadline_ms,
            observer=observer,
            rng=rng,
            outbox_bytes_max=outbox_bytes_max,
            record=record,
        )
        self._operations = self._session.operations
        self._context = zmq.asyncio.Context.shadow(zmq.Context.instance())
        self._links: dict[int, Link] = {}
        self._lock = asyncio.Lock()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

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
        """Close producers (each sends what it has, up to its deadline), sockets and state."""
        for producer in tuple(self._session.producers.values()):
            await asyncio.to_thread(producer.finish)
        async with self._lock:
            for endpoint in tuple(self._links):
                self._close_link(endpoint)
            self._session.close()
        self._operations.warn()

    async def subscribe(self, topic: str) -> SubscribeResult:
        """Subscribe durably; see `Client.subscribe`."""
        return await self._run(self._session.subscribe(topic))

    async def unsubscribe(self, topic: str) -> bool:
        """End a subscription; return whether there was one. Idempotent."""
        return await self._run(self._operations.unsubscribe(topic))

    async def put(self, topic: str, publication: bytes | str) -> PutResult:
        """Publish; see `Client.put`."""
        [result] = await self.put_many(topic, [publication])
        return result

    async def put_many(self, topic: str, publications: Sequence[bytes | str]) -> list[PutResult]:
        """Publish in order, packed; see `Client.put_many`."""
        return await self._run(self._session.put(topic, publications))

    async def flush(self) -> None:
        """Send what earlier errors left in the outbox."""
        await self._run(self._operations.flush())

    async def next_counter(self, topic: str) -> int:
        """Return the counter that the topic's next publication gets."""
        return await self._run(self._operations.next_counter(topic))

    async def get(
        self,
        topic: str | None = None,
        wait_ms: float = 0,
        max_count: int = 1,
        ack: Ack = "auto",
    ) -> Delivery | None:
        """Return the next publications, or None within `wait_ms`; see `Client.get`."""
        for steps in self._session.get(topic, wait_ms, max_count, ack == "auto"):
            delivery = await self._run(steps)
            if delivery is not None:
                return delivery
        return None

    async def messages(
        self, topic: str | None = None, ack: Ack = "auto", idle_ms: int | None = None
    ) -> AsyncIterator[Message]:
        """Yield publications one by one; see `Client.messages`."""
        wait_ms = MESSAGES_WAIT_MS if idle_ms is None else idle_ms
        while True:
            delivery = await self.get(topic, wait_ms, MESSAGES_COUNT, "manual")
            if delivery is None and idle_ms is not None:
                return
            for message in delivery or ():
                if ack == "auto":
                    self.acknowledge(message.topic, message.id)
                yield message

    def acknowledge(self, topic: str, last_id: int) -> None:
        """Store that all up to `last_id` is done with; the broker hears of it with the next GET."""
        self._session.check_open()
        self._session.state.raise_cursor(topic, last_id)

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
        result = await self._carry_out(steps, deadline_ms_max)
        self._operations.warn()
        return result

    async def _carry_out(self, steps: Steps[T], deadline_ms_max: int) -> T:
        async with self._lock:
            self._session.check_open()
            end_ms = now_ms() + min(self._session.deadline_ms, deadline_ms_max)
            try:
                ask = next(steps)
                while True:
                    try:
                        done = await self._exchange(ask, end_ms)
                    except FlotillaError as error:
                        ask = steps.throw(error)
                    else:
                        ask = steps.send(done)
            except StopIteration as stop:
                result: T = stop.value
                return result

    async def _exchange(self, ask: Ask, end_ms: float) -> Done:
        exchange = self._session.exchange(ask, end_ms)
        actions = exchange.started(now_ms())
        while True:
            for action in actions:
                match action:
                    case Done():
                        return action
                    case Failed(error):
                        raise await asyncio.to_thread(with_endpoints, error, self.endpoints)
                    case Close(endpoint):
                        self._close_link(endpoint)
                    case Pause(wait_ms):
                        await asyncio.sleep(wait_ms / 1000)
                        actions = exchange.resumed(now_ms())
                    case Send():
                        actions = await self._send(exchange, ask, action)
                    case Listen(endpoint, timeout_ms):
                        actions = await self._listen(exchange, endpoint, timeout_ms)

    async def _send(self, exchange: Exchange, ask: Ask, action: Send) -> list[Action]:
        ask.request.request_id = action.request_id
        link = await self._link(action.endpoint)
        ready = await _poll(link, zmq.POLLOUT, min(action.timeout_ms, CONNECT_MS_MAX))
        if link.socket not in ready:
            return exchange.unsent(now_ms(), why_unsent(link.monitor in ready))
        try:
            frames = framed(encode_request(ask.request))
            await link.socket.send_multipart(frames, flags=zmq.NOBLOCK)
        except zmq.Again:  # lost between the poll and here
            return exchange.unsent(now_ms())
        return await self._listen(exchange, action.endpoint, action.timeout_ms)

    async def _listen(self, exchange: Exchange, endpoint: int, timeout_ms: float) -> list[Action]:
        link = self._links[endpoint]
        reply: Reply | None = None
        ready = await _poll(link, zmq.POLLIN, timeout_ms)
        if link.socket in ready:
            reply = parsed(await link.socket.recv_multipart())
        return self._session.replied(exchange, reply)

    async def _link(self, endpoint: int) -> Link:
        link = self._links.get(endpoint)
        if link is not None and await link.monitor.poll(0):  # lost while nobody listened
            self._close_link(endpoint)
            link = None
        if link is None:
            link = self._links[endpoint] = open_link(self._context, self.endpoints[endpoint])
        return link

    def _close_link(self, endpoint: int) -> None:
        link = self._links.pop(endpoint, None)
        if link is not None:
            link.close()


class AsyncProducer:
    """`Producer` for asyncio: `send` waits while the queue is full, and returns a future."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer

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
        self._producer.warn()
        if self._producer.has_room():
            return asyncio.wrap_future(self._producer.send(publication))
        return asyncio.wrap_future(await asyncio.to_thread(self._producer.send, publication))

    async def flush(self) -> None:
        """Wait until every publication sent so far has its answer or its error."""
        await asyncio.to_thread(self._producer.await_answers)
        self._producer.warn()

    async def close(self) -> None:
        """Flush, then stop. What got no answer stays in the outbox."""
        await asyncio.to_thread(self._producer.finish)
        self._producer.warn()


async def _poll(link: Link, flags: int, timeout_ms: float) -> set[Any]:
    poller = zmq.asyncio.Poller()
    poller.register(link.socket, flags)
    poller.register(link.monitor, zmq.POLLIN)
    return {ready for ready, _ in await poller.poll(max(0.0, timeout_ms))}
