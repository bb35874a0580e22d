"""Whom a fault hits: choices of nodes. Nothing else lives here; nothing happens to anybody yet."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final

from chaos.targets import Breakable, await_leader

LEADER_S_MAX: Final = 15.0  # after the fault before: an election and a slow restart

Whom = Callable[[Breakable, random.Random], list[str]]


def leader(target: Breakable, dice: random.Random) -> list[str]:
    """Return the leader alone. Raises TargetError when none is elected in time."""
    return [await_leader(target, LEADER_S_MAX)]


def follower(target: Breakable, dice: random.Random) -> list[str]:
    """Return any node but the leader; of a single node, that one."""
    led = leader(target, dice)
    return [dice.choice([node for node in target.nodes if node not in led] or led)]


def anyone(target: Breakable, dice: random.Random) -> list[str]:
    """Return the leader about as often as all others together."""
    return dice.choice((leader, follower))(target, dice)


def minority(target: Breakable, dice: random.Random) -> list[str]:
    """Return as many as may be missing, whoever they are."""
    return dice.sample(target.nodes, max(1, (len(target.nodes) - 1) // 2))


def majority(target: Breakable, dice: random.Random) -> list[str]:
    """Return just so many that the others are no majority."""
    return dice.sample(target.nodes, len(target.nodes) // 2 + 1)


def everyone(target: Breakable, dice: random.Random) -> list[str]:
    """Return every node."""
    return list(target.nodes)


def in_any_order(target: Breakable, dice: random.Random) -> list[str]:
    """Return every node, in an order of the dice."""
    return dice.sample(target.nodes, len(target.nodes))


def one_or_all(target: Breakable, dice: random.Random) -> list[str]:
    """Return one node, or now and then every one."""
    return dice.choice((anyone, anyone, everyone))(target, dice)
