"""Simulated clusters that a test drives by hand: who is there, who is cut off, who campaigns.

What lives here: a test's words for what it does to a world, and its client. What must not: claims
of single tests, and anything that a world does itself (chaos/simulation).
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final, Self

import pytest

from chaos.simulation.checks.invariants import Invariants
from chaos.simulation.plan.plan import Plan
from chaos.simulation.world.network import SimNet
from chaos.simulation.world.node import SimNode
from chaos.simulation.world.world import World
from cluster.node.member import Member
from cluster.node.replica import Replica
from cluster.raft.core import Core
from cluster.raft.raft import Raft
from cluster.wire.levels import Build
from cluster.wire.messages import Message
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

SEED: Final = 1
STEP_S: Final = 0.01  # between two looks at whether something has come about
ROUTE: Final = "test"
# Nobody campaigns and nobody steps down by itself within a test.
BY_HAND: Final = {"election_min_s": 1000.0, "election_max_s": 2000.0, "fallback_s": 1000.0}
PUBLISHERS: Final = 40  # one a publication: an unacknowledged one must leave no gap for the next
CAMPAIGNS_MAX: Final = 5


class WorldBench:
    """A cluster under test, and its client, which may ask any node. Use as a context.

    `replies`: by the requests' ids. `log`: (node, event, fields) of what nodes report. `may_end`:
    errors that may end a node; any other fails the test, as does a broken invariant.
    """

    def __init__(self, names: str = "abc", **knobs: float) -> None:
        self.world = World(Plan(SEED, len(names), 0, knobs=knobs))
        assert self.world.plan.members == tuple(names), names
        self.invariants = Invariants(self.world)
        self.replies: dict[str, Reply] = {}
        self.log: list[tuple[str, str, dict[str, Any]]] = []
        self.may_end: tuple[type[Exception], ...] = ()
        self._asked = 0
        self.world.clients[ROUTE] = self._take
        self.world.observers.append(self._note)

    def __enter__(self) -> Self:
        self.world.__enter__()
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        self.world.__exit__(kind, error, trace)
        if error is None:
            ends = tuple(each.__name__ for each in self.may_end)
            broken = [
                failure
                for failure in self.invariants.failures
                if failure.check != "ended" or not any(each in failure.text for each in ends)
            ]
            assert not broken, broken
            strange = [each for _, each in self.world.failures if type(each) not in self.may_end]
            assert not strange, strange

    def _take(self, node: str, frames: list[bytes]) -> None:
        reply = decode_reply(frames)
        self.replies[reply.request_id] = reply

    def _note(self, kind: str, fields: dict[str, Any]) -> None:
        self.log.append((str(fields.get("node", "")), kind, fields))

    # --- time ---------------------------------------------------------------------------------

    def run(self, seconds: float) -> None:
        """Let virtual time pass."""
        self.world.run_until(self.world.now + seconds)

    def reaches(self, condition: Callable[[], object], seconds: float = 30.0) -> bool:
        """Run until the condition holds; return whether it does within so many virtual seconds."""
        end_s = self.world.now + seconds
        while not condition():
            if self.world.now >= end_s:
                return False
            self.run(STEP_S)
        return True

    def until(self, condition: Callable[[], object], seconds: float = 30.0) -> None:
        """Run until the condition holds; fail after so many virtual seconds."""
        assert self.reaches(condition, seconds), f"not after {seconds} s: {condition}"

    # --- nodes --------------------------------------------------------------------------------

    def machine(self, name: str) -> SimNode:
        return self.world.nodes[name]

    def replica(self, name: str) -> Replica:
        replica = self.machine(name).replica
        assert replica is not None, f"{name} is down"
        return replica

    def is_member(self, name: str) -> bool:
        return self.machine(name).as_member is not None

    def members(self) -> str:
        """Return the names of those that are members now."""
        return "".join(name for name in self.world.nodes if self.is_member(name))

    def member(self, name: str) -> Member:
        member = self.machine(name).as_member
        assert member is not None, f"{name} is no member"
        return member

    def raft(self, name: str) -> Raft:
        return self.member(name).raft

    def turn(self, name: str) -> None:
        """Let a node have a turn at once."""
        node = self.machine(name)
        node.during(node.life, node._turn)

    def crash(self, *names: str) -> None:
        """End processes: what they did not write is gone, and so is what was in flight."""
        for name in names:
            self.world.kill(name)

    def start(self, *names: str, build: Build | None = None) -> None:
        """Start processes, by another program from now on if one is named."""
        for name in names:
            if build is not None:
                self.machine(name).build = build
            self.world.restart(name)

    def wipe(self, name: str) -> None:
        """End a process and empty its disk."""
        self.world.emit("emptied", node=name)
        self.world.wipe(name)

    def start_anew(self, name: str) -> None:
        """Start a process on an empty disk."""
        self.wipe(name)
        self.world.restart(name)

    def ended(self) -> dict[str, Exception]:
        """Return which nodes have ended by themselves, and of what."""
        return dict(self.world.failures)

    def copy_out(self, name: str, directory: Path) -> Path:
        """Write all files of a node on which no process runs into a real directory."""
        node = self.machine(name)
        assert not node.up, f"{name} is running"
        for path, inode in node.disk._names.items():
            there = directory / path.relative_to(node.directory)
            there.parent.mkdir(parents=True, exist_ok=True)
            there.write_bytes(inode.data)
        shutil.copytree(node.directory / "store", directory / "store")
        return directory

    def copy_in(self, directory: Path, name: str) -> None:
        """Put all files of a real directory, durably, on a node's empty disk."""
        node = self.machine(name)
        assert not node.up, f"{name} is running"
        for path in (each for each in directory.rglob("*") if each.is_file()):
            here = node.directory / path.relative_to(directory)
            if here.is_relative_to(node.image.directory):
                continue
            fd = node.disk.open_append(here)
            node.disk.write(fd, bytearray(path.read_bytes()))
            node.disk.fdatasync(fd)
            node.disk.close(fd)
            node.disk.fsync_directory(here.parent)
        shutil.copytree(directory / "store", node.image.directory, dirs_exist_ok=True)
        node.image.settle()

    # --- links --------------------------------------------------------------------------------

    @property
    def net(self) -> SimNet:
        assert isinstance(self.world.net, SimNet)
        return self.world.net

    def cut_off(self, name: str, *others: str) -> None:
        """Let nothing pass between a node and the others, without anybody noticing."""
        self.world.cut(name, list(others))

    def part(self, name: str, *others: str) -> None:
        """End a node's connections with the others until `heal`."""
        self.cut_off(name, *others)
        for other in others:
            self.net.break_link(name, other)

    def heal(self) -> None:
        """End all disturbances."""
        self.world.heal()

    def deliver(self, source: str, target: str, *messages: Message) -> None:
        """Let messages have come to a node from another, however old they are."""
        self.net.ports[target].inbox.extend((source, message) for message in messages)
        self.machine(target).wake()

    # --- what is asked ------------------------------------------------------------------------

    def leader(self) -> str:
        """Return the name of the node that serves, "" without one."""
        return self.world.leader()

    def wait_for_leader(self) -> str:
        """Run until a node serves and return its name."""
        self.until(self.leader)
        return self.leader()

    def send(self, name: str, request: Request) -> str:
        """Send a request to a node and return its id; the reply comes later."""
        self._asked += 1
        request.request_id = f"request-{self._asked}"
        self.world.request(ROUTE, name, encode_request(request))
        return request.request_id

    def ask(self, name: str, request: Request, seconds: float = 10.0) -> Reply:
        """Send a request and run until its reply is there."""
        request_id = self.send(name, request)
        self.until(lambda: request_id in self.replies, seconds)
        return self.replies[request_id]


class Stage(WorldBench):
    """A cluster led by whom the test says, with a subscriber of the topic `t`, and publishers."""

    def __init__(self, names: str = "abc", leader: str = "a", **knobs: float) -> None:
        super().__init__(names, **{**BY_HAND, **knobs})
        self.sent: dict[str, str] = {}  # publication -> request id
        self._first_leader = leader

    def __enter__(self) -> Self:
        super().__enter__()
        self.until(lambda: self.members() == "".join(self.world.nodes))
        self.elect(self._first_leader)
        asked = [
            self.send(self._first_leader, Request(REQUEST_ID, "")) for _ in range(PUBLISHERS + 1)
        ]
        self.until(lambda: self.replies.keys() >= set(asked))
        self.subscriber, *self._publishers = (
            str(self.replies[each].body["client_id"]) for each in asked
        )
        self.ask(self._first_leader, Request(SUB, "", "t", self.subscriber))
        self.run(0.3)
        return self

    # --- what happens -------------------------------------------------------------------------

    def core(self, name: str) -> Core:
        return self.raft(name)._core

    def append(self, name: str, payload: bytes) -> int:
        """Have a leader append an entry that no client has asked for; return its index."""
        node, member = self.machine(name), self.member(name)
        ready = member.raft.step(node.clock(), (), [payload])
        node.during(node.life, lambda: member._take_ready(ready))
        node.wake()
        return member.journal.last_index

    def campaign(self, name: str) -> None:
        """Have a node campaign in its next turn, as after a leadership transfer."""
        core = self.core(name)
        core.election_deadline_s = -1.0
        core._SyncObj__transferInProgress = True
        self.machine(name).wake()

    def elect(self, name: str) -> None:
        """Make a node the leader that serves; its first terms may be taken already."""
        for _ in range(CAMPAIGNS_MAX):
            self.campaign(name)
            if self.reaches(lambda: self.raft(name).serving, 1.0):
                return
        raise AssertionError(f"{name} does not become leader")

    def put(self, node: str, text: str) -> None:
        """Send a publication to a node, without waiting."""
        body = {"counter": 1, "publication": text}
        self.sent[text] = self.send(node, Request(PUT, "", "t", self._publishers.pop(), body=body))

    def publish(self, node: str, *texts: str) -> None:
        """Send publications to a node, one after the other, until each is acknowledged."""
        for text in texts:
            self.put(node, text)
            self.until(lambda text=text: text in self.acknowledged())  # type: ignore[misc]

    def acknowledged(self) -> list[str]:
        replies = self.replies
        return [text for text, sent in self.sent.items() if sent in replies and replies[sent].ok]

    # --- what became of it --------------------------------------------------------------------

    def read(self, node: str) -> list[str]:
        """Return all publications of the topic, as a node delivers them."""
        body = {"last_id": 0, "max_count": 100}
        reply = self.ask(node, Request(GET, "", "t", self.subscriber, body=body))
        assert reply.ok, reply
        return [data.decode() for data in unpack(reply.lengths, reply.data)]

    def check(self, leader: str) -> None:
        """End all disturbances, let `leader` lead; see that nothing acknowledged was lost."""
        self.heal()
        if self.leader() != leader:
            self.elect(leader)
        self.run(0.5)
        delivered = self.read(leader)
        lost = [text for text in self.acknowledged() if text not in delivered]
        assert not lost, lost
        for name in self.members():
            self.invariants.compare_digest(name, self.member(name))
        assert not self.invariants.failures, self.invariants.failures


@pytest.fixture
def make_bench() -> Iterator[Callable[..., WorldBench]]:
    """Return what makes clusters, one at a time, that live as long as the test."""
    with ExitStack() as stack:
        yield lambda *names, **knobs: stack.enter_context(WorldBench(*names, **knobs))


@pytest.fixture
def make_stage() -> Iterator[Callable[..., Stage]]:
    """Return what makes clusters with a leader that live as long as the test."""
    with ExitStack() as stack:
        yield lambda *names, **knobs: stack.enter_context(Stage(*names, **knobs))
