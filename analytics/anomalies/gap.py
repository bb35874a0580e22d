"""Ids that jump."""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.window import Window as W

from analytics.schema import KEY, evidence, operation
from analytics.tables import Tables


def gap(tables: Tables) -> DataFrame:
    """Find answers that begin too high, or jump inside.

    An answer is due to begin after the cursor that the GET asked with; within a session not
    above what the session got already either (a client that skips ahead loses what is between; an
    application may, so what it recorded is judged from the higher of the two on).
    A new subscription's start may be higher than both: nothing below it is owed. `other_id` is the
    id after which it should have gone on.
    """
    return _between_answers(tables).unionByName(_inside_answers(tables))


def _between_answers(tables: Tables) -> DataFrame:
    lower, higher = F.least("asked", "had_id"), F.greatest("asked", "had_id")
    base = F.when(F.col("digests").isNotNull(), higher).otherwise(lower)
    jumps = tables.unclear_gets.withColumn("base", base).where(F.col("first") > F.col("base") + 1)
    starts = tables.subscriptions.select("run_id", "client_id", "topic", "start_id", "begun_ns")
    owner = ["run_id", "client_id", "topic"]
    begun = F.when(F.col("begun_ns") <= F.col("invoke_ns"), F.col("start_id"))
    return (
        jumps.join(starts, owner, "left")
        .groupBy(*KEY, *owner[1:], "first", "base")
        .agg(F.max(begun).alias("start"))
        .withColumn("after", F.greatest("base", "start"))
        .where(F.col("first") > F.col("after") + 1)
        .select(*_evidence())
    )


def _inside_answers(tables: Tables) -> DataFrame:
    answer = W.partitionBy(*KEY).orderBy("first", "last")
    reach = F.max("last").over(answer.rowsBetween(W.unboundedPreceding, -1))
    return (
        tables.deliveries.where(~F.col("is_plain"))
        .withColumn("after", reach)
        .where(F.col("first") > F.col("after") + 1)
        .select(*_evidence())
    )


def _evidence() -> list[Column]:
    return evidence(
        run_id=F.col("run_id"),
        topic=F.col("topic"),
        client_id=F.col("client_id"),
        id=F.col("first"),
        other_id=F.col("after"),
        operations=F.array(operation()),
    )
