"""One run of an experiment, phase by phase, from a fresh cluster to a closed history.

What lives here: the order of phases, when faults are injected and healed, what is recorded about
them, and that everything is healed and taken down whatever happens. What must not: what a fault
does (faults/), how a cluster is run (targets/), what clients do (workloads/), and any verdict
about the history (analytics).
"""

from __future__ import annotations

import importlib.metadata
import platform
import random
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Protocol

import orjson

from chaos.crew import CrewError
from chaos.experiment import Experiment, Window, schedule
from chaos.faults import FAULTS
from chaos.history import HistoryError, Recorder, acknowledged_at_ns, longest_gap_ns
from chaos.progress import Display
from chaos.targets import Target, TargetError, await_leader
from chaos.workloads import ClientConfig

TICK_S: Final = 0.1  # how often reports are taken and shown
READY_S_MAX: Final = 60.0  # clients' start and first subscription on a busy machine
START_S_EXPECTED: Final = 6.0
HEAL_S_EXPECTED: Final = 4.0
VERSIONED: Final = ("flotilla", "pysyncobj", "pyzmq", "orjson")


class RunError(Exception):
    """A phase did not reach its end within its bound."""


class Clients(Protocol):
    """The publishers and subscribers: crew.Crew, or a stand-in."""

    def start(self, role: str, configs: list[ClientConfig]) -> None: ...
    def poll(self, wait_s: float) -> None: ...
    def all_have(self, report: str, role: str = "") -> bool: ...
    def lacking(self, report: str, role: str = "") -> list[str]: ...
    def count(self, name: str) -> int: ...
    def order(self, order: str, role: str = "", **fields: Any) -> None: ...
    def dismiss(self, role: str = "") -> list[str]: ...
    def close(self) -> None: ...


class Probe(Protocol):
    """The runner's own publisher, for the health gate and the tombstones."""

    def put(self, topic: str) -> int | None:
        """Publish one recorded payload; return its id, None when it was not acknowledged."""
        ...

    def close(self) -> None: ...


@dataclass(frozen=True, kw_only=True)
class RunPlan:
    """What is to be run; `run_id` and everything random but the clock's readings follow from it."""

    experiment: Experiment
    seed: int
    duration_s: float
    directory: Path
    run_id: str = field(default_factory=lambda: str(uuid.uuid4()))

    @property
    def windows(self) -> list[Window]:
        """The fault windows, the same for the same seed."""
        return schedule(self.experiment, self.duration_s, self.seed)

    @property
    def faulty_s(self) -> float:
        """How long the windows take, or the run's duration if that is longer."""
        return max(self.duration_s, sum(w.hold_s + w.quiet_s for w in self.windows))

    @property
    def expected_s(self) -> float:
        """How long the run will take, about."""
        steady_s = self.experiment.phases.steady_s
        return 2 * START_S_EXPECTED + steady_s + self.faulty_s + 3 * HEAL_S_EXPECTED


@dataclass
class Injection:
    """A fault as it was done. `gap_ms`: see history.longest_gap_ns; None = no end of it seen."""

    name: str
    targets: list[str]
    injected_ns: int
    gap_ms: float | None = None


@dataclass
class Outcome:
    """What a run came to, beside its history. `problems` empty = all phases and expectations."""

    finished: bool = False
    problems: list[str] = field(default_factory=list)
    acknowledged: int = 0
    delivered: int = 0
    unknown: int = 0
    failed: int = 0
    injections: list[Injection] = field(default_factory=list)


class Runner:
    """Carries out one run. `run` may be called once."""

    def __init__(
        self,
        plan: RunPlan,
        target: Target,
        clients: Clients,
        make_probe: Callable[[list[str], Recorder], Probe],
        display: Display,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._plan = plan
        self._target = target
        self._clients = clients
        self._make_probe = make_probe
        self._display = display
        self._monotonic_s = monotonic_s
        self._dice = random.Random(plan.seed)
        self._start_time = datetime.now(UTC).isoformat(timespec="milliseconds")
        self._outcome = Outcome()
        self._healed_ns: int | None = None
        self._recorder = Recorder(plan.directory / "history", "runner", plan.run_id)

    def run(self) -> Outcome:
        """Go through all phases; take everything down; return what it came to.

        Operating errors end the run and become a problem of the outcome. An interrupt goes on to
        the caller after everything was healed and taken down.
        """
        self._write_run_file()
        try:
            with ExitStack() as stack:
                stack.callback(self._recorder.close)
                stack.callback(self._target.down)
                stack.callback(self._clients.close)
                self._phases(stack)
        except (RunError, TargetError, CrewError, HistoryError) as error:
            self._outcome.problems.append(f"{type(error).__name__}: {error}")
        finally:
            self._measure()
            self._write_run_file()
        return self._outcome

    def _phases(self, stack: ExitStack) -> None:
        probe = self._start(stack)
        self._warm_up()
        self._steady()
        self._fault_windows()
        self._heal_all(probe)
        self._drain(self._tombstones(probe))
        self._end()

    # --- phases ---------------------------------------------------------------------------------

    def _start(self, stack: ExitStack) -> Probe:
        self._display.stage("starting nodes", START_S_EXPECTED)
        self._target.up()
        leader = await_leader(self._target, READY_S_MAX)
        self._display.say(f"{len(self._target.nodes)} nodes are up, {leader} leads")
        self._start_clients("subscriber", self._plan.experiment.workload.subscribers)
        self._start_clients("publisher", self._plan.experiment.workload.publishers)
        self._await(lambda: self._clients.all_have("ready"), READY_S_MAX, "clients ready")
        probe = self._make_probe(list(self._target.endpoints().values()), self._recorder)
        stack.callback(probe.close)
        return probe

    def _start_clients(self, role: str, count: int) -> None:
        configs = [self._client_config(f"{role}-{number}") for number in range(1, count + 1)]
        self._clients.start(role, configs)

    def _client_config(self, process: str) -> ClientConfig:
        workload = self._plan.experiment.workload
        endpoints = list(self._target.endpoints().values())
        self._dice.shuffle(endpoints)  # clients come in by different nodes
        return ClientConfig(
            process=process,
            run_id=self._plan.run_id,
            directory=str(self._plan.directory),
            endpoints=tuple(endpoints),
            topics=workload.topics,
            seed=self._dice.getrandbits(32),
            deadline_ms=workload.deadline_ms,
            rate_per_s=workload.rate_per_s,
            get_count_max=workload.get_count_max,
            get_wait_ms=workload.get_wait_ms,
        )

    def _warm_up(self) -> None:
        phases = self._plan.experiment.phases
        self._display.stage("warm-up", START_S_EXPECTED)
        self._mark("warmup")
        least = phases.warmup_acknowledged
        self._await(
            lambda: self._clients.count("acknowledged") >= least,
            phases.warmup_s_max,
            f"{least} acknowledged publications",
        )

    def _steady(self) -> None:
        steady_s = self._plan.experiment.phases.steady_s
        self._display.stage("steady", steady_s)
        self._mark("steady")
        self._wait(steady_s)

    def _fault_windows(self) -> None:
        end_s = self._monotonic_s() + self._plan.faulty_s
        for window in self._plan.windows:
            self._window(window)
        if (left_s := end_s - self._monotonic_s()) > 0:
            self._display.stage("quiet", left_s)
            self._wait(left_s)
        self._healed_ns = self._mark("heal")

    def _window(self, window: Window) -> None:
        self._display.stage(window.fault, window.hold_s)
        self._mark("fault")
        with self._injected(window.fault):
            self._wait(window.hold_s)
        self._display.stage("quiet", window.quiet_s)
        self._mark("steady")
        self._wait(window.quiet_s)

    @contextmanager
    def _injected(self, name: str) -> Iterator[None]:
        fault = FAULTS[name]
        nodes = fault.choose(self._target, self._dice)
        injected_ns = self._recorder.mark_fault(name, "inject", nodes)
        self._outcome.injections.append(Injection(name, nodes, injected_ns))
        try:
            self._display.say(f"{name}: {', '.join(nodes)}")
            fault.inject(self._target, nodes)
            yield
        finally:
            try:
                self._recorder.mark_fault(name, "heal", nodes)
            finally:
                fault.heal(self._target, nodes)

    def _heal_all(self, probe: Probe) -> None:
        """The health gate: every node runs, one leads, and a publication was acknowledged."""
        seconds_max = self._plan.experiment.phases.health_s_max
        self._display.stage("healing", HEAL_S_EXPECTED)
        self._target.start(list(self._target.nodes))
        await_leader(self._target, seconds_max)
        topic = self._plan.experiment.workload.topics[0]
        self._await(lambda: probe.put(topic) is not None, seconds_max, "an acknowledged probe")

    def _tombstones(self, probe: Probe) -> dict[str, int]:
        self._display.stage("tombstones", HEAL_S_EXPECTED)
        if killed := self._clients.dismiss("publisher"):
            raise RunError(f"{', '.join(killed)} did not stop and had to be killed")
        self._mark("tombstone")
        topics = self._plan.experiment.workload.topics
        return {topic: self._tombstone(probe, topic) for topic in topics}

    def _tombstone(self, probe: Probe, topic: str) -> int:
        id_ = probe.put(topic)
        if not id_:
            raise RunError(f"the tombstone of {topic} was not stored")
        return id_

    def _drain(self, last_ids: dict[str, int]) -> None:
        self._display.stage("draining", HEAL_S_EXPECTED)
        self._mark("drain")
        self._clients.order("drain", "subscriber", last_ids=last_ids)
        seconds_max = self._plan.experiment.phases.drain_s_max
        deadline_s = self._monotonic_s() + seconds_max
        while lacking := self._clients.lacking("drained", "subscriber"):
            if self._monotonic_s() >= deadline_s:
                raise RunError(f"{', '.join(lacking)} did not drain within {seconds_max:g} s")
            self._tick(TICK_S)

    def _end(self) -> None:
        if killed := self._clients.dismiss("subscriber"):
            raise RunError(f"{', '.join(killed)} did not stop and had to be killed")
        self._mark("done")
        self._outcome.finished = True

    # --- the parts of a phase -------------------------------------------------------------------

    def _mark(self, phase: str) -> int:
        self._clients.order("phase", phase=phase)
        self._recorder.phase = phase
        return self._recorder.mark_phase(phase)

    def _await(self, condition: Callable[[], bool], seconds_max: float, what: str) -> None:
        deadline_s = self._monotonic_s() + seconds_max
        while not condition():
            if self._monotonic_s() >= deadline_s:
                raise RunError(f"waited {seconds_max:g} s in vain for: {what}")
            self._tick(TICK_S)

    def _wait(self, seconds: float) -> None:
        deadline_s = self._monotonic_s() + seconds
        while (left_s := deadline_s - self._monotonic_s()) > 0:
            self._tick(min(left_s, TICK_S))

    def _tick(self, wait_s: float) -> None:
        self._clients.poll(wait_s)
        acknowledged, delivered = (self._clients.count(n) for n in ("acknowledged", "delivered"))
        self._display.tick(f"{acknowledged:,} acknowledged, {delivered:,} delivered")

    # --- what it came to ------------------------------------------------------------------------

    def _measure(self) -> None:
        outcome = self._outcome
        times_ns = acknowledged_at_ns(self._plan.directory / "history")
        # Not what the publishers count: the probe's and the tombstones are among them, as in the
        # report of analytics, and what the publishers' last flush brought.
        outcome.acknowledged = len(times_ns)
        outcome.delivered = self._clients.count("delivered")
        outcome.unknown = self._clients.count("unknown")
        outcome.failed = self._clients.count("failed")
        if self._healed_ns is not None:
            measure_gaps(outcome.injections, times_ns, self._healed_ns)
        if outcome.finished:
            outcome.problems += unmet(self._plan.experiment, outcome)

    def _write_run_file(self) -> None:
        target = self._target
        write_run_file(self._plan, target.name, target.nodes, self._start_time, self._outcome)


def write_run_file(
    plan: RunPlan, target: str, nodes: Sequence[str], start_time: str, outcome: Outcome
) -> None:
    """Write what is run on which target, and what it has come to, to the run's `run.json`."""
    document = {
        "run_id": plan.run_id,
        "seed": plan.seed,
        "experiment": asdict(plan.experiment),
        "duration_s": plan.duration_s,
        "target": target,
        "nodes": list(nodes),
        "versions": versions(),
        "start": start_time,
        "outcome": asdict(outcome),
    }
    encoded = orjson.dumps(document, option=orjson.OPT_INDENT_2)
    temporary = plan.directory / "run.json.new"
    temporary.write_bytes(encoded + b"\n")
    temporary.replace(plan.directory / "run.json")


def measure_gaps(injections: list[Injection], times_ns: list[int], end_ns: int) -> None:
    """Set `gap_ms` of each injection from the acknowledgments, up to the next one or `end_ns`."""
    ends_ns = [*(injection.injected_ns for injection in injections[1:]), end_ns]
    for injection, until_ns in zip(injections, ends_ns, strict=False):
        gap_ns = longest_gap_ns(times_ns, injection.injected_ns, until_ns)
        injection.gap_ms = None if gap_ns is None else gap_ns / 1e6


def unmet(experiment: Experiment, outcome: Outcome) -> list[str]:
    """Return a sentence for each expectation of the experiment that the outcome does not meet."""
    expect = experiment.expect
    sentences = []
    if outcome.acknowledged < expect.acknowledged_min:
        sentences.append(
            f"{outcome.acknowledged} acknowledged, {expect.acknowledged_min} are the least"
        )
    for injection in outcome.injections:
        if injection.gap_ms is None:
            sentences.append(f"{injection.name}: service did not come back before the next phase")
        elif injection.gap_ms > expect.blackout_s_max * 1000:
            sentences.append(
                f"{injection.name}: no acknowledgment for {injection.gap_ms / 1000:.1f} s, "
                f"{expect.blackout_s_max:g} s are the most"
            )
    return sentences


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that a run depends on."""
    found = {dist.metadata["Name"]: dist.version for dist in importlib.metadata.distributions()}
    packages = {name: version for name, version in found.items() if name in VERSIONED}
    return {"python": platform.python_version(), **packages}
