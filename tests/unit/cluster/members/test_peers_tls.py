"""Peers that have to prove who they are: nobody else is heard, and who is hears all."""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cluster.keys.authority import Authority
from cluster.keys.directory import load
from cluster.keys.tls import RECORD_BYTES, Tls, TlsSocket
from cluster.members.links import READ_BYTES_MAX, LinkState, Reason
from cluster.members.peers import (
    HANDSHAKE_MS_MAX,
    STRANGERS_MAX,
    Connected,
    DialFailed,
    Disconnected,
)
from cluster.wire.frames import framed
from cluster.wire.messages import AppendEntries, ReadIndex
from tests.unit.peer_world import NOWHERE, PeerNode, PeerWorld, a_says, is_closed

BIG = bytes(range(256)) * 20_000  # 5 MB: many records, more than the system holds


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    made = Authority.create(tmp_path_factory.mktemp("keys"), "c")
    for name in ("a", "b"):
        made.node(name)
    return made


def authorities_of(authority: Authority) -> str:
    return (authority.directory / "nodes" / "b" / "ca.pem").read_text()


def tls_of(authority: Authority, name: str) -> Tls:
    directory = authority.directory / "nodes" / name
    return load(directory, authority.cluster_id, name).tls


@pytest.fixture
def world(authority: Authority) -> Iterator[PeerWorld]:
    world = PeerWorld({name: tls_of(authority, name) for name in ("a", "b")})
    yield world
    world.close()


def connected(world: PeerWorld) -> tuple[PeerNode, PeerNode]:
    b = world.node("b", {"a": NOWHERE})
    a = world.node("a", {"b": b.port.address})
    world.until(lambda: a.port.hello_of("b") and b.port.hello_of("a"))
    return a, b


class Thief:
    """A TLS client by the standard library, with the certificate in a file."""

    def __init__(self, node: PeerNode, authorities: str, certificate: Path | None) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.load_verify_locations(cadata=authorities)
        if certificate is not None:
            context.load_cert_chain(certificate)
        self.raw = node.world.dial(node)
        self.raw.setblocking(False)
        self.wire = context.wrap_socket(self.raw, do_handshake_on_connect=False)
        node.world.raws.append(self.wire)
        node.world.until(self._has_shaken_hands)

    def _has_shaken_hands(self) -> bool:
        try:
            self.wire.do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return False
        return True

    def is_out(self) -> bool:
        try:
            while self.wire.recv(4096):
                pass
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return False
        except OSError:
            return True
        return True


def heard_of_strangers(node: PeerNode) -> bool:
    return bool(node.received) or any(isinstance(each, Connected) for each in node.events)


# --- who is let in ----------------------------------------------------------------------------


def test_members_prove_who_they_are_and_large_messages_arrive_whole(world: PeerWorld) -> None:
    a, b = connected(world)
    small = [ReadIndex(1, number) for number in range(1000)]
    big = AppendEntries(1, 0, 0, 0, [(BIG, 1, 1)])
    for message in [*small, big]:
        a.port.send("b", message)
        b.port.send("a", message)
    world.until(lambda: len(a.received) == len(b.received) == 1001)
    assert [message for _, message in b.received] == [*small, big]
    assert [message for _, message in a.received] == [*small, big]
    assert all(isinstance(each.socket, TlsSocket) for each in a.port._connections.values())


def test_an_idle_connection_wants_nothing_and_a_waiting_handshake_does_not_spin(
    world: PeerWorld,
) -> None:
    silent = socket.create_server(("127.0.0.1", 0))
    world.raws.append(silent)
    a = world.node("a", {"b": silent.getsockname()[:2]})
    world.until(lambda: any(c.state is LinkState.GREETING for c in a.port._connections.values()))
    a.turn()
    (connection,) = a.port._connections.values()
    assert connection.watched == (True, False)  # its ClientHello has left; nothing else can
    a, b = connected(PeerWorld(world.tls))
    for node in (a, b):
        assert [each.watched for each in node.port._connections.values()] == [(True, False)]
    a.world.close()


def test_nothing_in_the_clear_is_looked_at(world: PeerWorld) -> None:
    b = world.node("b", {"a": NOWHERE})
    raw = world.dial(b)
    raw.sendall(framed(a_says()))
    world.until(lambda: b.refusals())
    assert "no TLS of this cluster: wrong version number" in b.refusals()[0]
    assert not heard_of_strangers(b)
    world.until(lambda: is_closed(raw))


def test_a_node_with_keys_does_not_speak_to_one_without(world: PeerWorld) -> None:
    """No downgrade: neither side says a word in the clear, whoever dials."""
    b = world.node("b", {"a": NOWHERE})
    plain = PeerWorld()
    a = plain.node("a", {"b": b.port.address})
    world.nodes.append(a)
    world.until(lambda: b.refusals() and a.port.trouble("b"))
    assert not heard_of_strangers(a)
    assert not heard_of_strangers(b)
    plain_b = plain.node("b", {"a": NOWHERE})
    secure_a = world.node("a", {"b": plain_b.port.address})
    world.nodes.append(plain_b)
    world.until(lambda: secure_a.port.trouble("b"))
    assert not heard_of_strangers(plain_b)
    plain.close()


def test_without_a_certificate_nobody_gets_past_the_handshake(
    world: PeerWorld, authority: Authority
) -> None:
    b = world.node("b", {"a": NOWHERE})
    thief = Thief(b, authorities_of(authority), None)
    world.until(lambda: b.refusals())
    assert "peer did not return a certificate" in b.refusals()[0]
    world.until(thief.is_out)
    assert not heard_of_strangers(b)


def test_a_certificate_of_another_clusters_ca_is_refused(
    world: PeerWorld, authority: Authority, tmp_path: Path
) -> None:
    foreign = Authority.create(tmp_path / "foreign", "c").node("a")
    b = world.node("b", {"a": NOWHERE})
    thief = Thief(b, authorities_of(authority), foreign / "node.pem")
    world.until(lambda: b.refusals())
    assert "unable to get local issuer certificate" in b.refusals()[0]
    world.until(thief.is_out)
    assert not heard_of_strangers(b)


def test_a_certificate_of_our_ca_for_another_cluster_is_refused(
    world: PeerWorld, authority: Authority, tmp_path: Path
) -> None:
    """Of the id that the cluster had before it was recovered, say."""
    copy = tmp_path / "copy"
    copy.mkdir()
    state = authority.directory
    for name in ("ca.pem", "server.key", "authorized_clients", "cluster.json"):
        (copy / name).write_bytes((state / name).read_bytes())
    (copy / "nodes").mkdir()
    (copy / "clients").mkdir()
    other = Authority(copy)
    other.rename("other")
    b = world.node("b", {"a": NOWHERE})
    thief = Thief(b, authorities_of(authority), other.node("a") / "node.pem")
    world.until(lambda: b.refusals())
    assert "is of cluster 'other'" in b.refusals()[0]
    world.until(thief.is_out)
    assert not heard_of_strangers(b)


def test_a_node_can_say_no_other_name_than_its_certificates(
    world: PeerWorld, authority: Authority
) -> None:
    """The stolen keys of b make nobody a: a's Hello is refused, whoever signed the certificate."""
    b = world.node("b", {"a": NOWHERE})
    thief = Thief(b, authorities_of(authority), authority.directory / "nodes" / "b" / "node.pem")
    thief.wire.send(framed(a_says()))
    world.until(lambda: b.refusals())
    assert "says that it is 'a', and has the certificate of 'b'" in b.refusals()[0]
    assert not heard_of_strangers(b)
    world.until(thief.is_out)


def test_a_dialed_node_has_to_prove_itself_too(
    world: PeerWorld, authority: Authority, tmp_path: Path
) -> None:
    """Who has taken b's address gets not even our Hello."""
    foreign = Authority.create(tmp_path / "foreign", "c").node("b")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(foreign / "node.pem")
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setblocking(False)
    world.raws.append(listener)
    a = world.node("a", {"b": listener.getsockname()[:2]})
    heard = b""

    def is_refused() -> bool:
        nonlocal heard
        try:
            raw, _ = listener.accept()
        except BlockingIOError:
            return bool(a.refusals())
        world.raws.append(raw)
        raw.setblocking(False)
        wire = context.wrap_socket(raw, server_side=True, do_handshake_on_connect=False)
        world.raws.append(wire)
        wires.append(wire)
        return False

    wires: list[ssl.SSLSocket] = []

    def step() -> bool:
        nonlocal heard
        done = is_refused()
        for wire in wires:
            try:
                wire.do_handshake()
                heard += wire.recv(4096)
            except OSError:
                continue
        return done

    world.until(step)
    assert heard == b""
    assert "certificate" in a.refusals()[0]


# --- revoked and changed ------------------------------------------------------------------------


def test_a_revoked_certificate_ends_its_connection_and_is_not_let_in_again(
    tmp_path: Path,
) -> None:
    authority = Authority.create(tmp_path / "keys", "c")
    for name in ("a", "b"):
        authority.node(name)
    stolen = tls_of(authority, "a")
    world = PeerWorld({"a": stolen, "b": tls_of(authority, "b")})
    a, b = connected(world)
    authority.revoke_node("a")
    b.port.update_tls(tls_of(authority, "b"))
    world.until(lambda: b.refusals())
    assert any(isinstance(event, Disconnected) for event in b.events)
    assert "is revoked" in b.refusals()[0]
    assert b.port.hello_of("a") is None
    authority.node("a")
    a.port.update_tls(tls_of(authority, "a"))
    world.until(lambda: b.port.hello_of("a") is not None)
    world.close()


def test_who_was_in_its_handshake_when_its_certificate_was_revoked_is_not_let_in(
    tmp_path: Path,
) -> None:
    authority = Authority.create(tmp_path / "keys", "c")
    for name in ("a", "b"):
        authority.node(name)
    world = PeerWorld({name: tls_of(authority, name) for name in ("a", "b")})
    b = world.node("b", {"a": NOWHERE})
    world.node("a", {"b": b.port.address})
    world.until(lambda: any(each.dial is None for each in b.port._connections.values()))
    authority.revoke_node("a")
    b.port.update_tls(tls_of(authority, "b"))
    world.until(lambda: any("is revoked" in reason for reason in b.refusals()))
    assert not heard_of_strangers(b)
    world.close()


def test_a_ca_is_changed_without_an_end_but_one_renewal_after_the_other(tmp_path: Path) -> None:
    authority = Authority.create(tmp_path / "keys", "c")
    for name in ("a", "b"):
        authority.node(name)
    world = PeerWorld({name: tls_of(authority, name) for name in ("a", "b")})
    a, b = connected(world)

    def take_up(*names: str) -> list[str]:
        """Let these nodes have what is there now; return why connections ended."""
        for name in names:
            node = {"a": a, "b": b}[name]
            node.events.clear()
            node.port.update_tls(tls_of(authority, name))
            world.until(lambda: a.port._renew_at == b.port._renew_at == float("inf"))
            world.until(lambda: a.port.hello_of("b") and b.port.hello_of("a"))
        ends = [*a.events, *b.events]
        a.events.clear()
        b.events.clear()
        return [str(event.reason) for event in ends if isinstance(event, Disconnected)]

    authority.rotate_ca()
    assert take_up("a", "b") == []
    authority.rotate_node("a")
    assert Reason.RENEWED in take_up("a")
    authority.rotate_node("b")
    assert Reason.RENEWED in take_up("b")
    authority.finish_ca()
    assert take_up("a", "b") == [], "what was renewed needs no end"
    world.close()


def test_who_has_only_proved_itself_by_the_old_ca_is_put_out_with_it(tmp_path: Path) -> None:
    authority = Authority.create(tmp_path / "keys", "c")
    for name in ("a", "b"):
        authority.node(name)
    world = PeerWorld({name: tls_of(authority, name) for name in ("a", "b")})
    _, b = connected(world)
    authority.rotate_ca()
    for name in ("a", "b"):
        authority.rotate_node(name)
    authority.finish_ca()
    b.port.update_tls(tls_of(authority, "b"))
    assert b.port.hello_of("a") is None
    world.until(lambda: b.refusals())
    assert Reason.UNPROVED in [e.reason for e in b.events if isinstance(e, Disconnected)]
    world.close()


# --- floods and slow ones -----------------------------------------------------------------------


def test_half_open_connections_are_few_and_short_and_disturb_no_living_one(
    world: PeerWorld,
) -> None:
    a, b = connected(world)
    raws = []
    for number in range(300):
        raws.append(world.dial(b))
        raws[-1].sendall(b"\x16\x03\x01"[: number % 4])
        b.turn()
    world.until(lambda: sum(map(is_closed, raws[:-STRANGERS_MAX])) == 300 - STRANGERS_MAX)
    assert len(b.port._connections) <= 1 + STRANGERS_MAX
    a.port.send("b", ReadIndex(1, 1))
    world.until(lambda: b.received)
    world.ahead_s += HANDSHAKE_MS_MAX / 1000
    world.until(lambda: len(b.port._connections) == 1)
    assert [event for event in b.events if isinstance(event, Disconnected)] == []


def test_a_handshake_that_comes_byte_by_byte_has_no_longer_than_another(world: PeerWorld) -> None:
    b = world.node("b", {"a": NOWHERE})
    raw = world.dial(b)
    before = world.clock()
    for byte in b"\x16\x03\x01\x02\x00\x01":
        raw.sendall(bytes((byte,)))
        b.turn()
        world.ahead_s += HANDSHAKE_MS_MAX / 1000 / 5
    world.until(lambda: is_closed(raw))
    assert world.clock() - before < 2 * HANDSHAKE_MS_MAX / 1000 + 1


def test_a_turn_takes_no_more_of_a_handshake_than_a_record_has(authority: Authority) -> None:
    raw, stranger = socket.socketpair()
    raw.setblocking(False)
    wire = tls_of(authority, "b").wrap(raw, is_server=True)
    hello = b"\x01\x00\xff\xff" + bytes(8_000)  # of 64 KiB, a byte a record
    said = b"".join(b"\x16\x03\x01\x00\x01" + bytes((byte,)) for byte in hello)
    stranger.sendall(said)
    for turn in (1, 2):
        with pytest.raises(BlockingIOError):
            wire.recv_into(memoryview(bytearray(READ_BYTES_MAX)))
        assert len(raw.recv(len(said), socket.MSG_PEEK)) == len(said) - turn * RECORD_BYTES
    wire.close()
    stranger.close()


@given(st.lists(st.binary(min_size=1, max_size=300), min_size=1, max_size=5))
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_garbage_instead_of_a_handshake_is_no_message(
    world: PeerWorld, pieces: list[bytes]
) -> None:
    b = world.nodes[0] if world.nodes else world.node("b", {"a": NOWHERE})
    raw = world.dial(b)
    try:
        for piece in pieces:
            raw.sendall(piece)
            b.turn()
    except ConnectionError:
        pass
    world.ahead_s += HANDSHAKE_MS_MAX / 1000
    world.until(lambda: not b.port._connections)
    assert not heard_of_strangers(b)


@given(st.binary(min_size=1, max_size=2000))
@settings(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture])
@pytest.mark.slow
def test_what_a_member_says_wrong_ends_its_connection_alone(
    world: PeerWorld, garbage: bytes
) -> None:
    """Behind the handshake: garbage in records of TLS, and records that are none."""
    a, b = connected(PeerWorld(world.tls))
    wire = next(iter(a.port._connections.values())).socket
    assert isinstance(wire, TlsSocket)
    wire.sendmsg([b"\xff\xff\xff\xff" + garbage])
    wire._raw.sendall(garbage)
    a.world.until(lambda: any(isinstance(event, Disconnected) for event in b.events))
    assert b.received == []
    a.world.close()


def test_the_standard_librarys_socket_understands_ours(authority: Authority) -> None:
    """Both directions at once, in pieces of every size: nothing waits without an event to come."""
    tls = tls_of(authority, "a"), tls_of(authority, "b")
    ours, theirs = socket.socketpair()
    for each in (ours, theirs):
        each.setblocking(False)
        each.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 20_000)
    sides = tls[0].wrap(ours, is_server=True), tls[1].wrap(theirs, is_server=False)
    sent, got = [0, 0], [bytearray(), bytearray()]
    scratch = memoryview(bytearray(64 * 1024))
    give_up_at = time.monotonic() + 20
    while min(map(len, got)) < len(BIG):
        assert time.monotonic() < give_up_at, (sent, [len(each) for each in got])
        for number, side in enumerate(sides):
            try:
                rest = memoryview(BIG)[sent[number] :]
                size = 1 + sent[number] % 100_000
                sent[number] += side.sendmsg([rest[:size], rest[size : 2 * size]]) if rest else 0
                side.flush()
            except BlockingIOError:
                pass
            try:
                got[number] += scratch[: side.recv_into(scratch)]
            except BlockingIOError:
                continue
    assert got == [BIG, BIG]
    assert [side.peer.uri for side in sides if side.peer] == [
        "flotilla://c/b",
        "flotilla://c/a",
    ]
    for side in sides:
        side.close()


def test_dialing_somebody_who_ends_at_once_is_told(world: PeerWorld) -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setblocking(False)
    world.raws.append(listener)
    a = world.node("a", {"b": listener.getsockname()[:2]})

    def hung_up() -> bool:
        try:
            listener.accept()[0].close()
        except BlockingIOError:
            return bool(a.port.trouble("b"))
        return False

    world.until(hung_up)
    assert not [event for event in a.events if isinstance(event, DialFailed)]
