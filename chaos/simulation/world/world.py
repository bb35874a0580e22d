"""The world of one run: virtual time, its events, the nodes, and everything that may befall them.

What lives here: the event heap, seeded streams of random numbers, the run's hash, and the actions
of a plan by name. What must not: which actions happen when (swarm.py), what must hold
(invariants.py), what clients do (clients.py).
"""

from __future__ import annotations

import marshal
import random
import tempfile
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import asdict
from functools import partial
from hashlib import blake2b
from heapq import heappop, heappush
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from chaos.simulation.clients.awaiting import awaited
from chaos.simulation.disks.disk import KEEPS
from chaos.simulation.disks.memory import memory_directory
from chaos.simulation.disks.stored import StoredFiles
from chaos.simulation.plan.limits import limited
from chaos.simulation.plan.plan import Action, Plan
from chaos.simulation.world.database import patched
from chaos.simulation.world.network import Net, SimLinkConditions, SimNet, double_of, member_of
from chaos.simulation.world.node import SimNode
from chaos.simulation.world.ways import Ways
from chaos.simulation.world.wire import Wire, wired
from cluster.raft.ready import Timing
from cluster.serve.client_port import UNREAD_BYTES_SERVED
from cluster.settings.config import RaftSettings

START_S: Final = 0.2  # the nodes of a run start within this time
PIECE_BYTES: Final = 8 * 1024  # of a copy, where pieces are small
LOOK_S: Final = 0.005  # between looks at whether a copy is under way
ISOLATED_S: Final = 0.1  # an isolated process that ends is down for so long
EVENTS_MAX: Final = 50_000_000  # a run that needs more is stuck in a loop without time passing
HASHED_AT_ONCE: Final = 1024  # one call of the hash for each note would cost more than the hash
# A fifth of what repr() takes. Later versions write what is referred to twice in a shorter way,
# which depends on more than the values.
MARSHAL_VERSION: Final = 2

# What a plan's knobs may set, and what they are otherwise.
KNOBS: Final[Mapping[str, float]] = {
    "delay_ms": 0.3,
    "jitter_ms": 0.2,
    "turn_ms": 0.1,
    "fsync_ms": 0.5,
    "share_ends": 0.0,
    "wake_ms": 0.2,
    "tick_ms": 80.0,
    "job_ms": 20.0,
    **asdict(Timing()),
    "takeover_s": RaftSettings.takeover_ms / 1000,
    "in_flight_max": 1000,
    "parked_gets_max": 1000,
    "backlog_bytes_max": 1 << 30,
    "client_idle_ms": 0,  # no client is forgotten
    # Of each client: what it may have by serve/quotas.py, 0 for no quota. But for the first two
    # they are principals', so they need keys.
    "quota_requests_per_s": 0,
    "quota_bytes_per_s": 0,
    "quota_topics": 0,
    "quota_parked_gets": 0,
    "quota_unread_bytes": 0,
    "uncommitted_entries_max": 256,
    "relays_max": 256,
    "room_bytes": UNREAD_BYTES_SERVED,
    "full_share": 0.0,  # of the looks for room that find none: replies that are taken late
    "segment_bytes": 64 * 1024,
    "keep_bytes": 64 * 1024,
    "wire": 0,  # 1: nodes talk in bytes, by the product's own connections
    "keys": 0,  # 1: clients have keys, and so principals; not where nodes talk in bytes
    "acts": 0,  # 1: administrators purge topics, drop clients, and steer
    "patterns": 0,  # 1: somebody subscribes to patterns
    "traveller": 0,  # 1: a client of the library reads where it likes
    "topics": 0,  # 1: topics have policies, and somebody reads them where he likes
    "scrub_bytes_per_s": 0,  # nothing is read back
    "scrub_period_s": 1.0,
    "disk_free_min_bytes": 1 << 20,
}

Observer = Callable[[str, dict[str, Any]], None]


class World:
    """One run. Use as a context: the nodes' files are removed at its end.

    `now`: virtual seconds since the start. `observers` hear of every event, as (kind, fields);
    `watchers` of every turn's end, `request_taps` of what reaches a node, `reply_taps` of every
    answer when a node gives it. `actions`:
    what a plan may name; see ACTIONS. `clients`: route -> where replies to it
    go. `failures`: processes that ended by themselves, with why.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.now = 0.0
        self.observers: list[Observer] = []
        self.watchers: list[Callable[[SimNode], None]] = []
        self.failures: list[tuple[str, Exception]] = []
        # Hear (node, way, frames) of each request that reaches a process, and of each answer.
        self.request_taps: list[Callable[[SimNode, str, list[bytes]], None]] = []
        self.reply_taps: list[Callable[[str, str, list[bytes]], None]] = []
        self.clients: dict[str, Callable[[str, list[bytes]], None]] = {}
        self.files: dict[str, StoredFiles] = {}  # by directory: those on simulated disks
        self.events = 0
        self.active: SimNode | None = None  # whose code runs, or ran last
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._number = 0
        self._hash = blake2b(plan.to_json().encode(), digest_size=16)
        self._notes: list[object] = []
        self._streams: dict[str, random.Random] = {}
        self._patches = ExitStack()
        self._power_keeps: dict[str, str | None] = {}
        self._traps: dict[str, tuple[float, dict[str, Any]]] = {}  # by event: until when, and what
        self._knobs = {name: float(plan.knobs.get(name, value)) for name, value in KNOBS.items()}
        self._home = tempfile.TemporaryDirectory(dir=memory_directory())
        self.directory = Path(self._home.name)
        conditions = SimLinkConditions(self.knob("delay_ms"), self.knob("jitter_ms"))
        # Hear of clients' sockets that broke, and whether the node's end had vanished before.
        self.lost_ways: list[Callable[[str, bool], None]] = []
        self.ways: Ways | None = None
        self.net = self._make_net(conditions)
        self.nodes = {name: SimNode(self, name, self.directory / name) for name in plan.members}
        self.doubles: dict[str, SimNode] = {}  # by their machines' names
        self._doubles_made = 0
        self.actions: dict[str, Callable[..., None]] = {
            name: getattr(self, name) for name in ACTIONS
        }
        starts = self.stream("start")
        for name in plan.members:
            self.after(starts.random() * START_S, partial(self.restart, name))
        for action in plan.schedule:
            self.at(action.at_s, partial(self.perform, action))

    def _make_net(self, conditions: SimLinkConditions) -> Net:
        names, takeover_s = self.plan.members, self.knob("takeover_s")
        if not self.knob("wire"):
            return SimNet(self, names, conditions, takeover_s)
        wire = Wire(self, names, conditions, takeover_s, self.machine, lambda: self._active().name)
        wire.asked, wire.answered = self._hear_requests, self._hear_replies
        self.ways = Ways(wire, self._replied, self._lost)
        return wire

    @property
    def _frames(self) -> SimNet:
        """The network, where it is for the world to carry what clients ask, and the replies."""
        assert isinstance(self.net, SimNet), self.net
        return self.net

    def _lost(self, route: str, vanished: bool) -> None:
        for hear in self.lost_ways:
            hear(route, vanished)

    def _active(self) -> SimNode:
        assert self.active is not None
        return self.active

    def __enter__(self) -> Self:
        self._patches.enter_context(limited(self.plan.knobs))
        self._patches.enter_context(awaited(lambda: self.now))
        salt = self.stream("database").getrandbits(30) + 1
        self._patches.enter_context(patched(lambda: self.active, self.files, salt))
        if isinstance(self.net, Wire):
            self._patches.enter_context(wired(self.net))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with self._home, self._patches:
            for node in (*self.nodes.values(), *self.doubles.values()):
                node.close(noticed=False)

    # --- time ---------------------------------------------------------------------------------

    def at(self, when_s: float, call: Callable[[], None]) -> None:
        """Call at a time, or at once if it is past."""
        self._number += 1
        now = self.now
        heappush(self._heap, (when_s if when_s > now else now, self._number, call))

    def after(self, delay_s: float, call: Callable[[], None]) -> None:
        """Call after a time."""
        self.at(self.now + delay_s, call)

    def run_until(self, until_s: float) -> None:
        """Let time pass until a moment."""
        heap, pop, left = self._heap, heappop, EVENTS_MAX - self.events
        while heap and heap[0][0] <= until_s:
            self.now, _, call = pop(heap)
            left -= 1
            assert left >= 0, f"{EVENTS_MAX} events by {self.now} s"
            call()
        self.now, self.events = until_s, EVENTS_MAX - left

    def stream(self, name: str) -> random.Random:
        """Return the random numbers of one purpose: no other purpose disturbs them."""
        stream = self._streams.get(name)
        if stream is None:
            stream = self._streams[name] = random.Random(f"{self.plan.seed} {name}")
        return stream

    def knob(self, name: str) -> float:
        """Return one of the plan's settings."""
        return self._knobs[name]

    # --- what happens, for whoever watches ----------------------------------------------------

    def emit(self, kind: str, **fields: Any) -> None:
        """Tell all observers, and the hash, of an event. Fields: values that JSON knows, bytes."""
        self.note(kind, repr(fields))
        self.tell(kind, fields)

    def tell(self, kind: str, fields: dict[str, Any]) -> None:
        """Tell all observers of an event that the hash knows already, by a note of its own."""
        if kind in self._traps:
            until_s, isolation = self._traps.pop(kind)
            if self.now < until_s:
                self.isolate(leader=fields["node"], **isolation)
        for observer in self.observers:
            observer(kind, fields)

    def note(self, *what: object) -> None:
        """Take something into the run's hash: numbers, strings, bytes, tuples of these."""
        notes = self._notes
        notes += self.now, what
        if len(notes) >= HASHED_AT_ONCE:
            self._hash_notes()

    def _hash_notes(self) -> None:
        self._hash.update(marshal.dumps(self._notes, MARSHAL_VERSION))
        self._notes.clear()

    def digest(self) -> str:
        """Return the hash of all that has happened so far, in hex."""
        self._hash_notes()
        return self._hash.hexdigest()

    def turned(self, node: SimNode) -> None:
        """Tell all watchers that a node has ended a turn."""
        for watcher in self.watchers:
            watcher(node)

    # --- clients ------------------------------------------------------------------------------

    def request(self, route: str, node: str, frames: list[bytes]) -> None:
        """Carry a client's request (frames without delimiter) to a node; it may get lost.

        `route` names the client's socket, "<client>" or "<client>/<number of its socket>"; links
        between clients and nodes are cut and clogged by "<client>".
        """
        if self.ways is not None:
            self.ways.request(route, node, frames)
            return
        target = self.nodes[node]
        source = route.partition("/")[0]

        def arrive() -> None:
            if target.up:
                for tap in self.request_taps:
                    tap(target, route, frames)
            target.take_request(route.encode(), frames)

        self._frames.carry(source, node, self.now, arrive)

    def reply(self, node: str, route: bytes, frames: list[bytes], leaves_s: float) -> None:
        """Carry a node's reply to a client, if its socket is still open (in `clients`)."""
        name = route.decode()
        for tap in self.reply_taps:
            tap(node, name, frames)

        def arrive() -> None:
            take = self.clients.get(name)
            if take is not None:
                self.note(node, name, frames[0])
                take(node, frames)

        self._frames.carry(node, name.partition("/")[0], leaves_s, arrive)

    def close_way(self, route: str) -> None:
        """Close a client's socket."""
        del self.clients[route]
        if self.ways is not None:
            self.ways.close(route)

    def _replied(self, route: str, node: str, frames: list[bytes]) -> None:
        take = self.clients.get(route)
        if take is not None:
            self.note(node, route, frames[0])
            take(node, frames)

    def _hear_requests(self, machine: str, route: str, frames: list[bytes]) -> None:
        for tap in self.request_taps:
            tap(self.machine(machine), route, frames)

    def _hear_replies(self, machine: str, route: str, frames: list[bytes]) -> None:
        for tap in self.reply_taps:
            tap(machine, route, frames)

    # --- second processes of a name -----------------------------------------------------------

    def machine(self, name: str) -> SimNode:
        """Return a machine by its name, a member's own or its double's."""
        return self.nodes.get(name) or self.doubles[name]

    def machine_is_up(self, name: str) -> bool:
        """Return whether a process runs on a machine, which may be gone."""
        found = self.nodes.get(name) or self.doubles.get(name)
        return found is not None and found.up

    def machines(self) -> list[SimNode]:
        """Return all machines, those of doubles last."""
        return [*self.nodes.values(), *self.doubles.values()]

    def machines_of(self, member: str) -> list[SimNode]:
        """Return the machines whose processes say that they are this member."""
        double = self.doubles.get(double_of(member))
        return [self.nodes[member]] + ([] if double is None else [double])

    def make_double(self, member: str) -> SimNode:
        """Set up a second machine for a member, with an empty disk; it has none yet."""
        name = double_of(member)
        assert name not in self.doubles, f"{name} is there"
        self._doubles_made += 1
        directory = self.directory / f"{name}{self._doubles_made}"
        double = self.doubles[name] = SimNode(self, name, directory)
        return double

    def remove_double(self, member: str) -> SimNode:
        """Take a member's second machine away; its process ends."""
        double = self.doubles[double_of(member)]
        if double.up:
            double.end("kill")
        self.net.remove_double(double.name)
        return self.doubles.pop(double.name)

    # --- what is asked ------------------------------------------------------------------------

    def leader(self) -> str:
        """Return the name of the node that serves, of several the one of the newest term; or ""."""
        serving = {
            node.as_member.raft.term: name
            for name, node in self.nodes.items()
            if node.as_member is not None and node.as_member.raft.serving
        }
        return serving[max(serving)] if serving else ""

    def _named(self, name: str) -> SimNode | None:
        """Return a node by name; None if there is none.

        "leader" is whoever leads now, "follower" a member that runs and does not.
        """
        name = self._follower() if name == "follower" else name
        name = self.leader() if name == "leader" else name
        return self.nodes.get(name)

    def _follower(self, besides: str = "") -> str:
        """Return the first member that runs and does not lead, other than one; "" if none does."""
        unfit = {besides, self.leader()}
        for name, node in self.nodes.items():
            if node.as_member is not None and not node.paused and name not in unfit:
                return name
        return ""

    # --- actions: each does nothing where it makes no sense; a plan may be shrunk -----

    def perform(self, action: Action) -> None:
        """Do an action of the plan."""
        self.emit("fault", name=action.name, args=dict(action.args))
        self.actions[action.name](**action.args)

    def kill(self, node: str, at: str = "now", count: int = 1) -> None:
        """End a process; `at` an operation on its disk: before the `count`-th one from now."""
        self._end(node, at, count, None)

    def power_loss(self, node: str, at: str = "now", count: int = 1, keep: str = "torn") -> None:
        """End a machine; `keep` (disk.KEEPS): what is left of what was written and not synced."""
        assert keep in KEEPS, keep
        self._end(node, at, count, keep)

    def _end(self, name: str, at: str, count: int, keep: str | None) -> None:
        node = self._named(name)
        if node is None or not node.up:
            return
        self._power_keeps[node.name] = keep
        if at == "now":
            self.crashed_by_plan(node)
        else:
            node.disk.crash_in(at, count)

    def crashed_by_plan(self, node: SimNode) -> None:
        """End a node's process, and its machine's power if that was the plan."""
        keep = self._power_keeps.pop(node.name, None)
        if keep is None:
            node.end("kill")
        else:
            node.lose_power(keep)

    def kill_source(self, seconds: float, pieces: int = 0) -> None:
        """End the next process from which another one copies its store, after so many pieces.

        None if no copy is under way within that time.
        """
        if seconds <= 0 or self.now >= self.plan.duration_s:
            return
        for node in self.nodes.values():
            fetch = None if node.replica is None else node.replica._fetch
            offset = 0 if fetch is None or fetch._download is None else fetch._download.offset
            if fetch is not None and fetch.source and offset >= pieces * PIECE_BYTES:
                self.kill(fetch.source)
                return
        self.after(LOOK_S, lambda: self.kill_source(seconds - LOOK_S, pieces))

    def lose_piece(self, seconds: float, pieces: int = 0, hold_s: float = 0.1) -> None:
        """Lose what goes between the next process that copies a store and its source, for a moment.

        After so many pieces; nothing if no copy is under way within that time.
        """
        if seconds <= 0 or self.now >= self.plan.duration_s:
            return
        for name, node in self.nodes.items():
            fetch = None if node.replica is None else node.replica._fetch
            offset = 0 if fetch is None or fetch._download is None else fetch._download.offset
            if fetch is not None and fetch.source and offset >= pieces * PIECE_BYTES:
                self.cut_one_way(name, fetch.source, hold_s)
                self.cut_one_way(fetch.source, name, hold_s)
                return
        self.after(LOOK_S, lambda: self.lose_piece(seconds - LOOK_S, pieces, hold_s))

    def restart(self, node: str) -> None:
        """Start a process on a machine where none runs."""
        found = self.nodes[node]
        if not found.up:
            found.start()

    def stop(self, node: str, seconds: float = 1.0) -> None:
        """Ask a process to end in order; it is started again so long after it has."""
        found = self._named(node)
        if found is not None:
            start = partial(self.actions["restart"], node=found.name)
            found.stop(partial(self.after, seconds, start))

    def kill_all(self) -> None:
        """End every process at once."""
        for name in self.nodes:
            self.kill(name)

    def power_loss_all(self, keep: str = "torn") -> None:
        """End every machine at once."""
        for name in self.nodes:
            self.power_loss(name, keep=keep)

    def restart_all(self) -> None:
        """Start every process that does not run."""
        for name in self.nodes:
            self.restart(name)

    def wipe(self, node: str) -> None:
        """Empty a machine's disk, its process ended first."""
        found = self._named(node)
        if found is not None:
            self._end(found.name, "now", 1, None)
            found.wipe()

    def pause(self, node: str) -> None:
        """Stop a process without ending it."""
        found = self._named(node)
        if found is not None and found.up and not found.paused:
            found.pause()

    def resume(self, node: str) -> None:
        """Let a stopped process go on ("all": every one)."""
        for found in (*self.nodes.values(), *self.doubles.values()):
            if found.paused and node in (found.name, "all"):
                found.resume()

    def clock_rate(self, node: str, rate: float) -> None:
        """Let a node's clock run at another rate."""
        found = self._named(node)
        if found is not None:
            found.set_clock_rate(rate)

    def cut(self, node: str, others: list[str] | None = None, seconds: float | None = None) -> None:
        """Let nothing pass between a node and the others (all by default), nobody noticing.

        `seconds`: for how long; until `heal` if None.
        """
        found = self._named(node)
        if found is not None:
            for other in others if others is not None else self.nodes:
                self.cut_one_way(found.name, other, seconds)
                self.cut_one_way(other, found.name, seconds)

    def cut_one_way(self, source: str, target: str, seconds: float | None = None) -> None:
        """Let nothing pass from one to another, nobody noticing; `seconds` as in `cut`.

        The target "follower" is one that follows another process than the source's member.
        """
        if target == "follower":
            target = self._follower(besides=member_of(source))
        cut = self.net.cut
        cut.add((source, target))
        if seconds is not None:
            self.after(seconds, lambda: cut.discard((source, target)))

    def isolate(
        self, count: int, seconds: float, end_s: float = 0.0, keep: str = "", leader: str = ""
    ) -> None:
        """Cut the leader, with followers up to `count` in all, off from all others for a while.

        So the others elect another one, whose entries replace theirs. With an `end_s` the processes
        of those who are cut off end then (`keep`: with their machines' power, see `power_loss`),
        and go on from what they have, before they hear of anybody. A `count` of 0: nobody is cut
        off, and the leader ends.
        """
        first = leader or self.leader()
        if not first:
            return
        rest = sorted(name for name in self.nodes if name != first)
        more = max(0, min(count, len(self.nodes)) - 1)
        apart = [first, *self.stream("isolate").sample(rest, more)]
        others = [name for name in self.nodes if count and name not in apart]
        for name in apart:
            self.cut(name, others, seconds)
        if end_s:
            for name in apart:
                self.after(end_s, partial(self._end, name, "now", 1, keep or None))
                self.after(end_s + ISOLATED_S, partial(self.actions["restart"], node=name))

    def isolate_at(self, event: str, within_s: float, **isolation: Any) -> None:
        """Isolate the node of the next event of that kind, if it comes in time, while it does that.

        `raising`: a leader appends the entry that raises the level; `admitting`: one that admits
        somebody. What it says of it reaches nobody.
        """
        self._traps[event] = self.now + within_s, isolation

    def heal(self) -> None:
        """End all cuts and clogs."""
        self.net.cut = set()  # another one: a cut from before ends nothing that comes behind
        self.net.clogged.clear()

    def calm(self) -> None:
        """End all that disturbs and call off all that was to happen; what is down stays down."""
        self.heal()
        self.weather()
        self.resume("all")
        self._traps.clear()
        for node in self.nodes.values():
            node.disk.make_room()
            node.slow_sync_ms = 0.0
            node.disk.calm()
            node.set_clock_rate(1.0)

    def clog(self, source: str, target: str, seconds: float) -> None:
        """Let what is sent from one to another wait."""
        self.net.clogged[source, target] = self.now + seconds

    def disconnect(self, one: str, other: str) -> None:
        """Close the connection of two nodes."""
        self.net.break_link(one, other)

    def weather(
        self,
        loss: float = 0.0,
        delay_ms: float = KNOBS["delay_ms"],
        jitter_ms: float = KNOBS["jitter_ms"],
        duplicate: float = 0.0,
        reorder: float = 0.0,
        late: float = 0.0,
    ) -> None:
        """Change what happens to messages at random; without arguments: a calm network."""
        self.net.conditions = SimLinkConditions(delay_ms, jitter_ms, loss, duplicate, reorder, late)

    def disk_full(self, node: str) -> None:
        """Let nothing more fit on a disk."""
        self._disk_fault(node, "disk_full", lambda found: setattr(found.disk, "full", True))

    def disk_low(self, node: str) -> None:
        """Let a disk have less room than a node wants; all that is written still fits."""
        found = self._named(node)
        if found is not None:
            found.disk.low = True

    def disk_free(self, node: str) -> None:
        """Make room on a disk again."""
        found = self._named(node)
        if found is not None:
            found.disk.make_room()

    def slow_fsync(self, node: str, ms: float) -> None:
        """Let every fsync take so much longer (0: no longer)."""
        found = self._named(node)
        if found is not None:
            found.slow_sync_ms = ms

    def fsync_error(self, node: str, count: int = 1, kind: str = "fdatasync") -> None:
        """Let the `count`-th sync of a kind (disk.SYNCS) from now report EIO and lose its bytes."""
        self._disk_fault(node, "fsync_error", lambda found: found.disk.fail_sync(kind, count))

    def bit_flip(self, node: str, file: str = ".log") -> None:
        """Flip a bit in a node's file whose name ends so: .log (journal), .json (identity), .db."""
        self._disk_fault(node, "bit_flip", lambda found: self._damage(found, file, False))

    def truncate(self, node: str, file: str = ".log") -> None:
        """Cut the end of a node's file whose name ends so: .log (journal), .json (identity)."""
        self._disk_fault(node, "truncate", lambda found: self._damage(found, file, True))

    def _damage(self, node: SimNode, file: str, cut: bool) -> None:
        rng = self.stream(f"damage {node.name}")
        what = (
            node.image.damage("store.db", rng)
            if file == ".db"
            else node.disk.damage(file, rng, cut)
        )
        self.emit("damaged", node=node.name, what=what)

    def _disk_fault(self, name: str, what: str, do: Callable[[SimNode], None]) -> None:
        found = self._named(name)
        if found is not None:
            found.disk_faults.append(what)
            do(found)

    def transfer(self) -> None:
        """Have the leader hand over."""
        found = self._named("leader")
        member = None if found is None else found.as_member
        if found is not None and member is not None:
            # What is submitted from here on, its successor need not have.
            self.emit("transferring", node=found.name, index=member.journal.last_index)
            member.raft.transfer_leadership()
            found.wake()

    def compact(self, node: str) -> None:
        """Have a node checkpoint its store and compact its journal."""
        found = self._named(node)
        if found is not None:
            found.compact()


# Actions of a plan; operator.py, administrator.py and checks/watch.py add theirs.
ACTIONS: Final = (
    "kill", "restart", "power_loss", "wipe", "pause", "resume", "clock_rate", "cut", "cut_one_way",
    "heal", "calm", "clog", "disconnect", "weather", "disk_full", "disk_low", "disk_free",
    "slow_fsync", "fsync_error", "bit_flip", "truncate", "transfer", "compact", "stop", "kill_all",
    "power_loss_all", "restart_all", "kill_source", "lose_piece", "isolate", "isolate_at",
)  # fmt: skip
