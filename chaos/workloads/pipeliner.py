"""A client process that publishes in bursts: `python -m chaos.workloads.pipeliner CONFIG`.

What lives here: the library's producers, one a topic, with many batches in flight. What must not:
the producer's window and its retries (the library's).

A payload says its counter before the producer gives it one. They agree because a burst begins only
when nothing of the one before is left: with an error in it, everything is sent again first.
"""

from __future__ import annotations

import sys
import time
from concurrent.futures import Future

from chaos.workloads import kinds
from chaos.workloads.process import Kit, parameters_of, work
from chaos.workloads.publisher import PacedWorker
from flotilla_client import Fenced, FlotillaError, Producer, PutResult


class PipelinerProcess(PacedWorker):
    """Publishes a burst to each of its topics at once, waits for all answers, and again."""

    def __init__(self, kit: Kit) -> None:
        self._parameters = parameters_of(kit.config, kinds.Pipeliner)
        super().__init__(kit, self._parameters.size_bytes, self._parameters.rate_per_s)
        self._producers: dict[str, Producer] = {}

    def publish(self) -> float:
        """Publish a burst to each topic."""
        self._open_producers()
        self._pace.took(time.monotonic(), self._parameters.burst_count * len(self.topics))
        try:
            futures = [future for topic in self.topics for future in self._burst(topic)]
        except FlotillaError:  # a full queue: what was sent before it has its counters
            self._close_producers()
            raise
        if errors := self._answers(futures):
            self._close_producers()
            self._raise_fence(errors)
        return 0.0

    def _open_producers(self) -> None:
        """Open what is not open, with nothing left in the outbox. Raises FlotillaError."""
        if self._producers:
            return
        self.client.flush()
        for topic in self.topics:
            self._producers[topic] = self.client.producer(
                topic,
                linger_ms=0,
                batch_bytes=self._parameters.batch_bytes,
                in_flight_max=self._parameters.in_flight_max,
            )

    def _burst(self, topic: str) -> list[Future[PutResult]]:
        texts = self._publications.next(topic, self._parameters.burst_count)
        producer = self._producers[topic]
        return [producer.send(text) for text in texts]

    def _answers(self, futures: list[Future[PutResult]]) -> list[FlotillaError]:
        """Wait for every answer, and count it; return the errors."""
        errors = []
        for future in futures:
            error = future.exception()  # its bound is the producer's deadline
            if error is None:
                self.counts["acknowledged"] += 1
            elif isinstance(error, FlotillaError):
                self.count_error(error)
                errors.append(error)
            else:
                raise error
        return errors

    def _close_producers(self) -> None:
        for producer in self._producers.values():
            producer.close()
        self._producers.clear()

    def _raise_fence(self, errors: list[FlotillaError]) -> None:
        for error in errors:
            if isinstance(error, Fenced):
                raise error

    def finish(self) -> None:
        """Send what is left in the outbox."""
        self._close_producers()
        super().finish()


if __name__ == "__main__":
    work(sys.argv[1:], PipelinerProcess)
