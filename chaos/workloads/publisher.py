"""A client process that publishes: `python -m chaos.workloads.publisher CONFIG`.

What lives here: making publications and keeping a rate through every outage. What must not: retries
(the library's), and what becomes of the publications.

A publication without an answer stays in the client's outbox, goes first next time, and so stands in
the history again: another operation with the same counter.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from chaos import payload
from chaos.history import ClientObserver, Recorder
from chaos.workloads import ClientConfig, decode_config
from chaos.workloads.control import Control
from flotilla import Client, FlotillaError, PutResult

PROJECT: Final = Path(__file__).parents[2]
IDLE_S: Final = 0.2  # between looks for an order while there is nothing to do
BEHIND_S_MAX: Final = 1.0  # after an outage: a second's publications at once, not all that it cost


class Publications:
    """Publishes payloads that prove their origin, through one client."""

    def __init__(self, client: Client, fillers: Iterator[str]) -> None:
        self._client = client
        self._fillers = fillers

    def put(self, topic: str) -> PutResult:
        """Publish the topic's next payload. Raises FlotillaError."""
        counter = self._client.next_counter(topic)  # opens the client, which then has its id
        text = payload.make(self._client.client_id, topic, counter, next(self._fillers))
        return self._client.put(topic, text)


def open_client(config: ClientConfig, recorder: Recorder) -> Client:
    """Return the recorded client of this process, with its durable state."""
    return Client(
        config.endpoints,
        config.state,
        deadline_ms=config.deadline_ms,
        observer=ClientObserver(recorder),
        rng=random.Random(config.seed),
    )


class Pace:
    """When the next publication is due; `rate_per_s` 0 = at once. Times: monotonic seconds."""

    def __init__(self, rate_per_s: float, now_s: float) -> None:
        self._interval_s = 1 / rate_per_s if rate_per_s else 0.0
        self._due_s = now_s

    def wait_s(self, now_s: float) -> float:
        """Return how long the next one is to wait; 0 or less = it is due."""
        return self._due_s - now_s

    def took(self, now_s: float) -> None:
        """Count one publication."""
        self._due_s = max(self._due_s + self._interval_s, now_s - BEHIND_S_MAX)


class PublisherProcess:
    """Publishes to its topics in turn from the first phase until it is told to stop."""

    def __init__(
        self, topics: Sequence[str], client: Client, fillers: Iterator[str], control: Control
    ) -> None:
        self._topics = topics
        self._client = client
        self._publications = Publications(client, fillers)
        self._control = control
        self._counts = {"acknowledged": 0, "unknown": 0, "failed": 0}

    def run(self, recorder: Recorder, rate_per_s: float) -> None:
        """Publish until the order to stop; then send what is left in the outbox."""
        self._client.open()
        self._control.report("ready")
        recorder.phase = self._first_phase()
        pace, number = Pace(rate_per_s, time.monotonic()), 0
        while recorder.phase is not None:
            order = self._control.order(pace.wait_s(time.monotonic()))
            if order is not None:
                recorder.phase = order.get("phase")
            elif pace.wait_s(time.monotonic()) <= 0:
                self._publish(self._topics[number % len(self._topics)])
                pace.took(time.monotonic())
                number += 1
        self._flush()
        self._control.report("progress", **self._counts)

    def _first_phase(self) -> str | None:
        while (order := self._control.order(IDLE_S)) is None:
            pass
        return order.get("phase")

    def _publish(self, topic: str) -> None:
        try:
            self._publications.put(topic)
        except FlotillaError as error:
            self._counts["failed" if error.definite else "unknown"] += 1
        else:
            self._counts["acknowledged"] += 1
        self._control.progress(**self._counts)

    def _flush(self) -> None:
        try:
            self._client.flush()
        except FlotillaError as error:
            self._counts["failed" if error.definite else "unknown"] += 1


def main(arguments: list[str]) -> None:
    """Run the process that the configuration in `arguments` describes."""
    config = decode_config(arguments[0])
    fillers = payload.fillers(payload.project_lines(PROJECT), config.seed)
    with (
        Recorder(config.history, config.process, config.run_id) as recorder,
        open_client(config, recorder) as client,
    ):
        process = PublisherProcess(config.topics, client, fillers, Control())
        process.run(recorder, config.rate_per_s)


if __name__ == "__main__":
    main(sys.argv[1:])
