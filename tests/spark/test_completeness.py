"""Which findings count in a run of which something could not be read."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from analytics.anomalies import CHECKS
from analytics.common.verdict import Report, Verdict, WitnessOperation
from analytics.intake.completeness import TORN_MARK, completeness_of
from analytics.intake.seal import seal
from analytics.judge import check as checking
from analytics.judge.check import check
from analytics.judge.load import LoadedFiles
from tests.spark.histories import RunRecorder, write

# One that rests on what is not there, one that does not, one that applications aren't judged by.
FEW = tuple(one for one in CHECKS if one.name in ("lost", "corrupt", "phantom"))
OUTCOME = {"finished": True, "reasons": [], "injections": []}
ABSENCE = "it rests on what is not there, and part of the history could not be read"


def recorded() -> RunRecorder:
    """Return a correct run: PUTs 1 to 3, a GET of 1 and 2, one of 3, and the drain."""
    run = RunRecorder()
    run.sub("s", "t")
    run.put("p", "t", 1, "ok", 3, first_id=1, last_id=3)
    run.get("s", "t", 0, [[1, "p", 1, 2]])
    run.get("s", "t", 2, [[3, "p", 3, 1]])
    run.drained("s", "t", 3)
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
    lines[3] = lines[3].replace('"count":2', '"count":1')
    del lines[4:6]
    lines[4] = lines[4].replace('"op_id":4', '"op_id":3')
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
    sub, subscribed, *others = (history / "s.jsonl").read_text().split("\n")
    later = [line.replace('"session":0', '"session":1') for line in others]
    half = '{"run_id":"run","proc'
    lines = [sub, subscribed, half + TORN_MARK, *later]
    (history / "s.jsonl").write_text("\n".join(lines) + half)


def torn_amid_a_session(history: Path) -> None:
    """Let a mark stand where no process has ended: whatever was there, somebody relied on it."""
    torn(history)
    text = (history / "s.jsonl").read_text()
    (history / "s.jsonl").write_text(text.replace('"session":1', '"session":0'))


def corrupt_too(history: Path) -> None:
    answer_malformed(history)
    text = (history / "s.jsonl").read_text()
    (history / "s.jsonl").write_text(
        text.replace('"count":1,', '"corrupt":[[4,"checksum"]],"count":2,')
    )


def of_another_run(history: Path) -> None:
    lines = (history / "s.jsonl").read_text().splitlines()
    lines[2:4] = [line.replace('"run_id":"run"', '"run_id":"rum"') for line in lines[2:4]]
    (history / "s.jsonl").write_text("\n".join(lines) + "\n")


def unfinished(history: Path) -> None:
    """Leave the run's file as a runner that is killed leaves it: nothing speaks against the run."""
    file = history.parent / "run.json"
    document = json.loads(file.read_text())
    file.write_text(json.dumps(document | {"outcome": {**OUTCOME, "finished": False}}))


def nothing(_: Path) -> None:
    pass


def found(report: Report) -> dict[str, int]:
    return {one.name: one.count for one in report.checks if one.count}


Case = tuple[Callable[[Path], None], Verdict, dict[str, int], tuple[str, ...]]
CASES: tuple[Case, ...] = (
    (nothing, Verdict.VALID, {}, ()),
    (unfinished, Verdict.UNKNOWN, {}, ("the run did not finish",)),
    (answer_lost, Verdict.INVALID, {"lost": 2}, ()),
    (torn, Verdict.INVALID, {"lost": 2}, ()),
    (torn_amid_a_session, Verdict.UNKNOWN, {"lost": 2}, ("s.jsonl:3 was cut off", ABSENCE)),
    (answer_malformed, Verdict.UNKNOWN, {"lost": 2}, ("1 malformed lines", ABSENCE)),
    (
        invoke_gone,
        Verdict.UNKNOWN,
        {},
        ("1 ends without an invoke, such as p op 1",),
    ),
    (corrupt_too, Verdict.INVALID, {"lost": 2, "corrupt": 1}, ("1 malformed lines", ABSENCE)),
    (of_another_run, Verdict.UNKNOWN, {"lost": 2}, ("2 lines are of another run", ABSENCE)),
    (both_gone, Verdict.UNKNOWN, {"lost": 2}, ("such as p op 1", "1 malformed", ABSENCE)),
)


def write_damaged(directory: Path, damage: Callable[[Path], None]) -> None:
    write(directory, recorded().rows, outcome=OUTCOME)
    damage(directory / "history")
    seal(directory)


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch, spark: SparkSession) -> None:
    monkeypatch.setattr(checking, "CHECKS", FEW)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0].__name__)
def test_what_rests_on_absence_is_no_proof_where_a_line_is_missing(
    tmp_path: Path, few: None, case: Case
) -> None:
    damage, verdict, evidence, said = case
    write_damaged(tmp_path, damage)
    report = check(tmp_path)
    assert (report.verdict, found(report)) == (verdict, evidence)
    reasons = "; ".join(report.reasons)
    assert [one for one in said if one not in reasons] == []
    assert bool(reasons) == bool(said)


@pytest.mark.slow
def test_torn_ends_are_counted_and_witnesses_stand_where_they_stood(
    tmp_path: Path, few: None
) -> None:
    write_damaged(tmp_path, torn)
    report = check(tmp_path)
    assert (report.verdict, report.torn_lines) == (Verdict.INVALID, 2)
    prefix, last = report.checks[0].witnesses
    assert (prefix.detail, last.detail) == ("prefix", "middle")  # it asks for what follows 3
    assert prefix.operations[-1] == WitnessOperation(
        "s", 2, ("history/s.jsonl:4", "history/s.jsonl:5")
    )
    assert last.operations[-1] == WitnessOperation("s", 3, ("history/s.jsonl:6",))


@pytest.mark.parametrize(
    ("intake", "is_damaged"),
    [
        (LoadedFiles("run", torn_lines=3), False),
        (LoadedFiles("run", unvouched=("run.json can't be read: No such file",)), False),
        (LoadedFiles("run", remarks=("history/p.jsonl was not closed",)), False),
        (LoadedFiles("run", holes=("history/p.jsonl can't be read: Permission denied",)), True),
        (LoadedFiles("run", malformed_lines=1), True),
        (LoadedFiles("run", foreign_lines=1), True),
    ],
)
def test_history_is_damaged_where_a_line_is_missing_that_somebody_relied_on(
    intake: LoadedFiles, is_damaged: bool
) -> None:
    whole = completeness_of(intake.damage(), ())
    assert bool(whole.no_proof("lost")) == is_damaged
    assert (whole.no_proof("corrupt"), whole.no_proof("ack_not_durable")) == (None, None)
    assert completeness_of((), ("1 malformed",)).no_proof("ack_not_durable")
