"""How `flotilla-check` ends where nobody has its verdict: stdout takes nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

UNKNOWN = 2


def ended(arguments: list[str], stdout: int) -> tuple[int, str]:
    command = [sys.executable, "-c", "from flotilla_commands import check; check()", *arguments]
    done = subprocess.run(command, stdout=stdout, stderr=subprocess.PIPE, timeout=60, check=False)
    return done.returncode, done.stderr.decode().splitlines()[-1]


@pytest.mark.parametrize(
    "arguments",
    [("--no-report", "--judge", "twins", "{}"), ("seal", "{}"), ("--help",)],
    ids=lambda arguments: arguments[0].strip("-"),
)
def test_a_verdict_that_cannot_be_written_is_no_invalid_one(
    tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    (tmp_path / "history").mkdir()
    (tmp_path / "history" / "p.jsonl").touch()
    (tmp_path / "run.json").write_text('{"run_id": "r", "history": ["p.jsonl"]}', encoding="utf-8")
    said = [each.format(tmp_path) for each in arguments]
    with Path("/dev/full").open("wb") as full:
        why = "flotilla-check: the output cannot be written: No space left on device"
        assert ended(said, full.fileno()) == (UNKNOWN, why)
    if "--help" in said:
        return  # it is no verdict: as of any command of click's
    reading, writing = os.pipe()
    os.close(reading)
    try:
        why = "flotilla-check: the output cannot be written: Broken pipe"
        assert ended(said, writing) == (UNKNOWN, why)
    finally:
        os.close(writing)
