"""A turn's shares of time."""

from __future__ import annotations

from cluster.node import budget
from cluster.node.budget import Budget


def test_a_share_is_spent_from_its_end_on_and_begins_anew() -> None:
    now = 10.0
    share = Budget(lambda: now, 0.5)
    share.begin()
    assert not share.spent()
    now = 10.5
    assert share.spent()
    share.begin()
    assert not share.spent()


def test_all_shares_leave_a_fifth_of_a_heartbeat_for_the_disk() -> None:
    shares = (
        budget.PEERS_SHARE,
        budget.REQUESTS_SHARE,
        budget.APPLY_SHARE,
        budget.ANSWERS_SHARE,
        budget.REPLIES_SHARE,
        2 * budget.CHORES_SHARE,  # garbage, and pages given back
    )
    assert sum(shares) <= 0.8
