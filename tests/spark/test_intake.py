"""What no recorder writes is noticed: lines, files and numbers that may not be believed."""

import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from analytics.load import Intake, load, parse
from analytics.seal import seal
from tests.spark.histories import Row, Run, write

pytestmark = pytest.mark.slow

OTHER = b'{"f":"put","type":"ok"}'


def line_of(row: Row) -> bytes:
    return json.dumps(row, separators=(",", ":")).encode()


@pytest.fixture
def run() -> Run:
    run = Run()
    run.sub("s", "t")
    run.put("p", "t", 1, "ok", first_id=1, last_id=1)
    run.get("s", "t", 0, [[1, "p", 1, 1]])
    return run


def taken_in(spark: SparkSession, directory: Path, last_line: bytes) -> Intake:
    with (directory / "history" / "s.jsonl").open("ab") as file:
        file.write(last_line)
    seal(directory)
    return load(spark, directory).intake


def malformed(spark: SparkSession, directory: Path, *lines: bytes) -> list[bool]:
    """Return whether each line is malformed, in order."""
    (directory / "lines").write_bytes(b"\n".join(lines))
    rows = parse(spark.read.text(str(directory / "lines")).coalesce(1)).select("malformed")
    return [row.malformed for row in rows.collect()]


def test_whatever_stands_behind_the_object_of_a_line_makes_it_malformed(
    tmp_path: Path, spark: SparkSession, run: Run
) -> None:
    line = line_of(run.rows[-1])
    endings = (b"", OTHER, b" " + OTHER, b"\0\0" + OTHER, b"," + OTHER, b"\t" + OTHER, b" garbage")
    found = malformed(spark, tmp_path, *(line + ending for ending in endings))
    assert found == [False, True, True, True, True, True, True]


def test_numbers_and_texts_that_no_recorder_writes_make_a_line_malformed(
    tmp_path: Path, spark: SparkSession, run: Run
) -> None:
    wrong: list[Row] = [
        {"last_id": -1},
        {"asked": -1},
        {"first_id": 2**53 + 1},
        {"count": 2**24 + 1},
        {"items": [[2**63 - 2, "p", 1, 1]]},
        {"items": [[1, "p", 1, 2**62]]},
        {"items": [[1, "p", -1, 1]]},
        {"corrupt": [[-1, "format"]]},
        {"topic": "ord\udcff"},
    ]
    rows = [json.dumps({**run.rows[-1], **fields}, ensure_ascii=False) for fields in wrong]
    lines = [row.encode(errors="surrogateescape") for row in rows]
    found = malformed(spark, tmp_path, *lines, line_of(run.rows[-1]))
    assert found == [True] * len(wrong) + [False]


def test_a_blank_end_hides_no_malformed_line(tmp_path: Path, spark: SparkSession, run: Run) -> None:
    write(tmp_path, run.rows)
    intake = taken_in(spark, tmp_path, b'{"damaged":\n ')
    assert (intake.torn_lines, intake.malformed_lines) == (0, 1)


def test_a_torn_end_is_torn_however_deep_it_is(
    tmp_path: Path, spark: SparkSession, run: Run
) -> None:
    write(tmp_path, run.rows)
    intake = taken_in(spark, tmp_path, b'{"items":' + b"[" * 100_000)
    assert (intake.torn_lines, intake.malformed_lines) == (1, 0)


def test_a_directory_may_have_a_space_and_an_umlaut_in_its_name(
    tmp_path: Path, spark: SparkSession, run: Run
) -> None:
    directory = tmp_path / "my rüns"
    write(directory, run.rows)
    assert load(spark, directory).intake.lines == len(run.rows)
