"""The publications on disk: packed batches in rows, written, sliced and collected.

What lives here: rows of `publications` and a small cache of them and of what stays of those that
are compacted (`latest.py`). What must not: who may read what (`store.py`), who still needs it
(`topics.py`).

All publications that one entry adds to a topic are one row: group commit makes rows large and
few. A row goes from disk some time after its last publication died, in bounded steps.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate, chain
from typing import Any, Final

from cluster.store.expiry import NEVER
from cluster.store.latest import Last, Latest
from cluster.store.tables import ID_MAX, TOPIC_SHIFT, CorruptStore, Database, row_crc, timed
from cluster.store.topics import TOPIC_COLUMNS, Topic, restored
from flotilla_client.properties import key_field
from flotilla_client.protocol import HAS_PROPERTIES, expiries

COLLECT_BYTES_MAX: Final = 1024 * 1024  # a step: to free a row takes some time for each page
ROWS_CACHED_BYTES_MAX: Final = 16 * 1024 * 1024  # rows that many subscribers read one by one
ROWS_CACHED_MAX: Final = 1_024
# What a row in memory has of each publication beside its bytes: length, end, and when it is over.
PUBLICATION_BYTES: Final = 12
OVER_BYTES: Final = 40
_PROPERTIES_BIT: Final = HAS_PROPERTIES >> 24  # in the last byte of a length
READ_ROWS_MAX: Final = 128  # rows joined into one delivery: about a millisecond


@dataclass(slots=True, eq=False)
class Row:
    """A row of publications: ids from `first_id`; publication i ends at byte `ends[i]`.

    `timestamp_ms`: when its leader made the entry; 0: that was not kept then. `has_properties`: of
    any of them. `over_ms`: when, by the log's time, each has expired; None: none ever does.
    """

    first_id: int
    entry: int
    ends: array[int]
    lengths: bytes
    data: bytes
    timestamp_ms: int = 0
    has_properties: bool = False
    over_ms: list[int] | None = None

    @property
    def last_id(self) -> int:
        """The id of the row's last publication."""
        return self.first_id + len(self.ends) - 1

    @property
    def size_bytes(self) -> int:
        """How much memory the row takes, about."""
        of_each = PUBLICATION_BYTES + (0 if self.over_ms is None else OVER_BYTES)
        return len(self.data) + of_each * len(self.ends)

    def run(self, first_id: int, count_max: int, log_ms: int, is_over: bool) -> int:
        """Return how many from `first_id` on, one after the other, have expired then, or have not.

        `count_max` at most.
        """
        i = first_id - self.first_id
        if self.over_ms is None:
            return 0 if is_over else min(count_max, len(self.ends) - i)
        count = 0
        for over_ms in self.over_ms[i : i + count_max]:
            if (over_ms <= log_ms) != is_over:
                break
            count += 1
        return count

    def next_over_ms(self, first_id: int, count: int) -> int:
        """Return when the first of so many publications expires."""
        i = first_id - self.first_id
        return NEVER if self.over_ms is None else min(self.over_ms[i : i + count], default=NEVER)

    def cut(self, first_id: int, count_max: int, bytes_max: int) -> tuple[int, bytes, bytes]:
        """Return (count, lengths, data) from `first_id` on, within both limits; may be 0."""
        i = first_id - self.first_id
        start = self.ends[i - 1] if i else 0
        j = min(bisect_right(self.ends, start + bytes_max), i + count_max, len(self.ends))
        if j <= i:
            return 0, b"", b""
        if i == 0 and j == len(self.ends):
            return j, self.lengths, self.data
        return j - i, self.lengths[4 * i : 4 * j], self.data[start : self.ends[j - 1]]


@dataclass(slots=True)
class Cut:
    """Publications one after the other, packed; `count` of them.

    `times`: runs of (count, timestamp_ms). `has_properties`: any that stands in a row with them.
    `over_ms`: when the first of them expires, by the log's time.
    """

    count: int
    lengths: bytes
    data: bytes
    times: tuple[tuple[int, int], ...] = ()
    has_properties: bool = False
    over_ms: int = NEVER


class Publications:
    """The rows of all topics: buffered, written in one go, read through a small cache.

    `dropped(topic, size_bytes)` hears of what was collected.
    """

    def __init__(
        self, database: Database, latest: Latest, dropped: Callable[[str, int], None]
    ) -> None:
        self._database, self._latest, self._dropped = database, latest, dropped
        self._added: dict[Topic, list[Any]] = {}
        self._expiring: set[Topic] = set()  # of those, what gets something that expires
        self._stamps: dict[int, int] = {}  # the log's time of rows that are not written yet, by key
        self._has_stamps = bool(database.query("SELECT 1 FROM stamps LIMIT 1"))
        self._buffered: dict[int, tuple[Any, ...]] = {}  # rows that are not written yet, by key
        self._buffered_keys: dict[int, list[int]] = {}  # of these, by topic, in order
        self._cache: dict[int, Row] = {}
        self._cache_bytes = 0
        self.garbage: dict[str, Topic] = {}  # topics whose oldest row is dead
        self.sealed_crcs: list[int] = []
        self.stored_bytes = 0  # on disk or buffered, dead or alive
        self.added_count = self.added_bytes = 0  # since this was opened
        self.buffered_bytes = 0

    def load(self, active: Iterable[Topic]) -> None:
        """Find every topic's oldest row, after a start; `active`: those with subscribers."""
        by_number = {topic.number: topic for topic in active}
        key = 0
        while rows := self._oldest("key >= ? ORDER BY key LIMIT 1", (key,)):
            number = rows[0][0] >> TOPIC_SHIFT
            topic = by_number.get(number) or self._load_inactive(number)
            self._set_oldest(topic, rows)
            self.stored_bytes += topic.added_bytes - topic.dropped_bytes
            self.floor_moved(topic)
            key = (number + 1) << TOPIC_SHIFT

    def _load_inactive(self, number: int) -> Topic:
        rows = self._database.query(
            f"SELECT {TOPIC_COLUMNS} FROM topics WHERE number = ?", (number,)
        )
        if not rows:
            raise CorruptStore(self._database.path, f"publications of an unknown topic {number}")
        return restored(self._database, rows[0])

    def _set_oldest(self, topic: Topic, rows: list[Any]) -> None:
        if rows:
            key, count, before_bytes = rows[0]
            end = (key & ID_MAX) + count - 1
            # Its checksum is left to reads and to the scrub: a start would read each topic.
            # What can't be would keep it for good, or have more room counted than there is.
            if not (count > 0 and end <= topic.last_id and before_bytes <= topic.added_bytes):
                what = f"the oldest row of topic {topic.number} ends at {end}, behind all there is"
                raise CorruptStore(self._database.path, what)
            topic.oldest_end = end
            topic.dropped_bytes = before_bytes
        else:
            topic.oldest_end = 0
            topic.dropped_bytes = topic.added_bytes

    # --- writing ---

    def add(
        self, topic: Topic, count: int, lengths: bytes, data: bytes, expires: bool = False
    ) -> int:
        """Append a batch to the topic's row of this entry; return its first id.

        `expires`: something of it does.
        """
        if expires:
            self._expiring.add(topic)
        first_id = topic.last_id + 1
        topic.last_id += count
        topic.added_bytes += len(lengths) + len(data)
        added = self._added.get(topic)
        if added is None:
            self._added[topic] = [first_id, [lengths], [data]]
        else:
            added[1].append(lengths)
            added[2].append(data)
        return first_id

    def seal(self, entry: int, timestamp_ms: int, log_ms: int) -> list[Topic]:
        """End the entry: what it added to each topic becomes one row. Return these topics.

        `timestamp_ms`: of these publications, 0 where that is not kept. `log_ms`: the log's time.

        `sealed_crcs` are the checksums of these rows.
        """
        self.sealed_crcs.clear()
        for topic, (first_id, lengths_parts, data_parts) in self._added.items():
            lengths, data = b"".join(lengths_parts), b"".join(data_parts)
            key = topic.number << TOPIC_SHIFT | first_id
            size_bytes = len(lengths) + len(data)
            before, count = topic.added_bytes - size_bytes, len(lengths) >> 2
            values: tuple[int, ...] = (key, entry, before, count)
            if timestamp_ms:
                values = (*values, timestamp_ms)
            crc = row_crc(values, lengths + data)
            self._buffered[key] = key, entry, before, count, crc, lengths, data, timestamp_ms
            if topic in self._expiring:
                self._stamps[key] = log_ms
            self._buffered_keys.setdefault(topic.number, []).append(key)
            self.sealed_crcs.append(crc)
            self.stored_bytes += size_bytes
            self.buffered_bytes += size_bytes
            self.added_count += count
            self.added_bytes += size_bytes
            if not topic.oldest_end:
                topic.oldest_end = first_id + count - 1
                topic.dropped_bytes = before
                self.floor_moved(topic)
        topics = list(self._added)
        self._added.clear()
        self._expiring.clear()
        return topics

    def before_time(self, topic: Topic, at_ms: int, entry_ms: int) -> int:
        """Return the id, from the floor on, up to which publications are older than that.

        `entry_ms`: what those are stamped that the entry which is being applied has added.
        """
        if topic in self._added and entry_ms < at_ms:
            return topic.last_id
        # The same entry may have moved the floor behind all that can be read.
        low = topic.floor_id
        high = high_id = max(low, self.readable_id(topic))
        while low < high:  # timestamps never go back
            middle = (low + high + 1) // 2
            if self._time_of(topic, middle) < at_ms:
                low = middle
            else:
                high = middle - 1
        self._check_times(topic, low, at_ms, high_id)
        return low

    def _check_times(self, topic: Topic, last_id: int, at_ms: int, high_id: int) -> None:
        """Check the rows on both sides of a place that was found by times alone.

        Where it stands decides what a subscription is given, and a search reads no whole rows.
        """
        before = last_id == topic.floor_id or self._row_from(topic, last_id).timestamp_ms < at_ms
        behind = last_id == high_id or self._row_from(topic, last_id + 1).timestamp_ms >= at_ms
        if not (before and behind):
            what = f"times of topic {topic.number} about publication {last_id} are out of order"
            raise CorruptStore(self._database.path, what)

    def _time_of(self, topic: Topic, publication_id: int) -> int:
        """Return when a publication came, 0 where that is not known."""
        if publication_id <= topic.compacted_id:
            return self._row_from(topic, publication_id).timestamp_ms
        key = self._key_of(topic, publication_id)
        if key in self._buffered:
            return int(self._buffered[key][7])
        if not self._database.has_times:
            return 0
        sql = "SELECT timestamp_ms FROM publications WHERE key = ?"
        timestamp_ms: int = self._database.query(sql, (key,))[0][0]
        return timestamp_ms

    def bytes_before(self, topic: Topic, publication_id: int) -> int:
        """Return how many of the bytes ever added stand in rows before that of a publication."""
        if publication_id > topic.last_id:
            return topic.added_bytes
        added = self._added.get(topic)
        if added is not None and publication_id >= added[0]:
            return topic.added_bytes - sum(map(len, added[1])) - sum(map(len, added[2]))
        key = self._key_of(topic, publication_id)
        if key in self._buffered:
            return int(self._buffered[key][2])
        before_bytes: int = self._verified(key)[1]
        return before_bytes

    def flush(self) -> None:
        """Write the buffered rows, in the open transaction."""
        if self._buffered:
            rows = list(self._buffered.values())
            if self._database.has_times:
                self._database.write(_INSERT_TIMED, rows)
            else:
                self._database.write(_INSERT, [row[:-1] for row in rows])
            self._buffered.clear()
            self._buffered_keys.clear()
            self.buffered_bytes = 0
        if self._stamps:
            sql = "INSERT INTO stamps VALUES(?, ?, ?)"
            self._database.write(sql, [(*row, row_crc(row)) for row in self._stamps.items()])
            self._stamps.clear()
            self._has_stamps = True

    # --- reading ---

    def _expires(self, topic: Topic, id_: int) -> bool:
        """Return whether anything may in the rows from that id on."""
        return self._has_stamps or bool(self._stamps) or id_ <= topic.compacted_id

    def has_expired(self, topic: Topic, id_: int, log_ms: int) -> bool:
        """Return whether a publication has expired at that time."""
        if not self._expires(topic, id_):
            return False
        return self._row_of(topic, id_).run(id_, 1, log_ms, is_over=True) == 1

    def is_lapsed(self, topic: Topic, id_: int, log_ms: int) -> bool:
        """Return whether a publication has expired at that time, or is compacted away."""
        return self.compacted_to(topic, id_) >= id_ or self.has_expired(topic, id_, log_ms)

    def expired_to(self, topic: Topic, first_id: int, log_ms: int) -> tuple[int, bool]:
        """Return the last id from `first_id` on up to which all have expired at that time.

        `first_id` - 1 if that one has not. READ_ROWS_MAX rows are looked at; also return whether
        these were all.
        """
        last_id, end = first_id - 1, self.readable_id(topic)
        if not self._expires(topic, first_id):
            return last_id, True
        for _ in range(READ_ROWS_MAX):
            row = self._row_at(topic, last_id + 1) if last_id < end else None
            if row is None:
                return last_id, True
            last_id += row.run(last_id + 1, ID_MAX, log_ms, is_over=True)
            if last_id < row.last_id:
                return last_id, True
        return last_id, last_id == end

    def compacted_to(self, topic: Topic, first_id: int) -> int:
        """Return the last id from `first_id` on up to which all are compacted away.

        `first_id` - 1 if that one is there.
        """
        if first_id > topic.compacted_id:
            return first_id - 1
        return self._latest.next_id(topic.number, first_id) - 1

    def lapsed_to(self, topic: Topic, first_id: int, log_ms: int) -> int:
        """Return the last id up to which all have expired, or are compacted away.

        As `expired_to`; what is compacted away between two rows counts as one.
        """
        last_id, end = first_id - 1, self.readable_id(topic)
        if not self._expires(topic, first_id):
            return last_id
        for _ in range(READ_ROWS_MAX):
            if last_id >= end:
                break
            row = self._row_at(topic, last_id + 1)
            if row is None:
                last_id = self.compacted_to(topic, last_id + 1)
                continue
            last_id += row.run(last_id + 1, ID_MAX, log_ms, is_over=True)
            if last_id < row.last_id:
                break
        return last_id

    def cut(
        self, topic: Topic, first_id: int, count_max: int, bytes_max: int, log_ms: int = 0
    ) -> Cut:
        """Return publications from `first_id` on; at least one, even over bytes_max.

        Up to the first that has expired at the time `log_ms` (0: whatever has), or is compacted
        away.
        """
        assert topic.floor_id < first_id <= topic.last_id, (topic, first_id)
        row = self._row_of(topic, first_id)
        lasting = row.run(first_id, count_max, log_ms, is_over=False)
        assert lasting, (topic.name, first_id, "has expired")
        count, lengths, data = row.cut(first_id, lasting, bytes_max)
        if count == 0:
            one = row.cut(first_id, 1, len(row.data))
            over_ms = row.next_over_ms(first_id, 1)
            return Cut(*one, ((1, row.timestamp_ms),), row.has_properties, over_ms)
        parts = [(lengths, data)]
        times = [(count, row.timestamp_ms)]
        has_properties, over_ms = row.has_properties, row.next_over_ms(first_id, count)
        room = bytes_max - len(data)
        while count < count_max and len(parts) < READ_ROWS_MAX:
            next_id = first_id + count
            if next_id != row.last_id + 1 or next_id > topic.last_id:
                break
            found = self._row_behind(topic, next_id)
            if found is None:
                break
            row = found
            lasting = row.run(next_id, count_max - count, log_ms, is_over=False)
            more, lengths, data = row.cut(next_id, lasting, room)
            over_ms = min(over_ms, row.next_over_ms(next_id, more))
            count += more
            room -= len(data)
            parts.append((lengths, data))
            times.append((more, row.timestamp_ms))
            has_properties = has_properties or row.has_properties
        if len(parts) == 1:
            return Cut(count, *parts[0], tuple(times), has_properties, over_ms)
        lengths, data = b"".join(part[0] for part in parts), b"".join(part[1] for part in parts)
        return Cut(count, lengths, data, tuple(times), has_properties, over_ms)

    def further(
        self, topic: Topic, first_id: int, cut: Cut, count_max: int, bytes_max: int, log_ms: int
    ) -> tuple[Cut, tuple[tuple[int, int], ...]]:
        """Join to what was cut from `first_id` on what follows where all between is compacted away.

        READ_ROWS_MAX publications in all, within the limits; each may stand in a row of its own.
        Return it, with (first id, count) of each run behind the first.
        """
        cuts, runs = [cut], list[tuple[int, int]]()
        count_max = min(count_max, READ_ROWS_MAX)
        count, room, last_id = cut.count, bytes_max - len(cut.data), first_id + cut.count - 1
        while count < count_max and last_id < topic.compacted_id:
            next_id = self.compacted_to(topic, last_id + 1) + 1
            if next_id == last_id + 1 or self.has_expired(topic, next_id, log_ms):
                break
            more = self.cut(topic, next_id, count_max - count, room, log_ms)
            if len(more.data) > room:
                break
            cuts.append(more)
            runs.append((next_id, more.count))
            count, room = count + more.count, room - len(more.data)
            last_id = next_id + more.count - 1
        joined = Cut(
            count,
            b"".join(each.lengths for each in cuts),
            b"".join(each.data for each in cuts),
            tuple(chain.from_iterable(each.times for each in cuts)),
            any(each.has_properties for each in cuts),
            min(each.over_ms for each in cuts),
        )
        return joined, tuple(runs)

    def readable_id(self, topic: Topic) -> int:
        """Return the last id that can be read: what this entry has added can be after `seal`."""
        added = self._added.get(topic)
        return topic.last_id if added is None else added[0] - 1

    def measure(
        self,
        topic: Topic,
        first_id: int,
        count_max: int,
        bytes_max: int,
        rows_max: int,
        log_ms: int = 0,
    ) -> tuple[int, int]:
        """Return how many publications from `first_id` on are within the limits, and their bytes.

        0 also where the first one alone is over `bytes_max`. `log_ms` as in `cut`.
        """
        count, size_bytes = 0, 0
        for _ in range(rows_max):
            next_id = first_id + count
            if count >= count_max or next_id > self.readable_id(topic):
                break
            row = self._row_at(topic, next_id)
            if row is None:
                break
            i = next_id - row.first_id
            start = row.ends[i - 1] if i else 0
            room = i + row.run(next_id, count_max - count, log_ms, is_over=False)
            j = min(bisect_right(row.ends, start + bytes_max - size_bytes), room)
            if j <= i:
                break
            count += j - i
            size_bytes += row.ends[j - 1] - start
            if j < room or j < len(row.ends):
                break
        return count, size_bytes

    def keyed(
        self, topic: Topic, first_id: int, rows_max: int
    ) -> Iterator[tuple[int, bytes | None, int]]:
        """Yield (id, key, bytes) of the readable publications from `first_id` on, in rows_max rows.

        Those that are there: of what is compacted away ids are missing. `key` as
        `properties.key_field` has it, None where there is none.
        """
        readable_id, next_id = self.readable_id(topic), first_id
        for _ in range(rows_max):
            if next_id > readable_id:
                return
            row = self._row_from(topic, next_id)
            for id_ in range(max(next_id, row.first_id), row.last_id + 1):
                i = id_ - row.first_id
                start = row.ends[i - 1] if i else 0
                own = row.has_properties and row.lengths[4 * i + 3] & _PROPERTIES_BIT
                key = key_field(row.data, start) if own else None
                yield id_, key, row.ends[i] - start
            next_id = row.last_id + 1

    def entry_of(self, topic: Topic, publication_id: int) -> int:
        """Return the index of the entry that brought the publication: its age.

        Of one that is compacted away, of the next that is there.
        """
        return self._row_from(topic, publication_id).entry

    def whole(self, topic: Topic, first_id: int, last_id: int) -> Iterator[tuple[int, Last]]:
        """Yield (id, publication) of those that stand in rows, as they are to be compacted."""
        next_id = first_id
        while next_id <= last_id:
            row = self._row_of(topic, next_id)
            for id_ in range(next_id, min(row.last_id, last_id) + 1):
                i = id_ - row.first_id
                start = row.ends[i - 1] if i else 0
                lengths, data = row.lengths[4 * i : 4 * i + 4], row.data[start : row.ends[i]]
                name = key_field(data) if lengths[3] & _PROPERTIES_BIT else None
                over_ms = NEVER if row.over_ms is None else row.over_ms[i]
                last = (row.entry, row.timestamp_ms, over_ms, lengths, data)
                yield id_, Last(name or b"", *last)
            next_id = row.last_id + 1

    def forget(self, number: int, ids: Iterable[int]) -> None:
        """Forget what is compacted away, of a topic of that number."""
        for id_ in ids:
            row = self._cache.pop(-(number << TOPIC_SHIFT | id_), None)
            self._cache_bytes -= 0 if row is None else row.size_bytes

    def _key_of(self, topic: Topic, publication_id: int) -> int:
        """Return the key of the row that holds a publication, 0 if there is none before it."""
        key = topic.number << TOPIC_SHIFT | publication_id
        buffered = self._buffered_keys.get(topic.number)
        if buffered and key >= buffered[0]:
            return buffered[bisect_right(buffered, key) - 1]
        sql = "SELECT max(key) FROM publications WHERE key <= ?"
        return self._database.query(sql, (key,))[0][0] or 0

    def _row_at(self, topic: Topic, publication_id: int) -> Row | None:
        """Return the row that holds a publication; None: it is compacted away."""
        if self.compacted_to(topic, publication_id) >= publication_id:
            return None
        return self._row_of(topic, publication_id)

    def _row_behind(self, topic: Topic, publication_id: int) -> Row | None:
        """Return the same of one that is the first behind another row."""
        if publication_id <= topic.compacted_id + 1:
            return self._row_at(topic, publication_id)
        return self._row(topic.number << TOPIC_SHIFT | publication_id)

    def _row_from(self, topic: Topic, publication_id: int) -> Row:
        """Return the row that holds the first publication from that one on that is there."""
        return self._row_of(topic, self.compacted_to(topic, publication_id) + 1)

    def _row_of(self, topic: Topic, publication_id: int) -> Row:
        """Return the row that holds a publication that is there.

        One that is compacted is a row by itself, cached under its key with a minus.
        """
        if publication_id <= topic.compacted_id:
            return self._row(-(topic.number << TOPIC_SHIFT | publication_id))
        key = topic.number << TOPIC_SHIFT | publication_id
        if key not in self._cache:
            key = self._key_of(topic, publication_id)
        row = self._row(key)
        if key >> TOPIC_SHIFT != topic.number or row.last_id < publication_id:
            what = f"publication {publication_id} of topic {topic.number} is missing"
            raise CorruptStore(self._database.path, what)
        return row

    def _row(self, key: int) -> Row:
        row = self._cache.pop(key, None)
        if row is None:
            row = self._load(key)
            self._cache_bytes += row.size_bytes
            while self._cache and (
                self._cache_bytes > ROWS_CACHED_BYTES_MAX or len(self._cache) >= ROWS_CACHED_MAX
            ):
                oldest = self._cache.pop(next(iter(self._cache)))
                self._cache_bytes -= oldest.size_bytes
        self._cache[key] = row  # last: the most recently used
        return row

    def _load(self, key: int) -> Row:
        if key < 0:
            return self._load_last(-key)
        if key in self._buffered:
            _, entry, _, count, _, lengths, data, timestamp_ms = self._buffered[key]
        else:
            entry, _, count, lengths, data, timestamp_ms = self._verified(key)
        row = _row(key, entry, count, lengths, data, timestamp_ms)
        if row.has_properties and (log_ms := self._stamp_of(key)) is not None:
            row.over_ms = [log_ms + each if each else NEVER for each in expiries(lengths, data)]
        return row

    def _load_last(self, key: int) -> Row:
        last = self._latest.read(key >> TOPIC_SHIFT, key & ID_MAX)
        row = _row(key, last.entry, 1, last.lengths, last.data, last.timestamp_ms)
        if last.over_ms < NEVER:
            row.over_ms = [last.over_ms]
        return row

    def _stamp_of(self, key: int) -> int | None:
        """Return the log's time of a row in which something expires, None if nothing does."""
        if key in self._stamps or not self._has_stamps:
            return self._stamps.get(key)
        rows = self._database.query("SELECT log_ms, crc FROM stamps WHERE key = ?", (key,))
        if not rows:
            return None
        log_ms, crc = rows[0]
        self._database.verify(crc, (key, log_ms))
        stamp: int = log_ms
        return stamp

    def _verified(self, key: int) -> tuple[int, int, int, bytes, bytes, int]:
        """Return a row on disk whose checksum is right: its columns behind the key, without it."""
        time = "timestamp_ms" if self._database.has_times else "0"
        sql = f"SELECT entry, before_bytes, count, crc, lengths, data, {time} FROM publications"
        rows = self._database.query(f"{sql} WHERE key = ?", (key,))
        if not rows:
            what = f"publications of topic {key >> TOPIC_SHIFT} from {key & ID_MAX} are missing"
            raise CorruptStore(self._database.path, what)
        entry, before, count, crc, lengths, data, timestamp_ms = rows[0]
        values = timed((key, entry, before, count, timestamp_ms))
        self._database.verify(crc, values, lengths + data)
        return entry, before, count, lengths, data, timestamp_ms

    # --- garbage ---

    def floor_moved(self, topic: Topic) -> None:
        """Note that the topic's oldest row may be dead."""
        if 0 < topic.oldest_end <= topic.dead_id:
            self.garbage[topic.name] = topic

    def collect(self, rows_max: int) -> int:
        """Delete dead rows, at most `rows_max` and about COLLECT_BYTES_MAX; return how many."""
        deleted = 0
        room_bytes = COLLECT_BYTES_MAX
        while self.garbage and deleted < rows_max and room_bytes > 0:
            topic = next(iter(self.garbage.values()))
            before_bytes = topic.dropped_bytes
            deleted += self._collect_topic(topic, rows_max - deleted, room_bytes)
            freed_bytes = topic.dropped_bytes - before_bytes
            room_bytes -= freed_bytes
            self.stored_bytes -= freed_bytes
            self._dropped(topic.name, freed_bytes)
            if not 0 < topic.oldest_end <= topic.dead_id:
                del self.garbage[topic.name]
        return deleted

    def _collect_topic(self, topic: Topic, rows_max: int, bytes_max: int) -> int:
        low = topic.number << TOPIC_SHIFT
        where = "key BETWEEN ? AND ? ORDER BY key LIMIT ?"
        rows = self._oldest(where, (low, low | topic.dead_id, rows_max))
        dead = [
            key
            for key, count, before_bytes in rows
            if (key & ID_MAX) + count - 1 <= topic.dead_id
            and before_bytes - topic.dropped_bytes < bytes_max
        ]
        if not dead:  # a bit has flipped in its place or its count, which nobody has read since
            what = f"the oldest row of topic {topic.number} does not end at {topic.oldest_end}"
            raise CorruptStore(self._database.path, what)
        sql = "DELETE FROM publications WHERE key BETWEEN ? AND ?"
        self._database.write(sql, [(dead[0], dead[-1])])
        if self._has_stamps:
            sql = "DELETE FROM stamps WHERE key BETWEEN ? AND ?"
            self._database.write(sql, [(dead[0], dead[-1])])
        where = "key > ? AND key <= ? ORDER BY key LIMIT 1"
        self._set_oldest(topic, self._oldest(where, (dead[-1], low | ID_MAX)))
        return len(dead)

    def _oldest(self, where: str, arguments: tuple[int, ...]) -> list[tuple[int, int, int]]:
        """Return (key, count, before_bytes) of rows. No checksum is compared; they are numbers."""
        rows = self._database.query(f"{_OLDEST} WHERE {where}", arguments)
        for row in rows:
            if not all(isinstance(value, int) for value in row):
                raise CorruptStore(self._database.path, f"no numbers in the row {row}")
        return rows


def _row(key: int, entry: int, count: int, lengths: bytes, data: bytes, timestamp_ms: int) -> Row:
    sizes = struct.unpack(f"<{count}I", lengths)
    has_properties = sum(sizes) != len(data)
    if has_properties:
        sizes = tuple(size & ~HAS_PROPERTIES for size in sizes)
    ends = array("L", accumulate(sizes))
    return Row(key & ID_MAX, entry, ends, lengths, data, timestamp_ms, has_properties)


_INSERT: Final = (
    "INSERT INTO publications(key, entry, before_bytes, count, crc, lengths, data)"
    " VALUES(?, ?, ?, ?, ?, ?, ?)"
)
_INSERT_TIMED: Final = (
    "INSERT INTO publications(key, entry, before_bytes, count, crc, lengths, data, timestamp_ms)"
    " VALUES(?, ?, ?, ?, ?, ?, ?, ?)"
)
_OLDEST: Final = "SELECT key, count, before_bytes FROM publications"
