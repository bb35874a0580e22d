"""Histories about what came before what: real time, freshness, cursors, epochs, terms."""

from tests.spark.cases import Expected, case, may_subscribe, row
from tests.spark.histories import Row, RunRecorder

BORDER = 65_536  # ids from here on are in the next bucket
TICK_MS = 100  # what the checks cut time into


def acknowledged(run: RunRecorder, id_: int, producer: str = "p", **fields: object) -> None:
    """Record a PUT that took the id, its counter the same."""
    run.put(producer, "t", id_, "ok", first_id=id_, last_id=id_, **fields)


def empty(run: RunRecorder, asked: int | None, client_id: str = "s", **fields: object) -> Row:
    """Record a GET that is told that there is nothing."""
    return run.get(client_id, "t", asked, [], **fields)  # type: ignore[arg-type]


# --- realtime_order -------------------------------------------------------------------------------


@case
def id_below_one_acknowledged_before_is_out_of_order(run: RunRecorder) -> Expected:
    acknowledged(run, BORDER + 1)
    acknowledged(run, 7, "q")
    proof = (("p", 1), ("q", 1))
    late = row(run, id=7, other_id=BORDER + 1, producer="q", counter=7, operations=proof)
    return {"realtime_order": [late]}


@case
def of_all_above_the_first_acknowledged_is_the_witness(run: RunRecorder) -> Expected:
    for id_ in (9, 8, BORDER):
        acknowledged(run, id_, f"p{id_}")
    acknowledged(run, 5, "q")
    first = {"other_id": 9, "operations": (("p9", 1), ("q", 1))}
    then = {"other_id": 9, "operations": (("p9", 1), ("p8", 1))}
    return {
        "realtime_order": [
            row(run, id=5, producer="q", counter=5, **first),
            row(run, id=8, producer="p8", counter=8, **then),
        ]
    }


@case
def puts_that_overlap_in_time_may_take_ids_in_any_order(run: RunRecorder) -> Expected:
    early = run.invoke("p", "put", "t", counter=1, count=1)
    late = run.invoke("q", "put", "t", counter=1, count=1)
    run.complete(late, "ok", first_id=2, last_id=2)
    run.complete(early, "ok", first_id=1, last_id=1)
    return {}


@case
def publication_sent_again_was_sent_when_it_was_first_tried(run: RunRecorder) -> Expected:
    run.put("p", "t", 1, "info", 2, error="timeout")
    run.put("q", "t", 1, "ok", first_id=3, last_id=3)
    run.put("p", "t", 1, "ok", 2, first_id=1, last_id=2, duplicate=True, session=1)
    return {}


@case
def clocks_of_two_hosts_are_not_compared(run: RunRecorder) -> Expected:
    run.hosts = {"q": "elsewhere", "r": None, "s": "far away"}
    acknowledged(run, 9)
    acknowledged(run, 7, "q")
    acknowledged(run, 6, "r")
    run.sub("s", "t", 0, resumed=False, cursor=0)
    empty(run, 0)
    return {}


@case
def unknown_hosts_are_taken_for_one(run: RunRecorder) -> Expected:
    run.hosts = {"p": None, "q": None}
    acknowledged(run, 9)
    acknowledged(run, 7, "q")
    proof = (("p", 1), ("q", 1))
    late = row(run, id=7, other_id=9, producer="q", counter=7, operations=proof)
    return {"realtime_order": [late]}


# --- stale_read -----------------------------------------------------------------------------------


@case
def nothing_above_the_cursor_is_stale_once_more_is_acknowledged(run: RunRecorder) -> Expected:
    run.sub("s", "t", 2, resumed=False, cursor=2)
    acknowledged(run, 3)
    run.wait(3 * TICK_MS)
    empty(run, 2)
    stale = row(
        run, client_id="s", id=3, other_id=2, detail="nothing", operations=(("p", 1), ("s", 2))
    )
    return {"stale_read": [stale]}


@case
def nothing_is_right_for_who_has_all_or_asked_before_or_does_not_say(run: RunRecorder) -> Expected:
    may_subscribe(run, "r", "s")
    asking = run.invoke("r", "get", "t", last_id=0)
    run.put("p", "t", 1, "ok", 3, first_id=1, last_id=3)
    run.complete(asking, "ok", items=[], count=0)
    empty(run, 3)
    empty(run, None)
    silent = run.invoke("s", "get", "t", last_id=0, session=1)
    run.complete(silent, "info", error="timeout")
    return {}


@case
def answer_that_the_client_had_by_then_is_not_nothing(run: RunRecorder) -> Expected:
    may_subscribe(run, "s")
    acknowledged(run, 1)
    empty(run, 0, first_id=1)
    return {}


@case
def stale_within_a_moment_is_found_as_well(run: RunRecorder) -> Expected:
    run.sub("s", "t", process="s-before")
    acknowledged(run, 1)
    empty(run, 0)
    acknowledged(run, 2)
    stale = row(
        run, client_id="s", id=1, other_id=0, detail="nothing", operations=(("p", 1), ("s", 1))
    )
    return {"stale_read": [stale]}


@case
def new_subscription_below_an_acknowledged_id_is_stale(run: RunRecorder) -> Expected:
    run.sub("q", "t", resumed=False, cursor=0)
    acknowledged(run, 4)
    run.sub("s", "t", 3, resumed=False, cursor=3)
    run.sub("q", "t", 0, session=1, resumed=True, cursor=0)
    run.sub("r", "t", 3)
    stale = row(
        run, client_id="s", id=4, other_id=3, detail="start", operations=(("p", 1), ("s", 1))
    )
    return {"stale_read": [stale]}


# --- cursor_regression ----------------------------------------------------------------------------


@case
def cursor_that_an_answer_took_does_not_go_back(run: RunRecorder) -> Expected:
    may_subscribe(run, "s")
    run.put("p", "t", 1, "ok", 5, first_id=1, last_id=5)
    run.get("s", "t", 2, [[3, "p", 3, 1]])
    run.wait(2 * TICK_MS)
    run.get("s", "t", 1, [[2, "p", 2, 1]], session=1)
    back = row(
        run, client_id="s", id=1, other_id=2, detail="asked", operations=(("s", 1), ("s", 2))
    )
    return {"cursor_regression": [back]}


@case
def cursor_without_an_answer_was_not_taken(run: RunRecorder) -> Expected:
    may_subscribe(run, "r", "s")
    run.put("p", "t", 1, "ok", 5, first_id=1, last_id=5)
    asking = run.invoke("s", "get", "t", last_id=4)
    run.complete(asking, "info", error="timeout")
    run.get("s", "t", 1, [[2, "p", 2, 1]], session=1)
    run.get("r", "t", 0, [[1, "p", 1, 1]])
    return {}


@case
def cursor_of_any_topic_is_the_one_that_the_answer_names(run: RunRecorder) -> Expected:
    may_subscribe(run, "s")
    run.put("p", "t", 1, "ok", 5, first_id=1, last_id=5)
    first = run.invoke("s", "get", "")
    run.complete(first | {"topic": "t"}, "ok", items=[[3, "p", 3, 1]], count=1, cursor=2)
    second = run.invoke("s", "get", "")
    run.complete(second | {"topic": "t"}, "ok", items=[[2, "p", 2, 1]], count=1, cursor=1)
    back = row(
        run, client_id="s", id=1, other_id=2, detail="asked", operations=(("s", 1), ("s", 2))
    )
    return {"cursor_regression": [back]}


@case
def subscription_resumes_where_it_was_or_further(run: RunRecorder) -> Expected:
    run.put("p", "t", 1, "ok", 5, first_id=1, last_id=5)
    run.sub("s", "t", 5, resumed=False, cursor=5)
    run.sub("s", "t", 5, resumed=True, cursor=4)
    run.sub("r", "t", 5)
    run.sub("r", "t", 4, session=1)
    back = row(
        run, client_id="s", id=4, other_id=5, detail="answered", operations=(("s", 1), ("s", 2))
    )
    return {"cursor_regression": [back]}


@case
def subscription_that_resumes_above_all_that_was_delivered_skips(run: RunRecorder) -> Expected:
    run.sub("s", "t", 1, resumed=False, cursor=1)
    run.put("p", "t", 2, "ok", 7, first_id=2, last_id=8)
    run.get("s", "t", 1, [[2, "p", 2, 3]])
    run.sub("s", "t", 4, session=1, resumed=True, cursor=4)
    run.sub("s", "t", 6, session=2, resumed=True, cursor=6)
    run.get("s", "t", 4, [[5, "p", 5, 4]], session=2)
    ahead = row(run, client_id="s", id=6, other_id=4, detail="ahead", operations=(("s", 4),))
    back = row(
        run, client_id="s", id=4, other_id=6, detail="asked", operations=(("s", 4), ("s", 5))
    )
    return {"cursor_regression": [ahead, back]}


@case
def subscription_made_anew_by_an_unanswered_sub_resumes_at_its_start(run: RunRecorder) -> Expected:
    run.sub("s", "t", 1, resumed=False, cursor=1)
    run.unsub("s", "t", "info")
    unheard = run.invoke("s", "sub", "t")
    run.complete(unheard, "info", error="timeout")
    run.sub("s", "t", 9, session=1, resumed=True, cursor=9)
    return {}


# --- fencing --------------------------------------------------------------------------------------


@case
def old_epoch_is_over_once_a_newer_one_has_succeeded(run: RunRecorder) -> Expected:
    may_subscribe(run, "p")
    run.sub("s", "t", resumed=False, cursor=0)
    acknowledged(run, 1, epoch=1)
    acknowledged(run, 2, epoch=2, process="twin")
    acknowledged(run, 3, epoch=1)
    run.get("p", "t", 0, [], epoch=3, process="third", first_id=1)
    acknowledged(run, 4, epoch=2, process="twin")
    fenced = [
        row(run, client_id="p", detail=f"put of epoch {old} after epoch {new}", operations=proof)
        for old, new, proof in (
            (1, 2, (("twin", 1), ("p", 2))),
            (2, 3, (("third", 1), ("twin", 2))),
        )
    ]
    return {"fencing": fenced}


@case
def each_session_has_an_epoch_of_its_own(run: RunRecorder) -> Expected:
    may_subscribe(run, "p")
    run.sub("s", "t", resumed=False, cursor=0)
    acknowledged(run, 1, epoch=1)
    acknowledged(run, 2, epoch=1)
    acknowledged(run, 3, epoch=1, session=1)
    acknowledged(run, 4, epoch=1, session=1)
    run.get("p", "t", 0, [], epoch=1, process="a-twin", first_id=1)
    run.put("p", "t", 5, "fail", epoch=1, session=2, error="fenced")
    first = (("a-twin", 1), ("p", 1)), (("a-twin", 1), ("p", 3))
    detail = "shared: epoch 1"
    shared = [row(run, client_id="p", detail=detail, operations=one) for one in first]
    return {"fencing": shared}


@case
def who_was_under_way_at_the_takeover_may_succeed(run: RunRecorder) -> Expected:
    under_way = run.invoke("p", "put", "t", counter=1, count=1, epoch=1)
    acknowledged(run, 2, epoch=2, process="twin")
    run.complete(under_way, "ok", first_id=1, last_id=1)
    refused = run.invoke("p", "put", "t", counter=3, count=1, epoch=1)
    run.complete(refused, "fail", error="fenced")
    acknowledged(run, 3)
    acknowledged(run, 4, "q", epoch=1)
    return {}


# --- leaders_per_term -----------------------------------------------------------------------------


@case
def term_with_two_leaders_is_found(run: RunRecorder) -> Expected:
    run.sub("s", "t", resumed=False, cursor=0, node="n2", term=5)
    acknowledged(run, 1, node="n1", term=5)
    acknowledged(run, 2, node="n1", term=5)
    acknowledged(run, 3, node="n3", term=6)
    two = row(run, topic=None, id=5, detail="term: n1 n2", operations=(("p", 1), ("s", 1)))
    return {"leaders_per_term": [two]}


@case
def leaders_whom_only_their_own_logs_know_are_found(run: RunRecorder) -> Expected:
    run.disk("a", "b", "c")
    run.sub("s", "t", resumed=False, cursor=0, node="a", term=5)
    run.found_on("ab", "leadership", term=5)
    run.found_on("c", "leadership", term=6)
    run.found_on("ac", "leadership", term=7)
    heard = row(run, topic=None, id=5, detail="term: a b", operations=(("s", 1),))
    unheard = row(run, topic=None, id=7, detail="term: a c")
    return {"leaders_per_term": [heard, unheard]}


@case
def refusals_and_answers_without_a_name_prove_no_leader(run: RunRecorder) -> Expected:
    acknowledged(run, 1, node="n1", term=5)
    run.put("p", "t", 2, "fail", error="not_leader", node="n2", term=5)
    acknowledged(run, 2, node="n2")
    acknowledged(run, 3, term=5)
    return {}
