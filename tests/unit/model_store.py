"""A second state machine, as dumb as it can be: the oracle for `cluster.store.store`.

Dicts and lists, everything kept for ever, nothing cached, nothing merged, nothing collected.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from cluster.store.commands import (
    Admit,
    Advance,
    Operation,
    Put,
    Register,
    Subscribe,
    Unsubscribe,
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
    id_max=200,
)
CLIENTS = ("c0", "c1", "c2", "c3", "c4", "c5")
TOPICS = ("t0", "t1", "t2", "t3", "t4")


def answer_of(outcome: Outcome) -> Answer:
    """Return what the model can be compared with: the texts of messages are free."""
    if isinstance(outcome, Done):
        return "ok", outcome.body
    return outcome.code, outcome.details


class ModelStore:
    """The rules of docs/protocol.md, literally."""

    def __init__(self, limits: Limits = SMALL) -> None:
        self.limits = limits
        self.members = dict(MEMBERS)
        self.clients: dict[str, dict[str, Any]] = {}
        self.cursors: dict[str, dict[str, int]] = {}  # topic -> client -> cursor
        self.publications: dict[str, list[tuple[int, bytes]]] = {}  # topic -> all ever (entry, …)
        self.puts: dict[tuple[str, str], list[tuple[int, int, int]]] = {}  # counter, count, id
        self.entry = 0

    def apply(self, operations: list[Operation]) -> list[Answer]:
        self.entry += 1
        return [self.operate(operation) for operation in operations]

    def operate(self, operation: Operation) -> Answer:
        if isinstance(operation, Admit):
            if operation.node not in self.members:
                return "bad_request", {}
            self.members[operation.node] = operation.incarnation
            return "ok", {}
        if isinstance(operation, Register):
            return self.register(operation)
        client = self.clients.get(operation.client_id)
        if client is None:
            return "unknown_client", {}
        if operation.epoch is not None and operation.epoch < client["epoch"]:
            return "fenced", {"epoch": client["epoch"]}
        if operation.epoch is not None and operation.epoch > client["epoch"]:
            return "recovered", {"epoch": client["epoch"]}
        if isinstance(operation, Put):
            return self.put(operation)
        if isinstance(operation, Advance):
            return self.advance(operation)
        return self.control(operation, client)

    def register(self, operation: Register) -> Answer:
        client = self.clients.get(operation.client_id)
        if operation.fresh:
            if client is not None:
                return "bad_request", {}
            if len(self.clients) == self.limits.clients_max:
                return "too_many", {"limit": self.limits.clients_max}
            client = {"epoch": 1, "sequence": operation.sequence or 0, "nonce": operation.nonce}
            self.clients[operation.client_id] = client
        elif client is None:
            return "unknown_client", {}
        elif operation.sequence is None:
            client["epoch"] += 1
            client["nonce"] = ""
        elif operation.sequence > client["sequence"]:
            client["epoch"] += 1
            client["sequence"], client["nonce"] = operation.sequence, operation.nonce
        elif (operation.sequence, operation.nonce) != (client["sequence"], client["nonce"] or None):
            return "stale_request", {"expected": client["sequence"] + 1}
        return "ok", self.registered(operation.client_id)

    def registered(self, client_id: str) -> dict[str, Any]:
        return {
            "client_id": client_id,
            "epoch": self.clients[client_id]["epoch"],
            "sequence": self.clients[client_id]["sequence"],
        }

    def counters(self, client_id: str) -> dict[str, int]:
        return {
            topic: puts[-1][0] + puts[-1][1] - 1
            for (client, topic), puts in self.puts.items()
            if client == client_id
        }

    def subscriptions(self, client_id: str) -> dict[str, int]:
        return {
            topic: cursors[client_id]
            for topic, cursors in self.cursors.items()
            if client_id in cursors
        }

    def control(self, operation: Subscribe | Unsubscribe, client: dict[str, Any]) -> Answer:
        if operation.sequence is not None:
            if operation.sequence < client["sequence"]:
                return "stale_request", {"expected": client["sequence"] + 1}
            if operation.sequence > client["sequence"]:
                client["sequence"], client["nonce"] = operation.sequence, ""
        cursors = self.cursors.get(operation.topic, {})
        here = operation.client_id in cursors
        if isinstance(operation, Unsubscribe):
            cursors.pop(operation.client_id, None)
            if not cursors:
                self.cursors.pop(operation.topic, None)
            return "ok", {"was_subscribed": here}
        if here:
            return "ok", {"last_id": cursors[operation.client_id], "resumed": True}
        return self.subscribe(operation)

    def subscribe(self, operation: Subscribe) -> Answer:
        limits, name = self.limits, operation.topic
        own = sum(operation.client_id in cursors for cursors in self.cursors.values())
        counts = (
            (own, limits.subscriptions_per_client_max),
            (sum(map(len, self.cursors.values())), limits.subscriptions_max),
            (0 if name in self.cursors else len(self.cursors), limits.topics_max),
            (0 if name in self.publications else len(self.publications), limits.topic_names_max),
        )
        for count, limit in counts:
            if count == limit:
                return "too_many", {"limit": limit}
        last_id = len(self.publications.setdefault(name, []))
        self.cursors.setdefault(name, {})[operation.client_id] = last_id
        return "ok", {"last_id": last_id, "resumed": False}

    def put(self, operation: Put) -> Answer:
        batch = unpack(operation.lengths, operation.data)
        counter, count = operation.counter, len(batch)
        puts = self.puts.get((operation.client_id, operation.topic), [])
        if puts:
            expected = puts[-1][0] + puts[-1][1]
            if counter > expected:
                return "counter_gap", {"expected": expected}
            if counter < expected < counter + count:
                return "bad_request", {}
            if counter < expected:
                id_ = original(puts, counter)
                answer = {"id": id_ or 0, "count": count, "duplicate": True}
                return "ok", answer | {"stored": None if id_ is None else id_ > 0}
        publications = self.publications.get(operation.topic, [])
        here = operation.topic in self.cursors
        if here and len(publications) + count > self.limits.id_max:
            return "too_many", {"limit": self.limits.id_max}
        limit = self.limits.producers_per_client_max
        if not puts and sum(client == operation.client_id for client, _ in self.puts) == limit:
            return "too_many", {"limit": limit}
        first_id = len(publications) + 1 if here else 0
        if here:
            publications += [(self.entry, publication) for publication in batch]
        key = operation.client_id, operation.topic
        self.puts.setdefault(key, []).append((counter, count, first_id))
        return "ok", {"id": first_id, "count": count, "duplicate": False, "stored": here}

    def advance(self, operation: Advance) -> Answer:
        for topic, cursor in operation.cursors.items():
            code = self.may_read(operation.client_id, topic, cursor)
            if code == "bad_request":
                return code, {"end": len(self.publications[topic])}
            if code not in ("ok", "already_acknowledged"):
                return code, {}
        for topic, cursor in operation.cursors.items():
            cursors = self.cursors[topic]
            cursors[operation.client_id] = max(cursors[operation.client_id], cursor)
        return "ok", {}

    def may_read(self, client_id: str, topic: str, last_id: int) -> str:
        if topic not in self.cursors:
            return "unknown_topic"
        if client_id not in self.cursors[topic]:
            return "not_subscribed"
        if last_id > len(self.publications[topic]):
            return "bad_request"
        if last_id < min(self.cursors[topic].values()):
            return "already_acknowledged"
        return "ok"

    def read(self, client_id: str, topic: str, last_id: int | None) -> Any:
        """Return the refusal's code, or (first id, all publications after `last_id`)."""
        if last_id is None:
            last_id = self.cursors.get(topic, {}).get(client_id, 0)
        code = self.may_read(client_id, topic, last_id)
        if code != "ok":
            return code
        return last_id + 1, [publication for _, publication in self.publications[topic][last_id:]]

    def oldest_waiting(self, client_id: str) -> str:
        """Return the client's topic whose next publication is the oldest, "" without any."""
        waiting = [
            (self.publications[topic][cursors[client_id]][0], topic)
            for topic, cursors in self.cursors.items()
            if client_id in cursors and cursors[client_id] < len(self.publications[topic])
        ]
        return min(waiting)[1] if waiting else ""


def original(puts: list[tuple[int, int, int]], counter: int) -> int | None:
    """Return the id of `counter` among the last 1,024 PUTs (0: not stored), else None."""
    for start, count, first_id in puts[-1024:]:
        if start <= counter < start + count:
            return first_id + counter - start if first_id else 0
    return None


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
    known = model.clients.get(client, {"epoch": 1, "sequence": 0, "nonce": ""})
    epoch = rng.choice([None, known["epoch"], known["epoch"], known["epoch"] + rng.choice((-1, 1))])
    epoch = None if epoch == 0 else epoch
    sequence = rng.choice([None, known["sequence"] + rng.choice((-1, 0, 1, 2))])
    sequence = None if sequence is not None and sequence < 0 else sequence
    kind = rng.random()
    if kind < 0.12:
        fresh = client not in model.clients or rng.random() < 0.1
        return Register(client, fresh, sequence, rng.choice(("", "x", "y")))
    if kind < 0.27:
        return Subscribe(client, epoch, topic, sequence)
    if kind < 0.35:
        return Unsubscribe(client, epoch, topic, sequence)
    if kind < 0.37:
        return Admit(rng.choice("abcd"), f"i{rng.randrange(9)}")
    if kind < 0.6:
        topics = rng.sample(TOPICS, rng.choice((1, 1, 1, 2)))
        ends = {name: len(model.publications.get(name, [])) for name in topics}
        return Advance(
            client, epoch, {n: max(0, e - rng.randrange(-1, 5)) for n, e in ends.items()}
        )
    puts = model.puts.get((client, topic))
    expected = puts[-1][0] + puts[-1][1] if puts else rng.randrange(9)
    counter = max(0, expected + rng.choice((0, 0, 0, 0, 0, 0, 1, -1, -2, -5)))
    batch = [rng.randbytes(rng.randrange(40)) for _ in range(rng.choice((1, 1, 2, 5)))]
    return Put(client, epoch, topic, counter, *pack(batch))


def random_entries(seed: int, count: int) -> Iterator[tuple[list[Operation], list[Answer]]]:
    """Yield entries and the model's answers; the same for the same seed."""
    rng, model = random.Random(seed), ModelStore()
    for _ in range(count):
        operations, answers = [], []
        model.entry += 1
        for _ in range(rng.randrange(6)):
            operations.append(random_operation(rng, model))
            answers.append(model.operate(operations[-1]))
        yield operations, answers


def random_payloads(seed: int, count: int) -> list[bytes]:
    """Return `random_entries` as they stand in the log; an empty one as Raft's no-op."""
    return [encode(7, ops) if ops else b"" for ops, _ in random_entries(seed, count)]
