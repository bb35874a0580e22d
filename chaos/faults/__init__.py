"""What can be done to a cluster: small classes behind one Protocol, by name.

What lives here: the Fault Protocol and the table of faults. What must not: which target can do
which (support.py), when a fault is done, recording it, or making sure that it is healed; the runner
does these for every fault alike. Faults of clients are the runner's too: no target has them.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Final, Protocol

from chaos.faults import networks
from chaos.faults.disks import (
    ClockStep,
    Damage,
    DiskFull,
    FarBehind,
    FsyncError,
    PowerLoss,
    Readmission,
    SlowFsync,
    Wipe,
)
from chaos.faults.networks import BadLinks, Partition
from chaos.faults.processes import Kill, Pause, RollingRestart, TransferLeadership
from chaos.faults.whom import (
    anyone,
    everyone,
    follower,
    in_any_order,
    leader,
    majority,
    minority,
    one_or_all,
)
from chaos.targets import Breakable


class Fault(Protocol):
    """A fault without state: `choose` says whom, `inject` does it, `heal` undoes it.

    `heal` is called with the same nodes whatever became of `inject`, so it must do no harm to a
    cluster on which `inject` did nothing or stopped half-way. What is random comes from the dice.
    """

    @property
    def name(self) -> str:
        """What experiments and histories call it."""
        ...

    @property
    def needs(self) -> tuple[type, ...]:
        """What the target must be able to do (Protocols of chaos/targets), besides being one."""
        ...

    def choose(self, target: Breakable, dice: random.Random, /) -> list[str]:
        """Return the nodes that this window will hit; nothing happens to them yet."""
        ...

    def inject(self, target: Breakable, nodes: list[str], dice: random.Random) -> None:
        """Do it to `nodes`."""
        ...

    def heal(self, target: Breakable, nodes: list[str]) -> None:
        """Undo it."""
        ...


FAULTS: Final[Mapping[str, Fault]] = {
    fault.name: fault
    for fault in (
        Kill("kill-leader", leader),
        Kill("kill-follower", follower),
        Kill("kill-minority", minority),
        Kill("kill-majority", majority),
        Kill("kill-all", everyone),
        Pause("pause-leader", leader),
        Pause("pause-follower", follower),
        RollingRestart(),
        TransferLeadership(),
        Partition("isolate-leader", leader, networks.around),
        Partition("isolate-follower", follower, networks.around),
        Partition("split-halves", networks.half, networks.around),
        Partition("majorities-ring", in_any_order, networks.ringed),
        Partition("bridge", in_any_order, networks.bridged),
        Partition("one-way", networks.one_way_victims, networks.muted),
        Partition("clients-from-leader", leader, networks.from_clients),
        BadLinks("slow-links", one_or_all, networks.slow),
        BadLinks("lossy-links", one_or_all, networks.lossy),
        BadLinks("duplicating-links", one_or_all, networks.duplicating),
        BadLinks("reordering-links", one_or_all, networks.reordering),
        BadLinks("clogged-links", anyone, networks.clogged),
        PowerLoss("power-loss", one_or_all),
        Damage("bit-flip", "flip"),
        Damage("truncate", "cut"),
        DiskFull(),
        SlowFsync(),
        FsyncError(),
        Wipe(),
        FarBehind(),
        Readmission(),
        ClockStep(),
    )
}
