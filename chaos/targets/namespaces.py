"""A cluster of processes on this machine, each node in a network namespace of its own.

What lives here: building and removing that network, and starting nodes in it. What must not: what
can be done to processes and disks (local.py), and rules for packets (network.py).

A namespace for a switch, one for each node, and one address on the machine's side for the clients:

    clients (10.213.X.1) --- switch --- n1 (10.213.X.11), n2 (10.213.X.12), …

The switch has a namespace too, because rules for forwarded packets on the machine (docker's, say)
would apply to it otherwise. All names begin with the run's label, and go with it.
"""

from __future__ import annotations

import shutil
import zlib
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Final

from chaos.targets import CLIENTS, DegradesLinks, TargetError
from chaos.targets.commands import output
from chaos.targets.leftovers import RunLock, clear_namespaces, host_interface
from chaos.targets.local import LocalTarget
from chaos.targets.network import Network, Networked
from chaos.targets.privileges import check_networking, granting
from cluster.local.local import NODE_COMMAND

TOOLS: Final = {"ip": "iproute2", "iptables": "iptables"}
NETWORK: Final = "10.213"  # private (RFC 1918), and nobody's default
CLIENTS_HOST: Final = 1
NODE_HOST_FIRST: Final = 11


class NamespacesTarget(Networked, LocalTarget):
    """As LocalTarget, and with a network. Raises TargetError without root or the tools."""

    name = "namespaces"

    def __init__(
        self, directory: Path, node_count: int, command: Sequence[str] = NODE_COMMAND
    ) -> None:
        super().__init__(directory, node_count, command)
        _check_machine()
        seed = zlib.crc32(bytes(directory.resolve()))
        self._label = f"flotilla-{seed:08x}"
        self._claim = RunLock(self.name, directory, self._label)
        self._subnet = 0
        self._first_subnet = seed % 256
        self._degrades = False
        self._network = Network(self._enter, self._addresses, seed)

    def equip(self, needs: Collection[type]) -> None:
        """As LocalTarget; see that packets can be held back if they will have to be."""
        super().equip(needs)
        self._degrades = DegradesLinks in needs

    def _create(self) -> None:
        clear_namespaces(self._directory, self._label)
        self._subnet = _free_subnet(self._first_subnet)
        try:
            self._build()
        except TargetError as error:  # a security module, say, or another one's user namespace
            said = f"this system does not let its root build networks; {granting()}"
            raise TargetError(f"namespaces: {said}\n{error}") from error
        if self._degrades:
            self._network.probe(self.nodes[0])
        addresses = self._addresses()
        hosts = [addresses[node] for node in self.nodes]
        self._cluster.create(len(self.nodes), settings=self._settings, hosts=hosts, keys=True)

    def _build(self) -> None:
        addresses, switch = self._addresses(), f"{self._label}-switch"
        host = host_interface(self._label)
        spaces = {node: f"{self._label}-{node}" for node in self.nodes}
        _ip(
            f"netns add {switch}",
            *(f"netns add {space}" for space in spaces.values()),
            f"link add {host} type veth peer name clients netns {switch}",
            f"addr add {addresses[CLIENTS]}/24 dev {host}",
            f"link set {host} up",
            *(
                f"link add eth0 netns {space} type veth peer name {node} netns {switch}"
                for node, space in spaces.items()
            ),
        )
        ports = [CLIENTS, *self.nodes]
        _ip(
            "link add bridge type bridge",
            "link set bridge up",
            *(f"link set {port} master bridge up" for port in ports),
            namespace=switch,
        )
        for node, space in spaces.items():
            address = f"addr add {addresses[node]}/24 dev eth0"
            _ip(address, "link set lo up", "link set eth0 up", namespace=space)

    def _addresses(self) -> dict[str, str]:
        hosts = {node: NODE_HOST_FIRST + number for number, node in enumerate(self.nodes)}
        hosts[CLIENTS] = CLIENTS_HOST
        return {name: f"{NETWORK}.{self._subnet}.{host}" for name, host in hosts.items()}

    def _enter(self, node: str) -> Sequence[str]:
        return ("ip", "netns", "exec", f"{self._label}-{node}")

    def _prefix(self, node: str) -> Sequence[str]:
        return (*self._enter(node), *super()._prefix(node))

    def unplug(self, nodes: list[str]) -> None:
        """Take down these nodes' ends of their links."""
        self._set_interfaces(nodes, "down")

    def plug(self, nodes: list[str]) -> None:
        """Take them up again."""
        self._set_interfaces(nodes, "up")

    def _set_interfaces(self, nodes: list[str], state: str) -> None:
        for node in nodes:
            _ip(f"link set eth0 {state}", namespace=f"{self._label}-{node}")

    def down(self) -> None:
        """As LocalTarget; let packets pass first, and remove the network behind the nodes."""
        try:
            self._network.forget()
        finally:
            super().down()

    def _take_down(self) -> None:
        try:
            super()._take_down()
        finally:
            clear_namespaces(self._directory, self._label)


def _check_machine() -> None:
    check_networking("namespaces: network namespaces", "; the target local does not")
    missing = [package for tool, package in TOOLS.items() if shutil.which(tool) is None]
    if missing:
        raise TargetError(f"namespaces: apt-get install {' '.join(missing)}")


def _free_subnet(first: int) -> int:
    used = output(["ip", "-4", "-oneline", "addr"])
    for step in range(256):
        number = (first + step) % 256
        if f" {NETWORK}.{number}." not in used:
            return number
    raise TargetError(f"namespaces: no part of {NETWORK}.0.0/16 is free on this machine")


def _ip(*lines: str, namespace: str = "") -> None:
    where = ["-netns", namespace] if namespace else []
    output(["ip", *where, "-batch", "-"], "\n".join(lines) + "\n")
