"""What groups are, by the protocol alone: the part of the reference that several clients share.

What lives here: a group's open publications as a dictionary, and what takes do to it, as simply as
it can be said. What must not: the product's store; topics and clients (reference.py).

Written from docs/protocol.md and docs/decisions/0022-groups.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from cluster.store import groups, publications
from cluster.store.commands import MakeGroup, Take
from cluster.store.groups import GroupLimits
from flotilla_client.error_table import ProtocolError
from flotilla_client.properties import Properties, decode, encode

Result = tuple[str, dict[str, Any]]
# Of a topic: {id: (entry, publication)}.
Publications = Mapping[int, tuple[int, bytes]]
# Which key a publication has, by its id; None: none.
Keys = Callable[[int], str | bytes | None]
TOKENS_PER_ENTRY: Final = 16_384  # of a group: those of the next one of its name are above them


@dataclass(slots=True)
class Had:
    """An open publication: whose it is until when ("": nobody's, and due then)."""

    by: str
    token: int
    until_ms: int
    attempt: int


@dataclass(slots=True)
class LastTake:
    """What a client's last take was, and came to."""

    epoch: int
    number: int
    used: int
    token: int = 0
    given: list[list[int]] = field(default_factory=list)
    lost: list[list[int]] = field(default_factory=list)


@dataclass(slots=True)
class ReferenceGroup:
    """A group. What was given up to `head` and is not `open` is settled.

    `is_ordered`: by key; what was passed over is open with attempt 0. `acked`: what its workers
    have acknowledged in time: token and client. `displaced`: workers whose last take is known no
    more, as others had to have room.
    """

    head: int
    lease_ms: int = 30_000
    max_attempts: int = 0
    dead_letter: str = ""
    is_ordered: bool = False
    token: int = 0
    open: dict[int, Had] = field(default_factory=dict)
    takes: dict[str, LastTake] = field(default_factory=dict)
    acked: dict[int, tuple[int, str]] = field(default_factory=dict)
    displaced: set[str] = field(default_factory=set)

    @property
    def cursor(self) -> int:
        """Up to which id everything is settled."""
        return min(self.open, default=self.head + 1) - 1

    def set(self, asked: MakeGroup) -> None:
        """Change what is said of the settings."""
        for name in ("lease_ms", "max_attempts", "dead_letter"):
            value = getattr(asked, name)
            if value is not None:
                setattr(self, name, value)

    def held(self, client_id: str, now_ms: int) -> list[int]:
        """Return what a client has whose time is not over."""
        found = self.open.items()
        return [id_ for id_, had in found if had.by == client_id and had.until_ms > now_ms]

    def release(self, client_id: str, now_ms: int) -> None:
        """Let what a client holds be due."""
        for id_ in self.held(client_id, now_ms):
            self.open[id_] = Had("", 0, now_ms, self.open[id_].attempt)

    def purge(self, purged_id: int) -> None:
        """Let nothing be open of what is purged."""
        self.head = max(self.head, purged_id)
        self.open = {id_: had for id_, had in self.open.items() if id_ > purged_id}

    def seek(self, cursor: int) -> None:
        """Begin anew: nothing is open, and tokens go on."""
        self.head, self.open = cursor, {}

    def waits_for(self, id_: int, keys: Keys) -> bool:
        """Return whether an open one of the same key comes before."""
        key = keys(id_) if self.is_ordered else None
        return key is not None and any(each < id_ and keys(each) == key for each in self.open)

    def behind(self, keys: Keys) -> int:
        """Return how many wait for another one of their key."""
        if not self.is_ordered:
            return 0
        found = [key for key in map(keys, self.open) if key is not None]
        return len(found) - len(set(found))

    def described(self, last_id: int, keys: Keys) -> dict[str, Any]:
        """Return the row of INSPECT, but for the topic and the group's name."""
        leased = sum(had.by != "" for had in self.open.values())
        oldest = self.open.get(self.cursor + 1)
        return {
            "cursor": self.cursor,
            "backlog": last_id - self.head + len(self.open),
            "leased": leased,
            "waiting": len(self.open) - leased,
            "attempts": oldest.attempt if oldest else 0,
            "lease_ms": self.lease_ms,
            "max_attempts": self.max_attempts,
            "dead_letter": self.dead_letter,
            "ordered_by_key": self.is_ordered,
            "behind": self.behind(keys),
        }


@dataclass(slots=True)
class Taking:
    """One take, at one entry. `others_open`: how much is open in the other groups.

    `bury(id, reason)`: have it published to the dead-letter topic; None: there is none now.
    `is_over(id)`: it has expired; `is_gone(id)`: it is compacted away, as others up to
    `compacted_id` may be: each of those that stay is a row by itself.
    """

    group: ReferenceGroup
    asked: Take
    now_ms: int
    index: int
    publications: Publications
    last_id: int
    limits: GroupLimits
    others_open: int
    keys: Keys
    bury: Callable[[], Callable[[int, str], None] | None]
    is_over: Callable[[int], bool]
    is_gone: Callable[[int], bool]
    compacted_id: int

    def _row_of(self, id_: int) -> int:
        """Return what tells the row of a publication from others."""
        return -id_ if id_ <= self.compacted_id else self.publications[id_][0]

    def result(self) -> Result:
        """Carry it out."""
        group, asked = self.group, self.asked
        lease_ms = group.lease_ms if asked.lease_ms is None else asked.lease_ms
        last: LastTake | None = None
        if asked.number is not None:
            last = group.takes.get(asked.client_id)
            if last is not None and last.epoch != (asked.epoch or 0):
                last = group.takes[asked.client_id] = LastTake(asked.epoch or 0, -1, self.index)
            if last is None:
                if not self._has_room_for_worker():
                    return "too_many", {"limit": self.limits.workers_max}
                last = group.takes[asked.client_id] = LastTake(asked.epoch or 0, -1, self.index)
            if asked.number < last.number:
                return "stale_request", {"expected": last.number + 1}
            last.used = self.index
        if last is not None and asked.number == last.number:
            if last.token:
                return "", _told(last.token, last.given, last.lost, 0, lease_ms)
            lost = last.lost
        else:
            lost = self._settle()
        given, dead = self._give(lease_ms) if asked.max_count else ([], 0)
        token = group.token if given else 0
        if last is not None and asked.number is not None:
            last.number, last.token, last.given, last.lost = asked.number, token, given, lost
        return "", _told(token, given, lost, dead, lease_ms)

    def _has_room_for_worker(self) -> bool:
        takes = self.group.takes
        if len(takes) < self.limits.workers_max:
            return True
        idle = [each for each in takes if not self.group.held(each, self.now_ms)]
        if idle:
            displaced = min(idle, key=lambda each: (takes[each].used, each))
            del takes[displaced]
            self.group.displaced.add(displaced)
        return bool(idle)

    def _settle(self) -> list[list[int]]:
        lost: set[int] = set()
        open_, asked, now_ms = self.group.open, self.asked, self.now_ms

        def own(token: int, first: int, last: int) -> Iterable[int]:
            for id_ in range(first, last + 1):
                had = open_.get(id_)
                if had is None or (had.token, had.by) != (token, asked.client_id):
                    lost.add(id_)
                else:
                    yield id_

        for row in asked.acks:
            for id_ in [*own(*row)]:
                del open_[id_]
                self.group.acked[id_] = row[0], asked.client_id
        for *row, delay_ms in asked.naks:
            for id_ in own(*row):
                open_[id_] = Had("", 0, now_ms + delay_ms, open_[id_].attempt)
        for *row, lease_ms in asked.extends:
            for id_ in own(*row):
                open_[id_].until_ms = now_ms + lease_ms
        return _runs((id_,) for id_ in sorted(lost))

    def _give(self, lease_ms: int) -> tuple[list[list[int]], int]:
        group, asked, now_ms = self.group, self.asked, self.now_ms
        held = len(group.held(asked.client_id, now_ms))
        room = min(asked.max_count, self.limits.leases_per_client_max - held)
        left_bytes, left_dead_bytes, dead = asked.max_bytes, groups.DEAD_BYTES_MAX, 0
        given: list[tuple[int, int]] = []
        is_all_given = True
        seen = closed = 0
        while (id_ := self._next_due(seen)) is not None:
            seen = id_
            size, attempt = len(self.publications[id_][1]), group.open[id_].attempt + 1
            is_over = self.is_over(id_)
            is_dead = group.max_attempts > 0 and (is_over or attempt > group.max_attempts)
            bury = self.bury() if is_dead else None
            if is_over and bury is None:
                is_all_given = closed < groups.CLOSED_MAX
                if not is_all_given:
                    break
                del group.open[id_]
                closed += 1
                continue
            if bury is not None:
                is_all_given = dead < groups.DEAD_COUNT_MAX and (
                    not dead or size <= left_dead_bytes
                )
                if not is_all_given:
                    break
                bury(
                    id_, "expired" if is_over else f"given {attempt - 1} times, never acknowledged"
                )
                dead += 1
                left_dead_bytes -= size
                del group.open[id_]
                continue
            is_all_given = len(given) < min(room, groups.TAKE_AGAIN_MAX) and (
                not given or size <= left_bytes
            )
            if not is_all_given:
                break
            left_bytes = max(0, left_bytes - size)
            given.append((id_, attempt))
        if is_all_given and min(room - len(given), self._own_room()) > 0:
            dead = self._pass_expired(dead, left_dead_bytes)
        passed: list[int] = []
        if is_all_given:
            news, passed = self._new(room - len(given), left_bytes, not given)
            given += news
        until_ms = now_ms + lease_ms
        if given:
            group.token += 1
        for id_, attempt in given:
            group.open[id_] = Had(asked.client_id, group.token, until_ms, attempt)
            group.head = max(group.head, id_)
        for id_ in passed:
            group.open[id_] = Had("", 0, 0, 0)
            group.head = max(group.head, id_)
        return _runs(given), dead

    def _next_due(self, behind_id: int) -> int | None:
        """Return the lowest open id behind one that is due, and waits for no other of its key."""
        group = self.group
        due = (
            id_
            for id_ in sorted(group.open)
            if id_ > behind_id and group.open[id_].until_ms <= self.now_ms
            if not group.waits_for(id_, self.keys)
        )
        return next(due, None)

    def _own_room(self) -> int:
        group, limits = self.group, self.limits
        own_room = limits.open_per_group_max - len(group.open)
        return min(own_room, limits.open_max - self.others_open - len(group.open))

    def _pass_expired(self, dead: int, left_bytes: int) -> int:
        """Bury, or drop, what is over behind the head; return how many are dead by now."""
        group, end, rows = self.group, self.group.head, set[int]()
        for id_ in range(group.head + 1, self.last_id + 1):
            entry, _ = self.publications[id_]
            is_gone = self.is_gone(id_)
            # What is gone between two rows counts as one, too.
            is_next = id_ == group.head + 1 or not self.is_gone(id_ - 1)
            if not is_gone or is_next:
                rows.add(self._row_of(id_))
            is_far = len(rows) > publications.READ_ROWS_MAX
            if entry == self.index or is_far or not (is_gone or self.is_over(id_)):
                break
            end = id_
        while group.head < end:
            if self.is_gone(group.head + 1):
                group.head += 1
                continue
            bury, size = (
                self.bury() if group.max_attempts else None,
                len(self.publications[group.head + 1][1]),
            )
            if bury is None:
                group.head = end
                break
            if dead == groups.DEAD_COUNT_MAX or (dead and size > left_bytes):
                break
            bury(group.head + 1, "expired")
            dead, left_bytes = dead + 1, left_bytes - size
            group.head += 1
        return dead

    def _new(
        self, room: int, left_bytes: int, is_first: bool
    ) -> tuple[list[tuple[int, int]], list[int]]:
        """Return what is given for the first time (id, attempt), and the ids that are passed over.

        The latter stand behind others of their key.
        """
        group, limits = self.group, self.limits
        own_room = limits.open_per_group_max - len(group.open)
        # What is given now stands among the open ones already, if it was given before.
        room = min(room, own_room, limits.open_max - self.others_open - len(group.open))
        look_max = self.last_id - group.head
        if group.is_ordered:
            open_room = min(own_room, limits.open_max - self.others_open - len(group.open))
            look_max = min(groups.TAKE_LOOK_MAX, open_room) if room > 0 else 0
        found: list[tuple[int, int]] = []
        passed: list[int] = []
        rows: set[int] = set()
        busy = {self.keys(id_) for id_ in group.open if group.is_ordered} - {None}
        behind = group.behind(self.keys)
        for id_ in range(group.head + 1, self.last_id + 1):
            entry, publication = self.publications[id_]
            if self.is_gone(id_):
                break
            rows.add(self._row_of(id_))
            key = self.keys(id_) if group.is_ordered else None
            if len(found) + len(passed) >= look_max or entry == self.index or self.is_over(id_):
                break
            if key in busy and len(found) < room and len(rows) <= groups.TAKE_ROWS_MAX:
                if behind + len(passed) >= limits.behind_per_group_max:
                    break
                passed.append(id_)
                continue
            is_over = len(publication) > left_bytes and not (is_first and not found)
            if len(found) >= room or entry == self.index or is_over:
                break
            if len(rows) > groups.TAKE_ROWS_MAX:
                break
            found.append((id_, 1))
            left_bytes -= len(publication)
            if key is not None:
                busy.add(key)
        return found, passed


def dead_letter(
    publication: bytes, envelope_bytes: int, topic: str, group: str, id_: int, reason: str
) -> tuple[bytes, int]:
    """Return a dead letter, and how many bytes of it are its envelope."""
    had = Properties()
    if envelope_bytes:
        had, _ = decode(publication)
    headers = dict(had.headers)
    for name, value in (("topic", topic), ("id", str(id_)), ("group", group)):
        headers[f"dead-letter-{name}"] = value
    headers["dead-letter-reason"] = reason
    text, as_it_was = publication[envelope_bytes:], encode(Properties(had.key, had.headers))
    try:
        envelope = encode(Properties(had.key, headers))
    except ProtocolError:
        return as_it_was + text, len(as_it_was)
    if len(text) + len(envelope) > 2**20:
        return as_it_was + text, len(as_it_was)
    return envelope + text, len(envelope)


def _told(token: int, given: Any, lost: Any, dead: int, lease_ms: int) -> dict[str, Any]:
    return {"token": token, "given": given, "lost": lost, "dead": dead, "lease_ms": lease_ms}


def _runs(rows: Iterable[tuple[int, ...]]) -> list[list[int]]:
    """Return [first id, last id, …] of (id, …): neighbours by id with the same rest."""
    runs: list[list[int]] = []
    for id_, *rest in rows:
        if runs and runs[-1][1:] == [id_ - 1, *rest]:
            runs[-1][1] = id_
        else:
            runs.append([id_, id_, *rest])
    return runs
