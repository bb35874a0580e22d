"""Lines of JSON as Spark reads them, and which of them are no more than what a recorder writes.

Spark's parser takes more than JSON: other quotes, NaN, a number for a text, a name twice, anything
behind the first object. What is taken otherwise by one reader than by another is to be believed by
none. What the fields mean is not known here.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from analytics.common.storage import Place, escaped_names, to_read

# For `from_json`; what can't be parsed stands in the column `unparsed` then.
STRICTLY: Final[Mapping[str, str]] = {
    "mode": "PERMISSIVE",
    "columnNameOfCorruptRecord": "unparsed",
    "allowSingleQuotes": "false",
    "allowNonNumericNumbers": "false",
}
VALUE, FILE, BLOCK = "value", "file", "block"
HIGH, LOW = r"\\ud[89ab][0-9a-f]{2}", r"\\ud[c-f][0-9a-f]{2}"  # together a character, alone none
HALF: Final = rf"(?i){HIGH}(?!{LOW})|(?<!{HIGH}){LOW}"


def lines_of(spark: SparkSession, places: Iterable[Place]) -> DataFrame:
    """Return the lines of files: `value`, `file` (its name), `block` (where its split begins)."""
    files = tuple(places)
    # With the default, a lone CR would end a line as well.
    read = spark.read.text([to_read(one) for one in files], lineSep="\n")
    name, escaped = F.col("_metadata.file_name"), escaped_names(spark, files)
    if escaped:
        names = F.create_map(*(F.lit(text) for pair in escaped.items() for text in pair))
        name = F.coalesce(F.try_element_at(names, name), name)
    block = F.col("_metadata.file_block_start")
    return read.select(VALUE, name.alias(FILE), block.alias(BLOCK))


def no_lines(spark: SparkSession) -> DataFrame:
    """Return what `lines_of` does where there is no file."""
    nothing = (F.lit("").alias(VALUE), F.lit("").alias(FILE), F.lit(0).cast("bigint").alias(BLOCK))
    return spark.range(0).select(*nothing)


def is_one_object(texts: Iterable[str]) -> Column:
    """Return whether `value` is one JSON object, each name once in it, and `texts` are texts.

    Beside what `from_json` says with `STRICTLY`.
    """
    # Not a column that is named twice: interpreted, it would be parsed twice.
    names = F.array(F.json_object_keys(VALUE))
    # Neither a text nor null. A quote inside a text is escaped: there, this does not match.
    no_text = rf'"(?:{"|".join(texts)})"\s*:\s*(?!null\b)[^"\s]'
    return (
        F.is_valid_utf8(VALUE)
        & (F.json_array_length(F.concat(F.lit("["), VALUE, F.lit("]"))) == 1)
        & F.forall(names, lambda each: F.size(each) == F.size(F.array_distinct(each)))
        & ~F.col(VALUE).rlike(no_text)
        & ~(F.col(VALUE).contains("\\u") & _without_backslashes().rlike(HALF))
    )


def _without_backslashes() -> Column:
    """Return `value` without its escaped backslashes: what is left of them escapes something."""
    return F.regexp_replace(VALUE, r"\\\\", "")
