"""What happens when the disk fails."""

from __future__ import annotations

import errno
from typing import NoReturn

import pytest

from cluster import files as files_module


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
