"""Small histories of groups: what workers took, settled and were given again."""

from collections.abc import Mapping
from typing import Any

from tests.spark.cases import Expected, case, row
from tests.spark.histories import Row, RunRecorder

Runs = list[list[int]]
LEASE_MS = 1_000


def made(run: RunRecorder, last_id: int = 0, resumed: bool = False, **said: Any) -> Row:
    """Record that worker `a` made the group `g` of `t`, or found it; return the end."""
    invoke = run.invoke("a", "group", "t", group="g", epoch=1, **said)
    return run.complete(invoke, "ok", last_id=last_id, resumed=resumed)


def begin(
    run: RunRecorder, client: str, number: int, max_count: int | None = 9, **said: Any
) -> Row:
    """Record a TAKE's invoke."""
    own = {"epoch": 1, "group": "g", "number": number, "max_count": max_count}
    return run.invoke(client, "take", "t", **{**own, **said})


def end(
    run: RunRecorder, take: Row, token: int = 0, leases: Runs | None = None, **told: Any
) -> Row:
    """Record its answer."""
    leases = leases or []
    brought: Row = {"count": sum(last + 1 - first for first, last, _ in leases), "attempt": 1}
    if leases:
        brought |= {"token": token, "leases": leases, "left_ms": LEASE_MS, "lease_ms": LEASE_MS}
    return run.complete(take, "ok", **{**brought, **told})


def took(
    run: RunRecorder, client: str, number: int, token: int, *leases: list[int], **said: Any
) -> tuple[str, int]:
    """Record a TAKE and its answer; return the operation."""
    told = {name: said.pop(name) for name in ("lost", "attempt") if name in said}
    take = begin(run, client, number, **said)
    end(run, take, token, list(leases), **told)
    return client, take["op_id"]


def settled(run: RunRecorder, last_id: int) -> None:
    """Record that a worker was told that all is settled."""
    made(run, last_id, resumed=True)


def of_group(run: RunRecorder, id_: int, detail: str, *operations: tuple[str, int], **other: Any):  # type: ignore[no-untyped-def]
    return row(run, client_id="g", id=id_, detail=detail, operations=operations, **other)


@case
def what_several_take_settle_and_give_back_is_in_order(run: RunRecorder) -> Expected:
    made(run)
    run.put("p", "t", 1, "ok", 6, first_id=1)
    took(run, "a", 1, 1, [1, 3, 1])
    took(run, "b", 1, 2, [4, 6, 1])
    took(run, "a", 2, 3, [2, 2, 2], acks=[[1, 1, 1]], naks=[[1, 2, 2, 0]], extends=[[1, 3, 3, 9]])
    run.wait(LEASE_MS)
    took(run, "b", 2, 4, [3, 3, 2], acks=[[2, 4, 6]])
    took(run, "a", 3, 0, acks=[[1, 3, 3], [3, 2, 2]], lost=[[3, 3]])
    took(run, "b", 3, 0, acks=[[4, 3, 3]])
    settled(run, 6)
    return {}


@case
def a_lease_that_ran_out_may_be_acknowledged_until_it_is_given_again(run: RunRecorder) -> Expected:
    made(run)
    took(run, "a", 1, 1, [1, 1, 1])
    run.wait(2 * LEASE_MS)
    took(run, "a", 2, 0, acks=[[1, 1, 1]])
    return {}


@case
def what_was_acknowledged_and_is_given_again_breaks_the_order(run: RunRecorder) -> Expected:
    made(run)
    took(run, "a", 1, 1, [1, 2, 1])
    done = took(run, "a", 2, 0, acks=[[1, 1, 1]])
    run.wait(LEASE_MS)
    again = took(run, "b", 1, 2, [1, 1, 2])
    return {"group_order": [of_group(run, 1, "again", done, again)]}


@case
def an_ack_of_a_lost_lease_that_is_accepted_comes_too_late(run: RunRecorder) -> Expected:
    made(run)
    took(run, "a", 1, 1, [1, 1, 1])
    run.wait(LEASE_MS)
    other = took(run, "b", 1, 2, [1, 1, 2])
    done = took(run, "a", 2, 0, acks=[[1, 1, 1]])
    return {"group_order": [of_group(run, 1, "late", done, other)]}


@case
def two_acks_of_one_publication_are_not_both_accepted(run: RunRecorder) -> Expected:
    made(run)
    took(run, "a", 1, 1, [1, 1, 1])
    one = took(run, "a", 2, 0, acks=[[1, 1, 1]])
    two = took(run, "a", 3, 0, acks=[[1, 1, 1]])
    return {"group_order": [of_group(run, 1, "twice", one, two)]}


@case
def who_asks_again_under_one_number_acknowledges_once(run: RunRecorder) -> Expected:
    made(run)
    took(run, "a", 1, 1, [1, 1, 1])
    for _ in range(2):
        took(run, "a", 2, 0, acks=[[1, 1, 1]])
    return {}


@case
def attempts_that_go_back_break_the_order(run: RunRecorder) -> Expected:
    made(run)
    one = took(run, "a", 1, 1, [1, 1, 1])
    run.wait(LEASE_MS)
    two = took(run, "b", 1, 2, [1, 1, 1])
    return {"group_order": [of_group(run, 1, "attempt", one, two)]}


@case
def a_token_of_two_takes_breaks_the_order(run: RunRecorder) -> Expected:
    made(run)
    one = took(run, "a", 1, 1, [1, 1, 1])
    two = took(run, "b", 1, 1, [2, 2, 1])
    return {"group_order": [of_group(run, 1, "token", one, two)]}


@case
def a_token_that_goes_back_breaks_the_order(run: RunRecorder) -> Expected:
    made(run)
    one = took(run, "a", 1, 2, [1, 1, 1])
    two = took(run, "b", 1, 1, [2, 2, 1])
    overtaken = of_group(run, 1, "overtaken", two, one)
    return {"group_order": [overtaken, of_group(run, 1, "token", one, two)]}


@case
def who_asks_again_is_told_the_token_of_its_first_attempt(run: RunRecorder) -> Expected:
    made(run)
    unanswered = begin(run, "a", 1)
    run.complete(unanswered, "info", error="timeout")
    took(run, "b", 1, 2, [2, 2, 1])
    took(run, "a", 1, 1, [1, 1, 1])
    return {}


@case
def tokens_of_a_group_that_was_made_anew_begin_anew(run: RunRecorder) -> Expected:
    made(run)
    took(run, "a", 1, 5, [1, 1, 1])
    run.complete(run.invoke("b", "ungroup", "t", group="g", epoch=1), "ok")
    made(run, 4)
    took(run, "a", 2, 1, [5, 5, 1])
    return {}


@case
def of_a_group_that_was_moved_nothing_is_said(run: RunRecorder) -> Expected:
    """It gives again what was done, and the same may become a dead letter twice."""
    run.sub("s", "dead")
    made(run)
    took(run, "a", 1, 1, [1, 2, 1])
    took(run, "a", 2, 0, acks=[[1, 1, 2]])
    for f, said in (("ungroup", {}), ("group", {"start": "earliest"})):
        asked = run.invoke("operator", f, "t", group="g", **said)
        run.complete(asked, "info", error="timeout")
    took(run, "b", 1, 2, [1, 2, 1])
    letters = [[1, "t", "g", 1], [2, "t", "g", 1]]
    run.get("s", "dead", 0, [], first_id=1, last_id=2, count=2, letters=letters)
    return {}


@case
def a_group_that_began_elsewhere_and_stands_is_judged(run: RunRecorder) -> Expected:
    made(run, start="earliest")
    run.put("p", "t", 1, "ok", 1, first_id=1)
    one = took(run, "a", 1, 1, [1, 1, 1])
    done = took(run, "a", 2, 0, acks=[[1, 1, 1]])
    again = took(run, "b", 1, 2, [1, 1, 2])
    assert one
    return {"group_order": [of_group(run, 1, "again", done, again)]}


@case
def what_two_had_at_once_is_shared(run: RunRecorder) -> Expected:
    made(run)
    one = took(run, "a", 1, 1, [1, 1, 1])
    two = took(run, "b", 1, 2, [1, 1, 2])
    three = took(run, "a", 2, 0, max_count=None, extends=[[3, 9, 9, 5]])
    rows = [of_group(run, 1, "shared", one, two), of_group(run, 9, "foreign", three)]
    return {"group_lease": rows}


@case
def what_nobody_knows_to_be_held_still_may_be_given_to_another(run: RunRecorder) -> Expected:
    """A newer process of its client, a nak or a short extension of unknown outcome."""
    made(run)
    took(run, "a", 1, 1, [1, 3, 1])
    asked = begin(run, "a", 2, naks=[[1, 1, 1, 0]], extends=[[1, 2, 2, 1]])
    took(run, "b", 1, 2, [1, 2, 2])
    run.complete(asked, "info", error="timeout")
    took(run, "b", 2, 3, [3, 3, 2])
    took(run, "a", 1, 4, [4, 4, 1], epoch=2)
    return {}


@case
def attempts_that_jump_are_of_leases_that_nobody_had(run: RunRecorder) -> Expected:
    made(run)
    jumped = took(run, "a", 1, 1, [1, 1, 3])
    run.complete(begin(run, "b", 1), "info", error="timeout")
    return {"group_lease": [of_group(run, 1, "jump", jumped)]}


@case
def takes_without_an_answer_may_have_had_the_attempts_between(run: RunRecorder) -> Expected:
    made(run)
    begin(run, "b", 1)
    took(run, "c", 1, 0, attempt=2)
    took(run, "a", 1, 3, [1, 1, 3])
    return {}


@case
def what_is_settled_and_nobody_acknowledged_is_lost(run: RunRecorder) -> Expected:
    made(run)
    took(run, "a", 1, 1, [1, 4, 1])
    took(run, "a", 2, 0, acks=[[1, 1, 1], [1, 4, 4]])
    settled(run, 6)
    told = ("a", 4)
    lost = [of_group(run, id_, "settled", told, other_id=to) for id_, to in ((2, 3), (5, 6))]
    return {"group_lost": lost}


@case
def what_may_have_been_settled_is_not_lost(run: RunRecorder) -> Expected:
    """By an ack without an answer, a purge, or as a dead letter that was read, or may be one."""
    made(run, max_attempts=2, dead_letter="dead")
    run.purge("t", 1)
    took(run, "a", 1, 1, [2, 5, 1])
    run.wait(LEASE_MS)
    took(run, "b", 1, 2, [3, 4, 2])
    run.complete(begin(run, "a", 2, None, acks=[[1, 2, 2]]), "info", error="timeout")
    run.sub("s", "dead")
    run.get("s", "dead", 0, [], first_id=1, last_id=1, count=1, letters=[[1, "t", "g", 4]])
    took(run, "a", 3, 0, max_count=None, acks=[[1, 5, 5]])
    settled(run, 5)
    return {}


@case
def a_dead_letter_of_what_was_given_too_seldom_is_none(run: RunRecorder) -> Expected:
    made(run, max_attempts=3, dead_letter="dead")
    took(run, "a", 1, 1, [1, 1, 1])
    settled(run, 1)
    return {"group_lost": [of_group(run, 1, "settled", ("a", 3), other_id=1)]}


@case
def a_dead_letter_stands_once_and_its_publication_is_given_up(run: RunRecorder) -> Expected:
    made(run, max_attempts=1, dead_letter="dead")
    run.sub("s", "dead")
    took(run, "a", 1, 1, [1, 3, 1])
    done = took(run, "a", 2, 0, acks=[[1, 2, 2]])
    letters = [[1, "t", "g", 1], [2, "t", "g", 1], [3, "t", "g", 2], [4, "t", "g", 3]]
    answer = run.get("s", "dead", 0, [], first_id=1, last_id=4, count=4, letters=letters)
    seen = ("s", answer["op_id"])
    again = took(run, "b", 1, 2, [3, 3, 2])
    return {
        "dead_letter": [
            of_group(run, 1, "twice", seen, seen),
            of_group(run, 2, "acknowledged", done, seen),
            of_group(run, 3, "leased", seen, again),
        ],
        "realtime_order": [row(run, topic="dead", id=4, other_id=4, operations=(seen, seen))],
    }


@case
def a_dead_letter_stands_where_its_group_says(run: RunRecorder) -> Expected:
    made(run, max_attempts=1, dead_letter="dead")
    run.sub("s", "other")
    took(run, "a", 1, 1, [1, 1, 1])
    answer = run.get(
        "s", "other", 0, [], first_id=1, last_id=1, count=1, letters=[[1, "t", "g", 1]]
    )
    return {"dead_letter": [of_group(run, 1, "elsewhere", ("s", answer["op_id"]))]}


@case
def a_group_may_leave_it_to_its_topic_where_dead_letters_stand(run: RunRecorder) -> Expected:
    made(run, max_attempts=1)
    run.sub("s", "other")
    took(run, "a", 1, 1, [1, 1, 1])
    run.get("s", "other", 0, [], first_id=1, last_id=1, count=1, letters=[[1, "t", "g", 1]])
    return {}


@case
def dead_letters_are_given_to_subscribers_and_to_groups(run: RunRecorder) -> Expected:
    """They are of nobody's PUT, and no gap among what is."""
    run.sub("s", "t")
    run.put("p", "t", 1, "ok", first_id=1)
    run.put("p", "t", 2, "ok", first_id=3)
    letters = [[2, "x", "h", 7]]
    items = [[1, "p", 1, 1], [3, "p", 2, 1]]
    run.get("s", "t", 0, items, first_id=1, last_id=3, count=3, letters=letters)
    made(run, start="earliest")
    took(run, "a", 1, 1, [1, 3, 1])
    return {}


@case
def what_was_delayed_is_no_gap_and_no_other_put_s(run: RunRecorder) -> Expected:
    """Its PUT has a place in the topic's lane; the id that it comes under is in no answer."""
    run.sub("s", "t")
    run.put("p", "t", 1, "ok", first_id=1)
    run.put("p", "t\x1fdelayed", 1, "ok", 2, first_id=1, last_id=2)
    run.put("p", "t", 2, "ok", first_id=4)
    items = [[1, "p", 1, 1], [4, "p", 2, 1]]
    run.get("s", "t", 0, items, first_id=1, last_id=4, count=4, delayed=[[2, "p", 1, 2]])
    return {}


# --- key_order ------------------------------------------------------------------------------------

KEY, OTHER = "a" * 16, "b" * 16


def keys(*of: str) -> dict[int, str]:
    """Return the keys of ids from 1 on."""
    return dict(enumerate(of, 1))


def keyed(
    run: RunRecorder,
    client: str,
    number: int,
    token: int,
    *leases: list[int],
    of: Mapping[int, str],
    **said: Any,
) -> tuple[str, int]:
    """Record a TAKE whose answer says the keys of what it leases; return the operation."""
    take = begin(run, client, number, **said)
    ids = [id_ for first, last, _ in leases for id_ in range(first, last + 1) if id_ in of]
    end(run, take, token, list(leases), keyed=ids, keys="".join(of[id_] for id_ in ids))
    return client, take["op_id"]


@case
def the_next_one_of_a_key_is_given_when_the_one_before_is_acknowledged(
    run: RunRecorder,
) -> Expected:
    """Other keys are given meanwhile, and what is given back is given again before the next one."""
    made(run, ordered_by_key=True)
    of = keys(KEY, OTHER, KEY)
    keyed(run, "a", 1, 1, [1, 2, 1], of=of)
    took(run, "a", 2, 0, naks=[[1, 1, 1, 0]])
    keyed(run, "b", 1, 2, [1, 1, 2], of=of)
    keyed(run, "b", 2, 3, [3, 3, 1], of=of, acks=[[2, 1, 1]])
    took(run, "a", 3, 0, acks=[[1, 2, 2]])
    return {}


@case
def two_of_a_key_in_one_take_break_its_order(run: RunRecorder) -> Expected:
    made(run, ordered_by_key=True)
    both = keyed(run, "a", 1, 1, [1, 2, 1], of=keys(KEY, KEY))
    return {"key_order": [of_group(run, 2, "together", both, both)]}


@case
def what_is_given_again_behind_the_next_one_of_its_key_breaks_the_order(
    run: RunRecorder,
) -> Expected:
    made(run, ordered_by_key=True)
    of = keys(KEY, KEY)
    first = keyed(run, "a", 1, 1, [1, 1, 1], of=of)
    early = keyed(run, "b", 1, 2, [2, 2, 1], of=of)
    nak = took(run, "a", 2, 0, naks=[[1, 1, 1, 0]])
    again = keyed(run, "a", 3, 3, [1, 1, 2], of=of)
    seen = {"again": again, "held": nak, "open": first}
    return {"key_order": [of_group(run, 2, word, early, one) for word, one in seen.items()]}


@case
def what_is_acknowledged_behind_the_next_one_of_its_key_breaks_the_order(
    run: RunRecorder,
) -> Expected:
    made(run, ordered_by_key=True)
    of = keys(KEY, KEY)
    first = keyed(run, "a", 1, 1, [1, 1, 1], of=of)
    early = keyed(run, "b", 1, 2, [2, 2, 1], of=of)
    late = took(run, "a", 2, 0, acks=[[1, 1, 1]])
    seen = {"held": late, "open": first}
    return {"key_order": [of_group(run, 2, word, early, one) for word, one in seen.items()]}


@case
def an_ack_that_is_asked_for_again_counts_from_when_it_was_sent(run: RunRecorder) -> Expected:
    made(run, ordered_by_key=True)
    of = keys(KEY, KEY)
    keyed(run, "a", 1, 1, [1, 1, 1], of=of)
    begin(run, "a", 2, max_count=None, acks=[[1, 1, 1]])
    keyed(run, "b", 1, 2, [2, 2, 1], of=of)
    took(run, "a", 2, 0, max_count=None, acks=[[1, 1, 1]])
    return {}


@case
def a_group_that_is_not_ordered_by_key_gives_as_it_likes(run: RunRecorder) -> Expected:
    made(run, ordered_by_key=False)
    keyed(run, "a", 1, 1, [1, 2, 1], of=keys(KEY, KEY))
    return {}


@case
def an_order_that_was_refused_is_no_promise(run: RunRecorder) -> Expected:
    made(run)
    asked = run.invoke("b", "group", "t", group="g", epoch=1, ordered_by_key=True)
    run.complete(asked, "fail", error="another_choice")
    keyed(run, "a", 1, 1, [1, 2, 1], of=keys(KEY, KEY))
    return {}
