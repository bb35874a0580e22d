"""What a node does for itself now and then: watch the disk's space, checkpoint, compact.

What lives here: when these are due. What must not: how a checkpoint or a compaction is done.
"""

from __future__ import annotations

import sqlite3
from typing import Final

from cluster import tables
from cluster.catchup import Worker
from cluster.replica import LogEvent, Replica

DISK_PERIOD_S: Final = 0.25  # at full speed a node writes some tens of MB in this time
CHECKPOINT_PERIOD_S: Final = 2.0
WAL_BYTES_DUE: Final = 16 * 1024 * 1024  # above it reads of the store slow down
_PASSING: Final = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_FULL, sqlite3.SQLITE_CANTOPEN)


class Upkeep:
    """The periodic work of one node. Call `tick` at the end of every turn."""

    def __init__(
        self, replica: Replica, worker: Worker, disk_free_min_bytes: int, log: LogEvent
    ) -> None:
        self._replica, self._worker, self._log = replica, worker, log
        self._disk_free_min_bytes = disk_free_min_bytes
        self._next_disk_s = self._next_checkpoint_s = 0.0
        self._checkpointing = False

    def tick(self, now: float) -> None:
        """Do what is due at `now` (monotonic seconds)."""
        if now >= self._next_disk_s:
            self._next_disk_s = now + DISK_PERIOD_S
            self._watch_disk()
        if now >= self._next_checkpoint_s and not self._checkpointing:
            self._next_checkpoint_s = now + CHECKPOINT_PERIOD_S
            self._checkpoint_if_due()

    def _watch_disk(self) -> None:
        settings = self._replica.settings
        free_bytes = settings.files.free_bytes(settings.data_dir)
        low = free_bytes < self._disk_free_min_bytes
        if low != self._replica.disk_low:
            self._replica.disk_low = low
            self._log("disk", low=low, free_bytes=free_bytes, min_bytes=self._disk_free_min_bytes)

    def _checkpoint_if_due(self) -> None:
        replica = self._replica
        if replica.raft is None:
            return
        settings = replica.settings
        kept = settings.keep_bytes + settings.segment_bytes
        wal = tables.side_file(settings.database, "-wal")
        wal_bytes = wal.stat().st_size if wal.exists() else 0
        if replica.journal.size_bytes > kept or wal_bytes > WAL_BYTES_DUE:
            self._checkpointing = True
            path = settings.database
            self._worker.submit(lambda: tables.checkpoint(path), self._checkpointed, self._failed)

    def _checkpointed(self, durable_index: int) -> None:
        self._checkpointing = False
        dropped = self._replica.journal.compact(durable_index)
        if dropped:
            self._log("compacted", durable_index=durable_index, segments=dropped)

    def _failed(self, error: Exception) -> None:
        # After a failed fsync a second one may succeed with the pages gone, and the journal would
        # be dropped on its word. Only want of a lock, of room or of descriptors passes.
        if getattr(error, "sqlite_errorcode", 0) & 0xFF not in _PASSING:
            raise error
        self._checkpointing = False
        self._log("checkpoint_failed", reason=str(error))
