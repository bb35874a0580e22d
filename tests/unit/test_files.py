"""What happens when the disk fails."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import NoReturn

import pytest

from cluster.log import files as files_module


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
