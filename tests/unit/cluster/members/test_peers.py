"""Nodes connect, greet and talk: claims made on real sockets of the loopback."""

from __future__ import annotations

import socket
import struct
import time
from dataclasses import replace

import pytest

from cluster.members import peers
from cluster.members.handshake import REPORT_MS
from cluster.members.links import (
    Address,
    Reason,
)
from cluster.members.peers import Connected, Disconnected, Unfit
from cluster.settings.config import RaftSettings
from cluster.wire import messages
from cluster.wire.frames import FrameReader, framed
from cluster.wire.levels import BUILD, BUILD_0_1, Build
from cluster.wire.messages import AppendEntries, ReadIndex
from tests.unit.peer_world import NOWHERE, WAIT_S_MAX, PeerWorld, a_says, is_closed

# --- connecting and talking -----------------------------------------------------------------------


def test_members_connect_and_messages_arrive_in_order(world: PeerWorld) -> None:
    a, b = world.pair()
    assert a.events == [Connected("b")]
    assert b.events == [Connected("a")]
    for number in range(1000):
        a.port.send("b", ReadIndex(1, number))
        b.port.send("a", ReadIndex(2, number))
    world.until(lambda: len(a.received) == len(b.received) == 1000)
    assert b.received == [("a", ReadIndex(1, number)) for number in range(1000)]
    assert a.received == [("b", ReadIndex(2, number)) for number in range(1000)]


def test_small_messages_leave_at_once(world: PeerWorld) -> None:
    for node in world.pair():
        for connection in node.port._connections.values():
            assert connection.socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_five_members_have_one_connection_a_pair(world: PeerWorld) -> None:
    addresses: dict[str, Address] = dict.fromkeys("abcde", NOWHERE)
    for name in "edcba":
        others = {other: address for other, address in addresses.items() if other != name}
        addresses[name] = world.node(name, others).port.address
    world.until(lambda: all(len(node.live_ports()) == 4 for node in world.nodes))
    assert all(len(node.port._connections) == 4 for node in world.nodes)


def test_send_neither_delivers_nor_writes_before_flush(world: PeerWorld) -> None:
    a, b = world.pair()
    a.port.send("b", ReadIndex(1, 1))
    b.poll()
    assert b.port.receive(10) == []
    a.port.flush("b")
    world.until(lambda: b.received)


def test_send_to_a_peer_that_is_away_is_dropped_and_counted(world: PeerWorld) -> None:
    b = world.node("b", {"a": NOWHERE})
    b.port.send("a", ReadIndex(1, 1))
    b.port.flush("a")
    assert b.port.dropped == {"a": 1}
    assert b.port.hello_of("a") is None


def test_receive_returns_no_more_than_asked_and_takes_peers_in_turn(world: PeerWorld) -> None:
    c = world.node("c", {"a": NOWHERE, "b": NOWHERE})
    b = world.node("b", {"a": NOWHERE, "c": c.port.address})
    a = world.node("a", {"b": b.port.address, "c": c.port.address})
    world.until(lambda: all(len(node.live_ports()) == 2 for node in world.nodes))
    for node in (a, b):
        for number in range(100):
            node.port.send("c", ReadIndex(1, number))
        node.port.flush("c")
    connections = c.port._live.values()
    world.nodes.remove(c)
    size = len(framed(ReadIndex(1, 1))) * 100
    while any(each.reader.buffered_bytes < size for each in connections):
        c.poll()
    batch = c.port.receive(10)
    assert len(batch) == 10
    assert sorted(name for name, _ in batch) == ["a"] * 5 + ["b"] * 5
    world.nodes.append(c)


def test_new_hello_reaches_the_peer_and_is_no_message(world: PeerWorld) -> None:
    a, b = world.pair()
    news = replace(a.port._hello, fresh=True, founding={"a": "inc-a", "b": "inc-b"})
    a.port.update_hello(news)
    world.until(lambda: b.port.hello_of("a") == news)
    assert b.received == []


def test_new_hello_reaches_a_peer_that_has_not_said_its_own_yet(world: PeerWorld) -> None:
    b = world.node("b", {"a": NOWHERE})
    raw = world.dial(b)
    world.until(lambda: b.port._connections)
    news = replace(b.port._hello, fresh=True)
    b.port.update_hello(news)
    raw.sendall(framed(a_says(extension=NEWER)))
    world.until(lambda: b.port.hello_of("a"))
    raw.shutdown(socket.SHUT_WR)
    world.until(lambda: b.port.hello_of("a") is None)
    assert frames_in(raw) == [replace(news, fresh=False), news]


def test_peer_that_turns_into_another_incarnation_is_disconnected(world: PeerWorld) -> None:
    b = world.node("b", {"a": NOWHERE})
    raw = world.greet(b, a_says())
    raw.sendall(framed(a_says(incarnation="other")))
    world.until(lambda: b.port.hello_of("a") is None)
    last = b.events[-1]
    assert isinstance(last, Disconnected)
    assert (last.name, last.reason) == ("a", Reason.BAD_FRAME)


# --- extensions of a Hello ------------------------------------------------------------------------

NEXT_LEVEL = BUILD.level_max + 1
NEXT = Build("9.0", 1, NEXT_LEVEL)
NEWER = messages.Extension(Build("0.2.0", 1, 3))


def test_peer_is_connected_once_its_extension_is_known(world: PeerWorld) -> None:
    b = world.node("b", {"a": NOWHERE})
    raw = world.greet(b, a_says(extension=NEWER))
    hello = b.port.hello_of("a")
    assert hello is not None
    assert hello.extension == NEWER
    raw.sendall(framed(ReadIndex(1, 1)))
    world.until(lambda: b.received)
    assert b.received == [("a", ReadIndex(1, 1))]


def test_extension_that_comes_in_pieces_is_waited_for(world: PeerWorld) -> None:
    b = world.node("b", {"a": NOWHERE})
    raw = world.dial(b)
    said = framed(a_says(extension=NEWER))
    for byte in said:
        assert b.port.hello_of("a") is None
        raw.sendall(bytes((byte,)))
        b.turn()
    world.until(lambda: b.port.hello_of("a"))
    assert b.port.hello_of("a") == a_says(extension=NEWER)
    assert b.events == [Connected("a")]


def test_peer_of_version_0_1_is_known_by_its_next_message(world: PeerWorld) -> None:
    b = world.node("b", {"a": NOWHERE})
    world.ahead_s = -1e9  # its time stands still, as far as this matters
    large = AppendEntries(1, 0, 0, 0, [(b"\0" + bytes(messages.HELLO_BYTES_MAX), 1, 1)])
    reply = messages.RelayReply(7, [b"x"])
    world.dial(b).sendall(framed(a_says()) + framed(reply) + framed(large))
    world.until(lambda: len(b.received) == 2)
    assert b.received == [("a", reply), ("a", large)]
    assert b.port.hello_of("a") == a_says()


def test_silent_peer_of_version_0_1_is_known_after_a_while(world: PeerWorld) -> None:
    b = world.node("b", {"a": NOWHERE})
    raw = world.dial(b)
    raw.sendall(framed(a_says()))
    world.until(lambda: any(each.hello for each in b.port._connections.values()))
    assert b.port.hello_of("a") is None
    world.ahead_s += peers.EXTENSION_MS_MAX / 1000
    assert b.port.next_deadline() <= world.clock()
    b.turn()
    assert b.port.hello_of("a") == a_says()


def test_half_an_extension_is_no_hello(world: PeerWorld) -> None:
    b = world.node("b", {"a": NOWHERE})
    raw = world.dial(b)
    raw.sendall(framed(a_says(extension=NEWER))[:-1])
    world.until(lambda: any(each.hello for each in b.port._connections.values()))
    world.ahead_s += peers.EXTENSION_MS_MAX / 1000
    b.turn()
    assert b.refusals() == [f"half an Extension in {peers.EXTENSION_MS_MAX} ms"]
    assert is_closed(raw)


def test_new_extension_reaches_the_peer_and_none_is_lost_by_a_repeated_hello(
    world: PeerWorld,
) -> None:
    a, b = world.pair()
    news = replace(a.port._hello, extension=NEWER)
    a.port.update_hello(news)
    world.until(lambda: b.port.hello_of("a") == news)
    raised = replace(news, extension=messages.Extension(Build("0.2.1", 1, 3)))
    seen = []
    a.port.update_hello(raised)
    while b.port.hello_of("a") != raised:
        a.port.flush(None)
        b.poll()
        b.port.receive(1)
        seen.append(b.port.hello_of("a"))
    assert set(map(str, seen)) <= {str(news), str(raised)}
    assert b.received == []


def test_no_message_waits_for_the_acknowledgment_of_the_one_before(world: PeerWorld) -> None:
    for node in world.pair():  # Nagle's algorithm would cost 40 ms a round trip
        [connection] = node.port._live.values()
        assert connection.socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


# --- builds that don't fit ------------------------------------------------------------------------

RAISED = messages.Extension(BUILD, 2)
TOO_OLD = (
    "a runs a version that names no levels (0.1), which understands levels 1 to 1; "
    "the cluster's level is 2: install a newer one"
)


def frames_in(raw: socket.socket) -> list[messages.Message]:
    reader = FrameReader(messages.FRAME_BYTES_MAX)
    raw.settimeout(WAIT_S_MAX)
    while data := raw.recv(1 << 16):
        reader.feed(data)
    found = []
    while (message := reader.next()) is not None:
        found.append(message)
    return found


def test_peer_of_version_0_1_is_told_why_it_is_turned_away_and_not_at_once(
    world: PeerWorld,
) -> None:
    b = world.node("b", {"a": NOWHERE}, extension=RAISED)
    raw = world.dial(b)
    raw.sendall(framed(a_says()) + framed(ReadIndex(1, 1)))
    unfit = Unfit("a", "inc-a", 1, BUILD_0_1, TOO_OLD)
    world.until(lambda: unfit in b.events)
    assert b.port.hello_of("a") is None
    b.port.send("a", ReadIndex(2, 2))
    world.ahead_s += peers.HANDSHAKE_MS_MAX / 1000 - 0.5
    b.turn()
    assert b.refusals() == []  # its next attempt would come at once
    world.ahead_s += 0.5
    b.turn()
    assert b.refusals() == [TOO_OLD]
    assert b.received == []
    hello, extension, reason = frames_in(raw)
    assert isinstance(hello, messages.Hello)
    assert (extension, reason) == (RAISED, messages.SnapshotRefused(TOO_OLD))


def test_silent_peer_of_version_0_1_is_not_turned_away_at_once_either(world: PeerWorld) -> None:
    b = world.node("b", {"a": NOWHERE}, extension=RAISED)
    world.dial(b).sendall(framed(a_says()))
    world.until(lambda: any(each.hello for each in b.port._connections.values()))
    world.ahead_s += peers.EXTENSION_MS_MAX / 1000
    b.turn()
    assert b.events == [Unfit("a", "inc-a", 1, BUILD_0_1, TOO_OLD)]
    world.ahead_s += peers.HANDSHAKE_MS_MAX / 1000
    b.turn()
    assert b.refusals() == [TOO_OLD]


def test_unfit_peer_that_hangs_up_first_is_let_go(world: PeerWorld) -> None:
    b = world.node("b", {"a": NOWHERE}, extension=RAISED)
    raw = world.dial(b)
    raw.sendall(framed(a_says()) + framed(ReadIndex(1, 1)))
    world.until(lambda: b.events)
    world.ahead_s = -1e9  # its deadline never comes
    raw.shutdown(socket.SHUT_WR)
    world.until(lambda: not b.port._connections)
    assert b.refusals() == [TOO_OLD]


def test_both_sides_of_builds_that_do_not_fit_know_why(world: PeerWorld) -> None:
    b = world.node("b", {"a": NOWHERE}, extension=messages.Extension(NEXT, NEXT_LEVEL))
    a = world.node("a", {"b": b.port.address}, extension=RAISED)
    reason = f"a runs {BUILD}; the cluster's level is {NEXT_LEVEL}: install a newer one"
    world.until(lambda: a.events and b.events)
    assert a.events == [Unfit("b", "inc-b", NEXT_LEVEL, NEXT, reason)]
    assert b.events == [Unfit("a", "inc-a", 2, BUILD, reason)]
    assert not a.port.hello_of("b")
    assert not b.port.hello_of("a")


@pytest.mark.parametrize("raises", ["a", "b"])
def test_connection_ends_when_the_level_leaves_one_side_behind(
    world: PeerWorld, raises: str
) -> None:
    b = world.node("b", {"a": NOWHERE}, extension=messages.Extension(NEXT, 1))
    a = world.node("a", {"b": b.port.address}, extension=messages.Extension(NEXT, 1))
    behind = a if raises == "b" else b
    behind.port._hello = replace(behind.port._hello, extension=RAISED)
    world.until(lambda: a.port.hello_of("b") and b.port.hello_of("a"))
    node = a if raises == "a" else b
    news = replace(node.port._hello, extension=messages.Extension(NEXT, NEXT_LEVEL))
    node.port.update_hello(news)
    world.until(lambda: len(a.events) > 1 and len(b.events) > 1)
    name = behind.port._name
    reason = f"{name} runs {BUILD}; the cluster's level is {NEXT_LEVEL}: install a newer one"
    assert node.events[1] == Disconnected(name, Reason.UNFIT, reason)
    world.until(lambda: any(isinstance(event, Unfit) for event in behind.events))


# --- the handshake --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (framed(a_says(cluster_id="x")), "belongs to cluster 'x'"),
        (framed(a_says(members=("a", "b", "c"))), "knows the members"),
        (framed(a_says(node="z")), "is 'z'"),
        (framed(a_says(node="b")), "is 'b'"),
        (framed(ReadIndex(1, 2)), "said ReadIndex before Hello"),
        (framed(a_says()).replace(b"\1\1\0", b"\1\2\0", 1), "checksum"),
        (b"GET / HTTP/1.1\r\n\r\n", "the limit is 65536"),
        (struct.pack("<IIB", 2**31, 0, 1), "the limit is 65536"),
    ],
)
def test_stranger_is_refused_with_the_reason(world: PeerWorld, said: bytes, reason: str) -> None:
    b = world.node("b", {"a": NOWHERE})
    raw = world.dial(b)
    raw.sendall(said)
    world.until(b.refusals)
    assert reason in b.refusals()[0]
    assert is_closed(raw)
    assert b.port._connections == {}


def test_another_protocol_version_is_refused_by_name(world: PeerWorld) -> None:
    b = world.node("b", {"a": NOWHERE})
    world.dial(b).sendall(framed(a_says(version=9)))
    world.until(b.refusals)
    assert b.refusals() == ["speaks protocol version 9, this side 1"]


def test_both_sides_of_a_wrong_cluster_learn_why(world: PeerWorld) -> None:
    b = world.node("b", {"a": NOWHERE})
    a = world.node("a", {"b": b.port.address})
    a.port._hello = replace(a.port._hello, cluster_id="x")
    world.until(lambda: a.refusals() and b.refusals())
    assert "belongs to cluster 'x', this node to 'c'" in b.refusals()[0]
    assert "belongs to cluster 'c', this node to 'x'" in a.refusals()[0]


def test_wrong_node_at_a_dialed_address_is_refused(world: PeerWorld) -> None:
    c = world.node("c", {"a": NOWHERE, "b": NOWHERE})
    a = world.node("a", {"b": c.port.address, "c": c.port.address})
    world.until(lambda: "is 'c', but 'b' was dialed" in a.refusals())
    assert a.port.hello_of("b") is None


def test_refusals_of_one_address_are_reported_once_an_interval(world: PeerWorld) -> None:
    b = world.node("b", {"a": NOWHERE})
    for _ in range(2):
        for _ in range(5):
            raw = world.dial(b)
            raw.sendall(b"garbage" * 10)
            world.until(lambda raw=raw: is_closed(raw))
        world.ahead_s += REPORT_MS / 1000
    assert len(b.refusals()) == 2


def test_stranger_that_says_nothing_is_closed_in_time(world: PeerWorld) -> None:
    b = world.node("b", {"a": NOWHERE})
    raw = world.dial(b)
    world.until(lambda: b.port._connections)
    assert b.port.next_deadline() <= world.clock() + peers.HANDSHAKE_MS_MAX / 1000
    world.ahead_s += peers.HANDSHAKE_MS_MAX / 1000
    world.until(lambda: is_closed(raw))
    assert b.refusals() == [f"no Hello in {peers.HANDSHAKE_MS_MAX} ms"]


def test_strangers_are_bounded_and_do_not_keep_a_member_out(world: PeerWorld) -> None:
    b = world.node("b", {"a": NOWHERE})
    raws = [world.dial(b) for _ in range(3 * peers.STRANGERS_MAX)]
    world.until(lambda: b.port._connections)
    for _ in range(20):
        b.turn()
        assert len(b.port._connections) <= peers.STRANGERS_MAX
    world.greet(b, a_says())
    assert sum(map(is_closed, raws)) >= 2 * peers.STRANGERS_MAX


def test_strangers_take_a_bounded_part_of_a_turn(world: PeerWorld) -> None:
    b = world.node("b", {"a": NOWHERE})
    raws = [world.dial(b) for _ in range(3 * peers.ACCEPTS_PER_EVENT_MAX)]
    while (before := len(b.port._connections)) < len(raws):
        b.poll()
        assert len(b.port._connections) - before <= peers.ACCEPTS_PER_EVENT_MAX


def test_strangers_rest_behind_a_turn_in_which_as_many_came_as_may(world: PeerWorld) -> None:
    b = world.node("b", {"a": NOWHERE})
    raws = [world.dial(b) for _ in range(2 * peers.ACCEPTS_PER_EVENT_MAX + 1)]
    world.until(lambda: len(b.port._connections) == peers.ACCEPTS_PER_EVENT_MAX)
    b.port.turned(world.clock() + 1.0)
    for _ in range(3):
        b.turn()
    assert len(b.port._connections) == peers.ACCEPTS_PER_EVENT_MAX
    assert b.port.next_deadline() <= world.clock() + 1.0
    world.ahead_s += 1.0
    world.until(lambda: len(b.port._connections) == 2 * peers.ACCEPTS_PER_EVENT_MAX)
    world.until(lambda: len(b.port._connections) == len(raws))
    b.port.turned(world.clock())
    b.turn()
    b.port.turned(world.clock() + 1.0)  # that turn took none
    world.dial(b)
    world.until(lambda: len(b.port._connections) == len(raws) + 1)


def test_new_connection_replaces_a_silent_one_and_its_unread_messages(world: PeerWorld) -> None:
    b = world.node("b", {"a": NOWHERE})
    old = world.greet(b, a_says())
    old.sendall(framed(ReadIndex(1, 1)))
    world.until(lambda: b.port._live["a"].reader.buffered_bytes or b.received)
    world.ahead_s += RaftSettings.takeover_ms / 1000
    new = world.dial(b)
    new.sendall(framed(a_says(incarnation="newer")) + framed(ReadIndex(1, 2)))
    give_up_at = time.monotonic() + WAIT_S_MAX
    while new.getsockname()[1] not in b.live_ports():
        b.poll()
        assert time.monotonic() < give_up_at
    assert b.port.receive(10) == [("a", ReadIndex(1, 2))]
    b.turn()
    assert b.events[1:] == [
        Disconnected("a", Reason.REPLACED, b.events[1].detail),  # type: ignore[union-attr]
        Connected("a"),
    ]
    assert is_closed(old)
