"""What a node counts while it runs: plain numbers, written by the loop's thread alone.

What lives here: counters and histograms, cheap enough for every turn (measured in docs/metrics.md).
What must not: clocks (times come in), names or formats of anybody's metrics (metrics.py).
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

from flotilla_client.error_table import ERRORS
from flotilla_client.protocol import REQUEST_TYPES

# Upper bounds in seconds. A turn that finds nothing takes some microseconds, one with a slow disk a
# second; an fsync is between a drive with a capacitor and one that is broken; a PUT takes two of
# them and a round trip.
TURN_S: Final = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)
FSYNC_S: Final = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)
PUT_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)


class Histogram:
    """How many values were up to each bound, and their sum."""

    __slots__ = ("bounds", "counts", "sum_s")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)  # the last one: above all bounds
        self.sum_s = 0.0

    def observe(self, seconds: float) -> None:
        """Count a value."""
        self.counts[bisect_left(self.bounds, seconds)] += 1
        self.sum_s += seconds


class Meters:
    """The counts of one node since its process began.

    `requests`: that came in, by type. `refused`: NAKs that this node has made, by code. `leaving`:
    when the PUTs were taken whose ACKs leave with the present turn, in ms of the turns' clock.
    """

    def __init__(self) -> None:
        self.turn = Histogram(TURN_S)
        self.put = Histogram(PUT_S)
        self.requests = dict.fromkeys(sorted(REQUEST_TYPES), 0)
        self.refused = dict.fromkeys(sorted(ERRORS), 0)
        self.leaving: list[float] = []

    def turned(self, began: float, answered: float, ended: float) -> None:
        """Count a turn: when it began, when its replies had left, when it ended."""
        self.turn.observe(ended - began)
        for taken_ms in self.leaving:
            self.put.observe(answered - taken_ms / 1000)
