"""Claims about the connections between nodes, made on real sockets of the loopback."""

from __future__ import annotations

import contextlib
import errno
import random
import select
import socket
import statistics
import struct
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from cluster import messages, peers
from cluster.frames import FrameReader
from cluster.handshake import REPORT_MS
from cluster.links import (
    BACKOFF_MS_MAX,
    LOOKUPS_MAX,
    READ_BYTES_MAX,
    RECEIVE_BUFFER_BYTES_MAX,
    Address,
    Lookup,
    Reason,
    State,
)
from cluster.messages import AppendEntries, Barrier, Hello, Message, Relay, encode
from cluster.peers import Connected, DialFailed, Disconnected, Event, HandshakeRefused, PeerPort

SEED = 7
WAIT_S_MAX = 10.0  # of real time: only a failing test waits as long
HELLO = Hello(messages.PROTOCOL_VERSION, "c", "b", "inc-b", ("a", "b"), False, None)
NOWHERE: Address = ("127.0.0.1", 1)  # nothing listens on tcpmux


class World:
    """The clock that all nodes of a test share; it runs, and can be made to jump."""

    def __init__(self) -> None:
        self.ahead_s = 0.0
        self.nodes: list[Node] = []
        self.raws: list[socket.socket] = []

    def clock(self) -> float:
        return time.monotonic() + self.ahead_s

    def node(self, name: str, others: dict[str, Address], port: int = 0) -> Node:
        node = Node(self, name, others, port)
        self.nodes.append(node)
        return node

    def until(self, condition: Callable[[], Any]) -> None:
        give_up_at = time.monotonic() + WAIT_S_MAX
        while not condition():
            assert time.monotonic() < give_up_at, "it did not happen"
            for node in self.nodes:
                node.turn()

    def pair(self) -> tuple[Node, Node]:
        b = self.node("b", {"a": NOWHERE})
        a = self.node("a", {"b": b.port.address})
        self.until(lambda: a.port.hello_of("b") and b.port.hello_of("a"))
        return a, b

    def dial(self, node: Node) -> socket.socket:
        raw = socket.create_connection(node.port.address, timeout=WAIT_S_MAX)
        self.raws.append(raw)
        return raw

    def greet(self, node: Node, hello: Hello) -> socket.socket:
        """Connect to a node by hand, say this Hello, and wait until the node believes it."""
        raw = self.dial(node)
        raw.sendall(encode(hello))
        mine = raw.getsockname()[1]
        self.until(lambda: mine in node.live_ports())
        return raw

    def close(self) -> None:
        for node in self.nodes:
            node.port.close()
            node.poller.close()
        for raw in self.raws:
            raw.close()


class Node:
    """A PeerPort under the smallest possible poll loop."""

    def __init__(self, world: World, name: str, others: dict[str, Address], port: int) -> None:
        self.world = world
        self.poller = select.epoll()
        self.watched: set[int] = set()
        self.events: list[Event] = []
        self.received: list[tuple[str, Message]] = []
        hello = replace(
            HELLO, node=name, incarnation=f"inc-{name}", members=tuple(sorted({name, *others}))
        )
        self.port = PeerPort(
            name,
            ("127.0.0.1", port),
            others,
            hello,
            world.clock,
            watch=self.watch,
            random=random.Random(SEED),
        )

    def watch(self, fd: int, read: bool, write: bool) -> None:
        mask = select.EPOLLIN * read | select.EPOLLOUT * write
        if fd in self.watched and mask:
            self.poller.modify(fd, mask)
        elif mask:
            self.poller.register(fd, mask)
            self.watched.add(fd)
        elif fd in self.watched:
            self.poller.unregister(fd)
            self.watched.discard(fd)

    def poll(self) -> None:
        for fd, mask in self.poller.poll(0):
            failed = bool(mask & (select.EPOLLERR | select.EPOLLHUP))
            self.port.on_ready(
                fd, failed or bool(mask & select.EPOLLIN), failed or bool(mask & select.EPOLLOUT)
            )
        self.port.tick(self.world.clock())

    def turn(self) -> None:
        self.poll()
        self.received += self.port.receive(1000)
        self.events += self.port.events()
        self.port.flush(None)

    def live_ports(self) -> set[int]:
        return {live.socket.getpeername()[1] for live in self.port._live.values()}

    def refusals(self) -> list[str]:
        return [event.reason for event in self.events if isinstance(event, HandshakeRefused)]


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    yield world
    world.close()


def a_says(**changes: Any) -> Hello:
    return replace(HELLO, **{"node": "a", "incarnation": "inc-a", **changes})


def is_closed(raw: socket.socket) -> bool:
    """Read to the end; True if there is one."""
    raw.setblocking(False)
    try:
        while raw.recv(1 << 20):
            pass
    except BlockingIOError:
        return False
    except ConnectionResetError:
        pass
    return True


# --- connecting and talking -----------------------------------------------------------------------


def test_members_connect_and_messages_arrive_in_order(world: World) -> None:
    a, b = world.pair()
    assert a.events == [Connected("b")]
    assert b.events == [Connected("a")]
    for number in range(1000):
        a.port.send("b", Barrier(1, number))
        b.port.send("a", Barrier(2, number))
    world.until(lambda: len(a.received) == len(b.received) == 1000)
    assert b.received == [("a", Barrier(1, number)) for number in range(1000)]
    assert a.received == [("b", Barrier(2, number)) for number in range(1000)]


def test_small_messages_leave_at_once(world: World) -> None:
    for node in world.pair():
        for connection in node.port._connections.values():
            assert connection.socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_five_members_have_one_connection_a_pair(world: World) -> None:
    addresses: dict[str, Address] = dict.fromkeys("abcde", NOWHERE)
    for name in "edcba":
        others = {other: address for other, address in addresses.items() if other != name}
        addresses[name] = world.node(name, others).port.address
    world.until(lambda: all(len(node.live_ports()) == 4 for node in world.nodes))
    assert all(len(node.port._connections) == 4 for node in world.nodes)


def test_send_neither_delivers_nor_writes_before_flush(world: World) -> None:
    a, b = world.pair()
    a.port.send("b", Barrier(1, 1))
    b.poll()
    assert b.port.receive(10) == []
    a.port.flush("b")
    world.until(lambda: b.received)


def test_send_to_a_peer_that_is_away_is_dropped_and_counted(world: World) -> None:
    b = world.node("b", {"a": NOWHERE})
    b.port.send("a", Barrier(1, 1))
    b.port.flush("a")
    assert b.port.dropped == {"a": 1}
    assert b.port.hello_of("a") is None


def test_receive_returns_no_more_than_asked_and_takes_peers_in_turn(world: World) -> None:
    c = world.node("c", {"a": NOWHERE, "b": NOWHERE})
    b = world.node("b", {"a": NOWHERE, "c": c.port.address})
    a = world.node("a", {"b": b.port.address, "c": c.port.address})
    world.until(lambda: all(len(node.live_ports()) == 2 for node in world.nodes))
    for node in (a, b):
        for number in range(100):
            node.port.send("c", Barrier(1, number))
        node.port.flush("c")
    connections = c.port._live.values()
    world.nodes.remove(c)
    size = len(encode(Barrier(1, 1))) * 100
    while any(each.reader.buffered_bytes < size for each in connections):
        c.poll()
    batch = c.port.receive(10)
    assert len(batch) == 10
    assert sorted(name for name, _ in batch) == ["a"] * 5 + ["b"] * 5
    world.nodes.append(c)


def test_new_hello_reaches_the_peer_and_is_no_message(world: World) -> None:
    a, b = world.pair()
    news = replace(a.port._hello, fresh=True, founding={"a": "inc-a", "b": "inc-b"})
    a.port.update_hello(news)
    world.until(lambda: b.port.hello_of("a") == news)
    assert b.received == []


def test_peer_that_turns_into_another_incarnation_is_disconnected(world: World) -> None:
    b = world.node("b", {"a": NOWHERE})
    raw = world.greet(b, a_says())
    raw.sendall(encode(a_says(incarnation="other")))
    world.until(lambda: b.port.hello_of("a") is None)
    last = b.events[-1]
    assert isinstance(last, Disconnected)
    assert (last.name, last.reason) == ("a", Reason.BAD_FRAME)


def test_round_trip_is_measured(world: World) -> None:
    a, b = world.pair()
    entry = AppendEntries(1, 0, 0, 0, [(b"\0" + bytes(2000), 1, 1)])
    times_us = []
    for _ in range(2000):
        started_at = time.perf_counter()
        for here, there, message in ((a, b, entry), (b, a, messages.NextIndex(1, 2, False, True))):
            here.port.send(there.port._name, message)
            here.port.flush(None)
            while not there.port.receive(1):
                there.poll()
        times_us.append((time.perf_counter() - started_at) * 1e6)
    median_us = statistics.median(times_us)
    print(f"round trip of 2 kB and its answer: median {median_us:.0f} us")
    assert median_us < 5_000  # no Nagle, no delayed acknowledgment: those cost 40,000


# --- the handshake --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (encode(a_says(cluster_id="x")), "belongs to cluster 'x'"),
        (encode(a_says(members=("a", "b", "c"))), "knows the members"),
        (encode(a_says(node="z")), "is 'z'"),
        (encode(a_says(node="b")), "is 'b'"),
        (encode(Barrier(1, 2)), "said Barrier before Hello"),
        (encode(a_says()).replace(b"\1\1\0", b"\1\2\0", 1), "checksum"),
        (b"GET / HTTP/1.1\r\n\r\n", "the limit is 65536"),
        (struct.pack("<IIB", 2**31, 0, 1), "the limit is 65536"),
    ],
)
def test_stranger_is_refused_with_the_reason(world: World, said: bytes, reason: str) -> None:
    b = world.node("b", {"a": NOWHERE})
    raw = world.dial(b)
    raw.sendall(said)
    world.until(b.refusals)
    assert reason in b.refusals()[0]
    assert is_closed(raw)
    assert b.port._connections == {}


def test_another_protocol_version_is_refused_by_name(world: World) -> None:
    b = world.node("b", {"a": NOWHERE})
    world.dial(b).sendall(encode(a_says(version=9)))
    world.until(b.refusals)
    assert b.refusals() == ["speaks protocol version 9, this side 1"]


def test_both_sides_of_a_wrong_cluster_learn_why(world: World) -> None:
    b = world.node("b", {"a": NOWHERE})
    a = world.node("a", {"b": b.port.address})
    a.port._hello = replace(a.port._hello, cluster_id="x")
    world.until(lambda: a.refusals() and b.refusals())
    assert "belongs to cluster 'x', this node to 'c'" in b.refusals()[0]
    assert "belongs to cluster 'c', this node to 'x'" in a.refusals()[0]


def test_wrong_node_at_a_dialed_address_is_refused(world: World) -> None:
    c = world.node("c", {"a": NOWHERE, "b": NOWHERE})
    a = world.node("a", {"b": c.port.address, "c": c.port.address})
    world.until(lambda: "is 'c', but 'b' was dialed" in a.refusals())
    assert a.port.hello_of("b") is None


def test_refusals_of_one_address_are_reported_once_an_interval(world: World) -> None:
    b = world.node("b", {"a": NOWHERE})
    for _ in range(2):
        for _ in range(5):
            raw = world.dial(b)
            raw.sendall(b"garbage" * 10)
            world.until(lambda raw=raw: is_closed(raw))
        world.ahead_s += REPORT_MS / 1000
    assert len(b.refusals()) == 2


def test_stranger_that_says_nothing_is_closed_in_time(world: World) -> None:
    b = world.node("b", {"a": NOWHERE})
    raw = world.dial(b)
    world.until(lambda: b.port._connections)
    assert b.port.next_deadline() <= world.clock() + peers.HANDSHAKE_MS_MAX / 1000
    world.ahead_s += peers.HANDSHAKE_MS_MAX / 1000
    world.until(lambda: is_closed(raw))
    assert b.refusals() == [f"no Hello in {peers.HANDSHAKE_MS_MAX} ms"]


def test_strangers_are_bounded_and_do_not_keep_a_member_out(world: World) -> None:
    b = world.node("b", {"a": NOWHERE})
    raws = [world.dial(b) for _ in range(3 * peers.STRANGERS_MAX)]
    world.until(lambda: b.port._connections)
    for _ in range(20):
        b.turn()
        assert len(b.port._connections) <= peers.STRANGERS_MAX
    world.greet(b, a_says())
    assert sum(map(is_closed, raws)) >= 2 * peers.STRANGERS_MAX


def test_new_connection_replaces_the_old_and_its_unread_messages(world: World) -> None:
    b = world.node("b", {"a": NOWHERE})
    old = world.greet(b, a_says())
    old.sendall(encode(Barrier(1, 1)))
    new = world.dial(b)
    new.sendall(encode(a_says(incarnation="newer")) + encode(Barrier(1, 2)))
    give_up_at = time.monotonic() + WAIT_S_MAX
    while new.getsockname()[1] not in b.live_ports():
        b.poll()
        assert time.monotonic() < give_up_at
    assert b.port.receive(10) == [("a", Barrier(1, 2))]
    b.turn()
    assert b.events[1:] == [
        Disconnected("a", Reason.REPLACED, b.events[1].detail),  # type: ignore[union-attr]
        Connected("a"),
    ]
    assert is_closed(old)


# --- ends -----------------------------------------------------------------------------------------


def test_death_of_a_peer_is_seen_in_the_same_turn(world: World) -> None:
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


def test_last_words_are_received_before_the_end(world: World) -> None:
    b = world.node("b", {"a": NOWHERE})
    raw = world.greet(b, a_says())
    raw.sendall(encode(messages.TimeoutNow(5)))
    raw.shutdown(socket.SHUT_WR)
    connection = b.port._live["a"]
    while connection.state is State.LIVE:
        b.poll()
    assert b.port.next_deadline() <= world.clock()
    world.until(lambda: b.port.hello_of("a") is None)
    assert b.received == [("a", messages.TimeoutNow(5))]
    assert b.events[-1] == Disconnected("a", Reason.CLOSED, "")


def test_restarted_peer_is_dialed_anew_at_once(world: World) -> None:
    a, b = world.pair()
    port = b.port.address[1]
    world.nodes.remove(b)
    b.port.close()
    b.poller.close()
    world.until(lambda: a.port.hello_of("b") is None)
    started_at = time.monotonic()
    b = world.node("b", {"a": NOWHERE}, port)
    world.until(lambda: a.port.hello_of("b") and b.port.hello_of("a"))
    took_ms = (time.monotonic() - started_at) * 1000
    print(f"connected {took_ms:.1f} ms after the restart")
    assert took_ms < BACKOFF_MS_MAX
    assert a.events[0] == Connected("b")
    assert isinstance(a.events[1], Disconnected)
    assert a.events[-1] == Connected("b")
    assert a.port._dials[0].attempts == 0


def test_dials_of_a_dead_peer_start_quick_and_grow_to_the_bound(world: World) -> None:
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


def test_silent_peer_is_disconnected(world: World) -> None:
    b = world.node("b", {"a": NOWHERE})
    raw = world.greet(b, a_says())
    world.ahead_s += peers.PEER_SILENCE_MS_MAX / 1000
    assert b.port.next_deadline() <= world.clock()
    b.turn()
    assert b.events[-1] == Disconnected("a", Reason.SILENT, "10.0 s")
    assert is_closed(raw)


def test_peers_with_nothing_to_say_stay_connected(world: World) -> None:
    a, b = world.pair()
    for _ in range(60):
        world.ahead_s += 1.0
        for node in (a, b, a, b):
            node.turn()
    assert a.events == [Connected("b")]
    assert b.events == [Connected("a")]


def test_own_pause_is_not_taken_for_the_peers_silence(world: World) -> None:
    b = world.node("b", {"a": NOWHERE})
    raw = world.greet(b, a_says())
    raw.sendall(encode(Barrier(1, 1)))
    world.ahead_s += 60.0
    b.port.tick(world.clock())
    assert b.port.receive(10) == [("a", Barrier(1, 1))]
    assert b.port.events() == []


# --- bounds ---------------------------------------------------------------------------------------


def test_paused_peer_bounds_what_waits_for_it(world: World) -> None:
    b = world.node("b", {"a": NOWHERE})
    raw = world.greet(b, a_says())
    append = AppendEntries(1, 0, 0, 0, [(bytes(1 << 20), 1, 1)])
    connection = b.port._live["a"]
    while connection.outbox_bytes <= peers.SEND_BUFFER_BYTES_MAX:
        b.port.send("a", append)
        b.port.flush("a")
    assert connection.watched == (True, True)
    waiting = connection.outbox_bytes
    b.port.send("a", Barrier(1, 1))
    assert (connection.outbox_bytes, b.port.dropped["a"]) == (waiting, 1)
    for unrepeated in (messages.Vote(1), append, messages.NextIndex(1, 2, False, True)):
        b.port.send("a", unrepeated)
        assert connection.outbox_bytes > waiting, unrepeated
        waiting = connection.outbox_bytes
    while b.port.hello_of("a"):
        b.port.send("a", Relay(1, [bytes(4 << 20)]))
        assert connection.outbox_bytes <= 2 * peers.SEND_BUFFER_BYTES_MAX + (4 << 20) + 100
    b.turn()
    assert isinstance(b.events[-1], Disconnected)
    assert b.events[-1].reason is Reason.BEHIND
    raw.close()
    world.greet(b, a_says())
    assert b.port._live["a"].outbox_bytes == 0  # nothing outlives its connection


def test_peer_that_wakes_up_gets_all_that_waited_in_order(world: World) -> None:
    b = world.node("b", {"a": NOWHERE})
    raw = world.greet(b, a_says())
    for number in range(20):
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
    assert [message.relay_id for message in heard[1:]] == list(range(20))
    assert b.port._live["a"].watched == (True, False)


def test_flooding_peer_is_read_in_bounded_steps_and_then_not_at_all(world: World) -> None:
    b = world.node("b", {"a": NOWHERE})
    raw = world.greet(b, a_says())
    relay = encode(Relay(1, [bytes(1 << 20)]))
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


def test_garbage_closes_its_own_connection_and_nothing_else(world: World) -> None:
    """20,000 random or damaged frames, on connections of strangers and of a known peer.

    Half of the damage carries a right checksum, so that it is not the CRC alone that is tried.
    """
    rng = random.Random(SEED)
    c = world.node("c", {"a": NOWHERE, "b": NOWHERE})
    b = world.node("b", {"a": NOWHERE, "c": c.port.address})
    world.until(lambda: c.port.hello_of("b") and b.port.hello_of("c"))
    hello = encode(a_says(members=("a", "b", "c")))
    good = encode(AppendEntries(1, 0, 0, 0, [(b"\0abc", 1, 1)]))
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
        b.port.send("c", Barrier(1, number))
        world.until(lambda number=number: c.received[-1:] == [("b", Barrier(1, number))])
        raw.close()
    world.until(lambda: len(c.port._connections) == 1)
    assert [message for name, message in c.received if name == "b"] == [
        Barrier(1, number) for number in range(2_000)
    ]
    assert Disconnected not in {type(event) for event in b.events}, SEED
    assert {type(message) for name, message in c.received if name == "a"} <= {AppendEntries}


def test_port_without_descriptors_pauses_accepting_and_says_so(
    world: World, monkeypatch: pytest.MonkeyPatch
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


def test_name_is_looked_up_at_each_dial(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_stuck_resolver_neither_blocks_the_loop_nor_grows(
    world: World, monkeypatch: pytest.MonkeyPatch
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
