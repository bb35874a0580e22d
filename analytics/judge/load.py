"""From a run's directory to events in Parquet: reading and judging lines. No anomalies here.

When what was kept of an earlier reading is believed is said in cache.py.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path
from typing import Any, Final

from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as F

from analytics.common import schema
from analytics.common.progress import OnProgress, step, telling, unheard
from analytics.common.session import LINES_SHORT_MAX, fit, side_by_side
from analytics.common.storage import Place, for_spark, to_read
from analytics.common.table_store import InDriver, Keeper, OnDisk, remove_tree, with_constants
from analytics.intake.cache import DIRECTORY, HistoryError, inputs_of, kept_intake, write_manifest
from analytics.intake.completeness import TORN_MARK
from analytics.intake.files import (
    APPLICATION,
    LINES,
    PARQUET,
    FileSurvey,
    content_of,
    entries_of,
    strictly,
    survey_of,
)
from analytics.intake.strict import BLOCK, STRICTLY, is_one_object, lines_of
from analytics.intake.truth import Truth, files_of, truth_of
from analytics.tables.pairs import is_told_of_purge
from analytics.tables.sequence import examined, leave_out
from analytics.tables.tables import Tables, WhatIsSaid, build
from analytics.tables.tallies import COLUMNS, ROW, tallies_of

EVENTS: Final = "events"  # in the cache: what was read of lines
TALLIES: Final = "tallies"  # in the cache: of all events that are believed (tallies.py)
BROKEN: Final = "broken"  # in the cache: operations that are left out; there if there are any
LINES_ENDING: Final = ".jsonl"
EXAMPLE_CHARACTERS_MAX: Final = 120
LINE_BYTES: Final = 400  # of a history's line, about: a guess at their number before any is read
ROW_BYTES: Final = 10  # of the same line in Parquet, about
# Arrays of several types as texts, to see which of what is in them are numbers.
FORM: Final = ", ".join(
    f"{name} ARRAY<STRING>" for name in ("items", "corrupt", "letters", "delayed")
)
ITEM_FORM: Final = r'(?s)^\[\d{1,16},".*",\d{1,16},\d{1,16}\]$'
LETTER_FORM: Final = r'(?s)^\[\d{1,16},".*",".*",\d{1,16}\]$'
BAD_ITEM_FORM: Final = r'(?s)^\[\d{1,16},".*"\]$'
# What rules ask of a row beside its type and function, and something that such a column may say.
SPECIMEN: Final[Mapping[str, tuple[str, Any]]] = {
    **{name: ("STRING", "") for name in ("run_id", "process", "client_id", "topic")},
    **{name: ("BIGINT", 1) for name in ("op_id", "session", "t_ns", "counter", "count")},
    **{name: ("BIGINT", 1) for name in ("first_id", "last_id")},
    **{name: ("STRING", "") for name in ("digests", "properties", "keys")},
    **{name: ("ARRAY<BIGINT>", []) for name in ("marked", "keyed")},
    "times": ("ARRAY<ARRAY<BIGINT>>", []),
    "expires": ("ARRAY<ARRAY<BIGINT>>", []),
    "delays": ("ARRAY<ARRAY<BIGINT>>", []),
    **{name: ("ARRAY<ARRAY<BIGINT>>", []) for name in schema.OF_LEASES},
    "letters": (f"ARRAY<{schema.LETTER}>", []),
    "delayed": (f"ARRAY<{schema.ITEM}>", []),
}
# The same of rows that are looked at one by one.
UNSPECIFIC: Final[Mapping[str, str]] = {
    "error": "STRING",
    "group": "STRING",
    "token": "BIGINT",
    "left_ms": "BIGINT",
}


@dataclass(frozen=True, slots=True)
class LoadedFiles:
    """What was read, and what is wrong with it.

    `holes`: what is missing of the record, or can't be believed, beside lines: what rests on
    something's absence is then no proof. `unvouched`: why nothing says that all of it is there.
    `remarks` are no reasons. `example` is the smallest malformed line, with its file.
    `foreign_lines` carry another run's id than run.json, or another process than their file.
    `parts`: the files that were read. `has_broken`: some operations are left out. `host`: the one
    where all of it was recorded; "" for several, or where some line does not say. `is_timed`: some
    line says when ids were stored, or which of them have keys and headers. `delayed_puts`: so many
    PUTs had a delay; `has_delays`: one had, or something came as if it had.
    """

    run_id: str
    lines: int = 0
    torn_lines: int = 0
    malformed_lines: int = 0
    foreign_lines: int = 0
    example: str = ""
    foreign_example: str = ""
    holes: tuple[str, ...] = ()
    unvouched: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()
    parts: tuple[str, ...] = ()
    has_broken: bool = False
    host: str = ""
    is_timed: bool = True
    delayed_puts: int = 0
    has_delays: bool = True

    @property
    def is_of_lines(self) -> bool:
        """Whether the history is kept as lines, not as Parquet."""
        return not any(part.startswith(f"{PARQUET}/") for part in self.parts)

    def constants(self) -> Mapping[str, str]:
        """Return the columns of all tables that have one value in every row. `at` is a `host`."""
        values = {"run_id": self.run_id, "host": self.host, "at": self.host}
        return {name: value for name, value in values.items() if value}

    def damage(self) -> tuple[str, ...]:
        """Return what is missing of the history; empty if it is whole."""
        found = list(self.holes)
        if self.malformed_lines:
            found.append(f"{self.malformed_lines} malformed lines, such as {self.example}")
        if self.foreign_lines:
            found.append(
                f"{self.foreign_lines} lines are of another run than {self.run_id}, or of another"
                f" process than their file, such as {self.foreign_example}"
            )
        return tuple(found)

    def reasons(self) -> tuple[str, ...]:
        """Return why a history like this can't be called valid; empty if nothing speaks against."""
        return (*self.damage(), *self.unvouched)


@dataclass(frozen=True, slots=True)
class History:
    """A run's history, ready for the checks. `keeper` has kept its tables.

    `is_application`: recorded by an application's clients: no phases, payloads of its own.
    """

    intake: LoadedFiles
    events: DataFrame
    tables: Tables
    keeper: Keeper
    truth: Truth
    is_application: bool = False


def load(spark: SparkSession, directory: Place, tell: OnProgress = unheard) -> History:
    """Return the history of the run in `directory`, from its cache if that is still true.

    `tell` hears of each table that is made. Raises HistoryError when there is no history to read.
    """
    cache = directory / DIRECTORY
    inputs = inputs_of((directory / "run.json", *entries_of(directory), *files_of(directory)))
    intake = kept_intake(cache, inputs, LoadedFiles)
    is_fresh = intake is None
    if intake is None:
        intake = taken_in(spark, directory, tell)
    is_short = fit(spark, intake.lines, _size_bytes(directory))
    events = _events(spark, directory, intake)
    if intake.has_broken:
        events = leave_out(events, _read(spark, cache / BROKEN, schema.BROKEN))
    constants = intake.constants()
    keeper = InDriver(spark, cache) if is_short else OnDisk(spark, cache, is_fresh, constants)
    tallies = _read(spark, cache / TALLIES, COLUMNS)
    if is_short:
        events = keeper.table("events_in_driver", events)
        tallies = keeper.table("tallies_in_driver", tallies)
    else:
        events = with_constants(events, constants, events.columns)
    truth = truth_of(spark, directory)
    keep = telling(keeper.table, tell) if is_fresh else keeper.table
    is_application = _is_application(directory / "run.json")
    application = intake.run_id if is_application else None
    said = WhatIsSaid(intake.is_timed, intake.has_delays)
    with side_by_side(spark) as later:
        tables = build(events, tallies, truth, keep, said, application, later)
    if is_fresh:
        write_manifest(cache, inputs, intake)
    return History(intake, events, tables, keeper, truth, is_application)


def taken_in(spark: SparkSession, directory: Place, tell: OnProgress = unheard) -> LoadedFiles:
    """Read the history, keep its events in the cache, anew, and return what is missing of it.

    Raises HistoryError when there is no history to read.
    """
    cache, size_bytes = directory / DIRECTORY, _size_bytes(directory)
    remove_tree(cache)
    with step("files", tell):
        survey = survey_of(directory)
    if not survey.readable:
        found = "; ".join(survey.holes) or "no *.jsonl files"
        raise HistoryError(f"no history to read in {directory / LINES}: {found}")
    if not survey.is_parquet:
        fit(spark, size_bytes // LINE_BYTES, size_bytes)
    take = _count if survey.is_parquet else _convert
    with step("events", tell):
        intake = take(spark, survey, cache / EVENTS)
    fit(spark, intake.lines, size_bytes)
    with step("sequences", tell):
        events = _events(spark, directory, intake, is_ordered=True)
        events = with_constants(events, intake.constants(), events.columns)
        _write_tallies(tallies_of(events), cache)
        tallies = _read(spark, cache / TALLIES, COLUMNS)
        host = _only_host(tallies)
        wrong = examined(tallies, events, intake.is_of_lines)
        if wrong.broken is not None:
            wrong.broken.write.parquet(for_spark(cache / BROKEN))
            broken = _read(spark, cache / BROKEN, schema.BROKEN)
            _write_tallies(tallies_of(leave_out(events, broken)), cache)
    holes = (*intake.holes, *wrong.holes)
    return replace(intake, holes=holes, has_broken=wrong.broken is not None, host=host)


def _only_host(tallies: DataFrame) -> str:
    """Return where all events were recorded; "" for several hosts, or where some do not say."""
    hosts = [row.host for row in tallies.select("host").distinct().limit(2).collect()]
    return hosts[0] or "" if len(hosts) == 1 else ""


def _write_tallies(tallies: DataFrame, cache: Place) -> None:
    tallies.write.mode("overwrite").options(**schema.PLAIN).parquet(for_spark(cache / TALLIES))


def _size_bytes(directory: Place) -> int:
    """Return the size of what there is to read."""
    stamps = inputs_of((*entries_of(directory), *files_of(directory)))
    return sum(size for _name, size, *_times in (one for one in stamps if len(one) > 1))


def is_short(directory: Path | str) -> bool:
    """Return whether a run's history looks short, before there is a session to read it with."""
    sizes = [
        [path.stat().st_size / line_bytes for path in Path(directory).glob(files) if path.exists()]
        for files, line_bytes in (("history/*.jsonl", LINE_BYTES), (f"{PARQUET}/*", ROW_BYTES))
    ]
    return 0 < sum(map(sum, sizes)) <= LINES_SHORT_MAX


def _events(
    spark: SparkSession, directory: Place, intake: LoadedFiles, is_ordered: bool = False
) -> DataFrame:
    """Return the events of the run, without what is malformed or of another run or process.

    `is_ordered`: those of lines have `block` and `row`, the order in which they stand.
    """
    if intake.is_of_lines:
        kept = directory / DIRECTORY / EVENTS
        if not is_ordered:
            return _read(spark, kept, schema.EVENT)
        ordered = _read(spark, kept, f"{schema.EVENT}, {BLOCK} BIGINT")
        return ordered.select("*", F.col("_metadata.row_index").alias(ROW))
    rows = _read(spark, [directory / name for name in intake.parts], schema.EVENT)
    if intake.malformed_lines:
        rows = rows.where(~_is_malformed())
    # What happened in another run proves nothing of this one.
    return rows.where(F.col("run_id") == intake.run_id) if intake.foreign_lines else rows


def _read(spark: SparkSession, places: Place | Sequence[Place], columns: str) -> DataFrame:
    """Return a table of Parquet; columns that it lacks are null."""
    paths = [to_read(one) for one in (places if isinstance(places, Sequence) else [places])]
    return spark.read.schema(columns).parquet(*paths)


def parse(lines: DataFrame) -> DataFrame:
    """Return `lines` (`value`: a line's text) as events, with `malformed` and `value` kept.

    A line is malformed when it is no JSON object, or only to a lenient parser, a field has the
    wrong type, one that the checks rely on is missing, or is one that no recorder writes: they may
    then not be believed, so the verdict becomes unknown.
    """
    line = F.from_json("value", f"{schema.LINE}, unparsed STRING", STRICTLY)
    fields = lines.withColumn("line", line)
    form = F.from_json("value", FORM, STRICTLY)
    events = fields.withColumn("form", form).select(*lines.columns, "form", "line.*")
    is_strict = is_one_object(schema.texts(schema.LINE))
    is_sound = F.col("unparsed").isNull() & is_strict & ~_has_bad_arrays()
    typed = (
        events.withColumn("is_sound", F.coalesce(is_sound, F.lit(False)))
        .withColumn("items", F.transform("items", _item))
        .withColumn("corrupt", F.transform("corrupt", _bad_item))
        .withColumn("letters", F.transform("letters", _letter))
        .withColumn("delayed", F.transform("delayed", _item))
    )
    return typed.withColumn("malformed", ~F.col("is_sound") | _is_malformed()).drop(
        "unparsed", "form", "is_sound"
    )


def _has_bad_arrays() -> Column:
    """Return whether a line's arrays of several types are not as the history's format has them."""

    def any_of(array: str, form: str, size: int) -> Column:
        texts = F.col("form")[array]
        wrong = F.exists(texts, lambda text: ~F.coalesce(text.rlike(form), F.lit(False)))
        sizes = F.exists(array, lambda one: ~F.coalesce(F.size(one) == size, F.lit(False)))
        return F.coalesce(wrong | sizes, F.lit(False))

    bad = any_of("items", ITEM_FORM, 4) | any_of("corrupt", BAD_ITEM_FORM, 2)
    return bad | any_of("letters", LETTER_FORM, 4) | any_of("delayed", ITEM_FORM, 4)


def _is_malformed() -> Column:
    """Return whether an event lacks something, or has what no recorder writes."""
    wrong = F.coalesce(_has_number_beyond(), F.lit(False)) | _ends_before_invoke()
    wrong = wrong | _stands_ahead() | _names_no_topic()
    return F.coalesce(_lacks() | wrong | _has_wrong_runs(), F.lit(True))


def _lacks() -> Column:
    """Return whether a row lacks something that the checks rely on."""
    invoke, ok = F.col("type") == "invoke", F.col("type") == "ok"
    put, sub = (F.col("f") == name for name in ("put", "sub"))
    operation = _is_operation()
    rules = [
        F.col("run_id").isNull() | F.col("process").isNull() | F.col("t_ns").isNull(),
        ~F.coalesce(F.col("type").isin(*schema.TYPES), F.lit(False)),
        ~F.coalesce(F.col("f").isin(*schema.FUNCTIONS), F.lit(False)),
        ~F.coalesce(F.col("op_id").between(1, schema.NUMBER_MAX), F.lit(False)),
        ~operation & (F.col("type") != "info"),
        operation & (F.col("client_id").isNull() | F.col("session").isNull()),
        operation & F.col("topic").isNull(),
        put & invoke & (F.col("counter").isNull() | F.col("count").isNull()),
        put & ok & F.col("first_id").isNull(),
        sub & ok & F.col("last_id").isNull(),
        _is_handling() & _lacks_of_handling(),
        F.col("f").isin(*schema.PURGES) & (F.col("topic").isNull() | F.col("last_id").isNull()),
        is_told_of_purge() & _lacks_of_purge(),
        F.col("digests").isNotNull() & ~F.coalesce(_has_all_digests(), F.lit(False)),
        ~F.coalesce(_has_a_digest_each("marked", "properties"), F.lit(False)),
        ~F.coalesce(_has_a_digest_each("keyed", "keys"), F.lit(False)),
        F.coalesce(F.exists("times", _is_no_time_run), F.lit(False)),
        F.coalesce(F.exists("expires", _is_no_time_run), F.lit(False)),
        F.coalesce(F.exists("delays", _is_no_time_run), F.lit(False)),
        *_speaks_of_others(),
        *_lacks_of_group(),
    ]
    return reduce(lambda left, right: left | right, rules)


def _speaks_of_others() -> list[Column]:
    """Return whether something is said of ids that a row does not bring, or of counters that it
    does not put.
    """
    f, invoke, ok = F.col("f"), F.col("type") == "invoke", F.col("type") == "ok"
    to = F.try_subtract(F.try_add(F.col("counter"), F.col("count")), F.lit(1))

    def is_outside(first: Column, last: Column, *names: str) -> Column:
        runs = (
            F.exists(
                name, lambda run: (F.get(run, F.lit(0)) < first) | (F.get(run, F.lit(1)) > last)
            )
            for name in names
        )
        return reduce(lambda left, right: left | right, (F.coalesce(r, F.lit(False)) for r in runs))

    def is_other(name: str) -> Column:
        ids = F.exists(name, lambda id_: (id_ < F.col("first_id")) | (id_ > F.col("last_id")))
        return F.coalesce(ids, F.lit(False))

    def is_unleased(id_: Column) -> Column:
        leases = F.coalesce("leases", F.array().cast("array<array<bigint>>"))
        return ~F.exists(
            leases, lambda run: id_.between(F.get(run, F.lit(0)), F.get(run, F.lit(1)))
        )

    brings = f.isin("put", "get") & ok
    is_told = is_outside(F.col("first_id"), F.col("last_id"), "times", "expires")
    return [
        (f == "put") & invoke & is_outside(F.col("counter"), to, "expires", "delays"),
        brings & (is_told | is_other("marked") | is_other("keyed")),
        (f == "take") & ok & F.coalesce(F.exists("keyed", is_unleased), F.lit(False)),
    ]


def _lacks_of_group() -> list[Column]:
    """Return what a row of a group lacks, or has that no recorder writes."""
    f, invoke, ok = F.col("f"), F.col("type") == "invoke", F.col("type") == "ok"
    brings = (f == "take") & ok & (F.coalesce(F.size("leases"), F.lit(0)) > 0)
    runs = {"leases": (0, 3, 2), "lost": (0, 2, None), "acks": (1, 3, 0)}
    runs |= {name: (1, 4, 0) for name in ("naks", "extends")}
    return [
        f.isin(*schema.OF_GROUPS) & invoke & F.col("group").isNull(),
        (f == "group") & ok & F.col("last_id").isNull(),
        brings & (F.col("token").isNull() | F.col("left_ms").isNull()),
        *(_has_no_runs(name, *form) for name, form in runs.items()),
        F.coalesce(F.exists("letters", _is_no_letter), F.lit(False)),
    ]


def _has_no_runs(name: str, place: int, size: int, from_one: int | None) -> Column:
    """Return whether an array has anything but arrays of `size` numbers with ids from `place` on.

    `from_one`: which other number is not 0.
    """

    def is_wrong(run: Column) -> Column:
        first, last = F.get(run, F.lit(place)), F.get(run, F.lit(place + 1))
        count = F.try_add(F.try_subtract(last, first), F.lit(1))
        is_one = (F.size(run) == size) & (first >= 1) & count.between(1, schema.COUNT_MAX)
        for each in range(size):
            low = 1 if each == from_one else 0
            is_one = is_one & F.get(run, F.lit(each)).between(low, schema.NUMBER_MAX)
        return ~F.coalesce(is_one, F.lit(False))

    return F.coalesce(F.exists(name, is_wrong), F.lit(False))


def _is_no_letter(letter: Column) -> Column:
    ids = (letter[name].between(1, schema.NUMBER_MAX) for name in ("id", "from_id"))
    names = (letter[name].isNotNull() for name in ("topic", "group"))
    return ~F.coalesce(reduce(lambda left, right: left & right, (*ids, *names)), F.lit(False))


def _is_operation() -> Column:
    return F.col("f").isin(*schema.OPERATIONS)


def _is_handling() -> Column:
    return F.col("f").isin(*schema.HANDLINGS)


def _lacks_of_handling() -> Column:
    """Return whether it isn't said whose it is, or of which ids."""
    names = ("op_id", "session", "client_id", "topic", "last_id")
    missing = [F.col(name).isNull() for name in names]
    ids = _count_of(F.coalesce("first_id", "last_id"))
    is_wrong = (F.col("f") != "ack") & F.col("first_id").isNull()
    is_wrong = is_wrong | (F.coalesce("first_id", F.lit(1)) < 1)
    is_wrong = is_wrong | ~F.coalesce(ids.between(1, schema.COUNT_MAX), F.lit(False))
    return reduce(lambda left, right: left | right, missing, is_wrong)


def _lacks_of_purge() -> Column:
    """Return whether it isn't said which ids are purged."""
    ids = _count_of(F.col("first_id"))
    return (F.col("first_id") < 1) | ~F.coalesce(ids.between(1, schema.COUNT_MAX), F.lit(False))


def _count_of(first_id: Column) -> Column:
    """Return how many ids a row names up to its `last_id`; null if no number can say it."""
    return F.try_add(F.try_subtract(F.col("last_id"), first_id), F.lit(1))


def _has_number_beyond() -> Column:
    """Return whether a number is one that no operation has; null where none is.

    Plain comparisons of a column and a number: Parquet's statistics answer them without a look at
    the rows. One that they do not know, such as of two columns, would have all rows read.
    """
    numbers = (
        *("first_id", "last_id", "cursor", "asked", "epoch", "redelivered", "bytes"),
        *("session", "term", "attempt", "lease_ms", "left_ms"),
    )
    from_one = (
        *("op_id", "counter", "max_count", "max_bytes"),
        *("token", "number", "max_attempts"),
    )
    beyond = [(F.col(one) < 0) | (F.col(one) > schema.NUMBER_MAX) for one in numbers]
    beyond += [(F.col(one) < 1) | (F.col(one) > schema.NUMBER_MAX) for one in from_one]
    beyond += [(F.col("count") < 0) | (F.col("count") > schema.COUNT_MAX)]
    beyond += [F.col(one) < 0 for one in ("t_ns", "wall_ns", "invoke_ns")]
    return reduce(lambda left, right: left | right, beyond)


def _ends_before_invoke() -> Column:
    return F.coalesce(F.col("invoke_ns") > F.col("t_ns"), F.lit(False))


def _stands_ahead() -> Column:
    """Return whether a subscription is said to stand behind ids that are said to come still."""
    is_sub = (F.col("f") == "sub") & (F.col("type") == "ok")
    return F.coalesce(is_sub & (F.col("cursor") > F.col("last_id")), F.lit(False))


def _names_no_topic() -> Column:
    """Return whether a GET is told of ids, and not of which topic."""
    is_told = ((F.col("type") == "ok") & (F.col("count") > 0)) | is_told_of_purge()
    return F.coalesce((F.col("f") == "get") & is_told & (F.col("topic") == ""), F.lit(False))


def _has_all_digests() -> Column:
    ids = _count_of(F.col("first_id"))
    digits = F.length("digests") == F.try_multiply("count", F.lit(schema.DIGEST_DIGITS))
    of_ids = (F.col("first_id") > 0) & (ids == F.col("count"))
    is_hex = F.col("digests").rlike("^[0-9a-f]*$")
    return digits & is_hex & ((F.col("f") == "put") | of_ids)


def _has_a_digest_each(marked: str, digests: str) -> Column:
    """Return whether there is a digest for each id that is marked."""
    ids, said = F.coalesce(F.size(marked), F.lit(0)), F.coalesce(digests, F.lit(""))
    is_id = F.forall(
        F.coalesce(marked, F.array().cast("array<bigint>")),
        lambda id_: F.coalesce(id_.between(1, schema.NUMBER_MAX), F.lit(False)),
    )
    return (F.length(said) == ids * schema.DIGEST_DIGITS) & said.rlike("^[0-9a-f]*$") & is_id


def _is_no_time_run(run: Column) -> Column:
    """Return whether it is anything but a run of ids and the time that they have."""
    first, last, at_ms = (F.get(run, F.lit(place)) for place in range(3))
    count = F.try_add(F.try_subtract(last, first), F.lit(1))
    is_one = (F.size(run) == 3) & first.between(1, schema.NUMBER_MAX)
    is_one = is_one & last.between(1, schema.NUMBER_MAX) & count.between(1, schema.COUNT_MAX)
    return ~F.coalesce(is_one & at_ms.between(1, schema.NUMBER_MAX), F.lit(False))


def _has_several_runs() -> Column:
    several = F.coalesce(F.size("items") > 1, F.lit(False)) | (F.col("f") == "take")
    names = ("corrupt", "letters", "delayed")
    others = (F.coalesce(F.size(name) > 0, F.lit(False)) for name in names)
    return reduce(lambda left, right: left | right, others, several)


def _has_wrong_runs(is_single: bool = False) -> Column:
    """Return whether an operation's runs of ids or counters are not what its count says.

    `is_single`: it is known to have one item at most, and nothing corrupt.
    """
    put, ok = F.col("f") == "put", F.col("type") == "ok"
    ids = _count_of(F.col("first_id"))
    wrong = put & ((F.col("count") < 1) | (ok & (F.col("first_id") > 0) & (ids != F.col("count"))))
    take = F.col("f") == "take"
    says = F.col("items").isNotNull() | F.col("corrupt").isNotNull()
    brings = ((F.col("f") == "get") & F.col("digests").isNull()) | (take & says)
    brings = brings & ok
    brought = _brought(is_single)
    is_other = F.when(brings, ~F.coalesce(F.col("count"), F.lit(0)).eqNullSafe(brought))
    if not is_single:
        is_unleased = ~F.coalesce(F.col("count"), F.lit(0)).eqNullSafe(_leased())
        wrong = wrong | (take & ok & is_unleased) | (take & brings & _brings_other_ids())
    is_apart = (F.col("f") == "get") & brings & _says_other_ids(is_single)
    wrong = wrong | F.coalesce(is_apart, F.lit(False))
    holds = _has_holes(is_single) | F.coalesce(is_other, F.lit(False))
    return F.coalesce(wrong, F.lit(False)) | holds


def _brought(is_single: bool) -> Column:
    """Return how many publications an answer's runs have together, null if one says nothing."""
    zero = F.lit(0).cast("bigint")
    # Most have one run, and a look at it is cheaper than a loop.
    single = F.when(F.size("items") == 1, F.get("items", F.lit(0))["count"])
    if is_single:
        return single.otherwise(zero)
    many, late = (
        F.aggregate(
            F.coalesce(name, F.array()),
            zero,
            lambda total, item: F.try_add(total, item["count"]),
        )
        for name in ("items", "delayed")
    )
    others = F.coalesce(F.size("corrupt"), F.lit(0)) + F.coalesce(F.size("letters"), F.lit(0))
    return F.try_add(F.try_add(single.otherwise(many), late), others)


def _says_other_ids(is_single: bool) -> Column:
    """Return whether an answer says that it begins or ends with other ids than it does."""
    one = F.get("items", F.lit(0))
    lowest, highest = (one["first_id"], _last_of(one)) if is_single else _range()
    wrong = (F.col("first_id") != lowest, F.col("last_id") != highest)
    return reduce(lambda left, right: left | right, (F.coalesce(w, F.lit(False)) for w in wrong))


def _brings_other_ids() -> Column:
    """Return whether the lowest or the highest id that a TAKE brings is another than it leases."""
    lowest, highest = _range()
    first = F.array_min(F.transform("leases", lambda run: F.get(run, F.lit(0))))
    last = F.array_max(F.transform("leases", lambda run: F.get(run, F.lit(1))))
    return F.coalesce((first != lowest) | (last != highest), F.lit(False))


def _range() -> tuple[Column, Column]:
    """Return the lowest and the highest id that an answer brings, of all its arrays."""
    runs = [(name, lambda run: run["first_id"], _last_of) for name in ("items", "delayed")]
    ids = [(name, lambda id_: id_["id"], lambda id_: id_["id"]) for name in ("corrupt", "letters")]
    every = (*runs, *ids)
    lowest = F.least(*(F.array_min(F.transform(name, low)) for name, low, _ in every))
    return lowest, F.greatest(*(F.array_max(F.transform(name, high)) for name, _, high in every))


def _last_of(run: Column) -> Column:
    return F.try_subtract(F.try_add(run["first_id"], run["count"]), F.lit(1))


def _leased() -> Column:
    """Return how many publications a TAKE's leases have together."""
    return F.aggregate(
        F.coalesce("leases", F.array()),
        F.lit(0).cast("bigint"),
        lambda total, run: F.try_add(
            total, F.try_add(F.try_subtract(F.get(run, F.lit(1)), F.get(run, F.lit(0))), F.lit(1))
        ),
    )


def _has_holes(is_single: bool) -> Column:
    """Return whether something is missing in a row's arrays, or is one that no recorder writes."""

    def lacks(array: str, bounds: Mapping[str, tuple[int, int]], text: str) -> Column:
        def any_of(one: Column) -> Column:
            numbers = (one[name].between(*within) for name, within in bounds.items())
            whole = reduce(lambda left, right: left & right, numbers)
            return ~F.coalesce(whole & one[text].isNotNull(), F.lit(False))

        single = F.when(F.size(array) == 1, any_of(F.get(array, F.lit(0))))
        return single if is_single else single.otherwise(F.exists(array, any_of))

    item = {
        "first_id": (1, schema.NUMBER_MAX),
        "counter": (1, schema.NUMBER_MAX),
        "count": (1, schema.COUNT_MAX),
    }
    found = [
        lacks("items", item, "producer"),
        lacks("corrupt", {"id": item["first_id"]}, "reason"),
    ]
    if not is_single:
        found.append(lacks("delayed", item, "producer"))
    found = [F.coalesce(each, F.lit(False)) for each in found]
    return reduce(lambda left, right: left | right, found)


def _item(item: Column) -> Column:
    first_id, producer, counter, count = (F.get(item, place) for place in range(4))
    return F.struct(
        first_id.try_cast("bigint").alias("first_id"),
        producer.alias("producer"),
        counter.try_cast("bigint").alias("counter"),
        count.try_cast("bigint").alias("count"),
    )


def _letter(letter: Column) -> Column:
    id_, topic, group, from_id = (F.get(letter, place) for place in range(4))
    return F.struct(
        id_.try_cast("bigint").alias("id"),
        topic.alias("topic"),
        group.alias("group"),
        from_id.try_cast("bigint").alias("from_id"),
    )


def _bad_item(bad: Column) -> Column:
    return F.struct(
        F.get(bad, 0).try_cast("bigint").alias("id"),
        F.get(bad, 1).alias("reason"),
    )


def _is_application(path: Place) -> bool:
    """Return whether `path` (run.json) says so; one that can't be read has been reported."""
    try:
        return bool(strictly(content_of(path))["recorded_by"] == APPLICATION)
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _count(spark: SparkSession, survey: FileSurvey, _target: Place) -> LoadedFiles:
    """Judge and count the rows of a history that is kept as Parquet; nothing is written."""
    rows = _read(spark, survey.readable, schema.EVENT)
    counts = _counts_of_sound(rows, survey.run_id) or _counts(rows, survey.run_id)
    intake = _intake(survey, counts | {"marked": 0, "cut": 0})
    if survey.lines in (None, intake.lines):
        return intake
    said = f"{PARQUET} has {intake.lines} rows, and run.json says {survey.lines}"
    return replace(intake, holes=(*intake.holes, said))


def _counts_of_sound(rows: DataFrame, run_id: str) -> dict[str, Any] | None:
    """Return the `_counts` of rows that all are sound, and of this run; None if any may not be.

    All rules for every row are dear: too long a code for Java to compile. Here a row comes to what
    it is (type, function) and which columns it has. Of these there are a dozen, each with a
    specimen that the rules are asked about; only rows of which more is to be known are looked at.
    """
    if rows.where(_has_number_beyond()).count():
        return None
    bits = [
        F.when(F.col(name).isNotNull(), F.lit(1 << at)).otherwise(0)
        for at, name in enumerate(SPECIMEN)
    ]
    several, foreign = _has_several_runs(), ~F.col("run_id").eqNullSafe(F.lit(run_id))
    wrong = (~several & _has_wrong_runs(is_single=True)) | _ends_before_invoke()
    wrong = wrong | _stands_ahead() | _names_no_topic()
    kinds = rows.groupBy(
        "type", "f", reduce(lambda left, right: left.bitwiseOR(right), bits).alias("has")
    ).agg(
        F.count(F.lit(1)).alias("rows"),
        F.count_if(wrong | foreign).alias("wrong"),
        F.count_if(several).alias("several"),
        F.count_if(_is_delayed_put()).alias("delayed_puts"),
        F.bool_or(F.col("delayed").isNotNull()).alias("came"),
        F.bool_or(_says_what_was_put()).alias("timed"),
    )
    specimens = kinds.withColumns(
        {
            name: F.when(F.col("has").bitwiseAND(F.lit(1 << at)) != 0, F.lit(value).cast(kind))
            for at, (name, (kind, value)) in enumerate(SPECIMEN.items())
        }
        | {name: F.lit(None).cast(kind) for name, kind in UNSPECIFIC.items()}
    )
    says_more = _says_more()
    lacks = ~says_more & F.coalesce(_lacks(), F.lit(True))
    found = specimens.agg(
        F.sum("rows").alias("lines"),
        F.sum("wrong").alias("wrong"),
        F.count_if(lacks).alias("lacking"),
        F.count_if(says_more | (F.col("several") > 0)).alias("more"),
        F.bool_or("timed").alias("timed"),
        F.sum("delayed_puts").alias("delayed_puts"),
        F.bool_or("came").alias("came"),
    ).first()
    assert found is not None, "an aggregate without groups has one row"
    if found.wrong or found.lacking:
        return None
    more = rows.where((_says_more() | _has_several_runs()) & _is_malformed())
    if found.more and not more.limit(1).isEmpty():
        return None
    nothing = {"malformed": 0, "foreign": 0, "example": None, "foreign_example": None}
    counts = {"lines": found.lines or 0, "delayed_puts": found.delayed_puts or 0}
    return nothing | counts | {"timed": found.timed, "came": found.came}


def _says_more() -> Column:
    """Return whether the rules for a row rest on more than which columns it has."""
    names = (
        *("digests", "marked", "properties", "keyed", "keys", "times", "letters", "expires"),
        *("delayed", "delays"),
        *schema.OF_LEASES,
    )
    texts = [F.col(name).isNotNull() for name in names]
    purged = (F.col("type") == "fail") & F.col("first_id").isNotNull()
    rare = _is_handling() | F.col("f").isin(*schema.OF_GROUPS) | purged
    more = reduce(lambda left, right: left | right, texts, rare)
    return F.coalesce(more, F.lit(True))  # null: what is no type or function


def _says_what_was_put() -> Column:
    """Return whether a row says times or properties of ids, or which are dead letters, or that a
    topic is compacted.
    """
    said = F.col("times").isNotNull() | F.col("marked").isNotNull() | F.col("expires").isNotNull()
    is_compacted = F.coalesce(F.col("error") == "compacted", F.lit(False)) | (
        F.col("compacted").isNotNull()
    )
    return said | F.col("letters").isNotNull() | is_compacted


def _is_delayed_put() -> Column:
    """Return whether a row begins a PUT with a delay."""
    is_put = (F.col("f") == "put") & (F.col("type") == "invoke")
    return F.coalesce(is_put & F.endswith("topic", F.lit(schema.LANE)), F.lit(False))


def _counts(rows: DataFrame, run_id: str) -> dict[str, Any]:
    """Return how many rows there are, how many are malformed or foreign, with an example."""
    judged = rows.withColumn("malformed", _is_malformed())
    where = F.concat_ws(" ", F.lit(PARQUET), "process", F.col("op_id").cast("string"))
    foreign = ~F.col("malformed") & (F.col("run_id") != run_id)
    counts = judged.agg(
        F.count(F.lit(1)).alias("lines"),
        F.count_if("malformed").alias("malformed"),
        F.count_if(foreign).alias("foreign"),
        F.bool_or(_says_what_was_put()).alias("timed"),
        F.count_if(_is_delayed_put()).alias("delayed_puts"),
        F.bool_or(F.col("delayed").isNotNull()).alias("came"),
        F.min(F.when(F.col("malformed"), where)).alias("example"),
        F.min(F.when(foreign, where)).alias("foreign_example"),
    ).first()
    assert counts is not None, "an aggregate without groups has one row"
    return counts.asDict()


def _convert(spark: SparkSession, survey: FileSurvey, target: Place) -> LoadedFiles:
    """Write the readable lines to `target` as events; count all lines on the way."""
    parsed = parse(lines_of(spark, survey.readable))
    marked = F.col("malformed") & F.col("value").endswith(TORN_MARK)
    cut = F.col("malformed") & ~marked & _is_tail(survey)
    shown = F.concat_ws(": ", "file", F.substring("value", 1, EXAMPLE_CHARACTERS_MAX))
    is_other = F.concat("process", F.lit(LINES_ENDING)) != F.col("file")
    if survey.run_id:
        is_other = is_other | (F.col("run_id") != survey.run_id)
    foreign = ~F.col("malformed") & is_other
    counted = Observation("intake")
    events = parsed.withColumn("foreign", foreign).observe(
        counted,
        F.count(F.lit(1)).alias("lines"),
        F.count_if("malformed").alias("malformed"),
        F.count_if(marked).alias("marked"),
        F.count_if(cut).alias("cut"),
        F.count_if("foreign").alias("foreign"),
        F.bool_or(_says_what_was_put()).alias("timed"),
        F.count_if(_is_delayed_put()).alias("delayed_puts"),
        F.bool_or(F.col("delayed").isNotNull()).alias("came"),
        F.min(F.when(F.col("malformed") & ~marked & ~cut, shown)).alias("example"),
        F.min(F.when(F.col("foreign"), shown)).alias("foreign_example"),
    )
    kept = events.where(~F.col("malformed") & ~F.col("foreign"))
    columns = kept.drop("malformed", "foreign", "value", "file")
    columns.write.options(**schema.PLAIN).parquet(for_spark(target))
    return _intake(survey, counted.get)


def _is_tail(survey: FileSurvey) -> Column:
    """Return whether a line is the one that a killed process was writing last."""
    if not survey.tails:
        return F.lit(False)
    tails = [f"{digest} {name}" for name, digest in survey.tails]
    digest = F.md5(F.col("value").cast("binary"))
    # Of a malformed line alone: to digest all of them would take as long as to read them.
    return F.when(F.col("malformed"), F.concat_ws(" ", digest, F.col("file")).isin(tails))


def _intake(survey: FileSurvey, counts: Mapping[str, Any]) -> LoadedFiles:
    cut = min(counts["cut"], len(survey.tails))  # more of them are copies that have an end
    prefix = f"{PARQUET}/" if survey.is_parquet else f"{LINES}/"
    return LoadedFiles(
        run_id=survey.run_id,
        lines=counts["lines"],
        torn_lines=counts["marked"] + cut,
        malformed_lines=counts["malformed"] - counts["marked"] - cut,
        foreign_lines=counts["foreign"],
        example=counts["example"] or "",
        foreign_example=counts["foreign_example"] or "",
        holes=survey.holes,
        unvouched=survey.unvouched,
        remarks=survey.remarks,
        parts=tuple(f"{prefix}{place.name}" for place in survey.readable),
        is_timed=bool(counts["timed"]),
        delayed_puts=counts["delayed_puts"],
        has_delays=bool(counts["came"] or counts["delayed_puts"]),
    )
