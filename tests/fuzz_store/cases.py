"""Cases from seeds: limits, and entries whose operations are to meet.

What lives here: the drawing. What must not: what an operation does, and what has to hold
(oracles.py). An operation is drawn from the state before its entry (the simulator's reference has
it), and from what the entry has drawn so far, so that it is more often sensible than not.

As in the simulator's swarm each case leaves out about half of everything: a few kinds of operations
that come often meet more than all kinds at once.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import ModuleType
from typing import Any, Final

from chaos.simulation.checks.reference import Reference, ReferenceClient
from chaos.simulation.plan.limits import (
    CONSTANTS,
    OF_COMPACTION,
    OF_GROUPS,
    OF_IDLE,
    OF_KEY_ORDER,
    OF_LEVELS,
    OF_MANY,
    OF_PATTERNS,
    OF_THE_STORE,
    limited,
    store_limits,
)
from cluster.store.commands import (
    Admit,
    Advance,
    ChangeUser,
    Checkpoint,
    DeleteTopic,
    DropClient,
    DropGroup,
    DropSubscription,
    EndGroup,
    Forget,
    Hear,
    MakeGroup,
    Operation,
    Purge,
    Put,
    Raise,
    Register,
    Seek,
    SeekGroup,
    SetTopic,
    Stamp,
    Subscribe,
    SubscribePattern,
    Take,
    TransferLeader,
    Unsubscribe,
    UnsubscribePattern,
    level_needed,
)
from cluster.store.store import Limits
from cluster.wire.levels import LEVEL_OF_EXPIRY, LEVEL_OF_PROPERTIES
from flotilla_client.policies import COMPACT_KEEPS, FOREVER, KEEPS, UNREAD, WHEN_FULL
from flotilla_client.properties import Enveloped, Properties, encode
from flotilla_client.protocol import LEASE_MS_MIN, USER_CHANGES, lane_of, pack

CLIENTS: Final = ("c0", "c1", "c2", "c3")
STRANGER: Final = "c9"  # nobody registers it
TOPICS: Final = ("a", "b", "t.1", "t.2")
GROUPS: Final = ("g", "h")
PATTERNS: Final = ("*", "t.*", "t.>", ">", "*.1")
PRINCIPALS: Final = ("ann", "bob")
KEYS: Final = ("k", "l", b"k", "")
MEMBERS: Final = {"x": "ix", "y": "iy", "z": "iz"}
ACT_IDS: Final = ("1", "2")
NONSENSE: Final = 0.1  # of what is said is not as the state would have it
SPANS_MS: Final = (1, 5, 30, 100, 400)  # of ages, expiries, delays and steps of the clocks
WALL_MS: Final = 10_000  # where the time of day begins
ENTRIES: Final = (10, 40)
OPERATIONS: Final = (1, 1, 2, 3, 5, 8, 13)
LEFT_OUT: Final = 0.4  # of the kinds, and of the limits
LEVELS_SHARE: Final = 0.15  # of the cases begin at a lower level
TABLES_SHARE: Final = 0.25  # of the cases begin with topics that are compacted
WORK_SHARE: Final = 0.3  # of the cases are of groups, most of all
USERS_SHARE: Final = 0.3  # of the cases have principals
STEADY, RESTLESS = "steady", "restless"
BEFALLS: Final = {  # weights: the last three take a hundred times as long as the others
    STEADY: {"commit": 1.0, "collect": 1.0},
    RESTLESS: {"commit": 4.0, "collect": 4.0, "reopen": 1.0, "crash": 2.0, "install": 0.5},
}

Knobs = Mapping[str, Any]
Befall = tuple[str, str, int]  # which store, what, how much


@dataclass(frozen=True)
class DrawnEntry:
    """An entry of the log, what befalls the stores behind it, and a seed of what is read then."""

    term: int
    stamp: Stamp
    operations: tuple[Operation, ...]
    befalls: tuple[Befall, ...]
    reads: int


@dataclass(frozen=True)
class EntriesCase:
    """Limits (`chaos/simulation/plan/limits.py`, and fields of Limits), and entries."""

    knobs: Knobs
    limits: Mapping[str, int]
    entries: tuple[DrawnEntry, ...]

    def store_limits(self) -> Limits:
        """Return the limits of the stores."""
        return replace(store_limits(self.knobs), **self.limits)

    @property
    def size(self) -> int:
        """How many operations it has."""
        return sum(len(entry.operations) for entry in self.entries)


def case_of(seed: int) -> EntriesCase:
    """Return the case of a seed."""
    rng = random.Random(seed)
    case = EntriesCase(_knobs(rng), _limits(rng), ())
    with limited(case.knobs):
        entries = tuple(_Drawing(rng, Reference(case.store_limits())).entries())
    return replace(case, entries=entries)


def _is_of_the_store(modules: Sequence[ModuleType]) -> bool:
    return all(module.__name__.startswith("cluster.store.") for module in modules)


def _knobs(rng: random.Random) -> dict[str, Any]:
    """Draw the limits that the simulator knows, of the store alone."""
    values: dict[str, Sequence[Any]] = {"chunk_puts": (1, 2, 4)}
    for table in (CONSTANTS, OF_LEVELS, OF_IDLE, OF_COMPACTION, OF_MANY):
        for knob, (modules, _, drawn) in table.items():
            if drawn and _is_of_the_store(modules):
                values[knob] = drawn
    values |= OF_THE_STORE | OF_PATTERNS | OF_KEY_ORDER | OF_GROUPS
    values |= {"topics_max": (1, 2, 4), "idle_step_ms_max": (100, 3_000)}
    del values["offered_max"]  # of the broker
    share = rng.choice((0.0, 0.2, 0.5, 0.9))
    return {knob: rng.choice(each) for knob, each in values.items() if rng.random() < share}


def _limits(rng: random.Random) -> dict[str, int]:
    """Draw the limits that it does not."""
    values = {
        "topic_names_max": (2, 3, 5),
        "clients_max": (2, 3, 5),
        "producers_per_client_max": (1, 2, 5),
        "names_bytes_max": (8, 40),
        "id_max": (6, 30, 100),
    }
    return {name: rng.choice(each) for name, each in values.items() if rng.random() < 0.15}


@dataclass
class _Drawing:
    """Draws the entries of a case; `reference`: the state behind those that were drawn."""

    rng: random.Random
    reference: Reference
    term: int = 1
    stamp: Stamp = field(default_factory=lambda: Stamp(100, WALL_MS))
    added: Counter[str] = field(default_factory=Counter)  # to each topic, by this entry
    counters: dict[tuple[str, str], int] = field(default_factory=dict)  # of this entry, by lane

    def __post_init__(self) -> None:
        rng, self.reference.applied_index = self.rng, 1
        self.level_first = rng.choice((1, 3, 4)) if rng.random() < LEVELS_SHARE else LEVEL_OF_EXPIRY
        self.has_users = rng.random() < USERS_SHARE
        # How often something is said of groups and policies, and of publications.
        self.is_full, self.has_key, self.expires, self.waits, self.is_compacted = (
            rng.choice((0.05, 0.3, 0.9)) for _ in range(5)
        )
        self.is_table = rng.random() < TABLES_SHARE
        if self.is_table:
            self.has_key = self.is_compacted = 0.95
        self.steps = [step for step in (0, *SPANS_MS, 5_000) if rng.random() > LEFT_OUT] or [0]
        self.topics = rng.sample(TOPICS, rng.choice((1, 2, 2, 3, 4)))
        self.clients = rng.sample(CLIENTS, rng.choice((1, 2, 3)))
        kinds = {
            self._subscribe: 3, self._unsubscribe: 1, self._seek: 2, self._put: 8, self._advance: 5,
            self._register: 1, self._subscribe_pattern: 1, self._unsubscribe_pattern: 0.5,
            self._make_group: 2, self._end_group: 0.5, self._take: 6, self._drop_group: 0.3,
            self._seek_group: 2, self._drop_subscription: 0.3, self._drop_client: 0.15,
            self._purge: 1.5, self._set_topic: 3, self._delete_topic: 0.7, self._forget: 0.3,
            self._hear: 0.3, self._change_user: 0.5 * self.has_users, self._others: 0.3,
        }  # fmt: skip
        self.kinds = {
            kind: weight * rng.choice((0.3, 1, 3))
            for kind, weight in kinds.items()
            if rng.random() > LEFT_OUT or kind in (self._put, self._subscribe)
        }
        if rng.random() < WORK_SHARE:
            self.kinds |= {self._take: 15, self._make_group: 3}

    def entries(self) -> Iterator[DrawnEntry]:
        """Yield them; the first ones found the cluster."""
        founding: list[Operation] = [Register(each, True, None, "") for each in self.clients]
        if self.level_first > 1:
            yield self._entry([Raise(self.level_first, True)])
        if self.is_table and self.level_first == LEVEL_OF_EXPIRY:
            table = {"keep": FOREVER, "amount": 0, "compact": True}
            founding += [SetTopic(each, table, True, True) for each in self.topics]
        yield self._entry(founding)
        for _ in range(self.rng.randint(*ENTRIES)):
            self._pass()
            yield self._entry(self._operations())

    def _entry(self, operations: Sequence[Operation]) -> DrawnEntry:
        rng, has_times = self.rng, self.reference.level.now >= LEVEL_OF_PROPERTIES
        stamp = self.stamp if has_times else Stamp(self.stamp.ms)
        befalls = [
            (which, what, rng.choice((1, 1, 2, 100)))
            for which, kinds in BEFALLS.items()
            for what in rng.choices([*kinds], [*kinds.values()], k=rng.choice((0, 0, 0, 1, 2)))
        ]
        entry = DrawnEntry(self.term, stamp, tuple(operations), tuple(befalls), rng.getrandbits(32))
        index = self.reference.applied_index + 1
        self.reference.apply(index, operations, self.term, stamp)
        self.added.clear()
        self.counters.clear()
        return entry

    def _pass(self) -> None:
        """Let clocks go on, stand still, leap or go back; perhaps another one leads."""
        rng, (ms, wall_ms) = self.rng, self.stamp
        ms += rng.choice(self.steps)
        wall_ms += rng.choice(self.steps) * rng.choice((1, 1, 1, 0, -1))
        if rng.random() < 0.05:
            self.term += 1
            ms = rng.choice((0, ms, 2 * ms))
        self.stamp = Stamp(ms, max(1, wall_ms))

    def _operations(self) -> list[Operation]:
        rng, level = self.rng, self.reference.level.now
        if level < LEVEL_OF_EXPIRY and rng.random() < 0.1:
            return [Raise(max(2, level + 1), True)]
        kinds, weights = [*self.kinds], [*self.kinds.values()]
        count = rng.choice(OPERATIONS)
        drawn: list[Operation] = []
        for kind in rng.choices(kinds, weights, k=count):
            operation = kind()
            if level_needed([operation]) > level:
                continue
            drawn.append(operation)
            if isinstance(operation, Put) and not operation.is_delayed:
                self.added[operation.topic] += len(operation.lengths) >> 2
        return drawn

    # --- parts of operations ----------------------------------------------------------------------

    def _said(self, *values: Any) -> Any:
        """Return one of the values, or None: it is not said."""
        return self.rng.choice(values) if self.rng.random() < self.is_full else None

    def _is_nonsense(self) -> bool:
        return self.rng.random() < NONSENSE

    def _client(self, is_known: bool = True) -> str:
        """Return a client, mostly one that there is, or that there is not."""
        if self.rng.random() < 0.01:
            return STRANGER
        found = [each for each in self.clients if (self._known(each) is not None) == is_known]
        return self.rng.choice(self.clients if self._is_nonsense() or not found else found)

    def _topic(self) -> str:
        return self.rng.choice(self.topics)

    def _principal(self) -> str | None:
        return self._said(*PRINCIPALS) if self.has_users else None

    def _known(self, client_id: str) -> ReferenceClient | None:
        return self.reference.client(client_id)

    def _who(self) -> tuple[str, int | None]:
        """Return a client, and the epoch of its process: mostly the right one, or none."""
        client_id = self._client()
        return client_id, self._epoch(client_id)

    def _subscriber(self, topic: str) -> tuple[str, int | None]:
        """Return the same of somebody who subscribes to a topic, if anybody does."""
        found = self.reference.topics.get(topic)
        if found is None or not found.subscribers.now or self._is_nonsense():
            return self._who()
        client_id = self.rng.choice(sorted(found.subscribers.now))
        return client_id, self._epoch(client_id)

    def _epoch(self, client_id: str) -> int | None:
        known = self._known(client_id)
        if known is None or self.rng.random() < 0.5:
            return None
        other = self.rng.choice((1, -1)) if self._is_nonsense() else 0
        return max(0, known.epoch.now + other)

    def _sequence(self, client_id: str) -> int | None:
        known = self._known(client_id)
        if known is None or self.rng.random() < 0.8:
            return None
        return max(0, known.sequence.now + self.rng.choice((-1, 0, 1, 1, 2)))

    def _end(self, topic: str) -> int:
        """Return where a topic ends behind what this entry has drawn."""
        return self.reference.last_id_at(topic, self.reference.applied_index) + self.added[topic]

    def _id(self, topic: str) -> int:
        """Return an id about a place that matters."""
        rng, reference, index = self.rng, self.reference, self.reference.applied_index
        places = [self._end(topic), self._end(topic) - self.added[topic]]
        found = reference.topics.get(topic)
        if found is not None:
            places += [found.unread_from - 1, found.compaction.last_id.now, found.purged.now]
            places += [found.expired.now, found.dropped.now]
            places += [
                cursor
                for client_id in found.subscribers.now
                if (cursor := reference.cursor_at(client_id, topic, index)) is not None
            ]
            places += [reference.groups[topic, name].cursor for name in found.groups.now]
            places.append(rng.randint(0, found.last_id.now))
        return max(0, rng.choice(places) + rng.choice((0, 0, 0, 1, -1, 2)))

    def _start(self, topic: str) -> str | int:
        rng, kind = self.rng, self.rng.random()
        if kind < 0.2:
            return "new"
        if kind < 0.4:
            return "earliest"
        if kind < 0.6:
            return max(1, self._id(topic))
        times = [
            self.stamp.wall_ms,
            self.stamp.wall_ms + rng.choice((-1, 1)) * rng.choice(SPANS_MS),
        ]
        times += [wall_ms for _, wall_ms in self.reference.times[-20:]]
        return f"@{max(0, rng.choice((0, *times)) + rng.choice((0, 0, 1, -1)))}"

    def _act(self) -> tuple[bool, str | None, str, int]:
        """Return `is_root`, `principal`, `act_id` and `at_ms` of an act."""
        rng = self.rng
        act_id = rng.choice(ACT_IDS) if self._is_nonsense() else ""
        return not self._is_nonsense(), self._principal(), act_id, self.stamp.wall_ms

    # --- operations -------------------------------------------------------------------------------

    def _register(self) -> Operation:
        rng, client_id = self.rng, self._client(is_known=self.rng.random() < 0.3)
        fresh = (self._known(client_id) is None) != self._is_nonsense()
        sequence, nonce = self._sequence(client_id), rng.choice(("", "n", "m"))
        return Register(client_id, fresh, sequence, nonce, self._principal())

    def _subscribe(self) -> Operation:
        (client_id, epoch), topic = self._who(), self._topic()
        sequence, start = self._sequence(client_id), self._start(topic)
        return Subscribe(client_id, epoch, topic, sequence, self._principal(), start)

    def _unsubscribe(self) -> Operation:
        topic = self._topic()
        client_id, epoch = self._subscriber(topic)
        sequence = self._sequence(client_id)
        return Unsubscribe(client_id, epoch, topic, sequence, self._principal())

    def _seek(self) -> Operation:
        topic = self._topic()
        client_id, epoch = self._subscriber(topic)
        sequence, start = self._sequence(client_id), self._start(topic)
        return Seek(client_id, epoch, topic, sequence, start, self._principal())

    def _subscribe_pattern(self) -> Operation:
        rng, (client_id, epoch) = self.rng, self._who()
        sequence, start = self._sequence(client_id), rng.choice(("new", "earliest"))
        quotas = rng.choice((0, 0, 1, 2)), rng.choice((0, 0, 1, 3))
        pattern = rng.choice(PATTERNS)
        return SubscribePattern(
            client_id, epoch, pattern, sequence, start, *quotas, self._principal()
        )

    def _unsubscribe_pattern(self) -> Operation:
        client_id, epoch = self._who()
        sequence, pattern = self._sequence(client_id), self.rng.choice(PATTERNS)
        return UnsubscribePattern(client_id, epoch, pattern, sequence, self._principal())

    def _put(self) -> Operation:
        rng, (client_id, epoch), topic = self.rng, self._who(), self._topic()
        level = self.reference.level.now
        is_delayed = level >= LEVEL_OF_EXPIRY and rng.random() < self.waits / 2
        lane = lane_of(topic, is_delayed)
        batch = [self._publication(level, is_delayed) for _ in range(rng.choice((1, 1, 2, 4)))]
        known = self._known(client_id)
        producer = known.producers.get(lane) if known else None
        last = -1 if producer is None else producer.counter.now
        last = self.counters.get((client_id, lane), last)
        counter = max(0, last + (rng.choice((2, 0, -1)) if self._is_nonsense() else 1))
        if counter == last + 1:
            self.counters[client_id, lane] = last + len(batch)
        has_properties = any(isinstance(each, Enveloped) for each in batch)
        has_expiry = any(each[:1] == b"\x01" and each[3] == 5 for each in batch if has_properties)
        is_of_expiry = has_properties and has_expiry and level >= LEVEL_OF_EXPIRY
        return Put(
            client_id, epoch, topic, counter, *pack(batch), self._principal(), has_properties,
            is_of_expiry, is_delayed,
        )  # fmt: skip

    def _publication(self, level: int, is_delayed: bool) -> bytes:
        rng = self.rng
        data = b"." + rng.randbytes(rng.choice((0, 1, 3, 10, 40)))
        if level < LEVEL_OF_PROPERTIES:
            return data
        key = rng.choice(KEYS) if rng.random() < self.has_key else None
        headers = {"h": "v" * rng.choice((1, 30))} if rng.random() < self.is_full / 4 else {}
        expires = rng.choice(SPANS_MS) if rng.random() < self.expires else 0
        expires = expires if level >= LEVEL_OF_EXPIRY else 0
        delay = rng.choice(SPANS_MS) if is_delayed else 0
        envelope = encode(Properties(key, headers, expires, delay))
        return Enveloped(envelope + data) if envelope else data

    def _advance(self) -> Operation:
        rng, (client_id, epoch) = self.rng, self._subscriber(self._topic())
        names = rng.sample(self.topics, rng.randint(1, len(self.topics)))
        known = self._known(client_id)
        if known is not None and not self._is_nonsense():
            own = [*known.topics_at(self.reference.applied_index)]
            names = rng.sample(own, rng.randint(1, len(own))) if own else names[:1]
        cursors = {name: min(self._end(name), self._id(name)) for name in names}
        placed = known.placed_at(self.reference.applied_index) if known else {}
        placed = {name: placed[name] for name in cursors if name in placed}
        if self._is_nonsense():  # but for what this entry has placed
            placed = dict.fromkeys(cursors, self.reference.applied_index + 1)
        return Advance(client_id, epoch, cursors, self._principal(), placed)

    def _make_group(self) -> Operation:
        rng, (client_id, epoch), topic = self.rng, self._who(), self._topic()
        others = [each for each in self.topics if each != topic]
        max_attempts = self._said(0, 1, 1, 2)
        dead_letter = self._said("")
        if max_attempts and others and not self._is_nonsense():
            dead_letter = rng.choice(others)
        return MakeGroup(
            client_id, epoch, topic, self._sequence(client_id), rng.choice(GROUPS),
            self._said(LEASE_MS_MIN, 3 * LEASE_MS_MIN), max_attempts, dead_letter,
            self._principal(), self._said(True, True, False), self._start(topic),
        )  # fmt: skip

    def _end_group(self) -> Operation:
        (client_id, epoch), topic, group = self._who(), *self._group()
        sequence = self._sequence(client_id)
        return EndGroup(client_id, epoch, topic, sequence, group, self._principal())

    def _group(self) -> tuple[str, str]:
        """Return the topic and the name of a group, mostly of one that there is."""
        rng, known = self.rng, sorted(self.reference.groups)
        if known and not self._is_nonsense():
            return rng.choice(known)
        return self._topic(), rng.choice(GROUPS)

    def _take(self) -> Operation:
        if not self.reference.groups and not self._is_nonsense():
            return self._make_group()
        rng, (client_id, epoch), (topic, name) = self.rng, self._who(), self._group()
        group = self.reference.groups.get((topic, name))
        number = None
        rows: list[list[int]] = []
        if group is not None:
            if rng.random() < 0.7:
                last = group.takes.get(client_id)
                number = max(1, (last.number if last else 0) + rng.choice((1, 1, 1, 0, -1, 2)))
            rows = [[had.token, id_, id_] for id_, had in group.open.items() if had.by == client_id]
            head, token = group.head, group.token
            rows.append([token + 1, head + 1, head + rng.choice((1, 2, 4))])  # of this entry
        settled = {"acks": list[list[int]](), "naks": [], "extends": []}
        for row in rows:
            if rng.random() < 0.6:
                kind = rng.choice(("acks", "acks", "naks", "extends"))
                ms = {"acks": [], "naks": [rng.choice((0, *SPANS_MS))]}
                settled[kind].append([*row, *ms.get(kind, [rng.choice((100, 400))])])
        max_bytes = rng.choice((1, 20, 100, 10_000))
        return Take(
            client_id, epoch, topic, name, number, rng.choice((0, 1, 1, 2, 5, 100)), max_bytes,
            self._said(LEASE_MS_MIN), **settled, principal=self._principal(),
        )  # fmt: skip

    def _drop_group(self) -> Operation:
        return DropGroup(*self._group(), *self._act())

    def _seek_group(self) -> Operation:
        topic, name = self._group()
        return SeekGroup(topic, name, self._start(topic), *self._act())

    def _drop_subscription(self) -> Operation:
        topic = self.rng.choice((*self.topics, *PATTERNS))
        return DropSubscription(self._client(), topic, *self._act())

    def _drop_client(self) -> Operation:
        return DropClient(self._client(), *self._act())

    def _purge(self) -> Operation:
        topic = self._topic()
        return Purge(topic, min(self._end(topic), self._id(topic)), *self._act())

    def _set_topic(self) -> Operation:
        rng, topic = self.rng, self._topic()
        found = self.reference.topics.get(topic)
        policy = None if found is None else found.policy.now
        is_new = (policy is None) != self._is_nonsense()
        is_compacted = rng.random() < self.is_compacted if policy is None else policy.compact
        parts: dict[str, Any] = {"compact": True} if is_new and is_compacted else {}
        if is_compacted != self._is_nonsense() or rng.random() < 0.8:
            keep = rng.choice(COMPACT_KEEPS if is_compacted else KEEPS)
            amount = 0 if keep in (UNREAD, FOREVER) else rng.choice((1, 3, 30, 100, 400))
            parts |= {"keep": keep, "amount": amount}
        if rng.random() < self.is_full:
            parts["max_bytes"] = rng.choice((0, 5, 30, 100, 300))
            if parts["max_bytes"] and not is_compacted:
                parts["when_full"] = rng.choice(WHEN_FULL)
        others = [each for each in self.topics if each != topic]
        dead_letter = self._said("", *others)
        if dead_letter is not None:
            parts["dead_letter"] = dead_letter
        return SetTopic(topic, parts, is_new, *self._act())

    def _delete_topic(self) -> Operation:
        return DeleteTopic(self._topic(), not self._is_nonsense(), *self._act())

    def _hear(self) -> Operation:
        return Hear(self.rng.sample(self.clients, self.rng.randint(0, len(self.clients))))

    def _forget(self) -> Operation:
        return Forget([self._client()], self.rng.choice((0, 50, 400, 10_000)))

    def _change_user(self) -> Operation:
        rng, changes = self.rng, sorted(USER_CHANGES)
        rights: list[list[str]] = [rng.sample(PATTERNS, rng.choice((0, 1, 2))) for _ in range(2)]
        flags = rng.random() < 0.3, rng.random() < 0.3
        user = rng.choice((*PRINCIPALS, "*"))
        return ChangeUser(rng.choice(changes), user, *rights, *flags, *self._act())

    def _others(self) -> Operation:
        others: tuple[Callable[[], Operation], ...] = (
            lambda: Admit(self.rng.choice("xyz"), f"i{self.rng.randrange(3)}"),
            lambda: TransferLeader("", "x", *self._act()),
            lambda: Checkpoint(*self._act()),
        )
        return self.rng.choice(others)()
