"""ZMTP as a node hears it: events however the bytes are cut, and a bound on everything."""

from __future__ import annotations

import random
import struct
from typing import Any

import pytest

from cluster.serve import zmtp
from cluster.serve.zmtp import (
    COMMAND_BYTES_MAX,
    MESSAGE_BYTES_MAX,
    PARTS_MAX,
    ClientReady,
    Ignored,
    Ping,
    Receiver,
    ZmtpError,
    encode,
)

SEED = 31
GREETING = zmtp.greeting()[:64]


def command(body: bytes) -> bytes:
    if len(body) > 255:
        return b"\x06" + struct.pack(">Q", len(body)) + body
    return bytes((4, len(body))) + body


def ready(**properties: bytes) -> bytes:
    body = b"\x05READY"
    for name, value in properties.items():
        key = name.replace("_", "-").encode()
        body += bytes((len(key),)) + key + struct.pack(">I", len(value)) + value
    return command(body)


HANDSHAKE = GREETING + ready(Socket_Type=b"DEALER", Identity=b"")


def events_of(*pieces: bytes) -> list[Any]:
    receiver, events = Receiver(), []
    for piece in pieces:
        receiver.feed(piece)
        while (event := receiver.next()) is not None:
            events.append(event)
    return events


def test_what_a_node_says_is_what_it_understands() -> None:
    greeting = zmtp.greeting().replace(b"ROUTER", b"DEALER")
    parts = [b"", b"x" * 255, b"y" * 256, b""]
    said = greeting + encode(parts) + zmtp.ping(b"context") + zmtp.pong(b"") + encode([b"z"])
    assert events_of(said) == [ClientReady(b"", True), parts, Ping(b"context"), Ignored(), [b"z"]]


def test_events_do_not_depend_on_how_bytes_are_cut() -> None:
    print("seed", SEED)
    rng = random.Random(SEED)
    messages = [
        [rng.randbytes(rng.choice((0, 1, 255, 256, 40_000))) for _ in range(rng.randrange(1, 5))]
        for _ in range(60)
    ]
    stream = HANDSHAKE + b"".join(map(encode, messages))
    for longest in (1, 3, 1000, len(stream)):
        pieces, start = [], 0
        while start < len(stream):
            size = rng.randint(1, longest)
            pieces.append(stream[start : start + size])
            start += size
        assert events_of(*pieces) == [ClientReady(b"", True), *messages]


def test_a_client_of_zmtp_3_0_is_not_asked_for_pongs() -> None:
    greeting = GREETING[:11] + b"\x00" + GREETING[12:]
    assert events_of(greeting + ready(Socket_Type=b"REQ")) == [ClientReady(b"", False)]
    newer = GREETING[:10] + b"\x04\x00" + GREETING[12:]
    assert events_of(newer + ready(Socket_Type=b"REQ")) == [ClientReady(b"", True)]


def test_an_unknown_command_is_ignored() -> None:
    assert events_of(HANDSHAKE, command(b"\x06FUTURE?"), encode([b"a"]))[1:] == [Ignored(), [b"a"]]


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (b"GET / HTTP/1.1\r\n", "does not speak ZMTP"),
        (b"\xff" + bytes(8) + b"\x00", "does not speak ZMTP"),
        (b"\xff" + bytes(8) + b"\x7f\x01", "older than 3.0"),
        (GREETING[:12] + b"CURVE".ljust(20, b"\0") + bytes(32), "mechanism b'CURVE'"),
        (GREETING + encode([b"early"]), "before READY"),
        (GREETING + zmtp.ping(b""), "before READY"),
        (GREETING + ready(Socket_Type=b"SUB"), "is a b'SUB' socket"),
        (GREETING + ready(), "is a b'' socket"),
        (GREETING + ready(Socket_Type=b"REQ", Identity=b"x" * 256), "an identity of 256"),
        (GREETING + command(b"\x05READY\x0bSocket"), "cut off"),
        (GREETING + command(b"\x05READY\x01a\x00\x00\x00\x09b"), "cut off"),
        (HANDSHAKE + ready(Socket_Type=b"REQ"), "READY twice"),
        (HANDSHAKE + b"\x08\x01x", "flags 0x8"),
        (HANDSHAKE + b"\x05\x01x", "flags 0x5"),
        (HANDSHAKE + b"\x06" + struct.pack(">Q", COMMAND_BYTES_MAX + 1), "a command of"),
        (HANDSHAKE + b"\x02" + struct.pack(">Q", MESSAGE_BYTES_MAX + 1), "more than 4194304"),
        (HANDSHAKE + b"\x02" + struct.pack(">Q", 2**64 - 1), "more than 4194304"),
        (HANDSHAKE + b"\x01\x00" * PARTS_MAX, "more than 8 parts"),
    ],
)
def test_what_is_no_zmtp_of_a_client_is_refused(said: bytes, reason: str) -> None:
    with pytest.raises(ZmtpError, match=reason):
        events_of(said)


def test_parts_that_are_small_add_up() -> None:
    receiver = Receiver()
    receiver.feed(HANDSHAKE)
    assert isinstance(receiver.next(), ClientReady)
    assert receiver.next() is None
    part = b"\x03" + struct.pack(">Q", MESSAGE_BYTES_MAX // 2) + bytes(MESSAGE_BYTES_MAX // 2)
    for _ in range(2):
        receiver.feed(part)
        assert receiver.next() is None
    assert receiver.unfinished_bytes == MESSAGE_BYTES_MAX
    receiver.feed(b"\x00\x01x")
    with pytest.raises(ZmtpError, match="more than 4194304"):
        receiver.next()


def test_a_message_that_comes_byte_by_byte_takes_no_more_room_than_its_bytes() -> None:
    receiver = Receiver()
    receiver.feed(HANDSHAKE)
    assert isinstance(receiver.next(), ClientReady)
    assert receiver.next() is None
    receiver.feed(b"\x02" + struct.pack(">Q", 100_000))
    assert receiver.next() is None
    for number in range(50_000):
        receiver.feed(b"x")
        assert receiver.next() is None
        assert receiver.missing_bytes == 99_999 - number
    assert len(receiver._held) == 50_009
    assert not receiver.is_between_messages
    receiver.feed(b"x" * 50_000)
    assert receiver.next() == [b"x" * 100_000]
    assert receiver.is_between_messages
    assert receiver.unfinished_bytes == 0
