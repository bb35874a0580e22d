"""What must hold in a simulation: every claim is seen to be broken when it is."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from zlib import crc32

import pytest

from chaos.simulation.bugs import BUGS
from chaos.simulation.checks.coverage import STATES, Coverage
from chaos.simulation.checks.invariants import CHECKS, Invariants
from chaos.simulation.checks.promises import Promises
from chaos.simulation.checks.reads import ReadChecks
from chaos.simulation.checks.watch import Attached, attach
from chaos.simulation.disks.disk import SimDisk
from chaos.simulation.disks.durable import DurableLog, journal_files, proved_bytes
from chaos.simulation.plan.plan import Action, Plan
from chaos.simulation.search.run import run
from chaos.simulation.search.swarm import plan_for
from chaos.simulation.world.operator import DAMAGES, Operator
from chaos.simulation.world.world import World
from chaos.workloads import payload
from cluster.log.journal import Journal
from cluster.store import commands
from cluster.store.commands import Advance, Put
from flotilla_client import CounterGap, Fenced, NotSubscribed, Operation, Outcome
from flotilla_client.protocol import pack
from flotilla_client.reading import Delivery

ROLES = [
    {"topics": ["t"], "puts": 1.0, "pause_s": 0.05},
    {"topics": ["t"], "gets": 1.0, "pause_s": 0.05, "get_wait_ms": 200},
]
SMALL = {"segment_bytes": 1024, "keep_bytes": 1024}


class JournalStub:
    """A node's journal as far as the invariants look."""

    first_index, last_index = 1, 0

    def __init__(self, node: SceneNode) -> None:
        self._node = node

    @property
    def term(self) -> int:
        return self._node.hard_state[0]

    @property
    def vote(self) -> str | None:
        return self._node.hard_state[1]

    def term_at(self, index: int) -> int | None:
        return self._node.terms.get(index)


class SceneNode:
    """A node as far as the invariants look."""

    def __init__(self, name: str) -> None:
        self.name, self.life, self.durable_index, self.paused = name, 1, 0, False
        self.disk = SimDisk(lambda: None)
        self.raft = SimpleNamespace(
            is_leader=False, term=1, settled_index=0, commit_index=0, applied_index=0
        )
        self.hard_state: tuple[int, str | None] = (1, None)
        self.digest = "same"
        self.terms: dict[int, int] = {}
        journal = JournalStub(self)
        self.cursor: int | None = None
        store = SimpleNamespace(
            applied_index=0, digest=lambda: self.digest, cursor=lambda client, topic: self.cursor
        )
        self.as_member: Any = SimpleNamespace(raft=self.raft, journal=journal, store=store)
        self.up, self.paused = True, False
        self.member = name
        self.disk_faults: list[str] = []
        self.identity: Any = None


class InvariantScene:
    """Three nodes, and what the invariants say of them."""

    def __init__(self) -> None:
        self.nodes = {name: SceneNode(name) for name in "abc"}
        self.world: Any = SimpleNamespace(
            plan=Plan(1),
            now=0.0,
            observers=[],
            watchers=[],
            reply_taps=[],
            nodes=self.nodes,
            doubles={},
            net=SimpleNamespace(displaced=[], torn=[], arrivals={}),
            knob={"takeover_s": 3.0}.__getitem__,
            machine=self.nodes.__getitem__,
            machines=lambda: list(self.nodes.values()),
            machines_of=lambda member: [self.nodes[member]],
        )
        self.invariants = Invariants(cast(World, self.world))
        self.promises = Promises(
            self.invariants,
            ReadChecks(self.world, self.invariants),
            frozenset({"leaver"}),
            frozenset({"by-hand"}),
            is_doubling=lambda: False,
        )
        self.process: Any = SimpleNamespace(name="one/1", place="one")
        state = SimpleNamespace(epoch=1, client_id="me", sequence=1)
        self.process.session = SimpleNamespace(state=state)

    def turn(self, name: str) -> None:
        for watcher in self.world.watchers:
            watcher(self.nodes[name])

    def emit(self, kind: str, **fields: Any) -> None:
        for observer in self.world.observers:
            observer(kind, fields)

    def apply(self, name: str, index: int, term: int, payload: bytes) -> None:
        entry = {"index": index, "term": term, "payload": payload}
        self.emit("apply", node=name, checksum=crc32(payload), **entry)
        self.turn(name)

    def ask(self, f: str, outcome: Outcome, number: int = 1, **fields: Any) -> None:
        operation = Operation(number, "me", f, "t", **fields)
        self.promises.invoked(self.process, operation)
        self.promises.completed(self.process, operation, outcome)

    @property
    def checks(self) -> list[str]:
        return [failure.check for failure in self.invariants.failures]


@pytest.fixture
def scene() -> InvariantScene:
    return InvariantScene()


def put_entry(counter: int = 1) -> bytes:
    return commands.encode(0, [Put("me", 1, "t", counter, *pack([b"x"]))])


def stored(first_id: int = 1, duplicate: bool = False) -> Outcome:
    return Outcome(1, topic="t", first_id=first_id, count=1, duplicate=duplicate)


def make_durable(scene: InvariantScene, *names: str) -> None:
    for name in names:
        scene.nodes[name].durable_index = 1
        scene.nodes[name].terms[1] = 1


# --- nodes --------------------------------------------------------------------------------------


def test_two_leaders_of_a_term_are_seen_and_of_two_terms_are_not(scene: InvariantScene) -> None:
    scene.nodes["a"].raft.is_leader = scene.nodes["b"].raft.is_leader = True
    scene.nodes["b"].raft.term = 2
    scene.turn("a")
    scene.turn("b")
    assert scene.checks == []
    scene.nodes["b"].raft.term = 1
    scene.turn("b")
    assert scene.checks == ["leaders"]


def admit(scene: InvariantScene) -> None:
    scene.emit("admitting", node="a", about="c", incarnation="new", replaced="old")


def test_a_member_that_is_replaced_though_it_was_just_heard_is_seen(scene: InvariantScene) -> None:
    scene.world.now = 10.0
    scene.world.net.arrivals["a", "c", "old"] = 8.0
    admit(scene)
    assert scene.checks == []
    scene.world.net.arrivals["a", "c", "old"] = 9.0
    admit(scene)
    assert scene.checks == ["silent"]


def test_a_member_that_is_replaced_without_a_majority_is_seen(scene: InvariantScene) -> None:
    scene.world.now = 10.0
    scene.nodes["b"].as_member = None
    scene.world.net.arrivals["a", "b", "its"] = 8.0  # a can't know yet that b has ended
    admit(scene)
    assert scene.checks == []
    scene.world.net.arrivals["a", "b", "its"] = 5.0
    admit(scene)
    assert scene.checks == ["majority"]


def test_a_member_that_ends_as_evicted_and_one_that_is_turned_out_are_seen(
    scene: InvariantScene,
) -> None:
    for name, node in scene.nodes.items():
        node.member, node.identity = name, lambda: SimpleNamespace(incarnation="own")
        node.as_member.store.members = {"a": "own", "b": "another"}
    ended: dict[str, Any] = {"error": "ReplacedError", "reason": "", "disk_faults": []}
    scene.emit("node_failed", node="b", **ended)
    assert scene.checks == []
    scene.emit("node_failed", node="a", **ended)
    assert scene.checks == ["evicted"]
    scene.world.net.displaced.append(("b", "c"))
    scene.turn("b")
    assert scene.checks == ["evicted", "doubled"]


def test_different_entries_at_an_index_are_seen(scene: InvariantScene) -> None:
    scene.apply("a", 1, 1, b"")
    scene.apply("b", 1, 1, b"")
    assert scene.checks == []
    scene.apply("c", 1, 2, b"")
    assert scene.checks == ["prefix"]


def test_what_a_turn_without_end_has_applied_counts_only_if_it_is_durable(
    scene: InvariantScene,
) -> None:
    scene.emit("apply", node="a", index=1, term=1, payload=b"", checksum=0)
    scene.emit("ended", node="a", how="failed")
    scene.apply("a", 1, 2, b"")
    assert scene.checks == []


def test_different_states_at_an_index_are_seen(scene: InvariantScene) -> None:
    scene.turn("a")
    scene.nodes["b"].digest = "other"
    scene.turn("b")
    assert scene.checks == ["digest"]


@pytest.mark.parametrize("state", [(0, None), (1, "b"), (1, None)])
def test_a_vote_or_term_that_regresses_is_seen(
    scene: InvariantScene, state: tuple[int, str | None]
) -> None:
    node = scene.nodes["a"]
    node.hard_state = (1, "a")
    scene.turn("a")
    node.life, node.hard_state = 3, state
    scene.turn("a")
    assert scene.checks == ["hard_state"]


def test_a_node_that_comes_back_with_less_is_seen_unless_its_disk_was_emptied(
    scene: InvariantScene,
) -> None:
    node = scene.nodes["a"]
    node.raft.settled_index = node.as_member.journal.last_index = 5
    scene.turn("a")
    scene.emit("emptied", node="a")
    node.life, node.raft.settled_index, node.as_member.journal.last_index = 3, 0, 0
    scene.turn("a")
    assert scene.checks == []
    node.raft.settled_index = node.as_member.journal.last_index = 5
    scene.turn("a")
    node.life, node.raft.settled_index, node.as_member.journal.last_index = 5, 4, 4
    scene.turn("a")
    assert scene.checks == ["hard_state"]


def test_a_commit_index_that_goes_back_within_a_life_is_seen(scene: InvariantScene) -> None:
    scene.nodes["a"].raft.commit_index = 5
    scene.turn("a")
    scene.nodes["a"].raft.commit_index = 4
    scene.turn("a")
    assert scene.checks == ["applied"]


def test_an_acknowledgment_without_a_majority_of_disks_is_seen(scene: InvariantScene) -> None:
    scene.apply("a", 1, 1, put_entry())
    make_durable(scene, "a", "b")
    scene.ask("put", stored(), counter=1, count=1)
    assert scene.checks == []
    scene.nodes["b"].durable_index = 0
    scene.ask("put", stored(2), 2, counter=1, count=1)
    assert scene.checks == ["durable"]


def test_an_acknowledgment_of_what_nobody_applied_is_seen(scene: InvariantScene) -> None:
    scene.ask("put", stored(), counter=1, count=1)
    assert scene.checks == ["durable"]


def test_a_node_that_ends_by_itself_is_seen_unless_its_disk_was_at_fault(
    scene: InvariantScene,
) -> None:
    fields = {"node": "a", "error": "DiskFailed", "reason": "full"}
    scene.emit("node_failed", **fields, disk_faults=["full"])
    assert scene.checks == []
    scene.emit("node_failed", **fields, disk_faults=[])
    assert scene.checks == ["ended"]
    broken = {"node": "a", "error": "AssertionError", "reason": "entry 7 after 5"}
    scene.emit("node_failed", **broken, disk_faults=["full"])
    assert scene.checks == ["ended", "ended"]  # no disk explains that


def test_a_cursor_that_passes_what_was_delivered_is_seen(scene: InvariantScene) -> None:
    scene.ask("sub", Outcome(1, last_id=3, resumed=False))
    scene.apply("a", 1, 1, commands.encode(0, [Advance("me", 1, {"t": 3})]))
    assert scene.checks == []
    scene.apply("a", 2, 1, commands.encode(0, [Advance("me", 1, {"t": 4})]))
    assert scene.checks == ["cursor"]


def test_a_cursor_that_moves_back_is_seen(scene: InvariantScene) -> None:
    scene.ask("sub", Outcome(1, last_id=3, resumed=False))
    scene.nodes["a"].cursor = 3
    scene.apply("a", 1, 1, commands.encode(0, [Advance("me", 1, {"t": 3})]))
    assert scene.checks == []
    scene.nodes["a"].cursor = 2
    scene.apply("a", 2, 1, commands.encode(0, [Advance("me", 1, {"t": 2})]))
    assert scene.checks == ["cursor"]


# --- clients ------------------------------------------------------------------------------------


def deliver(scene: InvariantScene, text: str, number: int = 9) -> None:
    outcome = Outcome(1, topic="t", first_id=1, count=1, publications=(text.encode(),))
    scene.ask("get", outcome, number, last_id=0)


@pytest.mark.parametrize("delivered_first", [False, True])
def test_another_content_than_the_acknowledged_is_seen(
    scene: InvariantScene, delivered_first: bool
) -> None:
    scene.apply("a", 1, 1, put_entry())
    make_durable(scene, "a", "b", "c")
    old, new = (payload.make("me", "t", 1, filler) for filler in ("old", "new"))
    scene.promises.made(scene.process, "t", 1, [old])
    scene.promises.made(scene.process, "t", 1, [new])
    if delivered_first:
        deliver(scene, old)
    scene.ask("put", stored(), counter=1, count=1)
    if not delivered_first:
        deliver(scene, old)
    assert scene.checks == ["content"]


def test_an_answer_that_is_older_than_its_request_is_seen(scene: InvariantScene) -> None:
    scene.apply("a", 1, 1, put_entry())
    make_durable(scene, "a", "b", "c")
    scene.ask("put", stored(7), counter=1, count=1)
    scene.ask("get", Outcome(1, topic="t", count=0), 2, last_id=7)
    scene.ask("sub", Outcome(1, last_id=7, resumed=False), 3)
    assert scene.checks == []
    scene.ask("get", Outcome(1, topic="t", count=0), 4, last_id=6)
    scene.ask("unsub", Outcome(1), 5)
    scene.ask("sub", Outcome(1, last_id=6, resumed=False), 6)
    scene.ask("put", stored(7), 7, counter=1, count=1)
    assert scene.checks == ["stale_read"] * 3


def test_a_process_that_succeeds_behind_a_newer_one_is_seen(scene: InvariantScene) -> None:
    scene.process.session.state.epoch = 2
    scene.ask("unsub", Outcome(1))
    assert scene.checks == []
    scene.process.session.state.epoch = 1
    scene.ask("unsub", Outcome(1, error="fenced"), 2)
    assert scene.checks == []
    scene.ask("unsub", Outcome(1), 3)
    assert scene.checks == ["fenced"]


def test_what_an_application_gets_twice_is_seen_unless_it_has_a_copy(scene: InvariantScene) -> None:
    delivery = Delivery("t", 1, (b"x", b"y"))
    scene.promises.life("copied", "copied")
    for client in ("copied", "copied", "one"):
        scene.promises.handed_over(client, delivery)
    scene.promises.handed_over("one", Delivery("t", 2, (b"y",), redelivered_count=1))
    assert scene.checks == []
    scene.promises.handed_over("one", Delivery("t", 2, (b"y", b"z")))
    assert scene.checks == ["handed_over_twice"]


def test_errors_that_no_fault_explains_are_seen(scene: InvariantScene) -> None:
    scene.promises.life("copied", "copied")
    scene.promises.refused("copied", Fenced("m"))
    scene.promises.refused("leaver", NotSubscribed("m"))
    assert scene.checks == []
    scene.promises.refused("one", Fenced("m"))
    scene.promises.refused("one", NotSubscribed("m"))
    scene.promises.refused("leaver", CounterGap("m"))
    assert scene.checks == ["unexpected"] * 3


# --- disks and the operator ---------------------------------------------------------------------


def journal_on(disk: SimDisk, count: int) -> Journal:
    Journal.create(Path("j"), disk)
    journal = Journal.open(Path("j"), 1 << 20, 1 << 20, files=disk, on_failure=disk.stop)
    journal.set_term(1, None)
    for index in range(1, count + 1):
        journal.add(b"\0" + b"x" * 20, index, 1)
        journal.sync()
    return journal


def test_a_durable_log_has_what_was_synced_and_no_more() -> None:
    disk = SimDisk(lambda: None)
    journal = journal_on(disk, 3)
    journal.add(b"\0y", 4, 1)
    log = DurableLog(disk)
    assert [log.holds(index, 1) for index in (1, 3, 4)] == [True, True, False]
    assert not log.holds(3, 2)
    journal.sync()
    assert DurableLog(disk).holds(4, 1)


def test_a_damaged_disk_counts_for_what_it_was_told_to_keep_and_no_more() -> None:
    disk = SimDisk(lambda: None)
    journal = journal_on(disk, 3)
    [(_, inode)] = journal_files(disk)
    inode.spare()
    inode.data[60] ^= 1
    journal.add(b"\0y", 4, 1)
    assert [DurableLog(disk).holds(index, 1) for index in (1, 3, 4)] == [True, True, False]
    journal.sync()
    disk.restart()
    disk.lose_unsynced("lost", random.Random(1))
    assert [DurableLog(disk).holds(index, 1) for index in (1, 4, 5)] == [True, True, False]


def test_what_a_process_reads_of_a_damaged_disk_is_not_what_was_promised() -> None:
    disk = SimDisk(lambda: None)
    journal_on(disk, 3)
    [(_, inode)] = journal_files(disk)
    inode.spare()
    inode.data[-1] ^= 1
    promised, found = DurableLog(disk), DurableLog.as_read(disk)
    assert (promised.holds(3, 1), found.holds(3, 1)) == (True, False), "its checksum is wrong"
    with BUGS["checksums-are-not-compared"].planted():
        believed = DurableLog.as_read(disk)
    assert believed.holds(3, 1)
    assert believed.checksums[3] != promised.checksums[3]


def test_a_process_that_goes_on_with_a_damaged_entry_is_seen() -> None:
    flipped = Action(5.0, "damage", {"node": "b", "how": "flip"})
    ended, begun = Action(5.1, "kill", {"node": "b"}), Action(6.0, "restart_all", {})
    schedule = (flipped, ended, begun)
    plan = replace(plan_for(2, "safety", nodes=3), duration_s=8.0, schedule=schedule)
    assert run(plan).failures == ()
    [failure] = run(plan, "checksums-are-not-compared").failures
    assert failure.check == "prefix"
    assert failure.text.startswith("b has read another entry")


def test_a_checkpoint_that_a_fault_has_asked_for_is_looked_at_too() -> None:
    plan = plan_for(51, "safety")  # a sync of it fails, and power loss hides what that has lost
    failures = run(plan, "failed-checkpoints-sync-again").failures
    assert {failure.check for failure in failures} == {"vouched"}


def test_an_entry_that_was_replaced_is_not_in_the_durable_log() -> None:
    disk = SimDisk(lambda: None)
    journal = journal_on(disk, 3)
    journal.add(b"\0z", 2, 2)
    journal.sync()
    log = DurableLog(disk)
    assert (log.holds(2, 2), log.holds(2, 1), log.holds(3, 1)) == (True, False, False)


def test_a_state_that_is_older_than_what_was_asked_with_is_seen(scene: InvariantScene) -> None:
    scene.promises.opened(scene.process)
    scene.promises.invoked(scene.process, Operation(1, "me", "get", "t"))
    scene.promises.opened(scene.process)
    assert scene.checks == []
    scene.process.session.state.sequence = 0
    scene.promises.opened(scene.process)
    assert scene.checks == ["kept"]
    scene.process.session.state.client_id = "another"  # as who was forgotten becomes
    scene.promises.opened(scene.process)
    assert scene.checks == ["kept"]


def test_a_counter_that_goes_back_behind_a_put_is_seen_unless_that_was_refused(
    scene: InvariantScene,
) -> None:
    counters = {"t": 1}
    scene.process.session.state.counter = counters.__getitem__
    scene.ask("put", Outcome(1, error="too_many", definite=True), counter=1, count=2)
    scene.promises.opened(scene.process)
    assert scene.checks == []
    scene.ask("put", Outcome(1, error="unavailable", definite=False), 2, counter=1, count=2)
    scene.promises.opened(scene.process)
    assert scene.checks == ["kept"]


def test_a_counter_whose_publication_is_kept_is_not_given_again(scene: InvariantScene) -> None:
    scene.promises.made(scene.process, "t", 1, ["kept"])
    operation = Operation(1, "me", "put", "t", counter=1, count=1)
    scene.promises.invoked(scene.process, operation)
    outcome = Outcome(1, error="unavailable", definite=False)
    scene.promises.completed(scene.process, operation, outcome)
    assert scene.checks == []
    scene.promises.made(scene.process, "t", 1, ["another"])
    assert scene.checks == ["kept"]


def test_a_counter_whose_publication_is_refused_for_ever_may_be_given_again(
    scene: InvariantScene,
) -> None:
    for error, definite in (("unavailable", False), ("too_large", True)):
        scene.promises.made(scene.process, "t", 1, ["refused"])
        operation = Operation(1, "me", "put", "t", counter=1, count=1)
        scene.promises.invoked(scene.process, operation)
        outcome = Outcome(1, error=error, definite=definite)
        if error == "too_large":
            scene.invariants.failures.clear()
        scene.promises.completed(scene.process, operation, outcome)
    scene.promises.made(scene.process, "t", 1, ["another"])
    assert scene.checks == []


def test_damage_to_what_is_proved_durable_is_always_noticed() -> None:
    for at in range(0, 1000, 7):
        disk = SimDisk(lambda: None)
        journal_on(disk, 5).close()
        [(path, inode)] = journal_files(disk)
        high = proved_bytes(path, bytes(inode.data))
        assert 0 < high < len(inode.data)
        if at >= high:
            break
        inode.data[at] ^= 4
        with pytest.raises(Exception, match=r"corrupt|format"):
            Journal.open(Path("j"), 1 << 20, 1 << 20, files=disk, on_failure=disk.stop)


@pytest.fixture
def world() -> Iterator[World]:
    with World(Plan(3, 3, 0, 30.0, knobs=SMALL)) as world:
        yield world


def test_the_operator_empties_a_minority_and_the_next_only_after_readmission(
    world: World,
) -> None:
    operator = Operator(world)
    emptied: list[str] = []
    world.observers.append(
        lambda kind, fields: emptied.append(fields["node"]) if kind == "emptied" else None
    )
    operator.wipe("a")
    assert emptied == []  # nobody is a member yet
    world.run_until(5.0)
    operator.wipe("a")
    operator.wipe("b")
    operator.damage("b", "flip")
    assert emptied == ["a"]
    operator.restart_all()
    world.run_until(15.0)
    operator.wipe("b")
    assert emptied == ["a", "b"]


# A bit of the store may lie where a start does not read: it is found by who comes to it.
@pytest.mark.parametrize("how", sorted(DAMAGES - {"flip_store", "flip_row"}))
def test_a_node_that_refuses_its_damaged_disk_is_rebuilt(world: World, how: str) -> None:
    operator = Operator(world)
    world.run_until(5.0)
    events: list[str] = []
    world.observers.append(lambda kind, fields: events.append(kind))
    operator.damage("c", how)
    world.kill("c")
    operator.restart("c")
    world.run_until(15.0)
    assert [kind for kind in events if kind in ("node_failed", "emptied", "readmitted")] == [
        "node_failed",
        "emptied",
        "readmitted",
    ]


# --- all of it ----------------------------------------------------------------------------------


def attached(world: World, until_s: float = 200.0) -> Attached:
    watch = attach(world)
    while not watch.is_over and world.now < until_s:
        world.run_until(world.now + 0.5)
    return watch


def test_a_calm_run_drains_without_a_failure() -> None:
    plan = Plan(5, 3, 2, 5.0, knobs={"load": {"roles": ROLES}})
    with World(plan) as world:
        watch = attached(world)
        assert watch.finish() == []
        assert watch.coverage["drained"] == 1
        events = watch.events()
    assert {event["f"] for event in events} == {"put", "get", "sub", "phase", "hand", "ack"}
    assert sum(event["f"] == "put" and event["type"] == "ok" for event in events) > 20


def test_a_run_without_progress_says_where_everybody_stands() -> None:
    outage = tuple(Action(5.5, "kill", {"node": name}) for name in "ab")
    plan = Plan(5, 3, 2, 5.0, knobs={"load": {"roles": ROLES}}, schedule=outage)
    with World(plan) as world:
        failures = attached(world).finish()
    assert [failure.check for failure in failures] == ["progress"]
    assert "a is down; b is down; c is up" in failures[0].text


def test_every_check_and_state_has_its_words() -> None:
    assert all(text and not text.endswith(".") for text in (*CHECKS.values(), *STATES.values()))


def test_coverage_counts_an_election_under_load_and_two_leaders(scene: InvariantScene) -> None:
    coverage = Coverage(scene.world)
    operation = Operation(1, "me", "put", "t", counter=1, count=1)
    coverage.invoked(scene.process, operation)
    scene.emit("role", node="a", role="leader", term=1, reason="")
    scene.emit("role", node="b", role="leader", term=2, reason="")
    coverage.completed(scene.process, operation, stored(1, duplicate=True))
    scene.emit("role", node="a", role="follower", term=1, reason="no majority has answered")
    reached = {name: count for name, count in coverage.counts.items() if count}
    assert reached == {
        "election_under_load": 2,
        "two_leaders": 1,
        "duplicate_put": 1,
        "leader_alone": 1,
    }
