"""The load processes of workers that share a topic: ours of a group, others' of their equivalent.

What lives here: who fills, and who works until nothing is left, of each broker. What must not:
processes (stage.py, brokers.py), what the numbers mean (measures.py).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from chaos.bench.broker_loads import connected_nats, make_nats_stream
from chaos.bench.figures import BenchError
from chaos.bench.loads import PUBLICATION, Stream
from flotilla_client import Client

WORKERS: Final = 4
GROUP: Final = "workers"
TAKEN_AT_ONCE: Final = 256  # the library's own prefetch
IDLE_S: Final = 1.0  # so long without anything: all is done
FILLED_S_MAX: Final = 30.0
FILLED_LOOK_S: Final = 0.1

Report = Callable[[Any], None]


def make_group(report: Report, endpoints: Sequence[str], topic: str) -> None:
    """Make the group, so that what is published waits for it."""
    with Client(endpoints) as client:
        report(client.make_group(topic, GROUP))


def work(report: Report, endpoints: Sequence[str], topic: str) -> None:
    """Report None once connected; then acknowledge until nothing comes; report what came."""
    count = 0
    with Client(endpoints) as client:
        client.topics(everything=True)
        report(None)
        began_s = ended_s = time.monotonic()
        with client.work(topic, GROUP, prefetch=TAKEN_AT_ONCE, idle=IDLE_S) as items:
            for _ in items:
                count, ended_s = count + 1, time.monotonic()
    report(Stream(count, began_s, ended_s))


def fill_nats(report: Report, endpoints: Sequence[str], topic: str, count: int) -> None:
    """Make a stream of three replicas in files, with so many publications; report how many."""
    asyncio.run(_fill_nats(report, endpoints, topic, count))


async def _fill_nats(report: Report, endpoints: Sequence[str], topic: str, count: int) -> None:
    connection, stream = await connected_nats(endpoints)
    await make_nats_stream(stream, topic)
    deadline_s, stored = time.monotonic() + FILLED_S_MAX, 0
    for place in range(count):
        await connection.publish(topic, PUBLICATION)
        if place % TAKEN_AT_ONCE == 0:
            await connection.flush()
    await connection.flush()
    while stored < count:
        if time.monotonic() > deadline_s:
            raise BenchError(f"nats has stored {stored} of {count} publications")
        await asyncio.sleep(FILLED_LOOK_S)
        stored = (await stream.stream_info(topic)).state.messages
    await connection.close()
    report(stored)


def work_nats(report: Report, endpoints: Sequence[str], topic: str) -> None:
    """`work` by a durable pull consumer: fetch, acknowledge each."""
    asyncio.run(_work_nats(report, endpoints, topic))


async def _work_nats(report: Report, endpoints: Sequence[str], topic: str) -> None:
    connection, stream = await connected_nats(endpoints)
    consumer = await stream.pull_subscribe(topic, durable=GROUP, stream=topic)
    report(None)
    count, began_s = 0, time.monotonic()
    ended_s = began_s
    while True:
        try:
            fetched = await consumer.fetch(TAKEN_AT_ONCE, timeout=IDLE_S)
        except TimeoutError:
            break
        for message in fetched:
            await message.ack()
        count, ended_s = count + len(fetched), time.monotonic()
    await connection.flush()
    await connection.close()
    report(Stream(count, began_s, ended_s))
