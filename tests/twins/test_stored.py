"""docs/checks.md, what stands where: places, tries, batches; a small history a sentence."""

from __future__ import annotations

import pytest

from tests.spark.histories import RunRecorder
from tests.twins.found import found, get, put


@pytest.fixture
def run() -> RunRecorder:
    """Return a run in which `s` subscribes to `t` before anything else."""
    run = RunRecorder()
    run.sub("s", "t", 0, resumed=False, cursor=0)
    return run


def test_a_retry_that_is_stored_again_has_two_places(run: RunRecorder) -> None:
    put(run, 1, 1)
    put(run, 1, 2)
    assert found(run)["duplicate_stored"] == ["p 1 1"]


def test_a_delivery_and_an_acknowledgment_may_tell_of_two_places(run: RunRecorder) -> None:
    put(run, 1, 1)
    get(run, 0, [1, "p", 1, 1], [2, "p", 1, 1])
    assert found(run)["duplicate_stored"] == ["p 1 1"]


def test_two_nodes_may_hold_one_publication_under_two_ids(run: RunRecorder) -> None:
    run.disk("a", "b", "c")
    put(run, 1, 1)
    fields = {"topic": "t", "producer": "p", "first_counter": 1, "count": 1}
    run.found_on("ab", "held", first_id=1, **fields)
    run.found_on("c", "held", first_id=2, **fields)
    assert found(run)["duplicate_stored"] == ["p 1 1"]


def test_a_node_may_hold_another_publication_under_the_id(run: RunRecorder) -> None:
    run.disk("a", "b", "c")
    put(run, 1, 1)
    put(run, 1, None, producer="q")
    fields = {"topic": "t", "first_counter": 1, "count": 1, "first_id": 1}
    run.found_on("abc", "held", producer="p", **fields)
    run.found_on("c", "held", producer="q", **fields)
    assert found(run)["inconsistent_id"] == ["q 1 p 1 1"]


def test_a_later_counter_at_a_lower_place_is_out_of_order(run: RunRecorder) -> None:
    late = run.invoke("p", "put", "t", counter=1, count=1)
    put(run, 2, 1)
    run.complete(late, "ok", first_id=2, last_id=2)
    assert found(run)["reordered"] == ["producer p 1 2"]


def test_a_second_copy_is_stored_twice_and_no_disorder(run: RunRecorder) -> None:
    put(run, 1, 1)
    put(run, 2, 2)
    put(run, 1, 3)
    assert "reordered" not in found(run)


def test_what_nobody_tried_is_a_phantom_wherever_it_is_seen(run: RunRecorder) -> None:
    run.disk("a")
    get(run, 0, [1, "p", 1, 1])
    run.held("a", "q", "t", 7)
    assert found(run) == {"phantom": ["p 1 1", "q 7"]}


def test_what_failed_at_every_try_was_not_to_be_seen(run: RunRecorder) -> None:
    run.put("p", "t", 1, "fail", error="electing")
    get(run, 0, [1, "p", 1, 1])
    assert found(run) == {"aborted_read": ["p 1 1"]}


# --- future_read ----------------------------------------------------------------------------------


def test_what_is_given_before_it_was_put_is_read_from_the_future(run: RunRecorder) -> None:
    get(run, 0, [1, "p", 1, 1])
    put(run, 1, 1)
    assert found(run)["future_read"] == ["p 1 1"]


def test_a_failed_try_before_the_read_does_not_explain_it(run: RunRecorder) -> None:
    run.put("p", "t", 1, "fail", error="electing")
    get(run, 0, [1, "p", 1, 1])
    put(run, 1, 1)
    assert found(run)["future_read"] == ["p 1 1"]


def test_a_try_that_began_before_the_read_ended_explains_it(run: RunRecorder) -> None:
    asking = run.invoke("s", "get", "t", last_id=0)
    trying = run.invoke("p", "put", "t", counter=1, count=1)
    run.complete(asking, "ok", items=[[1, "p", 1, 1]], count=1)
    run.complete(trying, "ok", first_id=1, last_id=1)
    assert found(run) == {}


def test_a_try_on_another_host_may_have_come_before(run: RunRecorder) -> None:
    run.hosts = {"p": "elsewhere"}
    get(run, 0, [1, "p", 1, 1])
    put(run, 1, 1)
    assert found(run) == {}


# --- torn_batch -----------------------------------------------------------------------------------


def test_a_batch_with_another_one_s_publication_inside_is_split(run: RunRecorder) -> None:
    put(run, 1, None, 2)
    put(run, 1, 2, producer="q")
    get(run, 0, [1, "p", 1, 1], [2, "q", 1, 1], [3, "p", 2, 1])
    assert found(run) == {"torn_batch": ["split p 1 1"]}


def test_half_a_batch_is_missing_where_a_subscriber_went_past(run: RunRecorder) -> None:
    put(run, 1, None, 2)
    put(run, 1, 2, producer="q")
    get(run, 0, [1, "p", 1, 1], [2, "q", 1, 1])
    assert found(run) == {"torn_batch": ["half s p 2 2"]}


def test_the_first_half_may_be_missing_too(run: RunRecorder) -> None:
    put(run, 1, 1, producer="q")
    put(run, 1, None, 2)
    get(run, 0, [1, "q", 1, 1], [2, "p", 2, 1])
    assert found(run)["torn_batch"] == ["half s p 1 1"]


def test_half_a_batch_is_missing_once_its_subscriber_drained(run: RunRecorder) -> None:
    put(run, 1, None, 2)
    get(run, 0, [1, "p", 1, 1])
    assert found(run) == {}
    get(run, 1)
    run.drained("s", "t", 1)
    assert found(run) == {"torn_batch": ["half s p 2 2"]}


def test_a_subscription_may_begin_inside_a_batch() -> None:
    run = RunRecorder()
    put(run, 1, 1, 2)
    run.complete(run.invoke("s", "sub", "t"), "info")
    get(run, 1, [2, "p", 2, 1])
    get(run, 2)
    run.drained("s", "t", 2)
    assert found(run) == {}


def test_a_corrupt_half_was_given(run: RunRecorder) -> None:
    put(run, 1, None, 2)
    get(run, 0, [1, "p", 1, 1], corrupt=[[2, "checksum"]])
    assert found(run) == {"corrupt": ["checksum s 2"]}


def test_counters_that_some_try_held_apart_are_no_batch(run: RunRecorder) -> None:
    put(run, 1, None, 2)
    put(run, 1, None)
    put(run, 1, 2, producer="q")
    put(run, 2, None)
    get(run, 0, [1, "p", 1, 1], [2, "q", 1, 1], [3, "p", 2, 1])
    assert found(run) == {}


def test_a_try_that_failed_binds_nothing_and_parts_nothing(run: RunRecorder) -> None:
    run.put("p", "t", 1, "fail", 1, error="electing")
    put(run, 1, None, 2)
    put(run, 1, 2, producer="q")
    get(run, 0, [1, "p", 1, 1], [2, "q", 1, 1], [3, "p", 2, 1])
    assert found(run) == {"torn_batch": ["split p 1 1"]}
