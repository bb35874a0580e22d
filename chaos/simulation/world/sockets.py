"""The clients' sockets in the world: connections that come about, are lost, or hear nothing.

What lives here: what a client can know of a connection to a node, as the library's knows it.
What must not: what is sent, and what is in flight (network.py).

A process that ends closes its connections, and its peers hear of it; a machine without power says
nothing, and neither does a cut: there a new connection does not come about, an old one is silent.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from chaos.simulation.clients.clients import ConnectionOwner
from chaos.simulation.disks.client_disk import ClientDisk
from chaos.simulation.world.network import NOTICE_S
from chaos.simulation.world.world import World

OFF: Final = "power"  # how a machine ends that cannot even refuse a connection


class Sockets:
    """Every client's connections; implements `clients.Wire`."""

    def __init__(self, world: World) -> None:
        self._callers: dict[str, ConnectionOwner] = {}
        self._world = world
        self._routes: dict[tuple[str, str], str] = {}  # by caller and node
        self._number = 0
        self._off: set[str] = set()
        world.observers.append(self._observe)
        world.lost_ways.append(self._broke)

    @property
    def now(self) -> float:
        """The time, in seconds."""
        return self._world.now

    def after(self, delay_s: float, action: Callable[[], None]) -> None:
        """Call `action` when that much time has passed."""
        self._world.after(delay_s, action)

    def stream(self, name: str) -> random.Random:
        """Return the randomness of one purpose."""
        return self._world.stream(name)

    def client_send(self, caller: ConnectionOwner, node: str, frames: Sequence[bytes]) -> str:
        """Send on the caller's connection to the node; see `clients.Wire`."""
        outcome = self.client_connect(caller, node)
        if outcome == "sent":
            self._world.request(self._routes[caller.name, node], node, list(frames))
        return outcome

    def client_connect(self, caller: ConnectionOwner, node: str) -> str:
        """Have a connection of the caller's to the node; see `clients.Wire`."""
        if (caller.name, node) not in self._routes:
            if self._is_cut(caller.name, node) or node in self._off:
                return "swallowed"
            if not self._world.nodes[node].up:
                return "refused"
            self._connect(caller, node)
        return "sent"

    def client_close(self, caller: ConnectionOwner, node: str) -> None:
        """Close the caller's connection to the node, if there is one."""
        route = self._routes.pop((caller.name, node), None)
        if route is not None:
            self._world.close_way(route)

    def disk(self, directory: Path) -> ClientDisk:
        """Return the disk under a state directory that nobody has used yet."""
        disk = ClientDisk(directory)
        self._world.files[str(directory)] = disk.image
        return disk

    def _connect(self, caller: ConnectionOwner, node: str) -> None:
        self._number += 1
        route = self._routes[caller.name, node] = f"{caller.name}.{self._number}"
        self._world.clients[route] = caller.replied
        self._callers[caller.name] = caller

    def _is_cut(self, name: str, node: str) -> bool:
        client = name.partition("/")[0]
        return bool({(client, node), (node, client)} & self._world.net.cut)

    def _observe(self, kind: str, fields: Mapping[str, Any]) -> None:
        if kind == "started":
            self._off.discard(fields["node"])
        elif kind == "ended":
            self._node_ended(fields["node"], fields["how"])

    def _broke(self, route: str, vanished: bool) -> None:
        for (name, node), known in list(self._routes.items()):
            if known == route:
                self._callers[name].lost(node)

    def _node_ended(self, node: str, how: str) -> None:
        if how == OFF:
            self._off.add(node)
            return
        for (name, other), route in list(self._routes.items()):
            if other == node:
                self._world.after(NOTICE_S, partial(self._lose, name, node, route))

    def _lose(self, name: str, node: str, route: str) -> None:
        if self._routes.get((name, node)) == route:
            self._callers[name].lost(node)
