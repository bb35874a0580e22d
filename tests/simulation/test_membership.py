"""Founding and readmission: docs/decisions/0003-wiped-nodes.md, sentence by sentence."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from cluster.members.membership import ReplacedError
from cluster.settings.config import RaftSettings
from cluster.store import commands
from cluster.wire.messages import AppendEntriesResponse
from tests.simulation.bench import Stage, WorldBench

MakeBench = Callable[..., WorldBench]
MakeStage = Callable[..., Stage]

FOUNDING_OPERATIONS = 12  # of a disk while a node becomes a member; more change nothing


def readmitted(stage: Stage, name: str, seconds: float = 10.0) -> bool:
    """Return whether a node becomes a member and catches up in so many virtual seconds."""

    def has_caught_up() -> bool:
        leader = stage.leader()
        if not stage.is_member(name) or not leader:
            return False
        raft = stage.raft(name)
        return raft.applied_index == stage.raft(leader).applied_index and raft.leader == leader

    return stage.reaches(has_caught_up, seconds)


def admissions(stage: Stage) -> list[str]:
    return [fields["incarnation"] for _, event, fields in stage.log if event == "admitting"]


def incarnation(bench: WorldBench, name: str) -> str:
    return bench.replica(name).identity.incarnation


def check_states(bench: WorldBench) -> None:
    """Let what is under way come to its end; see that all members' states are the same."""
    bench.run(1.0)
    for name in bench.members():
        bench.invariants.compare_digest(name, bench.member(name))
    assert bench.invariants.failures == []


# --- founding -------------------------------------------------------------------------------------


@pytest.mark.parametrize("away", ["a", "b", "c"])
def test_two_fresh_nodes_never_found_without_the_third(make_bench: MakeBench, away: str) -> None:
    bench = make_bench()
    bench.world.cut(away)
    bench.run(20.0)
    assert bench.members() == ""
    bench.heal()
    bench.wait_for_leader()
    assert bench.members() == "abc"


def test_a_founding_member_may_come_late(make_bench: MakeBench) -> None:
    bench = make_bench()
    bench.cut_off("b", "c")

    def cut_off_who_has_founded(kind: str, fields: dict[str, str]) -> None:
        if kind == "founded":
            bench.world.cut(fields["node"])

    bench.world.observers.append(cut_off_who_has_founded)
    bench.run(2.0)
    assert bench.members() == "a"
    bench.world.observers.remove(cut_off_who_has_founded)
    bench.heal()
    bench.until(lambda: bench.members() == "abc")
    bench.wait_for_leader()
    sets = {str(bench.replica(name).identity.founding) for name in "abc"}
    assert len(sets) == 1


@pytest.mark.parametrize("operation", range(1, FOUNDING_OPERATIONS))
@pytest.mark.parametrize("name", ["a", "b"])
def test_a_crash_while_founding_leaves_nothing_behind(
    make_bench: MakeBench, name: str, operation: int
) -> None:
    bench = make_bench()
    bench.until(lambda: bench.machine(name).up)
    bench.world.power_loss(name, at="any", count=operation)
    bench.run(1.0)
    bench.start(*(each for each in "abc" if not bench.machine(each).up))
    bench.wait_for_leader()
    bench.until(lambda: bench.members() == "abc")
    check_states(bench)


def test_a_founder_wiped_at_once_is_readmitted(make_bench: MakeBench) -> None:
    bench = make_bench()
    bench.until(lambda: bench.members() == "abc", 1.0)
    bench.start_anew("a")
    bench.until(lambda: bench.members() == "abc")
    assert bench.replica("a").identity.founding is None
    check_states(bench)


def test_a_power_loss_before_the_first_checkpoint_costs_nothing(make_stage: MakeStage) -> None:
    stage = make_stage()
    stage.publish("a", "x")
    for name in "abc":
        stage.world.power_loss(name, keep="lost")
    stage.start(*"abc")
    stage.run(0.1)
    stage.check("a")


# --- readmission ----------------------------------------------------------------------------------


@pytest.mark.parametrize("which", ["leader", "follower"])
def test_a_wiped_node_catches_up_under_writes(make_stage: MakeStage, which: str) -> None:
    stage = make_stage()
    stage.publish("a", "x0", "x1")
    wiped = "a" if which == "leader" else "c"
    stage.crash(wiped)
    stage.elect("b")
    stage.start_anew(wiped)
    for number in range(15):
        stage.publish("b", f"y{number}")
    assert readmitted(stage, wiped)
    stage.publish("b", "z")
    stage.run(0.5)
    stage.check(wiped)  # as good a leader as any


def test_a_wiped_node_with_another_one_down_waits_for_it(make_stage: MakeStage) -> None:
    stage = make_stage()
    stage.publish("a", "x")
    stage.crash("b")
    stage.start_anew("c")
    stage.put("a", "y")
    assert not stage.reaches(lambda: stage.is_member("c"), 20.0)
    assert "y" not in stage.acknowledged()
    stage.start("b")
    stage.until(lambda: "y" in stage.acknowledged())
    assert readmitted(stage, "c")
    stage.check("a")


@pytest.mark.parametrize("operation", range(1, FOUNDING_OPERATIONS))
def test_a_crash_while_rejoining_begins_again(make_stage: MakeStage, operation: int) -> None:
    stage = make_stage()
    stage.publish("a", "x")
    stage.start_anew("c")
    stage.world.power_loss("c", at="any", count=operation)
    stage.until(lambda: not stage.machine("c").up)
    stage.start("c")
    assert readmitted(stage, "c")
    stage.check("c")


def test_a_node_wiped_twice_is_readmitted_twice(make_stage: MakeStage) -> None:
    stage = make_stage()
    for round_number in range(2):
        stage.publish("a", f"x{round_number}")
        stage.start_anew("c")
        assert readmitted(stage, "c")
    stage.check("c")


def test_acknowledgments_of_the_old_incarnation_count_no_more(make_stage: MakeStage) -> None:
    stage = make_stage()
    stage.cut_off("b", "a", "c")
    stage.publish("a", "x")
    stage.until(lambda: stage.raft("a").match_index("c") == stage.member("a").journal.last_index)
    stage.start_anew("c")
    stage.run(0.1)
    assert stage.raft("a").match_index("c") == 0
    stage.put("a", "y")
    stage.run(0.1)
    late = AppendEntriesResponse(
        stage.raft("a").term, stage.member("a").journal.last_index + 1, False, True
    )
    stage.deliver("c", "a", late)
    stage.run(0.5)
    assert "y" not in stage.acknowledged()
    assert stage.raft("a").match_index("c") == 0
    stage.heal()
    stage.until(lambda: "y" in stage.acknowledged())
    stage.check("a")


def test_a_readmitted_leader_brings_up_a_follower_that_missed_its_admission(
    make_stage: MakeStage,
) -> None:
    stage = make_stage("abcde")
    stage.cut_off("c", *"abde")
    stage.start_anew("b")
    assert readmitted(stage, "b")
    stage.elect("b")
    stage.crash("a")
    stage.heal()
    assert stage.reaches(
        lambda: stage.raft("c").applied_index == stage.raft("b").applied_index, 5.0
    ), "c does not hear of the entry that admits its leader"
    stage.start("a")
    stage.check("b")


def test_a_majority_serves_though_one_of_it_missed_an_admission(make_stage: MakeStage) -> None:
    stage = make_stage()
    stage.start_anew("b")
    stage.until(lambda: stage.raft("a").uncommitted_entries > 0)
    while stage.raft("a").uncommitted_entries:
        stage.run(0.0001)
    stage.part("c", "a", "b")  # it has the admission, and has not heard that it is committed
    assert stage.raft("c").commit_index < stage.raft("a").commit_index
    assert readmitted(stage, "b")
    stage.publish("a", "x")
    stage.run(0.2)
    stage.crash("a")
    stage.check("b")


# --- a directory that was replaced ----------------------------------------------------------------


def test_a_running_node_that_was_replaced_stops(make_stage: MakeStage) -> None:
    stage = make_stage()
    stage.may_end = (ReplacedError,)
    stage.append("a", commands.encode(0, [commands.Admit("c", "another-incarnation")]))
    stage.run(0.5)
    assert isinstance(stage.ended().get("c"), ReplacedError)


def test_a_node_that_has_the_entry_which_replaces_it_does_not_campaign(
    make_stage: MakeStage,
) -> None:
    stage = make_stage()
    stage.may_end = (ReplacedError,)
    # A leader of version 0.1 sends the entry to whom it replaces, ours does not.
    stage.member("a")._pending.newest = lambda *ignored: None  # type: ignore[method-assign]
    stage.world.cut_one_way("b", "a")
    stage.world.cut_one_way("c", "a")
    admit = commands.encode(0, [commands.Admit("c", "another-incarnation")])
    index = stage.append("a", admit)
    stage.until(lambda: stage.member("c").journal.last_index == index, 1.0)
    stage.crash("a")
    stage.heal()
    stage.campaign("c")
    stage.run(2.0)
    assert not stage.raft("c").is_leader
    stage.start("a")
    stage.elect("a")
    stage.run(2.0)
    assert isinstance(stage.ended().get("c"), ReplacedError)


def tell_of_a_stranger(stage: Stage) -> None:
    """Have a hear c, and whoever says that it is c."""
    stranger = replace(
        stage.replica("c").hello(), incarnation="stranger", fresh=True, founding=None
    )
    told = stage.net.hello_of
    stage.net.hello_of = (  # type: ignore[method-assign]
        lambda observer, name: stranger if (observer, name) == ("a", "c") else told(observer, name)
    )


def test_a_member_that_is_heard_is_not_replaced_by_whoever_is_empty(make_stage: MakeStage) -> None:
    stage = make_stage()
    admitted = stage.member("a").store.members
    tell_of_a_stranger(stage)
    stage.run(RaftSettings.takeover_ms / 1000 - 1.0)
    assert stage.member("a").store.members == admitted
    assert any(event == "readmission_waits" for _, event, _ in stage.log)
    stage.run(30.0)  # b goes on to say that it hears c
    assert stage.member("a").store.members == admitted


def test_nobody_is_taken_for_silent_while_the_leader_was_suspended(make_stage: MakeStage) -> None:
    stage = make_stage()
    admitted = stage.member("a").store.members
    tell_of_a_stranger(stage)
    stage.run(1.0)
    for name in "abc":  # a host is put to sleep, and wakes up
        stage.world.pause(name)
    stage.run(RaftSettings.takeover_ms / 1000)
    stage.world.resume("a")
    stage.run(0.1)
    stage.world.resume("all")
    stage.run(5.0)
    assert stage.leader() == "a"
    assert stage.member("a").store.members == admitted


def test_a_member_that_was_admitted_and_still_copies_is_heard(make_stage: MakeStage) -> None:
    stage = make_stage()
    stage.start_anew("c")
    stage.until(lambda: len(admissions(stage)) == 1)
    for other in "ab":
        stage.world.cut_one_way(other, "c")  # it gets no copy, and goes on saying that it lives
    stage.run(2 * RaftSettings.takeover_ms / 1000)
    assert not stage.is_member("c")
    stage.start_anew("c")
    stage.heal()
    stage.run(RaftSettings.takeover_ms / 1000 - 0.5)
    assert len(admissions(stage)) == 1, "it was heard half a second less than it has to be silent"
    stage.until(lambda: len(admissions(stage)) == 2)


def test_a_second_member_is_not_replaced_before_the_first_has_caught_up(
    make_stage: MakeStage,
) -> None:
    stage = make_stage()
    stage.start_anew("c")
    stage.until(lambda: stage.member("a").store.members["c"] == incarnation(stage, "c"))
    if not stage.is_member("c"):
        stage.crash("c")  # admitted, and it has nothing yet
    members = stage.member("a").store.members
    stage.start_anew("b")
    stage.run(20.0)
    assert stage.member("a").store.members == members
    told = stage.replica("b").frontend.status()["waiting_for"]
    assert "a: a leads and waits: without b only a can be reached" in told[0]


def test_who_leads_no_more_advises_nobody_any_more(make_stage: MakeStage) -> None:
    stage = make_stage()
    stage.start_anew("c")

    def told() -> str:
        return "; ".join(stage.replica("c").frontend.status().get("waiting_for", []))

    stage.until(lambda: "a: a leads and waits: c " in told())
    stage.elect("b")
    stage.run(1.5)
    assert "b: b leads and waits: c " in told()
    assert "a leads" not in told()


def test_a_replaced_directory_takes_no_part(make_stage: MakeStage, tmp_path: Path) -> None:
    stage = make_stage()
    stage.crash("c")
    old = stage.copy_out("c", tmp_path / "old")
    stage.start_anew("c")
    assert readmitted(stage, "c")
    stage.wipe("c")
    stage.copy_in(old, "c")
    stage.may_end = (ReplacedError,)
    stage.crash("b")
    stage.start("c")
    stage.put("a", "x")
    stage.campaign("c")
    assert not stage.reaches(lambda: "x" in stage.acknowledged(), 5.0)
    assert stage.raft("a").is_leader
    ended = stage.ended()["c"]
    assert isinstance(ended, ReplacedError)
    assert "evicted: readmitted as incarnation" in str(ended)
    stage.start("b")
    stage.until(lambda: "x" in stage.acknowledged())
    stage.check("a")


def test_a_readmitted_node_hands_out_no_founding_set(make_stage: MakeStage) -> None:
    stage = make_stage()
    stage.start_anew("c")
    assert readmitted(stage, "c")
    identity = stage.machine("c").identity()
    assert identity is not None
    assert identity.started
    assert identity.founding is None
