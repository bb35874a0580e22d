"""What subscriptions.py promises: no outcome is believed more than it says."""

from __future__ import annotations

import pytest

from chaos.simulation.checks.subscriptions import Subscriptions
from flotilla_client import Operation, Outcome

OK, UNKNOWN, REFUSED = (
    Outcome(1),
    Outcome(3, error="unavailable", definite=False),
    Outcome(1, error="overloaded", definite=True),
)
NEW, RESUMED = Outcome(1, resumed=False), Outcome(1, resumed=True)
MISSING = Outcome(1, error="not_subscribed")


class OneClient:
    """One client of one topic. `failures`: what was said to be impossible."""

    def __init__(self) -> None:
        self.failures: list[str] = []
        self._number = 0
        self.is_doubling = False
        self._subscriptions = Subscriptions(self.failures.append, lambda: self.is_doubling)

    def does(self, f: str, *outcome: Outcome) -> None:
        """Do an operation; without an outcome the process dies in it."""
        self._number += 1
        operation = Operation(self._number, "me", f, "x")
        self._subscriptions.invoked("me/1", operation)
        for one in outcome:
            self._subscriptions.completed("me/1", operation, one)


@pytest.fixture
def client() -> OneClient:
    return OneClient()


def test_coming_and_going_as_told_is_fine(client: OneClient) -> None:
    for f, outcome in [("sub", NEW), ("get", OK), ("sub", RESUMED), ("unsub", OK), ("sub", NEW)]:
        client.does(f, outcome)
    assert not client.failures


def test_a_refused_sub_that_was_carried_out_shows_with_the_next_one(client: OneClient) -> None:
    client.does("sub", REFUSED)
    client.does("sub", RESUMED)
    assert "resumes what every earlier answer says is not there" in client.failures[0]


def test_a_sub_that_the_network_doubled_may_find_its_own_copy(client: OneClient) -> None:
    client.is_doubling = True
    client.does("sub", RESUMED)
    assert not client.failures


def test_a_late_sub_behind_an_unsub_shows_with_the_next_one(client: OneClient) -> None:
    client.does("sub", UNKNOWN)
    client.does("unsub", OK)
    client.does("sub", RESUMED)
    assert len(client.failures) == 1


def test_a_late_unsub_behind_a_sub_shows_with_the_next_get(client: OneClient) -> None:
    client.does("sub", NEW)
    client.does("unsub", UNKNOWN)
    client.does("sub", RESUMED)
    client.does("get", MISSING)
    assert "it has never unsubscribed since" in client.failures[0]


def test_a_lost_subscription_shows_with_the_next_sub(client: OneClient) -> None:
    client.does("sub", NEW)
    client.does("unsub", REFUSED)
    client.does("sub", NEW)
    assert "begins anew" in client.failures[0]


@pytest.mark.parametrize("outcome", [(), (UNKNOWN,)], ids=["crash", "no answer"])
@pytest.mark.parametrize("then", [NEW, RESUMED])
def test_what_may_have_happened_or_not_proves_nothing(
    client: OneClient, outcome: tuple[Outcome, ...], then: Outcome
) -> None:
    client.does("sub", NEW)
    client.does("unsub", *outcome)
    client.does("get", MISSING)
    client.does("sub", then)
    assert not client.failures


def test_a_second_attempt_may_find_the_first_ones_subscription(client: OneClient) -> None:
    client.does("sub", Outcome(2, resumed=True))
    assert not client.failures
