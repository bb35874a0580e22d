"""The simulator's cluster as faults see it: the same faults, done to a world in virtual time.

What lives here: powers of chaos/targets in terms of the world's actions. What must not: when a
fault is done, and the run around it (simulated.py).

Nothing can be waited for in here: time stands still while an action is done. So where a target of
real processes waits, this one lets things happen later, or leaves out what the promises do not
cover (the world's operator never takes away more than a minority's disks).
"""

from __future__ import annotations

import random
from collections.abc import Collection
from functools import partial
from typing import Any, Final

from chaos.simulation.disks.disk import KEEPS
from chaos.simulation.world.world import World
from chaos.targets import CLIENTS, Link, LinkConditions

ROLL_S: Final = 2.0  # from one node's restart to the next one's: an election and a start
DOWN_S: Final = 0.5  # of a restart
CLOG_S: Final = 3.0  # an arrival is decided when something is sent, so its end has to be known then


class SimulatedCluster:
    """The nodes of a world. Its actions by name are those of World, Operator and Attached."""

    name = "simulated"

    def __init__(self, world: World, clients: Collection[str] = ()) -> None:
        self.nodes = world.plan.members
        self._world, self._clients = world, tuple(clients)
        self._rng = world.stream("leaderless")

    def _act(self, action: str, **arguments: Any) -> None:
        self._world.actions[action](**arguments)

    def leader(self) -> str:
        """Return the leader; any node while there is none, because nobody can wait for one here."""
        return self._world.leader() or self._rng.choice(self.nodes)

    def kill(self, nodes: list[str]) -> None:
        """End these processes."""
        for node in nodes:
            self._act("kill", node=node)

    def start(self, nodes: list[str]) -> None:
        """Start those that do not run; who refuses its disk is emptied and started again."""
        for node in nodes:
            self._act("restart", node=node)

    def stop(self, nodes: list[str]) -> None:
        """Let the leader hand over, if it is one of these. Nobody ends: the rest is `kill`."""
        if self._world.leader() in nodes:
            self._act("transfer")

    def pause(self, nodes: list[str]) -> None:
        """Let these processes stand still."""
        for node in nodes:
            self._act("pause", node=node)

    def resume(self, nodes: list[str]) -> None:
        """Let them go on."""
        for node in nodes:
            self._act("resume", node=node)

    def roll(self, nodes: list[str]) -> None:
        """End and start these nodes, one after the other, from now on."""
        for number, node in enumerate(nodes):
            self._world.after(number * ROLL_S, partial(self.kill, [node]))
            self._world.after(number * ROLL_S + DOWN_S, partial(self.start, [node]))

    # --- disks ------------------------------------------------------------------------------------

    def await_whole(self) -> None:
        """Do nothing: the operator refuses to take away too much."""

    def wipe(self, nodes: list[str]) -> None:
        """End these nodes and empty their disks."""
        for node in nodes:
            self._act("wipe", node=node)

    def flip_bit(self, node: str, rng: random.Random) -> None:
        """End the node and flip a bit that was durable."""
        self._damage(node, "flip")

    def truncate(self, node: str, rng: random.Random) -> None:
        """End the node and cut a file of its journal; the last one gets a flipped bit instead."""
        self._damage(node, "cut")

    def _damage(self, node: str, how: str) -> None:
        self.kill([node])
        self._act("damage", node=node, how=how)

    def rebuild(self, nodes: list[str]) -> None:
        """As `start`."""
        self.start(nodes)

    def await_compaction(self, nodes: list[str]) -> None:
        """Let the others compact their logs now."""
        for node in self.nodes:
            if node not in nodes:
                self._act("compact", node=node)

    def lose_power(self, nodes: list[str], rng: random.Random) -> None:
        """End these machines; what is left of what was not synced is drawn."""
        for node in nodes:
            self._act("power_loss", node=node, keep=rng.choice(sorted(KEEPS)))

    def fill(self, nodes: list[str], free_bytes: int) -> None:
        """Let nothing more fit: this disk knows no other fullness."""
        for node in nodes:
            self._act("disk_full", node=node)

    def free(self, nodes: list[str]) -> None:
        """Make room again."""
        for node in nodes:
            self._act("disk_free", node=node)

    def slow_syncs(self, nodes: list[str], ms: int) -> None:
        """Let each fsync take so much longer."""
        for node in nodes:
            self._act("slow_fsync", node=node, ms=float(ms))

    def fail_syncs(self, nodes: list[str]) -> None:
        """Let the next fsync report EIO."""
        for node in nodes:
            self._act("fsync_error", node=node)

    def mend_syncs(self, nodes: list[str]) -> None:
        """Let fsync work again."""
        for node in nodes:
            self._act("slow_fsync", node=node, ms=0.0)
            self._world.nodes[node].disk.calm()

    # --- links ------------------------------------------------------------------------------------

    def cut(self, links: Collection[Link]) -> None:
        """Let nothing pass over these links."""
        for source, target in self._ends(links):
            self._act("cut_one_way", source=source, target=target)

    def join(self, links: Collection[Link]) -> None:
        """Let it pass again."""
        self._world.net.cut.difference_update(self._ends(links))

    def unplug(self, nodes: list[str]) -> None:
        """Cut all links of these nodes: the world has no other way to be without a network."""
        self.cut(self._links_of(nodes))

    def plug(self, nodes: list[str]) -> None:
        """Join them again."""
        self.join(self._links_of(nodes))

    def _links_of(self, nodes: list[str]) -> list[Link]:
        others = [*self.nodes, CLIENTS]
        ways = [(node, other) for node in nodes for other in others if other != node]
        return ways + [(other, node) for node, other in ways]

    def degrade(self, links: Collection[Link], conditions: LinkConditions) -> None:
        """Clog these links for CLOG_S; other conditions hold everywhere: the world has one set."""
        if conditions.clog:
            for source, target in self._ends(links):
                self._act("clog", source=source, target=target, seconds=CLOG_S)
            return
        self._act(
            "weather",
            loss=conditions.loss,
            delay_ms=conditions.delay_ms or self._world.knob("delay_ms"),
            jitter_ms=conditions.jitter_ms or self._world.knob("jitter_ms"),
            duplicate=conditions.duplicate,
            reorder=conditions.reorder,
        )

    def clear(self, links: Collection[Link]) -> None:
        """Let all be calm; what a clog holds arrives when that was to end."""
        for link in self._ends(links):
            self._world.net.clogged.pop(link, None)
        self._act("weather")

    def _ends(self, links: Collection[Link]) -> list[Link]:
        named = {CLIENTS: self._clients}
        return [
            (source, target)
            for one, other in sorted(links)
            for source in named.get(one, (one,))
            for target in named.get(other, (other,))
        ]
