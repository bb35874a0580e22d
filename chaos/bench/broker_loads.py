"""The same publications through each broker's client, in alternating rounds.

What lives here: loads that have brokers take turns, or that one of them is put under. What must
not: clients (broker_clients.py), processes (brokers.py), what the numbers mean (beside.py).
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any, Final

from chaos.bench.broker_clients import (
    CLIENTS,
    SUBSCRIBERS,
    WORKERS,
    BrokerClient,
    ReadingClient,
)
from chaos.bench.figures import BenchError
from chaos.bench.loads import (
    CLIENTS_AT_ONCE,
    KILL_DELAY_S,
    ROUNDS,
    TASKS_AT_ONCE,
    Stream,
)

TOPIC: Final = "beside"
READ_TOPIC: Final = "beside-read"
FILLED_MAX: Final = 100_000  # publications that a broker is filled with
ATTEMPT_EVERY_S: Final = 0.05  # after a kill: an attempt may be lost with the leader
GAP_S_MAX: Final = 60.0

Report = Callable[[Any], None]


@dataclass
class Counted:
    """How many, in how many seconds."""

    count: int = 0
    seconds: float = 0.0

    def add(self, count: int, seconds: float) -> None:
        """Add a round."""
        self.count, self.seconds = self.count + count, self.seconds + seconds

    @property
    def per_s(self) -> float:
        """The rate. Raises BenchError if there was no time for one."""
        if not self.count:
            raise BenchError("nothing was measured: give it more time (--seconds)")
        return self.count / self.seconds


def _counted() -> dict[str, Counted]:
    return defaultdict(Counted)


@dataclass
class BesideOthers:
    """What each broker took, by its name.

    `alone`: seconds of each publication that was awaited alone. `few`, `many`: CLIENTS_AT_ONCE and
    TASKS_AT_ONCE awaited at once by one client. `connected`: by as many clients, one each. `read`:
    by one subscriber, of brokers that have one.
    """

    alone: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    few: dict[str, Counted] = field(default_factory=_counted)
    many: dict[str, Counted] = field(default_factory=_counted)
    connected: dict[str, Counted] = field(default_factory=_counted)
    read: dict[str, Counted] = field(default_factory=_counted)


def measure_beside(
    report: Callable[[BesideOthers], None], endpoints: Mapping[str, Sequence[str]], seconds: float
) -> None:
    """Measure all brokers at `endpoints` (by name) in `seconds`, each in short rounds in turn."""
    report(asyncio.run(_measure_beside(endpoints, seconds)))


async def _measure_beside(endpoints: Mapping[str, Sequence[str]], seconds: float) -> BesideOthers:
    result, share_s = BesideOthers(), seconds / ROUNDS / len(endpoints) / 5
    async with AsyncExitStack() as stack:
        clients = {
            name: await stack.enter_async_context(CLIENTS[name](where, TOPIC))
            for name, where in endpoints.items()
        }
        crowds = {
            name: [
                await stack.enter_async_context(CLIENTS[name](where, TOPIC))
                for _ in range(CLIENTS_AT_ONCE)
            ]
            for name, where in endpoints.items()
        }
        readers = {
            name: await stack.enter_async_context(SUBSCRIBERS[name](where, READ_TOPIC))
            for name, where in endpoints.items()
            if name in SUBSCRIBERS
        }
        for client in (*clients.values(), *readers.values()):
            await client.prepare()
        for name, client in clients.items():  # what only a first publication costs is not measured
            await asyncio.gather(*(each.publish() for each in (client, *crowds[name])))
        for _ in range(ROUNDS):
            for name, client in clients.items():
                result.alone[name] += await _alone(client, share_s)
                few, many = [client] * CLIENTS_AT_ONCE, [client] * TASKS_AT_ONCE
                result.few[name].add(*await _at_once(few, share_s))
                result.many[name].add(*await _at_once(many, share_s))
                result.connected[name].add(*await _at_once(crowds[name], share_s))
                if name in readers:
                    result.read[name].add(*await _read(readers[name], share_s))
    return result


async def _alone(client: BrokerClient, seconds: float) -> list[float]:
    took: list[float] = []
    end = time.perf_counter() + seconds
    while (began := time.perf_counter()) < end:
        await client.publish()
        took.append(time.perf_counter() - began)
    return took


async def _at_once(clients: Sequence[BrokerClient], seconds: float) -> tuple[int, float]:
    """Have each publish, one after the other, FILLED_MAX in all at most; await the last ones."""
    began, count = time.perf_counter(), 0

    async def go_on(client: BrokerClient) -> None:
        nonlocal count
        while time.perf_counter() - began < seconds and count < FILLED_MAX:
            await client.publish()
            count += 1

    await asyncio.gather(*map(go_on, clients))
    return count, time.perf_counter() - began


async def _read(client: ReadingClient, seconds: float) -> tuple[int, float]:
    """Fill for `seconds`, then read all; return how many came, and from first ask to last."""
    filled, _ = await _at_once([client] * TASKS_AT_ONCE, seconds)
    came = await _read_all(client)
    if came.count != filled:
        raise BenchError(f"{filled} publications waited, {came.count} were read")
    return came.count, came.ended_s - came.began_s


async def _read_all(client: ReadingClient) -> Stream:
    count, began_s = 0, time.monotonic()
    ended_s = began_s
    async for number in client.read():
        count, ended_s = count + number, time.monotonic()
    return Stream(count, began_s, ended_s)


def fill(report: Report, name: str, endpoints: Sequence[str], topic: str, seconds: float) -> None:
    """Publish to what workers share, many at once; report what was, as `Counted`."""

    async def publish() -> Counted:
        async with WORKERS[name](endpoints, topic) as client:
            await client.prepare()
            return Counted(*await _at_once([client] * TASKS_AT_ONCE, seconds))

    report(asyncio.run(publish()))


def work(report: Report, name: str, endpoints: Sequence[str], topic: str) -> None:
    """Report None once connected; then acknowledge until nothing comes; report what came."""

    async def read() -> Stream:
        async with WORKERS[name](endpoints, topic) as client:
            await client.prepare()
            report(None)
            return await _read_all(client)

    report(asyncio.run(read()))


def find_leader(report: Report, name: str, endpoints: Sequence[str], topic: str) -> None:
    """Make what publications go to; report the endpoint of the node that leads it."""

    async def find() -> str:
        async with CLIENTS[name](endpoints, topic) as client:
            await client.prepare()
            return await client.leader()

    report(asyncio.run(find()))


def measure_killed(
    report: Callable[[float], None],
    name: str,
    endpoints: Sequence[str],
    leader: str,
    pid: int,
    topic: str,
    seed: int,
) -> None:
    """Kill the leader under load, which is `pid`; report the seconds to a survivor's next answer.

    Of a publication that was begun after the kill: the one under way may have been done before.
    """
    survivors = [endpoint for endpoint in endpoints if endpoint != leader]
    watching, client = CLIENTS[name](endpoints, topic), CLIENTS[name](survivors, topic)
    report(asyncio.run(_measure_killed(watching, client, leader, pid, seed)))


async def _measure_killed(
    watching: BrokerClient, client: BrokerClient, leader: str, pid: int, seed: int
) -> float:
    async with client:
        until = time.monotonic() + random.Random(seed).uniform(*KILL_DELAY_S)
        await client.publish()
        while time.monotonic() < until:
            await client.publish()
        async with watching:
            if await watching.leader() != leader:
                raise BenchError(f"{leader} lost its leadership before it was killed")
        os.kill(pid, signal.SIGKILL)
        killed_s = time.monotonic()
        # New attempts beside those that may be lost: a client's own patience is not measured.
        under_way: set[asyncio.Task[None]] = set()
        while time.monotonic() < killed_s + GAP_S_MAX:
            under_way.add(asyncio.create_task(client.publish()))
            done, under_way = await asyncio.wait(
                under_way, timeout=ATTEMPT_EVERY_S, return_when=asyncio.FIRST_COMPLETED
            )
            if any(_is_taken(each) for each in done):
                gap_s = time.monotonic() - killed_s
                for each in under_way:
                    each.cancel()
                await asyncio.gather(*under_way, return_exceptions=True)
                return gap_s
    raise BenchError(f"nothing is acknowledged {GAP_S_MAX:g} s after a kill")


def _is_taken(attempt: asyncio.Task[None]) -> bool:
    try:
        attempt.result()
    except BenchError:
        return False
    return True
