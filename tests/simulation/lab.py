"""Replicas on a test's table: it says who has a turn, and takes messages off a link by hand.

What lives here: the nodes' surroundings, driven step by step: starting, crashes, power losses.
What must not: claims (oracle.py and the tests), and whatever happens by itself or at random, as
delays, faults and clients: that is the simulator's (chaos/simulation).
"""

from __future__ import annotations

import random
import shutil
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from chaos.simulation.disks.disk import PowerLoss
from cluster.members.identity import Identity
from cluster.members.membership import hello_of
from cluster.node.context import ReplicaSettings
from cluster.node.member import Member
from cluster.node.replica import Replica
from cluster.raft.ready import Timing
from cluster.serve.broker import BrokerLimits
from cluster.serve.client_port import UNREAD_BYTES_SERVED
from cluster.serve.frontend import ClientRoutes
from cluster.store import tables
from cluster.wire.levels import BUILD, Build
from flotilla_client.protocol import Reply, Request, decode_reply, encode_request
from tests.simulation.disk import LabDisk
from tests.simulation.network import LabNet, LabPeers
from tests.simulation.oracle import Oracle

STEP_S = 0.01
CLIENT = b"client"
# Events after which a database's file is durable as it stands, but nothing in its WAL.
MADE_DURABLE = ("founded", "readmitted", "snapshot_installed")
Job = tuple[Callable[[], Any], Callable[[Any], None], Callable[[Exception], None]]


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


class LabMember(Member):
    """A member whose applied entries are witnessed."""

    def __init__(self, oracle: Oracle, *arguments: Any) -> None:
        self._oracle = oracle
        super().__init__(*arguments)

    def _apply(self, index: int, term: int, payload: bytes) -> None:
        self._oracle.applied(self.settings.name, index, term, payload)
        super()._apply(index, term, payload)


class Lab:
    """A cluster under test; `now` is virtual seconds. Everything random comes from `seed`.

    `may_end`: exceptions that end a node, as they end its process; `ended` has what ended whom.
    Any other fails the test.
    """

    alive: ClassVar[weakref.WeakSet[Lab]] = weakref.WeakSet()

    def __init__(
        self,
        directory: Path,
        names: Iterable[str] = ("a", "b", "c"),
        seed: int = 1,
        timing: Timing = Timing(),  # noqa: B008
        **settings: Any,
    ) -> None:
        Lab.alive.add(self)
        self.directory, self.names = directory, tuple(names)
        self.now = 1000.0
        self.net = LabNet()
        self.oracle = Oracle()
        self.nodes: dict[str, Replica] = {}
        self.workers: dict[str, LabWorker] = {}
        self.disks: dict[str, LabDisk] = {}
        self.builds: dict[str, Build] = {}  # that nodes run; BUILD where there is none
        self.replies: dict[str, Reply] = {}
        self.log: list[tuple[str, str, dict[str, Any]]] = []
        self.may_end: tuple[type[Exception], ...] = ()
        self.ended: dict[str, Exception] = {}
        self.rng = random.Random(seed)
        self._timing, self._settings = timing, settings
        self._number = 0
        self._requests: dict[str, list[tuple[bytes, list[bytes]]]] = {}

    # --- nodes --------------------------------------------------------------------------------

    def data_dir(self, name: str) -> Path:
        """Return where a node keeps everything."""
        return self.directory / name

    def start(self, *names: str) -> None:
        """Start nodes (all that are down without names) from whatever is on their disks."""
        for name in names or [name for name in self.names if name not in self.nodes]:
            directory = self.data_dir(name)
            identity = Identity.load(directory)
            if identity is None:
                identity = Identity.create("lab", name)
                identity.save(directory)
            self.disks.setdefault(name, LabDisk())
            self.net.join(name, hello_of(identity, self.names, self.builds.get(name, BUILD)))
            self.workers[name] = LabWorker()
            self._requests[name] = []
            try:
                self.nodes[name] = self._replica(name, identity)
            except self.may_end as error:
                self.ended[name] = error
            else:
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
            "build": self.builds.get(name, BUILD),
            "files": self.disks[name],
            "on_journal_failure": self.disks[name].stop,
        }
        return Replica(
            ReplicaSettings(**(values | self._settings)),
            identity,
            LabPeers(self.net, name),
            self.workers[name],
            random.Random(self.rng.random()),
            self._new_id,
            lambda event, **fields: self._note(name, event, fields),
            self.now,
            lambda: self.now,
            ClientRoutes(lambda _: UNREAD_BYTES_SERVED),
            partial(LabMember, self.oracle),
        )

    def _new_id(self) -> str:
        self._number += 1
        return f"client-{self._number}"

    def _note(self, name: str, event: str, fields: dict[str, Any]) -> None:
        self.log.append((name, event, fields))
        if event in MADE_DURABLE:
            self.disks[name].image(self.data_dir(name) / "store" / "store.db", ("",))

    def crash(self, *names: str) -> None:
        """Kill processes: what they did not write is gone, and so is what was in flight."""
        for name in names:
            node = self.nodes.pop(name)
            self.net.leave(name)
            self.disks[name].restart()
            if node.member is not None:
                node.member.store.close()

    def close(self) -> None:
        """Kill all nodes, so that nothing stays open."""
        self.crash(*self.nodes)

    def lose_power(self, name: str, rng: random.Random | None = None) -> None:
        """Kill a node, and with it what was written but not synced; `rng`: a part of it stays."""
        database = self.nodes[name].settings.database
        self.crash(name)
        self.disks[name].lose_unsynced(rng)
        self.disks[name].restore(database)

    def wipe(self, name: str) -> None:
        """Remove everything on a dead node's disk."""
        assert name not in self.nodes, f"{name} is running"
        shutil.rmtree(self.data_dir(name))
        self.disks[name] = LabDisk()

    def compact(self, name: str) -> None:
        """Checkpoint a node's store and drop what its journal need not keep."""
        self._guard(name, lambda: self._compact(name, self.nodes[name]))

    def _compact(self, name: str, node: Replica) -> None:
        assert node.member is not None, name
        node.member.store.commit()
        durable_index = tables.checkpoint(node.settings.database)
        self.disks[name].image(node.settings.database, ("", "-wal"))
        node.member.journal.compact(durable_index)

    # --- time ---------------------------------------------------------------------------------

    def turn(self, name: str) -> None:
        """Let one node do one turn."""
        self._guard(name, lambda: self._turn(name, self.nodes[name]))

    def _turn(self, name: str, node: Replica) -> None:
        requests, self._requests[name] = self._requests[name], []
        self._file(node.turn(self.now, requests))
        node.finish_turn(disk_low=False)
        self.workers[name].work()

    def _guard(self, name: str, action: Callable[[], None]) -> None:
        """Let a node do something that may be the end of it."""
        try:
            action()
            self.disks[name].check_power()  # the core swallows exceptions while it loads a dump
        except PowerLoss:
            self.lose_power(name, self.rng)
        except self.may_end as error:
            self.ended[name] = error
            self.crash(name)

    def _file(self, replies: Sequence[tuple[bytes, list[bytes]]]) -> None:
        for _, frames in replies:
            reply = decode_reply(frames)
            self.replies[reply.request_id] = reply

    def step(self) -> None:
        """Let time pass and every node do a turn."""
        self.now += STEP_S
        self.net.dial()
        for name in list(self.nodes):
            self.turn(name)
            self.oracle.look(self.nodes)

    def run(self, seconds: float) -> None:
        """Let so many virtual seconds pass."""
        for _ in range(round(seconds / STEP_S)):
            self.step()

    def reaches(self, condition: Callable[[], bool], seconds: float = 30.0) -> bool:
        """Run until the condition holds; return whether it does within so many virtual seconds."""
        deadline = self.now + seconds
        while not condition():
            if self.now >= deadline:
                return False
            self.step()
        return True

    def until(self, condition: Callable[[], bool], seconds: float = 30.0) -> None:
        """Run until the condition holds; fail after so many virtual seconds."""
        assert self.reaches(condition, seconds), f"not after {seconds} s: {condition}"

    def members(self) -> list[Member]:
        """Return the nodes that are members."""
        return [node.member for node in self.nodes.values() if node.member is not None]

    # --- what a test asks ---------------------------------------------------------------------

    def leader(self) -> str:
        """Return the name of the node that serves; of several the one with the newest term."""
        serving = {
            each.raft.term: each.settings.name for each in self.members() if each.raft.serving
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
