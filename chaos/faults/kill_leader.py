"""SIGKILL of the leader: the fault that every election must survive. Nothing else lives here."""

from __future__ import annotations

import random
from typing import Final

from chaos.targets import Target, await_leader

LEADER_S_MAX: Final = 15.0  # after the fault before: an election and a slow restart


class KillLeader:
    """Kill the node that STATUS says is leader, start it again at the end of the window."""

    name = "kill-leader"

    def choose(self, target: Target, dice: random.Random) -> list[str]:
        """Return the leader alone. Raises TargetError when none is elected in time."""
        return [await_leader(target, LEADER_S_MAX)]

    def inject(self, target: Target, nodes: list[str]) -> None:
        """Kill it."""
        target.kill(nodes)

    def heal(self, target: Target, nodes: list[str]) -> None:
        """Start it again from its disk."""
        target.start(nodes)
