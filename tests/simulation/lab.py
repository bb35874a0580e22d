"""A whole cluster in one process: real replicas on real files, a fake network and a fake clock.

What lives here: the nodes' surroundings, driven step by step by a test. What must not: claims. A
crash loses what was not written, which for the journal is what was not synced; disks that lose more
than that are the simulator's business.
"""

from __future__ import annotations

import random
import shutil
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from cluster.broker import BrokerLimits
from cluster.core import Timing
from cluster.identity import Identity
from cluster.membership import hello_of
from cluster.messages import Hello, Message
from cluster.peers import Connected, Disconnected, Event, Reason
from cluster.replica import Replica, ReplicaSettings
from flotilla.protocol import Reply, Request, decode_reply, encode_request

STEP_S = 0.01
CLIENT = b"client"
Job = tuple[Callable[[], Any], Callable[[Any], None], Callable[[Exception], None]]


class Net:
    """FIFO links between nodes; a test may hold, drop, reorder and cut."""

    def __init__(self) -> None:
        self.queues: dict[tuple[str, str], deque[Message]] = {}
        self.hellos: dict[str, Hello] = {}  # of running nodes
        self.events: dict[str, list[Event]] = {}
        self.cut: set[tuple[str, str]] = set()
        self.held: set[tuple[str, str]] = set()  # links whose messages wait for the test
        self.sent: list[tuple[str, str, Message]] = []

    def connected(self, one: str, other: str) -> bool:
        up = one in self.hellos and other in self.hellos
        return up and (one, other) not in self.cut and (other, one) not in self.cut

    def join(self, name: str, hello: Hello) -> None:
        self.hellos[name] = hello
        self.events[name] = [
            Connected(other) for other in self.hellos if self.connected(name, other)
        ]
        for other in self.hellos:
            if other != name and self.connected(name, other):
                self.events[other].append(Connected(name))

    def leave(self, name: str) -> None:
        del self.hellos[name]
        for other in self.hellos:
            self.break_link(name, other)

    def break_link(self, one: str, other: str) -> None:
        """Close the connection: what is in flight is lost."""
        self.queues.pop((one, other), None)
        self.queues.pop((other, one), None)
        for end, far in ((one, other), (other, one)):
            if end in self.hellos:
                self.events[end].append(Disconnected(far, Reason.ENDED, "test"))

    def cut_off(self, name: str, *others: str) -> None:
        """Let no byte pass between `name` and the others, without anybody noticing."""
        self.cut |= {(name, other) for other in others}

    def heal(self) -> None:
        self.cut.clear()
        self.held.clear()


class LabPeers:
    """One node's `Peers` on the fake network."""

    def __init__(self, net: Net, name: str) -> None:
        self._net, self._name = net, name

    def send(self, name: str, message: Message) -> None:
        net = self._net
        if name in net.hellos and self._name in net.hellos:
            net.sent.append((self._name, name, message))
            net.queues.setdefault((self._name, name), deque()).append(message)

    def flush(self, name: str | None) -> None:
        """Nothing to do: links have no buffers of their own."""

    def receive(self, limit: int) -> list[tuple[str, Message]]:
        net, taken = self._net, []
        for (source, target), queue in net.queues.items():
            link = (source, target)
            if target != self._name or link in net.held:
                continue
            while queue:
                message = queue.popleft()
                if net.connected(source, target):
                    taken.append((source, message))
        return taken[:limit]

    def events(self) -> list[Event]:
        events, self._net.events[self._name] = self._net.events[self._name], []
        return [event for event in events if getattr(event, "name", "") != self._name]

    def hello_of(self, name: str) -> Hello | None:
        net = self._net
        return (
            net.hellos[name] if name in net.hellos and (self._name, name) not in net.cut else None
        )

    def update_hello(self, hello: Hello) -> None:
        self._net.hellos[self._name] = hello


class LabWorker:
    """Does each job at the end of the turn; its result arrives in the next."""

    def __init__(self) -> None:
        self._jobs: deque[Job] = deque()

    @property
    def idle(self) -> bool:
        return not self._jobs

    def submit(
        self,
        job: Callable[[], Any],
        done: Callable[[Any], None],
        failed: Callable[[Exception], None],
    ) -> None:
        self._jobs.append((job, done, failed))

    def work(self) -> None:
        while self._jobs:
            job, done, failed = self._jobs[0]
            try:
                result = job()
            except OSError as error:
                self._jobs.popleft()
                failed(error)
            else:
                self._jobs.popleft()
                done(result)


class Lab:
    """A cluster under test; `now` is virtual seconds. Everything random comes from `seed`."""

    def __init__(
        self,
        directory: Path,
        names: Iterable[str] = ("a", "b", "c"),
        seed: int = 1,
        timing: Timing = Timing(),  # noqa: B008
        **settings: Any,
    ) -> None:
        self.directory, self.names = directory, tuple(names)
        self.now = 1000.0
        self.net = Net()
        self.nodes: dict[str, Replica] = {}
        self.workers: dict[str, LabWorker] = {}
        self.replies: dict[str, Reply] = {}
        self.log: list[tuple[str, str, dict[str, Any]]] = []
        self.rng = random.Random(seed)
        self._timing, self._settings = timing, settings
        self._number = 0
        self._requests: dict[str, list[tuple[bytes, list[bytes]]]] = {}

    # --- nodes --------------------------------------------------------------------------------

    def data_dir(self, name: str) -> Path:
        return self.directory / name

    def start(self, *names: str) -> None:
        """Start nodes (all without names) from whatever is on their disks."""
        for name in names or self.names:
            directory = self.data_dir(name)
            identity = Identity.load(directory)
            if identity is None:
                identity = Identity.create("lab", name)
                identity.save(directory)
            self.net.join(name, hello_of(identity, self.names))
            self.workers[name] = LabWorker()
            self._requests[name] = []
            self.nodes[name] = self._replica(name, identity)
            self.net.hellos[name] = self.nodes[name].hello()

    def _replica(self, name: str, identity: Identity) -> Replica:
        values: dict[str, Any] = {
            "cluster_id": "lab",
            "name": name,
            "members": self.names,
            "data_dir": self.data_dir(name),
            "timing": self._timing,
            "broker_limits": BrokerLimits(),
            "uncommitted_entries_max": 256,
            "relays_max": 64,
            "segment_bytes": 64 * 1024,
            "keep_bytes": 64 * 1024,
        }
        return Replica(
            ReplicaSettings(**(values | self._settings)),
            identity,
            LabPeers(self.net, name),
            self.workers[name],
            random.Random(self.rng.random()),
            self._new_id,
            lambda event, **fields: self.log.append((name, event, fields)),
            self.now,
        )

    def _new_id(self) -> str:
        self._number += 1
        return f"client-{self._number}"

    def crash(self, *names: str) -> None:
        """Kill nodes: what they did not write is gone, and so is what was in flight."""
        for name in names:
            node = self.nodes.pop(name)
            self.net.leave(name)
            if node.raft is not None:
                node.store.close()

    def wipe(self, name: str) -> None:
        """Remove everything on a dead node's disk."""
        assert name not in self.nodes
        shutil.rmtree(self.data_dir(name))

    # --- time ---------------------------------------------------------------------------------

    def turn(self, name: str) -> None:
        """Let one node do one turn."""
        requests, self._requests[name] = self._requests[name], []
        self._file(self.nodes[name].turn(self.now, requests))
        self.nodes[name].finish_turn()
        self.workers[name].work()

    def _file(self, replies: Sequence[tuple[bytes, list[bytes]]]) -> None:
        for _, frames in replies:
            reply = decode_reply(frames)
            self.replies[reply.request_id] = reply

    def step(self) -> None:
        """Let time pass and every node do a turn."""
        self.now += STEP_S
        for name in list(self.nodes):
            self.turn(name)

    def run(self, seconds: float) -> None:
        for _ in range(round(seconds / STEP_S)):
            self.step()

    def until(self, condition: Callable[[], bool], seconds: float = 30.0) -> None:
        """Run until the condition holds; fail after so many virtual seconds."""
        deadline = self.now + seconds
        while not condition():
            assert self.now < deadline, f"not after {seconds} s: {condition}"
            self.step()

    # --- what a test asks ---------------------------------------------------------------------

    def leader(self) -> str:
        """Return the name of the node that serves; of several the one with the newest term."""
        serving = {
            node.raft.term: name
            for name, node in self.nodes.items()
            if node.raft is not None and node.raft.serving
        }
        return serving[max(serving)] if serving else ""

    def elect(self) -> str:
        """Run until a node serves and return its name."""
        self.until(lambda: bool(self.leader()))
        return self.leader()

    def send(self, name: str, request: Request) -> str:
        """Hand a request to a node and return its id; the reply comes in later turns."""
        self._number += 1
        request.request_id = f"request-{self._number}"
        self._requests[name].append((CLIENT, encode_request(request)))
        return request.request_id

    def ask(self, name: str, request: Request, seconds: float = 10.0) -> Reply:
        """Send a request and run until its reply is there."""
        request_id = self.send(name, request)
        self.until(lambda: request_id in self.replies, seconds)
        return self.replies[request_id]
