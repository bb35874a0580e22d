"""What a run came to: measured from its history, compared with what was expected, written down.

What lives here: the outcome, its expectations, and `run.json`. What must not: the run itself
(runner.py), or any verdict about the history (analytics).
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import orjson

from chaos.run.plan import RunPlan
from chaos.spec.experiment import Experiment, as_document
from chaos.workloads.history import longest_gap_ns, read
from flotilla_client.recording import described
from flotilla_client.version import VERSION

VERSIONED: Final = ("pysyncobj", "pyzmq", "orjson")
COUNTED_AS: Final = {"info": "unknown", "fail": "failed"}


@dataclass
class Injection:
    """A fault as it was done. `gap_ms`: see history.longest_gap_ns; None = no end of it seen."""

    name: str
    targets: list[str]
    injected_ns: int
    gap_ms: float | None = None


@dataclass
class RunResult:
    """What a run came to, beside its history.

    `problems` empty = all phases and expectations. `reasons`: of these, why the run proves nothing,
    whatever is found in its history: analytics then says `unknown` in place of `valid`.
    `violations`: of the reasons, the broken promises that the run has seen by itself.
    """

    finished: bool = False
    problems: list[str] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)
    acknowledged: int = 0
    acknowledged_per_s: float = 0.0
    delivered: int = 0
    unknown: int = 0
    failed: int = 0
    injections: list[Injection] = field(default_factory=list)


@dataclass
class RunTally:
    """What the clients of a run came to; counts are publications, but for errors: operations.

    `times_ns`: of each acknowledged PUT, in order, with how many publications it was about.
    """

    times_ns: list[tuple[int, int]] = field(default_factory=list)
    delivered: int = 0
    unknown: int = 0
    failed: int = 0


def tally(directory: Path) -> RunTally:
    """Count what the history in `directory` holds, all files of it."""
    counts, known = RunTally(), set()
    for path in sorted(directory.glob("*.jsonl")):
        for event in read(path):
            if event["f"] == "put" and event["type"] == "ok":
                publications = (event.get("client_id"), event.get("topic"), event.get("counter"))
                again = event.get("counter") is not None and publications in known
                known.add(publications)
                counts.times_ns.append((event["t_ns"], 0 if again else event.get("count", 1)))
            elif event["f"] == "put" and event["type"] in COUNTED_AS:
                name = COUNTED_AS[event["type"]]
                setattr(counts, name, getattr(counts, name) + 1)
            elif event["f"] == "get":
                counts.delivered += event.get("count", 0)
    counts.times_ns.sort()
    return counts


def measure(
    outcome: RunResult, experiment: Experiment, history: Path, span_ns: tuple[int, int] | None
) -> None:
    """Fill in `outcome` from the history, and compare it with what the experiment expects.

    `span_ns`: from the end of the warm-up to that of the fault windows, if it came so far.
    """
    counts = tally(history)
    outcome.acknowledged = sum(count for _, count in counts.times_ns)
    outcome.delivered, outcome.unknown = counts.delivered, counts.unknown
    outcome.failed = counts.failed
    if span_ns is not None:
        begin_ns, end_ns = span_ns
        inside = sum(count for t_ns, count in counts.times_ns if begin_ns <= t_ns < end_ns)
        outcome.acknowledged_per_s = round(inside * 1e9 / (end_ns - begin_ns), 3)
        measure_gaps(outcome.injections, [t_ns for t_ns, _ in counts.times_ns], end_ns)
    if outcome.finished:
        outcome.reasons += too_little(experiment, outcome)
        outcome.problems += outcome.reasons + unmet(experiment, outcome)
    else:
        outcome.problems += outcome.reasons
        outcome.reasons.append("the run did not finish")


def measure_gaps(injections: list[Injection], times_ns: list[int], end_ns: int) -> None:
    """Set `gap_ms` of each injection from the acknowledgments, up to the next one or `end_ns`."""
    begins_ns = [injection.injected_ns for injection in injections]
    for injection, window_end_ns in zip(injections, [*begins_ns[1:], end_ns], strict=False):
        gap_ns = longest_gap_ns(times_ns, injection.injected_ns, window_end_ns)
        injection.gap_ms = None if gap_ns is None else round(gap_ns / 1e6, 3)


def too_little(experiment: Experiment, outcome: RunResult) -> list[str]:
    """Return what was too little to prove anything, a sentence each."""
    expect, sentences = experiment.expect, []
    if outcome.acknowledged < expect.acknowledged_min:
        sentences.append(
            f"{outcome.acknowledged} acknowledged, {expect.acknowledged_min} are the least"
        )
    if outcome.acknowledged_per_s < expect.acknowledged_per_s_min:
        sentences.append(
            f"{outcome.acknowledged_per_s:g} acknowledged a second, "
            f"{expect.acknowledged_per_s_min:g} are the least"
        )
    return sentences


def unmet(experiment: Experiment, outcome: RunResult) -> list[str]:
    """Return the expectations of service that a finished run has not met, a sentence each."""
    most_s, sentences = experiment.expect.blackout_s_max, []
    for injection in outcome.injections:
        if injection.gap_ms is None:
            sentences.append(f"{injection.name}: service did not come back before the next phase")
        elif injection.gap_ms > most_s * 1000:
            sentences.append(
                f"{injection.name}: no acknowledgment for {injection.gap_ms / 1000:.1f} s, "
                f"{most_s:g} s are the most"
            )
    return sentences


def write_run_file(
    plan: RunPlan,
    target: str,
    nodes: Sequence[str],
    start_time: str,
    outcome: RunResult,
    truth_of: Sequence[str] = (),
    is_over: bool = True,
) -> None:
    """Write what is run on which target, and what it has come to, to the run's `run.json`.

    `truth_of`: the nodes whose disks are read at the end; a missing one is a reason for doubt.
    `is_over`: no process records any more, and the disks have been read. Only then it is said what
    each file of the history and of the truth is.
    """
    document = {
        "run_id": plan.run_id,
        "seed": plan.seed,
        "experiment": as_document(plan.experiment),
        "duration_s": plan.duration_s,
        "target": target,
        "nodes": list(nodes),
        "versions": versions(),
        "start": start_time,
        "outcome": asdict(outcome),
    }
    truth: dict[str, Any] = {"nodes": list(truth_of)}
    if is_over:
        document["history"] = _files(plan.directory / "history")
        truth["files"] = _files(plan.directory / "truth")
    if truth_of:
        document["truth"] = truth
    encoded = orjson.dumps(document, option=orjson.OPT_INDENT_2)
    temporary = plan.directory / "run.json.new"
    with temporary.open("wb") as file:
        file.write(encoded + b"\n")
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(plan.directory / "run.json")


def _files(directory: Path) -> dict[str, dict[str, Any]]:
    """Return what is in each file of `directory`, as docs/history.md has it."""
    return {path.name: described(path) for path in sorted(directory.glob("*.jsonl"))}


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that a run depends on."""
    found = {dist.metadata["Name"]: dist.version for dist in importlib.metadata.distributions()}
    packages = {name: version for name, version in found.items() if name in VERSIONED}
    return {"python": platform.python_version(), "flotilla": VERSION, **packages}
