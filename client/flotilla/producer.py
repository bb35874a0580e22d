"""`Producer`: publishes to one topic in the background, many batches in flight.

What lives here: the queue between the application and one thread, and that thread's window of
batches on the wire. What must not: retry decisions (retry.py steers the window's first batch, and
the others go where it goes), storage (state.py) or the PUT's rules (operations.py).

A batch enters the outbox before it is sent and leaves it when acknowledged, as in `Client.put`.
The broker takes counters without holes only, so whenever the first unanswered batch has to be sent
again, all behind it are sent again after it: order is kept, and what arrived twice is answered as
a duplicate.
"""

from __future__ import annotations

import itertools
import os
import random
import select
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from types import TracebackType
from typing import Final, Self

from flotilla.batches import as_bytes
from flotilla.connection import REQUESTS_QUEUED_MAX, Connection, with_endpoints
from flotilla.errors import FlotillaError, OutboxFull, Overloaded, Unavailable
from flotilla.operations import REFUSED_FOREVER, Operations, PutResult
from flotilla.protocol import BATCH_BYTES_MAX, Reply, encode_request, pack
from flotilla.retry import (
    TELLING,
    Action,
    Close,
    Done,
    Exchange,
    Failed,
    Listen,
    Pause,
    Routes,
    Send,
    attempt_timeout_ms,
)
from flotilla.state import Entry
from flotilla.window import Batch, Queue, Queued

LINGER_MS: Final = 5  # about one fsync: waiting longer than the broker does gains nothing
BATCH_BYTES: Final = 128 * 1024  # large enough that headers and fsyncs don't count
IN_FLIGHT_MAX: Final = 16  # batches: covers a round trip with a slow disk in it
QUEUE_BYTES_MAX: Final = 16 * 1024 * 1024  # then `send` blocks: the process must not grow
QUEUE_COUNT_MAX: Final = 100_000  # the same for small publications: a future takes half a KiB
OUTBOX_RETRY_MS: Final = 50  # between looks at a full outbox: an acknowledgment frees it, soon


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
        assert 0 < batch_bytes <= BATCH_BYTES_MAX, batch_bytes
        assert 0 < in_flight_max < REQUESTS_QUEUED_MAX, in_flight_max
        self.topic = topic
        self._operations = operations
        self._deadline_ms = deadline_ms
        self._rng = rng
        self._on_close = on_close
        self._linger_ms = linger_ms
        self._batch_bytes = batch_bytes
        self._in_flight_max = in_flight_max
        self._queue = Queue()
        self._is_done = threading.Event()
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        os.set_blocking(self._wake_write, False)
        # From here on the thread's own.
        self._routes = routes
        self._endpoints = tuple(endpoints)
        self._connection = Connection(endpoints)
        self._name = f"{rng.getrandbits(64):016x}"
        self._batch_numbers = itertools.count(1)
        self._window = deque(map(self._batch, operations.state.outbox(topic)))
        self._exchange: Exchange | None = None
        self._endpoint: int | None = None  # None while pausing
        # A broker takes any counter as a topic's first: until it has acknowledged one, none may
        # overtake the first, which would then pass for a duplicate of what was never stored.
        self._is_known = False
        self._until_ms = 0.0
        self._full_since_ms: float | None = None  # the outbox
        self._take_after_ms = 0.0
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

        Blocks while the queue is full; raises Overloaded after the deadline, TooLarge, or what
        stopped the producer.
        """
        data = as_bytes(publication)
        future: Future[PutResult] = Future()
        future.set_running_or_notify_cancel()  # what may be on its way can't be called back
        queue = self._queue
        with queue.changed:
            if not queue.changed.wait_for(self.has_room, self._deadline_ms / 1000):
                limit = {"limit": QUEUE_BYTES_MAX}
                raise Overloaded("the producer's queue was full until the deadline", details=limit)
            if queue.broken is not None:
                raise queue.broken.before_start()
            assert not queue.is_closing, "send after close"
            if not queue.items:
                queue.since_ms = _now_ms()
            queue.items.append(Queued(data, future))
            queue.size_bytes += len(data)
            queue.sent += 1
            is_news = len(queue.items) == 1 or queue.size_bytes >= self._batch_bytes
        if is_news:
            self._wake()
        return future

    def flush(self) -> None:
        """Wait until every publication sent so far has its answer or its error."""
        with self._queue.changed:
            if self._is_done.is_set():
                return  # `close` has flushed, and the pipe's descriptor may be another file's now
            due = self._queue.sent
            self._queue.is_hurried = True
            self._wake()
            self._queue.changed.wait_for(lambda: self._queue.answered >= due)

    def close(self) -> None:
        """Flush, then stop. What got no answer stays in the outbox."""
        with self._queue.changed:
            if self._queue.is_closing:
                return
            self._queue.is_closing = True
        self.flush()
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
            self._break(error)
        except BaseException as error:
            self._break(FlotillaError(f"a defect of the producer: {error!r}", "internal", False))
            raise
        finally:
            self._connection.close_all()

    def _turn(self) -> None:
        fresh = self._take()
        if self._exchange is None and self._window:
            self._begin()
        elif self._endpoint is not None:
            self._send_all(fresh, self._endpoint, 0.0)
        self._wait()

    def _wait(self) -> None:
        """Wait for the first of: a reply, a wake-up, the end of the lingering, of the patience."""
        now_ms = _now_ms()
        until_ms = min(self._batch_due_ms(), self._until_ms if self._exchange else now_ms + 1000)
        if self._endpoint is None:
            select.select([self._wake_read], [], [], max(0.0, until_ms - now_ms) / 1000)
            self._drain_wakes()
        else:
            self._receive(self._endpoint, until_ms - now_ms)
        if self._exchange is not None and _now_ms() >= self._until_ms:
            self._expire(self._exchange)

    def _receive(self, endpoint: int, timeout_ms: float) -> None:
        assert self._exchange is not None, self._endpoint
        try:
            reply = self._connection.receive(endpoint, timeout_ms, self._wake_read)
        except ConnectionResetError:
            self._act(self._exchange.silent(_now_ms()))
            return
        self._drain_wakes()
        if reply is not None:
            self._replied(reply)

    def _expire(self, exchange: Exchange) -> None:
        now_ms = _now_ms()
        pausing = self._endpoint is None
        self._act(exchange.resumed(now_ms) if pausing else exchange.silent(now_ms))

    def _drain_wakes(self) -> None:
        try:
            os.read(self._wake_read, 4096)
        except BlockingIOError:
            return

    # --- from the queue into the window ---------------------------------------------------------

    def _batch_due_ms(self) -> float:
        """Return when the queue has to be looked at again."""
        queue = self._queue
        if not queue.items or not self._may_take():
            return float("inf")
        hurry = queue.is_hurried or queue.size_bytes >= self._batch_bytes
        return max(self._take_after_ms, 0.0 if hurry else queue.since_ms + self._linger_ms)

    def _may_take(self) -> bool:
        """Room in the window, and the leader is where the window went: else let it run empty."""
        at_leader = not self._window or self._endpoint in (None, self._routes.current)
        return at_leader and len(self._window) < self._in_flight_max

    def _take(self) -> list[Batch]:
        """Move what is due from the queue through the outbox into the window."""
        with self._queue.changed:
            taken: list[list[Queued]] = []
            # A full outbox that has no room for all of them may have some for one.
            room = 1 if self._full_since_ms else self._in_flight_max - len(self._window)
            while len(taken) < room and self._batch_due_ms() <= _now_ms():
                taken.append(self._queue.take_batch(self._batch_bytes, _now_ms()))
            self._queue.is_hurried = self._queue.is_hurried and bool(self._queue.items)
            self._queue.changed.notify_all()
        if not taken:
            return []
        try:
            fresh = self._enqueue(taken)
        except OutboxFull as error:
            self._put_back(taken, error)
            return []
        except FlotillaError as error:
            self._fail_all([q.future for batch in taken for q in batch], error)
            raise
        self._full_since_ms = None
        return fresh

    def _enqueue(self, taken: Sequence[list[Queued]]) -> list[Batch]:
        """Move batches into the outbox and the window, all or none."""
        packed = [pack([queued.publication for queued in batch]) for batch in taken]
        fresh = list(map(self._batch, self._operations.state.enqueue(self.topic, packed)))
        for batch, items in zip(fresh, taken, strict=True):
            batch.futures = [queued.future for queued in items]
        self._window.extend(fresh)
        return fresh

    def _put_back(self, taken: Sequence[list[Queued]], error: OutboxFull) -> None:
        """Wait for room in the outbox; it may be other topics that fill it, hence the deadline."""
        now_ms = _now_ms()
        self._full_since_ms = self._full_since_ms or now_ms
        self._take_after_ms = now_ms + OUTBOX_RETRY_MS
        items = [queued for batch in taken for queued in batch]
        with self._queue.changed:
            self._queue.put_back(items)
        if now_ms - self._full_since_ms >= self._deadline_ms:
            self._full_since_ms = None
            self._fail_queue(error)

    def _batch(self, entry: Entry) -> Batch:
        return Batch(entry, f"{self._name}-{next(self._batch_numbers)}")

    # --- the window on the wire -----------------------------------------------------------------

    def _begin(self) -> None:
        """Let the window's first batch steer, from where it stands."""
        head = self._window[0]
        self._exchange = Exchange(
            self._routes,
            head.operation_id,
            _now_ms() + self._deadline_ms,
            attempt_timeout_ms(self._deadline_ms, 0),
            self._rng,
            sent=head.sent,
        )
        if head.is_waiting and self._endpoint is not None:
            self._act(self._exchange.adopted(self._endpoint, _now_ms()))
        else:
            self._act(self._exchange.started(_now_ms()))

    def _act(self, actions: Sequence[Action]) -> None:
        for action in actions:
            match action:
                case Done():
                    self._window[0].done = action
                    self._advance()
                case Failed(error):
                    self._give_up(error)
                case Close(endpoint):
                    self._connection.close(endpoint)
                case Pause(wait_ms):
                    self._endpoint, self._until_ms = None, _now_ms() + wait_ms
                case Listen(endpoint, timeout_ms):
                    self._endpoint, self._until_ms = endpoint, _now_ms() + timeout_ms
                case Send(endpoint, _, timeout_ms):
                    self._endpoint, self._until_ms = endpoint, _now_ms() + timeout_ms
                    self._send_window(endpoint, timeout_ms)

    def _send_window(self, endpoint: int, timeout_ms: float) -> None:
        assert self._exchange is not None, endpoint
        for batch in self._window:
            batch.is_waiting = False
        self._send_all([b for b in self._window if b.done is None], endpoint, timeout_ms)
        if not self._window[0].is_waiting:
            self._until_ms = 0.0
            self._act(self._exchange.unsent(_now_ms(), self._connection.cause))

    def _send_all(self, batches: Sequence[Batch], endpoint: int, timeout_ms: float) -> None:
        """Send until the connection takes no more; the rest goes when it becomes the first."""
        for batch in batches:
            if not self._is_known and batch is not self._window[0]:
                return
            if batch.operation is None:
                entry = batch.entry
                batch.operation = self._operations.invoke(
                    "put", entry.topic, entry.counter, entry.count
                )
            batch.sent += 1
            request = self._operations.put_request(batch.entry)
            request.request_id = f"{batch.operation_id}.{batch.sent}"
            if not self._connection.send(endpoint, encode_request(request), timeout_ms):
                return
            batch.is_waiting = True

    def _replied(self, reply: Reply) -> None:
        assert self._exchange is not None, reply
        operation_id, _, attempt = reply.request_id.rpartition(".")
        if operation_id == self._window[0].operation_id:
            self._act(self._exchange.replied(reply, _now_ms()))
            return
        for batch in self._window:
            if batch.operation_id != operation_id:
                continue
            if reply.ok:
                batch.done = Done(reply, batch.sent)
            elif attempt == str(batch.sent):
                batch.is_waiting = False  # to be sent again when it becomes the first

    def _advance(self) -> None:
        """Take what is answered off the window's front; the next one steers."""
        self._exchange, self._is_known = None, True
        while self._window and self._window[0].done is not None:
            batch = self._window.popleft()
            assert batch.operation is not None, batch.entry.counter
            assert batch.done is not None, batch.entry.counter
            result = self._operations.stored(batch.operation, batch.entry, batch.done)
            for number, future in enumerate(batch.futures):
                id_ = result.id + number if result.id else 0
                future.set_result(PutResult(id_, 1, result.duplicate))
            self._answered(len(batch.futures))
        if self._window:
            self._begin()
        else:
            self._endpoint = None

    # --- errors ---------------------------------------------------------------------------------

    def _give_up(self, error: FlotillaError) -> None:
        """Report the error. After a deadline the window stays and is tried again; else stop."""
        error = with_endpoints(error, self._endpoints)
        head_is_refused = error.definite and error.code in REFUSED_FOREVER
        error_of_rest = type(error)(error.message, error.code, False, error.details)
        for number, batch in enumerate(self._window):
            if batch.done is not None:
                continue
            of_batch = error if number == 0 and head_is_refused else error_of_rest
            if batch.operation is not None:
                self._operations.failed(batch.operation, of_batch)
            self._fail_all(batch.futures, of_batch)
            batch.futures, batch.operation, batch.is_waiting = (), None, False
        if isinstance(error, Unavailable):
            self._keep_queue(error)
        else:
            self._fail_queue(error)
        self._exchange, self._endpoint = None, None
        if error.code in REFUSED_FOREVER:
            self._operations.reopen()
        if not isinstance(error, Unavailable) and error.code not in TELLING:
            raise error

    def _keep_queue(self, error: FlotillaError) -> None:
        """Move what nobody has been asked to store into the outbox, as far as that takes it."""
        due = len(self._queue.items)
        while due > 0:
            with self._queue.changed:
                taken = self._queue.take_batch(self._batch_bytes, _now_ms())
            try:
                [batch] = self._enqueue([taken])
            except OutboxFull as full:
                self._fail_all([queued.future for queued in taken], full)
                self._fail_queue(full)
                return
            due -= len(taken)
            self._fail_all(batch.futures, type(error)(error.message, error.code, False))
            batch.futures = ()

    def _fail_queue(self, error: FlotillaError) -> None:
        with self._queue.changed:
            items = list(self._queue.items)
            self._queue.items.clear()
            self._queue.size_bytes = 0
        self._fail_all([queued.future for queued in items], error.before_start())

    def _fail_all(self, futures: Sequence[Future[PutResult]], error: FlotillaError) -> None:
        for future in futures:
            future.set_exception(error)
        self._answered(len(futures))

    def _answered(self, count: int) -> None:
        with self._queue.changed:
            self._queue.answered += count
            self._queue.changed.notify_all()

    def _break(self, error: FlotillaError) -> None:
        with self._queue.changed:
            self._queue.broken = error
            self._queue.changed.notify_all()
        for batch in self._window:
            self._fail_all(batch.futures, type(error)(error.message, error.code, False))
        self._window.clear()
        self._fail_queue(error)


def _now_ms() -> float:
    return time.monotonic() * 1000
