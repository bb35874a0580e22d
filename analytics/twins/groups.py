"""Checks of groups: who was leased what, what was acknowledged, and what became of the rest.

What lives here: `group_order`, `group_lease`, `group_lost`, `group_content`, `key_order`,
`dead_letter`, id by id.
What must not: what stands in a topic (stored.py), what subscribers are owed (owed.py).
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations, permutations
from typing import NamedTuple

from analytics.twins.record import (
    BEFORE_ALL,
    NEVER,
    Evidence,
    Letter,
    Publication,
    PurgeRow,
    Record,
    RecordedOperation,
    Time,
)
from analytics.twins.run import Run
from analytics.twins.standing import SubscribedSpan

NS_OF_MS = 1_000_000
ROUNDING_NS = 2 * NS_OF_MS  # the log's time is told in ms, at both ends of a delay
LEASE_MS = 30_000  # of a group that says none
NO_GROUP = ("not_subscribed", "unknown_topic")
Step = tuple[object, ...]


class GivenLease(NamedTuple):
    """A lease of one id, and the TAKE that was given it."""

    token: int
    attempt: int
    take: RecordedOperation


class Settlement(NamedTuple):
    """What a TAKE says of one id: of the lease under `token`. `ms`: of an ack none."""

    token: int
    take: RecordedOperation
    word: str = "ack"
    ms: int = 0


@dataclass(eq=False)
class GroupHistory:
    """What is on record of one group. `floor`: up to where a node has collected its topic."""

    topic: str
    name: str
    controls: list[RecordedOperation] = field(default_factory=list)
    takes: list[RecordedOperation] = field(default_factory=list)
    leases: dict[int, list[GivenLease]] = field(default_factory=lambda: defaultdict(list))
    accepted: dict[int, list[Settlement]] = field(default_factory=lambda: defaultdict(list))
    said: dict[int, list[Settlement]] = field(default_factory=lambda: defaultdict(list))
    floor: int = 0

    def add(self, take: RecordedOperation) -> None:
        """Note what a TAKE says, and what it was given."""
        said = take.of_group
        self.takes.append(take)
        lost = {id_ for first, last in said.lost for id_ in range(first, last + 1)}
        for token, first, last in said.acks if take.may_have_happened else ():
            for id_ in range(first, last + 1):
                self.said[id_].append(Settlement(token, take))
                if take.is_ok and id_ not in lost:
                    self.accepted[id_].append(Settlement(token, take))
        for word, runs in (("nak", said.naks), ("extend", said.extends)):
            for token, first, last, ms in runs if take.may_have_happened else ():
                for id_ in range(first, last + 1):
                    self.said[id_].append(Settlement(token, take, word, ms))
        for lease in said.leases:
            for id_ in range(lease.first, lease.last + 1):
                self.leases[id_].append(GivenLease(said.token, lease.attempt, take))

    @property
    def hidden(self) -> int:
        """How many TAKEs may have been given what no answer shows."""
        said = (one.of_group.lease_ms for one in (*self.controls, *self.takes))
        least_ms = min((each for each in said if each is not None), default=LEASE_MS)
        return sum(_may_hide(take, least_ms * NS_OF_MS) for take in self.takes)

    @cached_property
    def stood(self) -> bool:
        """Whether it was never ended, so that its tokens are one row."""
        was_ended = any(one.f == "ungroup" and one.may_have_happened for one in self.controls)
        made = [one for one in self.made if one.resumed is False]
        was_missed = any(one.outcome == "fail" and one.error in NO_GROUP for one in self.takes)
        return not was_ended and len(made) <= 1 and not was_missed

    @property
    def is_moved(self) -> bool:
        """Whether it may have begun anew elsewhere, and given again what was done."""
        starts = (one.start for one in self.controls if one.may_have_happened)
        return not self.stood and any(start is not None for start in starts)

    @cached_property
    def made(self) -> list[RecordedOperation]:
        return [one for one in self.controls if one.f == "group" and one.is_ok]

    @cached_property
    def begun(self) -> dict[Step, Time]:
        """When each step was first asked for."""
        begun: dict[Step, Time] = {}
        for take in self.takes:
            begun[_step(take)] = min(take.invoke, begun.get(_step(take), take.invoke))
        return begun

    @cached_property
    def _askings(self) -> Counter[Step]:
        """How often each step was asked for."""
        return Counter(_step(take) for take in self.takes)

    def is_in_vain(self, id_: int, said: Settlement) -> bool:
        """Whether what a TAKE says of an id was surely not carried out: it was refused, and is all
        that this TAKE says of the id, which was sent once.
        """
        take = said.take
        is_once = take.attempt == 1 and self._askings[_step(take)] == 1
        is_all = sum(each.take is take for each in self.said[id_]) == 1
        is_refused = any(first <= id_ <= last for first, last in take.of_group.lost)
        return is_refused and is_all and is_once and take.of_group.number is not None

    @cached_property
    def done(self) -> dict[int, list[RecordedOperation]]:
        """The ids of which somebody has said that they are done, and not surely in vain: who."""
        found: dict[int, list[RecordedOperation]] = defaultdict(list)
        for id_, words in self.said.items():
            for each in words:
                if each.word == "ack" and not self.is_in_vain(id_, each):
                    found[id_].append(each.take)
        return found

    def told_too_early(self, id_: int) -> RecordedOperation | None:
        """Return who was told that an id is settled before anybody had said that it is done."""
        for one in self.made:
            if (one.last_id or 0) >= id_ and all(_is_before(one, take) for take in self.done[id_]):
                return one
        return None

    def told_of(self, id_: int) -> list[RecordedOperation]:
        """Return who was told that an id is settled."""
        return [one for one in self.made if (one.last_id or 0) >= id_]

    def stands_since(self, put: RecordedOperation) -> bool:
        """Whether it surely stood when a PUT was sent."""
        return self.stood and any(_is_before(one, put) for one in self.made)

    def leased_since(self, id_: int) -> dict[str | None, Time]:
        """Return when an id was last asked for that was leased then, on each host: its dead letter
        was made after that. Of a group that did not stand nothing is said.
        """
        since: dict[str | None, Time] = {}
        for lease in self.leases.get(id_, ()) if self.stood else ():
            begun = self.begun[_step(lease.take)]
            since[lease.take.host] = max(begun, since.get(lease.take.host, begun))
        return since

    @property
    def settled(self) -> range:
        """The ids of which the broker said that they are settled."""
        said = [one.last_id for one in self.made if one.last_id is not None]
        return range(min(said) + 1, max(*said, self.floor) + 1) if said else range(0)

    @property
    def is_made(self) -> bool:
        """Whether somebody was told that it is there."""
        return bool(self.made)

    @property
    def is_ordered(self) -> bool:
        """Whether somebody was told that it is ordered by key."""
        return any(one.of_group.is_ordered for one in self.made)

    @property
    def may_be_ordered(self) -> bool:
        """Whether somebody may have made it ordered by key."""
        own = (one for one in self.controls if one.f == "group" and one.may_have_happened)
        return any(one.of_group.is_ordered for one in own)

    @property
    def dead_letters(self) -> set[str]:
        """The topics in which its dead letters stand; none, if it may have been without one."""
        own = [one for one in self.controls if one.f == "group" and one.may_have_happened]
        said = {one.of_group.dead_letter for one in own} - {None}
        first = min((one.end for one in own if one.is_ok and one.of_group.dead_letter), default=0)
        is_said = all(one.invoke > first or one.of_group.dead_letter for one in own)
        return {str(one) for one in said} if is_said and "" not in said else set()

    def keys(self) -> dict[int, dict[str, RecordedOperation]]:
        """Return the digests of the keys of what was leased, by id, with who was told so.

        An answer that names the keys of others, and not of an id that it leases, says "" of it.
        """
        found: dict[int, dict[str, RecordedOperation]] = defaultdict(dict)
        for take in self.takes:
            keys = take.of_group.keys
            for lease in take.of_group.leases if keys else ():
                for id_ in range(lease.first, lease.last + 1):
                    found[id_].setdefault(keys.get(id_, ""), take)
        return found

    @property
    def attempts_max(self) -> int | None:
        """After how many attempts at the least a publication may become a dead letter."""
        said = [
            one.of_group.max_attempts
            for one in self.controls
            if one.f == "group" and one.may_have_happened
        ]
        return min((each for each in said if each), default=None)

    def witness(self) -> RecordedOperation:
        """Return the `group` that said up to where all is settled."""
        return max(self.made, key=lambda one: (one.last_id or 0, one.key))


def _may_hide(take: RecordedOperation, least_ns: int) -> bool:
    if take.max_count is None or not take.may_have_happened:
        return False
    return not take.is_ok or take.attempt != 1 or take.end - take.invoke >= least_ns


def groups_of(record: Record) -> list[GroupHistory]:
    """Return the groups of a record that were not moved, by topic and name."""
    return [group for group in _all_groups_of(record) if not group.is_moved]


def _all_groups_of(record: Record) -> list[GroupHistory]:
    found: dict[tuple[str, str], GroupHistory] = {}
    for f in ("group", "ungroup", "take"):
        for one in record.of(f):
            if not one.of_group.name:
                continue  # its invoke is gone
            key = one.topic, one.of_group.name
            floor = record.floors.get(one.topic, 0)
            group = found.setdefault(key, GroupHistory(*key, floor=floor))
            if f == "take":
                group.add(one)
            else:
                group.controls.append(one)
    return [group for _, group in sorted(found.items())]


def unsettled(record: Record) -> list[tuple[str, str]]:
    """Return the groups (topic, name) that stood, and of which nobody was told that all is done.

    A row that says so is believed as far as an answer has said it.
    """
    told: dict[tuple[str, str], int] = {}
    for row in record.settled:
        key = row.topic, row.group
        told[key] = min(row.last_id, told.get(key, row.last_id))
    return [
        (group.topic, group.name)
        for group in groups_of(record)
        if group.is_made
        and group.stood
        and told.get((group.topic, group.name), NEVER) > (group.witness().last_id or 0)
    ]


def _row(
    run: Run,
    group: GroupHistory,
    id_: int,
    detail: str,
    *seen: RecordedOperation,
    to: int | None = None,
) -> Evidence:
    fields = {"topic": group.topic, "client_id": group.name, "id": id_, "other_id": to}
    return run.row(*seen, **fields, detail=detail)


# --- group_order ----------------------------------------------------------------------------------


def group_order(run: Run) -> Iterable[Evidence]:
    """Find what contradicts the order that tokens are, whatever clocks say."""
    for group in groups_of(run):
        for id_, acks in group.accepted.items():
            yield from _given_behind(run, group, id_, acks)
            for one, other in combinations(acks, 2):
                if _step(one.take) != _step(other.take):
                    yield _row(run, group, id_, "twice", one.take, other.take)
        for id_, leases in group.leases.items():
            yield from _attempts_back(run, group, id_, leases)
        yield from _doubled(run, group)
        if group.stood:
            yield from _tokens(run, group)
            yield from _settled_before(run, group)
            if not group.may_be_ordered:
                yield from _not_in_order(run, group)
        yield from _answered_otherwise(run, group)
    for group in _all_groups_of(run):
        if not group.stood:
            yield from _below_its_begin(run, group)


def _answered_otherwise(run: Run, group: GroupHistory) -> Iterator[Evidence]:
    """Yield what two answers to one TAKE that was asked again contradict each other about."""
    steps: dict[Step, list[RecordedOperation]] = defaultdict(list)
    for take in group.takes:
        if take.is_ok and take.of_group.number is not None:
            steps[_step(take)].append(take)
    for takes in steps.values():
        for one, other in permutations(takes, 2):
            ids, its = _ids_leased(one), _ids_leased(other)
            wrong = _lost(one) ^ _lost(other)
            if ids and its and one.of_group.token < other.of_group.token:
                wrong |= its
            elif ids and _is_before(one, other):
                wrong |= its - ids
            if wrong:
                yield _row(run, group, min(wrong), "step", one, other)


def _ids_leased(take: RecordedOperation) -> set[int]:
    return {id_ for lease in take.of_group.leases for id_ in range(lease.first, lease.last + 1)}


def _below_its_begin(run: Run, group: GroupHistory) -> Iterator[Evidence]:
    """Yield what a group that did not stand gave below where it had last begun: nothing else that
    makes or ends it was under way from before that until the answer.
    """
    own = [one for one in group.controls if one.may_have_happened]
    for made in group.made:
        others = [one for one in own if one is not made]
        for id_, leases in group.leases.items():
            for lease in leases if id_ <= (made.last_id or 0) else ():
                take = lease.take
                is_behind = made.host == take.host and made.end < group.begun[_step(take)]
                if is_behind and all(
                    one.host == made.host and (one.end < made.invoke or one.invoke > take.end)
                    for one in others
                ):
                    yield _row(run, group, id_, "settled", made, take)


def _doubled(run: Run, group: GroupHistory) -> Iterator[Evidence]:
    """Yield what one answer leases twice."""
    for take in group.takes:
        ids = Counter(
            id_ for lease in take.of_group.leases for id_ in range(lease.first, lease.last + 1)
        )
        for id_, count in ids.items():
            if count > 1:
                yield _row(run, group, id_, "doubled", take)


def _not_in_order(run: Run, group: GroupHistory) -> Iterator[Evidence]:
    """Yield what was given for the first time after something above it was, by their tokens."""
    first: dict[int, dict[int, RecordedOperation]] = defaultdict(dict)  # by token, by id
    for id_, leases in group.leases.items():
        lease = min(leases, key=lambda each: (each.token, each.attempt, each.take.key))
        if lease.attempt == 1:
            first[lease.token][id_] = lease.take
    highest: tuple[int, RecordedOperation] | None = None  # by all lower tokens
    for _, given in sorted(first.items()):
        for id_, take in given.items():
            if highest is not None and id_ < highest[0]:
                yield _row(run, group, id_, "overtaken", highest[1], take)
        most = max(given)
        if highest is None or most > highest[0]:
            highest = most, given[most]


def _attempts_back(
    run: Run, group: GroupHistory, id_: int, leases: list[GivenLease]
) -> Iterator[Evidence]:
    for older, newer in combinations(sorted(leases, key=lambda each: each.token), 2):
        if older.token < newer.token and older.attempt >= newer.attempt:
            yield _row(run, group, id_, "attempt", older.take, newer.take)
    for one, other in combinations(leases, 2):
        if one.token == other.token and one.attempt != other.attempt:
            yield _row(run, group, id_, "attempt", one.take, other.take)


def _settled_before(run: Run, group: GroupHistory) -> Iterator[Evidence]:
    """Yield what was leased, or open, after somebody was told that it is settled."""
    begun = group.begun
    told = [made for made in group.made if made.last_id is not None]
    for made in told:
        for other in told:
            if _is_before(other, made) and (other.last_id or 0) > (made.last_id or 0):
                yield _row(run, group, made.last_id or 0, "back", other, made)
                break
    for id_, leases in group.leases.items():
        for lease in leases:
            for made in told:
                is_before = made.host == lease.take.host and made.end < begun[_step(lease.take)]
                if is_before and (made.last_id or 0) >= id_:
                    yield _row(run, group, id_, "settled", made, lease.take)


def _given_behind(
    run: Run, group: GroupHistory, id_: int, acks: list[Settlement]
) -> Iterator[Evidence]:
    for ack in acks:
        for lease in group.leases.get(id_, ()):
            if lease.token > ack.token:
                word = "late" if _is_before(lease.take, ack.take) else "again"
                yield _row(run, group, id_, word, ack.take, lease.take)


def _is_before(one: RecordedOperation, other: RecordedOperation) -> bool:
    return one.host == other.host and one.end < other.invoke


def _step(take: RecordedOperation) -> Step:
    number = take.of_group.number
    return take.key if number is None else (take.client, take.epoch, number)


def _tokens(run: Run, group: GroupHistory) -> Iterator[Evidence]:
    first: dict[Step, Time] = {}
    by_token: dict[int, RecordedOperation] = {}
    for take in group.takes:
        first[_step(take)] = min(take.invoke, first.get(_step(take), take.invoke))
    given = sorted(
        (take for take in group.takes if take.of_group.leases), key=lambda take: take.end
    )
    for take in given:
        token = take.of_group.token
        before = by_token.setdefault(token, take)
        if _step(before) != _step(take):
            yield _row(run, group, token, "token", before, take)
        for other in given:
            if other.end >= first[_step(take)]:
                break
            if other.host == take.host and other.of_group.token > token:
                yield _row(run, group, token, "token", other, take)
                break


# --- group_lease ----------------------------------------------------------------------------------


def group_lease(run: Run) -> Iterable[Evidence]:
    """Find leases, and dead letters, that were given while an older lease held, and attempts that
    jump.
    """
    letters: dict[tuple[str, str, int], list[RecordedOperation]] = defaultdict(list)
    for letter, answer in _letters(run):
        letters[letter.topic, letter.group, letter.from_id].append(answer)
    last = _last_successes(run)
    for group in groups_of(run):
        yield from _foreign(run, group)
        yield from _over(run, group, letters)
        yield from _unsaid(run, group)
        yield from _too_soon(run, group)
        if group.stood and not run.is_application:
            yield from _refused(run, group)
        hidden = group.hidden
        for id_, leases in group.leases.items():
            for one in leases:
                for other in leases:
                    if other.token > one.token and _held(group, last, id_, one, other.take):
                        yield _row(run, group, id_, "shared", one.take, other.take)
                for answer in letters.get((group.topic, group.name, id_), ()):
                    is_behind = answer.end > one.take.invoke  # else it is leased though dead
                    if is_behind and _held(group, last, id_, one, answer):
                        yield _row(run, group, id_, "shared", one.take, answer)
            attempts = {lease.attempt for lease in leases}
            if max(attempts) - len(attempts) > hidden and not run.is_application:
                most = max(leases, key=lambda lease: (lease.attempt, lease.take.key))
                yield _row(run, group, id_, "jump", most.take)


def _foreign(run: Run, group: GroupHistory) -> Iterator[Evidence]:
    """Yield what was accepted of who was never given that lease."""
    for id_, words in group.said.items():
        for said in (each for each in words if _is_accepted(id_, each)):
            whose = (said.token, said.take.client, said.take.epoch)
            if not any(
                (lease.token, lease.take.client, lease.take.epoch) == whose
                and not _was_ended_between(group, lease.take, said.take)
                for lease in group.leases.get(id_, ())
            ):
                yield _row(run, group, id_, "foreign", said.take)


def _was_ended_between(
    group: GroupHistory, given: RecordedOperation, take: RecordedOperation
) -> bool:
    """Whether a group was surely ended after a TAKE was answered, and before another one's step was
    first sent.
    """
    begun = group.begun[_step(take)]
    return any(
        one.f == "ungroup" and one.is_ok and one.host == given.host == take.host
        for one in group.controls
        if given.end < one.invoke and one.end < begun
    )


def _unsaid(run: Run, group: GroupHistory) -> Iterator[Evidence]:
    """Yield what a TAKE was told to have settled in vain, and none of its step had named."""
    named: dict[Step, set[int]] = defaultdict(set)
    for id_, words in group.said.items():
        for said in words:
            named[_step(said.take)].add(id_)
    for take in group.takes:
        for id_ in _lost(take) - named[_step(take)] if take.is_ok else ():
            yield _row(run, group, id_, "unsaid", take)


def _over(
    run: Run, group: GroupHistory, letters: dict[tuple[str, str, int], list[RecordedOperation]]
) -> Iterator[Evidence]:
    """Yield what was accepted of a lease that an ack or a nak had ended, or that was refused
    before; and naks and extends of one behind which somebody had another one, or of what was dead
    or settled.
    """
    for id_, words in group.said.items():
        done = [each for each in words if _is_accepted(id_, each)]
        for said in done:
            ends = [
                each.take
                for each in done
                if each.word != "extend" and each.token == said.token
                if not each.word == said.word == "ack"
            ]
            ends += [
                each.take
                for each in words
                if each.token == said.token and each.take.client == said.take.client
                if each.take.is_ok and each not in done
            ]
            if said.word != "ack":
                leases = group.leases.get(id_, ())
                ends += [lease.take for lease in leases if lease.token > said.token]
                ends += letters.get((group.topic, group.name, id_), ())
                ends += group.told_of(id_) if group.stood else ()
            begun = group.begun[_step(said.take)]
            for end in ends:
                if end.host == said.take.host and end.end < begun:
                    yield _row(run, group, id_, "over", end, said.take)


def _is_accepted(id_: int, said: Settlement) -> bool:
    return said.take.is_ok and not _is_lost(id_, said.take)


Process = tuple[str, int, str | None]  # a client, its epoch, a host


def _last_successes(run: Run) -> dict[Process, Time]:
    """Return when the last operation was sent that had success, by client, epoch and host."""
    last: dict[Process, Time] = {}
    for one in run.operations:
        if one.is_ok and one.epoch is not None:
            whose = (one.client, one.epoch, one.host)
            last[whose] = max(one.invoke, last.get(whose, BEFORE_ALL))
    return last


def _held(
    group: GroupHistory,
    last: dict[Process, Time],
    id_: int,
    lease: GivenLease,
    other: RecordedOperation,
) -> bool:
    """Whether a lease surely still held when another TAKE, with a later one, had ended; or an
    answer with its dead letter.
    """
    take = lease.take
    if take.host != other.host or take.invoke == BEFORE_ALL:
        return False
    said = [
        each
        for each in group.said.get(id_, ())
        if each.token == lease.token and each.take.client == take.client and each.word != "ack"
    ]
    ends = [_until(group, each) for each in said]
    if not any(each.take.is_ok and not _is_lost(id_, each.take) for each in said):
        ends.append(take.invoke + take.of_group.left_ms * NS_OF_MS)
    if any(each.word == "nak" for each in said) or not other.end < min(ends):
        return False
    if take.epoch is None:
        return False
    return last.get((take.client, take.epoch, take.host), BEFORE_ALL) > other.end


def _lost(take: RecordedOperation) -> set[int]:
    """Return the ids that a TAKE settled in vain."""
    return {id_ for first, last in take.of_group.lost for id_ in range(first, last + 1)}


def _is_lost(id_: int, take: RecordedOperation) -> bool:
    return any(first <= id_ <= last for first, last in take.of_group.lost)


def _until(group: GroupHistory, said: Settlement) -> Time:
    """Return until when what a TAKE says of an id lasts at the least, reckoned from when its step
    was first sent.
    """
    return group.begun[_step(said.take)] + said.ms * NS_OF_MS


def _too_soon(run: Run, group: GroupHistory) -> Iterator[Evidence]:
    """Yield what was given back with a delay, and given again before that was over."""
    for id_, naks in group.said.items():
        for nak in naks:
            if nak.word != "nak" or not _is_accepted(id_, nak):
                continue
            begun = group.begun[_step(nak.take)]
            until = begun + nak.ms * NS_OF_MS * 99 / 100 - ROUNDING_NS
            for lease in group.leases.get(id_, ()):
                is_comparable = lease.take.host == nak.take.host and begun != BEFORE_ALL
                if is_comparable and lease.token > nak.token and lease.take.end < until:
                    yield _row(run, group, id_, "soon", nak.take, lease.take)


def _refused(run: Run, group: GroupHistory) -> Iterator[Evidence]:
    """Yield what was settled in vain by who surely had it."""
    purged = max((one.last_id for one in run.purges if one.topic == group.topic), default=0)
    for id_, words in group.said.items():
        for said in words:
            is_alone = sum(each.token == said.token for each in words) == 1
            if id_ > purged and is_alone and group.is_in_vain(id_, said):
                for lease in group.leases.get(id_, ()):
                    if lease.token == said.token and _has_it_until(lease.take, said.take):
                        yield _row(run, group, id_, "refused", lease.take, said.take)


def _has_it_until(given: RecordedOperation, take: RecordedOperation) -> bool:
    """Whether a client's lease surely held until a TAKE of the same process had ended."""
    is_its = (given.client, given.epoch, given.host) == (take.client, take.epoch, take.host)
    until = given.invoke + given.of_group.left_ms * NS_OF_MS
    return is_its and take.epoch is not None and given.invoke != BEFORE_ALL and take.end < until


# --- group_lost -----------------------------------------------------------------------------------


def group_lost(run: Run) -> Iterable[Evidence]:
    """Find what the broker says to be settled, and nobody can have settled."""
    if run.is_application:
        return  # others may have worked who do not record
    buried = {(letter.topic, letter.group, letter.from_id) for letter, _ in _letters(run)}
    for group in groups_of(run):
        if not group.stood:
            continue
        purges = [one for one in run.purges if one.topic == group.topic]
        purged = max((one.last_id for one in purges), default=0)
        before = _told_before(group, purges)
        given = _last_given(run, group.topic) if purges else {}
        is_read = _has_read_letters(run, group)
        early = {id_: told for id_ in group.done if (told := group.told_too_early(id_)) is not None}
        missing = [
            id_
            for id_ in group.settled
            if (id_ > purged or id_ <= before or _was_there(group, id_, given))
            and (id_ not in group.done or id_ in early)
            and not _may_be_gone(run, group, id_, group.told_of(id_))
            and (group.topic, group.name, id_) not in buried
            and (is_read or not _may_be_buried(group, id_))
        ]
        for first, last in _runs([id_ for id_ in missing if id_ not in early]):
            yield _row(run, group, first, "settled", group.witness(), to=last)
        for first, last in _runs([id_ for id_ in missing if id_ in early]):
            ack = min(group.done[first], key=lambda take: take.key)
            yield _row(run, group, first, "early", early[first], ack, to=last)


def _told_before(group: GroupHistory, purges: list[PurgeRow]) -> int:
    """Return up to which id a group was said to be settled before anything was to be purged."""
    begun = min((one.time for one in purges), default=BEFORE_ALL)
    hosts = {one.host for one in purges}
    told = (one.last_id or 0 for one in group.made if {one.host} == hosts and one.end < begun)
    return max(told, default=0)


def _last_given(run: Run, topic: str) -> dict[int, dict[str | None, Time]]:
    """Return when who was given an id of a topic had asked for it, the last of each host."""
    found: dict[int, dict[str | None, Time]] = defaultdict(dict)
    for get in run.brought_of.get(topic, ()):
        for id_ in get.ids():
            found[id_][get.host] = max(get.invoke, found[id_].get(get.host, BEFORE_ALL))
    return found


def _was_there(group: GroupHistory, id_: int, given: dict[int, dict[str | None, Time]]) -> bool:
    """Whether somebody was given an id who asked for it after somebody was told that it is settled:
    no purge had it by then.
    """
    asked = given.get(id_, {})
    return any(
        (one.last_id or 0) >= id_ and asked.get(one.host, BEFORE_ALL) > one.end
        for one in group.made
    )


def _may_be_gone(run: Run, group: GroupHistory, id_: int, seen: list[RecordedOperation]) -> bool:
    """Whether a publication may have expired, or been compacted away, before each of the answers in
    `seen` that show it as such. Nothing is compacted away that a group has not settled.
    """
    if group.topic not in run.expiring:
        return False
    for put in run.stored_in.get(group.topic, ()):
        if not (put.first_id or 0) <= id_ < (put.first_id or 0) + put.count:
            continue
        ms = put.expiry_of(id_)
        is_kept = ms is None or (
            not put.is_duplicate and any(_is_within(put, answer, ms) for answer in seen)
        )
        is_left = (
            group.topic not in run.compacted
            or id_ not in put.properties
            or (not put.is_duplicate and group.stands_since(put))
        )
        if is_kept and is_left:
            return False
    return True


def _is_within(put: RecordedOperation, answer: RecordedOperation, ms: int) -> bool:
    """Whether less time than that passed from a PUT's invoke to an answer's end, on one host.

    Clocks of two machines may differ by a hundredth in how fast they go.
    """
    return put.host == answer.host and (answer.end - put.invoke) * 100 < 99 * ms * NS_OF_MS


def _may_be_buried(group: GroupHistory, id_: int) -> bool:
    """Whether a publication may have become a dead letter that nobody has read."""
    limit = group.attempts_max
    given = max((lease.attempt for lease in group.leases.get(id_, ())), default=0)
    return limit is not None and given + group.hidden >= limit


def _has_read_letters(run: Run, group: GroupHistory) -> bool:
    """Whether all dead letters of a group were given to somebody who was told then that there is
    no more: of each topic in which they may stand, by a life from before anybody made the group.
    """
    if not group.is_made:
        return False
    topics, told = group.dead_letters, group.witness()
    begun = min((one.invoke for one in group.controls), default=BEFORE_ALL)
    hosts = {one.host for one in group.controls} | {one.host for one in group.takes}
    gone = {one.topic for one in run.purges} | {one.named for one in run.told_of_purges}
    return (
        bool(topics)
        and len(hosts) == 1
        and (told.last_id or 0) >= group.floor
        and all(
            topic not in gone | run.expiring
            and any(
                life.host == told.host and life.begin < begun and _is_read(run, life, told.end)
                for life in run.standing.lives_of_topic.get(topic, ())
            )
            for topic in topics
        )
    )


def _is_read(run: Run, life: SubscribedSpan, since: Time) -> bool:
    """Whether a life was told after a moment that there is no more. What does not check out may be
    a letter.
    """
    own = (get for get in run.gets_of(life.client, life.topic) if not life.is_apart(get))
    is_clear = not any(get.corrupt for get in own)
    return is_clear and any(
        get.is_ok
        and not get.brought
        and get.first_id is None
        and get.topic == life.topic
        and get.invoke > since
        for get in life.gets
    )


def _runs(ids: list[int]) -> Iterator[tuple[int, int]]:
    first = last = None
    for id_ in ids:
        if last is None or id_ != last + 1:
            if first is not None and last is not None:
                yield first, last
            first = id_
        last = id_
    if first is not None and last is not None:
        yield first, last


# --- key_order ------------------------------------------------------------------------------------


def key_order(run: Run) -> Iterable[Evidence]:
    """Find what was given though another one of its key, before it, was not settled."""
    for group in groups_of(run):
        keys = group.keys()
        put = _keys_put(run, group.topic)
        for id_, digests in keys.items():
            said = put.get(id_, {}) | digests
            if len(said) > 1:
                (_, one), (_, other), *_ = said.items()
                yield _row(run, group, id_, "changed", one, other)
        if not (group.stood and group.is_ordered):
            continue
        of_key: dict[str, set[int]] = defaultdict(set)
        for id_, digests in keys.items():
            if digest := min((each for each in digests if each), default=""):
                of_key[digest].add(id_)
        for ids in of_key.values():
            yield from _broken_order(run, group, sorted(ids), group.begun)


def _keys_put(run: Run, topic: str) -> dict[int, dict[str, RecordedOperation]]:
    """Return the digests of the keys with which something was put, by id, with its PUT.

    One that names the keys of others, and not of an id that it has stored, says "" of it.
    """
    found: dict[int, dict[str, RecordedOperation]] = defaultdict(dict)
    for put in run.stored_in.get(topic, ()):
        first = put.first_id or 0
        for id_ in range(first, first + put.count) if put.keys else ():
            found[id_].setdefault(put.keys.get(id_, ""), put)
    return found


def _broken_order(
    run: Run, group: GroupHistory, ids: list[int], begun: dict[Step, Time]
) -> Iterator[Evidence]:
    """Go through the ids of one key from the lowest on; what is before each is known by then."""
    holders: dict[int, RecordedOperation] = {}  # by token: who was given one of the key
    last: GivenLease | None = None  # with the highest token so far
    settled: dict[str, tuple[Time, RecordedOperation]] = {}  # by host: what was accepted last
    still = _Open(run, group)
    for id_ in ids:  # one that was never leased on record may have been acknowledged
        leases = sorted(group.leases.get(id_, ()), key=lambda lease: (lease.token, lease.take.key))
        if with_it := [lease for lease in leases if lease.token in holders]:
            yield _row(run, group, id_, "together", with_it[0].take, holders[with_it[0].token])
        if last is not None and leases and last.token > leases[0].token:
            yield _row(run, group, id_, "again", leases[0].take, last.take)
        for lease in sorted(leases, key=lambda each: each.take.end):
            said = settled.get(lease.take.host or "")
            if said is not None and said[0] > lease.take.end:
                yield _row(run, group, id_, "held", lease.take, said[1])
                break
        for lease in leases:
            if (holder := still.holder_during(lease.take)) is not None:
                yield _row(run, group, id_, "open", lease.take, holder)
                break
        for lease in leases:
            holders.setdefault(lease.token, lease.take)
            if last is None or lease.token > last.token:
                last = lease
        for word in group.said.get(id_, ()):
            host, at = word.take.host or "", begun[_step(word.take)]
            is_later = at != BEFORE_ALL and (host not in settled or at > settled[host][0])
            if is_later and _is_accepted(id_, word):
                settled[host] = at, word.take
        still.add(id_)


class _Open:
    """Of the ids of a key so far, from when to when each was surely leased once and not settled.

    By host, in the order of begins: of two that begin one after the other, the later one is kept
    only if it ends later. So ends rise as begins do.
    """

    def __init__(self, run: Run, group: GroupHistory) -> None:
        self._run, self._group = run, group
        self._spans: dict[str | None, list[tuple[Time, Time, RecordedOperation]]] = {}
        self._purged = max(
            (one.last_id for one in run.purges if one.topic == group.topic), default=0
        )

    def add(self, id_: int) -> None:
        """Take note of an id: nobody but a worker settles it, and none of them has said so."""
        group, leases = self._group, self._group.leases.get(id_, ())
        if self._run.is_application or id_ <= self._purged or _may_be_buried(group, id_):
            return
        if not leases or self._run.may_have_gone(group.topic, id_):
            return
        first = min(leases, key=lambda lease: (lease.take.end, lease.take.key)).take
        acks = [word.take for word in group.said.get(id_, ()) if word.word == "ack"]
        if {first.host} != {one.host for one in (first, *acks)}:
            return
        end = min((ack.invoke for ack in acks), default=NEVER)
        spans = self._spans.setdefault(first.host, [])
        place = bisect_left(spans, first.end, key=lambda span: span[0])
        if place and spans[place - 1][1] >= end:
            return
        stop = place
        while stop < len(spans) and spans[stop][1] <= end:
            stop += 1
        spans[place:stop] = [(first.end, end, first)]

    def holder_during(self, take: RecordedOperation) -> RecordedOperation | None:
        """Return who had been given one of them before a TAKE's step was first sent, that nobody
        had begun to acknowledge when the TAKE ended.
        """
        spans = self._spans.get(take.host, [])
        begun = self._group.begun[_step(take)]
        place = bisect_left(spans, begun, key=lambda span: span[0])
        return spans[place - 1][2] if place and spans[place - 1][1] > take.end else None


# --- stale_read: a group is told nothing ----------------------------------------------------------


def idle_of(run: Run) -> Iterator[Evidence]:
    """Find TAKEs that were told nothing, though all that anybody had been given was settled, and
    something was known that nobody had been given.
    """
    every = [] if run.is_application else _all_groups_of(run)
    for group in every:
        gone = group.topic in run.expiring or any(one.topic == group.topic for one in run.purges)
        is_plain = group.stood and not group.may_be_ordered and group.attempts_max is None
        if is_plain and not gone:
            for take in group.takes:
                yield from _idle(run, every, group, take)


def _idle(
    run: Run, every: list[GroupHistory], group: GroupHistory, take: RecordedOperation
) -> Iterator[Evidence]:
    own = [each for each in group.takes if _step(each) == _step(take)]
    is_once = take.of_group.number is not None and take.attempt == 1 and len(own) == 1
    if not (take.is_ok and take.max_count and is_once) or take.of_group.leases:
        return
    told = [one for one in group.made if one.host == take.host and one.end < take.invoke]
    known = run.knowledge.there_before(group.topic, take.host, take.invoke)
    if not told or known is None or any(one.host != take.host for one in group.made):
        return
    behind = max(one.last_id or 0 for one in group.made if one.invoke < take.end)
    before = [one for one in group.leases.get(known.id, ()) if _may_be_before(one.take, take)]
    said = [one for one in group.said.get(known.id, ()) if _may_be_before(one.take, take)]
    is_back = all(_is_back(group, known.id, one.token, take) for one in before)
    is_held = before and not (is_back and all(one.word == "nak" and one.ms == 0 for one in said))
    if known.id <= behind or is_held:
        return
    if all(_is_all_settled(each, take) for each in every):
        fields = {"topic": group.topic, "client_id": take.client, "detail": "idle"}
        yield run.row(known.operation, take, **fields, id=known.id)


def _may_be_before(one: RecordedOperation, take: RecordedOperation) -> bool:
    return one.host != take.host or one.invoke < take.end


def _is_all_settled(group: GroupHistory, take: RecordedOperation) -> bool:
    """Whether what may have been given in a group before a TAKE was sent was settled by then."""
    before = [one for one in group.takes if one is not take and _may_be_before(one, take)]
    said = (one.of_group.lease_ms for one in (*group.controls, *group.takes))
    least_ms = min((each for each in said if each is not None), default=LEASE_MS)
    if any(_may_hide(one, least_ms * NS_OF_MS) for one in before):
        return False
    return all(
        any(
            ack.take is take or (ack.take.host == take.host and ack.take.end < take.invoke)
            for ack in group.accepted.get(id_, ())
        )
        or _is_back(group, id_, one.of_group.token, take)
        for one in before
        for lease in one.of_group.leases
        for id_ in range(lease.first, lease.last + 1)
    )


def _is_back(group: GroupHistory, id_: int, token: int, take: RecordedOperation) -> bool:
    """Whether a lease had been given back at once before a TAKE was sent."""
    return any(
        said.word == "nak" and said.ms == 0 and said.token == token and _is_accepted(id_, said)
        for said in group.said.get(id_, ())
        if _is_before(said.take, take)
    )


# --- dead_letter ----------------------------------------------------------------------------------


def _letters(run: Run) -> Iterator[tuple[Letter, RecordedOperation]]:
    """Yield each letter of a group that was not moved, with the answer that brought it."""
    moved = {(one.topic, one.name) for one in _all_groups_of(run) if one.is_moved}
    for answer in (*run.answers, *run.of("take")):
        for letter in answer.letters:
            if (letter.topic, letter.group) not in moved:
                yield letter, answer


class StandingLetter(NamedTuple):
    """A dead letter at a place. `of`: the topic and the id of its publication. `since`: after
    what, on each host, it was made.
    """

    topic: str
    id: int
    of: tuple[str, int]
    since: dict[str | None, Time]
    answers: list[RecordedOperation]


def standing_letters(run: Run) -> list[StandingLetter]:
    """Return the dead letters that somebody was given, by their places."""
    groups = {(group.topic, group.name): group for group in groups_of(run)}
    found: dict[tuple[Letter, str], StandingLetter] = {}
    for letter, answer in _letters(run):
        topic = answer.named or answer.topic
        if (letter, topic) not in found:
            group = groups.get((letter.topic, letter.group))
            since = group.leased_since(letter.from_id) if group else {}
            found[letter, topic] = StandingLetter(
                topic, letter.id, (letter.topic, letter.from_id), since, []
            )
        found[letter, topic].answers.append(answer)
    return list(found.values())


def dead_letter(run: Run) -> Iterable[Evidence]:
    """Find dead letters that stand twice or were lost, or whose publication is alive."""
    groups = {(group.topic, group.name): group for group in groups_of(run)}
    stood: dict[tuple[str, str, int], dict[tuple[str, int], list[RecordedOperation]]] = {}
    for letter, answer in _letters(run):
        places = stood.setdefault((letter.topic, letter.group, letter.from_id), {})
        place = answer.named or answer.topic, letter.id
        places.setdefault(place, []).append(answer)
    for (topic, name, id_), places in stood.items():
        group = groups.get((topic, name)) or GroupHistory(topic, name)
        answers = [answer for each in places.values() for answer in each]
        if not run.is_application and group.controls:
            yield from _untimely(run, group, id_, places)
        if len(places) > 1:
            one, other, *_ = (each[0] for _, each in sorted(places.items()))
            yield _row(run, group, id_, "twice", one, other)
        for place, brought in places.items():
            yield from _not_given(run, group, id_, place, brought)
        for ack in group.accepted.get(id_, ()):
            yield _row(run, group, id_, "acknowledged", ack.take, answers[0])
        for lease in group.leases.get(id_, ()):
            for answer in answers:
                if _is_before(answer, lease.take):
                    yield _row(run, group, id_, "leased", answer, lease.take)


def _not_given(
    run: Run,
    group: GroupHistory,
    id_: int,
    place: tuple[str, int],
    answers: list[RecordedOperation],
) -> Iterator[Evidence]:
    """Yield a letter that somebody was given, and not who passed its place, or drained."""
    topic, at = place
    for life in run.standing.lives_of_topic.get(topic, ()):
        if life.start is None or at in life.had:
            continue
        cut = BEFORE_ALL if life.cut is None else life.cut
        if at <= life.start:
            is_lost = _was_buried_during(group, id_, life, answers)
        else:
            is_lost = at <= life.passed or _is_known(answers, life, cut)
        if is_lost:
            yield _row(run, group, id_, f"lost {life.client}", answers[0], life.proof)


def _is_known(answers: list[RecordedOperation], life: SubscribedSpan, until: Time) -> bool:
    return any(one.host == life.host and one.end < until for one in answers)


def _was_buried_during(
    group: GroupHistory, id_: int, life: SubscribedSpan, answers: list[RecordedOperation]
) -> bool:
    """Whether a dead letter was made while a life stood: behind a lease that was asked for then."""
    is_later = group.leased_since(id_).get(life.host, BEFORE_ALL) > life.begin
    return is_later and (life.is_last or _is_known(answers, life, life.end))


def _untimely(
    run: Run,
    group: GroupHistory,
    id_: int,
    places: dict[tuple[str, int], list[RecordedOperation]],
) -> Iterator[Evidence]:
    """Yield a letter of what was given too seldom, and one that stands where none belongs."""
    own = [one for one in group.controls if one.f == "group" and one.may_have_happened]
    named = {one.of_group.dead_letter for one in own} - {None}
    # Who says only how often it is given leaves it to the topic, of which no record says anything.
    is_left = any(one.of_group.max_attempts and not one.of_group.dead_letter for one in own)
    for (topic, _), answers in places.items():
        if not _may_be_buried(group, id_):
            if not _may_be_gone(run, group, id_, answers):
                yield _row(run, group, id_, "early", answers[0])
        elif topic not in named and not is_left:
            yield _row(run, group, id_, "elsewhere", answers[0])


# --- group_content --------------------------------------------------------------------------------


def group_content(run: Run) -> Iterable[Evidence]:
    """Find what TAKEs brought, and was not put so."""
    brought, of_letters = _brought(run), _places_of_letters(run)
    places: dict[Publication, set[int]] = defaultdict(set)
    for (_, id_), publications in brought.items():
        for publication in publications:
            places[publication].add(id_)
    for group in _all_groups_of(run):
        for take in group.takes:
            for id_, _ in take.corrupt:
                yield _row(run, group, id_, "corrupt", take)
            for id_, producer, counter in take.given:
                if producer is not None and counter is not None:
                    publication = (producer, group.topic, counter)
                    others = run.knowledge.places.get(publication, set()) | places[publication]
                    at = {*run.knowledge.at.get((group.topic, id_), ()), *brought[group.topic, id_]}
                    for word in _wrong(run, take, publication, id_):
                        yield _row(run, group, id_, word, take)
                    if len(at) > 1 or (group.topic, id_) in of_letters:
                        yield _row(run, group, id_, "other", take)
                    if len(others) > 1:
                        yield _row(run, group, id_, "twice", take)
        yield from _of_workers_alone(run, group, places)


def _of_workers_alone(
    run: Run, group: GroupHistory, brought: dict[Publication, set[int]]
) -> Iterator[Evidence]:
    """Yield what is wrong with where something stands that has no place but by TAKEs: in the order
    of its producer, of real time, and for who never had it.
    """
    by_producer: dict[str, list[tuple[int, int]]] = defaultdict(list)  # counter, id
    for (whose, topic, number), ids in (*brought.items(), *run.knowledge.places.items()):
        if topic == group.topic:
            by_producer[whose] += [(number, id_) for id_ in ids]
    for take in group.takes:
        for id_, producer, counter in take.given:
            if producer is None or counter is None:
                continue
            publication = (producer, group.topic, counter)
            if publication in run.knowledge.places:
                continue
            if any((its - counter) * (at - id_) < 0 for its, at in by_producer[producer]):
                yield _row(run, group, id_, "order", take)
            first = run.knowledge.first_try(publication)
            reached = first and run.knowledge.reached_before(group.topic, first.host, first.time)
            if reached and reached.id >= id_:
                yield _row(run, group, id_, "behind", reached.operation, take)
            for life in run.standing.lives_of_topic.get(group.topic, ()):
                if life.start is None or id_ <= life.start or id_ in life.had:
                    continue
                cut = BEFORE_ALL if life.cut is None else life.cut
                if id_ <= life.passed or _is_known([take], life, cut):
                    yield _row(run, group, id_, f"lost {life.client}", take, life.proof)


def _places_of_letters(run: Run) -> set[tuple[str, int]]:
    return {
        (answer.answered or answer.topic, letter.id)
        for answer in (*run.answers, *run.of("take"))
        for letter in answer.letters
    }


def _brought(run: Run) -> dict[tuple[str, int], set[Publication]]:
    found: dict[tuple[str, int], set[Publication]] = defaultdict(set)
    for take in run.of("take"):
        for id_, producer, counter in take.given:
            if producer is not None and counter is not None:
                found[take.topic, id_].add((producer, take.topic, counter))
    return found


def _wrong(run: Run, take: RecordedOperation, publication: Publication, id_: int) -> Iterator[str]:
    tries = run.knowledge.tries.get(publication, [])
    first = run.knowledge.first_try(publication)
    if not tries:
        yield "phantom"
    elif not any(put.may_have_happened for put in tries) or _is_nowhere(tries, publication, id_):
        yield "aborted"
    elif first is not None and first.host == take.host and first.time > take.end:
        yield "future"


def _is_nowhere(tries: list[RecordedOperation], publication: Publication, id_: int) -> bool:
    """Whether a try was answered that it is stored nowhere, and none that it is under that id."""
    return any(
        put.is_ok and put.first_id == 0 and not put.is_duplicate for put in tries
    ) and not any(
        put.placed and (put.first_id or 0) - (put.counter or 0) == id_ - publication[2]
        for put in tries
    )
