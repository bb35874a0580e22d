"""Where tables are kept: what of a short history is in the driver, and what that spares."""

from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from analytics import keeping, session
from analytics.doubts import only, without
from analytics.keeping import InDriver, OnDisk, is_never_any
from analytics.load import is_short, load
from analytics.tables import Tables
from tests.spark.histories import Run, write


@pytest.fixture
def numbers(spark: SparkSession) -> DataFrame:
    session.fit(spark, lines=0, size_bytes=0)
    return spark.range(10).select("id", F.array(F.struct("id")).alias("nested"))


def rows_of(table: DataFrame) -> list[object]:
    return sorted(table.collect())


def test_table_in_the_driver_is_what_it_was_and_leaves_no_file(
    spark: SparkSession, numbers: DataFrame, tmp_path: Path
) -> None:
    kept = InDriver(spark, tmp_path).table("numbers", numbers)
    assert (kept.dtypes, rows_of(kept)) == (numbers.dtypes, rows_of(numbers))
    assert list(tmp_path.iterdir()) == []


def test_table_too_long_for_the_driver_is_kept_on_disk_whole(
    spark: SparkSession, numbers: DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeping, "ROWS_MAX", 9)
    kept = InDriver(spark, tmp_path).table("numbers", numbers)
    assert rows_of(kept) == rows_of(numbers)
    assert [path.name for path in tmp_path.iterdir()] == ["numbers"]


def test_evidence_of_an_earlier_check_goes_when_there_is_none_any_more(
    spark: SparkSession, numbers: DataFrame, tmp_path: Path
) -> None:
    keeper = InDriver(spark, tmp_path)
    keeper.evidence("gap", numbers)
    assert rows_of(spark.read.parquet(str(tmp_path / "evidence" / "gap"))) == rows_of(numbers)
    assert keeper.evidence("gap", numbers.where("id < 0")).isEmpty()
    assert not (tmp_path / "evidence" / "gap").exists()


def test_only_what_has_no_rows_by_its_plan_is_left_out_of_a_join(
    spark: SparkSession, numbers: DataFrame, tmp_path: Path
) -> None:
    keeper = InDriver(spark, tmp_path)
    nothing = keeper.table("nothing", numbers.where("id < 0"))
    few = keeper.table("few", numbers.where("id < 3"))
    unknown = numbers.where("id < 0")  # empty too, but only running it can tell
    assert [is_never_any(one) for one in (nothing, few, unknown)] == [True, False, False]
    assert only(numbers, nothing, ["id"]).dtypes == numbers.dtypes
    counts = [only(numbers, keys, ["id"]).count() for keys in (nothing, few, unknown)]
    assert counts == [0, 3, 0]
    assert [without(numbers, keys, ["id"]).count() for keys in (nothing, few, unknown)] == [
        10,
        7,
        10,
    ]


def test_short_and_long_histories_have_the_same_tables(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run()
    run.sub("s", "t")
    run.put("p", "t", 1, "ok", 2, first_id=1, last_id=2)
    run.get("s", "t", 0, [[1, "p", 1, 2]])
    run.drained("s", "t", 2)
    write(tmp_path, run.rows)

    def loaded() -> tuple[object, dict[str, list[object]]]:
        history = load(spark, tmp_path)
        tables: Tables = history.tables
        own = {name: rows_of(getattr(tables, name)) for name in ("puts", "gets", "places")}
        return type(history.keeper), own

    short = loaded()
    monkeypatch.setattr(session, "LINES_SHORT_MAX", -1)
    (tmp_path / "parquet" / "manifest.json").unlink()
    long = loaded()
    assert (short[0], long[0]) == (InDriver, OnDisk)
    assert short[1] == long[1]


def test_history_looks_short_by_the_size_of_its_files(tmp_path: Path) -> None:
    assert not is_short(tmp_path)
    (tmp_path / "history").mkdir()
    (tmp_path / "history" / "p.jsonl").write_bytes(b" " * 1_000)
    assert is_short(tmp_path)
    (tmp_path / "history" / "q.jsonl").write_bytes(b" " * 300 * session.LINES_SHORT_MAX)
    assert not is_short(tmp_path)
