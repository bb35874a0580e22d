"""One node's turn. What a cluster of them does is proved in tests/simulation."""

from __future__ import annotations

from pathlib import Path

from flotilla_client.protocol import STATUS, TOPICS, Request
from tests.simulation.lab import Lab
from tests.simulation.schedules import Stage


def test_a_node_wiped_twice_in_a_row_pulls_no_copy_from_before_its_admission(
    tmp_path: Path,
) -> None:
    stage = Stage(tmp_path, "abc")
    for _ in range(4):
        stage.lab.crash("c")
        stage.lab.wipe("c")
        stage.lab.start("c")
        stage.lab.until(lambda: stage.node("c").raft is not None)
    assert [event for name, event, _ in stage.lab.log if event == "copy_too_old"] == []


def test_requests_that_are_answered_at_once_keep_no_read_from_its_answer(tmp_path: Path) -> None:
    lab = Lab(tmp_path, "a")
    lab.start("a")
    leader = lab.elect()
    for _ in range(5):
        lab.send(leader, Request(STATUS, ""))
        read = lab.send(leader, Request(TOPICS, "", body={"all": True}))
        for _ in range(3):
            lab.send(leader, Request(STATUS, ""))
            lab.step()
        assert read in lab.replies
    lab.close()


def test_a_turn_ends_when_its_time_does_and_everybody_is_answered_in_later_ones(
    tmp_path: Path,
) -> None:
    lab = Lab(tmp_path, "a")
    lab.start("a")
    leader = lab.elect()
    node = lab.nodes[leader]
    looks = 0

    def clock() -> float:
        """Let every step take a millisecond, so that each share is over after a few."""
        nonlocal looks
        looks += 1
        return looks / 1000

    for share in (node._requests, node._applying, node._serving, node._replies):
        share._clock = clock
    asked = [lab.send(leader, Request(TOPICS, "", body={"all": True})) for _ in range(100)]
    answered = []
    while len(answered) < 100:
        before = looks
        lab.step()
        assert looks - before < 50, "half of a heartbeat, at a millisecond a step"
        answered = [request_id for request_id in asked if request_id in lab.replies]
        assert answered == asked[: len(answered)], "in order"
    assert not node.busy
    lab.close()
