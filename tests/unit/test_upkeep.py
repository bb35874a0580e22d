"""A node's periodic work: what may be tried again and what must not."""

from __future__ import annotations

import errno
import sqlite3
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cluster import upkeep
from cluster.files import DISK
from cluster.upkeep import Upkeep

KEPT_BYTES = 1000


class FailingWorker:
    """Fails the next job with `error`, at once; counts them."""

    def __init__(self) -> None:
        self.error: Exception = OSError()
        self.jobs = 0

    def submit(
        self,
        job: Callable[[], Any],
        done: Callable[[Any], None],
        failed: Callable[[Exception], None],
    ) -> None:
        self.jobs += 1
        failed(self.error)

    idle = True


class Bench:
    def __init__(self, directory: Path, disk_free_min_bytes: int = 0) -> None:
        settings = SimpleNamespace(
            data_dir=directory,
            database=directory / "s.db",
            keep_bytes=KEPT_BYTES,
            segment_bytes=0,
            files=DISK,
        )
        journal = SimpleNamespace(size_bytes=KEPT_BYTES + 1)
        self.replica: Any = SimpleNamespace(
            settings=settings, journal=journal, raft=object(), disk_low=False
        )
        self.worker = FailingWorker()
        self.events: list[str] = []
        self.upkeep = Upkeep(
            self.replica, self.worker, disk_free_min_bytes, lambda event, **_: self.note(event)
        )

    def note(self, event: str) -> None:
        self.events.append(event)


def sqlite_error(code: int) -> sqlite3.OperationalError:
    error = sqlite3.OperationalError("as SQLite says it")
    error.sqlite_errorcode = code
    return error


@pytest.mark.parametrize(
    "error", [OSError(errno.EIO, "fsync"), sqlite_error(sqlite3.SQLITE_IOERR_FSYNC)]
)
def test_a_checkpoint_that_could_not_sync_is_the_end(tmp_path: Path, error: Exception) -> None:
    bench = Bench(tmp_path)
    bench.worker.error = error
    with pytest.raises(type(error)):
        bench.upkeep.tick(0.0)


@pytest.mark.parametrize("code", [sqlite3.SQLITE_BUSY_RECOVERY, sqlite3.SQLITE_FULL])
def test_a_checkpoint_that_found_no_lock_or_room_is_tried_again(tmp_path: Path, code: int) -> None:
    bench = Bench(tmp_path)
    bench.worker.error = sqlite_error(code)
    bench.upkeep.tick(0.0)
    bench.upkeep.tick(upkeep.CHECKPOINT_PERIOD_S / 2)
    assert bench.worker.jobs == 1
    bench.upkeep.tick(upkeep.CHECKPOINT_PERIOD_S)
    assert (bench.worker.jobs, bench.events) == (2, ["checkpoint_failed"] * 2)


def test_a_short_journal_and_no_wal_need_no_checkpoint(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.replica.journal.size_bytes = KEPT_BYTES
    bench.upkeep.tick(0.0)
    assert bench.worker.jobs == 0


def test_a_disk_that_runs_short_is_reported_once(tmp_path: Path) -> None:
    bench = Bench(tmp_path, disk_free_min_bytes=2**62)
    bench.replica.raft = None
    bench.upkeep.tick(0.0)
    bench.upkeep.tick(upkeep.DISK_PERIOD_S)
    assert (bench.replica.disk_low, bench.events) == (True, ["disk"])
