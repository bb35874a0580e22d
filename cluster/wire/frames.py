"""Cuts the bytes of a connection into messages.

What lives here: `FrameReader`. What must not: sockets, and what a frame holds (messages.py).
"""

from __future__ import annotations

from zlib import crc32

from cluster.wire.messages import FRAME_HEAD, Message, MessageError, decode


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
        if self.buffered_bytes < FRAME_HEAD.size:
            return False
        size, _ = FRAME_HEAD.unpack_from(self._buffer, self._start)
        total: int = FRAME_HEAD.size + size
        return total > self.frame_bytes_max or self.buffered_bytes >= total

    def peek(self, size_bytes: int) -> bytes:
        """Return up to `size_bytes` of the next frame's type and body, as they came: unchecked."""
        begin = self._start + FRAME_HEAD.size
        return bytes(self._buffer[begin : begin + size_bytes])

    def next(self) -> Message | None:
        """Return the next message, None until its frame is whole. Raises MessageError; then stop.

        A frame over the limit is refused by its length alone, before its bytes are waited for.
        """
        if self.buffered_bytes < FRAME_HEAD.size:
            return None
        size, crc = FRAME_HEAD.unpack_from(self._buffer, self._start)
        total = FRAME_HEAD.size + size
        if size < 1 or total > self.frame_bytes_max:
            raise MessageError(f"frame of {total} bytes; the limit is {self.frame_bytes_max}")
        if self.buffered_bytes < total:
            return None
        begin, end = self._start + FRAME_HEAD.size, self._start + total
        with memoryview(self._buffer) as view, view[begin:end] as payload:
            if crc32(payload) != crc:
                raise MessageError(f"checksum of a frame of {total} bytes is wrong")
            message = decode(payload)
        self._start = end
        return message
