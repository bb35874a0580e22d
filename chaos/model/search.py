"""The search: every state that can be reached, breadth first, symmetric ones once.

What lives here: the queue, the fingerprints, the shortest way to a violation. What must not: what a
step is (world.py).

As in TLC a state is remembered by its fingerprint (64 bits): of a million states two have the same
with a chance of one in thirty million. States that differ only in who is called what are the same
state; which names may change places is for the caller to say.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import permutations
from typing import Final, Literal, TypeAlias

from chaos.model.world import ADMIT, NOBODY, NODES, TWIN, Model, ModelNode, ModelState, Violation

Permutation: TypeAlias = tuple[int, int, int]
Symmetry: TypeAlias = Literal["all", "but the first", "none"]
_RENAMINGS: Final[dict[Symmetry, tuple[Permutation, ...]]] = {
    "all": tuple((a, b, c) for a, b, c in permutations(NODES)),
    "but the first": ((0, 1, 2), (0, 2, 1)),
    "none": ((0, 1, 2),),
}
STATES_MAX: Final = 20_000_000  # about 3 GB


@dataclass(frozen=True)
class SearchResult:
    """What a search has found. `trace`: the steps to the violation, "" and () without one.

    `states`: different ones; `depth`: steps to the last. `complete`: there are no others.
    """

    states: int
    depth: int
    complete: bool
    violation: str = ""
    trace: tuple[str, ...] = ()


def explore(
    model: Model,
    start: ModelState,
    *,
    symmetric: Symmetry = "all",
    states_max: int = STATES_MAX,
    told: Callable[[int, int], None] = lambda states, depth: None,
) -> SearchResult:
    """Explore all states from `start`; `told(states, depth)` hears of each depth.

    `symmetric`: whose names may change places. Not the first one's where the smallest name founds.
    """
    renamings = _RENAMINGS[symmetric]
    seen = {_fingerprint(start, renamings)}
    parents: list[int] = [NOBODY]
    labels: list[str] = [""]
    frontier: list[tuple[int, ModelState]] = [(0, start)]
    depth = 0
    while frontier:
        following: list[tuple[int, ModelState]] = []
        for number, world in frontier:
            try:
                for label, later in model.steps(world):
                    after = model.without_what_is_too_late(later)
                    mark = _fingerprint(after, renamings)
                    if mark in seen:
                        continue
                    seen.add(mark)
                    following.append((len(parents), after))
                    parents.append(number)
                    labels.append(label)
            except Violation as violation:
                trace = _trace(parents, labels, number)
                return SearchResult(len(seen), depth + 1, False, str(violation), trace)
            if len(seen) >= states_max:
                return SearchResult(len(seen), depth, False)
        frontier = following
        depth += 1
        told(len(seen), depth)
    return SearchResult(len(seen), depth - 1, True)


def walk(model: Model, start: ModelState, labels: Sequence[str]) -> ModelState:
    """Return the state behind these steps, from which a search may begin. Raises KeyError."""
    for label in labels:
        start = model.without_what_is_too_late(dict(model.steps(start))[label])
    return start


def _trace(parents: Sequence[int], labels: Sequence[str], number: int) -> tuple[str, ...]:
    steps: list[str] = []
    while parents[number] != NOBODY:
        steps.append(labels[number])
        number = parents[number]
    return tuple(reversed(steps))


def _fingerprint(world: ModelState, renamings: Sequence[Permutation]) -> int:
    """Return a number that symmetric states have in common.

    Of the renamings those are compared that put the nodes in the order of what they are without
    names; most states leave one.
    """
    marks = [_mark(node) for node in world.nodes[:TWIN]]
    best = min(_in_order(marks, renaming) for renaming in renamings)
    return min(
        hash(_renamed(world, renaming))
        for renaming in renamings
        if _in_order(marks, renaming) == best
    )


def _in_order(marks: Sequence[int], renaming: Permutation) -> tuple[int, ...]:
    """Return the marks as they stand once each node has its new place."""
    row = [0, 0, 0]
    for node, place in enumerate(renaming):
        row[place] = marks[node]
    return tuple(row)


@lru_cache(maxsize=1_000_000)  # nodes come again in many states
def _mark(node: ModelNode) -> int:
    """Return a number for what a node is, whoever it and the others are called."""
    log = tuple((entry[0], entry[1]) for entry in node.log)
    rows = tuple(tuple(sorted(row)) for row in (node.match, node.answers, node.views))
    plain = node.incarnation, node.started, node.term, node.commit, node.role, node.read
    return hash((plain, node.base[:2], log, rows))


def _renamed(world: ModelState, renaming: Permutation) -> tuple[object, ...]:
    if renaming == (0, 1, 2):
        return world
    places = (*renaming, TWIN)
    nodes: list[object] = [None] * len(world.nodes)
    for number, node in enumerate(world.nodes):
        nodes[places[number]] = _node_renamed(node, renaming)
    replies = frozenset(
        (kind, term, places[to], places[sender], *rest)
        for kind, term, to, sender, *rest in world.replies
    )
    committed = tuple(_entry_renamed(entry, renaming) for entry in world.committed)
    leaders = tuple(each if each == NOBODY else places[each] for each in world.leaders)
    twin_of = NOBODY if world.twin_of == NOBODY else renaming[world.twin_of]
    rest = replies, committed, world.committed_in, leaders, world.left, twin_of
    return tuple(nodes), *rest


def _node_renamed(node: ModelNode, renaming: Permutation) -> ModelNode:
    base, copy = node.base, node.copy
    votes = sum(1 << renaming[each] for each in NODES if node.votes & 1 << each)
    return node._replace(
        vote=node.vote if node.vote in (NOBODY, TWIN) else renaming[node.vote],
        base=(base[0], base[1], _moved(base[2], renaming)),
        log=tuple(_entry_renamed(entry, renaming) for entry in node.log),
        founding=None if node.founding is None else _moved(node.founding, renaming),
        views=_moved(node.views, renaming),
        votes=votes,
        match=_moved(node.match, renaming),
        answers=_moved(node.answers, renaming),
        copy=None if copy is None else (copy[0], copy[1], _moved(copy[2], renaming)),
    )


def _moved(row: tuple[int, int, int], renaming: Permutation) -> tuple[int, int, int]:
    moved = [0, 0, 0]
    for each in NODES:
        moved[renaming[each]] = row[each]
    return moved[0], moved[1], moved[2]


def _entry_renamed(
    entry: tuple[int, int, int, int], renaming: Permutation
) -> tuple[int, int, int, int]:
    if entry[1] != ADMIT:
        return entry
    return entry[0], entry[1], renaming[entry[2]], entry[3]
