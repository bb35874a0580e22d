"""A run's report as the page gets it, without Spark: an invalid run full of hostile names.

What lives here: data. What must not: a claim about the page.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from analytics.common.verdict import (
    CheckResult,
    InjectedFault,
    Observations,
    Quantiles,
    Report,
    Witness,
    WitnessOperation,
)
from analytics.report.data import FIELDS, Axis, Band, Lead, PhaseSpan, Series, Spread
from analytics.report.facts import ReportFacts, facts_of
from analytics.report.operations import Events

SECOND_NS = 1_000_000_000
ORIGIN_NS = 5 * SECOND_NS
# Each would set `hacked` if it came into the page as anything but text.
TOPIC = "<script>hacked=1</script>"
NODE = "<img src=x onerror=hacked=1>"
FAULT = "</script><script>hacked=1</script>"
PROCESS = "p\"'><svg onload=hacked=1>"
CLIENT = "javascript:hacked=1"
HOSTILE = (TOPIC, NODE, FAULT, PROCESS)

SLICES = 60
AXIS = Axis(ORIGIN_NS, ORIGIN_NS + 6 * SECOND_NS - 1, SECOND_NS // 10)


def series() -> Series:
    """Return six seconds of a run: a leader dies after two, the next one leads half a second on."""
    quiet = range(20, 25)
    acknowledged = [0.0 if place in quiet else 100.0 + place for place in range(SLICES)]
    waited = [None if place in quiet else 4.0 + place % 7 for place in range(SLICES)]
    spread = Spread(waited, waited, waited)
    return Series(
        axis=AXIS,
        rates={
            "acknowledged": acknowledged,
            "delivered": [2 * value for value in acknowledged],
            "unknown": [10.0 if place in quiet else 0.0 for place in range(SLICES)],
            "refused": [0.0] * SLICES,
        },
        latency=spread,
        staleness=spread,
        unseen=[float(place % 9) for place in range(SLICES - 1)] + [0.0],
        phases=(
            PhaseSpan("warmup", 0.1, 1.0),
            PhaseSpan("fault", 1.0, 5.0),
            PhaseSpan("drain", 5.0, 6.0),
        ),
        bands=(Band(FAULT, (NODE,), 2.0, 3.5, True), Band("cut", ("n1", "n2"), 4.0, 6.0, False)),
        leads=(Lead(NODE, 1, 0.1, 1.99, 300), Lead("n2", 2, 2.5, 5.9, 500)),
    )


def operation(op_id: int, process: str = PROCESS) -> WitnessOperation:
    """Return an operation whose two events stand in two lines."""
    lines = tuple(f"history/{process}.jsonl:{op_id * 2 + place}" for place in (0, 1))
    return WitnessOperation(process, op_id, lines)


def event(operation: WitnessOperation, kind: str, at_s: float, **fields: Any) -> dict[str, Any]:
    """Return an event as `operations.fetch` has it, `at_s` after the run's begin."""
    empty = dict.fromkeys(FIELDS)
    own = {"process": operation.process, "op_id": operation.op_id, "type": kind, "topic": TOPIC}
    return {**empty, **own, "f": "put", "t_ns": ORIGIN_NS + round(at_s * SECOND_NS), **fields}


PUT, GET = operation(1), operation(2, "s")
EVENTS: Events = {
    (PUT.process, PUT.op_id): [
        event(PUT, "invoke", 2.0, counter=7, count=3),
        event(PUT, "ok", 2.5, counter=7, count=3, first_id=11, last_id=13, node=NODE, term=1),
    ],
    (GET.process, GET.op_id): [event(GET, "invoke", 3.0, f="get", last_id=10)],
}
WITNESS = Witness("run", TOPIC, CLIENT, 11, None, PROCESS, 7, "middle", (PUT, GET))


def report() -> Report:
    """Return an invalid report: one check with evidence, one that crashed, one not judged."""
    checks = (
        CheckResult("lost", "an acknowledged publication never arrived", 21, (WITNESS,), 1.5),
        CheckResult("gap", "a subscriber's ids jump", 0, (), 0.5),
        CheckResult("corrupt", "a payload is broken", 0, (), 0.1, error=f"Error: {TOPIC}"),
        CheckResult("fencing", "a fenced one wrote", 0, (), 0.0, not_judged="no truth collected"),
    )
    faults = (
        InjectedFault(FAULT, (NODE,), ORIGIN_NS + 2 * SECOND_NS, 512.5),
        InjectedFault("cut", ("n1", "n2"), ORIGIN_NS + 4 * SECOND_NS, None),
    )
    return Report(
        directory="runs/sample",
        run_id="run",
        checks=checks,
        observations=observations(faults),
        reasons=(f"drain incomplete: 1 subscriptions, such as {CLIENT} {TOPIC}",),
        lines=4_456,
        torn_lines=1,
        malformed_lines=0,
        seconds=12.5,
    )


def valid() -> Report:
    """Return the report of a run in which all is well."""
    check = CheckResult("lost", "an acknowledged publication never arrived", 0, (), 1.5)
    return replace(report(), checks=(check,), reasons=(), observations=observations(()))


def observations(faults: tuple[InjectedFault, ...]) -> Observations:
    """Return the observations of a small run with `faults`."""
    rows = {"puts": 900, "gets": 1200, "subscriptions": 4, "drains": 3}
    return Observations(
        *(900, 1800, 2, 1, (f"{CLIENT} {TOPIC}",), 0, faults, rows),
        latencies=(Quantiles("put", 900, 5.0, 10.0, 20.0, 90.0, 180.0),),
        staleness=Quantiles("delivery", 1800, 2.0, 4.0, 8.0, 12.0, 16.5),
        progress_share=0.915,
    )


RUN_FILE = {
    "run_id": "run",
    "seed": 7,
    "experiment": {
        "name": "kill leader",
        "about": f"What it is after: {TOPIC}",
        "workload": {"topics": [f"t{n}" for n in range(20)], "rate_per_s": 50},
        "faults": [{"name": FAULT, "hold_s": 1.5}],
    },
    "duration_s": 8.0,
    "target": "local",
    "nodes": ["n1", "n2", NODE],
    "versions": {"python": "3.11"},
    "start": "2026-01-01T00:00:00Z",
    "outcome": {"finished": True, "problems": ["3 acknowledged, 50 are the least"]},
}


def facts(directory: Path) -> ReportFacts:
    """Return what the sample's run.json, written to `directory`, says."""
    (directory / "run.json").write_text(json.dumps(RUN_FILE))
    return facts_of(directory)
