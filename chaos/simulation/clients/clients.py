"""A simulated client: the library's own session, carried through the world's events.

What lives here: one life of a client process (`Process`), which does on simulated connections what
a `Client` does on sockets, and the client over its lives (`SimClient`): crashes at any
point, a second process on a copy of its state. What must not: what a client does (scripts.py),
nodes, judgment of what came back.

The retry machine, the operations, the durable state and the recorder are the product's own. Nothing
here is ever called from inside itself: whatever a connection has to say comes as a later event.
"""

from __future__ import annotations

import random
import shutil
from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol, assert_never, get_args

from chaos.simulation.disks.client_disk import ClientDisk
from chaos.simulation.disks.disk import PowerLoss
from chaos.workloads.history import ProcessRecorder, WorkloadObserver
from flotilla_client import FlotillaError, Handling, Operation, Outcome
from flotilla_client.batches import Publishable
from flotilla_client.client import Session
from flotilla_client.connection import CONNECT_MS_MAX, parsed
from flotilla_client.joining import NEVER_MS, Call, Joined, Unheard
from flotilla_client.losses import Losses
from flotilla_client.operations import KNOWN, Ask, PutResult, Steps, Turn, next_ask
from flotilla_client.protocol import Reply, Request, decode_request, encode_request
from flotilla_client.reading import Ack, Delivery, Message, Owner, Reader
from flotilla_client.retry import (
    ON_NAK,
    Action,
    Close,
    Done,
    Exchange,
    Failed,
    Listen,
    Pause,
    Send,
)
from flotilla_client.state import OUTBOX_BYTES_MAX

# What one of several callers publishes: how long after the first, its topic, and the texts, which
# are made when it calls.
Calling = tuple[float, str, Callable[[], Sequence[Publishable]]]


@dataclass(frozen=True, slots=True)
class Publishing:
    """What several callers publish at once."""

    calls: Sequence[Calling]


# A script of what a process does: yields seconds to wait, the steps of an operation, whose result
# it is sent or whose FlotillaError is thrown in, or a Publishing, of which it is sent the calls.
Wish = float | Steps[Any] | Publishing
Script = Generator[Wish, Any, None]

# Is given each message of a loop; returns "" to go on, "break" to leave it in order, or "error".
Take = Callable[[Message], str]

REFUSED_MS: Final = 1.0  # until a refused connection is known; one that is swallowed takes longer
TURNS_MAX: Final = 10_000  # at one moment; who wants more is stuck in a loop
INBOX_MAX: Final = 1_000  # late replies on one connection, as many as a socket's queue would hold
CRASH_POINTS: Final = ("now", "invoke", "complete", "handed", "stored")
NONCE_BITS: Final = 128


class ConnectionOwner(Protocol):
    """Who has connections: a process, or a producer of one. `name`: "<client>/…", all different."""

    name: str

    def replied(self, node: str, frames: Sequence[bytes]) -> None:
        """Take what came in on the connection to a node."""

    def lost(self, node: str) -> None:
        """Take note that the connection to a node was lost: no reply will come on it."""


class Answered(Protocol):
    """One caller's outcome."""

    def results(self) -> list[PutResult]:
        """Return what it was told. Raises its error."""


class PipeHandle(Protocol):
    """A background producer (pipes.py), as far as its process has to know it."""

    def end(self) -> None:
        """Stop; what got no answer stays in the outbox."""


class ClientWire(Protocol):
    """What a client needs of the world. Times: seconds."""

    @property
    def now(self) -> float:
        """The time."""

    def after(self, delay_s: float, action: Callable[[], None]) -> object:
        """Call `action` when that much time has passed."""

    def stream(self, name: str) -> random.Random:
        """Return the randomness of one purpose."""

    def client_send(self, caller: ConnectionOwner, node: str, frames: Sequence[bytes]) -> str:
        """Send on the caller's connection to the node, opened if there is none.

        Returns "sent" (it may get lost), "refused" (nobody listens) or "swallowed" (no connection
        comes about): then nothing was sent.
        """

    def client_connect(self, caller: ConnectionOwner, node: str) -> str:
        """Have a connection of the caller's to the node; see `client_send`, nothing is sent."""

    def client_close(self, caller: ConnectionOwner, node: str) -> None:
        """Close the caller's connection to the node: what is in flight on it is gone."""

    def disk(self, directory: Path) -> ClientDisk:
        """Return the disk under a state directory that nobody has used yet."""


class Watcher(Protocol):
    """Hears what the clients do, when they do it. Must change nothing."""

    def invoked(self, process: Process, operation: Operation) -> None:
        """Hear of an operation before its request leaves."""

    def completed(self, process: Process, operation: Operation, outcome: Outcome) -> None:
        """Hear of its outcome before the client's state changes."""

    def asked(self, request_id: str) -> None:
        """Hear that an attempt of a request leaves."""

    def failed(self, name: str, error: FlotillaError) -> None:
        """Hear that an exchange of that name has come to an error."""

    def gave_up(self, process: Process, error: FlotillaError, left_ms: float) -> None:
        """Hear that an exchange ends with an error that others ask again for, and when.

        `left_ms`: of the time that it was given.
        """

    def denied(self, request: Request, reply: Reply) -> None:
        """Hear that a node refuses the first attempt of a request, the only one so far."""

    def took(self, process: Process, seconds: float) -> None:
        """Hear how long an operation took, from its call to its end."""

    def opened(self, process: Process) -> None:
        """Hear of a new process, as its state is read and before it does anything."""

    def life(self, client: str, what: str) -> None:
        """Hear that a client's process has `started`, `crashed`, `ended` or was `copied`.

        Or of its machine: its disk will have `failed`, its power was `cut` (or a sync's bytes).
        """

    def refused(self, client: str, error: FlotillaError) -> None:
        """Hear of an error that a client's application got."""


class ProcessDeath(BaseException):
    """The process dies here. No Exception: nothing may handle it."""


class CrashingObserver:
    """Records a process's operations, tells the watcher, and dies behind the record if ordered."""

    def __init__(self, recorder: ProcessRecorder, watcher: Watcher) -> None:
        self.crash_at = ""
        self.process: Process
        self.watcher = watcher
        self._recording = WorkloadObserver(recorder)

    def on_invoke(self, operation: Operation) -> None:
        """Record and tell; the outbox has the publication, nothing has left yet."""
        self.process.check()
        self._recording.on_invoke(operation)
        self.watcher.invoked(self.process, operation)
        self.pass_point("invoke")

    def on_complete(self, operation: Operation, outcome: Outcome) -> None:
        """Record and tell; neither the outbox nor the cursor has changed yet."""
        self.process.check()
        self._recording.on_complete(operation, outcome)
        self.watcher.completed(self.process, operation, outcome)
        if operation.f == "put" and not outcome.error:
            self.pass_point("stored")
        self.pass_point("complete")

    def on_handling(self, handling: Handling) -> None:
        """Record; the cursor has not moved yet, or who reads does not have it yet."""
        self.process.check()
        if handling.f == "hand":
            self.pass_point("handed")  # stored as handed over, and nobody knows
        self._recording.on_handling(handling)
        self.pass_point("complete")

    def pass_point(self, point: str) -> None:
        """Die if that was ordered for this point."""
        if self.crash_at == point:
            raise ProcessDeath


UNHEARD: Final[tuple[Unheard, ...]] = get_args(Unheard)

# Where a process is, and who hears of it: the arguments of `Process` behind its session.
Place = tuple[
    ClientWire,
    str,
    Sequence[str],
    ClientDisk,
    ProcessRecorder,
    CrashingObserver,
    "Callable[[Process, bool], None]",
]


class Process:
    """One life of a client, from its start to its end or crash.

    `name`, "<client>/<life>", names its connections, in the order of `nodes`. Its script runs one
    operation at a time, as `flotilla_client.Client` does for its threads, and joins what several
    callers publish; beside it `pipes` publish.
    `on_end(process, crashed)` is called when it is over.
    """

    def __init__(
        self,
        session: Session,
        wire: ClientWire,
        name: str,
        nodes: Sequence[str],
        disk: ClientDisk,
        recorder: ProcessRecorder,
        observer: CrashingObserver,
        on_end: Callable[[Process, bool], None],
    ) -> None:
        self.name, self.disk = name, disk
        observer.process = self
        self.session, self.recorder, self.observer = session, recorder, observer
        self.is_alive = True
        self.pipes: list[PipeHandle] = []
        self.asked_s: float | None = None  # when the operation under way began
        # Hears what a caller was about to publish who was cancelled.
        self.is_old = False  # it knows of no properties, and so does not ask for them
        self.on_cancelled: Callable[[Sequence[str]], None] = lambda called: None
        self._wire, self.nodes = wire, tuple(nodes)
        self._on_end = on_end
        self._script: Script
        self._steps: Steps[Any]
        self._ask: Ask
        self._exchange: Exchange
        self._on_result: Callable[[Any], None]
        self._on_error: Callable[[FlotillaError], None]
        self._joined: Joined
        self._calls: list[Call] = []  # under way
        self._due = 0  # calls that will be made
        self._calls_made = 0  # calls that were made
        self._is_opening = False
        self.cause = "no connection"
        self._requests: dict[str, Request] = {}  # under way, by their ids
        self._end_ms = 0.0
        self._listening: int | None = None
        self._waits = 0
        self._inbox: dict[int, deque[Reply]] = {}
        self._lost: set[int] = set()

    @property
    def place(self) -> str:
        """The name of its state's directory and of its history's file."""
        return self.recorder.path.stem

    def start(self, script: Script) -> None:
        """Begin the script."""
        self._script = script
        self._joined = self.session.joined(self, self._explain, self._now_ms)
        self.carry(lambda: self._continue(lambda: next(script)))

    def end(self, crashed: bool) -> None:
        """Stop for good; nothing happens here any more."""
        assert self.is_alive, f"{self.name} ends twice"
        self.is_alive = False
        for pipe in list(self.pipes):
            pipe.end()
        for endpoint in range(len(self.nodes)):
            self.close(endpoint)
        if not crashed:
            try:
                self.session.state.close()
            except PowerLoss:  # as it closes
                crashed = True
        if crashed:
            self.disk.kill(self.session.state)
        self.recorder.close()
        self._on_end(self, crashed)

    def check(self) -> None:
        """Raise ClientCrash if the process has ended at an operation of its disk."""
        if self.disk.has_ended:
            raise ProcessDeath

    # --- what a script does ---------------------------------------------------------------------

    @property
    def owner(self) -> Owner:
        """Who reads."""
        return Owner(self, self.name, lambda: not self.is_alive)

    @property
    def has_loops(self) -> bool:
        """Whether it can read in a loop over messages."""
        return False

    def loop(
        self, topic: str | None, idle_ms: int, ack: Ack, take: Take
    ) -> Generator[Any, Any, Message | None]:
        """Read in a loop until `take` says how it is left, or no more comes.

        Returns the message with which it was left in order.
        """
        raise NotImplementedError(self)

    def put(self, topic: str, texts: Sequence[Publishable]) -> Generator[Any, Any, list[PutResult]]:
        """Publish."""
        [call] = yield from self.put_together([(0.0, topic, lambda: texts)])
        return call.results()

    def put_together(self, calls: Sequence[Calling]) -> Generator[Any, Any, Sequence[Answered]]:
        """Publish as several callers that do not wait for each other; see `Publishing`."""
        answered: Sequence[Answered] = yield Publishing(calls)
        return answered

    def flush(self) -> Generator[Any, Any, None]:
        """Send what is in the outbox."""
        try:
            yield self.session.operations.open()
            for topic in self.session.state.topics_waiting():
                [call] = yield Publishing([(0.0, topic, tuple)])
                call.results()
        except FlotillaError as error:
            raise self.session.not_flushed(error) from error

    def adopt(self) -> Generator[Any, Any, Losses]:
        """Begin as a new client, the cluster having forgotten the one that this was."""
        lost: Losses = yield self.session.adopt()
        return lost

    def get(
        self, topic: str | None, wait_ms: int, max_count: int, ack: Ack
    ) -> Generator[Any, Any, Delivery | None]:
        """Read once."""
        operations = self.session.operations
        me = Reader(self.owner, topic, ack)
        with operations.readers.reading(me):
            # As a loop over messages does, which takes more of one answer than who asks by hand.
            fetched = yield operations.get(topic, wait_ms, max_count, in_loop=True)
            return operations.readers.hand_over(me, fetched)

    # --- what the world says --------------------------------------------------------------------

    def replied(self, node: str, frames: Sequence[bytes]) -> None:
        """Take what came in on the connection to a node."""
        endpoint, reply = self.nodes.index(node), parsed([b"", *frames])
        if reply is None or not self.is_alive:
            return
        if self._calls:
            self._note_denial(reply)
            self.carry(lambda: self._joined.replied(reply))
            self._go_on()
            if not self._is_opening:
                return
        if endpoint != self._listening:
            inbox = self._inbox.setdefault(endpoint, deque(maxlen=INBOX_MAX))
            inbox.append(reply)
            return
        self._listening = None
        self.carry(lambda: self._take(reply))

    def lost(self, node: str) -> None:
        """Take note that the connection to a node was lost: no reply will come on it."""
        endpoint = self.nodes.index(node)
        if not self.is_alive:
            return
        if self._calls:
            self._joined.lost(endpoint)
            self._go_on()
        if endpoint != self._listening:
            self._lost.add(endpoint)
            return
        self._listening = None
        self.carry(lambda: self._act(self._exchange.silent(self._now_ms())))

    # --- the script and its operations ----------------------------------------------------------

    def carry(self, action: Callable[[], None]) -> None:
        """Do something of the process's, in which it may die."""
        try:
            action()
            if self.is_alive:
                self.check()  # the library takes it for an error of the disk
        except (ProcessDeath, PowerLoss):
            self.end(crashed=True)

    def note_end(self) -> None:
        """Tell who watches how long an operation took, if one has ended."""
        if self.asked_s is not None:
            self.observer.watcher.took(self, self._wire.now - self.asked_s)
            self.asked_s = None

    def _continue(self, step: Callable[[], Wish]) -> None:
        self.note_end()
        try:
            wish = step()
        except StopIteration:
            self.end(crashed=False)
            return
        if isinstance(wish, Publishing):
            self._publish(wish)
        elif isinstance(wish, Generator):
            script = self._script
            self.asked_s = self._wire.now
            self._run(
                wish,
                self._now_ms() + self.session.deadline_ms,
                lambda result: self._continue(lambda: script.send(result)),
                lambda error: self._continue(lambda: script.throw(error)),
            )
        else:
            self._wait(wish * 1000, lambda: self._continue(lambda: self._script.send(None)))

    def _run(
        self,
        steps: Steps[Any],
        end_ms: float,
        on_result: Callable[[Any], None],
        on_error: Callable[[FlotillaError], None],
    ) -> None:
        self._steps, self._end_ms = steps, end_ms
        self._on_result, self._on_error = on_result, on_error
        self._operate(lambda: next(steps))

    def _operate(self, step: Callable[[], Ask | Turn]) -> None:
        try:
            self._ask = next_ask(self._steps, step)
        except StopIteration as stop:
            self._on_result(stop.value)
        except FlotillaError as error:
            self._on_error(error)
        else:
            self._exchange = self.session.exchange(self._ask, self._end_ms)
            self._act(self._exchange.started(self._now_ms()))

    # --- what callers publish together ----------------------------------------------------------

    def _publish(self, publishing: Publishing) -> None:
        self.asked_s = self._wire.now
        self._due = len(publishing.calls)
        for delay_s, topic, texts in publishing.calls:
            # Who publishes alone tries until it is stored: an error in its turn would have no end.
            unheard = self.next_unheard() if len(publishing.calls) > 1 else "warn"
            if delay_s:
                self._wire.after(delay_s, partial(self._make, topic, texts, unheard))
            else:
                self._call(topic, texts(), unheard)
        self._go_on()

    def _make(
        self, topic: str, texts: Callable[[], Sequence[Publishable]], unheard: Unheard
    ) -> None:
        if self.is_alive:
            self._call(topic, texts(), unheard)
            self._go_on()

    def _call(self, topic: str, texts: Sequence[Publishable], unheard: Unheard) -> None:
        end_ms = self._now_ms() + self.session.deadline_ms
        try:
            if texts:
                call = self.session.put(topic, texts, end_ms, lambda: None, unheard)
            else:  # as `Session.flush` has it: of what a topic has in the outbox, or its lane
                self.session.check_open()
                call = Call(topic, (), end_ms, lambda: None)
        except FlotillaError as error:  # before anything was stored
            call = Call(topic, (), end_ms, lambda: None)
            call.end(error)
        else:
            self._joined.add(call)
        self._calls.append(call)

    def next_unheard(self) -> Unheard:
        """Return what the next call wants of what nobody subscribes to: each in its turn."""
        self._calls_made += 1
        return UNHEARD[self._calls_made % len(UNHEARD)]

    @property
    def is_soon(self) -> bool:
        """Whether the last call is published for a future, where there is a choice."""
        return bool(self._calls_made // len(UNHEARD) % 2)

    def _explain(self, error: FlotillaError, then: Callable[[FlotillaError], None]) -> None:
        for line in self._joined._lines.values():
            head = line.head
            if head is not None and head.exchange is not None and head.until_ms == NEVER_MS:
                self._note_end_of(head.exchange, error)
        then(error)

    def _note_end_of(self, exchange: Exchange, error: FlotillaError) -> None:
        """Tell who watches of an exchange that ends though it might go on."""
        if error.code in ON_NAK and error.code not in exchange._final:
            left_ms = exchange._deadline_ms - self._now_ms()
            self.observer.watcher.gave_up(self, error, left_ms)

    def _go_on(self) -> None:
        if self.is_alive and not self._is_opening:
            self.carry(self._look)

    def _look(self) -> None:
        """Do all that can be done now for those who publish, then wait for the next event."""
        joined = self._joined
        for _ in range(TURNS_MAX):
            if self._is_all_answered():
                self._publishing_is_over()
                return
            due_ms = joined.turn()
            if due_ms is None:
                self._is_opening = True
                operations = self.session.operations
                end_ms = joined.opening_end_ms()
                self._run(operations.open(), end_ms, self._opened, self._not_opened)
                return
            if due_ms > self._now_ms() and not self._is_all_answered():
                break
        else:
            raise AssertionError(f"{self.name} takes {TURNS_MAX} turns at one moment")
        if joined.is_work:
            self._wait(due_ms - self._now_ms(), self._look)

    def _is_all_answered(self) -> bool:
        return len(self._calls) == self._due and all(call.is_over for call in self._calls)

    def _publishing_is_over(self) -> None:
        calls, self._calls = self._calls, []
        self._joined.forget_the_left()
        self._continue(lambda: self._script.send(calls))

    def _opened(self, _: object) -> None:
        self._is_opening = False
        self._look()

    def _not_opened(self, error: FlotillaError) -> None:
        self._is_opening = False
        self._joined.not_opened(error)
        self._look()

    def send(self, endpoint: int, frames: Sequence[bytes], timeout_ms: float) -> bool | None:
        """See `joining.Wire`: a connection that is refused is known to be soon, else it is late."""
        if endpoint in self._lost:
            self.close(endpoint)
        self.check()
        outcome = self._wire.client_send(self, self.nodes[endpoint], frames)
        if outcome == "sent":
            request = decode_request(frames)
            self._requests[request.request_id] = request
            self.observer.watcher.asked(request.request_id)
            return True
        if outcome == "refused":
            self._wire.after(REFUSED_MS / 1000, partial(self._unconnected, endpoint))
        return None

    def _unconnected(self, endpoint: int) -> None:
        if self.is_alive and self._calls:
            self._joined.unconnected(endpoint, "connection refused")
            self._go_on()

    def _note_denial(self, reply: Reply) -> None:
        request = self._requests.pop(reply.request_id, None)
        if request is not None and not reply.ok and is_first(reply):
            self.observer.watcher.denied(request, reply)

    # --- the retry machine's actions ------------------------------------------------------------

    def _act(self, actions: Sequence[Action]) -> None:
        steps, exchange = self._steps, self._exchange
        for action in actions:
            match action:
                case Done():
                    self._operate(lambda done=action: steps.send(done))  # type: ignore[misc]
                case Failed(error):
                    self.observer.watcher.failed(exchange.name, error)
                    self._note_end_of(exchange, error)
                    self._operate(lambda error=error: steps.throw(error))  # type: ignore[misc]
                case Close(endpoint):
                    self.close(endpoint)
                case Pause(wait_ms):
                    self._wait(wait_ms, lambda: self._act(exchange.resumed(self._now_ms())))
                case Send():
                    self._send(action)
                case Listen(endpoint, timeout_ms):
                    self._listen(endpoint, timeout_ms)
                case _:
                    assert_never(action)

    def _send(self, action: Send) -> None:
        exchange, endpoint = self._exchange, action.endpoint
        if endpoint in self._lost:
            self.close(endpoint)
        self._ask.request.request_id = action.request_id
        if self.is_old:
            for name in KNOWN:
                self._ask.request.body.pop(name, None)
        frames = encode_request(self._ask.request)
        self.check()
        outcome = self._wire.client_send(self, self.nodes[endpoint], frames)
        if outcome == "sent":
            self.observer.watcher.asked(action.request_id)
            self._listen(endpoint, action.timeout_ms)
            return
        patience_ms = REFUSED_MS if outcome == "refused" else CONNECT_MS_MAX
        self._wait(
            min(action.timeout_ms, patience_ms),
            lambda: self._act(exchange.unsent(self._now_ms())),
        )

    def _listen(self, endpoint: int, timeout_ms: float) -> None:
        exchange = self._exchange
        if inbox := self._inbox.get(endpoint):
            self._take(inbox.popleft())
        elif endpoint in self._lost:
            self._act(exchange.silent(self._now_ms()))
        else:
            self._listening = endpoint
            self._wait(timeout_ms, lambda: self._act(exchange.silent(self._now_ms())))

    def _take(self, reply: Reply) -> None:
        request = self._ask.request
        if not reply.ok and reply.request_id == request.request_id and is_first(reply):
            self.observer.watcher.denied(request, reply)
        self._act(self._exchange.replied(reply, self._now_ms()))

    def close(self, endpoint: int) -> None:
        """Close the connection to a node: late replies on it are gone."""
        self._lost.discard(endpoint)
        self._inbox.pop(endpoint, None)
        self._wire.client_close(self, self.nodes[endpoint])

    def _wait(self, wait_ms: float, then: Callable[[], None]) -> None:
        """Do `then` after the wait, unless something else happens first."""
        self._waits += 1
        number = self._waits

        def over() -> None:
            if self.is_alive and number == self._waits:
                self._listening = None
                self.carry(then)

        self._wire.after(wait_ms / 1000, over)

    def _now_ms(self) -> float:
        return self._wire.now * 1000


def is_first(reply: Reply) -> bool:
    """Return whether a reply answers a request's first attempt."""
    return reply.request_id.rpartition(".")[2] == "1"


NewProcess = Callable[[Mapping[str, Any], Callable[[], str], Place], Process]


def new_process(options: Mapping[str, Any], new_nonce: Callable[[], str], place: Place) -> Process:
    """Return a process of a client with these options of the library's."""
    return Process(Session(**options, new_nonce=new_nonce), *place)


class SimClient:
    """A client over all its lives.

    `directory` is the run's: states lie in `clients/`, histories in `history/`.
    `make_script(client, process)` says what a process does, `new_process` by which client of the
    library. `processes`: those that live; the last
    one is the client, any before it were taken over and have to learn that they are fenced.
    """

    def __init__(
        self,
        wire: ClientWire,
        watcher: Watcher,
        name: str,
        nodes: Sequence[str],
        directory: Path,
        run_id: str,
        deadline_ms: int,
        make_script: Callable[[SimClient, Process], Script],
        new_process: NewProcess = new_process,
        outbox_bytes_max: int = OUTBOX_BYTES_MAX,
    ) -> None:
        self.name, self._outbox_bytes_max = name, outbox_bytes_max
        self._new_process = new_process
        self.processes: list[Process] = []
        self.phase: str | None = None
        self.has_ended = False
        self.rng = wire.stream(f"client {name}")
        self._wire, self._watcher = wire, watcher
        self._directory, self._run_id = directory, run_id
        self._deadline_ms = deadline_ms
        self._make_script = make_script
        self._nodes = self.rng.sample(list(nodes), len(nodes))
        self._disks: dict[str, ClientDisk] = {}  # by their places
        self._keeps: dict[str, str] = {}  # what a power loss leaves where the process ends
        self._place = name  # names the state's directory and the history's file
        self._lives = 0
        self._copies = 0

    @property
    def process(self) -> Process | None:
        """The process that is the client, None while it is down."""
        newest = self.processes[-1:]
        return next((p for p in newest if p.place == self._place), None)

    def start(self) -> None:
        """Start a process from what the state directory holds, unless one lives or all is done."""
        if self.process is not None or self.has_ended:
            return
        self._lives += 1
        recorder = self._recorder()
        observer = CrashingObserver(recorder, self._watcher)
        process = self._process(observer, recorder)
        if process is None:
            recorder.close()
            self._watcher.life(self.name, "crashed")
            self._lose_power_if_due(self._place)
            return
        self.processes.append(process)
        self._watcher.life(self.name, "started")
        self._watcher.opened(process)
        process.start(self._make_script(self, process))

    def crash(self, at: str = "now") -> None:
        """Kill the process: now, or right behind its next invoke, completion or hand-over."""
        assert at in CRASH_POINTS, at
        process = self.process
        if process is None:
            return
        if at == "now":
            process.end(crashed=True)
        else:
            process.observer.crash_at = at

    def lose_power(self, keep: str, at: str = "now", count: int = 1) -> str:
        """End the machine: now, or before the `count`-th operation of a kind on its disk.

        Return the place whose state may so be lost, "" if no process runs.
        """
        process = self.process
        if process is None:
            return ""
        self._keeps[process.place] = keep
        if at == "now":
            process.end(crashed=True)
        else:
            self._watcher.life(self.name, "failed")
            process.disk.crash_in(at, count)
        return process.place

    def fail_sync(self, kind: str, count: int, ends: bool) -> str:
        """Have the `count`-th sync of its disk from now fail; see `ClientDisk`.

        Return the place whose state may so be lost.
        """
        self._watcher.life(self.name, "failed")
        self._disk(self._place).fail_sync(kind, count, ends)
        return self._place

    def recover(self) -> None:
        """Forget what was ordered and has not come; start if no process lives."""
        for process in self.processes:
            process.observer.crash_at = ""
        for disk in self._disks.values():
            disk.calm()
        self._keeps.clear()
        self.start()

    def take_over(self) -> None:
        """Start a second process on a copy of the state; it is the client from here on."""
        if self.process is None:
            return
        self._copies += 1
        before, self._place = self._place, f"{self.name}-copy-{self._copies}"
        shutil.copytree(self._state_dir(before), self._state_dir(self._place))
        self._disk(self._place).image.settle()
        self._watcher.life(self.name, "copied")
        self.start()

    def set_phase(self, phase: str) -> None:
        """Let the rows of this client carry the phase."""
        self.phase = phase
        for process in self.processes:
            process.recorder.phase = phase

    def _over(self, process: Process, crashed: bool) -> None:
        is_client = process is self.process
        self.processes.remove(process)
        self.has_ended = self.has_ended or (is_client and not crashed)
        self._watcher.life(self.name, "crashed" if crashed else "ended")
        if self._disks[process.place].take_cut():
            self._watcher.life(self.name, "cut")
        self._lose_power_if_due(process.place)

    def _lose_power_if_due(self, place: str) -> None:
        keep = self._keeps.pop(place, "")
        if keep:
            self._disks[place].lose_power(keep, self._wire.stream(f"power {self.name}"))
            self._watcher.life(self.name, "cut")

    def _disk(self, place: str) -> ClientDisk:
        disk = self._disks.get(place)
        if disk is None:
            disk = self._disks[place] = self._wire.disk(self._state_dir(place))
        return disk

    def _state_dir(self, place: str) -> Path:
        return self._directory / "clients" / place

    def _process(self, observer: CrashingObserver, recorder: ProcessRecorder) -> Process | None:
        """Return a new process; None: it ends at once, as its disk fails."""
        name, disk = f"{self.name}/{self._lives}", self._disk(self._place)
        rng = random.Random(self.rng.getrandbits(64))
        options = {
            "endpoints": [f"{node}:1" for node in self._nodes],
            "state_dir": self._state_dir(self._place),
            "deadline_ms": self._deadline_ms,
            "outbox_bytes_max": self._outbox_bytes_max,
            "observer": observer,
            "rng": rng,
        }
        try:
            with suppress(PowerLoss):  # which ends the process, as the crash that it is
                return self._new_process(
                    options,
                    lambda: f"{self.rng.getrandbits(NONCE_BITS):032x}",
                    (self._wire, name, self._nodes, disk, recorder, observer, self._over),
                )
        except FlotillaError as error:
            self._watcher.refused(self.name, error)
        disk.kill(None)
        return None

    def _recorder(self) -> ProcessRecorder:
        recorder = self.recorder_of(self._place)
        recorder.phase = self.phase
        return recorder

    def recorder_of(self, process: str) -> ProcessRecorder:
        """Return what writes the rows of a process of this run."""
        history, now_ns = self._directory / "history", self._now_ns
        return ProcessRecorder(history, process, self._run_id, monotonic_ns=now_ns, wall_ns=now_ns)

    def _now_ns(self) -> int:
        return round(self._wire.now * 1e9)
