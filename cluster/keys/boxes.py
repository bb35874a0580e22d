"""The two calls of libsodium that every frame of a client by CURVE costs, without a copy too many.

What lives here: PyNaCl's private names, and nothing else that knows them. What must not: CurveZMQ.

PyNaCl's public functions take a new buffer from the heap for each call and put an error's text
together before they know whether there is one: 2 to 4 µs of a short frame's 3 to 5. What is sealed
or opened is the same, and so are the checks that matter: `tests/unit/cluster/keys/test_curve.py`
compares both.
"""

from __future__ import annotations

from typing import Any, Final

from nacl._sodium import ffi, lib

BOX_BYTES: Final = 16  # what a box is longer than what is in it
NONCE_BYTES: Final = 24
SHARED_BYTES: Final = 32
ROOM_BYTES: Final = 64 * 1024  # of short boxes, which are nearly all; longer ones get their own

_room: Final[Any] = ffi.new("unsigned char[]", ROOM_BYTES)  # of the one thread that has clients
_seal: Final[Any] = lib.crypto_box_easy_afternm
_open: Final[Any] = lib.crypto_box_open_easy_afternm
_buffer: Final[Any] = ffi.buffer


def seal(content: bytes, nonce: bytes, shared: bytes) -> bytes:
    """Return the box of a content, under what both ends have made of their keys."""
    assert (len(nonce), len(shared)) == (NONCE_BYTES, SHARED_BYTES), "libsodium reads as many"
    size = len(content) + BOX_BYTES
    room = _room if size <= ROOM_BYTES else ffi.new("unsigned char[]", size)
    code = _seal(room, content, size - BOX_BYTES, nonce, shared)
    assert code == 0, code
    sealed: bytes = _buffer(room, size)[:]
    return sealed


def opened(box: bytes, nonce: bytes, shared: bytes) -> bytes | None:
    """Return what is in a box, None for one that does not open."""
    assert (len(nonce), len(shared)) == (NONCE_BYTES, SHARED_BYTES), "libsodium reads as many"
    size = len(box) - BOX_BYTES
    if size < 0:
        return None
    room = _room if size <= ROOM_BYTES else ffi.new("unsigned char[]", size)
    if _open(room, box, size + BOX_BYTES, nonce, shared) != 0:
        return None
    content: bytes = _buffer(room, size)[:]
    return content
