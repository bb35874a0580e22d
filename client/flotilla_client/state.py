"""What a client must not forget, kept in a state directory (SQLite).

What lives here: the client's id, epoch and sequence, its counters and cursors, and the outbox:
publications that were given a counter and have no answer yet. What must not: sockets, retries, or
any thought about when to send.

The database runs in WAL mode with `synchronous=FULL`: a change is on disk when the method returns.
Removing an acknowledged publication alone is not waited for: if power loss undoes it, the
publication is sent once more and answered as a duplicate. Other changes that need not be waited
for say so (`durable=False`): they outlive the process, and the machine with the next change that
is waited for. A lock file keeps a second process out.

A sync that fails is reported once. What it was to write stays in the kernel's cache, is called
clean, and no later sync writes it. So whoever opens a directory first lets the kernel forget what
it has of the files, and reads them from the disk; and whoever goes on behind a failed sync writes
the log again before the next change. SQLite says nothing of a checkpoint that has failed: one is
made only behind a change that was waited for, when its sync of the log has nothing to lose.

What was sent leaves free pages, which are given back in steps, so that the file shrinks again.
Without a directory everything stands in memory: the same rules, but not crash-proof. There what
most publications and hand-overs change is no statement: it is put off until something else is asked
of the database, and most of what enters the outbox has left it by then.

Ctrl-C may end a change between any two steps. So what memory knows of the database is set aside
before a change begins, and comes back behind its commit: whoever finds it missing rolls back what
was broken off and reads the database again. The lock is taken by `with` alone, which no signal can
part from its release; a generator or a context manager in Python could be parted.
"""

from __future__ import annotations

import ctypes
import os
import sqlite3
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from flotilla_client.directory import DATABASE_NAME, Sole, sync_names, unusable
from flotilla_client.errors import (
    Closed,
    FlotillaError,
    OutboxFull,
    StateDamaged,
    StateError,
    StateUnusable,
)
from flotilla_client.properties import Enveloped, Publication
from flotilla_client.properties import decode as decode_properties
from flotilla_client.protocol import unpack

SCHEMA_VERSION: Final = 1
OUTBOX_BYTES_MAX: Final = 256 * 1024 * 1024  # a producer's memory of an outage, on the user's disk
FREE_BYTES_KEPT: Final = 16 * 1024 * 1024  # of free pages while the outbox is used: no churn
FREE_BYTES_KEPT_EMPTY: Final = 4 * 1024 * 1024  # when it is empty: above a producer's window
FREE_BYTES_LOOK: Final = FREE_BYTES_KEPT_EMPTY // 2  # that much may be free: it is looked
SHRINK_BYTES: Final = 16 * 1024 * 1024  # given back at once: tens of milliseconds
WAL_BYTES_KEPT: Final = 4 * 1024 * 1024  # of the log beside it: about where SQLite empties it
CHECKPOINT_PAGES: Final = 1_000  # of the log: about WAL_BYTES_KEPT
UNWAITED_MAX: Final = 200  # changes in a row, some pages each: as long a log as the others'
COPY_BYTES: Final = 1024 * 1024  # of the log that is written again, at once
REMADE_BYTES_MAX: Final = 16 * 1024 * 1024  # of an older file, when it is opened: below a second
FULL_BYTES: Final = 128 * 1024  # less room than that: SQLite's index of the log takes 32 KiB
# With less the log must not grow: what it holds needs as much again where it is carried on to.
SHORT_BYTES: Final = 2 * WAL_BYTES_KEPT
LEFT_BYTES: Final = 2 * FULL_BYTES  # by what enters the outbox: to send it takes some writing
_INCREMENTAL: Final = 2  # PRAGMA auto_vacuum: free pages are given back when asked for
_NOTHING: Final = nullcontext()  # of a turn that nobody shares

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
# Tables of their own, and not columns: directories of before them need no new schema version.
_PROVISIONAL: Final = """
CREATE TABLE IF NOT EXISTS provisional (
    topic TEXT PRIMARY KEY, counter INTEGER NOT NULL
) WITHOUT ROWID
"""
_RECOVERY: Final = """
CREATE TABLE IF NOT EXISTS recovery (
    only INTEGER PRIMARY KEY CHECK (only = 1), name TEXT NOT NULL
)
"""
# How far each subscription was handed over, which is ahead of what has been acknowledged.
_HANDED: Final = """
CREATE TABLE IF NOT EXISTS handed (
    topic TEXT PRIMARY KEY, last_id INTEGER NOT NULL
) WITHOUT ROWID
"""
# Which entry of the cluster's log placed a subscription elsewhere than at the end, or moved it.
_PLACED: Final = """
CREATE TABLE IF NOT EXISTS placed (
    topic TEXT PRIMARY KEY, entry INTEGER NOT NULL
) WITHOUT ROWID
"""
# The patterns that it subscribes to, and which entry of the cluster's log made each so.
_PATTERNS: Final = """
CREATE TABLE IF NOT EXISTS patterns (
    topic TEXT PRIMARY KEY, entry INTEGER NOT NULL
) WITHOUT ROWID
"""
# Whatever enters the outbox raises its topic's counter. Of a connection, not of the file.
_COUNTING: Final = """
CREATE TEMP TRIGGER counting AFTER INSERT ON outbox BEGIN
    INSERT INTO counters VALUES (NEW.topic, NEW.counter + length(NEW.lengths) / 4 - 1)
    ON CONFLICT DO UPDATE SET counter = max(counter, excluded.counter);
END
"""
_NUMBERED: Final = (
    ("counters", "counter"),
    ("provisional", "counter"),
    ("cursors", "last_id"),
    ("handed", "last_id"),
    ("placed", "entry"),
    ("patterns", "entry"),
)
# What SQLite's own check does not see: columns take values of any type, and rows may be gone.
_STRANGE: Final = " UNION ALL ".join(
    [
        "SELECT 'client' WHERE 1 != (SELECT count(*) FROM client WHERE typeof(client_id) = 'text'"
        " AND typeof(epoch) = 'integer' AND typeof(sequence) = 'integer'"
        " AND min(epoch, sequence) >= 0)",
        "SELECT 'outbox' FROM outbox WHERE typeof(topic) != 'text' OR typeof(counter) != 'integer'"
        " OR counter < 1 OR typeof(lengths) != 'blob' OR typeof(data) != 'blob'"
        " OR length(lengths) % 4 OR NOT length(lengths)",
    ]
    + [
        f"SELECT '{table}' FROM {table} WHERE typeof(topic) != 'text'"
        f" OR typeof({number}) != 'integer' OR {number} < 0"
        for table, number in _NUMBERED
    ]
)
_FILES: Final = (DATABASE_NAME, f"{DATABASE_NAME}-wal", f"{DATABASE_NAME}-journal")
# SQLite's codes that speak of the disk or of rights, not of what stands in the file.
_UNUSABLE: Final = frozenset(
    {sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR}
    | {sqlite3.SQLITE_PERM, sqlite3.SQLITE_READONLY}
)
Statement = tuple[str, Sequence[object]]  # SQL and its values
Row = tuple[str, str | int]  # (topic, counter) of the outbox; (table, topic) of another table


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

    @property
    def size_bytes(self) -> int:
        """How much of the outbox it takes: empty publications take some as well."""
        return len(self.lengths) + len(self.data)


def _publications(entry: Entry) -> Iterator[bytes | Publication]:
    """Yield what an entry holds, as it may be published once more."""
    for publication in unpack(entry.lengths, entry.data):
        if type(publication) is Enveloped:
            properties, end = decode_properties(publication)
            yield properties.of(publication[end:])
        else:
            yield publication


@dataclass(slots=True)
class _CachedState:
    """What stands in the database and, for speed, in memory."""

    client_id: str
    epoch: int
    sequence: int
    outbox_bytes: int
    cursors: dict[str, int]
    handed: dict[str, int]
    placed: dict[str, int]
    patterns: dict[str, int]
    counters: dict[str, int]


class State:
    """A client's durable state. Safe to use from several threads; one process at a time.

    Errors: `StateInUse` (another process has the directory), `StateUnusable` (no rights, no space),
    `StateDamaged` (unreadable, or of another schema version), `OutboxFull`, `Closed`. A change that
    an error or an exception of any kind ends was made wholly or not at all; which of the two, an
    error that is not definite leaves open: the disk failed when the change was to become durable.
    """

    def __init__(self, directory: Path | None, outbox_bytes_max: int = OUTBOX_BYTES_MAX) -> None:
        self.directory = directory
        self._where = str(directory)  # as text: a path is made into one each time it is used
        self._outbox_bytes_max = outbox_bytes_max
        self._lock = threading.RLock()
        self._known: _CachedState | None = None  # None: to be read
        self._is_closed = False
        self._has_database = False
        self._is_open = False
        self._has_failed = False  # a sync; what it has dropped of the log is in the cache alone
        self._free_bytes_max = FREE_BYTES_KEPT  # or less is free, but for what pages lose
        self._is_short = False  # of room on the disk
        self._unwaited = 0  # changes since the last one that was waited for
        self._put_off: dict[Row, Statement] = {}  # without a directory: not in the database yet
        self._claim()
        _states.add(self)
        try:
            with self._lock:
                self._database = self._open()
                self._has_database = True
            self._settled()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the database and let another process have the directory."""
        with self._lock:
            self._is_closed = True
            try:
                if self._has_database:
                    self._let_go(self._database)
            finally:
                self._release()

    @property
    def is_closed(self) -> bool:
        """True behind `close`."""
        return self._is_closed

    def check_open(self) -> None:
        """Raise Closed behind `close`."""
        if self._is_closed:
            raise Closed("the client is closed")

    # --- whose turn it is -----------------------------------------------------------------------

    def turn(self, patience_s: float | None = None) -> AbstractContextManager[None]:
        """Have the state for an operation: always so where no other process shares it."""
        return _NOTHING

    def away(self) -> AbstractContextManager[None]:
        """Let others have the state for as long as this process only waits."""
        return _NOTHING

    # --- who am I -------------------------------------------------------------------------------

    @property
    def identity(self) -> tuple[str, int]:
        """The client's id and epoch."""
        known = self._seen()
        return known.client_id, known.epoch

    @property
    def client_id(self) -> str:
        """The id that the cluster gave this client, "" before the first."""
        return self._seen().client_id

    @property
    def epoch(self) -> int:
        """The epoch of the process that took up the id last, 0 before the first."""
        return self._seen().epoch

    @property
    def sequence(self) -> int:
        """The sequence of the last control request."""
        with self._lock:
            return self._settled().sequence

    @property
    def is_open(self) -> bool:
        """True once this client's id has been taken up, by `resumed`."""
        return self._is_open

    def reopen(self) -> None:
        """Let the next operation take up the id anew."""
        self._is_open = False

    def next_sequence(self) -> int:
        """Return the sequence of the next control request; stored before it is returned."""
        with self._lock:
            known = self._settled()
            self._commit((_SEQUENCE, (known.sequence + 1,)))
            known.sequence += 1
            self._known = known
            return known.sequence

    def raise_sequence(self, sequence: int) -> None:
        """Store that the broker has seen control requests up to `sequence`."""
        with self._lock:
            known = self._settled()
            self._commit((_SEQUENCE, (max(known.sequence, sequence),)))
            known.sequence = max(known.sequence, sequence)
            self._known = known

    def resumed(
        self,
        client_id: str,
        epoch: int,
        sequence: int,
        counters: Mapping[str, int],
        subscriptions: Mapping[str, int],
        placed: Mapping[str, int] = MappingProxyType({}),
        patterns: Mapping[str, int] = MappingProxyType({}),
        handed: Mapping[str, int] = MappingProxyType({}),
        recovery: str | None = None,
    ) -> None:
        """Store who the broker says this client is, and catch up with what it knows better.

        Up to `handed` a process before may have been handed a topic. `recovery`: the cluster's last
        one, which this client has met by now; None: it never said.

        A counter or a cursor is never lowered, but that of a subscription that was `placed` by
        another entry than this client knows: it was moved, and the answer lost. A subscription that
        the broker has not is dropped: an UNSUB was carried out and its answer lost; one that only
        the broker has is adopted. Provisional counters become final, behind what the broker has.
        """
        with self._lock:
            known = self._settled()
            sequence = max(known.sequence, sequence)
            moved = {
                topic
                for topic in subscriptions
                if placed.get(topic, 0) != known.placed.get(topic, 0)
            }
            own = {topic: last_id for topic, last_id in known.cursors.items() if topic not in moved}
            cursors = {
                topic: max(last_id, own.get(topic, last_id))
                for topic, last_id in subscriptions.items()
            }
            placed = {topic: at for topic, at in placed.items() if topic in cursors}
            statements: list[Statement] = [
                (
                    "UPDATE client SET client_id = ?, epoch = ?, sequence = ?",
                    (client_id, epoch, sequence),
                )
            ]
            for topic, first in self._read("SELECT topic, counter FROM provisional"):
                statements += _shifted(topic, first, max(0, counters.get(topic, 0) + 1 - first))
            statements.append(("DELETE FROM provisional", ()))
            statements += [(_RAISE_COUNTER, row) for row in counters.items()]
            statements.append(("DELETE FROM cursors", ()))
            statements += [(_RAISE_CURSOR, row) for row in cursors.items()]
            statements.append(
                ("DELETE FROM handed WHERE topic NOT IN (SELECT topic FROM cursors)", ())
            )
            statements += [("DELETE FROM handed WHERE topic = ?", (topic,)) for topic in moved]
            statements += [(_RAISE_HANDED, row) for row in handed.items()]
            statements.append(("DELETE FROM placed", ()))
            statements += [(_PLACE, row) for row in placed.items()]
            statements.append(("DELETE FROM patterns", ()))
            statements += [(_FOLLOW, row) for row in patterns.items()]
            if recovery is not None:
                statements.append(("INSERT OR REPLACE INTO recovery VALUES (1, ?)", (recovery,)))
            self._commit(*statements)
            kept = cursors.keys() - moved
            handed = {
                **{topic: id_ for topic, id_ in known.handed.items() if topic in kept},
                **handed,
            }
            self._known = _CachedState(
                client_id,
                epoch,
                sequence,
                known.outbox_bytes,
                cursors,
                handed,
                dict(placed),
                dict(patterns),
                self._counters(),
            )
            self._is_open = True

    # --- a cluster that was put back ------------------------------------------------------------

    @property
    def recovery(self) -> str | None:
        """The cluster's last recovery that this client has met, "" if none; None: it never said."""
        rows = self._read("SELECT name FROM recovery")
        return str(rows[0][0]) if rows else None

    def had(self) -> dict[str, int]:
        """Return {topic: last id that was handed over, acknowledged or not} of subscriptions."""
        return {topic: self.handed(topic) for topic in self.cursors()}

    def acknowledged_counters(self) -> dict[str, int]:
        """Return each topic's last counter that was acknowledged: those behind it wait for that."""
        waiting = dict(self._read("SELECT topic, min(counter) FROM outbox GROUP BY topic"))
        rows = self._read("SELECT topic, counter FROM counters")
        return {topic: waiting.get(topic, last + 1) - 1 for topic, last in rows}

    def lower(self, lost: Mapping[str, int], kept: Mapping[str, int], ended: Sequence[str]) -> None:
        """Take it as it is that the cluster has forgotten what it told this client.

        `lost` {topic: how many acknowledged publications}: those that wait move down in their
        place. `kept` {topic: id}: no cursor stays above it, and nothing above it was handed over;
        nothing else lowers one but `place`. `ended`: subscriptions.
        """
        with self._lock:
            self._commit(*self._lowered(lost, kept, ended))

    def _lowered(
        self, lost: Mapping[str, int], kept: Mapping[str, int], ended: Sequence[str]
    ) -> list[Statement]:
        acknowledged = self.acknowledged_counters()
        statements: list[Statement] = []
        for topic, count in lost.items():
            statements += _shifted(topic, acknowledged[topic] + 1, -count)
            provisional = "UPDATE provisional SET counter = counter - ? WHERE topic = ?"
            statements.append((provisional, (count, topic)))
        for table in ("cursors", "handed"):
            lowered = f"UPDATE {table} SET last_id = min(last_id, ?) WHERE topic = ?"
            statements += [(lowered, (last_id, topic)) for topic, last_id in kept.items()]
            statements += [(f"DELETE FROM {table} WHERE topic = ?", (topic,)) for topic in ended]
        for table in ("placed", "patterns"):
            statements += [(f"DELETE FROM {table} WHERE topic = ?", (topic,)) for topic in ended]
        return statements

    def renew(self) -> None:
        """Become a client without an id again, with what waits in the outbox.

        At once: lowered counters under the old id would be those of publications that a cluster
        which knows that id has stored. It would take what waits for them, and store none of it.
        """
        with self._lock:
            lost = self.acknowledged_counters()
            self._commit(
                *self._lowered(lost, {}, [*self.cursors(), *self.patterns()]),
                *_NOBODY,
            )

    def begin_anew(self) -> dict[str, tuple[bytes | Publication, ...]]:
        """Become a client without an id again, whom the cluster has forgotten; return what waited.

        That may be stored, and nothing can tell any more, so it must not be sent again. What has
        provisional counters was never sent: it stays, and its topics' counters begin anew with it.
        """
        with self._lock:
            first = dict(self._read("SELECT topic, counter FROM provisional"))
            statements: list[Statement] = []
            waited: dict[str, list[bytes | Publication]] = {}
            for topic, last in self._read("SELECT topic, counter FROM counters"):
                kept = first.get(topic, last + 1)
                gone = [entry for entry in self.outbox(topic) if entry.counter < kept]
                for entry in gone:
                    waited.setdefault(topic, []).extend(_publications(entry))
                statements.append(
                    ("DELETE FROM outbox WHERE topic = ? AND counter < ?", (topic, kept))
                )
                statements += _shifted(topic, kept, 1 - kept)
                moved = "UPDATE provisional SET counter = counter + ? WHERE topic = ?"
                statements.append((moved, (1 - kept, topic)))
            self._commit(
                *statements,
                ("DELETE FROM cursors", ()),
                ("DELETE FROM handed", ()),
                ("DELETE FROM placed", ()),
                ("DELETE FROM patterns", ()),
                *_NOBODY,
            )
            return {topic: tuple(each) for topic, each in waited.items()}

    # --- cursors --------------------------------------------------------------------------------

    def cursors(self) -> dict[str, int]:
        """Return {topic: last id that this subscriber has} of every subscription."""
        with self._lock:
            return dict(sorted(self._settled().cursors.items()))

    def cursor(self, topic: str) -> int | None:
        """Return the last id that this subscriber has, None if it does not subscribe."""
        with self._lock:
            return self._settled().cursors.get(topic)

    def handed(self, topic: str) -> int:
        """Return up to which id the topic may have been handed over, acknowledged or not."""
        with self._lock:
            known = self._settled()
            return max(known.handed.get(topic, 0), known.cursors.get(topic, 0))

    def raise_cursor(self, topic: str, last_id: int, durable: bool = True) -> None:
        """Store that everything up to `last_id` is acknowledged. Never lowers a cursor."""
        with self._lock:
            known = self._settled()
            if durable and known.cursors.get(topic, -1) >= last_id:
                self._wait_for_changes()
                return
            cursor = max(last_id, known.cursors.get(topic, last_id))
            self._set({("cursors", topic): (_RAISE_CURSOR, (topic, cursor))}, durable)
            known.cursors[topic] = cursor
            self._known = known

    def hand_over(self, topic: str, last_id: int, cursor: int = 0, durable: bool = True) -> None:
        """Store, at once, that up to `last_id` is handed over and up to `cursor` acknowledged."""
        with self._lock:
            known = self._settled()
            is_known = known.handed.get(topic, 0) >= last_id
            if durable and is_known and known.cursors.get(topic, 0) >= cursor:
                self._wait_for_changes()
                return
            last_id = max(last_id, known.handed.get(topic, last_id))
            rows: dict[Row, Statement] = {("handed", topic): (_RAISE_HANDED, (topic, last_id))}
            if cursor:
                cursor = max(cursor, known.cursors.get(topic, cursor))
                rows["cursors", topic] = _RAISE_CURSOR, (topic, cursor)
            self._set(rows, durable)
            known.handed[topic] = last_id
            if cursor:
                known.cursors[topic] = cursor
            self._known = known

    def drop_cursor(self, topic: str, durable: bool = True) -> None:
        """Forget a subscription."""
        with self._lock:
            known = self._settled()
            self._commit(
                ("DELETE FROM cursors WHERE topic = ?", (topic,)),
                ("DELETE FROM handed WHERE topic = ?", (topic,)),
                ("DELETE FROM placed WHERE topic = ?", (topic,)),
                durable=durable,
            )
            for of_topics in (known.cursors, known.handed, known.placed):
                of_topics.pop(topic, None)
            self._known = known

    def wait_for_changes(self) -> None:
        """Have on the disk what was changed without being waited for (`durable` False)."""
        with self._lock:
            self._wait_for_changes()

    def placed(self, topic: str) -> int:
        """Return which entry has placed a subscription, 0: none, it began at the end."""
        with self._lock:
            return self._settled().placed.get(topic, 0)

    def place(self, topic: str, cursor: int, entry: int, durable: bool = True) -> bool:
        """Store that a subscription was placed behind `cursor`; return whether that is news.

        What was handed over before was so at another place: it counts no more.
        """
        with self._lock:
            known = self._settled()
            if topic in known.cursors and known.placed.get(topic, 0) == entry:
                return False
            self._commit(
                ("INSERT OR REPLACE INTO cursors VALUES (?, ?)", (topic, cursor)),
                ("DELETE FROM handed WHERE topic = ?", (topic,)),
                (_PLACE, (topic, entry)),
                durable=durable,
            )
            known.cursors[topic], known.placed[topic] = cursor, entry
            known.handed.pop(topic, None)
            self._known = known
            return True

    # --- patterns -------------------------------------------------------------------------------

    def patterns(self) -> dict[str, int]:
        """Return {pattern: the entry that made it} of every subscription to one."""
        with self._lock:
            return dict(self._settled().patterns)

    def follow(self, pattern: str, entry: int) -> None:
        """Store a subscription to a pattern; its topics are stored one by one."""
        with self._lock:
            known = self._settled()
            self._commit((_FOLLOW, (pattern, entry)))
            known.patterns[pattern] = entry
            self._known = known

    def unfollow(self, pattern: str) -> None:
        """Forget a subscription to a pattern; its topics are forgotten one by one."""
        with self._lock:
            known = self._settled()
            self._commit(("DELETE FROM patterns WHERE topic = ?", (pattern,)))
            known.patterns.pop(pattern, None)
            self._known = known

    # --- counters and the outbox ----------------------------------------------------------------

    def counter(self, topic: str) -> int:
        """Return the last counter given out for the topic, 0 before the first."""
        return self._seen().counters.get(topic, 0)

    def _counters(self) -> dict[str, int]:
        return dict(self._read("SELECT topic, counter FROM counters ORDER BY topic"))

    def topics_waiting(self) -> list[str]:
        """Return the topics of which something waits for an answer."""
        rows = self._read("SELECT DISTINCT topic FROM outbox ORDER BY topic")
        return [str(topic) for (topic,) in rows]

    def waiting(self) -> int:
        """Return how many publications wait for an answer."""
        [(size_bytes,)] = self._read("SELECT ifnull(sum(length(lengths)), 0) FROM outbox")
        return int(size_bytes) // 4

    def outbox(self, topic: str | None = None) -> list[Entry]:
        """Return what waits for an answer, of one topic or of all, in the order of counters."""
        where = "" if topic is None else " WHERE topic = ?"
        rows = self._read(
            f"SELECT topic, counter, lengths, data FROM outbox{where} ORDER BY topic, counter",
            () if topic is None else (topic,),
        )
        return [Entry(*row) for row in rows]

    @property
    def outbox_bytes(self) -> int:
        """How much waits for an answer."""
        return self._seen().outbox_bytes

    def enqueue(
        self, topic: str, batches: Sequence[tuple[bytes, bytes]], provisional: bool = False
    ) -> list[Entry]:
        """Give batches (lengths, data) their counters and store them, all or none.

        `provisional`: the broker has not been asked how far this client's counters have come, and
        another process on a copy of this directory may have used these: nothing may be sent before
        `resumed` has made them final. Raises OutboxFull.
        """
        [entries] = self.enqueue_all([(topic, batches)], provisional=provisional)
        return entries

    def enqueue_all(
        self,
        batches: Sequence[tuple[str, Sequence[tuple[bytes, bytes]]]],
        note: Callable[[list[list[Entry]]], None] = lambda entries: None,
        provisional: bool = False,
    ) -> list[list[Entry]]:
        """As `enqueue`, of several topics in one commit; each topic once.

        `note(entries)` hears of the counters before the commit that gives them: whoever is broken
        off there finds out from `outbox` whether it was made.
        """
        with self._lock:
            known, size_bytes = self._settled(), 0
            entries: list[list[Entry]] = []
            rows: dict[Row, Statement] = {}
            provisionally: list[Statement] = []
            last: dict[str, int] = {}
            insert = _SET_ENTRY if self.directory is None else _INSERT_ENTRY
            for topic, of_topic in batches:
                counter = known.counters.get(topic, 0)
                of_entries: list[Entry] = []
                for lengths, data in of_topic:
                    of_entries.append(Entry(topic, counter + 1, lengths, data))
                    rows[topic, counter + 1] = insert, (topic, counter + 1, lengths, data)
                    size_bytes += len(lengths) + len(data)
                    counter += len(lengths) // 4
                if provisional and of_entries:
                    first = (topic, of_entries[0].counter)
                    provisionally.append((_PROVISIONALLY, first))
                last[topic] = counter
                entries.append(of_entries)
            if known.outbox_bytes + size_bytes > self._outbox_bytes_max:
                message = f"the outbox has {known.outbox_bytes} bytes that wait for an answer"
                raise OutboxFull(message, details={"limit": self._outbox_bytes_max})
            if self.directory is not None:
                self._check_room(self.directory, known.outbox_bytes, size_bytes)
            note(entries)
            if provisionally:
                self._commit(*rows.values(), *provisionally)
            else:
                self._set(rows)
            known.outbox_bytes += size_bytes
            known.counters |= last
            self._known = known
            return entries

    def _check_room(self, directory: Path, outbox_bytes: int, size_bytes: int) -> None:
        """Refuse what would take the last of the disk: then nothing could be sent any more.

        Raises OutboxFull if sending makes room, StateUnusable if there is nothing to send.
        """
        free_bytes = self._disk_free_bytes(directory)
        if free_bytes >= SHORT_BYTES + 2 * size_bytes:
            return
        [(pages,)] = self._read("PRAGMA freelist_count")
        [(page_bytes,)] = self._read("PRAGMA page_size")
        grows_bytes = max(0, size_bytes - pages * page_bytes)
        if free_bytes + _log_bytes(directory) >= size_bytes + grows_bytes + LEFT_BYTES:
            return
        if not outbox_bytes:
            raise unusable(directory, f"the disk is full ({free_bytes} bytes free)")
        message = (
            f"the outbox has {outbox_bytes} bytes, and the disk no room: {free_bytes} are free"
        )
        raise OutboxFull(message, details={"limit": outbox_bytes})

    def _disk_free_bytes(self, directory: Path) -> int:
        try:
            disk = os.statvfs(self._where)
        except OSError as error:
            raise unusable(directory, error.strerror or str(error)) from error
        return disk.f_bavail * disk.f_frsize

    def acknowledged(self, entry: Entry) -> None:
        """Forget a publication that the broker has. Not waited for (see above)."""
        with self._lock:
            known, size_bytes = self._settled(), entry.size_bytes
            if (entry.topic, entry.counter) in self._put_off:
                self._forget_put_off(entry, known.counters[entry.topic])
                known.outbox_bytes -= size_bytes
            else:
                gone = self._commit((_DELETE_ENTRY, (entry.topic, entry.counter)), durable=False)
                known.outbox_bytes -= gone * size_bytes  # 0: a producer of the topic was sooner
                self._free_bytes_max += size_bytes
                if self._free_bytes_max >= FREE_BYTES_LOOK:  # else two more statements for each
                    self._shrink(known.outbox_bytes)
            self._known = known

    def withdraw(self, entry: Entry) -> int:
        """Take a refused publication and all that follow it in its topic out, counters included.

        Returns how many publications. Only for what certainly was not and will not be stored:
        a counter that is given twice would make the broker drop the second publication.
        """
        with self._lock:
            known = self._settled()
            span = (entry.topic, entry.counter)
            sizes = "ifnull(sum(length(lengths)), 0), ifnull(sum(length(data)), 0)"
            [(lengths_bytes, data_bytes)] = self._read(
                f"SELECT {sizes} FROM outbox WHERE topic = ? AND counter >= ?", span
            )
            last = (entry.counter - 1, entry.topic)
            self._commit(
                ("DELETE FROM outbox WHERE topic = ? AND counter >= ?", span),
                ("UPDATE counters SET counter = ? WHERE topic = ?", last),
            )
            known.outbox_bytes -= lengths_bytes + data_bytes
            known.counters = self._counters()
            self._free_bytes_max = FREE_BYTES_KEPT
            self._shrink(known.outbox_bytes)
            self._known = known
            return int(lengths_bytes) // 4

    def remove(self, entry: Entry) -> int:
        """Take one refused publication out and close the gap: what follows moves up a place.

        Returns how many publications. As with `withdraw`: only for what certainly was not and will
        not be stored, and neither was anything behind it.
        """
        with self._lock:
            known = self._settled()
            self._commit(
                (_DELETE_ENTRY, (entry.topic, entry.counter)),
                *_shifted(entry.topic, entry.counter + entry.count, -entry.count),
            )
            known.outbox_bytes -= entry.size_bytes
            known.counters = self._counters()
            self._free_bytes_max = FREE_BYTES_KEPT
            self._shrink(known.outbox_bytes)
            self._known = known
            return entry.count

    # --- SQLite ---------------------------------------------------------------------------------

    def _open(self) -> sqlite3.Connection:
        where = ":memory:" if self.directory is None else str(self.directory / DATABASE_NAME)
        if self.directory is not None:
            with suppress(OSError):  # mostly it is there; else SQLite will say what is wrong
                # It would make a file that everybody reads; it takes an empty one.
                flags = os.O_RDONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
                os.close(os.open(where, flags, 0o600))
            if self._is_alone():
                _forget_cached(self.directory)
        try:
            database = sqlite3.connect(where, isolation_level=None, check_same_thread=False)
            try:
                self._prepare(database)
            except (sqlite3.Error, StateError) as error:
                self._has_failed = _is_of_disk(error)
                self._let_go(database)
                raise
        except sqlite3.Error as error:
            raise self._explained(error) from error
        if self.directory is not None:
            sync_names(self.directory)  # a killed process may have left them unsynced
            self._paths = [f"{self._where}{os.sep}{name}" for name in _FILES[:2]]
            self._files = _files_of(self._paths)
        return database

    def _check_there(self, directory: Path) -> None:
        """Raise StateUnusable if the files that are open are no longer those of the directory.

        SQLite writes on into files that have no name any more, and nobody would find them again.
        """
        try:
            found = _files_of(self._paths)
        except OSError as error:
            raise unusable(directory, error.strerror or str(error)) from error
        if found != self._files:
            raise unusable(directory, "other files stand in it than those that were opened")

    def _let_go(self, database: sqlite3.Connection) -> None:
        """Close the database, unless the log on the disk has a hole that can't be mended.

        The last to close it carries the log on into the database. If the power went then, the next
        process would read the log up to the hole, over pages of what came behind it. Such a
        database is left open until the process ends, as if it had been killed.
        """
        try:
            if self._has_failed:
                self._write_log_again()
        except StateUnusable:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(database))
            self._has_database = False
            return
        database.close()

    def _prepare(self, database: sqlite3.Connection) -> None:
        [(version,)] = database.execute("PRAGMA user_version").fetchall()
        [(tables,)] = database.execute("SELECT count(*) FROM sqlite_master").fetchall()
        if version == 0 and tables:
            raise self._damaged(f"{DATABASE_NAME} is another program's database")
        if version == 0:  # of a file that has pages this decides nothing yet: see below
            database.execute(f"PRAGMA auto_vacuum = {_INCREMENTAL}")
        # To the end: SQLite tells of a failed sync behind the answer's row.
        [(mode,)] = database.execute("PRAGMA journal_mode = WAL").fetchall()
        if self.directory is not None and mode != "wal":
            why = "its database has no WAL: the file system can't share memory, as a network's"
            raise unusable(self.directory, why)
        database.execute("PRAGMA synchronous = FULL")
        database.execute(f"PRAGMA journal_size_limit = {WAL_BYTES_KEPT}")
        [(finding,)] = database.execute("PRAGMA quick_check(1)").fetchall()
        if finding != "ok":
            raise self._damaged(finding)
        if version == 0:
            database.executescript(
                f"BEGIN; {_SCHEMA} PRAGMA user_version = {SCHEMA_VERSION}; COMMIT;"
            )
        elif version != SCHEMA_VERSION:
            raise self._damaged(f"schema version {version}, this program knows {SCHEMA_VERSION}")
        database.execute(_PROVISIONAL)
        database.execute(_RECOVERY)
        database.execute(_HANDED)
        database.execute(_PLACED)
        database.execute(_PATTERNS)
        database.execute("PRAGMA temp_store = MEMORY")
        database.execute(_COUNTING)
        for (table,) in database.execute(f"{_STRANGE} LIMIT 1").fetchall():
            raise self._damaged(f"the table `{table}` holds what no client writes there")
        self._shrinks = _made_shrinkable(database)

    def _read(self, sql: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        with self._lock:
            try:
                if self._put_off:
                    self._carry_out()
                return self._database.execute(sql, values).fetchall()
            except sqlite3.Error as error:
                raise self._explained(error) from error

    def _seen(self) -> _CachedState:
        """Return what stands in the database; while nobody changes it, without the lock."""
        known = self._known  # which whoever changes it sets aside meanwhile
        if known is None:
            with self._lock:
                known = self._settled()
        return known

    def _settled(self) -> _CachedState:
        """Return what stands in the database, behind a change that was broken off as well."""
        if self._known is None:
            self._roll_back()
            [(client_id, epoch, sequence)] = self._read(
                "SELECT client_id, epoch, sequence FROM client"
            )
            [(size_bytes,)] = self._read(
                "SELECT ifnull(sum(length(lengths) + length(data)), 0) FROM outbox"
            )
            cursors = dict(self._read("SELECT topic, last_id FROM cursors"))
            handed = dict(self._read("SELECT topic, last_id FROM handed"))
            placed = dict(self._read("SELECT topic, entry FROM placed"))
            patterns = dict(self._read("SELECT topic, entry FROM patterns"))
            counters = self._counters()
            self._known = _CachedState(
                client_id, epoch, sequence, size_bytes, cursors, handed, placed, patterns, counters
            )
        return self._known

    def _set(self, rows: Mapping[Row, Statement], durable: bool = True) -> None:
        """Set rows, all or none; without a directory, when the database is asked next.

        A row's statement stands for all that came before it, and may be carried out twice. From
        here on nothing is known in memory, as with `_commit`.
        """
        if self.directory is not None:
            self._commit(*rows.values(), durable=durable)
            return
        self.check_open()
        self._known = None
        self._put_off.update(rows)  # at one stroke: Python looks for a signal behind it

    def _forget_put_off(self, entry: Entry, counter: int) -> None:
        """Have an entry never enter the database; `counter`: the topic's last, which stays."""
        self.check_open()
        self._known = None
        self._put_off["counters", entry.topic] = _RAISE_COUNTER, (entry.topic, counter)
        del self._put_off[entry.topic, entry.counter]

    def _carry_out(self) -> None:
        """Carry out what was put off, before anything else is asked of the database.

        What is broken off before its end is carried out again, whether it was committed or not:
        nothing is known until then, so that whoever comes next reads, and that is here.
        """
        self.check_open()
        known, self._known = self._known, None
        self._roll_back()
        self._database.execute("BEGIN")
        for sql, values in self._put_off.values():
            self._database.execute(sql, values)
        self._database.execute("COMMIT")
        self._put_off = {}
        self._known = known

    def _commit(self, *statements: Statement, durable: bool = True) -> int:
        """Carry statements out in one transaction, all or none; return how many rows the last met.

        From here on nothing is known in memory: the caller, who has seen the commit, sets it.
        """
        self.check_open()
        self._known = None
        database, is_committing, met = self._database, False, 0
        try:
            if self._put_off:
                self._carry_out()
            if self.directory is not None:
                self._prepare_change(self.directory, durable or self._unwaited >= UNWAITED_MAX)
            if len(statements) == 1:  # SQLite makes a transaction of it
                is_committing = True
                return database.execute(*statements[0]).rowcount
            database.execute("BEGIN IMMEDIATE")
            for sql, values in statements:
                met = database.execute(sql, values).rowcount
            is_committing = True
            database.execute("COMMIT")
        except sqlite3.Error as error:
            raise self._failed(error, is_committing) from error
        except BaseException:
            self._roll_back()
            raise
        return met

    def _prepare_change(self, directory: Path, durable: bool) -> None:
        """Have the next transaction's end waited for, or not."""
        database = self._database
        if durable:
            self._check_there(directory)
            self._is_short = self._disk_free_bytes(directory) < SHORT_BYTES
        if self._has_failed:
            self._write_log_again()
        self._unwaited = 0 if durable else self._unwaited + 1
        pages = 1 if self._is_short else CHECKPOINT_PAGES if durable else 0
        # Said before each: a change that was broken off may have left the other settings.
        database.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
        database.execute(f"PRAGMA wal_autocheckpoint = {pages}")

    def _wait_for_changes(self) -> None:
        """Have all changes so far on the disk: of one that changes nothing SQLite syncs nothing."""
        self.check_open()
        if self._has_failed:
            self._write_log_again()
        elif self.directory is not None:
            try:
                _sync(self.directory / f"{DATABASE_NAME}-wal")
            except OSError as error:
                self._has_failed = True
                raise unusable(self.directory, error.strerror or str(error)) from error
        self._unwaited = 0

    def _failed(self, error: sqlite3.Error, is_committing: bool) -> FlotillaError:
        """Undo what an error of SQLite's has ended; return the error for the caller.

        A commit of which the disk says that it failed may stand in the log all the same.
        """
        is_of_disk = _is_of_disk(error)
        self._has_failed = self._has_failed or is_of_disk
        self._roll_back()
        explained = self._explained(error)
        explained.definite = not (is_committing and is_of_disk)
        return explained

    def _write_log_again(self) -> None:
        """Have on the disk what the log holds. Raises StateUnusable.

        Nobody else writes to it: who shares the directory waits for this one's turn to end.
        """
        if self.directory is not None:
            try:
                _write_again(self.directory / f"{DATABASE_NAME}-wal")
            except OSError as error:
                raise unusable(self.directory, error.strerror or str(error)) from error
        self._has_failed = False

    def _is_alone(self) -> bool:
        """Return whether no other process has the database open."""
        return True

    def _shrink(self, outbox_bytes: int) -> None:
        """Give free pages back, a bounded step; the next checkpoint cuts them off the file.

        In a transaction of its own, behind the change that freed them: where the disk is full it
        may find no room to move pages, and the change must not fail of that.
        """
        kept_bytes = FREE_BYTES_KEPT if outbox_bytes else FREE_BYTES_KEPT_EMPTY
        [(free,)] = self._read("PRAGMA freelist_count")
        [(page_bytes,)] = self._read("PRAGMA page_size")
        self._free_bytes_max = free * page_bytes
        pages = min(free - kept_bytes // page_bytes, SHRINK_BYTES // page_bytes)
        if not self._shrinks or pages <= 0:
            return
        database = self._database
        try:
            if self.directory is not None:
                self._prepare_change(self.directory, durable=True)
            database.execute("BEGIN IMMEDIATE")
            for _ in range(pages):  # one page each: Python steps a statement without rows once
                database.execute("PRAGMA incremental_vacuum(1)")
            database.execute("COMMIT")
        except sqlite3.Error as error:
            failure = self._failed(error, is_committing=False)
            if not _is_full(error):
                raise failure from error
        except BaseException:
            self._roll_back()
            raise

    def _roll_back(self) -> None:
        try:
            if self._database.in_transaction:
                self._database.execute("ROLLBACK")
        except sqlite3.Error as error:
            raise self._explained(error) from error

    def _explained(self, error: sqlite3.Error) -> FlotillaError:
        if self._is_closed:
            return Closed("the client is closed")
        code: int = getattr(error, "sqlite_errorcode", 0)  # a ProgrammingError has none
        if code & 0xFF in _UNUSABLE:
            return unusable(self.directory or Path("memory"), self._why_unusable(error))
        return self._damaged(str(error))

    def _why_unusable(self, error: sqlite3.Error) -> str:
        """Return what is wrong; SQLite may call a disk that is full an I/O error."""
        directory = self.directory
        if directory is not None and directory.exists():
            disk = os.statvfs(directory)
            if disk.f_bavail * disk.f_frsize < FULL_BYTES or (disk.f_files and not disk.f_favail):
                return f"the disk is full ({error})"
        return str(error)

    def _damaged(self, finding: str) -> StateDamaged:
        return StateDamaged(
            f"the client state in {self.directory or 'memory'} cannot be used: {finding}",
            details={"directory": str(self.directory or "")},
        )

    def _claim(self) -> None:
        """Lock the directory, if there is one."""
        self._sole = None if self.directory is None else Sole(self.directory)

    def _release(self) -> None:
        if self._sole is not None:
            self._sole.release()

    def _forsake(self) -> None:
        """Let go of a parent process's lock, which stays taken."""
        if self._sole is not None:
            self._sole.forsake()


def _made_shrinkable(database: sqlite3.Connection) -> bool:
    """Return whether free pages can be given back; make an older database anew for that.

    Not one that holds much: that takes time and as much room again. It is made anew when it has
    been sent, at the next opening.
    """
    if _pragma(database, "auto_vacuum") == _INCREMENTAL:
        return True
    used = _pragma(database, "page_count") - _pragma(database, "freelist_count")
    if used * _pragma(database, "page_size") > REMADE_BYTES_MAX:
        return False
    try:
        database.execute(f"PRAGMA auto_vacuum = {_INCREMENTAL}")
        database.execute("VACUUM")
    except sqlite3.Error as error:
        if not _is_full(error):
            raise
        return False  # it works as before, and the next opening tries again
    return True


def _files_of(paths: Sequence[str]) -> list[tuple[int, int]]:
    """Return which files names stand for: asked for before each change that is waited for."""
    return [(status.st_dev, status.st_ino) for status in map(os.stat, paths)]


def _forget_cached(directory: Path) -> None:
    """Read from the disk, and not from the cache, what an ended process has left.

    It may have left it behind a failed sync. Raises StateUnusable.
    """
    try:
        for path in [directory / name for name in _FILES if (directory / name).exists()]:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fsync(descriptor)
                if hasattr(os, "posix_fadvise"):  # not on macOS
                    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)
    except OSError as error:
        raise unusable(directory, error.strerror or str(error)) from error


def _log_bytes(directory: Path) -> int:
    """Return the size of the log, which where room is short is emptied behind each change."""
    log = directory / f"{DATABASE_NAME}-wal"
    return log.stat().st_size if log.exists() else 0


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write_again(path: Path) -> None:
    """Write a file with the bytes that it has, and wait until they are on the disk."""
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        offset = 0
        while data := os.pread(descriptor, COPY_BYTES, offset):
            offset += os.pwrite(descriptor, data, offset)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _pragma(database: sqlite3.Connection, name: str) -> int:
    [(value,)] = database.execute(f"PRAGMA {name}").fetchall()
    return int(value)


def _is_of_disk(error: Exception) -> bool:
    """Return whether the disk failed: what a sync was to write may be lost."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_IOERR


def _is_full(error: sqlite3.Error) -> bool:
    """Return whether the disk is: what only gives room back can wait."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_FULL


# --- fork() ---------------------------------------------------------------------------------------
#
# A child inherits the database, its locks as SQLite knows them, and the lock file. It must neither
# use nor close the database (sqlite.org/howtocorrupt.html, 2.6), and must let go of the lock file:
# the directory would stay in use when its owner has died. No thread may be inside SQLite while the
# process is copied: its own locks would stay taken in the child for ever.

_forking: Final = threading.RLock()  # one fork at a time
_states: Final[weakref.WeakSet[State]] = weakref.WeakSet()
_at_fork: Final[list[State]] = []  # whose locks are held during a fork


def _before_fork() -> None:
    _forking.acquire()
    for state in list(_states):
        state._lock.acquire()
        _at_fork.append(state)


def _after_fork_in_parent() -> None:
    while _at_fork:
        _at_fork.pop()._lock.release()
    _forking.release()


def _after_fork_in_child() -> None:
    for state in _at_fork:
        state._forsake()
        if state.directory is not None and state._has_database:
            # Referred to for ever, so that not even the end of the interpreter closes it.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(state._database))
            _states.discard(state)
    _after_fork_in_parent()


os.register_at_fork(
    before=_before_fork,
    after_in_parent=_after_fork_in_parent,
    after_in_child=_after_fork_in_child,
)

# --- SQL ------------------------------------------------------------------------------------------

_SEQUENCE: Final = "UPDATE client SET sequence = ?"
_INSERT_ENTRY: Final = "INSERT INTO outbox VALUES (?, ?, ?, ?)"
_SET_ENTRY: Final = "INSERT OR REPLACE INTO outbox VALUES (?, ?, ?, ?)"
_PROVISIONALLY: Final = "INSERT OR IGNORE INTO provisional VALUES (?, ?)"
_DELETE_ENTRY: Final = "DELETE FROM outbox WHERE topic = ? AND counter = ?"
_RAISE_COUNTER: Final = (
    "INSERT INTO counters VALUES (?, ?) "
    "ON CONFLICT DO UPDATE SET counter = max(counter, excluded.counter)"
)
_RAISE_CURSOR: Final = (
    "INSERT INTO cursors VALUES (?, ?) "
    "ON CONFLICT DO UPDATE SET last_id = max(last_id, excluded.last_id)"
)
_FOLLOW: Final = "INSERT OR REPLACE INTO patterns VALUES (?, ?)"
_PLACE: Final = "INSERT OR REPLACE INTO placed VALUES (?, ?)"
_RAISE_HANDED: Final = (
    "INSERT INTO handed VALUES (?, ?) "
    "ON CONFLICT DO UPDATE SET last_id = max(last_id, excluded.last_id)"
)


_NOBODY: Final[Sequence[Statement]] = (
    ("UPDATE client SET client_id = '', epoch = 0, sequence = 0", ()),
    ("DELETE FROM recovery", ()),
)


def _shifted(topic: str, first: int, by: int) -> list[Statement]:
    """Return what moves the counters of the topic's entries from `first` on, and its last counter.

    By way of negative numbers: no entry may meet its neighbour's counter on the way.
    """
    move = "UPDATE outbox SET counter = ? - counter WHERE topic = ? AND counter "
    last = "UPDATE counters SET counter = counter + ? WHERE topic = ?"
    return [(move + ">= ?", (-by, topic, first)), (move + "< 0", (0, topic)), (last, (by, topic))]
