"""Claims about frames: how they are made, and how a stream of bytes is cut into messages."""

from __future__ import annotations

import random
import struct

import pytest

from cluster.wire.frames import FrameReader, framed
from cluster.wire.messages import (
    FRAME_BYTES_MAX,
    HELLO_BYTES_MAX,
    AppendEntries,
    Message,
    MessageError,
    ReadIndex,
    Relay,
)

READ_INDEX = framed(ReadIndex(1, 2))


def drain(reader: FrameReader) -> list[Message]:
    found = []
    while (message := reader.next()) is not None:
        found.append(message)
    return found


def test_messages_come_out_whatever_the_cuts_in_the_stream() -> None:
    seed = 4
    rng = random.Random(seed)
    said: list[Message] = [
        AppendEntries(1, 0, i, 1, [(b"\0" + rng.randbytes(i), i + 1, 1)]) for i in range(200)
    ]
    stream, heard, reader = b"".join(map(framed, said)), [], FrameReader(FRAME_BYTES_MAX)
    at = 0
    while at < len(stream):
        size = rng.choice((1, 7, 8, 9, 60, 1000))
        reader.feed(stream[at : at + size])
        at += size
        heard += drain(reader)
    assert heard == said, seed
    assert reader.buffered_bytes == 0


def test_message_is_not_out_before_its_last_byte() -> None:
    reader = FrameReader(FRAME_BYTES_MAX)
    for byte in READ_INDEX[:-1]:
        reader.feed(bytes((byte,)))
        assert not reader.has_frame()
        assert reader.next() is None
    reader.feed(READ_INDEX[-1:])
    assert reader.has_frame()
    assert reader.next() == ReadIndex(1, 2)


def test_every_flipped_bit_is_caught() -> None:
    for bit in range(len(READ_INDEX) * 8):
        damaged = bytearray(READ_INDEX)
        damaged[bit // 8] ^= 1 << bit % 8
        reader = FrameReader(len(READ_INDEX))
        reader.feed(damaged + READ_INDEX)
        with pytest.raises(MessageError):
            reader.next()


@pytest.mark.parametrize("limit", [HELLO_BYTES_MAX, FRAME_BYTES_MAX])
def test_oversize_frame_is_refused_by_its_length_alone(limit: int) -> None:
    reader = FrameReader(limit)
    reader.feed(struct.pack("<II", limit - 8 + 1, 0))
    assert reader.has_frame()
    with pytest.raises(MessageError, match=f"frame of {limit + 1} bytes"):
        reader.next()


def test_empty_frame_is_refused() -> None:
    reader = FrameReader(FRAME_BYTES_MAX)
    reader.feed(bytes(8))
    with pytest.raises(MessageError, match="frame of 8 bytes"):
        reader.next()


def test_frame_over_the_limit_is_never_made() -> None:
    with pytest.raises(AssertionError):
        framed(Relay(1, [bytes(FRAME_BYTES_MAX)]))
