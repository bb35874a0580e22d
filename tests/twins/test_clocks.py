"""docs/checks.md, real time: what was known may not be denied; a small history a sentence."""

from __future__ import annotations

import pytest

from tests.spark.histories import RunRecorder
from tests.twins.found import found, get, put


@pytest.fixture
def run() -> RunRecorder:
    """Return a run in which `s` and `r` subscribe to `t` before anything else."""
    run = RunRecorder()
    run.sub("s", "t", 0, resumed=False, cursor=0)
    run.sub("r", "t", 0, resumed=False, cursor=0)
    return run


# --- realtime_order -------------------------------------------------------------------------------


def test_nothing_stands_below_what_was_acknowledged_before_it_was_sent(run: RunRecorder) -> None:
    put(run, 1, 5)
    put(run, 1, 4, producer="q")
    assert found(run)["realtime_order"] == ["q 1 4"]


def test_nothing_stands_below_what_anybody_was_given_before(run: RunRecorder) -> None:
    put(run, 1, None)
    get(run, 4, [5, "p", 1, 1])
    put(run, 1, 4, producer="q")
    assert found(run)["realtime_order"] == ["q 1 4"]


def test_nothing_stands_below_a_cursor_that_was_accepted_before(run: RunRecorder) -> None:
    get(run, 5)
    put(run, 1, 5, producer="q")
    assert found(run)["realtime_order"] == ["q 1 5"]


def test_nothing_stands_below_a_start_that_was_answered_before(run: RunRecorder) -> None:
    run.sub("u", "t", 5, resumed=False, cursor=5)
    put(run, 1, 5)
    assert found(run)["realtime_order"] == ["p 1 5"]


def test_a_delivery_tells_a_place_as_well(run: RunRecorder) -> None:
    put(run, 1, 5)
    put(run, 1, None, producer="q")
    get(run, 3, [4, "q", 1, 1], [5, "p", 1, 1])
    assert found(run) == {"realtime_order": ["q 1 4"]}


def test_who_tried_before_may_stand_below(run: RunRecorder) -> None:
    early = run.invoke("q", "put", "t", counter=1, count=1)
    put(run, 1, 2)
    run.complete(early, "ok", first_id=1, last_id=1)
    assert found(run) == {}


# --- stale_read -----------------------------------------------------------------------------------


def test_nothing_is_a_lie_once_anybody_was_given_more(run: RunRecorder) -> None:
    put(run, 1, None)
    get(run, 0, [1, "p", 1, 1], client="r")
    get(run, 0)
    assert found(run) == {"stale_read": ["nothing s 1"]}


def test_nothing_is_true_above_the_start_of_a_subscription(run: RunRecorder) -> None:
    put(run, 1, 1)
    run.unsub("s", "t")
    run.sub("s", "t", 1, resumed=False, cursor=1)
    get(run, 0)
    assert "stale_read" not in found(run)


def test_nothing_may_be_true_where_nobody_knows_where_the_subscription_began(
    run: RunRecorder,
) -> None:
    put(run, 1, 1)
    run.unsub("s", "t")
    run.complete(run.invoke("s", "sub", "t"), "info", error="timeout")
    get(run, 0)
    assert found(run) == {}


def test_a_new_subscription_begins_at_the_end(run: RunRecorder) -> None:
    put(run, 1, None)
    get(run, 0, [1, "p", 1, 1])
    run.sub("u", "t", 0, resumed=False, cursor=0)
    assert found(run) == {"stale_read": ["start u 1"]}


# --- cursor_regression ----------------------------------------------------------------------------


def test_a_cursor_that_was_accepted_does_not_go_back(run: RunRecorder) -> None:
    put(run, 1, 1, 3)
    get(run, 2, [3, "p", 3, 1])
    get(run, 1, [2, "p", 2, 2], session=1)
    assert "asked s 1" in found(run)["cursor_regression"]


def test_a_sub_is_not_answered_with_less_than_was_accepted(run: RunRecorder) -> None:
    put(run, 1, 1, 3)
    get(run, 0, [1, "p", 1, 3])
    get(run, 3)
    run.sub("s", "t", 3, session=1, resumed=True, cursor=2)
    assert found(run) == {"cursor_regression": ["answered s 2"]}


def test_a_subscription_does_not_resume_above_all_that_was_read(run: RunRecorder) -> None:
    put(run, 1, 1, 3)
    get(run, 0, [1, "p", 1, 1])
    run.sub("s", "t", 3, session=1, resumed=True, cursor=3)
    assert found(run) == {"cursor_regression": ["ahead s 3"]}


def test_a_retried_sub_resumes_what_its_first_attempt_began(run: RunRecorder) -> None:
    put(run, 1, 1, 3)
    get(run, 0, [1, "p", 1, 1])
    run.unsub("s", "t")
    run.sub("s", "t", 3, session=1, resumed=True, cursor=3)
    assert found(run) == {}


# --- epochs and terms -----------------------------------------------------------------------------


def test_an_old_epoch_has_no_success_behind_a_newer_one(run: RunRecorder) -> None:
    put(run, 1, 1, epoch=1)
    put(run, 2, 2, epoch=2, process="twin")
    put(run, 3, 3, epoch=1)
    assert found(run) == {"fencing": ["put of epoch 1 after epoch 2 p"]}


def test_terms_do_not_go_back(run: RunRecorder) -> None:
    put(run, 1, 1, term=3)
    put(run, 2, 2, term=2)
    put(run, 3, 3, term=3)
    assert found(run) == {"term_order": ["2"]}


def test_who_asked_before_a_newer_term_answered_may_be_answered_in_an_older_one(
    run: RunRecorder,
) -> None:
    early = run.invoke("q", "put", "t", counter=1, count=1)
    put(run, 1, 2, term=3)
    run.complete(early, "ok", first_id=1, last_id=1, term=2)
    assert found(run) == {}


def test_terms_of_two_hosts_are_not_compared(run: RunRecorder) -> None:
    run.hosts = {"q": "elsewhere"}
    put(run, 1, 1, term=3)
    put(run, 1, 2, producer="q", term=2)
    assert found(run) == {}


def test_one_node_leads_a_term(run: RunRecorder) -> None:
    put(run, 1, 1, term=3, node="a")
    put(run, 2, 2, term=3, node="b")
    assert found(run) == {"leaders_per_term": ["term: a b 3"]}
