"""A simulated client's background producers: the library's pipeline on simulated connections.

What lives here: what the thread of a `Producer` does, as events of the world: waiting for
replies, lost connections and time. What must not: which batch goes when, which is the library's own
(flotilla_client/pipeline.py), and what is published (scripts.py).
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Final

from chaos.simulation.clients.clients import INBOX_MAX, ClientWire, Process
from flotilla_client import FlotillaError, protocol
from flotilla_client.connection import parsed
from flotilla_client.operations import PutResult
from flotilla_client.pipeline import Pipeline
from flotilla_client.protocol import Reply
from flotilla_client.retry import Routes
from flotilla_client.window import Queue

LINGER_MS: Final = 1.0
BATCH_BYTES: Final = 300  # few publications each, so that a short backlog is several batches
QUEUED_MAX: Final = 64  # publications; an application that publishes more has to wait
TURNS_MAX: Final = 10_000  # at one moment; a pipeline that wants more is stuck in a loop


class Pipe:
    """One producer of a process, on connections of its own. Ends with the process, or by `end`.

    `error`: what has stopped it for good.
    """

    def __init__(
        self, wire: ClientWire, process: Process, topic: str, in_flight_max: int, rng: random.Random
    ) -> None:
        self.name = f"{process.name}+{topic}"
        self.error: FlotillaError | None = None
        self.cause = "no connection"
        self._wire, self._process, self._nodes = wire, process, process.nodes
        self._queue = Queue(min(BATCH_BYTES, protocol.BATCH_BYTES_MAX))  # as `Producer` checks
        self._inbox: dict[int, deque[Reply]] = {}
        self._lost: set[int] = set()
        self._waits = 0
        self._is_open = True
        self._progress: tuple[int, int] = (0, 0)  # answers; the counter that an answer is due to
        self._progress_s = wire.now
        session = process.session
        self._pipeline = Pipeline(
            session.operations,
            topic,
            session.endpoints,
            Routes(range(len(self._nodes))),
            self,
            self._queue,
            session.deadline_ms,
            rng,
            self._now_ms,
            LINGER_MS,
            in_flight_max,
        )
        process.pipes.append(self)
        self._look_after(0.0)

    # --- the application's side -----------------------------------------------------------------

    @property
    def queued(self) -> int:
        """How many publications have no counter yet."""
        return self._queue.count

    @property
    def is_answered(self) -> bool:
        """Whether every publication has its answer or its error."""
        return self._queue.answered >= self._queue.sent

    def publish(self, publication: bytes) -> Future[PutResult]:
        """Queue a publication."""
        assert self.queued < QUEUED_MAX, self.queued
        if self.is_answered:
            self._progress_s = self._wire.now
        future = self._queue.put(publication, self._now_ms)
        self._look_after(0.0)
        return future

    def hurry(self) -> None:
        """Let nothing wait for company any more."""
        self._queue.is_hurried = True
        self._look_after(0.0)

    def end(self) -> None:
        """Stop; what got no answer stays in the outbox."""
        if self._is_open:
            self._is_open = False
            self._process.pipes.remove(self)
            for endpoint in range(len(self._nodes)):
                self.close(endpoint)

    # --- the pipeline's wire --------------------------------------------------------------------

    def send(self, endpoint: int, frames: Sequence[bytes], timeout_ms: float) -> bool:
        """See `pipeline.Wire`; no time is spent on a connection that does not come."""
        if endpoint in self._lost:
            self.close(endpoint)
        self._process.check()
        return self._wire.client_send(self, self._nodes[endpoint], frames) == "sent"

    def close(self, endpoint: int) -> None:
        """See `flotilla_client.pipeline.RequestWire`."""
        self._lost.discard(endpoint)
        self._inbox.pop(endpoint, None)
        self._wire.client_close(self, self._nodes[endpoint])

    # --- what the world says --------------------------------------------------------------------

    def replied(self, node: str, frames: Sequence[bytes]) -> None:
        """See `clients.Caller`."""
        reply = parsed([b"", *frames])
        if reply is not None and self._is_open:
            inbox = self._inbox.setdefault(self._nodes.index(node), deque(maxlen=INBOX_MAX))
            inbox.append(reply)
            self._look_after(0.0)

    def lost(self, node: str) -> None:
        """See `clients.Caller`."""
        if self._is_open:
            self._lost.add(self._nodes.index(node))
            self._look_after(0.0)

    # --- the thread's part ----------------------------------------------------------------------

    def _look_after(self, delay_s: float) -> None:
        self._waits += 1
        number = self._waits

        def look() -> None:
            if self._is_open and number == self._waits:
                self._process.carry(self._look)

        self._wire.after(delay_s, look)

    def _look(self) -> None:
        """Do all that can be done now, then wait for the next reply or the time that is due."""
        if self.error is not None:
            return
        try:
            due_ms = self._work()
        except FlotillaError as error:
            self.error = error
            self._pipeline.stop(error)
        else:
            self._note_progress()
            if self._is_open:  # a crash behind a record has ended it otherwise
                self._look_after(max(0.0, due_ms - self._now_ms()) / 1000)

    def _note_progress(self) -> None:
        """Tell who watches for how long nothing has been answered, while something is due to be.

        A batch has as long as its deadline from when it is the window's first on, and what waits
        for room in the outbox as long.
        """
        now, window = self._wire.now, self._pipeline._window
        progress = self._queue.answered, window[0].entry.counter if window else 0
        if progress != self._progress or self.is_answered:
            self._progress, self._progress_s = progress, now
        self._process.observer.watcher.took(self._process, now - self._progress_s)

    def _work(self) -> float:
        """Take turns until there is nothing to do; return when there will be."""
        pipeline = self._pipeline
        for _ in range(TURNS_MAX):
            pipeline.turn()
            endpoint, due_ms = pipeline.endpoint, pipeline.due_ms()
            if endpoint is not None and self._inbox.get(endpoint):
                pipeline.replied(self._inbox[endpoint].popleft())
            elif endpoint is not None and endpoint in self._lost:
                pipeline.lost()
            elif due_ms > self._now_ms():
                return due_ms
            pipeline.expire()
        raise AssertionError(f"{self.name} takes {TURNS_MAX} turns at one moment")

    def _now_ms(self) -> float:
        return self._wire.now * 1000
