"""docs/checks.md, the nodes' disks: a small truth a sentence."""

from __future__ import annotations

import pytest

from tests.spark.histories import RunRecorder
from tests.twins.found import found, put

ONE = {"topic": "t", "producer": "p", "first_counter": 1, "count": 1}


@pytest.fixture
def run() -> RunRecorder:
    """Return a run with three nodes, in which `p` 1 was acknowledged at id 1."""
    run = RunRecorder()
    run.sub("s", "t", 0, resumed=False, cursor=0)
    put(run, 1, 1)
    run.disk("a", "b", "c")
    return run


def hold(run: RunRecorder, nodes: str, id_: int | None, last_id: int, floor_id: int = 0) -> None:
    """Let nodes hold the publication, and the topic's end."""
    run.found_on(nodes, "held", first_id=id_, **ONE)
    run.found_on(nodes, "topic", topic="t", last_id=last_id, floor_id=floor_id)
    run.found_on(nodes, "counter", topic="t", producer="p", counter=1)


def test_what_a_majority_holds_is_durable(run: RunRecorder) -> None:
    hold(run, "ab", 1, 1)
    assert found(run) == {}


def test_what_is_held_under_another_id_is_not(run: RunRecorder) -> None:
    hold(run, "a", 1, 1)
    hold(run, "bc", 2, 2)
    assert found(run)["ack_not_durable"] == ["not on b c p 1 1"]


def test_what_is_held_above_the_topic_s_end_is_not(run: RunRecorder) -> None:
    hold(run, "a", 1, 1)
    hold(run, "bc", 1, 0)
    assert found(run) == {"ack_not_durable": ["not on b c p 1 1"]}


@pytest.mark.parametrize("ends", [(1, 0), (0, 1)])
def test_of_a_topic_that_a_disk_says_twice_the_highest_counts(
    run: RunRecorder, ends: tuple[int, int]
) -> None:
    """As on Spark, whose rows have no order."""
    for last_id in ends:
        hold(run, "abc", 1, last_id)
    assert found(run) == {}


def test_what_the_journal_holds_without_an_id_is(run: RunRecorder) -> None:
    hold(run, "abc", None, 0)
    assert found(run) == {}


def test_garbage_is_durable_if_its_counter_was_taken(run: RunRecorder) -> None:
    run.get("s", "t", 0, [[1, "p", 1, 1]])
    run.found_on("abc", "topic", topic="t", last_id=1, floor_id=1)
    run.found_on("ab", "counter", topic="t", producer="p", counter=1)
    assert found(run) == {}


def test_garbage_that_somebody_has_not_read_is_lost(run: RunRecorder) -> None:
    run.found_on("abc", "topic", topic="t", last_id=1, floor_id=1)
    run.found_on("abc", "counter", topic="t", producer="p", counter=1)
    assert found(run) == {"lost": ["prefix s p 1 1"]}


def test_nobody_holds_what_nobody_tried_though_all_do(run: RunRecorder) -> None:
    hold(run, "abc", 1, 2)
    run.found_on("abc", "held", first_id=2, **{**ONE, "producer": "ghost"})
    assert found(run) == {"phantom": ["ghost 1 2"]}


def test_an_empty_truth_of_all_that_were_read_shows_nothing_durable(run: RunRecorder) -> None:
    assert found(run) == {"ack_not_durable": ["not on a b c p 1 1"]}


def test_entries_and_states_of_two_nodes_agree(run: RunRecorder) -> None:
    hold(run, "abc", 1, 1)
    run.found_on("ab", "state", index=3, digest="0" * 32)
    run.found_on("c", "state", index=3, digest="1" * 32)
    assert found(run) == {"replica_divergence": ["state: a/00000000 c/11111111 3"]}
