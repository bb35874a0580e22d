"""docs/checks.md, "Owed": what is lost, and what is not, a small history a sentence."""

from __future__ import annotations

import pytest

from tests.spark.histories import RunRecorder
from tests.twins.found import found, get, put

PHASE = {"process": "runner", "f": "phase", "type": "info"}


@pytest.fixture
def run() -> RunRecorder:
    """Return a run in which `s` subscribes to `t` before anything else."""
    run = RunRecorder()
    run.sub("s", "t", 0, resumed=False, cursor=0)
    return run


def tombstone(run: RunRecorder) -> None:
    """Record the phase `tombstone`."""
    run._add({**PHASE, "phase": "tombstone"}, "info")


# --- 1: the place is known, above the start -------------------------------------------------------


def test_what_was_passed_and_nothing_lower_given_is_a_lost_prefix(run: RunRecorder) -> None:
    put(run, 1, 1)
    put(run, 2, 2)
    get(run, 1, [2, "p", 2, 1])
    assert found(run)["lost"] == ["prefix s p 1 1"]


def test_what_was_passed_behind_something_given_is_lost_in_the_middle(run: RunRecorder) -> None:
    for id_ in (1, 2, 3):
        put(run, id_, id_)
    get(run, 0, [1, "p", 1, 1])
    get(run, 2, [3, "p", 3, 1])
    assert found(run)["lost"] == ["middle s p 2 2"]


def test_what_was_not_passed_is_lost_at_the_tail_once_the_subscriber_drained(
    run: RunRecorder,
) -> None:
    put(run, 1, 1)
    put(run, 2, 2)
    get(run, 0, [1, "p", 1, 1])
    assert found(run) == {}
    get(run, 1)
    run.drained("s", "t", 1)
    assert found(run)["lost"] == ["tail s p 2 2"]


def test_a_place_that_a_delivery_alone_tells_is_owed_to_the_others(run: RunRecorder) -> None:
    """A PUT of unknown outcome that one was given was stored: it is owed to the other one."""
    run.sub("r", "t", 0, resumed=False, cursor=0)
    put(run, 1, None)
    put(run, 2, 2)
    get(run, 0, [1, "p", 1, 2])
    get(run, 1, [2, "p", 2, 1], client="r")
    assert found(run)["lost"] == ["prefix r p 1 1"]


def test_it_is_owed_as_well_to_who_drained_after_the_other_one_was_given_it(
    run: RunRecorder,
) -> None:
    run.sub("r", "t", 0, resumed=False, cursor=0)
    put(run, 1, None)
    get(run, 0, [1, "p", 1, 1])
    get(run, 0, client="r")
    run.drained("r", "t", 0)
    assert found(run)["lost"] == ["tail r p 1 1"]


def test_a_place_that_a_disk_alone_tells_is_owed(run: RunRecorder) -> None:
    run.disk("a")
    put(run, 1, None)
    put(run, 2, 2)
    get(run, 1, [2, "p", 2, 1])
    held = {"topic": "t", "first_id": 1, "producer": "p", "first_counter": 1, "count": 2}
    run.found_on("a", "held", **held)
    run.found_on("a", "counter", topic="t", producer="p", counter=2)
    run.found_on("a", "topic", topic="t", last_id=2, floor_id=0)
    assert found(run)["lost"] == ["prefix s p 1 1"]


def test_what_was_owed_to_a_subscription_that_ended_later_is_lost_up_to_what_it_passed(
    run: RunRecorder,
) -> None:
    for id_ in (1, 2, 3):
        put(run, id_, id_)
    get(run, 0, [2, "p", 2, 1])
    run.unsub("s", "t")
    assert found(run)["lost"] == ["prefix s p 1 1"]


def test_nothing_that_was_put_behind_a_leaver_s_back_is_owed_to_it(run: RunRecorder) -> None:
    put(run, 1, 1)
    get(run, 0, [1, "p", 1, 1])
    run.unsub("s", "t")
    put(run, 2, 2)
    run.sub("s", "t", 2, resumed=False, cursor=2)
    put(run, 3, 3)
    get(run, 2, [3, "p", 3, 1])
    assert found(run) == {}


def test_a_publication_under_another_one_s_id_is_no_loss(run: RunRecorder) -> None:
    put(run, 1, 1)
    put(run, 1, None, producer="q")
    get(run, 0, [1, "q", 1, 1])
    get(run, 1)
    assert "lost" not in found(run)
    assert found(run)["inconsistent_id"] == ["q 1 p 1 1"]


def test_a_corrupt_publication_was_given(run: RunRecorder) -> None:
    put(run, 1, 1, 2)
    get(run, 0, [2, "p", 2, 1], corrupt=[[1, "checksum"]])
    assert found(run) == {"corrupt": ["checksum s 1"]}


def test_a_twin_on_another_host_is_another_life_and_its_get_no_delivery_missed(
    run: RunRecorder,
) -> None:
    run.hosts = {"twin": "elsewhere"}
    put(run, 1, 1, 2)
    get(run, 0, [1, "p", 1, 2])
    run.get("s", "t", 2, [], process="twin")
    assert found(run) == {}


# --- the cut --------------------------------------------------------------------------------------


def test_a_retry_acknowledged_after_the_drain_is_no_loss(run: RunRecorder) -> None:
    put(run, 1, None)
    put(run, 2, 2)
    get(run, 0, [1, "p", 1, 2])
    run.drained("s", "t", 2)
    put(run, 3, 3)
    assert found(run) == {}


def test_what_was_known_before_the_tombstone_is_due_at_the_drain(run: RunRecorder) -> None:
    put(run, 1, 1)
    tombstone(run)
    put(run, 1, 2, producer="grave")
    get(run, 1, [2, "grave", 1, 1])
    run.drained("s", "t", 2)
    assert found(run)["lost"] == ["prefix s p 1 1"]


def test_without_a_tombstone_of_the_topic_nothing_is_owed_by_having_drained(
    run: RunRecorder,
) -> None:
    put(run, 1, 1)
    tombstone(run)
    get(run, 0)
    run.drained("s", "t", 0)
    assert "lost" not in found(run)


def test_drained_and_left_and_back_again_owes_nothing_more(run: RunRecorder) -> None:
    put(run, 1, 1)
    get(run, 0, [1, "p", 1, 1])
    run.drained("s", "t", 1)
    run.unsub("s", "t")
    run.sub("s", "t", 1, resumed=False, cursor=1)
    put(run, 2, 2)
    assert found(run) == {}


# --- 2: at or below a start that lies -------------------------------------------------------------


def test_what_is_stored_below_a_start_that_came_before_it_is_lost_at_once() -> None:
    run = RunRecorder()
    run.sub("s", "t", 3, resumed=False, cursor=3)
    put(run, 1, 1, 3)
    assert found(run)["lost"] == ["start s p 1 1", "start s p 2 2", "start s p 3 3"]


def test_what_was_tried_before_the_subscription_stood_may_lie_below_its_start() -> None:
    run = RunRecorder()
    put(run, 1, None)
    run.sub("s", "t", 1, resumed=False, cursor=1)
    put(run, 1, 1, duplicate=True)
    assert found(run) == {}


# --- 3: taken, and nobody says where --------------------------------------------------------------


def test_a_duplicate_without_an_id_that_is_never_given_is_lost_once_drained(
    run: RunRecorder,
) -> None:
    put(run, 1, None)
    put(run, 1, 0, duplicate=True)
    assert found(run) == {}
    get(run, 0)
    run.drained("s", "t", 0)
    assert found(run)["lost"] == ["unplaced s p 1"]


def test_at_its_first_try_as_well(run: RunRecorder) -> None:
    put(run, 1, 0, duplicate=True)
    get(run, 0)
    run.drained("s", "t", 0)
    assert found(run)["lost"] == ["unplaced s p 1"]


def test_a_counter_between_two_stored_ones_was_taken(run: RunRecorder) -> None:
    put(run, 1, 1)
    put(run, 2, None)
    put(run, 3, 2)
    get(run, 0, [1, "p", 1, 1], [2, "p", 3, 1])
    assert found(run)["lost"] == ["unplaced s p 2"]


def test_a_counter_between_them_whose_tries_failed_was_taken_all_the_same(run: RunRecorder) -> None:
    put(run, 1, 1)
    run.put("p", "t", 2, "fail", error="electing")
    put(run, 3, 2)
    get(run, 0, [1, "p", 1, 1], [2, "p", 3, 1])
    assert found(run) == {"aborted_read": ["p 2"]}


def test_what_was_taken_while_nobody_subscribed_is_owed_to_nobody() -> None:
    run = RunRecorder()
    put(run, 1, None)
    run.sub("s", "t", 0, resumed=False, cursor=0)
    put(run, 1, 0, duplicate=True)
    put(run, 2, 1)
    get(run, 0, [1, "p", 2, 1])
    assert found(run) == {}


def test_an_application_s_record_says_of_nobody_whose_it_was_given(run: RunRecorder) -> None:
    put(run, 1, 0, duplicate=True)
    run.rows[-2]["digests"] = "0" * 16
    get(run, 0)
    run.drained("s", "t", 0)
    assert found(run) == {}


# --- unstored -------------------------------------------------------------------------------------


def test_nobody_subscribes_is_a_loss_while_a_subscription_stood_that_ended_later(
    run: RunRecorder,
) -> None:
    put(run, 1, 0)
    run.unsub("s", "t")
    assert found(run)["lost"] == ["unstored s p 1"]


def test_nobody_subscribes_is_true_behind_an_unsub_or_beside_one_on_the_way(
    run: RunRecorder,
) -> None:
    run.unsub("s", "t", "info")
    put(run, 1, 0)
    assert found(run) == {}


def test_a_sub_of_unknown_outcome_stands_once_a_get_is_answered() -> None:
    run = RunRecorder()
    run.complete(run.invoke("s", "sub", "t"), "info", error="timeout")
    put(run, 1, 0)
    assert found(run) == {}
    get(run, 0)
    put(run, 2, 0)
    get(run, 0)
    assert found(run)["lost"] == ["unstored s p 2"]


def test_a_sub_that_overlaps_an_unsub_of_a_twin_begins_no_life() -> None:
    run = RunRecorder()
    run.sub("s", "t", 0, epoch=1)
    leaving = run.invoke("s", "unsub", "t", epoch=1)
    run.sub("s", "t", 0, epoch=2, process="twin")
    run.complete(leaving, "ok")
    put(run, 1, 0)
    assert found(run) == {}


def test_an_unsub_without_an_answer_is_over_once_a_later_control_was_answered() -> None:
    run = RunRecorder()
    run.sub("s", "t", 0)
    run.unsub("s", "t", "info")
    run.sub("s", "t", 0)
    get(run, 0)
    put(run, 1, 0)
    assert found(run)["lost"] == ["unstored s p 1"]


def test_an_unsub_without_an_answer_may_act_for_ever_if_nothing_later_was_answered() -> None:
    run = RunRecorder()
    run.sub("s", "t", 0)
    run.unsub("s", "t", "info")
    get(run, 0)
    put(run, 1, 0)
    assert found(run) == {}


def test_a_control_of_a_higher_epoch_ends_what_an_old_one_may_do() -> None:
    run = RunRecorder()
    run.sub("s", "t", 0, epoch=1)
    run.invoke("s", "unsub", "t", epoch=1)
    run.sub("s", "t", 0, epoch=2, process="twin")
    run.get("s", "t", 0, [], process="twin", epoch=2)
    put(run, 1, 0)
    assert found(run)["lost"] == ["unstored s p 1"]


def test_an_unsub_on_another_host_leaves_nothing_sure() -> None:
    run = RunRecorder()
    run.hosts = {"twin": "elsewhere"}
    run.sub("s", "t", 0)
    run.complete(run.invoke("s", "unsub", "t", process="twin"), "ok")
    put(run, 1, 0)
    assert found(run) == {}


def test_a_newer_epoch_on_another_host_does_not_tell_when_an_old_unsub_acted_at_the_latest() -> (
    None
):
    run = RunRecorder()
    run.hosts = {"twin": "elsewhere"}
    run.sub("s", "t", 0, epoch=1)
    run.invoke("s", "unsub", "t", epoch=1)
    run.sub("s", "t", 0, epoch=2, process="twin")
    run.get("s", "t", 0, [], epoch=1)
    put(run, 1, 0)
    assert found(run) == {}


def test_what_another_host_saw_taken_was_not_taken_before_a_drain_here(run: RunRecorder) -> None:
    run.hosts = {"r": "elsewhere"}
    put(run, 1, None)
    put(run, 2, None)
    run.sub("r", "t", 0, resumed=False, cursor=0)
    get(run, 0, [1, "p", 2, 1], client="r")
    get(run, 0)
    run.drained("s", "t", 0)
    run.unsub("s", "t")
    assert found(run) == {}
