"""The table of docs/checks.md of what other systems' tests look for, row by row: each anomaly is
built as a history, and found here by the check that the row names.
"""

from pathlib import Path

import pytest

from tests.judges.detection import SOURCES, sabotaged
from tests.judges.judges import TWINS, judge_of
from tests.judges.kinds import KINDS

DOCS = Path(__file__).parents[2] / "docs" / "checks.md"
HEADING = "## Anomalies that others test for"
NONE = "–"
SEED = 2  # test_sabotage.py tries every kind with 1
assert SOURCES

Row = tuple[str, str, str]


def table() -> list[Row]:
    """Return the rows: anomaly, found by, built as."""
    section = DOCS.read_text(encoding="utf-8").split(HEADING)[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("| ")][1:]
    rows = [tuple(cell.strip() for cell in line.strip("|").split("|")) for line in lines]
    return [(row[0], row[1], row[2]) for row in rows if row[1]]


def quoted(cell: str) -> list[str]:
    """Return what stands in backticks."""
    return cell.split("`")[1::2]


@pytest.mark.parametrize("row", table(), ids=lambda row: row[0][:50])
def test_an_anomaly_of_others_is_found_by_the_check_that_the_table_names(
    tmp_path: Path, row: Row
) -> None:
    anomaly, found_by, built_as = row
    checks, kinds = set(quoted(found_by)), quoted(built_as)
    if built_as == NONE:
        words = ("cannot occur", "reported", "as above", "liveness")
        assert any(word in found_by for word in words), anomaly
        return
    assert kinds, anomaly
    found = set()
    for kind in (KINDS[name] for name in kinds):
        assert kind.check in checks, f"{anomaly}: {kind.name} is found by {kind.check}"
        made = sabotaged(kind, SEED, tmp_path / "run", lambda seed: True)
        said = judge_of(TWINS)(tmp_path / "run")
        assert said.has(kind.check, kind.word), (kind.name, made.base_seed, said)
        found.add(kind.check)
    named = {check for check in checks if check in {one.check for one in KINDS.values()}}
    assert named == found, f"{anomaly}: no history for {sorted(named - found)}"


def test_every_error_of_the_kafka_tests_has_a_row() -> None:
    """The error types of jepsen.tests.kafka, as its `analysis` names them, and of its cycles."""
    errors = {
        *("duplicate", "int-poll-skip", "int-nonmonotonic-poll", "int-nonmonotonic-send"),
        *("int-send-skip", "inconsistent-offsets", "precommitted-read", "G1a", "lost-write"),
        *("nonmonotonic-poll", "nonmonotonic-send", "poll-skip", "unseen", "G0", "G0-process"),
        *("G0-realtime", "G1c", "G1c-process", "G1c-realtime", "PL-1-cycle-exists"),
        *("PL-2-cycle-exists", "G-single", "G2"),
    }
    told = {name for anomaly, _, _ in table() for name in quoted(anomaly)}
    assert errors - told == set()


def test_every_kind_that_a_check_finds_is_an_anomaly_of_somebody_or_of_ours() -> None:
    """Of each check at least one kind is in the table, but for those that only this broker has."""
    ours = {"corrupt"}  # no other test looks at payloads' bytes
    told = {name for _, found_by, _ in table() for name in quoted(found_by)}
    assert {kind.check for kind in KINDS.values() if kind.check} - told == ours
