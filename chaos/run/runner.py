"""One run of an experiment, phase by phase, from a fresh cluster to a closed history.

What lives here: the order of phases, when faults are injected and healed, what is recorded about
them, and that everything is healed and taken down whatever happens. What must not: what a fault
does (faults/, client_faults.py), how a cluster is run (targets/), what clients do (workloads/), and
any verdict about the history (analytics).
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Protocol

from chaos.run.client_pool import ClientPoolError
from chaos.run.injector import JOINT, Injector, everybody
from chaos.run.plan import HEAL_S_EXPECTED, START_S_EXPECTED, RunPlan
from chaos.run.run_result import Injection, RunResult, measure, write_run_file
from chaos.run.truth import TruthError
from chaos.spec.experiment import FaultWindow, Group
from chaos.targets import Remains, Target, TargetError, await_leader
from chaos.terminal.progress import Display, Meter
from chaos.workloads import ClientConfig
from chaos.workloads.history import HistoryFileError, ProcessRecorder

TICK_S: Final = 0.1  # how often reports are taken and shown
READY_S_MAX: Final = 60.0  # clients' start and first subscription on a busy machine


class RunError(Exception):
    """A phase did not reach its end within its bound."""


class RunClients(Protocol):
    """The publishers and subscribers: client_pool.ClientPool, or a stand-in."""

    def start(self, configs: list[ClientConfig]) -> None: ...
    def poll(self, wait_s: float) -> None: ...
    def lacking(self, report: str, role: str = "") -> list[str]: ...
    def reporting(self, report: str) -> list[str]: ...
    def count(self, name: str) -> int: ...
    def order(self, order: str, role: str = "", **fields: Any) -> None: ...
    def dismiss(self, role: str = "") -> list[str]: ...
    def close(self) -> None: ...
    def clients(self) -> list[str]: ...
    def doom(self, name: str, point: str, passes: int) -> None: ...
    def restart(self, name: str) -> None: ...
    def double(self, name: str) -> str: ...
    def unfenced(self) -> list[str]: ...


class Probe(Protocol):
    """The runner's own publisher, for the health gate and the tombstones."""

    def put(self, topic: str) -> int | None:
        """Publish one recorded payload; return its id, None when it was not acknowledged."""
        ...

    def close(self) -> None: ...


class Auditor(Protocol):
    """Who reads the nodes' disks at the end: truth.Disks, or a stand-in."""

    def is_settled(self, endpoints: Mapping[str, str]) -> bool:
        """Whether every node answers and all have applied the same entries."""
        ...

    def collect(self, run_id: str, remains: Mapping[str, Remains], directory: Path) -> None:
        """Write what each node has left, one file a node."""
        ...


class Runner:
    """Carries out one run. `run` may be called once."""

    def __init__(
        self,
        plan: RunPlan,
        target: Target,
        clients: RunClients,
        make_probe: Callable[[list[str], ProcessRecorder], Probe],
        auditor: Auditor,
        display: Display,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._plan = plan
        self._target = target
        self._clients = clients
        self._make_probe = make_probe
        self._auditor = auditor
        self._display = display
        self._monotonic_s = monotonic_s
        self._rng = random.Random(plan.seed)
        self._injector = Injector(target, clients, self._rng)
        self._start_time = datetime.now(UTC).isoformat(timespec="milliseconds")
        self._outcome = RunResult()
        self._warm_ns: int | None = None
        self._healed_ns: int | None = None
        self._meter = Meter()
        self._faults_now = "no fault"
        self._recorder = ProcessRecorder(plan.directory / "history", "runner", plan.run_id)

    def run(self) -> RunResult:
        """Go through all phases; take everything down; return what it came to.

        Operating errors end the run and become a problem of the outcome. An interrupt goes on to
        the caller after everything was healed and taken down.
        """
        self._write_run_file(is_over=False)
        try:
            with ExitStack() as stack:
                stack.callback(self._recorder.close)
                stack.callback(self._target.down)
                stack.callback(self._clients.close)
                self._phases(stack)
        except (RunError, TargetError, ClientPoolError, HistoryFileError, TruthError) as error:
            self._outcome.problems.append(f"{type(error).__name__}: {error}")
        finally:
            self._measure()
            self._write_run_file(is_over=True)
        return self._outcome

    def _phases(self, stack: ExitStack) -> None:
        probe = self._start(stack)
        self._warm_up()
        self._steady()
        self._fault_windows()
        self._heal_all(probe)
        self._drain(self._tombstones(probe))
        self._dismiss_subscribers()
        self._collect_truth()
        self._outcome.finished = True

    # --- phases ---------------------------------------------------------------------------------

    def _start(self, stack: ExitStack) -> Probe:
        self._display.stage("starting nodes", START_S_EXPECTED)
        self._target.up()
        leader = await_leader(self._target, READY_S_MAX)
        self._display.say(f"{len(self._target.nodes)} nodes are up, {leader} leads")
        groups = self._plan.experiment.workload.groups
        self._start_clients([group for group in groups if group.parameters.reads])
        self._start_clients([group for group in groups if not group.parameters.reads])
        self._await(lambda: not self._clients.lacking("ready"), READY_S_MAX, "clients ready")
        probe = self._make_probe(list(self._target.endpoints().values()), self._recorder)
        stack.callback(probe.close)
        return probe

    def _start_clients(self, groups: list[Group]) -> None:
        numbers: dict[str, int] = {}
        for group in groups:
            first = numbers.get(group.kind, 0) + 1
            numbers[group.kind] = first + group.count - 1
            names = [f"{group.kind}-{first + place}" for place in range(group.count)]
            self._clients.start([self._client_config(name, group) for name in names])

    def _client_config(self, process: str, group: Group) -> ClientConfig:
        workload = self._plan.experiment.workload
        endpoints = list(self._target.endpoints().values())
        self._rng.shuffle(endpoints)  # clients come in by different nodes
        return ClientConfig(
            process=process,
            run_id=self._plan.run_id,
            directory=str(self._plan.directory),
            endpoints=tuple(endpoints),
            topics=workload.topics_of(group),
            seed=self._rng.getrandbits(32),
            deadline_ms=workload.deadline_ms,
            parameters=group.parameters,
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
        self._warm_ns = self._mark("steady")
        self._wait(steady_s)

    def _fault_windows(self) -> None:
        end_s = self._monotonic_s() + self._plan.faulty_s
        for window in self._plan.windows:
            self._window(window)
        if (left_s := end_s - self._monotonic_s()) > 0:
            self._display.stage("quiet", left_s)
            self._wait(left_s)
        self._healed_ns = self._mark("heal")

    def _window(self, window: FaultWindow) -> None:
        self._display.stage(JOINT.join(window.faults), window.hold_s)
        self._mark("fault")
        self._meter.begin_window(self._monotonic_s())
        with self._injected(window.faults):
            self._wait(window.hold_s)
        self._faults_now = "no fault"
        self._display.stage("quiet", window.quiet_s)
        self._mark("steady")
        self._await_service()
        self._wait(window.quiet_s)
        self._take_ends()

    def _await_service(self) -> None:
        """Return at the first acknowledgment, or when it should long have come: see `unmet`."""
        before = self._clients.count("acknowledged")
        deadline_s = self._monotonic_s() + self._plan.experiment.expect.blackout_s_max
        while self._clients.count("acknowledged") <= before and self._monotonic_s() < deadline_s:
            self._tick(TICK_S)

    def _heal_all(self, probe: Probe) -> None:
        """The health gate: every node runs, one leads, and a publication was acknowledged."""
        seconds_max = self._plan.experiment.phases.health_s_max
        self._display.stage("healing", HEAL_S_EXPECTED)
        self._take_ends()
        self._target.start(list(self._target.nodes))
        await_leader(self._target, seconds_max)
        topic = self._plan.experiment.workload.topics[0]
        self._await(lambda: probe.put(topic) is not None, seconds_max, "an acknowledged probe")
        self._await(lambda: not self._clients.unfenced(), seconds_max, "replaced clients' ends")
        self._await(lambda: not self._clients.lacking("ready"), seconds_max, "clients ready again")

    def _tombstones(self, probe: Probe) -> dict[str, int]:
        self._display.stage("tombstones", HEAL_S_EXPECTED)
        if killed := self._clients.dismiss("publisher"):
            raise RunError(f"{', '.join(killed)} did not stop and had to be killed")
        if unflushed := self._clients.reporting("unflushed"):
            raise RunError(f"{', '.join(unflushed)} could not send what is left in the outbox")
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

    def _dismiss_subscribers(self) -> None:
        if killed := self._clients.dismiss("subscriber"):
            raise RunError(f"{', '.join(killed)} did not stop and had to be killed")
        self._mark("done")

    def _collect_truth(self) -> None:
        """Let the nodes come to rest at one applied index, end them in order, read their disks."""
        self._display.stage("reading the nodes' disks", HEAL_S_EXPECTED)
        target, directory = self._target, self._plan.directory
        self._take_ends()
        self._await(
            lambda: self._auditor.is_settled(target.endpoints()),
            self._plan.experiment.phases.health_s_max,
            "nodes at one applied index",
        )
        leader = target.leader()
        # The leader last: with nobody left to lead, nobody begins a term and adds an entry to it.
        target.stop(sorted(target.nodes, key=lambda node: (node == leader, node)))
        self._auditor.collect(self._plan.run_id, target.remains(directory / "copies"), directory)

    # --- faults ---------------------------------------------------------------------------------

    @contextmanager
    def _injected(self, names: tuple[str, ...]) -> Iterator[None]:
        """Inject faults in order, recorded as one; heal them in the reverse order in any case."""
        chosen = self._injector.choose(names)
        victims, joint = everybody(chosen), JOINT.join(names)
        injected_ns = self._recorder.mark_fault(joint, "inject", victims)
        self._outcome.injections.append(Injection(joint, victims, injected_ns))
        self._faults_now = f"{joint} ({', '.join(victims)})"
        self._display.say(f"{joint}: {', '.join(victims)}")
        with ExitStack() as healing:
            try:
                for name, hit in chosen.items():
                    healing.callback(self._injector.heal, name, hit)
                    self._injector.inject(name, hit)
                yield
                self._take_ends()
            finally:
                self._recorder.mark_fault(joint, "heal", victims)

    def _take_ends(self) -> None:
        """Take note of nodes that ended by themselves, before a healing starts them again."""
        for line in self._target.ended():
            self._display.say(line)
            self._outcome.reasons.append(line)

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
        self._meter.take(self._monotonic_s(), acknowledged, delivered)
        self._display.tick(f"{self._faults_now}; {self._meter}")

    # --- what it came to ------------------------------------------------------------------------

    def _measure(self) -> None:
        span_ns = None
        if self._warm_ns is not None and self._healed_ns is not None:
            span_ns = (self._warm_ns, self._healed_ns)
        history = self._plan.directory / "history"
        measure(self._outcome, self._plan.experiment, history, span_ns)

    def _write_run_file(self, is_over: bool) -> None:
        plan, outcome, nodes = self._plan, self._outcome, self._target.nodes
        write_run_file(plan, self._target.name, nodes, self._start_time, outcome, nodes, is_over)
