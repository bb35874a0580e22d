"""The TCP connections between nodes: one a pair, non-blocking, driven by the node's poll loop.

What lives here: dialing, accepting, the handshake, bounded buffers, liveness; `Peers`, the surface
that a node uses and that an in-memory twin implements. What must not: what a message means, Raft,
ZeroMQ. Nothing here waits: the loop calls `on_ready` and `tick`, everything else is immediate.
Decisions: docs/decisions/0002-peer-transport.md.
"""

from __future__ import annotations

import os
import socket
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from random import Random
from typing import Any, Final, Protocol, TypeAlias

from cluster.keys.tls import Tls, TlsSocket
from cluster.members.handshake import Reports, contest, follows, identity, objection, unfit
from cluster.members.links import (
    READ_BYTES_MAX,
    REFUSED_ATTEMPTS,
    TCP_NOTSENT_LOWAT,
    UNSENT_BYTES_MAX,
    Address,
    Connection,
    Dial,
    LinkState,
    Lookup,
    Reason,
)
from cluster.members.membership import Roll
from cluster.settings.config import RaftSettings
from cluster.wire import messages
from cluster.wire.frames import framed
from cluster.wire.levels import Build
from cluster.wire.messages import (
    EXTENSION_HEAD_BYTES,
    Extension,
    Hello,
    Message,
    MessageError,
    PeerRefused,
    Refusal,
    SnapshotRefused,
    begins_extension,
)

SEND_BUFFER_BYTES_MAX: Final = 32 * 1024 * 1024  # 4 largest frames: above that a peer is behind
ACCEPTS_PER_EVENT_MAX: Final = 2  # each begins TLS; see serve/client_port.py
STRANGERS_MAX: Final = 16  # inbound connections that have not said Hello; the oldest gives way
ACCEPT_PAUSE_MS: Final = 100  # out of descriptors: look again later instead of spinning
DIAL_MS_MAX: Final = 1_000  # look-up and connect: a lost SYN is dialed anew as fast as sent anew
HANDSHAKE_MS_MAX: Final = 2_000  # from connected to Hello: a round trip and a busy loop
# From a Hello to its extension, which leaves with it; a peer that says none is of version 0.1.
EXTENSION_MS_MAX: Final = 250
UNFIT_CHARACTERS_MAX: Final = 200  # below messages.REASON_BYTES_MAX, whatever they encode to
PEER_SILENCE_MS_MAX: Final = 10_000  # default: a hundred heartbeats missed
KEEPALIVES_PER_SILENCE: Final = 4  # an idle side repeats its Hello: three may be lost
RENEWAL_S: Final = 0.5  # from one to the next: a new connection takes a tenth of that
LOOKUP_POLL_MS: Final = 5  # how late a finished look-up may be noticed

# Their senders repeat them anyway, so a peer that is behind may miss them. Appends and their
# acknowledgments are not: once its window of bytes in flight is full, a leader repeats nothing.
DROPPABLE: Final = frozenset(
    {
        messages.RequestVote,
        messages.PreVote,
        messages.SnapshotOffer,
        messages.ReadIndex,
        messages.ReadIndexResponse,
        messages.Health,
        messages.About,
    }
)

# What clients and copies of the store make of traffic: Raft's messages overtake it, always.
BULK: Final = frozenset({messages.Relay, messages.RelayReply, messages.SnapshotChunk})
# Of it, to one peer, from which on clients' requests are refused; a relayed GET's reply has 1 MiB.
BULK_BYTES_SERVED: Final = 8 * 1024 * 1024
# From which on no long reply to a relayed request is made: who waits is told so in a short one,
# which would be dropped, and waited for in vain, were there no room left for it.
BULK_BYTES_LONG_REPLIES: Final = 24 * 1024 * 1024

Watch: TypeAlias = Callable[[int, bool, bool], None]


@dataclass(frozen=True, slots=True)
class Connected:
    """A peer said a Hello that we accept; `hello_of` has it."""

    name: str


@dataclass(frozen=True, slots=True)
class Disconnected:
    """The connection to a peer is gone, with everything that was queued on it."""

    name: str
    reason: Reason
    detail: str


@dataclass(frozen=True, slots=True)
class HandshakeRefused:
    """Somebody at `address` was turned away; at most one report an address in `REPORT_MS`.

    `withheld`: how many others were turned away since the last report, that are not told.
    """

    address: str
    reason: str
    withheld: int = 0


@dataclass(frozen=True, slots=True)
class Doubled:
    """A second process, at `address`, claims the name of a connected peer, and was turned away."""

    name: str
    address: str
    incarnation: str
    reason: str


@dataclass(frozen=True, slots=True)
class RefusedBy:
    """Somebody who says that it is a peer, of that incarnation, has refused this node.

    `refusal` is a messages.Refusal. What it is worth is for who knows the members.
    """

    name: str
    incarnation: str
    refusal: int
    reason: str


@dataclass(frozen=True, slots=True)
class Unfit:
    """A build and ours don't fit; at most one report in `REPORT_MS` of a member, of others so too.

    `name` and `incarnation`: who it says that it is. `feature_level`: the cluster's, as it knows
    that. `build`: its program.
    """

    name: str
    incarnation: str
    feature_level: int
    build: Build
    reason: str


@dataclass(frozen=True, slots=True)
class DialFailed:
    """A peer can't be reached; at most one report a peer in `REPORT_MS`."""

    name: str
    reason: str


Event: TypeAlias = (
    Connected | Disconnected | HandshakeRefused | Doubled | RefusedBy | Unfit | DialFailed
)


class Peers(Protocol):
    """What a node needs of its peers; `PeerPort` does it over TCP.

    A turn takes `receive`, then `events`, and handles the events first: a message is never older
    than the connection it is ascribed to, and its connection may just have ended.
    """

    def send(self, name: str, message: Message) -> None:
        """Queue a message; drop it if the peer is not connected or too far behind.

        Never blocks, never delivers anything, and raises for no state of the network.
        """

    def room_bytes(self, name: str) -> int:
        """Return how many bytes of relayed messages may still be made for a peer; below 1: none."""

    def flush(self, name: str | None) -> None:
        """Let what is queued for a peer (None: for all) leave."""

    def receive(self, limit: int) -> list[tuple[str, Message]]:
        """Return up to `limit` (sender, message), no Hello among them; fewer = nothing is left."""

    def events(self) -> list[Event]:
        """Return what happened to connections since the last call, in order."""

    def hello_of(self, name: str) -> Hello | None:
        """Return the newest Hello of a connected peer, None if it is not connected."""

    def update_hello(self, hello: Hello) -> None:
        """Say a new Hello to every peer; `identity` and the build may not differ."""

    def update_roll(self, roll: Roll) -> None:
        """Set who the members are: others of their names give way, evicted ones are refused."""

    def part(self, name: str, reason: str) -> None:
        """Close the connection with a peer, if there is one. Whoever dials makes another."""

    def trouble(self, name: str) -> str:
        """Return why a peer has said nothing since it was last connected, "" if not known."""


class PeerPort:
    """A node's connections to the other members; implements `Peers`.

    `members` maps every other member's name to (host, port); `listen` may have port 0 (`address`
    tells which it became). `watch(fd, read, write)` is called whenever the wish for a descriptor
    changes, (False, False) = forget it. `clock` is monotonic seconds; `random` jitters the dials.
    With `tls` both ends prove who they are before a byte of a message is looked at.
    The constructor raises OSError if it can't listen.
    """

    def __init__(
        self,
        name: str,
        listen: Address,
        members: Mapping[str, Address],
        hello: Hello,
        clock: Callable[[], float],
        *,
        watch: Watch,
        random: Random,
        silence_ms: int = PEER_SILENCE_MS_MAX,
        takeover_ms: int = RaftSettings.takeover_ms,
        tls: Tls | None = None,
    ) -> None:
        assert tls is None or tls.own.node == name, (tls, name)
        self._tls = tls
        self._renewals: deque[Connection] = deque()
        self._renew_at = float("inf")
        assert hello.node == name, (hello.node, name)
        assert set(hello.members) == {name, *members}, (hello.members, sorted(members))
        self._name, self._hello = name, hello
        self._clock, self._watch, self._random = clock, watch, random
        self._silence_s, self._takeover_s = silence_ms / 1000, takeover_ms / 1000
        self._roll = Roll()
        self._troubles: dict[str, str] = {}
        self._members = frozenset(members) - {name}
        now = clock()
        # The smaller name dials, so that a pair has one connection. Who so has nobody to dial asks
        # why nobody dials him: another process may have his name, at his address.
        self._dials = [Dial(peer, members[peer], now) for peer in sorted(members) if peer > name]
        ask_at, asked = now + self._takeover_s, () if self._dials else sorted(members)
        self._questions = [Dial(peer, members[peer], ask_at, is_question=True) for peer in asked]
        self._connections: dict[int, Connection] = {}
        self._live: dict[str, Connection] = {}
        self._heard: dict[Connection, None] = {}  # live ones that may have a message for `receive`
        self._queued: dict[Connection, None] = {}  # live ones with something for `flush`
        self._events: list[Event] = []
        self._reports = Reports()
        self._scratch = memoryview(bytearray(READ_BYTES_MAX // 4))
        self._deadline = now
        self._accept_at = float("inf")
        self._accepted_all = False  # that a turn may
        self.dropped: Counter[str] = Counter()  # messages not sent, by peer
        family = socket.AF_INET6 if ":" in listen[0] else socket.AF_INET
        self._listener = socket.create_server(listen, family=family)
        self._listener.setblocking(False)
        watch(self._listener.fileno(), True, False)

    @property
    def address(self) -> Address:
        """Return (host, port) where this side listens."""
        host, port, *_ = self._listener.getsockname()
        return host, port

    def close(self) -> None:
        """Close every socket; what is queued is lost. The port is of no use afterwards."""
        for connection in self._connections.values():
            self._release(connection)
        self._connections.clear()
        self._live.clear()
        self._watch(self._listener.fileno(), False, False)
        self._listener.close()

    # --- the surface of Peers ---

    def send(self, name: str, message: Message) -> None:
        """Queue a message for a peer; see `Peers`. Buffers at most twice `SEND_BUFFER_BYTES_MAX`.

        Over the limit a droppable message or one of `BULK` is dropped; over twice the limit the
        connection closes.
        """
        assert name in self._members, name
        connection = self._live.get(name)
        if connection is None or connection.state is not LinkState.LIVE:
            self.dropped[name] += 1
            return
        if type(message) in BULK:
            if connection.bulk_bytes > SEND_BUFFER_BYTES_MAX:
                self.dropped[name] += 1  # who waits for it asks again
            else:
                connection.queue_bulk(framed(message))
                self._queued[connection] = None
        elif connection.outbox_bytes > SEND_BUFFER_BYTES_MAX and type(message) in DROPPABLE:
            self.dropped[name] += 1
        elif connection.outbox_bytes > 2 * SEND_BUFFER_BYTES_MAX:
            self._close(connection, Reason.BEHIND, f"{connection.outbox_bytes} bytes wait for it")
        else:
            connection.queue(framed(message))
            self._queued[connection] = None

    def room_bytes(self, name: str) -> int:
        """Return what may still be queued of relayed messages; see `Peers`."""
        connection = self._live.get(name)
        return BULK_BYTES_SERVED - (connection.bulk_bytes if connection else 0)

    def flush(self, name: str | None) -> None:
        """Write what the socket takes; the rest waits for writability."""
        if not self._queued:
            return
        queued, self._queued = self._queued, {}
        for connection in queued:
            if name not in (None, connection.name):
                self._queued[connection] = None
            elif connection.waiting_bytes and not connection.blocked:
                self._write(connection)

    def receive(self, limit: int) -> list[tuple[str, Message]]:
        """Return up to `limit` (sender, message), a message a peer in turn; see `Peers`."""
        received: list[tuple[str, Message]] = []
        heard = self._heard
        while heard and len(received) < limit:
            connection = next(iter(heard))
            del heard[connection]
            message = self._next_message(connection)
            if message is not None:
                received.append((connection.name, message))
                if connection.state is not LinkState.CLOSED:
                    heard[connection] = None  # the others first
        return received

    def events(self) -> list[Event]:
        """Return what happened to connections since the last call, in order."""
        events, self._events = self._events, []
        return events

    def hello_of(self, name: str) -> Hello | None:
        """Return the newest Hello of a connected peer, None if it is not connected."""
        connection = self._live.get(name)
        return connection.hello if connection else None

    def update_hello(self, hello: Hello) -> None:
        """Queue a new Hello for every peer; see `Peers`."""
        assert identity(hello) == identity(self._hello), (hello, self._hello)
        self._hello = hello
        for connection in self._connections.values():
            if connection.state in (LinkState.GREETING, LinkState.LIVE):
                connection.queue(framed(hello))
            if connection.state is LinkState.LIVE:
                self._queued[connection] = None
        for connection in list(self._live.values()):
            self._check_fit(connection)

    def _check_fit(self, connection: Connection) -> bool:
        """Close a live connection whose ends can't be in one cluster any more."""
        assert connection.hello is not None, connection.name
        reason = unfit(self._hello, connection.hello)
        if reason:
            self._close(connection, Reason.UNFIT, reason)
        return not reason

    def update_roll(self, roll: Roll) -> None:
        """Set who the members are: others of their names give way, evicted ones are refused."""
        self._roll = roll
        for connection in list(self._live.values()):
            if connection.state is LinkState.LIVE:
                self._check_standing(connection)

    def _check_standing(self, connection: Connection) -> bool:
        """Close a live connection with a process that was replaced, and tell it."""
        assert connection.hello is not None, connection.name
        eviction = self._roll.eviction(connection.hello)
        if eviction:
            self._part(connection, Refusal.EVICTED, eviction)
            self._close(connection, Reason.UNWELCOME, eviction)
        return not eviction

    def update_tls(self, tls: Tls) -> None:
        """Prove who this is by other keys from now on, and end what these would not let in.

        With another certificate of our own each peer is connected anew, one after the other: so
        that what was proved by the old one ends before the old one is not accepted any more, and
        no leader loses two of its followers at a time.
        """
        assert self._tls is not None, "peers prove who they are from the beginning, or never"
        is_renewed = tls.own != self._tls.own
        self._tls = tls
        for connection in list(self._connections.values()):
            assert isinstance(connection.socket, TlsSocket), connection.address
            if connection.socket.peer is None:  # its handshake would end by the old keys
                self._drop(connection)
                continue
            objection = tls.objection(connection.socket.peer)
            if not objection:
                continue
            if connection.state in (LinkState.LIVE, LinkState.ENDED):
                self._close(connection, Reason.UNPROVED, objection)
            else:
                self._refuse(connection, objection)
        if is_renewed:
            self._renewals = deque(self._live.values())
            self._schedule_renewal()

    def _schedule_renewal(self) -> None:
        self._renew_at = float("inf")
        if self._renewals:
            self._renew_at = self._clock() + RENEWAL_S * self._random.uniform(0.5, 1.5)
            self._wake(self._renew_at)

    def _renew(self) -> None:
        """End the next connection that we have proved ourselves on by an older certificate."""
        connection = self._renewals.popleft()
        if connection.state is LinkState.LIVE:
            self._close(connection, Reason.RENEWED, "")
        self._schedule_renewal()

    def part(self, name: str, reason: str) -> None:
        """Close the connection with a peer, if there is one. Whoever dials makes another."""
        connection = self._live.get(name)
        if connection is not None:
            self._close(connection, Reason.UNWELCOME, reason)

    def trouble(self, name: str) -> str:
        """Return why a peer has said nothing since it was last connected, "" if not known."""
        return self._troubles.get(name, "")

    # --- the poll loop's side ---

    def next_deadline(self) -> float:
        """Return when `tick` is due, in the clock's seconds; in the past if events wait."""
        return float("-inf") if self._events else self._deadline

    def on_ready(self, fd: int, readable: bool, writable: bool) -> None:
        """Do what a descriptor is ready for; call it with both True on an error condition."""
        if fd == self._listener.fileno():
            self._accept()
            return
        connection = self._connections.get(fd)
        if connection is None:  # closed earlier in this turn
            return
        if connection.state is LinkState.CONNECTING:
            self._finish_connect(connection)
            return
        if writable:
            self._write(connection)
        if readable and connection.state in (LinkState.GREETING, LinkState.LIVE):
            self._read(connection)

    def turned(self, rests_until: float) -> None:
        """Take no new connection until then, if this turn took as many as it may.

        There may be more without an end, and each costs a handshake of TLS: in turns without a
        pause they would have all of this node's time.
        """
        if self._accepted_all:
            self._accepted_all = False
            self._accept_again(rests_until)

    def _accept_again(self, at: float) -> None:
        self._watch(self._listener.fileno(), False, False)
        self._accept_at = at
        self._wake(at)

    def tick(self, now: float) -> None:
        """Do what is due: dials, time-outs, keepalives. Cheap while nothing is."""
        if now < self._deadline:
            return
        self._deadline = self._accept_at
        if now >= self._accept_at:
            self._deadline = self._accept_at = float("inf")
            self._watch(self._listener.fileno(), True, False)
        if now >= self._renew_at:
            self._renew()
        self._wake(self._renew_at)
        for dial in self._dials if self._live else (*self._dials, *self._questions):
            if dial.connection is None:
                self._advance(dial, now)
        for connection in list(self._connections.values()):
            if connection.state in (LinkState.CONNECTING, LinkState.GREETING):
                self._check_opening(connection, now)
            elif connection.state is LinkState.LIVE:
                self._check_silence(connection, now)
            elif connection.state is LinkState.ENDED:
                self._wake(now)  # until its last messages are received

    def _wake(self, at: float) -> None:
        self._deadline = min(self._deadline, at)

    # --- dialing ---

    def _advance(self, dial: Dial, now: float) -> None:
        if now < dial.due_at:
            self._wake(dial.due_at)
            return
        if dial.lookup is None:
            dial.lookup = Lookup(dial.address)
            dial.give_up_at = now + DIAL_MS_MAX / 1000
        if dial.lookup.found is not None:
            self._connect(dial, dial.lookup.found)
        elif dial.lookup.failure or now >= dial.give_up_at:
            self._dial_failed(dial, dial.lookup.failure or f"no address in {DIAL_MS_MAX} ms")
        else:
            self._wake(now + LOOKUP_POLL_MS / 1000)

    def _connect(self, dial: Dial, found: list[Any]) -> None:
        try:
            raw, address = dial.connect(found)
        except OSError as error:
            self._dial_failed(dial, str(error))
            return
        dial.connection = self._adopt(raw, address, dial, dial.give_up_at)

    def _finish_connect(self, connection: Connection) -> None:
        error = connection.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if error:
            self._refuse(connection, os.strerror(error))
        else:
            self._begin_handshake(connection)

    def _dial_failed(self, dial: Dial, reason: str) -> None:
        host, port = dial.address
        self._dial_trouble(dial.name, f"{host}:{port}: {reason}")
        self._schedule(dial)

    def _dial_trouble(self, name: str, reason: str) -> None:
        self._troubles[name] = reason
        self._report(name, DialFailed(name, reason))

    def _schedule(self, dial: Dial) -> None:
        if dial.is_question:
            dial.attempts = REFUSED_ATTEMPTS
        dial.schedule(self._clock(), self._random)
        self._wake(dial.due_at)

    # --- accepting ---

    def _accept(self) -> None:
        for _ in range(ACCEPTS_PER_EVENT_MAX):
            try:
                raw, address = self._listener.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError as error:  # out of descriptors or memory
                self._report("listener", HandshakeRefused("listener", str(error)))
                self._accept_again(self._clock() + ACCEPT_PAUSE_MS / 1000)
                return
            raw.setblocking(False)
            self._make_room_for_stranger()
            self._begin_handshake(self._adopt(raw, address, None, 0.0))
        self._accepted_all = True

    def _make_room_for_stranger(self) -> None:
        inbound = (each for each in self._connections.values() if each.dial is None)
        strangers = [each for each in inbound if each.state is LinkState.GREETING]
        if len(strangers) >= STRANGERS_MAX:
            self._refuse(strangers[0], f"{STRANGERS_MAX} connections came before it said Hello")

    def _adopt(
        self, raw: socket.socket, address: Any, dial: Dial | None, deadline_at: float
    ) -> Connection:
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        raw.setsockopt(socket.IPPROTO_TCP, TCP_NOTSENT_LOWAT, UNSENT_BYTES_MAX)
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(self._silence_s * 1000))
        label = f"{address[0]}:{address[1]}"
        wire = raw if self._tls is None else self._tls.wrap(raw, is_server=dial is None)
        connection = Connection(wire, raw.fileno(), label, dial, LinkState.CONNECTING, deadline_at)
        self._connections[connection.fd] = connection
        self._wake(deadline_at)
        self._rewatch(connection)
        return connection

    # --- the handshake ---

    def _begin_handshake(self, connection: Connection) -> None:
        connection.state = LinkState.GREETING
        connection.deadline_at = self._clock() + HANDSHAKE_MS_MAX / 1000
        self._wake(connection.deadline_at)
        connection.queue(framed(self._hello))
        self._write(connection)

    def _greet(self, connection: Connection) -> None:
        if connection.unfit:
            if connection.ending is not None:
                self._refuse(connection, connection.unfit)
            return
        try:
            refusal = self._take_hello(connection) if connection.hello is None else ""
            known = connection.hello
            hello = self._with_extension(connection, known) if known is not None else None
        except MessageError as error:
            self._refuse(connection, str(error))
            return
        name = connection.hello.node if connection.hello is not None else ""
        if refusal or connection.ending:
            if (
                name
                and not refusal
                and (self._is_asked(connection) or self._was_refused(connection))
            ):
                self._drop(connection)
            else:
                self._refuse(connection, refusal or _ended_text(connection))
        elif hello is not None and not connection.asks:
            self._take_place(connection, hello)

    def _was_refused(self, connection: Connection) -> bool:
        """Return whether the peer closed what it has just opened with a reason, and note that."""
        try:
            last = connection.reader.next()
        except MessageError:
            return False
        if not isinstance(last, PeerRefused):
            return False
        if connection.asks and last.kind == Refusal.FOREIGN:
            return True  # nobody has our name there: we are to wait
        self._refused_by(connection, last)
        if connection.dial is not None:
            connection.dial.attempts = REFUSED_ATTEMPTS
        return True

    def _is_asked(self, connection: Connection) -> bool:
        """Return whether who has connected can only ask why we don't dial him.

        His name is the greater, so it is us who dial.
        """
        hello = connection.hello
        return connection.dial is None and hello is not None and hello.node > self._name

    def _refused_by(self, connection: Connection, message: PeerRefused) -> None:
        assert connection.hello is not None, connection.address
        name, incarnation = connection.hello.node, connection.hello.incarnation
        self._troubles[name] = f"{name} refuses this node: {message.reason}"
        # Each time: whoever is refused looks at how many refuse it now.
        self._events.append(RefusedBy(name, incarnation, message.kind, message.reason))

    def _take_place(self, connection: Connection, hello: Hello) -> None:
        """Let the peer be who it says, unless another process is."""
        name = hello.node
        eviction = self._roll.eviction(hello)
        if eviction:
            self._part(connection, Refusal.EVICTED, eviction)
            self._report(name, HandshakeRefused(connection.address, eviction))
            self._drop(connection)
            return
        old = self._live.get(name)
        if old is not None and old.state is LinkState.LIVE:
            self._read(old)  # it may have ended, or we may be the ones who were paused
        if old is not None and old.state is LinkState.LIVE:
            assert old.hello is not None, name
            # One that sends more than we take is not silent.
            silent_s = self._clock() - old.heard_at if old.watched[0] else 0.0
            admitted = self._roll.newest.get(name)
            refusal = contest(hello, old.hello, silent_s, self._takeover_s, admitted, old.address)
            # Who asks while we dial him has one connection with us by now, and is no other process.
            has_just_come = self._clock() < old.live_at + HANDSHAKE_MS_MAX / 1000
            if refusal and not (has_just_come and self._is_asked(connection)):
                self._part(connection, Refusal.DOUBLED, refusal)
                address, incarnation = connection.address, hello.incarnation
                self._report(name, Doubled(name, address, incarnation, refusal))
                self._drop(connection)
                return
        if self._is_asked(connection):
            text = f"{name} has to wait until {self._name} dials it"
            self._part(connection, Refusal.FOREIGN, text)
            self._drop(connection)
            return
        misfit = unfit(self._hello, hello)
        if misfit:
            self._hold_off(connection, hello, misfit)
            return
        if old is not None and old.state is LinkState.LIVE:
            text = f"{connection.address} (incarnation {hello.incarnation}) has its place now"
            self._part(old, Refusal.DOUBLED, text)
        self._admit(connection, hello)

    def _part(self, connection: Connection, kind: Refusal, reason: str) -> None:
        """Say a last word, as far as the socket takes it at once."""
        encoded = reason.encode()[: messages.REASON_BYTES_MAX].decode(errors="ignore")
        connection.queue(framed(PeerRefused(kind, encoded)))
        connection.write()

    def _take_hello(self, connection: Connection) -> str:
        """Take the first message, once it is whole; return why it is no Hello for us."""
        message = connection.reader.next()
        if message is None:
            return ""
        dialed = connection.dial.name if connection.dial else None
        refusal = objection(self._hello, message, dialed, connection.proved)
        if isinstance(message, Hello) and message.node in self._members:
            self._troubles[message.node] = refusal
        if refusal and isinstance(message, Hello):
            self._part(connection, Refusal.FOREIGN, refusal)
        if not refusal:
            assert isinstance(message, Hello), message
            connection.hello = message
            patience_ms = HANDSHAKE_MS_MAX if connection.asks else EXTENSION_MS_MAX
            connection.deadline_at = self._clock() + patience_ms / 1000
            self._wake(connection.deadline_at)
        return refusal

    def _with_extension(self, connection: Connection, hello: Hello) -> Hello | None:
        """Return the Hello as a whole; None while its extension may still come."""
        begins = begins_extension(connection.reader.peek(EXTENSION_HEAD_BYTES))
        if begins:
            extension = connection.reader.next()
            return replace(hello, extension=extension) if isinstance(extension, Extension) else None
        over = self._clock() >= connection.deadline_at
        return hello if begins is False or over else None

    def _hold_off(self, connection: Connection, hello: Hello, reason: str) -> None:
        """Tell a peer of an unfit build why, and turn it away a little later.

        Version 0.1 sees no fault in our Hello: turned away at once, it would be back at once. What
        its log shows is the reason of a SnapshotRefused.
        """
        build, level = hello.extension.build, hello.extension.level
        # A stranger who says much of itself must not keep the word of a member from being heard.
        is_member = hello.incarnation == self._roll.newest.get(hello.node)
        who = hello.node if is_member else f"no member {hello.node}"
        self._report(who, Unfit(hello.node, hello.incarnation, level, build, reason))
        self._troubles[hello.node] = f"{connection.address}: {reason}"
        connection.unfit = reason
        connection.deadline_at = self._clock() + HANDSHAKE_MS_MAX / 1000
        self._wake(connection.deadline_at)
        connection.queue(framed(SnapshotRefused(reason[:UNFIT_CHARACTERS_MAX])))
        self._write(connection)

    def _admit(self, connection: Connection, hello: Hello) -> None:
        old = self._live.get(hello.node)
        if old is not None:
            self._close(old, Reason.REPLACED, connection.address)
        connection.state, connection.name, connection.hello = LinkState.LIVE, hello.node, hello
        connection.reader.allow(messages.FRAME_BYTES_MAX)
        connection.live_at = self._clock()
        for question in self._questions:
            if question.connection is not None:
                self._drop(question.connection)
        if connection.dial is not None:
            connection.dial.attempts = 0
        self._live[hello.node] = connection
        self._heard[connection] = None  # what came behind the Hello
        self._queued[connection] = None
        self._events.append(Connected(hello.node))
        self._wake(connection.heard_at + self._silence_s / KEEPALIVES_PER_SILENCE)

    def _refuse(self, connection: Connection, reason: str) -> None:
        dial = connection.dial
        if connection.state is LinkState.CONNECTING and dial is not None:
            self._dial_trouble(dial.name, f"{connection.address}: {reason}")
        elif dial is not None:
            self._troubles[dial.name] = f"{connection.address}: {reason}"
            self._report(dial.name, HandshakeRefused(connection.address, reason))
        else:
            self._report_stranger(connection.address, reason)
        self._drop(connection)

    def _drop(self, connection: Connection) -> None:
        """Close a connection that never became live."""
        self._release(connection)
        del self._connections[connection.fd]
        if connection.dial is not None:
            self._schedule(connection.dial)

    def _report_stranger(self, address: str, reason: str) -> None:
        host, reports = address.rpartition(":")[0], self._reports
        if reports.due_of_stranger(f"stranger {host}", self._clock()):
            self._events.append(HandshakeRefused(address, reason, reports.withheld))
            reports.withheld = 0

    def _report(self, key: str, event: Event) -> None:
        if self._reports.due(f"{type(event).__name__} {key}", self._clock()):
            self._events.append(event)

    # --- bytes ---

    def _read(self, connection: Connection) -> None:
        live = connection.state is LinkState.LIVE
        if connection.read(self._scratch, until_empty=not live):
            connection.heard_at = self._clock()
            if live:
                self._heard[connection] = None
        if not live:
            # What TLS proved since may let our Hello leave now.
            if connection.waiting_bytes and connection.ending is None:
                self._write(connection)
            if connection.state is LinkState.GREETING:
                self._greet(connection)
        elif connection.ending is not None:
            self._end(connection)
        self._rewatch(connection)

    def _write(self, connection: Connection) -> None:
        if connection.write():
            connection.sent_at = self._clock()
        if connection.ending is None:
            self._rewatch(connection)
        elif connection.state is LinkState.LIVE:
            self._end(connection)
        elif connection.state is not LinkState.ENDED:  # that one goes when all of it is received
            self._refuse(connection, _ended_text(connection))

    def _next_message(self, connection: Connection) -> Message | None:
        while True:  # bounded by what the reader holds
            try:
                message = connection.reader.next()
            except MessageError as error:
                self._close(connection, Reason.BAD_FRAME, str(error))
                return None
            if message is None:
                if connection.ending is not None:
                    self._close(connection, *connection.ending)
                elif not connection.watched[0]:
                    self._rewatch(connection)  # there may be room to read again
                return None
            if isinstance(message, PeerRefused):
                self._refused_by(connection, message)
                self._close(connection, Reason.REFUSED, message.reason)
                return None
            if not isinstance(message, (Hello, Extension)):
                if self._troubles:
                    self._troubles.pop(connection.name, None)
                return message
            assert connection.hello is not None, connection.name
            hello = follows(connection.hello, message)
            if hello is None:
                self._close(connection, Reason.BAD_FRAME, f"became somebody else: {message}")
                return None
            connection.hello = hello
            # A newcomer that was replaced before we heard of its start is evicted as others are.
            if not self._check_fit(connection) or not self._check_standing(connection):
                return None

    def _rewatch(self, connection: Connection) -> None:
        wishes = connection.wishes()
        if wishes != connection.watched:
            connection.watched = wishes
            self._watch(connection.fd, *wishes)

    # --- ends ---

    def _check_opening(self, connection: Connection, now: float) -> None:
        if now < connection.deadline_at:
            self._wake(connection.deadline_at)
        elif connection.state is LinkState.CONNECTING:
            self._refuse(connection, f"no connection in {DIAL_MS_MAX} ms")
        elif connection.hello is None:
            self._refuse(connection, f"no Hello in {HANDSHAKE_MS_MAX} ms")
        elif connection.unfit:
            self._refuse(connection, connection.unfit)
        elif connection.asks:
            self._drop(connection)
        else:
            self._greet(connection)
            if connection.state is LinkState.GREETING and not connection.unfit:
                self._refuse(connection, f"half an Extension in {EXTENSION_MS_MAX} ms")

    def _check_silence(self, connection: Connection, now: float) -> None:
        if now >= connection.heard_at + self._silence_s:
            self._read(connection)  # we may be the ones who were paused: look before closing
        if connection.state is not LinkState.LIVE:
            return
        if now >= connection.heard_at + self._silence_s and connection.watched[0]:
            self._close(connection, Reason.SILENT, f"{self._silence_s:.1f} s")
            return
        keepalive_s = self._silence_s / KEEPALIVES_PER_SILENCE
        if now >= connection.sent_at + keepalive_s and not connection.waiting_bytes:
            connection.queue(framed(self._hello))
            self._write(connection)
        self._wake(now + keepalive_s / 2)

    def _end(self, connection: Connection) -> None:
        """End a live connection, but not before the whole frames that it brought are received."""
        assert connection.ending is not None, connection.name
        if not connection.reader.has_frame():
            self._close(connection, *connection.ending)
            return
        connection.state = LinkState.ENDED
        self._heard[connection] = None
        self._wake(self._clock())
        self._rewatch(connection)

    def _close(self, connection: Connection, reason: Reason, detail: str) -> None:
        """Close a connection that was live."""
        self._release(connection)
        del self._connections[connection.fd]
        del self._live[connection.name]
        self._events.append(Disconnected(connection.name, reason, detail))
        if connection.dial is not None:
            if reason in (Reason.REFUSED, Reason.UNWELCOME):
                connection.dial.attempts = REFUSED_ATTEMPTS
            self._schedule(connection.dial)
        if not self._live:
            for question in self._questions:
                question.due_at = self._clock() + self._takeover_s
                self._wake(question.due_at)

    def _release(self, connection: Connection) -> None:
        connection.state = LinkState.CLOSED
        self._rewatch(connection)
        self._heard.pop(connection, None)
        self._queued.pop(connection, None)
        connection.socket.close()
        connection.outbox.clear()
        connection.bulk.clear()
        connection.outbox_bytes = connection.bulk_bytes = 0


def _ended_text(connection: Connection) -> str:
    assert connection.ending is not None, connection.address
    return ": ".join(filter(None, connection.ending))
