"""Where the tables of a run are kept, so that no plan grows with the number of tables before it.

What lives here: the ways to keep one. What must not: which tables there are (tables.py), what is
in them, or when a history is short (session.py).

A long history's are Parquet files in the run's cache. A short one's are rows in the driver, so
that a whole plan is one task; of their hundred tables, most of them empty, each file would cost
more than the rows in it. The smallest tables of both are literals to Spark, which prunes what joins
an empty one.
"""

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from analytics.common.schema import PLAIN
from analytics.common.session import is_set_for_short
from analytics.common.storage import Place, RemotePath, for_spark, to_read

OVERFLOW: Final = (
    "overflow"  # in a short history's cache: tables that it has too long for the driver
)
ROWS_MAX: Final = 500_000  # in the driver; a table with more goes to a file: 4 GB have room for it
# Of a table that is literals in every plan which reads it. The planner goes through them at each of
# its steps; what it gains by seeing them, that a filter leaves nothing, is of such small tables.
LITERALS_MAX: Final = 256


class Keeper(Protocol):
    """Keeps tables under their names, and evidence under the names of its checks."""

    @property
    def cache(self) -> Place:
        """The directory that is for what is kept in files."""

    def table(self, name: str, table: DataFrame) -> DataFrame:
        """Return `table` as it is kept."""

    def evidence(self, name: str, rows: DataFrame) -> DataFrame:
        """Return `rows` as they are kept in `evidence/<name>` of the cache."""


@dataclass(frozen=True, slots=True)
class OnDisk:
    """Keeps all as Parquet in `cache`. `is_fresh`: no table is there yet; else all are.

    `constants`: columns with one value in every row of every table. They are written nowhere, and
    are literals to Spark: keys that have them are not made longer by them.
    """

    spark: SparkSession
    cache: Place
    is_fresh: bool
    constants: Mapping[str, str] = field(default_factory=dict)

    def table(self, name: str, table: DataFrame) -> DataFrame:
        """Return `table` as it is kept."""
        place = self.cache / name
        varying = table.drop(*self.constants)
        if self.is_fresh:
            varying.write.options(**PLAIN).parquet(for_spark(place))
        kept = self.spark.read.schema(varying.schema).parquet(to_read(place))
        return _seen_whole(with_constants(kept, self.constants, table.columns))

    def evidence(self, name: str, rows: DataFrame) -> DataFrame:
        """Return `rows` as they are kept; without any, there are files all the same."""
        place = self.cache / "evidence" / name
        rows.write.mode("overwrite").parquet(for_spark(place))
        return self.spark.read.schema(rows.schema).parquet(to_read(place))


@dataclass(frozen=True, slots=True)
class InDriver:
    """Keeps tables in the driver's memory, and in `cache` what of them is too long for it."""

    spark: SparkSession
    cache: Place

    def table(self, name: str, table: DataFrame) -> DataFrame:
        """Return `table` as it is kept: in one partition."""
        literal = _literal(table)
        if literal is None:
            # Apart from what is kept from check to check, and from the evidence that it may become.
            overflow = self.cache / OVERFLOW
            remove_tree(overflow / name)
            return OnDisk(self.spark, overflow, is_fresh=True).table(name, table).coalesce(1)
        return literal

    def evidence(self, name: str, rows: DataFrame) -> DataFrame:
        """Return `rows` as they are kept; without any, there is no directory."""
        place = self.cache / "evidence" / name
        remove_tree(place)
        kept = self.table(f"evidence/{name}", rows)
        if not is_never_any(kept):  # a file of an overflow has rows
            kept.write.mode("overwrite").parquet(for_spark(place))
        return kept


def with_constants(
    table: DataFrame, constants: Mapping[str, str], columns: Sequence[str]
) -> DataFrame:
    """Return `columns` of a table; those of them that are constants, as such."""
    values = ((name, constants.get(name)) for name in columns)
    return table.select(
        *(F.col(name) if value is None else F.lit(value).alias(name) for name, value in values)
    )


def settled(table: DataFrame) -> DataFrame:
    """Return `table`; of a short history with its rows computed.

    For what is used more than once, or is mostly empty: each step of a plan is analyzed with all
    that it rests on, and what is known to be empty needs no steps. Of a long history that is what
    the kept tables are for.
    """
    if not is_set_for_short(table.sparkSession):
        return table
    literal = _literal(table)
    return table if literal is None else literal


def few(table: DataFrame) -> DataFrame:
    """Return `table`, which as a rule has next to no rows, with its rows computed: of a long
    history, too.

    What rests on it is then planned over literals, or not at all. A table with more than
    `LITERALS_MAX` rows stays as it was: it was computed once more than it is used.
    """
    return settled(table) if is_set_for_short(table.sparkSession) else _seen_whole(table)


def _literal(table: DataFrame) -> DataFrame | None:
    """Return `table` as rows in the driver, in one partition; None if there are too many."""
    if is_never_any(table):
        return none_of(table)
    execution = table.limit(ROWS_MAX + 1)._jdf.queryExecution()
    # By itself it takes over no settings of the session: its tasks have them by `session.fit`.
    rows = execution.executedPlan().executeCollect()
    if len(rows) > ROWS_MAX:
        return None
    return _of_rows(table, rows).coalesce(1)


def _seen_whole(kept: DataFrame) -> DataFrame:
    """Return a table that stands in files, or is `few`. One with so few rows that they are literals
    is these: without any, nothing that joins it is read.
    """
    rows = kept.limit(LITERALS_MAX + 1)._jdf.queryExecution().executedPlan().executeCollect()
    return kept if len(rows) > LITERALS_MAX else _of_rows(kept, rows)


def _of_rows(table: DataFrame, rows: Any) -> DataFrame:
    """Return a table with the columns of `table` and these `rows`, an array of Spark's own.

    They are not made rows of Python or Java on the way: that takes an encoder, and each encoder
    is a plan.
    """
    spark = table.sparkSession
    jvm, inside, schema = spark._jvm, spark._jsparkSession, table._jdf.schema()
    assert jvm is not None, "Spark has been stopped"
    data = jvm.scala.collection.immutable.ArraySeq.unsafeWrapArray(rows)
    if len(rows) <= LITERALS_MAX:
        catalyst = jvm.org.apache.spark.sql.catalyst
        columns = catalyst.types.DataTypeUtils.toAttributes(schema)
        no_stream = jvm.scala.Option.empty()
        relation = catalyst.plans.logical.LocalRelation(columns, data, False, no_stream)
        return DataFrame(jvm.org.apache.spark.sql.classic.Dataset.ofRows(inside, relation), spark)
    tag = getattr(getattr(jvm.scala.reflect, "ClassTag$"), "MODULE$").AnyRef()
    kept = spark.sparkContext._jsc.sc().parallelize(data, 1, tag)
    kept.localCheckpoint()  # else each task that reads them takes them along
    kept.count()
    return DataFrame(inside.internalCreateDataFrame(kept, schema, False), spark)


def kept_length(table: DataFrame) -> int | None:
    """Return how many rows a table has that is kept in the driver; None for any other."""
    plan = table._jdf.queryExecution().analyzed()
    while plan.getClass().getSimpleName() in ("Project", "Repartition"):
        plan = plan.child()
    match plan.getClass().getSimpleName():
        case "LocalRelation":
            return int(plan.data().size())
        case "LogicalRDD":
            return int(plan.rdd().count())
    return None


def made_of(spark: SparkSession, rows: Sequence[Mapping[str, object]], columns: str) -> DataFrame:
    """Return a few rows as a table, made in the JVM: a worker in Python takes seconds to start."""
    text = F.lit(json.dumps(rows))
    return spark.range(1).select(F.inline(F.from_json(text, f"ARRAY<STRUCT<{columns}>>")))


def is_never_any(table: DataFrame) -> bool:
    """Return whether a table's plan alone says that it has no rows: kept in the driver, they do."""
    rows_max = table._jdf.queryExecution().analyzed().maxRows()
    return bool(rows_max.isDefined() and rows_max.get() == 0)


def none_of(table: DataFrame) -> DataFrame:
    """Return a table with the columns of `table` and no rows, whose plan knows that."""
    spark = table.sparkSession
    nothing = spark._jsparkSession.createDataFrame([], table._jdf.schema())
    return DataFrame(nothing, spark)


def make_tree(directory: Place) -> None:
    """Make `directory`, if it is not there; elsewhere than here, it comes with its first file."""
    if isinstance(directory, Path):
        directory.mkdir(exist_ok=True)


def remove_tree(directory: Place) -> None:
    """Delete `directory` with all that is in it; nothing happens if it is not there."""
    if isinstance(directory, RemotePath):
        directory.remove_tree()
    else:
        shutil.rmtree(directory, ignore_errors=True)
