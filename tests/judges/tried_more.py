"""Histories that deceive, written by who had read what the others had tried."""

from typing import Any

from tests.judges.small import got, small, stored, three, unclear
from tests.judges.steps import begins, hears_of, own, publishes, was_given
from tests.spark.cases_groups import begin, end, made, settled, took
from tests.spark.histories import RunRecorder

KEY, OTHER = "a" * 16, "b" * 16


def letter_to(run: RunRecorder, client: str, asked: int, *letters: list[Any]) -> None:
    """Record that dead letters came, from the id behind `asked` on; none: there was nothing."""
    invoke = run.invoke(client, "get", "dl", last_id=asked)
    run.complete(invoke, "ok", count=len(letters), items=[], letters=list(letters))


def leased(run: RunRecorder, client: str, number: int, token: int, keys: str, *ids: int) -> None:
    """Record a TAKE that leases ids, each with the key of its place in `keys`."""
    runs = [[id_, id_, 1] for id_ in ids]
    take = begin(run, client, number)
    end(run, take, token, runs, keyed=list(ids), keys=keys)


# --- what nodes have ------------------------------------------------------------------------------


@small
def no_disk_holds_what_was_given_and_never_acknowledged(run: RunRecorder) -> set[str]:
    run.disk("a", "b", "c")
    run.sub("s", "t", 0)
    unclear(run, "p", 1)
    got(run, "s", 0, (1, "p", 1))
    run.found_on("abc", "topic", topic="t", last_id=0, floor_id=0)
    return {"ack_not_durable 1"}


@small
def one_disk_of_three_holds_what_was_given(run: RunRecorder) -> set[str]:
    run.disk("a", "b", "c")
    run.sub("s", "t", 0)
    unclear(run, "p", 1)
    got(run, "s", 0, (1, "p", 1))
    run.held("a", "p", "t", 1)
    run.found_on("abc", "topic", topic="t", last_id=1, floor_id=0)
    return {"ack_not_durable 1"}


# --- counters -------------------------------------------------------------------------------------


@small
def a_counter_that_nobody_tried_was_taken_between_two(run: RunRecorder) -> set[str]:
    run.sub("s", "t", 0)
    stored(run, "p", 1, 1)
    stored(run, "p", 3, 2)
    got(run, "s", 0, (1, "p", 1), (2, "p", 3))
    return {"phantom 2"}


@small
def counters_that_nobody_tried_were_taken_before_a_batch(run: RunRecorder) -> set[str]:
    run.sub("s", "t", 0)
    stored(run, "p", 1, 1, 2)
    stored(run, "p", 9, 3, 2)
    got(run, "s", 0, (1, "p", 1), (2, "p", 2), (3, "p", 9), (4, "p", 10))
    return {"phantom 3"}


@small
def a_counter_that_failed_was_taken_between_two(run: RunRecorder) -> set[str]:
    run.sub("s", "t", 0)
    stored(run, "p", 1, 1)
    run.put("p", "t", 2, "fail", error="backlog_full")
    stored(run, "p", 3, 2)
    got(run, "s", 0, (1, "p", 1), (2, "p", 3))
    return {"aborted_read 2"}


@small
def a_counter_was_skipped_far_behind_the_one_before(run: RunRecorder) -> set[str]:
    run.sub("s", "t", 0)
    stored(run, "p", 1, 1)
    stored(run, "p", 20_000, 2)
    got(run, "s", 0, (1, "p", 1), (2, "p", 20_000))
    return {"phantom 2"}


# --- times ----------------------------------------------------------------------------------------


@small
def a_batch_has_two_times(run: RunRecorder) -> set[str]:
    run.sub("s", "t", 0)
    stored(run, "p", 1, 1, 3)
    got(run, "s", 0, *own(1, 2, 3), times=[[1, 2, 50], [3, 3, 51]])
    return {"properties batch 1"}


@small
def a_batch_has_two_times_in_two_answers(run: RunRecorder) -> set[str]:
    run.sub("s", "t", 0)
    stored(run, "p", 1, 1, 4)
    got(run, "s", 0, *own(1, 2), times=[[1, 2, 50]])
    got(run, "s", 2, *own(3, 4), times=[[3, 4, 60]])
    return {"properties batch 1"}


@small
def times_go_back_from_one_topic_to_another(run: RunRecorder) -> set[str]:
    run.sub("s", "t", 0)
    run.sub("s", "u", 0)
    stored(run, "p", 1, 1)
    got(run, "s", 0, (1, "p", 1), times=[[1, 1, 50]])
    run.put("q", "u", 1, "ok", first_id=1, last_id=1)
    run.get("s", "u", 0, [[1, "q", 1, 1]], times=[[1, 1, 49]])
    return {"realtime_order 1"}


@small
def a_time_is_below_one_of_another_topic_that_another_one_was_told(run: RunRecorder) -> set[str]:
    run.sub("s", "t", 0)
    run.sub("r", "u", 0)
    run.put("q", "u", 1, "ok", first_id=1, last_id=1)
    run.get("r", "u", 0, [[1, "q", 1, 1]], times=[[1, 1, 90]])
    stored(run, "p", 1, 1)
    stored(run, "p", 2, 2)
    got(run, "s", 0, *own(1, 2), times=[[1, 1, 80], [2, 2, 95]])
    return {"realtime_order 1"}


# --- groups: what was given -----------------------------------------------------------------------


@small
def one_id_stands_twice_in_a_take(run: RunRecorder) -> set[str]:
    made(run)
    publishes(run, 2)
    took(run, "a", 1, 1, [1, 1, 1], [1, 2, 1])
    return {"group_order doubled 1"}


@small
def a_key_changes_when_it_is_given_again(run: RunRecorder) -> set[str]:
    made(run, ordered_by_key=True)
    publishes(run, 1)
    leased(run, "a", 1, 1, KEY, 1)
    run.wait(2000)
    take = begin(run, "b", 1)
    end(run, take, 2, [[1, 1, 2]], keyed=[1], keys=OTHER)
    return {"key_order 1"}


@small
def a_key_is_gone_when_it_is_given_again(run: RunRecorder) -> set[str]:
    made(run)
    publishes(run, 2)
    leased(run, "a", 1, 1, KEY + OTHER, 1, 2)
    run.wait(2000)
    take = begin(run, "b", 1)
    end(run, take, 2, [[1, 2, 2]], keyed=[2], keys=OTHER)
    return {"key_order 1"}


@small
def a_group_gives_the_second_before_the_first(run: RunRecorder) -> set[str]:
    made(run)
    publishes(run, 2)
    took(run, "a", 1, 1, [2, 2, 1])
    took(run, "b", 1, 2, [1, 1, 1])
    return {"group_order overtaken 1"}


@small
def a_group_gives_what_it_had_passed_over(run: RunRecorder) -> set[str]:
    made(run)
    publishes(run, 6)
    took(run, "a", 1, 1, [1, 2, 1], [5, 5, 1])
    took(run, "a", 2, 2, [3, 4, 1], acks=[[1, 1, 2], [1, 5, 5]])
    return {"group_order overtaken 3", "group_order overtaken 4"}


@small
def a_group_is_told_nothing(run: RunRecorder) -> set[str]:
    made(run)
    publishes(run, 1)
    took(run, "a", 1, 0)
    return {"stale_read idle 1"}


@small
def a_group_is_told_nothing_when_all_before_is_done(run: RunRecorder) -> set[str]:
    made(run)
    publishes(run, 2)
    took(run, "a", 1, 1, [1, 2, 1])
    publishes(run, 3, 3)
    took(run, "a", 2, 0, acks=[[1, 1, 2]])
    return {"stale_read idle 3"}


@small
def who_found_a_group_is_told_nothing(run: RunRecorder) -> set[str]:
    made(run, start="earliest")
    publishes(run, 2)
    took(run, "a", 1, 1, [1, 2, 1])
    took(run, "a", 2, 0, acks=[[1, 1, 2]], max_count=None)
    publishes(run, 3, 3)
    settled(run, 2)
    took(run, "b", 1, 0)
    return {"stale_read idle 3"}


# --- groups: settlements --------------------------------------------------------------------------


@small
def an_ack_is_refused_though_its_lease_stood(run: RunRecorder) -> set[str]:
    made(run)
    publishes(run, 1)
    took(run, "a", 1, 1, [1, 1, 1])
    took(run, "a", 2, 0, acks=[[1, 1, 1]], lost=[[1, 1]])
    return {"group_lease refused 1"}


@small
def an_ack_is_refused_and_it_is_given_to_another_one(run: RunRecorder) -> set[str]:
    made(run)
    publishes(run, 1)
    took(run, "a", 1, 1, [1, 1, 1])
    took(run, "a", 2, 0, acks=[[1, 1, 1]], lost=[[1, 1]])
    run.wait(2000)
    took(run, "b", 1, 2, [1, 1, 2])
    return {"group_lease refused 1"}


@small
def a_lease_is_not_extended_though_it_stood(run: RunRecorder) -> set[str]:
    made(run)
    publishes(run, 1)
    took(run, "a", 1, 1, [1, 1, 1])
    took(run, "a", 2, 0, max_count=None, extends=[[1, 1, 1, 60_000]], lost=[[1, 1]])
    return {"group_lease refused 1"}


@small
def what_was_given_back_for_later_comes_at_once(run: RunRecorder) -> set[str]:
    made(run)
    publishes(run, 1)
    took(run, "a", 1, 1, [1, 1, 1])
    took(run, "a", 2, 0, naks=[[1, 1, 1, 60_000]])
    took(run, "b", 1, 2, [1, 1, 2])
    return {"group_lease soon 1"}


@small
def what_was_extended_is_given_to_another_one(run: RunRecorder) -> set[str]:
    made(run)
    publishes(run, 1)
    took(run, "a", 1, 1, [1, 1, 1])
    took(run, "a", 2, 0, max_count=None, extends=[[1, 1, 1, 60_000]])
    run.wait(2000)
    took(run, "b", 1, 2, [1, 1, 2])
    took(run, "a", 3, 0, max_count=None, extends=[[1, 1, 1, 60_000]], lost=[[1, 1]])
    return {"group_lease shared 1"}


@small
def an_extension_hides_no_second_owner(run: RunRecorder) -> set[str]:
    made(run)
    publishes(run, 1)
    took(run, "a", 1, 1, [1, 1, 1])
    took(run, "a", 2, 0, max_count=None, extends=[[1, 1, 1, 60_000]])
    took(run, "b", 1, 2, [1, 1, 2])
    took(run, "a", 3, 0)
    return {"group_lease shared 1"}


# --- groups: dead letters -------------------------------------------------------------------------


@small
def a_dead_letter_never_came(run: RunRecorder) -> set[str]:
    run.sub("r", "dl", 0)
    made(run, max_attempts=1, dead_letter="dl")
    publishes(run, 1)
    took(run, "a", 1, 1, [1, 1, 1])
    run.wait(2000)
    took(run, "a", 2, 0)
    settled(run, 1)
    letter_to(run, "r", 0)
    return {"group_lost settled 1"}


@small
def one_of_two_dead_letters_came(run: RunRecorder) -> set[str]:
    run.sub("r", "dl", 0)
    made(run, max_attempts=1, dead_letter="dl")
    publishes(run, 2)
    took(run, "a", 1, 1, [1, 2, 1])
    run.wait(2000)
    took(run, "a", 2, 0)
    settled(run, 2)
    letter_to(run, "r", 0, [1, "t", "g", 2])
    letter_to(run, "r", 1)
    return {"group_lost settled 1"}


@small
def a_take_without_an_answer_hides_no_letter_that_never_came(run: RunRecorder) -> set[str]:
    run.sub("r", "dl", 0)
    made(run, max_attempts=1, dead_letter="dl")
    publishes(run, 1)
    take = begin(run, "a", 1)
    run.complete(take, "info", error="timeout")
    run.wait(2000)
    settled(run, 1)
    letter_to(run, "r", 0)
    return {"group_lost settled 1"}


@small
def a_dead_letter_stands_where_something_was_acknowledged(run: RunRecorder) -> set[str]:
    three(run)
    invoke = run.invoke("s", "get", "t", last_id=0)
    items = [[1, "p", 1, 1], [3, "p", 3, 1]]
    letters = [[2, "x", "h", 7]]
    said = {"first_id": 1, "last_id": 3, "count": 3}
    run.complete(invoke, "ok", items=items, letters=letters, **said)
    return {"inconsistent_id 2"}


# --- groups: who is there -------------------------------------------------------------------------


@small
def a_group_is_found_that_nobody_made(run: RunRecorder) -> set[str]:
    publishes(run, 1)
    end_ = run.invoke("a", "group", "t", group="g", epoch=1)
    run.complete(end_, "ok", last_id=0, resumed=True, attempt=1)
    return {"subscription kept"}


@small
def a_group_that_was_ended_is_found_again(run: RunRecorder) -> set[str]:
    made(run)
    run.complete(run.invoke("a", "ungroup", "t", group="g", epoch=1), "ok")
    again = run.invoke("b", "group", "t", group="g", epoch=1)
    run.complete(again, "ok", last_id=0, resumed=True, attempt=1)
    return {"subscription kept"}


@small
def an_old_process_of_a_worker_goes_on(run: RunRecorder) -> set[str]:
    made(run)
    publishes(run, 2)
    took(run, "a", 1, 1, [1, 1, 1], epoch=2)
    took(run, "a", 2, 2, [2, 2, 1], epoch=1)
    return {"fencing"}


@small
def a_worker_is_answered_in_an_older_term(run: RunRecorder) -> set[str]:
    made(run)
    run.put("p", "t", 1, "ok", first_id=1, last_id=1, node="a", term=4)
    take = begin(run, "a", 1)
    end(run, take, 1, [[1, 1, 1]], node="b", term=3)
    return {"term_order 3"}


@small
def two_lead_a_term_one_of_them_for_a_worker(run: RunRecorder) -> set[str]:
    made(run)
    run.put("p", "t", 1, "ok", first_id=1, last_id=1, node="a", term=4)
    take = begin(run, "a", 1)
    end(run, take, 1, [[1, 1, 1]], node="b", term=4)
    return {"leaders_per_term 4"}


@small
def a_worker_is_given_what_another_topic_has(run: RunRecorder) -> set[str]:
    made(run)
    run.sub("s", "u", 0)
    run.put("p", "u", 1, "ok", first_id=1, last_id=1)
    was_given(run, "a", 1, 1, [[1, 1, 1]], [[1, "p", 1, 1]])
    return {"group_content phantom 1"}


# --- what the application was handed --------------------------------------------------------------


@small
def who_drained_was_never_handed_the_last_one(run: RunRecorder) -> set[str]:
    three(run)
    got(run, "s", 0, *own(1, 2, 3), handed_apart=True)
    run.handle("s", "hand", "t", 1, 2, cursor=0)
    run.drained("s", "t", 3)
    return {"lost unhanded 3"}


# --- expiry ---------------------------------------------------------------------------------------


@small
def what_has_expired_is_given(run: RunRecorder) -> set[str]:
    run.sub("s", "t", 0)
    stored(run, "p", 1, 1, expires=[[1, 1, 10]], node="a", term=1)
    run.wait(5000)
    run.get("s", "t", 0, [[1, "p", 1, 1]], node="a", term=1)
    return {"purge late 1"}


# --- subscriptions --------------------------------------------------------------------------------


@small
def a_resumed_subscription_says_two_places(run: RunRecorder) -> set[str]:
    three(run)
    run.sub("s", "t", 3, session=1, resumed=True, cursor=0)
    got(run, "s", 3, session=1)
    return {"lost prefix 1", "lost prefix 2", "lost prefix 3"}


@small
def who_asks_for_any_topic_is_given_what_lies_below_its_start(run: RunRecorder) -> set[str]:
    run.sub("r", "t", 0)
    publishes(run, 3)
    run.sub("s", "t", 3)
    run.get("s", "", None, [[2, "p", 2, 1]], answered="t", cursor=3)
    return {"reordered 2"}


@small
def a_pattern_is_told_that_its_topic_stands_above_what_it_gave(run: RunRecorder) -> set[str]:
    follows = run.invoke("s", "sub", "o.*")
    run.complete(follows, "ok", last_id=0, cursor=0, resumed=False)
    publishes(run, 3, t="o.a")
    hears_of(run, "s", "o.a", 3)
    return {"subscription missed"}


@small
def a_start_at_a_time_of_a_group_brings_what_is_older(run: RunRecorder) -> set[str]:
    run.sub("r", "t", 0)
    publishes(run, 3)
    got(run, "r", 0, *own(1, 2, 3), times=[[1, 1, 100], [2, 3, 200]])
    made(run, start="@150", last_id=0)
    return {"subscription start"}


@small
def who_begins_at_the_earliest_misses_what_another_one_gets_later(run: RunRecorder) -> set[str]:
    run.sub("r", "t", 0)
    publishes(run, 3)
    begins(run, "s", "earliest", 2)
    got(run, "s", 2, *own(3))
    got(run, "r", 0, *own(1, 2, 3))
    return {"subscription start"}
