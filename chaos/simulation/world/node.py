"""One simulated node: a real replica with a disk, peers, worker and clock of the world's.

What lives here: the life of a process (start, turns, ends) and its own time. What must not: when
anything is broken (world.py), and any decision of the replica's.

Turns are driven by events: one when something has come, one when the node would wake by itself.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, Final, Protocol
from uuid import UUID
from zlib import crc32

from chaos.simulation.disks.disk import OWN_SYNC, SimDisk
from chaos.simulation.disks.stored import StoredFiles
from chaos.simulation.world.builds import as_written_by
from chaos.simulation.world.jobs import SimWorker
from chaos.simulation.world.network import Side, member_of
from cluster.log.entries import LEVEL
from cluster.members.identity import Identity
from cluster.members.membership import hello_of
from cluster.members.peers import BULK_BYTES_SERVED
from cluster.node.context import ReplicaSettings
from cluster.node.maintenance import Maintenance
from cluster.node.member import Member
from cluster.node.replica import Replica
from cluster.node.scrub import ScrubPace
from cluster.raft.ready import Ready, Timing
from cluster.serve.broker import BrokerLimits
from cluster.serve.frontend import ClientRoutes
from cluster.serve.quotas import Quotas
from cluster.store import commands, tables
from cluster.store.commands import Operation
from cluster.wire.levels import BUILD, BUILD_0_1, LEVEL_MAX, LEVEL_OF_USERS

if TYPE_CHECKING:
    from chaos.simulation.plan.plan import Plan
    from chaos.simulation.world.network import Net

CLUSTER_ID: Final = "simulated"
CLOCK_START_S: Final = 1000.0  # monotonic clocks begin anywhere
WALL_START_S: Final = 1_700_000_000.0
WALL_SKEW_S_MAX: Final = 5.0  # to either side: longer than some runs
STOPPING_S_MAX: Final = 5.0  # as the product's loop, which imports sockets
SHARE_S_MAX: Final = 10.0  # no share of a turn is longer
DUE_S: Final = 1e-4  # behind a deadline: pysyncobj acts strictly after it
DUE_S_MIN: Final = 0.02  # as often as the real loop: who asks for votes is always due
WAIT_S: Final = 0.001  # for a lock that a job has
OPERATOR: Final = "operator"  # who asks for levels and changes users


class NodeWorld(Protocol):
    """The world, as a node knows it. `active`: whose code runs; `files`: by directory."""

    plan: Plan
    now: float
    net: Net
    directory: Path
    active: SimNode | None
    files: dict[str, StoredFiles]
    failures: list[tuple[str, Exception]]

    def at(self, when_s: float, call: Callable[[], None]) -> None:
        """Call at a time, or at once if it is past."""

    def after(self, delay_s: float, call: Callable[[], None]) -> None:
        """Call after a time."""

    def stream(self, name: str) -> Random:
        """Return the random numbers of one purpose."""

    def knob(self, name: str) -> float:
        """Return one of the plan's settings."""

    def emit(self, kind: str, **fields: Any) -> None:
        """Tell all observers, and the hash, of an event."""

    def tell(self, kind: str, fields: dict[str, Any]) -> None:
        """Tell all observers of an event that the hash knows already."""

    def note(self, *what: object) -> None:
        """Take something into the run's hash."""

    def turned(self, node: SimNode) -> None:
        """Hear that a node has ended a turn."""

    def reply(self, node: str, route: bytes, frames: list[bytes], leaves_s: float) -> None:
        """Carry a node's reply to a client."""

    def crashed_by_plan(self, node: SimNode) -> None:
        """End a node's process, as was planned."""


def principal_of(route: bytes) -> str:
    """Return whose key a client's socket has shown: each client, however often it dies, has one."""
    return route.decode(errors="backslashreplace").partition("/")[0]  # a number on the wire


class WitnessedMember(Member):
    """A member whose applied entries are told to the world."""

    def __init__(self, node: SimNode, *arguments: Any) -> None:
        self._node = node
        node.opened = self  # one that ends in here has opened files already
        super().__init__(*arguments)

    def _encode(self, operations: Sequence[Operation]) -> bytes:
        return as_written_by(self._node.build, super()._encode(operations), self.store.level)

    def _propose(self, entries: Sequence[Sequence[Operation]], *, tick: bool) -> Ready:
        level = self.store.level
        if level >= LEVEL_OF_USERS and self._node.world.knob("keys"):
            for operations in entries:
                told = {"node": self._node.name, "operations": operations}
                self._node.world.tell("proposed", told)
        ready = super()._propose(entries, tick=tick)
        for _, (command, index, term) in zip(entries, ready.entries, strict=False):
            to = commands.level_of(command[LEVEL])
            if to > level:
                fields = {"node": self._node.name, "to": to, "index": index, "term": term}
                self._node.world.emit("raising", **fields)
        return ready

    @property
    def _entries_level_max(self) -> int:
        """Version 0.1 had no guard."""
        return LEVEL_MAX if self._node.build == BUILD_0_1 else super()._entries_level_max

    def _apply(self, index: int, term: int, payload: bytes) -> None:
        super()._apply(index, term, payload)
        world, name, checksum = self._node.world, self._node.name, crc32(payload)
        world.note("apply", name, index, term, checksum)  # not its payload: twice as fast
        fields: dict[str, Any] = {"node": name, "index": index, "term": term, "checksum": checksum}
        fields["payload"] = payload
        world.tell("apply", fields)


class SimNode:
    """One member's machine over the whole run; `replica` is None while no process runs on it.

    `member`: who its process says it is; another name than the machine's on that of a double.
    `opened`: the member that has files open, also one that is about to begin.
    `disk_faults`: what was done to the disk since it was last emptied, and is not over: only that
    excuses a process that ends by itself. `durable_index`: the journal's last index when no byte
    was unsynced last. `life` grows with every process. `slept`: which process was paused last, for
    how long, and until when, by its own clock.
    """

    def __init__(self, world: NodeWorld, name: str, directory: Path) -> None:
        self.world, self.name, self.member = world, name, member_of(name)
        self.replica: Replica | None = None
        self.opened: Member | None = None
        self.paused = False
        self.build = BUILD
        self.disk_faults: list[str] = []
        self.durable_index = 0
        self.life = 0
        self.slow_sync_ms = 0.0
        self.directory = directory
        self.image = StoredFiles(
            directory / "store", self._store_operates, lambda: self._worker.is_stepping
        )
        self.disk = SimDisk(self._on_sync, self.image.fill, world.stream(f"disk {name}"))
        self.disk.on_read = self._on_read
        world.files[str(self.image.directory)] = self.image
        self.clock_rate = 1.0
        self.slept, self._paused_at = (0, 0.0, 0.0), 0.0
        self._clock_base = (0.0, CLOCK_START_S * (1 + world.stream(f"clock {name}").random()))
        skew_s = WALL_SKEW_S_MAX * (2 * world.stream(f"wall {name}").random() - 1)
        self._wall_base_s = WALL_START_S + skew_s
        self._requests: list[tuple[bytes, list[bytes]]] = []
        self._due_s = float("inf")
        self._busy_until_s = 0.0
        self._elapsed_s = 0.0
        self._stop_at_s: float | None = None
        self._on_stopped: Callable[[], None]
        self._turn_s = world.knob("turn_ms") / 1000
        self._tick_s = world.knob("tick_ms") / 1000
        self._wake_s = world.knob("wake_ms") / 1000
        self._share_ends = world.knob("share_ends")
        self._steps = world.stream(f"steps {name}")
        self._leapt_s = 0.0
        self._full_share = world.knob("full_share")
        self._rooms = world.stream(f"rooms {name}")
        self._port: Side
        self._worker: SimWorker
        self._maintenance: Maintenance

    # --- time ---------------------------------------------------------------------------------

    def clock(self) -> float:
        """Return the node's own monotonic time in seconds."""
        since, then = self._clock_base
        return then + (self.world.now - since) * self.clock_rate

    def stopwatch(self) -> float:
        """Return the time by which shares of a turn are measured: it leaps over their ends.

        Virtual time stands still within a turn, so what they really last has no part in it.
        """
        if self._share_ends and self._steps.random() < self._share_ends:
            self._leapt_s += SHARE_S_MAX
        since, then = self._clock_base  # as `clock`: five times a turn
        return then + (self.world.now - since) * self.clock_rate + self._leapt_s

    def wall_ms(self) -> int:
        """Return the time of day by this machine's clock: no two machines agree."""
        return int(1000 * (self.world.now + self._wall_base_s))

    def set_clock_rate(self, rate: float) -> None:
        """Let the node's clock run faster or slower than the world's from now on."""
        assert 0.1 <= rate <= 10, rate
        self._clock_base = (self.world.now, self.clock())
        self.clock_rate = rate

    def departure(self) -> float:
        """Return when what is sent now leaves; raises if the process has ended."""
        self.disk.check()  # nothing leaves an ended process
        return self.world.now + self._elapsed_s

    def _on_sync(self) -> None:
        self._elapsed_s += (self.world.knob("fsync_ms") + self.slow_sync_ms) / 1000

    def _on_read(self) -> None:
        if self._worker.is_stepping:
            self._worker.pause("journal_read")

    def _store_operates(self, kind: str) -> None:
        """See `StoredFiles`: by the loop, which it takes time, or by a job, which turns overtake.

        A loop that waits for a lock lets the job go on that may have it.
        """
        worker = self._worker
        if worker.is_stepping:
            worker.pause(kind)
        elif kind == "store_wait":
            self._elapsed_s += WAIT_S
            if worker.is_under_way:
                worker.step()
        elif kind in ("store", "store_sync", OWN_SYNC):
            self._on_sync()
        if kind not in ("store_synced", "store_pause", "store_wait", "store_read"):
            self.disk.operate(kind)

    # --- the life of a process ----------------------------------------------------------------

    @property
    def up(self) -> bool:
        """True while a process runs (it may be paused)."""
        return self.replica is not None

    @property
    def as_member(self) -> Member | None:
        """The process that runs as a member, None while there is none or it joins."""
        return None if self.replica is None else self.replica.member

    @property
    def takes_part(self) -> bool:
        """True while a member runs, and has not left its place to another process of its name."""
        member = self.as_member
        return member is not None and member._context.seniority.takes_part(self.clock())

    @property
    def waits_in_vain(self) -> bool:
        """True while the maintenance waits for a checkpoint that nobody makes."""
        return self._maintenance._checkpointing and self._worker.idle

    @property
    def disk_low(self) -> bool:
        """True while the process takes its disk to be short of room."""
        return self._maintenance.room.is_low

    @property
    def in_turn_until_s(self) -> float:
        """When the last turn that has begun is over, slow syncs included."""
        return self._busy_until_s

    @property
    def has_job(self) -> bool:
        """True while a job of the worker is under way."""
        return self._worker.is_under_way

    def start(self) -> None:
        """Start a process from whatever is on the disk; that may end in its refusal."""
        assert not self.up, f"{self.name} is running"
        self.life += 1
        self._forget_faults_that_are_over()
        self._elapsed_s, self._busy_until_s = 0.0, self.world.now
        self._worker = SimWorker(self)
        self.world.emit("started", node=self.name, life=self.life)
        self.during(self.life, self._start)

    def _forget_faults_that_are_over(self) -> None:
        """A failed sync, and a disk that was full, excuse the process that met them alone."""
        present = {"fsync_error": self.disk.is_to_fail, "disk_full": self.disk.full}
        self.disk_faults = [each for each in self.disk_faults if present.get(each, True)]

    def _start(self) -> None:
        world = self.world
        identity = self.identity()
        if identity is None:
            ids = world.stream(f"identity {self.name}")
            identity = Identity.create(
                CLUSTER_ID, self.member, lambda: UUID(int=ids.getrandbits(128), version=4)
            )
            identity.save(self.directory, self.disk)
        identity.check(self.directory, CLUSTER_ID, self.member)
        hello = hello_of(identity, world.plan.members, self.build)
        self._port = world.net.join(self.name, hello, self.wake)
        peers = world.net.peers(self.name, self.clock, self.departure, self._room_bytes)
        rng = world.stream(f"node {self.name} {self.life}")
        replica = Replica(
            self._settings(),
            identity,
            peers,
            self._worker,
            rng,
            lambda: str(UUID(int=rng.getrandbits(128), version=4)),
            self._on_event,
            self.clock(),
            self.stopwatch,
            ClientRoutes(
                lambda route: min(self._room_bytes(), self._port.room_bytes(route)),
                payer_of=lambda route: (principal_of(route), False),
                principal_of=principal_of if world.knob("keys") else None,
            ),
            partial(WitnessedMember, self),
        )
        self.replica = replica
        self._maintenance = Maintenance(
            replica, self._worker, int(world.knob("disk_free_min_bytes")), self._on_event
        )
        peers.update_hello(replica.hello())
        self.wake()

    def _room_bytes(self) -> int:
        """Return what may be sent on a way in a turn: what was sent in earlier ones has left.

        But for the share of looks that find the way full.
        """
        if self._full_share and self._rooms.random() < self._full_share:
            return 0
        return min(BULK_BYTES_SERVED, int(self.world.knob("room_bytes")))

    def _settings(self) -> ReplicaSettings:
        knob = self.world.knob
        return ReplicaSettings(
            cluster_id=CLUSTER_ID,
            name=self.member,
            members=self.world.plan.members,
            data_dir=self.directory,
            timing=Timing(
                knob("election_min_s"),
                knob("election_max_s"),
                knob("heartbeat_s"),
                knob("fallback_s"),
            ),
            broker_limits=BrokerLimits(
                int(knob("in_flight_max")),
                int(knob("parked_gets_max")),
                int(knob("backlog_bytes_max")),
                int(knob("client_idle_ms")),
            ),
            uncommitted_entries_max=int(knob("uncommitted_entries_max")),
            relays_max=int(knob("relays_max")),
            segment_bytes=int(knob("segment_bytes")),
            keep_bytes=int(knob("keep_bytes")),
            scrub=ScrubPace(int(knob("scrub_bytes_per_s")), knob("scrub_period_s")),
            takeover_s=knob("takeover_s"),
            admins=frozenset({OPERATOR}),
            quotas=Quotas(
                requests_per_s_max=int(knob("quota_requests_per_s")),
                bytes_per_s_max=int(knob("quota_bytes_per_s")),
                topics_max=int(knob("quota_topics")),
                parked_gets_max=int(knob("quota_parked_gets")),
                unread_bytes_max=int(knob("quota_unread_bytes")),
            ),
            wall_ms=self.wall_ms,
            build=self.build,
            files=self.disk,
            on_journal_failure=self.disk.stop,
        )

    def identity(self) -> Identity | None:
        """Return what the disk says whose it is, None if it is empty."""
        return Identity.load(self.directory, self.disk)

    def during(self, life: int, action: Callable[[], None]) -> None:
        """Let the process of this life do something that may be the end of it."""
        if life != self.life:
            return
        self.world.active = self
        try:
            action()
            self.disk.check()  # pysyncobj swallows exceptions while it installs a snapshot
        except Exception as error:  # noqa: BLE001  (whatever it is, it ends a process)
            if self.disk.lost_power:
                self.world.crashed_by_plan(self)
            else:
                self._fail(self.disk.failure or error)

    def _fail(self, error: Exception) -> None:
        self.end("failed")
        self.world.emit(
            "node_failed",
            node=self.name,
            error=type(error).__name__,
            reason=self._without_place(str(error)),
            level_max=self.build.level_max,
            disk_faults=list(self.disk_faults),
        )
        self.world.failures.append((self.name, error))

    def end(self, how: str) -> None:
        """End the process at once: what it did not write is gone. `how`: kill, failed, power."""
        self.close(noticed=how != "power")
        self.world.emit("ended", node=self.name, how=how)

    def close(self, noticed: bool) -> None:
        """Let go of all that the process had."""
        self.life += 1
        replica, self.replica = self.replica, None
        self._requests.clear()
        self.paused, self._stop_at_s = False, None
        self._due_s = float("inf")
        self.disk.restart()
        if self.world.net.has(self.name):
            self.world.net.leave(self.name, noticed, self.departure())
        self._elapsed_s = 0.0
        opened, self.opened = self.opened, None
        if replica is None and opened is None:
            return
        if replica is not None:
            replica._fetch.abandon()
        store = getattr(opened, "store", None)
        self.world.active, self.image.sealed = self, True
        self._worker.abandon()
        if store is not None:
            store.close()
        self.image.sealed = False

    def lose_power(self, keep: str) -> None:
        """End the machine: what was written and not synced may be lost; its clock begins anew."""
        self.end("power")
        rng = self.world.stream(f"power {self.name}")
        self.disk.lose_unsynced(keep, rng)
        self.image.lose_unsynced(keep, rng)
        self._clock_base = (self.world.now, CLOCK_START_S * (1 + rng.random()))

    def wipe(self) -> None:
        """Empty the disk of a machine on which no process runs."""
        assert not self.up, f"{self.name} is running"
        self.disk.wipe()
        self.disk.calm()  # a new disk
        self.image.wipe()
        self.disk_faults.clear()
        self.durable_index = 0

    def take_disk_of(self, other: SimNode) -> None:
        """Go on with another machine's disk, which is worth nothing there any more."""
        assert not self.up, f"{self.name} is running"
        assert not other.up, f"{other.name} is running"
        self.directory, self.disk, self.image = other.directory, other.disk, other.image
        self.disk.on_sync, self.image.operate = self._on_sync, self._store_operates
        self.disk.on_read = self._on_read
        self.image.is_job = lambda: self._worker.is_stepping
        self.durable_index = other.durable_index
        self.disk_faults.clear()

    def copy_disk_of(self, other: SimNode) -> None:
        """Take a copy of all files of another machine, whose process runs on."""
        self.disk.hold_copy(other.disk, other.directory, self.directory)
        shutil.copytree(other.directory / "store", self.directory / "store")
        self.image.settle()

    def stop(self, on_stopped: Callable[[], None]) -> None:
        """Ask the process to end, as SIGTERM does; `on_stopped` is called when it has."""
        if self.replica is not None and self._stop_at_s is None:
            self.replica.frontend.stop()
            self._stop_at_s, self._on_stopped = self.world.now + STOPPING_S_MAX, on_stopped
            self.wake()

    def _stop(self, replica: Replica) -> None:
        """End in order, as the product's loop does: everything it wrote is durable."""
        replica.close()
        self.close(noticed=True)
        self.world.emit("ended", node=self.name, how="stop")
        self._on_stopped()

    def pause(self) -> None:
        """Stop the process, as SIGSTOP does."""
        self._paused_at = self.clock()
        self.paused = self._port.silent = True

    def resume(self) -> None:
        """Let a stopped process go on."""
        now = self.clock()
        self.slept = self.life, now - self._paused_at, now
        self.paused = self._port.silent = False
        self.wake()

    # --- turns --------------------------------------------------------------------------------

    def take_request(self, route: bytes, frames: list[bytes]) -> None:
        """Take what a client has sent; lost if no process runs."""
        if self.up:
            self._requests.append((route, frames))
            self.wake()

    def wake(self) -> None:
        """Have a turn as soon as the node can, with all that has come until then."""
        self._wake_at(max(self.world.now + self._wake_s, self._busy_until_s))

    def _wake_at(self, when_s: float) -> None:
        if when_s < self._due_s:
            self._due_s = when_s
            self.world.at(when_s, partial(self._fire, when_s))

    def _fire(self, when_s: float) -> None:
        if when_s != self._due_s:
            return  # an earlier turn has come between
        self._due_s = float("inf")
        if self.replica is not None and not self.paused:
            self.during(self.life, self._turn)

    def _turn(self) -> None:
        replica, world = self.replica, self.world
        assert replica is not None
        self._elapsed_s = self._turn_s
        self._worker.deliver()
        now = self.clock()
        self._port.begin_turn(now)
        requests: list[tuple[bytes, list[bytes]]] = []
        if replica.intake.wants_clients:  # otherwise they wait where they are
            requests, self._requests = self._requests, []
            requests += self._port.receive_requests()
        for route, frames in self._port.send_replies(replica.turn(now, requests)):
            world.reply(self.name, route, frames, self.departure())
        replica.finish_turn(self._maintenance.room)
        self._maintenance.tick(now)
        self._busy_until_s, self._elapsed_s = self.departure(), 0.0
        turn_s = self._busy_until_s - world.now
        self._port.end_turn(turn_s, now + turn_s, replica.stored)
        member = replica.member
        if member is not None and self.disk.is_synced:
            self.durable_index = member.journal.last_index
        world.turned(self)
        if self._stop_at_s is not None and (replica.may_stop() or world.now >= self._stop_at_s):
            self._stop(replica)
            return
        self._wake_at(self._busy_until_s + (0.0 if replica.busy else self._rest_s(replica, now)))

    def _rest_s(self, replica: Replica, now: float) -> float:
        """Return how long the node sleeps if nothing comes: until Raft is due, or its tick.

        The product's loop ticks more often, to find nothing to do.
        """
        due_s = min(self._port.deadline(), replica.next_deadline())
        rest_s = min(self._tick_s, max(0.0, due_s - now))
        member = replica.member
        if member is not None:
            rest_s = min(rest_s, max(member.raft.deadline_s - now + DUE_S, DUE_S_MIN))
        return rest_s / self.clock_rate

    def _on_event(self, event: str, level: str = "info", **fields: Any) -> None:
        if "node" in fields:
            fields["about"] = fields.pop("node")
        if "reason" in fields:
            fields["reason"] = self._without_place(fields["reason"])
        self.world.emit(event, node=self.name, **fields)

    def _without_place(self, text: str) -> str:
        """Return a text that is the same wherever the run's files lie."""
        return text.replace(str(self.world.directory), "")

    # --- what actions do ------------------------------------------------------------------------

    def compact(self) -> None:
        """Checkpoint the store and drop what the journal need not keep, by the worker."""
        member = self.as_member
        if member is None:
            return
        path, journal = self._settings().database, member.journal

        def done(durable_index: int) -> None:
            self.world.tell("vouched", {"node": self.name, "index": durable_index})
            journal.compact(durable_index)

        self._worker.submit(lambda: tables.checkpoint(path), done, self._maintenance._failed)
