"""Reading back the store's rows, slice by slice, each against its checksum and its indexes.

What lives here: the reading of a slice, for a worker thread, with a connection of its own. What
must not: when it is read and what follows from damage (node/scrub.py), the schema (tables.py).

A slice is one short transaction, so that no checkpoint waits for it, and it sees one commit. Pages
that the kernel has cached are read from there: the file can't be opened beside SQLite to have them
forgotten, as closing it would drop SQLite's locks.
"""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from cluster.store import tables
from cluster.store.tables import CHECKED, TIMED_TABLES, CorruptStore, row_crc, timed

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
            return _Reader(path, connection).read(place, rows_max, bytes_max)
    except CorruptStore as error:
        reason = str(error.__cause__ or error)
    except UnicodeDecodeError as error:  # in the text of an error that SQLite quotes the schema in
        reason = str(error)
    except sqlite3.DatabaseError as error:
        if not _is_damage(error):
            raise
        reason = str(error)
    return CheckedRows(None, 0, 0, (DamagedRow("", "", f"{reason}; nothing behind is read"),))


def _is_damage(error: sqlite3.DatabaseError) -> bool:
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    return code in tables.CORRUPT or code == sqlite3.SQLITE_IOERR


def _text(data: bytes) -> str:
    """Read damaged text too: its checksum tells, and the rows behind it are read."""
    return data.decode(errors="replace")


class _Reader:
    """One slice's reading."""

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self._path, self._connection = path, connection
        self._rows = self._size_bytes = 0
        self._timed = frozenset[str]()
        self._damaged: list[DamagedRow] = []
        self._until = 0

    def read(self, place: Place, rows_max: int, bytes_max: int) -> CheckedRows:
        execute = self._connection.execute
        execute("BEGIN")
        # Of the state that is read: the level may be raised at any moment, which adds the column.
        self._timed = TIMED_TABLES if tables.has_times(self._connection) else frozenset()
        if place.until is None:
            place = replace(place, until=self._read_state())
        self._until = place.until or 0
        present = {name for (name,) in execute("SELECT name FROM sqlite_master")}
        after: Place | None = place
        while after is not None and self._rows < rows_max and self._size_bytes < bytes_max:
            table, following = CHECKED[after.table][0], Place(after.table + 1, (), place.until)
            goes_on = table in present or table not in tables.LATER_TABLES
            key = self._read_table(after, rows_max, bytes_max) if goes_on else None
            after = replace(after, key=key) if key else following
            if after.table == len(CHECKED):
                after = None
        execute("ROLLBACK")
        return CheckedRows(after, self._rows, self._size_bytes, tuple(self._damaged))

    def _read_state(self) -> int:
        """Return the entry that was applied last."""
        try:
            return tables.read_position(self._path, self._connection)[0]
        except CorruptStore:
            self._damage("state", (), "checksum")
            return sys.maxsize

    def _read_table(self, place: Place, rows_max: int, bytes_max: int) -> tuple[Any, ...] | None:
        """Read a table; return the key to go on behind, None if that is not needed."""
        table, columns, blobs = CHECKED[place.table]
        key_columns = _KEYS.get(table, "rowid")
        keys = key_columns.count(",") + 1
        marks = ", ".join("?" * keys)
        behind = f"WHERE ({key_columns}) > ({marks})" if place.key else ""
        time = "timestamp_ms" if table in self._timed else "0"
        what = f"{key_columns}, crc, {time}, {columns}"
        sql = f"SELECT {what} FROM {table} {behind} ORDER BY {key_columns}"
        key = place.key
        try:
            for found in self._connection.execute(sql, place.key):
                key, (crc, at), row = found[:keys], found[keys : keys + 2], found[keys + 2 :]
                values = timed((*row[: len(row) - blobs], at))
                is_whole = self._check(table, key, crc, values, row[len(row) - blobs :])
                if table == "publications" and is_whole and row[_ENTRY] > self._until:
                    key = (key[0] | tables.ID_MAX,)  # what follows in its topic is newer still
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
        is_whole = all(type(blob) is bytes for blob in blobs)
        blob = b"".join(blobs) if is_whole else b""
        self._size_bytes += len(blob) + sum(len(each) for each in values if type(each) is str)
        if not is_whole or crc != row_crc(values, blob):
            self._damage(table, key, "checksum")
            return False
        if table in _FOUND_BY:
            self._look_up(table, key, values)
        return True

    def _look_up(self, table: str, key: tuple[Any, ...], values: tuple[Any, ...]) -> None:
        where, columns = _FOUND_BY[table]
        sought = [values[_COLUMNS[table].index(column)] for column in columns]
        found = self._connection.execute(f"SELECT rowid FROM {table} WHERE {where}", sought)
        if all(each not in ("", b"") for each in sought) and found.fetchall() != [key]:
            self._damage(table, key, "its index does not find it")

    def _damage(self, table: str, key: tuple[Any, ...], reason: str) -> None:
        self._damaged.append(DamagedRow(table, ", ".join(map(str, key)), reason))
