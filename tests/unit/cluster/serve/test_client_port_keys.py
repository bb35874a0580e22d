"""The client port with keys, on real sockets: libzmq's own CURVE, slow ones, and keys that end."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import zmq

from cluster.keys.curve import KeyPair, Keyring
from cluster.serve.client_port import (
    HANDSHAKE_S_MAX,
    PING_AFTER_S,
    SILENCE_S_MAX,
    STRANGERS_PER_TURN_MAX,
    ClientPort,
    PortLimits,
)
from cluster.serve.shares import REST_S_MAX
from cluster.serve.zmtp import MESSAGE_BYTES_MAX
from flotilla_client.keys import z85
from tests.unit.cluster.serve.test_client_port import PortWorld
from tests.unit.curve_client import GREETING, CurveClient, command, pair

SERVER, OLD_SERVER, ORDERS, STOCK = pair(), pair(), pair(), pair()
KEYRING = Keyring((SERVER, OLD_SERVER), {ORDERS.public: "orders", STOCK.public: "stock"})
TURNS = 10  # in which nothing is to happen
LIMITS = PortLimits(100, 4, 2 * MESSAGE_BYTES_MAX, 64 * 1024 * 1024)


@pytest.fixture
def world() -> Iterator[PortWorld]:
    world = PortWorld()
    world.port.close(0)
    world.port = ClientPort(
        ("127.0.0.1", 0),
        LIMITS,
        world.clock,
        watch=world.watch,
        report=world.report,
        keyring=KEYRING,
    )
    yield world
    world.port.close(0)
    for raw in world.sockets:
        raw.close()


class Context:
    """libzmq's sockets of one test."""

    def __init__(self) -> None:
        self._context: Context = zmq.Context()
        self._sockets: list[zmq.Socket[bytes]] = []

    def dealer(self) -> zmq.Socket[bytes]:
        self._sockets.append(self._context.socket(zmq.DEALER))
        return self._sockets[-1]

    def close(self) -> None:
        for each in self._sockets:
            each.close(linger=0)
        self._context.term()


@pytest.fixture
def context() -> Iterator[Context]:
    context = Context()
    yield context
    context.close()


def dealer(
    world: PortWorld,
    context: Context,
    key: KeyPair,
    server: KeyPair = SERVER,
    identity: bytes = b"",
) -> zmq.Socket[bytes]:
    made = context.dealer()
    if identity:  # libzmq takes no empty one
        made.setsockopt(zmq.IDENTITY, identity)
    made.curve_serverkey = z85(server.public).encode()
    made.curve_publickey = z85(key.public).encode()
    made.curve_secretkey = z85(key.secret).encode()
    made.connect("tcp://{}:{}".format(*world.port.address))
    return made


def asked(world: PortWorld, client: zmq.Socket[bytes], frames: list[bytes]) -> bytes:
    """Send a request; return its route when it has come."""
    world.requests.clear()
    client.send_multipart([b"", *frames])
    world.until(lambda: world.requests)
    ((route, got),) = world.requests
    assert got == frames
    return route


def test_libzmq_and_a_node_understand_each_other(world: PortWorld, context: Context) -> None:
    for server in (SERVER, OLD_SERVER):
        client = dealer(world, context, ORDERS, server)
        route = asked(world, client, [b"header", b"x" * 255, b"y" * 256, b"z" * 100_000])
        answer = [b"header", b"", b"a" * 70_000]
        world.port.send([(route, answer)])
        world.until(lambda client=client: client.poll(0))
        assert client.recv_multipart() == [b"", *answer]


def test_libzmq_answers_a_ping_in_a_box(world: PortWorld, context: Context) -> None:
    client = dealer(world, context, ORDERS)
    asked(world, client, [b"header"])
    (inside,) = world.port._clients.values()
    for _ in range(4):
        before = inside.heard_at
        world.tick(PING_AFTER_S)
        world.until(lambda before=before: inside.heard_at > before)
    assert 4 * PING_AFTER_S > SILENCE_S_MAX
    assert len(world.port) == 1


def test_another_principal_with_the_same_identity_neither_keeps_nor_puts_anybody_out(
    world: PortWorld, context: Context
) -> None:
    orders = dealer(world, context, ORDERS, identity=b"me")
    asked(world, orders, [b"a"])
    stock = dealer(world, context, STOCK, identity=b"me")
    asked(world, stock, [b"b"])
    assert not world.claimed()
    asked(world, orders, [b"c"])
    again = dealer(world, context, ORDERS, identity=b"me")
    again.send(b"")
    world.until(world.claimed)


def test_an_unknown_key_s_connection_ends_without_a_word(
    world: PortWorld, context: Context
) -> None:
    client = dealer(world, context, pair())
    client.send(b"")
    world.until(lambda: "has a key that is not known here" in world.port._closed)
    assert world.ready() == 0


def test_a_handshake_that_stops_anywhere_has_5_s_however_slowly_it_comes(world: PortWorld) -> None:
    hello = GREETING + command(CurveClient(pair(), SERVER.public).hello())
    stopped = [hello[:size] for size in (0, 1, 11, 64, 100, len(hello))]
    for said in stopped:
        world.dial().sendall(said)
    slow = world.dial()
    world.until(lambda: len(world.port) == len(stopped) + 1)
    for second in range(int(HANDSHAKE_S_MAX)):  # a byte a second keeps it no longer
        assert len(world.port) == len(stopped) + 1
        world.send(slow, hello[second : second + 1])
        world.tick(1.0)
    world.until(lambda: len(world.port) == 0)
    assert world.reasons() == ["no READY in 5 s"]


def test_strangers_take_a_bounded_part_of_a_turn(world: PortWorld) -> None:
    raws = [world.dial() for _ in range(2 * STRANGERS_PER_TURN_MAX)]
    while (before := len(world.port)) < len(raws):
        world.turn()
        assert len(world.port) - before <= STRANGERS_PER_TURN_MAX
    for raw in raws:
        raw.sendall(GREETING + command(CurveClient(pair(), SERVER.public).hello()))

    def shaken() -> int:
        handshakes = [each.receiver._handshake for each in world.port._clients.values()]
        return sum(bool(each and each._cookie) for each in handshakes)

    while not (before := shaken()):
        world.turn()
    assert before <= STRANGERS_PER_TURN_MAX
    while shaken() < len(raws):
        before = shaken()
        world.turn()
        assert shaken() - before <= STRANGERS_PER_TURN_MAX


def test_strangers_rest_behind_a_turn_in_which_they_had_their_share(world: PortWorld) -> None:
    port, count = world.port, 3 * STRANGERS_PER_TURN_MAX

    def rest() -> None:
        port.turned(1.0, world.clock(), 0)
        assert world.clock() < port.next_deadline() <= world.clock() + REST_S_MAX
        assert not port.has_more

    raws = [world.dial() for _ in range(count)]
    world.until(lambda: len(port) == STRANGERS_PER_TURN_MAX)
    rest()
    for _ in range(TURNS):
        world.turn()
    assert len(port) == STRANGERS_PER_TURN_MAX
    world.ahead_s += REST_S_MAX
    world.until(lambda: len(port) == count)
    rest()
    world.tick(REST_S_MAX)
    for raw in raws:
        raw.sendall(GREETING)
    world.until(lambda: len(port._unheard) == count - STRANGERS_PER_TURN_MAX)
    assert port.has_more
    waiting = list(port._unheard)
    rest()
    for _ in range(TURNS):
        world.turn()
    assert list(port._unheard) == waiting
    assert not any(each.watched[0] for each in waiting)
    port._close(waiting[0], "gave way")
    world.ahead_s += REST_S_MAX
    world.turn()
    assert list(port._unheard) == waiting[STRANGERS_PER_TURN_MAX + 1 :]
    world.until(lambda: not port.has_more)


def test_who_is_in_is_heard_while_strangers_rest(world: PortWorld, context: Context) -> None:
    client = dealer(world, context, ORDERS)
    asked(world, client, [b"before"])
    count = len(world.port) + STRANGERS_PER_TURN_MAX
    for _ in range(STRANGERS_PER_TURN_MAX):
        world.dial()
    world.until(lambda: len(world.port) == count)
    world.port.turned(1.0, world.clock(), 0)
    asked(world, client, [b"meanwhile"])
    assert world.clock() < world.port.next_deadline()


def test_what_somebody_has_asked_uses_up_his_quotas_though_his_connection_is_gone(
    world: PortWorld, context: Context
) -> None:
    """Who closed behind each burst was nobody, who has quotas of his own."""
    client = dealer(world, context, ORDERS)
    route = asked(world, client, [b"header"])
    client.close(linger=0)
    world.until(lambda: len(world.port) == 0)
    assert world.port.payer_of(route) == ("orders", False)


def test_who_is_in_goes_when_its_key_or_the_servers_is_not_accepted_any_more(
    world: PortWorld, context: Context
) -> None:
    other = pair()
    world.port.update_keyring(
        Keyring(KEYRING.servers, {ORDERS.public: "orders", other.public: "other"})
    )
    new, old = dealer(world, context, ORDERS), dealer(world, context, ORDERS, OLD_SERVER)
    revoked = dealer(world, context, other)
    for each in (new, old, revoked):
        asked(world, each, [b"header"])
    assert len(world.port) == 3
    world.port.update_keyring(Keyring((SERVER,), KEYRING.clients))
    assert len(world.port) == 1
    assert world.port._closed["the key of other is not accepted any more"] == 1
    assert world.port._closed["the key of orders is not accepted any more"] == 1
    asked(world, new, [b"goes on"])
