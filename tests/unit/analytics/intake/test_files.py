"""A run's file that says nothing is no word that all of the history is there."""

import os
from pathlib import Path

import pytest

from analytics.intake.files import survey_of


@pytest.mark.parametrize(
    "text", ["", "{", "{}", "[]", "null", '""', "0", '{"seed":1}', '{"run_id":"r"}']
)
def test_a_run_file_that_says_nothing_vouches_for_nothing(tmp_path: Path, text: str) -> None:
    (tmp_path / "history").mkdir()
    (tmp_path / "history" / "p.jsonl").write_text("")
    (tmp_path / "run.json").write_text(text)
    assert survey_of(tmp_path).unvouched


def test_a_run_file_that_is_gone_vouches_for_nothing(tmp_path: Path) -> None:
    (tmp_path / "history").mkdir()
    assert survey_of(tmp_path).unvouched[0].startswith("run.json can't be read")


def test_a_run_file_that_is_a_pipe_or_a_device_is_not_read(tmp_path: Path) -> None:
    """A read of it might wait, or go on, for ever."""
    (tmp_path / "history").mkdir()
    os.mkfifo(tmp_path / "run.json")
    assert survey_of(tmp_path).unvouched == ("run.json can't be read: it is no file",)
    (tmp_path / "run.json").unlink()
    (tmp_path / "run.json").symlink_to("/dev/zero")
    assert survey_of(tmp_path).unvouched == ("run.json can't be read: it is no file",)
