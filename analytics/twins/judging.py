"""The verdict of a run's directory, by this judge's own reading of docs/checks.md.

What lives here: what counts as a proof, the reasons for `unknown`, the exit code. What must not:
any check, reading (intake.py), reports (analytics/command/plain.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from analytics.common.verdict import Verdict
from analytics.twins.checks import TWINS, evidence_of
from analytics.twins.delays import waiting_count
from analytics.twins.groups import unsettled
from analytics.twins.intake import PUBLICATIONS_MAX, TakenIn, Unjudgeable, size_of, take_in
from analytics.twins.record import LANE, Evidence
from analytics.twins.run import Run, read

EXIT_CODES: Final = {Verdict.VALID: 0, Verdict.INVALID: 1, Verdict.UNKNOWN: 2}
UNDRAINED_SHOWN_MAX: Final = 3
HOLES_SHOWN_MAX: Final = 20  # of the reasons; a file that was cut may make one of every line

# A line that is missing could explain these rows: an answer, an acknowledgment, a control, a try.
NEEDS_HISTORY: Final = frozenset(
    {
        *("lost", "gap", "duplicate_delivered", "phantom", "aborted_read", "future_read"),
        *("torn_batch", "realtime_order", "stale_read", "cursor_regression", "subscription"),
        *("purge", "delayed", "group_lease", "group_lost", "group_content", "dead_letter"),
        *("key_order", "replica_divergence"),
    }
)
OF_DISKS: Final = frozenset({"replica_divergence", "ack_not_durable"})  # these need all of them
OF_NAMES: Final = frozenset(
    {"phantom", "aborted_read", "future_read", "corrupt", "delayed", "group_content"}
)
NO_PROOF: Final = "part of the history is missing or can't be believed"
NO_PROOF_OF_TRUTH: Final = "part of the truth is missing or can't be believed"
NO_DISKS: Final = "no truth collected"
NAMELESS: Final = "an application's publications do not say who put them"


@dataclass(frozen=True)
class Judgement:
    """What a run comes to.

    `evidence`: of every check that was judged. `no_proof`: why the rows of a check prove nothing;
    `not_judged`: why a check could not look at this run; `crashed`: how a check ended. `undrained`:
    subscriptions that stand and never drained. `run`, `intake`: None if there was nothing to read.
    """

    verdict: Verdict
    reasons: tuple[str, ...]
    evidence: Mapping[str, list[Evidence]] = field(default_factory=dict)
    no_proof: Mapping[str, str] = field(default_factory=dict)
    not_judged: Mapping[str, str] = field(default_factory=dict)
    crashed: Mapping[str, str] = field(default_factory=dict)
    undrained: tuple[tuple[str, str], ...] = ()
    unplaced: int = 0
    run: Run | None = None
    intake: TakenIn | None = None

    @property
    def exit_code(self) -> int:
        """0 valid, 1 invalid, 2 unknown."""
        return EXIT_CODES[self.verdict]

    @property
    def remarks(self) -> tuple[str, ...]:
        """What the reader should know, and what is no reason for anything."""
        return tuple(self.intake.remarks) if self.intake is not None else ()


def judge(directory: Path) -> Judgement:
    """Judge the run in `directory`, all of it in memory. A directory that holds none is unknown."""
    try:
        intake = take_in(directory)
        if size_of(intake.rows) > PUBLICATIONS_MAX:
            raise Unjudgeable(f"over {PUBLICATIONS_MAX} publications: too many for this judge")
    except Unjudgeable as failure:
        return Judgement(Verdict.UNKNOWN, (str(failure),))
    run = read(intake.rows, intake.truth, intake.nodes, intake.is_application)
    return _judged(intake, run)


def _judged(intake: TakenIn, run: Run) -> Judgement:
    holes = [*intake.holes, *run.holes, *_mixed(intake, run)]
    truth_holes = [*intake.truth_holes, *_strangers(intake, run)]
    evidence: dict[str, list[Evidence]] = {}
    not_judged, no_proof, crashed = {}, {}, {}
    for name in TWINS:
        if name in OF_DISKS and not any(intake.nodes.values()):
            not_judged[name] = NO_DISKS
        elif name in OF_NAMES and run.is_application:
            not_judged[name] = NAMELESS
        else:
            try:
                evidence[name] = evidence_of(name, run)
            except Exception as error:  # noqa: BLE001  (a check that crashes is a reason, no end)
                crashed[name] = f"{type(error).__name__}: {error}"
            if evidence.get(name) and name in NEEDS_HISTORY and holes:
                no_proof[name] = NO_PROOF
            if evidence.get(name) and name in OF_DISKS and truth_holes:
                no_proof[name] = NO_PROOF_OF_TRUTH
    undrained = () if intake.is_application else tuple(_undrained(run))
    waiting = [] if intake.is_application else unsettled(run)
    unplaced = len(run.unplaced)
    weak = [f"{name}: {len(evidence[name])} rows prove nothing" for name in no_proof]
    reasons = (
        *_first(holes),
        *intake.doubts,
        *said_by(intake.document.get("outcome")),
        *_short_of(run, intake.document.get("outcome")),
        *(f"truth of {node} is missing: its disk was to be read" for node in intake.missing),
        *_first(truth_holes),
        *_too_little(run),
        *_not_drained(undrained),
        *_not_settled(waiting),
        *([f"{unplaced} answers lack the cursor or topic asked for"] if unplaced else ()),
        *(f"{name} crashed: {why}" for name, why in crashed.items()),
        *_delayed(run),
        *_forgotten(run),
        *weak,
    )
    is_proven = any(evidence[name] for name in evidence if name not in no_proof)
    verdict = Verdict.INVALID if is_proven else Verdict.UNKNOWN if reasons else Verdict.VALID
    parts = (evidence, no_proof, not_judged, crashed, undrained, unplaced)
    return Judgement(verdict, reasons, *parts, run, intake)


def _mixed(intake: TakenIn, run: Run) -> list[str]:
    """Return what lines say that are not of who recorded, as run.json has it."""
    has_names = any(row.get("items") for row in intake.rows)
    if intake.is_application and has_names:
        return ["an answer names producers, and run.json says that an application recorded itself"]
    if run.is_application and not intake.is_application:
        return ["there are digests, and by run.json no application recorded itself"]
    return []


def _strangers(intake: TakenIn, run: Run) -> list[str]:
    """Return the nodes that answered, and that run.json does not name: where disks were to be read,
    nobody knows then how many of them are a majority.
    """
    if not intake.missing and not any(intake.nodes.values()):
        return []
    answered = {one.node for one in run.operations if one.is_ok and one.term is not None}
    strangers = sorted(node for node in answered if node is not None and node not in intake.nodes)
    return [f"{node} answered, and run.json does not name it" for node in strangers]


def _first(holes: list[str]) -> list[str]:
    shown = holes[:HOLES_SHOWN_MAX]
    return [*shown, f"and {len(holes) - len(shown)} more"] if len(shown) < len(holes) else shown


def said_by(outcome: Any) -> list[str]:
    """Return why the run itself says that it proves nothing; an application's says nothing."""
    if outcome is None:
        return []
    names = ("reasons", "violations")
    if not isinstance(outcome, Mapping) or not all(
        isinstance(outcome.get(name, []), list) for name in names
    ):
        return ["run.json: the outcome can't be read"]
    reasons = list(dict.fromkeys(str(one) for name in names for one in outcome.get(name, ())))
    if outcome.get("finished") is not True and not reasons:
        reasons.append("the run did not finish")
    return reasons


def _short_of(run: Run, outcome: Any) -> list[str]:
    """Return of what the run itself has counted more than is on record."""
    acknowledged = sum(put.count or 0 for put in run.of("put") if put.is_ok)
    counted = {"acknowledged": acknowledged, "delivered": delivered_count(run)}
    said = outcome if isinstance(outcome, Mapping) else {}
    return [
        f"run.json says {said[name]} publications {name}, {count} are on record"
        for name, count in counted.items()
        if type(said.get(name)) is int and said[name] > count
    ]


def _forgotten(run: Run) -> list[str]:
    """Return that what some clients were owed is not judged: nobody knows until when they were."""
    clients = sorted(run.forgotten)
    return [f"forgotten: {len(clients)} clients, such as {clients[0]}"] if clients else []


def _delayed(run: Run) -> list[str]:
    """Return that something was due and nobody saw it come; or that the record can't say so."""
    if run.is_application:
        count = sum(put.topic.endswith(LANE) for put in run.of("put"))
        said = "PUTs had a delay: an application's record does not say what became of them"
    else:
        count = waiting_count(run)
        said = "delayed publications were due, and not seen to come to all who subscribed"
    return [f"{count} {said}"] if count else []


def _too_little(run: Run) -> list[str]:
    acknowledged, delivered = acknowledged_count(run), delivered_count(run)
    found = []
    if not acknowledged:
        found.append("0 publications acknowledged: too few to judge")
    if not delivered:
        found.append("0 publications delivered: too few to judge")
    return found


def acknowledged_count(run: Run) -> int:
    """Return how many publications were acknowledged, each once."""
    puts = (put for put in run.of("put") if put.is_ok)
    return len({(put.client, put.topic, counter) for put in puts for counter in put.counters})


def delivered_count(run: Run) -> int:
    """Return how many publications were delivered, to subscribers or workers, repeats included."""
    leased = (lease for take in run.of("take") for lease in take.of_group.leases)
    brought = sum(get.brought_count for get in run.answers if not get.tells_of_purge)
    return brought + sum(lease.last + 1 - lease.first for lease in leased)


def _undrained(run: Run) -> list[tuple[str, str]]:
    """Return the subscriptions (client, topic) that stand at the end and have not drained."""
    return sorted(
        {
            (life.client, life.topic)
            for life in run.standing.lives
            if life.is_last and not life.has_drained
        }
    )


def _not_drained(undrained: tuple[tuple[str, str], ...]) -> list[str]:
    if not undrained:
        return []
    names = ", ".join(" ".join(one) for one in undrained[:UNDRAINED_SHOWN_MAX])
    return [f"drain incomplete: {len(undrained)} subscriptions, such as {names}"]


def _not_settled(waiting: list[tuple[str, str]]) -> list[str]:
    if not waiting:
        return []
    names = ", ".join(" ".join(one) for one in waiting[:UNDRAINED_SHOWN_MAX])
    return [f"work left: {len(waiting)} groups that nobody saw settled, such as {names}"]
