"""One member's Raft as a leader. The rules are proved by the scenarios of tests/raft."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from cluster.log.entries import REGULAR
from cluster.log.journal import Journal
from cluster.raft import transport
from cluster.raft.raft import Raft
from cluster.raft.ready import Timing
from cluster.raft.transport import IN_FLIGHT_BYTES_MAX
from cluster.wire.messages import AppendEntries, PreVoteGranted
from tests.simulation.bench import Stage

MakeStage = Callable[..., Stage]


def test_a_new_leadership_waits_for_no_answer_to_an_earlier_one(make_stage: MakeStage) -> None:
    stage = make_stage()
    window = stage.raft("a")._sender.windows["c"]
    stage.elect("b")
    window.add(10**6, IN_FLIGHT_BYTES_MAX)  # nobody will acknowledge it
    stage.crash("b")
    stage.elect("a")
    assert stage.reaches(
        lambda: stage.raft("c").applied_index == stage.raft("a").applied_index > 0
    ), "a waits for an answer that rule 15 drops"


def test_a_follower_that_is_behind_is_fed_at_the_pace_of_its_answers(
    make_stage: MakeStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = make_stage()
    monkeypatch.setattr(transport, "IN_FLIGHT_BYTES_MAX", 200)
    stage.world.clog("a", "c", 1.0)
    window = stage.raft("a")._sender.windows["c"]
    most = 0
    for number in range(20):
        stage.put("a", f"publication {number}" * 5)
        stage.run(0.05)
        most = max(most, sum(size for _, size in window.flying))
    assert 200 <= most < 1000, most
    assert stage.reaches(
        lambda: stage.raft("c").applied_index == stage.raft("a").applied_index, 5.0
    ), "c was never sent the rest"


def test_of_two_appends_in_one_step_the_later_replaces_what_the_earlier_brought(
    tmp_path: Path,
) -> None:
    Journal.create(tmp_path)
    journal = Journal.open(tmp_path)
    raft = Raft("a", "bc", journal, (1, 0), Timing(), 1, random.Random(1), 0.0)
    for entry in raft.step(0.0).entries:  # which every log begins with
        journal.add(*entry)
    command = REGULAR + bytes((1,))  # of level 1
    old = [(command + b"x", 2, 1), (command + b"y", 3, 1), (command + b"z", 4, 1)]
    new = [(command + b"other", 3, 2)]
    ready = raft.step(
        0.0, [("b", AppendEntries(1, 1, 1, 0, old)), ("c", AppendEntries(2, 1, 2, 1, new))]
    )
    assert list(ready.entries) == [old[0], *new]


def test_what_was_granted_before_a_leader_was_heard_counts_in_no_later_election(
    make_stage: MakeStage,
) -> None:
    stage = make_stage()
    raft, core, clock = stage.raft("b"), stage.core("b"), stage.machine("b").clock
    for other in "ac":
        stage.world.cut_one_way("b", other)
    core.election_deadline_s = clock() - 1.0
    stage.turn("b")
    raft._receive_pre_vote_granted("c", PreVoteGranted(raft.term))
    core.election_deadline_s = clock() + 1000.0  # a leader was heard
    stage.turn("b")
    term = raft.term
    core.election_deadline_s = clock() - 1.0
    stage.turn("b")
    assert (raft.term, raft.role) == (term, "follower"), "it campaigns with a grant of before"
