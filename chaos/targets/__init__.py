"""What a fault can be done to: a cluster of broker nodes, wherever it runs.

What lives here: the Target Protocol, what else a target may be able to do, waiting for a leader.
What must not: how one kind of cluster is run (one file each), or which fault is done when.

Every target kills and starts. What only some can do is a Protocol of its own, found by its methods:
a fault names what it `needs`, and one that a target lacks is refused before the run starts. Whoever
has a power also takes back what it did: twice, or without it ever having been done, is harmless.
"""

from __future__ import annotations

import random
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple, Protocol, runtime_checkable

LEADER_POLL_S: Final = 0.05  # a tenth of an election
CLIENTS: Final = "clients"  # the other end of a link whose one end is no node

Link = tuple[str, str]
"""One direction of a connection: (who sends, who hears). Nodes' names, or CLIENTS."""


class TargetError(Exception):
    """The cluster cannot be brought to do what the experiment asks."""


class UnsupportedFault(TargetError):
    """This target lacks what a fault needs; the text names those that have it."""


class Breakable(Protocol):
    """What every fault may count on. Every method may raise TargetError."""

    name: str
    nodes: tuple[str, ...]

    def leader(self) -> str | None:
        """Return the node that a STATUS now names as leader; None while there is none."""
        ...

    def kill(self, nodes: list[str]) -> None:
        """SIGKILL these nodes, with nothing waited for in between."""
        ...

    def start(self, nodes: list[str]) -> None:
        """Start those of the nodes that do not run, from what is on their disks."""
        ...

    def stop(self, nodes: list[str]) -> None:
        """End those of the nodes that run in order (SIGTERM), one after the other."""
        ...


class Target(Breakable, Protocol):
    """A cluster that faults are injected into. Every method may raise TargetError."""

    def up(self) -> None:
        """Create a fresh cluster, start every node, return when one of them leads."""
        ...

    def endpoints(self) -> dict[str, str]:
        """Return where clients reach each node: {node: "tcp://127.0.0.1:7001"}."""
        ...

    def remains(self, directory: Path) -> dict[str, Remains]:
        """Return where what each node leaves is, copied below `directory` if it is far away.

        For chaos/run/truth.py, when every node was stopped.
        """
        ...

    def ended(self) -> list[str]:
        """Return the nodes that ended though no fault may have ended them, each end once.

        A line each, with what is known of it: "n2 ended by itself (exit code 1)".
        """
        ...

    def down(self) -> None:
        """Heal and stop everything that `up` started; nothing to do when it is down already."""
        ...


# --- what some targets can do besides -------------------------------------------------------------


class Remains(NamedTuple):
    """What a stopped node leaves: its data directory, and its log, one JSON object a line."""

    data: Path
    log: Path


@runtime_checkable
class Equips(Protocol):
    """It has to know before `up` what will be done to it."""

    def equip(self, needs: Collection[type]) -> None:
        """Prepare for these powers. Raises TargetError that says what to install."""
        ...


@runtime_checkable
class Pauses(Protocol):
    """Processes can be stopped without ending them."""

    def pause(self, nodes: list[str]) -> None:
        """Let these nodes' processes stand still."""
        ...

    def resume(self, nodes: list[str]) -> None:
        """Let them go on."""
        ...


@runtime_checkable
class Rolls(Protocol):
    """It knows when a node is back, so that the next one may go."""

    def roll(self, nodes: list[str]) -> None:
        """End in order and start again these nodes, each when the one before takes part again."""
        ...


@runtime_checkable
class Wipes(Protocol):
    """Disks can be emptied. At most a minority may lose its disk at a time: see `await_whole`."""

    def await_whole(self) -> None:
        """Return when every node that lost its disk has it back from the others."""
        ...

    def wipe(self, nodes: list[str]) -> None:
        """Kill these nodes and empty their disks; they stay dead."""
        ...


@runtime_checkable
class Damages(Protocol):
    """Bytes on a disk can be changed behind a node's back."""

    def await_whole(self) -> None:
        """As in Wipes: what is damaged is lost."""
        ...

    def flip_bit(self, node: str, rng: random.Random) -> None:
        """Kill the node and flip a bit in what its journal proves to have been durable."""
        ...

    def truncate(self, node: str, rng: random.Random) -> None:
        """Kill the node and cut off the end of a journal file that is not the last one."""
        ...

    def rebuild(self, nodes: list[str]) -> None:
        """Start these nodes; empty the disk of who refuses what is on it, and start it again.

        Raises TargetError if a damaged node goes on as if nothing was wrong.
        """
        ...


@runtime_checkable
class LosesPower(Protocol):
    """What was written and not synced can be taken back."""

    def lose_power(self, nodes: list[str], rng: random.Random) -> None:
        """Kill these nodes, and undo what they had not synced, or any part of it."""
        ...


@runtime_checkable
class Fills(Protocol):
    """Disks can be filled."""

    def fill(self, nodes: list[str], free_bytes: int) -> None:
        """Leave so little room on the disks of these nodes."""
        ...

    def free(self, nodes: list[str]) -> None:
        """Make room again."""
        ...


@runtime_checkable
class Syncs(Protocol):
    """An fsync can be slow, or fail."""

    def slow_syncs(self, nodes: list[str], ms: int) -> None:
        """Let each fsync of these nodes take so much longer."""
        ...

    def fail_syncs(self, nodes: list[str]) -> None:
        """Let each fsync of these nodes report EIO, and make nothing durable."""
        ...

    def mend_syncs(self, nodes: list[str]) -> None:
        """Let fsync work again. Where it failed, what was not synced is lost, and the node dead."""
        ...


@runtime_checkable
class StepsClocks(Protocol):
    """The wall clock of a node can be set."""

    def step_clocks(self, nodes: list[str], seconds: float) -> None:
        """Set the wall clocks of these nodes so far off the machine's (0: back)."""
        ...


@runtime_checkable
class Compacts(Protocol):
    """Logs are kept short enough that a node can fall behind their beginning."""

    def await_whole(self) -> None:
        """As in Wipes: the others have to be a majority."""
        ...

    def await_compaction(self, nodes: list[str]) -> None:
        """Return when the living nodes' logs begin behind what these dead nodes hold."""
        ...


@runtime_checkable
class Links(Protocol):
    """Messages can be kept from arriving, nobody noticing."""

    def cut(self, links: Collection[Link]) -> None:
        """Let nothing arrive over these links."""
        ...

    def join(self, links: Collection[Link]) -> None:
        """Let it arrive again."""
        ...


@runtime_checkable
class Unplugs(Protocol):
    """A node can be taken off the network, and its own system knows that it is."""

    def unplug(self, nodes: list[str]) -> None:
        """Pull these nodes' cables: nobody reaches them, the clients neither."""
        ...

    def plug(self, nodes: list[str]) -> None:
        """Put them back."""
        ...


@dataclass(frozen=True)
class LinkConditions:
    """What happens to each packet of a link. Shares from 0 to 1; the default is a calm network.

    A packet is late by `delay_ms` and up to `jitter_ms` more or less, in its order; a share
    `reorder` is not held back at all, and so overtakes. `clog`: everything waits until it clears.
    """

    delay_ms: float = 0.0
    jitter_ms: float = 0.0
    loss: float = 0.0
    duplicate: float = 0.0
    reorder: float = 0.0
    clog: bool = False


@runtime_checkable
class DegradesLinks(Protocol):
    """Links can be made slow and unreliable."""

    def degrade(self, links: Collection[Link], conditions: LinkConditions) -> None:
        """Put these conditions on these links, in place of those before."""
        ...

    def clear(self, links: Collection[Link]) -> None:
        """Let these links be calm; what was held back arrives now."""
        ...


POWERS: Final[Mapping[type, str]] = {
    Pauses: "let a process stand still",
    Rolls: "restart nodes one after the other",
    Wipes: "empty a node's disk",
    Damages: "change bytes on a node's disk",
    LosesPower: "take back what a node has written and not synced",
    Fills: "fill a node's disk",
    Syncs: "make an fsync slow, or fail",
    StepsClocks: "set a node's wall clock",
    Compacts: "let a node fall behind the others' logs",
    Links: "cut links between nodes",
    Unplugs: "take a node off the network",
    DegradesLinks: "make links slow or unreliable",
}
"""What each power is, in a user's words: a target can, or it can't …"""


# --- for all targets ------------------------------------------------------------------------------


def await_leader(target: Breakable, seconds_max: float) -> str:
    """Return the leader's name as soon as there is one. Raises TargetError after `seconds_max`."""
    deadline_s = time.monotonic() + seconds_max
    while True:
        leader = target.leader()
        if leader is not None:
            return leader
        if time.monotonic() >= deadline_s:
            raise TargetError(f"{target.name}: no leader within {seconds_max:g} s")
        time.sleep(LEADER_POLL_S)
