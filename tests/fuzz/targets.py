"""The targets: each takes any bytes and holds one reader of bytes to what it promises.

A target returns when its reader took the bytes or refused them with the error that its docstring
names. Whatever else comes out of it is a finding. What must not live here: the fuzzer (fuzzer.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

from cluster.log.journal import Journal
from cluster.log.segments import JournalError, Segment
from cluster.serve.zmtp import Receiver, ZmtpError
from cluster.store import commands
from cluster.store.commands import DamagedEntry
from cluster.wire import messages
from cluster.wire.frames import FrameReader
from cluster.wire.messages import MessageError
from flotilla_client import properties
from flotilla_client.protocol import (
    ProtocolError,
    decode_reply,
    decode_request,
    encode_reply,
    encode_request,
    request_id_of,
)
from tests.unit.memory_disk import MemoryDisk, MemoryFile, stop

INPUT_BYTES_MAX: Final = 4096  # the longest input that the fuzzer makes
PIECES_MAX: Final = 8  # into which a stream is cut
JOURNAL: Final = Path("/disk/journal")


def pieces(data: bytes) -> Iterator[bytes]:
    """Cut what follows the first byte into as many pieces as that byte says."""
    count = 1 + (data[0] % PIECES_MAX if data else 0)
    stream = data[1:]
    size = -(-len(stream) // count) or 1
    for start in range(0, len(stream), size):
        yield stream[start : start + size]


def frames_of(data: bytes) -> list[bytes]:
    """Cut into frames: a byte says how many 16ths of what is left the first has, and so on."""
    frames = []
    while data and len(frames) < PIECES_MAX:
        size = -(-(len(data) - 1) * (data[0] % 16 + 1) // 16)
        frames.append(data[1 : 1 + size])
        data = data[1 + size :]
    return frames


def peer_stream(data: bytes) -> None:
    """A node's connection: cut anywhere, it gives the same messages and the same refusal."""
    found = []
    for cut in ([data[1:]], list(pieces(data))):
        reader, said = FrameReader(INPUT_BYTES_MAX), list[object]()
        try:
            for piece in cut:
                reader.feed(piece)
                while (message := reader.next()) is not None:
                    said.append(message)
        except MessageError as error:
            said.append(str(error))
        found.append(said)
    assert found[0] == found[1], "how a stream is cut changes what it says"


def peer_message(data: bytes) -> None:
    """A message of a node: MessageError, or what is encoded to a message that says the same."""
    if not data:
        return  # a frame has a byte at least
    try:
        message = messages.decode(memoryview(data))
    except MessageError:
        return
    again = memoryview(b"".join(messages.encode(message)))
    assert messages.decode(again) == message, message


def client_stream(data: bytes) -> None:
    """A client's connection: cut anywhere, it gives the same events and the same refusal."""
    found = []
    for cut in ([data[1:]], list(pieces(data))):
        receiver, said = Receiver(), list[object]()
        try:
            for piece in cut:
                receiver.feed(piece)
                while (event := receiver.next()) is not None:
                    said.append(event)
        except ZmtpError as error:
            said.append(str(error))
        found.append(said)
    assert found[0] == found[1], "how a stream is cut changes what it says"


def request(data: bytes) -> None:
    """A request: ProtocolError, or what is encoded to a request that is taken the same."""
    frames = frames_of(data)
    request_id_of(frames)
    try:
        taken = decode_request(frames)
    except ProtocolError:
        return
    assert decode_request(encode_request(taken)) == taken, taken


def reply(data: bytes) -> None:
    """A node's reply: ProtocolError, or what is encoded to a reply that is taken the same."""
    try:
        taken = decode_reply(frames_of(data))
    except ProtocolError:
        return
    assert decode_reply(encode_reply(taken)) == taken, taken


def publication(data: bytes) -> None:
    """Properties of a publication: ProtocolError, or what is encoded to the same properties."""
    try:
        found, end = properties.decode(data)
    except ProtocolError:
        return
    assert 0 < end <= len(data)
    assert properties.decode(properties.encode(found, were_read=True))[0] == found, found


def entry(data: bytes) -> None:
    """An entry of the log: DamagedEntry, or what is encoded to an entry that says the same."""
    try:
        stamp, operations = commands.decode(data)
    except DamagedEntry:
        return
    again = commands.encode(stamp.ms, operations, stamp.wall_ms)
    assert commands.decode(again) == (stamp, operations), operations


def journal(data: bytes) -> None:
    """A segment: JournalError, or a journal that is the same when it is opened again.

    With an even first byte the rest is the file as it stands, behind the header. With an odd one it
    is records, whose checksums are made right: kind, size, and that much.
    """
    if not data:
        return
    segment = Segment(JOURNAL, 0, 0)
    body = bytearray(data[1:])
    if data[0] % 2:
        body, left = bytearray(), data[1:]
        while len(left) > 1:
            segment.encode(body, left[0], len(segment.header), left[2 : 2 + left[1]], b"")
            left = left[2 + left[1] :]
    disk = MemoryDisk({segment.path: MemoryFile(bytearray(segment.header + body))})
    found = []
    for _ in range(2):
        try:
            opened = Journal.open(JOURNAL, files=disk, on_failure=stop)
            count = opened.last_index - opened.first_index + 1
            entries = opened.entries(opened.first_index, count)
        except JournalError:
            return
        found.append((opened.term, opened.vote, entries))
    assert found[0] == found[1], "a journal that was opened is another one afterwards"


Target = Callable[[bytes], None]

TARGETS: Final[Mapping[str, Target]] = {
    target.__name__: target
    for target in (
        peer_stream,
        peer_message,
        client_stream,
        request,
        reply,
        publication,
        entry,
        journal,
    )
}
