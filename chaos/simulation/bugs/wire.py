"""Bugs in the connections between nodes: frames, buffers, silence, dials (docs/decisions/0002).

What must not live here: what finds them. They show in the seeds whose nodes talk in bytes.
"""

from __future__ import annotations

from itertools import islice
from typing import Final

from chaos.simulation.bugs.registry import Patches, bug
from cluster.frames import FrameReader
from cluster.links import GATHER_FRAMES_MAX, Connection, Dial
from cluster.peers import PeerPort

_end: Final = PeerPort._end
_feed: Final = FrameReader.feed
_sent: Final = Connection._sent


@bug("a frame that has begun is finished", {"torn"})
def urgent_frames_cut_in(patches: Patches) -> None:
    """Let what is urgent leave in the middle of a bulk frame."""

    def gathered(connection: Connection) -> list[bytes | memoryview]:
        frames: list[bytes | memoryview] = list(islice(connection.outbox, GATHER_FRAMES_MAX))
        return frames + list(islice(connection.bulk, GATHER_FRAMES_MAX - len(frames)))

    def sent(connection: Connection, size_bytes: int) -> None:
        connection.has_begun_bulk = False
        _sent(connection, size_bytes)

    patches.attribute(Connection, "_gathered", gathered)
    patches.attribute(Connection, "_sent", sent)


@bug("what a socket took in part goes on where that ended", {"torn"})
def cut_frames_begin_again(patches: Patches) -> None:
    """Send a frame anew of which a part has left."""

    def sent(connection: Connection, size_bytes: int) -> None:
        while connection.outbox and size_bytes >= len(connection.outbox[0]):
            head = connection.outbox.popleft()
            connection.outbox_bytes -= len(head)
            size_bytes -= len(head)
        if not connection.outbox:
            _sent(connection, size_bytes)

    patches.attribute(Connection, "_sent", sent)


@bug("a frame is complete when all of it has come", {"torn"})
def a_rest_of_a_frame_is_thrown_away(patches: Patches) -> None:
    """Forget what is left over when more comes."""

    def feed(reader: FrameReader, data: memoryview | bytes) -> None:
        if reader._start:
            reader._buffer.clear()
            reader._start = 0
        _feed(reader, data)

    patches.attribute(FrameReader, "feed", feed)


@bug("what came before a connection's end is received", {"torn"})
def messages_outlive_their_connection(patches: Patches) -> None:
    """Receive what an ended connection brought as if the next one had."""
    kept: dict[tuple[int, str], bytes] = {}
    admit = PeerPort._admit

    def end(port: PeerPort, connection: Connection) -> None:
        reader = connection.reader
        if reader.has_frame():
            kept[id(port), connection.name] = bytes(reader._buffer[reader._start :])
        _end(port, connection)

    def admit_with_rest(port: PeerPort, connection: Connection, hello: object) -> None:
        admit(port, connection, hello)  # type: ignore[arg-type]
        rest = kept.pop((id(port), connection.name), b"")
        if rest:
            connection.reader.feed(rest)

    patches.attribute(PeerPort, "_end", end)
    patches.attribute(PeerPort, "_admit", admit_with_rest)


@bug("a lost connection is dialed again", {"progress"}, mode="live")
def a_dial_that_failed_is_the_last(patches: Patches) -> None:
    """Give up on a peer that could not be reached ten times."""
    schedule = Dial.schedule

    def give_up(dial: Dial, now: float, random: object) -> None:
        schedule(dial, now, random)  # type: ignore[arg-type]
        if dial.attempts > 10:
            dial.due_at = float("inf")

    patches.attribute(Dial, "schedule", give_up)
