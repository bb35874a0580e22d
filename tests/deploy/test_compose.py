"""Claims about deploy/compose.yaml: three real nodes, used from the host by the `flotilla` command.

Each cluster is a project of its own on free ports, removed at the end with its volumes. A test
leaves three running nodes behind and uses topics of its own.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import pytest

from cluster.wire.levels import BUILD
from flotilla_client import Client, FlotillaError
from tests.deploy import engine

pytestmark = [pytest.mark.docker, pytest.mark.timeout(engine.BUILD_TIMEOUT_S + 240)]

CLIENT_KEY: Final = "/var/lib/flotilla-keys/clients/app.key"
FILE: Final = str(engine.ROOT / "deploy" / "compose.yaml")
NODES: Final = ("n1", "n2", "n3")
FLOTILLA: Final = (sys.executable, "-m", "flotilla_client.cli")
STATUS_MS_MAX: Final = 1_000  # a node answers at the end of its turn
ANSWER_S_MAX: Final = 30.0  # readmission: some elections, and the copy of a small database
POLL_S: Final = 0.05  # STATUS is asked: a node announces no progress


def free_ports(count: int) -> list[int]:
    """Return ports that were free just now, all different."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


class ComposeProject:
    """A compose project under a name of its own.

    `endpoints`: node -> `host:port` on the host. `made_s`: wall clock, before its first event.
    """

    def __init__(self, version: str, image: str) -> None:
        self.name = engine.unique("flotilla-test").replace("-", "")
        self.key = Path(tempfile.mkdtemp(prefix="flotilla-")) / "app.key"
        self.made_s = time.time()
        ports = dict(zip(NODES, free_ports(len(NODES)), strict=True))
        self.endpoints = {node: f"127.0.0.1:{port}" for node, port in ports.items()}
        self._argv = [*engine.COMPOSE[version], "-f", FILE]
        self._env = {f"FLOTILLA_PORT_{node[1:]}": str(port) for node, port in ports.items()} | {
            "COMPOSE_PROJECT_NAME": self.name,
            "FLOTILLA_IMAGE": image,
        }

    def compose(self, *words: str) -> str:
        """Return the output of a compose command on this project."""
        return engine.run(*self._argv, *words, env=self._env)

    def up(self) -> None:
        """Start what does not run and wait until every node answers."""
        self.compose("up", "--detach", "--no-build")
        self.key.write_text(self.compose("exec", "-T", "n1", "cat", CLIENT_KEY))
        for node in NODES:
            self.await_answer(node)

    def start(self, node: str) -> None:
        """Start a node's container again and wait until it answers."""
        engine.run("docker", "start", self.container(node))
        self.await_answer(node)

    def container(self, node: str) -> str:
        """Return the id of a node's container, also of a stopped one; v1 and v2 name them apart."""
        return engine.run(
            *("docker", "ps", "--all", "--quiet", "--no-trunc"),
            *("--filter", f"label=com.docker.compose.project={self.name}"),
            *("--filter", f"label=com.docker.compose.service={node}"),
        )

    def runs(self, node: str) -> bool:
        """Return whether a node has a container that runs."""
        container = self.container(node)
        return bool(container) and bool(engine.inspect(container)["State"]["Running"])

    def status(self, node: str) -> dict[str, Any]:
        """Return what a node says of itself, {} if it says nothing."""
        with Client([self.endpoints[node]], timeout=STATUS_MS_MAX / 1000, key=self.key) as client:
            try:
                return client.status()
            except FlotillaError:
                return {}

    def leader(self) -> str:
        """Return the node that leads, as the first one that answers sees it."""
        named = (self.status(node).get("leader") for node in NODES)
        return str(next(filter(None, named)))

    def await_answer(self, node: str) -> None:
        """Return when a node answers STATUS."""
        self._await(node, lambda status: bool(status))

    def await_caught_up(self, node: str) -> None:
        """Return when a node has applied what the others have committed by now."""
        goal = max(self.status(each).get("commit_index", 0) for each in NODES if each != node)
        assert goal, {each: self.status(each) for each in NODES}
        self._await(node, lambda status: status.get("applied_index", 0) >= goal)

    def _await(self, node: str, condition: Callable[[dict[str, Any]], bool]) -> None:
        deadline = time.monotonic() + ANSWER_S_MAX
        while not condition(status := self.status(node)):
            assert time.monotonic() < deadline, (status, engine.logs(self.container(node)))
            time.sleep(POLL_S)


class Application:
    """A client on the host: the `flotilla` command with a state directory of its own."""

    def __init__(self, project: ComposeProject, state_dir: Path) -> None:
        self._project = project
        self._state_dir = state_dir

    def subscribe(self, topic: str, through: Sequence[str] = NODES) -> None:
        """Subscribe to a topic."""
        self._flotilla(through, "sub", topic)

    def put(self, topic: str, publication: str, through: Sequence[str] = NODES) -> None:
        """Put a publication; it is acknowledged on return."""
        self._flotilla(through, "put", topic, publication)

    def get(self, topic: str, through: Sequence[str] = NODES) -> str:
        """Return the next publication."""
        return self._flotilla(through, "get", topic, "--wait", "10")

    def _flotilla(self, through: Sequence[str], *words: str) -> str:
        endpoints = ",".join(self._project.endpoints[node] for node in through)
        options = ("--endpoints", endpoints, "--state", str(self._state_dir))
        options += ("--key", str(self._project.key))
        client = str(engine.ROOT / "client")
        return engine.run(*FLOTILLA, *options, *words, env={"PYTHONPATH": client})


def needs(version: str) -> None:
    """Skip the test unless this version of compose is here."""
    if not engine.has_compose(version):
        pytest.skip(f"`{' '.join(engine.COMPOSE[version])}` cannot be called here")


@pytest.fixture(scope="module", params=list(engine.COMPOSE))
def project(request: pytest.FixtureRequest, image: str) -> Iterator[ComposeProject]:
    """Yield a running cluster, by each version of compose; nothing of it is left at the end."""
    needs(request.param)
    made = ComposeProject(request.param, image)
    try:
        made.up()
        yield made
    finally:
        made.compose("down", "--volumes", "--timeout", "1")


@pytest.fixture
def producer(project: ComposeProject, tmp_path: Path) -> Application:
    """Return the command as one client."""
    return Application(project, tmp_path / "producer")


@pytest.fixture
def consumer(project: ComposeProject, tmp_path: Path) -> Application:
    """Return the command as another client."""
    return Application(project, tmp_path / "consumer")


@pytest.fixture
def topic() -> str:
    """Return a topic that no other test uses."""
    return engine.unique("topic")


@pytest.mark.parametrize("version", list(engine.COMPOSE))
def test_file_is_taken_without_a_warning(version: str) -> None:
    needs(version)
    argv = [*engine.COMPOSE[version], "-f", FILE, "config", "--quiet"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_clients_reach_three_nodes_on_the_loopback_ports_from_7001_and_peers_none() -> None:
    needs("v2")
    unset = {name: value for name, value in os.environ.items() if not name.startswith("FLOTILLA_")}
    argv = [*engine.COMPOSE["v2"], "-f", FILE, "config", "--format", "json"]
    file = json.loads(subprocess.run(argv, capture_output=True, env=unset, check=True).stdout)
    published = {
        (node, port["host_ip"], port["published"], port["target"])
        for node, service in file["services"].items()
        for port in service.get("ports", ())
    }
    assert published == {
        ("n1", "127.0.0.1", "7001", 7000),
        ("n2", "127.0.0.1", "7002", 7000),
        ("n3", "127.0.0.1", "7003", 7000),
    }


def test_every_node_turns_healthy_by_what_it_says_of_itself(project: ComposeProject) -> None:
    for node in NODES:
        check = engine.inspect(project.container(node))["Config"]["Healthcheck"]["Test"]
        assert check == ["CMD", "flotilla-asked"]
        engine.await_event(project.container(node), "health_status: healthy", project.made_s)


def test_new_cluster_begins_at_the_newest_level(project: ComposeProject) -> None:
    """A service of the file raises it, and `flotilla` needs no `upgrade` first."""
    assert engine.run("docker", "wait", project.container("level")) == "0"
    assert {project.status(node)["level"] for node in NODES} == {BUILD.level_max}


def test_publication_put_through_one_node_is_got_through_another(
    producer: Application, consumer: Application, topic: str
) -> None:
    consumer.subscribe(topic, through=("n2",))
    producer.put(topic, "one", through=("n1",))
    assert consumer.get(topic, through=("n3",)) == "one"


def test_killed_leader_stays_down_and_costs_no_acknowledged_publication(
    project: ComposeProject, producer: Application, consumer: Application, topic: str
) -> None:
    consumer.subscribe(topic)
    producer.put(topic, "before")
    leader = project.leader()
    engine.run("docker", "kill", project.container(leader))
    try:
        producer.put(topic, "after")
        assert [consumer.get(topic), consumer.get(topic)] == ["before", "after"]
        assert not project.runs(leader)
    finally:
        project.start(leader)


def test_node_that_dies_by_itself_is_started_again(project: ComposeProject) -> None:
    container = project.container("n2")
    begun_s = time.time()
    restarts = engine.inspect(container)["RestartCount"]
    # All processes but the first one, which no signal from inside can hurt.
    engine.run("docker", "exec", "--detach", container, "sh", "-c", "kill -KILL -1")
    engine.await_event(container, "start", begun_s)
    project.await_answer("n2")
    assert engine.inspect(container)["RestartCount"] == restarts + 1


def test_publications_survive_down_and_up(
    project: ComposeProject, producer: Application, consumer: Application, topic: str
) -> None:
    consumer.subscribe(topic)
    producer.put(topic, "kept")
    project.compose("down")
    project.up()
    assert consumer.get(topic) == "kept"


def test_sigterm_while_a_node_starts_ends_it_within_the_grace_period(
    project: ComposeProject,
) -> None:
    container = project.container("n3")
    project.compose("stop", "n3")
    try:
        engine.run("docker", "start", container)
        engine.run("docker", "stop", "--time", "20", container)
        # 143: the signal came before Python could take it.
        assert engine.inspect(container)["State"]["ExitCode"] in (0, 143)
    finally:
        project.start("n3")


def test_node_with_a_wiped_volume_is_readmitted_and_counts_again(
    project: ComposeProject, producer: Application, consumer: Application, topic: str
) -> None:
    consumer.subscribe(topic)
    producer.put(topic, "before")
    engine.run("docker", "rm", "--force", project.container("n2"))
    engine.run("docker", "volume", "rm", f"{project.name}_n2")
    project.up()
    project.await_caught_up("n2")
    engine.run("docker", "kill", project.container("n3"))
    try:  # n1 and n2 are a majority only if n2 counts
        producer.put(topic, "after", through=("n1", "n2"))
        got = [consumer.get(topic, through=("n2",)) for _ in range(2)]
        assert got == ["before", "after"]
    finally:
        project.start("n3")
