"""Bugs in connections, between nodes and to clients: frames, buffers, silence, dials, replies.

What must not live here: what finds them. They show in the seeds whose nodes talk in bytes.
"""

from __future__ import annotations

from itertools import islice
from typing import Final

from chaos.simulation.bugs.registry import SEEDS_RARE_MAX, Patches, bug
from cluster.members.links import GATHER_FRAMES_MAX, Connection, Dial
from cluster.members.peers import PeerPort
from cluster.serve.client_port import ClientPort, Replies
from cluster.serve.zmtp import Receiver
from cluster.wire.frames import FrameReader

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


@bug("what came before a connection's end is received", {"torn"}, SEEDS_RARE_MAX)
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


@bug("a reply goes the way that its request came", {"answered", "ended", "unexpected"})
def replies_go_another_way(patches: Patches) -> None:
    """Send a reply to the client before, one time in sixteen, when both wait for one."""
    send = ClientPort.send
    sent = iter(range(1 << 62))

    def misdirect(port: ClientPort, replies: Replies) -> None:
        given = []
        for route, frames in replies:
            others = [r for r, client in port._routes.items() if client.requests and r != route]
            is_due = others and next(sent) % 16 == 0
            given.append((others[0] if is_due else route, frames))
        send(port, given)

    patches.attribute(ClientPort, "send", misdirect)


@bug("a request that comes in pieces is one request", {"torn"})
def pieces_of_a_request_are_dropped(patches: Patches) -> None:
    """Forget the first piece of a message when the second one comes."""
    feed = Receiver.feed

    def forget(receiver: Receiver, data: bytes) -> None:
        if receiver._held and receiver.is_ready:
            receiver._held = bytearray(len(receiver._held))
        feed(receiver, data)

    patches.attribute(Receiver, "feed", forget)
