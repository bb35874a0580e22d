"""What is tried: each attack opens its own sockets and says how often it tried and who answered it.

What must not live here: the cluster under attack, the bystander, what is measured (measure.py).
"""

from __future__ import annotations

import json
import random
import socket
import ssl
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import zmq

from cluster.keys.authority import Authority
from cluster.local.local import LocalCluster
from cluster.wire.frames import FrameReader, framed
from cluster.wire.messages import (
    FRAME_BYTES_MAX,
    PROTOCOL_VERSION,
    Extension,
    Hello,
    PeerRefused,
)
from flotilla_client.keys import Key, from_z85, read_key
from flotilla_client.protocol import STATUS, TOPICS, ProtocolError, decode_reply, decode_request
from tests.cluster.raw_client import Raw, address_of, request
from tests.cluster.test_hostile import bad_frames, mutated_messages
from tests.cluster.test_keys import peer_address
from tests.unit.curve_client import GREETING, CurveClient, command, pair

FRAMES_PER_CONNECTION: Final = 10
WINDOW: Final = 200  # messages in flight
REPLY_MS_MAX: Final = 20_000
WAIT_S: Final = 10.0
SLOW_STEP_S: Final = 0.1  # between two bytes of who is slow
SLOW_STEPS: Final = 50
PARTS: Final = 5_000  # of a giant message
PART_BYTES: Final = 5 * 1024 * 1024
LISTENED: Final = 50  # of so many short connections one is listened to until it is closed
LISTEN_S: Final = 3.0
TLS_ALERT: Final = 0x15


@dataclass(frozen=True)
class AttackedCluster:
    """A cluster with keys.

    `attacker`: a client's key that is let in; `victim`: another's id. `recorded`: what a client
    with a key has sent once, from its first byte on.
    """

    cluster: LocalCluster
    attacker: Path
    victim: str
    recorded: list[bytes]

    @property
    def client_ports(self) -> list[tuple[str, int]]:
        """Where clients come."""
        return [address_of(each) for each in self.cluster.endpoints().values()]

    @property
    def peer_ports(self) -> list[tuple[str, int]]:
        """Where nodes come."""
        return [peer_address(self.cluster, name) for name in self.cluster.pids()]

    @property
    def pages(self) -> list[tuple[str, int]]:
        """Where browsers come."""
        return [address_of(each.removeprefix("http://")) for each in self.cluster.pages().values()]


@dataclass(frozen=True)
class Tried:
    """`count`: how often; `answered`: how often somebody got more than a refusal: 0 is due."""

    count: int
    answered: int = 0


def _is_let_in(said: bytes) -> bool:
    """Return whether a node said more to a stranger than how to begin, or that he is refused.

    READY ends a CURVE handshake, and its name is in the clear. TLS says the kind of a record first.
    """
    if said.startswith(GREETING[:10]):
        return b"\x05READY" in said or b"\x07MESSAGE" in said
    if said.startswith(b"HTTP/"):
        return not said.startswith((b"HTTP/1.1 4", b"HTTP/1.1 5"))
    return said != b"" and said[0] != TLS_ALERT


def _shout(number: int, ports: Sequence[tuple[str, int]], data: bytes) -> bool:
    """Say something and go; of one in LISTENED stay to hear whether somebody lets us in."""
    said = b""
    with suppress(OSError):
        address = ports[number % len(ports)]
        with socket.create_connection(address, timeout=LISTEN_S) as raw:
            raw.sendall(data)
            while number % LISTENED == 0 and (piece := raw.recv(4096)):
                said += piece
    return _is_let_in(said)


def _heard(raws: Iterable[socket.socket]) -> int:
    """Return how many of these connections were let in, and close them."""
    count = 0
    for raw in raws:
        with suppress(OSError), raw:
            raw.setblocking(False)
            count += _is_let_in(raw.recv(4096))
    return count


def _handshakes(rng: random.Random) -> bytes:
    """Return malformed beginnings of a client's connection."""
    said = [GREETING, rng.randbytes(rng.randrange(1, 200))]
    damaged = bytearray(GREETING)
    damaged[rng.randrange(len(damaged))] ^= 1 << rng.randrange(8)
    said.append(bytes(damaged))
    for _ in range(FRAMES_PER_CONNECTION):
        body = rng.randbytes(rng.randrange(1, 250))
        said.append(command(body) if rng.random() < 0.5 else body)
    return b"".join(said[rng.randrange(3) :])


def frames_before_the_handshake(target: AttackedCluster, rng: random.Random, count: int) -> Tried:
    """Malformed frames on the client port, before the handshake."""
    ports, connections = target.client_ports, range(count // FRAMES_PER_CONNECTION)
    return Tried(count, sum(_shout(number, ports, _handshakes(rng)) for number in connections))


def _socket(context: zmq.Context[zmq.Socket[bytes]], key: Key, endpoint: str) -> zmq.Socket[bytes]:
    dealer = context.socket(zmq.DEALER)
    dealer.setsockopt(zmq.LINGER, 0)
    dealer.curve_publickey, dealer.curve_secretkey = key.public.encode(), key.secret.encode()
    dealer.curve_serverkey = key.server.encode()
    dealer.connect(endpoint)
    return dealer


def _harmless(message: list[bytes]) -> set[str]:
    """Return the id of a request that anybody may have answered."""
    try:
        request = decode_request(message)
    except ProtocolError:
        return set()
    return {request.request_id} if request.type in (STATUS, TOPICS) else set()


def _asked(target: AttackedCluster, messages: Iterator[list[bytes]]) -> Tried:
    """Send messages with a key that is let in; count those that were carried out.

    STATUS and TOPICS are for everybody who is let in, and change nothing: they do not count.
    """
    key, count, answered, in_flight = read_key(target.attacker), 0, 0, 0
    harmless: set[str] = set()
    endpoint = target.cluster.endpoints()[target.cluster.wait_for_leader()]
    with zmq.Context() as context, _socket(context, key, endpoint) as dealer:

        def took() -> bool:
            assert dealer.poll(REPLY_MS_MAX), f"no reply to one of {count}"
            reply = decode_reply(dealer.recv_multipart()[1:])
            return reply.ok and reply.request_id not in harmless

        for message in messages:
            harmless.update(_harmless(message))
            dealer.send_multipart([b"", *message])
            count, in_flight = count + 1, in_flight + 1
            if in_flight >= WINDOW:
                answered, in_flight = answered + took(), in_flight - 1
        answered += sum(took() for _ in range(in_flight))
    return Tried(count, answered)


def frames_after_the_handshake(target: AttackedCluster, rng: random.Random, count: int) -> Tried:
    """Malformed messages on the client port, in boxes, with a key that is let in."""
    return _asked(target, mutated_messages(rng, count))


def another_principal_s_id(target: AttackedCluster, rng: random.Random, count: int) -> Tried:
    """PUT, SUB, UNSUB and GET in the name of another principal's client."""

    def messages() -> Iterator[list[bytes]]:
        for number in range(count):
            body = {"counter": 1, "publication": "x", "last_id": 0, "epoch": rng.randrange(3)}
            kind = rng.choice(("PUT", "SUB", "UNSUB", "GET"))
            header = {"type": kind, "topic": "bystander", "client_id": target.victim}
            yield [json.dumps(header | {"request_id": str(number), "body": body}).encode()]

    return _asked(target, messages())


def giant_messages(target: AttackedCluster, rng: random.Random, count: int) -> Tried:
    """Messages of 5,000 parts, and of parts of 5 MiB: the connection is closed."""
    key, answered = read_key(target.attacker), 0
    for number in range(count):
        endpoint = rng.choice([*target.cluster.endpoints().values()])
        with zmq.Context() as context, _socket(context, key, endpoint) as dealer:
            parts = [bytes(8)] * PARTS if number % 2 else [bytes(PART_BYTES)] * 2
            dealer.send_multipart([b"", *parts])
            if dealer.poll(500):
                answered += decode_reply(dealer.recv_multipart()[1:]).ok
    return Tried(count, answered)


def frames_on_the_peer_port(target: AttackedCluster, rng: random.Random, count: int) -> Tried:
    """Random and well-framed nonsense on the nodes' port, in the clear."""
    ports = target.peer_ports
    return Tried(count, sum(_shout(each, ports, bad_frames(rng)) for each in range(count // 4)))


def _by_tls(
    target: AttackedCluster,
    directory: Path,
    said: Callable[[], bytes],
    count: int,
    is_let_in: Callable[[bytes], bool],
) -> Tried:
    """Connect as a node with the certificate in a directory; count who is let in."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.load_verify_locations(target.cluster.keys_dir / "nodes" / "n2" / "ca.pem")
    context.load_cert_chain(directory / "node.pem")
    ports, heard = target.peer_ports, 0
    for number in range(count):
        with suppress(OSError):
            raw = socket.create_connection(ports[number % len(ports)], timeout=WAIT_S)
            with context.wrap_socket(raw) as wire:
                wire.sendall(said())
                told = b""
                while piece := wire.recv(4096):
                    told += piece
            heard += is_let_in(told)
    return Tried(count, heard)


def a_certificate_of_another_cluster(
    target: AttackedCluster, rng: random.Random, count: int
) -> Tried:
    """A node's certificate of another cluster of the same name, with the right Hello."""
    hello = framed(Hello(PROTOCOL_VERSION, "local", "n1", "fake", ("n1", "n2", "n3"), False, None))
    with tempfile.TemporaryDirectory() as home:
        other = Authority.create(Path(home) / "fake", "local").node("n1")
        return _by_tls(target, other, lambda: hello, count, lambda told: b"local" in told)


def frames_behind_tls(target: AttackedCluster, rng: random.Random, count: int) -> Tried:
    """Nonsense behind the TLS of a node's own, stolen certificate."""
    stolen = target.cluster.keys_dir / "nodes" / "n3"
    found = _by_tls(target, stolen, lambda: bad_frames(rng), count // 4, _is_more_than_a_hello)
    return Tried(count, found.answered)


def _is_more_than_a_hello(told: bytes) -> bool:
    """Return whether a node said more than its Hello, which a member's certificate may have."""
    frames = FrameReader(FRAME_BYTES_MAX)
    frames.feed(told)
    while (message := frames.next()) is not None:
        if not isinstance(message, Hello | Extension | PeerRefused):
            return True
    return False


def replayed_handshakes(target: AttackedCluster, rng: random.Random, count: int) -> Tried:
    """A whole recorded session of a client, sent again to all nodes."""
    ports, answered = target.client_ports, 0
    for number in range(count):
        said = b""
        address = ports[number % len(ports)]
        with suppress(OSError), socket.create_connection(address, timeout=WAIT_S) as raw:
            for piece in target.recorded:
                raw.sendall(piece)
            while part := raw.recv(4096):
                said += part
        answered += len(said) > 64 + 2 + 168  # a greeting, and the WELCOME that anybody may have
    return Tried(count, answered)


def in_the_clear(target: AttackedCluster, rng: random.Random, count: int) -> Tried:
    """A downgrade: ZeroMQ without a mechanism, and a node's Hello without TLS."""
    hello = framed(Hello(PROTOCOL_VERSION, "local", "n1", "fake", ("n1", "n2", "n3"), False, None))
    endpoints, peers, answered = [*target.cluster.endpoints().values()], target.peer_ports, 0
    for number in range(count):
        said = b""
        with suppress(OSError):
            if number % 2:
                with Raw(endpoints[number % len(endpoints)]) as raw:
                    raw.socket.sendall(request("REQUEST_ID"))
                    while part := raw.socket.recv(4096):
                        said += part
            else:
                address = peers[number % len(peers)]
                with socket.create_connection(address, timeout=WAIT_S) as plain:
                    plain.sendall(hello)
                    while part := plain.recv(4096):
                        said += part
        answered += b"client_id" in said or b"local" in said
    return Tried(count, answered)


def half_open_connections(target: AttackedCluster, rng: random.Random, count: int) -> Tried:
    """Connections that stop somewhere in the handshake, and stay."""
    assert target.cluster.key is not None
    stranger = CurveClient(pair(), from_z85(read_key(target.cluster.key).server))
    hello = GREETING + command(stranger.hello())
    stops = (
        b"",
        GREETING[:11],
        GREETING,
        hello[:100],
        hello,
        b"\x16\x03\x01\x02\x00\x01",
        b"GET /",
    )
    ports, raws = [*target.client_ports, *target.peer_ports, *target.pages], []
    for number in range(count):
        with suppress(OSError):
            raw = socket.create_connection(ports[number % len(ports)], timeout=WAIT_S)
            raws.append(raw)
            raw.setblocking(False)
            raw.send(stops[number // len(ports) % len(stops)])
    time.sleep(SLOW_STEP_S * SLOW_STEPS)
    return Tried(len(raws), _heard(raws))


def slow_loris(target: AttackedCluster, rng: random.Random, count: int) -> Tried:
    """Connections to each port that say a byte of something proper ten times a second."""
    words: Mapping[str, tuple[list[tuple[str, int]], bytes]] = {
        "client": (target.client_ports, GREETING),
        "peer": (target.peer_ports, b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(80)),
        "http": (target.pages, b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nX-Slow: " + b"x" * 60),
    }
    kinds, raws = [*words.values()], []
    for number in range(count):
        ports, word = kinds[number % len(kinds)]
        with suppress(OSError):
            address = ports[number // len(kinds) % len(ports)]
            raws.append((socket.create_connection(address, timeout=WAIT_S), word))
    for step in range(SLOW_STEPS):
        for raw, word in raws:
            with suppress(OSError):
                raw.send(word[step : step + 1])
        time.sleep(SLOW_STEP_S)
    return Tried(len(raws), _heard(raw for raw, _ in raws))


def http_garbage(target: AttackedCluster, rng: random.Random, count: int) -> Tried:
    """Malformed requests on the page's port."""
    pages, answered = target.pages, 0
    for number in range(count):
        lines = [rng.randbytes(rng.randrange(1, 300)) for _ in range(rng.randrange(1, 6))]
        head = rng.choice((b"GET / HTTP/1.1\r\n", b"POST /%00 HTTP/9\r\n", b""))
        answered += _shout(number, pages, head + b"\r\n".join(lines) + b"\r\n\r\n")
    return Tried(count, answered)


Attack = Callable[[AttackedCluster, random.Random, int], Tried]

# How often in the quick test, and by `make attacks`. The frames come to a million.
ATTACKS: Final[Mapping[Attack, tuple[int, int]]] = {
    frames_before_the_handshake: (2_000, 640_000),
    frames_after_the_handshake: (1_000, 150_000),
    frames_on_the_peer_port: (800, 200_000),
    frames_behind_tls: (80, 10_000),
    http_garbage: (50, 10_000),
    giant_messages: (4, 40),
    another_principal_s_id: (200, 20_000),
    replayed_handshakes: (6, 300),
    a_certificate_of_another_cluster: (6, 1_000),
    in_the_clear: (6, 1_000),
    half_open_connections: (150, 5_000),
    slow_loris: (60, 1_500),
}
