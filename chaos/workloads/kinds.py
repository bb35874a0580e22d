"""The kinds of clients that an experiment may name, and what can be set for each.

What lives here: one dataclass a kind; its fields are the keys of an experiment's `[[clients]]`.
What must not: what a client of that kind does (the module of its name), numbers of clients, and
what a number may be (chaos/spec/bounds.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Final, get_args


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

    def at_once(self, topic_count: int) -> int:
        """Return how many publications a client makes at once."""
        return self.batch_count


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

    def at_once(self, topic_count: int) -> int:
        """Return how many publications a client makes at once: a burst for each topic."""
        return self.burst_count * topic_count


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


@dataclass(frozen=True, kw_only=True)
class Taker:
    """Shares the work of each of its topics with all other takers, in one group a topic.

    `take_count_max`: publications taken at once. `lease_s`: how long it has them. Of the bodies
    `stall_share` outlast their lease, `nak_share` give back, `extend_share` ask for more time. What
    was given `attempts_max` times becomes a dead letter, which takers read as well.
    """

    publishes: ClassVar = False
    reads: ClassVar = True

    take_count_max: int = 20
    lease_s: float = 1.0
    stall_share: float = 0.01
    nak_share: float = 0.05
    extend_share: float = 0.02
    attempts_max: int = 3


Parameters = Publisher | Pipeliner | Subscriber | Gatherer | Visitor | Taker
KINDS: Final[Mapping[str, type[Parameters]]] = {
    kind.__name__.lower(): kind for kind in get_args(Parameters)
}


def kind_of(parameters: Parameters) -> str:
    """Return the name of the kind that these parameters are of."""
    return type(parameters).__name__.lower()
