"""A simulated `AsyncClient`: the library's own, on an event loop whose time and sockets are ours.

What lives here: an asyncio loop whose callbacks are events of the world, as much of zmq.asyncio as
the library uses, on the clients' simulated connections, and a process whose script awaits an
`AsyncClient`, some of whose operations are cancelled. What must not: what a client does
(scripts.py), what becomes of a message (sockets.py), anything that the library decides.
"""

from __future__ import annotations

import asyncio
import inspect
import warnings
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from types import SimpleNamespace
from typing import Any, Final, cast
from unittest.mock import patch
from weakref import WeakSet

import zmq

from chaos.simulation.clients.clients import (
    INBOX_MAX,
    REFUSED_MS,
    Answered,
    Calling,
    ClientWire,
    Place,
    Process,
    ProcessDeath,
    Script,
    Take,
)
from chaos.simulation.disks.disk import PowerLoss
from flotilla_client import (
    AsyncClient,
    Delivery,
    FlotillaError,
    Unavailable,
    UnheardWarning,
    aio,
)
from flotilla_client import client as client_module
from flotilla_client.batches import Publishable
from flotilla_client.connection import RECONNECT_MS, parsed
from flotilla_client.losses import Losses
from flotilla_client.operations import PutResult
from flotilla_client.protocol import Request, decode_request
from flotilla_client.reading import Ack, Message, Owner

CANCELLED_SHARE: Final = 0.15  # of the operations
PATIENCE_S: Final = (0.0005, 0.5)  # until one of these is cancelled: in any of its steps

Callback = Callable[..., object]


class SimLoop:
    """An event loop of which every callback is an event of the world: as much as the library uses.

    `carry` runs a callback as something that the process does. Behind `end` none runs any more.
    """

    def __init__(self, wire: ClientWire, carry: Callable[[Callable[[], None]], None]) -> None:
        self._wire, self._carry = wire, carry
        self._has_ended = False
        self._tasks = WeakSet[asyncio.Task[Any]]()
        self.crash: BaseException | None = None
        self.loop = cast(asyncio.AbstractEventLoop, self)

    def time(self) -> float:
        """Return the time in seconds."""
        return self._wire.now

    def get_debug(self) -> bool:
        """Return that nothing is to be said of slow callbacks."""
        return False

    def is_running(self) -> bool:
        """Return whether callbacks still run."""
        return not self._has_ended

    def is_closed(self) -> bool:
        """Return whether nothing may be called any more: it is not called, rather."""
        return False

    def call_soon(self, callback: Callback, *args: Any, context: Any = None) -> asyncio.Handle:
        """Have it called as an event of its own, at this moment."""
        handle = asyncio.Handle(callback, args, self.loop, context)
        self._wire.after(0.0, partial(self._run, handle))
        return handle

    def call_later(
        self, delay: float, callback: Callback, *args: Any, context: Any = None
    ) -> asyncio.TimerHandle:
        """Have it called after a time."""
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callback, *args: Any, context: Any = None
    ) -> asyncio.TimerHandle:
        """Have it called at a time."""
        handle = asyncio.TimerHandle(when, callback, args, self.loop, context)
        self._wire.after(max(0.0, when - self.time()), partial(self._run, handle))
        return handle

    def create_future(self) -> asyncio.Future[Any]:
        """Return a future of this loop."""
        return asyncio.Future(loop=self.loop)

    def create_task(
        self, coro: Any, *, name: str | None = None, context: Any = None
    ) -> asyncio.Task[Any]:
        """Begin a task."""
        task = asyncio.Task(coro, loop=self.loop, name=name, context=context)
        self._tasks.add(task)
        return task

    def run_in_executor(
        self, executor: Any, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        """Return the result of a call that would be another thread's."""
        future = self.create_future()
        future.set_result(func(*args))
        return future

    def add_reader(self, source: _Source, callback: Callback, *args: Any) -> None:
        """Have it called whenever something happens to a socket."""
        source.on_news = partial(self.call_soon, callback, *args)

    def remove_reader(self, source: _Source) -> None:
        """Have nothing called any more."""
        source.on_news = None

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Let a defect end the run; a task that is left when its process has ended is none.

        Nor is the end of the process itself, in a callback of the library's.
        """
        error = context.get("exception")
        if isinstance(error, ProcessDeath | PowerLoss):
            self.crash = error
        elif not self._has_ended:
            raise AssertionError(context["message"]) from error

    def end(self) -> None:
        """Run no callback any more.

        What was to begin just now never does: it is closed, or Python would call it forgotten.
        """
        self._has_ended = True
        for task in self._tasks:
            coroutine = cast(Coroutine[Any, Any, Any], task.get_coro())
            if inspect.getcoroutinestate(coroutine) == inspect.CORO_CREATED:
                coroutine.close()

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Do nothing: it is not called when its time has come."""

    def _run(self, handle: asyncio.Handle) -> None:
        if not (self._has_ended or handle.cancelled()):
            self._carry(partial(self._call, handle))

    def _call(self, handle: asyncio.Handle) -> None:
        asyncio._set_running_loop(self.loop)
        try:
            handle._run()
        finally:
            asyncio._set_running_loop(None)
        if self.crash is not None:
            raise self.crash


class _Source:
    """A socket whose events a loop hears of."""

    def __init__(self) -> None:
        self.on_news: Callable[[], object] | None = None

    def getsockopt(self, option: int) -> Any:
        """Return what may be done with it now, or what a loop knows it by."""
        return self if option == zmq.FD else self.events()

    def events(self) -> int:
        """Return what may be done with it now."""
        raise NotImplementedError

    def tell(self) -> None:
        """Have the loop look at it."""
        if self.on_news is not None:
            self.on_news()


class _Monitor(_Source):
    """The socket on which a message means that a connection was lost, or refused."""

    def __init__(self) -> None:
        super().__init__()
        self.has_news = False

    def events(self) -> int:
        """Return whether there is a message."""
        return zmq.POLLIN if self.has_news else 0

    def close(self, linger: int) -> None:
        """Do nothing: the socket is closed beside it."""


class _Socket(_Source):
    """A DEALER socket of the library, to one node; a `clients.Caller`."""

    def __init__(self, wire: ClientWire, process: AwaitingProcess, number: int) -> None:
        super().__init__()
        self.name = f"{process.name}#{number}"
        self._wire, self._process = wire, process
        self._node = ""
        self._monitor = _Monitor()
        self._inbox: deque[list[bytes]] = deque(maxlen=INBOX_MAX)
        self._is_connected = self._is_closed = False
        self._frames: list[bytes] = []  # of a request that has begun

    # --- what the library calls -------------------------------------------------------------------

    def setsockopt(self, option: int, value: int) -> None:
        """Do nothing: what the options say is how connections are here."""

    def get_monitor_socket(self, events: int) -> _Monitor:
        """Return the monitor."""
        return self._monitor

    def disable_monitor(self) -> None:
        """Do nothing."""

    def connect(self, address: str) -> None:
        """Begin to connect to a node."""
        self._node = address.partition(":")[0]
        self._try()

    def close(self, linger: int = 0) -> None:
        """Close the connection; what is on it is gone."""
        self._is_closed = True
        self._wire.client_close(self, self._node)

    def send(self, frame: bytes, flags: int) -> None:
        """Let a request leave with its last frame, of which those who watch hear.

        Raises Again without a connection.
        """
        self._process.check()
        if not self._is_connected:
            raise zmq.Again
        self._frames.append(frame)
        if flags & zmq.SNDMORE:
            return
        [_, *frames], self._frames = self._frames, []
        if self._wire.client_send(self, self._node, frames) != "sent":
            self._is_connected = False
            raise zmq.Again
        self._process.asked(decode_request(frames))

    def recv_multipart(self, flags: int) -> list[bytes]:
        """Return what has come, of which those who watch hear. Raises Again if nothing has."""
        if not self._inbox:
            raise zmq.Again
        frames = self._inbox.popleft()
        self._process.answered(frames)
        return [b"", *frames]

    def events(self) -> int:
        """Return whether something has come, and whether something may leave."""
        readable = zmq.POLLIN if self._inbox else 0
        return readable | (zmq.POLLOUT if self._is_connected else 0)

    # --- what the world says ----------------------------------------------------------------------

    def replied(self, node: str, frames: Sequence[bytes]) -> None:
        """See `clients.Caller`."""
        self._inbox.append(list(frames))
        self.tell()

    def lost(self, node: str) -> None:
        """See `clients.Caller`."""
        self._is_connected = False
        self._report()

    def _try(self) -> None:
        """Connect, or try again later as ZeroMQ does; a refusal is news for the monitor."""
        if self._is_closed or self._process.loop_has_ended:
            return
        outcome = self._wire.client_connect(self, self._node)
        if outcome == "sent":
            self._is_connected = True
            self.tell()
            return
        if outcome == "refused":
            self._wire.after(REFUSED_MS / 1000, self._report)
        self._wire.after(RECONNECT_MS / 1000, self._try)

    def _report(self) -> None:
        self._monitor.has_news = True
        self._monitor.tell()


class _SocketContext:
    """The sockets of one process."""

    def __init__(self, wire: ClientWire, process: AwaitingProcess) -> None:
        self._wire, self._process = wire, process
        self.sockets: list[_Socket] = []

    def socket(self, kind: int) -> _Socket:
        """Return a new socket."""
        assert kind == zmq.DEALER, kind
        made = _Socket(self._wire, self._process, len(self.sockets) + 1)
        self.sockets.append(made)
        return made


class _KnownAddress:
    """An address that needs no look-up."""

    failure = ""

    def __init__(self, endpoint: str) -> None:
        self._endpoint = endpoint

    def __str__(self) -> str:
        return self._endpoint

    def is_over(self) -> bool:
        """Return that it is known."""
        return True


_ZMQ: Final = SimpleNamespace(
    POLLIN=zmq.POLLIN,
    POLLOUT=zmq.POLLOUT,
    EVENTS=zmq.EVENTS,
    FD=zmq.FD,
    Context=SimpleNamespace(instance=lambda: None),
)


@contextmanager
def awaited(now: Callable[[], float]) -> Iterator[None]:
    """Let `AsyncClient` have the world's time and sockets; a process gives it its context."""
    with (
        patch.object(aio, "zmq", _ZMQ),
        patch.object(aio, "Address", _KnownAddress),
        patch.object(aio, "now_ms", lambda: now() * 1000),
        patch.object(aio, "explained", lambda error, endpoints, has_key: error),
        patch.object(client_module, "now_ms", lambda: now() * 1000),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore", UnheardWarning)
        yield


class _Ended:
    """A task that has ended; see `clients.Answered`."""

    def __init__(self, task: asyncio.Task[list[PutResult]]) -> None:
        self._task = task

    def results(self) -> list[PutResult]:
        """Return what it was told. Raises its error."""
        return self._task.result()


class _BodyFailed(Exception):
    """What the body of a loop raises."""


class AwaitingProcess(Process):
    """A process whose script awaits an `AsyncClient`, one operation after the other.

    Some are cancelled, by a time that is over: its application hears
    Unavailable then.
    """

    def __init__(self, client: AsyncClient, *place: *Place) -> None:
        super().__init__(client._session, *place)
        wire, name, *_ = place
        self._client = client
        self._context = _SocketContext(wire, self)
        client._parts.here().context = self._context
        self._loop = SimLoop(wire, self.carry)
        self._rng = wire.stream(f"cancels {name}")
        self._task: asyncio.Task[None]
        self._is_over = self._is_crashing = False

    @property
    def owner(self) -> Owner:
        """Who reads: the task."""
        return Owner(self._task, self.name, self._task.done)

    @property
    def loop_has_ended(self) -> bool:
        """Whether nothing is called any more."""
        return not self._loop.is_running()

    def start(self, script: Script) -> None:
        """Begin the script."""
        self._task = self._loop.create_task(self._live(script), name=self.name)

    def end(self, crashed: bool) -> None:
        """Stop for good; tasks are left where they are."""
        self._loop.end()
        for socket in self._context.sockets:
            socket.close()
        super().end(crashed)

    def carry(self, action: Callable[[], None]) -> None:
        """Do something of the process's, in which it may die, or come to its end."""
        super().carry(action)
        if self.is_alive and (self._is_over or self._is_crashing):
            self.end(self._is_crashing)

    # --- what a script does -----------------------------------------------------------------------

    def put(self, topic: str, texts: Sequence[Publishable]) -> Generator[Any, Any, list[PutResult]]:
        """Publish."""
        putting = self._client.publish_many(topic, texts, allow_unheard=True)
        results: list[PutResult] = yield self._at_times_cancelled(putting)
        return results

    def put_together(self, calls: Sequence[Calling]) -> Generator[Any, Any, Sequence[Answered]]:
        """Publish in a task each."""
        answered: Sequence[Answered] = yield self._called_together(calls)
        return answered

    async def _called_together(self, calls: Sequence[Calling]) -> Sequence[Answered]:
        tasks, waited_s = [], 0.0
        for delay_s, topic, texts in calls:
            if delay_s > waited_s:
                await asyncio.sleep(delay_s - waited_s)
                waited_s = delay_s
            tasks.append(asyncio.ensure_future(self._at_times_called(topic, texts)))
        await asyncio.wait(tasks)
        return [_Ended(task) for task in tasks]

    async def _at_times_called(
        self, topic: str, texts: Callable[[], Sequence[Publishable]]
    ) -> list[PutResult]:
        results: list[PutResult] = await self._at_times_cancelled(self._called(topic, texts))
        return results

    async def _called(
        self, topic: str, texts: Callable[[], Sequence[Publishable]]
    ) -> list[PutResult]:
        called = texts()
        try:
            return await self._published(topic, called)
        except asyncio.CancelledError:
            self.on_cancelled([text for text in called if isinstance(text, str)])
            raise

    async def _published(self, topic: str, called: Sequence[Publishable]) -> list[PutResult]:
        """Publish in one of the ways there are, each in its turn."""
        unheard = self.next_unheard()
        allow = unheard != "raise"
        if unheard == "warn" or len(called) != 1 or not self.is_soon:
            return await self._client.publish_many(topic, called, allow_unheard=allow)
        [publication] = called
        soon = await self._client.publish_soon(topic, publication, allow_unheard=allow)
        return [await soon]

    def flush(self) -> Generator[Any, Any, None]:
        """Send what is in the outbox."""
        yield self._client.flush()

    def adopt(self) -> Generator[Any, Any, Losses]:
        """See `Process`; nobody cancels it: what it returns would be lost."""
        lost: Losses = yield self._client.adopt()
        return lost

    def get(
        self, topic: str | None, wait_ms: int, max_count: int, ack: Ack
    ) -> Generator[Any, Any, Delivery | None]:
        """Read; what a GET that is cancelled has brought was taken by nobody."""
        getting = self._client.get(topic, max_count=max_count, ack=ack, idle=wait_ms / 1000)
        delivery: Delivery | None = yield self._at_times_cancelled(getting)
        return delivery

    @property
    def has_loops(self) -> bool:
        """Whether it can read in a loop over messages."""
        return True

    def loop(
        self, topic: str | None, idle_ms: int, ack: Ack, take: Take
    ) -> Generator[Any, Any, Message | None]:
        """See `Process`; a loop may be cancelled, too."""
        left: Message | None = yield self._at_times_cancelled(
            self._looped(topic, idle_ms, ack, take)
        )
        return left

    async def _looped(
        self, topic: str | None, idle_ms: int, ack: Ack, take: Take
    ) -> Message | None:
        self.asked_s = None  # a loop is many operations
        with suppress(_BodyFailed):
            async with self._client.messages(topic, ack, idle=idle_ms / 1000) as messages:
                async for message in messages:
                    how = take(message)
                    if how == "break":
                        return message
                    if how == "error":
                        raise _BodyFailed
        return None

    async def _at_times_cancelled(self, operation: Coroutine[Any, Any, Any]) -> Any:
        if self._rng.random() >= CANCELLED_SHARE:
            return await operation
        low, high = PATIENCE_S
        patience_s = low * (high / low) ** self._rng.random()
        task = asyncio.ensure_future(operation)
        await asyncio.wait([task], timeout=patience_s)
        if not task.done():
            task.cancel()
            await asyncio.wait([task])
            if task.cancelled():
                raise Unavailable("the application cancelled it", definite=False)
        return task.result()

    async def _live(self, script: Script) -> None:
        try:
            await self._drive(script)
        except (ProcessDeath, PowerLoss):  # a task would keep it
            self._is_crashing = True

    async def _drive(self, script: Script) -> None:
        step: Callable[[], Any] = partial(next, script)
        while True:
            self.note_end()
            try:
                wish = step()
            except StopIteration:
                break
            try:
                result = await self._granted(wish)
            except FlotillaError as error:
                step = partial(script.throw, error)
            else:
                step = partial(script.send, result)
        await self._client.close()
        self._is_over = True

    async def _granted(self, wish: Any) -> Any:
        if isinstance(wish, float | int):
            await asyncio.sleep(max(0.0, wish))
            return None
        self.asked_s = self._wire.now
        if isinstance(wish, Generator):
            return await self._at_times_cancelled(self._client._run(wish))
        assert isinstance(wish, Awaitable), wish
        return await wish

    # --- for those who watch ----------------------------------------------------------------------

    def asked(self, request: Request) -> None:
        """Hear that an attempt leaves."""
        self._requests[request.request_id] = request
        self.observer.watcher.asked(request.request_id)

    def answered(self, frames: Sequence[bytes]) -> None:
        """Hear of a reply."""
        reply = parsed([b"", *frames])
        if reply is not None:
            self._note_denial(reply)


def new_awaiting(options: Mapping[str, Any], new_nonce: Callable[[], str], place: Place) -> Process:
    """Return a process of an `AsyncClient` with these options; see `clients.new_process`."""
    others = {name: value for name, value in options.items() if name != "deadline_ms"}
    client = AsyncClient(**others, timeout=options["deadline_ms"] / 1000)
    client._operations._new_nonce = new_nonce
    return AwaitingProcess(client, *place)
