"""What the cluster's state is, by the protocol alone: a second, dumb implementation of the store.

What lives here: clients, topics, subscriptions, producers, publications and users as dictionaries,
what each operation of the log does to them, and how each stood at any index. What must not: the
product's store, a database, nodes, replies (replies.py holds those against this).

Written from docs/protocol.md, so that a rule which the store has wrong is wrong in one of two.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from struct import unpack
from typing import Any, Final, Generic, TypeVar

import orjson

from chaos.simulation.checks.reference_groups import (
    TOKENS_PER_ENTRY,
    ReferenceGroup,
    Taking,
    dead_letter,
)
from cluster.log.entries import FIRST_INDEX
from cluster.store import clients, compaction, delayed, idle, retention
from cluster.store.commands import (
    Administration,
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
    OfPatterns,
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
)
from cluster.store.store import Limits
from flotilla_client.policies import Policy
from flotilla_client.properties import decode

INTEGER_MAX: Final = 2**53 - 1
LEVEL_OF_USERS: Final = 3
LEVEL_OF_IDLE: Final = 3
LEVEL_OF_ACTS: Final = 3
LEVEL_OF_PROPERTIES: Final = 4
LEVEL_OF_NAMES: Final = 4
LEVEL_OF_DEAD_LETTERS: Final = 5
HAS_PROPERTIES: Final = 2**31
NEVER: Final = 2**53 - 1  # when what has no expiry has expired
EXPIRY_TAG: Final = 5  # docs/protocol.md: a uint64 of milliseconds follows
DELAY_TAG: Final = 6  # the same, behind the expiry
LANE: Final = "\x1fdelayed"  # behind a topic's name: under which counters what is delayed stands
SPANS_MAX: Final = 64
NOT_ITS_OWN: Final = "client_id"

# Of a policy that are always told; the others where they say something.
TOLD_PARTS: Final = frozenset({"keep", "amount", "max_bytes", "when_full"})

ACTS: Final[Mapping[type, str]] = {
    ChangeUser: "user",
    DropSubscription: "drop-subscription",
    DropClient: "drop-client",
    DropGroup: "drop-group",
    SeekGroup: "seek-group",
    Purge: "purge",
    TransferLeader: "transfer-leader",
    Checkpoint: "checkpoint",
    SetTopic: "topic",
    DeleteTopic: "topic-delete",
}

V = TypeVar("V")
# What an operation comes to: ("", the ACK's body) or (the NAK's code, its details).
Result = tuple[str, dict[str, Any]]


class ByIndex(Generic[V]):
    """A value over the indexes of the log."""

    __slots__ = ("_indexes", "_values")

    def __init__(self, before: V) -> None:
        self._indexes: list[int] = [0]
        self._values: list[V] = [before]

    @property
    def now(self) -> V:
        """The newest value."""
        return self._values[-1]

    def put(self, index: int, value: V) -> None:
        """Set it from the entry at `index` on."""
        if self._indexes[-1] == index:
            self._values[-1] = value
        else:
            self._indexes.append(index)
            self._values.append(value)

    def at(self, index: int) -> V:
        """Return what it was behind the entry at `index`."""
        return self._values[bisect_right(self._indexes, index) - 1]

    def since(self, first: int, last: int) -> Sequence[int]:
        """Return the indexes behind `first`, up to `last`, at which it was set."""
        indexes = self._indexes
        return indexes[bisect_right(indexes, first) : bisect_right(indexes, last)]

    def during(self, first: int, last: int) -> Iterator[V]:
        """Yield what it was behind any entry from `first` to `last`."""
        start = bisect_right(self._indexes, first) - 1
        yield from self._values[start : bisect_right(self._indexes, last)]


@dataclass(slots=True)
class ReferenceProducer:
    """A client's counters of one topic; `puts`: (first counter, count, first id) of the last."""

    counter: ByIndex[int]
    puts: list[tuple[int, int, int]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class ReferencePattern:
    """A subscription to a pattern, made by the entry `at`; `missed`: a topic without room."""

    at: int
    principal: str | None
    topics_max: int
    subscriptions_max: int
    missed: str = ""


def fits_pattern(pattern: str, topic: str) -> bool:
    """Return whether a topic is of a pattern; one that looks like a pattern itself is of none."""
    return not set("*>") & set(topic) and _fits(pattern, topic)


def _fits(pattern: str, name: str) -> bool:
    *words, last = pattern.split(".")
    each = [r"[^.]*" if word == "*" else re.escape(word) for word in words]
    each.append({"*": r"[^.]*", ">": r".*"}.get(last, re.escape(last)))
    return bool(re.fullmatch(r"\.".join(each), name, re.DOTALL))


@dataclass(slots=True)
class ReferenceClient:
    """A client; `producers` by topic, `cursors` by topic (None: not subscribed).

    `epoch` 0: there is none yet, or it was forgotten. `heard`: in which unit of the log's time.
    `patterns` by their text; `brought`: topics that it subscribes to by these alone. `ended`: by
    topic, behind which entries a subscription of it has ended.
    """

    epoch: ByIndex[int]
    sequence: ByIndex[int]
    nonce: str
    owner: ByIndex[str | None] = field(default_factory=lambda: ByIndex(None))
    names_bytes: int = 0
    heard: int = 0
    producers: dict[str, ReferenceProducer] = field(default_factory=dict)
    cursors: dict[str, ByIndex[int | None]] = field(default_factory=dict)
    placed: dict[str, ByIndex[int]] = field(default_factory=dict)  # by topic: by which entry
    patterns: ByIndex[Mapping[str, ReferencePattern]] = field(default_factory=lambda: ByIndex({}))
    brought: set[str] = field(default_factory=set)
    ended: dict[str, list[int]] = field(default_factory=dict)

    def has_left_between(self, topic: str, first: int, last: int) -> bool:
        """Return whether its subscription has ended behind the entry `first`, and up to `last`.

        It may have come again. A node that is at `last` knows nothing of what ends later.
        """
        return any(first < at <= last for at in self.ended.get(topic, ()))

    def missed_at(self, index: int) -> dict[str, str]:
        """Return {pattern: topic} of the patterns that have missed one."""
        patterns = self.patterns.at(index).items()
        return {text: each.missed for text, each in patterns if each.missed}

    def placed_at(self, index: int) -> dict[str, int]:
        """Return {topic: entry} of its subscriptions that an entry has placed."""
        found = {topic: self.placed[topic].at(index) for topic in self.topics_at(index)}
        return {topic: placed for topic, placed in found.items() if placed}

    def producers_at(self, index: int) -> int:
        """Return to how many topics it had put behind the entry at `index`."""
        return sum(each.counter.at(index) >= 0 for each in self.producers.values())

    def topics_at(self, index: int) -> dict[str, int]:
        """Return {topic: cursor} of its subscriptions behind the entry at `index`."""
        found = ((topic, past.at(index)) for topic, past in self.cursors.items())
        return {topic: cursor for topic, cursor in found if cursor is not None}


@dataclass(slots=True)
class ReferenceSizes:
    """Where a topic's publications stand in bytes and in time, as docs/protocol.md has it.

    `parts`: [last id, bytes up to there of all that was ever put, the log's time of the last].
    `put_bytes`: all that was ever put. `base`: what of it lies wholly below the floor.
    """

    put_bytes: int = 0
    base: int = 0
    kept: int = 0  # up to which id the policy keeps nothing
    parts: list[list[int]] = field(default_factory=list)

    def put(self, policy: Policy, last_id: int, log_ms: int) -> None:
        """Let a batch be part of the last part, or a new one."""
        if not _measures(policy):
            return
        if self.parts and self._has_room(policy, log_ms):
            self.parts.pop()
        self.parts.append([last_id, self.put_bytes, log_ms])
        while len(self.parts) > retention.STRETCHES_MAX:
            older = self.parts[: retention.STRETCHES_MAX // 2]
            newer = self.parts[retention.STRETCHES_MAX // 2 :]
            self.parts = [each for place, each in enumerate(older) if place % 2] + newer

    def _has_room(self, policy: Policy, log_ms: int) -> bool:
        begin = self.parts[-2][1] if len(self.parts) > 1 else self.base
        last_bytes, last_ms = self.parts[-1][1:]
        limits = [each for each in (policy.max_bytes,) if each]
        if policy.keep == "bytes":
            limits.append(policy.amount)
        if limits and last_bytes - begin >= max(1, min(limits) // retention.PARTS):
            return False
        unit = max(1, policy.amount // retention.PARTS)
        return policy.keep != "ms" or last_ms // unit == log_ms // unit

    def find_kept(self, policy: Policy, last_id: int, log_ms: int) -> None:
        """Find what the policy keeps now."""
        gone = [0]
        if policy.keep == "unread":
            gone.append(last_id)
        elif policy.keep == "count":
            gone.append(last_id - policy.amount)
        elif policy.keep == "bytes":
            over = self.put_bytes - policy.amount
            gone += [part[0] for part in self.parts if part[1] <= over]
        elif policy.keep == "ms":
            gone += [part[0] for part in self.parts if part[2] + policy.amount <= log_ms]
        self.kept = max(gone) if policy.keep in ("unread", "count") else max(self.kept, *gone)

    def forget(self, floor: int) -> None:
        """Forget the parts that are wholly below the floor."""
        while self.parts and self.parts[0][0] <= floor:
            self.base = self.parts.pop(0)[1]

    def drop(self, most: int) -> int:
        """Drop parts, the oldest first, until no more than so many bytes are left."""
        dropped = 0
        while self.parts and self.put_bytes - self.base > most:
            dropped, self.base, _ = self.parts.pop(0)
        return dropped


def _measures(policy: Policy) -> bool:
    return bool(policy.max_bytes) or policy.keep in ("bytes", "ms")


@dataclass(slots=True)
class ReferenceCompaction:
    """What of a topic is compacted: all up to `last_id`, of which `latest` stays, by key or id.

    `replaced`: by id the next one of its key. `read_bytes`: how many of those ever put stand in
    entries before that behind `last_id`.
    """

    last_id: ByIndex[int] = field(default_factory=lambda: ByIndex(0))
    latest: dict[Any, int] = field(default_factory=dict)
    replaced: dict[int, int] = field(default_factory=dict)
    read_bytes: int = 0
    is_there: bool = False
    held: ByIndex[int] = field(default_factory=lambda: ByIndex(0))

    def is_gone_at(self, id_: int, index: int) -> bool:
        """Return whether a later one has replaced it behind the entry at `index`."""
        by = self.replaced.get(id_, 0)
        return 0 < by <= self.last_id.at(index)


@dataclass(slots=True)
class ReferenceTopic:
    """A topic; `publications` by id, with the entry that brought them.

    `enveloped`: of those with properties, how many bytes of each are the envelope. `keys`: of those
    that were asked for theirs; what an id brought once it keeps.
    """

    last_id: ByIndex[int]
    publications: dict[int, tuple[int, bytes]] = field(default_factory=dict)
    enveloped: dict[int, int] = field(default_factory=dict)
    keys: dict[int, str | bytes | None] = field(default_factory=dict)
    subscribers: ByIndex[frozenset[str]] = field(default_factory=lambda: ByIndex(frozenset()))
    groups: ByIndex[frozenset[str]] = field(default_factory=lambda: ByIndex(frozenset()))
    purged: ByIndex[int] = field(default_factory=lambda: ByIndex(0))  # up to which id
    unread_from: int = 1  # the first id that somebody still wants, or a policy keeps
    policy: ByIndex[Policy | None] = field(default_factory=lambda: ByIndex(None))
    dropped: ByIndex[int] = field(default_factory=lambda: ByIndex(0))  # up to which id
    floor: ByIndex[int] = field(default_factory=lambda: ByIndex(0))  # up to where nothing is kept
    sizes: ReferenceSizes = field(default_factory=lambda: ReferenceSizes())
    over: dict[int, int] = field(default_factory=dict)  # by id: when, by the log's time, it expires
    expires: bool = False  # something was put that does
    spans: list[list[int]] = field(default_factory=list)  # [last id, when all of it has expired]
    expired: ByIndex[int] = field(default_factory=lambda: ByIndex(0))  # up to which id
    places: int = 0  # how many publications were ever delayed
    delayed: ByIndex[int] = field(default_factory=lambda: ByIndex(0))  # how many of them wait
    compaction: ReferenceCompaction = field(default_factory=lambda: ReferenceCompaction())

    def note(self, first_id: int, last_id: int) -> None:
        """Note when a batch has expired: with its last publication, if each one does."""
        ends = [self.over.get(each, NEVER) for each in range(first_id, last_id + 1)]
        if not self.expires:
            if NEVER in ends:
                return
            self.expires = True
            if self.unread_from < first_id:
                self.spans = [[first_id - 1, NEVER]]
        if self.spans and self.spans[-1][1] == max(ends):
            self.spans[-1][0] = last_id
            return
        self.spans.append([last_id, max(ends)])
        if len(self.spans) > SPANS_MAX:
            older, newer = self.spans[: SPANS_MAX // 2], self.spans[SPANS_MAX // 2 :]
            joined = [
                [older[place + 1][0], max(older[place][1], older[place + 1][1])]
                for place in range(0, len(older), 2)
            ]
            self.spans = joined + newer

    def exists_at(self, index: int) -> bool:
        """Return whether there is such a topic behind the entry at `index`."""
        wanted = self.subscribers.at(index) or self.groups.at(index)
        return bool(wanted) or self.policy.at(index) is not None

    @property
    def is_compacted(self) -> bool:
        """Whether of each key the last publication stays."""
        return self.policy.now is not None and self.policy.now.compact

    @property
    def exists(self) -> bool:
        """Whether there is such a topic now."""
        wanted = self.subscribers.now or self.groups.now
        return bool(wanted) or self.policy.now is not None

    @property
    def stores(self) -> bool:
        """Whether what is published is stored."""
        policy = self.policy.now
        wanted = self.subscribers.now or self.groups.now
        return bool(wanted) or (policy is not None and policy.keep != "unread")


@dataclass(slots=True)
class ReferenceWaiting:
    """Neighbours of a PUT with one delay: a topic's publications from `place` on, due then.

    `batch`: each with the size of its envelope. `is_dropped`: they went with their topic.
    """

    due_ms: int
    number: int
    place: int
    name: str
    batch: list[tuple[bytes, int]]
    is_dropped: bool = False

    @property
    def size_bytes(self) -> int:
        """What they take of a topic's bytes."""
        return sum(len(publication) + 4 for publication, _ in self.batch)


@dataclass(frozen=True, slots=True)
class ReferenceUser:
    """What a principal may do: `may` and `may_not` hold (right, pattern)."""

    may: frozenset[tuple[str, str]] = frozenset()
    may_not: frozenset[tuple[str, str]] = frozenset()
    observe: bool = False
    admin: bool = False

    def has(self, right: str, topic: str) -> bool:
        """Return whether it may publish or subscribe to a topic."""
        return any(
            kind == right and _fits(pattern, topic) for kind, pattern in self.may
        ) and not any(kind == right and _fits(pattern, topic) for kind, pattern in self.may_not)


ReferenceUsers = Mapping[str, ReferenceUser]


class Reference:
    """The state behind the entries that were applied so far, `applied_index` the last of them."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.applied_index = FIRST_INDEX  # every log begins with it; it says nothing
        self.clients: dict[str, ReferenceClient] = {}
        self.topics: dict[str, ReferenceTopic] = {}
        self.groups: dict[tuple[str, str], ReferenceGroup] = {}  # by topic and name
        # Groups that were given what had been given before, as they were moved or made anew.
        self.moved_groups: set[tuple[str, str]] = set()
        # How long each lease is that was given, by topic, group and token.
        self.lease_ms: dict[tuple[str, str, int], int] = {}
        self.waiting: list[ReferenceWaiting] = []  # what is delayed
        self.gone_epoch = 0  # the highest of clients that are gone
        self.group_rows: dict[tuple[str, str], ByIndex[dict[str, Any] | None]] = {}
        self.level: ByIndex[int] = ByIndex(1)
        self.users: ByIndex[ReferenceUsers] = ByIndex({})
        self.log_ms = 0  # the log's time: what has passed between entries of one leader
        self.log_times: ByIndex[int] = ByIndex(0)
        self.forgotten: ByIndex[int] = ByIndex(0)  # how many clients, ever
        self.gone: dict[str, tuple[int, tuple[str, ...]]] = {}  # at which index, with which topics
        self.results: dict[int, list[Result | None]] = {}  # of each entry's operations
        self._entry_ms = 0  # what the entry that is being applied stamps its publications
        self.times: list[tuple[int, int]] = []  # of entries: what their publications are stamped
        self._stamped = (0, 0)  # term and stamp of the last entry that has a time
        self.acts: list[tuple[int, str]] = []  # entry and name of each act that was carried out
        self._done: dict[str, tuple[Any, Result]] = {}  # by the act's id: who, what; its answer
        self._members: dict[str, str] = {}
        self._handlers: dict[type, Any] = {
            Register: self._register,
            Subscribe: self._subscribe,
            Unsubscribe: self._unsubscribe,
            SubscribePattern: self._subscribe_pattern,
            UnsubscribePattern: self._unsubscribe_pattern,
            Put: self._put,
            Advance: self._advance,
            MakeGroup: self._make_group,
            EndGroup: self._end_group,
            Take: self._take_leases,
            Seek: self._seek,
            **dict.fromkeys(ACTS, self._act),
            Raise: self._raise,
            Admit: self._admit,
            Hear: self._hear,
            Forget: self._forget,
        }
        self._acts: dict[type, Any] = {
            ChangeUser: self._change_user,
            DropSubscription: self._drop_subscription,
            DropClient: self._drop_client,
            DropGroup: self._drop_group,
            SeekGroup: self._seek_group,
            Purge: self._purge,
            TransferLeader: lambda index, asked: ("", {"node": asked.chosen}),
            Checkpoint: lambda index, asked: ("", {"index": index}),
            SetTopic: self._set_topic,
            DeleteTopic: self._delete_topic,
        }

    def apply(
        self,
        index: int,
        operations: Sequence[Operation],
        term: int = 0,
        stamp: Stamp | None = None,
    ) -> list[Result | None]:
        """Carry out the entry at `index`; None: the operation is no client's.

        `stamp`: when its leader says that it was made; None: Raft's own, which has no time.
        """
        self.applied_index = index
        if stamp is not None and self.level.now >= LEVEL_OF_IDLE:
            self._pass_to(term, stamp.ms)
            self.log_times.put(index, self.log_ms)
            for name, topic in self.topics.items():
                before = -1
                while before != topic.unread_from:  # what is too old may stand before what is over
                    before = topic.unread_from
                    self._expire(index, name, topic)
                    policy = topic.policy.now
                    if policy is not None and policy.keep == "ms":
                        topic.sizes.find_kept(policy, topic.last_id.now, self.log_ms)
                        self._find_unread(name)
        if stamp is not None:
            self._compact(index)
            self._entry_ms = max(self.times[-1][1] if self.times else 0, stamp.wall_ms)
            self._let_in(index)
        handlers = self._handlers
        results = [handlers.get(type(each), _nobodys)(index, each) for each in operations]
        if stamp is not None and self.level.now >= LEVEL_OF_PROPERTIES:
            before_ms = self.times[-1][1] if self.times else 0
            self.times.append((index, max(before_ms, stamp.wall_ms)))
        self.results[index] = results
        for topic in self.topics.values():
            if topic.is_compacted:
                topic.compaction.held.put(index, self.held_bytes(topic))
        self._note_groups(index)
        return results

    # --- what is delayed --------------------------------------------------------------------------

    def _let_in(self, index: int) -> None:
        """Let what is due be in its topic, by due time, topic and place: so much an entry."""
        if not self.waiting:
            return
        due = sorted(
            (row for row in self.waiting if row.due_ms <= self.log_ms),
            key=lambda row: (row.due_ms, row.number, row.place),
        )
        size_bytes = 0
        for taken, row in enumerate(due):
            size_bytes += row.size_bytes
            is_over = taken >= delayed.DUE_ROWS_MAX or size_bytes > delayed.DUE_BYTES_MAX
            if taken and is_over:
                break
            self.waiting.remove(row)
            topic = self.topics[row.name]
            if not row.is_dropped:
                topic.delayed.put(index, topic.delayed.now - len(row.batch))
                if topic.exists and topic.stores:
                    self._store(index, row.name, topic, row.batch)
        gone = sorted(
            (row for row in self.waiting if row.is_dropped), key=lambda row: (row.number, row.place)
        )
        of_first = [row for row in gone if row.number == gone[0].number]
        for row in of_first[: delayed.DROPPED_ROWS_MAX]:
            self.waiting.remove(row)

    def waiting_bytes(self, name: str) -> int:
        """Return how many bytes of a topic wait."""
        return sum(each.size_bytes for each in self._waiting_of(name))

    def _waiting_of(self, name: str) -> list[ReferenceWaiting]:
        return [row for row in self.waiting if row.name == name and not row.is_dropped]

    def _delay(self, index: int, name: str, batch: Sequence[tuple[bytes, int]]) -> int:
        """Have a batch wait; return its first place."""
        topic, number = self.topics[name], list(self.topics).index(name)
        first, last_due = topic.places + 1, -1
        for publication, envelope in batch:
            topic.places += 1
            at = 12 if publication[3] == EXPIRY_TAG else 3
            assert envelope > at, publication
            assert publication[at] == DELAY_TAG, publication
            due = self.log_ms + int.from_bytes(publication[at + 1 : at + 9], "little")
            if due == last_due:
                self.waiting[-1].batch.append((publication, envelope))
            else:
                row = ReferenceWaiting(due, number, topic.places, name, [(publication, envelope)])
                self.waiting.append(row)
            last_due = due
        topic.delayed.put(index, topic.delayed.now + len(batch))
        return first

    # --- what is compacted ------------------------------------------------------------------------

    def _compact(self, index: int) -> None:
        """Do a step of one topic: those in which there is something to do take turns."""
        due = [name for name, topic in self.topics.items() if self._may_be_compacted(name, topic)]
        if not due:
            return
        name = due[index % len(due)]
        topic, kept = self.topics[name], self.topics[name].compaction
        floor = topic.unread_from - 1 if topic.exists else topic.last_id.now
        swept = sorted(id_ for id_ in kept.latest.values() if id_ <= floor)
        swept = swept[: compaction.SWEPT_MAX]
        kept.latest = {by: id_ for by, id_ in kept.latest.items() if id_ not in swept}
        kept.is_there = topic.exists or bool(kept.latest)
        if not topic.is_compacted:
            if not kept.is_there:
                kept.last_id.put(index, 0)
                kept.read_bytes = 0
            return
        first = max(floor, kept.last_id.now) + 1
        last = first - 1
        found: dict[Any, int] = {}
        size_bytes = 0
        key_of = self._key_of(name)
        for id_ in range(first, max(floor, self._read_to(name)) + 1):
            size_bytes += len(topic.publications[id_][1])
            key = key_of(id_)
            by = id_ if key is None else (type(key), key)
            is_full = by not in found and len(found) == compaction.KEPT_MAX
            is_full = is_full or id_ - first == compaction.LOOKED_MAX
            if is_full or (found and size_bytes > compaction.BYTES_MAX):
                break
            before = found.get(by) or kept.latest.get(by)
            if before is not None:
                kept.replaced[before] = id_
            found[by] = last = id_
        kept.latest |= found
        kept.last_id.put(index, last)
        kept.read_bytes = self._bytes_before(topic, last + 1)

    def _may_be_compacted(self, name: str, topic: ReferenceTopic) -> bool:
        kept = topic.compaction
        if not topic.exists:
            return kept.is_there
        if any(id_ < topic.unread_from for id_ in kept.latest.values()):
            return True
        if not topic.is_compacted:  # as most are: who has read how far does not matter
            return False
        return max(topic.unread_from - 1, self._read_to(name)) > kept.last_id.now

    def _read_to(self, name: str) -> int:
        """Return up to which id all have read that subscribe to a topic, groups as well."""
        topic = self.topics[name]
        cursors = [self.clients[each].cursors[name].now or 0 for each in topic.subscribers.now]
        cursors += [self.groups[name, each].cursor for each in topic.groups.now]
        return min(cursors, default=topic.last_id.now)

    @staticmethod
    def held_bytes(topic: ReferenceTopic) -> int:
        """Return what a compacted topic holds: what stays of it, and all behind that."""
        kept = topic.compaction
        stays = sum(len(topic.publications[each][1]) + 4 for each in kept.latest.values())
        return stays + topic.sizes.put_bytes - max(kept.read_bytes, topic.sizes.base)

    def is_compacted_at(self, name: str, id_: int, index: int) -> bool:
        """Return whether a publication has been compacted away behind the entry at `index`."""
        return self.topics[name].compaction.is_gone_at(id_, index)

    def row_at(self, name: str, id_: int, index: int) -> int:
        """Return what tells the row of a publication from others behind the entry at `index`."""
        topic = self.topics[name]
        is_alone = id_ <= topic.compaction.last_id.at(index)
        return -id_ if is_alone else topic.publications[id_][0]

    # --- what expires -----------------------------------------------------------------------------

    def _expire(self, index: int, name: str, topic: ReferenceTopic) -> None:
        """Let the oldest of a topic be over; what no group has looked at may be a dead letter."""
        over = 0
        while topic.spans and topic.spans[0][1] <= self.log_ms:
            over = topic.spans.pop(0)[0]
        if over:
            topic.expired.put(index, over)
            self._find_unread(name)
            for group in topic.groups.now:
                self._pass_expired(name, self.groups[name, group])

    def _pass_expired(self, name: str, group: ReferenceGroup) -> None:
        expired = self.topics[name].expired.now
        if not group.max_attempts and group.head < expired:
            group.head = expired
            self._find_unread(name)

    def is_over_at(self, name: str, id_: int, index: int) -> bool:
        """Return whether a publication has expired behind the entry at `index`."""
        return self.topics[name].over.get(id_, NEVER) <= self.log_times.at(index)

    def expired_at(self, name: str, index: int) -> int:
        """Return up to which id all of a topic has expired behind the entry at `index`."""
        found = self.topics.get(name)
        return 0 if found is None else found.expired.at(index)

    def client(self, client_id: str) -> ReferenceClient | None:
        """Return a client that there is."""
        client = self.clients.get(client_id)
        return None if client is None or not client.epoch.now else client

    # --- who is silent ----------------------------------------------------------------------------

    def _pass_to(self, term: int, stamp_ms: int) -> None:
        """Two leaders' clocks have nothing to do with each other; nor have a clock's leaps."""
        last_term, last_ms = self._stamped
        if term == last_term and stamp_ms > last_ms:
            self.log_ms += min(stamp_ms - last_ms, idle.STEP_MS_MAX)
        self._stamped = term, stamp_ms

    def _note(self, client: ReferenceClient) -> None:
        client.heard = max(client.heard, self.log_ms // idle.HEARD_MS)

    def _hear(self, index: int, asked: Hear) -> None:
        for client_id in asked.client_ids:
            client = self.client(client_id)
            if client is not None:
                self._note(client)

    def _forget(self, index: int, asked: Forget) -> Result:
        gone: dict[str, tuple[str, ...]] = {}
        for client_id in asked.client_ids:
            client = self.client(client_id)
            if client is None:
                continue
            # It may have been heard at the end of the unit that is noted.
            if self.log_ms - (client.heard + 1) * idle.HEARD_MS < asked.silent_ms:
                continue
            gone[client_id] = self._remove(index, client_id, client)
        return "", {"forgotten": [*gone], "left": sorted({*chain.from_iterable(gone.values())})}

    def _remove(self, index: int, client_id: str, client: ReferenceClient) -> tuple[str, ...]:
        """Forget a client for good; return what it subscribed to."""
        topics = tuple(client.topics_at(index))
        for topic in topics:
            self._end(index, client, client_id, topic)
        client.patterns.put(index, {})
        self._release(client_id, is_gone=True)
        if self.level.now >= LEVEL_OF_NAMES:  # its id may be given again
            self.gone_epoch = max(self.gone_epoch, client.epoch.now)
        client.epoch.put(index, 0)
        client.owner.put(index, None)
        self.forgotten.put(index, self.forgotten.now + 1)
        self.gone[client_id] = index, topics
        return topics

    def unknown_at(self, index: int) -> str:
        """Return how who is no client is refused: which ids were forgotten is not kept."""
        return "forgotten" if self.forgotten.at(index) else "unknown_client"

    # --- who may what -----------------------------------------------------------------------------

    def user_at(self, principal: str | None, index: int) -> ReferenceUser | None:
        """Return what a principal may behind the entry at `index`; None: everything."""
        if principal is None or self.level.at(index) < LEVEL_OF_USERS:
            return None
        users = self.users.at(index)
        return users.get(principal, users.get("*", ReferenceUser()))

    def may_at(self, principal: str | None, right: str, topic: str, index: int) -> bool:
        """Return whether a principal may do it behind the entry at `index`."""
        user = self.user_at(principal, index)
        return user is None or user.has(right, topic)

    def may_see_at(self, principal: str | None, topic: str, index: int) -> bool:
        """Return whether a topic is shown to a principal behind the entry at `index`."""
        user = self.user_at(principal, index)
        if user is None or user.observe or user.admin:
            return True
        return user.has("publish", topic) or user.has("subscribe", topic)

    def judged_at(self, low: int, high: int) -> list[int]:
        """Return indexes from `low` to `high`, one of each stretch in which the users are the same.

        The newest first.
        """
        changes = {*self.users.since(low, high), *self.level.since(low, high)}
        return [*sorted(changes, reverse=True), low]

    def owner_at(self, client_id: str, index: int) -> str | None:
        """Return whose a client is behind the entry at `index`, None for nobody's."""
        client = self.clients.get(client_id)
        return None if client is None else client.owner.at(index)

    def is_anothers_at(self, client_id: str, principal: str | None, index: int) -> bool:
        """Return whether a client belongs to another principal."""
        owner = self.owner_at(client_id, index)
        return principal is not None and owner is not None and owner != principal

    def _raise(self, index: int, asked: Raise) -> None:
        before, by = self.level.now, self.user_at(asked.principal, index)
        if by is not None and not (asked.is_root or by.admin):
            return
        self.level.put(index, max(before, asked.level))
        if self.level.now > before:
            self._note_act(index, "raise-level")
        if before < LEVEL_OF_USERS <= self.level.now:
            everything = frozenset({("publish", ">"), ("subscribe", ">")})
            self.users.put(index, {**self.users.now, "*": ReferenceUser(everything, observe=True)})

    def _admit(self, index: int, asked: Admit) -> None:
        if self._members.get(asked.node) != asked.incarnation:
            self._members[asked.node] = asked.incarnation
            self._note_act(index, "admit")

    def _act(self, index: int, asked: Administration) -> Result:
        """Carry out an act once, if who asks may; what was done is answered as it was."""
        asker = asked.principal, ACTS[type(asked)], _about(asked)
        if asked.act_id in self._done:
            before, given = self._done[asked.act_id]
            return given if before == asker else ("bad_request", {})
        by = self.user_at(asked.principal, index)
        if by is not None and not (asked.is_root or by.admin):
            return "unauthorized", {"needs": "admin"}
        answer: Result = self._acts[type(asked)](index, asked)
        if not answer[0]:
            name = asked.change if isinstance(asked, ChangeUser) else ACTS[type(asked)]
            if isinstance(asked, SetTopic):
                name += "-create" if asked.is_new else "-alter"
            self._note_act(index, name)
            if asked.act_id:
                self._done[asked.act_id] = asker, answer
        return answer

    def _note_act(self, index: int, name: str) -> None:
        if self.level.now >= LEVEL_OF_ACTS:
            self.acts.append((index, name))

    def _change_user(self, index: int, asked: ChangeUser) -> Result:
        users = dict(self.users.now)
        before = users.get(asked.user)
        said = {("publish", each) for each in asked.publish}
        said |= {("subscribe", each) for each in asked.subscribe}
        new = ReferenceUser(frozenset(said), observe=asked.observe, admin=asked.admin)
        if asked.change == "user-remove":
            users.pop(asked.user, None)
        elif asked.change == "user-add":
            if before not in (None, new):
                return "bad_request", {}
            users[asked.user] = new
        elif before is None:
            return "bad_request", {}
        elif asked.change == "user-allow":
            users[asked.user] = ReferenceUser(
                before.may | said,
                before.may_not - said,
                before.observe or asked.observe,
                before.admin or asked.admin,
            )
        else:
            users[asked.user] = ReferenceUser(
                before.may - said,
                before.may_not | said,
                before.observe and not asked.observe,
                before.admin and not asked.admin,
            )
        self.users.put(index, users)
        return "", {}

    # --- operations -------------------------------------------------------------------------------

    def _register(self, index: int, asked: Register) -> Result:
        client = self.client(asked.client_id)
        epoch_before = client.epoch.now if client else 0
        if asked.fresh:
            user = self.user_at(asked.principal, index)
            if user is not None and not user.may:
                return "unauthorized", {"needs": "publish"}
            if client is not None:
                return "bad_request", {}
            if sum(each.epoch.now > 0 for each in self.clients.values()) >= self.limits.clients_max:
                return "too_many", {"limit": self.limits.clients_max}
            client = ReferenceClient(ByIndex(0), ByIndex(0), asked.nonce)
            client.epoch.put(index, self.gone_epoch + 1)
            client.sequence.put(index, asked.sequence or 0)
            self.clients[asked.client_id] = client
        elif client is None:
            return self.unknown_at(index), {}
        elif self.is_anothers_at(asked.client_id, asked.principal, index):
            return "unauthorized", {"needs": NOT_ITS_OWN}
        elif asked.sequence is None:
            client.epoch.put(index, client.epoch.now + 1)
            client.nonce = ""
        elif asked.sequence > client.sequence.now:
            client.epoch.put(index, client.epoch.now + 1)
            client.sequence.put(index, asked.sequence)
            client.nonce = asked.nonce
        elif (asked.sequence, asked.nonce) != (client.sequence.now, client.nonce or None):
            return "stale_request", {"expected": client.sequence.now + 1}
        if client.epoch.now != epoch_before:
            self._release(asked.client_id)
        self._take(index, client, asked.principal)
        self._note(client)
        epoch, sequence = client.epoch.now, client.sequence.now
        return "", {"client_id": asked.client_id, "epoch": epoch, "sequence": sequence}

    def _identified(
        self,
        index: int,
        asked: Subscribe
        | Unsubscribe
        | OfPatterns
        | Seek
        | Put
        | Advance
        | MakeGroup
        | EndGroup
        | Take,
    ) -> ReferenceClient | Result:
        client, epoch = self.client(asked.client_id), asked.epoch
        if client is None:
            return self.unknown_at(index), {}
        if self.is_anothers_at(asked.client_id, asked.principal, index):
            return "unauthorized", {"needs": NOT_ITS_OWN}
        if epoch is not None and epoch != client.epoch.now:
            return self.refusal_of(epoch, client.epoch.now)
        if epoch is not None:
            self._take(index, client, asked.principal)
        self._note(client)
        return client

    @staticmethod
    def _take(index: int, client: ReferenceClient, principal: str | None) -> None:
        if principal is not None and client.owner.now is None:
            client.owner.put(index, principal)

    @staticmethod
    def refusal_of(epoch: int, newest: int) -> Result:
        """Return what a process is told whose epoch is not the newest; nobody recovers here."""
        return "recovered" if epoch > newest else "fenced", {"epoch": newest}

    def _controlling(
        self, index: int, asked: Subscribe | Unsubscribe | OfPatterns | Seek | MakeGroup | EndGroup
    ) -> ReferenceClient | Result:
        client = self._identified(index, asked)
        if isinstance(client, ReferenceClient) and asked.sequence is not None:
            if asked.sequence < client.sequence.now:
                return "stale_request", {"expected": client.sequence.now + 1}
            if asked.sequence > client.sequence.now:
                client.sequence.put(index, asked.sequence)
                client.nonce = ""
        return client

    def _subscribe(self, index: int, asked: Subscribe) -> Result:
        client = self._controlling(index, asked)
        if not isinstance(client, ReferenceClient):
            return client
        if not self.may_at(asked.principal, "subscribe", asked.topic, index):
            return "unauthorized", {"needs": "subscribe"}
        cursors = client.cursors.setdefault(asked.topic, ByIndex(None))
        placed = client.placed.setdefault(asked.topic, ByIndex(0))
        if cursors.now is not None:
            client.brought.discard(asked.topic)
            return "", {"last_id": cursors.now, "resumed": True, **_placed(placed)}
        limits, topic = self.limits, self.topics.get(asked.topic)
        own = sum(past.now is not None for past in client.cursors.values())
        active = [each for each in self.topics.values() if each.exists]
        for count, limit in (
            (own, limits.subscriptions_per_client_max),
            (sum(len(each.subscribers.now) for each in active), limits.subscriptions_max),
        ):
            if count >= limit:
                return "too_many", {"limit": limit}
        if refused := self._no_room_for(asked.topic):
            return refused
        cursor = self._cursor_of(asked.topic, asked.start)
        if not isinstance(cursor, int):
            return cursor
        topic = self.topics.setdefault(asked.topic, ReferenceTopic(ByIndex(0)))
        cursors.put(index, cursor)
        placed.put(index, 0 if asked.start == "new" else index)
        is_new = not topic.exists
        topic.subscribers.put(index, topic.subscribers.now | {asked.client_id})
        self._find_unread(asked.topic)
        if is_new:
            self._bring(index, asked.topic)
        return "", {"last_id": cursor, "resumed": False, **_placed(placed)}

    def _no_room_for(self, name: str) -> Result | None:
        """Return why there is no room for a topic that is none yet."""
        limits, topic = self.limits, self.topics.get(name)
        active = [each for each in self.topics.values() if each.exists]
        if not (topic and topic.exists) and len(active) >= limits.topics_max:
            return "too_many", {"limit": limits.topics_max}
        if topic is None and len(self.topics) >= limits.topic_names_max:
            return "too_many", {"limit": limits.topic_names_max}
        return None

    def _cursor_of(self, name: str, start: str | int) -> int | Result:
        """Return behind which id one reads who starts there."""
        topic = self.topics.get(name, ReferenceTopic(ByIndex(0)))
        end, floor = topic.last_id.now, topic.unread_from - 1
        if isinstance(start, str) and start.startswith("@"):
            older = (
                each
                for each in range(floor + 1, end + 1)
                if not topic.compaction.is_gone_at(each, self.applied_index)
                and self._time_of(name, each) < int(start[1:])
            )
            return max(older, default=floor)
        if isinstance(start, str):
            return end if start == "new" else floor
        if start - 1 > end:
            return "bad_request", {"end": end}
        if start - 1 < floor:
            told = {"topic": name, "first_id": start, "last_id": floor}
            return "gap", told | {"missed": floor - start + 1}
        return start - 1

    def _time_of(self, name: str, id_: int) -> int:
        """Return what a publication is stamped, 0 if it is not, also one of this entry."""
        is_new = self.topics[name].publications[id_][0] == self.applied_index
        return self._entry_ms if is_new else self.timestamp_of(name, id_) or 0

    def _seek(self, index: int, asked: Seek) -> Result:
        client = self._controlling(index, asked)
        if not isinstance(client, ReferenceClient):
            return client
        if not self.may_at(asked.principal, "subscribe", asked.topic, index):
            return "unauthorized", {"needs": "subscribe"}
        topic, cursors = self.topics.get(asked.topic), client.cursors.get(asked.topic)
        if topic is None or not topic.exists:
            return "unknown_topic", {}
        if cursors is None or cursors.now is None:
            return "not_subscribed", {}
        cursor = self._cursor_of(asked.topic, asked.start)
        if not isinstance(cursor, int):
            return cursor
        cursors.put(index, cursor)
        client.placed[asked.topic].put(index, index)
        self._find_unread(asked.topic)
        return "", {"last_id": cursor, "placed": index}

    # --- patterns ---------------------------------------------------------------------------------

    def _subscribe_pattern(self, index: int, asked: SubscribePattern) -> Result:
        client = self._controlling(index, asked)
        if not isinstance(client, ReferenceClient):
            return client
        if not self.may_at(asked.principal, "subscribe", asked.topic, index):
            return "unauthorized", {"needs": "subscribe"}
        limits, before = self.limits, client.patterns.now.get(asked.topic)
        everybodys = sum(len(each.patterns.now) for each in self.clients.values())
        if before is None and len(client.patterns.now) >= limits.patterns_per_client_max:
            return "too_many", {"limit": limits.patterns_per_client_max}
        if before is None and everybodys >= limits.patterns_max:
            return "too_many", {"limit": limits.patterns_max}
        own = client.topics_at(index)
        new = [
            name
            for name in sorted(self.topics)
            if self.topics[name].exists
            and name not in own
            and fits_pattern(asked.topic, name)
            and self.may_at(asked.principal, "subscribe", name, index)
        ]
        at = index if before is None else before.at
        quotas = asked.topics_max, asked.subscriptions_max
        pattern = ReferencePattern(at, asked.principal, *quotas)
        if refused := self._no_place(client, pattern, new):
            return refused
        client.patterns.put(index, {**client.patterns.now, asked.topic: pattern})
        for name in new:
            cursor = self._cursor_of(name, asked.start)
            assert isinstance(cursor, int), (name, asked)
            placed = 0 if asked.start == "new" else index
            self._join_by_pattern(index, asked.client_id, name, cursor, placed)
        own = client.topics_at(index)
        names = [name for name in sorted(own) if fits_pattern(asked.topic, name)]
        placed_by = client.placed_at(index)
        return "", {
            "last_id": 0,
            "resumed": before is not None,
            "pattern": at,
            "topics": {name: own[name] for name in names},
            "placed": {name: placed_by[name] for name in names if name in placed_by},
        }

    def _join_by_pattern(
        self, index: int, client_id: str, name: str, cursor: int, placed: int
    ) -> None:
        client, topic = self.clients[client_id], self.topics[name]
        client.cursors.setdefault(name, ByIndex(None)).put(index, cursor)
        client.placed.setdefault(name, ByIndex(0)).put(index, placed)
        client.brought.add(name)
        topic.subscribers.put(index, topic.subscribers.now | {client_id})
        self._find_unread(name)

    def _no_place(
        self, client: ReferenceClient, pattern: ReferencePattern, names: Sequence[str]
    ) -> Result | None:
        """Return why a client can't subscribe to topics that a pattern brings it."""
        limits, own = self.limits, client.topics_at(self.applied_index)
        everybodys = sum(len(each.subscribers.now) for each in self.topics.values())
        for count, limit in (
            (len(own), limits.subscriptions_per_client_max),
            (everybodys, limits.subscriptions_max),
        ):
            if count + len(names) > limit:
                return "too_many", {"limit": limit}
        if client.owner.now is None or not names:
            return None
        owners = [each for each in self.clients.values() if each.owner.now == client.owner.now]
        held = {name for each in owners for name in each.topics_at(self.applied_index)}
        limit = pattern.topics_max
        if limit and len(held | {*names}) > limit and not held >= {*names}:
            return "quota", {"quota": "topics_max", "limit": limit}
        count = sum(len(each.topics_at(self.applied_index)) for each in owners) + len(names)
        if 0 < pattern.subscriptions_max < count:
            limit = pattern.subscriptions_max
            return "quota", {"quota": "subscriptions_max", "limit": limit}
        return None

    def _wanting(self, index: int, name: str) -> Iterator[tuple[str, list[str]]]:
        """Yield clients, and their patterns by which they are to have a topic that is made."""
        for client_id in sorted(self.clients):
            patterns = self.clients[client_id].patterns.now
            able = [
                text
                for text in sorted(patterns)
                if fits_pattern(text, name)
                and self.may_at(patterns[text].principal, "subscribe", name, index)
            ]
            if able:
                yield client_id, able

    def _bring(self, index: int, name: str) -> None:
        """Have all whose patterns it is of subscribe to a topic that was just made."""
        for client_id, texts in self._wanting(index, name):
            client, topic = self.clients[client_id], self.topics[name]
            if client_id in topic.subscribers.now:
                continue
            patterns = client.patterns.now
            if all(self._no_place(client, patterns[text], [name]) for text in texts):
                self._missed(index, client, texts, name)
            else:
                self._join_by_pattern(index, client_id, name, topic.last_id.now, 0)

    @staticmethod
    def _missed(index: int, client: ReferenceClient, texts: Sequence[str], name: str) -> None:
        patterns = client.patterns.now
        missed = {
            text: replace(patterns[text], missed=name)
            for text in texts
            if not patterns[text].missed
        }
        client.patterns.put(index, {**patterns, **missed})

    def _make(self, index: int, name: str, count: int) -> ReferenceTopic | None:
        """Make the topic of a PUT if patterns are to have it."""
        wanted = list(self._wanting(index, name))
        if not wanted:
            return None
        before = self.topics.get(name)
        ends = 0 if before is None else before.last_id.now + before.delayed.now
        if self._no_room_for(name) or ends + count > self.limits.id_max:
            for client_id, texts in wanted:
                self._missed(index, self.clients[client_id], texts, name)
            return None
        topic = self.topics.setdefault(name, ReferenceTopic(ByIndex(0)))
        self._bring(index, name)
        if topic.exists:
            return topic
        if before is None:  # nobody had room: then its name is not taken
            del self.topics[name]
        return None

    def _unsubscribe_pattern(self, index: int, asked: UnsubscribePattern) -> Result:
        client = self._controlling(index, asked)
        if not isinstance(client, ReferenceClient):
            return client
        was_there = self._leave_pattern(index, client, asked.client_id, asked.topic)
        kept = [name for name in client.topics_at(index) if fits_pattern(asked.topic, name)]
        return "", {"was_subscribed": was_there, "topics": sorted(kept)}

    def _leave_pattern(
        self, index: int, client: ReferenceClient, client_id: str, text: str
    ) -> bool:
        patterns = dict(client.patterns.now)
        if patterns.pop(text, None) is None:
            return False
        client.patterns.put(index, patterns)
        for name in sorted(client.brought):
            if not any(fits_pattern(each, name) for each in patterns):
                self._end(index, client, client_id, name)
        return True

    # --- topics that have a policy ----------------------------------------------------------------

    def _set_topic(self, index: int, asked: SetTopic) -> Result:
        topic = self.topics.get(asked.topic)
        before = None if topic is None else topic.policy.now
        if before is None and not asked.is_new:
            return "unknown_topic", {}
        said = (Policy() if asked.is_new else before).parts() | asked.parts  # type: ignore[union-attr]
        if not _makes_sense(said):
            return "bad_request", {}
        policy = Policy(**said)
        is_other = asked.is_new and before != policy
        if before is not None and (is_other or before.compact != policy.compact):
            return "bad_request", {}
        if refused := self._no_room_for(asked.topic):
            return refused
        topic = self.topics.setdefault(asked.topic, ReferenceTopic(ByIndex(0)))
        sizes, end = topic.sizes, topic.last_id.now
        is_new = not topic.exists
        if before is None:
            topic.dropped.put(index, 0)
        if not _measures(policy):
            sizes.parts = []
        elif before is None or not _measures(before):
            sizes.base = self._bytes_before(topic, self._dead_to(topic) + 1)
            sizes.parts = [[end, sizes.put_bytes, self.log_ms]]
            if sizes.put_bytes <= sizes.base:
                sizes.parts = []
        if before is None and not _measures(policy):
            sizes.base = self._bytes_before(topic, self._dead_to(topic) + 1)
        sizes.kept = 0
        topic.policy.put(index, policy)
        if policy.when_full == "drop-oldest":
            self._drop(index, topic, policy.max_bytes)
        sizes.find_kept(policy, end, self.log_ms)
        self._find_unread(asked.topic)
        if is_new:
            self._bring(index, asked.topic)
        told = {name: part for name, part in said.items() if name in TOLD_PARTS or part}
        return "", {"policy": told, "created": before is None, "last_id": end}

    @staticmethod
    def _dead_to(topic: ReferenceTopic) -> int:
        """Return up to where no publication stands any more where it was put."""
        return max(topic.unread_from - 1, topic.compaction.last_id.now)

    @staticmethod
    def _bytes_before(topic: ReferenceTopic, first_id: int) -> int:
        """Return the bytes of all entries' publications before that of a publication."""
        if first_id > topic.last_id.now:
            return topic.sizes.put_bytes
        entry = topic.publications[first_id][0]
        kept = (
            len(text) + 4
            for brought, text in (
                topic.publications[each]
                for each in range(1, topic.last_id.now + 1)
                if each in topic.publications
            )
            if brought >= entry
        )
        return topic.sizes.put_bytes - sum(kept)

    def _drop(self, index: int, topic: ReferenceTopic, most: int) -> None:
        dropped = topic.sizes.drop(most)
        if dropped > topic.dropped.now:
            topic.dropped.put(index, dropped)
            for (name, _), group in self.groups.items():
                if self.topics[name] is topic:
                    group.purge(dropped)

    def _delete_topic(self, index: int, asked: DeleteTopic) -> Result:
        topic = self.topics.get(asked.topic)
        if topic is None or not topic.exists:
            return "unknown_topic", {}
        ids, groups = sorted(topic.subscribers.now), sorted(topic.groups.now)
        count = len(ids) + len(groups)
        if count and not asked.ends:
            return "bad_request", {"subscribers": count}
        held = topic.last_id.now + 1 - topic.unread_from
        for client_id in ids:
            self._end(index, self.clients[client_id], client_id, asked.topic)
        for group in groups:
            self.groups.pop((asked.topic, group))
        topic.groups.put(index, frozenset())
        topic.policy.put(index, None)
        self._find_unread(asked.topic)
        for row in self._waiting_of(asked.topic):
            row.is_dropped = True
        topic.delayed.put(index, 0)
        return "", {"last_id": topic.last_id.now, "deleted": held, "ended": count}

    def _unsubscribe(self, index: int, asked: Unsubscribe) -> Result:
        client = self._controlling(index, asked)
        if not isinstance(client, ReferenceClient):
            return client
        if asked.topic in client.topics_at(index):
            for text in sorted(client.patterns.now):
                if fits_pattern(text, asked.topic):
                    return "bad_request", {"pattern": text}
        return self._leave(index, client, asked)

    def _drop_subscription(self, index: int, asked: DropSubscription) -> Result:
        client = self.client(asked.client_id)
        if client is None:
            return self.unknown_at(index), {}
        if self._leave_pattern(index, client, asked.client_id, asked.topic):
            kept = [name for name in client.topics_at(index) if fits_pattern(asked.topic, name)]
            return "", {"was_subscribed": True, "topics": sorted(kept)}
        return self._leave(index, client, asked)

    def _leave(
        self, index: int, client: ReferenceClient, asked: Unsubscribe | DropSubscription
    ) -> Result:
        cursors = client.cursors.get(asked.topic)
        if cursors is None or cursors.now is None:
            return "", {"was_subscribed": False}
        self._end(index, client, asked.client_id, asked.topic)
        return "", {"was_subscribed": True}

    def _drop_client(self, index: int, asked: DropClient) -> Result:
        client = self.client(asked.client_id)
        if client is None:
            return self.unknown_at(index), {}
        left = sorted(self._remove(index, asked.client_id, client))
        return "", {"forgotten": [asked.client_id], "left": left}

    def _purge(self, index: int, asked: Purge) -> Result:
        topic = self.topics.get(asked.topic)
        if topic is None or not topic.exists:
            return "unknown_topic", {}
        if asked.last_id > topic.last_id.now:
            return "bad_request", {"end": topic.last_id.now}
        before = topic.unread_from
        if asked.last_id > topic.purged.now:
            topic.purged.put(index, asked.last_id)
            for group in topic.groups.now:
                self.groups[asked.topic, group].purge(asked.last_id)
        self._find_unread(asked.topic)
        return "", {"purged": topic.unread_from - before, "last_id": asked.last_id}

    def _end(self, index: int, client: ReferenceClient, client_id: str, name: str) -> None:
        client.cursors[name].put(index, None)
        client.brought.discard(name)
        client.ended.setdefault(name, []).append(index)
        topic = self.topics[name]
        topic.subscribers.put(index, topic.subscribers.now - {client_id})
        self._find_unread(name)

    def _put(self, index: int, asked: Put) -> Result:
        client = self._identified(index, asked)
        if not isinstance(client, ReferenceClient):
            return client
        count = len(asked.lengths) // 4
        lane = lane_in(asked.topic, asked.is_delayed)
        producer = client.producers.get(lane)
        was_taken = producer is not None and asked.counter <= producer.counter.now
        if not was_taken and not self.may_at(asked.principal, "publish", asked.topic, index):
            return "unauthorized", {"needs": "publish"}
        if producer is not None and asked.counter != producer.counter.now + 1:
            return _put_again(producer, asked.counter, count, asked.is_delayed)
        if asked.counter + count - 1 > INTEGER_MAX:
            return "bad_request", {}
        topic = self.topics.get(asked.topic)
        is_none = topic is None or not topic.exists
        is_kept = topic is not None and topic.stores
        if topic is not None and is_kept and (full := self._no_room_in(topic, asked, count)):
            return full
        if producer is None:
            made = self._new_producer(client, lane)
            if not isinstance(made, ReferenceProducer):
                return made
            producer = made
        first_id = 0
        if is_none:
            topic = self._make(index, asked.topic, count)
            is_kept = topic is not None
        if topic is not None and is_kept:
            batch = _publications(asked)
            if asked.is_delayed:
                first_id = self._delay(index, asked.topic, batch)
            else:
                first_id = self._store(index, asked.topic, topic, batch)
        producer.counter.put(index, asked.counter + count - 1)
        producer.puts.append((asked.counter, count, first_id))
        del producer.puts[: -clients.PUTS_KEPT]
        body = {"id": first_id, "count": count, "duplicate": False, "stored": bool(is_kept)}
        return "", body | ({"delayed": True} if asked.is_delayed else {})

    def _no_room_in(self, topic: ReferenceTopic, asked: Put, count: int) -> Result | None:
        if topic.last_id.now + topic.delayed.now + count > self.limits.id_max:
            return "too_many", {"limit": self.limits.id_max}
        size_bytes = len(asked.lengths) + len(asked.data)
        return _too_full(topic, size_bytes, self.waiting_bytes(asked.topic), asked.is_delayed)

    def _new_producer(self, client: ReferenceClient, lane: str) -> ReferenceProducer | Result:
        limits, name_bytes = self.limits, len(orjson.dumps(lane))
        if len(client.producers) >= limits.producers_per_client_max:
            return "too_many", {"limit": limits.producers_per_client_max}
        if client.names_bytes + name_bytes > limits.names_bytes_max:
            return "too_many", {"limit": limits.names_bytes_max}
        client.names_bytes += name_bytes
        producer = client.producers[lane] = ReferenceProducer(ByIndex(-1))
        return producer

    def _store(
        self, index: int, name: str, topic: ReferenceTopic, batch: Sequence[tuple[bytes, int]]
    ) -> int:
        """Put a batch behind what a topic has, what expires from now on; return its first id."""
        for id_, (publication, envelope) in enumerate(batch, topic.last_id.now + 1):
            if envelope and publication[3] == EXPIRY_TAG:
                topic.over[id_] = self.log_ms + int.from_bytes(publication[4:12], "little")
        return self._add(index, name, topic, batch)

    def _add(
        self, index: int, name: str, topic: ReferenceTopic, batch: Sequence[tuple[bytes, int]]
    ) -> int:
        """Put publications, each with the size of its envelope, behind what a topic has."""
        policy, first_id = topic.policy.now, topic.last_id.now + 1
        size_bytes = sum(len(publication) + 4 for publication, _ in batch)
        if policy is not None and policy.when_full == "drop-oldest":
            self._drop(index, topic, policy.max_bytes - size_bytes)
        topic.last_id.put(index, topic.last_id.now + len(batch))
        for id_, (publication, envelope) in enumerate(batch, first_id):
            topic.publications[id_] = index, publication
            if envelope:
                topic.enveloped[id_] = envelope
        topic.sizes.put_bytes += size_bytes
        topic.note(first_id, topic.last_id.now)
        if policy is not None:
            topic.sizes.put(policy, topic.last_id.now, self.log_ms)
            topic.sizes.find_kept(policy, topic.last_id.now, self.log_ms)
            self._find_unread(name)
        return first_id

    def _advance(self, index: int, asked: Advance) -> Result:
        client = self._identified(index, asked)
        if not isinstance(client, ReferenceClient):
            return client
        moved, hidden = {}, 0
        for name, cursor in asked.cursors.items():
            topic, cursors = self.topics.get(name), client.cursors.get(name)
            if not self.may_at(asked.principal, "subscribe", name, index):
                if cursors is None or cursors.now is None:
                    return "unauthorized", {"needs": "subscribe"}
                hidden += 1
                continue
            if topic is None or not topic.exists:
                return "unknown_topic", {}
            if cursors is None or cursors.now is None:
                return "not_subscribed", {}
            placed = client.placed[name].now
            if asked.placed.get(name, 0) != placed:
                return "moved", {"topic": name, "cursor": cursors.now, "placed": placed}
            if cursor > topic.last_id.now:
                return "bad_request", {"end": topic.last_id.now}
            if cursor > (cursors.now or 0):
                moved[name] = cursor
        if hidden and not moved:
            return "unauthorized", {"needs": "subscribe"}
        for name, cursor in moved.items():
            client.cursors[name].put(index, cursor)
            self._find_unread(name)
        return "", {}

    # --- groups -----------------------------------------------------------------------------------

    def _make_group(self, index: int, asked: MakeGroup) -> Result:
        client = self._controlling(index, asked)
        if not isinstance(client, ReferenceClient):
            return client
        if not self.may_at(asked.principal, "subscribe", asked.topic, index):
            return "unauthorized", {"needs": "subscribe"}
        if asked.dead_letter and not self.may_at(
            asked.principal, "publish", asked.dead_letter, index
        ):
            return "unauthorized", {"needs": "publish"}
        key = asked.topic, asked.group
        group, is_new = self.groups.get(key), key not in self.groups
        if group is not None and asked.ordered_by_key not in (None, group.is_ordered):
            return "another_choice", {"ordered_by_key": group.is_ordered}
        if asked.max_attempts and not self._goes_somewhere(asked, group):
            return "bad_request", {}
        if group is None:
            if len(self.groups) >= self.limits.groups.groups_max:
                return "too_many", {"limit": self.limits.groups.groups_max}
            if refused := self._no_room_for(asked.topic):
                return refused
            cursor = self._cursor_of(asked.topic, asked.start)
            if not isinstance(cursor, int):
                return cursor
            topic = self.topics.setdefault(asked.topic, ReferenceTopic(ByIndex(0)))
            if key in self.group_rows:
                self.moved_groups.add(key)
            group = ReferenceGroup(
                cursor, token=index * TOKENS_PER_ENTRY, is_ordered=bool(asked.ordered_by_key)
            )
            self.groups[key] = group
            is_new_topic = not topic.exists
            topic.groups.put(index, topic.groups.now | {asked.group})
            self._find_unread(asked.topic)
            if is_new_topic:
                self._bring(index, asked.topic)
        group.set(asked)
        self._pass_expired(asked.topic, group)
        return "", {
            "last_id": group.cursor,
            "resumed": not is_new,
            "lease_ms": group.lease_ms,
            "max_attempts": group.max_attempts,
            "dead_letter": group.dead_letter,
            "ordered_by_key": group.is_ordered,
        }

    def _goes_somewhere(self, asked: MakeGroup, group: ReferenceGroup | None) -> bool:
        """Return whether what a group gives up has a topic: said, kept, or the topic's own."""
        own = asked.dead_letter
        if own is None:
            own = "" if group is None else group.dead_letter
        return bool(own or self._dead_letter_of(asked.topic))

    def _dead_letter_of(self, name: str) -> str:
        """Return where a topic has the dead letters go of groups that say nothing."""
        found = self.topics.get(name)
        policy = None if found is None else found.policy.now
        return "" if policy is None else policy.dead_letter

    def _end_group(self, index: int, asked: EndGroup) -> Result:
        client = self._controlling(index, asked)
        if not isinstance(client, ReferenceClient):
            return client
        if not self.may_at(asked.principal, "subscribe", asked.topic, index):
            return "unauthorized", {"needs": "subscribe"}
        return self._drop_group(index, asked)

    def _drop_group(self, index: int, asked: EndGroup | DropGroup) -> Result:
        was_there = self.groups.pop((asked.topic, asked.group), None) is not None
        if was_there:
            topic = self.topics[asked.topic]
            topic.groups.put(index, topic.groups.now - {asked.group})
            self._find_unread(asked.topic)
        return "", {"was_subscribed": was_there}

    def _seek_group(self, index: int, asked: SeekGroup) -> Result:
        topic, group = self.topics.get(asked.topic), self.groups.get((asked.topic, asked.group))
        if topic is None or not topic.exists:
            return "unknown_topic", {}
        if group is None:
            return "not_subscribed", {}
        cursor = self._cursor_of(asked.topic, asked.start)
        if not isinstance(cursor, int):
            return cursor
        group.seek(cursor)
        self._pass_expired(asked.topic, group)
        self.moved_groups.add((asked.topic, asked.group))
        self._find_unread(asked.topic)
        return "", {"last_id": cursor}

    def _key_of(self, topic: str) -> Callable[[int], str | bytes | None]:
        """Return what says which key a publication of the topic has."""
        source = self.topics[topic]

        def key_of(id_: int) -> str | bytes | None:
            if not source.enveloped.get(id_):
                return None
            if id_ not in source.keys:
                source.keys[id_] = decode(source.publications[id_][1])[0].key
            return source.keys[id_]

        return key_of

    def _take_leases(self, index: int, asked: Take) -> Result:
        client = self._identified(index, asked)
        if not isinstance(client, ReferenceClient):
            return client
        if not self.may_at(asked.principal, "subscribe", asked.topic, index):
            return "unauthorized", {"needs": "subscribe"}
        topic, group = self.topics.get(asked.topic), self.groups.get((asked.topic, asked.group))
        if topic is None or not topic.exists:
            return "unknown_topic", {}
        if group is None:
            return "not_subscribed", {}
        others = sum(len(each.open) for each in self.groups.values()) - len(group.open)
        error, told = Taking(
            group,
            asked,
            self.log_ms,
            index,
            topic.publications,
            topic.last_id.now,
            self.limits.groups,
            others,
            self._key_of(asked.topic),
            lambda: self._dead_letters_of(index, asked, group),
            lambda id_: topic.over.get(id_, NEVER) <= self.log_ms,
            lambda id_: topic.compaction.is_gone_at(id_, index),
            topic.compaction.last_id.now,
        ).result()
        self._find_unread(asked.topic)
        if told.get("token"):  # of one that is told again the first word counts
            lease = asked.topic, asked.group, told["token"]
            self.lease_ms.setdefault(lease, told["lease_ms"])
        return error, told

    def _dead_letters_of(
        self, index: int, asked: Take, group: ReferenceGroup
    ) -> Callable[[int, str], None] | None:
        name = group.dead_letter or self._dead_letter_of(asked.topic)
        topic = self.topics.get(name)
        if topic is None or not topic.stores or topic.last_id.now >= self.limits.id_max:
            return None
        is_full = _too_full(topic, 1, self.waiting_bytes(name), is_delayed=False) is not None
        if is_full and self.level.now >= LEVEL_OF_DEAD_LETTERS:
            return None

        def publish(id_: int, reason: str) -> None:
            source = self.topics[asked.topic]
            _, publication = source.publications[id_]
            enveloped = source.enveloped.get(id_, 0)
            letter = dead_letter(publication, enveloped, asked.topic, asked.group, id_, reason)
            self._add(index, name, topic, [letter])

        return publish

    def _release(self, client_id: str, is_gone: bool = False) -> None:
        for group in self.groups.values():
            group.release(client_id, self.log_ms)
            if is_gone:
                group.takes.pop(client_id, None)

    def _note_groups(self, index: int) -> None:
        """Note the rows of all groups: what is asked of them may be of any index."""
        for key in {*self.groups, *self.group_rows}:
            group, end = self.groups.get(key), self.last_id_at(key[0], index)
            row = group.described(end, self._key_of(key[0])) if group else None
            past = self.group_rows.setdefault(key, ByIndex(None))
            if past.now != row:
                past.put(index, row)

    def groups_at(self, topic: str, after: str, index: int) -> list[dict[str, Any]]:
        """Return groups as INSPECT lists them, those behind (`topic`, `after`)."""
        found = ((key, self.group_rows[key].at(index)) for key in sorted(self.group_rows))
        return [
            {"topic": name, "group": group, **row}
            for (name, group), row in found
            if row is not None and (name, group) > (topic, after)
        ]

    def _find_unread(self, name: str) -> None:
        """Forget what nobody wants any more, as far as it does not matter to a late answer."""
        topic = self.topics[name]
        wanted_from = self._read_to(name) + 1
        given_up = [self.groups[name, each].cursor for each in topic.groups.now]
        lapsed_from = min(topic.expired.now, *given_up) + 1 if given_up else topic.expired.now + 1
        if topic.policy.now is None:
            topic.unread_from = max(wanted_from, topic.purged.now + 1, lapsed_from)
        else:
            kept_from = min(wanted_from, topic.sizes.kept + 1)
            gone = max(topic.purged.now, topic.dropped.now) + 1
            topic.unread_from = max(topic.unread_from, kept_from, gone, lapsed_from)
            topic.sizes.forget(topic.unread_from - 1)
        while topic.spans and topic.spans[0][0] < topic.unread_from:
            topic.spans.pop(0)
        if not topic.exists:
            topic.expires, topic.spans = False, []
            topic.expired.put(self.applied_index, 0)
        topic.floor.put(self.applied_index, topic.unread_from - 1)

    # --- what is asked of it ----------------------------------------------------------------------

    def ordered_from(self, topic: str, group: str) -> int | None:
        """Return from which id on a group's workers may rely on the order of keys; None: nowhere.

        What was purged, dropped or buried lets the next one of its key go without them.
        """
        found, of_topic = self.groups.get((topic, group)), self.topics.get(topic)
        if found is None or of_topic is None or not found.is_ordered or found.max_attempts:
            return None
        if (topic, group) in self.moved_groups:
            return None
        return max(of_topic.purged.now, of_topic.dropped.now) + 1

    def unread_bytes(self, name: str) -> int:
        """Return the bytes of a topic's publications that somebody has not acknowledged."""
        topic = self.topics[name]
        ids = range(self._dead_to(topic) + 1, topic.last_id.now + 1)
        return sum(len(topic.publications[each][1]) for each in ids)

    def kept(self, name: str) -> tuple[int, int] | None:
        """Return a topic's first id that somebody still wants and its last, None without one."""
        topic = self.topics.get(name)
        return None if topic is None else (topic.unread_from, topic.last_id.now)

    def cursor_at(self, client_id: str, topic: str, index: int) -> int | None:
        """Return where a subscription stood behind the entry at `index`, None: there was none."""
        client = self.clients.get(client_id)
        past = None if client is None else client.cursors.get(topic)
        return None if past is None else past.at(index)

    def last_id_at(self, topic: str, index: int) -> int:
        """Return a topic's last id behind the entry at `index`."""
        found = self.topics.get(topic)
        return 0 if found is None else found.last_id.at(index)

    def first_id_at(self, topic: str, index: int) -> int:
        """Return a topic's first id that was kept behind the entry at `index`."""
        found = self.topics.get(topic)
        return 1 if found is None else found.floor.at(index) + 1

    def timestamp_of(self, topic: str, publication_id: int) -> int | None:
        """Return what the publication is stamped, None if it is not."""
        entry, _ = self.topics[topic].publications[publication_id]
        place = bisect_left(self.times, (entry, 0))
        is_known = place < len(self.times) and self.times[place][0] == entry
        return self.times[place][1] or None if is_known else None

    def gone_at(self, topic: str, index: int) -> int:
        """Return up to which id a topic had been purged, or dropped, behind the entry."""
        found = self.topics.get(topic)
        if found is None:
            return 0
        dropped = 0 if found.policy.at(index) is None else found.dropped.at(index)
        return max(found.purged.at(index), dropped)

    def alive_since(self, index: int) -> set[str]:
        """Return the topics that have had a subscriber since the entry at `index`."""
        return {name for name, topic in self.topics.items() if self._is_wanted_since(topic, index)}

    def _is_wanted_since(self, topic: ReferenceTopic, index: int) -> bool:
        changes = {index, *topic.subscribers.since(index, self.applied_index)}
        changes.update(topic.groups.since(index, self.applied_index))
        changes.update(topic.policy.since(index, self.applied_index))
        return all(map(topic.exists_at, changes))

    def topic_rows_at(self, name: str, index: int) -> list[dict[str, Any]]:
        """Return the row of a topic as INSPECT has it, none where there is no such topic."""
        topic = self.topics.get(name)
        if topic is None or not topic.exists_at(index):
            return []
        policy, floor, end = topic.policy.at(index), topic.floor.at(index), topic.last_id.at(index)
        first = topic.publications[floor + 1][0] if floor < end else 0
        is_compacted = policy is not None and policy.compact
        held = (
            len(text) + 4
            for each in range(1, end + 1)
            for entry, text in (topic.publications.get(each, (0, b"")),)
            if entry >= first > 0
        )
        return [
            {
                "topic": name,
                "first_id": floor + 1,
                "last_id": end,
                "subscribers": len(topic.subscribers.at(index)) + len(topic.groups.at(index)),
                "policy": None if policy is None else policy.parts(),
                "held_bytes": topic.compaction.held.at(index) if is_compacted else sum(held),
                "purged_id": topic.purged.at(index),
                "dropped_id": 0 if policy is None else topic.dropped.at(index),
                "delayed": topic.delayed.at(index),
                **({"compacted_id": topic.compaction.last_id.at(index)} if is_compacted else {}),
            }
        ]

    def subscriptions_at(self, topic: str, after: str, index: int) -> list[dict[str, Any]]:
        """Return subscriptions by topic and client id: those behind (`topic`, `after`)."""
        found = []
        for name in sorted(self.topics):
            end, gone = self.last_id_at(name, index), self.gone_at(name, index)
            for client_id in sorted(self.topics[name].subscribers.at(index)):
                if (name, client_id) > (topic, after):
                    cursor = self.clients[client_id].cursors[name].at(index) or 0
                    gone = max(gone, self.expired_at(name, index))
                    row = {"cursor": cursor, "backlog": end - max(cursor, gone)}
                    found.append({"topic": name, "client_id": client_id, **row})
        return found

    def patterns_at(self, client_id: str, text: str, index: int) -> list[dict[str, Any]]:
        """Return patterns by client id and text: those behind (`client_id`, `text`)."""
        return [
            {"pattern": own, "client_id": each, "topics_max": one.topics_max, "missed": one.missed}
            for each in sorted(self.clients)
            for own, one in sorted(self.clients[each].patterns.at(index).items())
            if (each, own) > (client_id, text)
        ]

    def listing_at(self, client_id: str, index: int) -> list[dict[str, Any]]:
        """Return the rows of TOPICS: of a client's topics, or of all of them ("")."""
        if client_id:
            client = self.clients.get(client_id)
            own: Mapping[str, int] = {} if client is None else client.topics_at(index)
            return [
                {"topic": name, "last_id": end, "cursor": own[name], "backlog": end - had}
                for name in sorted(own)
                for end in (self.last_id_at(name, index),)
                for gone in (max(self.gone_at(name, index), self.expired_at(name, index)),)
                for had in (max(own[name], gone),)
            ]
        return [
            {
                "topic": name,
                "last_id": topic.last_id.at(index),
                "subscribers": len(topic.subscribers.at(index)) + len(topic.groups.at(index)),
            }
            for name, topic in sorted(self.topics.items())
            if topic.exists_at(index)
        ]


def _about(asked: Administration) -> Any:
    """Return what an act is about, for it to be known again: not who asked, when, and by what."""
    apart = ("principal", "is_root", "at_ms", "act_id", "chosen")
    return [getattr(asked, name) for name in asked.__slots__ if name not in apart]


def _too_full(
    topic: ReferenceTopic, size_bytes: int, waiting_bytes: int, is_delayed: bool
) -> Result | None:
    """Return why a topic's policy takes no so many bytes more; what waits for it is held."""
    policy = topic.policy.now
    if policy is None or not policy.max_bytes:
        return None
    if size_bytes > policy.max_bytes:
        return "backlog_full", {"limit": policy.max_bytes}
    held = topic.sizes.put_bytes - topic.sizes.base + waiting_bytes
    if policy.compact:
        held = Reference.held_bytes(topic) + waiting_bytes
    if policy.when_full == "refuse" and held + size_bytes > policy.max_bytes:
        return "backlog_full", {"limit": policy.max_bytes}
    # What waits is never dropped.
    if is_delayed and waiting_bytes + size_bytes > policy.max_bytes:
        return "backlog_full", {"limit": policy.max_bytes}
    return None


def _makes_sense(said: Mapping[str, Any]) -> bool:
    """Return whether the parts of a policy go with each other."""
    drops = said["when_full"] == "drop-oldest"
    if said.get("compact"):
        return said["keep"] not in ("unread", "bytes") and not drops
    return bool(said["max_bytes"]) or not drops


def _placed(placed: ByIndex[int]) -> dict[str, int]:
    return {"placed": placed.now} if placed.now else {}


def _nobodys(index: int, asked: Operation) -> None:
    return None


def lane_in(topic: str, is_delayed: bool) -> str:
    """Return under which name a PUT's counters stand: what is delayed has its own."""
    return topic + LANE if is_delayed else topic


def has_delay(lengths: bytes, data: bytes) -> bool:
    """Return whether the first publication of a batch has a delay: then all have."""
    if not lengths or not lengths[3] & 128 or len(data) < 4:
        return False
    at = 12 if data[3] == EXPIRY_TAG else 3
    return 3 + data[1] + 256 * data[2] > at and data[at] == DELAY_TAG


def _publications(asked: Put) -> list[tuple[bytes, int]]:
    """Return a PUT's publications, each with the size of its envelope."""
    count, at = len(asked.lengths) // 4, 0
    batch: list[tuple[bytes, int]] = []
    for length in unpack(f"<{count}I", asked.lengths):
        size = length % HAS_PROPERTIES
        publication, at = asked.data[at : at + size], at + size
        # docs/protocol.md: version, size of what follows.
        is_enveloped = length >= HAS_PROPERTIES
        envelope = 3 + publication[1] + 256 * publication[2] if is_enveloped else 0
        batch.append((publication, envelope))
    return batch


def _put_again(producer: ReferenceProducer, counter: int, count: int, is_delayed: bool) -> Result:
    last = producer.counter.now
    if counter > last:
        return "counter_gap", {"expected": last + 1}
    if counter + count - 1 > last:
        return "bad_request", {}
    answer: dict[str, Any] = {"id": 0, "count": count, "duplicate": True, "stored": None}
    answer |= {"delayed": True} if is_delayed else {}
    for first, each_count, first_id in producer.puts:
        if first <= counter < first + each_count:
            answer["id"] = first_id + counter - first if first_id else 0
            answer["stored"] = first_id > 0
    return "", answer


def described(users: ReferenceUsers) -> list[dict[str, Any]]:
    """Return users of the reference as a store lists them."""

    def patterns(rules: frozenset[tuple[str, str]], right: str) -> list[str]:
        return sorted(pattern for each, pattern in rules if each == right)

    return [
        {
            "user": name,
            "publish": patterns(user.may, "publish"),
            "subscribe": patterns(user.may, "subscribe"),
            "deny_publish": patterns(user.may_not, "publish"),
            "deny_subscribe": patterns(user.may_not, "subscribe"),
            "observe": user.observe,
            "admin": user.admin,
        }
        for name, user in sorted(users.items())
    ]
