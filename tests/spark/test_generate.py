"""Big synthetic histories: what is planted is found exactly, and nothing else is."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from analytics.cli import main
from analytics.common import session
from analytics.common.check_specs import CHECK_SPECS
from analytics.generate import operations as ops
from analytics.generate.scripts import EVERY_PLANT
from analytics.generate.shape import BadShape, Shape, violations_of
from analytics.generate.writing import generate
from analytics.intake.seal import seal
from analytics.judge.check import check
from analytics.judge.load import PARQUET, load, parse
from analytics.twins.judging import judge
from tests.judges.words import word_of

pytestmark = pytest.mark.spark

SMALL = Shape(operations=165_000, topics=4, producers=4, hot_percent=40, seed=7)
EVERY_KIND = dict.fromkeys(EVERY_PLANT, 2)


def evidence_of(directory: Path) -> dict[str, list[list[Any]]]:
    """Return [topic, id, word] of all evidence, by check, of a run that was checked."""
    found = {}
    for path in (directory / "parquet" / "evidence").iterdir():
        spark = SparkSession.getActiveSession()
        assert spark is not None
        rows = spark.read.parquet(str(path)).select("topic", "id", "detail").collect()
        found[path.name] = told(path.name, rows)
    return {name: rows for name, rows in found.items() if rows}


def told(check: str, rows: Iterable[Any]) -> list[list[Any]]:
    """Return rows of a check as `planted.json` has them, and in that order."""
    found = [(row.topic, row.id, word_of(check, row.detail)) for row in rows]
    return [list(row) for row in sorted(found, key=repr)]


@pytest.mark.slow
@pytest.mark.timeout(3_600)
def test_each_planted_violation_is_found_and_no_other(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "LINES_SHORT_MAX", -1)  # as long ones are: compiled, on disk
    answers = generate(spark, tmp_path, SMALL, EVERY_KIND)

    report = check(tmp_path)

    assert answers["expected"].keys() == CHECK_SPECS.keys()
    assert evidence_of(tmp_path) == answers["expected"]
    seen = report.observations
    assert (seen.acknowledged, seen.delivered) == (answers["acknowledged"], answers["delivered"])
    assert report.reasons == ()
    assert [fault.name for fault in seen.faults] == ["kill-leader"] * ops.FAULTS


@pytest.mark.slow
@pytest.mark.timeout(3_600)
def test_lines_and_parquet_hold_the_same_and_both_judges_find_it(
    spark: SparkSession, tmp_path: Path
) -> None:
    shape = Shape(operations=50_000, topics=2, producers=2, subscribers=2, seed=3)
    answers = generate(spark, tmp_path / "lines", shape, EVERY_KIND, as_jsonl=True)
    generate(spark, tmp_path / "parquet", shape, EVERY_KIND)
    lines = spark.read.text(str(tmp_path / "lines" / "history"))
    read = parse(lines).where(~F.col("malformed")).drop("malformed", "value")
    kept = spark.read.parquet(str(tmp_path / "parquet" / PARQUET)).select(*read.columns)

    assert read.count() == lines.count() == kept.count()
    assert read.exceptAll(kept).count() == 0

    check(tmp_path / "lines")
    assert evidence_of(tmp_path / "lines") == answers["expected"]
    judgement = judge(tmp_path / "lines")
    assert judgement.reasons == ()
    found = {name: told(name, rows) for name, rows in judgement.evidence.items() if rows}
    assert found == answers["expected"]


@pytest.mark.slow
def test_numbers_and_columns_place_publications_alike(spark: SparkSession) -> None:
    rows = spark.range(200).select(
        "id", F.struct(*(at.alias(name) for name, at in SMALL.place_of(F.col("id")).items()))
    )
    for number, place in rows.collect():
        assert place.asDict() == SMALL.place_of(number)
        assert SMALL.number_of(place["round"], place["slot"], place["producer"]) == number


@pytest.mark.slow
def test_ids_and_counters_have_no_holes() -> None:
    places = [SMALL.place_of(number) for number in range(SMALL.round_size * 5)]
    for topic in range(SMALL.topics):
        ids = [place["id"] for place in places if place["topic"] == topic]
        assert ids == list(range(1, len(ids) + 1))
        counters = [
            place["counter"]
            for place in places
            if place["topic"] == topic and place["producer"] == 1
        ]
        assert counters == list(range(1, len(counters) + 1))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sizes", "spec", "message"),
    [
        ({"operations": 10}, "", "operations is 10: not in"),
        ({"operations": 10**6, "producers": 1}, "", "producers is 1: not in 2"),
        ({"operations": 10**6}, "lots=1", "no violation is called 'lots'"),
        ({"operations": 10**6}, "lost=0", "lost=0: the number must be in"),
        ({"operations": 10**6}, "lost=1,lost=2", "lost is asked for twice"),
    ],
)
def test_bad_sizes_are_refused(sizes: dict[str, int], spec: str, message: str) -> None:
    with pytest.raises(BadShape, match=message):
        print(Shape(**sizes), violations_of(spec, EVERY_PLANT))


@pytest.mark.slow
def test_command_generates_once_and_says_why_it_cannot(spark: SparkSession, tmp_path: Path) -> None:
    command = [str(tmp_path), "--generate", "800", "--topics", "2", "--producers", "2"]
    refused = CliRunner().invoke(main, [*command, "--violations", "lost=100"])
    assert "100 violations need" in refused.output
    made = CliRunner().invoke(main, [*command, "--violations", "lost=1"])
    assert made.exit_code == 0, made.output
    again = CliRunner().invoke(main, command)
    assert again.exit_code == 2
    assert "there is a run in" in again.output


@pytest.mark.slow
def test_bad_rows_in_parquet_are_counted_and_left_out(spark: SparkSession, tmp_path: Path) -> None:
    shape = Shape(operations=64, topics=2, producers=2)
    generate(spark, tmp_path, shape, {})
    good = spark.read.parquet(str(tmp_path / PARQUET))
    rows = good.count()
    bad = (
        good.where("f = 'put' and type = 'invoke'")
        .limit(3)
        .withColumn("counter", F.lit(None).cast("bigint"))
    )
    bad.write.mode("append").parquet(str(tmp_path / PARQUET))
    seal(tmp_path)

    history = load(spark, tmp_path)

    assert (history.intake.lines, history.intake.malformed_lines) == (rows + 3, 3)
    assert history.events.count() == rows
    assert "history.parquet producer-" in history.intake.reasons()[0]
