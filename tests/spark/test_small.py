"""Spark finds in small histories exactly what the specification says: all of them in one job."""

import pytest

from tests.judges import deceiving, strange
from tests.judges.small import SMALL, told
from tests.spark.conftest import Find, Found
from tests.spark.histories import Run

assert deceiving
assert strange


@pytest.fixture(scope="module")
def found(find: Find) -> Found:
    runs = [Run(name) for name in SMALL]
    for run in runs:
        SMALL[run.run_id](run)
    nodes = [(run.run_id, *node) for run in runs for node in run.nodes.items()]
    rows = [row for run in runs for row in run.rows]
    return find(rows, [row for run in runs for row in run.truth], nodes)


@pytest.mark.parametrize("name", SMALL)
def test_rows_are_exactly_those_that_the_history_proves(name: str, found: Found) -> None:
    assert told(found.get(name, {})) == SMALL[name](Run(name))
