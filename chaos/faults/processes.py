"""Faults of processes: killed, stopped in order, standing still. Disks and networks stay whole.

What must not live here: who is hit (whom.py), and how a process is hit (chaos/targets).
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from chaos.faults.whom import Whom, everyone, in_any_order, leader
from chaos.targets import Breakable, Pauses, Rolls


@dataclass(frozen=True)
class Kill:
    """Nodes that end without a word; clients go on writing, and what is on the disks is all."""

    name: str
    about: str
    choose: Whom
    needs: tuple[type, ...] = ()

    def inject(self, target: Breakable, nodes: list[str], rng: random.Random) -> None:
        """SIGKILL, with nothing waited for in between."""
        target.kill(nodes)

    def heal(self, target: Breakable, nodes: list[str]) -> None:
        """Start them from their disks."""
        target.start(nodes)


@dataclass(frozen=True)
class PauseNodes:
    """Nodes that stand still longer than an election, and go on as if nothing had happened."""

    name: str
    about: str
    choose: Whom
    needs: tuple[type, ...] = (Pauses,)

    def inject(self, target: Breakable, nodes: list[str], rng: random.Random) -> None:
        """SIGSTOP."""
        assert isinstance(target, Pauses), target.name
        target.pause(nodes)

    def heal(self, target: Breakable, nodes: list[str]) -> None:
        """SIGCONT."""
        assert isinstance(target, Pauses), target.name
        target.resume(nodes)


class RestartAll:
    """See `about`."""

    name = "restart-all"
    about = "Every node ends at once and is started at once, into whatever else is broken."
    needs: tuple[type, ...] = ()

    def choose(self, target: Breakable, rng: random.Random) -> list[str]:
        """Return every node."""
        return everyone(target, rng)

    def inject(self, target: Breakable, nodes: list[str], rng: random.Random) -> None:
        """SIGKILL all of them; then start them."""
        target.kill(nodes)
        target.start(nodes)

    def heal(self, target: Breakable, nodes: list[str]) -> None:
        """Start who does not run."""
        target.start(nodes)


class RollingRestart:
    """See `about`."""

    name = "rolling-restart"
    about = "An upgrade: every node is ended in order and started again, one after the other."
    needs: tuple[type, ...] = (Rolls,)

    def choose(self, target: Breakable, rng: random.Random) -> list[str]:
        """Return every node, in an order of the rng."""
        return in_any_order(target, rng)

    def inject(self, target: Breakable, nodes: list[str], rng: random.Random) -> None:
        """SIGTERM and start, each when the one before takes part again."""
        assert isinstance(target, Rolls), target.name
        target.roll(nodes)

    def heal(self, target: Breakable, nodes: list[str]) -> None:
        """Start who does not run."""
        target.start(nodes)


class TransferLeadership:
    """See `about`."""

    name = "transfer-leadership"
    about = (
        "A leader that hands over in order: no acknowledged publication, and little time, is lost."
    )
    needs: tuple[type, ...] = ()

    def choose(self, target: Breakable, rng: random.Random) -> list[str]:
        """Return the leader."""
        return leader(target, rng)

    def inject(self, target: Breakable, nodes: list[str], rng: random.Random) -> None:
        """SIGTERM: the leader hands over, answers what is under way, and ends."""
        target.stop(nodes)

    def heal(self, target: Breakable, nodes: list[str]) -> None:
        """Start it again."""
        target.start(nodes)
