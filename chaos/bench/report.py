"""Figures for people and for programs.

What lives here: the table and the JSON document. What must not: arithmetic beyond rounding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from rich.console import Group
from rich.table import Table

from chaos.bench.figures import Figure, SampleSpread
from chaos.bench.machine import Machine
from chaos.bench.measures import BenchPlan

FORMAT_VERSION: Final = 1


@dataclass(frozen=True)
class BenchReport:
    """All that a run says. `others_share`: of the processors, used by others during the run."""

    machine: Machine
    plan: BenchPlan
    figures: Sequence[Figure]
    took_s: float
    others_share: float


def table(report: BenchReport) -> Group:
    """Return what a person reads: the machine, then one row a comparison."""
    machine = report.machine
    rows = Table("measured", "value", "p99", "worst", "against", "its value", "ratio", box=None)
    for column in rows.columns[1:4] + rows.columns[5:]:
        column.justify = "right"
    for figure in report.figures:
        for number, (title, value) in enumerate(figure.against.items()):
            own = _own(figure) if number == 0 else [""] * 4
            rows.add_row(*own, title, _with_unit(value, figure.unit), _times(figure.ratio(title)))
    packages = ", ".join(f"{name} {number}" for name, number in machine.packages.items())
    loads = ", ".join(f"{load:.1f}" for load in machine.load_before)
    return Group(
        f"{machine.cores} cores ({machine.cpu}), {machine.system}, {machine.python}; {packages}",
        f"load average before: {loads}; others used {report.others_share:.0%} of the processors "
        "during the run",
        "",
        rows,
        "",
        f"seed {report.plan.seed}; took {report.took_s:.0f} s",
    )


def document(report: BenchReport) -> dict[str, Any]:
    """Return the JSON document (docs/benchmarks.md)."""
    return {
        "format": FORMAT_VERSION,
        "machine": report.machine.as_json(),
        "others_share": report.others_share,
        "seconds": report.plan.seconds,
        "kills": report.plan.kills,
        "seed": report.plan.seed,
        "took_s": report.took_s,
        "figures": [figure.as_json() for figure in report.figures],
    }


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
