"""What suite.py promises: one judge for all, a table, an exit code that is never too good."""

from __future__ import annotations

import hashlib
import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from analytics.command import plain
from chaos.run import launch, suite
from chaos.run.plan import RunPlan
from chaos.run.run_result import Injection, RunResult
from chaos.run.suite import Judge, Options, Suite, SuiteRow, blackouts, exit_code
from chaos.spec import experiment
from chaos.spec.reading import ExperimentError
from chaos.targets import TargetError, UnsupportedFault
from chaos.terminal.progress import Display
from chaos.workloads.history import ProcessRecorder

# Answers each directory with the code in its file `code`, and writes a report; `crash` = it dies.
JUDGE = """
import json, sys
from pathlib import Path
print("ready", flush=True)
for line in sys.stdin:
    directory = Path(line.strip())
    code = (directory / "code").read_text()
    if code == "crash":
        sys.exit(7)
    checks = [{"name": "lost", "verdict": "invalid" if code == "1" else "valid"}]
    report = {"checks": checks, "reasons": ["too dark"] if code == "2" else []}
    (directory / "report.json").write_text(json.dumps(report))
    print(code, flush=True)
"""


def row(verdict: str, problems: tuple[str, ...] = ()) -> SuiteRow:
    return SuiteRow("x", "x", verdict, 1.0, problems=list(problems))


@pytest.mark.parametrize(
    ("rows", "code"),
    [
        ([row("valid"), row("valid")], 0),
        ([row("valid"), row("unknown")], 2),
        ([row("unknown"), row("invalid")], 1),
        ([row("valid"), row("valid", ("too slow",))], 1),
        ([row("unknown", ("did not finish",))], 2),
        ([], 2),
    ],
)
def test_the_exit_code_is_the_worst_of_all_rows_and_of_none_it_is_unknown(
    rows: list[SuiteRow], code: int
) -> None:
    assert exit_code(rows) == code


def test_a_blackout_without_an_end_is_the_worst() -> None:
    assert blackouts([]) == ("-", "-")
    assert blackouts([100.0, 300.0, 2_000.4]) == ("300", "2,000")
    assert blackouts([100.0, None]) == ("100", "no end")
    assert blackouts([None]) == ("-", "no end")


# --- the judge ------------------------------------------------------------------------------------


def judge_in(directory: Path, script: str = JUDGE) -> Judge:
    return Judge(directory / "judging.log", (sys.executable, "-c", script))


def run_directory(parent: Path, name: str, code: str) -> Path:
    directory = parent / name
    directory.mkdir()
    (directory / "code").write_text(code)
    return directory


def test_one_process_judges_many_runs_and_another_one_takes_over_when_it_dies(
    tmp_path: Path,
) -> None:
    codes = ("0", "1", "crash", "2", "9", "0")
    directories = [run_directory(tmp_path, f"r{n}", code) for n, code in enumerate(codes)]
    pids = []
    with judge_in(tmp_path) as judge:

        def judged(directory: Path) -> str:
            verdict = judge.judge(directory, lambda: None)
            pids.append(judge._process and judge._process.pid)
            return verdict

        assert [judged(directory) for directory in directories] == [
            "valid",
            "invalid",
            "unknown",
            "unknown",
            "unknown",  # not a verdict that there is
            "valid",
        ]
    assert pids[0] == pids[1] is not None
    assert pids[2] is None
    assert len({pid for pid in pids if pid}) == 3


def test_a_judge_that_does_not_answer_in_time_makes_the_verdict_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(suite, "JUDGING_S_MAX", 0.3)
    monkeypatch.setattr(suite, "STOP_S_MAX", 0.3)
    waited = []
    script = 'print("ready", flush=True); import signal; signal.pause()'
    with judge_in(tmp_path, script) as judge:
        assert judge.judge(tmp_path, lambda: waited.append(1)) == "unknown"
    assert waited


# --- the suite ------------------------------------------------------------------------------------


def options(directory: Path, **changes: Any) -> Options:
    given: dict[str, Any] = {
        "names": ("none", "kill-leader", "kill-all"),
        "target": "local",
        "nodes": 3,
        "duration_s": 0.0,
        "seconds_max": None,
        "seed": 4,
        "directory": directory / "suite",
    }
    return Options(**given | changes)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Make runs of nothing: `codes` are the verdicts' exit codes, by experiment."""
    monkeypatch.setattr(suite, "JUDGING", (sys.executable, "-c", JUDGE))

    def faking(outcomes: dict[str, RunResult | Exception], codes: dict[str, str]) -> None:
        def prepare(plan: RunPlan, target: str, nodes: int) -> Callable[[Display], RunResult]:
            def carry_out(shown: Display) -> RunResult:
                name = plan.experiment.name
                plan.directory.mkdir(parents=True)
                (plan.directory / "code").write_text(codes.get(name, "0"))
                outcome = outcomes.get(name, RunResult(finished=True, acknowledged=7))
                if isinstance(outcome, Exception):
                    raise outcome
                return outcome

            return carry_out

        monkeypatch.setattr(launch, "prepare", prepare)

    return faking


def carried_out(given: Options) -> tuple[int, str, dict[str, Any]]:
    file = io.StringIO()
    code = Suite(given, Console(file=file, width=200)).run()
    written = json.loads((given.directory / "suite.json").read_bytes())
    return code, file.getvalue(), {one["experiment"]: one for one in written["rows"]}


def test_a_suite_goes_on_after_an_experiment_that_failed_and_tells_what_each_came_to(
    tmp_path: Path, fake: Callable[..., None]
) -> None:
    killed = RunResult(finished=True, injections=[Injection("kill-leader", ["n1"], 0, 812.0)])
    fake({"none": TargetError("no port is free"), "kill-leader": killed}, {"kill-all": "1"})
    code, text, rows = carried_out(options(tmp_path))
    assert code == 1
    assert {name: one["verdict"] for name, one in rows.items()} == {
        "none": "unknown",
        "kill-leader": "valid",
        "kill-all": "invalid",
    }
    assert rows["none"]["problems"] == ["TargetError: no port is free"]
    assert rows["kill-all"]["violated"] == ["lost"]
    assert rows["kill-leader"]["gaps_ms"] == [812.0]
    assert "812" in text
    assert "seed 4" in text


def test_a_run_that_has_seen_a_violation_by_itself_is_invalid(
    tmp_path: Path, fake: Callable[..., None]
) -> None:
    broken = RunResult(finished=True, violations=["durable: x 7"], reasons=["durable: x 7"])
    fake({"none": broken}, {"none": "0"})
    code, _, rows = carried_out(options(tmp_path, names=("none",)))
    assert (code, rows["none"]["verdict"]) == (1, "invalid")


def test_any_exception_of_one_run_leaves_the_others_theirs(
    tmp_path: Path, fake: Callable[..., None]
) -> None:
    fake({"none": subprocess.TimeoutExpired("ip", 30)}, {})
    code, _, rows = carried_out(options(tmp_path))
    assert code == 2
    assert [one["verdict"] for one in rows.values()] == ["unknown", "valid", "valid"]
    assert "TimeoutExpired" in rows["none"]["problems"][0]


def test_an_experiment_that_is_named_twice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ExperimentError, match="named twice"):
        Suite(options(tmp_path, names=("none", "none")), Console())


def test_an_unknown_verdict_comes_with_its_reasons(
    tmp_path: Path, fake: Callable[..., None]
) -> None:
    fake({}, {"none": "2"})
    code, text, rows = carried_out(options(tmp_path, names=("none",)))
    assert (code, rows["none"]["reasons"]) == (2, ["too dark"])
    assert "too dark" in text


def test_no_experiment_is_begun_that_would_not_fit_into_the_time(
    tmp_path: Path, fake: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    fake({}, {})
    clock = iter(range(0, 10_000, 10))  # each look at the clock is ten seconds later
    monkeypatch.setattr(suite, "time", type("Clock", (), {"monotonic": lambda: next(clock)}))
    code, text, rows = carried_out(options(tmp_path, seconds_max=200.0, seed=5))
    assert list(rows) == ["none"]
    assert "no time for: kill-leader, kill-all" in text
    assert code == 0


@pytest.mark.parametrize(
    ("changes", "error", "complaint"),
    [
        ({"names": ("flood",)}, ExperimentError, "no experiment 'flood'"),
        ({"names": ("isolate-leader",)}, UnsupportedFault, "local cannot do isolate-leader"),
        ({"target": "compose", "nodes": 5}, TargetError, "3 nodes, not 5"),
    ],
)
def test_what_cannot_be_run_is_refused_before_anything_is_started(
    tmp_path: Path, changes: dict[str, Any], error: type[Exception], complaint: str
) -> None:
    with pytest.raises(error, match=complaint):
        Suite(options(tmp_path, **changes), Console(file=io.StringIO()))
    assert os.listdir(tmp_path) == []


def test_without_names_a_suite_has_all_that_the_target_can_do() -> None:
    names = suite.able("local")
    assert set(names) < set(experiment.names())
    assert {"none", "kill-leader", "client-twin"} <= set(names)
    assert not {"demo", "isolate-leader"} & set(names)


def test_the_index_of_a_suite_names_every_run_and_a_failure_to_write_it_is_noticed(
    tmp_path: Path,
) -> None:
    directory = run_directory(tmp_path, "kill-leader", "0")
    (directory / "run.json").write_text('{"experiment": {"name": "kill-leader"}, "seed": 3}')
    log = tmp_path / "judging.log"
    assert suite.write_index(tmp_path / "index.html", [directory], log)
    assert "kill-leader" in (tmp_path / "index.html").read_text()
    assert not suite.write_index(tmp_path / "nowhere" / "index.html", [directory], log)
    assert "FileNotFoundError" in log.read_text()


# --- judged by the twins --------------------------------------------------------------------------


def small_run(directory: Path, reasons: list[str], delivered: int, truth: list[str]) -> Path:
    """Write a run of three publications, of which `delivered` came to the subscriber."""
    history = directory / "history"
    with (
        ProcessRecorder(history, "s", "r") as subscriber,
        ProcessRecorder(history, "p", "r") as publisher,
    ):
        subscriber.client_id, publisher.client_id = "s", "p"
        op = subscriber.invoke("sub", "a")
        subscriber.complete(op, "ok", last_id=0)
        for counter in (1, 2, 3):
            op = publisher.invoke("put", "a", counter=counter, count=1)
            publisher.complete(
                op, "ok", counter=counter, count=1, first_id=counter, last_id=counter
            )
        op = subscriber.invoke("get", "a", last_id=0)
        items = [[1, "p", 1, delivered]]
        subscriber.complete(op, "ok", count=delivered, first_id=1, last_id=delivered, items=items)
        subscriber.mark_phase("drained", topic="a", last_id=3)
    outcome = RunResult(finished=True, reasons=reasons, acknowledged=3, delivered=delivered)
    document = {"run_id": "r", "outcome": asdict(outcome), "truth": {"nodes": truth}}
    document["history"] = {path.name: vouched(path) for path in sorted(history.iterdir())}
    (directory / "run.json").write_text(json.dumps(document))
    return directory


def vouched(path: Path) -> dict[str, object]:
    data = path.read_bytes()
    digest = hashlib.blake2b(data, digest_size=16).hexdigest()
    return {"lines": data.count(b"\n"), "bytes": len(data), "blake2b": digest, "closed": True}


@pytest.mark.parametrize(
    ("reasons", "delivered", "truth", "verdict"),
    [
        ([], 3, [], "valid"),
        ([], 2, [], "invalid"),
        (["too few"], 3, [], "unknown"),
        (["too few"], 2, [], "invalid"),
        ([], 3, ["n1"], "unknown"),  # whose disk nobody has read
    ],
)
def test_the_twins_judge_as_analytics_does(
    tmp_path: Path, reasons: list[str], delivered: int, truth: list[str], verdict: str
) -> None:
    directory = small_run(tmp_path, reasons, delivered, truth)
    assert plain.judge(directory) == verdict
    report = suite.read_report(directory)
    assert report["verdict"] == verdict
    found = [check["name"] for check in report["checks"] if check["verdict"] == "invalid"]
    assert found == (["lost"] if delivered < 3 else [])
    assert bool(report["reasons"]) == bool(reasons or truth)
    assert len(report["checks"]) >= 16


def test_a_line_that_cannot_be_read_makes_the_twins_verdict_unknown(tmp_path: Path) -> None:
    directory = small_run(tmp_path, [], 3, [])
    with (directory / "history" / "p.jsonl").open("ab") as file:
        file.write(b'{"f": "put", "typ\n')
    assert plain.judge(directory) == "unknown"
    longer, malformed = suite.read_report(directory)["reasons"]
    assert longer == "history/p.jsonl is longer than it was when it was closed"
    assert malformed.startswith("malformed: history/p.jsonl:7: ")


def test_a_suite_judged_by_the_twins_survives_a_run_that_never_began(
    tmp_path: Path, fake: Callable[..., None]
) -> None:
    fake({"none": TargetError("no port is free")}, {})
    code, _, rows = carried_out(options(tmp_path, names=("none",), judge=suite.TWINS))
    assert (code, rows["none"]["verdict"]) == (2, "unknown")


def test_a_suite_judged_by_whoever_fits_asks_the_twins_of_a_small_run(
    tmp_path: Path, fake: Callable[..., None]
) -> None:
    fake({}, {"none": "0"})
    code, _, rows = carried_out(options(tmp_path, names=("none",), judge="auto"))
    assert (code, rows["none"]["verdict"]) == (2, "unknown")  # no history: Spark's fake says valid
