"""What is known of each mutant: a file of JSON lines, which a run goes on with.

What lives here: the verdicts and their file. What must not: how one comes about (runner.py).

A line is appended when a mutant is through, so that whatever ends a run costs only what was under
way. The last line of a mutant counts, as long as neither it nor its file has changed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from chaos.mutation.mutants import MutationError
from chaos.mutation.stages import StageBounds

KILLED: Final = "killed"
SURVIVED: Final = "survived"
EQUIVALENT: Final = "equivalent"
SIMULATION: Final = "simulation"
TESTS: Final = "tests"
BASELINE: Final = "(baseline)"
VERDICTS: Final = (KILLED, SURVIVED, EQUIVALENT)


@dataclass(frozen=True, slots=True)
class MutantResult:
    """What became of a mutant.

    `by`: the stage that noticed it, "" if none did; `what`, `seed`, `seeds`, `detail`: as in
    stages.Seen. `asked`: how many seeds were to run; time may have ended them. `tests`: whether the
    tests ran, or need not. `fingerprint`: of what was run.
    """

    name: str
    fingerprint: str
    verdict: str
    by: str
    what: str
    seed: int | None
    seeds: int
    asked: int
    tests: bool
    seconds: float
    detail: str = ""

    def __post_init__(self) -> None:
        assert self.verdict in VERDICTS, self.verdict
        assert bool(self.by) == (self.verdict == KILLED), self

    def answers(self, bounds: StageBounds) -> bool:
        """Return whether a run within these bounds would say nothing new."""
        if self.by == SIMULATION:
            return True
        is_tested = self.verdict == KILLED or self.tests >= bounds.tests
        return self.asked >= bounds.seeds and is_tested


class Ledger:
    """The results in a file. Raises MutationError for a file that is something else."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._results: dict[str, MutantResult] = {}
        for number, line in enumerate(self._lines(), 1):
            try:
                result = MutantResult(**json.loads(line))
            except (json.JSONDecodeError, TypeError, AssertionError) as error:
                raise MutationError(f"{path}:{number} is no result: {error}") from None
            self._results[result.name] = result

    def _lines(self) -> Iterable[str]:
        """Return the whole lines; what a kill has left of one is cut off."""
        if not self._path.exists():
            return []
        text = self._path.read_text(encoding="utf-8")
        whole, _, rest = text.rpartition("\n")
        if rest:
            self._path.write_text(f"{whole}\n" if whole else "", encoding="utf-8")
        return whole.splitlines()

    def known(self, name: str, fingerprint: str) -> MutantResult | None:
        """Return what is known of a mutant as it is, None if nothing is."""
        result = self._results.get(name)
        return result if result is not None and result.fingerprint == fingerprint else None

    def add(self, result: MutantResult) -> None:
        """Append a result."""
        self._results[result.name] = result
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(result)) + "\n")
