"""What sabotage is: a change of a legal history that breaks one sentence of the specification.

What lives here: the register, and what is asked of a judge. What must not: the changes themselves.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.judges.history import MadeHistory

INVALID, UNKNOWN = "invalid", "unknown"
Change = Callable[[MadeHistory, random.Random], None]
Damage = Callable[[Path, MadeHistory, random.Random], None]


class NoRoom(Exception):
    """A history has no room for a change."""


def need(is_there: object) -> None:
    """Raise NoRoom unless what a change needs is there."""
    if not is_there:
        raise NoRoom


@dataclass(frozen=True)
class Kind:
    """`check`: what has to find it, and the first word of the row's `detail`, if it has one that
    tells. With neither: the verdict is `unknown`, not `invalid`, whatever else.

    `change` raises NoRoom where the history has no room for it. `damage` changes the directory that
    was written, and raises the same.
    """

    name: str
    sentence: str
    check: str
    word: str
    change: Change | None
    damage: Damage | None = None

    @property
    def verdict(self) -> str:
        """What it must come to."""
        return INVALID if self.check else UNKNOWN


KINDS: Final[dict[str, Kind]] = {}


def breaks(name: str, check: str, sentence: str, word: str = "") -> Callable[[Change], Change]:
    """Register a change that a check must find."""

    def register(change: Change) -> Change:
        assert name not in KINDS, name
        KINDS[name] = Kind(name, sentence, check, word, change)
        return change

    return register


def hides(name: str, sentence: str) -> Callable[[Change], Change]:
    """Register a change of rows after which a judge can't say `valid`, nor `invalid`."""

    def register(change: Change) -> Change:
        assert name not in KINDS, name
        KINDS[name] = Kind(name, sentence, "", "", change)
        return change

    return register


def damages(name: str, sentence: str) -> Callable[[Damage], Damage]:
    """Register a change of files after which a judge can't say `valid`, nor `invalid`."""

    def register(damage: Damage) -> Damage:
        assert name not in KINDS, name
        KINDS[name] = Kind(name, sentence, "", "", None, damage)
        return damage

    return register
