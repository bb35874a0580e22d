"""The measures that others' brokers take part in.

What lives here: which loads make which figure, of which broker. What must not: loads
(broker_loads.py), clients (broker_clients.py), processes (brokers.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Final

from chaos.bench import broker_loads, loads
from chaos.bench.broker_clients import OURS, SUBSCRIBERS
from chaos.bench.brokers import RunningBroker
from chaos.bench.figures import BenchError, Figure, timed
from chaos.bench.plan import BenchPlan
from chaos.bench.stage import LOAD_S_MAX, BenchStage

WORKERS: Final = 4
PEER_KILLS_MAX: Final = 3  # starting what was killed takes RabbitMQ half a minute on a busy machine
START_S_EXPECTED: Final = 12.0
ONE_KILL_S_EXPECTED: Final = 8.0


@contextmanager
def running(stage: BenchStage, plan: BenchPlan) -> Iterator[dict[str, RunningBroker]]:
    """Run the plan's other brokers, by name; they end with the context."""
    with ExitStack() as stack:
        yield {
            name: stack.enter_context(RunningBroker(name, stage.directory / "peers" / name))
            for name in plan.peers
        }


def endpoints_of(stage: BenchStage, others: Mapping[str, RunningBroker]) -> dict[str, list[str]]:
    """Return where clients find the nodes of each broker, ours first."""
    return {OURS: stage.endpoints()} | {name: other.endpoints for name, other in others.items()}


def peers(stage: BenchStage, plan: BenchPlan) -> list[Figure]:
    """Measure others' brokers beside ours, each by its usual Python client."""
    with running(stage, plan) as others:
        endpoints = endpoints_of(stage, others)
        found: broker_loads.BesideOthers = stage.call(
            broker_loads.measure_beside,
            endpoints,
            plan.seconds * len(endpoints),
            seconds_max=LOAD_S_MAX + plan.seconds * len(endpoints),
        )
        sent: loads.Stream = stage.call(
            loads.produce, stage.endpoints(), broker_loads.TOPIC, plan.seconds / 4
        )
        workers = {
            name: _work(stage, name, where, "beside-groups", plan.seconds / 4)[1]
            for name, where in endpoints.items()
            if name in SUBSCRIBERS
        }
        killed = _kill(stage, plan, others)
    few, many = loads.CLIENTS_AT_ONCE, loads.TASKS_AT_ONCE
    produced = broker_loads.Counted(sent.count, sent.ended_s - sent.began_s)
    return [
        timed("beside_latency", "one awaited, one client", *_apart(found.alone)),
        _rate("beside_rate", f"{few} awaited at once, one client", found.few),
        _rate("beside_rate_many", f"{many} awaited at once, one client", found.many),
        _rate("beside_producer", f"producer(), one thread; others {many} awaited",
              found.many | {OURS: produced}),
        _rate("beside_connections", f"{few} clients, one awaited each", found.connected),
        _rate("beside_read", "one subscriber, what waits", found.read),
        _rate("beside_group", f"a group of {WORKERS} workers, acknowledged", workers),
        timed("beside_killed", "kill -9 of the leader to the next answer", *_apart(killed)),
    ]  # fmt: skip


def _apart(
    took_s: Mapping[str, list[float]],
) -> tuple[list[float], dict[str, list[float]]]:
    """Return what is ours, and what is others'."""
    return took_s[OURS], {name: each for name, each in took_s.items() if name != OURS}


def _rate(name: str, title: str, found: Mapping[str, broker_loads.Counted]) -> Figure:
    others = {other: each.per_s for other, each in found.items() if other != OURS}
    return Figure(name, title, found[OURS].per_s, "/s", others)


def _kill(
    stage: BenchStage, plan: BenchPlan, others: Mapping[str, RunningBroker]
) -> dict[str, list[float]]:
    """Kill the leader of each broker in turn, again and again; return the gaps of each."""
    gaps_s: dict[str, list[float]] = {OURS: [], **{name: [] for name in others}}
    for number in range(min(plan.kills, PEER_KILLS_MAX)):
        for name, where in endpoints_of(stage, others).items():
            topic = f"beside-killed-{number}"
            leader = stage.call(broker_loads.find_leader, name, where, topic)
            pid, start = _node(stage, others, name, leader)
            gap_s = stage.call(
                broker_loads.measure_killed, name, where, leader, pid, topic, plan.seed + number
            )
            gaps_s[name].append(gap_s)
            start()
    return gaps_s


def _node(
    stage: BenchStage, others: Mapping[str, RunningBroker], name: str, endpoint: str
) -> tuple[int, Callable[[], None]]:
    """Return a node's process, and what starts it anew when it was killed."""
    if name in others:
        return others[name].pid(endpoint), lambda: others[name].restart(endpoint)
    [node] = [node for node, where in stage.cluster.endpoints().items() if where == endpoint]

    def start() -> None:
        stage.cluster.start(node)
        stage.await_ready(node)

    return stage.cluster.pids()[node], start


def groups(stage: BenchStage, plan: BenchPlan) -> list[Figure]:
    """Measure workers that share a topic."""
    filled, worked = _work(stage, OURS, stage.endpoints(), "groups", plan.seconds / 4)
    title = f"a group of {WORKERS} workers, acknowledged"
    published = f"published, {loads.TASKS_AT_ONCE} awaited at once"
    return [Figure("group_rate", title, worked.per_s, "/s", {published: filled.per_s})]


def _work(
    stage: BenchStage, name: str, endpoints: list[str], topic: str, seconds: float
) -> tuple[broker_loads.Counted, broker_loads.Counted]:
    """Fill for `seconds`, then have workers do all, from the first's first ask to the last's last.

    Returns what was published, and what was done.
    """
    filled: broker_loads.Counted = stage.call(broker_loads.fill, name, endpoints, topic, seconds)
    workers = [stage.start(broker_loads.work, name, endpoints, topic) for _ in range(WORKERS)]
    for worker in workers:
        worker.result(stage.shown)
    came: list[loads.Stream] = [worker.result(stage.shown) for worker in workers]
    for worker in workers:
        stage.end(worker)
    did = [each for each in came if each.count]
    done = sum(each.count for each in did)
    if done != filled.count:
        raise BenchError(f"{name}: {filled.count} publications waited, {done} were done")
    took_s = max(each.ended_s for each in did) - min(each.began_s for each in did)
    return filled, broker_loads.Counted(done, took_s)


def peers_s(plan: BenchPlan) -> float:
    """Return how long `peers` takes."""
    kills_s = min(plan.kills, PEER_KILLS_MAX) * ONE_KILL_S_EXPECTED
    return (2 * plan.seconds + START_S_EXPECTED + kills_s) * (1 + len(plan.peers))
