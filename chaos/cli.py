"""The command line: `flotilla-chaos run|suite|list|show|heal|demo`, the same as `python -m chaos`.

What lives here: options, exit codes, and what is printed. What must not: how a run is put together
(launch.py), what it does (runner.py), what a suite (suite.py) or the demonstration (demo.py) is.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, Final

import click
from rich.console import Console

from analytics.command.choice import AUTO, CHOICES
from chaos.run import launch
from chaos.run.demo import run_demo
from chaos.run.run_result import RunResult
from chaos.run.suite import Options, Suite
from chaos.spec import experiment as experiments
from chaos.spec.bounds import SECONDS_MAX
from chaos.spec.experiment import schedule
from chaos.spec.reading import ExperimentError
from chaos.targets import TargetError
from chaos.targets.leftovers import sweep
from chaos.terminal.console import stdout_console
from chaos.terminal.options import Named, a_number
from chaos.terminal.progress import display
from cluster.extras import require
from cluster.settings.config import MEMBER_COUNTS
from flotilla_client.version import VERSION

EXIT_UNMET: Final = 1
EXIT_UNFINISHED: Final = 2
EXIT_INTERRUPTED: Final = 130  # as a shell has it for SIGINT


def main() -> None:
    """Run the command line; a crash of ours exits with EXIT_UNFINISHED, never as a verdict."""
    try:
        commands()
    except OSError as error:  # the run's directory was removed, say, or its disk is full
        Console(stderr=True, soft_wrap=True).print(f"cannot go on: {error}", markup=False)
        raise SystemExit(EXIT_UNFINISHED) from error
    except Exception as error:  # Python would exit with 1, which here is a verdict
        Console(stderr=True).print_exception()
        raise SystemExit(EXIT_UNFINISHED) from error


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(VERSION)
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


SEED: Final = click.IntRange(0, 2**63 - 1)
seed_option = click.option("--seed", type=SEED, help="Decides all that is random. Default: drawn.")
out_option = click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    help="The directory, new or empty. Default: runs/NAME-TIME (a suite's NAME is suite).",
)
target_option = click.option(
    "--target",
    "target",
    type=Named("target", launch.TARGET_NAMES),
    default="local",
    show_default=True,
)
nodes_option = click.option(
    "--nodes",
    type=click.Choice([str(count) for count in MEMBER_COUNTS]),
    callback=lambda _context, _option, count: int(count),
    default="3",
    show_default=True,
)
duration_option = click.option(
    "--duration",
    "duration_s",
    type=click.FloatRange(0, SECONDS_MAX),
    callback=a_number,
    default=0.0,
    help="Seconds that fault windows are repeated for. Default: each fault once.",
)


def refused(make: Callable[[], Any]) -> Any:
    """Return what `make` returns; what cannot be made is a usage error."""
    try:
        return make()
    except (ExperimentError, TargetError) as error:
        raise click.UsageError(str(error)) from None


@commands.command()
@click.argument("name", metavar="EXPERIMENT")
@target_option
@nodes_option
@duration_option
@seed_option
@out_option
def run(
    name: str, target: str, nodes: int, duration_s: float, seed: int | None, out: Path | None
) -> None:
    """Run EXPERIMENT. Exit code 0: done and as expected; 1: not as expected; 2: not finished."""
    plan = refused(lambda: launch.make_plan(name, duration_s, seed, out))
    carry_out = refused(lambda: launch.prepare(plan, target, nodes))
    console = Console(stderr=True)
    console.print(f"{name}: seed {plan.seed}, {plan.directory}", highlight=False, soft_wrap=True)
    with display(console, plan.expected_s) as shown:
        outcome = carry_out(shown)
    report(console, outcome)
    console.print(
        f"what it proves: flotilla-check {plan.directory}", highlight=False, soft_wrap=True
    )
    raise SystemExit(exit_code(outcome))


@commands.command()
@click.argument("names", metavar="[EXPERIMENT]...", nargs=-1)
@target_option
@nodes_option
@duration_option
@click.option(
    "--minutes",
    type=click.FloatRange(0, SECONDS_MAX / 60, min_open=True),
    callback=a_number,
    help="Begin, in an order of the seed, none that would exceed so many minutes. Default: all.",
)
@click.option(
    "--judge",
    type=Named("judge", CHOICES),
    default=AUTO,
    show_default=True,
    help="twins: the same checks in plain Python, for small histories. auto: twins for small ones,"
    " else spark.",
)
@seed_option
@out_option
def suite(
    names: tuple[str, ...],
    target: str,
    nodes: int,
    duration_s: float,
    minutes: float | None,
    judge: str,
    seed: int | None,
    out: Path | None,
) -> None:
    """Run EXPERIMENTs (default: all that the target can do), judge each.

    Exit code 0: all are valid and as expected; 1: one is invalid, or not as expected; 2: else.
    """
    options = Options(
        names=names,
        target=target,
        nodes=nodes,
        duration_s=duration_s,
        seconds_max=None if minutes is None else 60 * minutes,
        seed=launch.drawn(seed),
        directory=(out or launch.RUNS / f"suite-{launch.stamp()}").resolve(),
        judge=judge,
    )
    prepared = refused(lambda: Suite(options, stdout_console(soft_wrap=True)))
    raise SystemExit(prepared.run())


@commands.command(name="list")
def list_() -> None:
    """List the experiments, and the targets that can do them."""
    for name in experiments.names():
        loaded = launch.load(name)
        able = ", ".join(launch.able(loaded)) or "no target here"
        click.echo(f"{name}\n    {loaded.about}\n    on: {able}")


@commands.command()
@click.argument("name", metavar="EXPERIMENT")
@duration_option
@click.option("--seed", type=SEED, help="Show the schedule that this seed makes of it, too.")
def show(name: str, duration_s: float, seed: int | None) -> None:
    """Print the file of EXPERIMENT, and with a seed the schedule of its faults."""
    loaded = refused(lambda: launch.load(name))
    click.echo(experiments.file_of(name).read_text(encoding="utf-8"), nl=False)
    if seed is None:
        return
    at_s = loaded.phases.steady_s
    click.echo(f"\n# seed {seed}: seconds after the warm-up")
    for window in schedule(loaded, duration_s, seed):
        faults = " + ".join(window.faults)
        click.echo(f"# {at_s:8.2f}  inject {faults}\n# {at_s + window.hold_s:8.2f}  heal")
        at_s += window.hold_s + window.quiet_s


@commands.command()
def heal() -> None:
    """Clear away what runs that were killed have left on this machine."""
    for line in refused(sweep):
        click.echo(line)


@commands.command()
@seed_option
@out_option
def demo(seed: int | None, out: Path | None) -> None:
    """Kill a leader twice and all nodes once under load; let Spark judge. Exit code = verdict."""
    require("flotilla-chaos demo", "pyspark", "analytics")  # not after half a minute of work
    plan = refused(lambda: launch.make_plan("demo", 0.0, seed, out))
    carry_out = refused(lambda: launch.prepare(plan, "local", 3))
    raise SystemExit(run_demo(plan, carry_out, stdout_console()))


def report(console: Console, outcome: RunResult) -> None:
    """Print what a run came to, for a person."""
    console.print(
        f"{outcome.acknowledged:,} acknowledged ({outcome.acknowledged_per_s:,.0f}/s), "
        f"{outcome.delivered:,} delivered, {outcome.unknown:,} unknown, {outcome.failed:,} failed",
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


def exit_code(outcome: RunResult) -> int:
    """Return 0 for a run as expected, 1 for one that was not, 2 for one that did not finish."""
    if not outcome.finished:
        return EXIT_UNFINISHED
    return EXIT_UNMET if outcome.problems else 0
