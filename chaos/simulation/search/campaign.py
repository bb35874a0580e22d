"""Many runs, on several processes: plans go out, results come in, and are counted.

What lives here: the workers and the statistics. What must not: what a run does (run.py), what is
shown (report.py).

Each worker has one plan at a time, so as many are under way as there are workers, and a worker
that dies has taken exactly one with it, whose seed is known.
"""

from __future__ import annotations

import multiprocessing
import signal
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import cache
from itertools import islice
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import Any, Final

from chaos.simulation.plan.plan import Mode, Plan
from chaos.simulation.plan.result import LOST, Failure, Result
from chaos.simulation.search.lines import Lines, Tracer, merged
from chaos.simulation.search.log_plans import log_plan_for
from chaos.simulation.search.run import run
from chaos.simulation.search.swarm import plan_for

JOBS_MAX: Final = 64
RUN_REAL_S_MAX: Final = 300.0  # a run takes seconds; one that takes this long is stuck
END_S_MAX: Final = 10.0  # a worker that was killed is gone at once, unless the machine is very busy
FAILURES_MAX: Final = 10  # then a campaign ends: each is a person's afternoon
LIVE_EVERY: Final = 5  # one seed in five is a run for liveness
LOG_EVERY: Final = 5  # one in five, another one, is of what befalls the log

Work = Callable[[Plan], Result]


@dataclass(frozen=True, slots=True)
class Recipe:
    """How seeds become runs; picklable, so that workers can have it. None: as the seed says.

    `bug`: the name of the planted bug that is in the code, None for the code as it is. `traces`:
    whether the product's lines that run are noted.
    """

    mode: Mode | None = None
    nodes: int | None = None
    bug: str | None = None
    traces: bool = False

    def plan(self, seed: int) -> Plan:
        """Return the plan of the seed."""
        mode = self.mode or _mode_of(seed)
        if mode == "log":
            return log_plan_for(seed, self.nodes)
        return plan_for(seed, mode, self.nodes)

    def takes(self, plan: Plan) -> bool:
        """Return whether a plan of elsewhere is one that this recipe could have made."""
        return self.mode in (None, plan.mode) and self.nodes in (None, plan.nodes)

    def __call__(self, plan: Plan) -> Result:
        """Run the plan."""
        return run(plan, self.bug, tracer=_tracer() if self.traces else None)


def _mode_of(seed: int) -> Mode:
    if seed % LIVE_EVERY == 0:
        return "live"
    return "log" if seed % LOG_EVERY == LOG_EVERY // 2 + 1 else "safety"


@cache
def _tracer() -> Tracer:
    return Tracer()


@dataclass(slots=True)
class Statistics:
    """What a campaign has come to so far. `reached`: in how many runs each state was reached.

    `features`: in how many runs each was. `lines`: of the product that any run went through.
    """

    runs: int = 0
    simulated_s: float = 0.0
    busy_s: float = 0.0
    events: Counter[str] = field(default_factory=Counter)
    reached: Counter[str] = field(default_factory=Counter)
    features: Counter[str] = field(default_factory=Counter)
    lines: Lines = field(default_factory=dict)
    failures: list[Result] = field(default_factory=list)

    def add(self, result: Result) -> None:
        """Count one run."""
        self.runs += 1
        self.simulated_s += result.simulated_s
        self.busy_s += result.real_s
        self.events.update(result.events)
        self.reached.update(state for state, count in result.coverage.items() if count)
        self.features.update(result.features)
        self.lines = merged(self.lines, result.lines)
        if result.failures:
            self.failures.append(result)

    def as_dict(self, elapsed_s: float) -> dict[str, Any]:
        """Return everything as JSON types, with the rates over `elapsed_s`."""
        return {
            "runs": self.runs,
            "failed_seeds": [result.seed for result in self.failures],
            "elapsed_s": round(elapsed_s, 3),
            "simulated_s": round(self.simulated_s, 3),
            "seeds_per_s": round(self.runs / elapsed_s, 3),
            "simulated_s_per_s": round(self.simulated_s / elapsed_s, 3),
            "simulated_s_per_busy_s": round(self.simulated_s / (self.busy_s or elapsed_s), 3),
            "events": dict(sorted(self.events.items())),
            "reached": dict(sorted(self.reached.items())),
            "features": len(self.features),
        }


@dataclass(eq=False)
class _SeedWorker:
    """A process with its end of the pipe, at work on `plan` since `began_s`."""

    process: SpawnProcess
    connection: Connection
    plan: Plan
    began_s: float

    def order(self, plan: Plan) -> None:
        self.plan, self.began_s = plan, time.monotonic()
        with suppress(BrokenPipeError):  # it has just died: what comes of the pipe says so
            self.connection.send(plan)

    def elapsed_s(self) -> float:
        return time.monotonic() - self.began_s

    def end(self) -> int | None:
        """Kill the process if it still runs; return its exit code."""
        self.process.kill()
        self.process.join(END_S_MAX)
        self.connection.close()
        return self.process.exitcode


def results(
    plans: Iterable[Plan], jobs: int, work: Work, real_s_max: float = RUN_REAL_S_MAX
) -> Generator[Result, None, None]:
    """Yield the result of each plan as it comes, from `jobs` processes that call `work(plan)`.

    A worker that dies, or takes longer than `real_s_max` seconds for a plan, becomes a result with
    a failure of the check LOST, and another one takes its place. Closing the generator ends them
    all.
    """
    assert 1 <= jobs <= JOBS_MAX, f"{jobs} jobs; 1 to {JOBS_MAX}"
    waiting = iter(plans)
    with ExitStack() as stack:
        busy: list[_SeedWorker] = []
        stack.callback(lambda: [worker.end() for worker in busy])
        for plan in islice(waiting, jobs):
            busy.append(_hire(work, plan))
        while busy:
            for worker in _done(busy, real_s_max):
                result = _taken(worker, real_s_max)
                yield result
                if (next_plan := next(waiting, None)) is None:
                    busy.remove(worker)
                    worker.end()
                elif LOST in result.checks:
                    busy[busy.index(worker)] = _hire(work, next_plan)
                else:
                    worker.order(next_plan)


def _hire(work: Work, plan: Plan) -> _SeedWorker:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_work, args=(theirs, work), daemon=True)
    process.start()
    theirs.close()  # so that the pipe ends when the process does
    worker = _SeedWorker(process, ours, plan, 0.0)
    worker.order(plan)
    return worker


def _work(connection: Connection, work: Work) -> None:
    """Do plans until the pipe ends. Ctrl-C is the parent's, which ends its workers."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while True:
        try:
            plan = connection.recv()
        except EOFError:
            return
        connection.send(work(plan))


def _done(busy: list[_SeedWorker], real_s_max: float) -> list[_SeedWorker]:
    """Wait until workers have something to say, are dead or overdue; return these."""
    left_s = real_s_max - max(worker.elapsed_s() for worker in busy)
    ready = wait([worker.connection for worker in busy], max(left_s, 0.0))
    return [w for w in busy if w.connection in ready or w.elapsed_s() >= real_s_max]


def _taken(worker: _SeedWorker, real_s_max: float) -> Result:
    """Return the worker's result, or end the worker and return one that says why."""
    real_s = worker.elapsed_s()
    if not worker.connection.poll():
        worker.end()
        return _lost(worker.plan, f"the run did not end within {real_s_max:g} s", real_s)
    try:
        result: Result = worker.connection.recv()
    except EOFError:
        worker.process.join(END_S_MAX)  # it is at its end already
        return _lost(worker.plan, f"the worker died with exit code {worker.end()}", real_s)
    return result


def _lost(plan: Plan, text: str, real_s: float) -> Result:
    return Result(plan, (Failure(LOST, text),), real_s=real_s)
