"""What chaos/targets/shim promises: a power loss undoes what was not synced, and nothing else."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from chaos.targets import TargetError, shim
from chaos.targets.shim import Shim, compile_shim, undo
from chaos.targets.shim.undo import UnsyncedRemainder

pytestmark = pytest.mark.needs("cc")

PRELUDE = """
import errno, os, signal, sqlite3, sys, time
from pathlib import Path
home = Path(sys.argv[1])
def write(name, data, at=None, flags=os.O_RDWR | os.O_CREAT):
    fd = os.open(home / name, flags, 0o640)
    os.write(fd, data) if at is None else os.pwrite(fd, data, at)
    return fd
def sync(path):
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)
"""
END = "\nos.kill(os.getpid(), signal.SIGKILL)\n"
LOST = undo.LOST

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_shim(tmp_path_factory.mktemp("shim"))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    return tmp_path / "data"


@pytest.fixture
def shimmed(library: Path, data: Path) -> Shim:
    return Shim(library, data)


@pytest.fixture
def run(shimmed: Shim, data: Path) -> Run:
    """Run a script with the shim over `data`."""

    def run(script: str) -> subprocess.CompletedProcess[str]:
        command = [*shimmed.words(), sys.executable, "-c", PRELUDE + script, str(data)]
        return subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)

    return run


def killed(run: Run, script: str) -> None:
    """Run a script that kills itself at its end."""
    done = run(script + END)
    assert done.returncode == -signal.SIGKILL, done.stderr


def test_what_was_not_synced_is_gone_and_what_was_is_there(
    run: Run, shimmed: Shim, data: Path
) -> None:
    killed(run, 'fd = write("a", b"durable"); os.fdatasync(fd); sync(home); os.write(fd, b"lost")')
    assert (data / "a").read_bytes() == b"durablelost"  # the kernel has it, the platter has not
    assert shimmed.lose_power(LOST) == undo.Loss(writes=1, names=0, torn=0)
    assert (data / "a").read_bytes() == b"durable"


def test_overwritten_and_cut_bytes_come_back_exactly(run: Run, shimmed: Shim, data: Path) -> None:
    (data / "a").write_bytes(bytes(range(200)))
    killed(
        run,
        'fd = write("a", b"x" * 20, 10); os.pwrite(fd, b"y" * 20, 20); os.ftruncate(fd, 50)\n'
        'os.pwrite(fd, b"z" * 9, 195); os.ftruncate(fd, 15); os.writev(fd, [b"1", b"2"])\n'
        'write("a", b"new", flags=os.O_WRONLY | os.O_TRUNC)\n'
        'write("a", b"end", flags=os.O_WRONLY | os.O_APPEND)',
    )
    assert (data / "a").read_bytes() == b"newend"
    shimmed.lose_power(LOST)
    assert (data / "a").read_bytes() == bytes(range(200))


def test_a_torn_loss_keeps_a_first_part_of_the_writes(
    run: Run, shimmed: Shim, data: Path, library: Path
) -> None:
    seen = set()
    for seed in range(12):
        (data / "a").write_bytes(b"base")
        killed(
            run, 'fd = write("a", b"", 0); [os.pwrite(fd, b"0123", 4 + 4 * n) for n in range(3)]'
        )
        loss = shimmed.lose_power(UnsyncedRemainder("torn", random.Random(seed)))
        left = (data / "a").read_bytes()
        whole = b"base" + b"0123" * 3
        assert whole.startswith(left), (seed, left)
        assert len(left) >= 4, (seed, left)
        assert loss.torn == (loss.writes > 0), seed
        seen.add(len(left))
    assert len(seen) > 3, seen


def test_pages_survive_each_on_its_own(run: Run, shimmed: Shim, data: Path) -> None:
    page = undo.PAGE_BYTES
    (data / "a").write_bytes(b"o" * 8 * page)
    killed(run, f'write("a", b"n" * {8 * page}, 0)')
    shimmed.lose_power(UnsyncedRemainder("pages", random.Random(3)))
    left = (data / "a").read_bytes()
    pages = [left[at : at + page] for at in range(0, 8 * page, page)]
    assert {b"o" * page, b"n" * page} == set(pages)


def test_names_go_back_until_their_directory_is_synced(run: Run, shimmed: Shim, data: Path) -> None:
    for name in ("kept", "old", "replaced", "removed"):
        (data / name).write_text(name)
    killed(
        run,
        'os.close(write("made", b"x")); sync(home)\n'
        'os.close(write("vanishes", b"x")); os.replace(home / "old", home / "replaced")\n'
        'os.unlink(home / "removed")',
    )
    assert sorted(os.listdir(data)) == ["kept", "made", "replaced", "vanishes"]
    assert shimmed.lose_power(LOST).names == 3
    assert sorted(os.listdir(data)) == ["kept", "made", "old", "removed", "replaced"]
    for name in ("kept", "old", "replaced", "removed"):
        assert (data / name).read_text() == name


def test_names_that_were_synced_stay_and_nothing_is_kept_for_them(
    run: Run, shimmed: Shim, data: Path
) -> None:
    (data / "removed").write_text("x")
    killed(run, 'fd = write("new", b"1"); os.fsync(fd); os.unlink(home / "removed"); sync(home)')
    assert list((data.parent / "shim" / "undo.kept").iterdir()) == []
    assert shimmed.lose_power(LOST) == undo.Loss(0, 0, 0)
    assert [path.read_text() for path in data.iterdir()] == ["1"]


def test_a_kill_without_a_power_loss_makes_nothing_durable(
    run: Run, shimmed: Shim, data: Path
) -> None:
    killed(run, 'fd = write("a", b"1"); os.fsync(fd); sync(home); os.write(fd, b"2")')
    with (data.parent / "shim" / "undo").open("ab") as log:
        log.write(b"half a record")  # what a SIGKILL may leave
    killed(run, 'write("a", b"3", flags=os.O_WRONLY | os.O_APPEND)')
    assert (data / "a").read_bytes() == b"123"
    shimmed.lose_power(LOST)
    assert (data / "a").read_bytes() == b"1"


def test_sqlite_falls_back_to_its_last_checkpoint_and_is_whole(
    run: Run, shimmed: Shim, data: Path
) -> None:
    killed(
        run,
        'db = sqlite3.connect(home / "db", isolation_level=None)\n'
        'for sql in ("journal_mode=WAL", "synchronous=NORMAL"): db.execute(f"PRAGMA {sql}")\n'
        'db.execute("CREATE TABLE t(n)"); db.execute("INSERT INTO t VALUES (1)")\n'
        'db.execute("PRAGMA wal_checkpoint(FULL)"); sync(home)\n'
        'for n in range(2, 200): db.execute("INSERT INTO t VALUES (?)", [n])',
    )
    shimmed.lose_power(LOST)
    connection = sqlite3.connect(data / "db")
    try:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        assert connection.execute("SELECT max(n) FROM t").fetchone() == (1,)
    finally:
        connection.close()


@pytest.mark.parametrize("seed", range(6))
def test_sqlite_is_whole_whatever_a_power_loss_leaves(
    run: Run, shimmed: Shim, data: Path, seed: int
) -> None:
    killed(
        run,
        'db = sqlite3.connect(home / "db", isolation_level=None)\n'
        'for sql in ("journal_mode=WAL", "synchronous=FULL"): db.execute(f"PRAGMA {sql}")\n'
        'db.execute("CREATE TABLE t(n)"); sync(home)\n'
        'for n in range(40): db.execute("INSERT INTO t VALUES (?)", [n])\n'
        'db.execute("PRAGMA wal_checkpoint(FULL)"); db.execute("INSERT INTO t VALUES (40)")\n'
        'db.execute("PRAGMA synchronous=NORMAL")\n'
        'for n in range(41, 90): db.execute("INSERT INTO t VALUES (?)", [n])',
    )
    rng = random.Random(seed)
    shimmed.lose_power(UnsyncedRemainder(rng.choice(undo.KEEPS), rng))
    connection = sqlite3.connect(data / "db")
    try:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        rows = [n for (n,) in connection.execute("SELECT n FROM t ORDER BY n")]
        assert rows == list(range(len(rows)))
        assert len(rows) >= 41, "what FULL synced is there"
    finally:
        connection.close()


# --- orders ---------------------------------------------------------------------------------------


def test_a_full_disk_takes_what_there_is_room_for_and_says_so(
    run: Run, shimmed: Shim, data: Path
) -> None:
    shimmed.order(space_bytes=8192)
    done = run(
        "print(os.statvfs(home).f_bavail * os.statvfs(home).f_frsize)\n"
        'fd = write("a", b"x" * 5000); os.pwrite(fd, b"y" * 5000, 0)\n'
        'try: os.write(fd, b"z" * 5000)\n'
        "except OSError as error: print(errno.errorcode[error.errno])"
    )
    assert done.stdout.split() == ["8192", "ENOSPC"], done.stderr
    assert (data / "a").read_bytes() == b"y" * 5000
    assert shimmed.ordered("space_bytes") == 3192
    assert shimmed.ordered("writes_refused") > 0


def test_an_fsync_fails_and_makes_nothing_durable(run: Run, shimmed: Shim, data: Path) -> None:
    shimmed.order(sync_fails=1)
    done = run(
        'fd = write("a", b"x")\n'
        "try: os.fdatasync(fd)\n"
        "except OSError as error: print(errno.errorcode[error.errno])"
    )
    assert done.stdout.strip() == "EIO", done.stderr
    shimmed.lose_power(LOST)
    assert list(data.iterdir()) == []


def test_failed_fsyncs_of_a_journal_are_counted_and_those_of_other_files_are_not(
    run: Run, shimmed: Shim
) -> None:
    shimmed.order(sync_fails=1)
    script = """
for name, count in (("0001.log", 2), ("store.db", 1)):
    fd = write(name, b"x")
    for _ in range(count):
        try:
            os.fdatasync(fd)
        except OSError as error:
            assert error.errno == errno.EIO
        else:
            raise AssertionError(name)
"""
    killed(run, script)
    assert shimmed.ordered("log_syncs_failed") == 2


def test_an_fsync_is_late_while_that_is_ordered(run: Run, shimmed: Shim) -> None:
    shimmed.order(sync_ms=150)
    script = (
        'fd = write("a", b"x"); t = time.monotonic(); os.fsync(fd)\nprint(time.monotonic() - t)'
    )
    assert float(run(script).stdout) >= 0.15
    shimmed.order(sync_ms=0)
    assert float(run(script).stdout) < 0.15


@pytest.mark.parametrize("step_s", [3600.25, -3600.75])
def test_the_wall_clock_steps_and_the_monotonic_one_does_not(
    run: Run, shimmed: Shim, step_s: float
) -> None:
    shimmed.order(clock_ns=round(step_s * 1e9))
    done = run("print(time.time(), time.monotonic())")
    wall_s, monotonic_s = map(float, done.stdout.split())
    assert wall_s - time.time() == pytest.approx(step_s, abs=5)
    assert monotonic_s == pytest.approx(time.monotonic(), abs=5)


def test_files_elsewhere_are_none_of_its_business(run: Run, shimmed: Shim, tmp_path: Path) -> None:
    shimmed.order(space_bytes=0, sync_fails=1)
    (tmp_path / "data-beside").mkdir()
    for name in ("other", "data-beside/other"):
        done = run(f'fd = write({str(tmp_path / name)!r}, b"x"); os.fsync(fd); print("fine")')
        assert done.stdout.strip() == "fine", done.stderr
        assert (tmp_path / name).read_bytes() == b"x"


def test_without_a_compiler_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(TargetError, match="apt-get install gcc libc6-dev"):
        compile_shim(tmp_path)


def test_source_that_does_not_compile_is_told_with_the_compiler_s_words(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "bad.c").write_text("this is no C")
    monkeypatch.setattr(shim, "SOURCE", tmp_path / "bad.c")
    with pytest.raises(TargetError, match="error"):
        compile_shim(tmp_path)
