"""Tries cases from seeds, and makes those small that find something.

What lives here: the command line, the shrinking, what a person reads. What must not: how a case is
drawn (cases.py) and what has to hold (oracles.py).
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any, Final

import click

from chaos.simulation.search.shrink import ddmin
from tests.fuzz_store.cases import EntriesCase, case_of
from tests.fuzz_store.oracles import StoreFinding, finding_of

SHRINK_S_MAX: Final = 120.0  # for one finding
FOUND_MAX: Final = 5  # places of a run: then it ends


class Shrinking:
    """Leaves out of a case what does not matter to what it finds."""

    def __init__(
        self, case: EntriesCase, finding: StoreFinding, seconds: float = SHRINK_S_MAX
    ) -> None:
        self._case, self._place = case, finding.place
        self._end_s = time.monotonic() + seconds

    def smallest(self, entries_max: int) -> EntriesCase:
        """Return the smallest case found; behind `entries_max` entries there is nothing to see."""
        self._takes(replace(self._case, entries=self._case.entries[:entries_max]))
        before = None
        while before != self._case:  # without an operation an entry may be of no use any more
            before = self._case
            self._leave_out()
        return self._case

    def _leave_out(self) -> None:
        ddmin(self._case.entries, lambda left: self._takes(replace(self._case, entries=left)))
        for place in range(len(self._case.entries)):
            for part in ("operations", "befalls"):
                items = getattr(self._case.entries[place], part)
                ddmin(items, partial(self._takes_part, place, part))
        for name in ("knobs", "limits"):
            ddmin([*getattr(self._case, name).items()], partial(self._takes_limits, name))

    def _takes(self, smaller: EntriesCase) -> bool:
        """Go on with a smaller case if it comes to the same place."""
        found = finding_of(smaller) if time.monotonic() < self._end_s else None
        if found is None or found.place != self._place:
            return False
        self._case = smaller
        return True

    def _takes_part(self, place: int, part: str, left: tuple[Any, ...]) -> bool:
        entries = [*self._case.entries]
        entries[place] = replace(entries[place], **{part: left})
        return self._takes(replace(self._case, entries=tuple(entries)))

    def _takes_limits(self, name: str, left: tuple[tuple[str, Any], ...]) -> bool:
        return self._takes(replace(self._case, **{name: dict(left)}))


def told(seed: int, case: EntriesCase, finding: StoreFinding) -> Iterator[str]:
    """Yield the lines that a person reads of a finding."""
    yield f"seed {seed}: {finding.text}"
    yield f"  {case.size} operations in {len(case.entries)} entries; {case.knobs} {case.limits}"
    for entry in case.entries:
        befalls = ", ".join(f"{which}: {what} {count}" for which, what, count in entry.befalls)
        yield f"  term {entry.term}, {entry.stamp.ms} ms, @{entry.stamp.wall_ms}  {befalls}"
        for operation in entry.operations:
            yield f"    {operation}"


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--seed", "first", type=click.IntRange(0), default=0, show_default=True)
@click.option("--count", type=click.IntRange(1), default=1_000, show_default=True, help="Seeds.")
@click.option("--minutes", type=click.FloatRange(0), help="Begin no seed after so many minutes.")
@click.option("--shrink/--no-shrink", "shrinks", default=True, help="Make findings small.")
def main(first: int, count: int, minutes: float | None, shrinks: bool) -> None:
    """Try entries of many operations of every kind on stores; exit code 1: something was found."""
    begin_s, tried = time.monotonic(), 0
    end_s = begin_s + 60 * (float("inf") if minutes is None else minutes)
    places: set[str] = set()
    for seed in range(first, first + count):
        if time.monotonic() >= end_s or len(places) == FOUND_MAX:
            break
        case, tried = case_of(seed), tried + 1
        finding = finding_of(case)
        if finding is None or finding.place in places:
            continue
        places.add(finding.place)
        if shrinks:
            case = Shrinking(case, finding).smallest(finding.entry)
            finding = finding_of(case) or finding
        click.echo("\n".join(told(seed, case, finding)))
    seconds = time.monotonic() - begin_s
    click.echo(f"{tried} seeds in {seconds:.0f} s, {len(places)} places found", err=True)
    sys.exit(bool(places))
