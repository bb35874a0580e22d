"""Claims about cluster/store/snapshots.py."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from cluster.log.files import DISK
from cluster.store import snapshots, tables
from cluster.store.commands import Advance, Put, encode
from cluster.store.snapshots import (
    DamagedCopy,
    Download,
    SnapshotInfo,
    install,
    make_copy,
    read_chunk,
)
from cluster.store.store import Store
from cluster.wire.messages import SnapshotChunk
from flotilla_client.protocol import pack
from tests.unit.model_store import MEMBERS, SMALL, random_payloads
from tests.unit.store_bench import Bench as StoreBench

CHUNK_BYTES = 10_000


def no_pause(_seconds: float) -> None:
    """Go on at once."""


class ProcessDies(Exception):
    """The process dies here."""


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """A store with some history, whose last entries are in the WAL only."""
    store = Store.open(tmp_path / "source" / "store.db", MEMBERS, SMALL)
    for index, payload in enumerate(random_payloads(1, 200), 1):
        store.apply(index, 3, payload)
        store.commit()
        if index == 100:
            tables.checkpoint(tmp_path / "source" / "store.db")
    yield store
    store.close()


@pytest.fixture
def copy(store: Store, tmp_path: Path) -> tuple[Path, SnapshotInfo]:
    """A copy of it."""
    path = tmp_path / "source" / "copy-1.db"
    return path, make_copy(tmp_path / "source" / "store.db", path, no_pause)


def chunks(copy: tuple[Path, SnapshotInfo]) -> list[SnapshotChunk]:
    """Return the whole copy in pieces."""
    path, info = copy
    what = info.index, info.term, info.size_bytes, info.digest
    return [
        SnapshotChunk("id", *what, offset, read_chunk(path, info, offset, CHUNK_BYTES))
        for offset in range(0, info.size_bytes, CHUNK_BYTES)
    ]


def download(copy: tuple[Path, SnapshotInfo], path: Path) -> Download:
    """Return a complete download."""
    pieces = chunks(copy)
    download = Download(path, pieces[0])
    for piece in pieces:
        assert not download.is_complete
        download.write(piece)
    assert download.is_complete
    return download


def digest_of(path: Path) -> str:
    """Return the digest of the state in a database."""
    store = Store.open(path, {}, SMALL)
    try:
        return store.digest()
    finally:
        store.close()


# --- making -------------------------------------------------------------------------------------


def test_a_copy_is_the_state_as_of_its_beginning_whatever_is_written_meanwhile(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = store.digest()
    monkeypatch.setattr(snapshots, "STEP_BYTES", tables.PAGE_BYTES)
    pauses = 0

    def write_more(_seconds: float) -> None:
        nonlocal pauses
        pauses += 1
        put = Put("c0", None, "t0", pauses, *pack([bytes(3000)]))
        store.apply(store.applied_index + 1, 4, encode(1, [put]))
        store.commit()
        if pauses == 5:
            tables.checkpoint(tmp_path / "source" / "store.db")

    path = tmp_path / "source" / "copy-1.db"
    info = make_copy(tmp_path / "source" / "store.db", path, write_more)
    assert pauses > 10
    assert (info.index, info.term) == (200, 3)
    assert info.size_bytes == path.stat().st_size
    assert store.digest() != before
    assert digest_of(path) == before


def test_a_damaged_row_is_not_handed_on(store: Store, tmp_path: Path) -> None:
    database = tmp_path / "source" / "store.db"
    put = Put("c0", None, "t0", 1_000, *pack([bytes(3000)]))
    store.apply(store.applied_index + 1, 4, encode(1, [put]))
    store.commit()
    with closing(tables.connect(database, 1_000)) as disk:
        sql = "UPDATE {} SET crc = crc + 1 WHERE rowid = (SELECT max(rowid) FROM {})"
        for table in ("publications", "producers", "clients", "topics"):
            disk.execute(sql.format(table, table))
            with pytest.raises(tables.CorruptStore, match=table):
                make_copy(database, tmp_path / "source" / "copy-1.db", no_pause)
            disk.execute(sql.replace("+", "-").format(table, table))
    make_copy(database, tmp_path / "source" / "copy-1.db", no_pause)


def test_a_copy_has_what_is_used_and_not_what_once_was(tmp_path: Path) -> None:
    bench = StoreBench.started(tmp_path / "store.db")
    for counter in range(100):
        bench.put(counter, bytes(100_000))
    bench.apply(Advance("s", None, {"t": 100}))
    while bench.store.collect_garbage(1000):
        bench.store.commit()
    tables.checkpoint(bench.path)
    assert bench.path.stat().st_size > 10_000_000
    info = make_copy(bench.path, tmp_path / "copy-1.db", no_pause)
    assert info.size_bytes < 200_000
    assert digest_of(tmp_path / "copy-1.db") == bench.store.digest()
    assert tables.file_is_shrinkable(tmp_path / "copy-1.db")
    bench.store.close()


def test_a_copy_that_would_fill_the_disk_is_not_begun(
    store: Store, copy: tuple[Path, SnapshotInfo], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    room = copy[1].size_bytes + snapshots.COPY_LEAVES_BYTES - 1
    monkeypatch.setattr(DISK, "free_bytes", lambda directory: room, raising=False)
    for attempt in (
        lambda: make_copy(tmp_path / "source" / "store.db", tmp_path / "copy-2.db", no_pause),
        lambda: Download(tmp_path / "download.db", chunks(copy)[0]),
    ):
        with pytest.raises(OSError, match="has no room") as raised:
            attempt()
        assert raised.value.errno == errno.ENOSPC
    assert {file.name for file in tmp_path.iterdir()} == {"source"}


def test_pieces_end_with_the_copy(copy: tuple[Path, SnapshotInfo]) -> None:
    path, info = copy
    assert b"".join(chunk.data for chunk in chunks(copy)) == path.read_bytes()
    assert read_chunk(path, info, info.size_bytes, 10) == b""


def test_a_piece_of_a_copy_whose_file_was_cut_is_damage(copy: tuple[Path, SnapshotInfo]) -> None:
    path, info = copy
    os.truncate(path, info.size_bytes - 1)
    with pytest.raises(DamagedCopy, match="ends at"):
        read_chunk(path, info, info.size_bytes - 10, 10)


# --- receiving ----------------------------------------------------------------------------------


def test_a_whole_download_is_verified_and_tells_its_members(
    store: Store, copy: tuple[Path, SnapshotInfo], tmp_path: Path
) -> None:
    verified = download(copy, tmp_path / "target" / "download.db").verify(no_pause)
    assert (verified.index, verified.term) == (200, 3)
    assert verified.members == store.members
    assert [file.name for file in verified.path.parent.iterdir()] == ["download.db"]


def test_pieces_out_of_place_or_of_another_copy_are_refused(
    copy: tuple[Path, SnapshotInfo], tmp_path: Path
) -> None:
    pieces = chunks(copy)
    receiving = Download(tmp_path / "download.db", pieces[0])
    receiving.write(pieces[0])
    first = pieces[0]
    what = first.index, first.term, first.size_bytes, first.digest
    for wrong in (
        pieces[0],
        pieces[2],
        SnapshotChunk("other", *what, CHUNK_BYTES, b"x"),
        SnapshotChunk("id", first.index + 1, *what[1:], CHUNK_BYTES, b"x"),
        SnapshotChunk("id", *what, CHUNK_BYTES, bytes(first.size_bytes)),
    ):
        with pytest.raises(DamagedCopy):
            receiving.write(wrong)
    assert receiving.offset == CHUNK_BYTES
    for piece in pieces[1:]:
        receiving.write(piece)
    receiving.verify(no_pause)


def test_a_download_that_changed_on_the_way_or_on_disk_is_refused(
    copy: tuple[Path, SnapshotInfo], tmp_path: Path
) -> None:
    receiving = download(copy, tmp_path / "download.db")
    damaged = bytearray(receiving.path.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    receiving.path.write_bytes(damaged)
    with pytest.raises(DamagedCopy, match="digest"):
        receiving.verify(no_pause)
    receiving.abandon()
    assert not receiving.path.exists()


@pytest.mark.parametrize("content", [b"", b"x" * 5000])
def test_a_download_that_is_no_database_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "not.db"
    path.write_bytes(content)
    info = SnapshotInfo(1, 1, len(content), snapshots._digest_of(path, no_pause))
    what = info.index, info.term, info.size_bytes, info.digest
    receiving = Download(tmp_path / "download.db", SnapshotChunk("id", *what, 0, content))
    receiving.write(SnapshotChunk("id", *what, 0, content))
    with pytest.raises(DamagedCopy):
        receiving.verify(no_pause)


def test_a_copy_of_another_position_than_announced_is_refused(
    copy: tuple[Path, SnapshotInfo], tmp_path: Path
) -> None:
    path, info = copy
    lie = path, SnapshotInfo(info.index + 1, info.term, info.size_bytes, info.digest)
    with pytest.raises(DamagedCopy, match="announced"):
        download(lie, tmp_path / "download.db").verify(no_pause)


# --- swapping in --------------------------------------------------------------------------------


def old_store(directory: Path) -> str:
    """Leave an older store there, with a WAL as after kill -9; return its digest."""
    store = Store.open(directory / "live.db", MEMBERS, SMALL)
    for index, payload in enumerate(random_payloads(2, 60), 1):
        store.apply(index, 1, payload)
    digest = store.digest()
    for suffix in ("", "-wal"):
        shutil.copy(directory / f"live.db{suffix}", directory / f"store.db{suffix}")
    store.close()
    (directory / "live.db").unlink()
    return digest


def test_install_replaces_the_database_and_its_wal(
    store: Store, copy: tuple[Path, SnapshotInfo], tmp_path: Path
) -> None:
    target = tmp_path / "target"
    verified = download(copy, target / "download.db").verify(no_pause)
    old_store(target)
    install(verified.path, target / "store.db")
    assert digest_of(target / "store.db") == store.digest()
    assert [file.name for file in target.iterdir()] == ["store.db"]


def hot_journal(directory: Path) -> bytes:
    """Return the rollback journal of a change to a larger database, as kill -9 leaves it."""
    path = directory / "larger.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA page_size=4096")
        connection.execute("CREATE TABLE rows(data BLOB)")
        connection.execute("BEGIN")
        connection.executemany("INSERT INTO rows VALUES(?)", [(bytes(3000),)] * 200)
        connection.execute("COMMIT")
        connection.execute("PRAGMA cache_size=1")
        connection.execute("BEGIN")
        connection.execute("UPDATE rows SET data = zeroblob(2999)")
        data = (directory / "larger.db-journal").read_bytes()
        connection.execute("ROLLBACK")
    path.unlink()
    assert len(data) > 4096, "SQLite has written what it would roll back"
    return data


@pytest.mark.parametrize("is_joining", [True, False])
def test_what_the_database_before_would_roll_back_is_not_rolled_back_into_a_copy(
    store: Store, copy: tuple[Path, SnapshotInfo], tmp_path: Path, is_joining: bool
) -> None:
    target = tmp_path / "target"
    verified = download(copy, target / "download.db").verify(no_pause)
    database = target / "store.db"
    # The process before died while SQLite made a WAL database of the copy that it had installed.
    (target / "store.db-journal").write_bytes(hot_journal(tmp_path))
    if is_joining:
        Store.remove(database)
    install(verified.path, database)
    assert [file.name for file in target.iterdir()] == ["store.db"]
    with closing(sqlite3.connect(database)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    assert digest_of(database) == store.digest()


@pytest.mark.parametrize("calls", range(9))
def test_a_crash_at_any_step_of_install_leaves_the_old_or_the_new_state(
    store: Store,
    copy: tuple[Path, SnapshotInfo],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    calls: int,
) -> None:
    target = tmp_path / "target"
    verified = download(copy, target / "download.db").verify(no_pause)
    old = old_store(target)
    with monkeypatch.context() as patch:
        _die_after(patch, calls)
        try:
            install(verified.path, target / "store.db")
            died = False
        except ProcessDies:
            died = True
    assert died == (calls < 8)  # two renames, three unlinks, three fsyncs
    snapshots.remove_leftovers(target / "store.db")
    assert digest_of(target / "store.db") == (old if calls == 0 else store.digest())
    assert [file.name for file in target.iterdir()] == ["store.db"]


def _die_after(patch: pytest.MonkeyPatch, calls: int) -> None:
    """Let `calls` changes of the disk happen, then die at the next."""
    left = calls

    def dying(change: object) -> object:
        def call(*arguments: object, **named: object) -> object:
            nonlocal left
            if left == 0:
                raise ProcessDies
            left -= 1
            return change(*arguments, **named)  # type: ignore[operator]

        return call

    patch.setattr(os, "replace", dying(os.replace))
    patch.setattr(os, "fsync", dying(os.fsync))
    patch.setattr(Path, "unlink", dying(Path.unlink))


# --- stores of version 0.1 ----------------------------------------------------------------------


@pytest.fixture
def old_format(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store whose file was made as version 0.1 made it, left as kill -9 leaves it."""
    directory = tmp_path / "old"
    with monkeypatch.context() as patch:
        patch.setattr(tables, "_INCREMENTAL", 0)
        old_store(directory)
    assert not tables.file_is_shrinkable(directory / "store.db")
    return directory / "store.db"


def test_a_store_of_version_0_1_is_made_anew_and_says_the_same(old_format: Path) -> None:
    before = digest_of(old_format)
    assert snapshots.make_shrinkable(old_format)
    assert tables.file_is_shrinkable(old_format)
    assert digest_of(old_format) == before
    assert [file.name for file in old_format.parent.iterdir()] == [old_format.name]


@pytest.mark.parametrize("calls", range(9))
def test_a_crash_while_a_store_is_made_anew_loses_nothing(
    old_format: Path, monkeypatch: pytest.MonkeyPatch, calls: int
) -> None:
    shutil.copytree(old_format.parent, old_format.parent.parent / "twin")
    before = digest_of(old_format.parent.parent / "twin" / "store.db")
    with monkeypatch.context() as patch:
        _die_after(patch, calls)
        with contextlib.suppress(ProcessDies):
            snapshots.make_shrinkable(old_format)
    snapshots.remove_leftovers(old_format)
    assert snapshots.make_shrinkable(old_format)
    assert digest_of(old_format) == before
    assert [file.name for file in old_format.parent.iterdir()] == [old_format.name]


@pytest.mark.parametrize("what", ["large", "short of room"])
def test_a_store_of_version_0_1_that_cannot_be_made_anew_is_used_as_it_is(
    old_format: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    if what == "large":
        monkeypatch.setattr(snapshots, "REMADE_BYTES_MAX", 1)
    else:
        monkeypatch.setattr(DISK, "free_bytes", lambda directory: 1, raising=False)
    before = digest_of(old_format)
    assert not snapshots.make_shrinkable(old_format)
    store = Store.open(old_format, {}, SMALL)
    assert not store.give_back(0, lambda: False)
    assert store.digest() == before
    store.close()


def test_unfinished_copies_are_removed_at_the_start(
    store: Store, copy: tuple[Path, SnapshotInfo], tmp_path: Path
) -> None:
    source = tmp_path / "source"
    Download(source / "download.db", chunks(copy)[0])._file.close()
    snapshots.remove_leftovers(source / "store.db")
    names = {file.name for file in source.iterdir()}
    assert names == {"store.db", "store.db-wal", "store.db-shm"}
