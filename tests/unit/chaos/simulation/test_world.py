"""The simulated world: real nodes, virtual time, and everything that may befall them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from chaos.simulation.plan.plan import Action, Plan
from chaos.simulation.world.node import STOPPING_S_MAX, SimNode
from chaos.simulation.world.world import ACTIONS, KNOBS, World
from cluster.node.member import Member
from cluster.wire.messages import ReadIndex
from flotilla_client.protocol import (
    GET,
    PUT,
    REQUEST_ID,
    SUB,
    Reply,
    Request,
    decode_reply,
    encode_request,
    unpack,
)

PATIENCE_S = 30.0  # virtual: elections, copies and redials take a few
STORM = (
    Action(3.0, "weather", {"loss": 0.05, "duplicate": 0.1, "reorder": 0.2, "late": 0.5}),
    Action(3.5, "power_loss", {"node": "leader", "at": "fdatasync", "count": 2, "keep": "pages"}),
    Action(6.0, "cut", {"node": "leader"}),
    Action(8.0, "restart_all"),
    Action(9.0, "kill_all"),
    Action(9.5, "wipe", {"node": "c"}),
    Action(10.0, "restart_all"),
    Action(14.0, "calm"),
)
SMALL = {"segment_bytes": 2048, "keep_bytes": 2048}


class Asker:
    """A client that waits for each answer."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.events: list[tuple[str, dict[str, Any]]] = []
        self._replies: dict[str, Reply] = {}
        self._number = 0
        self.client_id = ""
        world.clients["asker"] = self._take
        world.observers.append(lambda kind, fields: self.events.append((kind, fields)))

    def _take(self, node: str, frames: list[bytes]) -> None:
        reply = decode_reply(frames)
        self._replies[reply.request_id] = reply

    def until(self, condition: Callable[[], object], seconds: float = PATIENCE_S) -> None:
        deadline = self.world.now + seconds
        while not condition():
            assert self.world.now < deadline, f"not within {seconds} s"
            self.world.run_until(self.world.now + 0.05)

    def ask(self, request: Request, node: str = "") -> Reply:
        """Send a request until it is acknowledged."""
        while True:
            self.until(self.world.leader)
            self._number += 1
            request.request_id = f"request-{self._number}"
            self.world.request("asker", node or self.world.leader(), encode_request(request))
            self.world.run_until(self.world.now + 0.3)
            reply = self._replies.get(request.request_id)
            if reply is not None and reply.ok:
                return reply

    def begin(self) -> None:
        self.client_id = self.ask(Request(REQUEST_ID, "")).body["client_id"]
        self.ask(Request(SUB, "", "t", self.client_id))

    def put(self, counter: int, node: str = "") -> None:
        body = {"counter": counter, "publication": f"publication {counter}"}
        self.ask(Request(PUT, "", "t", self.client_id, body=body), node)

    def delivered(self) -> list[str]:
        body = {"last_id": 0, "max_count": 100}
        reply = self.ask(Request(GET, "", "t", self.client_id, body=body))
        return [data.decode() for data in unpack(reply.lengths, reply.data)]

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [fields for name, fields in self.events if name == kind]


def texts(count: int) -> list[str]:
    return [f"publication {counter}" for counter in range(1, count + 1)]


def node_of(world: World, name: str) -> Member:
    member = world.nodes[name].as_member
    assert member is not None, f"{name} is down, or no member"
    return member


def digest_of(plan: Plan) -> str:
    with World(plan) as world:
        asker = Asker(world)
        asker.begin()
        for counter in range(1, 20):
            asker.put(counter)
        world.run_until(20.0)
        assert world.failures == []
        return world.digest()


# --- determinism ----------------------------------------------------------------------------------


def test_a_plan_has_one_outcome_and_another_seed_another() -> None:
    plan = Plan(3, knobs=SMALL, schedule=STORM)
    assert digest_of(plan) == digest_of(plan)
    assert digest_of(plan) != digest_of(Plan(4, knobs=SMALL, schedule=STORM))


@pytest.mark.slow
def test_the_order_of_python_s_sets_decides_nothing() -> None:
    program = (
        "from tests.unit.chaos.simulation.test_world import *\n"
        "print(digest_of(Plan(5, nodes=5, knobs=SMALL, schedule=STORM)))"
    )
    digests = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
            text=True,
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(digests) == 1, digests


def test_streams_of_random_numbers_are_independent() -> None:
    def drawn(*names: str) -> list[float]:
        with World(Plan(1)) as world:
            return [world.stream(name).random() for name in names]

    assert drawn("x", "x", "y", "x")[2:] == [drawn("y")[0], drawn("x", "x", "x")[2]]


# --- the life of nodes ----------------------------------------------------------------------------


def test_fresh_nodes_found_a_cluster_that_serves() -> None:
    with World(Plan(1)) as world:
        asker = Asker(world)
        asker.begin()
        follower = next(name for name in world.nodes if name != world.leader())
        asker.put(1, follower)
        assert asker.delivered() == texts(1)
        assert len(asker.of("founded")) == 3
        applied = {(each["index"], each["payload"]) for each in asker.of("apply")}
        assert len(applied) == max(index for index, _ in applied) - 1  # the first is not applied


@pytest.mark.parametrize("at", ["now", "write", "fdatasync", "any"])
def test_another_leads_after_the_leader_s_end(at: str) -> None:
    with World(Plan(2)) as world:
        asker = Asker(world)
        asker.begin()
        leader = world.leader()
        world.perform(Action(0.0, "kill", {"node": "leader", "at": at, "count": 1}))
        asker.put(1)
        asker.until(lambda: not world.nodes[leader].up)
        assert world.leader() != leader
        world.perform(Action(0.0, "restart", {"node": leader}))
        asker.put(2)
        asker.until(lambda: node_of(world, leader).store.applied_index >= 5)
        assert asker.delivered() == texts(2)


@pytest.mark.parametrize("keep", ["lost", "torn", "pages", "all"])
def test_what_was_acknowledged_survives_the_power_loss_of_all(keep: str) -> None:
    with World(Plan(3, knobs=SMALL)) as world:
        asker = Asker(world)
        asker.begin()
        for counter in range(1, 31):
            asker.put(counter)
        world.perform(Action(0.0, "power_loss_all", {"keep": keep}))
        assert not any(node.up for node in world.nodes.values())
        world.perform(Action(0.0, "restart_all"))
        assert asker.delivered() == texts(30)


def test_a_sync_that_is_left_out_loses_what_was_acknowledged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("cluster.log.journal.Journal.sync", lambda journal: journal._write())
    with World(Plan(3)) as world:
        asker = Asker(world)
        asker.begin()
        asker.put(1)
        world.perform(Action(0.0, "power_loss_all", {"keep": "lost"}))
        world.perform(Action(0.0, "restart_all"))
        world.run_until(world.now + PATIENCE_S)
        stores = [node_of(world, name).store for name in world.nodes]
        assert all(store.cursor(asker.client_id, "t") is None for store in stores)


def test_durable_index_is_what_a_power_loss_leaves() -> None:
    with World(Plan(4)) as world:
        asker = Asker(world)
        asker.begin()
        asker.put(1)
        for node in world.nodes.values():
            before = node.durable_index
            assert before > 1
            world.perform(Action(0.0, "power_loss", {"node": node.name, "keep": "lost"}))
            world.perform(Action(0.0, "restart", {"node": node.name}))
            assert node_of(world, node.name).journal.last_index == before


def test_a_wiped_node_is_readmitted() -> None:
    with World(Plan(5)) as world:
        asker = Asker(world)
        asker.begin()
        asker.put(1)
        before = node_of(world, "b").identity.incarnation
        world.perform(Action(0.0, "wipe", {"node": "b"}))
        world.perform(Action(0.0, "restart", {"node": "b"}))
        asker.until(lambda: asker.of("readmitted"))
        assert node_of(world, "b").identity.incarnation != before
        asker.put(2)
        assert asker.delivered() == texts(2)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_node_far_behind_installs_a_snapshot_even_if_it_ends_in_between(count: int) -> None:
    with World(Plan(6, knobs=SMALL)) as world:
        asker = Asker(world)
        asker.begin()
        asker.until(lambda: world.nodes["c"].as_member is not None)
        world.perform(Action(0.0, "kill", {"node": "c"}))
        for counter in range(1, 41):
            asker.put(counter)
        world.run_until(world.now + 5.0)  # checkpoints and compactions
        world.perform(Action(0.0, "restart", {"node": "c"}))
        world.perform(Action(0.0, "kill", {"node": "c", "at": "store", "count": count}))
        asker.until(lambda: asker.of("ended")[1:])
        assert not world.nodes["c"].up
        world.perform(Action(0.0, "restart", {"node": "c"}))
        leader = node_of(world, world.leader())
        asker.until(lambda: node_of(world, "c").store.applied_index == leader.store.applied_index)
        assert node_of(world, "c").store.digest() == leader.store.digest()


# --- pauses and clocks ----------------------------------------------------------------------------


def test_a_paused_node_does_nothing_until_it_is_resumed() -> None:
    with World(Plan(7)) as world:
        asker = Asker(world)
        asker.begin()
        turns: list[str] = []
        world.watchers.append(lambda node: turns.append(node.name))
        paused = world.leader()
        world.perform(Action(0.0, "pause", {"node": "leader"}))
        world.run_until(world.now + 2.0)
        assert paused not in turns
        world.perform(Action(0.0, "resume", {"node": "all"}))
        asker.put(1)
        assert paused in turns


def test_a_clock_runs_at_its_rate_and_never_back() -> None:
    with World(Plan(8)) as world:
        node = world.nodes["a"]
        before = node.clock()
        world.run_until(10.0)
        assert node.clock() - before == pytest.approx(10.0)
        world.perform(Action(0.0, "clock_rate", {"node": "a", "rate": 2.0}))
        assert node.clock() - before == pytest.approx(10.0)
        world.run_until(15.0)
        assert node.clock() - before == pytest.approx(20.0)


def test_a_slow_disk_holds_up_what_has_to_wait_for_it() -> None:
    with World(Plan(9)) as world:
        asker = Asker(world)
        asker.begin()
        for name in world.nodes:
            world.perform(Action(0.0, "slow_fsync", {"node": name, "ms": 100.0}))
        sent, told = world.now, []
        world.clients["asker"] = lambda node, frames: told.append(world.now)
        body = {"counter": 1, "publication": "p"}
        request = Request(PUT, "r", "t", asker.client_id, body=body)
        world.request("asker", world.leader(), encode_request(request))
        world.run_until(world.now + 1.0)
        assert told[0] - sent > 0.1


# --- processes that end by themselves -------------------------------------------------------------


@pytest.mark.parametrize(
    ("action", "args", "error"),
    [
        ("fsync_error", {}, "DiskFailed"),
        ("disk_full", {}, "DiskFailed"),
        ("bit_flip", {"file": ".json"}, "DamagedIdentity"),
        ("truncate", {"file": ".json"}, "DamagedIdentity"),
    ],
)
def test_a_disk_fault_ends_a_process_and_excuses_it(
    action: str, args: dict[str, str], error: str
) -> None:
    with World(Plan(10)) as world:
        asker = Asker(world)
        asker.begin()
        world.perform(Action(0.0, action, {"node": "a", **args}))
        if error == "DamagedIdentity":
            world.perform(Action(0.0, "kill", {"node": "a"}))
            world.perform(Action(0.0, "restart", {"node": "a"}))
        asker.put(1)
        failed = asker.of("node_failed")
        assert [(each["node"], each["error"]) for each in failed] == [("a", error)]
        assert failed[0]["disk_faults"] == [action]
        assert str(world.directory) not in failed[0]["reason"]
        world.perform(Action(0.0, "calm"))
        world.perform(Action(0.0, "wipe", {"node": "a"}))
        assert world.nodes["a"].disk_faults == []
        world.perform(Action(0.0, "restart", {"node": "a"}))
        asker.until(lambda: asker.of("readmitted"))


def test_a_defect_ends_the_process_and_nothing_excuses_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(store: object, *arguments: object) -> None:
        raise ZeroDivisionError("a defect")

    with World(Plan(11)) as world:
        asker = Asker(world)
        asker.begin()
        monkeypatch.setattr("cluster.store.store.Store.commit", broken)
        world.run_until(world.now + 1.0)
        assert len(world.failures) == 3
        assert {each["error"] for each in asker.of("node_failed")} == {"ZeroDivisionError"}
        assert all(each["disk_faults"] == [] for each in asker.of("node_failed"))


# --- actions --------------------------------------------------------------------------------------

ARGS: dict[str, dict[str, Any]] = {
    "cut_one_way": {"source": "a", "target": "b"},
    "clog": {"source": "a", "target": "b", "seconds": 1.0},
    "disconnect": {"one": "a", "other": "b"},
    "clock_rate": {"node": "a", "rate": 1.1},
    "slow_fsync": {"node": "a", "ms": 1.0},
    "isolate": {"count": 1, "seconds": 1.0, "end_s": 0.5},
    "isolate_at": {"event": "raising", "within_s": 1.0, "count": 1, "seconds": 1.0},
    "kill_source": {"seconds": 1.0},
    "lose_piece": {"seconds": 1.0},
}
OF_ALL = ("heal", "calm", "weather", "transfer", "kill_all", "power_loss_all", "restart_all")


@pytest.mark.parametrize("name", ACTIONS)
def test_an_action_on_a_node_that_is_down_makes_a_plan_no_nonsense(name: str) -> None:
    args = ARGS.get(name, {} if name in OF_ALL else {"node": "a"})
    schedule = (Action(1.0, "kill_all"), Action(2.0, name, args), Action(3.0, "kill_all"))
    with World(Plan(12, schedule=schedule)) as world:
        world.run_until(4.0)
        assert world.failures == []


def test_nobody_leads_and_an_action_on_the_leader_does_nothing() -> None:
    with World(Plan(13)) as world:
        world.perform(Action(0.0, "kill", {"node": "leader"}))
        assert world.leader() == ""


def test_calm_ends_and_calls_off_every_disturbance() -> None:
    with World(Plan(14)) as world:
        asker = Asker(world)
        asker.begin()
        for action in (
            Action(0.0, "cut", {"node": "a"}),
            Action(0.0, "weather", {"loss": 1.0}),
            Action(0.0, "pause", {"node": "b"}),
            Action(0.0, "kill", {"node": "c", "at": "fdatasync", "count": 1}),
            Action(0.0, "isolate_at", ARGS["isolate_at"]),
            Action(0.0, "calm"),
        ):
            world.perform(action)
        asker.put(1)
        assert asker.of("ended") == []
        assert world._traps == {}


def test_a_cut_that_was_healed_does_not_end_one_that_comes_behind() -> None:
    with World(Plan(17)) as world:
        world.cut_one_way("a", "b", 1.0)
        world.heal()
        world.cut_one_way("a", "b")
        world.cut_one_way("a", "c", 1.0)
        world.run_until(2.0)
        assert world.net.cut == {("a", "b")}


def test_knobs_reach_the_nodes() -> None:
    with World(Plan(15, knobs={"heartbeat_s": 0.05, "segment_bytes": 4096})) as world:
        world.run_until(1.0)
        settings = node_of(world, "a").settings
        assert settings.timing.heartbeat_s == 0.05
        assert settings.segment_bytes == 4096
        assert settings.keep_bytes == KNOBS["keep_bytes"]


def test_nothing_leaves_a_process_that_has_ended() -> None:
    with World(Plan(16)) as world:
        Asker(world).begin()
        node: SimNode = world.nodes[world.leader()]
        node.disk.lost_power = True
        other = next(name for name in world.nodes if name != node.name)
        peers = node_of(world, node.name)._context.peers
        node.during(node.life, lambda: peers.send(other, ReadIndex(9, 9)))
        assert not node.up


# --- disks that are short of room, and orderly ends -----------------------------------------------


def test_a_majority_short_of_room_refuses_publications_and_ends_nobody() -> None:
    with World(Plan(31)) as world:
        asker = Asker(world)
        asker.begin()
        asker.put(1)
        for name in ("a", "b"):
            world.disk_low(name)
        leader = world.leader()
        asker.until(lambda: node_of(world, leader).broker.disk_low)
        body = {"counter": 2, "publication": "publication 2"}
        request = Request(PUT, "refused", "t", asker.client_id, body=body)
        world.request("asker", leader, encode_request(request))
        asker.until(lambda: "refused" in asker._replies)
        assert asker._replies["refused"].body["error"] == "disk_full"
        for name in ("a", "b"):
            world.disk_free(name)
        asker.until(lambda: not node_of(world, leader).broker.disk_low)
        asker.put(2)
        assert asker.delivered() == texts(2)
        assert world.failures == []


def test_want_of_room_under_the_database_alone_puts_off_a_checkpoint() -> None:
    with World(Plan(32)) as world:
        asker = Asker(world)
        asker.begin()
        for counter in range(1, 5):  # more than the database's file has free pages for
            body = {"counter": counter, "publication": "x" * 20_000}
            asker.ask(Request(PUT, "", "t", asker.client_id, body=body))
        follower = next(name for name in world.nodes if name != world.leader())
        world.run_until(world.now + 1.0)  # applied everywhere, so nothing is written any more
        world.disk_full(follower)
        for _ in range(10):
            world.compact(follower)
            world.run_until(world.now + 0.2)
        failed = asker.of("checkpoint_failed")
        assert failed
        assert {fields["node"] for fields in failed} == {follower}
        assert world.failures == []
        world.disk_free(follower)
        world.compact(follower)
        world.run_until(world.now + 1.0)
        assert asker.of("checkpoint_failed") == failed


def test_an_entry_that_finds_no_room_in_the_database_ends_the_node_and_is_applied_later() -> None:
    with World(Plan(33)) as world:
        asker = Asker(world)
        asker.begin()
        follower = next(name for name in world.nodes if name != world.leader())
        member = node_of(world, follower)
        last = member.journal.last_index + 1
        body = {"counter": 1, "publication": "publication 1"}
        request = Request(PUT, "put", "t", asker.client_id, body=body)
        world.request("asker", world.leader(), encode_request(request))
        while member.journal.last_index < last:
            world.run_until(world.now + 0.001)
        assert member.store.applied_index < last
        world.disk_full(follower)  # nothing more is written to its journal
        asker.until(lambda: not world.nodes[follower].up)
        [(name, error)] = world.failures
        assert (name, type(error).__name__) == (follower, "OperationalError")
        world.disk_free(follower)
        world.restart(follower)
        asker.until(lambda: world.nodes[follower].as_member is not None)
        asker.until(lambda: node_of(world, follower).store.applied_index >= last)
        assert asker.delivered() == texts(1)


def test_a_leader_that_is_stopped_hands_over_and_comes_back_with_everything() -> None:
    with World(Plan(34)) as world:
        asker = Asker(world)
        asker.begin()
        for counter in range(1, 6):
            asker.put(counter)
        before = world.leader()
        term = node_of(world, before).raft.term
        began_s = world.now
        world.stop("leader", 3.0)
        asker.until(lambda: not world.nodes[before].up)
        assert world.now - began_s < STOPPING_S_MAX
        assert [fields["how"] for fields in asker.of("ended")] == ["stop"]
        assert world.leader() not in ("", before)
        assert world.nodes[before].disk.is_synced
        asker.put(6)
        asker.until(lambda: world.nodes[before].up)
        # One election, which it asked for itself: nobody waited for a time-out.
        assert node_of(world, world.leader()).raft.term == term + 1
        assert asker.delivered() == texts(6)
        assert world.failures == []
