"""Requests that have come to a node and that no turn has looked at yet.

What lives here: two queues, clients' own and those that other nodes pass on, and their bounds. What
must not: what is done with a request (frontend.py), how long a turn may take (budget.py).

A turn stops looking at requests when its time is over; the rest waits here, in order. Clients' are
taken from their connections only when the last ones are through, so they wait there and push back.
Those of other nodes come with Raft's messages, which must not wait: so beyond a bound they are
refused.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final

from cluster.wire.messages import Relay

RELAYS_WAITING_MAX: Final = 4_096  # as many as one node may have under way
RELAYS_WAITING_BYTES_MAX: Final = 64 * 1024 * 1024  # as PUT_BYTES_MAX: the leader's memory

FromClient = tuple[bytes, Sequence[bytes]]
FromNode = tuple[str, Relay]


class Intake:
    """What waits to be looked at, taken out alternately from clients and from nodes."""

    def __init__(self) -> None:
        self._clients: deque[FromClient] = deque()
        self._nodes: deque[FromNode] = deque()
        self._nodes_bytes = 0
        self._nodes_turn = False

    def __bool__(self) -> bool:
        return bool(self._clients or self._nodes)

    @property
    def wants_clients(self) -> bool:
        """True when the last requests of clients are through."""
        return not self._clients

    def add_clients(self, requests: Iterable[FromClient]) -> None:
        """Queue what one turn took from the clients' socket."""
        self._clients.extend(requests)

    def add_relay(self, name: str, relay: Relay) -> bool:
        """Queue what another node passes on; False if there is no room."""
        size_bytes = sum(map(len, relay.frames))
        if (
            len(self._nodes) >= RELAYS_WAITING_MAX
            or self._nodes_bytes + size_bytes > RELAYS_WAITING_BYTES_MAX
        ):
            return False
        self._nodes.append((name, relay))
        self._nodes_bytes += size_bytes
        return True

    def take(self) -> FromClient | FromNode:
        """Return the next one; there has to be one."""
        self._nodes_turn = not self._nodes_turn
        if self._nodes and (self._nodes_turn or not self._clients):
            name, relay = self._nodes.popleft()
            self._nodes_bytes -= sum(map(len, relay.frames))
            return name, relay
        return self._clients.popleft()
