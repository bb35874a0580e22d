"""What is particular about a run: the small things that it had and others had not.

What lives here: features, each a short text, of three kinds: two events in a row at one place, an
abstract state of a node, and a fault together with the state of the node that it struck. What must
not: lines of code (lines.py), the states that people care for by name (coverage.py), any choice of
plans (guided.py).

A search that keeps the plans of runs with new features, and varies these, comes to corners that
independent plans reach once in thousands; see docs/simulation.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from chaos.simulation.node import SimNode
from chaos.simulation.world import World

LEVELS: Final = (0, 1, 4, 16, 64)  # amounts that count as different: none, one, a few, many …
# What tells events of one kind apart. Anything that grows, a term or an index, would make every
# run particular.
TELLING: Final = ("role", "name", "error", "f", "duplicate", "what")
SILENT: Final = frozenset({"apply"})  # between any two events there are some


class Features:
    """Collects the features of a run in `seen`."""

    def __init__(self, world: World) -> None:
        self.seen: set[str] = set()
        self._world = world
        self._last: dict[str, str] = {}  # place -> its latest event
        self._states: dict[str, tuple[object, ...]] = {}
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
        state = _state(node, self._world)
        if self._states.get(node.member) != state:
            self._states[node.member] = state
            self.seen.add(f"state {state}")


def _state(node: SimNode, world: World) -> tuple[object, ...]:
    up = sum(other.up for other in world.nodes.values())
    around = (up, "doubles" if world.doubles else "", *sorted(node.disk_faults))
    replica = node.replica
    if replica is None or replica.raft is None:
        return ("down" if replica is None else "joining", *around)
    raft, journal = replica.raft, replica.journal
    return (
        raft.role,
        "serves" if raft.serving else "",
        "knows a leader" if raft.leader else "",
        "low disk" if replica.disk_low else "",
        "compacted" if journal.first_index > 1 else "",
        f"{_level(raft.uncommitted_entries)} uncommitted",
        f"{_level(raft.commit_index - raft.applied_index)} to apply",
        f"{_level(journal.last_index - node.durable_index)} to sync",
        *around,
    )


def _level(amount: int) -> int:
    return sum(amount >= level for level in LEVELS)
