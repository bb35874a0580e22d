"""When a group stood: what its workers were answered must agree with it.

What lives here: which groups surely stood during an operation, and the rows of `subscription` that
follow. What must not: leases and settlements (groups.py).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from analytics.twins.gone import begins_in_the_gone
from analytics.twins.record import DENIALS, Evidence, RecordedOperation
from analytics.twins.run import Run

NO_TOPIC = "unknown_topic"


class GroupControls:
    """What made a group, and what ended it, but for what failed."""

    def __init__(self) -> None:
        self.makes: list[RecordedOperation] = []
        self.ends: list[RecordedOperation] = []
        self.denials: list[RecordedOperation] = []  # TAKEs that were rightly told that it is not

    def standing(self, operation: RecordedOperation) -> RecordedOperation | None:
        """Return who was told before an operation that it stands, if it surely did during it."""
        may_have_ended = any(
            one.host != operation.host or one.invoke < operation.end for one in self.ends
        )
        if may_have_ended:
            return None
        told = (
            one
            for one in self.makes
            if one.is_ok and one.host == operation.host and one.end < operation.invoke
        )
        return min(told, key=lambda one: (one.end, one.key), default=None)

    def news(self) -> list[RecordedOperation]:
        """Return the operations that were told that they made it."""
        return [one for one in self.makes if one.is_ok and one.resumed is False]

    def is_surely_gone(self, operation: RecordedOperation) -> bool:
        """Whether it surely did not stand during an operation.

        Each that may have made it was sent after its end, or was answered before an `ungroup`, or a
        TAKE that was denied, was sent that was answered before the operation was sent.
        """
        left = max(
            (
                one.invoke
                for one in (*(end for end in self.ends if end.is_ok), *self.denials)
                if one.host == operation.host and one.end < operation.invoke
            ),
            default=None,
        )
        return all(
            one.host == operation.host
            and (one.invoke > operation.end or (left is not None and one.is_ok and one.end < left))
            for one in self.makes
            if one is not operation
        )


class StandingGroup(NamedTuple):
    """A group that stood; `made`: who was told so first."""

    client_id: str
    made: RecordedOperation


def controls_of(run: Run) -> dict[tuple[str, str], GroupControls]:
    """Return the controls of each group, by topic and name."""
    found: dict[tuple[str, str], GroupControls] = defaultdict(GroupControls)
    for f in ("group", "ungroup"):
        for one in run.of(f):
            if one.may_have_happened and one.of_group.name:
                own = found[one.topic, one.of_group.name]
                (own.makes if f == "group" else own.ends).append(one)
    return found


Groups = Mapping[tuple[str, str], GroupControls]


def standing_during(
    groups: Groups, operation: RecordedOperation, of_topic: str
) -> Iterator[StandingGroup]:
    """Yield the groups of a topic that surely stood during an operation."""
    for (topic, name), controls in groups.items():
        if topic == of_topic and (made := controls.standing(operation)) is not None:
            yield StandingGroup(name, made)


def of_groups(run: Run) -> Iterator[Evidence]:
    """Find answers that contradict whether a group stood, where it begins, or what was asked for.

    Who works in the groups of an application, and makes and ends them, need not record: of its
    record only what single answers say is judged.
    """
    groups = controls_of(run)
    for take in run.of("take"):
        count = sum(lease.last - lease.first + 1 for lease in take.of_group.leases)
        most = take.max_count or 0  # without one it settles alone
        if take.is_ok and take.of_group.name and count > most:
            yield _row(take, run, f"limit {most}, {count} came")
    for controls in groups.values():
        for own in controls.news():
            start = own.start or ""
            is_behind = start.isdecimal() and own.last_id != int(start) - 1
            is_behind = is_behind or run.knowledge.begins_late(own, start)
            is_behind = is_behind or begins_in_the_gone(run, own, start)
            if is_behind or run.knowledge.begins_early(own, start):
                yield _row(own, run, f"start {start}, behind {own.last_id}")
    if not run.is_application:
        yield from _of_ours(run, groups)


def _of_ours(run: Run, groups: Groups) -> Iterator[Evidence]:
    takes = [take for take in run.of("take") if take.of_group.name]  # else its invoke is gone
    for take in takes:
        if take.outcome == "fail" and take.error in DENIALS:
            if (stood := _what_stood(run, groups, take)) is not None:
                yield _row(take, run, "denied", stood)
            elif (denied := groups.get((take.topic, take.of_group.name))) is not None:
                denied.denials.append(take)
    for take in takes:
        controls = groups.get((take.topic, take.of_group.name), GroupControls())
        if take.is_ok and controls.is_surely_gone(take):
            yield _row(take, run, "unsubscribed")
    for controls in groups.values():
        for own in controls.news():
            if (made := controls.standing(own)) is not None:
                yield _row(own, run, "forgotten", made)
        for own in controls.makes:
            is_found = own.is_ok and own.resumed and own.attempt == 1
            if is_found and controls.is_surely_gone(own):
                yield _row(own, run, "kept")


def _what_stood(run: Run, groups: Groups, take: RecordedOperation) -> RecordedOperation | None:
    """Return who was told that what a TAKE was denied was there: its group, or its topic."""
    controls = groups.get((take.topic, take.of_group.name))
    if controls is not None and (made := controls.standing(take)) is not None:
        return made
    if take.error != NO_TOPIC:
        return None
    lives = run.standing.lives_of_topic.get(take.topic, ())
    by_life = (life.proof for life in lives if life.covers(take))
    by_group = (other.made for other in standing_during(groups, take, take.topic))
    return next(by_life, None) or next(by_group, None)


def _row(own: RecordedOperation, run: Run, detail: str, *others: RecordedOperation) -> Evidence:
    return run.row(*others, own, topic=own.topic, client_id=own.client, detail=detail)
