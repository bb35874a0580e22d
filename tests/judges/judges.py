"""Both judges behind one question: what does this directory come to?

What lives here: one form for what each of them says. What must not: an opinion.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

TWINS, SPARK = JUDGES = ("twins", "spark")
Judge = Callable[[Path], "JudgesVerdict"]


@dataclass(frozen=True)
class JudgesVerdict:
    """A verdict. `rows`: check -> the `detail`s of the rows that are a proof."""

    verdict: str
    rows: Mapping[str, list[str]] = field(default_factory=dict)
    reasons: tuple[str, ...] = ()

    def has(self, check: str, word: str) -> bool:
        """Return whether that check found something, with a detail that begins with a word."""
        details = self.rows.get(check, [])
        return any(not word or detail.split(" ")[0].rstrip(":") == word for detail in details)


def by_twins(directory: Path) -> JudgesVerdict:
    """Ask the judge in plain Python."""
    from analytics import twins

    said = twins.judge(directory)
    rows = {
        name: [row.detail or "" for row in found]
        for name, found in said.evidence.items()
        if found and name not in said.no_proof
    }
    crashed = [f"crashed: {name}: {how}" for name, how in said.crashed.items()]
    return JudgesVerdict(said.verdict.value, rows, (*said.reasons, *crashed))


def by_spark(directory: Path) -> JudgesVerdict:
    """Ask the judge on Spark. Of many rows it tells three: no detail is asked for then."""
    from analytics.intake.cache import HistoryError
    from analytics.judge.check import check

    try:
        report = check(directory)
    except HistoryError as error:
        return JudgesVerdict("unknown", reasons=(str(error),))
    rows = {
        one.name: [witness.detail or "" for witness in one.witnesses]
        for one in report.checks
        if one.count and one.no_proof is None
    }
    return JudgesVerdict(report.verdict.value, rows, report.reasons)


def judge_of(name: str) -> Judge:
    """Return a judge."""
    return {TWINS: by_twins, SPARK: by_spark}[name]
