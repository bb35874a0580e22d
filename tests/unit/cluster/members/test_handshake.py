"""Claims about who may be a peer."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cluster.members.handshake import (
    REPORT_MS,
    REPORTS_REMEMBERED_MAX,
    Reports,
    contest,
    follows,
    identity,
    objection,
)
from cluster.wire.levels import BUILD
from cluster.wire.messages import Extension, Hello, Message, ReadIndex

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


def test_a_hello_that_is_said_again_leaves_its_extension_as_it_was() -> None:
    known = replace(THEIRS, extension=Extension(BUILD, BUILD.level_max))
    again = follows(known, replace(THEIRS, fresh=True))
    assert again == replace(known, fresh=True)


@pytest.mark.parametrize("admitted", ["j", "another one", None])
def test_a_second_process_of_a_directory_has_no_place_while_the_first_is_heard(
    admitted: str | None,
) -> None:
    assert "a copy of it" in contest(THEIRS, THEIRS, 2.9, 3.0, admitted, "there")
    assert contest(THEIRS, THEIRS, 3.0, 3.0, admitted, "there") == ""


def test_who_is_admitted_has_the_place_of_who_is_not_and_not_the_other_way_round() -> None:
    stranger = replace(THEIRS, incarnation="other")
    assert contest(THEIRS, stranger, 0.0, 3.0, "j", "there") == ""
    assert "has to be silent" in contest(stranger, THEIRS, 0.0, 3.0, "j", "there")
