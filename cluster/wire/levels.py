"""Feature levels: what a build understands, and when a cluster's level may be raised.

What lives here: the range of levels of this build, and pure judgments on ranges. What must not: how
a level gets into the log (commands.py, member.py, store.py), messages, sockets, clocks.

A level is a small number for everything that nodes write into the log or say to each other. A
cluster has one, in its replicated state; nothing that needs a higher one is written before the
level is raised. Decision: docs/decisions/0006-feature-levels.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from flotilla_client.protocol import LEVEL_MAX as LEVEL_MAX
from flotilla_client.version import VERSION

LEVEL_FIRST: Final = 1  # of a cluster whose level was never raised: all that version 0.1 knows
LEVEL_OF_LEVELS: Final = 2  # entries that raise the level
LEVEL_OF_USERS: Final = 3  # who asked for what stands in entries, and who may (decision 0014)
LEVEL_OF_IDLE: Final = 3  # the log's time, and clients that are forgotten
LEVEL_OF_AUDIT: Final = 3  # the running digest of the state
LEVEL_OF_ACTS: Final = 3  # what administrators do stands in entries, and in a history of acts
LEVEL_OF_TOPICS: Final = 4  # topics have policies; subscriptions begin where they are told to
LEVEL_OF_PROPERTIES: Final = 4  # publications have times, keys and headers
LEVEL_OF_GROUPS: Final = 4  # several clients share a subscription
LEVEL_OF_NAMES: Final = 4  # clients may name themselves
LEVEL_OF_PATTERNS: Final = 4  # a subscription to all topics of a pattern
LEVEL_OF_KEY_ORDER: Final = 5  # groups that give the publications of one key one by one
LEVEL_OF_GROUP_STARTS: Final = 5  # groups begin where they are told to, and are moved
LEVEL_OF_EXPIRY: Final = 5  # publications expire
LEVEL_OF_DELAY: Final = 5  # publications wait until they are due
LEVEL_OF_COMPACTION: Final = (
    5  # of topics that are compacted the last publication of each key stays
)
LEVEL_OF_DEAD_LETTERS: Final = 5  # a topic's policy says where its groups' dead letters go

# What a level allows, for people: (the version that brought it, what may stand in the log from it
# on). docs/deploy.md shows it.
ALLOWED: Final[Mapping[int, tuple[str, str]]] = {
    1: ("0.1", "everything that 0.1 writes"),
    2: ("0.2", "the entry that raises the level: 0.1 can't take part any more"),
    3: ("0.3", "users and what each may do, acts and their history, silent clients, the audit"),
    4: ("0.4", "topics' policies, times, keys and headers, groups, names, patterns"),
    5: (
        "0.4",
        "groups ordered by key, or moved; publications that expire, or are delayed; topics' dead"
        " letters; topics that are compacted",
    ),
}


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
BUILD: Final = Build(VERSION, LEVEL_FIRST, LEVEL_OF_EXPIRY)


class UnsupportedLevel(Exception):
    """This build can't take part in its cluster: the node must stop, and another build start."""

    def __init__(self, what: str, level: int, build: Build) -> None:
        super().__init__(
            f"{what} level {level}; this is {build}. "
            "Start this node with a build that understands that level; its data stays as it is."
        )


@dataclass(frozen=True, slots=True)
class Sighting:
    """What a node knows of another member's program.

    `build` None: never seen. `linked`: it is connected, and a member. `silent_s`: for how long it
    has not been connected, 0.0 while it is, and since this node's start if it never was.
    """

    build: Build | None
    linked: bool
    silent_s: float


def level_to_reach(mine: Build, others: Mapping[str, Sighting]) -> int:
    """Return the highest level that any member's build understands: all are meant to get there."""
    builds = [sighting.build for sighting in others.values() if sighting.build is not None]
    return max(build.level_max for build in (mine, *builds))


def objections(level: int, name: str, mine: Build, others: Mapping[str, Sighting]) -> list[str]:
    """Return why the cluster's level can't be raised to `level` now, [] if it can.

    `name` and `mine` are the leader's. Every member has to be connected at this moment: one that is
    away could come back with any build.
    """
    reasons = [] if mine.understands(level) else [f"{name} runs {mine}"]
    for member, sighting in others.items():
        if sighting.build is None:
            reasons.append(f"{member} has not been seen since {name} started")
        elif sighting.silent_s:
            reasons.append(f"{member} has not been seen for {sighting.silent_s:.0f} s")
        elif not sighting.build.understands(level):
            reasons.append(f"{member} runs {sighting.build}")
        elif not sighting.linked:
            reasons.append(f"{member} is connected, and no member yet")
    return reasons
