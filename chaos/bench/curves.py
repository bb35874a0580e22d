"""The measures that are compared at several sizes: figures, and the curves behind plots.

What lives here: which loads make which curve. What must not: loads (curve_loads.py), processes
(stage.py), or how curves are drawn (page.py).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from chaos.bench import curve_loads
from chaos.bench.beside import START_S_EXPECTED, endpoints_of, running
from chaos.bench.curve_loads import AtRate, OverTopics
from chaos.bench.figures import BenchError, Curve, Figure, timed
from chaos.bench.plan import BenchPlan
from chaos.bench.stage import LOAD_S_MAX, BenchStage, cpu_s, resident_mib

NODES: Final = (1, 3, 5)
TOPICS: Final = 1_000
SUBSCRIBERS: Final = 100
CLUSTER_S_EXPECTED: Final = 4.0
MIB: Final = 2**20
FILL_MIB_PER_S_MIN: Final = 4  # slower is given up
# Above the default, which refuses more than 8 GiB in a topic.
BACKLOG_SETTINGS: Final = {"limits.backlog_bytes_max": 64 * 2**30}

# What measures one cluster at a size, and the names of its figures that are compared.
Measured = Callable[[BenchStage, BenchPlan], list[Figure]]


def rates(stage: BenchStage, plan: BenchPlan) -> list[Figure | Curve]:
    """Measure latencies at fixed rates, of the plan's other brokers too."""
    with running(stage, plan) as others:
        endpoints = endpoints_of(stage, others)
        seconds = plan.seconds * len(endpoints)
        found: dict[str, list[AtRate]] = stage.call(
            curve_loads.measure_rates,
            endpoints,
            "rates",
            plan.seconds,
            seconds_max=LOAD_S_MAX + seconds,
        )
    common = max(
        rate
        for rate in curve_loads.RATES
        if all(any(step.rate == rate for step in steps) for steps in found.values())
    )
    at_common = {
        name: next(step for step in steps if step.rate == common) for name, steps in found.items()
    }
    latencies: dict[str, list[tuple[float, float]]] = {}
    for name, steps in found.items():
        ordered = sorted(steps, key=lambda step: step.answered_per_s)
        of = [(step.answered_per_s, step.spread) for step in ordered]
        latencies[f"{name}, median"] = [(rate, 1000 * spread.median) for rate, spread in of]
        latencies[f"{name}, p99"] = [
            (rate, 1000 * spread.p99) for rate, spread in of if spread.p99 is not None
        ]
    shares = {
        name: [
            (1000 * curve_loads.class_end_s(number), count / step.spread.samples)
            for number, count in sorted(step.classes.items())
        ]
        for name, step in at_common.items()
    }
    own, *_ = at_common.values()
    medians = {
        name: 1000 * step.spread.median for name, step in at_common.items() if step is not own
    }
    bottom = 1000 * found[next(iter(found))][0].spread.median
    title = f"at {common:,}/s, from the scheduled moment"
    lowest = {f"at {curve_loads.RATES[0]}/s": bottom}
    return [
        Figure("rate_latency", title, 1000 * own.spread.median, "ms", lowest | medians),
        Curve("rates", "Latency at fixed rates, from the scheduled moment", "answered, 1/s",
              "latency, ms", latencies, is_log=True),
        Curve("histogram", f"Latencies at {common:,}/s", "latency, ms", "share of publications",
              shares, is_bars=True),
    ]  # fmt: skip


def of_sizes(
    found: Mapping[int, Sequence[Figure]], base: int, unit: str, name: str
) -> list[Figure]:
    """Return each size's figures against those of `base`, whose own are left out."""
    of_base = {figure.name: figure for figure in found[base]}
    rows = []
    for size, figures in found.items():
        for figure in figures:
            if size != base and figure.name in of_base:
                against = {_so_many(base, unit): of_base[figure.name].value}
                rows.append(
                    replace(
                        figure,
                        name=f"{name}_{size}_{figure.name}",
                        title=f"{_so_many(size, unit)}: {figure.title}",
                        against=against,
                    )
                )
    return rows


def _so_many(size: int, unit: str) -> str:
    return f"{size:,} {unit}" if size == 1 or unit == "MiB" else f"{size:,} {unit}s"


def cost_curves(
    found: Mapping[int, Sequence[Figure]], x: str, name: str, title: str
) -> list[Curve]:
    """Return a curve over sizes for each unit, with a line for each figure of that unit."""
    by_unit: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for size, figures in sorted(found.items()):
        for figure in figures:
            lines = by_unit.setdefault(figure.unit, {})
            lines.setdefault(figure.title, []).append((size, figure.value))
    return [
        Curve(f"{name}_{number}", f"{title}, {unit}", x, unit, lines)
        for number, (unit, lines) in enumerate(by_unit.items())
    ]


def nodes(stage: BenchStage, plan: BenchPlan, measured: Measured) -> list[Figure | Curve]:
    """Measure clusters of NODES nodes, one after the other."""
    short, found = replace(plan, seconds=plan.seconds / 2), {}
    for count in NODES:
        with stage.another(f"nodes-{count}", count) as cluster:
            found[count] = measured(cluster, short)
    return [
        *of_sizes(found, 3, "node", "nodes"),
        *cost_curves(found, "nodes", "nodes", "Cost by nodes"),
    ]


def backlogs(stage: BenchStage, plan: BenchPlan, measured: Measured) -> list[Figure | Curve]:
    """Measure clusters with so many MiB unread in a topic."""
    short, found = replace(plan, seconds=plan.seconds / 2), {}
    for mib in plan.backlogs_mib:
        with stage.another(f"backlog-{mib}", settings=BACKLOG_SETTINGS) as cluster:
            count = max(curve_loads.GETS, mib * MIB // curve_loads.FILL_BYTES)
            size = curve_loads.FILL_BYTES if mib else 100
            _fill(cluster, count, size)
            gets_s: list[float] = cluster.call(
                curve_loads.measure_gets, cluster.endpoints(), "backlog"
            )
            found[mib] = [*measured(cluster, short), timed("get", "GET of one", gets_s, {})]
    return [
        *of_sizes(found, plan.backlogs_mib[0], "MiB", "backlog"),
        *cost_curves(found, "unread in a topic, MiB", "backlogs", "Cost by backlog"),
    ]


def _fill(cluster: BenchStage, count: int, size: int) -> None:
    load = cluster.start(curve_loads.fill_backlog, cluster.endpoints(), "backlog", count, size)
    sent, until_s = 0, time.monotonic() + LOAD_S_MAX + count * size / MIB / FILL_MIB_PER_S_MIN
    while sent < count:
        if time.monotonic() > until_s:
            raise BenchError(f"the backlog has {sent} of {count} publications; it is too slow")
        sent = load.result(cluster.shown)
    cluster.end(load)


def topics(stage: BenchStage, plan: BenchPlan) -> list[Figure | Curve]:
    """Measure TOPICS topics with a subscriber each against one with one."""
    found: dict[int, list[Figure]] = {}
    for count in (1, TOPICS):
        leader, endpoint = stage.leader()
        pid = stage.cluster.pids()[leader]
        load = stage.start(
            curve_loads.measure_topics, endpoint, f"topics-{count}", count, plan.seconds / 2
        )
        load.result(stage.shown)
        before_s = cpu_s(pid)
        did: OverTopics = load.result(stage.shown)
        stage.end(load)
        used_us = 1e6 * (cpu_s(pid) - before_s) / did.put
        found[count] = [
            Figure("put_rate", "PUT, 64 clients", did.put / did.put_s, "/s"),
            Figure(
                "read_rate",
                f"then read, {curve_loads.TOPICS_READ} a GET",
                did.delivered / did.delivered_s,
                "/s",
            ),
            Figure("cpu_leader", "CPU a PUT and its delivery, leader", used_us, "µs"),
            Figure("memory", "memory, leader", resident_mib(pid), "MiB"),
        ]
    return [
        *of_sizes(found, 1, "topic", "topics"),
        *cost_curves(found, "topics, a subscriber each", "topics", "Cost by topics"),
    ]


def fanout(stage: BenchStage, plan: BenchPlan) -> list[Figure | Curve]:
    """Measure SUBSCRIBERS subscribers of one topic against one."""
    found: dict[int, list[Figure]] = {}
    for count in (1, SUBSCRIBERS):
        delivered, took_s = stage.call(
            curve_loads.measure_fanout,
            stage.leader()[1],
            f"fanout-{count}",
            count,
            plan.seconds / 2,
        )
        found[count] = [Figure("rate", "deliveries in all", delivered / took_s, "/s")]
    return [
        *of_sizes(found, 1, "subscriber", "fanout"),
        *cost_curves(found, "subscribers of a topic", "fanout", "Deliveries by subscribers"),
    ]


def rates_s(plan: BenchPlan) -> float:
    """Return how long `rates` takes."""
    return (plan.seconds + START_S_EXPECTED * bool(plan.peers)) * (1 + len(plan.peers))


def nodes_s(plan: BenchPlan) -> float:
    """Return how long `nodes` takes."""
    return len(NODES) * (plan.seconds + CLUSTER_S_EXPECTED)


def backlogs_s(plan: BenchPlan) -> float:
    """Return how long `backlogs` takes."""
    each_s = plan.seconds + 2 * CLUSTER_S_EXPECTED
    return len(plan.backlogs_mib) * each_s + sum(plan.backlogs_mib) / 40
