"""The scrub: what is on the disk is read back before it is needed, and damage is reported.

What lives here: the pace, the order, what is known of damage. What must not: how a segment or a row
is checked (log/sealed.py, store/rows.py), a clock, a disk: the worker's jobs read.

A node with damage goes on (docs/decisions/0023-scrub.md): each read is verified, so it never
answers from what is damaged, and a node that stops is a lost vote. It reports, and has the journal
drop a damaged segment as soon as the store has what is in it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from cluster.log.files import Files
from cluster.log.journal import Journal
from cluster.log.sealed import CheckedPiece, Sealed, check_piece
from cluster.members.catchup import Worker
from cluster.store.rows import CheckedRows, Place, check_slice

# A step is one read of the worker's: some milliseconds, in which a checkpoint may wait for it.
STEP_BYTES: Final = 256 * 1024
STEP_ROWS: Final = 256
ROW_COST_BYTES: Final = 512  # to check a row takes the processor as long as so many bytes
RETRY_S: Final = 1.0  # after a lock, or want of descriptors
DAMAGES_KEPT_MAX: Final = 1_000  # of more only the number is known
DAMAGES_SHOWN_MAX: Final = 10  # in a status
_ADVICE: Final = "see docs/operations.md, FlotillaDamage: the node is to be wiped and readmitted"


@dataclass(frozen=True, slots=True)
class ScrubPace:
    """`bytes_per_s_max`: 0: nothing is read. `period_s`: from one pass's beginning to the next."""

    bytes_per_s_max: int = 0
    period_s: float = 0.0


@dataclass(frozen=True, slots=True)
class DamageFound:
    """`file`: below the data directory; `where`: offset=…, or table=…, row=…; `reason`: a text."""

    file: str
    where: tuple[tuple[str, str | int], ...]
    reason: str

    def fields(self) -> dict[str, Any]:
        """Return it as a log's line and a status have it."""
        return {"file": self.file, **dict(self.where), "reason": self.reason}


@dataclass(slots=True)
class _Pass:
    """One pass that is under way: `segments` that are still to be read, then the store's rows.

    `offset`: in the first of them. `place`: None once all rows are read.
    """

    began_s: float
    segments: deque[Sealed]
    offset: int = 0
    place: Place | None = field(default_factory=Place)
    size_bytes: int = 0
    found: dict[DamageFound, None] = field(default_factory=dict)
    count: int = 0


class Scrub:
    """Reads journal and store back, step by step. Call `tick` each turn, of a member alone.

    `wall_ms`: the time of day, for people.
    """

    def __init__(
        self,
        pace: ScrubPace,
        database: Path,
        journal: Journal,
        files: Files,
        worker: Worker,
        wall_ms: Callable[[], int],
        log: Callable[..., None],
    ) -> None:
        self._pace, self._database, self._journal = pace, database, journal
        self._files, self._worker, self._wall_ms, self._log = files, worker, wall_ms, log
        self._now_s = self._next_s = 0.0
        self._is_reading = False
        self._pass: _Pass | None = None
        self._passes = self._size_bytes = self._ended_ms = 0
        self._last: _Pass | None = None

    # --- what is known --------------------------------------------------------------------------

    def describe(self) -> dict[str, Any]:
        """Return the status's part: `damage`, what was found last, and `scrub`, how far it is."""
        last, now, known = self._last, self._pass, self.findings()
        count = max(len(known), last.count if last else 0, now.count if now else 0)
        return {
            "damage": known[:DAMAGES_SHOWN_MAX],
            "scrub": {
                "damaged": count,
                "passes": self._passes,
                "bytes": self._size_bytes,
                "pass_bytes": now.size_bytes if now else 0,
                "last_pass_bytes": last.size_bytes if last else 0,
                "last_pass_ended_ms": self._ended_ms,
            },
        }

    def findings(self) -> list[dict[str, Any]]:
        """Return what the last pass found, and the one that is under way."""
        passes = [each for each in (self._last, self._pass) if each is not None]
        known = dict.fromkeys(finding for each in passes for finding in each.found)
        return [each.fields() for each in known]

    # --- reading --------------------------------------------------------------------------------

    def tick(self, now: float) -> None:
        """Have the next step read if it is due at `now` and the worker has nothing else to do."""
        self._now_s = now
        is_due = self._pace.bytes_per_s_max and now >= self._next_s
        if not is_due or self._is_reading or not self._worker.idle:
            return
        if self._pass is None:
            self._pass = _Pass(now, deque(self._journal.sealed()))
        self._is_reading = True
        self._read(self._pass)

    def _read(self, under_way: _Pass) -> None:
        database, files, place = self._database, self._files, under_way.place
        if under_way.segments:
            sealed, offset = under_way.segments[0], under_way.offset
            self._worker.submit(
                lambda: check_piece(sealed, offset, STEP_BYTES, files),
                lambda piece: self._take_piece(under_way, sealed, piece),
                lambda error: self._piece_failed(under_way, sealed, error),
            )
        else:
            assert place is not None, "a pass that is over goes on"
            self._worker.submit(
                lambda: check_slice(database, place, STEP_ROWS, STEP_BYTES),
                lambda found: self._take_slice(under_way, found),
                self._failed,
            )

    def _take_piece(self, under_way: _Pass, sealed: Sealed, piece: CheckedPiece) -> None:
        self._pay(under_way, piece.size_bytes, 0)
        if piece.damage:
            self._journal.note_damage(sealed)
            self._damaged_segment(under_way, sealed, piece.damaged_offset, piece.damage)
        under_way.offset = piece.offset
        if piece.offset >= sealed.size_bytes:
            self._next_segment(under_way)

    def _piece_failed(self, under_way: _Pass, sealed: Sealed, error: Exception) -> None:
        if not isinstance(error, FileNotFoundError):
            self._failed(error)
            return
        self._is_reading = False
        self._damaged_segment(under_way, sealed, 0, "the file is missing")
        self._next_segment(under_way)

    def _damaged_segment(self, under_way: _Pass, sealed: Sealed, offset: int, reason: str) -> None:
        if not self._journal.holds(sealed):
            return  # it was dropped meanwhile
        file = f"{sealed.path.parent.name}/{sealed.path.name}"
        self._damaged(under_way, DamageFound(file, (("offset", offset),), reason))

    @staticmethod
    def _next_segment(under_way: _Pass) -> None:
        under_way.segments.popleft()
        under_way.offset = 0

    def _take_slice(self, under_way: _Pass, found: CheckedRows) -> None:
        self._pay(under_way, found.size_bytes, found.rows)
        file = f"{self._database.parent.name}/{self._database.name}"
        for row in found.damaged:
            where = (("table", row.table), ("row", row.row))
            self._damaged(under_way, DamageFound(file, where, row.reason))
        under_way.place = found.after
        if found.after is None:
            self._end(under_way)

    def _pay(self, under_way: _Pass, size_bytes: int, rows: int) -> None:
        """Wait with the next step until this one's bytes are within the pace."""
        self._is_reading = False
        under_way.size_bytes += size_bytes
        self._size_bytes += size_bytes
        cost_bytes = size_bytes + rows * ROW_COST_BYTES
        self._next_s = self._now_s + cost_bytes / self._pace.bytes_per_s_max

    def _failed(self, error: Exception) -> None:
        """Try the step again: what tells of damage is no failure."""
        self._is_reading = False
        self._next_s = self._now_s + RETRY_S
        self._log("scrub_waits", level="warning", reason=str(error))

    def _damaged(self, under_way: _Pass, damage: DamageFound) -> None:
        under_way.count += 1
        if damage in under_way.found or len(under_way.found) >= DAMAGES_KEPT_MAX:
            return
        under_way.found[damage] = None
        if self._last is None or damage not in self._last.found:
            self._log("damage_found", level="error", **damage.fields(), advice=_ADVICE)

    def _end(self, under_way: _Pass) -> None:
        self._last, self._pass = under_way, None
        self._passes += 1
        self._ended_ms = self._wall_ms()
        self._next_s = max(self._next_s, under_way.began_s + self._pace.period_s)
        self._log(
            "scrubbed",
            level="warning" if under_way.count else "info",
            bytes=under_way.size_bytes,
            seconds=round(self._now_s - under_way.began_s, 3),
            damaged=under_way.count,
        )
