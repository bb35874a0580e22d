"""Every check on histories of a few rows, clean and violating: the exact evidence, and no other."""

import pytest

from tests.judges import deceiving, strange
from tests.judges.small import SMALL, told
from tests.spark import cases_clocks, cases_disks, cases_handing, cases_owed, cases_stored
from tests.spark.cases import CASES
from tests.spark.conftest import Find, Found
from tests.spark.histories import Run

# Their cases are registered by being imported.
assert cases_clocks
assert cases_disks
assert cases_handing
assert cases_owed
assert cases_stored
assert deceiving
assert strange


@pytest.fixture(scope="module")
def found(find: Find) -> Found:
    """All of them at once: a job costs more than the rows in it."""
    builds = {**CASES, **SMALL}
    runs = {name: Run(name) for name in builds}
    for name, build in builds.items():
        build(runs[name])
    rows, truth = ([row for run in runs.values() for row in part(run)] for part in PARTS)
    nodes = [(name, *node) for name, run in runs.items() for node in run.nodes.items()]
    return find(rows, truth, nodes)


PARTS = (lambda run: run.rows, lambda run: run.truth)


@pytest.mark.parametrize("name", CASES)
def test_evidence_is_exactly_what_the_history_proves(name: str, found: Found) -> None:
    run = Run(name)
    expected = CASES[name](run)
    actual = {check: rows for check, rows in found.get(name, {}).items() if rows}
    assert actual == {check: sorted(rows, key=repr) for check, rows in expected.items()}


@pytest.mark.parametrize("name", SMALL)
def test_rows_are_exactly_those_that_a_small_history_proves(name: str, found: Found) -> None:
    assert told(found.get(name, {})) == SMALL[name](Run(name))
