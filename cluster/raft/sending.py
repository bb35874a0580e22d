"""What a leader sends: rounds of entries and heartbeats, and how much may be under way to whom.

What lives here: the windows, the place where each follower goes on. What must not: when a round is
due (raft.py), what an answer is believed (transport.py).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final

from cluster.raft.core import Core
from cluster.raft.ready import NEVER_S
from cluster.wire.messages import AppendEntries, Message, NextIndex, SnapshotOffer

# Unacknowledged entries that one follower may have in flight. Below it the leader pipelines; a
# follower that is further behind is fed at the pace of its acknowledgments, so that its backlog
# waits in the journal and not in a socket's buffer.
IN_FLIGHT_BYTES_MAX: Final = 8 * 1024 * 1024
ENTRIES_MAX: Final = 2**62  # in a message: as many as the log returns at once


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

    def answered(self, name: str, message: NextIndex) -> None:
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
