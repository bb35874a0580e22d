"""The message rules that make pysyncobj safe: what is believed of a message, and what is sent.

Here live rules 14 to 22 of docs/raft.md, the translation into pysyncobj's messages and back, and
how much a leader may have under way to whom. Must not live here: sockets (peers.py), bytes
(messages.py), when a round is due, elections (raft.py). Nothing in this module raises for what a
peer sent.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any, Final

from cluster.log.entries import LEVEL, Entry
from cluster.raft.core import Core
from cluster.raft.ready import NEVER_S
from cluster.wire.messages import (
    AppendEntries,
    AppendEntriesResponse,
    Message,
    RequestVote,
    RequestVoteResponse,
    SnapshotOffer,
    TimeoutNow,
)

NO_TERM: Final = -1  # a last_log_term below every real one: such a vote request is never granted
# Unacknowledged entries that one follower may have in flight. Below it the leader pipelines; a
# follower that is further behind is fed at the pace of its acknowledgments, so that its backlog
# waits in the journal and not in a socket's buffer.
IN_FLIGHT_BYTES_MAX: Final = 8 * 1024 * 1024
ENTRIES_MAX: Final = 2**62  # in a message: as many as the log returns at once


class Guard:
    """Stands between the messages of other members and pysyncobj.

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
        """Hand a member's message to pysyncobj, as far as it may be believed (rules 14 to 22)."""
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

    def _receive_append_entries_response(self, name: str, message: AppendEntriesResponse) -> None:
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

    def _receive_request_vote_response(self, name: str, message: RequestVoteResponse) -> None:
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
        """Say what pysyncobj has sent since the last time."""
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
            return RequestVoteResponse(message["term"])
        # apply_command would mean that a command was queued in pysyncobj: entries are only appended
        # on a leader, at once. append_entries are sent by Sender.
        assert kind == "timeout_now", kind
        return TimeoutNow(message["term"])

    def _next_index(self, name: str, message: dict[str, Any]) -> AppendEntriesResponse:
        next_index, success, reset = message["next_node_idx"], message["success"], message["reset"]
        core = self._core
        if success:  # rule 18
            assert self._proved_index is not None, message
            next_index = min(next_index, self._proved_index + 1)
        elif reset:  # rule 19
            next_index = core.settled_index + 1
            reset = self._may_reset(name)
        return AppendEntriesResponse(core.term, next_index, reset, success)

    def _may_reset(self, name: str) -> bool:
        now = self._now
        if now - self._last_reset_s.get(name, -self._heartbeat_s) < self._heartbeat_s:
            return False
        self._last_reset_s[name] = now
        return True


_RECEIVE: Final[dict[type, Callable[[Guard, str, Any], None]]] = {
    AppendEntries: Guard._receive_append,
    SnapshotOffer: Guard._receive_offer,
    AppendEntriesResponse: Guard._receive_append_entries_response,
    RequestVote: Guard._receive_vote_request,
    RequestVoteResponse: Guard._receive_request_vote_response,
    TimeoutNow: Guard._receive_timeout_now,
}


class Window:
    """What is in flight to one follower: `bytes`, and the messages with (last index, bytes)."""

    def __init__(self) -> None:
        self.flying: deque[tuple[int, int]] = deque()
        self.bytes = 0

    @property
    def is_full(self) -> bool:
        """True while the follower has all the bytes in flight that it may have."""
        return self.bytes >= IN_FLIGHT_BYTES_MAX

    def add(self, last_index: int, size_bytes: int) -> None:
        """Note a message that was sent."""
        self.flying.append((last_index, size_bytes))
        self.bytes += size_bytes

    def acknowledged(self, index: int) -> None:
        """Note what the follower has on its disk."""
        flying = self.flying
        while flying and flying[0][0] <= index:
            self.bytes -= flying.popleft()[1]

    def forget(self) -> None:
        """Forget what was in flight: nobody will acknowledge it."""
        self.flying.clear()
        self.bytes = 0


class Sender:
    """A leader's way to its followers. `sent` takes the messages, for the caller to send."""

    def __init__(self, core: Core, others: Sequence[str], heartbeat_s: float) -> None:
        self.sent: list[tuple[str, Message]] = []
        self.windows: Final = {name: Window() for name in others}
        self._core, self._heartbeat_s = core, heartbeat_s
        self._term = 0  # of the last round
        self._asked_s: dict[str, float] = {}  # when a member with a full window had a heartbeat

    def answered(self, name: str, message: AppendEntriesResponse) -> None:
        """Take a follower's answer to this leadership."""
        window = self.windows[name]
        if message.success:
            window.acknowledged(message.next_index - 1)
        else:  # it did not take what is in flight; a full window would keep the next word from it
            window.forget()

    def lost(self, name: str) -> None:
        """What was in flight is lost with its connection: go on behind what is acknowledged."""
        self.windows[name].forget()
        match = self._core.match_index(name)
        if match > 0 and self._core.next_index(name) is not None:
            self._core.set_next_index(name, match + 1)

    def has_news(self, name: str) -> bool:
        """Return whether there are entries that a follower was not sent."""
        next_index = self._core.next_index(name)
        return next_index is not None and next_index <= self._core.log.last_index

    def send_round(self, now: float) -> None:
        """Send every follower that can be reached what is new to it, or a heartbeat."""
        core = self._core
        for name, window in self.windows.items():
            if self._term != core.term:
                window.forget()  # rule 15: nobody acknowledges what an earlier term sent
            if core.is_reachable(name):
                if window.is_full:
                    self._ask_behind(name, window, now)
                if not window.is_full:
                    self._feed(name, window)
        self._term = core.term
        core.begin_heartbeat()

    def _feed(self, name: str, window: Window) -> None:
        """Send one message at least, then more until the log or the window ends."""
        core, log = self._core, self._core.log
        term, commit_index, last_index = core.term, core.commit_index, log.last_index
        next_index = core.next_index(name)
        assert next_index is not None, name
        while True:
            if next_index <= log.first_index:
                self.sent.append((name, SnapshotOffer(term)))
                next_index = log.first_index + 2  # the entry before, and one more, are there
                core.set_next_index(name, next_index)
            else:
                previous = next_index - 1
                previous_term = log.term_at(previous)
                assert previous_term is not None, (name, previous, last_index)
                entries = log.entries(next_index, ENTRIES_MAX) if previous < last_index else []
                assert entries or previous >= last_index, (name, next_index, last_index)
                append = AppendEntries(term, commit_index, previous, previous_term, entries)
                self.sent.append((name, append))
                if entries:
                    next_index = entries[-1][1] + 1
                    core.set_next_index(name, next_index)
                    window.add(next_index - 1, sum(len(entry[0]) for entry in entries))
            if next_index > last_index or window.is_full:
                return

    def _ask_behind(self, name: str, window: Window, now: float) -> None:
        """Send a member whose window is full its heartbeat, behind all that is in flight to it.

        Where that was lost, or dropped by one that did not hear its leader yet, nothing would ever
        be acknowledged, and so nothing be said any more: the answer to this is a refusal, and
        empties the window. It is emptied at once where the journal holds its end no more: then the
        member is to be offered a copy.
        """
        core = self._core
        next_index = core.next_index(name)
        assert next_index is not None, name
        previous = next_index - 1
        term = core.log.term_at(previous)
        if term is None:
            window.forget()
            return
        if now - self._asked_s.get(name, -NEVER_S) < self._heartbeat_s:
            return
        self._asked_s[name] = now
        self.sent.append((name, AppendEntries(core.term, core.commit_index, previous, term, [])))
