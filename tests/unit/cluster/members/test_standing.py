"""When a process has to wait, or to end, because of what others say."""

from __future__ import annotations

import pytest

from cluster.members.membership import ReplacedError
from cluster.members.neighbours import REFUSAL_S
from cluster.members.peers import RefusedBy, Unfit
from cluster.members.standing import BEYOND_S, Seniority, Verdicts
from cluster.wire.levels import BUILD, UnsupportedLevel
from cluster.wire.messages import Refusal

TAKEOVER_S = 3.0
BEYOND = Unfit("a", "its-own", BUILD.level_max + 1, BUILD, "is newer")
EVICTED = RefusedBy("a", "its-own", Refusal.EVICTED, "evicted: replaced")


def test_of_two_processes_with_one_directory_the_younger_takes_no_part() -> None:
    seniority = Seniority(TAKEOVER_S, 10.0)
    assert seniority.takes_part(10.0)
    assert seniority.yields(is_refused=True, has_majority=False, now=11.0)
    assert not seniority.takes_part(11.0 + TAKEOVER_S - 0.1)
    assert seniority.takes_part(11.0 + TAKEOVER_S)


def test_whom_a_majority_has_had_for_long_enough_nobody_moves() -> None:
    seniority = Seniority(TAKEOVER_S, 10.0)
    assert not seniority.yields(is_refused=False, has_majority=True, now=10.0 + TAKEOVER_S)
    assert not seniority.yields(is_refused=True, has_majority=False, now=20.0)
    assert seniority.takes_part(20.0)


def test_who_was_refused_is_not_settled_before_it_was_let_in_for_as_long() -> None:
    seniority = Seniority(TAKEOVER_S, 10.0)
    seniority.yields(is_refused=True, has_majority=True, now=11.0)
    seniority.yields(is_refused=False, has_majority=True, now=11.0 + 2 * TAKEOVER_S - 0.1)
    assert seniority.yields(is_refused=True, has_majority=True, now=17.0)


@pytest.mark.parametrize(
    ("word", "error", "counts_s"),
    [(EVICTED, ReplacedError, REFUSAL_S), (BEYOND, UnsupportedLevel, BEYOND_S)],
)
def test_a_members_word_ends_who_has_no_majority_while_it_counts(
    word: RefusedBy | Unfit, error: type[Exception], counts_s: float
) -> None:
    verdicts = Verdicts(BUILD)
    verdicts.take(word, 10.0)
    verdicts.heed(has_majority=True, now=10.0)
    with pytest.raises(error):
        verdicts.heed(has_majority=False, now=10.0 + counts_s)
    verdicts.heed(has_majority=False, now=10.1 + counts_s)
    verdicts.heed(has_majority=False, now=10.0)


def test_a_level_that_this_build_knows_and_a_double_end_nobody() -> None:
    verdicts = Verdicts(BUILD)
    verdicts.take(Unfit("a", "its-own", BUILD.level_max, BUILD, "is older"), 10.0)
    verdicts.take(RefusedBy("a", "its-own", Refusal.DOUBLED, "doubled"), 10.0)
    verdicts.heed(has_majority=False, now=10.0)


def test_who_is_let_in_where_it_reaches_nobody_is_not_settled() -> None:
    seniority = Seniority(TAKEOVER_S, 10.0)
    seniority.yields(is_refused=False, has_majority=False, now=10.0 + 2 * TAKEOVER_S)
    assert seniority.yields(is_refused=True, has_majority=False, now=20.0)
    assert not seniority.takes_part(20.0)
