"""When publications were stored, as answers say it. No rule about right and wrong here."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from analytics.common.schema import KEY, operation

TOPIC = ("run_id", "topic")
ID = (*TOPIC, "id")


def runs_of(told: DataFrame) -> DataFrame:
    """Return the runs of ids (`first`, `last`) with the time (`at_ms`) that an answer says."""
    return told.select(*KEY, "topic", F.explode("times").alias("run")).select(
        *KEY,
        "topic",
        F.col("run")[0].alias("first"),
        F.col("run")[1].alias("last"),
        F.col("run")[2].alias("at_ms"),
    )


def times_of(runs: DataFrame) -> DataFrame:
    """Return of each id at which a run begins or ends its least and its greatest time."""
    one = F.struct("at_ms", operation().alias("seen"))
    return (
        runs.withColumn("id", F.explode(F.array_distinct(F.array("first", "last"))))
        .groupBy(*ID)
        .agg(F.min(one).alias("least"), F.max(one).alias("most"))
    )
