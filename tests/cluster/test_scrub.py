"""A byte of an old row and of a sealed segment is changed under a running node: it is reported."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from cluster.local.local import LocalCluster
from flotilla_client import Client
from tests.conftest import ANSWER_MS, PATIENT, ClusterFactory
from tests.waiting import until

COUNT = 600
NEEDLE = b"needle in row 17 of a backlog that nobody has read"
SCRUBBED = {
    **PATIENT,
    "journal.segment_bytes": 64 * 1024,
    "journal.keep_bytes": 512 * 1024,
    "scrub.bytes_per_s_max": 64 * 1024 * 1024,
    "scrub.period_s": 1,
}


def publications() -> list[bytes]:
    made = [b"%d " % number + bytes(1500) for number in range(COUNT)]
    made[17] = NEEDLE
    return made


def flip(path: Path, offset: int) -> None:
    with path.open("r+b") as file:
        byte = os.pread(file.fileno(), 1, offset)
        os.pwrite(file.fileno(), bytes([byte[0] ^ 0x20]), offset)


def lines(cluster: LocalCluster, name: str, event: str) -> list[dict[str, Any]]:
    """Return what a node's log says of an event."""
    told = [json.loads(line) for line in cluster.log_file(name).read_text().splitlines() if line]
    return [line for line in told if line.get("event") == event]


def passes(cluster: LocalCluster, name: str) -> int:
    status = cluster.status(name)
    return 0 if status is None else int(status["scrub"]["passes"])


def wait_for_a_pass(cluster: LocalCluster, name: str) -> None:
    """Wait for the end of a pass that has not begun yet."""
    before = passes(cluster, name)
    until(lambda: passes(cluster, name) >= before + 2, f"no pass of {name}")


@pytest.mark.slow
@pytest.mark.parametrize("of", ["follower", "leader"])
def test_damage_is_reported_within_a_pass_and_the_law_holds_when_the_node_is_wiped(
    local_cluster: ClusterFactory, tmp_path: Path, of: str
) -> None:
    cluster = local_cluster(3, settings=SCRUBBED)
    endpoints = list(cluster.endpoints().values())
    leader = cluster.wait_for_leader()
    followers = sorted(cluster.endpoints().keys() - {leader})
    name = leader if of == "leader" else followers[0]
    others = sorted(cluster.endpoints().keys() - {name})
    with Client(endpoints, state_dir=tmp_path / "reader") as reader:
        reader.subscribe("t")
        with Client(endpoints, state_dir=tmp_path / "writer") as writer:
            for publication in publications():
                writer.publish("t", publication)
        directory = Path(cluster.node(name).data_dir)
        database, journal = directory / "store" / "store.db", directory / "journal"
        until(lambda: NEEDLE in database.read_bytes(), "no checkpoint with the row")
        for each in cluster.endpoints():
            wait_for_a_pass(cluster, each)
            assert not lines(cluster, each, "damage_found"), "a false alarm"

        at = database.read_bytes().index(NEEDLE)
        flip(database, at + 5)
        segment = sorted(journal.glob("*.log"))[-2]  # those before it may be dropped
        middle = segment.stat().st_size // 2
        flip(segment, middle)
        wait_for_a_pass(cluster, name)

        found = {line["file"]: line for line in lines(cluster, name, "damage_found")}
        assert found.keys() == {"store/store.db", f"journal/{segment.name}"}
        assert found["store/store.db"]["table"] == "publications"
        assert 0 < found[f"journal/{segment.name}"]["offset"] <= middle
        assert all(line["level"] == "error" for line in found.values())
        status = cluster.status(name)
        assert status is not None
        assert [each["table"] for each in status["damage"] if "table" in each] == ["publications"]
        for each in others:
            wait_for_a_pass(cluster, each)
            other = cluster.status(each)
            assert other is not None
            assert other["damage"] == []
        assert len(cluster.pids()) == 3, cluster.tails()
        with Client(endpoints, state_dir=tmp_path / "writer") as writer:
            writer.publish("t", b"after the damage")

        until(
            lambda: not segment.exists(),
            "no end of the damaged segment, which the store stands for",
        )

        cluster.kill(name)
        cluster.wipe(name)
        cluster.start(name)
        until(
            lambda: (cluster.status(name) or {}).get("role") in ("follower", "leader"), "no member"
        )
        wait_for_a_pass(cluster, name)
        assert cluster.statuses(ANSWER_MS)[name]["damage"] == []
        expected = [*publications(), b"after the damage"]
        read = [each.publication for each in reader.messages("t", idle=1)]
        assert read == expected
