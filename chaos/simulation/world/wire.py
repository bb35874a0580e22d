"""Links made of bytes: the product's own `PeerPort`s talk over simulated TCP connections.

An end is a process by the name of its machine, as in network.py. What lives here: sockets that hold
bytes on their way, the look-up of names, which descriptors are ready, and what conditions, cuts and
clogs do to all that. What must not: handshakes, frames, dials, silence, who may connect: those are
the product's (`cluster/members/peers.py`, `links.py`, `handshake.py`, `frames.py`).

What TCP promises is kept: bytes arrive in order, once, or the connection breaks. Loss is a delay;
a cut lets bytes wait until it heals or the sender's `TCP_USER_TIMEOUT` is over. They are taken in
pieces of any size, on both sides. A machine whose power goes says nothing; when it is back, it
answers to old connections that they are none.
"""

from __future__ import annotations

import errno
import os
import random
import socket as real
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, Final, Protocol
from unittest.mock import patch

from chaos.simulation.world.network import (
    Link,
    Net,
    NetworkWorld,
    SimLinkConditions,
    double_of,
    member_of,
    numbers_of,
)
from cluster.members import links, peers
from cluster.members.links import Address, Reason
from cluster.members.membership import Roll
from cluster.members.peers import BULK, Disconnected, Event, PeerPort, Peers
from cluster.serve import client_port, zmtp
from cluster.serve.client_port import ClientConnection, ClientPort, PortLimits, Replies
from cluster.serve.shares import rest_s
from cluster.wire.messages import Hello, Message, SnapshotRefused
from flotilla_client.protocol import MESSAGE_BYTES_MAX

PORT: Final = 1  # where every process listens on its machine, for its peers
CLIENTS_PORT: Final = 2  # and for clients
SEND_BYTES: Final = 256 * 1024  # that a connection holds: on its way, or not yet received
WHOLE_SHARE: Final = 0.7  # of the calls take all there is; the others a first part
CUT_LOOK_S: Final = 0.2  # how soon it shows that a cut has healed: a retransmission
LOST_S: Final = (0.2, 0.4)  # by how much a lost packet is late
RESET_SHARE: Final = 0.3  # of the ends of a process throw away what is on its way
STRANGERS_S: Final = 4.0  # mean time between two connections of nobody that we know
STRANGER_BYTES: Final = 64
ACCEPTS_FAIL: Final = 0.02  # of the accepts find no descriptor left
REQUESTS_PER_TURN_MAX: Final = 256
LIMITS: Final = PortLimits(
    connections_max=64,
    requests_max=64,
    unfinished_bytes_max=2 * MESSAGE_BYTES_MAX,
    unread_bytes_max=8 * 1024 * 1024,
)  # small, so that they are met: two large messages at a time

# Why a node closes the connection of a client that says what it should: of a network that brings
# nothing for long, and limits that are met. Nothing else excuses it.
EXCUSES: Final = (
    "doesn't take its replies",
    "gave way before it said READY",
    "no READY in",
    "sent a large message slowly",
    "silent for",
    "stopped in the middle of a message",
    "took no byte of its replies",
    "took over",
    "waited",
)

Tap = Callable[[str, str, list[bytes]], None]


def _unheard(*_: object, **__: object) -> None:
    """Hear nothing."""


class WiredMachine(Protocol):
    """What the wire needs of the node on a machine."""

    def departure(self) -> float:
        """Return when what is sent now leaves; raises if its process has ended."""


class Wire(Net):
    """All links, as bytes. `machine_of` returns the node by the name of its machine.

    `active` returns the machine whose process runs: whose system calls are made.
    """

    def __init__(
        self,
        world: NetworkWorld,
        names: tuple[str, ...],
        conditions: SimLinkConditions,
        takeover_s: float,
        machine_of: Callable[[str], WiredMachine],
        active: Callable[[], str],
    ) -> None:
        super().__init__(conditions, takeover_s)
        self.world, self.members = world, names
        self.machine_of, self.active = machine_of, active
        self.asked: Tap = _unheard  # hear (machine, way, frames) of each request, and each reply
        self.answered: Tap = _unheard
        self.sides: dict[str, WirePort] = {}
        self.sockets: dict[int, SimSocket] = {}
        self.ends_s: dict[Link, float] = {}  # (machine, member) -> when it noticed an end last
        self._unplugged: set[str] = set()
        self._descriptors = self._lives = 0
        self._strange_later()
        self._greet_later()

    def new_socket(self, machine: str) -> SimSocket:
        """Return a socket of a machine, with a descriptor that was never used."""
        self._descriptors += 1
        made = self.sockets[self._descriptors] = SimSocket(self, machine, self._descriptors)
        return made

    def listener_of(self, machine: str) -> SimSocket | None:
        """Return the socket on which a machine's process listens, None if none does."""
        side = self.sides.get(machine)
        return None if side is None else side.listener

    def clients_listener_of(self, machine: str) -> SimSocket | None:
        """Return the socket on which a machine's process waits for clients, None if none does."""
        side = self.sides.get(machine)
        return None if side is None else side.clients_listener

    def machines_of(self, member: str) -> list[str]:
        """Return where a member's name leads to, in any order: its machine, and its double's."""
        double = double_of(member)
        found = [member, double] if double in self.sides else [member]
        self.world.stream(f"names {member}").shuffle(found)
        return found

    def is_unplugged(self, machine: str) -> bool:
        """Return whether nothing on a machine answers, not even that no process listens."""
        return machine in self._unplugged

    # --- what the world and its nodes ask for ---------------------------------------------------

    def join(self, name: str, hello: Hello, wake: Callable[[], None]) -> WirePort:
        """Let a node listen and dial."""
        assert name not in self.sides, f"{name} is running"
        self._unplugged.discard(name)
        side = WirePort(self, name, hello, wake)
        self.sides[name] = side
        return side

    def leave(self, name: str, noticed: bool, ended_s: float) -> None:
        """End all connections of a process; not `noticed`: of its machine, which says nothing."""
        side = self.sides.pop(name)
        rng = self.world.stream(f"leave {name}")
        if not noticed:
            self._unplugged.add(name)
        for one in [one for one in self.sockets.values() if one.machine == name]:
            one.end_with_process(noticed, rng.random() < RESET_SHARE, ended_s)
        side.close()

    def peers(
        self,
        name: str,
        clock: Callable[[], float],
        departure: Callable[[], float],
        room_bytes: Callable[[], int],
    ) -> Peers:
        """Return a running node's way to the others, which listens and dials from now on."""
        self._lives += 1
        port = self.sides[name]
        port.open(clock, self.takeover_s, self.world.stream(f"dials {name} {self._lives}"))
        return WirePeers(self, port, name, room_bytes)

    def has(self, name: str) -> bool:
        """Return whether a process runs on a machine, as far as the network knows."""
        return name in self.sides

    def remove_double(self, name: str) -> None:
        """Take a double's machine away, on which no process runs any more."""
        assert name not in self.sides, f"{name} is running"
        self._unplugged.add(name)

    def connected(self, one: str, other: str) -> bool:
        """Return whether both ends believe that they are connected."""
        return other in self._peers_of(one) and one in self._peers_of(other)

    def _peers_of(self, name: str) -> set[str]:
        side = self.sides.get(name)
        return set() if side is None else side.machines()

    def hello_of(self, observer: str, name: str) -> Hello | None:
        """Return what `observer` was told of `name` on their connection."""
        side = self.sides.get(observer)
        return None if side is None else side.port.hello_of(name)

    def has_untaken(self, name: str) -> bool:
        """Return False: of what has come only that counts as come which the node has taken."""
        return False

    def closed_s(self, observer: str, name: str) -> float:
        """Return when a connection of a node's with a member was closed last."""
        return self.ends_s.get((observer, name), float("-inf"))

    def break_link(self, one: str, other: str) -> None:
        """Reset the connections between two machines."""
        for each in list(self.sockets.values()):
            if each.machine == one and each.remote == other:
                each.reset()

    # --- strangers ------------------------------------------------------------------------------

    def _strange_later(self) -> None:
        rng = self.world.stream("strangers")
        self.world.at(self.world.now + rng.expovariate(1 / STRANGERS_S), self._strange)

    def _strange(self) -> None:
        """Let somebody connect to a node and say some bytes that are no message."""
        self._strange_later()
        rng = self.world.stream("strangers")
        listener = self.listener_of(rng.choice(self.members))
        if listener is None:
            return
        stranger = self.new_socket("nobody")
        stranger.meet(listener)
        if rng.random() < 0.8:
            stranger.say(rng.randbytes(rng.randint(1, STRANGER_BYTES)))
        if rng.random() < 0.5:
            stranger.close()

    def _greet_later(self) -> None:
        rng = self.world.stream("clients' strangers")
        self.world.at(self.world.now + rng.expovariate(1 / STRANGERS_S), self._greet)

    def _greet(self) -> None:
        """Let somebody connect as a client, and say half a greeting, or nonsense; it may stay."""
        self._greet_later()
        rng = self.world.stream("clients' strangers")
        listener = self.clients_listener_of(rng.choice(self.members))
        if listener is None:
            return
        stranger = self.new_socket("nobody")
        stranger.meet(listener)
        said = zmtp.greeting() if rng.random() < 0.5 else rng.randbytes(STRANGER_BYTES)
        stranger.say(said[: rng.randint(0, len(said) - 1)])
        if rng.random() < 0.5:
            stranger.close()


class WitnessedClientPort(ClientPort):
    """A node's connections to clients; `closed(way, reason)` hears why one was closed."""

    def __init__(self, closed: Callable[[str, str], None], *arguments: Any, **more: Any) -> None:
        self._tell_closed = closed
        super().__init__(*arguments, **more)

    def _close(self, client: ClientConnection, reason: str) -> None:
        other = getattr(client.socket, "other", None)
        way = "" if other is None else other.way
        super()._close(client, reason)
        if way and reason:
            self._tell_closed(way, reason)


class WirePort:
    """A running node's side: its `PeerPort`, its watched descriptors; made by `Wire.join`."""

    def __init__(self, wire: Wire, name: str, hello: Hello, wake: Callable[[], None]) -> None:
        self.silent = False  # paused: its system goes on to take what comes
        self.listener: SimSocket | None = None
        self.clients_listener: SimSocket | None = None
        self.wake, self.roll = wake, Roll()
        self._wire, self._name, self._hello = wire, name, hello
        self._wishes: dict[int, tuple[bool, bool]] = {}
        self._ways: dict[bytes, str] = {}  # of every route that has asked anything
        self._ends: dict[bytes, SimSocket] = {}  # the same: the client's end
        self._heard_at: dict[tuple[str, str], float] = {}  # (member, incarnation), own clock
        self._order = wire.world.stream(f"poll {name}")
        self.port: PeerPort
        self.clients: ClientPort

    def open(self, clock: Callable[[], float], takeover_s: float, rng: random.Random) -> None:
        """Listen and begin to dial."""
        self._clock = clock
        member = member_of(self._name)
        others = {name: (name, PORT) for name in self._hello.members if name != member}
        self.port = PeerPort(
            member,
            (self._name, PORT),
            others,
            self._hello,
            clock,
            watch=self._watch,
            random=rng,
            takeover_ms=int(takeover_s * 1000),
        )
        self.clients = WitnessedClientPort(
            self._closed,
            (self._name, CLIENTS_PORT),
            LIMITS,
            clock,
            watch=self._watch,
            report=_unheard,
        )

    def _closed(self, way: str, reason: str) -> None:
        if not reason.startswith(EXCUSES):
            self._wire.torn.append(f"{self._name} closes the connection {way}: {reason}")

    def update_roll(self, roll: Roll) -> None:
        """Set who the members are."""
        self.roll = roll
        self.port.update_roll(roll)

    def close(self) -> None:
        """Forget all descriptors; the process has ended, and closes nothing by itself."""
        self._wishes.clear()

    def _watch(self, fd: int, read: bool, write: bool) -> None:
        if read or write:
            self._wishes[fd] = (read, write)
            self._wake_if_ready(fd)
        else:
            self._wishes.pop(fd, None)

    def _wake_if_ready(self, fd: int) -> None:
        if self._ready(fd) != (False, False):
            self.wake()

    def changed(self, fd: int) -> None:
        """Note that a descriptor may have become ready."""
        if fd in self._wishes:
            self._wake_if_ready(fd)

    def _ready(self, fd: int) -> tuple[bool, bool]:
        read, write = self._wishes[fd]
        one = self._wire.sockets[fd]
        if one.has_failed:
            return True, True
        return read and one.is_readable, write and one.is_writable

    def begin_turn(self, now: float) -> None:
        """Do what the product's loop does before a turn: what is ready, and what is due."""
        ready = [(fd, *self._ready(fd)) for fd in self._wishes]
        ready = [each for each in ready if each[1] or each[2]]
        self._order.shuffle(ready)
        for fd, readable, writable in ready:
            port = self.clients if fd in self.clients else self.port
            port.on_ready(fd, readable, writable)
        for client in self.clients._clients.values():  # whoever was accepted, before it is closed
            if client.route not in self._ways:
                other = self._wire.sockets[client.fd].other
                assert other is not None, client.address
                self._ways[client.route], self._ends[client.route] = other.way, other
        self.port.tick(now)
        self.clients.tick(now)
        self._note_who_was_heard(now)

    def _note_who_was_heard(self, now: float) -> None:
        for connection in self.port._live.values():
            if connection.heard_at == now and connection.hello is not None:
                said = connection.hello
                key = (self._name, said.node, said.incarnation)
                self._wire.arrivals[key] = self._wire.world.now
                self._heard_at[said.node, said.incarnation] = now

    def silent_s(self, member: str, incarnation: str) -> float:
        """Return for how long a process has not been heard, on the node's own clock."""
        return self._clock() - self._heard_at.get((member, incarnation), float("-inf"))

    def receive_requests(self) -> list[tuple[bytes, list[bytes]]]:
        """Return what clients ask, and tell those who listen in."""
        requests = self.clients.receive(REQUESTS_PER_TURN_MAX)
        taken = []
        for route, frames in requests:
            said = self._ends[route].requests
            if not said or said.popleft() != [*map(bytes, frames)]:
                text = f"{self._name} was given a request that {self._ways[route]} has not sent"
                self._wire.torn.append(f"{text} next")
                continue
            self._wire.asked(self._name, self._ways[route], frames)
            taken.append((route, frames))
        return taken

    def send_replies(self, replies: Replies) -> Replies:
        """Send all replies, and tell those who listen in; none are left for others to carry.

        They hear of those to a client that is gone as well: its request was answered.
        """
        for route, frames in replies:
            self._wire.answered(self._name, self._ways[route], frames)
            self._ends[route].replies.append([*map(bytes, frames)])
        self.clients.send(replies)
        return []

    def end_turn(self, turn_s: float, ended: float, stored: int) -> None:
        """Do what the product's loop does behind a turn: let those rest who had their share."""
        self.clients.turned(turn_s, ended, stored)
        self.port.turned(ended + rest_s(turn_s))

    def room_bytes(self, route: bytes) -> int:
        """Return how many bytes of replies may still be made for a client."""
        return self.clients.room_bytes(route)

    def deadline(self) -> float:
        """Return when a turn is due, on the node's clock: at once if a descriptor is ready."""
        if self.clients.has_more:
            return float("-inf")
        if any(self._ready(fd) != (False, False) for fd in self._wishes):
            return float("-inf")
        return min(self.port.next_deadline(), self.clients.next_deadline())

    def machines(self) -> set[str]:
        """Return the machines of the peers that this side believes to be connected with."""
        return {self.machine_of(name) for name in self.port._live}

    def machine_of(self, name: str) -> str:
        """Return on which machine the connected process of a member runs."""
        return self._wire.sockets[self.port._live[name].fd].remote


class WirePeers:
    """One node's way to the others; implements `cluster.members.peers.Peers` by its `PeerPort`.

    Everything that it sends and receives is witnessed: what came by a connection was sent on it, in
    that order and once, where what is bulk and what is not have orders of their own.
    """

    def __init__(
        self, wire: Wire, side: WirePort, name: str, room_bytes: Callable[[], int]
    ) -> None:
        self._wire, self._side, self._name, self._room_bytes = wire, side, name, room_bytes
        self._port = port = side.port
        self._heard: dict[str, tuple[SimSocket, Hello]] = {}  # by member, at the last look
        self.flush, self.hello_of, self.update_hello = port.flush, port.hello_of, port.update_hello
        self.update_roll, self.part, self.trouble = side.update_roll, port.part, port.trouble

    def room_bytes(self, name: str) -> int:
        """Return what may be relayed to a peer: what its queue has room for, and the node."""
        return min(self._port.room_bytes(name), self._room_bytes())

    def send(self, name: str, message: Message) -> None:
        """Queue a message, and note that it is to arrive next."""
        port = self._port
        for tap in self._wire.send_taps:
            tap(self._name, name, message)
        dropped = port.dropped[name]
        port.send(name, message)
        connection = port._live.get(name)
        if connection is not None and port.dropped[name] == dropped:
            self._wire.sockets[connection.fd].said[type(message) in BULK].append(message)

    def receive(self, limit: int) -> list[tuple[str, Message]]:
        """Return what has come, and tell those who listen in."""
        wire, name = self._wire, self._name
        sockets = {peer: wire.sockets[one.fd] for peer, one in self._port._live.items()}
        received = self._port.receive(limit)
        for peer, message in received:
            source, kind = sockets[peer], type(message)
            other = source.other
            assert other is not None, source.remote
            said = other.said[kind in BULK]
            if kind is SnapshotRefused and (not said or said[0] != message):
                pass  # why a handshake ends, for who is of version 0.1: its `PeerPort` says so
            elif not said or said.popleft() != message:
                wire.torn.append(
                    f"{name} was given a {kind.__name__} that {source.remote} has not sent next"
                )
            wire.delivered += 1
            wire.world.note(source.remote, name, kind.__name__, numbers_of(message))
            for tap in wire.taps:
                tap(source.remote, name, message)
        return received

    def events(self) -> list[Event]:
        """Return what happened to connections, and note who lost its place though it was heard."""
        events = self._port.events()
        for event in events:
            if isinstance(event, Disconnected):
                self._wire.ends_s[self._name, event.name] = self._wire.world.now
                if event.reason is Reason.REPLACED:
                    self._displaced(event.name)
                if event.reason is Reason.BAD_FRAME:  # strangers never get that far
                    text = f"{self._name} can't read what {event.name} says: {event.detail}"
                    self._wire.torn.append(text)
        live = self._port._live.items()
        self._heard = {
            peer: (self._wire.sockets[one.fd], one.hello)
            for peer, one in live
            if one.hello is not None
        }
        return events

    def _displaced(self, peer: str) -> None:
        wire, newest = self._wire, self._side.roll.newest.get(peer)
        new = self._port.hello_of(peer)
        if peer not in self._heard or new is None:
            return
        source, old = self._heard[peer]
        silent_s = self._side.silent_s(old.node, old.incarnation)
        gives_way = new.incarnation == newest != old.incarnation
        is_other = self._side.machine_of(peer) != source.remote
        if is_other and silent_s < 0.9 * wire.takeover_s and not gives_way and not source.has_ended:
            wire.displaced.append((self._name, source.remote))


class SimSocket:
    """One end of a connection, or what listens; as much of `socket.socket` as peers.py uses.

    `remote`: the machine at the other end, "" as long as there is none. `said`: what a process has
    sent here and the other one not received, urgent messages and bulk apart. `way`: which of a
    client's this is (ways.py), which is called by `on_change` when something has come or gone.
    """

    def __init__(self, wire: Wire, machine: str, fd: int) -> None:
        self.machine, self.remote, self.fd = machine, "", fd
        self.has_failed = False
        self.has_vanished = False  # its process ended, and its other end has not heard of it
        self.other: SimSocket | None = None
        self.way = ""
        self.on_change: Callable[[], None] | None = None
        self.said: tuple[deque[Message], deque[Message]] = (deque(), deque())
        self.requests: deque[list[bytes]] = deque()  # of a client's end: sent, and not received
        self.replies: deque[list[bytes]] = deque()
        self._wire = wire
        self._backlog: deque[SimSocket] | None = None  # of one that listens
        self._is_connecting = self._is_connected = self._is_closed = False
        self._failure = 0
        self._received = bytearray()
        self._has_end = False  # the other end has closed, and all that it sent is here
        self._coming: deque[tuple[float, bytes | None]] = deque()  # None: the end
        self._coming_bytes = 0
        self._waits_since_s: float | None = None  # what is to come next, for a cut to heal
        self._user_timeout_s = 0.0
        self._rng = wire.world.stream(f"socket {fd}")

    # --- as a socket ----------------------------------------------------------------------------

    def fileno(self) -> int:
        """Return the descriptor."""
        return self.fd

    def setblocking(self, flag: bool) -> None:
        """Nothing here blocks."""
        assert not flag

    def setsockopt(self, level: int, option: int, value: int) -> None:
        """Take the one option that has an effect here."""
        if option == real.TCP_USER_TIMEOUT:
            self._user_timeout_s = value / 1000

    def getsockopt(self, level: int, option: int) -> int:
        """Return, and forget, how connecting has failed; 0 if it has not."""
        assert option == real.SO_ERROR
        failure, self._failure = self._failure, 0
        return failure

    def getsockname(self) -> Address:
        """Return the own address."""
        return self.machine, PORT

    def listen(self) -> None:
        """Take connections."""
        self._backlog = deque()

    def connect_ex(self, address: Address) -> int:
        """Begin to connect; a look-up has put the machine into the address."""
        self._is_connecting, self.remote = True, address[0]
        wire, leaves_s = self._wire, self._leaves_s()
        wire.world.at(leaves_s + 2 * self.delay_s(), self._connect)
        return errno.EINPROGRESS

    def accept(self) -> tuple[SimSocket, Address]:
        """Return who has connected, and from where."""
        assert self._backlog is not None
        while self._backlog and self._backlog[0].has_failed:
            self._backlog.popleft()  # gone before it was accepted
        if not self._backlog:
            raise BlockingIOError
        if self._rng.random() < ACCEPTS_FAIL:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        accepted = self._backlog.popleft()
        return accepted, (accepted.remote, accepted.fd)

    def recv_into(self, buffer: memoryview) -> int:
        """Take some of what has arrived; 0 at the end."""
        self._raise_failure()
        if not self._received:
            if self._has_end:
                return 0
            raise BlockingIOError
        size = self._some(min(len(self._received), len(buffer)))
        buffer[:size] = self._received[:size]
        del self._received[:size]
        if self.other is not None:
            self.other._tell()  # there is room again
        return size

    def recv(self, size: int) -> bytes:
        """Take some of what has arrived; b"" at the end."""
        buffer = bytearray(size)
        return bytes(buffer[: self.recv_into(memoryview(buffer))])

    def sendmsg(self, parts: list[bytes | memoryview]) -> int:
        """Let some bytes leave."""
        self._raise_failure()
        leaves_s = self._leaves_s()
        room = self._room_bytes()
        if room <= 0:
            raise BlockingIOError
        data = b"".join(parts)
        size = self._some(min(len(data), room))
        self._post(data[:size], leaves_s)
        return size

    def close(self) -> None:
        """End this side. What was not received makes the other side break, as TCP does."""
        if self._is_closed:
            return
        self._is_closed = True
        if self.other is not None and not self.has_failed:
            if self._received:
                self._break_other()
            else:
                self._post(None, self._wire.world.now)
        self._forget()

    # --- what the system does -------------------------------------------------------------------

    @property
    def has_ended(self) -> bool:
        """Whether this side has heard of the connection's end, or ended it."""
        return self.has_failed or self._has_end

    @property
    def is_readable(self) -> bool:
        """Whether a read, or an accept, returns at once."""
        if self._backlog is not None:
            return bool(self._backlog)
        return bool(self._received) or self._has_end

    @property
    def is_writable(self) -> bool:
        """Whether connecting has come to its end, or a write takes something."""
        return self._is_connected and self._room_bytes() > 0

    def meet(self, listener: SimSocket) -> None:
        """Make a connection with whoever listens there."""
        accepted = self._wire.new_socket(listener.machine)
        accepted.remote, self.remote = self.machine, listener.machine
        accepted.other, self.other = self, accepted
        accepted._is_connected = self._is_connected = True
        self._is_connecting = False
        assert listener._backlog is not None
        listener._backlog.append(accepted)
        listener._tell()
        self._tell()

    def say(self, data: bytes) -> None:
        """Send bytes that nobody's process has written."""
        self._post(data, self._wire.world.now)

    def reset(self) -> None:
        """Break the connection at both ends."""
        self._break(errno.ECONNRESET)
        self._break_other()

    def take(self, data: bytes | bytearray) -> int:
        """Send as much as there is room for, once connected; return how much."""
        size = max(0, min(len(data), self._room_bytes()))
        if size:
            self._post(bytes(data[:size]), self._wire.world.now)
        return size

    def drain(self) -> bytes:
        """Take all that has arrived."""
        data = bytes(self._received)
        self._received.clear()
        if self.other is not None:
            self.other._tell()
        return data

    def end_with_process(self, noticed: bool, resets: bool, ended_s: float) -> None:
        """End with the process that had it; not `noticed`: the machine says nothing any more."""
        self._is_closed = True
        self.has_vanished = not noticed
        other = self.other
        if noticed and other is not None:
            if resets or self._received:
                self._break_other()
            else:
                self._post(None, ended_s)
        if noticed:
            for waiting in self._backlog or ():
                waiting.end_with_process(noticed, True, ended_s)
        self._forget()

    def _connect(self) -> None:
        wire = self._wire
        if self._is_closed or not self._is_connecting:
            return
        if self.is_cut() or wire.is_unplugged(self.remote):
            wire.world.at(wire.world.now + CUT_LOOK_S, self._connect)  # another SYN
            return
        listener = wire.listener_of(self.remote)
        if listener is None:
            self._is_connecting = False
            self._failure, self.has_failed = errno.ECONNREFUSED, True
            self._tell()
        else:
            self.meet(listener)

    def _post(self, data: bytes | None, leaves_s: float) -> None:
        """Let bytes, or the end, be on their way to the other side, behind all others."""
        other = self.other
        assert other is not None
        arrives_s = leaves_s + self.delay_s()
        if self._wire.conditions.loss and self._rng.random() < self._wire.conditions.loss:
            arrives_s += self._rng.uniform(*LOST_S)
        if other._coming:
            arrives_s = max(arrives_s, other._coming[-1][0])
        other._coming.append((arrives_s, data))
        other._coming_bytes += len(data or b"")
        if len(other._coming) == 1:
            self._wire.world.at(arrives_s, partial(other._arrive, self._user_timeout_s))

    def _arrive(self, timeout_s: float) -> None:
        """Take over what has arrived, unless the link is cut: then look again."""
        world = self._wire.world
        if not self._coming:
            return
        until_s = self._held_until_s()
        if until_s > world.now:
            since_s = self._waits_since_s = self._waits_since_s or world.now
            if timeout_s and world.now - since_s >= timeout_s:
                self._break_other(errno.ETIMEDOUT)
                return
            world.at(until_s, partial(self._arrive, timeout_s))
            return
        self._waits_since_s = None
        if self._is_closed:
            self._break_other()
            return
        while self._coming and self._coming[0][0] <= world.now:
            _, data = self._coming.popleft()
            if data is None:
                self._has_end = True
            else:
                self._coming_bytes -= len(data)
                self._received += data
        if self._coming:
            world.at(self._coming[0][0], partial(self._arrive, timeout_s))
        self._tell()

    def _held_until_s(self) -> float:
        """Return when to look again whether what is on its way may arrive; now: it may."""
        wire, link = self._wire, (self.remote, self.machine)
        now = wire.world.now
        if link in wire.cut or wire.is_unplugged(self.machine):
            return now + CUT_LOOK_S
        return max(now, wire.clogged.get(link, now))

    def is_cut(self) -> bool:
        """Return whether nothing passes in one direction or the other."""
        both: tuple[Link, Link] = ((self.machine, self.remote), (self.remote, self.machine))
        return any(link in self._wire.cut for link in both)

    def _break(self, failure: int) -> None:
        if self._is_closed or self.has_failed:
            return
        self.has_failed, self._failure = True, failure
        self._received.clear()
        self._coming.clear()
        self._coming_bytes = 0
        self._tell()

    def _break_other(self, failure: int = errno.ECONNRESET) -> None:
        """Break the other side a little later; what is on its way there is lost."""
        other, wire = self.other, self._wire
        if other is not None:
            wire.world.at(wire.world.now + self.delay_s(), partial(other._break, failure))

    def _forget(self) -> None:
        """Let go of what is of no use any more; the other side may still send to here."""
        self._received.clear()
        if self.other is None or self.other._is_closed:
            for end in filter(None, (self, self.other)):
                self._wire.sockets.pop(end.fd, None)

    def _tell(self) -> None:
        if self.on_change is not None:
            self._wire.world.at(self._wire.world.now, self._change)
            return
        side = self._wire.sides.get(self.machine)
        if side is not None and not self._is_closed:
            side.changed(self.fd)

    def _change(self) -> None:
        if self.on_change is not None:
            self.on_change()

    def _raise_failure(self) -> None:
        if self.has_failed:
            failure = self._failure or errno.ECONNRESET
            raise OSError(failure, os.strerror(failure))

    def _room_bytes(self) -> int:
        other = self.other
        if other is None:
            return 0
        return SEND_BYTES - other._coming_bytes - len(other._received)

    def _some(self, size: int) -> int:
        """Return how much of it is taken: everything as a rule, or a first part."""
        if size <= 1 or self._rng.random() < WHOLE_SHARE:
            return size
        return self._rng.randint(1, size)

    def _leaves_s(self) -> float:
        return self._wire.machine_of(self.machine).departure()

    def delay_s(self) -> float:
        """Return how long something takes to the other end now."""
        conditions = self._wire.conditions
        return (conditions.delay_ms + conditions.jitter_ms * self._rng.random()) / 1000


class _SocketModule:
    """What the modules of the product see as `socket` while a run with wires is under way."""

    AF_INET, AF_INET6, SOCK_STREAM = real.AF_INET, real.AF_INET6, real.SOCK_STREAM
    SOCK_NONBLOCK, AI_NUMERICHOST = real.SOCK_NONBLOCK, real.AI_NUMERICHOST
    IPPROTO_TCP, SOL_SOCKET = real.IPPROTO_TCP, real.SOL_SOCKET
    TCP_NODELAY, TCP_USER_TIMEOUT = real.TCP_NODELAY, real.TCP_USER_TIMEOUT
    SO_KEEPALIVE, SO_ERROR = real.SO_KEEPALIVE, real.SO_ERROR
    TCP_KEEPIDLE, TCP_KEEPINTVL = real.TCP_KEEPIDLE, real.TCP_KEEPINTVL
    TCP_KEEPCNT = real.TCP_KEEPCNT

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    def socket(self, family: int, kind: int, protocol: int) -> SimSocket:
        return self._wire.new_socket(self._wire.active())

    def create_server(self, address: Address, **options: object) -> SimSocket:
        machine, port = address
        listener = self._wire.new_socket(machine)
        listener.listen()
        side = self._wire.sides[machine]
        if port == PORT:
            side.listener = listener
        else:
            side.clients_listener = listener
        return listener

    def getaddrinfo(self, host: str, port: int, type: int = 0, flags: int = 0) -> list[Any]:
        return [
            (real.AF_INET, real.SOCK_STREAM, 0, "", (machine, port))
            for machine in self._wire.machines_of(host)
        ]


@contextmanager
def wired(wire: Wire) -> Iterator[None]:
    """Let the product's connections between nodes, and to clients, be of this wire."""
    with ExitStack() as stack:
        for module in (peers, links, client_port):
            stack.enter_context(patch.object(module, "socket", _SocketModule(wire)))
        yield
