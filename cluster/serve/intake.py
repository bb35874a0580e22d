"""Requests that have come to a node and that no turn has looked at yet.

What lives here: queues, of clients' own and of those that other nodes pass on, and their bounds.
What must not: what is done with a request (frontend.py), how long a turn may take (budget.py).

A turn stops looking at requests when its time is over, or everybody has had his share of it
(shares.py); the rest waits here, in order. Clients' are taken from their connections only when the
last ones are through, so they wait there and push back. Those of other nodes come with Raft's
messages, which must not wait: so beyond a bound they are refused.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final

from cluster.serve.shares import PAYER_SHARE, Shares
from cluster.wire.messages import Relay

RELAYS_WAITING_MAX: Final = 4_096  # as many as one node may have under way
RELAYS_WAITING_BYTES_MAX: Final = 64 * 1024 * 1024  # as PUT_BYTES_MAX: the leader's memory

FromClient = tuple[bytes, Sequence[bytes]]
FromNode = tuple[str, Relay]
OWN: Final = ""  # this node's clients: their port has given them their shares


class Intake:
    """What waits to be looked at, taken out in turns: clients' own, and each other node's."""

    def __init__(self) -> None:
        self._clients: deque[FromClient] = deque()
        self._nodes: dict[str, deque[Relay]] = {}  # none empty; the next in turn is the first
        self._nodes_count = self._nodes_bytes = 0
        self._nodes_turn = False
        self._shares = Shares(PAYER_SHARE)
        self._share = 0
        self._taken: dict[str, int] = {}  # of each other node's in this turn

    def __bool__(self) -> bool:
        return bool(self._clients or self._nodes)

    @property
    def wants_clients(self) -> bool:
        """True when the last requests of clients are through."""
        return not self._clients

    def add_clients(self, requests: Sequence[FromClient], now: float) -> None:
        """Queue what one turn took from the clients' socket."""
        if requests:
            self._shares.note(OWN, now)
            self._clients.extend(requests)

    def add_relay(self, name: str, relay: Relay, now: float) -> bool:
        """Queue what another node passes on; False if there is no room."""
        size_bytes = sum(map(len, relay.frames))
        if (
            self._nodes_count >= RELAYS_WAITING_MAX
            or self._nodes_bytes + size_bytes > RELAYS_WAITING_BYTES_MAX
        ):
            return False
        self._shares.note(name, now)
        self._nodes.setdefault(name, deque()).append(relay)
        self._nodes_count += 1
        self._nodes_bytes += size_bytes
        return True

    def begin_turn(self, now: float) -> None:
        """Let everybody have his share again."""
        self._share = self._shares.share(now, RELAYS_WAITING_MAX)
        self._taken.clear()

    def take(self) -> FromClient | FromNode | None:
        """Return the next one; None if there is none, or all have had their share."""
        self._nodes_turn = not self._nodes_turn
        if self._nodes_turn or not self._clients:
            relayed = self._take_relay()
            if relayed is not None:
                return relayed
        return self._clients.popleft() if self._clients else None

    def _take_relay(self) -> FromNode | None:
        taken = self._taken
        name = next((each for each in self._nodes if taken.get(each, 0) < self._share), None)
        if name is None:
            return None
        taken[name] = taken.get(name, 0) + 1
        queue = self._nodes.pop(name)
        relay = queue.popleft()
        if queue:
            self._nodes[name] = queue
        self._nodes_count -= 1
        self._nodes_bytes -= sum(map(len, relay.frames))
        return name, relay
