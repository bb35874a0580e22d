"""What campaign.py promises: every seed has a result, whatever its worker does."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from contextlib import closing
from typing import Any

import pytest

from chaos.simulation.plan.plan import Plan
from chaos.simulation.plan.result import BROKEN, LOST, Failure, Result
from chaos.simulation.search.campaign import LIVE_EVERY, Recipe, Statistics, results

STUCK_S = 600.0


def _clean(plan: Plan) -> Result:
    return Result(plan, hash=f"{plan.seed:x}", simulated_s=60.0, real_s=0.5)


def _dies_at_three(plan: Plan) -> Result:
    if plan.seed == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return _clean(plan)


def _raises_at_three(plan: Plan) -> Result:
    if plan.seed == 3:
        raise SystemExit(5)
    return _clean(plan)


def _sticks_at_three(plan: Plan) -> Result:
    if plan.seed == 3:
        time.sleep(STUCK_S)
    return _clean(plan)


def _plans(count: int) -> list[Plan]:
    return [Plan(seed) for seed in range(1, count + 1)]


@pytest.mark.parametrize("jobs", [1, 2])
def test_every_plan_comes_back_once(jobs: int) -> None:
    found = list(results(_plans(7), jobs, _clean))
    assert sorted(result.seed for result in found) == list(range(1, 8))
    assert {result.verdict for result in found} == {"clean"}


def test_one_job_keeps_the_order() -> None:
    assert [result.seed for result in results(_plans(5), 1, _clean)] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("work", "why"), [(_dies_at_three, "exit code -9"), (_raises_at_three, "exit code 5")]
)
def test_a_worker_that_dies_is_reported_with_its_seed(work: Any, why: str) -> None:
    found = {result.seed: result for result in results(_plans(6), 2, work)}
    assert sorted(found) == [1, 2, 3, 4, 5, 6]
    [failure] = found.pop(3).failures
    assert (failure.check, why in failure.text) == (LOST, True)
    assert {result.verdict for result in found.values()} == {"clean"}


def test_a_run_without_an_end_is_reported_and_the_others_go_on() -> None:
    found = {result.seed: result for result in results(_plans(5), 1, _sticks_at_three, 2.0)}
    assert sorted(found) == [1, 2, 3, 4, 5]
    assert found[3].checks == {LOST}
    assert "within 2 s" in found[3].failures[0].text


def test_leaving_early_leaves_no_process_behind() -> None:
    with closing(results(_plans(100), 2, _clean)) as found:
        next(found)
    assert multiprocessing.active_children() == []


def test_plans_are_asked_for_when_a_worker_is_free_not_before() -> None:
    asked: list[int] = []

    def lazily():  # type: ignore[no-untyped-def]
        for plan in _plans(50):
            asked.append(plan.seed)
            yield plan

    with closing(results(lazily(), 2, _clean)) as found:
        next(found)
    assert len(asked) == 2


def test_statistics_count_runs_that_reached_a_state_not_how_often() -> None:
    statistics = Statistics()
    statistics.add(Result(Plan(1), events={"ack": 5}, coverage={"snapshot": 9}, simulated_s=60.0))
    statistics.add(Result(Plan(2), events={"ack": 2}, coverage={"snapshot": 0}, simulated_s=30.0))
    told = statistics.as_dict(elapsed_s=3.0)
    assert (told["runs"], told["reached"], told["events"]) == (2, {"snapshot": 1}, {"ack": 7})
    assert (told["simulated_s"], told["simulated_s_per_s"]) == (90.0, 30.0)


def test_a_simulator_that_breaks_is_neither_clean_nor_a_finding() -> None:
    broken, found = Failure(BROKEN, "a defect of ours"), Failure("lost", "id 7")
    assert Result(Plan(1), (broken,)).verdict == "broken"
    assert Result(Plan(1), (broken, found)).verdict == "failed"


def test_without_a_mode_one_seed_in_five_is_live() -> None:
    modes = [Recipe().plan(seed).mode for seed in range(1, 11)]
    assert modes.count("live") == 10 // LIVE_EVERY
    assert {Recipe("safety").plan(seed).mode for seed in range(1, 11)} == {"safety"}


def test_a_recipe_with_its_mode_named_is_the_same_run() -> None:
    for seed in range(1, 11):
        plan = Recipe().plan(seed)
        assert Recipe(plan.mode).plan(seed) == plan
