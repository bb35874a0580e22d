"""What chaos/simulation/search/shrink.py promises: less that still fails, within a bound."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from chaos.simulation.plan.plan import Action, Plan
from chaos.simulation.search.shrink import Shrunk, ddmin
from chaos.simulation.search.shrink import shrink as bounded_shrink

NAMES = [f"fault-{number}" for number in range(40)]


def shrink(plan: Plan, fails: Callable[[Plan], bool], **options: int) -> Shrunk:
    return bounded_shrink(plan, fails, lambda: True, **options)


def _plan() -> Plan:
    schedule = tuple(Action(float(at_s), name) for at_s, name in enumerate(NAMES))
    knobs = {"load": {"roles": [f"role {number}" for number in range(1, 7)]}}
    return Plan(7, clients=6, duration_s=60.0, knobs=knobs, schedule=schedule)


def _needs(*names: str) -> Callable[[Plan], bool]:
    return lambda plan: set(names) <= {action.name for action in plan.schedule}


@given(st.lists(st.integers(), max_size=30, unique=True), st.data())
def test_what_is_left_is_exactly_what_the_failure_needs(
    items: list[int], data: st.DataObject
) -> None:
    needed = data.draw(st.sets(st.sampled_from(items))) if items else set()
    assert set(ddmin(items, lambda part: needed <= set(part))) == needed


@given(st.permutations(range(12)))
def test_what_is_left_keeps_its_order(items: list[int]) -> None:
    left = ddmin(items, lambda part: len(part) >= 5)
    assert list(left) == [item for item in items if item in left]


def test_a_failure_without_a_fault_shrinks_to_an_empty_schedule() -> None:
    assert shrink(_plan(), lambda plan: True).plan.schedule == ()


def test_no_action_can_be_left_out_of_the_result() -> None:
    shrunk = shrink(_plan(), _needs("fault-3", "fault-17", "fault-18"))
    left = [action.name for action in shrunk.plan.schedule]
    assert (left, shrunk.is_minimal) == (["fault-3", "fault-17", "fault-18"], True)


def test_time_is_cut_behind_the_last_action_alone() -> None:
    shrunk = shrink(_plan(), _needs("fault-20"))
    assert 20.0 <= shrunk.plan.duration_s < 60.0


def test_clients_are_as_few_as_still_fail() -> None:
    crash = Action(1.0, "client_crash", {"client": "client-5"})
    plan = replace(_plan(), schedule=(crash,))
    shrunk = shrink(plan, lambda plan: plan.clients in (3, 4, 5) or crash in plan.schedule)
    roles = [f"role {number}" for number in range(1, 4)]
    assert shrunk.plan.clients == 3
    assert shrunk.plan.knobs["load"]["roles"] == roles
    assert shrunk.plan.schedule == ()


def test_the_number_of_runs_is_bounded_and_the_result_still_fails() -> None:
    asked: list[Plan] = []
    fails = _needs(*NAMES[:10:2])

    def counted(plan: Plan) -> bool:
        asked.append(plan)
        return fails(plan)

    shrunk = shrink(_plan(), counted, runs_max=25)
    assert (len(asked), shrunk.runs, shrunk.is_minimal) == (25, 25, False)
    assert fails(shrunk.plan)
    assert len(shrunk.plan.schedule) < len(NAMES)


def test_it_stops_when_it_may_not_go_on_with_a_plan_that_fails() -> None:
    left = iter([True] * 12)
    fails = _needs("fault-3", "fault-30")
    shrunk = bounded_shrink(_plan(), fails, lambda: next(left, False))
    assert (shrunk.runs, shrunk.is_minimal) == (12, False)
    assert fails(shrunk.plan)
