"""Nodes that talk in bytes: the product's connections over simulated TCP keep what TCP promises."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import count
from typing import Any

import pytest

from chaos.simulation.bugs import BUGS
from chaos.simulation.plan.plan import Plan
from chaos.simulation.search.campaign import Recipe
from chaos.simulation.search.run import run
from chaos.simulation.world.network import SimLinkConditions
from chaos.simulation.world.wire import Wire, WirePeers, wired
from chaos.simulation.world.world import World
from cluster.members.peers import Connected, Disconnected, PeerPort
from cluster.wire.messages import PROTOCOL_VERSION, Hello, ReadIndex, Relay
from tests.unit.chaos.simulation.test_network import TimedCalls

CALM = SimLinkConditions(delay_ms=1.0, jitter_ms=1.0)
BAD = SimLinkConditions(delay_ms=5.0, jitter_ms=20.0, loss=0.05)
TURN_S = 0.01


class WireClock(TimedCalls):
    """A timeline whose streams go on where they were, as the world's do."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self._streams: dict[str, random.Random] = {}

    def stream(self, name: str) -> random.Random:
        return self._streams.setdefault(name, super().stream(name))


class WireBench:
    """Two nodes that have a turn every ten milliseconds."""

    def __init__(self, seed: int, conditions: SimLinkConditions = CALM) -> None:
        print("seed", seed)
        self.clock = WireClock(seed)
        self.active = ""
        self.wire = Wire(
            self.clock, ("a", "b"), conditions, 3.0, lambda name: self, lambda: self.active
        )
        self.peers: dict[str, WirePeers] = {}
        self.got: dict[str, list[Any]] = {"a": [], "b": []}
        self.events: dict[str, list[Any]] = {"a": [], "b": []}
        self._patched = wired(self.wire)
        self._patched.__enter__()
        self.join("a")
        self.join("b")

    def close(self) -> None:
        self._patched.__exit__(None, None, None)

    def departure(self) -> float:
        return self.clock.now

    def join(self, name: str, incarnation: str = "first") -> None:
        self.active = name
        hello = Hello(PROTOCOL_VERSION, "c", name, incarnation, ("a", "b"), True, None)
        self.wire.join(name, hello, lambda: None)
        peers = self.wire.peers(name, lambda: self.clock.now, self.departure, lambda: 1 << 20)
        assert isinstance(peers, WirePeers)
        self.peers[name] = peers

    def run(self, seconds: float) -> None:
        end_s = self.clock.now + seconds
        while self.clock.now < end_s:
            self.clock.run_until(self.clock.now + TURN_S)
            for name in sorted(self.peers):
                self.active = name
                self.wire.sides[name].begin_turn(self.clock.now)
                self.got[name] += [message for _, message in self.peers[name].receive(1000)]
                self.events[name] += self.peers[name].events()
                self.peers[name].flush(None)

    def end(self, name: str, noticed: bool) -> None:
        del self.peers[name]
        self.wire.leave(name, noticed, self.clock.now)


@pytest.fixture
def bench(request: pytest.FixtureRequest) -> Any:
    made = []

    def make(seed: int, conditions: SimLinkConditions = CALM) -> WireBench:
        made.append(WireBench(seed, conditions))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.mark.parametrize("seed", range(5))
def test_what_is_sent_arrives_once_and_in_order_whatever_pieces_it_comes_in(
    bench: Any, seed: int
) -> None:
    two = bench(seed, BAD)
    two.run(2.0)
    rng = random.Random(seed)
    sent: list[Any] = []
    for number in range(1, 301):
        relay = Relay(number, [rng.randbytes(rng.randint(0, 20_000))])
        sent.append(relay if rng.random() < 0.5 else ReadIndex(1, number))
        two.peers["a"].send("b", sent[-1])
        if rng.random() < 0.1:
            two.peers["a"].flush("b")
            two.run(TURN_S)
    two.run(20.0)
    for kind in (Relay, ReadIndex):
        assert [m for m in two.got["b"] if type(m) is kind] == [m for m in sent if type(m) is kind]
    assert not two.wire.torn


def test_what_a_cut_holds_arrives_when_it_heals(bench: Any) -> None:
    two = bench(1)
    two.run(1.0)
    two.wire.cut.add(("a", "b"))
    two.peers["a"].send("b", ReadIndex(1, 7))
    two.run(2.0)
    assert two.got["b"] == []
    two.wire.cut.clear()
    two.run(1.0)
    assert two.got["b"] == [ReadIndex(1, 7)]
    assert two.events["b"] == [Connected("a")]


def test_a_cut_that_lasts_ends_the_connection_and_another_is_made(bench: Any) -> None:
    two = bench(2)
    two.run(1.0)
    two.wire.cut |= {("a", "b"), ("b", "a")}
    two.peers["a"].send("b", ReadIndex(1, 7))
    two.run(15.0)
    assert any(isinstance(event, Disconnected) for event in two.events["b"])
    two.wire.cut.clear()
    two.run(3.0)
    assert two.events["a"][-1] == Connected("b")
    assert two.events["b"][-1] == Connected("a")
    two.peers["a"].send("b", ReadIndex(1, 8))
    two.run(1.0)
    assert two.got["b"] == [ReadIndex(1, 8)], "what the first connection held is gone with it"


@pytest.mark.parametrize("noticed", [True, False])
def test_a_process_that_ends_is_missed_and_found_again(bench: Any, noticed: bool) -> None:
    two = bench(3)
    two.run(1.0)
    two.end("b", noticed)
    two.run(1.0)
    is_noticed = any(isinstance(event, Disconnected) for event in two.events["a"])
    assert is_noticed == noticed, "nobody tells of a machine without power"
    two.join("b", "second")
    two.run(12.0)
    assert two.events["a"][-1] == Connected("b")
    said = two.peers["a"].hello_of("b")
    assert said is not None
    assert said.incarnation == "second"


def test_strangers_and_failing_accepts_disturb_nobody(bench: Any) -> None:
    two = bench(4)
    two.run(60.0)
    assert [event for event in two.events["a"] if isinstance(event, Disconnected)] == []
    assert two.peers["a"].hello_of("b") is not None
    assert not two.wire.torn


def test_nothing_is_left_of_connections_that_ended(bench: Any) -> None:
    two = bench(5)
    two.run(1.0)
    for _ in range(20):
        two.wire.break_link("a", "b")
        two.run(2.0)
    two.run(15.0)
    strangers = {
        fd for fd, one in two.wire.sockets.items() if "nobody" in (one.machine, one.remote)
    }
    assert len(two.wire.sockets.keys() - strangers) <= 2 + 4, "two listeners, and one pair or two"


def short_plan() -> Plan:
    """Return the beginning of the first plan that has nodes talk in bytes by itself."""
    plan = next(plan for plan in map(Recipe().plan, count(1)) if plan.knobs.get("wire"))
    early = tuple(action for action in plan.schedule if action.at_s < 8.0)
    return replace(plan, duration_s=8.0, schedule=early)


@pytest.mark.slow
def test_a_run_in_bytes_is_the_same_twice_and_uses_the_products_connections() -> None:
    plan = short_plan()
    with World(replace(plan, schedule=())) as world:  # nobody is there to act
        world.run_until(5.0)
        assert isinstance(world.net, Wire)
        assert all(isinstance(side.port, PeerPort) for side in world.net.sides.values())
        assert any(side.port._live for side in world.net.sides.values())
        assert world.ways is not None
    first, second = run(plan), run(plan)
    assert not first.failures
    assert first.hash == second.hash


@pytest.mark.parametrize("name", ["cut-frames-begin-again", "a-rest-of-a-frame-is-thrown-away"])
def test_a_bug_in_frames_is_seen_as_torn(name: str) -> None:
    plan = Recipe("safety").plan(4)
    plan = replace(plan, knobs={**plan.knobs, "wire": 1})
    assert "torn" in run(plan, name).checks
    assert BUGS[name].caught_by == {"torn"}


def test_clients_speak_zmtp_with_the_products_port_and_get_their_replies() -> None:
    plan = short_plan()
    with World(replace(plan, schedule=())) as world:  # nobody is there to act
        asked: list[tuple[str, str]] = []
        answered: list[tuple[str, str]] = []
        came: list[str] = []
        world.request_taps.append(lambda node, way, frames: asked.append((node.name, way)))
        world.reply_taps.append(lambda node, way, frames: answered.append((node, way)))
        world.run_until(2.0)
        way = "client-9/1.1"
        world.clients[way] = lambda node, frames: came.append(bytes(frames[0]).decode())
        status = b'{"type": "STATUS", "request_id": "r1", "version": 1, "body": {}}'
        world.request(way, "a", [status])
        world.run_until(4.0)
        assert asked == answered == [("a", way)]
        assert len(came) == 1
        assert '"r1"' in came[0]
        lost: list[tuple[str, bool]] = []
        world.lost_ways.append(lambda way, vanished: lost.append((way, vanished)))
        world.kill("a")
        world.run_until(5.0)
        assert lost == [(way, False)], "the client hears that its connection broke"


def test_a_client_hears_late_of_a_machine_that_was_off_and_that_is_no_news_then() -> None:
    plan = short_plan()
    with World(replace(plan, schedule=())) as world:
        world.run_until(2.0)
        way = "client-9/1.1"
        world.clients[way] = lambda node, frames: None
        status = b'{"type": "STATUS", "request_id": "r1", "version": 1, "body": {}}'
        world.request(way, "a", [status])
        world.run_until(4.0)
        lost: list[tuple[str, bool]] = []
        world.lost_ways.append(lambda way, vanished: lost.append((way, vanished)))
        world.power_loss("a")
        world.restart_all()
        world.run_until(6.0)
        assert lost == []
        world.request(way, "a", [status])
        world.run_until(8.0)
        assert lost == [(way, True)]
