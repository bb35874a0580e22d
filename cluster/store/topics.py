"""Topics and their subscriptions, in memory: who is subscribed to what, and up to where.

What lives here: topics with a subscriber, cursors, the floor under which a topic's publications
are dead, and the rows of both tables. What must not: publications (`publications.py`), the rules of
requests (`store.py`).

A topic that lost its last subscriber is not kept in memory; its row stays, so that its ids go on
when it is created again.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right, insort
from dataclasses import dataclass, field
from typing import Any, Final

from cluster.store.clients import Client
from cluster.store.tables import CorruptStore, Database, row_crc

STALE_CURSORS_MIN: Final = 16  # in a heap of cursors: fewer are not worth sweeping
TOPIC_COLUMNS: Final = "number, name, last_id, active, added_bytes, crc"


@dataclass(slots=True, eq=False)
class Subscription:
    """A client's place in a topic: it has everything up to `cursor`.

    `age`: the entry that brought the publication behind `aged_id`, where it was looked up last
    (`store.read_any`).
    """

    client: int
    cursor: int
    aged_id: int = -1
    age: int = 0


@dataclass(slots=True, eq=False)
class Topic:
    """A topic, its subscribers and its groups; active while there are any.

    `groups`: the cursor of each, by name (groups.py).
    Invariants: `floor_id` is the least cursor (without any: `last_id`), or `purged_id`, up to which
    everything was purged, if that is more. `cursors` counts who is at each, subscriber or group,
    `heap` has each of these cursors and perhaps some that nobody is at any more. A purge moves no
    cursor: who has not read up to it is told. `oldest_end` is the last id of the oldest row on
    disk, 0 without one; `dropped_bytes` of the `added_bytes` ever were collected.
    """

    number: int
    name: str
    last_id: int
    added_bytes: int
    floor_id: int = 0
    purged_id: int = 0
    oldest_end: int = 0
    dropped_bytes: int = 0
    subscribers: dict[str, Subscription] = field(default_factory=dict)
    groups: dict[str, int] = field(default_factory=dict)
    cursors: dict[int, int] = field(default_factory=dict)
    heap: list[int] = field(default_factory=list)

    @property
    def is_active(self) -> bool:
        """Whether somebody wants what is published from now on."""
        return bool(self.subscribers or self.groups)

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
        self.floor_id = max(heap[0], self.purged_id) if heap else self.last_id

    def lag(self, cursor: int) -> int:
        """Return how many publications are kept for whoever has everything up to `cursor`."""
        return self.last_id - max(cursor, self.purged_id)


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
    """The topics that have subscribers, by name and by client."""

    def __init__(self, database: Database, garbage: dict[str, Topic]) -> None:
        """`garbage`: topics that, subscribers or not, have dead rows on disk."""
        self._database = database
        self._garbage = garbage
        self._left: dict[str, Topic] = {}  # lost the last subscriber since the last commit
        self._dirty: set[Topic] = set()
        self._purged: set[Topic] = set()  # whose `purged_id` is to be written
        self._dirty_cursors: dict[tuple[int, int], int | None] = {}  # (topic, client); None: gone
        self.active: dict[str, Topic] = {}
        self._names: list[str] = []  # of the active ones, sorted: kept so, or a page costs them all
        self.by_client: dict[str, dict[str, Topic]] = {}
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
        self._names = sorted(self.active)

    def _add(self, client_id: str, topic: Topic, subscription: Subscription) -> None:
        topic.join(client_id, subscription)
        self.by_client.setdefault(client_id, {})[topic.name] = topic
        self.subscriptions_count += 1

    def of(self, client_id: str) -> dict[str, Topic]:
        """Return the client's topics by name: not to be changed."""
        return self.by_client.get(client_id, {})

    def page(self, after: str, count_max: int) -> list[Topic]:
        """Return up to `count_max` topics whose names come after `after`, by name."""
        start = bisect_right(self._names, after)
        return [self.active[name] for name in self._names[start : start + count_max]]

    def join(self, client: Client, topic: Topic) -> int:
        """Subscribe the client behind the topic's last publication; return that cursor."""
        self._activate(topic)
        self._add(client.client_id, topic, Subscription(client.number, topic.last_id))
        self._dirty_cursors[topic.number, client.number] = topic.last_id
        return topic.last_id

    def leave(self, client: Client, topic: Topic) -> None:
        """End the client's subscription; with the last one the topic dies."""
        topics = self.by_client[client.client_id]
        del topics[topic.name]
        if not topics:
            del self.by_client[client.client_id]
        self.subscriptions_count -= 1
        topic.leave(client.client_id)
        self._dirty_cursors[topic.number, client.number] = None
        self._deactivate(topic)

    def place_group(self, topic: Topic, name: str, cursor: int | None) -> None:
        """See `Topic`; a topic lives as long as it has a subscriber or a group."""
        if cursor is not None:
            self._activate(topic)
        topic.place_group(name, cursor)
        self._deactivate(topic)

    def _activate(self, topic: Topic) -> None:
        if not topic.is_active:
            self.active[topic.name] = topic
            insort(self._names, topic.name)
            self._dirty.add(topic)

    def _deactivate(self, topic: Topic) -> None:
        if not topic.is_active:
            self._left[topic.name] = self.active.pop(topic.name)
            del self._names[bisect_left(self._names, topic.name)]
            self._dirty.add(topic)

    def advance(self, topic: Topic, subscription: Subscription, cursor: int) -> None:
        """Move a cursor up."""
        topic.advance(subscription, cursor)
        self._dirty_cursors[topic.number, subscription.client] = cursor

    def purge(self, topic: Topic, last_id: int) -> None:
        """Let everything up to `last_id` be dead, whoever has not read it."""
        assert topic.purged_id < last_id <= topic.last_id, (topic, last_id)
        topic.purged_id = last_id
        topic.find_floor()
        self._purged.add(topic)

    def inactive(self, name: str) -> Topic | None:
        """Return a topic that has no subscriber, None if it never existed."""
        topic = self._left.get(name) or self._garbage.get(name)
        if topic is not None:
            return topic
        sql = f"SELECT {TOPIC_COLUMNS} FROM topics WHERE name = ?"
        rows = self._database.query(sql, (name,))
        return restored(self._database, rows[0]) if rows else None

    def create(self, name: str) -> Topic:
        """Return a new topic, to be joined."""
        self.names_count += 1
        return Topic(self.names_count, name, last_id=0, added_bytes=0)

    def grown(self, topics: list[Topic]) -> None:
        """Have the rows of topics that got publications written with the next flush."""
        self._dirty.update(topics)

    def flush(self) -> None:
        """Write what changed, in the open transaction."""
        if self._dirty:
            self._database.write(_UPSERT_TOPIC, [topic_row(topic) for topic in self._dirty])
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
            purged = [(topic.number, topic.purged_id) for topic in self._purged]
            sql = "INSERT OR REPLACE INTO purged VALUES(?, ?, ?)"
            self._database.write(sql, [(*row, row_crc(row)) for row in purged])
            self._purged.clear()

    def committed(self) -> None:
        """Forget topics without subscribers: their rows are written."""
        self._left.clear()


_SUBSCRIPTIONS: Final = (
    "SELECT topic, client, cursor, subscriptions.crc, client_id FROM subscriptions"
    " LEFT JOIN clients ON clients.number = client ORDER BY topic, client"
)
_PURGED: Final = "SELECT last_id, crc FROM purged WHERE topic = ?"
_DELETE_SUBSCRIPTION: Final = "DELETE FROM subscriptions WHERE topic = ? AND client = ?"
_UPSERT_SUBSCRIPTION: Final = "INSERT OR REPLACE INTO subscriptions VALUES(?, ?, ?, ?)"
_UPSERT_TOPIC: Final = (
    "INSERT INTO topics VALUES(?, ?, ?, ?, ?, ?) ON CONFLICT(number) DO UPDATE SET"
    " last_id = excluded.last_id, active = excluded.active, added_bytes = excluded.added_bytes,"
    " crc = excluded.crc"
)
