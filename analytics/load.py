"""From a run's directory to events in Parquet: reading, judging lines, caching. No anomalies here.

`DIR/parquet` is a cache: `manifest.json` in it names the inputs (size, modification time) that it
was made from, and is written last. Any difference, and all of it is made anew.
"""

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import reduce
from pathlib import Path
from typing import Any, Final

from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as F

from analytics import schema
from analytics.session import fit
from analytics.tables import Tables, build

LAYOUT: Final = 1  # of the cache; raise it when a table's columns change
TAIL_BYTES_MAX: Final = 8 * 1024 * 1024  # a GET's answer with 100,000 runs of one is under 6 MB
EXAMPLE_CHARACTERS_MAX: Final = 120


class HistoryError(Exception):
    """The directory holds no history that could be read; the message says what is missing."""


@dataclass(frozen=True, slots=True)
class Intake:
    """What was read, and what is wrong with it.

    `unreadable` names files with the reason. `example` is the smallest malformed line, with its
    file. `foreign_lines` carry another run's id than run.json.
    """

    run_id: str
    lines: int = 0
    torn_lines: int = 0
    malformed_lines: int = 0
    foreign_lines: int = 0
    example: str = ""
    unreadable: tuple[str, ...] = ()

    def reasons(self) -> tuple[str, ...]:
        """Return why a history like this can't be called valid; empty if nothing speaks against."""
        found = [f"unreadable: {one}" for one in self.unreadable]
        if self.malformed_lines:
            found.append(f"{self.malformed_lines} malformed lines, such as {self.example}")
        if self.foreign_lines:
            found.append(f"{self.foreign_lines} lines are of another run than {self.run_id}")
        return tuple(found)


@dataclass(frozen=True, slots=True)
class History:
    """A run's history, ready for the checks. `cache` is the directory of its Parquet files."""

    intake: Intake
    events: DataFrame
    tables: Tables
    cache: Path


@dataclass(frozen=True, slots=True)
class _Survey:
    """The input files as they stand on disk, before any line is parsed."""

    run_id: str
    readable: tuple[Path, ...]
    unreadable: tuple[str, ...]
    torn_lines: int


def load(spark: SparkSession, directory: Path) -> History:
    """Return the history of the run in `directory`, from its cache if that is still true.

    Raises HistoryError when there is no history to read.
    """
    survey = _survey(directory)
    cache = directory / "parquet"
    inputs = _inputs((directory / "run.json", *survey.readable))
    fit(spark, sum(size_bytes for _, size_bytes, _ in inputs))
    intake = _kept_intake(cache, inputs)
    fresh = intake is None
    if intake is None:
        shutil.rmtree(cache, ignore_errors=True)
        intake = _convert(spark, survey, cache / "events")
    events = spark.read.parquet(str(cache / "events"))
    tables = build(events, _storing(spark, cache) if fresh else _stored(spark, cache))
    if fresh:
        manifest = {"layout": LAYOUT, "inputs": inputs, "intake": asdict(intake)}
        (cache / "manifest.json").write_text(json.dumps(manifest, indent=2))
    return History(intake, events, tables, cache)


def parse(lines: DataFrame) -> DataFrame:
    """Return `lines` (`value`: a line's text) as events, with `malformed` and `value` kept.

    A line is malformed when it is no JSON object, a field has the wrong type, or one that the
    checks rely on is missing: they may then not be believed, so the verdict becomes unknown.
    """
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": "unparsed"}
    line = F.from_json("value", f"{schema.LINE}, unparsed STRING", options)
    fields = lines.where(F.trim("value") != "").withColumn("line", line)
    events = fields.select(*lines.columns, "line.*")
    # Two objects in one line (a write after a torn one): the parser would stop after the first.
    glued = F.col("value").contains('}{"')
    malformed = F.col("unparsed").isNotNull() | glued | F.coalesce(_lacks(), F.lit(True))
    return (
        events.withColumn("malformed", malformed)
        .withColumn("items", F.transform("items", _item))
        .withColumn("corrupt", F.transform("corrupt", _bad_item))
        .drop("unparsed")
    )


def _lacks() -> Column:
    """Return whether a row lacks something that the checks rely on."""
    invoke, ok = F.col("type") == "invoke", F.col("type") == "ok"
    put, get, sub = (F.col("f") == name for name in ("put", "get", "sub"))
    operation = F.col("f").isin("put", "get", "sub", "unsub")
    rules = [
        F.col("run_id").isNull() | F.col("process").isNull() | F.col("t_ns").isNull(),
        ~F.coalesce(F.col("type").isin(*schema.TYPES), F.lit(False)),
        ~F.coalesce(F.col("f").isin(*schema.FUNCTIONS), F.lit(False)),
        operation & F.col("op_id").isNull(),
        operation & invoke & F.col("client_id").isNull(),
        operation & invoke & ~get & F.col("topic").isNull(),
        put & invoke & F.col("counter").isNull(),
        put & ok & F.col("first_id").isNull(),
        sub & ok & F.col("last_id").isNull(),
        F.coalesce(F.exists("items", lambda item: ~_whole(item, (0, 2, 3), 4)), F.lit(False)),
        F.coalesce(F.exists("corrupt", lambda bad: ~_whole(bad, (0,), 2)), F.lit(False)),
    ]
    return reduce(lambda left, right: left | right, rules)


def _whole(array: Column, number_places: tuple[int, ...], size: int) -> Column:
    numbers = (F.get(array, place).try_cast("bigint").isNotNull() for place in number_places)
    whole = reduce(lambda left, right: left & right, numbers, F.size(array) == size)
    return F.coalesce(whole, F.lit(False))


def _item(item: Column) -> Column:
    first_id, producer, counter, count = (F.get(item, place) for place in range(4))
    return F.struct(
        first_id.try_cast("bigint").alias("first_id"),
        producer.alias("producer"),
        counter.try_cast("bigint").alias("counter"),
        count.try_cast("bigint").alias("count"),
    )


def _bad_item(bad: Column) -> Column:
    return F.struct(
        F.get(bad, 0).try_cast("bigint").alias("id"),
        F.get(bad, 1).alias("reason"),
    )


def _survey(directory: Path) -> _Survey:
    unreadable: list[str] = []
    readable = []
    torn_lines = 0
    for path in sorted((directory / "history").glob("*.jsonl")):
        try:
            torn_lines += _is_torn(path)
            readable.append(path)
        except OSError as error:
            unreadable.append(f"{path.name}: {error.strerror}")
    if not readable:
        found = "; ".join(unreadable) or "no *.jsonl files"
        raise HistoryError(f"no history to read in {directory / 'history'}: {found}")
    run_id = _run_id(directory / "run.json", unreadable)
    return _Survey(run_id, tuple(readable), tuple(unreadable), torn_lines)


def _is_torn(path: Path) -> bool:
    """Return whether the file's last line was cut off while it was written."""
    with path.open("rb") as file:
        size_bytes = file.seek(0, os.SEEK_END)
        file.seek(max(0, size_bytes - TAIL_BYTES_MAX))
        tail = file.read()
    last_line = tail[tail.rfind(b"\n") + 1 :]
    if not last_line:
        return False
    try:
        json.loads(last_line)
    except ValueError:
        return True
    return False


def _run_id(path: Path, unreadable: list[str]) -> str:
    try:
        return str(json.loads(path.read_bytes())["run_id"])
    except OSError as error:
        unreadable.append(f"{path.name}: {error.strerror}")
    except (ValueError, KeyError, TypeError) as error:
        unreadable.append(f"{path.name}: no `run_id`: {error!r}")
    return ""


def _inputs(paths: tuple[Path, ...]) -> list[list[Any]]:
    """Return [name, size in bytes, modification time in ns] of each file that is there."""
    stats = [(path.name, path.stat()) for path in paths if path.exists()]
    return [[name, stat.st_size, stat.st_mtime_ns] for name, stat in stats]


def _kept_intake(cache: Path, inputs: list[list[Any]]) -> Intake | None:
    try:
        manifest = json.loads((cache / "manifest.json").read_bytes())
    except (OSError, ValueError):
        return None  # no cache, or one whose making was interrupted: it is made anew
    if manifest.get("layout") != LAYOUT or manifest.get("inputs") != inputs:
        return None
    intake = manifest["intake"]
    return Intake(**{**intake, "unreadable": tuple(intake["unreadable"])})


def _convert(spark: SparkSession, survey: _Survey, target: Path) -> Intake:
    """Write the readable lines to `target` as events; count all lines on the way."""
    paths = [path.resolve().as_uri() for path in survey.readable]
    text = spark.read.text(paths).select("value", F.col("_metadata.file_name").alias("file"))
    shown = F.substring("value", 1, EXAMPLE_CHARACTERS_MAX)
    example = F.when(F.col("malformed"), F.concat_ws(": ", "file", shown))
    foreign = ~F.col("malformed") & (F.col("run_id") != survey.run_id)
    counted = Observation("intake")
    events = parse(text).observe(
        counted,
        F.count(F.lit(1)).alias("lines"),
        F.count_if("malformed").alias("malformed"),
        F.count_if(foreign).alias("foreign"),
        F.min(example).alias("example"),
    )
    events.where(~F.col("malformed")).drop("malformed", "value", "file").write.parquet(str(target))
    counts = counted.get
    return Intake(
        run_id=survey.run_id,
        lines=counts["lines"],
        torn_lines=survey.torn_lines,
        malformed_lines=counts["malformed"] - survey.torn_lines,
        foreign_lines=counts["foreign"] if survey.run_id else 0,
        example=counts["example"] or "",
        unreadable=survey.unreadable,
    )


def _storing(spark: SparkSession, cache: Path) -> Callable[[str, DataFrame], DataFrame]:
    def keep(name: str, table: DataFrame) -> DataFrame:
        table.write.parquet(str(cache / name))
        return spark.read.parquet(str(cache / name))

    return keep


def _stored(spark: SparkSession, cache: Path) -> Callable[[str, DataFrame], DataFrame]:
    return lambda name, _: spark.read.parquet(str(cache / name))
