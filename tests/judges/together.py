"""Both judges over many histories at once: what Spark says of each, and where the two differ.

What lives here: the comparisons of one merged record, and what they say of each of its parts. What
must not: how histories are merged (merging.py), or made.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from analytics.command.differences import (
    CheckFindings,
    Difference,
    Identity,
    JudgedRun,
    NoJudgement,
    differences,
)
from analytics.command.judging import Row, by_spark, by_twins, judgement_on, rows_by_spark
from tests.judges.detection import KindTally, sabotaged
from tests.judges.detection import is_found as is_found_in
from tests.judges.history import MadeHistory
from tests.judges.judges import JudgesVerdict
from tests.judges.kinds import KINDS, UNKNOWN, Kind
from tests.judges.merging import MergedPart, batches, merged, part_of
from tests.judges.world import legal

Rows = dict[str, list[Row]]  # check -> rows
BOTH, PARTS = "spark and twins", "the whole and its parts"


@dataclass
class Told:
    """What Spark said of the parts of one record, and what does not fit.

    `rows`: part -> what it has found there. `differing`: (which comparison, what).
    """

    parts: Sequence[MergedPart]
    lines: int
    rows: dict[int, Rows] = field(default_factory=lambda: defaultdict(lambda: defaultdict(list)))
    differing: list[tuple[str, Difference]] = field(default_factory=list)


def judged_together(parts: Iterable[MergedPart], size: int, directory: Path) -> Iterator[Told]:
    """Let Spark judge the parts, so many at once, and compare it with the judge in plain Python.

    Spark's rows of a merged record are compared with the other judge's rows of it, and these with
    what that judge finds in the parts, each by itself: the merge neither hides nor makes any.
    """
    for batch in batches(parts, size):
        whole = merged(batch)
        apart = sum_of(by_twins(written(part.history, directory)) for part in batch)
        by_python = by_twins(written(whole, directory))
        report, rows = rows_by_spark(directory)
        told = Told(batch, len(whole.rows))
        told.differing += named(BOTH, batch, differences("", judgement_on(report, rows), by_python))
        told.differing += named(PARTS, batch, differences("", rows_of(by_python), apart))
        for check, found in rows.items():
            for row in found:
                told.rows[part_of(row)][check].append(row)
        yield told


def written(history: MadeHistory, directory: Path) -> Path:
    """Write a history; return where."""
    history.write(directory)
    return directory


def sum_of(judgements: Iterable[JudgedRun]) -> JudgedRun:
    """Return the rows of all of them. A verdict can't be summed."""
    rows: dict[str, set[Identity]] = defaultdict(set)
    for one in judgements:
        for check, found in one.checks.items():
            rows[check] |= found.rows
    return JudgedRun(
        "", {check: CheckFindings("", len(own), frozenset(own)) for check, own in rows.items()}
    )


def rows_of(judgement: JudgedRun) -> JudgedRun:
    """Return its rows alone."""
    return sum_of([judgement])


def named(
    which: str, parts: Sequence[MergedPart], found: Iterable[Difference]
) -> Iterator[tuple[str, Difference]]:
    """Yield the differences, each with the name of the part that it is of."""
    names = {part.number: part.name for part in parts}
    for one in found:
        yield which, Difference(name_in(one, names), one.what, one.first, one.second)


def name_in(difference: Difference, names: dict[int, str]) -> str:
    """Return of which part a difference is: of none, where a verdict or a standing differs."""
    row = difference.first if difference.first != "-" else difference.second
    words = row.split(" ")
    fields = {name: value for name, value in zip(words[::2], words[1::2], strict=False)}
    try:
        return names[part_of(fields)]
    except (KeyError, ValueError):
        return "all"


def said_of(rows: Rows) -> JudgesVerdict:
    """Return what the rows of a part say: each of them is a proof."""
    details = {check: [row["detail"] or "" for row in own] for check, own in rows.items()}
    return JudgesVerdict("invalid" if any(details.values()) else "valid", details)


# --- many, by kind --------------------------------------------------------------------------------

LEGAL: Final = "legal"
Source = tuple[str, int]  # the kind, or LEGAL; the seed


class Comparison:
    """Spark's detection by kind, and where it and the judge in plain Python differ."""

    def __init__(self, directory: Path, size: int) -> None:
        self._directory, self._size = directory, size
        self.tallies: dict[str, KindTally] = defaultdict(KindTally)
        self.differing: list[tuple[str, Difference]] = []
        self.lines = self.runs = 0

    def take(self, seeds: range, kinds: Iterable[tuple[Kind, range]]) -> Iterator[Told]:
        """Judge the legal histories of these seeds, and sabotaged ones of kinds that have rows."""
        sources: dict[int, Source] = {}

        def parts() -> Iterator[MergedPart]:
            for name, seed, history in self._made(seeds, kinds):
                number = len(sources) + 1
                sources[number] = (name, seed)
                yield MergedPart.of(number, f"{name} {seed}", history)

        for told in judged_together(parts(), self._size, self._directory):
            for part in told.parts:
                name, seed = sources[part.number]
                said = said_of(told.rows.get(part.number, {}))
                is_found = is_found_in(KINDS[name], said) if name in KINDS else not said.rows
                self.tallies[name].add(seed, said, is_found)
            self.differing += told.differing
            self.lines, self.runs = self.lines + told.lines, self.runs + 1
            yield told

    def _made(
        self, seeds: range, kinds: Iterable[tuple[Kind, range]]
    ) -> Iterator[tuple[str, int, MadeHistory]]:
        for seed in seeds:
            yield LEGAL, seed, legal(seed)
        for kind, own in kinds:
            for seed in own:
                made = sabotaged(kind, seed, self._directory, lambda _: True)
                yield kind.name, seed, made.history

    def take_alone(self, kind: Kind, seeds: range, is_fit: Callable[[int], bool]) -> None:
        """Judge histories of a kind of which `unknown` is expected, one by one."""
        for seed in seeds:
            sabotaged(kind, seed, self._directory, is_fit)
            first = asked(by_spark, self._directory)
            found = differences(f"{kind.name} {seed}", first, asked(by_twins, self._directory))
            self.differing += [(BOTH, one) for one in found]
            self.tallies[kind.name].add(
                seed, JudgesVerdict(first.verdict), first.verdict == kind.verdict
            )


def asked(judge: Callable[[Path], JudgedRun], directory: Path) -> JudgedRun:
    """Ask; a directory that can't be read is unknown."""
    try:
        return judge(directory)
    except NoJudgement:
        return JudgedRun(UNKNOWN, {})
