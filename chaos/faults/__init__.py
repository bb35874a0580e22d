"""What can be done to a cluster: one small file a fault, behind one Protocol.

What lives here: the Fault Protocol and the table of faults by name. What must not: when a fault is
done, recording it, or making sure that it is healed; the runner does these for every fault alike.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Final, Protocol

from chaos.faults.kill_all import KillAll
from chaos.faults.kill_leader import KillLeader
from chaos.targets import Target


class Fault(Protocol):
    """A fault without state: `choose` says whom, `inject` does it, `heal` undoes it.

    `heal` is called with the same nodes whatever became of `inject`, so it must do no harm to a
    cluster on which `inject` did nothing or stopped half-way.
    """

    name: str

    def choose(self, target: Target, dice: random.Random) -> list[str]:
        """Return the nodes that this window will hit; nothing happens to them yet."""
        ...

    def inject(self, target: Target, nodes: list[str]) -> None:
        """Do it to `nodes`."""
        ...

    def heal(self, target: Target, nodes: list[str]) -> None:
        """Undo it."""
        ...


FAULTS: Final[Mapping[str, Fault]] = {fault.name: fault for fault in (KillLeader(), KillAll())}
