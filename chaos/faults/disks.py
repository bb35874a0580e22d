"""Faults of disks and clocks: power, bits, space, fsync, whole disks, a wall clock that jumps.

What must not live here: how bytes are damaged or taken back (chaos/targets).

Without its disk a node counts for nothing until the others have made it a member again. So whoever
takes a disk away waits first until the last one is back: no more than a minority is ever promised.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Final, Literal

from chaos.faults.whom import Whom, anyone, follower, in_any_order
from chaos.targets import (
    Breakable,
    Compacts,
    Damages,
    Fills,
    LosesPower,
    StepsClocks,
    Syncs,
    Wipes,
)

MIB: Final = 2**20
FREE_BYTES: Final = (0, 32 * MIB)  # nothing fits; below what a node keeps free, so it refuses PUTs
SYNC_MS: Final = (10, 300)  # a busy disk's; one that is about to break
STEP_S: Final = (1.0, 86_400.0)


@dataclass(frozen=True)
class PowerCut:
    """Machines that go dark: what was written and not synced is gone, the last of it torn."""

    name: str
    about: str
    choose: Whom
    needs: tuple[type, ...] = (LosesPower,)

    def inject(self, target: Breakable, nodes: list[str], rng: random.Random) -> None:
        """SIGKILL, then undo all or a part of what was not synced."""
        assert isinstance(target, LosesPower), target.name
        target.lose_power(nodes, rng)

    def heal(self, target: Breakable, nodes: list[str]) -> None:
        """Start them from what is left."""
        target.start(nodes)


@dataclass(frozen=True)
class Damage:
    """A disk that changed what a node had proved to be durable: it must notice, and start anew."""

    name: str
    about: str
    how: Literal["flip", "cut"]
    needs: tuple[type, ...] = (Damages,)

    def choose(self, target: Breakable, rng: random.Random) -> list[str]:
        """Return one node, once every disk is whole."""
        assert isinstance(target, Damages), target.name
        target.await_whole()
        return anyone(target, rng)

    def inject(self, target: Breakable, nodes: list[str], rng: random.Random) -> None:
        """SIGKILL; flip a bit of the journal, or cut off the end of one of its older files."""
        assert isinstance(target, Damages), target.name
        for node in nodes:
            (target.flip_bit if self.how == "flip" else target.truncate)(node, rng)

    def heal(self, target: Breakable, nodes: list[str]) -> None:
        """Start it; it refuses, so its disk is emptied and the others bring it up."""
        assert isinstance(target, Damages), target.name
        target.rebuild(nodes)


class FullDisk:
    """See `about`."""

    name = "disk-full"
    about = "A disk with no room, or with too little for publications."
    needs: tuple[type, ...] = (Fills,)

    def choose(self, target: Breakable, rng: random.Random) -> list[str]:
        """Return one node."""
        return anyone(target, rng)

    def inject(self, target: Breakable, nodes: list[str], rng: random.Random) -> None:
        """Leave nothing (the node ends, as it must) or 32 MiB (it refuses publications)."""
        assert isinstance(target, Fills), target.name
        target.fill(nodes, rng.choice(FREE_BYTES))

    def heal(self, target: Breakable, nodes: list[str]) -> None:
        """Make room; start who ended."""
        assert isinstance(target, Fills), target.name
        target.free(nodes)
        target.start(nodes)


class SlowFsync:
    """See `about`."""

    name = "slow-fsync"
    about = "A disk that takes its time: everything that is acknowledged waits for it."
    needs: tuple[type, ...] = (Syncs,)

    def choose(self, target: Breakable, rng: random.Random) -> list[str]:
        """Return one node."""
        return anyone(target, rng)

    def inject(self, target: Breakable, nodes: list[str], rng: random.Random) -> None:
        """Let each fsync take 10 to 300 ms longer."""
        assert isinstance(target, Syncs), target.name
        target.slow_syncs(nodes, rng.randint(*SYNC_MS))

    def heal(self, target: Breakable, nodes: list[str]) -> None:
        """Let it be as fast as the disk."""
        assert isinstance(target, Syncs), target.name
        target.mend_syncs(nodes)


class FsyncError:
    """See `about`."""

    name = "fsync-error"
    about = (
        "A disk that reports EIO: the node must end, and never take a second fsync's word for it."
    )
    needs: tuple[type, ...] = (Syncs,)

    def choose(self, target: Breakable, rng: random.Random) -> list[str]:
        """Return one node."""
        return anyone(target, rng)

    def inject(self, target: Breakable, nodes: list[str], rng: random.Random) -> None:
        """Let each fsync fail, and make nothing durable."""
        assert isinstance(target, Syncs), target.name
        target.fail_syncs(nodes)

    def heal(self, target: Breakable, nodes: list[str]) -> None:
        """Undo what was not synced; start it from the rest."""
        assert isinstance(target, Syncs), target.name
        target.mend_syncs(nodes)
        target.start(nodes)


class Wipe:
    """See `about`."""

    name = "wipe"
    about = (
        "A node that loses its disk: a new member, which must not vote for what it has forgotten."
    )
    needs: tuple[type, ...] = (Wipes,)

    def choose(self, target: Breakable, rng: random.Random) -> list[str]:
        """Return one node, once every disk is whole."""
        assert isinstance(target, Wipes), target.name
        target.await_whole()
        return anyone(target, rng)

    def inject(self, target: Breakable, nodes: list[str], rng: random.Random) -> None:
        """SIGKILL and empty its disk."""
        assert isinstance(target, Wipes), target.name
        target.wipe(nodes)

    def heal(self, target: Breakable, nodes: list[str]) -> None:
        """Start it: it is readmitted, and brought up from the others."""
        target.start(nodes)


class Readmission:
    """See `about`."""

    name = "readmission"
    about = (
        "A membership change in bad times: a wiped node is admitted anew while another one dies."
    )
    needs: tuple[type, ...] = (Wipes,)

    def choose(self, target: Breakable, rng: random.Random) -> list[str]:
        """Return who is wiped, and who is killed; once every disk is whole."""
        assert isinstance(target, Wipes), target.name
        target.await_whole()
        return in_any_order(target, rng)[:2]

    def inject(self, target: Breakable, nodes: list[str], rng: random.Random) -> None:
        """Empty the first one's disk, start it, and SIGKILL the second one at once."""
        assert isinstance(target, Wipes), target.name
        target.wipe(nodes[:1])
        target.start(nodes[:1])
        target.kill(nodes[1:])

    def heal(self, target: Breakable, nodes: list[str]) -> None:
        """Start both; now a majority can admit the first one, if it is not a member yet."""
        target.start(nodes)


class FarBehind:
    """See `about`."""

    name = "far-behind"
    about = (
        "A node that was away so long that the others have dropped what it needs: it takes a copy."
    )
    needs: tuple[type, ...] = (Compacts,)

    def choose(self, target: Breakable, rng: random.Random) -> list[str]:
        """Return a follower, once every disk is whole."""
        assert isinstance(target, Compacts), target.name
        target.await_whole()
        return follower(target, rng)

    def inject(self, target: Breakable, nodes: list[str], rng: random.Random) -> None:
        """SIGKILL, and wait until the others' logs begin behind what it has."""
        assert isinstance(target, Compacts), target.name
        target.kill(nodes)
        target.await_compaction(nodes)

    def heal(self, target: Breakable, nodes: list[str]) -> None:
        """Start it."""
        target.start(nodes)


class ClockStep:
    """See `about`."""

    name = "clock-step"
    about = "A wall clock that jumps, ahead or back: no promise may rest on it."
    needs: tuple[type, ...] = (StepsClocks,)

    def choose(self, target: Breakable, rng: random.Random) -> list[str]:
        """Return one node."""
        return anyone(target, rng)

    def inject(self, target: Breakable, nodes: list[str], rng: random.Random) -> None:
        """Set it a second to a day ahead or back."""
        assert isinstance(target, StepsClocks), target.name
        low, high = STEP_S
        step_s = low * (high / low) ** rng.random()
        target.step_clocks(nodes, rng.choice((step_s, -step_s)))

    def heal(self, target: Breakable, nodes: list[str]) -> None:
        """Set it right."""
        assert isinstance(target, StepsClocks), target.name
        target.step_clocks(nodes, 0.0)
