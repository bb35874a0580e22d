"""How fresh a node is when it answers (rules 12 and 28 of docs/raft.md).

What lives here: each success held against what had been acknowledged to anybody when its request
left. What must not: what an answer says (promises.py): here a read that is too old is one, even if
nothing that it shows has changed since.
"""

from __future__ import annotations

from collections.abc import Sequence

from chaos.simulation.checks.headers import header_of
from chaos.simulation.checks.invariants import Invariants
from chaos.simulation.world.world import World
from flotilla_client.protocol import ACK


class ReadChecks:
    """Watches the answers of a world's nodes; tells `invariants` of those that are too old."""

    def __init__(self, world: World, invariants: Invariants) -> None:
        self._world, self._invariants = world, invariants
        self._acknowledged_index = 0
        self._floors: dict[str, int] = {}  # request_id -> the same, when it was sent
        world.reply_taps.append(self._answered)

    def acknowledged(self, index: int) -> None:
        """Take note that a client knows of the entry at `index`."""
        self._acknowledged_index = max(index, self._acknowledged_index)

    def asked(self, request_id: str) -> None:
        """Take note that a request leaves its client now."""
        self._floors[request_id] = self._acknowledged_index

    def _answered(self, node: str, route: str, frames: Sequence[bytes]) -> None:
        """Judge the leader's own answers; of one that it relays, a follower knows nothing.

        The client reads the whole of it when it comes; here the header is enough.
        """
        header = header_of(frames)
        if header["leader"] != node:
            return
        request_id = header["request_id"]
        floor = self._floors.pop(request_id, 0)
        member = self._world.nodes[node].as_member
        if member is None or header["type"] != ACK:
            return
        if member.store.applied_index < floor:
            text = f"{node} answers {request_id} at {member.store.applied_index}"
            self._invariants.fail("stale_read", f"{text}, {floor} was acknowledged before")
