"""Bare ZeroMQ: the sockets of the load, and the echo that the broker is compared to.

What lives here: everything of the benchmark that touches zmq. It does without the client library,
so that the load is cheap, and the same for the broker and for the echo. What must not: what is
measured (loads.py).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import zmq

from chaos.bench.figures import BenchError
from flotilla_client.connection import set_key
from flotilla_client.keys import key_file
from flotilla_client.protocol import (
    INSPECT,
    PUT,
    REQUEST_ID,
    SUB,
    ProtocolError,
    Reply,
    Request,
    decode_reply,
    encode_request,
    pack,
)

REPLY_MS_MAX: Final = 15_000  # the client library's patience
RECONNECT_MS: Final = 2  # how closely the first answer of a starting process is seen
ACKNOWLEDGED: Final = b'"type":"ACK"'
ANSWERED: Final = b'"type":"'  # ACK or NAK
ECHOED: Final = b'"type":"PUT"'

Frames = list[bytes]


class RequestSocket:
    """A DEALER socket with at most one request under way, framed as a REQ would frame it.

    `marker`: what the header of a good reply contains. A look at some bytes costs the load little;
    decoding is for what lacks them.
    """

    def __init__(
        self, endpoint: str, marker: bytes = ACKNOWLEDGED, given: Path | None = None
    ) -> None:
        """`given`: the file of its key; None: what the environment says."""
        self._marker = marker
        self.socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.DEALER)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.setsockopt(zmq.RECONNECT_IVL, RECONNECT_MS)
        self.socket.setsockopt(zmq.RCVTIMEO, REPLY_MS_MAX)
        key = None if marker == ECHOED else key_file(given)  # the echo has none
        if key is not None:
            set_key(self.socket, key)
        self.socket.connect(endpoint)

    def send(self, frames: Sequence[bytes]) -> None:
        """Send a request; it waits in the socket while there is no connection."""
        self.socket.send_multipart([b"", *frames])

    def receive(self) -> Frames:
        """Return the reply's frames. Raises BenchError for none in time and for a bad one."""
        try:
            frames: Frames = self.socket.recv_multipart()[1:]
        except zmq.Again:
            raise BenchError(f"no reply within {REPLY_MS_MAX / 1000:g} s") from None
        if self._marker not in frames[0]:
            raise BenchError(f"instead of {self._marker.decode()} came {frames[0][:300]!r}")
        return frames

    def call(self, frames: Sequence[bytes]) -> Frames:
        """Send a request and return its reply's frames."""
        self.send(frames)
        return self.receive()

    def ask(self, request: Request) -> Reply:
        """Send a request to a node and return its ACK. Raises BenchError for anything else."""
        try:
            return decode_reply(self.call(encode_request(request)))
        except ProtocolError as error:
            raise BenchError(f"{request.type}: {error.message}") from None

    def close(self) -> None:
        """Close the socket."""
        self.socket.close(linger=0)


class Putter:
    """A client of the cluster that makes PUTs to `topic`, always of the same `publications`."""

    def __init__(self, caller: RequestSocket, topic: str, publications: Sequence[bytes]) -> None:
        body = caller.ask(Request(REQUEST_ID, "register")).body
        self.topic, self.client_id = topic, str(body["client_id"])
        self._epoch, self._counter = int(body["epoch"]), 1
        self._lengths, self._data = pack(publications)
        self._count = len(publications)

    def frames(self) -> Frames:
        """Return the frames of the next PUT."""
        counter, self._counter = self._counter, self._counter + self._count
        body = {"counter": counter, "count": self._count}
        request = Request(PUT, f"put-{counter}", self.topic, self.client_id, self._epoch, body)
        request.lengths, request.data = self._lengths, self._data
        return encode_request(request)


def subscribe(caller: RequestSocket, topic: str) -> str:
    """Subscribe a new client to `topic`; return its id."""
    client_id = str(caller.ask(Request(REQUEST_ID, "register")).body["client_id"])
    caller.ask(Request(SUB, "subscribe", topic, client_id))
    return client_id


def check_stored(caller: RequestSocket, topic: str, count: int) -> None:
    """Raise BenchError unless `topic` was given just `count` ids: an ACK may store nothing."""
    # By name: a list of all topics is cut, and the loads of others have left hundreds of them.
    rows = caller.ask(Request(INSPECT, "inspect", topic, body={"what": "topic"})).body["rows"]
    stored = sum(int(row["last_id"]) for row in rows)
    if stored != count:
        raise BenchError(f"{topic}: {count} publications were acknowledged, {stored} stored")


class ReplyPoller:
    """Says who of `callers` has a reply."""

    def __init__(self, callers: Sequence[RequestSocket]) -> None:
        self._poller = zmq.Poller()
        self._callers: dict[Any, RequestSocket] = {caller.socket: caller for caller in callers}
        for socket in self._callers:
            self._poller.register(socket, zmq.POLLIN)

    def wait(self) -> list[RequestSocket]:
        """Return those that a reply has come for, at least one. Raises BenchError for none."""
        ready = self._poller.poll(REPLY_MS_MAX)
        if not ready:
            raise BenchError(f"no reply within {REPLY_MS_MAX / 1000:g} s")
        return [self._callers[socket] for socket, _ in ready]


def call_in_turn(caller: RequestSocket, make: Callable[[], Frames], seconds: float) -> list[float]:
    """Make one request after the other for `seconds`; return how long each took, in seconds."""
    took: list[float] = []
    end = time.perf_counter() + seconds
    while (began := time.perf_counter()) < end:
        frames = make()
        began = time.perf_counter()
        caller.call(frames)
        took.append(time.perf_counter() - began)
    return took


def call_at_once(
    parties: Sequence[tuple[RequestSocket, Callable[[], Frames]]], seconds: float
) -> tuple[list[float], float]:
    """Keep one request of every party under way for `seconds`, then await the last replies.

    Returns how long each request took and how long it took in all, in seconds.
    """
    by_socket: dict[Any, tuple[RequestSocket, Callable[[], Frames]]] = {}
    sent_at: dict[Any, float] = {}
    poller = zmq.Poller()
    took: list[float] = []
    began = time.perf_counter()
    for caller, make in parties:
        by_socket[caller.socket] = caller, make
        poller.register(caller.socket, zmq.POLLIN)
        caller.send(make())
        sent_at[caller.socket] = time.perf_counter()
    while sent_at:
        ready = poller.poll(REPLY_MS_MAX)
        if not ready:
            raise BenchError(f"{len(sent_at)} requests unanswered, {REPLY_MS_MAX / 1000:g} s")
        for socket, _ in ready:
            caller, make = by_socket[socket]
            caller.receive()
            now = time.perf_counter()
            took.append(now - sent_at.pop(socket))
            if now - began < seconds:
                caller.send(make())
                sent_at[socket] = now
    return took, time.perf_counter() - began


def ask_all(callers: Sequence[RequestSocket], requests: Sequence[Request]) -> list[Reply]:
    """Ask a node all `requests`, one of each caller under way; return the replies in their order.

    Raises BenchError for anything but ACKs.
    """
    replies: list[Reply] = []
    for first in range(0, len(requests), len(callers)):
        part = requests[first : first + len(callers)]
        for caller, request in zip(callers, part, strict=False):
            caller.send(encode_request(request))
        for caller, _ in zip(callers, part, strict=False):
            try:
                replies.append(decode_reply(caller.receive()))
            except ProtocolError as error:
                raise BenchError(error.message) from None
    return replies


def serve_echo(report: Callable[[str], None]) -> None:
    """Report an endpoint and send back whatever comes to it, until the process is killed."""
    socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.ROUTER)
    port = socket.bind_to_random_port("tcp://127.0.0.1")
    report(f"tcp://127.0.0.1:{port}")
    while True:
        socket.send_multipart(socket.recv_multipart())
