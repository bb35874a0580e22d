"""Real clusters with planted bugs, real faults, and what Spark says: each is caught, by name."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from analytics.command import plain
from analytics.common import session
from analytics.common.verdict import Verdict
from analytics.judge.check import check
from tests.chaos_bugs.cases import CASES, CONTROLS, QUICK
from tests.chaos_bugs.trial import BugCase, carry_out

RUN_S_MAX = 240
SPARK_S_MAX = 240
OF_DISKS = frozenset({"dark", "sick-disks"})  # by a library that is compiled for it


def parameters(cases: list[BugCase]) -> list[object]:
    """Return the cases with what they need."""

    def marks(case: BugCase) -> list[pytest.MarkDecorator]:
        of_networks = [pytest.mark.root, pytest.mark.needs("ip", "iptables")]
        return [
            *(of_networks if case.target == "namespaces" else []),
            *([pytest.mark.needs("cc")] if case.experiment in OF_DISKS else []),
        ]

    return [
        pytest.param(
            case, id="-".join((case.bug, case.experiment, *case.without)), marks=marks(case)
        )
        for case in cases
    ]


@pytest.fixture(scope="module")
def spark() -> Iterator[None]:
    """One JVM for all: a check joins the session that there is."""
    with session.opened(is_for_short=True):
        yield


@pytest.mark.timeout(RUN_S_MAX)
@pytest.mark.parametrize("case", parameters(QUICK))
def test_a_planted_bug_is_seen_by_the_twins(case: BugCase, tmp_path: Path) -> None:
    for seed in case.seeds:
        print("seed", seed)
        directory = tmp_path / str(seed)
        carry_out(case, seed, directory)
        verdict = plain.judge(directory)
        report = json.loads((directory / "report.json").read_bytes())
        if {one["name"] for one in report["checks"] if one["count"]} & case.caught_by:
            assert verdict == "invalid"
            return
    pytest.fail(f"{case.bug} is not seen with the seeds {case.seeds}")


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.parametrize("case", parameters(CASES))
@pytest.mark.timeout(3 * (RUN_S_MAX + SPARK_S_MAX))
def test_a_planted_bug_is_caught(case: BugCase, tmp_path: Path, spark: None) -> None:
    tried = {}
    for seed in case.seeds:
        directory = tmp_path / str(seed)
        outcome = carry_out(case, seed, directory)
        report = check(directory)
        found = {one.name for one in report.checks if one.count}
        print(f"CAUGHT? {case.bug} {case.experiment} {case.target} seed {seed}: {report.verdict}")
        print({one.name: one.count for one in report.checks if one.count}, outcome.problems)
        tried[seed] = sorted(found), outcome.problems
        if found & case.caught_by:
            assert report.verdict is Verdict.INVALID
            return
        if case.complaint and case.complaint in " ".join(outcome.problems):
            assert report.verdict is not Verdict.VALID
            return
        if case.ends is not None and case.ends.is_seen(outcome, directory):
            assert report.verdict is not Verdict.VALID
            return
    pytest.fail(f"{case.bug} is not caught: {tried}")


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(RUN_S_MAX + SPARK_S_MAX)
@pytest.mark.parametrize("case", parameters(CONTROLS))
def test_without_the_bug_the_same_run_is_valid(case: BugCase, tmp_path: Path, spark: None) -> None:
    directory, seed = tmp_path / "run", case.seeds[0]
    print("seed", seed)
    outcome = carry_out(case, seed, directory, clean=True)
    report = check(directory)
    found = {one.name: one.count for one in report.checks if one.count}
    print(f"CLEAN {case.experiment} {case.target} seed {seed}: {report.verdict} {found}")
    assert report.verdict is Verdict.VALID, (found, report.reasons, outcome.problems)
