"""What the plots are drawn from: small series of numbers. No Spark, no drawing here.

A series has one number a slice of the run's time. There are `SLICES_MAX` slices at most: a run of
any length, with any number of operations, comes to a page of the same size.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from analytics.common.verdict import InjectedFault

SLICES_MAX: Final = 1_000  # more than a screen has pixels to tell apart
SLICE_MS_MIN: Final = 100  # shorter, and a rate is mostly the luck of where a slice begins
NICE_STEPS: Final = (1, 2, 5)
NS_PER_MS: Final = 1_000_000
FIELDS: Final = (  # of an event, those that its bar on a timeline is made of
    *("process", "op_id", "type", "f", "topic", "client_id", "session", "t_ns", "node", "term"),
    *("counter", "count", "first_id", "last_id", "error", "attempt", "duplicate", "phase"),
    *("group", "acks", "naks", "extends", "token", "leases", "lost", "left_ms"),
)

Values = Sequence[float | None]


@dataclass(frozen=True, slots=True)
class Axis:
    """The run's time, in slices of `width_ns` from its first event. Clocks are monotonic."""

    origin_ns: int
    end_ns: int
    width_ns: int

    @property
    def count(self) -> int:
        """Return how many slices there are; at least one."""
        return (self.end_ns - self.origin_ns) // self.width_ns + 1

    @property
    def width_s(self) -> float:
        """Return a slice's length in seconds."""
        return self.width_ns / 1e9

    @property
    def end_s(self) -> float:
        """Return how long the run took, in seconds."""
        return self.seconds(self.end_ns)

    def seconds(self, t_ns: int) -> float:
        """Return `t_ns` as seconds since the run's first event."""
        return round((t_ns - self.origin_ns) / 1e9, 6)

    def times_s(self) -> list[float]:
        """Return the middle of each slice."""
        return [round((place + 0.5) * self.width_s, 6) for place in range(self.count)]


def axis_over(begin_ns: int, end_ns: int) -> Axis:
    """Return the axis with the shortest nice slices (100, 200, 500 ms, 1 s …) of which
    `SLICES_MAX` are enough.
    """
    needed_ms = max((end_ns - begin_ns + 1) / SLICES_MAX / NS_PER_MS, SLICE_MS_MIN)
    decade = 10 ** math.floor(math.log10(needed_ms))
    widths_ms = [step * scale for scale in (decade, decade * 10) for step in NICE_STEPS]
    width_ms = min(width for width in widths_ms if width >= needed_ms)
    return Axis(begin_ns, end_ns, width_ms * NS_PER_MS)


@dataclass(frozen=True, slots=True)
class Spread:
    """A quantity's quantiles in ms, by slice; None where there is no sample."""

    p50: Values
    p99: Values
    most: Values


@dataclass(frozen=True, slots=True)
class PhaseSpan:
    """A phase of the run, from its mark to the next one."""

    name: str
    begin_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class Band:
    """A fault in force, from its injection to its healing (or the end of the history)."""

    name: str
    targets: tuple[str, ...]
    begin_s: float
    end_s: float
    healed: bool


@dataclass(frozen=True, slots=True)
class Lead:
    """A node's answers as the leader of a term: when the first and the last, and how many."""

    node: str
    term: int
    begin_s: float
    end_s: float
    answers: int


@dataclass(frozen=True, slots=True)
class Series:
    """All that is plotted. `rates`: publications a second, by name (acknowledged, delivered,
    unknown, refused). `unseen`: publications acknowledged that subscribers do not have yet.
    """

    axis: Axis
    rates: Mapping[str, Values]
    latency: Spread
    staleness: Spread
    unseen: Values
    phases: tuple[PhaseSpan, ...]
    bands: tuple[Band, ...]
    leads: tuple[Lead, ...]


def filled(axis: Axis, points: Mapping[int, float], otherwise: float | None) -> list[float | None]:
    """Return a value a slice: that of `points`, or `otherwise` where it has none."""
    return [points.get(place, otherwise) for place in range(axis.count)]


def summed(axis: Axis, steps: Mapping[int, float]) -> list[float | None]:
    """Return the level after each slice of a quantity that changes by `steps`."""
    level = 0.0
    levels: list[float | None] = []
    for place in range(axis.count):
        level += steps.get(place, 0)
        levels.append(level)
    return levels


def phases_of(axis: Axis, marks: Sequence[tuple[int, str]]) -> tuple[PhaseSpan, ...]:
    """Return the phases that begin at `marks` (t_ns, name), each up to the next; sorted."""
    ends = [*sorted(marks), (axis.end_ns, "")]
    return tuple(
        PhaseSpan(name, axis.seconds(t_ns), axis.seconds(end_ns))
        for (t_ns, name), (end_ns, _) in pairwise(ends)
    )


def bands_of(axis: Axis, faults: Iterable[InjectedFault]) -> tuple[Band, ...]:
    """Return the time that each of `faults` was in force; to the end if it was never healed."""
    return tuple(
        Band(
            fault.name,
            fault.targets,
            axis.seconds(fault.t_ns),
            axis.end_s if fault.healed_ns is None else axis.seconds(fault.healed_ns),
            fault.healed_ns is not None,
        )
        for fault in faults
    )
