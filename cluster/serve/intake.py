"""Requests that have come to a node and that no turn has looked at yet.

What lives here: queues, of clients' own and of those that other nodes pass on, and their bounds.
What must not: what is done with a request (frontend.py), how long a turn may take (budget.py).

A turn stops looking at requests when its time is over, or everybody has had his share of it
(shares.py); the rest waits here, in order. Clients' are taken from their connections only when the
last ones are through, so they wait there and push back. Those of other nodes come with Raft's
messages, which must not wait: so beyond a bound they are refused. Each principal has a share, and
rests, of what one node passes on: so one's flood does not go before the other's requests. Nor does
it take all places, by whatever nodes it comes. Where nobody has a key each node has a share, and a
node does not rest: nobody knows whose requests those are.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from typing import Final

from cluster.serve.shares import (
    PAYER_SHARE,
    WEIGHT_ANSWER_BYTES,
    Rests,
    Shares,
    places_of_one,
    weight,
)
from cluster.wire.messages import Relay

RELAYS_WAITING_MAX: Final = 4_096  # as many as one node may have under way
RELAYS_WAITING_BYTES_MAX: Final = 64 * 1024 * 1024  # as PUT_BYTES_MAX: the leader's memory

FromClient = tuple[bytes, Sequence[bytes]]
FromNode = tuple[str, Relay]
Sender = tuple[str, str | None]  # which node passes it on, for which principal
OWN: Final = ""  # this node's clients: their port has given them their shares


class Intake:
    """What waits to be looked at, taken out in turns: clients' own, and what each node passes on.

    `payers`: who has sent requests to this node, over whatever way.
    """

    def __init__(self, payers: Shares) -> None:
        self._clients: deque[FromClient] = deque()
        self._nodes: dict[Sender, deque[Relay]] = {}  # none empty; the next in turn is the first
        self._nodes_count = self._nodes_bytes = 0
        self._of, self._bytes_of = Counter[str](), Counter[str]()  # of these, by principal
        self._nodes_turn = False
        self._payers, self._rests = payers, Rests[Sender]()
        self._shares = Shares(PAYER_SHARE)
        self._share = 0
        self._taken: dict[Sender, int] = {}  # of each sender's in this turn

    def __bool__(self) -> bool:
        return bool(self._clients or self._nodes)

    @property
    def is_due(self) -> bool:
        """True when something may be taken in the next turn, whenever that is."""
        return bool(self._clients) or any(sender not in self._rests for sender in self._nodes)

    def next_deadline(self) -> float:
        """Return when a rest ends; infinity: nobody rests."""
        return self._rests.next_end

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
        if (principal := relay.principal) is not None:
            own_bytes = self._bytes_of[principal] + size_bytes
            if self._of[principal] >= places_of_one(RELAYS_WAITING_MAX):
                return False
            if own_bytes > places_of_one(RELAYS_WAITING_BYTES_MAX):
                return False
            self._of[principal] += 1
            self._bytes_of[principal] = own_bytes
            self._payers.note(principal, now)
        self._shares.note(name, now)
        self._nodes.setdefault((name, relay.principal), deque()).append(relay)
        self._nodes_count += 1
        self._nodes_bytes += size_bytes
        return True

    def begin_turn(self, now: float) -> None:
        """Let everybody have his share again who does not rest."""
        self._rests.end(now)
        self._share = self._shares.share(now, RELAYS_WAITING_MAX)
        self._taken.clear()

    def end_turn(self, turn_s: float, now: float, answered: Mapping[Sender, int]) -> None:
        """Let those rest who had all of their share of a turn that took `turn_s`.

        `answered`: how many bytes each was answered in it.
        """
        if self._payers.is_contended(now):
            weights = Counter(self._taken)
            for sender, size_bytes in answered.items():
                weights[sender] += size_bytes // WEIGHT_ANSWER_BYTES
            for sender, weight_of_all in weights.items():
                if sender[1] is not None and weight_of_all >= PAYER_SHARE:
                    self._rests.spent(sender, weight_of_all)
        self._taken.clear()
        self._rests.begin(turn_s, now)

    def take(self) -> FromClient | FromNode | None:
        """Return the next one; None if there is none, or all have had their share."""
        self._nodes_turn = not self._nodes_turn
        if self._nodes_turn or not self._clients:
            relayed = self._take_relay()
            if relayed is not None:
                return relayed
        return self._clients.popleft() if self._clients else None

    def _take_relay(self) -> FromNode | None:
        taken, rests = self._taken, self._rests
        sender = next(
            (
                each
                for each in self._nodes
                if taken.get(each, 0) < self._share and each not in rests
            ),
            None,
        )
        if sender is None:
            return None
        queue = self._nodes.pop(sender)
        relay = queue.popleft()
        taken[sender] = taken.get(sender, 0) + weight(relay.frames)
        if queue:
            self._nodes[sender] = queue
        size_bytes = sum(map(len, relay.frames))
        self._nodes_count -= 1
        self._nodes_bytes -= size_bytes
        if (principal := relay.principal) is not None:
            self._of[principal] -= 1
            self._bytes_of[principal] -= size_bytes
            if not self._of[principal]:
                del self._of[principal], self._bytes_of[principal]
        return sender[0], relay
