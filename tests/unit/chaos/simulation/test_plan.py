"""Plans as data: whole in JSON, within their bounds."""

from __future__ import annotations

import pytest

from chaos.simulation.plan.plan import CLIENTS_MAX, NODES_MAX, Action, Plan


def test_a_plan_is_the_same_after_json() -> None:
    schedule = (Action(1.5, "kill", {"node": "a", "at": "write"}), Action(2.0, "restart_all"))
    plan = Plan(7, 5, 3, 12.5, "live", {"fsync_ms": 2.0}, schedule)
    assert Plan.from_json(plan.to_json()) == plan


def test_members_are_named_in_order() -> None:
    assert Plan(1, nodes=3).members == ("a", "b", "c")
    assert len(set(Plan(1, nodes=NODES_MAX).members)) == NODES_MAX


@pytest.mark.parametrize(
    "fields",
    [{"nodes": 0}, {"nodes": NODES_MAX + 1}, {"clients": CLIENTS_MAX + 1}, {"duration_s": 0.0}],
)
def test_a_plan_out_of_bounds_is_refused(fields: dict[str, float]) -> None:
    with pytest.raises(AssertionError):
        Plan(1, **fields)  # type: ignore[arg-type]
