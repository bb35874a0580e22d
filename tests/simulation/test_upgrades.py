"""Rule 30 of docs/raft.md: a cluster is upgraded node by node, and nobody gets what it can't read.

What happens without the guards the simulator's planted bugs show (chaos/simulation/bugs).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from chaos.simulation.world import network
from cluster.log.entries import REGULAR
from cluster.store import commands
from cluster.wire.levels import BUILD, BUILD_0_1, Build, UnsupportedLevel
from cluster.wire.messages import AppendEntries
from flotilla_client.protocol import UPGRADE, Reply, Request
from tests.simulation.bench import Stage

MakeStage = Callable[..., Stage]

NEXT = Build("9.0", 1, 6)


def upgrade(stage: Stage, node: str, level: int | None = None) -> Reply:
    body = {} if level is None else {"level": level}
    return stage.ask(node, Request(UPGRADE, "", body=body))


def run_with(stage: Stage, name: str, build: Build) -> None:
    """Start a node again with another program."""
    stage.crash(name)
    stage.start(name, build=build)
    stage.run(1.0)


# --- the procedure --------------------------------------------------------------------------------


def test_level_is_raised_when_the_last_member_runs_the_new_build(make_stage: MakeStage) -> None:
    stage = make_stage()
    for name in "bc":
        run_with(stage, name, NEXT)
    refused = upgrade(stage, "a")
    assert refused.body["error"] == "not_upgraded"
    assert refused.body["level"] == 1
    assert refused.body["message"].startswith("level 6 takes all members: a runs version")
    assert upgrade(stage, "a", 2).body == {"level": 2, "before": 1}
    assert upgrade(stage, "b").body["error"] == "not_upgraded"  # any node may be asked
    stage.crash("a")
    stage.elect("b")
    stage.run(1.0)
    assert upgrade(stage, "b").body["message"] == (
        "level 6 takes all members: a has not been seen for 1 s"
    )
    run_with(stage, "a", NEXT)
    assert upgrade(stage, "b").body == {"level": 6, "before": 2}
    assert upgrade(stage, "b").body == {"level": 6, "before": 6}
    lower = upgrade(stage, "b", 2).body
    assert (lower["error"], lower["message"]) == (
        "bad_request",
        "the cluster's level is 6; it is never lowered",
    )
    stage.run(0.3)
    assert [stage.member(name).store.level for name in "abc"] == [6, 6, 6]
    assert {stage.replica(name).hello().extension.level for name in "abc"} == {6}
    stage.check("b")


def test_member_that_missed_the_raise_says_the_level_that_its_copy_brings(
    make_stage: MakeStage,
) -> None:
    stage = make_stage(segment_bytes=1024, keep_bytes=1024)
    stage.cut_off("c", "a", "b")  # it is connected still, as nobody has noticed
    assert upgrade(stage, "a").body == {"level": 5, "before": 1}
    stage.publish("a", *(f"x{number}" for number in range(20)))
    stage.run(0.2)
    for name in "ab":
        stage.world.compact(name)
    stage.until(
        lambda: stage.member("a").journal.first_index > stage.member("c").journal.last_index
    )
    stage.heal()
    stage.until(lambda: stage.member("c").store.level == 5)
    assert ("c", "snapshot_installed") in [(name, event) for name, event, _ in stage.log]
    stage.run(0.3)
    told = stage.net.hello_of("a", "c")
    assert told is not None
    assert told.extension.level == 5


def test_new_leader_that_has_never_seen_a_member_raises_nothing(make_stage: MakeStage) -> None:
    stage = make_stage()
    stage.crash("a", "b", "c")
    stage.start("a", "b")
    stage.run(1.0)
    stage.elect("b")
    assert upgrade(stage, "b").body["message"] == (
        "level 5 takes all members: c has not been seen since b started"
    )


def test_wiped_member_counts_again_when_it_is_a_member_again(make_stage: MakeStage) -> None:
    stage = make_stage()

    def incarnation_at(name: str) -> str:
        told = stage.net.hello_of(name, "c")
        return "" if told is None else told.incarnation

    stage.cut_off("b", "c")
    stage.start_anew("c")
    stage.until(lambda: incarnation_at("a") == stage.replica("c").identity.incarnation)
    assert not stage.is_member("c")
    assert "c " in upgrade(stage, "a").body["message"]
    stage.until(lambda: stage.is_member("c"))
    stage.run(0.5)
    assert upgrade(stage, "a").ok
    stage.run(0.5)
    assert stage.member("c").store.level == 5


def test_member_that_is_gone_when_the_raise_is_appended_harms_nobody(
    make_stage: MakeStage,
) -> None:
    stage = make_stage()
    request = Request(UPGRADE, "r", body={"level": 2})
    assert stage.member("a").broker.request(b"client", request, 0.0) is None
    stage.part("a", "c")
    run_with(stage, "c", BUILD_0_1)
    assert {stage.member(name).store.level for name in "ab"} == {2}
    assert stage.member("c").store.level == 1
    stage.heal()
    run_with(stage, "c", BUILD)
    assert [failure.check for failure in stage.invariants.failures] == ["level"]
    stage.invariants.failures.clear()  # it says that c was away then
    stage.check("a")


# --- the leader writes nothing that the cluster's level does not allow ----------------------------


def test_entry_above_the_clusters_level_does_not_get_into_the_log(make_stage: MakeStage) -> None:
    stage = make_stage()
    for name in "abc":
        run_with(stage, name, NEXT)
    stage.elect("a")
    leader = stage.member("a")

    def newer(operations: Sequence[commands.Operation]) -> bytes:
        return b"\6" + commands.encode(leader._stamp.ms, operations, leader._stamp.wall_ms)[1:]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(leader, "_encode", newer)
        with pytest.raises(AssertionError, match="an entry of level 6 in a cluster of level 1"):
            leader._propose([[]], tick=False)
    assert upgrade(stage, "a").body["level"] == 6
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(leader, "_encode", newer)
        leader._propose([[]], tick=False)
    stage.run(0.3)
    stage.check("a")


def test_level_is_not_raised_over_an_old_member(make_stage: MakeStage) -> None:
    stage = make_stage()
    run_with(stage, "c", BUILD_0_1)
    assert upgrade(stage, "a").body["error"] == "not_upgraded"
    stage.run(0.5)
    stage.check("a")


# --- who can't read the log gets none of it -------------------------------------------------------


def test_member_that_went_back_to_0_1_gets_no_entry_that_it_cannot_read(
    make_stage: MakeStage,
) -> None:
    """A member goes back to 0.1 when the entry that raises the level is in the leader's log."""
    stage = make_stage()
    stage.cut_off("a", "b", "c")
    stage.send("a", Request(UPGRADE, ""))
    stage.until(lambda: stage.member("a")._log_level() == 5, 1.0)
    stage.crash("c")
    stage.heal()
    stage.cut_off("b", "c")
    stage.start("c", build=BUILD_0_1)
    stage.run(1.0)
    assert stage.member("c").journal.last_index < stage.member("a").journal.last_index
    stage.check("a")


def test_level_of_the_log_falls_with_the_entry_that_is_undone(make_stage: MakeStage) -> None:
    stage = make_stage()
    stage.cut_off("a", "b", "c")
    stage.send("a", Request(UPGRADE, ""))
    stage.run(0.1)
    run_with(stage, "c", BUILD_0_1)
    stage.elect("b")
    stage.publish("b", "x")
    assert stage.member("a")._log_level() == 5
    stage.heal()
    stage.until(lambda: stage.member("a")._log_level() == 1)
    stage.until(lambda: "c" in stage.member("a").linked.names)
    stage.check("b")


def test_follower_knows_the_level_of_a_log_that_it_has_not_applied(make_stage: MakeStage) -> None:
    stage = make_stage()
    stage.cut_off("a", "c")
    stage.world.cut_one_way("b", "a")  # b hears the leader, which does not hear that
    stage.send("a", Request(UPGRADE, ""))
    stage.run(0.2)
    node = stage.member("b")
    assert (node.store.level, node._log_level()) == (1, 5)
    stage.crash("b")
    stage.start("b")
    assert (stage.member("b").store.level, stage.member("b")._log_level()) == (1, 5)
    run_with(stage, "c", BUILD_0_1)
    assert "c" not in stage.member("b").linked.names


# --- a follower takes nothing that it could not apply ---------------------------------------------


def test_entry_that_cannot_be_applied_is_not_acknowledged(make_stage: MakeStage) -> None:
    stage = make_stage()
    last, term = stage.member("c").journal.last_index, stage.raft("a").term
    incarnation = stage.replica("a").identity.incarnation
    readable = REGULAR + commands.encode(1, [commands.Admit("a", incarnation)])
    entries = [(readable, last + 1, term), (REGULAR + b"\7from 2030", last + 2, term)]
    stage.cut_off("a", "b", "c")
    for commit in (last, last + 2):
        stage.deliver("a", "c", AppendEntries(term, commit, last, term, entries))
        stage.turn("c")
        assert stage.member("c").journal.last_index == last + 1
    refusals = [fields for name, event, fields in stage.log if event == "entry_refused"]
    assert refusals == [
        {
            "node": "c",
            "index": last + 2,
            "feature_level": 7,
            "reason": f"it needs level 7; this is {BUILD}: install a newer one",
        }
    ]


# --- a build that is too old does not start -------------------------------------------------------


def test_node_of_an_older_build_refuses_to_start_after_the_raise(make_stage: MakeStage) -> None:
    stage = make_stage()
    stage.may_end = (UnsupportedLevel,)
    assert upgrade(stage, "a").ok
    stage.run(0.3)
    stage.crash("c")
    stage.start("c", build=BUILD_0_1)
    assert "this node's store, is at level 5" in str(stage.ended()["c"])
    stage.start("c", build=BUILD)
    stage.publish("a", "x")
    stage.check("a")


def test_entry_in_its_own_log_that_it_cannot_read_keeps_a_node_from_starting(
    make_stage: MakeStage,
) -> None:
    stage = make_stage()
    stage.may_end = (UnsupportedLevel,)
    stage.cut_off("a", "b", "c")
    stage.send("a", Request(UPGRADE, ""))
    stage.run(0.1)
    stage.crash("a")
    stage.start("a", build=BUILD_0_1)
    assert "of this node's log needs level 5" in str(stage.ended()["a"])


def test_copy_of_a_level_that_is_not_understood_is_not_taken(
    make_stage: MakeStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(network, "unfit", lambda *hellos: "")  # the handshake would refuse it
    stage = make_stage()
    stage.may_end = (UnsupportedLevel,)
    assert upgrade(stage, "a").ok
    stage.run(0.3)
    stage.wipe("c")
    stage.start("c", build=BUILD_0_1)
    stage.until(lambda: "c" in stage.ended())
    assert "copy of its store is of level 5" in str(stage.ended()["c"])
    stage.start("c", build=BUILD)
    stage.until(lambda: stage.is_member("c"))
    assert stage.member("c").store.level == 5
