"""The brokers that ours is measured beside: three nodes of each on this machine, from start to end.

What lives here: their programs, settings and processes. What must not: their clients
(broker_clients.py), what is measured (beside.py). Each is as its package configures it, but for
replication on three nodes: what that promises is said in `durability`.
"""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol, Self

from chaos.bench.figures import BenchError
from cluster.local.ports import HOST, free_ports

NAMES: Final = ("one", "two", "three")
START_S_MAX: Final = 120.0  # Erlang's nodes take 8 s of processor each; a dead one is seen at once
END_S_MAX: Final = 10.0  # then SIGKILL: the data is removed anyway
LOOK_S: Final = 0.05
SYSTEM_PATHS: Final = "/usr/sbin:/usr/local/sbin"  # where packages put daemons, and no PATH leads


@dataclass(frozen=True)
class Command:
    """How a process is started; `port`: where it accepts connections once it is up."""

    arguments: list[str]
    port: int
    environment: Mapping[str, str] = field(default_factory=dict)


class RivalBroker(Protocol):
    """A broker of others. `program` is in Debian's `package`.

    `durability`: what an answer to a publication says of disks. `scheme`: of its endpoints.
    """

    name: str
    program: str
    package: str
    durability: str
    scheme: str

    def helpers(self, directory: Path) -> list[Command]:
        """Return what has to be up before the nodes, and goes after them."""

    def nodes(self, program: str, directory: Path) -> list[Command]:
        """Return how each node is started, with its files below `directory`."""


class Nats:
    """NATS JetStream: streams of three replicas in files."""

    name, program, package, scheme = "nats", "nats-server", "nats-server", "nats://"
    durability = "a majority has it in memory; fsync every 2 minutes"

    def helpers(self, directory: Path) -> list[Command]:
        """Return nothing."""
        return []

    def nodes(self, program: str, directory: Path) -> list[Command]:
        """Return how each node is started, with its files below `directory`."""
        ports = free_ports(2 * len(NAMES), directory)
        clients, routes = ports[: len(NAMES)], ports[len(NAMES) :]
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
            commands.append(Command([program, "-c", str(file)], port))
        return commands


class Rabbit:
    """RabbitMQ: quorum queues on a cluster of its own, without plugins.

    The cluster is told apart from any other on the machine by its ports, its cookie and its port
    mapper: else the first node would leave a mapper behind that all Erlang programs then share.
    """

    name, package, scheme = "rabbitmq", "rabbitmq-server", "amqp://"
    program = "/usr/lib/rabbitmq/bin/rabbitmq-server"  # the one in /usr/sbin changes the user
    durability = "a majority has it on disk (fsync)"
    MAPPER: Final = "epmd"
    CONFIGURATION: Final = (
        "listeners.tcp.1 = {host}:{port}\n"
        "cluster_formation.peer_discovery_backend = classic_config\n"
    )

    def __init__(self) -> None:
        self._environment: dict[str, str] = {}

    def helpers(self, directory: Path) -> list[Command]:
        """Return the port mapper."""
        [port] = free_ports(1, directory)
        cookie = directory / ".erlang.cookie"  # below what is HOME to them
        cookie.write_text(secrets.token_hex())
        cookie.chmod(0o400)
        self._environment = {
            "HOME": str(directory.resolve()),
            "ERL_EPMD_PORT": str(port),
            "ERL_EPMD_ADDRESS": HOST,
        }
        return [Command([self.MAPPER], port, self._environment)]

    def nodes(self, program: str, directory: Path) -> list[Command]:
        """Return how each node is started, with its files below `directory`."""
        ports = free_ports(2 * len(NAMES), directory)
        clients, distribution = ports[: len(NAMES)], ports[len(NAMES) :]
        known = "".join(
            f"cluster_formation.classic_config.nodes.{number} = {name}@localhost\n"
            for number, name in enumerate(NAMES, 1)
        )
        commands = []
        for name, port, other in zip(NAMES, clients, distribution, strict=True):
            home = directory.resolve() / name
            home.mkdir(parents=True)
            (home / "rabbitmq.conf").write_text(
                self.CONFIGURATION.format(host=HOST, port=port) + known
            )
            (home / "plugins").write_text("[].\n")
            files = {
                "MNESIA_BASE": "mnesia",
                "LOG_BASE": "log",
                "CONFIG_FILE": "rabbitmq.conf",
                "CONFIG_FILES": "conf.d",
                "ADVANCED_CONFIG_FILE": "advanced.config",
                "CONF_ENV_FILE": "environment",
                "ENABLED_PLUGINS_FILE": "plugins",
                "PID_FILE": "pid",
            }
            environment = self._environment | {
                f"RABBITMQ_{variable}": str(home / file) for variable, file in files.items()
            }
            environment |= {
                "RABBITMQ_NODENAME": f"{name}@localhost",
                "RABBITMQ_NODE_IP_ADDRESS": HOST,
                "RABBITMQ_NODE_PORT": str(port),
                "RABBITMQ_DIST_PORT": str(other),
                "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-start_epmd false "
                "-kernel inet_dist_use_interface {127,0,0,1}",
                # Its script then becomes the node: a signal meets that, not one who waits for it.
                "RUNNING_UNDER_SYSTEMD": "true",
            }
            commands.append(Command([program], port, environment))
        return commands


class Etcd:
    """etcd: no broker, but a Raft log whose every write waits for a majority's disks."""

    name, program, package, scheme = "etcd", "etcd", "etcd-server", "http://"
    durability = "a majority has it on disk (fsync)"

    def helpers(self, directory: Path) -> list[Command]:
        """Return nothing."""
        return []

    def nodes(self, program: str, directory: Path) -> list[Command]:
        """Return how each node is started, with its files below `directory`."""
        ports = free_ports(2 * len(NAMES), directory)
        urls = [f"http://{HOST}:{port}" for port in ports]
        clients, peers = urls[: len(NAMES)], urls[len(NAMES) :]
        known = ",".join(f"{name}={peer}" for name, peer in zip(NAMES, peers, strict=True))
        return [
            Command(
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
                ],
                port,
            )
            for name, client, peer, port in zip(NAMES, clients, peers, ports, strict=False)
        ]


BROKERS: Final[Mapping[str, type[RivalBroker]]] = {each.name: each for each in (Nats, Rabbit, Etcd)}


def program_of(broker: type[RivalBroker]) -> str:
    """Return where a broker's program is. Raises BenchError, which says what brings it."""
    program = shutil.which(broker.program) or shutil.which(broker.program, path=SYSTEM_PATHS)
    if program is None:
        raise BenchError(
            f"{broker.name}: there is no {broker.program} here: apt-get install {broker.package}"
        )
    return program


class RunningBroker:
    """A broker's nodes below `directory`, and what they need; all end with the context.

    Raises BenchError for one that does not come up; what it said is in the message.
    """

    def __init__(self, name: str, directory: Path) -> None:
        self._broker, self._directory = BROKERS[name](), directory
        self._program = program_of(BROKERS[name])
        self._log = directory / "log"
        self._nodes: list[Command] = []
        self._processes: dict[int, subprocess.Popen[bytes]] = {}  # by port

    def __enter__(self) -> Self:
        self._directory.mkdir(parents=True)
        try:
            helpers = self._broker.helpers(self._directory)
            self._start(helpers)
            self._nodes = self._broker.nodes(self._program, self._directory)
            self._start(self._nodes)
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *raised: object) -> None:
        self._end()

    @property
    def endpoints(self) -> list[str]:
        """Where clients find the nodes."""
        return [f"{self._broker.scheme}{HOST}:{node.port}" for node in self._nodes]

    def pid(self, endpoint: str) -> int:
        """Return the process of the node at `endpoint`."""
        return self._processes[_port(endpoint)].pid

    def restart(self, endpoint: str) -> None:
        """Start the node at `endpoint` anew, which was killed; return when it is up."""
        port = _port(endpoint)
        self._processes[port].wait(END_S_MAX)
        self._start([node for node in self._nodes if node.port == port])

    def _start(self, commands: Sequence[Command]) -> None:
        """Return when all accept connections; that they have a leader is for their clients."""
        with self._log.open("ab") as log:
            for command in commands:
                self._processes[command.port] = subprocess.Popen(
                    command.arguments,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env=os.environ | command.environment,
                    process_group=0,  # ctrl-C is for us, who end them
                )
        deadline = time.monotonic() + START_S_MAX
        waiting = [command.port for command in commands]
        while waiting:
            died = any(self._processes[port].poll() is not None for port in waiting)
            if died or time.monotonic() > deadline:
                said = self._log.read_bytes()[-500:].decode(errors="replace").strip()
                raise BenchError(
                    f"{self._broker.name} does not start in {START_S_MAX:g} s; it said: {said}"
                )
            waiting = [port for port in waiting if not _accepts(port)]
            time.sleep(LOOK_S)

    def _end(self) -> None:
        """End the nodes first, then what they need; remove what they leave: others run after."""
        nodes = {node.port for node in self._nodes}
        for is_node in (True, False):
            _end([each for port, each in self._processes.items() if (port in nodes) == is_node])
        shutil.rmtree(self._directory)


def _port(endpoint: str) -> int:
    return int(endpoint.rpartition(":")[2])


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
