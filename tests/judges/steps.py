"""Steps of small histories: who begins where, follows patterns, is told of gaps, works.

What lives here: the rows of one step. What must not: what they prove (tried.py, allowed.py).
"""

from __future__ import annotations

from typing import Any, Final

from tests.judges.small import Given
from tests.spark.cases_groups import begin, end
from tests.spark.histories import Row, RunRecorder

ANY_OF_IT: Final = 2**53 - 1  # of a purge: what a policy that drops its oldest may have dropped


def own(*ids: int) -> tuple[Given, ...]:
    """Return publications of `p` whose counters are their ids."""
    return tuple((id_, "p", id_) for id_ in ids)


def publishes(run: RunRecorder, last: int, first: int = 1, t: str = "t") -> None:
    """Record that `p` publishes these, one by one, under their own numbers."""
    for number in range(first, last + 1):
        run.put("p", t, number, "ok", first_id=number, last_id=number)


def begins(run: RunRecorder, client: str, start: str, last_id: int, **fields: Any) -> Row:
    """Record a SUB with a start, answered as new unless said otherwise; return the end."""
    named = {name: fields.pop(name) for name in ("process", "session") if name in fields}
    invoke = run.invoke(client, "sub", "t", start=start, **named)
    return run.complete(
        invoke, "ok", last_id=last_id, **{"resumed": False, "cursor": last_id, **fields}
    )


def seeks(
    run: RunRecorder, client: str, start: str | None, last_id: int, outcome: str = "ok"
) -> None:
    """Record a seek: an UNSUB and a SUB that begin and end together."""
    leaves, comes = run.invoke(client, "unsub", "t"), run.invoke(client, "sub", "t", start=start)
    run.complete(leaves, outcome)
    stands = {"last_id": last_id, "resumed": False, "cursor": last_id}
    run.complete(comes, outcome, **(stands if outcome == "ok" else {"error": "timeout"}))


def drops_oldest(run: RunRecorder, t: str = "t") -> None:
    """Record that a topic gets a policy that drops its oldest."""
    run.purge(t, ANY_OF_IT, is_done=False)


def told_gap(
    run: RunRecorder, client: str, asked: int, first_id: int, last_id: int, session: int = 0
) -> None:
    """Record a GET that was told which ids were dropped."""
    invoke = run.invoke(client, "get", "t", last_id=asked, session=session)
    ids = {"first_id": first_id, "last_id": last_id}
    run.complete(invoke, "fail", error="gap", **ids)


def got_of_any(
    run: RunRecorder, client: str, topic: str, cursor: int, items: list[list[Any]], **fields: Any
) -> None:
    """Record a GET of any topic that was answered with one."""
    run.get(client, "", None, items, answered=topic, cursor=cursor, **fields)


def nothing_of_any(run: RunRecorder, client: str) -> None:
    """Record a GET of any topic that was told nothing."""
    run.get(client, "", None, [])


def follows(run: RunRecorder, client: str, pattern: str, **fields: Any) -> None:
    """Record a SUB to a pattern."""
    named = {name: fields.pop(name) for name in ("session",) if name in fields}
    invoke = run.invoke(client, "sub", pattern, **named)
    run.complete(invoke, "ok", last_id=0, cursor=0, **{"resumed": False, **fields})


def hears_of(run: RunRecorder, client: str, topic: str, cursor: int = 0) -> None:
    """Record what a library writes when it hears of a topic that a pattern has brought."""
    invoke = run.invoke(client, "sub", topic)
    run.complete(invoke, "ok", last_id=cursor, cursor=cursor, resumed=True, attempt=1)


def was_given(
    run: RunRecorder, client: str, number: int, token: int, leases: list[list[int]], items: Any
) -> None:
    """Record a TAKE that says what it brought."""
    end(run, begin(run, client, number), token, leases, items=items)


def made_of_compacted(run: RunRecorder) -> None:
    """Record that `a` made the group `g` from the earliest on, in a topic that is compacted."""
    invoke = run.invoke("a", "group", "t", group="g", epoch=1, start="earliest")
    run.complete(invoke, "ok", last_id=0, resumed=False, compacted=True)
