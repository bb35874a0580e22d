"""Merged histories: the whole has the rows of its parts, and no more."""

from collections import Counter
from pathlib import Path

import pytest

from analytics.command.differences import JudgedRun, differences
from analytics.command.judging import by_twins
from tests.judges.agreement import case_of
from tests.judges.history import RAW
from tests.judges.merging import MergedPart, batches, merged, part_of
from tests.judges.together import rows_of, sum_of, written

SEEDS = range(1, 41)
SHAPES_MIN, CHECKS_MIN = 6, 12  # fewer would show little


def counts(judgement: JudgedRun) -> dict[str, int]:
    return {check: found.count for check, found in judgement.checks.items()}


@pytest.mark.slow
def test_a_merged_record_has_the_rows_of_its_parts_and_no_more(tmp_path: Path) -> None:
    cases = {seed: case_of(seed) for seed in SEEDS}
    apart: dict[int, JudgedRun] = {}
    made = [MergedPart.of(seed, case.name, case.history) for seed, case in cases.items()]
    for part in made:
        own = by_twins(written(cases[part.number].history, tmp_path / "run"))
        renamed = apart[part.number] = by_twins(written(part.history, tmp_path / "run"))
        assert (own.verdict, counts(own)) == (renamed.verdict, counts(renamed)), part.name
        rows = [row for found in renamed.checks.values() for row in found.rows]
        assert {part_of(dict(row)) for row in rows} <= {part.number}, part.name
    merges = list(batches(made, len(made)))
    assert len(merges) >= SHAPES_MIN
    found: set[str] = set()
    for batch in merges:
        whole = by_twins(written(merged(batch), tmp_path / "run"))
        each = sum_of(apart[part.number] for part in batch)
        assert list(differences("", rows_of(whole), each)) == []
        found |= {check for check, count in counts(whole).items() if count}
    assert len(found) >= CHECKS_MIN, found


@pytest.mark.slow
def test_scenes_of_one_history_share_no_operation() -> None:
    """Two of one process and number are one to a judge, or a hole."""
    for case in map(case_of, range(1, 41)):
        rows = [row for row in case.history.rows if RAW not in row and row["type"] == "invoke"]
        begun = Counter((row["process"], row["op_id"]) for row in rows)
        assert [one for one, count in begun.items() if count > 1] == [], case.name
