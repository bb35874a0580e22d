"""When publications were stored, as answers say it, and how long a said time is in nanoseconds. No
rule about right and wrong here.
"""

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from analytics.common.schema import KEY, NUMBER_MAX, operation

TOPIC = ("run_id", "topic")
ID = (*TOPIC, "id")
NS_OF_MS: Final = 1_000_000
SURELY: Final = 99  # hundredths: clocks of two hosts may differ by one in how fast they go
MS_MAX: Final = 2 * NUMBER_MAX // NS_OF_MS  # longer than from any recorded moment to any other


def in_ns(ms: Column, hundredths: int = 100) -> Column:
    """Return so many hundredths of a time of `ms` in nanoseconds; of one above MS_MAX, of that.

    Else the product of what a line may say would not have 64 bits, and end the check.
    """
    bounded = F.when(ms > MS_MAX, F.lit(MS_MAX)).otherwise(ms)
    return bounded * (NS_OF_MS // 100 * hundredths)


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
