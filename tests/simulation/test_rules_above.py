"""Rules 14, 26, 28 and 29 of docs/raft.md: what happens with each, and without it.

Rule 26's other half, founding and readmission, is in test_membership.py.
"""

from __future__ import annotations

import pickle
import shutil
from pathlib import Path
from typing import Any

import pytest

from cluster.log.journal import Journal
from cluster.members.identity import Identity
from cluster.members.membership import PendingAdmissions, ReplacedError, Roll
from cluster.node.member import Member
from cluster.raft.core import Core
from cluster.raft.raft import Raft
from cluster.store.commands import DamagedEntry
from cluster.store.store import Store
from cluster.wire.messages import Hello
from flotilla_client.protocol import GET, Request
from tests.simulation.disk import LabDisk
from tests.simulation.lab import Lab
from tests.simulation.schedules import Stage, compare_with_and_without

# --- 26: a wiped node is a new member -------------------------------------------------------------


def wiped_voter(directory: Path) -> list[str]:
    """A node that acknowledged an entry comes back empty and is asked for its vote."""
    stage = Stage(directory)
    stage.net.cut_off("b", "a", "c")
    stage.publish("a", "x")
    stage.lab.crash("a", "c")
    stage.lab.wipe("c")
    stage.net.heal()
    stage.lab.start("c")
    stage.lab.run(0.1)
    stage.campaign("b")
    if stage.lab.reaches(lambda: bool(stage.lab.leader()), 3.0):
        return stage.damage("b")
    stage.lab.start("a")
    stage.lab.run(0.1)
    return stage.damage("a")


def wipe_all_but_the_identity(lab: Lab, name: str) -> None:
    directory = lab.data_dir(name)
    identity = Identity.load(directory)
    assert identity is not None
    assert identity.founding is not None
    shutil.rmtree(directory / "store")
    shutil.rmtree(directory / "journal")
    lab.disks[name] = LabDisk()
    Journal.create(directory / "journal", lab.disks[name])
    Store.open(directory / "store" / "store.db", identity.founding).close()


def test_a_wiped_node_does_not_vote_as_the_old_one(tmp_path: Path) -> None:
    compare_with_and_without(
        wiped_voter,
        lambda patch: patch.setattr(Lab, "wipe", wipe_all_but_the_identity),
        tmp_path,
        "lost acknowledged x",
    )


# --- 14: only admitted members are heard ----------------------------------------------------------


def replaced_directory_comes_back(directory: Path) -> list[str]:
    """A node was readmitted after a wipe; then its old directory is put back."""
    stage = Stage(directory)
    stage.lab.crash("c")
    shutil.copytree(stage.lab.data_dir("c"), directory / "old")
    stage.lab.wipe("c")
    stage.lab.start("c")
    stage.lab.until(lambda: stage.is_member("c"))
    stage.lab.run(0.5)
    stage.net.cut_off("b", "a", "c")
    stage.publish("a", "x")
    stage.lab.crash("a", "c")
    stage.lab.wipe("c")
    shutil.copytree(directory / "old", stage.lab.data_dir("c"))
    stage.lab.may_end = (ReplacedError,)
    stage.net.heal()
    stage.lab.start("c")
    stage.lab.run(0.1)
    stage.campaign("b")
    if stage.lab.reaches(lambda: stage.raft("b").is_leader, 3.0):
        return ["b leads without acknowledged x"]
    stage.lab.start("a")
    stage.lab.run(0.1)
    assert isinstance(stage.lab.ended.pop("c"), ReplacedError)
    return stage.damage("a")


def test_a_replaced_incarnation_is_not_heard(tmp_path: Path) -> None:
    def is_linked(hello: Hello | None, admitted: str | None, applied_index: int) -> bool:
        return hello is not None and not hello.fresh

    def switch_off(patch: pytest.MonkeyPatch) -> None:
        patch.setattr("cluster.node.linked.is_linked", is_linked)
        patch.setattr(Roll, "eviction", lambda *ignored: "")

    compare_with_and_without(
        replaced_directory_comes_back,
        switch_off,
        tmp_path,
        "b leads without acknowledged x",
    )


# --- 26: an admission counts from its entry on ----------------------------------------------------


def replaced_voter(directory: Path) -> list[str]:
    """A node is readmitted; the old one votes for one that has the entry and has not applied it."""
    stage = Stage(directory)
    stage.lab.crash("c")
    shutil.copytree(stage.lab.data_dir("c"), directory / "old")
    stage.lab.wipe("c")
    stage.lab.start("c")
    stage.lab.until(lambda: stage.raft("a").uncommitted_entries > 0)
    for _ in range(5):  # b acknowledges the admission, and does not hear that it is committed
        stage.lab.turn("b")
        stage.lab.turn("a")
        if not stage.raft("a").uncommitted_entries:
            break
    for other in "ac":
        stage.net.refused.add(frozenset(("b", other)))
        stage.net.break_link("b", other)
    stage.lab.until(lambda: stage.is_member("c"))
    stage.publish("a", "x")
    stage.lab.crash("a", "c")
    stage.lab.wipe("c")
    shutil.copytree(directory / "old", stage.lab.data_dir("c"))
    stage.lab.may_end = (ReplacedError,)
    stage.net.refused.clear()
    stage.lab.start("c")
    stage.lab.run(0.1)
    stage.campaign("b")
    if stage.lab.reaches(lambda: stage.raft("b").is_leader, 3.0):
        return ["b leads without acknowledged x"]
    stage.lab.start("a")
    stage.lab.run(1.0)
    evidence = stage.damage("a")
    assert isinstance(stage.lab.ended["c"], ReplacedError)
    return [line for line in evidence if "ReplacedError" not in line]


def test_an_admission_counts_from_its_entry_on(tmp_path: Path) -> None:
    compare_with_and_without(
        replaced_voter,
        lambda patch: patch.setattr(PendingAdmissions, "newest", lambda *ignored: None),
        tmp_path,
        "b leads without acknowledged x",
    )


# --- 28: reads wait for answers from a majority ---------------------------------------------------


def read_at_a_deposed_leader(directory: Path) -> list[str]:
    """A leader that was deposed without noticing is asked for publications."""
    stage = Stage(directory)
    stage.net.cut_off("a", "b", "c")
    stage.elect("b")
    stage.publish("b", "x")
    body = {"last_id": 0, "max_count": 9}
    asked = stage.lab.send("a", Request(GET, "", "t", stage.subscriber, body=body))
    stage.lab.run(0.5)
    reply = stage.lab.replies.get(asked)
    stale = reply is not None and reply.ok and not reply.body["count"]
    return (["a read missed acknowledged x"] if stale else []) + stage.damage("b")


def test_a_deposed_leader_answers_no_read(tmp_path: Path) -> None:
    compare_with_and_without(
        read_at_a_deposed_leader,
        lambda patch: patch.setattr(Raft, "barrier_passed", lambda raft: raft._reads._newest),
        tmp_path,
        "missed acknowledged x",
    )


# --- 29: nothing is unpickled ---------------------------------------------------------------------


class Touch:
    """Creates a file where it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


def pickle_in_an_entry(directory: Path) -> list[str]:
    """An entry is a pickle that does something."""
    stage = Stage(directory)
    stage.lab.may_end = (DamagedEntry, KeyError)
    trace = directory / "trace"
    stage.append("a", pickle.dumps(Touch(trace)))
    stage.lab.run(0.5)
    return ["a pickle was executed"] if trace.exists() else []


def test_a_pickle_is_never_executed(tmp_path: Path) -> None:
    ours = Core._SyncObj__applyLogEntries

    def apply(core: Core) -> bool:
        due = bool(ours(core))
        for command, _, _ in core.committed:
            if command[1:2] == pickle.PROTO:
                core._SyncObj__doApplyCommand(command)
        return due

    def switch_off(patch: pytest.MonkeyPatch) -> None:
        patch.setattr(Core, "_SyncObj__applyLogEntries", apply)
        patch.setattr(Member, "_note_level", lambda member, entry: False)
        patch.setattr(Member, "_entries_level_max", 255)  # rule 30

    compare_with_and_without(pickle_in_an_entry, switch_off, tmp_path, "a pickle was executed")
