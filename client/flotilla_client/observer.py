"""Who listens to what a client does: the seam at which histories are recorded.

What lives here: an operation and its outcome as told to an `Observer`. What must not: files,
formats, clocks: the recorder has its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from flotilla_client.properties import Properties


@dataclass(frozen=True, slots=True)
class Operation:
    """An operation as its observer hears of it before it is asked.

    `number`: counts this client's operations. `f`: "put", "get", "sub", "unsub"; of a group "group"
    (SUB), "ungroup" (UNSUB), "take", which have a `group` and in `said` what the request says of
    it. `topic` "": any.
    PUT: first `counter` and `count`. GET: `last_id`, what the subscriber has (None: unknown), and
    `max_count`, how many publications it asks for at most.
    `epoch`: the process's, that its requests carry (0: none, the broker lets everybody pass).
    PUT: `lengths`, `data`: the publications, packed as in a request. SUB: `start`: from where on,
    if not from the end. `beside`: the number of the GET in whose request this one was asked too:
    it was told what is gone, and this one, behind that, brings what follows. It began when that one
    did.
    """

    number: int
    client_id: str
    f: str
    topic: str
    counter: int | None = None
    count: int | None = None
    last_id: int | None = None
    epoch: int = 0
    lengths: bytes = field(default=b"", repr=False)
    data: bytes = field(default=b"", repr=False)
    max_count: int | None = None
    start: str | None = None
    group: str = ""
    said: Mapping[str, Any] = field(default_factory=dict)
    beside: int | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """How an operation ended: ok, or `error` (a code) with `definite`.

    `node` answered, `leader` led in `term` ("" and 0: nobody answered). PUT ok: `first_id`,
    `count`, `duplicate`. GET ok: `topic` (as the reply names it, whichever was asked for),
    `first_id`, `count`, `publications` (count 0: nothing new; with a `first_id`: from there on, but
    the client has it all by now). SUB ok: `last_id`,
    `resumed`, `cursor` (the broker's, which may be behind the client's). GET ok of any topic:
    `cursor`, what the subscriber had of this one when it asked; `is_unsaid`: the request had no
    room to say so, and the broker had less. GET with the error `purged`: `topic`, `first_id`,
    `last_id`: what is gone for this subscriber; `cursor`, `is_unsaid` as with an ok.
    GET ok: `properties` {id: …},
    `timestamps`: runs of (last id, timestamp_ms), None where it was not kept. TAKE ok: `leased`,
    `publications`, `properties`. GROUP ok: `last_id`, `resumed`;
    `compacted`: its topic is, so it may pass what is gone.
    """

    attempts: int
    node: str = ""
    leader: str = ""
    term: int = 0
    error: str = ""
    definite: bool = True
    topic: str = ""
    first_id: int | None = None
    count: int | None = None
    duplicate: bool | None = None
    last_id: int | None = None
    resumed: bool | None = None
    cursor: int | None = None
    is_unsaid: bool = False
    publications: tuple[bytes, ...] = field(default=(), repr=False)
    properties: Mapping[int, Properties] = field(default_factory=dict, repr=False)
    timestamps: tuple[tuple[int, int | None], ...] = field(default=(), repr=False)
    leased: TakeAnswer | None = None
    compacted: bool | None = None


@dataclass(frozen=True, slots=True)
class TakeAnswer:
    """What a TAKE was answered. `runs`: (first id, last id, attempt), leased under `token`.

    `lost`: runs of what it settled in vain. `left_ms`: until the first lease ends, `lease_ms`: how
    long one is.
    """

    token: int
    runs: tuple[tuple[int, int, int], ...]
    lost: tuple[tuple[int, int], ...]
    left_ms: int
    lease_ms: int

    @property
    def ids(self) -> list[int]:
        """The ids that were leased, in the order of what came."""
        return [id_ for first, last, _ in self.runs for id_ in range(first, last + 1)]


@dataclass(frozen=True, slots=True)
class Handling:
    """A step between the library and the application, by `f`:

    "hand": ids `first_id` to `last_id` are handed over next, stored as handed over; up to `cursor`
    is stored as acknowledged. The first `redelivered` of them may have been handed over before.
    "ack": the application is done with all up to `last_id`; the cursor moves next. With a
    `first_id` it will be, come what may: these are handed over at most once, next.
    "release": who had `first_id` to `last_id` in hand has it no more, so it comes again.
    """

    f: str
    client_id: str
    topic: str
    last_id: int
    first_id: int | None = None
    cursor: int | None = None
    redelivered: int = 0


@runtime_checkable
class Observer(Protocol):
    """Records what a client does. Called in the thread that runs the operation.

    What it raises ends the operation: before its request leaves (of one `beside` another: before
    its answer is acted upon), or before the outbox or the cursor changes. It should be a
    FlotillaError (recording.py: RecordError), or it ends producers as well.

    A publication that is sent again out of the outbox is a new operation with the old counter.
    """

    def on_invoke(self, operation: Operation) -> None:
        """Hear of an operation before its first request leaves; of one `beside` another before
        that one's outcome.
        """

    def on_complete(self, operation: Operation, outcome: Outcome) -> None:
        """Hear of its outcome before the outbox or the cursor changes."""


@runtime_checkable
class HandlingObserver(Observer, Protocol):
    """An observer that hears also what the application is handed and what it acknowledges.

    What it raises keeps the cursor from moving, or the publication from being handed over.
    """

    def on_handling(self, handling: Handling) -> None:
        """Hear of a step, in the thread that takes it."""


@runtime_checkable
class RecoveryObserver(Observer, Protocol):
    """An observer that hears also which cluster it is, behind which recovery."""

    def on_taken_up(self, recovery: str) -> None:
        """Hear, as the client's id is taken up, of the cluster's last recovery ("": none).

        What it raises keeps every operation from being begun.
        """


class Silent:
    """The observer that records nothing."""

    def on_invoke(self, operation: Operation) -> None:
        """Do nothing."""

    def on_complete(self, operation: Operation, outcome: Outcome) -> None:
        """Do nothing."""
