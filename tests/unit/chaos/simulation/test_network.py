"""The simulated network: what arrives, in which order, and when the ends of a link notice."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from chaos.simulation.world.network import SILENCE_S, SimLinkConditions, SimNet, SimPeers
from cluster.members.peers import Connected, Disconnected
from cluster.wire.messages import PROTOCOL_VERSION, Hello, Message, ReadIndex, RelayReply

CALM = SimLinkConditions(delay_ms=1.0, jitter_ms=1.0)
CONNECTED_S = 2.0  # by then every pair has dialed


class TimedCalls:
    """A timeline without nodes."""

    def __init__(self, seed: int = 1) -> None:
        self.now = 0.0
        self.seed = seed
        self.noted: list[str] = []
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._number = 0

    def at(self, when_s: float, call: Callable[[], None]) -> None:
        self._number += 1
        heapq.heappush(self._heap, (max(when_s, self.now), self._number, call))

    def stream(self, name: str) -> random.Random:
        return random.Random(f"{name} {self.seed}")

    def note(self, *what: object) -> None:
        self.noted.append(what)

    def run_until(self, until_s: float) -> None:
        while self._heap and self._heap[0][0] <= until_s:
            self.now, _, call = heapq.heappop(self._heap)
            call()
        self.now = until_s


def hello(name: str, incarnation: str = "first") -> Hello:
    return Hello(PROTOCOL_VERSION, "c", name, incarnation, ("a", "b"), True, None)


class NetworkBench:
    """Two nodes, connected."""

    def __init__(self, conditions: SimLinkConditions = CALM, seed: int = 1) -> None:
        self.clock = TimedCalls(seed)
        self.net = SimNet(self.clock, ("a", "b"), conditions)
        self.peers: dict[str, SimPeers] = {}
        self.join("a")
        self.join("b")
        self.run(CONNECTED_S)
        assert self.events("a") == [Connected("b")]
        assert self.events("b") == [Connected("a")]

    def join(self, name: str, incarnation: str = "first") -> None:
        port = self.net.join(name, hello(name, incarnation), lambda: None)
        self.peers[name] = SimPeers(self.net, name, port, lambda: self.clock.now, lambda: 1)

    def run(self, seconds: float) -> None:
        self.clock.run_until(self.clock.now + seconds)

    def send(self, source: str, target: str, *numbers: int) -> None:
        for number in numbers:
            self.peers[source].send(target, ReadIndex(1, number))

    def numbers(self, name: str) -> list[int]:
        return [message.sequence for _, message in self.received(name)]

    def received(self, name: str) -> list[tuple[str, Any]]:
        return self.peers[name].receive(1000)

    def events(self, name: str) -> list[Any]:
        return self.peers[name].events()


def test_messages_arrive_once_in_order_and_later() -> None:
    bench = NetworkBench()
    bench.send("a", "b", *range(100))
    assert bench.numbers("b") == []
    bench.run(0.1)
    assert bench.numbers("b") == list(range(100))


def test_every_message_arrives_as_what_its_encoding_says() -> None:
    bench = NetworkBench()
    sent = [RelayReply(number, [b"frame"]) for number in range(40)]
    for message in sent:
        bench.peers["a"].send("b", message)
    bench.run(0.1)
    assert [message for _, message in bench.received("b")] == sent
    assert len(bench.clock.noted) == 40


def test_conditions_lose_double_and_reorder() -> None:
    def arriving(**shares: float) -> list[int]:
        bench = NetworkBench(replace(CALM, **shares))
        bench.send("a", "b", *range(200))
        bench.run(1.0)
        return bench.numbers("b")

    assert len(arriving(loss=0.5)) < 150
    assert len(arriving(duplicate=0.5)) > 250
    reordered = arriving(reorder=0.5)
    assert reordered != sorted(reordered)
    assert sorted(reordered) == list(range(200))


def test_a_cut_loses_one_direction_without_a_word_until_the_silence_is_noticed() -> None:
    bench = NetworkBench()
    bench.net.cut.add(("a", "b"))
    bench.send("a", "b", 1)
    bench.send("b", "a", 2)
    bench.run(1.0)
    assert bench.numbers("b") == []
    assert bench.numbers("a") == [2]
    assert bench.net.connected("a", "b")
    bench.run(SILENCE_S * 1.5)
    assert [type(event) for event in bench.events("a") + bench.events("b")] == [Disconnected] * 2
    bench.net.cut.clear()
    bench.run(CONNECTED_S)
    assert bench.net.connected("a", "b")


def test_a_clog_delays_and_loses_nothing() -> None:
    bench = NetworkBench()
    bench.net.clogged["a", "b"] = bench.clock.now + 1.0
    bench.send("a", "b", *range(10))
    bench.run(0.9)
    assert bench.numbers("b") == []
    bench.run(0.2)
    assert bench.numbers("b") == list(range(10))


def test_what_a_killed_process_had_sent_may_arrive_and_then_its_end() -> None:
    arrived = set()
    for seed in range(30):
        bench = NetworkBench(seed=seed)
        for number in range(5):
            bench.send("a", "b", number)
            bench.run(0.0002)
        bench.net.leave("a", noticed=True, ended_s=bench.clock.now)
        bench.run(0.1)
        numbers = bench.numbers("b")
        assert numbers == list(range(len(numbers)))
        arrived.add(len(numbers))
        assert [type(event) for event in bench.events("b")] == [Disconnected]
    assert len(arrived) > 1, arrived


def test_a_machine_without_power_is_noticed_when_it_is_back_or_silent_for_long() -> None:
    bench = NetworkBench()
    bench.net.leave("a", noticed=False, ended_s=bench.clock.now)
    bench.run(1.0)
    assert bench.events("b") == []
    bench.join("a")
    bench.run(CONNECTED_S)
    assert [type(event) for event in bench.events("b")] == [Disconnected, Connected]
    bench.net.leave("a", noticed=False, ended_s=bench.clock.now)
    bench.run(SILENCE_S * 1.5)
    assert [type(event) for event in bench.events("b")] == [Disconnected]


def late(incarnation: str, message: Message) -> list[tuple[str, Message]]:
    """Return what arrives on a new connection of what was sent on the old one."""
    bench = NetworkBench(replace(CALM, delay_ms=50.0, late=1.0))
    bench.peers["a"].send("b", message)
    bench.net.leave("b", noticed=True, ended_s=bench.clock.now)
    bench.join("b", incarnation)
    bench.run(3.0)
    return bench.received("b")


def test_late_messages_reach_the_next_connection_of_the_same_incarnation_alone() -> None:
    assert late("first", ReadIndex(1, 7)) == [("a", ReadIndex(1, 7))]
    assert late("second", ReadIndex(1, 7)) == []
    assert late("first", RelayReply(1, [b""])) == []  # its number means nothing there


def test_a_new_hello_is_known_to_the_peer_even_if_its_message_was_lost() -> None:
    bench = NetworkBench()
    bench.peers["a"].update_hello(replace(hello("a"), fresh=False))
    bench.run(0.1)
    told = bench.peers["b"].hello_of("a")
    assert told is not None
    assert not told.fresh
    bench.net.cut.add(("a", "b"))
    bench.peers["a"].update_hello(replace(hello("a"), founding={"a": "first"}, fresh=False))
    bench.run(0.1)
    assert bench.peers["b"].hello_of("a") == told
    bench.net.cut.clear()
    bench.run(SILENCE_S)
    assert bench.peers["b"].hello_of("a") == replace(told, founding={"a": "first"})


def test_clients_links_are_disturbed_like_others() -> None:
    bench = NetworkBench()
    arrived: list[str] = []
    bench.net.carry("client", "a", bench.clock.now, lambda: arrived.append("first"))
    bench.run(0.1)
    bench.net.cut.add(("client", "a"))
    bench.net.carry("client", "a", bench.clock.now, lambda: arrived.append("second"))
    bench.run(0.1)
    assert arrived == ["first"]
