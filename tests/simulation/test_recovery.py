"""A recovered node names its members once, when they are all there, whatever ends whom then."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

import pytest

from cluster.members.membership import UNNAMED
from cluster.node.member import WAITING_PERIOD_S
from cluster.recovery.recovery import Recovery
from cluster.store import tables
from cluster.store.store import Delivery, Store
from flotilla_client.protocol import GET, PUT, REQUEST_ID, Reply, Request, unpack
from tests.simulation.lab import Lab
from tests.simulation.schedules import Stage

TEXTS = ("x", "y", "z")


class RecoveredLab:
    """A lab of what is left: `c` recovered from its own disk, `a` and `b` wiped."""

    def __init__(self, directory: Path, source: str = "c") -> None:
        before = Stage(directory / "before")
        before.publish("a", *TEXTS)
        before.lab.run(0.5)
        before.lab.close()
        self.subscriber = before.subscriber
        self.lab = Lab(directory / "after")
        for name in source:
            data = self.lab.data_dir(name)
            with Recovery(before.lab.data_dir(name), data) as recovery:
                recovery.finish("lab-2", "abc")
        self.lab.start(source[0])
        self.make_durable(source[0])

    def make_durable(self, name: str) -> None:
        """Let what stands in a node's store now outlive a power loss."""
        self.lab.disks[name].image(self.lab.data_dir(name) / "store" / "store.db", ("", "-wal"))

    @property
    def members(self) -> dict[str, str]:
        member = self.lab.nodes["c"].member
        assert member is not None
        return dict(member.store.members)

    def named(self) -> bool:
        return UNNAMED not in self.members.values()

    def name(self) -> None:
        """Start all, up to the turn in which the members are named."""
        checkpoint = tables.checkpoint

        def made_durable(database: Path) -> int:
            index = checkpoint(database)
            self.make_durable("c")
            return index

        self.lab.start()
        with patch.object(tables, "checkpoint", made_durable):
            self.lab.until(self.named)

    def read(self) -> list[str]:
        leader = self.lab.elect()
        body = {"last_id": 0, "max_count": 100}
        reply = self.lab.ask(leader, Request(GET, "", "t", self.subscriber, body=body))
        assert reply.ok, reply
        return [data.decode() for data in unpack(reply.lengths, reply.data)]

    def check(self) -> None:
        """Have all three serve: what was there is, and goes on."""
        self.lab.start()
        assert self.read() == list(TEXTS)
        publisher = self.ask(Request(REQUEST_ID, "")).body["client_id"]
        body = {"counter": 1, "publication": "more"}
        assert self.ask(Request(PUT, "", "t", publisher, body=body)).body["id"] == 4
        self.lab.until(lambda: all(node.member for node in self.lab.nodes.values()))
        self.lab.until(lambda: len({each.store.applied_index for each in self.lab.members()}) == 1)
        self.lab.oracle.compare(self.lab.nodes)
        assert self.lab.oracle.evidence == []

    def ask(self, request: Request) -> Reply:
        return self.lab.ask(self.lab.elect(), request)


def test_a_recovered_node_waits_until_all_the_others_are_there(tmp_path: Path) -> None:
    recovered = RecoveredLab(tmp_path)
    lab = recovered.lab
    for name in "ab":
        lab.run(WAITING_PERIOD_S + 1)
        assert not recovered.named()
        assert not lab.leader()
        [told, *_] = lab.nodes["c"].frontend.status()["waiting_for"]
        assert told.startswith(f"{name}: not connected")
        lab.start(name)
    recovered.check()
    assert "waiting_for" not in lab.nodes["c"].frontend.status()
    waits = [fields["members"] for _, event, fields in lab.log if event == "recovered_waits"]
    assert waits[0] == {"a": "not connected", "b": "not connected"}
    assert {"b": "not connected"} in waits


def wipe(*names: str) -> Callable[[Lab], None]:
    def do(lab: Lab) -> None:
        for name in names:
            lab.crash(name)
            lab.wipe(name)

    return do


ENDS: dict[str, Callable[[Lab], None]] = {
    "a crash": lambda lab: lab.crash("c"),
    "a power loss": lambda lab: lab.lose_power("c"),
    "of all": lambda lab: lab.crash("a", "b", "c"),
    "of those named": lambda lab: lab.crash("a", "b"),
    "a wipe of one that was named": wipe("a"),
}


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("turns", range(4))
def test_once_named_the_members_stay_whatever_ends_then(
    tmp_path: Path, end: str, turns: int
) -> None:
    recovered = RecoveredLab(tmp_path)
    recovered.name()
    for _ in range(turns):
        recovered.lab.step()
    members = recovered.members
    ENDS[end](recovered.lab)
    if "c" not in recovered.lab.nodes:
        recovered.lab.start("c")
    assert recovered.members == members
    recovered.check()


def test_the_others_go_on_without_the_recovered_node_once_they_are_members(tmp_path: Path) -> None:
    recovered = RecoveredLab(tmp_path)
    recovered.name()
    recovered.lab.until(lambda: all(node.member for node in recovered.lab.nodes.values()))
    wipe("c")(recovered.lab)
    recovered.check()


def test_two_nodes_recovered_under_one_name_wait_for_ever_and_harm_nothing(tmp_path: Path) -> None:
    recovered = RecoveredLab(tmp_path, source="cb")
    recovered.lab.start()
    recovered.lab.run(20.0)
    assert not recovered.lab.leader()
    waits = {
        name: fields["members"]
        for name, event, fields in recovered.lab.log
        if event == "recovered_waits"
    }
    assert waits == {
        "b": {"c": "its data directory is not empty"},
        "c": {"b": "its data directory is not empty"},
    }
    wipe("b")(recovered.lab)
    recovered.check()


# --- what is called settled -----------------------------------------------------------------------


class Chance:
    """A cluster whose leaders are cut off and replaced, so that its logs come apart."""

    def __init__(self, directory: Path, seed: int) -> None:
        self.rng = random.Random(seed)
        self.stage = Stage(directory)
        self.leader = "a"
        self.number = 0

    def put(self, node: str, patience_s: float) -> None:
        self.number += 1
        text = f"{self.number}"
        self.stage.put(node, text)
        self.stage.lab.reaches(lambda: text in self.stage.acknowledged(), patience_s)

    def replace_the_leader(self) -> None:
        """Cut the leader off, give it something that it can't commit, and let another lead."""
        self.heal()
        old = self.leader
        others = [name for name in "abc" if name != old]
        self.stage.net.cut_off(old, *others)
        for _ in range(self.rng.randrange(3)):
            self.put(old, 0.1)
        journals = {name: self.stage.node(name).journal for name in others}
        self.leader = max(others, key=lambda n: (journals[n].last_term, journals[n].last_index))
        self.stage.elect(self.leader)

    def heal(self) -> None:
        self.stage.net.heal()
        self.stage.lab.run(self.rng.choice([0.02, 0.1, 0.5]))
        if not self.stage.raft(self.leader).serving:
            self.leader = self.stage.lab.leader() or self.leader

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
    chance = Chance(tmp_path / "before", seed)
    for _ in range(10):
        chance.step()
    stage = chance.stage
    stage.lab.close()
    given = {stage.lab.replies[stage.sent[text]].body["id"]: text for text in stage.acknowledged()}
    for survivor in "abc":
        with Recovery(stage.lab.data_dir(survivor), tmp_path / survivor) as recovery:
            made = recovery.finish("lab-2", [survivor])
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
