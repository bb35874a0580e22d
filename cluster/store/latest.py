"""The compacted part of topics on disk: of each key its last publication, a row of its own.

What lives here: rows of `latest`, `links` and `compactions`, and the reading of them. What must
not: what is compacted, and when (compaction.py), rows that are not (publications.py).

Where an id is missing here, what stood there is gone, and readers are told so. So a row that the
disk has lost must not look like that: `links` has of each publication which one stands before it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from cluster.store.tables import ID_MAX, TOPIC_SHIFT, CorruptStore, Database, row_crc


@dataclass(frozen=True, slots=True)
class Last:
    """A publication that stays; `name`: its key as it is encoded, b"" of none.

    `over_ms`: when, by the log's time, it has expired, NEVER. `lengths`: its one length.
    """

    name: bytes
    entry: int
    timestamp_ms: int
    over_ms: int
    lengths: bytes
    data: bytes


@dataclass(slots=True)
class CompactedTopic:
    """How far a topic is compacted: all up to `compacted_id`, which stands where `end_bytes` say.

    `count` publications are there, of `size_bytes`, the first of them `first_id` (0: none is).
    """

    compacted_id: int = 0
    end_bytes: int = 0
    count: int = 0
    size_bytes: int = 0
    first_id: int = 0


class Latest:
    """The rows of all topics: written at once, in the open transaction, and read from there.

    `topics` by number: how far those are of which something is on disk, `names`: what they were
    called when this was opened. `changed`: what this entry has written, for the audit.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self.topics: dict[int, CompactedTopic] = {}
        self.names: dict[int, str] = {}
        self.size_bytes = 0
        self.changed: list[int] = []
        self._load()

    def _load(self) -> None:
        query = self._database.query
        if not self._database.has_latest:
            return
        found = {number: (count, first) for number, count, first in query(_COUNTS)}
        for number, compacted_id, end_bytes, count, size_bytes, crc, name in query(_COMPACTIONS):
            self._database.verify(crc, (number, compacted_id, end_bytes, count, size_bytes))
            there, first_id = found.pop(number, (0, 0))
            if there != count or name is None:
                what = f"{there} of {count} compacted publications of topic {number}"
                raise CorruptStore(self._database.path, what)
            first_id &= ID_MAX
            kept = CompactedTopic(compacted_id, end_bytes, count, size_bytes, first_id)
            self.topics[number], self.names[number] = kept, name
            self.size_bytes += size_bytes
        if found:
            what = f"compacted publications of topic {min(found)}, which is not"
            raise CorruptStore(self._database.path, what)

    # --- reading --------------------------------------------------------------------------------

    def next_id(self, number: int, id_: int) -> int:
        """Return the first id from `id_` on that is there, of those up to which all is compacted.

        `id_` is above the floor. There is one: the last of them has no later one of its key.
        """
        key = number << TOPIC_SHIFT | id_
        rows = self._database.query(_NEXT, (key, number << TOPIC_SHIFT | ID_MAX))
        if not rows or rows[0][1] >= id_:
            what = f"a publication of topic {number} from {id_} on, which is compacted, is missing"
            raise CorruptStore(self._database.path, what)
        found, before_id, size_bytes, crc = rows[0]
        self._database.verify(crc, (found, before_id, size_bytes))
        return int(found & ID_MAX)

    def read(self, number: int, id_: int) -> Last:
        """Return a publication that is there."""
        key = number << TOPIC_SHIFT | id_
        rows = self._database.query(_LAST, (key,))
        if not rows:
            what = f"publication {id_} of topic {number}, which is compacted, is missing"
            raise CorruptStore(self._database.path, what)
        _, _, name, entry, timestamp_ms, over_ms, crc, lengths, data = rows[0]
        self._database.verify(crc, rows[0][:6], lengths + data)
        return Last(name, entry, timestamp_ms, over_ms, lengths, data)

    # --- writing --------------------------------------------------------------------------------

    def compact(
        self, number: int, kept: CompactedTopic, found: Iterable[tuple[int, Last]]
    ) -> list[int]:
        """Take publications in by id, instead of those of their keys; return the ids of the latter.

        `write` is to follow.
        """
        gone: list[int] = []
        self._database.make_latest()
        low = number << TOPIC_SHIFT
        [[last]] = self._database.query(_END, (low, low | ID_MAX))
        before_id = (last or 0) & ID_MAX
        for id_, each in found:
            if each.name and (old := self._find(number, each.name)):
                if old == before_id:
                    before_id = self._remove(number, kept, old)
                else:
                    self._remove(number, kept, old)
                gone.append(old)
            row = (low | id_, number, each.name, each.entry, each.timestamp_ms, each.over_ms)
            crc = row_crc(row, each.lengths + each.data)
            self._database.write(_INSERT, [(*row, crc, each.lengths, each.data)])
            link = (low | id_, before_id, len(each.lengths) + len(each.data))
            self._database.write(_LINK, [(*link, row_crc(link))])
            self.changed.append(row_crc(row[2:], each.lengths + each.data))
            self._count(kept, 1, link[2])
            before_id = id_
        return gone

    def _find(self, number: int, name: bytes) -> int:
        """Return the id of the publication with that key, 0 if there is none."""
        rows = self._database.query(_FIND, (number, name))
        return rows[0][0] & ID_MAX if rows else 0

    def _remove(self, number: int, kept: CompactedTopic, id_: int) -> int:
        """Remove one; return which id stands before it. The one behind it is told."""
        low = number << TOPIC_SHIFT
        rows = self._database.query(_NEXT_TWO, (low | id_, low | ID_MAX))
        for key, before_id, size_bytes, crc in rows:
            self._database.verify(crc, (key, before_id, size_bytes))
        if not rows or rows[0][0] != low | id_:
            raise CorruptStore(self._database.path, f"publication {id_} of topic {number} is loose")
        _, before_id, size_bytes, _ = rows[0]
        self._database.write("DELETE FROM latest WHERE key = ?", [(low | id_,)])
        self._database.write("DELETE FROM links WHERE key = ?", [(low | id_,)])
        for key, _, behind_bytes, _ in rows[1:]:
            link = (key, before_id, behind_bytes)
            self._database.write(_LINK, [(*link, row_crc(link))])
        self._count(kept, -1, -size_bytes)
        return int(before_id)

    def sweep(self, number: int, kept: CompactedTopic, floor_id: int, rows_max: int) -> list[int]:
        """Remove the first ones up to the floor; return their ids. `write` is to follow."""
        low = number << TOPIC_SHIFT
        rows = self._database.query(_FIRST, (low, low | floor_id, rows_max))
        for key, before_id, size_bytes, crc in rows:
            self._database.verify(crc, (key, before_id, size_bytes))
            self._count(kept, -1, -size_bytes)
        keys = [(row[0],) for row in rows]
        self._database.write("DELETE FROM latest WHERE key = ?", keys)
        self._database.write("DELETE FROM links WHERE key = ?", keys)
        return [key & ID_MAX for [key] in keys]

    def _count(self, kept: CompactedTopic, count: int, size_bytes: int) -> None:
        kept.count += count
        kept.size_bytes += size_bytes
        self.size_bytes += size_bytes

    def write(self, number: int, kept: CompactedTopic) -> None:
        """Write how far a topic is; the last part of a step."""
        low = number << TOPIC_SHIFT
        found = self._database.query(_FIRST, (low, low | ID_MAX, 1)) if kept.count else []
        kept.first_id = found[0][0] & ID_MAX if found else 0
        row = (number, kept.compacted_id, kept.end_bytes, kept.count, kept.size_bytes)
        crc = row_crc(row)
        sql = "INSERT OR REPLACE INTO compactions VALUES(?, ?, ?, ?, ?, ?)"
        self._database.write(sql, [(*row, crc)])
        self.topics[number] = kept
        self.changed.append(row_crc(row[1:]))  # numbers are a node's own

    def forget(self, number: int) -> None:
        """Forget a topic of which nothing is left."""
        del self.topics[number]
        self._database.write("DELETE FROM compactions WHERE topic = ?", [(number,)])


_COMPACTIONS: Final = (
    "SELECT topic, compacted_id, end_bytes, count, size_bytes, compactions.crc, name"
    " FROM compactions LEFT JOIN topics ON topics.number = topic ORDER BY topic"
)
_COUNTS: Final = f"SELECT key >> {TOPIC_SHIFT}, count(*), min(key) FROM links GROUP BY 1"
_LINKS: Final = "SELECT key, before_id, size_bytes, crc FROM links WHERE key BETWEEN ? AND ?"
_NEXT: Final = f"{_LINKS} ORDER BY key LIMIT 1"
_NEXT_TWO: Final = f"{_LINKS} ORDER BY key LIMIT 2"
_FIRST: Final = f"{_LINKS} ORDER BY key LIMIT ?"
_END: Final = "SELECT max(key) FROM links WHERE key BETWEEN ? AND ?"
_LINK: Final = "INSERT OR REPLACE INTO links VALUES(?, ?, ?, ?)"
_FIND: Final = "SELECT key FROM latest WHERE topic = ? AND name = ? AND name != x''"
_LAST: Final = (
    "SELECT key, topic, name, entry, timestamp_ms, over_ms, crc, lengths, data FROM latest"
    " WHERE key = ?"
)
_INSERT: Final = "INSERT INTO latest VALUES(?, ?, ?, ?, ?, ?, ?, ?, ?)"
