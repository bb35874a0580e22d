"""Rules 17, 18, 24 and 25 of docs/raft.md: what happens with each, and without it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from pysyncobj import SyncObjConf

from cluster.raft import transport as transport_module
from cluster.raft.raft import Raft
from cluster.raft.transport import Guard
from cluster.store import snapshots
from cluster.store.snapshots import Download, Verified
from cluster.wire.messages import NextIndex, SnapshotChunk, SnapshotOffer
from tests.simulation.schedules import Stage, compare_with_and_without


def far_behind(directory: Path, name: str) -> Stage:
    """Return a stage where `name` is cut off and the others' logs begin beyond its end."""
    stage = Stage(directory, segment_bytes=1024, keep_bytes=1024)
    stage.net.cut_off(name, *(other for other in "abc" if other != name))
    if name == "a":
        stage.put("a", "stale")
        stage.lab.run(0.05)
        stage.elect("b")
    leader = "b" if name == "a" else "a"
    stage.publish(leader, *(f"x{number}" for number in range(20)))
    stage.lab.run(0.2)
    for other in stage.lab.names:
        if other != name:
            stage.lab.compact(other)
    first, last = stage.node(leader).journal.first_index, stage.node(name).journal.last_index
    assert first > last, (first, last)
    return stage


# --- 17: an offer commits nothing -----------------------------------------------------------------


def offer_to_a_deposed_leader(directory: Path) -> list[str]:
    """A deposed leader with an uncommitted entry is offered a snapshot (audit: e05 a)."""
    stage = far_behind(directory, "a")
    stage.lab.may_end = (AssertionError,)
    stage.net.heal()
    stage.lab.run(1.0)
    return stage.damage("b")


def test_an_offer_commits_nothing(tmp_path: Path) -> None:
    def take_the_leaders_index(guard: Guard, name: str, message: SnapshotOffer) -> None:
        offer = {"type": "append_entries", "term": message.term, "commit_index": 10**6}
        guard._pass(name, offer | {"serialized": (b"", True, True)})

    compare_with_and_without(
        offer_to_a_deposed_leader,
        lambda patch: patch.setitem(
            transport_module._RECEIVE, SnapshotOffer, take_the_leaders_index
        ),
        tmp_path,
        "a applies entry",
    )


# --- 18: an installed copy proves its own index, not the log behind it ----------------------------


def copy_within_the_log(directory: Path) -> list[str]:
    """A node installs a copy that its log goes beyond (audit: e16 snapclamp)."""
    stage = Stage(directory)
    stage.publish("a", "x")
    stage.lab.run(0.2)
    a, path = stage.node("a"), directory / "copy.db"
    copy = snapshots.make_copy(a.settings.database, path, lambda pause_s: None)
    stage.publish("a", "y", "z")  # nobody says that b's are the right ones
    stage.net.cut_off("b", "a", "c")
    stage.lab.lose_power("b")  # its store is behind again, its journal is not
    stage.lab.start("b")
    stage.lab.step()
    b = stage.node("b")
    members = dict(a.store.members)
    b._context.fetch.ready = Verified(path, copy.index, copy.term, members, a.store.level)
    offer = SnapshotOffer(stage.raft("a").term)
    b._take_ready(stage.raft("b").step(stage.lab.now, [("a", offer)]))
    answers = [each for _, each in b._after_sync if isinstance(each, NextIndex)]
    assert answers[-1].success
    proved = answers[-1].next_index - 1
    return [] if proved == copy.index else [f"b acknowledges {proved}, {copy.index} is proved"]


def restore_and_prove_the_log(raft: Raft, leader: str, index: int, term: int) -> None:
    """Acknowledge all of the log, as pysyncobj does."""
    raft._log.begin_anew(index, term)
    raft.advance(index)
    raft._after_sync.append((leader, NextIndex(raft.term, raft._log.last_index + 1, False, True)))


def test_a_copy_proves_its_own_index_alone(tmp_path: Path) -> None:
    compare_with_and_without(
        copy_within_the_log,
        lambda patch: patch.setattr(Raft, "restore", restore_and_prove_the_log),
        tmp_path,
        "b acknowledges",
    )


# --- 24: a copy is verified before it is installed ------------------------------------------------


def damaged_on_its_way(directory: Path) -> list[str]:
    """A bit of the first copy flips between source and receiver."""
    stage = far_behind(directory, "c")
    stage.net.heal()
    stage.net.hold("a", "c")
    damaged = False
    for _ in range(100):
        stage.lab.step()
        for message in stage.net.take("a", "c"):
            passed = message
            if isinstance(message, SnapshotChunk) and not damaged:
                damaged = True
                passed = replace(message, data=message.data.replace(b"x17", b"x71"))
                assert passed != message
            stage.net.put("a", "c", passed)
        stage.net.held.clear()
        stage.lab.turn("c")
        stage.net.hold("a", "c")
    assert damaged
    return stage.damage("a")


def test_a_damaged_copy_is_not_installed(tmp_path: Path) -> None:
    def believe(download: Download, pause: Callable[[float], None] = time.sleep) -> Verified:
        os.fsync(download._file.fileno())
        download._file.close()
        return download._inspect()

    compare_with_and_without(
        damaged_on_its_way,
        lambda patch: patch.setattr(Download, "verify", believe),
        tmp_path,
        "c and a differ",
    )


# --- 24: an offer is accepted once the copy is installed ------------------------------------------


def offer_without_a_copy(directory: Path) -> list[str]:
    """A follower is offered a copy that it has to pull first (audit: e05 b)."""
    stage = far_behind(directory, "c")
    stage.lab.may_end = (AssertionError,)
    stage.net.heal()
    stage.lab.run(1.0)
    lag = stage.raft("a").applied_index - stage.raft("c").applied_index
    evidence = stage.damage("a")
    return [f"c lags {lag} entries", *evidence] if lag else evidence


def test_an_offer_is_accepted_when_the_copy_is_installed(tmp_path: Path) -> None:
    compare_with_and_without(
        offer_without_a_copy,
        lambda patch: patch.setattr("cluster.node.replica.Replica._install", lambda *ignored: True),
        tmp_path,
        "c lags",
    )


# --- 25: the core's own compaction is off ---------------------------------------------------------


def long_log(directory: Path) -> list[str]:
    """The log is long enough for the core to compact it, were it allowed to."""
    try:
        stage = Stage(directory)
    except AssertionError as error:
        return [f"a node ended: {error}"]
    return stage.damage("a")


def test_the_core_never_compacts(tmp_path: Path) -> None:
    def eager(**settings: Any) -> SyncObjConf:
        return SyncObjConf(**(settings | {"logCompactionMinEntries": 10}))

    compare_with_and_without(
        long_log,
        lambda patch: patch.setattr("cluster.raft.core.SyncObjConf", eager),
        tmp_path,
        "the core's own compaction is switched off",
    )
