"""What chaos/run/truth.py promises: what stands on a node's disk, and nothing on it is changed."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import orjson
import pytest

from chaos.run import truth
from chaos.run.truth import TruthError
from chaos.targets import Remains
from chaos.workloads import payload
from cluster.log.journal import Journal
from cluster.store import commands
from cluster.store.commands import (
    Advance,
    MakeGroup,
    Operation,
    Purge,
    Put,
    Raise,
    Register,
    Subscribe,
)
from cluster.store.store import Store
from cluster.wire.levels import LEVEL_OF_DELAY
from flotilla_client.properties import Properties, encode
from flotilla_client.protocol import Enveloped, lane_of, pack

REGULAR = b"\0"
NO_OP = b"\1"
FOUNDERS = {"n1": "i1", "n2": "i2", "n3": "i3"}


def put(producer: str, topic: str, counter: int, count: int = 1) -> Put:
    texts = [payload.make(producer, topic, counter + place, "…") for place in range(count)]
    return Put(producer, None, topic, counter, *pack([text.encode() for text in texts]))


EMPTY = Remains(Path("/nowhere"), Path(os.devnull))


class DataDirectory:
    """A node's data directory: entries go into its journal, and the first ones into its store."""

    def __init__(self, data: Path) -> None:
        self.data = data
        self.remains = Remains(data, data.parent / "node.log")
        self.remains.log.write_text('{"event":"role","role":"follower","term":0}\n')
        Journal.create(data / "journal")
        self.journal = Journal.open(data / "journal")
        self.store = Store.open(data / "store" / "store.db", FOUNDERS)
        self.commands: list[bytes] = []

    def add(self, *operations: Operation, applied: bool = True) -> None:
        content = commands.encode(0, operations) if operations else b""
        command = REGULAR + content if operations else NO_OP
        index = len(self.commands) + 1
        self.commands.append(command)
        self.journal.add(command, index, 3)
        if applied:
            self.store.apply(index, 3, content)

    def close(self, commit_index: int) -> None:
        self.journal.note_commit(commit_index)
        self.journal.close()
        self.store.commit()
        self.store.close()

    def rows(self, kind: str) -> list[dict[str, Any]]:
        with tempfile.TemporaryDirectory() as copies:
            rows = list(truth.rows(self.data, Path(copies)))
        return [row for row in rows if row["kind"] == kind]


@pytest.fixture
def node(tmp_path: Path) -> DataDirectory:
    made = DataDirectory(tmp_path / "data")
    made.add()
    made.add(Register("p", True, None, ""), Register("s", True, None, ""))
    made.add(Subscribe("s", None, "tides", None), Subscribe("p", None, "tides", None))
    made.add(put("p", "tides", 1, 3))
    made.add(put("p", "nowhere", 1), put("p", "tides", 4))
    return made


def _lines(file: Path) -> list[bytes]:
    return file.read_bytes().splitlines()


def digest(command: bytes) -> str:
    return hashlib.blake2b(command, digest_size=16).hexdigest()


def test_the_entries_are_those_that_the_node_knows_to_be_committed(node: DataDirectory) -> None:
    node.add(put("p", "tides", 5), applied=False)
    node.add(put("p", "tides", 6), applied=False)
    node.close(commit_index=6)
    found = [(row["index"], row["term"], row["digest"]) for row in node.rows("entry")]
    assert found == [(i, 3, digest(node.commands[i - 1])) for i in range(2, 7)]


def test_what_the_store_has_applied_is_committed_whatever_the_journal_remembers(
    node: DataDirectory,
) -> None:
    node.close(commit_index=2)
    assert [row["index"] for row in node.rows("entry")] == [2, 3, 4, 5]


def test_two_nodes_with_the_same_entries_have_the_same_digest_and_others_another(
    node: DataDirectory, tmp_path: Path
) -> None:
    twin, other = DataDirectory(tmp_path / "twin"), DataDirectory(tmp_path / "other")
    for one in (twin, other):
        for command in node.commands[:-1]:
            content = command[1:]
            one.add(*(commands.decode(content)[1] if content else ()))
    twin.add(put("p", "nowhere", 1), put("p", "tides", 4))
    other.add(put("p", "tides", 4), put("p", "tides", 5))
    [state], [same], [different] = (
        (one.close(5), one.rows("state"))[1] for one in (node, twin, other)
    )
    assert state == same
    assert (state["index"], different["index"]) == (5, 5)
    assert state["digest"] != different["digest"]


def test_publications_are_told_with_their_ids_and_those_only_in_the_journal_without(
    node: DataDirectory,
) -> None:
    node.add(put("p", "tides", 5, 2), applied=False)
    node.close(commit_index=5)
    held = [
        (row["topic"], row["first_id"], row["producer"], row["first_counter"], row["count"])
        for row in node.rows("held")
    ]
    assert held == [
        ("tides", 1, "p", 1, 3),
        ("tides", 4, "p", 4, 1),
        ("tides", None, "p", 5, 2),
    ]


def test_a_topics_floor_is_the_least_cursor_and_its_end_the_last_id_ever_given(
    node: DataDirectory,
) -> None:
    node.add(Advance("s", None, {"tides": 3}), Advance("p", None, {"tides": 2}))
    node.close(commit_index=6)
    assert node.rows("topic") == [{"kind": "topic", "topic": "tides", "last_id": 4, "floor_id": 2}]


def test_a_topics_floor_is_behind_what_was_purged_whoever_has_not_read_it(
    node: DataDirectory,
) -> None:
    node.add(Advance("s", None, {"tides": 1}), Purge("tides", 3, is_root=True))
    node.close(commit_index=6)
    assert node.rows("topic") == [{"kind": "topic", "topic": "tides", "last_id": 4, "floor_id": 3}]


def test_a_topics_floor_is_not_behind_what_a_group_has_not_settled(node: DataDirectory) -> None:
    node.add(Raise(LEVEL_OF_DELAY))
    node.add(MakeGroup("s", None, "tides", None, "g", None, None, None, None, start=2))
    node.add(Advance("s", None, {"tides": 4}), Advance("p", None, {"tides": 4}))
    node.close(commit_index=8)
    assert node.rows("topic") == [{"kind": "topic", "topic": "tides", "last_id": 4, "floor_id": 1}]


def test_what_is_delayed_in_the_journal_alone_is_of_its_lane(node: DataDirectory) -> None:
    lane = lane_of("tides", is_delayed=True)
    text = payload.make("p", lane, 1, "…").encode()
    later = Enveloped(encode(Properties(None, {}, 0, 5_000)) + text)
    delayed = Put("p", None, "tides", 1, *pack([later]), None, True, False, True)
    node.add(Raise(LEVEL_OF_DELAY))
    node.add(delayed, applied=False)
    node.close(commit_index=7)
    unplaced = [row for row in node.rows("held") if row["first_id"] is None]
    assert [(row["topic"], row["first_counter"]) for row in unplaced] == [(lane, 1)]
    counters = {row["topic"]: row["counter"] for row in node.rows("counter")}
    assert (counters[lane], counters["tides"]) == (1, 4)


def test_counters_are_the_highest_of_the_store_and_of_the_journal_behind_it(
    node: DataDirectory,
) -> None:
    node.add(put("p", "tides", 5, 4), applied=False)
    node.close(commit_index=5)
    counters = {(row["producer"], row["topic"]): row["counter"] for row in node.rows("counter")}
    assert counters == {("p", "tides"): 8, ("p", "nowhere"): 1}


def test_reading_changes_no_byte_and_a_torn_tail_is_left_out(node: DataDirectory) -> None:
    node.close(commit_index=5)
    [segment] = (node.data / "journal").glob("*.log")
    segment.write_bytes(segment.read_bytes() + b"\0\0torn")

    def content() -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in node.data.rglob("*") if path.is_file()}

    before = content()
    assert len(node.rows("entry")) == 4
    assert content() == before


def test_a_node_has_led_the_terms_that_its_log_names_whatever_else_stands_there(
    node: DataDirectory,
) -> None:
    def role(role: str, term: int) -> str:
        return f'{{"event":"role","role":"{role}","term":{term},"leader":"n1"}}\n'

    node.remains.log.write_text(
        role("candidate", 3)
        + role("leader", 3)
        + '{"event":"role","role":"leader","te'  # torn by a kill; the next process goes on
        + role("leader", 7)
        + '"leader"\n["leader"]\n{"role":"leader"}\n'
        + "Fatal Python error: the leader is gone\n"
        + role("follower", 8)
        + role("leader", 9)
        + role("leader", 3)
    )
    found = list(truth.leaderships(node.remains.log))
    assert found == [{"kind": "leadership", "term": term} for term in (3, 9)]


def test_a_log_that_names_no_role_is_no_proof_that_the_node_never_led(
    node: DataDirectory, tmp_path: Path
) -> None:
    node.close(commit_index=5)
    node.remains.log.write_text('{"event":"started"}\n')
    with pytest.raises(TruthError, match=r"n1 could not be read: MuteLog: .* what role"):
        truth.collect("r", {"n1": node.remains}, tmp_path)


def test_a_disk_that_cannot_be_read_is_told_and_the_others_are_read_all_the_same(
    node: DataDirectory, tmp_path: Path
) -> None:
    node.close(commit_index=5)
    with pytest.raises(TruthError, match="the disk of n2 could not be read: MissingJournal"):
        truth.collect("r", {"n1": node.remains, "n2": EMPTY}, tmp_path)
    written = [orjson.loads(line) for line in _lines(tmp_path / "truth" / "n1.jsonl")]
    assert {(row["run_id"], row["node"]) for row in written} == {("r", "n1")}
    assert [file.name for file in (tmp_path / "truth").iterdir()] == ["n1.jsonl"]


# As a reader that is busy with GBs: its copy and its file are there, and it takes its time.
BUSY = """
import sys, time
from pathlib import Path
file = Path(sys.argv[1])
file.with_suffix(".copies").mkdir()
(file.with_suffix(".copies") / "store.db").write_bytes(b"GBs")
file.with_suffix(".unfinished").write_bytes(b"half")
print("busy", flush=True)
time.sleep(600)
"""


@pytest.fixture
def busy(monkeypatch: pytest.MonkeyPatch) -> list[subprocess.Popen[str]]:
    """Let all readers be busy; return them."""
    started: list[subprocess.Popen[str]] = []

    def reader(run_id: str, node: str, left: Remains, file: Path) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", BUSY, str(file)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        assert process.stdout.readline() == "busy\n"
        started.append(process)
        return process

    monkeypatch.setattr(truth, "_reader", reader)
    return started


NODES = dict.fromkeys(("n1", "n2", "n3"), EMPTY)


def test_an_interrupt_ends_all_readers_at_once_and_leaves_nothing_of_theirs(
    busy: list[subprocess.Popen[str]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def interrupted(*_: object) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr(truth, "_complaint", interrupted)
    began_s = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        truth.collect("r", NODES, tmp_path)
    assert time.monotonic() - began_s < 60
    assert [reader.returncode for reader in busy] == [-9, -9, -9]
    assert list((tmp_path / "truth").iterdir()) == []


def test_readers_that_are_late_are_ended_together_and_leave_nothing(
    busy: list[subprocess.Popen[str]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(truth, "READ_S_MAX", 0.1)
    with pytest.raises(TruthError, match=r"(?s)n1 was not read within 0\.1 s.*n2.*n3 was not"):
        truth.collect("r", NODES, tmp_path)
    assert [reader.returncode for reader in busy] == [-9, -9, -9]
    assert list((tmp_path / "truth").iterdir()) == []


def test_a_flipped_bit_in_the_store_is_not_passed_over(node: DataDirectory, tmp_path: Path) -> None:
    node.close(commit_index=5)
    database = node.data / "store" / "store.db"
    data = database.read_bytes()
    database.write_bytes(data.replace(b"p tides 4", b"p tides 5"))
    places = map(str, (*node.remains, tmp_path / "n1.jsonl"))
    arguments = ["-m", "chaos.run.truth", "r", "n1", *places]
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.startswith("CorruptStore: ")
    assert "checksum" in done.stderr
