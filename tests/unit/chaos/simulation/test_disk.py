"""The simulated disk forgets exactly what a real one may: unsynced bytes, names and WAL frames."""

from __future__ import annotations

import os
import random
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import cast

import pytest

from chaos.simulation.disks.disk import OWN_SYNC, PAGE_BYTES, DiskFailed, Inode, PowerLoss, SimDisk
from chaos.simulation.disks.memory import remove_leftovers
from chaos.simulation.disks.stored import StoredFiles
from chaos.simulation.world.database import patched
from chaos.simulation.world.jobs import Stepped
from chaos.simulation.world.node import SimNode
from cluster.log.journal import Journal
from cluster.store import commands, snapshots, tables
from cluster.store.commands import Register
from cluster.store.store import Store
from flotilla_client.errors import StateUnusable
from flotilla_client.state import State

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


def test_what_a_cache_hides_is_read_once_that_is_forgotten() -> None:
    inode = Inode(bytearray(b"bad"), 3, intact=bytearray(b"was"), cached=b"was")
    assert SimDisk._readable(Path("file"), inode) == b"was"
    inode.forget()
    assert SimDisk._readable(Path("file"), inode) == b"bad"


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
    assert disk.read(FILE) in (b"old1", b"old12")  # of the last write any first part is done


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
    disk.fail_sync("fdatasync", 2)
    disk.fdatasync(fd)
    with pytest.raises(OSError, match="fdatasync"):
        disk.fdatasync(fd)
    disk.fail_sync("fsync_directory", 1)
    disk.fdatasync(fd)
    with pytest.raises(OSError, match="fsync_directory"):
        disk.fsync_directory(ROOT)
    disk.full = True
    with pytest.raises(OSError, match="write"):
        disk.write(fd, bytearray(b"more"))
    assert disk.free_bytes(ROOT) == 0


def test_what_a_failed_sync_has_lost_is_read_until_the_cache_forgets_it() -> None:
    disk = with_unsynced(b"old", b"lost")
    fd = disk.open_append(FILE)
    disk.fail_sync("fdatasync", 1)
    with pytest.raises(OSError, match="injected"):
        disk.fdatasync(fd)
    disk.write(fd, bytearray(b"new"))
    disk.fdatasync(fd)  # it succeeds, and proves nothing of what came before
    assert disk.read(FILE) == b"oldlostnew"
    [inode] = disk._names.values()
    assert inode.synced == b"old\0\0\0\0new"
    disk.forget_cached(fd)
    assert disk.read(FILE) == b"old\0\0\0\0new"


def test_a_power_loss_takes_what_a_failed_sync_has_lost() -> None:
    disk = with_unsynced(b"old", b"lost")
    fd = disk.open_append(FILE)
    disk.fail_sync("fdatasync", 1)
    with pytest.raises(OSError, match="injected"):
        disk.fdatasync(fd)
    disk.fdatasync(fd)
    assert after_power_loss(disk, "all").read(FILE) == b"old"


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


def test_a_journal_opened_behind_a_failed_sync_has_nothing_that_the_sync_has_lost() -> None:
    disk = new_disk()
    Journal.create(ROOT, disk)
    journal = Journal.open(ROOT, 300, 0, files=disk, on_failure=disk.stop)
    journal.add(b"\0entry", 1, 1)
    journal.sync()
    journal.add(b"\0lost", 2, 1)
    disk.fail_sync("fdatasync", 1)
    with pytest.raises(DiskFailed):
        journal.sync()
    disk.restart()
    found = Journal.open(ROOT, 300, 0, files=disk, on_failure=disk.stop)
    acknowledged = found.last_index
    found.sync()
    after_power_loss(disk, "lost")
    assert Journal.open(ROOT, 300, 0, files=disk, on_failure=disk.stop).last_index == acknowledged


# --- databases ------------------------------------------------------------------------------------


class DiskMachine:
    """A machine with a store; `operations`: what the store has done."""

    def __init__(self, directory: Path) -> None:
        self.image = StoredFiles(directory, self._operate)
        self.disk = SimDisk(lambda: None, self.image.fill)
        self.operations: list[str] = []

    def _operate(self, kind: str) -> None:
        self.operations.append(kind)
        self.disk.operate(kind)

    @property
    def database(self) -> Path:
        return self.image.directory / "store.db"

    def kill(self, store: Store) -> None:
        self.image.sealed = True
        store.close()
        self.image.sealed = False
        self.disk.restart()

    def lose_power(self, keep: str, seed: int) -> int:
        """Return how far the store is behind it."""
        self.image.lose_unsynced(keep, random.Random(seed))
        found = Store.open(self.database, {})
        index = found.applied_index
        self.kill(found)
        return index


@contextmanager
def running(*machines: DiskMachine) -> Iterator[None]:
    files = {str(machine.image.directory): machine.image for machine in machines}
    with patched(lambda: cast(SimNode, machines[0]), files):
        yield


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[DiskMachine]:
    found = DiskMachine(tmp_path / "store")
    with running(found):
        yield found


def advance(store: Store, count: int) -> None:
    for _ in range(count):
        store.apply(store.applied_index + 1, 1, b"")
        store.commit()


def founded(machine: DiskMachine) -> Store:
    return Store.open(machine.database, MEMBERS)


def test_a_killed_process_leaves_its_wal(machine: DiskMachine) -> None:
    store = founded(machine)
    advance(store, 5)
    machine.kill(store)
    assert tables.side_file(machine.database, "-wal").stat().st_size > 0
    found = Store.open(machine.database, {})
    assert found.applied_index == 5
    found.close()
    assert not tables.side_file(machine.database, "-wal").exists()


@pytest.mark.parametrize("before", [0, 7])
def test_a_power_loss_leaves_a_database_between_its_checkpoint_and_its_end(
    tmp_path: Path, before: int
) -> None:
    found = set()
    for seed in range(30):
        machine = DiskMachine(tmp_path / str(seed))
        with running(machine):
            store = founded(machine)
            advance(store, before)
            assert tables.checkpoint(machine.database) == before
            advance(store, 9)
            machine.kill(store)
            found.add(machine.lose_power("lost" if seed == 0 else "torn", seed))
            assert seed > 0 or found == {before}
    assert found <= set(range(before, before + 10))
    assert len(found) > 3


def test_nothing_is_durable_that_was_not_synced(machine: DiskMachine) -> None:
    store = founded(machine)
    advance(store, 3)
    assert tables.checkpoint(machine.database) == 3
    advance(store, 6)
    with tables.connect(machine.database, 0) as connection:
        assert tables.read_position(machine.database, connection)[0] == 9
    connection.close()
    machine.kill(store)
    assert machine.lose_power("lost", 1) == 3


def test_the_wal_that_a_checkpoint_synced_is_never_lost(tmp_path: Path) -> None:
    for seed, keep in enumerate(["lost", "torn", "pages", "all"] * 3):
        machine = DiskMachine(tmp_path / str(seed))
        with running(machine):
            store = founded(machine)
            advance(store, 6)
            tables.checkpoint(machine.database)
            machine.kill(store)
            assert machine.lose_power(keep, seed) == 6, (seed, keep)


def test_a_database_whose_directory_was_not_synced_may_be_gone(machine: DiskMachine) -> None:
    store = founded(machine)
    names = sorted(path.name for path in machine.image.directory.iterdir())
    assert "store.db" in names
    machine.image.rename(str(machine.database), str(machine.database) + ".moved")
    machine.kill(store)
    machine.image.lose_unsynced("lost", random.Random(1))
    assert machine.database.exists()


def test_a_flipped_bit_in_the_database_is_there_after_a_power_loss(machine: DiskMachine) -> None:
    machine.kill(founded(machine))
    before = machine.database.read_bytes()
    assert machine.image.damage("store.db", random.Random(1))
    after = machine.database.read_bytes()
    machine.image.lose_unsynced("lost", random.Random(1))
    assert machine.database.read_bytes() == after
    assert sum((one ^ other).bit_count() for one, other in zip(before, after, strict=True)) == 1


@pytest.mark.parametrize("kind", ["store_sync", OWN_SYNC, "store"])
def test_a_sync_of_a_checkpoint_that_fails_is_reported(machine: DiskMachine, kind: str) -> None:
    store = founded(machine)
    advance(store, 3)
    machine.disk.fail_sync(kind, 1)
    with pytest.raises((OSError, sqlite3.OperationalError)) as caught:
        tables.checkpoint(machine.database)
    if isinstance(caught.value, sqlite3.OperationalError):
        assert caught.value.sqlite_errorcode == sqlite3.SQLITE_IOERR_FSYNC
    store.close()


def test_the_checkpoint_s_own_sync_fails_behind_those_of_sqlite(machine: DiskMachine) -> None:
    store = founded(machine)
    advance(store, 3)
    machine.disk.fail_sync(OWN_SYNC, 1)
    with pytest.raises(OSError, match="injected into store_fsync"):
        tables.checkpoint(machine.database)
    store.close()


def test_what_is_durable_is_what_a_power_loss_leaves(machine: DiskMachine) -> None:
    assert machine.image.durable() == {}
    store = founded(machine)
    advance(store, 2)
    tables.checkpoint(machine.database)
    advance(store, 4)
    copy = machine.database.with_name("copy-1")
    copy.write_bytes(b"no part of the database")
    tables.checkpoint(machine.database)
    said = machine.image.durable()
    assert said.keys() - machine.image.durable("store.db").keys() == {copy.name}
    machine.kill(store)
    machine.image.lose_unsynced("lost", random.Random(1))
    left = {path.name: path.read_bytes() for path in machine.database.parent.iterdir()}
    assert said == left
    assert "store.db" in left


def test_a_sync_behind_one_that_failed_writes_nothing_of_what_that_lost(
    machine: DiskMachine,
) -> None:
    store = founded(machine)
    advance(store, 2)
    tables.checkpoint(machine.database)
    advance(store, 4)
    wal = tables.side_file(machine.database, "-wal")
    machine.disk.fail_sync("store_sync", 1)
    with open(wal, "rb") as file:
        with pytest.raises(OSError, match="injected"):
            os.fsync(file.fileno())
        os.fsync(file.fileno())
    machine.kill(store)
    assert machine.lose_power("all", 1) == 2


def test_a_store_opened_behind_a_failed_sync_has_nothing_that_the_sync_has_lost(
    tmp_path: Path,
) -> None:
    for seed in range(10):
        machine = DiskMachine(tmp_path / str(seed))
        with running(machine):
            store = founded(machine)
            register_clients(store)
            machine.disk.fail_sync("store_sync", 1)
            with pytest.raises(sqlite3.OperationalError, match="disk I/O"):
                tables.checkpoint(machine.database)
            machine.kill(store)
            again = Store.open(machine.database, {})
            register_clients(again)
            machine.disk.crash_in("store_write", 1 + seed % 5)
            with pytest.raises(sqlite3.OperationalError, match="disk I/O"):
                tables.checkpoint(machine.database)
            machine.kill(again)
            machine.image.lose_unsynced("pages", random.Random(seed))
            found = Store.open(machine.database, {})
            assert found.statistics()["clients"] == found.applied_index == CLIENTS, seed
            found.close()


def install(machine: DiskMachine, copy: Path) -> None:
    machine.image.directory.mkdir(exist_ok=True)
    download = machine.image.directory / "download.db"
    shutil.copy(copy, download)
    snapshots.install(download, machine.database)


def test_a_copy_is_installed_whole_whatever_an_opening_that_ended_has_left(
    tmp_path: Path,
) -> None:
    source = DiskMachine(tmp_path / "source")
    old, new, left = tmp_path / "old.db", tmp_path / "new.db", set()
    with running(source):
        store = founded(source)
        advance(store, 3)
        snapshots.make_copy(source.database, old)
        store.close()
        source.image.wipe()
        store = founded(source)
        register_clients(store)
        snapshots.make_copy(source.database, new)
        store.close()
    for count in range(1, 30):
        machine = DiskMachine(tmp_path / str(count))
        with running(machine):
            install(machine, old)
            machine.disk.crash_in("any", count)
            with suppress(sqlite3.Error, OSError, PowerLoss):
                machine.kill(Store.open(machine.database, {}))
            machine.disk.restart()
            left |= {path.name for path in machine.image.directory.iterdir()}
            Store.remove(machine.database)
            install(machine, new)
            found = Store.open(machine.database, {})
            assert found.statistics()["clients"] == CLIENTS, count
            found.close()
    assert "store.db-journal" in left


def test_no_sync_that_fails_while_a_store_is_opened_is_passed_over(tmp_path: Path) -> None:
    """SQLite says nothing of one while a copy goes into WAL mode (seed 1451)."""
    copy = tmp_path / "copy.db"
    source = DiskMachine(tmp_path / "source")
    with running(source):
        store = founded(source)
        advance(store, 3)
        snapshots.make_copy(source.database, copy)
        store.close()
    for count in range(1, 30):
        machine = DiskMachine(tmp_path / str(count))
        with running(machine):
            install(machine, copy)
            machine.disk.fail_sync("any", count)
            try:
                store = Store.open(machine.database, {})
            except (sqlite3.Error, OSError):
                continue
            assert machine.disk.is_to_fail, f"sync {count} has failed, and nobody says so"
            machine.kill(store)
            break
    else:
        pytest.fail("an opening does not end")
    assert count > 3


def test_each_sync_that_fails_while_a_state_is_made_is_told_by_its_name(tmp_path: Path) -> None:
    for count in range(1, 30):
        machine = DiskMachine(tmp_path / str(count))
        with running(machine):
            machine.disk.fail_sync("any", count)
            try:
                state = State(machine.image.directory)
            except StateUnusable:
                continue
            assert machine.disk.is_to_fail, f"sync {count} has failed, and nobody says so"
            state.close()
            break
    else:
        pytest.fail("an opening does not end")
    assert count > 3


def test_the_first_sync_of_a_journal_makes_its_name_durable_if_an_older_one_had_it_too(
    machine: DiskMachine,
) -> None:
    """SQLite syncs the directory then; that an older one is gone it does not sync (seed 1451)."""
    machine.image.directory.mkdir()
    machine.image.sync_own_name()
    journal = machine.image.directory / "store.db-journal"
    journal.write_bytes(b"older")
    with journal.open("rb"):  # the newer one gets another number
        machine.image.syncing(str(journal))
        machine.image.unlink(str(journal))
        assert machine.image.durable() == {journal.name: b"older"}
        journal.write_bytes(b"newer")
        machine.image.syncing(str(journal))
    machine.image.lose_unsynced("lost", random.Random(1))
    assert journal.read_bytes() == b"newer"


def register_clients(store: Store) -> None:
    for index in range(store.applied_index + 1, CLIENTS + 1):
        register = Register(f"client {index} {'x' * 100}", True, None, "")
        store.apply(index, 1, commands.encode(0, [register]))
        store.commit()


def test_steps_of_a_call_run_while_its_caller_waits_and_only_then() -> None:
    said: list[str] = []

    def call() -> None:
        said.append("one")
        stepped.pause()
        said.append("two")

    stepped = Stepped(call)
    assert said == []
    stepped.step()
    said.append("between")
    assert not stepped.is_over
    stepped.step()
    assert stepped.is_over
    assert said == ["one", "between", "two"]


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
    for seed in range(24):
        machine = DiskMachine(tmp_path / str(seed))
        with running(machine):
            store = founded(machine)
            path = machine.database
            register_clients(store)
            old = path.read_bytes()
            machine.disk.crash_in("store_write", 1 + seed % 5)
            with pytest.raises(sqlite3.OperationalError, match="disk I/O"):
                tables.checkpoint(path)
            written = path.read_bytes()
            machine.kill(store)
            machine.image.lose_unsynced("pages", random.Random(seed))
            torn = path.read_bytes()
            states.add("old" if torn == old else "new" if torn == written else "both")
            found = Store.open(path, {})
            # A checkpoint syncs the WAL before it writes to the database.
            assert found.applied_index == CLIENTS, seed
            assert found.statistics()["clients"] == found.applied_index
            found.close()
    assert {"old", "both"} <= states


def test_a_commit_without_room_fails_as_sqlite_does_and_changes_nothing(
    machine: DiskMachine,
) -> None:
    store = founded(machine)
    advance(store, 3)
    machine.disk.full = True
    store.apply(4, 1, b"")
    with pytest.raises(sqlite3.OperationalError) as caught:
        store.commit()
    assert caught.value.sqlite_errorcode == sqlite3.SQLITE_FULL
    store.close()
    machine.disk.full = False
    again = Store.open(machine.database, {})
    assert again.applied_index == 3
    again.close()


def test_copies_fail_for_want_of_room_and_succeed_later(machine: DiskMachine) -> None:
    store = founded(machine)
    advance(store, 3)
    machine.disk.full = True
    copy = machine.image.directory / "copy-1.db"
    with pytest.raises(OSError, match="has no room in 0"):
        snapshots.make_copy(machine.database, copy)
    machine.disk.full = False
    assert snapshots.make_copy(machine.database, copy).index == 3
    store.close()


def test_the_seams_are_gone_behind_a_run() -> None:
    def seams() -> list[Callable[..., object]]:
        return [os.fsync, os.replace, os.unlink, sqlite3.connect, snapshots.make_copy]

    before = seams()
    with patched(lambda: None, {}):
        assert not set(before) & set(seams())
    assert seams() == before


# --- where files lie ------------------------------------------------------------------------------


def test_what_a_killed_process_leaves_in_memory_is_removed_by_the_next(tmp_path: Path) -> None:
    program = (
        "import sys, pathlib\n"
        "from chaos.simulation.disks import memory\n"
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


def test_a_process_may_end_at_a_sync_that_fails() -> None:
    disk = with_unsynced(b"old", b"lost")
    fd = disk.open_append(FILE)
    disk.fail_sync("fdatasync", 1, ends=True)
    with pytest.raises(OSError, match="fdatasync"):
        disk.fdatasync(fd)
    with pytest.raises(PowerLoss):
        disk.fdatasync(fd)
    disk.restart()
    assert disk.read(FILE) == b"oldlost", "the cache has it"
