"""A recovered node names its members once, when they are all there, whatever ends whom then."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self
from unittest.mock import patch

import pytest

from chaos.simulation.world import node
from cluster.members.membership import UNNAMED
from cluster.node.member import WAITING_PERIOD_S
from cluster.recovery.recovery import Recovery
from cluster.store.store import Delivery, Store
from flotilla_client.protocol import GET, PUT, REQUEST_ID, Reply, Request, unpack
from tests.simulation.bench import Stage, WorldBench

TEXTS = ["x", "y", "z"]


@dataclass(frozen=True)
class LeftOver:
    """What is left of a cluster: nodes' directories as they were recovered, by the nodes' names."""

    directories: Mapping[str, Path]
    subscriber: str


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory) -> LeftOver:
    directory = tmp_path_factory.mktemp("left")
    with patch.object(node, "CLUSTER_ID", "lost"), Stage() as before:
        before.publish("a", *TEXTS)
        before.run(0.5)
        before.crash(*"abc")
        for name in "bc":
            before.copy_out(name, directory / "lost" / name)
    for name in "bc":
        with Recovery(directory / "lost" / name, directory / name) as recovery:
            recovery.finish(node.CLUSTER_ID, "abc")
    return LeftOver({name: directory / name for name in "bc"}, before.subscriber)


class RecoveredBench(WorldBench):
    """A cluster of what is left: `c` recovered from its own disk, `a` and `b` empty and down."""

    def __init__(self, left: LeftOver, names: str = "c") -> None:
        super().__init__()
        self._left, self._names = left, names
        self.world.observers.append(self._named)

    def _named(self, kind: str, fields: dict[str, object]) -> None:
        """Forget the state before: that the members are named is no entry of the log."""
        if kind == "members_named":
            self.invariants._digests.clear()

    def __enter__(self) -> Self:
        super().__enter__()
        self.run(0.5)
        for name in "abc":
            self.wipe(name)
        for name in self._names:
            self.copy_in(self._left.directories[name], name)
        self.start("c")
        return self

    def is_named(self) -> bool:
        return UNNAMED not in self.member("c").store.members.values()

    def name(self) -> None:
        """Start all, up to the turn in which the members are named."""
        self.start(*"abc")
        while not self.is_named():
            self.run(0.0005)

    def read(self) -> list[str]:
        reply = self.ask_leader(
            Request(GET, "", "t", self._left.subscriber, body={"last_id": 0, "max_count": 100})
        )
        return [data.decode() for data in unpack(reply.lengths, reply.data)]

    def check(self) -> None:
        """Have all three serve: what was there is, and goes on."""
        self.start(*"abc")
        assert self.read() == TEXTS
        publisher = self.ask_leader(Request(REQUEST_ID, "")).body["client_id"]
        body = {"counter": 1, "publication": "more"}
        assert self.ask_leader(Request(PUT, "", "t", publisher, body=body)).body["id"] == 4
        self.until(lambda: self.members() == "abc")
        self.until(lambda: len({self.member(name).store.applied_index for name in "abc"}) == 1)
        for name in "abc":
            self.invariants.compare_digest(name, self.member(name))
        assert not self.invariants.failures, self.invariants.failures

    def ask_leader(self, request: Request) -> Reply:
        reply = self.ask(self.wait_for_leader(), request)
        assert reply.ok, reply
        return reply


@pytest.fixture
def recovered(left: LeftOver) -> Iterator[RecoveredBench]:
    with RecoveredBench(left) as bench:
        yield bench


def test_a_recovered_node_waits_until_all_the_others_are_there(recovered: RecoveredBench) -> None:
    for name in "ab":
        recovered.run(WAITING_PERIOD_S + 1)
        assert not recovered.is_named()
        assert not recovered.leader()
        [told, *_] = recovered.replica("c").frontend.status()["waiting_for"]
        assert told.startswith(f"{name}: not connected")
        recovered.start(name)
    recovered.check()
    assert "waiting_for" not in recovered.replica("c").frontend.status()
    waits = [fields["members"] for _, event, fields in recovered.log if event == "recovered_waits"]
    assert waits[0] == {"a": "not connected", "b": "not connected"}
    assert {"b": "not connected"} in waits


ENDS: dict[str, Callable[[WorldBench], None]] = {
    "a crash": lambda bench: bench.crash("c"),
    "a power loss": lambda bench: bench.world.power_loss("c", keep="lost"),
    "of all": lambda bench: bench.crash("a", "b", "c"),
    "of those named": lambda bench: bench.crash("a", "b"),
    "a wipe of one that was named": lambda bench: bench.wipe("a"),
}


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("seconds", [0.0, 0.001, 0.003, 0.02])
def test_once_named_the_members_stay_whatever_ends_then(
    recovered: RecoveredBench, end: str, seconds: float
) -> None:
    recovered.name()
    recovered.run(seconds)
    members = recovered.member("c").store.members
    ENDS[end](recovered)
    recovered.start("c")
    assert recovered.member("c").store.members == members
    recovered.check()


def test_the_others_go_on_without_the_recovered_node_once_they_are_members(
    recovered: RecoveredBench,
) -> None:
    recovered.name()
    recovered.until(lambda: recovered.members() == "abc")
    recovered.wipe("c")
    recovered.check()


def test_two_nodes_recovered_under_one_name_wait_for_ever_and_harm_nothing(left: LeftOver) -> None:
    with RecoveredBench(left, "bc") as recovered:
        recovered.start(*"abc")
        recovered.run(20.0)
        assert not recovered.leader()
        waits = {
            name: fields["members"]
            for name, event, fields in recovered.log
            if event == "recovered_waits"
        }
        assert waits == {
            "b": {"c": "its data directory is not empty"},
            "c": {"b": "its data directory is not empty"},
        }
        assert {failure.check for failure in recovered.invariants.failures} <= {"digest"}
        recovered.invariants.failures.clear()  # each was a cluster of its own
        recovered.wipe("b")
        recovered.check()


# --- what is called settled -----------------------------------------------------------------------


class Chance:
    """A cluster whose leaders are cut off and replaced, so that its logs come apart."""

    def __init__(self, stage: Stage, seed: int) -> None:
        self.rng = random.Random(seed)
        self.stage = stage
        self.leader = "a"
        self.number = 0

    def put(self, node: str, patience_s: float) -> None:
        self.number += 1
        text = f"{self.number}"
        self.stage.put(node, text)
        self.stage.reaches(lambda: text in self.stage.acknowledged(), patience_s)

    def replace_the_leader(self) -> None:
        """Cut the leader off, give it something that it can't commit, and let another lead."""
        self.heal()
        old = self.leader
        others = [name for name in "abc" if name != old]
        self.stage.cut_off(old, *others)
        for _ in range(self.rng.randrange(3)):
            self.put(old, 0.1)
        journals = {name: self.stage.member(name).journal for name in others}
        self.leader = max(others, key=lambda n: (journals[n].last_term, journals[n].last_index))
        self.stage.elect(self.leader)

    def heal(self) -> None:
        self.stage.heal()
        self.stage.run(self.rng.choice([0.02, 0.1, 0.5]))
        if not self.stage.raft(self.leader).serving:
            self.leader = self.stage.leader() or self.leader

    def step(self) -> None:
        self.rng.choice(
            [
                lambda: self.put(self.leader, self.rng.choice([0.0, 0.03, 1.0])),
                lambda: self.put(self.leader, 1.0),
                self.replace_the_leader,
                self.heal,
            ]
        )()


@pytest.mark.parametrize("seed", range(12))
def test_what_is_settled_is_what_everybody_was_given_under_these_ids(
    tmp_path: Path, seed: int
) -> None:
    print(f"seed {seed}")
    with Stage() as stage:
        chance = Chance(stage, seed)
        for _ in range(10):
            chance.step()
        stage.crash(*"abc")
        left = {name: stage.copy_out(name, tmp_path / name) for name in "abc"}
    given = {stage.replies[stage.sent[text]].body["id"]: text for text in stage.acknowledged()}
    for survivor, directory in left.items():
        with Recovery(directory, tmp_path / f"{survivor}-recovered") as recovery:
            made = recovery.finish("another", [survivor])
        store = Store.open(made / "store" / "store.db", {})
        read = store.read(stage.subscriber, "t", 0, 1000, 2**20)
        assert isinstance(read, Delivery)
        texts = [data.decode() for data in unpack(read.lengths, read.data)]
        settled = store.since_recovery(stage.subscriber, "")["settled"]["t"]
        for id_, text in given.items():
            if id_ <= settled:
                assert texts[id_ - 1] == text, (survivor, settled, id_)
        assert len(set(texts)) == len(texts), "nothing is there twice"
        store.close()
