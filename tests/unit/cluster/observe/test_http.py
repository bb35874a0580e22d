"""The HTTP connections: what they may take, and that none of them takes it from the others."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import socket
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from cluster.observe import http
from cluster.observe.http import Http, HttpRequest, Response, text

GET = b"GET /%s HTTP/1.1\r\nHost: localhost\r\n\r\n"
WAIT_S = 20.0


def answer(request: HttpRequest) -> Response | Awaitable[Response]:
    if request.path == "/fails":
        raise ZeroDivisionError
    if request.path == "/later":
        return later("here it is")
    if request.path == "/events":
        return Response(200, "text/event-stream", b"", (), ticks())
    return text(200, f"{request.method} {request.path} {dict(request.query)}")


async def later(line: str) -> Response:
    await asyncio.sleep(0.01)
    return text(200, line)


async def ticks() -> AsyncIterator[bytes]:
    while True:
        yield b"data: 1\n\n"
        await asyncio.sleep(0.01)


failures: list[Exception] = []


class Peer:
    """One connection to the server."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def ask(self, data: bytes) -> bytes:
        self.writer.write(data)
        return await self.response()

    async def response(self) -> bytes:
        """Return a response's head and body."""
        head = await self.reader.readuntil(b"\r\n\r\n")
        lines = head.lower().split(b"\r\n")
        length = [int(line.split(b":")[1]) for line in lines if line.startswith(b"content-length")]
        return head + (await self.reader.readexactly(length[0]) if length else b"")

    async def ended(self) -> bool:
        try:
            return await self.reader.read() == b""
        except ConnectionResetError:
            return True


def served(
    talk: Callable[[Callable[[], Awaitable[Peer]]], Awaitable[None]],
    tls: ssl.SSLContext | None = None,
) -> None:
    """Run `talk(connect)` against a server, with `tls` against one that speaks it."""

    async def both() -> None:
        failures.clear()
        listener = socket.create_server(("127.0.0.1", 0))
        address = listener.getsockname()
        made: list[Peer] = []

        async def connect() -> Peer:
            made.append(Peer(*await asyncio.open_connection(*address)))
            return made[-1]

        serving = asyncio.create_task(Http(answer, failures.append).accept(listener, tls))
        async with asyncio.timeout(WAIT_S):
            try:
                await talk(connect)
            finally:
                for peer in made:
                    peer.writer.close()
                    with contextlib.suppress(OSError):
                        await peer.writer.wait_closed()
                serving.cancel()
                listener.close()

    asyncio.run(both())


Connect = Callable[[], Awaitable[Peer]]


def test_a_connection_serves_one_request_after_the_other() -> None:
    async def talk(connect: Connect) -> None:
        peer = await connect()
        for name in (b"a", b"b?x=1&y="):
            response = await peer.ask(GET % name)
            assert response.startswith(b"HTTP/1.1 200")
            assert b"nosniff" in response
        assert b"GET /b {'x': '1', 'y': ''}" in response
        both = await peer.ask((GET % b"c") + (GET % b"d"))
        assert b"/c" in both
        assert b"/d" in await peer.response()

    served(talk)


def test_what_has_to_be_read_first_is_awaited_and_others_are_served_meanwhile() -> None:
    async def talk(connect: Connect) -> None:
        one, other = await connect(), await connect()
        slow = asyncio.create_task(one.ask(GET % b"later"))
        assert b"/a" in await other.ask(GET % b"a")
        assert (await slow).endswith(b"here it is\n")

    served(talk)


def test_head_has_no_body() -> None:
    async def talk(connect: Connect) -> None:
        peer = await connect()
        peer.writer.write(b"HEAD /a HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        assert (await peer.reader.read()).endswith(b"\r\n\r\n")

    served(talk)


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc", b"413"),
        (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n", b"405"),
        (b"DELETE / HTTP/1.1\r\nHost: a\r\n\r\n", b"405"),
        (b"GET / HTTP/1.1\r\n\r\n", b"400"),  # no Host
        (b"hello\r\n\r\n", b"400"),
        (b"GET /?" + b"&".join(b"a" for _ in range(100)) + b" HTTP/1.1\r\nHost: a\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"x" * 20_000, b"431"),
        (b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"x" * 8_192 + b"\r\n\r\n", b"431"),  # in one read
        (b"GET / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip\r\n\r\n", b"501"),
    ],
)
def test_what_is_no_request_for_us_is_refused_and_the_connection_closed(
    request_: bytes, status: bytes
) -> None:
    async def talk(connect: Connect) -> None:
        peer = await connect()
        response = await peer.ask(request_)
        assert response.split()[1] == status, response
        assert await peer.ended()

    served(talk)


def test_who_sends_a_request_byte_by_byte_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "REQUEST_S_MAX", 0.3)

    async def talk(connect: Connect) -> None:
        peer, silent = await connect(), await connect()

        async def drip() -> None:
            for byte in GET % b"slow" * 10:
                peer.writer.write(bytes([byte]))
                await asyncio.sleep(0.05)

        dripping = asyncio.create_task(drip())
        assert await peer.ended()
        assert await silent.ended()
        dripping.cancel()
        assert (await (await connect()).ask(GET % b"a")).startswith(b"HTTP/1.1 200")

    served(talk)


def test_over_the_limit_the_connection_that_has_been_idle_longest_gives_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http, "CONNECTIONS_MAX", 3)

    async def talk(connect: Connect) -> None:
        peers = [await connect() for _ in range(3)]
        for peer in peers:
            await peer.ask(GET % b"a")
        await peers[0].ask(GET % b"again")

        assert (await (await connect()).ask(GET % b"new")).startswith(b"HTTP/1.1 200")

        assert await peers[1].ended(), "it was idle for longest"
        for alive in (peers[0], peers[2]):
            assert (await alive.ask(GET % b"b")).startswith(b"HTTP/1.1 200")

    served(talk)


def test_who_does_not_read_does_not_keep_a_newcomer_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "CONNECTIONS_MAX", 3)
    monkeypatch.setattr(
        "tests.unit.cluster.observe.test_http.answer",
        lambda request: text(200, "x" * (50_000_000 if request.path == "/much" else 1)),
    )

    async def talk(connect: Connect) -> None:
        blocked = [await connect() for _ in range(3)]
        for peer in blocked:
            peer.writer.write(GET % b"much")
        for peer in blocked:
            await peer.reader.readuntil(b"\r\n\r\n")  # its answer is on its way
        assert (await (await connect()).ask(GET % b"healthz")).startswith(b"HTTP/1.1 200")

    served(talk)


def test_who_asks_without_a_pause_does_not_keep_a_newcomer_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http, "CONNECTIONS_MAX", 3)
    endless = GET % b"a" * 5_000

    async def talk(connect: Connect) -> None:
        busy = [await connect() for _ in range(3)]
        for peer in busy:
            peer.writer.write(endless)
        reading = [asyncio.create_task(peer.ended()) for peer in busy]
        assert (await (await connect()).ask(GET % b"healthz")).startswith(b"HTTP/1.1 200")
        for each in reading:
            each.cancel()

    served(talk)


@pytest.mark.parametrize("tls", [None, ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)])
def test_connections_that_come_at_once_are_bounded_before_they_have_said_a_byte(
    tls: ssl.SSLContext | None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(http, "CONNECTIONS_MAX", 3)
    count = 200

    async def talk(connect: Connect) -> None:
        at_first = len(os.listdir("/proc/self/fd"))
        peers = await asyncio.gather(*(connect() for _ in range(count)))
        ended = [asyncio.create_task(peer.ended()) for peer in peers]
        while sum(each.done() for each in ended) < count - 3:  # WAIT_S bounds it
            await asyncio.sleep(0.01)
        assert len(os.listdir("/proc/self/fd")) - at_first <= count + 3, "theirs, and three of ours"
        assert sum(each.done() for each in ended) == count - 3, "three are served"
        for each in ended:
            each.cancel()

    with caplog.at_level(logging.DEBUG):
        served(talk, tls)
    assert failures == []
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


def test_listeners_are_bounded_and_do_not_give_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "LISTENERS_MAX", 2)

    async def talk(connect: Connect) -> None:
        listeners = [await connect() for _ in range(2)]
        for peer in listeners:
            assert b"event-stream" in await peer.ask(GET % b"events")
        refused = await (await connect()).ask(GET % b"events")
        assert refused.split()[1] == b"503"
        listeners[0].writer.close()
        while (await (await connect()).ask(GET % b"events")).split()[1] == b"503":
            await asyncio.sleep(0.01)
        assert b"data: 1" in await listeners[1].reader.readuntil(b"\n\n")

    served(talk)


def test_while_all_are_open_pages_none_gives_way_and_who_comes_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http, "CONNECTIONS_MAX", 2)

    async def talk(connect: Connect) -> None:
        pages = [await connect() for _ in range(2)]
        for peer in pages:
            assert b"event-stream" in await peer.ask(GET % b"events")
            await peer.reader.readuntil(b"\n\n")
        another = await connect()
        another.writer.write(GET % b"a")
        assert await another.ended(), "it is not answered"
        for peer in pages:
            assert b"data: 1" in await peer.reader.readuntil(b"\n\n")

    served(talk)


def test_who_is_idle_gives_way_before_who_waits_for_an_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http, "CONNECTIONS_MAX", 2)

    asked, may_end = asyncio.Event(), asyncio.Event()

    async def waited() -> Response:
        asked.set()
        await may_end.wait()
        return text(200, "here it is")

    monkeypatch.setattr(
        "tests.unit.cluster.observe.test_http.answer",
        lambda request: waited() if request.path == "/long" else text(200, request.path),
    )

    async def talk(connect: Connect) -> None:
        waits, idle = await connect(), await connect()
        waits.writer.write(GET % b"long")
        await asked.wait()
        assert b"/a" in await idle.ask(GET % b"a")
        assert b"/new" in await (await connect()).ask(GET % b"new")
        assert await idle.ended()
        may_end.set()
        assert (await waits.response()).endswith(b"here it is\n")

    served(talk)


def test_who_does_not_read_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "WRITE_S_MAX", 0.2)
    monkeypatch.setattr(
        "tests.unit.cluster.observe.test_http.answer",
        lambda _: Response(200, "text/plain", b"x" * 50_000_000),
    )
    drain, is_cut_off = http.Http._drain, asyncio.Event()

    async def drain_in_time(writer: asyncio.StreamWriter) -> None:
        try:
            await drain(writer)
        except TimeoutError:
            is_cut_off.set()
            raise

    monkeypatch.setattr(http.Http, "_drain", staticmethod(drain_in_time))

    async def talk(connect: Connect) -> None:
        peer = await connect()
        peer.writer.write(GET % b"much")
        await is_cut_off.wait()
        got = 0
        with contextlib.suppress(ConnectionResetError):
            while data := await peer.reader.read(1 << 20):
                got += len(data)
        assert got < 50_000_000

    served(talk)


def test_who_asks_without_a_pause_gets_a_share_of_the_processor_and_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http, "BUSY_SHARE", 0.02)
    spent_s = 0.004

    def busy(request: HttpRequest) -> Response:
        until_s = time.thread_time() + spent_s
        while time.thread_time() < until_s:
            pass
        return text(200, request.path)

    monkeypatch.setattr("tests.unit.cluster.observe.test_http.answer", busy)

    async def talk(connect: Connect) -> None:
        peers = [await connect() for _ in range(4)]
        began_s = time.monotonic()
        for peer in peers:
            peer.writer.write((GET % b"a") + (GET % b"b"))
        for peer in peers:
            assert b"/a" in await peer.response()
            assert b"/b" in await peer.response()
        assert time.monotonic() - began_s >= 7 * spent_s / 0.02

    served(talk)


def test_those_who_come_get_a_share_of_the_processor_and_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whatever they say: these say what is no request, and are refused."""
    monkeypatch.setattr(http, "ACCEPT_SHARE", 0.02)
    monkeypatch.setattr(http, "ACCEPT_REST_S_MAX", 60.0)

    async def refused(connect: Connect) -> None:
        peer = await connect()
        peer.writer.write(b"no request\r\n\r\n")
        assert b"400" in await peer.response()

    async def talk(connect: Connect) -> None:
        await refused(connect)
        began_s, spent_s = time.monotonic(), time.thread_time()
        for _ in range(3):
            await refused(connect)
        spent_s = time.thread_time() - spent_s
        for _ in range(2):  # the next one is taken as the last one's rest is over
            await refused(connect)
        assert time.monotonic() - began_s >= spent_s * (1 / 0.02 - 1)

    served(talk)


def test_a_defect_closes_its_connection_and_is_told() -> None:
    async def talk(connect: Connect) -> None:
        peer = await connect()
        peer.writer.write(GET % b"fails")
        assert await peer.ended()
        assert [type(error) for error in failures] == [ZeroDivisionError]
        assert (await (await connect()).ask(GET % b"a")).startswith(b"HTTP/1.1 200")

    served(talk)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_malformed_requests_hurt_nobody(seed: int) -> None:
    rng = random.Random(seed)

    def malformed() -> bytes:
        data = bytearray(GET % b"a?x=1&y=%zz" + GET % b"b")
        for _ in range(rng.randint(1, 8)):
            place = rng.randrange(len(data))
            if rng.random() < 0.5:
                data[place] = rng.randrange(256)
            else:
                data[place:place] = rng.randbytes(rng.randint(1, 9))
        return bytes(data[: rng.randint(1, len(data))])

    async def talk(connect: Connect) -> None:
        good = await connect()
        for _ in range(100):
            peer = await connect()
            peer.writer.write(malformed())
            peer.writer.write_eof()
            with contextlib.suppress(ConnectionResetError):
                while await peer.reader.read(65_536):
                    pass
            peer.writer.close()
        assert (await good.ask(GET % b"c")).startswith(b"HTTP/1.1 200")
        assert failures == []

    served(talk)
