"""Damage of a single row in a node's database, whose place is known.

What lives here: which columns a bit is flipped in, and whether a row is what was written. What must
not: whose database it is and when that happens (operator.py). Columns by which rows are found stay:
of a damaged index anything may follow (`StoredFiles.damage` flips any bit of the file).
"""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Any, Final

from cluster.store.tables import CHECKED, TIMED_TABLES, Database, row_crc, timed

Row = tuple[str, str]  # a table, and the row's key as text

# By table: its key, and the columns that a bit is flipped in.
_FLIPPED: Final[Mapping[str, tuple[str, tuple[str, ...]]]] = {
    "publications": ("key", ("entry", "before_bytes", "count", "lengths", "data")),
    "clients": ("number", ("epoch", "sequence", "nonce")),
    "topics": ("number", ("last_id", "added_bytes")),
    "subscriptions": ("topic, client", ("cursor",)),
    "producers": ("number", ("counter", "puts", "recent")),
    "earlier_puts": ("slot", ("puts",)),
    "owners": ("client", ("owner",)),
    "users": ("name", ("rights",)),
    "heard": ("client", ("at",)),
    "acts": ("number", ("text",)),
    "groups": ("topic, name", ("settings", "head", "cursor", "token")),
    "leases": ("topic, name, chunk", ("runs",)),
    "workers": ("topic, name, client_id", ("record",)),
    "policies": ("topic", ("floor_id", "text")),
    "placed": ("topic, client", ("at",)),
    "patterns": ("client, pattern", ("record",)),
}
_INTEGER_BITS: Final = 20


def flip(database: Database, rng: Random) -> Row | None:
    """Flip a bit of a row; return which. None if there is none, or the writer is at work."""
    tables = [name for name in _FLIPPED if database.query(f"SELECT 1 FROM {name} LIMIT 1")]
    if not tables or database.in_transaction:
        return None
    table = rng.choice(["publications", *tables]) if "publications" in tables else tables[0]
    key_columns, columns = _FLIPPED[table]
    keys = database.query(f"SELECT {key_columns} FROM {table} ORDER BY {key_columns}")
    key, column = rng.choice(keys), rng.choice(columns)
    where = _where(key_columns)
    [(value,)] = database.query(f"SELECT {column} FROM {table} WHERE {where}", key)
    if value in ("", b""):
        return None
    database.write(f"UPDATE {table} SET {column} = ? WHERE {where}", [(_flipped(value, rng), *key)])
    database.commit()
    return table, ", ".join(map(str, key))


def _where(key_columns: str) -> str:
    return " AND ".join(f"{column} = ?" for column in key_columns.split(", "))


def _flipped(value: Any, rng: Random) -> Any:
    if type(value) is int:
        return value ^ 1 << rng.randrange(_INTEGER_BITS)
    at = rng.randrange(len(value))
    if type(value) is str:
        return value[:at] + chr(ord(value[at]) ^ 1) + value[at + 1 :]
    return value[:at] + bytes([value[at] ^ 1 << rng.randrange(8)]) + value[at + 1 :]


def is_damaged(database: Database, row: Row) -> bool:
    """Return whether the row is there, and not as it was written."""
    table, key = row
    key_columns = _FLIPPED[table][0]
    _, columns, blobs = next(each for each in CHECKED if each[0] == table)
    time = "timestamp_ms" if database.has_times and table in TIMED_TABLES else "0"
    sql = f"SELECT crc, {time}, {columns} FROM {table} WHERE {_where(key_columns)}"
    for crc, at, *values in database.query(sql, key.split(", ")):
        plain, blob = tuple(values[: len(values) - blobs]), b"".join(values[len(values) - blobs :])
        return bool(crc != row_crc(timed((*plain, at)), blob))
    return False
