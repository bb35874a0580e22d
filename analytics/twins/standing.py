"""Who stood subscribed to what, and when: the section "Standing" of docs/checks.md.

What lives here: how long a SUB or an UNSUB may act, spans, lives, starts, what was passed, who has
drained. What must not: publications (knowledge.py), evidence.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property

from analytics.twins.record import (
    BEFORE_ALL,
    DENIALS,
    NEVER,
    Drained,
    Record,
    RecordedOperation,
    Time,
)

Whose = tuple[str, str]  # client, topic
WILD = frozenset("*>")  # in the name of a pattern


@dataclass(eq=False)
class SubscribedSpan:
    """A time in which a client's subscription to a topic surely stood: from `begin` to `end`.

    `proof`: the first operation that shows it; all times are of its host. `start`: only later ids
    are owed; None: not known. `given`: ids that GETs in the span gave. `had`: ids of GETs that may
    be of this reading: its subscription surely began after `since`, and was over by `until`; of
    these `named` (producer, counter), `nameless` the ids of what does not say whose it is, and
    `unread` those at which anything may stand, damaged or told to be gone, and by which GETs.
    `passed`: the greatest id that it has passed, 0 if none. `cut`: whoever drained here has all
    that was known before; None: nobody drained, or it can't be told.
    """

    client: str
    topic: str
    host: str | None
    begin: Time
    end: Time
    proof: RecordedOperation
    gets: list[RecordedOperation] = field(default_factory=list)
    subs: list[RecordedOperation] = field(default_factory=list)
    given: set[int] = field(default_factory=set)
    since: Time = BEFORE_ALL
    until: Time = NEVER
    had: set[int] = field(default_factory=set)
    named: set[tuple[str, int]] = field(default_factory=set)
    nameless: set[int] = field(default_factory=set)
    unread: dict[int, list[RecordedOperation]] = field(default_factory=dict)
    passed: int = 0
    start: int | None = None
    has_drained: bool = False
    cut: Time | None = None

    @property
    def is_last(self) -> bool:
        """Whether nothing ends it."""
        return self.end == NEVER

    def covers(self, operation: RecordedOperation) -> bool:
        """Whether the subscription stood from before an operation's invoke until after its end."""
        is_comparable = operation.host == self.host
        return is_comparable and self.begin < operation.invoke and operation.end < self.end

    def is_apart(self, get: RecordedOperation) -> bool:
        """Whether a GET of its client is surely of another reading."""
        is_outside = get.end < self.since or get.invoke > self.until
        return get.host == self.host and is_outside

    def take_in(self, get: RecordedOperation) -> None:
        """Note what a GET gave that may be of this reading."""
        self.had.update(get.ids())
        for each in get.given:
            if each.producer is None:
                self.unread.setdefault(each.id, []).append(get)
            elif each.counter is not None:
                self.named.add((each.producer, each.counter))
        for id_, _ in get.corrupt:
            self.unread.setdefault(id_, []).append(get)
        self.nameless.update(self.unread, get.nobodys)


class RecordedSubscription:
    """All that is recorded of one client and one topic. Rows in the order of their ends."""

    def __init__(self, record: Record, client: str, topic: str) -> None:
        self._record = record
        self.client, self.topic = client, topic
        self.subs: list[RecordedOperation] = []  # but those that failed
        self.unsubs: list[RecordedOperation] = []  # the same
        self.answers: list[RecordedOperation] = []  # GETs that name the topic
        self.refusals: list[RecordedOperation] = []  # GETs that were told that there is none
        self.drained: list[Drained] = []

    # --- controls ---------------------------------------------------------------------------------

    @cached_property
    def _superseding(self) -> dict[RecordedOperation, RecordedOperation | None]:
        """Of each control without an answer the one since whose answer the broker refuses it."""
        controls = self.subs + self.unsubs
        ok = sorted((one for one in controls if one.is_ok), key=lambda one: one.end)
        return {one: _superseding(one, ok) for one in controls if not one.is_ok}

    def latest(self, control: RecordedOperation) -> Time:
        """Return when a control acted at the latest."""
        if control.is_ok:
            return control.end
        other = self._superseding[control]
        return NEVER if other is None else other.end

    def acts_last(self, sub: RecordedOperation) -> bool:
        """Whether a SUB supersedes every UNSUB that may act during it, so that they act before."""
        during = [
            unsub
            for unsub in self.unsubs
            if unsub.invoke < sub.end and self.latest(unsub) > sub.invoke
        ]
        return bool(during) and all(
            self._superseding.get(unsub) is sub or _is_one_seek(unsub, sub) for unsub in during
        )

    def may_have_moved(
        self,
        host: str | None,
        since: Time,
        until: Time,
        but: RecordedOperation | None = None,
    ) -> bool:
        """Whether a SUB that says where it starts may have acted between two times of a host."""
        return any(
            sub.host != host or (sub.invoke < until and self.latest(sub) > since)
            for sub in self.moves
            if sub is not but
        )

    def may_have_left(self, host: str | None, since: Time, until: Time) -> bool:
        """Whether an UNSUB may have acted between two times of a host."""
        return any(
            unsub.host != host or (unsub.invoke < until and self.latest(unsub) > since)
            for unsub in self.unsubs
        )

    @cached_property
    def moves(self) -> list[RecordedOperation]:
        """The SUBs that say where they start."""
        return [sub for sub in self.subs if sub.start is not None]

    def is_surely_away(
        self, operation: RecordedOperation, denials: Iterable[RecordedOperation]
    ) -> bool:
        """Whether the client was surely not subscribed during an operation; a SUB aside.

        `denials`: the GETs that were rightly told that it is not.
        """
        host = operation.host
        left = BEFORE_ALL  # the latest invoke of what left, or was denied, before the operation
        for one in (*(unsub for unsub in self.unsubs if unsub.is_ok), *denials):
            if one.host == host and one.end < operation.invoke:
                left = max(left, one.invoke)
        return all(
            sub.host == host and (sub.invoke > operation.end or self.latest(sub) < left)
            for sub in self.subs
            if sub is not operation
        )

    def was_over(self, sub: RecordedOperation, operation: RecordedOperation) -> bool:
        """Whether what a SUB made surely had ended before an operation was sent."""
        return any(
            unsub.is_ok
            and sub.host == unsub.host == operation.host
            and self.latest(sub) < unsub.invoke
            and unsub.end < operation.invoke
            for unsub in self.unsubs
        )

    # --- answers ----------------------------------------------------------------------------------

    def got_before(self, get: RecordedOperation) -> int | None:
        """Return the highest id that a GET's session had by what it sent before; None: nothing.

        What was given before the client left does not count: it may have come back further on.
        """
        return self._got.get(get)

    @cached_property
    def _got(self) -> dict[RecordedOperation, int]:
        before: dict[RecordedOperation, int] = {}
        got: dict[tuple[str, int], list[tuple[Time, int]]] = defaultdict(list)
        for get in sorted(self.answers, key=lambda one: one.op_id):
            session = (get.process, get.session)
            here = (u.invoke for u in self.unsubs if u.host == get.host and u.invoke < get.end)
            left = max(here, default=BEFORE_ALL)
            rows = [row for row in got[session] if row[0] > left]
            if rows:
                before[get] = max(id_ for _, id_ in rows)
            if get.brought:
                highest = max(get.ids())
                while rows and rows[-1][1] <= highest and rows[-1][0] <= get.invoke:
                    rows.pop()  # what this one says of everything that follows
                rows.append((get.invoke, highest))
            got[session] = rows
        return before

    def has_read_on(self, get: RecordedOperation) -> bool:
        """Whether an earlier GET brought something of what is surely the same subscription."""
        acted = max(
            (
                self.latest(unsub) if unsub.host == get.host else NEVER
                for unsub in self.unsubs
                if unsub.host != get.host or unsub.invoke <= get.end
            ),
            default=BEFORE_ALL,
        )
        return any(
            other.brought and other.invoke > acted and other.end < get.invoke
            for other in self.answers
            if other.host == get.host
        )

    # --- lives ------------------------------------------------------------------------------------

    @cached_property
    def lives(self) -> list[SubscribedSpan]:
        """Return the lives, on each host that has a proof; none of a client that was forgotten."""
        if self.client in self._record.forgotten:
            return []
        hosts = {one.host for one in self._proofs()}
        return [life for host in hosts for life in self._lives_on(host)]

    def _proofs(self) -> Iterator[RecordedOperation]:
        yield from (sub for sub in self.subs if sub.is_ok)
        yield from self.answers

    def _lives_on(self, host: str | None) -> Iterator[SubscribedSpan]:
        if any(unsub.host != host for unsub in self.unsubs):
            return  # when that one acted can't be told here
        begins, ends = self._spans()
        lives: dict[int, SubscribedSpan] = {}
        proofs = [one for one in self._proofs() if one.host == host]
        for proof in sorted(proofs, key=lambda one: one.end):
            is_last = proof.f == "sub" and self.acts_last(proof)
            place = bisect_right(begins, proof.end if is_last else proof.invoke) - 1
            if place < 0 or proof.end > ends[place]:
                continue  # not wholly in a span
            life = lives.get(place)
            if life is None:
                life = lives[place] = SubscribedSpan(
                    self.client, self.topic, host, proof.end, ends[place], proof
                )
            (life.gets if proof.f == "get" else life.subs).append(proof)
        for life in lives.values():
            self._fill(life)
            yield life

    def _spans(self) -> tuple[list[Time], list[Time]]:
        """Return the begins and the ends of the times in which no UNSUB may act."""
        begins: list[Time] = [BEFORE_ALL]
        ends: list[Time] = []
        for unsub in sorted(self.unsubs, key=lambda one: one.invoke):
            latest = self.latest(unsub)
            if ends and unsub.invoke <= begins[-1]:  # they overlap
                begins[-1] = max(begins[-1], latest)
            else:
                ends.append(unsub.invoke)
                begins.append(latest)
        return begins, [*ends, NEVER]

    def _fill(self, life: SubscribedSpan) -> None:
        life.since, life.until = self._began_since(life), self._over_by(life)
        for get in self.answers:
            if not life.is_apart(get):
                life.take_in(get)
        asked = [get.asked for get in life.gets if get.asked is not None]
        for get in life.gets:
            life.given.update(get.ids())
        starts = [sub.last_id for sub in life.subs if sub.last_id is not None]
        if starts:
            life.start = min(starts)
        elif life.given:
            life.start = min(life.given) - 1
        rows = [
            row
            for row in self.drained
            if row.host == life.host and life.begin <= row.time <= life.end
        ]
        seen = (*life.given, *asked, *(row.last_id for row in rows))
        floor = self._record.floors.get(self.topic, 0) if life.is_last else 0
        life.passed = max((*seen, floor), default=0)
        life.has_drained = bool(rows)
        cuts = [cut for row in rows if (cut := self._cut(row)) is not None]
        life.cut = max(cuts, default=None)

    def _began_since(self, life: SubscribedSpan) -> Time:
        """Return after what the subscription of a life surely began; all are of its host."""
        left = [unsub.invoke for unsub in self.unsubs if unsub.is_ok and unsub.invoke < life.begin]
        made = [sub.invoke for sub in self._new_on(life.host) if sub.invoke < life.begin]
        return max([*left, *made], default=BEFORE_ALL)

    def _over_by(self, life: SubscribedSpan) -> Time:
        """Return by when the subscription of a life was surely over; all are of its host."""
        left = [unsub for unsub in self.unsubs if unsub.is_ok]
        ending = (one for one in (*left, *self._new_on(life.host)) if one.invoke >= life.end)
        return min((one.end for one in ending), default=NEVER)

    def _new_on(self, host: str | None) -> list[RecordedOperation]:
        """Return the SUBs that were told, on a host, that no subscription stood."""
        return [sub for sub in self.subs if sub.is_ok and sub.resumed is False and sub.host == host]

    def _cut(self, row: Drained) -> Time | None:
        """Return before what all that was known is had by who wrote this row."""
        if self._record.has_tombstones:
            tombstone = self._record.tombstone(self.topic, row.host)
            return None if tombstone is None else min(tombstone, row.time)
        gets = [get.invoke for get in self.answers if get.host == row.host and get.end <= row.time]
        return max(gets, default=row.time)


def _is_one_seek(unsub: RecordedOperation, sub: RecordedOperation) -> bool:
    """Whether an UNSUB and a SUB that says where it starts are one request."""
    is_next = (unsub.process, unsub.op_id + 1) == (sub.process, sub.op_id)
    return sub.start is not None and is_next and unsub.invoke <= sub.invoke <= unsub.end


def _superseding(
    control: RecordedOperation, answered: list[RecordedOperation]
) -> RecordedOperation | None:
    """Return the first that was answered, of those since which the broker refuses a control.

    `answered`: in the order of their ends.
    """
    for other in answered:
        is_later = other.host == control.host and other.invoke > control.invoke
        is_newer = (
            other.epoch is not None and control.epoch is not None and other.epoch > control.epoch
        )
        if is_later and (other.process == control.process or is_newer):
            return other
    return None


def take_back_idle(record: Record) -> None:
    """Count as failed UNSUBs, and ends of groups, of unknown outcome that surely never acted."""
    subs = [sub for sub in record.of("sub") if sub.may_have_happened]
    patterned = {sub.client for sub in subs if set(sub.topic) & WILD}
    denied = {(get.client, get.topic) for get in record.of("get") if _is_denial(get)}
    for unsub in record.of("unsub"):
        own = (unsub.client, unsub.topic)
        if unsub.outcome == "info" and unsub.client not in patterned and own not in denied:
            begun = [sub for sub in subs if (sub.client, sub.topic) == own]
            ended = (one for one in record.of("unsub") if (one.client, one.topic) == own)
            _take_back_idle(unsub, begun, [*begun, *ended])
    groups = [group for group in record.of("group") if group.may_have_happened]
    missed = {(one.topic, one.of_group.name) for one in record.of("take") if _is_denial(one)}
    for ungroup in record.of("ungroup"):
        name = (ungroup.topic, ungroup.of_group.name)
        if ungroup.outcome == "info" and ungroup.of_group.name and name not in missed:
            begun = [one for one in groups if (one.topic, one.of_group.name) == name]
            every = (one for f in ("group", "ungroup") for one in record.of(f))
            own_controls = [
                one
                for one in every
                if one.client == ungroup.client and (one.topic, one.of_group.name) == name
            ]
            _take_back_idle(ungroup, begun, own_controls)


def _is_denial(operation: RecordedOperation) -> bool:
    return operation.outcome == "fail" and operation.error in DENIALS


def _take_back_idle(
    ending: RecordedOperation, begun: list[RecordedOperation], own: list[RecordedOperation]
) -> None:
    """Count it as failed, if what superseded it found what it was to end, and nothing else can have
    made that anew. `begun`: what makes it; `own`: the controls of its client.
    """
    shows = {one for one in begun if one.is_ok and one.resumed and one.attempt == 1}
    answered = [one for one in own if one.is_ok]
    answered.sort(key=lambda one: (one.end, one not in shows, one.process, one.op_id))
    first = _superseding(ending, answered)
    if first is None or first not in shows:
        return
    is_alone = all(
        one.host == ending.host
        and (one.invoke > first.end or (one.is_ok and one.end < ending.invoke))
        for one in begun
        if one is not first
    )
    if is_alone:
        ending.outcome, ending.error = "fail", ""


class Standing:
    """All subscriptions of a record."""

    def __init__(self, record: Record) -> None:
        self._record = record
        self.subscriptions: dict[Whose, RecordedSubscription] = {}
        for sub in record.of("sub"):
            if sub.may_have_happened:
                self.of(sub.client, sub.topic).subs.append(sub)
        for unsub in record.of("unsub"):
            if unsub.may_have_happened:
                self.of(unsub.client, unsub.topic).unsubs.append(unsub)
        for get in record.answers:
            if get.named:
                self.of(get.client, get.named).answers.append(get)
        for get in record.of("get"):
            if get.outcome == "fail" and get.error in DENIALS and get.topic:
                self.of(get.client, get.topic).refusals.append(get)
        for row in record.drained:
            self.of(row.client, row.topic).drained.append(row)
        for one in self.subscriptions.values():
            for operations in (one.subs, one.unsubs, one.answers):
                operations.sort(key=lambda each: each.end)

    def of(self, client: str, topic: str) -> RecordedSubscription:
        """Return what is recorded of one client and one topic."""
        if (client, topic) not in self.subscriptions:
            self.subscriptions[client, topic] = RecordedSubscription(self._record, client, topic)
        return self.subscriptions[client, topic]

    @cached_property
    def lives(self) -> list[SubscribedSpan]:
        """Every life."""
        return [life for one in self.subscriptions.values() for life in one.lives]

    @cached_property
    def lives_of_topic(self) -> dict[str, list[SubscribedSpan]]:
        """Every life, by its topic."""
        found: dict[str, list[SubscribedSpan]] = defaultdict(list)
        for life in self.lives:
            found[life.topic].append(life)
        return found
