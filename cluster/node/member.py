"""A member of the cluster: Raft, log, store and broker, and what they do in a turn.

What lives here: whatever only a member can do, and the order of a turn from its entry on (`drive`).
What must not: that of the turn before it (replica.py), sockets, threads, clocks and randomness, how
a node becomes a member (joining.py).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from cluster.log.entries import FIRST_INDEX, LEVEL, Entry, payload_of
from cluster.log.journal import Journal
from cluster.members.catchup import SnapshotServer
from cluster.members.identity import CondemnedState, Identity, WrongMembers, mark_condemned
from cluster.members.membership import (
    ADMIT_BYTES_MAX,
    UNNAMED,
    PendingAdmissions,
    PendingRaises,
    Roll,
    check_not_replaced,
    hello_of,
    named_members,
    obstacle,
    to_admit,
    waited_for,
)
from cluster.members.neighbours import NEVER_S
from cluster.members.peers import Disconnected, Event, RefusedBy, Unfit
from cluster.members.standing import Verdicts
from cluster.node import budget
from cluster.node.audit import Differs, StateComparison
from cluster.node.budget import Budget
from cluster.node.context import WRITES_OF_A_PUT, DiskRoom, NodeContext
from cluster.node.linked import Linked
from cluster.node.reaper import HEARD_PER_ENTRY_MAX, Reaper
from cluster.node.scrub import Scrub
from cluster.raft.raft import Raft
from cluster.raft.ready import NOTHING, Ready, SoftState
from cluster.serve.broker import Broker, Waiting
from cluster.serve.frontend import MemberServices
from cluster.store import commands, snapshots
from cluster.store.commands import Admit, Operation, Raise, Stamp
from cluster.store.store import Done, Outcome, Store
from cluster.wire.levels import (
    LEVEL_OF_PROPERTIES,
    Build,
    UnsupportedLevel,
    level_to_reach,
    objections,
)
from cluster.wire.messages import (
    Health,
    Hello,
    Message,
    Refusal,
    SnapshotRefused,
    SnapshotRequest,
)
from flotilla_client.protocol import ProtocolError

WAITING_PERIOD_S: Final = 10.0  # a recovered node says that often which members it waits for
ADMIT_PERIOD_S: Final = 0.5
HOLDER_SILENCE_S: Final = 1.0  # a member that was heard so lately can take part in a commit
HELD_PERIOD_S: Final = 10.0  # one line about each full topic in this time
HELD_TOPICS_TOLD_MAX: Final = 10  # in this time; each is looked through for who holds it
HOLDERS_TOLD_MAX: Final = 5
FORGOTTEN_TOPICS_TOLD_MAX: Final = 20
GARBAGE_ROWS_PER_STEP: Final = 64  # about a millisecond of deletes
# What is applied is committed that often: a commit costs as much as some PUTs, whatever is in it.
# What is not, a killed process applies again from its journal.
COMMIT_PERIOD_S: Final = 0.02
COMMIT_ENTRIES_MAX: Final = 256  # or then: a commit takes about a millisecond


@dataclass(slots=True)
class Handover:
    """A leader's wish that `name` leads, until `until_s`. `was_asked`: it was told."""

    name: str
    until_s: float
    was_asked: bool = False


def check_level(copy: snapshots.Verified, build: Build) -> None:
    """Raise UnsupportedLevel for a copy of a store of a level that the build does not know."""
    if not build.understands(copy.level):
        raise UnsupportedLevel("a member's copy of its store is of", copy.level, build)


class Member:
    """A node that has Raft, a store, and serves.

    `identity` is the data directory's, in which journal and store are; `founding`: the founding
    incarnations, with which the store is made if there is none. Raises WrongMembers,
    UnsupportedLevel, CorruptStore, JournalError, OSError.
    """

    def __init__(
        self, context: NodeContext, identity: Identity, now: float, founding: Mapping[str, str]
    ) -> None:
        self.settings = settings = context.settings
        self.identity = identity
        self._context, self._now = context, now
        self._frontend, self._neighbours = context.frontend, context.neighbours
        self._pending = PendingAdmissions(settings.build.level_max)
        self._raises = PendingRaises()
        self._verdicts = Verdicts(settings.build)
        self._obstacles: dict[str, str] = {}
        self._next_admit_s = self._next_waiting_s = now
        self._standing = self._soft_state = SoftState("", 0, "")  # as it was noticed, as it is
        self._before_sync: list[tuple[str, Message]] = []
        self._after_sync: list[tuple[str, Message]] = []
        self._led_term: int | None = None
        # Of a leader's own entries, (term, what each was made of): what is applied need not be
        # decoded. It holds what waits for a majority, whose PUTs are at most PUT_BYTES_MAX.
        self._own: dict[int, tuple[int, tuple[Stamp, Sequence[Operation]]]] = {}
        self._stamp = Stamp(0)  # of what was proposed last
        self._handover: Handover | None = None
        self.checkpointed_index = 0  # up to there a checkpoint has made the store durable
        self._more_answers = False
        self._commit_due_s = now
        self._is_behind = False  # the last turn had no time to apply all that was due
        self._next_held_s = now
        self._full_topics = 0  # of which PUTs were refused in the last HELD_PERIOD_S
        self._comparison = StateComparison()
        self.reaper = Reaper(settings.broker_limits.client_idle_ms, context.log)
        heartbeat_s = settings.timing.heartbeat_s
        self._applying = Budget(context.clock, budget.APPLY_SHARE * heartbeat_s)
        self._serving = Budget(context.clock, budget.ANSWERS_SHARE * heartbeat_s)
        self._chores = Budget(context.clock, budget.CHORES_SHARE * heartbeat_s)
        # Before the log: its level tells whether this build can read that.
        self.store = Store.open(settings.database, founding, build=settings.build)
        self._check_members()
        self.journal = Journal.open(
            settings.journal_dir,
            settings.segment_bytes,
            settings.keep_bytes,
            files=settings.files,
            on_failure=settings.on_journal_failure,
        )
        self._read_tail()
        # Every log begins with this entry, which pysyncobj takes for applied. Not only on founding:
        # a power loss before the first checkpoint puts a store back to how it was made.
        self.store.apply(FIRST_INDEX, 0, b"")
        self.journal.advance(self.store.applied_index)
        for index, command in self.journal.small_entries(self.store.applied_index, ADMIT_BYTES_MAX):
            self._pending.note(index, command)
        self.scrub = Scrub(
            settings.scrub,
            settings.database,
            self.journal,
            settings.files,
            context.worker,
            settings.wall_ms,
            context.log,
        )
        self._server = SnapshotServer(
            settings.database,
            settings.database.parent,
            context.worker,
            context.peers.send,
            context.log,
        )
        self.broker = Broker(
            self.store,
            settings.broker_limits,
            context.new_client_id,
            self._frontend.room_bytes,
            level_for=self._level_for,
            successor=self._successor,
            wall_ms=settings.wall_ms,
            term=lambda: self.raft.term,
            admins=settings.admins,
            payers=self._frontend.payers,
            quotas=settings.quotas,
            refused=self._frontend.refusals.note,
            traced=settings.traced,
        )
        self.raft = Raft(
            settings.name,
            settings.others,
            self.journal,
            (self.store.applied_index, self.store.applied_term),
            settings.timing,
            self._entries_level_max,
            context.rng,
            now,
        )
        self.linked = Linked(context, self.raft, self._admission, self._log_level, now)
        self._frontend.serve_as(
            MemberServices(
                self.raft,
                self.broker,
                self.journal,
                settings.uncommitted_entries_max,
                self.linked.names,
                lambda: self.linked.sightings(self._now),
            )
        )
        self._take_ready(self.raft.step(now))
        self._list_changed()

    def _check_members(self) -> None:
        settings, members = self.settings, sorted(self.store.members)
        if members != sorted(settings.members):
            raise WrongMembers(
                f"{settings.data_dir} belongs to a cluster of {', '.join(members)}, configured"
                f" are {', '.join(settings.members)}. A cluster's members are fixed: to have"
                " others, make a new cluster of it with `flotilla-node recover --members`"
            )

    def _read_tail(self) -> None:
        """Look at the entries that are not applied; refuse to start with one that can't be read."""
        journal, build = self.journal, self.settings.build
        index = max(self.store.applied_index + 1, journal.first_index)
        while index <= journal.last_index:
            entries = journal.entries(index, journal.last_index)  # no more than a slice
            for entry in entries:
                command, index, _ = entry
                if (level := commands.level_of(command[LEVEL])) > build.level_max:
                    what = f"entry {index} of this node's log needs"
                    raise UnsupportedLevel(what, level, build)
                self._note_level(entry)
            index += 1

    def close(self) -> None:
        """Close the files of a node that stops in order."""
        self.store.commit()
        self.store.close()
        self.journal.close()

    def hello(self) -> Hello:
        """Return what this node says of itself to its peers."""
        settings = self.settings
        return hello_of(self.identity, settings.members, settings.build, self.store.level)

    def describe(self) -> dict[str, Any]:
        """Return what the status says beside Raft's part."""
        own: dict[str, Any] = {
            "incarnation": self.identity.incarnation,
            "full_topics": self._full_topics,
            "checkpointed_index": self.checkpointed_index,
            "clients_silent": self.reaper.warned if self.raft.is_leader else 0,
            **self.scrub.describe(),
        }
        if missing := waited_for(self.store.members, self._context.hellos()):
            own["waiting_for"] = [
                f"{name}: {reason}; a recovered cluster begins with empty members"
                for name, reason in missing.items()
            ]
        return own | self._neighbours.describe(self._now)

    # --- a turn, in this order ------------------------------------------------------------------

    def begin_turn(self, now: float, events: Collection[Event]) -> Member:
        """Take the time, and what has happened to the connections; the member stays one."""
        self._now = now
        self.broker.end_rests(now)
        for event in events:
            self.linked.look_again()  # one that ended and began again says the same as before
            if isinstance(event, (Unfit, RefusedBy)):
                # Of who is no member it is only logged.
                if self._is_admitted(event.name, event.incarnation):
                    self._verdicts.take(event, now)
            elif isinstance(event, Disconnected):
                self.linked.unlink(event.name, now)
        has_majority = self.linked.has_majority
        self._verdicts.heed(has_majority, now)
        is_refused = bool(self._neighbours.refused_as(Refusal.DOUBLED, now))
        if self._context.seniority.yields(is_refused, has_majority, now):
            for name in self.settings.others:  # its places belong to the other process
                self._context.peers.part(name, "another process of this node's name lives")
        self._refresh_links()
        if UNNAMED in self.store.members.values():
            self._name_members()
        return self

    def take_message(self, name: str, message: Message) -> None:
        """Take a peer's message to Raft, or its wish for a copy of the store."""
        if isinstance(message, SnapshotRequest):
            self._take_snapshot_request(name, message)
        elif name in self.linked.names:
            # One by one: what an entry says of members holds for the message behind it.
            self._take_ready(self.raft.step(self._now, ((name, message),)))

    def watch_leadership(self) -> None:
        """Notice a change of role or term: waiting clients are answered, operators are told."""
        standing, raft = self._soft_state, self.raft
        if standing == self._standing:
            return
        before, self._standing = self._standing, standing
        if self._led_term is not None and (not raft.is_leader or raft.term != self._led_term):
            own_name = self.settings.name
            self.broker.abdicate("" if raft.leader == own_name else raft.leader)
            self._own.clear()
            self._advise({})
            self._led_term = self._handover = None
        if raft.is_leader:
            if self._led_term is None:
                self._neighbours.count_silence_from(self._now)  # it may have heard nobody before
            self._led_term = raft.term
        if before.leader and before.leader != standing.leader:
            self._frontend.abandon_relays(before.leader)
        self._context.log(
            "role",
            role=raft.role,
            term=raft.term,
            leader=raft.leader,
            reason=_reason_of_change(before, standing),
        )

    def drive(self, may_answer: bool) -> None:
        """Propose; send what may leave, make all durable, send the rest; then apply and answer.

        What others wait for comes first: a follower's acknowledgment does not wait until it has
        applied what was committed before, nor a leader's entries for what it has to answer.
        """
        raft, peers = self.raft, self._context.peers
        entries: list[tuple[list[Operation], list[Waiting]]] = []
        if raft.serving and not self._hand_over():
            if not self._frontend.stopping:  # who is handed the lead has to have all of the log
                self._propose_admissions()
                self._see_to_silent_clients()
            entries = list(self.broker.take_entries())
        ready = self._propose([operations for operations, _ in entries], tick=True)
        for (_, authors), (_, index, term) in zip(entries, ready.entries, strict=False):
            self.broker.submitted(index, term, authors)
        if self._before_sync:
            # Rule 7's one sound relaxation: an acknowledgment of these can't be taken before the
            # sync below has returned, because it comes in a later turn.
            self._send_all(self._before_sync)
            peers.flush(None)
        self.journal.sync()
        if self._after_sync:
            self._send_all(self._after_sync)
            peers.flush(None)
        if ready.committed:
            self._apply_committed(ready.committed)
        self.watch_leadership()
        if may_answer and raft.serving:
            self._more_answers = self._answer()

    def finish_turn(self) -> None:
        """Do what nobody waits for: collect garbage, commit what is applied, when it is due."""
        self._server.tick(self._now)
        store, fetch = self.store, self._context.fetch
        if fetch.ready is not None and fetch.ready.index <= store.applied_index:
            fetch.discard_ready()  # the log was quicker: perhaps nobody offers one any more
        is_due = self._now >= self._commit_due_s or store.uncommitted >= COMMIT_ENTRIES_MAX
        if is_due and self._collect_garbage():
            self._commit_due_s = self._now + COMMIT_PERIOD_S
        store.settle(is_due)
        self._tell_of_full_topics()

    @property
    def _may_rest(self) -> bool:
        """Whether what is committed may wait, where nobody waits for its outcome: on a follower.

        It applies what has come between two commits of its store at a stroke, which takes a
        fraction of what it takes to apply each entry by itself, between other things.
        """
        resting = self.raft.commit_index - self.raft.applied_index
        is_early = self._now < self._commit_due_s and resting < COMMIT_ENTRIES_MAX
        return is_early and not self._is_behind

    def _collect_garbage(self) -> bool:
        """Collect until there is none, or no time for it; return whether there is none."""
        self._chores.begin()
        while self.store.collect_garbage(GARBAGE_ROWS_PER_STEP):
            if self._chores.spent():
                return False
        return True

    def tell_health(self, disk_low: bool) -> None:
        """Tell the peers how this node is."""
        for name in self.settings.others:
            self._context.peers.send(name, Health(self.raft.applied_index, disk_low))

    def note_room(self, room: DiskRoom) -> None:
        """Have the broker take what this node, and a majority, has room for."""
        health = self._neighbours.health
        low = room.is_low + sum(health[name].disk_low for name in health)
        is_low = room.is_low or low * 2 > len(self.settings.members)
        self.broker.note_room(is_low, room.spare_bytes // WRITES_OF_A_PUT)

    @property
    def busy(self) -> bool:
        """True when a turn is due at once, whether or not anything comes in."""
        raft = self.raft
        if raft.serving and self._handover is None and self.broker.has_operations:
            return True  # what was decided while others were answered
        if self._more_answers and raft.serving and self.broker.has_more(self._now * 1000):
            return True  # unless all who wait have had their share, and rest
        if raft.applied_index < raft.commit_index and (raft.is_leader or not self._may_rest):
            return True
        return not self.settings.others and raft.is_leader and raft.uncommitted_entries > 0

    def may_stop(self) -> bool:
        """Return True when nobody waits and, if possible, another node leads.

        Each call on an idle leader offers leadership.
        """
        raft = self.raft
        if not raft.is_leader:
            return self._frontend.is_idle()
        if self.broker.is_idle() and raft.uncommitted_entries == 0:
            if not self.linked.names:
                return True
            raft.transfer_leadership()
        return False

    # --- handing over (an administrator's transfer-leader) --------------------------------------

    def _successor(self, asked: str) -> str:
        """Return who may lead next: who is asked for, or the member that has most of the log.

        Raises ProtocolError: bad_request, not_ready.
        """
        settings, raft = self.settings, self.raft
        if asked == settings.name:
            return asked  # it leads already
        if asked and asked not in settings.others:
            members = ", ".join(settings.members)
            raise ProtocolError("bad_request", f"{asked!r} is no member; there are {members}")
        able = [name for name in sorted(self.linked.names) if self._holds_log(name)]
        if asked and asked not in able:
            what = "has not caught up yet" if asked in self.linked.names else "is not connected"
            raise ProtocolError("not_ready", f"{asked} {what}: {settings.name} goes on leading")
        if not able:
            message = f"no other member is connected and has caught up: {settings.name} goes on"
            raise ProtocolError("not_ready", message)
        return asked or max(able, key=raft.match_index)

    def _begin_handover(self, name: str, index: int, term: int) -> None:
        """Hand over if the entry asks for it and this leader has made it.

        Another leader's wish is fulfilled: it leads no more. So is one of a log that is read again.
        """
        if name in self.settings.others and self._made_of(index, term) and self.raft.is_leader:
            patience_s = self.settings.timing.election_max_s
            self._handover = Handover(name, self._now + patience_s)

    def _hand_over(self) -> bool:
        """Take a handover that is under way a step on; return whether one is.

        Nothing is proposed meanwhile, so that the successor has all of the log: what clients ask
        waits, for an election time-out at most (Ongaro's thesis, 3.10).
        """
        handover, raft = self._handover, self.raft
        if handover is None:
            return False
        if self._now >= handover.until_s:
            self._handover = None
            reason = "it did not take over in time; this node goes on leading"
            self._context.log("handover_failed", level="warning", to=handover.name, reason=reason)
            return False
        if not handover.was_asked and raft.uncommitted_entries == 0:
            handover.was_asked = raft.transfer_leadership(handover.name)
        return True

    # --- what Raft says -----------------------------------------------------------------------

    def _propose(self, entries: Sequence[Sequence[Operation]], *, tick: bool) -> Ready:
        """Append an entry of each of these operations, as the leader: the only way into the log."""
        if entries:
            wall_ms = self.settings.wall_ms() if self.store.level >= LEVEL_OF_PROPERTIES else 0
            self._stamp = Stamp(int(self._now * 1000), wall_ms)
        payloads = [self._encode(operations) for operations in entries]
        for payload, operations in zip(payloads, entries, strict=True):
            level = commands.level_of(payload)
            assert level <= self.store.level or self._raises_to(level, operations), (
                f"an entry of level {level} in a cluster of level {self.store.level}"
            )
        ready = self.raft.step(self._now, (), payloads, tick=tick, may_rest=self._may_rest)
        for operations, (_, index, term) in zip(entries, ready.entries, strict=False):
            self._own[index] = term, (self._stamp, operations)
        self._take_ready(ready)
        return ready

    def _encode(self, operations: Sequence[Operation]) -> bytes:
        stamp = self._stamp
        return commands.encode(stamp.ms, operations, stamp.wall_ms)

    def _made_of(self, index: int, term: int) -> tuple[Stamp, Sequence[Operation]] | None:
        """Return stamp and operations of an entry that this node has made, else None."""
        own_term, made_of = self._own.get(index, (0, (Stamp(0), ())))
        return made_of if own_term == term else None

    def _take_ready(self, ready: Ready) -> None:
        """Write down what a step says, and act on what its entries say of members and levels.

        Nothing of it is durable yet; what is committed is the caller's to apply.
        """
        if ready is NOTHING:
            return
        journal, raft = self.journal, self.raft
        if ready.reset is not None:
            journal.reset(*ready.reset)
        if ready.hard_state is not None:
            journal.set_term(*ready.hard_state)
        for entry in ready.entries:
            journal.add(*entry)
        journal.note_commit(raft.commit_index)
        self._before_sync += ready.before_sync
        self._after_sync += ready.after_sync
        if ready.soft_state is not None:
            self._soft_state = ready.soft_state
        if ready.refused is not None:
            self._report_refused(ready.refused)
        if ready.entries:
            for entry in ready.entries:
                if self._note_level(entry):
                    self.linked.look_again()
            # All of them: each may take the place of another.
            noted = [
                self._pending.note(index, command, self._made_of(index, term))
                for command, index, term in ready.entries
            ]
            if any(noted):
                self._list_changed()
        if ready.offer and self._install(ready.offer):
            raft.restore(ready.offer, self.store.applied_index, self.store.applied_term)
            self._take_ready(raft.step(self._now))
            self._list_changed()

    def _install(self, leader: str) -> bool:
        """Replace the store by a finished copy, or begin to pull one from the leader."""
        context, fetch = self._context, self._context.fetch
        copy = fetch.ready
        if copy is None or copy.index <= self.store.applied_index:
            fetch.discard_ready()
            fetch.start(leader, self._now)
            return False
        if not context.worker.idle:
            # A job may have the database open: SQLite, closing it, would remove the new one's WAL.
            return False
        fetch.forget_ready()
        database, build = context.settings.database, context.settings.build
        check_level(copy, build)
        level_before = self.store.level
        self.store.close()
        snapshots.install(copy.path, database)
        self.store = Store.open(database, {}, build=build)
        self.broker.replace_store(self.store)
        if self.store.level != level_before:
            self._level_changed()
        check_not_replaced(self.identity, self.store.members)
        self.journal.advance(self.store.applied_index)
        self._pending.applied(self.store.applied_index)
        self._server.members_changed(copy.index)
        context.log("snapshot_installed", index=copy.index, term=copy.term)
        return True

    @property
    def awaits_worker(self) -> bool:
        """Whether a copy of the store is to be installed, for which no job may be under way."""
        return self._context.fetch.ready is not None

    def _apply_committed(self, entries: Sequence[Entry]) -> None:
        """Apply one entry at least, then more until the turn's time for it is over."""
        self._applying.begin()
        for entry in entries:
            _, index, term = entry
            self._apply(index, term, payload_of(entry))
            self.raft.advance(index)
            if self._applying.spent():
                break
        self._is_behind = self.raft.applied_index < self.raft.commit_index

    def _apply(self, index: int, term: int, payload: bytes) -> None:
        members_before, level_before = self.store.members, self.store.level
        users_before, forgotten_before = self.store.users.changes, self.store.idle.forgotten
        outcomes = self.store.apply(index, term, payload, self._made_of(index, term))
        if name := self.store.take_successor():
            self._begin_handover(name, index, term)
        self._own.pop(index, None)
        self._pending.applied(index)
        self.journal.advance(index)
        self.broker.applied(index, term, outcomes)
        if self.store.users.changes != users_before:
            self.broker.users_changed()
        if self.store.idle.forgotten != forgotten_before:
            self._clients_forgotten(index, outcomes)
        if self.store.members is not members_before:
            self._members_changed()
        if self.store.level != level_before:
            self._level_changed()

    def _clients_forgotten(self, index: int, outcomes: list[Outcome]) -> None:
        for outcome in outcomes:
            if isinstance(outcome, Done) and (gone := outcome.body.get("forgotten")):
                topics = outcome.body["left"]
                self.broker.forgotten(gone, topics)
                self._context.log(
                    "clients_forgotten",
                    level="warning",
                    index=index,
                    clients=gone,
                    topics=topics[:FORGOTTEN_TOPICS_TOLD_MAX],
                )

    def _answer(self) -> bool:
        """Answer who waits for more than an entry; True if there was not the time for all."""
        broker, raft, now_ms = self.broker, self.raft, self._now * 1000
        if not broker.may_serve(now_ms):
            return False
        self._serving.begin()
        reached = raft.barrier_passed(), raft.applied_index
        return broker.serve(*reached, now_ms, self._serving.spent) and broker.may_serve(now_ms)

    def _send_all(self, queue: list[tuple[str, Message]]) -> None:
        for name, message in queue:
            self._context.peers.send(name, message)
        queue.clear()

    def _see_to_silent_clients(self) -> None:
        def heard() -> list[str]:
            return self.broker.take_heard(HEARD_PER_ENTRY_MAX)

        for operation in self.reaper.operations(self.store, heard, self.raft.term, self._now):
            self._propose([[operation]], tick=False)

    def _tell_of_full_topics(self) -> None:
        """Log for whose sake PUTs were refused: a subscriber that does not read holds a topic."""
        if self._now < self._next_held_s:
            return
        self._next_held_s = self._now + HELD_PERIOD_S
        held = sorted(self.broker.take_held().items(), key=lambda each: -each[1])
        self._full_topics = len(held)
        for topic, refused in held[:HELD_TOPICS_TOLD_MAX]:
            self._context.log(
                "backlog_full",
                level="warning",
                topic=topic,
                refused=refused,
                held_by=self.store.holders(topic, HOLDERS_TOLD_MAX),
                bytes=self.store.backlog_bytes(topic),
            )

    # --- what the others' states are ------------------------------------------------------------

    def compare_state(self, name: str, digests: Mapping[int, str]) -> None:
        """Take a peer's digests; see that this node's state is the majority's, or stop for good.

        Raises CondemnedState.
        """
        if name not in self.linked.names:
            return
        comparison, settings, log = self._comparison, self.settings, self._context.log
        members = {each: self.store.members.get(each, "") for each in self.linked.names}
        comparison.take(name, members[name], digests)
        marks = self.store.audit.marks
        try:
            index, others = comparison.judge(marks, members, settings.majority)
        except Differs as error:
            reason = str(error)
            log(
                "state_differs",
                level="error",
                index=error.index,
                agreed=error.agreed,
                reason=reason,
            )
            mark_condemned(settings.data_dir, reason, settings.files)
            raise CondemnedState(settings.data_dir, reason) from error
        if others:
            reason = "their states and this node's differ; which is right is not known yet"
            if comparison.agreed >= index:
                reason = "their states differ from the majority's, of which this node is"
            log("states_differ", level="error", index=index, peers=others, reason=reason)

    def _in_dispute_with(self, asking: str) -> list[str]:
        """Return who else is there whose state differs, while nobody knows which is right.

        Whoever asks for a copy waits until an operator has stopped one of them: a copy of the wrong
        state would make it the majority's, and the node that is right would stop. Where none of
        them is there the copy is given, as without it nothing may be committed any more.
        """
        return [
            name for name in self._comparison.in_dispute if name != asking and self._is_heard(name)
        ]

    def _is_heard(self, name: str) -> bool:
        """Return whether a member was heard so lately that it can take part in a commit."""
        incarnation = self._admission(name)[0] or ""
        return self._now - self._neighbours.heard_s(name, incarnation) <= HOLDER_SILENCE_S

    # --- the cluster's level (rule 30) --------------------------------------------------------

    @property
    def _entries_level_max(self) -> int:
        """The highest level of an entry that this node takes: what it can't apply, it has not."""
        return self.settings.build.level_max

    def _raises_to(self, level: int, operations: Sequence[Operation]) -> bool:
        """Return whether that is why an entry needs the level; `_level_for` has seen to the rest.

        Who was connected then may be gone by now, which is no fault: it gets nothing of this log
        if it comes back with another program.
        """
        return any(isinstance(each, Raise) and each.level == level for each in operations)

    def _level_changed(self) -> None:
        self.linked.look_again()
        self._context.log("level_raised", feature_level=self.store.level)
        self._context.peers.update_hello(self.hello())

    def _log_level(self) -> int:
        """The lowest level whose builds can read this node's log, uncommitted entries included."""
        store = self.store
        return self._raises.log_level(store.level, store.applied_index, self.journal.term_at)

    def _note_level(self, entry: Entry) -> bool:
        """Remember an entry of the log that needs a higher level; True if it does."""
        command, index, term = entry
        level = commands.level_of(command[LEVEL])
        if level <= self.store.level or level <= self._log_level():
            return False
        self._raises.note(index, term, level)
        return True

    def _report_refused(self, entry: Entry) -> None:
        if self._context.reports.due("entry_refused", self._now):
            command, index, _ = entry
            level, build = commands.level_of(command[LEVEL]), self.settings.build
            reason = f"it needs level {level}; this is {build}: install a newer one"
            self._context.log(
                "entry_refused", level="error", index=index, feature_level=level, reason=reason
            )

    def _level_for(self, asked: int | None) -> int:
        """Return the level that an UPGRADE may raise the cluster to, or keep it at.

        Raises ProtocolError: bad_request, not_upgraded.
        """
        settings, sightings = self.settings, self.linked.sightings(self._now)
        level = asked or level_to_reach(settings.build, sightings)
        if level < self.store.level:
            raise ProtocolError(
                "bad_request", f"the cluster's level is {self.store.level}; it is never lowered"
            )
        reasons = objections(level, settings.name, settings.build, sightings)
        if reasons and level > self.store.level:
            message = f"level {level} takes all members: {'; '.join(reasons)}"
            raise ProtocolError("not_upgraded", message, level=self.store.level)
        return level

    # --- who the members are (rule 26) ----------------------------------------------------------

    def hear(self, name: str) -> None:
        """Note that a peer has spoken."""
        self.linked.hear(name, self._now)

    def _admission(self, name: str) -> tuple[str | None, int]:
        """Return a member's incarnation as this node's log has it, and up to where that is known.

        It counts from the entry on, applied or not: see PendingAdmissions.
        """
        newest = self._pending.newest(name, self.journal.last_index)
        if newest is not None:
            return newest[1], newest[0]
        return self.store.members.get(name), self.store.applied_index

    def _is_admitted(self, name: str, incarnation: str) -> bool:
        """Return whether that is a member by this node's log, applied or not."""
        return incarnation in (self._admission(name)[0], self.store.members.get(name))

    def _members_changed(self) -> None:
        check_not_replaced(self.identity, self.store.members)
        self._server.members_changed(self.store.applied_index)
        self._context.log("members_changed", members=self.store.members)
        for name in self.settings.others:
            # A new incarnation gets as long to be heard as an old one to fall silent.
            if self._neighbours.heard_s(name, self.store.members[name]) == NEVER_S:
                self._neighbours.hear(name, self.store.members[name], self._now)
        self._list_changed()

    def _list_changed(self) -> None:
        """Act on a changed member list, whether applied or not."""
        settings, store = self.settings, self.store
        self.linked.look_again()
        admitted = {name: self._admission(name)[0] or "" for name in settings.members}
        self._context.peers.update_roll(Roll(admitted, store.members, store.applied_index))
        is_member = admitted[settings.name] in ("", self.identity.incarnation)
        self.raft.let_campaign(is_member)
        self._refresh_links()

    def _refresh_links(self) -> None:
        self.linked.refresh(self._now, is_pending=bool(self._pending or self._raises))

    def _name_members(self) -> None:
        """As the node that a cluster was recovered from: name the others, who are empty."""
        hellos = self._context.hellos()
        named = named_members(self.store.members, hellos)
        if named is not None:
            self.store.name_members(named)
            self._context.log("members_named", members=named)
            self._members_changed()
        elif self._now >= self._next_waiting_s:
            self._next_waiting_s = self._now + WAITING_PERIOD_S
            missing = waited_for(self.store.members, hellos)
            self._context.log("recovered_waits", level="warning", members=missing)

    def _propose_admissions(self) -> None:
        if self._now < self._next_admit_s:
            return
        self._next_admit_s = self._now + ADMIT_PERIOD_S
        settings, log = self.settings, self._context.log
        members = {name: self._admission(name)[0] or "" for name in settings.others}
        newcomers = to_admit(self._context.hellos(), members)
        advice: dict[str, str] = {}
        for name, incarnation in newcomers.items():
            reason = self._obstacle(name, members[name])
            if reason:
                advice[name] = f"{settings.name} leads and waits: {reason}"
                if name not in self._obstacles:
                    log("readmission_waits", node=name, incarnation=incarnation, reason=reason)
                continue
            log("admitting", node=name, incarnation=incarnation, replaced=members[name])
            self._propose([[Admit(name, incarnation)]], tick=False)
        self._advise(advice)

    def _advise(self, advice: dict[str, str]) -> None:
        """Tell those who are not admitted yet why, by receiver; whoever is left out, nothing."""
        self._obstacles = advice
        self._neighbours.advise(advice)

    def _obstacle(self, name: str, admitted: str) -> str:
        if self._admission(name)[0] != self.store.members[name]:
            return f"the admission of {name} as {admitted} is not committed yet"
        settings, linked = self.settings, self.linked.names
        silent_s = self._neighbours.silent_s(name, admitted, linked, self._now)
        holders = {settings.name, *filter(self._holds_log, linked)}
        return obstacle(name, admitted, silent_s, settings.takeover_s, holders, settings.majority)

    def _holds_log(self, name: str) -> bool:
        """Return whether a member has all that was committed before this leader's term."""
        has_caught_up = self.raft.match_index(name) >= self.raft.term_start_index
        return has_caught_up and self._is_heard(name)

    def _take_snapshot_request(self, name: str, message: SnapshotRequest) -> None:
        peers = self._context.peers
        hello = peers.hello_of(name)
        if hello is None:
            peers.send(name, SnapshotRefused("not a member myself"))
        elif self.store.members.get(name) != hello.incarnation:
            peers.send(name, SnapshotRefused("not admitted yet"))
        elif others := self._in_dispute_with(name):
            reason = f"its state and that of {', '.join(others)} differ; which is right is unknown"
            peers.send(name, SnapshotRefused(reason))
        else:
            self.store.commit()  # a copy is of the last commit: it has to hold the admission
            self._server.request(name, message, self.journal.first_index, self._now)


def _reason_of_change(before: SoftState, after: SoftState) -> str:
    """Return why a node's role, term or leader changed, as far as it can know."""
    if after.role == "leader":
        return "a majority voted for this node"
    if after.role == "candidate":
        old = before.leader
        return f"no word from the leader {old}" if old else "no leader is known"
    if before.role == "leader" and after.term == before.term:
        return "no majority has answered"
    if after.term > before.term:
        return f"a newer term{f', led by {after.leader}' if after.leader else ''}"
    return f"{after.leader} leads" if after.leader else "the leader is unknown"
