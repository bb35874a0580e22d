"""What a fault can be done to: a cluster of broker nodes, wherever it runs.

What lives here: the Target Protocol, waiting for a leader, and the table of targets. What must
not: how one kind of cluster is run (one file each), or which fault is done when.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, Protocol

LEADER_POLL_S: Final = 0.05  # a tenth of an election


class TargetError(Exception):
    """The cluster cannot be brought to do what the experiment asks."""


class Target(Protocol):
    """A cluster that faults are injected into. Every method may raise TargetError."""

    name: str
    nodes: tuple[str, ...]

    def up(self) -> None:
        """Create a fresh cluster, start every node, return when one of them leads."""
        ...

    def endpoints(self) -> dict[str, str]:
        """Return where clients reach each node: {node: "tcp://127.0.0.1:7001"}."""
        ...

    def leader(self) -> str | None:
        """Return the node that a STATUS now names as leader; None while there is none."""
        ...

    def kill(self, nodes: list[str]) -> None:
        """SIGKILL these nodes, with nothing waited for in between."""
        ...

    def start(self, nodes: list[str]) -> None:
        """Start those of the nodes that do not run, from what is on their disks."""
        ...

    def down(self) -> None:
        """Stop everything that `up` started; nothing to do when it is down already."""
        ...


def await_leader(
    target: Target, seconds_max: float, monotonic_s: Callable[[], float] = time.monotonic
) -> str:
    """Return the leader's name as soon as there is one. Raises TargetError after `seconds_max`."""
    deadline_s = monotonic_s() + seconds_max
    while True:
        leader = target.leader()
        if leader is not None:
            return leader
        if monotonic_s() >= deadline_s:
            raise TargetError(f"{target.name}: no leader within {seconds_max:g} s")
        time.sleep(LEADER_POLL_S)
