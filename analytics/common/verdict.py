"""What a check of a run comes to: the report's shape and the rule of the verdict. No Spark here."""

import enum
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Final

# Fewer, and a clean result says nothing about the cluster.
ACKNOWLEDGED_COUNT_MIN: Final = 1
DELIVERED_COUNT_MIN: Final = 1
NAMELESS: Final = "an application's publications do not say who put them"
NOT_COLLECTED: Final = "no truth collected"
# Of liveness: a leader is replaced in half a second (median). Elections that fail twice on a busy
# machine, and clients that back off, take ten times that; twice as long again is no bad luck.
PROGRESS_MS_MAX: Final = 10_000.0  # the longest silence while a majority is whole
RECOVERY_MS_MAX: Final = 10_000.0  # from the healing of any fault to the next acknowledgment
WITNESS_COUNT_MAX: Final = 3  # a check's smallest ones; all of them are in DIR/parquet/evidence


class Verdict(enum.StrEnum):
    """`valid` is only said when everything was looked at and nothing was found."""

    VALID = "valid"
    UNKNOWN = "unknown"
    INVALID = "invalid"


EXIT_CODES: Final = {Verdict.VALID: 0, Verdict.INVALID: 1, Verdict.UNKNOWN: 2}


@dataclass(frozen=True, slots=True)
class WitnessOperation:
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
    operations: tuple[WitnessOperation, ...]


@dataclass(frozen=True, slots=True)
class CheckResult:
    """What a check found. `error` is set when it crashed: then it proves nothing.

    `not_judged`: why it could not look at this run at all, such as that no truth was collected.
    `no_proof`: why the rows it found are none (completeness.py).
    """

    name: str
    meaning: str
    count: int
    witnesses: tuple[Witness, ...]
    seconds: float
    error: str | None = None
    not_judged: str | None = None
    no_proof: str | None = None

    @property
    def verdict(self) -> Verdict | None:
        """`invalid` with evidence, `unknown` after a crash, or if what was found is no proof, else
        `valid`; None if not judged.
        """
        if self.not_judged is not None:
            return None
        if self.count:
            return Verdict.INVALID if self.no_proof is None else Verdict.UNKNOWN
        return Verdict.VALID if self.error is None else Verdict.UNKNOWN

    @property
    def standing(self) -> str:
        """The verdict in words, or why there is none."""
        return f"not judged: {self.not_judged}" if self.verdict is None else self.verdict.value


@dataclass(frozen=True, slots=True)
class InjectedFault:
    """An injected fault. `blackout_ms`: the longest time without an acknowledged PUT in its window.

    The window ends with the next injection, with the phase `heal`, or with the history. None when
    nothing was acknowledged before it, or nothing in its second half: service did not come back.
    `silence_ms`: the same, and also given when the window's second half is silent: so long at
    least. `healed_ns`: when it was healed, None if never; `recovery_ms`: from then to the next
    acknowledged PUT, None if there is none; `is_recovery_due`: no majority was hit by other faults
    then, or within RECOVERY_MS_MAX.
    `is_minority`: it and all faults at the same time hit less than half of the nodes; None if it is
    not known whom they hit.
    """

    name: str
    targets: tuple[str, ...]
    t_ns: int
    blackout_ms: float | None
    silence_ms: float | None = None
    healed_ns: int | None = None
    is_recovery_due: bool = False
    recovery_ms: float | None = None
    is_minority: bool | None = None


@dataclass(frozen=True, slots=True)
class Quantiles:
    """How long something took: `of` what, how many of them, and the times in ms."""

    of: str
    count: int
    p50_ms: float
    p90_ms: float
    p99_ms: float
    p999_ms: float
    max_ms: float


@dataclass(frozen=True, slots=True)
class Liveness:
    """Whether service went on: a verdict of its own, beside that on what was promised.

    `findings`: what was due and did not come (invalid), or what could not be told (unknown).
    """

    verdict: Verdict
    findings: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Observations:
    """Reported, not judged. Counts are of publications.

    `acknowledged`: put and confirmed, each once. `delivered`: handed to subscribers, repeats
    included. `recovered`: of unknown outcome, seen by someone later. `undrained`: subscriptions
    that never reached their topic's tombstone, as `client topic`. `unplaced_answers`: answers with
    publications but without the cursor or the topic that they were asked with. `is_drain_due`:
    somebody wrote tombstones for the subscriptions to reach; an application does not.
    `latencies`: of each function's operations; `staleness`: from a publication's acknowledgment to
    its delivery; `progress_share`: of the time until the healing, outside of long silences.
    `waiting`: groups of which nobody was told that all is settled, as `topic group`.
    """

    acknowledged: int
    delivered: int
    recovered: int
    undrained_count: int
    undrained: tuple[str, ...]
    unplaced_answers: int
    faults: tuple[InjectedFault, ...]
    rows: dict[str, int]
    is_drain_due: bool = True
    latencies: tuple[Quantiles, ...] = ()
    staleness: Quantiles | None = None
    progress_share: float | None = None
    waiting_count: int = 0
    waiting: tuple[str, ...] = ()

    @property
    def liveness(self) -> Liveness:
        """Judge progress during minority faults, recovery after all, and the drain."""
        found = [text for fault in self.faults for text in _delays(fault)]
        if self.undrained_count and self.is_drain_due:
            found.append(f"{self.undrained_count} subscriptions did not drain")
        if found:
            return Liveness(Verdict.INVALID, tuple(found))
        if self.acknowledged < ACKNOWLEDGED_COUNT_MIN:
            return Liveness(Verdict.UNKNOWN, ("nothing was acknowledged",))
        unknown = sum(fault.is_minority is None for fault in self.faults)
        doubts = (f"whom {unknown} faults hit is not known",) if unknown else ()
        return Liveness(Verdict.UNKNOWN if unknown else Verdict.VALID, doubts)

    def remarks(self) -> tuple[str, ...]:
        """Return what the verdict does not cover, beside what was not judged."""
        if self.is_drain_due or not self.undrained_count:
            return ()
        standing = f"{self.undrained_count} subscriptions stand"
        return (f"{standing}: what they have not read yet is not judged",)

    def reasons(self) -> tuple[str, ...]:
        """Return why nothing found would prove nothing; empty when the run was good enough."""
        found = []
        if self.acknowledged < ACKNOWLEDGED_COUNT_MIN:
            found.append(f"{self.acknowledged} publications acknowledged: too few to judge")
        if self.delivered < DELIVERED_COUNT_MIN:
            found.append(f"{self.delivered} publications delivered: too few to judge")
        if self.undrained_count and self.is_drain_due:
            names = ", ".join(self.undrained)
            found.append(f"drain incomplete: {self.undrained_count} subscriptions, such as {names}")
        if self.waiting_count and self.is_drain_due:
            names = ", ".join(self.waiting)
            left = f"work left: {self.waiting_count} groups that nobody saw settled"
            found.append(f"{left}, such as {names}")
        if self.unplaced_answers:
            found.append(f"{self.unplaced_answers} answers lack the cursor or topic asked for")
        return tuple(found)


@dataclass(frozen=True, slots=True)
class Report:
    """All that is known of a run. `reasons`: why it can't be called valid, evidence apart.

    `remarks`: what was noticed of its files, and is no reason.
    """

    directory: str
    run_id: str
    checks: tuple[CheckResult, ...]
    observations: Observations
    reasons: tuple[str, ...]
    lines: int
    torn_lines: int
    malformed_lines: int
    seconds: float
    remarks: tuple[str, ...] = ()

    @property
    def verdict(self) -> Verdict:
        """The worst of the checks' and the reasons': invalid over unknown over valid."""
        found = [check.verdict for check in self.checks if check.verdict is not None]
        return worst([*found, Verdict.UNKNOWN] if self.reasons else found)

    def as_dict(self) -> dict[str, Any]:
        """Return the whole report as JSON types, verdicts included."""
        fields = asdict(self)
        fields["liveness"] = asdict(self.observations.liveness)
        fields["checks"] = [
            asdict(check) | {"verdict": check.verdict and check.verdict.value}
            for check in self.checks
        ]
        return {"verdict": self.verdict.value} | fields


def _delays(fault: InjectedFault) -> list[str]:
    """Return what a fault's time shows that a live cluster would not."""
    found = []
    silence_ms = fault.silence_ms or 0.0
    if fault.is_minority and silence_ms > PROGRESS_MS_MAX:
        length = f"{silence_ms:.0f} ms"
        found.append(f"no progress while a majority was whole: {fault.name}, {length}")
    late = fault.recovery_ms is None or fault.recovery_ms > RECOVERY_MS_MAX
    if fault.is_recovery_due and late:
        length = "never" if fault.recovery_ms is None else f"{fault.recovery_ms:.0f} ms"
        found.append(f"no recovery in time: {fault.name}, {length}")
    return found


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    """Return the worst of `verdicts`; `unknown` when there are none: nothing was checked."""
    order = list(Verdict)
    return max(verdicts, key=order.index, default=Verdict.UNKNOWN)
