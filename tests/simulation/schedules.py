"""Directed schedules: a cluster in which nothing happens but what the test says.

What lives here: the stage (elections by hand, publications, the search for damage) and the way to
run a schedule with a rule and without it. What must not: any single rule's schedule.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cluster.node.member import Member
from cluster.node.replica import Replica
from cluster.raft.core import Core
from cluster.raft.raft import Raft
from cluster.raft.ready import Timing
from flotilla_client.protocol import GET, PUT, REQUEST_ID, SUB, Request, unpack
from tests.simulation.lab import Lab

# Nobody campaigns and nobody steps down by itself within a test.
BY_HAND = Timing(election_min_s=1000.0, election_max_s=2000.0, heartbeat_s=0.08, fallback_s=1000.0)
PUBLISHERS = 40  # one a publication: an unacknowledged one must not leave a gap for the next

CAMPAIGNS_MAX = 5

Schedule = Callable[[Path], list[str]]
Switch = Callable[[pytest.MonkeyPatch], None]


def compare_with_and_without(
    schedule: Schedule, switch_off: Switch, directory: Path, damage: str
) -> None:
    """Assert that the schedule does no damage, and the one named when the rule is off."""
    assert schedule(directory / "with") == []
    with pytest.MonkeyPatch.context() as patch:
        switch_off(patch)
        evidence = schedule(directory / "without")
    assert any(damage in line for line in evidence), f"no {damage!r} in {evidence}"


class Stage:
    """A lab with a leader, a subscriber of the topic `t`, and publishers."""

    def __init__(
        self,
        directory: Path,
        names: str = "abc",
        leader: str = "a",
        timing: Timing = BY_HAND,
        **settings: Any,
    ) -> None:
        self.lab = Lab(directory, names, timing=timing, **settings)
        self.net = self.lab.net
        self.sent: dict[str, str] = {}  # publication -> request id
        self.lab.start()
        self.lab.until(lambda: all(node.member for node in self.lab.nodes.values()))
        self.elect(leader)
        self.subscriber = self._register(leader)
        self.lab.ask(leader, Request(SUB, "", "t", self.subscriber))
        self._publishers = [self._register(leader) for _ in range(PUBLISHERS)]
        self.lab.run(0.3)

    def _register(self, node: str) -> str:
        return str(self.lab.ask(node, Request(REQUEST_ID, "")).body["client_id"])

    # --- what happens -------------------------------------------------------------------------

    def replica(self, name: str) -> Replica:
        return self.lab.nodes[name]

    def is_member(self, name: str) -> bool:
        return self.replica(name).member is not None

    def node(self, name: str) -> Member:
        member = self.replica(name).member
        assert member is not None, f"{name} is no member"
        return member

    def raft(self, name: str) -> Raft:
        return self.node(name).raft

    def core(self, name: str) -> Core:
        return self.raft(name)._core

    def append(self, name: str, payload: bytes) -> int:
        """Have a leader append an entry that no client has asked for; return its index."""
        node = self.node(name)
        node._take_ready(self.raft(name).step(self.lab.now, (), [payload]))
        return node.journal.last_index

    def campaign(self, name: str) -> None:
        """Have a node campaign in its next turn, as after a leadership transfer."""
        core = self.core(name)
        core.election_deadline_s = -1.0
        core._SyncObj__transferInProgress = True

    def elect(self, name: str) -> None:
        """Make a node the leader that serves; its first terms may be taken already."""
        for _ in range(CAMPAIGNS_MAX):
            self.campaign(name)
            if self.lab.reaches(lambda: self.raft(name).serving, 1.0):
                return
        raise AssertionError(f"{name} does not become leader")

    def put(self, node: str, text: str) -> None:
        """Send a publication to a node, without waiting."""
        body = {"counter": 1, "publication": text}
        request = Request(PUT, "", "t", self._publishers.pop(), body=body)
        self.sent[text] = self.lab.send(node, request)

    def publish(self, node: str, *texts: str) -> None:
        """Send publications to a node, one after the other, until each is acknowledged."""
        for text in texts:
            self.put(node, text)
            self.lab.until(lambda text=text: text in self.acknowledged())  # type: ignore[misc]

    def acknowledged(self) -> list[str]:
        replies = self.lab.replies
        return [text for text, sent in self.sent.items() if sent in replies and replies[sent].ok]

    # --- what became of it --------------------------------------------------------------------

    def read(self, node: str) -> list[str]:
        """Return all publications of the topic, as a node delivers them."""
        body = {"last_id": 0, "max_count": 100}
        reply = self.lab.ask(node, Request(GET, "", "t", self.subscriber, body=body))
        assert reply.ok, reply
        return [data.decode() for data in unpack(reply.lengths, reply.data)]

    def damage(self, leader: str) -> list[str]:
        """End all disturbances, let `leader` lead; return evidence of broken promises."""
        self.net.heal()
        if self.lab.leader() != leader:
            self.elect(leader)
        self.lab.run(0.5)
        delivered = self.read(leader)
        lost = [text for text in self.acknowledged() if text not in delivered]
        self.lab.oracle.compare(self.lab.nodes)
        evidence = [f"lost acknowledged {text}" for text in lost] + self.lab.oracle.evidence
        return evidence + [f"{name} ended: {error!r}" for name, error in self.lab.ended.items()]
