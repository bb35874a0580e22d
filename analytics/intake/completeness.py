"""Whether all of a run could be read, and which findings are proofs if it could not. No Spark.

A check whose rows rest on what is not there (check_specs.py: `needs_whole`) finds them as well
where a line could not be read. Lines that a killed process was writing last are no such: nobody
relied on them, and they weaken nothing.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from analytics.common.check_specs import CHECK_SPECS, Part
from analytics.common.verdict import CheckResult

TORN_MARK: Final = "\x18"  # ends a line that was cut off, when its process has come back
NO_PROOF: Final[Mapping[Part, str]] = {
    part: f"it rests on what is not there, and part of the {part} could not be read"
    for part in Part
}


@dataclass(frozen=True, slots=True)
class Completeness:
    """`damaged`: the parts of a run of which something could not be read."""

    damaged: frozenset[Part] = field(default_factory=frozenset)

    def no_proof(self, check: str) -> str | None:
        """Return why a row of a check proves nothing in this run; None if it does."""
        lacking = (part for part in CHECK_SPECS[check].needs_whole if part in self.damaged)
        return next((NO_PROOF[part] for part in lacking), None)

    def weighed(self, result: CheckResult) -> CheckResult:
        """Return `result` with what its rows are worth."""
        return replace(result, no_proof=self.no_proof(result.name)) if result.count else result


def unproven(results: Iterable[CheckResult]) -> tuple[str, ...]:
    """Return the reasons for doubt that lie in findings which are no proofs."""
    return tuple(
        f"{one.name} found {one.count:,}, which proves nothing: {one.no_proof}"
        for one in results
        if one.no_proof
    )


def completeness_of(history: Sequence[object], truth: Sequence[object]) -> Completeness:
    """Return what is whole, where `history` and `truth` are what is wrong with each of them."""
    parts = {Part.HISTORY: history, Part.TRUTH: truth}
    return Completeness(frozenset(part for part, wrong in parts.items() if wrong))
