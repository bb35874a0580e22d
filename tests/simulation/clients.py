"""Clients of the lab's cluster: one request under way each, repeated until it is answered.

What lives here: what a client sends and what it may believe. What must not: nodes and their faults.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

from flotilla_client.protocol import ERRORS, GET, PUT, REQUEST_ID, SUB, Reply, Request, unpack
from tests.simulation.lab import Lab

PATIENCE_S = (0.2, 1.0)  # before a client sends the same again, elsewhere


@dataclass
class Ledger:
    """What all clients together know. Topic -> ..."""

    evidence: list[str] = field(default_factory=list)
    acknowledged: dict[str, dict[str, int]] = field(default_factory=dict)  # {publication: id}
    delivered: dict[str, dict[int, str]] = field(default_factory=dict)  # {id: publication}

    def last_acknowledged(self, topic: str) -> int:
        return max(self.acknowledged.get(topic, {}).values(), default=0)

    def report(self, line: str) -> None:
        if line not in self.evidence:
            self.evidence.append(line)


@dataclass
class Client:
    """A publisher and subscriber of one topic. Call `step` as time passes."""

    lab: Lab
    ledger: Ledger
    topic: str
    rng: random.Random
    client_id: str = ""
    subscribed: bool = False
    counter: int = 0
    cursor: int = 0
    publishing: bool = True
    drained_to: int = -1
    _request: Request | None = None
    _request_id: str = ""
    _deadline_s: float = 0.0
    _floor: int = 0  # the topic's highest acknowledged id when the request was first sent

    def step(self) -> None:
        """Take a reply, or send the same again, or the next request."""
        reply = self.lab.replies.pop(self._request_id, None)
        if reply is not None and self._request is not None:
            self._take(self._request, reply)
        elif self._request is not None and self.lab.now >= self._deadline_s:
            self._send(self._request)
        if self._request is None:
            self._floor = self.ledger.last_acknowledged(self.topic)
            self._send(self._next())

    def _next(self) -> Request:
        if not self.client_id:
            return Request(REQUEST_ID, "", body={"sequence": 1, "nonce": f"{self.rng.random()}"})
        if not self.subscribed:
            return Request(SUB, "", self.topic, self.client_id, body={"sequence": 2})
        if self.publishing and self.rng.random() < 0.6:
            text = f"{self.client_id}:{self.counter + 1}"
            body: dict[str, Any] = {"counter": self.counter + 1, "publication": text}
            return Request(PUT, "", self.topic, self.client_id, body=body)
        body = {"last_id": self.cursor, "max_count": self.rng.choice((1, 3, 100))}
        body["wait_ms"] = self.rng.choice((0, 0, 100)) if self.publishing else 0
        return Request(GET, "", self.topic, self.client_id, body=body)

    def _send(self, request: Request) -> None:
        self._request = request
        self._deadline_s = self.lab.now + self.rng.uniform(*PATIENCE_S)
        running = sorted(self.lab.nodes)
        if running:
            self._request_id = self.lab.send(self.rng.choice(running), request)

    def _take(self, request: Request, reply: Reply) -> None:
        if reply.ok:
            self._request = None
            _TAKE[request.type](self, request, reply)
            return
        row = ERRORS[reply.body["error"]]
        if row.retry == "never":
            self.ledger.report(f"{self.client_id}: {request.type} {request.body}: {reply.body}")
        self._request_id = ""
        self._deadline_s = self.lab.now + 0.05

    def _take_id(self, request: Request, reply: Reply) -> None:
        self.client_id = reply.body["client_id"]

    def _take_subscription(self, request: Request, reply: Reply) -> None:
        self.subscribed = True
        self.cursor = reply.body["last_id"]
        self._check_floor(self.cursor, "SUB")

    def _take_acknowledgment(self, request: Request, reply: Reply) -> None:
        self.counter += 1
        publication, publication_id = request.body["publication"], reply.body["id"]
        self.ledger.acknowledged.setdefault(self.topic, {})[publication] = publication_id
        if publication_id <= self._floor:
            self.ledger.report(f"{publication} has id {publication_id}, {self._floor} was before")

    def _take_delivery(self, request: Request, reply: Reply) -> None:
        first_id, count = reply.body["id"], reply.body["count"]
        if not count:
            self.drained_to = self.cursor
            self._check_floor(self.cursor, "GET")
            return
        if first_id != self.cursor + 1:
            self.ledger.report(f"{self.topic}: {first_id} was delivered after {self.cursor}")
        delivered = self.ledger.delivered.setdefault(self.topic, {})
        for publication_id, data in enumerate(unpack(reply.lengths, reply.data), first_id):
            known = delivered.setdefault(publication_id, data.decode())
            if known != data.decode():
                self.ledger.report(f"{self.topic} {publication_id}: {known} and {data!r}")
        self.cursor = first_id + count - 1

    def _check_floor(self, last_id: int, what: str) -> None:
        if last_id < self._floor:
            self.ledger.report(
                f"{what} of {self.client_id} ends at {last_id}; {self._floor} was acknowledged"
            )


_TAKE = {
    REQUEST_ID: Client._take_id,
    SUB: Client._take_subscription,
    PUT: Client._take_acknowledgment,
    GET: Client._take_delivery,
}


def check(ledger: Ledger) -> list[str]:
    """Return what is wrong with what was delivered in the end, after all that was reported."""
    for topic, delivered in ledger.delivered.items():
        ids = sorted(delivered)
        if ids != list(range(1, len(ids) + 1)):
            ledger.report(f"{topic}: ids are not 1 to {len(ids)}")
        for publication, publication_id in ledger.acknowledged.get(topic, {}).items():
            if delivered.get(publication_id) != publication:
                ledger.report(f"{topic}: acknowledged {publication} is not at {publication_id}")
        _check_producers([delivered[publication_id] for publication_id in ids], ledger)
    return ledger.evidence


def _check_producers(publications: list[str], ledger: Ledger) -> None:
    """Each producer's publications stand once each and in order, without a hole."""
    counters: dict[str, int] = {}
    for publication in publications:
        producer, counter = publication.split(":")
        expected = counters.get(producer, 0) + 1
        if int(counter) != expected:
            ledger.report(f"{publication} stands where {producer}:{expected} belongs")
        counters[producer] = int(counter)
