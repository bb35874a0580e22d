"""The same publications through the usual Python client of each broker, in alternating rounds.

What lives here: a client of each, and the load that has them take turns. What must not: processes
(brokers.py), what the numbers mean (measures.py).
"""

from __future__ import annotations

import asyncio
import base64
import http.client
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Final, Protocol, Self

import orjson

from chaos.bench.figures import BenchError
from chaos.bench.loads import CLIENTS_AT_ONCE, PUBLICATION, ROUNDS
from chaos.bench.wire import RequestSocket, subscribe
from flotilla_client import AsyncClient

OURS: Final = "flotilla"
TOPIC: Final = "beside"
LEADER_S_MAX: Final = 60.0  # a young cluster elects, and answers that it is not ready until then
LEADER_LOOK_S: Final = 0.2
ATTEMPT_S_MAX: Final = 5.0  # or it loses a request, which is then made again
ANSWER_S_MAX: Final = 15.0


@dataclass
class BesideOthers:
    """What each broker took, by its name: seconds of each publication alone, and of many at once.

    `at_once`: how many were answered while CLIENTS_AT_ONCE were awaited, in `at_once_s` seconds.
    """

    alone: dict[str, list[float]] = field(default_factory=dict)
    at_once: dict[str, int] = field(default_factory=dict)
    at_once_s: dict[str, float] = field(default_factory=dict)


class BrokerClient(Protocol):
    """A connected client. `publish` returns when the broker has answered that it is stored."""

    async def publish(self) -> None:
        """Publish once."""

    async def __aenter__(self) -> Self:
        """Connect, and wait until publications are taken."""

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close."""


class OurClient:
    """`AsyncClient.publish`, to a topic that somebody subscribes to."""

    def __init__(self, endpoints: Sequence[str]) -> None:
        self._client = AsyncClient(endpoints)
        self._subscriber = RequestSocket(endpoints[0])

    async def publish(self) -> None:
        """Publish once."""
        result = await self._client.publish(TOPIC, PUBLICATION)
        if not result.stored:
            raise BenchError("nobody subscribes any more, so nothing was stored")

    async def __aenter__(self) -> Self:
        subscribe(self._subscriber, TOPIC)
        return self

    async def __aexit__(self, *raised: object) -> None:
        await self._client.close()
        self._subscriber.close()


class NatsClient:
    """nats-py: `publish` of JetStream, to a stream of three replicas in files."""

    def __init__(self, endpoints: Sequence[str]) -> None:
        self._endpoints = list(endpoints)
        self._connection: Any = None
        self._stream: Any = None

    async def publish(self) -> None:
        """Publish once."""
        await self._stream.publish(TOPIC, PUBLICATION)

    async def __aenter__(self) -> Self:
        self._connection, self._stream = await connected_nats(self._endpoints)
        await make_nats_stream(self._stream, TOPIC)
        return self

    async def __aexit__(self, *raised: object) -> None:
        await self._connection.close()


async def connected_nats(endpoints: Sequence[str]) -> tuple[Any, Any]:
    """Return a connection to NATS, and its JetStream."""
    try:
        import nats
    except ImportError:
        raise BenchError("nats: its client is missing: pip install nats-py") from None
    connection = await nats.connect(list(endpoints), connect_timeout=ATTEMPT_S_MAX)
    return connection, connection.jetstream(timeout=ANSWER_S_MAX)


async def make_nats_stream(stream: Any, topic: str) -> None:
    """Make a stream of three replicas in files; return when a leader has answered."""
    from nats.errors import Error  # behind the check that it is there

    async def made() -> bool:
        try:
            await stream.add_stream(name=topic, subjects=[topic], num_replicas=3)
        except Error:
            return False
        return True

    await await_leader("nats", made)


class EtcdClient:
    """etcd's HTTP gateway: `put` of a key, at the leader, by one kept connection a thread."""

    def __init__(self, endpoints: Sequence[str]) -> None:
        self._addresses = [endpoint.removeprefix("http://") for endpoint in endpoints]
        self._leader = self._addresses[0]
        self._idle: list[http.client.HTTPConnection] = []
        self._threads = ThreadPoolExecutor(CLIENTS_AT_ONCE)
        key, value = (base64.b64encode(each).decode() for each in (TOPIC.encode(), PUBLICATION))
        self._body = orjson.dumps({"key": key, "value": value})

    async def publish(self) -> None:
        """Publish once."""
        await asyncio.get_running_loop().run_in_executor(self._threads, self._put)

    def _put(self) -> None:
        connection = self._idle.pop() if self._idle else self._connected(self._leader)
        self._ask(connection, "/v3/kv/put", self._body)
        self._idle.append(connection)

    @staticmethod
    def _connected(address: str) -> http.client.HTTPConnection:
        return http.client.HTTPConnection(address, timeout=ANSWER_S_MAX)

    @staticmethod
    def _ask(connection: http.client.HTTPConnection, path: str, body: bytes) -> dict[str, Any]:
        connection.request("POST", path, body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        said = response.read()
        if response.status != http.HTTPStatus.OK:
            raise BenchError(f"etcd answers {response.status}: {said[:200]!r}")
        found: dict[str, Any] = orjson.loads(said)
        return found

    def _find_leader(self) -> bool:
        for address in self._addresses:
            connection = self._connected(address)
            try:
                said = self._ask(connection, "/v3/maintenance/status", b"{}")
            except (BenchError, OSError):
                return False
            finally:
                connection.close()
            if said.get("leader", "0") == said["header"]["member_id"]:
                self._leader = address
                return True
        return False

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()

        async def ready() -> bool:
            return await loop.run_in_executor(self._threads, self._find_leader)

        await await_leader("etcd", ready)
        return self

    async def __aexit__(self, *raised: object) -> None:
        for connection in self._idle:
            connection.close()
        self._threads.shutdown()


CLIENTS: Final[Mapping[str, Callable[[Sequence[str]], BrokerClient]]] = {
    OURS: OurClient,
    "nats": NatsClient,
    "etcd": EtcdClient,
}


async def await_leader(name: str, ready: Callable[[], Awaitable[bool]]) -> None:
    """Ask `ready` again and again until it says yes. Raises BenchError for none in LEADER_S_MAX.

    An answer that does not come in ATTEMPT_S_MAX is a no: one lost request costs no more than that.
    """
    deadline = time.monotonic() + LEADER_S_MAX
    while not await _says_yes(ready):
        if time.monotonic() > deadline:
            raise BenchError(f"{name} has no leader after {LEADER_S_MAX:g} s")
        await asyncio.sleep(LEADER_LOOK_S)


async def _says_yes(ready: Callable[[], Awaitable[bool]]) -> bool:
    try:
        return await asyncio.wait_for(ready(), ATTEMPT_S_MAX)
    except TimeoutError:
        return False


def measure_beside(
    report: Callable[[BesideOthers], None], endpoints: Mapping[str, Sequence[str]], seconds: float
) -> None:
    """Measure all brokers at `endpoints` (by name) in `seconds`, each in short rounds in turn."""
    report(asyncio.run(_measure_beside(endpoints, seconds)))


async def _measure_beside(endpoints: Mapping[str, Sequence[str]], seconds: float) -> BesideOthers:
    result, share_s = BesideOthers(), seconds / ROUNDS / len(endpoints) / 2
    async with AsyncExitStack() as stack:
        clients = {
            name: await stack.enter_async_context(CLIENTS[name](where))
            for name, where in endpoints.items()
        }
        for name in clients:
            result.alone[name], result.at_once[name], result.at_once_s[name] = [], 0, 0.0
        for _ in range(ROUNDS):
            for name, client in clients.items():
                result.alone[name] += await _alone(client, share_s)
                count, took_s = await _at_once(client, share_s)
                result.at_once[name] += count
                result.at_once_s[name] += took_s
    return result


async def _alone(client: BrokerClient, seconds: float) -> list[float]:
    took: list[float] = []
    end = time.perf_counter() + seconds
    while (began := time.perf_counter()) < end:
        await client.publish()
        took.append(time.perf_counter() - began)
    return took


async def _at_once(client: BrokerClient, seconds: float) -> tuple[int, float]:
    """Have CLIENTS_AT_ONCE tasks publish, one after the other each; the last ones are awaited."""
    began = time.perf_counter()

    async def go_on() -> int:
        count = 0
        while time.perf_counter() - began < seconds:
            await client.publish()
            count += 1
        return count

    counts = await asyncio.gather(*(go_on() for _ in range(CLIENTS_AT_ONCE)))
    return sum(counts), time.perf_counter() - began
