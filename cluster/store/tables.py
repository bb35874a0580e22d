"""The tables of a node's database and the connection under the store.

What lives here: the schema, opening and checking a database file, one write transaction at a time,
what makes committed transactions durable, and the digest of the logical state. What must not: the
rules of the broker (`cluster/store/store.py`), clocks, randomness, sockets.

SQLite in WAL mode with `synchronous=NORMAL`: a commit writes, it does not fsync; the Raft journal
is what makes an entry durable. docs/decisions/0004-store.md has the reasoning.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import sqlite3
import unicodedata
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar
from urllib.parse import quote

from cluster.log.files import DISK
from cluster.wire.levels import (
    LEVEL_FIRST,
    LEVEL_OF_ACTS,
    LEVEL_OF_DELAY,
    LEVEL_OF_EXPIRY,
    LEVEL_OF_GROUPS,
    LEVEL_OF_IDLE,
    LEVEL_OF_NAMES,
    LEVEL_OF_PATTERNS,
    LEVEL_OF_PROPERTIES,
    LEVEL_OF_TOPICS,
    LEVEL_OF_USERS,
)

APPLICATION_ID: Final = 0x464C4F54  # "FLOT"
PAGE_BYTES: Final = 4096
CACHE_KIB: Final = 32 * 1024  # page cache of the writer; the rest of the backlog is the kernel's
WAL_BYTES_MAX: Final = 64 * 1024 * 1024  # over this a checkpoint may hold up the writer for once
WAL_BYTES_KEPT: Final = 16 * 1024 * 1024  # a WAL that has grown over this is cut back to it
WRITER_BUSY_MS_MAX: Final = 10_000  # the worker's last bit of a checkpoint holds the write lock
CHECKPOINT_BUSY_MS_MAX: Final = 100  # how long a checkpoint may wait, the writer behind it

TOPIC_SHIFT: Final = 40  # publications.key = topic number << 40 | id of the row's first publication
ID_MAX: Final = 2**TOPIC_SHIFT - 1  # 120 days at 100,000 publications a second to one topic
TOPIC_NUMBER_MAX: Final = 2 ** (63 - TOPIC_SHIFT) - 1  # topic names ever used: 8 million

_SCHEMA: Final = """
CREATE TABLE state(one INTEGER PRIMARY KEY CHECK(one = 1), applied_index INTEGER NOT NULL,
    applied_term INTEGER NOT NULL, crc INTEGER NOT NULL);
CREATE TABLE members(name TEXT PRIMARY KEY, incarnation TEXT NOT NULL, crc INTEGER NOT NULL);
CREATE TABLE clients(number INTEGER PRIMARY KEY, client_id TEXT NOT NULL UNIQUE,
    epoch INTEGER NOT NULL, sequence INTEGER NOT NULL, nonce TEXT NOT NULL,
    producers INTEGER NOT NULL, names_bytes INTEGER NOT NULL, crc INTEGER NOT NULL);
CREATE TABLE topics(number INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE,
    last_id INTEGER NOT NULL, active INTEGER NOT NULL, added_bytes INTEGER NOT NULL,
    crc INTEGER NOT NULL);
CREATE TABLE subscriptions(topic INTEGER NOT NULL, client INTEGER NOT NULL,
    cursor INTEGER NOT NULL, crc INTEGER NOT NULL, PRIMARY KEY(topic, client)) WITHOUT ROWID;
CREATE TABLE producers(number INTEGER PRIMARY KEY, client INTEGER NOT NULL, topic TEXT NOT NULL,
    counter INTEGER NOT NULL, puts INTEGER NOT NULL, recent BLOB NOT NULL,
    crc INTEGER NOT NULL, UNIQUE(client, topic));
CREATE TABLE earlier_puts(slot INTEGER PRIMARY KEY, puts BLOB NOT NULL, crc INTEGER NOT NULL);
CREATE TABLE publications(key INTEGER PRIMARY KEY, entry INTEGER NOT NULL,
    before_bytes INTEGER NOT NULL, count INTEGER NOT NULL, crc INTEGER NOT NULL,
    lengths BLOB NOT NULL, data BLOB NOT NULL);
"""

# Only in the database of a cluster that was recovered (docs/recovery.md).
_RECOVERIES_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS recoveries(number INTEGER PRIMARY KEY, name TEXT NOT NULL,
    crc INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS settled(recovery INTEGER NOT NULL, topic TEXT NOT NULL,
    last_id INTEGER NOT NULL, crc INTEGER NOT NULL, PRIMARY KEY(recovery, topic)) WITHOUT ROWID;
"""
# Made in the databases of older versions, too, which would go on with it (decision 0014). `owners`:
# whose a client is; one without a row is nobody's yet.
_USERS_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS users(name TEXT PRIMARY KEY, rights TEXT NOT NULL,
    crc INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS owners(client INTEGER PRIMARY KEY, owner TEXT NOT NULL,
    crc INTEGER NOT NULL);
"""
# Also in the databases of older versions, which go on without. `running`: the log's time (idle.py)
# and the digest (audit.py), which change with each entry; `heard`: when each client was;
# `forgotten`: clients whose producers' rows are to be collected.
_IDLE_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS running(one INTEGER PRIMARY KEY CHECK(one = 1), log_ms INTEGER NOT NULL,
    term INTEGER NOT NULL, stamp_ms INTEGER NOT NULL, forgotten INTEGER NOT NULL,
    digest TEXT NOT NULL, client TEXT NOT NULL, topic TEXT NOT NULL, crc INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS heard(client INTEGER PRIMARY KEY, at INTEGER NOT NULL,
    crc INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS forgotten(client INTEGER PRIMARY KEY);
"""
# As well. `purged`: up to which id topics were purged; `acts`: what administrators have done.
_ACTS_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS purged(topic INTEGER PRIMARY KEY, last_id INTEGER NOT NULL,
    crc INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS acts(number INTEGER PRIMARY KEY, entry INTEGER NOT NULL,
    act_id TEXT NOT NULL, text TEXT NOT NULL, crc INTEGER NOT NULL);
CREATE UNIQUE INDEX IF NOT EXISTS acts_by_id ON acts(act_id) WHERE act_id != '';
"""
# Columns that a database gets when its cluster's level brings them: builds that could still go on
# with it before would not find their tables. `publications.timestamp_ms` 0: of a row of before.
_TIMES: Final = (
    "ALTER TABLE publications ADD COLUMN timestamp_ms INTEGER NOT NULL DEFAULT 0",
    "ALTER TABLE running ADD COLUMN timestamp_ms INTEGER NOT NULL DEFAULT 0",
)
_RUNNING: Final = "log_ms, term, stamp_ms, forgotten, digest, client, topic"
_RUNNING_TIMED: Final = _RUNNING + ", timestamp_ms"
# As well (decision 0022). `leases`: of 1,024 ids each what is open, as JSON; `workers`: the last
# take of each client.
_GROUPS_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS groups(topic INTEGER NOT NULL, name TEXT NOT NULL,
    settings TEXT NOT NULL, head INTEGER NOT NULL, cursor INTEGER NOT NULL, token INTEGER NOT NULL,
    crc INTEGER NOT NULL, PRIMARY KEY(topic, name)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS leases(topic INTEGER NOT NULL, name TEXT NOT NULL,
    chunk INTEGER NOT NULL, runs TEXT NOT NULL, crc INTEGER NOT NULL,
    PRIMARY KEY(topic, name, chunk)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS workers(topic INTEGER NOT NULL, name TEXT NOT NULL,
    client_id TEXT NOT NULL, record TEXT NOT NULL, crc INTEGER NOT NULL,
    PRIMARY KEY(topic, name, client_id)) WITHOUT ROWID;
"""
# As well. `policies`: what topics keep (retention.py), up to where they keep nothing any more;
# `placed`: the entry that had a subscription begin somewhere else than at the end, or moved it.
_TOPICS_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS policies(topic INTEGER PRIMARY KEY, floor_id INTEGER NOT NULL,
    text TEXT NOT NULL, crc INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS placed(topic INTEGER NOT NULL, client INTEGER NOT NULL,
    at INTEGER NOT NULL, crc INTEGER NOT NULL, PRIMARY KEY(topic, client)) WITHOUT ROWID;
"""
# As well (decision 0024). `patterns`: those that clients subscribe to, as JSON what is known of
# each; `brought`: subscriptions that stand by patterns alone.
_PATTERNS_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS patterns(client INTEGER NOT NULL, pattern TEXT NOT NULL,
    record TEXT NOT NULL, crc INTEGER NOT NULL, PRIMARY KEY(client, pattern)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS brought(topic INTEGER NOT NULL, client INTEGER NOT NULL,
    crc INTEGER NOT NULL, PRIMARY KEY(topic, client)) WITHOUT ROWID;
"""
# As well (decision 0027). `expiries`: up to where a topic has expired, and when the rest will;
# `stamps`: the log's time of rows of `publications` in which something expires.
_EXPIRY_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS expiries(topic INTEGER PRIMARY KEY, floor_id INTEGER NOT NULL,
    text TEXT NOT NULL, crc INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS stamps(key INTEGER PRIMARY KEY, log_ms INTEGER NOT NULL,
    crc INTEGER NOT NULL);
"""
# As well (decision 0029). `delayed`: publications that wait, by topic and place, as in
# `publications.key`; `lanes`: the last place of each topic, and up to where they went with it.
_DELAY_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS lanes(topic INTEGER PRIMARY KEY, last_place INTEGER NOT NULL,
    dropped_place INTEGER NOT NULL, crc INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS delayed(key INTEGER PRIMARY KEY, due_ms INTEGER NOT NULL,
    count INTEGER NOT NULL, principal TEXT NOT NULL, size_bytes INTEGER NOT NULL,
    crc INTEGER NOT NULL, lengths BLOB NOT NULL, data BLOB NOT NULL);
CREATE INDEX IF NOT EXISTS delayed_by_due ON delayed(due_ms, key);
"""
# As well: the highest epoch of clients that were forgotten and may be made anew.
_NAMES_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS gone_epochs(one INTEGER PRIMARY KEY CHECK(one = 1),
    epoch INTEGER NOT NULL, crc INTEGER NOT NULL);
"""
# Only in the database of a cluster that has compacted something (decision 0028). `latest`: what
# stays of that, by topic and id, as in `publications.key`, found by its key as well; `links`: of
# each which one stands before it; `compactions`: how far topics are compacted, and what stays.
_COMPACTION_SCHEMA: Final = """
CREATE TABLE latest(key INTEGER PRIMARY KEY, topic INTEGER NOT NULL,
    name BLOB NOT NULL, entry INTEGER NOT NULL, timestamp_ms INTEGER NOT NULL,
    over_ms INTEGER NOT NULL, crc INTEGER NOT NULL, lengths BLOB NOT NULL, data BLOB NOT NULL);
CREATE UNIQUE INDEX latest_by_name ON latest(topic, name) WHERE name != x'';
CREATE TABLE links(key INTEGER PRIMARY KEY, before_id INTEGER NOT NULL,
    size_bytes INTEGER NOT NULL, crc INTEGER NOT NULL);
CREATE TABLE compactions(topic INTEGER PRIMARY KEY, compacted_id INTEGER NOT NULL,
    end_bytes INTEGER NOT NULL, count INTEGER NOT NULL, size_bytes INTEGER NOT NULL,
    crc INTEGER NOT NULL);
"""
# As well (decision 0023). How many rows there are, by table and bucket of keys, of those tables of
# whose rows no other row says that they are there: a page can lose some without an error. SQLite
# counts, so that older versions, which know nothing of it, count as well.
COUNTED: Final[Mapping[str, tuple[str, int]]] = {
    "clients": ("number", 8),  # the key, and how many of its bits are one bucket
    "owners": ("client", 8),
    "heard": ("client", 8),
    "acts": ("number", 8),
    "purged": ("topic", 8),
    "stamps": ("key", 12),
    "delayed": ("key", 12),
}
_COUNTS_SCHEMA: Final = """
CREATE TABLE counts(name TEXT NOT NULL, bucket INTEGER NOT NULL, count INTEGER NOT NULL,
    PRIMARY KEY(name, bucket)) WITHOUT ROWID;
"""
# A row that takes another one's place, or is changed, is none more. No statement here can meet a
# conflict: it would be resolved as the statement says that fires the trigger.
_COUNT_SCHEMA: Final = """
INSERT INTO counts SELECT '{name}', {key} >> {bits}, count(*) FROM {name} GROUP BY 2;
CREATE TRIGGER {name}_come BEFORE INSERT ON {name}
    WHEN NOT EXISTS(SELECT 1 FROM {name} WHERE {key} = NEW.{key}) BEGIN
    INSERT INTO counts SELECT '{name}', NEW.{key} >> {bits}, 0 WHERE NOT EXISTS(
        SELECT 1 FROM counts WHERE name = '{name}' AND bucket = NEW.{key} >> {bits});
    UPDATE counts SET count = count + 1 WHERE name = '{name}' AND bucket = NEW.{key} >> {bits};
END;
CREATE TRIGGER {name}_go AFTER DELETE ON {name} BEGIN
    UPDATE counts SET count = count - 1 WHERE name = '{name}' AND bucket = OLD.{key} >> {bits};
    DELETE FROM counts WHERE name = '{name}' AND bucket = OLD.{key} >> {bits} AND count = 0;
END;
"""
RECOVERIES_KEPT: Final = 4  # with their topics' ids; of earlier ones the name alone

_LATER_SCHEMA: Final = "".join(
    (
        *(_USERS_SCHEMA, _IDLE_SCHEMA, _ACTS_SCHEMA, _GROUPS_SCHEMA),
        *(_TOPICS_SCHEMA, _PATTERNS_SCHEMA, _EXPIRY_SCHEMA),
        *(_DELAY_SCHEMA, _NAMES_SCHEMA),
    )
)

# Of these the store has everything in memory.
_LOADED: Final = (
    *("state", "members", "users", "topics", "subscriptions", "placed", "patterns", "brought"),
    *("policies", "expiries", "groups", "leases", "workers", "lanes", "running", "gone_epochs"),
)
_WRITER_PRAGMAS: Final = (
    f"cache_size=-{CACHE_KIB}",
    "wal_autocheckpoint=0",  # the worker does it
    f"journal_size_limit={WAL_BYTES_KEPT}",
    "secure_delete=OFF",  # a distribution's build may zero deleted pages: cost only
)
REMADE: Final = ".remade"  # the suffix of a store that is made anew, until it is whole
_INCREMENTAL: Final = 2  # PRAGMA auto_vacuum: free pages are given back when asked for
# Our SQL is the same in every process and keeps every constraint. So where SQLite can't make sense
# of it the database's description of its tables is damaged, where it breaks a constraint an index.
CORRUPT: Final = (
    sqlite3.SQLITE_CORRUPT,
    sqlite3.SQLITE_NOTADB,
    sqlite3.SQLITE_FORMAT,
    sqlite3.SQLITE_ERROR,
    sqlite3.SQLITE_CONSTRAINT,
)
# Full, failing, or not ours to write: no defect, and nothing is damaged.
_OF_THE_DISK: Final = (
    *(sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN),
    *(sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM),
)


@dataclass(frozen=True)
class RecoveryRow:
    """One recovery of the cluster: its name, and each topic's last id that was certainly kept."""

    name: str
    settled: Mapping[str, int]


class CorruptStore(Exception):
    """The database is damaged or not ours: the node must stop and be rebuilt from the others."""

    def __init__(self, path: Path, what: str) -> None:
        super().__init__(
            f"{path}: {what}. This node's state can't be trusted. To rebuild it, move its data "
            f"directory away and start it again: it is readmitted and copies the others' state."
        )
        self.path = path


class Numbered(Protocol):
    """What has a number on the disk."""

    number: int


_Kept = TypeVar("_Kept", bound=Numbered)


def in_order(changed: Iterable[_Kept]) -> list[_Kept]:
    """Return them by number: the order of a set of objects differs from run to run.

    Rows stand in the file in the order in which they are written. Without this a simulated power
    loss would leave something else in each run of a seed.
    """
    return sorted(changed, key=lambda each: each.number)


class Database:
    """The writer's connection: reads at once, writes in one open transaction until `commit`."""

    def __init__(self, path: Path, members: Mapping[str, str]) -> None:
        """Open `path`; made with the founding `members`, if there are any. Raises CorruptStore."""
        self.path = path
        if not path.exists():
            if not members:
                raise CorruptStore(path, "the file is missing")
            _create(path, members)
        DISK.fsync_directory(path.parent)  # a killed process may have left the name unsynced
        # Nor may what a checkpoint has written into the database and not synced pass for durable,
        # where the log that it came from is gone by a failed sync.
        _forget_cached(path)
        _forget_cached(side_file(path, "-wal"))
        self._connection = connect(path, WRITER_BUSY_MS_MAX)
        try:
            check_format(path, self._connection)
            self._level = read_level(path, self._connection)
            self._make_later_tables()
            self.has_latest = _has_table(self._connection, "compactions")
            self._check_loaded()
            self.has_times = has_times(self._connection)
            for pragma in _WRITER_PRAGMAS:
                self._connection.execute(f"PRAGMA {pragma}")
            self._shrinks = is_shrinkable(self._connection)
        except BaseException:
            self._connection.close()
            raise

    def _make_later_tables(self) -> None:
        try:
            self._connection.executescript(_LATER_SCHEMA)
            if not _has_table(self._connection, "counts"):
                counts = (
                    _COUNT_SCHEMA.format(name=name, key=key, bits=bits)
                    for name, (key, bits) in COUNTED.items()
                )
                script = "".join((_COUNTS_SCHEMA, *counts))
                self._connection.executescript(f"BEGIN IMMEDIATE;{script}COMMIT")
        except sqlite3.DatabaseError as error:
            _raise_corrupt(self.path, error)
            raise

    def _check_loaded(self) -> None:
        """Raise CorruptStore if a page of what is read whole at the start has lost rows.

        No row's checksum says so, and nobody asks for a subscription that is not there. Takes a
        tenth of what the reading does. Rows of publications and producers that are gone are missed
        by who reads them, and by the scrub (rows.py); those of `links` are counted.
        """
        for table in (*_LOADED, *(("compactions",) if self.has_latest else ())):
            [said, *_] = self.query(f"PRAGMA quick_check('{table}')")
            if said != ("ok",):
                raise CorruptStore(self.path, f"table {table}: {' '.join(said[0].split())}")

    def query(self, sql: str, arguments: Sequence[Any] = ()) -> list[Any]:
        """Return all rows. They are fetched at once: an open cursor would hold up checkpoints."""
        try:
            return self._connection.execute(sql, arguments).fetchall()
        except sqlite3.DatabaseError as error:
            _raise_corrupt(self.path, error)
            raise

    def stream(self, sql: str, arguments: Sequence[Any] = ()) -> Iterator[Any]:
        """Yield all rows, one in memory at a time. A checkpoint waits until the last was taken."""
        try:
            yield from self._connection.execute(sql, arguments)
        except sqlite3.DatabaseError as error:
            _raise_corrupt(self.path, error)
            raise

    def write(self, sql: str, rows: Sequence[Sequence[Any]]) -> None:
        """Run the statement for each row in turn, in the open transaction (opened if need be)."""
        try:
            if not self._connection.in_transaction:
                self._connection.execute("BEGIN IMMEDIATE")
            self._connection.executemany(sql, rows)
        except sqlite3.DatabaseError as error:
            _raise_corrupt(self.path, error)
            raise

    def verify(self, crc: int, row: tuple[int | str | bytes, ...], blob: bytes = b"") -> None:
        """Raise CorruptStore unless `crc` is the checksum that the row was written with."""
        if not is_row(crc, row, blob):
            raise CorruptStore(self.path, f"checksum of the row {row}")

    def make_times(self) -> None:
        """Add what LEVEL_OF_PROPERTIES has more, in the open transaction, unless it is there."""
        if not self.has_times:
            for sql in _TIMES:
                self.write(sql, [()])
            self.has_times = True

    def make_latest(self) -> None:
        """Make the tables of what is compacted, in the open transaction, unless they are there."""
        if not self.has_latest:
            for sql in _COMPACTION_SCHEMA.strip().rstrip(";").split(";"):
                self.write(sql, [()])
            self.has_latest = True

    def position(self) -> tuple[int, int]:
        """Return the applied (index, term) as committed last."""
        return read_position(self.path, self._connection)

    def level(self) -> int:
        """Return the cluster's feature level as written last."""
        return self._level

    def write_state(self, index: int, term: int, level: int) -> None:
        """Write the applied position and the level, in the open transaction."""
        sql = "UPDATE state SET applied_index = ?, applied_term = ?, crc = ?"
        self.write(sql, [(index, term, _state_crc(index, term, level))])
        if level != self._level:
            self._connection.execute(f"PRAGMA user_version={level}")
            self._level = level

    def running(self) -> tuple[Any, ...] | None:
        """Return what `write_running` has written, None if it never has.

        A database without times has 0 for the last one.
        """
        columns = _RUNNING_TIMED if self.has_times else _RUNNING
        rows = self.query(f"SELECT crc, {columns} FROM running")
        if not rows:
            return None
        crc, *row = rows[0]
        if not self.has_times:
            row.append(0)
        self.verify(crc, timed(tuple(row)))
        return tuple(row)

    def write_running(self, row: tuple[int | str, ...]) -> None:
        """Write what changes with each entry, in the open transaction; `timestamp_ms` is last."""
        columns = _RUNNING_TIMED if self.has_times else _RUNNING
        kept = row if self.has_times else row[:-1]
        places = ", ?" * (len(kept) + 1)
        sql = f"INSERT OR REPLACE INTO running(one, {columns}, crc) VALUES(1{places})"
        self.write(sql, [(*kept, row_crc(timed(row)))])

    def members(self) -> dict[str, str]:
        """Return {name: incarnation} as committed last."""
        return read_members(self.path, self._connection)

    def size_bytes(self) -> int:
        """Return how long the file will be once the WAL is in it."""
        return PAGE_BYTES * int(self.query("PRAGMA page_count")[0][0])

    def free_bytes(self) -> int:
        """Return how much of that is free pages."""
        return PAGE_BYTES * int(self.query("PRAGMA freelist_count")[0][0])

    def room_bytes(self) -> int:
        """Return how much the file can take before it has to grow.

        That is free pages, and what a checkpoint has still to cut off. Negative: so much of what
        stands in the WAL has no place in the file yet, so the next checkpoint makes it longer.
        """
        used_bytes = self.size_bytes() - self.free_bytes()
        return os.stat(self.path).st_size - used_bytes

    def give_back(self, kept_bytes: int, enough: Callable[[], bool]) -> bool:
        """Take free pages out of the file in the open transaction, one at a time until `enough()`.

        Returns whether there is more to give back. A checkpoint then cuts the file. Does nothing in
        a file that was made before files could shrink (`snapshots.make_shrinkable`).
        """
        if not self._shrinks:
            return False
        free_bytes = self.free_bytes()
        while free_bytes > kept_bytes:
            if not self._connection.in_transaction:
                self._connection.execute("BEGIN IMMEDIATE")
            # One page, whatever number it is given: Python steps a statement without rows once.
            self.query("PRAGMA incremental_vacuum(1)")
            free_bytes -= PAGE_BYTES
            if enough():
                break
        return free_bytes > kept_bytes

    def recoveries(self) -> list[RecoveryRow]:
        """Return the recoveries that the cluster came through, oldest first."""
        return read_recoveries(self.path, self._connection)

    @property
    def in_transaction(self) -> bool:
        """True while writes wait for `commit`."""
        return self._connection.in_transaction

    def commit(self) -> None:
        """Commit the open transaction. Not durable yet: see `checkpoint`."""
        try:
            self._connection.execute("COMMIT")
        except sqlite3.DatabaseError as error:
            _raise_corrupt(self.path, error)
            raise

    def close(self) -> None:
        """Close the connection; what was not committed is gone."""
        self._connection.close()


def _forget_cached(path: Path) -> None:
    """Read a file anew that a process may have left behind a failed sync; nobody has it open."""
    if path.exists():
        with open(path, "rb") as file:
            os.fsync(file.fileno())
            DISK.forget_cached(file.fileno())


def _raise_corrupt(path: Path, error: sqlite3.DatabaseError) -> None:
    if getattr(error, "sqlite_errorcode", 0) & 0xFF in CORRUPT:
        raise CorruptStore(path, str(error)) from error


@contextmanager
def disk_errors() -> Iterator[None]:
    """Tell what SQLite says of a disk as an OSError: a full one does not make the data damaged."""
    try:
        yield
    except sqlite3.OperationalError as error:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code not in _OF_THE_DISK:
            raise
        numbers = (errno.ENOSPC,) if code == sqlite3.SQLITE_FULL else ()
        raise OSError(*numbers, f"the store's database: {error}") from error


def connect(path: Path, busy_ms_max: int) -> sqlite3.Connection:
    """Return a connection in WAL mode with autocommit to a database that there is.

    One that has gone is an error of SQLite's: an empty one in its place would be taken for a store.
    Raises CorruptStore, OSError.
    """
    there_is = f"file:{quote(os.fsencode(path))}?mode=rw"
    connection = sqlite3.connect(
        there_is, uri=True, isolation_level=None, timeout=busy_ms_max / 1000
    )
    try:
        # To the end: SQLite tells of a failed sync behind the answer's row.
        [(mode,)] = connection.execute("PRAGMA journal_mode=WAL").fetchall()
        connection.execute("PRAGMA synchronous=NORMAL")
    except UnicodeDecodeError as error:  # of an error that quotes a damaged description of a table
        connection.close()
        raise CorruptStore(path, str(error)) from error
    except sqlite3.DatabaseError as error:
        connection.close()
        _raise_corrupt(path, error)
        raise
    if mode != "wal":
        connection.close()
        raise OSError(f"{path} has no WAL: its file system can't share memory, as a network's")
    return connection


def _create(path: Path, members: Mapping[str, str]) -> None:
    """Make a new database under a temporary name first: what stands at `path` is whole.

    `Database` fsyncs the directory, which makes the name durable.
    """
    DISK.make_directory(path.parent)
    draft = side_file(path, ".new")
    draft.unlink(missing_ok=True)
    with closing(sqlite3.connect(draft, isolation_level=None)) as connection:
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute(f"PRAGMA page_size={PAGE_BYTES}")
        connection.execute(f"PRAGMA auto_vacuum={_INCREMENTAL}")
        connection.execute(f"PRAGMA application_id={APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version={LEVEL_FIRST}")
        connection.executescript("BEGIN;" + _SCHEMA)
        connection.execute("INSERT INTO state VALUES(1, 0, 0, ?)", (_state_crc(0, 0, LEVEL_FIRST),))
        rows = [(*member, row_crc(member)) for member in members.items()]
        connection.executemany("INSERT INTO members VALUES(?, ?, ?)", rows)
        connection.execute("COMMIT")
    draft.rename(path)


def is_shrinkable(connection: sqlite3.Connection) -> bool:
    """Return whether free pages can be given back; not so in the files of version 0.1."""
    return bool(connection.execute("PRAGMA auto_vacuum").fetchone()[0] == _INCREMENTAL)


def file_is_shrinkable(path: Path) -> bool:
    """Return the same of a file that nobody has open: SQLite, closing it, would checkpoint it."""
    with path.open("rb") as file:
        header = file.read(100)
    return header[64:68] == b"\0\0\0\1"  # "incremental-vacuum mode"


def copy_used(path: Path, connection: sqlite3.Connection, target: Path) -> None:
    """Write what the database at `path` holds to the new file `target`, without its free pages.

    One read transaction, so the copy is the state as of one commit. Raises CorruptStore,
    sqlite3.Error. Not in a transaction.
    """
    try:
        if not is_shrinkable(connection):
            # Of a file that has pages this decides nothing but what becomes of the copy.
            connection.execute(f"PRAGMA auto_vacuum={_INCREMENTAL}")
        connection.execute("VACUUM INTO ?", (str(target),))
    except sqlite3.DatabaseError as error:
        _raise_corrupt(path, error)
        raise


def used_bytes(connection: sqlite3.Connection) -> int:
    """Return how large a copy of the database will be, more or less."""
    pages, free = (
        int(connection.execute(f"PRAGMA {name}").fetchone()[0])
        for name in ("page_count", "freelist_count")
    )
    return PAGE_BYTES * (pages - free)


def check_format(path: Path, connection: sqlite3.Connection) -> None:
    """Raise CorruptStore unless this is a node's database."""
    application = _pragma(path, connection, "application_id")
    if application != APPLICATION_ID:
        raise CorruptStore(path, f"not a node's database (application {application:#x})")


def read_level(path: Path, connection: sqlite3.Connection) -> int:
    """Return the cluster's feature level. Raises CorruptStore.

    It is the database's format as well: version 0.1 reads format 1 alone, so that it refuses by
    itself to start in a cluster whose level was raised. The state's checksum covers it.
    """
    return _pragma(path, connection, "user_version")


def _pragma(path: Path, connection: sqlite3.Connection, name: str) -> int:
    try:
        value: int = connection.execute(f"PRAGMA {name}").fetchone()[0]
    except sqlite3.DatabaseError as error:
        _raise_corrupt(path, error)
        raise
    return value


def read_members(path: Path, connection: sqlite3.Connection) -> dict[str, str]:
    """Return {name: incarnation} of the admitted members. Raises CorruptStore."""
    members = {}
    try:
        rows = connection.execute("SELECT * FROM members").fetchall()
    except sqlite3.DatabaseError as error:
        _raise_corrupt(path, error)
        raise
    for name, incarnation, crc in rows:
        if crc != row_crc((name, incarnation)):
            raise CorruptStore(path, f"checksum of member {name!r}")
        members[name] = incarnation
    return members


def read_position(path: Path, connection: sqlite3.Connection) -> tuple[int, int]:
    """Return the applied (index, term) that the connection sees. Raises CorruptStore."""
    # In one statement, which sees one commit: the level may be raised beside a worker's reading.
    sql = "SELECT applied_index, applied_term, user_version, crc FROM state, pragma_user_version"
    try:
        rows = connection.execute(sql).fetchall()
    except sqlite3.DatabaseError as error:
        _raise_corrupt(path, error)
        raise
    if len(rows) != 1 or _state_crc(*rows[0][:3]) != rows[0][3]:
        raise CorruptStore(path, f"no applied (index, term, level, checksum): {rows}")
    return rows[0][0], rows[0][1]


def _state_crc(index: int, term: int, level: int) -> int:
    """Return the state's checksum; that of the first level is version 0.1's, which had no other."""
    return row_crc((index, term) if level == LEVEL_FIRST else (index, term, level))


def read_recoveries(path: Path, connection: sqlite3.Connection) -> list[RecoveryRow]:
    """Return the recoveries that the cluster came through, oldest first. Raises CorruptStore."""
    if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'recoveries'").fetchall():
        return []
    rows = connection.execute("SELECT number, name, crc FROM recoveries ORDER BY number").fetchall()
    settled: dict[int, dict[str, int]] = {number: {} for number, _, _ in rows}
    for number, topic, last_id, crc in connection.execute("SELECT * FROM settled"):
        if not is_row(crc, (number, topic, last_id)) or number not in settled:
            raise CorruptStore(path, f"checksum of the settled id of {topic!r}")
        settled[number][topic] = last_id
    for number, name, crc in rows:
        if crc != row_crc((number, name)):
            raise CorruptStore(path, f"checksum of recovery {number}")
    return [RecoveryRow(name, settled[number]) for number, name, _ in rows]


def write_recovery(
    path: Path, recovery: RecoveryRow, members: Mapping[str, str], epochs: int
) -> None:
    """Begin a new history: other members, every client's epoch raised by `epochs`; durable.

    For a database that nothing else has open. Raises CorruptStore, sqlite3.Error.
    """
    with closing(connect(path, WRITER_BUSY_MS_MAX)) as connection:
        connection.executescript("BEGIN IMMEDIATE;" + _RECOVERIES_SCHEMA + _NAMES_SCHEMA)
        number = len(read_recoveries(path, connection)) + 1
        connection.execute(
            "INSERT INTO recoveries VALUES(?, ?, ?)",
            (number, recovery.name, row_crc((number, recovery.name))),
        )
        settled = [(number, *row) for row in recovery.settled.items()]
        connection.executemany(
            "INSERT INTO settled VALUES(?, ?, ?, ?)", [(*row, row_crc(row)) for row in settled]
        )
        connection.execute("DELETE FROM settled WHERE recovery <= ?", (number - RECOVERIES_KEPT,))
        connection.execute("DELETE FROM members")
        rows = [(*member, row_crc(member)) for member in members.items()]
        connection.executemany("INSERT INTO members VALUES(?, ?, ?)", rows)
        _raise_epochs(path, connection, epochs)
        connection.execute("COMMIT")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    with open(path, "rb") as file:
        os.fsync(file.fileno())
    DISK.fsync_directory(path.parent)


def _raise_epochs(path: Path, connection: sqlite3.Connection, epochs: int) -> None:
    columns = "number, client_id, epoch, sequence, nonce, producers, names_bytes"
    last = 0
    while rows := connection.execute(
        f"SELECT {columns} FROM clients WHERE number > ? ORDER BY number LIMIT 10000", (last,)
    ).fetchall():
        last = rows[-1][0]
        raised = [(*row[:2], row[2] + epochs, *row[3:]) for row in rows]
        connection.executemany(
            "UPDATE clients SET epoch = ?, crc = ? WHERE number = ?",
            [(row[2], row_crc(row), row[0]) for row in raised],
        )
    # Of clients of which this node never heard, too: their names may come again.
    if read_level(path, connection) >= LEVEL_OF_NAMES:
        [[epoch]] = connection.execute("SELECT ifnull(max(epoch), 0) FROM gone_epochs").fetchall()
        row = (epoch + epochs,)
        sql = "INSERT OR REPLACE INTO gone_epochs VALUES(1, ?, ?)"
        connection.execute(sql, (*row, row_crc(row)))


TIMED_TABLES: Final = frozenset({"publications", "running"})
LATER_TABLES: Final = frozenset(
    {"users", "owners", "running", "heard", "purged", "acts", "groups", "leases", "workers"}
    | {"policies", "placed", "patterns", "brought", "recoveries", "settled", "expiries", "stamps"}
    | {"lanes", "delayed", "gone_epochs", "latest", "links", "compactions"}
)
# Of each table the columns that a row's checksum covers, and how many of them, last, are blobs.
CHECKED: Final = (
    ("members", "name, incarnation", 0),
    ("users", "name, rights", 0),
    ("owners", "client, owner", 0),
    ("clients", "number, client_id, epoch, sequence, nonce, producers, names_bytes", 0),
    ("gone_epochs", "epoch", 0),
    ("running", _RUNNING, 0),
    ("heard", "client, at", 0),
    ("acts", "number, entry, act_id, text", 0),
    ("topics", "number, name, last_id, active, added_bytes", 0),
    ("purged", "topic, last_id", 0),
    ("policies", "topic, floor_id, text", 0),
    ("expiries", "topic, floor_id, text", 0),
    ("stamps", "key, log_ms", 0),
    ("lanes", "topic, last_place, dropped_place", 0),
    ("delayed", "key, due_ms, count, principal, size_bytes, lengths, data", 2),
    ("latest", "key, topic, name, entry, timestamp_ms, over_ms, lengths, data", 2),
    ("links", "key, before_id, size_bytes", 0),
    ("compactions", "topic, compacted_id, end_bytes, count, size_bytes", 0),
    ("placed", "topic, client, at", 0),
    ("patterns", "client, pattern, record", 0),
    ("brought", "topic, client", 0),
    ("subscriptions", "topic, client, cursor", 0),
    ("groups", "topic, name, settings, head, cursor, token", 0),
    ("leases", "topic, name, chunk, runs", 0),
    ("workers", "topic, name, client_id, record", 0),
    ("producers", "number, client, topic, counter, puts, recent", 1),
    ("earlier_puts", "slot, puts", 1),
    ("publications", "key, entry, before_bytes, count, lengths, data", 2),
    ("recoveries", "number, name", 0),
    ("settled", "recovery, topic, last_id", 0),
)


def row_crc(row: tuple[int | str | bytes, ...], blob: bytes = b"") -> int:
    """Return the CRC-32 of a row: SQLite itself doesn't notice a flipped bit."""
    return _crc(plain(repr(row)), blob)


def is_row(crc: int, row: tuple[int | str | bytes, ...], blob: bytes = b"") -> bool:
    """Return whether `crc` is the checksum that a row was written with.

    Earlier builds took the row as their Python said it.
    """
    return crc == row_crc(row, blob) or crc == _crc(repr(row), blob)


def _crc(text: str, blob: bytes) -> int:
    return zlib.crc32(blob, zlib.crc32(text.encode()))


def plain(text: str) -> str:
    """Return what `repr` said as each Python says it.

    It escapes characters that its Unicode does not know. A later one knows some of them, and nodes
    of both, or one node before and behind an upgrade, have to agree.
    """
    if "\\u" in text or "\\U" in text:
        return _ESCAPE.sub(_unescaped, text)
    return text


def _unescaped(found: re.Match[str]) -> str:
    code = found[1] or found[2]
    character = chr(int(code, 16)) if code else ""
    return character if character and unicodedata.category(character) == "Cn" else found[0]


_ESCAPE: Final = re.compile(r"\\(?:u([0-9a-f]{4})|U([0-9a-f]{8})|.)")


def timed(row: tuple[int | str, ...]) -> tuple[int | str, ...]:
    """Return what the checksum of a row covers whose last value is a time: 0 is none.

    So the rows that a database had before it had times keep theirs.
    """
    return row if row[-1] else row[:-1]


def _has_table(connection: sqlite3.Connection, name: str) -> bool:
    sql = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?"
    return bool(connection.execute(sql, (name,)).fetchall())


def has_times(connection: sqlite3.Connection) -> bool:
    """Return whether the database has the columns of LEVEL_OF_PROPERTIES."""
    sql = "SELECT 1 FROM pragma_table_info('publications') WHERE name = 'timestamp_ms'"
    return bool(connection.execute(sql).fetchall())


def side_file(path: Path, suffix: str) -> Path:
    """Return the file that stands beside the database under its name with `suffix`."""
    return path.with_name(path.name + suffix)


def remove(path: Path) -> None:
    """Remove the database and all that may stand beside it; durable."""
    if path.parent.exists():
        remove_log(path)
        for suffix in ("", ".new", ".install", REMADE):
            side_file(path, suffix).unlink(missing_ok=True)
        DISK.fsync_directory(path.parent)


def remove_log(path: Path) -> None:
    """Remove the database's logs, durably: the file alone may be garbage then.

    The rollback journal too: SQLite uses one to make a WAL database of a copy, and would roll what
    a killed process has left of it back into whatever stands at `path` next.
    """
    for suffix in ("-wal", "-shm", "-journal"):
        side_file(path, suffix).unlink(missing_ok=True)
    DISK.fsync_directory(path.parent)


# --- for the worker thread ----------------------------------------------------------------------


def checkpoint(path: Path) -> int:
    """Move the WAL into the database file; return an applied index that is durable now.

    For a worker thread, with a connection of its own; the writer is held up only when the WAL has
    grown over WAL_BYTES_MAX. The index is read before the fsync, so every transaction up to it is
    in the WAL that the fsync covers or, by an earlier checkpoint's own fsync, in the database.
    The database file itself is never opened here by hand: closing it would drop SQLite's locks.
    """
    wal = side_file(path, "-wal")
    with closing(connect(path, CHECKPOINT_BUSY_MS_MAX)) as connection:
        connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
        if wal.exists() and wal.stat().st_size > WAL_BYTES_MAX:
            connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
            connection.execute("PRAGMA wal_checkpoint(FULL)").fetchone()
        applied_index, _ = read_position(path, connection)
        with open(wal, "rb") as file:
            os.fsync(file.fileno())
    DISK.fsync_directory(path.parent)
    return applied_index


# --- the logical state --------------------------------------------------------------------------


def digest(database: Database) -> str:
    """Return the SHA-256 (hex) of the logical state: equal on all nodes at one applied index.

    Independent of numbering and of which dead rows were collected. Reads everything: not for the
    loop of a node with a large backlog.
    """
    hasher = hashlib.sha256(b"%d\n" % database.level())
    # Below that level nothing stands in them, and older versions have none.
    users = _LOGICAL_USERS if database.level() >= LEVEL_OF_USERS else ()
    idle = _LOGICAL_IDLE if database.level() >= LEVEL_OF_IDLE else ()
    times = _LOGICAL_TIMES if database.level() >= LEVEL_OF_PROPERTIES else ()
    acts = _LOGICAL_ACTS if database.level() >= LEVEL_OF_ACTS else ()
    groups = _LOGICAL_GROUPS if database.level() >= LEVEL_OF_GROUPS else ()
    topics = _LOGICAL_TOPICS if database.level() >= LEVEL_OF_TOPICS else ()
    patterns = _LOGICAL_PATTERNS if database.level() >= LEVEL_OF_PATTERNS else ()
    expiry = _LOGICAL_EXPIRY if database.level() >= LEVEL_OF_EXPIRY else ()
    delay = _LOGICAL_DELAY if database.level() >= LEVEL_OF_DELAY else ()
    compaction = _LOGICAL_COMPACTION if database.has_latest else ()
    later = (*groups, *topics, *patterns, *expiry, *delay, *compaction)
    for sql in (*_LOGICAL, *users, *idle, *acts, *times, *later):
        for row in database.query(sql):
            hasher.update(repr(row).encode())
        hasher.update(b"\n")
    for number, name, last_id in database.query(
        "SELECT number, name, last_id FROM topics WHERE active ORDER BY name"
    ):
        _digest_publications(hasher, database, number, name, last_id)
    return hasher.hexdigest()


_LOGICAL: Final = (
    "SELECT applied_index, applied_term FROM state",
    "SELECT name, incarnation FROM members ORDER BY name",
    "SELECT client_id, epoch, sequence, nonce FROM clients ORDER BY client_id",
    "SELECT name, last_id, active FROM topics ORDER BY name",
    "SELECT client_id, name, cursor FROM subscriptions JOIN clients ON client = clients.number"
    " JOIN topics ON topic = topics.number ORDER BY client_id, name",
    "SELECT client_id, topic, counter, puts, recent FROM producers"
    " JOIN clients ON client = clients.number ORDER BY client_id, topic",
    "SELECT client_id, topic, slot & 63, earlier_puts.puts FROM earlier_puts"
    " JOIN producers ON producers.number = slot >> 6"
    " JOIN clients ON client = clients.number ORDER BY client_id, topic, slot & 63",
)
_LOGICAL_USERS: Final = (
    "SELECT name, rights FROM users ORDER BY name",
    "SELECT client_id, owner FROM owners JOIN clients ON client = clients.number"
    " ORDER BY client_id",
)
_LOGICAL_IDLE: Final = (
    f"SELECT {_RUNNING} FROM running",
    "SELECT client_id, at FROM heard JOIN clients ON client = clients.number ORDER BY client_id",
)
_LOGICAL_ACTS: Final = (
    "SELECT number, entry, act_id, text FROM acts ORDER BY number",
    "SELECT name, purged.last_id FROM purged JOIN topics ON topics.number = topic ORDER BY name",
)
_LOGICAL_TOPICS: Final = (
    "SELECT name, floor_id, text FROM policies JOIN topics ON topics.number = topic ORDER BY name",
    "SELECT client_id, name, at FROM placed JOIN clients ON client = clients.number"
    " JOIN topics ON topic = topics.number ORDER BY client_id, name",
)

_LOGICAL_PATTERNS: Final = (
    "SELECT client_id, pattern, record FROM patterns JOIN clients ON client = clients.number"
    " ORDER BY client_id, pattern",
    "SELECT client_id, name FROM brought JOIN clients ON client = clients.number"
    " JOIN topics ON topic = topics.number ORDER BY client_id, name",
)
_LOGICAL_GROUPS: Final = (
    "SELECT topics.name, groups.name, settings, head, cursor, token FROM groups"
    " JOIN topics ON topics.number = topic ORDER BY topics.name, groups.name",
    "SELECT topics.name, leases.name, chunk, runs FROM leases"
    " JOIN topics ON topics.number = topic ORDER BY topics.name, leases.name, chunk",
    "SELECT topics.name, workers.name, client_id, record FROM workers"
    " JOIN topics ON topics.number = topic ORDER BY topics.name, workers.name, client_id",
)


_LOGICAL_EXPIRY: Final = (
    "SELECT name, floor_id, text FROM expiries JOIN topics ON topics.number = topic ORDER BY name",
)
_LOGICAL_DELAY: Final = (
    "SELECT name, last_place, dropped_place FROM lanes JOIN topics ON topics.number = topic"
    " ORDER BY name",
    f"SELECT name, key & {ID_MAX}, due_ms, count, principal, lengths, data FROM delayed"
    f" JOIN topics ON topics.number = key >> {TOPIC_SHIFT} ORDER BY name, key",
)
_LOGICAL_COMPACTION: Final = (
    "SELECT topics.name, compacted_id, end_bytes, count, size_bytes FROM compactions"
    " JOIN topics ON topics.number = topic ORDER BY topics.name",
    f"SELECT topics.name, key & {ID_MAX}, latest.name, entry, timestamp_ms, over_ms, lengths, data"
    " FROM latest JOIN topics ON topics.number = topic ORDER BY topics.name, key",
)
_LOGICAL_TIMES: Final = ("SELECT timestamp_ms FROM running",)


_COMPACTED_TO: Final = "SELECT compacted_id FROM compactions WHERE topic = ?"


def _digest_publications(
    hasher: Any, database: Database, number: int, name: str, last_id: int
) -> None:
    """Hash a topic's rows that hold a publication somebody still wants, one at a time."""
    sql = (
        "SELECT coalesce((SELECT floor_id FROM policies WHERE topic = ?1),"
        " (SELECT floor_id FROM expiries WHERE topic = ?1),"
        " max(min(cursor), ifnull((SELECT last_id FROM purged WHERE topic = ?1), 0)))"
        " FROM (SELECT cursor FROM subscriptions WHERE topic = ?1"
        " UNION ALL SELECT cursor FROM groups WHERE topic = ?1)"
    )
    floor = database.query(sql, (number,))[0][0]
    found = database.query(_COMPACTED_TO, (number,)) if database.has_latest else []
    for [compacted_id] in found:
        floor = max(floor, compacted_id)
    time = "timestamp_ms" if database.has_times else "0"
    rows = database.stream(
        f"SELECT publications.key, entry, count, lengths, data, {time}, log_ms FROM publications"
        " LEFT JOIN stamps ON stamps.key = publications.key"
        " WHERE publications.key BETWEEN ? AND ? ORDER BY publications.key",
        (number << TOPIC_SHIFT, number << TOPIC_SHIFT | last_id),
    )
    for key, entry, count, lengths, data, timestamp_ms, log_ms in rows:
        first_id = key & ID_MAX
        if first_id + count - 1 > floor:
            hasher.update(repr(timed((name, first_id, entry, count, timestamp_ms))).encode())
            if log_ms is not None:
                hasher.update(b"%d" % log_ms)
            hasher.update(lengths)
            hasher.update(data)
