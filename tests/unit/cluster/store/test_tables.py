"""Claims about cluster/store/tables.py: crashes, damage, durability."""

from __future__ import annotations

import hashlib
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import unicodedata
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from cluster.store import audit, snapshots, tables
from cluster.store.audit import DIGEST_BYTES, Audit
from cluster.store.commands import (
    Admit,
    Put,
    Register,
    Subscribe,
    encode,
)
from cluster.store.store import CorruptStore, Store
from cluster.wire.levels import LEVEL_OF_AUDIT
from flotilla_client.protocol import pack
from tests.unit.model_store import (
    MEMBERS,
    SMALL,
    random_payloads,
)
from tests.unit.store_bench import Bench, lose_the_last_of_three_rows, replay

# No Unicode of this Python's knows it; that of one to come may, and prints it.
NEW_LETTER = next(chr(each) for each in range(0x370, 0x400) if not chr(each).isprintable())
ESCAPED = repr(NEW_LETTER)[1:-1]


def as_a_later_python(value: object) -> str:
    return repr(value).replace(ESCAPED, NEW_LETTER)


# --- crashes and damage ---------------------------------------------------------------------------

ROOT = Path(__file__).parents[4]

_CHILD = """
import sys
from pathlib import Path
from cluster.store.store import Store
from tests.unit.model_store import MEMBERS, SMALL, random_payloads

store = Store.open(Path(sys.argv[1]), MEMBERS, SMALL)
payloads = random_payloads(int(sys.argv[2]), int(sys.argv[3]))
while True:
    index = store.applied_index + 1
    store.apply(index, 1, payloads[index - 1])
    if index % 3 == 0:
        store.collect_garbage(2)
        store.commit()
        print(index, flush=True)
"""


@pytest.mark.parametrize("seed", range(3))
def test_kill_9_leaves_the_applied_index_and_its_effects_together(
    tmp_path: Path, seed: int
) -> None:
    count, kill_at = 2000, 30 + 60 * seed
    path = tmp_path / "store.db"
    child = subprocess.Popen(
        [sys.executable, "-c", _CHILD, str(path), str(seed), str(count)],
        stdout=subprocess.PIPE,
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": f"{ROOT}:{ROOT / 'client'}"},
    )
    assert child.stdout is not None
    with child.stdout:
        printed = 0
        while printed < kill_at:
            printed = int(child.stdout.readline())
        child.send_signal(signal.SIGKILL)
        child.wait()
        printed = int((child.stdout.read().split() or [printed])[-1])
    store = Store.open(path, {}, SMALL)
    applied = store.applied_index
    assert printed <= applied < count
    payloads = random_payloads(seed, count)[: applied + 50]
    expected = replay(Store.open(tmp_path / "2.db", MEMBERS, SMALL), payloads, lambda _: False)
    for index, payload in enumerate(payloads, 1):
        store.apply(index, 1, payload)
    assert store.digest() == expected.digest()
    store.close()
    expected.close()


def test_a_missing_database_is_not_made_anew_without_founding_members(tmp_path: Path) -> None:
    with pytest.raises(CorruptStore, match="missing"):
        Store.open(tmp_path / "store.db", {})
    assert list(tmp_path.iterdir()) == []


def test_remove_leaves_nothing(bench: Bench) -> None:
    bench.put(0)
    Store.remove(bench.path)
    assert list(bench.path.parent.iterdir()) == []


@pytest.mark.parametrize("content", [b"", b"no database at all" * 400])
def test_a_file_that_is_no_database_of_ours_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "store.db"
    path.write_bytes(content)
    with pytest.raises(CorruptStore, match="rebuild"):
        Store.open(path, MEMBERS)


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE publications SET data = x'62'",
        "UPDATE publications SET count = 3",
        "UPDATE publications SET lengths = x'02000000'",
        "UPDATE publications SET key = key + 1",
        "DELETE FROM publications",
        "UPDATE producers SET counter = counter + 8",
        "UPDATE producers SET recent = zeroblob(16)",
        "UPDATE clients SET epoch = epoch + 8",
        "UPDATE subscriptions SET cursor = cursor + 1",
        "DELETE FROM topics",
        "UPDATE topics SET last_id = last_id + 1",
        "UPDATE members SET incarnation = 'x'",
        "UPDATE state SET applied_index = applied_index + 1",
        "DELETE FROM state",
    ],
)
def test_damaged_rows_are_found_before_they_are_used(bench: Bench, damage: str) -> None:
    bench.put(0, b"a")
    bench.store.close()
    with sqlite3.connect(bench.path) as connection:
        connection.execute(damage)
    connection.close()
    with pytest.raises(CorruptStore, match="rebuild"):
        _use_everything(bench)
    bench.store.close()


def test_damaged_earlier_puts_are_found(bench: Bench) -> None:
    for counter in range(20):
        bench.put(counter)
    bench.store.close()
    with sqlite3.connect(bench.path) as connection:
        connection.execute("UPDATE earlier_puts SET puts = zeroblob(256)")
    connection.close()
    bench.store = Store.open(bench.path, {})
    with pytest.raises(CorruptStore):
        bench.put(3)


def _use_everything(bench: Bench) -> None:
    bench.store = Store.open(bench.path, {})
    bench.get("s")
    bench.put(1)


@pytest.mark.parametrize("seed", range(5))
def test_flipped_bits_end_in_corrupt_store_or_hurt_nothing(bench: Bench, seed: int) -> None:
    bench.put(0, *[b"%d" % i for i in range(150)])
    bench.store.close()
    whole = bench.path.read_bytes()
    rng = random.Random(seed)
    found = 0
    for _ in range(60):
        damaged = bytearray(whole)
        damaged[rng.randrange(len(whole))] ^= 1 << rng.randrange(8)
        bench.path.write_bytes(damaged)
        try:
            bench.store = Store.open(bench.path, {})
            assert bench.get("s") == [b"%d" % i for i in range(150)]
            bench.put(150)
        except CorruptStore:
            found += 1
        finally:
            bench.store.close()
            tables.remove_log(bench.path)
    print(f"{found} of 60 flips found")


# --- durability -----------------------------------------------------------------------------------


def test_checkpoint_tells_an_index_that_the_files_hold_without_the_process(
    bench: Bench, tmp_path: Path
) -> None:
    bench.put(0, b"a")
    durable = tables.checkpoint(bench.path)
    assert durable == bench.store.applied_index
    bench.store.apply(durable + 1, 1, encode(1, [Put("p", None, "t", 1, *pack([b"b"]))]))
    assert tables.checkpoint(bench.path) == durable  # not committed yet
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for suffix in ("", "-wal"):
        name = bench.path.name + suffix
        (elsewhere / name).write_bytes((bench.path.parent / name).read_bytes())
    copy = Store.open(elsewhere / bench.path.name, {})
    assert copy.applied_index == durable
    copy.close()


def test_nobody_makes_an_empty_store_where_one_has_gone(tmp_path: Path) -> None:
    gone = tmp_path / "gone ?#%41.db"
    with pytest.raises(sqlite3.OperationalError, match="unable to open"):
        tables.checkpoint(gone)
    assert list(tmp_path.iterdir()) == []


def test_a_checkpoint_moves_even_a_small_wal_into_the_database(
    bench: Bench, tmp_path: Path
) -> None:
    bench.put(0, b"a")
    durable = tables.checkpoint(bench.path)
    alone = tmp_path / "alone.db"
    alone.write_bytes(bench.path.read_bytes())
    copy = Store.open(alone, {})
    assert copy.applied_index == durable
    copy.close()


def test_checkpoints_keep_the_wal_bounded_while_entries_come(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "WAL_BYTES_MAX", 300_000)
    wal = tables.side_file(bench.path, "-wal")
    largest = 0
    for counter in range(60):
        bench.put(counter, bytes(50_000))
        if counter % 4 == 3:
            tables.checkpoint(bench.path)
        largest = max(largest, wal.stat().st_size)
    assert 200_000 < largest < 900_000


def test_checkpoint_during_an_open_transaction_holds_nobody_up(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "WAL_BYTES_MAX", 0)
    bench.put(0, b"a")
    bench.store.apply(bench.store.applied_index + 1, 1, encode(1, [Admit("a", "x")]))
    bench.store._flush()
    assert tables.checkpoint(bench.path) == bench.store.applied_index - 1
    bench.store.commit()
    assert tables.checkpoint(bench.path) == bench.store.applied_index


def test_who_opens_a_store_makes_its_name_durable_whoever_has_made_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "store.db"
    Store.open(path, {"n1": "one"}).close()  # a process killed right behind its rename leaves this
    synced: list[Path] = []
    # Of its class: `undo` would leave a name of the instance's own behind.
    monkeypatch.setattr(
        type(tables.DISK), "fsync_directory", lambda disk, path: synced.append(path)
    )
    Store.open(path, {}).close()
    assert synced == [tmp_path]


def test_who_opens_a_store_reads_what_one_that_was_killed_has_left_from_the_disk(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a failed sync was to write is in the kernel's cache, is called clean, and not there."""
    bench.store.commit()
    directory = Path(shutil.copytree(bench.path.parent, tmp_path / "killed"))
    log = tables.side_file(directory / bench.path.name, "-wal")
    assert log.stat().st_size > 0
    seen: list[tuple[str, Path]] = []

    def note(what: str, descriptor: int) -> None:
        seen.append((what, Path(os.readlink(f"/proc/self/fd/{descriptor}"))))

    monkeypatch.setattr(os, "fsync", lambda descriptor: note("synced", descriptor))
    monkeypatch.setattr(
        type(tables.DISK), "forget_cached", lambda disk, descriptor: note("forgotten", descriptor)
    )
    connect = tables.connect

    def open_it(path: Path, busy_ms_max: int) -> sqlite3.Connection:
        seen.append(("opened", path))
        return connect(path, busy_ms_max)

    monkeypatch.setattr(tables, "connect", open_it)
    store = Store.open(directory / bench.path.name, {})
    store.close()
    database = directory / bench.path.name
    ways = [(what, path) for what, path in seen if path in (log, database)]
    assert ways == [
        *(("synced", database), ("forgotten", database)),
        *(("synced", log), ("forgotten", log)),
        ("opened", database),
    ]


def test_of_two_rows_with_one_key_the_later_one_stays(bench: Bench) -> None:
    database = bench.store._database
    sql = "INSERT OR REPLACE INTO purged VALUES(?, ?, 0)"
    database.write(sql, [(7, 20), (7, 10)])
    assert database.query("SELECT last_id FROM purged WHERE topic = 7") == [(10,)]


def test_what_changed_is_written_in_the_order_of_its_numbers(bench: Bench) -> None:
    clients = [bench.store._clients.get(client) for client in "ps"]
    assert tables.in_order(reversed(clients)) == clients


@pytest.mark.parametrize("table", ["subscriptions", "topics", "members"])
def test_a_page_that_has_lost_rows_of_what_is_kept_in_memory_is_found_at_the_start(
    tmp_path: Path, table: str
) -> None:
    path = tmp_path / "store.db"
    store = Store.open(path, {"a": "1", "b": "2", "c": "3"})
    asked = [Register("me", True, None, ""), *[Subscribe("me", None, f"t{i}", None) for i in "abc"]]
    store.apply(1, 1, encode(0, asked))
    store.commit()
    store.close()
    page = lose_the_last_of_three_rows(path, table)
    with pytest.raises(CorruptStore, match=f"store.db: table {table}: .* page {page}"):
        Store.open(path, {})


def test_a_database_that_can_have_no_wal_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, connect = tmp_path / "store.db", sqlite3.connect
    with closing(connect(path)) as connection:
        connection.execute("CREATE TABLE t (x)")

    def without_shared_memory(place: str, **settings: Any) -> sqlite3.Connection:
        return connect(f"{place}&vfs=unix-dotfile", **settings)

    monkeypatch.setattr(sqlite3, "connect", without_shared_memory)
    with pytest.raises(OSError, match="has no WAL: its file system can't share memory"):
        tables.connect(path, 1_000)


@pytest.mark.parametrize(
    ("writes", "reads"),
    [(repr, as_a_later_python), (as_a_later_python, repr)],
    ids=["later", "earlier"],
)
def test_a_store_is_read_by_a_python_that_knows_other_characters(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    writes: Callable[[object], str],
    reads: Callable[[object], str],
) -> None:
    assert unicodedata.category(NEW_LETTER) == "Cn"
    assert ESCAPED != NEW_LETTER
    monkeypatch.setattr(tables, "repr", writes, raising=False)
    bench = Bench.started(tmp_path / "store.db")
    bench.ok(Register(f"c{NEW_LETTER}", True, 1, f"n{NEW_LETTER}"))
    bench.ok(Subscribe(f"c{NEW_LETTER}", None, f"t{NEW_LETTER}", None))
    bench.put(1, b"x", topic=f"t{NEW_LETTER}")
    monkeypatch.setattr(tables, "repr", reads)
    bench.restart()
    assert bench.get(f"c{NEW_LETTER}", topic=f"t{NEW_LETTER}") == [b"x"]
    snapshots.make_copy(bench.path, tmp_path / "copy.db")  # looks at every row


def test_a_row_is_read_whose_checksum_is_of_how_this_python_prints_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So earlier builds have written them."""
    with monkeypatch.context() as earlier:
        earlier.setattr(tables, "plain", str)
        bench = Bench.started(tmp_path / "store.db")
        bench.ok(Register(f"c{NEW_LETTER}", True, 1, "n"))
    bench.restart()
    snapshots.make_copy(bench.path, tmp_path / "copy.db")


def test_what_is_printed_alike_by_all_pythons_stays_as_it_is() -> None:
    values = ("a\n\\u0378'\"", "\\\\u0378", "ü \u200b\ud800\x85", b"\\u0378\xff", 7)
    assert tables.plain(repr(values)) == repr(values)


def test_a_digest_is_the_same_whatever_characters_a_python_knows(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    digests = []
    for prints in (repr, as_a_later_python):
        monkeypatch.setattr(audit, "repr", prints, raising=False)
        kept = Audit(bench.store._database, LEVEL_OF_AUDIT)
        kept._add([f"t{NEW_LETTER}"])
        digests.append(kept.row())
    text = f"['t{NEW_LETTER}']".encode()
    expected = hashlib.blake2b(text, digest_size=DIGEST_BYTES).hexdigest()
    assert digests == [(expected, "", "")] * 2
