"""The measures: one function each, from a stage to figures, and the table of them.

What lives here: which loads make which figure, and what it is compared to. What must not: loads
(loads.py), processes (stage.py), or how figures are shown (report.py).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from chaos.bench import beside, curves, loads, wire
from chaos.bench.figures import BenchError, Curve, Figure, SampleSpread, timed
from chaos.bench.plan import BenchPlan
from chaos.bench.stage import SPAWN, BenchStage, cpu_s, resident_mib
from cluster.keys.authority import Authority
from flotilla_client import Client

Result = Figure | Curve
ECHO: Final = "ZeroMQ echo"
FDATASYNC: Final = "fdatasync"
ECHO_START: Final = "echo's start"
ECHO_MEMORY: Final = "echo process"
RAW_BATCHES: Final = "batches PUT raw"
RESTARTS: Final = 5
ALL_RESTARTS: Final = 3
PRODUCER: Final = "AsyncProducer"
ONE_KILL_S_EXPECTED: Final = 2.5
FLOODS: Final = {
    loads.MANY: "a producer",
    loads.BIG: "900 kB each",
    loads.ANY: f"GETs of any of {loads.ANY_TOPICS} topics",
    loads.HELD: f"TAKEs that extend {loads.HELD_COUNT:,} leases",
    loads.READS: "READs of 1 MiB",
    loads.LISTS: f"lists of {loads.ANY_TOPICS} topics",
    loads.PATTERNS: f"SUB and UNSUB of {loads.ANY_TOPICS} topics by a pattern",
}
PEERS: Final = "peers"  # the one measure that has to be asked for


def latency(stage: BenchStage, plan: BenchPlan) -> list[Figure]:
    """Measure one PUT under way."""
    file = stage.directory / "fdatasync"
    leader, endpoint = stage.leader()
    before_s = {name: cpu_s(pid) for name, pid in stage.cluster.pids().items()}
    found: loads.Latencies = stage.call(
        loads.measure_latencies, endpoint, stage.echo, file, "latency", plan.seconds
    )
    count = len(found.put) + len(found.client_put)
    used_us = {
        name: 1e6 * (cpu_s(pid) - before_s[name]) / count
        for name, pid in stage.cluster.pids().items()
    }
    if stage.leader()[0] != leader:
        raise BenchError(f"{leader} lost its leadership under load")
    raw_us = 1e6 * found.put_cpu_s / len(found.put)
    client_us = 1e6 * found.client_put_cpu_s / len(found.client_put)
    bare = {ECHO: found.echo, FDATASYNC: found.fdatasync}
    library, alone = {"PUT raw": found.put}, {"client, PUT raw": raw_us}
    return [
        timed("put_latency", "PUT, one under way", found.put, bare),
        timed("client_put_latency", "- through Client.put", found.client_put, library),
        Figure("put_cpu_leader", "- CPU a PUT, leader", used_us[leader], "µs", alone),
        *(
            Figure("put_cpu_follower", "- CPU a PUT, follower", us, "µs", alone)
            for us in _busiest_follower(used_us, leader)
        ),
        Figure("put_cpu_client", "- CPU a PUT, Client.put", client_us, "µs", alone),
    ]


def _busiest_follower(used: Mapping[str, float], leader: str) -> list[float]:
    """Return what the follower used that used most; nothing in a cluster of one node."""
    return sorted(each for name, each in used.items() if name not in (leader, ECHO))[-1:]


def throughput(stage: BenchStage, plan: BenchPlan) -> list[Figure]:
    """Measure many clients' PUTs."""
    leader, endpoint = stage.leader()
    pids = stage.cluster.pids() | {ECHO: stage.echo_process.pid}
    before_s = {name: cpu_s(pid) for name, pid in pids.items()}
    found: loads.MeasuredRates = stage.call(
        loads.measure_rates, endpoint, stage.echo, "throughput", plan.seconds
    )
    used_us = {name: 1e6 * (cpu_s(pid) - before_s[name]) for name, pid in pids.items()}
    if stage.leader()[0] != leader:
        raise BenchError(f"{leader} lost its leadership under load")
    return [*_rates(found), *_processor_times(found, leader, used_us)]


def _rates(found: loads.MeasuredRates) -> list[Figure]:
    count = len(found.put_took)
    echoes_per_s = found.echo_count / found.echo_seconds
    title = f"PUT, {loads.CLIENTS_AT_ONCE} clients"
    latency_of_each = f"{loads.CLIENTS_AT_ONCE} / echo's rate"
    echo_ms = 1000 * loads.CLIENTS_AT_ONCE / echoes_per_s
    spread = SampleSpread.of(found.put_took, 1000)
    return [
        Figure("put_rate", title, count / found.put_seconds, "/s", {ECHO: echoes_per_s}),
        Figure("put_rate_latency", "- how long each took", spread.median, "ms",
               {latency_of_each: echo_ms}, spread),
    ]  # fmt: skip


def _processor_times(
    found: loads.MeasuredRates, leader: str, used_us: Mapping[str, float]
) -> list[Figure]:
    count = len(found.put_took)
    client_us = 1e6 * found.put_cpu_s / count
    echo = {ECHO: used_us[ECHO] / found.echo_count}
    return [
        Figure("cpu_leader", "- CPU a PUT, leader", used_us[leader] / count, "µs", echo),
        *(
            Figure("cpu_follower", "- CPU a PUT, follower", us / count, "µs", echo)
            for us in _busiest_follower(used_us, leader)
        ),
        Figure("cpu_client", "- CPU a PUT, client", client_us, "µs", echo),
    ]


def joined(stage: BenchStage, plan: BenchPlan) -> list[Figure]:
    """Measure many callers of one client."""
    found: loads.JoinedCallers = stage.call(
        loads.measure_joined, stage.endpoints(), "joined", plan.seconds
    )
    producer = found.producer
    tasks = f"{loads.TASKS_AT_ONCE} awaited at once, one client"
    threads = f"{loads.CLIENTS_AT_ONCE} threads on one client"
    of_tasks = found.tasks.count / found.tasks.seconds
    sent = {PRODUCER: producer.count / producer.seconds}
    sent_us = {PRODUCER: 1e6 * producer.cpu_s / producer.count}
    used_us = [1e6 * work.cpu_s / work.count for work in (found.tasks, found.threads)]
    return [
        Figure("awaited_rate", tasks, of_tasks, "/s", sent),
        Figure("awaited_cpu", "- CPU a PUT, client", used_us[0], "µs", sent_us),
        Figure("threads_rate", threads, found.threads.count / found.threads.seconds, "/s",
               {tasks: of_tasks}),
        Figure("threads_cpu", "- CPU a PUT, client", used_us[1], "µs", {tasks: used_us[0]}),
    ]  # fmt: skip


def fairness(stage: BenchStage, plan: BenchPlan) -> list[Figure]:
    """Measure somebody's PUTs while another principal floods the nodes, and without."""
    return [
        figure
        for what, title in FLOODS.items()
        for figure in _beside(stage, plan.seconds, what, title)
    ]


def _beside(stage: BenchStage, seconds: float, what: str, title: str) -> list[Figure]:
    keys: list[Path | None] = [None, None]
    if stage.cluster.keys_dir.exists():
        authority = Authority(stage.cluster.keys_dir)
        keys = [authority.client(f"{who}-{what}") for who in ("one", "flood")]
    ours, theirs = SPAWN.Pipe()
    endpoints = stage.endpoints()
    flooded = stage.start(loads.flood, theirs, endpoints, keys[1], f"flood-{what}", what)
    flooded.result(stage.shown)
    load = stage.start(loads.measure_beside, ours, endpoints, keys[0], f"beside-{what}", seconds)
    load.result(stage.shown)
    found: loads.Beside = load.result(stage.shown)
    rate = sum(flooded.result(stage.shown) for _ in range(loads.ROUNDS)) / (seconds / 2)
    p99_ms = [SampleSpread.of(each, 1000).p99 for each in (found.flooded, found.alone)]
    return [
        timed(
            f"fair_{what}", f"PUT beside a flood, {title}", found.flooded, {"alone": found.alone}
        ),
        *(
            Figure(f"fair_{what}_p99", "- p99", flooded_ms, "ms", {"alone": alone_ms})
            for flooded_ms, alone_ms in [p99_ms]
            if flooded_ms is not None and alone_ms is not None
        ),
        Figure(f"fair_{what}_flood", "- the flood", rate, "/s", {}),
    ]


def batches(stage: BenchStage, plan: BenchPlan) -> list[Figure]:
    """Measure a producer and a subscriber, end to end."""
    endpoints, topic = stage.endpoints(), "batches"
    consumer = stage.start(loads.consume, endpoints, topic)
    consumer.result(stage.shown)
    share_s = plan.seconds / 2
    sent: loads.Stream = stage.call(loads.produce, endpoints, topic, share_s)
    came: loads.Stream = consumer.result(stage.shown)
    stage.end(consumer)
    if came.count != sent.count:
        raise BenchError(f"{sent.count} publications were sent, {came.count} came")
    rate_per_s = came.count / (came.ended_s - sent.began_s)
    raw_per_s, echo_per_s = stage.call(
        loads.measure_batch_rates, stage.leader()[1], stage.echo, "raw batches", share_s / 2
    )
    raw, echo = {RAW_BATCHES: raw_per_s}, {"echo of batches": echo_per_s}
    mb_per_s = rate_per_s * len(loads.PUBLICATION) / 1e6
    raw_mb = {RAW_BATCHES: raw_per_s * len(loads.PUBLICATION) / 1e6}
    return [
        Figure("batch_rate", "producer to subscriber", rate_per_s, "/s", raw | echo),
        Figure("batch_bytes_rate", "- in bytes", mb_per_s, "MB/s", raw_mb),
        Figure("raw_batch_rate", "- PUT raw, not read", raw_per_s, "/s", echo),
    ]


def delivery(stage: BenchStage, plan: BenchPlan) -> list[Figure]:
    """Measure how long a waiting subscriber waits."""
    found: loads.Deliveries = stage.call(
        loads.measure_deliveries, stage.leader()[1], stage.echo, "delivery", plan.seconds / 2
    )
    pairs = zip(found.acknowledged, found.delivered, strict=True)
    after = [delivered - acknowledged for acknowledged, delivered in pairs]
    echo = {ECHO: found.echo}
    return [
        timed("delivery", "PUT to delivered", found.delivered,
              echo | {"PUT to ACK": found.acknowledged}),
        timed("delivery_after_ack", "ACK to delivered", after, echo),
    ]  # fmt: skip


def memory(stage: BenchStage, plan: BenchPlan) -> list[Figure]:
    """Measure the nodes' resident memory as it is now."""
    leader = stage.leader()[0]
    nodes = stage.resident_mib()
    echo = {ECHO_MEMORY: resident_mib(stage.echo_process.pid)}
    return [
        Figure("memory_leader", "memory, leader", nodes[leader], "MiB", echo),
        *(
            Figure("memory_follower", "memory, follower", mib, "MiB", echo)
            for mib in _busiest_follower(nodes, leader)
        ),
    ]


def failover(stage: BenchStage, plan: BenchPlan) -> list[Figure]:
    """Kill the leader under load again and again."""
    gaps_s: list[float] = []
    _open_topic(stage, "failover")
    for number in range(plan.kills):
        leader, term = stage.leader()[0], stage.term()
        pid = stage.cluster.pids()[leader]
        gap_s = stage.call(
            loads.measure_gap, stage.endpoints(), pid, "failover", plan.seed + number
        )
        if stage.term() == term:
            raise BenchError(f"{leader} was killed, and no other leader was elected")
        gaps_s.append(gap_s)
        stage.cluster.start(leader)
        stage.await_ready(leader)
    return [
        timed("failover", "leader killed to ACK", gaps_s,
              {ECHO_START: _echo_starts(stage)}),
    ]  # fmt: skip


def restart(stage: BenchStage, plan: BenchPlan) -> list[Figure]:
    """Kill and start one follower, then all nodes."""
    echo = {ECHO_START: _echo_starts(stage)}
    _open_topic(stage, "restart")
    one_s = [_restart_follower(stage) for _ in range(RESTARTS)]
    all_s = [_restart_all(stage) for _ in range(ALL_RESTARTS)]
    return [
        timed("restart", "follower's restart", one_s, echo),
        timed("restart_all", "all nodes' restart", all_s, echo),
    ]


def _open_topic(stage: BenchStage, topic: str) -> None:
    caller = wire.RequestSocket(stage.leader()[1])
    wire.subscribe(caller, topic)
    caller.close()


def _restart_follower(stage: BenchStage) -> float:
    leader = stage.leader()[0]
    name = next(name for name in stage.cluster.pids() if name != leader)
    stage.kill(name)
    began = time.monotonic()
    stage.cluster.start(name)
    stage.await_ready(name)
    return time.monotonic() - began


def _restart_all(stage: BenchStage) -> float:
    for name in stage.cluster.pids():
        stage.kill(name)
    began = time.monotonic()
    stage.cluster.start_all()
    with Client(stage.endpoints()) as client:
        client.publish("restart", loads.PUBLICATION)
    return time.monotonic() - began


def _echo_starts(stage: BenchStage) -> list[float]:
    """Return how long a bare echo process takes from its start to its first answer."""
    took: list[float] = []
    for _ in range(RESTARTS):
        began = time.monotonic()
        load = stage.start(wire.serve_echo)
        caller = wire.RequestSocket(load.result(stage.shown), wire.ECHOED)
        caller.call([wire.ECHOED])
        took.append(time.monotonic() - began)
        caller.close()
        stage.end(load)
    return took


# What is compared at several sizes, under names that say which load it is of.
COMPARED: Final[Mapping[str, str]] = {
    "put_latency": "PUT, one under way",
    "put_cpu_leader": "CPU a PUT, one under way, leader",
    "put_cpu_follower": "CPU a PUT, one under way, follower",
    "put_rate": "PUT, 64 clients",
    "cpu_leader": "CPU a PUT, 64 clients, leader",
    "cpu_follower": "CPU a PUT, 64 clients, follower",
    "delivery": "PUT to delivered",
    "memory_leader": "memory, leader",
    "restart": "follower's restart",
}


def _compared(
    stage: BenchStage, plan: BenchPlan, runs: Sequence[Callable[..., Sequence[Result]]]
) -> list[Figure]:
    """Return what `runs` say that is compared."""
    found = [each for run in runs for each in run(stage, plan)]
    return [
        replace(each, title=COMPARED[each.name])
        for each in found
        if isinstance(each, Figure) and each.name in COMPARED
    ]


def nodes(stage: BenchStage, plan: BenchPlan) -> list[Result]:
    """Measure clusters of 1, 3 and 5 nodes."""

    def measured(stage: BenchStage, plan: BenchPlan) -> list[Figure]:
        return _compared(stage, plan, (latency, throughput))

    return curves.nodes(stage, plan, measured)


def backlogs(stage: BenchStage, plan: BenchPlan) -> list[Result]:
    """Measure clusters with backlogs."""

    def measured(stage: BenchStage, plan: BenchPlan) -> list[Figure]:
        return _compared(stage, plan, (latency, throughput, delivery, memory, restart))

    return curves.backlogs(stage, plan, measured)


@dataclass(frozen=True)
class Measure:
    """A row of the table: `expected_s` says how long `run` takes with a plan.

    `is_asked`: whether a plan asks for it without its name.
    """

    title: str
    expected_s: Callable[[BenchPlan], float]
    run: Callable[[BenchStage, BenchPlan], Sequence[Result]]
    is_asked: Callable[[BenchPlan], bool] = lambda plan: True


def _is_plotted(plan: BenchPlan) -> bool:
    return plan.is_plotted


# In this order: what waits for one PUT comes before the loads that leave a backlog, memory after
# them, and killing last.
MEASURES: Final[Mapping[str, Measure]] = {
    "latency": Measure("one PUT under way", lambda plan: plan.seconds, latency),
    "delivery": Measure("a waiting subscriber", lambda plan: plan.seconds / 2, delivery),
    "throughput": Measure("64 PUTs under way", lambda plan: plan.seconds, throughput),
    "joined": Measure("many callers of one client", lambda plan: plan.seconds, joined),
    "fairness": Measure(
        "a PUT beside a flood", lambda plan: 1.5 * len(FLOODS) * plan.seconds, fairness
    ),
    PEERS: Measure("others' brokers", beside.peers_s, beside.peers, lambda plan: bool(plan.peers)),
    "rates": Measure("fixed rates", curves.rates_s, curves.rates, _is_plotted),
    "topics": Measure("many topics", lambda plan: plan.seconds + 6, curves.topics, _is_plotted),
    "fanout": Measure("many subscribers", lambda plan: plan.seconds, curves.fanout, _is_plotted),
    "batches": Measure("producer to subscriber", lambda plan: plan.seconds, batches),
    "groups": Measure("workers of a group", lambda plan: plan.seconds / 2, beside.groups),
    "memory": Measure("memory", lambda plan: 0.1, memory),
    "failover": Measure("killing leaders", lambda plan: plan.kills * ONE_KILL_S_EXPECTED, failover),
    "restart": Measure("restarts", lambda plan: 8.0, restart),
    "nodes": Measure("1, 3 and 5 nodes", curves.nodes_s, nodes, _is_plotted),
    "backlogs": Measure("backlogs", curves.backlogs_s, backlogs, _is_plotted),
}
