"""Small histories of what is owed, known and allowed: a sentence of docs/checks.md each."""

from tests.spark.cases import EvidenceRow, Expected, case, may_subscribe, row
from tests.spark.histories import Row, RunRecorder


def put(run: RunRecorder, producer: str, counter: int, id_: int, **fields: object) -> Row:
    """Record an acknowledged PUT of one publication."""
    return run.put(producer, "t", counter, "ok", first_id=id_, last_id=id_, **fields)  # type: ignore[arg-type]


def unknown(run: RunRecorder, producer: str, counter: int, count: int = 1) -> Row:
    """Record a PUT that nobody knows the end of."""
    return run.put(producer, "t", counter, "info", count, error="timeout")


def got(run: RunRecorder, client_id: str, asked: int, *producers: str, **fields: object) -> Row:
    """Record an answer to `client_id`: a publication each of `producers`, with counter 1."""
    items = [[asked + 1 + place, one, 1, 1] for place, one in enumerate(producers)]
    return run.get(client_id, "t", asked, items, **fields)  # type: ignore[arg-type]


def lost(
    run: RunRecorder, detail: str, id_: int | None, producer: str, *operations: Row
) -> EvidenceRow:
    """Return a loss of the subscriber `s`: `producer`'s publication with counter 1."""
    proof = tuple((one["process"], one["op_id"]) for one in operations)
    return row(
        run, client_id="s", id=id_, producer=producer, counter=1, detail=detail, operations=proof
    )


def proof_of(*operations: Row) -> tuple[tuple[str, int], ...]:
    """Return operations as evidence names them."""
    return tuple((one["process"], one["op_id"]) for one in operations)


# --- lost -----------------------------------------------------------------------------------------


@case
def what_is_stored_below_the_start_of_a_standing_subscription_is_lost(run: RunRecorder) -> Expected:
    sub = run.sub("s", "t", 3)
    puts = {id_: put(run, f"p{id_}", 1, id_) for id_ in (1, 3)}
    put(run, "p4", 1, 4)
    got(run, "s", 3, "p4")
    above = {"other_id": 3, "counter": 1}
    return {
        "realtime_order": [
            row(run, id=id_, producer=f"p{id_}", operations=proof_of(sub, one), **above)
            for id_, one in puts.items()
        ],
        "lost": [lost(run, "start", id_, f"p{id_}", sub, one) for id_, one in puts.items()],
    }


@case
def what_was_tried_before_the_subscription_may_stand_below_its_start(run: RunRecorder) -> Expected:
    early = run.invoke("p", "put", "t", counter=1, count=1)
    run.sub("s", "t", 3)
    run.complete(early, "ok", first_id=2, last_id=2)
    return {}


@case
def duplicate_without_an_id_that_never_came_is_lost_once_drained(run: RunRecorder) -> Expected:
    sub = run.sub("s", "t")
    retried = unknown(run, "p", 1)
    run.put("p", "t", 1, "ok", first_id=0, last_id=0, duplicate=True, session=1)
    put(run, "q", 1, 1)
    got(run, "s", 0, "q")
    run.drained("s", "t", 1)
    return {"lost": [lost(run, "unplaced", None, "p", retried, sub)]}


@case
def duplicate_without_an_id_may_be_of_before_the_subscription(run: RunRecorder) -> Expected:
    unknown(run, "p", 1)
    run.sub("s", "t")
    run.put("p", "t", 1, "ok", first_id=0, last_id=0, duplicate=True, session=1)
    put(run, "q", 1, 1)
    got(run, "s", 0, "q")
    run.drained("s", "t", 1)
    return {}


@case
def what_one_was_given_another_one_who_went_past_it_has_lost(run: RunRecorder) -> Expected:
    sub = run.sub("s", "t")
    run.sub("a", "t")
    unknown(run, "u", 1)
    put(run, "q", 1, 2)
    seen = got(run, "a", 0, "u", "q")
    past = run.get("s", "t", 0, [[2, "q", 1, 1]])
    gap = row(run, client_id="s", id=2, other_id=0, operations=proof_of(past))
    return {"lost": [lost(run, "prefix", 1, "u", seen, sub)], "gap": [gap]}


@case
def what_one_was_given_another_one_that_drained_has_lost(run: RunRecorder) -> Expected:
    sub = run.sub("s", "t")
    run.sub("a", "t")
    unknown(run, "u", 1)
    seen = got(run, "a", 0, "u")
    run.wait(500)
    run.get("s", "t", 0, [], first_id=1)
    run.drained("s", "t", 0)
    return {"lost": [lost(run, "tail", 1, "u", seen, sub)]}


@case
def what_nobody_was_given_may_never_have_been_stored(run: RunRecorder) -> Expected:
    run.sub("s", "t")
    unknown(run, "u", 1)
    put(run, "q", 1, 1)
    got(run, "s", 0, "q")
    run.drained("s", "t", 1)
    return {}


@case
def counter_between_two_stored_ones_is_lost(run: RunRecorder) -> Expected:
    sub = run.sub("s", "t")
    put(run, "p", 1, 1)
    tried = unknown(run, "p", 2)
    put(run, "p", 3, 2)
    run.get("s", "t", 0, [[1, "p", 1, 1], [2, "p", 3, 1]])
    return {"lost": [lost(run, "unplaced", None, "p", tried, sub)._replace(counter=2)]}


@case
def what_was_owed_to_a_subscription_that_ended_is_lost_as_far_as_it_went(
    run: RunRecorder,
) -> Expected:
    sub = run.sub("s", "t")
    missed = put(run, "p", 1, 1)
    put(run, "q", 1, 2)
    past = run.get("s", "t", 0, [[2, "q", 1, 1]])
    put(run, "r", 1, 3)
    run.unsub("s", "t")
    gap = row(run, client_id="s", id=2, other_id=0, operations=proof_of(past))
    return {"lost": [lost(run, "prefix", 1, "p", missed, sub)], "gap": [gap]}


@case
def nobody_subscribes_is_a_loss_also_of_a_subscription_that_ended_later(
    run: RunRecorder,
) -> Expected:
    sub = run.sub("s", "t")
    refused = run.put("p", "t", 1, "ok", first_id=0, last_id=0)
    run.unsub("s", "t")
    run.put("p", "t", 2, "ok", first_id=0, last_id=0)
    return {"lost": [lost(run, "unstored", None, "p", refused, sub)]}


@case
def subscription_of_unknown_outcome_stands_as_soon_as_it_is_answered(run: RunRecorder) -> Expected:
    run.invoke("s", "sub", "t")
    put(run, "o", 1, 1)
    first = got(run, "s", 0, "o")
    missed = put(run, "p", 1, 2)
    put(run, "q", 1, 3)
    past = run.get("s", "t", 1, [[3, "q", 1, 1]])
    # The SUB can't have begun anew meanwhile: nobody has left since it was answered.
    gap = row(run, client_id="s", id=3, other_id=1, operations=proof_of(past))
    return {"lost": [lost(run, "middle", 2, "p", missed, first)], "gap": [gap]}


@case
def retry_that_is_acknowledged_after_the_drain_is_not_lost(run: RunRecorder) -> Expected:
    run.sub("s", "t")
    put(run, "q", 1, 1)
    unknown(run, "p", 1)
    got(run, "s", 0, "q")
    run.drained("s", "t", 1)
    put(run, "p", 1, 2, session=1)
    return {}


@case
def who_drained_and_left_is_owed_nothing_of_what_comes_before_it_returns(
    run: RunRecorder,
) -> Expected:
    run.sub("s", "t")
    run.sub("a", "t")
    put(run, "q", 1, 1)
    got(run, "s", 0, "q")
    run.drained("s", "t", 1)
    run.unsub("s", "t")
    put(run, "p", 1, 2)
    run.sub("s", "t", 2, resumed=False, cursor=2)
    put(run, "r", 1, 3)
    got(run, "a", 0, "q", "p", "r")
    return {}


@case
def sub_of_another_process_may_undo_an_unsub_that_it_overlaps(run: RunRecorder) -> Expected:
    run.sub("s", "t")
    leaving = run.invoke("s", "unsub", "t")
    run.sub("s", "t", process="twin", resumed=True, cursor=0)
    run.complete(leaving, "ok")
    run.put("p", "t", 1, "ok", first_id=0, last_id=0)
    return {}


@case
def unsub_of_another_host_leaves_no_life(run: RunRecorder) -> Expected:
    run.hosts = {"twin": "elsewhere"}
    run.sub("s", "t")
    run.complete(run.invoke("s", "unsub", "t", process="twin"), "ok")
    run.put("p", "t", 1, "ok", first_id=0, last_id=0)
    return {}


@case
def newer_epoch_on_another_host_does_not_tell_when_an_old_unsub_acted(run: RunRecorder) -> Expected:
    run.hosts = {"twin": "elsewhere"}
    run.sub("s", "t", epoch=1)
    run.invoke("s", "unsub", "t", epoch=1)
    run.sub("s", "t", epoch=2, process="twin")
    run.get("s", "t", 0, [], epoch=1)
    run.put("p", "t", 1, "ok", first_id=0, last_id=0)
    return {}


@case
def what_another_host_saw_taken_was_not_taken_before_a_drain_here(run: RunRecorder) -> Expected:
    run.hosts = {"r": "elsewhere"}
    run.sub("s", "t")
    for counter in (1, 2):
        unknown(run, "p", counter)
    run.sub("r", "t")
    run.get("r", "t", 0, [[1, "p", 2, 1]])
    run.get("s", "t", 0, [])
    run.drained("s", "t", 0)
    run.unsub("s", "t")
    return {}


@case
def tombstone_of_its_topic_is_what_a_drain_is_held_against(run: RunRecorder) -> Expected:
    sub = run.sub("s", "t")
    early = put(run, "p", 1, 1)
    run.phase("tombstone")
    put(run, "q", 1, 2)
    put(run, "r", 1, 3)
    run.wait(10)
    run.drained("s", "t", 0)
    return {"lost": [lost(run, "tail", 1, "p", early, sub)]}


# --- knowledge ------------------------------------------------------------------------------------


@case
def what_one_was_given_nobody_is_told_there_is_not(run: RunRecorder) -> Expected:
    may_subscribe(run, "a")
    run.sub("s", "t")
    unknown(run, "u", 1)
    seen = got(run, "a", 0, "u")
    run.wait(200)
    stale = run.get("s", "t", 0, [])
    return {
        "stale_read": [
            row(run, client_id="s", id=1, other_id=0, detail="nothing",
                operations=proof_of(seen, stale))
        ]
    }  # fmt: skip


@case
def what_lies_below_a_start_need_not_be_told(run: RunRecorder) -> Expected:
    put(run, "p", 1, 4)
    run.sub("s", "t", 4)
    run.get("s", "t", 0, [])
    run.invoke("a", "sub", "t")
    run.get("a", "t", 0, [])
    return {}


@case
def what_stands_below_what_was_given_before_it_was_sent_is_out_of_order(
    run: RunRecorder,
) -> Expected:
    may_subscribe(run, "a")
    unknown(run, "u", 1)
    seen = run.get("a", "t", 4, [[5, "u", 1, 1]])
    late = put(run, "p", 1, 3)
    above = row(run, id=3, other_id=5, producer="p", counter=1, operations=proof_of(seen, late))
    below = lost(run, "start", 3, "p", seen, late)._replace(client_id="a")
    return {"realtime_order": [above], "lost": [below]}


@case
def what_stands_below_a_cursor_that_was_accepted_is_out_of_order(run: RunRecorder) -> Expected:
    may_subscribe(run, "a")
    seen = run.get("a", "t", 5, [])
    late = put(run, "p", 1, 5)
    above = row(run, id=5, other_id=5, producer="p", counter=1, operations=proof_of(seen, late))
    return {"realtime_order": [above]}


@case
def new_subscription_below_what_another_one_began_at_is_stale(run: RunRecorder) -> Expected:
    first = run.sub("a", "t", 4, resumed=False, cursor=4)
    run.wait(200)
    second = run.sub("s", "t", 3, resumed=False, cursor=3)
    stale = {"id": 4, "other_id": 3, "detail": "start"}
    return {"stale_read": [row(run, client_id="s", operations=proof_of(first, second), **stale)]}


@case
def publication_given_before_it_was_sent_is_a_read_of_the_future(run: RunRecorder) -> Expected:
    may_subscribe(run, "a")
    seen = got(run, "a", 0, "p")
    put(run, "p", 1, 1)
    common = {"id": 1, "producer": "p", "counter": 1}
    return {
        "future_read": [row(run, operations=proof_of(seen), **common)],
        "realtime_order": [row(run, other_id=1, operations=proof_of(seen, seen), **common)],
    }


@case
def publication_given_before_the_retry_of_what_was_refused_is_one_too(run: RunRecorder) -> Expected:
    may_subscribe(run, "a")
    run.put("p", "t", 1, "fail", error="electing")
    seen = got(run, "a", 0, "p")
    put(run, "p", 1, 1, session=1)
    common = {"id": 1, "producer": "p", "counter": 1}
    return {
        "future_read": [row(run, operations=proof_of(seen), **common)],
        "realtime_order": [row(run, other_id=1, operations=proof_of(seen, seen), **common)],
    }


@case
def publication_given_while_it_was_under_way_or_on_another_host_is_none(
    run: RunRecorder,
) -> Expected:
    may_subscribe(run, "a")
    run.hosts = {"q": "elsewhere"}
    asking = run.invoke("a", "get", "t", last_id=0)
    sent = run.invoke("p", "put", "t", counter=1, count=1)
    run.complete(asking, "ok", items=[[1, "p", 1, 1], [2, "q", 1, 1]], count=2)
    run.complete(sent, "ok", first_id=1, last_id=1)
    put(run, "q", 1, 2)
    return {}


# --- torn_batch -----------------------------------------------------------------------------------


@case
def batch_with_another_publication_inside_is_torn(run: RunRecorder) -> Expected:
    may_subscribe(run, "a")
    unknown(run, "p", 1, 2)
    unknown(run, "q", 1)
    seen = run.get("a", "t", 0, [[1, "p", 1, 1], [2, "q", 1, 1], [3, "p", 2, 1]])
    torn = row(
        run, id=1, other_id=3, producer="p", counter=1, detail="split",
        operations=proof_of(seen, seen),
    )  # fmt: skip
    return {"torn_batch": [torn]}


@case
def counters_that_were_tried_apart_may_stand_apart(run: RunRecorder) -> Expected:
    may_subscribe(run, "a")
    unknown(run, "p", 1, 2)
    unknown(run, "q", 1)
    run.put("p", "t", 2, "info", session=1, error="timeout")
    run.get("a", "t", 0, [[1, "p", 1, 1], [2, "q", 1, 1], [3, "p", 2, 1]])
    return {}


@case
def half_of_a_batch_is_no_batch(run: RunRecorder) -> Expected:
    sub = run.sub("s", "t")
    tried = unknown(run, "p", 1, 2)
    unknown(run, "q", 1)
    seen = run.get("s", "t", 0, [[1, "q", 1, 1], [2, "p", 2, 1]])
    half = row(
        run, id=1, other_id=2, producer="p", counter=1, detail="half",
        operations=proof_of(seen, sub),
    )  # fmt: skip
    return {"torn_batch": [half], "lost": [lost(run, "unplaced", None, "p", tried, sub)]}


@case
def batch_of_which_more_is_to_come_is_whole(run: RunRecorder) -> Expected:
    run.sub("s", "t")
    unknown(run, "p", 1, 3)
    run.get("s", "t", 0, [[1, "p", 1, 2]])
    return {}


@case
def batch_of_which_a_part_is_damaged_is_whole(run: RunRecorder) -> Expected:
    run.sub("s", "t")
    run.put("p", "t", 1, "ok", 3, first_id=1, last_id=3)
    damaged = run.get("s", "t", 0, [[1, "p", 1, 1], [3, "p", 3, 1]], corrupt=[[2, "checksum"]])
    bad = row(run, client_id="s", id=2, detail="checksum", operations=proof_of(damaged))
    return {"corrupt": [bad]}


# --- subscription ---------------------------------------------------------------------------------


def wrong(run: RunRecorder, word: str, *operations: Row, topic: str = "t") -> EvidenceRow:
    """Return evidence that `s` was not answered as it has subscribed or asked."""
    return row(run, topic=topic, client_id="s", detail=word, operations=proof_of(*operations))


@case
def subscription_that_stood_is_not_made_anew(run: RunRecorder) -> Expected:
    first = run.sub("s", "t", 0, resumed=False, cursor=0)
    again = run.sub("s", "t", 0, resumed=False, cursor=0)
    return {"subscription": [wrong(run, "forgotten", first, again)]}


@case
def subscription_that_ended_is_made_anew(run: RunRecorder) -> Expected:
    run.sub("s", "t", 0, resumed=False, cursor=0)
    run.unsub("s", "t", "info")
    run.sub("s", "t", 0, resumed=False, cursor=0)
    run.sub("a", "t", 0, resumed=False, cursor=0)
    crossing = run.invoke("a", "unsub", "t")
    run.sub("a", "t", 0, process="twin", resumed=False, cursor=0)
    run.complete(crossing, "ok")
    return {}


@case
def subscription_that_stood_is_not_denied(run: RunRecorder) -> Expected:
    first = run.sub("s", "t")
    denied = []
    for error in ("not_subscribed", "unknown_topic", "busy"):
        asking = run.invoke("s", "get", "t", last_id=0)
        run.complete(asking, "fail", error=error)
        denied.append(asking)
    run.unsub("s", "t")
    run.complete(run.invoke("s", "get", "t", last_id=0), "fail", error="not_subscribed")
    return {"subscription": [wrong(run, "denied", first, one) for one in denied[:2]]}


@case
def who_has_left_or_never_came_is_not_answered(run: RunRecorder) -> Expected:
    early = run.get("s", "t", 0, [])
    run.sub("s", "t")
    run.get("s", "t", 0, [])
    run.unsub("s", "t")
    late = run.get("s", "t", 0, [])
    run.sub("s", "t")
    run.get("s", "t", 0, [])
    never = run.get("s", "u", 0, [])
    away = [wrong(run, "unsubscribed", one) for one in (early, late)]
    return {"subscription": [*away, wrong(run, "unsubscribed", never, topic="u")]}


@case
def who_may_not_have_left_yet_or_may_be_back_is_answered(run: RunRecorder) -> Expected:
    run.sub("s", "t")
    run.unsub("s", "t", "info")
    run.get("s", "t", 0, [])
    run.sub("a", "t")
    run.unsub("a", "t")
    back = run.invoke("a", "sub", "t")
    run.get("a", "t", 0, [], process="twin")
    run.complete(back, "info", error="timeout")
    return {}


@case
def answer_is_of_the_topic_that_was_asked_for(run: RunRecorder) -> Expected:
    run.sub("s", "t")
    run.sub("s", "u")
    run.put("p", "u", 1, "ok", first_id=1, last_id=1)
    asking = run.invoke("s", "get", "t", last_id=0)
    run.complete({**asking, "topic": "u"}, "ok", items=[[1, "p", 1, 1]], count=1, cursor=0)
    any_of = run.invoke("s", "get", "")
    run.complete({**any_of, "topic": "u"}, "ok", items=[], count=0, first_id=1)
    return {"subscription": [wrong(run, "topic", asking)]}


@case
def answer_is_no_longer_than_was_asked_for(run: RunRecorder) -> Expected:
    run.sub("s", "t")
    run.put("p", "t", 1, "ok", 4, first_id=1, last_id=4)
    for asked in (0, 2):
        asking = run.invoke("s", "get", "t", last_id=asked, max_count=2 - asked // 2)
        items = [[asked + 1, "p", asked + 1, 2]]
        run.complete(asking, "ok", items=items, count=2, max_count=asking["max_count"])
    return {"subscription": [wrong(run, "limit", asking)]}


# --- term_order -----------------------------------------------------------------------------------


@case
def terms_do_not_go_back_in_time(run: RunRecorder) -> Expected:
    run.hosts = {"far": "elsewhere"}
    put(run, "p", 1, 1, node="a", term=3)
    first = put(run, "p", 2, 2, node="b", term=5)
    late = put(run, "q", 1, 3, node="a", term=3)
    put(run, "q", 2, 4, node="a", term=3)
    put(run, "far", 1, 5, node="c", term=4)
    back = row(run, topic=None, id=3, other_id=5, operations=proof_of(first, late))
    return {"term_order": [back]}


@case
def answers_of_terms_may_cross(run: RunRecorder) -> Expected:
    under_way = run.invoke("p", "put", "t", counter=1, count=1)
    put(run, "q", 1, 2, node="b", term=5)
    run.complete(under_way, "ok", first_id=1, last_id=1, node="a", term=3)
    run.put("q", "t", 2, "fail", error="not_leader", node="a", term=3)
    return {}


# --- places on disks ------------------------------------------------------------------------------


def on_disk(run: RunRecorder, nodes: str, producer: str, counter: int, id_: int | None) -> None:
    """Record that `nodes` hold a publication under an id."""
    fields = {"topic": "t", "producer": producer, "count": 1}
    run.found_on(nodes, "held", first_id=id_, first_counter=counter, **fields)
    run.found_on(nodes, "counter", topic="t", producer=producer, counter=counter)


@case
def what_a_node_holds_was_tried_and_not_refused(run: RunRecorder) -> Expected:
    run.disk("a", "b", "c")
    refused = run.put("q", "t", 1, "fail", error="electing")
    unknown(run, "r", 1)
    for producer, id_ in (("p", 1), ("q", 2), ("r", 3), ("g", None)):
        on_disk(run, "abc", producer, 1, id_)
    return {
        "phantom": [
            row(run, id=1, producer="p", counter=1),
            row(run, producer="g", counter=1),
        ],
        "aborted_read": [row(run, id=2, producer="q", counter=1, operations=proof_of(refused))],
    }


@case
def what_a_node_holds_has_one_id_and_is_alone_under_it(run: RunRecorder) -> Expected:
    run.disk("a", "b", "c")
    first = put(run, "p", 1, 1)
    unknown(run, "q", 1)
    on_disk(run, "ab", "p", 1, 1)
    on_disk(run, "c", "q", 1, 1)
    on_disk(run, "c", "p", 1, 2)
    twice = row(run, id=1, other_id=2, producer="p", counter=1, operations=proof_of(first))
    torn = row(run, id=1, producer="p", counter=1, detail="q 1", operations=proof_of(first))
    late = row(run, id=1, other_id=1, producer="q", counter=1, operations=proof_of(first))
    return {"duplicate_stored": [twice], "inconsistent_id": [torn], "realtime_order": [late]}


@case
def what_is_held_and_was_owed_is_lost(run: RunRecorder) -> Expected:
    run.disk("a", "b", "c")
    sub = run.sub("s", "t")
    unknown(run, "u", 1)
    put(run, "q", 1, 2)
    past = run.get("s", "t", 0, [[2, "q", 1, 1]])
    on_disk(run, "abc", "u", 1, 1)
    on_disk(run, "abc", "q", 1, 2)
    gap = row(run, client_id="s", id=2, other_id=0, operations=proof_of(past))
    return {"lost": [lost(run, "prefix", 1, "u", sub)], "gap": [gap]}


@case
def node_has_what_it_holds_under_the_acknowledged_id_and_below_its_last(
    run: RunRecorder,
) -> Expected:
    run.disk("a", "b", "c")
    puts = [put(run, one, 1, id_) for id_, one in enumerate("pqr", start=1)]
    on_disk(run, "abc", "p", 1, 1)
    on_disk(run, "a", "q", 1, 2)
    on_disk(run, "bc", "q", 1, None)
    on_disk(run, "abc", "r", 1, 3)
    run.found_on("ab", "topic", topic="t", last_id=2, floor_id=0)
    run.found_on("c", "topic", topic="t", last_id=3, floor_id=0)
    missing = row(
        run, id=3, producer="r", counter=1, detail="not on a b", operations=proof_of(puts[2])
    )
    return {"ack_not_durable": [missing]}
