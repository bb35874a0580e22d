"""What chaos/run/demo.py promises: the exit code is the verdict, and the summary says why."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from chaos.faults import FAULTS
from chaos.run import demo
from chaos.run.demo import run_demo
from chaos.run.plan import RunPlan
from chaos.run.run_result import Injection, RunResult
from chaos.spec import experiment

ANALYTICS = """
import pathlib, sys
directory, _, report = sys.argv[1:]
print("lost: 0 (1.0 s)")
if {text!r}:
    pathlib.Path(report).write_text({text!r})
sys.exit({code})
"""
FINISHED = RunResult(
    finished=True,
    acknowledged=7,
    delivered=14,
    injections=[Injection("kill-leader", ["n2"], 0, 88.7), Injection("kill-all", ["n1"], 0, None)],
)


def analytics(report: dict[str, Any] | None, code: int) -> list[str]:
    """Return a command that stands in for analytics: writes `report`, exits with `code`."""
    text = "" if report is None else json.dumps(report)
    return [sys.executable, "-c", ANALYTICS.format(text=text, code=code)]


def report_of(verdict: str, count: int = 0) -> dict[str, Any]:
    check = {"name": "lost", "count": count, "verdict": verdict, "error": None, "meaning": "gone"}
    check |= {"not_judged": None}
    observations = {"acknowledged": 1_234, "delivered": 2_468}
    reasons = ["drain incomplete"] if verdict == "unknown" else []
    return {"verdict": verdict, "checks": [check], "observations": observations, "reasons": reasons}


def demonstrate(directory: Path, outcome: RunResult, command: list[str]) -> tuple[int, str]:
    parsed = experiment.load("demo", FAULTS)
    plan = RunPlan(experiment=parsed, seed=42, duration_s=0, directory=directory)
    console = Console(width=120, record=True, file=(directory / "out").open("w"))
    try:
        code = run_demo(plan, lambda shown: outcome, console, command)
    finally:
        console.file.close()
    return code, console.export_text()


@pytest.mark.parametrize(("verdict", "code"), [("valid", 0), ("invalid", 1), ("unknown", 2)])
def test_the_exit_code_is_the_verdict(tmp_path: Path, verdict: str, code: int) -> None:
    command = analytics(report_of(verdict), code)
    found, text = demonstrate(tmp_path, FINISHED, command)
    assert found == code
    assert f"{verdict}:" in text


def test_the_summary_has_counts_checks_gaps_and_where_the_files_are(tmp_path: Path) -> None:
    _, text = demonstrate(tmp_path, FINISHED, analytics(report_of("invalid", 3), 1))
    lines = [line.split() for line in text.splitlines()]
    assert "1,234 publications acknowledged, 2,468 delivered" in text
    assert ["kill-leader", "n2", "89", "ms"] in lines
    assert ["kill-all", "n1", "no", "end", "seen"] in lines
    assert ["lost", "3", "invalid", "gone"] in lines
    assert str(tmp_path) in text.replace("\n", "")
    assert "seed 42" in text


def test_a_check_that_crashes_is_unknown_and_its_words_are_shown(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "import sys; print('no Java here'); sys.exit(7)"]
    code, text = demonstrate(tmp_path, FINISHED, command)
    assert code == 2
    assert "no Java here" in text
    assert "7 publications acknowledged" in text  # the runner's own counts, for want of better


def test_a_report_of_a_process_that_crashed_after_writing_it_is_not_believed(
    tmp_path: Path,
) -> None:
    assert demonstrate(tmp_path, FINISHED, analytics(report_of("valid"), -9))[0] == 2


def test_a_check_that_could_not_judge_says_why(tmp_path: Path) -> None:
    report = report_of("unknown")
    report["checks"][0] |= {"verdict": None, "not_judged": "no disk was read"}
    code, text = demonstrate(tmp_path, FINISHED, analytics(report, 2))
    assert code == 2
    assert ["lost", "0", "not", "judged", "no", "disk", "was", "read"] in [
        line.split() for line in text.splitlines()
    ]


def test_a_report_that_does_not_fit_the_exit_code_is_not_believed(tmp_path: Path) -> None:
    code, text = demonstrate(tmp_path, FINISHED, analytics(report_of("valid"), 2))
    assert (code, "unknown:" in text) == (2, True)


def test_an_unfinished_run_is_never_called_valid(tmp_path: Path) -> None:
    broken = RunResult(finished=False, problems=["RunError: subscriber-1 did not drain"])
    code, text = demonstrate(tmp_path, broken, analytics(report_of("valid"), 0))
    assert code == 2
    assert "subscriber-1 did not drain" in text
    code, _ = demonstrate(tmp_path, broken, analytics(report_of("invalid", 1), 1))
    assert code == 1


def test_a_check_that_hangs_is_ended_at_its_bound_and_is_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo, "SPARK_S_MAX", 0.3)
    code, _ = demonstrate(
        tmp_path, FINISHED, [sys.executable, "-c", "import signal; signal.pause()"]
    )
    assert code == 2
