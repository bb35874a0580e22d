"""Connections between nodes that end, stand still, flood or cannot be looked up; real sockets."""

from __future__ import annotations

import contextlib
import errno
import random
import socket
import struct
import threading
import zlib
from typing import Any

import pytest

from cluster.members import peers
from cluster.members.links import (
    BACKOFF_MS_MAX,
    LOOKUPS_MAX,
    READ_BYTES_MAX,
    RECEIVE_BUFFER_BYTES_MAX,
    REFUSED_ATTEMPTS,
    LinkState,
    Lookup,
    Reason,
)
from cluster.members.peers import Connected, DialFailed, Disconnected
from cluster.wire import messages
from cluster.wire.frames import FrameReader, framed
from cluster.wire.messages import AppendEntries, ReadIndex, Relay
from tests.unit.peer_world import NOWHERE, SEED, WAIT_S_MAX, PeerWorld, a_says, is_closed

# --- ends -----------------------------------------------------------------------------------------


def test_death_of_a_peer_is_seen_in_the_same_turn(world: PeerWorld) -> None:
    b = world.node("b", {"a": NOWHERE})
    for linger, reason in ((0, Reason.LOST), (None, Reason.CLOSED)):
        raw = world.greet(b, a_says())
        b.events.clear()
        if linger is not None:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, linger))
        raw.shutdown(socket.SHUT_WR) if linger is None else raw.close()
        b.poller.poll(WAIT_S_MAX)
        b.turn()
        ended = [event.reason for event in b.events if isinstance(event, Disconnected)]
        assert (ended, len(b.events)) == ([reason], 1)


def test_last_words_are_received_before_the_end(world: PeerWorld) -> None:
    b = world.node("b", {"a": NOWHERE})
    raw = world.greet(b, a_says())
    raw.sendall(framed(messages.TimeoutNow(5)))
    raw.shutdown(socket.SHUT_WR)
    connection = b.port._live["a"]
    while connection.state is LinkState.LIVE:
        b.poll()
    assert b.port.next_deadline() <= world.clock()
    world.until(lambda: b.port.hello_of("a") is None)
    assert b.received == [("a", messages.TimeoutNow(5))]
    assert b.events[-1] == Disconnected("a", Reason.CLOSED, "")


def test_who_dies_with_words_of_both_sides_on_their_way_is_heard_out_and_let_go(
    world: PeerWorld,
) -> None:
    """A simulated seed (202611230007) found the node dead by what it had to say to the other."""
    b = world.node("b", {"a": NOWHERE})
    raw = world.greet(b, a_says())
    b.port.send("a", ReadIndex(1, 1))
    raw.sendall(framed(messages.TimeoutNow(5)))
    raw.shutdown(socket.SHUT_WR)
    connection = b.port._live["a"]
    while connection.state is LinkState.LIVE:
        b.poll()
    b.port.flush(None)
    world.until(lambda: b.port.hello_of("a") is None)
    assert b.received == [("a", messages.TimeoutNow(5))]
    assert b.events[-1] == Disconnected("a", Reason.CLOSED, "")
    world.greet(b, a_says())


def test_restarted_peer_is_dialed_anew_at_once(world: PeerWorld) -> None:
    a, b = world.pair()
    port = b.port.address[1]
    world.nodes.remove(b)
    b.port.close()
    b.poller.close()
    world.until(lambda: a.port.hello_of("b") is None)
    assert a.port._dials[0].attempts <= 1  # a new link starts with the shortest wait
    b = world.node("b", {"a": NOWHERE}, port)
    world.until(lambda: a.port.hello_of("b") and b.port.hello_of("a"))
    assert a.events[0] == Connected("b")
    assert isinstance(a.events[1], Disconnected)
    assert a.events[-1] == Connected("b")
    assert a.port._dials[0].attempts == 0


def test_who_was_parted_from_is_dialed_again_at_the_longest_distance(world: PeerWorld) -> None:
    a, _ = world.pair()
    dial = a.port._dials[0]
    assert dial.attempts == 0
    a.port.part("b", "another process of this node's name lives")
    assert dial.attempts > REFUSED_ATTEMPTS
    assert dial.due_at - world.clock() > BACKOFF_MS_MAX / 2000 - 0.1


def test_dials_of_a_dead_peer_start_quick_and_grow_to_the_bound(world: PeerWorld) -> None:
    a = world.node("a", {"b": NOWHERE})
    dial, delays_ms = a.port._dials[0], []
    for attempt in range(1, 12):
        world.until(lambda attempt=attempt: dial.attempts == attempt)
        delays_ms.append((dial.due_at - world.clock()) * 1000)
        world.ahead_s += delays_ms[-1] / 1000
    assert delays_ms[0] <= 50
    assert BACKOFF_MS_MAX / 3 < max(delays_ms) <= BACKOFF_MS_MAX
    failures = [event for event in a.events if isinstance(event, DialFailed)]
    assert len(failures) == 1
    assert "refused" in failures[0].reason


def test_silent_peer_is_disconnected(world: PeerWorld) -> None:
    b = world.node("b", {"a": NOWHERE})
    raw = world.greet(b, a_says())
    world.ahead_s += peers.PEER_SILENCE_MS_MAX / 1000
    assert b.port.next_deadline() <= world.clock()
    b.turn()
    assert b.events[-1] == Disconnected("a", Reason.SILENT, "10.0 s")
    assert is_closed(raw)


def test_peers_with_nothing_to_say_stay_connected(world: PeerWorld) -> None:
    a, b = world.pair()
    for _ in range(60):
        world.ahead_s += 1.0
        for node in (a, b, a, b):
            node.turn()
    assert a.events == [Connected("b")]
    assert b.events == [Connected("a")]


def test_own_pause_is_not_taken_for_the_peers_silence(world: PeerWorld) -> None:
    b = world.node("b", {"a": NOWHERE})
    raw = world.greet(b, a_says())
    raw.sendall(framed(ReadIndex(1, 1)))
    world.ahead_s += 60.0
    b.port.tick(world.clock())
    assert b.port.receive(10) == [("a", ReadIndex(1, 1))]
    assert b.port.events() == []


# --- bounds ---------------------------------------------------------------------------------------


def test_paused_peer_bounds_what_waits_for_it(world: PeerWorld) -> None:
    b = world.node("b", {"a": NOWHERE})
    raw = world.greet(b, a_says())
    append = AppendEntries(1, 0, 0, 0, [(bytes(1 << 20), 1, 1)])
    connection = b.port._live["a"]
    while connection.outbox_bytes <= peers.SEND_BUFFER_BYTES_MAX:
        b.port.send("a", append)
        b.port.flush("a")
    assert connection.watched == (True, True)
    waiting = connection.outbox_bytes
    b.port.send("a", ReadIndex(1, 1))
    assert (connection.outbox_bytes, b.port.dropped["a"]) == (waiting, 1)
    for unrepeated in (
        messages.RequestVoteResponse(1),
        append,
        messages.AppendEntriesResponse(1, 2, False, True),
    ):
        b.port.send("a", unrepeated)
        assert connection.outbox_bytes > waiting, unrepeated
        waiting = connection.outbox_bytes
    while b.port.hello_of("a"):
        b.port.send("a", append)
        assert connection.outbox_bytes <= 2 * peers.SEND_BUFFER_BYTES_MAX + (1 << 20) + 100
    b.turn()
    assert isinstance(b.events[-1], Disconnected)
    assert b.events[-1].reason is Reason.BEHIND
    raw.close()
    world.greet(b, a_says())
    assert b.port._live["a"].outbox_bytes == 0  # nothing outlives its connection


def test_relayed_replies_never_end_the_link_and_are_bounded(world: PeerWorld) -> None:
    b = world.node("b", {"a": NOWHERE})
    world.greet(b, a_says())
    connection = b.port._live["a"]
    reply = messages.RelayReply(1, [bytes(1 << 20)])
    assert b.port.room_bytes("a") == peers.BULK_BYTES_SERVED
    while not b.port.dropped["a"]:
        b.port.send("a", reply)
        b.port.flush("a")
        assert connection.bulk_bytes <= peers.SEND_BUFFER_BYTES_MAX + (1 << 20) + 100
    assert b.port.room_bytes("a") <= 0
    b.port.send("a", ReadIndex(1, 1))
    assert b.port.hello_of("a")
    assert connection.outbox_bytes > 0, "Raft's messages have a queue of their own"


def test_raft_s_messages_overtake_relayed_replies(world: PeerWorld) -> None:
    print("seed", SEED)
    rng = random.Random(SEED)
    b = world.node("b", {"a": NOWHERE})
    raw = world.greet(b, a_says())
    sent: list[messages.Message] = []
    for number in range(1, 25):
        sent.append(messages.RelayReply(number, [rng.randbytes(rng.randrange(1, 1 << 20))]))
        b.port.send("a", sent[-1])
        b.port.flush("a")
        if number % 3 == 0:
            sent.append(ReadIndex(1, number))
            b.port.send("a", sent[-1])
            b.port.flush("a")
    assert b.port._live["a"].blocked
    raw.setblocking(False)
    reader, heard = FrameReader(messages.FRAME_BYTES_MAX), list[messages.Message]()

    def everything_came() -> bool:
        with contextlib.suppress(BlockingIOError):
            reader.feed(raw.recv(rng.randrange(1, 1 << 20)))
        while (message := reader.next()) is not None:
            heard.append(message)
        return len(heard) >= len(sent) + 2

    world.until(everything_came)
    heard = [message for message in heard if message in sent]
    for kind in (messages.RelayReply, ReadIndex):  # each in its own order
        assert [m for m in heard if type(m) is kind] == [m for m in sent if type(m) is kind]
    behind_the_last_barrier = heard[heard.index(ReadIndex(1, 24)) :]
    assert len(behind_the_last_barrier) > 4, "replies were queued before it"


def test_peer_that_wakes_up_gets_all_that_waited_in_order(world: PeerWorld) -> None:
    b = world.node("b", {"a": NOWHERE})
    raw = world.greet(b, a_says())
    for number in range(1, 21):
        b.port.send("a", Relay(number, [bytes(1 << 20)]))
        b.port.flush("a")
    assert b.port._live["a"].blocked
    raw.setblocking(False)
    reader, heard = FrameReader(messages.FRAME_BYTES_MAX), []

    def everything_came() -> bool:
        with contextlib.suppress(BlockingIOError):
            reader.feed(raw.recv(1 << 20))
        while message := reader.next():
            heard.append(message)
        return len(heard) == 21

    world.until(everything_came)
    assert [message.relay_id for message in heard[1:]] == list(range(1, 21))
    assert b.port._live["a"].watched == (True, False)


def test_flooding_peer_is_read_in_bounded_steps_and_then_not_at_all(world: PeerWorld) -> None:
    b = world.node("b", {"a": NOWHERE})
    raw = world.greet(b, a_says())
    relay = framed(Relay(1, [bytes(1 << 20)]))
    count = 2 * RECEIVE_BUFFER_BYTES_MAX // len(relay)
    sender = threading.Thread(target=lambda: [raw.sendall(relay) for _ in range(count)])
    sender.start()
    connection, before = b.port._live["a"], 0
    while connection.watched[0]:
        b.poll()
        buffered = connection.reader.buffered_bytes
        assert buffered - before <= READ_BYTES_MAX + READ_BYTES_MAX // 4
        before = buffered
    assert before <= RECEIVE_BUFFER_BYTES_MAX + READ_BYTES_MAX // 4
    b.received += b.port.receive(1000)
    assert connection.watched[0]
    world.until(lambda: len(b.received) == count)
    sender.join()


def test_garbage_closes_its_own_connection_and_nothing_else(world: PeerWorld) -> None:
    """20,000 random or damaged frames, on connections of strangers and of a known peer.

    Half of the damage carries a right checksum, so that it is not the CRC alone that is tried.
    """
    rng = random.Random(SEED)
    c = world.node("c", {"a": NOWHERE, "b": NOWHERE})
    b = world.node("b", {"a": NOWHERE, "c": c.port.address})
    world.until(lambda: c.port.hello_of("b") and b.port.hello_of("c"))
    hello = framed(a_says(members=("a", "b", "c")))
    good = framed(AppendEntries(1, 0, 0, 0, [(b"\0abc", 1, 1)]))
    for number in range(2_000):
        frames = []
        for _ in range(10):
            damaged = bytearray(rng.choice((good, hello, rng.randbytes(rng.randint(1, 60)))))
            damaged[rng.randrange(len(damaged))] ^= 1 << rng.randrange(8)
            if len(damaged) > 8 and rng.random() < 0.5:
                size = len(damaged) - 8
                struct.pack_into("<II", damaged, 0, size, zlib.crc32(damaged[8:]))
            frames.append(bytes(damaged))
        raw = world.dial(c)
        world.raws.remove(raw)
        raw.sendall((hello if number % 2 else b"") + b"".join(frames))
        raw.shutdown(socket.SHUT_WR)
        b.port.send("c", ReadIndex(1, number))
        world.until(lambda number=number: c.received[-1:] == [("b", ReadIndex(1, number))])
        raw.close()
    world.until(lambda: len(c.port._connections) == 1)
    assert [message for name, message in c.received if name == "b"] == [
        ReadIndex(1, number) for number in range(2_000)
    ]
    assert Disconnected not in {type(event) for event in b.events}, SEED
    assert {type(message) for name, message in c.received if name == "a"} <= {AppendEntries}


def test_port_without_descriptors_pauses_accepting_and_says_so(
    world: PeerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    b = world.node("b", {"a": NOWHERE})

    def accept(_: socket.socket) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patched:
        patched.setattr(socket.socket, "accept", accept)
        world.dial(b)
        world.until(b.refusals)
    assert "Too many open files" in b.refusals()[0]
    assert b.port._listener.fileno() not in b.watched
    world.ahead_s += peers.ACCEPT_PAUSE_MS / 1000
    world.until(lambda: b.port._connections)


# --- names ----------------------------------------------------------------------------------------


def test_name_is_looked_up_at_each_dial(world: PeerWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    b = world.node("b", {"a": NOWHERE})
    real, asked = socket.getaddrinfo, []

    def getaddrinfo(host: str, port: int, **options: Any) -> Any:
        if host != "b.example" or "flags" in options:
            return real(host, port, **options)
        asked.append(host)
        if len(asked) == 1:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return real("127.0.0.1", b.port.address[1], type=socket.SOCK_STREAM)

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    a = world.node("a", {"b": ("b.example", 1)})
    world.until(lambda: a.port.hello_of("b"))
    assert len(asked) == 2
    assert a.events == [
        DialFailed("b", "b.example:1: look-up of b.example: [Errno -2] Name or service not known"),
        Connected("b"),
    ]


def test_a_system_without_threads_ends_no_node_and_keeps_no_place(
    world: PeerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    a = world.node("a", {"b": ("b.example", 1)})
    a.turn()
    assert a.events == [
        DialFailed("b", "b.example:1: look-up of b.example: can't start new thread")
    ]
    assert Lookup._slots._value == LOOKUPS_MAX


def test_stuck_resolver_neither_blocks_the_loop_nor_grows(
    world: PeerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, release, stuck = socket.getaddrinfo, threading.Event(), []

    def getaddrinfo(host: str, port: int, **options: Any) -> Any:
        if "flags" in options:
            return real(host, port, **options)
        stuck.append(host)
        release.wait(WAIT_S_MAX)
        raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    a = world.node("a", {"b": ("b.example", 1)})
    dial = a.port._dials[0]
    for attempt in range(1, 2 * LOOKUPS_MAX):
        a.turn()
        world.ahead_s += peers.DIAL_MS_MAX / 1000
        world.until(lambda attempt=attempt: dial.attempts >= attempt)
        world.ahead_s += BACKOFF_MS_MAX / 1000
    assert len(stuck) == LOOKUPS_MAX
    assert a.events[0] == DialFailed("b", "b.example:1: no address in 1000 ms")
    release.set()
    world.until(lambda: Lookup._slots._value == LOOKUPS_MAX)


def test_of_the_addresses_of_a_name_one_that_answers_is_found(
    world: PeerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    b = world.node("b", {"a": NOWHERE})
    real = socket.getaddrinfo

    def getaddrinfo(host: str, port: int, **options: Any) -> Any:
        if host != "b.example" or "flags" in options:
            return real(host, port, **options)
        found = [real(*each, type=socket.SOCK_STREAM) for each in (NOWHERE, b.port.address)]
        return [*found[0], *found[1]]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    a = world.node("a", {"b": ("b.example", 1)})
    world.until(lambda: a.port.hello_of("b"))
