"""Histories that a correct cluster can produce, and that look as if they broke a promise.

Where a broken promise would leave the same record, no judge can tell it: then the docstring says
why. Of the record itself, what can't be seen is said at the nearest kind (broken_rows.py,
broken_files.py).
"""

from tests.judges.deceiving import ALL
from tests.judges.small import brief, gone, got, keyed, small, stored, three, unclear
from tests.judges.steps import begins, made_of_compacted, seeks
from tests.spark.cases_groups import settled, took
from tests.spark.histories import Row, RunRecorder

NOTHING: set[str] = set()

# --- what is owed to nobody -----------------------------------------------------------------------


@small
def retry_of_the_first_publication_is_acknowledged_after_the_drain(run: RunRecorder) -> set[str]:
    """A loss would look the same: the retry may have been what stored it, after the drain."""
    run.sub("s", "t", 0)
    unclear(run, "p", 1)
    got(run, "s", 0)
    run.drained("s", "t", 0)
    stored(run, "p", 1, 1, session=1)
    return NOTHING


@small
def sub_without_an_answer_began_in_the_middle(run: RunRecorder) -> set[str]:
    """A loss of the first one would look the same: nobody knows at which id the SUB began."""
    run.sub("r", "t", 0)
    run.invoke("s", "sub", "t")
    for number in (1, 2, 3):
        stored(run, "p", number, number)
    got(run, "s", 0, *ALL[1:])
    return NOTHING


@small
def unsub_without_an_answer_never_happened(run: RunRecorder) -> set[str]:
    three(run)
    got(run, "s", 0, ALL[0])
    run.unsub("s", "t", "info")
    got(run, "s", 1, *ALL[1:])
    got(run, "s", 3)
    return NOTHING


@small
def unsub_without_an_answer_happened(run: RunRecorder) -> set[str]:
    """A loss of 2 and 3 would look the same: the UNSUB may have acted before they were stored."""
    three(run)
    got(run, "s", 0, ALL[0])
    run.unsub("s", "t", "info")
    run.sub("s", "t", 3, resumed=False, cursor=3)
    stored(run, "p", 4, 4)
    got(run, "s", 3, (4, "p", 4))
    return NOTHING


@small
def another_process_may_leave_while_a_sub_is_under_way(run: RunRecorder) -> set[str]:
    """The SUB supersedes its own process's UNSUB, and says nothing of the other one's."""
    three(run)
    run.unsub("s", "t", "info")
    coming = run.invoke("s", "sub", "t")
    leaving = run.invoke("s", "unsub", "t", process="twin")
    run.complete(coming, "ok", last_id=0, resumed=True, cursor=0)
    run.complete(leaving, "ok")
    run.sub("s", "t", 3, resumed=False, cursor=3, process="twin")
    stored(run, "p", 4, 4)
    got(run, "s", 3, (4, "p", 4), process="twin")
    return NOTHING


@small
def who_left_on_another_host_comes_back_further_on(run: RunRecorder) -> set[str]:
    """A gap would look the same: when the UNSUB acted, no clock of this host says."""
    run.hosts = {"away": "elsewhere"}
    three(run)
    got(run, "s", 0, ALL[0])
    run.complete(run.invoke("s", "unsub", "t", process="away"), "ok")
    run.sub("s", "t", 3, resumed=False, cursor=3)
    stored(run, "p", 4, 4)
    got(run, "s", 1, (4, "p", 4))
    return NOTHING


@small
def who_leaves_and_comes_back_at_one_moment_of_a_virtual_clock(run: RunRecorder) -> set[str]:
    """A gap would look the same: the SUB without an answer may have come after the UNSUB."""
    three(run)
    got(run, "s", 0, ALL[0])
    leaving = run.invoke("s", "unsub", "t")
    run.complete(leaving, "ok")
    coming = run.invoke("s", "sub", "t")
    run.rows[-2]["t_ns"] = coming["t_ns"] = leaving["t_ns"]
    stored(run, "p", 4, 4)
    got(run, "s", 1, (4, "p", 4))
    return NOTHING


@small
def nobody_subscribes_while_a_sub_is_under_way(run: RunRecorder) -> set[str]:
    """A loss would look the same: the PUT may have come first."""
    coming = run.invoke("s", "sub", "t")
    stored(run, "p", 1, 0)
    run.complete(coming, "ok", last_id=0, resumed=False, cursor=0)
    return NOTHING


@small
def nobody_subscribes_while_an_unsub_is_under_way(run: RunRecorder) -> set[str]:
    """A loss would look the same: the UNSUB may have come first."""
    run.sub("s", "t", 0)
    leaving = run.invoke("s", "unsub", "t")
    stored(run, "p", 1, 0)
    run.complete(leaving, "ok")
    return NOTHING


@small
def duplicate_without_an_id_was_tried_before_anybody_subscribed(run: RunRecorder) -> set[str]:
    """A loss would look the same: what was stored before the SUB is owed to nobody."""
    unclear(run, "p", 1)
    run.sub("s", "t", 0)
    stored(run, "p", 1, 0, duplicate=True, session=1)
    stored(run, "p", 2, 1)
    got(run, "s", 0, (1, "p", 2))
    return NOTHING


@small
def tombstone_of_another_host_says_nothing_of_a_tail(run: RunRecorder) -> set[str]:
    """A loss would look the same: no clock says what was known before the tombstone."""
    run.hosts = {"runner": "elsewhere"}
    three(run)
    got(run, "s", 0, ALL[0])
    run.phase("tombstone")
    run.drained("s", "t", 1)
    return NOTHING


@small
def who_drains_at_the_moment_of_its_last_answer_need_not_have_what_came_since_it_asked(
    run: RunRecorder,
) -> set[str]:
    run.sub("s", "t", 0)
    asked = run.invoke("s", "get", "t", last_id=0)
    stored(run, "p", 1, 1)
    run.complete(asked, "ok", count=0)
    run.drained("s", "t", 0)
    run.rows[-1]["t_ns"] = run.rows[-2]["t_ns"]
    return NOTHING


@small
def held_at_the_end_may_have_been_stored_after_the_drain(run: RunRecorder) -> set[str]:
    """A loss would look the same: a disk does not say since when it has what it has."""
    run.disk("a")
    run.sub("s", "t", 0)
    stored(run, "p", 1, 1)
    unclear(run, "u", 1)
    got(run, "s", 0, (1, "p", 1))
    got(run, "s", 1)
    run.drained("s", "t", 1)
    run.found_on("a", "topic", topic="t", last_id=2, floor_id=1)
    run.held("a", "u", "t", 1)
    run.truth[-2]["first_id"] = 2
    run.found_on("a", "counter", topic="t", producer="p", counter=1)
    return NOTHING


@small
def sub_resumes_what_its_first_attempt_began(run: RunRecorder) -> set[str]:
    """A loss of 1 to 3 would look the same: nothing proves a subscription before the SUB."""
    run.sub("r", "t", 0)
    for number in (1, 2, 3):
        stored(run, "p", number, number)
    run.invoke("s", "sub", "t")
    run.sub("s", "t", 3, resumed=True, cursor=3)
    return NOTHING


# --- asking and handing over again ----------------------------------------------------------------


@small
def same_cursor_asks_again(run: RunRecorder) -> set[str]:
    three(run)
    got(run, "s", 0, *ALL[:2])
    got(run, "s", 0, *ALL)
    return NOTHING


@small
def get_without_an_answer_is_repeated_from_further_on(run: RunRecorder) -> set[str]:
    three(run)
    got(run, "s", 0, *ALL)
    run.complete(run.invoke("s", "get", "t", last_id=1), "info", error="timeout")
    got(run, "s", 1, *ALL[1:])
    return NOTHING


@small
def two_gets_of_a_session_overlap(run: RunRecorder) -> set[str]:
    """A second delivery would look the same: the second GET was sent before the answer."""
    three(run)
    first = run.invoke("s", "get", "t", last_id=0)
    second = run.invoke("s", "get", "t", last_id=2)
    run.complete(first, "ok", items=[[1, "p", 1, 3]], count=3)
    run.complete(second, "ok", items=[[3, "p", 3, 1]], count=1)
    return NOTHING


@small
def part_of_what_was_handed_is_acknowledged_and_the_rest_comes_again(run: RunRecorder) -> set[str]:
    three(run)
    got(run, "s", 0, *ALL, handed_apart=True)
    run.handle("s", "hand", "t", 1, 3, cursor=0)
    run.handle("s", "ack", "t", None, 2, cursor=0)
    run.handle("s", "release", "t", 1, 3, cursor=2)
    got(run, "s", 2, ALL[2], handed_apart=True)
    run.handle("s", "hand", "t", 3, 3, cursor=2, redelivered=1)
    return NOTHING


@small
def at_most_once_acknowledges_ahead_and_hands_over_below_its_cursor(run: RunRecorder) -> set[str]:
    three(run)
    got(run, "s", 0, *ALL, handed_apart=True)
    run.handle("s", "ack", "t", 1, 3, cursor=0)
    run.handle("s", "hand", "t", 1, 3, cursor=3)
    got(run, "s", 3)
    return NOTHING


@small
def at_most_once_takes_what_another_reader_gave_back(run: RunRecorder) -> set[str]:
    run.handle("s", "hand", "t", 1, 3, cursor=0)
    run.handle("s", "release", "t", 1, 3, cursor=0)
    run.handle("s", "ack", "t", 1, 3, cursor=0)
    run.handle("s", "hand", "t", 1, 3, cursor=3, redelivered=3)
    return NOTHING


@small
def at_most_once_loses_to_a_crash_what_it_acknowledged_ahead(run: RunRecorder) -> set[str]:
    """A loss by the library would look the same: the crash may have come in between."""
    three(run)
    got(run, "s", 0, *ALL, handed_apart=True)
    run.handle("s", "ack", "t", 1, 3, cursor=0)
    got(run, "s", 3, session=1)
    return NOTHING


@small
def what_was_fetched_before_a_crash_is_fetched_again_and_handed_over(run: RunRecorder) -> set[str]:
    three(run)
    got(run, "s", 0, *ALL, handed_apart=True)
    got(run, "s", 0, *ALL, handed_apart=True, session=1)
    run.handle("s", "hand", "t", 1, 3, cursor=0, session=1)
    run.handle("s", "ack", "t", None, 3, cursor=0, session=1)
    got(run, "s", 3, session=1)
    return NOTHING


@small
def what_was_fetched_is_handed_over_by_who_took_over_on_another_host(run: RunRecorder) -> set[str]:
    run.hosts = {"heir": "elsewhere"}
    three(run)
    got(run, "s", 0, *ALL, handed_apart=True)
    got(run, "s", 0, *ALL, handed_apart=True, process="heir", epoch=2)
    run.handle("s", "hand", "t", 1, 3, cursor=0, process="heir")
    run.handle("s", "ack", "t", None, 3, cursor=0, process="heir")
    return NOTHING


@small
def library_without_hand_overs_is_followed_by_one_with_them(run: RunRecorder) -> set[str]:
    three(run)
    got(run, "s", 0, *ALL)
    got(run, "s", 0, *ALL, handed_apart=True, session=1)
    got(run, "s", 3, handed_apart=True, session=2)
    return NOTHING


@small
def what_was_fetched_and_not_handed_over_was_of_another_subscription(run: RunRecorder) -> set[str]:
    """A loss by the library would look the same: after the UNSUB nobody waits for it."""
    three(run)
    got(run, "s", 0, *ALL, handed_apart=True)
    run.unsub("s", "t")
    run.sub("s", "t", 3, resumed=False, cursor=3)
    got(run, "s", 3, handed_apart=True)
    return NOTHING


@small
def fetched_and_not_handed_over_when_the_record_ends(run: RunRecorder) -> set[str]:
    """A loss by the library would look the same: it may have been about to hand them over."""
    three(run)
    got(run, "s", 0, *ALL, handed_apart=True)
    run.handle("s", "hand", "t", 1, 1, cursor=0)
    run.handle("s", "ack", "t", None, 1, cursor=0)
    return NOTHING


@small
def cursor_of_another_host_says_not_when_it_passed(run: RunRecorder) -> set[str]:
    """A loss by the library would look the same: the cursor may have passed before the GET."""
    run.hosts = {"heir": "elsewhere"}
    run.sub("s", "t", 0)
    for number in (1, 2):
        stored(run, "p", number, number)
    got(run, "s", 0, *ALL[:2], handed_apart=True)
    run.handle("s", "hand", "t", 1, 1, cursor=0)
    run.handle("s", "ack", "t", None, 2, cursor=0, process="heir")
    return NOTHING


# --- answers --------------------------------------------------------------------------------------


@small
def get_of_any_topic_brings_nothing_and_names_none(run: RunRecorder) -> set[str]:
    three(run)
    got(run, "s", 0, *ALL)
    run.get("s", "", None, [])
    return NOTHING


@small
def get_of_any_topic_is_denied_after_one_was_told_nothing(run: RunRecorder) -> set[str]:
    """A lie would look the same: which topic was to be told of, nobody said."""
    run.sub("s", "t", 0)
    run.get("s", "", None, [])
    run.unsub("s", "t")
    run.complete(run.invoke("s", "get", ""), "fail", error="not_subscribed")
    return NOTHING


@small
def get_of_any_topic_is_answered_with_one(run: RunRecorder) -> set[str]:
    three(run)
    run.get("s", "", None, [[1, "p", 1, 3]], cursor=0)["topic"] = "t"
    return NOTHING


@small
def all_that_came_was_had_by_then(run: RunRecorder) -> set[str]:
    """Nothing is hidden by it: `first_id` says that there was something, and that it was had."""
    three(run)
    got(run, "s", 0, *ALL)
    got(run, "s", 2, first_id=3)
    return NOTHING


@small
def answer_is_shorter_than_what_there_is(run: RunRecorder) -> set[str]:
    """Nothing is hidden by it: what is kept back is lost once it is passed, or at the drain."""
    three(run)
    got(run, "s", 0, ALL[0], max_count=3)
    got(run, "s", 1, ALL[1], max_count=1)
    got(run, "s", 2, ALL[2], max_count=3)
    return NOTHING


@small
def new_subscription_is_asked_below_its_start_by_hand(run: RunRecorder) -> set[str]:
    run.sub("r", "t", 0)
    for number in (1, 2, 3):
        stored(run, "p", number, number)
    run.sub("s", "t", 3, resumed=False, cursor=3)
    got(run, "s", 0)
    return NOTHING


@small
def denied_after_a_sub_without_an_answer(run: RunRecorder) -> set[str]:
    """A lie would look the same: the SUB may not have happened."""
    run.invoke("s", "sub", "t")
    run.complete(run.invoke("s", "get", "t", last_id=0), "fail", error="not_subscribed")
    return NOTHING


# --- time -----------------------------------------------------------------------------------------


@small
def given_on_another_host_before_its_put_by_that_hosts_clock(run: RunRecorder) -> set[str]:
    """A read of the future would look the same: two clocks have nothing in common."""
    run.hosts = {"p": "elsewhere"}
    run.sub("s", "t", 0)
    got(run, "s", 0, (1, "p", 1))
    got(run, "s", 1)
    run.wait(500)
    stored(run, "p", 1, 1)
    return NOTHING


@small
def old_process_is_answered_after_the_new_one(run: RunRecorder) -> set[str]:
    """A fenced process would look the same: its GET may have been carried out first."""
    run.sub("s", "t", 0)
    old = run.invoke("s", "get", "t", last_id=0, epoch=1)
    got(run, "s", 0, epoch=2, process="heir")
    run.complete(old, "ok", count=0)
    return NOTHING


@small
def answer_of_an_older_term_comes_late(run: RunRecorder) -> set[str]:
    """An old leader would look the same: it may have answered before the election."""
    run.sub("s", "t", 0)
    asked = run.invoke("s", "get", "t", last_id=0)
    stored(run, "p", 1, 1, node="b", term=3)
    run.complete(asked, "ok", count=0, node="a", term=2)
    return NOTHING


@small
def puts_that_overlap_stand_in_any_order(run: RunRecorder) -> set[str]:
    """A later one in front would look the same: both were under way."""
    run.sub("s", "t", 0)
    first = run.invoke("p", "put", "t", counter=1, count=1)
    second = run.invoke("q", "put", "t", counter=1, count=1)
    run.complete(second, "ok", first_id=1, last_id=1)
    run.complete(first, "ok", first_id=2, last_id=2)
    got(run, "s", 0, (1, "q", 1), (2, "p", 1))
    return NOTHING


@small
def machine_is_up_for_half_a_year(run: RunRecorder) -> set[str]:
    run.wait(180 * 24 * 3600 * 1000)
    three(run)
    got(run, "s", 0, *ALL[:2])
    got(run, "s", 2, ALL[2])
    got(run, "s", 3)
    run.drained("s", "t", 3)
    return NOTHING


# --- batches, retries -----------------------------------------------------------------------------


@small
def batch_is_tried_again_in_other_parts(run: RunRecorder) -> set[str]:
    """A torn batch would look the same: the first try may have stored nothing."""
    run.sub("s", "t", 0)
    unclear(run, "p", 1, count=2)
    stored(run, "p", 1, 1, session=1)
    stored(run, "q", 1, 2)
    stored(run, "p", 2, 3, session=1)
    got(run, "s", 0, (1, "p", 1), (2, "q", 1), (3, "p", 2))
    return NOTHING


@small
def batch_is_fetched_in_two_halves(run: RunRecorder) -> set[str]:
    """A lost half would look the same: who leaves may never have asked for it."""
    run.sub("s", "t", 0)
    stored(run, "p", 1, 1, count=2)
    got(run, "s", 0, (1, "p", 1))
    run.unsub("s", "t")
    return NOTHING


@small
def put_fails_and_succeeds_when_it_is_repeated(run: RunRecorder) -> set[str]:
    run.sub("s", "t", 0)
    run.put("p", "t", 1, "fail", error="electing")
    stored(run, "p", 1, 1)
    got(run, "s", 0, (1, "p", 1))
    return NOTHING


@small
def what_nobody_acknowledged_is_given(run: RunRecorder) -> set[str]:
    run.sub("s", "t", 0)
    unclear(run, "p", 1, count=2)
    got(run, "s", 0, (1, "p", 1), (2, "p", 2))
    return NOTHING


# --- disks ----------------------------------------------------------------------------------------


def disk_of(run: RunRecorder, nodes: str, floor_id: int = 0, taken: int = 1) -> None:
    """Record what the disks of these nodes say of `t` and of `p`."""
    run.found_on(nodes, "topic", topic="t", last_id=1, floor_id=floor_id)
    run.found_on(nodes, "counter", topic="t", producer="p", counter=taken)


@small
def minority_lacks_it(run: RunRecorder) -> set[str]:
    """A node that forgot it would look the same as one that is behind."""
    run.disk("a", "b", "c")
    stored(run, "p", 1, 1)
    disk_of(run, "ab")
    held_at(run, "ab", 1)
    return NOTHING


@small
def every_node_has_collected_it(run: RunRecorder) -> set[str]:
    """A loss would look the same on disks; `lost` sees what a subscriber was not given."""
    run.disk("a", "b", "c")
    stored(run, "p", 1, 1)
    disk_of(run, "abc", floor_id=1)
    return NOTHING


@small
def journals_have_it_under_no_id_yet(run: RunRecorder) -> set[str]:
    """A wrong id would look the same: a journal gives none."""
    run.disk("a", "b", "c")
    stored(run, "p", 1, 1)
    run.held("abc", "p", "t", 1)
    return NOTHING


@small
def nodes_have_applied_and_compacted_apart(run: RunRecorder) -> set[str]:
    """Other entries would look the same: what is compacted is compared at no index."""
    run.disk("a", "b", "c")
    run.found_on("a", "entry", index=1, term=1, digest="aa")
    run.found_on("b", "entry", index=2, term=2, digest="bb")
    for index, node in enumerate("abc", 1):
        run.found_on(node, "state", index=index, digest=node)
        run.found_on(node, "leadership", term=index)
    return NOTHING


def held_at(run: RunRecorder, nodes: str, id_: int) -> Row:
    """Record that nodes hold the first publication of `p` under an id."""
    run.held(nodes, "p", "t", 1)
    for row in run.truth:
        if row["kind"] == "held":
            row["first_id"] = id_
    return run.truth[-1]


# --- what an answer is about ----------------------------------------------------------------------


@small
def answer_names_another_topic_and_brings_nothing(run: RunRecorder) -> set[str]:
    """That it names the wrong topic is all that it proves: of that topic it says nothing."""
    three(run)
    stored_elsewhere = run.put("p", "u", 1, "ok", first_id=9, last_id=9)
    got(run, "s", 3, answered="u")
    assert stored_elsewhere["topic"] == "u"
    return {"subscription topic", *(f"lost prefix {id_}" for id_ in (1, 2, 3))}


@small
def answer_of_any_topic_names_one_and_brings_nothing(run: RunRecorder) -> set[str]:
    """It is about no topic: whoever was told nothing of `u` did not subscribe to `u`."""
    run.sub("s", "t", 0)
    run.get("s", "", None, [], answered="u", cursor=3)
    return NOTHING


@small
def corrupt_payload_is_fetched_and_never_handed_over(run: RunRecorder) -> set[str]:
    """Another one would be lost: this one the library can't hand over."""
    three(run)
    got(run, "s", 0, ALL[0], ALL[2], handed_apart=True, corrupt=[[2, "format"]])
    run.handle("s", "hand", "t", 1, 1)
    run.handle("s", "hand", "t", 3, 3)
    run.handle("s", "ack", "t", None, 3, cursor=3)
    return {"corrupt 2"}


@small
def batch_is_repeated_in_two_parts_between_which_another_stands(run: RunRecorder) -> set[str]:
    """One batch that was torn would look the same to who does not see that it was sent in parts."""
    run.sub("s", "t", 0)
    unclear(run, "p", 1, 2)
    stored(run, "p", 1, 1)
    stored(run, "q", 1, 2)
    stored(run, "p", 2, 3)
    got(run, "s", 0, ALL[0], (2, "q", 1), (3, "p", 2))
    return NOTHING


@small
def nothing_is_told_at_the_moment_of_the_acknowledgment(run: RunRecorder) -> set[str]:
    """A tick later it would deny what was acknowledged."""
    run.sub("s", "t", 0)
    put = run.invoke("p", "put", "t", counter=1, count=1)
    done = run.complete(put, "ok", first_id=1, last_id=1)
    got(run, "s", 0)
    invoke, end = run.rows[-2:]
    invoke["t_ns"] = end["invoke_ns"] = done["t_ns"]
    return NOTHING


@small
def repeated_put_is_acknowledged_without_an_id_after_it_was_given(run: RunRecorder) -> set[str]:
    """It would be lost, had nobody been given it."""
    run.sub("s", "t", 0)
    unclear(run, "p", 1)
    got(run, "s", 0, ALL[0])
    stored(run, "p", 1, 0, duplicate=True, session=1)
    run.drained("s", "t", 1)
    return NOTHING


@small
def cursor_is_ahead_of_all_answers_for_a_get_without_one_asked_with_it(
    run: RunRecorder,
) -> set[str]:
    """Without that GET the subscription would resume above all that its client ever said."""
    three(run)
    got(run, "s", 0, *ALL[:2])
    run.invoke("s", "get", "t", last_id=2)
    run.sub("s", "t", 2, session=1, resumed=True, cursor=2)
    got(run, "s", 2, ALL[2], session=1)
    return NOTHING


@small
def second_subscriber_begins_where_the_first_one_has_read_to(run: RunRecorder) -> set[str]:
    """What lies below a start is owed to nobody who begins there."""
    three(run)
    got(run, "s", 0, *ALL)
    run.sub("r", "t", 3, resumed=False, cursor=3)
    got(run, "r", 3)
    run.drained("r", "t", 3)
    return NOTHING


@small
def term_of_another_host_goes_back(run: RunRecorder) -> set[str]:
    """On one host it would be an answer of a deposed leader."""
    run.hosts["p"] = "other"
    run.sub("s", "t", 0, node="a", term=4)
    stored(run, "p", 1, 1, node="b", term=3)
    return NOTHING


@small
def given_again_elsewhere_and_its_neighbour_is_not_due_there(run: RunRecorder) -> set[str]:
    """Where it was given, its neighbour's place was not passed: it may come yet."""
    run.sub("s", "t", 0)
    stored(run, "q", 1, 1)
    stored(run, "p", 1, 2, 2)
    run.sub("r", "t", 3)
    got(run, "r", 3, (4, "p", 1))
    got(run, "s", 0, (1, "q", 1), (2, "p", 1), (3, "p", 2), (4, "p", 1))
    return {"duplicate_stored 2"}


@small
def repeated_put_is_told_no_id_for_it_is_old(run: RunRecorder) -> set[str]:
    """It was stored, given and collected since: that is what a duplicate without an id says."""
    run.sub("s", "t", 0)
    unclear(run, "p", 1)
    got(run, "s", 0, ALL[0])
    stored(run, "p", 1, 0, duplicate=True)
    return NOTHING


@small
def journal_has_an_entry_that_stored_nothing(run: RunRecorder) -> set[str]:
    """Nobody subscribes: a node that has not applied it yet can't know."""
    run.disk("a")
    stored(run, "p", 1, 0)
    run.held("a", "p", "t", 1)
    return NOTHING


@small
def sub_that_was_sent_twice_resumes_what_it_began(run: RunRecorder) -> set[str]:
    """Had it been sent once, an UNSUB would not have been carried out."""
    run.sub("s", "t", 0, resumed=False, attempt=1)
    run.unsub("s", "t")
    run.sub("s", "t", 0, resumed=True, cursor=0, attempt=2)
    return NOTHING


@small
def sub_resumes_what_another_process_may_have_begun(run: RunRecorder) -> set[str]:
    """That process' SUB has no answer, and is superseded by nothing before this one is sent."""
    run.sub("s", "t", 0, resumed=False, attempt=1)
    run.unsub("s", "t")
    run.invoke("s", "sub", "t", process="twin")
    run.sub("s", "t", 0, resumed=True, cursor=0, attempt=1)
    return NOTHING


@small
def sub_overlaps_the_one_that_it_resumes(run: RunRecorder) -> set[str]:
    """Both are under way: the broker may have carried out the other one first."""
    first = run.invoke("s", "sub", "t")
    second = run.invoke("s", "sub", "t", process="twin")
    run.complete(second, "ok", last_id=0, cursor=0, resumed=True, attempt=1)
    run.complete(first, "ok", last_id=0, cursor=0, resumed=False, attempt=1)
    return NOTHING


@small
def line_of_a_hand_over_is_doubled(run: RunRecorder) -> set[str]:
    """Two hand-overs would have two numbers: that one number comes twice is a hole."""
    run.handle("s", "hand", "t", 1, 1, cursor=0)
    run.rows.append(dict(run.rows[-1]))
    return NOTHING


# --- purges ---------------------------------------------------------------------------------------


@small
def who_was_told_of_a_purge_goes_on_behind_it(run: RunRecorder) -> set[str]:
    three(run)
    got(run, "s", 0, ALL[0])
    run.purge("t", 2)
    gone(run, "s", 1, 2, 2)
    got(run, "s", 2, ALL[2])
    run.drained("s", "t", 3)
    return NOTHING


@small
def purge_that_nobody_answered_was_carried_out(run: RunRecorder) -> set[str]:
    three(run)
    run.purge("t", 3, is_done=False)
    gone(run, "s", 0, 1, 3)
    run.drained("s", "t", 3)
    return NOTHING


@small
def purge_that_nobody_answered_was_not_carried_out(run: RunRecorder) -> set[str]:
    three(run)
    run.purge("t", 3, is_done=False)
    got(run, "s", 0, *ALL)
    return NOTHING


@small
def get_that_is_under_way_brings_what_is_purged_meanwhile(run: RunRecorder) -> set[str]:
    three(run)
    asked = run.invoke("s", "get", "t", last_id=0)
    run.purge("t", 2)
    items = [[*one, 1] for one in ALL]
    run.complete(asked, "ok", items=items, count=3)
    return NOTHING


@small
def publication_without_an_answer_is_among_the_purged(run: RunRecorder) -> set[str]:
    run.sub("s", "t", 0)
    unclear(run, "p", 1)
    stored(run, "p", 2, 2)
    run.purge("t", 1)
    gone(run, "s", 0, 1, 1)
    got(run, "s", 1, (2, "p", 2))
    return NOTHING


@small
def batch_is_purged_in_part(run: RunRecorder) -> set[str]:
    run.sub("s", "t", 0)
    stored(run, "p", 1, 1, count=3)
    run.purge("t", 2)
    gone(run, "s", 0, 1, 2)
    got(run, "s", 2, ALL[2])
    return NOTHING


@small
def who_is_told_of_a_purge_twice_had_crashed_before_it_went_on(run: RunRecorder) -> set[str]:
    three(run)
    run.purge("t", 2)
    gone(run, "s", 0, 1, 2)
    run.sub("s", "t", 0, session=1, resumed=True, cursor=0)
    invoke = run.invoke("s", "get", "t", last_id=0, session=1)
    run.complete(invoke, "fail", error="purged", first_id=1, last_id=2)
    got(run, "s", 2, ALL[2], session=1)
    return NOTHING


@small
def get_of_any_topic_is_told_of_the_purge_of_one(run: RunRecorder) -> set[str]:
    three(run)
    run.purge("t", 2)
    invoke = run.invoke("s", "get", "", max_count=1)
    ids = {"first_id": 1, "last_id": 2, "cursor": 0}
    run.complete(invoke, "fail", **(ids | {"topic": "t", "error": "purged"}))
    run.get("s", "", None, [[*ALL[2], 1]], answered="t", cursor=2, first_id=3, last_id=3)
    return NOTHING


@small
def purged_publications_were_read_by_another_before(run: RunRecorder) -> set[str]:
    three(run)
    run.sub("r", "t", 0)
    got(run, "r", 0, *ALL)
    run.purge("t", 3)
    gone(run, "s", 0, 1, 3)
    got(run, "r", 3)
    stored(run, "p", 4, 4)
    got(run, "s", 3, (4, "p", 4))
    return NOTHING


# --- what expires ---------------------------------------------------------------------------------


@small
def who_is_told_what_has_expired_goes_on_behind_it(run: RunRecorder) -> set[str]:
    brief(run)
    run.wait(20)
    gone(run, "s", 0, 1, 2, error="expired")
    got(run, "s", 2, (3, "p", 3))
    run.drained("s", "t", 3)
    return NOTHING


@small
def half_of_a_batch_has_expired(run: RunRecorder) -> set[str]:
    run.sub("s", "t", 0)
    stored(run, "p", 1, 1, 3, expires=[[2, 2, 5]])
    run.wait(20)
    got(run, "s", 0, ALL[0])
    gone(run, "s", 1, 2, 2, error="expired")
    got(run, "s", 2, ALL[2])
    return NOTHING


@small
def who_knows_no_expiry_is_told_of_a_gap(run: RunRecorder) -> set[str]:
    brief(run)
    run.wait(20)
    gone(run, "s", 0, 1, 2, error="gap")
    got(run, "s", 2, (3, "p", 3))
    return NOTHING


@small
def one_is_given_what_another_is_told_has_expired(run: RunRecorder) -> set[str]:
    run.sub("r", "t", 0)
    brief(run)
    got(run, "r", 0, ALL[0], ALL[1], ALL[2])
    run.wait(20)
    gone(run, "s", 0, 1, 2, error="expired")
    got(run, "s", 2, (3, "p", 3))
    return NOTHING


@small
def put_without_an_answer_has_expired(run: RunRecorder) -> set[str]:
    run.sub("s", "t", 0)
    unclear(run, "p", 1)
    stored(run, "q", 1, 2)
    gone(run, "s", 0, 1, 1, error="expired")
    got(run, "s", 1, (2, "q", 1))
    return NOTHING


@small
def retry_of_what_has_expired_is_a_duplicate(run: RunRecorder) -> set[str]:
    run.sub("s", "t", 0)
    unclear(run, "p", 1)
    run.wait(2_000)
    stored(run, "p", 1, 1, expires=[[1, 1, 1_000]], duplicate=True, session=1)
    gone(run, "s", 0, 1, 1, error="expired")
    run.drained("s", "t", 1)
    return NOTHING


# --- what is compacted ----------------------------------------------------------------------------


@small
def later_ones_of_their_keys_have_replaced_what_comes_first(run: RunRecorder) -> set[str]:
    keyed(run, 1, "abab")
    begins(run, "s", "earliest", 0)
    gone(run, "s", 0, 1, 2, error="compacted")
    got(run, "s", 2, (3, "p", 3), (4, "p", 4))
    keyed(run, 5, "c")
    got(run, "s", 4, (5, "p", 5))
    run.drained("s", "t", 5)
    return NOTHING


@small
def what_replaced_it_was_put_by_who_had_no_answer(run: RunRecorder) -> set[str]:
    keyed(run, 1, "a")
    unclear(run, "q", 1)
    begins(run, "s", "earliest", 0)
    gone(run, "s", 0, 1, 1, error="compacted")
    stored(run, "r", 1, 3)
    return NOTHING


@small
def who_has_read_on_and_seeks_back_is_told_what_went_meanwhile(run: RunRecorder) -> set[str]:
    run.sub("s", "t", 0)
    keyed(run, 1, "aa")
    got(run, "s", 0, (1, "p", 1), (2, "p", 2))
    seeks(run, "s", "earliest", 0)
    gone(run, "s", 0, 1, 1, error="compacted")
    got(run, "s", 1, (2, "p", 2))
    keyed(run, 3, "b")
    return NOTHING


@small
def a_group_passes_what_is_compacted_away(run: RunRecorder) -> set[str]:
    keyed(run, 1, "aa")
    made_of_compacted(run)
    took(run, "a", 1, 1, [2, 2, 1])
    took(run, "a", 2, 0, acks=[[1, 2, 2]], max_count=None)
    settled(run, 2)
    return NOTHING


# --- times, keys and headers ----------------------------------------------------------------------


@small
def readers_cut_one_time_into_other_runs(run: RunRecorder) -> set[str]:
    run.sub("s", "t", 0)
    run.sub("r", "t", 0)
    stored(run, "p", 1, 1, 4)
    run.get("s", "t", 0, [[1, "p", 1, 4]], times=[[1, 2, 50], [3, 4, 50]])
    run.get("r", "t", 0, [[1, "p", 1, 4]], times=[[1, 3, 50], [4, 4, 50]])
    return set()


@small
def reader_who_knows_of_no_properties_says_no_times(run: RunRecorder) -> set[str]:
    run.sub("s", "t", 0)
    run.sub("r", "t", 0)
    stored(run, "p", 1, 1, marked=[1], properties="01" * 8)
    got(run, "s", 0, (1, "p", 1), times=[[1, 1, 50]], marked=[1], properties="01" * 8)
    got(run, "r", 0, (1, "p", 1))
    return set()


@small
def other_topics_have_times_of_their_own(run: RunRecorder) -> set[str]:
    for topic, at_ms in (("t", 40), ("u", 50)):
        run.sub("s", topic, 0)
        run.put("p", topic, 1, "ok", first_id=1, last_id=1)
        run.get("s", topic, 0, [[1, "p", 1, 1]], times=[[1, 1, at_ms]])
    return set()
