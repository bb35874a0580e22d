"""What a producer holds: the queue in front of its window, and the batches in it.

What lives here: the data, and how a batch is cut from the queue. What must not: threads that wait,
sockets, the outbox (producer.py).
"""

from __future__ import annotations

import itertools
import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Final

from flotilla_client.errors import FlotillaError, Forked
from flotilla_client.forks import forked
from flotilla_client.observer import Operation
from flotilla_client.operations import PutResult
from flotilla_client.protocol import BATCH_COUNT_MAX
from flotilla_client.retry import Done
from flotilla_client.state import Entry

_OF_FUTURE: Final = frozenset(vars(Future[PutResult]()))  # what one of them keeps


class PutFuture(Future[PutResult]):
    """The future of a publication's result; it can't be cancelled.

    Its parcel has the result, for all in it. What a `Future` needs besides, to be waited for or to
    call back, is made when somebody first asks for it: as a rule nobody does, and it would take
    longer than all the rest of a publication's way.

    In a process forked before it came, it never comes: the producer's thread did not follow.
    `result` raises Forked there, `exception` returns it; neither asks a lock that may have been
    taken when the process was copied. Callbacks are not called: to them it would be a failure.
    """

    def __init__(self, parcel: Parcel, number: int) -> None:
        self._parcel, self._number = parcel, number

    def __getattr__(self, name: str) -> Any:
        if name not in _OF_FUTURE:
            what = f"{type(self).__name__!r} object has no attribute {name!r}"
            raise AttributeError(what, name=name, obj=self)
        self._parcel.watch(self)
        return vars(self)[name]

    def done(self) -> bool:
        """Return whether the result or the error is there."""
        return self._parcel.outcome is not None

    def result(self, timeout: float | None = None) -> PutResult:
        """Return the result, once it is there. Raises its error, TimeoutError, Forked."""
        outcome = self._parcel.outcome
        if outcome is None:
            if self._parcel.never_comes():
                raise self._parcel.forked()
            return super().result(timeout)
        if isinstance(outcome, FlotillaError):
            raise outcome
        return self._own(outcome)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Return the error, None without one, once it is known. Raises TimeoutError."""
        outcome = self._parcel.outcome
        if outcome is None:
            return (
                self._parcel.forked() if self._parcel.never_comes() else super().exception(timeout)
            )
        return outcome if isinstance(outcome, FlotillaError) else None

    @property
    def number(self) -> int:
        """Its place in the parcel."""
        return self._number

    def tell(self, outcome: PutResult | FlotillaError) -> None:
        """Tell those who wait for it."""
        if isinstance(outcome, FlotillaError):
            self.set_exception(outcome)
        else:
            self.set_result(self._own(outcome))

    def begin(self, outcome: PutResult | FlotillaError | None) -> None:
        """Become what a `Future` is, at one stroke: no signal and no thread finds half of it."""
        future = Future[PutResult]()
        future.set_running_or_notify_cancel()  # what may be on its way can't be called back
        if isinstance(outcome, FlotillaError):
            future.set_exception(outcome)
        elif outcome is not None:
            future.set_result(self._own(outcome))
        vars(self).update(vars(future))

    def _own(self, of_parcel: PutResult) -> PutResult:
        id_ = of_parcel.id + self._number if of_parcel.id else 0
        return PutResult(id_, 1, of_parcel.duplicate, of_parcel.stored)


class Parcel:
    """Publications that go out in one batch, and the one outcome that they share.

    `outcome`: the batch's result or error, once it is known; set once. `publications` are there
    until they are stored. A future that is waited for is `watched`: it alone is told.
    """

    __slots__ = ("_home", "_lock", "_watched", "count", "outcome", "publications", "size_bytes")

    def __init__(self) -> None:
        self.publications: list[bytes] = []
        self.count = self.size_bytes = 0
        self.outcome: PutResult | FlotillaError | None = None
        self._home, self._lock = os.getpid(), threading.RLock()
        self._watched: dict[PutFuture, None] = {}

    def settle(self, outcome: PutResult | FlotillaError) -> list[PutFuture]:
        """Note what became of all of them; return who is to be told, in their order."""
        with self._lock:
            assert self.outcome is None, (self.outcome, outcome)
            self.outcome = outcome
            watched, self._watched = self._watched, {}
        return sorted(filter(_is_begun, watched), key=_number)

    def watch(self, future: PutFuture) -> None:
        """Let somebody wait for the future."""
        if os.getpid() != self._home:  # whoever had the lock when the process was copied keeps it
            future.begin(self.outcome)
            return
        with self._lock:
            if _is_begun(future):
                return  # by another thread, just now
            if self.outcome is None:
                self._watched[future] = None
            future.begin(self.outcome)

    def never_comes(self) -> bool:
        """Return whether this is a process that was forked before the outcome came."""
        return self.outcome is None and os.getpid() != self._home

    def forked(self) -> Forked:
        """Return the error of what never comes."""
        return forked("the answer to a publication comes to that process", self._home)


def settle(parcels: Sequence[Parcel], outcome: PutResult | FlotillaError) -> None:
    """Give publications their outcome, and tell who waits, in their order.

    A callback may end this thread (`sys.exit`): not before all are told, or they would wait on.
    """
    ended: BaseException | None = None
    for future in list(itertools.chain.from_iterable(p.settle(outcome) for p in parcels)):
        try:
            future.tell(outcome)
        except BaseException as error:  # noqa: BLE001 - raised below; `Future` logs `Exception`s
            ended = error
    if ended is not None:
        raise ended


def _number(future: PutFuture) -> int:
    return future.number


def _is_begun(future: PutFuture) -> bool:
    return not _OF_FUTURE.isdisjoint(vars(future))


@dataclass(slots=True)
class Batch:
    """A batch in the window. `is_waiting`: a request is on its way and has no answer yet.

    `has_led`: its last request left when nothing before it was unanswered. `parcel` None: nobody
    waits for its outcome.
    """

    entry: Entry
    operation_id: str
    parcel: Parcel | None = None
    operation: Operation | None = None
    sent: int = 0
    is_waiting: bool = False
    has_led: bool = False
    done: Done | None = None


@dataclass(slots=True)
class Queue:
    """What the application sent and no batch has taken. Guarded by `lock`; `changed` is on it.

    Each parcel becomes a batch of at most `batch_bytes` (or of one publication); the last one still
    takes what comes.

    The lock is taken by `with` on itself: `with changed` is Python, in which Ctrl-C could part the
    lock's taking from its release.
    """

    batch_bytes: int
    lock: threading.RLock = field(default_factory=threading.RLock)
    changed: threading.Condition = field(init=False)
    parcels: deque[Parcel] = field(default_factory=deque)
    count: int = 0  # publications in them
    size_bytes: int = 0
    since_ms: float = 0.0  # when the oldest came
    sent: int = 0  # publications, ever
    answered: int = 0  # of those
    kept: int = 0  # answered with an error that is not definite: they stand in the outbox
    lost: int = 0  # answered with a definite one
    is_seen: bool = False  # by whoever takes them: that there is enough for a batch
    is_hurried: bool = False  # somebody waits in flush
    is_closing: bool = False
    broken: FlotillaError | None = None

    def __post_init__(self) -> None:
        self.changed = threading.Condition(self.lock)

    def put(self, publication: bytes, now_ms: Callable[[], float]) -> PutFuture:
        """Append a publication; return the future of its result."""
        size_bytes = len(publication)
        parcel, since_ms = self._open_parcel(size_bytes), self.since_ms if self.count else now_ms()
        future = PutFuture(parcel, parcel.count)
        # At one stroke: Python looks for a signal behind a call, and here is none.
        if not parcel.count:
            self.parcels += (parcel,)
        parcel.publications += (publication,)
        parcel.count += 1
        parcel.size_bytes += size_bytes
        self.count += 1
        self.size_bytes += size_bytes
        self.sent += 1
        self.since_ms = since_ms
        self.is_seen = self.size_bytes >= self.batch_bytes
        return future

    def _open_parcel(self, size_bytes: int) -> Parcel:
        """Return the parcel that takes so much more: the last one, or a new one."""
        if not self.parcels:
            return Parcel()
        parcel = self.parcels[-1]
        is_full = parcel.size_bytes + size_bytes > self.batch_bytes
        return Parcel() if is_full or parcel.count >= BATCH_COUNT_MAX else parcel

    def is_news(self, size_bytes: int) -> bool:
        """Return whether whoever takes batches has to hear of a `put` of so much: once each time.

        It is told before: whoever is broken off in between has woken it for nothing.
        """
        is_enough = self.size_bytes + size_bytes >= self.batch_bytes
        return not self.count or (is_enough and not self.is_seen)

    def take(self, now_ms: float) -> Parcel:
        """Take the oldest publications, as many as fit into a batch; one at least."""
        parcel = self.parcels.popleft()
        self.count -= parcel.count
        self.size_bytes -= parcel.size_bytes
        self.since_ms = now_ms
        self.is_seen = self.is_seen and self.size_bytes >= self.batch_bytes
        return parcel

    def put_back(self, parcels: Sequence[Parcel]) -> None:
        """Put publications back to the front, in their order."""
        self.parcels.extendleft(reversed(parcels))
        self.count += sum(parcel.count for parcel in parcels)
        self.size_bytes += sum(parcel.size_bytes for parcel in parcels)

    def take_all(self) -> list[Parcel]:
        """Take everything."""
        parcels = list(self.parcels)
        self.parcels.clear()
        self.count = self.size_bytes = 0
        return parcels
