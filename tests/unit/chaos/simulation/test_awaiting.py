"""`AsyncClient` runs in the simulator, on its time and connections, and what breaks it is seen."""

from __future__ import annotations

import inspect
from typing import Any, cast

import pytest

from chaos.simulation.clients.awaiting import SimLoop
from chaos.simulation.plan.plan import Action, Plan
from chaos.simulation.search.run import run

ROLES: tuple[dict[str, Any], ...] = (
    {"topics": ["x"], "puts": 1.0, "pause_s": 0.05, "is_awaiting": True},
    {"topics": ["x"], "gets": 1.0, "pause_s": 0.02, "get_count": 3, "is_awaiting": True},
)
FAULTS = (
    Action(3.0, "kill", {"node": "leader"}),
    Action(4.0, "restart_all", {}),
    Action(4.5, "client_crash", {"client": "client-1"}),
    Action(5.0, "client_restart", {"client": "client-1"}),
    Action(5.4, "client_crash", {"client": "client-1", "at": "invoke"}),
    Action(5.4, "client_crash", {"client": "client-2", "at": "handed"}),
    Action(5.8, "client_restart", {"client": "client-1"}),
    Action(5.8, "client_restart", {"client": "client-2"}),
    Action(6.0, "cut", {"node": "client-2", "others": ["a", "b"], "seconds": 1.0}),
    Action(7.0, "power_loss", {"node": "leader", "keep": "torn"}),
    Action(7.5, "client_power_loss", {"client": "client-2", "keep": "lost"}),
    Action(8.0, "client_restart", {"client": "client-2"}),
    Action(8.0, "restart_all", {}),
    Action(8.5, "client_crash", {"client": "client-1", "at": "complete"}),
    Action(9.0, "client_restart", {"client": "client-1"}),
)


def plan(wire: int = 0, seed: int = 3) -> Plan:
    return Plan(seed, 3, 2, 10.0, knobs={"load": {"roles": ROLES}, "wire": wire}, schedule=FAULTS)


@pytest.mark.parametrize("wire", [0, 1])
def test_clients_that_await_and_cancel_lose_nothing_and_come_to_the_end(wire: int) -> None:
    result = run(plan(wire))
    assert result.failures == ()
    assert result.coverage["drained"] == 1
    assert result.coverage["retried"] > 0
    assert result.coverage["duplicate_put"] > 0  # of a PUT that was cancelled


@pytest.mark.parametrize(
    ("bug", "check"),
    [
        ("cancelled-gets-have-taken", "skipped"),
        ("cancelled-operations-keep-their-turn", "unexpected"),
    ],
)
def test_what_a_cancelled_operation_must_not_do_is_noticed(bug: str, check: str) -> None:
    found = (failure.check for seed in range(3, 11) for failure in run(plan(0, seed), bug).failures)
    assert check in found


@pytest.mark.slow
def test_a_run_with_clients_that_await_is_the_same_run_twice() -> None:
    assert run(plan()).hash == run(plan()).hash


def test_a_task_that_its_process_s_end_keeps_from_beginning_is_closed() -> None:
    class Wire:
        now = 0.0

        def after(self, delay_s: float, action: object) -> None:
            """Forget it: nothing happens any more."""

    async def operation() -> None:
        raise AssertionError("it begins")

    loop = SimLoop(cast("Any", Wire()), lambda action: action())
    coroutine = operation()
    task = loop.create_task(coroutine)
    loop.end()
    assert inspect.getcoroutinestate(coroutine) == inspect.CORO_CLOSED
    assert not task.done()
