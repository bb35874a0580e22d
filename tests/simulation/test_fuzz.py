"""Random schedules: clients publish and read while links, nodes and disks fail; nothing is lost.

A failing seed is run again alone by the line that the failure prints.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.simulation.clients import Client, Ledger, check
from tests.simulation.lab import STEP_S, Lab
from tests.simulation.network import Weather

SEEDS_QUICK = 3
SEEDS = 30  # `flotilla-simulate` runs thousands, of more kinds
CLIENTS = 4
STORM_S = 12.0  # virtual seconds of faults
RECOVERY_S_MAX = 60.0  # virtual; elections, copies and drains take a few
COMPARE_PERIOD = 50  # steps


class Storm:
    """Faults at random, never more than the promises allow: one empty disk at a time."""

    def __init__(self, lab: Lab, rng: random.Random) -> None:
        self.lab, self.rng = lab, rng
        self.wiped = ""
        faults = {
            self.kill: 4,
            self.fail_power: 6,
            self.restart: 16,
            self.wipe: 2,
            self.break_link: 6,
            self.cut: 4,
            self.cut_one_way: 2,
            self.heal: 8,
            self.pause: 3,
            self.resume: 8,
            self.transfer: 3,
            self.compact: 6,
        }
        self.faults, self.weights = list(faults), list(faults.values())

    def blow(self) -> None:
        """Let a fault happen, or end."""
        if self.rng.random() < 0.06:
            self.rng.choices(self.faults, self.weights)[0]()

    def node(self) -> str:
        return self.rng.choice(sorted(self.lab.nodes) or [""])

    def pair(self) -> list[str]:
        return self.rng.sample(self.lab.names, 2)

    def kill(self) -> None:
        if name := self.node():
            self.lab.crash(name)

    def fail_power(self) -> None:
        if name := self.node():
            self.lab.disks[name].power_fails_in = self.rng.randrange(6)

    def restart(self) -> None:
        down = [name for name in self.lab.names if name not in self.lab.nodes]
        if down:
            self.lab.start(self.rng.choice(down))

    def wipe(self) -> None:
        lab = self.lab
        before = lab.nodes.get(self.wiped)
        if self.wiped and (before is None or not before.identity.started):
            return
        down = [name for name in lab.names if name not in lab.nodes]
        if down:
            self.wiped = self.rng.choice(down)
            lab.wipe(self.wiped)

    def break_link(self) -> None:
        self.lab.net.break_link(*self.pair())

    def cut(self) -> None:
        name, *others = self.rng.sample(self.lab.names, self.rng.randint(2, len(self.lab.names)))
        self.lab.net.cut_off(name, *others)

    def cut_one_way(self) -> None:
        self.lab.net.cut_one_way(*self.pair())

    def heal(self) -> None:
        self.lab.net.heal()

    def pause(self) -> None:
        self.lab.paused.add(self.node())

    def resume(self) -> None:
        self.lab.paused.clear()

    def transfer(self) -> None:
        node = self.lab.nodes.get(self.lab.leader())
        if node is not None and node.member is not None:
            node.member.raft.transfer_leadership()

    def compact(self) -> None:
        node = self.lab.nodes.get(self.node())
        if node is not None and node.member is not None:
            self.lab.compact(node.settings.name)


def weather(rng: random.Random) -> Weather:
    """Return the network of one seed, from calm to harsh."""
    harshness = rng.choice((0.0, 0.3, 1.0))
    shares = {"drop": 0.1, "duplicate": 0.2, "reorder": 0.5, "delay": 0.5}
    return Weather(rng, **{name: harshness * share for name, share in shares.items()})


def play(directory: Path, seed: int) -> list[str]:
    """Run one seed; return evidence of damage."""
    rng = random.Random(seed)
    names = "abc" if seed % 2 else "abcde"
    lab = Lab(directory, names, seed, segment_bytes=2048, keep_bytes=rng.choice((2048, 8192)))
    lab.start()
    lab.elect()
    ledger = Ledger()
    clients = [Client(lab, ledger, rng.choice("xy"), rng) for _ in range(CLIENTS)]
    storm = Storm(lab, rng)
    while not all(client.subscribed for client in clients):
        step(lab, clients)
    lab.net.weather = weather(rng)
    for number in range(round(STORM_S / STEP_S)):
        storm.blow()
        step(lab, clients)
        if number % COMPARE_PERIOD == 0:
            lab.oracle.compare(lab.nodes)
    return lab.oracle.evidence + recover(lab, clients) + check(ledger) + lab.oracle.evidence


def step(lab: Lab, clients: list[Client]) -> None:
    for client in clients:
        client.step()
    lab.step()


def recover(lab: Lab, clients: list[Client]) -> list[str]:
    """End all faults, drain; return what does not come to rest in time."""
    lab.net.weather = None
    lab.net.heal()
    lab.paused.clear()
    for disk in lab.disks.values():
        disk.power_fails_in = None
    lab.start()
    for client in clients:
        client.publishing = False
        client.drained_to = -1
    deadline = lab.now + RECOVERY_S_MAX
    while not (all(client.drained_to >= 0 for client in clients) and at_rest(lab)):
        if lab.now > deadline:
            return [f"no rest: {[standing(lab, name) for name in lab.names]}"]
        step(lab, clients)
    lab.oracle.compare(lab.nodes)
    return []


def at_rest(lab: Lab) -> bool:
    members = [node.member for node in lab.nodes.values()]
    applied = {each.raft.applied_index if each else -1 for each in members}
    return len(applied) == 1 and bool(lab.leader())


def standing(lab: Lab, name: str) -> str:
    member = lab.nodes[name].member
    if member is None:
        return f"{name} is no member"
    raft, journal = member.raft, member.journal
    return (
        f"{name} {raft.role} of {raft.leader!r} in {raft.term}: "
        f"{journal.first_index} to {journal.last_index}, {raft.applied_index} applied"
    )


@pytest.mark.parametrize(
    "seed",
    [
        *range(SEEDS_QUICK),
        *(pytest.param(s, marks=pytest.mark.slow) for s in range(SEEDS_QUICK, SEEDS)),
    ],
)
def test_nothing_is_lost_doubled_or_reordered(seed: int, tmp_path: Path) -> None:
    print(f"reproduce: pytest 'tests/simulation/test_fuzz.py' -k '[{seed}]'")
    assert play(tmp_path, seed) == []
