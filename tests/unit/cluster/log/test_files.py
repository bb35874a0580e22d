"""What happens when the disk fails, or loses its power."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import NoReturn

import pytest

from cluster.log import files as files_module
from cluster.log.journal import Journal
from cluster.log.segments import JournalError
from cluster.members.identity import Identity
from cluster.store.store import Store


def test_the_default_failure_says_one_line_and_ends_the_process(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def exit_with(status: int) -> NoReturn:
        raise SystemExit(status)

    monkeypatch.setattr("os._exit", exit_with)
    with pytest.raises(SystemExit) as raised:
        files_module.exit_process(OSError(errno.EIO, "broken"))
    assert raised.value.code == files_module.EXIT_STATUS
    assert capsys.readouterr().err.count("\n") == 1


def test_a_read_that_fails_says_of_which_file() -> None:
    unreadable = Path("/proc/self/mem")  # nothing is mapped at its beginning: EIO
    with pytest.raises(OSError, match="/proc/self/mem") as raised:
        files_module.DISK.read(unreadable)
    assert raised.value.errno == errno.EIO


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Return the files and directories that are synced from now on."""
    found: list[Path] = []
    real = os.fsync

    def fsync(descriptor: int) -> None:
        found.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    return found


def test_a_directory_that_is_made_is_durable_where_it_stands(
    tmp_path: Path, synced: list[Path]
) -> None:
    files_module.DISK.make_directory(tmp_path / "data")
    assert synced == [tmp_path]


def test_parents_that_are_made_for_a_directory_are_durable_too(
    tmp_path: Path, synced: list[Path]
) -> None:
    files_module.DISK.make_directory(tmp_path / "srv" / "flotilla" / "data")
    assert set(synced) == {tmp_path, tmp_path / "srv", tmp_path / "srv" / "flotilla"}


def test_a_node_s_first_files_stand_in_directories_that_outlive_a_power_cut(
    tmp_path: Path, synced: list[Path]
) -> None:
    directory = tmp_path / "data"
    Identity.create("c", "a").save(directory)
    assert tmp_path in synced
    synced.clear()
    Store.open(directory / "store" / "store.db", {"a": "1"}).close()
    assert directory in synced
    synced.clear()
    Journal.create(directory / "journal")
    assert directory in synced


@pytest.mark.parametrize("error", [OSError(errno.EIO, "broken"), JournalError("contradicted")])
def test_an_error_of_the_journal_goes_to_who_ends_the_node(error: Exception) -> None:
    told: list[Exception] = []

    def fail(found: Exception) -> NoReturn:
        told.append(found)
        raise SystemExit

    with pytest.raises(SystemExit), files_module.FailStop(fail, OSError, JournalError):
        raise error
    assert told == [error]
