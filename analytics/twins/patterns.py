"""Subscriptions to patterns: topics that one has, and was not given.

What lives here: which topics a pattern has, `missed` of the check `subscription`. What must not:
when a subscription stood (standing.py), what single answers say (answers.py).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from analytics.twins.delays import Delays
from analytics.twins.groups import standing_letters
from analytics.twins.knowledge import Marks
from analytics.twins.record import BEFORE_ALL, LANE, NEVER, Evidence, RecordedOperation, Time
from analytics.twins.run import Run
from analytics.twins.standing import SubscribedSpan

WORDS_MAX = 16
ONE, REST = "*", ">"
NO_ROOM = "too_many"


def is_pattern(name: str) -> bool:
    """Return whether a name that somebody subscribes to is a pattern."""
    return ONE in name or REST in name


def has(pattern: str, topic: str) -> bool:
    """Return whether a pattern has a topic: word by word, `>` the rest."""
    if is_pattern(topic):
        return False
    own, words = pattern.split("."), topic.split(".")
    if len(words) > WORDS_MAX:
        return False
    if own[-1] == REST:
        own, words = own[:-1], words[: len(own) - 1] if len(words) >= len(own) else []
        if not words and own:
            return False
    return len(own) == len(words) and all(
        one in (ONE, word) for one, word in zip(own, words, strict=True)
    )


@dataclass(frozen=True)
class Followed:
    """A topic, and a life of a subscription to a pattern that has it."""

    life: SubscribedSpan
    topic: str


def missed(run: Run) -> Iterator[Evidence]:
    """Find what was put while somebody followed a pattern, and was kept from him.

    Each reading of a pattern by itself. Not judged of one that was told that there is no room, nor
    in an application's record: its principal may have no right to read what the pattern has.
    """
    if run.is_application:
        return
    lives = [life for life in run.standing.lives if is_pattern(life.topic)]
    if not lives:
        return
    full = [get for get in run.of("get") if get.error == NO_ROOM]
    put_to = (put.topic for put in run.of("put") if put.may_have_happened)
    arrivals = _arrivals(run)
    topics = sorted({*arrivals, *(topic.removesuffix(LANE) for topic in put_to)})
    for life in lives:
        is_full = any(get.client == life.client and not life.is_apart(get) for get in full)
        for topic in topics if not is_full else ():
            if has(life.topic, topic) and not _may_have_left(run, life, topic):
                yield from _missed(run, Followed(life, topic), arrivals[topic])


class Arrival(NamedTuple):
    """What came under an id that no PUT was answered with. `since`: after what, on each host."""

    id: int
    since: dict[str | None, Time]
    answers: list[RecordedOperation]


def _arrivals(run: Run) -> dict[str, list[Arrival]]:
    """Return what came with a delay, and dead letters, by their topics."""
    found: dict[str, list[Arrival]] = defaultdict(list)
    for own in Delays(run).all.values():
        first = own.first_try
        since = {} if first is None else {first.host: first.time}
        for id_, answers in own.came.items():
            found[own.topic].append(Arrival(id_, since, answers))
    for letter in standing_letters(run):
        found[letter.topic].append(Arrival(letter.id, letter.since, letter.answers))
    return found


def _may_have_left(run: Run, life: SubscribedSpan, topic: str) -> bool:
    """Whether its client may have left a topic of a pattern's, or moved in it, during a life."""
    one = run.standing.subscriptions.get((life.client, topic))
    return one is not None and (
        one.may_have_left(life.host, life.begin, life.end)
        or one.may_have_moved(life.host, life.begin, life.end)
    )


def _missed(run: Run, followed: Followed, arrivals: list[Arrival]) -> Iterator[Evidence]:
    life, topic = followed.life, followed.topic
    asked = [get for get in run.answers if get.client == life.client and _is_silent(get)]
    asked = [get for get in asked if life.covers(get)]
    for put in run.of("put"):
        is_nowhere = put.topic.removesuffix(LANE) == topic and put.is_ok and not put.is_duplicate
        if is_nowhere and put.first_id == 0 and life.covers(put):
            last = max((get for get in asked if get.invoke > put.end), key=_end, default=None)
            if last is not None and not _asks_anew(run, life, put, last):
                yield _row(run, followed, life.proof, put)
    lowest, fresh = _put_since(run, followed, arrivals)
    one = run.standing.subscriptions.get((life.client, topic))
    for sub in one.subs if one is not None else ():
        if sub.is_ok and sub.resumed and (sub.last_id or 0) >= lowest and life.covers(sub):
            yield _row(run, followed, life.proof, sub)
    for get in asked:
        known = fresh.before(get.invoke)
        if known is not None and known.id > _had(run, life, topic, get):
            yield _row(run, followed, life.proof, get)


def _put_since(run: Run, followed: Followed, arrivals: list[Arrival]) -> tuple[float, Marks]:
    """Return the lowest id that was put since a life began and that was never given to it, and the
    ids that were put since, from when on they were known.
    """
    life = followed.life
    own = run.standing.subscriptions.get((life.client, followed.topic))
    answers = own.answers if own is not None else []
    given = {id_ for get in answers if not life.is_apart(get) for id_ in get.ids()}
    lowest, fresh = NEVER, Marks()
    for put in _stored_during(run, followed):
        ids = range(put.first_id or 0, (put.first_id or 0) + put.count)
        lowest = min((lowest, *(id_ for id_ in ids if id_ not in given)))
        fresh.add(ids[-1], put)
    for arrival in arrivals:
        if arrival.since.get(life.host, BEFORE_ALL) > life.begin:
            lowest = min(lowest, NEVER if arrival.id in given else arrival.id)
            for answer in arrival.answers:
                if answer.host == life.host:
                    fresh.add(arrival.id, answer)
    for put, kept in _kept_for(run, life, followed.topic):
        lowest = min((lowest, *(id_ for id_ in kept if id_ not in given)))
        fresh.add(max(kept), put)
    fresh.seal()
    return lowest, fresh


def _kept_for(
    run: Run, life: SubscribedSpan, topic: str
) -> Iterator[tuple[RecordedOperation, list[int]]]:
    """Yield what a topic surely kept when a pattern began at the earliest, by PUT: somebody was
    given it who asked for it later. Not of a topic to which the client may have had another
    subscription.
    """
    begun, one = (
        life.subs[0] if life.subs else None,
        run.standing.subscriptions.get((life.client, topic)),
    )
    if begun is None or len(life.subs) > 1 or begun.start != "earliest" or begun.resumed:
        return
    if one is not None and any(not sub.is_ok or not sub.resumed for sub in one.subs):
        return
    later = {
        id_
        for get in run.brought_of.get(topic, ())
        if get.host == life.host and get.invoke > begun.end
        for id_ in get.ids()
    }
    for put in run.stored_in.get(topic, ()) if later else ():
        first = put.first_id or 0
        ids = [id_ for id_ in range(first, first + put.count) if id_ in later]
        if ids and put.host == life.host and not put.is_duplicate:
            yield put, ids


def _stored_during(run: Run, followed: Followed) -> Iterator[RecordedOperation]:
    """Yield the PUTs that have surely stored something since a life began: behind where the
    pattern's subscription to their topic did.
    """
    for put in run.stored_in.get(followed.topic, ()):
        is_here = put.host == followed.life.host and put.invoke > followed.life.begin
        if is_here and not put.is_duplicate:
            yield put


def _is_silent(get: RecordedOperation) -> bool:
    """Whether a GET of any topic was told nothing."""
    return not get.topic and not get.brought and get.first_id is None


def _end(operation: RecordedOperation) -> float:
    return operation.end


def _had(run: Run, life: SubscribedSpan, topic: str, get: RecordedOperation) -> float:
    """Return the highest id that a client may have had of a topic, in the reading of a life, when a
    GET was answered.
    """
    highest: float = 0
    for other in run.gets_of(life.client, topic):
        if life.is_apart(other):
            continue
        if other.host != get.host or other.invoke < get.end:
            highest = max(highest, other.asked or 0, *other.ids())
    one = run.standing.subscriptions.get((life.client, topic))
    for sub in one.subs if one is not None else ():
        if one is not None and one.was_over(sub, get):
            continue
        if sub.host != get.host or sub.invoke < get.end:
            if not sub.is_ok:
                return NEVER
            highest = max(highest, sub.last_id or 0)
    return highest


def _asks_anew(
    run: Run, life: SubscribedSpan, put: RecordedOperation, get: RecordedOperation
) -> bool:
    """Whether the client may have subscribed to a pattern again in between."""
    return any(
        sub.client == life.client
        and is_pattern(sub.topic)
        and sub.may_have_happened
        and (sub.host != put.host or (sub.invoke < get.end and sub.end > put.invoke))
        for sub in run.of("sub")
    )


def _row(run: Run, followed: Followed, *seen: RecordedOperation) -> Evidence:
    fields = {"topic": followed.topic, "client_id": followed.life.client}
    return run.row(*seen, **fields, detail=f"missed {followed.life.topic}")


def denied_of_any(run: Run) -> Iterator[Evidence]:
    """Find GETs of any topic that were told nothing, though one of their client's had more.

    It is a row of `stale_read`. What the client has of a topic that it does not name is at most
    what was given to it, what it asked with, and where it began.
    """
    empty: dict[str, list[RecordedOperation]] = defaultdict(list)
    for get in run.answers:
        if _is_silent(get):
            empty[get.client].append(get)
    if run.is_application:
        return
    for life in run.standing.lives if empty else ():
        for get in empty.get(life.client, ()):
            known = run.knowledge.there_before(life.topic, get.host, get.invoke)
            if known is None or not life.covers(get):
                continue
            if known.id > _had(run, life, life.topic, get):
                fields = {"topic": life.topic, "client_id": life.client, "detail": "nothing"}
                yield run.row(known.operation, get, **fields, id=known.id, other_id=None)
