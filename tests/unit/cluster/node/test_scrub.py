"""The scrub: each kind of damage is found where it is, nothing else is, at its pace."""

from __future__ import annotations

import errno
import os
import random
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from chaos.simulation.disks.disk import SimDisk
from cluster.log.files import DISK, Files
from cluster.log.journal import Journal
from cluster.log.sealed import Sealed, check_piece
from cluster.node import scrub
from cluster.node.scrub import Scrub, ScrubPace
from cluster.store import rows, tables
from cluster.store.commands import (
    Advance,
    ChangeUser,
    Purge,
    Put,
    Raise,
    Register,
    Subscribe,
    encode,
)
from cluster.store.rows import DamagedRow, Place, check_slice
from cluster.store.snapshots import make_copy
from cluster.store.store import Limits
from cluster.store.tables import (
    CHECKED,
    COUNTED,
    ID_MAX,
    CorruptStore,
    RecoveryRow,
    row_crc,
    write_recovery,
)
from cluster.wire.levels import BUILD, LEVEL_OF_PROPERTIES
from flotilla_client.properties import Properties
from flotilla_client.properties import encode as encode_properties
from flotilla_client.protocol import ADD_USER, Enveloped, pack
from tests.unit.store_bench import Bench, lose_the_last_of_three_rows

MIB = 1024 * 1024
OFTEN = ScrubPace(bytes_per_s_max=64 * MIB, period_s=10.0)


# --- segments -------------------------------------------------------------------------------------


def written(directory: Path, files: Files, sizes: tuple[int, ...], segment_bytes: int) -> Journal:
    """Return a journal with an entry of each of these sizes, each synced."""
    Journal.create(directory, files)
    journal = Journal.open(directory, segment_bytes, 0, files=files)
    for index, size in enumerate(sizes, 1):
        journal.add(b"\0" + bytes(size), index, 1)
        journal.sync()
    return journal


def findings(sealed: Sealed, files: Files, bytes_max: int) -> list[tuple[int, str]]:
    """Read a segment to its end; return what is damaged."""
    offset, found = 0, []
    while offset < sealed.size_bytes:
        piece = check_piece(sealed, offset, bytes_max, files)
        assert piece.offset > offset, "it stands still"
        offset = piece.offset
        found += [(piece.damaged_offset, piece.damage)] if piece.damage else []
    return found


@pytest.mark.parametrize("bytes_max", [1, 50, 1000, 1 * MIB])
def test_every_flipped_bit_of_a_sealed_segment_is_found_and_a_whole_one_is_whole(
    tmp_path: Path, bytes_max: int
) -> None:
    journal = written(tmp_path, DISK, (10, 400, 3, 1), 500)
    sealed = journal.sealed()[0]
    assert findings(sealed, DISK, bytes_max) == []
    whole = sealed.path.read_bytes()
    assert len(whole) == sealed.size_bytes
    for at in range(0, len(whole), 7 if bytes_max < 1000 else 1):
        sealed.path.write_bytes(whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :])
        [(offset, _)] = findings(sealed, DISK, bytes_max)
        assert offset <= at, "it is in the record that begins there"
    journal.close()


@pytest.mark.parametrize("at", [0, 5, 20, 100, 300])
def test_a_segment_that_was_cut_or_has_grown_is_damaged(tmp_path: Path, at: int) -> None:
    journal = written(tmp_path, DISK, (10, 400, 3, 1), 500)
    sealed = journal.sealed()[0]
    whole = sealed.path.read_bytes()
    sealed.path.write_bytes(whole[:at])
    assert len(findings(sealed, DISK, 64)) == 1
    sealed.path.write_bytes(whole + b"x")
    assert findings(sealed, DISK, 64) == [(len(whole), "more bytes than were written")]
    journal.close()


def test_a_segment_that_cannot_be_read_is_damaged_and_other_errors_are_the_caller_s() -> None:
    disk = SimDisk(lambda: None)
    sealed = written(Path("j"), disk, (10, 400, 3), 500).sealed()[0]
    disk._names[sealed.path].is_readable = False
    assert findings(sealed, disk, 64) == [(0, f"it can't be read: {os.strerror(errno.EIO)}")]
    disk.unlink(sealed.path)
    with pytest.raises(FileNotFoundError):
        check_piece(sealed, 0, 64, disk)


def test_want_of_memory_for_a_read_is_no_damage(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = SimDisk(lambda: None)
    sealed = written(Path("j"), disk, (10, 400, 3), 500).sealed()[0]

    def fail(*_: object) -> bytes:
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    monkeypatch.setattr(disk, "pread", fail)
    with pytest.raises(OSError, match=os.strerror(errno.ENOMEM)):
        check_piece(sealed, 0, 64, disk)


def test_a_damaged_segment_goes_with_those_before_it_once_the_store_has_its_entries() -> None:
    disk = SimDisk(lambda: None)
    Journal.create(Path("j"), disk)
    journal = Journal.open(Path("j"), 200, 1 * MIB, files=disk)
    for index in range(1, 9):
        journal.add(b"\0" + bytes(150), index, 1)
        journal.sync()
    assert journal.compact(8) == 0, "it is kept for those who are behind"
    sealed = journal.sealed()
    journal.note_damage(sealed[2])
    assert journal.damaged_index == 4
    journal.note_damage(sealed[0])
    assert journal.damaged_index == 4, "an older one that is found later goes with it"
    assert journal.compact(3) == 2, "the store has not yet what is in the third"
    assert journal.compact(4) == 1
    assert not journal.holds(sealed[2])
    assert journal.holds(sealed[3])
    assert journal.damaged_index == 0
    assert journal.first_index == 4


def test_nothing_is_due_for_a_damaged_segment_that_nothing_has_followed() -> None:
    disk = SimDisk(lambda: None)
    journal = written(Path("j"), disk, (300,), 200)
    journal.note_damage(journal.sealed()[0])
    assert journal.damaged_index == 0
    journal.add(b"\0x", 2, 1)
    journal.add(b"\0y", 3, 1)
    assert journal.damaged_index == 2


# --- rows -----------------------------------------------------------------------------------------


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    """A store with rows in all tables."""
    bench = Bench(tmp_path / "store.db", Limits())
    bench.ok(Register("p", True, None, ""))
    for each in range(5):
        bench.ok(Register(f"c{each}", True, None, ""))
        bench.ok(Subscribe(f"c{each}", None, "u", None))
        for counter in range(1, 4):
            bench.put(counter, b"news", client=f"c{each}", topic="u")
    bench.ok(Raise(BUILD.level_max))
    for each in range(5):
        bench.ok(ChangeUser(ADD_USER, f"user{each}", [">"], [">"], True, False, True, "admin"))
        bench.ok(Register(f"owned{each}", True, None, "", f"user{each}"))
    yield bench
    bench.store.close()


def damaged_rows(path: Path, rows_max: int = 256, bytes_max: int = MIB) -> list[DamagedRow]:
    """Read all rows; return what is damaged."""
    after: Place | None = Place()
    found: list[DamagedRow] = []
    steps = 0
    while after is not None:
        part = check_slice(path, after, rows_max, bytes_max)
        after, steps = part.after, steps + 1
        found += part.damaged
        assert steps < 10_000, "it goes round"
    return found


def test_a_level_that_is_raised_while_a_slice_is_read_is_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench.started(tmp_path / "store.db")
    bench.ok(Raise(LEVEL_OF_PROPERTIES - 1))
    has_times = tables.has_times

    def raised(connection: sqlite3.Connection) -> bool:
        found = has_times(connection)
        monkeypatch.undo()
        bench.ok(Raise(LEVEL_OF_PROPERTIES))
        put = Put("p", None, "t", 1, *pack([b"has a time"]))
        bench.store.apply(bench.store.applied_index + 1, 1, encode(1, [put], 2))
        bench.store.commit()
        return found

    monkeypatch.setattr(tables, "has_times", raised)
    assert damaged_rows(bench.path) == []
    assert bench.store.level == LEVEL_OF_PROPERTIES
    bench.store.close()


def change(path: Path, sql: str) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(sql)


@pytest.mark.parametrize("rows_max", [1, 2, 1000])
def test_a_store_that_is_whole_has_no_damage_and_every_table_s_damage_is_found(
    bench: Bench, rows_max: int
) -> None:
    assert damaged_rows(bench.path, rows_max) == []
    filled = []
    for table, _, _ in CHECKED:
        with closing(sqlite3.connect(bench.path)) as connection:
            names = connection.execute("SELECT name FROM sqlite_master").fetchall()
            if (table,) not in names or not connection.execute(f"SELECT 1 FROM {table}").fetchall():
                continue
        filled.append(table)
        change(bench.path, f"UPDATE {table} SET crc = crc + 1")
        found = damaged_rows(bench.path, rows_max)
        assert {(each.table, each.reason) for each in found} == {(table, "checksum")}
        change(bench.path, f"UPDATE {table} SET crc = crc - 1")
        assert damaged_rows(bench.path, rows_max) == []
    assert {"clients", "topics", "subscriptions", "producers", "publications"} <= {*filled}


def test_every_table_with_checksums_is_read(bench: Bench) -> None:
    bench.store._database.make_latest()  # as the first step of a compaction does
    bench.store.commit()
    write_recovery(bench.path, RecoveryRow("r", {"t": 1}), {"a": "x"}, 1)
    with closing(sqlite3.connect(bench.path)) as connection:
        tables_ = [name for (name,) in connection.execute(
            "SELECT name FROM sqlite_master WHERE type = 'table'"
        )]  # fmt: skip
        with_crc = {
            table
            for table in tables_
            if "crc" in [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]
        }
    assert with_crc == {table for table, _, _ in CHECKED} | {"state"}
    assert damaged_rows(bench.path, 2) == []
    for table in ("recoveries", "settled"):
        change(bench.path, f"UPDATE {table} SET crc = crc + 1")
        assert {each.table for each in damaged_rows(bench.path, 1)} == {table}
        change(bench.path, f"UPDATE {table} SET crc = crc - 1")


def test_a_topic_that_is_written_faster_than_read_back_keeps_no_pass_from_what_is_behind_it(
    bench: Bench,
) -> None:
    bench.ok(Subscribe("c0", None, "behind", None))
    bench.put(4, b"news", client="c0", topic="behind")
    after: Place | None = Place()
    counter, read = 4, 0
    while after is not None:
        for _ in range(2):
            bench.put(counter, b"news", client="c1", topic="u")
            counter += 1
        part = check_slice(bench.path, after, 1, MIB)
        after, read = part.after, read + part.rows
        assert part.damaged == ()
        assert read < 200, "the pass follows the writer"
    change(
        bench.path,
        "UPDATE publications SET crc = 0 WHERE key = (SELECT max(key) FROM publications)",
    )
    assert [each.reason for each in damaged_rows(bench.path, 1)] == ["checksum"]


@pytest.mark.parametrize(
    "sql",
    [
        "UPDATE state SET applied_index = applied_index + 1",
        "UPDATE publications SET data = 5 WHERE key = (SELECT max(key) FROM publications)",
        "UPDATE publications SET data = data || x'00'",
        "UPDATE clients SET nonce = CAST(x'ff' AS TEXT)",
        "UPDATE topics SET last_id = 'x'",
        "DROP TABLE producers",
    ],
)
def test_whatever_a_row_has_become_is_told_and_the_others_are_read(bench: Bench, sql: str) -> None:
    change(bench.path, sql)
    change(bench.path, "UPDATE subscriptions SET crc = crc + 1 WHERE client > 3")
    found = damaged_rows(bench.path, 3)
    assert len({each.table for each in found}) == 2, found


@pytest.fixture
def backlog(tmp_path: Path) -> Iterator[Bench]:
    """A store of publications 1 to 9 of t, in a row each, that s has read up to 3."""
    bench = Bench.started(tmp_path / "store.db")
    for counter in range(1, 10):
        bench.put(counter, b"news")
    bench.ok(Advance("s", None, {"t": 3}))
    yield bench
    bench.store.close()


@pytest.mark.parametrize("rows_max", [1, 2, 1000])
@pytest.mark.parametrize(
    ("gone", "said"),
    [
        ("1 AND 4", "of topic 1 publications 4 to 4 are missing"),
        ("5 AND 5", "before this row publications 5 to 5 are missing"),
        ("6 AND 8", "before this row publications 6 to 8 are missing"),
        ("8 AND 9", "of topic 1 publications 8 to 9 are missing"),
        ("1 AND 9", "of topic 1 publications 4 to 9 are missing"),
    ],
)
def test_rows_of_publications_that_are_gone_are_missed_wherever_they_stood(
    backlog: Bench, gone: str, said: str, rows_max: int
) -> None:
    assert damaged_rows(backlog.path, rows_max) == []
    change(backlog.path, f"DELETE FROM publications WHERE key & {ID_MAX} BETWEEN {gone}")
    assert [each.reason for each in damaged_rows(backlog.path, rows_max)] == [said]
    assert {each.table for each in damaged_rows(backlog.path, rows_max)} == {"publications"}


def test_a_flipped_number_of_rows_of_a_page_is_found_and_no_copy_is_made_of_what_is_left(
    tmp_path: Path,
) -> None:
    bench = Bench.started(tmp_path / "store.db")
    for counter in range(1, 4):
        bench.put(counter, b"news")
    bench.store.close()
    make_copy(bench.path, tmp_path / "whole.db")
    lose_the_last_of_three_rows(bench.path, "publications")
    [damaged] = damaged_rows(bench.path)
    assert damaged.reason == "of topic 1 publications 3 to 3 are missing"
    with pytest.raises(CorruptStore, match="publications 3 to 3 are missing"):
        make_copy(bench.path, tmp_path / "copy.db")


@pytest.mark.parametrize("rows_max", [1, 1000])
def test_producers_that_are_gone_are_missed(bench: Bench, rows_max: int) -> None:
    change(bench.path, "DELETE FROM producers WHERE client = 3")
    [damaged] = damaged_rows(bench.path, rows_max)
    assert (damaged.table, damaged.row) == ("producers", "3")
    assert damaged.reason == "this client has 1, of which 0 are there"


@pytest.fixture
def counted(bench: Bench) -> Bench:
    """A store with rows in all tables whose rows are counted."""
    bench.ok(Subscribe("p", None, "t", None))
    for hour in range(4):
        bench.now_ms += 3_600_000
        bench.ok(Subscribe(f"c{hour}", None, "t", None))
        for name, own, marks in (
            ("t", Properties(None, {}, 86_400_000), (True, True, False)),
            ("u", Properties(None, {}, 0, 86_400_000), (True, False, True)),
        ):
            batch = pack([Enveloped(encode_properties(own) + b"x")])
            bench.ok(Put("p", None, name, hour, *batch, None, *marks))
        bench.put(hour, b"x", topic=f"purged{hour}")
        bench.ok(Subscribe("p", None, f"purged{hour}", None))
        bench.put(hour + 4, b"x", client="c0", topic=f"purged{hour}")
        bench.ok(Purge(f"purged{hour}", 1, True, "admin"))
    return bench


@pytest.mark.parametrize("rows_max", [1, 1000])
@pytest.mark.parametrize("table", COUNTED)
def test_rows_that_are_gone_are_missed_of_every_table_that_is_counted(
    counted: Bench, tmp_path: Path, table: str, rows_max: int
) -> None:
    assert damaged_rows(counted.path, rows_max) == []
    key, bits = COUNTED[table]
    with closing(sqlite3.connect(counted.path)) as connection, connection:
        keys = [each for [each] in connection.execute(f"SELECT {key} FROM {table} ORDER BY 1")]
        connection.execute(f"DROP TRIGGER {table}_go")  # as a page has none
        connection.execute(f"DELETE FROM {table} WHERE {key} = ?", keys[-1:])
    assert len(keys) > 1
    low = keys[-1] >> bits << bits
    due = sum(each >= low for each in keys)
    said = f"{due} rows are counted between these, of which {due - 1} are there"
    row = f"{low}, {low + (1 << bits) - 1}"
    assert DamagedRow(table, row, said) in damaged_rows(counted.path, rows_max)
    with pytest.raises(CorruptStore, match=said):
        make_copy(counted.path, tmp_path / "copy.db")


def test_a_page_that_has_lost_rows_that_nothing_follows_from_is_found(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "store.db", Limits())
    bench.ok(Raise(BUILD.level_max))
    for who in ("one", "two", "three"):
        bench.ok(Register(who, True, None, "", who))
    bench.store.close()
    make_copy(bench.path, tmp_path / "whole.db")
    lose_the_last_of_three_rows(bench.path, "owners")
    said = "3 rows are counted between these, of which 2 are there"
    assert damaged_rows(bench.path) == [DamagedRow("owners", "0, 255", said)]
    with pytest.raises(CorruptStore, match=said):
        make_copy(bench.path, tmp_path / "copy.db")


@pytest.mark.parametrize("rows_max", [1, 1000])
def test_a_count_that_is_gone_or_counts_nothing_is_told(counted: Bench, rows_max: int) -> None:
    change(counted.path, "DELETE FROM counts WHERE name = 'heard'")
    missing = DamagedRow("counts", "heard, 0", "it is missing")
    assert {*damaged_rows(counted.path, rows_max)} == {missing}
    change(counted.path, "INSERT INTO counts VALUES('hears', 0, 7)")
    assert DamagedRow("counts", "hears, 0", "it counts no table") in damaged_rows(counted.path)


def test_rows_are_counted_however_they_come_and_go(counted: Bench) -> None:
    """As older versions do, which know nothing of it."""
    counted.store.close()
    with closing(sqlite3.connect(counted.path)) as connection, connection:
        for client in (1, 1, 300, 301, 301):
            row = client, 7, row_crc((client, 7))
            connection.execute("INSERT OR REPLACE INTO heard VALUES(?, ?, ?)", row)
            connection.execute(
                "INSERT INTO heard VALUES(?, ?, ?) ON CONFLICT(client) DO UPDATE SET at = at", row
            )
        connection.execute("DELETE FROM heard WHERE client = 301")
    assert damaged_rows(counted.path) == []
    with closing(sqlite3.connect(counted.path)) as connection:
        [[there]] = connection.execute("SELECT count(*) FROM heard")
        sql = "SELECT sum(count) FROM counts WHERE name = 'heard'"
        assert connection.execute(sql).fetchall() == [(there,)]
        connection.execute("DELETE FROM heard")
        found = connection.execute("SELECT count(*) FROM counts WHERE name = 'heard'")
        assert found.fetchall() == [(0,)]


def test_the_rows_of_an_older_version_are_counted_when_it_is_opened(counted: Bench) -> None:
    with closing(sqlite3.connect(counted.path)) as connection, connection:
        before = connection.execute("SELECT * FROM counts").fetchall()
        connection.execute("DROP TABLE counts")
        for table in COUNTED:
            connection.execute(f"DROP TRIGGER {table}_come")
            connection.execute(f"DROP TRIGGER {table}_go")
    assert damaged_rows(counted.path) == []
    counted.reopen()
    with closing(sqlite3.connect(counted.path)) as connection:
        assert connection.execute("SELECT * FROM counts").fetchall() == before


def test_what_was_read_or_collected_between_two_slices_is_not_missed(backlog: Bench) -> None:
    after: Place | None = Place()
    counter, slices = 10, 0
    while after is not None:
        part = check_slice(backlog.path, after, 1, MIB)
        after, slices = part.after, slices + 1
        assert part.damaged == (), slices
        backlog.put(counter, b"news")
        counter += 1
        backlog.ok(Advance("s", None, {"t": counter - 3}))
        backlog.store.collect_garbage(1)
        backlog.store.commit()
    assert slices > 10


def test_an_index_that_has_lost_an_entry_is_found(bench: Bench) -> None:
    """The row is whole; the index is made over another table's content."""
    with closing(sqlite3.connect(bench.path)) as connection:
        root = connection.execute(
            "SELECT rootpage FROM sqlite_master WHERE name = 'sqlite_autoindex_clients_1'"
        ).fetchone()[0]
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    bench.store.close()
    with bench.path.open("r+b") as file:
        page = os.pread(file.fileno(), tables.PAGE_BYTES, (root - 1) * tables.PAGE_BYTES)
        at = page.index(b"c3")
        os.pwrite(file.fileno(), b"c9", (root - 1) * tables.PAGE_BYTES + at)
    found = damaged_rows(bench.path)
    assert {(each.table, each.reason) for each in found} == {
        ("clients", "its index does not find it")
    }


@pytest.mark.slow
def test_any_flipped_bit_of_the_file_leads_to_an_end(bench: Bench) -> None:
    with closing(sqlite3.connect(bench.path)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    bench.store.close()
    whole, rng, seen = bench.path.read_bytes(), random.Random(7), 0
    used = [at for at, byte in enumerate(whole) if byte]
    for _ in range(300):
        at = rng.choice(used)
        damaged = bytearray(whole)
        damaged[at] ^= 1 << rng.randrange(8)
        bench.path.write_bytes(damaged)
        for suffix in ("-wal", "-shm"):
            tables.side_file(bench.path, suffix).unlink(missing_ok=True)
        seen += bool(damaged_rows(bench.path, 2))
    assert seen > 100, seen


def test_want_of_a_lock_is_no_damage(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def busy(path: Path, busy_ms: int) -> sqlite3.Connection:
        error = sqlite3.OperationalError("database is locked")
        error.sqlite_errorcode = sqlite3.SQLITE_BUSY
        raise error

    monkeypatch.setattr(rows.tables, "connect", busy)
    with pytest.raises(sqlite3.OperationalError):
        check_slice(bench.path, Place(), 10, 10)


# --- the pace -------------------------------------------------------------------------------------


class LaterWorker:
    """Does a job when it is told to."""

    def __init__(self) -> None:
        self.jobs: list[tuple[Callable[[], Any], Callable[[Any], None], Callable[..., None]]] = []

    def submit(
        self,
        job: Callable[[], Any],
        done: Callable[[Any], None],
        failed: Callable[[Exception], None],
    ) -> None:
        self.jobs.append((job, done, failed))

    @property
    def idle(self) -> bool:
        return not self.jobs

    def work(self) -> None:
        [(job, done, failed)] = self.jobs
        self.jobs.clear()
        try:
            result = job()
        except (OSError, sqlite3.Error) as error:
            failed(error)
        else:
            done(result)


class ScrubBench:
    def __init__(self, bench: Bench, directory: Path, pace: ScrubPace) -> None:
        self.worker, self.now = LaterWorker(), 100.0
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.journal = written(directory / "journal", DISK, (300, 300, 300, 3, 3), 200)
        self.scrub = Scrub(
            pace,
            bench.path,
            self.journal,
            DISK,
            self.worker,
            lambda: 12_345,
            lambda event, **fields: self.events.append((event, fields)),
        )

    def step(self, seconds: float = 0.1) -> None:
        self.now += seconds
        self.scrub.tick(self.now)
        if self.worker.jobs:
            self.worker.work()

    def a_pass(self) -> None:
        before = self.passes
        for _ in range(1_000):
            self.step()
            if self.passes > before:
                return
        raise AssertionError("no end")

    @property
    def passes(self) -> int:
        return int(self.scrub.describe()["scrub"]["passes"])

    def said(self, event: str) -> list[dict[str, Any]]:
        return [fields for name, fields in self.events if name == event]


@pytest.fixture
def scrubbed(bench: Bench, tmp_path: Path) -> ScrubBench:
    return ScrubBench(bench, tmp_path, OFTEN)


def test_a_pass_reads_all_says_so_and_the_next_one_comes_a_period_later(
    scrubbed: ScrubBench,
) -> None:
    began = scrubbed.now
    scrubbed.a_pass()
    assert [fields["damaged"] for fields in scrubbed.said("scrubbed")] == [0]
    status = scrubbed.scrub.describe()
    assert status["damage"] == []
    assert status["scrub"]["last_pass_ended_ms"] == 12_345
    assert status["scrub"]["last_pass_bytes"] == status["scrub"]["bytes"] > 900
    while scrubbed.now < began + OFTEN.period_s - 0.1:
        scrubbed.step()
        assert not scrubbed.scrub.describe()["scrub"]["pass_bytes"], "it is over"
    scrubbed.a_pass()
    assert scrubbed.passes == 2


def test_damage_is_told_once_and_forgotten_when_a_pass_finds_it_no_more(
    scrubbed: ScrubBench, bench: Bench
) -> None:
    change(bench.path, "UPDATE publications SET crc = crc + 1")
    scrubbed.a_pass()
    first = len(scrubbed.said("damage_found"))
    assert first == 15
    scrubbed.a_pass()
    assert len(scrubbed.said("damage_found")) == first, "known damage is not told again"
    status = scrubbed.scrub.describe()
    assert status["scrub"]["damaged"] == first
    assert len(status["damage"]) == scrub.DAMAGES_SHOWN_MAX
    assert status["damage"][0]["file"].endswith("store.db")
    change(bench.path, "UPDATE publications SET crc = crc - 1")
    scrubbed.a_pass()
    assert scrubbed.scrub.describe()["damage"] == []


def test_of_much_damage_only_the_number_is_known(
    scrubbed: ScrubBench, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scrub, "DAMAGES_KEPT_MAX", 3)
    change(bench.path, "UPDATE publications SET crc = crc + 1")
    scrubbed.a_pass()
    assert len(scrubbed.said("damage_found")) == 3
    assert scrubbed.scrub.describe()["scrub"]["damaged"] == 15


def test_a_missing_segment_is_damage_and_a_dropped_one_is_not(scrubbed: ScrubBench) -> None:
    first, second, *_ = scrubbed.journal.sealed()
    scrubbed.scrub.tick(scrubbed.now)  # the pass has begun, with all of them
    assert scrubbed.journal.compact(2) == 1
    second.path.unlink()
    scrubbed.worker.work()
    scrubbed.a_pass()
    told = scrubbed.said("damage_found")
    assert [each["file"] for each in told] == [f"journal/{second.path.name}"]
    assert told[0]["reason"] == "the file is missing"
    assert not first.path.exists()


def test_steps_keep_the_pace_and_wait_for_the_worker(bench: Bench, tmp_path: Path) -> None:
    slow = ScrubBench(bench, tmp_path, ScrubPace(bytes_per_s_max=1_000, period_s=0.0))
    steps = 0
    for _ in range(1_000):
        before = slow.scrub.describe()["scrub"]["bytes"]
        slow.step(0.01)
        steps += slow.scrub.describe()["scrub"]["bytes"] > before
    assert 3 < steps < 40, "ten seconds of a thousand bytes each"
    slow.now += 100.0
    slow.worker.submit(lambda: None, lambda _: None, lambda _: None)  # somebody else's
    slow.scrub.tick(slow.now)
    assert len(slow.worker.jobs) == 1


def test_nothing_is_read_where_the_scrub_is_off(bench: Bench, tmp_path: Path) -> None:
    off = ScrubBench(bench, tmp_path, ScrubPace())
    off.step(1e9)
    assert off.events == []
    assert off.passes == 0


def test_what_passes_is_tried_again_and_is_no_damage(
    scrubbed: ScrubBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def busy(*arguments: Any) -> Any:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(scrub, "check_piece", busy)
    scrubbed.step()
    scrubbed.step(0.5)
    assert len(scrubbed.said("scrub_waits")) == 1, "not before its time"
    monkeypatch.undo()
    scrubbed.step(1.0)
    scrubbed.a_pass()
    assert scrubbed.scrub.describe()["damage"] == []
