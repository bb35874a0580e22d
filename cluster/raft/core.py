"""pysyncobj, patched: the only module that knows its private names.

What lives here: the module-level seams where pysyncobj finds our log, serializer, poller and clock,
the private methods that are replaced, and plain names for the private attributes. What must not:
any rule of when to elect, believe or send (raft.py, transport.py).

It calls nobody outside of this package: what it sends and what it commits is collected here. It
never unpickles anything: entries are one type byte (0 regular, 1 no-op) and a payload, and the
method that would apply them by `pickle.loads` is replaced by one that hands them out.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any, Final

import pysyncobj.syncobj
from pysyncobj import SyncObj, SyncObjConf
from pysyncobj.config import SERIALIZER_STATE
from pysyncobj.node import Node
from pysyncobj.transport import Transport

from cluster.log.entries import REGULAR, Entry
from cluster.raft.log import Log
from cluster.raft.ready import NEVER_S, Timing

PYSYNCOBJ_VERSION: Final = "0.3.17"

_ATTRIBUTES: Final = (
    "connectedNodes",
    "newAppendEntriesTime",
    "noopIDx",
    "raftCommitIndex",
    "raftCurrentTerm",
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
    "_SyncObj__generateRaftTimeout",
    "_SyncObj__parseChangeClusterRequest",
    "_SyncObj__sendAppendEntries",
    "_checkCommandsToApply",
)
_ROLES: Final = ("follower", "candidate", "leader")  # by pysyncobj's numbers
_LEADER: Final = _ROLES.index("leader")
_SEAMS: Final = (
    "PIPE_NOTIFIER_ENABLED",
    "Serializer",
    "createJournal",
    "createPoller",
    "monotonicTime",
)


class _NullPoller:
    """pysyncobj's own poll would be a second wait in the turn."""

    def poll(self, timeout: float) -> None:
        """Do nothing."""


class _Serializer:
    """Replaces pysyncobj's Serializer: copies go out of band, compaction is the journal's."""

    def __init__(self, *settings: Any) -> None:
        """Take pysyncobj's settings, and need none."""

    def checkSerializing(self) -> tuple[int, None]:  # noqa: N802 (pysyncobj's name)
        return SERIALIZER_STATE.NOT_SERIALIZING, None

    def serialize(self, data: object, index: int) -> None:
        raise AssertionError("pysyncobj's own compaction is switched off")

    def setTransmissionData(self, offer: object) -> bool:  # noqa: N802
        return False  # nothing is installed yet: see Raft.restore


class _SentCollector(Transport):  # type: ignore[misc]  # pysyncobj is untyped
    """Takes what pysyncobj sends, in pysyncobj's form."""

    ready = True

    def __init__(self) -> None:
        super().__init__(None, None, [])
        self.sent: list[tuple[str, dict[str, Any]]] = []

    def send(self, node: Node, message: dict[str, Any]) -> bool:
        self.sent.append((node.id, message))
        return True

    def tryGetReady(self) -> None:  # noqa: N802 (pysyncobj's name)
        """Do nothing: connections are not pysyncobj's."""

    waitReady = destroy = tryGetReady  # noqa: N815


class _RaftMember(Node):  # type: ignore[misc]  # pysyncobj is untyped
    """A member as pysyncobj knows it; there is one object of each, so identity is equality.

    pysyncobj's tables are asked by it a hundred times a turn.
    """

    __eq__ = object.__eq__
    __ne__ = object.__ne__
    __hash__ = object.__hash__


class _StepClock:
    """The time that every core in the process reads: that of the step that is being made.

    What a caller does between steps reads none: `set_reachable`, `is_reachable`, `ask_to_take_over`
    (of Raft `connected`, `disconnected`, `transfer_leadership`).
    """

    now_s: float = 0.0


def _patch_pysyncobj() -> None:
    """Put our parts where pysyncobj looks for its own. Asserts every private name (rule 13)."""
    found = version("pysyncobj")
    assert found == PYSYNCOBJ_VERSION, f"pysyncobj {found} is not the audited {PYSYNCOBJ_VERSION}"
    module = pysyncobj.syncobj
    missing = [name for name in _SEAMS if not hasattr(module, name)]
    missing += [name for name in _METHODS if not hasattr(SyncObj, name)]
    assert not missing, f"pysyncobj has changed: no {missing}"
    module.createJournal = lambda log: log
    module.Serializer = _Serializer
    module.createPoller = lambda kind: _NullPoller()
    module.PIPE_NOTIFIER_ENABLED = False
    module.monotonicTime = lambda: _StepClock.now_s
    # It cries CRITICAL for each harmless duplicate that the log skips.
    logging.getLogger("pysyncobj.syncobj").setLevel(logging.CRITICAL + 1)


_patch_pysyncobj()


class Core(SyncObj):  # type: ignore[misc]  # pysyncobj is untyped
    """pysyncobj's SyncObj with five private methods replaced and its state given names.

    `applied_index`: what the store holds already. What it sends is in `sent`, for the caller to
    take; what a tick finds committed is in `committed`.
    """

    def __init__(
        self,
        name: str,
        others: Sequence[str],
        log: Log,
        applied_index: int,
        timing: Timing,
        rng: random.Random,
        now: float,
    ) -> None:
        self.log, self._rng, self._timing = log, rng, timing
        self._nodes: Final = {other: _RaftMember(other) for other in others}
        self._collector = _SentCollector()
        self.sent: Final = self._collector.sent
        self.committed: Sequence[Entry] = ()
        self.append_due = False
        self.may_rest = False  # what is committed may wait here, unless this node leads
        self.begin(now)
        nodes = list(self._nodes.values())
        super().__init__(_RaftMember(name), nodes, _conf(log, timing), transport=self._collector)
        missing = [name for name in _ATTRIBUTES if not hasattr(self, f"_SyncObj__{name}")]
        assert not missing, f"pysyncobj has changed: no {missing}"
        self.advance(applied_index)

    # --- replaced -----------------------------------------------------------------------------

    def _SyncObj__applyLogEntries(self) -> bool:  # noqa: N802
        """Hand out what is committed and not applied, as much as the log returns at once."""
        if not self.has_to_apply:
            return False
        applied = self._SyncObj__raftLastApplied
        count = self._SyncObj__raftCommitIndex - applied
        self.committed = self.log.entries(applied + 1, count)
        return True

    def _SyncObj__generateRaftTimeout(self) -> float:  # noqa: N802
        return self._rng.uniform(self._timing.election_min_s, self._timing.election_max_s)

    def _SyncObj__parseChangeClusterRequest(self, command: bytes) -> None:  # noqa: N802
        """Members never change through entries."""

    def _checkCommandsToApply(self) -> None:  # noqa: N802
        """Do nothing in a tick: `append` is the only way in, and leaves nothing waiting."""

    def _SyncObj__sendAppendEntries(self) -> None:  # noqa: N802
        # pysyncobj sends after each command and each apply; we send once, at the end of a step.
        self.append_due = True

    # --- driven -------------------------------------------------------------------------------

    def begin(self, now: float) -> None:
        """Set the time of what follows."""
        _StepClock.now_s = now

    def receive(self, name: str, message: dict[str, Any]) -> None:
        """Take a message in pysyncobj's form."""
        self._SyncObj__onMessageReceived(self._nodes[name], message)

    def tick(self) -> None:
        """Hold an election if it is due, commit what a majority has, find what is to be applied."""
        self.doTick(0.0)

    def append(self, payload: bytes) -> None:
        """Append an entry as the leader."""
        self.log.add(REGULAR + payload, self.log.last_index + 1, self._SyncObj__raftCurrentTerm)
        self.append_due = True

    def advance(self, applied_index: int) -> None:
        """Note what the store has applied."""
        self._SyncObj__raftLastApplied = applied_index

    def set_reachable(self, name: str, is_reachable: bool) -> None:
        """Note whether there is a way to a member: with none to any, nobody campaigns."""
        change = self._SyncObj__connectedNodes.add
        if not is_reachable:
            change = self._SyncObj__connectedNodes.discard
        change(self._nodes[name])

    def is_reachable(self, name: str) -> bool:
        """Return whether there is a way to a member."""
        return self._nodes[name] in self._SyncObj__connectedNodes

    def ask_to_take_over(self, name: str = "") -> bool:
        """Ask a follower to campaign ("": the most caught-up); False if it has not all of the log.

        Nor is one asked that can't be reached.
        """
        if name and not self.is_reachable(name):
            return False
        denied: list[bool] = []
        node = self._nodes[name] if name else None
        self.transferLeadership(node, lambda result, reason: denied.append(bool(reason)))
        return denied == [False]

    # --- named --------------------------------------------------------------------------------

    @property
    def term(self) -> int:
        """The current term."""
        term: int = self._SyncObj__raftCurrentTerm
        return term

    @property
    def commit_index(self) -> int:
        """The highest index known to be committed."""
        index: int = self._SyncObj__raftCommitIndex
        return index

    @property
    def applied_index(self) -> int:
        """The highest index that was applied."""
        index: int = self._SyncObj__raftLastApplied
        return index

    @property
    def has_to_apply(self) -> bool:
        """True if something is committed and not applied, and may not rest."""
        if self._SyncObj__raftLastApplied >= self._SyncObj__raftCommitIndex:
            return False
        return not self.may_rest or bool(self._SyncObj__raftState == _LEADER)

    @property
    def settled_index(self) -> int:
        """The highest index that is certainly right here."""
        return max(self.commit_index, self.applied_index)

    def heartbeat_deadline_s(self) -> float:
        """Return when the last round of append_entries will be a heartbeat period ago.

        No property: pysyncobj reads all of those before it has set this.
        """
        return float(self._SyncObj__newAppendEntriesTime)

    def begin_heartbeat(self) -> None:
        """Note that a round of append_entries is sent now."""
        self.append_due = False
        self._SyncObj__newAppendEntriesTime = _StepClock.now_s + self._timing.heartbeat_s

    @property
    def standing(self) -> tuple[int, int, Node | None]:
        """State, term and leader, for nothing but to see that none of them has changed."""
        return self._SyncObj__raftState, self._SyncObj__raftCurrentTerm, self._SyncObj__raftLeader

    @property
    def is_leader(self) -> bool:
        """True if this node believes that it leads."""
        return bool(self._SyncObj__raftState == _LEADER)

    @property
    def is_serving(self) -> bool:
        """True on a leader that has applied the no-op of its own term (rule 12)."""
        if self._SyncObj__raftState != _LEADER:
            return False
        no_op: int | None = self._SyncObj__noopIDx
        return no_op is not None and bool(self._SyncObj__raftLastApplied >= no_op)

    @property
    def role(self) -> str:
        """`follower`, `candidate` or `leader`."""
        return _ROLES[self._SyncObj__raftState]

    @property
    def leader(self) -> str:
        """The last known leader's name, "" if none."""
        node = self._SyncObj__raftLeader
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

    def forget_transfer(self) -> None:
        """Take no leader's wish for one that still stands.

        While it does pysyncobj puts no election off, whatever it hears of a leader.
        """
        self._SyncObj__transferInProgress = False

    @property
    def election_deadline_s(self) -> float:
        """When a follower campaigns; strictly before now, it does so in the next tick."""
        return float(self._SyncObj__raftElectionDeadline)

    @election_deadline_s.setter
    def election_deadline_s(self, value: float) -> None:
        self._SyncObj__raftElectionDeadline = value

    def match_index(self, name: str) -> int:
        """Return what a member has acknowledged to this leader."""
        return int(self._SyncObj__raftMatchIndex.get(self._nodes[name], 0))

    def next_index(self, name: str) -> int | None:
        """Return the index that a member is sent next, None on a node that has never led."""
        index: int | None = self._SyncObj__raftNextIndex.get(self._nodes[name])
        return index

    def set_next_index(self, name: str, index: int) -> None:
        """Let a member be sent this index next."""
        self._SyncObj__raftNextIndex[self._nodes[name]] = index

    def forget_match(self, name: str) -> None:
        """Let what a member has acknowledged count no more."""
        if self._nodes[name] in self._SyncObj__raftMatchIndex:
            self._SyncObj__raftMatchIndex[self._nodes[name]] = 0


def _conf(log: Log, timing: Timing) -> SyncObjConf:
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
        logCompactionMinEntries=2**62,
        logCompactionMinTime=NEVER_S,
        journalFile=log,
        fullDumpFile=None,
    )
