"""The model of our own extensions of Raft: it holds by the rules, and each rule is needed."""

from __future__ import annotations

from typing import Final, NamedTuple

import pytest
from click.testing import CliRunner

from chaos.model.__main__ import main
from chaos.model.search import explore, walk
from chaos.model.world import RULES, Left, Model, ModelState, Violation, founded, unfounded

LEADS: Final = (
    "A campaigns",
    "A -> B: gets its vote",
    "A takes B's vote of term 1, and leads",
    "A -> B: appends all",
    "A takes B's acknowledgment of term 1 up to 1",
)
SMALL: Final = (
    Left(terms=2, writes=1),
    Left(terms=2, wipes=1),
    Left(terms=2, crashes=1),
    Left(terms=2, copies=1),
    Left(terms=1, writes=1, copies=1, compactions=1),
)
# Up to 91,000 states and half a minute of processor time each.
LARGE: Final = (
    Left(terms=3, writes=1),
    Left(terms=3, wipes=1),
    Left(terms=2, writes=1, wipes=2),
    Left(terms=2, writes=1, reads=1),
    Left(terms=2, reads=1, crashes=1),
)


class Needed(NamedTuple):
    """Where a rule's absence shows: the bounds, the steps before the search, and the damage."""

    left: Left
    damage: str
    before: tuple[str, ...] = ()
    is_founded: bool = True


NEEDED: Final = {
    "smallest-founds": Needed(
        Left(terms=1, wipes=1),
        "term 1 has two leaders",
        ("B hears C", "A hears B", "A hears C", "A founds"),
        is_founded=False,
    ),
    "founders-are-fresh": Needed(
        Left(terms=1, wipes=1), "term 1 has two leaders", is_founded=False
    ),
    "fresh-is-silent": Needed(Left(terms=2, wipes=1), "term 1 has two leaders"),
    "copy-admits": Needed(Left(terms=2, wipes=1), "lacks the entry that admits it", LEADS),
    "term-of-the-copy": Needed(Left(terms=2, wipes=1), "term 1 has two leaders", LEADS),
    "admitted-alone": Needed(
        Left(terms=2, twins=1), "term 2 has two leaders", (*LEADS, "a second C is started, empty")
    ),
    "from-the-entry-on": Needed(
        Left(terms=2, twins=1), "term 2 has two leaders", (*LEADS, "a second C is started, empty")
    ),
    "own-no-op": Needed(Left(terms=2, reads=1), "serves a stale read"),
    "asked-after": Needed(Left(terms=2, reads=2), "serves a stale read", LEADS),
    "answer-own-term": Needed(Left(terms=2, reads=1), "serves a stale read", LEADS),
    "answers-of-a-majority": Needed(Left(terms=2, reads=1), "serves a stale read", LEADS),
    "commit-proved": Needed(Left(terms=2), "applies another entry"),
    "acknowledge-proved": Needed(Left(terms=3), "lacks a committed entry"),
    "copy-is-newer": Needed(Left(terms=1, writes=1, copies=1), "store goes back", LEADS),
    "copy-keeps-the-log": Needed(
        Left(terms=3, copies=1), "lacks a committed entry", (*LEADS, "A -> C: is copied up to 1")
    ),
}
# Their absence alone breaks nothing here, as a complete search shows; docs/model.md says why.
REDUNDANT: Final = {
    "forget": Needed(Left(terms=2, wipes=1), "", LEADS),
    "count-own-term": Needed(Left(terms=2, reads=1), "", LEADS),
}


def _start(needed: Needed, model: Model) -> ModelState:
    first = founded(needed.left) if needed.is_founded else unfounded(needed.left)
    return walk(model, first, needed.before)


@pytest.mark.parametrize("left", SMALL, ids=str)
def test_nothing_breaks_by_the_rules_within_small_bounds(left: Left) -> None:
    found = explore(Model(), founded(left))

    assert (found.violation, found.complete) == ("", True), found
    assert found.states > 1_000


def test_nothing_breaks_while_a_cluster_is_founded_and_a_node_wiped() -> None:
    start = unfounded(Left(terms=1, wipes=1))
    found = explore(Model(), start, symmetric="but the first")

    assert (found.violation, found.complete) == ("", True), found


def test_every_rule_is_either_needed_or_said_to_be_redundant() -> None:
    assert NEEDED.keys() | REDUNDANT.keys() == RULES.keys()
    assert not NEEDED.keys() & REDUNDANT.keys()


@pytest.mark.parametrize("rule", NEEDED)
def test_without_a_rule_the_model_finds_the_damage(rule: str) -> None:
    needed, model = NEEDED[rule], Model(frozenset({rule}))
    start = _start(needed, model)

    found = explore(model, start, symmetric="all" if needed.is_founded else "but the first")

    assert needed.damage in found.violation, found
    assert len(found.trace) == found.depth - 1  # the last step is the one that breaks it
    with pytest.raises(Violation, match=needed.damage):
        list(model.steps(walk(model, start, found.trace)))


@pytest.mark.parametrize("rule", REDUNDANT)
@pytest.mark.slow
def test_without_a_redundant_rule_nothing_breaks(rule: str) -> None:
    needed, model = REDUNDANT[rule], Model(frozenset({rule}))

    found = explore(model, _start(needed, model))

    assert (found.violation, found.complete) == ("", True), found


def test_symmetric_states_are_one() -> None:
    left = Left(terms=1, writes=1)
    merged, half, whole = (
        explore(Model(), founded(left), symmetric=symmetric)
        for symmetric in ("all", "but the first", "none")
    )

    assert (merged.complete, half.complete, whole.complete) == (True, True, True)
    assert merged.depth == half.depth == whole.depth
    assert merged.states < half.states < whole.states <= 6 * merged.states


def test_a_bound_of_states_ends_the_search_and_is_told() -> None:
    found = explore(Model(), founded(Left(terms=2)), states_max=100)

    assert not found.complete
    assert 100 <= found.states < 200


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("left", LARGE, ids=str)
def test_nothing_breaks_by_the_rules_within_large_bounds(left: Left) -> None:
    found = explore(Model(), founded(left))

    assert (found.violation, found.complete) == ("", True), found


@pytest.mark.parametrize(
    ("options", "status", "said"),
    [
        (["--terms", "1"], 0, "nothing is broken"),
        (["--terms", "2", "--without", "commit-proved"], 1, "applies another entry"),
        (["--terms", "2", "--states", "10"], 2, "not all"),
        (["--rules"], 0, "own-no-op"),
        (["--without", "gravity"], 2, ""),
    ],
)
def test_the_command_says_what_was_found(options: list[str], status: int, said: str) -> None:
    result = CliRunner().invoke(main, options)

    assert result.exit_code == status, result.output
    assert said in result.stdout
