"""`publish_soon`: publications whose answers are futures, joined with all others.

What lives here: how much may be without an answer, and, for threads, the thread that does the work
where no caller waits. What must not: which publication goes when (joining.py), whose turn it is
(turns.py), asyncio (aio.py).

A call stands in the queue of turns from the moment it is made: so its place among all calls of its
thread is that of the call, whoever carries it out. Calls next to each other share a ticket, as
long as nobody has queued up behind it.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Final

from flotilla_client.errors import Closed, FlotillaError, Forked, Overloaded
from flotilla_client.forks import forked
from flotilla_client.joining import Call
from flotilla_client.operations import PutResult
from flotilla_client.producer import STOP_MS, finish_at_exit, forget_at_exit, say_at_exit
from flotilla_client.turns import Ticket, Turns, busy

UNANSWERED_BYTES_MAX: Final = 16 * 1024 * 1024  # then `publish_soon` waits: memory must not grow
UNANSWERED_COUNT_MAX: Final = 100_000  # the same for small publications
TICKET_COUNT_MAX: Final = 1_000  # calls that share one: what is over is let go by tickets


class Unanswered:
    """How much was published soon and has no answer.

    Whoever counts does so in line: a call would be a place for ctrl-C between the two numbers.
    """

    def __init__(self) -> None:
        self.count = self.size_bytes = 0

    def has_room(self) -> bool:
        """Return whether one more may come."""
        return self.count < UNANSWERED_COUNT_MAX and self.size_bytes < UNANSWERED_BYTES_MAX


def no_room() -> Overloaded:
    """Return the error of a `publish_soon` that found no room in time."""
    limit = {"limit": UNANSWERED_BYTES_MAX}
    message = "too many publications had no answer until the deadline: await some of the futures"
    return Overloaded(message, details=limit)


class SoonFuture(Future[PutResult]):
    """The future of a publication's result.

    In a process forked before it came, it never comes: the publisher's thread did not follow.
    `result` raises Forked there, `exception` returns it.
    """

    def __init__(self) -> None:
        super().__init__()
        self._home, self._is_over = os.getpid(), False

    def result(self, timeout: float | None = None) -> PutResult:
        """Return the result, once it is there. Raises its error, TimeoutError, Forked."""
        if self._never_comes():
            raise self._forked()
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Return the error, None without one, once it is known. Raises TimeoutError."""
        return self._forked() if self._never_comes() else super().exception(timeout)

    def set_result(self, result: PutResult) -> None:
        """Tell who waits: for the publisher alone."""
        super().set_result(result)
        self._is_over = True

    def set_exception(self, exception: BaseException | None) -> None:
        """Tell who waits: for the publisher alone."""
        super().set_exception(exception)
        self._is_over = True

    def cancel(self) -> bool:
        """Call it back, if it was not taken; return whether that was in time."""
        self._is_over = super().cancel() or self._is_over
        return self.cancelled()

    def _never_comes(self) -> bool:
        return not self._is_over and os.getpid() != self._home

    def _forked(self) -> Forked:
        return forked("the answer to a publication comes to that process", self._home)


class SoonPublisher:
    """A client's thread for what was published soon; it begins with the first such call.

    `lead(ticket)` does the work of all who publish until the ticket's calls are over. `warn()`
    issues what warnings are due, in the application's thread.
    """

    def __init__(
        self,
        turns: Turns,
        lead: Callable[[Ticket], None],
        warn: Callable[[], None],
        directory: Path | None,
        deadline_ms: float,
    ) -> None:
        self.warn, self.deadline_ms = warn, deadline_ms
        self._turns, self._lead, self._directory = turns, lead, directory
        self._pid = os.getpid()
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._futures: dict[Call, Future[PutResult]] = {}
        self._over: deque[Call] = deque()  # which others did, to be answered by the thread
        self._unanswered = Unanswered()
        self._tickets: deque[tuple[Ticket, list[Call]]] = deque()  # with what each joins
        self._thread: threading.Thread | None = None
        self._is_closing = False
        self._kept = self._lost = 0

    # --- the application's side -----------------------------------------------------------------

    def publish(self, make: Callable[[Callable[[], None]], Call]) -> Future[PutResult]:
        """Queue what `make(told)` returns; its place is from now on. Raises Overloaded, Closed."""
        future = SoonFuture()
        call = make(lambda: self._told(call))
        unanswered, size_bytes = self._unanswered, call.size_bytes
        with self._lock:
            left_s = max(0.0, call.end_ms - _now_ms()) / 1000
            if not self._changed.wait_for(self._may_come, left_s):
                raise no_room()
            if self._is_closing:
                raise Closed("the client is closed")
            self._begin()
            try:
                self._futures[call] = future
                unanswered.count += 1
                unanswered.size_bytes += size_bytes
                self._queue(call)
            except BaseException:  # ctrl-C
                self._cancelled(call)
                raise
        future.add_done_callback(partial(self._done, call))
        return future

    def _may_come(self) -> bool:
        return self._unanswered.has_room() or self._is_closing

    def _queue(self, call: Call) -> None:
        if self._tickets:
            last, joined = self._tickets[-1]
            if len(joined) < TICKET_COUNT_MAX and self._turns.is_last(last):
                joined.append(call)
                last.wake()
                return
        calls = [call]
        ticket = Ticket(calls)
        assert self._thread is not None, call.topic
        ticket.thread = self._thread.ident or 0  # whoever calls from inside of it is told at once
        self._tickets.append((ticket, calls))
        self._turns.add(ticket)
        self._changed.notify_all()

    def _begin(self) -> None:
        if self._thread is not None:
            return
        finish_at_exit(self)
        thread = threading.Thread(target=self._work, name="flotilla-publisher", daemon=True)
        self._thread = thread
        try:
            thread.start()
        except BaseException:  # ctrl-C: it may have begun all the same, and ends at once
            self._thread = None
            raise

    def _told(self, call: Call) -> None:
        """A call is over: have the thread answer its future, as callbacks run there."""
        future = self._futures.get(call)
        if threading.current_thread() is self._thread or (future is not None and future.done()):
            self._settle(call)
            return
        self._over.append(call)  # whoever is broken off before is made good by the thread
        with self._lock:
            self._wake()

    def _wake(self) -> None:
        for ticket, _ in tuple(self._tickets):
            ticket.wake()
        self._changed.notify_all()

    def _settle(self, call: Call) -> None:
        """Answer a call's future, without the lock: its callbacks may wait for who publishes."""
        future = self._futures.get(call)
        if future is None:
            return
        if not future.done():
            self._answer(call, future)
        unanswered, size_bytes = self._unanswered, call.size_bytes
        with self._lock:
            if call in self._futures:
                del self._futures[call]
                unanswered.count -= 1
                unanswered.size_bytes -= size_bytes
                self._changed.notify_all()

    def _answer(self, call: Call, future: Future[PutResult]) -> None:
        if not future.set_running_or_notify_cancel():
            return
        try:
            [result] = call.results()
        except Exception as error:  # noqa: BLE001, whatever it is, it is the caller's
            if isinstance(error, FlotillaError) and not error.definite:
                self._kept += 1
            else:
                self._lost += 1
            _tell(partial(future.set_exception, error))
        else:
            _tell(partial(future.set_result, result))

    def _done(self, call: Call, future: Future[PutResult]) -> None:
        if future.cancelled():
            self._cancelled(call)

    def _cancelled(self, call: Call) -> None:
        """Its caller wants it no more: it is left out, unless it was taken already."""
        if call.leave():
            call.end(Closed("cancelled before it was taken"))
            with self._lock:
                self._wake()

    # --- flushing and closing -------------------------------------------------------------------

    def is_here(self) -> bool:
        """Tell if this is the process that made it."""
        return self._pid == os.getpid()

    def begin_closing(self) -> None:
        """Take no more publications."""
        if self.is_here():
            with self._lock:
                self._is_closing = True
                self._changed.notify_all()

    def finish(self, end_ms: float) -> None:
        """Wait for the answers until `end_ms` (monotonic), then end the thread."""
        if not self.is_here():
            return
        self.begin_closing()
        with self._lock:
            left_s = (max(0.0, end_ms - _now_ms()) + STOP_MS) / 1000
            self._changed.wait_for(lambda: not self._futures, left_s)
            forget_at_exit(self)

    def not_stored(self) -> tuple[int, int]:
        """Return how many publications were answered with an error: not definite, definite."""
        with self._lock:
            return self._kept, self._lost

    def report(self, before: tuple[int, int]) -> None:
        """Say on stderr what was not stored since `before`, as the process ends."""
        with self._lock:
            left = sum([call.leave() for call in self._futures])
            kept = self._kept - before[0] + len(self._futures) - left
            lost = self._lost - before[1] + left
        say_at_exit("with what was published soon", self._directory, kept, lost)

    # --- the thread -----------------------------------------------------------------------------

    def _work(self) -> None:
        while (ticket := self._next()) is not None:
            try:
                self._turns.await_place(ticket, self._settle_over, self._end_late)
                self._lead(ticket)
            except FlotillaError as error:
                self._fail(ticket, error)
            except BaseException as error:  # noqa: BLE001, without the thread no call would end
                self._fail(ticket, FlotillaError(f"a defect: {error!r}", "internal", False))
                _say_unhandled()
            self._let_go(ticket)

    def _next(self) -> Ticket | None:
        while True:
            self._settle_over()
            with self._lock:
                # One whose start ctrl-C has broken off may begin all the same: not this one then.
                if self._thread is not threading.current_thread():
                    return None
                if self._tickets:
                    return self._tickets[0][0]
                if not self._over:
                    if self._is_closing:
                        return None
                    self._changed.wait()

    def _settle_over(self) -> None:
        """Answer the calls that others did."""
        while self._over:
            self._settle(self._over.popleft())

    def _end_late(self) -> None:
        """End the calls whose time is over while others have the turn."""
        now_ms = _now_ms()
        with self._lock:
            late = [each for _, calls in self._tickets for each in calls if each.end_ms <= now_ms]
        for call in late:
            if not call.is_over and call.leave():
                call.end(busy("others took all of its time"))

    def _fail(self, ticket: Ticket, error: FlotillaError) -> None:
        """End the calls of a ticket that nobody can carry out, such as for a disk that fails."""
        for call in tuple(ticket.joining):
            if call.leave():
                call.end(error.before_start())
            elif not call.is_over:
                call.keep(type(error)(error.message, error.code, False, dict(error.details)))

    def _let_go(self, ticket: Ticket) -> None:
        """Let a ticket's place go, unless another call has joined it meanwhile."""
        with self._lock:
            if ticket.is_over():
                self._tickets.popleft()
                self._turns.pop(ticket.place, None)
        for call in tuple(ticket.joining):
            if call.is_over:
                self._settle(call)
        self._turns.wake()


def _tell(answer: Callable[[], None]) -> None:
    """Answer a future. A callback that raises (`sys.exit`) must not end the thread for all others.

    `Future` itself says and swallows every `Exception`.
    """
    try:
        answer()
    except BaseException:  # noqa: BLE001, only the main thread is told of ctrl-C, and this is none
        _say_unhandled()


def _say_unhandled() -> None:
    """Say an exception as if it had ended this thread."""
    threading.excepthook(threading.ExceptHookArgs((*sys.exc_info(), threading.current_thread())))


def _now_ms() -> float:
    return time.monotonic() * 1000
