"""Whom a fault hits: choices of nodes. Nothing else lives here; nothing happens to anybody yet."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final

from chaos.targets import Breakable, await_leader

LEADER_S_MAX: Final = 15.0  # after the fault before: an election and a slow restart

Whom = Callable[[Breakable, random.Random], list[str]]


def leader(target: Breakable, rng: random.Random) -> list[str]:
    """Return the leader alone. Raises TargetError when none is elected in time."""
    return [await_leader(target, LEADER_S_MAX)]


def follower(target: Breakable, rng: random.Random) -> list[str]:
    """Return any node but the leader; of a single node, that one."""
    led = leader(target, rng)
    return [rng.choice([node for node in target.nodes if node not in led] or led)]


def anyone(target: Breakable, rng: random.Random) -> list[str]:
    """Return the leader about as often as all others together."""
    return rng.choice((leader, follower))(target, rng)


def minority(target: Breakable, rng: random.Random) -> list[str]:
    """Return as many as may be missing, whoever they are."""
    return rng.sample(target.nodes, max(1, (len(target.nodes) - 1) // 2))


def majority(target: Breakable, rng: random.Random) -> list[str]:
    """Return just so many that the others are no majority."""
    return rng.sample(target.nodes, len(target.nodes) // 2 + 1)


def everyone(target: Breakable, rng: random.Random) -> list[str]:
    """Return every node."""
    return list(target.nodes)


def in_any_order(target: Breakable, rng: random.Random) -> list[str]:
    """Return every node, in an order of the rng."""
    return rng.sample(target.nodes, len(target.nodes))


def one_or_all(target: Breakable, rng: random.Random) -> list[str]:
    """Return one node, or now and then every one."""
    return rng.choice((anyone, anyone, everyone))(target, rng)
