"""The leader's core without I/O: requests become operations or reads, outcomes become replies.

What lives here: who waits for which entry, barrier or publication, and the admission limits. What
must not: sockets, clocks (time comes in as `now_ms`), Raft (member.py submits and applies), and
the meaning of operations (store.py).
"""

from __future__ import annotations

import heapq
import sys
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final

import orjson

from cluster.serve import leases
from cluster.serve.queues import QueueByPrincipal
from cluster.serve.quotas import QUOTA, NewNames, Quotas, Refusals, exceeded
from cluster.serve.shares import (
    PAYER_SHARE,
    WEIGHT_ANSWER_BYTES,
    WEIGHT_ROWS,
    Rests,
    Shares,
    places_of_one,
)
from cluster.settings.config import LimitSettings
from cluster.store import commands
from cluster.store.acts import PAGE_BYTES_MAX
from cluster.store.commands import (
    Advance,
    AskedOperation,
    ChangeUser,
    Checkpoint,
    DeleteTopic,
    DropClient,
    DropGroup,
    DropSubscription,
    EndGroup,
    Hear,
    MakeGroup,
    Operation,
    Purge,
    Put,
    Raise,
    Register,
    Seek,
    SeekGroup,
    SetTopic,
    Subscribe,
    SubscribePattern,
    Take,
    TransferLeader,
    Unsubscribe,
    UnsubscribePattern,
)
from cluster.store.expiry import NEVER
from cluster.store.outcomes import Leased, Looked, no_topic
from cluster.store.store import Delivery, Done, Outcome, Refused, Store
from cluster.store.users import ADMIN as ADMIN_RIGHT
from cluster.store.users import OBSERVE, PUBLISH, SUBSCRIBE, unauthorized
from cluster.wire.levels import (
    LEVEL_FIRST,
    LEVEL_OF_COMPACTION,
    LEVEL_OF_DEAD_LETTERS,
    LEVEL_OF_DELAY,
    LEVEL_OF_EXPIRY,
    LEVEL_OF_GROUP_STARTS,
    LEVEL_OF_GROUPS,
    LEVEL_OF_KEY_ORDER,
    LEVEL_OF_NAMES,
    LEVEL_OF_PATTERNS,
    LEVEL_OF_PROPERTIES,
    LEVEL_OF_TOPICS,
    LEVEL_OF_USERS,
)
from flotilla_client.protocol import (
    ACK,
    ADMIN,
    AUDIT,
    CHECKPOINT,
    CLIENTS,
    CREATE_TOPIC,
    DELAYS_MAX,
    DELETE_TOPIC,
    DROP_CLIENT,
    DROP_GROUP,
    DROP_SUBSCRIPTION,
    EARLIEST,
    GET,
    GROUPS,
    INSPECT,
    NAK,
    NEW,
    OF_TOPICS,
    PATTERNS,
    PURGE,
    PUT,
    READ,
    REQUEST_ID,
    SEEK,
    SEEK_GROUP,
    SUB,
    SUBSCRIPTIONS,
    TAKE,
    TOPIC,
    TOPICS,
    TOPICS_COUNT_MAX,
    TRANSFER_LEADER,
    UNSUB,
    UPGRADE,
    USERS,
    ProtocolError,
    Request,
    batch_without_expiry,
    check_followed,
    has_wildcard,
    is_pattern,
    lane_of,
    matches,
    nak_body,
    no_pattern,
    stripped,
)

Route = bytes | tuple[str, int]  # a client's connection, or (relaying node, relay id)
# What is to be called at the end of a PUT that is traced, with the time that its turn began (ms),
# its answer's type and body; None: that one is not.
Ended = Callable[[float, str, Mapping[str, Any]], None]
Traced = Callable[[Request], Ended | None]
ENTRY_WORK_MAX: Final = 1_024  # a small part of an election's time, on a slow machine too
# What one principal may have under way in entries, however few requests that are: others' entries
# stand behind it. A quarter of a second.
WORK_OF_ONE_MAX: Final = 8 * ENTRY_WORK_MAX
# A TAKE may settle thousands of ids, and bury dozens: so it counts as more, in the same unit.
SETTLED_PER_WORK: Final = 16
TAKE_WORK: Final = 16
TIMED_START_WORK: Final = 32  # to find where a time is: one row is read for each halving
# May look at all topics, or end all subscriptions of a client or a topic: alone in their entry.
LONG_OPERATIONS: Final = (SubscribePattern, UnsubscribePattern, DropClient, DeleteTopic)
RETRY_AFTER_MS: Final = 50  # what an overloaded node asks for: a few turns
# Publications that wait for a majority, of all topics: the leader's memory, and by how much its
# followers' backlogs can get over their limit.
PUT_BYTES_MAX: Final = 64 * 1024 * 1024
# Publications that one turn reads for clients: bounds the turn and what waits to be sent behind it.
READ_BYTES_PER_TURN_MAX: Final = 64 * 1024 * 1024
STALE_DEADLINES_MIN: Final = 1_000  # of GETs that were woken: fewer are not worth sweeping
COUNTERS_PER_STEP: Final = 500  # of a client's 10,000, with their checksums: about 2 ms
# Reads of a principal that rests, as its answers are heavy: what is behind them would wait for
# half a minute. A rest is 0.1 s at most.
RESTING_READS_MAX: Final = 256
ANSWERED_LATER: Final = frozenset(
    {GET, TAKE, REQUEST_ID}
)  # it takes longer than to say that it is done
HEARD_MAX: Final = 10_000  # clients that were heard and not noted; more when they ask again
HEARD_SHARE: Final = 0.1  # of client_idle_ms: so often who only reads is put into the log
QUOTA_RETRY_MS: Final = 1_000  # of what frees itself: readers catch up, waits end
HELD_TOPICS_MAX: Final = 1_000  # full topics that are to be told of
CHANGES_A_TOPIC: Final = frozenset({PUT, UNSUB, SEEK})  # what a parked GET may be waiting for
ENDS_SUBSCRIPTIONS: Final = frozenset({DROP_SUBSCRIPTION, DELETE_TOPIC})  # as well
READS: Final = frozenset({GET, READ, TOPICS, INSPECT})
# What a GET of any topic is told of one of them in its turn.
TOLD_OF_A_TOPIC: Final = frozenset({"purged", "gap", "expired", "compacted"})
NOBODY: Final = ""  # no client's id: it has no leases
OF_OTHERS: Final = frozenset({INSPECT, ADMIN})  # the client that is named does not act: it is meant


@dataclass(frozen=True)
class BrokerLimits:
    """How much one leader holds at once; over a limit a request gets a typed NAK."""

    in_flight_max: int = LimitSettings.in_flight_max
    parked_gets_max: int = LimitSettings.parked_gets_max
    backlog_bytes_max: int = LimitSettings.backlog_bytes_max
    client_idle_ms: int = 0  # 0: no client is forgotten


class LevelTooLow(ProtocolError):
    """`what` takes the feature level `needs`, and the cluster is at `level`."""

    def __init__(self, what: str, needs: int, level: int) -> None:
        message = (
            f"{what} take feature level {needs}, and the cluster is at {level}:"
            " `flotilla upgrade` raises it once all nodes understand that"
        )
        super().__init__("unsupported", message, level=level, needs=needs)
        self.what, self.needs = what, needs


@dataclass(slots=True)
class Waiting:
    """A request that was not answered yet.

    `deadline_ms`: until when a GET or a TAKE may park. `put_bytes`: what a PUT adds to its topic.
    `taken_ms`: when the turn began that took it.
    `principal`: whose key that was; None where nobody has one: then anybody may.
    `was_forbidden`: it may not be done, by what was applied when it came. `lacked`: the feature
    level that it takes was not there then.
    `awaits_time`: of the next entry, as what it would be given has expired by then. `is_timed`:
    that entry is there, and what had not expired then may be given: while it was waited for more
    may have, again and again. `carried_out`: the change that it asked for stands (of a GET: the
    acknowledgment it carried, of a TAKE: what it settled). `body`: an answer that is made step by
    step, as far as it has come. `looked`, by topic: what a GET or READ has found to have expired,
    so far. `has_place`: it counts among what its principal has under way. `work`: of its entry, if
    that has not been applied (`_work_of`).
    """

    route: Route
    request: Request
    principal: str | None = None
    deadline_ms: float = 0.0
    put_bytes: int = 0
    work: int = 0
    taken_ms: float = 0.0
    carried_out: bool = False
    was_forbidden: bool = False
    lacked: LevelTooLow | None = None
    awaits_time: bool = False
    is_timed: bool = False
    looked: dict[str, Looked] = field(default_factory=dict)
    body: dict[str, Any] = field(default_factory=dict)
    answered: bool = False
    has_place: bool = False
    asks_for: tuple[str, ...] = ()  # quotas of which it has more if it is carried out
    ended: Ended | None = None  # has to know of the answer

    @property
    def asker(self) -> tuple[bytes | str, str]:
        """Which of its principal's programs asks: by what way, for which client."""
        return _way(self.route), self.request.client_id


@dataclass(slots=True)
class Answer:
    """A reply without its sender's name and term, which the node adds.

    `principal`: whose the request was, if that waited here. `put_taken_ms`: of the ACK of a PUT,
    when the turn began that took it; else 0.
    """

    route: Route
    request_id: str
    type: str
    body: dict[str, Any]
    lengths: bytes = b""
    data: bytes = b""
    principal: str | None = None
    put_taken_ms: float = 0.0


@dataclass(slots=True)
class _Read:
    barrier: int
    index: int
    waiting: Waiting


def _first_level(asked: int | None) -> int:
    return LEVEL_FIRST


def _nobody(asked: str) -> str:
    raise ProtocolError("bad_request", "there is nobody to hand over to")


@dataclass
class Broker:
    """The requests under way on one node.

    `store` is read, never changed. `new_client_id()` makes an unguessable id. `room_bytes(route)`:
    how much of publications may still wait on the way to a client. `level_for(asked)`: the level
    that the cluster may be raised to, `successor(asked)`: the node that may lead next; both raise
    ProtocolError. `wall_ms()`: the time of day, for people. `term()`: Raft's. `disk_low`: PUT is
    refused, as this node or a majority is short of space. `traced`: is asked of each PUT with
    properties, if spans are made of them. Answers collect until `take_answers`.
    """

    store: Store
    limits: BrokerLimits
    new_client_id: Callable[[], str]
    room_bytes: Callable[[Route], int]
    disk_low: bool = False
    quotas: Quotas = field(default_factory=Quotas)
    refused: Callable[[str, str], None] = lambda payer, quota: None
    traced: Traced | None = None
    level_for: Callable[[int | None], int] = _first_level
    successor: Callable[[str], str] = _nobody
    wall_ms: Callable[[], int] = lambda: 0
    term: Callable[[], int] = lambda: 0
    admins: frozenset[str] = frozenset()  # principals who may administrate by this node's settings
    payers: Shares = field(default_factory=lambda: Shares(PAYER_SHARE))  # who has asked lately
    denied: Refusals = field(default_factory=Refusals)  # `unauthorized`, and what was lacking
    delivered_count: int = 0  # publications that were read for clients, ever
    delivered_bytes: int = 0
    _new_names: NewNames = field(default_factory=NewNames)
    _answers: list[Answer] = field(default_factory=list)
    _read_bytes: Counter[bytes | str] = field(default_factory=Counter)  # in `_answers`, by its way
    _read_bytes_in_all: int = 0
    _asked: Counter[tuple[str, str]] = field(default_factory=Counter)  # more of a quota, under way
    _under_way_of: Counter[str] = field(default_factory=Counter)  # by principal
    _parked_of: Counter[str] = field(default_factory=Counter)  # GETs that are parked, by principal
    _takes_of: Counter[tuple[str, ...]] = field(default_factory=Counter)  # by group and client
    _heard: dict[str, None] = field(default_factory=dict)  # by reads; see take_heard
    _held: Counter[str] = field(default_factory=Counter)  # PUTs refused, by their full topics
    _operations: list[Operation] = field(default_factory=list)
    _authors: list[Waiting] = field(default_factory=list)
    _entries: dict[int, tuple[int, list[Waiting]]] = field(default_factory=dict)
    _entries_waiting: int = 0
    _put_bytes: int = 0
    _put_bytes_of: Counter[str] = field(default_factory=Counter)  # of these, by principal
    _work_under_way_of: Counter[str] = field(default_factory=Counter)  # in entries, by principal
    _spare_bytes: int = sys.maxsize  # what the disk takes of them
    _reads: deque[_Read] = field(default_factory=deque)
    _ready: QueueByPrincipal[Waiting] = field(default_factory=QueueByPrincipal)  # behind barriers
    # Carried out, to be answered.
    _due: QueueByPrincipal[Waiting] = field(default_factory=QueueByPrincipal)
    # Parked until there was news, or until their wait was over and there was no share for them.
    _woken: QueueByPrincipal[Waiting] = field(default_factory=QueueByPrincipal)
    _served: Counter[str] = field(default_factory=Counter)  # in this turn, beside others
    _answered_weight: Counter[str] = field(default_factory=Counter)  # of the answers to these
    _full: set[str | None] = field(default_factory=set)  # who has had his share of this turn
    _is_contended: bool = False  # in this turn
    _rests: Rests[str | None] = field(default_factory=Rests)
    _first_source: int = 0
    _parked: dict[str, dict[int, Waiting]] = field(default_factory=dict)  # by topic
    _parked_any: dict[str, dict[int, Waiting]] = field(default_factory=dict)  # by client
    _parked_takes: dict[leases.Key, dict[int, Waiting]] = field(default_factory=dict)
    _next_look_ms: float = 0.0  # at the leases that parked takes wait for
    _parked_by_deadline: list[tuple[float, int, Waiting]] = field(default_factory=list)
    _parked_count: int = 0
    _parked_number: int = 0

    # --- requests in --------------------------------------------------------------------------

    def request(
        self, route: Route, request: Request, now_ms: float, principal: str | None = None
    ) -> Waiting | None:
        """Take a request as the leader. Returns it if it has to wait for a read barrier."""
        deadline_ms = now_ms + request.body.get("wait_ms", 0)
        waiting = Waiting(route, request, principal, deadline_ms)
        waiting.taken_ms = now_ms
        try:
            self._admit(waiting)
            if self.forbidden(principal, request) is not None:
                waiting.was_forbidden = True
                return _without_data(waiting)
            operation = _OPERATIONS[request.type](self, waiting)
            if operation is not None and (misfit := commands.misfit(operation)):
                raise ProtocolError("bad_request", f"it can't stand in the log: {misfit}")
            if operation is None:
                self._admit_read(waiting)
            else:
                self._admit_work(waiting, operation)
        except LevelTooLow as lacked:
            self._settle(waiting)
            waiting.lacked = lacked
            return _without_data(waiting)
        except ProtocolError as error:
            self._settle(waiting)
            self.refuse(waiting, error.code, error.message, **error.details)
            return None
        if operation is None:
            return waiting
        if isinstance(operation, Put):
            waiting.put_bytes = _put_bytes(operation)
            self._put_bytes += waiting.put_bytes
            if principal is not None:
                self._put_bytes_of[principal] += waiting.put_bytes
        self._enter(waiting, operation)
        return None

    def _enter(self, waiting: Waiting, operation: AskedOperation) -> None:
        """Have an operation stand in the next entry."""
        if self.store.level >= LEVEL_OF_USERS:
            # What it may do is judged where it is carried out.
            operation.principal = waiting.principal
        self._operations.append(operation)
        self._authors.append(waiting)

    @property
    def has_operations(self) -> bool:
        """True while operations wait for `take_entries`."""
        return bool(self._operations)

    def _admit(self, waiting: Waiting) -> None:
        """Refuse what there is no place for. One principal leaves some to the others.

        Or one whose answers take long, as those of REQUEST_ID may, would soon have all of them.
        """
        limit, principal = self.limits.in_flight_max, waiting.principal
        under_way = self._entries_waiting + len(self._operations)
        under_way += len(self._reads) + len(self._ready) + len(self._due)
        if under_way < limit and principal is not None:
            limit, under_way = places_of_one(limit), self._under_way_of[principal]
        if under_way >= limit:
            message = f"{under_way} requests are under way"
            wait = {"limit": limit, "retry_after_ms": RETRY_AFTER_MS}
            raise ProtocolError("overloaded", message, **wait)
        if principal is not None:
            waiting.has_place = True
            self._under_way_of[principal] += 1

    def _admit_read(self, waiting: Waiting) -> None:
        """Refuse what would wait long, as its principal's answers are heavy."""
        principal = waiting.principal
        if principal in self._rests and self._ready.count_of(principal) >= RESTING_READS_MAX:
            message = f"{RESTING_READS_MAX} answers wait for their share of a turn"
            wait = {"limit": RESTING_READS_MAX, "retry_after_ms": RETRY_AFTER_MS}
            raise ProtocolError("overloaded", message, **wait)

    def _admit_work(self, waiting: Waiting, operation: AskedOperation) -> None:
        """Refuse what is too much beside what its principal has under way in entries."""
        principal = waiting.principal
        if principal is None:
            return
        work = self._work_of(operation)
        if work == 1:  # as it mostly is: that is bounded by places
            return
        under_way = self._work_under_way_of[principal]
        if under_way and under_way + work > WORK_OF_ONE_MAX:
            message = "requests are under way that take long to carry out"
            wait = {"limit": WORK_OF_ONE_MAX, "retry_after_ms": RETRY_AFTER_MS}
            raise ProtocolError("overloaded", message, **wait)
        waiting.work = work
        self._work_under_way_of[principal] += work

    def _give_work_back(self, waiting: Waiting) -> None:
        if waiting.work and waiting.principal is not None:
            self._work_under_way_of[waiting.principal] -= waiting.work
            if not self._work_under_way_of[waiting.principal]:
                del self._work_under_way_of[waiting.principal]
        waiting.work = 0

    def _give_place_back(self, waiting: Waiting) -> None:
        if waiting.has_place:
            assert waiting.principal is not None, waiting
            waiting.has_place = False
            self._under_way_of[waiting.principal] -= 1
            if not self._under_way_of[waiting.principal]:
                del self._under_way_of[waiting.principal]

    def forbidden(self, principal: str | None, request: Request) -> Refused | None:
        """Return why a request may not be carried out, by what is applied; None if it may.

        For one that goes through the log this only spares the log: there it is judged again.
        """
        store = self.store
        if principal is None or store.level < LEVEL_OF_USERS:
            return None
        kind, topic, client_id = request.type, request.topic, request.client_id
        if kind not in OF_OTHERS and (refused := store.not_owned(client_id, principal)):
            return refused
        if kind == PUT:
            lacking = store.lacks(principal, PUBLISH, topic)
            return None if lacking is None or self._is_stored(request) else lacking
        ends_group = kind == UNSUB and "group" in request.body
        if kind in (SUB, SEEK, READ, TAKE) or (kind == GET and topic) or ends_group:
            return store.lacks(principal, SUBSCRIBE, topic)
        if kind == REQUEST_ID:
            return None if client_id else store.lacks_everything(principal)
        is_admin = principal in self.admins or store.users.may_administrate(principal)
        what = request.body["what"] if kind == INSPECT else ""
        if kind in (UPGRADE, ADMIN) or what in (USERS, AUDIT):
            # Who has done it is told so, though he may not do it any more: that may be his own act.
            is_done = kind == ADMIN and store.acts.is_known(request.body["act_id"], principal)
            return None if is_admin or is_done else unauthorized(principal, ADMIN_RIGHT)
        if kind == INSPECT or "subscribers" in request.body:
            observes = is_admin or store.users.may_observe(principal)
            return None if observes else unauthorized(principal, OBSERVE)
        return None

    def _register(self, waiting: Waiting) -> AskedOperation:
        request = waiting.request
        fresh = not request.client_id
        if "create" in request.body:
            self._need_level(LEVEL_OF_NAMES, "clients that name themselves")
            # If it comes to be meanwhile, the entry is refused: who asks again takes it up.
            fresh = not self.store.has_client(request.client_id)
        if fresh and waiting.principal is not None:
            self._ask_for(waiting, "clients_max", self.store.holdings.clients[waiting.principal])
        client_id = request.client_id or self.new_client_id()
        return Register(client_id, fresh, request.body["sequence"], request.body["nonce"])

    def _subscribe(self, waiting: Waiting) -> AskedOperation:
        request = waiting.request
        topic = request.topic
        # What was subscribed to before names were patterns goes on.
        is_new = self.store.cursor(request.client_id, topic) is None
        means_many = is_pattern(topic) and is_new
        if means_many and ("group" in request.body or not has_wildcard(topic)):
            raise ProtocolError("bad_request", no_pattern(topic))
        if means_many:
            return self._subscribe_pattern(waiting)
        if "group" in request.body:
            return self._make_group(waiting)
        sequence, start = request.body["sequence"], request.body["start"]
        if start != NEW:
            self._need_level(LEVEL_OF_TOPICS, "subscriptions that start elsewhere")
        holdings, principal = self.store.holdings, waiting.principal
        if principal is not None and is_new:
            self._ask_for(waiting, "subscriptions_max", holdings.subscriptions[principal])
            if not holdings.holds(principal, topic):
                self._ask_for(waiting, "topics_max", holdings.topics(principal))
            self._make_name(waiting)
        return Subscribe(request.client_id, request.epoch, topic, sequence, start=start)

    def _subscribe_pattern(self, waiting: Waiting) -> AskedOperation:
        request, start = waiting.request, waiting.request.body["start"]
        check_followed(request.topic)
        self._need_level(LEVEL_OF_PATTERNS, "subscriptions to patterns")
        if start not in (NEW, EARLIEST):
            message = f"a pattern starts at `{NEW}` or `{EARLIEST}`: SEEK each of its topics"
            raise ProtocolError("bad_request", message)
        principal, patterns = waiting.principal, self.store.patterns
        if principal is not None and request.topic not in patterns.of(request.client_id):
            self._ask_for(waiting, "patterns_max", patterns.count_of(principal))
        # How many topics that makes only its entry says, and those that follow.
        has_quotas, quotas = principal is not None, self.quotas
        topics_max, subscriptions_max = quotas.topics_max, quotas.subscriptions_max
        bounds = (topics_max, subscriptions_max) if has_quotas else (0, 0)
        who = request.client_id, request.epoch, request.topic, request.body["sequence"]
        return SubscribePattern(*who, start, *bounds)

    def _seek(self, waiting: Waiting) -> AskedOperation:
        self._need_level(LEVEL_OF_TOPICS, "seeks")
        request = waiting.request
        place = request.body["sequence"], request.body["start"]
        return Seek(request.client_id, request.epoch, request.topic, *place)

    def _read_topic(self, waiting: Waiting) -> AskedOperation | None:
        return None

    def _ask_for(self, waiting: Waiting, quota: str, count: int) -> None:
        """Refuse a request that would give its principal more of something than it may have.

        What is under way counts as well: thousands may be. Raises ProtocolError.
        """
        assert waiting.principal is not None, waiting
        limit: int = getattr(self.quotas, quota)
        under_way = self._asked[waiting.principal, quota]
        if 0 < limit <= count + under_way:
            raise self._over(waiting.principal, quota)
        waiting.asks_for += (quota,)
        self._asked[waiting.principal, quota] += 1

    def _make_name(self, waiting: Waiting) -> None:
        """Refuse one that would make more topics of new names than its principal may now.

        Raises ProtocolError.
        """
        if refusal := self._no_name(waiting):
            raise refusal

    def _no_name(self, waiting: Waiting) -> ProtocolError | None:
        principal, limit = waiting.principal, self.quotas.names_per_hour_max
        if principal is None or not limit or not self.store.is_new_name(waiting.request.topic):
            return None
        wait_ms = self._new_names.take(principal, limit, waiting.taken_ms)
        return self._over(principal, "names_per_hour_max", wait_ms) if wait_ms else None

    def _over(self, principal: str, quota: str, retry_after_ms: int | None = None) -> ProtocolError:
        limit: int = getattr(self.quotas, quota)
        return exceeded(quota, limit, f"{principal} has as much as it may have", retry_after_ms)

    def _settle(self, waiting: Waiting) -> None:
        """Count a request as under way no more."""
        for quota in waiting.asks_for:
            assert waiting.principal is not None, waiting
            key = waiting.principal, quota
            self._asked[key] -= 1
            if not self._asked[key]:
                del self._asked[key]
        waiting.asks_for = ()

    def _make_group(self, waiting: Waiting) -> AskedOperation:
        self._need_level(LEVEL_OF_GROUPS, "groups")
        request, principal = waiting.request, waiting.principal
        body = request.body
        settings = body["lease_ms"], body["max_attempts"], body["dead_letter"]
        ordered_by_key, start = body["ordered_by_key"], body["start"]
        if ordered_by_key is not None:
            self._need_level(LEVEL_OF_KEY_ORDER, "groups that say whether they are ordered by key")
        if start != NEW:
            self._need_level(LEVEL_OF_GROUP_STARTS, "groups that start elsewhere")
        if body["max_attempts"] and not body["dead_letter"]:
            self._need_level(LEVEL_OF_DEAD_LETTERS, "dead letters that go where the topic says")
        if principal is not None and self.store.groups.get(request.topic, body["group"]) is None:
            self._ask_for(waiting, "groups_max", self.store.holdings.groups[principal])
            self._make_name(waiting)
        who = request.client_id, request.epoch, request.topic, body["sequence"]
        return MakeGroup(*who, body["group"], *settings, ordered_by_key=ordered_by_key, start=start)

    def _take(self, waiting: Waiting) -> AskedOperation | None:
        """Return what goes into the log, None if there is nothing to settle or to give."""
        self._need_level(LEVEL_OF_GROUPS, "groups")
        request, now_ms = waiting.request, waiting.taken_ms
        if leases.settles(request) or leases.is_due(self.store, request, self.term(), now_ms):
            return leases.operation_of(request, is_settled=False)
        return None

    def _unsubscribe(self, waiting: Waiting) -> AskedOperation:
        request = waiting.request
        sequence = request.body["sequence"]
        if "group" in request.body:
            self._need_level(LEVEL_OF_GROUPS, "groups")
            who = request.client_id, request.epoch, request.topic, sequence
            return EndGroup(*who, request.body["group"])
        who = request.client_id, request.epoch, request.topic, sequence
        if has_wildcard(request.topic) and self.store.level >= LEVEL_OF_PATTERNS:
            return UnsubscribePattern(*who)
        return Unsubscribe(*who)

    def _put(self, waiting: Waiting) -> AskedOperation:
        request = waiting.request
        epoch, lengths, data = request.epoch, request.lengths, request.data
        has_properties, has_expiry = request.has_properties, request.has_expiry
        if has_properties and self.traced is not None:
            waiting.ended = self.traced(request)
        level = self.store.level
        refusal = self._no_room(request) or self._unread_too_much(waiting)
        if request.is_delayed and level < LEVEL_OF_DELAY:
            refusal = LevelTooLow("publications with a delay", LEVEL_OF_DELAY, level)
        elif has_expiry and level < LEVEL_OF_EXPIRY:
            refusal = LevelTooLow("publications that expire", LEVEL_OF_EXPIRY, level)
        elif has_properties and level < LEVEL_OF_PROPERTIES:
            refusal = LevelTooLow("properties of publications", LEVEL_OF_PROPERTIES, level)
        if refusal is None and self.store.brings(request.topic):
            refusal = self._no_name(waiting)
        if refusal is not None:
            # A refusal of what is stored would say that it is not. Its answer takes no room.
            if not self._is_stored(request):
                raise refusal
            lengths, data = bytes(len(lengths)), b""
            has_properties = has_expiry = False
            if epoch is None:
                # A client that is dropped and made again ahead of it has stored nothing.
                epoch = self.store.client_row(request.client_id)["epoch"]
        request.lengths = request.data = b""  # who waits for the entry must not keep its bytes
        return Put(
            request.client_id,
            epoch,
            request.topic,
            request.body["counter"],
            lengths,
            data,
            has_properties=has_properties,
            has_expiry=has_expiry,
            is_delayed=request.is_delayed,
        )

    def _unread_too_much(self, waiting: Waiting) -> ProtocolError | None:
        principal, limit = waiting.principal, self.quotas.unread_bytes_max
        if principal is None or not limit:
            return None
        unread_bytes = self.store.unread_bytes_of(principal) + self._put_bytes_of[principal]
        unread_bytes += _put_bytes(waiting.request)
        if unread_bytes <= limit:
            return None
        return self._over(principal, "unread_bytes_max", QUOTA_RETRY_MS)

    def _no_room(self, request: Request) -> ProtocolError | None:
        if self.disk_low:
            return ProtocolError(
                "disk_full", "the leader or a majority of the nodes is short of disk space"
            )
        # Whatever its room, a disk that is not low takes one at a time.
        size_bytes, limit = _put_bytes(request), min(PUT_BYTES_MAX, self._spare_bytes)
        if self._put_bytes and self._put_bytes + size_bytes > limit:
            return ProtocolError(
                "overloaded",
                f"{self._put_bytes} bytes of publications wait for a majority",
                limit=limit,
                retry_after_ms=RETRY_AFTER_MS,
            )
        if refused := self.store.too_full(request.topic, size_bytes, request.is_delayed):
            # Its entry would say the same; this only spares the log.
            return ProtocolError(refused.code, refused.message, **refused.details)
        backlog = self.store.backlog_bytes(request.topic) + self._put_bytes + size_bytes
        if backlog > self.limits.backlog_bytes_max:
            if len(self._held) < HELD_TOPICS_MAX or request.topic in self._held:
                self._held[request.topic] += 1
            return ProtocolError(
                "backlog_full",
                f"`{request.topic}` would hold {backlog} unread bytes",
                limit=self.limits.backlog_bytes_max,
            )
        return None

    def _is_stored(self, request: Request) -> bool:
        lane = lane_of(request.topic, request.is_delayed)
        return self.store.has_taken(request.client_id, lane, request.body["counter"])

    def _get(self, waiting: Waiting) -> AskedOperation | None:
        """Return the acknowledgment that the GET carries, None if it moves no cursor."""
        request = waiting.request
        client_id = request.client_id
        ahead, placed = {}, {}
        for topic, last_id in self.store.ahead(client_id, _claims(request)).items():
            if self.store.lacks(waiting.principal, SUBSCRIBE, topic):
                continue  # it is not read, and left where it is
            ahead[topic] = last_id
            if at := _placed(request).get(topic, 0):
                placed[topic] = at
        return Advance(client_id, request.epoch, ahead, placed=placed) if ahead else None

    def _topics(self, waiting: Waiting) -> AskedOperation | None:
        return None

    def _inspect(self, waiting: Waiting) -> AskedOperation | None:
        what = waiting.request.body["what"]
        if what in (USERS, AUDIT):
            self._need_level(LEVEL_OF_USERS, "users and acts")
        elif what == GROUPS:
            self._need_level(LEVEL_OF_GROUPS, "groups")
        elif what == PATTERNS:
            self._need_level(LEVEL_OF_PATTERNS, "subscriptions to patterns")
        return None

    def _upgrade(self, waiting: Waiting) -> AskedOperation | None:
        """Return what raises the level, None if that is where it is: a read that says so."""
        level = self.level_for(waiting.request.body["level"])
        if level <= self.store.level:
            return None
        return Raise(level, *self._signature(waiting)) if level >= LEVEL_OF_USERS else Raise(level)

    def _administrate(self, waiting: Waiting) -> AskedOperation:
        self._need_level(LEVEL_OF_USERS, "users and acts")
        request, body, signature = waiting.request, waiting.request.body, self._signature(waiting)
        act = body["act"]
        if act in OF_TOPICS:
            return self._administrate_topic(waiting, act)
        if act == DROP_SUBSCRIPTION:
            return DropSubscription(request.client_id, request.topic, *signature)
        if act == DROP_GROUP:
            self._need_level(LEVEL_OF_GROUPS, "groups")
            return DropGroup(request.topic, body["group"], *signature)
        if act == SEEK_GROUP:
            self._need_level(LEVEL_OF_GROUP_STARTS, "seeks of groups")
            return SeekGroup(request.topic, body["group"], body["start"], *signature)
        if act == DROP_CLIENT:
            return DropClient(request.client_id, *signature)
        if act == PURGE:
            return Purge(request.topic, body["last_id"], *signature)
        if act == TRANSFER_LEADER:
            is_done = self.store.acts.is_known(body["act_id"], waiting.principal)
            chosen = "" if is_done else self.successor(body["node"])
            return TransferLeader(body["node"], chosen, *signature)
        if act == CHECKPOINT:
            return Checkpoint(*signature)
        rights = body["publish"], body["subscribe"], body["observe"], body["admin"]
        return ChangeUser(act, body["user"], *rights, *signature)

    def _administrate_topic(self, waiting: Waiting, act: str) -> AskedOperation:
        self._need_level(LEVEL_OF_TOPICS, "policies of topics")
        topic, body, signature = (
            waiting.request.topic,
            waiting.request.body,
            self._signature(waiting),
        )
        if act == DELETE_TOPIC:
            return DeleteTopic(topic, body["ends"], *signature)
        if "compact" in body["policy"]:
            self._need_level(LEVEL_OF_COMPACTION, "topics that are compacted")
        if "dead_letter" in body["policy"]:
            self._need_level(LEVEL_OF_DEAD_LETTERS, "topics that say where dead letters go")
        return SetTopic(topic, body["policy"], act == CREATE_TOPIC, *signature)

    def _signature(self, waiting: Waiting) -> tuple[bool, str | None, str, int]:
        """Return what every act says: whether who asks is among `admins`, who, its name, when."""
        principal, act_id = waiting.principal, waiting.request.body.get("act_id", "")
        return principal in self.admins, principal, act_id, self.wall_ms()

    def _need_level(self, needed: int, what: str) -> None:
        if self.store.level < needed:
            raise LevelTooLow(what, needed, self.store.level)

    # --- entries out, outcomes in -------------------------------------------------------------

    def take_entries(self) -> Iterator[tuple[list[Operation], list[Waiting]]]:
        """Yield the operations of each of the turn's entries, with those who wait, in order."""
        operations, authors = self._operations, self._authors
        self._operations, self._authors = [], []
        start = 0
        for end in self._cuts(operations):
            yield operations[start:end], authors[start:end]
            start = end

    def _cuts(self, operations: list[Operation]) -> Iterable[int]:
        """Return where to cut, so that no entry is over its limit, nor long to apply.

        Every node applies an entry in one go, in which it says and hears nothing. An entry places a
        subscription once: its number is what tells two places from one another.
        """
        size = work = 0
        placed: set[tuple[str, str]] = set()
        for position, operation in enumerate(operations):
            more, more_bytes = self._work_of(operation), commands.size_bytes(operation)
            is_over = work + more > ENTRY_WORK_MAX or not commands.fits(size + more_bytes)
            places = _places(operation)
            if size and (is_over or places & placed):
                yield position
                size = work = 0
                placed.clear()
            size += more_bytes
            work += more
            placed |= places
        if operations:
            yield len(operations)

    def _work_of(self, operation: Operation) -> int:
        """Return how much an operation has to do, about: 1 is what a subscription costs."""
        if isinstance(operation, LONG_OPERATIONS):
            return ENTRY_WORK_MAX
        if isinstance(operation, Take):
            rows = *operation.acks, *operation.naks, *operation.extends
            settled = sum(row[2] + 1 - row[1] for row in rows)
            return settled // SETTLED_PER_WORK + TAKE_WORK
        if isinstance(operation, Put) and operation.is_delayed:
            return min(len(operation.lengths) >> 2, DELAYS_MAX)  # rows, at most
        is_timed = str(getattr(operation, "start", "")).startswith("@")
        work = TIMED_START_WORK if is_timed else 1
        return work + self.store.brings(getattr(operation, "topic", ""))

    def submitted(self, index: int, term: int, authors: list[Waiting]) -> None:
        """Note who waits for the entry at `index`."""
        assert index not in self._entries, index
        self._entries[index] = (term, authors)
        self._entries_waiting += len(authors)

    def applied(self, index: int, term: int, outcomes: list[Outcome]) -> None:
        """Answer those who waited for the entry that was applied at `index`, or have `serve` do it.

        What is left to `serve` is what takes longer than to say that it is done.
        """
        own_term, authors = self._entries.pop(index, (term, []))
        # A leader that was deposed has abdicated before it applies another one's entries.
        assert own_term == term, f"entry {index} of term {own_term} was replaced by term {term}"
        self._entries_waiting -= len(authors)
        self._put_bytes -= sum(waiting.put_bytes for waiting in authors)
        for waiting in authors:
            self._give_work_back(waiting)
            if waiting.put_bytes and waiting.principal is not None:
                self._put_bytes_of[waiting.principal] -= waiting.put_bytes
                if not self._put_bytes_of[waiting.principal]:
                    del self._put_bytes_of[waiting.principal]
        self._hear_of_news()
        if not authors:
            return
        assert len(outcomes) == len(authors), (index, len(outcomes), len(authors))
        news: set[str] = set()
        for waiting, outcome in zip(authors, outcomes, strict=True):
            self._conclude(waiting, outcome)
            if _changed_its_topic(waiting, outcome):
                news.update(self._awaited(waiting.request.topic))
            elif waiting.request.type == SUB and isinstance(outcome, Done):
                # A subscription may begin below a topic's end, and its client wait for any topic.
                self._awaken([self._parked_any.pop(waiting.request.client_id, {})])
            elif waiting.request.type == TAKE:  # what it has left, all of it if it is refused
                self._offer(leases.key_of(waiting.request), self.store.idle.log_ms)
        for topic in sorted(news):  # a set's order is another one in every process
            self._wake(topic)

    def _hear_of_news(self) -> None:
        """Have those served who wait for what the entry brought, whoever had asked for that."""
        store = self.store
        for key in store.groups.take_stirred():
            self._offer(key, store.idle.log_ms)
        for topic in store.take_entered():
            self._wake(topic)
        for client_id in store.patterns.take_missing():
            self._awaken([self._parked_any.pop(client_id, {})])

    def _awaited(self, name: str) -> list[str]:
        """Return the topic of that name; where it is a pattern, also those that GETs wait for."""
        covered = self._parked if has_wildcard(name) else ()
        return [name, *(topic for topic in covered if matches(name, topic))]

    def replace_store(self, store: Store) -> None:
        """Read from another store from now on: a copy has taken the old one's place."""
        self.store = store

    def note_room(self, is_low: bool, spare_bytes: int) -> None:
        """Refuse publications while there is too little space for them, and take them again.

        `spare_bytes`: how much this node's disk takes of those that wait for a majority.
        """
        self.disk_low, self._spare_bytes = is_low, spare_bytes

    def users_changed(self) -> None:
        """Have all that are parked looked at again: who may not read any more hears so now.

        All of them: changes are rare, and looking whom one is about costs as much.
        """
        tables = self._parked, self._parked_any, self._parked_takes
        woken = [parked for table in tables for parked in table.values()]
        for table in tables:
            table.clear()
        self._awaken(woken)

    def _conclude(self, waiting: Waiting, outcome: Outcome) -> None:
        self._settle(waiting)
        if waiting.awaits_time:
            waiting.awaits_time, waiting.is_timed = False, True
            self._due.append(waiting)
            return
        if isinstance(outcome, Refused):
            self.refuse(waiting, outcome.code, outcome.message, **outcome.details)
            return
        assert isinstance(outcome, Done)
        if waiting.request.type in ANSWERED_LATER:
            if waiting.request.type == TAKE and waiting.carried_out:
                outcome.body["lost"] = waiting.body["lost"]  # as it was when it settled
            waiting.carried_out, waiting.body = True, outcome.body
            self._due.append(waiting)
        else:
            self._acknowledge(waiting, outcome.body)

    # --- reads --------------------------------------------------------------------------------

    def await_barrier(self, waiting: Waiting, barrier: int, index: int) -> None:
        """Serve the read once `barrier` has passed and `index` is applied."""
        self._reads.append(_Read(barrier, index, waiting))

    def may_serve(self, now_ms: float) -> bool:
        """Return whether there is anything that `serve` might answer."""
        return bool(self._reads) or self.has_more(now_ms)

    def has_more(self, now_ms: float) -> bool:
        """Return whether `serve` would answer something, whatever reads wait for."""
        deadlines = self._parked_by_deadline
        is_over = bool(deadlines) and deadlines[0][0] <= now_ms
        is_over = is_over or (bool(self._parked_takes) and now_ms >= self._next_look_ms)
        queues = self._ready, self._due, self._woken
        return is_over or any(queue.has_any(self._rests.__contains__) for queue in queues)

    def serve(
        self, barrier_passed: int, applied_index: int, now_ms: float, enough: Callable[[], bool]
    ) -> bool:
        """Answer what can be answered, step by step until `enough()`; return if there is more.

        That is: reads whose barrier has passed, GETs that were woken or whose wait is over, and
        what was carried out and takes long to answer. The kinds take turns, and in each kind the
        principals do. Nobody has more than his share of a turn while there are others.
        """
        reads = self._reads
        while reads and reads[0].barrier <= barrier_passed and reads[0].index <= applied_index:
            self._ready.append(reads.popleft().waiting)
        self._is_contended = self.payers.is_contended(now_ms / 1000)
        if self._parked_takes and now_ms >= self._next_look_ms:
            self._look_for_lapsed(now_ms)
        sources = (
            lambda: self._ready.take(self._has_had_share),
            lambda: self._due.take(self._has_had_share),
            lambda: self._woken.take(self._has_had_share),
            lambda: self._expired(now_ms),
        )
        empty = 0
        while empty < len(sources):
            waiting = sources[self._first_source]()
            self._first_source = (self._first_source + 1) % len(sources)
            if waiting is None:
                empty += 1
                continue
            empty = 0
            if self._has_had_share(waiting.principal):
                self._woken.append(waiting)  # its wait is over, and it has its turn later
            else:
                self._serve(waiting, now_ms)
                self._count_served(waiting)
            if enough() or self._read_bytes_in_all >= READ_BYTES_PER_TURN_MAX:
                return True
        return bool(self._ready or self._due or self._woken)

    def _has_had_share(self, principal: str | None) -> bool:
        return principal in self._full or principal in self._rests

    def _count_served(self, waiting: Waiting, weight: int = 0) -> None:
        """Count a request that was served, and what its answer weighs more than a small one's."""
        principal = waiting.principal
        if principal is None or not self._is_contended:
            return
        if weight:
            self._answered_weight[principal] += weight
        else:
            self._served[principal] += 1
        if self._served[principal] + self._answered_weight[principal] >= PAYER_SHARE:
            self._full.add(principal)

    def end_turn(self, turn_s: float, now: float) -> None:
        """Let those rest whose answers have weighed a share in a turn that took `turn_s`."""
        for principal, weight in self._answered_weight.items():
            if weight >= PAYER_SHARE:
                self._rests.spent(principal, weight)
        self._rests.begin(turn_s, now)
        self._served.clear()
        self._answered_weight.clear()
        self._full.clear()

    def end_rests(self, now: float) -> None:
        """Have those served again whose rests are over."""
        self._rests.end(now)

    def next_deadline(self) -> float:
        """Return when a rest ends behind which somebody is answered; infinity: there is none."""
        is_awaited = self._ready or self._due or self._woken
        return self._rests.next_end if is_awaited else float("inf")

    def _serve(self, waiting: Waiting, now_ms: float) -> None:
        request = waiting.request
        if request.type == REQUEST_ID and waiting.carried_out:
            self._serve_registration(waiting)
            return
        refused = self._refusal(waiting)
        if refused is not None:
            self.refuse(waiting, refused.code, refused.message, **refused.details)
            self._pass_on(request, now_ms)
            return
        if request.type not in OF_OTHERS:
            self._hear(request.client_id)
        if request.type == TOPICS:
            self._serve_topics(waiting)
        elif request.type == INSPECT:
            self._serve_inspect(waiting)
        elif request.type == UPGRADE:
            self._acknowledge(waiting, {"level": self.store.level, "before": self.store.level})
        elif request.type == TAKE:
            self._serve_take(waiting, now_ms)
        else:
            self._serve_get(waiting, now_ms)

    def _refusal(self, waiting: Waiting) -> Refused | None:
        """Return why the state refuses what waited for its barrier; None: it doesn't.

        What was refused when it came and is no read did not go into the log: it has to come again.
        """
        request, lacked = waiting.request, waiting.lacked
        is_read = request.type in READS
        if refused := self.forbidden(waiting.principal, request):
            return refused
        if lacked is not None and self.store.level < lacked.needs:
            still = LevelTooLow(lacked.what, lacked.needs, self.store.level)
            return Refused(still.code, still.message, still.details)
        if lacked is not None and not is_read:
            return _changed("the feature level")
        if request.client_id:
            acting = None if request.type in OF_OTHERS else waiting.principal
            if refused := self.store.check_client(request.client_id, request.epoch, acting):
                return refused
        if waiting.was_forbidden and not is_read:
            return _changed("what its principal may do")
        return None

    def _hear(self, client_id: str) -> None:
        idle_ms = self.limits.client_idle_ms
        if (
            idle_ms
            and client_id
            and len(self._heard) < HEARD_MAX
            and self.store.is_to_be_heard(client_id, int(HEARD_SHARE * idle_ms))
        ):
            self._heard[client_id] = None

    def take_heard(self, count_max: int) -> list[str]:
        """Return clients that have read and are to be noted as heard, at most so many."""
        ids = list(self._heard)[:count_max]
        for client_id in ids:
            del self._heard[client_id]
        return ids

    def forgotten(self, client_ids: Iterable[str], topics: Iterable[str]) -> None:
        """Have the parked requests of forgotten clients answered, and GETs of their topics."""
        gone = set(client_ids)
        self._awaken([self._parked_any.pop(client_id, {}) for client_id in sorted(gone)])
        takes = [each for parked in self._parked_takes.values() for each in parked.items()]
        for number, waiting in takes:
            if waiting.request.client_id in gone:
                self._unpark(number, waiting)
                self._woken.append(waiting)
        for topic in topics:
            self._wake(topic)

    def take_held(self) -> dict[str, int]:
        """Return how many PUTs were refused since the last call because a topic is full."""
        held = dict(self._held)
        self._held.clear()
        return held

    def _serve_registration(self, waiting: Waiting) -> None:
        """Add COUNTERS_PER_STEP of the client's counters; answer once they are all there."""
        client_id: str = waiting.body["client_id"]
        if self.store.check_client(client_id, None) is not None:
            text = "the client was dropped or forgotten before it was answered"
            self.refuse(waiting, "uncertain", text)
            return
        counters: dict[str, int] = waiting.body.setdefault("counters", {})
        after = next(reversed(counters), "")
        more = self.store.counters(client_id, after, COUNTERS_PER_STEP)
        counters.update(more)
        self._count_looked_up(waiting, len(more))
        if len(more) == COUNTERS_PER_STEP:
            self._due.append(waiting)
        else:
            known = waiting.request.body.get("recovery")
            waiting.body["subscriptions"] = self.store.subscriptions(client_id)
            if placed := self.store.placed(client_id):
                waiting.body["placed"] = placed
            if patterns := self.store.patterns.of(client_id):
                waiting.body["patterns"] = {text: patterns[text].at for text in sorted(patterns)}
            waiting.body |= self.store.since_recovery(client_id, known, waiting.principal)
            self._acknowledge(waiting, waiting.body)

    def _count_looked_up(self, waiting: Waiting, rows: int) -> None:
        if rows >= WEIGHT_ROWS:
            self._count_served(waiting, rows // WEIGHT_ROWS)

    def _serve_topics(self, waiting: Waiting) -> None:
        request = waiting.request
        if "subscribers" in request.body:
            found = self.store.subscribers_of(
                request.topic, request.body["after"], TOPICS_COUNT_MAX + 1
            )
            self._count_looked_up(waiting, len(found))
            subscribers = found[:TOPICS_COUNT_MAX]
            more = len(found) > len(subscribers)
            self._acknowledge(waiting, {"subscribers": subscribers, "more": more})
            return
        if request.body["all"]:
            self._serve_all_topics(waiting)
            return
        page = request.body["after"], TOPICS_COUNT_MAX + 1
        rows = self.store.topics_of(request.client_id, *page, waiting.principal)
        self._count_looked_up(waiting, len(rows))
        more = len(rows) > TOPICS_COUNT_MAX
        self._acknowledge(waiting, {"topics": rows[:TOPICS_COUNT_MAX], "more": more})

    def _serve_all_topics(self, waiting: Waiting) -> None:
        """Look at TOPICS_COUNT_MAX topics; answer once there are enough that one may see."""
        store, principal = self.store, waiting.principal
        seen: list[dict[str, Any]] = waiting.body.setdefault("topics", [])
        after = waiting.body.get("after", waiting.request.body["after"])
        rows = store.all_topics(after, TOPICS_COUNT_MAX + 1)
        self._count_looked_up(waiting, len(rows))
        is_last = len(rows) <= TOPICS_COUNT_MAX
        if principal is not None and store.level >= LEVEL_OF_USERS and principal not in self.admins:
            seen += [row for row in rows if store.users.may_see(principal, row["topic"])]
        else:
            seen += rows
        if is_last or len(seen) > TOPICS_COUNT_MAX:
            more = len(seen) > TOPICS_COUNT_MAX
            self._acknowledge(waiting, {"topics": seen[:TOPICS_COUNT_MAX], "more": more})
        else:
            waiting.body["after"] = rows[-1]["topic"]
            self._due.append(waiting)

    def _serve_inspect(self, waiting: Waiting) -> None:
        request, store = waiting.request, self.store
        what, after, count_max = request.body["what"], request.body["after"], TOPICS_COUNT_MAX + 1
        body: dict[str, Any] = {}
        if what == CLIENTS:
            rows = store.clients_page(after, count_max)
        elif what == TOPIC:
            row = store.topic_row(request.topic)
            if row is None:
                refused = no_topic(request.topic)
                self.refuse(waiting, refused.code, refused.message)
                return
            rows = [row]
        elif what == USERS:
            rows = store.users.page(after, count_max)
        elif what == AUDIT:
            rows, more = store.acts.page(int(after or 0))
            self._count_looked_up(waiting, len(rows))
            self._acknowledge(waiting, {"rows": rows, "more": more, "log_ms": store.idle.log_ms})
            return
        elif what == GROUPS:
            rows = store.groups.page(request.topic, after, count_max)
        elif what == PATTERNS:
            rows = store.patterns.page(after, request.topic, count_max)
        elif what == SUBSCRIPTIONS:
            rows = store.subscriptions_page(request.topic, after, count_max)
        else:
            rows = store.topics_of(request.client_id, after, count_max)
            body["client"] = store.client_row(request.client_id)
        self._count_looked_up(waiting, len(rows))
        body["rows"] = shown = _fitting(rows[:TOPICS_COUNT_MAX])
        body["more"] = len(rows) > len(shown)
        self._acknowledge(waiting, body)

    def _serve_get(self, waiting: Waiting, now_ms: float) -> None:
        if not self._has_room(waiting.route):
            # That nothing is there would not be true before it was looked.
            message = "publications wait on the way to this client"
            self.refuse(waiting, "overloaded", message, retry_after_ms=RETRY_AFTER_MS)
            return
        if self._leaves_out(waiting):
            message = "what its principal may read has changed since it came"
            self.refuse(waiting, "overloaded", message, retry_after_ms=RETRY_AFTER_MS)
            return
        result = self._read(waiting)
        if isinstance(result, Looked):
            waiting.looked[result.topic] = result
            self._due.append(waiting)
        elif isinstance(result, Refused):
            if result.code in TOLD_OF_A_TOPIC and _is_of_any(waiting):
                self.store.note_turn(waiting.request.client_id, result.details["topic"])
            self.refuse(waiting, result.code, result.message, **result.details)
        elif not waiting.is_timed and self._is_over(result, now_ms):
            # Its time is over, and an entry alone says so to all nodes: this is that entry.
            waiting.awaits_time = True
            self._operations.append(Hear([]))
            self._authors.append(waiting)
        elif result.count == 0 and now_ms < waiting.deadline_ms and waiting.request.type == GET:
            waiting.is_timed = False  # of what it waits for, that entry says nothing
            self._park(waiting)
        else:
            self._deliver(waiting, result)

    def _is_over(self, delivery: Delivery, now_ms: float) -> bool:
        """Return whether something that would be delivered has expired by now."""
        if delivery.over_ms == NEVER:
            return False
        return delivery.over_ms <= leases.reckoned(self.store, self.term(), now_ms)

    def _serve_take(self, waiting: Waiting, now_ms: float) -> None:
        """Answer with what was leased; have it leased, or wait for it, if nothing was.

        Without room for the reply it is refused before anything is leased. Who asks for nothing
        does not wait either: it would stand in the way of those who are offered what comes.
        """
        request, store = waiting.request, self.store
        if not self._has_room(waiting.route):
            message = "publications wait on the way to this client"
            self.refuse(waiting, "overloaded", message, retry_after_ms=RETRY_AFTER_MS)
            self._pass_on(request, now_ms)
            return
        leased = leases.read(store, request, waiting.body)
        is_empty = request.body["max_count"] > 0 and not waiting.body.get("given")
        if isinstance(leased, Refused):
            self.refuse(waiting, leased.code, leased.message, **leased.details)
        elif is_empty and leases.is_due(store, request, self.term(), now_ms):
            self._enter(waiting, leases.operation_of(request, waiting.carried_out))
        elif is_empty and now_ms < waiting.deadline_ms:
            self._park(waiting)
        else:
            self._hand_out(waiting, leased)

    def _hand_out(self, waiting: Waiting, leased: Leased) -> None:
        body = leases.answer_of(self.store, waiting.request, waiting.body, leased)
        if body["count"]:
            body["timestamps"] = _times(leased.times)
        self._note_delivered(waiting, body["count"], len(leased.data))
        batch = leased.lengths, leased.data
        if not waiting.request.body["expiry"]:
            batch = batch_without_expiry(*batch)
        self._acknowledge(waiting, body, *batch)

    def _note_delivered(self, waiting: Waiting, count: int, size_bytes: int) -> None:
        self.delivered_count += count
        self.delivered_bytes += size_bytes
        self._read_bytes[_way(waiting.route)] += size_bytes
        self._read_bytes_in_all += size_bytes
        if size_bytes >= WEIGHT_ANSWER_BYTES:
            self._count_served(waiting, size_bytes // WEIGHT_ANSWER_BYTES)

    def _leaves_out(self, waiting: Waiting) -> bool:
        """Return whether a GET acknowledges something that its entry did not.

        So it is where a topic could not be read when the acknowledgment was made or carried out,
        and can be now: an ACK would say that it is acknowledged.
        """
        principal, store = waiting.principal, self.store
        if principal is None:
            return False
        ahead = store.ahead(waiting.request.client_id, _claims(waiting.request))
        return any(store.lacks(principal, SUBSCRIBE, topic) is None for topic in ahead)

    def _read(self, waiting: Waiting) -> Delivery | Looked | Refused:
        request = waiting.request
        body, client_id = request.body, request.client_id
        max_count, max_bytes = body["max_count"], body["max_bytes"]
        how = body["expiry"], waiting.looked, body["runs"]
        if request.type == READ:
            from_id = body["from_id"]
            return self.store.read_from(request.topic, from_id, max_count, max_bytes, *how)
        placed = body["placed"]
        if request.topic:
            topic, last_id = request.topic, body["last_id"]
            return self.store.read(client_id, topic, last_id, max_count, max_bytes, placed, *how)
        last_ids, whose = body["last_ids"], waiting.principal
        return self.store.read_any(client_id, last_ids, max_count, max_bytes, whose, placed, *how)

    def _deliver(self, waiting: Waiting, delivery: Delivery) -> None:
        body: dict[str, Any] = {
            "topic": delivery.topic,
            "id": delivery.first_id,
            "count": delivery.count,
        }
        if delivery.passed is not None:
            body["passed"] = {"error": delivery.passed.code, **delivery.passed.details}
        if delivery.runs:
            body["runs"] = delivery.runs
        client_id = waiting.request.client_id
        if _is_of_any(waiting) and delivery.count:
            self.store.note_turn(client_id, delivery.topic)
            if self.store.patterns.of(client_id):
                # Perhaps the client does not know yet that it subscribes to it.
                body |= self.store.place_of(client_id, delivery.topic)
        self._note_delivered(waiting, delivery.count_in_all, len(delivery.data))
        lengths, data = delivery.lengths, delivery.data
        is_text, takes_properties = waiting.request.body["text"], waiting.request.body["properties"]
        if takes_properties and delivery.count:
            body["timestamps"] = _times(delivery.times)
        if delivery.has_properties and (is_text or not takes_properties):
            lengths, data = stripped(lengths, data)
        elif delivery.has_properties and not waiting.request.body["expiry"]:
            lengths, data = batch_without_expiry(lengths, data)
        if not (is_text and delivery.count):
            self._acknowledge(waiting, body, lengths, data)
            return
        try:
            body["publication"] = data.decode()
        except UnicodeDecodeError:
            self.refuse(waiting, "bad_request", "the publication is not text: ask without `text`")
            return
        self._acknowledge(waiting, body)

    # --- parked GETs --------------------------------------------------------------------------

    def _has_room(self, route: Route) -> bool:
        """Return whether publications may be read for a client: what it is sent has left by now."""
        read_bytes = self._read_bytes[_way(route)]
        in_all = self._read_bytes_in_all < READ_BYTES_PER_TURN_MAX
        return in_all and self.room_bytes(route) > read_bytes

    def _park(self, waiting: Waiting) -> None:
        limit, refusal = self.limits.parked_gets_max, None
        quota, principal = self.quotas.parked_gets_max, waiting.principal
        # The woken ones keep their places: what they waited for may be gone again.
        if self._parked_count + len(self._woken) >= limit:
            what = "too many GETs wait for publications"
            wait = {"limit": limit, "retry_after_ms": RETRY_AFTER_MS}
            refusal = ProtocolError("overloaded", what, **wait)
        elif principal is not None and 0 < quota <= self._parked_of[principal]:
            refusal = self._over(principal, "parked_gets_max", QUOTA_RETRY_MS)
        elif (
            waiting.request.type == TAKE
            and self._takes_of[_taker(waiting.request)] >= leases.TAKES_OF_ONE_MAX
        ):
            what = "as many TAKEs of this client wait in the group as may"
            wait = {"limit": leases.TAKES_OF_ONE_MAX, "retry_after_ms": RETRY_AFTER_MS}
            refusal = ProtocolError("overloaded", what, **wait)
        if refusal is not None:
            if waiting.request.type == TAKE and waiting.carried_out:
                self._hand_out(waiting, Leased(0, [], 0, b"", b""))
                return
            if waiting.carried_out:  # it was carried out in part: no NAK would be true of it
                self._deliver(waiting, Delivery(waiting.request.topic, 0, 0, b"", b""))
                return
            self.refuse(waiting, refusal.code, refusal.message, **refusal.details)
            return
        if not waiting.request.topic:
            # There is nothing behind them, so they are where the subscriptions stand, and that is
            # what counts for topics left out: 10,000 GETs must not hold a thousand names each.
            waiting.request.body["last_ids"] = {}
            waiting.request.body["placed"] = {}
        elif waiting.request.type == TAKE:
            # What it had to settle is settled: nor must they hold some hundred runs each.
            waiting.request.body |= {name: [] for name in leases.SETTLING}
        self._give_place_back(waiting)
        self._parked_number += 1
        self._parked_count += 1
        if principal is not None:
            self._parked_of[principal] += 1
        if waiting.request.type == TAKE:
            self._takes_of[_taker(waiting.request)] += 1
        table, key = self._place(waiting)
        table.setdefault(key, {})[self._parked_number] = waiting
        heapq.heappush(
            self._parked_by_deadline, (waiting.deadline_ms, self._parked_number, waiting)
        )

    def _unpark(self, number: int, waiting: Waiting) -> None:
        table, key = self._place(waiting)
        del table[key][number]
        if not table[key]:
            del table[key]
        self._parked_count -= 1
        self._count_unparked(waiting)

    def _sweep_deadlines(self) -> None:
        """Drop the deadlines of woken GETs once they are most: a busy topic parks one a PUT."""
        heap = self._parked_by_deadline
        if len(heap) <= 2 * self._parked_count + STALE_DEADLINES_MIN:
            return
        heap[:] = [entry for entry in heap if self._is_parked(entry[1], entry[2])]
        heapq.heapify(heap)

    def _is_parked(self, number: int, waiting: Waiting) -> bool:
        table, key = self._place(waiting)
        return number in table.get(key, {})

    def _place(self, waiting: Waiting) -> tuple[dict[Any, dict[int, Waiting]], Any]:
        request = waiting.request
        if request.type == TAKE:
            return self._parked_takes, leases.key_of(request)
        if request.topic:
            return self._parked, request.topic
        return self._parked_any, request.client_id

    def _wake(self, topic: str) -> None:
        """Have whoever waits for `topic` served, or for any topic and subscribes to this one.

        Ten thousand may wait for one topic: here they only change the queue.
        """
        woken = [self._parked.pop(topic, {})]
        clients = sorted(self._parked_any.keys() & self.store.subscribers(topic))
        woken += [self._parked_any.pop(client_id) for client_id in clients]
        self._awaken(woken)
        if self._parked_takes:
            for group in self.store.groups_of(topic):
                self._offer((topic, group), self.store.idle.log_ms)

    def _offer(self, key: leases.Key, log_ms: int) -> None:
        """Let one of those whose takes are parked have what is there at that time of the log.

        The others get what it leaves. When the group has ended all of them hear it.
        """
        parked = self._parked_takes.get(key)
        if parked is None:
            return
        group = self.store.groups.get(*key)
        if group is None:
            self._awaken([self._parked_takes.pop(key)])
            return
        for number, waiting in islice(parked.items(), leases.OFFERED_MAX):
            if leases.has_news(self.store, group, waiting.request, log_ms):
                self._unpark(number, waiting)
                self._woken.append(waiting)
                self._sweep_deadlines()
                return

    def _pass_on(self, request: Request, now_ms: float) -> None:
        """Offer others what a TAKE may have been offered that is refused."""
        if request.type == TAKE:
            log_ms = leases.reckoned(self.store, self.term(), now_ms)
            self._offer(leases.key_of(request), log_ms)

    def _look_for_lapsed(self, now_ms: float) -> None:
        """Offer what was leased to somebody whose time is over by now.

        A group is looked at once where there is nothing for anybody, however many wait for it.
        """
        self._next_look_ms = now_ms + leases.LOOK_MS
        groups, log_ms = self.store.groups, leases.reckoned(self.store, self.term(), now_ms)
        for key in list(self._parked_takes):
            group = groups.get(*key)
            if group is None or groups.has_work(group, NOBODY, log_ms):
                self._offer(key, log_ms)

    def _awaken(self, woken: list[dict[int, Waiting]]) -> None:
        for parked in woken:
            self._parked_count -= len(parked)
            self._woken.extend(parked.values())
            for waiting in parked.values():
                self._count_unparked(waiting)
        self._sweep_deadlines()

    def _count_unparked(self, waiting: Waiting) -> None:
        if waiting.principal is not None:
            self._parked_of[waiting.principal] -= 1
            if not self._parked_of[waiting.principal]:
                del self._parked_of[waiting.principal]
        if waiting.request.type == TAKE:
            taker = _taker(waiting.request)
            self._takes_of[taker] -= 1
            if not self._takes_of[taker]:
                del self._takes_of[taker]

    def _expired(self, now_ms: float) -> Waiting | None:
        """Take out a parked GET whose wait is over: it is answered that there is nothing yet."""
        heap = self._parked_by_deadline
        while heap and heap[0][0] <= now_ms:
            _, number, waiting = heapq.heappop(heap)
            if self._is_parked(number, waiting):
                self._unpark(number, waiting)
                return waiting
        return None

    # --- the end of a leadership --------------------------------------------------------------

    def abdicate(self, leader: str) -> None:
        """Answer everybody who waits: this node does not lead any more."""
        for authors in [authors for _, authors in self._entries.values()]:
            for waiting in authors:
                message = "leadership changed while this was being replicated"
                self.refuse(waiting, "uncertain", message)
        self._entries.clear()
        self._entries_waiting = self._put_bytes = 0
        self._put_bytes_of.clear()
        self._work_under_way_of.clear()
        rest = [read.waiting for read in self._reads] + self._authors
        rest += [*self._ready, *self._due, *self._woken]
        for table in (self._parked, self._parked_any, self._parked_takes):
            rest += [waiting for parked in table.values() for waiting in parked.values()]
        for waiting in rest:
            self.refuse(waiting, "not_leader", "leadership changed", leader=leader)
        self._reads.clear()
        for queue in (self._ready, self._due, self._woken):
            queue.clear()
        self._operations, self._authors = [], []
        self._parked.clear()
        self._heard.clear()
        self._asked.clear()
        self._parked_of.clear()
        self._takes_of.clear()
        self._parked_any.clear()
        self._parked_takes.clear()
        self._parked_by_deadline.clear()
        self._parked_count = 0

    def is_idle(self) -> bool:
        """True when nobody waits for an entry or a read (parked GETs don't count)."""
        waiting = self._entries, self._reads, self._operations
        return not any((*waiting, self._ready, self._due, self._woken))

    # --- answers ------------------------------------------------------------------------------

    def refuse(self, waiting: Waiting, code: str, message: str, **details: Any) -> None:
        """Answer with a NAK; of what is carried out in part none that is definite would be true.

        Who is told what is gone would only hear the same again.
        """
        if waiting.carried_out and code in TOLD_OF_A_TOPIC:
            details["definite"] = False
        elif waiting.carried_out:
            code, message = "uncertain", f"the acknowledgment is carried out, and {message}"
        if code == "unauthorized" and waiting.principal is not None:
            self.denied.note(waiting.principal, details["needs"])
        elif code == QUOTA and waiting.principal is not None:
            self.refused(waiting.principal, details["quota"])
        body = nak_body(code, message, **details)
        self._answer(waiting, NAK, body)

    def _acknowledge(
        self, waiting: Waiting, body: dict[str, Any], lengths: bytes = b"", data: bytes = b""
    ) -> None:
        self._answer(waiting, ACK, body, lengths, data)

    def _answer(
        self,
        waiting: Waiting,
        kind: str,
        body: dict[str, Any],
        lengths: bytes = b"",
        data: bytes = b"",
    ) -> None:
        assert not waiting.answered, waiting
        waiting.answered = True
        self._give_place_back(waiting)
        request = waiting.request
        put_taken_ms = waiting.taken_ms if kind == ACK and request.type == PUT else 0.0
        if waiting.ended is not None:
            waiting.ended(waiting.taken_ms, kind, body)
        self._answers.append(
            Answer(
                waiting.route,
                request.request_id,
                kind,
                body,
                lengths,
                data,
                waiting.principal,
                put_taken_ms,
            )
        )

    def load(self) -> dict[str, int]:
        """Return how many requests wait here, by what for."""
        return {
            "entry": self._entries_waiting + len(self._operations),
            "barrier": len(self._reads),
            "turn": len(self._ready) + len(self._due) + len(self._woken),
            "publication": self._parked_count,
        }

    def take_answers(self) -> list[Answer]:
        """Return the answers since the last call, for sending."""
        answers, self._answers = self._answers, []
        self._read_bytes.clear()
        self._read_bytes_in_all = 0
        return answers


def _put_bytes(put: Request | Put) -> int:
    """Return what a PUT adds to its topic; of publications without bytes that is their lengths."""
    return len(put.lengths) + len(put.data)


def _without_data(waiting: Waiting) -> Waiting:
    """Return who is refused by the state, so behind a barrier, as all that is read.

    This node may have been deposed. Meanwhile it must not keep a publication in memory.
    """
    waiting.request.lengths = waiting.request.data = b""
    return waiting


def _places(operation: Operation) -> set[tuple[str, str]]:
    """Return the subscription that an operation has begin elsewhere than at the end, or moves."""
    if isinstance(operation, Seek) or (isinstance(operation, Subscribe) and operation.start != NEW):
        return {(operation.client_id, operation.topic)}
    return set()


def _changed(what: str) -> Refused:
    message = f"{what} has changed since it came"
    return Refused("overloaded", message, {"retry_after_ms": RETRY_AFTER_MS})


def _fitting(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the first rows, as many as an answer has room for: a user's may have 64 KiB."""
    left_bytes = PAGE_BYTES_MAX
    for place, row in enumerate(rows):
        left_bytes -= len(orjson.dumps(row))
        if place and left_bytes < 0:
            return rows[:place]
    return rows


def _claims(request: Request) -> Mapping[str, int]:
    """Return what a GET acknowledges: {topic: id}."""
    if request.type == READ:
        return {}
    if not request.topic:
        last_ids: Mapping[str, int] = request.body["last_ids"]
        return last_ids
    last_id = request.body["last_id"]
    return {} if last_id is None else {request.topic: last_id}


def _times(runs: Sequence[tuple[int, int]]) -> list[list[int | None]]:
    """Return runs of (count, timestamp_ms) as a reply says them; neighbours of one time are one."""
    said: list[list[Any]] = []
    for count, timestamp_ms in runs:
        if not count:
            continue  # of a row for whose next one there was no room
        if said and said[-1][1] == (timestamp_ms or None):
            said[-1][0] += count
        else:
            said.append([count, timestamp_ms or None])
    return said


def _placed(request: Request) -> Mapping[str, int]:
    """Return which entry, as the client of a GET knows, has placed its subscriptions, by topic."""
    placed: Any = request.body["placed"]
    return {request.topic: placed} if request.topic else placed


def _changed_its_topic(waiting: Waiting, outcome: Outcome) -> bool:
    """Return whether parked GETs may have news: a duplicate must not cost a look at each."""
    changed = isinstance(outcome, Done) and not outcome.body.get("duplicate")
    request = waiting.request
    is_dropped = request.type == ADMIN and request.body["act"] in ENDS_SUBSCRIPTIONS
    return changed and (is_dropped or request.type in CHANGES_A_TOPIC)


def _is_of_any(waiting: Waiting) -> bool:
    return waiting.request.type == GET and not waiting.request.topic


def _taker(request: Request) -> tuple[str, ...]:
    """Return in which group a TAKE is, and whose."""
    return (*leases.key_of(request), request.client_id)


def _way(route: Route) -> bytes | str:
    """Return what a reply leaves by: a client's connection, or that to the node that relays."""
    return route if isinstance(route, bytes) else route[0]


_OPERATIONS: Final[dict[str, Callable[[Broker, Waiting], AskedOperation | None]]] = {
    REQUEST_ID: Broker._register,
    SUB: Broker._subscribe,
    UNSUB: Broker._unsubscribe,
    PUT: Broker._put,
    GET: Broker._get,
    TAKE: Broker._take,
    TOPICS: Broker._topics,
    UPGRADE: Broker._upgrade,
    INSPECT: Broker._inspect,
    ADMIN: Broker._administrate,
    SEEK: Broker._seek,
    READ: Broker._read_topic,
}
