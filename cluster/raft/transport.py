"""pysyncobj's Transport: translates its messages and keeps the message rules that make it safe.

Here live rules 14 to 23 of docs/raft.md: what may be believed on receipt, and what has to be added
or held on sending. Must not live here: sockets (peers.py), bytes (messages.py), the turn's order
(replica.py). Nothing in this module blocks, raises for what a peer sent, or re-enters the core.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

from pysyncobj.node import Node
from pysyncobj.transport import Transport

from cluster.wire.levels import LEVEL_FIRST
from cluster.wire.messages import (
    AppendEntries,
    Entry,
    Message,
    NextIndex,
    RequestVote,
    SnapshotOffer,
    TimeoutNow,
    Vote,
)

# Unacknowledged entries that one follower may have in flight. Below it the leader pipelines; a
# follower that is further behind is fed at the pace of its acknowledgments, so that its backlog
# waits in the journal and not in a socket's buffer.
IN_FLIGHT_BYTES_MAX: Final = 8 * 1024 * 1024
NO_TERM: Final = -1  # a last_log_term below every real one: such a vote request is never granted


class Core(Protocol):
    """What the rules need to know of the core; raft.py implements it."""

    @property
    def term(self) -> int: ...

    @property
    def settled_index(self) -> int:
        """The highest index that is certainly right here: max(commit index, applied index)."""

    @property
    def installed_index(self) -> int:
        """The index of the snapshot that the store was last replaced with."""

    def next_index(self, name: str) -> int | None: ...

    def raise_next_index(self, name: str, index: int) -> None: ...


class RaftTransport(Transport):  # type: ignore[misc]  # pysyncobj is untyped
    """The only way between the core and the other members.

    `members`: the other nodes' names. `heartbeat_s`: at most one reset reply a peer in that time.
    Outgoing messages wait in two places: `appends` may leave just before the turn's fdatasync,
    `held` only after it (rule 7).
    """

    ready = True

    def __init__(
        self, members: Sequence[str], heartbeat_s: float, clock: Callable[[], float]
    ) -> None:
        super().__init__(None, None, [])
        self.nodes: Final = {name: Node(name) for name in members}
        self.core: Core
        self.appends: list[tuple[str, Message]] = []
        self.held: list[tuple[str, Message]] = []
        self.paused: set[str] = set()
        # Rule 30: entries that need a higher level than this one are screened before they count.
        self.level = LEVEL_FIRST
        self.screen: Callable[[Sequence[Entry]], Sequence[Entry]] = _take_all
        self._clock = clock
        self._heartbeat_s = heartbeat_s
        self._proved_index: int | None = None
        self._last_reset_s: dict[str, float] = {}
        self._votes_counted: dict[str, int] = {}
        self._in_flight: dict[str, deque[tuple[int, int]]] = {name: deque() for name in members}
        self._in_flight_bytes = dict.fromkeys(members, 0)

    # --- connection state ---------------------------------------------------------------------

    def connect(self, name: str) -> None:
        """Tell the core that `name` can be reached."""
        self.forget(name)
        self._onNodeConnected(self.nodes[name])

    def disconnect(self, name: str) -> None:
        """Tell the core that `name` is out of reach; what was in flight to it is lost."""
        self.forget(name)
        self._onNodeDisconnected(self.nodes[name])

    def forget(self, name: str) -> None:
        """Forget what was in flight to `name`."""
        self._in_flight[name].clear()
        self._in_flight_bytes[name] = 0
        self.paused.discard(name)

    def resume_paused(self) -> None:
        """Give the core back the peers whose window was full during the last sending."""
        for name in self.paused:
            self._onNodeConnected(self.nodes[name])
        self.paused.clear()

    # --- receiving ----------------------------------------------------------------------------

    def deliver(self, name: str, message: Message) -> None:
        """Hand a member's message to the core, as far as it may be believed (rules 14 to 22)."""
        receive = _RECEIVE.get(type(message))
        if receive is not None:
            receive(self, name, message)

    def _receive_append(self, name: str, message: AppendEntries) -> None:
        if self._refused_as_stale(name, message.term):
            return
        entries = message.entries
        if entries and max(command[1:2] for command, _, _ in entries) > bytes((self.level,)):
            entries = self.screen(entries)
        proved = message.previous_index + len(entries)
        self._proved_index = proved  # rules 16 and 18: nothing beyond it is known to be equal
        self._pass(
            name,
            {
                "type": "append_entries",
                "term": message.term,
                "commit_index": min(message.commit_index, proved),
                "entries": entries,
                "prevLogIdx": message.previous_index,
                "prevLogTerm": message.previous_term,
            },
        )

    def _receive_offer(self, name: str, message: SnapshotOffer) -> None:
        if self._refused_as_stale(name, message.term):
            return
        self._proved_index = None  # filled in by the install, if there is one
        self._pass(
            name,
            # Rule 17: an offer proves nothing about the log, so it must not move the commit index.
            {
                "type": "append_entries",
                "term": message.term,
                "commit_index": 0,
                "serialized": (b"", True, True),
            },
        )

    def _refused_as_stale(self, name: str, term: int) -> bool:
        """Rule 21: a deposed leader learns of the newer term from a vote request it can't grant."""
        if term >= self.core.term:
            return False
        self.held.append((name, RequestVote(self.core.term, 0, NO_TERM)))
        return True

    def _receive_next_index(self, name: str, message: NextIndex) -> None:
        if message.term != self.core.term:  # rule 15: an answer to an earlier leadership
            return
        before = self.core.next_index(name)
        self._pass(
            name,
            {
                "type": "next_node_idx",
                "next_node_idx": message.next_index,
                "reset": message.reset,
                "success": message.success,
            },
        )
        if message.success:
            self._acknowledged(name, message.next_index - 1)
            if before is not None:  # rule 22: later messages are in flight, don't send them again
                self.core.raise_next_index(name, before)
        else:  # it did not take what is in flight; a full window would keep the next word from it
            self.forget(name)

    def _receive_vote_request(self, name: str, message: RequestVote) -> None:
        self._pass(
            name,
            {
                "type": "request_vote",
                "term": message.term,
                "last_log_index": message.last_index,
                "last_log_term": message.last_term,
            },
        )

    def _receive_vote(self, name: str, message: Vote) -> None:
        if self._votes_counted.get(name, -1) >= message.term:  # rule 20: one vote a sender and term
            return
        self._votes_counted[name] = message.term
        self._pass(name, {"type": "response_vote", "term": message.term})

    def _receive_timeout_now(self, name: str, message: TimeoutNow) -> None:
        self._pass(name, {"type": "timeout_now", "term": message.term})

    def _pass(self, name: str, message: dict[str, Any]) -> None:
        self._onMessageReceived(self.nodes[name], message)
        self._proved_index = None

    def _acknowledged(self, name: str, index: int) -> None:
        flying = self._in_flight[name]
        while flying and flying[0][0] <= index:
            self._in_flight_bytes[name] -= flying.popleft()[1]

    # --- sending ------------------------------------------------------------------------------

    def send(self, node: Node, message: dict[str, Any]) -> bool:
        """Queue a message of the core; never raise, block or call `deliver` (rule 23)."""
        name = node.id
        kind = message["type"]
        if kind == "append_entries":
            self._send_append(name, message)
        elif kind == "next_node_idx":
            self.held.append((name, self._next_index(name, message)))
        elif kind == "request_vote":
            last = message["last_log_index"], message["last_log_term"]
            self.held.append((name, RequestVote(message["term"], *last)))
        elif kind == "response_vote":
            self.held.append((name, Vote(message["term"])))
        else:
            # apply_command would mean that a command was queued on a follower: replica.py submits
            # on a leader only, in the same call that appends.
            assert kind == "timeout_now", kind
            self.held.append((name, TimeoutNow(message["term"])))
        return True

    def _send_append(self, name: str, message: dict[str, Any]) -> None:
        if "serialized" in message:
            self.appends.append((name, SnapshotOffer(message["term"])))
            return
        assert "transmission" not in message, "an entry is over appendEntriesBatchSizeBytes"
        entries = message["entries"]
        previous = message["prevLogIdx"], message["prevLogTerm"]
        self.appends.append(
            (name, AppendEntries(message["term"], message["commit_index"], *previous, entries))
        )
        if entries:
            self._note_in_flight(name, entries)

    def _note_in_flight(self, name: str, entries: list[tuple[bytes, int, int]]) -> None:
        size_bytes = sum(len(entry[0]) for entry in entries)
        self._in_flight[name].append((entries[-1][1], size_bytes))
        self._in_flight_bytes[name] += size_bytes
        if self.window_is_full(name):
            # The core's sending loop looks after each send whether the peer is still connected:
            # that is the one place where it can be told to stop for now.
            self.pause(name)

    def window_is_full(self, name: str) -> bool:
        """True while `name` has all the bytes in flight that it may have."""
        return self._in_flight_bytes[name] >= IN_FLIGHT_BYTES_MAX

    def pause(self, name: str) -> None:
        """Leave `name` out of the next sending."""
        self._onNodeDisconnected(self.nodes[name])
        self.paused.add(name)

    def _next_index(self, name: str, message: dict[str, Any]) -> NextIndex:
        next_index, success, reset = message["next_node_idx"], message["success"], message["reset"]
        if success:  # rule 18
            proved = self.core.installed_index if self._proved_index is None else self._proved_index
            next_index = min(next_index, proved + 1)
        elif reset:  # rule 19
            next_index = self.core.settled_index + 1
            reset = self._may_reset(name)
        return NextIndex(self.core.term, next_index, reset, success)

    def _may_reset(self, name: str) -> bool:
        now = self._clock()
        if now - self._last_reset_s.get(name, -self._heartbeat_s) < self._heartbeat_s:
            return False
        self._last_reset_s[name] = now
        return True

    # --- the rest of pysyncobj's interface ------------------------------------------------------

    def tryGetReady(self) -> None:  # noqa: N802 (pysyncobj's name)
        """Do nothing: connections are made by peers.py."""

    def waitReady(self) -> None:  # noqa: N802
        """Do nothing: connections are made by peers.py."""

    def destroy(self) -> None:
        """Do nothing: connections are closed by peers.py."""


def _take_all(entries: Sequence[Entry]) -> Sequence[Entry]:
    return entries


_RECEIVE: Final[dict[type, Callable[[RaftTransport, str, Any], None]]] = {
    AppendEntries: RaftTransport._receive_append,
    SnapshotOffer: RaftTransport._receive_offer,
    NextIndex: RaftTransport._receive_next_index,
    RequestVote: RaftTransport._receive_vote_request,
    Vote: RaftTransport._receive_vote,
    TimeoutNow: RaftTransport._receive_timeout_now,
}
