"""Checks of real time: what was known before an operation was sent, it must not deny.

What lives here: `realtime_order`, `stale_read`, `cursor_regression`, `fencing`, `term_order`,
`leaders_per_term`. What must not: what is known, and since when (knowledge.py). Times of two hosts
are never compared.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from operator import attrgetter
from typing import Final

from analytics.twins.delays import Delays
from analytics.twins.groups import idle_of, standing_letters
from analytics.twins.knowledge import Marks
from analytics.twins.patterns import denied_of_any, is_pattern
from analytics.twins.record import LANE, NEVER, Evidence, RecordedOperation, Time
from analytics.twins.run import Run
from analytics.twins.standing import RecordedSubscription

OVER: Final = frozenset({"fenced", "recovered", "forgotten"})  # told of an epoch


def realtime_order(run: Run) -> Iterable[Evidence]:
    """Find publications below what their topic had reached before they were first tried, or were
    due, or with a time below what was known by then.
    """
    yield from _behind_the_clock(run)
    for (topic, id_), publications in run.knowledge.at.items():
        for publication in publications:
            first = run.knowledge.first_try(publication)
            if first is None:
                continue
            reached = run.knowledge.reached_before(topic, first.host, first.time)
            if reached is not None and reached.id >= id_:
                producer, _, counter = publication
                tries = run.knowledge.may_have_stored(publication)
                own = min(tries, key=lambda put: put.invoke)
                fields = {"topic": topic, "producer": producer, "counter": counter}
                ids = {"id": id_, "other_id": reached.id}
                yield run.row(reached.operation, own, **fields, **ids)
    yield from _arrived_late(run)


def _arrived_late(run: Run) -> Iterable[Evidence]:
    """Find the same of what came with a delay, and of dead letters."""
    for own in Delays(run).all.values():
        for id_, answers in own.came.items():
            for moment, detail in ((own.first_try, None), (own.due, "due")):
                reached = moment and run.knowledge.reached_before(own.topic, *moment)
                if reached and reached.id >= id_:
                    fields = {"topic": own.topic, "producer": own.producer, "counter": own.counter}
                    ids = {"id": id_, "other_id": reached.id}
                    yield run.row(reached.operation, answers[0], **fields, **ids, detail=detail)
                    break
    for letter in standing_letters(run):
        for host, time in letter.since.items():
            reached = run.knowledge.reached_before(letter.topic, host, time)
            if reached is not None and reached.id >= letter.id:
                ids = {"id": letter.id, "other_id": reached.id}
                yield run.row(reached.operation, letter.answers[0], topic=letter.topic, **ids)


def _behind_the_clock(run: Run) -> Iterable[Evidence]:
    """Find what has a smaller time than somebody was told, of any topic, before it was sent."""
    told = [answer for answer in run.answers if answer.brought and answer.times]
    latest: dict[str | None, Marks] = defaultdict(Marks)
    said: dict[tuple[str, int], dict[int, RecordedOperation]] = defaultdict(dict)
    for answer in told:
        latest[answer.host].add(max(at_ms for *_, at_ms in answer.times), answer)
        for *ids, at_ms in answer.times:
            for id_ in ids:
                said[answer.named, id_].setdefault(at_ms, answer)
    for marks in latest.values():
        marks.seal()
    tried = [
        ((topic, id_), producer, counter, run.knowledge.first_try((producer, topic, counter)))
        for topic, id_ in said
        for producer, _, counter in run.knowledge.at.get((topic, id_), ())
    ]
    tried += [
        ((own.topic, id_), own.producer, own.counter, own.first_try)
        for own in Delays(run).all.values()
        for id_ in own.came
    ]
    for (topic, id_), producer, counter, first in tried:
        if times := said.get((topic, id_)):
            known = None if first is None else latest[first.host].before(first.time)
            if known is not None and known.id > min(times):
                fields = {"topic": topic, "producer": producer, "counter": counter, "id": id_}
                detail = f"clock {known.id} {min(times)}"
                yield run.row(known.operation, times[min(times)], **fields, detail=detail)
    for letter in standing_letters(run):
        times, its = said.get((letter.topic, letter.id)), said.get(letter.of)
        if times and its and min(times) < max(its):
            detail = f"clock {max(its)} {min(times)}"
            own = {"topic": letter.topic, "id": letter.id, "detail": detail}
            yield run.row(its[max(its)], times[min(times)], **own)


# --- stale_read -----------------------------------------------------------------------------------


def stale_read(run: Run) -> Iterable[Evidence]:
    """Find GETs that were told nothing, and new subscriptions, behind what was known."""
    for one in run.standing.subscriptions.values():
        for get in one.answers:
            if not get.brought and get.first_id is None and get.asked is not None:
                yield from _told_nothing(run, one, get)
        for sub in one.subs:
            is_new = sub.is_ok and sub.resumed is False and sub.start is None
            if is_new and sub.last_id is not None:
                reached = run.knowledge.reached_before(sub.topic, sub.host, sub.invoke)
                if reached is not None and reached.id > sub.last_id:
                    fields = {"topic": sub.topic, "client_id": sub.client, "detail": "start"}
                    ids = {"id": reached.id, "other_id": sub.last_id}
                    yield run.row(reached.operation, sub, **fields, **ids)

    yield from denied_of_any(run)
    yield from idle_of(run)
    yield from _counters_denied(run)
    yield from _unknown(run)
    for made in run.of("group"):
        if made.is_ok and made.resumed is False and made.start is None:
            reached = run.knowledge.reached_before(made.topic, made.host, made.invoke)
            if reached is not None and reached.id > (made.last_id or 0):
                fields = {"topic": made.topic, "client_id": made.client, "detail": "start"}
                ids = {"id": reached.id, "other_id": made.last_id or 0}
                yield run.row(reached.operation, made, **fields, **ids)


def _unknown(run: Run) -> Iterator[Evidence]:
    """Yield the operations that were told that there is no such client, though it had had an
    answer; and that their feature level is not reached, though another one had needed it.
    """
    refused = [one for one in run.operations if one.outcome == "fail"]
    refused = [one for one in refused if one.error in ("unknown_client", "unsupported")]
    if not refused:
        return
    answered: dict[object, Marks] = defaultdict(Marks)
    for one in run.operations:
        if one.is_ok:
            answered[one.client, one.host].add(0, one)
            answered[one.host].add(_needed(one), one)
    for marks in answered.values():
        marks.seal()
    for one in refused:
        is_client = one.error == "unknown_client"
        marks = answered[(one.client, one.host) if is_client else one.host]
        known = marks.before(one.invoke)
        if known is not None and (is_client or 0 < _needed(one) <= known.id):
            fields = {"topic": one.topic, "client_id": one.client}
            word = "client" if is_client else "level"
            yield run.row(known.operation, one, **fields, detail=word)


def _needed(one: RecordedOperation) -> int:
    """Return which feature level an operation surely needs, 0: any."""
    if one.f == "put":
        expires = bool(one.expires) if one.is_ok else one.may_expire
        return 5 if expires or one.topic.endswith(LANE) else 0
    is_of_four = one.f == "take" or (
        one.f == "sub" and (one.start is not None or is_pattern(one.topic))
    )
    return 4 if is_of_four else 0


def _counters_denied(run: Run) -> Iterator[Evidence]:
    """Yield the PUTs that were told of a gap before them, though what is there was acknowledged, or
    given to anybody; or though nobody had tried anything that leaves one.
    """
    denied = [put for put in run.of("put") if put.outcome == "fail" and put.error == "counter_gap"]
    denied = [put for put in denied if put.counter is not None]
    if not denied:
        return
    taken: dict[tuple[str, str, str | None], Marks] = defaultdict(Marks)
    for put in run.of("put"):
        if put.is_ok and put.counter is not None:
            taken[put.client, put.topic, put.host].add(put.counters[-1], put)
    for answer in (*run.answers, *run.of("take")):
        topic = answer.named or answer.topic
        for each, whose in ((answer.given, topic), (answer.delayed, topic + LANE)):
            for _, producer, counter in each if answer.is_ok else ():
                if producer is not None and counter is not None:
                    taken[producer, whose, answer.host].add(counter, answer)
    for marks in taken.values():
        marks.seal()
    for put in denied:
        first = put.counters[0]
        known = taken[put.client, put.topic, put.host].before(put.invoke)
        fields = {"topic": put.topic, "client_id": put.client, "detail": "counter"}
        if known is not None and known.id >= first - 1:
            yield run.row(known.operation, put, **fields, id=known.id, other_id=first)
        elif not any(_may_leave_gap(other, put, first) for other in run.of("put")):
            yield run.row(put, **fields, other_id=first)


def _may_leave_gap(other: RecordedOperation, put: RecordedOperation, first: int) -> bool:
    """Whether another PUT may have been taken before one, and left a gap below its first counter:
    a client's first PUT to a topic may have any.
    """
    is_of_both = (other.client, other.topic) == (put.client, put.topic)
    is_lower = other.counter is not None and other.counter < first - 1
    may_be_before = other.host != put.host or other.invoke < put.end
    return is_of_both and is_lower and other.may_have_happened and may_be_before


def _told_nothing(
    run: Run, one: RecordedSubscription, get: RecordedOperation
) -> Iterator[Evidence]:
    known = run.knowledge.there_before(one.topic, get.host, get.invoke)
    assert get.asked is not None, get
    if known is None or known.id <= get.asked or known.id <= _start_max(one, get):
        return
    fields = {"topic": one.topic, "client_id": one.client, "detail": "nothing"}
    yield run.row(known.operation, get, **fields, id=known.id, other_id=get.asked)


def _start_max(one: RecordedSubscription, get: RecordedOperation) -> float:
    """Return up to which id a subscription may have begun that stood during the GET."""
    highest: float = 0
    for sub in one.subs:
        if sub.host == get.host and sub.invoke >= get.end:
            continue
        if one.was_over(sub, get):
            continue
        if sub.is_ok:
            highest = max(highest, sub.last_id or 0)
        elif sub.host != get.host or one.latest(sub) >= get.invoke:
            return NEVER  # of a SUB without an answer nobody knows where it begins
    return highest


# --- cursor_regression ----------------------------------------------------------------------------


def cursor_regression(run: Run) -> Iterable[Evidence]:
    """Find cursors that went back, and subscriptions that resume above all that was read."""
    for one in run.standing.subscriptions.values():
        told = [sub for sub in one.subs if sub.is_ok and sub.cursor is not None]
        asked = [get for get in one.answers if get.asked is not None]
        passed = {max(get.ids()) for get in one.answers if get.tells_of_purge}
        said = [get for get in asked if not get.is_unsaid and get.asked not in passed]
        taken = [(get.end, get.asked or 0, get) for get in said]
        begun = [(sub.end, sub.cursor or 0, sub) for sub in told if not sub.resumed]
        taken += [(sub.end, sub.cursor or 0, sub) for sub in told if sub.resumed]
        history, longer = _HighestCursors(one, taken), _HighestCursors(one, [*taken, *begun])
        for get in asked:
            yield from _gone_back(run, one, history, get, get.asked or 0, "asked")
        for sub in told:
            yield from _gone_back(run, one, longer, sub, sub.cursor or 0, "answered")
            yield from _gone_ahead(run, one, sub)
            yield from _begun_ahead(run, one, sub)


class _HighestCursors:
    """The highest cursor that was taken before any time, by host."""

    def __init__(
        self, one: RecordedSubscription, taken: list[tuple[Time, int, RecordedOperation]]
    ) -> None:
        self._one, self._taken = one, taken
        self._rows: dict[str | None, list[tuple[Time, int, RecordedOperation]]] = defaultdict(list)
        for row in sorted(taken, key=lambda each: each[0]):
            rows = self._rows[row[2].host]
            if not rows or row[1] > rows[-1][1]:
                rows.append(row)

    def before(self, operation: RecordedOperation) -> tuple[int, RecordedOperation] | None:
        """Return the highest that was taken before an operation, and by which one.

        Of what was taken before the client may have gone elsewhere nothing is concluded.
        """
        if self._one.moves:
            return self._since_moves(operation)
        rows = self._rows.get(operation.host, [])
        place = bisect_left(rows, operation.invoke, key=lambda row: row[0])
        return (rows[place - 1][1], rows[place - 1][2]) if place else None

    def _since_moves(self, operation: RecordedOperation) -> tuple[int, RecordedOperation] | None:
        found = (
            (cursor, taker)
            for end, cursor, taker in self._taken
            if taker.host == operation.host and end < operation.invoke
            if not self._one.may_have_moved(operation.host, taker.invoke, operation.end, but=taker)
        )
        return max(found, key=lambda row: (row[0], row[1].key), default=None)


def _gone_back(
    run: Run,
    one: RecordedSubscription,
    history: _HighestCursors,
    own: RecordedOperation,
    cursor: int,
    kind: str,
) -> Iterator[Evidence]:
    before = history.before(own)
    if before is not None and before[0] > cursor:
        fields = {"topic": one.topic, "client_id": one.client, "detail": kind}
        yield run.row(before[1], own, **fields, id=cursor, other_id=before[0])


def _gone_ahead(run: Run, one: RecordedSubscription, sub: RecordedOperation) -> Iterator[Evidence]:
    """Yield a row if a SUB resumes above all that its subscriber can have had in that reading.

    Only where the subscription stood before: a SUB that needed two attempts resumes its own first.
    """
    life = next((life for life in one.lives if life.covers(sub)), None)
    if not sub.resumed or sub.cursor is None or life is None or life.start is None:
        return
    had = life.start
    for get in run.gets_of(one.client, one.topic):
        if _may_precede(get, sub) and not life.is_apart(get):
            had = max(had, get.asked or 0, *get.ids())
    if sub.cursor > had:
        fields = {"topic": one.topic, "client_id": one.client, "detail": "ahead"}
        yield run.row(sub, **fields, id=sub.cursor, other_id=had)


def _begun_ahead(run: Run, one: RecordedSubscription, sub: RecordedOperation) -> Iterator[Evidence]:
    """Yield a row if a SUB says that only ids above one come that its client never had, though the
    broker has the subscription below that.
    """
    last_id, had = sub.last_id or 0, sub.cursor or 0
    if run.is_application or last_id <= had:
        return
    for get in run.gets_of(one.client, one.topic):
        if _may_precede(get, sub):
            had = max(had, get.asked or 0, *get.ids())
    for other in one.subs:
        if other is not sub and other.is_ok and _may_precede(other, sub):
            had = max(had, other.last_id or 0, other.cursor or 0)
    for row in run.handlings_of.get((one.client, one.topic), ()):
        if row.host != sub.host or row.time < sub.end:
            had = max(had, row.last_id, row.cursor or 0)
    if last_id > had:
        fields = {"topic": one.topic, "client_id": one.client, "detail": "ahead"}
        yield run.row(sub, **fields, id=last_id, other_id=had)


def _may_precede(one: RecordedOperation, other: RecordedOperation) -> bool:
    return one.host != other.host or one.invoke < other.end


# --- epochs and terms -----------------------------------------------------------------------------


def fencing(run: Run) -> Iterable[Evidence]:
    """Find operations of an old epoch that were sent after a newer one's success, and sessions
    that had success under another one's epoch.
    """
    yield from _under_one_epoch(run)
    clients: dict[tuple[str, str | None], list[RecordedOperation]] = defaultdict(list)
    for one in run.operations:
        if one.is_ok and one.epoch is not None:
            clients[one.client, one.host].append(one)
    for operations in clients.values():
        for epoch, own, newer in _late(operations, "epoch"):
            detail = f"{own.f} of epoch {epoch} after epoch {newer.epoch}"
            topic = own.named or own.topic
            yield run.row(newer, own, topic=topic, client_id=own.client, detail=detail)
    yield from _after_a_refusal(run, clients)


def _after_a_refusal(
    run: Run, done: Mapping[tuple[str, str | None], list[RecordedOperation]]
) -> Iterator[Evidence]:
    """Yield the operations of an epoch that were sent after one of it, or of a newer one, was told
    that the epoch is over.
    """
    for refused in run.operations:
        if refused.outcome == "fail" and refused.error in OVER and refused.epoch is not None:
            for own in done.get((refused.client, refused.host), ()):
                if own.invoke > refused.end and (own.epoch or 0) <= refused.epoch:
                    detail = f"{own.f} of epoch {own.epoch} after {refused.error}"
                    topic = own.named or own.topic
                    yield run.row(refused, own, topic=topic, client_id=own.client, detail=detail)


def _under_one_epoch(run: Run) -> Iterator[Evidence]:
    """Yield for all sessions of an epoch but the least one what they did first under it."""
    sessions: dict[tuple[str, int], dict[tuple[str, int], RecordedOperation]] = defaultdict(dict)
    for one in sorted(run.operations, key=attrgetter("op_id")):
        if one.is_ok and one.epoch is not None:
            sessions[one.client, one.epoch].setdefault((one.process, one.session), one)
    for (client, epoch), firsts in sessions.items():
        least, *others = sorted(firsts)
        for other in others:
            own, detail = firsts[other], f"shared: epoch {epoch}"
            topic = own.named or own.topic
            yield run.row(firsts[least], own, topic=topic, client_id=client, detail=detail)


def term_order(run: Run) -> Iterable[Evidence]:
    """Find terms in which somebody was answered who had asked after an answer of a higher term."""
    hosts: dict[str | None, list[RecordedOperation]] = defaultdict(list)
    for one in run.operations:
        if one.is_ok and one.term is not None:
            hosts[one.host].append(one)
    found: set[int] = set()
    for operations in hosts.values():
        for term, own, newer in _late(operations, "term"):
            if term not in found:
                found.add(term)
                yield run.row(newer, own, id=term, other_id=newer.term)


def _late(
    operations: list[RecordedOperation], name: str
) -> Iterator[tuple[int, RecordedOperation, RecordedOperation]]:
    """Yield (its number, operation, which one has ended before) for each sent after a higher one.

    `name`: of the number, which only grows.
    """
    number = attrgetter(name)
    first: dict[int, RecordedOperation] = {}
    for one in operations:
        known = first.get(number(one))
        if known is None or one.end < known.end:
            first[number(one)] = one
    earliest: dict[int, RecordedOperation] = {}  # of all that are higher
    lead: RecordedOperation | None = None
    for each in sorted(first, reverse=True):
        if lead is not None:
            earliest[each] = lead
        lead = first[each] if lead is None or first[each].end < lead.end else lead
    for one in operations:
        higher = earliest.get(number(one))
        if higher is not None and higher.end < one.invoke:
            yield number(one), one, higher


def leaders_per_term(run: Run) -> Iterable[Evidence]:
    """Find terms that two nodes led, by their answers or by their logs."""
    leaders: dict[int, dict[str, RecordedOperation | None]] = defaultdict(dict)
    for one in sorted(run.operations, key=lambda each: each.end):
        if one.is_ok and one.term is not None and one.node is not None:
            leaders[one.term].setdefault(one.node, one)
    for row in run.truth:
        if row.get("kind") == "leadership":
            leaders[row["term"]].setdefault(row["node"], None)
    for term, nodes in leaders.items():
        if len(nodes) > 1:
            names = sorted(nodes)
            witnesses = [nodes[name] for name in names]
            yield run.row(*witnesses, id=term, detail=f"term: {' '.join(names)}")
