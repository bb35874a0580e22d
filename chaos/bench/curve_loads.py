"""The loads behind the curves: fixed rates, backlogs, many topics, many subscribers.

What lives here: loads whose results are compared at several sizes. What must not: processes
(stage.py), what the numbers mean (curves.py).
"""

from __future__ import annotations

import asyncio
import math
import selectors
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any, Final

from chaos.bench.broker_clients import CLIENTS, BrokerClient
from chaos.bench.figures import BenchError, SampleSpread
from chaos.bench.loads import CLIENTS_AT_ONCE, PUBLICATION
from chaos.bench.wire import (
    Frames,
    Putter,
    ReplyPoller,
    RequestSocket,
    ask_all,
    call_at_once,
)
from flotilla_client import Client
from flotilla_client.protocol import (
    BATCH_COUNT_MAX,
    GET,
    REQUEST_ID,
    SUB,
    Request,
    decode_reply,
    encode_request,
)

RATES: Final = (50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 20_000)  # publications a second
OUTSTANDING_MAX: Final = 2_000  # so many unanswered: it does not keep up
KEPT_UP_SHARE: Final = 0.9  # of the rate, answered in the time: else the next rates are left out
CLASSES_TO_A_DOUBLING: Final = 4  # of a histogram's durations
FILL_BYTES: Final = 64 * 1024  # of a backlog's publications
FILL_REPORT_S: Final = 1.0
GETS: Final = 100
FANOUT_BATCH: Final = 50
TOPICS_READ: Final = 16  # publications a GET, however many topics: a thousand have few each
WAIT_MS: Final = 5_000


@dataclass(frozen=True)
class AtRate:
    """What a broker did at a fixed rate: answered a second, and latencies of its publications.

    In seconds from the moment for which a publication was *scheduled*: what a late answer holds up
    counts too. `classes`: how many of them, by the class that `duration_class` gives.
    """

    rate: int
    answered_per_s: float
    spread: SampleSpread
    classes: Mapping[int, int]

    @property
    def keeps_up(self) -> bool:
        """Whether a higher rate is worth a try."""
        return self.answered_per_s >= KEPT_UP_SHARE * self.rate


def duration_class(seconds: float) -> int:
    """Return the class of a duration: each ends at a power of two, or a fraction between."""
    return math.ceil(CLASSES_TO_A_DOUBLING * math.log2(max(seconds, 1e-6)))


def class_end_s(number: int) -> float:
    """Return the longest duration of a class."""
    return float(2 ** (number / CLASSES_TO_A_DOUBLING))


def measure_rates(
    report: Callable[[dict[str, list[AtRate]]], None],
    endpoints: Mapping[str, Sequence[str]],
    topic: str,
    seconds: float,
) -> None:
    """Have each broker at `endpoints` take each of RATES, in turn, as long as it keeps up.

    Each rate gets an equal share of `seconds`.
    """
    # `select` waits for microseconds, `epoll` for whole milliseconds: that would be latency.
    with asyncio.Runner(
        loop_factory=lambda: asyncio.SelectorEventLoop(selectors.SelectSelector())
    ) as runner:
        report(runner.run(_measure_rates(endpoints, topic, seconds / len(RATES))))


async def _measure_rates(
    endpoints: Mapping[str, Sequence[str]], topic: str, share_s: float
) -> dict[str, list[AtRate]]:
    found: dict[str, list[AtRate]] = {name: [] for name in endpoints}
    async with AsyncExitStack() as stack:
        clients = {
            name: await stack.enter_async_context(CLIENTS[name](where, topic))
            for name, where in endpoints.items()
        }
        for client in clients.values():
            await client.prepare()
            await client.publish()
        for rate in RATES:
            for name, client in clients.items():
                if not found[name] or found[name][-1].keeps_up:
                    found[name].append(await at_rate(client, rate, share_s))
    return found


async def at_rate(client: BrokerClient, rate: int, seconds: float) -> AtRate:
    """Publish `rate` times a second for `seconds`, whatever is answered; await all answers.

    It ends early with OUTSTANDING_MAX that are not answered.
    """
    took: list[float] = []
    under_way: set[asyncio.Task[None]] = set()
    began = time.perf_counter()

    async def publish(due: float) -> None:
        await client.publish()
        took.append(time.perf_counter() - due)

    for number in range(max(1, round(rate * seconds))):
        due = began + number / rate
        # Zero, too: others have to run.
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        if len(under_way) >= OUTSTANDING_MAX:
            break
        task = asyncio.create_task(publish(due))
        under_way.add(task)
        task.add_done_callback(under_way.discard)
    await asyncio.gather(*under_way)
    # The last one's share of the time is there whether or not it was answered in it.
    lasted_s = max(time.perf_counter() - began, len(took) / rate)
    classes = Counter(map(duration_class, took))
    return AtRate(rate, len(took) / lasted_s, SampleSpread.of(took), classes)


def fill_backlog(
    report: Callable[[int], None], endpoints: Sequence[str], topic: str, count: int, size: int
) -> None:
    """Publish `count` times `size` bytes; report how many were sent every second, then `count`.

    The topic has a subscriber of the name `topic`, who reads none of it.
    """
    told_s = time.monotonic()
    with Client(endpoints, name=topic) as client:
        client.subscribe(topic)
        publication = bytes(size)
        producer = client.producer(topic)
        for number in range(count):
            producer.send(publication)
            if time.monotonic() > told_s + FILL_REPORT_S:
                told_s = time.monotonic()
                report(number)
        producer.close()
    report(count)


def measure_gets(
    report: Callable[[list[float]], None], endpoints: Sequence[str], topic: str
) -> None:
    """Report how long GETs of one publication take, GETS of them, to who subscribed above."""
    took: list[float] = []
    with Client(endpoints, name=topic) as client:
        client.subscribe(topic)
        for _ in range(GETS):
            began = time.perf_counter()
            delivery = client.get(topic, idle=WAIT_MS / 1000)
            took.append(time.perf_counter() - began)
            if delivery is None:
                raise BenchError(f"{topic}: {len(took)} publications of {GETS}, and then no more")
    report(took)


@dataclass(frozen=True)
class OverTopics:
    """PUTs, and publications that were delivered afterwards, with the seconds that each took."""

    put: int
    put_s: float
    delivered: int
    delivered_s: float


def measure_topics(
    report: Callable[[OverTopics | None], None],
    leader: str,
    prefix: str,
    count: int,
    seconds: float,
) -> None:
    """Report None once all have subscribed; then measure PUTs of CLIENTS_AT_ONCE clients.

    They go to `count` topics by turns. Then one subscriber of each topic reads all of it,
    TOPICS_READ at a time.
    """
    topics = [f"{prefix}-{number}" for number in range(count)]
    callers = [RequestSocket(leader) for _ in range(CLIENTS_AT_ONCE)]
    subscribers = _subscribed(callers, topics)
    # Of each caller by turns; a client has one PUT under way in a topic.
    putters = [
        Putter(callers[number % len(callers)], topics[number % count], [PUBLICATION])
        for number in range(max(count, CLIENTS_AT_ONCE))
    ]
    turns = [putters[number :: len(callers)] for number in range(len(callers))]
    parties = [(caller, _in_turn(turn)) for caller, turn in zip(callers, turns, strict=True)]
    report(None)
    took, put_s = call_at_once(parties, seconds)
    delivered, delivered_s = _read_all(callers, dict(zip(topics, subscribers, strict=True)))
    if delivered != len(took):
        raise BenchError(f"{len(took)} publications were acknowledged, {delivered} delivered")
    report(OverTopics(len(took), put_s, delivered, delivered_s))


def _in_turn(putters: Sequence[Putter]) -> Callable[[], Frames]:
    made = 0

    def make() -> Frames:
        nonlocal made
        made += 1
        return putters[made % len(putters)].frames()

    return make


def _subscribed(callers: Sequence[RequestSocket], topics: Sequence[str]) -> list[str]:
    """Return the ids of new clients, one subscribed to each of `topics`."""
    registers = [Request(REQUEST_ID, f"register-{topic}") for topic in topics]
    clients = [str(reply.body["client_id"]) for reply in ask_all(callers, registers)]
    ask_all(
        callers,
        [
            Request(SUB, f"subscribe-{client}", topic, client)
            for topic, client in zip(topics, clients, strict=True)
        ],
    )
    return clients


def _read_all(
    callers: Sequence[RequestSocket], subscribers: Mapping[str, str]
) -> tuple[int, float]:
    """Have each topic's subscriber read until nothing is left; return how many came, in what."""
    began, count = time.perf_counter(), 0
    last_ids = dict.fromkeys(subscribers, 0)
    while last_ids:
        gets = [
            _get(topic, subscribers[topic], last_id, 0, TOPICS_READ)
            for topic, last_id in last_ids.items()
        ]
        asked, last_ids = list(last_ids), {}
        for topic, reply in zip(asked, ask_all(callers, gets), strict=True):
            if reply.body["count"]:
                count += int(reply.body["count"])
                last_ids[topic] = int(reply.body["id"]) + int(reply.body["count"]) - 1
    return count, time.perf_counter() - began


def _get(
    topic: str, client_id: str, last_id: int, wait_ms: int, max_count: int = BATCH_COUNT_MAX
) -> Request:
    body: dict[str, Any] = {"last_id": last_id, "wait_ms": wait_ms, "max_count": max_count}
    return Request(GET, f"get-{client_id}-{last_id}", topic, client_id, None, body)


def measure_fanout(
    report: Callable[[tuple[int, float]], None], leader: str, topic: str, count: int, seconds: float
) -> None:
    """Report deliveries of one topic to `count` waiting subscribers, and the seconds they took.

    One client PUTs batches for `seconds`, each when the last one is answered; it ends when all
    have all of them.
    """
    callers = [RequestSocket(leader) for _ in range(count)]
    clients = _subscribed(callers, [topic] * count)
    putting = RequestSocket(leader)
    putter = Putter(putting, topic, [PUBLICATION] * FANOUT_BATCH)
    last_ids, sent, delivered = [0] * count, FANOUT_BATCH, 0
    numbers = {caller: number for number, caller in enumerate(callers)}
    poller = ReplyPoller([putting, *callers])
    began = time.perf_counter()
    putting.send(putter.frames())
    for number, caller in enumerate(callers):
        caller.send(encode_request(_get(topic, clients[number], 0, WAIT_MS)))
    while min(last_ids) < sent:
        for caller in poller.wait():
            if caller is putting:
                putting.receive()
                if time.perf_counter() - began < seconds:
                    putting.send(putter.frames())
                    sent += FANOUT_BATCH
                continue
            number = numbers[caller]
            body = decode_reply(caller.receive()).body
            if body["count"]:
                delivered += int(body["count"])
                last_ids[number] = int(body["id"]) + int(body["count"]) - 1
            caller.send(encode_request(_get(topic, clients[number], last_ids[number], WAIT_MS)))
    report((delivered, time.perf_counter() - began))
