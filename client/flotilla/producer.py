"""`Producer`: publishes to one topic in the background, many batches in flight.

What lives here: the queue between the application and one thread, and that thread's waiting. What
must not: which batch goes when (pipeline.py), retry decisions (retry.py), storage (state.py).
"""

from __future__ import annotations

import os
import random
import select
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from types import TracebackType
from typing import Final, Self

from flotilla.batches import as_bytes
from flotilla.connection import Connection
from flotilla.errors import Closed, FlotillaError, Overloaded
from flotilla.operations import Operations, PutResult
from flotilla.pipeline import Pipeline
from flotilla.retry import (
    Routes,
)
from flotilla.window import Queue

LINGER_MS: Final = 5  # about one fsync: waiting longer than the broker does gains nothing
LINGER_MS_MAX: Final = 3_600_000  # an hour; whoever wants more wants to collect by himself
BATCH_BYTES: Final = 128 * 1024  # large enough that headers and fsyncs don't count
IN_FLIGHT_MAX: Final = 16  # batches: covers a round trip with a slow disk in it
QUEUE_BYTES_MAX: Final = 16 * 1024 * 1024  # then `send` blocks: the process must not grow
QUEUE_COUNT_MAX: Final = 100_000  # the same for small publications: a future takes half a KiB


class Producer:
    """A background producer for one topic, made by `Client.producer`.

    `linger_ms`: how long a batch waits for company; `batch_bytes`: when it stops waiting;
    `in_flight_max`: batches without an answer. Safe to use from several threads: the order is the
    order of the calls of `send`.

    A future's error: not definite = the publication stands in the outbox, and this producer (or the
    topic's next `put`, or the next process with this state directory) goes on sending it. All that
    was sent before the deadline passed without an answer stands there, as with `Client.put`.
    A full outbox leaves publications in the queue until there is room or the deadline has passed.
    """

    def __init__(
        self,
        operations: Operations,
        topic: str,
        endpoints: Sequence[str],
        routes: Routes,
        deadline_ms: float,
        rng: random.Random,
        on_close: Callable[[], object],
        linger_ms: float = LINGER_MS,
        batch_bytes: int = BATCH_BYTES,
        in_flight_max: int = IN_FLIGHT_MAX,
    ) -> None:
        self.topic = topic
        self.warn = operations.warn
        self._deadline_ms = deadline_ms
        self._on_close = on_close
        self._batch_bytes = batch_bytes
        self._queue = Queue()
        self._is_done = threading.Event()
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        self._wakes = select.poll()  # select() refuses descriptors above 1,023
        self._wakes.register(self._wake_read, select.POLLIN)
        os.set_blocking(self._wake_write, False)
        # From here on the thread's own.
        self._connection = Connection(endpoints)
        self._pipeline = Pipeline(
            operations,
            topic,
            endpoints,
            routes,
            self._connection,
            self._queue,
            deadline_ms,
            rng,
            _now_ms,
            linger_ms,
            batch_bytes,
            in_flight_max,
        )
        self._thread = threading.Thread(target=self._work, name=f"flotilla-{topic}", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # --- the application's side -----------------------------------------------------------------

    def send(self, publication: bytes | str) -> Future[PutResult]:
        """Queue a publication; the future's result has its own id.

        Blocks while the queue is full; raises Overloaded after the deadline, TooLarge, Closed, or
        what stopped the producer.
        """
        data = as_bytes(publication)
        self.warn()
        queue = self._queue
        with queue.changed:
            if not queue.changed.wait_for(self.has_room, self._deadline_ms / 1000):
                limit = {"limit": QUEUE_BYTES_MAX}
                raise Overloaded("the producer's queue was full until the deadline", details=limit)
            if queue.broken is not None:
                raise queue.broken.before_start()
            if queue.is_closing:
                raise Closed(f"the producer of {self.topic} is closed")
            future = queue.put(data, _now_ms())
            is_news = len(queue.items) == 1 or queue.size_bytes >= self._batch_bytes
        if is_news:
            self._wake()
        return future

    def flush(self) -> None:
        """Wait until every publication sent so far has its answer or its error."""
        self.await_answers()
        self.warn()

    def await_answers(self) -> None:
        """Flush without a warning: in whatever thread."""
        with self._queue.changed:
            if self._is_done.is_set():
                return  # `close` has flushed, and the pipe's descriptor may be another file's now
            due = self._queue.sent
            self._queue.is_hurried = True
            self._wake()
            self._queue.changed.wait_for(lambda: self._queue.answered >= due)

    def close(self) -> None:
        """Flush, then stop. What got no answer stays in the outbox."""
        self.finish()
        self.warn()

    def finish(self) -> None:
        """Close without a warning: in whatever thread."""
        with self._queue.changed:
            if self._queue.is_closing:
                return
            self._queue.is_closing = True
        self.await_answers()
        self._is_done.set()
        self._wake()
        self._thread.join()
        os.close(self._wake_read)
        os.close(self._wake_write)
        self._on_close()

    def has_room(self) -> bool:
        """Tell if `send` would return at once."""
        queue = self._queue
        full = queue.size_bytes >= QUEUE_BYTES_MAX or len(queue.items) >= QUEUE_COUNT_MAX
        return not full or queue.broken is not None

    def _wake(self) -> None:
        try:
            os.write(self._wake_write, b"\0")
        except BlockingIOError:
            return  # the pipe is full of wake-ups already

    # --- the thread -----------------------------------------------------------------------------

    def _work(self) -> None:
        try:
            while not (self._is_done.is_set() or self._queue.broken):
                self._turn()
        except FlotillaError as error:
            self._pipeline.stop(error)
        except BaseException as error:
            defect = f"a defect of the producer: {error!r}"
            self._pipeline.stop(FlotillaError(defect, "internal", False))
            raise
        finally:
            self._connection.close_all()

    def _turn(self) -> None:
        self._pipeline.turn()
        timeout_ms = max(0.0, self._pipeline.due_ms() - _now_ms())
        if self._pipeline.endpoint is None:
            self._wakes.poll(timeout_ms)
            self._drain_wakes()
        else:
            self._receive(self._pipeline.endpoint, timeout_ms)
        self._pipeline.expire()

    def _receive(self, endpoint: int, timeout_ms: float) -> None:
        try:
            reply = self._connection.receive(endpoint, timeout_ms, self._wake_read)
        except ConnectionResetError:
            self._pipeline.lost()
            return
        self._drain_wakes()
        if reply is not None:
            self._pipeline.replied(reply)

    def _drain_wakes(self) -> None:
        try:
            os.read(self._wake_read, 4096)
        except BlockingIOError:
            return


def _now_ms() -> float:
    return time.monotonic() * 1000
