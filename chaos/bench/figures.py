"""What a benchmark says: figures, each with what it is compared to.

What lives here: the arithmetic and the figures' form. What must not: measuring, or a screen.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

P99_SAMPLES_MIN: Final = 100


class BenchError(Exception):
    """A figure cannot be measured; the text says why."""


def quantile(values: Sequence[float], share: float) -> float:
    """Return the smallest of `values` that `share` of them do not exceed (nearest rank)."""
    assert values, "no values"
    assert 0 < share <= 1, share
    return sorted(values)[math.ceil(share * len(values)) - 1]


@dataclass(frozen=True)
class SampleSpread:
    """A sample's `median`, `p99` and `worst`, in the sample's unit, and its size.

    `p99` is None for fewer than P99_SAMPLES_MIN: it would be the worst under another name.
    """

    median: float
    p99: float | None
    worst: float
    samples: int

    @classmethod
    def of(cls, values: Sequence[float], scale: float = 1.0) -> SampleSpread:
        """Return the spread of `values`, each times `scale`. Raises BenchError for none."""
        if not values:
            raise BenchError("nothing was measured: give it more time (--seconds)")
        median, p99, worst = (scale * quantile(values, share) for share in (0.5, 0.99, 1.0))
        return cls(median, p99 if len(values) >= P99_SAMPLES_MIN else None, worst, len(values))


@dataclass(frozen=True)
class Figure:
    """One measured value.

    `against`: what was measured beside it in the same run, {title: value in `unit`}. `spread`: of
    the sample behind `value`, if there was one.
    """

    name: str
    title: str
    value: float
    unit: str
    against: Mapping[str, float] = field(default_factory=dict)
    spread: SampleSpread | None = None

    def ratio(self, title: str) -> float:
        """Return the value as a multiple of what it is compared to."""
        assert self.against[title] > 0, (self.name, title, self.against[title])
        return self.value / self.against[title]

    def as_json(self) -> dict[str, Any]:
        """Return the figure as JSON holds it (docs/benchmarks.md)."""
        row: dict[str, Any] = {
            "name": self.name,
            "title": self.title,
            "value": self.value,
            "unit": self.unit,
            "against": {
                title: {"value": value, "ratio": self.ratio(title)}
                for title, value in self.against.items()
            },
        }
        if self.spread is not None:
            row |= {
                "median": self.spread.median,
                "p99": self.spread.p99,
                "worst": self.spread.worst,
                "samples": self.spread.samples,
            }
        return row


@dataclass(frozen=True)
class Curve:
    """What a plot shows: `lines`, {label: [(x, y), …]} with x ascending.

    `x`, `y`: what the axes are, with units. Both are logarithmic if `is_log`. `is_bars`: y is a
    share of all at the class that ends at x.
    """

    name: str
    title: str
    x: str
    y: str
    lines: Mapping[str, Sequence[tuple[float, float]]]
    is_log: bool = False
    is_bars: bool = False

    def as_json(self) -> dict[str, Any]:
        """Return the curve as JSON holds it (docs/benchmarks.md)."""
        return {
            "name": self.name,
            "title": self.title,
            "x": self.x,
            "y": self.y,
            "lines": {label: [list(point) for point in line] for label, line in self.lines.items()},
        }


def timed(
    name: str, title: str, seconds: Sequence[float], against: Mapping[str, Sequence[float]]
) -> Figure:
    """Return the figure of a sample of durations, in ms: its median against others' medians."""
    spread = SampleSpread.of(seconds, 1000)
    medians = {other: SampleSpread.of(values, 1000).median for other, values in against.items()}
    return Figure(name, title, spread.median, "ms", medians, spread)
