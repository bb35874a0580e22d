"""From a run's directory to events in Parquet: reading and judging lines. No anomalies here.

When what was kept of an earlier reading is believed is said in cache.py.
"""

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any, Final

from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as F

from analytics import schema
from analytics.cache import DIRECTORY, HistoryError, inputs_of, kept_intake, write_manifest
from analytics.keeping import InDriver, Keeper, OnDisk, remove_tree
from analytics.progress import OnProgress, step, telling, unheard
from analytics.session import LINES_SHORT_MAX, fit
from analytics.storage import Place, files_in, for_spark
from analytics.tables import Tables, build
from analytics.truth import Truth, files_of, truth_of
from analytics.wholeness import TORN_MARK

PARQUET: Final = "history.parquet"  # in a run's directory, instead of history/*.jsonl
TAIL_BYTES_MAX: Final = 8 * 1024 * 1024  # a GET's answer with 100,000 runs of one is under 6 MB
EXAMPLE_CHARACTERS_MAX: Final = 120
LINE_BYTES: Final = 300  # of a history's line, about: a guess at their number before any is read
ROW_BYTES: Final = 10  # of the same line in Parquet, about
APPLICATION: Final = "application"  # `recorded_by` in run.json


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
    """A run's history, ready for the checks. `keeper` has kept its tables.

    `is_application`: recorded by an application's clients: no phases, payloads of its own.
    """

    intake: Intake
    events: DataFrame
    tables: Tables
    keeper: Keeper
    truth: Truth
    is_application: bool = False


@dataclass(frozen=True, slots=True)
class _Survey:
    """The input files as they stand on disk, before any line is parsed."""

    run_id: str
    readable: tuple[Place, ...]
    unreadable: tuple[str, ...]
    torn_lines: int
    is_parquet: bool


def load(spark: SparkSession, directory: Place, tell: OnProgress = unheard) -> History:
    """Return the history of the run in `directory`, from its cache if that is still true.

    `tell` hears of each table that is made. Raises HistoryError when there is no history to read.
    """
    survey = _survey(directory)
    cache = directory / DIRECTORY
    inputs = inputs_of((directory / "run.json", *survey.readable, *files_of(directory)))
    size_bytes = sum(size for _name, size, *_times in inputs)
    intake = kept_intake(cache, inputs, Intake)
    is_fresh = intake is None
    if intake is None:
        remove_tree(cache)
        if not survey.is_parquet:
            fit(spark, size_bytes // LINE_BYTES, size_bytes)
        take = _count if survey.is_parquet else _convert
        with step("events", tell):
            intake = take(spark, survey, cache / "events")
    is_short = fit(spark, intake.lines, size_bytes)
    events = _rows(spark, survey) if survey.is_parquet else _events(spark, cache / "events")
    if survey.is_parquet and intake.malformed_lines:
        events = events.where(~_is_malformed_row())
    if intake.foreign_lines:  # what happened in another run proves nothing of this one
        events = events.where(F.col("run_id") == intake.run_id)
    keeper = InDriver(spark, cache) if is_short else OnDisk(spark, cache, is_fresh)
    if is_short:
        events = keeper.table("events_in_driver", events)
    truth = truth_of(spark, directory)
    tables = build(events, truth, telling(keeper.table, tell) if is_fresh else keeper.table)
    if is_fresh:
        write_manifest(cache, inputs, intake)
    is_application = _is_application(directory / "run.json")
    return History(intake, events, tables, keeper, truth, is_application)


def is_short(directory: Path | str) -> bool:
    """Return whether a run's history looks short, before there is a session to read it with."""
    sizes = [
        [path.stat().st_size / line_bytes for path in Path(directory).glob(files) if path.exists()]
        for files, line_bytes in (("history/*.jsonl", LINE_BYTES), (f"{PARQUET}/*", ROW_BYTES))
    ]
    return 0 < sum(map(sum, sizes)) <= LINES_SHORT_MAX


def _rows(spark: SparkSession, survey: _Survey) -> DataFrame:
    """Return the rows of a history that is kept as Parquet; columns that it lacks are null."""
    paths = [for_spark(path) for path in survey.readable]
    return spark.read.schema(schema.EVENT).parquet(*paths)


def _events(spark: SparkSession, path: Place) -> DataFrame:
    return spark.read.schema(schema.EVENT).parquet(str(path))


def parse(lines: DataFrame) -> DataFrame:
    """Return `lines` (`value`: a line's text) as events, with `malformed` and `value` kept.

    A line is malformed when it is no JSON object, a field has the wrong type, or one that the
    checks rely on is missing: they may then not be believed, so the verdict becomes unknown.
    """
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": "unparsed"}
    line = F.from_json("value", f"{schema.LINE}, unparsed STRING", options)
    fields = lines.where(F.trim("value") != "").withColumn("line", line)
    events = fields.select(*lines.columns, "line.*")
    # Whatever follows the first object of a line (a write after a torn one), the parser ignores.
    alone = F.size(
        F.from_json(F.concat(F.lit("["), "value", F.lit("]")), "ARRAY<STRUCT<f: STRING>>")
    )
    is_text = F.is_valid_utf8("value") & F.coalesce(alone == 1, F.lit(False))
    lacks = F.coalesce(_lacks() | _is_beyond() | _has_bad_arrays(), F.lit(True))
    malformed = F.col("unparsed").isNotNull() | ~is_text | lacks
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
    operation = _is_operation()
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
        _is_handling() & _lacks_of_handling(),
        F.col("digests").isNotNull() & ~F.coalesce(_has_all_digests(), F.lit(False)),
    ]
    return reduce(lambda left, right: left | right, rules)


def _is_operation() -> Column:
    return F.col("f").isin("put", "get", "sub", "unsub")


def _is_handling() -> Column:
    return F.col("f").isin(*schema.HANDLINGS)


def _lacks_of_handling() -> Column:
    """Return whether it isn't said whose it is, or of which ids."""
    names = ("op_id", "session", "client_id", "topic", "last_id")
    missing = [F.col(name).isNull() for name in names]
    ids = F.col("last_id") - F.coalesce("first_id", "last_id") + 1
    is_wrong = ((F.col("f") != "ack") & F.col("first_id").isNull()) | ~ids.between(
        1, schema.COUNT_MAX
    )
    return reduce(lambda left, right: left | right, missing, is_wrong)


def _is_beyond() -> Column:
    """Return whether an operation or handling has a number that no recorder writes."""
    is_either = _is_operation() | _is_handling()
    return is_either & F.coalesce(_has_number_beyond(), F.lit(False))


def _has_number_beyond() -> Column:
    """Return whether a number is one that no operation has; null where none is.

    Plain comparisons: Parquet's statistics answer them without a look at the rows.
    """
    numbers = ("counter", "count", "first_id", "last_id", "cursor", "asked", "epoch", "redelivered")
    beyond = [(F.col(one) < 0) | (F.col(one) > schema.NUMBER_MAX) for one in numbers]
    return reduce(lambda left, right: left | right, beyond, F.col("count") > schema.COUNT_MAX)


def _has_all_digests() -> Column:
    ids = F.col("last_id") - F.col("first_id") + 1
    digits = F.length("digests") == F.col("count") * schema.DIGEST_DIGITS
    return digits & ((F.col("f") == "put") | (ids == F.col("count")))


def _has_bad_arrays() -> Column:
    """Return whether a line's `items` or `corrupt` are not as the history's format has them."""
    item_bounds = {0: schema.NUMBER_MAX, 2: schema.NUMBER_MAX, 3: schema.COUNT_MAX}
    items = F.exists("items", lambda item: ~_whole(item, item_bounds, 4))
    corrupt = F.exists("corrupt", lambda bad: ~_whole(bad, {0: schema.NUMBER_MAX}, 2))
    return F.coalesce(items, F.lit(False)) | F.coalesce(corrupt, F.lit(False))


def _is_malformed_row() -> Column:
    """Return whether a row of a history in Parquet lacks something: the types are the file's."""
    return F.coalesce(_lacks() | _is_beyond() | _has_holes(), F.lit(True))


def _has_holes() -> Column:
    """Return whether a number is missing in a row's arrays, or one that no recorder writes."""

    def lacks(array: str, *names: str) -> Column:
        def any_of(one: Column) -> Column:
            bounds = {"count": schema.COUNT_MAX}
            numbers = (one[name].between(0, bounds.get(name, schema.NUMBER_MAX)) for name in names)
            whole = reduce(lambda left, right: left & right, numbers)
            return ~F.coalesce(whole, F.lit(False))

        # Most have one run, and a look at it is cheaper than a loop.
        single = any_of(F.get(array, F.lit(0)))
        return F.when(F.size(array) == 1, single).otherwise(F.exists(array, any_of))

    items = lacks("items", "first_id", "counter", "count")
    return F.coalesce(items, F.lit(False)) | F.coalesce(lacks("corrupt", "id"), F.lit(False))


def _whole(array: Column, bounds: Mapping[int, int], size: int) -> Column:
    """Return whether an array has `size` places, and numbers up to `bounds` in these of them."""
    numbers = (
        F.get(array, place).try_cast("bigint").between(0, most) for place, most in bounds.items()
    )
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


def _survey(directory: Place) -> _Survey:
    unreadable: list[str] = []
    readable: list[Place] = []
    torn_lines = 0
    parquet = files_in(directory / PARQUET, "*.parquet")
    if parquet:
        run_id = _run_id(directory / "run.json", unreadable)
        return _Survey(run_id, parquet, tuple(unreadable), 0, is_parquet=True)
    for path in files_in(directory / "history", "*.jsonl"):
        try:
            torn_lines += _is_torn(path)
            readable.append(path)
        except OSError as error:
            unreadable.append(f"{path.name}: {error.strerror}")
    if not readable:
        found = "; ".join(unreadable) or "no *.jsonl files"
        raise HistoryError(f"no history to read in {directory / 'history'}: {found}")
    run_id = _run_id(directory / "run.json", unreadable)
    unreadable += _absent(directory / "run.json", readable)
    return _Survey(run_id, tuple(readable), tuple(unreadable), torn_lines, is_parquet=False)


def _is_torn(path: Place) -> bool:
    """Return whether the file's last line was cut off while it was written."""
    with path.open("rb") as file:
        size_bytes = file.seek(0, os.SEEK_END)
        file.seek(max(0, size_bytes - TAIL_BYTES_MAX))
        tail = file.read()
    last_line = tail[tail.rfind(b"\n") + 1 :]
    if not last_line.strip() or last_line.endswith(TORN_MARK.encode()):
        return False  # a marked line is counted where lines are read
    try:
        json.loads(last_line)
    except (ValueError, RecursionError):
        return True
    return False


def _run_id(path: Place, unreadable: list[str]) -> str:
    try:
        return str(json.loads(path.read_bytes())["run_id"])
    except OSError as error:
        unreadable.append(f"{path.name}: {error.strerror}")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        unreadable.append(f"{path.name}: no `run_id`: {error!r}")
    return ""


def _absent(run_file: Place, readable: Iterable[Place]) -> list[str]:
    """Return what is wrong with the files: one that run.json names, and that is not there."""
    try:
        named = json.loads(run_file.read_bytes()).get("history", [])
    except (OSError, ValueError, AttributeError, RecursionError):
        return []  # `_run_id` has said so
    if not isinstance(named, list):
        return [f"{run_file.name}: `history` is no list of names"]
    gone = {str(name) for name in named} - {path.name for path in readable}
    return [f"{name}: run.json names it, and it is not there" for name in sorted(gone)]


def _is_application(path: Place) -> bool:
    """Return whether `path` (run.json) says so; one that can't be read has been reported."""
    try:
        return bool(json.loads(path.read_bytes())["recorded_by"] == APPLICATION)
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _count(spark: SparkSession, survey: _Survey, _target: Place) -> Intake:
    """Judge and count the rows of a history that is kept as Parquet; nothing is written."""
    rows = _rows(spark, survey)
    # One expression of all rules is dear for every row. Nearly every history is whole in its
    # numbers and arrays, which two short questions prove: that is 19 processor seconds for 10
    # million operations, not 25.
    is_whole = not any(rows.where(one).count() for one in (_has_number_beyond(), _has_holes()))
    malformed = F.coalesce(_lacks(), F.lit(True)) if is_whole else _is_malformed_row()
    rows = rows.withColumn("malformed", malformed)
    where = F.concat_ws(" ", F.lit(PARQUET), "process", F.col("op_id").cast("string"))
    foreign = ~F.col("malformed") & (F.col("run_id") != survey.run_id)
    counts = rows.agg(
        F.count(F.lit(1)).alias("lines"),
        F.count_if("malformed").alias("malformed"),
        F.count_if(foreign).alias("foreign"),
    ).first()
    assert counts is not None, "an aggregate without groups has one row"
    bad = rows.where("malformed").select(where.alias("example")).first() if counts[1] else None
    return _intake(survey, counts.asDict() | {"torn": 0, "example": bad and bad.example})


def _convert(spark: SparkSession, survey: _Survey, target: Place) -> Intake:
    """Write the readable lines to `target` as events; count all lines on the way."""
    paths = [for_spark(path) for path in survey.readable]
    text = spark.read.text(paths).select("value", F.col("_metadata.file_name").alias("file"))
    shown = F.substring("value", 1, EXAMPLE_CHARACTERS_MAX)
    torn = F.col("malformed") & F.col("value").endswith(TORN_MARK)
    example = F.when(F.col("malformed") & ~torn, F.concat_ws(": ", "file", shown))
    foreign = ~F.col("malformed") & (F.col("run_id") != survey.run_id)
    counted = Observation("intake")
    events = parse(text).observe(
        counted,
        F.count(F.lit(1)).alias("lines"),
        F.count_if("malformed").alias("malformed"),
        F.count_if(torn).alias("torn"),
        F.count_if(foreign).alias("foreign"),
        F.min(example).alias("example"),
    )
    kept = events.where(~F.col("malformed")).drop("malformed", "value", "file")
    kept.write.options(**schema.PLAIN).parquet(str(target))
    return _intake(survey, counted.get)


def _intake(survey: _Survey, counts: Mapping[str, Any]) -> Intake:
    torn_lines = survey.torn_lines + counts["torn"]
    return Intake(
        run_id=survey.run_id,
        lines=counts["lines"],
        torn_lines=torn_lines,
        malformed_lines=counts["malformed"] - torn_lines,
        foreign_lines=counts["foreign"] if survey.run_id else 0,
        example=counts["example"] or "",
        unreadable=survey.unreadable,
    )
