"""Faults of networks, in real namespaces with real packets: who hears whom, and how well."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack
from itertools import permutations
from pathlib import Path

import pytest

from chaos.faults import FAULTS, support
from chaos.faults.networks import between
from chaos.targets import (
    CLIENTS,
    DegradesLinks,
    Link,
    LinkConditions,
    Links,
    TargetError,
    leftovers,
    network,
)
from chaos.targets.namespaces import NamespacesTarget
from flotilla_client import Client, FlotillaError
from tests.waiting import until

pytestmark = [pytest.mark.root, pytest.mark.needs("ip", "iptables")]

SEED = 5
WAIT_S = 20.0
SETTLE_S = 0.1  # what arrives behind the last that was expected
PORT = 7_777
# Sends what it is told ("ADDRESS COUNT WORD") and writes what it hears ("COUNT WORD", UDP).
ENDPOINT = """
import os, select, socket, sys
heard = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
heard.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
heard.bind((sys.argv[1], int(sys.argv[2])))
print("ready", flush=True)
while True:
    for ready in select.select([heard, 0], [], [])[0]:
        if ready is heard:
            print(heard.recv(100).decode(), flush=True)
            continue
        lines = os.read(0, 65536).decode().splitlines()
        if not lines:
            sys.exit()
        for line in lines:
            address, count, word = line.split()
            for number in range(int(count)):
                try:
                    heard.sendto(f"{number} {word}".encode(), (address, int(sys.argv[2])))
                except PermissionError:  # dropped where it begins: a TCP would not be told
                    pass
"""


class Wires:
    """Three namespaces and the machine's side, without nodes: an endpoint of datagrams in each."""

    def __init__(self, target: NamespacesTarget) -> None:
        self.target = target
        self.target.equip([Links, DegradesLinks])
        self.target._create()
        self.places = (*self.target.nodes, CLIENTS)
        self.addresses = self.target._addresses()
        self._logs = {place: target._directory / f"{place}.log" for place in self.places}
        self._endpoints = {place: self._endpoint(place) for place in self.places}
        self._word = 0
        for place in self.places:
            until(lambda place=place: "ready" in self.heard(place))  # type: ignore[misc]

    def _endpoint(self, place: str) -> subprocess.Popen[str]:
        enter = [] if place == CLIENTS else [*(self.target._enter(place) or ())]
        with self._logs[place].open("w") as log:
            return subprocess.Popen(
                [*enter, sys.executable, "-c", ENDPOINT, self.addresses[place], str(PORT)],
                stdin=subprocess.PIPE,
                stdout=log,
                text=True,
            )

    def heard(self, place: str) -> list[str]:
        return self._logs[place].read_text().splitlines()

    def say(self, link: Link, count: int = 1) -> str:
        """Send `count` datagrams over a link; return the word that is in them."""
        self._word += 1
        source, target = link
        stdin = self._endpoints[source].stdin
        assert stdin is not None
        stdin.write(f"{self.addresses[target]} {count} w{self._word}\n")
        stdin.flush()
        return f"w{self._word}"

    def arrived(self, link: Link, word: str) -> list[int]:
        """Return the numbers of the datagrams with this word that have arrived, in their order."""
        rows = (line.split() for line in self.heard(link[1]))
        return [int(row[0]) for row in rows if row[1:] == [word]]

    def heard_over(self, links: Collection[Link], expected: Collection[Link]) -> set[Link]:
        """Return over which of the links a datagram arrives; waits for those that are expected."""
        words = {link: self.say(link) for link in links}

        def heard() -> set[Link]:
            return {link for link, word in words.items() if self.arrived(link, word)}

        deadline_s = time.monotonic() + WAIT_S
        while not heard() >= set(expected) and time.monotonic() < deadline_s:
            time.sleep(0.01)
        time.sleep(SETTLE_S)
        return heard()

    def every_link(self) -> list[Link]:
        return list(permutations(self.places, 2))

    def await_all(self, link: Link, word: str, count: int) -> list[int]:
        until(lambda: len(self.arrived(link, word)) >= count)
        return self.arrived(link, word)

    def close(self) -> None:
        for endpoint in self._endpoints.values():
            endpoint.kill()
            endpoint.communicate()


@pytest.fixture(scope="module")
def claims(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    directory = tmp_path_factory.mktemp("claims")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(leftovers, "run_locks_directory", lambda: directory)
        yield directory


@pytest.fixture(scope="module")
def wires(tmp_path_factory: pytest.TempPathFactory, claims: Path) -> Iterator[Wires]:
    target = NamespacesTarget(tmp_path_factory.mktemp("wires") / "cluster", 3)
    with ExitStack() as stack:
        stack.callback(target.down)
        made = Wires(target)
        stack.callback(made.close)
        yield made
    names = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True)
    assert made.target._label not in names.stdout


class Led:
    """A target whose leader is known, because no node runs: everything else is the real one's."""

    name = "namespaces"

    def __init__(self, wires: Wires) -> None:
        self.nodes = wires.target.nodes
        self.cut, self.join = wires.target.cut, wires.target.join
        self.degrade, self.clear = wires.target.degrade, wires.target.clear

    def leader(self) -> str:
        return "n2"

    def kill(self, nodes: list[str]) -> None: ...
    def start(self, nodes: list[str]) -> None: ...
    def stop(self, nodes: list[str]) -> None: ...


PARTITIONS = [name for name, fault in FAULTS.items() if Links in fault.needs]


@pytest.mark.parametrize("name", PARTITIONS)
def test_a_partition_cuts_its_links_and_no_other_one_until_it_is_healed(
    wires: Wires, name: str
) -> None:
    target, rng, links = Led(wires), random.Random(SEED), wires.every_link()
    fault = FAULTS[name]
    hit = fault.choose(target, rng)
    try:
        fault.inject(target, hit, rng)
        cut = set(fault.cuts(target, hit))  # type: ignore[attr-defined]
        assert cut
        whole = set(links) - cut
        assert wires.heard_over(links, whole) == whole
    finally:
        fault.heal(target, hit)
    assert wires.heard_over(links, links) == set(links)


def test_healing_one_partition_leaves_the_links_of_another_cut(wires: Wires) -> None:
    one, other = [("n1", "n2")], [("n2", "n1"), (CLIENTS, "n3")]
    links = set(wires.every_link())
    try:
        wires.target.cut(one)
        wires.target.cut(other)
        wires.target.join(one)
        assert wires.heard_over(links, links - set(other)) == links - set(other)
    finally:
        wires.target.join([*one, *other])


@pytest.fixture
def degraded(wires: Wires) -> Iterator[Callable[[LinkConditions], Link]]:
    """Return what puts conditions on the links of n1; then one of them."""
    links = between(["n1"], ["n2", CLIENTS])
    yield lambda conditions: (wires.target.degrade(links, conditions), ("n2", "n1"))[1]
    wires.target.clear(links)
    assert wires.heard_over(links, links) == set(links)
    assert wires.target._network._processes == {}


Degraded = Callable[[LinkConditions], Link]


@pytest.mark.parametrize("link", [("n2", "n1"), ("n1", CLIENTS), (CLIENTS, "n1")])
def test_a_slow_link_delivers_all_in_order_and_late(
    wires: Wires, degraded: Degraded, link: Link
) -> None:
    degraded(LinkConditions(delay_ms=200, jitter_ms=50))
    began_s = time.monotonic()
    word = wires.say(link, 100)
    while not wires.arrived(link, word):
        assert time.monotonic() - began_s < WAIT_S
    assert time.monotonic() - began_s >= 0.15
    assert wires.await_all(link, word, 100) == list(range(100))


def test_a_lossy_link_loses_about_its_share(wires: Wires, degraded: Degraded) -> None:
    link = degraded(LinkConditions(loss=0.3))
    word = wires.say(link, 1000)
    until(lambda: wires.arrived(link, word)[-1:] >= [950])
    time.sleep(SETTLE_S)
    assert 600 < len(wires.arrived(link, word)) < 800


@pytest.mark.parametrize("link", [("n2", "n1"), ("n1", CLIENTS)])
def test_a_duplicating_link_delivers_some_twice_and_loses_none(
    wires: Wires, degraded: Degraded, link: Link
) -> None:
    degraded(LinkConditions(duplicate=0.5))
    word = wires.say(link, 400)
    until(lambda: set(wires.arrived(link, word)) == set(range(400)))
    until(lambda: len(wires.arrived(link, word)) > 500)
    assert len(wires.arrived(link, word)) < 700


def test_a_reordering_link_lets_some_overtake_and_loses_none(
    wires: Wires, degraded: Degraded
) -> None:
    link = degraded(LinkConditions(delay_ms=30, reorder=0.3))
    word = wires.say(link, 200)
    order = wires.await_all(link, word, 200)
    assert sorted(order) == list(range(200))
    assert order != sorted(order)


def test_a_clogged_link_delivers_nothing_until_it_is_cleared_and_then_everything(
    wires: Wires, degraded: Degraded
) -> None:
    link = degraded(LinkConditions(clog=True))
    word = wires.say(link, 50)
    time.sleep(0.3)
    assert wires.arrived(link, word) == []
    wires.target.clear([link])
    assert wires.await_all(link, word, 50) == list(range(50))


def test_without_its_process_a_queue_lets_packets_pass_and_clearing_says_so(
    wires: Wires, degraded: Degraded
) -> None:
    link = degraded(LinkConditions(clog=True))
    process = wires.target._network._processes["n1"]
    process.kill()
    process.wait()
    assert wires.heard_over([link], [link]) == {link}
    with pytest.raises(TargetError, match=r"n1: who held its packets had ended \(exit code -9\)"):
        wires.target.clear([link])


def test_a_kernel_that_cannot_hold_packets_back_is_told_before_nodes_start(
    wires: Wires, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "broken.py").write_text("raise OSError('no such queue')")
    monkeypatch.setattr(network, "PACKETS", tmp_path / "broken.py")
    with pytest.raises(TargetError, match=r"(?s)cannot be held back on this kernel.*no such queue"):
        wires.target._network.probe("n3")
    monkeypatch.undo()
    wires.target.clear(between(["n3"], [CLIENTS]))


# --- with nodes -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cluster(
    tmp_path_factory: pytest.TempPathFactory, claims: Path
) -> Iterator[tuple[NamespacesTarget, Client]]:
    directory = tmp_path_factory.mktemp("namespaces")
    target = NamespacesTarget(directory / "cluster", 3)
    support.prepare(
        target, ["isolate-leader", "clogged-links", "clients-from-leader", "unplug-leader"]
    )
    try:
        target.up()
        endpoints = list(target.endpoints().values())
        with Client(endpoints, state_dir=directory / "client", rng=random.Random(SEED)) as client:
            client.subscribe("t")
            yield target, client
    finally:
        target.down()
    assert list(claims.iterdir()) == []


def put(client: Client, count: int = 1) -> None:
    for _ in range(count):
        client.publish("t", b"x")


def test_the_others_elect_a_leader_while_the_old_one_is_cut_off_and_answers_no_reads(
    cluster: tuple[NamespacesTarget, Client],
) -> None:
    target, client = cluster
    put(client)
    fault, rng = FAULTS["isolate-leader"], random.Random(SEED)
    [old] = fault.choose(target, rng)
    try:
        fault.inject(target, [old], rng)
        until(lambda: target.leader() not in (None, old))
        put(client, 3)
        body = target._statuses()[old]  # the clients' way to it is open
        assert not body["serving"]
    finally:
        fault.heal(target, [old])
    until(lambda: target._statuses()[old]["leader"] == target.leader())
    put(client)


@pytest.mark.parametrize("name", ["clients-from-leader", "clogged-links", "unplug-leader"])
def test_clients_find_their_way_round_what_does_not_answer(
    cluster: tuple[NamespacesTarget, Client], name: str
) -> None:
    target, client = cluster
    rng = random.Random(SEED)
    fault = FAULTS[name]
    hit = fault.choose(target, rng)
    try:
        fault.inject(target, hit, rng)
        until(lambda: hit[0] not in target._statuses())
        with pytest.raises(FlotillaError):
            Client([target.endpoints()[hit[0]]], timeout=0.5).publish("t", b"nobody hears this")
        put(client)  # by way of another node
    finally:
        fault.heal(target, hit)
    until(lambda: hit[0] in target._statuses())
    put(client)


def test_nothing_is_lost_doubled_or_reordered_by_any_of_this(
    cluster: tuple[NamespacesTarget, Client],
) -> None:
    target, client = cluster
    assert target.ended() == []
    ids = [message.id for message in client.messages("t", idle=0.1)]
    assert ids == list(range(1, len(ids) + 1))
    assert len(ids) >= 7
