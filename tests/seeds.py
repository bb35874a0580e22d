"""How many seeds a random test tries: a few in `make test`, all of them in `make test-deep`."""

from __future__ import annotations

import pytest


def seeds(quick: int, deep: int) -> list[object]:
    """Return the first `deep` seeds as parameters; those from `quick` on are slow."""
    more = (pytest.param(seed, marks=pytest.mark.slow) for seed in range(quick, deep))
    return [*range(quick), *more]
