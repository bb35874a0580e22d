"""Compaction: of each key the last publication stays, of what all who stand in the topic have read.

What lives here: which topics have something to compact, and the steps that do it. What must not:
the rows that stay (latest.py), what readers are told (store.py), clocks.

Every entry, before its operations, does one step of one topic: so it is the same on every node, and
no entry takes longer than its bound. Behind a step all up to `compacted_id` is compacted: of each
key the last one up to there is in `latest`, with all that have no key, and nothing else is. A step
goes no further than the least cursor, so whoever stands in the topic has read what goes. Decision:
docs/decisions/0028-compaction.md.
"""

from __future__ import annotations

from typing import Final

from cluster.store.latest import CompactedTopic, Last, Latest
from cluster.store.publications import Publications
from cluster.store.tables import ID_MAX
from cluster.store.topics import Topic, Topics

# What a step does follows from these, so they are the same in all versions of a level.
LOOKED_MAX: Final = 2_048  # publications that a step looks at: a few ms
KEPT_MAX: Final = 256  # of them, which are written anew: some ms
BYTES_MAX: Final = 1024 * 1024  # that a step looks at, but for one publication
SWEPT_MAX: Final = 256  # below the floor, which a step removes


class Compaction:
    """What is to be compacted of all topics, and the doing."""

    def __init__(self, topics: Topics, publications: Publications, latest: Latest) -> None:
        self._topics, self._publications, self._latest = topics, publications, latest
        # Numbers of topics in which there may be work: of all in which there is, and perhaps more.
        self._stirred = dict(latest.names)
        for topic in topics.active.values():
            if topic.is_compacted:
                self._stirred[topic.number] = topic.name
            if topic.number in latest.topics:
                topic.compacted_id = latest.topics[topic.number].compacted_id

    def held_bytes(self, topic: Topic) -> int:
        """Return how many bytes a topic holds that is compacted."""
        kept = self._latest.topics.get(topic.number, _NOTHING)
        assert topic.retention is not None, topic.name
        read_bytes = max(kept.end_bytes, topic.retention.base_bytes)
        return kept.size_bytes + topic.added_bytes - read_bytes

    def said(self, topic: Topic) -> dict[str, int]:
        """Return what is said of a topic that is compacted: up to where."""
        return {"compacted_id": self._compacted_id(topic.number)}

    @property
    def has_work(self) -> bool:
        """Whether an entry would do something."""
        return bool(self._due())

    @property
    def is_behind(self) -> bool:
        """Return whether more is to be done of a topic than one entry does."""
        return any(map(self._is_behind, self._due()))

    def _is_behind(self, number: int) -> bool:
        topic = self._topic_of(number)
        if topic is None:
            return self._latest.topics[number].count > SWEPT_MAX
        return self._end_of(topic) - self._start_of(topic) >= KEPT_MAX

    def _due(self) -> list[int]:
        """Return the numbers of topics in which there is work, in their order."""
        for topic in self._topics.take_stirred():
            self._stirred[topic.number] = topic.name
        if not self._stirred:  # as nearly always, and a leader asks in each turn
            return []
        for number in [each for each in self._stirred if not self._is_due(each)]:
            del self._stirred[number]
        return sorted(self._stirred)

    def _is_due(self, number: int) -> bool:
        topic, kept = self._topic_of(number), self._latest.topics.get(number)
        if topic is None:
            return kept is not None
        if kept is not None and 0 < kept.first_id <= topic.floor_id:
            return True
        return topic.is_compacted and self._end_of(topic) > self._compacted_id(number)

    def _topic_of(self, number: int) -> Topic | None:
        """Return a topic; None: it was deleted, and not made again."""
        return self._topics.active.get(self._stirred[number])

    def _compacted_id(self, number: int) -> int:
        return self._latest.topics.get(number, _NOTHING).compacted_id

    def _start_of(self, topic: Topic) -> int:
        """Return up to where there is nothing to be looked at."""
        return max(topic.floor_id, self._compacted_id(topic.number))

    def _end_of(self, topic: Topic) -> int:
        """Return up to where all is to be compacted that there is."""
        return max(topic.floor_id, topic.read_id)

    # --- steps ----------------------------------------------------------------------------------

    def step(self, entry: int) -> None:
        """Do the next step of a topic, each of those in which there is work in its turn."""
        due = self._due()
        if not due:
            return
        number = due[entry % len(due)]
        topic, kept = self._topic_of(number), self._latest.topics.get(number, CompactedTopic())
        if kept.count:
            floor_id = ID_MAX if topic is None else topic.floor_id
            swept = self._latest.sweep(number, kept, floor_id, SWEPT_MAX)
            self._publications.forget(number, swept)
        if topic is None and not kept.count:
            self._latest.forget(number)
            return
        if topic is not None and topic.is_compacted:
            self._compact(topic, kept)
        self._latest.write(number, kept)

    def _compact(self, topic: Topic, kept: CompactedTopic) -> None:
        first, end = self._start_of(topic) + 1, self._end_of(topic)
        found: dict[bytes | int, tuple[int, Last]] = {}
        last, size_bytes = first - 1, 0
        for id_, each in self._publications.whole(topic, first, end):
            size_bytes += len(each.data)
            by = each.name or id_
            is_new = by not in found
            is_over = id_ - first == LOOKED_MAX or (is_new and len(found) == KEPT_MAX)
            if is_over or (found and size_bytes > BYTES_MAX):
                break
            found.pop(by, None)
            found[by] = id_, each
            last = id_
        gone = self._latest.compact(topic.number, kept, found.values())
        self._publications.forget(topic.number, gone)
        kept.compacted_id = topic.compacted_id = last
        kept.end_bytes = self._publications.bytes_before(topic, last + 1)
        self._publications.floor_moved(topic)


_NOTHING: Final = CompactedTopic()
