"""SIGKILL of every node at once: what is on the disks is all there is. Nothing else lives here."""

from __future__ import annotations

import random

from chaos.targets import Target


class KillAll:
    """Kill all nodes at once, start all at once, with clients writing all the while."""

    name = "kill-all"

    def choose(self, target: Target, dice: random.Random) -> list[str]:
        """Return every node."""
        return list(target.nodes)

    def inject(self, target: Target, nodes: list[str]) -> None:
        """Kill them, with nothing waited for in between."""
        target.kill(nodes)

    def heal(self, target: Target, nodes: list[str]) -> None:
        """Start them all from their disks."""
        target.start(nodes)
