"""Between which bounds each number of an experiment's file has to be, by its key.

What lives here: one row a key, and the reason of a bound that is not plain. What must not: what a
key means (experiment.py, workloads/kinds.py), or how a file is read (reading.py).

A key is the same number wherever it stands, so one table holds for clients, phases and the rest.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from flotilla_client.connection import REQUESTS_QUEUED_MAX
from flotilla_client.protocol import (
    ATTEMPTS_MAX,
    BATCH_BYTES_MAX,
    BATCH_COUNT_MAX,
    GET_WAIT_MS_MAX,
    LEASE_MS_MAX,
    LEASE_MS_MIN,
    PUBLICATION_BYTES_MAX,
    TAKE_COUNT_MAX,
)

TOPICS_MAX: Final = 1_000  # a client's subscriptions have this limit too
TOPICS_BYTES_MAX: Final = 60_000  # at most twice that as JSON; an argument has 128 KiB
CLIENTS_MAX: Final = 100  # processes: this is one machine
WINDOWS_MAX: Final = 10_000  # an hour of the shortest useful windows; more is a typing error
SECONDS_MAX: Final = 86_400  # a day: nobody waits longer for a phase
DEADLINE_MS_MAX: Final = 600_000  # of an operation; a client takes a day, and a run waits for it
PUBLICATIONS_MAX: Final = 1_000_000_000  # ten times the largest history that was ever checked
RATE_PER_S_MIN: Final = 0.001  # one in a quarter of an hour: a run with less proves nothing
RATE_PER_S_MAX: Final = 1_000_000  # beyond what a client can do: then it is as fast as it can be
AT_ONCE_BYTES_MAX: Final = 64 * 1024 * 1024  # a client has it in memory some times over
LINE_BYTES: Final = 100  # of a publication whose size is not set: a line of text, about


@dataclass(frozen=True)
class Bounds:
    """What a number may be: from `low` to `most`, both included, or 0 if that `is_special`."""

    low: float
    most: float
    is_special: bool = False

    def admits(self, value: float) -> bool:
        """Whether the number is within; nan and inf never are."""
        return self.low <= value <= self.most or (self.is_special and value == 0)

    def __str__(self) -> str:
        span = f"from {self.low:,} to {self.most:,}"
        return f"0, or {span}" if self.is_special else span


SECONDS: Final = Bounds(0, SECONDS_MAX)
PUBLICATIONS: Final = Bounds(0, PUBLICATIONS_MAX)

BOUNDS: Final[Mapping[str, Bounds]] = {
    # [workload]
    "topics": Bounds(1, TOPICS_MAX),
    "deadline_ms": Bounds(1, DEADLINE_MS_MAX),
    # [[clients]]
    "count": Bounds(1, CLIENTS_MAX),
    "rate_per_s": Bounds(RATE_PER_S_MIN, RATE_PER_S_MAX, is_special=True),
    "hot_share": Bounds(0, 1),
    "size_bytes": Bounds(0, PUBLICATION_BYTES_MAX),
    "batch_count": Bounds(1, BATCH_COUNT_MAX),
    "burst_count": Bounds(1, 10_000),  # of lines of text: a fraction of what a producer queues
    "batch_bytes": Bounds(1, BATCH_BYTES_MAX),
    "in_flight_max": Bounds(1, REQUESTS_QUEUED_MAX - 1),  # the producer's own
    "get_count_max": Bounds(1, BATCH_COUNT_MAX),
    "get_wait_ms": Bounds(0, GET_WAIT_MS_MAX),
    "take_count_max": Bounds(1, TAKE_COUNT_MAX),
    "lease_s": Bounds(LEASE_MS_MIN / 1000, LEASE_MS_MAX / 1000),
    "stall_share": Bounds(0, 1),
    "nak_share": Bounds(0, 1),
    "extend_share": Bounds(0, 1),
    "attempts_max": Bounds(1, ATTEMPTS_MAX),
    "pause_s": SECONDS,
    "stay_s": SECONDS,
    "away_s": SECONDS,
    # [[faults]]
    "hold_s": SECONDS,
    "quiet_s": SECONDS,
    # [phases]
    "warmup_acknowledged": PUBLICATIONS,
    "warmup_s_max": SECONDS,
    "steady_s": SECONDS,
    "health_s_max": SECONDS,
    "drain_s_max": SECONDS,
    # [expect]
    "acknowledged_min": PUBLICATIONS,
    "acknowledged_per_s_min": Bounds(0, RATE_PER_S_MAX),
    "blackout_s_max": SECONDS,
}
