"""A broker that keeps every promise, as docs/protocol.md has it: one step a request.

What lives here: the replicated state, as what a log of entries comes to, and what a leader answers.
What must not: networks, clients, records (world.py), and any bug.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

Entry = tuple[Any, ...]  # kind, then its arguments
Request = dict[str, Any]
Reply = dict[str, Any]

DUPLICATES_REMEMBERED = 1_024  # PUTs a client and a topic, of which a duplicate gets its id
PUBLICATION_BYTES = 40


@dataclass
class BrokerTopic:
    """`held`: id -> (producer, counter), of what a subscriber has not passed yet."""

    last_id: int = 0
    cursors: dict[str, int] = field(default_factory=dict)
    held: dict[int, tuple[str, int]] = field(default_factory=dict)

    @property
    def floor_id(self) -> int:
        """Up to there every subscriber has passed it; all of it, if there is none."""
        return min(self.cursors.values(), default=self.last_id)

    def collect_garbage(self) -> None:
        """Forget what nobody will ask for again."""
        self.held = {id_: one for id_, one in self.held.items() if id_ > self.floor_id}


class BrokerState:
    """What all entries up to one come to. Every node that applies the same has the same."""

    def __init__(self, remembered: int = DUPLICATES_REMEMBERED) -> None:
        self.remembered = remembered
        self.topics: dict[str, BrokerTopic] = {}
        self.counters: dict[tuple[str, str], int] = {}
        self.puts: dict[tuple[str, str], dict[int, int]] = {}  # first counter -> first id
        self.sequences: dict[str, int] = {}
        self.epochs: dict[str, int] = {}

    def topic(self, name: str) -> BrokerTopic:
        """Return a topic, also one that nobody subscribes to."""
        return self.topics.setdefault(name, BrokerTopic())

    def apply(self, entry: Entry) -> Any:
        """Apply an entry; return what it comes to."""
        result: Any = getattr(self, f"_{entry[0]}")(*entry[1:])
        return result

    def _open(self, client: str) -> int:
        self.epochs[client] = self.epochs.get(client, 0) + 1
        return self.epochs[client]

    def _sub(self, client: str, name: str, sequence: int) -> tuple[bool, int]:
        self.sequences[client] = sequence
        topic = self.topic(name)
        resumed = client in topic.cursors
        topic.cursors.setdefault(client, topic.last_id)
        return resumed, topic.cursors[client]

    def _unsub(self, client: str, name: str, sequence: int) -> bool:
        self.sequences[client] = sequence
        topic = self.topic(name)
        was_subscribed = topic.cursors.pop(client, None) is not None
        topic.collect_garbage()
        return was_subscribed

    def _put(self, client: str, name: str, counter: int, count: int) -> int:
        topic, key = self.topic(name), (client, name)
        self.counters[key] = counter + count - 1
        first_id = topic.last_id + 1 if topic.cursors else 0
        if first_id:
            for place in range(count):
                topic.held[first_id + place] = (client, counter + place)
            topic.last_id += count
        memory = self.puts.setdefault(key, {})
        memory[counter] = first_id
        while len(memory) > self.remembered:
            del memory[next(iter(memory))]
        return first_id

    def _moved(self, client: str, name: str, cursor: int) -> None:
        topic = self.topic(name)
        topic.cursors[client] = max(topic.cursors[client], cursor)
        topic.collect_garbage()

    def _nothing(self) -> None:
        """A leader's first entry."""


class ReplicatedBroker:
    """The cluster, as its clients see it: who leads, and the log that all agree on."""

    def __init__(self, rng: random.Random, nodes: list[str], remembered: int) -> None:
        self.rng, self.nodes, self.remembered = rng, nodes, remembered
        self.state = BrokerState(remembered)
        self.log: list[tuple[int, Entry]] = []  # of index 1 and on: (term, entry)
        self.led: dict[str, set[int]] = {node: set() for node in nodes}
        self.term, self.leader = 0, ""
        self.elect()

    def elect(self) -> None:
        """Let any node lead the next term, or one after it, if nobody was elected in between."""
        self.term += self.rng.choice((1, 1, 2))
        self.leader = self.rng.choice(self.nodes)
        self.led[self.leader].add(self.term)
        self.commit(("nothing",))

    def commit(self, entry: Entry) -> Any:
        """Replicate and apply an entry."""
        self.log.append((self.term, entry))
        return self.state.apply(entry)

    def handle(self, request: Request) -> Reply:
        """Carry out a request; return the body of the answer, or its `error`."""
        client, epoch = request["client"], request["epoch"]
        if epoch is not None and epoch < self.state.epochs[client]:
            return {"error": "fenced"}
        answer: Reply = getattr(self, f"_{request['f']}")(request)
        return answer

    def _put(self, request: Request) -> Reply:
        client, topic = request["client"], request["topic"]
        counter, count = request["counter"], request["count"]
        last = self.state.counters.get((client, topic))
        if last is None or counter == last + 1:
            first_id = self.commit(("put", client, topic, counter, count))
            return {"id": first_id, "duplicate": False}
        if counter > last + 1:
            return {"error": "counter_gap"}
        if counter + count - 1 > last:
            return {"error": "bad_request"}
        known = self.state.puts[client, topic].get(counter, 0)
        return {"id": known, "duplicate": True}

    def _is_stale(self, request: Request) -> bool:
        return bool(request["sequence"] < self.state.sequences.get(request["client"], 0))

    def _sub(self, request: Request) -> Reply:
        if self._is_stale(request):
            return {"error": "stale_request"}
        entry = ("sub", request["client"], request["topic"], request["sequence"])
        resumed, cursor = self.commit(entry)
        return {"last_id": cursor, "resumed": resumed}

    def _unsub(self, request: Request) -> Reply:
        if self._is_stale(request):
            return {"error": "stale_request"}
        entry = ("unsub", request["client"], request["topic"], request["sequence"])
        return {"was_subscribed": self.commit(entry)}

    def _get(self, request: Request) -> Reply:
        if not request["topic"]:
            return self._get_any(request)
        name, client = request["topic"], request["client"]
        topic = self.state.topic(name)
        if not topic.cursors:
            return {"error": "unknown_topic"}
        if client not in topic.cursors:
            return {"error": "not_subscribed"}
        asked = topic.cursors[client] if request["last_id"] is None else request["last_id"]
        if asked > topic.last_id:
            return {"error": "bad_request"}
        if asked < topic.floor_id:
            return {"error": "already_acknowledged"}
        self._acknowledge(client, name, asked)
        return self._answer(name, asked, request)

    def _get_any(self, request: Request) -> Reply:
        client, told = request["client"], request["last_ids"]
        own = [name for name, topic in self.state.topics.items() if client in topic.cursors]
        if not own:
            return {"error": "not_subscribed"}
        for name in own:
            self._acknowledge(client, name, min(told.get(name, 0), self.state.topic(name).last_id))
        self.rng.shuffle(own)
        for name in own:
            cursor = max(self.state.topic(name).cursors[client], told.get(name, 0))
            answer = self._answer(name, cursor, request)
            if answer["count"]:
                return answer
        return {"topic": "", "id": 0, "count": 0, "items": []}

    def _acknowledge(self, client: str, name: str, cursor: int) -> None:
        if cursor > self.state.topic(name).cursors[client]:
            self.commit(("moved", client, name, cursor))

    def _answer(self, name: str, asked: int, request: Request) -> Reply:
        topic = self.state.topic(name)
        room = min(request["max_count"], request["max_bytes"] // PUBLICATION_BYTES)
        count = min(topic.last_id - asked, max(1, room))
        if count > 1 and self.rng.random() < 0.3:
            count = self.rng.randint(1, count)  # what stands in one block of the store
        items = [topic.held[asked + 1 + place] for place in range(count)]
        return {"topic": name, "id": asked + 1, "count": count, "items": items}

    # --- what the nodes have left ------------------------------------------------------------

    def truth(self, run_id: str, shape: random.Random) -> dict[str, list[dict[str, Any]]]:
        """Return what stands on each node's disk: some are behind, no more than a minority."""
        behind = set(shape.sample(self.nodes, shape.randint(0, (len(self.nodes) - 1) // 2)))
        return {
            node: [
                {"run_id": run_id, "node": node, **row}
                for row in self._left(node, shape, node in behind, run_id)
            ]
            for node in self.nodes
        }

    def _left(
        self, node: str, shape: random.Random, is_behind: bool, run_id: str
    ) -> list[dict[str, Any]]:
        end = len(self.log)
        stored = shape.randint(end // 2, end) if is_behind else end  # entries in its journal
        applied = shape.randint(stored * 2 // 3, stored)
        committed = shape.randint(applied, stored)
        first = shape.randint(1, applied + 1)  # older ones were compacted
        rows: list[dict[str, Any]] = []
        for index in range(first, committed + 1):
            term, entry = self.log[index - 1]
            digest = _digest(run_id, index, entry)
            rows.append({"kind": "entry", "index": index, "term": term, "digest": digest})
        rows.append({"kind": "state", "index": applied, "digest": _digest(run_id, applied)})
        state = BrokerState(self.remembered)
        for _, entry in self.log[:applied]:
            state.apply(entry)
        counters = dict(state.counters)
        for name, topic in state.topics.items():
            position = {"topic": name, "last_id": topic.last_id, "floor_id": topic.floor_id}
            rows.append({"kind": "topic", **position})
            for first_id, producer, counter, count in runs_of(topic.held):
                run = {"topic": name, "first_id": first_id, "producer": producer}
                rows.append({"kind": "held", **run, "first_counter": counter, "count": count})
        for _, entry in self.log[applied:stored]:
            if entry[0] == "put":
                _, client, name, counter, count = entry
                run = {"topic": name, "first_id": None, "producer": client}
                rows.append({"kind": "held", **run, "first_counter": counter, "count": count})
                counters[client, name] = counter + count - 1
        for (client, name), counter in counters.items():
            taken = {"producer": client, "topic": name, "counter": counter}
            rows.append({"kind": "counter", **taken})
        rows += [{"kind": "leadership", "term": term} for term in sorted(self.led[node])]
        return rows


def runs_of(held: dict[int, tuple[str, int]]) -> list[list[Any]]:
    """Return ids and what stands there as runs [first id, producer, first counter, count]."""
    runs: list[list[Any]] = []
    for id_, (producer, counter) in sorted(held.items()):
        last = runs[-1] if runs else [0, "", 0, 0]
        follows = (last[0] + last[3], last[1], last[2] + last[3]) == (id_, producer, counter)
        if runs and follows:
            last[3] += 1
        else:
            runs.append([id_, producer, counter, 1])
    return runs


def _digest(*what: object) -> str:
    return blake2b(repr(what).encode(), digest_size=16).hexdigest()
