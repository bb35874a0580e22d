"""The kinds of clients that an experiment may name, and what can be set for each.

What lives here: one dataclass a kind; its fields are the keys of an experiment's `[[clients]]`.
What must not: what a client of that kind does (the module of its name), and numbers of clients.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Final, get_args

from flotilla.protocol import BATCH_BYTES_MAX, BATCH_COUNT_MAX, PUBLICATION_BYTES_MAX

SHARE_FIELDS: Final = frozenset({"hot_share"})
LIMITS: Final[Mapping[str, float]] = {
    "batch_bytes": BATCH_BYTES_MAX,
    "batch_count": BATCH_COUNT_MAX,
    "burst_count": 10_000,  # of lines of text: a fraction of what a producer queues
    "size_bytes": PUBLICATION_BYTES_MAX,
}


@dataclass(frozen=True, kw_only=True)
class Publisher:
    """Publishes and waits for each answer.

    `rate_per_s`: publications, 0 = as fast as possible. `hot_share`: of them to the first topic,
    the others in turn to all. `size_bytes`: of each, 0 = a line of text. `batch_count`: at once.
    """

    publishes: ClassVar = True
    reads: ClassVar = False

    rate_per_s: float = 50.0
    hot_share: float = 0.0
    size_bytes: int = 0
    batch_count: int = 1


@dataclass(frozen=True, kw_only=True)
class Pipeliner:
    """Publishes in bursts through the library's producer, many batches in flight.

    `burst_count`: publications of a burst, for each topic. `batch_bytes`: small ones make many
    batches of it. `rate_per_s`, `size_bytes`: as a publisher's.
    """

    publishes: ClassVar = True
    reads: ClassVar = False

    rate_per_s: float = 0.0
    burst_count: int = 200
    batch_bytes: int = 2_048
    in_flight_max: int = 16
    size_bytes: int = 0


@dataclass(frozen=True, kw_only=True)
class Subscriber:
    """Reads every topic to its end, again and again, one GET a topic.

    `pause_s`: after each round, until the drain: a slow one has a backlog. `get_wait_ms`: how long
    a round waits for news.
    """

    publishes: ClassVar = False
    reads: ClassVar = True

    get_count_max: int = 500
    get_wait_ms: int = 200
    pause_s: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Gatherer(Subscriber):
    """Reads with GETs over all its topics at once."""


@dataclass(frozen=True, kw_only=True)
class Visitor(Subscriber):
    """Subscribes, reads for about `stay_s`, unsubscribes, is away for about `away_s`, comes back.

    It subscribes again without having left as well: a SUB of who is subscribed resumes.
    """

    stay_s: float = 1.0
    away_s: float = 0.5


Parameters = Publisher | Pipeliner | Subscriber | Gatherer | Visitor
KINDS: Final[Mapping[str, type[Parameters]]] = {
    kind.__name__.lower(): kind for kind in get_args(Parameters)
}


def kind_of(parameters: Parameters) -> str:
    """Return the name of the kind that these parameters are of."""
    return type(parameters).__name__.lower()


def complaint(parameters: Parameters) -> str:
    """Return what is wrong with a value, "" when nothing is."""
    for name in (field.name for field in fields(parameters)):
        value: Any = getattr(parameters, name)
        most = 1.0 if name in SHARE_FIELDS else LIMITS.get(name, value)
        if not 0 <= value <= most:
            return f"{name} is {value}, it has to be from 0 to {most:g}"
    return ""
