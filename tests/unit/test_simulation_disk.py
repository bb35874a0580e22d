"""The simulated disk forgets exactly what a real one may: unsynced bytes, names and WAL frames."""

from __future__ import annotations

import random
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from chaos.simulation.database import seated
from chaos.simulation.disk import PAGE_BYTES, DiskFailed, PowerLoss, SimDisk, StoreImage
from chaos.simulation.memory import remove_leftovers
from chaos.simulation.node import SimNode
from cluster import commands, snapshots, tables
from cluster.commands import Register
from cluster.journal import Journal
from cluster.store import Store

ROOT = Path("/disk/journal")
FILE = ROOT / "file"
MEMBERS = {"a": "incarnation"}
CLIENTS = 60  # whose rows fill some pages


def new_disk() -> SimDisk:
    return SimDisk(lambda: None)


def with_unsynced(synced: bytes, unsynced: bytes) -> SimDisk:
    """Return a disk with a file of which a part is synced, its name durable."""
    disk = new_disk()
    fd = disk.open_append(FILE)
    disk.write(fd, bytearray(synced))
    disk.fdatasync(fd)
    disk.fsync_directory(ROOT)
    disk.write(fd, bytearray(unsynced))
    return disk


def after_power_loss(disk: SimDisk, keep: str, seed: int = 1) -> SimDisk:
    disk.restart()
    disk.lose_unsynced(keep, random.Random(seed))
    return disk


# --- bytes ----------------------------------------------------------------------------------------


def test_unsynced_bytes_are_lost_or_kept_as_asked() -> None:
    assert after_power_loss(with_unsynced(b"old", b"new"), "lost").read(FILE) == b"old"
    assert after_power_loss(with_unsynced(b"old", b"new"), "all").read(FILE) == b"oldnew"


def test_a_directorys_fsync_keeps_its_own_names_and_no_others() -> None:
    disk = new_disk()
    there = ROOT.parent / "other" / "file"
    for path in (FILE, there):
        disk.fdatasync(disk.open_append(path))
    disk.fsync_directory(there.parent)
    found = after_power_loss(disk, "lost")
    assert found.list(there.parent) == ["file"]
    assert found.list(ROOT) == []


def test_a_torn_write_keeps_any_first_part() -> None:
    found = {
        after_power_loss(with_unsynced(b"old", b"new"), "torn", seed).read(FILE)
        for seed in range(50)
    }
    assert found == {b"old", b"oldn", b"oldne", b"oldnew"}


def test_a_later_page_may_survive_without_an_earlier_one() -> None:
    written = b"x" * PAGE_BYTES * 3
    found = {
        after_power_loss(with_unsynced(b"", written), "pages", seed).read(FILE)
        for seed in range(50)
    }
    assert bytes(PAGE_BYTES) + written[PAGE_BYTES:] in found
    assert written[:PAGE_BYTES] in found
    assert len(found) == 2**3


def test_synced_bytes_survive_whatever_is_kept() -> None:
    for keep in ("lost", "torn", "pages", "all"):
        disk = after_power_loss(with_unsynced(b"old" * 1000, b"new" * 1000), keep)
        assert disk.read(FILE).startswith(b"old" * 1000)


def test_a_truncation_may_be_undone_until_it_is_synced() -> None:
    def found(seed: int, synced: bool) -> bytes:
        disk = with_unsynced(b"old", b"")
        fd = disk.open_append(FILE)
        disk.truncate(fd, 1)
        if synced:
            disk.fdatasync(fd)
        return after_power_loss(disk, "lost", seed).read(FILE)

    assert {found(seed, False) for seed in range(20)} == {b"o", b"old"}
    assert {found(seed, True) for seed in range(20)} == {b"o"}


# --- names ----------------------------------------------------------------------------------------


def test_a_name_is_durable_once_its_directory_is_synced() -> None:
    disk = new_disk()
    fd = disk.open_append(FILE)
    disk.write(fd, bytearray(b"data"))
    disk.fdatasync(fd)
    assert after_power_loss(disk, "lost").list(ROOT) == []


def test_an_unsynced_rename_leaves_the_one_name_or_the_other() -> None:
    def names(seed: int) -> list[str]:
        disk = with_unsynced(b"data", b"")
        disk.rename(FILE, ROOT / "new")
        return after_power_loss(disk, "torn", seed).list(ROOT)

    assert {tuple(names(seed)) for seed in range(20)} == {("file",), ("new",)}


def test_unsynced_removals_survive_in_any_order() -> None:
    def names(seed: int) -> tuple[str, ...]:
        disk = with_unsynced(b"data", b"")
        disk.open_append(ROOT / "other")
        disk.fsync_directory(ROOT)
        disk.unlink(FILE)
        disk.unlink(ROOT / "other")
        return tuple(after_power_loss(disk, "pages", seed).list(ROOT))

    assert {names(seed) for seed in range(50)} == {(), ("file",), ("other",), ("file", "other")}


def test_a_directory_lists_what_is_in_it_alone() -> None:
    disk = with_unsynced(b"", b"")
    disk.open_append(ROOT.parent / "identity.json")
    assert disk.list(ROOT) == ["file"]
    assert disk.list(ROOT.parent) == ["identity.json", "journal"]
    assert disk.list(ROOT.parent, ".json") == ["identity.json"]


# --- faults ---------------------------------------------------------------------------------------


def test_the_process_ends_before_the_operation_that_was_named() -> None:
    disk = with_unsynced(b"old", b"")
    fd = disk.open_append(FILE)
    disk.crash_in("write", 2)
    disk.write(fd, bytearray(b"1"))
    with pytest.raises(PowerLoss):
        disk.write(fd, bytearray(b"2"))
    with pytest.raises(PowerLoss):
        disk.read(FILE)
    disk.restart()
    assert disk.read(FILE) == b"old1"


def test_a_failed_journal_stays_failed_until_the_restart() -> None:
    disk = with_unsynced(b"old", b"")
    with pytest.raises(DiskFailed):
        disk.stop(OSError("why"))
    with pytest.raises(DiskFailed, match="why"):
        disk.read(FILE)
    disk.restart()
    assert disk.read(FILE) == b"old"


def test_errors_come_where_they_were_put() -> None:
    disk = with_unsynced(b"old", b"")
    fd = disk.open_append(FILE)
    disk.syncs_fail_in = 2
    disk.fdatasync(fd)
    with pytest.raises(OSError, match="fdatasync"):
        disk.fdatasync(fd)
    disk.full = True
    with pytest.raises(OSError, match="write"):
        disk.write(fd, bytearray(b"more"))
    assert disk.free_bytes(ROOT) == 0


def test_damage_is_one_bit_or_a_cut_end() -> None:
    before = b"\0" * 100
    flipped = with_unsynced(before, b"")
    assert flipped.damage("file", random.Random(1), cut=False)
    assert sum(byte.bit_count() for byte in flipped.read(FILE)) == 1
    cut = with_unsynced(before, b"")
    assert cut.damage("file", random.Random(1), cut=True)
    assert len(cut.read(FILE)) < len(before)
    assert new_disk().damage("file", random.Random(1), cut=True) == ""


def synced_until_the_end(journal: Journal) -> int:
    """Add entries until the process ends; return the last one that was synced."""
    synced = 0
    for index in range(1, 100):
        try:
            journal.add(b"\0entry", index, 1)
            journal.sync()
        except PowerLoss:
            return synced
        synced = index
    raise AssertionError("the process did not end")


@pytest.mark.parametrize("keep", ["lost", "torn", "pages", "all"])
def test_a_journal_keeps_what_it_synced_whenever_the_power_goes(keep: str) -> None:
    for seed in range(40):
        disk = new_disk()
        Journal.create(ROOT, disk)
        journal = Journal.open(ROOT, 300, 0, files=disk, on_failure=disk.stop)
        disk.crash_in("any", 1 + seed)
        synced = synced_until_the_end(journal)
        after_power_loss(disk, keep, seed)
        found = Journal.open(ROOT, 300, 0, files=disk, on_failure=disk.stop)
        assert synced <= found.last_index <= synced + 1, f"seed {seed}"


# --- databases ------------------------------------------------------------------------------------


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = Store.open(tmp_path / "store" / "store.db", MEMBERS)
    yield store
    store.close()


def advance(store: Store, count: int) -> None:
    for _ in range(count):
        store.apply(store.applied_index + 1, 1, b"")
        store.commit()


def position_after_power_loss(path: Path, image: StoreImage, keep: str, seed: int) -> int:
    image.lose_unsynced(keep, random.Random(seed))
    found = Store.open(path, {})
    try:
        return found.applied_index
    finally:
        image.keep_through(found.close)


def test_a_killed_process_leaves_its_wal(store: Store, tmp_path: Path) -> None:
    path = tmp_path / "store" / "store.db"
    advance(store, 5)
    StoreImage(path).keep_through(store.close)
    assert tables.side_file(path, "-wal").stat().st_size > 0
    found = Store.open(path, {})
    assert found.applied_index == 5
    found.close()


@pytest.mark.parametrize("before", [0, 7])
def test_a_power_loss_leaves_a_database_between_its_checkpoint_and_its_end(
    store: Store, tmp_path: Path, before: int
) -> None:
    path = tmp_path / "store" / "store.db"
    image = StoreImage(path)
    advance(store, before)
    tables.checkpoint(path)
    image.take()
    advance(store, 9)
    image.keep_through(store.close)
    wal = tables.side_file(path, "-wal").read_bytes()
    found = set()
    for seed in range(40):
        tables.side_file(path, "-wal").write_bytes(wal)
        found.add(position_after_power_loss(path, image, "torn", seed))
    assert found <= set(range(before, before + 10))
    assert len(found) > 3
    assert position_after_power_loss(path, image, "lost", 1) == before


def test_a_job_that_is_no_checkpoint_makes_nothing_durable(store: Store, tmp_path: Path) -> None:
    path = tmp_path / "store" / "store.db"
    image = StoreImage(path)
    advance(store, 3)
    tables.checkpoint(path)
    image.take()
    advance(store, 6)
    image.take_after_job()
    image.keep_through(store.close)
    assert position_after_power_loss(path, image, "lost", 1) == 3


def test_the_wal_that_a_checkpoint_synced_is_never_cut(store: Store, tmp_path: Path) -> None:
    path = tmp_path / "store" / "store.db"
    image = StoreImage(path)
    advance(store, 6)
    tables.checkpoint(path)
    image.take()  # and nothing is written after: the WAL is still of the same generation
    image.keep_through(store.close)
    for seed in range(20):
        assert position_after_power_loss(path, image, "torn", seed) == 6


def test_a_flipped_bit_in_the_database_is_there_after_a_power_loss(
    store: Store, tmp_path: Path
) -> None:
    path = tmp_path / "store" / "store.db"
    image = StoreImage(path)
    image.take()
    before = path.read_bytes()
    image.keep_through(store.close)
    assert image.damage(random.Random(1))
    after = path.read_bytes()
    image.lose_unsynced("lost", random.Random(1))
    assert path.read_bytes() == after
    assert sum((one ^ other).bit_count() for one, other in zip(before, after, strict=True)) == 1


# --- faults that leave what was promised as it was ------------------------------------------------


@pytest.mark.parametrize("cut", [False, True])
def test_what_was_synced_is_known_behind_a_damage(cut: bool) -> None:
    disk = with_unsynced(b"synced ", b"")
    disk.damage("file", random.Random(3), cut)
    fd = disk.open_append(FILE)
    disk.write(fd, bytearray(b"later "))
    disk.fdatasync(fd)
    disk.write(fd, bytearray(b"never"))
    [inode] = disk._names.values()
    assert inode.synced == b"synced later "
    after_power_loss(disk, "all")
    assert inode.synced == b"synced later "
    assert disk.read(FILE) != b"synced later "


def test_a_damaged_file_that_the_process_cuts_has_promised_no_more_than_that() -> None:
    disk = with_unsynced(b"synced", b"")
    disk.damage("file", random.Random(3), cut=False)
    disk.truncate(disk.open_append(FILE), 2)
    [inode] = disk._names.values()
    assert inode.synced == b"sy"


def test_an_unreadable_file_takes_writes_and_gives_nothing_back() -> None:
    disk = with_unsynced(b"data", b"")
    [inode] = disk._names.values()
    inode.is_readable = False
    fd = disk.open_append(FILE)
    disk.write(fd, bytearray(b"more"))
    disk.fdatasync(fd)
    for read in (lambda: disk.read(FILE), lambda: disk.pread(fd, 1, 0)):
        with pytest.raises(OSError, match="Input/output error"):
            read()


def test_a_low_disk_takes_what_is_written_and_a_full_one_does_not() -> None:
    disk = with_unsynced(b"data", b"")
    fd = disk.open_append(FILE)
    disk.low = True
    assert disk.free_bytes(ROOT) == 0
    assert disk.write(fd, bytearray(b"more")) == 4
    disk.full = True
    with pytest.raises(OSError, match="injected"):
        disk.write(fd, bytearray(b"more"))


# --- SQLite under faults --------------------------------------------------------------------------


def test_a_checkpoint_that_is_cut_short_leaves_pages_of_both_and_loses_nothing(
    tmp_path: Path,
) -> None:
    states = set()
    for seed in range(12):
        path = tmp_path / str(seed) / "store.db"
        store, image = Store.open(path, MEMBERS), StoreImage(path)
        image.take()
        old = path.read_bytes()
        for index in range(1, CLIENTS + 1):
            register = Register(f"client {index} {'x' * 100}", True, None, "")
            store.apply(index, 1, commands.encode(0, [register]))
            store.commit()
        image.checkpointing = True
        tables.checkpoint(path)
        new = path.read_bytes()
        image.keep_through(store.close)
        image.lose_unsynced("lost", random.Random(seed))
        torn = path.read_bytes()
        states.add("old" if torn == old else "new" if torn == new else "both")
        found = Store.open(path, {})
        # As it was: it had not synced the WAL yet, which is lost then.
        assert found.applied_index == (0 if torn == old else CLIENTS), seed
        assert found.statistics()["clients"] == found.applied_index
        found.close()
    assert states == {"old", "both"}


class Machine:
    """Whose disk a store's calls are on."""

    def __init__(self) -> None:
        self.disk = new_disk()
        self.image = SimpleNamespace(checkpointing=False)


@pytest.fixture
def machine() -> Iterator[Machine]:
    found = Machine()
    with seated(lambda: cast(SimNode, found), random.Random(1)):
        yield found


def test_a_commit_without_room_fails_as_sqlite_does_and_changes_nothing(
    machine: Machine, tmp_path: Path
) -> None:
    path = tmp_path / "store" / "store.db"
    store = Store.open(path, MEMBERS)
    advance(store, 3)
    machine.disk.full = True
    store.apply(4, 1, b"")
    with pytest.raises(sqlite3.OperationalError) as caught:
        store.commit()
    assert caught.value.sqlite_errorcode == sqlite3.SQLITE_FULL
    store.close()
    machine.disk.full = False
    again = Store.open(path, {})
    assert again.applied_index == 3
    again.close()


def test_checkpoints_and_copies_fail_for_want_of_room_and_succeed_later(
    machine: Machine, tmp_path: Path
) -> None:
    path = tmp_path / "store" / "store.db"
    store = Store.open(path, MEMBERS)
    advance(store, 3)
    machine.disk.full = True
    outcomes = Counter(_outcome(lambda: tables.checkpoint(path)) for _ in range(20))
    assert set(outcomes) == {3, sqlite3.SQLITE_FULL}
    copy = tmp_path / "copy.db"
    assert _outcome(lambda: snapshots.make_copy(path, copy).index) == sqlite3.SQLITE_FULL
    machine.disk.full = False
    assert snapshots.make_copy(path, copy).index == 3
    store.close()


def _outcome(call: Callable[[], int]) -> int:
    try:
        return call()
    except sqlite3.OperationalError as error:
        return error.sqlite_errorcode


def test_the_seams_are_gone_behind_a_run() -> None:
    before = (tables.checkpoint, tables.Database.commit, snapshots.make_copy)
    with seated(lambda: None, random.Random(1)):
        assert tables.checkpoint is not before[0]
    assert (tables.checkpoint, tables.Database.commit, snapshots.make_copy) == before


# --- where files lie ------------------------------------------------------------------------------


def test_what_a_killed_process_leaves_in_memory_is_removed_by_the_next(tmp_path: Path) -> None:
    program = (
        "import sys, pathlib\n"
        "from chaos.simulation import memory\n"
        "memory.MEMORY = pathlib.Path(sys.argv[1])\n"
        "directory = memory.memory_directory()\n"
        "(directory / 'file').write_bytes(b'data')\n"
        "print(directory.name, flush=True)\n"
        "sys.stdin.read()\n"
    )
    command = [sys.executable, "-c", program, str(tmp_path)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        name = process.stdout.readline().strip()
        assert remove_leftovers(tmp_path) == []  # it lives
        process.kill()
        process.wait()
    assert remove_leftovers(tmp_path) == [name]
    assert list(tmp_path.iterdir()) == []
