"""One node's turn. What a cluster of them does is proved in tests/simulation."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from cluster.log.entries import REGULAR
from cluster.members.membership import ReplacedError
from cluster.members.peers import RefusedBy
from cluster.node import member as member_module
from cluster.node import replica as replica_module
from cluster.node.context import DiskRoom
from cluster.node.member import HOLDER_SILENCE_S, Member
from cluster.serve import frontend, intake
from cluster.store import commands, store
from cluster.store.commands import DamagedEntry
from cluster.wire.levels import LEVEL_OF_USERS
from cluster.wire.messages import Health, Refusal
from flotilla_client.protocol import (
    ADMIN,
    EVERYBODY_ELSE,
    REMOVE_USER,
    REQUEST_ID,
    STATUS,
    TOPICS,
    TRANSFER_LEADER,
    UPGRADE,
    Request,
)
from tests.simulation.bench import STEP_S, Stage, WorldBench

MakeBench = Callable[..., WorldBench]
MakeStage = Callable[..., Stage]

HEARTBEAT_S = 0.08


def all_topics() -> Request:
    """Return a request that waits for a barrier."""
    return Request(TOPICS, "", body={"all": True})


def test_a_node_wiped_twice_in_a_row_pulls_no_copy_from_before_its_admission(
    make_stage: MakeStage,
) -> None:
    stage = make_stage()
    for _ in range(4):
        stage.start_anew("c")
        stage.until(lambda: stage.is_member("c"))
    assert [event for name, event, _ in stage.log if event == "copy_too_old"] == []


def test_requests_that_are_answered_at_once_keep_no_read_from_its_answer(
    make_bench: MakeBench,
) -> None:
    bench = make_bench("a")
    leader = bench.wait_for_leader()
    for _ in range(5):
        bench.send(leader, Request(STATUS, ""))
        read = bench.send(leader, all_topics())
        for _ in range(3):
            bench.send(leader, Request(STATUS, ""))
            bench.run(0.01)
        assert read in bench.replies


def test_a_relayed_request_that_finds_no_room_at_the_leader_is_refused_and_not_forgotten(
    make_stage: MakeStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = make_stage()
    monkeypatch.setattr(intake, "RELAYS_WAITING_MAX", 0)
    assert stage.ask("b", all_topics()).body["error"] == "overloaded"


def test_a_relayed_request_is_answered_when_the_connection_to_the_leader_ends(
    make_stage: MakeStage,
) -> None:
    stage = make_stage()
    stage.world.cut_one_way("a", "b")  # so that no answer comes
    asked = stage.send("b", all_topics())
    stage.until(lambda: stage.replica("b").frontend.relays_waiting)
    stage.net.break_link("a", "b")
    stage.until(lambda: asked in stage.replies, 1.0)
    assert stage.replies[asked].body["error"] == "uncertain"
    assert stage.raft("b").leader == "a", "nothing but the connection has ended"


def test_what_peers_sent_has_its_time_in_a_turn_and_none_of_it_is_lost(
    make_stage: MakeStage,
) -> None:
    stage = make_stage()
    node, now = stage.replica("b"), 0.0
    stage.world.pause("b")
    stage.net.ports["b"].inbox.clear()
    node._hearing._clock = lambda: now
    taken: list[tuple[str, int]] = []

    def take(name: str, message: Health) -> None:
        """Let every message take eight milliseconds, so that the share is over after a few."""
        nonlocal now
        now += 0.008
        taken.append((name, message.applied_index))

    node._neighbours.take_health = take  # type: ignore[method-assign]
    for source, count in (("a", 10), ("c", 3)):
        stage.deliver(source, "b", *(Health(number, False) for number in range(count)))
    turns = 0
    while len(taken) < 13:
        before = now
        stage.turn("b")
        assert now - before <= 0.25 * HEARTBEAT_S + 2 * 0.008, "and what one step takes"
        assert node.busy == (len(taken) < 13), "the others have the next turn, at once"
        turns += 1
    assert turns > 3
    assert [each for name, each in taken if name == "a"] == list(range(10))
    assert [each for name, each in taken if name == "c"] == list(range(3))


def test_what_is_applied_is_answered_at_once_and_committed_by_time_or_by_number(
    make_bench: MakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(member_module, "COMMIT_PERIOD_S", 50 * STEP_S)
    monkeypatch.setattr(member_module, "COMMIT_ENTRIES_MAX", 3)
    bench = make_bench("a")
    bench.wait_for_leader()
    member = bench.member("a")

    def ask() -> int:
        """Have an entry applied and answered; return how many wait for a commit then."""
        bench.ask("a", Request(REQUEST_ID, ""))
        return member.store.uncommitted

    bench.until(lambda: member.store.uncommitted == 0)
    bench.until(lambda: member._commit_due_s > bench.machine("a").clock() + 40 * STEP_S)
    assert [ask(), ask(), ask()] == [1, 2, 0]
    assert ask() == 1
    since = bench.world.now
    bench.until(lambda: member.store.uncommitted == 0)
    assert bench.world.now - since <= 53 * STEP_S, "the period, a turn and a look"
    assert ask() == 1
    bench.crash("a")
    bench.start("a")
    bench.wait_for_leader()
    assert bench.member("a").store.statistics()["clients"] == 5


def slow_down(bench: WorldBench, name: str) -> Callable[[], int]:
    """Let every step of a node take a millisecond: each share of a turn is over after a few.

    Return what tells how many steps there were.
    """
    node, member, steps = bench.replica(name), bench.member(name), itertools.count()
    looked = 0

    def clock() -> float:
        nonlocal looked
        looked = next(steps)
        return looked / 1000

    for share in (node._requests, member._applying, member._serving, node._replies):
        share._clock = clock
    return lambda: looked


def test_a_turn_ends_when_its_time_does_and_everybody_is_answered_in_later_ones(
    make_bench: MakeBench,
) -> None:
    bench = make_bench("a")
    bench.wait_for_leader()
    steps = slow_down(bench, "a")
    asked = [bench.send("a", all_topics()) for _ in range(100)]
    bench.world.watchers.append(lambda node: marks.append(steps()))
    marks = [steps()]
    bench.until(lambda: bench.replies.keys() >= set(asked))
    turns = [after - before for before, after in itertools.pairwise(marks)]
    assert max(turns) < 50, "half of a heartbeat, at a millisecond a step"
    assert [each for each in bench.replies if each in asked] == asked, "in order"
    assert not bench.replica("a").busy


def test_answers_of_earlier_turns_are_made_before_new_requests_are_looked_at(
    make_bench: MakeBench,
) -> None:
    bench = make_bench("a")
    bench.wait_for_leader()
    node = bench.replica("a")
    slow_down(bench, "a")
    taken: list[bool] = []  # of each request: whether answers of earlier turns waited
    take = node.frontend.take_request

    def noted(route: bytes, frames: Any) -> None:
        taken.append(node._behind)
        take(route, frames)

    node.frontend.take_request = noted  # type: ignore[method-assign]
    asked = [bench.send("a", Request(STATUS, "")) for _ in range(200)]

    def send_more(_: object) -> None:
        if len(asked) == 200 and node.frontend.has_answers:
            asked.extend(bench.send("a", Request(STATUS, "")) for _ in range(200))

    bench.world.watchers.append(send_more)
    bench.until(lambda: bench.replies.keys() >= set(asked))
    assert len(asked) == 400
    assert not any(taken)


def test_what_a_turn_has_no_time_to_apply_the_next_ones_apply(make_stage: MakeStage) -> None:
    stage = make_stage()
    late, raft = stage.member("c"), stage.raft("c")
    stage.world.pause("c")
    for number in range(6):
        stage.put("a", f"{number}")
        stage.run(0.05)
    late._applying._clock = itertools.count().__next__  # a second goes by with each look
    applied = raft.applied_index
    stage.turn("c")
    assert raft.commit_index > applied + 1
    while applied < raft.commit_index:
        applied += 1
        assert late.store.applied_index == raft.applied_index == applied, "one in each turn"
        stage.turn("c")


def rest(stage: Stage, seconds: float) -> None:
    """Let no node's store be due for so long."""
    for name in "abc":
        member = stage.member(name)
        member._commit_due_s = stage.machine(name).clock() + seconds


def test_a_follower_applies_at_a_stroke_what_its_leader_has_applied_one_by_one(
    make_stage: MakeStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = make_stage()
    stage.run(0.2)
    strokes: dict[str, list[int]] = {"a": [], "b": []}

    def note(member: Member, entries: Sequence[Any]) -> None:
        if member.identity.node in strokes:
            strokes[member.identity.node].append(len(entries))
        apply(member, entries)

    apply = Member._apply_committed
    monkeypatch.setattr(Member, "_apply_committed", note)
    rest(stage, 0.3)
    stage.publish("a", *"12345")
    assert strokes == {"a": [1, 1, 1, 1, 1], "b": []}
    stage.run(0.5)
    assert strokes["b"] == [5]
    assert not stage.replica("b").busy
    assert stage.member("b").store.uncommitted == 0


def test_many_entries_do_not_rest(make_stage: MakeStage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(member_module, "COMMIT_ENTRIES_MAX", 3)
    stage = make_stage()
    rest(stage, 60.0)
    before = stage.raft("b").applied_index
    stage.publish("a", *"12345")
    assert stage.raft("b").applied_index >= before + 3


def test_who_begins_to_lead_applies_what_has_rested_before_it_serves(make_stage: MakeStage) -> None:
    stage = make_stage()
    stage.run(0.2)
    rest(stage, 60.0)
    stage.publish("a", *"12345")
    assert stage.raft("b").applied_index < stage.raft("b").commit_index
    stage.elect("b")
    assert stage.raft("b").applied_index == stage.raft("b").commit_index
    assert stage.read("b") == list("12345")


def test_a_header_is_decoded_once_a_node_and_an_entry_by_nobody_who_encoded_it(
    make_stage: MakeStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = make_stage()
    decoded: list[tuple[str, str]] = []

    def note(what: str, decode: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*arguments: Any) -> Any:
            assert stage.world.active is not None
            decoded.append((stage.world.active.name, what))
            return decode(*arguments)

        return noted

    monkeypatch.setattr(frontend, "decode_request", note("header", frontend.decode_request))
    monkeypatch.setattr(store, "decode", note("entry", store.decode))
    stage.publish("b", "first", "second")  # b passes them on
    stage.start_anew("c")
    stage.until(lambda: stage.is_member("c"))  # the leader has written an admission
    stage.publish("a", "third")
    assert stage.read("a") == ["first", "second", "third"]
    stage.until(lambda: stage.raft("b").applied_index == stage.raft("a").applied_index)
    counts = Counter(decoded)
    assert counts["a", "header"] == 4
    assert counts["b", "header"] == 2
    assert counts["a", "entry"] == 0
    assert counts["b", "entry"] >= 4


def test_what_a_node_has_made_counts_for_the_entry_s_own_term_alone(make_stage: MakeStage) -> None:
    stage = make_stage("a")
    leader, operations = stage.member("a"), [commands.Advance("p", None, {})]
    [(_, index, term)] = leader._propose([operations], tick=False).entries
    assert leader._made_of(index, term) == (leader._stamp, operations)
    assert leader._made_of(index, term + 1) is None  # another leader's took its place


def test_no_acknowledgment_leaves_a_turn_whose_sync_has_not_returned(make_stage: MakeStage) -> None:
    stage = make_stage()
    stage.cut_off("c", "a", "b")
    stage.world.power_loss("b", at="fdatasync", keep="lost")
    stage.put("a", "x")
    stage.until(lambda: not stage.machine("b").up)
    stage.run(0.1)
    assert "x" not in stage.acknowledged()
    stage.crash("a")
    stage.start("b")
    stage.check("b")


def test_a_lone_node_acknowledges_what_is_on_its_disk(make_stage: MakeStage) -> None:
    stage = make_stage("a")
    for number in range(6):
        stage.publish("a", f"x{number}")
        if number % 2:
            stage.world.power_loss("a", keep="lost")
            stage.start("a")
            stage.elect("a")
    stage.check("a")


def test_an_exception_in_apply_is_the_end_and_not_swallowed(make_stage: MakeStage) -> None:
    stage = make_stage()
    stage.may_end = (DamagedEntry,)
    stage.append("a", b"\1no operations")
    stage.run(0.5)
    assert len(stage.ended()) >= 2, "whoever knows that it is committed"


def test_a_deposed_leader_says_uncertain_of_what_was_under_way(make_stage: MakeStage) -> None:
    stage = make_stage()
    stage.cut_off("a", "b", "c")
    stage.put("a", "x")
    stage.run(0.1)
    stage.elect("b")
    stage.publish("b", "y")
    stage.heal()
    stage.run(1.0)
    assert stage.replies[stage.sent["x"]].body["error"] == "uncertain"
    stage.check("b")


def test_a_leader_without_a_majority_holds_no_more_entries_than_it_may(
    make_stage: MakeStage,
) -> None:
    stage = make_stage(uncommitted_entries_max=8)
    stage.cut_off("a", "b", "c")
    for number in range(20):
        stage.put("a", f"x{number}")
        stage.run(0.01)
    assert stage.raft("a").uncommitted_entries == 8
    stage.check("b")


def test_publications_are_taken_while_a_majority_has_room_on_its_disks(
    make_stage: MakeStage,
) -> None:
    stage = make_stage()
    broker, health = stage.member("a").broker, stage.replica("a")._neighbours.health
    stage.world.disk_low("b")
    stage.until(lambda: "b" in health and health["b"].disk_low)
    stage.run(1.0)
    assert not broker.disk_low
    stage.publish("a", "x")
    stage.world.disk_low("c")
    stage.until(lambda: broker.disk_low)
    stage.world.disk_free("b")
    stage.until(lambda: not broker.disk_low)
    stage.publish("a", "y")
    stage.check("a")


def test_a_node_tells_at_once_that_its_disk_has_run_short(
    make_stage: MakeStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = make_stage()
    health = stage.replica("a")._neighbours.health
    stage.until(lambda: len(health) == 2)
    monkeypatch.setattr(replica_module, "HEALTH_PERIOD_S", 1e9)
    stage.run(1.0)  # nobody is about to tell it anyway
    broker = stage.member("a").broker
    stage.world.disk_low("b")
    stage.until(lambda: health["b"].disk_low)
    stage.world.disk_low("c")
    stage.until(lambda: health["c"].disk_low)
    stage.run(STEP_S)
    assert broker.disk_low, "what a peer says is heeded in the turn that hears it"
    stage.world.disk_free("b")
    stage.until(lambda: not health["b"].disk_low)
    stage.run(STEP_S)
    assert not broker.disk_low


def test_what_waits_for_a_majority_has_room_for_all_the_times_that_it_is_written(
    make_stage: MakeStage,
) -> None:
    member = make_stage().member("a")
    member.note_room(DiskRoom(is_low=False, spare_bytes=3_000))
    assert (member.broker.disk_low, member.broker._spare_bytes) == (False, 1_000)


def _fall_behind(stage: Stage) -> int:
    """Cut c off until the log of a lacks what c has to be sent; return c's last index."""
    stage.part("c", "a", "b")
    stage.publish("a", *(f"x{number}" for number in range(20)))
    last_index = stage.member("c").journal.last_index
    stage.world.compact("a")
    stage.until(lambda: stage.member("a").journal.first_index > last_index)
    return last_index


def test_a_copy_is_not_installed_while_a_job_may_have_the_old_database_open(
    make_stage: MakeStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = make_stage(segment_bytes=1024, keep_bytes=1024)
    last_index = _fall_behind(stage)
    fetch, worker = stage.replica("c")._fetch, stage.machine("c")._worker
    stage.heal()
    stage.until(lambda: fetch.ready is not None)
    with monkeypatch.context() as patch:
        patch.setattr(type(worker), "idle", False)
        stage.run(1.0)
        assert fetch.ready is not None
        assert stage.member("c").store.applied_index <= last_index
    stage.until(lambda: stage.member("c").store.applied_index > last_index)
    stage.check("c")


@pytest.fixture
def with_copy(make_stage: MakeStage, monkeypatch: pytest.MonkeyPatch) -> Member:
    """Return a member that has pulled a copy and has not installed it yet: now it may."""
    stage = make_stage(segment_bytes=1024, keep_bytes=1024)
    _fall_behind(stage)
    fetch, worker = stage.replica("c")._fetch, stage.machine("c")._worker
    with monkeypatch.context() as patch:
        patch.setattr(type(worker), "idle", False)
        stage.heal()
        stage.until(lambda: fetch.ready is not None)
    stage.until(lambda: worker.idle or fetch.ready is None)
    return stage.member("c")


def test_a_copy_of_no_more_than_was_applied_meanwhile_is_removed(with_copy: Member) -> None:
    fetch = with_copy._context.fetch
    assert fetch.ready is not None
    fetch.ready = copy = replace(fetch.ready, index=with_copy.store.applied_index)
    assert copy.path.exists()
    assert not with_copy._install("a")
    assert fetch.ready is None
    assert not copy.path.exists()


def test_a_copy_is_removed_that_a_leader_with_more_of_the_log_has_made_needless(
    make_stage: MakeStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = make_stage(segment_bytes=1024)
    monkeypatch.setattr(stage.member("a").journal, "_keep_bytes", 1024)
    _fall_behind(stage)
    fetch, worker = stage.replica("c")._fetch, stage.machine("c")._worker
    with monkeypatch.context() as patch:
        patch.setattr(type(worker), "idle", False)
        stage.heal()
        stage.until(lambda: fetch.ready is not None)
        copy = fetch.ready
        assert copy is not None
        stage.part("a", "b", "c")
        stage.elect("b")
        stage.until(lambda: stage.member("c").store.applied_index > copy.index)
    stage.run(1.0)
    assert not copy.path.exists()
    assert not stage.member("c").awaits_worker, "or its disk is never scrubbed again"


def test_who_was_replaced_learns_it_from_a_copy_and_takes_no_part(with_copy: Member) -> None:
    before = replace(with_copy.identity, incarnation="one of before", founding=None)
    with_copy.identity = before
    with pytest.raises(ReplacedError, match="one of before"):
        with_copy._install("a")


def test_an_admission_that_a_copy_covers_is_pending_no_more(with_copy: Member) -> None:
    copy = with_copy._context.fetch.ready
    assert copy is not None
    payload = commands.encode(0, [commands.Admit("b", "one of before")])
    with_copy._pending.note(with_copy.journal.last_index, REGULAR + payload)
    assert with_copy._admission("b")[0] == "one of before"
    assert with_copy._install("a")
    admitted = with_copy.store.members["b"]
    assert with_copy._admission("b") == (admitted, copy.index)


def test_a_leader_that_stops_admits_nobody_and_hands_over_all_of_its_log(
    make_stage: MakeStage,
) -> None:
    stage = make_stage(takeover_s=0.5)
    leader, front = stage.member("a"), stage.replica("a").frontend
    stage.wipe("c")
    front.stop()
    stage.start("c")
    last_index = leader.journal.last_index
    stage.run(5.0)
    assert leader.journal.last_index == last_index, "who is handed the leadership lacks an entry"
    front.stopping = False
    stage.until(lambda: stage.is_member("c"))


def test_a_connection_that_ended_and_began_again_between_two_turns_counts(
    make_stage: MakeStage,
) -> None:
    stage = make_stage()
    stage.run(10.0)
    assert "a" in stage.member("b").linked.names
    stage.world.pause("b")
    stage.net.break_link("a", "b")
    stage.world.resume("b")
    stage.net._dial(("a", "b"), stage.net._dials["a", "b"])  # before b has had a turn
    stage.turn("b")
    assert stage.member("b").linked.names == {"a", "c"}
    stage.publish("a", "first", "second")
    assert stage.read("b") == ["first", "second"]


def test_a_copy_whose_source_is_gone_is_asked_of_another_one(
    make_stage: MakeStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = make_stage()
    fetch, whole = stage.replica("c")._fetch, list[Any]()
    monkeypatch.setattr(fetch, "_verified", whole.append)
    fetch.start("b", stage.machine("c").clock())
    stage.net.break_link("b", "c")
    stage.turn("c")
    assert not fetch.under_way
    fetch.start("a", stage.machine("c").clock())
    stage.until(lambda: whole)


def test_who_is_connected_and_replaced_takes_no_part_from_the_entry_on(
    make_stage: MakeStage,
) -> None:
    stage = make_stage()
    node = stage.member("b")
    stage.run(10.0)
    assert node.linked.names == {"a", "c"}
    index = node.journal.last_index
    payload = commands.encode(0, [commands.Admit("c", "another incarnation")])
    node._pending.note(index, REGULAR + payload)
    node._list_changed()
    assert node.linked.names == {"a"}
    node._pending.note(index, REGULAR)  # another entry stands in its place
    node._list_changed()
    assert node.linked.names == {"a", "c"}


def test_nobody_s_word_ends_a_node_who_is_no_member(make_stage: MakeStage) -> None:
    stage = make_stage()
    stage.part("a", "b", "c")
    stage.run(0.1)
    node, now = stage.member("a"), stage.machine("a").clock()
    assert not node.linked.has_majority
    incarnation = node.store.members["b"]
    word = RefusedBy("b", "of no member", Refusal.EVICTED, "another one took its place")
    node.begin_turn(now, [word])
    with pytest.raises(ReplacedError):
        node.begin_turn(now, [replace(word, incarnation=incarnation)])


def test_an_admission_that_is_committed_and_not_applied_counts_after_a_start(
    make_stage: MakeStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = make_stage(segment_bytes=1.0)  # each sync has the hint of what is committed written
    monkeypatch.setattr(member_module, "COMMIT_PERIOD_S", 1000.0)  # what is committed rests
    stage.run(0.5)
    stage.crash("c")
    payload = commands.encode(0, [commands.Admit("c", "another incarnation")])
    index = stage.append("a", payload)
    stage.until(lambda: stage.raft("b").commit_index >= index)
    stage.publish("a", "one more")
    assert stage.member("b").store.applied_index < index
    stage.crash("b")
    stage.start("b")
    node = stage.member("b")
    assert node.store.applied_index < index <= node.journal.commit_index
    assert node._admission("c") == ("another incarnation", index)


# --- handing over ---------------------------------------------------------------------------------


def transfer(node: str, act_id: str = "x") -> Request:
    """Return an administrator's request that a node lead; it takes the level of users."""
    return Request(ADMIN, "", body={"act": TRANSFER_LEADER, "node": node, "act_id": act_id})


@pytest.fixture
def led(make_stage: MakeStage) -> Stage:
    stage = make_stage()
    assert stage.ask("a", Request(UPGRADE, "", body={"level": LEVEL_OF_USERS})).ok
    stage.run(0.5)
    return stage


def test_the_node_that_is_named_leads_and_nothing_is_lost(led: Stage) -> None:
    led.publish("a", "before")
    assert led.ask("a", transfer("b")).body == {"node": "b"}
    led.until(lambda: led.leader() == "b", 1.0)
    led.publish("b", "after")
    led.check("b")


def test_a_leader_that_hands_over_proposes_nothing_until_its_patience_ends(
    make_stage: MakeStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = make_stage(election_min_s=2.0, election_max_s=4.0)
    assert stage.ask("a", Request(UPGRADE, "", body={"level": LEVEL_OF_USERS})).ok
    monkeypatch.setattr(stage.raft("a"), "transfer_leadership", lambda name: True)  # it gets lost
    asked = stage.send("a", transfer("b"))
    stage.until(lambda: asked in stage.replies)
    last_index, began_s = stage.member("a").journal.last_index, stage.world.now
    stage.put("a", "x")
    stage.run(3.0)
    assert stage.member("a").journal.last_index == last_index
    stage.until(lambda: stage.acknowledged() == ["x"], 2.0)
    assert stage.world.now - began_s >= 3.9
    assert [name for name, event, _ in stage.log if event == "handover_failed"] == ["a"]
    stage.check("a")


def test_a_successor_is_asked_once_all_is_committed(
    make_stage: MakeStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    led = make_stage(delay_ms=40.0)
    assert led.ask("a", Request(UPGRADE, "", body={"level": LEVEL_OF_USERS})).ok
    raft = led.raft("a")
    asked: list[tuple[str, int]] = []

    def ask(name: str) -> bool:
        asked.append((name, raft.uncommitted_entries))
        return True

    monkeypatch.setattr(raft, "transfer_leadership", ask)
    led.run(1.0)
    led.send("a", transfer("b"))
    led.until(lambda: raft.uncommitted_entries == 1, 1.0)
    led.run(0.02)
    led.append("a", commands.encode(0, [commands.Advance("nobody", None, {})]))
    led.until(lambda: asked, 1.0)
    assert asked == [("b", 0)]


def test_the_digests_of_who_is_no_member_are_not_heard(led: Stage) -> None:
    member = led.member("a")
    member.linked.names.discard("c")
    told = dict(member._comparison._told)
    member.compare_state("c", {10**6: "another"})
    assert member._comparison._told == told
    member.linked.names.add("c")
    member.compare_state("c", {10**6: "another"})
    assert member._comparison._told["c"] == (member.store.members["c"], {10**6: "another"})


@pytest.mark.parametrize("newest", ["b", "c"])
def test_whoever_has_most_of_the_log_is_asked_if_nobody_is_named(
    led: Stage, monkeypatch: pytest.MonkeyPatch, newest: str
) -> None:
    raft = led.raft("a")
    last_index = led.member("a").journal.last_index
    monkeypatch.setattr(raft, "match_index", lambda name: last_index - (name != newest))
    assert led.ask("a", transfer("")).body == {"node": newest}


def test_who_is_connected_and_silent_does_not_take_over(led: Stage) -> None:
    led.world.pause("c")
    led.run(2 * HOLDER_SILENCE_S)
    assert "c" in led.member("a").linked.names
    refused = led.ask("a", transfer("c"))
    assert refused.body["error"] == "not_ready"
    assert led.ask("a", transfer("", "y")).body == {"node": "b"}


def test_a_wish_of_the_leader_before_is_no_wish_of_the_next(led: Stage) -> None:
    for follower in "bc":
        led.world.cut_one_way(follower, "a")  # it can't commit
    led.send("a", transfer("c"))
    last_index = led.member("b").journal.last_index + 1
    led.until(lambda: led.member("b").journal.last_index == last_index, 1.0)
    led.cut_off("a", "b", "c")
    led.elect("b")
    led.until(lambda: led.member("b").store.applied_index > last_index, 1.0)
    assert led.member("b")._handover is None
    led.run(1.0)
    assert led.leader() == "b"


def test_who_was_deposed_and_leads_again_hands_over_no_more(
    led: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(led.raft("a"), "transfer_leadership", lambda name: True)  # it gets lost
    led.ask("a", transfer("b"))
    led.elect("c")
    led.elect("a")
    led.publish("a", "x")
    led.check("a")


def test_each_node_knows_that_somebody_publishes_whoever_it_is(led: Stage) -> None:
    before = {name: led.replica(name).stored for name in "abc"}
    led.publish("a", "one", "two")
    led.until(lambda: all(led.replica(name).stored == before[name] + 2 for name in "abc"), 1.0)


def test_who_rests_as_his_answers_were_heavy_is_answered_again(make_stage: MakeStage) -> None:
    stage = make_stage()
    rests = stage.member("a").broker._rests
    rests.spent("shop", 1_000)
    stage.until(lambda: "shop" in rests)
    stage.until(lambda: "shop" not in rests, 1.0)


def test_whoever_waits_is_looked_at_again_when_rights_change(
    led: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[int] = []
    monkeypatch.setattr(led.member("a").broker, "users_changed", lambda: looks.append(1))
    payload = commands.encode(
        0, [commands.ChangeUser(REMOVE_USER, EVERYBODY_ELSE, [], [], False, False, True)]
    )
    led.append("a", payload)
    led.run(0.5)
    assert looks == [1]
    led.publish("a", "what changes no rights")
    assert looks == [1]
