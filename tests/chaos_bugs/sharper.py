"""Bugs that show more often than the simulator's of the same rule, for runs that are few.

What lives here: sabotages that the simulator does not need. What must not: what finds them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from pysyncobj import SyncObj

from chaos.simulation.bugs import Bug
from chaos.simulation.bugs.registry import Patches

_set_term: Final = SyncObj._SyncObj__setCurrentTerm


def votes_are_forgotten(patches: Patches) -> None:
    """Forget at once who got the vote: the next one that asks in the same term gets it as well."""

    def set_term(core: Any, term: int, vote: str | None) -> None:
        _set_term(core, term, None)

    patches.attribute(SyncObj, "_SyncObj__setCurrentTerm", set_term)


def _bug(plant: Callable[[Patches], None], rule: str) -> Bug:
    name = plant.__name__.replace("_", "-")
    what = " ".join((plant.__doc__ or "").split())
    return Bug(name, rule, what, frozenset({"leaders"}), 1, "safety", None, plant)


SHARPER: Final[Mapping[str, Bug]] = {
    found.name: found for found in (_bug(votes_are_forgotten, "5: one vote a term"),)
}
