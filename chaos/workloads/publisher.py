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
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from chaos.workloads import kinds, payload
from chaos.workloads.process import IDLE_S, ClientWorkload, Kit, parameters_of, work
from flotilla_client import Client, FlotillaError, PutResult

PROJECT: Final = Path(__file__).parents[2]
BEHIND_S_MAX: Final = 1.0  # after an outage: a second's publications at once, not all that it cost
FULL_SIZE_CHANCE: Final = 0.25  # of large publications: these are as large as they may be


class Texts:
    """Fillers of publications: lines of the project's text, or as much of it as is asked for."""

    def __init__(self, size_bytes: int, seed: int) -> None:
        lines = payload.project_lines(PROJECT)
        self._lines = payload.fillers(lines, seed)
        self._size_bytes = size_bytes
        self._rng = random.Random(seed)
        text = " ".join(lines).encode("ascii", "replace").decode()
        self._text = text * (size_bytes // len(text) + 1) if size_bytes else ""

    def make(self, producer: str, topic: str, counter: int) -> str:
        """Return a payload: of a line, or of up to `size_bytes` in all, often exactly as many."""
        if not self._size_bytes:
            return payload.make(producer, topic, counter, next(self._lines))
        is_full = self._rng.random() < FULL_SIZE_CHANCE
        size = self._size_bytes if is_full else self._rng.randint(1, self._size_bytes)
        rest = size - len(payload.make(producer, topic, counter, ""))
        return payload.make(producer, topic, counter, self._text[: max(0, rest)])


class WorkloadPublisher:
    """Publishes payloads that prove their origin, through one client."""

    def __init__(self, client: Client, texts: Texts) -> None:
        self._client = client
        self._texts = texts

    def put(self, topic: str, count: int = 1) -> list[PutResult]:
        """Publish the topic's next `count` payloads. Raises FlotillaError.

        Experiments publish where nobody subscribes on purpose; the record says what was stored.
        """
        return self._client.publish_many(topic, self.next(topic, count), allow_unheard=True)

    def next(self, topic: str, count: int) -> list[str]:
        """Return the topic's next payloads; they have to be published before any other."""
        counter = self._client.next_counter(topic)  # opens the client, which then has its id
        producer = self._client.client_id
        return [self._texts.make(producer, topic, counter + place) for place in range(count)]


class Pace:
    """When the next publication is due; `rate_per_s` 0 = at once. Times: monotonic seconds."""

    def __init__(self, rate_per_s: float, now_s: float) -> None:
        self._interval_s = 1 / rate_per_s if rate_per_s else 0.0
        self._due_s = now_s

    def wait_s(self, now_s: float) -> float:
        """Return how long the next one is to wait; 0 or less = it is due."""
        return self._due_s - now_s

    def took(self, now_s: float, count: int = 1) -> None:
        """Count publications."""
        self._due_s = max(self._due_s + count * self._interval_s, now_s - BEHIND_S_MAX)


class PacedWorker(ClientWorkload):
    """Publishes at its pace, from the first phase until it is told to stop."""

    def __init__(self, kit: Kit, size_bytes: int, rate_per_s: float) -> None:
        super().__init__(kit)
        self._publications = WorkloadPublisher(kit.client, Texts(size_bytes, kit.config.seed))
        self._pace = Pace(rate_per_s, time.monotonic())

    def act(self) -> float:
        """Publish if it is time to."""
        if self.kit.recorder.phase is None:
            return IDLE_S
        wait_s = self._pace.wait_s(time.monotonic())
        if wait_s > 0:
            return wait_s
        return self.publish()

    def publish(self) -> float:
        """Publish what is due now; return how long to wait, in seconds."""
        raise NotImplementedError

    def finish(self) -> None:
        """Send what is left in the outbox; say so if it does not go."""
        try:
            self.client.flush()
        except FlotillaError as error:
            self.count_error(error)
            if not error.definite:
                self.control.report("unflushed")


class PublisherProcess(PacedWorker):
    """Publishes to its topics in turn."""

    def __init__(self, kit: Kit) -> None:
        self._parameters = parameters_of(kit.config, kinds.Publisher)
        super().__init__(kit, self._parameters.size_bytes, self._parameters.rate_per_s)
        self._rng = random.Random(kit.config.seed)
        self._turns = self._in_turn()

    def publish(self) -> float:
        """Publish to the next topic."""
        count = self._parameters.batch_count
        self._pace.took(time.monotonic(), count)
        self._publications.put(self._topic(), count)
        self.counts["acknowledged"] += count
        return 0.0

    def _topic(self) -> str:
        hot = self._rng.random() < self._parameters.hot_share
        return self.topics[0] if hot else next(self._turns)

    def _in_turn(self) -> Iterator[str]:
        while True:
            yield from self.topics


if __name__ == "__main__":
    work(sys.argv[1:], PublisherProcess)
