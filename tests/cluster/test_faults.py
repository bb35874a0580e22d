"""Every fault that local processes know: it shows when it is injected, and is gone when healed.

One cluster for all of them: each leaves it as it found it, or the next test says so.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from chaos.faults import FAULTS, support
from chaos.targets import (
    LosesPower,
    Syncs,
    TargetError,
    await_leader,
    disks,
    leftovers,
    local,
)
from chaos.targets.local import LocalTarget
from chaos.targets.shim import undo
from cluster.local.local import LocalCluster
from flotilla_client import Client, FlotillaError
from tests.conftest import ANSWER_MS

pytestmark = pytest.mark.needs("cc")

SEED = 11
WAIT_S = 20.0
BACKLOG_BYTES = 4_000  # of each publication: logs of 64 KiB are soon full


class FaultyCluster:
    """A cluster with everything on, and a client of it."""

    def __init__(self, directory: Path) -> None:
        self.target = LocalTarget(directory / "cluster", 3)
        support.prepare(self.target, support.FAULTS.keys() - set(support.missing(FAULTS, "local")))
        self.target.up()
        self.client = Client(
            list(self.target.endpoints().values()),
            state_dir=directory / "client",
            rng=random.Random(SEED),
        )
        self.client.subscribe("t")
        self.acknowledged: list[int] = []
        self.delivered: list[int] = []
        self._lock = threading.Lock()  # `load` has a thread of its own

    @property
    def cluster(self) -> LocalCluster:
        return self.target._cluster

    def put(self) -> float:
        """Publish; return how long it took, in seconds."""
        with self._lock:
            began_s = time.monotonic()
            self.acknowledged.append(self.client.publish("t", b"x" * BACKLOG_BYTES).id)
            return time.monotonic() - began_s

    def log(self, node: str) -> str:
        return self.cluster.log_file(node).read_text()

    def status(self, node: str) -> dict[str, Any]:
        return self.cluster.statuses().get(node, {})

    def await_(self, condition: Callable[[], object], what: str) -> None:
        deadline_s = time.monotonic() + WAIT_S
        while not condition():
            assert time.monotonic() < deadline_s, f"in vain: {what}\n{self.cluster.tails()}"
            time.sleep(0.02)

    def await_health(self) -> None:
        self.target.await_whole()
        for node in self.target.nodes:
            self.target._recovery.await_back(node)
        assert self.target.ended() == []  # whoever ended, a fault explains it

    @contextmanager
    def fault(self, name: str, seed: int = SEED) -> Iterator[list[str]]:
        """Inject a fault; heal it, and see that the cluster is as it was."""
        rng = random.Random(seed)
        hit = FAULTS[name].choose(self.target, rng)
        try:
            FAULTS[name].inject(self.target, hit, rng)
            yield hit
        finally:
            FAULTS[name].heal(self.target, hit)
        self.await_health()
        assert self.cluster.pids().keys() == set(self.target.nodes)
        self.put()

    @contextmanager
    def load(self) -> Iterator[None]:
        """Publish all the time, through every outage."""
        over = threading.Event()

        def publish() -> None:
            while not over.is_set():
                try:
                    self.put()
                except FlotillaError as error:
                    print("a put ended with", repr(error))

        thread = threading.Thread(target=publish)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join(WAIT_S)

    def check_nothing_lost(self) -> None:
        """Every acknowledged publication is there, once, in order, under its id."""
        self.delivered += [message.id for message in self.client.messages("t", idle=0.1)]
        assert self.delivered == list(range(1, len(self.delivered) + 1))
        assert set(self.acknowledged) <= set(self.delivered)


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultyCluster]:
    directory = tmp_path_factory.mktemp("faults")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(leftovers, "run_locks_directory", lambda: directory / "claims")
        made = FaultyCluster(directory)
        try:
            yield made
        finally:
            made.client.close()
            made.target.down()
            assert list((directory / "claims").iterdir()) == []


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


@pytest.mark.parametrize(
    "name",
    [
        "kill-leader",
        pytest.param("kill-follower", marks=pytest.mark.slow),
        pytest.param("kill-minority", marks=pytest.mark.slow),
        "kill-majority",
        "kill-all",
    ],
)
def test_killed_nodes_are_gone_and_come_back(stage: FaultyCluster, name: str) -> None:
    stage.put()
    before = stage.cluster.pids()
    with stage.fault(name) as hit:
        assert stage.cluster.pids() == {n: before[n] for n in before if n not in hit}
    assert all(stage.cluster.pids()[node] != before[node] for node in hit)


def test_restarted_nodes_run_while_the_fault_lasts(stage: FaultyCluster) -> None:
    stage.put()
    before = stage.cluster.pids()
    with stage.fault("restart-all"):
        during = stage.cluster.pids()
        assert all(during[node] != before[node] for node in before)
    assert stage.cluster.pids() == during
    assert stage.target.ended() == []


def test_a_node_that_ends_without_a_fault_is_told(stage: FaultyCluster) -> None:
    node = stage.target.nodes[0]
    os.kill(stage.cluster.pids()[node], signal.SIGKILL)
    stage.await_(lambda: node not in stage.cluster.pids(), "the end of a node")
    stage.target.start([node])
    assert stage.target.ended() == [f"{node} ended by itself (SIGKILL)"]
    stage.await_health()


@pytest.mark.parametrize("name", ["pause-leader", "pause-follower"])
def test_paused_nodes_stand_still_and_go_on_as_the_same_process(
    stage: FaultyCluster, name: str
) -> None:
    before = stage.cluster.pids()
    with stage.fault(name) as [node]:
        stage.await_(lambda: state_of(before[node]) == "T", "a process that stands still")
        stage.put()  # the others go on
    assert state_of(before[node]) != "T"
    assert stage.cluster.pids() == before


@pytest.mark.slow
def test_a_rolling_restart_ends_every_node_in_order_while_clients_publish(
    stage: FaultyCluster,
) -> None:
    before = stage.cluster.pids()
    stops = {node: stage.log(node).count('"stopped"') for node in before}
    with stage.load(), stage.fault("rolling-restart"):
        pass
    assert all(stage.cluster.pids()[node] != before[node] for node in before)
    assert {node: stage.log(node).count('"stopped"') - stops[node] for node in before} == {
        node: 1 for node in before
    }


def test_leadership_goes_to_another_node_when_the_leader_stops(stage: FaultyCluster) -> None:
    with stage.fault("transfer-leadership") as [old]:
        assert await_leader(stage.target, WAIT_S) != old
        assert '"stopped"' in stage.log(old).splitlines()[-1]


@pytest.mark.slow
def test_after_power_losses_every_acknowledged_publication_is_still_there(
    stage: FaultyCluster,
) -> None:
    for seed in range(SEED, SEED + 3):
        with stage.load(), stage.fault("power-loss", seed) as hit:
            assert not stage.cluster.pids().keys() & set(hit)
            assert not any((stage.target._shims[node]._undo).exists() for node in hit)
    stage.check_nothing_lost()


# A node that never syncs its journal: what everybody would take for a very fast broker.
ACKNOWLEDGED = b"what is acknowledged is on the disks of a majority"
UNSYNCED = """
import os
os.fdatasync = lambda descriptor: None
from cluster.node.node import main
main()
"""


@pytest.mark.slow
@pytest.mark.parametrize("syncs", [True, False])
def test_all_disks_lose_what_was_acknowledged_without_a_sync_and_only_then(
    tmp_path: Path, stage: FaultyCluster, syncs: bool
) -> None:
    target = LocalTarget(tmp_path / "cluster", 3)
    target.equip([LosesPower])
    command = ("-m", "cluster") if syncs else ("-c", UNSYNCED)
    target._cluster = LocalCluster(tmp_path / "cluster", (sys.executable, *command), target._prefix)
    try:
        target.up()
        endpoints = list(target.endpoints().values())
        with Client(endpoints, state_dir=tmp_path / "client") as client:
            client.subscribe("t")
            client.publish("t", ACKNOWLEDGED)
        target.kill(list(target.nodes))
        assert len(holders(target)) >= 2
        for each in target._shims.values():
            each.lose_power(undo.LOST)
        assert len(holders(target)) >= 2 if syncs else holders(target) == []
    finally:
        target.down()


def holders(target: LocalTarget) -> list[str]:
    """Return the nodes on whose disks the acknowledged publication is."""
    return [
        node
        for node in target.nodes
        if any(ACKNOWLEDGED in file.read_bytes() for file in target._data(node).rglob("*.log"))
    ]


def test_power_loss_takes_back_what_the_store_had_not_synced(stage: FaultyCluster) -> None:
    node = next(node for node in stage.target.nodes if node != stage.target.leader())
    stage.put()
    stage.target.kill([node])
    data = Path(stage.cluster.node(node).data_dir)
    files = {path: path.read_bytes() for path in data.rglob("*") if path.is_file()}
    lost = stage.target._shims[node].lose_power(undo.LOST)
    assert lost.writes > 0
    assert {path: path.read_bytes() for path in data.rglob("*") if path.is_file()} != files
    stage.target.start([node])
    stage.await_health()


@pytest.mark.parametrize("name", ["bit-flip", "truncate"])
def test_a_damaged_disk_is_refused_and_brought_up_from_the_others(
    stage: FaultyCluster, name: str
) -> None:
    with stage.load(), stage.fault(name) as [node]:
        assert node not in stage.cluster.pids()
        refusals = stage.log(node).count('"unusable_data"')
        identity = (stage.target._data(node) / "identity.json").read_text()
    assert stage.log(node).count('"unusable_data"') == refusals + 1
    assert (stage.target._data(node) / "identity.json").read_text() != identity


def test_damage_that_a_node_does_not_notice_is_a_finding(stage: FaultyCluster) -> None:
    node = stage.target.nodes[0]
    stage.target._recovery.lose([node])  # whole, in truth
    with pytest.raises(TargetError, match="goes on with a damaged disk"):
        stage.target.rebuild([node])
    stage.await_health()


def test_never_more_than_a_minority_is_without_its_disk(stage: FaultyCluster) -> None:
    with pytest.raises(TargetError, match="nothing is promised then"):
        stage.target.wipe(list(stage.target.nodes[:2]))
    assert stage.cluster.pids().keys() == set(stage.target.nodes)


@pytest.mark.slow
def test_a_node_on_a_full_disk_ends_and_comes_back_when_there_is_room(stage: FaultyCluster) -> None:
    [node] = FAULTS["kill-leader"].choose(stage.target, random.Random(SEED))
    try:
        stage.target.fill([node], 0)
        with stage.load():
            stage.await_(lambda: node not in stage.cluster.pids(), "the end of a full node")
        assert "No space left on device" in stage.log(node)
    finally:
        FAULTS["disk-full"].heal(stage.target, [node])
    stage.await_health()
    stage.put()


def test_a_node_with_little_room_says_so_and_takes_publications_again(stage: FaultyCluster) -> None:
    [node] = FAULTS["kill-leader"].choose(stage.target, random.Random(SEED))
    try:
        stage.target.fill([node], 32 * 2**20)
        stage.await_(lambda: stage.status(node)["disk_low"], "a node that is short of room")
    finally:
        FAULTS["disk-full"].heal(stage.target, [node])
    stage.await_(lambda: not stage.status(node)["disk_low"], "room")
    stage.put()


def test_acknowledgments_wait_for_a_slow_fsync(stage: FaultyCluster) -> None:
    stage.put()
    try:
        stage.target.slow_syncs(list(stage.target.nodes), 250)
        assert stage.put() >= 0.25
    finally:
        FAULTS["slow-fsync"].heal(stage.target, list(stage.target.nodes))
    stage.await_(lambda: stage.put() < 0.25, "a fast disk")


def test_a_node_whose_fsync_fails_ends_at_once_and_comes_back(stage: FaultyCluster) -> None:
    with stage.load(), stage.fault("fsync-error") as [node]:
        stage.await_(lambda: node not in stage.cluster.pids(), "the end of a node")
        assert "Input/output error" in stage.log(node)


# A node that takes no notice of an fsync that failed, as many programs do.
DEAF = """
import os
real = os.fdatasync
def deaf(descriptor):
    try:
        real(descriptor)
    except OSError:
        pass
os.fdatasync = deaf
from cluster.node.node import main
main()
"""


def test_a_node_that_goes_on_after_a_failed_fsync_is_a_finding(
    tmp_path: Path, stage: FaultyCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "DEATH_S_MAX", 2.0)
    target = LocalTarget(tmp_path / "cluster", 1, (sys.executable, "-c", DEAF))
    target.equip([Syncs])
    try:
        target.up()
        with Client(list(target.endpoints().values()), state_dir=tmp_path / "client") as client:
            client.subscribe("t")
            target.fail_syncs(["n1"])
            client.publish("t", b"acknowledged, and on no disk")
        with pytest.raises(TargetError, match=r"\['n1'\] went on when an fsync of the journal"):
            FAULTS["fsync-error"].heal(target, ["n1"])
    finally:
        target.down()


def test_a_wiped_node_comes_back_as_another_incarnation(stage: FaultyCluster) -> None:
    incarnations = {n: incarnation(stage, n) for n in stage.target.nodes}
    with stage.fault("wipe") as [node]:
        assert not stage.target._data(node).exists()
        stage.put()
    assert incarnation(stage, node) != incarnations[node]


def incarnation(stage: FaultyCluster, node: str) -> str:
    identity = json.loads((stage.target._data(node) / "identity.json").read_text())
    found = identity.get("incarnation") or identity["identity"]["incarnation"]
    assert isinstance(found, str)
    return found


def test_a_wiped_node_is_readmitted_although_another_one_died(stage: FaultyCluster) -> None:
    before = stage.cluster.pids()
    with stage.fault("readmission") as [wiped, killed]:
        assert killed not in stage.cluster.pids()
        assert stage.cluster.pids()[wiped] != before[wiped]


def test_a_node_far_behind_takes_a_copy(stage: FaultyCluster) -> None:
    with stage.load(), stage.fault("far-behind") as [node]:
        copies = stage.log(node).count('"snapshot_installed"')
        have = disks.last_index(stage.target._data(node))
        firsts = [body["first_index"] for body in stage.cluster.statuses(ANSWER_MS).values()]
        assert min(firsts) > have + 1
    # One copy or more: where the machine is slow the log may be cut again while a copy travels.
    assert stage.log(node).count('"snapshot_installed"') > copies


def test_a_wall_clock_that_jumps_shows_in_the_log_and_nowhere_else(stage: FaultyCluster) -> None:
    one, other, _ = stage.target.nodes
    try:
        stage.target.step_clocks([one], 86_400)
        stage.target.kill([other])  # which `one` writes down
        stage.await_(lambda: ahead_s(stage, one) > 80_000, "a line from tomorrow")
        stage.put()
    finally:
        FAULTS["clock-step"].heal(stage.target, [one])
    stage.target.start([other])
    stage.await_(lambda: abs(ahead_s(stage, one)) < 3_600, "a line from today")
    stage.await_health()


def ahead_s(stage: FaultyCluster, node: str) -> float:
    line = json.loads(stage.log(node).splitlines()[-1])
    return datetime.fromisoformat(line["timestamp"]).timestamp() - time.time()


def test_after_all_of_this_nothing_is_lost_doubled_or_reordered(stage: FaultyCluster) -> None:
    stage.put()
    stage.check_nothing_lost()
