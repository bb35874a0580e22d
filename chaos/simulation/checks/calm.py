"""What must hold when nothing is broken, and has not been for a while.

What lives here: how long nothing was disturbed, and what follows: nobody is elected, no connection
ends, every request is answered soon. What must not: what is answered (replies.py).

Most that is left undone heals by a silence, another attempt or another leader, so that no promise
is broken: only the time tells, and only where no fault explains it.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import permutations
from typing import Any, Final

from chaos.simulation.checks.invariants import Invariants
from chaos.simulation.world.node import SimNode
from chaos.simulation.world.world import World
from cluster.raft.ready import Timing

CALM_S: Final = 3.0  # behind the last fault: a leader is there, and what was late has come
# A longer turn waits for syncs that are slow (seed 202611240033), or for many of them (seed 754: 54
# segments for one entry). Its node says nothing meanwhile, so others may have themselves elected.
TURN_S_MAX: Final = Timing.election_min_s - Timing.heartbeat_s
LOOK_S: Final = 0.05  # between looks at what is broken
# What happens to a node that takes the others' time, whoever has brought it about.
DISTURBING: Final = frozenset({"fault", "ended", "recover", "snapshot_installed", "readmitted"})
# Of a connection, or of who wants one: none of these happens by itself.
BREAKS: Final = frozenset({"peer_disconnected", "peer_refusedby", "peer_dialfailed", "peer_unfit"})


class Calm:
    """Watches how long nothing was broken; tells `invariants` of what happens in calm.

    `disturbed_s`: when something was broken last. `clogged_until_s`: until when something may be on
    its way that a clog has held up, also if it is healed.
    """

    def __init__(self, world: World, invariants: Invariants) -> None:
        self.disturbed_s = 0.0
        self._world, self._invariants = world, invariants
        self._next_s = self.clogged_until_s = 0.0
        world.observers.append(self._observe)
        world.watchers.append(self._turned)
        world.lost_ways.append(self._lost)

    def is_calm(self) -> bool:
        """Return whether nothing is broken, and has not been for a while."""
        return self._world.now >= self.disturbed_s + CALM_S

    def _observe(self, kind: str, fields: Mapping[str, Any]) -> None:
        if kind in DISTURBING:
            self.disturbed_s = self._world.now
            if fields.get("name") == "clog":  # what is on its way stays there, also if it is healed
                until_s = self._world.now + fields["args"]["seconds"]
                self.clogged_until_s = max(until_s, self.clogged_until_s)
        elif kind == "role" and self.is_calm():
            self._fail(f"{fields['node']} is {fields['role']} of {fields['term']} now")
        elif kind in BREAKS and self.is_calm():
            said = {name: value for name, value in fields.items() if name != "node"}
            self._fail(f"{fields['node']} says {kind}: {said}")

    def _turned(self, node: SimNode) -> None:
        if self._world.now >= self._next_s:
            self._next_s = self._world.now + LOOK_S
            if self._is_disturbed():
                self.disturbed_s = self._world.now

    def _lost(self, route: str, vanished: bool) -> None:
        # Who has nothing to say to a node may hear only now that its machine was off long ago.
        if self.is_calm() and not vanished:
            self._fail(f"the connection {route} of a client was closed")

    def _is_disturbed(self) -> bool:
        world, net = self._world, self._world.net
        if net.cut or world.doubles or net.conditions.loss or net.conditions.late:
            return True
        self.clogged_until_s = max([self.clogged_until_s, *net.clogged.values()])
        if world.now < self.clogged_until_s:
            return True
        names = [*world.nodes]
        if not all(net.connected(one, other) for one, other in permutations(names, 2)):
            return True  # who was refused, or unreachable, tries again in steps that grow
        return not all(
            node.takes_part
            and not node.paused
            and not node.slow_sync_ms
            and node.in_turn_until_s <= world.now + TURN_S_MAX
            and not node.disk.full
            and node.clock_rate == 1.0
            for node in world.nodes.values()
        )

    def _fail(self, text: str) -> None:
        self._invariants.fail("calm", f"{text}, and nothing is broken")
