"""Random operations, and what the simulator's reference says of them: the oracle of the store."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from chaos.simulation.checks.reference import Reference
from cluster.store.commands import (
    Admit,
    Advance,
    Operation,
    Put,
    Register,
    Subscribe,
    SubscribePattern,
    Unsubscribe,
    UnsubscribePattern,
    encode,
)
from cluster.store.store import Delivery, Done, Limits, Outcome, Refused
from flotilla_client.protocol import pack, unpack

Answer = tuple[str, dict[str, Any]]

MEMBERS = {"a": "ia", "b": "ib", "c": "ic"}
SMALL = Limits(
    topics_max=3,
    topic_names_max=4,
    subscriptions_max=6,
    subscriptions_per_client_max=3,
    clients_max=4,
    producers_per_client_max=4,
    patterns_max=4,
    patterns_per_client_max=2,
    id_max=200,
)
CLIENTS = ("c0", "c1", "c2", "c3", "c4", "c5")
TOPICS = ("t0", "t1", "t2", "t.3", "t.4")
PATTERNS = ("*", "t.*", "t.>", ">", "*.3")


def answer_of(outcome: Outcome) -> Answer:
    """Return what the model can be compared with: the texts of messages are free."""
    if isinstance(outcome, Done):
        return "ok", outcome.body
    return outcome.code, outcome.details


class ModelStore:
    """The simulator's reference, asked as a store is, and the members beside it."""

    def __init__(self, limits: Limits = SMALL) -> None:
        self.members = dict(MEMBERS)
        self.reference = Reference(limits)
        self.reference.applied_index = 0  # its first entry is no leader's
        self._given: dict[tuple[str, str], tuple[int, int]] = {}  # by client and topic: when, where
        self._order: list[str] = []  # all that was given of any topic

    def begin_entry(self) -> None:
        self.reference.applied_index += 1

    def operate(self, operation: Operation) -> Answer:
        if isinstance(operation, Admit):
            if operation.node not in self.members:
                return "bad_request", {}
            self.members[operation.node] = operation.incarnation
            return "ok", {}
        [result] = self.reference.apply(self.reference.applied_index, [operation])
        assert result is not None, operation
        code, body = result
        return code or "ok", body

    def counters(self, client_id: str) -> dict[str, int]:
        producers = self.reference.clients[client_id].producers
        return {topic: producer.counter.now for topic, producer in producers.items()}

    def cursors(self, topic: str) -> dict[str, int]:
        """Return a topic's subscribers with their cursors."""
        clients = self.reference.clients.items()
        found = ((client_id, client.cursors.get(topic)) for client_id, client in clients)
        return {who: at.now for who, at in found if at is not None and at.now is not None}

    def subscriptions(self, client_id: str) -> dict[str, int]:
        client = self.reference.clients.get(client_id)
        return {} if client is None else client.topics_at(self.reference.applied_index)

    def placed(self, client_id: str, topic: str) -> int:
        """Return which entry has placed a subscription, 0: none."""
        client = self.reference.clients.get(client_id)
        return client.placed_at(self.reference.applied_index).get(topic, 0) if client else 0

    def topics(self) -> list[str]:
        return [row["topic"] for row in self.reference.listing_at("", self.reference.applied_index)]

    def last_id(self, topic: str) -> int:
        return self.reference.last_id_at(topic, self.reference.applied_index)

    def read(self, client_id: str, topic: str, last_id: int | None) -> Any:
        """Return the refusal's code, or (first id, all publications after `last_id`)."""
        cursors, end = self.cursors(topic), self.last_id(topic)
        if last_id is None:
            last_id = cursors.get(client_id, 0)
        if not cursors:
            return "unknown_topic"
        if client_id not in cursors:
            return "not_subscribed"
        if last_id > end:
            return "bad_request"
        if last_id < min(cursors.values()):
            return "already_acknowledged"
        publications = self.reference.topics[topic].publications
        return last_id + 1, [publications[id_][1] for id_ in range(last_id + 1, end + 1)]

    def next_of_any(self, client_id: str) -> str:
        """Return the client's topic that was given longest ago since `reopened`, "" without any.

        Of those that were not, the one whose next publication is the oldest.
        """
        waiting = [
            (
                self._given_at(client_id, topic),
                self.reference.topics[topic].publications[cursor + 1][0],
                topic,
            )
            for topic, cursor in self.subscriptions(client_id).items()
            if cursor < self.last_id(topic)
        ]
        if not waiting:
            return ""
        topic = min(waiting)[2]
        self._given[client_id, topic] = len(self._order), self.reference.applied_index
        self._order.append(topic)
        return topic

    def _given_at(self, client_id: str, topic: str) -> int:
        place, index = self._given.get((client_id, topic), (-1, 0))
        client, applied_index = self.reference.clients[client_id], self.reference.applied_index
        has_left = client.has_left_between(topic, index, applied_index)
        return -1 if has_left else place

    def reopened(self) -> None:
        """Forget what was given: the store does."""
        self._given.clear()

    def has_missed(self, client_id: str) -> bool:
        """Return whether a pattern of the client's has missed a topic."""
        client = self.reference.clients.get(client_id)
        return client is not None and bool(client.missed_at(self.reference.applied_index))


def check_delivery(delivery: Delivery | Refused, expected: Any, count: int, size: int) -> None:
    """Assert that a read answered what the model has, within both limits."""
    if isinstance(delivery, Refused):
        assert delivery.code == expected
        return
    assert not isinstance(expected, str), (delivery, expected)
    first_id, publications = expected
    got = unpack(delivery.lengths, delivery.data)
    assert got == publications[: len(got)]
    assert delivery.count == len(got) <= count
    assert delivery.first_id == (first_id if got else 0)
    assert len(got) <= 1 or len(delivery.data) <= size
    if not got:
        assert not publications
    elif len(got) < min(count, len(publications)):
        assert len(delivery.data) + len(publications[len(got)]) > size, "more would have fitted"


def random_operation(rng: random.Random, model: ModelStore) -> Operation:
    """Return an operation that is more often sensible than not."""
    client, topic = rng.choice(CLIENTS), rng.choice(TOPICS)
    known = model.reference.clients.get(client)
    newest, newest_sequence = (known.epoch.now, known.sequence.now) if known else (1, 0)
    epoch = rng.choice([None, newest, newest, newest + rng.choice((-1, 1))])
    epoch = None if epoch == 0 else epoch
    sequence = rng.choice([None, newest_sequence + rng.choice((-1, 0, 1, 2))])
    sequence = None if sequence is not None and sequence < 0 else sequence
    kind = rng.random()
    if kind < 0.12:
        fresh = known is None or rng.random() < 0.1
        return Register(client, fresh, sequence, rng.choice(("", "x", "y")))
    if kind < 0.27:
        return Subscribe(client, epoch, topic, sequence)
    if kind < 0.35:
        return Unsubscribe(client, epoch, topic, sequence)
    if kind < 0.36:
        return Admit(rng.choice("abcd"), f"i{rng.randrange(9)}")
    if kind < 0.4:
        pattern = rng.choice(PATTERNS)
        if rng.random() < 0.4:
            return UnsubscribePattern(client, epoch, pattern, sequence)
        start = rng.choice(("new", "earliest"))
        return SubscribePattern(client, epoch, pattern, sequence, start, 0)
    if kind < 0.6:
        topics = rng.sample(TOPICS, rng.choice((1, 1, 1, 2)))
        ends = {name: model.last_id(name) for name in topics}
        return Advance(
            client, epoch, {n: max(0, e - rng.randrange(-1, 5)) for n, e in ends.items()}
        )
    producer = known.producers.get(topic) if known else None
    expected = producer.counter.now + 1 if producer else rng.randrange(9)
    counter = max(0, expected + rng.choice((0, 0, 0, 0, 0, 0, 1, -1, -2, -5)))
    batch = [rng.randbytes(rng.randrange(40)) for _ in range(rng.choice((1, 1, 2, 5)))]
    return Put(client, epoch, topic, counter, *pack(batch))


def random_entries(seed: int, count: int) -> Iterator[tuple[list[Operation], list[Answer]]]:
    """Yield entries and the model's answers; the same for the same seed."""
    rng, model = random.Random(seed), ModelStore()
    for _ in range(count):
        operations, answers = [], []
        model.begin_entry()
        for _ in range(rng.randrange(6)):
            operations.append(random_operation(rng, model))
            answers.append(model.operate(operations[-1]))
        yield operations, answers


def random_payloads(seed: int, count: int) -> list[bytes]:
    """Return `random_entries` as they stand in the log; an empty one as Raft's no-op."""
    return [encode(7, ops) if ops else b"" for ops, _ in random_entries(seed, count)]
