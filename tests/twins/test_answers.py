"""docs/checks.md, what answers say: order, repetition, subscriptions; a history a sentence."""

from __future__ import annotations

import pytest

from tests.spark.histories import RunRecorder
from tests.twins.found import found, get, put


@pytest.fixture
def run() -> RunRecorder:
    """Return a run in which `s` subscribes to `t`, which gets ids 1 to 9."""
    run = RunRecorder()
    run.sub("s", "t", 0, resumed=False, cursor=0)
    put(run, 1, 1, 9)
    return run


def only(run: RunRecorder, check: str) -> list[str]:
    """Return what one check finds."""
    return found(run).get(check, [])


# --- reordered, gap -------------------------------------------------------------------------------


def test_an_answer_at_the_cursor_begins_too_low(run: RunRecorder) -> None:
    get(run, 0, [1, "p", 1, 3])
    get(run, 3, [3, "p", 3, 2])
    assert only(run, "reordered") == ["subscriber s 3"]


def test_an_answer_that_goes_back_inside_is_out_of_order(run: RunRecorder) -> None:
    get(run, 0, [3, "p", 3, 1], [1, "p", 1, 2])
    assert only(run, "reordered") == ["subscriber s 1"]
    assert only(run, "gap") == []


def test_an_answer_begins_behind_the_cursor_at_once(run: RunRecorder) -> None:
    get(run, 0, [2, "p", 2, 2])
    assert only(run, "gap") == ["s 2"]


def test_a_cursor_that_skips_what_the_session_never_got_excuses_nothing(run: RunRecorder) -> None:
    get(run, 0, [1, "p", 1, 2])
    get(run, 4, [5, "p", 5, 1])
    assert only(run, "gap") == ["s 5"]


def test_what_was_asked_for_later_does_not_say_where_an_answer_is_due(run: RunRecorder) -> None:
    """Whichever of the two comes first: Spark goes by the order of operations, too."""
    first = run.invoke("s", "get", "t", last_id=5)
    get(run, 0, [1, "p", 1, 2])
    run.complete(first, "ok", items=[[6, "p", 6, 1]], count=1)
    assert only(run, "gap") == []


def test_who_left_on_another_host_has_what_it_got_before(run: RunRecorder) -> None:
    """When that was nobody knows here; a SUB that came behind it would say so (Spark has it so)."""
    run.hosts["other"] = "elsewhere"
    get(run, 0, [1, "p", 1, 2])
    run.complete(run.invoke("s", "unsub", "t", process="other"), "info")
    get(run, 4, [5, "p", 5, 1])
    assert only(run, "gap") == ["s 5"]


def test_an_answer_that_jumps_inside_has_a_gap_with_or_without_a_cursor(run: RunRecorder) -> None:
    get(run, None, [1, "p", 1, 2], [4, "p", 4, 1])
    assert only(run, "gap") == ["s 4"]


def test_what_a_session_got_before_it_left_makes_no_gap_behind_the_new_start(
    run: RunRecorder,
) -> None:
    """Two threads: a GET without a cursor is out while the SUB is."""
    get(run, 0, [1, "p", 1, 5])
    run.unsub("s", "t")
    put(run, 10, 10)
    joining = run.invoke("s", "sub", "t")
    asking = run.invoke("s", "get", "t")
    run.complete(joining, "ok", last_id=10, resumed=False, cursor=10)
    put(run, 11, 11)
    run.complete(asking, "ok", items=[[11, "p", 11, 1]], count=1)
    assert found(run) == {}


def test_a_new_start_that_nobody_told_excuses_the_first_answer_and_no_later_one(
    run: RunRecorder,
) -> None:
    get(run, 0, [1, "p", 1, 2])
    run.unsub("s", "t")
    run.complete(run.invoke("s", "sub", "t"), "info", error="timeout")
    get(run, 2, [6, "p", 6, 1])
    assert only(run, "gap") == []
    run.sub("s", "t", 6, resumed=True, cursor=6)
    get(run, 6, [7, "p", 7, 1])
    get(run, 7, [9, "p", 9, 1])
    assert only(run, "gap") == ["s 9"]


def test_a_sub_while_subscribed_excuses_no_gap(run: RunRecorder) -> None:
    get(run, 0, [1, "p", 1, 2])
    run.sub("s", "t", 4, session=1)
    get(run, 2, [5, "p", 5, 1], session=1)
    assert only(run, "gap") == ["s 5"]


# --- duplicate_delivered --------------------------------------------------------------------------


def test_an_id_below_the_cursor_that_was_delivered_is_a_duplicate(run: RunRecorder) -> None:
    get(run, 0, [1, "p", 1, 3])
    get(run, 3, [2, "p", 2, 1], session=1)
    assert only(run, "duplicate_delivered") == ["s 2"]


def test_one_answer_may_not_bring_an_id_twice(run: RunRecorder) -> None:
    get(run, None, [1, "p", 1, 2], [2, "p", 2, 1])
    assert only(run, "duplicate_delivered") == ["s 2"]


@pytest.mark.parametrize("silent", ["t", ""])
def test_within_a_session_only_a_silence_lets_an_id_come_from_a_higher_cursor(
    run: RunRecorder, silent: str
) -> None:
    get(run, 0, [1, "p", 1, 3])
    run.complete(run.invoke("s", "get", silent, last_id=2), "info", error="timeout")
    get(run, 2, [3, "p", 3, 1])
    assert only(run, "duplicate_delivered") == []
    get(run, 1, [2, "p", 2, 3])
    get(run, 3, [4, "p", 4, 1])
    assert only(run, "duplicate_delivered") == ["s 4"]


def test_where_hand_overs_are_recorded_what_was_fetched_may_be_fetched_again(
    run: RunRecorder,
) -> None:
    get(run, 0, [1, "p", 1, 3], handed_apart=True)
    run.handle("s", "hand", "t", 1, 3, cursor=0)
    run.handle("s", "ack", "t", None, 2, cursor=0)
    get(run, 2, [3, "p", 3, 1], handed_apart=True)
    assert only(run, "duplicate_delivered") == []
    run.handle("s", "hand", "t", 3, 3, cursor=2)
    assert only(run, "duplicate_delivered") == ["s 3"]


# --- subscription ---------------------------------------------------------------------------------


def test_a_subscription_that_stood_may_not_be_forgotten(run: RunRecorder) -> None:
    run.sub("s", "t", 9, resumed=False, cursor=9)
    assert only(run, "subscription") == ["forgotten s"]


def test_a_subscription_that_was_left_is_begun_anew(run: RunRecorder) -> None:
    run.unsub("s", "t", "info")
    run.sub("s", "t", 9, resumed=False, cursor=9)
    assert found(run) == {}


@pytest.mark.parametrize("error", ["not_subscribed", "unknown_topic"])
def test_a_get_is_not_denied_while_the_subscription_stands(run: RunRecorder, error: str) -> None:
    run.complete(run.invoke("s", "get", "t", last_id=0), "fail", error=error)
    assert only(run, "subscription") == ["denied s"]


def test_a_get_is_denied_rightly_behind_an_unsub_or_before_any_sub(run: RunRecorder) -> None:
    run.unsub("s", "t")
    run.complete(run.invoke("s", "get", "t", last_id=0), "fail", error="not_subscribed")
    run.complete(run.invoke("r", "get", "t", last_id=0), "fail", error="not_subscribed")
    assert found(run) == {}


def test_nothing_is_given_behind_an_unsub_that_was_answered(run: RunRecorder) -> None:
    run.unsub("s", "t")
    get(run, 0, [1, "p", 1, 1])
    assert only(run, "subscription") == ["unsubscribed s"]


def test_nothing_is_given_without_any_sub(run: RunRecorder) -> None:
    get(run, 0, [1, "p", 1, 1], client="r")
    assert only(run, "subscription") == ["unsubscribed r"]


def test_an_unsub_under_way_or_a_sub_without_an_answer_explain_a_delivery(run: RunRecorder) -> None:
    run.complete(run.invoke("r", "sub", "t"), "info", error="timeout")
    leaving = run.invoke("s", "unsub", "t")
    get(run, 0, [1, "p", 1, 1])
    run.complete(leaving, "ok")
    get(run, 0, [1, "p", 1, 1], client="r")
    assert found(run) == {}


def test_an_answer_is_about_the_topic_that_was_asked_for(run: RunRecorder) -> None:
    asking = run.invoke("s", "get", "t", last_id=0)
    run.complete(asking | {"topic": "u"}, "ok", items=[[1, "p", 1, 1]], count=1)
    assert "topic u s" in only(run, "subscription")


def test_an_answer_brings_no_more_than_was_asked_for(run: RunRecorder) -> None:
    asking = run.invoke("s", "get", "t", last_id=0, max_count=2)
    run.complete(asking, "ok", items=[[1, "p", 1, 3]], count=3)
    assert only(run, "subscription") == ["limit 2, 3 came s"]
