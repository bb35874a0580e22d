"""The usual Python client of each broker, behind one face.

What lives here: clients that publish, and that read what waits. What must not: processes
(brokers.py), loads (broker_loads.py).
"""

from __future__ import annotations

import asyncio
import base64
import http.client
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any, Final, Protocol, Self

import orjson

from chaos.bench.brokers import NAMES
from chaos.bench.figures import BenchError
from chaos.bench.loads import PUBLICATION, TASKS_AT_ONCE
from flotilla_client import AsyncClient, FlotillaError
from flotilla_client.protocol import BATCH_COUNT_MAX

OURS: Final = "flotilla"
GROUP: Final = "workers"
TAKEN_AT_ONCE: Final = 256  # the library's own prefetch
LEADER_S_MAX: Final = 60.0  # a young cluster elects, and answers that it is not ready until then
LEADER_LOOK_S: Final = 0.2
ATTEMPT_S_MAX: Final = 5.0  # or it loses a request, which is then made again
ANSWER_S_MAX: Final = 15.0
IDLE_S: Final = 1.0  # so long without anything: all is read


class BrokerClient(Protocol):
    """A client of one topic. Whatever its broker refuses is a BenchError."""

    async def prepare(self) -> None:
        """Make what publications go to, on three nodes; return when they are taken."""

    async def leader(self) -> str:
        """Return the endpoint of the node that leads what `prepare` made."""

    async def publish(self) -> None:
        """Publish once; return when the broker has answered that it is stored."""

    async def __aenter__(self) -> Self:
        """Connect."""

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close."""


class ReadingClient(BrokerClient, Protocol):
    """A client that reads what waits, too."""

    def read(self) -> AsyncIterator[int]:
        """Acknowledge what comes, and give how many came each time, until nothing does."""


class OurClient:
    """`AsyncClient`: its publications wait for a subscriber, which is another one."""

    def __init__(self, endpoints: Sequence[str], topic: str) -> None:
        self._client, self._endpoints, self._topic = AsyncClient(endpoints), endpoints, topic
        # A subscription outlives its client, which therefore has a name.
        self._reader = AsyncClient(endpoints, name=f"bench-{secrets.token_hex(8)}")

    async def prepare(self) -> None:
        """Subscribe."""
        await self._reader.subscribe(self._topic)

    async def leader(self) -> str:
        """Return the endpoint of the cluster's leader."""
        for number, endpoint in enumerate(self._endpoints):
            said = await self._client.status(number)
            if said.node == said.leader:
                return endpoint
        raise BenchError(f"{OURS}: no node leads")

    async def publish(self) -> None:
        """Publish once."""
        try:
            result = await self._client.publish(self._topic, PUBLICATION)
        except FlotillaError as error:
            raise BenchError(f"{OURS}: {error}") from None
        if not result.stored:
            raise BenchError("nobody subscribes any more, so nothing was stored")

    async def read(self) -> AsyncIterator[int]:
        """Get batches; each is acknowledged with the next one."""
        while delivery := await self._reader.get(
            self._topic, idle=IDLE_S, max_count=BATCH_COUNT_MAX
        ):
            yield len(delivery.publications)

    async def __aenter__(self) -> Self:
        await self._client.open()
        return self

    async def __aexit__(self, *raised: object) -> None:
        await self._client.close()
        await self._reader.close()


class OurWorker(OurClient):
    """The same as a member of a group, for which its publications wait."""

    async def prepare(self) -> None:
        """Make the group."""
        await self._client.make_group(self._topic, GROUP)

    async def read(self) -> AsyncIterator[int]:
        """Work; each is acknowledged."""
        async with self._client.work(
            self._topic, GROUP, prefetch=TAKEN_AT_ONCE, idle=IDLE_S
        ) as items:
            async for _ in items:
                yield 1


class NatsClient:
    """nats-py: JetStream, a stream of three replicas in files, a durable pull consumer."""

    def __init__(self, endpoints: Sequence[str], topic: str) -> None:
        self._endpoints, self._topic = list(endpoints), topic
        self._connection: Any = None
        self._stream: Any = None

    async def prepare(self) -> None:
        """Make the stream."""
        await await_taken(
            "nats",
            lambda: self._stream.add_stream(
                name=self._topic, subjects=[self._topic], num_replicas=3
            ),
            self._errors,
        )

    async def leader(self) -> str:
        """Return the endpoint of the stream's leader."""

        async def leading() -> str:
            named = (await self._stream.stream_info(self._topic)).cluster.leader
            return self._endpoints[NAMES.index(named)]

        found: str = await await_taken("nats", leading, (*self._errors, ValueError))
        return found

    async def publish(self) -> None:
        """Publish once."""
        try:
            await self._stream.publish(self._topic, PUBLICATION)
        except self._errors as error:
            raise BenchError(f"nats: {error!r}") from None

    async def read(self) -> AsyncIterator[int]:
        """Fetch, and acknowledge each."""
        consumer = await await_taken(
            "nats",
            lambda: self._stream.pull_subscribe(self._topic, durable=GROUP, stream=self._topic),
            self._errors,
        )
        while True:
            try:
                fetched = await consumer.fetch(TAKEN_AT_ONCE, timeout=IDLE_S)
            except TimeoutError:
                break
            for message in fetched:
                await message.ack()
            yield len(fetched)
        await self._connection.flush()

    async def __aenter__(self) -> Self:
        try:
            import nats
            from nats.errors import Error
        except ImportError:
            raise BenchError("nats: its client is missing: pip install nats-py") from None
        self._errors: tuple[type[Exception], ...] = (Error,)
        self._connection = await nats.connect(self._endpoints, connect_timeout=ATTEMPT_S_MAX)
        self._stream = self._connection.jetstream(timeout=ANSWER_S_MAX)
        return self

    async def __aexit__(self, *raised: object) -> None:
        await self._connection.close()


class RabbitClient:
    """aio-pika: a quorum queue of three replicas, publisher confirms, consumer acknowledgments.

    It uses the first endpoint alone, as a connection does. Who declares a queue there has it lead
    there.
    """

    def __init__(self, endpoints: Sequence[str], topic: str) -> None:
        self._endpoint, self._topic = endpoints[0], topic
        self._connection: Any = None
        self._channel: Any = None
        self._queue: Any = None

    async def prepare(self) -> None:
        """Declare the queue."""

        async def declared() -> Any:
            if self._channel.is_closed:  # a refusal closes it
                self._channel = await self._connection.channel()
            return await self._channel.declare_queue(
                self._topic, durable=True, arguments={"x-queue-type": "quorum"}
            )

        self._queue = await await_taken("rabbitmq", declared, self._errors)
        await self._channel.set_qos(prefetch_count=TAKEN_AT_ONCE)

    async def leader(self) -> str:
        """Return the endpoint where the queue was declared."""
        return self._endpoint

    async def publish(self) -> None:
        """Publish once, to be kept on disks."""
        try:
            await self._channel.default_exchange.publish(
                self._message(PUBLICATION, delivery_mode=2), self._topic
            )
        except self._errors as error:
            raise BenchError(f"rabbitmq: {error!r}") from None

    async def read(self) -> AsyncIterator[int]:
        """Take what is pushed, and acknowledge each."""
        try:
            async with self._queue.iterator(timeout=IDLE_S) as messages:
                async for message in messages:
                    await message.ack()
                    yield 1
        except TimeoutError:
            return

    async def __aenter__(self) -> Self:
        try:
            import aio_pika
            from aio_pika.exceptions import AMQPError
        except ImportError:
            raise BenchError("rabbitmq: its client is missing: pip install aio-pika") from None
        self._errors: tuple[type[Exception], ...] = (AMQPError, OSError)
        self._message = aio_pika.Message
        address = self._endpoint.removeprefix("amqp://")
        self._connection = await aio_pika.connect(f"amqp://guest:guest@{address}/")
        self._channel = await self._connection.channel()
        return self

    async def __aexit__(self, *raised: object) -> None:
        await self._connection.close()


class EtcdClient:
    """etcd's HTTP gateway: `put` of a key, at the leader, by one kept connection a thread."""

    def __init__(self, endpoints: Sequence[str], topic: str) -> None:
        self._addresses = [endpoint.removeprefix("http://") for endpoint in endpoints]
        self._chosen = self._addresses[0]
        self._idle: list[http.client.HTTPConnection] = []
        self._threads = ThreadPoolExecutor(TASKS_AT_ONCE)
        key, value = (base64.b64encode(each).decode() for each in (topic.encode(), PUBLICATION))
        self._body = orjson.dumps({"key": key, "value": value})

    async def prepare(self) -> None:
        """Find the leader."""
        await self.leader()

    async def leader(self) -> str:
        """Return the leader's endpoint, where all `publish` from now on."""
        loop = asyncio.get_running_loop()
        self._chosen = await await_taken(
            "etcd",
            lambda: loop.run_in_executor(self._threads, self._find_leader),
            (BenchError,),
        )
        return f"http://{self._chosen}"

    async def publish(self) -> None:
        """Publish once."""
        await asyncio.get_running_loop().run_in_executor(self._threads, self._put)

    def _put(self) -> None:
        try:
            connection = self._idle.pop()
        except IndexError:
            connection = self._connected(self._chosen)
        self._ask(connection, "/v3/kv/put", self._body)
        self._idle.append(connection)

    @staticmethod
    def _connected(address: str) -> http.client.HTTPConnection:
        return http.client.HTTPConnection(address, timeout=ANSWER_S_MAX)

    @staticmethod
    def _ask(connection: http.client.HTTPConnection, path: str, body: bytes) -> dict[str, Any]:
        """Ask once; a connection that failed is closed."""
        try:
            connection.request("POST", path, body, {"Content-Type": "application/json"})
            response = connection.getresponse()
            said = response.read()
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            raise BenchError(f"etcd: {error!r}") from None
        if response.status != http.HTTPStatus.OK:
            connection.close()
            raise BenchError(f"etcd answers {response.status}: {said[:200]!r}")
        found: dict[str, Any] = orjson.loads(said)
        return found

    def _find_leader(self) -> str:
        for address in self._addresses:
            connection = self._connected(address)
            said = self._ask(connection, "/v3/maintenance/status", b"{}")
            connection.close()
            if said.get("leader", "0") == said["header"]["member_id"]:
                return address
        raise BenchError("etcd: no node leads")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *raised: object) -> None:
        for connection in self._idle:
            connection.close()
        self._threads.shutdown(wait=False, cancel_futures=True)


CLIENTS: Final[Mapping[str, Callable[[Sequence[str], str], BrokerClient]]] = {
    OURS: OurClient,
    "nats": NatsClient,
    "rabbitmq": RabbitClient,
    "etcd": EtcdClient,
}
# etcd has nothing that waits for a reader, and is not among these.
SUBSCRIBERS: Final[Mapping[str, Callable[[Sequence[str], str], ReadingClient]]] = {
    OURS: OurClient,
    "nats": NatsClient,
    "rabbitmq": RabbitClient,
}
WORKERS: Final[Mapping[str, Callable[[Sequence[str], str], ReadingClient]]] = {
    **SUBSCRIBERS,
    OURS: OurWorker,
}


async def await_taken(
    name: str, attempt: Callable[[], Awaitable[Any]], refusals: tuple[type[Exception], ...]
) -> Any:
    """Make an attempt again and again until it is taken; return what it does.

    An answer that does not come in ATTEMPT_S_MAX is a refusal: one lost request costs no more than
    that. Raises BenchError for nothing but `refusals` in LEADER_S_MAX.
    """
    deadline = time.monotonic() + LEADER_S_MAX
    refused: tuple[type[Exception], ...] = (*refusals, TimeoutError)
    while True:
        try:
            return await asyncio.wait_for(attempt(), ATTEMPT_S_MAX)
        except refused as error:
            if time.monotonic() > deadline:
                raise BenchError(
                    f"{name} has no leader after {LEADER_S_MAX:g} s: {error!r}"
                ) from None
        await asyncio.sleep(LEADER_LOOK_S)
