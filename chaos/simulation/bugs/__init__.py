"""Planted bugs: sabotages of single rules, to see that the simulator's checks would find them.

What lives here: one module a seam, and `BUGS`, the list of all. What must not: the checks
(invariants.py), the campaign over the bugs (campaign.py).
"""

from chaos.simulation.bugs import (
    acts,
    answers,
    client,
    compaction,
    delayed,
    expiry,
    files,
    groups,
    idle,
    journal,
    key_order,
    levels,
    members,
    messages,
    patterns,
    properties,
    refusals,
    scrubbing,
    store,
    topics,
    turns,
    users,
    wire,
    work,
)
from chaos.simulation.bugs.registry import BUGS, SEEDS_MAX, Bug

__all__ = [
    "BUGS",
    "SEEDS_MAX",
    "Bug",
    "acts",
    "answers",
    "client",
    "compaction",
    "delayed",
    "expiry",
    "files",
    "groups",
    "idle",
    "journal",
    "key_order",
    "levels",
    "members",
    "messages",
    "patterns",
    "properties",
    "refusals",
    "scrubbing",
    "store",
    "topics",
    "turns",
    "users",
    "wire",
    "work",
]
