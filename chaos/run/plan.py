"""What one run is to be: an experiment, a seed, a directory.

What lives here: `RunPlan`. What must not: carrying it out (runner.py, simulated.py).
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from chaos.spec.experiment import Experiment, FaultWindow, schedule

START_S_EXPECTED: Final = 6.0
HEAL_S_EXPECTED: Final = 4.0


@dataclass(frozen=True, kw_only=True)
class RunPlan:
    """What is to be run; `run_id` and everything random but the clock's readings follow from it."""

    experiment: Experiment
    seed: int
    duration_s: float
    directory: Path
    run_id: str = field(default_factory=lambda: str(uuid.uuid4()))

    @property
    def windows(self) -> list[FaultWindow]:
        """The fault windows, the same for the same seed."""
        return schedule(self.experiment, self.duration_s, self.seed)

    @property
    def faulty_s(self) -> float:
        """How long the windows take, or the run's duration if that is longer."""
        return max(self.duration_s, sum(w.hold_s + w.quiet_s for w in self.windows))

    @property
    def expected_s(self) -> float:
        """How long the run will take, about."""
        steady_s = self.experiment.phases.steady_s
        return 2 * START_S_EXPECTED + steady_s + self.faulty_s + 4 * HEAL_S_EXPECTED
