"""Requests that a follower has passed to the leader, until their replies come back.

What lives here: the table and its bounds. What must not: sockets, clocks, encoding.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Final

from cluster.serve.shares import places_of_one
from flotilla_client.protocol import GET_WAIT_MS_MAX

RELAY_ID_BITS: Final = 62  # ids begin at random below this, and stay below messages.INTEGER_MAX
# Longer than the longest parked GET: a reply that is later than this finds nobody.
RELAY_MS_MAX: Final = GET_WAIT_MS_MAX + 10_000


@dataclass(slots=True)
class Relayed:
    """A request under way to `leader` for the client at `route`; `principal` as in `Relays.add`."""

    route: bytes
    request_id: str
    leader: str
    deadline_ms: float
    principal: str | None


@dataclass
class Relays:
    """At most `relays_max` requests under way to the leader, not all of one principal.

    `last_id`: the one before the first id. Random, or a reply to a request of this node's last
    life could be taken for one to a request of this life.
    """

    relays_max: int
    last_id: int
    _under_way: dict[int, Relayed] = field(default_factory=dict)
    _of: Counter[str] = field(default_factory=Counter)  # by principal

    def __len__(self) -> int:
        return len(self._under_way)

    def limit(self, principal: str | None) -> int:
        """Return how many may be under way for a principal; None: nobody knows who asks."""
        return self.relays_max if principal is None else places_of_one(self.relays_max)

    def add(
        self,
        route: bytes,
        request_id: str,
        leader: str,
        now_ms: float,
        principal: str | None = None,
    ) -> int | None:
        """Return the id of a new relay, None if there are too many."""
        if len(self._under_way) >= self.relays_max:
            return None
        if principal is not None:
            if self._of[principal] >= self.limit(principal):
                return None
            self._of[principal] += 1
        self.last_id += 1
        deadline_ms = now_ms + RELAY_MS_MAX
        relayed = Relayed(route, request_id, leader, deadline_ms, principal)
        self._under_way[self.last_id] = relayed
        return self.last_id

    def finish(self, relay_id: int) -> Relayed | None:
        """Take the relay out; None if it is not under way (any more)."""
        return self._take_out(relay_id) if relay_id in self._under_way else None

    def _take_out(self, relay_id: int) -> Relayed:
        relayed = self._under_way.pop(relay_id)
        if relayed.principal is not None:
            self._of[relayed.principal] -= 1
            if not self._of[relayed.principal]:
                del self._of[relayed.principal]
        return relayed

    def abandon(self, leader: str) -> list[Relayed]:
        """Take out what is under way to a leader that is gone."""
        gone = [number for number, relay in self._under_way.items() if relay.leader == leader]
        return [self._take_out(number) for number in gone]

    def expire(self, now_ms: float) -> list[Relayed]:
        """Take out what has waited too long. Insertion order is deadline order."""
        expired: list[Relayed] = []
        while self._under_way:
            number = next(iter(self._under_way))
            if self._under_way[number].deadline_ms > now_ms:
                break
            expired.append(self._take_out(number))
        return expired
