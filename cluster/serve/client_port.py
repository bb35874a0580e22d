"""The port that clients talk to: their TCP connections, driven by the node's poll loop.

What lives here: accepting, reading and writing, and the bounds of everything that clients can make
this node hold: connections, unfinished messages, requests without a reply, replies that nobody
takes. What must not: bytes of ZMTP (zmtp.py), what a request means (frontend.py).
Decisions: docs/decisions/0008-client-port.md.
"""

from __future__ import annotations

import os
import select
import socket
import struct
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import islice
from typing import Any, Final

from cluster.keys.curve import Handshake, Keyring
from cluster.members.links import Address
from cluster.members.peers import Watch
from cluster.serve.shares import (
    CONNECTION_SHARE,
    CONTENDED_S,
    PAYER_SHARE,
    READER_TURNS,
    WEIGHT_ANSWER_BYTES,
    Rests,
    Shares,
    weight,
)
from cluster.serve.zmtp import ClientReady, Ping, Receiver, Say, ZmtpError, encode, greeting
from cluster.serve.zmtp import ping as encode_ping
from cluster.serve.zmtp import pong as encode_pong
from flotilla_client.protocol import MESSAGE_BYTES_MAX

READ_BYTES: Final = 32 * 1024  # a read, and what every connection may hold of a message
LARGE_READ_BYTES_MAX: Final = 256 * 1024  # a read in the middle of a large message
READS_PER_TURN_MAX: Final = 2  # of a connection: who sends much must not keep the others waiting
READ_BYTES_PER_TURN_MAX: Final = 4 * 1024 * 1024  # of all connections: some ms of copying
STEP_REQUESTS: Final = 4  # of a connection, then it is another one's turn
# Some 60 microseconds each, and 0.2 ms where a handshake has the curve multiplied. A PUT passes
# several turns of three nodes: 5,000 connections at once held one up for 170 ms with 32 of them a
# turn, and for 100 ms with 4 of them in turns without a pause. So strangers rest as others do.
STRANGERS_PER_TURN_MAX: Final = 4  # of these are accepted, and as many are heard
ACCEPT_PAUSE_S: Final = 0.1  # out of descriptors: look again later instead of spinning
BACKLOG: Final = 1024  # connections that the system keeps for us between two turns
GATHER_REPLIES_MAX: Final = 64  # buffers in one sendmsg; far below IOV_MAX (1024)
# Replies that one connection doesn't take: no more of its requests are read, then no more of its
# GETs are served (`room_bytes`), then it is closed.
UNREAD_BYTES_PAUSE: Final = 256 * 1024
UNREAD_BYTES_SERVED: Final = 8 * 1024 * 1024
UNREAD_BYTES_MAX: Final = 16 * 1024 * 1024

ROUTE_BYTES: Final = 8  # the connection's number
NOBODY: Final = (b"", b"")  # the identity of who has none
STRANGERS: Final = ""  # the payer of who is not in yet: all of them have one share
CHECK_PERIOD_S: Final = 0.25  # how late a deadline may be noticed
HANDSHAKE_S_MAX: Final = 5.0  # from accepted to READY: some round trips and a busy client
PING_AFTER_S: Final = 10.0  # of silence; a living ZMTP 3.1 client answers
SILENCE_S_MAX: Final = 30.0  # then the client has vanished, however it did
CLAIM_S: Final = 2.0  # a connection whose identity comes again has this long to answer a PING
MESSAGE_SILENCE_S_MAX: Final = 10.0  # in the middle of a message
MESSAGE_S_MAX: Final = 120.0  # for a whole one: 4 MiB at 35 KB/s
# While others wait to send a large message, who sends one must not stop, and be this fast.
HURRY_SILENCE_S_MAX: Final = 0.5
HURRY_AFTER_S: Final = 2.0
HURRY_BYTES_PER_S_MIN: Final = 1024 * 1024
# In line to send a large message: at that pace hundreds have had their turn by then. Who waits is
# not read, so that nothing else would tell that it has vanished.
SHARE_S_MAX: Final = 30.0
KEEPALIVE_PROBES: Final = 3  # lost ones end a connection that is silent; for clients of ZMTP 3.0
REPORT_S: Final = 10.0  # one line about connections that we closed in this time
REASONS_MAX: Final = 16  # in such a line; a stranger chooses some of their words

Report = Callable[..., None]
Replies = Sequence[tuple[bytes, list[bytes]]]


@dataclass(frozen=True)
class PortLimits:
    """What all clients together may hold. `requests_max`: of one connection, without a reply."""

    connections_max: int
    requests_max: int
    unfinished_bytes_max: int
    unread_bytes_max: int
    payer_connections_max: int = 0  # of one payer; 0: no quota


class PortState(Enum):
    """What a connection is at."""

    GREETING = 1  # has not said READY
    CLAIMING = 2  # said READY with an identity that another one has, which is asked if it lives
    READY = 3
    CLOSED = 4


@dataclass(slots=True, eq=False)
class ClientConnection:
    """A connection. `route` names it for the frontend; it is never used again.

    Once it has shown a key its route ends in the key's name: what it has asked for has that name
    also when it is gone.
    """

    socket: socket.socket
    fd: int
    address: str
    route: bytes
    state: PortState
    deadline_at: float  # of the handshake, then of the claim
    heard_at: float
    receiver: Receiver
    outbox: deque[bytes | memoryview] = field(default_factory=deque)
    outbox_bytes: int = 0
    took_at: float = 0.0  # when it last took something of the outbox, or the outbox was empty
    requests: int = 0  # without a reply
    began_at: float = 0.0  # when the unfinished message began, 0: there is none
    has_share: bool = False  # of unfinished_bytes_max
    wanted_at: float = 0.0  # since when it has waited for one
    identity: tuple[bytes, bytes] = NOBODY  # whose key it has shown, and what it calls itself
    pings: bool = False
    pinged_at: float = 0.0
    claimant: ClientConnection | None = (
        None  # another connection that came with this one's identity
    )
    watched: tuple[bool, bool] = (False, False)
    payer: str = ""  # whose share and quotas it uses up: see `_admit`
    is_surplus: bool = False  # its payer has as many connections as it may
    reads: int = 0  # in this turn
    share: int = 0  # requests that may still be taken in this turn


class ClientPort:
    """A node's connections to clients.

    `watch(fd, read, write)` is called whenever the wish for a descriptor changes, (False, False) =
    forget it. `clock` is monotonic seconds. `report(event, **fields)` tells the operator. With a
    `keyring` clients have to prove by CURVE who they are; without one anybody may come.
    `payer_shares` knows who has sent requests; who did by another way is noted from outside.
    Each turn: `on_ready` for ready descriptors, `tick`, `receive`, `send`, `turned`. The
    constructor raises OSError if it can't listen.
    """

    def __init__(
        self,
        listen: Address,
        limits: PortLimits,
        clock: Callable[[], float],
        *,
        watch: Watch,
        report: Report,
        keyring: Keyring | None = None,
    ) -> None:
        self._keyring = keyring
        self._limits, self._clock, self._watch, self._report = limits, clock, watch, report
        self._clients: dict[int, ClientConnection] = {}  # by descriptor
        self._routes: dict[bytes, ClientConnection] = {}
        self._identities: dict[tuple[bytes, bytes], ClientConnection] = {}
        self._strangers: dict[ClientConnection, None] = {}  # not READY yet, the oldest first
        self._unheard: dict[ClientConnection, None] = {}  # of these, who is to be heard, in order
        self._readable: dict[ClientConnection, None] = {}
        self._held: dict[ClientConnection, None] = {}  # to be read when their rests end
        self._rests = Rests[str | bytes]()  # of payers, and of connections by their routes
        self._answered = Counter[ClientConnection]()  # bytes of this turn's replies
        self._stored, self._stored_at = 0, float("-inf")
        self._shares = max(1, limits.unfinished_bytes_max // MESSAGE_BYTES_MAX)
        self._shares_of: Counter[str] = Counter()  # those that are held, by payer
        self._wanting: dict[ClientConnection, None] = {}  # a share, in order
        self._connection_shares = Shares(CONNECTION_SHARE)
        self.payer_shares = Shares(PAYER_SHARE)
        self._payers: Counter[str] = Counter()  # their connections
        self._number = 0
        self.unread_bytes = 0
        self._closed: Counter[str] = Counter()
        self._reported_at = self._checked_at = clock() - REPORT_S
        self._accept_at = float("inf")
        ipv6 = ":" in listen[0]
        family = socket.AF_INET6 if ipv6 else socket.AF_INET
        self._listener = socket.create_server(
            listen, family=family, backlog=BACKLOG, dualstack_ipv6=ipv6
        )
        self._listener.setblocking(False)
        self._is_listening = False
        self._watch_listener()

    @property
    def address(self) -> Address:
        """Return (host, port) where this side listens."""
        host, port, *_ = self._listener.getsockname()
        return host, port

    def __len__(self) -> int:
        return len(self._clients)

    def __contains__(self, fd: int) -> bool:
        """True for a descriptor whose readiness `on_ready` wants to hear of."""
        return fd in self._clients or fd == self._listener.fileno()

    # --- the poll loop's side -----------------------------------------------------------------

    def on_ready(self, fd: int, readable: bool, writable: bool) -> None:
        """Note what a descriptor is ready for; both True on an error condition."""
        if fd == self._listener.fileno():
            self._accept()
            return
        client = self._clients.get(fd)
        if client is None:  # closed earlier in this turn
            return
        if readable and writable and not any(client.watched):
            self._close(client, "")  # an error on a connection that waits for something else
            return
        if writable:
            self._write(client)
        if readable and client.state is not PortState.CLOSED:
            self._note_readable(client)

    def receive(self, limit: int) -> list[tuple[bytes, list[bytes]]]:
        """Return up to `limit` requests as (route, frames behind the delimiter), in turns.

        Payers take turns, so do the connections of each, and none has more than its share
        (`shares.py`). A large request counts as several while there are others. Reads about
        `READ_BYTES_PER_TURN_MAX` at most.
        """
        taken: list[tuple[bytes, list[bytes]]] = []
        self._hear_strangers()
        if not self._readable:
            return taken
        left = [limit, READ_BYTES_PER_TURN_MAX]  # events, bytes
        rings = self._rings(limit)
        now = self._clock()
        is_contended = self.payer_shares.is_contended(now)
        share = self.payer_shares.share(now, limit)
        rooms = dict.fromkeys(rings, share)
        while rings:
            for payer, ring in list(rings.items()):
                client = ring.popleft()
                if client.state is not PortState.CLOSED:  # by one before it, with its identity
                    steps = min(STEP_REQUESTS, client.share, rooms[payer])
                    before = len(taken)
                    if self._receive_from(client, taken, left, steps):
                        ring.append(client)
                    own = taken[before:]
                    rooms[payer] -= (
                        sum(weight(frames) for _, frames in own) if is_contended else len(own)
                    )
                if payer and is_contended and min(rooms[payer], client.share) <= 0:
                    self._rests.spent(payer, share - rooms[payer])
                if left[0] <= 0 or left[1] <= 0:
                    return taken
                if not ring or rooms[payer] <= 0:
                    del rings[payer]
        return taken

    def turned(self, turn_s: float, now: float, stored: int) -> None:
        """Let those rest who had all of their share of a turn, which took `turn_s`.

        `stored`: how many publications this node has ever stored, whoever published them.
        """
        if stored != self._stored:
            self._stored, self._stored_at = stored, now
        if self._answered:
            self._count_answered(now)
            self._answered.clear()
        if self._rests.begin(turn_s, now):
            for client in [each for each in self._readable if self._is_resting(each)]:
                self._hold(client)
            self._watch_listener()

    def _count_answered(self, now: float) -> None:
        """Note who was answered a lot in this turn, while there are others.

        Of one payer, too, who reads a long topic rests while anybody publishes: it may be the same
        program, and is asked through another node as often as not.
        """
        if sum(self._answered.values()) < PAYER_SHARE * WEIGHT_ANSWER_BYTES:
            return  # as behind nearly every turn
        is_written = now < self._stored_at + CONTENDED_S
        of_payers = Counter[str]()
        for client, size_bytes in self._answered.items():
            of_payers[client.payer] += size_bytes
            answered = size_bytes // WEIGHT_ANSWER_BYTES
            if is_written and answered >= PAYER_SHARE:
                self._rests.spent(client.route, answered, READER_TURNS)
        if self.payer_shares.is_contended(now):
            for payer, size_bytes in of_payers.items():
                answered = size_bytes // WEIGHT_ANSWER_BYTES
                if payer and answered >= PAYER_SHARE:
                    self._rests.spent(payer, answered)

    def _is_resting(self, client: ClientConnection) -> bool:
        return client.payer in self._rests or client.route in self._rests

    def next_deadline(self) -> float:
        """Return when a rest ends; infinity: nobody rests."""
        return self._rests.next_end

    def _hear_strangers(self) -> None:
        """Have the next strangers read in this turn, unless they rest; the others wait."""
        if STRANGERS in self._rests:
            return
        for client in list(islice(self._unheard, STRANGERS_PER_TURN_MAX)):
            del self._unheard[client]
            self._readable[client] = None
        if self._unheard:
            self._rests.spent(STRANGERS)

    def _note_readable(self, client: ClientConnection) -> None:
        if client.state is PortState.GREETING:
            self._unheard[client] = None
            self._rewatch(client)
        elif self._is_resting(client):
            self._hold(client)
        else:
            self._readable[client] = None

    def _hold(self, client: ClientConnection) -> None:
        """Leave a connection unread while it or its payer rests; it is no slower meanwhile."""
        self._readable.pop(client, None)
        self._held[client] = None
        self._rewatch(client)

    def _end_rests(self, now: float) -> None:
        if not self._rests.end(now):
            return
        self._watch_listener()
        for client in [each for each in self._held if not self._is_resting(each)]:
            del self._held[client]
            self._readable[client] = None
            if client.began_at:
                client.began_at += self._rests.rest_s

    def _rings(self, limit: int) -> dict[str, deque[ClientConnection]]:
        """Return who is read in this turn, by payer."""
        share = self._connection_shares.share(self._clock(), limit)
        rings: dict[str, deque[ClientConnection]] = {}
        for client in self._readable:
            client.reads, client.share = 0, share
            rings.setdefault(client.payer, deque()).append(client)
        return rings

    @property
    def has_more(self) -> bool:
        """True when `receive` has something to return at once."""
        return bool(self._readable) or (bool(self._unheard) and STRANGERS not in self._rests)

    def send(self, replies: Replies) -> None:
        """Send replies; one to a client that is gone is dropped."""
        touched: dict[ClientConnection, None] = {}
        for route, frames in replies:
            client = self._routes.get(route)
            if client is None:
                continue
            assert client.requests > 0, route
            client.requests -= 1
            encoded = encode([b"", *frames], client.receiver.session)
            self._queue(client, encoded)
            self._answered[client] += len(encoded)
            touched[client] = None
        for client in touched:
            if client.state is PortState.READY:
                self._write(client)
        self._bound_unread()

    def update_keyring(self, keyring: Keyring) -> None:
        """Let in whose keys these are from now on, and nobody else: not even who is in already."""
        assert self._keyring is not None, "a port has keys from its beginning, or never"
        self._keyring = keyring
        servers = {server.public for server in keyring.servers}
        for client in list(self._clients.values()):
            session = client.receiver.session
            if session is not None and (
                keyring.clients.get(session.client) != session.name or session.server not in servers
            ):
                self._close(client, f"the key of {session.name} is not accepted any more")

    def room_bytes(self, route: bytes) -> int:
        """Return how many bytes of replies may still be made for a client; below 1: none.

        While all together have many unread, few are made for who has some, as ever for the others.
        None for who has gone: what his TAKE has waited for is somebody else's.
        """
        client = self._routes.get(route)
        if client is None:
            return 0
        is_calm = self.unread_bytes < self._limits.unread_bytes_max // 2
        served_bytes = UNREAD_BYTES_SERVED if is_calm else UNREAD_BYTES_PAUSE
        return served_bytes - client.outbox_bytes

    def payer_of(self, route: bytes) -> tuple[str, bool]:
        """Return who pays for a connection's requests, and whether it is one more than it may have.

        When it is gone whose key it has shown, "" without keys.
        """
        client = self._routes.get(route)
        return (_name_in(route), False) if client is None else (client.payer, client.is_surplus)

    @staticmethod
    def principal_of(route: bytes) -> str:
        """Return whose key a connection has shown."""
        name = _name_in(route)
        assert name, "a connection without a key has asked for something"
        return name

    def tick(self, now: float) -> None:
        """Do what is due: deadlines, heartbeats, reports. Cheap while nothing is."""
        self._end_rests(now)
        if now < self._checked_at + CHECK_PERIOD_S:
            return
        self._checked_at = now
        if now >= self._accept_at:
            self._accept_at = float("inf")
            self._watch_listener()
        for client in list(self._clients.values()):
            if self._is_waiting(client):
                continue  # this node may be the one who was paused: first hear what was said
            if client.state in (PortState.GREETING, PortState.CLAIMING):
                self._check_opening(client, now)
            elif client.state is PortState.READY:  # none that gave way to another one just now
                self._check(client, now)
        if self._closed and now >= self._reported_at + REPORT_S:
            self._reported_at = now
            self._report("clients_closed", reasons=dict(self._closed), open=len(self._clients))
            self._closed.clear()

    def close(self, linger_s: float) -> None:
        """Close everything; the last replies have `linger_s` to leave."""
        self._watch(self._listener.fileno(), False, False)
        self._listener.close()
        give_up_at = self._clock() + linger_s
        for client in list(self._clients.values()):
            while client.outbox and self._clock() < give_up_at:
                left_ms = max(0.0, give_up_at - self._clock()) * 1000
                poll = select.poll()
                poll.register(client.fd, select.POLLOUT)
                if not poll.poll(left_ms):
                    break
                self._write(client)
            if client.state is not PortState.CLOSED:
                self._close(client, "")

    def _is_waiting(self, client: ClientConnection) -> bool:
        """Return whether a connection has said something that this node has not looked at yet."""
        return client in self._readable or client in self._held or client in self._unheard

    # --- accepting ----------------------------------------------------------------------------

    def _watch_listener(self) -> None:
        """Look for new connections, but while there is no descriptor for them or strangers rest."""
        wishes = self._accept_at == float("inf") and STRANGERS not in self._rests
        if wishes != self._is_listening:
            self._is_listening = wishes
            self._watch(self._listener.fileno(), wishes, False)

    def _accept(self) -> None:
        for _ in range(STRANGERS_PER_TURN_MAX):
            try:
                raw, address = self._listener.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError as error:  # out of descriptors or memory
                self._note(f"can't accept: {error.strerror}")
                self._accept_at = self._clock() + ACCEPT_PAUSE_S
                self._watch_listener()
                return
            if len(self._clients) >= self._limits.connections_max and not self._make_room():
                self._note(f"there are {len(self._clients)} connections: limits.connections_max")
                raw.close()
                continue
            self._adopt(raw, address)
        self._rests.spent(STRANGERS)  # there may be more

    def _make_room(self) -> bool:
        """Close the connection that has been a stranger for longest; False if there is none."""
        stranger = next(iter(self._strangers), None)
        if stranger is None:
            return False
        self._close(stranger, "gave way before it said READY: limits.connections_max")
        return True

    def _adopt(self, raw: socket.socket, address: Any) -> None:
        raw.setblocking(False)
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        probe_s = int((SILENCE_S_MAX - PING_AFTER_S) / KEEPALIVE_PROBES)
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, int(PING_AFTER_S))
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, probe_s)
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, KEEPALIVE_PROBES)
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(SILENCE_S_MAX * 1000))
        self._number += 1
        route, now = struct.pack(">Q", self._number), self._clock()
        label = f"{address[0]}:{address[1]}"
        deadline_at = now + HANDSHAKE_S_MAX
        receiver = Receiver(self._handshake() if self._keyring is not None else None)
        client = ClientConnection(
            raw, raw.fileno(), label, route, PortState.GREETING, deadline_at, now, receiver
        )
        self._clients[client.fd] = self._routes[route] = client
        self._strangers[client] = None
        self._queue(client, greeting(curve=self._keyring is not None))
        self._write(client)

    def _handshake(self) -> Handshake:
        def keyring() -> Keyring:
            assert self._keyring is not None
            return self._keyring

        return Handshake(keyring, os.urandom)

    # --- reading ------------------------------------------------------------------------------

    def _receive_from(
        self,
        client: ClientConnection,
        taken: list[tuple[bytes, list[bytes]]],
        left: list[int],
        steps: int,
    ) -> bool:
        """Take up to `steps` events of one connection, first of what was read before.

        Return whether it may have more in this turn.
        """
        receiver, goes_on = client.receiver, False
        self._readable.pop(client, None)
        try:
            while self._may_take(client):
                if left[0] <= 0 or steps <= 0:
                    self._readable[client] = None  # here, or in the next turn
                    goes_on = client.share > 0
                    break
                event = receiver.next()
                if event is not None:
                    left[0] -= 1
                    steps -= 1
                    client.share -= 1
                    self._take(client, event, taken)
                elif not self._read_more(client, left):
                    break
        except ZmtpError as error:
            self._close(client, str(error))
        if client.state is PortState.CLOSED:
            return False
        if receiver.is_between_messages:
            client.began_at = 0.0
        elif not client.began_at:
            client.began_at = self._clock()
        self._rewatch(client)
        return goes_on

    def _read_more(self, client: ClientConnection, left: list[int]) -> bool:
        """Read once from the socket, if that is the connection's due; return whether it had any."""
        if client.reads >= READS_PER_TURN_MAX or not self._has_room_to_read(client):
            return False
        size = max(READ_BYTES, min(client.receiver.missing_bytes, LARGE_READ_BYTES_MAX))
        data = self._read(client, size)
        if data:
            left[1] -= len(data)
            client.reads = client.reads + 1 if len(data) == size else READS_PER_TURN_MAX
            client.receiver.feed(data)
        return bool(data)

    def _may_take(self, client: ClientConnection) -> bool:
        return (
            client.state in (PortState.GREETING, PortState.READY)
            and client.requests < self._limits.requests_max
            and client.outbox_bytes <= UNREAD_BYTES_PAUSE
        )

    def _has_room_to_read(self, client: ClientConnection) -> bool:
        """Return whether a message that goes on may do so now; if not, it waits for its share."""
        if client.has_share or client.receiver.unfinished_bytes <= READ_BYTES:
            return True
        if not self._shares:
            if client not in self._wanting:
                client.wanted_at = self._clock()
                self._wanting[client] = None
            return False
        self._shares -= 1
        self._give_share(client)
        return True

    def _give_share(self, client: ClientConnection) -> None:
        client.has_share = True
        self._shares_of[client.payer] += 1
        client.began_at = self._clock()  # it could not send before

    def _return_share(self, client: ClientConnection) -> None:
        """Take back a share, for the next one who waits."""
        self._wanting.pop(client, None)
        if not client.has_share:
            return
        client.has_share = False
        self._shares_of[client.payer] -= 1
        if not self._shares_of[client.payer]:
            del self._shares_of[client.payer]
        waiting = self._next_wanting()
        if waiting is None:
            self._shares += 1
        else:
            del self._wanting[waiting]
            self._give_share(waiting)
            self._note_readable(waiting)

    def _next_wanting(self) -> ClientConnection | None:
        """Return who has waited longest, of the payers who have fewest shares."""
        fewest: ClientConnection | None = None
        for client in self._wanting:
            held = self._shares_of[client.payer]
            if not held:
                return client
            if fewest is None or held < self._shares_of[fewest.payer]:
                fewest = client
        return fewest

    def _read(self, client: ClientConnection, size: int) -> bytes:
        """Return what came; b"" if nothing did or the connection was closed."""
        try:
            data = client.socket.recv(size)
        except BlockingIOError:
            return b""
        except OSError:
            data = b""
        if not data:
            self._close(client, "")
            return b""
        client.heard_at = self._clock()
        if client.claimant is not None:
            self._close(client.claimant, "came with the identity of a living connection")
        return data

    def _take(
        self, client: ClientConnection, event: Any, taken: list[tuple[bytes, list[bytes]]]
    ) -> None:
        if type(event) is list:
            if client.has_share:
                self._return_share(client)
            client.began_at = 0.0
            client.requests += 1
            now = self._clock()
            self._connection_shares.note(client.route, now)
            self.payer_shares.note(client.payer, now)
            # Without the delimiter there is nothing to decode: answered as a bad request.
            taken.append((client.route, event[1:] if not event[0] else []))
        elif isinstance(event, ClientReady):
            if event.reply:
                self._queue(client, event.reply)
                self._write(client)
            if client.state is not PortState.CLOSED:
                self._take_ready(client, event)
        elif isinstance(event, Say):
            self._queue(client, event.data)
            self._write(client)
        elif isinstance(event, Ping):
            self._queue(client, encode_pong(event.context, client.receiver.session))
            self._write(client)

    # --- identities ---------------------------------------------------------------------------

    def _take_ready(self, client: ClientConnection, ready: ClientReady) -> None:
        """Let the client in, unless its identity is that of a connection that lives.

        A client that comes back after its network broke has left a connection that looks alive:
        whoever has the identity is asked, and gives way if it doesn't answer. With keys everybody
        has identities of his own: no other principal keeps him out, or puts him out.
        """
        client.pings = ready.pings
        if ready.identity:
            session = client.receiver.session
            client.identity = (b"" if session is None else session.name.encode()), ready.identity
        other = self._identities.get(client.identity)
        if other is None:
            self._admit(client)
        elif other.claimant is None and other.pings and other.watched[0]:
            client.state, client.deadline_at = PortState.CLAIMING, self._clock() + CLAIM_S
            other.claimant = client
            self._queue(other, encode_ping(client.route, other.receiver.session))
            self._write(other)
        else:
            self._close(client, "came with the identity of a living connection")

    def _admit(self, client: ClientConnection) -> None:
        client.state = PortState.READY
        client.heard_at = self._clock()
        session = client.receiver.session
        if session is not None:
            del self._routes[client.route]
            client.route += session.name.encode()
            self._routes[client.route] = client
        # Without keys the address: all that a stranger can't choose as he likes.
        client.payer = client.address.rpartition(":")[0] if session is None else session.name
        self._payers[client.payer] += 1
        limit = self._limits.payer_connections_max
        if 0 < limit < self._payers[client.payer]:
            # It is told why when it asks for something; until then it has a stranger's place.
            client.is_surplus = True
            client.deadline_at = client.heard_at + HANDSHAKE_S_MAX
        else:
            self._strangers.pop(client, None)
        if client.identity != NOBODY:
            self._identities[client.identity] = client

    # --- writing ------------------------------------------------------------------------------

    def _queue(self, client: ClientConnection, data: bytes) -> None:
        if not client.outbox:
            client.took_at = self._clock()
        client.outbox.append(data)
        client.outbox_bytes += len(data)
        self.unread_bytes += len(data)

    def _write(self, client: ClientConnection) -> None:
        """Write what the socket takes."""
        outbox = client.outbox
        while outbox:
            buffers = list(islice(outbox, GATHER_REPLIES_MAX))
            try:
                size = client.socket.sendmsg(buffers)
            except BlockingIOError:
                break
            except OSError:
                self._close(client, "")
                return
            self._sent(client, size)
            if outbox and size < sum(map(len, buffers)):
                break
        if client.outbox_bytes > UNREAD_BYTES_MAX:
            self._close(client, f"doesn't take its replies: over {UNREAD_BYTES_MAX} bytes")
            return
        self._resume(client)
        self._rewatch(client)

    def _sent(self, client: ClientConnection, size: int) -> None:
        client.outbox_bytes -= size
        self.unread_bytes -= size
        client.took_at = self._clock()
        outbox = client.outbox
        while size:
            head = outbox.popleft()
            if len(head) > size:
                outbox.appendleft(memoryview(head)[size:])
                return
            size -= len(head)

    def _resume(self, client: ClientConnection) -> None:
        """Go on with what a connection has sent, once it may be taken again."""
        if (
            client.state is PortState.READY
            and not client.watched[0]
            and client not in self._wanting
        ):
            self._note_readable(client)

    def _bound_unread(self) -> None:
        """Close those with most replies that they don't take, while all together have too many."""
        while self.unread_bytes > self._limits.unread_bytes_max:
            most = max(self._clients.values(), key=lambda client: client.outbox_bytes)
            self._close(most, "doesn't take its replies: limits.unread_bytes_max")

    def _rewatch(self, client: ClientConnection) -> None:
        may_read = (
            self._may_take(client)
            and client not in self._wanting
            and client not in self._held
            and client not in self._unheard
        )
        wishes = may_read, bool(client.outbox)
        if wishes != client.watched:
            client.watched = wishes
            self._watch(client.fd, *wishes)

    # --- deadlines ----------------------------------------------------------------------------

    def _check_opening(self, client: ClientConnection, now: float) -> None:
        if now < client.deadline_at:
            return
        if client.state is PortState.GREETING:
            self._close(client, f"no READY in {HANDSHAKE_S_MAX:.0f} s")
            return
        other = self._identities[client.identity]
        if self._is_waiting(other):
            return
        if other.watched[0]:
            self._close(other, "did not answer when its identity came again")  # admits `client`
        else:  # we don't read it now, so it can't have answered
            self._close(client, "came with the identity of a living connection")

    def _check(self, client: ClientConnection, now: float) -> None:
        silent_s = now - client.heard_at
        if client.is_surplus and now >= client.deadline_at:
            self._close(client, f"{client.payer} has as many as quotas.connections_max")
        elif client.outbox and now >= client.took_at + SILENCE_S_MAX:
            self._close(client, f"took no byte of its replies in {SILENCE_S_MAX:.0f} s")
        elif client.has_share and self._wanting and self._is_slow(client, now):
            # Also one that is not read because it doesn't take its replies: the others wait for it.
            self._close(client, "sent a large message slowly while others waited")
        elif client in self._wanting and now >= client.wanted_at + SHARE_S_MAX:
            text = f"waited {SHARE_S_MAX:.0f} s to send a large message"
            self._close(client, f"{text}: limits.unfinished_bytes_max")
        elif not client.watched[0]:
            return  # what it says meanwhile is not read
        elif client.began_at and silent_s >= MESSAGE_SILENCE_S_MAX:
            self._close(client, "stopped in the middle of a message")
        elif client.began_at and now >= client.began_at + MESSAGE_S_MAX:
            self._close(client, f"took over {MESSAGE_S_MAX:.0f} s for a message")
        elif client.pings and silent_s >= SILENCE_S_MAX:
            self._close(client, f"silent for {SILENCE_S_MAX:.0f} s")
        elif client.pings and silent_s >= PING_AFTER_S and client.pinged_at <= client.heard_at:
            client.pinged_at = now
            self._queue(client, encode_ping(b"", client.receiver.session))
            self._write(client)

    @staticmethod
    def _is_slow(client: ClientConnection, now: float) -> bool:
        sending_s = now - client.began_at
        silent_s = now - max(client.heard_at, client.began_at)
        came = client.receiver.unfinished_bytes - client.receiver.missing_bytes
        is_behind = sending_s >= HURRY_AFTER_S and came < sending_s * HURRY_BYTES_PER_S_MIN
        return is_behind or silent_s >= HURRY_SILENCE_S_MAX

    # --- ends ---------------------------------------------------------------------------------

    def _note(self, reason: str) -> None:
        key = reason if reason in self._closed or len(self._closed) < REASONS_MAX else "others"
        self._closed[key] += 1

    def _close(self, client: ClientConnection, reason: str) -> None:
        """Close a connection; `reason` "": its other end did, which is no news."""
        assert client.state is not PortState.CLOSED, client.address
        if reason:
            self._note(reason)
        before, client.state = client.state, PortState.CLOSED
        if any(client.watched):
            self._watch(client.fd, False, False)
        client.watched = (False, False)
        client.socket.close()
        self.unread_bytes -= client.outbox_bytes
        client.outbox.clear()
        client.outbox_bytes = 0
        del self._clients[client.fd], self._routes[client.route]
        if before is PortState.READY:
            self._payers[client.payer] -= 1
            if not self._payers[client.payer]:
                del self._payers[client.payer]
        self._strangers.pop(client, None)
        for waiting in (self._unheard, self._readable, self._held):
            waiting.pop(client, None)
        self._return_share(client)
        other = self._identities.get(client.identity)
        if before is PortState.CLAIMING and other is not None:
            other.claimant = None
        elif other is client:
            del self._identities[client.identity]
            if client.claimant is not None:
                self._admit(client.claimant)
                self._note_readable(client.claimant)
                self._rewatch(client.claimant)


def _name_in(route: bytes) -> str:
    """Return whose key stands in a route, "" if none does."""
    return route[ROUTE_BYTES:].decode()
