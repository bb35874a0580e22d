"""Claims about who may be a peer."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cluster.members.handshake import (
    REPORT_MS,
    REPORTS_REMEMBERED_MAX,
    Reports,
    identity,
    objection,
)
from cluster.wire.messages import Hello, Message, ReadIndex

MINE = Hello(1, "c", "b", "i", ("a", "b", "d"), False, None)
THEIRS = replace(MINE, node="a", incarnation="j")


def test_configured_member_is_welcome_in_its_direction() -> None:
    assert objection(MINE, THEIRS, None) == ""
    assert objection(MINE, replace(THEIRS, node="d"), "d") == ""


@pytest.mark.parametrize(
    ("message", "dialed", "reason"),
    [
        (ReadIndex(1, 2), None, "said ReadIndex before Hello"),
        (replace(THEIRS, cluster_id="x"), None, "belongs to cluster 'x', this node to 'c'"),
        (replace(THEIRS, members=("a", "b")), None, "knows the members ('a', 'b')"),
        (replace(THEIRS, node="z"), None, "no other member"),
        (replace(THEIRS, node="b"), None, "no other member"),
        (replace(THEIRS, node="a"), "d", "'d' was dialed"),
    ],
)
def test_anybody_else_is_told_why_not(message: Message, dialed: str | None, reason: str) -> None:
    assert reason in objection(MINE, message, dialed)


def test_freshness_and_founding_are_no_part_of_the_identity() -> None:
    assert identity(replace(MINE, fresh=True, founding={})) == identity(MINE)
    assert identity(replace(MINE, incarnation="other")) != identity(MINE)


def test_trouble_is_reported_once_an_interval_and_memory_is_bounded() -> None:
    reports = Reports()
    assert reports.due("x", 0.0)
    assert not reports.due("x", REPORT_MS / 1000 - 0.001)
    assert reports.due("x", REPORT_MS / 1000)
    for number in range(REPORTS_REMEMBERED_MAX):
        assert reports.due(str(number), 20.0)
    assert reports.due("x", REPORT_MS / 1000 + 0.001)  # forgotten, so reported again
