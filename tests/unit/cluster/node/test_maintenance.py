"""A node's periodic work: what may be tried again and what must not."""

from __future__ import annotations

import errno
import sqlite3
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cluster.log.files import DISK, Files
from cluster.node import maintenance
from cluster.node.budget import CHORES_SHARE
from cluster.node.context import DiskRoom
from cluster.node.maintenance import Maintenance
from cluster.raft.ready import Timing
from cluster.store import tables
from cluster.store.commands import Advance, Checkpoint, Raise, Subscribe
from cluster.wire.levels import LEVEL_OF_USERS
from tests.unit.store_bench import Bench as StoreBench

KEPT_BYTES = 1000


class PromptWorker:
    """Does each job at once."""

    def submit(
        self,
        job: Callable[[], Any],
        done: Callable[[Any], None],
        failed: Callable[[Exception], None],
    ) -> None:
        done(job())

    idle = True


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


class SizedDisk(Files):
    """A disk with so much room as it is told."""

    def __init__(self, free: int) -> None:
        self.free = free

    def free_bytes(self, directory: Path) -> int:  # type: ignore[override]
        return self.free


class MaintenanceBench:
    def __init__(
        self,
        directory: Path,
        disk_free_min_bytes: int = 0,
        files: Files = DISK,
        worker: type[PromptWorker] | type[FailingWorker] = FailingWorker,
    ) -> None:
        settings = SimpleNamespace(
            data_dir=directory,
            database=directory / "s.db",
            keep_bytes=KEPT_BYTES,
            segment_bytes=0,
            files=files,
            timing=Timing(heartbeat_s=0.08),
        )
        journal = SimpleNamespace(
            size_bytes=KEPT_BYTES + 1, damaged_index=0, compact=lambda index, enough: 0
        )
        self.store = StoreBench.started(settings.database)
        self.steps = 0
        self.scrubbed: list[float] = []
        self.replica: Any = SimpleNamespace(
            settings=settings,
            member=SimpleNamespace(
                journal=journal,
                store=self.store.store,
                checkpointed_index=0,
                awaits_worker=False,
                scrub=SimpleNamespace(tick=self.scrubbed.append),
            ),
            clock=self.clock,
        )
        self.worker: Any = worker()
        self.events: list[str] = []
        self.maintenance = Maintenance(self.replica, self.worker, disk_free_min_bytes, self.note)
        self.levels: list[str] = []

    def note(self, event: str, level: str = "info", **_: object) -> None:
        self.events.append(event)
        self.levels.append(level)

    def clock(self) -> float:
        """A millisecond passes between two looks, so a share has as many steps."""
        self.steps += 1
        return self.steps / 1000

    def put_and_get(self) -> None:
        """Use the store as before."""
        last = self.store.ok(Subscribe("s", None, "t", None))["last_id"]
        self.store.put(last, b"news")
        assert self.store.get("s", last) == [b"news"]

    def fill_and_read(self, count: int) -> None:
        """Store so many publications of 100 kB, and have them read."""
        for counter in range(count):
            self.store.put(counter, bytes(100_000))
        tables.checkpoint(self.replica.settings.database)
        self.store.apply(Advance("s", None, {"t": count}))
        while self.store.store.collect_garbage(1000):
            self.store.store.commit()
        tables.checkpoint(self.replica.settings.database)


def sqlite_error(code: int) -> sqlite3.OperationalError:
    error = sqlite3.OperationalError("as SQLite says it")
    error.sqlite_errorcode = code
    return error


@pytest.mark.parametrize(
    "error", [OSError(errno.EIO, "fsync"), sqlite_error(sqlite3.SQLITE_IOERR_FSYNC)]
)
def test_a_checkpoint_that_could_not_sync_is_the_end(tmp_path: Path, error: Exception) -> None:
    bench = MaintenanceBench(tmp_path)
    bench.worker.error = error
    with pytest.raises(type(error)):
        bench.maintenance.tick(0.0)


@pytest.mark.parametrize("code", [sqlite3.SQLITE_BUSY_RECOVERY, sqlite3.SQLITE_FULL])
def test_a_checkpoint_that_found_no_lock_or_room_is_tried_again(tmp_path: Path, code: int) -> None:
    bench = MaintenanceBench(tmp_path)
    bench.worker.error = sqlite_error(code)
    bench.maintenance.tick(0.0)
    bench.maintenance.tick(maintenance.CHECKPOINT_PERIOD_S / 2)
    assert bench.worker.jobs == 1
    bench.maintenance.tick(maintenance.CHECKPOINT_PERIOD_S)
    assert (bench.worker.jobs, bench.events) == (2, ["checkpoint_failed"] * 2)


def test_a_log_that_was_kept_for_long_is_cut_in_bounded_steps(tmp_path: Path) -> None:
    bench = MaintenanceBench(tmp_path, worker=PromptWorker)
    left = [130]
    steps: list[int] = []

    def compact(index: int, enough: Callable[[], bool]) -> int:
        dropped = 0
        while left[0] and (not dropped or not enough()):
            left[0] -= 1
            dropped += 1
        steps.append(dropped)
        return dropped

    bench.replica.member.journal.compact = compact
    for turn in range(100):
        bench.maintenance.tick(turn / 1000)
    assert left == [0]
    a_turn_ms = 1000 * CHORES_SHARE * bench.replica.settings.timing.heartbeat_s
    assert max(steps) <= a_turn_ms + 1  # the clock goes on by a millisecond a look
    assert (sum(steps), bench.events) == (130, ["compacted"])


def test_a_short_journal_and_no_wal_need_no_checkpoint(tmp_path: Path) -> None:
    bench = MaintenanceBench(tmp_path)
    bench.replica.member.journal.size_bytes = KEPT_BYTES
    bench.maintenance.tick(0.0)
    assert bench.worker.jobs == 0


def test_a_checkpoint_that_is_asked_for_is_made_once_and_told(tmp_path: Path) -> None:
    bench = MaintenanceBench(tmp_path, worker=PromptWorker)
    bench.replica.member.journal.size_bytes = 0
    bench.store.ok(Raise(LEVEL_OF_USERS))
    index = bench.store.ok(Checkpoint(True, "admin"))["index"]
    bench.store.store.commit()
    for turn in range(3):
        bench.maintenance.tick(turn * maintenance.CHECKPOINT_PERIOD_S)
    assert bench.replica.member.checkpointed_index == index
    assert bench.events == ["checkpointed"]


def test_a_disk_that_runs_short_is_reported_once(tmp_path: Path) -> None:
    bench = MaintenanceBench(tmp_path, disk_free_min_bytes=2**62)
    bench.replica.member = None
    bench.maintenance.tick(0.0)
    bench.maintenance.tick(maintenance.DISK_PERIOD_S)
    assert (bench.maintenance.room.is_low, bench.events) == (True, ["disk"])
    assert bench.levels == ["warning"]


# --- room ---------------------------------------------------------------------------------------


def test_free_pages_of_the_store_count_as_room(tmp_path: Path) -> None:
    disk = SizedDisk(9_000_000)
    bench = MaintenanceBench(
        tmp_path, disk_free_min_bytes=10_000_000, files=disk, worker=PromptWorker
    )
    bench.maintenance.tick(0.0)
    assert bench.maintenance.room.is_low
    bench.fill_and_read(100)
    bench.maintenance.tick(maintenance.DISK_PERIOD_S)
    assert not bench.maintenance.room.is_low


def test_what_the_next_checkpoint_needs_counts_against_the_room(tmp_path: Path) -> None:
    bench = MaintenanceBench(
        tmp_path, disk_free_min_bytes=10_000_000, files=SizedDisk(12_000_000), worker=PromptWorker
    )
    for counter in range(50):
        bench.store.put(counter, bytes(100_000))
    bench.maintenance.tick(0.0)
    assert bench.maintenance.room.is_low, "the 5 MB in the WAL have no place in the file yet"
    assert 0 < bench.maintenance.room.spare_bytes < 2_000_000, (
        "nor has the reserve's half, of 12 MB"
    )
    tables.checkpoint(bench.replica.settings.database)
    bench.maintenance.tick(maintenance.DISK_PERIOD_S)
    assert not bench.maintenance.room.is_low


def test_a_disk_without_room_for_the_journal_is_low_whatever_the_store_has(tmp_path: Path) -> None:
    bench = MaintenanceBench(
        tmp_path, disk_free_min_bytes=10_000_000, files=SizedDisk(4_000_000), worker=PromptWorker
    )
    bench.fill_and_read(150)
    bench.maintenance.tick(0.0)
    assert bench.maintenance.room.is_low


def test_a_disk_that_fills_between_two_looks_at_the_clock_is_seen(tmp_path: Path) -> None:
    disk = SizedDisk(20_000_000)
    bench = MaintenanceBench(
        tmp_path, disk_free_min_bytes=10_000_000, files=disk, worker=PromptWorker
    )
    bench.maintenance.tick(0.0)
    disk.free -= 15_000_000
    bench.maintenance.tick(0.001)
    assert not bench.maintenance.room.is_low, "nothing was written, so nobody looked"
    bench.replica.member.journal.size_bytes += maintenance.DISK_STEP_BYTES
    bench.maintenance.tick(0.002)
    assert bench.maintenance.room == DiskRoom(is_low=True, spare_bytes=0)


def test_a_store_that_was_read_empty_shrinks_in_short_steps(tmp_path: Path) -> None:
    bench = MaintenanceBench(tmp_path, worker=PromptWorker)
    bench.fill_and_read(150)
    database = bench.replica.settings.database
    before, digest = database.stat().st_size, bench.store.store.digest()
    assert before > 14_000_000
    now, turns = 0.0, 0
    while database.stat().st_size > maintenance.SPARE_BYTES + 1_000_000:
        freed = bench.store.store.free_bytes()
        bench.maintenance.tick(now)
        pages = (freed - bench.store.store.free_bytes()) / tables.PAGE_BYTES
        assert pages <= CHORES_SHARE * 80 + 1, "a turn's chores are over when their time is"
        now, turns = now + 0.02, turns + 1
        assert turns < 5_000
    assert turns > 100
    assert bench.store.store.digest() == digest
    bench.put_and_get()


def test_pages_that_a_steady_load_uses_again_stay(tmp_path: Path) -> None:
    bench = MaintenanceBench(tmp_path, worker=PromptWorker)
    bench.fill_and_read(150)
    bench.maintenance._free_bytes = 0  # a period ago there were none
    free = bench.store.store.free_bytes()
    bench.maintenance.tick(0.0)
    assert bench.store.store.free_bytes() == free
