"""Second processes of a member in the simulator: empty ones, copies, and what becomes of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from chaos.simulation.plan.plan import Action, Plan
from chaos.simulation.plan.result import Result
from chaos.simulation.search.run import run
from chaos.simulation.search.swarm import plan_for
from chaos.simulation.world.network import member_of

SEED = 2
DURATION_S = 24.0


def plan(*schedule: Action) -> Plan:
    """Return a plan of three nodes under an ordinary load, to whom nothing else happens."""
    drawn = plan_for(SEED, "safety", 3)
    knobs = {"load": {**drawn.knobs["load"], "broken": {}}}
    return replace(drawn, schedule=schedule, duration_s=DURATION_S, knobs=knobs)


def double(at_s: float, node: str, **more: Any) -> Action:
    return Action(at_s, "double", {"node": node, **more})


def played(*schedule: Action, bug: str | None = None) -> tuple[Result, list[str]]:
    """Return a run's result and trace."""
    lines: list[str] = []
    return run(plan(*schedule), bug, lines.append, is_full=True), lines


def test_an_empty_double_of_a_member_that_is_heard_is_refused_and_changes_nothing() -> None:
    result, _ = played(double(4.0, "a", how="empty", seconds=10.0))
    assert result.failures == ()
    assert result.coverage["double_refused"] > 10  # by two nodes, once a second
    assert result.events.get("admitting", 0) == 0
    assert result.events["double_gone"] == 1


@pytest.mark.slow
def test_an_empty_double_of_a_member_that_is_cut_off_takes_its_place_for_good() -> None:
    others = {"node": "a", "others": ["b", "c"], "seconds": 6.0}
    schedule = (double(4.0, "a", how="empty", seconds=15.0), Action(6.0, "cut", others))
    result, _ = played(*schedule)
    assert result.failures == ()
    assert result.coverage["evicted"] == 1
    assert (result.events["admitting"], result.events["moved_in"]) == (1, 1)


@pytest.mark.slow
def test_a_copy_of_a_member_s_directory_is_refused_by_all_until_the_next_fault() -> None:
    copy = double(4.0, "b", how="copy", seconds=10.0)
    result, _ = played(copy, Action(9.0, "disconnect", {"one": "b", "other": "c"}))
    assert result.failures == ()
    assert 4 <= result.coverage["double_refused"] <= 12
    assert result.events["double_gone"] == 1


@pytest.mark.slow
def test_a_copy_is_made_in_calm_moments_alone() -> None:
    cut = Action(3.0, "cut", {"node": "c", "others": ["a"], "seconds": 9.0})
    result, _ = played(cut, double(4.0, "b", how="copy"))
    assert result.failures == ()
    assert "double_gone" not in result.events


@pytest.mark.parametrize("how", ["empty", "copy"])
def test_a_double_that_gets_the_place_of_who_is_heard_is_seen(how: str) -> None:
    result, _ = played(
        double(4.0, "a", how=how, seconds=10.0), bug="a-second-process-takes-the-place"
    )
    assert "doubled" in {failure.check for failure in result.failures}


@pytest.mark.slow
def test_who_goes_on_though_it_was_evicted_is_seen() -> None:
    others = {"node": "a", "others": ["b", "c"], "seconds": 4.0}
    schedule = (double(4.0, "a", how="empty", seconds=12.0), Action(6.0, "cut", others))
    result, _ = played(*schedule, bug="nobody-is-told-that-it-was-evicted")
    assert "evicted" in {failure.check for failure in result.failures}


def test_a_machine_is_named_after_its_member() -> None:
    assert (member_of("a+"), member_of("a")) == ("a", "a")
