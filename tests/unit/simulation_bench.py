"""How much virtual time a CPU second holds: three nodes, under several loads.

Not a test: `python -m tests.unit.simulation_bench --help`. It takes the CPU time of one process, so
other work on the machine counts for less; but caches and cores are shared, so a busy machine still
makes it up to twice as slow: the last line tells the load.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple

import click

from chaos.simulation.checks.invariants import Invariants
from chaos.simulation.plan.plan import Plan
from chaos.simulation.search.campaign import Recipe
from chaos.simulation.search.run import run
from chaos.simulation.world.world import World

NODES: Final = 3
CLIENTS: Final = 4
STEADY_S: Final = 20.0  # of virtual time, before a run comes to its end
IDLE_S: Final = 60.0


class RunCost(NamedTuple):
    """What one run took."""

    virtual_s: float
    cpu_s: float
    operations: int


def steady(seed: int, operations_per_s: float) -> Plan:
    """Return a plan without a fault: clients that publish and read, with pauses between."""
    role: dict[str, Any] = {"topics": ["x", "y"], "pause_s": CLIENTS / operations_per_s}
    writer, reader = role | {"puts": 1.0}, role | {"gets": 1.0, "get_wait_ms": 0}
    roles = [writer, writer, reader, reader]
    assert len(roles) == CLIENTS, roles
    knobs = {"load": {"roles": roles, "deadline_ms": 15_000}}
    return Plan(seed, NODES, CLIENTS, STEADY_S, "live", knobs)


def of_plan(plan: Plan) -> RunCost:
    """Run a plan with its clients and all that is checked."""
    began_s = time.process_time()
    result = run(plan)
    took_s = time.process_time() - began_s
    assert not result.failures, (plan.seed, result.failures)
    answers = (result.events.get(name, 0) for name in ("answered", "not_answered"))
    return RunCost(result.simulated_s, took_s, sum(answers))


def of_idle(seed: int) -> RunCost:
    """Run a cluster that nobody asks for anything."""
    began_s = time.process_time()
    with World(Plan(seed, NODES, 0, IDLE_S)) as world:
        invariants = Invariants(world)
        world.run_until(IDLE_S)
        assert world.leader(), f"seed {seed} has no leader after {IDLE_S} s"
        assert not invariants.failures, (seed, invariants.failures)
    return RunCost(IDLE_S, time.process_time() - began_s, 0)


LOADS: Final[dict[str, Callable[[int], RunCost]]] = {
    "the swarm's, with its faults": lambda seed: of_plan(Recipe(nodes=NODES).plan(seed)),
    "steady, few operations": lambda seed: of_plan(steady(seed, 10)),
    "steady, many operations": lambda seed: of_plan(steady(seed, 55)),
    "idle": of_idle,
}


def row(name: str, samples: Iterable[RunCost]) -> str:
    """Return a load's line of the table."""
    runs = list(samples)
    rates = [one.virtual_s / one.cpu_s for one in runs]
    virtual_s, cpu_s = sum(one.virtual_s for one in runs), sum(one.cpu_s for one in runs)
    operations = sum(one.operations for one in runs)
    return (
        f"| {name} | {operations / virtual_s:.0f} | {statistics.median(rates):.0f} "
        f"| {virtual_s / cpu_s:.0f} | {operations / cpu_s:.0f} |"
    )


@click.command()
@click.argument("first", type=click.IntRange(min=1), default=1)
@click.argument("last", type=click.IntRange(min=1), default=30)
@click.option("--steady-seeds", type=click.IntRange(min=1), default=5, show_default=True)
def bench(first: int, last: int, steady_seeds: int) -> None:
    """Measure the simulator's speed and write it as a table.

    FIRST and LAST are the swarm's seeds (1 to 30 by default); the loads without faults take the
    seeds 1 to --steady-seeds.
    """
    if last < first:
        raise click.BadParameter(f"the seeds {first} to {last} are none", param_hint="LAST")
    click.echo(
        "| load | operations a virtual s | virtual s a CPU s: median | over all | op./CPU s |"
    )
    click.echo("|---|---|---|---|---|")
    LOADS["idle"](1)  # what is loaded and cached once belongs to no load
    for name, sample in LOADS.items():
        seeds = range(first, last + 1) if "swarm" in name else range(1, steady_seeds + 1)
        click.echo(row(name, map(sample, seeds)))
    click.echo(f"load of the machine at the end: {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    bench()
