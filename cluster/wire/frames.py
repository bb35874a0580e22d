"""Messages as the bytes of a connection, which are cut into messages again.

What lives here: `framed` and `FrameReader`. What must not: sockets, and what a frame holds
(messages.py).

A frame is `length u32 | crc32 u32 | message`, little-endian; length and CRC cover the message.
"""

from __future__ import annotations

import struct
from typing import Final
from zlib import crc32

from cluster.wire.messages import (
    FRAME_BYTES_MAX,
    UNSAID,
    Hello,
    Message,
    MessageError,
    decode,
    encode,
)

HEAD: Final = struct.Struct("<II")  # length, crc32


def framed(message: Message) -> bytes:
    """Return the frame of a message, for a Hello with an extension both frames."""
    if isinstance(message, Hello) and message.extension != UNSAID:
        return _framed(message) + _framed(message.extension)
    return _framed(message)


def _framed(message: Message) -> bytes:
    pieces = encode(message)
    crc = size = 0
    for piece in pieces:  # one pass here and one copy below beat a join and a second copy
        crc = crc32(piece, crc)
        size += len(piece)
    assert size + HEAD.size <= FRAME_BYTES_MAX, (type(message).__name__, size)
    return b"".join((HEAD.pack(size, crc), *pieces))


class FrameReader:
    """Cuts a stream of bytes into messages.

    `frame_bytes_max` bounds a frame. The caller bounds what it feeds by `buffered_bytes`: a whole
    frame has to fit.
    """

    def __init__(self, frame_bytes_max: int) -> None:
        self.frame_bytes_max = frame_bytes_max
        self._buffer = bytearray()
        self._start = 0

    def allow(self, frame_bytes_max: int) -> None:
        """Take larger frames from now on: the other side is known."""
        self.frame_bytes_max = frame_bytes_max

    @property
    def buffered_bytes(self) -> int:
        """Return how many bytes wait here."""
        return len(self._buffer) - self._start

    def feed(self, data: memoryview | bytes) -> None:
        """Add bytes at the end of the stream."""
        if self._start:  # once a feed, not once a message: a burst of small ones stays linear
            del self._buffer[: self._start]
            self._start = 0
        self._buffer += data

    def has_frame(self) -> bool:
        """Return whether `next` has something to say: a whole frame, or an error."""
        if self.buffered_bytes < HEAD.size:
            return False
        size, _ = HEAD.unpack_from(self._buffer, self._start)
        total: int = HEAD.size + size
        return total > self.frame_bytes_max or self.buffered_bytes >= total

    def peek(self, size_bytes: int) -> bytes:
        """Return up to `size_bytes` of the next frame's type and body, as they came: unchecked."""
        begin = self._start + HEAD.size
        return bytes(self._buffer[begin : begin + size_bytes])

    def next(self) -> Message | None:
        """Return the next message, None until its frame is whole. Raises MessageError; then stop.

        A frame over the limit is refused by its length alone, before its bytes are waited for.
        """
        if self.buffered_bytes < HEAD.size:
            return None
        size, crc = HEAD.unpack_from(self._buffer, self._start)
        total = HEAD.size + size
        if size < 1 or total > self.frame_bytes_max:
            raise MessageError(f"frame of {total} bytes; the limit is {self.frame_bytes_max}")
        if self.buffered_bytes < total:
            return None
        begin, end = self._start + HEAD.size, self._start + total
        with memoryview(self._buffer) as view, view[begin:end] as payload:
            if crc32(payload) != crc:
                raise MessageError(f"checksum of a frame of {total} bytes is wrong")
            message = decode(payload)
        self._start = end
        return message
