"""What a node has from its start to its end, while it joins and as a member.

What lives here: the settings of a replica and what its parts share. What must not: what either
kind of node does with it (joining.py, member.py).
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Final, NoReturn

from cluster.log.files import DISK, Files, exit_process
from cluster.members.about import Value
from cluster.members.catchup import SnapshotFetch, Worker
from cluster.members.handshake import Reports
from cluster.members.neighbours import Neighbours
from cluster.members.peers import Peers
from cluster.members.standing import Seniority
from cluster.node.scrub import ScrubPace
from cluster.raft.ready import Timing
from cluster.serve.broker import BrokerLimits, Traced
from cluster.serve.frontend import Frontend
from cluster.serve.quotas import Quotas
from cluster.settings.config import RaftSettings
from cluster.wire.levels import BUILD, Build
from cluster.wire.messages import Hello

LogEvent = Callable[..., None]
WRITES_OF_A_PUT: Final = 3  # of its bytes: the journal, the store's WAL, the store's file


@dataclass(frozen=True)
class DiskRoom:
    """What a node's disk has room for.

    `is_low`: too little for publications. `spare_bytes`: how much fits before the reserve of the
    journal and of the garbage collection is touched; what the next checkpoint needs is taken off.
    """

    is_low: bool = False
    spare_bytes: int = sys.maxsize  # until it was looked at


@dataclass(frozen=True)
class ReplicaSettings:
    """What a replica needs to know of its configuration. `members` includes `name`.

    `build`: the program that runs. `scrub`: how fast what is on the disk is read back.
    `takeover_s`: how long a member has to be silent before another incarnation is admitted.
    `admins`: principals who may administrate, whatever the log says of them. `quotas`: what one
    principal may have. `announced`: the settings that should be the same on all nodes, which are
    told to the peers, and `http`, where its page is, "" for none. `in_force`: all settings with
    where each comes from, for whoever asks. `wall_ms`: the time of day, for people. `files` and
    `on_journal_failure`: the disk under journal and identity, and how its failure ends the node; a
    simulator has others.
    """

    cluster_id: str
    name: str
    members: tuple[str, ...]
    data_dir: Path
    timing: Timing
    broker_limits: BrokerLimits
    uncommitted_entries_max: int
    relays_max: int
    segment_bytes: int
    keep_bytes: int
    build: Build = BUILD
    scrub: ScrubPace = field(default_factory=ScrubPace)
    takeover_s: float = RaftSettings.takeover_ms / 1000
    admins: frozenset[str] = frozenset()
    traced: Traced | None = None
    quotas: Quotas = field(default_factory=Quotas)
    announced: Mapping[str, Value] = field(default_factory=dict)
    in_force: Mapping[str, Any] = field(default_factory=dict)
    http: str = ""
    wall_ms: Callable[[], int] = lambda: 0
    files: Files = DISK
    on_journal_failure: Callable[[Exception], NoReturn] = exit_process

    @cached_property
    def others(self) -> list[str]:
        """The other members' names."""
        return [name for name in self.members if name != self.name]

    @property
    def majority(self) -> int:
        """How many members make a majority."""
        return len(self.members) // 2 + 1

    @property
    def database(self) -> Path:
        """The store's file."""
        return self.data_dir / "store" / "store.db"

    @property
    def journal_dir(self) -> Path:
        """The journal's directory."""
        return self.data_dir / "journal"


@dataclass(frozen=True)
class NodeContext:
    """What a node's parts share. `Replica` makes it, and says what its constructor was given.

    `fetch`: the copy that is pulled from another member, by who joins and by a member that is too
    far behind.
    """

    settings: ReplicaSettings
    peers: Peers
    worker: Worker
    rng: random.Random
    new_client_id: Callable[[], str]
    log: LogEvent
    clock: Callable[[], float]
    frontend: Frontend
    neighbours: Neighbours
    seniority: Seniority
    fetch: SnapshotFetch
    reports: Reports

    def hellos(self) -> dict[str, Hello | None]:
        """Return what each other member said on its present connection, None without one."""
        return {name: self.peers.hello_of(name) for name in self.settings.others}
