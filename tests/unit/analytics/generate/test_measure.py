"""Histories that are made up to be measured: whole ones alone are used again."""

import subprocess
from pathlib import Path

import pytest

from analytics.generate import measure

OPTIONS = ["--generate", "64"]


def ended_after_its_rows(command: list[str], check: bool) -> None:
    """Do what a generation does that is killed: its rows are there, and nothing says so."""
    directory = Path(command[command.index("--generate") - 1])
    (directory / "history.parquet").mkdir(parents=True)
    raise subprocess.CalledProcessError(-9, command)


def whole(command: list[str], check: bool) -> None:
    directory = Path(command[command.index("--generate") - 1])
    directory.mkdir()  # raises where rows of another one are
    (directory / "run.json").write_text("{}")


def test_a_generation_that_was_killed_is_no_history_and_the_next_one_begins_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = tmp_path / "64-1-parquet"
    monkeypatch.setattr(subprocess, "run", ended_after_its_rows)
    with pytest.raises(subprocess.CalledProcessError):
        measure.make(directory, OPTIONS)
    assert not directory.exists()
    monkeypatch.setattr(subprocess, "run", whole)
    measure.make(directory, OPTIONS)
    assert [path.name for path in tmp_path.iterdir()] == [directory.name]
    assert (directory / "run.json").exists()
