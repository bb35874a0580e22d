"""The brokers that ours is measured beside: three nodes of each on this machine, from start to end.

What lives here: their programs, settings and processes. What must not: their clients
(broker_loads.py), what is measured (measures.py). Each is as its package configures it, but for
replication on three nodes: what that promises is said in `durability`.
"""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Protocol

from chaos.bench.figures import BenchError
from cluster.local.local import HOST, free_ports

NAMES: Final = ("one", "two", "three")
START_S_MAX: Final = 20.0
END_S_MAX: Final = 5.0  # then SIGKILL: the data is removed anyway
LOOK_S: Final = 0.05
SYSTEM_PATHS: Final = "/usr/sbin:/usr/local/sbin"  # where packages put daemons, and no PATH leads


class RivalBroker(Protocol):
    """A broker of others. `program` is in Debian's `package`.

    `durability`: what an answer to a publication says of disks.
    """

    name: str
    program: str
    package: str
    durability: str

    def commands(self, program: str, directory: Path) -> list[list[str]]:
        """Return how each node is started, with its files below `directory`."""

    def endpoints(self) -> list[str]:
        """Return where clients find the nodes, once `commands` has chosen ports."""


class Nats:
    """NATS JetStream: streams of three replicas in files."""

    name, program, package = "nats", "nats-server", "nats-server"
    durability = "a majority has it in memory; fsync every 2 minutes"

    def __init__(self) -> None:
        self._ports: list[int] = []

    def commands(self, program: str, directory: Path) -> list[list[str]]:
        """Return how each node is started, with its files below `directory`."""
        self._ports = free_ports(2 * len(NAMES), directory)
        clients, routes = self._ports[: len(NAMES)], self._ports[len(NAMES) :]
        known = ", ".join(f'"nats://{HOST}:{port}"' for port in routes)
        commands = []
        for name, port, route in zip(NAMES, clients, routes, strict=True):
            home = directory / name
            home.mkdir(parents=True)
            file = home / "nats.conf"
            file.write_text(
                f'server_name: {name}\nlisten: "{HOST}:{port}"\n'
                f'jetstream {{ store_dir: "{home}" }}\n'
                f'cluster {{ name: bench, listen: "{HOST}:{route}", routes: [{known}] }}\n'
            )
            commands.append([program, "-c", str(file)])
        return commands

    def endpoints(self) -> list[str]:
        """Return where clients find the nodes."""
        return [f"nats://{HOST}:{port}" for port in self._ports[: len(NAMES)]]


class Etcd:
    """etcd: no broker, but a Raft log whose every write waits for a majority's disks."""

    name, program, package = "etcd", "etcd", "etcd-server"
    durability = "a majority has it on disk (fsync)"

    def __init__(self) -> None:
        self._ports: list[int] = []

    def commands(self, program: str, directory: Path) -> list[list[str]]:
        """Return how each node is started, with its files below `directory`."""
        self._ports = free_ports(2 * len(NAMES), directory)
        peers = [f"http://{HOST}:{port}" for port in self._ports[len(NAMES) :]]
        known = ",".join(f"{name}={peer}" for name, peer in zip(NAMES, peers, strict=True))
        return [
            [
                program,
                f"--name={name}",
                f"--data-dir={directory / name}",
                f"--listen-client-urls={client}",
                f"--advertise-client-urls={client}",
                f"--listen-peer-urls={peer}",
                f"--initial-advertise-peer-urls={peer}",
                f"--initial-cluster={known}",
                "--initial-cluster-state=new",
                "--log-level=error",
            ]
            for name, client, peer in zip(NAMES, self.endpoints(), peers, strict=True)
        ]

    def endpoints(self) -> list[str]:
        """Return where clients find the nodes."""
        return [f"http://{HOST}:{port}" for port in self._ports[: len(NAMES)]]


BROKERS: Final[Mapping[str, type[RivalBroker]]] = {each.name: each for each in (Nats, Etcd)}


def found(broker: type[RivalBroker]) -> str:
    """Return where a broker's program is. Raises BenchError, which says what brings it."""
    program = shutil.which(broker.program) or shutil.which(broker.program, path=SYSTEM_PATHS)
    if program is None:
        raise BenchError(
            f"{broker.name}: there is no {broker.program} here: apt-get install {broker.package}"
        )
    return program


@contextmanager
def running(name: str, directory: Path) -> Iterator[list[str]]:
    """Run a broker's nodes below `directory`; give where clients find them; end them all.

    Raises BenchError for one that does not come up; what it said is in the message.
    """
    broker = BROKERS[name]()
    program = found(BROKERS[name])
    directory.mkdir(parents=True)
    processes: list[subprocess.Popen[bytes]] = []
    try:
        with (directory / "log").open("wb") as log:
            for command in broker.commands(program, directory):
                processes.append(subprocess.Popen(command, stdout=log, stderr=log))
        endpoints = broker.endpoints()
        _await(name, endpoints, processes, directory / "log")
        yield endpoints
    finally:
        _end(processes)


def _await(
    name: str, endpoints: Sequence[str], processes: Sequence[subprocess.Popen[bytes]], log: Path
) -> None:
    """Return when all accept connections; that they have a leader is for their clients to wait."""
    deadline = time.monotonic() + START_S_MAX
    waiting = [int(endpoint.rpartition(":")[2]) for endpoint in endpoints]
    while waiting:
        if time.monotonic() > deadline or any(each.poll() is not None for each in processes):
            said = log.read_bytes()[-500:].decode(errors="replace").strip()
            raise BenchError(f"{name} does not start in {START_S_MAX:g} s; it said: {said}")
        waiting = [port for port in waiting if not _accepts(port)]
        time.sleep(LOOK_S)


def _accepts(port: int) -> bool:
    try:
        socket.create_connection((HOST, port), timeout=1).close()
    except OSError:
        return False
    return True


def _end(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        process.terminate()
    deadline = time.monotonic() + END_S_MAX
    for process in processes:
        try:
            process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
