"""Bringing up a member that is too far behind, or wiped: copies of the store over the peers' links.

What lives here: who copies what for whom, the pace, retries. What must not: how a copy is made,
checked and swapped in (snapshots.py), when a node counts as a member (membership.py).

The receiver pulls: it asks for a chunk when it has stored the one before, so a transfer never fills
a buffer, and goes on at the same offset after a lost connection.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

from cluster.store import snapshots
from cluster.wire.messages import Message, SnapshotChunk, SnapshotRefused, SnapshotRequest

CHUNK_BYTES: Final = 256 * 1024  # a chunk is read, sent and stored in well under a heartbeat
COPY_KEPT_S: Final = 30.0  # a copy that nobody asks for is removed
RETRY_S: Final = 2.0  # a chunk that did not come in this time is asked for again
REASON_CHARACTERS_MAX: Final = 200  # below the message's bound, whatever they encode to
REFUSED_PAUSE_S: Final = 0.3  # before a refused receiver asks again
DAMAGED_PAUSE_S: Final = 5.0  # before a copy is pulled anew that was damaged or found no room

_GONE: Final = "that copy is gone"

Send = Callable[[str, Message], None]


class Worker(Protocol):
    """Does slow jobs off the loop; `done` and `failed` are called in the loop again."""

    def submit(
        self,
        job: Callable[[], Any],
        done: Callable[[Any], None],
        failed: Callable[[Exception], None],
    ) -> None:
        """Run `job`; then `done(result)`, or `failed(error)` for an OSError or a database error."""

    @property
    def idle(self) -> bool:
        """True when no job is under way."""


@dataclass
class SnapshotServer:
    """Makes a copy of this node's store when asked, and hands out its chunks.

    `log(event, **fields)` hears of a copy that could not be read back.
    """

    database: Path
    directory: Path
    worker: Worker
    send: Send
    log: Callable[..., None]
    members_index: int = 0
    _copy: snapshots.SnapshotInfo | None = None
    _snapshot_id: str = ""
    _number: int = 0
    _used_s: float = 0.0
    _copying: bool = False
    _waiting: set[str] = field(default_factory=set)

    def request(self, name: str, message: SnapshotRequest, useful_index: int, now: float) -> None:
        """Answer a chunk's request; a copy older than `useful_index` is made anew."""
        self._used_s = now
        copy, useful_index = self._copy, max(useful_index, self.members_index)
        if message.snapshot_id and message.snapshot_id != self._snapshot_id:
            self.send(name, SnapshotRefused(_GONE))
        elif message.snapshot_id or (copy is not None and copy.index >= useful_index):
            self._send_chunk(name, message.offset)
        else:
            self._waiting.add(name)
            self._make_copy()

    def members_changed(self, index: int) -> None:
        """Give nobody a copy from before this entry: it lacks an admission."""
        self.members_index = index

    def _send_chunk(self, name: str, offset: int) -> None:
        copy = self._copy
        if copy is None:  # removed while those who waited for it were answered
            self.send(name, SnapshotRefused(_GONE))
            return
        if offset > copy.size_bytes:
            self.send(name, SnapshotRefused(f"offset {offset} is beyond {copy.size_bytes} bytes"))
            return
        try:
            data = snapshots.read_chunk(self._path, copy, offset, CHUNK_BYTES)
        except OSError as error:  # of a copy, which can be made anew: the store may be whole
            self.log("copy_unreadable", level="warning", node=name, reason=str(error))
            self._remove_copy()
            self.send(name, SnapshotRefused(f"no copy: {error}"[:REASON_CHARACTERS_MAX]))
            return
        what = copy.index, copy.term, copy.size_bytes, copy.digest
        self.send(name, SnapshotChunk(self._snapshot_id, *what, offset, data))

    @property
    def _path(self) -> Path:
        return self.directory / f"copy-{self._number}.db"

    def _make_copy(self) -> None:
        if self._copying:
            return
        self._remove_copy()
        self._copying = True
        self._number += 1
        path = self._path
        self.worker.submit(
            lambda: snapshots.make_copy(self.database, path), self._copied, self._failed
        )

    def _copied(self, copy: snapshots.SnapshotInfo) -> None:
        self._copying = False
        self._copy = copy
        self._snapshot_id = f"{self._number}-{copy.index}-{copy.digest.hex()[:16]}"
        self._answer_waiting(lambda name: self._send_chunk(name, 0))

    def _failed(self, error: Exception) -> None:
        self._copying = False
        self._path.unlink(missing_ok=True)
        reason = f"no copy: {error}"[:REASON_CHARACTERS_MAX]
        self._answer_waiting(lambda name: self.send(name, SnapshotRefused(reason)))

    def _answer_waiting(self, answer: Callable[[str], None]) -> None:
        waiting, self._waiting = self._waiting, set()
        for name in sorted(waiting):
            answer(name)

    def tick(self, now: float) -> None:
        """Remove a copy that nobody has asked for lately."""
        if self._copy is not None and now - self._used_s > COPY_KEPT_S:
            self._remove_copy()

    def _remove_copy(self) -> None:
        if self._copy is not None:
            self._path.unlink(missing_ok=True)
            self._copy, self._snapshot_id = None, ""


@dataclass
class SnapshotFetch:
    """Pulls one copy from another member, until it lies verified in `ready`.

    `log(event, **fields)` hears of a copy that was damaged or could not be stored.
    """

    directory: Path
    worker: Worker
    send: Send
    log: Callable[..., None]
    ready: snapshots.Verified | None = None
    source: str = ""
    _download: snapshots.Download | None = None
    _now_s: float = 0.0
    _asked_s: float = 0.0
    _pause_until_s: float = 0.0
    _verifying: bool = False

    @property
    def under_way(self) -> bool:
        """True while a copy is being pulled or verified."""
        return bool(self.source)

    def forget_ready(self) -> None:
        """Go without the copy in `ready`: its file is about to be the database."""
        self.ready = None

    def discard_ready(self) -> None:
        """Remove the copy in `ready`, if there is one: it is of no use."""
        if self.ready is not None:
            self.ready.path.unlink(missing_ok=True)
            self.ready = None

    def start(self, source: str, now: float) -> None:
        """Begin to pull a copy from `source`, unless one is under way or it just refused."""
        if self.under_way or self.ready is not None or now < self._pause_until_s:
            return
        self.source = source
        self._ask(now)

    def _ask(self, now: float) -> None:
        self._asked_s = now
        download = self._download
        if download is None:
            self.send(self.source, SnapshotRequest("", 0))
        else:
            self.send(self.source, SnapshotRequest(download.snapshot_id, download.offset))

    def take_chunk(self, name: str, chunk: SnapshotChunk, now: float) -> None:
        """Store a chunk that was asked for and ask for the next."""
        if name != self.source or self._verifying:
            return
        try:
            self._store(chunk, now)
        except OSError as error:
            self._damaged(error)

    def _store(self, chunk: SnapshotChunk, now: float) -> None:
        if self._download is None:
            self._download = snapshots.Download(self.directory / "download.db", chunk)
        if chunk.snapshot_id != self._download.snapshot_id or chunk.offset != self._download.offset:
            return  # an answer to a question that was asked twice
        self._download.write(chunk)
        if self._download.is_complete:
            self._verifying = True
            self.worker.submit(self._download.verify, self._verified, self._damaged)
        else:
            self._ask(now)

    def refused(self, name: str, now: float) -> None:
        """Begin anew a little later: the source has no such copy, or does not give us one."""
        if name == self.source and not self._verifying:
            self.abandon()
            self._pause_until_s = now + REFUSED_PAUSE_S

    def _verified(self, verified: snapshots.Verified) -> None:
        self.log("copy_fetched", node=self.source, index=verified.index, term=verified.term)
        self.ready = verified
        self._verifying = False
        self._download = None
        self.source = ""

    def _damaged(self, error: Exception) -> None:
        self.log("copy_damaged", node=self.source, reason=str(error))
        self._verifying = False
        self._pause_until_s = self._now_s + DAMAGED_PAUSE_S
        self.abandon()

    def abandon(self) -> None:
        """Drop what was pulled so far."""
        if self._download is not None:
            self._download.abandon()
            self._download = None
        self.source = ""

    def tick(self, now: float) -> None:
        """Ask again for a chunk that did not come."""
        self._now_s = now
        if self.under_way and not self._verifying and now - self._asked_s > RETRY_S:
            self._ask(now)

    def lost(self, name: str) -> None:
        """Note that the source is out of reach: another one may do, from the start."""
        if name == self.source and not self._verifying:
            self.abandon()
