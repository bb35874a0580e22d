"""Judges a run by the second judge, in plain Python: seconds for a small history, no Spark.

What lives here: the way from a judgement (analytics/twins) to a report of the same form as the
other judge's, `report.json` and `report.html`, and what a report says beside the verdict. What must
not: any check, any rule of the verdict; or large histories: all is held in memory.
"""

from __future__ import annotations

import json
import time
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import orjson

from analytics import twins
from analytics.common.check_specs import CHECK_SPECS
from analytics.common.verdict import (
    WITNESS_COUNT_MAX,
    CheckResult,
    InjectedFault,
    Observations,
    Report,
    Verdict,
    Witness,
    WitnessOperation,
)
from analytics.judge.liveness import Healing, fields_of, named, with_healing, with_recovery
from analytics.judge.witnesses import located
from analytics.report.data import FIELDS
from analytics.report.facts import facts_of
from analytics.twins.judging import acknowledged_count, delivered_count

REPORT, PAGE = "report.json", "report.html"


def judge(directory: Path) -> str:
    """Return the verdict of the run in `directory`, and write its report and page there.

    Where there was nothing to read there is no report.
    """
    said = judged(directory)
    if said.report is not None:
        write(said)
    return said.verdict.value


@dataclass(frozen=True, slots=True)
class Said:
    """A verdict with its report; None if there was nothing to read, for these `reasons`."""

    verdict: Verdict
    report: Report | None
    reasons: tuple[str, ...]


def judged(directory: Path) -> Said:
    """Judge the run in `directory`."""
    begun_s = time.monotonic()
    judgement = twins.judge(directory)
    report = None
    if judgement.run is not None:
        report = report_on(directory, judgement, time.monotonic() - begun_s)
    return Said(judgement.verdict, report, judgement.reasons)


def document_of(said: Said) -> dict[str, Any]:
    """Return what report.json says. The verdict is the judge's, by its own rules."""
    assert said.report is not None, said
    return {**said.report.as_dict(), "verdict": said.verdict.value}


def write(said: Said) -> None:
    """Write `report.json` and `report.html` into the run's directory."""
    from analytics.report.page import NO_FIGURES_OF_TWINS, page  # templates, plotly: half a second

    assert said.report is not None, said
    directory = Path(said.report.directory)
    document = json.dumps(document_of(said), indent=2) + "\n"
    (directory / REPORT).write_text(document, encoding="utf-8")
    witnesses = [witness for check in said.report.checks for witness in check.witnesses]
    events = _events(directory, witnesses)
    text = page(said.report, facts_of(directory), None, events, NO_FIGURES_OF_TWINS)
    (directory / PAGE).write_text(text, encoding="utf-8")


def _events(directory: Path, witnesses: Sequence[Witness]) -> dict[tuple[str, int], list[Any]]:
    """Return the events of the operations that witnesses name, for their timelines."""
    wanted = {(one.process, one.op_id) for witness in witnesses for one in witness.operations}
    found: dict[tuple[str, int], list[Any]] = {}
    for process in sorted({process for process, _ in wanted}):
        path = directory / "history" / f"{process}.jsonl"
        for line in path.read_bytes().splitlines() if path.is_file() else ():
            event = _event(line)
            key = process, event.get("op_id", 0)
            if key in wanted and isinstance(event.get("t_ns"), int):
                found.setdefault(key, []).append(dict.fromkeys(FIELDS) | event)
    return found


def _event(line: bytes) -> dict[str, Any]:
    try:
        event = orjson.loads(line)
    except orjson.JSONDecodeError:
        return {}  # told among the reasons
    return event if isinstance(event, dict) else {}


def report_on(directory: Path, judgement: twins.Judgement, seconds: float) -> Report:
    """Return a judgement as a report, of a run that could be read."""
    run, intake = judgement.run, judgement.intake
    assert run is not None, directory
    assert intake is not None, directory
    return Report(
        directory=str(directory),
        run_id=intake.run_id,
        checks=_with_lines(directory, [_result(judgement, name) for name in twins.TWINS]),
        observations=_observed(judgement, run, intake.document),
        reasons=judgement.reasons,
        lines=intake.lines,
        torn_lines=intake.torn,
        malformed_lines=intake.malformed,
        seconds=seconds,
    )


def _result(judgement: twins.Judgement, name: str) -> CheckResult:
    evidence = sorted(judgement.evidence.get(name, ()), key=_order)
    return CheckResult(
        name=name,
        meaning=CHECK_SPECS[name].meaning,
        count=len(evidence),
        witnesses=tuple(map(_witness, evidence[:WITNESS_COUNT_MAX])),
        seconds=0.0,  # too short to be worth a number
        error=judgement.crashed.get(name),
        not_judged=judgement.not_judged.get(name),
        no_proof=judgement.no_proof.get(name),
    )


def _order(row: twins.Evidence) -> list[tuple[bool, Any]]:
    """Return what a report is sorted by: the id first, what is unknown before all else."""
    return [(one is not None, one) for one in (row.id, *row)]


def _witness(row: twins.Evidence) -> Witness:
    operations = tuple(WitnessOperation(process, op_id) for process, op_id in row.operations)
    return Witness(**(row._asdict() | {"operations": operations}))


def _with_lines(directory: Path, results: list[CheckResult]) -> tuple[CheckResult, ...]:
    every = [witness for result in results for witness in result.witnesses]
    places = located(directory, {one for witness in every for one in witness.operations})

    def placed(witness: Witness) -> Witness:
        return replace(witness, operations=tuple(places[one] for one in witness.operations))

    return tuple(replace(one, witnesses=tuple(map(placed, one.witnesses))) for one in results)


# --- reported, not judged -------------------------------------------------------------------------


def _observed(
    judgement: twins.Judgement, run: twins.Run, document: Mapping[str, Any]
) -> Observations:
    undrained = [" ".join(one) for one in judgement.undrained]
    drains = {(row.client, row.topic) for row in run.drained}
    return Observations(
        acknowledged=acknowledged_count(run),
        delivered=delivered_count(run),
        recovered=_recovered_count(run),
        undrained_count=len(undrained),
        undrained=tuple(undrained[:WITNESS_COUNT_MAX]),
        unplaced_answers=judgement.unplaced,
        faults=_faults(run, document),
        rows={"puts": len(run.of("put")), "gets": len(run.of("get")), "drains": len(drains)},
        is_drain_due=judgement.intake is not None and not judgement.intake.is_application,
    )


def _recovered_count(run: twins.Run) -> int:
    """Return how many publications were seen of which nobody was told that they are stored."""
    seen = {(each.producer, get.named, each.counter) for get in run.answers for each in get.given}
    tries = run.knowledge.tries
    return sum(
        publication in seen
        and any(put.outcome == "info" for put in puts)
        and not any(put.is_ok for put in puts)
        for publication, puts in tries.items()
    )


def _faults(run: twins.Run, document: Mapping[str, Any]) -> tuple[InjectedFault, ...]:
    """Return the injections as the run has measured them, with what came after."""
    injections = _injections(document)
    acknowledged = sorted(int(put.end) for put in run.of("put") if put.is_ok)
    ends = [*(one["injected_ns"] for one in injections), _end_ns(run, acknowledged)][1:]
    faults = [
        InjectedFault(
            one["name"],
            tuple(one["targets"]),
            one["injected_ns"],
            one["gap_ms"],
            _silence_ms(acknowledged, one["injected_ns"], end_ns),
        )
        for one, end_ns in zip(injections, ends, strict=True)
    ]
    healings = []
    for row in sorted(run.faults, key=lambda row: row["t_ns"]):
        error = row.get("error")
        if fields_of(error).get("action") == "heal":
            healings.append(Healing(row["t_ns"], *named(error)))
    nodes = document.get("nodes")
    known = [node for node in nodes if isinstance(node, str)] if isinstance(nodes, list) else []
    healed = with_healing(faults, healings, known)
    following = {
        fault.healed_ns: acknowledged[place]
        for fault in healed
        if fault.healed_ns is not None
        and (place := bisect_left(acknowledged, fault.healed_ns)) < len(acknowledged)
    }
    return with_recovery(healed, following)


def _injections(document: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the injections of run.json, but for what can't be read as one."""
    outcome = document.get("outcome")
    said = outcome.get("injections") if isinstance(outcome, Mapping) else None
    return [one for one in said if _is_injection(one)] if isinstance(said, list) else []


def _is_injection(one: object) -> bool:
    fields = one if isinstance(one, Mapping) else {}
    return (
        isinstance(fields.get("name"), str)
        and isinstance(fields.get("targets"), list)
        and isinstance(fields.get("injected_ns"), int)
        and isinstance(fields.get("gap_ms", ""), int | float | None)
    )


def _end_ns(run: twins.Run, acknowledged: Sequence[int]) -> int:
    """Return when the last window ends: with the phase `heal`, or with the history."""
    heals = [int(phase.time) for phase in run.phases if phase.name == "heal"]
    return min(heals) if heals else max(acknowledged, default=0)


def _silence_ms(acknowledged: Sequence[int], begin_ns: int, end_ns: int) -> float | None:
    """Return the longest time without an acknowledgment in a window; None: none was before it."""
    first = bisect_right(acknowledged, begin_ns) - 1
    if first < 0:
        return None
    inside = acknowledged[first : bisect_right(acknowledged, end_ns)]
    return max(after - before for before, after in pairwise([*inside, end_ns])) / 1e6
