"""A person with a ZeroMQ binding: one REQ socket, JSON headers written by hand."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

import zmq

REPLY_MS_MAX = 10_000
RETRY_MS = 50  # where the answer does not say


class ByHand:
    """One REQ socket to one endpoint ("host:port")."""

    def __init__(self, endpoint: str) -> None:
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.REQ)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.connect(f"tcp://{endpoint.removeprefix('tcp://')}")
        self._numbers = itertools.count(1)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._context.destroy(linger=0)

    def ask(self, type_: str, topic: str = "", client_id: str = "", **body: Any) -> dict[str, Any]:
        """Send a request as JSON alone and return the reply's header.

        Told that there is an election (definite: nothing has happened), ask again: on a busy
        machine one may come at any time.
        """
        ends_at = time.monotonic() + REPLY_MS_MAX / 1000
        while True:
            header = {
                "type": type_,
                "topic": topic,
                "client_id": client_id,
                "request_id": f"by-hand-{next(self._numbers)}",
                "body": body,
            }
            reply = self._exchanged(header)
            if reply["body"].get("error") != "electing" or time.monotonic() > ends_at:
                return reply
            time.sleep(reply["body"].get("retry_after_ms", RETRY_MS) / 1000)

    def ask_in_version(
        self, version: int, type_: str, frames: Sequence[bytes] = ()
    ) -> dict[str, Any]:
        """Send a request of another protocol version and return the reply's header."""
        header = {"v": version, "type": type_, "request_id": f"by-hand-{next(self._numbers)}"}
        return self._exchanged(header, frames)

    def _exchanged(self, header: dict[str, Any], frames: Sequence[bytes] = ()) -> dict[str, Any]:
        self._socket.send_multipart([json.dumps(header).encode(), *frames])
        assert self._socket.poll(REPLY_MS_MAX), f"no reply to {header}"
        reply: dict[str, Any] = json.loads(self._socket.recv_multipart()[0])
        assert reply["request_id"] == header["request_id"], (header, reply)
        return reply

    def ack(self, type_: str, topic: str = "", client_id: str = "", **body: Any) -> dict[str, Any]:
        """Send a request and return the body of its ACK."""
        reply = self.ask(type_, topic, client_id, **body)
        assert reply["type"] == "ACK", reply
        acknowledged: dict[str, Any] = reply["body"]
        return acknowledged

    def error(self, type_: str, topic: str = "", client_id: str = "", **body: Any) -> str:
        """Send a request and return the error code of its NAK."""
        reply = self.ask(type_, topic, client_id, **body)
        assert reply["type"] == "NAK", reply
        return str(reply["body"]["error"])
