"""Clusters that are upgraded node by node, under load: from version 0.1, and to one to come."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import pytest
from click.testing import CliRunner

from cluster.local import cli as local_cli
from cluster.local.errors import LocalError
from cluster.local.local import LocalCluster
from cluster.node.node import EXIT_DATA, EXIT_LEVEL
from cluster.wire.levels import BUILD
from flotilla_client import Client, FlotillaError
from tests.conftest import ANSWER_MS

ROOT: Final = Path(__file__).resolve().parents[2]
COMMIT_OF_0_1: Final = "1c9d64969cde0df4281ad7a1346059d1beda6f18"
Program = Sequence[str]  # what a node's command line begins with
THIS: Final[Program] = ()
NEWER: Final[Program] = (sys.executable, str(Path(__file__).with_name("newer_node.py")))
NEWER_LEVEL: Final = BUILD.level_max + 1
NEWER_ENTRY: Final = b"\0" + bytes((NEWER_LEVEL,)) + b"Z"  # as newer_node.py writes it
PATIENCE_S: Final = 30
SEED: Final = 14


@pytest.fixture
def version_0_1(tmp_path: Path) -> Program:
    """Return how a node of version 0.1 is started: its own code, out of the history."""
    archive, tree = tmp_path / "0.1.tar", tmp_path / "0.1"
    command = ["git", "-C", str(ROOT), "archive", "--output", str(archive), COMMIT_OF_0_1]
    if subprocess.run([*command, "cluster", "client"], capture_output=True, check=False).returncode:
        pytest.skip(
            f"this clone has no {COMMIT_OF_0_1[:7]}, which is version 0.1: `git fetch --unshallow`"
        )
    with tarfile.open(archive) as files:
        files.extractall(tree, filter="data")
    # It asks for its version under the name that its distribution had.
    installed = tree / "flotilla-0.1.0.dist-info" / "METADATA"
    installed.parent.mkdir()
    installed.write_text("Metadata-Version: 2.1\nName: flotilla\nVersion: 0.1.0\n")
    return "env", f"PYTHONPATH={tree}:{tree}/client", "PYTHONSAFEPATH=1"


class Fleet:
    """A cluster whose nodes run different programs, with a publisher that never rests."""

    def __init__(self, directory: Path, program: Program) -> None:
        self.programs = dict.fromkeys(("n1", "n2", "n3"), program)
        self.cluster = LocalCluster(directory / "cluster", prefix=self.programs.__getitem__)
        self.rng = random.Random(SEED)
        self.acknowledged: list[int] = []
        self._over = threading.Event()
        self._errors: list[Exception] = []
        self.cluster.create(3)
        self.cluster.start_all()
        self.cluster.wait_for_leader()
        self.endpoints = list(self.cluster.endpoints().values())
        self._reader = directory / "reader"
        with Client(self.endpoints, state_dir=self._reader) as reader:
            reader.subscribe("t")
        self._publisher = threading.Thread(target=self._publish, args=(directory / "writer",))
        self._publisher.start()

    def _publish(self, state_dir: Path) -> None:
        with Client(self.endpoints, state_dir=state_dir) as writer:
            number = 0
            while not self._over.wait(0.005):
                try:
                    writer.publish("t", str(number))
                except FlotillaError as error:
                    self._errors.append(error)
                    return
                self.acknowledged.append(number)
                number += 1

    def until(self, happened: Callable[[], object]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not happened():
            assert time.monotonic() < deadline, self.cluster.tails()
            time.sleep(0.05)

    def whole(self) -> bool:
        """Return whether all nodes follow one leader, hear it, and have what is committed."""
        statuses = self.cluster.statuses().values()
        leaders = [body for body in statuses if body["role"] == "leader"]
        if len(statuses) < 3 or len(leaders) != 1:
            return False
        connected = all(member["connected"] for member in leaders[0]["members"].values())
        behind = [leaders[0]["commit_index"] - body.get("applied_index", 0) for body in statuses]
        return connected and max(behind) < 100

    def run(self, name: str, program: Program) -> None:
        """Let a node run another program, after a crash or an orderly stop; await its return."""
        self.replace(name, program)
        self.until(self.whole)

    def replace(self, name: str, program: Program) -> None:
        if name in self.cluster.pids():
            self.cluster.kill(name, self.rng.choice(("KILL", "TERM")))
        self.programs[name] = program
        self.cluster.start(name)

    def ended_with(self, name: str) -> int | None:
        self.until(lambda: name not in self.cluster.pids())
        return self.cluster.exit_codes[name]

    def upgrade(self, level: int | None = None) -> dict[str, Any]:
        with Client(self.endpoints) as client:
            return client.upgrade(level)

    def command(self, name: str) -> str:
        """Return what `flotilla-cluster` prints."""
        arguments = [name, "--dir", str(self.cluster.directory)]
        return CliRunner().invoke(local_cli.commands, arguments, catch_exceptions=False).output

    def refusal(self) -> str:
        with pytest.raises(LocalError) as refused:
            self.cluster.upgrade()
        return str(refused.value)

    def levels(self) -> set[int]:
        return {body["level"] for body in self.cluster.statuses(ANSWER_MS).values()}

    def events(self, name: str, event: str) -> list[dict[str, Any]]:
        lines = self.cluster.log_file(name).read_text().splitlines()
        records = [json.loads(line) for line in lines if line.startswith("{")]
        return [record for record in records if record["event"] == event]

    def lost_or_doubled(self) -> list[str]:
        """End the load; return what the subscriber got other than what was acknowledged."""
        self._over.set()
        self._publisher.join()
        assert not self._errors
        got: list[int] = []
        with Client(self.endpoints, state_dir=self._reader) as reader:
            while delivery := reader.get("t", max_count=1000):
                got += [int(publication) for publication in delivery.publications]
        wanted = self.acknowledged
        return [] if got == wanted else [f"{len(got)} of {len(wanted)}: {set(got) ^ set(wanted)}"]

    def close(self) -> None:
        self._over.set()
        self._publisher.join()
        self.cluster.down(1.0)


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Callable[[Program], Fleet]]:
    fleets: list[Fleet] = []

    def make(program: Program) -> Fleet:
        fleets.append(Fleet(tmp_path, program))
        return fleets[-1]

    yield make
    for each in fleets:
        each.close()


@pytest.mark.needs("git")
@pytest.mark.slow
def test_version_0_1_is_upgraded_node_by_node_and_back_until_the_level_is_raised(
    fleet: Callable[[Program], Fleet], version_0_1: Program
) -> None:
    nodes = fleet(version_0_1)
    for name in ("n1", "n2"):
        nodes.run(name, THIS)
    nodes.run("n1", version_0_1)
    nodes.run("n1", THIS)
    refused = nodes.refusal()
    assert "n3 runs a version that names no levels (0.1)" in refused or "unknown request" in refused
    rows = nodes.command("status").splitlines()
    assert [row.split()[-2:] for row in rows[1:]] == [
        ["0.1.0", "1-1"] if row.startswith("n3") else [BUILD.version, f"1-{BUILD.level_max}"]
        for row in rows[1:]
    ]
    nodes.run("n3", THIS)
    assert nodes.levels() == {1}
    assert nodes.command("upgrade") == f"level {BUILD.level_max}; it was 1\n"
    assert nodes.command("upgrade") == f"level {BUILD.level_max} already\n"
    nodes.until(lambda: nodes.levels() == {BUILD.level_max})

    nodes.replace("n2", version_0_1)
    assert nodes.ended_with("n2") == EXIT_DATA
    assert (
        f"format {BUILD.level_max}; this version reads 1"
        in nodes.cluster.log_file("n2").read_text()
    )
    nodes.cluster.wipe("n2")
    nodes.replace("n2", version_0_1)
    nodes.until(lambda: nodes.events("n2", "copy_refused"))
    [reason] = {each["reason"] for each in nodes.events("n2", "copy_refused")}
    assert reason.startswith("n2 runs a version that names no levels (0.1)")
    for name in ("n1", "n3"):
        nodes.until(lambda name=name: nodes.events(name, "peer_unfit"))  # type: ignore[misc]
        [said] = {(each["level"], each["reason"]) for each in nodes.events(name, "peer_unfit")}
        assert said == ("warning", reason)
    nodes.run("n2", THIS)
    assert nodes.lost_or_doubled() == []


@pytest.mark.slow  # the simulator goes through the same rules: tests/simulation/test_upgrades.py
def test_nothing_newer_is_written_until_all_understand_it_and_who_does_not_is_kept_out(
    fleet: Callable[[Program], Fleet],
) -> None:
    nodes = fleet(THIS)
    for name in ("n1", "n2"):
        nodes.run(name, NEWER)
    assert f"n3 runs {BUILD}" in nodes.refusal()
    nodes.run("n1", THIS)  # there is a way back
    nodes.run("n1", NEWER)
    nodes.cluster.kill("n3")
    nodes.cluster.wait_for_leader()
    nodes.until(lambda: "n3 has not been seen" in nodes.refusal())
    nodes.run("n3", NEWER)
    assert not any(NEWER_ENTRY in _journal(nodes, name) for name in nodes.programs)
    assert nodes.upgrade() == {"level": NEWER_LEVEL, "before": 1}
    nodes.until(lambda: nodes.levels() == {NEWER_LEVEL})
    nodes.until(lambda: all(NEWER_ENTRY in _journal(nodes, name) for name in nodes.programs))

    takes = f"level {NEWER_LEVEL}; this is {BUILD}"
    nodes.replace("n2", THIS)
    assert nodes.ended_with("n2") == EXIT_LEVEL
    assert f"this node's store, is at {takes}" in nodes.cluster.log_file("n2").read_text()
    nodes.cluster.wipe("n2")
    nodes.replace("n2", THIS)  # it knows no members, so that nobody's word on the level ends it
    nodes.until(lambda: nodes.events("n2", "peer_unfit"))
    too_old = f"n2 runs {BUILD}; the cluster's level is {NEWER_LEVEL}: install a newer one"
    assert {each["reason"] for each in nodes.events("n2", "peer_unfit")} == {too_old}
    nodes.until(lambda: too_old in str(nodes.cluster.statuses(ANSWER_MS)["n2"]["waiting_for"]))
    leader = nodes.cluster.wait_for_leader()
    seen = nodes.cluster.statuses(ANSWER_MS)[leader]["members"]["n2"]
    assert (seen["version"], seen["levels"]) == ("9.0.0", [1, NEWER_LEVEL])  # the last that fitted
    nodes.run("n2", NEWER)
    assert nodes.lost_or_doubled() == []
    assert {nodes.cluster.statuses(ANSWER_MS)[name]["level"] for name in nodes.programs} == {
        NEWER_LEVEL
    }


def _journal(nodes: Fleet, name: str) -> bytes:
    directory = Path(nodes.cluster.node(name).data_dir) / "journal"
    return b"".join(file.read_bytes() for file in sorted(directory.glob("*.log")))
