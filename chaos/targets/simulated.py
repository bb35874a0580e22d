"""A run of an experiment on a simulated cluster: virtual time, no processes, the same history.

What lives here: an experiment as a plan of the simulator, and what is recorded about its faults.
What must not: the simulator (chaos/simulation), runs on real clusters (chaos/runner.py). It is no
`Target`: those are broken from outside while real time passes, here the run itself is simulated.

The same experiment and seed give the same history, byte for byte but for the host's name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, replace
from datetime import UTC, datetime
from typing import Any, Final
from uuid import UUID

from chaos.experiment import Workload
from chaos.history import Recorder, acknowledged_at_ns
from chaos.progress import Display
from chaos.runner import Injection, Outcome, RunPlan, measure_gaps, unmet, write_run_file
from chaos.simulation.plan import CLIENTS_MAX, Action, Plan
from chaos.simulation.scripts import Role
from chaos.simulation.watch import Attached, attach
from chaos.simulation.world import World
from chaos.targets import TargetError

NAME: Final = "simulated"
START_S: Final = 2.0  # virtual; nodes start, one is elected, subscribers subscribe
STEP_S: Final = 0.5  # virtual; between looks at whether it is over
SPEED_EXPECTED: Final = 50.0  # virtual seconds a second
FULL_RATE_PER_S: Final = 1000.0  # what `rate_per_s = 0` asks for: without a pause to speak of
PAUSE_S_MIN: Final = 0.001

# An experiment's fault -> the simulator's action that injects it; `restart_all` heals each.
ACTIONS: Final[Mapping[str, tuple[str, Mapping[str, Any]]]] = {
    "kill-leader": ("kill", {"node": "leader"}),
    "kill-all": ("kill_all", {}),
}
HEALING: Final = "restart_all"


def simulator_plan(plan: RunPlan, nodes: int) -> Plan:
    """Return the experiment as a plan of the simulator. Raises TargetError if it is too much."""
    roles = _roles(plan.experiment.workload)
    if len(roles) > CLIENTS_MAX:
        raise TargetError(f"{NAME}: {len(roles)} clients, {CLIENTS_MAX} are the most")
    at_s, schedule = START_S + plan.experiment.phases.steady_s, []
    for window in plan.windows:
        if window.fault not in ACTIONS:
            raise TargetError(f"{NAME}: cannot do {window.fault!r}; can do {', '.join(ACTIONS)}")
        name, arguments = ACTIONS[window.fault]
        schedule += [Action(at_s, name, arguments), Action(at_s + window.hold_s, HEALING)]
        at_s += window.hold_s + window.quiet_s
    load = {
        "roles": [asdict(role) for role in roles],
        "deadline_ms": plan.experiment.workload.deadline_ms,
    }
    return Plan(
        plan.seed,
        nodes,
        len(roles),
        max(at_s, START_S + plan.faulty_s),
        "live",
        {"load": load},
        tuple(schedule),
    )


def _roles(workload: Workload) -> list[Role]:
    pause_s = 1 / (workload.rate_per_s or FULL_RATE_PER_S)
    publisher = Role(topics=workload.topics, puts=1.0, pause_s=pause_s)
    subscriber = Role(
        topics=workload.topics,
        gets=1.0,
        pause_s=PAUSE_S_MIN,
        get_count=workload.get_count_max,
        get_wait_ms=workload.get_wait_ms,
    )
    return [publisher] * workload.publishers + [subscriber] * workload.subscribers


class SimulatedRun:
    """Carries out one run in this process. `run` may be called once. Raises TargetError."""

    def __init__(self, plan: RunPlan, nodes: int, display: Display) -> None:
        self._plan = replace(plan, run_id=str(UUID(int=plan.seed)))
        self._simulated = simulator_plan(plan, nodes)
        self._display = display
        self._outcome = Outcome()

    def run(self) -> Outcome:
        """Let the run pass; return what it came to."""
        plan, start_time = self._plan, datetime.now(UTC).isoformat(timespec="milliseconds")
        with World(self._simulated) as world:
            watch = attach(world, plan.directory)
            with Faults(world, plan, self._outcome):
                self._let_pass(world, watch)
            failures = watch.finish()
        self._measure(watch)
        self._outcome.problems += [f"{failure.check}: {failure.text}" for failure in failures]
        members = self._simulated.members
        write_run_file(plan, NAME, members, start_time, self._outcome)
        return self._outcome

    def _let_pass(self, world: World, watch: Attached) -> None:
        self._display.stage("simulating", self._simulated.duration_s / SPEED_EXPECTED)
        while not watch.is_over:
            world.run_until(world.now + STEP_S)
            self._display.tick(f"{world.now:,.0f} virtual seconds, {watch.crowd.phase}")

    def _measure(self, watch: Attached) -> None:
        outcome, counts = self._outcome, Counter[str]()
        for event in watch.events():
            if event["f"] == "put":
                counts[event["type"]] += 1
            counts["delivered"] += event.get("count", 0) if event["f"] == "get" else 0
        outcome.acknowledged, outcome.delivered = counts["ok"], counts["delivered"]
        outcome.unknown, outcome.failed = counts["info"], counts["fail"]
        end_ns = round(self._simulated.duration_s * 1e9)
        times_ns = acknowledged_at_ns(self._plan.directory / "history")
        measure_gaps(outcome.injections, times_ns, end_ns)
        outcome.finished = watch.crowd.is_done
        if outcome.finished:
            outcome.problems += unmet(self._plan.experiment, outcome)


class Faults:
    """Records the faults of a run, in the history and in its outcome, as they happen."""

    def __init__(self, world: World, plan: RunPlan, outcome: Outcome) -> None:
        self._world, self._outcome = world, outcome
        self._windows = iter(plan.windows)
        self._open: tuple[str, list[str]] | None = None
        now_ns = self._now_ns
        history = plan.directory / "history"
        self._recorder = Recorder(
            history, "faults", plan.run_id, monotonic_ns=now_ns, wall_ns=now_ns
        )
        world.observers.append(self._observe)

    def __enter__(self) -> Faults:
        return self

    def __exit__(self, *_: object) -> None:
        self._recorder.close()

    def _observe(self, kind: str, fields: Mapping[str, Any]) -> None:
        """Hear of an action just before it is done."""
        if kind != "fault":
            return
        if fields["name"] == HEALING:
            assert self._open is not None, "a fault is healed that was not injected"
            self._recorder.mark_fault(self._open[0], "heal", self._open[1])
            return
        name = next(self._windows).fault
        leader = self._world.leader()
        nodes = list(self._world.nodes) if "node" not in fields["args"] else [leader]
        self._open = (name, [node for node in nodes if node])
        injected_ns = self._recorder.mark_fault(name, "inject", self._open[1])
        self._outcome.injections.append(Injection(name, self._open[1], injected_ns))

    def _now_ns(self) -> int:
        return round(self._world.now * 1e9)
