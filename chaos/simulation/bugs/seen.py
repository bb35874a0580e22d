"""Where each planted bug was first seen: what the last whole hunt has measured.

What lives here: figures for docs/simulation.md. What must not: anything that a hunt looks at: it
begins at seed 1 whatever stands here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

# Name -> the first seed with a failure of a check that is meant to see it, and those checks.
FIRST_SEEN: Final[Mapping[str, tuple[int, tuple[str, ...]]]] = {
    "silence-counts-as-refusal": (1, ("subscription",)),
    "cursor-moves-too-far": (1, ("gap", "lost")),
    "sync-without-the-disk": (1, ("durable",)),
    "wiped-nodes-count-at-once": (1, ("digest",)),
    "an-empty-founder-founds-again": (1, ("digest", "progress")),
    "nobody-is-readmitted": (1, ("progress",)),
    "counter-gaps-are-accepted": (12, ("inconsistent_id", "reordered")),
    "cursors-move-back": (5, ("cursor",)),
    "floor-is-the-fastest-cursor": (1, ("unexpected",)),
    "ids-restart-with-the-topic": (1, ("stale_read",)),
    "one-node-applies-backwards": (4, ("digest",)),
    "everything-leaves-before-the-sync": (3, ("durable",)),
    "leader-commits-alone": (1, ("durable",)),
    "followers-stick-to-their-leader": (2, ("progress",)),
    "applied-index-stays-behind": (1, ("ended",)),
    "uncertain-counts-as-refused": (9, ("definite",)),
    "parked-gets-hear-too-early": (6, ("inconsistent_id",)),
    "stock-pysyncobj": (1, ("durable",)),
}
