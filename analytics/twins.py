"""Each check once more in plain Python, id by id: the oracle of the Spark functions, and the way
to check simulations, which are many and small. No Spark, no interval arithmetic, no cleverness
here: the two are worth something to each other as long as they have nothing in common.

Events are dictionaries as docs/history.md has them, all of one run, in memory. What a row of
evidence proves is said at the Spark function of the same name (analytics/anomalies/).
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final, NamedTuple

Event = Mapping[str, Any]
Key = tuple[str, int]  # (process, op_id)
Content = tuple[str, int]  # (producer, counter)


class Evidence(NamedTuple):
    """A row of evidence: columns as in `schema.EVIDENCE`, `operations` as (process, op_id)."""

    run_id: str
    topic: str
    client_id: str | None = None
    id: int | None = None
    other_id: int | None = None
    producer: str | None = None
    counter: int | None = None
    detail: str | None = None
    operations: tuple[Key, ...] = ()


@dataclass(slots=True)
class Put:
    """A PUT over its invoke and completion."""

    key: Key
    producer: str
    topic: str
    host: str | None
    counters: range
    outcome: str
    first_id: int
    duplicate: bool
    invoke_ns: int

    def ids(self) -> Iterable[tuple[int, int]]:
        """Return (id, counter) of what was acknowledged and stored."""
        if self.outcome != "ok" or self.first_id <= 0:
            return []
        return [(self.first_id + place, counter) for place, counter in enumerate(self.counters)]


@dataclass(slots=True)
class Get:
    """A GET over its invoke and completion. `items`, `corrupt` as in the history."""

    key: Key
    client_id: str
    topic: str
    session: tuple[str, int]
    asked: int | None
    outcome: str
    invoke_ns: int
    items: Sequence[Sequence[Any]]
    corrupt: Sequence[Sequence[Any]]
    had_id: int | None = None

    def contents(self) -> Iterable[tuple[int, Content]]:
        """Return (id, (producer, counter)) of every sound publication."""
        return [
            (first_id + place, (producer, counter + place))
            for first_id, producer, counter, count in self.items
            for place in range(count)
        ]

    def ids(self) -> list[int]:
        """Return the ids handed over, corrupt ones too, sorted, repeats kept."""
        return sorted([id_ for id_, _ in self.contents()] + [id_ for id_, _ in self.corrupt])


@dataclass(slots=True)
class Subscription:
    """From an acknowledged SUB to the UNSUB that may have ended it."""

    client_id: str
    topic: str
    start_id: int
    begun_ns: int
    made_by: Key
    host: str | None
    ended: bool = False


@dataclass(slots=True)
class Run:
    """A run's operations. `seen`: (topic, id) -> publication -> smallest operation that saw it."""

    run_id: str
    puts: list[Put] = field(default_factory=list)
    gets: list[Get] = field(default_factory=list)
    subscriptions: list[Subscription] = field(default_factory=list)
    drains: set[tuple[str, str]] = field(default_factory=set)
    seen: dict[tuple[str, int], dict[Content, Key]] = field(
        default_factory=lambda: defaultdict(dict)
    )

    def standing(self) -> list[Subscription]:
        """Return the subscriptions that never ended."""
        return [one for one in self.subscriptions if not one.ended]


def find_all(events: Iterable[Event]) -> dict[str, list[Evidence]]:
    """Return the evidence of every check over the events of one run, sorted."""
    run = read(events)
    return {name: sorted(find(run), key=repr) for name, find in TWINS.items()}


def read(events: Iterable[Event]) -> Run:
    """Return the operations in `events`; all of them must be of one run."""
    events = list(events)
    run_ids = {event["run_id"] for event in events}
    assert len(run_ids) <= 1, f"{len(run_ids)} runs at once: {sorted(run_ids)[:3]}"
    run = Run(run_ids.pop() if run_ids else "")
    pairs: dict[Key, dict[bool, Event]] = defaultdict(dict)
    for event in events:
        if event["f"] in ("put", "get", "sub", "unsub"):
            pairs[event["process"], event["op_id"]][event["type"] == "invoke"] = event
        elif event.get("phase") == "drained":
            run.drains.add((event["client_id"], event["topic"]))
    operations = [(key, pair[True], pair.get(False, {})) for key, pair in pairs.items()]
    _read_operations(run, operations)
    return run


def _read_operations(run: Run, operations: list[tuple[Key, Event, Event]]) -> None:
    run.puts = [_put(*one) for one in operations if one[1]["f"] == "put"]
    run.gets = [_get(*one) for one in operations if one[1]["f"] == "get"]
    run.subscriptions = _subscriptions(operations)
    had: dict[tuple[str, str, tuple[str, int]], int] = {}
    for get in sorted(run.gets, key=lambda get: get.key):
        session = (get.client_id, get.topic, get.session)
        get.had_id = had.get(session)
        if get.ids():
            had[session] = max([*get.ids(), had.get(session, 0)])
    sightings = [
        (put.topic, id_, (put.producer, counter), put.key)
        for put in run.puts
        for id_, counter in put.ids()
    ] + [(get.topic, *content, get.key) for get in run.gets for content in get.contents()]
    for topic, id_, content, key in sightings:
        seen = run.seen[topic, id_]
        seen[content] = min(key, seen.get(content, key))


def _put(key: Key, invoke: Event, end: Event) -> Put:
    counter, count = invoke["counter"], invoke.get("count") or 1
    return Put(
        key,
        invoke["client_id"],
        invoke["topic"],
        invoke.get("host"),
        range(counter, counter + count),
        end.get("type", "info"),
        end.get("first_id") or 0,
        bool(end.get("duplicate")),
        invoke["t_ns"],
    )


def _get(key: Key, invoke: Event, end: Event) -> Get:
    return Get(
        key,
        invoke["client_id"],
        end.get("topic") or invoke["topic"],
        (key[0], invoke["session"]),
        invoke.get("last_id"),
        end.get("type", "info"),
        invoke["t_ns"],
        end.get("items") or (),
        end.get("corrupt") or (),
    )


def _subscriptions(operations: list[tuple[Key, Event, Event]]) -> list[Subscription]:
    control = [one for one in operations if one[1]["f"] in ("sub", "unsub")]
    open_now: dict[tuple[str, str], Subscription] = {}
    made = []
    for key, invoke, end in sorted(control, key=lambda one: (one[1]["t_ns"], one[0][1])):
        client_id, topic = owner = (invoke["client_id"], invoke["topic"])
        outcome = end.get("type", "info")
        if invoke["f"] == "unsub" and outcome != "fail" and owner in open_now:
            open_now.pop(owner).ended = True
        elif invoke["f"] == "sub" and outcome == "ok" and owner not in open_now:
            start = (end["last_id"], end["t_ns"], key, invoke.get("host"))
            open_now[owner] = Subscription(client_id, topic, *start)
            made.append(open_now[owner])
    return made


# --- the checks ---------------------------------------------------------------------------------


def lost(run: Run) -> list[Evidence]:
    """Twin of `anomalies.lost`."""
    acked: dict[str, dict[int, tuple[Key, str, int]]] = defaultdict(dict)
    for put in run.puts:
        for id_, counter in put.ids():
            proof = (put.key, put.producer, counter)
            acked[put.topic][id_] = min(proof, acked[put.topic].get(id_, proof))
    found = _unstored(run)
    for one in run.standing():
        owner = (one.client_id, one.topic)
        got = {id_ for get in run.gets if _owner(get) == owner for id_ in get.ids()}
        for id_, (key, producer, counter) in acked[one.topic].items():
            is_tail = not got or id_ > max(got)
            if id_ <= one.start_id or id_ in got or (is_tail and owner not in run.drains):
                continue
            place = "tail" if is_tail else "prefix" if id_ < min(got) else "middle"
            why = (producer, counter, place, (key, one.made_by))
            found.append(Evidence(run.run_id, one.topic, one.client_id, id_, None, *why))
    return found


def _unstored(run: Run) -> list[Evidence]:
    return [
        Evidence(
            run.run_id,
            put.topic,
            one.client_id,
            producer=put.producer,
            counter=counter,
            detail="unstored",
            operations=(put.key, one.made_by),
        )
        for put in run.puts
        if put.outcome == "ok" and put.first_id == 0 and not put.duplicate
        for one in run.standing()
        if (one.topic, one.host) == (put.topic, put.host) and put.invoke_ns > one.begun_ns
        for counter in put.counters
    ]


def duplicate_stored(run: Run) -> list[Evidence]:
    """Twin of `anomalies.duplicate_stored`."""
    found = []
    for (topic, producer, counter), ids in _ids_of_counters(run).items():
        if len(ids) > 1:
            low, high = min(ids), max(ids)
            seen = (ids[low], ids[high])
            content = (producer, counter)
            found.append(Evidence(run.run_id, topic, None, low, high, *content, None, seen))
    return found


def _ids_of_counters(run: Run) -> dict[tuple[str, str, int], dict[int, Key]]:
    ids: dict[tuple[str, str, int], dict[int, Key]] = defaultdict(dict)
    for (topic, id_), contents in run.seen.items():
        for (producer, counter), key in contents.items():
            ids[topic, producer, counter][id_] = key
    return ids


def duplicate_delivered(run: Run) -> list[Evidence]:
    """Twin of `anomalies.duplicate_delivered`."""
    again: dict[tuple[str, str, int], list[tuple[Key, Key]]] = defaultdict(list)
    handed: dict[tuple[str, str, int], list[Get]] = defaultdict(list)
    for later in sorted(run.gets, key=lambda get: (get.invoke_ns, get.key)):
        owner, ids = _owner(later), later.ids()
        for id_, next_id in pairwise(ids):
            if id_ == next_id:
                again[*owner, id_].append((later.key, later.key))
        for id_ in set(ids):
            for earlier in handed[*owner, id_]:
                if _unasked(run, earlier, later, id_):
                    again[*owner, id_].append((earlier.key, later.key))
            handed[*owner, id_].append(later)
    return [
        Evidence(run.run_id, topic, client_id, id_, operations=min(pairs))
        for (client_id, topic, id_), pairs in again.items()
    ]


def _unasked(run: Run, earlier: Get, later: Get, id_: int) -> bool:
    if later.asked is None:
        return False
    if id_ <= later.asked:
        return True
    if earlier.session != later.session or earlier.asked is None or earlier.asked >= later.asked:
        return False
    return not any(
        _owner(get) == _owner(later)
        and get.outcome == "info"
        and get.key[0] == later.key[0]
        and earlier.key[1] <= get.key[1] <= later.key[1]
        for get in run.gets
    )


def inconsistent_id(run: Run) -> list[Evidence]:
    """Twin of `anomalies.inconsistent_id`."""
    found = []
    for (topic, id_), contents in run.seen.items():
        least, most = min(contents), max(contents)
        if least != most:
            seen = (contents[least], contents[most])
            other = f"{most[0]} {most[1]}"
            found.append(Evidence(run.run_id, topic, None, id_, None, *least, other, seen))
    return found


def gap(run: Run) -> list[Evidence]:
    """Twin of `anomalies.gap`."""
    found = []
    for get in run.gets:
        ids = get.ids()
        jumps = [(low, high) for low, high in pairwise(ids) if high > low + 1]
        bases = [base for base in (get.asked, get.had_id) if base is not None]
        if ids and bases:
            after = max([min(bases), *_starts(run, get)])
            if ids[0] > max(after, min(bases)) + 1:
                jumps.append((after, ids[0]))
        found += [
            Evidence(run.run_id, get.topic, get.client_id, high, low, operations=(get.key,))
            for low, high in jumps
        ]
    return found


def _starts(run: Run, get: Get) -> list[int]:
    return [
        one.start_id
        for one in run.subscriptions
        if (one.client_id, one.topic) == _owner(get) and one.begun_ns <= get.invoke_ns
    ]


def reordered(run: Run) -> list[Evidence]:
    """Twin of `anomalies.reordered`."""
    found = []
    for get in run.gets:
        ids = get.ids()
        back = [(ids[0], get.asked)] if ids and get.asked and ids[0] < get.asked else []
        ends = [(item[0], item[0] + item[3] - 1) for item in get.items]
        back += [(right[0], left[1]) for left, right in pairwise(ends) if right[0] < left[1]]
        seen = (get.key,)
        found += [
            Evidence(run.run_id, get.topic, get.client_id, *pair, None, None, "subscriber", seen)
            for pair in back
        ]
    return found + _along_counters(run)


def _along_counters(run: Run) -> list[Evidence]:
    stands: dict[tuple[str, str], list[tuple[int, int]]] = defaultdict(list)
    for (topic, id_), contents in run.seen.items():
        for producer, counter in contents:
            stands[topic, producer].append((id_, counter))
    found = []
    for (topic, producer), places in stands.items():
        for id_, counter in places:
            lower = [(c, i) for i, c in places if i < id_]
            if not lower or max(lower)[0] <= counter or any(c == counter for c, _ in lower):
                continue
            ahead, ahead_id = max(lower)
            seen = (
                run.seen[topic, id_][producer, counter],
                run.seen[topic, ahead_id][producer, ahead],
            )
            content = (producer, counter, "producer", seen)
            found.append(Evidence(run.run_id, topic, None, id_, ahead_id, *content))
    return found


def phantom(run: Run) -> list[Evidence]:
    """Twin of `anomalies.phantom`."""
    tried = {(put.topic, put.producer, counter) for put in run.puts for counter in put.counters}
    return [
        Evidence(run.run_id, topic, None, id_, None, *content, None, (key,))
        for (topic, id_), contents in run.seen.items()
        for content, key in contents.items()
        if (topic, *content) not in tried
    ]


def aborted_read(run: Run) -> list[Evidence]:
    """Twin of `anomalies.aborted_read`."""
    tries: dict[tuple[str, str, int], list[Put]] = defaultdict(list)
    for put in run.puts:
        for counter in put.counters:
            tries[put.topic, put.producer, counter].append(put)
    found = []
    for (topic, id_), contents in run.seen.items():
        for content, key in contents.items():
            puts = tries[topic, *content]
            if puts and all(put.outcome == "fail" for put in puts):
                proof = (min(put.key for put in puts), key)
                found.append(Evidence(run.run_id, topic, None, id_, None, *content, None, proof))
    return found


def corrupt(run: Run) -> list[Evidence]:
    """Twin of `anomalies.corrupt`."""
    return [
        Evidence(run.run_id, get.topic, get.client_id, id_, detail=reason, operations=(get.key,))
        for get in run.gets
        for id_, reason in get.corrupt
    ]


def _owner(get: Get) -> tuple[str, str]:
    return get.client_id, get.topic


TWINS: Final[Mapping[str, Callable[[Run], list[Evidence]]]] = {
    "lost": lost,
    "duplicate_stored": duplicate_stored,
    "duplicate_delivered": duplicate_delivered,
    "inconsistent_id": inconsistent_id,
    "gap": gap,
    "reordered": reordered,
    "phantom": phantom,
    "aborted_read": aborted_read,
    "corrupt": corrupt,
}
