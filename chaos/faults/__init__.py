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
    FarBehind,
    FsyncError,
    FullDisk,
    PowerCut,
    Readmission,
    SlowFsync,
    Wipe,
)
from chaos.faults.networks import BadLinks, Partition, Unplug
from chaos.faults.processes import Kill, PauseNodes, RestartAll, RollingRestart, TransferLeadership
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
    cluster on which `inject` did nothing or stopped half-way. What is random comes from the rng.
    """

    @property
    def name(self) -> str:
        """What experiments and histories call it."""
        ...

    @property
    def about(self) -> str:
        """What happens, in one sentence."""
        ...

    @property
    def needs(self) -> tuple[type, ...]:
        """What the target must be able to do (Protocols of chaos/targets), besides being one."""
        ...

    def choose(self, target: Breakable, rng: random.Random, /) -> list[str]:
        """Return the nodes that this window will hit; nothing happens to them yet."""
        ...

    def inject(self, target: Breakable, nodes: list[str], rng: random.Random) -> None:
        """Do it to `nodes`."""
        ...

    def heal(self, target: Breakable, nodes: list[str]) -> None:
        """Undo it."""
        ...


FAULTS: Final[Mapping[str, Fault]] = {
    fault.name: fault
    for fault in (
        Kill(
            "kill-leader",
            "The leader ends without a word; what is on its disk is all it has afterwards.",
            leader,
        ),
        Kill("kill-follower", "A follower ends without a word.", follower),
        Kill(
            "kill-minority",
            "As many nodes end at once as may be missing: service goes on.",
            minority,
        ),
        Kill(
            "kill-majority",
            "Too many nodes end at once: nobody may acknowledge anything.",
            majority,
        ),
        Kill(
            "kill-all",
            "Every node ends at once, and clients go on writing: the disks are all there is.",
            everyone,
        ),
        PauseNodes(
            "pause-leader",
            "The leader stands still longer than an election, and goes on as if it still led.",
            leader,
        ),
        PauseNodes(
            "pause-follower", "A follower stands still, and goes on with old messages.", follower
        ),
        RestartAll(),
        RollingRestart(),
        TransferLeadership(),
        Partition(
            "isolate-leader",
            "The leader is cut off from the other nodes; its clients are with it.",
            leader,
            networks.around,
        ),
        Partition(
            "isolate-follower",
            "A follower is cut off from the other nodes; it must not depose the leader.",
            follower,
            networks.around,
        ),
        Partition(
            "split-halves",
            "The smaller half of the nodes and the larger one do not hear each other.",
            networks.half,
            networks.around,
        ),
        Partition(
            "majorities-ring",
            "Each node hears just a majority, no two the same (of three nodes: the bridge).",
            in_any_order,
            networks.ringed,
        ),
        Partition(
            "bridge",
            "Two halves do not hear each other; one node hears both.",
            in_any_order,
            networks.bridged,
        ),
        Partition(
            "one-way",
            "The leader sends and is not heard, or all others do: then it hears nobody.",
            networks.one_way_victims,
            networks.muted,
        ),
        Partition(
            "clients-from-leader",
            "Clients do not reach the leader, nodes do: the others pass requests on.",
            leader,
            networks.from_clients,
        ),
        Unplug("unplug-leader", "The leader has no network at all, and knows it.", leader),
        Unplug("unplug-follower", "A follower has no network at all, and knows it.", follower),
        BadLinks(
            "slow-links",
            "Packets are late by 20 to 150 ms, and a quarter more or less, in order.",
            one_or_all,
            networks.slow,
        ),
        BadLinks(
            "lossy-links", "2 to 25 in a hundred packets are lost.", one_or_all, networks.lossy
        ),
        BadLinks(
            "duplicating-links",
            "10 to 60 in a hundred packets arrive twice.",
            one_or_all,
            networks.duplicating,
        ),
        BadLinks(
            "reordering-links",
            "Packets are late by 10 to 40 ms; 10 to 50 in a hundred overtake them.",
            one_or_all,
            networks.reordering,
        ),
        BadLinks(
            "clogged-links",
            "The links of a node take everything, and deliver it when nobody waits any more.",
            anyone,
            networks.clogged,
        ),
        PowerCut(
            "power-loss",
            "One machine or all go dark: what was not synced is gone, the last of it torn.",
            one_or_all,
        ),
        Damage(
            "bit-flip",
            "A bit flips that was durable: the node must notice, and be brought up anew.",
            "flip",
        ),
        Damage(
            "truncate",
            "An older file of the journal is cut short: the node must notice, as above.",
            "cut",
        ),
        FullDisk(),
        SlowFsync(),
        FsyncError(),
        Wipe(),
        FarBehind(),
        Readmission(),
        ClockStep(),
    )
}
