"""How `flotilla-check` ends when it can't go on: a signal, a full disk."""

import logging
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from analytics.cli import main
from analytics.command.interruption import Interrupted, interruptible
from analytics.intake import disk_space
from tests.spark.histories import clean_run, write

END_TIMEOUT_S = 60
SPARE_BYTES = 4096  # less than what is kept of a history


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of its own with room for a short history, and for little else."""
    place = tmp_path / "small"
    place.mkdir()
    options = ["-t", "tmpfs", "-o", "size=96k", "tmpfs"]
    subprocess.run(["mount", *options, place], check=True, timeout=10)
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", place], check=True, timeout=10)


@pytest.fixture(autouse=True)
def logs_again() -> Iterator[None]:
    """Undo for the other tests what a process that ends leaves as it is."""
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_is_raised_once_and_its_handler_goes_again(sent: signal.Signals) -> None:
    before = signal.getsignal(sent)
    with pytest.raises(Interrupted, match=sent.name), interruptible() as watch:
        os.kill(os.getpid(), sent)
    assert (watch.exit_code, signal.getsignal(sent)) == (128 + sent, before)


def test_a_later_signal_is_raised_again_and_one_right_behind_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with interruptible() as watch:
        with pytest.raises(Interrupted):
            os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGTERM)  # the terminal has told the parent too
        monkeypatch.setattr(watch, "deaf_until_s", time.monotonic())
        with pytest.raises(Interrupted):
            os.kill(os.getpid(), signal.SIGTERM)


@pytest.mark.slow  # with JVMs of its own
@pytest.mark.spark
def test_check_that_is_told_to_end_says_so_in_a_line_and_leaves_nothing(tmp_path: Path) -> None:
    write(tmp_path / "run", clean_run(1, 60))
    own = {"TMPDIR": tmp_path / "tmp", "SPARK_LOCAL_DIRS": tmp_path / "local"}
    for place in own.values():
        place.mkdir()
    # As `timeout` and a terminal do, the signal goes to all of the group: the JVM too.
    process = subprocess.Popen(
        [sys.executable, "-m", "analytics", tmp_path / "run"],
        env=os.environ | {name: str(place) for name, place in own.items()},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stderr is not None
    assert process.stderr.readline()  # the session stands, and something has been done
    os.killpg(process.pid, signal.SIGTERM)
    out, err = process.communicate(timeout=END_TIMEOUT_S)
    assert (process.returncode, out) == (128 + signal.SIGTERM, "")
    *progress, last = err.splitlines()
    assert last == "interrupted"
    assert [line for line in progress if not line.endswith(" s)")] == []
    assert [file for place in own.values() for file in place.iterdir()] == []


@pytest.mark.slow
@pytest.mark.root
def test_full_disk_is_named_with_its_remedy_and_exits_2(
    small_disk: Path, spark: SparkSession
) -> None:
    write(small_disk, clean_run(1, 60))
    (small_disk / "filler").write_bytes(bytes(shutil.disk_usage(small_disk).free - SPARE_BYTES))
    result = CliRunner().invoke(main, ["--judge", "spark", str(small_disk)])
    *_, last = result.output.splitlines()
    assert result.exit_code == 2
    assert last == (
        f"unknown: no room is left on the disk of {small_disk}: make room there, or copy the run to"
        f" where there is more; {small_disk}/parquet can be removed"
    )


@pytest.mark.root
def test_disk_with_the_least_room_is_taken_to_be_the_full_one(
    small_disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(disk_space.LOCAL_DIRECTORIES, f"{tmp_path},{small_disk}")
    assert disk_space.least_room([str(tmp_path), str(small_disk)]) == str(small_disk)
    assert disk_space.said(tmp_path).endswith("or set SPARK_LOCAL_DIRS to a directory with more")
    monkeypatch.setenv(disk_space.LOCAL_DIRECTORIES, str(tmp_path))
    assert disk_space.said(small_disk).startswith(f"no room is left on the disk of {small_disk}: ")
