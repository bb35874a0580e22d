"""Every bug that the simulator has found in our own code stays away: its plan is run again."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from chaos.simulation.plan.plan import Plan
from chaos.simulation.search.run import run

FILE = Path(__file__).with_name("regressions.toml")
FOUND: list[dict[str, Any]] = tomllib.loads(FILE.read_text(encoding="utf-8")).get("found", [])
FIELDS = {"name", "what", "check", "seed", "plan"}


def test_every_record_is_whole_and_has_a_name_of_its_own() -> None:
    assert all(record.keys() == FIELDS for record in FOUND)
    assert len({record["name"] for record in FOUND}) == len(FOUND)


@pytest.mark.slow
@pytest.mark.parametrize("record", FOUND, ids=lambda record: record["name"])
def test_a_bug_that_was_found_stays_away(record: dict[str, Any]) -> None:
    result = run(Plan.from_json(record["plan"]))
    assert result.verdict == "clean", result.failures
