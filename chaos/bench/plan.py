"""How much a run measures.

What lives here: the plan, as the command line made it. What must not: measuring.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class BenchPlan:
    """How much to measure. `seconds`: of each load; `kills`: of leaders; `seed`: of their times.

    `peers`: others' brokers, to be measured beside ours. `backlogs_mib`: unread in a topic, where
    that is measured. `is_plotted`: whether a page is to be made, for which more is measured.
    """

    seconds: float
    kills: int
    seed: int
    peers: tuple[str, ...] = ()
    backlogs_mib: tuple[int, ...] = (0, 64)
    is_plotted: bool = False
