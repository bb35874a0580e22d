"""The client port on real sockets of the loopback, under the smallest possible poll loop."""

from __future__ import annotations

import select
import socket
import struct
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any

import pytest
import zmq

from cluster.serve import client_port
from cluster.serve.client_port import (
    CLAIM_S,
    HANDSHAKE_S_MAX,
    HURRY_AFTER_S,
    HURRY_SILENCE_S_MAX,
    MESSAGE_S_MAX,
    MESSAGE_SILENCE_S_MAX,
    PING_AFTER_S,
    READ_BYTES,
    SHARE_S_MAX,
    SILENCE_S_MAX,
    STEP_REQUESTS,
    UNREAD_BYTES_MAX,
    UNREAD_BYTES_PAUSE,
    ClientConnection,
    ClientPort,
    PortLimits,
)
from cluster.serve.shares import (
    CONNECTION_SHARE,
    CONTENDED_S,
    PAYER_SHARE,
    READER_TURNS,
    REST_S_MAX,
    REST_TURNS,
    WEIGHT_ANSWER_BYTES,
    WEIGHT_BYTES,
    WEIGHT_FIELDS,
    WEIGHT_IDS,
    WEIGHT_S,
)
from cluster.serve.zmtp import MESSAGE_BYTES_MAX, encode, greeting, ping, pong
from flotilla_client.protocol import TAKE, Request, encode_request

WAIT_S = 60.0  # of real time: only a failing test waits as long
LIMITS = PortLimits(8, 4, 2 * MESSAGE_BYTES_MAX, 64 * 1024 * 1024)
SHARES = 2
TURN_S = 1e-6  # so that ten thousand of them, waiting for something, come near no deadline
EVENTS_MAX = 100


class PortWorld:
    """A port whose clock jumps when told to; a turn takes `TURN_S`, however slow the machine is."""

    def __init__(self, limits: PortLimits = LIMITS) -> None:
        self.ahead_s = 0.0
        self.poller = select.epoll()
        self.watched: dict[int, tuple[bool, bool]] = {}
        self.requests: list[tuple[bytes, list[bytes]]] = []
        self.reports: list[dict[str, Any]] = []
        self.sockets: list[socket.socket] = []
        self.port = ClientPort(
            ("127.0.0.1", 0), limits, self.clock, watch=self.watch, report=self.report
        )

    def clock(self) -> float:
        return 1000.0 + self.ahead_s

    def watch(self, fd: int, read: bool, write: bool) -> None:
        mask = select.EPOLLIN * read | select.EPOLLOUT * write
        if fd in self.watched and mask:
            self.poller.modify(fd, mask)
        elif mask:
            self.poller.register(fd, mask)
        elif fd in self.watched:
            self.poller.unregister(fd)
        self.watched[fd] = read, write
        if not mask:
            del self.watched[fd]

    def report(self, event: str, **fields: Any) -> None:
        self.reports.append(fields)

    def reasons(self) -> list[str]:
        self.port._reported_at = float("-inf")
        self.tick(client_port.CHECK_PERIOD_S)
        return [reason for fields in self.reports for reason in fields["reasons"]]

    def turn(self) -> None:
        self.ahead_s += TURN_S
        for fd, mask in self.poller.poll(0):
            failed = bool(mask & (select.EPOLLERR | select.EPOLLHUP))
            readable, writable = mask & select.EPOLLIN, mask & select.EPOLLOUT
            self.port.on_ready(fd, failed or bool(readable), failed or bool(writable))
        self.port.tick(self.clock())
        self.requests += self.port.receive(EVENTS_MAX)

    def send(self, raw: socket.socket, data: bytes) -> None:
        """Send something small, and wait until the port has read of it."""
        client = self.client_of(raw)
        assert client is not None
        before = client.heard_at
        raw.sendall(data)
        self.until(lambda: client.heard_at > before)

    def tick(self, ahead_s: float) -> None:
        """Let time pass in which nothing comes."""
        self.ahead_s += ahead_s
        self.port.tick(self.clock())

    def until(self, condition: Callable[[], Any]) -> None:
        give_up_at = time.monotonic() + WAIT_S
        while not condition():
            assert time.monotonic() < give_up_at, "it did not happen"
            self.turn()

    def dial(self) -> socket.socket:
        raw = socket.create_connection(self.port.address, timeout=WAIT_S)
        self.sockets.append(raw)
        raw.setblocking(False)
        return raw

    def client(self, identity: bytes = b"", minor: int = 1) -> socket.socket:
        """Return a connection that the port has let in."""
        raw, before = self.dial(), self.ready()
        raw.sendall(hello(identity, minor))
        self.until(lambda: self.ready() > before)
        return raw

    def ready(self) -> int:
        return sum(
            each.state is client_port.PortState.READY for each in self.port._clients.values()
        )

    def claimed(self) -> bool:
        return any(client.claimant for client in self.port._clients.values())

    def greeted(self, raw: socket.socket) -> None:
        """Take what the port says first."""
        raw.settimeout(WAIT_S)
        said = b""
        while len(said) < len(greeting()):
            said += raw.recv(len(greeting()) - len(said))
        raw.setblocking(False)

    def said(self, raw: socket.socket) -> bytes:
        """Return what the port has sent and the client has not taken yet."""
        said = b""
        try:
            while piece := raw.recv(1 << 20):
                said += piece
        except BlockingIOError:
            return said
        raise AssertionError(f"closed behind {said[:200]!r}")

    def client_of(self, raw: socket.socket) -> client_port.ClientConnection | None:
        own = f":{raw.getsockname()[1]}"
        return next((c for c in self.port._clients.values() if c.address.endswith(own)), None)

    def route_of(self, raw: socket.socket) -> bytes:
        client = self.client_of(raw)
        return next(route for route, each in self.port._routes.items() if each is client)

    def lives(self, raw: socket.socket) -> bool:
        return self.client_of(raw) is not None

    def is_closed(self, raw: socket.socket) -> bool:
        """Wait until the port has closed a connection."""
        raw.setblocking(False)

        def came_to_its_end() -> bool:
            try:
                while raw.recv(1 << 20):
                    pass
            except BlockingIOError:
                return False
            except ConnectionError:
                return True
            return True

        self.until(came_to_its_end)
        return True

    def answer(self, body: bytes = b"reply") -> None:
        """Reply to every request that came."""
        requests, self.requests = self.requests, []
        self.port.send([(route, [body]) for route, _ in requests])


def hello(identity: bytes = b"", minor: int = 1) -> bytes:
    body = b"\x05READY\x0bSocket-Type" + struct.pack(">I", 6) + b"DEALER"
    body += b"\x08Identity" + struct.pack(">I", len(identity)) + identity
    return greeting()[:11] + bytes((minor,)) + greeting()[12:64] + bytes((4, len(body))) + body


def large(size: int = MESSAGE_BYTES_MAX) -> bytes:
    return b"\x02" + struct.pack(">Q", size)


def dribble(raw: socket.socket, data: bytes, world: PortWorld) -> None:
    view = memoryview(data)
    while view:
        try:
            view = view[raw.send(view) :]
        except BlockingIOError:
            world.turn()


@pytest.fixture
def world() -> Iterator[PortWorld]:
    yield from made(PortWorld())


def made(world: PortWorld) -> Iterator[PortWorld]:
    yield world
    world.port.close(0)
    for raw in world.sockets:
        raw.close()
    world.poller.close()


# --- ZeroMQ's own clients -------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [zmq.REQ, zmq.DEALER])
def test_zeromq_s_sockets_are_served(world: PortWorld, kind: int) -> None:
    host, port = world.port.address
    with zmq.Context() as context, context.socket(kind) as asker:
        asker.setsockopt(zmq.LINGER, 0)
        asker.connect(f"tcp://{host}:{port}")
        for size in (0, 10, 300, 1_000_000):
            parts = [b"header", b"x" * size]
            asker.send_multipart(parts if kind == zmq.REQ else [b"", *parts])
            world.until(lambda: world.requests)
            assert world.requests[0][1] == parts
            world.answer(b"y" * size)
            world.until(lambda: asker.poll(0))
            assert asker.recv_multipart()[-1] == b"y" * size


def test_the_system_notices_by_itself_that_a_client_has_vanished(world: PortWorld) -> None:
    """Of a client that answers no PING (ZMTP 3.0), and while a reply is under way to one."""
    connection = world.client_of(world.client(minor=0))
    assert connection is not None
    of_tcp = {
        "TCP_NODELAY": 1,
        "TCP_KEEPIDLE": client_port.PING_AFTER_S,
        "TCP_KEEPCNT": client_port.KEEPALIVE_PROBES,
        "TCP_USER_TIMEOUT": 1000 * client_port.SILENCE_S_MAX,
    }
    said = {
        name: connection.socket.getsockopt(socket.IPPROTO_TCP, getattr(socket, name))
        for name in (*of_tcp, "TCP_KEEPINTVL")
    }
    probes_s = client_port.KEEPALIVE_PROBES * said.pop("TCP_KEEPINTVL")
    assert said == of_tcp
    assert connection.socket.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
    all_s = said["TCP_KEEPIDLE"] + probes_s
    assert all_s > client_port.SILENCE_S_MAX - client_port.KEEPALIVE_PROBES
    assert all_s <= client_port.SILENCE_S_MAX


def test_a_ping_is_answered(world: PortWorld) -> None:
    raw = world.client()
    world.greeted(raw)
    raw.sendall(ping(b"context"))
    world.until(lambda: world.said(raw) == pong(b"context"))


def test_a_request_without_the_delimiter_has_no_frames(world: PortWorld) -> None:
    world.client().sendall(encode([b"header"]))
    world.until(lambda: world.requests)
    assert world.requests[0][1] == []


def test_the_last_requests_of_a_client_that_leaves_are_taken(world: PortWorld) -> None:
    raw = world.client()
    raw.sendall(encode([b"", b"last"]))
    raw.close()
    world.until(lambda: world.requests)
    world.until(lambda: len(world.port) == 0)
    world.answer()  # to nobody


# --- how many -------------------------------------------------------------------------------------


def test_one_connection_over_the_limit_is_closed_and_the_others_live(world: PortWorld) -> None:
    clients = [world.client() for _ in range(LIMITS.connections_max)]
    late = world.dial()
    assert world.is_closed(late)
    assert len(world.port) == LIMITS.connections_max
    assert world.reasons() == ["there are 8 connections: limits.connections_max"]
    clients[0].sendall(encode([b"", b"a"]))
    world.until(lambda: world.requests)


def test_strangers_give_way_to_clients(world: PortWorld) -> None:
    strangers = [world.dial() for _ in range(3 * LIMITS.connections_max)]
    for _ in range(LIMITS.connections_max):
        world.client()
    assert len(world.port) == LIMITS.connections_max
    assert all(world.is_closed(stranger) for stranger in strangers)


def test_half_a_handshake_has_its_time(world: PortWorld) -> None:
    halves = [world.dial() for _ in range(4)]
    for raw, said in zip(halves, (0, 1, 11, 64), strict=True):
        raw.sendall(hello()[:said])
    world.until(lambda: len(world.port) == 4)
    world.tick(HANDSHAKE_S_MAX + 0.1)
    assert len(world.port) == 0
    assert world.reasons() == ["no READY in 5 s"]


def test_reports_are_bounded_by_time_and_in_their_reasons(world: PortWorld) -> None:
    for number in range(60):
        raw = world.dial()
        said = b"\x06WORD%02d" % number
        raw.sendall(hello()[:64] + b"\x04" + bytes((len(said),)) + said)
        assert world.is_closed(raw)
    world.tick(client_port.REPORT_S)
    assert len(world.reports) <= 2
    told = [each["reasons"] for each in world.reports]
    assert max(map(len, told)) == client_port.REASONS_MAX + 1
    assert sum(sum(each.values()) for each in told) == 60
    assert sum(each.get("others", 0) for each in told) >= 60 - 2 * client_port.REASONS_MAX


# --- what comes in --------------------------------------------------------------------------------


def test_requests_over_the_limit_wait_in_their_connection(world: PortWorld) -> None:
    raw = world.client()
    raw.sendall(encode([b"", b"a"]) * 10)
    taken = 0
    while taken < 10:
        world.until(lambda: world.requests)
        for _ in range(5):
            world.turn()
        assert len(world.requests) <= LIMITS.requests_max
        taken += len(world.requests)
        world.answer()
    said = b""

    def came() -> bool:
        nonlocal said
        said += world.said(raw)
        return said.count(encode([b"", b"reply"])) == 10

    world.until(came)


def test_a_turn_takes_what_it_may_and_the_rest_is_not_forgotten(world: PortWorld) -> None:
    limits = PortLimits(8, 1000, LIMITS.unfinished_bytes_max, LIMITS.unread_bytes_max)
    for other in made(PortWorld(limits)):
        first, second = other.client(), other.client()
        for raw in (first, second):
            raw.sendall(encode([b"", b"a"]) * 250)
        assert select.select([], [second], [], WAIT_S)[1]
        taken: list[int] = []
        while sum(taken) < 500:
            other.turn()
            taken.append(len(other.requests))
            other.answer()
        assert max(taken) <= EVENTS_MAX


def _flood(world: PortWorld, raws: list[socket.socket], count: int) -> None:
    """Have so many requests of each wait to be taken."""
    for raw in raws:
        raw.sendall(encode([b"", b"flood"]) * count)
        client = world.client_of(raw)
        assert client is not None
        assert select.select([client.socket], [], [], WAIT_S)[0]
        world.port.on_ready(client.fd, True, False)


def _route(world: PortWorld, raw: socket.socket) -> bytes:
    client = world.client_of(raw)
    assert client is not None
    return client.route


def _is_in(world: PortWorld, raw: socket.socket) -> bool:
    client = world.client_of(raw)
    return client is not None and client.state is client_port.PortState.READY


def _is_alone(world: PortWorld) -> bool:
    return len(world.port) == 1


MANY = PortLimits(64, 1000, LIMITS.unfinished_bytes_max, LIMITS.unread_bytes_max)


def test_a_flood_has_another_connection_s_request_wait_for_a_few_of_its_own(
    world: PortWorld,
) -> None:
    for other in made(PortWorld(MANY)):
        flooder, second = other.client(), other.client()
        _flood(other, [flooder], 400)
        _flood(other, [second], 1)
        taken = [route for route, _ in other.port.receive(EVENTS_MAX)]
        assert taken.index(_route(other, second)) <= STEP_REQUESTS
        # From now on it is known that there is another one: a turn takes few of the flood.
        for _ in range(5):
            assert len(other.port.receive(EVENTS_MAX)) == CONNECTION_SHARE
        other.ahead_s += CONTENDED_S
        assert len(other.port.receive(EVENTS_MAX)) == EVENTS_MAX


def test_a_flood_of_many_connections_of_one_payer_has_one_payer_s_share(world: PortWorld) -> None:
    for other in made(PortWorld(MANY)):
        flooders, second = [other.client() for _ in range(20)], other.client()
        victim = other.client_of(second)
        assert victim is not None
        victim.payer = "another"
        for _ in range(3):
            _flood(other, flooders, 20)
            _flood(other, [second], 1)
            taken = [route for route, _ in other.port.receive(EVENTS_MAX)]
            assert taken.index(victim.route) <= STEP_REQUESTS
        assert len(taken) == PAYER_SHARE + 1
        counts: Counter[bytes] = Counter()
        for _ in range(10):
            counts += Counter(route for route, _ in other.port.receive(EVENTS_MAX))
        assert len(counts) == 20
        assert max(counts.values()) - min(counts.values()) <= STEP_REQUESTS


@pytest.fixture
def contended() -> Iterator[tuple[PortWorld, socket.socket, ClientConnection, socket.socket]]:
    """Return a port that two payers have asked something: the world, one of them, the other."""
    for world in made(PortWorld(MANY)):
        flooder, second = world.client(), world.client()
        victim, first = world.client_of(second), world.client_of(flooder)
        assert victim is not None
        assert first is not None
        victim.payer = "another"
        for raw in (flooder, second):
            _flood(world, [raw], 1)
            world.turn()
        world.requests.clear()
        yield world, flooder, first, second


Contended = tuple[PortWorld, socket.socket, ClientConnection, socket.socket]


def test_who_had_all_of_his_share_while_there_are_others_is_not_read_for_some_turns_time(
    contended: Contended,
) -> None:
    world, flooder, first, second = contended
    _flood(world, [flooder], 400)
    world.turn()
    assert len(world.requests) == CONNECTION_SHARE
    turn_s = 0.002
    world.port.turned(turn_s, world.clock(), 0)
    assert world.port.next_deadline() == world.clock() + REST_TURNS * turn_s
    assert not world.port.has_more, "the next turn is not due at once"
    assert first.fd not in world.watched, "nor is a poll over at once"
    _flood(world, [second], 1)
    world.turn()
    assert _route(world, second) in [route for route, _ in world.requests[CONNECTION_SHARE:]]
    assert len(world.requests) == CONNECTION_SHARE + 1
    world.ahead_s += REST_TURNS * turn_s
    world.turn()
    assert [route for route, _ in world.requests[-CONNECTION_SHARE:]] == (
        CONNECTION_SHARE * [first.route]
    )
    assert world.port.next_deadline() == float("inf")
    assert world.watched[first.fd][0]


def test_a_rest_is_bounded_however_long_the_turn_was(contended: Contended) -> None:
    world, flooder, *_ = contended
    _flood(world, [flooder], 40)
    world.turn()
    world.port.turned(60.0, world.clock(), 0)
    assert world.port.next_deadline() == world.clock() + REST_S_MAX


@pytest.mark.parametrize(
    ("frame", "is_large"),
    [
        (bytes(PAYER_SHARE * WEIGHT_BYTES), True),
        (b'"t":1,' * (PAYER_SHARE * WEIGHT_FIELDS), True),  # where one is in a thousand topics
        (bytes(10), False),
        (b'"t":1,' * 20, False),
    ],
)
def test_one_large_request_is_all_of_a_share_while_there_are_others(
    contended: Contended, frame: bytes, is_large: bool
) -> None:
    world, flooder, *_ = contended
    request = encode([b"", frame])
    sent = 0
    while not world.requests:  # it is more than the kernel holds
        with suppress(BlockingIOError):
            sent += flooder.send(request[sent:])
        world.turn()
    world.port.turned(0.002, world.clock(), 0)
    assert (world.port.next_deadline() < float("inf")) == is_large


def test_who_has_asked_for_much_rests_longer_than_the_turn_says(contended: Contended) -> None:
    world, flooder, *_ = contended
    extends = [[1, 1, 8 * PAYER_SHARE * WEIGHT_IDS, 1_000]]
    body = {"group": "g", "max_count": 0, "extends": extends}
    flooder.sendall(encode([b"", *encode_request(Request(TAKE, "r", "t", "me", None, body))]))
    world.until(lambda: bool(world.requests))
    ended = world.clock()
    world.port.turned(0.0, ended, 0)
    rest_s = REST_TURNS * (8 * PAYER_SHARE + 1) * WEIGHT_S
    assert world.port.next_deadline() == pytest.approx(ended + rest_s)


@pytest.mark.parametrize("shares", [0.5, 1.0])
def test_who_was_answered_a_lot_rests_while_there_are_others(
    contended: Contended, shares: float
) -> None:
    world, flooder, first, _ = contended
    flooder.sendall(encode([b"", b"ask"]))
    world.until(lambda: bool(world.requests))
    answer = bytes(int(shares * PAYER_SHARE * WEIGHT_ANSWER_BYTES))
    world.port.send([(first.route, [answer])])
    world.port.turned(0.0, world.clock(), 0)
    ends = world.port.next_deadline()
    assert (ends < float("inf")) == (shares == 1.0)
    world.port.turned(0.0, world.clock() + REST_S_MAX, 0)
    assert world.port.next_deadline() == ends, "what was answered counts once"


@pytest.mark.parametrize(
    ("shares", "stored_ago_s", "rests"),
    [(1.0, 0.0, True), (1.0, CONTENDED_S, False), (0.5, 0.0, False), (8.0, 0.5, True)],
)
def test_who_reads_a_lot_rests_while_anybody_publishes_though_he_is_alone_here(
    world: PortWorld, shares: float, stored_ago_s: float, rests: bool
) -> None:
    raw = world.client()
    reader = world.client_of(raw)
    assert reader is not None
    world.port.turned(0.0, world.clock(), 1)  # it was told of a publication of another node's
    world.ahead_s += stored_ago_s
    raw.sendall(encode([b"", b"ask"]))
    world.until(lambda: bool(world.requests))
    world.port.send([(reader.route, [bytes(int(shares * PAYER_SHARE * WEIGHT_ANSWER_BYTES))])])
    ended, before = world.clock(), len(world.requests)
    world.port.turned(0.0, ended, 1)
    rest_s = READER_TURNS * shares * PAYER_SHARE * WEIGHT_S if rests else float("inf")
    assert world.port.next_deadline() == pytest.approx(ended + rest_s)
    raw.sendall(encode([b"", b"ask"]))
    if rests:
        world.until(lambda: reader in world.port._held)
        assert len(world.requests) == before
        world.ahead_s += rest_s
    world.until(lambda: len(world.requests) == before + 1)


def test_a_connection_rests_to_its_end_though_that_of_another_one_is_over(world: PortWorld) -> None:
    raws = world.client(), world.client()
    for raw in raws:
        raw.sendall(encode([b"", b"ask"]))
    world.until(lambda: len(world.requests) == 2)
    longer, shorter = [world.client_of(raw) for raw in raws]
    assert longer is not None
    assert shorter is not None
    answer = bytes(PAYER_SHARE * WEIGHT_ANSWER_BYTES)
    world.port.send([(longer.route, [8 * answer]), (shorter.route, [answer])])
    world.port.turned(0.0, world.clock(), 1)
    for raw in raws:
        raw.sendall(encode([b"", b"ask"]))
    world.until(lambda: len(world.port._held) == 2)
    world.ahead_s += READER_TURNS * PAYER_SHARE * WEIGHT_S
    world.until(lambda: len(world.requests) == 3)
    assert [*world.port._held] == [longer]


def test_who_reads_a_lot_holds_up_no_other_connection_of_its_payer(world: PortWorld) -> None:
    raw, second = world.client(), world.client()
    reader = world.client_of(raw)
    assert reader is not None
    raw.sendall(encode([b"", b"ask"]))
    world.until(lambda: bool(world.requests))
    world.port.send([(reader.route, [bytes(PAYER_SHARE * WEIGHT_ANSWER_BYTES)])])
    world.port.turned(REST_S_MAX, world.clock(), 1)
    assert world.port.next_deadline() < float("inf")
    second.sendall(encode([b"", b"ask"]))
    world.until(lambda: len(world.requests) == 2)
    assert world.requests[-1][0] == _route(world, second)


def test_who_rests_in_the_middle_of_a_message_is_no_slower_for_it(contended: Contended) -> None:
    world, flooder, first, _ = contended
    flooder.sendall(encode([b"", b"flood"]) * CONNECTION_SHARE + large()[:100])
    world.until(lambda: len(world.requests) == CONNECTION_SHARE)
    world.port.turned(
        0.0, world.clock(), 0
    )  # what is left of what was read is read in the next turn
    world.until(lambda: first.began_at)
    began_at = first.began_at
    world.port._rests.spent(first.payer)
    world.port.turned(REST_S_MAX, world.clock(), 0)
    flooder.sendall(b"more")
    world.until(lambda: first in world.port._held)
    world.ahead_s += REST_S_MAX + TURN_S
    world.until(lambda: first not in world.port._held)
    assert first.began_at == pytest.approx(began_at + REST_S_MAX)


def test_a_stranger_who_asks_at_once_holds_up_no_other_stranger(contended: Contended) -> None:
    world, *_ = contended
    hasty = world.dial()
    hasty.sendall(hello() + encode([b"", b"flood"]) * 2 * CONNECTION_SHARE)
    world.until(lambda: world.requests)
    world.port.turned(REST_S_MAX, world.clock(), 0)
    assert "" not in world.port._rests


def test_who_closes_while_he_rests_is_forgotten(contended: Contended) -> None:
    world, flooder, first, _ = contended
    _flood(world, [flooder], 40)
    world.turn()
    world.port.turned(0.01, world.clock(), 0)
    assert first in world.port._held
    world.port.close(0.0)
    assert not world.port._held


def test_who_is_alone_may_fill_a_turn(world: PortWorld) -> None:
    for other in made(PortWorld(MANY)):
        other.client()  # connected, and silent
        flooder = other.client()
        _flood(other, [flooder], 400)
        assert len(other.port.receive(EVENTS_MAX)) == EVENTS_MAX
        assert len(other.port.receive(EVENTS_MAX)) == EVENTS_MAX


def test_a_payer_s_surplus_connections_say_so_have_a_stranger_s_place_and_end(
    world: PortWorld,
) -> None:
    limits = PortLimits(4, 4, LIMITS.unfinished_bytes_max, LIMITS.unread_bytes_max, 2)
    for other in made(PortWorld(limits)):
        raws = [other.client() for _ in range(4)]
        surplus = [other.port.payer_of(_route(other, raw)) for raw in raws]
        assert surplus == [("127.0.0.1", is_one) for is_one in (False, False, True, True)]
        newcomer = other.dial()  # the first surplus one gives way
        newcomer.sendall(hello())
        other.until(partial(_is_in, other, newcomer))
        assert [other.lives(raw) for raw in (*raws, newcomer)] == [True, True, False, True, True]
        other.tick(HANDSHAKE_S_MAX)
        assert [other.lives(raw) for raw in raws[:2]] == [True, True]
        assert other.is_closed(raws[3])
        assert other.is_closed(newcomer)
        assert "127.0.0.1 has as many as quotas.connections_max" in other.reasons()
        raws[0].close()
        other.until(partial(_is_alone, other))
        assert not other.port.payer_of(_route(other, other.client()))[1]
        assert other.port._payers == {"127.0.0.1": 2}


def test_large_messages_are_sent_by_turns(world: PortWorld) -> None:
    raws = [world.client() for _ in range(SHARES + 2)]
    for raw in raws:
        dribble(raw, large() + bytes(READ_BYTES), world)
    world.until(lambda: len(world.port._wanting) == 2)
    held = sorted(each.receiver.unfinished_bytes for each in world.port._clients.values())
    assert held == [MESSAGE_BYTES_MAX] * 4
    assert sum(each.has_share for each in world.port._clients.values()) == SHARES
    small = world.client()
    small.sendall(encode([b"", b"a"]))
    world.until(lambda: world.requests)
    world.answer()
    for raw in raws[:SHARES]:
        dribble(raw, bytes(MESSAGE_BYTES_MAX - READ_BYTES), world)
    world.until(lambda: len(world.requests) == SHARES)
    for raw in raws[SHARES:]:
        dribble(raw, bytes(MESSAGE_BYTES_MAX - READ_BYTES), world)
    world.until(lambda: len(world.requests) == len(raws))
    assert world.port._shares == SHARES


def test_another_payer_s_large_message_does_not_wait_behind_all_of_one_s(world: PortWorld) -> None:
    flood = [world.client() for _ in range(SHARES + 4)]
    for raw in flood:
        dribble(raw, large() + bytes(READ_BYTES), world)
    world.until(lambda: len(world.port._wanting) == 4)
    mine = world.client()
    waiting = world.client_of(mine)
    assert waiting is not None
    waiting.payer = "another"
    dribble(mine, large() + bytes(READ_BYTES), world)
    world.until(lambda: waiting in world.port._wanting)
    dribble(flood[0], bytes(MESSAGE_BYTES_MAX - READ_BYTES), world)
    world.until(lambda: len(world.requests) == 1)
    assert waiting.has_share
    dribble(flood[1], bytes(MESSAGE_BYTES_MAX - READ_BYTES), world)
    world.until(lambda: len(world.requests) == 2)
    second = world.client_of(flood[2])
    assert second is not None
    assert second.has_share, "those of one payer have theirs in order"


def test_who_leaves_in_the_middle_of_a_large_message_leaves_its_share(world: PortWorld) -> None:
    raw = world.client()
    dribble(raw, large() + bytes(READ_BYTES), world)
    world.until(lambda: world.port._shares == SHARES - 1)
    raw.close()
    world.until(lambda: not len(world.port))
    assert world.port._shares == SHARES


def test_who_has_a_share_and_is_slow_is_closed_while_others_wait(world: PortWorld) -> None:
    slow = [world.client() for _ in range(SHARES)]
    for raw in slow:
        dribble(raw, large() + bytes(2 * READ_BYTES), world)
    clients = list(world.port._clients.values())
    world.until(
        lambda: all(c.receiver.missing_bytes == MESSAGE_BYTES_MAX - 2 * READ_BYTES for c in clients)
    )
    world.tick(HURRY_SILENCE_S_MAX + 0.3)
    assert len(world.port) == SHARES, "nobody waits"
    waiting = world.client()
    dribble(waiting, large() + bytes(READ_BYTES), world)
    world.until(lambda: world.port._wanting)
    world.tick(1.0)
    assert sorted(map(world.lives, slow)) == [False, True], "one share is enough for one"
    dribble(waiting, bytes(MESSAGE_BYTES_MAX - READ_BYTES), world)
    world.until(lambda: world.requests)


def test_who_has_a_share_and_dribbles_is_closed_while_others_wait(world: PortWorld) -> None:
    slow = [world.client() for _ in range(SHARES)]
    for raw in slow:
        dribble(raw, large() + bytes(2 * READ_BYTES), world)
    waiting = world.client()
    dribble(waiting, large() + bytes(READ_BYTES), world)
    world.until(lambda: world.port._wanting)
    pauses = 5
    for _ in range(pauses - 1):
        world.tick(HURRY_AFTER_S / pauses)
        assert all(map(world.lives, slow)), "they are not silent for long"
        for raw in slow:
            world.send(raw, b"x")
    world.tick(HURRY_AFTER_S / pauses + 0.05)
    assert sorted(map(world.lives, slow)) == [False, True]


def test_who_waits_for_a_share_has_its_time(world: PortWorld) -> None:
    holders = [world.client() for _ in range(SHARES)]
    for raw in holders:
        dribble(raw, large() + bytes(READ_BYTES), world)
    world.until(lambda: sum(c.has_share for c in world.port._clients.values()) == SHARES)
    waiting = world.client()
    dribble(waiting, large() + bytes(READ_BYTES), world)
    world.until(lambda: world.port._wanting)
    # Who sends fast enough keeps its share; that every one does for so long takes large messages.
    for client in world.port._clients.values():
        client.began_at = client.heard_at = world.clock() + SHARE_S_MAX
    world.tick(SHARE_S_MAX - 1.0)
    assert world.lives(waiting)
    world.tick(1.1)
    assert not world.lives(waiting)
    assert not world.port._wanting
    assert any("limits.unfinished_bytes_max" in reason for reason in world.reasons())
    assert all(map(world.lives, holders))


def test_who_has_a_share_and_takes_no_replies_gives_way_to_others(world: PortWorld) -> None:
    holders = [world.client() for _ in range(SHARES)]
    for raw in holders:
        raw.sendall(encode([b"", b"parked"]))
    world.until(lambda: len(world.requests) == SHARES)
    for raw in holders:
        dribble(raw, large() + bytes(2 * READ_BYTES), world)
    world.until(lambda: sum(c.has_share for c in world.port._clients.values()) == SHARES)
    world.answer(bytes(2 * UNREAD_BYTES_MAX // 3))
    clients = list(world.port._clients.values())
    assert not any(client.watched[0] for client in clients), "they are read, and may be judged"
    waiting = world.client()
    dribble(waiting, large() + bytes(READ_BYTES), world)
    world.until(lambda: world.port._wanting)
    world.tick(HURRY_AFTER_S + 0.1)
    assert sorted(map(world.lives, holders)) == [False, True], "one share is enough for one"


def test_an_unfinished_message_has_its_time(world: PortWorld) -> None:
    silent, dribbling = world.client(), world.client()
    world.send(silent, b"\x01\x01x")
    world.send(dribbling, large(1000))
    world.tick(MESSAGE_SILENCE_S_MAX / 2)
    world.send(dribbling, b"x")
    world.tick(MESSAGE_SILENCE_S_MAX / 2 + 0.1)
    assert not world.lives(silent)
    while world.ahead_s < MESSAGE_S_MAX:
        assert world.lives(dribbling)
        world.send(dribbling, b"x")
        world.tick(MESSAGE_SILENCE_S_MAX / 2)
    assert not world.lives(dribbling)


# --- what goes out --------------------------------------------------------------------------------


def test_a_client_that_takes_no_replies_is_not_read_and_then_closed(world: PortWorld) -> None:
    raw = world.client()
    raw.sendall(encode([b"", b"a"]) * 100)
    other = world.client()
    replies = 0
    while len(world.port) == 2:
        world.turn()
        unread = world.port.unread_bytes
        if unread > UNREAD_BYTES_PAUSE:
            break
        replies += len(world.requests)
        world.answer(bytes(100_000))
    for _ in range(5):
        world.turn()
    assert len(world.requests) <= LIMITS.requests_max, "it may not ask for more"
    route = next(iter(world.port._routes))
    assert world.port.room_bytes(route) < client_port.UNREAD_BYTES_SERVED
    world.port._routes[route].requests += 1
    world.port.send([(route, [bytes(UNREAD_BYTES_MAX)])])
    assert len(world.port) == 1
    assert world.port.unread_bytes == 0
    other.sendall(encode([b"", b"a"]))
    world.until(lambda: len(world.port) == 1 and world.requests)


def test_a_client_that_takes_its_replies_late_gets_them_all(world: PortWorld) -> None:
    raw = world.client()
    world.greeted(raw)
    raw.sendall(encode([b"", b"a"]) * 100)
    reply, replies, said = bytes(150_000), 0, 0
    while said < 100 * len(encode([b"", reply])):
        world.turn()
        replies += len(world.requests)
        world.answer(reply)
        if world.port.unread_bytes > UNREAD_BYTES_PAUSE or replies == 100:
            said += len(world.said(raw))
    assert (replies, world.port.unread_bytes) == (100, 0)


def test_who_has_most_unread_replies_gives_way_to_all(world: PortWorld) -> None:
    limits = PortLimits(16, 4, LIMITS.unfinished_bytes_max, 40 * 1024 * 1024)
    for other in made(PortWorld(limits)):
        raws = [other.client() for _ in range(6)]
        idle = other.route_of(other.client())
        for number, raw in enumerate(raws):
            raw.sendall(encode([b"", b"a"]))
            while not other.requests:
                other.turn()
            other.answer(bytes((8 + number) * 1024 * 1024))
            assert other.port.unread_bytes <= limits.unread_bytes_max
            assert other.port.room_bytes(idle) > 0
        unread = other.port._routes.keys() - {idle}
        assert max(map(other.port.room_bytes, unread)) <= 0
        assert other.lives(raws[0])
        assert other.reasons() == ["doesn't take its replies: limits.unread_bytes_max"]


def test_nothing_is_made_for_who_has_gone(world: PortWorld) -> None:
    raw = world.client()
    route = world.route_of(raw)
    assert world.port.room_bytes(route) > 0
    raw.close()
    world.until(lambda: not len(world.port))
    assert world.port.room_bytes(route) <= 0


def test_replies_that_nobody_takes_for_long_end_a_connection(world: PortWorld) -> None:
    raw = world.client(minor=0)
    raw.sendall(encode([b"", b"a"]))
    world.until(lambda: world.requests)
    world.answer(bytes(12 * 1024 * 1024))
    world.tick(SILENCE_S_MAX / 2)
    assert len(world.port) == 1
    world.tick(SILENCE_S_MAX / 2 + 0.1)
    assert len(world.port) == 0


def test_the_last_replies_leave_before_the_port_closes(world: PortWorld) -> None:
    raw = world.client()
    raw.sendall(encode([b"", b"a"]))
    world.until(lambda: world.requests)
    world.answer(b"last")
    world.port.close(1.0)
    raw.settimeout(WAIT_S)
    said = b""
    while piece := raw.recv(1000):
        said += piece
    assert said.endswith(encode([b"", b"last"]))


# --- life and identity ----------------------------------------------------------------------------


def test_a_client_that_vanished_is_asked_and_then_closed(world: PortWorld) -> None:
    living, gone, old = world.client(), world.client(), world.client(minor=0)
    for raw in (living, gone, old):
        world.greeted(raw)
    world.tick(PING_AFTER_S + 0.1)
    assert select.select([living], [], [], WAIT_S)[0]
    assert world.said(living) == ping(b"")
    assert world.said(old) == b"", "ZMTP 3.0 knows no PING; TCP's keepalive finds it"
    world.send(living, pong(b""))
    world.tick(SILENCE_S_MAX - PING_AFTER_S)
    assert not world.lives(gone)
    assert world.lives(living)
    assert world.lives(old)
    assert world.reasons() == ["silent for 30 s"]


def test_a_node_that_was_paused_hears_its_clients_before_it_judges_them(world: PortWorld) -> None:
    raw, owner, half = world.client(), world.client(b"me"), world.dial()
    half.sendall(hello()[:30])
    claimant = world.dial()
    claimant.sendall(hello(b"me"))
    world.until(world.claimed)
    world.until(lambda: len(world.port) == 4)
    raw.sendall(encode([b"", b"a"]))
    owner.sendall(pong(b""))
    half.sendall(hello()[30:])
    while len(world.poller.poll(WAIT_S)) < 3:
        pass
    world.ahead_s += 2 * SILENCE_S_MAX
    world.turn()
    assert [body for _, body in world.requests] == [[b"a"]]
    assert all(map(world.lives, (raw, owner, half)))
    assert world.is_closed(claimant)


def test_a_second_connection_with_the_identity_of_a_living_one_is_refused(world: PortWorld) -> None:
    first = world.client(b"me")
    first.sendall(encode([b"", b"a"]))
    world.until(lambda: world.requests)
    world.greeted(first)
    second = world.dial()
    second.sendall(hello(b"me") + encode([b"", b"b"]))
    world.until(lambda: b"PING" in world.said(first))
    assert world.lives(second), "not before the first had time to answer"
    third = world.dial()
    third.sendall(hello(b"me"))
    assert world.is_closed(third)
    first.sendall(pong(b""))
    assert world.is_closed(second)
    world.answer()
    world.until(lambda: encode([b"", b"reply"]) in world.said(first))
    assert world.requests == []


def test_a_client_that_comes_back_takes_over_from_its_dead_connection(world: PortWorld) -> None:
    first = world.client(b"me")
    first.sendall(encode([b"", b"a"]))
    world.until(lambda: world.requests)
    second = world.dial()
    second.sendall(hello(b"me") + encode([b"", b"b"]))
    world.until(world.claimed)
    world.tick(CLAIM_S + 0.1)
    assert world.is_closed(first)
    world.until(lambda: len(world.requests) == 2)
    world.answer()
    world.until(lambda: encode([b"", b"reply"]) in world.said(second))


def test_an_identity_is_free_when_its_connection_ends(world: PortWorld) -> None:
    for _ in range(3):
        world.client(b"me").close()
        world.until(lambda: len(world.port) == 0)
    first = world.client(b"me")
    second = world.dial()
    second.sendall(hello(b"me"))
    world.until(world.claimed)
    first.close()
    world.until(lambda: world.ready() == 1 and len(world.port) == 1)
    assert world.lives(second)


def test_a_claim_that_is_given_up_harms_nobody(world: PortWorld) -> None:
    first = world.client(b"me")
    second = world.dial()
    second.sendall(hello(b"me"))
    world.until(world.claimed)
    second.close()
    first.sendall(pong(b""))
    world.until(lambda: not world.claimed())
    world.until(lambda: len(world.port) == 1)
    world.tick(CLAIM_S + 0.1)
    assert world.lives(first)


def test_a_surplus_connection_that_gives_way_when_its_time_is_over_is_closed_once(
    world: PortWorld,
) -> None:
    limits = PortLimits(8, 4, LIMITS.unfinished_bytes_max, LIMITS.unread_bytes_max, 1)
    for other in made(PortWorld(limits)):
        other.client()
        claimant = other.dial()  # accepted before the one whose identity it comes with
        other.until(partial(other.client_of, claimant))
        surplus = other.client(b"me")
        other.tick(HANDSHAKE_S_MAX - CLAIM_S)
        claimant.sendall(hello(b"me"))
        other.until(other.claimed)
        other.tick(CLAIM_S)
        assert other.is_closed(surplus)
        assert other.lives(claimant)


def test_a_connection_that_broke_in_the_turn_in_which_its_identity_comes_again(
    world: PortWorld,
) -> None:
    first, second = world.client(b"me"), world.dial()
    world.until(lambda: len(world.port) == 2)
    second.sendall(hello(b"me") + encode([b"", b"b"]))
    owner, newcomer = world.client_of(first), world.client_of(second)
    assert owner
    assert newcomer
    world.port.on_ready(newcomer.fd, True, False)
    first.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    first.close()  # a reset, as of a process that was killed with something unread
    world.port.on_ready(owner.fd, True, True)
    world.requests += world.port.receive(EVENTS_MAX)
    world.until(lambda: world.requests)
    assert world.lives(second)
