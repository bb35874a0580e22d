"""`flotilla-check compare`: two judges, or two versions, over the same runs. Shows what differs.

What lives here: the command, and how a run comes to a judgement. What must not: what a difference
is (differences.py).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from analytics.command.choice import AUTO, CHOICES, SPARK, TWINS, chosen
from analytics.command.differences import (
    REPORT,
    Difference,
    JudgedRun,
    NoJudgement,
    differences,
    reported,
    runs_below,
    summary,
)

SHOWN_MAX: Final = 200  # lines of the table; --json has all of them
EXIT_SAME, EXIT_DIFFERENT, EXIT_UNKNOWN = 0, 1, 2

Judge = Callable[[Path], JudgedRun]


@click.command(name="compare", context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("paths", metavar="A [B | DIRECTORY...]", nargs=-1, required=True)
@click.option(
    "--judges",
    metavar="ONE,OTHER",
    help=f"Judge every run twice: two of {', '.join(CHOICES)}. The paths are runs, or directories"
    " of runs, and no report of theirs is read or written.",
)
@click.option(
    "--judge",
    type=click.Choice(CHOICES),
    default=AUTO,
    show_default=True,
    help="Who judges a run of A or B that has no report.json.",
)
@click.option(
    "--json",
    "json_path",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    help="Write all differences to this file.",
)
def compare(paths: tuple[str, ...], judges: str | None, judge: str, json_path: Path | None) -> None:
    """Show in which runs two judges, or two versions, come to something else.

    A and B are runs with the same history, or directories of such runs, judged by two versions:
    their report.json are compared, run by run, by name. Or they are two files report.json. A run
    without a report is judged now. With --judges each run is judged by both instead.

    Compared are the verdict, what each check came to, and its rows by what identifies them
    (docs/checks.md). Of a check with more rows than stand in a report.json (3) only the number is
    compared, unless it is judged now.

    Exit code: 0 the same, 1 different, 2 something could not be compared.
    """
    with ExitStack() as stack:
        try:
            pairs = _two_judges(paths, judges, stack) if judges else _two_sides(paths, judge, stack)
            found, runs, failures = _compared(pairs)
        except NoJudgement as error:
            raise CannotCompare(str(error)) from error
    names = tuple(judges.split(",")) if judges else paths
    show(Console(), found, runs, failures, (names[0], names[1]))
    if json_path is not None:
        document = {"runs": runs, "differences": [asdict(one) for one in found]}
        json_path.write_text(json.dumps(document | {"failures": failures}, indent=2) + "\n")
    raise SystemExit(EXIT_UNKNOWN if failures else EXIT_DIFFERENT if found else EXIT_SAME)


Pair = tuple[str, Callable[[], tuple[JudgedRun, JudgedRun]]]


def _two_judges(paths: tuple[str, ...], judges: str, stack: ExitStack) -> Iterator[Pair]:
    """Yield every run with both judgements of it."""
    names = judges.split(",")
    if len(names) != 2 or not set(names) <= set(CHOICES):
        raise click.BadParameter(f"{judges!r}: two of {', '.join(CHOICES)}", param_hint="--judges")
    first, second = (_judge(name, stack) for name in names)
    for path in paths:
        for name, run in runs_below(_directory(path)).items():
            shown = path if len(name) == 1 and name == "-" else f"{path}/{name}"
            yield shown, lambda run=run: (first(run), second(run))  # type: ignore[misc]


def _two_sides(paths: tuple[str, ...], judge: str, stack: ExitStack) -> Iterator[Pair]:
    """Yield every run that A or B has, with the judgement of each."""
    if len(paths) != 2:
        raise click.UsageError("A and B are due, or --judges ONE,OTHER and directories of runs")
    sides = [_side(Path(path)) for path in paths]
    late = _judge(judge, stack)

    def side(number: int, name: str) -> JudgedRun:
        run = sides[number].get(name)
        if run is None:
            raise NoJudgement(f"{name} is not in {paths[number]}")
        if run.is_file():
            return reported(run)
        return reported(run / REPORT) if (run / REPORT).exists() else late(run)

    for name in sorted({*sides[0], *sides[1]}):
        shown = paths[0] if name == "-" else name
        yield shown, lambda name=name: (side(0, name), side(1, name))  # type: ignore[misc]


def _side(path: Path) -> Mapping[str, Path]:
    return {"-": path} if path.is_file() else runs_below(_directory(str(path)))


def _directory(path: str) -> Path:
    if not Path(path).is_dir():
        raise NoJudgement(f"{path!r} is no directory")
    return Path(path)


def _compared(pairs: Iterator[Pair]) -> tuple[list[Difference], int, list[str]]:
    found: list[Difference] = []
    failures: list[str] = []
    runs = 0
    for name, judgements in pairs:
        runs += 1
        try:
            found += differences(name, *judgements())
        except NoJudgement as error:
            failures.append(f"{name}: {error}")
    return found, runs, failures


def _judge(name: str, stack: ExitStack) -> Judge:
    """Return a judge that writes no report. Spark's session is opened at the first run."""
    from analytics.command.judging import by_spark, by_twins

    opened: dict[str, Any] = {}

    def judge(directory: Path) -> JudgedRun:
        if chosen(str(directory), name).judge == TWINS:
            return by_twins(directory)
        if SPARK not in opened:
            from analytics.common import session

            opened[SPARK] = stack.enter_context(session.opened(is_for_short=True))
        return by_spark(directory)

    return judge


def show(
    console: Console,
    found: list[Difference],
    runs: int,
    failures: list[str],
    names: tuple[str, str],
) -> None:
    """Print the table, and what it comes to."""
    if found:
        table = Table("run", "what", *map(escape, names))
        for one in found[:SHOWN_MAX]:
            table.add_row(*map(escape, (one.run, one.what, one.first, one.second)))
        console.print(table)
        if len(found) > SHOWN_MAX:
            console.print(f"… and {len(found) - SHOWN_MAX} more (--json FILE has all)")
    for failure in failures:
        console.print(f"[yellow]not compared[/]: {escape(failure)}", soft_wrap=True)
    differing = len({one.run for one in found})
    counts = "".join(f", {what} {count}" for what, count in summary(found).items())
    console.print(f"{runs} runs, {differing} differ{counts}", soft_wrap=True)


class CannotCompare(click.ClickException):
    """Nothing could be compared. Click would exit with 1, which here means "different"."""

    exit_code = EXIT_UNKNOWN
