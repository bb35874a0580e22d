"""Topics and their subscriptions, in memory: who is subscribed to what, and up to where.

What lives here: topics with a subscriber or a policy, cursors, the floor under which a topic's
publications are dead, and the rows of these tables. What must not: publications
(`publications.py`), what a policy keeps (`retention.py`), the rules of requests (`store.py`).

A topic that has neither any more is not kept in memory; its row stays, so that its ids go on when
it is created again.
"""

from __future__ import annotations

import heapq
import re
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any, Final

from cluster.store.clients import Client
from cluster.store.expiry import NEVER, Expiry
from cluster.store.retention import Retention
from cluster.store.tables import CorruptStore, Database, in_order, row_crc
from cluster.store.unread import KEPT_MIN, Unread
from flotilla_client.policies import Policy
from flotilla_client.protocol import has_wildcard, matches

STALE_CURSORS_MIN: Final = 16  # in a heap of cursors: fewer are not worth sweeping
STALE_TIMES_MIN: Final = 1_000  # the same of times at which nothing gets too old any more
TOPIC_COLUMNS: Final = "number, name, last_id, active, added_bytes, crc"


@dataclass(slots=True, eq=False)
class Subscription:
    """A client's place in a topic: it has everything up to `cursor`.

    `age`: the entry that brought the publication behind `aged_id`, where it was looked up last;
    `served`: which answer of this node's to a GET of any topic was the last with this one; both are
    no state (`store.read_any`). `placed`: the entry that had it begin somewhere else than at the
    end, or moved it; 0: none has. `is_brought`: it stands by patterns of the client's alone.
    """

    client: int
    cursor: int
    placed: int = 0
    is_brought: bool = False
    aged_id: int = -1
    age: int = 0
    served: int = 0


@dataclass(slots=True, eq=False)
class Topic:
    """A topic, its subscribers and its groups; active while there are any, or a policy.

    `groups`: the cursor of each, by name (groups.py).
    Invariants: `floor_id` is the least cursor (without any: `last_id`), or what the policy keeps if
    that is less, or `gone_id`, up to which everything was purged or dropped, or `lapsed_id`, if
    that is more; a policy's floor never goes back. `cursors` counts who is at each, subscriber or
    group, `heap` has each of these cursors and perhaps some that nobody is at any more. What is
    purged, dropped or has expired moves no cursor: who has not read up to it is told. `read_id`:
    the least cursor. Up to `compacted_id` all is compacted (compaction.py): what stays of it stands
    in rows of its own. `oldest_end` is the last id of the oldest row on disk, 0 without one;
    `dropped_bytes` of the `added_bytes` ever were collected. `watchers`: of clients that have read
    all, the names to which the next publication adds this one (unread.py); no state.
    """

    number: int
    name: str
    last_id: int
    added_bytes: int
    floor_id: int = 0
    purged_id: int = 0
    read_id: int = 0
    compacted_id: int = 0
    oldest_end: int = 0
    dropped_bytes: int = 0
    subscribers: dict[str, Subscription] = field(default_factory=dict)
    groups: dict[str, int] = field(default_factory=dict)
    cursors: dict[int, int] = field(default_factory=dict)
    heap: list[int] = field(default_factory=list)
    retention: Retention | None = None
    expiry: Expiry | None = None
    watchers: dict[str, dict[str, None]] = field(default_factory=dict)

    @property
    def is_active(self) -> bool:
        """Whether there is such a topic."""
        return bool(self.subscribers or self.groups) or self.retention is not None

    @property
    def takes(self) -> bool:
        """Whether what is published is stored: somebody subscribes, or the policy keeps it."""
        kept = self.retention
        return bool(self.subscribers or self.groups) or (kept is not None and kept.policy.keeps)

    @property
    def is_compacted(self) -> bool:
        """Whether of each key the last publication stays."""
        return self.retention is not None and self.retention.policy.compact

    @property
    def dead_id(self) -> int:
        """Up to where nothing is read of the rows of publications."""
        return max(self.floor_id, self.compacted_id)

    @property
    def dropped_id(self) -> int:
        """Up to where publications were dropped as the topic was full, 0 if none were."""
        return 0 if self.retention is None else self.retention.dropped_id

    @property
    def gone_id(self) -> int:
        """Up to where publications are gone, whoever has not read them."""
        return max(self.purged_id, self.dropped_id)

    @property
    def expired_id(self) -> int:
        """Up to where all publications have expired, as far as that is known in stretches."""
        return 0 if self.expiry is None else self.expiry.expired_id

    @property
    def lapsed_id(self) -> int:
        """Up to where publications have expired that no group has still to look at.

        What expires in a group may become a dead letter, by a take.
        """
        return min(self.expired_id, *self.groups.values()) if self.groups else self.expired_id

    def place_group(self, name: str, cursor: int | None) -> None:
        """Let a group's cursor stand there from now on; None: the group has ended."""
        if name in self.groups:
            self._depart(self.groups[name])
        if cursor is None:
            del self.groups[name]
        else:
            assert cursor <= self.last_id, (name, cursor, self.last_id)
            self.groups[name] = cursor
            self._enter(cursor)
        self.find_floor()

    def join(self, client_id: str, subscription: Subscription) -> None:
        """Add a subscriber."""
        self.subscribers[client_id] = subscription
        self._enter(subscription.cursor)
        self.find_floor()

    def leave(self, client_id: str) -> None:
        """Remove a subscriber; without any, nothing in the topic lives."""
        self._depart(self.subscribers.pop(client_id).cursor)
        self.find_floor()

    def advance(self, subscription: Subscription, cursor: int) -> None:
        """Move a subscriber's cursor up."""
        assert subscription.cursor < cursor <= self.last_id, (subscription, cursor, self.last_id)
        self._depart(subscription.cursor)
        subscription.cursor = cursor
        self._enter(cursor)
        self.find_floor()

    def place(self, subscription: Subscription, cursor: int) -> None:
        """Move a subscriber's cursor to either side, not below the floor."""
        assert self.floor_id <= cursor <= self.last_id, (subscription, cursor, self.floor_id)
        self._depart(subscription.cursor)
        subscription.cursor = cursor
        self._enter(cursor)
        self.find_floor()

    def _enter(self, cursor: int) -> None:
        count = self.cursors.get(cursor, 0)
        self.cursors[cursor] = count + 1
        if count == 0:
            if len(self.heap) > 2 * len(self.cursors) + STALE_CURSORS_MIN:
                self.heap = sorted(self.cursors)
            else:
                heapq.heappush(self.heap, cursor)

    def _depart(self, cursor: int) -> None:
        if self.cursors[cursor] == 1:
            del self.cursors[cursor]
        else:
            self.cursors[cursor] -= 1

    def find_floor(self) -> None:
        """Find the least cursor, in logarithmic time however many subscribers there are."""
        heap = self.heap
        while heap and heap[0] not in self.cursors:
            heapq.heappop(heap)
        self.read_id = read_id = heap[0] if heap else self.last_id
        kept, lapsed_id = self.retention, self.lapsed_id if self.expiry is not None else 0
        if kept is None:
            self.floor_id = max(read_id, self.purged_id, lapsed_id)
        else:
            kept_id = min(read_id, kept.keep_id)
            self.floor_id = max(self.floor_id, kept_id, self.gone_id, lapsed_id)
            kept.floor_moved(self.floor_id)
        if self.expiry is not None:
            self.expiry.floor_moved(self.floor_id)

    def lag(self, cursor: int) -> int:
        """Return how many publications are kept for whoever has everything up to `cursor`."""
        return self.last_id - max(cursor, self.gone_id, self.expired_id)


def restored(database: Database, columns: tuple[Any, ...]) -> Topic:
    """Return a topic from its TOPIC_COLUMNS, without subscribers and as if nothing were on disk."""
    number, name, last_id, active, added_bytes, crc = columns
    database.verify(crc, (number, name, last_id, active, added_bytes))
    topic = Topic(number, name, last_id, added_bytes, last_id, dropped_bytes=added_bytes)
    for purged_id, purged_crc in database.query(_PURGED, (number,)):
        database.verify(purged_crc, (number, purged_id))
        topic.purged_id = purged_id
    return topic


def topic_row(topic: Topic) -> tuple[Any, ...]:
    """Return the topic's row of `topics`."""
    active = int(topic.is_active)
    row = (topic.number, topic.name, topic.last_id, active, topic.added_bytes)
    return (*row, row_crc(row))


class Topics:
    """The topics that have subscribers or a policy, by name and by client."""

    def __init__(self, database: Database, garbage: dict[str, Topic]) -> None:
        """`garbage`: topics that, subscribers or not, have dead rows on disk."""
        self._database = database
        self._garbage = garbage
        self._left: dict[str, Topic] = {}  # lost the last subscriber since the last commit
        self._dirty: set[Topic] = set()
        self._purged: set[Topic] = set()  # whose `purged_id` is to be written
        self._dirty_cursors: dict[tuple[int, int], int | None] = {}  # (topic, client); None: gone
        self._dirty_placed: dict[tuple[int, int], int] = {}  # the same; 0: gone
        self._dirty_brought: dict[tuple[int, int], bool] = {}  # the same; False: gone
        self._dirty_policies: set[Topic] = set()
        self._dirty_expiries: set[Topic] = set()
        self._stirred: set[Topic] = set()  # see take_stirred
        # Numbers of topics of which something gets too old, by the log's time, and some of which
        # nothing does then. A topic that has died and lives again may be another object.
        self._due: list[tuple[int, int]] = []
        self._awaited: dict[int, tuple[int, Topic]] = {}  # by number: for when
        self.active: dict[str, Topic] = {}
        self._names: list[str] = []  # of the active ones, sorted: kept so, or a page costs them all
        self.by_client: dict[str, dict[str, Topic]] = {}
        self._unread: dict[str, Unread] = {}  # of clients that have asked for any topic
        # Topics of which something is gone that somebody has not read: when that was noted last, as
        # a number, and up to where. The last ones are those that were noted last.
        self._losses: dict[str, tuple[int, int]] = {}
        self.losses_count = 0
        self.subscriptions_count = 0
        sql = "SELECT ifnull(max(number), 0) FROM topics"
        self.names_count: int = database.query(sql)[0][0]
        self._load()

    def _load(self) -> None:
        query = self._database.query
        by_number: dict[int, Topic] = {}
        for row in query(f"SELECT {TOPIC_COLUMNS} FROM topics WHERE active"):
            by_number[row[0]] = self.active[row[1]] = restored(self._database, row)
        for number, client, cursor, crc, client_id in query(_SUBSCRIPTIONS):
            self._database.verify(crc, (number, client, cursor))
            topic = by_number.get(number)
            if topic is None or client_id is None or cursor > topic.last_id:
                raise CorruptStore(self._database.path, f"subscription {number, client, cursor}")
            self._add(client_id, topic, Subscription(client, cursor))
        self._load_marks(by_number)
        for number, name, cursor in query(_GROUPS):  # whole rows are looked at by groups.py
            topic = by_number.get(number)
            if topic is not None and cursor <= topic.last_id:
                topic.place_group(name, cursor)
        self._load_policies(by_number)
        self._load_expiries(by_number)
        self._names = sorted(self.active)

    def _load_marks(self, by_number: Mapping[int, Topic]) -> None:
        """Read which subscriptions were placed, and which were brought."""
        placed = self._database.query("SELECT topic, client, at, crc FROM placed")
        brought = self._database.query("SELECT topic, client, crc FROM brought")
        marked = {number for number, *_ in (*placed, *brought)}
        by_place = {
            (number, each.client): each
            for number in marked & by_number.keys()
            for each in by_number[number].subscribers.values()
        }

        def marked_one(number: int, client: int) -> Subscription:
            subscription = by_place.get((number, client))
            if subscription is None:
                raise CorruptStore(self._database.path, f"place of no subscription {client}")
            return subscription

        for number, client, at, crc in placed:
            self._database.verify(crc, (number, client, at))
            marked_one(number, client).placed = at
        for number, client, crc in brought:
            self._database.verify(crc, (number, client))
            marked_one(number, client).is_brought = True

    def _load_expiries(self, by_number: Mapping[int, Topic]) -> None:
        """Behind all policies: what is below the floor is forgotten."""
        for number, floor_id, text, crc in self._database.query(_EXPIRIES):
            self._database.verify(crc, (number, floor_id, text))
            topic = by_number.get(number)
            if topic is None:
                raise CorruptStore(self._database.path, f"expiry of no topic {number}")
            topic.expiry = Expiry.of(text)
            topic.find_floor()
            self._await(topic)

    def _load_policies(self, by_number: Mapping[int, Topic]) -> None:
        """Behind all cursors, of groups as well: a policy's floor never goes back to one."""
        for number, floor_id, text, crc in self._database.query(_POLICIES):
            self._database.verify(crc, (number, floor_id, text))
            topic = by_number.get(number)
            if topic is None:
                raise CorruptStore(self._database.path, f"policy of no topic {number}")
            topic.retention = Retention.of(text)
            topic.floor_id = floor_id
            topic.find_floor()
            self._await(topic)

    def _add(self, client_id: str, topic: Topic, subscription: Subscription) -> None:
        topic.join(client_id, subscription)
        self.by_client.setdefault(client_id, {})[topic.name] = topic
        self.stir(client_id, topic.name)
        self.subscriptions_count += 1

    def of(self, client_id: str) -> dict[str, Topic]:
        """Return the client's topics by name: not to be changed."""
        return self.by_client.get(client_id, {})

    def unread(self, client_id: str) -> Unread:
        """Return what the client has not read, as it was looked at last."""
        unread = self._unread.get(client_id)
        if unread is None:
            own = self.of(client_id)
            is_kept = len(own) >= KEPT_MIN
            unread = Unread(client_id, own, is_kept)
            if is_kept:
                self._unread[client_id] = unread
        return unread

    def stir(self, client_id: str, name: str) -> None:
        """Have a client's topic looked at when it asks for any topic: its place has changed."""
        unread = self._unread.get(client_id)
        if unread is not None:
            unread.stirred[name] = None

    def lost_since(self, count: int) -> Iterator[str]:
        """Yield the topics of which something unread is gone since `losses_count` was `count`."""
        for name, (at, _) in reversed(self._losses.items()):
            if at <= count:
                return
            yield name

    def page(self, after: str, count_max: int) -> list[Topic]:
        """Return up to `count_max` topics whose names come after `after`, by name."""
        start = bisect_right(self._names, after)
        return [self.active[name] for name in self._names[start : start + count_max]]

    def join(
        self, client: Client, topic: Topic, cursor: int, placed: int, is_brought: bool = False
    ) -> None:
        """Subscribe the client behind `cursor`; the rest as in `Subscription`."""
        self._activate(topic)
        self._add(client.client_id, topic, Subscription(client.number, cursor, placed, is_brought))
        self._dirty_cursors[topic.number, client.number] = cursor
        if is_brought:
            self._dirty_brought[topic.number, client.number] = True
        if placed:
            self._dirty_placed[topic.number, client.number] = placed
        self._touch(topic)

    def leave(self, client: Client, topic: Topic) -> None:
        """End the client's subscription; with the last one the topic dies."""
        topics = self.by_client[client.client_id]
        del topics[topic.name]
        if client.client_id in self._unread:
            self._unread[client.client_id].leave(topic.name)
        topic.watchers.pop(client.client_id, None)
        if not topics:
            del self.by_client[client.client_id]
            self._unread.pop(client.client_id, None)
        self.subscriptions_count -= 1
        if topic.subscribers[client.client_id].placed:
            self._dirty_placed[topic.number, client.number] = 0
        self.name(client, topic)
        topic.leave(client.client_id)
        self._dirty_cursors[topic.number, client.number] = None
        self._touch(topic)
        self._deactivate(topic)

    def name(self, client: Client, topic: Topic) -> None:
        """Have a subscription stand by the topic's own name, whoever has brought it."""
        if topic.subscribers[client.client_id].is_brought:
            topic.subscribers[client.client_id].is_brought = False
            self._dirty_brought[topic.number, client.number] = False

    def matching(self, pattern: str) -> Iterator[Topic]:
        """Yield the topics of a pattern, by name: those alone are looked at that begin as it."""
        prefix = re.split(r"[*>]", pattern)[0]
        names = self._names[bisect_left(self._names, prefix) :]
        alike = takewhile(lambda name: name.startswith(prefix), names)
        found = (name for name in alike if matches(pattern, name) and not has_wildcard(name))
        return (self.active[name] for name in found)

    def place_group(self, topic: Topic, name: str, cursor: int | None) -> None:
        """See `Topic`; a topic lives as long as it has a subscriber or a group."""
        if cursor is not None:
            self._activate(topic)
        topic.place_group(name, cursor)
        self._touch(topic)
        self._deactivate(topic)

    def _activate(self, topic: Topic) -> None:
        if not topic.is_active:
            self.active[topic.name] = topic
            self.names_count = max(self.names_count, topic.number)
            insort(self._names, topic.name)
            self._dirty.add(topic)

    def _deactivate(self, topic: Topic) -> None:
        if not topic.is_active:
            topic.expiry = None
            self._awaited.pop(topic.number, None)
            self._losses.pop(topic.name, None)
            self._stirred.add(topic)
            self._left[topic.name] = self.active.pop(topic.name)
            del self._names[bisect_left(self._names, topic.name)]
            self._dirty.add(topic)

    def advance(self, client_id: str, topic: Topic, cursor: int) -> None:
        """Move a client's cursor up."""
        subscription = topic.subscribers[client_id]
        topic.advance(subscription, cursor)
        self.stir(client_id, topic.name)
        self._dirty_cursors[topic.number, subscription.client] = cursor
        self._touch(topic)

    def place(self, client_id: str, topic: Topic, cursor: int, placed: int) -> None:
        """Move a client's cursor to either side, by the entry `placed`."""
        subscription = topic.subscribers[client_id]
        topic.place(subscription, cursor)
        self.stir(client_id, topic.name)
        subscription.placed, subscription.aged_id = placed, -1
        self._dirty_cursors[topic.number, subscription.client] = cursor
        self._dirty_placed[topic.number, subscription.client] = placed
        self._touch(topic)

    def purge(self, topic: Topic, last_id: int) -> None:
        """Let everything up to `last_id` be dead, whoever has not read it."""
        assert topic.purged_id < last_id <= topic.last_id, (topic, last_id)
        topic.purged_id = last_id
        topic.find_floor()
        self._purged.add(topic)
        self._touch(topic)

    # --- policies -------------------------------------------------------------------------------

    def set_policy(self, topic: Topic, policy: Policy, base_bytes: int, log_ms: int) -> None:
        """Give a topic a policy, or another one; `base_bytes` of those ever added are dead.

        What is there counts as come now where nothing was measured before.
        """
        kept = topic.retention
        if kept is None:
            self._activate(topic)
            topic.retention = kept = Retention(policy, base_bytes)
            measured = False
        else:
            measured, kept.policy, kept.keep_id = kept.measures, policy, 0
        if not kept.measures:
            kept.stretches = []
        elif not measured:
            kept.base_bytes = base_bytes
            kept.begin(topic.last_id, topic.added_bytes, log_ms)
        if policy.drops:
            kept.make_room(topic.added_bytes, 0)
        self._keep(topic, log_ms)

    def end_policy(self, topic: Topic) -> None:
        """Let a topic without subscribers or groups be gone."""
        assert not topic.subscribers, topic
        assert not topic.groups, topic
        topic.retention = None
        topic.find_floor()
        self._dirty_policies.add(topic)
        self._touch(topic)
        self._deactivate(topic)

    def make_room(self, topic: Topic, size_bytes: int) -> bool:
        """Drop the oldest of a topic that drops, until there is room for so many bytes more.

        Returns whether something was dropped.
        """
        kept, before_id = topic.retention, topic.dropped_id
        if kept is not None and kept.policy.drops:
            kept.make_room(topic.added_bytes, size_bytes)
        return topic.dropped_id > before_id

    def put(self, topic: Topic, log_ms: int, before_id: int = 0, over_ms: int = NEVER) -> None:
        """Take note of what was added to a topic, behind `before_id`, and when it has expired."""
        if topic.expiry is None and over_ms < NEVER:
            topic.expiry = Expiry()
            if topic.floor_id < before_id:
                topic.expiry.added(before_id, NEVER)
        if topic.expiry is not None:
            topic.expiry.added(topic.last_id, over_ms)
            self._touch(topic)
        if topic.retention is not None:
            topic.retention.added(topic.last_id, topic.added_bytes, log_ms)
            self._keep(topic, log_ms)

    def pass_to(self, log_ms: int) -> list[Topic]:
        """Let the log's time pass; return the topics of which something was too old to be kept."""
        found: list[Topic] = []
        while self._due and self._due[0][0] <= log_ms:
            due_ms, number = heapq.heappop(self._due)
            awaited_ms, topic = self._awaited.get(number, (NEVER, None))
            if topic is None or awaited_ms != due_ms:
                continue
            del self._awaited[number]
            if topic.expiry is not None and topic.expiry.pass_to(log_ms):
                topic.find_floor()
                self._touch(topic)
            if topic.retention is not None:
                self._keep(topic, log_ms)
            self._await(topic)
            found.append(topic)
        return found

    @property
    def has_ages(self) -> bool:
        """Whether a topic is to be looked at for what gets too old."""
        return bool(self._due)

    def _keep(self, topic: Topic, log_ms: int) -> None:
        kept = topic.retention
        assert kept is not None, topic
        kept.find_kept(topic.last_id, topic.added_bytes, log_ms)
        topic.find_floor()
        self._touch(topic)
        self._await(topic)

    def _await(self, topic: Topic) -> None:
        """Have it looked at when something gets too old; then, or sooner, it may be already."""
        ages = [each.due_ms for each in (topic.retention, topic.expiry) if each is not None]
        due_ms = min((each for each in ages if each is not None), default=None)
        if due_ms is not None and due_ms < self._awaited.get(topic.number, (NEVER, topic))[0]:
            self._awaited[topic.number] = due_ms, topic
            if len(self._due) > 2 * len(self._awaited) + STALE_TIMES_MIN:
                self._due = sorted((at_ms, each) for each, (at_ms, _) in self._awaited.items())
            else:
                heapq.heappush(self._due, (due_ms, topic.number))

    def _touch(self, topic: Topic) -> None:
        """Have the rows written that say its floor: it may have moved, over what is unread."""
        if topic.floor_id > topic.read_id:
            self._note_loss(topic)
        if topic.retention is not None:
            self._dirty_policies.add(topic)
        if topic.is_compacted or topic.compacted_id:
            self._stirred.add(topic)
        if topic.expiry is not None:
            self._dirty_expiries.add(topic)
            self._await(topic)

    def _note_loss(self, topic: Topic) -> None:
        if self._losses.get(topic.name, (0, 0))[1] != topic.floor_id:
            self._losses.pop(topic.name, None)
            self.losses_count += 1
            self._losses[topic.name] = self.losses_count, topic.floor_id

    def take_stirred(self) -> set[Topic]:
        """Return, once, the topics of which there may be something to compact."""
        stirred, self._stirred = self._stirred, set()
        return stirred

    def inactive(self, name: str) -> Topic | None:
        """Return a topic that has no subscriber, None if it never existed."""
        topic = self._left.get(name) or self._garbage.get(name)
        if topic is not None:
            return topic
        sql = f"SELECT {TOPIC_COLUMNS} FROM topics WHERE name = ?"
        rows = self._database.query(sql, (name,))
        return restored(self._database, rows[0]) if rows else None

    def create(self, name: str) -> Topic:
        """Return a new topic, to be joined or given a policy: until then it does not count."""
        return Topic(self.names_count + 1, name, last_id=0, added_bytes=0)

    def grown(self, topics: list[Topic]) -> None:
        """Have the rows of topics that got publications written with the next flush."""
        self._dirty.update(topics)
        for topic in topics:
            for stirred in topic.watchers.values():
                stirred[topic.name] = None
            topic.watchers.clear()

    def flush(self) -> None:
        """Write what changed, in the open transaction."""
        if self._dirty:
            rows = [topic_row(topic) for topic in in_order(self._dirty)]
            self._database.write(_UPSERT_TOPIC, rows)
            self._dirty.clear()
        if self._dirty_cursors:
            dirty = self._dirty_cursors.items()
            gone = [key for key, cursor in dirty if cursor is None]
            here = [(*key, cursor) for key, cursor in dirty if cursor is not None]
            if gone:
                self._database.write(_DELETE_SUBSCRIPTION, gone)
            self._database.write(_UPSERT_SUBSCRIPTION, [(*row, row_crc(row)) for row in here])
            self._dirty_cursors.clear()
        if self._purged:
            purged = [(topic.number, topic.purged_id) for topic in in_order(self._purged)]
            sql = "INSERT OR REPLACE INTO purged VALUES(?, ?, ?)"
            self._database.write(sql, [(*row, row_crc(row)) for row in purged])
            self._purged.clear()
        self._flush_placed()
        self._flush_brought()
        self._flush_policies()
        self._flush_expiries()

    def _flush_placed(self) -> None:
        if self._dirty_placed:
            dirty = self._dirty_placed.items()
            gone = [key for key, at in dirty if not at]
            self._database.write("DELETE FROM placed WHERE topic = ? AND client = ?", gone)
            here = [(*key, at) for key, at in dirty if at]
            sql = "INSERT OR REPLACE INTO placed VALUES(?, ?, ?, ?)"
            self._database.write(sql, [(*row, row_crc(row)) for row in here])
            self._dirty_placed.clear()

    def _flush_brought(self) -> None:
        if self._dirty_brought:
            dirty = self._dirty_brought.items()
            gone = [key for key, is_brought in dirty if not is_brought]
            self._database.write("DELETE FROM brought WHERE topic = ? AND client = ?", gone)
            here = [(*key, row_crc(key)) for key, is_brought in dirty if is_brought]
            self._database.write("INSERT OR REPLACE INTO brought VALUES(?, ?, ?)", here)
            self._dirty_brought.clear()

    def _flush_policies(self) -> None:
        if self._dirty_policies:
            dirty = in_order(self._dirty_policies)
            gone = [(each.number,) for each in dirty if each.retention is None]
            self._database.write("DELETE FROM policies WHERE topic = ?", gone)
            here = [
                (each.number, each.floor_id, each.retention.text())
                for each in dirty
                if each.retention is not None
            ]
            sql = "INSERT OR REPLACE INTO policies VALUES(?, ?, ?, ?)"
            self._database.write(sql, [(*row, row_crc(row)) for row in here])
            self._dirty_policies.clear()

    def _flush_expiries(self) -> None:
        if self._dirty_expiries:
            dirty = in_order(self._dirty_expiries)
            gone = [(each.number,) for each in dirty if each.expiry is None]
            self._database.write("DELETE FROM expiries WHERE topic = ?", gone)
            here = [
                (each.number, each.floor_id, each.expiry.text())
                for each in dirty
                if each.expiry is not None
            ]
            sql = "INSERT OR REPLACE INTO expiries VALUES(?, ?, ?, ?)"
            self._database.write(sql, [(*row, row_crc(row)) for row in here])
            self._dirty_expiries.clear()

    def committed(self) -> None:
        """Forget topics without subscribers: their rows are written."""
        self._left.clear()


_SUBSCRIPTIONS: Final = (
    "SELECT topic, client, cursor, subscriptions.crc, client_id FROM subscriptions"
    " LEFT JOIN clients ON clients.number = client ORDER BY topic, client"
)
_GROUPS: Final = "SELECT topic, name, cursor FROM groups"
_POLICIES: Final = "SELECT topic, floor_id, text, crc FROM policies ORDER BY topic"
_EXPIRIES: Final = "SELECT topic, floor_id, text, crc FROM expiries ORDER BY topic"
_PURGED: Final = "SELECT last_id, crc FROM purged WHERE topic = ?"
_DELETE_SUBSCRIPTION: Final = "DELETE FROM subscriptions WHERE topic = ? AND client = ?"
_UPSERT_SUBSCRIPTION: Final = "INSERT OR REPLACE INTO subscriptions VALUES(?, ?, ?, ?)"
_UPSERT_TOPIC: Final = (
    "INSERT INTO topics VALUES(?, ?, ?, ?, ?, ?) ON CONFLICT(number) DO UPDATE SET"
    " last_id = excluded.last_id, active = excluded.active, added_bytes = excluded.added_bytes,"
    " crc = excluded.crc"
)
