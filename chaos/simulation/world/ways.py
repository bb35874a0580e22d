"""Clients' connections as bytes: ZMTP over simulated TCP, to the product's own `ClientPort`s.

What lives here: a client's end, which speaks ZMTP 3.1 as libzmq does. What must not: the bytes'
fate (wire.py), the node's end (cluster/serve/client_port.py, zmtp.py), what is asked.

A way is one socket of a client to one node, and has its name.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final

from chaos.simulation.world.wire import CUT_LOOK_S, Wire
from cluster.serve import zmtp
from cluster.serve.zmtp import Ping, Receiver, ZmtpError

_GREETING: Final = b"\xff" + bytes(8) + b"\x7f" + b"\x03\x01" + b"NULL".ljust(20, b"\0") + bytes(32)


class Ways:
    """All clients' connections to nodes.

    `replied(way, node, frames)` and `lost(way, vanished)` are told what comes and what ends;
    `vanished`: the node's end had gone before, and nobody had said so.
    """

    def __init__(
        self,
        wire: Wire,
        replied: Callable[[str, str, list[bytes]], None],
        lost: Callable[[str, bool], None],
    ) -> None:
        self.wire, self.replied, self.lost = wire, replied, lost
        self._ways: dict[str, Way] = {}

    def request(self, name: str, node: str, frames: list[bytes]) -> None:
        """Send a request; the first one of a way connects it."""
        way = self._ways.get(name)
        if way is None:
            way = self._ways[name] = Way(self, name, node)
        way.ask(frames)

    def close(self, name: str) -> None:
        """Close a way, if there is one: what is on it is lost, or not."""
        way = self._ways.pop(name, None)
        if way is not None:
            way.close()

    def ended(self, name: str, vanished: bool) -> None:
        """Note that a way has ended by itself."""
        if self._ways.pop(name, None) is not None:
            self.lost(name, vanished)


class Way:
    """A client's end of one connection."""

    def __init__(self, ways: Ways, name: str, node: str) -> None:
        self._ways, self._name, self._node = ways, name, node
        self._receiver = Receiver()
        self._outbox = bytearray(_GREETING + _ready())
        self._is_over = False
        client = name.partition("/")[0]
        self._socket = ways.wire.new_socket(client)
        self._socket.way, self._socket.remote = name, node
        self._socket.on_change = self._changed
        self._later(2 * self._socket.delay_s(), self._connect)

    def ask(self, frames: list[bytes]) -> None:
        """Send a request, and note that it is to arrive next."""
        self._socket.requests.append([*map(bytes, frames)])
        self.say(zmtp.encode([b"", *frames]))

    def say(self, data: bytes) -> None:
        """Send, as far as there is room; the rest leaves when there is."""
        self._outbox += data
        self._flush()

    def close(self) -> None:
        """Close the connection."""
        self._is_over = True
        self._socket.on_change = None
        self._socket.close()

    def _later(self, delay_s: float, call: Callable[[], None]) -> None:
        world = self._ways.wire.world
        world.at(world.now + delay_s, call)

    def _connect(self) -> None:
        wire = self._ways.wire
        if self._is_over:
            return
        if self._socket.is_cut() or wire.is_unplugged(self._node):
            self._later(CUT_LOOK_S, self._connect)
            return
        listener = wire.clients_listener_of(self._node)
        if listener is None:
            self._end()
        else:
            self._socket.meet(listener)
            self._flush()

    def _end(self) -> None:
        self.close()
        other = self._socket.other
        self._ways.ended(self._name, other is not None and other.has_vanished)

    def _flush(self) -> None:
        taken = self._socket.take(self._outbox)
        del self._outbox[:taken]

    def _changed(self) -> None:
        if self._is_over:
            return
        data = self._socket.drain()
        if data:
            self._receiver.feed(data)
        try:
            while (event := self._receiver.next()) is not None:
                if isinstance(event, Ping):
                    self._outbox += zmtp.pong(event.context)
                elif isinstance(event, list):
                    self._take(event)
        except ZmtpError as error:
            self._ways.wire.torn.append(f"{self._name} can't read what {self._node} says: {error}")
            self._end()
            return
        self._go_on()

    def _take(self, event: list[bytes]) -> None:
        """Take a reply, which is the next that was sent here."""
        sent = self._socket.replies
        if not sent or [b"", *sent.popleft()] != [*map(bytes, event)]:
            text = f"{self._name} was given a reply that {self._node} has not sent it next"
            self._ways.wire.torn.append(text)
        else:
            self._ways.replied(self._name, self._node, event[1:])

    def _go_on(self) -> None:
        if self._is_over:  # who was given a reply has closed the way
            return
        if self._socket.has_ended:
            self._end()
        else:
            self._flush()


def _ready() -> bytes:
    body = b"\x05READY"
    for name, value in ((b"Socket-Type", b"DEALER"), (b"Identity", b"")):
        body += bytes((len(name),)) + name + struct.pack(">I", len(value)) + value
    return bytes((4, len(body))) + body
