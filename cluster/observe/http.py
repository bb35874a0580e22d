"""A small HTTP server: connections with bounds and deadlines, over h11 and asyncio.

What lives here: reading requests, writing responses, what a connection may take. What must not:
what is answered (pages.py), threads (server.py).

Read-only by nature: GET, HEAD and a browser's OPTIONS, without bodies.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Final
from urllib.parse import parse_qs, urlsplit

import h11

CONNECTIONS_MAX: Final = 64  # some scrapers, probes and people; over it the idlest gives way
LISTENERS_MAX: Final = 16  # open pages; each gets some KiB a second
REQUEST_BYTES_MAX: Final = 8 * 1024  # line and headers; a browser's are 2 KiB
REQUEST_S_MAX: Final = 10.0  # from a request's first byte, or the connection's, to its end
IDLE_S_MAX: Final = 90.0  # between two requests: Prometheus asks every 15 to 60 s
WRITE_S_MAX: Final = 30.0  # for a response to leave: 1 MiB at 35 KB/s
REQUESTS_MAX: Final = 10_000  # on one connection
READ_BYTES: Final = 16 * 1024
ACCEPT_PAUSE_S: Final = 0.1  # behind an accept that failed: no descriptor is free, or it has gone
PARAMETERS_MAX: Final = 16
HANDSHAKE_S_MAX: Final = 5.0  # of TLS
# Of a processor, for answers: the node's loop shares the interpreter with them. A scrape takes
# 3 ms, so that 60 a second have their answers at once, and who asks more often waits.
BUSY_SHARE: Final = 0.2
# The same for those who come, whoever they are and whatever they say: who stays has come once. A
# connection takes 1 ms, so that a hundred a second are taken. More wait in the system's queue.
ACCEPT_SHARE: Final = 0.1
ACCEPT_REST_S_MAX: Final = 0.05  # answers and samples made meanwhile count, but hold nobody up

_SAFE: Final = (
    ("x-content-type-options", "nosniff"),
    ("referrer-policy", "no-referrer"),
)


@dataclass(frozen=True)
class HttpRequest:
    """What was asked: `path` without the query, `query` the last value of each parameter."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]


@dataclass(frozen=True)
class Response:
    """What is answered. `events`: server-sent events that follow, for as long as they come."""

    status: int
    content_type: str
    body: bytes
    headers: tuple[tuple[str, str], ...] = ()
    events: AsyncIterator[bytes] | None = None


Answer = Callable[[HttpRequest], Response | Awaitable[Response]]


def text(status: int, line: str, *headers: tuple[str, str]) -> Response:
    """Return a response of one line."""
    return Response(status, "text/plain; charset=utf-8", f"{line}\n".encode(), headers)


@dataclass(eq=False)
class _HttpConnection:
    taken: socket.socket
    task: asyncio.Task[None] | None = None
    writer: asyncio.StreamWriter | None = None  # None: in the handshake of TLS
    is_listener: bool = False
    is_answering: bool = False

    def end(self) -> None:
        """Close it at once, whatever has not left yet."""
        if self.writer is None:
            self.taken.close()
        else:
            self.writer.transport.abort()


@dataclass
class Http:
    """The connections of one server; `answer` makes responses and raises nothing.

    `failed(error)` hears of what should not happen: the connection is closed, the server goes on.
    """

    answer: Answer
    failed: Callable[[Exception], None]
    _connections: dict[_HttpConnection, None] = field(default_factory=dict)  # the idlest first
    _listeners: int = 0
    _one_by_one: asyncio.Lock = field(default_factory=asyncio.Lock)  # in the order of asking
    _rests_until: float = 0.0

    async def accept(self, listener: socket.socket, tls: ssl.SSLContext | None) -> None:
        """Serve a listening socket for ever; with `tls` nobody speaks plainly.

        A connection counts from here on, its handshake included, and until it has been closed.
        """
        loop = asyncio.get_running_loop()
        listener.setblocking(False)
        spent_s = time.thread_time()
        while True:
            try:
                taken, _ = await loop.sock_accept(listener)
            except OSError:
                await asyncio.sleep(ACCEPT_PAUSE_S)
                continue
            if len(self._connections) < CONNECTIONS_MAX or self._make_room():
                self._begin(_HttpConnection(taken), tls)
            else:
                taken.close()
            now_s = time.thread_time()
            rest_s = (now_s - spent_s) * (1 / ACCEPT_SHARE - 1)
            spent_s = now_s
            await asyncio.sleep(min(rest_s, ACCEPT_REST_S_MAX))  # the ended ones close meanwhile

    def _begin(self, mine: _HttpConnection, tls: ssl.SSLContext | None) -> None:
        self._connections[mine] = None
        mine.task = asyncio.create_task(self._serve(mine, tls))
        mine.task.add_done_callback(partial(self._ended, mine))

    async def _serve(self, mine: _HttpConnection, tls: ssl.SSLContext | None) -> None:
        """Serve one connection to its end."""
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(READ_BYTES)
        protocol = asyncio.StreamReaderProtocol(reader)
        handshake_s = None if tls is None else HANDSHAKE_S_MAX
        try:
            transport, _ = await loop.connect_accepted_socket(
                lambda: protocol, mine.taken, ssl=tls, ssl_handshake_timeout=handshake_s
            )
            mine.writer = asyncio.StreamWriter(transport, protocol, reader, loop)
            await self._talk(mine, mine.writer, reader)
            mine.writer.close()
            async with asyncio.timeout(WRITE_S_MAX):
                await mine.writer.wait_closed()
        except (OSError, TimeoutError, h11.RemoteProtocolError, asyncio.IncompleteReadError):
            mine.end()  # gone, too slow, or no HTTP: it has no use for an answer

    def _ended(self, mine: _HttpConnection, task: asyncio.Task[None]) -> None:
        """Forget a connection that is over: served, failed, or ended before it was begun with."""
        self._connections.pop(mine, None)
        self._listeners -= mine.is_listener
        mine.end()
        if not task.cancelled() and isinstance(error := task.exception(), Exception):
            self.failed(error)  # a defect here must not end the node

    def _make_room(self) -> bool:
        """End the connection that has been idle for longest; False if all are open pages.

        If none is idle, the one that was answered longest ago: nobody keeps the others out by
        asking without reading, or without a pause.
        """
        begun = [each for each in self._connections if each.task and not each.is_listener]
        gives_way = next((each for each in begun if not each.is_answering), None)
        gives_way = gives_way or next(iter(begun), None)
        if gives_way is None:
            return False
        assert gives_way.task is not None
        del self._connections[gives_way]  # now: who comes before its task ends finds another
        gives_way.task.cancel()
        return True

    async def _talk(
        self, mine: _HttpConnection, writer: asyncio.StreamWriter, reader: asyncio.StreamReader
    ) -> None:
        wire = h11.Connection(h11.SERVER, max_incomplete_event_size=REQUEST_BYTES_MAX)
        first = True
        for _ in range(REQUESTS_MAX):
            try:
                asked = await self._next(wire, reader, first)
            except h11.RemoteProtocolError as error:
                if wire.our_state in (h11.IDLE, h11.SEND_RESPONSE):
                    refused = text(error.error_status_hint, str(error))
                    await self._send(mine, writer, wire, "GET", refused, close=True)
                return
            if asked is None:
                return
            first = False
            mine.is_answering = True
            response = asked if isinstance(asked, Response) else await self._answer(asked)
            if response.events is not None and self._listeners >= LISTENERS_MAX:
                response = text(503, f"{LISTENERS_MAX} pages listen already", ("retry-after", "5"))
            method = "GET" if isinstance(asked, Response) else asked.method
            await self._send(
                mine, writer, wire, method, response, close=isinstance(asked, Response)
            )
            mine.is_answering = False
            if wire.our_state is not h11.DONE or wire.their_state is not h11.DONE:
                return
            wire.start_next_cycle()
            del self._connections[mine]  # it has been idle for less long than the others
            self._connections[mine] = None

    async def _answer(self, request: HttpRequest) -> Response:
        """Return the answer, once the time that the earlier ones took allows for it."""
        async with self._one_by_one:
            await asyncio.sleep(max(0.0, self._rests_until - time.monotonic()))
            began_s = time.thread_time()
            try:
                answer = self.answer(request)
            finally:
                spent_s = time.thread_time() - began_s
                self._rests_until = time.monotonic() + spent_s * (1 / BUSY_SHARE - 1)
        return answer if isinstance(answer, Response) else await answer  # of the node's loop

    async def _next(
        self, wire: h11.Connection, reader: asyncio.StreamReader, first: bool
    ) -> HttpRequest | Response | None:
        """Return the next request, what it is refused with, or None at the connection's end."""
        head: h11.Request | None = None
        deadline_s = REQUEST_S_MAX if first else IDLE_S_MAX
        async with asyncio.timeout(deadline_s) as patience:
            while True:
                event = wire.next_event()
                if event is h11.NEED_DATA:
                    data = await reader.read(READ_BYTES)
                    if data and not first and head is None and not wire.trailing_data[0]:
                        patience.reschedule(asyncio.get_running_loop().time() + REQUEST_S_MAX)
                        first = True
                    wire.receive_data(data)
                elif isinstance(event, h11.Request):
                    head = event
                elif isinstance(event, h11.Data):
                    return text(413, "no request here has a body")
                elif isinstance(event, h11.EndOfMessage):
                    assert head is not None
                    return _request(head)
                else:  # ConnectionClosed, PAUSED
                    return None

    async def _send(
        self,
        mine: _HttpConnection,
        writer: asyncio.StreamWriter,
        wire: h11.Connection,
        method: str,
        response: Response,
        close: bool,
    ) -> None:
        headers = [
            ("content-type", response.content_type),
            ("cache-control", "no-store"),
            *_SAFE,
            *response.headers,
        ]
        if response.events is None:
            headers.append(("content-length", str(len(response.body))))
        if close or response.events is not None:
            headers.append(("connection", "close"))
        writer.write(wire.send(h11.Response(status_code=response.status, headers=headers)) or b"")
        if response.body and method != "HEAD":
            writer.write(wire.send(h11.Data(data=response.body)) or b"")
        await self._drain(writer)
        if response.events is not None and method != "HEAD":
            self._listeners += 1
            mine.is_listener = True
            async for each in response.events:
                writer.write(wire.send(h11.Data(data=each)) or b"")
                await self._drain(writer)
        writer.write(wire.send(h11.EndOfMessage()) or b"")
        await self._drain(writer)

    @staticmethod
    async def _drain(writer: asyncio.StreamWriter) -> None:
        async with asyncio.timeout(WRITE_S_MAX):
            await writer.drain()


def _request(head: h11.Request) -> HttpRequest | Response:
    size = len(head.target) + sum(len(name) + len(value) for name, value in head.headers)
    if size > REQUEST_BYTES_MAX:  # h11 bounds only what has not come to its end
        return text(431, f"a request has {REQUEST_BYTES_MAX} bytes at most")
    method = head.method.decode("ascii")
    if method not in ("GET", "HEAD", "OPTIONS"):
        return text(405, "only GET and HEAD", ("allow", "GET, HEAD, OPTIONS"))
    try:
        url = urlsplit(head.target.decode("ascii"))
        values = parse_qs(url.query, max_num_fields=PARAMETERS_MAX, keep_blank_values=True)
    except ValueError as error:
        return text(400, f"the address is none: {error}")
    headers = {name.decode("ascii"): value.decode("latin-1") for name, value in head.headers}
    return HttpRequest(method, url.path, {name: each[-1] for name, each in values.items()}, headers)
