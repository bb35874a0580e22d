"""Batches of which the parts may stand apart, found in steps for the check of torn batches.

Two neighbouring counters are bound if every try of either that may have succeeded holds both. Only
where more stands than what was acknowledged, or a life may lack something, is anything looked for:
elsewhere each batch was acknowledged as one, and given as one.

standing  the places of batches' topics in the buckets in doubt, and in those beside them
bound     bound pairs of counters, named by the lower one (`PAIR`), of which one is in `standing`
apart     those that have places (`id`, `other_id`), and no two that are neighbours; or one has a
          place, and something else stands where the other one belongs, which has none
alone     of a bound pair, what a life was given, and the other one that it never was
"""

from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from analytics.common import intervals
from analytics.common.schema import KEY, operation
from analytics.common.table_store import is_never_any, settled
from analytics.tables.lives import EVER, HOME, may_have_had
from analytics.tables.runs import acknowledged_runs, counters_of_places, counters_of_puts, one_host
from analytics.tables.suspects import OWNER, PRODUCER, TOPIC, TOPIC_BUCKET, Doubts, only

PAIR: Final = (*PRODUCER, "counter")


def _batches(puts: DataFrame) -> DataFrame:
    several = F.col("last_counter") > F.col("first_counter")
    return puts.where((F.col("outcome") != "fail") & several)


def standing_of(puts: DataFrame, places: DataFrame, doubts: Doubts) -> DataFrame:
    """Return the places of batches' topics in the buckets in doubt, and in those beside them."""
    near = F.explode(F.array(F.col("bucket") - 1, "bucket", F.col("bucket") + 1)).alias("bucket")
    doubtful = doubts.buckets.select(*TOPIC_BUCKET).unionByName(
        doubts.watches.select(*TOPIC_BUCKET)
    )
    spots = only(doubtful.select(*TOPIC, near).distinct(), _batches(puts), TOPIC)
    return only(places, spots, TOPIC_BUCKET)


def bound_of(standing: DataFrame, puts: DataFrame) -> DataFrame:
    """Return `PAIR` of the bound counters of batches that are among `standing`."""
    if is_never_any(standing):
        return standing.select(*PRODUCER, F.col("first").alias("counter"))
    where = [*PRODUCER, "bucket"]
    batches = counters_of_puts(_batches(puts).withColumn("end", F.col("last_counter")))
    # A pair that a border parts stands below it, whichever of the two has a place.
    below = intervals.bucket_of(F.greatest(F.col("first") - 1, F.lit(0)))
    spots = F.explode(F.array(below, F.col("bucket"))).alias("bucket")
    near = only(batches, counters_of_places(standing).select(*PRODUCER, spots), where)
    lower = F.explode(F.sequence("first", F.least("last", F.col("end") - 1))).alias("counter")
    inside = near.where(F.col("first") <= F.least("last", F.col("end") - 1))
    pairs = inside.select(*PRODUCER, lower).distinct()
    possible = only(puts.where(F.col("outcome") != "fail"), pairs, PRODUCER)
    borders = F.explode(F.array(F.col("first_counter") - 1, "last_counter")).alias("counter")
    return pairs.join(possible.select(*PRODUCER, borders), list(PAIR), "leftanti")


def apart_of(bound: DataFrame, standing: DataFrame, puts: DataFrame) -> DataFrame:
    """Return the pairs with places of both (`id`, `other_id`), and no two that are neighbours."""
    if is_never_any(bound):
        nothing = F.lit(None).cast("bigint")
        places = (nothing.alias("id"), nothing.alias("other_id"))
        return bound.select(*PAIR, *places, F.lit(False).alias("is_beside"))
    placed = intervals.exploded(
        counters_of_places(only(standing, bound, PRODUCER)), "counter"
    ).select(*PAIR, (F.col("counter") - F.col("shift")).alias("id"))
    others = placed.select(
        *PRODUCER, (F.col("counter") - 1).alias("counter"), F.col("id").alias("other_id")
    )
    aside = _beside_others(bound, placed, standing)
    apart = (
        bound.join(placed, list(PAIR))
        .join(others, list(PAIR))
        .groupBy(*PAIR)
        .agg(
            F.max(F.col("other_id") == F.col("id") + 1).alias("together"),
            F.min(F.struct("id", "other_id")).alias("places"),
        )
        .where(~F.col("together"))
        .select(*PAIR, "places.*")
    )
    # Acknowledged as one, it stands as one, be it elsewhere.
    whole = only(acknowledged_runs(puts), apart, PRODUCER).select(
        *(F.col(name).alias(f"whole_{name}") for name in PRODUCER),
        "first_counter",
        "last_counter",
    )
    same = [F.col(name) == F.col(f"whole_{name}") for name in PRODUCER]
    holds = F.col("counter").between(F.col("first_counter"), F.col("last_counter") - 1)
    found = apart.join(whole, [*same, holds], "leftanti").withColumn("is_beside", F.lit(False))
    return found.unionByName(aside)


def _beside_others(bound: DataFrame, placed: DataFrame, standing: DataFrame) -> DataFrame:
    """Return of the pairs of which one has a place (`other_id`) and the other one none, where
    something else stands at its place (`id`), beside each place of the first, that `counter`.
    """
    have = placed.select(*PAIR).distinct()
    lower = bound.join(placed, list(PAIR)).withColumnsRenamed({"id": "other_id"})
    lower = lower.withColumns({"id": F.col("other_id") + 1, "missing": F.col("counter") + 1})
    upper = (
        bound.withColumn("own", F.col("counter") + 1)
        .join(placed.withColumnsRenamed({"counter": "own", "id": "other_id"}), [*PRODUCER, "own"])
        .withColumns({"id": F.col("other_id") - 1, "missing": F.col("counter")})
        .drop("own")
    )
    above = have.withColumn("counter", F.col("counter") - 1)
    lone = lower.join(above, list(PAIR), "leftanti").unionByName(
        upper.join(have, list(PAIR), "leftanti")
    )
    keyed = settled(lone.withColumn("bucket", intervals.bucket_of(F.col("id"))))
    near = only(standing, keyed, TOPIC_BUCKET).select(
        *(F.col(name).alias(f"its_{name}") for name in TOPIC_BUCKET), "first", "last"
    )
    same = [F.col(name) == F.col(f"its_{name}") for name in TOPIC_BUCKET]
    inside = F.col("id").between(F.col("first"), F.col("last"))
    pair = [*PAIR, "missing"]
    free = keyed.join(near, [*same, inside], "leftanti").select(*pair).distinct()
    return (
        keyed.join(free, pair, "leftanti")
        .groupBy(*PRODUCER, F.col("missing").alias("counter"))
        .agg(F.min(F.struct("id", "other_id")).alias("places"))
        .select(*PAIR, "places.*", F.lit(True).alias("is_beside"))
    )


def alone_of(bound: DataFrame, deliveries: DataFrame, lives: DataFrame) -> DataFrame:
    """Return what a life was given of a bound pair, of which it was never given the other one:
    (home, begun_ns, producer, id, given_counter, counter, invoke_ns, end_ns, get).
    """
    given = counters_of_places(
        deliveries.where(F.col("producer").isNotNull()).withColumns(
            {"came_at": one_host(), "came_from_ns": F.coalesce("invoke_ns", F.lit(EVER))}
        ),
        *(*KEY[1:], "client_id", "came_at", "came_from_ns"),
        "end_ns",
    ).withColumnRenamed("end_ns", "came_ns")
    keyed = bound.withColumn("bucket", intervals.bucket_of(F.col("counter")))
    beside = keyed.withColumn("bucket", intervals.bucket_of(F.col("counter") + 1))
    given = only(given, keyed.unionByName(beside), (*PRODUCER, "bucket"))
    readings = F.broadcast(lives.select(*HOME, "begun_ns", "fresh_ns", "over_ns"))
    given = given.join(readings, list(OWNER)).where(may_have_had())
    owner = (*HOME, "begun_ns", "producer")
    runs = intervals.merged(given.select(*owner, "bucket", "first", "last"), owner)
    edge = F.explode(
        F.array(
            F.struct(F.col("first").alias("given_counter"), (F.col("first") - 1).alias("other")),
            F.struct(F.col("last").alias("given_counter"), (F.col("last") + 1).alias("other")),
        )
    ).alias("edge")
    lower = F.least("given_counter", "other").alias("counter")
    edges = runs.select(*owner, edge).select(*owner, "edge.*")
    pairs = edges.select(*owner, "given_counter", "other", lower).join(bound, list(PAIR))
    pairs = pairs.drop("counter").withColumnRenamed("other", "counter")
    lacked = (
        pairs.withColumn("bucket", intervals.bucket_of(F.col("counter")))
        .join(runs, [*owner, "bucket"], "left")
        .groupBy(*owner, "given_counter", "counter")
        .agg(F.max(F.col("counter").between(F.col("first"), F.col("last"))).alias("came"))
        .where(~F.coalesce("came", F.lit(False)))
        .drop("came")
        .withColumn("bucket", intervals.bucket_of(F.col("given_counter")))
    )
    return (
        lacked.join(given, [*owner, "bucket"])
        .where(F.col("given_counter").between(F.col("first"), F.col("last")))
        .where(F.col("came_at") == F.col("at"))
        .select(
            *(*owner, "given_counter", "counter"),
            F.col("came_ns").alias("end_ns"),
            F.col("came_from_ns").alias("invoke_ns"),
            (F.col("given_counter") - F.col("shift")).alias("id"),
            operation().alias("get"),
        )
    )
