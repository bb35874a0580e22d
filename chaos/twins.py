"""Judges a run by the checks' twins in plain Python: seconds for a small history, no Spark.

What lives here: reading a run's files into memory, and a report in the form of analytics' own
(`report.json`). What must not: any check (analytics/twins), or large histories: a twin goes id by
id, and has everything in memory.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import orjson

from analytics import twins

REPORT: Final = "report.json"
WITNESSES_MAX: Final = 3
NEED_TRUTH: Final = frozenset({"replica_divergence", "ack_not_durable"})


def judge(directory: Path) -> str:
    """Return the verdict of the run in `directory`: as flotilla-check's; write its report there.

    A file that can't be read, a run that did not finish or says that it proves nothing, and a
    missing truth make `unknown` of what would be `valid`.
    """
    run = orjson.loads((directory / "run.json").read_bytes())
    events, bad_events = _rows(directory / "history")
    expected = run.get("truth", {}).get("nodes", [])
    nodes = {node: (directory / "truth" / f"{node}.jsonl").exists() for node in expected}
    truth, bad_truth = _rows(directory / "truth")
    found = twins.find_all(events, truth, nodes)
    reasons = list(run["outcome"]["reasons"])
    reasons += [f"the disk of {node} was not read" for node, was in nodes.items() if not was]
    history = directory / "history"
    gone = [name for name in run.get("history", ()) if not (history / name).exists()]
    reasons += [f"{name}: run.json names it, and it is not there" for name in gone]
    if bad_lines := bad_events + bad_truth:
        reasons.append(f"{bad_lines} lines can't be read")
    verdict = "unknown" if reasons else "valid"
    if any(found.values()):
        verdict = "invalid"
    report = {
        "verdict": verdict,
        "run_id": run["run_id"],
        "checks": [_check(name, rows, bool(nodes)) for name, rows in found.items()],
        "reasons": reasons,
        "observations": _observations(run["outcome"]),
    }
    (directory / REPORT).write_bytes(orjson.dumps(report, option=orjson.OPT_INDENT_2) + b"\n")
    return verdict


def _rows(directory: Path) -> tuple[list[dict[str, Any]], int]:
    """Return the rows of all files, and how many lines are none."""
    rows, bad = [], 0
    for file in sorted(directory.glob("*.jsonl")):
        for line in filter(None, file.read_bytes().split(b"\n")):
            try:
                rows.append(orjson.loads(line))
            except orjson.JSONDecodeError:
                bad += 1
    return rows, bad


def _check(name: str, evidence: list[twins.Evidence], has_truth: bool) -> dict[str, Any]:
    verdict = "invalid" if evidence else "valid"
    return {
        "name": name,
        "count": len(evidence),
        "verdict": verdict if has_truth or name not in NEED_TRUTH else None,
        "witnesses": [repr(row) for row in evidence[:WITNESSES_MAX]],
    }


def _observations(outcome: dict[str, Any]) -> dict[str, Any]:
    faults = [
        {"name": one["name"], "targets": one["targets"], "blackout_ms": one["gap_ms"]}
        for one in outcome["injections"]
    ]
    counts = {name: outcome[name] for name in ("acknowledged", "delivered")}
    return counts | {"faults": faults}
