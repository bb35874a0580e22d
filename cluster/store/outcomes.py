"""What the store answers: outcomes of operations, deliveries, and the refusals they share.

What lives here: plain values. What must not: the rules that lead to them (`store.py`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from flotilla_client.protocol import EPOCHS_A_RECOVERY, ERRORS, INTEGER_MAX, is_pattern


@dataclass(slots=True)
class Done:
    """The operation took effect: `body` is the body of its ACK (docs/protocol.md)."""

    body: dict[str, Any]


@dataclass(slots=True)
class Refused:
    """The operation did nothing: `code` is a key of protocol.ERRORS, `details` join the NAK."""

    code: str
    message: str
    details: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        assert self.code in ERRORS, self.code


Outcome = Done | Refused


@dataclass(slots=True)
class Delivery:
    """Publications of one topic, packed; `count` 0: nothing new (then `first_id` is 0).

    `times`: runs of (count, timestamp_ms), 0 where none was kept. `has_properties`: where it is
    False, none of them has any. `over_ms`: when the first of them expires, by the log's time.
    `passed`: what a reader is told who has not got what is gone in front of them. `runs`: [first
    id, count] of those behind the first `count`; in front of each all is compacted away.
    """

    topic: str
    first_id: int
    count: int
    lengths: bytes
    data: bytes
    times: tuple[tuple[int, int], ...] = ()
    has_properties: bool = False
    over_ms: int = INTEGER_MAX
    passed: Refused | None = None
    runs: tuple[tuple[int, int], ...] = ()

    @property
    def count_in_all(self) -> int:
        """How many publications it has."""
        return self.count + sum(count for _, count in self.runs)


@dataclass(slots=True)
class Looked:
    """From `first_id` to `last_id` of a topic all has expired, and more has to be looked at.

    It is no answer: who asks again with it goes on from there.
    """

    topic: str
    first_id: int
    last_id: int


@dataclass(slots=True)
class Leased:
    """What a client has by a take: `runs` of [first id, last id, attempt], and all that, packed.

    `left_ms`: until when it has the first of them, by the log's time. `times` as in `Delivery`.
    """

    token: int
    runs: list[list[int]]
    left_ms: int
    lengths: bytes
    data: bytes
    times: tuple[tuple[int, int], ...] = ()


def unknown_client(client_id: str) -> Refused:
    """Return the refusal of a client that the cluster never issued."""
    return Refused("unknown_client", f"client_id {client_id!r} was not issued here")


def forgotten(client_id: str) -> Refused:
    """Return the refusal of a client that the cluster does not know, as it forgets clients."""
    message = (
        f"client_id {client_id!r} is not known here: it was not issued here, or not heard of for"
        " `limits.client_idle_days`, or dropped by an administrator, and forgotten, with its"
        " subscriptions and counters"
    )
    return Refused("forgotten", message)


def no_topic(name: str) -> Refused:
    """Return the refusal of a topic that nobody subscribes to."""
    of_topics = ": it is a pattern, of whose topics each has its name" if is_pattern(name) else ""
    return Refused("unknown_topic", f"nobody subscribes to {name!r}{of_topics}")


def no_group(topic: str, name: str) -> Refused:
    """Return the refusal of a group that was not made, or was ended."""
    return Refused("not_subscribed", f"{topic!r} has no group {name!r}: SUB with `group` makes it")


def another_choice(topic: str, name: str, ordered_by_key: bool) -> Refused:
    """Return the refusal of who would have a group otherwise than it was made."""
    is_so = "is" if ordered_by_key else "is not"
    message = (
        f"group {name!r} of {topic!r} {is_so} ordered by key, which was chosen when it was made:"
        " join it as it is, or end it and make it anew"
    )
    return Refused("another_choice", message, {"ordered_by_key": ordered_by_key})


def purged(topic: str, last_id: int, purged_id: int) -> Refused:
    """Return what a subscriber is told who would read what was purged. He goes on behind it."""
    message = (
        f"publications {last_id + 1} to {purged_id} of {topic!r} were purged by an administrator;"
        f" `last_id` {purged_id} goes on behind them"
    )
    details = {"topic": topic, "first_id": last_id + 1, "last_id": purged_id}
    return Refused("purged", message, details)


def not_kept(topic: str, last_id: int, floor_id: int) -> Refused:
    """Return what is told who would read what a policy keeps no more. He goes on behind it."""
    missed = floor_id - last_id
    message = (
        f"publications {last_id + 1} to {floor_id} of {topic!r} are not kept any more: all had read"
        f" them, or they are over its policy, or have expired; {floor_id + 1} is the first that may"
        " be there"
    )
    details = {"topic": topic, "first_id": last_id + 1, "last_id": floor_id, "missed": missed}
    return Refused("gap", message, details)


def expired(topic: str, last_id: int, expired_id: int, is_known: bool) -> Refused:
    """Return what is told who would read what has expired. He goes on behind it.

    `is_known`: he knows what that is; to others it is a gap.
    """
    gap = not_kept(topic, last_id, expired_id)
    return Refused("expired", gap.message, gap.details) if is_known else gap


def compacted(topic: str, last_id: int, compacted_id: int, is_known: bool) -> Refused:
    """Return what is told who would read what later publications of its keys have replaced.

    As `expired`: who knows the one knows the other.
    """
    message = (
        f"later publications of their keys have replaced {last_id + 1} to {compacted_id} of"
        f" {topic!r}, which is compacted; {compacted_id + 1} is the first that may be there"
    )
    details = not_kept(topic, last_id, compacted_id).details
    return Refused("compacted" if is_known else "gap", message, details)


def moved(topic: str, cursor: int, placed: int) -> Refused:
    """Return the refusal of who acknowledges what was read before the subscription was moved."""
    message = f"the subscription to {topic!r} was moved: it stands at {cursor}"
    return Refused("moved", message, {"topic": topic, "cursor": cursor, "placed": placed})


def wrong_epoch(epoch: int, newest: int) -> Refused:
    """Return the refusal of a process whose epoch is not the newest.

    One from before a recovery, or one that this cluster's state does not know of: what the process
    was told since then may be undone, which it has to learn (docs/recovery.md).
    """
    if epoch > newest or epoch // EPOCHS_A_RECOVERY < newest // EPOCHS_A_RECOVERY:
        message = (
            f"epoch {epoch} of the client is of another history, {newest} is the newest of this"
            " one: the cluster was recovered, or its data put back; take up the client_id anew"
        )
        return Refused("recovered", message, {"epoch": newest})
    message = f"epoch {epoch} of the client ended, {newest} is the newest"
    return Refused("fenced", message, {"epoch": newest})


def stale_request(sequence: int, last: int) -> Refused:
    """Return the refusal of a control request that comes after a later one."""
    message = f"`sequence` {sequence} is over, {last + 1} is expected"
    return Refused("stale_request", message, {"expected": last + 1})


def too_many(what: str, limit: int) -> Refused:
    """Return the refusal of one more than `limit`."""
    return Refused("too_many", f"{limit} {what} is the limit", {"limit": limit})


def missed(pattern: str, topic: str) -> Refused:
    """Return what a subscriber is told whose pattern should have brought a topic, and did not."""
    message = (
        f"there was no room for {topic!r}, and perhaps for others, which the pattern {pattern!r}"
        " should have brought: what was published there does not come. Leave other topics, or have"
        " limits raised, and SUB the pattern again"
    )
    return Refused("too_many", message, {"pattern": pattern, "topic": topic})


def not_there_yet(topic: str, from_id: int, end: int) -> Refused:
    """Return the refusal of who would read from an id on that the topic has not reached."""
    message = f"{topic!r} ends at {end}: nothing can be read from {from_id} on"
    return Refused("bad_request", message, {"end": end})


def beyond_the_end(last_id: int, end: int) -> Refused:
    """Return the refusal of a `last_id` that the topic has not reached."""
    message = (
        f"`last_id` {last_id} is above {end}, the topic's end: nobody was given it, or the cluster"
        f" was recovered, or its data put back, and what was between is lost. Read on from {end}"
    )
    return Refused("bad_request", message, {"end": end})
