"""From a directory to a verdict: what is read, what is cached, what makes a run unknown."""

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from pyspark.sql import DataFrame, SparkSession

from analytics import anomalies
from analytics.cli import main
from analytics.common.verdict import Verdict
from analytics.intake.cache import HistoryError, held
from analytics.intake.seal import seal
from analytics.judge import check as checking
from analytics.judge.check import check
from analytics.judge.load import load
from analytics.tables.tables import Tables
from tests.spark.histories import RunRecorder, write

# The cheapest one: enough for what is not about checks.
ONE_CHECK = tuple(one for one in anomalies.CHECKS if one.name == "corrupt")
[A_CRASHED_ONE] = (one for one in anomalies.CHECKS if one.name == "gap")


def clean() -> RunRecorder:
    run = RunRecorder()
    run.sub("s", "t")
    run.put("p", "t", 1, "ok", 2, first_id=1, last_id=2)
    run.fault("kill", "inject")
    run.put("p", "t", 3, "info", error="timeout")
    run.put("p", "t", 4, "ok", first_id=4, last_id=4)
    run.get("s", "t", 0, [[1, "p", 1, 4]])
    run.drained("s", "t", 4)
    return run


@pytest.fixture
def one_check(monkeypatch: pytest.MonkeyPatch, spark: SparkSession) -> None:
    monkeypatch.setattr(checking, "CHECKS", ONE_CHECK)


@pytest.mark.slow  # the counts are asked for below as well, and each check is 60 plans
def test_clean_run_is_valid_with_its_counts(tmp_path: Path, one_check: None) -> None:
    write(tmp_path, clean().rows)
    report = check(tmp_path)
    seen = report.observations
    assert (report.verdict, report.reasons, report.run_id) == (Verdict.VALID, (), "run")
    assert (seen.acknowledged, seen.delivered, seen.recovered) == (3, 4, 1)
    assert [(fault.name, fault.targets, fault.blackout_ms) for fault in seen.faults] == [
        ("kill", ("node-1",), 5.0)
    ]


DUE = "1 delayed publications were due, and not seen to come to all who subscribed"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ms", "came", "reasons"), [(5, False, (DUE,)), (5, True, ()), (900, False, ())]
)
def test_what_was_due_has_to_be_seen_to_come(
    tmp_path: Path, one_check: None, ms: int, came: bool, reasons: tuple[str, ...]
) -> None:
    run = clean()
    put = run.invoke("p", "put", "t\x1fdelayed", counter=1, count=1, delays=[[1, 1, ms]])
    run.complete(put, "ok", first_id=1, last_id=1)
    run.wait(50)
    brought = {"first_id": 5, "last_id": 5, "count": 1, "delayed": [[5, "p", 1, 1]]}
    run.get("s", "t", 4, [], **(brought if came else {}))
    write(tmp_path, run.rows)
    assert check(tmp_path).reasons == reasons


def crash(_tables: Tables) -> DataFrame:
    raise ZeroDivisionError("on purpose")


@pytest.mark.slow
def test_violation_is_invalid_exits_1_and_names_file_and_line_whatever_else_crashed(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checking, "CHECKS", (*ONE_CHECK, replace(A_CRASHED_ONE, find=crash)))
    run = clean()
    run.get("s", "t", 4, [], corrupt=[[5, "checksum"]])
    write(tmp_path, run.rows)
    result = CliRunner().invoke(
        main, ["--judge", "spark", str(tmp_path), "--json", str(tmp_path / "report.json")]
    )
    report = json.loads((tmp_path / "report.json").read_text())
    assert result.exit_code == 1, result.output
    witness = report["checks"][0]["witnesses"][0]
    assert (report["verdict"], witness["id"], witness["detail"]) == ("invalid", 5, "checksum")
    assert report["reasons"] == ["check gap crashed: ZeroDivisionError: on purpose"]
    seen = report["observations"]
    assert (seen["acknowledged"], seen["delivered"], seen["recovered"]) == (3, 5, 1)
    assert [fault["name"] for fault in seen["faults"]] == ["kill"]
    assert witness["operations"][0]["lines"] == ["history/s.jsonl:6", "history/s.jsonl:7"]


@pytest.mark.slow
def test_bad_lines_make_it_unknown_but_a_torn_tail_does_not(
    tmp_path: Path, spark: SparkSession
) -> None:
    write(tmp_path, clean().rows)
    path = tmp_path / "history" / "p.jsonl"
    good = path.read_text()
    path.write_text(good + good.splitlines()[0][:40])
    seal(tmp_path)
    torn = load(spark, tmp_path).intake
    assert (torn.torn_lines, torn.malformed_lines, torn.reasons()) == (1, 0, ())
    first, second = good.splitlines()[:2]
    no_items = second.replace('"f":"put"', '"f":"get","items":[["x","p",1,1]]')
    bad = [first + second, first.replace('"counter":1,', ""), no_items, "[]", "null", "{"]
    path.write_text("\n".join([*bad, good]))
    seal(tmp_path)
    intake = load(spark, tmp_path).intake
    assert intake.malformed_lines == len(bad), intake
    [reason] = intake.reasons()
    assert "malformed lines, such as p.jsonl: " in reason


@pytest.mark.slow
def test_cache_is_used_until_an_input_changes(tmp_path: Path, spark: SparkSession) -> None:
    write(tmp_path, clean().rows)
    load(spark, tmp_path)
    made_ns = (tmp_path / "parquet" / "manifest.json").stat().st_mtime_ns
    again = load(spark, tmp_path)
    assert (tmp_path / "parquet" / "manifest.json").stat().st_mtime_ns == made_ns
    assert again.intake.lines == again.events.count() == len(clean().rows)
    more = clean()
    more.put("p", "t", 5, "ok", first_id=5, last_id=5)
    write(tmp_path, more.rows)
    assert load(spark, tmp_path).events.count() == len(more.rows)


@pytest.mark.slow
def test_too_little_or_undrained_is_unknown_and_exits_2(tmp_path: Path, one_check: None) -> None:
    run = RunRecorder()
    run.sub("s", "t")
    run.put("p", "t", 1, "info", error="timeout")
    write(tmp_path, run.rows)
    result = CliRunner().invoke(main, ["--judge", "spark", str(tmp_path)])
    assert result.exit_code == 2, result.output
    for reason in ("0 publications acknowledged", "0 publications delivered", "such as s t"):
        assert reason in result.output


@pytest.mark.slow
def test_crashed_check_is_never_a_pass(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checking, "CHECKS", (replace(ONE_CHECK[0], find=crash),))
    write(tmp_path, clean().rows)
    report = check(tmp_path)
    assert report.verdict is Verdict.UNKNOWN
    assert report.reasons == ("check corrupt crashed: ZeroDivisionError: on purpose",)


@pytest.mark.slow
def test_files_that_cannot_be_read_are_named(tmp_path: Path, spark: SparkSession) -> None:
    with pytest.raises(HistoryError, match=r"no \*\.jsonl files"):
        load(spark, tmp_path)
    write(tmp_path, clean().rows)
    (tmp_path / "history" / "gone.jsonl").symlink_to(tmp_path / "nowhere")
    (tmp_path / "run.json").write_text("{}")
    intake = load(spark, tmp_path).intake
    assert intake.damage() == ("history/gone.jsonl is not read: it is no file",)
    assert [reason.split(":")[0] for reason in intake.unvouched] == [
        "run.json",
        "run.json has no `history`",
    ]


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["--violations", "lost=1"], "planted by --generate"),
        (["--json", "/nowhere/report.json"], "/nowhere is no directory"),
    ],
)
def test_what_would_be_in_vain_is_refused_before_spark_starts(
    tmp_path: Path, options: list[str], complaint: str
) -> None:
    done = CliRunner().invoke(main, ["--judge", "spark", str(tmp_path), *options])
    assert done.exit_code == 2
    assert complaint in done.output


@pytest.mark.slow
def test_input_changed_behind_its_size_and_time_is_read_anew(
    tmp_path: Path, spark: SparkSession
) -> None:
    write(tmp_path, clean().rows)
    load(spark, tmp_path)
    path = tmp_path / "history" / "s.jsonl"
    before, text = path.stat(), path.read_text()
    drained = text.splitlines()[-1]
    path.write_text(text.replace(drained, " " * len(drained)))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    after = path.stat()
    assert (after.st_size, after.st_mtime_ns) == (before.st_size, before.st_mtime_ns)
    assert load(spark, tmp_path).events.count() == len(clean().rows) - 1


@pytest.mark.slow
def test_kept_table_without_its_files_is_made_anew(tmp_path: Path, spark: SparkSession) -> None:
    write(tmp_path, clean().rows)
    load(spark, tmp_path)
    for part in (tmp_path / "parquet" / "events").glob("part-*"):
        part.unlink()
    assert load(spark, tmp_path).events.count() == len(clean().rows)


@pytest.mark.slow
def test_damaged_cache_is_named_with_its_remedy_and_exits_2(
    tmp_path: Path, spark: SparkSession
) -> None:
    write(tmp_path, clean().rows)
    load(spark, tmp_path)
    for part in (tmp_path / "parquet" / "events").glob("part-*"):
        part.write_bytes(b"?" * part.stat().st_size)
    result = CliRunner().invoke(main, ["--judge", "spark", str(tmp_path)])
    remedy = f"the kept tables in {tmp_path}/parquet are damaged: remove that directory"
    assert (result.exit_code, result.output.splitlines()) == (2, [f"unknown: {remedy}"])


@pytest.mark.slow
def test_check_of_a_run_that_is_being_checked_ends_at_once_and_exits_2(
    tmp_path: Path, one_check: None
) -> None:
    write(tmp_path, clean().rows)
    with held(tmp_path):
        result = CliRunner().invoke(main, ["--judge", "spark", str(tmp_path)])
    said = [f"unknown: another check of {tmp_path} is running"]
    assert (result.exit_code, result.output.splitlines()) == (2, said)
    assert not (tmp_path / "parquet").exists()
    with held(tmp_path):
        pass  # and when that one has ended, the next may


@contextmanager
def lock_barred(directory: Path) -> Iterator[None]:
    """Have a directory in the place of a file that is to be written."""
    (directory / ".check.lock").mkdir()
    yield


@contextmanager
def read_only(directory: Path) -> Iterator[None]:
    """Mount `directory` upon itself for reading only."""
    subprocess.run(["mount", "--bind", directory, directory], check=True, timeout=10)
    try:
        options = ["mount", "-o", "remount,ro,bind", directory]
        subprocess.run(options, check=True, timeout=10)
        yield
    finally:
        subprocess.run(["umount", directory], check=True, timeout=10)


@pytest.mark.parametrize(
    ("barred", "reason"),
    [
        (lock_barred, "Is a directory"),
        pytest.param(read_only, "Read-only file system", marks=pytest.mark.root),
    ],
)
def test_directory_that_cannot_be_written_is_said_to_be(
    tmp_path: Path, barred: Callable[[Path], AbstractContextManager[None]], reason: str
) -> None:
    write(tmp_path, clean().rows)
    with barred(tmp_path), pytest.raises(HistoryError) as raised:
        check(tmp_path)
    assert str(raised.value) == f"{tmp_path} can't be written: {reason}"
