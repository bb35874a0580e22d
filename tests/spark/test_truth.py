"""The truth of a run's directory: what is read, what is missing, and what follows from it."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from analytics import anomalies
from analytics.cli import sentence
from analytics.common.verdict import Verdict
from analytics.intake.files import contents_of
from analytics.intake.seal import seal
from analytics.intake.truth import files_of, sound, truth_of
from analytics.judge import check as checking
from analytics.judge.check import check
from tests.spark.histories import RunRecorder, write

CHEAPEST = tuple(one for one in anomalies.CHECKS if one.name == "corrupt")
NEED_TRUTH = tuple(one for one in anomalies.CHECKS if one.claim.needs_truth)


def run_with_truth() -> RunRecorder:
    run = RunRecorder()
    run.sub("s", "t")
    run.put("p", "t", 1, "ok", 2, first_id=1, last_id=2)
    run.get("s", "t", 0, [[1, "p", 1, 2]])
    run.drained("s", "t", 2)
    run.found_on("abc", "entry", index=2, term=1, digest="00ff00ff00")
    run.found_on("abc", "state", index=2, digest="00ff00ff00")
    run.held("abc", "p", "t", 1, 2)
    return run


def write_run(directory: Path, run: RunRecorder, nodes: str, expected: str | None) -> None:
    """Write a run's directory with the truth of `nodes`; that of `expected` was to be read."""
    write(directory, run.rows)
    (directory / "truth").mkdir(exist_ok=True)
    for node in nodes:
        rows = [row for row in run.truth if row["node"] == node]
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (directory / "truth" / f"{node}.jsonl").write_text(text)
    file = directory / "run.json"
    document = json.loads(file.read_text()) | {"nodes": ["a", "b", "c"]}
    if expected is not None:
        document["truth"] = {"nodes": list(expected)}
    file.write_text(json.dumps(document))
    describe(directory)


def describe(directory: Path) -> None:
    """Let run.json say what is in the files of the truth that it expects."""
    file = directory / "run.json"
    document = json.loads(file.read_text())
    due = [f"{node}.jsonl" for node in document.get("truth", {}).get("nodes", ())]
    there = [path for path in sorted((directory / "truth").iterdir()) if path.name in due]
    if due:
        files = {path.name: asdict(contents_of(path, is_lines=False).described) for path in there}
        document["truth"]["files"] = files
    file.write_text(json.dumps(document))


@pytest.fixture
def checks_of_truth(monkeypatch: pytest.MonkeyPatch, spark: SparkSession) -> None:
    assert {one.name for one in NEED_TRUTH} == {"replica_divergence", "ack_not_durable"}
    monkeypatch.setattr(checking, "CHECKS", (*NEED_TRUTH, *CHEAPEST))


@pytest.mark.slow
def test_run_without_truth_is_valid_by_the_other_checks(
    tmp_path: Path, checks_of_truth: None
) -> None:
    write_run(tmp_path, run_with_truth(), "", None)
    report = check(tmp_path)
    standings = ["not judged: no truth collected"] * 2 + ["valid"]
    assert [one.standing for one in report.checks] == standings
    assert (report.verdict, report.reasons) == (Verdict.VALID, ())
    document = report.as_dict()["checks"][0]
    assert (document["verdict"], document["not_judged"]) == (None, "no truth collected")


@pytest.mark.slow
def test_truth_is_judged_and_what_it_shows_is_told(tmp_path: Path, checks_of_truth: None) -> None:
    run = run_with_truth()
    run.truth[2]["digest"] = "ff00ff00ff"
    write_run(tmp_path, run, "abc", "abc")
    report = check(tmp_path)
    assert (report.verdict, report.reasons) == (Verdict.INVALID, ())
    [witness] = report.checks[0].witnesses
    assert sentence(witness) == "id 2 [entry: a/1/00ff00ff c/1/ff00ff00]"
    assert report.checks[1].verdict is Verdict.VALID


@pytest.mark.slow
def test_missing_truth_makes_it_unknown_unless_it_was_never_to_be_collected(
    tmp_path: Path, checks_of_truth: None
) -> None:
    write_run(tmp_path, run_with_truth(), "ab", "abc")
    report = check(tmp_path)
    assert report.verdict is Verdict.UNKNOWN
    assert report.reasons == ("truth of c is missing: its disk was to be read",)


@pytest.mark.slow
def test_a_truth_that_was_cut_or_that_nothing_vouches_for_is_never_valid(
    tmp_path: Path, checks_of_truth: None
) -> None:
    write_run(tmp_path, run_with_truth(), "abc", "abc")
    file = tmp_path / "truth" / "c.jsonl"
    data = file.read_bytes()
    lines = data.splitlines(keepends=True)
    file.write_bytes(b"".join(lines[:-1]))
    report = check(tmp_path)
    assert report.verdict is Verdict.UNKNOWN
    cut = f"truth/c.jsonl was cut: it has {len(data) - len(lines[-1])} bytes, run.json says"
    assert any(reason.startswith(cut) for reason in report.reasons)
    file.write_bytes(data)
    document = json.loads((tmp_path / "run.json").read_text())
    del document["truth"]["files"]
    (tmp_path / "run.json").write_text(json.dumps(document))
    [reason] = check(tmp_path).reasons
    assert reason.startswith("run.json does not say what is in the files of the truth")
    seal(tmp_path)
    assert check(tmp_path).verdict is Verdict.VALID


def changed(run: RunRecorder, node: str, **fields: object) -> RunRecorder:
    """Let all rows of a node say otherwise."""
    run.truth = [row | fields if row["node"] == node else row for row in run.truth]
    return run


@pytest.mark.slow
def test_malformed_truth_is_counted_and_all_of_it_may_be_missing(
    tmp_path: Path, spark: SparkSession
) -> None:
    run = run_with_truth()
    write_run(tmp_path, run, "a", "a")
    bad = ["{", '{"run_id": "run", "node": "a", "kind": "held", "topic": "t"}', "[]"]
    bad.append('{"run_id": "run", "node": "a", "kind": "rumour"}')
    bad.append("{'run_id': 'run', 'node': 'a', 'kind': 'leadership', 'term': 1}")
    bad.append('{"run_id": "run", "node": "a", "kind": "leadership", "term": "1"}')
    with files_of(tmp_path)[0].open("a") as file:
        file.write("\n".join(bad))
    describe(tmp_path)
    truth = truth_of(spark, tmp_path)
    assert truth.damage() == (f"truth/a.jsonl: {len(bad)} malformed lines",)
    assert sound(truth.rows).count() == 4
    write_run(tmp_path / "none", run, "", "abc")
    nothing = truth_of(spark, tmp_path / "none")
    assert (len(nothing.reasons()), nothing.not_judged) == (3, "no truth collected")


@pytest.mark.slow
def test_nodes_that_are_no_list_of_names_are_damage_of_the_truth(
    tmp_path: Path, spark: SparkSession
) -> None:
    write_run(tmp_path, run_with_truth(), "abc", "abc")
    document = json.loads((tmp_path / "run.json").read_text())
    (tmp_path / "run.json").write_text(json.dumps(document | {"nodes": ["a", 3]}))
    truth = truth_of(spark, tmp_path)
    assert truth.damage() == ("run.json does not say which nodes there were",)
    assert truth.members == ("a", "b", "c")


@pytest.mark.slow
def test_truth_that_is_empty_or_stateless_or_of_another_run_or_node_is_damaged(
    tmp_path: Path, spark: SparkSession
) -> None:
    run = changed(changed(run_with_truth(), "b", run_id="rum"), "c", kind="state")
    run.truth += [{**row, "node": "d"} for row in run.truth if row["node"] == "a"]
    write_run(tmp_path, run, "abcd", "abcef")
    folder = tmp_path / "truth"
    (folder / "e.jsonl").write_text("")
    (folder / "f.jsonl").write_bytes((folder / "a.jsonl").read_bytes())
    lines = (folder / "a.jsonl").read_text().splitlines(keepends=True)
    (folder / "a.jsonl").write_text("".join(one for one in lines if "state" not in one))
    (folder / ".a.jsonl").write_text("".join(lines))
    describe(tmp_path)
    truth = truth_of(spark, tmp_path)
    assert set(truth.damage()) == {
        "truth/.a.jsonl is not read: it is of no node whose disk was to be read",
        "truth/d.jsonl is not read: it is of no node whose disk was to be read",
        "truth/a.jsonl has no state",
        "truth/b.jsonl: 4 rows are of another run or node",
        "truth/b.jsonl has no state",
        "truth/c.jsonl: 2 malformed lines",
        "truth/e.jsonl has no row",
        "truth/f.jsonl: 4 rows are of another run or node",
        "truth/f.jsonl has no state",
    }
