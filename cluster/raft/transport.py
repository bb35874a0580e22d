"""The message rules that make pysyncobj safe: what is believed of a message, and what is said.

Here live rules 14 to 22 of docs/raft.md, and the translation into pysyncobj's messages and back.
Must not live here: sockets (peers.py), bytes (messages.py), what is sent to whom by a leader
(sending.py), elections (raft.py). Nothing in this module raises for what a peer sent.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import itemgetter
from typing import Any, Final

from cluster.log.entries import LEVEL, Entry
from cluster.raft.core import Core
from cluster.wire.messages import (
    AppendEntries,
    Message,
    NextIndex,
    RequestVote,
    SnapshotOffer,
    TimeoutNow,
    Vote,
)

NO_TERM: Final = -1  # a last_log_term below every real one: such a vote request is never granted


class Guard:
    """Stands between the messages of other members and the core.

    `level_max`: the highest feature level that this build can apply (rule 30). `heartbeat_s`: at
    most one reset reply a peer in that time. `said` takes the answers, for the caller to send.
    `offer`: the leader whose message was the last to offer a copy. `refused`: the first entry that
    was not taken. Both are for the caller to read and clear.
    """

    def __init__(self, core: Core, level_max: int, heartbeat_s: float) -> None:
        self.said: list[tuple[str, Message]] = []
        self.offer = ""
        self.refused: Entry | None = None
        self._core = core
        self._level_max = bytes((level_max,))
        self._heartbeat_s = heartbeat_s
        self._now = 0.0
        self._proved_index: int | None = None
        self._last_reset_s: dict[str, float] = {}
        self._votes_counted: dict[str, int] = {}

    # --- receiving ----------------------------------------------------------------------------

    def receive(self, name: str, message: Message, now: float) -> None:
        """Hand a member's message to the core, as far as it may be believed (rules 14 to 22)."""
        receive = _RECEIVE.get(type(message))
        if receive is not None:
            self._now = now
            receive(self, name, message)

    def _receive_append(self, name: str, message: AppendEntries) -> None:
        if self._refused_as_stale(name, message.term):
            return
        entries = message.entries
        if entries and max(entry[0][LEVEL] for entry in entries) > self._level_max:
            entries = self._readable(entries)
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

    def _readable(self, entries: Any) -> Any:
        """Return those that this build can apply: what it can't is not acknowledged (rule 30)."""
        for place, entry in enumerate(entries):
            if entry[0][LEVEL] > self._level_max:
                self.refused = entry
                return entries[:place]
        return entries

    def _receive_offer(self, name: str, message: SnapshotOffer) -> None:
        if self._refused_as_stale(name, message.term):
            return
        self.offer = name
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
        if term >= self._core.term:
            return False
        self.said.append((name, RequestVote(self._core.term, 0, NO_TERM)))
        return True

    def _receive_next_index(self, name: str, message: NextIndex) -> None:
        core = self._core
        if message.term != core.term:  # rule 15: an answer to an earlier leadership
            return
        before = core.next_index(name)
        self._pass(
            name,
            {
                "type": "next_node_idx",
                # Nobody has more than the leader, or is sent what it has not.
                "next_node_idx": min(message.next_index, core.log.last_index + 1),
                "reset": message.reset,
                "success": message.success,
            },
        )
        if message.success and before is not None:
            self._keep_next_index(name, before)

    def _keep_next_index(self, name: str, before: int) -> None:
        """Rule 22: later messages are in flight, and are not sent again."""
        last_index = self._core.log.last_index
        now = self._core.next_index(name)
        assert now is not None, name
        self._core.set_next_index(name, max(now, min(before, last_index + 1)))

    def _receive_vote_request(self, name: str, message: RequestVote) -> None:
        term = self._core.term
        self._pass(
            name,
            {
                "type": "request_vote",
                "term": message.term,
                "last_log_index": message.last_index,
                "last_log_term": message.last_term,
            },
        )
        if self._core.term != term:  # rule 9: a wish to take over is of the term before
            self._core.forget_transfer()

    def _receive_vote(self, name: str, message: Vote) -> None:
        if self._votes_counted.get(name, -1) >= message.term:  # rule 20: one vote a sender and term
            return
        self._votes_counted[name] = message.term
        self._pass(name, {"type": "response_vote", "term": message.term})

    def _receive_timeout_now(self, name: str, message: TimeoutNow) -> None:
        self._pass(name, {"type": "timeout_now", "term": message.term})

    def _pass(self, name: str, message: dict[str, Any]) -> None:
        self._core.receive(name, message)
        if self._core.sent:
            self.translate()
        self._proved_index = None

    # --- sending ------------------------------------------------------------------------------

    def translate(self) -> None:
        """Say what the core has sent since the last time."""
        sent = self._core.sent
        if len(sent) > 1:
            sent.sort(key=itemgetter(0))  # it sends to a set of members: in an order of its own
        self.said += [(name, self._said(name, message)) for name, message in sent]
        sent.clear()

    def _said(self, name: str, message: dict[str, Any]) -> Message:
        kind = message["type"]
        if kind == "next_node_idx":
            return self._next_index(name, message)
        if kind == "request_vote":
            last = message["last_log_index"], message["last_log_term"]
            return RequestVote(message["term"], *last)
        if kind == "response_vote":
            return Vote(message["term"])
        # apply_command would mean that a command was queued in the core: entries are only appended
        # on a leader, at once. append_entries are sent by sending.py.
        assert kind == "timeout_now", kind
        return TimeoutNow(message["term"])

    def _next_index(self, name: str, message: dict[str, Any]) -> NextIndex:
        next_index, success, reset = message["next_node_idx"], message["success"], message["reset"]
        core = self._core
        if success:  # rule 18
            assert self._proved_index is not None, message
            next_index = min(next_index, self._proved_index + 1)
        elif reset:  # rule 19
            next_index = core.settled_index + 1
            reset = self._may_reset(name)
        return NextIndex(core.term, next_index, reset, success)

    def _may_reset(self, name: str) -> bool:
        now = self._now
        if now - self._last_reset_s.get(name, -self._heartbeat_s) < self._heartbeat_s:
            return False
        self._last_reset_s[name] = now
        return True


_RECEIVE: Final[dict[type, Callable[[Guard, str, Any], None]]] = {
    AppendEntries: Guard._receive_append,
    SnapshotOffer: Guard._receive_offer,
    NextIndex: Guard._receive_next_index,
    RequestVote: Guard._receive_vote_request,
    Vote: Guard._receive_vote,
    TimeoutNow: Guard._receive_timeout_now,
}
