"""Which columns of Parquet files say nothing, by what stands at the files' ends.

A history has sixty columns, and most runs say something in twenty of them. To read one that is null
throughout is not free: Spark puts an array together row by row. One that is known to be null is a
literal to it, and what rests on it is not computed. Whoever writes Parquet counts the nulls of each
column of each group of rows; these counts are believed here, as Spark believes them for filters. Of
an array they do not tell a null from an empty one; its levels do (`schema.PLAIN` has them counted).

What must not be here: what a column means.
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import reduce
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from analytics.common.storage import Place, for_spark


def silent_columns(spark: SparkSession, files: Iterable[Place], names: Iterable[str]) -> list[str]:
    """Return those of `names` that are null in all rows of `files`, sorted.

    None where a file can't be understood: Spark says what is wrong with it, as it reads it.
    """
    silent = set(names)
    try:
        for file in files:
            with _opened(spark, file) as footer:
                silent -= _speaking(spark, footer, silent)
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


def _speaking(spark: SparkSession, footer: Any, names: set[str]) -> set[str]:
    """Return those of `names` that are not proven to be null in all rows of a file."""
    fields = footer.getFileMetaData().getSchema().getFields()
    kinds = {field.getName().lower(): str(field.getRepetition()) for field in fields}
    speaking = {name for name in names if kinds.get(name, "OPTIONAL") != "OPTIONAL"}
    for group in footer.getBlocks():
        columns = group.getColumns()
        left = names - speaking
        flat: list[str] = []
        nested: dict[str, list[int]] = defaultdict(list)
        for place, column in enumerate(columns):
            path = column.getPath().toDotString()
            name = path.partition(".")[0].lower()  # to Spark large and small letters are one
            if name in left:
                if "." in path:
                    nested[name].append(place)
                else:
                    flat.append(path)
        speaking |= _flat_speaking(spark, columns, flat)
        speaking |= {
            name
            for name, places in nested.items()
            if not any(_is_never_any(columns[place]) for place in places)
        }
    return speaking


def _flat_speaking(spark: SparkSession, columns: Any, paths: list[str]) -> set[str]:
    """Return which of the columns, neither arrays nor structs, have a value in a group of rows."""
    jvm = spark._jvm
    assert jvm is not None, "Spark has been stopped"
    filter2 = jvm.org.apache.parquet.filter2
    predicates, can_drop = filter2.predicate.FilterApi, filter2.statisticslevel.StatisticsFilter
    # Of any type: nothing is compared but with null.
    values = {path: predicates.notEq(predicates.longColumn(path), None) for path in paths}
    if not values or can_drop.canDrop(reduce(getattr(predicates, "or"), values.values()), columns):
        return set()
    return {path.lower() for path, one in values.items() if not can_drop.canDrop(one, columns)}


def _is_never_any(column: Any) -> bool:
    """Return whether a part of an array or a struct says that there is none in a group of rows."""
    sizes = column.getSizeStatistics()
    levels = json.loads(str(sizes.getDefinitionLevelHistogram())) if sizes is not None else []
    return bool(levels) and not any(levels[1:])
