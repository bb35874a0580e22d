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


@dataclass(frozen=True)
class Kind:
    """`check`: what has to find it, and the first word of the row's `detail`, if it has one that
    tells. With neither: the verdict is `unknown`, not `invalid`, whatever else.

    `change` returns False where the history has no room for it. `damage` changes the directory that
    was written.
    """

    name: str
    sentence: str
    check: str
    word: str
    change: Callable[[MadeHistory, random.Random], bool] | None
    damage: Callable[[Path, MadeHistory, random.Random], bool] | None = None

    @property
    def verdict(self) -> str:
        """What it must come to."""
        return INVALID if self.check else UNKNOWN


KINDS: Final[dict[str, Kind]] = {}

Change = Callable[[MadeHistory, random.Random], bool]
Damage = Callable[[Path, MadeHistory, random.Random], bool]


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
