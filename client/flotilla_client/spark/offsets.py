"""Ids as Spark's offsets: where a topic begins and ends, how a range is split, what a batch takes.

What lives here: arithmetic of ids, and the questions to a cluster that it needs. What must not:
Spark. An offset is the id of the next publication to be read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from flotilla_client.errors import BadRequest, Compacted, Expired, Gap
from flotilla_client.protocol import INTEGER_MAX
from flotilla_client.reading import Delivery

IDS_A_PARTITION: Final = 100_000  # a second of a task or so: below that starting it costs more
PARTITIONS_OF_ITSELF_MAX: Final = 200  # as many as Spark's shuffles have by default


class ReadsTopics(Protocol):
    """A client, as far as it is needed here."""

    def read(self, topic: str, from_id: int, max_count: int = 1) -> Delivery | None:
        """Return publications from an id on."""


@dataclass(frozen=True, slots=True)
class Extent:
    """What a topic keeps: ids from `first_id` up to `end`, which is the next one to be given."""

    first_id: int
    end: int


def extent(client: ReadsTopics, topic: str) -> Extent:
    """Ask where a topic begins and ends: the end first, so that it is never before the beginning.

    Raises UnknownTopic, and whatever else a READ does.
    """
    end = end_of(client, topic)
    try:
        delivery = client.read(topic, 1)
    except (Gap, Expired, Compacted) as gone:
        return Extent(gone.details["last_id"] + 1, max(end, gone.details["last_id"] + 1))
    first_id = end if delivery is None else delivery.first_id
    return Extent(first_id, max(end, first_id))


def end_of(client: ReadsTopics, topic: str) -> int:
    """Ask for the id that a topic's next publication gets: a READ beyond every end is told it."""
    try:
        client.read(topic, INTEGER_MAX)
    except BadRequest as error:
        if "end" not in error.details:
            raise
        return int(error.details["end"]) + 1
    raise AssertionError(f"{topic} has {INTEGER_MAX} publications")


def first_since(client: ReadsTopics, topic: str, timestamp_ms: int) -> int:
    """Return the first id whose publication is of that time or later, the end if there is none.

    Times never go back in a topic, so halving finds it; what has no time is older than any.
    """
    kept = extent(client, topic)
    low, high, first_id = kept.first_id, kept.end, kept.end
    while low < high:
        middle = (low + high) // 2
        try:
            delivery = client.read(topic, middle)
        except (Gap, Expired, Compacted) as gone:  # it was dropped meanwhile
            low = min(high, gone.details["last_id"] + 1)
            continue
        if delivery is None:  # all from there on has expired
            high = middle
            continue
        found = delivery.message(delivery.first_id, False).timestamp_ms
        if found is None or found < timestamp_ms:
            low = min(high, delivery.first_id + 1)
        else:
            high, first_id = middle, delivery.first_id
    return max(low, first_id)


def partitions_of(count: int) -> int:
    """Return into how many partitions so many ids are split where nobody has said it."""
    return max(1, min(PARTITIONS_OF_ITSELF_MAX, -(-count // IDS_A_PARTITION)))


def split(start: int, end: int, partitions: int) -> Sequence[tuple[int, int]]:
    """Split ids from `start` up to `end` (not included) into ranges that differ by 1 at most."""
    assert partitions > 0, partitions
    count = max(0, end - start)
    parts = min(partitions, count)
    return [
        (start + count * part // parts, start + count * (part + 1) // parts)
        for part in range(parts)
    ]
