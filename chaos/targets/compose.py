"""A cluster of containers on this machine (deploy/compose.yaml), for `docker compose` v2 and v1.

What lives here: the Target Protocol in commands of docker. What must not: the services' settings,
which stand in the compose file. The containers are a compose project of their own, so that a
cluster that someone runs from the same file keeps its volumes.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from chaos.targets import TargetError
from flotilla import Client, FlotillaError

COMPOSE_FILE: Final = Path(__file__).parents[2] / "deploy" / "compose.yaml"
PROJECT: Final = "flotilla-chaos"
NODES: Final = ("n1", "n2", "n3")  # the file's services
PORT_FIRST: Final = 7001
COMMAND_S_MAX: Final = 900.0  # the first `up` builds the image
STATUS_MS_MAX: Final = 500
ERROR_CHARACTERS_MAX: Final = 2_000

Command = Callable[[Sequence[str]], str]


def run_command(arguments: Sequence[str]) -> str:
    """Run a command; return its stdout. Raises TargetError with its stderr."""
    try:
        done = subprocess.run(
            arguments, capture_output=True, text=True, timeout=COMMAND_S_MAX, check=True
        )
    except subprocess.CalledProcessError as error:
        tail = error.stderr[-ERROR_CHARACTERS_MAX:].strip()
        raise TargetError(f"{' '.join(arguments)}: exit {error.returncode}: {tail}") from None
    except (subprocess.TimeoutExpired, OSError) as error:
        raise TargetError(f"{' '.join(arguments)}: {error}") from None
    return done.stdout


def compose_command(run: Command) -> list[str]:
    """Return `docker compose`, or `docker-compose` where there is only that one."""
    for candidate in (["docker", "compose"], ["docker-compose"]):
        try:
            run([*candidate, "version"])
        except TargetError:
            continue
        return candidate
    raise TargetError("compose: neither `docker compose` nor `docker-compose` works here")


class ComposeTarget:
    """The three services of deploy/compose.yaml. Raises TargetError where there is no compose."""

    name = "compose"
    nodes: tuple[str, ...] = NODES

    def __init__(self, node_count: int, run: Command = run_command) -> None:
        if node_count != len(NODES):
            raise TargetError(f"compose: the file has {len(NODES)} nodes, not {node_count}")
        self._run = run
        self._base = compose_command(run)
        self._compose: list[str] = []
        self._containers: dict[str, str] = {}

    def up(self) -> None:
        """Remove what an earlier run left, build the image if need be, start every container."""
        self._compose = [*self._base, "-p", PROJECT, "-f", str(COMPOSE_FILE)]
        self._run([*self._compose, "down", "--volumes"])
        self._run([*self._compose, "up", "--detach", "--build"])
        self._containers = {node: self._container(node) for node in self.nodes}

    def _container(self, node: str) -> str:
        found = self._run([*self._compose, "ps", "--all", "--quiet", node]).split()
        if len(found) != 1:
            raise TargetError(f"compose: {node} has {len(found)} containers, not 1")
        return found[0]

    def endpoints(self) -> dict[str, str]:
        """Return the ports that the file publishes on 127.0.0.1 (FLOTILLA_PORT_1, …)."""
        ports = (
            os.environ.get(f"FLOTILLA_PORT_{number}", str(PORT_FIRST + number - 1))
            for number in range(1, len(NODES) + 1)
        )
        return {node: f"tcp://127.0.0.1:{port}" for node, port in zip(NODES, ports, strict=True)}

    def leader(self) -> str | None:
        """Return the node that says it leads, in the highest term; None while there is none."""
        answers = (_status(endpoint) for endpoint in self.endpoints().values())
        leading = [body for body in answers if body is not None and body["role"] == "leader"]
        newest = max(leading, key=lambda body: int(body["term"]), default=None)
        return None if newest is None else str(newest["node"])

    def kill(self, nodes: list[str]) -> None:
        """SIGKILL the containers' first processes, all with one command."""
        self._run(["docker", "kill", *(self._containers[node] for node in nodes)])

    def start(self, nodes: list[str]) -> None:
        """Start the containers; docker leaves one alone that runs."""
        self._run(["docker", "start", *(self._containers[node] for node in nodes)])

    def down(self) -> None:
        """Remove containers, network and volumes."""
        if self._compose:
            self._run([*self._compose, "down", "--volumes"])
            self._compose = []


def _status(endpoint: str) -> dict[str, Any] | None:
    with Client([endpoint], deadline_ms=STATUS_MS_MAX) as client:
        try:
            return client.status()
        except FlotillaError:
            return None  # a dead node has no status
