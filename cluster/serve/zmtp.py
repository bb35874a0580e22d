"""ZMTP 3 as a node speaks it to its clients: the bytes of one connection in, what they mean out.

What lives here: greeting, handshake, frames, heartbeats, and the bounds of what a client can make a
node hold before it has sent a whole message. What must not: sockets, clocks, what a message asks
for (protocol.py), the proofs of CURVE (keys/curve.py). Source: RFC 23 and 37 of rfc.zeromq.org.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

from cluster.keys.curve import MESSAGE_OVERHEAD_BYTES, CurveError, CurveSession, Handshake
from flotilla_client.protocol import MESSAGE_BYTES_MAX

PARTS_MAX: Final = 8  # a request has four; one with a few more gets a NAK
COMMAND_BYTES_MAX: Final = 2048  # a READY with a few properties; a PING has 23 bytes
IDENTITY_BYTES_MAX: Final = 255  # as the RFC has it

_MORE: Final = 0x01
_LONG: Final = 0x02
_COMMAND: Final = 0x04
_SHORT_BYTES_MAX: Final = 255
_BOXED_MORE: Final = 0x01  # flags inside a MESSAGE of CURVE
_BOXED_COMMAND: Final = 0x02
_LENGTH: Final = struct.Struct(">Q")
_GREETING_BYTES: Final = 64
_SIGNATURE: Final = b"\xff" + bytes(8) + b"\x7f" + b"\x03\x01"
_NULL: Final = b"NULL"
_CURVE: Final = b"CURVE"
_MECHANISM: Final = slice(12, 32)
_AS_SERVER: Final = 32
_READY: Final = b"\x05READY"
_HELLO: Final = b"\x05HELLO"
_PING: Final = b"\x04PING"
_PONG: Final = b"\x04PONG"
_PING_TTL_BYTES: Final = 2
_PING_CONTEXT_BYTES_MAX: Final = 16
_ASKERS: Final = frozenset({b"REQ", b"DEALER", b"ROUTER"})  # what may talk to a ROUTER


class ZmtpError(Exception):
    """Bytes that are no ZMTP 3 of a client, or over a bound; the connection closes."""


@dataclass(frozen=True, slots=True)
class ClientReady:
    """The client has said who it is. `pings`: it answers a PING (ZMTP 3.1 and newer).

    `reply`: what it is to be told, by CURVE.
    """

    identity: bytes
    pings: bool
    reply: bytes = b""


@dataclass(frozen=True, slots=True)
class Say:
    """The handshake goes on: these bytes are to be sent."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Ping:
    """The client asks for a PONG with the same context."""

    context: bytes


@dataclass(frozen=True, slots=True)
class Ignored:
    """A PONG, or a command that we don't know, which RFC 37 wants ignored."""


Event: TypeAlias = "ClientReady | Say | Ping | Ignored | list[bytes]"


def greeting(curve: bool = False) -> bytes:
    """Return what a node says first on a connection: ZMTP 3.1, and its mechanism.

    By NULL also that it is a ROUTER; by CURVE nobody is told more who has not proved who he is.
    """
    if curve:
        return _SIGNATURE + _CURVE.ljust(20, b"\0") + b"\1" + bytes(31)
    return _SIGNATURE + _NULL.ljust(20, b"\0") + bytes(32) + _command(_READY + _metadata())


def _metadata() -> bytes:
    return _property(b"Socket-Type", b"ROUTER") + _property(b"Identity", b"")


def ping(context: bytes, session: CurveSession | None = None) -> bytes:
    """Return a PING with up to 16 bytes of context; the node gives the client no deadline."""
    assert len(context) <= _PING_CONTEXT_BYTES_MAX, context
    return _told(_PING + bytes(_PING_TTL_BYTES) + context, session)


def pong(context: bytes, session: CurveSession | None = None) -> bytes:
    """Return the answer to a PING."""
    return _told(_PONG + context, session)


def _told(body: bytes, session: CurveSession | None) -> bytes:
    return _command(body) if session is None else _frame(session.message(_BOXED_COMMAND, body))


def encode(parts: Sequence[bytes], session: CurveSession | None = None) -> bytes:
    """Return the bytes of a message; by CURVE each part is in a box of its own."""
    last = len(parts) - 1
    encoded: list[bytes] = []
    if session is not None:
        for number, part in enumerate(parts):
            encoded.append(_frame(session.message(_BOXED_MORE if number < last else 0, part)))
        return b"".join(encoded)
    for number, part in enumerate(parts):
        more = _MORE if number < last else 0
        size = len(part)
        if size <= _SHORT_BYTES_MAX:
            encoded.append(bytes((more, size)))
        else:
            encoded.append(bytes((more | _LONG,)) + _LENGTH.pack(size))
        encoded.append(part)
    return b"".join(encoded)


def _frame(body: bytes) -> bytes:
    size = len(body)
    if size <= _SHORT_BYTES_MAX:
        return bytes((0, size)) + body
    return bytes((_LONG,)) + _LENGTH.pack(size) + body


def _command(body: bytes) -> bytes:
    assert len(body) <= _SHORT_BYTES_MAX, body
    return bytes((_COMMAND, len(body))) + body


def _property(name: bytes, value: bytes) -> bytes:
    return bytes((len(name),)) + name + struct.pack(">I", len(value)) + value


class Receiver:
    """Cuts what a client sends into events.

    Use: `feed` what was read, then `next` until it returns None, then read again. Holds at most one
    unfinished message, of `MESSAGE_BYTES_MAX` in `PARTS_MAX` parts, and what was fed last. With a
    `handshake` the client has to prove who it is, by CURVE; then `session` is set.
    """

    def __init__(self, handshake: Handshake | None = None) -> None:
        self._handshake = handshake
        self.session: CurveSession | None = None
        self._bytes = b""  # fed and not yet cut, from `_start` on
        self._start = 0
        self._held = bytearray()  # an unfinished frame, of which `_missing` bytes were not fed yet
        self._missing = 0
        self._parts: list[bytes] = []
        self._parts_bytes = 0
        self._announced_bytes = 0  # of the unfinished message, the unfinished frame included
        # What a message's frame may have. A MESSAGE is a command to the RFC, and none to libzmq.
        self._frame_flags = _LONG | (_COMMAND if handshake else _MORE)
        self._box_bytes = MESSAGE_OVERHEAD_BYTES if handshake else 0
        self._minor = -1  # of the client's ZMTP, -1 before its greeting
        self.is_ready = False

    @property
    def unfinished_bytes(self) -> int:
        """Return the size of the message that is being sent, as far as it is known; 0 for none."""
        return self._announced_bytes

    @property
    def missing_bytes(self) -> int:
        """Return how much is missing until `next` can go on."""
        return self._missing

    @property
    def is_between_messages(self) -> bool:
        """True when nothing of a message or command has come that is not whole."""
        return not (self._parts or self._held or self._start < len(self._bytes))

    def feed(self, data: bytes) -> None:
        """Take what was read. `next` must have returned None before."""
        assert self._start == len(self._bytes), "what was fed before was not cut to its end"
        if self._held:
            self._held += data
            self._missing -= len(data)
            if self._missing > 0:
                return
            data = bytes(self._held)
            self._held = bytearray()
        self._bytes, self._start = data, 0

    def next(self) -> Event | None:
        """Return the next event, None when more has to be fed. Raises ZmtpError; then stop."""
        while not self._held:
            if self._minor < 0:
                if not self._take_greeting():
                    return None
                continue
            frame = self._next_frame()
            if frame is None:
                return None
            flags, body = frame
            if self._handshake is not None:
                if not self.is_ready:
                    return self._shake_hands(self._handshake, body)
                assert self.session is not None, "not ready"
                try:
                    flags, body = self.session.open(body)
                except CurveError as error:
                    raise ZmtpError(str(error)) from None
                if flags & ~_BOXED_MORE:
                    flags = self._unboxed(flags, body)
            if flags & _COMMAND:
                return self._take_command(body)
            parts = self._parts
            parts.append(body)
            if flags & _MORE:
                if len(parts) == PARTS_MAX:
                    raise ZmtpError(f"a message of more than {PARTS_MAX} parts")
                self._parts_bytes += len(body)
                continue
            self._parts = []
            self._parts_bytes = self._announced_bytes = 0
            return parts
        return None

    def _next_frame(self) -> tuple[int, bytes] | None:
        data, start = self._bytes, self._start
        there = len(data) - start
        if there < 2:
            self._wait(2)
            return None
        flags = data[start]
        if flags & _LONG:
            if there < 9:
                self._wait(9)
                return None
            size, begin = _LENGTH.unpack_from(data, start + 1)[0], start + 9
        else:
            size, begin = data[start + 1], start + 2
        if flags & _COMMAND and not (self._handshake and self.is_ready):
            if flags & ~(_COMMAND | _LONG) or size > COMMAND_BYTES_MAX:
                raise ZmtpError(f"a command of {size} bytes with flags {flags:#x}")
        elif flags & ~self._frame_flags:
            raise ZmtpError(f"a frame with flags {flags:#x}")
        elif not self.is_ready:
            raise ZmtpError("sent a message before READY")
        else:
            self._announced_bytes = self._parts_bytes + size
            if self._announced_bytes > MESSAGE_BYTES_MAX + self._box_bytes:
                raise ZmtpError(f"a message of more than {MESSAGE_BYTES_MAX} bytes")
        end = begin + size
        if end > len(data):
            self._wait(end - start)
            return None
        self._start = end
        return flags, data[begin:end]

    def _wait(self, size: int) -> None:
        """Hold what was not cut until `size` bytes are there."""
        rest = self._bytes[self._start :]
        self._missing = size - len(rest)
        if rest:
            self._held = bytearray(rest)
        self._bytes, self._start = b"", 0

    def _take_greeting(self) -> bool:
        data = self._bytes
        if data and (data[0] != 0xFF or (len(data) > 9 and data[9] != 0x7F)):
            raise ZmtpError("does not speak ZMTP")
        if len(data) > 10 and data[10] < 3:
            raise ZmtpError("speaks a ZMTP older than 3.0")
        if len(data) < _GREETING_BYTES:
            self._wait(len(data) + 1)  # each byte is looked at: ZMTP 2 sends fewer, and waits
            return False
        mechanism, ours = data[_MECHANISM].rstrip(b"\0"), _CURVE if self._handshake else _NULL
        if mechanism != ours:
            told = ours.decode()
            raise ZmtpError(f"asks for the security mechanism {mechanism!r}; this node has {told}")
        if self._handshake and data[_AS_SERVER]:
            raise ZmtpError("says that it is the server of CURVE")
        self._minor = data[11] if data[10] == 3 else 1  # a newer one must speak ours
        self._start = _GREETING_BYTES
        return True

    def _shake_hands(self, handshake: Handshake, body: bytes) -> Event:
        try:
            if body.startswith(_HELLO):
                return Say(_command(handshake.hello(body)))
            admitted = handshake.initiate(body, _metadata())
        except CurveError as error:
            raise ZmtpError(str(error)) from None
        self.session = admitted.session
        ready = self._take_ready(admitted.metadata)
        return replace(ready, reply=_command(admitted.ready))

    def _unboxed(self, boxed: int, body: bytes) -> int:
        """Return what flags a command has without CURVE, which came in a MESSAGE."""
        if boxed != _BOXED_COMMAND:
            raise ZmtpError(f"a MESSAGE with flags {boxed:#x}")
        if len(body) > COMMAND_BYTES_MAX:
            raise ZmtpError(f"a command of {len(body)} bytes")
        self._announced_bytes = self._parts_bytes  # it is part of no message
        return _COMMAND

    def _take_command(self, body: bytes) -> Event:
        if body.startswith(_READY):
            return self._take_ready(body[len(_READY) :])
        if not self.is_ready:
            raise ZmtpError(f"said {body[:20]!r} before READY")
        if body.startswith(_PING):
            context = body[len(_PING) + _PING_TTL_BYTES :]
            return Ping(context[:_PING_CONTEXT_BYTES_MAX])
        return Ignored()

    def _take_ready(self, body: bytes) -> ClientReady:
        if self.is_ready:
            raise ZmtpError("said READY twice")
        properties = _properties(body)
        socket_type = properties.get(b"socket-type", b"")
        if socket_type not in _ASKERS:
            raise ZmtpError(f"is a {socket_type[:20]!r} socket; REQ, DEALER and ROUTER may ask")
        identity = properties.get(b"identity", b"")
        if len(identity) > IDENTITY_BYTES_MAX:
            raise ZmtpError(f"an identity of {len(identity)} bytes; the limit is 255")
        self.is_ready = True
        return ClientReady(identity, self._minor > 0)


def _properties(body: bytes) -> dict[bytes, bytes]:
    """Return the properties of a READY by their names in lower case."""
    properties: dict[bytes, bytes] = {}
    start = 0
    while start < len(body):
        name_end = start + 1 + body[start]
        value_start = name_end + 4
        if value_start > len(body):
            raise ZmtpError("READY with a property that is cut off")
        value_end = value_start + int.from_bytes(body[name_end:value_start], "big")
        if value_end > len(body):
            raise ZmtpError("READY with a property that is cut off")
        properties[body[start + 1 : name_end].lower()] = body[value_start:value_end]
        start = value_end
    return properties
