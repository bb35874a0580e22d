"""Clients' machines lose power and have failing disks in a run, and what that breaks is seen."""

from __future__ import annotations

from unittest.mock import Mock

import pytest

from chaos.simulation.clients.clients import Process
from chaos.simulation.disks.disk import PowerLoss
from chaos.simulation.plan.plan import Action, Plan
from chaos.simulation.search.run import run

ROLES = (
    {"topics": ["x"], "puts": 1.0, "pause_s": 0.05},
    {"topics": ["x"], "gets": 1.0, "pause_s": 0.05, "get_count": 3},
)
OPERATIONS = ("store_sync", "store_synced", "store_write", "store_open", "any")


def with_faults(*faults: Action) -> Plan:
    return Plan(3, 3, 2, 12.0, knobs={"load": {"roles": ROLES}}, schedule=faults)


def power_losses() -> list[Action]:
    """Cut the power of both clients again and again, at different operations of their disks."""
    found = []
    for number in range(12):
        client, at_s = f"client-{number % 2 + 1}", 2.0 + 0.7 * number
        how = {"at": OPERATIONS[number % 5], "count": 1 + number} if number % 3 else {}
        args = {"client": client, "keep": "lost", **how}
        found.append(Action(at_s, "client_power_loss", args))
        found.append(Action(at_s + 0.5, "client_restart", {"client": client}))
    return found


def failing_syncs() -> list[Action]:
    """Let a sync fail while the client goes on; then a process ends, or the power goes."""
    found = []
    for number in range(8):
        client, at_s = f"client-{number % 2 + 1}", 2.0 + 1.0 * number
        found.append(Action(at_s, "client_fsync_error", {"client": client, "count": 1 + number}))
        if number % 4 < 2:
            found.append(Action(at_s + 0.3, "client_crash", {"client": client}))
        else:
            power = {"client": client, "keep": "lost"}
            found.append(Action(at_s + 0.6, "client_power_loss", power))
        found.append(Action(at_s + 0.8, "client_restart", {"client": client}))
    return found


@pytest.mark.parametrize("faults", [power_losses(), failing_syncs()])
def test_clients_on_failing_machines_lose_nothing_and_come_to_the_end(
    faults: list[Action],
) -> None:
    result = run(with_faults(*faults))
    assert result.failures == ()
    assert result.events["client_cut"] >= 3
    assert result.coverage["drained"] == 1


def test_a_state_that_is_not_synced_is_noticed_when_the_power_goes() -> None:
    faults = []
    for number in range(20):
        at_s, client = 2.0 + 0.47 * number, {"client": "client-2"}
        faults.append(Action(at_s, "client_power_loss", {**client, "keep": "lost"}))
        faults.append(Action(at_s + 0.1, "client_restart", client))
    result = run(with_faults(*faults), "the-state-is-not-synced")
    assert {failure.check for failure in result.failures} & {"handed_over_twice", "kept"}


def test_a_process_whose_power_goes_as_it_closes_its_state_has_crashed() -> None:
    ends: list[bool] = []
    killed: list[object] = []
    state = Mock(close=Mock(side_effect=PowerLoss))
    process = Process(
        Mock(state=state),
        Mock(),
        "client-1/1",
        ("a", "b"),
        Mock(kill=killed.append),
        Mock(),
        Mock(),
        lambda process, crashed: ends.append(crashed),
    )
    process.end(crashed=False)
    assert (ends, killed) == ([True], [state]), "its disk is let go of, and it ends once"


@pytest.mark.slow
def test_a_run_with_failing_clients_is_the_same_run_twice() -> None:
    plan = with_faults(*power_losses(), *failing_syncs())
    assert run(plan).hash == run(plan).hash
