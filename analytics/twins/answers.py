"""Checks of what single answers to subscribers say, and how they follow each other.

What lives here: `gap`, the subscriber's half of `reordered`, `duplicate_delivered`, `corrupt`,
`subscription`. What must not: what a subscriber is owed (owed.py).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import pairwise

from analytics.twins.record import NEVER, Evidence, Handling, Operation
from analytics.twins.run import Run
from analytics.twins.standing import Subscription

DENIALS = frozenset({"not_subscribed", "unknown_topic"})
Session = tuple[str, int]  # process, number


def corrupt(run: Run) -> Iterable[Evidence]:
    """Find payloads that do not check out."""
    for get in run.answers:
        for id_, reason in get.corrupt:
            yield run.row(get, topic=get.named, client_id=get.client, id=id_, detail=reason)


# --- gap ------------------------------------------------------------------------------------------


def gap(run: Run) -> Iterable[Evidence]:
    """Find answers that begin too high, or jump."""
    for subscription in run.standing.subscriptions.values():
        for get in subscription.answers:
            if get.brought:
                yield from _gaps(run, subscription, get)


def _gaps(run: Run, subscription: Subscription, get: Operation) -> Iterator[Evidence]:
    fields = {"topic": get.named, "client_id": get.client}
    ids = sorted(set(get.ids()))
    due = _due(run, subscription, get)
    if due is not None and ids[0] > due + 1 and not _begins_anew(subscription, get, ids[0] - 1):
        yield run.row(get, **fields, id=ids[0], other_id=due)
    for before, after in pairwise(ids):
        if after > before + 1:
            yield run.row(get, **fields, id=after, other_id=before)


def _due(run: Run, subscription: Subscription, get: Operation) -> int | None:
    """Return after which id an answer is due to begin; None: the GET said no cursor."""
    if get.asked is None:
        return None
    got = subscription.got_before(get)
    if got is None:
        return get.asked
    # An application moves its cursor as it likes; of the library a skip ahead is a loss.
    return max(get.asked, got) if run.is_application else min(get.asked, got)


def _begins_anew(subscription: Subscription, get: Operation, last_skipped: int) -> bool:
    """Whether a subscription that was made anew excuses that ids up to `last_skipped` are left out.

    The first SUB of all makes one, and each that was sent after an UNSUB.
    """
    left = min((unsub.invoke for unsub in subscription.unsubs), default=NEVER)
    begun = min((sub.end for sub in subscription.subs if sub.is_ok), default=NEVER)
    for sub in subscription.subs:
        is_comparable = sub.host == get.host
        if is_comparable and sub.invoke > get.end:
            continue
        is_new = not is_comparable or sub.invoke > left or sub.invoke < begun
        if is_new and sub.is_ok and (sub.last_id is None or sub.last_id >= last_skipped):
            return True
        if is_new and not sub.is_ok and not subscription.has_read_on(get):
            return True  # nobody knows where it begins
    return False


# --- reordered ------------------------------------------------------------------------------------


def back(run: Run) -> Iterable[Evidence]:
    """Find answers that begin at or below the cursor asked with, or go back inside."""
    for get in run.answers:
        fields = {"topic": get.named, "client_id": get.client, "detail": "subscriber"}
        lowest = min(get.ids(), default=None)
        if lowest is not None and get.asked is not None and lowest <= get.asked:
            yield run.row(get, **fields, id=lowest, other_id=get.asked)
        for before, after in pairwise(get.given):
            if after.id < before.id:
                yield run.row(get, **fields, id=after.id, other_id=before.id)


# --- duplicate_delivered --------------------------------------------------------------------------


def duplicate_delivered(run: Run) -> Iterable[Evidence]:
    """Find what a subscriber, or its application, was handed again without having asked for it."""
    for subscription in run.standing.subscriptions.values():
        yield from _delivered_again(run, subscription)
    recorded = {get.client for get in run.answers if get.digests is not None}
    for (client, _), rows in run.handlings_of.items():
        yield from _handed_again(run, rows, across=client in recorded)


def _delivered_again(run: Run, subscription: Subscription) -> Iterator[Evidence]:
    first: dict[int, Operation] = {}  # the first answer that brought an id
    # Within a session since the last GET without an answer: the lowest cursor that brought an id.
    cursors: dict[Session, dict[int, tuple[int, Operation]]] = defaultdict(dict)
    silences = run.silences(subscription.client, subscription.topic)
    for get in subscription.answers:
        session, asked = (get.process, get.session), get.asked
        while silences.get(session) and silences[session][0] < get.invoke:
            silences[session].pop(0)
            cursors[session].clear()
        here: set[int] = set()
        for id_ in get.ids():
            earlier: Operation | None = None
            if id_ in here:
                earlier = get
            elif asked is None:
                earlier = None
            elif id_ in first and id_ <= asked and first[id_].host == get.host:
                earlier = first[id_]
            elif id_ in cursors[session] and not (get.is_handed_apart or run.is_application):
                cursor, which = cursors[session][id_]
                earlier = which if cursor < asked else None
            if earlier is not None:
                yield run.row(earlier, get, topic=get.named, client_id=get.client, id=id_)
            here.add(id_)
        for id_ in here:
            first.setdefault(id_, get)
            if asked is not None and (
                id_ not in cursors[session] or asked < cursors[session][id_][0]
            ):
                cursors[session][id_] = (asked, get)


def _handed_again(run: Run, rows: list[Handling], across: bool) -> Iterator[Evidence]:
    """Yield what an application was handed twice; `across`: by any processes of its client."""
    groups: dict[object, list[Handling]] = defaultdict(list)
    for row in rows:
        groups[row.host if across else row.process].append(row)
    for group in groups.values():
        first: dict[int, Handling] = {}
        in_hand: dict[tuple[Session, int], Handling] = {}
        stored = 0  # as acknowledged
        for row in group:
            session = (row.process, row.session)
            if row.f == "release":
                for id_ in row.ids:
                    in_hand.pop((session, id_), None)
            if row.f == "hand":
                for id_ in row.ids:
                    earlier = in_hand.get((session, id_))
                    if earlier is None and id_ <= stored:
                        earlier = first.get(id_)
                    if earlier is not None:
                        fields = {"topic": row.topic, "client_id": row.client, "id": id_}
                        yield run.row(earlier, row, **fields)
                    first.setdefault(id_, row)
                    in_hand[session, id_] = row
            if row.cursor is not None:
                stored = max(stored, row.cursor)


# --- subscription ---------------------------------------------------------------------------------


def subscription(run: Run) -> Iterable[Evidence]:
    """Find answers that contradict who was subscribed, and to what, and how much was asked for."""
    for one in run.standing.subscriptions.values():
        for sub in one.subs:
            if sub.is_ok and sub.resumed is False and any(life.covers(sub) for life in one.lives):
                yield _contradicted(run, sub, sub.topic, "forgotten")
        for get in one.answers:
            if one.is_surely_away(get):
                yield _contradicted(run, get, get.named, "unsubscribed")
    for get in run.of("get"):
        if get.outcome == "fail" and get.error in DENIALS and get.topic:
            lives = run.standing.of(get.client, get.topic).lives
            if any(life.covers(get) for life in lives):
                yield _contradicted(run, get, get.topic, "denied")
    for get in run.answers:
        if get.topic and get.answered != get.topic:
            detail = f"topic {get.answered}"
            yield _contradicted(run, get, get.topic, detail)
        count = len(get.given) + len(get.corrupt)
        if get.max_count is not None and count > get.max_count:
            yield _contradicted(run, get, get.named, f"limit {get.max_count}, {count} came")


def _contradicted(run: Run, operation: Operation, topic: str, detail: str) -> Evidence:
    return run.row(operation, topic=topic, client_id=operation.client, detail=detail)
