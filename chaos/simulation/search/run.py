"""One run of a plan, from its world to its result.

What lives here: putting world, clients and checks together, and letting time pass. What must not:
any of these, drawing plans (swarm.py), many runs (campaign.py).
"""

from __future__ import annotations

import gc
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Final

from chaos.simulation.bugs import BUGS, Bug
from chaos.simulation.checks.features import Features
from chaos.simulation.checks.watch import Attached, attach
from chaos.simulation.plan.plan import Plan
from chaos.simulation.plan.result import BROKEN, Failure, Result
from chaos.simulation.search.baseline import CONTROL
from chaos.simulation.search.lines import Tracer
from chaos.simulation.search.trace import Counts, Printer
from chaos.simulation.world.world import World

STEP_S: Final = 0.5  # virtual; between looks at whether it is over
FRAMES_MAX: Final = 4  # of a traceback in a failure's text

PLANTABLE: Final[Mapping[str, Bug]] = {**BUGS, CONTROL.name: CONTROL}

Write = Callable[[str], None]


def run(
    plan: Plan,
    bug: str | None = None,
    write: Write | None = None,
    is_full: bool = False,
    tracer: Tracer | None = None,
) -> Result:
    """Run the plan and return what it came to; at the first failure it is over.

    `bug`: one of PLANTABLE to have in the code. `write`: called with each line of the trace, all of
    them if `is_full`. `tracer`: has the product's lines noted. An exception of the simulator's own
    becomes a failure BROKEN.
    """
    began_s = time.monotonic()
    with _planted(bug), _without_pauses(), World(plan) as world:
        counts, features = Counts(), Features(world)
        world.observers.append(counts)
        if write is not None:
            world.observers.append(Printer(write, lambda: world.now, is_full))
        with nullcontext() if tracer is None else tracer.on():
            failures, coverage = _judged(world)
        return Result(
            plan,
            tuple(failures),
            world.digest(),
            dict(sorted(counts.counts.items())),
            coverage,
            world.now,
            time.monotonic() - began_s,
            frozenset(features.seen),
            {} if tracer is None else tracer.lines,
        )


def let_pass(world: World, watch: Attached) -> None:
    """Let time pass until everybody has come to the end, or something has failed."""
    while not (watch.is_over or watch.failures):
        world.run_until(world.now + STEP_S)


def _judged(world: World) -> tuple[list[Failure], dict[str, int]]:
    watch = None
    try:
        watch = attach(world)
        let_pass(world, watch)
        return watch.finish(), watch.coverage
    except Exception as error:  # noqa: BLE001  (a run's boundary: neither pass nor finding)
        broken = Failure(BROKEN, _text(error), world.now)
        if watch is None:
            return [broken], {}
        watch.crowd.close()  # or their tasks would end later, in no run
        return [*watch.failures, broken], watch.coverage


def _text(error: Exception) -> str:
    frames = traceback.extract_tb(error.__traceback__)[-FRAMES_MAX:]
    places = " < ".join(f"{Path(each.filename).name}:{each.lineno}" for each in reversed(frames))
    return f"{type(error).__name__}: {error} at {places}"


@contextmanager
def _planted(bug: str | None) -> Iterator[None]:
    with nullcontext() if bug is None else PLANTABLE[bug].planted():
        yield


@contextmanager
def _without_pauses() -> Iterator[None]:
    """Collect garbage between runs, not in them: a tenth of the time otherwise.

    The run before is garbage only now: its own end came too early for that. Nothing is frozen: what
    happens to live at a run's end would be kept for good, 250 MB in a minute of a campaign.
    """
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
