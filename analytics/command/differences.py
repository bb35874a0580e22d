"""Two judgements of the same runs, held against one another: the rows that only one has.

What lives here: a row's identity as text, runs by their names, and the differences. What must not:
a judge, or printing (compare.py).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from analytics.twins.checks import IDENTITY

RUN, REPORT, HISTORY, PARQUET = "run.json", "report.json", "history", "history.parquet"
WORD, OPERATION = "word", "operation"  # of `detail` the first one, of `operations` the last one
NOTHING: Final = "-"
RUNS_MAX: Final = 100_000  # of a directory: more are hardly one experiment's

EVERY: Final = ("topic", "client_id", "id", "producer", "counter", WORD, OPERATION)  # of an unknown

Identity = tuple[tuple[str, str], ...]


class NoJudgement(Exception):
    """There is nothing to compare; the text says where and why."""


@dataclass(frozen=True, slots=True)
class CheckFindings:
    """What one check came to. `rows` are all there are if they are `count`: a report has three."""

    standing: str
    count: int
    rows: frozenset[Identity]

    @property
    def is_whole(self) -> bool:
        """Whether every row is known."""
        return len(self.rows) == self.count


@dataclass(frozen=True, slots=True)
class JudgedRun:
    """A run as somebody has judged it."""

    verdict: str
    checks: Mapping[str, CheckFindings]


@dataclass(frozen=True, slots=True)
class Difference:
    """A line of the table: of which run, in what (a check, or `verdict`), and both sides."""

    run: str
    what: str
    first: str
    second: str


def identity(check: str, row: Mapping[str, Any]) -> Identity:
    """Return what a row is known by; `row` as a witness stands in report.json."""
    operations = row.get("operations") or ()
    values = {**row, WORD: (row.get("detail") or "").partition(" ")[0].rstrip(":")}
    if operations:
        last = operations[-1]
        values[OPERATION] = f"{last['process']} op {last['op_id']}"
    named = ((name, values.get(name)) for name in IDENTITY.get(check, EVERY))
    return tuple((name, str(value)) for name, value in named if value not in (None, ""))


def judgement_of(report: Mapping[str, Any]) -> JudgedRun:
    """Return what a report says, as report.json has it."""
    checks = {
        one["name"]: CheckFindings(
            _standing(one),
            one["count"],
            frozenset(identity(one["name"], witness) for witness in one["witnesses"]),
        )
        for one in report["checks"]
    }
    return JudgedRun(report["verdict"], checks)


def _standing(check: Mapping[str, Any]) -> str:
    return "crashed" if check.get("error") else check.get("verdict") or "not judged"


def runs_below(directory: Path) -> dict[str, Path]:
    """Return the runs in a directory, by their names: itself, or those directly in it.

    A run is a directory with a run.json, a history or a report. Raises NoJudgement.
    """
    if is_run(directory):
        return {NOTHING: directory}
    runs = {path.name: path for path in sorted(directory.iterdir()) if is_run(path)}
    if not runs:
        raise NoJudgement(f"{directory} is no run, and there is none in it")
    if len(runs) > RUNS_MAX:
        raise NoJudgement(f"{directory}: {len(runs)} runs are more than {RUNS_MAX}")
    return runs


def is_run(path: Path) -> bool:
    """Return whether there is something of a run in it."""
    named = (RUN, REPORT, HISTORY, PARQUET)
    return path.is_dir() and any((path / name).exists() for name in named)


def reported(path: Path) -> JudgedRun:
    """Return what the report in a file says. Raises NoJudgement."""
    try:
        return judgement_of(json.loads(path.read_bytes()))
    except OSError as error:
        raise NoJudgement(f"{path}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise NoJudgement(f"{path} is no report of flotilla-check: {reason}") from error


def differences(run: str, first: JudgedRun, second: JudgedRun) -> Iterator[Difference]:
    """Yield what differs: the verdict, and of each check the standing and the rows.

    A check that one side does not know stands there as such: an older version has fewer.
    """
    if first.verdict != second.verdict:
        yield Difference(run, "verdict", first.verdict, second.verdict)
    for check in dict.fromkeys((*first.checks, *second.checks)):
        one, other = first.checks.get(check), second.checks.get(check)
        are_whole = all(found is not None and found.is_whole for found in (one, other))
        if one is None or other is None:
            yield Difference(run, check, *(_standing_of(found) for found in (one, other)))
        elif one.standing != other.standing or (one.count != other.count and not are_whole):
            yield Difference(run, check, _with_count(one), _with_count(other))
        elif are_whole:
            yield from (Difference(run, check, said(row), NOTHING) for row in one.rows - other.rows)
            yield from (Difference(run, check, NOTHING, said(row)) for row in other.rows - one.rows)


def _standing_of(found: CheckFindings | None) -> str:
    return "no such check" if found is None else _with_count(found)


def _with_count(found: CheckFindings) -> str:
    return f"{found.standing}, {found.count} rows" if found.count else found.standing


def said(row: Identity) -> str:
    """Return an identity in a line."""
    return " ".join(f"{name} {value}" for name, value in row)


def summary(found: Iterable[Difference]) -> dict[str, int]:
    """Return how many differences there are of each kind."""
    return dict(Counter(one.what for one in found).most_common())
