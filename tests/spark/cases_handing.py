"""Small histories of what libraries handed to their applications, and what these acknowledged."""

from tests.spark.cases import Expected, case, row
from tests.spark.histories import RunRecorder

ALL = "0123456789abcdef" * 3  # the digests of three publications


def begun(run: RunRecorder, **fields: object) -> None:
    """Publish `t` 1 to 3 to `s`, whose library has got them, and may hand them over."""
    run.sub("s", "t")
    run.put("p", "t", 1, "ok", 3, first_id=1)
    run.get("s", "t", 0, [[1, "p", 1, 3]], handed_apart=True, **fields)


@case
def what_is_handed_over_one_by_one_and_acknowledged_is_in_order(run: RunRecorder) -> Expected:
    begun(run)
    for id_ in (1, 2, 3):
        run.handle("s", "hand", "t", id_, id_, cursor=id_ - 1)
        run.handle("s", "ack", "t", None, id_)
    run.get("s", "t", 3, [])
    return {}


@case
def what_a_crash_left_unacknowledged_comes_again(run: RunRecorder) -> Expected:
    begun(run)
    run.handle("s", "hand", "t", 1, 2, cursor=0)
    run.get("s", "t", 0, [[1, "p", 1, 3]], session=1, handed_apart=True)
    run.handle("s", "hand", "t", 1, 3, cursor=0, session=1, redelivered=2)
    return {}


@case
def what_its_reader_gave_back_comes_again(run: RunRecorder) -> Expected:
    begun(run)
    run.handle("s", "hand", "t", 1, 2, cursor=0)
    run.handle("s", "release", "t", 1, 2)
    run.handle("s", "hand", "t", 1, 3, cursor=0, redelivered=2)
    return {}


@case
def what_comes_again_and_is_not_said_to_is_a_duplicate(run: RunRecorder) -> Expected:
    begun(run)
    first = run.handle("s", "hand", "t", 1, 3, cursor=0)
    run.get("s", "t", 0, [[1, "p", 1, 3]], session=1, handed_apart=True)
    again = run.handle("s", "hand", "t", 1, 3, cursor=0, session=1, redelivered=2)
    pair = (("s", first["op_id"]), ("s", again["op_id"]))
    return {"duplicate_delivered": [row(run, client_id="s", id=3, operations=pair)]}


@case
def what_comes_again_to_who_may_have_left_or_has_moved_need_not_say_so(
    run: RunRecorder,
) -> Expected:
    begun(run)
    run.handle("s", "hand", "t", 1, 3, cursor=0)
    run.complete(run.invoke("s", "unsub", "t"), "info", error="timeout")
    run.sub("s", "t", session=1, resumed=True)
    run.get("s", "t", 0, [[1, "p", 1, 3]], session=1, handed_apart=True)
    run.handle("s", "hand", "t", 1, 3, cursor=0, session=1)
    return {}


@case
def an_application_that_comes_back_is_told_what_comes_again(run: RunRecorder) -> Expected:
    begin = {"digests": ALL, "first_id": 1, "last_id": 3, "count": 3}
    run.sub("s", "t")
    run.complete(run.invoke("s", "get", "t", last_id=0), "ok", handed_apart=True, **begin)
    first = run.handle("s", "hand", "t", 1, 2, cursor=0)
    again = run.handle("s", "hand", "t", 1, 2, cursor=0, process="later", redelivered=1)
    pair = (("s", first["op_id"]), ("later", again["op_id"]))
    return {"duplicate_delivered": [row(run, client_id="s", id=2, operations=pair)]}


@case
def what_a_session_hands_over_twice_is_a_duplicate(run: RunRecorder) -> Expected:
    begun(run)
    first = run.handle("s", "hand", "t", 1, 2, cursor=0)
    run.handle("s", "release", "t", 1, 1)
    again = run.handle("s", "hand", "t", 1, 2, cursor=0, redelivered=2)
    pair = (("s", first["op_id"]), ("s", again["op_id"]))
    return {"duplicate_delivered": [row(run, client_id="s", id=2, operations=pair)]}


@case
def what_was_acknowledged_and_is_handed_over_after_a_crash_is_a_duplicate(
    run: RunRecorder,
) -> Expected:
    begun(run)
    first = run.handle("s", "hand", "t", 1, 1, cursor=0)
    run.handle("s", "hand", "t", 2, 2, cursor=1)
    again = run.handle("s", "hand", "t", 1, 2, cursor=0, session=1, redelivered=2)
    pair = (("s", first["op_id"]), ("s", again["op_id"]))
    return {"duplicate_delivered": [row(run, client_id="s", id=1, operations=pair)]}


def leaving(run: RunRecorder, acknowledged: int, process: str = "s") -> None:
    """Let an application that leaves read on, and acknowledge meanwhile what it has in hand.

    Its library leaves out what it finds acknowledged when the answer comes.
    """
    answer = {"digests": ALL, "first_id": 1, "last_id": 3, "count": 3}
    run.sub("s", "t")
    run.complete(run.invoke("s", "get", "t", last_id=0), "ok", handed_apart=True, **answer)
    run.handle("s", "hand", "t", 1, 3, cursor=0)
    unsub = run.invoke("s", "unsub", "t", process="other")
    get = run.invoke("s", "get", "t", last_id=0)
    run.handle("s", "ack", "t", None, acknowledged, process=process)
    rest = {"digests": ALL[:16], "first_id": 3, "last_id": 3, "count": 1}
    run.complete(get, "ok", handed_apart=True, **rest)
    run.complete(unsub, "ok")


@case
def an_answer_begins_behind_what_was_acknowledged_while_it_came(run: RunRecorder) -> Expected:
    leaving(run, 2)
    return {}


@case
def an_answer_that_begins_above_what_was_acknowledged_while_it_came_is_a_gap(
    run: RunRecorder,
) -> Expected:
    leaving(run, 1)
    gets = [one for one in run.rows if one["f"] == "get" and one["type"] == "ok"]
    operation = ("s", gets[-1]["op_id"])
    return {"gap": [row(run, client_id="s", id=3, other_id=1, operations=(operation,))]}


@case
def what_is_acknowledged_behind_an_answer_is_no_excuse_for_where_it_begins(
    run: RunRecorder,
) -> Expected:
    expected = an_answer_that_begins_above_what_was_acknowledged_while_it_came_is_a_gap(run)
    run.handle("s", "ack", "t", None, 2)
    return expected


@case
def what_is_acknowledged_on_another_host_is_no_excuse_for_where_an_answer_begins(
    run: RunRecorder,
) -> Expected:
    run.hosts = {"heir": "elsewhere"}
    leaving(run, 2, process="heir")
    gets = [one for one in run.rows if one["f"] == "get" and one["type"] == "ok"]
    operation = ("s", gets[-1]["op_id"])
    return {"gap": [row(run, client_id="s", id=3, other_id=0, operations=(operation,))]}


@case
def applications_of_other_processes_are_compared_too(run: RunRecorder) -> Expected:
    begin = {"digests": ALL, "first_id": 1, "last_id": 3, "count": 3}
    run.sub("s", "t")
    run.complete(run.invoke("s", "get", "t", last_id=0), "ok", handed_apart=True, **begin)
    first = run.handle("s", "hand", "t", 1, 1, cursor=0)
    run.handle("s", "hand", "t", 2, 2, cursor=1)
    again = run.handle("s", "hand", "t", 1, 2, cursor=0, process="later", redelivered=2)
    pair = (("s", first["op_id"]), ("later", again["op_id"]))
    return {"duplicate_delivered": [row(run, client_id="s", id=1, operations=pair)]}


@case
def a_copy_of_a_state_may_hand_over_what_the_other_one_has_acknowledged(
    run: RunRecorder,
) -> Expected:
    begun(run)
    run.handle("s", "hand", "t", 1, 1, cursor=0)
    run.handle("s", "hand", "t", 2, 2, cursor=1)
    run.handle("s", "hand", "t", 1, 2, cursor=0, process="copy")
    return {}


@case
def what_the_cursor_passed_and_nobody_was_handed_is_lost(run: RunRecorder) -> Expected:
    begun(run)
    run.handle("s", "hand", "t", 1, 1, cursor=0)
    run.handle("s", "ack", "t", None, 2)
    run.handle("s", "hand", "t", 3, 3, cursor=2)
    got = ("s", 2)  # its second operation, behind the SUB
    return {
        "lost": [
            row(run, client_id="s", id=2, other_id=2, detail="unhanded", operations=(got,)),
        ]
    }


@case
def what_was_asked_for_at_most_once_may_be_lost_to_a_crash(run: RunRecorder) -> Expected:
    begun(run)
    run.handle("s", "ack", "t", 1, 1)
    run.get("s", "t", 1, [[2, "p", 2, 2]], session=1, handed_apart=True)
    run.handle("s", "hand", "t", 2, 3, cursor=1, session=1)
    return {}


@case
def what_was_fetched_of_a_subscription_that_ended_need_not_be_handed_over(
    run: RunRecorder,
) -> Expected:
    begun(run)
    run.handle("s", "hand", "t", 1, 1, cursor=0)
    run.unsub("s", "t")
    run.sub("s", "t", 3)
    run.get("s", "t", 3, [])
    return {}


@case
def histories_that_do_not_say_what_was_handed_over_are_judged_as_before(
    run: RunRecorder,
) -> Expected:
    run.sub("s", "t")
    run.put("p", "t", 1, "ok", 3, first_id=1)
    run.get("s", "t", 0, [[1, "p", 1, 3]])
    run.get("s", "t", 3, [])
    return {}
