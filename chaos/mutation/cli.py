"""`make mutants`: the command line of mutation testing.

What lives here: options, exit codes, what a person sees. What must not: how mutants are run.
"""

from __future__ import annotations

import random
import signal
import sys
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final, NoReturn

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from chaos.mutation import project as projects
from chaos.mutation import report as reports
from chaos.mutation.ledger import SURVIVED, Ledger, MutantResult
from chaos.mutation.mutants import Mutant, MutationError
from chaos.mutation.project import Project
from chaos.mutation.runner import MutantRunner
from chaos.mutation.stages import StageBounds, Stopped

EXIT_SURVIVORS: Final = 1
EXIT_BROKEN: Final = 2
EXIT_INTERRUPTED: Final = 130  # as a shell says of ctrl-C
MINUTES_MAX: Final = 7 * 24 * 60
SEEDS_MAX: Final = 100_000
JOBS_MAX: Final = 64


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--sample", type=click.IntRange(1), help="Draw so many of the mutants.")
@click.option("--seed", type=click.IntRange(0), default=0, help="Decides the sample.")
@click.option(
    "--from",
    "origin",
    type=click.Choice(["hand", "operators", "all"]),
    default="hand",
    show_default=True,
    help="Mutants written by hand, made by operators, or both.",
)
@click.option("--only", multiple=True, metavar="PATTERN", help="Of these names or files alone.")
@click.option(
    "--seeds",
    type=click.IntRange(0, SEEDS_MAX),
    default=100,
    show_default=True,
    help="Simulate so many seeds of a mutant at most, from 1 on; 0: none.",
)
@click.option(
    "--seconds",
    type=click.FloatRange(1),
    default=900,
    show_default=True,
    help="Begin no seed of a mutant after so many seconds.",
)
@click.option("--tests/--no-tests", default=True, help="Whether the nearest tests run as well.")
@click.option(
    "--minutes",
    type=click.FloatRange(0, MINUTES_MAX),
    default=MINUTES_MAX,
    help="Begin no mutant after so many minutes.",
)
@click.option("--jobs", type=click.IntRange(1, JOBS_MAX), default=2, show_default=True)
@click.option("--again", is_flag=True, help="Run those again that the simulation has not noticed.")
@click.option("--baseline/--no-baseline", default=True, help="Whether the tree is run as it is.")
@click.option(
    "--state",
    type=click.Path(path_type=Path, dir_okay=False),
    default=Path("runs/mutants.jsonl"),
    show_default=True,
    help="What is known already; a run goes on with it.",
)
@click.option(
    "--report",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write the results there: JSON if it ends in .json, else Markdown.",
)
@click.option("--list", "lists", is_flag=True, help="List the mutants and what is known, run none.")
@click.option(
    "--root",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    default=Path("."),
    help="The project's tree.",
)
def main(
    sample: int | None,
    seed: int,
    origin: str,
    only: tuple[str, ...],
    seeds: int,
    seconds: float,
    tests: bool,
    minutes: float,
    jobs: int,
    again: bool,
    baseline: bool,
    state: Path,
    report: Path | None,
    lists: bool,
    root: Path,
) -> None:
    """Break the product in small ways, one at a time, and see who notices.

    Each mutant is put into a copy of the tree; there the simulation runs until it finds something,
    then the tests that are nearest to the changed file. A run that was cut off goes on where it
    was; what has changed since is run again.

    Exit code 0: every mutant was noticed, or is equivalent; 1: some survived; 2: nothing can be
    said (the tree as it is fails, a file is wrong, a usage error); 130: interrupted.
    """
    console = Console()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # what runs in copies must end
    try:
        project = projects.load(root.resolve())
        by_hand = project.by_hand() if origin != "operators" else []
        equivalents = project.equivalents(by_hand) if by_hand else {}
        mutants = _chosen(project, by_hand, origin, only, sample, seed)
        if not seeds and not tests:
            raise MutationError("neither seeds nor tests: nobody could notice anything")
        runner = MutantRunner(
            project, Ledger(state), StageBounds(seeds, seconds, tests), equivalents, again=again
        )
        results = {each.name: known for each in mutants if (known := runner.known(each))}
        if not lists:
            _run(console, runner, mutants, results, jobs, minutes, baseline)
    except MutationError as error:
        _exit(EXIT_BROKEN, str(error))
    except (KeyboardInterrupt, Stopped):
        _exit(EXIT_INTERRUPTED, f"interrupted; the same command goes on with {state}")
    if lists:
        _list(console, mutants, results)
        return
    if report is not None:
        text = reports.as_json if report.suffix == ".json" else reports.as_markdown
        report.parent.mkdir(parents=True, exist_ok=True)
        report.write_text(text(mutants, results), encoding="utf-8")
    survivors = {name for name, result in results.items() if result.verdict == SURVIVED}
    for mutant in (each for each in mutants if each.name in survivors):
        console.print(f"nobody noticed [bold]{mutant.name}[/] in {mutant.file}", soft_wrap=True)
    console.print(reports.sentence(mutants, results), soft_wrap=True, highlight=False)
    if survivors:
        sys.exit(EXIT_SURVIVORS)


def _chosen(
    project: Project,
    by_hand: list[Mutant],
    origin: str,
    only: tuple[str, ...],
    sample: int | None,
    seed: int,
) -> list[Mutant]:
    mutants = by_hand + (project.generated() if origin != "hand" else [])
    if only:
        mutants = [
            mutant
            for mutant in mutants
            if any(fnmatchcase(mutant.name, each) or mutant.file == each for each in only)
        ]
    if sample is not None and sample < len(mutants):
        mutants = random.Random(seed).sample(mutants, sample)  # in the order drawn: time may end it
    if not mutants:
        raise MutationError("no mutant is called so" if only else "there are no mutants")
    return mutants


def _run(
    console: Console,
    runner: MutantRunner,
    mutants: list[Mutant],
    results: dict[str, MutantResult],
    jobs: int,
    minutes: float,
    baseline: bool,
) -> None:
    due = [mutant for mutant in mutants if mutant.name not in results]
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("the tree as it is", total=len(due))
        if due and baseline:
            runner.check_baseline(due)
        progress.update(task, description="mutants")

        def told(mutant: Mutant, result: MutantResult) -> None:
            results[mutant.name] = result
            line = f"{mutant.name}: {reports.end_of(result)} ({result.seconds:.0f} s)"
            progress.console.print(line, soft_wrap=True, highlight=False, markup=False)
            progress.advance(task)

        runner.run(due, jobs, minutes, told)


def _list(console: Console, mutants: list[Mutant], results: dict[str, MutantResult]) -> None:
    for mutant in mutants:
        known = results.get(mutant.name)
        end = "not run" if known is None else reports.end_of(known)
        line = f"{mutant.name}  {mutant.file}  {end}"
        console.print(line, soft_wrap=True, highlight=False, markup=False)
    console.print(reports.sentence(mutants, results), soft_wrap=True, highlight=False)


def _exit(code: int, message: str) -> NoReturn:
    click.echo(f"mutants: {message}", err=True)
    sys.exit(code)
