"""What a correct cluster can do of the same (tried.py), and what would leave the same record."""

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
)
from tests.spark.cases_groups import begin, end, made, settled, took
from tests.spark.histories import RunRecorder

NOTHING: set[str] = set()


@small
def a_start_at_a_time_begins_at_what_is_kept(run: RunRecorder) -> set[str]:
    run.sub("r", "t", 0)
    publishes(run, 3)
    got(run, "r", 0, *own(1, 2, 3), times=[[1, 1, 100], [2, 3, 200]])
    begins(run, "s", "@150", 2)
    got(run, "s", 2, *own(3))
    return NOTHING


@small
def a_pattern_that_was_not_asked_may_have_no_room(run: RunRecorder) -> set[str]:
    follows(run, "s", "o.*")
    run.put("p", "o.a", 1, "ok", first_id=0, last_id=0)
    return NOTHING


@small
def a_group_may_have_no_room_for_more(run: RunRecorder) -> set[str]:
    made(run)
    publishes(run, 2)
    took(run, "b", 1, 1, [1, 1, 1])
    took(run, "a", 1, 0)
    return NOTHING


@small
def a_second_reading_brings_the_same(run: RunRecorder) -> set[str]:
    run.sub("s", "t", 0)
    publishes(run, 3)
    got(run, "s", 0, *own(1, 2, 3))
    seeks(run, "s", "1", 0)
    got(run, "s", 0, *own(1, 2, 3))
    got(run, "s", 3)
    return NOTHING


@small
def a_seek_passes_over_some(run: RunRecorder) -> set[str]:
    run.sub("s", "t", 0)
    publishes(run, 5)
    got(run, "s", 0, *own(1))
    seeks(run, "s", "5", 4)
    got(run, "s", 4, *own(5))
    return NOTHING


@small
def who_sought_twice_comes_back_in_another_session(run: RunRecorder) -> set[str]:
    run.sub("s", "t", 0, resumed=False, cursor=0)
    publishes(run, 5)
    got(run, "s", 0, *own(1, 2, 3))
    seeks(run, "s", "5", 4)
    got(run, "s", 4, *own(5))
    seeks(run, "s", "2", 1)
    got(run, "s", 1, *own(2))
    run.sub("s", "t", 2, session=1, resumed=True, cursor=1)
    got(run, "s", 2, *own(3, 4, 5), session=1)
    return NOTHING


@small
def a_seek_without_an_answer_was_carried_out(run: RunRecorder) -> set[str]:
    run.sub("s", "t", 0)
    publishes(run, 5)
    got(run, "s", 0, *own(1, 2, 3))
    seeks(run, "s", "1", 0, "info")
    got(run, "s", 0, *own(1, 2, 3, 4, 5))
    return NOTHING


@small
def a_seek_without_an_answer_passed_over_some(run: RunRecorder) -> set[str]:
    run.sub("s", "t", 0)
    publishes(run, 5)
    got(run, "s", 0, *own(1))
    seeks(run, "s", "5", 0, "info")
    got(run, "s", 4, *own(5))
    return NOTHING


@small
def the_earliest_is_what_is_kept(run: RunRecorder) -> set[str]:
    run.sub("r", "t", 0)
    publishes(run, 5)
    begins(run, "s", "earliest", 2)
    got(run, "s", 2, *own(3, 4, 5))
    return NOTHING


@small
def what_was_sought_is_handed_over_again(run: RunRecorder) -> set[str]:
    run.sub("s", "t", 0)
    publishes(run, 2)
    got(run, "s", 0, *own(1, 2), handed_apart=True)
    run.handle("s", "hand", "t", 1, 2, cursor=0)
    run.handle("s", "ack", "t", None, 2, cursor=0)
    got(run, "s", 2, handed_apart=True)
    seeks(run, "s", "1", 0)
    got(run, "s", 0, *own(1, 2), handed_apart=True)
    run.handle("s", "hand", "t", 1, 2, cursor=0)
    run.handle("s", "ack", "t", None, 2, cursor=0)
    return NOTHING


@small
def another_process_begins_anew_at_an_id(run: RunRecorder) -> set[str]:
    begins(run, "s", "earliest", 0)
    publishes(run, 3)
    got(run, "s", 0, *own(1, 2, 3))
    run.unsub("s", "t")
    begins(run, "s", "1", 0, process="s2")
    got(run, "s", 0, *own(1, 2, 3), process="s2")
    return NOTHING


@small
def a_get_is_under_way_while_its_client_seeks(run: RunRecorder) -> set[str]:
    run.sub("s", "t", 0)
    publishes(run, 3)
    got(run, "s", 0, *own(1))
    g = run.invoke("s", "get", "t", last_id=1)
    seeks(run, "s", "1", 0)
    run.complete(g, "ok", items=[[2, "p", 2, 2]], count=2)
    got(run, "s", 0, *own(1, 2, 3))
    return NOTHING


@small
def who_seeks_the_end_passes_over_the_rest(run: RunRecorder) -> set[str]:
    run.sub("s", "t", 0)
    publishes(run, 3)
    seeks(run, "s", None, 3)
    publishes(run, 4, 4)
    got(run, "s", 3, *own(4))
    return NOTHING


@small
def a_start_at_a_time_begins_at_the_first_one_of_it(run: RunRecorder) -> set[str]:
    run.sub("r", "t", 0)
    publishes(run, 3)
    got(run, "r", 0, *own(1, 2, 3), times=[[1, 1, 100], [2, 3, 200]])
    begins(run, "s", "@150", 1)
    got(run, "s", 1, *own(2, 3))
    return NOTHING


@small
def a_start_of_who_subscribes_already_is_ignored(run: RunRecorder) -> set[str]:
    run.sub("s", "t", 0, resumed=False, cursor=0)
    publishes(run, 3)
    got(run, "s", 0, *own(1, 2))
    begins(run, "s", "3", 2, resumed=True, cursor=0)
    got(run, "s", 2, *own(3))
    return NOTHING


@small
def a_gap_grows(run: RunRecorder) -> set[str]:
    run.sub("s", "t", 0)
    run.sub("r", "t", 0)
    publishes(run, 5)
    drops_oldest(run)
    told_gap(run, "s", 0, 1, 2)
    got(run, "s", 2, *own(3))
    told_gap(run, "r", 0, 1, 4)
    got(run, "r", 4, *own(5))
    told_gap(run, "s", 3, 4, 4)
    got(run, "s", 4, *own(5))
    return NOTHING


@small
def one_reads_what_is_dropped_later(run: RunRecorder) -> set[str]:
    run.sub("s", "t", 0)
    run.sub("r", "t", 0)
    publishes(run, 5)
    drops_oldest(run)
    got(run, "r", 0, *own(1, 2, 3))
    told_gap(run, "s", 0, 1, 2)
    got(run, "s", 2, *own(3, 4, 5))
    got(run, "r", 3, *own(4, 5))
    return NOTHING


@small
def a_get_is_under_way_while_another_one_is_told_of_a_gap(run: RunRecorder) -> set[str]:
    run.sub("s", "t", 0)
    run.sub("r", "t", 0)
    publishes(run, 3)
    drops_oldest(run)
    g = run.invoke("r", "get", "t", last_id=0)
    told_gap(run, "s", 0, 1, 2)
    run.complete(g, "ok", items=[[1, "p", 1, 3]], count=3)
    got(run, "s", 2, *own(3))
    return NOTHING


@small
def who_asks_for_any_topic_is_told_of_a_gap(run: RunRecorder) -> set[str]:
    run.sub("s", "t", 0)
    publishes(run, 3)
    drops_oldest(run)
    i = run.invoke("s", "get", "")
    run.complete(i, "fail", topic="t", error="gap", first_id=1, last_id=2, cursor=0)
    got_of_any(run, "s", "t", 2, [[3, "p", 3, 1]])
    return NOTHING


@small
def a_gap_is_told_again_in_another_session(run: RunRecorder) -> set[str]:
    run.sub("s", "t", 0, resumed=False, cursor=0)
    publishes(run, 4)
    drops_oldest(run)
    told_gap(run, "s", 0, 1, 2)
    run.sub("s", "t", 0, session=1, resumed=True, cursor=0)
    told_gap(run, "s", 0, 1, 3, session=1)
    got(run, "s", 3, *own(4), session=1)
    return NOTHING


@small
def a_pattern_brings_a_topic_with_all_that_it_has(run: RunRecorder) -> set[str]:
    follows(run, "s", "o.*")
    publishes(run, 3, t="o.a")
    hears_of(run, "s", "o.a", 0)
    got_of_any(run, "s", "o.a", 0, [[1, "p", 1, 3]])
    return NOTHING


@small
def nobody_subscribes_while_a_pattern_is_under_way(run: RunRecorder) -> set[str]:
    i = run.invoke("s", "sub", "o.*")
    run.put("p", "o.a", 1, "ok", first_id=0, last_id=0)
    run.complete(i, "ok", last_id=0, cursor=0, resumed=False)
    return NOTHING


@small
def a_pattern_has_no_room_and_says_so(run: RunRecorder) -> set[str]:
    follows(run, "s", "o.*")
    i = run.invoke("s", "get", "")
    run.put("p", "o.a", 1, "ok", first_id=0, last_id=0)
    run.complete(i, "fail", error="too_many")
    return NOTHING


@small
def a_pattern_has_no_topic_of_fewer_or_more_words(run: RunRecorder) -> set[str]:
    follows(run, "s", "o.*")
    run.put("p", "o", 1, "ok", first_id=0, last_id=0)
    run.put("p", "o.a.b", 1, "ok", first_id=0, last_id=0)
    return NOTHING


@small
def nobody_subscribes_while_a_pattern_is_left(run: RunRecorder) -> set[str]:
    follows(run, "s", "o.*")
    u = run.invoke("s", "unsub", "o.*")
    run.put("p", "o.a", 1, "ok", first_id=0, last_id=0)
    run.complete(u, "ok")
    return NOTHING


@small
def a_pattern_brings_a_topic_at_its_end(run: RunRecorder) -> set[str]:
    run.sub("r", "o.a", 0)
    publishes(run, 3, t="o.a")
    follows(run, "s", "o.*")
    hears_of(run, "s", "o.a", 3)
    nothing_of_any(run, "s")
    return NOTHING


@small
def a_topic_is_made_while_its_follower_is_told_nothing(run: RunRecorder) -> set[str]:
    follows(run, "s", "o.*")
    g = run.invoke("s", "get", "")
    publishes(run, 1, t="o.a")
    run.complete(g, "ok", items=[], count=0)
    hears_of(run, "s", "o.a", 0)
    got_of_any(run, "s", "o.a", 0, [[1, "p", 1, 1]])
    return NOTHING


@small
def a_pattern_resumes(run: RunRecorder) -> set[str]:
    follows(run, "s", "o.*")
    follows(run, "s", "o.*", session=1, resumed=True)
    publishes(run, 1, t="o.a")
    hears_of(run, "s", "o.a")
    got_of_any(run, "s", "o.a", 0, [[1, "p", 1, 1]], session=1)
    return NOTHING


@small
def who_asks_for_any_topic_has_all(run: RunRecorder) -> set[str]:
    three(run)
    got(run, "s", 0, *own(1, 2, 3))
    nothing_of_any(run, "s")
    return NOTHING


@small
def who_asks_for_any_topic_is_just_given_it(run: RunRecorder) -> set[str]:
    three(run)
    g = run.invoke("s", "get", "t", last_id=0)
    nothing_of_any(run, "s")
    run.complete(g, "ok", items=[[1, "p", 1, 3]], count=3)
    return NOTHING


@small
def who_asks_for_any_topic_may_have_subscribed_later(run: RunRecorder) -> set[str]:
    run.sub("r", "t", 0)
    run.invoke("s", "sub", "t")
    publishes(run, 3)
    nothing_of_any(run, "s")
    return NOTHING


@small
def a_late_ack_is_accepted_where_nobody_else_was_given_it(run: RunRecorder) -> set[str]:
    made(run)
    publishes(run, 1)
    took(run, "a", 1, 1, [1, 1, 1])
    run.wait(5000)
    took(run, "a", 2, 0, acks=[[1, 1, 1]])
    settled(run, 1)
    return NOTHING


@small
def who_asks_again_has_a_part_of_its_lease_left(run: RunRecorder) -> set[str]:
    made(run)
    publishes(run, 3)
    took(run, "a", 1, 1, [1, 3, 1])
    t = begin(run, "a", 1)
    end(run, t, 1, [[2, 3, 1]], attempt=2)
    return NOTHING


@small
def a_take_without_an_answer_took_the_lease(run: RunRecorder) -> set[str]:
    made(run)
    publishes(run, 1)
    took(run, "a", 1, 1, [1, 1, 1])
    t = begin(run, "b", 1)
    run.wait(2000)
    run.complete(t, "info", error="timeout")
    took(run, "a", 2, 0, acks=[[1, 1, 1]], lost=[[1, 1]])
    return NOTHING


@small
def a_dead_letter_comes_after_the_last_attempt(run: RunRecorder) -> set[str]:
    run.sub("r", "dl", 0)
    made(run, max_attempts=1, dead_letter="dl")
    publishes(run, 1)
    took(run, "a", 1, 1, [1, 1, 1])
    run.wait(2000)
    took(run, "a", 2, 0)
    i = run.invoke("r", "get", "dl", last_id=0)
    run.complete(i, "ok", count=1, items=[], letters=[[1, "t", "g", 1]])
    settled(run, 1)
    return NOTHING


@small
def nobody_subscribes_while_a_group_is_ended(run: RunRecorder) -> set[str]:
    made(run)
    publishes(run, 1)
    i = run.invoke("a", "ungroup", "t", group="g", epoch=1)
    stored(run, "p", 2, 0)
    run.complete(i, "ok")
    return NOTHING


@small
def nobody_subscribes_after_an_end_without_an_answer(run: RunRecorder) -> set[str]:
    made(run)
    i = run.invoke("a", "ungroup", "t", group="g", epoch=1)
    run.complete(i, "info", error="timeout")
    stored(run, "p", 1, 0)
    return NOTHING


@small
def a_group_begins_at_the_earliest(run: RunRecorder) -> set[str]:
    run.sub("s", "t", 0)
    publishes(run, 3)
    i = run.invoke("a", "group", "t", group="g", epoch=1, start="earliest")
    run.complete(i, "ok", last_id=0, resumed=False)
    took(run, "a", 1, 1, [1, 3, 1])
    took(run, "a", 2, 0, acks=[[1, 1, 3]])
    settled(run, 3)
    return NOTHING


@small
def an_ack_that_comes_twice_is_lost_once(run: RunRecorder) -> set[str]:
    made(run)
    publishes(run, 1)
    took(run, "a", 1, 1, [1, 1, 1])
    took(run, "a", 2, 0, acks=[[1, 1, 1]])
    took(run, "a", 3, 0, acks=[[1, 1, 1]], lost=[[1, 1]])
    return NOTHING


@small
def a_purge_settles_what_it_took(run: RunRecorder) -> set[str]:
    made(run)
    publishes(run, 3)
    took(run, "a", 1, 1, [1, 1, 1])
    run.purge("t", 3)
    took(run, "a", 2, 0, acks=[[1, 1, 1]], lost=[[1, 1]])
    settled(run, 3)
    return NOTHING


@small
def a_take_is_under_way_while_its_topic_is_purged(run: RunRecorder) -> set[str]:
    made(run)
    publishes(run, 3)
    t = begin(run, "a", 1)
    run.purge("t", 3)
    end(run, t, 1, [[1, 3, 1]])
    return NOTHING


@small
def puts_under_way_at_once_are_stored_by_their_counters(run: RunRecorder) -> set[str]:
    run.sub("s", "t", 0)
    a = run.invoke("p", "put", "t", counter=1, count=1)
    b = run.invoke("p", "put", "t", counter=2, count=1)
    run.complete(b, "ok", first_id=2, last_id=2)
    run.complete(a, "ok", first_id=1, last_id=1)
    got(run, "s", 0, *own(1, 2))
    return NOTHING


@small
def a_topic_goes_on_after_its_last_subscriber_left(run: RunRecorder) -> set[str]:
    three(run)
    got(run, "s", 0, *own(1, 2, 3))
    run.unsub("s", "t")
    stored(run, "p", 4, 0)
    run.sub("s", "t", 3, resumed=False, cursor=3)
    stored(run, "p", 5, 4)
    got(run, "s", 3, (4, "p", 5))
    return NOTHING


@small
def a_batch_is_sent_again_out_of_the_outbox(run: RunRecorder) -> set[str]:
    run.sub("s", "t", 0)
    unclear(run, "p", 1, 3)
    stored(run, "p", 1, 1, 3, duplicate=True, session=1)
    stored(run, "p", 4, 4, session=1)
    got(run, "s", 0, *own(1, 2, 3, 4))
    return NOTHING


@small
def a_topic_keeps_what_nobody_subscribes_to(run: RunRecorder) -> set[str]:
    stored(run, "p", 1, 1)
    begins(run, "s", "earliest", 0)
    got(run, "s", 0, *own(1))
    return NOTHING


@small
def two_topics_are_stamped_while_both_are_under_way(run: RunRecorder) -> set[str]:
    run.sub("s", "t", 0)
    run.sub("s", "u", 0)
    a = run.invoke("p", "put", "t", counter=1, count=1)
    run.put("q", "u", 1, "ok", first_id=1, last_id=1)
    run.complete(a, "ok", first_id=1, last_id=1)
    run.get("s", "t", 0, [[1, "p", 1, 1]], times=[[1, 1, 50]])
    run.get("s", "u", 0, [[1, "q", 1, 1]], times=[[1, 1, 40]])
    return NOTHING


@small
def nodes_have_collected_what_was_read(run: RunRecorder) -> set[str]:
    run.disk("a", "b", "c")
    run.sub("s", "t", 0)
    publishes(run, 3)
    got(run, "s", 0, *own(1, 2, 3))
    got(run, "s", 3)
    run.found_on("abc", "topic", topic="t", last_id=3, floor_id=3)
    run.found_on("abc", "counter", producer="p", topic="t", counter=3)
    return NOTHING


@small
def nodes_have_collected_what_nobody_waits_for(run: RunRecorder) -> set[str]:
    run.disk("a", "b", "c")
    run.sub("s", "t", 0)
    publishes(run, 3)
    run.unsub("s", "t")
    run.found_on("abc", "topic", topic="t", last_id=3, floor_id=3)
    run.found_on("abc", "counter", producer="p", topic="t", counter=3)
    return NOTHING


@small
def a_dead_letter_is_of_what_expired_before_it_was_given(run: RunRecorder) -> set[str]:
    """One that came too early would look the same: which of the two it was, no record says."""
    made(run, max_attempts=3, dead_letter="dl")
    run.sub("r", "dl", 0)
    put = run.invoke("p", "put", "t", counter=1, count=1, expires=[[1, 1, 5]])
    run.complete(put, "ok", first_id=1, last_id=1, expires=[[1, 1, 5]])
    read = run.invoke("r", "get", "dl", last_id=0)
    run.complete(read, "ok", count=1, items=[], letters=[[1, "t", "g", 1]])
    return NOTHING


# --- the same of tried_more.py --------------------------------------------------------------------


@small
def a_producer_begins_with_any_counter(run: RunRecorder) -> set[str]:
    run.sub("s", "t", 0)
    stored(run, "p", 7, 1)
    stored(run, "p", 8, 2)
    got(run, "s", 0, (1, "p", 7), (2, "p", 8))
    return NOTHING


@small
def a_counter_that_failed_is_given_to_the_next_one(run: RunRecorder) -> set[str]:
    run.sub("s", "t", 0)
    stored(run, "p", 1, 1)
    run.put("p", "t", 2, "fail", error="backlog_full")
    stored(run, "p", 2, 2)
    run.put("p", "t", 3, "fail", 4, error="backlog_full")
    stored(run, "p", 3, 3)
    return NOTHING


@small
def counters_of_unknown_outcome_stand_between_two(run: RunRecorder) -> set[str]:
    run.sub("s", "t", 0)
    stored(run, "p", 1, 1)
    unclear(run, "p", 2, 3)
    stored(run, "p", 5, 5)
    got(run, "s", 0, *own(1, 2, 3, 4, 5))
    return NOTHING


@small
def a_batch_has_one_time_in_two_answers(run: RunRecorder) -> set[str]:
    run.sub("s", "t", 0)
    stored(run, "p", 1, 1, 3)
    got(run, "s", 0, *own(1, 2), times=[[1, 2, 50]])
    got(run, "s", 2, *own(3), times=[[3, 3, 50]])
    return NOTHING


@small
def a_put_is_under_way_while_a_greater_time_is_told(run: RunRecorder) -> set[str]:
    run.sub("s", "t", 0)
    run.sub("s", "u", 0)
    put = run.invoke("p", "put", "t", counter=1, count=1)
    run.put("q", "u", 1, "ok", first_id=1, last_id=1)
    run.get("s", "u", 0, [[1, "q", 1, 1]], times=[[1, 1, 50]])
    run.complete(put, "ok", first_id=1, last_id=1)
    got(run, "s", 0, *own(1), times=[[1, 1, 40]])
    return NOTHING


@small
def what_is_sent_again_has_the_time_of_its_first_try(run: RunRecorder) -> set[str]:
    run.sub("s", "t", 0)
    run.sub("s", "u", 0)
    unclear(run, "p", 1)
    run.put("q", "u", 1, "ok", first_id=1, last_id=1)
    run.get("s", "u", 0, [[1, "q", 1, 1]], times=[[1, 1, 50]])
    stored(run, "p", 1, 1, session=1, duplicate=True)
    got(run, "s", 0, *own(1), times=[[1, 1, 40]])
    return NOTHING


@small
def what_waited_for_its_key_is_given_behind_higher_ones(run: RunRecorder) -> set[str]:
    made(run, ordered_by_key=True)
    publishes(run, 3)
    take = begin(run, "a", 1)
    end(run, take, 1, [[1, 1, 1], [3, 3, 1]], keyed=[1, 3], keys="a" * 16 + "b" * 16)
    take = begin(run, "a", 2, acks=[[1, 1, 1]])
    end(run, take, 2, [[2, 2, 1]], keyed=[2], keys="a" * 16)
    return NOTHING


@small
def what_a_take_without_an_answer_had_comes_behind_higher_ones(run: RunRecorder) -> set[str]:
    made(run)
    publishes(run, 3)
    run.complete(begin(run, "b", 1), "info", error="timeout")
    took(run, "a", 1, 2, [3, 3, 1])
    run.wait(2000)
    took(run, "a", 2, 3, [1, 2, 2], acks=[[2, 3, 3]])
    return NOTHING


@small
def an_ack_is_refused_when_its_lease_had_run_out(run: RunRecorder) -> set[str]:
    made(run)
    publishes(run, 1)
    took(run, "a", 1, 1, [1, 1, 1])
    run.wait(2000)
    took(run, "b", 1, 2, [1, 1, 2])
    took(run, "a", 2, 0, acks=[[1, 1, 1]], lost=[[1, 1]])
    return NOTHING


@small
def an_ack_that_is_said_twice_is_refused_once(run: RunRecorder) -> set[str]:
    made(run)
    publishes(run, 1)
    took(run, "a", 1, 1, [1, 1, 1])
    run.complete(begin(run, "a", 2, acks=[[1, 1, 1]]), "info", error="timeout")
    took(run, "a", 3, 0, acks=[[1, 1, 1]], lost=[[1, 1]])
    return NOTHING


@small
def what_was_given_back_comes_when_its_delay_is_over(run: RunRecorder) -> set[str]:
    made(run)
    publishes(run, 2)
    took(run, "a", 1, 1, [1, 2, 1])
    took(run, "a", 2, 0, naks=[[1, 1, 1, 500], [1, 2, 2, 0]])
    took(run, "b", 1, 2, [2, 2, 2])
    run.wait(500)
    took(run, "b", 2, 3, [1, 1, 2])
    return NOTHING


@small
def a_lease_that_was_shortened_goes_to_another_one(run: RunRecorder) -> set[str]:
    made(run)
    publishes(run, 1)
    took(run, "a", 1, 1, [1, 1, 1])
    took(run, "a", 2, 0, max_count=None, extends=[[1, 1, 1, 5]])
    run.wait(10)
    took(run, "b", 1, 2, [1, 1, 2])
    took(run, "a", 3, 0)
    return NOTHING


@small
def a_group_is_told_nothing_while_something_is_put(run: RunRecorder) -> set[str]:
    made(run)
    put = run.invoke("p", "put", "t", counter=1, count=1)
    took(run, "a", 1, 0)
    run.complete(put, "ok", first_id=1, last_id=1)
    took(run, "a", 2, 1, [1, 1, 1])
    took(run, "b", 1, 0)
    return NOTHING


@small
def a_group_that_began_further_on_is_told_nothing(run: RunRecorder) -> set[str]:
    run.sub("s", "t", 0)
    publishes(run, 2)
    made(run, last_id=2)
    took(run, "a", 1, 0)
    return NOTHING


@small
def a_group_is_told_nothing_while_another_one_may_have_all(run: RunRecorder) -> set[str]:
    made(run)
    publishes(run, 1)
    run.complete(begin(run, "b", 1), "info", error="timeout")
    took(run, "a", 1, 0)
    return NOTHING


@small
def nobody_has_read_a_dead_letter_yet(run: RunRecorder) -> set[str]:
    run.sub("r", "dl", 0)
    made(run, max_attempts=1, dead_letter="dl")
    publishes(run, 1)
    took(run, "a", 1, 1, [1, 1, 1])
    read = run.invoke("r", "get", "dl", last_id=0)
    run.wait(2000)
    took(run, "a", 2, 0)
    settled(run, 1)
    run.complete(read, "ok", count=0, items=[])
    return NOTHING


@small
def who_reads_the_dead_letters_came_later(run: RunRecorder) -> set[str]:
    made(run, max_attempts=1, dead_letter="dl")
    publishes(run, 1)
    took(run, "a", 1, 1, [1, 1, 1])
    run.wait(2000)
    took(run, "a", 2, 0)
    settled(run, 1)
    run.sub("r", "dl", 1)
    run.get("r", "dl", 1, [])
    return NOTHING


@small
def who_asks_for_a_group_again_finds_what_it_made(run: RunRecorder) -> set[str]:
    asked = run.invoke("a", "group", "t", group="g", epoch=1)
    run.complete(asked, "ok", last_id=0, resumed=True, attempt=2)
    publishes(run, 1)
    took(run, "a", 1, 1, [1, 1, 1])
    return NOTHING


@small
def two_disks_of_three_hold_what_was_given(run: RunRecorder) -> set[str]:
    run.disk("a", "b", "c")
    run.sub("s", "t", 0)
    unclear(run, "p", 1)
    got(run, "s", 0, *own(1))
    run.found_on("ab", "held", producer="p", topic="t", first_counter=1, count=1, first_id=1)
    run.found_on("abc", "topic", topic="t", last_id=1, floor_id=0)
    run.found_on("abc", "counter", producer="p", topic="t", counter=1)
    return NOTHING


@small
def disks_have_collected_what_was_given(run: RunRecorder) -> set[str]:
    run.disk("a", "b", "c")
    run.sub("s", "t", 0)
    unclear(run, "p", 1)
    got(run, "s", 0, *own(1))
    got(run, "s", 1)
    run.found_on("abc", "topic", topic="t", last_id=1, floor_id=1)
    run.found_on("abc", "counter", producer="p", topic="t", counter=1)
    return NOTHING


@small
def another_leader_gives_what_has_expired_by_other_clocks(run: RunRecorder) -> set[str]:
    run.sub("s", "t", 0)
    stored(run, "p", 1, 1, expires=[[1, 1, 10]], node="a", term=1)
    run.wait(5000)
    run.get("s", "t", 0, [[1, "p", 1, 1]], node="b", term=2)
    return NOTHING


@small
def a_gap_before_a_counter_is_told_while_what_fills_it_is_under_way(run: RunRecorder) -> set[str]:
    run.sub("s", "t", 0)
    run.put("p", "t", 1, "ok", first_id=1, last_id=1)
    second = run.invoke("p", "put", "t", counter=2, count=1)
    run.put("p", "t", 3, "fail", error="counter_gap")
    run.complete(second, "ok", first_id=2, last_id=2)
    run.put("p", "t", 3, "ok", first_id=3, last_id=3)
    return NOTHING


@small
def a_client_that_was_forgotten_is_owed_nothing(run: RunRecorder) -> set[str]:
    run.sub("s", "t", 0)
    stored(run, "p", 1, 1)
    got(run, "s", 0, *own(1))
    run.complete(run.invoke("s", "get", "t", last_id=1), "fail", error="forgotten")
    stored(run, "p", 2, 0)
    return NOTHING
