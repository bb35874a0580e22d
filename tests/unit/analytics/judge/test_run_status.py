"""What analytics/judge/run_status.py promises: what calls itself unknown is not called valid."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from analytics.judge.run_status import reasons_of


@pytest.mark.parametrize(
    ("document", "reasons"),
    [
        ({"outcome": {"finished": True, "reasons": []}}, ()),
        ({"outcome": {"finished": True, "reasons": ["3 acknowledged"]}}, ("3 acknowledged",)),
        ({"outcome": {"finished": False, "reasons": []}}, ("the run did not finish",)),
        ({"outcome": {"finished": True}}, ()),  # of an earlier version
        ({"outcome": {"reasons": []}}, ("the run did not finish",)),
        ({"outcome": {"finished": 1}}, ("the run did not finish",)),
        ({"outcome": {"finished": True, "violations": ["lost"]}}, ("lost",)),
        (
            {"outcome": {"finished": True, "reasons": "none"}},
            ("run.json: the outcome can't be read",),
        ),
        ({"outcome": []}, ("run.json: the outcome can't be read",)),
        ({"outcome": None}, ()),
        ({"recorded_by": "application"}, ()),
        ([], ()),
    ],
)
def test_a_runs_own_reasons_are_taken_over(
    tmp_path: Path, document: Any, reasons: tuple[str, ...]
) -> None:
    (tmp_path / "run.json").write_text(json.dumps(document))
    assert reasons_of(tmp_path) == reasons


def test_a_run_file_that_cannot_be_read_is_left_to_who_reads_the_history(tmp_path: Path) -> None:
    assert reasons_of(tmp_path) == ()
    (tmp_path / "run.json").write_text("{")
    assert reasons_of(tmp_path) == ()


def test_a_run_file_that_is_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "run.json")
    assert reasons_of(tmp_path) == ()
