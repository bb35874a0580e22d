"""CurveZMQ as a node speaks it: the handshake that proves who a client is, and the boxes behind it.

What lives here: HELLO, WELCOME, INITIATE and READY of RFC 26 (rfc.zeromq.org), and what MESSAGE
carries. What must not: frames (zmtp.py), sockets, clocks, random numbers: the bytes of new keys are
an argument. The curve and the ciphers are libsodium's, by PyNaCl (docs/decisions/0012-keys.md).

Names are the RFC's: C and S are the long-term keys of client and server, C' and S' those of one
connection (`short_` here). Every box that does not open ends the connection, without an answer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from hmac import compare_digest
from typing import Final

from nacl.bindings import crypto_box_beforenm, crypto_scalarmult_base
from nacl.exceptions import CryptoError

from cluster.keys.boxes import BOX_BYTES, opened, seal

KEY_BYTES: Final = 32
HELLO_BYTES: Final = 200
INITIATE_BYTES_MIN: Final = 257  # without metadata
MESSAGE_OVERHEAD_BYTES: Final = 33  # the command's name, the nonce, the box and the flags

_HELLO: Final = b"\x05HELLO\x01\x00" + bytes(72)  # version 1.0, and as much as WELCOME is long
_WELCOME: Final = b"\x07WELCOME"
_INITIATE: Final = b"\x08INITIATE"
_READY: Final = b"\x05READY"
_MESSAGE: Final = b"\x07MESSAGE"
_FLAGS: Final = (b"\x00", b"\x01", b"\x02")
_COOKIE_BYTES: Final = 96
_LONG_NONCE_BYTES: Final = 16
_NONCE_BYTES: Final = 8
_NONCE_START: Final = len(_MESSAGE)
_MESSAGE_HEAD_BYTES: Final = _NONCE_START + _NONCE_BYTES
_VOUCH_BYTES: Final = _LONG_NONCE_BYTES + 2 * KEY_BYTES + BOX_BYTES


class CurveError(Exception):
    """The peer does not prove what it has to; the connection ends. The text is for our own log."""


@dataclass(frozen=True, slots=True)
class KeyPair:
    """A long-term key of the servers."""

    public: bytes
    secret: bytes = field(repr=False)

    def __post_init__(self) -> None:
        assert len(self.public) == len(self.secret) == KEY_BYTES


@dataclass(frozen=True, slots=True)
class Keyring:
    """Who may come: `servers`, the keys by which clients may know us, the newest first; `clients`,
    the public key of each client and whose it is. While a key is changed there are two of it.
    """

    servers: tuple[KeyPair, ...]
    clients: Mapping[bytes, str]


@dataclass(frozen=True, slots=True)
class Admitted:
    """A client has proved that it has the secret of `public`; `ready` is to be sent to it."""

    ready: bytes
    metadata: bytes
    session: CurveSession


class CurveSession:
    """The boxes of one connection, behind its handshake. Both ways count their messages."""

    def __init__(self, shared: bytes, heard: int, name: str, client: bytes, server: bytes) -> None:
        self.name, self.client, self.server = name, client, server
        self._shared, self._heard, self._said = shared, heard, 0

    def open(self, body: bytes) -> tuple[int, bytes]:
        """Return flags and content of a MESSAGE. Raises CurveError."""
        if len(body) <= _MESSAGE_HEAD_BYTES + BOX_BYTES or not body.startswith(_MESSAGE):
            raise CurveError("sent a frame that is no MESSAGE")
        nonce = body[_NONCE_START:_MESSAGE_HEAD_BYTES]
        number = int.from_bytes(nonce, "big")
        if number <= self._heard:
            raise CurveError("sent a MESSAGE again, or out of order")
        content = opened(body[_MESSAGE_HEAD_BYTES:], b"CurveZMQMESSAGEC" + nonce, self._shared)
        if content is None:
            raise CurveError("sent a MESSAGE that does not open")
        self._heard = number
        return content[0], content[1:]

    def message(self, flags: int, content: bytes) -> bytes:
        """Return the body of a MESSAGE."""
        nonce = self._next()
        box = seal(_FLAGS[flags] + content, b"CurveZMQMESSAGES" + nonce, self._shared)
        return b"".join((_MESSAGE, nonce, box))

    def ready(self, metadata: bytes) -> bytes:
        """Return the body of READY."""
        nonce = self._next()
        box = seal(metadata, b"CurveZMQREADY---" + nonce, self._shared)
        return _READY + nonce + box

    def _next(self) -> bytes:
        self._said += 1
        return self._said.to_bytes(_NONCE_BYTES, "big")


class Handshake:
    """The server's part of one connection's handshake: `hello`, then `initiate`.

    `keyring()` returns who may come now. Nothing that a client sends makes it hold more than what
    stands here.
    """

    def __init__(
        self, keyring: Callable[[], Keyring], random_bytes: Callable[[int], bytes]
    ) -> None:
        self._keyring, self._random_bytes = keyring, random_bytes
        self._heard = -1  # the last short nonce; libzmq begins with 1, the RFC says nothing
        self._server: KeyPair | None = None
        self._short_secret = self._cookie = self._short_client = b""

    def hello(self, body: bytes) -> bytes:
        """Return WELCOME, the answer to a HELLO. Raises CurveError."""
        if self._server is not None:
            raise CurveError("said HELLO twice")
        if len(body) != HELLO_BYTES or not body.startswith(_HELLO):
            raise CurveError("said something else than a HELLO of CurveZMQ 1.0")
        self._short_client, nonce, box = body[80:112], body[112:120], body[120:]
        self._heard = int.from_bytes(nonce, "big")
        server, shared = self._server_meant(b"CurveZMQHELLO---" + nonce, box)
        self._server = server
        self._short_secret = self._random_bytes(KEY_BYTES)
        # The cookie is opaque to the client, who gives it back. The connection holds our part of
        # the handshake meanwhile, so random bytes do what the RFC's sealed ones do for a server
        # that holds nothing: an INITIATE belongs to this connection alone.
        self._cookie = self._random_bytes(_COOKIE_BYTES)
        long_nonce = self._random_bytes(_LONG_NONCE_BYTES)
        content = crypto_scalarmult_base(self._short_secret) + self._cookie
        return _WELCOME + long_nonce + seal(content, b"WELCOME-" + long_nonce, shared)

    def _server_meant(self, nonce: bytes, box: bytes) -> tuple[KeyPair, bytes]:
        """Return the key of ours that the client knows, and what both make of it and C'."""
        for server in self._keyring().servers:
            shared = _shared(self._short_client, server.secret)
            content = opened(box, nonce, shared)
            if content is not None and compare_digest(content, bytes(64)):
                return server, shared
        raise CurveError("asked for another server's key")

    def initiate(self, body: bytes, metadata: bytes) -> Admitted:
        """Let in who says INITIATE if its key is known; `metadata` is ours. Raises CurveError."""
        if self._server is None:
            raise CurveError("did not begin with HELLO")
        if len(body) < INITIATE_BYTES_MIN or not body.startswith(_INITIATE):
            raise CurveError("said something else than INITIATE")
        cookie, nonce, box = body[9:105], body[105:113], body[113:]
        if not compare_digest(cookie, self._cookie):
            raise CurveError("said an INITIATE of another connection")
        number = int.from_bytes(nonce, "big")
        if number <= self._heard:
            raise CurveError("said INITIATE again, or out of order")
        shared = _shared(self._short_client, self._short_secret)
        content = opened(box, b"CurveZMQINITIATE" + nonce, shared)
        if content is None:
            raise CurveError("said an INITIATE that does not open")
        client, vouch = content[:KEY_BYTES], content[KEY_BYTES : KEY_BYTES + _VOUCH_BYTES]
        self._check_vouch(client, vouch)
        keyring = self._keyring()
        name = keyring.clients.get(client)
        if name is None or self._server not in keyring.servers:
            raise CurveError("has a key that is not known here")
        session = CurveSession(shared, number, name, client, self._server.public)
        return Admitted(session.ready(metadata), content[KEY_BYTES + _VOUCH_BYTES :], session)

    def _check_vouch(self, client: bytes, vouch: bytes) -> None:
        """See that C itself says that C' is its own, to S: only who has its secret can."""
        assert self._server is not None, "no HELLO"
        nonce, box = vouch[:_LONG_NONCE_BYTES], vouch[_LONG_NONCE_BYTES:]
        shared = _shared(client, self._short_secret)
        vouched = opened(box, b"VOUCH---" + nonce, shared)
        if vouched is None:
            raise CurveError("has no proof of its key")
        if not compare_digest(vouched, self._short_client + self._server.public):
            raise CurveError("has another connection's proof of its key")


def _shared(public: bytes, secret: bytes) -> bytes:
    """Return what both ends make of their keys. Raises CurveError for a point of low order."""
    try:
        return crypto_box_beforenm(public, secret)
    except CryptoError:
        raise CurveError("has a key that is none") from None
