"""`Producer`: publishes to one topic in the background, many batches in flight.

What lives here: the queue between the application and one thread, and that thread's waiting. What
must not: which batch goes when (pipeline.py), retry decisions (retry.py), storage (state.py).
"""

from __future__ import annotations

import atexit
import functools
import os
import random
import select
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Final, Protocol, Self

from flotilla_client.batches import Publishable, as_bytes, check_undelayed, publication_of
from flotilla_client.connection import EndpointSockets
from flotilla_client.errors import Closed, FlotillaError, Overloaded, Unavailable
from flotilla_client.forks import forked
from flotilla_client.keys import KeyFile
from flotilla_client.operations import Operations, PutResult
from flotilla_client.pipeline import Pipeline
from flotilla_client.retry import (
    Routes,
)
from flotilla_client.window import Queue

LINGER_MS: Final = 5  # about one fsync: waiting longer than the broker does gains nothing
LINGER_MS_MAX: Final = 3_600_000  # an hour; whoever wants more wants to collect by himself
BATCH_BYTES: Final = 128 * 1024  # large enough that headers and fsyncs don't count
IN_FLIGHT_MAX: Final = 16  # batches: covers a round trip with a slow disk in it
QUEUE_BYTES_MAX: Final = 16 * 1024 * 1024  # then `send` blocks: the process must not grow
QUEUE_COUNT_MAX: Final = 100_000  # the same for small publications: a future takes 200 bytes
EXIT_PRIORITY: Final = 100  # of multiprocessing: before the finalizers of queues and managers
STOP_MS: Final = 200  # behind the deadline: what meets it then has its error, or goes to the outbox


class Background(Protocol):
    """What publishes in the background, and is finished when the process ends."""

    deadline_ms: float
    warn: Callable[[], None]

    def is_here(self) -> bool:
        """Tell if this is the process that made it."""

    def not_stored(self) -> tuple[int, int]:
        """Return how many publications were answered with an error: not definite, definite."""

    def begin_closing(self) -> None:
        """Take no more publications."""

    def finish(self, end_ms: float) -> None:
        """Close it, without a warning; flush until `end_ms` (monotonic)."""

    def report(self, before: tuple[int, int]) -> None:
        """Say on stderr what was not stored since `before`."""


_open: Final[set[Background]] = set()  # what has not been closed, of a parent process too


def finish_at_exit(background: Background) -> None:
    """Have it finished when the process ends."""
    _open.add(background)
    _finish_at_end_of_child(os.getpid())


def forget_at_exit(background: Background) -> None:
    """Take note that it has been closed."""
    _open.discard(background)


def queue_full() -> Overloaded:
    """Return the error of a `send` that found no room in time."""
    limit = {"limit": QUEUE_BYTES_MAX}
    return Overloaded("the producer's queue was full until the deadline", details=limit)


def finish_all(producers: Sequence[Background], end_ms: float) -> None:
    """Close producers side by side, without warnings; they flush until `end_ms` (monotonic)."""
    for producer in producers:
        producer.begin_closing()
    for producer in producers:
        producer.finish(end_ms)


def _finish_at_exit() -> None:
    """Close what the application has not, and say on stderr what was not stored by then."""
    left = [producer for producer in tuple(_open) if producer.is_here()]
    before = [producer.not_stored() for producer in left]
    try:
        if left:
            finish_all(left, _now_ms() + max(producer.deadline_ms for producer in left))
    finally:
        for producer, errors in zip(left, before, strict=True):
            producer.report(errors)
            producer.warn()


# Behind the end of all threads but daemons: producers', which live until these calls are over.
atexit.register(_finish_at_exit)


@functools.lru_cache(maxsize=1)
def _finish_at_end_of_child(pid: int) -> None:
    """Have `_finish_at_exit` called in a process of `multiprocessing`: it leaves `atexit` out."""
    process, util = map(sys.modules.get, ("multiprocessing.process", "multiprocessing.util"))
    if process is not None and util is not None and process.parent_process() is not None:
        util.Finalize(None, _finish_at_exit, exitpriority=EXIT_PRIORITY)


def say_at_exit(how: str, directory: Path | None, kept: int, lost: int) -> None:
    """Say on stderr what was not stored as the process ended; without a directory all is lost."""
    if directory is None:
        kept, lost = 0, lost + kept
    ended = f"flotilla: the process ended {how}: "
    if kept:
        where = f"the outbox in {directory}, for the next process with this directory"
        _say(f"{ended}{kept} publications were not stored; they stand in {where}")
    if lost:
        _say(f"{ended}{lost} publications were not stored and are lost")


def _say(text: str) -> None:
    if sys.stderr is not None:
        sys.stderr.write(text + "\n")


class Producer:
    """A background producer for one topic, made by `Client.producer`.

    `linger_ms`: how long a batch waits for company; `batch_bytes`: when it stops waiting;
    `in_flight_max`: batches without an answer. Safe to use from several threads: the order is the
    order of the calls of `send`.

    A future's error: not definite = the publication stands in the outbox, and this producer (or the
    topic's next publication, or the next process with this state directory) goes on sending it. All
    that was sent before the deadline passed without an answer stands there, as with
    `Client.publish`. A full outbox leaves publications in the queue until there is room or the
    deadline has passed.
    """

    def __init__(
        self,
        operations: Operations,
        topic: str,
        endpoints: Sequence[str],
        key: KeyFile | None,
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
        self.deadline_ms = deadline_ms
        self._pid = os.getpid()
        self._directory = operations.state.directory
        self._on_close = on_close
        self._queue = Queue(batch_bytes)
        self._is_done = threading.Event()
        self._has_begun = self._has_ended = False  # the thread; guarded by the queue's lock
        self._is_left = False  # by who closed it; guarded in the same way
        # From here on the thread's own.
        self._connection = EndpointSockets(endpoints, key)
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
            in_flight_max,
        )
        self._thread = threading.Thread(target=self._work, name=f"flotilla-{topic}", daemon=True)
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        self._wakes = select.poll()  # select() refuses descriptors above 1,023
        self._wakes.register(self._wake_read, select.POLLIN)
        os.set_blocking(self._wake_write, False)

    def start(self) -> None:
        """Begin to publish what is sent. Where that raises, `give_up`."""
        # Before the exit knows of it: one that can't be started never ends.
        self._thread.start()
        finish_at_exit(self)

    def give_up(self) -> None:
        """End what ctrl-C has broken off: its thread runs, or may yet begin, or never will."""
        with self._queue.lock:
            if self._has_begun:
                self.stop()
            else:
                self._close_wakes()
        forget_at_exit(self)

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

    def send(
        self,
        publication: Publishable,
        *,
        key: str | bytes | None = None,
        headers: Mapping[str, str | bytes] | None = None,
        expires: float | timedelta | None = None,
    ) -> Future[PutResult]:
        """Queue a publication; the future's result has its own id. `key`, `headers`,
        `expires`: as in `publish`.

        Blocks while the queue is full; raises Overloaded after the deadline, TooLarge, Closed, what
        stopped the producer, or BadRequest: it takes nothing with a delay.
        """
        publication = publication_of(publication, key, headers, expires)
        return self.send_by(publication, _now_ms() + self.deadline_ms)

    def send_by(self, publication: Publishable, end_ms: float) -> Future[PutResult]:
        """Queue a publication as `send` does, with another deadline (monotonic)."""
        self._check_here()
        data = as_bytes(publication)
        check_undelayed(data)
        self.warn()
        queue = self._queue
        with queue.lock:
            if queue.is_closing or queue.broken is not None or not self.has_room():
                self._await_room(end_ms)
            if queue.is_news(len(data)):
                self._wake()
            return queue.put(data, _now_ms)

    def _await_room(self, end_ms: float) -> None:
        """Wait until the queue has room. Raises Overloaded, Closed, what stopped the producer."""
        queue = self._queue
        if not queue.changed.wait_for(self.has_room, max(0.0, end_ms - _now_ms()) / 1000):
            raise queue_full()
        if queue.broken is not None:
            raise queue.broken.before_start()
        if queue.is_closing:
            raise Closed(f"the producer of {self.topic} is closed")

    def flush(self) -> None:
        """Wait until every publication sent so far has its answer or its error.

        Raises Unavailable, not definite, if that takes longer than the deadline: they go on being
        sent, and their futures tell.
        """
        due = self.begin_flushing()
        with self._queue.lock:
            patience_s = (self.deadline_ms + STOP_MS) / 1000
            self._queue.changed.wait_for(lambda: self.has_answered(due), patience_s)
        self.check_flushed(due)
        self.warn()

    def close(self) -> None:
        """Flush for as long as the deadline, then stop. What got no answer stays in the outbox.

        In a process forked from the one that made the producer: do nothing.
        """
        self.finish(_now_ms() + self.deadline_ms)
        self.warn()

    def has_room(self) -> bool:
        """Tell if `send` would return at once."""
        queue = self._queue
        full = queue.size_bytes >= QUEUE_BYTES_MAX or queue.count >= QUEUE_COUNT_MAX
        return not full or queue.broken is not None or queue.is_closing

    # --- flushing and closing, in steps that do not wait ----------------------------------------

    def begin_flushing(self) -> int:
        """Let nothing wait for company any more; return how many answers are due."""
        self._check_here()
        with self._queue.lock:
            self._queue.is_hurried = True
            self._wake()
            return self._queue.sent

    def has_answered(self, due: int) -> bool:
        """Tell if so many have their answer or their error."""
        return self._queue.answered >= due or self._has_ended

    def check_flushed(self, due: int) -> None:
        """Raise Unavailable unless so many have their answer."""
        if not self.has_answered(due):
            pending = due - self._queue.answered
            message = (
                f"{pending} publications to {self.topic} have no answer yet; they go on being sent"
            )
            raise Unavailable(message, definite=False, details={"pending": pending})

    def begin_closing(self) -> None:
        """Take no more publications."""
        if self.is_here():
            with self._queue.lock:
                self._queue.is_closing = True
                self._queue.changed.notify_all()
            self.begin_flushing()

    def stop(self) -> None:
        """End the thread; it moves what has no answer into the outbox first."""
        self._is_done.set()
        self._wake()

    def has_ended(self) -> bool:
        """Tell if the thread has done its last."""
        return self._has_ended

    def finish(self, end_ms: float) -> None:
        """Close without a warning, in whatever thread; flush until `end_ms` (monotonic)."""
        if not self.is_here():
            return
        self.begin_closing()
        lock, changed, due = self._queue.lock, self._queue.changed, self._queue.sent
        try:
            with lock:
                left_s = max(0.0, end_ms - _now_ms()) / 1000
                changed.wait_for(lambda: self.has_answered(due), left_s)
        finally:  # behind ctrl-C too, or nobody could publish to the topic any more
            self.stop()
            with lock:
                changed.wait_for(self.has_ended, (max(0.0, end_ms - _now_ms()) + STOP_MS) / 1000)
            self.let_go()

    def let_go(self) -> None:
        """Let others publish to the topic, behind the end of the thread: on a slow disk it lasts.

        Until then it writes to the outbox, where whoever came sooner would overtake what it has.
        """
        with self._queue.lock:
            self._is_left = True
            if self._has_ended and self in _open:
                forget_at_exit(self)
                self._on_close()

    def is_here(self) -> bool:
        """Tell if this is the process that made it."""
        return self._pid == os.getpid()

    def not_stored(self) -> tuple[int, int]:
        """Return how many publications were answered with an error: not definite, definite."""
        with self._queue.lock:
            return self._queue.kept, self._queue.lost

    def report(self, before: tuple[int, int]) -> None:
        """Say on stderr what was not stored since `before`."""
        queue = self._queue
        with queue.lock:
            kept = queue.kept - before[0] + queue.sent - queue.answered - queue.count
            lost = queue.lost - before[1] + queue.count  # which no batch has taken
        say_at_exit(f"with an open producer of {self.topic}", self._directory, kept, lost)

    def _check_here(self) -> None:
        if not self.is_here():
            raise forked("a producer's thread does not follow", self._pid)

    def _wake(self) -> None:
        with self._queue.lock:
            if self._has_ended:
                return  # the descriptor may be another file's now
            try:
                os.write(self._wake_write, b"\0")
            except BlockingIOError:
                return  # the pipe is full of wake-ups already

    # --- the thread -----------------------------------------------------------------------------

    def _work(self) -> None:
        with self._queue.lock:
            if self._has_ended:
                return
            self._has_begun = True
        try:
            while not (self._is_done.is_set() or self._queue.broken):
                self._turn()
            if not self._queue.broken:
                self._pipeline.abandon()
        except FlotillaError as error:
            self._pipeline.stop(error)
        except BaseException as error:
            defect = f"a defect of the producer: {error!r}"
            self._pipeline.stop(FlotillaError(defect, "internal", False))
            raise
        finally:
            self._connection.close_all()
            with self._queue.lock:
                self._close_wakes()
                self._queue.changed.notify_all()
                if self._is_left:
                    self.let_go()

    def _close_wakes(self) -> None:
        self._has_ended = True
        os.close(self._wake_read)
        os.close(self._wake_write)

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
