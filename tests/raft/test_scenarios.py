"""Every scenario prints what its file says. To write what they print now: python -m tests.raft."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.raft.driver import files, played

RULES = Path(__file__).parents[2] / "docs" / "raft.md"


def test_each_rule_of_the_document_has_a_scenario() -> None:
    rules = {int(number) for number in re.findall(r"^(\d+)\. ", RULES.read_text(), re.MULTILINE)}
    shown = {int(n) for file in files() for n in re.findall(r"(?<=_)\d+(?=_)", file.stem)}
    assert len(rules) >= 30
    assert shown == rules


@pytest.mark.parametrize("file", files(), ids=lambda file: file.stem)
def test_scenario(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    assert list(played(text)) == [*text.rstrip("\n").split("\n"), ""]
