"""A run's directory behind a URL: read and written through Hadoop's FileSystem."""

import os
from pathlib import Path

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from analytics.cli import main
from analytics.common.storage import RemotePath, files_in, is_url, place_of
from analytics.intake.seal import seal
from analytics.judge.load import load
from tests.spark.histories import clean_run, write

pytestmark = pytest.mark.spark


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "expected"),
    [("s3a://bucket/run", True), ("file:/tmp/run", True), ("runs/one", False), ("/a:b/c", False)],
)
def test_url_is_told_from_a_path(text: str, expected: bool) -> None:
    assert is_url(text) is expected


@pytest.mark.slow
def test_remote_file_is_read_like_a_local_one(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b"one\ntwo\n" * 300_000)  # more than a buffer
    remote = place_of(spark, tmp_path.as_uri())
    assert isinstance(remote, RemotePath)
    file = remote / "a.jsonl"
    local = tmp_path / "a.jsonl"
    assert file.read_bytes() == local.read_bytes()
    assert file.stat().st_size == local.stat().st_size
    with file.open("rb") as there, local.open("rb") as here:
        assert there.seek(-9, os.SEEK_END) == here.seek(-9, os.SEEK_END)
        assert there.read() == here.read() == b"\none\ntwo\n"
        there.seek(4)
        assert (there.readline(), there.tell()) == (b"two\n", 8)


@pytest.mark.slow
def test_remote_directory_is_listed_written_and_removed(
    spark: SparkSession, tmp_path: Path
) -> None:
    run = RemotePath(spark, tmp_path.as_uri()) / "run"
    assert not run.exists()
    assert files_in(run, "*.json") == ()
    with pytest.raises(FileNotFoundError):
        (run / "run.json").read_bytes()
    (run / "run.json").write_text("{}")
    (run / "notes.txt").write_text("first")
    (run / "notes.txt").write_text("anew")
    (found,) = files_in(run, "*.json")
    assert (found.name, found.stem) == ("run.json", "run")
    assert (tmp_path / "run" / "notes.txt").read_text() == "anew"
    run.remove_tree()
    assert not (tmp_path / "run").exists()


@pytest.mark.slow  # over a minute: Hadoop's files are asked one by one for what stands in the cache
def test_run_behind_a_url_is_the_same_run(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path, clean_run(1, publications=20))
    with (tmp_path / "history" / "p1.jsonl").open("a") as file:
        file.write('{"run_id":"to')
    seal(tmp_path)
    remote = load(spark, place_of(spark, tmp_path.as_uri())).intake
    made_ns = (tmp_path / "parquet" / "manifest.json").stat().st_mtime_ns
    again = load(spark, place_of(spark, tmp_path.as_uri())).intake
    assert remote == again
    assert (remote.torn_lines, remote.reasons()) == (1, ())
    assert (tmp_path / "parquet" / "manifest.json").stat().st_mtime_ns == made_ns
    assert load(spark, tmp_path).intake == remote


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "'nowhere' is no directory"),
        ([".", "--memory", "much"], "'much' is no size such as 4g"),
        (["file:/tmp/x", "--generate", "1000"], "generated on this machine"),
    ],
)
def test_wrong_usage_exits_2_and_says_why(arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 2
    assert message in result.output
