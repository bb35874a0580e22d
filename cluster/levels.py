"""Feature levels: what a build understands, and what it says of itself to the other nodes.

What lives here: the range of levels of this build. What must not: how a cluster's level is raised
(replica.py, store.py), messages, sockets.

A level is a small number for everything that nodes write into the log or say to each other. A
cluster has one; nothing that needs a higher one is written before the cluster's level is raised.
Decision: docs/decisions/0006-feature-levels.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import version
from typing import Final

LEVEL_FIRST: Final = 1  # of a cluster whose level was never raised: all that version 0.1 knows


@dataclass(frozen=True, slots=True)
class Build:
    """A program's version and the levels that it understands, `level_min` to `level_max`.

    `version` is for people. "": one that says nothing of itself, as 0.1 did.
    """

    version: str
    level_min: int
    level_max: int

    def understands(self, level: int) -> bool:
        """Return whether a node of this build can be a member of a cluster at that level."""
        return self.level_min <= level <= self.level_max

    def __str__(self) -> str:
        name = f"version {self.version}" if self.version else "a version that names no levels (0.1)"
        return f"{name}, which understands levels {self.level_min} to {self.level_max}"


BUILD_0_1: Final = Build("", LEVEL_FIRST, LEVEL_FIRST)
BUILD: Final = Build(version("flotilla"), LEVEL_FIRST, LEVEL_FIRST)
