"""Flow control between a leader and a follower: what is in flight, and when it is given up."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from cluster.log.entries import NO_OP, REGULAR
from cluster.log.journal import Journal
from cluster.raft.raft import Raft
from cluster.raft.ready import Ready, Timing
from cluster.raft.transport import IN_FLIGHT_BYTES_MAX, Window
from cluster.wire.messages import (
    AppendEntries,
    AppendEntriesResponse,
    PreVoteGranted,
    RequestVoteResponse,
    SnapshotOffer,
)

NOW = 1000.0
FULL = [IN_FLIGHT_BYTES_MAX // 4] * 4  # bytes of the entries that fill a window


class Leader:
    """A leader of three whose followers are made up; `b` can be reached, `c` can not."""

    def __init__(self, directory: Path, **options: int) -> None:
        Journal.create(directory)
        self.journal = Journal.open(directory, **options)  # type: ignore[arg-type]
        rng = random.Random(1)
        self._now = NOW + 1
        self.raft = Raft("a", "bc", self.journal, (1, 0), Timing(), 1, rng, NOW)
        self.raft.connected("b")
        self.step(tick=True)
        self.step(("b", PreVoteGranted(self.raft.term)), tick=True)
        self.step(("b", RequestVoteResponse(self.raft.term)), tick=True)
        self.step(("b", AppendEntriesResponse(self.raft.term, 3, False, True)), tick=True)
        assert self.raft.serving

    def step(self, *messages: object, **inputs: object) -> Ready:
        """Make a step, and do all of what it says."""
        self._now += 0.01
        ready = self.raft.step(self._now, messages, **inputs)  # type: ignore[arg-type]
        if ready.hard_state:
            self.journal.set_term(*ready.hard_state)
        for entry in ready.entries:
            self.journal.add(*entry)
        for _, index, _ in ready.committed:
            self.raft.advance(index)
        return ready

    def put(self, *sizes: int) -> list[AppendEntries]:
        """Propose entries of these sizes; return what `b` is sent."""
        ready = self.step(proposals=[bytes(size - 1) for size in sizes], tick=True)
        return [each for _, each in ready.before_sync if isinstance(each, AppendEntries)]

    def answer(
        self, next_index: int, *, earlier: int = 0, reset: bool = False, ok: bool = True
    ) -> None:
        self.step(("b", AppendEntriesResponse(self.raft.term - earlier, next_index, reset, ok)))

    @property
    def window(self) -> Window:
        return self.raft._sender.windows["b"]


@pytest.fixture
def leader(tmp_path: Path) -> Leader:
    return Leader(tmp_path / "journal")


def test_a_full_window_ends_the_sending_and_the_rest_waits_in_the_log(leader: Leader) -> None:
    sent = leader.put(*FULL, *FULL)
    assert [entry[1] for each in sent for entry in each.entries] == [3, 4, 5, 6]
    assert leader.window.is_full
    (heartbeat,) = leader.put(10)
    assert (heartbeat.previous_index, heartbeat.entries) == (6, []), "behind what is in flight"
    assert leader.put(10) == [], "one heartbeat a period"


def test_an_acknowledgment_opens_the_window(leader: Leader) -> None:
    leader.put(*FULL)
    leader.answer(7, earlier=1)
    assert leader.window.is_full, "of an earlier leadership"
    leader.answer(5)
    assert leader.window.bytes == 2 * FULL[0], "two messages of two entries were sent"
    leader.answer(7)
    assert leader.window.bytes == 0


def test_a_full_window_that_the_log_has_left_behind_ends_in_the_offer_of_a_copy(
    tmp_path: Path,
) -> None:
    leader = Leader(tmp_path / "journal", segment_bytes=1, keep_bytes=0)
    leader.put(*FULL)
    leader.journal.sync()
    for _ in range(3):  # what the window has no room for
        leader.put(10)
        leader.journal.sync()
    assert leader.window.is_full
    leader.journal.compact(leader.journal.last_index)

    ready = leader.step(proposals=[bytes(9)], tick=True)

    assert SnapshotOffer(leader.raft.term) in [message for _, message in ready.before_sync]


@pytest.mark.parametrize("reset", [True, False])
def test_what_a_follower_does_not_take_is_not_in_flight(leader: Leader, reset: bool) -> None:
    leader.put(*FULL)
    leader.answer(3, reset=reset, ok=False)
    assert leader.window.bytes == 0


def test_a_new_connection_has_nothing_in_flight(leader: Leader) -> None:
    leader.put(*FULL)
    leader.raft.connected("b")
    assert leader.window.bytes == 0


def test_who_asks_for_what_the_leader_has_not_is_sent_its_end(leader: Leader) -> None:
    leader.answer(10**6, reset=True, ok=False)
    (sent,) = leader.put(10)
    assert (sent.previous_index, [entry[1] for entry in sent.entries]) == (2, [3])


def test_an_append_of_which_nothing_can_be_read_commits_nothing_of_this_log(tmp_path: Path) -> None:
    Journal.create(tmp_path)
    journal = Journal.open(tmp_path)
    raft = Raft("a", "bc", journal, (1, 0), Timing(), 1, random.Random(1), NOW)
    for entry in raft.step(NOW).entries:  # which every log begins with
        journal.add(*entry)
    own = [(NO_OP, 2, 1)]  # of a leader that nobody else has heard
    for entry in raft.step(NOW, [("b", AppendEntries(1, 1, 1, 0, own))]).entries:
        journal.add(*entry)
    newer = [(REGULAR + bytes((2,)), 2, 2)]  # of level 2, which this build can't apply
    ready = raft.step(NOW, [("c", AppendEntries(3, 2, 1, 0, newer))], tick=True)
    assert ready.refused == newer[0]
    assert (raft.commit_index, list(ready.committed)) == (1, [])
