"""Figures for people and for programs.

What lives here: the table and the JSON document. What must not: arithmetic beyond rounding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from rich.console import Group
from rich.table import Table

from chaos.bench.broker_clients import OURS
from chaos.bench.brokers import BROKERS
from chaos.bench.figures import Curve, Figure, SampleSpread
from chaos.bench.machine import Machine
from chaos.bench.plan import BenchPlan

FORMAT_VERSION: Final = 1
COLUMNS: Final = ("measured", "value", "p99", "worst", "against", "its value", "ratio")
DURABILITY: Final = "a majority has it on disk (fdatasync)"


@dataclass(frozen=True)
class BenchReport:
    """All that a run says. `others_share`: of the processors, used by others during the run."""

    machine: Machine
    plan: BenchPlan
    figures: Sequence[Figure]
    curves: Sequence[Curve]
    took_s: float
    others_share: float


def table(report: BenchReport) -> Group:
    """Return what a person reads: the machine, then one row a comparison."""
    rows = Table(*COLUMNS, box=None)
    for column in rows.columns[1:4] + rows.columns[5:]:
        column.justify = "right"
    for row in comparisons(report):
        rows.add_row(*row)
    return Group(*about(report), "", rows, "", *remarks(report))


def comparisons(report: BenchReport) -> list[list[str]]:
    """Return a row for each comparison; a figure's own columns are empty but in its first."""
    rows = []
    for figure in report.figures:
        if not figure.against:
            rows.append([*_own(figure), "", "", ""])
        for number, (title, value) in enumerate(figure.against.items()):
            own = _own(figure) if number == 0 else [""] * 4
            rows.append([*own, title, _with_unit(value, figure.unit), _times(figure.ratio(title))])
    return rows


def about(report: BenchReport) -> list[str]:
    """Return what the figures have to be read with: the machine, and who else used it."""
    machine = report.machine
    packages = ", ".join(f"{name} {number}" for name, number in machine.packages.items())
    loads = ", ".join(f"{load:.1f}" for load in machine.load_before)
    return [
        f"{machine.cores} cores ({machine.cpu}), {machine.system}, {machine.python}; {packages}",
        f"load average before: {loads}; others used {report.others_share:.0%} of the processors "
        "during the run",
    ]


def remarks(report: BenchReport) -> list[str]:
    """Return what an answer of each broker says, the seed, and how long it took."""
    said = [f"{name}: an answer says that {what}" for name, what in _promises(report.plan).items()]
    return [*said, f"seed {report.plan.seed}; took {report.took_s:.0f} s"]


def document(report: BenchReport) -> dict[str, Any]:
    """Return the JSON document (docs/benchmarks.md)."""
    return {
        "format": FORMAT_VERSION,
        "machine": report.machine.as_json(),
        "others_share": report.others_share,
        "seconds": report.plan.seconds,
        "kills": report.plan.kills,
        "seed": report.plan.seed,
        "promises": _promises(report.plan),
        "took_s": report.took_s,
        "figures": [figure.as_json() for figure in report.figures],
        "curves": [curve.as_json() for curve in report.curves],
    }


def _promises(plan: BenchPlan) -> dict[str, str]:
    """Return what an answer of each broker says of disks; nothing if ours is alone."""
    others = {name: BROKERS[name].durability for name in plan.peers}
    return {OURS: DURABILITY} | others if others else {}


def _own(figure: Figure) -> list[str]:
    return [
        figure.title,
        _with_unit(figure.value, figure.unit),
        *(_of_spread(figure.spread, figure.unit) if figure.spread else ("", "")),
    ]


def _of_spread(spread: SampleSpread, unit: str) -> tuple[str, str]:
    p99 = "" if spread.p99 is None else _with_unit(spread.p99, unit)
    return p99, _with_unit(spread.worst, unit)


def _with_unit(value: float, unit: str) -> str:
    decimals = 0 if value >= 100 else 1 if value >= 10 else 2 if value >= 0.1 else 3
    return f"{value:,.{decimals}f} {unit}"


def _times(ratio: float) -> str:
    return f"{ratio:,.2f}×" if ratio < 10 else f"{ratio:,.0f}×"
