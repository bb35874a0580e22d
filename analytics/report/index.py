"""An index over the runs of a suite: experiment by verdict by blackout, with links to their pages.

Reads what each run's directory says (`report.json`, `run.json`); no Spark, so whoever ran the suite
can write it. A run without a report stands in it as one: its verdict is unknown.
"""

import json
import os
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from analytics.common.verdict import Verdict, worst
from analytics.report import html
from analytics.report.facts import ReportFacts, facts_of

PAGE, JSON = "report.html", "report.json"
FOUND_SHOWN_MAX: Final = 4  # of a run's checks with evidence, or of its reasons
MARKS: Final = {Verdict.VALID: "✓", Verdict.INVALID: "✗", Verdict.UNKNOWN: "?"}


@dataclass(frozen=True, slots=True)
class IndexEntry:
    """A run in the index. `found`: checks with evidence, then reasons for doubt, then what the run
    expected and did not get. `blackouts_ms`: of its faults, without those whose end was not seen
    (`endless`). `link`: its page, relative to the index; None if it has none.
    """

    facts: ReportFacts
    verdict: Verdict
    found: tuple[str, ...]
    more: int
    acknowledged: int | None
    delivered: int | None
    blackouts_ms: tuple[float, ...]
    endless: int
    link: str | None

    @property
    def median_ms(self) -> float | None:
        """Return the median blackout; None without any."""
        return statistics.median(self.blackouts_ms) if self.blackouts_ms else None

    @property
    def worst_ms(self) -> float | None:
        """Return the longest blackout; None without any."""
        return max(self.blackouts_ms, default=None)


def write_index(paths: Iterable[Path], target: Path) -> None:
    """Write the index of the runs in the directories `paths` as the HTML file `target`.

    Links are relative, so the index and the runs can be moved together.
    """
    entries = [entry_of(Path(path), target) for path in paths]
    target.write_text(index(entries), encoding="utf-8")


def index(entries: Sequence[IndexEntry]) -> str:
    """Return the page over `entries`, in their order."""
    longest_ms = max((entry.worst_ms or 0 for entry in entries), default=0) or 1
    counts = Counter(entry.verdict for entry in entries)
    return html.rendered(
        "index.html.j2",
        entries=entries,
        longest_ms=longest_ms,
        verdict=worst(entry.verdict for entry in entries),
        counts=[(verdict, counts[verdict]) for verdict in Verdict if counts[verdict]],
        mark=MARKS,
    )


def entry_of(directory: Path, target: Path) -> IndexEntry:
    """Return what the run in `directory` came to."""
    report = _report(directory / JSON)
    seen = report.get("observations", {})
    faults = seen.get("faults", ())
    known = [fault["blackout_ms"] for fault in faults if fault["blackout_ms"] is not None]
    facts = facts_of(directory)
    found = [*_found(report), *(f"expected: {problem}" for problem in facts.problems)]
    has_page = (directory / PAGE).exists()
    return IndexEntry(
        facts=facts,
        verdict=Verdict(report.get("verdict", Verdict.UNKNOWN)),
        found=tuple(found[:FOUND_SHOWN_MAX]),
        more=max(0, len(found) - FOUND_SHOWN_MAX),
        acknowledged=seen.get("acknowledged"),
        delivered=seen.get("delivered"),
        blackouts_ms=tuple(known),
        endless=len(faults) - len(known),
        link=_link(directory / PAGE, target.parent) if has_page else None,
    )


def _report(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(path.read_bytes()))
    except (OSError, ValueError) as error:
        return {"reasons": [f"no report: {getattr(error, 'strerror', None) or error}"]}


def _found(report: Mapping[str, Any]) -> list[str]:
    checks = [
        f"{one['name']}: {one['count']:,}" for one in report.get("checks", ()) if one["count"]
    ]
    return [*checks, *report.get("reasons", ())]


def _link(page: Path, base: Path) -> str:
    return quote(os.path.relpath(page.resolve(), base.resolve()))
