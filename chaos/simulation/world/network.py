"""The network between simulated nodes, and between them and their clients.

An end is a process by the name of its machine: a member's own, or its double's (`double_of`), which
says that it is the member. To a node a peer is the member, whichever process of it is connected.

What lives here: connections, what is in flight on them, and what conditions, cuts and clogs do to
both. What must not: nodes and their turns, what a message means, when faults happen.

Messages are handed over as objects; each `ENCODED_SHARE`-th passes through its encoding.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from functools import partial
from operator import attrgetter
from typing import Any, Final, Protocol, get_args

from cluster.members import handshake
from cluster.members.handshake import unfit
from cluster.members.links import BACKOFF_MS_MAX, BACKOFF_MS_MIN, REFUSED_ATTEMPTS, Reason
from cluster.members.membership import Roll
from cluster.members.peers import (
    PEER_SILENCE_MS_MAX,
    Connected,
    Disconnected,
    Doubled,
    Event,
    Peers,
    RefusedBy,
    Unfit,
)
from cluster.serve.client_port import UNREAD_BYTES_SERVED, Replies
from cluster.settings.config import RaftSettings
from cluster.wire.levels import BUILD_0_1
from cluster.wire.messages import (
    Hello,
    Message,
    Refusal,
    Relay,
    RelayReply,
    SnapshotChunk,
    SnapshotRefused,
    SnapshotRequest,
    decode,
    encode,
)

Link = tuple[str, str]  # (from, to)
ENCODED_SHARE: Final = 16  # encoding each message would be a third of a run's time
SILENCE_S: Final = PEER_SILENCE_MS_MAX / 1000
SILENCE_CHECK_S: Final = SILENCE_S / 4
LATE_S_MAX: Final = 2.0  # how long after its connection's end a message may arrive
NOTICE_S: Final = 0.001  # how long the end of a process takes to reach its peers
DOUBLE: Final = "+"  # behind a member's name: the machine of its double
TIE_S: Final = 1e-7  # no two arrivals at one time: their order would be that of a set
# What belongs to one connection: its ids mean nothing on the next one.
OF_THE_CONNECTION: Final = (Relay, RelayReply, SnapshotChunk, SnapshotRefused, SnapshotRequest)


class NetworkWorld(Protocol):
    """What the network needs of the world."""

    now: float

    def at(self, when_s: float, call: Callable[[], None]) -> None:
        """Call at a time."""

    def stream(self, name: str) -> random.Random:
        """Return the random numbers of one purpose."""

    def note(self, *what: object) -> None:
        """Take something into the run's hash."""


@dataclass(frozen=True, slots=True)
class SimLinkConditions:
    """What happens to messages: shares of them from 0 to 1, and milliseconds.

    `late`: the share of what was in flight when a connection ended that still arrives on the next.
    """

    delay_ms: float = 0.3
    jitter_ms: float = 0.2
    loss: float = 0.0
    duplicate: float = 0.0
    reorder: float = 0.0
    late: float = 0.0


@dataclass(slots=True, eq=False)
class SimConnection:
    """One connection between two nodes. `open`: the ends that believe in it."""

    pair: Link
    open: set[str]
    known: dict[str, Hello]  # what each end was told of the other
    cutoff_s: dict[str, float] = field(default_factory=dict)  # an ended process sent until then
    silent_since_s: float | None = None
    heard_s: dict[str, float] = field(default_factory=dict)  # when each end heard the other

    def other(self, name: str) -> str:
        """Return the other end."""
        return self.pair[1] if name == self.pair[0] else self.pair[0]


@dataclass(slots=True, eq=False)
class Port:
    """A running node's side. `wake` is called when something has come."""

    hello: Hello  # its node is the member that the process says it is
    wake: Callable[[], None]
    inbox: deque[tuple[str, Message]] = field(default_factory=deque)
    events: list[Event] = field(default_factory=list)
    silent: bool = False  # paused: it neither reads nor writes
    roll: Roll = field(default_factory=Roll)

    def begin_turn(self, now: float) -> None:
        """Nothing to do: what has come is in the inbox."""

    def receive_requests(self) -> list[tuple[bytes, list[bytes]]]:
        """Nothing: the world hands clients' requests to the node itself."""
        return []

    def send_replies(self, replies: Replies) -> Replies:
        """Return what is left for the world to carry: all of them."""
        return replies

    def end_turn(self, turn_s: float, ended: float, stored: int) -> None:
        """Nothing to do: who sends by this way has no share of a turn."""

    def room_bytes(self, route: bytes) -> int:
        """Return how many bytes of replies may still be made for a client: ways have no buffers."""
        return UNREAD_BYTES_SERVED

    def deadline(self) -> float:
        """Return when a turn is due besides, on the node's clock: never."""
        return float("inf")


class Side(Protocol):
    """A running node's side of a network, as far as the node has to know it."""

    silent: bool  # paused: it neither reads nor writes
    roll: Roll

    def begin_turn(self, now: float) -> None:
        """Do what the product's loop does before a turn; `now`: on the node's clock."""

    def receive_requests(self) -> list[tuple[bytes, list[bytes]]]:
        """Return what clients ask, as far as it comes by the node's own port."""

    def send_replies(self, replies: Replies) -> Replies:
        """Send replies by the node's own port; return those that the world has to carry."""

    def end_turn(self, turn_s: float, ended: float, stored: int) -> None:
        """Let those rest who had all of their share of a turn; `ended`: on the node's clock.

        `stored`: how many publications the node has ever stored.
        """

    def room_bytes(self, route: bytes) -> int:
        """Return how many bytes of replies may still be made for a client."""

    def deadline(self) -> float:
        """Return when a turn is due, on the node's clock."""


class Net:
    """A network: links with their conditions, cuts and clogs, and what is seen on them.

    `cut` links let nothing pass while both ends still believe in the connection. `takeover_s`: how
    long an end has to be silent before another process gets its place.
    """

    def __init__(self, conditions: SimLinkConditions, takeover_s: float) -> None:
        self.conditions = conditions
        self.takeover_s = takeover_s
        self.cut: set[Link] = set()
        self.clogged: dict[Link, float] = {}  # until when
        # Hear (from, to, message): on arrival, and when it is sent (to a member).
        self.taps: list[Callable[[str, str, Message], None]] = []
        self.send_taps: list[Callable[[str, str, Message], None]] = []
        self.delivered = 0
        self.doubled = 0
        # (who, member, incarnation) -> when it was last heard: for who watches.
        self.arrivals: dict[tuple[str, str, str], float] = {}
        self.torn: list[str] = []  # what a connection brought that was not sent on it next
        self.displaced: list[Link] = []  # (who, whom it has turned out though it heard it)

    def join(self, name: str, hello: Hello, wake: Callable[[], None]) -> Side:
        """Let a node listen and dial."""
        raise NotImplementedError

    def peers(
        self,
        name: str,
        clock: Callable[[], float],
        departure: Callable[[], float],
        room_bytes: Callable[[], int],
    ) -> Peers:
        """Return the way to the others of a node that has joined.

        `departure()` is the time inside the node's turn at which what it sends now leaves.
        `room_bytes()`: what may be relayed to a peer in a turn.
        """
        raise NotImplementedError

    def leave(self, name: str, noticed: bool, ended_s: float) -> None:
        """Take a node off the network; `noticed`: its peers are told by its kernel."""
        raise NotImplementedError

    def has(self, name: str) -> bool:
        """Return whether a process runs on a machine, as far as the network knows."""
        raise NotImplementedError

    def remove_double(self, name: str) -> None:
        """Take a double's machine away, on which no process runs any more."""
        raise NotImplementedError

    def connected(self, one: str, other: str) -> bool:
        """Return whether both ends believe that they are connected."""
        raise NotImplementedError

    def closed_s(self, observer: str, name: str) -> float:
        """Return when a connection of a node's with a member was closed last."""
        raise NotImplementedError

    def has_untaken(self, name: str) -> bool:
        """Return whether messages have come to a node that it has not taken yet."""
        raise NotImplementedError

    def hello_of(self, observer: str, name: str) -> Hello | None:
        """Return what `observer` was told of `name` on their connection."""
        raise NotImplementedError

    def break_link(self, one: str, other: str) -> None:
        """Close the connection between two machines."""
        raise NotImplementedError


class SimNet(Net):
    """All links, with messages as objects."""

    def __init__(
        self,
        world: NetworkWorld,
        names: tuple[str, ...],
        conditions: SimLinkConditions,
        takeover_s: float = RaftSettings.takeover_ms / 1000,
    ) -> None:
        super().__init__(conditions, takeover_s)
        self.ports: dict[str, Port] = {}
        self._world = world
        self._doubles: set[str] = set()
        self._connections: dict[Link, SimConnection] = {}
        self._closed_s: dict[Link, float] = {}
        self._streams: dict[Link, random.Random] = {}
        self._last_arrival_s: dict[Link, float] = {}
        self._pairs = [(one, other) for one in names for other in names if one < other]
        self._attempts = dict.fromkeys(self._pairs, 0)
        self._dials = dict.fromkeys(self._pairs, 0)  # the number of the newest; only it counts
        for number, pair in enumerate(self._pairs):
            self._dial_later(pair)
            self._check_silence_later(pair, SILENCE_CHECK_S + number * TIE_S)

    # --- connections --------------------------------------------------------------------------

    def peers(
        self,
        name: str,
        clock: Callable[[], float],
        departure: Callable[[], float],
        room_bytes: Callable[[], int],
    ) -> Peers:
        """Return a running node's way to the others."""
        return SimPeers(self, name, self.ports[name], departure, room_bytes)

    def has(self, name: str) -> bool:
        """Return whether a process runs on a machine, as far as the network knows."""
        return name in self.ports

    def join(self, name: str, hello: Hello, wake: Callable[[], None]) -> Port:
        """Let a node listen and dial."""
        assert name not in self.ports, f"{name} is running"
        self.ports[name] = port = Port(hello, wake)
        if name.endswith(DOUBLE) and name not in self._doubles:
            self._add_double(name)
        for pair in self._pairs:
            if name == pair[0]:  # the smaller name dials
                self._attempts[pair] = 0
                self._dial_later(pair)
        return port

    def _add_double(self, name: str) -> None:
        self._doubles.add(name)
        members = {end for pair in self._pairs for end in pair if not end.endswith(DOUBLE)}
        for other in sorted(members - {member_of(name)}):
            pair = _pair(name, other)
            if pair not in self._attempts:
                self._pairs.append(pair)
                self._attempts[pair] = self._dials[pair] = 0
                self._check_silence_later(pair, SILENCE_CHECK_S)
            self._dial_later(pair)

    def remove_double(self, name: str) -> None:
        """Take a double's machine away, on which no process runs any more."""
        assert name not in self.ports, f"{name} is running"
        self._doubles.discard(name)

    def leave(self, name: str, noticed: bool, ended_s: float) -> None:
        """Take a node off the network; `noticed`: its peers are told by its kernel.

        What it had sent when it ended may arrive still, or a first part of it. A turn takes some
        time, so it may end a little later than now.
        """
        del self.ports[name]
        rng = self._world.stream(f"leave {name}")
        for pair, connection in list(self._connections.items()):
            if name in connection.open:
                connection.open.discard(name)
                lost_s = rng.choice((0.0, rng.random() * self.conditions.delay_ms / 1000))
                connection.cutoff_s[name] = ended_s - lost_s
                other = connection.other(name)
                last_s = self._last_arrival_s.get((name, other), 0.0)
                end_s = max(ended_s + NOTICE_S, last_s + TIE_S)
                if noticed:
                    self._world.at(end_s, partial(self._close, connection, Reason.CLOSED))
                self._dial_later(pair)

    def connected(self, one: str, other: str) -> bool:
        """Return whether both ends believe that they are connected."""
        connection = self._connections.get(_pair(one, other))
        return connection is not None and len(connection.open) == 2

    def closed_s(self, observer: str, name: str) -> float:
        """Return when a connection of a node's with a member was closed last.

        Whichever process of it that was: its double may be gone by now.
        """
        pairs = (_pair(observer, name), _pair(observer, double_of(name)))
        return max(self._closed_s.get(pair, float("-inf")) for pair in pairs)

    def has_untaken(self, name: str) -> bool:
        """Return whether messages have come to a node that it has not taken yet."""
        return bool(self.ports[name].inbox)

    def hello_of(self, observer: str, name: str) -> Hello | None:
        """Return what `observer` was told of `name` on their connection."""
        end = self._end_of(observer, name) if self._doubles else name  # asked six times a turn
        connection = self._connections.get((observer, end) if observer < end else (end, observer))
        if connection is None or observer not in connection.open:
            return None
        return connection.known[observer]

    def _end_of(self, observer: str, name: str) -> str:
        """Return the process of a member that an observer is connected with."""
        if not self._doubles:  # as in nearly all runs, and this is asked several times a turn
            return name
        double = double_of(name)
        if double in self._doubles:
            connection = self._connections.get(_pair(observer, double))
            if connection is not None and observer in connection.open:
                return double
        return name

    def update_hello(self, name: str, hello: Hello, leaves_s: float) -> None:
        """Tell all peers a new Hello."""
        self.ports[name].hello = hello
        for pair in self._pairs:
            connection = self._connections.get(pair)
            if connection is not None and name in connection.open:
                link = (name, connection.other(name))
                self._post(connection, link, hello, leaves_s)
                self._check_fit(connection, name)

    def break_link(self, one: str, other: str) -> None:
        """Close a connection at both ends."""
        connection = self._connections.get(_pair(one, other))
        if connection is not None:
            self._close(connection, Reason.CLOSED)

    def _dial_later(self, pair: Link) -> None:
        backoff_ms = min(BACKOFF_MS_MAX, BACKOFF_MS_MIN << min(self._attempts[pair], 10))
        self._attempts[pair] += 1
        self._dials[pair] += 1
        number, jitter = self._dials[pair], 0.5 + self._stream(pair).random() / 2
        if any(end.endswith(DOUBLE) and end not in self._doubles for end in pair):
            return
        when_s = self._world.now + backoff_ms * jitter / 1000
        self._world.at(when_s, lambda: self._dial(pair, number))

    def _dial(self, pair: Link, number: int) -> None:
        connection = self._connections.get(pair)
        connected = connection is not None and len(connection.open) == 2
        if connected or number != self._dials[pair]:
            return
        if not self.ports.keys() >= set(pair) or self._apart(pair):
            self._dial_later(pair)
            return
        if connection is not None:
            self._close(connection, Reason.REPLACED)
        self._attempts[pair] = 0
        one, other = pair
        if self._evicts(one, other) or self._evicts(other, one):
            self._attempts[pair] = REFUSED_ATTEMPTS
            self._dial_later(pair)
            return
        if self._doubles and not self._may_have_places(one, other):
            self._dial_later(pair)
            return
        if unfit(self.ports[one].hello, self.ports[other].hello):
            self._tell_unfit(one, other)
            self._tell_unfit(other, one)
            self._attempts[pair] = REFUSED_ATTEMPTS
            self._dial_later(pair)
            return
        known = {one: self.ports[other].hello, other: self.ports[one].hello}
        self._connections[pair] = connection = SimConnection(pair, {one, other}, known)
        connection.heard_s = dict.fromkeys(pair, self._world.now)
        for end, name in ((one, other), (other, one)):
            said = known[end]  # its Hello is a sign of life, as any message is
            self.arrivals[end, said.node, said.incarnation] = self._world.now
            self.ports[end].events.append(Connected(member_of(name)))
            self.ports[end].wake()

    def _may_have_places(self, dialing: str, dialed: str) -> bool:
        """Return whether a connection may be: who has a place already keeps it while it is heard.

        A node dials a name once, so that it has not two connections with the dialed.
        """
        if self._rival(dialing, dialed) is not None:
            return False
        old = self._rival(dialed, dialing)
        if old is None:
            return True
        rival, hello = old.other(dialed), self.ports[dialing].hello
        silent_s = self._world.now - old.heard_s[dialed]
        newest = self.ports[dialed].roll.newest.get(hello.node)
        refusal = handshake.contest(
            hello,
            old.known[dialed],
            silent_s,
            self.takeover_s,
            newest,
            rival,
        )
        if refusal:
            self._attempts[_pair(dialing, dialed)] = REFUSED_ATTEMPTS
            self._refuse(dialing, dialed, Refusal.DOUBLED, refusal)
            self._tell(dialed, Doubled(hello.node, dialing, hello.incarnation, refusal))
            return False
        gives_way = hello.incarnation == newest != old.known[dialed].incarnation
        if silent_s < 0.9 * self.takeover_s and not gives_way:
            self.displaced.append((dialed, rival))
        if rival in old.open and (dialed, rival) not in self.cut:
            self._refuse(rival, dialed, Refusal.DOUBLED, "replaced")
        self._close(old, Reason.REPLACED)
        self._dial_later(old.pair)
        return True

    def _rival(self, observer: str, name: str) -> SimConnection | None:
        """Return the connection that an observer has with the member's other process."""
        rival = member_of(name) if name.endswith(DOUBLE) else double_of(name)
        connection = self._connections.get(_pair(observer, rival))
        return connection if connection is not None and observer in connection.open else None

    def part(self, name: str, other: str) -> None:
        """Close a node's connection with a peer, at its own wish."""
        connection = self._connections.get(_pair(name, self._end_of(name, other)))
        if connection is not None and name in connection.open:
            self._attempts[connection.pair] = REFUSED_ATTEMPTS
            self._close(connection, Reason.UNWELCOME)

    def update_roll(self, name: str, roll: Roll) -> None:
        """Set who the members are to a node, which parts from those that it evicts."""
        self.ports[name].roll = roll
        for pair in self._pairs:
            connection = self._connections.get(pair)
            if connection is not None and name in connection.open:
                other = connection.other(name)
                if other in self.ports and self._evicts(name, other):
                    self._close(connection, Reason.UNWELCOME)

    def _evicts(self, name: str, other: str) -> bool:
        """Return whether a node refuses another one for good, which is told."""
        eviction = self.ports[name].roll.eviction(self.ports[other].hello)
        if eviction:
            self._refuse(other, name, Refusal.EVICTED, eviction)
        return bool(eviction)

    def _refuse(self, name: str, by: str, refusal: Refusal, reason: str) -> None:
        incarnation = self.ports[by].hello.incarnation
        self._tell(name, RefusedBy(member_of(by), incarnation, refusal, reason))

    def _tell(self, name: str, event: Event) -> None:
        self.ports[name].events.append(event)
        self.ports[name].wake()

    def _tell_unfit(self, name: str, peer: str) -> None:
        """Tell a node that a peer's build and its own don't fit; version 0.1 would not know."""
        mine, theirs = self.ports[name].hello, self.ports[peer].hello
        if mine.extension.build != BUILD_0_1:
            level, build = theirs.extension.level, theirs.extension.build
            reason = unfit(mine, theirs)
            self._tell(name, Unfit(member_of(peer), theirs.incarnation, level, build, reason))

    def _check_fit(self, connection: SimConnection, end: str) -> None:
        """Close the connection if one end sees that the builds don't fit any more."""
        port = self.ports.get(end)
        if end in connection.open and port and unfit(port.hello, connection.known[end]):
            self._close(connection, Reason.UNFIT)

    def _apart(self, pair: Link) -> bool:
        silent = self.ports[pair[0]].silent or self.ports[pair[1]].silent
        return silent or pair in self.cut or (pair[1], pair[0]) in self.cut

    def _close(self, connection: SimConnection, reason: Reason) -> None:
        """End a connection at every end that believes in it."""
        if self._connections.get(connection.pair) is not connection:
            return
        del self._connections[connection.pair]
        self._closed_s[connection.pair] = self._world.now
        ends, connection.open = sorted(connection.open), set()
        for end in ends:
            port = self.ports.get(end)
            if port is not None:
                other = member_of(connection.other(end))
                port.events.append(Disconnected(other, reason, "simulated"))
                port.wake()
        if reason is not Reason.REPLACED:
            self._dial_later(connection.pair)

    def _check_silence_later(self, pair: Link, delay_s: float) -> None:
        self._world.at(self._world.now + delay_s, lambda: self._check_silence(pair))

    def _check_silence(self, pair: Link) -> None:
        """Close a connection on which one side has heard nothing for too long."""
        self._check_silence_later(pair, SILENCE_CHECK_S)
        connection = self._connections.get(pair)
        if connection is None:
            return
        if not (len(connection.open) < 2 or self._apart(pair)):
            connection.silent_since_s = None
            self._repeat_hellos(connection)
        elif connection.silent_since_s is None:
            connection.silent_since_s = self._world.now
        elif self._world.now - connection.silent_since_s >= SILENCE_S - SILENCE_CHECK_S:
            self._close(connection, Reason.SILENT)

    def _repeat_hellos(self, connection: SimConnection) -> None:
        """Say the Hellos again, as sides with nothing to say do; one may have been lost."""
        for end in connection.pair:
            connection.heard_s[end] = self._world.now
            connection.known[end] = self.ports[connection.other(end)].hello
            self.ports[end].wake()
        for end in connection.pair:
            self._check_fit(connection, end)

    # --- messages -----------------------------------------------------------------------------

    def send(self, source: str, target: str, message: Message, leaves_s: float) -> None:
        """Take a node's message to a member, which leaves at a time; it may get lost."""
        for tap in self.send_taps:
            tap(source, target, message)
        target = self._end_of(source, target)
        connection = self._connections.get(_pair(source, target))
        if connection is not None and source in connection.open:
            self._post(connection, (source, target), message, leaves_s)

    def _post(
        self, connection: SimConnection, link: Link, message: Message, leaves_s: float
    ) -> None:
        for arrives_s in self._arrivals(link, leaves_s):
            self._world.at(arrives_s, partial(self._arrive, connection, link, message, leaves_s))

    def _arrivals(self, link: Link, leaves_s: float) -> list[float]:
        """Return when a message arrives: once as a rule, in the order of sending."""
        if link in self.cut:
            return []
        conditions, rng = self.conditions, self._stream(link)
        if conditions.loss and rng.random() < conditions.loss:
            return []
        arrives_s = (
            leaves_s + (conditions.delay_ms + conditions.jitter_ms * rng.random()) / 1000 + TIE_S
        )
        if link in self.clogged:
            arrives_s = max(arrives_s, self.clogged[link])
        if not (conditions.reorder and rng.random() < conditions.reorder):
            follows_s = self._last_arrival_s.get(link, 0.0) + TIE_S * (1 + rng.random())
            if follows_s > arrives_s:
                arrives_s = follows_s
            self._last_arrival_s[link] = arrives_s
        if conditions.duplicate and rng.random() < conditions.duplicate:
            self.doubled += 1
            return [arrives_s, arrives_s + rng.random() * 10 * conditions.delay_ms / 1000 + TIE_S]
        return [arrives_s]

    def _arrive(
        self, connection: SimConnection, link: Link, message: Message, leaves_s: float
    ) -> None:
        source, target = link
        if link in self.cut or leaves_s > connection.cutoff_s.get(source, leaves_s):
            return
        if target not in connection.open:
            self._arrive_late(connection, link, message)
            return
        connection.heard_s[target] = self._world.now
        said = connection.known[target]
        self.arrivals[target, said.node, said.incarnation] = self._world.now
        if isinstance(message, Hello):
            connection.known[target] = message
            self.ports[target].wake()
            self._check_fit(connection, target)
        else:
            self._hand_over(link, message)

    def _hand_over(self, link: Link, message: Message) -> None:
        self.delivered += 1
        if self.delivered % ENCODED_SHARE == 0:
            message = decode(memoryview(b"".join(encode(message))))
        source, target = link
        self._world.note(source, target, type(message).__name__, numbers_of(message))
        for tap in self.taps:
            tap(source, target, message)
        port = self.ports[target]
        port.inbox.append((member_of(source), message))
        port.wake()

    def _arrive_late(self, connection: SimConnection, link: Link, message: Message) -> None:
        """Let some of what an ended connection carried arrive on the next, between the same two."""
        rng = self._stream(link)
        if isinstance(message, (Hello, *OF_THE_CONNECTION)) or rng.random() >= self.conditions.late:
            return
        self._world.at(
            self._world.now + rng.random() * LATE_S_MAX,
            lambda: self._hand_over_late(connection, link, message),
        )

    def _hand_over_late(self, old: SimConnection, link: Link, message: Message) -> None:
        new = self._connections.get(old.pair)
        if new is None or link[1] not in new.open or link in self.cut:
            return
        same = all(
            new.known[end].incarnation == old.known[end].incarnation for end in sorted(old.known)
        )
        if same:
            self._hand_over(link, message)

    # --- clients ------------------------------------------------------------------------------

    def carry(self, source: str, target: str, leaves_s: float, arrive: Callable[[], None]) -> None:
        """Carry something between a client and a node, which `arrive` hands over; or lose it."""
        link = (source, target)
        for arrives_s in self._arrivals(link, leaves_s)[:1]:
            self._world.at(arrives_s, lambda: None if link in self.cut else arrive())

    def _stream(self, link: Link) -> random.Random:
        stream = self._streams.get(link)
        if stream is None:
            stream = self._streams[link] = self._world.stream(f"link {link[0]} {link[1]}")
        return stream


def _pair(one: str, other: str) -> Link:
    return (one, other) if one < other else (other, one)


def double_of(name: str) -> str:
    """Return the name of the machine on which a member's double runs."""
    return name + DOUBLE


def member_of(name: str) -> str:
    """Return the member that the process on a machine says it is."""
    return name.removesuffix(DOUBLE)


def _numbers(kind: type[Any]) -> Callable[[Any], object]:
    """Return what reads the numbers of a type of message.

    Those and its type are what the hash knows of it: SQLite decides a copy's bytes and size.
    """
    names = [field.name for field in fields(kind) if field.type in ("int", "bool")]
    names = [name for name in names if name != "size_bytes"]
    return attrgetter(*names) if names else lambda message: ()


_NUMBERS: Final = {kind: _numbers(kind) for kind in get_args(Message)}


def numbers_of(message: Message) -> object:
    """Return what the hash knows of a message besides its type."""
    return _NUMBERS[type(message)](message)


class SimPeers:
    """One node's way to the others; implements `cluster.members.peers.Peers`. See `Net.peers`."""

    def __init__(
        self,
        net: SimNet,
        name: str,
        port: Port,
        departure: Callable[[], float],
        room_bytes: Callable[[], int],
    ) -> None:
        self._net, self._name, self._port, self._departure = net, name, port, departure
        self._room_bytes = room_bytes

    def send(self, name: str, message: Message) -> None:
        """Queue a message."""
        self._net.send(self._name, name, message, self._departure())

    def room_bytes(self, name: str) -> int:
        """Return the room that there is: links have no buffers of their own."""
        return self._room_bytes()

    def flush(self, name: str | None) -> None:
        """Nothing to do: links have no buffers of their own."""

    def receive(self, limit: int) -> list[tuple[str, Message]]:
        """Return what has come."""
        inbox = self._port.inbox
        if len(inbox) > limit:
            return [inbox.popleft() for _ in range(limit)]
        messages = list(inbox)
        inbox.clear()
        return messages

    def events(self) -> list[Event]:
        """Return what happened to connections."""
        events = self._port.events
        if events:
            self._port.events = []
        return events

    def hello_of(self, name: str) -> Hello | None:
        """Return the newest Hello of a peer."""
        return self._net.hello_of(self._name, name)

    def update_roll(self, roll: Roll) -> None:
        """Set who the members are."""
        self._net.update_roll(self._name, roll)

    def part(self, name: str, reason: str) -> None:
        """Close the connection with a peer."""
        self._net.part(self._name, name)

    def trouble(self, name: str) -> str:
        """Nothing: nobody asks for a status here."""
        return ""

    def update_hello(self, hello: Hello) -> None:
        """Say a new Hello to every peer."""
        self._net.update_hello(self._name, hello, self._departure())
