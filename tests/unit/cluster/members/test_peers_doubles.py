"""Two processes of one name at the door of a third: claims made on real sockets of the loopback."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from cluster.members import peers
from cluster.members.handshake import REPORT_MS, REPORTS_MAX
from cluster.members.membership import Roll
from cluster.settings.config import RaftSettings
from cluster.wire import messages
from cluster.wire.frames import FrameReader, framed
from cluster.wire.levels import BUILD
from cluster.wire.messages import PeerRefused, ReadIndex, Refusal
from tests.unit.peer_world import (
    NOWHERE,
    WAIT_S_MAX,
    PeerNode,
    PeerWorld,
    a_says,
    is_closed,
)


def said_to(raw: socket.socket, world: PeerWorld) -> list[messages.Message]:
    """Return what a node has said to a raw connection, once it has closed it."""
    raw.setblocking(False)
    reader, heard = FrameReader(messages.FRAME_BYTES_MAX), []

    def has_ended() -> bool:
        try:
            while data := raw.recv(1 << 16):
                reader.feed(data)
        except BlockingIOError:
            return False
        return True

    world.until(has_ended)
    while (message := reader.next()) is not None:
        heard.append(message)
    return heard


@pytest.mark.parametrize(
    "claims",
    [{"incarnation": "other", "fresh": True}, {"incarnation": "other", "admitted_index": 99}, {}],
    ids=["empty", "later", "same"],
)
def test_second_process_of_a_name_that_is_heard_is_refused_with_the_reason(
    world: PeerWorld, claims: dict[str, object]
) -> None:
    b = world.node("b", {"a": NOWHERE})
    first = world.greet(b, a_says())
    second = world.dial(b)
    second.sendall(framed(a_says(**claims)))
    last = said_to(second, world)[-1]
    assert isinstance(last, PeerRefused)
    assert last.kind == Refusal.DOUBLED
    assert "it has to be silent for 3.0 s" in last.reason
    assert ("a copy of it" in last.reason) == (claims == {})
    (doubled,) = [event for event in b.events if isinstance(event, peers.Doubled)]
    assert (doubled.name, doubled.incarnation) == ("a", claims.get("incarnation", "inc-a"))
    first.sendall(framed(ReadIndex(1, 1)))
    world.until(lambda: b.received == [("a", ReadIndex(1, 1))])


def test_first_process_keeps_its_place_though_this_node_was_paused(world: PeerWorld) -> None:
    b = world.node("b", {"a": NOWHERE})
    first = world.greet(b, a_says())
    first.sendall(framed(ReadIndex(1, 1)))  # lies in the socket while b is paused
    world.ahead_s += RaftSettings.takeover_ms / 1000 + 1
    second = world.dial(b)
    second.sendall(framed(a_says(incarnation="other")))
    assert isinstance(said_to(second, world)[-1], PeerRefused)


def test_what_waits_of_the_first_process_is_looked_at_before_the_second_has_its_place(
    world: PeerWorld,
) -> None:
    b = world.node("b", {"a": NOWHERE})
    first = world.greet(b, a_says())
    second = world.dial(b)
    world.until(lambda: len(b.port._connections) == 2)
    world.ahead_s += RaftSettings.takeover_ms / 1000 + 1
    first.sendall(framed(ReadIndex(1, 1)))
    second.sendall(framed(a_says(incarnation="other", extension=messages.Extension(BUILD))))
    [newcomer] = [each for each in b.port._connections.values() if not each.name]
    b.port.on_ready(newcomer.fd, True, False)  # the first one's bytes come later in this turn
    assert isinstance(said_to(second, world)[-1], PeerRefused)


def test_incarnation_that_is_no_member_gives_way_to_the_one_that_is(world: PeerWorld) -> None:
    b = world.node("b", {"a": NOWHERE})
    b.port.update_roll(Roll({"a": "inc-a", "b": "inc-b"}))
    stranger = world.greet(b, a_says(incarnation="other", fresh=True))
    world.greet(b, a_says())
    assert b.port.hello_of("a") == a_says()
    assert isinstance(said_to(stranger, world)[-1], PeerRefused)


def test_evicted_incarnation_is_told_so_when_it_comes_and_when_it_is_there(
    world: PeerWorld,
) -> None:
    b = world.node("b", {"a": NOWHERE})
    early = world.greet(b, a_says())
    members = {"a": "new", "b": "inc-b"}
    b.port.update_roll(Roll(members, members, 7))
    late = world.dial(b)
    late.sendall(framed(a_says()))
    for raw in (early, late):
        last = said_to(raw, world)[-1]
        assert isinstance(last, PeerRefused)
        assert last.kind == Refusal.EVICTED
        assert "readmitted as incarnation new" in last.reason
    assert b.port.hello_of("a") is None
    world.greet(b, a_says(incarnation="newer still", admitted_index=8))


def test_newcomer_that_was_replaced_before_it_told_of_its_start_is_evicted_when_it_does(
    world: PeerWorld,
) -> None:
    b = world.node("b", {"a": NOWHERE})
    newcomer = world.greet(b, a_says(fresh=True))
    members = {"a": "new", "b": "inc-b"}
    b.port.update_roll(Roll(members, members, 7))
    assert b.port.hello_of("a") is not None, "who has not started yet has no place to lose"
    newcomer.sendall(framed(a_says(admitted_index=3)))
    last = said_to(newcomer, world)[-1]
    assert isinstance(last, PeerRefused)
    assert last.kind == Refusal.EVICTED
    assert b.port.hello_of("a") is None


def test_refused_node_knows_why_and_asks_once_a_second(world: PeerWorld) -> None:
    b = world.node("b", {"a": NOWHERE})
    world.greet(b, a_says())
    a = world.node("a", {"b": b.port.address})
    world.until(lambda: any(isinstance(event, peers.RefusedBy) for event in a.events))
    assert "b refuses this node: a is connected from 127.0.0.1" in a.port.trouble("b")
    began, before = world.clock(), len(a.refused_by())
    world.until(lambda: len(a.refused_by()) > before + 1)
    assert world.clock() - began > 0.5, "it asks more often than about once a second"


# --- who dials nobody -----------------------------------------------------------------------------

TAKEOVER_S = RaftSettings.takeover_ms / 1000


def b_says(**changes: object) -> messages.Hello:
    return a_says(**{"node": "b", "incarnation": "inc-b", **changes})


def test_second_process_of_the_name_that_dials_nobody_asks_and_is_refused(world: PeerWorld) -> None:
    a, b = world.pair()
    world.ahead_s += peers.HANDSHAKE_MS_MAX / 1000
    second = world.node("b", {"a": a.port.address})
    world.until(lambda: second.refused_by() or world.clock() > second.port.next_deadline() + 60)
    assert {event.refusal for event in second.refused_by()} == {Refusal.DOUBLED}
    assert "a refuses this node: b is connected from 127.0.0.1" in second.port.trouble("a")
    assert second.port.hello_of("a") is None
    (doubled,) = [event for event in a.events if isinstance(event, peers.Doubled)]
    assert doubled.name == "b"
    assert a.port.hello_of("b") is not None
    assert b.port.hello_of("a") is not None
    # It asks again about once a second, and whoever has the place is left in peace.
    before = len(second.refused_by())
    world.until(lambda: len(second.refused_by()) > before)
    assert not b.refused_by()
    assert not [event for event in (*a.events, *b.events) if isinstance(event, peers.Disconnected)]


def test_who_asks_where_nobody_has_its_name_is_to_wait_and_nobody_is_alarmed(
    world: PeerWorld,
) -> None:
    a = world.node("a", {"b": NOWHERE})
    world.ahead_s += 1  # a has given up its first attempts, and is slow to make the next one
    raw = world.dial(a)
    raw.sendall(framed(b_says()))
    last = said_to(raw, world)[-1]
    assert isinstance(last, PeerRefused)
    assert last.kind == Refusal.FOREIGN
    assert "has to wait until a dials it" in last.reason
    assert {type(event) for event in a.events} <= {peers.DialFailed}
    assert a.port.hello_of("b") is None

    b = world.node("b", {"a": a.port.address})
    world.ahead_s += TAKEOVER_S
    world.until(lambda: b.port._questions[0].attempts > peers.REFUSED_ATTEMPTS)
    assert not b.events


def test_who_asks_is_connected_as_soon_as_it_is_dialed(world: PeerWorld) -> None:
    b = world.node("b", {"a": NOWHERE})
    world.ahead_s += TAKEOVER_S
    world.until(lambda: any(isinstance(event, peers.DialFailed) for event in b.events))
    a = world.node("a", {"b": b.port.address})
    world.until(lambda: a.port.hello_of("b") and b.port.hello_of("a"))
    assert not b.refused_by()


def test_a_question_that_crosses_the_dial_it_asks_for_is_not_anothers(world: PeerWorld) -> None:
    a, b = world.pair()
    for late_s, kind in ((0.0, Refusal.FOREIGN), (peers.HANDSHAKE_MS_MAX / 1000, Refusal.DOUBLED)):
        world.ahead_s += late_s
        raw = world.dial(a)
        raw.sendall(framed(b_says()))
        last = said_to(raw, world)[-1]
        assert isinstance(last, PeerRefused)
        assert last.kind == kind
    assert b.port.hello_of("a") is not None


def test_a_question_that_nobody_awaits_any_more_says_nothing(world: PeerWorld) -> None:
    """As of a node that was dialed while this one was paused."""
    a, _ = world.pair()
    world.ahead_s += peers.HANDSHAKE_MS_MAX / 1000
    raw = world.dial(a)
    raw.sendall(framed(b_says()))
    raw.close()
    before = len(a.events)
    world.until(lambda: len(a.port._connections) == 2)
    world.until(lambda: len(a.port._connections) == 1)
    assert len(a.events) == before


@pytest.fixture
def asked() -> Iterator[socket.socket]:
    """What "a" listens on, when the test is "a"."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(WAIT_S_MAX)
        yield listener


def _question(world: PeerWorld, b: PeerNode, asked: socket.socket) -> socket.socket:
    """Return what "b", whom nobody dials, asks "a" by."""
    world.ahead_s += TAKEOVER_S
    world.until(lambda: any(each.asks for each in b.port._connections.values()))
    raw, _ = asked.accept()
    world.raws.append(raw)
    return raw


def test_who_asks_is_not_connected_by_that_though_nothing_is_said_against_it(
    world: PeerWorld, asked: socket.socket
) -> None:
    b = world.node("b", {"a": asked.getsockname()})
    raw = _question(world, b, asked)
    raw.sendall(framed(a_says(extension=messages.Extension(BUILD))))
    world.until(lambda: any(each.hello for each in b.port._connections.values()))
    world.ahead_s += peers.HANDSHAKE_MS_MAX / 1000
    world.until(lambda: is_closed(raw))
    assert not b.events
    assert b.port.hello_of("a") is None


def test_who_is_dialed_asks_no_longer(world: PeerWorld, asked: socket.socket) -> None:
    b = world.node("b", {"a": asked.getsockname()})
    raw = _question(world, b, asked)
    world.greet(b, a_says())
    assert not any(each.asks for each in b.port._connections.values())
    assert is_closed(raw)


def test_who_has_lost_everybody_waits_as_long_as_at_first_before_it_asks(world: PeerWorld) -> None:
    b = world.node("b", {"a": NOWHERE})
    first = world.greet(b, a_says())
    world.ahead_s += TAKEOVER_S
    first.close()
    world.until(lambda: b.port.hello_of("a") is None)
    (question,) = b.port._questions
    assert question.due_at > world.clock() + TAKEOVER_S / 2
    assert b.port.next_deadline() <= question.due_at


def test_who_has_somebody_asks_nobody(world: PeerWorld) -> None:
    b = world.node("b", {"a": NOWHERE})
    world.greet(b, a_says())
    world.ahead_s += TAKEOVER_S
    b.port.tick(world.clock())
    assert b.port._questions[0].attempts == 0
    assert b.port._questions[0].lookup is None


def test_strangers_of_many_addresses_share_one_bound_of_reports(world: PeerWorld) -> None:
    b = world.node("b", {"a": NOWHERE})
    for number in range(3 * REPORTS_MAX):
        with socket.socket() as raw:
            raw.bind((f"127.0.{number}.2", 0))
            raw.connect(b.port.address)
            raw.sendall(b"garbage" * 10)
            world.until(lambda raw=raw: is_closed(raw))
    assert len(b.refusals()) == REPORTS_MAX
    world.ahead_s += REPORT_MS / 1000
    world.dial(b).sendall(b"garbage" * 10)
    world.until(lambda: len(b.refusals()) > REPORTS_MAX)
    last = [event for event in b.events if isinstance(event, peers.HandshakeRefused)][-1]
    assert last.withheld == 2 * REPORTS_MAX
