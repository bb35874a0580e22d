"""The simulated disk forgets exactly what a real one may: unsynced bytes, names and WAL frames."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from chaos.simulation.disk import PAGE_BYTES, DiskFailed, PowerLoss, SimDisk, StoreImage
from cluster import tables
from cluster.journal import Journal
from cluster.store import Store

ROOT = Path("/disk/journal")
FILE = ROOT / "file"
MEMBERS = {"a": "incarnation"}


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
