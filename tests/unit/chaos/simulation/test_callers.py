"""Several callers of one client in the simulator: what they rely on holds, and bugs are seen."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from chaos.simulation.plan.plan import Action, Plan
from chaos.simulation.search.run import run

ROLES: tuple[dict[str, Any], ...] = (
    {"topics": ["x", "y"], "puts": 1.0, "pause_s": 0.05, "callers": 6, "is_awaiting": True},
    {"topics": ["x", "y"], "puts": 1.0, "pause_s": 0.05, "callers": 6},
    {"topics": ["x", "y"], "gets": 1.0, "pause_s": 0.02, "get_count": 3},
)
FAULTS = (
    Action(3.0, "kill", {"node": "leader"}),
    Action(4.0, "restart_all", {}),
    Action(4.5, "client_crash", {"client": "client-1"}),
    Action(5.0, "client_restart", {"client": "client-1"}),
    Action(5.4, "client_crash", {"client": "client-2", "at": "invoke"}),
    Action(5.8, "client_restart", {"client": "client-2"}),
    Action(6.0, "cut", {"node": "client-2", "others": ["a", "b"], "seconds": 1.0}),
    Action(7.5, "client_power_loss", {"client": "client-2", "keep": "lost"}),
    Action(7.6, "client_crash", {"client": "client-1", "at": "stored"}),
    Action(8.0, "client_restart", {"client": "client-2"}),
    Action(8.0, "client_restart", {"client": "client-1"}),
)


def plan(seed: int, **knobs: Any) -> Plan:
    return Plan(seed, 3, 3, 10.0, knobs={"load": {"roles": ROLES}, **knobs}, schedule=FAULTS)


def full(seed: int) -> Plan:
    """Return a plan whose topics are full most of the time, longer than callers wait."""
    roles = (*ROLES[:2], {**ROLES[2], "pause_s": 1.0, "get_count": 1})
    return plan(seed, load={"roles": roles, "deadline_ms": 1_500}, backlog_bytes_max=3_000)


@pytest.mark.slow
def test_callers_that_are_joined_lose_nothing_and_come_to_the_end() -> None:
    result = run(plan(3))
    assert result.failures == ()
    assert result.coverage["drained"] == 1
    assert result.coverage["retried"] > 0
    assert result.coverage["duplicate_put"] > 0


def test_callers_of_full_topics_come_to_the_end_too() -> None:
    result = run(full(3))
    assert result.failures == ()
    assert result.coverage["drained"] == 1


@pytest.mark.slow
def test_a_run_with_callers_is_the_same_run_twice() -> None:
    short = replace(plan(4), duration_s=4.0)
    assert run(short).hash == run(short).hash


@pytest.mark.parametrize(
    ("bug", "check", "make"),
    [
        ("joined-callers-are-answered-backwards", "own_answer", plan),
        ("joined-callers-are-stored-backwards", "call_order", plan),
        ("cancelled-callers-are-stored-again", "call_order", plan),
        ("joined-callers-get-each-others-errors", "own_answer", full),
    ],
)
def test_what_joined_callers_must_not_see_is_noticed(bug: str, check: str, make: Any) -> None:
    assert check in {failure.check for failure in run(make(3), bug).failures}
