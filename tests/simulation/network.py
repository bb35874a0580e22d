"""The fake network: links between the lab's nodes that a test disturbs.

What lives here: connections, queues of messages, and what may happen to both. What must not: nodes,
time, claims. Every message passes through its encoding, as on a real connection.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from chaos.simulation.world.network import Link
from cluster.members.membership import Roll
from cluster.members.peers import (
    BULK_BYTES_SERVED,
    Connected,
    Disconnected,
    Event,
    Reason,
    RefusedBy,
)
from cluster.wire.messages import (
    FRAME_HEAD,
    Hello,
    Message,
    Refusal,
    decode,
    encode,
)


class LabNet:
    """Links between nodes: FIFO and reliable, until something else is asked for.

    `cut`: links that lose everything while both ends still believe in the connection. `held`: links
    whose messages wait in `queues` for the test. `refused`: pairs that can't connect.
    """

    def __init__(self) -> None:
        self.queues: dict[Link, deque[Message]] = {}
        self.hellos: dict[str, Hello] = {}  # of running nodes
        self.events: dict[str, list[Event]] = {}
        self.rolls: dict[str, Roll] = {}
        self.connections: set[frozenset[str]] = set()
        self.cut: set[Link] = set()
        self.held: set[Link] = set()
        self.refused: set[frozenset[str]] = set()
        self._known: dict[Link, Hello] = {}  # (who, about whom)

    # --- connections --------------------------------------------------------------------------

    def connected(self, one: str, other: str) -> bool:
        """Return whether both ends believe that they are connected."""
        return frozenset((one, other)) in self.connections

    def join(self, name: str, hello: Hello) -> None:
        """Let a node listen; `dial` connects it."""
        self.hellos[name] = hello
        self.rolls[name] = Roll()
        self.events[name] = []

    def leave(self, name: str) -> None:
        """Take a node off the network: its peers notice at once, as they do of a dead process."""
        del self.hellos[name]
        for other in self.hellos:
            self.break_link(name, other)

    def dial(self) -> None:
        """Connect every pair that can be."""
        names = sorted(self.hellos)
        for one in names:
            for other in names:
                pair = frozenset((one, other))
                apart = pair in self.refused or {(one, other), (other, one)} & self.cut
                if one < other and pair not in self.connections and not apart:
                    if self.evict(one, other) or self.evict(other, one):
                        continue
                    self.connections.add(pair)
                    self.events[one].append(Connected(other))
                    self.events[other].append(Connected(one))

    def evict(self, name: str, other: str) -> bool:
        """Close the connection that a node has with an evicted one; return whether it would."""
        eviction = name != other and self.rolls[name].eviction(self.hellos[other])
        if eviction:
            self.break_link(name, other)
            if (name, other) not in self.cut:
                incarnation = self.hellos[name].incarnation
                refused = RefusedBy(name, incarnation, Refusal.EVICTED, str(eviction))
                self.events[other].append(refused)
        return bool(eviction)

    def break_link(self, one: str, other: str) -> None:
        """Close the connection: what is in flight is lost."""
        if not self.connected(one, other):
            return
        self.connections.remove(frozenset((one, other)))
        for end, far in ((one, other), (other, one)):
            self._known.pop((end, far), None)
            self.queues.pop((end, far), None)
            if end in self.hellos:
                self.events[end].append(Disconnected(far, Reason.CLOSED, "test"))

    def hello_of(self, observer: str, name: str) -> Hello | None:
        """Return what `observer` was told of `name` on their connection."""
        if not self.connected(observer, name):
            return None
        if (name, observer) not in self.cut:
            self._known[observer, name] = self.hellos[name]
        return self._known.get((observer, name))

    # --- disturbances -------------------------------------------------------------------------

    def cut_one_way(self, source: str, *targets: str) -> None:
        """Lose everything from `source` to the targets, without anybody noticing."""
        for target in targets:
            self.cut.add((source, target))
            self.queues.pop((source, target), None)

    def cut_off(self, name: str, *others: str) -> None:
        """Let no byte pass between `name` and the others, without anybody noticing."""
        self.cut_one_way(name, *others)
        for other in others:
            self.cut_one_way(other, name)

    def hold(self, source: str, *targets: str) -> None:
        """Let what `source` sends to the targets wait for the test."""
        self.held |= {(source, target) for target in targets}

    def take(self, source: str, target: str) -> list[Message]:
        """Take everything off a link."""
        return list(self.queues.pop((source, target), ()))

    def put(self, source: str, target: str, *messages: Message) -> None:
        """Let messages arrive with the target's next turn, however old they are."""
        self.queues.setdefault((source, target), deque()).extend(messages)

    def heal(self) -> None:
        """End all disturbances."""
        self.cut.clear()
        self.held.clear()
        self.refused.clear()

    # --- messages -----------------------------------------------------------------------------

    def send(self, source: str, target: str, message: Message) -> None:
        """Take a message; it may get lost."""
        if not self.connected(source, target):
            return
        if (source, target) not in self.cut:
            frame = encode(message)
            self.put(source, target, decode(memoryview(frame)[FRAME_HEAD.size :]))

    def arriving(self, name: str) -> list[tuple[str, Message]]:
        """Take what arrives at a node now."""
        taken: list[tuple[str, Message]] = []
        for link, queue in self.queues.items():
            if link[1] == name and link not in self.held:
                taken += [(link[0], message) for message in queue]
                queue.clear()
        return taken


class LabPeers:
    """One node's `Peers` on the fake network."""

    def __init__(self, net: LabNet, name: str) -> None:
        self._net, self._name = net, name
        self._arrived: list[tuple[str, Message]] = []

    def send(self, name: str, message: Message) -> None:
        self._net.send(self._name, name, message)

    def room_bytes(self, name: str) -> int:
        """Return the room that a fresh connection has: links have no buffers of their own."""
        return BULK_BYTES_SERVED

    def flush(self, name: str | None) -> None:
        """Nothing to do: links have no buffers of their own."""

    def receive(self, limit: int) -> list[tuple[str, Message]]:
        if not self._arrived:
            self._arrived = self._net.arriving(self._name)
        taken, self._arrived = self._arrived[:limit], self._arrived[limit:]
        return taken

    def events(self) -> list[Event]:
        events, self._net.events[self._name] = self._net.events[self._name], []
        return events

    def hello_of(self, name: str) -> Hello | None:
        return self._net.hello_of(self._name, name)

    def update_hello(self, hello: Any) -> None:
        self._net.hellos[self._name] = hello

    def update_roll(self, roll: Roll) -> None:
        self._net.rolls[self._name] = roll
        for name in list(self._net.hellos):
            self._net.evict(self._name, name)

    def part(self, name: str, reason: str) -> None:
        self._net.break_link(self._name, name)

    def trouble(self, name: str) -> str:
        return ""
