"""Rules 7 to 13 of docs/raft.md: what happens with each, and without it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from chaos.simulation.disks.disk import PowerLoss
from cluster.log.journal import Journal
from cluster.node.member import Member
from cluster.raft.raft import Raft
from cluster.raft.ready import Ready, Timing
from cluster.serve.broker import Broker
from cluster.store.store import Store
from cluster.wire.messages import AppendEntries
from flotilla_client.protocol import GET, REQUEST_ID, Request
from tests.simulation.schedules import Stage, compare_with_and_without

# --- 7: nothing leaves before what it says is durable ---------------------------------------------


def power_loss_in_the_sync(directory: Path) -> list[str]:
    """The follower loses its power in the fdatasync of the entry that it acknowledges."""
    stage = Stage(directory)
    stage.net.cut_off("c", "a", "b")
    stage.put("a", "x")
    stage.lab.turn("a")
    stage.lab.disks["b"].power_fails_in = 0
    with pytest.raises(PowerLoss):
        stage.replica("b").turn(stage.lab.now, [])
    stage.lab.turn("a")  # takes what has left b
    stage.lab.lose_power("b")
    stage.lab.crash("a")
    stage.lab.start("b")
    return stage.damage("b")


def let_everything_leave_before_the_sync(patch: pytest.MonkeyPatch) -> None:
    ours = Raft.step

    def step(raft: Raft, *arguments: Any, **options: Any) -> Ready:
        ready = ours(raft, *arguments, **options)
        return ready._replace(before_sync=[*ready.before_sync, *ready.after_sync], after_sync=[])

    patch.setattr(Raft, "step", step)


def test_an_acknowledgment_waits_for_the_sync(tmp_path: Path) -> None:
    compare_with_and_without(
        power_loss_in_the_sync,
        let_everything_leave_before_the_sync,
        tmp_path,
        "lost acknowledged x",
    )


# --- 8: no second tick before the sync of the first one's appends ---------------------------------


def lone_node_loses_its_power(directory: Path) -> list[str]:
    """A lone node commits alone: what it acknowledges is on its disk."""
    stage = Stage(directory, "a")
    for number in range(6):
        stage.put("a", f"x{number}")
        for _ in range(4):
            if f"x{number}" not in stage.acknowledged():
                stage.lab.step()
        if number % 2:
            stage.lab.lose_power("a")
            stage.lab.start("a")
            stage.elect("a")
    return stage.damage("a")


def test_a_lone_node_acknowledges_what_is_on_its_disk(tmp_path: Path) -> None:
    sync = Journal.sync

    def sync_every_fourth_turn(journal: Journal) -> None:
        turns = getattr(journal, "turns", 0) + 1
        journal.turns = turns  # type: ignore[attr-defined]
        if turns % 4 == 0:
            sync(journal)

    compare_with_and_without(
        lone_node_loses_its_power,
        lambda patch: patch.setattr(Journal, "sync", sync_every_fourth_turn),
        tmp_path,
        "lost acknowledged",
    )


# --- 9: nobody campaigns whom a majority would refuse ---------------------------------------------


def dead_link(directory: Path) -> list[str]:
    """The link between the leader and one follower is dead, all others live (audit: e17)."""
    stage = Stage(directory, timing=Timing())
    leader = stage.lab.elect()
    term = stage.raft(leader).term
    cut = next(name for name in stage.lab.names if name != leader)
    stage.net.cut_off(cut, leader)
    stage.lab.run(20.0)
    changes = max(stage.raft(name).term for name in stage.lab.names) - term
    return [f"{changes} elections"] if changes else []


def test_a_dead_link_deposes_nobody(tmp_path: Path) -> None:
    compare_with_and_without(
        dead_link,
        lambda patch: patch.setattr(Raft, "_pre_vote", lambda raft: None),
        tmp_path,
        "elections",
    )


# --- 10: each entry is applied once, and an exception is the end ----------------------------------


def restart_of_a_follower(directory: Path) -> list[str]:
    """A follower restarts after an entry that is not idempotent: a client's resumption."""
    stage = Stage(directory)
    again = Request(REQUEST_ID, "", "", stage.subscriber)
    assert stage.lab.ask("a", again).body["epoch"] == 2
    stage.lab.run(0.2)
    stage.lab.crash("b")
    stage.lab.start("b")
    stage.lab.run(0.5)
    return stage.damage("a")


def test_an_entry_is_applied_once_over_restarts(tmp_path: Path) -> None:
    def commit_without_the_position(store: Store) -> None:
        store._flush()
        if store._database.in_transaction:
            store._database.commit()

    compare_with_and_without(
        restart_of_a_follower,
        lambda patch: patch.setattr(Store, "commit", commit_without_the_position),
        tmp_path,
        "differ at applied index",
    )


class DiskFull(Exception):
    """What the follower's store meets once."""


def apply_fails_once(directory: Path) -> list[str]:
    """A follower's store fails in the middle of an entry."""
    stage = Stage(directory)
    stage.lab.may_end = (DiskFull,)
    store, met = stage.node("b").store, []

    def apply(index: int, term: int, payload: bytes) -> Any:
        if not met:
            met.append(index)
            store.applied_index, store.applied_term = index, term  # half of its work
            raise DiskFull
        return Store.apply(store, index, term, payload)

    store.apply = apply  # type: ignore[method-assign]
    stage.publish("a", "x")
    stage.lab.run(0.3)
    if "b" not in stage.lab.nodes:
        stage.lab.ended.clear()
        stage.lab.start("b")
        stage.lab.run(0.3)
    return stage.damage("a")


def test_an_exception_in_apply_ends_the_process(tmp_path: Path) -> None:
    applied = Member._apply

    def swallow(node: Member, index: int, term: int, payload: bytes) -> None:
        try:
            applied(node, index, term, payload)
        except DiskFull:
            return

    compare_with_and_without(
        apply_fails_once,
        lambda patch: patch.setattr(Member, "_apply", swallow),
        tmp_path,
        "differ at applied index",
    )


# --- 11: a deposed leader answers `uncertain` -----------------------------------------------------


def deposed_with_an_entry_under_way(directory: Path) -> list[str]:
    """A leader is cut off with an entry that is replaced later."""
    stage = Stage(directory)
    stage.lab.may_end = (AssertionError,)
    stage.net.cut_off("a", "b", "c")
    stage.put("a", "x")
    stage.lab.run(0.1)
    stage.elect("b")
    stage.publish("b", "y")
    stage.net.heal()
    stage.lab.run(1.0)
    reply = stage.lab.replies.get(stage.sent["x"])
    told = None if reply is None else reply.body.get("error")
    evidence = [] if told == "uncertain" else [f"the client was told {told}"]
    return evidence + stage.damage("b")


def test_a_deposed_leader_answers_uncertain(tmp_path: Path) -> None:
    compare_with_and_without(
        deposed_with_an_entry_under_way,
        lambda patch: patch.setattr(Broker, "abdicate", lambda broker, leader: None),
        tmp_path,
        "the client was told None",
    )


# --- 12: a leader serves after the no-op of its own term; uncommitted entries are bounded ---------


def new_leader_is_asked_at_once(directory: Path) -> list[str]:
    """A new leader has an acknowledged entry in its log, and does not know that it is committed."""
    stage = Stage(directory)
    stage.net.cut_off("c", "a", "b")
    stage.publish("a", "x")
    stage.lab.crash("a")
    stage.net.heal()
    stage.campaign("b")
    recorded = stage.record("b", "c")
    body = {"last_id": 0, "max_count": 9}
    asked = ""
    for _ in range(20):
        if stage.raft("b").is_leader and not asked:
            asked = stage.lab.send("b", Request(GET, "", "t", stage.subscriber, body=body))
        stage.lab.step()
        kept = [each for each in stage.net.take("b", "c") if not isinstance(each, AppendEntries)]
        stage.net.put("b", "c", *kept)  # appends are lost, questions arrive
    assert recorded
    reply = stage.lab.replies.get(asked)
    stale = reply is not None and reply.ok and not reply.body["count"]
    return (["a read missed acknowledged x"] if stale else []) + stage.damage("b")


def test_a_new_leader_serves_after_its_no_op(tmp_path: Path) -> None:
    compare_with_and_without(
        new_leader_is_asked_at_once,
        lambda patch: patch.setattr(Raft, "serving", property(lambda raft: raft.is_leader)),
        tmp_path,
        "missed acknowledged x",
    )


def leader_without_a_majority(directory: Path) -> list[str]:
    """A leader that is cut off is sent more than it may hold."""
    stage = Stage(directory, uncommitted_entries_max=8)
    stage.net.cut_off("a", "b", "c")
    for number in range(20):
        stage.put("a", f"x{number}")
        stage.lab.step()
    raft = stage.raft("a")
    waiting = stage.node("a").journal.last_index - raft.commit_index
    return [f"{waiting} entries wait"] if waiting > 8 else stage.damage("b")


def test_uncommitted_entries_are_bounded(tmp_path: Path) -> None:
    compare_with_and_without(
        leader_without_a_majority,
        lambda patch: patch.setattr(Raft, "uncommitted_entries", 0),
        tmp_path,
        "20 entries wait",
    )


# --- 13: the store is checked against the journal at the start -------------------------------


def store_from_long_ago(directory: Path) -> list[str]:
    """A node starts with a store that is older than its journal: somebody put back a file."""
    stage = Stage(directory, segment_bytes=1024, keep_bytes=0)
    stage.lab.may_end = (AssertionError,)
    stage.lab.compact("b")
    members = dict(stage.node("b").store.members)
    database = stage.node("b").settings.database
    stage.lab.crash("b")
    Store.remove(database)
    Store.open(database, members).close()
    stage.lab.start("b")
    stage.lab.run(1.0)
    if "b" in stage.lab.ended:
        stage.lab.ended.clear()
        return stage.damage("a")
    raft = stage.raft("b")
    return [f"b votes, with {raft.applied_index} applied of {raft.commit_index} committed"]


def test_a_store_that_does_not_reach_the_journal_ends_the_process(tmp_path: Path) -> None:
    compare_with_and_without(
        store_from_long_ago,
        lambda patch: patch.setattr(Raft, "_check_position", lambda raft, applied: None),
        tmp_path,
        "b votes",
    )
