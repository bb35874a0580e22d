"""What the cluster's state is, by the protocol alone: a second, dumb implementation of the store.

What lives here: clients, topics, subscriptions, producers and publications as plain dictionaries,
what each operation of the log does to them, and how each stood at any index. What must not: the
product's store, a database, nodes, replies (replies.py holds those against this).

Written from docs/protocol.md, so that a rule which the store has wrong is wrong in one of two.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from struct import unpack
from typing import Any, Final, Generic, TypeVar

import orjson

from cluster.log.entries import FIRST_INDEX
from cluster.store.commands import Advance, Operation, Put, Register, Subscribe, Unsubscribe
from cluster.store.store import Limits

PUTS_REMEMBERED: Final = 1024  # docs/protocol.md: a duplicate among these gets its original id
INTEGER_MAX: Final = 2**53 - 1

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

    def during(self, first: int, last: int) -> Iterator[V]:
        """Yield what it was behind any entry from `first` to `last`."""
        start = bisect_right(self._indexes, first) - 1
        yield from self._values[start : bisect_right(self._indexes, last)]


@dataclass(slots=True)
class ReferenceProducer:
    """A client's counters of one topic; `puts`: (first counter, count, first id) of the last."""

    counter: ByIndex[int]
    puts: list[tuple[int, int, int]] = field(default_factory=list)


@dataclass(slots=True)
class ReferenceClient:
    """A client; `producers` by topic, `cursors` by topic (None: not subscribed)."""

    epoch: ByIndex[int]
    sequence: ByIndex[int]
    nonce: str
    names_bytes: int = 0
    producers: dict[str, ReferenceProducer] = field(default_factory=dict)
    cursors: dict[str, ByIndex[int | None]] = field(default_factory=dict)

    def topics_at(self, index: int) -> dict[str, int]:
        """Return {topic: cursor} of its subscriptions behind the entry at `index`."""
        found = ((topic, past.at(index)) for topic, past in self.cursors.items())
        return {topic: cursor for topic, cursor in found if cursor is not None}


@dataclass(slots=True)
class ReferenceTopic:
    """A topic; `publications` by id, with the entry that brought them."""

    last_id: ByIndex[int]
    publications: dict[int, tuple[int, bytes]] = field(default_factory=dict)
    subscribers: ByIndex[frozenset[str]] = field(default_factory=lambda: ByIndex(frozenset()))
    unread_from: int = 1  # the first id that somebody still wants


class Reference:
    """The state behind the entries that were applied so far, `applied_index` the last of them."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.applied_index = FIRST_INDEX  # every log begins with it; it says nothing
        self.clients: dict[str, ReferenceClient] = {}
        self.topics: dict[str, ReferenceTopic] = {}
        self._handlers: dict[type, Any] = {
            Register: self._register,
            Subscribe: self._subscribe,
            Unsubscribe: self._unsubscribe,
            Put: self._put,
            Advance: self._advance,
        }

    def apply(self, index: int, operations: Sequence[Operation]) -> list[Result | None]:
        """Carry out the entry at `index`; None: the operation is no client's."""
        self.applied_index = index
        handlers = self._handlers
        return [handlers.get(type(each), _nobodys)(index, each) for each in operations]

    # --- operations -------------------------------------------------------------------------------

    def _register(self, index: int, asked: Register) -> Result:
        client = self.clients.get(asked.client_id)
        if asked.fresh:
            if client is not None:
                return "bad_request", {}
            if len(self.clients) >= self.limits.clients_max:
                return "too_many", {"limit": self.limits.clients_max}
            client = ReferenceClient(ByIndex(0), ByIndex(0), asked.nonce)
            client.epoch.put(index, 1)
            client.sequence.put(index, asked.sequence or 0)
            self.clients[asked.client_id] = client
        elif client is None:
            return "unknown_client", {}
        elif asked.sequence is None:
            client.epoch.put(index, client.epoch.now + 1)
            client.nonce = ""
        elif asked.sequence > client.sequence.now:
            client.epoch.put(index, client.epoch.now + 1)
            client.sequence.put(index, asked.sequence)
            client.nonce = asked.nonce
        elif (asked.sequence, asked.nonce) != (client.sequence.now, client.nonce or None):
            return "stale_request", {"expected": client.sequence.now + 1}
        epoch, sequence = client.epoch.now, client.sequence.now
        return "", {"client_id": asked.client_id, "epoch": epoch, "sequence": sequence}

    def _identified(self, client_id: str, epoch: int | None) -> ReferenceClient | Result:
        client = self.clients.get(client_id)
        if client is None:
            return "unknown_client", {}
        if epoch is not None and epoch != client.epoch.now:
            return self.refusal_of(epoch, client.epoch.now)
        return client

    @staticmethod
    def refusal_of(epoch: int, newest: int) -> Result:
        """Return what a process is told whose epoch is not the newest; nobody recovers here."""
        return "recovered" if epoch > newest else "fenced", {"epoch": newest}

    def _controlling(self, index: int, asked: Subscribe | Unsubscribe) -> ReferenceClient | Result:
        client = self._identified(asked.client_id, asked.epoch)
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
        cursors = client.cursors.setdefault(asked.topic, ByIndex(None))
        if cursors.now is not None:
            return "", {"last_id": cursors.now, "resumed": True}
        limits, topic = self.limits, self.topics.get(asked.topic)
        own = sum(past.now is not None for past in client.cursors.values())
        active = [each for each in self.topics.values() if each.subscribers.now]
        for count, limit in (
            (own, limits.subscriptions_per_client_max),
            (sum(len(each.subscribers.now) for each in active), limits.subscriptions_max),
        ):
            if count >= limit:
                return "too_many", {"limit": limit}
        if not (topic and topic.subscribers.now) and len(active) >= limits.topics_max:
            return "too_many", {"limit": limits.topics_max}
        if topic is None:
            if len(self.topics) >= limits.topic_names_max:
                return "too_many", {"limit": limits.topic_names_max}
            topic = self.topics[asked.topic] = ReferenceTopic(ByIndex(0))
        cursors.put(index, topic.last_id.now)
        topic.subscribers.put(index, topic.subscribers.now | {asked.client_id})
        self._find_unread(asked.topic)
        return "", {"last_id": topic.last_id.now, "resumed": False}

    def _unsubscribe(self, index: int, asked: Unsubscribe) -> Result:
        client = self._controlling(index, asked)
        if not isinstance(client, ReferenceClient):
            return client
        cursors = client.cursors.get(asked.topic)
        if cursors is None or cursors.now is None:
            return "", {"was_subscribed": False}
        cursors.put(index, None)
        topic = self.topics[asked.topic]
        topic.subscribers.put(index, topic.subscribers.now - {asked.client_id})
        self._find_unread(asked.topic)
        return "", {"was_subscribed": True}

    def _put(self, index: int, asked: Put) -> Result:
        client = self._identified(asked.client_id, asked.epoch)
        if not isinstance(client, ReferenceClient):
            return client
        count = len(asked.lengths) // 4
        producer = client.producers.get(asked.topic)
        if producer is not None and asked.counter != producer.counter.now + 1:
            return _put_again(producer, asked.counter, count)
        if asked.counter + count - 1 > INTEGER_MAX:
            return "bad_request", {}
        topic = self.topics.get(asked.topic)
        is_kept = topic is not None and bool(topic.subscribers.now)
        if topic is not None and is_kept and topic.last_id.now + count > self.limits.id_max:
            return "too_many", {"limit": self.limits.id_max}
        if producer is None:
            limits, name_bytes = self.limits, len(orjson.dumps(asked.topic))
            if len(client.producers) >= limits.producers_per_client_max:
                return "too_many", {"limit": limits.producers_per_client_max}
            if client.names_bytes + name_bytes > limits.names_bytes_max:
                return "too_many", {"limit": limits.names_bytes_max}
            client.names_bytes += name_bytes
            producer = client.producers[asked.topic] = ReferenceProducer(ByIndex(-1))
        first_id = 0
        if topic is not None and is_kept:
            first_id = topic.last_id.now + 1
            topic.last_id.put(index, topic.last_id.now + count)
            at = 0
            for place, size in enumerate(unpack(f"<{count}I", asked.lengths)):
                topic.publications[first_id + place] = index, asked.data[at : at + size]
                at += size
        producer.counter.put(index, asked.counter + count - 1)
        producer.puts.append((asked.counter, count, first_id))
        del producer.puts[:-PUTS_REMEMBERED]
        return "", {"id": first_id, "count": count, "duplicate": False, "stored": bool(is_kept)}

    def _advance(self, index: int, asked: Advance) -> Result:
        client = self._identified(asked.client_id, asked.epoch)
        if not isinstance(client, ReferenceClient):
            return client
        for name, cursor in asked.cursors.items():
            topic, cursors = self.topics.get(name), client.cursors.get(name)
            if topic is None or not topic.subscribers.now:
                return "unknown_topic", {}
            if cursors is None or cursors.now is None:
                return "not_subscribed", {}
            if cursor > topic.last_id.now:
                return "bad_request", {"end": topic.last_id.now}
        for name, cursor in asked.cursors.items():
            cursors = client.cursors[name]
            if cursor > (cursors.now or 0):
                cursors.put(index, cursor)
                self._find_unread(name)
        return "", {}

    def _find_unread(self, name: str) -> None:
        """Forget what nobody wants any more, as far as it does not matter to a late answer."""
        topic = self.topics[name]
        subscribers = [self.clients[each].cursors[name].now or 0 for each in topic.subscribers.now]
        topic.unread_from = min(subscribers, default=topic.last_id.now) + 1

    # --- what is asked of it ----------------------------------------------------------------------

    def unread_bytes(self, name: str) -> int:
        """Return the bytes of a topic's publications that somebody has not acknowledged."""
        topic = self.topics[name]
        ids = range(topic.unread_from, topic.last_id.now + 1)
        return sum(len(topic.publications[each][1]) for each in ids)

    def cursor_at(self, client_id: str, topic: str, index: int) -> int | None:
        """Return where a subscription stood behind the entry at `index`, None: there was none."""
        client = self.clients.get(client_id)
        past = None if client is None else client.cursors.get(topic)
        return None if past is None else past.at(index)

    def last_id_at(self, topic: str, index: int) -> int:
        """Return a topic's last id behind the entry at `index`."""
        found = self.topics.get(topic)
        return 0 if found is None else found.last_id.at(index)

    def alive_since(self, index: int) -> set[str]:
        """Return the topics that have had a subscriber since the entry at `index`."""
        return {
            name
            for name, topic in self.topics.items()
            if all(topic.subscribers.during(index, self.applied_index))
        }

    def listing_at(self, client_id: str, index: int) -> list[dict[str, Any]]:
        """Return the rows of TOPICS: of a client's topics, or of all of them ("")."""
        if client_id:
            client = self.clients.get(client_id)
            own: Mapping[str, int] = {} if client is None else client.topics_at(index)
            return [
                {"topic": name, "last_id": end, "cursor": own[name], "backlog": end - own[name]}
                for name in sorted(own)
                for end in (self.last_id_at(name, index),)
            ]
        return [
            {"topic": name, "last_id": topic.last_id.at(index), "subscribers": len(subscribers)}
            for name, topic in sorted(self.topics.items())
            if (subscribers := topic.subscribers.at(index))
        ]


def _nobodys(index: int, asked: Operation) -> None:
    return None


def _put_again(producer: ReferenceProducer, counter: int, count: int) -> Result:
    last = producer.counter.now
    if counter > last:
        return "counter_gap", {"expected": last + 1}
    if counter + count - 1 > last:
        return "bad_request", {}
    answer: dict[str, Any] = {"id": 0, "count": count, "duplicate": True, "stored": None}
    for first, each_count, first_id in producer.puts:
        if first <= counter < first + each_count:
            answer["id"] = first_id + counter - first if first_id else 0
            answer["stored"] = first_id > 0
    return "", answer
