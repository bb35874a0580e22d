"""What a node does for itself now and then: watch the disk's space, checkpoint, compact, shrink.

What lives here: when these are due. What must not: how a checkpoint or a compaction is done.

A store that was read empty gives its free pages back to the file system. Until then they count as
room: publications go there first. They do not count for everything, as the journal and the WAL
can't use them. What stands in the WAL alone counts against it: the next checkpoint needs as much.

The disk is looked at by time, and by bytes as well: a node that writes fast would fill it between
two looks, and a journal without room ends its node.
"""

from __future__ import annotations

import sqlite3
from typing import Final

from cluster.log.journal import Journal
from cluster.members.catchup import Worker
from cluster.node.budget import CHORES_SHARE, Budget
from cluster.node.context import DiskRoom, LogEvent
from cluster.node.member import Member
from cluster.node.replica import Replica
from cluster.store import tables
from cluster.store.store import Store

DISK_PERIOD_S: Final = 0.25
DISK_STEP_BYTES: Final = 1024 * 1024  # of the journal: at full speed a period writes tens of MB
CHECKPOINT_PERIOD_S: Final = 2.0
WAL_BYTES_DUE: Final = tables.WAL_BYTES_KEPT  # above it reads of the store slow down
DISK_SHARE_MIN: Final = 0.5  # of the least room: so much of it has to be the file system's own
SURPLUS_PERIOD_S: Final = 2.0  # pages that were free for so long are not about to be used
SPARE_BYTES: Final = 4 * 1024 * 1024  # of free pages that stay: a steady load goes round in them
_PASSING: Final = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_FULL, sqlite3.SQLITE_CANTOPEN)


class Maintenance:
    """The periodic work of one node. Call `tick` at the end of every turn.

    `room`: what the disk has room for, as it was when it was looked at last.
    """

    def __init__(
        self, replica: Replica, worker: Worker, disk_free_min_bytes: int, log: LogEvent
    ) -> None:
        self.room = DiskRoom()
        self._replica, self._worker, self._log = replica, worker, log
        self._disk_free_min_bytes = disk_free_min_bytes
        self._next_disk_bytes = 0  # of the journal, when the disk is looked at next
        self._next_disk_s = self._next_checkpoint_s = self._next_surplus_s = 0.0
        self._checkpointing = False
        self._compact_below: int | None = None  # a checkpoint's index, until the log is cut there
        self._dropped = 0  # segments, on the way there
        self._free_bytes = 0  # of the store's pages, when they were counted last
        self._shrink_to_bytes: int | None = None  # free pages are given back down to this
        heartbeat_s = replica.settings.timing.heartbeat_s
        self._chores = Budget(replica.clock, CHORES_SHARE * heartbeat_s)

    def tick(self, now: float) -> None:
        """Do what is due at `now` (monotonic seconds)."""
        member = self._replica.member
        journal_bytes = 0 if member is None else member.journal.size_bytes
        if now >= self._next_disk_s or journal_bytes >= self._next_disk_bytes:
            self._next_disk_s = now + DISK_PERIOD_S
            self._next_disk_bytes = journal_bytes + DISK_STEP_BYTES
            self._watch_disk(0 if member is None else member.store.room_bytes())
        if now >= self._next_checkpoint_s and not self._checkpointing:
            self._next_checkpoint_s = now + CHECKPOINT_PERIOD_S
            if member is not None:
                self._checkpoint_if_due(member)
        if member is None:
            return
        if self._compact_below is not None:
            self._compact(member.journal, self._compact_below)
        self._shrink(member.store, now)
        if not member.awaits_worker:
            member.scrub.tick(now)

    def _watch_disk(self, store_bytes: int) -> None:
        replica, min_bytes = self._replica, self._disk_free_min_bytes
        reserve_bytes = int(min_bytes * DISK_SHARE_MIN)
        free_bytes = replica.settings.files.free_bytes(replica.settings.data_dir)
        low = free_bytes + store_bytes < min_bytes or free_bytes < reserve_bytes
        was_low = self.room.is_low
        self.room = DiskRoom(low, free_bytes + min(0, store_bytes) - reserve_bytes)
        if low != was_low:
            self._log(
                "disk",
                level="warning" if low else "info",
                low=low,
                free_bytes=free_bytes,
                store_bytes=store_bytes,
                min_bytes=min_bytes,
            )

    def _shrink(self, store: Store, now: float) -> None:
        """Give back, step by step, the store's pages that were free all through a period."""
        if now >= self._next_surplus_s:
            self._next_surplus_s = now + SURPLUS_PERIOD_S
            before_bytes, self._free_bytes = self._free_bytes, store.free_bytes()
            surplus_bytes = min(before_bytes, self._free_bytes) - SPARE_BYTES
            if surplus_bytes > 0:
                self._shrink_to_bytes = self._free_bytes - surplus_bytes
        if self._shrink_to_bytes is not None:
            self._chores.begin()
            if not store.give_back(self._shrink_to_bytes, self._chores.spent):
                self._shrink_to_bytes = None
            store.commit()

    def _checkpoint_if_due(self, member: Member) -> None:
        settings = self._replica.settings
        kept = settings.keep_bytes + settings.segment_bytes
        wal = tables.side_file(settings.database, "-wal")
        wal_bytes = wal.stat().st_size if wal.exists() else 0
        long = settings.database.stat().st_size > member.store.size_bytes()  # it has shrunk
        asked = member.store.checkpoint_index > member.checkpointed_index
        large = member.journal.size_bytes > kept or wal_bytes > WAL_BYTES_DUE
        if large or long or asked or member.journal.damaged_index:
            self._checkpointing = True
            path = settings.database
            self._worker.submit(lambda: tables.checkpoint(path), self._checkpointed, self._failed)

    def _checkpointed(self, durable_index: int) -> None:
        self._checkpointing = False
        self._compact_below = durable_index
        member = self._replica.member
        if member is None:
            return
        if member.checkpointed_index < member.store.checkpoint_index <= durable_index:
            self._log("checkpointed", durable_index=durable_index)  # an administrator asked for it
        member.checkpointed_index = durable_index

    def _compact(self, journal: Journal, durable_index: int) -> None:
        """Cut the log, step by step: what was kept for long is hundreds of files."""
        self._chores.begin()
        dropped = journal.compact(durable_index, self._chores.spent)
        self._dropped += dropped
        if dropped:
            return
        if self._dropped:
            self._log("compacted", durable_index=durable_index, segments=self._dropped)
        self._compact_below, self._dropped = None, 0

    def _failed(self, error: Exception) -> None:
        # After a failed fsync a second one may succeed with the pages gone, and the journal would
        # be dropped on its word. Only want of a lock, of room or of descriptors passes.
        if getattr(error, "sqlite_errorcode", 0) & 0xFF not in _PASSING:
            raise error
        self._checkpointing = False
        self._log("checkpoint_failed", reason=str(error))
