"""The operations of one run, read from its events into memory: what the twins judge.

What lives here: pairing invokes with completions, and the shape of evidence. What must not: any
rule about right and wrong (the modules beside this one).
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

Event = Mapping[str, Any]
Key = tuple[str, int]  # (process, op_id)
Content = tuple[str, int]  # (producer, counter)

DIGEST_DIGITS: Final = 16  # of one publication in `digests`
# When something was sent whose invoke is gone: before all else, so that nothing contradicts it.
UNKNOWN_NS: Final = -1
# What an end says by itself. What else it repeats of its invoke is not believed without it.
OF_END: Final = ("f", "client_id", "session", "topic", "host", "counter", "count", "digests")


class Evidence(NamedTuple):
    """A row of evidence: columns as in `schema.EVIDENCE`, `operations` as (process, op_id)."""

    run_id: str
    topic: str | None = None
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
    end_ns: int | None
    digests: str | None = None

    def ids(self) -> list[tuple[int, int]]:
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
    host: str
    invoke_ns: int
    end_ns: int | None
    sent_id: int | None
    items: Sequence[Sequence[Any]]
    corrupt: Sequence[Sequence[Any]]
    digests: str | None = None  # of what an application got, from `sent_id` on
    handed_apart: bool = False  # what of it was handed over is among `Run.handlings`
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
        named = [id_ for id_, _ in self.contents()] + [id_ for id_, _ in self.corrupt]
        return sorted(named + [id_ for id_, _ in digests_of(self.sent_id, self.digests)])


def digests_of(first_id: int | None, digests: str | None) -> list[tuple[int, str]]:
    """Return (id, digest) of each publication that an application saw."""
    if first_id is None or digests is None:
        return []
    places = range(len(digests) // DIGEST_DIGITS)
    parts = (digests[DIGEST_DIGITS * place :][:DIGEST_DIGITS] for place in places)
    return [(first_id + place, part) for place, part in enumerate(parts)]


@dataclass(slots=True)
class Handling:
    """A step between a client's library and its application: docs/history.md."""

    key: Key
    f: str
    client_id: str
    topic: str
    session: int
    host: str
    t_ns: int
    ids: range
    cursor: int | None


@dataclass(slots=True)
class Control:
    """A SUB or UNSUB over its invoke and completion."""

    key: Key
    f: str
    client_id: str
    topic: str
    host: str
    outcome: str
    invoke_ns: int
    end_ns: int | None
    start_id: int | None
    cursor: int | None
    resumed: bool | None


@dataclass(slots=True)
class Success:
    """An operation that was answered `ok`, whatever it was; `node` led in `term`."""

    key: Key
    f: str
    client_id: str
    topic: str
    host: str
    epoch: int | None
    node: str | None
    term: int | None
    invoke_ns: int
    end_ns: int


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
    """A run's operations. `seen`: (topic, id) -> publication -> smallest operation that saw it.

    `truth`: what stood on the nodes' disks, rows as in docs/history.md; `nodes`: of each node
    whether its disk was read. `orphans`: the operations of which there is an end, and no invoke.
    """

    run_id: str
    orphans: list[Key] = field(default_factory=list)
    puts: list[Put] = field(default_factory=list)
    gets: list[Get] = field(default_factory=list)
    handlings: list[Handling] = field(default_factory=list)
    controls: list[Control] = field(default_factory=list)
    subscriptions: list[Subscription] = field(default_factory=list)
    successes: list[Success] = field(default_factory=list)
    drains: set[tuple[str, str]] = field(default_factory=set)
    seen: dict[tuple[str, int], dict[Content, Key]] = field(
        default_factory=lambda: defaultdict(dict)
    )
    truth: Sequence[Event] = ()
    nodes: Mapping[str, bool] = field(default_factory=dict)

    def standing(self) -> list[Subscription]:
        """Return the subscriptions that never ended."""
        return [one for one in self.subscriptions if not one.ended]


def read(
    events: Iterable[Event], truth: Iterable[Event] = (), nodes: Mapping[str, bool] | None = None
) -> Run:
    """Return the operations in `events`; all of them must be of one run."""
    events, truth = list(events), list(truth)
    run_ids = {event["run_id"] for event in [*events, *truth]}
    assert len(run_ids) <= 1, f"{len(run_ids)} runs at once: {sorted(run_ids)[:3]}"
    run = Run(run_ids.pop() if run_ids else "", truth=truth, nodes=nodes or {})
    pairs: dict[Key, dict[bool, Event]] = defaultdict(dict)
    for event in events:
        if event["f"] in ("put", "get", "sub", "unsub"):
            pairs[event["process"], event["op_id"]][event["type"] == "invoke"] = event
        elif event["f"] in ("hand", "ack", "release"):
            run.handlings.append(_handling(event))
        elif event.get("phase") == "drained":
            run.drains.add((event["client_id"], event["topic"]))
    run.orphans = sorted(key for key, pair in pairs.items() if True not in pair)
    operations = [
        (key, pair[True] if True in pair else _stand_in(pair[False]), pair.get(False, {}))
        for key, pair in pairs.items()
    ]
    _read_operations(run, operations)
    return run


def _stand_in(end: Event) -> Event:
    """Return an invoke for an end that has none."""
    return {name: end.get(name) for name in OF_END} | {"t_ns": UNKNOWN_NS}


def _read_operations(run: Run, operations: list[tuple[Key, Event, Event]]) -> None:
    run.puts = [_put(*one) for one in operations if one[1]["f"] == "put"]
    run.gets = [_get(*one) for one in operations if one[1]["f"] == "get"]
    run.controls = [_control(*one) for one in operations if one[1]["f"] in ("sub", "unsub")]
    run.subscriptions = _subscriptions(operations)
    run.successes = [_success(*one) for one in operations if one[2].get("type") == "ok"]
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
    counters = range(0) if counter is None else range(counter, counter + count)
    return Put(
        key,
        invoke["client_id"],
        invoke["topic"],
        _host(invoke, end),
        counters,
        end.get("type", "info"),
        end.get("first_id") or 0,
        bool(end.get("duplicate")),
        invoke["t_ns"],
        end.get("t_ns"),
        invoke.get("digests"),
    )


def _get(key: Key, invoke: Event, end: Event) -> Get:
    return Get(
        key,
        invoke["client_id"],
        end.get("topic") or invoke["topic"],
        (key[0], invoke["session"]),
        end.get("cursor") if invoke.get("last_id") is None else invoke["last_id"],
        end.get("type", "info"),
        _host(invoke, end) or "",
        invoke["t_ns"],
        end.get("t_ns"),
        end.get("first_id"),
        end.get("items") or (),
        end.get("corrupt") or (),
        end.get("digests"),
        bool(end.get("handed_apart")),
    )


def _handling(event: Event) -> Handling:
    first_id, last_id = event.get("first_id"), event["last_id"]
    return Handling(
        (event["process"], event["op_id"]),
        event["f"],
        event["client_id"],
        event["topic"],
        event["session"],
        event.get("host") or "",
        event["t_ns"],
        range(0) if first_id is None else range(first_id, last_id + 1),
        event.get("cursor"),
    )


def _control(key: Key, invoke: Event, end: Event) -> Control:
    return Control(
        key,
        invoke["f"],
        invoke["client_id"],
        invoke["topic"],
        _host(invoke, end) or "",
        end.get("type", "info"),
        invoke["t_ns"],
        end.get("t_ns"),
        end.get("last_id"),
        end.get("cursor"),
        end.get("resumed"),
    )


def _success(key: Key, invoke: Event, end: Event) -> Success:
    return Success(
        key,
        invoke["f"],
        invoke["client_id"],
        end.get("topic") or invoke["topic"],
        _host(invoke, end) or "",
        invoke.get("epoch"),
        end.get("node"),
        end.get("term"),
        invoke["t_ns"],
        end["t_ns"],
    )


def _host(invoke: Event, end: Event) -> str | None:
    host: str | None = end.get("host") or invoke.get("host")
    return host


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
            start = (end["last_id"], end["t_ns"], key, _host(invoke, end))
            open_now[owner] = Subscription(client_id, topic, *start)
            made.append(open_now[owner])
    return made
