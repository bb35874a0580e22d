"""The simulator finds planted bugs of different rules by the checks that are meant to see them.

The cheap ones: `flotilla-simulate --hunt all` looks for all, each within its own bound.
"""

from __future__ import annotations

import pytest

from chaos.simulation.search.campaign import Recipe
from chaos.simulation.search.run import PLANTABLE

SEEDS_MAX = 16  # a hunt finds each of these by seed 10
CHEAP = (
    "cursor-moves-too-far",
    "parked-gets-are-not-woken",
    "reads-join-an-earlier-barrier",
    "sync-without-the-disk",
    "unsubscribed-clients-go-on",
)
DEARER = (  # or like one of these
    "applied-index-stays-behind",
    "floor-is-the-fastest-cursor",
    "ids-restart-with-the-topic",
    "leader-commits-alone",
    "max-count-is-ignored",
    "nobody-is-readmitted",
    "room-is-not-given-back",
    "stock-pysyncobj",
    "whoever-is-empty-is-admitted-at-once",
)


@pytest.mark.timeout(600)  # some dear ones take a minute on a busy machine
@pytest.mark.parametrize(
    "name", [*CHEAP, *(pytest.param(name, marks=pytest.mark.slow) for name in DEARER)]
)
def test_a_planted_bug_is_found_by_a_check_that_is_meant_to_see_it(name: str) -> None:
    bug = PLANTABLE[name]
    recipe = Recipe(bug.mode, bug.nodes, name)
    seen: list[frozenset[str]] = []
    for seed in range(1, SEEDS_MAX + 1):
        seen.append(recipe(recipe.plan(seed)).checks)
        if seen[-1] & bug.caught_by:
            return
    pytest.fail(f"seeds 1..{SEEDS_MAX} have shown {seen}")
