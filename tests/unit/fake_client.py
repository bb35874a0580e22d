"""The library's clients, faked for a client process: answers from lists, and its control line."""

from __future__ import annotations

import os
from concurrent.futures import Future
from typing import Any

import orjson

from chaos.workloads.control import Control
from flotilla_client import (
    Delivery,
    PutResult,
    SubscribeResult,
)

ASKED_MAX = 50_000  # a client of a test that never ends is a defect


class ControlLine:
    """Both ends of a control line."""

    def __init__(self) -> None:
        self.orders_read, self.orders = os.pipe()
        self.reports, self.reports_write = os.pipe()
        self.control = Control(self.orders_read, self.reports_write)

    def order(self, *orders: dict[str, Any]) -> None:
        os.write(self.orders, b"".join(orjson.dumps(order) + b"\n" for order in orders))

    def stop(self) -> None:
        self.order({"order": "stop"})

    def reported(self) -> list[dict[str, Any]]:
        return [orjson.loads(line) for line in os.read(self.reports, 65_536).splitlines()]

    def close(self) -> None:
        for descriptor in (self.orders_read, self.orders, self.reports, self.reports_write):
            os.close(descriptor)


class FakeClient:
    """A client with the answers of a script; what was asked of it is in `asked`.

    `answers`: for each method an answer or an error after the other; with the last one the order
    to stop comes.
    """

    client_id = "c"

    def __init__(self, line: ControlLine, **answers: list[Any]) -> None:
        self.line, self.answers = line, answers
        self.asked: list[tuple[Any, ...]] = []
        self.counters: dict[str, int] = {}

    def _answer(self, method: str, default: Any = None) -> Any:
        script = self.answers.get(method)
        if not script:
            return default
        answer = script.pop(0)
        if not any(self.answers.values()):
            self.line.stop()
        if isinstance(answer, Exception):
            raise answer
        return answer

    def open(self) -> None:
        self._answer("open")

    def next_counter(self, topic: str) -> int:
        return self.counters.get(topic, 0) + 1

    def publish_many(self, topic: str, texts: list[str], *, allow_unheard: bool) -> list[PutResult]:
        assert allow_unheard, "nobody may subscribe in an experiment"
        self.asked.append(("put", topic, texts))
        self.counters[topic] = self.counters.get(topic, 0) + len(texts)
        return [PutResult(self._answer("publish_many", 1), len(texts), False, True)]

    def flush(self) -> None:
        self.asked.append(("flush",))
        self._answer("flush")

    def subscribe(self, topic: str) -> SubscribeResult:
        self.asked.append(("subscribe", topic))
        return SubscribeResult(self._answer("subscribe", 0), False)

    def unsubscribe(self, topic: str) -> bool:
        self.asked.append(("unsubscribe", topic))
        return bool(self._answer("unsubscribe", True))

    def get(self, topic: str | None = None, *, idle: float, max_count: int) -> Delivery | None:
        self.asked.append(("get", topic))
        assert len(self.asked) < ASKED_MAX, "it reads for ever"
        answer: Delivery | None = self._answer(f"get_{topic}")
        return answer

    def producer(self, topic: str, **options: Any) -> FakeProducer:
        self.asked.append(("producer", topic))
        return FakeProducer(self, topic)


class FakeProducer:
    """A producer whose publications end as the script of its topic says, 1 = acknowledged."""

    def __init__(self, client: FakeClient, topic: str) -> None:
        self.client, self.topic = client, topic

    def send(self, text: str) -> Future[PutResult]:
        future: Future[PutResult] = Future()
        answer = self.client.answers[f"send_{self.topic}"].pop(0)
        self.client.asked.append(("send", self.topic, text))
        if isinstance(answer, Exception):
            future.set_exception(answer)
        else:
            self.client.counters[self.topic] = self.client.next_counter(self.topic)
            future.set_result(PutResult(answer, 1, False, True))
        if not self.client.answers[f"send_{self.topic}"]:
            self.client.line.stop()
        return future

    def close(self) -> None:
        self.client.asked.append(("close", self.topic))
