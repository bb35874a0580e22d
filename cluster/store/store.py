"""The replicated state machine: entries of the Raft log in, outcomes out, kept in SQLite.

What lives here: what every operation does, and reads. What must not: clocks, randomness, sockets,
threads, or a setting of one node: `apply` gives the same outcomes and the same logical state on
every node. An operating error is a `Refused` outcome; anything else that is raised means that this
replica can't go on.

Topics and subscriptions are in memory (bounded by `Limits`), clients and producers behind a
bounded cache, publications on disk only. Changes are buffered until `commit`, and read from there.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, KeysView, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import orjson

from cluster.store import tables
from cluster.store.acts import Acts
from cluster.store.audit import Audit, is_agreed
from cluster.store.clients import Client, Clients, Producer
from cluster.store.commands import (
    Administration,
    Admit,
    Advance,
    ChangeUser,
    Checkpoint,
    DeleteTopic,
    DropClient,
    DropGroup,
    DropSubscription,
    EndGroup,
    Forget,
    Hear,
    MakeGroup,
    OfGroups,
    OfPatterns,
    Operation,
    Purge,
    Put,
    Raise,
    Register,
    Seek,
    SeekGroup,
    SetTopic,
    Stamp,
    Subscribe,
    SubscribePattern,
    Take,
    TransferLeader,
    Unsubscribe,
    UnsubscribePattern,
    decode,
)
from cluster.store.compaction import Compaction
from cluster.store.delayed import Delayed, Due
from cluster.store.expiry import NEVER, over_ms
from cluster.store.groups import GroupLimits, Groups, Run, SharedGroup
from cluster.store.holdings import Holdings
from cluster.store.idle import Idle
from cluster.store.latest import Latest
from cluster.store.outcomes import (
    Delivery,
    Done,
    Leased,
    Looked,
    Outcome,
    Refused,
    another_choice,
    beyond_the_end,
    compacted,
    expired,
    forgotten,
    missed,
    moved,
    no_group,
    no_topic,
    not_kept,
    not_there_yet,
    purged,
    stale_request,
    too_many,
    unknown_client,
    wrong_epoch,
)
from cluster.store.patterns import Pattern, Patterns
from cluster.store.publications import Cut, Publications
from cluster.store.tables import ID_MAX, TOPIC_NUMBER_MAX, CorruptStore, Database, row_crc
from cluster.store.topics import Subscription, Topic, Topics
from cluster.store.unread import Unread
from cluster.store.users import (
    ADMIN,
    PUBLISH,
    SUBSCRIBE,
    Users,
    not_the_owner,
    unauthorized,
)
from cluster.wire.levels import (
    BUILD,
    LEVEL_OF_DEAD_LETTERS,
    LEVEL_OF_NAMES,
    LEVEL_OF_PROPERTIES,
    LEVEL_OF_USERS,
    Build,
    UnsupportedLevel,
)
from flotilla_client.policies import Policy
from flotilla_client.protocol import (
    EARLIEST,
    INTEGER_MAX,
    NEW,
    ProtocolError,
    expiries,
    has_expiry,
    lane_of,
    matches,
)

__all__ = ["CorruptStore", "Delivery", "Done", "Limits", "Outcome", "Refused", "Store"]

BUFFER_BYTES_MAX: Final = 8 * 1024 * 1024  # of publications, before they are written anyway
TOPICS_LOOKED_UP: Final = 256  # at once, where few of them are wanted
LAPSED_TOPICS_MAX: Final = 16  # that one GET of any topic looks behind: about a millisecond
LAPSED: Final = frozenset({"expired", "compacted"})  # what no application is told of
ENDED_MAX: Final = 1_000  # subscriptions that one entry ends, with their topic: some ms


@dataclass(frozen=True)
class Limits:
    """What the cluster takes: part of the state machine, so the same on every node.

    A node keeps topics and subscriptions in memory (40 MB at these limits). `names_bytes_max`
    keeps a client's counters within one header (protocol.TEXT_HEADER_BYTES_MAX).
    """

    topics_max: int = 10_000  # with a subscriber
    topic_names_max: int = TOPIC_NUMBER_MAX  # ever
    subscriptions_max: int = 100_000
    subscriptions_per_client_max: int = 1_000
    patterns_max: int = 1_000  # so many clients at most subscribe where a topic is made: some ms
    patterns_per_client_max: int = 16
    clients_max: int = 1_000_000
    producers_per_client_max: int = 10_000
    names_bytes_max: int = 1024 * 1024
    id_max: int = ID_MAX
    users_max: int = 1_000  # a key for each program; each may have some hundred patterns
    groups: GroupLimits = field(default_factory=GroupLimits)


class Store:
    """One replica's state. Used by one thread; `tables.checkpoint` is for another.

    `timestamp_ms`: of the newest publications, the latest time of day that any leader has said; it
    never goes back, whoever leads (decision 0021). 0: none, below LEVEL_OF_PROPERTIES.

    What the node is asked to do about an entry that it has applied: hand over, see
    `take_successor`; `checkpoint_index`: make durable what was applied up to there. Neither is part
    of the state.
    """

    def __init__(self, database: Database, limits: Limits, build: Build) -> None:
        self._database = database
        self._limits = limits
        self._level_max = build.level_max
        self.level = database.level()
        self.idle = Idle(database, self.level)
        self.audit = Audit(database, self.level)
        self.acts = Acts(database, self.level)
        self._clients = Clients(database, self.idle)
        self.users = Users(database, limits.users_max)
        self.holdings = Holdings(database)
        self._latest = Latest(database)
        self._publications = Publications(database, self._latest, self.holdings.dropped)
        self.delayed = Delayed(database)
        self._entered: set[str] = set()  # see take_entered
        self._topics = Topics(database, self._publications.garbage)
        self.compaction = Compaction(self._topics, self._publications, self._latest)
        self.patterns = Patterns(database)
        self.groups = Groups(
            database,
            self._topics,
            self._publications,
            limits.groups,
            limits.id_max,
            self._takes_letters,
            self._hold_letter,
        )
        self._publications.load(self._topics.active.values())
        self._dirty_members = False
        self._servings = 0  # answers to GETs of any topic, of this object
        self._successor, self.checkpoint_index = "", 0
        self._entry_ms = 0  # what the entry that is being applied stamps its publications
        self._acts_handlers: Final[dict[type, Callable[[Any], Outcome]]] = {
            ChangeUser: self.users.change,
            DropSubscription: self._drop_subscription,
            DropClient: self._drop_client,
            DropGroup: self._drop_group,
            SeekGroup: self._seek_group,
            Purge: self._purge,
            TransferLeader: self._transfer_leader,
            Checkpoint: self._checkpoint,
            SetTopic: self._set_topic,
            DeleteTopic: self._delete_topic,
        }
        self._handlers: Final = {
            Register: self._register,
            Subscribe: self._subscribe,
            Unsubscribe: self._unsubscribe,
            SubscribePattern: self._subscribe_pattern,
            UnsubscribePattern: self._unsubscribe_pattern,
            Put: self._put,
            Advance: self._advance,
            MakeGroup: self._make_group,
            EndGroup: self._end_group,
            Take: self._take,
            Seek: self._seek,
            Admit: self._admit,
            Raise: self._raise,
            **dict.fromkeys(self._acts_handlers, self._act),
            Hear: self._hear,
            Forget: self._forget,
        }
        running = database.running()
        self.timestamp_ms = 0 if running is None else int(running[-1])
        self.members = database.members()
        self._recoveries = database.recoveries()
        self.applied_index, self.applied_term = database.position()
        self._committed_index = self.applied_index

    @classmethod
    def open(
        cls,
        path: Path,
        members: Mapping[str, str],
        limits: Limits = Limits(),
        build: Build = BUILD,
    ) -> Store:
        """Open the database at `path`, or make one with the founding members {name: incarnation}.

        Raises CorruptStore when the file is damaged or another program's, UnsupportedLevel when
        it is of a level that the build does not understand.
        """
        database = Database(path, members)
        try:
            database.position()  # its checksum covers the level
            if not build.understands(database.level()):
                raise UnsupportedLevel(
                    "the cluster, as of this node's store, is at", database.level(), build
                )
            return cls(database, limits, build)
        except BaseException:
            database.close()
            raise

    @staticmethod
    def remove(path: Path) -> None:
        """Remove the database at `path`, if there is one, with all that belongs to it."""
        tables.remove(path)

    # --- applying -------------------------------------------------------------------------------

    def apply(
        self,
        index: int,
        term: int,
        payload: bytes,
        made_of: tuple[Stamp, Sequence[Operation]] | None = None,
    ) -> list[Outcome]:
        """Carry out one committed entry; return one outcome an operation, in order.

        `made_of`: the stamp and the operations that the payload was made of, as `decode` returns
        them, where they are at hand.
        An entry that was applied before is skipped (no outcomes); b"" is Raft's own no-op.
        Raises DamagedEntry, CorruptStore or sqlite3.Error: then the process must end.
        """
        if index <= self.applied_index:
            return []
        assert index == self.applied_index + 1, f"entry {index} after {self.applied_index}"
        outcomes: list[Outcome] = []
        operations: Sequence[Operation] = ()
        self._publications.sealed_crcs.clear()
        self.delayed.added_crcs.clear()
        self._latest.changed.clear()
        if payload:
            stamp, operations = made_of or decode(payload, self._level_max)
            if self.idle.is_on:
                self.idle.pass_to(term, stamp.ms)
                for topic in self._topics.pass_to(self.idle.log_ms):
                    self.groups.expired(topic)
                    self._publications.floor_moved(topic)
            self.compaction.step(index)
            self._entry_ms = max(self.timestamp_ms, stamp.wall_ms)
            for due in self.delayed.take_due(self.idle.log_ms):
                self._let_in(due)
            self.delayed.remove_dropped()
            handlers: Any = self._handlers
            outcomes = [handlers[type(operation)](operation) for operation in operations]
            if self.level >= LEVEL_OF_PROPERTIES:
                self.timestamp_ms = max(self.timestamp_ms, stamp.wall_ms)
            sealed = self._publications.seal(index, self.timestamp_ms, self.idle.log_ms)
            self._topics.grown(sealed)
        self.applied_index, self.applied_term = index, term
        if self.audit.is_on:
            crcs = self._publications.sealed_crcs + self.delayed.added_crcs + self._latest.changed
            self.audit.take(index, term, self.idle.log_ms, operations, outcomes, crcs)
            if is_agreed(index):
                self._flush()
                self.audit.look(index, self._topics)
        if self._publications.buffered_bytes > BUFFER_BYTES_MAX:
            self._flush()
        return outcomes

    @property
    def uncommitted(self) -> int:
        """How many entries were applied since the last commit: a crash has them applied again."""
        return self.applied_index - self._committed_index

    def settle(self, is_due: bool) -> None:
        """End a turn: commit if it is due, or if something was written for a read.

        So no transaction stays open between turns: it would hold up a checkpoint that has to cut
        the WAL.
        """
        if is_due or self._database.in_transaction:
            self.commit()

    def commit(self) -> None:
        """Commit everything applied and collected so far, the applied index with it. No fsync."""
        if self.uncommitted:
            self._flush()
            position = self.applied_index, self.applied_term
            self._database.write_state(*position, self.level)
            if self.idle.is_on:
                row = (*self.idle.row(), *self.audit.row(), self.timestamp_ms)
                self._database.write_running(row)
            self._committed_index = self.applied_index
            self._topics.committed()
        if self._database.in_transaction:
            self._database.commit()

    def close(self) -> None:
        """Close the database; what was not committed is applied again from the log."""
        self._database.close()

    def _flush(self) -> None:
        """Write what is buffered, in the open transaction."""
        if self.level >= LEVEL_OF_PROPERTIES:
            self._database.make_times()
        self._clients.flush()
        self.users.flush()
        self.idle.flush()
        self._topics.flush()
        self.patterns.flush()
        self.groups.flush()
        self._publications.flush()
        if self._dirty_members:
            sql = "INSERT OR REPLACE INTO members VALUES(?, ?, ?)"
            rows = [(*member, row_crc(member)) for member in self.members.items()]
            self._database.write(sql, rows)
            self._dirty_members = False

    # --- operations: clients --------------------------------------------------------------------

    def check_client(
        self, client_id: str, epoch: int | None, principal: str | None = None
    ) -> Refused | None:
        """Return why this process of the client may not act, None if it may."""
        found = self._found(client_id, epoch, principal)
        return found if isinstance(found, Refused) else None

    def _found(self, client_id: str, epoch: int | None, principal: str | None) -> Client | Refused:
        client = self._clients.get(client_id)
        if client is None:
            return self._unknown(client_id)
        if refused := self.not_owned(client_id, principal):
            return refused
        if epoch is not None and epoch != client.epoch:
            return wrong_epoch(epoch, client.epoch)
        return client

    def _identified(
        self, operation: Subscribe | Unsubscribe | Seek | Put | Advance | OfGroups | OfPatterns
    ) -> Client | Refused:
        """Return the client, if this process of it may act.

        A client that is nobody's, of before there were owners, belongs from now on to whose process
        has taken it up. Not to who names it by hand: an operator who ends a subscription of a
        program's would shut that out.
        """
        principal, epoch = operation.principal, operation.epoch
        client = self._found(operation.client_id, epoch, principal)
        if isinstance(client, Client):
            self._clients.hear(client)
            if epoch is not None:
                self._take_possession(client, principal)
        return client

    def _take_possession(self, client: Client, principal: str | None) -> None:
        if principal is not None and client.owner is None:
            self._clients.give(client, principal)
            self.holdings.clients[principal] += 1
            for topic in self._topics.of(client.client_id):
                self.holdings.joined(principal, topic)

    def _unknown(self, client_id: str) -> Refused:
        """Return the refusal of a client that is none: which forgotten ones were is not kept."""
        return forgotten(client_id) if self.idle.forgotten else unknown_client(client_id)

    def _register(self, operation: Register) -> Outcome:
        client = self._clients.get(operation.client_id)
        if operation.fresh:
            return self._register_fresh(operation, client)
        if client is None:
            return self._unknown(operation.client_id)
        if refused := self.not_owned(operation.client_id, operation.principal):
            return refused
        sequence = operation.sequence
        epoch_before = client.epoch
        if sequence is None:
            client.epoch += 1
            client.nonce = ""  # or a retry of the process before would share the new epoch
        elif sequence > client.sequence:
            client.epoch += 1
            client.sequence, client.nonce = sequence, operation.nonce
        elif sequence < client.sequence or not operation.nonce or operation.nonce != client.nonce:
            return stale_request(sequence, client.sequence)
        if client.epoch != epoch_before:
            self.groups.release(client.client_id, self.idle.log_ms)
        self._take_possession(client, operation.principal)
        self._clients.changed(client)
        return self._registered(client)

    def _register_fresh(self, operation: Register, client: Client | None) -> Outcome:
        principal = operation.principal
        if refused := self.lacks_everything(principal):
            return refused
        if client is not None:
            return Refused("bad_request", f"client_id {operation.client_id!r} is taken")
        if self._clients.count >= self._limits.clients_max:
            return too_many("clients", self._limits.clients_max)
        sequence, nonce = operation.sequence or 0, operation.nonce
        if principal is not None:
            self.holdings.clients[principal] += 1
        return self._registered(self._clients.add(operation.client_id, sequence, nonce, principal))

    def _registered(self, client: Client) -> Done:
        """Return who the client is. Its counters, up to 10,000, only who answers it looks up."""
        self._clients.hear(client)
        return Done(
            {
                "client_id": client.client_id,
                "epoch": client.epoch,
                "sequence": client.sequence,
            }
        )

    def _controlling(
        self, operation: Subscribe | Unsubscribe | Seek | MakeGroup | EndGroup | OfPatterns
    ) -> Client | Refused:
        """Return the client after the checks of a control request, its sequence taken.

        The sequence is taken even if the operation is then refused: a late copy of it must not be
        carried out when there is room again.
        """
        client = self._identified(operation)
        if isinstance(client, Refused):
            return client
        sequence = operation.sequence
        if sequence is not None:
            if sequence < client.sequence:
                return stale_request(sequence, client.sequence)
            if sequence > client.sequence:
                client.sequence, client.nonce = sequence, ""
                self._clients.changed(client)
        return client

    def _admit(self, operation: Admit) -> Outcome:
        if operation.node not in self.members:
            return Refused("bad_request", f"{operation.node!r} is no member")
        if self.members[operation.node] != operation.incarnation:
            # A new dictionary: who holds the old one sees that something has changed.
            self.members = {**self.members, operation.node: operation.incarnation}
            self._dirty_members = True
            self._note(operation, {})
        return Done({})

    # --- operations: administrators -------------------------------------------------------------

    @property
    def _applying(self) -> int:
        """The index of the entry that is being applied."""
        return self.applied_index + 1

    def _administrating(self, operation: Administration | Raise) -> Refused | None:
        """Return the refusal of who may not administrate, None if he may."""
        principal = operation.principal
        if principal is None or operation.is_root or self.users.may_administrate(principal):
            return None
        return unauthorized(principal, ADMIN)

    def _act(self, operation: Administration) -> Outcome:
        """Carry out an act of who may, once: a repeated one is answered as it was.

        Whoever asks again is answered so although he may not any more: a refusal would say that it
        was not done.
        """
        if answered := self.acts.answered(operation):
            return answered
        if refused := self._administrating(operation):
            return refused
        outcome = self._acts_handlers[type(operation)](operation)
        if isinstance(outcome, Done):
            self._note(operation, outcome.body)
        return outcome

    def _note(self, operation: Administration | Raise | Admit, body: dict[str, Any]) -> None:
        if self.acts.is_on:
            self.acts.note(self._applying, self.idle.log_ms, operation, body)

    def _raise(self, operation: Raise) -> Outcome:
        before = self.level
        if before >= LEVEL_OF_USERS and (refused := self._administrating(operation)):
            return refused
        self.level = max(before, operation.level)
        self.idle.raise_level(self.level)
        self.audit.raise_level(self.level)
        self.acts.raise_level(self.level)
        if before < LEVEL_OF_USERS <= self.level:
            self.users.found()
        done = Done({"level": self.level, "before": before})
        if self.level > before:
            self._note(operation, done.body)
        return done

    def _drop_subscription(self, operation: DropSubscription) -> Outcome:
        client = self._clients.get(operation.client_id)
        if client is None:
            return self._unknown(operation.client_id)
        return self._leave_pattern(client, operation.topic) or self._leave(client, operation.topic)

    def _drop_client(self, operation: DropClient) -> Outcome:
        client = self._clients.get(operation.client_id)
        if client is None:
            return self._unknown(operation.client_id)
        return Done({"forgotten": [operation.client_id], "left": sorted(self._remove(client))})

    def _transfer_leader(self, operation: TransferLeader) -> Outcome:
        self._successor = operation.chosen
        return Done({"node": operation.chosen})

    def take_successor(self) -> str:
        """Return whom the leader is to hand over to, once; "" for nobody."""
        name, self._successor = self._successor, ""
        return name

    def _checkpoint(self, operation: Checkpoint) -> Outcome:
        self.checkpoint_index = self._applying
        return Done({"index": self._applying})

    def _purge(self, operation: Purge) -> Outcome:
        """Let what a topic holds up to an id be gone, whoever has not read it."""
        topic = self._topics.active.get(operation.topic)
        if topic is None:
            return no_topic(operation.topic)
        if operation.last_id > topic.last_id:
            return beyond_the_end(operation.last_id, topic.last_id)
        floor_before = topic.floor_id
        if operation.last_id > topic.purged_id:
            self._topics.purge(topic, operation.last_id)
            self.groups.gone(topic)
            self._publications.floor_moved(topic)
        return Done({"purged": topic.floor_id - floor_before, "last_id": operation.last_id})

    def _set_topic(self, operation: SetTopic) -> Outcome:
        """Give a topic a policy, or change some of the one that it has."""
        name, topic = operation.topic, self._topics.active.get(operation.topic)
        kept = None if topic is None else topic.retention
        if kept is None and not operation.is_new:
            return Refused("unknown_topic", f"{name!r} has no policy: `topic create` gives it one")
        before = None if kept is None else kept.policy
        try:
            start = Policy() if operation.is_new or before is None else before
            policy = start.changed(operation.parts)
        except ProtocolError as error:
            return Refused(error.code, error.message)
        if before is not None and before.compact != policy.compact and not operation.is_new:
            message = f"{name!r} was made so: whether a topic is compacted does not change"
            return Refused("bad_request", message)
        if operation.is_new and before not in (None, policy):
            message = f"{name!r} has another policy ({before}): `topic alter` changes it"
            return Refused("bad_request", message)
        if topic is None:
            found = self._new_topic(name)
            if isinstance(found, Refused):
                return found
            topic = found
        is_new = not topic.is_active
        base_bytes = self._publications.bytes_before(topic, topic.dead_id + 1)
        self._topics.set_policy(topic, policy, base_bytes, self.idle.log_ms)
        self.groups.gone(topic)
        self._publications.floor_moved(topic)
        if is_new:
            self._bring(topic)
        return Done({"policy": policy.parts(), "created": before is None, "last_id": topic.last_id})

    def _new_topic(self, name: str) -> Topic | Refused:
        """Return a topic that nobody subscribes to, which may have been there before."""
        if len(self._topics.active) >= self._limits.topics_max:
            return too_many("topics", self._limits.topics_max)
        topic = self._topics.inactive(name)
        if topic is None:
            if self._topics.names_count >= self._limits.topic_names_max:
                return too_many("topic names", self._limits.topic_names_max)
            topic = self._topics.create(name)
        return topic

    def _delete_topic(self, operation: DeleteTopic) -> Outcome:
        """Let a topic be gone, with all that it holds; its ids go on if it comes again."""
        topic = self._topics.active.get(operation.topic)
        if topic is None:
            return no_topic(operation.topic)
        ids = sorted(topic.subscribers)
        count = len(ids) + len(topic.groups)
        if count and not operation.ends:
            message = f"{count} subscribe to {operation.topic!r}: `ends` ends that"
            return Refused("bad_request", message, {"subscribers": count})
        if len(ids) > ENDED_MAX:
            return too_many("subscriptions that are ended with a topic", ENDED_MAX)
        held = topic.last_id - topic.floor_id
        for client_id in ids:
            client = self._clients.get(client_id)
            assert client is not None, client_id
            self._leave(client, operation.topic)
        for group in sorted(topic.groups):
            self._drop(operation.topic, group)
        if topic.retention is not None:
            self._topics.end_policy(topic)
            self._publications.floor_moved(topic)
        self.delayed.drop(topic)
        return Done({"last_id": topic.last_id, "deleted": held, "ended": count})

    def is_to_be_heard(self, client_id: str, silent_ms: int) -> bool:
        """Return whether the log has not heard the client for so long, though it is here now."""
        client = self._clients.get(client_id)
        return (
            client is not None
            and self.idle.is_on
            and self.idle.silent_ms(client.heard) >= silent_ms
        )

    # --- operations: silent clients -------------------------------------------------------------

    def _hear(self, operation: Hear) -> Outcome:
        for client_id in operation.client_ids:
            if client := self._clients.get(client_id):
                self._clients.hear(client)
        return Done({})

    def _forget(self, operation: Forget) -> Outcome:
        """Forget who is still silent: since this was proposed somebody may have been heard."""
        gone: list[str] = []
        left: set[str] = set()
        for client_id in operation.client_ids:
            client = self._clients.get(client_id)
            if client is None or self.idle.silent_ms(client.heard) < operation.silent_ms:
                continue
            left |= self._remove(client)
            gone.append(client_id)
        return Done({"forgotten": gone, "left": sorted(left)})

    def _remove(self, client: Client) -> set[str]:
        """Forget a client with all that it has; return the topics that it has left."""
        for pattern in list(self.patterns.of(client.client_id).values()):
            self.patterns.end(pattern)
        topics = self._topics.of(client.client_id)
        left = set(topics)
        for topic in list(topics.values()):
            self.holdings.left(client.owner, topic.name)
            self._topics.leave(client, topic)
            self._publications.floor_moved(topic)
        if client.owner is not None:
            self.holdings.clients[client.owner] -= 1
        self.groups.release(client.client_id, self.idle.log_ms, is_gone=True)
        self._clients.forget(client, may_come_again=self.level >= LEVEL_OF_NAMES)
        return left

    # --- operations: subscriptions --------------------------------------------------------------

    def _subscribe(self, operation: Subscribe) -> Outcome:
        client = self._controlling(operation)
        if isinstance(client, Refused):
            return client
        if refused := self.lacks(operation.principal, SUBSCRIBE, operation.topic):
            return refused
        topic = self._topics.active.get(operation.topic)
        if topic and (subscription := topic.subscribers.get(client.client_id)):
            self._topics.name(client, topic)
            return Done(_place(subscription) | {"resumed": True})
        if refused := self._no_room(client, None, [operation.topic]):
            return refused
        found = topic or self._new_topic(operation.topic)
        if isinstance(found, Refused):
            return found
        is_new, topic, cursor = topic is None, found, self._cursor_of(found, operation.start)
        if isinstance(cursor, Refused):
            return cursor
        placed = 0 if operation.start == NEW else self._applying
        self.holdings.joined(client.owner, topic.name)
        self._topics.join(client, topic, cursor, placed)
        if is_new:
            self._bring(topic)
        return Done(_place(topic.subscribers[client.client_id]) | {"resumed": False})

    def _cursor_of(self, topic: Topic, start: str | int) -> int | Refused:
        """Return behind which id a subscription reads that is to start there."""
        if start == NEW:
            return topic.last_id
        if start == EARLIEST:
            return topic.floor_id
        if isinstance(start, str):
            return self._publications.before_time(topic, int(start[1:]), self._entry_ms)
        if start > topic.last_id + 1:
            return not_there_yet(topic.name, start, topic.last_id)
        if start <= topic.floor_id:
            return not_kept(topic.name, start - 1, topic.floor_id)
        return start - 1

    def _seek(self, operation: Seek) -> Outcome:
        """Move a cursor to either side; nothing that was read before acknowledges from then on."""
        client = self._controlling(operation)
        if isinstance(client, Refused):
            return client
        if refused := self.lacks(operation.principal, SUBSCRIBE, operation.topic):
            return refused
        found = self._subscription(client.client_id, operation.topic)
        if isinstance(found, Refused):
            return found
        topic, subscription = found
        cursor = self._cursor_of(topic, operation.start)
        if isinstance(cursor, Refused):
            return cursor
        self._topics.place(client.client_id, topic, cursor, self._applying)
        self._publications.floor_moved(topic)
        return Done(_place(subscription))

    def _no_room(
        self, client: Client, pattern: Pattern | None, names: Sequence[str]
    ) -> Refused | None:
        """Return why a client can't subscribe to so many topics more; `pattern`: that brings them.

        What a principal may have by a setting of the leader is judged here for patterns alone: of
        others the leader does it, before there is an entry.
        """
        limits = self._limits
        own = len(self._topics.of(client.client_id)) + len(names)
        if own > limits.subscriptions_per_client_max:
            return too_many("subscriptions of the client", limits.subscriptions_per_client_max)
        if self._topics.subscriptions_count + len(names) > limits.subscriptions_max:
            return too_many("subscriptions", limits.subscriptions_max)
        owner = client.owner
        if pattern is None or owner is None or not names:
            return None  # who has too many, by clients of his before, may still ask for what he has
        holdings, new = self.holdings, sum(not self.holdings.holds(owner, name) for name in names)
        for quota, limit, held, more in (
            ("topics_max", pattern.topics_max, holdings.topics(owner), new),
            (
                "subscriptions_max",
                pattern.subscriptions_max,
                holdings.subscriptions[owner],
                len(names),
            ),
        ):
            if more and 0 < limit < held + more:
                text = f"{owner} would have {held + more}: quotas.{quota} is {limit}"
                return Refused("quota", text, {"quota": quota, "limit": limit})
        return None

    def _unsubscribe(self, operation: Unsubscribe) -> Outcome:
        """End a subscription, but for one that a pattern brings: that would bring it again."""
        client = self._controlling(operation)
        if isinstance(client, Refused):
            return client
        name = operation.topic
        if name in self._topics.of(client.client_id):
            for pattern in self.patterns.covering(client.client_id, name):
                text = f"{name!r} comes by the client's pattern {pattern.text!r}: UNSUB that"
                return Refused("bad_request", text, {"pattern": pattern.text})
        return self._leave(client, name)

    def _leave(self, client: Client, name: str) -> Done:
        topic = self._topics.of(client.client_id).get(name)
        if topic is None:
            return Done({"was_subscribed": False})
        self.holdings.left(client.owner, topic.name)
        self._topics.leave(client, topic)
        self._publications.floor_moved(topic)
        return Done({"was_subscribed": True})

    # --- operations: patterns -------------------------------------------------------------------

    def _subscribe_pattern(self, operation: SubscribePattern) -> Outcome:
        """Subscribe to the topics of a pattern: to all of them that there are, or to none.

        Where the pattern stands already, to those that it has missed.
        """
        client = self._controlling(operation)
        if isinstance(client, Refused):
            return client
        text, principal = operation.topic, operation.principal
        if refused := self.lacks(principal, SUBSCRIBE, text):
            return refused
        own = self._topics.of(client.client_id)
        if text in own:  # a topic that is called so, from before there were patterns
            return Done(_place(own[text].subscribers[client.client_id]) | {"resumed": True})
        before = self.patterns.of(client.client_id).get(text)
        if before is None and (refused := self._no_room_for_pattern(client)):
            return refused
        wanted = (
            topic
            for topic in self._topics.matching(text)
            if topic.name not in own and not self.lacks(principal, SUBSCRIBE, topic.name)
        )
        # One more than there is room for is refused as ten thousand more are.
        room = max(0, self._limits.subscriptions_per_client_max - len(own))
        new = list(islice(wanted, room + 1))
        at = self._applying if before is None else before.at
        pattern = Pattern(
            client.client_id,
            client.number,
            text,
            at,
            principal,
            operation.topics_max,
            subscriptions_max=operation.subscriptions_max,
        )
        if refused := self._no_room(client, pattern, [topic.name for topic in new]):
            return refused
        self.patterns.set(pattern)
        placed = 0 if operation.start == NEW else self._applying
        for topic in new:
            cursor = self._cursor_of(topic, operation.start)
            assert not isinstance(cursor, Refused), (topic, operation)
            self.holdings.joined(client.owner, topic.name)
            self._topics.join(client, topic, cursor, placed, is_brought=True)
        return Done({"last_id": 0, "resumed": before is not None, **self._brought(pattern)})

    def _brought(self, pattern: Pattern) -> dict[str, Any]:
        """Return what a client is told of where it stands in a pattern's topics."""
        client_id, own = pattern.client_id, self._topics.of(pattern.client_id)
        names = [name for name in sorted(own) if matches(pattern.text, name)]
        subscriptions = {name: own[name].subscribers[client_id] for name in names}
        return {
            "pattern": pattern.at,
            "topics": {name: each.cursor for name, each in subscriptions.items()},
            "placed": {name: each.placed for name, each in subscriptions.items() if each.placed},
        }

    def _no_room_for_pattern(self, client: Client) -> Refused | None:
        limits = self._limits
        if len(self.patterns.of(client.client_id)) >= limits.patterns_per_client_max:
            return too_many("patterns of the client", limits.patterns_per_client_max)
        if self.patterns.count >= limits.patterns_max:
            return too_many("patterns", limits.patterns_max)
        return None

    def _unsubscribe_pattern(self, operation: UnsubscribePattern) -> Outcome:
        client = self._controlling(operation)
        if isinstance(client, Refused):
            return client
        text = operation.topic
        return self._leave_pattern(client, text) or Done(
            self._leave(client, text).body | {"topics": self._own_of(client, text)}
        )

    def _leave_pattern(self, client: Client, text: str) -> Done | None:
        """End a pattern and what it alone has brought; None: the client has not got it."""
        pattern = self.patterns.of(client.client_id).get(text)
        if pattern is None:
            return None
        self.patterns.end(pattern)
        for topic in list(self._topics.of(client.client_id).values()):
            is_brought = topic.subscribers[client.client_id].is_brought
            if is_brought and not self.patterns.covering(client.client_id, topic.name):
                self._leave(client, topic.name)
        return Done({"was_subscribed": True, "topics": self._own_of(client, text)})

    def _own_of(self, client: Client, text: str) -> list[str]:
        """Return the client's topics that are of a pattern, by name."""
        own = self._topics.of(client.client_id)
        return sorted(name for name in own if name != text and matches(text, name))

    def _make(self, name: str, count: int) -> Topic | None:
        """Make a topic that only patterns ask for; None: none does, or there is no room for it.

        `count`: so many publications are to be put there. Where there is no room its patterns have
        missed it.
        """
        wanted = list(self._wanting(name))
        if not wanted:
            return None
        topic = self._new_topic(name)
        if isinstance(topic, Refused) or self._is_over_ids(topic, count):
            for _, patterns in wanted:
                for pattern in patterns:
                    self.patterns.has_missed(pattern, name)
            return None
        self._bring(topic)
        return topic if topic.is_active else None

    def brings(self, name: str) -> int:
        """Return how many patterns' subscriptions a topic may make that is not there yet."""
        if not self.patterns.count or name in self._topics.active:
            return 0
        return sum(len(patterns) for _, patterns in self.patterns.of_topic(name))

    def is_new_name(self, name: str) -> bool:
        """Return whether no topic was ever called so."""
        return name not in self._topics.active and self._topics.inactive(name) is None

    def _wanting(self, name: str) -> Iterator[tuple[str, list[Pattern]]]:
        """Yield the clients whose patterns a topic is of, with those that they may have it by."""
        for client_id, patterns in self.patterns.of_topic(name):
            able = [each for each in patterns if not self.lacks(each.principal, SUBSCRIBE, name)]
            if able:
                yield client_id, able

    def _bring(self, topic: Topic) -> None:
        """Subscribe all to a new topic whose patterns it is of, from what comes next on."""
        for client_id, patterns in self._wanting(topic.name):
            if client_id in topic.subscribers:
                continue
            client = self._clients.get(client_id)
            assert client is not None, client_id
            if all(self._no_room(client, each, [topic.name]) for each in patterns):
                for pattern in patterns:
                    self.patterns.has_missed(pattern, topic.name)
                continue
            self.holdings.joined(client.owner, topic.name)
            self._topics.join(client, topic, topic.last_id, 0, is_brought=True)

    # --- operations: groups ---------------------------------------------------------------------

    def _make_group(self, operation: MakeGroup) -> Outcome:
        client = self._controlling(operation)
        if isinstance(client, Refused):
            return client
        principal = operation.principal
        if refused := self.lacks(principal, SUBSCRIBE, operation.topic):
            return refused
        if operation.dead_letter and (
            refused := self.lacks(principal, PUBLISH, operation.dead_letter)
        ):
            return refused
        group = self.groups.get(operation.topic, operation.group)
        is_new = group is None
        if group is not None and operation.ordered_by_key not in (None, group.order is not None):
            return another_choice(operation.topic, operation.group, group.order is not None)
        if refused := self._without_dead_letters(operation, group):
            return refused
        if group is None:
            made = self._new_group(operation)
            if isinstance(made, Refused):
                return made
            group = made
        self.groups.set(group, operation)
        return Done(
            {
                "last_id": group.cursor,
                "resumed": not is_new,
                "lease_ms": group.lease_ms,
                "max_attempts": group.max_attempts,
                "dead_letter": group.dead_letter,
                "ordered_by_key": group.order is not None,
                **({"compacted": True} if group.topic.is_compacted else {}),
            }
        )

    def _without_dead_letters(
        self, operation: MakeGroup, group: SharedGroup | None
    ) -> Refused | None:
        """Return the refusal of a group that would give up, and has nowhere to put it."""
        if not operation.max_attempts or operation.dead_letter:
            return None
        if group is not None and operation.dead_letter is None and group.dead_letter:
            return None
        topic = self._topics.active.get(operation.topic)
        kept = None if topic is None else topic.retention
        if kept is not None and kept.policy.dead_letter:
            return None
        message = f"`max_attempts` takes a `dead_letter`: {operation.topic!r} says none for groups"
        return Refused("bad_request", message)

    def _new_group(self, operation: MakeGroup) -> SharedGroup | Refused:
        topic = self._topics.active.get(operation.topic)
        if refused := self.groups.refuse_another():
            return refused
        found = topic or self._new_topic(operation.topic)
        if isinstance(found, Refused):
            return found
        cursor = self._cursor_of(found, operation.start)
        if isinstance(cursor, Refused):
            return cursor
        group = self.groups.make(found, operation, cursor, self._applying)
        self.holdings.made(operation.principal, operation.topic, operation.group)
        if topic is None:
            self._bring(found)
        return group

    def _end_group(self, operation: EndGroup) -> Outcome:
        client = self._controlling(operation)
        if isinstance(client, Refused):
            return client
        if refused := self.lacks(operation.principal, SUBSCRIBE, operation.topic):
            return refused
        return self._drop(operation.topic, operation.group)

    def _drop_group(self, operation: DropGroup) -> Outcome:
        return self._drop(operation.topic, operation.group)

    def _seek_group(self, operation: SeekGroup) -> Outcome:
        """Have a group begin anew, to either side of where it stands."""
        group = self._group(operation.topic, operation.group)
        if isinstance(group, Refused):
            return group
        cursor = self._cursor_of(group.topic, operation.start)
        if isinstance(cursor, Refused):
            return cursor
        self.groups.seek(group, cursor)
        return Done({"last_id": cursor})

    def _drop(self, topic: str, name: str) -> Done:
        group = self.groups.get(topic, name)
        if group is not None:
            self.groups.end(group)
            self.holdings.ended(topic, name)
        return Done({"was_subscribed": group is not None})

    def _take(self, operation: Take) -> Outcome:
        client = self._identified(operation)
        if isinstance(client, Refused):
            return client
        if refused := self.lacks(operation.principal, SUBSCRIBE, operation.topic):
            return refused
        group = self._group(operation.topic, operation.group)
        if isinstance(group, Refused):
            return group
        return self.groups.take(group, operation, self.idle.log_ms, self._applying)

    def _group(self, topic: str, name: str) -> SharedGroup | Refused:
        group = self.groups.get(topic, name)
        return group or (no_group(topic, name) if topic in self._topics.active else no_topic(topic))

    # --- operations: publications ---------------------------------------------------------------

    def _put(self, operation: Put) -> Outcome:
        client = self._identified(operation)
        if isinstance(client, Refused):
            return client
        count = len(operation.lengths) >> 2
        lane = lane_of(operation.topic, operation.is_delayed)
        producer = self._clients.producer(client, lane)
        lacking = self.lacks(operation.principal, PUBLISH, operation.topic)
        # What is stored is stored: its own publisher hears so, whatever he may do now.
        if lacking is not None and (producer is None or operation.counter > producer.counter):
            return lacking
        if producer is not None and operation.counter != producer.counter + 1:
            return self._put_again(operation, producer, count)
        if operation.counter + count - 1 > INTEGER_MAX:
            return Refused("bad_request", f"`counter` would pass {INTEGER_MAX}")
        topic = self._topics.active.get(operation.topic)
        is_none = topic is None
        if topic is not None and not topic.takes:
            topic = None
        if topic is not None and (refused := self._no_room_in(topic, operation)):
            return refused
        if producer is None:
            created = self._create_producer(client, lane)
            if isinstance(created, Refused):
                return created
            producer = created
        first_id = 0
        if is_none:
            topic = self._make(operation.topic, count)
        if topic is not None:
            batch, principal = (operation.lengths, operation.data), operation.principal
            if operation.is_delayed:
                first_id = self.delayed.add(topic, principal, *batch, self.idle.log_ms)
            else:
                first_id = self._add(topic, principal, *batch, operation.has_expiry)
        self._clients.record(producer, operation.counter, count, first_id)
        return _put_done(operation, count, first_id, is_duplicate=False, stored=topic is not None)

    def _add(
        self, topic: Topic, principal: str | None, lengths: bytes, data: bytes, has_expiry: bool
    ) -> int:
        """Put a batch behind what a topic has; return its first id."""
        size_bytes, log_ms, over = len(lengths) + len(data), self.idle.log_ms, NEVER
        self._hold(topic, principal, size_bytes)
        if self._topics.make_room(topic, size_bytes):
            self.groups.gone(topic)
        if has_expiry:
            over = over_ms(log_ms, expiries(lengths, data))
        first_id = self._publications.add(topic, len(lengths) >> 2, lengths, data, has_expiry)
        self._topics.put(topic, log_ms, first_id - 1, over)
        self._publications.floor_moved(topic)
        return first_id

    def _let_in(self, due: Due) -> None:
        """Put what is due into its topic, as if it came now: where nobody wants it, it is gone.

        There is room for it: it was counted since it was stored.
        """
        topic = self._topics.active.get(due.topic)
        if topic is not None and topic.takes:
            batch = due.lengths, due.data
            self._add(topic, due.principal, *batch, has_expiry(*batch))
            self._entered.add(due.topic)

    def take_entered(self) -> list[str]:
        """Return, once, the topics into which dead letters have come, or what was delayed."""
        names = sorted(self._entered)
        self._entered.clear()
        return names

    def _no_room_in(self, topic: Topic, operation: Put) -> Refused | None:
        if self._is_over_ids(topic, len(operation.lengths) >> 2):
            return too_many("publications in the topic", self._limits.id_max)
        size_bytes = len(operation.lengths) + len(operation.data)
        return self.too_full(topic.name, size_bytes, operation.is_delayed)

    def _is_over_ids(self, topic: Topic, count: int) -> bool:
        """Return whether a topic has no ids for so many more, and for what waits."""
        return topic.last_id + self.delayed.count_of(topic) + count > self._limits.id_max

    def too_full(self, name: str, size_bytes: int, is_delayed: bool = False) -> Refused | None:
        """Return why a topic's policy takes no so many bytes more, None if it does.

        What waits counts as held. A policy that drops the oldest drops nothing that waits, so all
        of that has to have room.

        Never `too_large`, which a client takes for a property of the request: it forgets what it
        may have sent before. A policy may change between two attempts, and the earlier one be
        stored behind the later one's refusal.
        """
        topic = self._topics.active.get(name)
        kept = None if topic is None else topic.retention
        if topic is None or kept is None or not kept.policy.max_bytes:
            return None
        limit = kept.policy.max_bytes
        if size_bytes > limit:
            message = f"{size_bytes} bytes at once are more than {name!r} may hold"
            return Refused("backlog_full", message, {"limit": limit})
        drops = kept.policy.drops
        if drops and not is_delayed:
            return None
        held = self.delayed.bytes_for(topic) + size_bytes
        if topic.is_compacted:
            held += self.compaction.held_bytes(topic)
        else:
            held += 0 if drops else kept.held_bytes(topic.added_bytes)
        if held <= limit:
            return None
        message = f"{name!r} would hold {held} bytes"
        return Refused("backlog_full", message, {"limit": limit})

    def _takes_letters(self, name: str) -> bool:
        """Return whether a topic has room for a dead letter: it is not yet at its bound.

        One letter may get it over that, or a large one would never go.
        """
        return self.level < LEVEL_OF_DEAD_LETTERS or self.too_full(name, 1) is None

    def _hold(self, topic: Topic, principal: str | None, size_bytes: int) -> None:
        """Count whose the bytes are."""
        if principal is not None:
            self.holdings.before(topic.name, topic.added_bytes - topic.dropped_bytes)
        self.holdings.put(principal, topic.name, size_bytes)

    def _hold_letter(self, letters: Topic, origin: str, group: str, size_bytes: int) -> None:
        """Count a dead letter for who has made its group: he says where to they go."""
        self._hold(letters, self.holdings.maker(origin, group), size_bytes)
        self._entered.add(letters.name)

    def unread_bytes_of(self, principal: str) -> int:
        """Return how many bytes of a principal's nobody has read, or can read yet."""
        return self.holdings.unread_bytes[principal] + self.delayed.bytes_of[principal]

    def _put_again(self, operation: Put, producer: Producer, count: int) -> Outcome:
        """Answer a PUT whose first counter is not the one behind the producer's last."""
        if operation.counter > producer.counter:
            expected = producer.counter + 1
            message = (
                f"`counter` {operation.counter} leaves a hole, {expected} is expected: one before"
                " it was not sent, or the cluster was recovered, or its data put back, and what"
                f" had the counters between is lost. Go on with {expected}"
            )
            return Refused("counter_gap", message, {"expected": expected})
        if operation.counter + count - 1 > producer.counter:
            message = (
                f"counters {operation.counter} to {operation.counter + count - 1} overlap what is"
                f" stored, up to {producer.counter}, in part: they were other batches' before the"
                " client's data, or the cluster's, was put back. Send what is above"
                f" {producer.counter} in a batch that begins with {producer.counter + 1}"
            )
            return Refused("bad_request", message)
        first_id = self._clients.original_id(producer, operation.counter)
        stored = None if first_id is None else first_id > 0
        return _put_done(operation, count, first_id or 0, is_duplicate=True, stored=stored)

    def _create_producer(self, client: Client, topic: str) -> Producer | Refused:
        limits = self._limits
        if client.producers >= limits.producers_per_client_max:
            return too_many("topics the client put to", limits.producers_per_client_max)
        name_bytes = len(orjson.dumps(topic))
        if client.names_bytes + name_bytes > limits.names_bytes_max:
            return too_many("bytes of names of topics it put to", limits.names_bytes_max)
        return self._clients.add_producer(client, topic, name_bytes)

    def _advance(self, operation: Advance) -> Outcome:
        client = self._identified(operation)
        if isinstance(client, Refused):
            return client
        moves: list[tuple[Topic, int]] = []
        hidden: Refused | None = None
        own = self._topics.of(client.client_id)
        for name, cursor in operation.cursors.items():
            if lacking := self.lacks(operation.principal, SUBSCRIBE, name):
                if name not in own:
                    return lacking
                hidden = lacking  # it stands where it stands, and must not hold up the others
                continue
            found = self._subscription(operation.client_id, name)
            if isinstance(found, Refused):
                return found
            topic, subscription = found
            if operation.placed.get(name, 0) != subscription.placed:
                return moved(name, subscription.cursor, subscription.placed)
            if cursor > topic.last_id:
                return beyond_the_end(cursor, topic.last_id)
            if cursor > subscription.cursor:
                moves.append((topic, cursor))
        if hidden is not None and not moves:
            return hidden
        for topic, cursor in moves:
            self._topics.advance(client.client_id, topic, cursor)
            self._publications.floor_moved(topic)
        return Done({})

    # --- permissions ----------------------------------------------------------------------------

    def lacks(self, principal: str | None, right: str, topic: str) -> Refused | None:
        """Return the refusal of who may not do it on a topic, None if he may."""
        if principal is None or self.level < LEVEL_OF_USERS:
            return None
        if self.users.may(principal, right, topic):
            return None
        return unauthorized(principal, right, repr(topic))

    def lacks_everything(self, principal: str | None) -> Refused | None:
        """Return the refusal of who may neither publish nor subscribe to anything."""
        if principal is None or self.users.may_anything(principal):
            return None
        message = f"{principal} may neither `{PUBLISH}` nor `{SUBSCRIBE}` to anything"
        return Refused("unauthorized", message, {"needs": PUBLISH})

    def has_client(self, client_id: str) -> bool:
        """Return whether a client is known by that id."""
        return self._clients.get(client_id) is not None

    def not_owned(self, client_id: str, principal: str | None) -> Refused | None:
        """Return the refusal of who uses another principal's client, None if it is not one."""
        client = self._clients.get(client_id)
        if principal is None or client is None or client.owner in (None, principal):
            return None
        return not_the_owner()

    def _hidden(self, principal: str | None, topics: Mapping[str, Topic]) -> set[str]:
        """Return which of a client's topics its principal may not read any more."""
        if principal is None or self.level < LEVEL_OF_USERS:
            return set()
        return {name for name in topics if not self.users.may(principal, SUBSCRIBE, name)}

    # --- reads ----------------------------------------------------------------------------------

    def read(
        self,
        client_id: str,
        topic: str,
        last_id: int | None,
        max_count: int,
        max_bytes: int,
        placed: int = 0,
        knows_expiry: bool = True,
        looked: Mapping[str, Looked] = MappingProxyType({}),
        knows_runs: bool = False,
    ) -> Delivery | Looked | Refused:
        """Return what the client has not got of the topic: after `last_id`, or its cursor.

        At least one publication if there is any, even one over `max_bytes`; none behind one that
        has expired, or is compacted away. Of what is so in front of all it is told beside what
        follows; alone, where nothing does. `placed`: which entry, as the client knows, has placed
        its subscription. `knows_expiry`: see `outcomes.expired`. `looked`, by topic: what it has
        returned before, which is no answer: what has expired is looked at in steps. `knows_runs`:
        it takes several, with what is compacted away between them.
        """
        start = self._start(client_id, topic, last_id, placed)
        if isinstance(start, Refused):
            return start
        return self._deliver(*start, max_count, max_bytes, knows_expiry, looked, knows_runs)

    def read_any(
        self,
        client_id: str,
        last_ids: Mapping[str, int],
        max_count: int,
        max_bytes: int,
        principal: str | None = None,
        placed: Mapping[str, int] = MappingProxyType({}),
        knows_expiry: bool = True,
        looked: Mapping[str, Looked] = MappingProxyType({}),
        knows_runs: bool = False,
    ) -> Delivery | Looked | Refused:
        """Return publications of that topic of the client's that was read longest ago.

        Of those that are alike, as none was read since this node leads, the one whose next
        publication waits longest. So no topic waits behind a hot one for more than a round. One of
        which all has expired stands behind those that have something, LAPSED_TOPICS_MAX of such: it
        is told of where none of these has. `last_ids` {topic: id the client has}, `placed`, by
        topic, as in `read`; its cursor counts for topics left out. A topic that the principal may
        not read any more is as if it were not there; if that is so of all, he is refused.
        """
        own = self._topics.of(client_id)
        unread = self._unread(client_id, principal)
        hidden = unread.hidden
        if principal is not None and own and len(hidden) == len(own):
            return unauthorized(principal, SUBSCRIBE, "any topic that it subscribes to")
        elsewhere: dict[str, int] = {}  # where the client says it is, and its cursor is not
        for name, last_id in last_ids.items():
            if name in hidden:
                continue
            if (topic := own.get(name)) is None:
                if lacking := self.lacks(principal, SUBSCRIBE, name):
                    return lacking
            else:
                subscription, at = topic.subscribers[client_id], placed.get(name, 0)
                is_there = last_id == subscription.cursor >= topic.floor_id
                if is_there and at == subscription.placed:
                    continue  # as most of a thousand are
            start = self._start(client_id, name, last_id, placed.get(name, 0))
            if isinstance(start, Refused):
                return start
            elsewhere[name] = last_id
        if (pattern := self.patterns.missed_by(client_id)) is not None:
            return missed(pattern.text, pattern.missed)
        waiting = [
            (own[name], own[name].subscribers[client_id], last_id)
            for name, last_id in elsewhere.items()
            if last_id < own[name].last_id
        ]
        waiting += unread.gone(apart_from=elsewhere)
        lapsed: Refused | None = None
        for topic, _, last_id in self._in_turn(waiting, unread, set(elsewhere)):
            bounds = max_count, max_bytes
            found = self._deliver(topic, last_id, *bounds, knows_expiry, looked, knows_runs)
            if (
                not isinstance(found, Refused)
                or _may_pass(topic, found)
                or found.code not in LAPSED
            ):
                return found
            lapsed = lapsed or found
        return lapsed or Delivery("", 0, 0, b"", b"")

    def _in_turn(
        self,
        waiting: list[tuple[Topic, Subscription, int]],
        unread: Unread,
        apart_from: set[str],
    ) -> Iterator[tuple[Topic, Subscription, int]]:
        """Yield LAPSED_TOPICS_MAX topics at most whose turn it is, of those and of the unread."""
        first = unread.first(apart_from)
        for _ in range(LAPSED_TOPICS_MAX):
            places = waiting if first is None else [*waiting, first]
            if not places:
                return
            place = self._next_of(places)
            yield place
            if place is first:
                apart_from.add(place[0].name)
                first = unread.first(apart_from)
            else:
                waiting.remove(place)

    def _unread(self, client_id: str, principal: str | None) -> Unread:
        """Return what a client has not read, for its principal, looked at."""
        topics, unread = self._topics, self._topics.unread(client_id)
        has_all = principal is None or self.level < LEVEL_OF_USERS
        unread.look(
            None if has_all else (principal, self.users.changes),
            lambda name: not (has_all or self.users.may(principal or "", SUBSCRIBE, name)),
            self._age,
            topics.lost_since(unread.losses),
        )
        unread.losses = topics.losses_count
        return unread

    def note_turn(self, client_id: str, topic: str) -> None:
        """Note that what `read_any` returned of a topic is sent: what expires before is not."""
        self._servings += 1
        self._topics.of(client_id)[topic].subscribers[client_id].served = self._servings
        self._topics.stir(client_id, topic)

    def _next_of(
        self, waiting: list[tuple[Topic, Subscription, int]]
    ) -> tuple[Topic, Subscription, int]:
        """Return whose turn it is."""
        longest_ago = min(subscription.served for _, subscription, _ in waiting)
        waiting = [place for place in waiting if place[1].served == longest_ago]
        return waiting[0] if len(waiting) == 1 else min(waiting, key=self._age)

    def _age(self, place: tuple[Topic, Subscription, int]) -> tuple[int, str]:
        """Return which entry brought the publication that is next for a subscriber, and its topic.

        It is kept, or a client with a thousand topics would cost as many queries each time.
        """
        topic, subscription, last_id = place
        last_id = max(last_id, topic.floor_id)  # what is below has expired, and is passed
        if last_id == topic.last_id:
            return ID_MAX, topic.name  # nothing of it is there: it stands behind the others
        if subscription.aged_id != last_id:
            subscription.age = self._publications.entry_of(topic, last_id + 1)
            subscription.aged_id = last_id
        return subscription.age, topic.name

    def _subscription(self, client_id: str, name: str) -> tuple[Topic, Subscription] | Refused:
        topic = self._topics.active.get(name)
        if topic is None:
            return no_topic(name)
        subscription = topic.subscribers.get(client_id)
        if subscription is None:
            return Refused("not_subscribed", f"the client has no subscription to {name!r}")
        return topic, subscription

    def _start(
        self, client_id: str, name: str, last_id: int | None, placed: int
    ) -> tuple[Topic, int] | Refused:
        """Return the topic and the id behind which the client reads on."""
        found = self._subscription(client_id, name)
        if isinstance(found, Refused):  # who asks for any topic has to hear which one it is
            return Refused(found.code, found.message, {"topic": name})
        topic, subscription = found
        if last_id is not None and placed != subscription.placed:
            return moved(name, subscription.cursor, subscription.placed)
        start = subscription.cursor if last_id is None else last_id
        if start > topic.last_id:
            return beyond_the_end(start, topic.last_id)
        if topic.gone_id <= start < min(topic.floor_id, subscription.cursor):
            message = f"publications after {last_id} of {name!r} are gone"
            details = {"topic": name, "cursor": subscription.cursor}
            return Refused("already_acknowledged", message, details)
        return topic, start

    def _deliver(
        self,
        topic: Topic,
        last_id: int,
        max_count: int,
        max_bytes: int,
        knows_expiry: bool,
        looked: Mapping[str, Looked],
        knows_runs: bool,
    ) -> Delivery | Looked | Refused:
        if last_id == topic.last_id:
            return Delivery(topic.name, 0, 0, b"", b"")
        gone = _gone(topic, last_id, knows_expiry)
        if gone is not None and not _may_pass(topic, gone):
            return gone
        log_ms = self.idle.log_ms
        lapsed = self._lapsed(topic, last_id, log_ms, knows_expiry, looked)
        if isinstance(lapsed, Looked):
            return lapsed
        if lapsed is not None:
            last_id = lapsed.details["last_id"]
            if not _may_pass(topic, lapsed):
                return lapsed
            if self._publications.is_lapsed(topic, last_id + 1, log_ms):
                return lapsed  # he asks again behind it: one answer tells of one run
        first_id = last_id + 1
        cut = self._publications.cut(topic, first_id, max_count, max_bytes, log_ms)
        own = cut.count
        runs: tuple[tuple[int, int], ...] = ()
        if knows_runs and knows_expiry and first_id <= topic.compacted_id:
            cut, runs = self._publications.further(
                topic, first_id, cut, max_count, max_bytes, log_ms
            )
        return Delivery(
            topic.name,
            first_id,
            own,
            cut.lengths,
            cut.data,
            cut.times,
            cut.has_properties,
            cut.over_ms,
            lapsed,
            runs,
        )

    def _lapsed(
        self,
        topic: Topic,
        last_id: int,
        log_ms: int,
        knows_expiry: bool,
        looked: Mapping[str, Looked],
    ) -> Looked | Refused | None:
        """Return what who has all up to `last_id` is told of what follows; None: it is there.

        It has expired, or is compacted away: one run, of one of the two.
        """
        behind_id = max(last_id, topic.floor_id)
        compacted_id = self._publications.compacted_to(topic, behind_id + 1)
        if compacted_id > behind_id == last_id:
            return compacted(topic.name, last_id, compacted_id, knows_expiry)
        known_id, known = behind_id, looked.get(topic.name)
        if known is not None and known.first_id <= behind_id + 1:
            known_id = max(behind_id, known.last_id)
        expired_id, is_all = self._publications.expired_to(topic, known_id + 1, log_ms)
        if not is_all:
            return Looked(topic.name, behind_id + 1, expired_id)
        if expired_id > last_id:
            return expired(topic.name, last_id, expired_id, knows_expiry)
        return None

    def read_leased(
        self, client_id: str, topic: str, name: str, token: int, given: Sequence[Run]
    ) -> Leased | Refused:
        """Return the publications that a take has given, as far as they are still leased by it."""
        group = self._group(topic, name)
        if isinstance(group, Refused):
            return group
        runs = self.groups.standing(group, client_id, token, given) if token else []
        cuts: list[Cut] = []
        for first, last, _ in runs:
            while first <= last:
                cut = self._publications.cut(group.topic, first, last + 1 - first, ID_MAX)
                cuts.append(cut)
                first += cut.count
        at_ms = min((group.open[first].at_ms for first, _, _ in runs), default=0)
        left_ms = max(0, at_ms - self.idle.log_ms)
        lengths, data = (
            b"".join(each.lengths for each in cuts),
            b"".join(each.data for each in cuts),
        )
        times = tuple(chain.from_iterable(each.times for each in cuts))
        return Leased(token, runs, left_ms, lengths, data, times)

    def read_from(
        self,
        name: str,
        from_id: int,
        max_count: int,
        max_bytes: int,
        knows_expiry: bool = True,
        looked: Mapping[str, Looked] = MappingProxyType({}),
        knows_runs: bool = False,
    ) -> Delivery | Looked | Refused:
        """Return what a topic holds from an id on, for whoever may read it; it moves nothing."""
        topic = self._topics.active.get(name)
        if topic is None:
            return no_topic(name)
        if from_id > topic.last_id + 1:
            return not_there_yet(name, from_id, topic.last_id)
        if from_id <= topic.floor_id:
            return not_kept(name, from_id - 1, topic.floor_id)
        bounds = max_count, max_bytes
        return self._deliver(topic, from_id - 1, *bounds, knows_expiry, looked, knows_runs)

    # --- recoveries (docs/recovery.md) ----------------------------------------------------------

    def name_members(self, members: Mapping[str, str]) -> None:
        """Give a recovered cluster its first members {name: incarnation}; durable on return."""
        self.commit()
        self.members = dict(members)
        self._dirty_members = True
        self._flush()
        self._database.commit()
        tables.checkpoint(self._database.path)

    def since_recovery(
        self, client_id: str, known: str | None, principal: str | None = None
    ) -> dict[str, Any]:
        """Return what REQUEST_ID tells a client of recoveries; `known`: the last it was told of.

        `settled`, if there was one since: up to this id each subscription's publications are the
        same as before. The client's cursor proves as much: it was moved by an entry of this log.
        Else `ends` of its topics, but for those that the principal may not read any more. Nobody
        needs both, and they would not fit into one header (protocol.TEXT_HEADER_BYTES_MAX).
        """
        topics = self._topics.of(client_id)
        hidden = self._hidden(principal, topics)
        names = ["", *(recovery.name for recovery in self._recoveries)]
        told: dict[str, Any] = {"recovery": names[-1]}
        if known is None or known == names[-1]:
            shown = sorted(topics.keys() - hidden)
            told["ends"] = {name: topics[name].last_id for name in shown}
        else:
            settled = self._recoveries[names.index(known)].settled if known in names else {}
            told["settled"] = {
                name: max(settled.get(name, 0), topics[name].subscribers[client_id].cursor)
                for name in sorted(topics)
            }
        return told

    def topic_ends(self) -> dict[str, int]:
        """Return the last id of every topic with a subscriber."""
        return {name: topic.last_id for name, topic in self._topics.active.items()}

    def unread_publications(self) -> int:
        """Return how many publications are kept for somebody who has not got them."""
        return sum(topic.last_id - topic.floor_id for topic in self._topics.active.values())

    # --- views ----------------------------------------------------------------------------------

    def cursor(self, client_id: str, topic: str) -> int | None:
        """Return where the client's subscription to the topic stands, None without one."""
        found = self._subscription(client_id, topic)
        return None if isinstance(found, Refused) else found[1].cursor

    def ahead(self, client_id: str, last_ids: Mapping[str, int]) -> dict[str, int]:
        """Return those of {topic: id} that are behind the client's cursors."""
        own = self._topics.of(client_id)
        return {
            name: last_id
            for name, last_id in last_ids.items()
            if (topic := own.get(name)) and last_id > topic.subscribers[client_id].cursor
        }

    def holders(self, topic: str, count_max: int) -> list[str]:
        """Return some of those whose cursors keep the topic's oldest publications, by client id."""
        found = self._topics.active.get(topic)
        if found is None or found.floor_id == found.last_id:
            return []
        subscribers = found.subscribers.items()
        ids = [client_id for client_id, each in subscribers if each.cursor <= found.floor_id]
        ids += [f"group {name}" for name, at in found.groups.items() if at <= found.floor_id]
        return heapq.nsmallest(count_max, ids)

    def subscribers(self, topic: str) -> KeysView[str]:
        """Return the client ids that subscribe to a topic: a live view, empty for no topic."""
        found = self._topics.active.get(topic)
        return (found.subscribers if found else dict[str, Subscription]()).keys()

    def groups_of(self, topic: str) -> list[str]:
        """Return the groups of a topic, by name."""
        found = self._topics.active.get(topic)
        return sorted(found.groups) if found else []

    def subscribers_of(self, topic: str, after: str, count_max: int) -> list[dict[str, Any]]:
        """Return the first of a topic's subscribers behind the client id `after`, by client id."""
        found = self._topics.active.get(topic)
        if found is None:
            return []
        ids = (client_id for client_id in found.subscribers if client_id > after)
        return [
            {
                "client_id": client_id,
                "cursor": found.subscribers[client_id].cursor,
                "backlog": found.lag(found.subscribers[client_id].cursor),
            }
            for client_id in heapq.nsmallest(count_max, ids)
        ]

    def has_taken(self, client_id: str, lane: str, counter: int) -> bool:
        """Return whether a PUT of the client with that counter was carried out.

        `lane`: to which topic, delayed or at once (`protocol.lane_of`).
        """
        client = self._clients.get(client_id)
        producer = self._clients.producer(client, lane) if client else None
        return producer is not None and counter <= producer.counter

    def counters(self, client_id: str, after: str, count_max: int) -> dict[str, int]:
        """Return {topic: last counter} of the client's PUTs, by name: those behind `after`."""
        client = self._clients.get(client_id)
        assert client is not None, client_id
        return self._clients.counters(client, after, count_max)

    def subscriptions(self, client_id: str) -> dict[str, int]:
        """Return {topic: cursor} of the client's subscriptions, by name."""
        topics = self._topics.of(client_id)
        return {name: topics[name].subscribers[client_id].cursor for name in sorted(topics)}

    def placed(self, client_id: str) -> dict[str, int]:
        """Return {topic: the entry that placed it} of the client's subscriptions that one has."""
        topics = self._topics.of(client_id)
        found = {name: topics[name].subscribers[client_id].placed for name in sorted(topics)}
        return {name: placed for name, placed in found.items() if placed}

    def place_of(self, client_id: str, topic: str) -> dict[str, Any]:
        """Return where a client's subscription stands, as a GET of any topic says it."""
        subscription = self._topics.active[topic].subscribers[client_id]
        return {"cursor": subscription.cursor, "placed": subscription.placed}

    @property
    def has_ages(self) -> bool:
        """Whether some topic keeps something that will be too old, or is to be compacted."""
        return self._topics.has_ages or self.compaction.has_work

    def topic_row(self, name: str) -> dict[str, Any] | None:
        """Return what is known of a topic, None if there is none."""
        topic = self._topics.active.get(name)
        if topic is None:
            return None
        kept = topic.retention
        return {
            "topic": name,
            "first_id": topic.floor_id + 1,
            "last_id": topic.last_id,
            "subscribers": len(topic.subscribers) + len(topic.groups),
            "policy": None if kept is None else kept.policy.parts(),
            "held_bytes": self._held_bytes(topic),
            "purged_id": topic.purged_id,
            "dropped_id": topic.dropped_id,
            "delayed": self.delayed.count_of(topic),
            **(self.compaction.said(topic) if topic.is_compacted else {}),
        }

    def _held_bytes(self, topic: Topic) -> int:
        if topic.is_compacted:
            return self.compaction.held_bytes(topic)
        return topic.added_bytes - self._publications.bytes_before(topic, topic.floor_id + 1)

    def topics_of(
        self, client_id: str, after: str, count_max: int, principal: str | None = None
    ) -> list[dict[str, Any]]:
        """Return the client's topics, as TOPICS lists them, by name: those behind `after`.

        Those are left out that the principal may not read any more.
        """
        topics = self._topics.of(client_id)
        hidden = self._hidden(principal, topics)
        names = sorted(name for name in topics if name > after and name not in hidden)[:count_max]
        return [
            {
                "topic": name,
                "last_id": topics[name].last_id,
                "cursor": topics[name].subscribers[client_id].cursor,
                "backlog": topics[name].lag(topics[name].subscribers[client_id].cursor),
            }
            for name in names
        ]

    def all_topics(self, after: str, count_max: int) -> list[dict[str, Any]]:
        """Return the topics, as TOPICS with `all` lists them, by name: those behind `after`."""
        return [
            {
                "topic": topic.name,
                "last_id": topic.last_id,
                "subscribers": len(topic.subscribers) + len(topic.groups),
                "backlog_bytes": self._kept_bytes(topic),
                "delayed": self.delayed.count_of(topic),
            }
            for topic in self._topics.page(after, count_max)
        ]

    def clients_page(self, after: str, count_max: int) -> list[dict[str, Any]]:
        """Return clients as INSPECT lists them, those whose ids come after `after`."""
        return [
            {
                "client_id": client_id,
                "epoch": epoch,
                "subscriptions": len(self._topics.of(client_id)),
                "producers": producers,
                "principal": owner,
            }
            for client_id, epoch, producers, owner in self._clients.page(after, count_max)
        ]

    def client_row(self, client_id: str) -> dict[str, Any]:
        """Return what is kept of a client that there is."""
        client = self._clients.get(client_id)
        assert client is not None, client_id
        return {
            "client_id": client_id,
            "epoch": client.epoch,
            "sequence": client.sequence,
            "producers": client.producers,
            "subscriptions": len(self._topics.of(client_id)),
            "principal": client.owner,
        }

    def subscriptions_page(self, topic: str, after: str, count_max: int) -> list[dict[str, Any]]:
        """Return subscriptions by topic and client id: those behind (`topic`, `after`)."""
        rows = [{"topic": topic, **row} for row in self.subscribers_of(topic, after, count_max)]
        # Many at a time: ten thousand may have a policy, and no subscriber.
        while len(rows) < count_max and (page := self._topics.page(topic, TOPICS_LOOKED_UP)):
            topic = page[-1].name
            for each in page:
                left = count_max - len(rows)
                if left and each.subscribers:
                    found = self.subscribers_of(each.name, "", left)
                    rows += [{"topic": each.name, **row} for row in found]
        return rows

    def topics_page(self, after: str, count_max: int) -> list[Topic]:
        """Return the topics themselves, by name, those behind `after`: not to be changed."""
        return self._topics.page(after, count_max)

    def added(self) -> tuple[int, int]:
        """Return how many publications this object has taken since it was opened, and bytes."""
        return self._publications.added_count, self._publications.added_bytes

    def backlog_bytes(self, topic: str) -> int:
        """Return the bytes of the topic's publications on this node's disk, 0 for no topic."""
        found = self._topics.active.get(topic)
        if found is None:
            return 0
        return self._kept_bytes(found) + self.delayed.bytes_for(found)

    def _kept_bytes(self, topic: Topic) -> int:
        """Return the bytes of a topic's publications on disk, with what is compacted."""
        kept = self._latest.topics.get(topic.number)
        size_bytes = 0 if kept is None else kept.size_bytes
        return size_bytes + topic.added_bytes - topic.dropped_bytes

    def total_backlog_bytes(self) -> int:
        """Return the bytes of all publications on this node's disk."""
        return self._publications.stored_bytes + self._latest.size_bytes + self.delayed.size_bytes

    def collect_garbage(self, rows_max: int) -> int:
        """Delete up to `rows_max` dead rows; return how many. The next `commit` commits it."""
        if self.idle.has_garbage:
            self._flush()
            self.idle.collect()
            return 1
        if not self._publications.garbage:
            return 0
        self._flush()
        return self._publications.collect(rows_max)

    def free_bytes(self) -> int:
        """Return how much of the database's file is free pages."""
        return self._database.free_bytes()

    def room_bytes(self) -> int:
        """Return how much the database's file can take before it has to grow; see `Database`."""
        return self._database.room_bytes()

    def size_bytes(self) -> int:
        """Return how long the database's file has to be."""
        return self._database.size_bytes()

    def give_back(self, kept_bytes: int, enough: Callable[[], bool]) -> bool:
        """Give free pages over `kept_bytes` back, until `enough()`; return if there are more.

        The next `commit` commits it.
        """
        return self._database.give_back(kept_bytes, enough)

    def digest(self) -> str:
        """Commit, then return `tables.digest`."""
        self.commit()
        return tables.digest(self._database)

    def statistics(self) -> dict[str, int]:
        """Return the numbers of this replica for STATUS."""
        return {
            "applied_index": self.applied_index,
            "applied_term": self.applied_term,
            "clients": self._clients.count,
            "clients_forgotten": self.idle.forgotten,
            "producers": self._clients.producers_count,
            "topics": len(self._topics.active),
            "topic_names": self._topics.names_count,
            "subscriptions": self._topics.subscriptions_count,
            "groups": self.groups.count,
            "backlog_bytes": self.total_backlog_bytes(),
            "delayed": self.delayed.count,
            **({"compacted_bytes": kept_bytes} if (kept_bytes := self._latest.size_bytes) else {}),
        }


def _put_done(
    operation: Put, count: int, first_id: int, is_duplicate: bool, stored: bool | None
) -> Done:
    """Return what a PUT is told; of one with a delay `id` is its first place among these."""
    body = {"id": first_id, "count": count, "duplicate": is_duplicate, "stored": stored}
    return Done(body | {"delayed": True} if operation.is_delayed else body)


def _place(subscription: Subscription) -> dict[str, Any]:
    """Return what a client is told of where its subscription stands."""
    told = {"last_id": subscription.cursor}
    return told | {"placed": subscription.placed} if subscription.placed else told


def _may_pass(topic: Topic, gone: Refused) -> bool:
    """Return whether what follows may be delivered beside what is gone in front of it.

    Else who reads is told that alone: nothing follows yet, or it is not what its publisher wanted,
    or he knows no expiry.
    """
    return gone.code in LAPSED and gone.details["last_id"] < topic.last_id


def _gone(topic: Topic, last_id: int, knows_expiry: bool) -> Refused | None:
    """Return what a subscriber is told who has not read what was purged or dropped, or expired.

    None: it is all there. He has not acknowledged it, so nothing else has moved the floor.
    """
    if last_id >= topic.floor_id:
        return None
    if last_id >= topic.gone_id:
        return expired(topic.name, last_id, topic.floor_id, knows_expiry)
    if topic.dropped_id > topic.purged_id:
        return not_kept(topic.name, last_id, topic.dropped_id)
    return purged(topic.name, last_id, topic.purged_id)
