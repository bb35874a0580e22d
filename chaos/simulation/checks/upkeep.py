"""What a node has under way goes on, and what it keeps ready is what it would make anew.

What lives here: looks into nodes, now and then in a run: at flags that say that the worker does
something, at what waits for a peer, at whom Raft hears, at files that a job leaves, and at indexes
that are kept beside the tables that they are made of. What must not: what is counted (books.py),
what was answered (replies.py).

Most of this is put right by the next event, and breaks no promise until that fails to come. So what
may be wrong for a moment is a failure once it was wrong at every look for longer than that.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from chaos.simulation.checks.invariants import Invariants
from chaos.simulation.world.network import member_of
from chaos.simulation.world.node import SimNode
from chaos.simulation.world.wire import WirePort
from chaos.simulation.world.world import World
from cluster.members import about
from cluster.members.handshake import can_read
from cluster.members.membership import is_linked
from cluster.node.audit import StateComparison
from cluster.node.member import Member
from cluster.node.replica import Replica
from cluster.raft.ready import SoftState
from cluster.store.groups import SharedGroup
from cluster.store.store import Store
from cluster.store.unread import Unread
from cluster.store.users import SUBSCRIBE
from cluster.wire.messages import (
    About,
    Message,
    MessageError,
    SnapshotChunk,
    SnapshotRefused,
    SnapshotRequest,
)

TURNS_PER_LOOK: Final = 16  # of a node; see books.py
AT_ONCE_S: Final = 0.0  # at the end of any turn
TURNS_S_MAX: Final = 1.0  # what the next turns put right, also those of a busy node
COMPACTION_S_MAX: Final = 4.0  # a checkpoint is looked for once a second, and cuts step by step
ASKED_S_MAX: Final = 6.0  # a checkpoint that was asked for is due with the next look, or the third
OVERDUE_S_MAX: Final = 1.0  # behind a deadline: a node that was paused looks in its next turn
SEEN_S_MIN: Final = 0.5  # that a connection has stood: one that is soon gone may be seen by nobody
SILENCE_S_MAX: Final = 1.0  # by which a status may tell of a longer silence than there was
TOLD_S_MAX: Final = 0.3  # until the others are told that a disk is short of room, or is no more
ABOUTS_MAX: Final = 6  # that each of the others sends, until what they tell of digests is known

DOWNLOAD, COPY = "download", "copy-"  # how their files' names begin

Wrong = tuple[str, str, float]  # what it is known by, how it reads, for how long it may be so


class Upkeep:
    """Looks into a world's nodes; tells `invariants` of what stands still or is out of date."""

    def __init__(self, world: World, invariants: Invariants) -> None:
        self._world, self._invariants = world, invariants
        self._turns = 0
        # By machine: its process, and since when each thing is wrong, by the node's own clock.
        self._since: dict[str, tuple[int, dict[str, float]]] = {}
        # By (machine, process, member): since when that is connected, and until when it was, by the
        # node's own clock.
        self._met_s: dict[tuple[str, int, str], float] = {}
        self._parted_s: dict[tuple[str, int, str], float] = {}
        # By (machine, process, member): when that has asked for a piece of a copy, by the node's
        # own clock; until it is answered.
        self._asked_s: dict[tuple[str, int, str], float] = {}
        self._disk_changes: Counter[str] = Counter()  # by machine: it was short of room, or no more
        self._condemned: set[str] = set()  # machines whose disks are not to be used again
        # By machine: how many times others have told it digests; and by the process and an
        # index that a majority agrees on (0: on another state): the same, when that was seen first.
        self._abouts: Counter[str] = Counter()
        self._agreeing: dict[tuple[str, int, int], int] = {}
        self._checkpointed: set[tuple[str, int, int]] = set()  # (machine, process, asked for at)
        self._checkpoints_failed: Counter[str] = Counter()  # by machine
        self._first_index: dict[str, int] = {}  # of each machine's log, at its last turn
        # By machine without room: its process, and how often it had got room by then; the copies
        # that it has; and whether none is made that was begun before.
        self._full: dict[str, tuple[tuple[int, int], set[str], bool]] = {}
        world.observers.append(self._observe)
        world.watchers.append(self._turned)
        world.net.taps.append(self._delivered)
        world.net.send_taps.append(self._sent)

    def _delivered(self, source: str, target: str, message: Message) -> None:
        if type(message) is SnapshotRequest:
            node = self._world.machine(target)
            self._asked_s[node.name, node.life, member_of(source)] = node.clock()
        elif type(message) is About and self._has_digests(message):
            self._abouts[target] += 1

    @staticmethod
    def _has_digests(message: About) -> bool:
        try:
            return bool(about.decode(message).digests)
        except MessageError:
            return False  # another program's

    def _sent(self, source: str, target: str, message: Message) -> None:
        kind = type(message)
        if kind is SnapshotChunk or kind is SnapshotRefused:
            self._asked_s.pop((source, self._world.machine(source).life, target), None)
        elif kind is SnapshotRequest:
            self._asks_in_time(self._world.machine(source), target)
        elif kind is About and message.facts:  # type: ignore[union-attr]
            self._tells_its_newest(self._world.machine(source), about.decode(message))  # type: ignore[arg-type]

    def _asks_in_time(self, node: SimNode, source: str) -> None:
        """Check that who was refused a copy, or given a damaged one, waits before it asks again."""
        assert node.replica is not None, node.name
        early_s = node.replica._fetch._pause_until_s - node.clock()
        if early_s > 0:
            text = f"{node.name} asks {source} for a copy, {early_s:.3f} s before it may"
            self._invariants.fail("upkeep", text)

    def _tells_its_newest(self, node: SimNode, facts: about.Facts) -> None:
        """Check that a node tells the digests that it has, the newest among them."""
        member = node.as_member
        marks = {} if member is None else member.store.audit.marks
        wrong = [index for index, digest in facts.digests.items() if marks.get(index) != digest]
        if wrong or (marks and not facts.double and next(reversed(marks)) not in facts.digests):
            told = sorted(facts.digests)
            text = f"{node.name} tells its digests of {told}"
            self._invariants.fail("upkeep", f"{text}, and has {list(marks)[-3:]} last")

    def _observe(self, kind: str, fields: Mapping[str, Any]) -> None:
        if kind == "node_failed" and fields["error"] == "CondemnedState":
            self._condemned.add(fields["node"])
        elif kind in ("emptied", "moved_in", "double_gone"):
            self._condemned.discard(fields["node"])
        elif kind == "disk":
            self._disk_changes[fields["node"]] += 1
        elif kind == "checkpointed":
            self._told_once(self._world.machine(fields["node"]))
        elif kind == "checkpoint_failed":
            self._checkpoints_failed[fields["node"]] += 1
        elif kind in ("started", "snapshot_installed"):
            self._first_index.pop(fields["node"], None)
        elif kind == "admitting":
            self._was_awake(self._world.machine(fields["node"]), fields["about"])
        if kind not in ("peer_connected", "peer_disconnected"):
            return
        node = self._world.machine(fields["node"])
        key, now = (node.name, node.life, fields["name"]), node.clock()
        if kind == "peer_connected":
            self._met_s[key] = now
        elif now - self._met_s.pop(key, now) > SEEN_S_MIN:
            self._parted_s[key] = now

    def _told_once(self, node: SimNode) -> None:
        """Check that a checkpoint that was asked for is told once."""
        assert node.as_member is not None, node.name
        told = node.name, node.life, node.as_member.store.checkpoint_index
        if told in self._checkpointed:
            text = f"{node.name} tells again of a checkpoint that was asked for at {told[2]}"
            self._invariants.fail("upkeep", text)
        self._checkpointed.add(told)

    def _was_awake(self, leader: SimNode, name: str) -> None:
        """Check that a leader replaces nobody for a silence that it has slept through."""
        life, slept_s, until_s = leader.slept
        takeover_s, awake_s = self._world.knob("takeover_s"), leader.clock() - until_s
        if life == leader.life and slept_s > takeover_s / 2 and awake_s < takeover_s:
            text = f"{leader.name} replaces {name}, {awake_s:.2f} s after it has slept"
            self._invariants.fail("silent", f"{text} for {slept_s:.2f} s")

    def _turned(self, node: SimNode) -> None:
        self._turns += 1
        replica = node.replica
        if node.name in self._condemned:
            self._invariants.fail("upkeep", f"{node.name} takes part with what it has condemned")
        if replica is None:
            return
        if replica.member is not None:
            self._keeps_log(node, replica.member)
        self._leaves_room(node)
        if self._turns % TURNS_PER_LOOK:
            return
        now, before = node.clock(), self._since.get(node.name, (node.life, {}))
        known = before[1] if before[0] == node.life else {}
        since: dict[str, float] = {}
        for what, text, patience_s in self._wrong(node, replica):
            since[what] = known.get(what, now)
            if now - since[what] >= patience_s:
                self._invariants.fail("upkeep", f"{node.name}: {text}")
        self._since[node.name] = node.life, since

    def _keeps_log(self, node: SimNode, member: Member) -> None:
        """Check that a log that was cut is as long as one is to be, for those who lag."""
        journal = member.journal
        before = self._first_index.get(node.name, journal.first_index)
        self._first_index[node.name] = journal.first_index
        size_bytes, kept_bytes = journal.size_bytes, member.settings.keep_bytes
        is_damaged = journal._damaged_sequence >= 0
        if journal.first_index > before and size_bytes < kept_bytes and not is_damaged:
            text = f"{node.name} has cut its log to {size_bytes} bytes, and is to keep {kept_bytes}"
            self._invariants.fail("upkeep", text)

    def _leaves_room(self, node: SimNode) -> None:
        """Check that no copy is begun on a disk that is short of room."""
        disk = node.disk
        if not (disk.low or disk.full):
            self._full.pop(node.name, None)
            return
        since = node.life, disk.times_freed
        before, known, is_settled = self._full.get(node.name, (since, set(), False))
        directory, member = node.image.directory, node.as_member
        files = os.listdir(directory) if directory.exists() else ()  # of a newcomer it is not there
        names = {each for each in files if _is_copy(each)}
        makes_none = member is None or not member._server._copying
        begun = names - known
        if before == since and is_settled and begun:
            text = f"{node.name} begins {sorted(begun)} on a disk that is short of room"
            self._invariants.fail("upkeep", text)
        self._full[node.name] = since, names, (is_settled and before == since) or makes_none

    def _wrong(self, node: SimNode, replica: Replica) -> Iterator[Wrong]:
        """Yield what is not as it should be now."""
        member, fetch = replica.member, replica._fetch
        if fetch.under_way and not fetch._verifying and not replica._peers.hello_of(fetch.source):
            source = fetch.source
            yield (
                "source",
                f"it asks {source} for a copy, and is not connected with it",
                TURNS_S_MAX,
            )
        if node._worker.idle and fetch._verifying:
            yield "verifying", "it takes a copy for one that is being verified", AT_ONCE_S
        yield from self._unanswered(node, replica)
        if replica._told_low != node.disk_low:
            text = f"the others know of its disk that it is low: {replica._told_low}"
            what = f"told the {self._disk_changes[node.name]}th"
            yield what, f"{text}, and it is: {node.disk_low}", TOLD_S_MAX
        if isinstance(node._port, WirePort):
            heard, live = node._port.port._heard, node._port.port._live.values()
            left = [each.name for each in live if each not in heard and each.reader.has_frame()]
            if left:
                yield "frames", f"what {left} have said waits, and nobody looks", AT_ONCE_S
        if member is None:
            return
        yield from self._standing(node, member)
        yield from self._states(node, member)
        yield from self._jobs(node, member)
        yield from self._peers(node, member)
        yield from self._overdue(node, replica, member)
        yield from self._files(node, replica, member)
        yield from _of_groups(member.store)
        yield from self._unread(member.store)

    def _unanswered(self, node: SimNode, replica: Replica) -> Iterator[Wrong]:
        """Yield who has asked for a piece of a copy and is told nothing by an idle worker."""
        if not self._asked_s:
            return
        for key, asked_s in list(self._asked_s.items()):
            name, life, member = key
            if name != node.name:
                continue
            if life != node.life or replica._peers.hello_of(member) is None:
                del self._asked_s[key]
            elif node._worker.idle and not self._world.net.has_untaken(name):
                text = f"{member} has asked for a copy, and is told nothing"
                yield f"asked {member} {asked_s}", text, TURNS_S_MAX

    def _standing(self, node: SimNode, member: Member) -> Iterator[Wrong]:
        """Yield what a node says, or lets others know, and does not have, of itself and members."""
        raft, settings = member.raft, member.settings
        if member._standing != SoftState(raft.role, raft.term, raft.leader):
            text = f"it is {raft.role} of {raft.leader!r} in {raft.term}"
            yield "standing", f"{text}, and has told of {member._standing}", AT_ONCE_S
        admitted = {name: member._admission(name)[0] or "" for name in settings.members}
        roll = node._port.roll
        if (roll.newest, roll.applied) != (admitted, member.store.members):
            text = f"its log has {admitted}, and it judges others by {roll.newest}"
            yield "roll", text, AT_ONCE_S
        may = admitted[settings.name] in ("", member.identity.incarnation)
        if raft.may_campaign != may:
            yield "campaign", f"it may campaign: {raft.may_campaign}, and is to: {may}", AT_ONCE_S
        names, majority = member.linked.names, settings.majority
        if member.linked.has_majority != (len(names | {settings.name}) >= majority):
            yield "majority", f"it hears {sorted(names)}, and takes that for no majority", AT_ONCE_S
        hellos = member.linked._context.hellos()
        for name, sighting in member.linked.sightings(node.clock()).items():
            if sighting.silent_s and hellos[name] is not None:
                text = f"{name} is connected, and said to be silent for {sighting.silent_s:.1f} s"
                yield f"sighted {name}", text, AT_ONCE_S

    def _states(self, node: SimNode, member: Member) -> Iterator[Wrong]:
        """Yield what a node should have made of the others' digests by now."""
        comparison, marks = member._comparison, member.store.audit.marks
        told = [
            digests
            for name, (incarnation, digests) in comparison._told.items()
            if name in member.linked.names and member.store.members.get(name) == incarnation
        ]
        majority = member.settings.majority
        same = _agreed_by(comparison, told, marks, majority)
        if same and self._is_told_enough(node, member, same):
            text = f"a majority has its state at {same}, and it knows of {comparison.agreed}"
            yield "agreed", text, AT_ONCE_S
        others = [
            other.as_member.store.audit.marks
            for name in member.linked.names
            for other in self._world.machines_of(name)
            if other.as_member is not None
        ]
        if len(others) >= majority and marks:
            index = next(reversed(marks))
            known = [each[index] for each in others if index in each]
            differs = marks[index] not in known
            differs = differs and max(map(known.count, known), default=0) >= majority
            if differs and self._is_told_enough(node, member, 0):
                text = f"a majority has another state at {index}, and it goes on"
                yield "differs", text, AT_ONCE_S

    def _is_told_enough(self, node: SimNode, member: Member, index: int) -> bool:
        """Return whether the others have said so much since this was asked first that it knows."""
        abouts = self._abouts[node.name]
        since = self._agreeing.setdefault((node.name, node.life, index), abouts)
        is_heard = not self._world.net.has_untaken(node.name)
        return is_heard and abouts - since > ABOUTS_MAX * len(member.settings.others)

    def _jobs(self, node: SimNode, member: Member) -> Iterator[Wrong]:
        """Yield what is said to be done while the worker has nothing to do."""
        server, maintenance = member._server, node._maintenance
        if node._worker.idle:
            flags = {
                "that is copied": server._copying,
                "that has a checkpoint made": maintenance._checkpointing,
                "that is read back": member.scrub._is_reading,
            }
            for what, is_said in flags.items():
                if is_said:
                    yield what, f"it takes its store for one {what}, by an idle worker", AT_ONCE_S
        if server._waiting and not server._copying:
            waiting = sorted(server._waiting)
            yield "waiting", f"{waiting} wait for a copy that nobody makes", AT_ONCE_S
        asked_at, has_at = member.store.checkpoint_index, member.checkpointed_index
        if asked_at > has_at and node._worker.idle:
            text = f"a checkpoint was asked for at {asked_at}, and its last one is of {has_at}"
            yield f"asked {asked_at} {self._checkpoints_failed[node.name]}", text, ASKED_S_MAX
        reaper = member.reaper
        if not reaper._after and (reaper._silent_count or reaper._silent):
            text = f"it has counted {reaper._silent_count} silent clients, and looked at none yet"
            yield "silent clients", text, AT_ONCE_S
        index = member.journal.damaged_index
        if index and member.checkpointed_index >= index and maintenance._compact_below is None:
            text = f"it keeps a damaged segment, with a checkpoint of {member.checkpointed_index}"
            yield "damaged", f"{text}, and needs one of {index}", COMPACTION_S_MAX

    def _peers(self, node: SimNode, member: Member) -> Iterator[Wrong]:
        """Yield whom Raft hears and should not, or the other way round, and a wrong status."""
        linked, raft, now = member.linked, member.raft, node.clock()
        takes_part = linked._context.seniority.takes_part(now)
        for name in member.settings.others:
            hello = linked._context.peers.hello_of(name)
            is_heard = takes_part and is_linked(hello, *linked._admission(name))
            is_heard = is_heard and can_read(hello, linked._log_level())
            if is_heard != (name in linked.names):
                text = f"it is to hear {name}: {is_heard}, and hears {sorted(linked.names)}"
                yield f"linked {name}", text, TURNS_S_MAX
            if raft._core.is_reachable(name) != (name in linked.names):
                text = f"Raft takes {name} for there: {raft._core.is_reachable(name)}"
                yield f"reachable {name}", f"{text}; it hears {sorted(linked.names)}", AT_ONCE_S
        for name, sighting in linked.sightings(now).items():
            parted_s = self._parted_s.get((node.name, node.life, name))
            if sighting.silent_s and parted_s is not None:
                more_s = sighting.silent_s - (now - parted_s)
                if more_s > SILENCE_S_MAX:
                    text = f"{name} is said to be silent for {sighting.silent_s:.1f} s"
                    yield f"silent {name}", f"{text}, {more_s:.1f} s more than it is", TURNS_S_MAX

    def _overdue(self, node: SimNode, replica: Replica, member: Member) -> Iterator[Wrong]:
        """Yield what waits for longer than it may."""
        led, now_ms = member.broker, node.clock() * 1000
        tables = led._parked, led._parked_any, led._parked_takes
        parked = [each for table in tables for kept in table.values() for each in kept.values()]
        late = [each.request.request_id for each in parked if each.deadline_ms < now_ms]
        if late:
            yield "parked", f"{late} are parked beyond their deadline", OVERDUE_S_MAX
        under_way = replica.frontend._relays._under_way.values()
        late = [each.request_id for each in under_way if each.deadline_ms < now_ms]
        if late:
            yield "relays", f"{late} are relayed beyond their deadline", OVERDUE_S_MAX

    def _files(self, node: SimNode, replica: Replica, member: Member) -> Iterator[Wrong]:
        """Yield files beside the store that no job has any use for."""
        fetch, server = replica._fetch, member._server
        names = os.listdir(node.image.directory)
        of_fetch = fetch._download is not None or fetch._verifying or fetch.ready is not None
        of_server = server._copying or server._copy is not None
        left = {
            name
            for name in names
            if (name.startswith(DOWNLOAD) and not of_fetch)
            or (name.startswith(COPY) and not of_server)
        }
        if left:
            yield "files", f"{sorted(left)} are left, and nobody needs them", TURNS_S_MAX

    def _unread(self, store: Store) -> Iterator[Wrong]:
        """Yield what is kept of who has something unread, and is not so any more."""
        topics = store._topics
        for client_id, kept in topics._unread.items():
            wrong = out_of_date(store, client_id, kept)
            if wrong:
                yield f"unread {client_id}", f"of {client_id} is kept that {wrong}", AT_ONCE_S


def _is_copy(name: str) -> bool:
    return name.startswith((DOWNLOAD, COPY)) and name.endswith(".db")


def _agreed_by(
    comparison: StateComparison,
    told: Sequence[Mapping[int, str]],
    marks: Mapping[int, str],
    majority: int,
) -> int:
    """Return the first index behind the one known to be agreed that a majority agrees on, or 0."""
    indexes = {index for each in told for index in each if index > comparison.agreed}
    for index in sorted(indexes & marks.keys()):
        if 1 + sum(each.get(index) == marks[index] for each in told) >= majority:
            return index
    return 0


def out_of_date(store: Store, client_id: str, kept: Unread) -> str:
    """Return what a client's index says that its topics do not, "" if it is as if made anew.

    Of what was stirred, or lost, since its last look it need not know; nor of anything if it knows
    that rights have changed.
    """
    topics = store._topics
    own = topics.of(client_id)
    if kept._own is not own:
        return "its topics are others"
    who: Any = kept._who  # see `Store._unread`
    if who is ... or (who is not None and who[1] != store.users.changes):
        return ""
    unknown = kept.stirred.keys() | set(topics.lost_since(kept.losses))
    for name, topic in own.items():
        if name in unknown:
            continue
        if (name in kept.hidden) == (who is None or store.users.may(who[0], SUBSCRIBE, name)):
            return f"{name} is hidden: {name in kept.hidden}"
        if name in kept.hidden:
            continue
        cursor = topic.subscribers[client_id].cursor
        is_gone, is_queued = cursor < topic.floor_id, topic.floor_id <= cursor < topic.last_id
        if (name in kept._gone, name in kept._queued) != (is_gone, is_queued):
            return f"{name} at {cursor} has lost, unread: {name in kept._gone}, {is_queued}"
        if is_queued and kept._queued[name][0] != topic.subscribers[client_id].served:
            return f"{name} was served at {kept._queued[name][0]}"
    strangers = (kept._queued.keys() | kept._gone.keys()) - own.keys() - unknown
    return f"{sorted(strangers)} are its topics" if strangers else ""


def _of_groups(store: Store) -> Iterator[Wrong]:
    """Yield what groups have kept beside their leases, and would count otherwise."""
    groups = store.groups._groups.values()
    count = sum(len(group.open) for group in groups)
    if store.groups._open_count != count:
        text = f"{store.groups._open_count} are open in all groups, and there are {count}"
        yield "open", text, AT_ONCE_S
    for group in groups:
        wrong = miscounted(group)
        if wrong:
            what = f"group {group.name} of {group.topic.name}"
            yield what, f"{what}: {wrong}", AT_ONCE_S


def miscounted(group: SharedGroup) -> str:
    """Return which of a group's invariants does not hold, "" if all do."""
    leased = [id_ for id_, lease in group.open.items() if lease.client_id]
    held: dict[str, set[int]] = {}
    for id_ in leased:
        if id_ not in group.due:
            held.setdefault(group.open[id_].client_id, set()).add(id_)
    if group.leased != len(leased):
        return f"{group.leased} are leased, and there are {len(leased)}"
    if group.held != held:
        return f"clients have {group.held}, and it is {held}"
    if not group.due <= group.open.keys():
        return f"{sorted(group.due - group.open.keys())} are due, and not open"
    if not group.due <= set(group.due_heap):
        return f"{sorted(group.due - set(group.due_heap))} are due, and nobody finds them"
    if group.open and not group.cursor < min(group.open) <= max(group.open) <= group.head:
        return f"{sorted(group.open)} are open, between {group.cursor} and {group.head}"
    timed = sum(last + 1 - first for _, first, last in group.timers)
    if group.timed != timed:
        return f"{group.timed} have timers, and it is {timed}"
    order, timers = group.order, {(at_ms, first) for at_ms, first, _ in group.timers}
    runs = group.timers
    for id_, lease in group.open.items():
        if id_ in group.due or (order is not None and order.is_behind(id_)):
            continue
        if (lease.at_ms, id_) not in timers and not any(
            at_ms == lease.at_ms and first <= id_ <= last for at_ms, first, last in runs
        ):
            return f"{id_} has no timer for {lease.at_ms}"
    return ""
