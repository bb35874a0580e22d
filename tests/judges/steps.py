"""Steps of small histories: puts, reads, beginnings, patterns, gaps, work, delays, disks.

What lives here: the rows of one step; a step of one event is a method of RunRecorder. What must
not: what they prove (the scenarios beside it, *.txt).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from tests.spark.cases_groups import begin, end, made, settled, took
from tests.spark.histories import Row, RunRecorder

Given = tuple[int, str, int]  # id, producer, counter
ANY_OF_IT: Final = 2**53 - 1  # of a purge: what a policy that drops its oldest may have dropped
KEY_DIGESTS: Final = {key: f"0{number}" * 8 for number, key in enumerate("abc", 1)}
LANE: Final = "t\x1fdelayed"
MS: Final = 100  # a step of a RunRecorder takes one


def on_host(run: RunRecorder, process: str, host: str) -> None:
    """Let a process run on another host."""
    run.hosts[process] = host


# --- putting and reading --------------------------------------------------------------------------


def stored(
    run: RunRecorder, producer: str, counter: int, id_: int, count: int = 1, **fields: Any
) -> Row:
    """Record an acknowledged PUT; `id_` 0: nobody subscribes, or it is not known any more."""
    last_id = id_ + count - 1 if id_ else 0
    return run.put(producer, "t", counter, "ok", count, first_id=id_, last_id=last_id, **fields)


def unclear(run: RunRecorder, producer: str, counter: int, count: int = 1, **fields: Any) -> Row:
    """Record a PUT of which nobody knows what became."""
    return run.put(producer, "t", counter, "info", count, error="timeout", **fields)


def got(run: RunRecorder, client: str, asked: int | None, *given: Given, **fields: Any) -> Row:
    """Record a GET and what it brought."""
    return run.get(client, "t", asked, [[*one, 1] for one in given], **fields)


def gone(
    run: RunRecorder,
    client: str,
    asked: int | None,
    first_id: int,
    last_id: int,
    error: str = "purged",
) -> Row:
    """Record a GET that was told what is purged, or is gone in another way."""
    invoke = run.invoke(client, "get", "t", last_id=asked)
    ids = {"first_id": first_id, "last_id": last_id}
    return run.complete(invoke, "fail", error=error, **ids)


def passes(
    run: RunRecorder,
    client: str,
    asked: int | None,
    first_id: int,
    last_id: int,
    *given: Given,
    error: str = "expired",
    topic: str = "t",
    **fields: Any,
) -> Row:
    """Record an answer that says what is gone in front of what it brings, as the library does.

    These are two operations that begin together. `topic` "": it asked for any.
    """
    told = run.invoke(client, "get", topic, last_id=asked if topic else None, **fields)
    rest = run.invoke(client, "get", topic, last_id=last_id if topic else None, **fields)
    rest["t_ns"] = told["t_ns"]
    ids = {"topic": "t", "first_id": first_id, "last_id": last_id}
    cursors = ({}, {}) if topic else ({"cursor": asked}, {"cursor": last_id})
    run.complete(told, "fail", error=error, **ids, **cursors[0])
    items = [[*one, 1] for one in given]
    brought = {"topic": "t", "items": items, "count": len(items), **cursors[1]}
    brought |= {"first_id": items[0][0], "last_id": items[-1][0]} if items else {}
    return run.complete(rest, "ok", **brought)


def three(run: RunRecorder) -> None:
    """Record `s`, which subscribes, and publications 1 to 3 of `p`."""
    run.sub("s", "t", 0)
    for number in (1, 2, 3):
        stored(run, "p", number, number)


def brief(run: RunRecorder, ms: int = 10) -> None:
    """Record the same, but 1 and 2 expire."""
    run.sub("s", "t", 0)
    stored(run, "p", 1, 1, 2, expires=[[1, 2, ms]])
    stored(run, "p", 3, 3)


def keyed(run: RunRecorder, counter: int, keys: str, producer: str = "p", **fields: Any) -> Row:
    """Record a PUT of publications with these keys, of a letter each, a dot for none; ids are as
    their counters.
    """
    ids = {counter + n: KEY_DIGESTS[key] for n, key in enumerate(keys) if key != "."}
    said = {"marked": [*ids], "properties": "".join(ids.values())} if ids else {}
    said |= {"keyed": [*ids], "keys": "".join(ids.values())} if ids else {}
    return stored(run, producer, counter, counter, len(keys), **said, **fields)


def timed(run: RunRecorder, client: str, keys: str) -> None:
    """Record publications, each put by itself, with these keys, a question mark where no answer
    came; and that a client, which subscribed before, has read them, with times: 100, 200 and so on.
    """
    run.sub(client, "t", 0)
    for number, key in enumerate(keys, 1):
        if key == "?":
            unclear(run, "p", number)
        else:
            keyed(run, number, key)
    ids = {n: KEY_DIGESTS[key] for n, key in enumerate(keys, 1) if key in KEY_DIGESTS}
    marks = {"marked": [*ids], "properties": "".join(ids.values())} if ids else {}
    times = [[number, number, 100 * number] for number in range(1, len(keys) + 1)]
    given = [(number, "p", number) for number in range(1, len(keys) + 1)]
    got(run, client, 0, *given, times=times, **marks)
    got(run, client, len(keys))


# --- beginnings, patterns, gaps, groups -----------------------------------------------------------


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


def letter_to(
    run: RunRecorder, client: str, asked: int, *letters: list[Any], session: int = 0, **fields: Any
) -> None:
    """Record that dead letters came, from the id behind `asked` on; none: there was nothing."""
    invoke = run.invoke(client, "get", "dl", last_id=asked, session=session)
    run.complete(invoke, "ok", count=len(letters), items=[], letters=list(letters), **fields)


def leased(run: RunRecorder, client: str, number: int, token: int, keys: str, *ids: int) -> None:
    """Record a TAKE that leases ids, each with the key of its place in `keys`."""
    runs = [[id_, id_, 1] for id_ in ids]
    take = begin(run, client, number)
    end(run, take, token, runs, keyed=list(ids), keys=keys)


# --- delays ---------------------------------------------------------------------------------------


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


# --- disks ----------------------------------------------------------------------------------------


def holds(
    run: RunRecorder, nodes: str, producer: str, counter: int, id_: int | None, count: int = 1
) -> None:
    """Record what nodes hold of `t`, and its counters."""
    whose = {"topic": "t", "producer": producer}
    run.found_on(nodes, "held", **whose, first_counter=counter, count=1, first_id=id_)
    run.found_on(nodes, "counter", **whose, counter=counter)


def disk_of(run: RunRecorder, nodes: str, floor_id: int = 0, taken: int = 1) -> None:
    """Record what the disks of these nodes say of `t` and of `p`."""
    run.found_on(nodes, "topic", topic="t", last_id=1, floor_id=floor_id)
    run.found_on(nodes, "counter", topic="t", producer="p", counter=taken)


def held_at(run: RunRecorder, nodes: str, id_: int) -> Row:
    """Record that nodes hold the first publication of `p` under an id."""
    run.held(nodes, "p", "t", 1)
    for row in run.truth:
        if row["kind"] == "held":
            row["first_id"] = id_
    return run.truth[-1]


STEPS: Final[dict[str, Callable[..., Any]]] = {
    step.__name__: step
    for step in (
        made,
        begin,
        end,
        took,
        settled,
        on_host,
        stored,
        unclear,
        got,
        gone,
        passes,
        three,
        brief,
        keyed,
        timed,
        publishes,
        begins,
        seeks,
        drops_oldest,
        told_gap,
        got_of_any,
        nothing_of_any,
        follows,
        hears_of,
        was_given,
        made_of_compacted,
        letter_to,
        leased,
        later,
        perhaps,
        came,
        subscribed,
        due,
        holds,
        disk_of,
        held_at,
    )
}
