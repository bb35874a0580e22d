"""How much virtual time a CPU second holds: three nodes, the swarm's load and faults.

Not a test: `python -m tests.unit.simulation_bench [FIRST LAST]` (seeds, 1 to 40 by default). CPU
time of one process, so other work on the machine counts for little; but caches are shared, so a
busy machine still makes it slower.
"""

from __future__ import annotations

import statistics
import sys
import time

from chaos.simulation.campaign import Recipe

NODES = 3
SEEDS = (1, 40)


def main() -> None:
    first, last = map(int, sys.argv[1:] or SEEDS)
    recipe = Recipe(nodes=NODES)
    rates, virtual_s, cpu_s, operations = [], 0.0, 0.0, 0
    for seed in range(first, last + 1):
        began_s = time.process_time()
        result = recipe(recipe.plan(seed))
        took_s = time.process_time() - began_s
        assert not result.failures, (seed, result.failures)
        rates.append(result.simulated_s / took_s)
        virtual_s, cpu_s = virtual_s + result.simulated_s, cpu_s + took_s
        operations += result.events.get("answered", 0) + result.events.get("not_answered", 0)
    print(
        f"{len(rates)} seeds, {operations / virtual_s:.0f} operations a virtual second: "
        f"{statistics.median(rates):.0f} virtual seconds a CPU second (median), "
        f"{virtual_s / cpu_s:.0f} over all, {operations / cpu_s:.0f} operations a CPU second"
    )


if __name__ == "__main__":
    main()
