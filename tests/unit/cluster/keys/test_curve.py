"""CurveZMQ as a node speaks it: who has no proof gets no answer, however he tries."""

from __future__ import annotations

import os
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nacl.bindings import crypto_box_beforenm, crypto_box_easy_afternm

from cluster.keys import boxes
from cluster.keys.curve import HELLO_BYTES, CurveSession, Handshake, Keyring
from cluster.serve import zmtp
from cluster.serve.zmtp import (
    COMMAND_BYTES_MAX,
    MESSAGE_BYTES_MAX,
    PARTS_MAX,
    ClientReady,
    Ignored,
    Ping,
    Receiver,
    Say,
    ZmtpError,
    encode,
)
from tests.unit.curve_client import GREETING, METADATA, CurveClient, command, pair

SERVER, OLD_SERVER, ORDERS, STRANGER = pair(), pair(), pair(), pair()
KEYRING = Keyring((SERVER, OLD_SERVER), {ORDERS.public: "orders"})


def frame(body: bytes, flags: int = 0) -> bytes:
    if len(body) > 255:
        return bytes((flags | 2,)) + struct.pack(">Q", len(body)) + body
    return bytes((flags, len(body))) + body


@given(st.binary(max_size=300), st.binary(min_size=24, max_size=24))
def test_boxes_are_those_of_pynacls_public_functions(content: bytes, nonce: bytes) -> None:
    shared = crypto_box_beforenm(ORDERS.public, SERVER.secret)
    box = boxes.seal(content, nonce, shared)
    assert box == crypto_box_easy_afternm(content, nonce, shared)
    assert boxes.opened(box, nonce, shared) == content
    assert boxes.opened(box[:-1] + bytes((box[-1] ^ 1,)), nonce, shared) is None
    assert boxes.opened(box[: len(box) % boxes.BOX_BYTES], nonce, shared) is None


def test_a_box_longer_than_the_room_for_short_ones_is_one_too() -> None:
    shared = crypto_box_beforenm(ORDERS.public, SERVER.secret)
    for size in (boxes.ROOM_BYTES - 16, boxes.ROOM_BYTES - 15, boxes.ROOM_BYTES + 1):
        content = os.urandom(size)
        box = boxes.seal(content, bytes(24), shared)
        assert box == crypto_box_easy_afternm(content, bytes(24), shared)
        assert boxes.opened(box, bytes(24), shared) == content


class NodeEnd:
    """A node's end of one connection."""

    def __init__(self, keyring: Keyring = KEYRING) -> None:
        self.keyring = keyring
        self.receiver = Receiver(Handshake(lambda: self.keyring, os.urandom))
        self.say(GREETING)

    def say(self, data: bytes) -> list[Any]:
        self.receiver.feed(data)
        events = []
        while (event := self.receiver.next()) is not None:
            events.append(event)
        return events

    @property
    def session(self) -> CurveSession:
        assert self.receiver.session is not None
        return self.receiver.session


def greeted(client: CurveClient, node: NodeEnd) -> CurveClient:
    (said,) = node.say(command(client.hello()))
    assert isinstance(said, Say)
    client.welcome(said.data[2:])
    return client


def admitted(node: NodeEnd, server: bytes = SERVER.public) -> CurveClient:
    client = greeted(CurveClient(ORDERS, server), node)
    (ready,) = node.say(command(client.initiate()))
    assert isinstance(ready, ClientReady)
    assert b"ROUTER" in client.ready(ready.reply[2:])
    return client


def said_by(node: NodeEnd, data: bytes) -> str:
    with pytest.raises(ZmtpError) as caught:
        node.say(data)
    return str(caught.value)


def test_a_client_with_a_key_is_let_in_and_both_ways_are_in_boxes() -> None:
    node = NodeEnd()
    client = admitted(node)
    assert node.session.name == "orders"
    parts = [b"", b"x" * 255, b"y" * 100_000, b""]
    flags = [1, 1, 1, 0]
    said = [frame(client.message(*each)) for each in zip(flags, parts, strict=True)]
    assert node.say(b"".join(said)) == [parts]
    ping = client.message(2, b"\x04PING\0\0who?")
    assert node.say(frame(ping)) == [Ping(b"who?")]
    assert node.receiver.unfinished_bytes == 0
    told = encode([b"", b"answer"], node.session)
    assert client.read(told[2:][: told[1]]) == (1, b"")
    assert client.read(told[2 + told[1] :][2:]) == (0, b"answer")
    assert client.read(zmtp.ping(b"c", node.session)[2:]) == (2, b"\x04PING\0\0c")
    assert client.read(zmtp.pong(b"c", node.session)[2:]) == (2, b"\x04PONGc")
    assert b"answer" not in told


def test_a_message_may_be_a_command_as_the_rfc_has_it() -> None:
    node = NodeEnd()
    client = admitted(node)
    assert node.say(frame(client.message(0, b"a"), flags=4)) == [[b"a"]]
    assert node.say(frame(client.message(2, b"\x06FUTURE?"), flags=4)) == [Ignored()]


def test_the_servers_older_key_is_good_while_there_are_two() -> None:
    node = NodeEnd()
    admitted(node, OLD_SERVER.public)
    assert node.session.server == OLD_SERVER.public
    late = NodeEnd()
    client = greeted(CurveClient(ORDERS, OLD_SERVER.public), late)
    late.keyring = Keyring((SERVER,), KEYRING.clients)
    assert said_by(late, command(client.initiate())) == "has a key that is not known here"


def test_an_unknown_key_is_refused_and_so_is_one_that_was_revoked_meanwhile() -> None:
    node = NodeEnd()
    client = greeted(CurveClient(STRANGER, SERVER.public), node)
    assert "not known" in said_by(node, command(client.initiate()))
    node = NodeEnd()
    client = greeted(CurveClient(ORDERS, SERVER.public), node)
    node.keyring = Keyring((SERVER,), {})
    assert "not known" in said_by(node, command(client.initiate()))
    assert node.receiver.session is None


def test_a_known_public_key_without_its_secret_is_refused() -> None:
    node = NodeEnd()
    client = greeted(CurveClient(STRANGER, SERVER.public), node)
    client.key = type(ORDERS)(ORDERS.public, STRANGER.secret)
    assert "no proof" in said_by(node, command(client.initiate()))


def test_another_connections_proof_is_refused() -> None:
    """A vouch that the real client made for its own connection proves nothing for another."""
    node, other = NodeEnd(), NodeEnd()
    real = greeted(CurveClient(ORDERS, SERVER.public), node)
    thief = greeted(CurveClient(ORDERS, SERVER.public), other)
    vouch = real.vouch()
    assert "no proof" in said_by(other, command(thief.initiate(vouch=vouch)))
    node = NodeEnd()
    thief = greeted(CurveClient(ORDERS, SERVER.public), node)
    short, thief.short = thief.short, pair()
    foreign = thief.vouch()  # vouches for another C'
    thief.short = short
    assert "another connection's" in said_by(node, command(thief.initiate(vouch=foreign)))


def test_recorded_bytes_of_a_handshake_are_worth_nothing_on_another_connection() -> None:
    node = NodeEnd()
    client = CurveClient(ORDERS, SERVER.public)
    hello = command(client.hello())
    (said,) = node.say(hello)
    client.welcome(said.data[2:])
    initiate = command(client.initiate())
    node.say(initiate)
    late = NodeEnd()
    assert isinstance(late.say(hello)[0], Say)
    assert "of another connection" in said_by(late, initiate)


def test_each_number_counts_once() -> None:
    node = NodeEnd()
    client = admitted(node)
    first, second = (frame(client.message(0, each)) for each in (b"1", b"2"))
    assert node.say(second) == [[b"2"]]
    assert "again, or out of order" in said_by(node, second)
    node = NodeEnd()
    admitted(node)
    assert "does not open" in said_by(node, first)  # of another connection
    node = NodeEnd()
    client = greeted(CurveClient(ORDERS, SERVER.public), node)
    client.number = 0
    assert "again, or out of order" in said_by(node, command(client.initiate()))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda body: body[:-1], "something else than a HELLO"),
        (lambda body: body + b"\0", "something else than a HELLO"),
        (lambda body: body.replace(b"HELLO\x01", b"HELLO\x02"), "something else than a HELLO"),
        (lambda body: body[:10] + b"\1" + body[11:], "something else than a HELLO"),
        (lambda body: body[:-1] + bytes((body[-1] ^ 1,)), "another server's key"),
        (lambda body: body[:80] + bytes(32) + body[112:], "has a key that is none"),
        (lambda body: b"\x05READY" + METADATA, "did not begin with HELLO"),
    ],
)
def test_a_hello_is_exact(change: Any, reason: str) -> None:
    hello = CurveClient(ORDERS, SERVER.public).hello()
    assert len(hello) == HELLO_BYTES
    assert reason in said_by(NodeEnd(), command(change(hello)))


def test_a_handshake_has_its_order_and_its_bounds() -> None:
    node = NodeEnd()
    client = greeted(CurveClient(ORDERS, SERVER.public), node)
    assert said_by(node, command(client.hello())) == "said HELLO twice"
    assert "before READY" in said_by(NodeEnd(), encode([b"early"]))
    assert "a command of" in said_by(NodeEnd(), b"\x06" + struct.pack(">Q", COMMAND_BYTES_MAX + 1))
    node = NodeEnd()
    client = greeted(CurveClient(ORDERS, SERVER.public), node)
    assert "else than INITIATE" in said_by(node, command(client.initiate(b"", b"")[:256]))
    node = NodeEnd()
    client = greeted(CurveClient(ORDERS, SERVER.public), node)
    assert "is a b'SUB' socket" in said_by(
        node, command(client.initiate(metadata=METADATA[:12] + struct.pack(">I", 3) + b"SUB"))
    )


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (zmtp.greeting(), "mechanism b'NULL'; this node has CURVE"),
        (GREETING[:32] + b"\1" + GREETING[33:], "is the server"),
        (GREETING[:12] + b"PLAIN".ljust(20, b"\0") + bytes(32), "mechanism b'PLAIN'"),
    ],
)
def test_a_client_without_curve_is_refused_at_its_greeting(said: bytes, reason: str) -> None:
    receiver = Receiver(Handshake(lambda: KEYRING, os.urandom))
    receiver.feed(said)
    with pytest.raises(ZmtpError, match=reason):
        receiver.next()


def test_a_greeting_by_curve_tells_nothing_of_the_node() -> None:
    assert len(zmtp.greeting(curve=True)) == 64
    assert b"ROUTER" not in zmtp.greeting(curve=True)


def test_what_is_in_boxes_has_the_bounds_of_what_is_not() -> None:
    node = NodeEnd()
    client = admitted(node)
    whole = bytes(MESSAGE_BYTES_MAX)
    assert node.say(frame(client.message(0, whole))) == [[whole]]
    assert "more than 4194304" in said_by(node, frame(client.message(0, whole + b"x")))
    node = NodeEnd()
    client = admitted(node)
    parts = b"".join(frame(client.message(1, b"")) for _ in range(PARTS_MAX))
    assert "more than 8 parts" in said_by(node, parts)
    node = NodeEnd()
    client = admitted(node)
    assert "a command of" in said_by(node, frame(client.message(2, bytes(COMMAND_BYTES_MAX + 1))))
    node = NodeEnd()
    client = admitted(node)
    assert "flags 0x4" in said_by(node, frame(client.message(4, b"")))
    node = NodeEnd()
    client = admitted(node)
    assert "no MESSAGE" in said_by(node, frame(b"in the clear, after the handshake"))


@given(st.binary(max_size=400), st.booleans())
def test_garbage_in_the_handshake_ends_it_or_waits_for_more(data: bytes, greeted_: bool) -> None:
    node = NodeEnd()
    if greeted_:
        greeted(CurveClient(ORDERS, SERVER.public), node)
    try:
        events = node.say(data)
    except ZmtpError:
        events = []
    assert events == []
    assert node.receiver.session is None


@given(st.integers(0, 200), st.integers(1, 255))
def test_a_changed_bit_of_a_message_opens_nothing(place: int, change: int) -> None:
    node = NodeEnd()
    client = admitted(node)
    said = bytearray(frame(client.message(0, b"x" * 180)))
    said[2 + place % (len(said) - 2)] ^= change
    with pytest.raises(ZmtpError):
        node.say(bytes(said))
