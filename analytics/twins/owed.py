"""The check `lost`: what is owed to whom (docs/checks.md, "Owed"), and was not given.

What lives here: the three ways to be owed, `unstored`, `unhanded`. What must not: who stood
subscribed (standing.py), what is known (knowledge.py).
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator

from analytics.twins.group_standing import controls_of, standing_during
from analytics.twins.knowledge import Moment
from analytics.twins.record import (
    NEVER,
    Evidence,
    Publication,
    RecordedHandling,
    RecordedOperation,
    Time,
)
from analytics.twins.run import Run
from analytics.twins.standing import RecordedSubscription, SubscribedSpan


def lost(run: Run) -> Iterable[Evidence]:
    """Find owed publications that were lost."""
    by_topic = {topic: sorted(ids) for topic, ids in run.knowledge.ids.items()}
    for life in run.standing.lives:
        yield from _above_start(run, life, by_topic.get(life.topic, []))
    yield from _below_start(run)
    yield from _unstored(run)
    if not run.is_application:
        yield from _unplaced(run)
    for subscription in run.standing.subscriptions.values():
        yield from _unhanded(run, subscription)


# --- 1: its place is known, above the life's start ------------------------------------------------


def _above_start(run: Run, life: SubscribedSpan, ids: list[int]) -> Iterator[Evidence]:
    if life.start is None:
        return
    lowest_given = min((id_ for id_ in life.given if id_ > life.start), default=None)
    for id_ in ids[bisect_right(ids, life.start) :]:
        if id_ in life.had:
            continue
        if id_ <= life.passed or _is_collected(run, life, id_):
            is_first = lowest_given is None or id_ < lowest_given
            yield from _lost_at(run, life, id_, "prefix" if is_first else "middle")
        elif life.cut is not None and _known_before(run, life, id_, life.cut):
            yield from _lost_at(run, life, id_, "tail")


def _is_collected(run: Run, life: SubscribedSpan, id_: int) -> bool:
    """Whether a node has collected an id that nothing but having been read explains."""
    ids = run.collected.get(life.topic, range(0))
    return life.is_last and id_ in ids and not run.may_have_gone(life.topic, id_)


def _known_before(run: Run, life: SubscribedSpan, id_: int, time: Time) -> bool:
    return run.knowledge.known_since(life.topic, id_, life.host) < time


def _lost_at(run: Run, life: SubscribedSpan, id_: int, kind: str) -> Iterator[Evidence]:
    for publication, witness in run.knowledge.at[life.topic, id_].items():
        yield _lost(run, life, publication, kind, witness, id=id_)


def _lost(
    run: Run,
    life: SubscribedSpan,
    publication: Publication,
    kind: str,
    witness: RecordedOperation | None,
    id: int | None = None,
) -> Evidence:
    producer, topic, counter = publication
    whose = {"topic": topic, "client_id": life.client, "producer": producer, "counter": counter}
    return run.row(witness, life.proof, **whose, id=id, detail=kind)


# --- 2: at or below the start, though it was tried first after the life's begin -------------------


def _below_start(run: Run) -> Iterator[Evidence]:
    knowledge = run.knowledge
    # By topic and host: first tries in order, with the lowest place of it and of all later ones.
    tried: dict[tuple[str, str | None], list[tuple[Time, int, Publication]]] = defaultdict(list)
    for publication, ids in knowledge.places.items():
        first = knowledge.first_try(publication)
        if first is not None:
            tried[publication[1], first.host].append((first.time, min(ids), publication))
    for rows in tried.values():
        rows.sort()
    lowest = {key: _lowest_from(rows) for key, rows in tried.items()}
    for life in run.standing.lives:
        rows = tried.get((life.topic, life.host), [])
        place = bisect_right(rows, life.begin, key=lambda row: row[0])
        if life.start is None or place == len(rows):
            continue
        if lowest[life.topic, life.host][place] > life.start:
            continue  # as it is where nothing is wrong
        for _, _, publication in rows[place:]:
            for id_ in knowledge.places[publication]:
                # What only a node knows is known when all is over: a life without an end stands
                # then.
                is_known = life.is_last or _known_before(run, life, id_, life.end)
                if id_ <= life.start and id_ not in life.had and is_known:
                    witness = knowledge.at[life.topic, id_][publication]
                    yield _lost(run, life, publication, "start", witness, id=id_)


def _lowest_from(rows: list[tuple[Time, int, Publication]]) -> list[int]:
    lowest: list[int] = []
    for _, id_, _ in reversed(rows):
        lowest.append(min(id_, lowest[-1]) if lowest else id_)
    return lowest[::-1]


# --- 3: its place is not known, but it is taken ---------------------------------------------------


def _unplaced(run: Run) -> Iterator[Evidence]:
    knowledge = run.knowledge
    for publication in knowledge.tries:
        topic = publication[1]
        first = knowledge.first_try(publication)
        if publication in knowledge.places or first is None:
            continue
        taken = knowledge.taken(publication, first.host)
        if taken is None:
            continue
        lives = run.standing.lives_of_topic.get(topic, ())
        stood = [life for life in lives if _stood(life, first, taken)]
        if not stood:
            continue  # nobody may have subscribed then
        lower, later = knowledge.lower_place(publication), knowledge.later_place(publication)
        for life in lives:
            is_above = lower is not None and life.start is not None and lower >= life.start
            if life not in stood and not is_above:
                continue
            has_passed = later is not None and life.passed >= later
            is_here = life.host == first.host
            has_drained = is_here and life.cut is not None and taken.end < life.cut
            if has_passed or has_drained:
                between = (
                    id_
                    for id_, answers in life.unread.items()
                    if (lower or 0) < id_ < (later or NEVER)
                    and not all(first.is_after(answer) for answer in answers)
                )
                if all((topic, id_) in knowledge.at for id_ in between):
                    yield _lost(run, life, publication, "unplaced", taken)


def _stood(life: SubscribedSpan, first: Moment, taken: RecordedOperation) -> bool:
    """Whether a life stood from before a publication's first try until it was taken."""
    is_here = life.host == first.host
    return is_here and life.begin < first.time < life.end and taken.end < life.end


# --- answered "nobody subscribes" -----------------------------------------------------------------


def _unstored(run: Run) -> Iterator[Evidence]:
    groups = {} if run.is_application else controls_of(run)
    for put in run.of("put"):
        if not put.is_ok or put.is_duplicate or put.first_id != 0:
            continue
        for life in run.standing.lives_of_topic.get(put.topic, ()):
            if life.covers(put):
                for counter in put.counters:
                    publication = (put.client, put.topic, counter)
                    yield _lost(run, life, publication, "unstored", put)
        for group in standing_during(groups, put, put.topic):
            for counter in put.counters:
                whose = {"topic": put.topic, "client_id": group.client_id}
                named = {"producer": put.client, "counter": counter, "detail": "unstored"}
                yield run.row(put, group.made, **whose, **named)


# --- fetched, and never handed over ---------------------------------------------------------------


def _unhanded(run: Run, subscription: RecordedSubscription) -> Iterator[Evidence]:
    """Find what the library got and its cursor passed, and the application was never handed."""
    client, topic = subscription.client, subscription.topic
    rows = run.handlings_of.get((client, topic), [])
    # What was acknowledged ahead of its hand-over may be lost to a crash: that was asked for.
    handed = {id_ for row in rows if row.f in ("hand", "ack") for id_ in row.ids}
    for get in subscription.answers:
        if not get.is_handed_apart:  # to be given is to be handed over
            handed.update(get.intact_ids())
    got: dict[int, RecordedOperation] = {}
    drained = [(row.time, row.last_id, row.host or "") for row in subscription.drained]
    passed = sorted([*_cursors(rows), *_asked(subscription), *drained])
    for get in sorted(subscription.answers, key=lambda one: (one.invoke, one.key)):
        for id_ in get.intact_ids():
            if id_ not in handed and _is_passed(subscription, passed, id_, get):
                got.setdefault(id_, get)
    for first_id, last_id in _runs(sorted(got), got):
        ids = {"id": first_id, "other_id": last_id}
        yield run.row(got[first_id], topic=topic, client_id=client, detail="unhanded", **ids)


Passing = tuple[Time, int, str]  # when, up to which id, the host or ""


def _cursors(rows: list[RecordedHandling]) -> Iterator[Passing]:
    for row in rows:
        if row.f == "ack" and row.first_id is None:
            yield row.time, row.last_id, row.host or ""
        if row.cursor is not None:
            yield row.time, row.cursor, row.host or ""


def _asked(subscription: RecordedSubscription) -> Iterator[Passing]:
    for get in subscription.answers:
        if get.asked is not None:
            yield get.invoke, get.asked, get.host or ""


def _is_passed(
    subscription: RecordedSubscription, passed: list[Passing], id_: int, get: RecordedOperation
) -> bool:
    """Whether the cursor passed an id while the subscription lasted in which it was fetched."""
    host = get.host or ""
    times = (time for time, cursor, at in passed if at == host and cursor >= id_ and time > get.end)
    time = next(times, None)
    return time is not None and not any(
        unsub.host != get.host or (unsub.invoke < time and subscription.latest(unsub) > get.invoke)
        for unsub in subscription.unsubs
    )


def _runs(ids: list[int], got: dict[int, RecordedOperation]) -> Iterator[tuple[int, int]]:
    """Yield the first and the last of ids that follow each other and came in one answer."""
    first = 0
    for place in range(1, len(ids) + 1):
        here = ids[first:place]
        is_over = place == len(ids) or ids[place] != here[-1] + 1
        if is_over or got[ids[place]] is not got[here[-1]]:
            yield here[0], here[-1]
            first = place
