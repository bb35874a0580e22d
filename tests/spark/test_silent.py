"""Columns that no row says anything in: named where the files' ends prove it, and read as null."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from analytics.intake.silent import silent_columns

pytestmark = [pytest.mark.spark, pytest.mark.slow]

LETTER = "STRUCT<id: BIGINT, of: STRING>"
COLUMNS = f"id BIGINT, name STRING, runs ARRAY<ARRAY<BIGINT>>, letters ARRAY<{LETTER}>"
NAMES = ("id", "name", "runs", "letters", "lacking")
NOTHING = (None, None, None, None)


SIZED = {
    f"parquet.size.statistics.enabled#{name}": "true"
    for name in ("runs.list.element.list.element", "letters.list.element.id")
} | {"parquet.size.statistics.enabled": "false"}


def parts_of(spark: SparkSession, directory: Path, *rows: tuple[object, ...]) -> list[Path]:
    """Write a file a row, and return them."""
    for number, row in enumerate(rows):
        table = spark.createDataFrame([row], COLUMNS).coalesce(1)
        table.write.options(**SIZED).parquet(f"{directory}/{number}")
    return sorted(directory.glob("*/part-*.parquet"))


def test_column_is_silent_if_no_row_of_any_file_has_a_value(
    spark: SparkSession, tmp_path: Path
) -> None:
    parts = parts_of(spark, tmp_path, (1, None, None, None), NOTHING)
    assert silent_columns(spark, parts, NAMES) == ["lacking", "letters", "name", "runs"]


@pytest.mark.parametrize(
    ("row", "name"),
    [
        ((None, "", None, None), "name"),
        ((None, None, [[7]], None), "runs"),
        ((None, None, None, [(None, "topic")]), "letters"),
    ],
)
def test_one_value_in_the_last_file_makes_a_column_speak(
    spark: SparkSession, tmp_path: Path, row: tuple[object, ...], name: str
) -> None:
    parts = parts_of(spark, tmp_path, NOTHING, NOTHING, row)
    assert silent_columns(spark, parts, NAMES) == sorted(set(NAMES) - {name})


def test_empty_array_is_no_null(spark: SparkSession, tmp_path: Path) -> None:
    parts = parts_of(spark, tmp_path, (None, None, [], None))
    assert "runs" not in silent_columns(spark, parts, NAMES)


def test_what_is_no_parquet_silences_nothing(spark: SparkSession, tmp_path: Path) -> None:
    parts = parts_of(spark, tmp_path, NOTHING)
    (tmp_path / "other.parquet").write_bytes(b"neither this nor that")
    assert silent_columns(spark, [*parts, tmp_path / "other.parquet"], NAMES) == []
