"""What the load processes do: each function measures one thing and reports once.

What lives here: loads, in the order of docs/benchmarks.md; each one alternates in short rounds
between the broker and what it is compared to, so that a noisy machine is noisy for both. What must
not: processes (stage.py), or what the numbers mean (measures.py).
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import cycle
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Final

from chaos.bench.figures import BenchError
from chaos.bench.wire import (
    ACKNOWLEDGED,
    ANSWERED,
    ECHOED,
    Putter,
    ReplyPoller,
    RequestSocket,
    call_at_once,
    call_in_turn,
    check_stored,
    subscribe,
)
from flotilla_client import AsyncClient, Client
from flotilla_client.producer import BATCH_BYTES, IN_FLIGHT_MAX
from flotilla_client.protocol import (
    BATCH_COUNT_MAX,
    GET,
    READ,
    REQUEST_ID,
    SETTLED_MAX,
    SUB,
    TAKE,
    TOPICS,
    UNSUB,
    Request,
    decode_reply,
    encode_request,
)

PUBLICATION: Final = bytes(range(33, 133))  # 100 bytes
END: Final = b"end".ljust(len(PUBLICATION))  # the last publication of a stream
CLIENTS_AT_ONCE: Final = 64
TASKS_AT_ONCE: Final = 256
ROUNDS: Final = 5  # noise of some seconds meets both sides, and starting each costs little
PARK_S: Final = 0.005  # several turns: by then the GET waits at the leader
GET_WAIT_MS: Final = 5_000  # longer than any PUT takes
PRODUCER_IDLE_S_MAX: Final = 15.0  # a subscriber that hears nothing for so long gives up
BESIDE_PAUSE_S: Final = 0.01  # a few PUTs a second more than people have, and no load
LARGE: Final = bytes(900_000)  # near the largest publication
# The floods (measures.py says what of).
MANY, BIG, ANY, HELD, LISTS = "many", "large", "any", "held", "lists"
PATTERNS, READS = "patterns", "reads"
ANY_TOPICS: Final = 900  # that who floods with GETs of any topic subscribes to; a client may 1,000
HELD_COUNT: Final = SETTLED_MAX  # leases that who floods with TAKEs extends with each
HELD_LEASE_MS: Final = 600_000
READ_BYTES: Final = 1024 * 1024
FLOOD_AT_ONCE: Final = 64
KILL_DELAY_S: Final = (0.1, 0.3)  # some PUTs first; a span of some heartbeats, so none is favoured


@dataclass
class Latencies:
    """How long each one took, in seconds; what the two kinds of PUT cost this process."""

    put: list[float] = field(default_factory=list)
    put_cpu_s: float = 0.0
    client_put: list[float] = field(default_factory=list)
    client_put_cpu_s: float = 0.0
    echo: list[float] = field(default_factory=list)
    fdatasync: list[float] = field(default_factory=list)


@dataclass
class MeasuredRates:
    """Requests and the seconds that they took together, and how long each PUT took.

    `put_cpu_s`: the processor time of this process for the PUTs.
    """

    put_seconds: float = 0.0
    put_cpu_s: float = 0.0
    put_took: list[float] = field(default_factory=list)
    echo_seconds: float = 0.0
    echo_count: int = 0


@dataclass
class Work:
    """Publications that were awaited one by one, the seconds and processor time that they took."""

    count: int = 0
    seconds: float = 0.0
    cpu_s: float = 0.0


@dataclass
class JoinedCallers:
    """What many callers of one client publish: tasks, threads, and tasks through a producer."""

    tasks: Work = field(default_factory=Work)
    threads: Work = field(default_factory=Work)
    producer: Work = field(default_factory=Work)


@dataclass
class Deliveries:
    """Of each publication: sent to acknowledged, sent to delivered, and an echo beside it."""

    acknowledged: list[float] = field(default_factory=list)
    delivered: list[float] = field(default_factory=list)
    echo: list[float] = field(default_factory=list)


@dataclass
class Beside:
    """How long somebody's PUTs took, alone and while another principal floods the nodes."""

    alone: list[float] = field(default_factory=list)
    flooded: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class Stream:
    """A stream's publications, and when its first and last one passed (monotonic seconds)."""

    count: int
    began_s: float
    ended_s: float


def measure_latencies(
    report: Callable[[Latencies], None],
    leader: str,
    echo: str,
    file: Path,
    topic: str,
    seconds: float,
) -> None:
    """Measure one PUT under way against an echo and one fdatasync, all of the same bytes."""
    result, share_s = Latencies(), seconds / ROUNDS / 4
    caller, echoing = RequestSocket(leader), RequestSocket(echo, ECHOED)
    subscribe(caller, topic)
    putter = Putter(caller, topic, [PUBLICATION])
    sample = putter.frames()
    caller.call(sample)
    with Client([leader]) as client:
        client.publish(topic, PUBLICATION)
        for _ in range(ROUNDS):
            before_s = time.process_time()
            result.put += call_in_turn(caller, putter.frames, share_s)
            result.put_cpu_s += time.process_time() - before_s
            result.echo += call_in_turn(echoing, lambda: sample, share_s)
            before_s = time.process_time()
            result.client_put += _client_puts(client, topic, share_s)
            result.client_put_cpu_s += time.process_time() - before_s
            result.fdatasync += _fdatasyncs(file, b"".join(sample), share_s)
    check_stored(caller, topic, 2 + len(result.put) + len(result.client_put))
    report(result)


def _client_puts(client: Client, topic: str, seconds: float) -> list[float]:
    took: list[float] = []
    end = time.perf_counter() + seconds
    while (began := time.perf_counter()) < end:
        client.publish(topic, PUBLICATION)
        took.append(time.perf_counter() - began)
    return took


def _fdatasyncs(file: Path, data: bytes, seconds: float) -> list[float]:
    """Append `data` and sync it, again and again, as the journal does."""
    took: list[float] = []
    descriptor = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o640)
    end = time.perf_counter() + seconds
    while (began := time.perf_counter()) < end:
        os.write(descriptor, data)
        os.fdatasync(descriptor)
        took.append(time.perf_counter() - began)
    os.close(descriptor)
    return took


def measure_rates(
    report: Callable[[MeasuredRates], None], leader: str, echo: str, topic: str, seconds: float
) -> None:
    """Measure PUTs of CLIENTS_AT_ONCE clients, one under way each, against the same echoed."""
    result, share_s = MeasuredRates(), seconds / ROUNDS / 2
    callers = [RequestSocket(leader) for _ in range(CLIENTS_AT_ONCE)]
    subscribe(callers[0], topic)
    putters = [Putter(caller, topic, [PUBLICATION]) for caller in callers]
    putting = [(caller, putter.frames) for caller, putter in zip(callers, putters, strict=True)]
    of_echo = Putter(callers[0], topic, [PUBLICATION])  # its counter would leave a gap elsewhere
    echoing = [(RequestSocket(echo, ECHOED), of_echo.frames) for _ in range(CLIENTS_AT_ONCE)]
    for _ in range(ROUNDS):
        before_s = time.process_time()
        took, in_all_s = call_at_once(putting, share_s)
        result.put_cpu_s += time.process_time() - before_s
        result.put_took += took
        result.put_seconds += in_all_s
        took, in_all_s = call_at_once(echoing, share_s)
        result.echo_count += len(took)
        result.echo_seconds += in_all_s
    check_stored(callers[0], topic, len(result.put_took))
    report(result)


def measure_joined(
    report: Callable[[JoinedCallers], None], endpoints: Sequence[str], topic: str, seconds: float
) -> None:
    """Measure what many callers of one client publish, each awaiting its own answer."""
    result, share_s = JoinedCallers(), seconds / ROUNDS / 3
    caller = RequestSocket(endpoints[0])
    subscribe(caller, topic)
    for _ in range(ROUNDS):
        asyncio.run(_await_puts(endpoints, topic, share_s, result.tasks))
        asyncio.run(_await_sends(endpoints, topic, share_s, result.producer))
        _put_in_threads(endpoints, topic, share_s, result.threads)
    check_stored(
        caller, topic, sum(w.count for w in (result.tasks, result.producer, result.threads))
    )
    report(result)


@contextmanager
def _worked(work: Work) -> Iterator[None]:
    began_s, cpu_s = time.monotonic(), time.process_time()
    yield
    work.seconds += time.monotonic() - began_s
    work.cpu_s += time.process_time() - cpu_s


async def _await_puts(endpoints: Sequence[str], topic: str, seconds: float, work: Work) -> None:
    async with AsyncClient(endpoints) as client:
        await client.open()
        with _worked(work):
            await _in_tasks(lambda: client.publish(topic, PUBLICATION), seconds, work)


async def _await_sends(endpoints: Sequence[str], topic: str, seconds: float, work: Work) -> None:
    async with AsyncClient(endpoints) as client, await client.producer(topic) as producer:

        async def send() -> object:
            return await (await producer.send(PUBLICATION))

        with _worked(work):
            await _in_tasks(send, seconds, work)


async def _in_tasks(put: Callable[[], Awaitable[object]], seconds: float, work: Work) -> None:
    end_s = time.monotonic() + seconds

    async def loop() -> None:
        while time.monotonic() < end_s:
            await put()
            work.count += 1

    await asyncio.gather(*[loop() for _ in range(TASKS_AT_ONCE)])


def _put_in_threads(endpoints: Sequence[str], topic: str, seconds: float, work: Work) -> None:
    with Client(endpoints) as client, ThreadPoolExecutor(CLIENTS_AT_ONCE) as pool:
        client.open()
        end_s = time.monotonic() + seconds

        def loop() -> int:
            count = 0
            while time.monotonic() < end_s:
                client.publish(topic, PUBLICATION)
                count += 1
            return count

        with _worked(work):
            loops = [pool.submit(loop) for _ in range(CLIENTS_AT_ONCE)]
            work.count += sum(each.result() for each in loops)


def flood(
    report: Callable[[int], None],
    gate: Connection,
    endpoints: Sequence[str],
    key: Path | None,
    topic: str,
    kind: str,
) -> None:
    """Publish as fast as it goes, or have many requests under way at once, while `gate` says so.

    Report 0 when ready, then after each span how many were stored, or answered, in it.
    """
    with (
        tempfile.TemporaryDirectory() as state,
        Client(endpoints, state_dir=state, key=key) as client,
    ):
        client.subscribe(topic)
        asker = RequestSocket(endpoints[0], ANSWERED, given=key)
        if kind in (ANY, LISTS, PATTERNS):
            for number in range(ANY_TOPICS):
                client.subscribe(f"{topic}.{number}")
        asked = _asked(client, asker, topic, kind)
        report(0)
        while gate.recv():
            count = 0
            if asked:
                count = _ask_at_once(asker, asked, gate)
            elif kind == BIG:
                while not gate.poll():
                    client.publish(topic, LARGE)
                    count += 1
                    client.get(topic, idle=0, ack="auto")  # or the topic would be full
            else:
                with client.producer(topic) as producer:
                    while not gate.poll():
                        producer.send(PUBLICATION)
                        count += 1
            gate.recv()
            report(count)
        asker.close()


def _asked(client: Client, asker: RequestSocket, topic: str, kind: str) -> list[Request]:
    """Return the requests that are made by turns; none of a flood of publications."""
    name = client.client_id
    if kind == ANY:
        # None says where the client is, and nothing is unread: so they cost who sends them least.
        return [Request(GET, "flood", client_id=name)]
    if kind == HELD:
        return [_extending(client, asker, topic)]
    if kind == READS:
        with client.producer(topic) as producer:
            for _ in range(READ_BYTES // len(PUBLICATION)):
                producer.send(PUBLICATION)
        body = {"from_id": 1, "max_count": BATCH_COUNT_MAX, "max_bytes": READ_BYTES}
        return [Request(READ, "flood", topic, body=body)]
    if kind == LISTS:
        return [Request(TOPICS, "flood", body={"all": True})]
    if kind == PATTERNS:
        other = asker.ask(Request(REQUEST_ID, "register")).body["client_id"]
        return [Request(one, "flood", f"{topic}.>", other) for one in (SUB, UNSUB)]
    return []


def _extending(client: Client, asker: RequestSocket, topic: str) -> Request:
    """Lease HELD_COUNT publications to a client; return the TAKE that extends all of them."""
    client.make_group(topic, topic, lease=HELD_LEASE_MS / 1000)
    with client.producer(topic) as producer:
        for _ in range(HELD_COUNT):
            producer.send(PUBLICATION)
    client_id, extends, count = client.client_id, [], 0
    while count < HELD_COUNT:
        body = {"group": topic, "max_count": HELD_COUNT - count, "wait_ms": GET_WAIT_MS}
        found = asker.ask(Request(TAKE, f"take-{count}", topic, client_id, None, body)).body
        if not found["count"]:
            raise BenchError(f"{topic}: {count} publications were leased, and then no more")
        count += found["count"]
        extends += [
            [found["token"], first, first + leased - 1, HELD_LEASE_MS]
            for first, leased, _ in found["leases"]
        ]
    body = {"group": topic, "max_count": 0, "extends": extends}
    return Request(TAKE, "flood", topic, client_id, None, body)


def _ask_at_once(asker: RequestSocket, asked: Sequence[Request], gate: Connection) -> int:
    """Have many requests under way at once, until `gate`; return how many were carried out."""
    turns = cycle([encode_request(each) for each in asked])
    for _ in range(FLOOD_AT_ONCE):
        asker.send(next(turns))
    count = 0
    while not gate.poll():
        count += ACKNOWLEDGED in asker.receive()[0]
        asker.send(next(turns))
    for _ in range(FLOOD_AT_ONCE):
        asker.receive()
    return count


def measure_beside(
    report: Callable[[Beside | None], None],
    gate: Connection,
    endpoints: Sequence[str],
    key: Path | None,
    topic: str,
    seconds: float,
) -> None:
    """Measure somebody's PUTs, one at a time, with another principal's flood and without."""
    result, share_s = Beside(), seconds / ROUNDS / 2
    with (
        tempfile.TemporaryDirectory() as state,
        Client(endpoints, state_dir=state, key=key) as client,
    ):
        client.subscribe(topic)
        report(None)
        for _ in range(ROUNDS):
            _put_at_leisure(client, topic, share_s, result.alone)
            gate.send(True)
            time.sleep(share_s / 4)  # until the flood flows
            _put_at_leisure(client, topic, share_s, result.flooded)
            gate.send(False)
            time.sleep(share_s / 4)  # and until it has run off
        gate.send(False)
    report(result)


def _put_at_leisure(client: Client, topic: str, seconds: float, took_s: list[float]) -> None:
    end_s = time.monotonic() + seconds
    while (began_s := time.monotonic()) < end_s:
        client.publish(topic, PUBLICATION)
        took_s.append(time.monotonic() - began_s)
        time.sleep(BESIDE_PAUSE_S)


def produce(
    report: Callable[[Stream], None], endpoints: Sequence[str], topic: str, seconds: float
) -> None:
    """Publish through the library's producer for `seconds`, then END; await the last answer."""
    count, began_s = 0, time.monotonic()
    with Client(endpoints) as client:
        producer = client.producer(topic)
        while time.monotonic() < began_s + seconds:
            producer.send(PUBLICATION)
            count += 1
        last = producer.send(END)
        producer.close()
    last.result()
    report(Stream(count + 1, began_s, time.monotonic()))


def consume(report: Callable[[Stream | None], None], endpoints: Sequence[str], topic: str) -> None:
    """Report None once subscribed; then read up to END and report what came."""
    with tempfile.TemporaryDirectory() as state, Client(endpoints, state_dir=state) as client:
        client.subscribe(topic)
        report(None)
        count, began_s, heard_s = 0, 0.0, time.monotonic()
        last = b""
        while last != END:
            delivery = client.get(topic, idle=GET_WAIT_MS / 1000, max_count=BATCH_COUNT_MAX)
            now_s = time.monotonic()
            if delivery is not None:
                count, last = count + len(delivery.publications), delivery.publications[-1]
                began_s, heard_s = began_s or now_s, now_s
            elif now_s > heard_s + PRODUCER_IDLE_S_MAX:
                raise BenchError(f"{topic}: {count} publications, and then no more")
    report(Stream(count, began_s, heard_s))


def measure_batch_rates(
    report: Callable[[tuple[float, float]], None],
    leader: str,
    echo: str,
    topic: str,
    seconds: float,
) -> None:
    """Report publications a second in batches as the producer packs them, without the library.

    First of the broker, then of the echo, each with as many batches under way as a producer has.
    """
    batch = [PUBLICATION] * (BATCH_BYTES // len(PUBLICATION))
    callers = [RequestSocket(leader) for _ in range(IN_FLIGHT_MAX)]
    subscribe(callers[0], topic)
    putters = [Putter(caller, topic, batch) for caller in callers]
    putting = [(caller, putter.frames) for caller, putter in zip(callers, putters, strict=True)]
    put, put_s = call_at_once(putting, seconds / 2)
    check_stored(callers[0], topic, len(put) * len(batch))
    echoing = [(RequestSocket(echo, ECHOED), putters[0].frames) for _ in range(IN_FLIGHT_MAX)]
    echoed, echo_s = call_at_once(echoing, seconds / 2)
    report((len(put) * len(batch) / put_s, len(echoed) * len(batch) / echo_s))


def measure_deliveries(
    report: Callable[[Deliveries], None], leader: str, echo: str, topic: str, seconds: float
) -> None:
    """Measure what a subscriber whose GET waits sees of one PUT after the other."""
    result = Deliveries()
    putting, getting, echoing = (
        RequestSocket(leader),
        RequestSocket(leader),
        RequestSocket(echo, ECHOED),
    )
    client_id = subscribe(getting, topic)
    putter = Putter(putting, topic, [PUBLICATION])
    last_id, end = 0, time.monotonic() + seconds
    while time.monotonic() < end:
        body = {"last_id": last_id, "wait_ms": GET_WAIT_MS}
        getting.send(encode_request(Request(GET, f"get-{last_id}", topic, client_id, None, body)))
        time.sleep(PARK_S)
        frames = putter.frames()
        began = time.perf_counter()
        putting.send(frames)
        last_id = _await_both(putting, getting, began, result)
        result.echo.append(_echo_once(echoing, frames))
    report(result)


def _echo_once(echoing: RequestSocket, frames: list[bytes]) -> float:
    began = time.perf_counter()
    echoing.call(frames)
    return time.perf_counter() - began


def _await_both(
    putting: RequestSocket, getting: RequestSocket, began: float, result: Deliveries
) -> int:
    """Take the PUT's reply and the GET's, in the order they come; return the delivered id."""
    last_id, awaited = 0, [putting, getting]
    while awaited:
        for caller in ReplyPoller(awaited).wait():
            frames, took = caller.receive(), time.perf_counter() - began
            awaited.remove(caller)
            if caller is putting:
                result.acknowledged.append(took)
            else:
                result.delivered.append(took)
                body = decode_reply(frames).body
                if body["count"] != 1:
                    raise BenchError(f"a GET with one publication to come brought {body}")
                last_id = int(body["id"])
    return last_id


def measure_gap(
    report: Callable[[float], None],
    endpoints: Sequence[str],
    leader_pid: int,
    topic: str,
    seed: int,
) -> None:
    """Kill the leader while one client PUTs in a loop; report how long until the next ACK.

    In seconds, from the kill to the first acknowledgment of a PUT that was begun after it: the one
    under way at the kill may have been done before.
    """
    killed_s: list[float] = []

    def kill() -> None:
        killed_s.append(time.monotonic())
        os.kill(leader_pid, signal.SIGKILL)

    timer = threading.Timer(random.Random(seed).uniform(*KILL_DELAY_S), kill)
    with Client(endpoints) as client:
        client.publish(topic, PUBLICATION)
        timer.start()
        while True:
            began_s = time.monotonic()
            client.publish(topic, PUBLICATION)
            if killed_s and began_s > killed_s[0]:
                break
        report(time.monotonic() - killed_s[0])
