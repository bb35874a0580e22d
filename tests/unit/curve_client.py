"""CurveZMQ's client side, step by step, for tests that stop or lie in the middle. No tests here."""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass

from nacl.bindings import crypto_box, crypto_box_keypair, crypto_box_open

from cluster.keys.curve import KeyPair

GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x01" + b"CURVE".ljust(20, b"\0") + bytes(32)
METADATA = b"\x0bSocket-Type" + struct.pack(">I", 6) + b"DEALER"


def pair() -> KeyPair:
    public, secret = crypto_box_keypair()
    return KeyPair(public, secret)


def command(body: bytes) -> bytes:
    if len(body) > 255:
        return b"\x06" + struct.pack(">Q", len(body)) + body
    return bytes((4, len(body))) + body


@dataclass
class CurveClient:
    """One connection's client: `hello()`, `welcome(body)`, `initiate()`, `message(…)`."""

    key: KeyPair
    server: bytes

    def __post_init__(self) -> None:
        self.short = pair()
        self.number = 0
        self.short_server = self.cookie = b""

    def nonce(self, prefix: bytes) -> bytes:
        self.number += 1
        return prefix + struct.pack(">Q", self.number)

    def hello(self) -> bytes:
        nonce = self.nonce(b"CurveZMQHELLO---")
        box = crypto_box(bytes(64), nonce, self.server, self.short.secret)
        return b"\x05HELLO\x01\x00" + bytes(72) + self.short.public + nonce[16:] + box

    def welcome(self, body: bytes) -> None:
        assert body.startswith(b"\x07WELCOME"), body
        assert len(body) == 168
        nonce = b"WELCOME-" + body[8:24]
        content = crypto_box_open(body[24:], nonce, self.server, self.short.secret)
        self.short_server, self.cookie = content[:32], content[32:]

    def vouch(self) -> bytes:
        nonce = os.urandom(16)
        content = self.short.public + self.server
        return nonce + crypto_box(content, b"VOUCH---" + nonce, self.short_server, self.key.secret)

    def initiate(self, vouch: bytes | None = None, metadata: bytes = METADATA) -> bytes:
        nonce = self.nonce(b"CurveZMQINITIATE")
        content = self.key.public + (self.vouch() if vouch is None else vouch) + metadata
        box = crypto_box(content, nonce, self.short_server, self.short.secret)
        return b"\x08INITIATE" + self.cookie + nonce[16:] + box

    def ready(self, body: bytes) -> bytes:
        assert body.startswith(b"\x05READY"), body
        nonce = b"CurveZMQREADY---" + body[6:14]
        return crypto_box_open(body[14:], nonce, self.short_server, self.short.secret)

    def message(self, flags: int, content: bytes) -> bytes:
        nonce = self.nonce(b"CurveZMQMESSAGEC")
        box = crypto_box(bytes((flags,)) + content, nonce, self.short_server, self.short.secret)
        return b"\x07MESSAGE" + nonce[16:] + box

    def read(self, body: bytes) -> tuple[int, bytes]:
        assert body.startswith(b"\x07MESSAGE"), body
        nonce = b"CurveZMQMESSAGES" + body[8:16]
        opened = crypto_box_open(body[16:], nonce, self.short_server, self.short.secret)
        return opened[0], opened[1:]
