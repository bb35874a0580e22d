"""What is particular about a run: the small things that it had and others had not.

What lives here: features, each a short text, of three kinds: two events in a row at one place, an
abstract state of a node, and a fault together with the state of the node that it struck. What must
not: lines of code (lines.py), the states that people care for by name (coverage.py), any choice of
plans (guided.py).

A search that keeps the plans of runs with new features, and varies these, comes to corners that
independent plans reach once in thousands; see docs/simulation.md.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from typing import Any, Final

from chaos.simulation.world.node import SimNode
from chaos.simulation.world.world import World

LEVELS: Final = (0, 1, 4, 16, 64)  # amounts that count as different: none, one, a few, many …
# What tells events of one kind apart. Anything that grows, a term or an index, would make every
# run particular.
TELLING: Final = ("role", "name", "error", "f", "duplicate", "what")
SILENT: Final = frozenset({"apply", "proposed"})  # between any two events there are some


class Features:
    """Collects the features of a run in `seen`."""

    def __init__(self, world: World) -> None:
        self.seen: set[str] = set()
        self._world = world
        self._last: dict[str, str] = {}  # place -> its latest event
        self._states: dict[str, tuple[object, ...]] = {}
        self._figures: dict[str, Figures] = {}  # of which each was told
        world.observers.append(self._observe)
        world.watchers.append(self._turned)

    def _observe(self, kind: str, fields: Mapping[str, Any]) -> None:
        if kind in SILENT:
            return
        place = str(fields.get("node") or fields.get("client") or "")
        event = " ".join([kind, *(str(fields[name]) for name in TELLING if name in fields)])
        self.seen.add(f"{self._last.get(place, 'nothing')}, then {event}")
        self._last[place] = event
        if kind == "fault":
            struck = self._states.get(str(fields.get("args", {}).get("node", "")))
            self.seen.add(f"{event} at {struck}")

    def _turned(self, node: SimNode) -> None:
        figures = _figures(node, self._world)
        if self._figures.get(node.member) == figures:
            return
        self._figures[node.member] = figures
        self._states[node.member] = state = _state(figures)
        self.seen.add(f"state {state}")


Figures = tuple[Any, ...]


def _figures(node: SimNode, world: World) -> Figures:
    """Return what a state is told from, as it is had: a turn changes it seldom."""
    up = 0
    for other in world.nodes.values():
        up += other.replica is not None
    around = (up, bool(world.doubles), tuple(node.disk_faults))
    member = node.as_member
    if member is None:
        return (*around, node.replica is None)
    raft, journal = member.raft, member.journal
    last, commit = journal.last_index, raft.commit_index
    return (
        *around,
        raft.role,
        raft.serving,
        bool(raft.leader),
        node.disk_low,
        journal.first_index > 1,
        bisect_right(LEVELS, last - commit),
        bisect_right(LEVELS, commit - raft.applied_index),
        bisect_right(LEVELS, last - node.durable_index),
    )


def _state(figures: Figures) -> tuple[object, ...]:
    up, doubles, faults, *rest = figures
    around = (up, "doubles" if doubles else "", *sorted(faults))
    if len(rest) == 1:
        return ("down" if rest[0] else "joining", *around)
    role, serves, knows, low, compacted, uncommitted, to_apply, to_sync = rest
    return (
        role,
        "serves" if serves else "",
        "knows a leader" if knows else "",
        "low disk" if low else "",
        "compacted" if compacted else "",
        f"{uncommitted} uncommitted",
        f"{to_apply} to apply",
        f"{to_sync} to sync",
        *around,
    )
