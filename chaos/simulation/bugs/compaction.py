"""Bugs in compaction: what goes, what stays, and who is told of it.

What must not live here: what finds them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

from chaos.simulation.bugs.registry import Patches, bug
from cluster.store import latest, publications
from cluster.store.compaction import Compaction
from cluster.store.expiry import NEVER
from cluster.store.latest import CompactedTopic, Last, Latest
from cluster.store.publications import Publications
from cluster.store.store import Store
from cluster.store.tables import Database
from cluster.store.topics import Topic
from flotilla_client.properties import key_field

_init: Final = Latest.__init__
_whole: Final = Publications.whole
_deliver: Final = Store._deliver

FOUND: Final = {"answered", "rebuilt", "digest", "books", "ended"}


@bug("nothing goes that somebody who stands in the topic has not read", FOUND)
def what_is_unread_is_compacted(patches: Patches) -> None:
    """Compact up to the end of a topic, whoever has not read it."""
    patches.attribute(Compaction, "_end_of", lambda compaction, topic: topic.last_id)


@bug("a publication goes only for a later one of its key", FOUND)
def keys_of_two_kinds_are_one(patches: Patches) -> None:
    """Take a key of text and one of the same bytes for one."""

    def bare(data: bytes, start: int = 0) -> bytes | None:
        found = key_field(data, start)
        return found and b"\1" + found[1:]

    patches.attribute(publications, "key_field", bare)


@bug("who reads across what is compacted away is told of it", FOUND)
def what_is_compacted_away_is_passed_in_silence(patches: Patches) -> None:
    """Deliver what stands behind it, as if ids might be missing."""

    def deliver(store: Store, topic: Topic, last_id: int, *bounds: Any) -> Any:
        if last_id < topic.last_id:
            last_id = store._publications.compacted_to(topic, last_id + 1)
        return _deliver(store, topic, last_id, *bounds)

    patches.attribute(Store, "_deliver", deliver)


@bug("how far a topic is compacted is known behind a restart", FOUND)
def how_far_topics_are_compacted_is_forgotten_at_a_start(patches: Patches) -> None:
    """Take it that nothing is compacted, whatever the disk says."""

    def init(kept: Latest, database: Database) -> None:
        _init(kept, database)
        for each in kept.topics.values():
            each.compacted_id = 0

    patches.attribute(Latest, "__init__", init)


@bug("what stays is linked to what stands before it", FOUND)
def what_stood_before_what_goes_is_forgotten(patches: Patches) -> None:
    """Remove one of those that stay, and leave the link of the next one as it was."""
    patches.attribute(latest, "_NEXT_TWO", latest._NEXT)


@bug("what stays keeps its time", FOUND)
def what_stays_has_no_time(patches: Patches) -> None:
    """Forget when it came."""
    _change(patches, lambda last: replace(last, timestamp_ms=0))


@bug("what stays expires as before", FOUND)
def what_stays_never_expires(patches: Patches) -> None:
    """Forget when it is over."""
    _change(patches, lambda last: replace(last, over_ms=NEVER))


@bug("what stays goes with its topic, and below the floor", FOUND)
def what_stays_is_never_swept(patches: Patches) -> None:
    """Leave the last ones of keys where they are, whatever the policy keeps."""

    def sweep(
        kept: Latest, number: int, counts: CompactedTopic, floor_id: int, most: int
    ) -> list[int]:
        return []

    patches.attribute(Latest, "sweep", sweep)


def _change(patches: Patches, changed: Any) -> None:
    def whole(
        rows: Publications, topic: Topic, first_id: int, last_id: int
    ) -> Iterator[tuple[int, Last]]:
        for id_, last in _whole(rows, topic, first_id, last_id):
            yield id_, changed(last)

    patches.attribute(Publications, "whole", whole)
