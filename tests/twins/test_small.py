"""The judge in plain Python finds in small histories exactly what the specification says."""

import pytest

from analytics.twins import find_all
from tests.judges import deceiving, strange
from tests.judges.small import SMALL, told
from tests.spark.histories import Run

assert deceiving
assert strange


@pytest.mark.parametrize("name", SMALL)
def test_rows_are_exactly_those_that_the_history_proves(name: str) -> None:
    run = Run(name)
    expected = SMALL[name](run)
    assert told(find_all(run.rows, run.truth, run.nodes)) == expected
