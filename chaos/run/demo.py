"""The demonstration: a cluster is killed three times under load, then Spark says what was lost.

What lives here: running analytics on the finished run, and the summary that a person reads. What
must not: the run itself (runner.py, experiments/demo.toml) or any judgement of a history.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import orjson
from rich.console import Console, Group
from rich.markup import escape
from rich.panel import Panel
from rich.table import Table

from chaos.run.plan import RunPlan
from chaos.run.run_result import RunResult
from chaos.terminal.progress import Display, display
from chaos.workloads.children import child_environment

PAGE: Final = "report.html"  # written by analytics
ANALYTICS: Final = (sys.executable, "-m", "analytics", "--judge", "spark")  # its page has figures
SPARK_S_EXPECTED: Final = 45.0
SPARK_S_MAX: Final = 600.0  # ten times what it takes; then the verdict is unknown
POLL_S: Final = 0.2
LOG_TAIL_CHARACTERS: Final = 2_000
EXIT_CODES: Final = {"valid": 0, "invalid": 1, "unknown": 2}
NOT_JUDGED: Final = "not judged"  # a check without the nodes' disks, or without names
STYLES: Final = {
    "valid": "green",
    "invalid": "bold red",
    "unknown": "yellow",
    NOT_JUDGED: "dim",
}


@dataclass(frozen=True)
class DemoJudgement:
    """What analytics says: its `verdict`, and its report if it came to one (else {})."""

    verdict: str
    report: dict[str, Any]
    log: str


def run_demo(
    plan: RunPlan,
    carry_out: Callable[[Display], RunResult],
    console: Console,
    command: Sequence[str] = ANALYTICS,
) -> int:
    """Run, check, tell; return the exit code: 0 valid, 1 invalid, 2 unknown.

    `command` is analytics, followed by the run's directory and `--json FILE`.
    """
    console.print(
        "Three broker nodes, publishers and subscribers on this machine. The leader is killed "
        "twice (SIGKILL), then all nodes at once. Then Spark reads what every client saw."
        f"\n[dim]seed {plan.seed}[/]",
        highlight=False,
    )
    with display(console, plan.expected_s + SPARK_S_EXPECTED) as shown:
        outcome = carry_out(shown)
        judgement = judge(plan.directory, shown, command)
    console.print(summary(plan.directory, outcome, judgement))
    return exit_code(outcome, judgement)


def judge(directory: Path, shown: Display, command: Sequence[str]) -> DemoJudgement:
    """Run analytics in a process of its own on the run in `directory`."""
    report_file, log_file = directory / "report.json", directory / "analytics.log"
    shown.stage("Spark checks", SPARK_S_EXPECTED)
    with log_file.open("wb") as log:
        process = subprocess.Popen(
            [*command, str(directory), "--json", str(report_file)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=child_environment(),
            start_new_session=True,  # Ctrl-C is ours: it ends the check in order
        )
    try:
        _await_end(process, log_file, shown)
    finally:
        process.kill()
        code = process.wait()
    text = log_file.read_text(errors="replace")
    if not report_file.exists() or code not in EXIT_CODES.values():
        return DemoJudgement("unknown", {}, text[-LOG_TAIL_CHARACTERS:])
    report = orjson.loads(report_file.read_bytes())
    if EXIT_CODES.get(report["verdict"]) != code:  # it ended after it had written its report
        return DemoJudgement("unknown", {}, text[-LOG_TAIL_CHARACTERS:])
    return DemoJudgement(report["verdict"], report, text[-LOG_TAIL_CHARACTERS:])


def _await_end(process: subprocess.Popen[bytes], log_file: Path, shown: Display) -> None:
    deadline_s = time.monotonic() + SPARK_S_MAX
    while process.poll() is None and time.monotonic() < deadline_s:
        lines = log_file.read_text(errors="replace").splitlines()
        shown.tick(escape(lines[-1]) if lines else "Spark starts and reads the history")
        time.sleep(POLL_S)


def exit_code(outcome: RunResult, judgement: DemoJudgement) -> int:
    """Return the verdict's code; a run that did not finish is never better than unknown."""
    code = EXIT_CODES[judgement.verdict]
    return code if outcome.finished else code or EXIT_CODES["unknown"]


# --- the summary ----------------------------------------------------------------------------------


def summary(directory: Path, outcome: RunResult, judgement: DemoJudgement) -> Group:
    """Return what a person reads at the end."""
    parts: list[Any] = [_counts(outcome, judgement)]
    if outcome.injections:
        parts.append(_gaps(outcome))
    if judgement.report:
        parts.append(_checks(judgement.report["checks"]))
    else:
        parts.append(escape(judgement.log))
    reasons = [*outcome.problems, *judgement.report.get("reasons", [])]
    parts += [f"[yellow]{escape(reason)}[/]" for reason in reasons]
    parts.append(Panel.fit(_sentence(judgement), border_style=STYLES[judgement.verdict]))
    if (directory / PAGE).exists():
        parts.append(f"The report, for a browser: {escape(str(directory / PAGE))}")
    parts.append(f"Everything is in {escape(str(directory))}")
    return Group(*parts)


def _counts(outcome: RunResult, judgement: DemoJudgement) -> str:
    seen = judgement.report.get("observations", {})
    acknowledged = seen.get("acknowledged", outcome.acknowledged)
    delivered = seen.get("delivered", outcome.delivered)
    return (
        f"\n[bold]{acknowledged:,}[/] publications acknowledged, "
        f"[bold]{delivered:,}[/] delivered (each goes to every subscriber of its topic)\n"
    )


def _gaps(outcome: RunResult) -> Table:
    table = Table("fault", "nodes", "no service for", box=None, header_style="bold")
    for injection in outcome.injections:
        gap = "no end seen" if injection.gap_ms is None else f"{injection.gap_ms:,.0f} ms"
        table.add_row(injection.name, ", ".join(injection.targets), gap)
    return table


def _checks(checks: list[dict[str, Any]]) -> Table:
    table = Table("check", "found", "verdict", "a row would prove", box=None, header_style="bold")
    for check in checks:
        verdict = check["verdict"] or NOT_JUDGED
        meaning = check["error"] or check["not_judged"] or check["meaning"]
        style = STYLES[verdict]
        table.add_row(check["name"], str(check["count"]), f"[{style}]{verdict}[/]", escape(meaning))
    return table


def _sentence(judgement: DemoJudgement) -> str:
    sentences = {
        "valid": "Nothing was lost, doubled, skipped, reordered or invented.",
        "invalid": "A promise was broken; the rows above count the proofs.",
        "unknown": "The run proves nothing; the reasons are above.",
    }
    return f"[{STYLES[judgement.verdict]}]{judgement.verdict}[/]: {sentences[judgement.verdict]}"
