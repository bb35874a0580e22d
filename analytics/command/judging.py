"""One run, judged for a comparison: by either judge, with all rows, and without a report.

What lives here: what each judge says, in the form of differences.py. What must not: any rule.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from analytics.command.differences import CheckFindings, JudgedRun, NoJudgement, identity

if TYPE_CHECKING:  # not at run time: the judge in plain Python does without Spark
    from analytics.common.verdict import Report
    from analytics.judge.load import History

ROWS_MAX: Final = 100_000  # of a check: they are compared in memory
Row = dict[str, Any]  # of evidence, as a witness stands in a report


def by_twins(directory: Path) -> JudgedRun:
    """Return what the judge in plain Python says."""
    from analytics import twins

    said = twins.judge(directory)
    if said.run is None:
        raise NoJudgement("; ".join(said.reasons))
    checks = {}
    for name in twins.TWINS:
        rows = [
            {**row._asdict(), "operations": [_operation(*one) for one in row.operations]}
            for row in said.evidence.get(name, ())
        ]
        standing = "invalid" if rows else "valid"
        if rows and name in said.no_proof:
            standing = "unknown"
        if name in said.not_judged:
            standing = "not judged"
        if name in said.crashed:
            standing = "crashed"
        identities = frozenset(identity(name, row) for row in rows)
        checks[name] = CheckFindings(standing, len(identities), identities)
    return JudgedRun(said.verdict.value, checks)


def _operation(process: str, op_id: int) -> Mapping[str, Any]:
    return {"process": process, "op_id": op_id}


def by_spark(directory: Path) -> JudgedRun:
    """Return what the judge on Spark says, in the session that is open, if one is."""
    report, rows = rows_by_spark(directory)
    return judgement_on(report, rows)


def judgement_on(report: Report, rows: Mapping[str, list[Row]]) -> JudgedRun:
    """Return a report of the judge on Spark, with all rows, in the form that is compared."""
    checks = {}
    for one in report.checks:
        identities = frozenset(identity(one.name, row) for row in rows.get(one.name, ()))
        standing = "crashed" if one.error else one.verdict.value if one.verdict else "not judged"
        count = one.count if one.count > ROWS_MAX else len(identities)
        checks[one.name] = CheckFindings(standing, count, identities)
    return JudgedRun(report.verdict.value, checks)


def rows_by_spark(directory: Path) -> tuple[Report, dict[str, list[Row]]]:
    """Return its report, and of each check that found any all rows: a report has three."""
    from analytics.common.session import JavaMissing
    from analytics.intake.cache import HistoryError
    from analytics.judge.check import check

    rows: dict[str, list[Row]] = {}

    def with_rows(history: History, report: Report) -> Report:
        rows.update(_rows(history, report))
        return report

    try:
        return check(directory, finish=with_rows), rows
    except (HistoryError, JavaMissing) as error:
        raise NoJudgement(str(error)) from error


def _rows(history: History, report: Report) -> dict[str, list[Row]]:
    from analytics.common.storage import to_read

    read = history.tables.puts.sparkSession.read
    kept = history.keeper.cache / "evidence"
    found = {
        one.name: read.parquet(to_read(kept / one.name)).limit(ROWS_MAX).collect()
        for one in report.checks
        if one.count
    }
    return {name: [row.asDict(recursive=True) for row in rows] for name, rows in found.items()}
