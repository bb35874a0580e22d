"""A client of raw sockets: it says what no ZeroMQ binding would say. No tests here."""

from __future__ import annotations

import contextlib
import json
import socket
import struct
from select import select
from typing import Any, Self

from cluster.local.local import LocalCluster
from cluster.serve.zmtp import encode, greeting

MORE, LONG = 1, 2
WAIT_S = 20.0
_GREETING_BYTES = 64


def address_of(endpoint: str) -> tuple[str, int]:
    host, port = endpoint.removeprefix("tcp://").rsplit(":", 1)
    return host, int(port)


def long_frame(size: int, more: bool = False) -> bytes:
    """Return the head of a frame that announces `size` bytes."""
    return bytes((LONG | (MORE if more else 0),)) + struct.pack(">Q", size)


def request(kind: str, topic: str = "", client_id: str = "", **body: Any) -> bytes:
    """Return the bytes of a whole request."""
    header = {"type": kind, "topic": topic, "client_id": client_id, "request_id": "r", "body": body}
    return encode([b"", json.dumps(header).encode()])


class Raw:
    """A TCP connection to a client port, behind the handshake unless told otherwise."""

    def __init__(self, endpoint: str, identity: bytes = b"", handshake: bool = True) -> None:
        self.socket = socket.create_connection(address_of(endpoint), timeout=WAIT_S)
        if handshake:
            properties = b"\x0bSocket-Type" + struct.pack(">I", 6) + b"DEALER"
            properties += b"\x08Identity" + struct.pack(">I", len(identity)) + identity
            ready = b"\x05READY" + properties
            self.socket.sendall(greeting()[:_GREETING_BYTES] + bytes((4, len(ready))) + ready)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send_until_closed(self, data: bytes, bytes_max: int) -> int:
        """Send `data` again and again; return how many bytes went before the node closed."""
        sent = 0
        try:
            while sent < bytes_max:
                sent += self.socket.send(data)
        except (ConnectionError, TimeoutError):
            return sent
        raise AssertionError(f"the node took {sent} bytes")

    def offer(self, data: bytes) -> int:
        """Send what the connection takes without waiting; return how much that was."""
        self.socket.setblocking(False)
        view, sent = memoryview(data), 0
        with contextlib.suppress(BlockingIOError, ConnectionError):
            while sent < len(data):
                sent += self.socket.send(view[sent:])
        self.socket.settimeout(WAIT_S)
        return sent

    def wait_for(self, size: int) -> None:
        """Wait until so much has come, without taking it.

        Ask for no more than the system keeps for a reader who does not read: some 60,000 bytes.
        """
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, size)
        readable, _, _ = select([self.socket], [], [], WAIT_S)
        assert readable, "it did not come"
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)

    def read_until(self, word: bytes, count: int) -> bool:
        """Read until a word has come so often; False if the connection ends before."""
        said = b""
        while said.count(word) < count:
            piece = self.socket.recv(1 << 20)
            if not piece:
                return False
            said += piece
        return True

    def is_closed(self) -> bool:
        """Read to the end; False if the node has not closed within the time-out."""
        try:
            while self.socket.recv(1 << 20):
                pass
        except ConnectionError:
            return True
        except TimeoutError:
            return False
        return True


def memory_mb(cluster: LocalCluster, name: str) -> int:
    """Return the most that a node's process has held in memory."""
    with open(f"/proc/{cluster.pids()[name]}/status") as file:
        [line] = [line for line in file if line.startswith("VmHWM")]
    return int(line.split()[1]) // 1024
