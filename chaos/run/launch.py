"""From names to a run: which target, which directory, which seed, and who carries it out.

What lives here: the table of targets and the putting together of a run's parts. What must not: what
a run does (runner.py, simulated.py), options of a command line (cli.py).
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from chaos.faults import FAULTS, support
from chaos.run import simulated
from chaos.run.client_faults import CLIENT_FAULTS
from chaos.run.client_pool import ClientPool
from chaos.run.plan import RunPlan
from chaos.run.probe import open_probe
from chaos.run.run_result import RunResult
from chaos.run.runner import Runner
from chaos.run.simulated import SimulatedRun
from chaos.run.truth import Disks
from chaos.spec import experiment as experiments
from chaos.spec.experiment import Experiment
from chaos.spec.reading import ExperimentError
from chaos.targets import Target
from chaos.targets.compose import ComposeTarget
from chaos.targets.local import LocalTarget
from chaos.targets.namespaces import NamespacesTarget
from chaos.terminal.progress import Display

SEED_BITS: Final = 32
RUNS: Final = Path("runs")

TARGETS: Final[Mapping[str, Callable[[Path, int], Target]]] = {
    "local": lambda directory, nodes: LocalTarget(directory / "cluster", nodes),
    "namespaces": lambda directory, nodes: NamespacesTarget(directory / "cluster", nodes),
    "compose": lambda directory, nodes: ComposeTarget(nodes),
}
TARGET_NAMES: Final = (*TARGETS, simulated.NAME)


def load(name: str) -> Experiment:
    """Return the experiment `name`. Raises ExperimentError."""
    return experiments.load(name, {*FAULTS, *CLIENT_FAULTS})


def stamp() -> str:
    """Return the time, as directories of runs are named."""
    return datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")


def drawn(seed: int | None) -> int:
    """Return the seed, or one that nobody has chosen."""
    return secrets.randbits(SEED_BITS) if seed is None else seed


def make_plan(name: str, duration_s: float, seed: int | None, out: Path | None) -> RunPlan:
    """Return the plan of a run; its directory is made when the run begins.

    Raises ExperimentError; for a directory that is in use too.
    """
    experiment = load(name)
    directory = (out or RUNS / f"{experiment.name}-{stamp()}").resolve()
    if directory.exists() and any(directory.iterdir()):
        raise ExperimentError(f"{directory} is not empty; a run needs a directory of its own")
    return RunPlan(
        experiment=experiment, seed=drawn(seed), duration_s=duration_s, directory=directory
    )


def prepare(plan: RunPlan, target: str, nodes: int) -> Callable[[Display], RunResult]:
    """Return what carries out `plan` on the target of that name.

    Raises TargetError for what the target cannot be or cannot do, before anything is started.
    """
    if target == simulated.NAME:
        simulated.simulator_plan(plan, nodes)
        return lambda shown: SimulatedRun(plan, nodes, shown).run()
    cluster = TARGETS[target](plan.directory, nodes)
    support.prepare(cluster, node_faults(plan.experiment))
    return lambda shown: carry_out(plan, cluster, shown)


def node_faults(experiment: Experiment) -> list[str]:
    """Return its faults of nodes; those of clients can be done wherever there are clients."""
    return [name for name in experiment.fault_names if name not in CLIENT_FAULTS]


def able(experiment: Experiment) -> list[str]:
    """Return the names of the targets that can do all of its faults."""
    faults = node_faults(experiment)
    return [name for name in TARGET_NAMES if not support.missing(faults, name)]


def carry_out(plan: RunPlan, target: Target, shown: Display) -> RunResult:
    """Run `plan` on `target` with real client processes."""
    return Runner(plan, target, ClientPool(), open_probe(plan), Disks(), shown).run()
