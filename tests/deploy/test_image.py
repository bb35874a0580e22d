"""Claims about deploy/Dockerfile, each seen on a container of a cluster of one node."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tests.deploy import engine

# The first build of the image, which the first test pays, fetches the dependencies.
pytestmark = [pytest.mark.docker, pytest.mark.timeout(engine.BUILD_TIMEOUT_S + 120)]

STOP_GRACE_S = 20.0  # that of compose.yaml


@pytest.fixture
def node(image: str) -> Iterator[str]:
    """Yield the container of a node that is its whole cluster; probed often, to lose no time."""
    name = engine.unique("flotilla-test-node")
    settings = ("CLUSTER_ID=test", "NODE=n1", "MEMBERS=n1=127.0.0.1:7100")
    started_s = time.time()
    try:
        engine.run(
            *("docker", "run", "--detach", "--name", name),
            *("--health-interval", "1s", "--health-retries", "1"),
            *(word for each in settings for word in ("--env", f"FLOTILLA_{each}")),
            image,
        )
        engine.await_event(name, "health_status: healthy", started_s)
        yield name
    finally:
        engine.run("docker", "rm", "--force", "--volumes", name)


def test_node_runs_as_a_number_that_is_not_root(image: str, node: str) -> None:
    user, _, group = engine.inspect(node)["Config"]["User"].partition(":")
    assert user.isdigit(), user
    assert group.isdigit(), group
    owners = engine.run("docker", "exec", node, "stat", "-c", "%u:%g", "/proc/1")
    assert owners == f"{user}:{group}"
    assert user != "0"


def test_node_owns_its_data_directory_and_not_its_code(node: str) -> None:
    def owner_and_mode(path: str) -> str:
        return engine.run("docker", "exec", node, "stat", "-c", "%u %a", path)

    assert owner_and_mode("/var/lib/flotilla") == "10001 700"
    assert owner_and_mode("/opt/flotilla/bin/flotilla-node") == "0 755"
    assert engine.run("docker", "exec", node, "ls", "/var/lib/flotilla")


def test_health_turns_bad_when_node_no_longer_answers(node: str) -> None:
    paused_s = time.time()
    engine.run("docker", "kill", "--signal", "STOP", node)
    engine.await_event(node, "health_status: unhealthy", paused_s)


def test_the_command_line_works_in_the_container_as_it_is(node: str) -> None:
    def flotilla(*argv: str) -> str:
        return engine.run("docker", "exec", node, "flotilla", *argv)

    assert flotilla("topics", "--all").split() == [
        "topic",
        "last_id",
        "subscribers",
        "backlog_bytes",
        "delayed",
    ]
    assert flotilla("sub", "t").startswith("subscribed")
    assert flotilla("put", "t", "hello") == "1"
    assert flotilla("topics").split()[4:] == ["t", "1", "0", "1"]
    assert flotilla("get", "t") == "hello"
    assert "leader" in flotilla("status")


def test_sigterm_ends_node_with_exit_code_0_within_the_grace_period(node: str) -> None:
    begun_s = time.monotonic()
    engine.run("docker", "stop", "--time", str(int(STOP_GRACE_S)), node)
    took_s = time.monotonic() - begun_s
    state = engine.inspect(node)["State"]
    assert (state["Status"], state["ExitCode"]) == ("exited", 0), (state, engine.logs(node))
    assert took_s < STOP_GRACE_S, took_s


def test_node_without_settings_ends_and_names_the_missing_ones(image: str) -> None:
    name = engine.unique("flotilla-test-unset")
    try:
        engine.run("docker", "create", "--name", name, image)
        engine.run("docker", "start", name)
        assert engine.run("docker", "wait", name) != "0"
        assert "FLOTILLA_CLUSTER_ID" in engine.logs(name)
    finally:
        engine.run("docker", "rm", "--force", "--volumes", name)
