"""Histories that deceive: starts, seeks, gaps, patterns, any topic, groups, garbage."""

from tests.judges.small import got, small, stored, three, unclear
from tests.judges.steps import (
    begins,
    drops_oldest,
    follows,
    got_of_any,
    hears_of,
    nothing_of_any,
    own,
    publishes,
    seeks,
    told_gap,
    was_given,
)
from tests.spark.cases_groups import begin, end, made, settled, took
from tests.spark.histories import RunRecorder


@small
def who_began_at_the_earliest_loses_one(run: RunRecorder) -> set[str]:
    begins(run, "s", "earliest", 0)
    publishes(run, 3)
    got(run, "s", 0, *own(1))
    got(run, "s", 1, *own(3))
    got(run, "s", 3)
    return {"gap 3", "lost middle 2"}


@small
def an_answer_jumps_for_who_began_at_the_earliest(run: RunRecorder) -> set[str]:
    begins(run, "s", "earliest", 0)
    publishes(run, 3)
    got(run, "s", 0, *own(1, 3))
    return {"gap 3", "lost middle 2"}


@small
def who_began_at_the_earliest_is_told_nothing(run: RunRecorder) -> set[str]:
    begins(run, "s", "earliest", 0)
    publishes(run, 3)
    got(run, "s", 0)
    return {"stale_read nothing 3"}


@small
def who_began_at_the_earliest_is_given_its_last_one_again(run: RunRecorder) -> set[str]:
    begins(run, "s", "earliest", 0)
    publishes(run, 3)
    got(run, "s", 0, *own(1, 2))
    got(run, "s", 2, *own(2, 3))
    return {"duplicate_delivered 2", "reordered 2"}


@small
def a_cursor_goes_back_without_a_seek(run: RunRecorder) -> set[str]:
    begins(run, "s", "earliest", 0)
    publishes(run, 3)
    got(run, "s", 0, *own(1, 2))
    got(run, "s", 2, *own(3))
    got(run, "s", 1, *own(2, 3), session=1)
    return {"cursor_regression asked 1"}


@small
def a_start_at_an_id_begins_behind_it(run: RunRecorder) -> set[str]:
    run.sub("r", "t", 0)
    publishes(run, 5)
    begins(run, "s", "2", 3)
    got(run, "s", 3, *own(4, 5))
    return {"subscription start"}


@small
def a_start_at_an_id_begins_before_it(run: RunRecorder) -> set[str]:
    run.sub("r", "t", 0)
    publishes(run, 5)
    begins(run, "s", "4", 1)
    got(run, "s", 1, *own(2, 3, 4, 5))
    return {"subscription start"}


@small
def a_subscription_is_made_anew_by_a_start_though_it_stood(run: RunRecorder) -> set[str]:
    run.sub("s", "t", 0)
    publishes(run, 3)
    begins(run, "s", "earliest", 0)
    return {"subscription forgotten"}


@small
def who_began_at_the_earliest_is_denied(run: RunRecorder) -> set[str]:
    begins(run, "s", "earliest", 0)
    run.complete(run.invoke("s", "get", "t", last_id=0), "fail", error="not_subscribed")
    return {"subscription denied"}


@small
def who_began_at_the_earliest_is_given_more_after_it_left(run: RunRecorder) -> set[str]:
    begins(run, "s", "earliest", 0)
    run.unsub("s", "t")
    publishes(run, 1)
    got(run, "s", 0, *own(1))
    return {"subscription unsubscribed"}


@small
def the_reading_behind_a_seek_loses_one(run: RunRecorder) -> set[str]:
    run.sub("s", "t", 0, resumed=False, cursor=0)
    publishes(run, 3)
    got(run, "s", 0, *own(1, 2, 3))
    seeks(run, "s", "2", 1)
    publishes(run, 5, 4)
    got(run, "s", 1, *own(2, 3))
    got(run, "s", 3, *own(5))
    return {"gap 5", "lost middle 4"}


@small
def the_reading_behind_a_seek_begins_too_high(run: RunRecorder) -> set[str]:
    run.sub("s", "t", 0)
    publishes(run, 4)
    got(run, "s", 0, *own(1, 2, 3, 4))
    seeks(run, "s", "2", 1)
    got(run, "s", 1, *own(3, 4))
    return {"gap 3"}


@small
def a_seek_lands_elsewhere(run: RunRecorder) -> set[str]:
    run.sub("s", "t", 0)
    publishes(run, 4)
    seeks(run, "s", "2", 3)
    got(run, "s", 3, *own(4))
    return {"subscription start"}


@small
def a_second_reading_differs_from_the_first(run: RunRecorder) -> set[str]:
    run.sub("s", "t", 0)
    publishes(run, 2)
    unclear(run, "q", 1)
    unclear(run, "q", 2)
    got(run, "s", 0, *own(1, 2), (3, "q", 1))
    seeks(run, "s", "1", 0)
    got(run, "s", 0, *own(1, 2), (3, "q", 2))
    return {"inconsistent_id 3"}


@small
def what_was_sought_is_handed_over_twice(run: RunRecorder) -> set[str]:
    run.sub("s", "t", 0)
    publishes(run, 2)
    seeks(run, "s", "1", 0)
    got(run, "s", 0, *own(1, 2), handed_apart=True)
    run.handle("s", "hand", "t", 1, 2, cursor=0)
    run.handle("s", "hand", "t", 1, 2, cursor=0)
    return {"duplicate_delivered 1", "duplicate_delivered 2"}


@small
def who_has_sought_back_is_told_that_there_is_nothing(run: RunRecorder) -> set[str]:
    run.sub("s", "t", 0)
    publishes(run, 4)
    got(run, "s", 0, *own(1, 2, 3, 4))
    seeks(run, "s", "2", 1)
    got(run, "s", 1)
    return {"stale_read nothing 4"}


@small
def a_start_that_failed_hides_no_loss(run: RunRecorder) -> set[str]:
    i = run.invoke("s", "sub", "t", start="earliest")
    run.complete(i, "fail", error="unauthorized")
    three(run)
    got(run, "s", 0, *own(1))
    got(run, "s", 1, *own(3))
    return {"gap 3", "lost middle 2"}


@small
def nobody_subscribes_is_said_beside_who_began_at_the_earliest(run: RunRecorder) -> set[str]:
    begins(run, "s", "earliest", 0)
    stored(run, "p", 1, 0)
    return {"lost unstored 1"}


@small
def a_start_at_a_time_brings_what_is_older(run: RunRecorder) -> set[str]:
    run.sub("r", "t", 0)
    publishes(run, 3)
    got(run, "r", 0, *own(1, 2, 3), times=[[1, 1, 100], [2, 3, 200]])
    begins(run, "s", "@150", 0)
    got(run, "s", 0, *own(1, 2, 3))
    return {"subscription start"}


@small
def a_gap_is_told_of_what_another_one_still_gets(run: RunRecorder) -> set[str]:
    run.sub("s", "t", 0)
    run.sub("r", "t", 0)
    publishes(run, 3)
    drops_oldest(run)
    told_gap(run, "s", 0, 1, 2)
    got(run, "s", 2, *own(3))
    got(run, "r", 0, *own(1, 2, 3))
    return {"purge alive 1"}


@small
def a_gap_is_told_of_what_comes_when_it_is_asked_for_again(run: RunRecorder) -> set[str]:
    run.sub("s", "t", 0)
    publishes(run, 3)
    drops_oldest(run)
    told_gap(run, "s", 0, 1, 2)
    got(run, "s", 0, *own(1, 2, 3), session=1)
    return {"purge alive 1"}


@small
def a_gap_is_told_to_one_of_two(run: RunRecorder) -> set[str]:
    run.sub("s", "t", 0)
    run.sub("r", "t", 0)
    publishes(run, 3)
    drops_oldest(run)
    told_gap(run, "s", 0, 1, 2)
    got(run, "s", 2, *own(3))
    got(run, "r", 0, *own(3))
    return {"gap 3", "lost prefix 1", "lost prefix 2"}


@small
def a_gap_is_told_in_part(run: RunRecorder) -> set[str]:
    run.sub("s", "t", 0)
    publishes(run, 5)
    drops_oldest(run)
    told_gap(run, "s", 0, 1, 2)
    got(run, "s", 3, (4, "p", 4), (5, "p", 5))
    return {"gap 4", "lost middle 3"}


@small
def a_gap_begins_too_high(run: RunRecorder) -> set[str]:
    run.sub("s", "t", 0)
    publishes(run, 5)
    drops_oldest(run)
    told_gap(run, "s", 0, 3, 4)
    got(run, "s", 4, *own(5))
    return {"gap 3", "lost prefix 1", "lost prefix 2"}


@small
def a_gap_goes_back(run: RunRecorder) -> set[str]:
    run.sub("s", "t", 0)
    publishes(run, 5)
    got(run, "s", 0, *own(1, 2))
    drops_oldest(run)
    told_gap(run, "s", 2, 1, 4)
    got(run, "s", 4, *own(5))
    return {"duplicate_delivered 1", "duplicate_delivered 2", "reordered 1"}


@small
def a_gap_is_told_where_nothing_is_dropped(run: RunRecorder) -> set[str]:
    run.sub("s", "t", 0)
    publishes(run, 3)
    told_gap(run, "s", 0, 1, 2)
    got(run, "s", 2, *own(3))
    return {"purge unsaid 2"}


@small
def a_gap_is_told_where_another_topic_drops(run: RunRecorder) -> set[str]:
    run.sub("s", "t", 0)
    publishes(run, 3)
    drops_oldest(run, "u")
    told_gap(run, "s", 0, 1, 2)
    got(run, "s", 2, *own(3))
    return {"purge unsaid 2"}


@small
def a_gap_reaches_above_what_comes_later(run: RunRecorder) -> set[str]:
    run.sub("s", "t", 0)
    publishes(run, 2)
    drops_oldest(run)
    told_gap(run, "s", 0, 1, 9)
    publishes(run, 3, 3)
    return {"realtime_order 3"}


@small
def a_gap_is_told_to_one_and_nothing_to_the_other(run: RunRecorder) -> set[str]:
    run.sub("s", "t", 0)
    run.sub("r", "t", 0)
    unclear(run, "p", 1)
    drops_oldest(run)
    told_gap(run, "s", 0, 1, 1)
    got(run, "r", 0)
    return {"stale_read nothing 1"}


@small
def a_gap_becomes_smaller(run: RunRecorder) -> set[str]:
    run.sub("s", "t", 0)
    run.sub("r", "t", 0)
    publishes(run, 5)
    drops_oldest(run)
    told_gap(run, "s", 0, 1, 4)
    told_gap(run, "r", 0, 1, 2)
    got(run, "r", 2, *own(3, 4, 5))
    return {"purge alive 3"}


@small
def a_group_gives_what_was_purged(run: RunRecorder) -> set[str]:
    made(run)
    publishes(run, 3)
    run.purge("t", 2)
    took(run, "a", 1, 1, [1, 3, 1])
    return {"purge kept 1"}


@small
def a_group_gives_what_another_one_was_told_is_gone(run: RunRecorder) -> set[str]:
    made(run)
    run.sub("s", "t", 0)
    publishes(run, 3)
    drops_oldest(run)
    told_gap(run, "s", 0, 1, 2)
    took(run, "a", 1, 1, [1, 3, 1])
    return {"purge alive 1"}


@small
def what_was_refused_comes_behind_a_gap(run: RunRecorder) -> set[str]:
    run.sub("s", "t", 0)
    publishes(run, 1)
    drops_oldest(run)
    run.put("p", "t", 2, "fail", error="backlog_full")
    told_gap(run, "s", 0, 1, 1)
    got(run, "s", 1, (2, "p", 2))
    return {"aborted_read 2"}


@small
def a_pattern_misses_a_topic(run: RunRecorder) -> set[str]:
    follows(run, "s", "o.*")
    run.sub("r", "o.a", 0)
    run.put("p", "o.a", 1, "ok", first_id=1, last_id=1)
    run.get("r", "o.a", 0, [[1, "p", 1, 1]])
    nothing_of_any(run, "s")
    return {"subscription missed"}


@small
def a_pattern_brings_a_topic_without_its_first_ones(run: RunRecorder) -> set[str]:
    follows(run, "s", "o.*")
    publishes(run, 3, t="o.a")
    hears_of(run, "s", "o.a", 2)
    got_of_any(run, "s", "o.a", 2, [[3, "p", 3, 1]])
    return {"subscription missed"}


@small
def a_pattern_brings_a_topic_that_it_has_not(run: RunRecorder) -> set[str]:
    follows(run, "s", "o.*")
    run.sub("r", "x.a", 0)
    publishes(run, 1, t="x.a")
    hears_of(run, "s", "x.a", 0)
    got_of_any(run, "s", "x.a", 0, [[1, "p", 1, 1]])
    return {"subscription kept"}


@small
def a_pattern_brings_a_topic_of_more_words(run: RunRecorder) -> set[str]:
    follows(run, "s", "o.*")
    run.sub("r", "o.a.b", 0)
    publishes(run, 1, t="o.a.b")
    hears_of(run, "s", "o.a.b", 0)
    got_of_any(run, "s", "o.a.b", 0, [[1, "p", 1, 1]])
    return {"subscription kept"}


@small
def a_pattern_goes_on_after_it_was_left(run: RunRecorder) -> set[str]:
    follows(run, "s", "o.*")
    publishes(run, 1, t="o.a")
    hears_of(run, "s", "o.a")
    u = run.invoke("s", "unsub", "o.*")
    v = run.invoke("s", "unsub", "o.a")
    run.complete(u, "ok")
    run.complete(v, "ok")
    got_of_any(run, "s", "o.a", 0, [[1, "p", 1, 1]])
    return {"subscription unsubscribed"}


@small
def a_pattern_is_forgotten(run: RunRecorder) -> set[str]:
    follows(run, "s", "o.*")
    follows(run, "s", "o.*", session=1)
    return {"subscription forgotten"}


@small
def a_pattern_loses_one_of_a_topic_that_it_brought(run: RunRecorder) -> set[str]:
    follows(run, "s", "o.*")
    publishes(run, 3, t="o.a")
    hears_of(run, "s", "o.a", 0)
    got_of_any(run, "s", "o.a", 0, [[1, "p", 1, 1]])
    got_of_any(run, "s", "o.a", 1, [[3, "p", 3, 1]])
    return {"gap 3", "lost middle 2"}


@small
def who_asks_for_any_topic_is_told_nothing(run: RunRecorder) -> set[str]:
    three(run)
    nothing_of_any(run, "s")
    return {"stale_read nothing 3"}


@small
def who_asks_for_any_topic_is_told_nothing_behind_its_first_one(run: RunRecorder) -> set[str]:
    three(run)
    got_of_any(run, "s", "t", 0, [[1, "p", 1, 1]])
    nothing_of_any(run, "s")
    return {"stale_read nothing 3"}


@small
def who_asks_for_any_topic_loses_one(run: RunRecorder) -> set[str]:
    three(run)
    got_of_any(run, "s", "t", 0, [[1, "p", 1, 1]])
    got_of_any(run, "s", "t", 1, [[3, "p", 3, 1]])
    return {"gap 3", "lost middle 2"}


@small
def who_asks_for_any_topic_is_given_what_it_has_left(run: RunRecorder) -> set[str]:
    three(run)
    run.unsub("s", "t")
    got_of_any(run, "s", "t", 0, [[1, "p", 1, 3]])
    return {"subscription unsubscribed"}


@small
def another_worker_acknowledges_by_the_token_that_it_never_had(run: RunRecorder) -> set[str]:
    made(run)
    publishes(run, 1)
    took(run, "a", 1, 1, [1, 1, 1])
    took(run, "b", 1, 0, acks=[[1, 1, 1]])
    settled(run, 1)
    return {"group_lease foreign 1"}


@small
def a_worker_acknowledges_more_than_it_was_leased(run: RunRecorder) -> set[str]:
    made(run)
    publishes(run, 2)
    took(run, "a", 1, 1, [1, 1, 1])
    took(run, "a", 2, 0, acks=[[1, 1, 2]])
    settled(run, 2)
    return {"group_lease foreign 2", "stale_read idle 2"}


@small
def an_ack_of_a_token_that_nobody_has_is_accepted(run: RunRecorder) -> set[str]:
    made(run)
    publishes(run, 1)
    took(run, "a", 1, 0, acks=[[7, 1, 1]])
    settled(run, 1)
    return {"group_lease foreign 1", "stale_read idle 1"}


@small
def a_dead_letter_comes_too_early(run: RunRecorder) -> set[str]:
    made(run, max_attempts=3, dead_letter="dl")
    run.sub("r", "dl", 0)
    publishes(run, 1)
    took(run, "a", 1, 1, [1, 1, 1])
    run.wait(2000)
    i = run.invoke("r", "get", "dl", last_id=0)
    run.complete(i, "ok", count=1, items=[], letters=[[1, "t", "g", 1]])
    settled(run, 1)
    return {"dead_letter early 1"}


@small
def a_dead_letter_is_of_what_was_never_given(run: RunRecorder) -> set[str]:
    made(run, max_attempts=3, dead_letter="dl")
    run.sub("r", "dl", 0)
    publishes(run, 1)
    i = run.invoke("r", "get", "dl", last_id=0)
    run.complete(i, "ok", count=1, items=[], letters=[[1, "t", "g", 1]])
    return {"dead_letter early 1"}


@small
def a_dead_letter_is_of_a_group_that_has_none(run: RunRecorder) -> set[str]:
    made(run)
    run.sub("r", "dl", 0)
    publishes(run, 1)
    took(run, "a", 1, 1, [1, 1, 1])
    i = run.invoke("r", "get", "dl", last_id=0)
    run.complete(i, "ok", count=1, items=[], letters=[[1, "t", "g", 1]])
    return {"dead_letter early 1"}


@small
def a_dead_letter_stands_in_another_topic(run: RunRecorder) -> set[str]:
    made(run, max_attempts=1, dead_letter="dl")
    run.sub("r", "xx", 0)
    publishes(run, 1)
    took(run, "a", 1, 1, [1, 1, 1])
    run.wait(2000)
    i = run.invoke("r", "get", "xx", last_id=0)
    run.complete(i, "ok", count=1, items=[], letters=[[1, "t", "g", 1]])
    return {"dead_letter elsewhere 1"}


@small
def a_dead_letter_is_given_to_one_of_two_readers(run: RunRecorder) -> set[str]:
    run.sub("r", "dl", 0)
    run.sub("q", "dl", 0)
    made(run, max_attempts=1, dead_letter="dl")
    publishes(run, 1)
    took(run, "a", 1, 1, [1, 1, 1])
    run.wait(2000)
    took(run, "a", 2, 0)
    i = run.invoke("r", "get", "dl", last_id=0)
    run.complete(i, "ok", count=1, items=[], letters=[[1, "t", "g", 1]])
    run.get("q", "dl", 0, [])
    run.drained("q", "dl", 0)
    return {"stale_read nothing 1"}


@small
def nobody_subscribes_is_said_beside_a_group(run: RunRecorder) -> set[str]:
    made(run)
    stored(run, "p", 1, 0)
    return {"lost unstored 1"}


@small
def a_worker_is_given_what_nobody_put(run: RunRecorder) -> set[str]:
    made(run)
    was_given(run, "a", 1, 1, [[1, 1, 1]], [[1, "ghost", 1, 1]])
    return {"group_content phantom 1"}


@small
def a_worker_is_given_something_else_than_was_acknowledged(run: RunRecorder) -> set[str]:
    made(run)
    publishes(run, 1)
    unclear(run, "q", 1)
    was_given(run, "a", 1, 1, [[1, 1, 1]], [[1, "q", 1, 1]])
    return {"group_content other 1"}


@small
def a_worker_is_given_what_had_failed(run: RunRecorder) -> set[str]:
    made(run)
    run.put("p", "t", 1, "fail", error="backlog_full")
    was_given(run, "a", 1, 1, [[1, 1, 1]], [[1, "p", 1, 1]])
    return {"group_content aborted 1"}


@small
def a_worker_is_given_what_is_sent_later(run: RunRecorder) -> set[str]:
    made(run)
    was_given(run, "a", 1, 1, [[1, 1, 1]], [[1, "p", 1, 1]])
    publishes(run, 1)
    return {"group_content future 1", "realtime_order 1"}


@small
def a_worker_is_given_what_does_not_check_out(run: RunRecorder) -> set[str]:
    made(run)
    publishes(run, 1)
    t = begin(run, "a", 1)
    end(run, t, 1, [[1, 1, 1]], items=[], corrupt=[[1, "checksum"]])
    return {"group_content corrupt 1"}


@small
def what_is_given_again_is_another_one(run: RunRecorder) -> set[str]:
    made(run)
    unclear(run, "p", 1)
    unclear(run, "q", 1)
    was_given(run, "a", 1, 1, [[1, 1, 1]], [[1, "p", 1, 1]])
    run.wait(2000)
    was_given(run, "b", 1, 2, [[1, 1, 2]], [[1, "q", 1, 1]])
    return {"group_content other 1"}


@small
def a_worker_and_a_subscriber_are_given_two_under_one_id(run: RunRecorder) -> set[str]:
    made(run)
    run.sub("s", "t", 0)
    unclear(run, "p", 1)
    unclear(run, "q", 1)
    was_given(run, "a", 1, 1, [[1, 1, 1]], [[1, "p", 1, 1]])
    got(run, "s", 0, (1, "q", 1))
    return {"group_content other 1"}


@small
def a_worker_is_given_one_under_two_ids(run: RunRecorder) -> set[str]:
    made(run)
    unclear(run, "p", 1)
    was_given(run, "a", 1, 1, [[1, 1, 1], [2, 2, 1]], [[1, "p", 1, 1], [2, "p", 1, 1]])
    return {"group_content twice 1", "group_content twice 2"}


@small
def a_worker_is_given_more_than_it_asked_for(run: RunRecorder) -> set[str]:
    made(run)
    publishes(run, 5)
    took(run, "a", 1, 1, [1, 5, 1], max_count=2)
    return {"subscription limit"}


@small
def what_is_put_later_stands_below_what_was_leased(run: RunRecorder) -> set[str]:
    made(run)
    took(run, "a", 1, 1, [5, 5, 1])
    stored(run, "p", 1, 3)
    return {"realtime_order 3"}


@small
def what_is_put_later_stands_below_where_a_group_began(run: RunRecorder) -> set[str]:
    made(run, last_id=5)
    stored(run, "p", 1, 3)
    return {"realtime_order 3"}


@small
def a_group_gives_what_lies_below_its_start(run: RunRecorder) -> set[str]:
    made(run, last_id=5)
    took(run, "a", 1, 1, [3, 3, 1])
    return {"group_order settled 3"}


@small
def a_first_lease_is_called_a_second(run: RunRecorder) -> set[str]:
    made(run)
    publishes(run, 1)
    took(run, "a", 1, 1, [1, 1, 2])
    return {"group_lease jump 1"}


@small
def a_group_gives_after_it_was_ended(run: RunRecorder) -> set[str]:
    made(run)
    publishes(run, 1)
    i = run.invoke("a", "ungroup", "t", group="g", epoch=1)
    run.complete(i, "ok")
    took(run, "a", 1, 1, [1, 1, 1])
    return {"subscription unsubscribed"}


@small
def a_group_gives_that_nobody_made(run: RunRecorder) -> set[str]:
    publishes(run, 1)
    took(run, "a", 1, 1, [1, 1, 1])
    return {"subscription unsubscribed"}


@small
def a_group_is_forgotten(run: RunRecorder) -> set[str]:
    made(run)
    made(run)
    return {"subscription forgotten"}


@small
def a_group_is_denied(run: RunRecorder) -> set[str]:
    made(run)
    t = begin(run, "a", 1)
    run.complete(t, "fail", error="not_subscribed")
    return {"subscription denied"}


@small
def what_was_settled_is_open_again(run: RunRecorder) -> set[str]:
    made(run)
    publishes(run, 2)
    took(run, "a", 1, 1, [1, 2, 1])
    took(run, "a", 2, 0, acks=[[1, 1, 2]])
    settled(run, 2)
    settled(run, 1)
    return {"group_order back 1"}


@small
def what_was_settled_is_given_again(run: RunRecorder) -> set[str]:
    made(run)
    run.put("p", "t", 1, "ok", 2, first_id=1, last_id=2)
    t = run.invoke("a", "take", "t", group="g", number=1, max_count=9)
    run.complete(t, "info", error="timeout")
    settled(run, 2)
    took(run, "b", 1, 2, [1, 1, 1])
    return {"group_lost settled 1", "group_order settled 1"}


@small
def what_is_leased_is_settled(run: RunRecorder) -> set[str]:
    made(run)
    publishes(run, 1)
    took(run, "a", 1, 1, [1, 1, 1])
    settled(run, 1)
    return {"group_lost settled 1"}


@small
def what_was_given_back_is_settled(run: RunRecorder) -> set[str]:
    made(run)
    publishes(run, 1)
    took(run, "a", 1, 1, [1, 1, 1])
    took(run, "a", 2, 0, naks=[[1, 1, 1, 0]])
    settled(run, 1)
    return {"group_lost settled 1"}


@small
def a_worker_acknowledges_by_the_token_of_another_one_before_it(run: RunRecorder) -> set[str]:
    made(run)
    publishes(run, 1)
    took(run, "a", 1, 1, [1, 1, 1])
    run.wait(2000)
    took(run, "b", 1, 2, [1, 1, 2])
    took(run, "b", 2, 0, acks=[[1, 1, 1]])
    return {"group_lease foreign 1", "group_order late 1"}


@small
def a_key_is_given_from_its_second_one_on(run: RunRecorder) -> set[str]:
    made(run, ordered_by_key=True)
    publishes(run, 2)
    t = begin(run, "a", 1)
    end(run, t, 1, [[2, 2, 1]], keyed=[2], keys="c" * 16)
    t = begin(run, "b", 1)
    end(run, t, 2, [[1, 1, 1]], keyed=[1], keys="c" * 16)
    return {"key_order 2"}


@small
def what_was_never_given_is_settled(run: RunRecorder) -> set[str]:
    made(run)
    publishes(run, 3)
    took(run, "a", 1, 1, [1, 1, 1], [3, 3, 1])
    took(run, "a", 2, 0, acks=[[1, 1, 1], [1, 3, 3]])
    settled(run, 3)
    return {"group_lost settled 2"}


@small
def a_group_begins_elsewhere_than_it_was_told(run: RunRecorder) -> set[str]:
    i = run.invoke("a", "group", "t", group="g", epoch=1, start="1")
    publishes(run, 3)
    run.complete(i, "ok", last_id=2, resumed=False)
    return {"subscription start"}


@small
def a_group_begins_in_the_past(run: RunRecorder) -> set[str]:
    run.sub("s", "t", 0)
    publishes(run, 3)
    made(run, last_id=1)
    return {"stale_read start 3"}


@small
def two_sessions_of_a_producer_are_stored_in_turn(run: RunRecorder) -> set[str]:
    run.sub("s", "t", 0)
    stored(run, "p", 1, 2)
    stored(run, "p", 2, 1, session=1)
    return {"realtime_order 1", "reordered 2"}


@small
def two_topics_read_each_others_future(run: RunRecorder) -> set[str]:
    run.sub("s", "t", 0)
    run.sub("r", "u", 0)
    run.get("s", "t", 0, [[1, "p", 1, 1]])
    run.put("q", "u", 1, "ok", first_id=1, last_id=1)
    run.get("r", "u", 0, [[1, "q", 1, 1]])
    run.put("p", "t", 1, "ok", first_id=1, last_id=1)
    return {"future_read 1", "realtime_order 1"}


@small
def puts_under_way_at_once_are_stored_against_their_counters(run: RunRecorder) -> set[str]:
    run.sub("s", "t", 0)
    a = run.invoke("p", "put", "t", counter=1, count=1)
    b = run.invoke("p", "put", "t", counter=2, count=1)
    run.complete(b, "ok", first_id=1, last_id=1)
    run.complete(a, "ok", first_id=2, last_id=2)
    return {"reordered 2"}


@small
def who_takes_over_begins_behind_what_was_acknowledged(run: RunRecorder) -> set[str]:
    three(run)
    got(run, "s", 0, *own(1, 2, 3), epoch=1)
    got(run, "s", 3, epoch=1)
    run.sub("s", "t", 1, process="s2", epoch=2, resumed=True, cursor=1)
    return {"cursor_regression answered 1"}


@small
def ids_begin_anew_with_a_topic(run: RunRecorder) -> set[str]:
    run.sub("s", "t", 0)
    publishes(run, 3)
    got(run, "s", 0, *own(1, 2, 3))
    run.unsub("s", "t")
    run.sub("s", "t", 0, resumed=False, cursor=0)
    stored(run, "p", 4, 1)
    return {
        "inconsistent_id 1",
        "realtime_order 1",
        "reordered 2",
        "reordered 3",
        "stale_read start 3",
    }


@small
def a_deposed_leader_says_that_nobody_subscribes(run: RunRecorder) -> set[str]:
    run.sub("s", "t", 0, node="a", term=2)
    stored(run, "p", 1, 0, node="b", term=1)
    return {"lost unstored 1", "term_order 1"}


@small
def a_repeated_put_is_acknowledged_with_other_properties(run: RunRecorder) -> set[str]:
    run.sub("s", "t", 0)
    stored(run, "p", 1, 1, marked=[1], properties="01" * 8)
    stored(run, "p", 1, 1, duplicate=True, marked=[1], properties="02" * 8)
    return {"properties content 1"}


@small
def nodes_have_collected_what_nobody_has_read(run: RunRecorder) -> set[str]:
    run.disk("a", "b", "c")
    run.sub("s", "t", 0)
    publishes(run, 3)
    got(run, "s", 0, *own(1))
    run.found_on("abc", "topic", topic="t", last_id=3, floor_id=3)
    run.found_on("abc", "counter", producer="p", topic="t", counter=3)
    return {"lost middle 2", "lost middle 3"}


@small
def nodes_have_collected_what_a_group_has_not_settled(run: RunRecorder) -> set[str]:
    run.disk("a", "b", "c")
    made(run)
    publishes(run, 3)
    took(run, "a", 1, 1, [1, 1, 1])
    run.found_on("abc", "topic", topic="t", last_id=3, floor_id=3)
    run.found_on("abc", "counter", producer="p", topic="t", counter=3)
    return {"group_lost settled 1"}
