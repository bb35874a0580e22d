"""One node's turn. What a cluster of them does is proved in tests/simulation."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from chaos.simulation.disks.disk import PowerLoss
from cluster.log.entries import REGULAR
from cluster.node import member as member_module
from cluster.node.replica import Replica
from cluster.serve import frontend, intake
from cluster.store import commands, store
from cluster.wire.messages import Health
from flotilla_client.protocol import REQUEST_ID, STATUS, TOPICS, Request
from tests.simulation.lab import STEP_S, Lab
from tests.simulation.schedules import BY_HAND, Stage


def test_a_node_wiped_twice_in_a_row_pulls_no_copy_from_before_its_admission(
    tmp_path: Path,
) -> None:
    stage = Stage(tmp_path, "abc")
    for _ in range(4):
        stage.lab.crash("c")
        stage.lab.wipe("c")
        stage.lab.start("c")
        stage.lab.until(lambda: stage.is_member("c"))
    assert [event for name, event, _ in stage.lab.log if event == "copy_too_old"] == []


def test_requests_that_are_answered_at_once_keep_no_read_from_its_answer(tmp_path: Path) -> None:
    lab = Lab(tmp_path, "a")
    lab.start("a")
    leader = lab.elect()
    for _ in range(5):
        lab.send(leader, Request(STATUS, ""))
        read = lab.send(leader, Request(TOPICS, "", body={"all": True}))
        for _ in range(3):
            lab.send(leader, Request(STATUS, ""))
            lab.step()
        assert read in lab.replies
    lab.close()


def test_a_relayed_request_that_finds_no_room_at_the_leader_is_refused_and_not_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab = Lab(tmp_path, "abc")
    for name in "abc":
        lab.start(name)
    leader = lab.elect()
    follower = next(name for name in "abc" if name != leader)
    monkeypatch.setattr(intake, "RELAYS_WAITING_MAX", 0)
    read = lab.send(follower, Request(TOPICS, "", body={"all": True}))
    lab.until(lambda: read in lab.replies)
    assert lab.replies[read].body["error"] == "overloaded"
    lab.close()


def test_what_peers_sent_has_its_time_in_a_turn_and_none_of_it_is_lost(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    node, now = stage.replica("b"), 0.0
    node._hearing._clock = lambda: now
    taken: list[tuple[str, int]] = []

    def take(name: str, message: Health) -> None:
        """Let every message take eight milliseconds, so that the share is over after a few."""
        nonlocal now
        now += 0.008
        taken.append((name, message.applied_index))

    node._neighbours.take_health = take  # type: ignore[method-assign]
    stage.net.hold("a", "b")
    stage.net.hold("c", "b")
    for source, count in (("a", 10), ("c", 3)):
        stage.net.take(source, "b")
        stage.net.put(source, "b", *(Health(number, False) for number in range(count)))
    stage.net.held.clear()
    turns = 0
    while len(taken) < 13:
        before = now
        node.turn(stage.lab.now, [])
        assert now - before <= 0.25 * BY_HAND.heartbeat_s + 2 * 0.008, "and what one step takes"
        assert node.busy == (len(taken) < 13), "the others have the next turn, at once"
        turns += 1
    assert turns > 3
    assert [each for name, each in taken if name == "a"] == list(range(10))
    assert [each for name, each in taken if name == "c"] == list(range(3))


def test_what_is_applied_is_answered_at_once_and_committed_by_time_or_by_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(member_module, "COMMIT_PERIOD_S", 50 * STEP_S)
    monkeypatch.setattr(member_module, "COMMIT_ENTRIES_MAX", 3)
    lab = Lab(tmp_path, "a")
    lab.start("a")
    leader = lab.elect()
    member = lab.nodes[leader].member
    assert member is not None

    def ask() -> int:
        """Have an entry applied and answered; return how many wait for a commit then."""
        request = lab.send(leader, Request(REQUEST_ID, ""))
        lab.until(lambda: request in lab.replies)
        return member.store.uncommitted

    lab.until(lambda: member.store.uncommitted == 0)
    lab.until(lambda: member._commit_due_s > lab.now + 40 * STEP_S)
    assert [ask(), ask(), ask()] == [1, 2, 0]
    since = lab.now
    assert ask() == 1
    lab.until(lambda: member.store.uncommitted == 0)
    assert lab.now - since <= 52 * STEP_S
    assert ask() == 1
    lab.crash(leader)
    lab.start(leader)
    lab.elect()
    reopened = lab.nodes[leader].member
    assert reopened is not None
    assert reopened.store.statistics()["clients"] == 5
    lab.close()


def test_a_turn_ends_when_its_time_does_and_everybody_is_answered_in_later_ones(
    tmp_path: Path,
) -> None:
    lab = Lab(tmp_path, "a")
    lab.start("a")
    leader = lab.elect()
    node, member = lab.nodes[leader], lab.nodes[leader].member
    assert member is not None
    looks = 0

    def clock() -> float:
        """Let every step take a millisecond, so that each share is over after a few."""
        nonlocal looks
        looks += 1
        return looks / 1000

    for share in (node._requests, member._applying, member._serving, node._replies):
        share._clock = clock
    asked = [lab.send(leader, Request(TOPICS, "", body={"all": True})) for _ in range(100)]
    answered = []
    while len(answered) < 100:
        before = looks
        lab.step()
        assert looks - before < 50, "half of a heartbeat, at a millisecond a step"
        answered = [request_id for request_id in asked if request_id in lab.replies]
        assert answered == asked[: len(answered)], "in order"
    assert not node.busy
    lab.close()


def test_what_a_turn_has_no_time_to_apply_the_next_ones_apply(tmp_path: Path) -> None:
    stage = Stage(tmp_path, "abc")
    late, raft = stage.node("c"), stage.raft("c")
    late._applying._clock = itertools.count().__next__  # a second goes by with each look
    stage.net.held.add(("a", "c"))
    for number in range(6):
        stage.put("a", f"{number}")
        stage.lab.run(0.05)
    stage.net.heal()
    applied = raft.applied_index
    stage.lab.turn("c")
    assert raft.commit_index > applied + 1
    while applied < raft.commit_index:
        applied += 1
        assert late.store.applied_index == raft.applied_index == applied, "one in each turn"
        stage.lab.turn("c")
    stage.lab.close()


def test_a_header_is_decoded_once_a_node_and_an_entry_by_nobody_who_encoded_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = Stage(tmp_path, "abc")
    at: list[str] = []  # the node that has its turn
    decoded: list[tuple[str, str]] = []
    turn, headers, entries = Lab._turn, frontend.decode_request, commands.decode

    def note(what: str, decode: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*arguments: Any) -> Any:
            decoded.append((at[-1], what))
            return decode(*arguments)

        return noted

    def noted_turn(lab: Lab, name: str, node: Replica) -> None:
        at.append(name)
        turn(lab, name, node)

    monkeypatch.setattr(Lab, "_turn", noted_turn)
    monkeypatch.setattr(frontend, "decode_request", note("header", headers))
    for module in (commands, store):
        monkeypatch.setattr(module, "decode", note("entry", entries))
    stage.publish("b", "first", "second")  # b passes them on
    stage.lab.crash("c")
    stage.lab.wipe("c")
    stage.lab.start("c")
    stage.lab.until(lambda: stage.is_member("c"))  # the leader has written an admission
    stage.publish("a", "third")
    assert stage.read("a") == ["first", "second", "third"]
    counts = Counter(decoded)
    assert counts["a", "header"] == 4
    assert counts["b", "header"] == 2
    assert counts["a", "entry"] == 0
    assert counts["b", "entry"] >= 4


def test_what_a_node_has_made_counts_for_the_entry_s_own_term_alone(tmp_path: Path) -> None:
    stage = Stage(tmp_path, "a")
    leader, operations = stage.node("a"), [commands.Advance("p", None, {})]
    [(_, index, term)] = leader._propose([operations], tick=False).entries
    assert leader._made_of(index, term) == (int(stage.lab.now * 1000), operations)
    assert leader._made_of(index, term + 1) is None  # another leader's took its place


def test_no_acknowledgment_leaves_a_turn_whose_sync_has_not_returned(tmp_path: Path) -> None:
    stage = Stage(tmp_path, "abc")
    stage.net.cut_off("c", "a", "b")
    stage.put("a", "x")
    stage.lab.turn("a")
    stage.lab.disks["b"].power_fails_in = 0
    with pytest.raises(PowerLoss):
        stage.replica("b").turn(stage.lab.now, [])
    stage.lab.turn("a")  # takes what has left b
    assert "x" not in stage.acknowledged()
    stage.lab.lose_power("b")
    stage.lab.crash("a")
    stage.lab.start("b")
    assert stage.damage("b") == []


def test_a_lone_node_acknowledges_what_is_on_its_disk(tmp_path: Path) -> None:
    stage = Stage(tmp_path, "a")
    for number in range(6):
        stage.publish("a", f"x{number}")
        if number % 2:
            stage.lab.lose_power("a")
            stage.lab.start("a")
            stage.elect("a")
    assert stage.damage("a") == []


def test_an_exception_in_apply_is_the_end_and_not_swallowed(tmp_path: Path) -> None:
    stage = Stage(tmp_path, "abc")
    stage.lab.may_end = (commands.DamagedEntry,)
    stage.append("a", b"\1no operations")
    stage.lab.run(0.5)
    assert len(stage.lab.ended) >= 2, "whoever knows that it is committed"


def test_a_deposed_leader_says_uncertain_of_what_was_under_way(tmp_path: Path) -> None:
    stage = Stage(tmp_path, "abc")
    stage.net.cut_off("a", "b", "c")
    stage.put("a", "x")
    stage.lab.run(0.1)
    stage.elect("b")
    stage.publish("b", "y")
    stage.net.heal()
    stage.lab.run(1.0)
    assert stage.lab.replies[stage.sent["x"]].body["error"] == "uncertain"
    assert stage.damage("b") == []


def test_a_leader_without_a_majority_holds_no_more_entries_than_it_may(tmp_path: Path) -> None:
    stage = Stage(tmp_path, "abc", uncommitted_entries_max=8)
    stage.net.cut_off("a", "b", "c")
    for number in range(20):
        stage.put("a", f"x{number}")
        stage.lab.step()
    assert stage.raft("a").uncommitted_entries == 8
    assert stage.damage("b") == []


def test_a_leader_that_stops_admits_nobody_and_hands_over_all_of_its_log(tmp_path: Path) -> None:
    stage = Stage(tmp_path, "abc", takeover_s=0.1)
    leader, frontend = stage.node("a"), stage.replica("a").frontend
    stage.lab.crash("c")
    stage.lab.wipe("c")
    frontend.stop()
    stage.lab.start("c")
    last_index = leader.journal.last_index
    stage.lab.run(5.0)
    assert leader.journal.last_index == last_index, "who is handed the leadership lacks an entry"
    frontend.stopping = False
    stage.lab.until(lambda: stage.is_member("c"))


def test_a_connection_that_ended_and_began_again_between_two_turns_counts(tmp_path: Path) -> None:
    stage = Stage(tmp_path, "abc")
    node = stage.node("b")
    stage.lab.run(10.0)
    assert "a" in node.linked.names
    hello = stage.net.hello_of("b", "a")
    stage.net.break_link("a", "b")
    stage.net.dial()
    assert stage.net.hello_of("b", "a") == hello, "it says what it said before"
    stage.lab.turn("b")
    assert "a" in node.linked.names
    stage.publish("a", "first", "second")
    assert stage.read("b") == ["first", "second"]


def test_who_is_connected_and_replaced_takes_no_part_from_the_entry_on(tmp_path: Path) -> None:
    stage = Stage(tmp_path, "abc")
    node = stage.node("b")
    stage.lab.run(10.0)
    assert node.linked.names == {"a", "c"}
    index = node.journal.last_index
    payload = commands.encode(0, [commands.Admit("c", "another incarnation")])
    node._pending.note(index, REGULAR + payload)
    node._list_changed()
    assert node.linked.names == {"a"}
    node._pending.note(index, REGULAR)  # another entry stands in its place
    node._list_changed()
    assert node.linked.names == {"a", "c"}
