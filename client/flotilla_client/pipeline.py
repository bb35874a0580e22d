"""`Pipeline`: a topic's batches on their way, many in flight; a producer without its thread.

What lives here: a state machine over a queue, the outbox and a wire: which batches are cut, sent,
sent again, given up. Time comes in by `now_ms`. What must not: sockets, threads, waiting
(producer.py), retry decisions (retry.py steers the window's first batch, and the others go where it
goes), storage (state.py) or the PUT's rules (operations.py).

A batch enters the outbox before it is sent and leaves it when acknowledged, as in `Client.publish`.
The broker takes counters without holes only, so whenever the first unanswered batch has to be sent
again, all behind it are sent again after it: order is kept, and what arrived twice is answered as
a duplicate.
"""

from __future__ import annotations

import itertools
import random
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, Protocol, assert_never

from flotilla_client.connection import with_endpoints
from flotilla_client.errors import CounterGap, FlotillaError, OutboxFull, Recovered, Unavailable
from flotilla_client.operations import REFUSED_FOREVER, Operations
from flotilla_client.protocol import Reply, encode_request, pack
from flotilla_client.retry import (
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
from flotilla_client.state import Entry
from flotilla_client.window import Batch, Parcel, Queue, settle

OUTBOX_RETRY_MS: Final = 50  # between looks at a full outbox: an acknowledgment frees it, soon
IDLE_MS: Final = 1000  # between looks where nothing is under way


class RequestWire(Protocol):
    """How requests leave. `cause`: why the last `send` returned False."""

    cause: str

    def send(self, endpoint: int, frames: Sequence[bytes], timeout_ms: float) -> bool:
        """Send a request; return False if no connection stood in time: then nothing was sent."""

    def close(self, endpoint: int) -> None:
        """Close the endpoint's connection: late replies on it are gone."""


class Pipeline:
    """The batches of one topic between the application's queue and their acknowledgments.

    Use: `turn()`, then wait until `due_ms()` for a reply from `endpoint` (None: pausing, there is
    none to wait for) and hand it to `replied`, or a lost connection to `lost`; then `expire()`; and
    so on. Each raises what stops a producer for good; then `stop` with it.
    """

    def __init__(
        self,
        operations: Operations,
        topic: str,
        endpoints: Sequence[str],
        routes: Routes,
        wire: RequestWire,
        queue: Queue,
        deadline_ms: float,
        rng: random.Random,
        now_ms: Callable[[], float],
        linger_ms: float,
        in_flight_max: int,
    ) -> None:
        self.topic, self.queue = topic, queue
        self.endpoint: int | None = None  # None while pausing
        self._operations = operations
        self._endpoints, self._routes, self._wire = tuple(endpoints), routes, wire
        self._deadline_ms, self._rng, self._now_ms = deadline_ms, rng, now_ms
        self._linger_ms, self._in_flight_max = linger_ms, in_flight_max
        self._name = f"{rng.getrandbits(64):016x}"
        self._batch_numbers = itertools.count(1)
        self._window = deque(map(self._batch, operations.state.outbox(topic)))
        self._exchange: Exchange | None = None
        # A broker takes any counter as a topic's first: until it has acknowledged one, none may
        # overtake the first, which would then pass for a duplicate of what was never stored.
        self._is_known = False
        self._until_ms = self._rest_until_ms = 0.0
        self._full_since_ms: float | None = None  # the outbox
        self._take_after_ms = 0.0

    # --- what happens ---------------------------------------------------------------------------

    def turn(self) -> None:
        """Send what is due and may be sent."""
        fresh = self._take()
        if self._exchange is None and self._window:
            if self._now_ms() >= self._rest_until_ms:
                self._begin()
        elif self.endpoint is not None:
            self._send_all(fresh, self.endpoint, 0.0)

    def due_ms(self) -> float:
        """Return when to look again at the latest."""
        until_ms = self._until_ms if self._exchange else self._now_ms() + IDLE_MS
        return min(self._batch_due_ms(), until_ms)

    def lost(self) -> None:
        """The connection to `endpoint` was lost: no reply will come."""
        assert self._exchange is not None, self.endpoint
        self._act(self._exchange.silent(self._now_ms()))

    def expire(self) -> None:
        """End the patience, or the pause, if it is time."""
        exchange, now_ms = self._exchange, self._now_ms()
        if exchange is None or now_ms < self._until_ms:
            return
        pausing = self.endpoint is None
        self._act(exchange.resumed(now_ms) if pausing else exchange.silent(now_ms))

    # --- from the queue into the window ---------------------------------------------------------

    def _batch_due_ms(self) -> float:
        """Return when the queue has to be looked at again."""
        queue = self.queue
        if not queue.parcels or not self._may_take():
            return float("inf")
        hurry = queue.is_hurried or queue.size_bytes >= queue.batch_bytes
        return max(self._take_after_ms, 0.0 if hurry else queue.since_ms + self._linger_ms)

    def _may_take(self) -> bool:
        """Room in the window, and the leader is where the window went: else let it run empty."""
        at_leader = not self._window or self.endpoint in (None, self._routes.current)
        return at_leader and len(self._window) < self._in_flight_max

    def _take(self) -> list[Batch]:
        """Move what is due from the queue through the outbox into the window."""
        with self.queue.lock:
            taken: list[Parcel] = []
            # A full outbox that has no room for all of them may have some for one.
            room = 1 if self._full_since_ms else self._in_flight_max - len(self._window)
            while len(taken) < room and self._batch_due_ms() <= self._now_ms():
                taken.append(self.queue.take(self._now_ms()))
            self.queue.is_hurried = self.queue.is_hurried and bool(self.queue.parcels)
            self.queue.changed.notify_all()
        if not taken:
            return []
        try:
            fresh = self._enqueue(taken)
        except OutboxFull as error:
            self._put_back(taken, error)
            return []
        except FlotillaError as error:
            self._fail(taken, error)
            raise
        self._full_since_ms = None
        return fresh

    def _enqueue(self, taken: Sequence[Parcel]) -> list[Batch]:
        """Move batches into the outbox and the window, all or none."""
        packed = [pack(parcel.publications) for parcel in taken]
        fresh = list(map(self._batch, self._operations.state.enqueue(self.topic, packed)))
        for batch, parcel in zip(fresh, taken, strict=True):
            batch.parcel, parcel.publications = parcel, []
        self._window.extend(fresh)
        return fresh

    def _put_back(self, taken: Sequence[Parcel], error: OutboxFull) -> None:
        """Wait for room in the outbox; it may be other topics that fill it, hence the deadline."""
        now_ms = self._now_ms()
        self._full_since_ms = self._full_since_ms or now_ms
        self._take_after_ms = now_ms + OUTBOX_RETRY_MS
        with self.queue.lock:
            self.queue.put_back(taken)
            self.queue.is_hurried = True  # what was due stays due
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
            self._now_ms() + self._deadline_ms,
            attempt_timeout_ms(self._deadline_ms, 0),
            self._rng,
            sent=head.sent,
        )
        if head.is_waiting and self.endpoint is not None:
            self._act(self._exchange.adopted(self.endpoint, self._now_ms()))
        else:
            self._act(self._exchange.started(self._now_ms()))

    def _act(self, actions: Sequence[Action]) -> None:
        for action in actions:
            match action:
                case Done():
                    self._window[0].done = action
                    self._advance()
                case Failed(error):
                    self._give_up(error)
                case Close(endpoint):
                    self._wire.close(endpoint)
                case Pause(wait_ms):
                    self.endpoint, self._until_ms = None, self._now_ms() + wait_ms
                case Listen(endpoint, timeout_ms):
                    self.endpoint, self._until_ms = endpoint, self._now_ms() + timeout_ms
                case Send(endpoint, _, timeout_ms):
                    self.endpoint, self._until_ms = endpoint, self._now_ms() + timeout_ms
                    self._send_window(endpoint, timeout_ms)
                case _:
                    assert_never(action)

    def _send_window(self, endpoint: int, timeout_ms: float) -> None:
        assert self._exchange is not None, endpoint
        for batch in self._window:
            batch.is_waiting = False
        # What was kept at deadlines may be hundreds: the rest goes when its turn comes.
        due = [batch for batch in self._window if batch.done is None]
        self._send_all(due[: self._in_flight_max], endpoint, timeout_ms)
        if not self._window[0].is_waiting:
            self._until_ms = 0.0
            self._act(self._exchange.unsent(self._now_ms(), self._wire.cause))

    def _send_all(self, batches: Sequence[Batch], endpoint: int, timeout_ms: float) -> None:
        """Send until the connection takes no more; the rest goes when it becomes the first."""
        for batch in batches:
            if not self._is_known and batch is not self._window[0]:
                return
            if batch.operation is None:
                entry = batch.entry
                batch.operation = self._operations.invoke_put(entry)
            batch.sent += 1
            batch.has_led = batch is self._window[0]
            request = self._operations.put_request(batch.entry)
            request.request_id = f"{batch.operation_id}.{batch.sent}"
            if not self._wire.send(endpoint, encode_request(request), timeout_ms):
                return
            batch.is_waiting = True

    def replied(self, reply: Reply) -> None:
        """Take a reply that came from `endpoint`."""
        assert self._exchange is not None, reply
        operation_id, _, attempt = reply.request_id.rpartition(".")
        head = self._window[0]
        if operation_id == head.operation_id:
            if _is_gap(reply) and attempt == str(head.sent) and not head.has_led:
                # Said of what was before it then; that was stored since, and answered sooner.
                head.is_waiting, self._exchange = False, None
                return
            self._act(self._exchange.replied(reply, self._now_ms()))
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
            self._settle(self._window[0])
            self._window.popleft()
        if self._window:
            self._begin()
        else:
            self.endpoint = None

    def _settle(self, batch: Batch) -> None:
        """Record a batch's ACK, forget its entry and set its result."""
        assert batch.operation is not None, batch.entry.counter
        assert batch.done is not None, batch.entry.counter
        result = self._operations.stored(batch.operation, batch.entry, batch.done)
        parcel, batch.parcel = batch.parcel, None
        if parcel is not None:
            try:
                settle([parcel], result)
            finally:
                self._answered(parcel.count)

    def _settle_answered(self) -> None:
        """Settle what was answered behind one that was not: it waits for that no longer."""
        for batch in [batch for batch in self._window if batch.done is not None]:
            self._settle(batch)
            self._window.remove(batch)

    # --- errors ---------------------------------------------------------------------------------

    def _give_up(self, error: FlotillaError) -> None:
        """Report the error. After a deadline the window stays and is tried again; else stop."""
        self._settle_answered()
        error = with_endpoints(error, self._endpoints)
        head_is_refused = error.definite and error.code in REFUSED_FOREVER
        error_of_rest = type(error)(error.message, error.code, False, error.details)
        for number, batch in enumerate(self._window):
            of_batch = error if number == 0 and head_is_refused else error_of_rest
            if batch.operation is not None:
                self._operations.failed(batch.operation, of_batch)
            self._fail_batch(batch, of_batch)
            batch.operation, batch.is_waiting = None, False
        if isinstance(error, Unavailable):
            self._keep_queue(error)
        else:
            self._fail_queue(error)
        self._exchange, self.endpoint = None, None
        if error.code in TELLING:  # a quota that does not free itself is told at once, each time
            self._rest_until_ms = self._now_ms() + IDLE_MS
        if error.code in REFUSED_FOREVER or isinstance(error, CounterGap | Recovered):
            self._operations.reopen()  # the next operation finds out what was lost
        if not isinstance(error, Unavailable) and error.code not in TELLING:
            raise error

    def _keep_queue(self, error: FlotillaError) -> None:
        """Move what nobody has been asked to store into the outbox, as far as that takes it."""
        for _ in range(len(self.queue.parcels)):
            with self.queue.lock:
                taken = self.queue.take(self._now_ms())
            try:
                [batch] = self._enqueue([taken])
            except FlotillaError as failure:
                self._fail([taken], failure)
                if not isinstance(failure, OutboxFull):
                    raise
                self._fail_queue(failure)
                return
            self._fail_batch(batch, type(error)(error.message, error.code, False))

    def _fail_queue(self, error: FlotillaError) -> None:
        with self.queue.lock:
            parcels = self.queue.take_all()
        self._fail(parcels, error.before_start())

    def _fail_batch(self, batch: Batch, error: FlotillaError) -> None:
        parcel, batch.parcel = batch.parcel, None
        if parcel is not None:
            self._fail([parcel], error)

    def _fail(self, parcels: Sequence[Parcel], error: FlotillaError) -> None:
        count = sum(parcel.count for parcel in parcels)
        with self.queue.lock:
            if error.definite:
                self.queue.lost += count
            else:
                self.queue.kept += count
        try:
            settle(parcels, error)
        finally:
            self._answered(count)

    def _answered(self, count: int) -> None:
        with self.queue.lock:
            self.queue.answered += count
            self.queue.changed.notify_all()

    def abandon(self) -> None:
        """End without the answers that are due: what has none goes to the outbox or stays there."""
        message = f"the producer of {self.topic} was closed before an answer came"
        self._give_up(Unavailable(message, definite=False))
        self._window.clear()

    def stop(self, error: FlotillaError) -> None:
        """Fail everything: what is in the window stays in the outbox."""
        with self.queue.lock:
            self.queue.broken = error
            self.queue.changed.notify_all()
        parcels = [batch.parcel for batch in self._window if batch.parcel is not None]
        self._window.clear()
        try:
            self._fail(parcels, type(error)(error.message, error.code, False))
        finally:  # a callback may end this thread
            self._fail_queue(error)


def _is_gap(reply: Reply) -> bool:
    return not reply.ok and reply.body.get("error") == CounterGap.CODE
