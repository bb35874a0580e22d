"""Publications that wait until they are due: stored, counted, and in no topic yet.

What lives here: rows of `delayed` and `lanes`, how much waits for which topic, what is due. What
must not: what becomes of what is due (store.py), clocks: time is the log's (idle.py).

Ids are order, so what is delayed has none before it is due. Until then it has a *place*, 1, 2, 3, …
of its topic's delayed ones: by that a repeated PUT finds what it has stored. Rows are written at
once, in the open transaction, and read from the database alone. What is due comes in the order of
due times, then of places, in steps: an entry takes so many rows, the next one more. All of this
follows from the entries, so it is the same on every node. Decision: docs/decisions/0029-delay.md.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, groupby, pairwise
from typing import Final

from cluster.store.expiry import NEVER
from cluster.store.tables import ID_MAX, TOPIC_SHIFT, CorruptStore, Database, row_crc
from cluster.store.topics import Topic
from flotilla_client.protocol import delays, total_bytes

DUE_ROWS_MAX: Final = 256  # that one entry takes: some ms
DUE_BYTES_MAX: Final = 1024 * 1024  # the same; as one PUT may have
DROPPED_ROWS_MAX: Final = 256  # of deleted topics, that one entry removes


@dataclass(slots=True)
class Lane:
    """What is delayed of a topic: its last place; up to `dropped_place` it went with the topic.

    `count` publications wait, of `size_bytes`; `bytes_of`: of each principal, "" of nobody known.
    """

    name: str
    last_place: int = 0
    dropped_place: int = 0
    count: int = 0
    size_bytes: int = 0
    bytes_of: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True, slots=True)
class Due:
    """A row that is due: `count` publications of a topic, packed; `principal`: whose, if any's."""

    topic: str
    count: int
    principal: str | None
    lengths: bytes
    data: bytes


class Delayed:
    """What waits, of all topics; `lanes` by the numbers of those of which something is on disk.

    `due_ms`: when, by the log's time, the first row is due. `bytes_of`: how much waits, by
    principal. `added_crcs`: the checksums of the rows that this entry has added.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._lanes: dict[int, Lane] = {}
        self._dropped: dict[int, Lane] = {}  # of which rows are to be removed
        self.due_ms = NEVER
        self.count = self.size_bytes = 0
        self.bytes_of: Counter[str] = Counter()
        self.added_crcs: list[int] = []
        self._load()

    def _load(self) -> None:
        for number, principal, count, size_bytes in self._database.query(_WAITING):
            lane = self._lane(number)
            self._count(lane, principal, count, size_bytes)
        for [number] in self._database.query(_DROPPED):
            self._dropped[number] = self._lane(number)
        self._find_due()

    def _lane(self, number: int, name: str = "") -> Lane:
        """Return a topic's lane, as it stands on the disk; `name`: where there may be none."""
        if number in self._lanes:
            return self._lanes[number]
        lane = Lane(name)
        for last_place, dropped_place, crc, found in self._database.query(_LANE, (number,)):
            self._database.verify(crc, (number, last_place, dropped_place))
            lane = Lane(found or name, last_place, dropped_place)
        if not lane.name:
            raise CorruptStore(self._database.path, f"delayed publications of no topic {number}")
        self._lanes[number] = lane
        return lane

    def _write_lane(self, number: int, lane: Lane) -> None:
        row = (number, lane.last_place, lane.dropped_place)
        sql = "INSERT OR REPLACE INTO lanes VALUES(?, ?, ?, ?)"
        self._database.write(sql, [(*row, row_crc(row))])

    def _count(self, lane: Lane, principal: str, count: int, size_bytes: int) -> None:
        lane.count += count
        lane.size_bytes += size_bytes
        lane.bytes_of[principal] += size_bytes
        if not lane.bytes_of[principal]:
            del lane.bytes_of[principal]
        self.count += count
        self.size_bytes += size_bytes
        if principal:
            self.bytes_of[principal] += size_bytes
            if not self.bytes_of[principal]:
                del self.bytes_of[principal]

    def _find_due(self) -> None:
        [[due_ms]] = self._database.query("SELECT min(due_ms) FROM delayed")
        self.due_ms = NEVER if due_ms is None else due_ms

    # --- what waits -----------------------------------------------------------------------------

    @property
    def has_work(self) -> bool:
        """Whether entries have something to remove, whatever the time is."""
        return bool(self._dropped)

    def count_of(self, topic: Topic) -> int:
        """Return how many publications of a topic wait."""
        lane = self._lanes.get(topic.number)
        return 0 if lane is None else lane.count

    def bytes_for(self, topic: Topic) -> int:
        """Return how many bytes of a topic wait."""
        lane = self._lanes.get(topic.number)
        return 0 if lane is None else lane.size_bytes

    def add(
        self, topic: Topic, principal: str | None, lengths: bytes, data: bytes, log_ms: int
    ) -> int:
        """Have a batch wait; return its first place. Neighbours with one delay are one row."""
        lane = self._lane(topic.number, topic.name)
        first, owner = lane.last_place + 1, principal or ""
        rows = []
        for place, due_ms, count, part_lengths, part in _parts(lengths, data, first, log_ms):
            key = topic.number << TOPIC_SHIFT | place
            size_bytes = len(part_lengths) + len(part)
            row = (key, due_ms, count, owner, size_bytes)
            crc = row_crc(row, part_lengths + part)
            rows.append((*row, crc, part_lengths, part))
            self.added_crcs.append(crc)
            self._count(lane, owner, count, size_bytes)
            self.due_ms = min(self.due_ms, due_ms)
        lane.last_place += len(lengths) >> 2
        self._database.write("INSERT INTO delayed VALUES(?, ?, ?, ?, ?, ?, ?, ?)", rows)
        self._write_lane(topic.number, lane)
        return first

    def drop(self, topic: Topic) -> int:
        """Let what waits for a topic be gone with it; return how many publications that were.

        Their rows, a million perhaps, are removed in steps, by the entries that follow.
        """
        lane = self._lanes.get(topic.number)
        if lane is None or not lane.count:
            return 0
        count = lane.count
        for principal, size_bytes in list(lane.bytes_of.items()):
            self._count(lane, principal, 0, -size_bytes)
        self._count(lane, "", -count, 0)
        lane.dropped_place = lane.last_place
        self._dropped[topic.number] = lane
        self._write_lane(topic.number, lane)
        return count

    # --- what is due ----------------------------------------------------------------------------

    def take_due(self, log_ms: int) -> list[Due]:
        """Remove what is due then, as much as one entry takes, and return it in its order."""
        if self.due_ms > log_ms:
            return []
        keys: list[int] = []
        size_bytes = 0
        for key, row_bytes in self._database.query(_DUE, (log_ms, DUE_ROWS_MAX)):
            if keys and size_bytes + row_bytes > DUE_BYTES_MAX:
                break
            keys.append(key)
            size_bytes += row_bytes
        found = [due for due in map(self._take, keys) if due is not None]
        numbers = {key >> TOPIC_SHIFT for key in keys}
        self._end_dropped(numbers & self._dropped.keys())
        self._forget_empty(numbers)
        self._find_due()
        return found

    def _take(self, key: int) -> Due | None:
        [row] = self._database.query(_ROW, (key,))
        _, _, count, principal, size_bytes, crc, lengths, data = row
        self._database.verify(crc, row[:5], lengths + data)
        self._database.write("DELETE FROM delayed WHERE key = ?", [(key,)])
        lane = self._lanes[key >> TOPIC_SHIFT]
        if key & ID_MAX <= lane.dropped_place:
            return None
        self._count(lane, principal, -count, -size_bytes)
        return Due(lane.name, count, principal or None, lengths, data)

    def remove_dropped(self) -> None:
        """Remove some rows of what went with its topic."""
        if not self._dropped:
            return
        number = min(self._dropped)
        low, dropped_place = number << TOPIC_SHIFT, self._dropped[number].dropped_place
        keys = self._database.query(_KEYS, (low, low | dropped_place, DROPPED_ROWS_MAX))
        self._database.write("DELETE FROM delayed WHERE key = ?", keys)
        self._end_dropped({number})
        self._forget_empty({number})
        self._find_due()

    def _end_dropped(self, numbers: set[int]) -> None:
        """Forget that rows of these are to be removed where none is left: as a start would."""
        for number in numbers:
            low = number << TOPIC_SHIFT
            high = low | self._dropped[number].dropped_place
            if not self._database.query(_KEYS, (low, high, 1)):
                del self._dropped[number]

    def _forget_empty(self, numbers: set[int]) -> None:
        """Forget the lanes in which nothing waits: they are read again when they are needed."""
        for number in numbers:
            if not self._lanes[number].count and number not in self._dropped:
                del self._lanes[number]


def _parts(
    lengths: bytes, data: bytes, first: int, log_ms: int
) -> Iterator[tuple[int, int, int, bytes, bytes]]:
    """Yield (first place, when it is due, count, lengths, data) of neighbours with one delay."""
    asked = delays(lengths, data)
    assert all(asked), "a batch is delayed as a whole"
    runs = [(delay_ms, len(list(run))) for delay_ms, run in groupby(asked)]
    ends = list(accumulate(count for _, count in runs))
    sizes: Sequence[int] = struct.unpack(f"<{len(asked)}I", lengths)
    position = 0
    for (delay_ms, count), (start, end) in zip(runs, pairwise((0, *ends)), strict=True):
        stop = position + total_bytes(sizes[start:end])
        part = lengths[4 * start : 4 * end], data[position:stop]
        yield first + start, log_ms + delay_ms, count, *part
        position = stop


_LANE: Final = (
    "SELECT last_place, dropped_place, lanes.crc, name FROM lanes"
    " LEFT JOIN topics ON topics.number = topic WHERE topic = ?"
)
_WAITING: Final = (
    f"SELECT key >> {TOPIC_SHIFT}, principal, sum(count), sum(size_bytes) FROM delayed"
    f" LEFT JOIN lanes ON lanes.topic = key >> {TOPIC_SHIFT}"
    f" WHERE key & {ID_MAX} > ifnull(dropped_place, 0) GROUP BY 1, 2 ORDER BY 1, 2"
)
_DROPPED: Final = (
    "SELECT topic FROM lanes WHERE dropped_place > 0 AND EXISTS (SELECT 1 FROM delayed WHERE key"
    f" BETWEEN topic << {TOPIC_SHIFT} AND topic << {TOPIC_SHIFT} | dropped_place)"
)
_DUE: Final = "SELECT key, size_bytes FROM delayed WHERE due_ms <= ? ORDER BY due_ms, key LIMIT ?"
_ROW: Final = (
    "SELECT key, due_ms, count, principal, size_bytes, crc, lengths, data FROM delayed"
    " WHERE key = ?"
)
_KEYS: Final = "SELECT key FROM delayed WHERE key BETWEEN ? AND ? ORDER BY key LIMIT ?"
