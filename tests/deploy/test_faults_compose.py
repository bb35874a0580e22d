"""Every fault that containers know: it shows when it is injected, and is gone when healed."""

from __future__ import annotations

import json
import os
import random
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from chaos.faults import FAULTS, support
from chaos.run import truth
from chaos.targets import CLIENTS, DegradesLinks, Links, await_leader, compose, leftovers
from chaos.targets.compose import ComposeTarget
from flotilla_client import Client
from tests.deploy import engine
from tests.deploy.test_compose import free_ports

pytestmark = [pytest.mark.docker, pytest.mark.timeout(engine.BUILD_TIMEOUT_S + 240)]

SEED = 3
WAIT_S = 30.0
IS_ROOT = os.geteuid() == 0
root = pytest.mark.root


class ComposeStage:
    """The containers, and a client of them."""

    def __init__(self, target: ComposeTarget, client: Client) -> None:
        self.target, self.client = target, client
        self.acknowledged: list[int] = []

    def put(self) -> None:
        self.acknowledged.append(self.client.publish("t", b"x").id)

    def status(self, node: str) -> dict[str, Any]:
        return self.target._statuses().get(node, {})

    def states(self) -> dict[str, str]:
        return self.target._inspect(self.target.nodes, "{{.State.Status}}")

    def await_(self, condition: Callable[[], object]) -> None:
        deadline_s = time.monotonic() + WAIT_S
        while not condition():
            assert time.monotonic() < deadline_s, self.states()
            time.sleep(0.05)

    @contextmanager
    def fault(self, name: str) -> Iterator[list[str]]:
        """Inject a fault; heal it, and see that the cluster is as it was."""
        rng = random.Random(SEED)
        hit = FAULTS[name].choose(self.target, rng)
        try:
            FAULTS[name].inject(self.target, hit, rng)
            yield hit
        finally:
            FAULTS[name].heal(self.target, hit)
        self.target.await_whole()
        for node in self.target.nodes:
            self.target._recovery.await_back(node)
        assert self.target.ended() == []  # whoever ended, the fault explains it
        self.put()


@pytest.fixture(scope="module")
def stage(image: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ComposeStage]:
    directory = tmp_path_factory.mktemp("compose")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(leftovers, "run_locks_directory", lambda: directory / "claims")
        patch.setattr(compose, "PROJECT", engine.unique("flotilla-test").replace("-", ""))
        patch.setenv("FLOTILLA_IMAGE", image)
        for number, port in enumerate(free_ports(3), 1):
            patch.setenv(f"FLOTILLA_PORT_{number}", str(port))
        target = ComposeTarget(3)
        faults = [name for name in FAULTS if not support.missing([name], "compose")]
        support.prepare(target, [name for name in faults if IS_ROOT or not links(name)])
        try:
            target.up()
            await_leader(target, WAIT_S)
            with Client(
                list(target.endpoints().values()), state_dir=directory / "client"
            ) as client:
                client.subscribe("t")
                yield ComposeStage(target, client)
        finally:
            target.down()
        of_project = f"label=com.docker.compose.project={compose.PROJECT}"
        for kind in (["container", "ls", "--all"], ["volume", "ls"], ["network", "ls"]):
            assert engine.run("docker", *kind, "--quiet", "--filter", of_project) == ""


def links(name: str) -> bool:
    return not {Links, DegradesLinks}.isdisjoint(FAULTS[name].needs)


@pytest.mark.parametrize("name", ["kill-leader", "kill-minority"])
def test_killed_containers_stay_down_until_they_are_started(stage: ComposeStage, name: str) -> None:
    with stage.fault(name) as hit:
        assert {node for node, state in stage.states().items() if state == "exited"} == set(hit)
        stage.put()
    assert set(stage.states().values()) == {"running"}


def crash(stage: ComposeStage, node: str) -> list[str]:
    """End a node's process from inside of its container; return what is told of it."""
    container = stage.target._containers[node]
    subprocess.run(["docker", "exec", container, "sh", "-c", "kill -9 -1"], timeout=WAIT_S)
    told: list[str] = []
    stage.await_(lambda: told.extend(stage.target.ended()) or told)
    stage.await_(lambda: node in stage.target._statuses())
    stage.target._recovery.await_back(node)
    return told


def test_a_container_that_docker_has_started_again_by_itself_is_told(stage: ComposeStage) -> None:
    node = stage.target.nodes[0]
    for _ in range(2):
        [line] = crash(stage, node)
        assert line.startswith(f"{node} ended by itself (")
    stage.target.kill([node])
    stage.target.start([node])  # docker counts from 0 again
    stage.target._recovery.await_back(node)
    assert stage.target.ended() == []
    assert len(crash(stage, node)) == 1


def test_a_paused_leader_is_replaced_and_goes_on_as_a_follower(stage: ComposeStage) -> None:
    with stage.fault("pause-leader") as [old]:
        assert stage.states()[old] == "paused"
        stage.put()
    assert set(stage.states().values()) == {"running"}


def test_a_leader_that_stops_in_order_hands_over(stage: ComposeStage) -> None:
    with stage.fault("transfer-leadership") as [old]:
        assert stage.states()[old] == "exited"
        assert await_leader(stage.target, WAIT_S) != old
        code = stage.target._inspect([old], "{{.State.ExitCode}}")[old]
        assert code in ("0", "143")  # docker-init passes SIGTERM's on


def test_a_rolling_restart_starts_every_container_anew(stage: ComposeStage) -> None:
    form = "{{.State.StartedAt}}"
    before = stage.target._inspect(stage.target.nodes, form)
    with stage.fault("rolling-restart"):
        after = stage.target._inspect(stage.target.nodes, form)
    assert all(before[node] != after[node] for node in before)


def test_a_wiped_container_comes_back_with_the_others_state(stage: ComposeStage) -> None:
    with stage.fault("wipe") as [node]:
        listing = ("run", "--rm", "--volumes-from", stage.target._containers[node])
        image = stage.target._inspect([node], "{{.Config.Image}}")[node]
        assert engine.run("docker", *listing, "--entrypoint", "ls", image, compose.DATA) == ""
        stage.put()
    assert "readmitted" in engine.logs(stage.target._containers[node])


@root
def test_the_others_elect_a_leader_while_the_old_one_is_cut_off(stage: ComposeStage) -> None:
    with stage.fault("isolate-leader") as [old]:
        stage.await_(lambda: stage.target.leader() not in (None, old))
        stage.put()
        # An election takes less than `raft.fallback_ms`, after which a leader without a majority
        # steps down: until then it believes in itself, and its barrier answers nobody.
        stage.await_(lambda: not stage.status(old)["serving"])


def test_a_container_without_a_network_is_replaced_and_found_again_under_its_name(
    stage: ComposeStage,
) -> None:
    with stage.fault("unplug-leader") as [old]:
        assert stage.target._inspect([old], "{{len .NetworkSettings.Networks}}")[old] == "0"
        stage.await_(lambda: stage.target.leader() not in (None, old))
        stage.put()


@root
@pytest.mark.parametrize("name", ["clients-from-leader", "clogged-links"])
def test_who_is_out_of_reach_answers_again_when_that_is_healed(
    stage: ComposeStage, name: str
) -> None:
    with stage.fault(name) as [old]:
        stage.await_(lambda: not stage.status(old))
        stage.put()


@root
def test_a_cut_outlives_the_restart_of_a_container(stage: ComposeStage) -> None:
    one, other, _ = stage.target.nodes
    link = [(one, other), (CLIENTS, other)]
    try:
        stage.target.cut(link)
        assert len(drops(stage, other)) == 2
        stage.target.kill([other])
        stage.put()
        stage.target.start([other])
        assert len(drops(stage, other)) == 2
    finally:
        stage.target.join(link)
    assert drops(stage, other) == []
    stage.await_(lambda: stage.status(other))


def drops(stage: ComposeStage, node: str) -> list[str]:
    enter = stage.target._enter(node)
    assert enter is not None
    shown = subprocess.run(
        [*enter, "iptables", "--list-rules"], capture_output=True, text=True, check=True
    )
    return [line for line in shown.stdout.splitlines() if "DROP" in line]


def test_nothing_is_lost_doubled_or_reordered_by_any_of_this(stage: ComposeStage) -> None:
    ids = [message.id for message in stage.client.messages("t", idle=0.5)]
    assert ids == list(range(1, len(ids) + 1))
    assert set(stage.acknowledged) <= set(ids)


def test_what_stopped_containers_leave_can_be_read_and_names_a_leader_a_term(
    stage: ComposeStage, tmp_path: Path
) -> None:
    def applied() -> set[int | None]:
        return {stage.status(node).get("applied_index") for node in stage.target.nodes}

    # One that was cut off until now may be a few entries behind, and by right stop there.
    stage.await_(lambda: len(applied()) == 1 and None not in applied())
    leader = stage.target.leader()
    stage.target.stop(sorted(stage.target.nodes, key=lambda node: (node == leader, node)))
    truth.collect("r", stage.target.remains(tmp_path / "copies"), tmp_path)
    files = [tmp_path / "truth" / f"{node}.jsonl" for node in stage.target.nodes]
    rows = [json.loads(line) for file in files for line in file.read_bytes().splitlines()]
    led = Counter(row["term"] for row in rows if row["kind"] == "leadership")
    assert len(led) > 1, "the leader was killed before"
    assert set(led.values()) == {1}
    assert len({row["digest"] for row in rows if row["kind"] == "state"}) == 1
