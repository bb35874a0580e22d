"""The way back from a lost majority: a new cluster from the data directory of one node.

What lives here: what `flotilla-node recover` does with files. What must not: a running node, the
command line (cli.py), how the recovered node finds its members (membership.py).

The model is etcd's `snapshot restore`. The state is taken up to the journal's last entry: one that
was acknowledged may be the last that this node has, and one that was not is a publication whose
producer was told "unknown", which may be stored. The new cluster has another id, so that a node of
the old one is refused by every handshake; a term above all that this node has seen; and every
client's epoch is raised, so that each process learns of it before it goes on (docs/recovery.md).
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, NoReturn
from uuid import uuid4

from cluster.log.entries import payload_of
from cluster.log.files import DISK
from cluster.log.journal import Journal
from cluster.log.segments import JournalError
from cluster.members.identity import (
    CONDEMNED_NAME,
    IDENTITY_NAME,
    LOCK_NAME,
    PID_BYTES_MAX,
    RESCUED_NAME,
    UNFINISHED_NAME,
    DirectoryInUse,
    Identity,
)
from cluster.members.membership import UNNAMED
from cluster.settings.config import MEMBER_COUNTS, NAME_PATTERN
from cluster.store import rows, snapshots, tables
from cluster.store.commands import DamagedEntry
from cluster.store.store import Store
from cluster.store.tables import CorruptStore
from cluster.wire.levels import UnsupportedLevel
from flotilla_client.protocol import EPOCHS_A_RECOVERY

TERMS_AHEAD: Final = 1_000_000
"""The lost nodes may have seen later terms than this one: more elections than they can have had."""
COMMIT_ENTRIES: Final = 1_000  # applied between two commits: bounds the database's log
CLUSTER_ID_MAX: Final = 32  # as in the settings
BACKUP_NAME: Final = "before-recovery"

_PARTS: Final = ("journal", "store")
_STORE_FILES: Final = ("store.db", "store.db-wal", "store.db-journal", "store.db.install")
_SUFFIX: Final = re.compile(r"-r[0-9a-f]{8}$")


class RecoveryError(Exception):
    """Nothing can be recovered from there as it is, or not to there; nothing was changed."""


@dataclass(frozen=True)
class Found:
    """What the directory of one node holds, applied up to its journal's last entry.

    `applied_index`: what the store held itself. `settled_index`: entries up to it were certainly
    committed; of those behind it that is unknown. `term`: the newest that it knows of.
    """

    directory: Path
    identity: Identity
    members: tuple[str, ...]
    applied_index: int
    settled_index: int
    last_index: int
    last_term: int
    term: int
    clients: int
    topics: int
    subscriptions: int
    publications: int


def new_cluster_id(old: str) -> str:
    """Return a name for what becomes of the cluster `old`, which no other recovery chooses."""
    suffix = f"-r{uuid4().hex[:8]}"
    return _SUFFIX.sub("", old)[: CLUSTER_ID_MAX - len(suffix)] + suffix


class Recovery:
    """One recovery under way, as a context: `found` tells what is there, `finish` makes the node.

    `target` None: in place. `with_journal` False: of the store alone, where the journal is damaged.
    Until `finish` the source is as it was, and a recovery that does not come to it leaves nothing
    behind. Raises RecoveryError, DirectoryInUse, IdentityError, OSError.
    """

    found: Found

    def __init__(self, source: Path, target: Path | None, *, with_journal: bool = True) -> None:
        self._source, self._target, self._with_journal = source, target, with_journal
        self._work = source / UNFINISHED_NAME if target is None else target
        self._settled: dict[str, int] = {}
        self._stack = ExitStack()

    def __enter__(self) -> Recovery:
        if not self._source.is_dir():
            raise RecoveryError(f"{self._source} is no directory")
        source = self._source.resolve()
        if self._target is not None and self._target.exists() and any(_own(self._target)):
            raise RecoveryError(f"{self._target} is not empty; name a new directory")
        if self._target is not None and self._target.resolve().is_relative_to(source):
            raise RecoveryError(f"{self._target} is in {self._source}, which is to stay as it is")
        with ExitStack() as stack:
            stack.enter_context(_held(self._source))
            if self._target is None:
                self._put_back()
            identity = self._identity()
            stack.callback(self._discard_unfinished)
            self._copy()
            self.found = self._inspected(identity)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_error: object) -> None:
        self._stack.close()

    def finish(self, cluster_id: str, members: Sequence[str]) -> Path:
        """Make the first node of the new cluster; return its data directory, durable and whole."""
        found = self.found
        node, old_id = found.identity.node, found.identity.cluster_id
        if len(set(members)) not in MEMBER_COUNTS or node not in members:
            named = ", ".join(members)
            raise RecoveryError(f"members are 1, 3, 5 or 7 with {node} among them, not {named}")
        for name in (cluster_id, *members):
            if not NAME_PATTERN.fullmatch(name):
                raise RecoveryError(f"{name!r} is not 1 to 32 of a-z, 0-9 and -")
        if cluster_id == old_id:
            raise RecoveryError(
                f"the new cluster must not be called {old_id!r} like the old one, whose nodes could"
                " come back and be taken for members of the new one"
            )
        index, term = found.last_index + 1, found.term + TERMS_AHEAD
        identity = replace(Identity.create(cluster_id, node), started=True, admitted_index=index)
        with tables.disk_errors():
            self._finish_store(
                index, term, dict.fromkeys(members, UNNAMED) | {node: identity.incarnation}
            )
        self._finish_journal(index, term)
        identity.save(self._work)
        self._give_to_owner(self._work)
        return self._swapped_in() if self._target is None else self._target

    # --- looking --------------------------------------------------------------------------------

    def _identity(self) -> Identity:
        identity = Identity.load(self._source)
        if identity is None:
            raise RecoveryError(f"{self._source} is empty: there is nothing to recover")
        condemned = self._source / CONDEMNED_NAME
        if condemned.exists():
            reason = condemned.read_bytes().decode(errors="replace")
            raise RecoveryError(
                f"{self._source}: {reason}. Recover from another node's directory. If this is the"
                f" only one that is left, remove {condemned} first: what is recovered is what this"
                " node made of the log, which a majority had not"
            )
        if not identity.started:
            raise RecoveryError(
                f"{self._source} belongs to node {identity.node!r}, which never became a member of"
                f" cluster {identity.cluster_id!r}: it holds nothing"
            )
        return identity

    def _copy(self) -> None:
        """Copy journal and store: to open the source's would change it."""
        self._discard_unfinished()
        DISK.make_directory(self._work)  # as a node makes its own, for its owner and group alone
        for part in _PARTS:
            is_needed = part != "journal" or self._with_journal
            if is_needed and not (self._source / part).is_dir():
                raise RecoveryError(f"{self._source / part} is missing")
            DISK.make_directory(self._work / part)
            if not (self._source / part).exists():
                continue
            for file in sorted((self._source / part).iterdir()):
                if file.suffix == ".log" or file.name in _STORE_FILES:
                    shutil.copyfile(file, self._work / part / file.name)

    def _discard_unfinished(self) -> None:
        """Remove the copy, unless a node has been made of it and has, or comes to, its place."""
        if self._target is None:
            if not (self._work / BACKUP_NAME / IDENTITY_NAME).exists() and self._work.exists():
                shutil.rmtree(self._work)
        elif not (self._work / IDENTITY_NAME).exists():
            for part in _PARTS:
                shutil.rmtree(self._work / part, ignore_errors=True)

    def _inspected(self, identity: Identity) -> Found:
        try:
            with tables.disk_errors():
                return self._applied(identity)
        except UnsupportedLevel as error:
            raise RecoveryError(f"{self._source}: {error}") from error
        except (JournalError, CorruptStore, DamagedEntry, sqlite3.DatabaseError) as error:
            reason = str(error).replace(str(self._work), str(self._source))
            reason = reason.partition(" To rebuild")[0]  # from others, of whom there are too few
            raise RecoveryError(
                f"{self._source} is damaged, and nothing was changed: {reason}"
            ) from error

    def _applied(self, identity: Identity) -> Found:
        """Apply what the journal has above the store; note each topic's last certain id."""
        database = _database(self._work)
        snapshots.remove_leftovers(database)
        with ExitStack() as stack:
            store = Store.open(database, {})
            stack.callback(store.close)
            reader = stack.enter_context(
                closing(tables.connect(database, tables.WRITER_BUSY_MS_MAX))
            )
            rows.check_rows(database, reader, lambda _size_bytes: None)
            applied = settled = last = store.applied_index
            term = store.applied_term
            if self._with_journal:
                journal = Journal.open(self._work / "journal", on_failure=_raise)
                stack.callback(journal.close)
                term = max(term, journal.term, journal.last_term)
                if _is_joint(journal, store):
                    last = max(journal.last_index, applied)
                settled = max(journal.commit_index, applied)
                _apply(store, journal, settled)
                self._settled = store.topic_ends()
                _apply(store, journal, last)
            else:
                self._settled = store.topic_ends()
            numbers = store.statistics()
            return Found(
                self._source,
                identity,
                tuple(sorted(store.members)),
                applied,
                settled,
                last,
                store.applied_term,
                term,
                numbers["clients"],
                numbers["topics"],
                numbers["subscriptions"],
                store.unread_publications(),
            )

    # --- making ---------------------------------------------------------------------------------

    def _finish_store(self, index: int, term: int, members: dict[str, str]) -> None:
        database = _database(self._work)
        store = Store.open(database, {})
        store.apply(index, term, b"")
        store.commit()
        store.close()
        recovery = tables.RecoveryRow(str(uuid4()), self._settled)
        tables.write_recovery(database, recovery, members, EPOCHS_A_RECOVERY)

    def _finish_journal(self, index: int, term: int) -> None:
        """Begin a log at the store's place: all before it stands in the store."""
        directory = self._work / "journal"
        shutil.rmtree(directory)
        Journal.create(directory)
        journal = Journal.open(directory, on_failure=_raise)
        journal.set_term(term, None)
        journal.reset(index, term)
        journal.close()

    def _give_to_owner(self, made: Path) -> None:
        """Let who owns the source own what was made: an operator is root, a node is not."""
        owner = self._source.stat()
        if os.geteuid() == 0:
            own = _own(made)
            for path in (made, *own, *(below for each in own for below in each.rglob("*"))):
                os.chown(path, owner.st_uid, owner.st_gid)

    def _swapped_in(self) -> Path:
        """Put the new node in the old one's place, and the old one's files below it.

        The identity leaves first and comes last: a directory without one is refused by every node.
        What left stays beside the copy until then, where `_put_back` finds it.
        """
        source, kept = self._source, self._work / BACKUP_NAME
        DISK.make_directory(kept)
        self._give_to_owner(kept)
        for part in _PARTS:  # a missing one would not be put back in the place of what was made
            DISK.make_directory(source / part)
        for name in (IDENTITY_NAME, *_PARTS):
            _move(source / name, kept / name)
        for name in (*_PARTS, IDENTITY_NAME):
            _move(self._work / name, source / name)
        self._put_away()
        return source

    def _put_away(self) -> None:
        _move(self._work / BACKUP_NAME, unused(self._source / BACKUP_NAME))
        self._work.rmdir()

    def _put_back(self) -> None:
        """Undo a swap that was cut off; end one that only had to put the old files away.

        The new node has never run then: its identity is the last to come. Cut off itself, this goes
        on with what is left to be put back.
        """
        kept = self._work / BACKUP_NAME
        if not (kept / IDENTITY_NAME).exists():
            return
        if (self._source / IDENTITY_NAME).exists():
            self._put_away()
            return
        for name in (*_PARTS, IDENTITY_NAME):
            if (kept / name).exists():
                if (self._source / name).exists():  # the new node's
                    shutil.rmtree(self._source / name)
                _move(kept / name, self._source / name)


def _move(here: Path, there: Path) -> None:
    """Move a file or a directory, durable on return."""
    DISK.rename(here, there)
    DISK.fsync_directory(there.parent)
    DISK.fsync_directory(here.parent)


def _database(directory: Path) -> Path:
    return directory / "store" / "store.db"


def _own(directory: Path) -> list[Path]:
    """Return what is in `directory`, without what a new file system has at its top."""
    return [path for path in directory.iterdir() if path.name != RESCUED_NAME]


def unused(path: Path) -> Path:
    """Return `path`, or the first of `path-2`, `path-3`, … that is not there."""
    number = 1
    candidate = path
    while candidate.exists():
        number += 1
        candidate = path.with_name(f"{path.name}-{number}")
    return candidate


def _raise(error: Exception) -> NoReturn:
    raise error


def _is_joint(journal: Journal, store: Store) -> bool:
    """Return whether the journal goes on where the store ends.

    Not if that is a copy which came in the place of what the journal has, and the node ended before
    it began that anew. Raises JournalError where they contradict each other.
    """
    applied, term = store.applied_index, store.applied_term
    known = journal.term_at(applied)
    if journal.first_index <= applied + 1 and known in (None, term):
        return True
    if known is not None and journal.commit_index < applied:
        return False
    raise JournalError(
        f"the store stands at entry {applied} of term {term}, the journal has entries"
        f" {journal.first_index} to {journal.last_index}"
        f"{'' if known is None else f', that one of term {known}'}."
    )


def _apply(store: Store, journal: Journal, last: int) -> None:
    """Apply the journal's entries up to `last`, as a node does."""
    for index in range(store.applied_index + 1, min(last, journal.last_index) + 1):
        entry = journal.entry(index)
        store.apply(index, entry[2], payload_of(entry))
        if index % COMMIT_ENTRIES == 0:
            store.commit()
    store.commit()


@contextmanager
def _held(directory: Path) -> Iterator[None]:
    """Keep nodes out of `directory` without changing it. Raises DirectoryInUse, OSError."""
    lock = directory / LOCK_NAME
    if not lock.exists():  # a backup: what no node was ever started on
        yield
        return
    with open(lock, "rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = file.read(PID_BYTES_MAX).decode(errors="replace").strip() or "unknown"
            raise DirectoryInUse(
                f"{directory} is in use by another process (pid {holder}): stop that node first"
            ) from None
        yield
