"""Rule 30 of docs/raft.md: upgrades node by node, with each guard, and without it.

The guards stand behind one another, so that a schedule for one of them takes the others away.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from cluster.log.entries import REGULAR
from cluster.node.member import Member
from cluster.store import commands
from cluster.store.commands import DamagedEntry
from cluster.wire.levels import BUILD, BUILD_0_1, LEVEL_MAX, Build, UnsupportedLevel
from cluster.wire.messages import AppendEntries, Hello
from flotilla_client.protocol import UPGRADE, Reply, Request
from tests.simulation.schedules import Stage, compare_with_and_without

NEXT = Build("9.0", 1, 4)


def upgrade(stage: Stage, node: str, level: int | None = None) -> Reply:
    body = {} if level is None else {"level": level}
    return stage.lab.ask(node, Request(UPGRADE, "", body=body))


def run_with(stage: Stage, name: str, build: Build) -> None:
    """Start a node again with another program."""
    if name in stage.lab.nodes:
        stage.lab.crash(name)
    stage.lab.builds[name] = build
    stage.lab.start(name)
    stage.lab.run(0.3)


def no_guard_as_in_0_1(member: Member) -> int:
    return LEVEL_MAX if member.settings.build == BUILD_0_1 else member.settings.build.level_max


# --- the procedure --------------------------------------------------------------------------------


def test_level_is_raised_when_the_last_member_runs_the_new_build(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    for name in "bc":
        run_with(stage, name, NEXT)
    refused = upgrade(stage, "a")
    assert refused.body["error"] == "not_upgraded"
    assert refused.body["level"] == 1
    assert refused.body["message"].startswith("level 4 takes all members: a runs version")
    assert upgrade(stage, "a", 2).body == {"level": 2, "before": 1}
    assert upgrade(stage, "b").body["error"] == "not_upgraded"  # any node may be asked
    stage.lab.crash("a")
    stage.elect("b")
    stage.lab.run(1.0)
    assert upgrade(stage, "b").body["message"] == (
        "level 4 takes all members: a has not been seen for 1 s"
    )
    run_with(stage, "a", NEXT)
    assert upgrade(stage, "b").body == {"level": 4, "before": 2}
    assert upgrade(stage, "b").body == {"level": 4, "before": 4}
    lower = upgrade(stage, "b", 2).body
    assert (lower["error"], lower["message"]) == (
        "bad_request",
        "the cluster's level is 4; it is never lowered",
    )
    stage.lab.run(0.3)
    assert [each.store.level for each in stage.lab.members()] == [4, 4, 4]
    assert {node.hello().extension.level for node in stage.lab.nodes.values()} == {4}
    assert stage.damage("b") == []


def test_member_that_missed_the_raise_says_the_level_that_its_copy_brings(tmp_path: Path) -> None:
    stage = Stage(tmp_path, segment_bytes=1024, keep_bytes=1024)
    stage.net.cut_off("c", "a", "b")  # it is connected still, as nobody has noticed
    assert upgrade(stage, "a").body == {"level": 3, "before": 1}
    stage.publish("a", *(f"x{number}" for number in range(20)))
    stage.lab.run(0.2)
    for name in "ab":
        stage.lab.compact(name)
    stage.net.heal()
    stage.lab.until(lambda: stage.node("c").store.level == 3)
    assert ("c", "snapshot_installed") in [(name, event) for name, event, _ in stage.lab.log]
    stage.lab.run(0.3)
    told = stage.node("a")._context.peers.hello_of("c")
    assert told is not None
    assert told.extension.level == 3


def test_new_leader_that_has_never_seen_a_member_raises_nothing(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    stage.lab.crash("a", "b", "c")
    stage.lab.start("a", "b")
    stage.lab.run(0.1)
    stage.elect("b")
    assert upgrade(stage, "b").body["message"] == (
        "level 3 takes all members: c has not been seen since b started"
    )


def test_wiped_member_counts_again_when_it_is_a_member_again(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    stage.lab.crash("c")
    stage.lab.wipe("c")
    stage.lab.builds["c"] = BUILD
    stage.net.refused |= {frozenset("bc")}
    stage.lab.start("c")
    request = stage.lab.send("a", Request(UPGRADE, ""))
    stage.lab.until(lambda: request in stage.lab.replies)
    assert "c " in stage.lab.replies[request].body["message"]
    stage.lab.until(lambda: stage.is_member("c"))
    stage.lab.run(0.5)
    assert upgrade(stage, "a").ok
    stage.lab.run(0.5)
    assert stage.node("c").store.level == 3


def test_member_that_is_gone_when_the_raise_is_appended_harms_nobody(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    request = Request(UPGRADE, "r", body={"level": 2})
    broker = stage.node("a").broker
    assert broker.request(b"client", request, 0.0) is None
    stage.net.break_link("a", "c")
    stage.net.refused |= {frozenset("ac")}
    run_with(stage, "c", BUILD_0_1)
    assert {stage.node(name).store.level for name in "ab"} == {2}
    assert stage.node("c").store.level == 1
    stage.net.refused.clear()
    run_with(stage, "c", BUILD)
    assert stage.damage("a") == []


# --- the leader writes nothing that the cluster's level does not allow ----------------------------


def test_entry_above_the_clusters_level_does_not_get_into_the_log(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    for name in "abc":
        run_with(stage, name, NEXT)
    stage.elect("a")
    leader = stage.node("a")

    def newer(operations: Sequence[commands.Operation]) -> bytes:
        return b"\4" + commands.encode(leader._stamp_ms, operations)[1:]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(leader, "_encode", newer)
        with pytest.raises(AssertionError, match="an entry of level 4 in a cluster of level 1"):
            leader._propose([[]], tick=False)
    assert upgrade(stage, "a").body["level"] == 4
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(leader, "_encode", newer)
        leader._propose([[]], tick=False)
    stage.lab.run(0.3)
    assert stage.damage("a") == []


def raised_over_an_old_member(directory: Path) -> list[str]:
    """The level is asked for while a member runs version 0.1."""
    stage = Stage(directory)
    run_with(stage, "c", BUILD_0_1)
    stage.lab.may_end = (DamagedEntry,)
    upgrade(stage, "a")
    stage.lab.run(0.5)
    return stage.damage("a")


def test_level_is_not_raised_over_an_old_member(tmp_path: Path) -> None:
    def switch_off(patch: pytest.MonkeyPatch) -> None:
        patch.setattr("cluster.node.member.objections", lambda *arguments: [])
        patch.setattr("cluster.node.linked.can_read", lambda hello, level: hello is not None)
        patch.setattr(Member, "_entries_level_max", property(no_guard_as_in_0_1))

    compare_with_and_without(raised_over_an_old_member, switch_off, tmp_path, "c ended: Damaged")


# --- who can't read the log gets none of it -------------------------------------------------------


def taken_back_too_late(directory: Path) -> list[str]:
    """A member goes back to 0.1 when the entry that raises the level is in the leader's log."""
    stage = Stage(directory)
    stage.net.cut_off("a", "b", "c")
    stage.lab.send("a", Request(UPGRADE, ""))
    stage.lab.step()
    assert stage.node("a")._log_level() == 3
    stage.lab.crash("c")
    stage.lab.may_end = (DamagedEntry,)
    stage.net.heal()
    stage.lab.builds["c"] = BUILD_0_1
    stage.net.refused |= {frozenset("bc")}
    stage.lab.start("c")
    stage.lab.run(1.0)
    return stage.damage("a")


def test_member_that_went_back_to_0_1_gets_no_entry_that_it_cannot_read(tmp_path: Path) -> None:
    def switch_off(patch: pytest.MonkeyPatch) -> None:
        def anybody(hello: Hello | None, level: int) -> bool:
            return hello is not None

        patch.setattr("cluster.node.linked.can_read", anybody)
        patch.setattr(Member, "_entries_level_max", property(no_guard_as_in_0_1))

    compare_with_and_without(taken_back_too_late, switch_off, tmp_path, "c ended: DamagedEntry")


def test_level_of_the_log_falls_with_the_entry_that_is_undone(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    stage.net.cut_off("a", "b", "c")
    stage.lab.send("a", Request(UPGRADE, ""))
    stage.lab.step()
    run_with(stage, "c", BUILD_0_1)
    stage.elect("b")
    stage.publish("b", "x")
    assert stage.node("a")._log_level() == 3
    stage.net.heal()
    stage.lab.until(lambda: stage.node("a")._log_level() == 1)
    stage.lab.until(lambda: "c" in stage.node("a").linked.names)
    assert stage.damage("b") == []


def test_follower_knows_the_level_of_a_log_that_it_has_not_applied(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    stage.net.cut_off("a", "c")
    stage.net.cut |= {("b", "a")}  # b hears the leader, which does not hear that
    stage.lab.send("a", Request(UPGRADE, ""))
    stage.lab.run(0.2)
    node = stage.node("b")
    assert (node.store.level, node._log_level()) == (1, 3)
    stage.lab.crash("b")
    stage.lab.start("b")
    assert (stage.node("b").store.level, stage.node("b")._log_level()) == (1, 3)
    run_with(stage, "c", BUILD_0_1)
    assert "c" not in stage.node("b").linked.names


# --- a follower takes nothing that it could not apply ---------------------------------------------


def entry_from_the_future(directory: Path) -> list[str]:
    """An entry that a follower can't read reaches it all the same, behind one that it can."""
    stage = Stage(directory)
    stage.lab.may_end = (DamagedEntry,)
    last, term = stage.node("c").journal.last_index, stage.raft("a").term
    readable = REGULAR + commands.encode(
        1, [commands.Admit("a", stage.node("a").identity.incarnation)]
    )
    entries = [(readable, last + 1, term), (REGULAR + b"\7from 2030", last + 2, term)]
    stage.net.cut_off("a", "b", "c")
    for commit in (last, last + 2):
        stage.node("c").take_message("a", AppendEntries(term, commit, last, term, entries))
        stage.lab.turn("c")
        if "c" in stage.lab.ended:
            return [f"c ended: {stage.lab.ended['c']!r}"]
    evidence = []
    if stage.node("c").journal.last_index != last + 1:
        evidence.append("c took what it can't apply")
    refusals = [fields for name, event, fields in stage.lab.log if event == "entry_refused"]
    assert not refusals or refusals == [
        {
            "level": "error",
            "index": last + 2,
            "feature_level": 7,
            "reason": f"it needs level 7; this is {BUILD}: install a newer one",
        }
    ]
    return evidence


def test_entry_that_cannot_be_applied_is_not_acknowledged(tmp_path: Path) -> None:
    def switch_off(patch: pytest.MonkeyPatch) -> None:
        patch.setattr(Member, "_note_level", lambda member, entry: False)
        patch.setattr(Member, "_entries_level_max", LEVEL_MAX)

    compare_with_and_without(
        entry_from_the_future,
        switch_off,
        tmp_path,
        "c ended: DamagedEntry",
    )


# --- a build that is too old does not start -------------------------------------------------------


def test_node_of_an_older_build_refuses_to_start_after_the_raise(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    assert upgrade(stage, "a").ok
    stage.lab.run(0.3)
    stage.lab.crash("c")
    stage.lab.builds["c"] = BUILD_0_1
    with pytest.raises(UnsupportedLevel, match="this node's store, is at level 3"):
        stage.lab.start("c")
    stage.net.leave("c")
    stage.lab.builds["c"] = BUILD
    stage.lab.start("c")
    stage.publish("a", "x")
    assert stage.damage("a") == []


def test_entry_in_its_own_log_that_it_cannot_read_keeps_a_node_from_starting(
    tmp_path: Path,
) -> None:
    stage = Stage(tmp_path)
    stage.net.cut_off("a", "b", "c")
    stage.lab.send("a", Request(UPGRADE, ""))
    stage.lab.run(0.1)
    stage.lab.crash("a")
    stage.lab.builds["a"] = BUILD_0_1
    with pytest.raises(UnsupportedLevel, match="of this node's log needs level 3"):
        stage.lab.start("a")
    stage.net.leave("a")


def test_copy_of_a_level_that_is_not_understood_is_not_taken(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    assert upgrade(stage, "a").ok
    stage.lab.run(0.3)
    stage.lab.crash("c")
    stage.lab.wipe("c")
    stage.lab.builds["c"] = BUILD_0_1
    stage.lab.may_end = (UnsupportedLevel,)
    stage.lab.start("c")
    stage.lab.until(lambda: "c" in stage.lab.ended)
    assert "copy of its store is of level 3" in str(stage.lab.ended["c"])
    stage.lab.builds["c"] = BUILD
    stage.lab.start("c")
    stage.lab.until(lambda: stage.is_member("c"))
    assert stage.node("c").store.level == 3
