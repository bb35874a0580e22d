"""One node without sockets: what a turn does, in the order that is the contract.

What lives here: the joining of peers, Raft, store, broker and relays. What must not: sockets, poll,
signals, threads (node.py), clocks and randomness (both come in). The simulator and the tests drive
this class with their own `Peers` and `Worker`.

The order of a turn (docs/design.md, section 4) is what the promises rest on: no vote, vote request,
acknowledgment or client's reply leaves before journal.sync() has returned.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final, NoReturn

from cluster.log.entries import FIRST_INDEX, LEVEL, Entry, payload_of
from cluster.log.files import DISK, Files, exit_process
from cluster.log.journal import Journal
from cluster.members import about
from cluster.members.about import Facts
from cluster.members.catchup import SnapshotFetch, SnapshotServer, Worker
from cluster.members.handshake import Reports, can_read
from cluster.members.identity import Identity, WrongMembers
from cluster.members.membership import (
    ADMIT_BYTES_MAX,
    UNNAMED,
    PendingAdmissions,
    ReplacedError,
    Roll,
    check_not_replaced,
    founding_set,
    hello_of,
    is_linked,
    named_members,
    obstacle,
    to_admit,
    waited_for,
)
from cluster.members.neighbours import NEVER_S, REFUSAL_S, Neighbours
from cluster.members.peers import TAKEOVER_MS, Disconnected, Doubled, Event, Peers, RefusedBy, Unfit
from cluster.node import budget
from cluster.node.budget import Budget
from cluster.raft.raft import Raft, reason_of_change
from cluster.raft.ready import NOTHING, Ready, SoftState, Timing
from cluster.serve.broker import Broker, BrokerLimits, Waiting
from cluster.serve.frontend import Frontend, Leading
from cluster.serve.intake import Intake
from cluster.store import commands, snapshots
from cluster.store.commands import Raise
from cluster.store.store import Store
from cluster.wire.levels import (
    BUILD,
    LEVEL_FIRST,
    Build,
    Sighting,
    UnsupportedLevel,
    level_to_reach,
    objections,
)
from cluster.wire.messages import (
    About,
    Health,
    Hello,
    Message,
    MessageError,
    Refusal,
    Relay,
    RelayReply,
    SnapshotChunk,
    SnapshotRefused,
    SnapshotRequest,
)
from flotilla_client.protocol import ProtocolError

HEALTH_PERIOD_S: Final = 0.5
WAITING_PERIOD_S: Final = 10.0  # a recovered node says that often which members it waits for
ADMIT_PERIOD_S: Final = 0.5
BEYOND_S: Final = 15.0  # a peer's word on the level counts so long; it is repeated every 10 s
HOLDER_SILENCE_S: Final = 1.0  # a member that was heard so lately can take part in a commit
GARBAGE_ROWS_PER_STEP: Final = 64  # about a millisecond of deletes

LogEvent = Callable[..., None]


@dataclass(frozen=True)
class ReplicaSettings:
    """What a replica needs to know of its configuration. `members` includes `name`.

    `build`: the program that runs. `takeover_s`: how long a member has to be silent before another
    incarnation is admitted. `announced`: the settings that should be the same on all nodes, which
    are told to the peers, and `http`, where its page is, "" for none. `files`,
    `on_journal_failure`: the disk under journal and identity, and how their failure ends the node;
    a simulator has others.
    """

    cluster_id: str
    name: str
    members: tuple[str, ...]
    data_dir: Path
    timing: Timing
    broker_limits: BrokerLimits
    uncommitted_entries_max: int
    relays_max: int
    segment_bytes: int
    keep_bytes: int
    build: Build = BUILD
    takeover_s: float = TAKEOVER_MS / 1000
    announced: Mapping[str, int] = field(default_factory=dict)
    http: str = ""
    files: Files = DISK
    on_journal_failure: Callable[[Exception], NoReturn] = exit_process

    @cached_property
    def others(self) -> list[str]:
        """The other members' names."""
        return [name for name in self.members if name != self.name]

    @property
    def majority(self) -> int:
        """How many members make a majority."""
        return len(self.members) // 2 + 1

    @property
    def database(self) -> Path:
        """The store's file."""
        return self.data_dir / "store" / "store.db"

    @property
    def journal_dir(self) -> Path:
        """The journal's directory."""
        return self.data_dir / "journal"


class Replica:
    """A node's whole state, moved forward by `turn` and `finish_turn`.

    `identity` is the data directory's; `peers`, `worker` its ways out; `rng` decides election
    time-outs; `new_client_id` makes unguessable ids; `log(event, **fields)` reports what an
    operator wants to know. `clock()`: monotonic seconds as `now`, for a turn's shares (budget.py).
    `client_room_bytes(route)`: how many bytes of replies may still wait for a client, as
    `ClientPort.room_bytes` says. `frontend` is its clients' side.
    """

    def __init__(
        self,
        settings: ReplicaSettings,
        identity: Identity,
        peers: Peers,
        worker: Worker,
        rng: random.Random,
        new_client_id: Callable[[], str],
        log: LogEvent,
        now: float,
        clock: Callable[[], float],
        client_room_bytes: Callable[[bytes], int],
    ) -> None:
        self.clock = clock
        self.settings = settings
        self.identity = identity
        self.raft: Raft | None = None
        self._peers, self._worker, self._rng, self._log = peers, worker, rng, log
        self._new_client_id = new_client_id
        self._now = now
        self._linked: set[str] = set()
        self._neighbours = Neighbours(
            settings.others, settings.announced, peers, now, settings.http
        )
        self._pending = PendingAdmissions()
        self._started_s, self._settled, self._aside_until = now, False, now
        self._obstacles: dict[str, str] = {}
        self._health: dict[str, Health] = {}
        # A member's word for a level that this build can't have, or that this node was evicted,
        # and when it was given.
        self._beyond: tuple[Unfit, float] | None = None
        self._evicted: tuple[RefusedBy, float] | None = None
        self._seen: dict[str, tuple[float, Build]] = {}  # when each member was last connected
        self._greeted: dict[str, Hello | None] = dict.fromkeys(settings.others)  # at the last look
        self._links_stand, self._took_part = False, False  # see _refresh_links
        # Entries, (index, term, level), that need a higher level than the store's; see _log_level.
        self._raises: list[tuple[int, int, int]] = []
        self._reports = Reports()
        self._next_health_s = self._next_admit_s = now
        self._next_waiting_s = now
        self._standing = self._soft_state = SoftState("", 0, "")  # as it was noticed, as it is
        self._before_sync: list[tuple[str, Message]] = []
        self._after_sync: list[tuple[str, Message]] = []
        self._led_term: int | None = None
        self._more_messages = self._more_answers = self._behind = False
        heartbeat_s = settings.timing.heartbeat_s
        self._hearing = Budget(clock, budget.PEERS_SHARE * heartbeat_s)
        self._step_messages = max(1, len(settings.others))  # one of each, so that none waits long
        self._requests = Budget(clock, budget.REQUESTS_SHARE * heartbeat_s)
        self._applying = Budget(clock, budget.APPLY_SHARE * heartbeat_s)
        self._serving = Budget(clock, budget.ANSWERS_SHARE * heartbeat_s)
        self._replies = Budget(clock, budget.REPLIES_SHARE * heartbeat_s)
        self._chores = Budget(clock, budget.CHORES_SHARE * heartbeat_s)
        self.intake = Intake()
        self.frontend = Frontend(
            settings.name,
            settings.relays_max,
            rng,
            peers,
            self._linked,
            settings.build,
            client_room_bytes,
        )
        self.frontend.describe = self._describe
        directory = settings.database.parent
        self._server = SnapshotServer(settings.database, directory, worker, peers.send)
        self._fetch = SnapshotFetch(directory, worker, peers.send, log)
        self.journal: Journal
        self.store: Store
        self.broker: Broker
        if identity.started:
            self._open_member()
        else:
            self._log("joining", reason="the data directory is empty", members=settings.members)
            self._join()

    # --- becoming a member --------------------------------------------------------------------

    def _open_member(self) -> None:
        database = self.settings.database
        snapshots.remove_leftovers(database)
        if not snapshots.make_shrinkable(database):
            self._log("store_cannot_shrink", reason="made by version 0.1; too large to be remade")
        self._open_store({})  # before the log: its level tells whether this build can read that
        members = sorted(self.store.members)
        if members != sorted(self.settings.members):
            raise WrongMembers(
                f"{self.settings.data_dir} belongs to a cluster of {', '.join(members)}, configured"
                f" are {', '.join(self.settings.members)}. A cluster's members are fixed: to have"
                " others, make a new cluster of it with `flotilla-node recover --members`"
            )
        self._open_journal()
        self._read_tail()
        self._start_raft()

    def _read_tail(self) -> None:
        """Look at the entries that are not applied; refuse to start with one that can't be read."""
        journal, build = self.journal, self.settings.build
        index = max(self.store.applied_index + 1, journal.first_index)
        while index <= journal.last_index:
            entries = journal.entries(index, journal.last_index)  # no more than a slice
            for command, index, _ in entries:
                if (level := commands.level_of(command[LEVEL])) > build.level_max:
                    what = f"entry {index} of this node's log needs"
                    raise UnsupportedLevel(what, level, build)
            self._note_levels(entries)
            index += 1

    def _join(self) -> None:
        """Become a member if the peers' hellos or a copy of the store make this node one."""
        hellos = self._hellos()
        founding = founding_set(self.settings.name, self.identity.incarnation, hellos)
        if founding is not None:
            self._found(founding)
        elif self._fetch.ready is not None:
            self._rejoin(self._fetch.ready)
            self._fetch.ready = None
        else:
            members = [name for name, hello in hellos.items() if hello and not hello.fresh]
            if members:
                self._fetch.start(self._rng.choice(members), self._now)

    def _found(self, founding: dict[str, str]) -> None:
        self._clear_leftovers()
        self._open_store(founding)
        self._create_journal()
        self._become_member(replace(self.identity, founding=founding, started=True))
        self._log("founded", founding=founding)

    def _rejoin(self, verified: snapshots.Verified) -> None:
        """Take over a copy of the store, if this incarnation is admitted in it (rule 26)."""
        if verified.members.get(self.settings.name) != self.identity.incarnation:
            self._log("copy_too_old", index=verified.index, reason="not admitted in it yet")
            return
        self._check_level(verified)
        self._clear_leftovers()
        snapshots.install(verified.path, self.settings.database)
        self._open_store({})
        self._create_journal()
        self.journal.reset(verified.index, verified.term)
        # Without a founding set: only the founders' may make others members.
        self._become_member(replace(self.identity, started=True, admitted_index=verified.index))
        self._log("readmitted", index=verified.index, term=verified.term)

    def _clear_leftovers(self) -> None:
        """Remove what an earlier attempt to become a member left behind."""
        assert not self.identity.started, "a member's files are never cleared"
        Store.remove(self.settings.database)
        files, directory = self.settings.files, self.settings.journal_dir
        for name in files.list(directory):
            files.unlink(directory / name)

    def _open_store(self, founding: Mapping[str, str]) -> None:
        self.store = Store.open(self.settings.database, founding, build=self.settings.build)

    def _check_level(self, verified: snapshots.Verified) -> None:
        build = self.settings.build
        if not build.understands(verified.level):
            raise UnsupportedLevel("a member's copy of its store is of", verified.level, build)

    def _create_journal(self) -> None:
        Journal.create(self.settings.journal_dir, self.settings.files)
        self._open_journal()

    def _open_journal(self) -> None:
        settings = self.settings
        self.journal = Journal.open(
            settings.journal_dir,
            settings.segment_bytes,
            settings.keep_bytes,
            files=settings.files,
            on_failure=settings.on_journal_failure,
        )

    def _become_member(self, identity: Identity) -> None:
        self._start_raft()
        self.journal.sync()
        # Last: until this is on disk the node is fresh and would begin again.
        identity.save(self.settings.data_dir, self.settings.files)
        self.identity = identity
        self._peers.update_hello(self.hello())

    def hello(self) -> Hello:
        """Return what this node says of itself to its peers."""
        level = LEVEL_FIRST if self.raft is None else self.store.level
        return hello_of(self.identity, self.settings.members, self.settings.build, level)

    def _start_raft(self) -> None:
        settings, timing = self.settings, self.settings.timing
        # Every log begins with this entry, which the core takes for applied. Not only on founding:
        # a power loss before the first checkpoint puts a store back to how it was made.
        self.store.apply(FIRST_INDEX, 0, b"")
        self.journal.applied_index = self.store.applied_index
        for index, command in self.journal.small_entries(self.store.applied_index, ADMIT_BYTES_MAX):
            self._pending.note(index, command)
        self.broker = Broker(
            self.store, settings.broker_limits, self._new_client_id, self.frontend.room_bytes
        )
        self.broker.level_for = self._level_for
        self.raft = raft = Raft(
            settings.name,
            settings.others,
            self.journal,
            (self.store.applied_index, self.store.applied_term),
            timing,
            self._entries_level_max,
            self._rng,
            self._now,
        )
        self.frontend.lead = Leading(
            raft, self.broker, self.journal, settings.uncommitted_entries_max, self._sightings
        )
        self._take_ready(raft.step(self._now))
        self._list_changed()

    def _name_members(self) -> None:
        """As the node that a cluster was recovered from: name the others, who are empty."""
        hellos = self._hellos()
        named = named_members(self.store.members, hellos)
        if named is not None:
            self.store.name_members(named)
            self._log("members_named", members=named)
            self._members_changed()
        elif self._now >= self._next_waiting_s:
            self._next_waiting_s = self._now + WAITING_PERIOD_S
            missing = waited_for(self.store.members, hellos)
            self._log("recovered_waits", level="warning", members=missing)

    def _hellos(self) -> dict[str, Hello | None]:
        """Return what each other member said on its present connection, None without one."""
        return {name: self._peers.hello_of(name) for name in self.settings.others}

    # --- what Raft has done -------------------------------------------------------------------

    def _take_ready(self, ready: Ready) -> None:
        """Write down what a step says, and act on what its entries say of members and levels.

        Nothing of it is durable yet; what is committed is the caller's to apply.
        """
        if ready is NOTHING:
            return
        journal, raft = self.journal, self.raft
        assert raft is not None
        if ready.reset is not None:
            journal.reset(*ready.reset)
        if ready.hard_state is not None:
            journal.set_term(*ready.hard_state)
        for entry in ready.entries:
            journal.add(*entry)
        journal.commit_index = raft.commit_index
        self._before_sync += ready.before_sync
        self._after_sync += ready.after_sync
        if ready.soft_state is not None:
            self._soft_state = ready.soft_state
        if ready.refused is not None:
            self._report_refused(ready.refused)
        if ready.entries:
            self._note_levels(ready.entries)
            # All of them: each may take the place of another.
            if any([self._pending.note(index, command) for command, index, _ in ready.entries]):
                self._list_changed()
        if ready.offer and self._install(ready.offer):
            raft.restore(ready.offer, self.store.applied_index, self.store.applied_term)
            self._take_ready(raft.step(self._now))
            self._list_changed()

    def _install(self, leader: str) -> bool:
        """Replace the store by a finished copy, or begin to pull one from the leader."""
        verified = self._fetch.ready
        if verified is None or verified.index <= self.store.applied_index:
            self._fetch.ready = None
            self._fetch.start(leader, self._now)
            return False
        if not self._worker.idle:
            # A job may have the database open: SQLite, closing it, would remove the new one's WAL.
            return False
        self._fetch.ready = None
        self._check_level(verified)
        level_before = self.store.level
        self.store.close()
        snapshots.install(verified.path, self.settings.database)
        self._open_store({})
        self.broker.store = self.store
        if self.store.level != level_before:
            self._level_changed()
        check_not_replaced(self.identity, self.store.members)
        self.journal.applied_index = self.store.applied_index
        self._pending.applied(self.store.applied_index)
        self._server.members_index = verified.index
        self._log("snapshot_installed", index=verified.index, term=verified.term)
        return True

    # --- the turn -----------------------------------------------------------------------------

    def turn(
        self, now: float, requests: Sequence[tuple[bytes, Sequence[bytes]]]
    ) -> list[tuple[bytes, list[bytes]]]:
        """Take what has come in, and return the replies that may leave now.

        `now`: monotonic seconds. `requests`: (client's connection, frames without delimiter).
        """
        if now - self._now > self.settings.takeover_s / 2:
            self._neighbours.aware_since = now  # this node was away: whoever spoke was not heard
        self._now = now
        # Answers of earlier turns are encoded before new ones are made. This turn's don't count:
        # refusals that are made at once would keep everything else from being served.
        self._behind = self.frontend.has_answers
        self._hearing.begin()
        messages = self._peers.receive(self._step_messages)
        self._take_events()
        if self.raft is None:
            self._join()
        if self.raft is not None and UNNAMED in self.store.members.values():
            self._name_members()
        self._take_messages(messages)
        self._watch_leadership()
        self.frontend.begin_turn(now * 1000, self._health)
        self.intake.add_clients(requests, now)
        if not self._behind:
            self._take_requests()
        if self.raft is not None:
            self._drive_raft(self.raft)
        self._replies.begin()
        replies = self.frontend.take_replies(self._replies.spent)
        self._peers.flush(None)
        return replies

    def _take_messages(self, messages: list[tuple[str, Message]]) -> None:
        """Take these and what else peers sent; what there is no time for waits where it is.

        A connection that has begun in this turn has had its event before: later ones begin in
        between turns.
        """
        while True:
            for name, message in messages:
                self._take_message(name, message)
            self._more_messages = len(messages) == self._step_messages
            if not self._more_messages or self._hearing.spent():
                return
            messages = self._peers.receive(self._step_messages)

    def _take_requests(self) -> None:
        if not self.intake:
            return
        self._requests.begin()
        self.intake.begin_turn(self._now)
        while (taken := self.intake.take()) is not None:
            sender, what = taken
            if isinstance(what, Relay):
                assert isinstance(sender, str), sender
                self.frontend.take_relay(sender, what)
            else:
                assert isinstance(sender, bytes), sender
                self.frontend.take_request(sender, what)
            if self._requests.spent():
                return

    def _drive_raft(self, raft: Raft) -> None:
        """Propose, commit, apply, answer; then send what may, make all durable, send the rest."""
        entries: list[tuple[bytes, list[Waiting]]] = []
        if raft.serving:
            if not self.frontend.stopping:  # who is handed the lead has to have all of the log
                self._propose_admissions(raft)
            entries = list(self.broker.take_entries(int(self._now * 1000)))
        ready = self._propose(raft, [payload for payload, _ in entries], tick=True)
        for (_, authors), (_, index, term) in zip(entries, ready.entries, strict=False):
            self.broker.submitted(index, term, authors)
        if ready.committed:
            self._apply_committed(raft, ready.committed)
        self._watch_leadership()
        if not self._behind and raft.serving:
            self._more_answers = self._serve(raft)
        if self._before_sync:
            # Rule 7's one sound relaxation: an acknowledgment of these can't be taken before the
            # sync below has returned, because it comes in a later turn.
            self._send_all(self._before_sync)
            self._peers.flush(None)
        self.journal.sync()
        self._send_all(self._after_sync)

    def _send_all(self, queue: list[tuple[str, Message]]) -> None:
        for name, message in queue:
            self._peers.send(name, message)
        queue.clear()

    def _propose(self, raft: Raft, payloads: list[bytes], *, tick: bool) -> Ready:
        """Append entries as the leader: the only way into the log."""
        for payload in payloads:
            level = commands.level_of(payload)
            assert level <= self.store.level or self._raises_to(level, payload), (
                f"an entry of level {level} in a cluster of level {self.store.level}"
            )
        ready = raft.step(self._now, (), payloads, tick=tick)
        self._take_ready(ready)
        return ready

    def _raises_to(self, level: int, payload: bytes) -> bool:
        """Return whether that is why an entry needs the level; `_level_for` has seen to the rest.

        Who was connected then may be gone by now, which is no fault: it gets nothing of this log
        if it comes back with another program.
        """
        _, operations = commands.decode(payload, self.settings.build.level_max)
        return any(isinstance(each, Raise) and each.level == level for each in operations)

    def _apply_committed(self, raft: Raft, entries: Sequence[Entry]) -> None:
        """Apply one entry at least, then more until the turn's time for it is over."""
        self._applying.begin()
        for entry in entries:
            _, index, term = entry
            self._apply(index, term, payload_of(entry))
            raft.advance(index)
            if self._applying.spent():
                return

    def _apply(self, index: int, term: int, payload: bytes) -> None:
        members_before, level_before = self.store.members, self.store.level
        outcomes = self.store.apply(index, term, payload)
        self._pending.applied(index)
        self.journal.applied_index = index
        self.broker.applied(index, term, outcomes)
        if self.store.members is not members_before:
            self._members_changed()
        if self.store.level != level_before:
            self._level_changed()

    def _members_changed(self) -> None:
        check_not_replaced(self.identity, self.store.members)
        self._server.members_index = self.store.applied_index
        self._log("members_changed", members=self.store.members)
        for name in self.settings.others:
            # A new incarnation gets as long to be heard as an old one to fall silent.
            if self._neighbours.heard_s(name, self.store.members[name]) == NEVER_S:
                self._neighbours.hear(name, self.store.members[name], self._now)
        self._list_changed()

    # --- the cluster's level (rule 30) --------------------------------------------------------

    @property
    def _entries_level_max(self) -> int:
        """The highest level of an entry that this node takes: what it can't apply, it has not."""
        return self.settings.build.level_max

    def _level_changed(self) -> None:
        self._links_stand = False
        self._log("level_raised", feature_level=self.store.level)
        self._peers.update_hello(self.hello())

    @property
    def _log_level(self) -> int:
        """The lowest level whose builds can read this node's log, uncommitted entries included."""
        if self._raises:
            applied, term_at = self.store.applied_index, self.journal.term_at
            self._raises = [
                each for each in self._raises if each[0] > applied and term_at(each[0]) == each[1]
            ]
        return max([self.store.level, *(level for _, _, level in self._raises)])

    def _note_levels(self, entries: Sequence[Entry]) -> None:
        """Remember which of these entries of the log need a higher level."""
        for command, index, term in entries:
            level = commands.level_of(command[LEVEL])
            if level > self.store.level and level > self._log_level:
                self._raises.append((index, term, level))
                self._links_stand = False

    def _report_refused(self, entry: Entry) -> None:
        if self._reports.due("entry_refused", self._now):
            command, index, _ = entry
            level, build = commands.level_of(command[LEVEL]), self.settings.build
            reason = f"it needs level {level}; this is {build}: install a newer one"
            self._log(
                "entry_refused", level="error", index=index, feature_level=level, reason=reason
            )

    def _sightings(self) -> dict[str, Sighting]:
        sightings = {}
        for name in self.settings.others:
            seen_s, build = self._seen.get(name, (self._started_s, None))
            connected = self._peers.hello_of(name) is not None
            silent_s = 0.0 if connected else self._now - seen_s
            sightings[name] = Sighting(build, name in self._linked, silent_s)
        return sightings

    def _level_for(self, asked: int | None) -> int:
        """Return the level that an UPGRADE may raise the cluster to, or keep it at.

        Raises ProtocolError: bad_request, not_upgraded.
        """
        sightings = self._sightings()
        level = asked or level_to_reach(self.settings.build, sightings)
        if level < self.store.level:
            raise ProtocolError(
                "bad_request", f"the cluster's level is {self.store.level}; it is never lowered"
            )
        reasons = objections(level, self.settings.name, self.settings.build, sightings)
        if reasons and level > self.store.level:
            message = f"level {level} takes all members: {'; '.join(reasons)}"
            raise ProtocolError("not_upgraded", message, level=self.store.level)
        return level

    def _serve(self, raft: Raft) -> bool:
        broker, now_ms = self.broker, self._now * 1000
        if not broker.may_serve(now_ms):
            return False
        self._serving.begin()
        reached = raft.barrier_passed(), raft.applied_index
        return broker.serve(*reached, now_ms, self._serving.spent) and broker.may_serve(now_ms)

    def finish_turn(self, disk_low: bool) -> None:
        """Do what nobody waits for: commit the store's transaction, collect garbage, tell peers.

        `disk_low`: whether this node has too little room.
        """
        self._server.tick(self._now)
        self._fetch.tick(self._now)
        if self.raft is not None:
            self._chores.begin()
            while self.store.collect_garbage(GARBAGE_ROWS_PER_STEP) and not self._chores.spent():
                pass
            self.store.commit()
        if self._now >= self._next_health_s:
            self._next_health_s = self._now + HEALTH_PERIOD_S
            self._tell_peers(disk_low)
        self._peers.flush(None)

    @property
    def busy(self) -> bool:
        """True when a turn is due at once, whether or not anything comes in."""
        raft = self.raft
        if self._more_messages or self.intake or self.frontend.has_answers:
            return True
        if raft is None:
            return False
        if self._more_answers and raft.serving:
            return True
        alone = not self.settings.others and raft.is_leader
        return raft.applied_index < raft.commit_index or (alone and raft.uncommitted_entries > 0)

    # --- peers --------------------------------------------------------------------------------

    def _take_events(self) -> None:
        for event in self._peers.events():
            self._links_stand = False  # one that ended and began again says the same as before
            level = self._neighbours.note(event, self._now)
            if level:
                self._log(f"peer_{type(event).__name__.lower()}", level=level, **asdict(event))
            if isinstance(event, Doubled):
                self._tell_of_double(event)
            self._take_verdict(event)
            if isinstance(event, Disconnected):
                self._unlink(event.name)
                self._fetch.lost(event.name)
                self._health.pop(event.name, None)
                self.frontend.abandon_relays(event.name)
        self._heed_refusals()
        self._refresh_links()

    def _take_verdict(self, event: Event) -> None:
        """Take a member's word that this node can be none; what others say is only logged."""
        level_max = self.settings.build.level_max
        if not isinstance(event, (Unfit, RefusedBy)):
            return
        if not self._is_admitted(event.name, event.incarnation):
            return
        if isinstance(event, Unfit) and event.feature_level > level_max:
            self._beyond = event, self._now
        elif isinstance(event, RefusedBy) and event.refusal == Refusal.EVICTED:
            self._evicted = event, self._now

    def _tell_of_double(self, event: Doubled) -> None:
        double = (
            f"{self.settings.name} has refused a process at {event.address}, incarnation "
            f"{event.incarnation}, that says it is {event.name}"
        )
        self._peers.send(event.name, about.encode(Facts(double=double)))

    def _heed_refusals(self) -> None:
        """Do what a process has to that its peers refuse (rule 26).

        Evicted, or left behind by the cluster's level: it ends, once it is of no use here either.
        No single peer's word ends a node that a majority takes for a member, and nobody's word
        does who is no member by this node's own log: anybody can connect and say anything. So a
        node with an empty directory, which knows no members, is not ended by what it is told.

        Refused because another process of its name lives, in its first moments: it takes no part
        for now. A directory that was copied must not vote twice, and of two processes with one
        directory the older has the right.
        """
        now, neighbours = self._now, self._neighbours
        has_majority = len(self._linked) + 1 >= self.settings.majority
        if self._evicted is not None and now - self._evicted[1] > REFUSAL_S:
            self._evicted = None
        if self._evicted is not None and not has_majority:
            raise ReplacedError(self._evicted[0].reason)
        if self._beyond is not None and now - self._beyond[1] > BEYOND_S:
            self._beyond = None
        if self._beyond is not None and not has_majority:
            peer = self._beyond[0]
            what = f"{peer.name} says that the cluster is at"
            raise UnsupportedLevel(what, peer.feature_level, self.settings.build)
        if self._settled:
            return
        if neighbours.refused_as(Refusal.DOUBLED, now):
            self._aside_until = now + self.settings.takeover_s
            if self.raft is not None:
                for name in self.settings.others:  # its places belong to the other process
                    self._peers.part(name, "another process of this node's name lives")
            return
        calm_since = max(self._started_s, self._aside_until)
        if has_majority and now >= calm_since + self.settings.takeover_s:
            self._settled = True

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
        if self.raft is None:
            return False
        return incarnation in (self._admission(name)[0], self.store.members.get(name))

    def _list_changed(self) -> None:
        """Act on a changed member list, whether applied or not."""
        self._links_stand = False
        raft = self.raft
        assert raft is not None
        admitted = {name: self._admission(name)[0] or "" for name in self.settings.members}
        self._peers.update_roll(Roll(admitted, self.store.members, self.store.applied_index))
        raft.may_campaign = admitted[self.settings.name] in ("", self.identity.incarnation)
        self._refresh_links()

    def _refresh_links(self) -> None:
        """Let Raft have exactly the connections of admitted members (rules 14 and 26).

        They stand as they are while everybody connected is who the log says, nothing of that waits
        to be applied, and everybody says what was said before: so it is in nearly every turn.
        """
        raft = self.raft
        if raft is None:
            return
        hellos, takes_part = self._hellos(), self._now >= self._aside_until or self._settled
        if self._links_stand and takes_part == self._took_part and hellos == self._greeted:
            return
        self._took_part, self._links_stand = takes_part, not (self._pending or self._raises)
        for name, hello in hellos.items():
            before = hello or self._greeted[name]
            if before is not None:
                self._seen[name] = (self._now, before.extension.build)
            self._greeted[name] = hello
            admitted, known_index = self._admission(name)
            # Any other's membership depends on how far the log is known, which each entry changes.
            self._links_stand &= hello is None or hello.incarnation == admitted
            linked = takes_part and is_linked(hello, admitted, known_index)
            linked = linked and can_read(hello, self._log_level)
            if linked and name not in self._linked:
                assert hello is not None, name
                self._linked.add(name)
                self._neighbours.hear(name, hello.incarnation, self._now)
                raft.connected(name)
            elif not linked:
                self._unlink(name)
                if hello is not None and hello.incarnation != admitted:
                    raft.forget(name)

    def _unlink(self, name: str) -> None:
        if name in self._linked:
            self._linked.discard(name)
            assert self.raft is not None
            self.raft.disconnected(name, self._now)

    def _propose_admissions(self, raft: Raft) -> None:
        if self._now < self._next_admit_s:
            return
        self._next_admit_s = self._now + ADMIT_PERIOD_S
        hellos = self._hellos()
        members = {name: self._admission(name)[0] or "" for name in self.settings.others}
        newcomers = to_admit(hellos, members)
        self._neighbours.advice = {}
        for name, incarnation in newcomers.items():
            reason = self._obstacle(raft, name, members[name])
            if reason:
                self._neighbours.advice[name] = f"{self.settings.name} leads and waits: {reason}"
                if name not in self._obstacles:
                    self._log(
                        "readmission_waits", node=name, incarnation=incarnation, reason=reason
                    )
                continue
            self._log("admitting", node=name, incarnation=incarnation, replaced=members[name])
            admit = commands.Admit(name, incarnation)
            self._propose(raft, [commands.encode(int(self._now * 1000), [admit])], tick=False)
        self._obstacles = self._neighbours.advice

    def _obstacle(self, raft: Raft, name: str, admitted: str) -> str:
        if self._admission(name)[0] != self.store.members[name]:
            return f"the admission of {name} as {admitted} is not committed yet"
        silent_s = self._neighbours.silent_s(name, admitted, self._linked, self._now)
        holders = {self.settings.name, *filter(self._holds_log, self._linked)}
        settings = self.settings
        return obstacle(name, admitted, silent_s, settings.takeover_s, holders, settings.majority)

    def _holds_log(self, name: str) -> bool:
        """Return whether a member has all that was committed before this leader's term."""
        assert self.raft is not None
        incarnation = self._admission(name)[0] or ""
        heard_s = self._neighbours.heard_s(name, incarnation)
        has_caught_up = self.raft.match_index(name) >= self.raft.term_start_index
        return has_caught_up and self._now - heard_s <= HOLDER_SILENCE_S

    def _take_message(self, name: str, message: Message) -> None:
        is_linked_now = name in self._linked
        self._hear(name)
        handler = _MESSAGES.get(type(message))
        if handler is not None:
            handler(self, name, message)
        elif is_linked_now:
            assert self.raft is not None
            # One by one: what an entry says of members holds for the message behind it.
            self._take_ready(self.raft.step(self._now, ((name, message),)))

    def _hear(self, name: str) -> None:
        """Note that a member lives, also one that was admitted and still copies the store."""
        hello = self._peers.hello_of(name)
        if hello is None or self.raft is None:
            return
        if name in self._linked or hello.incarnation == self._admission(name)[0]:
            self._neighbours.hear(name, hello.incarnation, self._now)

    def _take_about(self, name: str, message: About) -> None:
        try:
            facts = about.decode(message)
        except MessageError as error:
            self._log("about_unreadable", level="warning", peer=name, reason=str(error))
            return
        for event, fields in self._neighbours.take(name, facts, self._now):
            self._log(event, **fields)

    def _describe(self) -> dict[str, Any]:
        """Return what the status says beside Raft's part."""
        own: dict[str, Any] = {"incarnation": self.identity.incarnation}
        if self.raft is None:
            return own | {"waiting_for": self._neighbours.waiting_for(self._fetch.source)}
        if missing := waited_for(self.store.members, self._hellos()):
            own["waiting_for"] = [
                f"{name}: {reason}; a recovered cluster begins with empty members"
                for name, reason in missing.items()
            ]
        return own | self._neighbours.describe(self._now)

    def _queue_relay(self, name: str, message: Relay) -> None:
        if not self.intake.add_relay(name, message, self._now):
            self.frontend.refuse_relay(name, message)

    def _take_snapshot_request(self, name: str, message: SnapshotRequest) -> None:
        hello = self._peers.hello_of(name)
        if self.raft is None or hello is None:
            self._peers.send(name, SnapshotRefused("not a member myself"))
        elif self.store.members.get(name) != hello.incarnation:
            self._peers.send(name, SnapshotRefused("not admitted yet"))
        else:
            self._server.request(name, message, self.journal.first_index, self._now)

    def _take_snapshot_chunk(self, name: str, message: SnapshotChunk) -> None:
        self._fetch.take_chunk(name, message, self._now)

    def _take_snapshot_refused(self, name: str, message: SnapshotRefused) -> None:
        if self._reports.due(f"copy {name}", self._now):  # it is asked for until it is given
            self._log("copy_refused", node=name, reason=message.reason)
        self._fetch.refused(name, self._now)

    def _take_health(self, name: str, message: Health) -> None:
        self._health[name] = message

    def _tell_peers(self, disk_low: bool) -> None:
        for name in self.settings.others:
            self._peers.send(name, about.encode(self._neighbours.facts_for(name, self._now)))
        raft = self.raft
        if raft is None:
            return
        low = 1 if disk_low else 0
        for name in self.settings.others:
            self._peers.send(name, Health(raft.applied_index, disk_low))
            low += name in self._health and self._health[name].disk_low
        self.broker.disk_low = disk_low or low * 2 > len(self.settings.members)

    # --- leadership ---------------------------------------------------------------------------

    def _watch_leadership(self) -> None:
        """Notice a change of role or term: waiting clients are answered, operators are told."""
        standing = self._soft_state
        if standing == self._standing:
            return
        raft = self.raft
        assert raft is not None
        before, self._standing = self._standing, standing
        if self._led_term is not None and (not raft.is_leader or raft.term != self._led_term):
            self.broker.abdicate("" if raft.leader == self.settings.name else raft.leader)
            self._led_term = None
        if raft.is_leader:
            if self._led_term is None:
                self._neighbours.aware_since = self._now  # it may have heard nobody before
            self._led_term = raft.term
        if before.leader and before.leader != standing.leader:
            self.frontend.abandon_relays(before.leader)
        self._log(
            "role",
            role=raft.role,
            term=raft.term,
            leader=raft.leader,
            reason=reason_of_change(before, standing),
        )

    def may_stop(self) -> bool:
        """Return True when everything is answered and, if possible, another node leads.

        Call after `frontend.stopping` was set; each call on an idle leader offers leadership.
        """
        raft = self.raft
        if raft is None:
            return True
        if self.intake or self.frontend.has_answers:
            return False
        if not raft.is_leader:
            return self.frontend.is_idle()
        if self.broker.is_idle() and raft.uncommitted_entries == 0:
            if not self._linked:
                return True
            raft.transfer_leadership()
        return False

    def close(self) -> None:
        """Close the files of a node that stops in order."""
        if self.raft is not None:
            self.store.commit()
            self.store.close()
            self.journal.close()


_MESSAGES: Final[dict[type, Callable[[Replica, str, Any], None]]] = {
    About: Replica._take_about,
    Health: Replica._take_health,
    Relay: Replica._queue_relay,
    RelayReply: lambda replica, name, message: replica.frontend.take_relay_reply(message),
    SnapshotRequest: Replica._take_snapshot_request,
    SnapshotChunk: Replica._take_snapshot_chunk,
    SnapshotRefused: Replica._take_snapshot_refused,
}
