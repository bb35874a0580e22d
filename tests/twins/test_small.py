"""The judge in plain Python finds in small histories exactly what the specification says; in those
of the judge on Spark as well.
"""

import pytest

from analytics.command.differences import differences
from analytics.twins import find_all
from tests.judges import deceiving, strange
from tests.judges.agreement import judgement
from tests.judges.small import SMALL, told
from tests.spark import (
    cases_clocks,
    cases_disks,
    cases_groups,
    cases_handing,
    cases_owed,
    cases_stored,
)
from tests.spark.cases import CASES
from tests.spark.histories import RunRecorder

# Their cases are registered by being imported.
assert cases_clocks
assert cases_disks
assert cases_groups
assert cases_handing
assert cases_owed
assert cases_stored
assert deceiving
assert strange


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
