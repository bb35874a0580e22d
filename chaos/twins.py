"""Judges a run by the checks' twins in plain Python: seconds for a small history, no Spark.

What lives here: the way from a run's directory to a report of the same form as flotilla-check's,
`report.json`. What must not: any check (analytics/twins), or large histories: a twin goes id by
id, and has everything in memory.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import orjson

from analytics import twins
from analytics.claims import CLAIMS
from analytics.outcome import said_by
from analytics.twins import observed, reading
from analytics.verdict import (
    NOT_COLLECTED,
    WITNESS_COUNT_MAX,
    CheckResult,
    Fault,
    Operation,
    Report,
    Witness,
)
from analytics.wholeness import Orphans, unproven, wholeness_of
from analytics.witnesses import located

REPORT: Final = "report.json"


def judge(directory: Path) -> str:
    """Return the verdict of the run in `directory`: as flotilla-check's; write its report there.

    A file that can't be read, a run that did not finish or says that it proves nothing, and a
    missing truth make `unknown` of what would be `valid`.
    """
    report = report_of(directory)
    document = orjson.dumps(report.as_dict(), option=orjson.OPT_INDENT_2)
    (directory / REPORT).write_bytes(document + b"\n")
    return report.verdict.value


def report_of(directory: Path) -> Report:
    """Return what is known of the run in `directory`."""
    begun_s = time.monotonic()
    document = orjson.loads((directory / "run.json").read_bytes())
    run_id = document["run_id"]
    lines = reading.history_of(sorted((directory / "history").glob("*.jsonl")), run_id)
    truth = reading.truth_of(sorted((directory / "truth").glob("*.jsonl")), run_id)
    nodes = _nodes(directory, document)
    run = twins.read(lines.rows, truth.rows, nodes)
    orphans = Orphans(len(run.orphans), run.orphans[0] if run.orphans else None)
    gone = _gone(directory, document)
    history_damage = (*gone, *lines.reasons(run_id), *orphans.reasons())
    truth_damage = tuple(f"truth: {one}" for one in truth.reasons(run_id))
    whole = wholeness_of(history_damage, truth_damage)
    results = [_check(name, run, any(nodes.values())) for name in twins.TWINS]
    checks = _with_lines(directory, [whole.weighed(one) for one in results])
    faults = observed.outlived(_faults(document), lines.rows, document.get("nodes") or (), run)
    observations = observed.observe(run, faults)
    reasons = (
        *(*history_damage, *said_by(document["outcome"]), *_unread(document, nodes)),
        *(*truth_damage, *observations.reasons(), *unproven(checks)),
    )
    return Report(
        directory=str(directory),
        run_id=run_id,
        checks=checks,
        observations=observations,
        reasons=reasons,
        lines=len(lines.rows) + lines.torn + lines.malformed + lines.foreign,
        torn_lines=lines.torn,
        malformed_lines=lines.malformed,
        seconds=time.monotonic() - begun_s,
    )


def _nodes(directory: Path, document: Mapping[str, Any]) -> dict[str, bool]:
    """Return of each node whether its disk was read."""
    read = {file.stem for file in (directory / "truth").glob("*.jsonl")}
    names = read | set(document.get("nodes") or ()) | set(_expected(document))
    return {node: node in read for node in sorted(names)}


def _expected(document: Mapping[str, Any]) -> Sequence[str]:
    nodes: Sequence[str] = document.get("truth", {}).get("nodes", ())
    return nodes


def _unread(document: Mapping[str, Any], nodes: Mapping[str, bool]) -> list[str]:
    return [
        f"truth of {node} is missing: its disk was to be read"
        for node in sorted(_expected(document))
        if not nodes[node]
    ]


def _gone(directory: Path, document: Mapping[str, Any]) -> list[str]:
    names = sorted(document.get("history", ()))
    gone = [name for name in names if not (directory / "history" / name).exists()]
    return [f"unreadable: {name}: run.json names it, and it is not there" for name in gone]


def _check(name: str, run: twins.Run, has_truth: bool) -> CheckResult:
    claim, begun_s = CLAIMS[name], time.monotonic()
    if claim.needs_truth and not has_truth:
        return CheckResult(name, claim.meaning, 0, (), 0.0, not_judged=NOT_COLLECTED)
    evidence = sorted(twins.TWINS[name](run), key=_order)
    witnesses = tuple(map(_witness, evidence[:WITNESS_COUNT_MAX]))
    return CheckResult(name, claim.meaning, len(evidence), witnesses, time.monotonic() - begun_s)


def _order(row: twins.Evidence) -> list[tuple[bool, Any]]:
    """Return what Spark's report is sorted by: the id first, what is unknown before all else."""
    return [(one is not None, one) for one in (row.id, *row)]


def _witness(row: twins.Evidence) -> Witness:
    operations = tuple(Operation(process, op_id) for process, op_id in row.operations)
    return Witness(**(row._asdict() | {"operations": operations}))


def _with_lines(directory: Path, results: list[CheckResult]) -> tuple[CheckResult, ...]:
    every = [witness for result in results for witness in result.witnesses]
    places = located(directory, {one for witness in every for one in witness.operations})

    def placed(witness: Witness) -> Witness:
        return replace(witness, operations=tuple(places[one] for one in witness.operations))

    return tuple(replace(one, witnesses=tuple(map(placed, one.witnesses))) for one in results)


def _faults(document: Mapping[str, Any]) -> list[Fault]:
    """Return the injections as the run has measured them."""
    return [
        Fault(
            *(one["name"], tuple(one["targets"]), one["injected_ns"]), one["gap_ms"], one["gap_ms"]
        )
        for one in document["outcome"]["injections"]
    ]
