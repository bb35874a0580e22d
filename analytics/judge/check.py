"""Checks a run from its directory to its report. The order of steps is here, the rules are not."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from analytics.anomalies import CHECKS, Check
from analytics.anomalies.delayed import waiting_count
from analytics.common import session
from analytics.common.progress import OnProgress, step, unheard
from analytics.common.schema import EVIDENCE
from analytics.common.storage import Place, place_of
from analytics.common.table_store import is_never_any
from analytics.common.verdict import (
    NAMELESS,
    WITNESS_COUNT_MAX,
    CheckResult,
    Observations,
    Report,
    Witness,
    WitnessOperation,
)
from analytics.intake.cache import held, remedy_named, remedy_of
from analytics.intake.completeness import Completeness, completeness_of, unproven
from analytics.intake.disk_space import fullness_named, is_full
from analytics.judge.load import History, is_short, load
from analytics.judge.lost_context import with_passages
from analytics.judge.observations import observe
from analytics.judge.run_status import counted_by, reasons_of
from analytics.judge.witnesses import located

# Called at the end, while the history can still be read; returns the report that is final.
Finish = Callable[[History, Report], Report]
DIGESTS_OF_NOBODY: Final = (
    "lines have digests, and run.json does not say that an application recorded itself"
)
NAMED_BY_APPLICATION: Final = (
    "run.json says that an application recorded itself, and lines name who put what was delivered"
)
READING, OBSERVING, REPORTING = "reading", "observing", "reporting"


def check(
    directory: Path | str,
    master: str | None = None,
    on_progress: OnProgress | None = None,
    finish: Finish | None = None,
    memory: str = session.MEMORY_DEFAULT,
) -> Report:
    """Check the run in `directory` on Spark at `master` (default local[2]) and return the report,
    or what `finish` makes of it.

    Raises HistoryError when there is nothing to check or another check of it is running,
    JavaMissing when Spark can't be started.
    """
    begun_s = time.monotonic()
    tell = on_progress or unheard
    with (
        held(directory),
        fullness_named(directory),
        session.opened(master, memory, is_short(directory)) as spark,
        remedy_named(directory),
    ):
        tell(READING, None)
        place = place_of(spark, str(directory))
        history = load(spark, place, tell)
        truth_damage = (*history.truth.damage(), *_strangers(history))
        mixed = _mixed(history)
        whole = completeness_of((*history.intake.damage(), *mixed), truth_damage)
        with session.side_by_side(spark) as later:
            judging = [(one, later(run_check, history, one)) for one in CHECKS]
            observing = later(observe, history)
            results = [_told(one, result_of, whole, tell) for one, result_of in judging]
            with step(OBSERVING, tell):
                observations = observing()
        checks = _with_lines(place, with_passages(history.tables, results))
        doubts = (*reasons_of(place), *_forgotten(history), *history.truth.reasons(), *truth_damage)
        intake = history.intake
        crashes = [f"check {one.name} crashed: {one.error}" for one in checks if one.error]
        report = Report(
            directory=str(directory),
            run_id=intake.run_id,
            checks=checks,
            observations=observations,
            reasons=(
                *(*intake.reasons(), *mixed, *doubts, *_of_delays(history)),
                *(*observations.reasons(), *_short_of(place, history, observations)),
                *(*crashes, *unproven(checks)),
            ),
            lines=intake.lines,
            torn_lines=intake.torn_lines,
            malformed_lines=intake.malformed_lines,
            seconds=time.monotonic() - begun_s,
            remarks=intake.remarks,
        )
        if finish is None:
            return report
        with step(REPORTING, tell):
            return finish(history, report)


def _strangers(history: History) -> tuple[str, ...]:
    """Return the nodes that answered, and that run.json does not name: where disks were to be read,
    nobody knows then how many of them are a majority.
    """
    truth = history.truth
    if not truth.is_there and not truth.missing:
        return ()
    answered = {row.node for row in history.tables.leaders.select("node").distinct().collect()}
    strangers = sorted(answered - set(truth.members))
    return tuple(f"{node} answered, and run.json does not name it" for node in strangers)


def _short_of(place: Place, history: History, observations: Observations) -> tuple[str, ...]:
    """Return of what the run itself has counted more than is on record. It counts a publication
    again where it was acknowledged in another batch.
    """
    said = counted_by(place)
    on_record = {"acknowledged": observations.acknowledged, "delivered": observations.delivered}
    if said.get("acknowledged", 0) > observations.acknowledged:
        acknowledged = history.tables.puts.where(F.col("outcome") == "ok")
        counters = F.col("last_counter") - F.col("first_counter") + 1
        total = acknowledged.agg(F.sum(counters).alias("count")).first()
        on_record["acknowledged"] = (total and total["count"]) or 0
    return tuple(
        f"run.json says {count} publications {name}, {on_record[name]} are on record"
        for name, count in said.items()
        if count > on_record[name]
    )


def _forgotten(history: History) -> tuple[str, ...]:
    """Return that what some clients were owed is not judged; empty if none was forgotten."""
    clients = sorted(row.client_id for row in history.tables.forgotten.collect())
    return (f"forgotten: {len(clients)} clients, such as {clients[0]}",) if clients else ()


def _told(
    one: Check, result_of: Callable[[], CheckResult], whole: Completeness, tell: OnProgress
) -> CheckResult:
    tell(one.name, None)
    result = whole.weighed(result_of())
    tell(one.name, result)
    return result


def run_check(history: History, one: Check) -> CheckResult:
    """Run one check; its evidence is kept in the cache's `evidence/<name>`.

    Any exception becomes the result's `error`: one check's crash must not hide what others find,
    and is never a pass. Only a full disk ends all.
    """
    begun_s = time.monotonic()
    not_judged = _not_judged(history, one)
    if not_judged is not None:
        return CheckResult(one.name, one.claim.meaning, 0, (), 0.0, not_judged=not_judged)
    try:
        evidence = one.find(history.tables)
        count, witnesses = _smallest(history.keeper.evidence(one.name, evidence))
        error = None
    except Exception as failure:
        if is_full(failure):
            raise  # then there is no room for the others' evidence either
        count, witnesses = 0, ()
        said = f"{type(failure).__name__}: {str(failure).partition(chr(10))[0]}"
        error = remedy_of(history.keeper.cache, failure) or said
    seconds = time.monotonic() - begun_s
    return CheckResult(one.name, one.claim.meaning, count, witnesses, seconds, error)


def _not_judged(history: History, one: Check) -> str | None:
    """Return why a check can't judge this history; None if it can."""
    if one.claim.needs_truth and history.truth.not_judged:
        return history.truth.not_judged
    return NAMELESS if one.claim.needs_names and _is_nameless(history) else None


def _mixed(history: History) -> tuple[str, ...]:
    """Return how run.json and the lines disagree about who recorded; no client writes both."""
    if history.is_application:
        named = history.tables.deliveries.where(F.col("producer").isNotNull())
        return () if named.limit(1).isEmpty() else (NAMED_BY_APPLICATION,)
    return () if history.tables.applications.isEmpty() else (DIGESTS_OF_NOBODY,)


def _of_delays(history: History) -> tuple[str, ...]:
    """Return that something was due and nobody saw it come; or that the record can't say so."""
    if _is_nameless(history):
        count = history.intake.delayed_puts
        said = "PUTs had a delay: an application's record does not say what became of them"
    else:
        count = waiting_count(history.tables)
        said = "delayed publications were due, and not seen to come to all who subscribed"
    return (f"{count} {said}",) if count else ()


def _is_nameless(history: History) -> bool:
    """Return whether an application recorded itself: run.json says so, or a line has digests."""
    return not history.tables.applications.isEmpty()


def _smallest(evidence: DataFrame) -> tuple[int, tuple[Witness, ...]]:
    if is_never_any(evidence):  # mostly: then nothing is planned for it
        return 0, ()
    order = [name for name, _ in EVIDENCE if name not in ("id", "operations")]
    rows = evidence.orderBy("id", *order, "operations").limit(WITNESS_COUNT_MAX).collect()
    if not rows:
        return 0, ()
    return evidence.count(), tuple(_witness(row.asDict(recursive=True)) for row in rows)


def _witness(row: dict[str, object]) -> Witness:
    operations = row.pop("operations")
    assert isinstance(operations, list), row
    found = tuple(WitnessOperation(**one) for one in operations)
    return Witness(**row, operations=found)  # type: ignore[arg-type]


def _with_lines(directory: Place, results: Sequence[CheckResult]) -> tuple[CheckResult, ...]:
    wanted = {
        operation
        for result in results
        for witness in result.witnesses
        for operation in witness.operations
    }
    places = located(directory, wanted)

    def placed(witness: Witness) -> Witness:
        return replace(witness, operations=tuple(places[one] for one in witness.operations))

    return tuple(replace(one, witnesses=tuple(map(placed, one.witnesses))) for one in results)
