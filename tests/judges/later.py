"""Histories of what was put with a delay: some deceive, some are legal."""

from __future__ import annotations

from typing import Any, Final

from tests.judges.small import got, small, stored
from tests.spark.cases_groups import begin, end, made, settled, took
from tests.spark.histories import Row, RunRecorder

LANE: Final = "t\x1fdelayed"
MS: Final = 100  # a step of a RunRecorder takes one


def later(
    run: RunRecorder, counter: int, place: int, ms: int | None = MS, count: int = 1, **told: Any
) -> Row:
    """Record that `p` puts with a delay; `ms` None: as of a recorder that does not say it."""
    said = {} if ms is None else {"delays": [[counter, counter + count - 1, ms]]}
    invoke = run.invoke("p", "put", LANE, counter=counter, count=count, **said)
    last = place + count - 1 if place else 0
    run.complete(invoke, "ok", **{"first_id": place, "last_id": last, "duplicate": False, **told})
    return invoke


def perhaps(run: RunRecorder, counter: int, outcome: str = "info", ms: int = MS) -> None:
    """Record that `p` puts with a delay, and nobody knows whether, or that it did not."""
    said = {"delays": [[counter, counter, ms]]}
    invoke = run.invoke("p", "put", LANE, counter=counter, count=1, **said)
    run.complete(invoke, outcome, error="timeout" if outcome == "info" else "backlog_full")


def came(run: RunRecorder, client: str, asked: int, *given: tuple[int, int], **more: Any) -> Row:
    """Record a GET that brought, under ids that follow each other, these of `p`'s lane."""
    runs = [[id_, "p", counter, 1] for id_, counter in given]
    ids = {"first_id": given[0][0], "last_id": given[-1][0], "count": len(given)}
    return run.get(client, "t", asked, [], delayed=runs, **{**ids, **more})


def subscribed(run: RunRecorder, *clients: str) -> None:
    for client in clients:
        run.sub(client, "t", 0, resumed=False, cursor=0)


def due(run: RunRecorder) -> None:
    run.wait(2 * MS)


@small
def what_was_delayed_comes_in_its_order(run: RunRecorder) -> set[str]:
    subscribed(run, "s")
    later(run, 1, 1, ms=5 * MS)
    later(run, 2, 2)
    later(run, 3, 3)
    due(run)
    came(run, "s", 0, (1, 2), (2, 3))
    run.wait(5 * MS)
    came(run, "s", 2, (3, 1))
    return set()


@small
def what_was_delayed_came_too_early(run: RunRecorder) -> set[str]:
    subscribed(run, "s")
    later(run, 1, 1)
    run.wait(MS // 2)
    came(run, "s", 0, (1, 1))
    return {"delayed early 1"}


@small
def when_it_was_due_an_old_record_does_not_say(run: RunRecorder) -> set[str]:
    subscribed(run, "s")
    later(run, 1, 1, ms=None)
    came(run, "s", 0, (1, 1))
    return set()


@small
def when_it_was_due_two_tries_say_differently(run: RunRecorder) -> set[str]:
    subscribed(run, "s")
    perhaps(run, 1, ms=5)
    later(run, 1, 1)
    run.wait(20)
    came(run, "s", 0, (1, 1))
    return set()


@small
def what_was_delayed_came_before_it_was_put(run: RunRecorder) -> set[str]:
    subscribed(run, "s")
    came(run, "s", 0, (1, 1))
    later(run, 1, 1)
    return {"delayed future 1"}


@small
def what_was_delayed_came_twice(run: RunRecorder) -> set[str]:
    subscribed(run, "s")
    later(run, 1, 1)
    due(run)
    came(run, "s", 0, (1, 1), (2, 1))
    return {"delayed twice 1"}


@small
def what_was_delayed_came_to_two_under_different_ids(run: RunRecorder) -> set[str]:
    subscribed(run, "s", "r")
    later(run, 1, 1)
    later(run, 2, 2)
    due(run)
    came(run, "s", 0, (1, 1), (2, 2))
    came(run, "r", 0, (1, 2), (2, 1))
    return {"delayed twice 1", "delayed other 1", "delayed other 2"}


@small
def what_was_put_later_with_the_same_delay_came_first(run: RunRecorder) -> set[str]:
    subscribed(run, "s")
    later(run, 1, 1, count=2)
    later(run, 3, 3)
    due(run)
    came(run, "s", 0, (1, 1), (2, 3), (3, 2))
    return {"delayed order 3"}


@small
def of_unknown_outcome_and_still_in_order(run: RunRecorder) -> set[str]:
    """Its place is not known; its counter says that it is ahead."""
    subscribed(run, "s")
    perhaps(run, 1)
    later(run, 2, 2)
    due(run)
    came(run, "s", 0, (1, 2), (2, 1))
    return {"delayed order 2"}


@small
def what_was_delayed_was_put_by_nobody(run: RunRecorder) -> set[str]:
    subscribed(run, "s")
    later(run, 1, 1)
    due(run)
    came(run, "s", 0, (1, 1), (2, 7))
    return {"delayed phantom 2"}


@small
def what_was_delayed_came_though_it_was_refused(run: RunRecorder) -> set[str]:
    subscribed(run, "s")
    perhaps(run, 1, "fail")
    due(run)
    came(run, "s", 0, (1, 1))
    return {"delayed aborted 1"}


@small
def what_was_delayed_came_though_it_was_stored_nowhere(run: RunRecorder) -> set[str]:
    later(run, 1, 0)
    subscribed(run, "s")
    due(run)
    came(run, "s", 0, (1, 1))
    return {"delayed aborted 1"}


@small
def what_was_delayed_stands_where_something_else_does(run: RunRecorder) -> set[str]:
    subscribed(run, "s")
    later(run, 1, 1)
    due(run)
    stored(run, "q", 1, 1)
    came(run, "s", 0, (1, 1))
    return {"delayed other 1"}


@small
def a_dead_letter_stands_where_something_delayed_came(run: RunRecorder) -> set[str]:
    subscribed(run, "s", "r")
    later(run, 1, 1)
    due(run)
    came(run, "s", 0, (1, 1))
    run.get("r", "t", 0, [], first_id=1, last_id=1, count=1, letters=[[1, "x", "h", 7]])
    return {"delayed other 1"}


@small
def what_was_delayed_came_with_another_key(run: RunRecorder) -> set[str]:
    subscribed(run, "s")
    later(run, 1, 1, marked=[1], properties="a" * 16)
    later(run, 2, 2, marked=[2], properties="b" * 16)
    later(run, 3, 3, marked=[3], properties="c" * 16)
    due(run)
    said = {"times": [[1, 3, 5]], "marked": [1, 2], "properties": "a" * 16 + "f" * 16}
    came(run, "s", 0, (1, 1), (2, 2), (3, 3), **said)
    return {"delayed content 2", "delayed content 3"}


@small
def what_was_delayed_came_to_another_one_only(run: RunRecorder) -> set[str]:
    subscribed(run, "s", "r")
    later(run, 1, 1)
    stored(run, "q", 1, 1)
    due(run)
    got(run, "r", 0, (1, "q", 1))
    came(run, "r", 1, (2, 1))
    stored(run, "q", 2, 3)
    got(run, "s", 0, (1, "q", 1))
    got(run, "s", 2, (3, "q", 2), session=1)
    return {"delayed lost 2"}


@small
def who_drained_lacks_what_was_delayed(run: RunRecorder) -> set[str]:
    subscribed(run, "s", "r")
    later(run, 1, 1)
    due(run)
    came(run, "r", 0, (1, 1))
    got(run, "s", 0)
    run.drained("s", "t", 0)
    return {"delayed lost 1", "stale_read nothing 1"}


@small
def what_was_delayed_came_to_nobody_and_the_next_one_did(run: RunRecorder) -> set[str]:
    subscribed(run, "s")
    later(run, 1, 1)
    later(run, 2, 2)
    due(run)
    came(run, "s", 0, (1, 2))
    return {"delayed lost 1"}


@small
def what_comes_next_had_another_delay(run: RunRecorder) -> set[str]:
    subscribed(run, "s")
    later(run, 1, 1, ms=5 * MS)
    later(run, 2, 2)
    due(run)
    came(run, "s", 0, (1, 2))
    return set()


@small
def who_came_after_it_was_put_may_have_come_after_it_came(run: RunRecorder) -> set[str]:
    subscribed(run, "r")
    later(run, 1, 1)
    later(run, 2, 2)
    due(run)
    run.unsub("r", "t")
    run.sub("s", "t", 1, resumed=False, cursor=1)
    came(run, "s", 1, (2, 2))
    return set()


@small
def it_may_have_come_with_a_broken_checksum(run: RunRecorder) -> set[str]:
    subscribed(run, "s")
    later(run, 1, 1)
    later(run, 2, 2)
    due(run)
    runs = [[2, "p", 2, 1]]
    ids = {"first_id": 1, "last_id": 2, "count": 2}
    run.get("s", "t", 0, [], delayed=runs, corrupt=[[1, "checksum"]], **ids)
    return {"corrupt 1"}


@small
def what_was_delayed_was_told_that_nobody_subscribes(run: RunRecorder) -> set[str]:
    subscribed(run, "s")
    later(run, 1, 0)
    return {"delayed unstored 1"}


@small
def what_was_delayed_was_told_so_beside_a_group(run: RunRecorder) -> set[str]:
    made(run)
    later(run, 1, 0)
    return {"delayed unstored 1"}


@small
def a_worker_is_given_what_was_delayed(run: RunRecorder) -> set[str]:
    made(run)
    later(run, 1, 1)
    due(run)
    take = begin(run, "a", 1)
    end(run, take, 1, [[1, 1, 1]], delayed=[[1, "p", 1, 1]], items=[])
    took(run, "a", 2, 0, acks=[[1, 1, 1]], max_count=None)
    settled(run, 1)
    return set()


@small
def a_worker_is_given_what_was_delayed_too_early(run: RunRecorder) -> set[str]:
    made(run)
    later(run, 1, 1)
    take = begin(run, "a", 1)
    end(run, take, 1, [[1, 1, 1]], delayed=[[1, "p", 1, 1]], items=[])
    return {"delayed early 1"}
