"""Every scenario prints what its file says. To write what they print now: python -m tests.raft."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.raft.driver import files, played


@pytest.mark.parametrize("file", files(), ids=lambda file: file.stem)
def test_scenario(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    assert list(played(text)) == [*text.rstrip("\n").split("\n"), ""]
