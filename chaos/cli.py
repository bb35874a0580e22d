"""The command line: `flotilla-chaos run|list|show|demo`, the same as `python -m chaos`.

What lives here: options, exit codes, and putting the parts of a run together. What must not: what a
run does (runner.py) or what the demonstration tells (demo.py).
"""

from __future__ import annotations

import secrets
import signal
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import Final

import click
from rich.console import Console
from rich.table import Table

from chaos import experiment as experiments
from chaos.crew import Crew
from chaos.demo import run_demo
from chaos.experiment import ExperimentError
from chaos.faults import FAULTS
from chaos.probe import open_probe
from chaos.progress import Display, display
from chaos.runner import Outcome, Runner, RunPlan
from chaos.targets import Target, TargetError, simulated
from chaos.targets.compose import ComposeTarget
from chaos.targets.local import LocalTarget
from chaos.targets.simulated import SimulatedRun
from cluster.config import MEMBER_COUNTS

EXIT_UNMET: Final = 1
EXIT_UNFINISHED: Final = 2
EXIT_INTERRUPTED: Final = 130  # as a shell has it for SIGINT
SEED_BITS: Final = 32

TARGETS: Final[Mapping[str, Callable[[Path, int], Target]]] = {
    "local": lambda directory, nodes: LocalTarget(directory / "cluster", nodes),
    "compose": lambda directory, nodes: ComposeTarget(nodes),
}


def main() -> None:
    """Run the command line; a crash of ours exits with EXIT_UNFINISHED, never as a verdict."""
    try:
        commands()
    except Exception as error:  # Python would exit with 1, which here is a verdict
        Console(stderr=True).print_exception()
        raise SystemExit(EXIT_UNFINISHED) from error


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="flotilla")
def commands() -> None:
    """Break a cluster while clients record what they see."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupt)


def _interrupt(number: int, frame: FrameType | None) -> None:
    # The first one ends the run in order; taking down is bounded, and a second one must not
    # leave nodes behind. Not SIG_IGN: nodes that are started to heal would inherit it.
    for other in (signal.SIGINT, signal.SIGTERM):
        signal.signal(other, _nothing)
    raise SystemExit(EXIT_INTERRUPTED)


def _nothing(number: int, frame: FrameType | None) -> None:
    """Let the signal pass."""


seed_option = click.option("--seed", type=int, help="Decides all that is random. Default: drawn.")
out_option = click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    help="The run's directory, new or empty. Default: runs/EXPERIMENT-TIME.",
)


@commands.command()
@click.argument("name", metavar="EXPERIMENT")
@click.option(
    "--target",
    "target_name",
    type=click.Choice([*TARGETS, simulated.NAME]),
    default="local",
    show_default=True,
)
@click.option(
    "--nodes",
    type=click.Choice([str(count) for count in MEMBER_COUNTS]),
    callback=lambda _context, _option, count: int(count),
    default="3",
    show_default=True,
)
@click.option(
    "--duration",
    "duration_s",
    type=click.FloatRange(0, 86_400),
    default=0.0,
    help="Seconds that fault windows are repeated for. Default: each fault once.",
)
@seed_option
@out_option
def run(
    name: str, target_name: str, nodes: int, duration_s: float, seed: int | None, out: Path | None
) -> None:
    """Run EXPERIMENT. Exit code 0: done and as expected; 1: not as expected; 2: not finished."""
    plan = make_plan(name, duration_s, seed, out)
    console = Console(stderr=True)
    console.print(f"{name}: seed {plan.seed}, {plan.directory}", highlight=False, soft_wrap=True)
    with display(console, plan.expected_s) as shown:
        if target_name == simulated.NAME:
            outcome = simulate(plan, nodes, shown)
        else:
            outcome = carry_out(plan, make_target(target_name, plan.directory, nodes), shown)
    report(console, outcome)
    raise SystemExit(exit_code(outcome))


@commands.command(name="list")
def list_() -> None:
    """List the experiments."""
    table = Table("experiment", "what it does", box=None, header_style="bold")
    for name in experiments.names():
        table.add_row(name, experiments.load(name, FAULTS).about)
    Console().print(table)


@commands.command()
@click.argument("name", metavar="EXPERIMENT")
def show(name: str) -> None:
    """Print the file of EXPERIMENT."""
    if name not in experiments.names():
        raise click.UsageError(f"no experiment {name!r}; see `list`")
    click.echo((experiments.EXPERIMENTS / f"{name}.toml").read_text(encoding="utf-8"), nl=False)


@commands.command()
@seed_option
@out_option
def demo(seed: int | None, out: Path | None) -> None:
    """Kill a leader twice and all nodes once under load; let Spark judge. Exit code = verdict."""
    plan = make_plan("demo", 0.0, seed, out)
    target = make_target("local", plan.directory, 3)
    raise SystemExit(run_demo(plan, lambda shown: carry_out(plan, target, shown), Console()))


def make_plan(name: str, duration_s: float, seed: int | None, out: Path | None) -> RunPlan:
    """Return the plan of a run; its directory is made when the run begins.

    Raises click.UsageError.
    """
    try:
        experiment = experiments.load(name, FAULTS)
    except ExperimentError as error:
        raise click.UsageError(str(error)) from None
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    directory = (out or Path("runs") / f"{name}-{stamp}").resolve()
    if directory.exists() and any(directory.iterdir()):
        raise click.UsageError(f"{directory} is not empty; a run needs a directory of its own")
    drawn = secrets.randbits(SEED_BITS) if seed is None else seed
    return RunPlan(experiment=experiment, seed=drawn, duration_s=duration_s, directory=directory)


def make_target(name: str, directory: Path, nodes: int) -> Target:
    """Return the target `name`. Raises click.UsageError for what it cannot be."""
    try:
        return TARGETS[name](directory, nodes)
    except TargetError as error:
        raise click.UsageError(str(error)) from None


def carry_out(plan: RunPlan, target: Target, shown: Display) -> Outcome:
    """Run `plan` on `target` with real client processes."""
    return Runner(plan, target, Crew(), open_probe(plan), shown).run()


def simulate(plan: RunPlan, nodes: int, shown: Display) -> Outcome:
    """Run `plan` on a simulated cluster. Raises click.UsageError for what it cannot be."""
    try:
        simulation = SimulatedRun(plan, nodes, shown)
    except TargetError as error:
        raise click.UsageError(str(error)) from None
    return simulation.run()


def report(console: Console, outcome: Outcome) -> None:
    """Print what a run came to, for a person."""
    console.print(
        f"{outcome.acknowledged:,} acknowledged, {outcome.delivered:,} delivered, "
        f"{outcome.unknown:,} unknown, {outcome.failed:,} failed",
        highlight=False,
    )
    for injection in outcome.injections:
        gap = "no end seen" if injection.gap_ms is None else f"{injection.gap_ms:,.0f} ms"
        console.print(
            f"  {injection.name} {', '.join(injection.targets)}: no service for {gap}",
            highlight=False,
        )
    for problem in outcome.problems:
        console.print(f"  {problem}", style="red", markup=False, highlight=False)


def exit_code(outcome: Outcome) -> int:
    """Return 0 for a run as expected, 1 for one that was not, 2 for one that did not finish."""
    if not outcome.finished:
        return EXIT_UNFINISHED
    return EXIT_UNMET if outcome.problems else 0
