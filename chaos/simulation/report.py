"""What a person reads of runs and campaigns: progress, tables, how to see a failure again.

What lives here: texts. What must not: running anything, exit codes.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from chaos.simulation.bugs import Bug
from chaos.simulation.plan.plan import Plan
from chaos.simulation.plan.result import Quarry, Result
from chaos.simulation.search.campaign import Recipe, Statistics
from chaos.simulation.search.lines import OUTSIDE, Module, ranges, total
from chaos.simulation.search.shrink import Shrunk

LINE_EVERY_S: Final = 15.0  # where there is no terminal
FAILURES_SHOWN_MAX: Final = 5  # of one run; the first ones are the nearest to the cause
HOUR_S: Final = 3600.0


class Shown(Protocol):
    """Where a campaign shows how far it is."""

    def took(self, statistics: Statistics) -> None:
        """Show what it has come to, one run later."""


class _SeedBar:
    def __init__(self, progress: Progress, total: int) -> None:
        self._progress = progress
        self._task = progress.add_task("seeds", total=total, status="")
        self._began_s = time.monotonic()

    def took(self, statistics: Statistics) -> None:
        elapsed_s = time.monotonic() - self._began_s
        self._progress.update(
            self._task, completed=statistics.runs, status=rates(statistics, elapsed_s)
        )


class _SeedLines:
    def __init__(self, console: Console, total: int) -> None:
        self._console, self._total = console, total
        self._began_s = self._said_s = time.monotonic()

    def took(self, statistics: Statistics) -> None:
        now_s = time.monotonic()
        if now_s - self._said_s >= LINE_EVERY_S:
            self._said_s = now_s
            status = rates(statistics, now_s - self._began_s)
            say(self._console, f"{statistics.runs:,} of {self._total:,} seeds, {status}")


@contextmanager
def progress(console: Console, total: int) -> Iterator[Shown]:
    """Show a campaign of `total` seeds: a bar on a terminal, lines now and then elsewhere."""
    if not console.is_terminal:
        yield _SeedLines(console, total)
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[status]}"),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        yield _SeedBar(bar, total)


def say(console: Console, text: str, style: str = "") -> None:
    """Print a line as it is."""
    console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)


def rates(statistics: Statistics, elapsed_s: float) -> str:
    """Return how fast it goes and how many failed, in a few words."""
    seeds_per_s = statistics.runs / elapsed_s
    hours = statistics.simulated_s / elapsed_s
    return (
        f"{seeds_per_s:.2f} seeds/s, {hours:,.0f} h in an hour, {len(statistics.failures)} failed"
    )


def show_statistics(console: Console, statistics: Statistics, elapsed_s: float) -> None:
    """Print what a campaign has done: rates, faults, operations, the states that it reached."""
    hours = statistics.simulated_s / HOUR_S
    say(
        console,
        f"{statistics.runs:,} seeds, {hours:,.1f} simulated hours in {elapsed_s:,.0f} s: "
        f"{rates(statistics, elapsed_s)}",
    )
    if statistics.runs:
        show_counts(console, "events", statistics.events)
        console.print(_reached(statistics))
        rare = sum(count == 1 for count in statistics.features.values())
        say(console, f"{len(statistics.features):,} features, {rare:,} of them in one run alone")


def show_counts(console: Console, title: str, counts: Mapping[str, int]) -> None:
    """Print counts, the largest first, in one paragraph; those of 0 are left out."""
    ordered = [f"{name} {count:,}" for name, count in Counter(counts).most_common() if count]
    say(console, f"{title}: " + (", ".join(ordered) or "nothing"))


def _reached(statistics: Statistics) -> Table:
    table = Table("state", "seeds", "share", box=None, header_style="bold")
    for state, count in sorted(statistics.reached.items()):
        table.add_row(state, f"{count:,}", f"{count / statistics.runs:.0%}")
    return table


def show_lines(console: Console, found: Sequence[Module]) -> None:
    """Print how much of each module ran, and which lines never did."""
    table = Table(box=None, header_style="bold")
    table.add_column("module", no_wrap=True)
    table.add_column("lines", justify="right")
    table.add_column("ran", justify="right")
    table.add_column("never ran", overflow="fold")
    for module in found:
        table.add_row(
            module.file, f"{module.lines:,}", f"{module.share:.0%}", ranges(module.missing)
        )
    every, inside = total(found), total(found, OUTSIDE)
    table.add_row("all", f"{every.lines:,}", f"{every.share:.1%}", "")
    what = f"without {len(OUTSIDE)} modules that are outside of any simulated world"
    table.add_row("inside", f"{inside.lines:,}", f"{inside.share:.1%}", what)
    console.print(table)


def show_run(console: Console, result: Result) -> None:
    """Print what one run came to."""
    say(
        console,
        f"seed {result.seed}: {result.verdict}, {result.plan.mode}, {result.plan.nodes} nodes, "
        f"{result.plan.clients} clients, {len(result.plan.schedule)} actions, "
        f"{result.simulated_s:,.0f} simulated s in {result.real_s:.1f} s, hash {result.hash}",
        "red" if result.failures else "",
    )


def show_failures(console: Console, result: Result, again: str) -> None:
    """Print what failed, and `again`, the command that shows it again."""
    for failure in result.failures[:FAILURES_SHOWN_MAX]:
        say(console, f"  {failure.check} at {failure.at_s:.3f} s: {failure.text}", "red")
    if (rest := len(result.failures) - FAILURES_SHOWN_MAX) > 0:
        say(console, f"  and {rest} more")
    say(console, f"  again: {again}")


def again_by_seed(plan: Plan, recipe: Recipe) -> str:
    """Return the command that runs a seed's plan again."""
    nodes = "" if recipe.nodes is None else f" --nodes {recipe.nodes}"
    return f"flotilla-simulate --seed {plan.seed} --mode {plan.mode}{nodes}{_planted(recipe)} -v"


def again_by_file(file: Path, recipe: Recipe) -> str:
    """Return the command that runs the plan in a file again."""
    return f"flotilla-simulate --plan {file}{_planted(recipe)} -v"


def _planted(recipe: Recipe) -> str:
    return "" if recipe.bug is None else f" --bug {recipe.bug}"


def show_quarry(console: Console, bug: Bug, quarry: Quarry) -> None:
    """Print whether a planted bug was found, by what and how soon."""
    if quarry.checks:
        where = f"seed {quarry.seed}, {quarry.runs} runs, {quarry.elapsed_s:.0f} s"
        say(console, f"{bug.name}: {', '.join(quarry.checks)} ({where})", "green")
        return
    seen = f"; seen by {', '.join(sorted(quarry.others))} alone" if quarry.others else ""
    bound = f"{quarry.runs} of {bug.seeds_max} seeds"
    say(console, f"{bug.name}: not found in {bound}{seen}", "red")


def show_shrunk(console: Console, shrunk: Shrunk, file: Path, recipe: Recipe) -> None:
    """Print the shrunk plan, and where it was written to."""
    plan = shrunk.plan
    kind = "minimal" if shrunk.is_minimal else "smallest found"
    say(
        console,
        f"  {kind} after {shrunk.runs} runs: {plan.duration_s:g} s, {plan.clients} clients, "
        f"{len(plan.schedule)} actions",
    )
    for action in plan.schedule:
        given = " ".join(f"{name}={value}" for name, value in action.args.items())
        say(console, f"    {action.at_s:9.3f} {action.name} {given}".rstrip())
    say(console, f"  plan: {plan.to_json()}")
    say(console, f"  again: {again_by_file(file, recipe)}")
