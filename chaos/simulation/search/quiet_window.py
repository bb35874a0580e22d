"""A stretch of a schedule that one fault of several steps has alone, so that all of them come off.

What lives here: which actions would disturb, and a schedule without them for a while. What must
not: the drawing of either (swarm.py).

A seed has a dozen kinds of faults, each at its own times. A fault whose steps need a cluster that
is whole, as a member that is replaced while it lives, nearly always meets another one first: no
second process is started while a disk is lost, and no leader leads on who is killed. The more kinds
there are, the rarer are such situations. So they get a few seconds of their own in some seeds;
clients, links' conditions, administrators and chores go on meanwhile.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from chaos.simulation.plan.plan import Action

# An outage of all is rare, and may come all the same.
DISTURBING: Final = frozenset(
    {"clock_rate", "clog", "cut", "cut_one_way", "damage", "disconnect", "disk_free", "disk_full"}
    | {"disk_low", "double", "fsync_error", "install", "kill", "kill_source"}
    | {"lose_piece", "pause", "power_loss", "restart_all", "resume"}
    | {"slow_fsync", "stop", "transfer", "transfer_leader", "wipe"}
)


@dataclass(frozen=True, slots=True)
class QuietWindow:
    """From `begin_s` to `end_s` nothing disturbs but the fault's own `steps`; () for none."""

    begin_s: float
    end_s: float
    steps: tuple[Action, ...]

    def made_in(self, schedule: Sequence[Action], members: Sequence[str]) -> tuple[Action, ...]:
        """Return a schedule that has these steps, with room for them: all is mended before."""
        if not self.steps:
            return tuple(schedule)
        kept = [
            each
            for each in schedule
            if each.name not in DISTURBING
            or not self.begin_s <= each.at_s < self.end_s
            or each in self.steps
        ]
        mends: list[tuple[str, dict[str, Any]]] = [
            *(("disk_free", {"node": node}) for node in members),
            *(("slow_fsync", {"node": node, "ms": 0.0}) for node in members),
            *(("clock_rate", {"node": node, "rate": 1.0}) for node in members),
        ]
        again: list[tuple[str, dict[str, Any]]] = [("resume", {"node": "all"}), ("restart_all", {})]
        mended = [Action(self.begin_s, name, args) for name, args in [*mends, *again]]
        mended += [Action(self.end_s, name, args) for name, args in again]
        return tuple(sorted((*kept, *mended), key=lambda action: action.at_s))
