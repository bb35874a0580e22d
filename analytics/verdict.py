"""What a check of a run comes to: the report's shape and the rule of the verdict. No Spark here."""

import enum
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Final

# Fewer, and a clean result says nothing about the cluster.
ACKNOWLEDGED_COUNT_MIN: Final = 1
DELIVERED_COUNT_MIN: Final = 1
WITNESS_COUNT_MAX: Final = 3  # a check's smallest ones; all of them are in DIR/parquet/evidence


class Verdict(enum.StrEnum):
    """`valid` is only said when everything was looked at and nothing was found."""

    VALID = "valid"
    UNKNOWN = "unknown"
    INVALID = "invalid"


EXIT_CODES: Final = {Verdict.VALID: 0, Verdict.INVALID: 1, Verdict.UNKNOWN: 2}


@dataclass(frozen=True, slots=True)
class Operation:
    """An operation in a history. `lines`: where its events stand, as `history/p.jsonl:12`."""

    process: str
    op_id: int
    lines: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Witness:
    """One row of evidence; fields as in `schema.EVIDENCE`, None where they don't apply."""

    run_id: str
    topic: str | None
    client_id: str | None
    id: int | None
    other_id: int | None
    producer: str | None
    counter: int | None
    detail: str | None
    operations: tuple[Operation, ...]


@dataclass(frozen=True, slots=True)
class CheckResult:
    """What a check found. `error` is set when it crashed: then it proves nothing."""

    name: str
    meaning: str
    count: int
    witnesses: tuple[Witness, ...]
    seconds: float
    error: str | None = None

    @property
    def verdict(self) -> Verdict:
        """`invalid` with evidence, `unknown` after a crash, else `valid`."""
        if self.count:
            return Verdict.INVALID
        return Verdict.VALID if self.error is None else Verdict.UNKNOWN


@dataclass(frozen=True, slots=True)
class Fault:
    """An injected fault. `blackout_ms`: the longest time without an acknowledged PUT in its window.

    The window ends with the next injection, with the phase `heal`, or with the history. None when
    nothing was acknowledged before it, or nothing in its second half: service did not come back.
    """

    name: str
    targets: tuple[str, ...]
    t_ns: int
    blackout_ms: float | None


@dataclass(frozen=True, slots=True)
class Observations:
    """Reported, not judged. Counts are of publications.

    `acknowledged`: put and confirmed, each once. `delivered`: handed to subscribers, repeats
    included. `recovered`: of unknown outcome, seen by someone later. `undrained`: subscriptions
    that never reached their topic's tombstone, as `client topic`. `unplaced_answers`: answers with
    publications but without the cursor or the topic that they were asked with.
    """

    acknowledged: int
    delivered: int
    recovered: int
    undrained_count: int
    undrained: tuple[str, ...]
    unplaced_answers: int
    faults: tuple[Fault, ...]
    rows: dict[str, int]

    def reasons(self) -> tuple[str, ...]:
        """Return why nothing found would prove nothing; empty when the run was good enough."""
        found = []
        if self.acknowledged < ACKNOWLEDGED_COUNT_MIN:
            found.append(f"{self.acknowledged} publications acknowledged: too few to judge")
        if self.delivered < DELIVERED_COUNT_MIN:
            found.append(f"{self.delivered} publications delivered: too few to judge")
        if self.undrained_count:
            names = ", ".join(self.undrained)
            found.append(f"drain incomplete: {self.undrained_count} subscriptions, such as {names}")
        if self.unplaced_answers:
            found.append(f"{self.unplaced_answers} answers lack the cursor or topic asked for")
        return tuple(found)


@dataclass(frozen=True, slots=True)
class Report:
    """All that is known of a run. `reasons`: why it can't be called valid, evidence apart."""

    directory: str
    run_id: str
    checks: tuple[CheckResult, ...]
    observations: Observations
    reasons: tuple[str, ...]
    lines: int
    torn_lines: int
    malformed_lines: int
    seconds: float

    @property
    def verdict(self) -> Verdict:
        """The worst of the checks' and the reasons': invalid over unknown over valid."""
        found = [check.verdict for check in self.checks]
        return worst([*found, Verdict.UNKNOWN] if self.reasons else found)

    def as_dict(self) -> dict[str, Any]:
        """Return the whole report as JSON types, verdicts included."""
        fields = asdict(self)
        fields["checks"] = [
            asdict(check) | {"verdict": check.verdict.value} for check in self.checks
        ]
        return {"verdict": self.verdict.value} | fields


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    """Return the worst of `verdicts`; `unknown` when there are none: nothing was checked."""
    order = list(Verdict)
    return max(verdicts, key=order.index, default=Verdict.UNKNOWN)
