"""The check `delayed`: what becomes of what was put with a delay (docs/checks.md, "Delays").

What lives here: only that. What must not: lanes' own PUTs, which are judged as any topic's
(stored.py), who stood subscribed (standing.py).
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property

from analytics.twins.group_standing import controls_of, standing_during
from analytics.twins.knowledge import Moment, first_of
from analytics.twins.record import LANE, NEVER, Evidence, RecordedOperation, Time
from analytics.twins.run import Run
from analytics.twins.standing import SubscribedSpan

SURELY_NS_A_MS = 990_000  # clocks of two machines may differ by a hundredth in how fast they go
ROUNDING_NS = 2_000_000  # the log's time is told in ms, at both ends of a delay

Whose = tuple[str, str]  # producer, topic


@dataclass(slots=True, eq=False)
class DelayedPublication:
    """One that was put with a delay to `topic`: its tries, and the ids under which it came."""

    producer: str
    topic: str
    counter: int
    tries: list[RecordedOperation] = field(default_factory=list)
    came: dict[int, list[RecordedOperation]] = field(default_factory=dict)

    @property
    def chances(self) -> list[RecordedOperation]:
        """The tries that may have succeeded."""
        return [put for put in self.tries if put.may_have_happened]

    @property
    def first_try(self) -> Moment | None:
        """When it was first tried, of those; None: by none, or on two hosts."""
        return first_of(self.chances)

    @property
    def due(self) -> Moment | None:
        """Behind which moment it came: its delay was over, as far as that is known."""
        first, least = self.first_try, (self.ms or 0) * SURELY_NS_A_MS - ROUNDING_NS
        return first and Moment(first.host, first.time + max(0, least))

    @property
    def ms(self) -> int | None:
        """Its delay; None: it is not known."""
        said = {
            ms
            for put in self.chances
            for first, last, ms in put.delays
            if first <= self.counter <= last
        }
        return said.pop() if len(said) == 1 else None

    @property
    def place(self) -> int | None:
        """Its lowest place in the lane; None: nobody was told one."""
        places = (
            put.first_id + self.counter - put.counter
            for put in self.tries
            if put.placed and put.first_id is not None and put.counter is not None
        )
        return min(places, default=None)

    @property
    def is_nowhere(self) -> bool:
        """Whether a try was answered that it is stored nowhere."""
        return any(put.is_ok and put.first_id == 0 and not put.is_duplicate for put in self.tries)

    @property
    def id(self) -> int | None:
        """The lowest id under which it came."""
        return min(self.came, default=None)


class Delays:
    """All that were put with a delay, or came as such, and what is ahead of what."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.all: dict[tuple[str, str, int], DelayedPublication] = {}
        self.came_at: dict[tuple[str, int], list[RecordedOperation]] = defaultdict(list)
        for put in run.of("put"):
            if put.topic.endswith(LANE):
                for counter in put.counters:
                    self._of(put.client, put.topic.removesuffix(LANE), counter).tries.append(put)
        takes = (take for take in run.of("take") if take.is_ok)
        for answer in (*run.answers, *takes):
            topic = answer.answered or answer.topic
            for each in answer.delayed:
                assert each.producer is not None, each
                assert each.counter is not None, each
                own = self._of(each.producer, topic, each.counter)
                own.came.setdefault(each.id, []).append(answer)
                self.came_at[topic, each.id].append(answer)

    def _of(self, producer: str, topic: str, counter: int) -> DelayedPublication:
        key = (producer, topic, counter)
        if key not in self.all:
            self.all[key] = DelayedPublication(*key)
        return self.all[key]

    @cached_property
    def taken(self) -> dict[Whose, int]:
        """Up to which counter the broker has taken a producer's, as somebody was told."""
        found: dict[Whose, int] = defaultdict(int)
        for own in self.all.values():
            if own.came or any(put.is_ok for put in own.tries):
                whose = (own.producer, own.topic)
                found[whose] = max(found[whose], own.counter)
        return found

    def is_stored(self, own: DelayedPublication) -> bool:
        """Whether it is stored, if somebody subscribed."""
        is_taken = own.counter <= self.taken[own.producer, own.topic]
        return is_taken and bool(own.chances) and not own.is_nowhere

    def behind(self, own: DelayedPublication) -> int | None:
        """Return the lowest id under which anything came that it is ahead of; None: nothing did."""
        if own.ms is None:
            return None
        ids = [
            self._lowest(self._of_places, (own.topic,), own.ms, own.place),
            self._lowest(self._of_counters, (own.topic, own.producer), own.ms, own.counter),
        ]
        return min((id_ for id_ in ids if id_ is not None), default=None)

    def _lowest(
        self, lanes: Lanes, key: tuple[str, ...], least_ms: int, place: int | None
    ) -> int | None:
        """Return the lowest id of what has a higher place, and a delay that is as long."""
        found = None
        for ms, (places, lowest) in lanes.get(key, {}).items() if place is not None else ():
            following = bisect_right(places, place or 0)
            if ms >= least_ms and following < len(places):
                found = min(lowest[following], lowest[following] if found is None else found)
        return found

    @cached_property
    def _of_places(self) -> Lanes:
        return _lanes(((own.topic,), own.ms, own.place, own.id) for own in self.all.values())

    @cached_property
    def _of_counters(self) -> Lanes:
        return _lanes(
            ((own.topic, own.producer), own.ms, own.counter, own.id) for own in self.all.values()
        )

    def known_before(self, topic: str, id_: int, host: str | None, time: Time) -> bool:
        """Whether an answer that brought what was delayed under an id had ended by then."""
        answers = self.came_at.get((topic, id_), ())
        return any(answer.host == host and answer.end < time for answer in answers)


# Of each delay: places in order, and of each the lowest id under which anything came from there on.
Lanes = dict[tuple[str, ...], dict[int, tuple[list[int], list[int]]]]


def _lanes(
    rows: Iterable[tuple[tuple[str, ...], int | None, int | None, int | None]],
) -> Lanes:
    found: dict[tuple[tuple[str, ...], int], list[tuple[int, int]]] = defaultdict(list)
    for key, ms, place, id_ in rows:
        if ms is not None and place is not None and id_ is not None:
            found[key, ms].append((place, id_))
    lanes: Lanes = defaultdict(dict)
    for (key, ms), pairs in found.items():
        pairs.sort()
        lowest: list[int] = []
        for _, id_ in reversed(pairs):
            lowest.append(min(id_, lowest[-1]) if lowest else id_)
        lanes[key][ms] = [place for place, _ in pairs], lowest[::-1]
    return lanes


def delayed(run: Run) -> Iterable[Evidence]:
    """Find what came and was not due, or twice, or as nobody put it; and what did not come."""
    delays = Delays(run)
    for own in delays.all.values():
        yield from _as_it_came(delays, own)
        yield from _out_of_order(delays, own)
        yield from _passed_over(delays, own)
    yield from _crowded(delays)
    yield from _other_properties(delays)
    yield from _not_given(delays)
    yield from _unstored(delays)


def _row(
    delays: Delays, own: DelayedPublication, *seen: RecordedOperation, **fields: object
) -> Evidence:
    whose = {"topic": own.topic, "producer": own.producer, "counter": own.counter}
    return delays.run.row(*seen, **whose, **fields)


def _as_it_came(delays: Delays, own: DelayedPublication) -> Iterator[Evidence]:
    """Yield what contradicts its tries."""
    first = own.first_try
    for id_, answers in own.came.items():
        if not own.tries:
            yield _row(delays, own, answers[0], id=id_, detail="phantom")
        elif not own.chances or own.is_nowhere:
            yield _row(delays, own, own.tries[0], answers[0], id=id_, detail="aborted")
        for answer in answers:
            if first is None or first.host != answer.host:
                continue
            passed = answer.end - first.time
            if passed < 0:
                yield _row(delays, own, answer, id=id_, detail="future")
            elif own.ms is not None and passed < own.ms * SURELY_NS_A_MS - ROUNDING_NS:
                yield _row(delays, own, answer, id=id_, detail="early")
    if len(own.came) > 1:
        low, high = sorted(own.came)[:2]
        seen = own.came[low][0], own.came[high][0]
        yield _row(delays, own, *seen, id=low, other_id=high, detail="twice")


def _out_of_order(delays: Delays, own: DelayedPublication) -> Iterator[Evidence]:
    behind = delays.behind(own)
    if own.id is not None and behind is not None and behind < own.id:
        seen = delays.came_at[own.topic, behind][0], own.came[own.id][0]
        yield _row(delays, own, *seen, id=own.id, other_id=behind, detail="order")


def _crowded(delays: Delays) -> Iterator[Evidence]:
    """Yield the ids under which something delayed came, and something else stands."""
    run = delays.run
    standing: dict[tuple[str, int], set[tuple[str, str, int]]] = defaultdict(set)
    for own in delays.all.values():
        for id_ in own.came:
            standing[own.topic, id_].add((own.producer, own.topic + LANE, own.counter))
    of_letters: set[tuple[str, int]] = set()
    for answer in (*run.answers, *run.of("take")):
        topic = answer.answered or answer.topic
        of_letters.update((topic, letter.id) for letter in answer.letters)
        if answer.f == "take" and answer.is_ok:
            for each in answer.given:
                if (topic, each.id) in standing and each.producer is not None:
                    others = standing[topic, each.id]
                    others.add((each.producer, topic, each.counter or 0))
    for (topic, id_), publications in standing.items():
        others = publications | set(run.knowledge.at.get((topic, id_), ()))
        if len(others) > 1 or (topic, id_) in of_letters:
            seen = delays.came_at[topic, id_][0]
            yield run.row(seen, topic=topic, id=id_, detail="other")


def _other_properties(delays: Delays) -> Iterator[Evidence]:
    """Yield what came with another key or other headers than it was put with."""
    said: dict[tuple[str, int], set[str]] = defaultdict(set)
    for answer in delays.run.answers:
        for first, last, _ in answer.times if answer.brought else ():
            for id_ in range(first, last + 1):
                if (answer.named, id_) in delays.came_at:
                    said[answer.named, id_].add(answer.properties.get(id_, ""))
    for own in delays.all.values():
        put_with = {
            digest
            for put in own.tries
            if put.placed and put.first_id is not None and put.counter is not None
            for digest in [put.properties.get(put.first_id + own.counter - put.counter)]
            if digest is not None
        }
        for id_, answers in own.came.items():
            if put_with and said[own.topic, id_] - put_with:
                yield _row(delays, own, answers[0], id=id_, detail="content")


# --- what is owed ---------------------------------------------------------------------------------


def _not_given(delays: Delays) -> Iterator[Evidence]:
    """Yield what came to somebody, and not to who passed its id, or drained."""
    run = delays.run
    for own in delays.all.values():
        for life in run.standing.lives_of_topic.get(own.topic, ()) if own.came else ():
            for id_, answers in own.came.items():
                if life.start is None or id_ <= life.start or id_ in life.had:
                    continue
                if _has_read(delays, life, id_):
                    seen = answers[0], life.proof
                    yield _row(delays, own, *seen, client_id=life.client, id=id_, detail="lost")


def _has_read(delays: Delays, life: SubscribedSpan, id_: int) -> bool:
    """Whether a life has passed an id, or drained, and the id was known to have come by then."""
    has_drained = life.cut is not None and delays.known_before(life.topic, id_, life.host, life.cut)
    return id_ <= life.passed or has_drained


def _passed_over(delays: Delays, own: DelayedPublication) -> Iterator[Evidence]:
    """Yield what came to nobody, though what it is ahead of came to who stood all the time."""
    first, behind = own.first_try, delays.behind(own)
    if own.came or first is None or behind is None or not delays.is_stored(own):
        return
    for life in _standing_since(delays, own, first):
        is_known = life.is_last or delays.known_before(own.topic, behind, life.host, life.end)
        if _has_read(delays, life, behind) and is_known:
            seen = own.chances[0], delays.came_at[own.topic, behind][0], life.proof
            yield _row(delays, own, *seen, client_id=life.client, detail="lost")


def _standing_since(
    delays: Delays, own: DelayedPublication, first: Moment
) -> Iterator[SubscribedSpan]:
    """Yield the lives that stood when it was first tried, and to which it can't have come without
    a name.
    """
    run = delays.run
    for life in run.standing.lives_of_topic.get(own.topic, ()):
        one = run.standing.subscriptions[life.client, life.topic]
        own_answers = (get for get in one.answers if not life.is_apart(get))
        is_clear = not any(
            (get.corrupt or get.tells_of_purge) and not first.is_after(get) for get in own_answers
        )
        if life.host == first.host and life.begin < first.time < life.end and is_clear:
            yield life


def _unstored(delays: Delays) -> Iterator[Evidence]:
    """Yield what was answered "nobody subscribes" though somebody did."""
    run = delays.run
    groups = {} if run.is_application else controls_of(run)
    for put in run.of("put"):
        if not put.topic.endswith(LANE):
            continue
        if not put.is_ok or put.is_duplicate or put.first_id != 0:
            continue
        topic = put.topic.removesuffix(LANE)
        lives = run.standing.lives_of_topic.get(topic, ())
        clients = {life.client: life.proof for life in lives if life.covers(put)}
        clients |= {group.client_id: group.made for group in standing_during(groups, put, topic)}
        for client, seen in clients.items():
            for counter in put.counters:
                named = {"topic": topic, "producer": put.client, "counter": counter}
                yield run.row(put, seen, **named, client_id=client, detail="unstored")


# --- what may still wait --------------------------------------------------------------------------


def waiting_count(run: Run) -> int:
    """Return of how many that were due nobody saw that they came to everybody."""
    delays = Delays(run)
    if not delays.all:
        return 0
    last: dict[str | None, Time] = defaultdict(int)
    for one in run.operations:
        moment = one.invoke if one.end == NEVER else one.end
        last[one.host] = max(last[one.host], moment)
    return sum(_is_waiting(delays, own, last) for own in delays.all.values())


def _is_waiting(delays: Delays, own: DelayedPublication, last: dict[str | None, Time]) -> bool:
    first = own.first_try
    if first is None or not delays.is_stored(own):
        return False
    is_due = own.ms is None or last[first.host] - first.time > own.ms * SURELY_NS_A_MS
    if not is_due:
        return False
    run = delays.run
    for life in _standing_since(delays, own, first):
        if life.is_last and life.had.isdisjoint(own.came):
            return True
    for (topic, _), controls in controls_of(run).items():
        stood = any(
            one.is_ok and one.host == first.host and one.end < first.time for one in controls.makes
        )
        if topic == own.topic and stood and not controls.ends and not own.came:
            return True
    return False
