"""Which findings count in a run of which something could not be read, by Spark and the twins."""

import json
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from analytics import check as checking
from analytics.anomalies import CHECKS
from analytics.check import check
from analytics.load import Intake
from analytics.verdict import CheckResult, Operation, Report, Verdict
from analytics.wholeness import TORN_MARK, Orphans, wholeness_of
from chaos import twins
from tests.spark.histories import Run, write

# One that rests on what is not there, one that does not, one that applications aren't judged by.
FEW = tuple(one for one in CHECKS if one.name in ("lost", "corrupt", "phantom"))
OUTCOME = {"finished": True, "reasons": [], "injections": []}
ABSENCE = "it rests on what is not there, and part of the history could not be read"


def recorded() -> Run:
    """Return a correct run: PUTs 1 to 3, a GET of 1 and 2, one of 3, and the drain."""
    run = Run()
    run.sub("s", "t")
    run.put("p", "t", 1, "ok", 3, first_id=1, last_id=3)
    run.get("s", "t", 0, [[1, "p", 1, 2]])
    run.get("s", "t", 2, [[3, "p", 3, 1]])
    run.drained("s", "t", 3)
    run.rows[-1]["op_id"] = 9
    return run


def answer_malformed(history: Path) -> None:
    """Damage the first GET's answer: line 4 of the subscriber's, behind SUB and the invoke."""
    lines = (history / "s.jsonl").read_text().splitlines()
    lines[3] = lines[3][:-9]
    (history / "s.jsonl").write_text("\n".join(lines) + "\n")


def answer_lost(history: Path) -> None:
    """Let the broker have left out the first publication, and the last one."""
    lines = (history / "s.jsonl").read_text().splitlines()
    lines[3] = lines[3].replace("[[1,", "[[2,").replace('"p",1,2]', '"p",2,1]')
    del lines[4:6]
    (history / "s.jsonl").write_text("\n".join(lines) + "\n")


def invoke_gone(history: Path) -> None:
    lines = (history / "p.jsonl").read_text().splitlines()
    (history / "p.jsonl").write_text(lines[1] + "\n")


def both_gone(history: Path) -> None:
    """Take away an invoke and an answer: they are of the same number of operations."""
    invoke_gone(history)
    answer_malformed(history)


def torn(history: Path) -> None:
    """Kill a recording process twice while it writes; it has come back once."""
    answer_lost(history)
    first, *others = (history / "s.jsonl").read_text().split("\n")
    half = '{"run_id":"run","proc'
    (history / "s.jsonl").write_text("\n".join([first, half + TORN_MARK, *others]) + half)


def corrupt_too(history: Path) -> None:
    answer_malformed(history)
    text = (history / "s.jsonl").read_text()
    (history / "s.jsonl").write_text(
        text.replace('"count":1,', '"corrupt":[[4,"checksum"]],"count":1,')
    )


def of_another_run(history: Path) -> None:
    lines = (history / "s.jsonl").read_text().splitlines()
    lines[2:4] = [line.replace('"run_id":"run"', '"run_id":"rum"') for line in lines[2:4]]
    (history / "s.jsonl").write_text("\n".join(lines) + "\n")


def unfinished(history: Path) -> None:
    """Leave the run's file as a runner that is killed leaves it: nothing speaks against the run."""
    document = {"run_id": "run", "outcome": {**OUTCOME, "finished": False}}
    (history.parent / "run.json").write_text(json.dumps(document))


def nothing(_: Path) -> None:
    pass


def found(report: Report) -> dict[str, int]:
    return {one.name: one.count for one in report.checks if one.count}


Case = tuple[Callable[[Path], None], Verdict, dict[str, int], tuple[str, ...]]
OF_BOTH: tuple[Case, ...] = (
    (corrupt_too, Verdict.INVALID, {"lost": 2, "corrupt": 1}, ("1 malformed lines", ABSENCE)),
    (of_another_run, Verdict.UNKNOWN, {"lost": 2}, ("2 lines are of another run", ABSENCE)),
    (both_gone, Verdict.UNKNOWN, {"lost": 2}, ("such as p op 1", "1 malformed", ABSENCE)),
)
OF_TWINS: tuple[Case, ...] = (
    (nothing, Verdict.VALID, {}, ()),
    (unfinished, Verdict.UNKNOWN, {}, ("the run did not finish",)),
    (answer_lost, Verdict.INVALID, {"lost": 2, "gap": 1}, ()),
    (torn, Verdict.INVALID, {"lost": 2, "gap": 1}, ()),
    (answer_malformed, Verdict.UNKNOWN, {"lost": 2}, ("1 malformed lines", ABSENCE)),
    (invoke_gone, Verdict.UNKNOWN, {}, ("1 completion has no invoke, such as p op 1",)),
)


def write_damaged(directory: Path, damage: Callable[[Path], None]) -> None:
    write(directory, recorded().rows)
    (directory / "run.json").write_text(json.dumps({"run_id": "run", "outcome": OUTCOME}))
    damage(directory / "history")


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch, spark: SparkSession) -> None:
    monkeypatch.setattr(checking, "CHECKS", FEW)


def is_as(report: Report, case: Case) -> None:
    _, verdict, evidence, said = case
    assert (report.verdict, found(report)) == (verdict, evidence)
    reasons = "; ".join(report.reasons)
    assert [one for one in said if one not in reasons] == []
    assert bool(reasons) == bool(said)


@pytest.mark.parametrize("case", [*OF_TWINS, *OF_BOTH], ids=lambda case: case[0].__name__)
def test_what_rests_on_absence_is_no_proof_where_a_line_is_missing(
    tmp_path: Path, case: Case
) -> None:
    write_damaged(tmp_path, case[0])
    is_as(twins.report_of(tmp_path), case)


@pytest.mark.slow
@pytest.mark.parametrize("case", OF_BOTH, ids=lambda case: case[0].__name__)
def test_spark_says_the_same_of_a_run_with_a_missing_line(
    tmp_path: Path, few: None, case: Case
) -> None:
    write_damaged(tmp_path, case[0])
    report = check(tmp_path)
    is_as(report, case)
    told = {one.name: one for one in twins.report_of(tmp_path).checks}
    for one in report.checks:
        same = told[one.name]
        assert (one.count, one.verdict, one.no_proof) == (same.count, same.verdict, same.no_proof)


@pytest.mark.slow
def test_torn_end_weakens_nothing_and_twins_and_spark_report_in_one_form(
    tmp_path: Path, few: None
) -> None:
    write_damaged(tmp_path, torn)
    by_spark, by_twins = check(tmp_path), twins.report_of(tmp_path)
    assert (by_spark.verdict, by_spark.torn_lines) == (Verdict.INVALID, 2)
    expected, told = by_spark.as_dict(), by_twins.as_dict()
    assert told.keys() == expected.keys()
    for name in ("verdict", "lines", "torn_lines", "malformed_lines", "reasons"):
        assert told[name] == expected[name]
    seen, own = told["observations"], expected["observations"]
    counts = ("acknowledged", "delivered", "recovered", "undrained_count", "unplaced_answers")
    assert [seen[name] for name in counts] == [own[name] for name in counts] == [3, 1, 0, 0, 0]
    lost, same = told["checks"][0], expected["checks"][0]
    assert lost.keys() == same.keys() == {one.name for one in fields(CheckResult)} | {"verdict"}
    for proof, other in zip(lost["witnesses"], same["witnesses"], strict=True):
        # The twins don't look up what went past.
        assert {**proof, "operations": 0} == {**other, "operations": 0}
        assert proof["operations"] == other["operations"][:2]
    truth = next(one for one in told["checks"] if one["name"] == "ack_not_durable")
    assert (truth["verdict"], truth["not_judged"]) == (None, "no truth collected")
    prefix, tail = by_spark.checks[0].witnesses
    assert (prefix.detail, tail.detail) == ("prefix", "tail")
    assert prefix.operations[-1] == Operation("s", 2, ("history/s.jsonl:4", "history/s.jsonl:5"))
    assert tail.operations[-1] == Operation("s", 9, ("history/s.jsonl:6",))


@pytest.mark.parametrize(
    ("intake", "orphans", "is_damaged"),
    [
        (Intake("run", torn_lines=3), Orphans(), False),
        (Intake("run", unreadable=("run.json: No such file or directory",)), Orphans(), False),
        (Intake("run", unreadable=("p.jsonl: Permission denied",)), Orphans(), True),
        (Intake("run", malformed_lines=1), Orphans(), True),
        (Intake("run", foreign_lines=1), Orphans(), True),
        (Intake("run"), Orphans(1, ("p", 1)), True),
    ],
)
def test_history_is_damaged_where_a_line_is_missing_that_somebody_relied_on(
    intake: Intake, orphans: Orphans, is_damaged: bool
) -> None:
    whole = wholeness_of(checking.damage_of(intake, orphans), ())
    assert bool(whole.no_proof("lost")) == is_damaged
    assert (whole.no_proof("corrupt"), whole.no_proof("ack_not_durable")) == (None, None)
    assert wholeness_of((), ("1 malformed",)).no_proof("ack_not_durable")
