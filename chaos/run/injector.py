"""The faults of a window, whoever they are done to: nodes of a target, or clients of a run.

What lives here: which of the two a name means, and that the faults of one window hit different
victims. What must not: when a window opens and closes, and what is recorded of it (runner.py,
simulated_windows.py).
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Final

from chaos.faults import FAULTS
from chaos.run.client_faults import CLIENT_FAULTS, HarmableClients
from chaos.targets import Breakable

JOINT: Final = " + "  # between the names of faults of one window
DRAWS_MAX: Final = 10  # of victims; two faults of the leader have no other


class Injector:
    """Does the faults of windows. `rng` decides all that is random; methods as in faults.Fault."""

    def __init__(self, target: Breakable, pool: HarmableClients, rng: random.Random) -> None:
        self._target, self._pool, self._rng = target, pool, rng

    def choose(self, names: Sequence[str]) -> dict[str, list[str]]:
        """Return the victims of each fault, no two faults with the same if that can be.

        A node that one fault has killed feels nothing of another: it would not have happened.
        """
        chosen: dict[str, list[str]] = {}
        for name in names:
            taken = set(everybody(chosen))
            for _ in range(DRAWS_MAX):
                chosen[name] = self._choose(name)
                if taken.isdisjoint(chosen[name]):
                    break
        return chosen

    def _choose(self, name: str) -> list[str]:
        if name in CLIENT_FAULTS:
            return CLIENT_FAULTS[name].choose(self._pool, self._rng)
        return FAULTS[name].choose(self._target, self._rng)

    def inject(self, name: str, victims: list[str]) -> None:
        """Do it."""
        if name in CLIENT_FAULTS:
            CLIENT_FAULTS[name].inject(self._pool, victims, self._rng)
        else:
            FAULTS[name].inject(self._target, victims, self._rng)

    def heal(self, name: str, victims: list[str]) -> None:
        """Undo it."""
        if name in CLIENT_FAULTS:
            CLIENT_FAULTS[name].heal(self._pool, victims)
        else:
            FAULTS[name].heal(self._target, victims)


def everybody(chosen: Mapping[str, Sequence[str]]) -> list[str]:
    """Return all victims, each once."""
    return list(dict.fromkeys(one for victims in chosen.values() for one in victims))
