"""The fault windows of a simulated run: opened and closed by its plan, in virtual time.

What lives here: the two actions that a plan names, and what is recorded about them. What must not:
what a fault does (chaos/faults, chaos/run/client_faults), or how (simulated_cluster.py).
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Final

from chaos.run.injector import JOINT, Injector, everybody
from chaos.run.plan import RunPlan
from chaos.run.run_result import Injection, RunResult
from chaos.simulation.world.world import World
from chaos.targets.simulated_cluster import SimulatedCluster
from chaos.workloads import recording
from chaos.workloads.history import ProcessRecorder

OPENS, CLOSES = "open_window", "close_window"

# Where a client dies: a name of chaos/workloads/recording.py -> one of the simulator's
# clients.py.
POINTS: Final[Mapping[str, str]] = dict(
    zip(recording.CRASH_POINTS, ("invoke", "complete", "handed"), strict=True)
)


class SimulatedClientPool:
    """The simulated clients as client_faults.HarmableClients."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._names = [f"client-{number}" for number in range(1, world.plan.clients + 1)]

    def clients(self) -> list[str]:
        """Return the names of all of them."""
        return list(self._names)

    def doom(self, name: str, point: str, passes: int) -> None:
        """Have a client's process die at the next such point that it passes."""
        self._world.actions["client_crash"](client=name, at=POINTS[point])

    def restart(self, name: str) -> None:
        """Start a client's process again, if none lives."""
        self._world.actions["client_restart"](client=name)

    def double(self, name: str) -> str:
        """Let another process go on with a copy of a client's state; it has the same name."""
        self._world.actions["client_copy"](client=name)
        return name


class Windows:
    """Opens and closes the windows of a run. A context, at whose end the records are closed."""

    def __init__(self, world: World, plan: RunPlan, outcome: RunResult) -> None:
        self._world, self._outcome = world, outcome
        pool = SimulatedClientPool(world)
        cluster = SimulatedCluster(world, pool.clients())
        self._injector = Injector(cluster, pool, random.Random(plan.seed))
        self._open: dict[str, list[str]] = {}
        self._recorder = ProcessRecorder(
            plan.directory / "history",
            "faults",
            plan.run_id,
            monotonic_ns=self._now_ns,
            wall_ns=self._now_ns,
        )
        world.actions |= {OPENS: self._open_window, CLOSES: self._close_window}

    def __enter__(self) -> Windows:
        return self

    def __exit__(self, *_: object) -> None:
        self._recorder.close()

    def _open_window(self, faults: Sequence[str]) -> None:
        self._open = self._injector.choose(faults)
        injected_ns = self._recorder.mark_fault(self._name, "inject", self._victims)
        self._outcome.injections.append(Injection(self._name, self._victims, injected_ns))
        for name, victims in self._open.items():
            self._injector.inject(name, victims)

    def _close_window(self) -> None:
        assert self._open, "a window is closed that was not opened"
        self._recorder.mark_fault(self._name, "heal", self._victims)
        for name, victims in reversed(self._open.items()):
            self._injector.heal(name, victims)
        self._open = {}

    @property
    def _name(self) -> str:
        return JOINT.join(self._open)

    @property
    def _victims(self) -> list[str]:
        return everybody(self._open)

    def _now_ns(self) -> int:
        return round(self._world.now * 1e9)
