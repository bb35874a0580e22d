"""What nodes tell each other, held against their disks when it arrives (rule 7 of docs/raft.md).

What lives here: the claims in messages: "I have everything up to here", "I am in this term". What
must not: claims to clients (promises.py), what nodes do in a turn (invariants.py).

An acknowledgment that lies is damage long before a publication is lost by it: that takes one more
crash, at the right node and moment.
"""

from __future__ import annotations

from typing import Any, Final

from chaos.simulation.durable import DurableLog
from chaos.simulation.invariants import Invariants
from chaos.simulation.node import SimNode
from chaos.simulation.operator import DAMAGES
from chaos.simulation.world import World
from cluster.messages import Message, NextIndex, RequestVote, Vote


class Claims:
    """Watches the messages of a world; tells `invariants` of those that are not true."""

    def __init__(self, world: World, invariants: Invariants) -> None:
        self._world, self._invariants = world, invariants
        world.net.taps.append(self._hear)

    def _hear(self, source: str, message: Message) -> None:
        node, judge = self._world.nodes[source], _JUDGES.get(type(message))
        if judge is not None and DAMAGES.isdisjoint(node.disk_faults):
            judge(self, node, message)

    def _acknowledged(self, node: SimNode, message: NextIndex) -> None:
        index = message.next_index - 1
        if not message.success or (node.up and node.durable_index >= index):
            return
        log = DurableLog(node.disk)
        last_index = max(log.terms, default=0)
        # In a later term it may have been told to drop what it has acknowledged in this one.
        if log.term == message.term and last_index < index:
            text = f"{node.name} acknowledges up to {index}, on its disk are {last_index}"
            self._invariants.fail("durable", text)

    def _in_term(self, node: SimNode, message: Vote | RequestVote) -> None:
        if node.up and node.disk.is_synced:
            return
        log = DurableLog(node.disk)
        if log.terms and log.term < message.term:
            text = f"{node.name} votes in term {message.term}, on its disk is {log.term}"
            self._invariants.fail("hard_state", text)


_JUDGES: Final[dict[type, Any]] = {
    NextIndex: Claims._acknowledged,
    Vote: Claims._in_term,
    RequestVote: Claims._in_term,
}
