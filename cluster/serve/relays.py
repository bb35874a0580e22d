"""Requests that a follower has passed to the leader, until their replies come back.

What lives here: the table and its bounds. What must not: sockets, clocks, encoding.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from flotilla_client.protocol import GET_WAIT_MS_MAX

RELAY_ID_BITS: Final = 62  # ids begin at random below this, and stay below messages.INTEGER_MAX
# Longer than the longest parked GET: a reply that is later than this finds nobody.
RELAY_MS_MAX: Final = GET_WAIT_MS_MAX + 10_000


@dataclass(slots=True)
class Relayed:
    """A request under way to `leader` for the client at `route`."""

    route: bytes
    request_id: str
    leader: str
    deadline_ms: float


@dataclass
class Relays:
    """At most `relays_max` requests under way to the leader.

    `last_id`: the one before the first id. Random, or a reply to a request of this node's last
    life could be taken for one to a request of this life.
    """

    relays_max: int
    last_id: int
    _under_way: dict[int, Relayed] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self._under_way)

    def add(self, route: bytes, request_id: str, leader: str, now_ms: float) -> int | None:
        """Return the id of a new relay, None if there are too many."""
        if len(self._under_way) >= self.relays_max:
            return None
        self.last_id += 1
        deadline_ms = now_ms + RELAY_MS_MAX
        self._under_way[self.last_id] = Relayed(route, request_id, leader, deadline_ms)
        return self.last_id

    def finish(self, relay_id: int) -> Relayed | None:
        """Take the relay out; None if it is not under way (any more)."""
        return self._under_way.pop(relay_id, None)

    def abandon(self, leader: str) -> list[Relayed]:
        """Take out what is under way to a leader that is gone."""
        gone = [number for number, relay in self._under_way.items() if relay.leader == leader]
        return [self._under_way.pop(number) for number in gone]

    def expire(self, now_ms: float) -> list[Relayed]:
        """Take out what has waited too long. Insertion order is deadline order."""
        expired: list[Relayed] = []
        while self._under_way:
            number = next(iter(self._under_way))
            if self._under_way[number].deadline_ms > now_ms:
                break
            expired.append(self._under_way.pop(number))
        return expired
