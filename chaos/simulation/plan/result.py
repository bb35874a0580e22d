"""What a run comes to, as data that goes between processes and into JSON.

What lives here: a failure, a result, and what a hunt for a planted bug comes to. What must not: how
a run is made (run.py) or judged (invariants.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Literal

from chaos.simulation.plan.plan import Plan

BROKEN: Final = "simulator"  # the `check` of a failure that is the simulator's own
LOST: Final = "worker"  # and of a run whose process died or did not come to an end

Verdict = Literal["clean", "failed", "broken"]


@dataclass(frozen=True, slots=True)
class Failure:
    """What a check has seen: the check's name, what is wrong, and when (virtual seconds)."""

    check: str
    text: str
    at_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Result:
    """A run's outcome, the same whenever the plan and the code are, but for `real_s`.

    `hash`: over all that happened. `events`: how many events of each kind. `coverage`: how often
    each interesting state was reached. `features`: see features.py. `lines`: of the product that
    ran, by module, where that was asked for. `real_s`: what the run took on this machine.
    """

    plan: Plan
    failures: tuple[Failure, ...] = ()
    hash: str = ""
    events: Mapping[str, int] = field(default_factory=dict)
    coverage: Mapping[str, int] = field(default_factory=dict)
    simulated_s: float = 0.0
    real_s: float = 0.0
    features: frozenset[str] = frozenset()
    lines: Mapping[str, frozenset[int]] = field(default_factory=dict)

    @property
    def seed(self) -> int:
        """The plan's seed."""
        return self.plan.seed

    @property
    def verdict(self) -> Verdict:
        """`broken` when nothing but the simulator failed: never a pass, nor a finding."""
        if self.checks <= {BROKEN, LOST}:
            return "broken" if self.failures else "clean"
        return "failed"

    @property
    def checks(self) -> frozenset[str]:
        """The names of the checks that failed."""
        return frozenset(failure.check for failure in self.failures)

    def as_dict(self) -> dict[str, Any]:
        """Return the result as JSON types, without features and lines, which are many.

        The plan is there only when something failed.
        """
        fields = asdict(self) | {"seed": self.seed, "verdict": self.verdict}
        del fields["features"], fields["lines"]
        if not self.failures:
            del fields["plan"]
        return fields


@dataclass(frozen=True, slots=True)
class Quarry:
    """What a hunt for a planted bug came to after `runs` runs.

    `seed`: of the run in which `checks`, meant to see the bug, did; None and () if there is none.
    `others`: checks that failed before and are not meant to.
    """

    bug: str
    seed: int | None
    checks: tuple[str, ...]
    runs: int
    elapsed_s: float
    others: frozenset[str] = frozenset()

    def as_dict(self) -> dict[str, Any]:
        """Return the hunt as JSON types."""
        rest = {"others": sorted(self.others), "elapsed_s": round(self.elapsed_s, 1)}
        return asdict(self) | {"checks": list(self.checks)} | rest
