"""Runs of whole numbers (ids, counters) as rows, and what can be said of them without exploding.

A run is a row with `first` and `last`, both included. `split` cuts runs at fixed borders, so that
every window and join below stays inside one bucket: a topic with 100 million publications is
12,208 partitions for a window, never one. Nothing here knows what is being counted.
"""

from collections.abc import Sequence
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.window import Window as W
from pyspark.sql.window import WindowSpec

from analytics.common.table_store import is_never_any, none_of

# Ids, counters or operation numbers a bucket. What is in doubt is so by buckets: a fault that cuts
# off a dozen PUTs has a whole one looked at in each topic, which costs ten times what it costs to
# prove one. Large enough that a bucket's overhead does not show.
BUCKET_BITS: Final = 13
BUCKET_SIZE: Final = 1 << BUCKET_BITS
# Positions a stretch. What is compared one by one is a stretch's positions with its runs: of
# 8,192 positions and as many runs in a bucket that is half a million pairs at most, not 67 million.
STRETCH_BITS: Final = 6


def bucket_of(position: Column) -> Column:
    """Return the number of the bucket that a position (>= 0) is in."""
    return F.shiftright(position, BUCKET_BITS).cast("bigint")


def inside(positions: DataFrame, name: str, pieces: DataFrame, keys: Sequence[str]) -> DataFrame:
    """Return each row of `positions` with each of the split `pieces` that its `name` is in.

    `pieces` has `keys`, `first`, `last` and what is wanted of it beside these.
    """
    low, high = (F.shiftright(end, STRETCH_BITS) for end in ("first", "last"))
    stretches = F.when(low == high, F.array(low)).otherwise(F.sequence(low, high))
    stretched = pieces.select("*", F.explode(stretches).alias("stretch"))
    numbered = positions.withColumn("stretch", F.shiftright(name, STRETCH_BITS))
    return (
        numbered.join(stretched, [*keys, "stretch"])
        .where(F.col(name).between(F.col("first"), F.col("last")))
        .drop("stretch")
    )


def split(runs: DataFrame) -> DataFrame:
    """Cut `runs` at the buckets' borders and add `bucket`. Empty and null runs go."""
    if is_never_any(runs):  # of what is exploded a plan does not know it
        return runs.withColumn("bucket", F.lit(0).cast("bigint"))
    start = F.col("bucket") * BUCKET_SIZE
    low, high = bucket_of(F.col("first")), bucket_of(F.col("last"))
    # Nearly all are within a bucket, and an array of one is made far faster than a sequence.
    buckets = F.when(low == high, F.array(low)).otherwise(F.sequence(low, high))
    return (
        runs.where(F.col("first") <= F.col("last"))
        .withColumn("bucket", F.explode(buckets))
        .withColumn("first", F.greatest("first", start))
        .withColumn("last", F.least("last", start + (BUCKET_SIZE - 1)))
    )


def merged(pieces: DataFrame, keys: Sequence[str]) -> DataFrame:
    """Return (keys, bucket, first, last): overlapping and adjacent `pieces` made one."""
    if is_never_any(pieces):
        return none_of(pieces.select(*keys, "bucket", "first", "last"))
    order = _order(keys)
    begins = F.coalesce(F.col("first") > F.col("reach") + 1, F.lit(True)).cast("int")
    return (
        pieces.withColumn("reach", _reach(order))
        .withColumn("island", F.sum(begins).over(order.rowsBetween(W.unboundedPreceding, 0)))
        .groupBy(*keys, "bucket", "island")
        .agg(F.min("first").alias("first"), F.max("last").alias("last"))
        .drop("island")
    )


def uncovered(wanted: DataFrame, cover: DataFrame, keys: Sequence[str]) -> DataFrame:
    """Return the parts of `wanted` that no row of `cover` with the same `keys` covers.

    Both are split pieces. Columns of `wanted` stay; one piece may come back as several.
    """
    if is_never_any(wanted):
        return wanted
    if is_never_any(cover):
        return wanted.dropna(subset=list(keys))  # as a join leaves them out
    edges = wanted.select(*keys, "bucket").distinct()
    below, above = F.col("bucket") * BUCKET_SIZE - 1, (F.col("bucket") + 1) * BUCKET_SIZE
    # A mark on either side of the bucket makes the holes at its ends like those between runs.
    marks = (
        cover.select(*keys, "bucket", "first", "last")
        .unionByName(edges.withColumn("first", below).withColumn("last", below))
        .unionByName(edges.withColumn("first", above).withColumn("last", above))
    )
    holes = (
        marks.withColumn("reach", _reach(_order(keys)))
        .where(F.col("first") > F.col("reach") + 1)
        .select(
            *keys,
            "bucket",
            (F.col("reach") + 1).alias("other_first"),
            (F.col("first") - 1).alias("other_last"),
        )
    )
    return _clipped(wanted.join(holes, [*keys, "bucket"]))


def common(pieces: DataFrame, others: DataFrame, keys: Sequence[str]) -> DataFrame:
    """Return each part of `pieces` that a row of `others` with the same `keys` overlaps.

    Both are split. One row a pair; the columns of both stay.
    """
    renamed = others.withColumnsRenamed({"first": "other_first", "last": "other_last"})
    pairs = _clipped(pieces.join(renamed, [*keys, "bucket"]))
    return none_of(pairs) if is_never_any(pieces) or is_never_any(others) else pairs


def crowded(pieces: DataFrame, keys: Sequence[str]) -> DataFrame:
    """Return the (keys, bucket) in which two of the split `pieces` overlap: few, mostly none."""
    if is_never_any(pieces):
        return none_of(pieces.select(*keys, "bucket"))
    return (
        pieces.withColumn("reach", _reach(_order(keys)))
        .where(F.col("first") <= F.col("reach"))
        .select(*keys, "bucket")
        .distinct()
    )


def overlapping(pieces: DataFrame, keys: Sequence[str]) -> DataFrame:
    """Return the split `pieces` that overlap one below them: of each pair that does, one at least.

    Below: with a lower `first`, or the same and no higher `last`.
    """
    return (
        pieces.withColumn("reach", _reach(_order(keys)))
        .where(F.col("first") <= F.col("reach"))
        .drop("reach")
    )


def exploded(runs: DataFrame, name: str) -> DataFrame:
    """Return one row a position of `runs`, called `name`, instead of `first` and `last`."""
    is_none = is_never_any(runs)  # of what is exploded a plan does not know it
    positions = F.col("first") if is_none else F.explode(F.sequence("first", "last"))
    return runs.withColumn(name, positions).drop("first", "last")


def highest_before(keys: Sequence[str], order: str, value: Column) -> Column:
    """Return the greatest `value` among rows of the same `keys` and bucket with a lower `order`.

    Needs `bucket`; combine with `highest_in_buckets_before` for the buckets below.
    """
    window = W.partitionBy(*keys, "bucket").orderBy(order)
    return F.max(value).over(window.rowsBetween(W.unboundedPreceding, -1))


def highest_in_buckets_before(rows: DataFrame, keys: Sequence[str], **values: Column) -> DataFrame:
    """Return (keys, bucket, names of `values`): the greatest in all lower buckets, null if none.

    The window runs over one row a bucket: 1/8,192 of the positions.
    """
    window = W.partitionBy(*keys).orderBy("bucket").rowsBetween(W.unboundedPreceding, -1)
    tops = (F.max(value).alias(name) for name, value in values.items())
    priors = (F.max(name).over(window).alias(name) for name in values)
    return rows.groupBy(*keys, "bucket").agg(*tops).select(*keys, "bucket", *priors)


def _order(keys: Sequence[str]) -> WindowSpec:
    return W.partitionBy(*keys, "bucket").orderBy("first", "last")


def _reach(order: WindowSpec) -> Column:
    return F.max("last").over(order.rowsBetween(W.unboundedPreceding, -1))


def _clipped(pairs: DataFrame) -> DataFrame:
    first = F.greatest("first", "other_first")
    last = F.least("last", "other_last")
    return (
        pairs.where(first <= last)
        .withColumns({"first": first, "last": last})
        .drop("other_first", "other_last")
    )
