"""The judge in plain Python finds in small histories exactly what the specification says; in those
of the judge on Spark as well.
"""

from pathlib import Path

import pytest

from analytics.command.differences import differences
from analytics.common.verdict import Verdict
from analytics.twins import find_all, judge
from tests.judges.agreement import judgement
from tests.judges.history import MadeHistory
from tests.judges.merging import MergedPart, batches, merged, part_of
from tests.judges.small import SCENARIOS, scenarios, told
from tests.spark.all_cases import CASES, SMALL
from tests.spark.histories import RunRecorder


@pytest.mark.parametrize("name", SMALL)
def test_rows_are_exactly_those_that_the_history_proves(name: str) -> None:
    run = RunRecorder(name)
    expected = SMALL[name](run)
    assert told(find_all(run.rows, run.truth, run.nodes)) == expected


@pytest.mark.parametrize("name", CASES)
def test_cases_of_the_other_judge_are_judged_alike(name: str) -> None:
    run = RunRecorder(name)
    expected = CASES[name](run)
    found = find_all(run.rows, run.truth, run.nodes)
    due = {check: expected.get(check, []) for check in found}
    assert list(differences(name, judgement(found), judgement(due))) == []


def test_one_record_of_all_that_was_tried_is_invalid_and_each_part_is_found(tmp_path: Path) -> None:
    parts = []
    for number, (name, build) in enumerate(scenarios(SCENARIOS / "tried.txt").items(), 1):
        run = RunRecorder()
        build(run)
        if not run.truth:
            made = MadeHistory("run", {"seed": 1}, run.rows)
            parts.append(MergedPart.of(number, name, made))
    for batch in batches(parts, len(parts)):
        merged(batch).write(tmp_path / "run")
        said = judge(tmp_path / "run")
        found = {part_of(row._asdict()) for rows in said.evidence.values() for row in rows}
        assert said.verdict is Verdict.INVALID
        assert [part.name for part in batch if part.number not in found] == []
