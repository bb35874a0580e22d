"""A cluster of containers on this machine (deploy/compose.yaml), for `docker compose` v2 and v1.

What lives here: the Target Protocol and some powers more in commands of docker. What must not: the
services' settings, which stand in the compose file, and rules for packets (network.py). The
containers are a compose project of their own, so that a cluster that someone runs from the same
file keeps its volumes.
"""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any, Final

from chaos.targets import CLIENTS, DegradesLinks, Links, Remains, TargetError
from chaos.targets.commands import output
from chaos.targets.leftovers import RunLock, sweep
from chaos.targets.network import Network, Networked
from chaos.targets.privileges import check_networking
from chaos.targets.recovery import TargetRecovery
from flotilla_client import Client, FlotillaError
from flotilla_client.keys import VARIABLE

COMPOSE_FILE: Final = Path(__file__).parents[2] / "deploy" / "compose.yaml"
PROJECT: Final = "flotilla-chaos"
NODES: Final = ("n1", "n2", "n3")  # the file's services
PORT_FIRST: Final = 7001
DATA: Final = "/var/lib/flotilla"  # the file's volumes
CLIENT_KEY: Final = "/var/lib/flotilla-keys/clients/app.key"
COMMAND_S_MAX: Final = 900.0  # the first `up` builds the image
STATUS_MS_MAX: Final = 500
# A container's address, and the switch's, from where the published ports' clients come. None when
# it is dead.
ADDRESSES: Final = (
    "{{range .NetworkSettings.Networks}}{{if .IPAddress}}{{.IPAddress}} {{.Gateway}}{{end}}{{end}}"
)
TOOLS: Final = ("nsenter", "iptables-restore")
PACKAGES: Final = "util-linux iptables"
KILLED: Final = 128 + signal.SIGKILL  # the exit code of a container that had to be killed
OVER: Final = ("created", "exited", "dead")  # states of a container that has no process
LOGS: Final = ("sh", "-c", 'exec docker logs "$0" 2>&1')  # a node logs to its standard error
LIFE: Final = "{{.RestartCount}} {{.State.Status}} {{.State.ExitCode}}"

Command = Callable[[Sequence[str]], str]


def run_command(arguments: Sequence[str]) -> str:
    """Run a command; return its stdout. Raises TargetError with its stderr."""
    return output(arguments, seconds_max=COMMAND_S_MAX)


def compose_command(run: Command) -> list[str]:
    """Return `docker compose`, or `docker-compose` where there is only that one."""
    for candidate in (["docker", "compose"], ["docker-compose"]):
        try:
            run([*candidate, "version"])
        except TargetError:
            continue
        return candidate
    raise TargetError("compose: neither `docker compose` nor `docker-compose` works here")


class ComposeTarget(Networked):
    """The three services of deploy/compose.yaml. Raises TargetError where there is no compose."""

    name = "compose"
    nodes: tuple[str, ...] = NODES

    def __init__(self, node_count: int, run: Command = run_command) -> None:
        if node_count != len(NODES):
            raise TargetError(f"compose: the file has {len(NODES)} nodes, not {node_count}")
        self._run = run
        self._base = compose_command(run)
        self._compose: list[str] = []
        self._key = ""  # a file with the clients' key
        self._containers: dict[str, str] = {}
        self._last_addresses: dict[str, str] = {}  # a dead container has none
        self._network = Network(self._enter, self._addresses)
        self._recovery = TargetRecovery(self.nodes, self._statuses)
        self._claim = RunLock(self.name, Path.cwd(), PROJECT)
        self._running: set[str] = set()  # started, and since then ended by no fault
        self._restarts = dict.fromkeys(NODES, 0)  # docker's own, since the last start from here
        self._ends: list[str] = []

    def equip(self, needs: Collection[type]) -> None:
        """Raise TargetError if rules for packets will be needed and cannot be made here."""
        if not {Links, DegradesLinks}.isdisjoint(needs):
            check_networking("compose: rules for a container's packets")
            if missing := [tool for tool in TOOLS if shutil.which(tool) is None]:
                raise TargetError(f"compose: {missing} missing: apt-get install {PACKAGES}")

    def up(self) -> None:
        """Remove what an earlier run left, build the image if need be, start every container."""
        sweep()
        self._claim.take()
        self._compose = [*self._base, "-p", PROJECT, "-f", str(COMPOSE_FILE)]
        self._run([*self._compose, "down", "--volumes"])
        self._run([*self._compose, "up", "--detach", "--build"])
        self._take_key()
        self._run(["docker", "wait", self._container("level")])  # it may take a while to raise it
        self._containers = {node: self._container(node) for node in self.nodes}
        self._running.update(self.nodes)

    def _take_key(self) -> None:
        """Have the clients' key where each client of this process and its children looks for it."""
        text = self._run([*self._compose, "exec", "-T", NODES[0], "cat", CLIENT_KEY])
        descriptor, self._key = tempfile.mkstemp(prefix="flotilla-", suffix=".key")
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        os.environ[VARIABLE] = self._key

    def _drop_key(self) -> None:
        if self._key:
            os.environ.pop(VARIABLE, None)
            Path(self._key).unlink(missing_ok=True)
            self._key = ""

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

    def _statuses(self) -> dict[str, dict[str, Any]]:
        answers = {node: _status(endpoint) for node, endpoint in self.endpoints().items()}
        return {node: body for node, body in answers.items() if body is not None}

    def leader(self) -> str | None:
        """Return the node that says it leads, in the highest term; None while there is none."""
        leading = [body for body in self._statuses().values() if body["role"] == "leader"]
        newest = max(leading, key=lambda body: int(body["term"]), default=None)
        return None if newest is None else str(newest["node"])

    def ended(self) -> list[str]:
        """Return the nodes that ended though no fault may have ended them, each end once."""
        self._note_ends()
        ends, self._ends = self._ends, []
        return ends

    def _note_ends(self) -> None:
        # Before any container is started or ended here: a start sets docker's count back.
        for node, line in self._inspect(sorted(self._running), LIFE).items():
            count, state, code = line.split()
            is_up = state not in (*OVER, "restarting")  # docker forgets the code when it starts one
            how = "docker has started it again" if is_up else f"exit code {code}"
            new = int(count) - self._restarts[node] or int(state in OVER)
            self._ends += [f"{node} ended by itself ({how})"] * new
            self._restarts[node] = int(count)
            if state in OVER:
                self._running.remove(node)

    def _expect_ends(self, nodes: list[str]) -> None:
        self._note_ends()
        self._running.difference_update(nodes)

    def kill(self, nodes: list[str]) -> None:
        """SIGKILL the first processes of those that run, all with one command."""
        self._expect_ends(nodes)
        self._run_for(nodes, "running", "kill")

    def start(self, nodes: list[str]) -> None:
        """Start the containers; docker leaves one alone that runs. Rules hold for the new ones."""
        self._note_ends()
        self._run(["docker", "start", *(self._containers[node] for node in nodes)])
        self._restarts.update(dict.fromkeys(set(nodes) - self._running, 0))
        self._running.update(nodes)
        self._network.renew(self.nodes)  # a container may come back under another address

    def stop(self, nodes: list[str]) -> None:
        """Stop the containers that run in order (SIGTERM), one after the other.

        Raises TargetError if one had to be killed, which docker does without a word.
        """
        self._expect_ends(nodes)
        states = self._inspect(nodes, "{{.State.Status}}")
        for node in [node for node in nodes if states[node] not in OVER]:
            self._run(["docker", "stop", self._containers[node]])
            if self._inspect([node], "{{.State.ExitCode}}")[node] == str(KILLED):
                raise TargetError(f"{node} did not end in order: docker stop had to kill it")

    def pause(self, nodes: list[str]) -> None:
        """Freeze those of the containers that run."""
        self._run_for(nodes, "running", "pause")

    def resume(self, nodes: list[str]) -> None:
        """Let go on those of the containers that are frozen."""
        self._run_for(nodes, "paused", "unpause")

    def _run_for(self, nodes: list[str], state: str, command: str) -> None:
        states = self._inspect(nodes, "{{.State.Status}}")
        if found := [self._containers[node] for node in nodes if states[node] == state]:
            self._run(["docker", command, *found])

    def _inspect(self, nodes: Collection[str], form: str) -> dict[str, str]:
        if not nodes:
            return {}
        containers = [self._containers[node] for node in nodes]
        lines = self._run(["docker", "inspect", "--format", form, *containers]).split("\n")
        return {node: line.strip() for node, line in zip(nodes, lines, strict=False)}

    def roll(self, nodes: list[str]) -> None:
        """Stop and start these containers, each when the one before is a member that keeps up."""
        for node in nodes:
            self.stop([node])
            self.start([node])
            self._recovery.await_back(node)

    # --- disks ------------------------------------------------------------------------------------

    def await_whole(self) -> None:
        """Return when every node that lost its volume's content is a member again."""
        self._recovery.await_whole()

    def wipe(self, nodes: list[str]) -> None:
        """Kill these containers and empty their volumes. Raises TargetError for over a minority."""
        self._recovery.lose(nodes)
        self.kill(nodes)
        for node, image in self._inspect(nodes, "{{.Config.Image}}").items():
            volumes = ["--volumes-from", self._containers[node], "--entrypoint", "find"]
            empty = [image, DATA, "-mindepth", "1", "-delete"]
            self._run(["docker", "run", "--rm", "--network", "none", *volumes, *empty])

    # --- links ------------------------------------------------------------------------------------

    def _enter(self, node: str) -> Sequence[str] | None:
        pid = self._inspect([node], "{{.State.Pid}}")[node]
        return None if pid == "0" else ("nsenter", "--net", "--target", pid)

    def unplug(self, nodes: list[str]) -> None:
        """Take these containers off the project's network; their published ports go with it."""
        for node in self._plugged(nodes, is_plugged=True):
            self._run(["docker", "network", "disconnect", _network(), self._containers[node]])

    def plug(self, nodes: list[str]) -> None:
        """Put them back under the names of their services; rules hold for the new addresses."""
        for node in self._plugged(nodes, is_plugged=False):
            container = self._containers[node]
            self._run(["docker", "network", "connect", "--alias", node, _network(), container])
        self._network.renew(self.nodes)

    def _plugged(self, nodes: list[str], *, is_plugged: bool) -> list[str]:
        networks = self._inspect(nodes, "{{len .NetworkSettings.Networks}}")
        return [node for node in nodes if (networks[node] != "0") == is_plugged]

    def _addresses(self) -> dict[str, str]:
        for node, found in self._inspect(self.nodes, ADDRESSES).items():
            if found:
                self._last_addresses[node], self._last_addresses[CLIENTS] = found.split()
        return self._last_addresses

    # --- the end ----------------------------------------------------------------------------------

    def remains(self, directory: Path) -> dict[str, Remains]:
        """Copy the data of each node out of its container, and what it has printed."""
        directory.mkdir(parents=True, exist_ok=True)
        remains = {node: Remains(directory / node, directory / f"{node}.log") for node in NODES}
        for node, (data, log) in remains.items():
            self._run(["docker", "cp", f"{self._containers[node]}:{DATA}", str(data)])
            log.write_text(self._run([*LOGS, self._containers[node]]))
        return remains

    def down(self) -> None:
        """Thaw and remove containers; remove network and volumes."""
        self._running.clear()
        try:
            self._network.forget()
        finally:
            self._take_down()
            self._claim.release()

    def _take_down(self) -> None:
        if self._compose:
            project = f"label=com.docker.compose.project={PROJECT}"
            listing = ["docker", "ps", "--quiet", "--filter", "status=paused", "--filter", project]
            if frozen := self._run(listing).split():
                self._run(["docker", "unpause", *frozen])
            self._run([*self._compose, "down", "--volumes"])
            self._compose = []
        self._drop_key()


def _status(endpoint: str) -> dict[str, Any] | None:
    with Client([endpoint], timeout=STATUS_MS_MAX / 1000) as client:
        try:
            return dict(client.status())
        except FlotillaError:
            return None  # a dead node has no status


def _network() -> str:
    return f"{PROJECT}_default"  # compose's name for the file's only network
