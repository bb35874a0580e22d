"""The command line: `flotilla-simulate`, the same as `python -m chaos.simulation`.

What lives here: options, exit codes, which of run, campaign, comparison and hunt is asked for. What
must not: how these are done, and what a person reads of them (report.py).
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any, Final, get_args

import click
from rich.console import Console
from rich.table import Table

from chaos.simulation import report
from chaos.simulation.bugs import Bug
from chaos.simulation.plan.plan import NODES_MAX, Mode, Plan
from chaos.simulation.plan.result import LOST, Quarry, Result
from chaos.simulation.search import determinism
from chaos.simulation.search.campaign import FAILURES_MAX, JOBS_MAX, Recipe, Statistics, results
from chaos.simulation.search.guided import GuidedSearch, Search, load
from chaos.simulation.search.lines import modules, ranges
from chaos.simulation.search.run import PLANTABLE, run
from chaos.simulation.search.shrink import shrink
from chaos.terminal.console import stdout_console
from flotilla_client.version import VERSION

EXIT_FAILED: Final = 1
EXIT_BROKEN: Final = 2  # as click's usage errors: it says nothing about the product
SHRUNK_MAX: Final = 2  # failures of a campaign; each takes minutes
SHRINK_S_MAX: Final = 150.0  # of real time, for one failure: CI has to come to its end
PLANS: Final = Path("runs/simulation")


def main() -> None:
    """Run the command line; a crash of ours exits with EXIT_BROKEN, never as a verdict."""
    try:
        command()
    except Exception as error:  # Python would exit with 1, which here is a verdict
        Console(stderr=True).print_exception()
        raise SystemExit(EXIT_BROKEN) from error


def _seed_range(context: click.Context, option: click.Parameter, text: str | None) -> range | None:
    """Return what `A..B` asks for, both included. Raises click.BadParameter."""
    if text is None:
        return None
    first, dots, last = text.partition("..")
    if not (dots and first.isdecimal() and last.isdecimal() and int(first) <= int(last)):
        raise click.BadParameter(f"{text!r} is not A..B with A <= B")
    return range(int(first), int(last) + 1)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(VERSION)
@click.option("--seed", type=click.IntRange(0), help="Run this seed.")
@click.option(
    "--seeds", metavar="A..B", callback=_seed_range, help="Run a campaign over these seeds."
)
@click.option(
    "--plan",
    "plan_file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Run the plan in this file, as a shrunk failure leaves it.",
)
@click.option("--jobs", type=click.IntRange(1, JOBS_MAX), default=2, show_default=True)
@click.option("--minutes", type=click.FloatRange(0), help="Begin no run after so many minutes.")
@click.option(
    "--mode",
    type=click.Choice(get_args(Mode)),
    help="What a run is for. Default: of five seeds one is live, and one log.",
)
@click.option("--nodes", type=click.IntRange(1, NODES_MAX), help="Default: as the seed says.")
@click.option("--bug", metavar="NAME", help="Plant this bug first.")
@click.option("--without", metavar="RULE", help="The same, by the rule that it breaks.")
@click.option("--bugs", is_flag=True, help="List the bugs that can be planted.")
@click.option("--hunt", metavar="NAME", help="Look for this planted bug, or for all of them.")
@click.option("--guided", is_flag=True, help="Vary the plans whose runs had something new.")
@click.option(
    "--corpus",
    type=click.Path(dir_okay=False, path_type=Path),
    help="With --guided: run the plans in this file first, and keep there which are worth it.",
)
@click.option("--lines", is_flag=True, help="Note which of the product's lines run; slower.")
@click.option("--check-determinism", is_flag=True, help="Run each seed twice and compare.")
@click.option("--shrink/--no-shrink", "shrinks", default=True, help="Make failing plans small.")
@click.option("--json", "as_json", is_flag=True, help="A line of JSON a run, and one at the end.")
@click.option("-v", "--verbose", count=True, help="Print the trace of a run; -vv: all of it.")
def command(
    seed: int | None,
    seeds: range | None,
    plan_file: Path | None,
    jobs: int,
    minutes: float | None,
    mode: Mode | None,
    nodes: int | None,
    bug: str | None,
    without: str | None,
    bugs: bool,
    hunt: str | None,
    guided: bool,
    corpus: Path | None,
    lines: bool,
    check_determinism: bool,
    shrinks: bool,
    as_json: bool,
    verbose: int,
) -> None:
    """Run whole clusters in one process, each decided by its seed.

    Exit code 0: nothing found; 1: a check failed; 2: the simulator broke, or a usage error.
    """
    asked = [seed is not None, seeds is not None, plan_file is not None, bugs, hunt is not None]
    if sum(asked) != 1:
        raise click.UsageError("one of --seed, --seeds, --plan, --bugs and --hunt is asked for")
    if corpus is not None and not guided:
        raise click.UsageError("--corpus goes with --guided")
    if (guided or lines) and seeds is None and hunt is None:
        raise click.UsageError("--guided and --lines go with --seeds or --hunt")
    if lines and find_spec("coverage") is None:
        raise click.UsageError("--lines needs the package `coverage`: pip install '.[dev]'")
    recipe = Recipe(mode, nodes, _bug_name(bug, without), lines)
    invocation = Invocation(recipe, shrinks, as_json, guided, corpus)
    if bugs:
        code = invocation.list_bugs()
    elif hunt is not None:
        code = invocation.hunt(_hunted(hunt), jobs, minutes)
    elif check_determinism and plan_file is None:
        code = invocation.compare(seeds if seeds is not None else range(seed or 0, (seed or 0) + 1))
    elif seeds is not None:
        code = invocation.campaign(seeds, jobs, minutes)
    else:
        code = invocation.run(_plan(recipe, seed, plan_file), plan_file, verbose)
    raise SystemExit(code)


def _bug_name(bug: str | None, without: str | None) -> str | None:
    """Return the name of the bug that is asked for. Raises click.UsageError."""
    if bug is not None and without is not None:
        raise click.UsageError("--bug or --without, not both")
    if without is not None:
        breaking = [name for name, each in PLANTABLE.items() if each.rule.startswith(without)]
        if len(breaking) != 1:
            raise click.UsageError(
                f"{len(breaking)} bugs break {without!r}: {breaking}; see --bugs"
            )
        return breaking[0]
    if bug is not None and bug not in PLANTABLE:
        raise click.UsageError(f"no bug {bug!r}; see --bugs")
    return bug


def _hunted(name: str) -> list[Bug]:
    if name == "all":
        return list(PLANTABLE.values())
    return [PLANTABLE[_bug_name(name, None) or ""]]


def _plan(recipe: Recipe, seed: int | None, plan_file: Path | None) -> Plan:
    """Return the plan of a seed or a file. Raises click.UsageError."""
    if plan_file is None:
        assert seed is not None
        return recipe.plan(seed)
    try:
        return Plan.from_json(plan_file.read_text(encoding="utf-8"))
    except (ValueError, KeyError, TypeError, AssertionError) as error:
        raise click.UsageError(f"{plan_file} holds no plan: {error}") from None


class Invocation:
    """One call of the command. Results go to stdout, progress to stderr."""

    def __init__(
        self,
        recipe: Recipe,
        shrinks: bool,
        as_json: bool,
        is_guided: bool = False,
        corpus_file: Path | None = None,
    ) -> None:
        self._recipe, self._shrinks, self._as_json = recipe, shrinks, as_json
        self._is_guided, self._corpus_file = is_guided, corpus_file
        self._console = stdout_console()
        self._progress = Console(stderr=True)

    def run(self, plan: Plan, plan_file: Path | None, verbose: int) -> int:
        """Run one plan, that of a seed or of the file; return the exit code."""
        write = click.echo if verbose else None
        result = run(plan, self._recipe.bug, write, is_full=verbose > 1)
        self._tell(result, plan_file)
        if not self._as_json:
            report.show_counts(self._console, "events", result.events)
            report.show_counts(self._console, "reached", result.coverage)
        self._shrink(result)
        return exit_code([result])

    def campaign(self, seeds: range, jobs: int, minutes: float | None) -> int:
        """Run seeds until all are done, the time is over or FAILURES_MAX failed."""
        if not self._as_json:
            report.say(self._progress, f"seeds {seeds[0]}..{seeds[-1]}, {jobs} jobs")
        began_s = time.monotonic()
        end_s = None if minutes is None else began_s + 60 * minutes
        statistics, search = Statistics(), self._search_of(self._recipe)
        plans = search.plans(seeds, self._recipe.plan, end_s)
        with (
            closing(results(plans, jobs, self._recipe)) as found,
            report.progress(self._progress, len(seeds) + len(search.first)) as shown,
        ):
            for result in found:
                statistics.add(result)
                search.add(result)
                shown.took(statistics)
                if result.failures or self._as_json:
                    self._tell(result, None)
                if len(statistics.failures) == FAILURES_MAX:
                    break
        self._conclude(statistics, time.monotonic() - began_s)
        if self._corpus_file is not None and isinstance(search, GuidedSearch):
            search.corpus.save(self._corpus_file)
        for result in statistics.failures[:SHRUNK_MAX]:
            self._shrink(result)
        return exit_code(statistics.failures) if statistics.runs else EXIT_BROKEN

    def compare(self, seeds: range) -> int:
        """Run each seed in two processes and compare; return the exit code."""
        same = 0
        for pair in determinism.pairs(["--seeds", f"{seeds[0]}..{seeds[-1]}", *self._options()]):
            same += pair.is_same
            if self._as_json:
                click.echo(json.dumps({"seed": pair.seed, "hashes": pair.hashes}))
            if not pair.is_same:
                report.say(self._console, f"seed {pair.seed}: {' and '.join(pair.hashes)}", "red")
                self._show_difference(pair.seed)
        report.say(self._progress, f"{same} of {len(seeds)} seeds are the same run twice")
        return 0 if same == len(seeds) else EXIT_FAILED

    def _show_difference(self, seed: int) -> None:
        found = determinism.first_difference(["--seed", str(seed), *self._options()])
        if found is None:
            report.say(self._console, "  their traces are equal: what differs is a message")
        else:
            number, one, other = found
            report.say(self._console, f"  line {number} of the trace is\n  {one}\n  {other}")

    def _options(self) -> list[str]:
        """Return the options that a child needs for the same recipe."""
        given: Mapping[str, Any] = {
            "--mode": self._recipe.mode,
            "--nodes": self._recipe.nodes,
            "--bug": self._recipe.bug,
        }
        return [
            word
            for option, value in given.items()
            if value is not None
            for word in (option, str(value))
        ]

    def hunt(self, bugs: list[Bug], jobs: int, minutes: float | None) -> int:
        """Look for each planted bug within its bound; one that there was no time for is missed."""
        began_s = time.monotonic()
        end_s = None if minutes is None else began_s + 60 * minutes
        missed = 0
        for bug in bugs:
            quarry = self._search(bug, jobs, end_s)
            missed += not quarry.checks
            if self._as_json:
                click.echo(json.dumps(quarry.as_dict()))
            else:
                report.show_quarry(self._console, bug, quarry)
        elapsed_s = time.monotonic() - began_s
        text = f"{len(bugs) - missed} of {len(bugs)} bugs found in {elapsed_s:.0f} s"
        report.say(self._progress if self._as_json else self._console, text)
        return EXIT_FAILED if missed else 0

    def _search(self, bug: Bug, jobs: int, end_s: float | None) -> Quarry:
        """Run seeds from 1 on until a check that is meant to see the bug does."""
        recipe = replace(
            self._recipe, mode=bug.mode, nodes=self._recipe.nodes or bug.nodes, bug=bug.name
        )
        search = self._search_of(recipe)
        plans = search.plans(range(1, bug.seeds_max + 1), recipe.plan, end_s)
        began_s, others, runs = time.monotonic(), set[str](), 0
        with closing(results(islice(plans, bug.seeds_max), jobs, recipe)) as found:
            for runs, result in enumerate(found, 1):
                search.add(result)
                if checks := tuple(sorted(result.checks & bug.caught_by)):
                    elapsed_s = time.monotonic() - began_s
                    return Quarry(bug.name, result.seed, checks, runs, elapsed_s, frozenset(others))
                others |= result.checks
        elapsed_s = time.monotonic() - began_s
        return Quarry(bug.name, None, (), runs, elapsed_s, frozenset(others))

    def _search_of(self, recipe: Recipe) -> Search:
        if not self._is_guided:
            return Search()
        try:
            kept = [] if self._corpus_file is None else load(self._corpus_file)
        except FileNotFoundError:
            kept = []
        except (OSError, ValueError, KeyError, TypeError, AssertionError) as error:
            raise click.UsageError(f"{self._corpus_file} holds no plans: {error}") from None
        return GuidedSearch([plan for plan in kept if recipe.takes(plan)])

    def list_bugs(self) -> int:
        """Print the bugs that can be planted; return the exit code."""
        table = Table(box=None, header_style="bold")
        table.add_column("bug", no_wrap=True)  # as it is typed
        for title in ("rule", "what", "seen by"):
            table.add_column(title)
        for bug in PLANTABLE.values():
            table.add_row(bug.name, bug.rule, bug.what, ", ".join(sorted(bug.caught_by)))
        self._console.print(table)
        return 0

    # --- what is told ---------------------------------------------------------------------------

    def _tell(self, result: Result, plan_file: Path | None) -> None:
        if self._as_json:
            click.echo(json.dumps(result.as_dict()))
            return
        report.show_run(self._console, result)
        if result.failures:
            report.show_failures(self._console, result, self._again(result.plan, plan_file))

    def _again(self, plan: Plan, plan_file: Path | None) -> str:
        if plan_file is None and plan == self._recipe.plan(plan.seed):
            return report.again_by_seed(plan, self._recipe)
        if plan_file is None:  # no seed leads to it
            plan_file = _keep(plan, "varied")
        return report.again_by_file(plan_file, self._recipe)

    def _conclude(self, statistics: Statistics, elapsed_s: float) -> None:
        if self._as_json:
            told = statistics.as_dict(elapsed_s)
            if self._recipe.traces:
                told["lines"] = {
                    m.file: [m.lines, ranges(m.missing)] for m in modules(statistics.lines)
                }
            click.echo(json.dumps(told))
        else:
            report.show_statistics(self._console, statistics, elapsed_s)
            if self._recipe.traces:
                report.show_lines(self._console, modules(statistics.lines))

    def _shrink(self, result: Result) -> None:
        """Make a failing plan small and keep it in PLANS. A run without an end is left alone."""
        if not (self._shrinks and result.failures) or LOST in result.checks:
            return
        report.say(self._progress, f"making seed {result.seed} small …")
        bug = self._recipe.bug
        end_s = time.monotonic() + SHRINK_S_MAX
        shrunk = shrink(
            result.plan,
            lambda plan: bool(run(plan, bug).checks & result.checks),
            lambda: time.monotonic() < end_s,
        )
        file = _keep(shrunk.plan, "seed")
        if self._as_json:
            click.echo(json.dumps({"shrunk": json.loads(shrunk.plan.to_json())}))
        else:
            report.show_shrunk(self._console, shrunk, file, self._recipe)


def _keep(plan: Plan, kind: str) -> Path:
    PLANS.mkdir(parents=True, exist_ok=True)
    file = PLANS / f"{kind}-{plan.seed}-{plan.mode}.json"
    file.write_text(plan.to_json() + "\n", encoding="utf-8")
    return file


def exit_code(failures: list[Result]) -> int:
    """Return 0 for clean results, 1 if a check failed in any, 2 if only the simulator did."""
    verdicts = {result.verdict for result in failures}
    if "failed" in verdicts:
        return EXIT_FAILED
    return EXIT_BROKEN if "broken" in verdicts else 0
