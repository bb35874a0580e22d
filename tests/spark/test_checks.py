"""Every check on histories of a few rows, clean and violating: the exact evidence, and no other."""

import tempfile
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from analytics.command.differences import differences
from analytics.twins import find_all, judge
from tests.judges.agreement import Case, case_of, judgement
from tests.judges.alterations import altered
from tests.judges.history import RAW
from tests.judges.small import told
from tests.spark.all_cases import CASES, SMALL
from tests.spark.conftest import Find, Found
from tests.spark.histories import RunRecorder

# All of it is one job of a minute and a half of processor time, with a quarter of the histories as
# with all: Spark's time goes into plans. The twins judge the same in tests/twins/test_small.py.
pytestmark = pytest.mark.slow

SEED, COUNT, ALTERED = 1, 24, 300
CHECKS_MIN = 8  # that find something in these: else little is compared


@cache
def made_up() -> dict[str, RunRecorder]:
    """Return legal, sabotaged and altered histories as runs, by what was done to them."""
    cases = [*map(case_of, range(SEED, SEED + COUNT)), *altered_cases()]
    return {f"seed {case.name}": run_of(case) for case in cases}


def altered_cases() -> Iterator[Case]:
    """Yield histories with one field altered whose record is whole: of others intakes speak."""
    tried = Counter[str]()
    with tempfile.TemporaryDirectory() as scratch:
        for seed in range(SEED, SEED + ALTERED):
            one = altered(seed, lambda _: True, tried)
            one.history.write(Path(scratch) / "run")
            said = judge(Path(scratch) / "run")
            assert said.intake is not None
            assert said.run is not None
            if not (said.intake.holes or said.intake.truth_holes or said.run.holes):
                yield Case(f"{seed} {one.name}", one.history)


def run_of(case: Case) -> RunRecorder:
    run, history = RunRecorder(f"seed {case.name}"), case.history
    run.rows = [{**row, "run_id": run.run_id} for row in history.rows if RAW not in row]
    run.truth = [{**row, "run_id": run.run_id} for rows in history.truth.values() for row in rows]
    if history.truth:
        run.nodes = {node: node in history.truth for node in history.document["nodes"]}
    return run


@pytest.fixture(scope="module")
def found(find: Find) -> Found:
    """All of them at once: a job costs more than the rows in it."""
    builds = {**CASES, **SMALL}
    runs = {name: RunRecorder(name) for name in builds}
    for name, build in builds.items():
        build(runs[name])
    runs |= made_up()
    rows, truth = ([row for run in runs.values() for row in part(run)] for part in PARTS)
    nodes = [(name, *node) for name, run in runs.items() for node in run.nodes.items()]
    return find(rows, truth, nodes)


PARTS = (lambda run: run.rows, lambda run: run.truth)


@pytest.mark.parametrize("name", CASES)
def test_evidence_is_exactly_what_the_history_proves(name: str, found: Found) -> None:
    run = RunRecorder(name)
    expected = CASES[name](run)
    actual = {check: rows for check, rows in found.get(name, {}).items() if rows}
    assert actual == {check: sorted(rows, key=repr) for check, rows in expected.items()}


@pytest.mark.parametrize("name", SMALL)
def test_rows_are_exactly_those_that_a_small_history_proves(name: str, found: Found) -> None:
    assert told(found.get(name, {})) == SMALL[name](RunRecorder(name))


def test_judges_agree_on_legal_sabotaged_and_altered_histories(found: Found) -> None:
    """Beside them, in the same job: Spark's time goes into plans, not into rows."""
    differing, checks = [], set()
    for name, run in made_up().items():
        expected = judgement(find_all(run.rows, run.truth, run.nodes))
        differing += differences(name, judgement(found[name]), expected)
        checks |= {check for check, rows in found[name].items() if rows}
    assert differing == []
    assert len(checks) >= CHECKS_MIN, f"from seed {SEED}"
