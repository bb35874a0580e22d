"""Nodes with nothing but a PeerPort, on real sockets of the loopback. No tests here."""

from __future__ import annotations

import random
import select
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from cluster.keys.tls import Tls
from cluster.members.links import (
    Address,
)
from cluster.members.peers import Event, HandshakeRefused, PeerPort, RefusedBy
from cluster.wire import messages
from cluster.wire.frames import framed
from cluster.wire.messages import Extension, Hello, Message

SEED = 7
WAIT_S_MAX = 10.0  # of real time: only a failing test waits as long
HELLO = Hello(messages.PROTOCOL_VERSION, "c", "b", "inc-b", ("a", "b"), False, None)
NOWHERE: Address = ("127.0.0.1", 1)  # nothing listens on tcpmux


class PeerWorld:
    """The clock that all nodes of a test share; it runs, and can be made to jump.

    `tls`: what each node proves itself with; one that has none speaks in the clear.
    """

    def __init__(self, tls: Mapping[str, Tls] | None = None) -> None:
        self.tls = tls or {}
        self.ahead_s = 0.0
        self.nodes: list[PeerNode] = []
        self.raws: list[socket.socket] = []

    def clock(self) -> float:
        return time.monotonic() + self.ahead_s

    def node(
        self,
        name: str,
        others: dict[str, Address],
        port: int = 0,
        extension: Extension = messages.UNSAID,
    ) -> PeerNode:
        node = PeerNode(self, name, others, port, extension)
        self.nodes.append(node)
        return node

    def until(self, condition: Callable[[], Any]) -> None:
        give_up_at = time.monotonic() + WAIT_S_MAX
        while not condition():
            assert time.monotonic() < give_up_at, "it did not happen"
            for node in self.nodes:
                node.turn()

    def pair(self) -> tuple[PeerNode, PeerNode]:
        b = self.node("b", {"a": NOWHERE})
        a = self.node("a", {"b": b.port.address})
        self.until(lambda: a.port.hello_of("b") and b.port.hello_of("a"))
        return a, b

    def dial(self, node: PeerNode) -> socket.socket:
        raw = socket.create_connection(node.port.address, timeout=WAIT_S_MAX)
        self.raws.append(raw)
        return raw

    def greet(self, node: PeerNode, hello: Hello) -> socket.socket:
        """Connect to a node by hand, say this Hello, and wait until the node believes it."""
        raw = self.dial(node)
        raw.sendall(framed(hello))
        mine = raw.getsockname()[1]
        self.until(lambda: mine in node.live_ports())
        return raw

    def close(self) -> None:
        for node in self.nodes:
            node.port.close()
            node.poller.close()
        for raw in self.raws:
            raw.close()


class PeerNode:
    """A PeerPort under the smallest possible poll loop."""

    def __init__(
        self,
        world: PeerWorld,
        name: str,
        others: dict[str, Address],
        port: int,
        extension: Extension,
    ) -> None:
        self.world = world
        self.poller = select.epoll()
        self.watched: set[int] = set()
        self.events: list[Event] = []
        self.received: list[tuple[str, Message]] = []
        hello = replace(
            HELLO,
            node=name,
            incarnation=f"inc-{name}",
            members=tuple(sorted({name, *others})),
            extension=extension,
        )
        self.port = PeerPort(
            name,
            ("127.0.0.1", port),
            others,
            hello,
            world.clock,
            watch=self.watch,
            random=random.Random(SEED),
            tls=world.tls.get(name),
        )

    def watch(self, fd: int, read: bool, write: bool) -> None:
        mask = select.EPOLLIN * read | select.EPOLLOUT * write
        if fd in self.watched and mask:
            self.poller.modify(fd, mask)
        elif mask:
            self.poller.register(fd, mask)
            self.watched.add(fd)
        elif fd in self.watched:
            self.poller.unregister(fd)
            self.watched.discard(fd)

    def poll(self) -> None:
        for fd, mask in self.poller.poll(0):
            failed = bool(mask & (select.EPOLLERR | select.EPOLLHUP))
            self.port.on_ready(
                fd, failed or bool(mask & select.EPOLLIN), failed or bool(mask & select.EPOLLOUT)
            )
        self.port.tick(self.world.clock())

    def turn(self) -> None:
        self.poll()
        self.received += self.port.receive(1000)
        self.events += self.port.events()
        self.port.flush(None)

    def live_ports(self) -> set[int]:
        return {live.socket.getpeername()[1] for live in self.port._live.values()}

    def refused_by(self) -> list[RefusedBy]:
        return [event for event in self.events if isinstance(event, RefusedBy)]

    def refusals(self) -> list[str]:
        return [event.reason for event in self.events if isinstance(event, HandshakeRefused)]


def a_says(**changes: Any) -> Hello:
    return replace(HELLO, **{"node": "a", "incarnation": "inc-a", **changes})


def is_closed(raw: socket.socket) -> bool:
    """Read to the end; True if there is one."""
    raw.setblocking(False)
    try:
        while raw.recv(1 << 20):
            pass
    except BlockingIOError:
        return False
    except ConnectionResetError:
        pass
    return True
