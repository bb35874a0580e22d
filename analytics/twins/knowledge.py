"""What is known of publications and ids, and since when: the section "Words" of docs/checks.md.

What lives here: tries, places, ids that are known, how far topics are known to reach, counters that
the broker has taken. What must not: subscriptions (standing.py), evidence.

"Since when" is always a time on one host: `host` is part of every key.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Sequence
from functools import cached_property
from itertools import accumulate
from typing import NamedTuple

from analytics.twins.compaction import were_there
from analytics.twins.record import NEVER, Event, Publication, Record, RecordedOperation, Time


class Moment(NamedTuple):
    """A time on a host."""

    host: str | None
    time: Time

    def is_after(self, operation: RecordedOperation) -> bool:
        """Whether an operation had surely ended by then."""
        return operation.host == self.host and operation.end < self.time


def first_of(tries: Sequence[RecordedOperation]) -> Moment | None:
    """Return when the first of these tries was sent; None: there is none, or clocks of two hosts
    would have to say which. What was answered to be no duplicate was taken by that try, if all
    answers say one place.
    """
    if len({put.host for put in tries}) != 1:
        return None
    stored = [put for put in tries if put.is_ok and not put.is_duplicate]
    shifts = {(put.first_id or 0) - (put.counter or 0) for put in tries if put.placed}
    is_clear = len(shifts) == 1 and all(put.placed for put in stored)
    sent = stored if stored and is_clear else tries
    return Moment(tries[0].host, min(put.invoke for put in sent))


class Mark(NamedTuple):
    """An id, and the operation from whose end on it was known."""

    id: int
    operation: RecordedOperation


class Marks:
    """The highest id that was known at any time, of one topic on one host."""

    def __init__(self) -> None:
        self._all: list[tuple[Time, int, RecordedOperation]] = []
        self._ends: list[Time] = []
        self._highest: list[Mark] = []

    def add(self, id_: int, operation: RecordedOperation) -> None:
        """Let `id_` be known from the operation's end on."""
        self._all.append((operation.end, id_, operation))

    def seal(self) -> None:
        """All were added."""
        self._all.sort(key=lambda one: one[0])
        for end, id_, operation in self._all:
            if not self._highest or id_ > self._highest[-1].id:
                self._ends.append(end)
                self._highest.append(Mark(id_, operation))

    def before(self, time: Time) -> Mark | None:
        """Return the highest that was known before `time`."""
        place = bisect_left(self._ends, time)
        return self._highest[place - 1] if place else None


class Knowledge:
    """All of it, of one record."""

    def __init__(self, record: Record) -> None:
        self._record = record
        self.tries: dict[Publication, list[RecordedOperation]] = defaultdict(list)
        # (topic, id) -> the publications that stand there -> who says so: None is a node's disk
        self.at: dict[tuple[str, int], dict[Publication, RecordedOperation | None]] = defaultdict(
            dict
        )
        self.places: dict[Publication, set[int]] = defaultdict(set)
        self.ids: dict[str, set[int]] = defaultdict(set)  # topic -> ids at which something stands
        # The same ids: since when on a host they are known, or known to have been given to anybody.
        self.known: dict[tuple[str, int, str | None], Time] = {}
        # The highest of them at any time, and of those that were leased.
        self.knew: dict[tuple[str, str | None], Marks] = defaultdict(Marks)
        self.reached: dict[tuple[str, str | None], Marks] = defaultdict(Marks)
        # topic -> the ids at which a run of times begins or ends -> the least time that is said
        self.times: dict[str, dict[int, int]] = defaultdict(dict)
        self._shown: dict[tuple[str, str], dict[int, dict[str | None, RecordedOperation]]] = {}
        for put in record.of("put"):
            self._try(put)
            if put.is_ok:
                self._acknowledged(put)
        for get in record.answers:
            self._answered(get)
        for sub in record.of("sub"):
            if sub.is_ok and sub.last_id is not None:
                self.reached[sub.topic, sub.host].add(sub.last_id, sub)
        for one in (*record.of("group"), *record.of("take")):
            self._told_by_group(one)
        for answer in (*record.answers, *record.of("take")):
            for letter in answer.letters if answer.is_ok else ():
                self.reached[letter.topic, answer.host].add(letter.from_id, answer)
        for row in record.truth:
            if row.get("kind") == "held" and row.get("first_id"):
                self._held(row)
        for marks in (*self.knew.values(), *self.reached.values()):
            marks.seal()
        self._taken = {whose: _suffixes(shown) for whose, shown in self._shown.items()}

    # --- publications -----------------------------------------------------------------------------

    def may_have_stored(self, publication: Publication) -> list[RecordedOperation]:
        """Return the tries of a publication that may have succeeded."""
        return [put for put in self.tries.get(publication, ()) if put.may_have_happened]

    def first_try(self, publication: Publication) -> Moment | None:
        """Return when a publication was first tried, of the tries that may have succeeded.

        None: there is none, or clocks of two hosts would have to say which was first.
        """
        return first_of(self.may_have_stored(publication))

    def taken(self, publication: Publication, host: str | None) -> RecordedOperation | None:
        """Return the earliest operation on `host` from whose end the broker has taken the counter.

        None: no operation shows it, or nobody tried the publication with a chance.
        """
        producer, topic, counter = publication
        counters, earliest = self._taken.get((producer, topic), ([], []))
        place = bisect_left(counters, counter)
        if place == len(counters) or not self.may_have_stored(publication):
            return None
        return earliest[place].get(host)

    def later_place(self, publication: Publication) -> int | None:
        """Return the lowest place of any later counter of the same producer; None: none has one."""
        producer, topic, counter = publication
        counters, lowest = self._lowest.get((producer, topic), ([], []))
        place = bisect_left(counters, counter + 1)
        return lowest[place] if place < len(counters) else None

    def lower_place(self, publication: Publication) -> int | None:
        """Return the highest place of any lower counter of the same producer; None: there is
        none.
        """
        producer, topic, counter = publication
        counters, highest = self._highest.get((producer, topic), ([], []))
        place = bisect_left(counters, counter)
        return highest[place - 1] if place else None

    @cached_property
    def _highest(self) -> dict[tuple[str, str], tuple[list[int], list[int]]]:
        by_producer: dict[tuple[str, str], dict[int, int]] = defaultdict(dict)
        for (producer, topic, counter), ids in self.places.items():
            by_producer[producer, topic][counter] = max(ids)
        return {
            whose: (counters := sorted(of), [*accumulate((of[one] for one in counters), max)])
            for whose, of in by_producer.items()
        }

    @cached_property
    def _lowest(self) -> dict[tuple[str, str], tuple[list[int], list[int]]]:
        by_producer: dict[tuple[str, str], dict[int, int]] = defaultdict(dict)
        for (producer, topic, counter), ids in self.places.items():
            by_producer[producer, topic][counter] = min(ids)
        found: dict[tuple[str, str], tuple[list[int], list[int]]] = {}
        for whose, lowest in by_producer.items():
            counters, below = sorted(lowest), list[int]()
            for counter in reversed(counters):
                below.append(min(lowest[counter], below[-1] if below else lowest[counter]))
            found[whose] = (counters, below[::-1])
        return found

    # --- ids --------------------------------------------------------------------------------------

    def known_since(self, topic: str, id_: int, host: str | None) -> Time:
        """Return from when on an id is known on a host; NEVER: it is not, by any operation."""
        return self.known.get((topic, id_, host), NEVER)

    def known_before(self, topic: str, host: str | None, time: Time) -> Mark | None:
        """Return the highest id of a topic that was known on a host before `time`."""
        marks = self.knew.get((topic, host))
        return marks.before(time) if marks else None

    def reached_before(self, topic: str, host: str | None, time: Time) -> Mark | None:
        """Return how far a topic was known on a host, before `time`, to have reached."""
        marks = self.reached.get((topic, host))
        return marks.before(time) if marks else None

    def there_before(self, topic: str, host: str | None, time: Time) -> Mark | None:
        """Return the highest id that was known on a host before `time`, or that the topic was known
        to have reached.
        """
        marks = self.known_before(topic, host, time), self.reached_before(topic, host, time)
        return max((mark for mark in marks if mark), key=lambda mark: mark.id, default=None)

    def begins_late(self, control: RecordedOperation, start: str) -> bool:
        """Whether what belongs behind a start at the earliest, or at a time, was there: somebody
        was given it later.
        """
        last_id, since_ms = control.last_id, _time_of(start)
        if last_id is None or (since_ms is None and start != "earliest"):
            return False
        times = self.times.get(control.topic, {})
        return any(
            id_ <= last_id and (since_ms is None or times.get(id_, -1) >= since_ms)
            for get in self._record.brought_of.get(control.topic, ())
            if get.host == control.host and get.invoke > control.end
            for id_ in get.ids()
        )

    def begins_early(self, control: RecordedOperation, start: str) -> bool:
        """Whether an id above a start at a time was known before, and has a smaller time; not one
        that may have been compacted away by then.
        """
        until_ms = _time_of(start)
        if until_ms is None or control.last_id is None:
            return False
        older = [
            id_
            for id_, at_ms in self.times.get(control.topic, {}).items()
            if id_ > control.last_id
            and at_ms < until_ms
            and self.known_since(control.topic, id_, control.host) < control.invoke
        ]
        return bool(older) and were_there(self._record, control, older)

    # --- how it is made ---------------------------------------------------------------------------

    def _try(self, put: RecordedOperation) -> None:
        for counter in put.counters:
            self.tries[put.client, put.topic, counter].append(put)

    def _acknowledged(self, put: RecordedOperation) -> None:
        for place, counter in enumerate(put.counters):
            publication = (put.client, put.topic, counter)
            self._show(publication, put)
            if put.first_id:
                self._place(publication, put.first_id + place, put)
                self._know(put.topic, put.first_id + place, put)
        if put.first_id:
            self.reached[put.topic, put.host].add(put.first_id + put.count - 1, put)

    def _answered(self, get: RecordedOperation) -> None:
        for *ids, at_ms in get.times if get.brought else ():
            for id_ in ids:
                own = self.times[get.named]
                own[id_] = min(at_ms, own.get(id_, at_ms))
        for id_, producer, counter in get.given:
            if producer is not None and counter is not None:
                publication = (producer, get.named, counter)
                self._place(publication, id_, get)
                self._show(publication, get)
        highest = get.asked if get.topic in ("", get.named) and get.named else None
        for id_ in get.ids():
            self._know(get.named, id_, get)
            highest = id_ if highest is None else max(highest, id_)
        if highest is not None:
            self.reached[get.named, get.host].add(highest, get)

    def _told_by_group(self, one: RecordedOperation) -> None:
        ids = [lease.last for lease in one.of_group.leases]
        if ids:
            self.knew[one.topic, one.host].add(max(ids), one)
        if one.f == "group" and one.is_ok and one.last_id is not None:
            ids.append(one.last_id)
        if ids:
            self.reached[one.topic, one.host].add(max(ids), one)

    def _held(self, row: Event) -> None:
        for place in range(row.get("count") or 1):
            counter = row["first_counter"] + place
            self._place((row["producer"], row["topic"], counter), row["first_id"] + place, None)

    def _place(self, publication: Publication, id_: int, witness: RecordedOperation | None) -> None:
        self.at[publication[1], id_].setdefault(publication, witness)
        self.places[publication].add(id_)
        self.ids[publication[1]].add(id_)

    def _know(self, topic: str, id_: int, operation: RecordedOperation) -> None:
        key = (topic, id_, operation.host)
        if operation.end < self.known.get(key, NEVER):
            self.known[key] = operation.end
        self.knew[topic, operation.host].add(id_, operation)

    def _show(self, publication: Publication, operation: RecordedOperation) -> None:
        producer, topic, counter = publication
        shown = self._shown.setdefault((producer, topic), {}).setdefault(counter, {})
        first = shown.get(operation.host)
        if first is None or operation.end < first.end:
            shown[operation.host] = operation


def _suffixes(
    shown: dict[int, dict[str | None, RecordedOperation]],
) -> tuple[list[int], list[dict[str | None, RecordedOperation]]]:
    """Return the counters in order, and of each what showed it, or a later one, first on a host."""
    counters = sorted(shown)
    earliest: list[dict[str | None, RecordedOperation]] = []
    for counter in reversed(counters):
        here = dict(earliest[-1]) if earliest else {}
        for host, operation in shown[counter].items():
            if host not in here or operation.end < here[host].end:
                here[host] = operation
        earliest.append(here)
    return counters, earliest[::-1]


def _time_of(start: str) -> int | None:
    """Return the time of day in ms at which a subscription is to start; None: it says none."""
    return int(start[1:]) if start[:1] == "@" and start[1:].isdecimal() else None
