"""Where tables are kept: what of a short history is in the driver, and what that spares."""

import json
import subprocess
from dataclasses import asdict
from pathlib import Path
from threading import current_thread, main_thread
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from analytics.common import session, table_store
from analytics.common.table_store import InDriver, OnDisk, is_never_any
from analytics.intake.cache import inputs_of, kept_intake, write_manifest
from analytics.judge.load import LINE_BYTES, LoadedFiles, is_short, load
from analytics.tables.suspects import only, without
from analytics.tables.tables import Tables
from tests.spark.histories import RunRecorder, write


@pytest.fixture
def numbers(spark: SparkSession) -> DataFrame:
    session.fit(spark, lines=0, size_bytes=0)
    return spark.range(10).select("id", F.array(F.struct("id")).alias("nested"))


def rows_of(table: DataFrame) -> list[object]:
    return sorted(table.collect())


@pytest.mark.slow
def test_table_in_the_driver_is_what_it_was_and_leaves_no_file(
    spark: SparkSession, numbers: DataFrame, tmp_path: Path
) -> None:
    kept = InDriver(spark, tmp_path).table("numbers", numbers)
    assert (kept.dtypes, rows_of(kept)) == (numbers.dtypes, rows_of(numbers))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_table_too_long_for_the_driver_is_kept_on_disk_whole(
    spark: SparkSession, numbers: DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_store, "ROWS_MAX", 9)
    kept = InDriver(spark, tmp_path).table("numbers", numbers)
    assert rows_of(kept) == rows_of(numbers)
    assert [path.name for path in tmp_path.glob("*/*")] == ["numbers"]


@pytest.mark.slow
def test_evidence_of_an_earlier_check_goes_when_there_is_none_any_more(
    spark: SparkSession, numbers: DataFrame, tmp_path: Path
) -> None:
    keeper = InDriver(spark, tmp_path)
    keeper.evidence("gap", numbers)
    assert rows_of(spark.read.parquet(str(tmp_path / "evidence" / "gap"))) == rows_of(numbers)
    assert keeper.evidence("gap", numbers.where("id < 0")).isEmpty()
    assert not (tmp_path / "evidence" / "gap").exists()


@pytest.mark.slow
def test_evidence_too_long_for_the_driver_is_kept_whole(
    spark: SparkSession, numbers: DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_store, "ROWS_MAX", 9)
    kept = InDriver(spark, tmp_path).evidence("gap", numbers)
    written = spark.read.parquet(str(tmp_path / "evidence" / "gap"))
    assert rows_of(kept) == rows_of(written) == rows_of(numbers)


@pytest.mark.slow
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


@pytest.mark.slow
def test_short_and_long_histories_have_the_same_tables(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = RunRecorder()
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
    cache = tmp_path / "parquet"
    inputs = json.loads((cache / "manifest.json").read_bytes())["inputs"]
    assert kept_intake(cache, inputs, LoadedFiles) is not None
    for part in (cache / "doubtful_buckets").glob("part-*"):
        part.unlink()
    assert kept_intake(cache, inputs, LoadedFiles) is None


@pytest.mark.parametrize(("lines", "is_short"), [(0, True), (10**6, False)])
def test_calls_beside_each_other_have_the_session_s_settings_and_their_own_results(
    spark: SparkSession, lines: int, is_short: bool
) -> None:
    session.fit(spark, lines, size_bytes=0)
    wanted = session.SHORT if is_short else session.LONG
    assert spark._jvm is not None
    settings = spark._jvm.org.apache.spark.sql.internal.SQLConf

    def settings_of(number: int) -> tuple[int, bool, set[str | None], set[str]]:
        of_tasks = {spark.sparkContext.getLocalProperty(name) for name in session.SHORT}
        of_plans = {settings.get().getConfString(name, "") for name in wanted}
        return number, current_thread() is not main_thread(), of_tasks, of_plans

    def fail() -> None:
        raise ValueError("told to who asks")

    of_tasks = set(session.SHORT.values()) if is_short else {None}
    with session.side_by_side(spark) as later:
        results = [later(settings_of, number) for number in range(4)]
        failing = later(fail)
        for number, result_of in enumerate(results):
            assert result_of() == (number, True, of_tasks, set(wanted.values()))
        with pytest.raises(ValueError, match="told to who asks"):
            failing()


def test_history_looks_short_by_the_size_of_its_files(tmp_path: Path) -> None:
    assert not is_short(tmp_path)
    (tmp_path / "history").mkdir()
    (tmp_path / "history" / "p.jsonl").write_bytes(b" " * 1_000)
    assert is_short(tmp_path)
    (tmp_path / "history" / "q.jsonl").write_bytes(b" " * LINE_BYTES * session.LINES_SHORT_MAX)
    assert not is_short(tmp_path)


INTAKE = LoadedFiles("run", lines=3, example="p.jsonl: {", holes=("one", "two"))


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """A cache with a table of two files, and evidence, made from one input."""
    (tmp_path / "run.json").write_text("{}")
    cache = tmp_path / "parquet"
    for name in ("puts/part-0.parquet", "puts/part-1.parquet", "puts/_SUCCESS", "puts/.part.crc"):
        (cache / name).parent.mkdir(parents=True, exist_ok=True)
        (cache / name).write_bytes(b"12345678")
    write_manifest(cache, inputs_of([tmp_path / "run.json"]), INTAKE)
    return cache


def believed(cache: Path) -> LoadedFiles | None:
    return kept_intake(cache, inputs_of([cache.parent / "run.json"]), LoadedFiles)


def test_cache_is_believed_whatever_is_written_beside_its_tables(cache: Path) -> None:
    (cache / "puts" / "_SUCCESS").unlink()
    (cache / "puts" / ".part.crc").unlink()
    for written_anew in ("evidence", "overflow"):
        (cache / written_anew / "gap").mkdir(parents=True)
        (cache / written_anew / "part-0.parquet").write_bytes(b"1")
    assert believed(cache) == INTAKE


@pytest.mark.parametrize(
    "damage",
    [
        "rm puts/part-0.parquet",
        "rm -r puts",
        "truncate -s 4 puts/part-1.parquet",
        "cp puts/part-1.parquet puts/part-2.parquet",
        "mkdir puts/topic=a",
        "cp -r puts gets",
        "rm manifest.json",
        "touch -d 2001-01-01 ../run.json",
        "cp -p ../run.json ../copy; mv ../copy ../run.json",
    ],
)
def test_cache_is_not_believed_with_other_files_than_it_was_made_of(
    cache: Path, damage: str
) -> None:
    subprocess.run(["sh", "-ec", damage], cwd=cache, check=True, timeout=10)
    assert believed(cache) is None


FIELDS = asdict(INTAKE)


@pytest.mark.parametrize(
    "changes",
    [{name: None} for name in ("layout", "inputs", "files", "intake")]
    + [
        {"intake": intake}
        for intake in (
            [],
            {"run_id": "run"},
            {**FIELDS, "colour": "red"},
            {**FIELDS, "lines": "many"},
        )
    ],
)
def test_manifest_that_is_none_of_ours_is_no_cache(cache: Path, changes: dict[str, Any]) -> None:
    manifest = cache / "manifest.json"
    changed = json.loads(manifest.read_bytes()) | changes
    manifest.write_text(
        json.dumps({name: value for name, value in changed.items() if value is not None})
    )
    assert believed(cache) is None


@pytest.mark.parametrize("content", [b"", b"[]", b'{"layout', b"\xff\xfe{", b"[" * 100_000])
def test_manifest_that_cannot_be_parsed_is_no_cache(cache: Path, content: bytes) -> None:
    (cache / "manifest.json").write_bytes(content)
    assert believed(cache) is None
