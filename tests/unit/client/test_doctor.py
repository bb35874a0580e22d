"""The doctor: each finding from numbers, and all of it on a cluster of which a node is dead."""

from __future__ import annotations

import errno
from dataclasses import fields
from pathlib import Path
from typing import Any

import orjson
import pytest
from click.testing import CliRunner

from cluster.local.cli import commands
from cluster.settings.config import RaftSettings
from flotilla_client import cli, doctor
from flotilla_client.doctor import Finding
from tests.conftest import ClusterFactory

HERE = Path("/data")
FAST = [0.1] * 64


@pytest.mark.parametrize(
    ("finding", "word"),
    [
        (doctor.judge_disk(HERE, [1.0] * 60 + [150.0] * 4), "deposed"),
        (doctor.judge_disk(HERE, [25.0] * 64), "50 ms"),
        (doctor.judge_space(HERE, 10**8, 10**12), "disk_full"),
        (doctor.judge_space(HERE, 5 * 2**30, 100 * 2**30), "disk_full"),
        (doctor.judge_descriptors(1024, 1024), "512 connections"),
        (doctor.judge_round_trip("network", [40.0] * 20), "dead leader"),
        (doctor.judge_answers("n1:7001", [40.0] * 20), "as long"),
        (doctor.suggestion(20.0, 30.0), "depose"),
    ],
)
def test_what_is_wrong_says_what_follows_and_what_to_do(finding: Finding, word: str) -> None:
    assert not finding.is_well
    assert word in finding.follows
    assert finding.do
    assert [line.split()[0] for line in finding.lines()] == ["WRONG", "so", "do"]


@pytest.mark.parametrize(
    "finding",
    [
        doctor.judge_disk(HERE, FAST),
        doctor.judge_space(HERE, 50 * 2**30, 100 * 2**30),
        doctor.judge_descriptors(1024, 65_536),
        doctor.judge_clock(doctor.UNSYNCHRONISED),
        doctor.judge_clock(0),
        doctor.judge_round_trip("network", FAST),
        doctor.judge_answers("n1:7001", [*FAST, 90.0]),
        doctor.suggestion(0.1, 5.0),
    ],
)
def test_what_is_well_is_one_line(finding: Finding) -> None:
    assert finding.is_well
    assert [line.split()[0] for line in finding.lines()] == ["ok"]


@pytest.mark.parametrize(("round_trip_ms", "fsync_ms"), [(0, 0), (1, 29), (40, 1), (100, 700)])
def test_suggested_time_outs_are_ones_that_a_node_takes(
    round_trip_ms: float, fsync_ms: float
) -> None:
    settings = doctor.suggested_elections(round_trip_ms, fsync_ms)
    raft = RaftSettings(**{key.removeprefix("raft."): value for key, value in settings.items()})

    assert raft.election_min_ms >= doctor.MARGIN * (round_trip_ms + fsync_ms)
    assert raft.election_min_ms > 3 * raft.heartbeat_ms
    assert raft.election_max_ms > raft.election_min_ms
    assert raft.fallback_ms > raft.heartbeat_ms
    assert raft.takeover_ms >= 5 * raft.election_max_ms


@pytest.mark.parametrize("fsync_ms", [1_900.0, 4_000.0, 20_000.0])
def test_no_time_out_is_suggested_that_a_node_refuses(fsync_ms: float) -> None:
    settings = doctor.suggested_elections(1.0, fsync_ms)
    for each in fields(RaftSettings):
        value = settings[f"raft.{each.name}"]
        assert each.metadata["low"] <= value <= each.metadata["high"], each.name
    assert settings["raft.election_min_ms"] > 3 * settings["raft.heartbeat_ms"]
    assert settings["raft.election_max_ms"] > settings["raft.election_min_ms"]


def test_on_a_good_machine_the_suggestion_is_the_default() -> None:
    settings = doctor.suggested_elections(0.2, 2.0)
    assert settings == {f"raft.{key}": value for key, value in vars(RaftSettings()).items()}


def test_a_measurement_leaves_nothing_behind(tmp_path: Path) -> None:
    assert len(doctor.fsync_times_ms(tmp_path, 5)) == 5
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_is_not_there_yet_is_measured_where_it_would_be(tmp_path: Path) -> None:
    findings = doctor.examine_machine(tmp_path / "not" / "there")
    assert findings[0].subject == f"fsync in {tmp_path}"


def status(node: str, **changes: Any) -> dict[str, Any]:
    others = {"n1", "n2", "n3"} - {node}
    members = {name: {"connected": True, "silent_ms": 0} for name in others}
    return {
        "node": node,
        "term": 4,
        "leader": "n1",
        "versions": {"flotilla": "0.4.0"},
        "members": members,
        **changes,
    }


def wrong(**changes: Any) -> list[str]:
    rows = {name: status(name) for name in ("n1", "n2", "n3")}
    rows["n2"] = status("n2", **changes)
    return [finding.subject for finding in doctor.judge_statuses(rows) if not finding.is_well]


def test_a_machine_without_a_loopback_device_is_told_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(*about: object) -> None:
        raise OSError(errno.ENETUNREACH, "Network is unreachable")

    monkeypatch.setattr(doctor.socket, "create_connection", none)
    found = {each.subject: each for each in doctor.examine_machine(tmp_path)}
    assert "unreachable" in found["loopback"].found
    assert not found["loopback"].is_well
    assert "election time-outs" in found


def test_a_cluster_that_is_well_is_well() -> None:
    assert wrong() == []


@pytest.mark.parametrize(
    ("changes", "subject"),
    [
        ({"leader": "n3"}, "leader"),
        ({"versions": {"flotilla": "0.2.0"}}, "versions"),
        ({"members": {"n3": {"connected": False, "silent_ms": 9000}}}, "link from n2 to n3"),
        ({"waiting_for": ["n3: is not connected"]}, "n2 waits"),
        ({"refused_by": {"n1": "another n2 lives"}}, "n2 is refused by n1"),
        ({"settings_differ": {"n1": {"raft.heartbeat_ms": [80, 70]}}}, "settings of n2 and n1"),
        ({"disk_low": True}, "disk of n2"),
        (
            {
                "damage": [{"file": "journal/1.log", "offset": 5, "reason": "bad record"}],
                "scrub": {"damaged": 2},
            },
            "damage on the disk of n2",
        ),
        ({"full_topics": 2}, "full topics"),
        ({"clients_silent": 3}, "silent clients"),
    ],
)
def test_what_a_node_says_is_judged(changes: dict[str, Any], subject: str) -> None:
    assert wrong(**changes) == [subject]


def test_the_commands_name_the_dead_node_and_who_misses_it(
    local_cluster: ClusterFactory, tmp_path: Path, capsysbinary: Any
) -> None:
    cluster = local_cluster(3)
    cluster.kill("n3")
    endpoints = ",".join(each.removeprefix("tcp://") for each in cluster.endpoints().values())
    capsysbinary.readouterr()

    code = cli.main(["-e", endpoints, "--state", str(tmp_path / "s"), "doctor", "--json"])

    rows = [orjson.loads(line) for line in capsysbinary.readouterr().out.splitlines()]
    subjects = {row["subject"] for row in rows if not row["well"]}
    dead = cluster.endpoints()["n3"].removeprefix("tcp://")
    assert code == 1
    assert any(dead in each for each in subjects), subjects
    assert {"link from n1 to n3", "link from n2 to n3"} <= subjects

    done = CliRunner().invoke(commands, ["doctor", "--dir", str(cluster.directory)])
    assert done.exit_code == 1
    assert "link from n1 to n3" in done.output
    assert "it does not run" in done.output
    assert "election time-outs" in done.output
