"""Checks of what single answers to subscribers say, and how they follow each other.

What lives here: `gap`, the subscriber's half of `reordered`, `duplicate_delivered`, `corrupt`,
`subscription`, `purge`. What must not: what a subscriber is owed (owed.py).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import pairwise

from analytics.twins.compaction import Keys, named, unread
from analytics.twins.gone import begins_in_the_gone, gone_before, is_for_good, told_before
from analytics.twins.group_standing import controls_of, of_groups, standing_during
from analytics.twins.patterns import has, is_pattern, missed
from analytics.twins.record import (
    BEFORE_ALL,
    DENIALS,
    Evidence,
    PurgeRow,
    RecordedHandling,
    RecordedOperation,
    Time,
)
from analytics.twins.run import Run
from analytics.twins.standing import RecordedSubscription, SubscribedSpan

Session = tuple[str, int]  # process, number
HOUR_MS = 3_600_000


def corrupt(run: Run) -> Iterable[Evidence]:
    """Find payloads that do not check out."""
    for get in run.answers:
        for id_, reason in get.corrupt:
            yield run.row(get, topic=get.named, client_id=get.client, id=id_, detail=reason)


# --- gap ------------------------------------------------------------------------------------------


def gap(run: Run) -> Iterable[Evidence]:
    """Find answers that begin too high, or jump, and what was handed over behind a higher id."""
    for subscription in run.standing.subscriptions.values():
        for get in subscription.answers:
            if get.brought:
                yield from _gaps(run, subscription, get)
    for whose, rows in run.handlings_of.items():
        yield from _handed_behind(run, run.standing.of(*whose), rows)


def _gaps(
    run: Run, subscription: RecordedSubscription, get: RecordedOperation
) -> Iterator[Evidence]:
    fields = {"topic": get.named, "client_id": get.client}
    ids = sorted(set(get.ids()))
    due = _due(run, subscription, get)
    if due is not None and ids[0] > due + 1 and not _begins_anew(subscription, get, ids[0] - 1):
        yield run.row(get, **fields, id=ids[0], other_id=due)
    for before, after in pairwise(ids):
        if after > before + 1:
            yield run.row(get, **fields, id=after, other_id=before)


def _due(run: Run, subscription: RecordedSubscription, get: RecordedOperation) -> int | None:
    """Return after which id an answer is due to begin; None: the GET said no cursor."""
    if get.asked is None:
        return None
    got = subscription.got_before(get)
    if run.is_application:  # it moves its cursor as it likes; of the library a skip is a loss
        return max(get.asked, get.asked if got is None else got, _acknowledged(run, get))
    return get.asked if got is None else min(get.asked, got)


def _acknowledged(run: Run, get: RecordedOperation) -> int:
    """Return up to which id its application had acknowledged before a GET's end, 0: to none."""
    rows = run.handlings_of.get((get.client, get.named), [])
    before = (
        row.last_id
        for row in rows
        if row.f == "ack" and row.host == get.host and row.time <= get.end
    )
    return max(before, default=0)


def _begins_anew(
    subscription: RecordedSubscription, get: RecordedOperation, last_skipped: int
) -> bool:
    """Whether a subscription that was made anew excuses that ids up to `last_skipped` are left out.

    A SUB may have made one if none had been answered before it, or if an UNSUB may have acted
    before it.
    """
    for sub in subscription.subs:
        if sub.host == get.host and sub.invoke > get.end:
            continue
        if not _may_be_new(subscription, sub):
            continue
        if sub.is_ok and (sub.last_id is None or sub.last_id >= last_skipped):
            return True
        if not sub.is_ok and not subscription.has_read_on(get):
            return True  # nobody knows where it begins
    return False


def _may_be_new(subscription: RecordedSubscription, sub: RecordedOperation) -> bool:
    has_left = any(
        unsub.host != sub.host or unsub.invoke <= sub.invoke for unsub in subscription.unsubs
    )
    has_come = any(
        other.is_ok and other.host == sub.host and other.end < sub.invoke
        for other in subscription.subs
    )
    return has_left or not has_come


def _handed_behind(
    run: Run, subscription: RecordedSubscription, rows: list[RecordedHandling]
) -> Iterator[Evidence]:
    """Yield what an application was handed for the first time behind a higher id, in a session and
    since its last release.
    """
    handed: dict[Session, list[RecordedHandling]] = defaultdict(list)
    reached: dict[Session, int] = defaultdict(int)  # by what was handed since the last release
    for row in sorted(rows, key=lambda row: (row.op_id, row.f != "release")):
        session = row.process, row.session
        if row.f == "release":
            handed[session], reached[session] = [], 0
        if row.f == "hand":
            if row.ids.start < reached[session]:
                yield from _behind(run, subscription, row, handed[session])
            handed[session].append(row)
            reached[session] = max(reached[session], row.last_id)


def _behind(
    run: Run,
    subscription: RecordedSubscription,
    row: RecordedHandling,
    handed: list[RecordedHandling],
) -> Iterator[Evidence]:
    """Yield a row that names an id that none in `handed` names, below one that such a row names."""
    earlier = [
        one
        for one in handed
        if one.op_id < row.op_id and not subscription.may_have_moved(row.host, one.time, row.time)
    ]
    highest = max(earlier, key=lambda one: one.last_id, default=None)
    if highest is None:
        return
    below = range(row.ids.start, min(row.ids.stop, highest.last_id))
    late = (id_ for id_ in below if not any(id_ in one.ids for one in earlier))
    if (id_ := next(late, None)) is not None:
        fields = {"topic": row.topic, "client_id": row.client, "detail": "handed"}
        yield run.row(highest, row, **fields, id=id_, other_id=highest.last_id)


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
    for whose, rows in run.handlings_of.items():
        subscription = run.standing.of(*whose)
        yield from _handed_again(run, subscription, rows, across=run.is_application)
        yield from _unmarked(run, subscription, rows, across=run.is_application)


def _delivered_again(run: Run, subscription: RecordedSubscription) -> Iterator[Evidence]:
    """Yield what an answer brought that had been given before it was asked for, and was not asked
    for again.
    """
    given: dict[int, list[RecordedOperation]] = defaultdict(
        list
    )  # by which answers, in order of ends
    silences = run.silences(subscription.client, subscription.topic)
    for get in subscription.answers:
        silent = [
            time for time in silences.get((get.process, get.session), ()) if time < get.invoke
        ]
        here: set[int] = set()
        for id_ in get.ids():
            earlier = get if id_ in here else None
            if earlier is None and get.asked is not None:
                before = (
                    one
                    for one in given[id_]
                    if _is_unasked(run, one, get, id_, silent)
                    if not subscription.may_have_moved(get.host, one.invoke, get.end)
                )
                earlier = next(before, None)
            if earlier is not None:
                yield run.row(earlier, get, topic=get.named, client_id=get.client, id=id_)
            here.add(id_)
        for id_ in here:
            given[id_].append(get)


def _is_unasked(
    run: Run, earlier: RecordedOperation, get: RecordedOperation, id_: int, silent: list[Time]
) -> bool:
    """Whether an id that an earlier answer gave was given again without being asked for.

    `silent`: when GETs were sent, in the session of `get` and before it, that got no answer.
    """
    if earlier.host != get.host or earlier.end >= get.invoke or get.asked is None:
        return False
    if id_ <= get.asked:
        return True
    is_judged_by_hands = get.is_handed_apart or earlier.is_handed_apart or run.is_application
    is_one_session = (earlier.process, earlier.session) == (get.process, get.session)
    return (
        is_one_session
        and not is_judged_by_hands
        and earlier.asked is not None
        and earlier.asked < get.asked
        and not any(time > earlier.invoke for time in silent)
    )


def _handed_again(
    run: Run, subscription: RecordedSubscription, rows: list[RecordedHandling], across: bool
) -> Iterator[Evidence]:
    """Yield what an application was handed twice; `across`: by any processes of its client."""
    groups: dict[object, list[RecordedHandling]] = defaultdict(list)
    for row in rows:
        groups[row.host if across else row.process].append(row)
    for group in groups.values():
        reading, last = Reading(run), BEFORE_ALL
        for row in group:
            if subscription.may_have_moved(row.host, last, row.time):
                reading = Reading(run)
            yield from reading.step(row)
            last = row.time


def _unmarked(
    run: Run, subscription: RecordedSubscription, rows: list[RecordedHandling], across: bool
) -> Iterator[Evidence]:
    """Yield what was handed over again, and not said to be; `across`: also by a process that began
    to hand over after the one that did so first.
    """
    begun: dict[str, Time] = {}
    handed: dict[int, list[RecordedHandling]] = defaultdict(list)
    for row in rows:
        begun.setdefault(row.process, row.time)
    for row in (one for one in rows if one.f == "hand"):
        for id_ in row.ids:
            if id_ >= row.ids[0] + row.redelivered:
                for earlier in handed[id_]:
                    is_known = earlier.process == row.process or (
                        across and earlier.host == row.host and earlier.time < begun[row.process]
                    )
                    span = row.host, earlier.time, row.time
                    if (
                        is_known
                        and not _is_one_step(earlier, row)
                        and not subscription.may_have_moved(*span)
                        and not subscription.may_have_left(*span)
                    ):
                        fields = {"topic": row.topic, "client_id": row.client, "id": id_}
                        yield run.row(earlier, row, **fields)
                        break
            handed[id_].append(row)


class Reading:
    """What an application was handed of a topic and has acknowledged, from one start on."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._first: dict[int, RecordedHandling] = {}
        self._in_hand: dict[tuple[Session, int], RecordedHandling] = {}
        self._ahead: set[tuple[Session, int]] = set()  # acknowledged before they are handed over
        self._stored = 0  # as acknowledged

    def step(self, row: RecordedHandling) -> Iterator[Evidence]:
        """Take note of a row; yield what it hands over again without right."""
        session = (row.process, row.session)
        if row.f == "release":
            for id_ in row.ids:
                self._in_hand.pop((session, id_), None)
        if row.f == "ack":
            self._ahead.update((session, id_) for id_ in row.ids)
        if row.f == "hand":
            for id_ in row.ids:
                earlier = self._in_hand.get((session, id_))
                own = 0 if (session, id_) in self._ahead else row.cursor or 0
                if earlier is None and id_ <= max(self._stored, own):
                    earlier = self._first.get(id_)
                if earlier is not None and not _is_one_step(earlier, row):
                    fields = {"topic": row.topic, "client_id": row.client, "id": id_}
                    yield self._run.row(earlier, row, **fields)
                self._first.setdefault(id_, row)
                self._in_hand[session, id_] = row
                self._ahead.discard((session, id_))
        if row.cursor is not None:
            self._stored = max(self._stored, row.cursor)


def _is_one_step(one: RecordedHandling, other: RecordedHandling) -> bool:
    """Whether two lines are of one step: a line that was doubled is a hole, and no second step."""
    return (one.process, one.op_id) == (other.process, other.op_id)


# --- subscription ---------------------------------------------------------------------------------


def subscription(run: Run) -> Iterable[Evidence]:
    """Find answers that contradict who was subscribed, and to what, and how much was asked for."""
    for one in run.standing.subscriptions.values():
        wrong = [get for get in one.refusals if _is_denied(run, one, get)]
        for get in wrong:
            yield _contradicted(run, get, get.topic, "denied")
        patterns = run.followed.get(one.client, ())
        is_followed = any(has(pattern, one.topic) for pattern in patterns)
        denials = [] if is_followed else [get for get in one.refusals if get not in wrong]
        yield from _forgotten_or_kept(run, one, denials)
        yield from _begun_elsewhere(run, one)
        yield from _left_by_name(run, one)
        for get in one.answers:
            if one.is_surely_away(get, denials):
                yield _contradicted(run, get, get.named, "unsubscribed")
    yield from missed(run)
    yield from of_groups(run)
    yield from denied_all(run)
    yield from _refused(run)
    yield from _moved_nowhere(run)
    yield from _over_a_limit(run)
    for get in run.answers:
        if get.topic and get.answered != get.topic:
            detail = f"topic {get.answered}"
            yield _contradicted(run, get, get.topic, detail)
        count = get.brought_count
        if get.max_count is not None and count > get.max_count:
            yield _contradicted(run, get, get.named, f"limit {get.max_count}, {count} came")


def _left_by_name(run: Run, one: RecordedSubscription) -> Iterator[Evidence]:
    """Yield the UNSUBs that ended a life of what a pattern of the client's has, and that stood."""
    patterns = [name for name in run.followed.get(one.client, ()) if has(name, one.topic)]
    lives = [life for name in patterns for life in run.standing.of(one.client, name).lives]
    for unsub in one.unsubs:
        stood = (life for life in lives if life.covers(unsub))
        if unsub.is_ok and any(life.end == unsub.invoke for life in one.lives):
            for pattern in stood:
                fields = {"topic": one.topic, "client_id": one.client, "detail": "left"}
                yield run.row(pattern.proof, unsub, **fields)


def _over_a_limit(run: Run) -> Iterator[Evidence]:
    """Yield what succeeded though it is over a limit of the protocol."""
    for one in run.operations:
        own = one.of_group
        told = own.acks + own.naks + own.extends
        sizes = {
            "publications": (one.count if one.f == "put" else 0, 65_536),
            "expiry": (max((ms for *_, ms in one.expires), default=0), 87_600 * HOUR_MS),
            "leases": (sum(run.last - run.first + 1 for run in own.leases), 4_096),
            "runs": (len(told), 256),
            "ids": (sum(last - first + 1 for _, first, last, *_ in told), 8_192),
            "lease": (max((own.lease_ms or 0, *(ms for *_, ms in own.extends))), 12 * HOUR_MS),
            "delay": (max((ms for *_, ms in own.naks), default=0), 24 * HOUR_MS),
            "attempts": (own.max_attempts or 0, 10_000),
        }
        if one.is_ok and (over := [name for name, (size, most) in sizes.items() if size > most]):
            yield _contradicted(run, one, one.topic, f"limit of {over[0]}")


def _is_denied(run: Run, one: RecordedSubscription, get: RecordedOperation) -> bool:
    """Whether a GET was told that its client is not subscribed, though it was; or that there is no
    topic, though somebody's life or a group stood in it.
    """
    if any(life.covers(get) for life in one.lives):
        return True
    if get.error != "unknown_topic":
        return False
    if any(life.covers(get) for life in run.standing.lives_of_topic.get(get.topic, ())):
        return True
    return not run.is_application and any(standing_during(controls_of(run), get, get.topic))


def _refused(run: Run) -> Iterator[Evidence]:
    """Yield the GETs that were refused for a reason that was none: more was acknowledged, the
    subscription was moved, or the topic has not reached that cursor.
    """
    for get in run.of("get") if not run.is_application else ():
        if get.outcome != "fail" or not get.topic or get.asked is None:
            continue
        one = run.standing.of(get.client, get.topic)
        for life in one.lives:
            if life.covers(get) and _is_no_reason(run, one, life, get, get.asked):
                yield _contradicted(run, get, get.topic, "denied")


def _moved_nowhere(run: Run) -> Iterator[Evidence]:
    """Yield the GETs of any topic that were told that one was moved, of who can have no such."""
    placed = {
        sub.client
        for sub in run.of("sub")
        if sub.may_have_happened and (sub.start is not None or is_pattern(sub.topic))
    }
    for get in run.of("get") if not run.is_application else ():
        is_told = get.outcome == "fail" and get.error == "moved" and not get.topic
        if is_told and get.client not in placed:
            yield _contradicted(run, get, get.topic, "denied")


def _is_no_reason(
    run: Run,
    one: RecordedSubscription,
    life: SubscribedSpan,
    get: RecordedOperation,
    asked: int,
) -> bool:
    match get.error:
        case "already_acknowledged":
            others = (
                other.asked or 0
                for other in run.gets_of(one.client, one.topic)
                if not life.is_apart(other)
                if other.host != get.host or other.invoke < get.end
            )
            return life.start is not None and max((life.start, *others)) <= asked
        case "moved":
            patterns = run.followed.get(one.client, ())
            return not one.moves and not any(has(pattern, one.topic) for pattern in patterns)
        case "bad_request":
            reached = run.knowledge.reached_before(one.topic, get.host, get.invoke)
            return reached is not None and reached.id >= asked
    return False


def _forgotten_or_kept(
    run: Run, one: RecordedSubscription, denials: list[RecordedOperation]
) -> Iterator[Evidence]:
    for sub in one.subs:
        if sub.is_ok and sub.resumed is False and any(life.covers(sub) for life in one.lives):
            yield _contradicted(run, sub, sub.topic, "forgotten")
        # One that was sent again resumes what its first attempt began; a pattern's, the pattern's.
        is_first = sub.attempt == 1 and not any(
            has(pattern, sub.topic) for pattern in run.followed.get(one.client, ())
        )
        if sub.is_ok and sub.resumed and is_first and one.is_surely_away(sub, denials):
            yield _contradicted(run, sub, sub.topic, "kept")


def _begun_elsewhere(run: Run, one: RecordedSubscription) -> Iterator[Evidence]:
    """Yield the new subscriptions that do not begin where their SUB said."""
    for sub in one.moves:
        if not sub.is_ok or sub.resumed is not False or sub.last_id is None:
            continue
        start = str(sub.start)
        known = run.knowledge
        if start.isdecimal():
            is_wrong = sub.last_id != int(start) - 1
        else:
            is_wrong = known.begins_late(sub, start) or known.begins_early(sub, start)
        is_wrong = is_wrong or begins_in_the_gone(run, sub, start)
        if is_wrong:
            yield _contradicted(run, sub, sub.topic, f"start {start}, behind {sub.last_id}")


def denied_all(run: Run) -> Iterator[Evidence]:
    """Find GETs of any topic that were told that there is no subscription, though one stood of each
    topic that their client can have asked for.
    """
    for get in run.of("get") if not run.is_application else ():
        if get.outcome == "fail" and get.error in DENIALS and not get.topic:
            asked = {
                sub.topic
                for sub in run.of("sub")
                if sub.client == get.client and sub.may_have_happened and not is_pattern(sub.topic)
                if sub.host != get.host or sub.invoke < get.end
            }
            own = (run.standing.of(get.client, topic).lives for topic in asked)
            if asked and all(any(life.covers(get) for life in lives) for lives in own):
                yield _contradicted(run, get, get.topic, "denied")


def _contradicted(run: Run, operation: RecordedOperation, topic: str, detail: str) -> Evidence:
    return run.row(operation, topic=topic, client_id=operation.client, detail=detail)


# --- purge ----------------------------------------------------------------------------------------


def purge(run: Run) -> Iterable[Evidence]:
    """Find what is said to be purged though no purge named it, and what was given though one had.

    The purges of an application's cluster stand in no record of it: what it is told is believed.
    What is said to have expired is held against what its PUT asked for, where that is on record; so
    is a `gap` that no purge explains where something expires: who knows no expiry is told that.
    """
    for get in run.answers:
        if get.tells_of_purge:
            yield from _told_wrongly(run, get)
        elif get.brought:
            yield from _given_though_gone(run, get, get.client, min(get.ids()))
            yield from _given_late(run, get, get.client, get.ids(), get.invoke)
            yield from _given_again(run, get, get.client, get.ids(), get.invoke)
    begun = _begun(run)
    for take in run.of("take"):
        ids = [id_ for one in take.of_group.leases for id_ in range(one.first, one.last + 1)]
        if ids:
            yield from _given_though_gone(run, take, take.of_group.name, min(ids))
            yield from _given_late(run, take, take.of_group.name, ids, begun[_step(take)])
            yield from _given_again(run, take, take.of_group.name, ids, begun[_step(take)])


def _told_wrongly(run: Run, get: RecordedOperation) -> Iterator[Evidence]:
    if get.error == "expired":
        yield from _of_expiry(run, get)
    elif get.error == "compacted":
        yield from _of_compaction(run, get)
    elif run.is_application or _is_explained(run, get):
        return
    elif get.error == "gap" and get.named in run.expiring:
        yield from _of_gap(run, get)
    else:
        yield _of_purge(run, get, max(get.ids()), None, "unsaid")


def _given_though_gone(
    run: Run, own: RecordedOperation, client: str, lowest: int
) -> Iterator[Evidence]:
    """Yield a row if what a GET or a TAKE brought was purged, or somebody had been told so."""
    for word, gone in (("kept", gone_before(run, own)), ("alive", told_before(run, own))):
        if lowest <= gone:
            fields = {"topic": own.named or own.topic, "client_id": client}
            yield run.row(own, **fields, id=lowest, other_id=gone, detail=word)


NS_OF_MS = 1_000_000


def _step(take: RecordedOperation) -> tuple[object, ...]:
    """Return what is the same for the TAKEs that are one request."""
    group = take.of_group
    if group.number is None:
        return take.key
    return take.topic, group.name, take.client, take.epoch, group.number


def _begun(run: Run) -> dict[tuple[object, ...], Time]:
    """Return when each TAKE was first asked for."""
    begun: dict[tuple[object, ...], Time] = {}
    for take in run.of("take"):
        begun[_step(take)] = min(take.invoke, begun.get(_step(take), take.invoke))
    return begun


def _given_late(
    run: Run, own: RecordedOperation, client: str, ids: Iterable[int], asked: Time
) -> Iterator[Evidence]:
    """Yield the lowest id that had expired by the clock of the leader that stored and gave it."""
    topic = own.named or own.topic
    if own.node is None or own.term is None or topic not in run.expiring:
        return
    for id_ in sorted(ids):
        for put in run.stored_in.get(topic, ()):
            first, ms = put.first_id or 0, put.expiry_of(id_)
            is_its = first <= id_ < first + put.count and ms is not None and not put.is_duplicate
            one_clock = (put.node, put.term, put.host) == (own.node, own.term, own.host)
            passed_ns = (asked - put.end) * 99
            if is_its and one_clock and passed_ns > 100 * (ms or 0) * NS_OF_MS:
                yield run.row(own, topic=topic, client_id=client, id=id_, detail="late")
                return


def _of_gap(run: Run, get: RecordedOperation) -> Iterator[Evidence]:
    """Find what is wrong with a gap where something expires, or that is compacted: it is of one."""
    of_expiry = list(_of_expiry(run, get)) if get.named in run.expires else []
    if get.named not in run.compacted:
        yield from of_expiry
    elif of_expiry or get.named not in run.expires:
        yield from _of_compaction(run, get)


def _of_expiry(run: Run, get: RecordedOperation) -> Iterable[Evidence]:
    """Find the lowest ids that never expire (`unsaid`), and that had not yet (`early`)."""
    told = named(get)
    found: dict[str, int] = {}
    for put in run.stored_in.get(get.named, ()):
        first = put.first_id or 0
        for id_ in range(max(first, told[0]), min(first + put.count - 1, told[-1]) + 1):
            ms = put.expiry_of(id_)
            is_apart = put.is_duplicate or put.host != get.host
            if ms is None or (not is_apart and _is_early(put, get, ms)):
                word = "unsaid" if ms is None else "early"
                found[word] = min(id_, found.get(word, id_))
    for word, id_ in found.items():
        yield _of_purge(run, get, id_, None, word)


def _of_compaction(run: Run, get: RecordedOperation) -> Iterator[Evidence]:
    """Find the lowest ids that nothing can have replaced (`unsaid`), that nothing did (`latest`),
    and that were stored while this subscription stood (`unread`).
    """
    keys = Keys(run, get.named, get)
    of_words = {
        "unsaid": (id_ for id_ in named(get) if keys.is_keyless(id_)),
        "latest": (id_ for id_ in named(get) if keys.is_latest(id_)),
        "unread": unread(run, get, keys),
    }
    for word, ids in of_words.items():
        if (id_ := min(ids, default=None)) is not None:
            yield _of_purge(run, get, id_, None, word)


def _is_early(put: RecordedOperation, get: RecordedOperation, ms: int) -> bool:
    """Whether less time has passed since a PUT was sent than until it expires.

    Clocks of two machines may differ by a hundredth in how fast they go.
    """
    return (get.end - put.invoke) * 100 < 99 * ms * NS_OF_MS


def _is_explained(run: Run, get: RecordedOperation) -> bool:
    """Whether a purge names all that an answer says is gone, or all of a gap was replaced."""
    return get.key in run.replacements or any(_names(one, get) for one in run.purges)


def _names(purge: PurgeRow, get: RecordedOperation) -> bool:
    """Whether a purge that was asked for before an answer came names all that it says is gone."""
    is_before = purge.host != get.host or purge.time < get.end
    return is_before and purge.topic == get.named and purge.last_id >= max(get.ids())


def _given_again(
    run: Run, own: RecordedOperation, client: str, ids: Iterable[int], asked: Time
) -> Iterator[Evidence]:
    """Yield the lowest id that somebody had been told has expired, or was replaced: it is gone on
    every node. Who asks again for a TAKE is given what was leased when that was first asked for.
    """
    topic = own.named or own.topic
    told = [
        (min(get.ids()), max(get.ids()))
        for get in run.told_of_purges
        if get.named == topic and not is_for_good(run, get)
        if get.host == own.host and get.end < asked
    ]
    gone = ((id_, last) for id_ in ids for first, last in told if first <= id_ <= last)
    found = min(gone, default=None)
    if found is not None:
        fields = {"topic": topic, "client_id": client, "detail": "alive"}
        yield run.row(own, **fields, id=found[0], other_id=found[1])


def _of_purge(
    run: Run, get: RecordedOperation, id_: int, other_id: int | None, detail: str
) -> Evidence:
    fields = {"topic": get.named, "client_id": get.client, "detail": detail}
    return run.row(get, **fields, id=id_, other_id=other_id)
