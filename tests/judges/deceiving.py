"""Histories that deceive: at edges, in combinations of which one part hides the other."""

from tests.judges.small import brief, gone, got, keyed, small, stored, three, unclear
from tests.judges.steps import begins, made_of_compacted
from tests.spark.cases_groups import settled, took
from tests.spark.histories import RunRecorder

ALL = ((1, "p", 1), (2, "p", 2), (3, "p", 3))

# --- what was owed --------------------------------------------------------------------------------


@small
def who_says_that_it_drained_to_the_tombstone_was_not_given_it(run: RunRecorder) -> set[str]:
    run.sub("s", "t", 0)
    stored(run, "p", 1, 1)
    run.phase("tombstone")
    stored(run, "tomb", 1, 2)
    got(run, "s", 0, (1, "p", 1))
    run.drained("s", "t", 2)
    return {"lost middle 2"}


@small
def first_publication_of_a_topic_is_skipped_by_the_first_cursor(run: RunRecorder) -> set[str]:
    three(run)
    got(run, "s", 1, *ALL[1:])
    return {"lost prefix 1"}


@small
def last_publication_is_denied_to_who_leaves_then(run: RunRecorder) -> set[str]:
    three(run)
    got(run, "s", 0, *ALL[:2])
    got(run, "s", 2)
    run.unsub("s", "t")
    return {"stale_read nothing 3"}


@small
def retry_with_another_id_does_not_excuse_the_first_one(run: RunRecorder) -> set[str]:
    three(run)
    stored(run, "p", 2, 4, duplicate=True, session=1)
    got(run, "s", 0, ALL[0])
    got(run, "s", 1, ALL[2], (4, "p", 2))
    return {"lost middle 2", "gap 3", "duplicate_stored 2"}


@small
def corrupt_payload_is_that_and_no_loss(run: RunRecorder) -> set[str]:
    three(run)
    got(run, "s", 0, ALL[0], ALL[2], corrupt=[[2, "checksum"]])
    return {"corrupt 2"}


@small
def another_process_of_the_client_says_that_it_drained(run: RunRecorder) -> set[str]:
    three(run)
    got(run, "s", 0, *ALL[:2])
    run.drained("s", "t", 2)
    run.rows[-1] |= {"process": "twin", "op_id": 1}
    return {"lost tail 3"}


@small
def unsub_that_did_not_happen_hides_no_loss_behind_the_resumed_sub(run: RunRecorder) -> set[str]:
    three(run)
    got(run, "s", 0, ALL[0])
    run.unsub("s", "t", "info")
    run.sub("s", "t", 1, resumed=True, cursor=1)
    got(run, "s", 1, ALL[2])
    return {"lost prefix 2", "gap 3"}


@small
def what_an_unsub_without_an_answer_did_not_end_goes_on_with_a_loss_alone(
    run: RunRecorder,
) -> set[str]:
    three(run)
    got(run, "s", 0, ALL[0])
    run.unsub("s", "t", "info")
    run.sub("s", "t", 1, resumed=True, cursor=1)
    got(run, "s", 2, ALL[2], session=1)
    return {"lost prefix 2"}


@small
def session_that_begins_anew_skips_what_the_last_one_was_not_given(run: RunRecorder) -> set[str]:
    three(run)
    stored(run, "p", 4, 4)
    got(run, "s", 0, ALL[0])
    got(run, "s", 3, (4, "p", 4), session=1)
    return {"lost middle 2", "lost middle 3"}


@small
def nobody_subscribes_is_said_to_who_leaves_afterwards(run: RunRecorder) -> set[str]:
    run.sub("s", "t", 0)
    stored(run, "p", 1, 0)
    run.unsub("s", "t")
    return {"lost unstored 1"}


@small
def whole_batch_is_told_that_nobody_subscribes(run: RunRecorder) -> set[str]:
    run.sub("s", "t", 0)
    stored(run, "p", 1, 0, count=2)
    return {"lost unstored 1", "lost unstored 2"}


@small
def duplicate_without_an_id_is_missing_when_a_later_get_was_told_nothing(
    run: RunRecorder,
) -> set[str]:
    run.sub("s", "t", 0)
    stored(run, "p", 1, 1)
    unclear(run, "p", 2)
    stored(run, "p", 2, 0, duplicate=True, session=1)
    got(run, "s", 0, (1, "p", 1))
    got(run, "s", 1)
    run.drained("s", "t", 1)
    return {"lost unplaced 2"}


@small
def first_counter_of_all_is_nowhere_and_the_second_is_stored(run: RunRecorder) -> set[str]:
    run.sub("s", "t", 0)
    unclear(run, "p", 1)
    stored(run, "p", 2, 1)
    got(run, "s", 0, (1, "p", 2))
    return {"lost unplaced 1"}


@small
def what_only_a_disk_knows_was_passed(run: RunRecorder) -> set[str]:
    run.disk("a", "b", "c")
    run.sub("s", "t", 0)
    unclear(run, "u", 1)
    stored(run, "p", 1, 2)
    got(run, "s", 1, (2, "p", 1))
    run.found_on("abc", "topic", topic="t", last_id=2, floor_id=0)
    run.held("abc", "u", "t", 1)
    run.held("abc", "p", "t", 1)
    for row in run.truth:
        if row["kind"] == "held":
            row["first_id"] = 1 if row["producer"] == "u" else 2
    return {"lost prefix 1"}


@small
def second_life_is_not_given_its_first_publication(run: RunRecorder) -> set[str]:
    three(run)
    got(run, "s", 0, *ALL)
    run.unsub("s", "t")
    run.sub("s", "t", 3, resumed=False, cursor=3)
    stored(run, "p", 4, 4)
    stored(run, "p", 5, 5)
    got(run, "s", 4, (5, "p", 5))
    return {"lost prefix 4"}


@small
def one_client_alone_publishes_to_itself_and_loses_it(run: RunRecorder) -> set[str]:
    run.sub("p", "t", 0)
    stored(run, "p", 1, 1)
    stored(run, "p", 2, 2)
    got(run, "p", 0, (2, "p", 2))
    return {"lost prefix 1", "gap 2"}


# --- what was handed over -------------------------------------------------------------------------


@small
def what_was_acknowledged_is_handed_again_by_its_own_rows_cursor(run: RunRecorder) -> set[str]:
    run.handle("s", "hand", "t", 1, 2, cursor=0)
    run.handle("s", "hand", "t", 1, 2, cursor=2, session=1, redelivered=2)
    return {"duplicate_delivered 1", "duplicate_delivered 2"}


@small
def what_a_release_calls_acknowledged_is_handed_again(run: RunRecorder) -> set[str]:
    run.handle("s", "hand", "t", 1, 2, cursor=0)
    run.handle("s", "release", "t", 1, 2, cursor=2)
    run.handle("s", "hand", "t", 2, 2, session=1)
    return {"duplicate_delivered 2"}


@small
def at_most_once_hands_over_twice(run: RunRecorder) -> set[str]:
    run.handle("s", "ack", "t", 1, 2, cursor=0)
    run.handle("s", "hand", "t", 1, 2, cursor=2)
    run.handle("s", "hand", "t", 2, 2, cursor=2, session=1)
    return {"duplicate_delivered 2"}


@small
def what_was_fetched_is_acknowledged_and_never_handed_over_before_it_leaves(
    run: RunRecorder,
) -> set[str]:
    three(run)
    got(run, "s", 0, ALL[0], handed_apart=True)
    run.handle("s", "ack", "t", None, 1, cursor=0)
    run.unsub("s", "t")
    return {"lost unhanded 1"}


@small
def next_session_asks_above_what_was_never_handed_over(run: RunRecorder) -> set[str]:
    three(run)
    got(run, "s", 0, *ALL, handed_apart=True)
    run.handle("s", "hand", "t", 2, 2, cursor=0)
    got(run, "s", 3, session=1)
    return {"lost unhanded 1", "lost unhanded 3"}


@small
def release_says_that_what_was_never_handed_over_is_acknowledged(run: RunRecorder) -> set[str]:
    three(run)
    got(run, "s", 0, *ALL[:2], handed_apart=True)
    run.handle("s", "hand", "t", 2, 2, cursor=0)
    run.handle("s", "release", "t", 2, 2, cursor=1)
    return {"lost unhanded 1"}


# --- order and content ----------------------------------------------------------------------------


@small
def middle_of_a_batch_gives_way_to_anothers_publication(run: RunRecorder) -> set[str]:
    run.sub("s", "t", 0)
    unclear(run, "p", 1, count=3)
    stored(run, "q", 1, 2)
    got(run, "s", 0, (1, "p", 1), (2, "q", 1), (3, "p", 3))
    return {"torn_batch 2", "lost unplaced 2"}


@small
def batch_is_torn_over_two_answers(run: RunRecorder) -> set[str]:
    run.sub("s", "t", 0)
    unclear(run, "p", 1, count=2)
    stored(run, "q", 1, 2)
    got(run, "s", 0, (1, "p", 1))
    got(run, "s", 1, (2, "q", 1), (3, "p", 2))
    return {"torn_batch 1"}


@small
def answer_goes_on_behind_the_end_of_a_batch(run: RunRecorder) -> set[str]:
    run.sub("s", "t", 0)
    stored(run, "p", 1, 1, count=2)
    got(run, "s", 0, (1, "p", 1), (2, "p", 2), (3, "p", 3))
    return {"phantom 3"}


@small
def second_counter_is_stored_before_the_first_was_tried(run: RunRecorder) -> set[str]:
    run.sub("s", "t", 0)
    stored(run, "p", 2, 1)
    stored(run, "p", 1, 2, session=1)
    got(run, "s", 0, (1, "p", 2), (2, "p", 1))
    return {"reordered 2"}


@small
def another_was_given_it_before_it_was_sent(run: RunRecorder) -> set[str]:
    run.sub("r", "t", 0)
    got(run, "r", 0, (1, "p", 1))
    stored(run, "p", 1, 1)
    return {"future_read 1", "realtime_order 1"}


@small
def who_leaves_was_given_what_had_failed(run: RunRecorder) -> set[str]:
    run.sub("s", "t", 0)
    run.put("p", "t", 1, "fail", error="backlog_full")
    got(run, "s", 0, (1, "p", 1))
    run.unsub("s", "t")
    return {"aborted_read 1"}


@small
def two_subscribers_are_given_two_under_one_id(run: RunRecorder) -> set[str]:
    run.sub("s", "t", 0)
    run.sub("r", "t", 0)
    unclear(run, "p", 1)
    unclear(run, "q", 1)
    got(run, "s", 0, (1, "p", 1))
    got(run, "r", 0, (1, "q", 1))
    return {"inconsistent_id 1"}


@small
def another_process_asks_above_and_is_given_the_same(run: RunRecorder) -> set[str]:
    three(run)
    got(run, "s", 0, *ALL[:2])
    got(run, "s", 2, *ALL[1:], process="twin")
    return {"reordered 2", "duplicate_delivered 2"}


@small
def what_is_put_after_a_start_was_told_stands_below_it(run: RunRecorder) -> set[str]:
    run.sub("s", "t", 5)
    stored(run, "p", 1, 3)
    return {"realtime_order 3", "lost start 3"}


# --- subscriptions, cursors, epochs, terms --------------------------------------------------------


@small
def who_comes_back_at_once_begins_below_what_was_acknowledged(run: RunRecorder) -> set[str]:
    three(run)
    got(run, "s", 0, ALL[0])
    run.unsub("s", "t")
    run.sub("s", "t", 2, resumed=False, cursor=3)
    return {"stale_read start 3"}


@small
def gets_go_on_in_the_subscription_after_a_repeated_sub_without_an_answer(
    run: RunRecorder,
) -> set[str]:
    three(run)
    got(run, "s", 0, ALL[0])
    run.invoke("s", "sub", "t")
    got(run, "s", 1, ALL[2])
    return {"lost middle 2", "gap 3"}


@small
def cursor_goes_back_over_a_sub(run: RunRecorder) -> set[str]:
    three(run)
    got(run, "s", 0, *ALL)
    got(run, "s", 3)
    run.sub("s", "t", 1, resumed=True, cursor=1)
    return {"cursor_regression answered 1"}


@small
def new_sub_has_a_lower_cursor_than_the_one_before(run: RunRecorder) -> set[str]:
    run.sub("s", "t", 4, resumed=False, cursor=4)
    run.unsub("s", "t")
    run.sub("s", "t", 4, resumed=False, cursor=3)
    return {"cursor_regression answered 3"}


@small
def get_asks_with_less_than_a_sub_resumed_at(run: RunRecorder) -> set[str]:
    three(run)
    got(run, "s", 0, *ALL)
    run.sub("s", "t", 3, resumed=True, cursor=3)
    got(run, "s", 1, *ALL[1:], session=1)
    return {"cursor_regression asked 1"}


@small
def subscription_resumes_above_all_that_was_given(run: RunRecorder) -> set[str]:
    three(run)
    run.sub("s", "t", 3, resumed=True, cursor=3)
    return {"cursor_regression ahead 3"}


@small
def subscription_is_forgotten_between_two_subs(run: RunRecorder) -> set[str]:
    run.sub("s", "t", 0, resumed=False, cursor=0)
    run.sub("s", "t", 0, resumed=False, cursor=0)
    return {"subscription forgotten"}


@small
def subscriber_is_denied_and_then_given_more(run: RunRecorder) -> set[str]:
    three(run)
    run.complete(run.invoke("s", "get", "t", last_id=0), "fail", error="unknown_topic")
    got(run, "s", 0, *ALL)
    return {"subscription denied"}


@small
def who_has_left_is_told_that_there_is_nothing(run: RunRecorder) -> set[str]:
    run.sub("s", "t", 0)
    run.unsub("s", "t")
    got(run, "s", 0)
    return {"subscription unsubscribed"}


@small
def answer_is_of_another_topic_that_it_has_subscribed_to_as_well(run: RunRecorder) -> set[str]:
    run.sub("s", "t", 0)
    run.sub("s", "u", 0)
    run.put("p", "u", 1, "ok", first_id=1, last_id=1)
    run.get("s", "t", 0, [[1, "p", 1, 1]])["topic"] = "u"
    return {"subscription topic"}


@small
def counter_that_was_acknowledged_is_missing_to_the_next_one(run: RunRecorder) -> set[str]:
    run.sub("s", "t", 0)
    stored(run, "p", 1, 1)
    run.put("p", "t", 2, "fail", error="counter_gap")
    return {"stale_read counter 1"}


@small
def disks_hold_what_they_have_not_taken(run: RunRecorder) -> set[str]:
    run.disk("a", "b", "c")
    run.sub("s", "t", 0)
    stored(run, "p", 1, 1)
    stored(run, "p", 2, 2)
    run.found_on("abc", "held", producer="p", topic="t", first_counter=1, count=2, first_id=1)
    run.found_on("abc", "topic", topic="t", last_id=2, floor_id=0)
    run.found_on("a", "counter", producer="p", topic="t", counter=2)
    run.found_on("b", "counter", producer="p", topic="t", counter=1)
    return {"ack_not_durable 2"}


@small
def epochs_begin_anew(run: RunRecorder) -> set[str]:
    run.sub("s", "t", 0)
    stored(run, "p", 1, 1, epoch=3)
    stored(run, "p", 2, 2, epoch=1)
    return {"fencing"}


@small
def term_goes_back_from_a_sub_to_a_put(run: RunRecorder) -> set[str]:
    run.sub("s", "t", 0, node="a", term=3)
    stored(run, "p", 1, 1, node="b", term=2)
    return {"term_order 2"}


@small
def put_and_get_have_two_leaders_of_one_term(run: RunRecorder) -> set[str]:
    run.sub("s", "t", 0)
    stored(run, "p", 1, 1, node="a", term=2)
    got(run, "s", 0, (1, "p", 1), node="b", term=2)
    return {"leaders_per_term 2"}


# --- disks ----------------------------------------------------------------------------------------


@small
def majority_lacks_it_and_one_disk_was_not_read(run: RunRecorder) -> set[str]:
    run.disk("a", "b")
    run.disk("c", is_read=False)
    stored(run, "p", 1, 1)
    run.found_on("ab", "topic", topic="t", last_id=1, floor_id=0)
    run.found_on("ab", "counter", topic="t", producer="p", counter=1)
    return {"ack_not_durable 1"}


@small
def garbage_without_its_counter_is_none(run: RunRecorder) -> set[str]:
    run.disk("a", "b", "c")
    stored(run, "p", 1, 1)
    run.found_on("abc", "topic", topic="t", last_id=1, floor_id=1)
    run.found_on("a", "counter", topic="t", producer="p", counter=1)
    return {"ack_not_durable 1"}


@small
def states_differ_though_all_entries_agree(run: RunRecorder) -> set[str]:
    run.disk("a", "b")
    run.found_on("ab", "entry", index=5, term=1, digest="aa")
    run.found_on("a", "state", index=5, digest="aa")
    run.found_on("b", "state", index=5, digest="bb")
    return {"replica_divergence state 5"}


def held(
    run: RunRecorder, nodes: str, producer: str, counter: int, id_: int | None, count: int = 1
) -> None:
    """Record what nodes hold of `t`, and its counters."""
    whose = {"topic": "t", "producer": producer}
    run.found_on(nodes, "held", **whose, first_counter=counter, count=1, first_id=id_)
    run.found_on(nodes, "counter", **whose, counter=counter)


@small
def disk_has_what_was_acknowledged_under_two_ids_under_one_of_them(run: RunRecorder) -> set[str]:
    run.disk("a")
    run.found_on("a", "topic", topic="t", last_id=2, floor_id=0)
    stored(run, "p", 1, 2)
    stored(run, "p", 1, 1, duplicate=True, session=1)
    held(run, "a", "p", 1, 2)
    return {"ack_not_durable 1", "duplicate_stored 1"}


@small
def who_holds_an_old_publication_above_its_last_id_holds_nothing(run: RunRecorder) -> set[str]:
    run.disk("a")
    stored(run, "p", 1, 0, duplicate=True)
    run.found_on("a", "topic", topic="t", last_id=3, floor_id=0)
    run.found_on("a", "held", topic="t", producer="p", first_counter=1, count=1, first_id=4)
    return {"ack_not_durable 1"}


@small
def only_a_disk_shows_what_stands_below_a_start(run: RunRecorder) -> set[str]:
    run.disk("a")
    run.sub("s", "t", 5)
    unclear(run, "p", 1)
    held(run, "a", "p", 1, 4)
    return {"lost start 4", "realtime_order 4"}


@small
def only_a_disk_shows_what_stands_in_a_part_of_the_topic_that_nobody_heard_of(
    run: RunRecorder,
) -> set[str]:
    """The topic was known to be above 65,536 when it was first tried, and by nobody to be below."""
    run.disk("a")
    run.sub("s", "t", 70_000)
    unclear(run, "p", 1)
    stored(run, "p", 2, 70_001)
    held(run, "a", "p", 1, 65_535)
    got(run, "s", 70_000, (70_001, "p", 2))
    return {"lost start 65535", "realtime_order 65535", "ack_not_durable 70001"}


@small
def two_logs_say_that_their_nodes_led_one_term(run: RunRecorder) -> set[str]:
    run.disk("a", "b")
    run.found_on("ab", "leadership", term=3)
    return {"leaders_per_term 3"}


@small
def one_answers_in_a_term_that_another_ones_log_says_it_led(run: RunRecorder) -> set[str]:
    run.disk("a", "b")
    run.found_on("b", "leadership", term=3)
    run.sub("s", "t", 0, node="a", term=3)
    return {"leaders_per_term 3"}


# --- what an answer is about ----------------------------------------------------------------------


@small
def answer_that_names_another_topic_and_brings_nothing_denies_what_is_there(
    run: RunRecorder,
) -> set[str]:
    three(run)
    got(run, "s", 0, *ALL[:2])
    got(run, "s", 2, answered="u")
    return {"subscription topic", "stale_read nothing 3"}


@small
def answer_of_any_topic_brings_what_its_client_has_left(run: RunRecorder) -> set[str]:
    run.sub("s", "t", 0)
    run.unsub("s", "t")
    stored(run, "p", 1, 1)
    run.get("s", "", None, [[1, "p", 1, 1]], answered="t", cursor=0)
    return {"subscription unsubscribed"}


@small
def corrupt_payloads_count_against_the_limit(run: RunRecorder) -> set[str]:
    three(run)
    run.get("s", "t", 0, [[1, "p", 1, 2]], max_count=2, corrupt=[[3, "checksum"]])
    return {"subscription limit", "corrupt 3"}


@small
def cursor_of_an_answer_is_knowledge_for_who_begins(run: RunRecorder) -> set[str]:
    three(run)
    got(run, "s", 3)
    run.sub("r", "t", 2, resumed=False)
    return {"stale_read start 3", *(f"lost prefix {id_}" for id_ in (1, 2, 3))}


@small
def answer_that_was_given_at_its_own_cursor_comes_again(run: RunRecorder) -> set[str]:
    three(run)
    got(run, "s", 0, *ALL[:2])
    got(run, "s", 2, ALL[1], ALL[2])
    return {"reordered 2", "duplicate_delivered 2"}


# --- what must have been stored -------------------------------------------------------------------


@small
def batch_without_an_answer_is_nowhere_between_two_stored_ones(run: RunRecorder) -> set[str]:
    run.sub("s", "t", 0)
    stored(run, "p", 1, 1)
    unclear(run, "p", 2, 2)
    stored(run, "p", 4, 2)
    got(run, "s", 0, ALL[0], (2, "p", 4))
    return {"lost unplaced 2", "lost unplaced 3"}


@small
def what_is_nowhere_was_owed_to_who_leaves(run: RunRecorder) -> set[str]:
    run.sub("s", "t", 0)
    unclear(run, "p", 1)
    stored(run, "p", 2, 1)
    got(run, "s", 0, (1, "p", 2))
    run.unsub("s", "t")
    return {"lost unplaced 1"}


@small
def nobody_subscribes_is_said_beside_a_sub_that_only_an_answer_proves(run: RunRecorder) -> set[str]:
    run.invoke("s", "sub", "t")
    got(run, "s", 0)
    stored(run, "p", 1, 0)
    return {"lost unstored 1"}


@small
def application_acknowledges_what_was_never_fetched(run: RunRecorder) -> set[str]:
    three(run)
    got(run, "s", 0, *ALL[:2], handed_apart=True)
    run.handle("s", "hand", "t", 1, 2)
    run.handle("s", "ack", "t", None, 3, cursor=3)
    got(run, "s", 3, handed_apart=True)
    return {"lost middle 3"}


@small
def part_of_a_failed_batch_is_given_though_only_the_other_was_repeated(
    run: RunRecorder,
) -> set[str]:
    run.sub("s", "t", 0)
    run.put("p", "t", 1, "fail", 2, error="backlog_full")
    stored(run, "p", 1, 1)
    got(run, "s", 0, ALL[0], ALL[1])
    return {"aborted_read 2"}


@small
def one_more_than_the_batch_has_is_given(run: RunRecorder) -> set[str]:
    run.sub("s", "t", 0)
    stored(run, "p", 1, 1, 2)
    got(run, "s", 0, *ALL)
    return {"phantom 3"}


@small
def what_had_failed_is_given_before_it_is_repeated(run: RunRecorder) -> set[str]:
    run.sub("s", "t", 0)
    run.put("p", "t", 1, "fail", error="backlog_full")
    got(run, "s", 0, ALL[0])
    stored(run, "p", 1, 1, session=1)
    return {"future_read 1", "realtime_order 1"}


@small
def what_is_first_tried_when_who_was_given_a_later_one_has_left_is_not_owed(
    run: RunRecorder,
) -> set[str]:
    run.sub("s", "t", 0)
    got(run, "s", 0, (1, "p", 5))
    run.unsub("s", "t")
    stored(run, "p", 2, 0)
    return {"phantom 1"}


@small
def batch_is_torn_where_its_producers_counters_pass_a_border(run: RunRecorder) -> set[str]:
    run.sub("s", "t", 0)
    unclear(run, "p", 65_535, 2)
    got(run, "s", 0, (2, "p", 65_536))
    return {"torn_batch 1", "lost unplaced 65535", "gap 2"}


@small
def batch_is_torn_where_a_part_of_the_topic_ends(run: RunRecorder) -> set[str]:
    run.sub("s", "t", 65_534)
    unclear(run, "p", 1, 2)
    stored(run, "q", 1, 65_536)
    first, last = (65_535, "p", 1), (65_537, "p", 2)
    got(run, "s", 65_534, first, (65_536, "q", 1), last)
    return {"torn_batch 65535"}


@small
def producers_order_is_broken_over_two_parts_of_a_topic(run: RunRecorder) -> set[str]:
    run.sub("s", "t", 65_530)
    unclear(run, "p", 1)
    unclear(run, "p", 2)
    stored(run, "q", 1, 65_532, 8)
    items = [[65_531, "p", 2, 1], [65_532, "q", 1, 8], [65_540, "p", 1, 1]]
    run.get("s", "t", 65_530, items)
    return {"reordered 65540"}


# --- who may do what ------------------------------------------------------------------------------


@small
def old_process_leaves_after_the_new_one_subscribed(run: RunRecorder) -> set[str]:
    run.sub("s", "t", 0, epoch=2)
    old = run.invoke("s", "unsub", "t", process="old", epoch=1)
    run.complete(old, "ok")
    return {"fencing"}


@small
def a_later_term_is_known_by_an_answer_that_brought_nothing(run: RunRecorder) -> set[str]:
    run.sub("s", "t", 0, node="a", term=4)
    got(run, "s", 0, node="b", term=5)
    stored(run, "p", 1, 1, node="a", term=4)
    return {"term_order 4"}


@small
def acknowledged_batches_overlap(run: RunRecorder) -> set[str]:
    """The second one stands where the topic had got to before it was sent."""
    run.sub("s", "t", 0)
    stored(run, "p", 1, 1, 3)
    stored(run, "q", 2, 2, 3)
    got(run, "s", 0, *ALL, (4, "q", 4))
    rows = {f"realtime_order {id_}" for id_ in (2, 3)}
    return rows | {"inconsistent_id 2", "inconsistent_id 3", "torn_batch 3"}


@small
def what_was_said_to_be_stored_nowhere_is_given_to_who_comes_later(run: RunRecorder) -> set[str]:
    stored(run, "p", 1, 0)
    run.sub("s", "t", 0)
    got(run, "s", 0, ALL[0])
    return {"aborted_read 1"}


@small
def what_was_said_to_be_stored_nowhere_is_held_by_a_node(run: RunRecorder) -> set[str]:
    run.disk("a")
    stored(run, "p", 1, 0)
    held(run, "a", "p", 1, 1)
    return {"aborted_read 1"}


@small
def application_of_which_only_a_put_has_digests_is_handed_again_by_another_reader(
    run: RunRecorder,
) -> set[str]:
    put = run.invoke("p", "put", "t", counter=1, count=1, digests="a" * 16)
    run.complete(put, "ok", first_id=1, last_id=1)
    run.handle("s", "hand", "t", 1, 1, cursor=0)
    run.handle("s", "ack", "t", None, 1, cursor=1)
    run.handle("s", "hand", "t", 1, 1, process="twin", cursor=1)
    return {"duplicate_delivered 1"}


@small
def who_has_left_finds_its_subscription_again(run: RunRecorder) -> set[str]:
    run.sub("s", "t", 0, resumed=False, attempt=1)
    run.unsub("s", "t")
    run.sub("s", "t", 0, resumed=True, cursor=0, attempt=1)
    return {"subscription kept"}


@small
def who_never_subscribed_resumes(run: RunRecorder) -> set[str]:
    run.sub("s", "t", 0, resumed=True, cursor=0, attempt=1)
    return {"subscription kept"}


@small
def who_never_subscribed_is_answered_and_its_question_is_gone(run: RunRecorder) -> set[str]:
    stored(run, "p", 1, 1)
    got(run, "s", 0, ALL[0])
    run.rows[-1]["invoke_ns"] = None
    del run.rows[-2]
    return {"subscription unsubscribed"}


# --- purges ---------------------------------------------------------------------------------------


@small
def purge_took_more_than_it_named(run: RunRecorder) -> set[str]:
    three(run)
    run.purge("t", 2)
    gone(run, "s", 0, 1, 3)
    return {"purge unsaid 3"}


@small
def purge_is_said_that_nobody_asked_for(run: RunRecorder) -> set[str]:
    three(run)
    run.purge("u", 3)
    gone(run, "s", 0, 1, 2)
    got(run, "s", 2, ALL[2])
    return {"purge unsaid 2"}


@small
def purge_is_said_before_it_was_asked_for(run: RunRecorder) -> set[str]:
    three(run)
    gone(run, "s", 0, 1, 3)
    run.purge("t", 3)
    return {"purge unsaid 3"}


@small
def purge_hides_the_loss_of_what_it_did_not_name(run: RunRecorder) -> set[str]:
    three(run)
    run.purge("t", 1)
    gone(run, "s", 0, 1, 1)
    got(run, "s", 1, ALL[2])
    return {"lost middle 2", "gap 3"}


@small
def who_was_not_told_of_a_purge_is_owed_what_it_took(run: RunRecorder) -> set[str]:
    three(run)
    run.sub("r", "t", 0)
    run.purge("t", 2)
    gone(run, "s", 0, 1, 2)
    got(run, "s", 2, ALL[2])
    got(run, "r", 0, ALL[2])
    return {"lost prefix 1", "lost prefix 2", "gap 3"}


@small
def purged_publications_come_afterwards(run: RunRecorder) -> set[str]:
    three(run)
    run.purge("t", 2)
    got(run, "s", 0, *ALL)
    return {"purge kept 1"}


@small
def half_of_what_is_purged_is_told_and_the_rest_is_skipped(run: RunRecorder) -> set[str]:
    three(run)
    run.purge("t", 2)
    gone(run, "s", 0, 1, 1)
    got(run, "s", 2, ALL[2])
    return {"lost middle 2", "gap 3"}


# --- what is compacted ----------------------------------------------------------------------------


@small
def the_last_of_a_key_is_compacted_away(run: RunRecorder) -> set[str]:
    keyed(run, 1, "abb")
    begins(run, "s", "earliest", 0)
    gone(run, "s", 0, 1, 2, error="compacted")
    got(run, "s", 2, (3, "p", 3))
    keyed(run, 4, "a")  # it comes too late to have replaced the first
    return {"purge latest 1"}


@small
def what_has_no_key_is_compacted_away(run: RunRecorder) -> set[str]:
    keyed(run, 1, "a.a")
    begins(run, "s", "earliest", 0)
    gone(run, "s", 0, 1, 2, error="compacted")
    got(run, "s", 2, (3, "p", 3))
    return {"purge unsaid 2"}


@small
def what_was_put_while_it_subscribed_is_compacted_away(run: RunRecorder) -> set[str]:
    run.sub("s", "t", 0)
    keyed(run, 1, "aba")
    gone(run, "s", 0, 1, 1, error="compacted")
    got(run, "s", 1, (2, "p", 2), (3, "p", 3))
    keyed(run, 4, "b")
    return {"purge unread 1"}


@small
def a_purge_does_not_explain_that_something_is_compacted(run: RunRecorder) -> set[str]:
    three(run)
    run.purge("t", 3)
    gone(run, "s", 0, 1, 3, error="compacted")
    return {"purge unsaid 1", "purge unread 1"}


@small
def a_group_in_a_compacted_topic_loses_what_has_no_key(run: RunRecorder) -> set[str]:
    keyed(run, 1, "a.a")
    made_of_compacted(run)
    took(run, "a", 1, 1, [3, 3, 1])
    took(run, "a", 2, 0, acks=[[1, 3, 3]], max_count=None)
    settled(run, 3)
    return {"group_lost settled 2"}


# --- what expires ---------------------------------------------------------------------------------


@small
def publication_that_never_expires_is_said_to_have_expired(run: RunRecorder) -> set[str]:
    brief(run)
    run.wait(20)
    gone(run, "s", 0, 1, 3, error="expired")
    return {"purge unsaid 3"}


@small
def publication_is_withheld_before_it_expires(run: RunRecorder) -> set[str]:
    brief(run, ms=10_000)
    run.wait(5_000)
    gone(run, "s", 0, 1, 2, error="expired")
    got(run, "s", 2, (3, "p", 3))
    return {"purge early 1"}


@small
def publications_are_said_to_have_expired_where_none_does(run: RunRecorder) -> set[str]:
    three(run)
    gone(run, "s", 0, 1, 2, error="expired")
    got(run, "s", 2, ALL[2])
    return {"purge unsaid 1"}


@small
def purge_does_not_explain_that_something_has_expired(run: RunRecorder) -> set[str]:
    brief(run)
    run.wait(20)
    run.purge("t", 3)
    gone(run, "s", 0, 1, 3, error="expired")
    return {"purge unsaid 3"}


@small
def gap_of_what_expires_names_what_does_not(run: RunRecorder) -> set[str]:
    brief(run)
    run.wait(20)
    gone(run, "s", 0, 1, 3, error="gap")
    return {"purge unsaid 3"}


@small
def gap_comes_before_what_it_names_has_expired(run: RunRecorder) -> set[str]:
    brief(run, ms=10_000)
    gone(run, "s", 0, 1, 2, error="gap")
    got(run, "s", 2, (3, "p", 3))
    return {"purge early 1"}


@small
def expiry_does_not_explain_that_something_is_purged(run: RunRecorder) -> set[str]:
    brief(run)
    run.wait(20)
    gone(run, "s", 0, 1, 2)
    got(run, "s", 2, (3, "p", 3))
    return {"purge unsaid 2"}


@small
def who_is_not_told_that_it_has_expired_is_owed_it(run: RunRecorder) -> set[str]:
    brief(run)
    run.wait(20)
    got(run, "s", 0, (3, "p", 3))
    return {"lost prefix 1", "lost prefix 2", "gap 3"}


@small
def what_follows_the_expired_is_skipped_with_it(run: RunRecorder) -> set[str]:
    brief(run)
    stored(run, "p", 4, 4)
    run.wait(20)
    gone(run, "s", 0, 1, 2, error="expired")
    got(run, "s", 3, (4, "p", 4))
    return {"lost middle 3", "gap 4"}


# --- times, keys and headers ----------------------------------------------------------------------

ONE, OTHER = "01" * 8, "02" * 8


@small
def time_goes_back_from_one_answer_to_the_next(run: RunRecorder) -> set[str]:
    three(run)
    got(run, "s", 0, *ALL[:2], times=[[1, 2, 50]])
    got(run, "s", 2, ALL[2], times=[[3, 3, 49]])
    return {"properties back 3"}


@small
def time_goes_back_over_the_border_of_a_bucket(run: RunRecorder) -> set[str]:
    run.sub("s", "t", 65_534)
    stored(run, "p", 1, 65_535, 2)
    run.get(
        "s", "t", 65_534, [[65_535, "p", 1, 2]], times=[[65_535, 65_535, 9], [65_536, 65_536, 8]]
    )
    return {"properties back 65536", "properties batch 65535"}


@small
def runs_of_two_times_overlap(run: RunRecorder) -> set[str]:
    three(run)
    run.sub("r", "t", 0)
    got(run, "s", 0, *ALL, times=[[1, 3, 50]])
    got(run, "r", 0, *ALL, times=[[1, 1, 50], [2, 3, 51]])
    return {"properties time 3", "properties back 3"}


@small
def one_id_has_the_properties_of_another_for_one_reader(run: RunRecorder) -> set[str]:
    three(run)
    run.sub("r", "t", 0)
    got(run, "s", 0, *ALL, times=[[1, 3, 50]], marked=[2], properties=ONE)
    got(run, "r", 0, *ALL, times=[[1, 3, 50]], marked=[2, 3], properties=ONE + OTHER)
    return {"properties content 3"}


@small
def what_was_put_with_properties_comes_without(run: RunRecorder) -> set[str]:
    run.sub("s", "t", 0)
    stored(run, "p", 1, 1, marked=[1], properties=ONE)
    got(run, "s", 0, (1, "p", 1), times=[[1, 1, 50]])
    return {"properties content 1"}


@small
def what_was_put_with_properties_comes_with_others(run: RunRecorder) -> set[str]:
    run.sub("s", "t", 0)
    stored(run, "p", 1, 1, marked=[1], properties=ONE)
    got(run, "s", 0, (1, "p", 1), marked=[1], properties=OTHER)
    return {"properties content 1"}
