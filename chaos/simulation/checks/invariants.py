"""What must hold in every run, checked while it happens and at its end.

What lives here: claims about the nodes (one leader a term, one entry an index, one state an index,
acknowledged means durable on a majority, nothing regresses) and about progress. What must not: the
claims about what clients were told (promises.py), causing anything: a run is the same without it.

A failure's `check` is one of the names in `CHECKS`, or of analytics.twins.TWINS.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from chaos.simulation.disks.durable import DurableLog
from chaos.simulation.plan.result import Failure
from chaos.simulation.world.builds import NEXT
from chaos.simulation.world.node import SimNode
from chaos.simulation.world.operator import most_are_falsified
from chaos.simulation.world.world import World
from cluster.members.membership import ADMIT_BYTES_MAX, ReplacedError
from cluster.node.member import Member
from cluster.store import commands
from cluster.store.commands import Admit, Advance, Operation, Put, Raise, Stamp
from cluster.wire.levels import LEVEL_FIRST
from cluster.wire.messages import Refusal
from flotilla_client.protocol import lane_of

CHECKS: Final[Mapping[str, str]] = {
    "leaders": "a term has one leader",
    "prefix": "every node applies the same entry at an index",
    "digest": "nodes that have applied as much have the same state",
    "applied": "within a process, term, commit and applied index only grow",
    "hard_state": "over a restart, nothing regresses that a turn has ended with",
    "admitted": "a readmitted node has the entry that admits it",
    "durable": "an acknowledged publication is on the disks of a majority",
    "vouched": "what a checkpoint vouches for is in the database that a power loss would leave",
    "cursor": "a subscriber's cursor moves over what it was delivered, and never back",
    "ended": "a process ends by itself only after a fault of its disk, or at too high a level",
    "level": "nothing newer is written than all members read, nor sent to who can't read it",
    "content": "what is acknowledged is what is delivered",
    "recorded": "what a client recorded can be judged: no row is malformed, none lacks anything",
    "properties": "what is handed over has the key, the headers and the time that it was given",
    "handed_over_twice": "an application is given again what it has not acknowledged, and told so",
    "forgotten": "only a silent client is forgotten; it is told so, and what may be lost",
    "skipped": "an application is given what comes next, and nothing is passed over",
    "travels": "who reads where he likes is given what the log has there, and told what is gone",
    "given_again": "what a worker has acknowledged is given to nobody again",
    "given_twice": "each attempt of a group's publication is given to one worker",
    "leases": "no longer lease is believed in than there is, nor a loss of what is done; loops end",
    "said": "a TAKE says what its worker said, and what was given back comes when that is over",
    "key_order": "ordered by key, a publication is given when all before it of its key are settled",
    "own_answer": "of several callers of a client each is told of its own publication",
    "call_order": "what several callers of a client publish is stored once, as they called",
    "kept": "what a client has stored before it asked is there in its next process",
    "fenced": "a process has no success once a later one of its client had",
    "stale_read": "an answer is no older than its request",
    "definite": "what is refused for certain stands in no log",
    "subscription": "a subscription stands, or not, as its client was told",
    "unexpected": "no client gets an error that only a defect explains",
    "doubled": "of two processes with one name the one that is heard keeps its place",
    "silent": "a member is replaced only when the leader has not heard from it for long, and did "
    "not sleep",
    "majority": "a member is replaced only while a majority without it holds the log",
    "evicted": "a process that was replaced ends, and no other one says that it was",
    "replaced": "who has the entry that replaces a member hears its old incarnation no more",
    "answered": "a reply answers a request that came by its way, once, as the log says",
    "asked": "an entry holds only what somebody asked for",
    "permission": "nobody does what the log does not permit; a relayed request names its principal",
    "vote": "who votes, or leads by votes, does so as Raft demands",
    "append": "who appends leads its term, and says nothing of its log but what is true",
    "commit": "what is called committed is durable on a majority, and proved to who follows",
    "acknowledged": "what is acknowledged was shown, is durable, and is the leader's",
    "barrier": "a read is served by who leads, as a majority has said since it came",
    "handover": "who is handed the leadership has all of the log; it was wished for in that term",
    "snapshot": "a copy is of what was applied",
    "torn": "what comes by a connection was sent on it, in that order, once",
    "books": "what nodes count adds up, and is zero without clients; what is dead is collected",
    "upkeep": "what is under way goes on, and what is kept is what would be made anew",
    "rebuilt": "every store is what its log makes of an empty one",
    "scrub": "what has gone bad on a disk is told within one pass over it, and nothing else",
    "waits": "who waits is a client, and is answered at once when there is something for it",
    "calm": "while nothing is broken nobody is elected, and no connection ends",
    "deadline": "an operation has, and a producer hears in, the time that its caller gives it",
    "limit": "no limit is passed",
    "progress": "after the last fault all come to the end; a lost piece is asked for again",
}
FAILURES_MAX: Final = 20  # one defect breaks many claims; the first few tell
DIGEST_PERIOD_S: Final = 1.0  # of virtual time: a digest reads the whole store
# What a fault of the disk may end a process with; a broken rule of Raft's is none of these.
OF_THE_DISK: Final = frozenset(
    {
        "CondemnedState",  # a bit of the store that no checksum covers
        "CorruptJournal",
        "CorruptStore",
        "DiskFailed",
        "IdentityError",
        "OSError",
        "OperationalError",
    }
)
OF_THE_STORE: Final = frozenset({"flip_store", "flip_row", "falsified"})
NEVER_S: Final = float("-inf")
HEARD_S_MAX: Final = 2.2  # a leader may take who fell silent so lately for one who holds the log
TAKEOVER_SHARE_MIN: Final = 0.45  # of the stated time, on a clock that may run at half the rate
REPLACING_S_MAX: Final = 5.0  # an admission that was proposed may be that long in a log, unapplied
WIPED_S_MAX: Final = 2.0  # an acknowledgment may be that long on its way
ADMIT_MARK: Final = b'["M",'  # in an entry that admits somebody


class NodeStanding(NamedTuple):
    """Where a node stood at the end of a turn. Everything in it is on its disk."""

    life: int
    term: int
    vote: str | None
    settled_index: int
    commit_index: int


class Invariants:
    """Watches the nodes of a world. `failures`: what was seen, the first of each kind."""

    def __init__(self, world: World) -> None:
        self.failures: list[Failure] = []
        self.majority = world.plan.nodes // 2 + 1
        self.puts: dict[tuple[str, str, int], tuple[int, int]] = {}  # -> index, term
        self.handed: dict[tuple[str, str], int] = {}  # (client_id, topic) -> highest delivered
        self.rovers: set[str] = set()  # clients by hand, that read where they like
        # Hear (index, term, its leader's stamp, operations) of each entry when it is first applied
        # anywhere, in order. The stamp of Raft's own is None.
        self.on_entry: list[Callable[[int, int, Stamp | None, Sequence[Operation]], None]] = []
        self.payloads: dict[int, tuple[int, bytes]] = {}  # index -> term, payload
        self._world = world
        self._leaders: dict[int, str] = {}
        self._entries: dict[int, tuple[int, int]] = {}  # index -> (term, checksum)
        self._cursors: dict[tuple[str, str], int] = {}  # (client_id, topic) -> furthest seen
        self._moved: list[tuple[str, str]] = []  # in the turn that is under way
        self._applying: list[tuple[int, int, int, bytes]] = []  # in the turn that is under way
        self._standing: dict[str, NodeStanding] = {}
        self._digests: dict[int, tuple[str, list[str]]] = {}  # index -> digest, nodes
        self._next_digest_s = 0.0
        self._level = self._raised = LEVEL_FIRST  # of what is applied; of what was ever appended
        self._raisings: list[tuple[int, int, int]] = []  # entries: index, term, level
        self._unread: set[tuple[str, int, str, int]] = set()  # see `_readable_by_all`
        self._proposed_s = NEVER_S  # when a leader has last proposed to replace a member
        self._dead_logs: dict[str, tuple[int, DurableLog]] = {}
        self._wiped: dict[str, tuple[float, DurableLog]] = {}
        world.observers.append(self._observe)
        world.watchers.append(self._turned)

    def fail(self, check: str, text: str) -> None:
        """Take note of a failure, unless the same was said before."""
        assert check in CHECKS, check
        told = any((seen.check, seen.text) == (check, text) for seen in self.failures)
        if not told and len(self.failures) < FAILURES_MAX:
            self.failures.append(Failure(check, text, self._world.now))

    def term_of(self, index: int) -> int | None:
        """Return the term of the entry at `index`, None if nobody was seen to apply it."""
        known = self._entries.get(index)
        return None if known is None else known[0]

    # --- turns ----------------------------------------------------------------------------------

    def _turned(self, node: SimNode) -> None:
        member = node.as_member
        if member is None:
            return
        if self._applying:
            self._take_applied(node.name)
        if self._moved:
            self._never_back(member)
        for observer, displaced in self._world.net.displaced:
            self.fail("doubled", f"{observer} has turned out {displaced}, which it hears")
        self._world.net.displaced.clear()
        for text in self._world.net.torn:
            self.fail("torn", text)
        self._world.net.torn.clear()
        if member.raft.is_leader:
            self._one_leader(node.name, member.raft.term)
        self._stand(node, member)
        if self._raisings:
            self._readable_by_all(node, member)
        if self._world.now - self._proposed_s < REPLACING_S_MAX:
            self._hears_who_is_replaced(node, member)
        self._sample_digest(node.name, member)

    def _one_leader(self, name: str, term: int) -> None:
        leader = self._leaders.setdefault(term, name)
        if leader != name:
            self.fail("leaders", f"{leader} and {name} lead term {term}")

    def _stand(self, node: SimNode, member: Member) -> None:
        raft, journal = member.raft, member.journal
        term, vote = journal.term, journal.vote
        values = (node.life, term, vote, raft.settled_index, raft.commit_index)
        before = self._standing.get(node.name)
        if before == values:
            return
        now = self._standing[node.name] = NodeStanding(*values)
        if before is None:
            return
        if before.life != now.life:
            self._same_log(node)
        self._hard_state(node.name, before, now)
        if before.life == now.life:
            if now.commit_index < before.commit_index or now.settled_index < before.settled_index:
                self.fail("applied", f"{node.name} went back from {before} to {now}")
        elif max(journal.last_index, member.store.applied_index) < before.settled_index:
            self.fail("hard_state", f"{node.name} had {before}, came back with {now}")

    def _same_log(self, node: SimNode) -> None:
        """Check what a new process has read: it has synced all of it.

        What is on the disk counts, with its damage, and not what had been promised: a process that
        goes on with another entry than the one that was written is what this looks for.
        """
        log = DurableLog.as_read(node.disk)
        for index, term in log.terms.items():
            entry = (term, log.checksums.get(index))
            known = self._entries.get(index, entry)
            if entry[1] is not None and known[0] == term and known != entry:
                self.fail("prefix", f"{node.name} has read another entry {index} of term {term}")
                return

    def _hard_state(self, name: str, before: NodeStanding, now: NodeStanding) -> None:
        forgets = now.term == before.term and before.vote not in (None, now.vote)
        if now.term < before.term or forgets:
            self.fail("hard_state", f"{name} had {before}, now it has {now}")

    def _sample_digest(self, name: str, member: Member) -> None:
        """Compare a node's state once a period, and whenever it stands where another was seen."""
        index = member.store.applied_index
        if self._world.now >= self._next_digest_s:
            for double in self._world.doubles.values():
                self._no_evicted_is_connected(double.member)
            self._next_digest_s = self._world.now + DIGEST_PERIOD_S
        elif index not in self._digests:
            return
        if name not in self._digests.get(index, ("", ()))[1]:
            self.compare_digest(name, member)

    def compare_digest(self, name: str, member: Member) -> None:
        """Compare a node's state with what others had at the same applied index.

        What is damaged is the product's to notice, where it reads it.
        """
        if not OF_THE_STORE.isdisjoint(self._world.machine(name).disk_faults):
            return
        index, digest = member.store.applied_index, member.store.digest()
        known, names = self._digests.setdefault(index, (digest, []))
        if known != digest:
            self.fail("digest", f"{name} and {names[0]} differ at applied index {index}")
        names.append(name)

    # --- events ---------------------------------------------------------------------------------

    def _observe(self, kind: str, fields: dict[str, Any]) -> None:
        handler = _EVENTS.get(kind)
        if handler is not None:
            handler(self, fields)

    def _applied(self, fields: Mapping[str, Any]) -> None:
        """Wait for the turn's end: a lone node applies before the sync, and answers after it."""
        applied = (fields["index"], fields["term"], fields["checksum"], fields["payload"])
        self._applying.append(applied)

    def _ended(self, fields: Mapping[str, Any]) -> None:
        """Of a turn that had no end only what was synced has happened."""
        if self._applying:
            log = DurableLog(self._world.machine(fields["node"]).disk)
            self._applying = [one for one in self._applying if log.holds(one[0], one[1])]
            self._take_applied(fields["node"])
            self._moved.clear()

    def _take_applied(self, name: str) -> None:
        applied, self._applying = self._applying, []
        for index, term, checksum, payload in applied:
            entry = (term, checksum)
            known = self._entries.get(index)
            if known is None:
                self._entries[index] = entry
                self._first_applied(index, term, payload)
            elif known != entry:
                text = f"{name} applies entry {index} of term {term}, others of {known[0]}"
                self.fail("prefix", text)

    def _first_applied(self, index: int, term: int, payload: bytes) -> None:
        stamp: Stamp | None = None
        operations: Sequence[Operation] = ()
        if payload:
            stamp, operations = commands.decode(payload, NEXT.level_max)
        self.payloads[index] = term, payload
        for hear in self.on_entry:
            hear(index, term, stamp, operations)
        if not payload:
            return
        self._in_order_of_levels(index, payload, operations)
        for operation in operations:
            if isinstance(operation, Put):
                lane = lane_of(operation.topic, operation.is_delayed)
                key = (operation.client_id, lane, operation.counter)
                self.puts.setdefault(key, (index, term))
            elif isinstance(operation, Advance):
                for topic, last_id in operation.cursors.items():
                    self._advanced(operation.client_id, topic, last_id)

    def _raising(self, fields: Mapping[str, Any]) -> None:
        """Look, in the leader's place and with the network's eyes, at who is there."""
        leader, level = fields["node"], fields["to"]
        self._raisings.append((fields["index"], fields["term"], level))
        self._raised = max(self._raised, level)
        for name in self._world.plan.members:
            hello = self._world.net.hello_of(leader, name)
            if name != leader and (hello is None or not hello.extension.build.understands(level)):
                self.fail("level", f"{leader} raises the level to {level} without {name}")

    def _readable_by_all(self, node: SimNode, member: Member) -> None:
        """Check that whom a node takes for a member can read all entries of its log.

        A follower that is given such an entry acts on it when its next turn begins: until then it
        sends its log to nobody.
        """
        journal = member.journal
        for index, term, level in self._raisings:
            if index <= member.store.applied_index or journal.term_at(index) != term:
                continue  # once it is applied the handshake sees to it
            if member._log_level() < level:
                text = f"{node.name} takes its log for one of level {member._log_level()}"
                self.fail("level", f"{text}, and has entry {index} of level {level}")
            for name in sorted(member.linked.names):
                hello = self._world.net.hello_of(node.name, name)
                if hello is not None and not hello.extension.build.understands(level):
                    known = (node.name, node.life, name, index)
                    if not member.raft.is_leader and known not in self._unread:
                        self._unread.add(known)
                        continue
                    text = f"{node.name} takes {name} for a member, which can't read entry {index}"
                    self.fail("level", text)

    def _hears_who_is_replaced(self, node: SimNode, member: Member) -> None:
        """Check whom a node hears that has, and has not applied, an entry which admits another."""
        if node.disk_faults:  # to read what is damaged would end the node, and only its reads may
            return
        newest = {}
        small = member.journal.small_entries(member.store.applied_index, ADMIT_BYTES_MAX)
        for index, command in small:
            if ADMIT_MARK not in command:  # as nearly all: each turn looks at the same entries
                continue
            for operation in commands.decode(command[1:], NEXT.level_max)[1]:
                if isinstance(operation, Admit):
                    newest[operation.node] = index, operation.incarnation
        for name, (index, incarnation) in newest.items():
            hello = self._world.net.hello_of(node.name, name)
            if name not in member.linked.names or hello is None or hello.incarnation == incarnation:
                continue
            if hello.admitted_index <= index:
                text = f"{node.name} hears {name} as {hello.incarnation}, and has entry {index}"
                self.fail("replaced", f"{text}, which admits {incarnation}")

    def _in_order_of_levels(
        self, index: int, payload: bytes, operations: Sequence[Operation]
    ) -> None:
        raised = [each.level for each in operations if isinstance(each, Raise)]
        level = max([self._level, *raised])
        if commands.level_of(payload) > level:
            needs = commands.level_of(payload)
            self.fail("level", f"entry {index} needs level {needs}, the cluster is at {level}")
        self._level = level

    def _advanced(self, client_id: str, topic: str, last_id: int) -> None:
        if client_id in self.rovers:
            return
        self._moved.append((client_id, topic))
        delivered = self.handed.get((client_id, topic), 0)
        if last_id > delivered:
            text = f"{client_id} acknowledges {topic} up to {last_id}, it has {delivered}"
            self.fail("cursor", text)

    def _never_back(self, member: Member) -> None:
        """Look at the cursors that were moved, at the node that has come furthest."""
        for owner in self._moved:
            cursor, before = member.store.cursor(*owner), self._cursors.get(owner, 0)
            if cursor is not None and cursor < before:
                self.fail("cursor", f"{owner} went back from {before} to {cursor}")
            self._cursors[owner] = max(before, cursor or 0)
        self._moved.clear()

    def _node_failed(self, fields: Mapping[str, Any]) -> None:
        if fields["error"] == "UnsupportedLevel" and fields["level_max"] < self._raised:
            return  # that is what such a program is to do
        if fields["error"] == ReplacedError.__name__:
            self._replaced(self._world.machine(fields["node"]))
        elif fields["error"] == "CondemnedState" and most_are_falsified(self._world):
            return
        elif not fields["disk_faults"] or fields["error"] not in OF_THE_DISK:
            text = f"{fields['node']} ended: {fields['error']}: {fields['reason']}"
            self.fail("ended", text)

    def _replaced(self, node: SimNode) -> None:
        """Check that who ends because another one has its name was replaced."""
        identity, standing = node.identity(), self._newest_members()
        assert identity is not None, node.name
        if standing and standing[node.member] == identity.incarnation:
            self.fail("evicted", f"{node.name} ended as evicted, and is a member")

    def _refused(self, fields: Mapping[str, Any]) -> None:
        """Check that who is told that it was replaced was."""
        node = self._world.machine(fields["node"])
        if fields["refusal"] != Refusal.EVICTED or node.as_member is None:
            return
        if self._newest_members()[node.member] == node.as_member.identity.incarnation:
            text = f"{fields['name']} tells {node.name} that it was evicted, and is a member"
            self.fail("evicted", text)

    def _newest_members(self) -> Mapping[str, str]:
        """Return the members as the machine knows them that has applied most."""
        members = [each.as_member for each in self._world.machines() if each.as_member is not None]
        newest = max(members, key=lambda each: each.store.applied_index, default=None)
        return {} if newest is None else newest.store.members

    def _admitting(self, fields: Mapping[str, Any]) -> None:
        """Check that a leader proposes to replace one who is silent, and can spare it."""
        leader, name, replaced = fields["node"], fields["about"], fields["replaced"]
        self._proposed_s = self._world.now
        now, arrivals = self._world.now, self._world.net.arrivals
        ago_s = now - arrivals.get((leader, name, replaced), NEVER_S)
        # The leader's clock may run at twice the world's rate.
        if ago_s < TAKEOVER_SHARE_MIN * self._world.knob("takeover_s"):
            self.fail("silent", f"{leader} replaces {name}, which it heard {ago_s:.2f} s ago")
        lately = {
            member for (who, member, _), at in arrivals.items()
            if who == leader and now - at < HEARD_S_MAX
        }  # fmt: skip
        holders = {
            member
            for member in self._world.nodes
            if member in lately or any(map(_takes_part, self._world.machines_of(member)))
        } - {name}
        if len(holders) < self.majority:
            text = f"{leader} replaces {name}, and only {sorted(holders)} may hold the log"
            self.fail("majority", text)

    def _no_evicted_is_connected(self, member: str) -> None:
        """Check that who knows that a process was replaced has no connection with it.

        As with a member: of a newcomer it need not have heard yet that it has started.
        """
        for node in filter(_is_started, self._world.machines_of(member)):
            for other in filter(_is_started, self._world.nodes.values()):
                assert node.as_member is not None, node.name
                assert other.as_member is not None, other.name
                own, store = node.as_member.identity, other.as_member.store
                replaced = store.members[member] != own.incarnation
                if other.name == member or not replaced or own.admitted_index > store.applied_index:
                    continue
                hello = self._world.net.hello_of(other.name, member)
                is_fresh = hello is not None and hello.fresh
                if self._world.net.connected(node.name, other.name) and not is_fresh:
                    self.fail(
                        "evicted", f"{other.name} is connected with {node.name}, as if a member"
                    )

    def _not_evicted(self, fields: Mapping[str, Any]) -> None:
        self.fail("evicted", f"{fields['node']} goes on, though its double is the member")

    def _moved_in(self, fields: Mapping[str, Any]) -> None:
        """Go on with the member's own machine: it has the disk of its double's."""
        standing = self._standing.get(fields["double"])
        self._double_gone({"node": fields["double"]})
        self._double_gone(fields)
        if standing is not None:
            self._standing[fields["node"]] = standing

    def _double_gone(self, fields: Mapping[str, Any]) -> None:
        """Forget a machine: one of that name that comes later is another."""
        self._standing.pop(fields["node"], None)
        self._dead_logs.pop(fields["node"], None)

    def _emptied(self, fields: Mapping[str, Any]) -> None:
        """What a disk held counts for acknowledgments that are on their way when it is lost."""
        name = fields["node"]
        self._wiped[name] = (self._world.now, DurableLog(self._world.nodes[name].disk))
        self._standing.pop(name, None)

    # --- what is durable ------------------------------------------------------------------------

    def acknowledged(self, client_id: str, topic: str, counter: int) -> None:
        """Check a publication whose acknowledgment has just arrived at its client."""
        place = self.puts.get((client_id, topic, counter))
        what = f"{topic} {counter} of {client_id}"
        if place is None:
            self.fail("durable", f"{what} was acknowledged and is applied nowhere")
            return
        members = [self._world.machines_of(name) for name in self._world.nodes]
        if (
            sum(any(_has_synced(node, *place) for node in each) for each in members)
            >= self.majority
        ):
            return  # as nearly always; who reads the disks finds the same
        holds = [
            (each[0].name, any(self._holds(node, *place) for node in each)) for each in members
        ]
        holders = [name for name, held in holds if held]
        if len(holders) < self.majority:
            text = f"{what} (entry {place[0]}) was acknowledged, only {holders} have it on disk"
            self.fail("durable", text)

    def _holds(self, node: SimNode, index: int, term: int) -> bool:
        return (
            _has_synced(node, index, term)
            or self._log_of(node).holds(index, term)
            or self._held(node.name, index, term)
        )

    def _log_of(self, node: SimNode) -> DurableLog:
        if node.up:
            return DurableLog(node.disk)
        life, log = self._dead_logs.get(node.name, (-1, None))
        if log is None or life != node.life:
            log = DurableLog(node.disk)
            self._dead_logs[node.name] = (node.life, log)
        return log

    def _held(self, name: str, index: int, term: int) -> bool:
        at_s, log = self._wiped.get(name, (-WIPED_S_MAX, None))
        return log is not None and self._world.now - at_s < WIPED_S_MAX and log.holds(index, term)

    # --- the end --------------------------------------------------------------------------------

    def finish(self) -> None:
        """Compare the states of all nodes that have come equally far."""
        for name, node in self._world.nodes.items():
            if node.as_member is not None:
                self.compare_digest(name, node.as_member)

    def standings(self) -> list[str]:
        """Return a line on each node, for who wants to know why nothing goes on."""
        return [_standing(node) for node in self._world.machines()]


def _has_synced(node: SimNode, index: int, term: int) -> bool:
    """Return whether a running node's journal has the entry behind its last sync."""
    member = node.as_member
    if member is None:
        return False
    journal = member.journal
    return index < journal.first_index or (
        index <= node.durable_index and journal.term_at(index) == term
    )


def _takes_part(node: SimNode) -> bool:
    return _is_started(node) and not node.paused


def _is_started(node: SimNode) -> bool:
    return node.as_member is not None


def _standing(node: SimNode) -> str:
    member = node.as_member
    if not node.up:
        return f"{node.name} is down"
    state = "paused" if node.paused else "up"
    if member is None:
        return f"{node.name} is {state} and no member"
    raft, journal = member.raft, member.journal
    return (
        f"{node.name} is {state}, {raft.role} of {raft.leader!r} in {raft.term}: "
        f"{journal.first_index} to {journal.last_index}, {raft.applied_index} applied"
    )


_EVENTS: Final = {
    "apply": Invariants._applied,
    "raising": Invariants._raising,
    "node_failed": Invariants._node_failed,
    "peer_refusedby": Invariants._refused,
    "emptied": Invariants._emptied,
    "admitting": Invariants._admitting,
    "not_evicted": Invariants._not_evicted,
    "moved_in": Invariants._moved_in,
    "double_gone": Invariants._double_gone,
    "ended": Invariants._ended,
}
