"""Groups: subscriptions that several clients share, each publication leased to one of them.

What lives here: what a group has given, to whom and until when, what takes, settlements and dead
letters do to that, and the rows of it. What must not: who may work in a group and when a client
asks (store.py, serve/broker.py), clocks: a lease's time is the log's (idle.py).

A group has given all publications up to its `head`. Of these it keeps the open ones, which are
leased or wait to be given again: what is behind the head and not open is settled, so nothing is
kept of it. The cursor is the last id up to which nothing is open. A lease that runs out needs no
entry: whether it has is a question of the log's time. Decision: docs/decisions/0022-groups.md.

A group that is ordered by key passes over what stands behind another open one of its key. It is
open from then on, nobody's, and never given (attempt 0); it is due when that one is settled.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from operator import attrgetter
from typing import Any, Final

import orjson

from cluster.store.commands import OPERATIONS_PER_ENTRY, MakeGroup, Take
from cluster.store.key_order import KeyOrder
from cluster.store.outcomes import Done, Outcome, Refused, too_many
from cluster.store.publications import Publications
from cluster.store.tables import CorruptStore, Database, row_crc
from cluster.store.topics import Topic, Topics
from flotilla_client.error_table import ProtocolError
from flotilla_client.properties import Enveloped, Properties, decode, encode
from flotilla_client.protocol import LEASE_MS, PUBLICATION_BYTES_MAX, lasting, pack, unpack

# What a take does follows from these, so they are the same in all versions of a level.
TAKE_ROWS_MAX: Final = 128  # of publications that were never given: about a millisecond
TAKE_LOOK_MAX: Final = 1_024  # looked at by one take of a group that is ordered by key: some ms
TAKE_AGAIN_MAX: Final = 256  # given again by one take: each may stand in a row of its own
CLOSED_MAX: Final = 1_024  # of what has expired in hand and is no dead letter, by one take: some ms
DEAD_COUNT_MAX: Final = 64  # of one take; more go with the next one
DEAD_BYTES_MAX: Final = 1024 * 1024  # the same; one goes whatever its size

CHUNK_SHIFT: Final = 10  # a row of `leases` has the open ones of 1,024 ids, as runs of equal leases
STALE_TIMERS_MIN: Final = 1_000  # ids in vain: fewer are not worth sweeping

EXPIRED: Final = "expired"  # why a publication is a dead letter that nobody was given in time

Run = list[int]  # [first id, last id, ...]


@dataclass(frozen=True)
class GroupLimits:
    """What groups may hold: part of the state machine. In memory an open id takes 150 bytes."""

    groups_max: int = 1_000
    open_max: int = 500_000  # given and not settled, of all groups
    open_per_group_max: int = 50_000
    leases_per_client_max: int = 10_000  # in a group
    workers_max: int = 1_000  # whose last take is known, in a group
    behind_per_group_max: int = 10_000  # of the open ones, those that wait for another of their key


@dataclass(frozen=True, slots=True)
class Lease:
    """What is open about a publication; those of one take share one value.

    `client_id` "": nobody has it, and it is due at `at_ms`. Else its client has it until then, and
    may settle it as long as nobody else has got it. `attempt`: how often it was given; 0: it was
    passed over.
    """

    client_id: str
    token: int
    at_ms: int
    attempt: int


PASSED_OVER: Final = Lease("", 0, 0, 0)


@dataclass(slots=True)
class DeadOfTake:
    """The dead letters of one take: how many, and how many bytes more there is room for."""

    left_bytes: int
    count: int = 0


@dataclass(slots=True, eq=False)
class TakeRecord:
    """A client's last take, which a repeated request is answered by.

    `given`: runs [first id, last id, attempt] under `token`, 0: nothing was given.
    `lost`: runs of what it settled in vain. `used`: the entry.
    """

    epoch: int
    number: int
    token: int
    given: list[Run]
    lost: list[Run]
    used: int


@dataclass(slots=True, eq=False)
class SharedGroup:
    """A group of a topic. `lease_ms`: of a take that says none. `order`: None: it has none.

    Invariants: the open ids are above `cursor`, up to `head`; `due` has those whose time was over
    at the last operation, `due_heap` each of them and perhaps others; each open one that is neither
    due nor behind another of its key is in a run of `timers` with its time. `timed`: how many ids
    are in these runs. `held`: which ones each client has that are not due, `leased`: how many
    anybody has, whether or not its time is over.
    """

    topic: Topic
    name: str
    lease_ms: int
    max_attempts: int
    dead_letter: str
    head: int
    cursor: int
    token: int = 0
    order: KeyOrder | None = None
    open: dict[int, Lease] = field(default_factory=dict)
    workers: dict[str, TakeRecord] = field(default_factory=dict)
    held: dict[str, set[int]] = field(default_factory=dict)
    leased: int = 0
    timers: list[tuple[int, int, int]] = field(default_factory=list)
    timed: int = 0
    due: set[int] = field(default_factory=set)
    due_heap: list[int] = field(default_factory=list)
    dirty_chunks: set[int] = field(default_factory=set)
    dirty_workers: set[str] = field(default_factory=set)

    @property
    def key(self) -> tuple[int, str]:
        """What its rows are known by."""
        return self.topic.number, self.name

    @property
    def dead_letters_to(self) -> str:
        """The topic of its dead letters: its own choice, else its topic's; "": none."""
        kept = self.topic.retention
        return self.dead_letter or ("" if kept is None else kept.policy.dead_letter)

    def lapse(self, now_ms: int) -> None:
        """Note whose time is over."""
        timers = self.timers
        while timers and timers[0][0] <= now_ms:
            at_ms, first, last = heapq.heappop(timers)
            self.timed -= last + 1 - first
            for id_ in range(first, last + 1):
                lease = self.open.get(id_)
                if lease is None or lease.at_ms != at_ms or id_ in self.due:
                    continue
                self.due.add(id_)
                heapq.heappush(self.due_heap, id_)
                if lease.client_id:
                    self._let_go(lease.client_id, id_)

    def held_by(self, client_id: str) -> int:
        """Return how many a client has that are not due."""
        return len(self.held.get(client_id, ()))

    def hold(self, client_id: str, ids: Iterable[int]) -> None:
        """Note what a client has now; looked for among all that is open, it would take long."""
        self.held.setdefault(client_id, set()).update(ids)

    def _let_go(self, client_id: str, id_: int) -> None:
        own = self.held[client_id]
        own.remove(id_)
        if not own:
            del self.held[client_id]

    def put(self, id_: int, lease: Lease) -> None:
        """Let an id be leased so, or wait; its timer is the caller's."""
        self._take_out(id_)
        self.open[id_] = lease
        if lease.client_id:
            self.hold(lease.client_id, (id_,))
            self.leased += 1
        self.dirty_chunks.add(id_ >> CHUNK_SHIFT)

    def put_new(self, first: int, last: int, lease: Lease) -> None:
        """The same of ids behind the head."""
        assert first == self.head + 1, (first, self.head)
        ids = list(range(first, last + 1))
        self.open.update(dict.fromkeys(ids, lease))
        self.hold(lease.client_id, ids)
        self.leased += len(ids)
        self.head = last
        self.dirty_chunks.update(range(first >> CHUNK_SHIFT, (last >> CHUNK_SHIFT) + 1))

    def pass_over(self, id_: int) -> None:
        """Let the id behind the head wait behind another of its key."""
        assert id_ == self.head + 1, (id_, self.head)
        self.open[id_] = PASSED_OVER
        self.head = id_
        self.dirty_chunks.add(id_ >> CHUNK_SHIFT)

    def close(self, id_: int) -> None:
        """Let an open id be settled: the next one of its key is due."""
        self._take_out(id_)
        del self.open[id_]
        self.dirty_chunks.add(id_ >> CHUNK_SHIFT)
        if self.order is not None and (freed := self.order.settle(id_)) is not None:
            self.due.add(freed)
            heapq.heappush(self.due_heap, freed)

    def clear(self, cursor: int) -> None:
        """Begin anew behind an id: nothing is open."""
        self.dirty_chunks.update(id_ >> CHUNK_SHIFT for id_ in self.open)
        self.open.clear()
        self.held.clear()
        self.leased = 0
        self.timers, self.timed, self.due, self.due_heap = [], 0, set(), []
        self.head = self.cursor = cursor
        if self.order is not None:
            self.order = KeyOrder()

    def _take_out(self, id_: int) -> None:
        before = self.open.get(id_)
        if before is not None and before.client_id:
            self.leased -= 1
            if id_ not in self.due:
                self._let_go(before.client_id, id_)
        self.due.discard(id_)

    def set_timer(self, at_ms: int, first: int, last: int) -> None:
        """Have `lapse` look at these ids then.

        Extended again and again, a few could be in thousands of runs: all might be over at once.
        """
        if self.timed > 2 * len(self.open) + STALE_TIMERS_MIN:
            self.find_timers()
        heapq.heappush(self.timers, (at_ms, first, last))
        self.timed += last + 1 - first

    def find_timers(self) -> None:
        """Make the timers anew, of what is open, not due and not behind another of its key."""
        ids = sorted(self.open.keys() - self.due)
        if self.order is not None:
            ids = [id_ for id_ in ids if not self.order.is_behind(id_)]
        self.timers = [(lease.at_ms, *run) for run, lease in _runs(self.open, ids)]
        self.timed = len(ids)
        heapq.heapify(self.timers)

    def next_ms(self) -> int | None:
        """Return when the next time is over that is not yet."""
        timers = self.timers
        while timers:
            at_ms, first, last = timers[0]
            for id_ in range(first, last + 1):
                lease = self.open.get(id_)
                if lease is not None and lease.at_ms == at_ms and id_ not in self.due:
                    if id_ > first:  # those before it are not looked at again and again
                        heapq.heapreplace(timers, (at_ms, id_, last))
                        self.timed -= id_ - first
                    return at_ms
            heapq.heappop(timers)  # settled, or extended: another one has its time
            self.timed -= last + 1 - first
        return None

    def next_due(self) -> int | None:
        """Return the lowest id whose time is over."""
        heap = self.due_heap
        if len(heap) > 2 * len(self.due) + STALE_TIMERS_MIN:
            heap = self.due_heap = sorted(self.due)
        while heap and heap[0] not in self.due:
            heapq.heappop(heap)
        return heap[0] if heap else None

    def open_up_to(self, last: int) -> list[int]:
        """Return the ids up to `last` that are open, in order.

        A full topic drops a few with each PUT, while fifty thousand behind them may be open.
        """
        ids = range(self.cursor + 1, last + 1)
        if len(ids) < len(self.open):
            return [id_ for id_ in ids if id_ in self.open]
        return sorted(id_ for id_ in self.open if id_ <= last)

    def find_cursor(self) -> int:
        """Go on to the last id up to which nothing is open, and return it.

        The head may be millions ahead: of these no more are looked at than are open.
        """
        for _ in range(len(self.open)):
            if self.cursor + 1 in self.open:
                return self.cursor
            self.cursor += 1
        self.cursor = min(self.open, default=self.head + 1) - 1
        return self.cursor


class Groups:
    """The groups of all topics. They are told the log's time as `now_ms`."""

    def __init__(
        self,
        database: Database,
        topics: Topics,
        publications: Publications,
        limits: GroupLimits,
        id_max: int,
        takes_letters: Callable[[str], bool],
        hold_letter: Callable[[Topic, str, str, int], None],
    ) -> None:
        self._id_max, self._takes_letters = id_max, takes_letters
        self._hold_letter = hold_letter
        self._database, self._topics, self._publications = database, topics, publications
        self._limits = limits
        self._groups: dict[tuple[str, str], SharedGroup] = {}  # by topic and name
        self._open_count = 0
        self._dirty: set[SharedGroup] = set()
        self._gone: dict[tuple[int, str], None] = {}  # keys of rows to be deleted
        self._stirred: set[tuple[str, str]] = set()  # see take_stirred
        self._load()

    # --- views ----------------------------------------------------------------------------------

    @property
    def count(self) -> int:
        """How many groups there are."""
        return len(self._groups)

    def get(self, topic: str, name: str) -> SharedGroup | None:
        """Return a group: not to be changed."""
        return self._groups.get((topic, name))

    def has_work(self, group: SharedGroup, client_id: str, now_ms: int) -> bool:
        """Return whether a take of the client would, at that time of the log, do something."""
        next_ms = group.next_ms()
        if next_ms is not None and next_ms <= now_ms:
            return True
        if group.held_by(client_id) >= self._limits.leases_per_client_max:
            return False
        if group.due:
            return True
        return (
            group.head < group.topic.last_id and self._room_of(group) > 0 and self._goes_on(group)
        )

    def standing(
        self, group: SharedGroup, client_id: str, token: int, given: Sequence[Run]
    ) -> list[Run]:
        """Return what a take gave that is still leased so: runs [first id, last id, attempt]."""
        return [
            [*run, lease.attempt]
            for first, last, _ in given
            for run, lease in _runs(group.open, range(first, last + 1))
            if lease.token == token and lease.client_id == client_id
        ]

    def page(self, topic: str, after: str, count_max: int) -> list[dict[str, Any]]:
        """Return groups by topic and name, those behind (`topic`, `after`), as INSPECT lists them.

        `attempts`: of the publication that is next to the cursor, which holds the topic's floor.
        """
        keys = heapq.nsmallest(count_max, (key for key in self._groups if key > (topic, after)))
        return [_described(self._groups[key]) for key in keys]

    def take_stirred(self) -> list[tuple[str, str]]:
        """Return, once, the groups that have ended or were given something back: (topic, name).

        Not those of which a lease ran out, or whose topic has grown.
        """
        stirred, self._stirred = sorted(self._stirred), set()
        return stirred

    # --- groups come and go ---------------------------------------------------------------------

    def refuse_another(self) -> Refused | None:
        """Return why there can't be one more, None if there can."""
        limit = self._limits.groups_max
        return too_many("groups", limit) if len(self._groups) >= limit else None

    def make(self, topic: Topic, asked: MakeGroup, cursor: int, entry: int) -> SharedGroup:
        """Make a group that begins behind `cursor`, in that entry.

        An operation raises tokens by one at most. So its own are above those of any group before
        it: a TAKE to one that had its name settles nothing here, however late it comes.
        """
        token = entry * OPERATIONS_PER_ENTRY
        group = SharedGroup(topic, asked.group, LEASE_MS, 0, "", cursor, cursor, token)
        if asked.ordered_by_key:
            group.order = KeyOrder()
        self._groups[topic.name, group.name] = group
        self._topics.place_group(topic, group.name, cursor)
        self._dirty.add(group)
        return group

    def set(self, group: SharedGroup, asked: MakeGroup) -> None:
        """Change the settings that are said."""
        if asked.lease_ms is not None:
            group.lease_ms = asked.lease_ms
        if asked.max_attempts is not None:
            group.max_attempts = asked.max_attempts
        if asked.dead_letter is not None:
            group.dead_letter = asked.dead_letter
        self._dirty.add(group)
        self._pass_unseen(group)

    def seek(self, group: SharedGroup, cursor: int) -> None:
        """Have a group begin anew behind `cursor`: all leases end, and what was settled is open.

        Tokens go on, so that nobody settles what he had before.
        """
        self._open_count -= len(group.open)
        group.clear(cursor)
        self._dirty.add(group)
        self._stirred.add((group.topic.name, group.name))
        self._topics.place_group(group.topic, group.name, cursor)
        self._publications.floor_moved(group.topic)
        self._pass_unseen(group)

    def end(self, group: SharedGroup) -> None:
        """End a group: what it has not settled is nobody's any more."""
        del self._groups[group.topic.name, group.name]
        self._open_count -= len(group.open)
        self._dirty.discard(group)
        self._stirred.add((group.topic.name, group.name))
        self._gone[group.key] = None
        self._topics.place_group(group.topic, group.name, None)
        self._publications.floor_moved(group.topic)

    def gone(self, topic: Topic) -> None:
        """Let nothing be open of what was purged of a topic, or dropped as it was full."""
        for name in sorted(topic.groups):
            group = self._groups[topic.name, name]
            if topic.gone_id >= group.head:
                self._open_count -= len(group.open)
                group.clear(topic.gone_id)  # one by one, half a million would take a second
            for id_ in group.open_up_to(topic.gone_id):
                self._close(group, id_)
            if group.due:
                self._stirred.add((topic.name, name))  # of its key another one was purged
            self._changed(group)

    def expired(self, topic: Topic) -> None:
        """Let groups without dead letters pass what has expired and was never given.

        So a group in which nobody works keeps nothing that nobody would be given.
        """
        for name in sorted(topic.groups):
            self._pass_unseen(self._groups[topic.name, name])

    def _pass_unseen(self, group: SharedGroup) -> None:
        if not group.max_attempts and group.head < group.topic.expired_id:
            group.head = group.topic.expired_id
            self._changed(group)

    def release(self, client_id: str, now_ms: int, is_gone: bool = False) -> None:
        """Let what a client holds be due at once: another process of it began, or it `is_gone`."""
        own = [
            key
            for key, group in self._groups.items()
            if client_id in group.held or (is_gone and client_id in group.workers)
        ]
        for key in sorted(own):  # mostly none, of a thousand
            group = self._groups[key]
            group.lapse(now_ms)
            if is_gone and group.workers.pop(client_id, None) is not None:
                group.dirty_workers.add(client_id)
                self._dirty.add(group)
            held = sorted(group.held.get(client_id, ()))
            if not held:
                continue
            self._wait(group, held, now_ms)
            self._changed(group)

    # --- takes ----------------------------------------------------------------------------------

    def take(self, group: SharedGroup, asked: Take, now_ms: int, entry: int) -> Outcome:
        """Settle, then lease: each once for a number.

        Of a number that was carried out the settlements are not looked at again, and what it was
        given it is told again; nothing, if it was given nothing: then it is given now. `lease_ms`:
        how long a lease is that is given here.
        """
        lease_ms = group.lease_ms if asked.lease_ms is None else asked.lease_ms
        group.lapse(now_ms)
        worker: TakeRecord | None = None
        if asked.number is not None:
            found = self._worker_of(group, asked, asked.number, entry)
            if isinstance(found, Refused):
                return found
            worker = found
        is_repeated = worker is not None and asked.number == worker.number
        lost = worker.lost if worker and is_repeated else self._settle(group, asked, now_ms)
        token, given, dead = 0, [], 0
        if worker is not None and is_repeated and worker.token:
            token, given = worker.token, worker.given
        elif asked.max_count:
            given, dead = self._give(group, asked, now_ms, now_ms + lease_ms)
            token = group.token if given else 0
        if worker is not None and asked.number is not None:
            worker.number, worker.token = asked.number, token
            worker.given, worker.lost = given, lost
        self._changed(group)
        told = {"token": token, "given": given, "lost": lost, "dead": dead, "lease_ms": lease_ms}
        return Done(told)

    def _worker_of(
        self, group: SharedGroup, asked: Take, number: int, entry: int
    ) -> TakeRecord | Refused:
        """Return what is known of the client's last numbered take; refuse a number that is over."""
        worker = group.workers.get(asked.client_id)
        if worker is None or worker.epoch != (asked.epoch or 0):
            if worker is None and (refused := self._make_room_for_worker(group)):
                return refused
            worker = TakeRecord(asked.epoch or 0, -1, 0, [], [], entry)
            group.workers[asked.client_id] = worker
        elif number < worker.number:
            expected = worker.number + 1
            message = f"`number` {number} is over, {expected} is expected"
            return Refused("stale_request", message, {"expected": expected})
        worker.used = entry
        group.dirty_workers.add(asked.client_id)
        return worker

    def _make_room_for_worker(self, group: SharedGroup) -> Refused | None:
        """Forget whose last take is longest ago and who holds nothing, if there are too many."""
        limit = self._limits.workers_max
        if len(group.workers) < limit:
            return None
        idle = (
            (worker.used, client_id)
            for client_id, worker in group.workers.items()
            if not group.held_by(client_id)
        )
        longest = min(idle, default=None)
        if longest is None:
            return too_many("clients at work in the group", limit)
        del group.workers[longest[1]]
        group.dirty_workers.add(longest[1])
        return None

    def _settle(self, group: SharedGroup, asked: Take, now_ms: int) -> list[Run]:
        """Carry out acks, naks and extends; return the runs of ids whose lease is another's now."""
        lost: list[int] = []
        for token, first, last in asked.acks:
            for id_ in self._own(group, asked.client_id, token, first, last, lost):
                self._close(group, id_)
        for token, first, last, delay_ms in asked.naks:
            ids = [*self._own(group, asked.client_id, token, first, last, lost)]
            self._wait(group, ids, now_ms + delay_ms)
        for token, first, last, lease_ms in asked.extends:
            at_ms = now_ms + lease_ms
            ids = [*self._own(group, asked.client_id, token, first, last, lost)]
            for id_ in ids:
                attempt = group.open[id_].attempt
                group.put(id_, Lease(asked.client_id, token, at_ms, attempt))
            if ids:
                group.set_timer(at_ms, ids[0], ids[-1])
        group.lapse(now_ms)  # what was given back without a delay
        return _joined(sorted(set(lost)))

    def _own(
        self, group: SharedGroup, client_id: str, token: int, first: int, last: int, lost: list[int]
    ) -> Iterator[int]:
        """Yield which of the ids the client has under that token; the others are `lost`."""
        for id_ in range(first, last + 1):
            lease = group.open.get(id_)
            if lease is not None and lease.token == token and lease.client_id == client_id:
                yield id_
            else:
                lost.append(id_)

    def _wait(self, group: SharedGroup, ids: Sequence[int], at_ms: int) -> None:
        """Let ids be nobody's, and due at that time."""
        for id_ in ids:
            group.put(id_, Lease("", 0, at_ms, group.open[id_].attempt))
        for first, last in _joined(ids):  # what a client holds may be far apart
            group.set_timer(at_ms, first, last)
        if ids:
            self._stirred.add((group.topic.name, group.name))

    def _give(
        self, group: SharedGroup, asked: Take, now_ms: int, at_ms: int
    ) -> tuple[list[Run], int]:
        """Lease to a client until `at_ms` what is due, the lowest id first, then what is new.

        What was given often enough goes to the dead-letter topic in its place. It is given again
        where that has no subscriber, or it would be lost, and where that is full. Return runs
        [first id, last id, attempt], and how many are dead.
        """
        client_id = asked.client_id
        room = min(asked.max_count, self._limits.leases_per_client_max - group.held_by(client_id))
        lease, dead = Lease(client_id, group.token + 1, at_ms, 1), DeadOfTake(DEAD_BYTES_MAX)
        again_max = min(room, TAKE_AGAIN_MAX)
        again, left_bytes = self._give_again(group, lease, again_max, asked.max_bytes, dead, now_ms)
        given = _runs_of_attempts(again)
        for first, last, _ in given:
            group.set_timer(at_ms, first, last)
        room = min(room - len(again), self._room_of(group))
        if room > 0 and group.next_due() is None:
            is_left = self._pass_expired(group, dead, now_ms)
            if group.order is not None:
                again += self._give_in_order(group, lease, room, left_bytes, bool(given), now_ms)
                given = _runs_of_attempts(again)
            else:
                may_wait = bool(given) or is_left
                given += self._give_next(group, lease, room, left_bytes, may_wait, now_ms)
        if given:
            group.token = lease.token
        return given, dead.count

    def _give_again(
        self,
        group: SharedGroup,
        lease: Lease,
        count_max: int,
        left_bytes: int,
        dead: DeadOfTake,
        now_ms: int,
    ) -> tuple[list[tuple[int, int]], int]:
        """Lease what is due, each with its attempt; let go what has expired or was given too often.

        Return (id, attempt) of what is leased, and how many bytes are left.
        """
        given: list[tuple[int, int]] = []
        closed = 0
        while (id_ := group.next_due()) is not None:
            attempt = group.open[id_].attempt + 1
            has_expired = self._publications.has_expired(group.topic, id_, now_ms)
            dead_letters = self._dead_letters_of(group)
            if dead_letters is None and has_expired:
                if closed == CLOSED_MAX:
                    break
                self._close(group, id_)
                closed += 1
            elif dead_letters is not None and (has_expired or attempt > group.max_attempts):
                reason = EXPIRED if has_expired else _given_up(attempt - 1)
                if not self._bury(group, id_, reason, dead_letters, dead, now_ms):
                    break
                self._close(group, id_)
            elif len(given) >= count_max:
                break
            else:
                count, size_bytes = self._publications.measure(group.topic, id_, 1, left_bytes, 1)
                if not count and given:
                    break
                left_bytes -= size_bytes if count else left_bytes
                group.put(id_, Lease(lease.client_id, lease.token, lease.at_ms, attempt))
                given.append((id_, attempt))
        return given, left_bytes

    def _give_next(
        self,
        group: SharedGroup,
        lease: Lease,
        room: int,
        left_bytes: int,
        may_wait: bool,
        now_ms: int,
    ) -> list[Run]:
        """Lease what was never given, one that is over the limit too unless it `may_wait`.

        Return its run, if there is one.
        """
        first = group.head + 1
        count, _ = self._publications.measure(
            group.topic, first, room, left_bytes, TAKE_ROWS_MAX, now_ms
        )
        if not count and not may_wait and first <= self._publications.readable_id(group.topic):
            count = 1  # nothing else would ever come
        if not count:
            return []
        last = group.head + count
        group.put_new(first, last, lease)
        group.set_timer(lease.at_ms, first, last)
        self._open_count += count
        return [[first, last, 1]]

    def _give_in_order(
        self,
        group: SharedGroup,
        lease: Lease,
        room: int,
        left_bytes: int,
        is_given: bool,
        now_ms: int,
    ) -> list[tuple[int, int]]:
        """Lease what was never given and is the first of its key, and pass over the rest.

        `is_given`: something else was. Return (id, attempt) of what is leased.
        """
        order = group.order
        assert order is not None, group.name
        looked_max = min(TAKE_LOOK_MAX, self._room_of(group))
        behind_max = self._limits.behind_per_group_max
        first, given = group.head + 1, list[tuple[int, int]]()
        for id_, key, size_bytes in self._publications.keyed(group.topic, first, TAKE_ROWS_MAX):
            if id_ - first == looked_max or len(given) == room:
                break
            if id_ > group.head + 1:
                break  # behind something that is compacted away, which the next take passes
            if self._publications.has_expired(group.topic, id_, now_ms):
                break
            if order.is_taken(key):
                if order.behind_count >= behind_max:
                    break
                group.pass_over(id_)
            else:
                if size_bytes > left_bytes and (given or is_given):
                    break
                left_bytes -= size_bytes
                group.put_new(id_, id_, lease)
                given.append((id_, 1))
            order.add(id_, key)
        self._open_count += group.head + 1 - first
        for first, last, _ in _runs_of_attempts(given):
            group.set_timer(lease.at_ms, first, last)
        return given

    def _goes_on(self, group: SharedGroup) -> bool:
        """Return whether a take would look at what is behind the head.

        Not when as many wait for others of their key as may, and the next one is of such a key.
        """
        order, limit = group.order, self._limits.behind_per_group_max
        if order is None or order.behind_count < limit:
            return True
        _, key, _ = next(self._publications.keyed(group.topic, group.head + 1, 1))
        return not order.is_taken(key)

    def _pass_expired(self, group: SharedGroup, dead: DeadOfTake, now_ms: int) -> bool:
        """Let what has expired behind the head be dead letters, or nothing; pass what is compacted.

        Return whether some are left for the next take.
        """
        end = self._publications.lapsed_to(group.topic, group.head + 1, now_ms)
        while group.head < end:
            dead_letters = self._dead_letters_of(group)
            compacted_id = self._publications.compacted_to(group.topic, group.head + 1)
            if dead_letters is None:
                group.head = end
            elif compacted_id > group.head:
                group.head = compacted_id
            elif self._bury(group, group.head + 1, EXPIRED, dead_letters, dead, now_ms):
                group.head += 1
            else:
                return True
        return self._publications.lapsed_to(group.topic, group.head + 1, now_ms) > group.head

    def _bury(
        self,
        group: SharedGroup,
        id_: int,
        reason: str,
        dead_letters: Topic,
        dead: DeadOfTake,
        now_ms: int,
    ) -> bool:
        """Put a dead letter behind what its topic has; it may get that over its bound.

        Return whether there was room for it in this take; the first one has room in any case.
        """
        found = self._publications.cut(group.topic, id_, 1, 0)
        if dead.count == DEAD_COUNT_MAX or (dead.count and len(found.data) > dead.left_bytes):
            return False
        [publication] = unpack(found.lengths, found.data)
        lengths, data = pack([_dead_letter(group, id_, publication, reason)])
        size_bytes = len(lengths) + len(data)
        self._hold_letter(dead_letters, group.topic.name, group.name, size_bytes)
        if self._topics.make_room(dead_letters, size_bytes):
            self.gone(dead_letters)
        self._publications.add(dead_letters, 1, lengths, data)
        self._topics.put(dead_letters, now_ms)
        self._publications.floor_moved(dead_letters)
        dead.count += 1
        dead.left_bytes -= len(found.data)
        return True

    def _dead_letters_of(self, group: SharedGroup) -> Topic | None:
        """Return where to a group's dead letters go; None: nowhere, for now."""
        topic = self._topics.active.get(group.dead_letters_to) if group.max_attempts else None
        if topic is None or not topic.takes or topic.last_id >= self._id_max:
            return None
        return topic if self._takes_letters(topic.name) else None

    def _room_of(self, group: SharedGroup) -> int:
        """Return how many more may be open in a group."""
        limits = self._limits
        return min(limits.open_per_group_max - len(group.open), limits.open_max - self._open_count)

    def _close(self, group: SharedGroup, id_: int) -> None:
        group.close(id_)
        self._open_count -= 1

    def _changed(self, group: SharedGroup) -> None:
        """Have it written with the next flush; let go what is settled."""
        self._dirty.add(group)
        if group.find_cursor() != group.topic.groups[group.name]:
            self._topics.place_group(group.topic, group.name, group.cursor)
            self._publications.floor_moved(group.topic)

    # --- rows -----------------------------------------------------------------------------------

    def _load(self) -> None:
        query, verify = self._database.query, self._database.verify
        by_number = {topic.number: topic for topic in self._topics.active.values()}
        by_key: dict[tuple[int, str], SharedGroup] = {}
        damaged = partial(CorruptStore, self._database.path)
        for *row, crc in query("SELECT * FROM groups"):
            verify(crc, tuple(row))
            number, name, text, head, cursor, token = row
            topic = by_number.get(number)
            if topic is None or not cursor <= head <= topic.last_id:
                raise damaged(f"group {name!r} of topic {number}")
            lease_ms, max_attempts, dead_letter, *rest = orjson.loads(text)
            group = SharedGroup(
                topic, name, lease_ms, max_attempts, dead_letter, head, cursor, token
            )
            if rest == [True]:
                group.order = KeyOrder()
            self._groups[topic.name, name] = by_key[group.key] = group
        for number, name, chunk, text, crc in query("SELECT * FROM leases ORDER BY chunk"):
            verify(crc, (number, name, chunk, text))
            if (number, name) not in by_key:
                raise damaged(f"leases of no group {name!r} of topic {number}")
            self._load_leases(by_key[number, name], orjson.loads(text))
        for *row, crc in query("SELECT * FROM workers"):
            verify(crc, tuple(row))
            number, name, client_id, text = row
            if (number, name) not in by_key:
                raise damaged(f"client {client_id} of no group {name!r} of topic {number}")
            by_key[number, name].workers[client_id] = TakeRecord(*orjson.loads(text))
        for group in self._groups.values():
            self._open_count += len(group.open)
            if group.open and not group.cursor < min(group.open) <= max(group.open) <= group.head:
                raise damaged(f"leases of group {group.name!r} of {group.topic.name!r}")
            if group.order is not None:
                self._find_order(group, group.order)
            group.find_timers()

    def _find_order(self, group: SharedGroup, order: KeyOrder) -> None:
        """Find the keys of what is open, among the publications."""
        ids = deque(sorted(group.open))
        while ids:
            for id_, key, _ in self._publications.keyed(group.topic, ids[0], 1):
                if id_ == ids[0]:
                    order.add(ids.popleft(), key)
                    if not ids:
                        break

    def _load_leases(self, group: SharedGroup, runs: list[Any]) -> None:
        for first, last, *lease in runs:
            shared, ids = Lease(*lease), list(range(first, last + 1))
            group.open.update(dict.fromkeys(ids, shared))
            if shared.client_id:
                group.hold(shared.client_id, ids)
                group.leased += len(ids)

    def flush(self) -> None:
        """Write what changed, in the open transaction."""
        write = self._database.write
        if self._gone:
            keys = list(self._gone)
            for table in ("groups", "leases", "workers"):
                write(f"DELETE FROM {table} WHERE topic = ? AND name = ?", keys)
            self._gone.clear()
        if not self._dirty:
            return
        groups, leases, workers = list[Any](), list[Any](), list[Any]()
        no_leases, no_workers = list[Any](), list[Any]()
        # Sorted as in `tables.in_order`.
        for group in sorted(self._dirty, key=attrgetter("key")):
            settings: tuple[Any, ...] = group.lease_ms, group.max_attempts, group.dead_letter
            if group.order is not None:
                settings += (True,)  # of LEVEL_OF_KEY_ORDER
            text = orjson.dumps(settings).decode()
            groups.append((*group.key, text, group.head, group.cursor, group.token))
            for chunk in sorted(group.dirty_chunks):
                first = chunk << CHUNK_SHIFT
                ids: Iterable[int] = range(first, first + (1 << CHUNK_SHIFT))
                if len(group.open) < 1 << CHUNK_SHIFT:  # no more to look at than there is
                    ids = sorted(id_ for id_ in group.open if id_ >> CHUNK_SHIFT == chunk)
                runs = [[*run, *_said(lease)] for run, lease in _runs(group.open, ids)]
                row = (*group.key, chunk)
                if runs:
                    leases.append((*row, orjson.dumps(runs).decode()))
                else:
                    no_leases.append(row)
            for client_id in sorted(group.dirty_workers):
                worker, key = group.workers.get(client_id), (*group.key, client_id)
                if worker is None:
                    no_workers.append(key)
                else:
                    workers.append((*key, orjson.dumps(_told(worker)).decode()))
            group.dirty_chunks.clear()
            group.dirty_workers.clear()
        self._dirty.clear()
        for sql, rows in ((_GROUP, groups), (_LEASES, leases), (_WORKER, workers)):
            write(sql, [(*each, row_crc(each)) for each in rows])
        write("DELETE FROM leases WHERE topic = ? AND name = ? AND chunk = ?", no_leases)
        write("DELETE FROM workers WHERE topic = ? AND name = ? AND client_id = ?", no_workers)


_GROUP: Final = "INSERT OR REPLACE INTO groups VALUES(?, ?, ?, ?, ?, ?, ?)"
_LEASES: Final = "INSERT OR REPLACE INTO leases VALUES(?, ?, ?, ?, ?)"
_WORKER: Final = "INSERT OR REPLACE INTO workers VALUES(?, ?, ?, ?, ?)"


def _said(lease: Lease) -> tuple[str, int, int, int]:
    return lease.client_id, lease.token, lease.at_ms, lease.attempt


def _told(worker: TakeRecord) -> list[Any]:
    return [getattr(worker, name) for name in TakeRecord.__slots__]


def _given_up(attempts: int) -> str:
    return f"given {attempts} times, never acknowledged"


def _dead_letter(group: SharedGroup, id_: int, publication: bytes, reason: str) -> bytes:
    """Return what is published of a publication that was given up: headers say why and whence.

    It is as it was if it has no room for them, but never expires.
    """
    is_enveloped = type(publication) is Enveloped
    before, size = decode(publication) if is_enveloped else (Properties(), 0)
    headers = {
        **before.headers,
        "dead-letter-topic": group.topic.name,
        "dead-letter-id": str(id_),
        "dead-letter-group": group.name,
        "dead-letter-reason": reason,
    }
    try:
        envelope = encode(Properties(before.key, headers), were_read=True)
    except ProtocolError:
        return lasting(publication)
    letter = Enveloped(envelope + publication[size:])
    return letter if len(letter) <= PUBLICATION_BYTES_MAX else lasting(publication)


def _described(group: SharedGroup) -> dict[str, Any]:
    oldest = group.open.get(group.cursor + 1)
    return {
        "topic": group.topic.name,
        "group": group.name,
        "cursor": group.cursor,
        "backlog": group.topic.last_id - group.head + len(group.open),
        "leased": group.leased,
        "waiting": len(group.open) - group.leased,
        "attempts": oldest.attempt if oldest else 0,
        "lease_ms": group.lease_ms,
        "max_attempts": group.max_attempts,
        "dead_letter": group.dead_letter,
        "ordered_by_key": group.order is not None,
        "behind": group.order.behind_count if group.order is not None else 0,
    }


def _runs(open_: dict[int, Lease], ids: Iterable[int]) -> Iterator[tuple[tuple[int, int], Lease]]:
    """Yield ((first id, last id), lease) of neighbours among the ids whose leases are equal."""
    first = last = 0
    lease: Lease | None = None
    for id_ in ids:
        found = open_.get(id_)
        if lease is not None and (id_ != last + 1 or (found is not lease and found != lease)):
            yield (first, last), lease
            lease = None
        if found is not None:
            if lease is None:
                first, lease = id_, found
            last = id_
    if lease is not None:
        yield (first, last), lease


def _runs_of_attempts(given: Sequence[tuple[int, int]]) -> list[Run]:
    """Return runs [first id, last id, attempt] of (id, attempt), by id."""
    runs: list[Run] = []
    for id_, attempt in given:
        if runs and runs[-1][1:] == [id_ - 1, attempt]:
            runs[-1][1] = id_
        else:
            runs.append([id_, id_, attempt])
    return runs


def _joined(ids: Sequence[int]) -> list[Run]:
    """Return runs [first id, last id] of sorted ids."""
    runs: list[Run] = []
    for id_ in ids:
        if runs and runs[-1][1] == id_ - 1:
            runs[-1][1] = id_
        else:
            runs.append([id_, id_])
    return runs
