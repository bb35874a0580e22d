"""Founding and readmission: docs/decisions/0003-wiped-nodes.md, sentence by sentence."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from cluster.members.identity import Identity
from cluster.members.membership import ReplacedError
from cluster.members.peers import TAKEOVER_MS
from cluster.store import commands
from cluster.wire.messages import NextIndex
from tests.simulation.lab import Lab
from tests.simulation.schedules import Stage

FOUNDING_OPERATIONS = 8  # of the journal's disk while a node becomes a member; more change nothing


def members(lab: Lab) -> set[str]:
    return {name for name, node in lab.nodes.items() if node.member is not None}


def readmitted(stage: Stage, name: str, seconds: float = 10.0) -> bool:
    """Return whether a node becomes a member and catches up in so many virtual seconds."""
    lab = stage.lab

    def has_caught_up() -> bool:
        member, leader = lab.nodes[name].member, lab.leader()
        if member is None or not leader:
            return False
        raft = member.raft
        return raft.applied_index == stage.raft(leader).applied_index and raft.leader == leader

    return lab.reaches(has_caught_up, seconds)


def admissions(stage: Stage) -> list[str]:
    return [fields["incarnation"] for _, event, fields in stage.lab.log if event == "admitting"]


def check(stage: Stage, leader: str) -> None:
    assert stage.damage(leader) == []


# --- founding -------------------------------------------------------------------------------------


@pytest.mark.parametrize("pair", ["ab", "ac", "bc"])
def test_two_fresh_nodes_never_found_without_the_third(tmp_path: Path, pair: str) -> None:
    lab = Lab(tmp_path)
    lab.start(*pair)
    lab.run(20.0)
    assert members(lab) == set()
    lab.start()
    lab.elect()
    assert members(lab) == {"a", "b", "c"}


def test_a_founding_member_may_come_late(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    lab.net.refused = {frozenset("bc")}
    lab.start()
    lab.step()
    lab.turn("a")  # founds
    lab.net.cut_off("a", "b", "c")
    lab.run(1.0)
    assert "a" in members(lab)
    lab.net.heal()
    lab.elect()
    lab.run(0.5)
    assert members(lab) == {"a", "b", "c"}
    sets = {str(node.identity.founding) for node in lab.nodes.values()}
    assert len(sets) == 1


@pytest.mark.parametrize("operation", range(FOUNDING_OPERATIONS))
@pytest.mark.parametrize("name", ["a", "b"])
def test_a_crash_while_founding_leaves_nothing_behind(
    tmp_path: Path, name: str, operation: int
) -> None:
    lab = Lab(tmp_path)
    lab.start()
    lab.disks[name].power_fails_in = operation
    lab.run(1.0)
    lab.start(*(each for each in "abc" if each not in lab.nodes))
    lab.elect()
    lab.until(lambda: members(lab) == {"a", "b", "c"})
    lab.run(1.0)
    lab.oracle.compare(lab.nodes)
    assert lab.oracle.evidence == []


def test_a_founder_wiped_at_once_is_readmitted(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    lab.start()
    lab.until(lambda: members(lab) == {"a", "b", "c"}, 1.0)
    lab.crash("a")
    lab.wipe("a")
    lab.start("a")
    lab.until(lambda: members(lab) == {"a", "b", "c"})
    assert lab.nodes["a"].identity.founding is None
    lab.run(1.0)
    lab.oracle.compare(lab.nodes)
    assert lab.oracle.evidence == []


def test_a_power_loss_before_the_first_checkpoint_costs_nothing(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    stage.publish("a", "x")
    for name in "abc":
        stage.lab.lose_power(name)
    stage.lab.start()
    stage.lab.run(0.1)
    check(stage, "a")


# --- readmission ----------------------------------------------------------------------------------


@pytest.mark.parametrize("which", ["leader", "follower"])
def test_a_wiped_node_catches_up_under_writes(tmp_path: Path, which: str) -> None:
    stage = Stage(tmp_path)
    stage.publish("a", "x0", "x1")
    wiped = "a" if which == "leader" else "c"
    stage.lab.crash(wiped)
    stage.lab.wipe(wiped)
    stage.elect("b")
    stage.lab.start(wiped)
    for number in range(15):
        stage.publish("b", f"y{number}")
    assert readmitted(stage, wiped)
    stage.publish("b", "z")
    stage.lab.run(0.5)
    check(stage, wiped)  # as good a leader as any


def test_a_wiped_node_with_another_one_down_waits_for_it(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    stage.publish("a", "x")
    stage.lab.crash("b", "c")
    stage.lab.wipe("c")
    stage.lab.start("c")
    stage.put("a", "y")
    assert not stage.lab.reaches(lambda: stage.is_member("c"), 20.0)
    assert "y" not in stage.acknowledged()
    stage.lab.start("b")
    stage.lab.until(lambda: "y" in stage.acknowledged())
    assert readmitted(stage, "c")
    check(stage, "a")


@pytest.mark.parametrize("operation", range(FOUNDING_OPERATIONS))
def test_a_crash_while_rejoining_begins_again(tmp_path: Path, operation: int) -> None:
    stage = Stage(tmp_path)
    stage.publish("a", "x")
    stage.lab.crash("c")
    stage.lab.wipe("c")
    stage.lab.start("c")
    stage.lab.disks["c"].power_fails_in = operation
    stage.lab.run(5.0)
    if "c" not in stage.lab.nodes:
        stage.lab.start("c")
    assert readmitted(stage, "c")
    check(stage, "c")


def test_a_node_wiped_twice_is_readmitted_twice(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    for round_number in range(2):
        stage.publish("a", f"x{round_number}")
        stage.lab.crash("c")
        stage.lab.wipe("c")
        stage.lab.start("c")
        assert readmitted(stage, "c")
    check(stage, "c")


def test_acknowledgments_of_the_old_incarnation_count_no_more(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    stage.net.cut_off("b", "a", "c")
    stage.publish("a", "x")
    acknowledged = stage.raft("a").match_index("c")
    assert acknowledged == stage.node("a").journal.last_index
    stage.lab.crash("c")
    stage.lab.wipe("c")
    stage.lab.start("c")
    stage.lab.run(0.1)
    assert stage.raft("a").match_index("c") == 0
    stage.put("a", "y")
    stage.lab.run(0.1)
    late = NextIndex(stage.raft("a").term, stage.node("a").journal.last_index + 1, False, True)
    stage.net.put("c", "a", late)
    stage.lab.run(0.5)
    assert "y" not in stage.acknowledged()
    assert stage.raft("a").match_index("c") == 0
    stage.net.heal()
    stage.lab.until(lambda: "y" in stage.acknowledged())
    check(stage, "a")


def test_a_readmitted_leader_brings_up_a_follower_that_missed_its_admission(
    tmp_path: Path,
) -> None:
    stage = Stage(tmp_path, "abcde")
    stage.net.cut_off("c", *"abde")
    stage.lab.crash("b")
    stage.lab.wipe("b")
    stage.lab.start("b")
    assert readmitted(stage, "b")
    stage.elect("b")
    stage.lab.crash("a")
    stage.net.heal()
    assert stage.lab.reaches(
        lambda: stage.raft("c").applied_index == stage.raft("b").applied_index, 5.0
    ), "c does not hear of the entry that admits its leader"
    stage.lab.start("a")
    check(stage, "b")


def test_a_majority_serves_though_one_of_it_missed_an_admission(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    stage.lab.crash("b")
    stage.lab.wipe("b")
    stage.lab.start("b")
    stage.lab.until(lambda: stage.raft("a").uncommitted_entries > 0)
    for _ in range(5):  # c acknowledges the admission, and does not hear that it is committed
        stage.lab.turn("c")
        stage.lab.turn("a")
        if not stage.raft("a").uncommitted_entries:
            break
    for other in "ab":
        stage.net.refused.add(frozenset(("c", other)))
        stage.net.break_link("c", other)
    assert readmitted(stage, "b")
    stage.publish("a", "x")
    stage.lab.run(0.2)
    stage.lab.crash("a")
    check(stage, "b")


# --- a directory that was replaced ----------------------------------------------------------------


def test_a_running_node_that_was_replaced_stops(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    stage.lab.may_end = (ReplacedError,)
    admit = commands.encode(0, [commands.Admit("c", "another-incarnation")])
    stage.append("a", admit)
    stage.lab.run(0.5)
    assert isinstance(stage.lab.ended.get("c"), ReplacedError)


def test_a_node_that_has_the_entry_which_replaces_it_does_not_campaign(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    stage.lab.may_end = (ReplacedError,)
    # A leader of version 0.1 sends the entry to whom it replaces, ours does not.
    stage.node("a")._pending.newest = lambda *ignored: None  # type: ignore[method-assign]
    admit = commands.encode(0, [commands.Admit("c", "another-incarnation")])
    index = stage.append("a", admit)
    stage.net.cut_one_way("b", "a")
    for _ in range(3):
        stage.lab.turn("a")
        stage.lab.turn("c")
    assert stage.node("c").journal.last_index == index
    stage.lab.crash("a")
    stage.campaign("c")
    stage.lab.run(2.0)
    assert not stage.raft("c").is_leader
    stage.net.heal()
    stage.lab.start("a")
    stage.elect("a")
    stage.lab.run(2.0)
    assert isinstance(stage.lab.ended.get("c"), ReplacedError)


def test_a_member_that_is_heard_is_not_replaced_by_whoever_is_empty(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    admitted = stage.node("a").store.members
    stranger = replace(stage.net.hellos["c"], incarnation="stranger", fresh=True, founding=None)
    told = stage.net.hello_of
    stage.net.hello_of = (  # type: ignore[method-assign]  # a hears c and whoever says it is c
        lambda observer, name: stranger if (observer, name) == ("a", "c") else told(observer, name)
    )
    stage.lab.run(TAKEOVER_MS / 1000 - 1.0)
    assert stage.node("a").store.members == admitted
    assert any(event == "readmission_waits" for _, event, _ in stage.lab.log)
    stage.lab.run(30.0)  # b goes on to say that it hears c
    assert stage.node("a").store.members == admitted


def test_a_member_that_was_admitted_and_still_copies_is_heard(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    stage.lab.crash("c")
    stage.lab.wipe("c")
    stage.lab.start("c")
    stage.lab.until(lambda: len(admissions(stage)) == 1)
    stage.net.hold("a", "c")
    stage.net.hold("b", "c")  # it gets no copy, and goes on saying that it lives
    stage.lab.run(2 * TAKEOVER_MS / 1000)
    assert not stage.is_member("c")
    stage.lab.crash("c")
    stage.lab.wipe("c")
    stage.lab.start("c")
    stage.lab.run(TAKEOVER_MS / 1000 - 0.5)
    assert len(admissions(stage)) == 1, "it was heard half a second less than it has to be silent"
    stage.net.heal()
    stage.lab.until(lambda: len(admissions(stage)) == 2)


def test_a_second_member_is_not_replaced_before_the_first_has_caught_up(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    stage.lab.crash("c")
    stage.lab.wipe("c")
    stage.lab.start("c")
    stage.lab.until(lambda: stage.node("a").store.members["c"] == stage.net.hellos["c"].incarnation)
    if not stage.is_member("c"):
        stage.lab.crash("c")  # admitted, and it has nothing yet
    members = stage.node("a").store.members
    stage.lab.crash("b")
    stage.lab.wipe("b")
    stage.lab.start("b")
    stage.lab.run(20.0)
    assert stage.node("a").store.members == members
    told = stage.replica("b").frontend.status()["waiting_for"]
    assert "a: a leads and waits: without b only a can be reached" in told[0]


def test_a_replaced_directory_takes_no_part(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    old = tmp_path / "old"
    stage.lab.crash("c")
    shutil.copytree(stage.lab.data_dir("c"), old)
    stage.lab.wipe("c")
    stage.lab.start("c")
    assert readmitted(stage, "c")
    stage.lab.crash("c")
    stage.lab.wipe("c")
    shutil.copytree(old, stage.lab.data_dir("c"))
    stage.lab.may_end = (ReplacedError,)
    stage.lab.crash("b")
    stage.lab.start("c")
    stage.put("a", "x")
    stage.campaign("c")
    assert not stage.lab.reaches(lambda: "x" in stage.acknowledged(), 5.0)
    assert stage.raft("a").is_leader
    ended = stage.lab.ended.pop("c")
    assert isinstance(ended, ReplacedError)
    assert "evicted: readmitted as incarnation" in str(ended)
    stage.lab.start("b")
    stage.lab.until(lambda: "x" in stage.acknowledged())
    check(stage, "a")


def test_a_readmitted_node_hands_out_no_founding_set(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    stage.lab.crash("c")
    stage.lab.wipe("c")
    stage.lab.start("c")
    assert readmitted(stage, "c")
    identity = Identity.load(stage.lab.data_dir("c"))
    assert identity is not None
    assert identity.started
    assert identity.founding is None
