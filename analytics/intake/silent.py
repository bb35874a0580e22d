"""Which columns of Parquet files say nothing, by what stands at the files' ends.

A history has sixty columns, and most runs say something in twenty of them. To read one that is null
throughout is not free: Spark puts an array together row by row. One that is known to be null is a
literal to it, and what rests on it is not computed. Whoever writes Parquet counts the nulls of each
column of each group of rows; these counts are believed here, as Spark believes them for filters. Of
an array they do not tell a null from an empty one; its levels do (`schema.PLAIN` has them counted).

What must not be here: what a column means.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from analytics.common.storage import Place, for_spark


def silent_columns(spark: SparkSession, files: Iterable[Place], names: Iterable[str]) -> list[str]:
    """Return those of `names` that are null in all rows of `files`, sorted.

    None where a file can't be understood: Spark says what is wrong with it, as it reads it.
    """
    silent, listener = set(names), _Listener(spark)
    try:
        for file in files:
            with _opened(spark, file) as footer:
                silent -= listener.speaking(footer, silent)
    except Py4JJavaError:
        return []
    return sorted(silent)


@contextmanager
def _opened(spark: SparkSession, file: Place) -> Iterator[Any]:
    """Yield what stands at a file's end."""
    jvm = spark._jvm
    assert jvm is not None, "Spark has been stopped"
    hadoop, path = jvm.org.apache.parquet.hadoop, jvm.org.apache.hadoop.fs.Path(for_spark(file))
    place = hadoop.util.HadoopInputFile.fromPath(path, spark._jsc.hadoopConfiguration())
    reader = hadoop.ParquetFileReader.open(place)
    try:
        yield reader.getFooter()
    finally:
        reader.close()


@dataclass(frozen=True, slots=True)
class _Column:
    """A column of a file: the first value in it stands at `place` of each group, as `path`."""

    name: str
    place: int
    path: str
    is_flat: bool
    is_optional: bool


@dataclass(frozen=True, slots=True)
class _Listener:
    """Hears which columns say something. Each word with the JVM takes time, and there are hundreds
    of files of a kind: what is so of all of them is asked once.
    """

    spark: SparkSession
    layouts: dict[str, list[_Column]] = field(default_factory=dict)
    questions: dict[tuple[str, ...], Any] = field(default_factory=dict)

    def speaking(self, footer: Any, names: set[str]) -> set[str]:
        """Return those of `names` that are not proven to be null in all rows of a file."""
        columns = [one for one in self._layout(footer) if one.name in names]
        speaking = {one.name for one in columns if not one.is_optional}
        for group in footer.getBlocks():
            chunks = group.getColumns()
            left = [one for one in columns if one.name not in speaking]
            flat = {one.path: one.name for one in left if one.is_flat}
            speaking |= {flat[path] for path in self._spoken(tuple(flat), chunks)}
            nested = (one for one in left if not one.is_flat)
            speaking |= {one.name for one in nested if not _is_never_any(chunks[one.place], one)}
        return speaking

    def _layout(self, footer: Any) -> list[_Column]:
        schema = footer.getFileMetaData().getSchema()
        text = str(schema.toString())
        if text not in self.layouts:
            self.layouts[text] = _columns_of(schema)
        return self.layouts[text]

    def _spoken(self, paths: tuple[str, ...], chunks: Any) -> Sequence[str]:
        """Return which of `paths`, neither arrays nor structs, have a value in a group of rows."""
        if not paths or self._is_null(paths, chunks):
            return ()
        return [path for path in paths if not self._is_null((path,), chunks)]

    def _is_null(self, paths: tuple[str, ...], chunks: Any) -> bool:
        """Return whether all of `paths` are null in a group of rows, and known to be."""
        jvm = self.spark._jvm
        assert jvm is not None, "Spark has been stopped"
        filter2 = jvm.org.apache.parquet.filter2
        if paths not in self.questions:
            ask = filter2.predicate.FilterApi
            # Of any type: nothing is compared but with null.
            values = [ask.notEq(ask.longColumn(path), None) for path in paths]
            self.questions[paths] = reduce(getattr(ask, "or"), values)
        can_drop = filter2.statisticslevel.StatisticsFilter.canDrop
        return bool(can_drop(self.questions[paths], chunks))


def _columns_of(schema: Any) -> list[_Column]:
    """Return the columns of a file. To Spark large and small letters are one."""
    fields = {str(one.getName()): str(one.getRepetition()) for one in schema.getFields()}
    first: dict[str, tuple[int, list[str]]] = {}
    for place, path in enumerate(schema.getPaths()):
        steps = list(map(str, path))
        first.setdefault(steps[0], (place, steps))
    return [
        _Column(name.lower(), place, ".".join(steps), len(steps) == 1, fields[name] == "OPTIONAL")
        for name, (place, steps) in first.items()
    ]


def _is_never_any(chunk: Any, column: _Column) -> bool:
    """Return whether a part of an array or a struct says that there is none in a group of rows."""
    if str(chunk.getPath().toDotString()) != column.path:
        return False
    sizes = chunk.getSizeStatistics()
    levels = json.loads(str(sizes.getDefinitionLevelHistogram())) if sizes is not None else []
    return bool(levels) and not any(levels[1:])
