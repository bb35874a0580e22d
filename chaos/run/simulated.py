"""A run of an experiment on a simulated cluster: virtual time, no processes, the same history.

What lives here: an experiment as a plan of the simulator. What must not: the simulator
(chaos/simulation), runs on real clusters (chaos/run/runner.py), the windows
(simulated_windows).
It is no `Target`: those are broken from outside while real time passes, here the run itself is
simulated.

The same experiment and seed give the same history, byte for byte but for the host's name.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from datetime import UTC, datetime
from typing import Final
from uuid import UUID

from chaos.faults import support
from chaos.run.client_faults import CLIENT_FAULTS
from chaos.run.plan import RunPlan
from chaos.run.run_result import RunResult, measure, write_run_file
from chaos.run.simulated_windows import CLOSES, OPENS, Windows
from chaos.simulation.checks.watch import Attached, attach
from chaos.simulation.clients.scripts import Role
from chaos.simulation.plan.plan import CLIENTS_MAX, SCHEDULE_MAX, Action, Plan
from chaos.simulation.world.world import World
from chaos.spec.experiment import Group, Workload
from chaos.targets import TargetError
from chaos.terminal.progress import Display
from chaos.workloads import kinds
from flotilla_client.protocol import PUBLICATION_BYTES_MAX

NAME: Final = "simulated"
START_S: Final = 2.0  # virtual; nodes start, one is elected, subscribers subscribe
STEP_S: Final = 0.5  # virtual; between looks at whether it is over
SPEED_EXPECTED: Final = 50.0  # virtual seconds a second
FULL_RATE_PER_S: Final = 1000.0  # what `rate_per_s = 0` asks for: without a pause to speak of
PAUSE_S_MIN: Final = 0.001
BURST_PAUSE_S: Final = 0.2  # a burst is one batch here: there is no producer's window
CHURN_WEIGHT: Final = 0.05  # of all that a visitor does, reading aside
LINE_BYTES: Final = 100
SIZE_BYTES_MAX: Final = PUBLICATION_BYTES_MAX - 1_024  # of a filler: with room for the rest


def simulator_plan(plan: RunPlan, nodes: int) -> Plan:
    """Return the experiment as a plan of the simulator. Raises TargetError if it is too much."""
    roles = _roles(plan.experiment.workload)
    if len(roles) > CLIENTS_MAX:
        raise TargetError(f"{NAME}: {len(roles)} clients, {CLIENTS_MAX} are the most")
    at_s = START_S + plan.experiment.phases.steady_s
    schedule: list[Action] = []
    support.check(set(plan.experiment.fault_names) - set(CLIENT_FAULTS), NAME)
    if 2 * len(plan.windows) > SCHEDULE_MAX:  # each opens and closes
        raise TargetError(f"{NAME}: {len(plan.windows)} windows, {SCHEDULE_MAX // 2} are the most")
    for window in plan.windows:
        schedule.append(Action(at_s, OPENS, {"faults": list(window.faults)}))
        schedule.append(Action(at_s + window.hold_s, CLOSES))
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
    return [
        _role(group, workload.topics_of(group))
        for group in workload.groups
        for _ in range(group.count)
    ]


def _role(group: Group, topics: tuple[str, ...]) -> Role:
    """Return what a client of the group does, in the simulator's terms."""
    match group.parameters:
        case kinds.Publisher() as publisher:
            return Role(
                topics=topics,
                puts=1.0,
                pause_s=publisher.batch_count / (publisher.rate_per_s or FULL_RATE_PER_S),
                batch_count=publisher.batch_count,
                size_bytes=min(publisher.size_bytes or LINE_BYTES, SIZE_BYTES_MAX),
            )
        case kinds.Pipeliner() as pipeliner:
            return Role(
                topics=topics,
                puts=1.0,
                pause_s=BURST_PAUSE_S,
                batch_count=pipeliner.burst_count,
                size_bytes=min(pipeliner.size_bytes or LINE_BYTES, SIZE_BYTES_MAX),
            )
        case kinds.Subscriber() as reader:
            return Role(
                topics=topics,
                gets=1.0,
                churns=CHURN_WEIGHT if isinstance(reader, kinds.Visitor) else 0.0,
                pause_s=max(reader.pause_s, PAUSE_S_MIN),
                get_count=reader.get_count_max,
                get_wait_ms=reader.get_wait_ms,
                reads_any=isinstance(reader, kinds.Gatherer),
            )
        case kinds.Taker() as worker:
            return Role(
                topics=topics,
                works=1.0,
                pause_s=PAUSE_S_MIN,
                lease_ms=round(worker.lease_s * 1000),
                max_attempts=worker.attempts_max,
            )


class SimulatedRun:
    """Carries out one run in this process. `run` may be called once. Raises TargetError."""

    def __init__(self, plan: RunPlan, nodes: int, display: Display) -> None:
        self._plan = replace(plan, run_id=str(UUID(int=plan.seed)))
        self._simulated = simulator_plan(plan, nodes)
        self._display = display
        self._outcome = RunResult()

    def run(self) -> RunResult:
        """Let the run pass; return what it came to."""
        plan, start_time = self._plan, datetime.now(UTC).isoformat(timespec="milliseconds")
        with World(self._simulated) as world:
            watch = attach(world, plan.directory)
            with Windows(world, plan, self._outcome):
                self._let_pass(world, watch)
            failures = watch.finish()
        self._outcome.violations += [f"{failure.check}: {failure.text}" for failure in failures]
        self._outcome.reasons += self._outcome.violations
        self._measure(watch)
        members = self._simulated.members
        write_run_file(plan, NAME, members, start_time, self._outcome)
        return self._outcome

    def _let_pass(self, world: World, watch: Attached) -> None:
        self._display.stage("simulating", self._simulated.duration_s / SPEED_EXPECTED)
        while not watch.is_over:
            world.run_until(world.now + STEP_S)
            self._display.tick(f"{world.now:,.0f} virtual seconds, {watch.crowd.phase}")

    def _measure(self, watch: Attached) -> None:
        span_ns = (round(START_S * 1e9), round(self._simulated.duration_s * 1e9))
        self._outcome.finished = watch.crowd.is_done
        history = self._plan.directory / "history"
        measure(self._outcome, self._plan.experiment, history, span_ns)
