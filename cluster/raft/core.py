"""pysyncobj, seated: the only module that knows its private names.

What lives here: the module-level seams where pysyncobj finds our journal, serializer, poller and
clock, the private methods that are replaced, and plain names for the private attributes. What must
not: any rule of when to elect, believe or send (raft.py, transport.py).

The core never unpickles anything: entries are one type byte (0 regular, 1 no-op) and a payload,
and the method that would call `pickle.loads` is replaced by ours.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final, Protocol

import pysyncobj.syncobj
from pysyncobj import SyncObj, SyncObjConf
from pysyncobj.config import SERIALIZER_STATE
from pysyncobj.node import Node

from cluster.log.journal import Journal
from cluster.raft.transport import RaftTransport

PYSYNCOBJ_VERSION: Final = "0.3.17"
REGULAR: Final = b"\0"  # the type byte of an entry with a payload
NO_OP: Final = b"\1"  # the type byte of the entry that a new leader begins with
NEVER_S: Final = 1e15
FIRST_INDEX: Final = 1  # the entry that every log begins with; it has no payload
# Over the largest entry, so that the core never cuts an entry into `transmission` pieces
# (they carry no number: two lost pieces are silent corruption).
APPEND_BYTES_MAX: Final = 4 * 1024 * 1024

_ATTRIBUTES: Final = (
    "connectedNodes",
    "newAppendEntriesTime",
    "noopIDx",
    "raftCurrentTerm",
    "raftCommitIndex",
    "raftElectionDeadline",
    "raftLastApplied",
    "raftLeader",
    "raftMatchIndex",
    "raftNextIndex",
    "raftState",
    "transferInProgress",
)
_METHODS: Final = (
    "_SyncObj__applyLogEntries",
    "_SyncObj__doApplyCommand",
    "_SyncObj__generateRaftTimeout",
    "_SyncObj__getEntries",
    "_SyncObj__parseChangeClusterRequest",
    "_SyncObj__sendAppendEntries",
    "_applyCommand",
    "_checkCommandsToApply",
    "_getLeader",
)
_ROLES: Final = ("follower", "candidate", "leader")  # by the core's numbers
_LEADER: Final = _ROLES.index("leader")
_SEAMS: Final = (
    "PIPE_NOTIFIER_ENABLED",
    "Serializer",
    "createJournal",
    "createPoller",
    "monotonicTime",
)


@dataclass(frozen=True)
class Timing:
    """Raft's time-outs in seconds. Invariant: election_min > 3 heartbeats, fallback > heartbeat."""

    election_min_s: float = 0.3
    election_max_s: float = 0.6
    heartbeat_s: float = 0.08
    fallback_s: float = 1.0


class Offers(Protocol):
    """What the core's snapshot calls end in (rules 24 and 25); raft.py implements it."""

    def position(self) -> tuple[int, int]:
        """Return the store's applied (index, term)."""

    def install_offered(self) -> bool:
        """Return True if a verified, newer snapshot has just replaced the store."""


class _NullPoller:
    """The core's own poll would be a second wait in the turn."""

    def poll(self, timeout: float) -> None:
        """Do nothing."""


class _Serializer:
    """Replaces pysyncobj's Serializer: snapshots go out of band, compaction is the journal's."""

    def __init__(self, file: str, batch: int, fork: bool, offers: Offers, *rest: Any) -> None:
        self._offers = offers

    def checkSerializing(self) -> tuple[int, None]:  # noqa: N802 (pysyncobj's name)
        return SERIALIZER_STATE.NOT_SERIALIZING, None

    def serialize(self, data: object, index: int) -> None:
        raise AssertionError("the core's own compaction is switched off")

    def deserialize(self) -> tuple[None, tuple[bytes, int, int], tuple[bytes, int, int], None]:
        # Journal.clear() decides by the second entry alone and never stores these commands.
        index, term = self._offers.position()
        return None, (NO_OP, index, term), (NO_OP, index - 1, term), None

    def getTransmissionData(self, node: object) -> tuple[bytes, bool, bool]:  # noqa: N802
        return b"", True, True  # an offer, never None: None would make the core spin

    def setTransmissionData(self, offer: object) -> bool:  # noqa: N802
        return self._offers.install_offered()

    def cancelTransmisstion(self, node: object) -> None:  # noqa: N802
        """Do nothing: downloads are the follower's."""


class CoreClock:
    """The time that every core in the process sees; it stands still during a turn."""

    now_s: float = 0.0


def _seat_pysyncobj() -> None:
    """Put our parts where the core looks for its own. Asserts every private name (rule 13)."""
    found = version("pysyncobj")
    assert found == PYSYNCOBJ_VERSION, f"pysyncobj {found} is not the audited {PYSYNCOBJ_VERSION}"
    module = pysyncobj.syncobj
    missing = [name for name in _SEAMS if not hasattr(module, name)]
    missing += [name for name in _METHODS if not hasattr(SyncObj, name)]
    assert not missing, f"pysyncobj has changed: no {missing}"
    module.createJournal = lambda journal: journal
    module.Serializer = _Serializer
    module.createPoller = lambda kind: _NullPoller()
    module.PIPE_NOTIFIER_ENABLED = False
    module.monotonicTime = lambda: CoreClock.now_s
    # It cries CRITICAL for each harmless duplicate that the journal skips.
    logging.getLogger("pysyncobj.syncobj").setLevel(logging.CRITICAL + 1)


_seat_pysyncobj()


class Core(SyncObj):  # type: ignore[misc]  # pysyncobj is untyped
    """pysyncobj's SyncObj with six private methods replaced and its state given names.

    `marker`: a file that exists if the store stands above the first entry. `on_apply(command)`:
    called for each committed entry in order, in a tick until `applied_enough()`. Messages go in and
    out by `transport`.
    """

    def __init__(
        self,
        name: str,
        transport: RaftTransport,
        journal: Journal,
        offers: Offers,
        on_apply: Callable[[bytes], None],
        timing: Timing,
        rng: random.Random,
        marker: Path,
    ) -> None:
        self._rng, self._timing, self._on_apply = rng, timing, on_apply
        self.append_due = False
        self.applied_enough: Callable[[], bool] = _never
        conf = _conf(journal, offers, timing, marker)
        others = list(transport.nodes.values())
        super().__init__(Node(name), others, conf, transport=transport)
        missing = [name for name in _ATTRIBUTES if not hasattr(self, f"_SyncObj__{name}")]
        assert not missing, f"pysyncobj has changed: no {missing}"

    # --- replaced -----------------------------------------------------------------------------

    def _SyncObj__applyLogEntries(self) -> bool:  # noqa: N802
        """Apply committed entries; those that are not reached the next ticks apply."""
        count = self._SyncObj__raftCommitIndex - self._SyncObj__raftLastApplied
        if count <= 0:
            return False
        # The journal returns as many as it likes to read at once.
        for entry in self._SyncObj__getEntries(self._SyncObj__raftLastApplied + 1, count):
            self._SyncObj__doApplyCommand(entry[0])
            self._SyncObj__raftLastApplied += 1
            if self.applied_enough():
                break
        return True

    def _SyncObj__doApplyCommand(self, command: bytes) -> None:  # noqa: N802
        self._on_apply(command)

    def _SyncObj__generateRaftTimeout(self) -> float:  # noqa: N802
        return self._rng.uniform(self._timing.election_min_s, self._timing.election_max_s)

    def _SyncObj__parseChangeClusterRequest(self, command: bytes) -> None:  # noqa: N802
        """Members never change through entries."""

    def _checkCommandsToApply(self) -> None:  # noqa: N802
        """Do nothing in a tick: `append` is the only way in, and leaves nothing waiting."""

    def _SyncObj__sendAppendEntries(self) -> None:  # noqa: N802
        # The core sends after each command and each apply; we send once, at the end of the turn.
        self.append_due = True

    # --- named --------------------------------------------------------------------------------

    def append(self, payload: bytes) -> None:
        """Append an entry as the leader."""
        self._applyCommand(REGULAR + payload, None)
        SyncObj._checkCommandsToApply(self)

    def send_appends(self) -> None:
        """Send one round of append_entries to every connected member."""
        self.append_due = False
        SyncObj._SyncObj__sendAppendEntries(self)

    def heartbeat_deadline_s(self) -> float:
        """Return when the last round of append_entries will be a heartbeat period ago.

        No property: the core reads all of those before it has set this.
        """
        return float(self._SyncObj__newAppendEntriesTime)

    @property
    def standing(self) -> tuple[int, int, Node | None]:
        """State, term and leader, for nothing but to see that none of them has changed."""
        return self._SyncObj__raftState, self._SyncObj__raftCurrentTerm, self._SyncObj__raftLeader

    @property
    def is_leader(self) -> bool:
        """True if this node believes that it leads."""
        return bool(self._SyncObj__raftState == _LEADER)

    @property
    def role(self) -> str:
        """`follower`, `candidate` or `leader`."""
        return _ROLES[self._SyncObj__raftState]

    @property
    def leader(self) -> str:
        """The last known leader's name, "" if none."""
        node = self._getLeader()
        return "" if node is None else str(node.id)

    @property
    def no_op_index(self) -> int | None:
        """The index of the no-op that this node last began to lead with."""
        index: int | None = self._SyncObj__noopIDx
        return index

    @property
    def transfer_in_progress(self) -> bool:
        """True between a leader's wish that this node takes over and its campaign."""
        return bool(self._SyncObj__transferInProgress)

    @property
    def election_deadline_s(self) -> float:
        """When a follower campaigns; strictly before now, it does so in the next tick."""
        return float(self._SyncObj__raftElectionDeadline)

    @election_deadline_s.setter
    def election_deadline_s(self, value: float) -> None:
        self._SyncObj__raftElectionDeadline = value

    @property
    def next_indexes(self) -> dict[Node, int]:
        """On a leader: the index that each member is sent next. Live."""
        table: dict[Node, int] = self._SyncObj__raftNextIndex
        return table

    @property
    def match_indexes(self) -> dict[Node, int]:
        """On a leader: the highest index that each member has acknowledged. Live."""
        table: dict[Node, int] = self._SyncObj__raftMatchIndex
        return table

    @property
    def connected_nodes(self) -> set[Node]:
        """The members that append_entries go to. Live."""
        nodes: set[Node] = self._SyncObj__connectedNodes
        return nodes


def _never() -> bool:
    return False


def _conf(journal: Journal, offers: Offers, timing: Timing, marker: Path) -> SyncObjConf:
    # The core loads a dump at its first tick if this file exists; ours "exists" exactly when the
    # store is past the first entry.
    past_first = offers.position()[0] > FIRST_INDEX
    assert not past_first or marker.exists(), marker
    return SyncObjConf(
        autoTick=False,
        appendEntriesUseBatch=False,
        commandsWaitLeader=False,
        dynamicMembershipChange=False,
        useFork=False,
        raftMinTimeout=timing.election_min_s,
        raftMaxTimeout=timing.election_max_s,
        appendEntriesPeriod=timing.heartbeat_s,
        leaderFallbackTimeout=timing.fallback_s,
        connectionTimeout=timing.election_max_s,
        appendEntriesBatchSizeBytes=APPEND_BYTES_MAX,
        logCompactionMinEntries=2**62,
        logCompactionMinTime=NEVER_S,
        journalFile=journal,
        fullDumpFile=str(marker) if past_first else f"{marker}.none",
        serializer=offers,
        deserializer=offers,
    )
