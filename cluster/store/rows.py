"""Reading back the store's rows, slice by slice: checksums, indexes, and whether any are missing.

What lives here: the reading of a slice, for a worker thread, with a connection of its own. What
must not: when it is read and what follows from damage (node/scrub.py), the schema (tables.py).

A slice is one short transaction, so that no checkpoint waits for it, and it sees one commit. Pages
that the kernel has cached are read from there: the file can't be opened beside SQLite to have them
forgotten, as closing it would drop SQLite's locks.

A page that says too small a number of rows has lost the others, and no row's checksum says so.
What other rows say is held against what is there: a topic's publications begin where somebody
still reads, follow each other and end at its last id; a client has as many producers as it says;
of tables of which no other row says so, buckets of keys have as many rows as are counted.
"""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from cluster.store import tables
from cluster.store.tables import (
    CHECKED,
    COUNTED,
    ID_MAX,
    TIMED_TABLES,
    TOPIC_SHIFT,
    CorruptStore,
    is_row,
    timed,
)

WHOLE_ROWS: Final = 4_096  # in a slice, where nobody waits for it
WHOLE_BYTES: Final = 256 * 1024
BUSY_MS_MAX: Final = 100  # a slice that waits longer for a checkpoint is tried again

# By what a table's rows are in order; of the others that is the number of the row.
_KEYS: Final[Mapping[str, str]] = {
    "users": "name",
    "subscriptions": "topic, client",
    "settled": "recovery, topic",
    "groups": "topic, name",
    "leases": "topic, name, chunk",
    "workers": "topic, name, client_id",
    "placed": "topic, client",
    "patterns": "client, pattern",
    "brought": "topic, client",
}
# How the store finds rows of a table through an index, and the columns that are sought: an index
# that has lost an entry finds nothing, which no row's checksum says.
_FOUND_BY: Final[Mapping[str, tuple[str, tuple[str, ...]]]] = {
    "members": ("name = ?", ("name",)),
    "clients": ("client_id = ?", ("client_id",)),
    "topics": ("name = ?", ("name",)),
    "producers": ("client = ? AND topic = ?", ("client", "topic")),
    "acts": ("act_id = ? AND act_id != ''", ("act_id",)),  # it has those that have one
    "latest": ("topic = ? AND name = ? AND name != x''", ("topic", "name")),  # the same
}
_COLUMNS: Final = {table: columns.split(", ") for table, columns, _ in CHECKED}
_ENTRY: Final = _COLUMNS["publications"].index("entry")


@dataclass(frozen=True, slots=True)
class Place:
    """Where a slice begins: behind the row with that key, () before the first, of a table.

    `until`: publications of later entries are not read, None before the first slice: else a topic
    that is written faster than it is read back would keep a pass from what is behind it.
    """

    table: int = 0
    key: tuple[Any, ...] = ()
    until: int | None = None


@dataclass(frozen=True, slots=True)
class DamagedRow:
    """`row`: its key as text; "" where it is not one row's."""

    table: str
    row: str
    reason: str


@dataclass(frozen=True, slots=True)
class CheckedRows:
    """What was read. `after`: where the next slice begins, None behind the last row."""

    after: Place | None
    rows: int
    size_bytes: int
    damaged: tuple[DamagedRow, ...]


def check_slice(path: Path, place: Place, rows_max: int, bytes_max: int) -> CheckedRows:
    """Read and check rows of the database at `path` from `place` on.

    As many as are in `rows_max` and `bytes_max`, at least one. Raises sqlite3.Error for what
    passes: a lock, want of memory or of descriptors.
    """
    try:
        with closing(tables.connect(path, BUSY_MS_MAX)) as connection:
            connection.text_factory = _text
            return _SliceReader(path, connection).read(place, rows_max, bytes_max)
    except CorruptStore as error:
        reason = str(error.__cause__ or error)
    except UnicodeDecodeError as error:  # in the text of an error that SQLite quotes the schema in
        reason = str(error)
    except sqlite3.DatabaseError as error:
        if not _is_damage(error):
            raise
        reason = str(error)
    return CheckedRows(None, 0, 0, (DamagedRow("", "", f"{reason}; nothing behind is read"),))


def check_rows(path: Path, connection: sqlite3.Connection, read: Callable[[int], None]) -> None:
    """Raise CorruptStore, about `path`, unless every row is what was written, and is there.

    Reads everything: for a worker thread, of a database that nobody writes to meanwhile.
    `read(size_bytes)` is told how much, now and then. Raises sqlite3.Error.
    """
    connection.text_factory = _text
    after: Place | None = Place()
    while after is not None:
        try:
            part = _SliceReader(path, connection).read(after, WHOLE_ROWS, WHOLE_BYTES)
        except sqlite3.DatabaseError as error:
            if _is_damage(error):
                raise CorruptStore(path, str(error)) from error
            raise
        for row in part.damaged:
            raise CorruptStore(path, f"{row.reason}: row {row.row} of {row.table}")
        read(part.size_bytes)
        after = part.after


def _is_whole(crc: Any, values: tuple[Any, ...], blobs: tuple[Any, ...]) -> bool:
    return all(type(blob) is bytes for blob in blobs) and is_row(crc, values, b"".join(blobs))


def _is_damage(error: sqlite3.DatabaseError) -> bool:
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    return code in tables.CORRUPT or code == sqlite3.SQLITE_IOERR


def _text(data: bytes) -> str:
    """Read damaged text too: its checksum tells, and the rows behind it are read."""
    return data.decode(errors="replace")


class _SliceReader:
    """One slice's reading."""

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self._path, self._connection = path, connection
        self._rows = self._size_bytes = 0
        self._timed = frozenset[str]()
        self._damaged: list[DamagedRow] = []
        self._until = 0
        self._present = frozenset[str]()
        self._bucket: tuple[str, int] | None = None  # that was looked for last
        self._next: tuple[int, int] | None = None  # key and `before_bytes` of the next publication

    def read(self, place: Place, rows_max: int, bytes_max: int) -> CheckedRows:
        execute = self._connection.execute
        execute("BEGIN")
        # Of the state that is read: the level may be raised at any moment, which adds the column.
        self._timed = TIMED_TABLES if tables.has_times(self._connection) else frozenset()
        if place.until is None:
            place = replace(place, until=self._read_state())
        self._until = place.until or 0
        self._present = frozenset(name for (name,) in execute("SELECT name FROM sqlite_master"))
        after: Place | None = place
        while after is not None and self._rows < rows_max and self._size_bytes < bytes_max:
            if after.table == len(CHECKED):
                key = self._read_counts(after, rows_max)
                after = replace(after, key=key) if key else None
                continue
            table, following = CHECKED[after.table][0], Place(after.table + 1, (), place.until)
            goes_on = table in self._present or table not in tables.LATER_TABLES
            key = self._read_table(after, rows_max, bytes_max) if goes_on else None
            after = replace(after, key=key) if key else following
        execute("ROLLBACK")
        return CheckedRows(after, self._rows, self._size_bytes, tuple(self._damaged))

    def _read_state(self) -> int:
        """Return the entry that was applied last."""
        try:
            return tables.read_position(self._path, self._connection)[0]
        except CorruptStore:
            self._damage("state", (), "checksum")
            return sys.maxsize

    def _read_counts(self, place: Place, rows_max: int) -> tuple[Any, ...] | None:
        """Count the rows of buckets; return the last one's key, None if there are no more."""
        if "counts" not in self._present:
            return None
        behind = "WHERE (name, bucket) > (?, ?)" if place.key else ""
        sql = f"SELECT name, bucket, count FROM counts {behind} ORDER BY name, bucket"
        try:
            for name, bucket, due in self._connection.execute(sql, place.key):
                if name not in COUNTED:
                    self._damage("counts", (name, bucket), "it counts no table")
                    continue
                key, bits = COUNTED[name]
                bounds = bucket << bits, (bucket + 1 << bits) - 1
                counting = f"SELECT count(*) FROM {name} WHERE {key} BETWEEN ? AND ?"
                for (count,) in self._beside(name, bounds, counting, bounds):
                    self._rows += 1 + count
                    if count != due:
                        what = f"{due} rows are counted between these, of which {count} are there"
                        self._damage(name, bounds, what)
                if self._rows >= rows_max:
                    return name, bucket
        except sqlite3.DatabaseError as error:
            if not _is_damage(error):
                raise
            self._damage("counts", (), f"{error}; the rest of the table is not read")
        return None

    def _check_counted(self, table: str, key: tuple[Any, ...]) -> None:
        """See that a row is in a bucket that is counted."""
        bucket = table, key[0] >> COUNTED[table][1]
        if bucket != self._bucket and "counts" in self._present:
            self._bucket = bucket
            sql = "SELECT count(*) FROM counts WHERE name = ? AND bucket = ?"
            if self._beside("counts", bucket, sql, bucket) == [(0,)]:
                self._damage("counts", bucket, "it is missing")

    def _read_table(self, place: Place, rows_max: int, bytes_max: int) -> tuple[Any, ...] | None:
        """Read a table; return the key to go on behind, None if that is not needed."""
        table, columns, blobs = CHECKED[place.table]
        key_columns = _KEYS.get(table, "rowid")
        keys = key_columns.count(",") + 1
        marks = ", ".join("?" * keys)
        is_after = ">=" if table == "publications" else ">"  # from the one that the next follows
        behind = f"WHERE ({key_columns}) {is_after} ({marks})" if place.key else ""
        time = "timestamp_ms" if table in self._timed else "0"
        what = f"{key_columns}, crc, {time}, {columns}"
        sql = f"SELECT {what} FROM {table} {behind} ORDER BY {key_columns}"
        key = place.key
        try:
            for found in self._connection.execute(sql, place.key):
                key, (crc, at), row = found[:keys], found[keys : keys + 2], found[keys + 2 :]
                values, blob = timed((*row[: len(row) - blobs], at)), row[len(row) - blobs :]
                if key == place.key and table == "publications":
                    if _is_whole(crc, values, blob):
                        self._note_publication(values, sum(map(len, blob)))
                    continue
                is_whole = self._check(table, key, crc, values, blob)
                if table == "publications" and is_whole and row[_ENTRY] > self._until:
                    key = (key[0] | ID_MAX,)  # what follows in its topic is newer still
                    break
                if self._rows >= rows_max or self._size_bytes >= bytes_max:
                    break
            else:
                return None
        except sqlite3.DatabaseError as error:
            if not _is_damage(error):
                raise
            self._damage(table, (), f"{error}, behind {key}; the rest of the table is not read")
            return None
        return self._ascending(table, place.key, key)

    def _ascending(
        self, table: str, before: tuple[Any, ...], key: tuple[Any, ...]
    ) -> tuple[Any, ...] | None:
        """Return the key, None if going on behind it would go round."""
        is_alike = [type(each) for each in key] == [type(each) for each in before]
        if not before or (is_alike and key > before):
            return key
        self._damage(table, key, "the rows are not in order; the rest of the table is not read")
        return None

    def _check(
        self,
        table: str,
        key: tuple[Any, ...],
        crc: Any,
        values: tuple[Any, ...],
        blobs: tuple[Any, ...],
    ) -> bool:
        """Note what is wrong with a row; return whether it is what was written."""
        self._rows += 1
        size_bytes = sum(len(blob) for blob in blobs if type(blob) is bytes)
        self._size_bytes += size_bytes + sum(len(each) for each in values if type(each) is str)
        if not _is_whole(crc, values, blobs):
            self._damage(table, key, "checksum")
            self._next = None
            return False
        if table in _FOUND_BY:
            self._look_up(table, key, values)
        if table in COUNTED:
            self._check_counted(table, key)
        if table == "clients":
            self._check_producers(key, values)
        elif table == "topics":
            self._check_topic(key, values)
        elif table == "publications":
            self._check_publication(key, values, size_bytes)
        return True

    # --- what is missing ------------------------------------------------------------------------

    def _check_producers(self, key: tuple[Any, ...], values: tuple[Any, ...]) -> None:
        """Count a client's producers: one that is not there would take everything as new."""
        due = values[_COLUMNS["clients"].index("producers")]
        # The condition has each row looked up, not only its entry in the index.
        sql = "SELECT count(*) FROM producers WHERE client = ? AND typeof(counter) != ''"
        for (count,) in self._beside("producers", key, sql, key):
            self._rows += count
            if count != due:
                self._damage("producers", key, f"this client has {due}, of which {count} are there")

    def _check_topic(self, key: tuple[Any, ...], values: tuple[Any, ...]) -> None:
        """See that a topic's publications begin where somebody reads, and end at its last id."""
        number, _, last_id, is_active, *_ = values
        if not is_active:
            return
        dead_id = self._dead_id(number)
        if dead_id is None or dead_id >= last_id:
            return
        first_id, bounds = dead_id + 1, (number << TOPIC_SHIFT, number << TOPIC_SHIFT | ID_MAX)
        oldest, newest = (
            self._whole("publications", f"key BETWEEN ? AND ? ORDER BY key {order} LIMIT 1", bounds)
            for order in ("ASC", "DESC")
        )
        if oldest is None or newest is None:
            return
        begin = oldest[0][0] & ID_MAX if oldest else last_id + 1
        end = (newest[0][0] & ID_MAX) + newest[0][3] if newest else last_id + 1
        if begin > first_id:
            self._missing(key, f"of topic {number}", first_id, begin)
        elif end <= last_id:
            self._missing(key, f"of topic {number}", end, last_id + 1)

    def _dead_id(self, number: int) -> int | None:
        """Return up to where nothing is read of an active topic's rows of publications.

        As in `Topic.dead_id`; None if what that follows from is damaged.
        """
        kept = self._whole("policies", "topic = ?", (number,))
        if kept == []:
            kept = self._whole("expiries", "topic = ?", (number,))
        read: list[int] = []
        for table in ("subscriptions", "groups"):
            least = self._whole(table, "topic = ? ORDER BY cursor LIMIT 1", (number,))
            if least is None:
                return None
            read += [row[_COLUMNS[table].index("cursor")] for row in least]
        purged = self._whole("purged", "topic = ?", (number,))
        compacted = self._whole("compactions", "topic = ?", (number,))
        if kept is None or purged is None or compacted is None or not (kept or read):
            return None
        floors = [row[1] for row in kept] or [min(read), *(row[1] for row in purged)]
        dead_id: int = max(*floors, *(row[1] for row in compacted), 0)
        return dead_id

    def _whole(
        self, table: str, where: str, arguments: tuple[int, ...]
    ) -> list[tuple[Any, ...]] | None:
        """Return rows of another table without their blobs; None if one is damaged."""
        _, columns, blobs = next(each for each in CHECKED if each[0] == table)
        time = "timestamp_ms" if table in self._timed else "0"
        sql = f"SELECT crc, {time}, {columns} FROM {table} WHERE {where}"
        found = []
        for crc, at, *row in self._beside(table, arguments, sql, arguments):
            values, blob = timed((*row[: len(row) - blobs], at)), tuple(row[len(row) - blobs :])
            if not _is_whole(crc, values, blob):
                return None  # its own reading says so
            self._size_bytes += sum(map(len, blob))
            found.append(values)
        return found

    def _check_publication(
        self, key: tuple[Any, ...], values: tuple[Any, ...], size_bytes: int
    ) -> None:
        """See that a row follows the one before it in its topic."""
        place, _, before_bytes, *_ = values
        due = self._next
        is_same = due is not None and due[0] >> TOPIC_SHIFT == place >> TOPIC_SHIFT
        if due is not None and is_same and due != (place, before_bytes):
            self._missing(key, "before this row", due[0] & ID_MAX, place & ID_MAX)
        self._note_publication(values, size_bytes)

    def _note_publication(self, values: tuple[Any, ...], size_bytes: int) -> None:
        place, _, before_bytes, count, *_ = values
        self._next = place + count, before_bytes + size_bytes

    def _missing(self, key: tuple[Any, ...], where: str, first_id: int, behind_id: int) -> None:
        what = f"{where} publications {first_id} to {behind_id - 1} are missing"
        self._damage("publications", key, what)

    def _beside(
        self, table: str, key: tuple[Any, ...], sql: str, arguments: tuple[Any, ...]
    ) -> list[Any]:
        """Return what another table has; its damage is not that of the table that is read."""
        if table not in self._present:
            return []  # its own reading says so
        try:
            return self._connection.execute(sql, arguments).fetchall()
        except sqlite3.DatabaseError as error:
            if not _is_damage(error):
                raise
            self._damage(table, key, str(error))
            return []

    # --- indexes --------------------------------------------------------------------------------

    def _look_up(self, table: str, key: tuple[Any, ...], values: tuple[Any, ...]) -> None:
        where, columns = _FOUND_BY[table]
        sought = [values[_COLUMNS[table].index(column)] for column in columns]
        found = self._connection.execute(f"SELECT rowid FROM {table} WHERE {where}", sought)
        if all(each not in ("", b"") for each in sought) and found.fetchall() != [key]:
            self._damage(table, key, "its index does not find it")

    def _damage(self, table: str, key: tuple[Any, ...], reason: str) -> None:
        self._damaged.append(DamagedRow(table, ", ".join(map(str, key)), reason))
