"""PUTs and places as runs of ids or of counters. What a run proves is said in anomalies/."""

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from analytics.common import intervals

PLACE: Final = ("run_id", "topic", "producer", "shift")
LETTER: Final = "\u0018dead letter"  # `reason` of what is whole, and nobody put there himself


def acknowledged_runs(puts: DataFrame) -> DataFrame:
    """Return the PUTs that were acknowledged and stored, with their ids as `first`..`last`."""
    count = F.col("last_counter") - F.col("first_counter") + 1
    stored = (F.col("outcome") == "ok") & (F.col("first_id") > 0)
    return (
        puts.where(stored & F.col("first_counter").isNotNull())  # null: its invoke is gone
        .withColumn("first", F.col("first_id"))
        .withColumn("last", F.col("first_id") + count - 1)
        .withColumn("shift", F.col("first_counter") - F.col("first_id"))
    )


def counters_of_puts(puts: DataFrame) -> DataFrame:
    """Return the PUTs as runs of counters, split."""
    return intervals.split(
        puts.withColumnsRenamed({"first_counter": "first", "last_counter": "last"})
    )


def counters_of_places(places: DataFrame, *others: str) -> DataFrame:
    """Return `places` as runs of counters, split at the counters' buckets; `others` stay."""
    return intervals.split(
        places.select(
            *PLACE,
            *others,
            (F.col("first") + F.col("shift")).alias("first"),
            (F.col("last") + F.col("shift")).alias("last"),
        )
    )


def has_taken() -> Column:
    """Return, of a PUT's columns, whether it was this one that the broker took: it was answered to
    be no duplicate.
    """
    return (F.col("outcome") == "ok") & ~F.col("duplicate")


def first_of(taken: Column, sent: Column, up: Column) -> Column:
    """Return the aggregate of when a publication was first tried, of all its tries: by what was
    taken, if all answers say one place (`up`, null where none does); else by any.
    """
    is_clear = (F.min(up) == F.max(up)) & (F.count_if(taken & up.isNull()) == 0)
    return F.coalesce(F.when(is_clear, F.min(F.when(taken, sent))), F.min(sent))


def tries_of_puts(puts: DataFrame) -> DataFrame:
    """Return the PUTs as runs of counters, split, each with `up`: by how much its ids are above its
    counters; null: it has none.
    """
    is_placed = (F.col("outcome") == "ok") & (F.col("first_id") > 0)
    up = F.when(is_placed, F.col("first_id") - F.col("first_counter"))
    return counters_of_puts(puts.withColumn("up", up))


def one_host() -> Column:
    """Return the row's host as `at`, for keys of what compares clocks: unknown is one host too."""
    return F.coalesce("host", F.lit("")).alias("at")
