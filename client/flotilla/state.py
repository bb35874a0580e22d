"""What a client must not forget, kept in a state directory (SQLite).

What lives here: the client's id, epoch and sequence, its counters and cursors, and the outbox:
publications that were given a counter and have no answer yet. What must not: sockets, retries, or
any thought about when to send.

The database runs in WAL mode with `synchronous=FULL`: a change is on disk when the method returns.
Removing an acknowledged publication alone is not waited for: if power loss undoes it, the
publication is sent once more and answered as a duplicate. A lock file keeps a second process out.
Without a directory everything stands in memory: the same rules, but not crash-proof.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from flotilla.errors import OutboxFull, StateDamaged, StateError, StateInUse, StateUnusable

SCHEMA_VERSION: Final = 1
DATABASE_NAME: Final = "client.db"
LOCK_NAME: Final = "lock"
OUTBOX_BYTES_MAX: Final = 256 * 1024 * 1024  # a producer's memory of an outage, on the user's disk

_SCHEMA: Final = """
CREATE TABLE client (
    only INTEGER PRIMARY KEY CHECK (only = 1),
    client_id TEXT NOT NULL, epoch INTEGER NOT NULL, sequence INTEGER NOT NULL
);
INSERT INTO client VALUES (1, '', 0, 0);
CREATE TABLE counters (topic TEXT PRIMARY KEY, counter INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE cursors (topic TEXT PRIMARY KEY, last_id INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE outbox (
    topic TEXT NOT NULL, counter INTEGER NOT NULL, lengths BLOB NOT NULL, data BLOB NOT NULL,
    PRIMARY KEY (topic, counter)
);
"""
# A table of its own, and not a column: directories of before it need no new schema version.
_PROVISIONAL: Final = """
CREATE TABLE IF NOT EXISTS provisional (
    topic TEXT PRIMARY KEY, counter INTEGER NOT NULL
) WITHOUT ROWID
"""
# SQLite's codes that speak of the disk or of rights, not of what stands in the file.
_UNUSABLE: Final = frozenset(
    {sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR}
    | {sqlite3.SQLITE_PERM, sqlite3.SQLITE_READONLY}
)


@dataclass(frozen=True, slots=True)
class Entry:
    """A batch in the outbox: `counter` is its first publication's; `lengths`, `data` are packed."""

    topic: str
    counter: int
    lengths: bytes
    data: bytes

    @property
    def count(self) -> int:
        """How many publications it holds, and so how many counters it takes."""
        return len(self.lengths) // 4


class State:
    """A client's durable state. Safe to use from several threads; one process at a time.

    Errors: `StateInUse` (another process has the directory), `StateUnusable` (no rights, no space),
    `StateDamaged` (unreadable, or of another schema version), `OutboxFull`.
    """

    def __init__(self, directory: Path | None, outbox_bytes_max: int = OUTBOX_BYTES_MAX) -> None:
        self.directory = directory
        self._outbox_bytes_max = outbox_bytes_max
        self._lock = threading.RLock()
        self._lock_file = None if directory is None else _take_directory(directory)
        try:
            self._database = self._open()
        except StateError:
            self._release()
            raise
        [(client_id, epoch, sequence)] = self._read("SELECT client_id, epoch, sequence FROM client")
        self.client_id: str = client_id
        self.epoch: int = epoch
        self.sequence: int = sequence
        [(size_bytes,)] = self._read("SELECT ifnull(sum(length(data)), 0) FROM outbox")
        self._outbox_bytes: int = size_bytes
        self._cursors = dict(self._read("SELECT topic, last_id FROM cursors"))  # as in the table

    def close(self) -> None:
        """Close the database and let another process have the directory."""
        with self._lock:
            self._database.close()
            self._release()

    # --- who am I -------------------------------------------------------------------------------

    def next_sequence(self) -> int:
        """Return the sequence of the next control request; stored before it is returned."""
        with self._change() as database:
            database.execute("UPDATE client SET sequence = sequence + 1")
            self.sequence += 1
        return self.sequence

    def raise_sequence(self, sequence: int) -> None:
        """Store that the broker has seen control requests up to `sequence`."""
        with self._change() as database:
            self.sequence = max(self.sequence, sequence)
            database.execute("UPDATE client SET sequence = ?", (self.sequence,))

    def resumed(
        self,
        client_id: str,
        epoch: int,
        sequence: int,
        counters: Mapping[str, int],
        subscriptions: Mapping[str, int],
    ) -> None:
        """Store who the broker says this client is, and catch up with what it knows better.

        A counter or a cursor is never lowered. A subscription that the broker has not is dropped:
        an UNSUB was carried out and its answer lost; one that only the broker has is adopted.
        Provisional counters become final, behind what the broker has.
        """
        with self._lock, self._change() as database:
            self.client_id, self.epoch = client_id, epoch
            self.sequence = max(self.sequence, sequence)
            database.execute(
                "UPDATE client SET client_id = ?, epoch = ?, sequence = ?",
                (client_id, epoch, self.sequence),
            )
            for topic, first in self._read("SELECT topic, counter FROM provisional"):
                self._shift(topic, first, max(0, counters.get(topic, 0) + 1 - first))
            database.execute("DELETE FROM provisional")
            for topic, counter in counters.items():
                database.execute(_RAISE_COUNTER, (topic, counter))
            cursors = {
                topic: max(last_id, self._cursors.get(topic, last_id))
                for topic, last_id in subscriptions.items()
            }
            database.execute("DELETE FROM cursors")
            database.executemany(_RAISE_CURSOR, list(cursors.items()))
        self._cursors = cursors  # behind the commit, as wherever a cursor changes

    # --- cursors --------------------------------------------------------------------------------

    def cursors(self) -> dict[str, int]:
        """Return {topic: last id that this subscriber has} of every subscription."""
        with self._lock:
            return dict(sorted(self._cursors.items()))

    def cursor(self, topic: str) -> int | None:
        """Return the last id that this subscriber has, None if it does not subscribe."""
        return self._cursors.get(topic)

    def raise_cursor(self, topic: str, last_id: int) -> None:
        """Store that everything up to `last_id` has been handed over. Never lowers a cursor."""
        with self._lock:
            with self._change() as database:
                database.execute(_RAISE_CURSOR, (topic, last_id))
            self._cursors[topic] = max(last_id, self._cursors.get(topic, last_id))

    def drop_cursor(self, topic: str) -> None:
        """Forget a subscription."""
        with self._lock:
            with self._change() as database:
                database.execute("DELETE FROM cursors WHERE topic = ?", (topic,))
            self._cursors.pop(topic, None)

    # --- counters and the outbox ----------------------------------------------------------------

    def counter(self, topic: str) -> int:
        """Return the last counter given out for the topic, 0 before the first."""
        rows = self._read("SELECT counter FROM counters WHERE topic = ?", (topic,))
        return int(rows[0][0]) if rows else 0

    def outbox(self, topic: str | None = None) -> list[Entry]:
        """Return what waits for an answer, of one topic or of all, in the order of counters."""
        where = "" if topic is None else " WHERE topic = ?"
        rows = self._read(
            f"SELECT topic, counter, lengths, data FROM outbox{where} ORDER BY topic, counter",
            () if topic is None else (topic,),
        )
        return [Entry(*row) for row in rows]

    def enqueue(
        self, topic: str, batches: Sequence[tuple[bytes, bytes]], provisional: bool = False
    ) -> list[Entry]:
        """Give batches (lengths, data) their counters and store them, all or none.

        `provisional`: the broker has not been asked how far this client's counters have come, and
        another process on a copy of this directory may have used these: nothing may be sent before
        `resumed` has made them final. Raises OutboxFull.
        """
        size_bytes = sum(len(data) for _, data in batches)
        with self._change() as database:
            if self._outbox_bytes + size_bytes > self._outbox_bytes_max:
                message = f"the outbox has {self._outbox_bytes} bytes that wait for an answer"
                raise OutboxFull(message, details={"limit": self._outbox_bytes_max})
            counter, entries = self.counter(topic) + 1, []
            for lengths, data in batches:
                entries.append(Entry(topic, counter, lengths, data))
                counter += entries[-1].count
            database.executemany(
                "INSERT INTO outbox VALUES (?, ?, ?, ?)",
                [(e.topic, e.counter, e.lengths, e.data) for e in entries],
            )
            if provisional and entries:
                first = (topic, entries[0].counter)
                database.execute("INSERT OR IGNORE INTO provisional VALUES (?, ?)", first)
            database.execute(_RAISE_COUNTER, (topic, counter - 1))
            self._outbox_bytes += size_bytes
        return entries

    def acknowledged(self, entry: Entry) -> None:
        """Forget a publication that the broker has. Not waited for (see above)."""
        with self._change(durable=False) as database:
            database.execute(
                "DELETE FROM outbox WHERE topic = ? AND counter = ?", (entry.topic, entry.counter)
            )
            self._outbox_bytes -= len(entry.data)

    def withdraw(self, entry: Entry) -> int:
        """Take a refused publication and all that follow it in its topic out, counters included.

        Returns how many publications. Only for what certainly was not and will not be stored:
        a counter that is given twice would make the broker drop the second publication.
        """
        with self._change() as database:
            gone = [e for e in self.outbox(entry.topic) if e.counter >= entry.counter]
            span = (entry.topic, entry.counter)
            database.execute("DELETE FROM outbox WHERE topic = ? AND counter >= ?", span)
            database.execute(
                "UPDATE counters SET counter = ? WHERE topic = ?", (entry.counter - 1, entry.topic)
            )
            self._outbox_bytes -= sum(len(e.data) for e in gone)
        return sum(e.count for e in gone)

    def remove(self, entry: Entry) -> int:
        """Take one refused publication out and close the gap: what follows moves up a place.

        Returns how many publications. As with `withdraw`: only for what certainly was not and will
        not be stored, and neither was anything behind it.
        """
        with self._change() as database:
            database.execute(
                "DELETE FROM outbox WHERE topic = ? AND counter = ?", (entry.topic, entry.counter)
            )
            self._shift(entry.topic, entry.counter + entry.count, -entry.count)
            self._outbox_bytes -= len(entry.data)
        return entry.count

    def _shift(self, topic: str, first: int, by: int) -> None:
        """Move the counters of the topic's entries from `first` on, and the last one given out.

        By way of negative numbers: no entry may meet its neighbour's counter on the way.
        """
        move = "UPDATE outbox SET counter = ? - counter WHERE topic = ? AND counter "
        self._database.execute(move + ">= ?", (-by, topic, first))
        self._database.execute(move + "< 0", (0, topic))
        last = "UPDATE counters SET counter = counter + ? WHERE topic = ?"
        self._database.execute(last, (by, topic))

    # --- SQLite ---------------------------------------------------------------------------------

    def _open(self) -> sqlite3.Connection:
        where = ":memory:" if self.directory is None else str(self.directory / DATABASE_NAME)
        try:
            database = sqlite3.connect(where, isolation_level=None, check_same_thread=False)
            try:
                self._prepare(database)
            except (sqlite3.Error, StateError):
                database.close()
                raise
        except sqlite3.Error as error:
            raise self._explained(error) from error
        return database

    def _prepare(self, database: sqlite3.Connection) -> None:
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = FULL")
        [(finding,)] = database.execute("PRAGMA quick_check(1)").fetchall()
        if finding != "ok":
            raise self._damaged(finding)
        [(version,)] = database.execute("PRAGMA user_version").fetchall()
        if version == 0:
            database.executescript(
                f"BEGIN; {_SCHEMA} PRAGMA user_version = {SCHEMA_VERSION}; COMMIT;"
            )
        elif version != SCHEMA_VERSION:
            raise self._damaged(f"schema version {version}, this program knows {SCHEMA_VERSION}")
        database.execute(_PROVISIONAL)

    def _read(self, sql: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        with self._lock:
            try:
                return self._database.execute(sql, values).fetchall()
            except sqlite3.Error as error:
                raise self._explained(error) from error

    @contextmanager
    def _change(self, durable: bool = True) -> Iterator[sqlite3.Connection]:
        """Run a transaction. One generator for all of it: every operation runs one or two."""
        with self._lock:
            database = self._database
            try:
                if not durable:
                    database.execute("PRAGMA synchronous = NORMAL")
                try:
                    database.execute("BEGIN IMMEDIATE")
                    try:
                        yield database
                    except BaseException:
                        database.execute("ROLLBACK")
                        raise
                    database.execute("COMMIT")
                finally:
                    if not durable:
                        database.execute("PRAGMA synchronous = FULL")
            except sqlite3.Error as error:
                raise self._explained(error) from error

    def _explained(self, error: sqlite3.Error) -> StateError:
        code: int = getattr(error, "sqlite_errorcode", 0)  # a ProgrammingError has none
        if code & 0xFF in _UNUSABLE:
            return _unusable(self.directory or Path("memory"), str(error))
        return self._damaged(str(error))

    def _damaged(self, finding: str) -> StateDamaged:
        return StateDamaged(
            f"the client state in {self.directory or 'memory'} cannot be used: {finding}",
            details={"directory": str(self.directory or "")},
        )

    def _release(self) -> None:
        if self._lock_file is not None:
            os.close(self._lock_file)
            self._lock_file = None


_RAISE_COUNTER: Final = (
    "INSERT INTO counters VALUES (?, ?) "
    "ON CONFLICT DO UPDATE SET counter = max(counter, excluded.counter)"
)
_RAISE_CURSOR: Final = (
    "INSERT INTO cursors VALUES (?, ?) "
    "ON CONFLICT DO UPDATE SET last_id = max(last_id, excluded.last_id)"
)


def _take_directory(directory: Path) -> int:
    """Lock the directory for this process; return the lock file's descriptor. Raises StateInUse."""
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(directory / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise _unusable(directory, error.strerror or str(error)) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        pid = os.pread(descriptor, 32, 0).decode(errors="replace").strip() or "unknown"
        os.close(descriptor)
        message = (
            f"{directory} is in use by process {pid}; each client needs a state directory of its"
            " own (on the command line: --state DIR or FLOTILLA_STATE)"
        )
        raise StateInUse(message, details={"directory": str(directory), "pid": pid}) from None
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    return descriptor


def _unusable(directory: Path, reason: str) -> StateUnusable:
    message = f"the state directory {directory} cannot be made or written: {reason}"
    return StateUnusable(message, details={"directory": str(directory)})
