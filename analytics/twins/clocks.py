"""What has to do with what came before what: order in real time, freshness, cursors, epochs, terms.

Clocks are held against each other on one host only, as everywhere.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable
from itertools import accumulate
from typing import NamedTuple, TypeVar

from analytics.twins.run import UNKNOWN_NS, Evidence, Key, Put, Run, Success

T = TypeVar("T")


class Mark(NamedTuple):
    """A number that held from a moment on; compared by number, then by the operation's key."""

    number: int
    key: Key
    end_ns: int


class Past:
    """Marks in the order in which they were made: a simulation asks about thousands of moments."""

    def __init__(self, marks: Iterable[Mark]) -> None:
        ordered = sorted(marks, key=lambda mark: mark.end_ns)
        self._times_ns = [mark.end_ns for mark in ordered]
        self._greatest = list(accumulate(ordered, max))

    def greatest(self, before_ns: int) -> Mark | None:
        """Return the greatest of the marks made before a moment."""
        place = bisect_left(self._times_ns, before_ns)
        return self._greatest[place - 1] if place else None


def realtime_order(run: Run) -> list[Evidence]:
    """Twin of `anomalies.realtime_order`."""
    tried = _first_tried(run.puts)
    found = []
    for (topic, _host), puts in _grouped((put.topic, put.host or "", put) for put in _stored(run)):
        past = Past(Mark(put.first_id, put.key, put.end_ns or 0) for put in puts)
        for late in puts:
            counter = late.counters[0]
            tried_ns = tried[late.producer, topic, counter]
            highest = past.greatest(tried_ns)
            if highest is None or highest.number <= late.first_id:
                continue
            _, other_id, key = min(
                (put.end_ns or 0, put.first_id, put.key)
                for put in puts
                if put.first_id > late.first_id and (put.end_ns or 0) < tried_ns
            )
            ids, content, seen = (
                (late.first_id, other_id),
                (late.producer, counter),
                (key, late.key),
            )
            found.append(Evidence(run.run_id, topic, None, *ids, *content, None, seen))
    return found


def _stored(run: Run) -> list[Put]:
    return [put for put in run.puts if put.ids()]


def _first_tried(puts: list[Put]) -> dict[tuple[str, str, int], int]:
    tried: dict[tuple[str, str, int], int] = {}
    for put in puts:
        for counter in put.counters:
            content = (put.producer, put.topic, counter)
            tried[content] = min(put.invoke_ns, tried.get(content, put.invoke_ns))
    return tried


def stale_read(run: Run) -> list[Evidence]:
    """Twin of `anomalies.stale_read`."""
    marks = _grouped(
        (put.topic, put.host or "", Mark(put.ids()[-1][0], put.key, put.end_ns or 0))
        for put in _stored(run)
    )
    pasts = {place: Past(each) for place, each in marks}
    found = []
    for topic, host, client_id, key, invoke_ns, known, detail in _asks(run):
        past = pasts.get((topic, host))
        mark = past and past.greatest(invoke_ns)
        if mark and mark.number > known:
            ids, seen = (mark.number, known), (mark.key, key)
            found.append(Evidence(run.run_id, topic, client_id, *ids, None, None, detail, seen))
    return found


def _asks(run: Run) -> list[tuple[str, str, str, Key, int, int, str]]:
    """Return (topic, host, client, operation, when sent, what it knew of, kind)."""
    gets = [
        (get.topic, get.host, get.client_id, get.key, get.invoke_ns, get.asked, "nothing")
        for get in run.gets
        if get.outcome == "ok" and not get.ids() and get.sent_id is None and get.asked is not None
    ]
    starts = [(sub, sub.start_id if sub.cursor is None else sub.cursor) for sub in run.controls]
    subs = [
        (sub.topic, sub.host, sub.client_id, sub.key, sub.invoke_ns, start, "start")
        for sub, start in starts
        if sub.f == "sub" and sub.outcome == "ok" and sub.resumed is False and start is not None
    ]
    return gets + subs


class Step(NamedTuple):
    """An answered GET or SUB that says where the cursor was."""

    key: Key
    cursor: int
    detail: str
    invoke_ns: int
    end_ns: int


def cursor_regression(run: Run) -> list[Evidence]:
    """Twin of `anomalies.cursor_regression`."""
    found = _ahead(run)
    for (client_id, topic, _host), steps in _steps(run).items():
        past = Past(Mark(step.cursor, step.key, step.end_ns) for step in steps)
        for step in steps:
            mark = past.greatest(step.invoke_ns)
            if mark and mark.number > step.cursor:
                ids, seen = (step.cursor, mark.number), (mark.key, step.key)
                row = (run.run_id, topic, client_id, *ids, None, None, step.detail, seen)
                found.append(Evidence(*row))
    return found


def _steps(run: Run) -> dict[tuple[str, str, str], list[Step]]:
    steps: dict[tuple[str, str, str], list[Step]] = defaultdict(list)
    for get in run.gets:
        if get.outcome == "ok" and get.asked is not None:
            step = Step(get.key, get.asked, "asked", get.invoke_ns, get.end_ns or 0)
            steps[get.client_id, get.topic, get.host].append(step)
    for sub in run.controls:
        if sub.f == "sub" and sub.outcome == "ok" and sub.cursor is not None:
            step = Step(sub.key, sub.cursor, "answered", sub.invoke_ns, sub.end_ns or 0)
            steps[sub.client_id, sub.topic, sub.host].append(step)
    return steps


def _ahead(run: Run) -> list[Evidence]:
    found = []
    for sub in run.controls:
        if not (sub.f == "sub" and sub.outcome == "ok" and sub.resumed and sub.cursor is not None):
            continue
        owner, end_ns = (sub.client_id, sub.topic), sub.end_ns or 0
        starts = [
            one.start_id
            for one in run.subscriptions
            if (one.client_id, one.topic) == owner and one.begun_ns <= end_ns
        ]
        given = [
            id_
            for get in run.gets
            if (get.client_id, get.topic) == owner and (get.end_ns or 0) < end_ns
            for id_ in get.ids()
        ]
        given += [
            get.asked
            for get in run.gets
            if (get.client_id, get.topic) == owner and get.asked is not None
            if UNKNOWN_NS < get.invoke_ns < end_ns
        ]
        if starts and sub.cursor > max(starts + given):
            ids = (sub.cursor, max(starts + given))
            row = Evidence(
                run.run_id, sub.topic, sub.client_id, *ids, None, None, "ahead", (sub.key,)
            )
            found.append(row)
    return found


def fencing(run: Run) -> list[Evidence]:
    """Twin of `anomalies.fencing`."""
    clients: dict[tuple[str, str], list[Success]] = defaultdict(list)
    for one in run.successes:
        if one.epoch is not None:
            clients[one.client_id, one.host].append(one)
    found = []
    for (client_id, _host), successes in clients.items():
        firsts = _firsts(successes)
        for one in successes:
            newer = [first for epoch, first in firsts.items() if epoch > (one.epoch or 0)]
            if newer and min(newer)[0] < one.invoke_ns:
                _, key, epoch = min(newer)
                detail = f"{one.f} of epoch {one.epoch} after epoch {epoch}"
                row = Evidence(
                    run.run_id, one.topic, client_id, detail=detail, operations=(key, one.key)
                )
                found.append(row)
    return found


def _firsts(successes: list[Success]) -> dict[int, tuple[int, Key, int]]:
    firsts: dict[int, tuple[int, Key, int]] = {}
    for one in successes:
        assert one.epoch is not None, one
        first = (one.end_ns, one.key, one.epoch)
        firsts[one.epoch] = min(first, firsts.get(one.epoch, first))
    return firsts


def leaders_per_term(run: Run) -> list[Evidence]:
    """Twin of `anomalies.leaders_per_term`."""
    terms: dict[int, dict[str, Key | None]] = defaultdict(dict)
    for row in run.truth:
        if row["kind"] == "leadership":
            terms[row["term"]][row["node"]] = None
    for one in run.successes:
        if one.term is not None and one.node is not None:
            nodes = terms[one.term]
            nodes[one.node] = min(one.key, nodes.get(one.node) or one.key)
    found = []
    for term, nodes in terms.items():
        least, most = min(nodes), max(nodes)
        if least != most:
            seen = tuple(key for node in (least, most) if (key := nodes[node]))
            found.append(
                Evidence(run.run_id, id=term, detail=f"term: {least} {most}", operations=seen)
            )
    return found


def _grouped(rows: Iterable[tuple[str, str, T]]) -> Iterable[tuple[tuple[str, str], list[T]]]:
    groups: dict[tuple[str, str], list[T]] = defaultdict(list)
    for first, second, row in rows:
        groups[first, second].append(row)
    return groups.items()
