"""What a producer holds: the queue in front of its window, and the batches in it.

What lives here: the data, and how a batch is cut from the queue. What must not: threads that wait,
sockets, the outbox (producer.py).
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

from flotilla_client.errors import FlotillaError, Forked
from flotilla_client.forks import forked
from flotilla_client.observer import Operation
from flotilla_client.operations import PutResult
from flotilla_client.protocol import BATCH_COUNT_MAX
from flotilla_client.retry import Done
from flotilla_client.state import Entry


class PutFuture(Future[PutResult]):
    """The future of a publication's result; it can't be cancelled.

    In a process forked before it came, it never comes: the producer's thread did not follow.
    `result` raises Forked there, `exception` returns it; neither asks a lock that may have been
    taken when the process was copied. Callbacks are not called: to them it would be a failure.
    """

    def __init__(self) -> None:
        super().__init__()
        self.set_running_or_notify_cancel()  # what may be on its way can't be called back
        self._home, self._has_come = os.getpid(), False

    def set_result(self, result: PutResult) -> None:
        """Set the result."""
        super().set_result(result)
        self._has_come = True

    def set_exception(self, exception: BaseException | None) -> None:
        """Set the error."""
        super().set_exception(exception)
        self._has_come = True

    def result(self, timeout: float | None = None) -> PutResult:
        """Return the result, once it is there. Raises its error, TimeoutError, Forked."""
        if self._never_comes():
            raise self._forked()
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Return the error, None without one, once it is known. Raises TimeoutError."""
        return self._forked() if self._never_comes() else super().exception(timeout)

    def _never_comes(self) -> bool:
        return not self._has_come and os.getpid() != self._home

    def _forked(self) -> Forked:
        return forked("the answer to a publication comes to that process", self._home)


@dataclass(frozen=True, slots=True)
class Queued:
    """A publication that the application sent, and the future of its result."""

    publication: bytes
    future: Future[PutResult]


@dataclass(slots=True)
class Batch:
    """A batch in the window. `is_waiting`: a request is on its way and has no answer yet.

    `has_led`: its last request left when nothing before it was unanswered.
    """

    entry: Entry
    operation_id: str
    futures: Sequence[Future[PutResult]] = ()
    operation: Operation | None = None
    sent: int = 0
    is_waiting: bool = False
    has_led: bool = False
    done: Done | None = None


@dataclass(slots=True)
class Queue:
    """What the application sent and no batch has taken. Guarded by `lock`; `changed` is on it.

    The lock is taken by `with` on itself: `with changed` is Python, in which Ctrl-C could part the
    lock's taking from its release.
    """

    lock: threading.RLock = field(default_factory=threading.RLock)
    changed: threading.Condition = field(init=False)
    items: deque[Queued] = field(default_factory=deque)
    size_bytes: int = 0
    since_ms: float = 0.0  # when the oldest came
    sent: int = 0  # publications, ever
    answered: int = 0  # of those
    kept: int = 0  # answered with an error that is not definite: they stand in the outbox
    lost: int = 0  # answered with a definite one
    is_hurried: bool = False  # somebody waits in flush
    is_closing: bool = False
    broken: FlotillaError | None = None

    def __post_init__(self) -> None:
        self.changed = threading.Condition(self.lock)

    def put(self, publication: bytes, now_ms: float) -> Future[PutResult]:
        """Append a publication; return the future of its result."""
        future = PutFuture()
        if not self.items:
            self.since_ms = now_ms
        self.items.append(Queued(publication, future))
        self.size_bytes += len(publication)
        self.sent += 1
        return future

    def take_batch(self, batch_bytes: int, now_ms: float) -> list[Queued]:
        """Take the oldest publications, as many as fit into a batch; one at least."""
        batch = [self.items.popleft()]
        size_bytes = len(batch[0].publication)
        while self.items and len(batch) < BATCH_COUNT_MAX:
            if size_bytes + len(self.items[0].publication) > batch_bytes:
                break
            batch.append(self.items.popleft())
            size_bytes += len(batch[-1].publication)
        self.size_bytes -= size_bytes
        self.since_ms = now_ms
        return batch

    def put_back(self, items: Sequence[Queued]) -> None:
        """Put publications back to the front, in their order."""
        self.items.extendleft(reversed(items))
        self.size_bytes += sum(len(queued.publication) for queued in items)
