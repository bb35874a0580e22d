"""A Spark driver of its own that copies a topic with a query; tests kill it.

`python -m tests.spark.copying ENDPOINTS CHECKPOINT OFFSETS_MAX` copies `killed.in` to `killed.out`
until it has been there when nothing was left, and says each batch that Spark has committed.
"""

import sys
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

from analytics.common import session
from flotilla_client.spark import register

SOURCE = "killed.in"
TARGET = "killed.out"


def copy(
    spark: SparkSession, endpoints: str, checkpoint: str, source: str, target: str, **said: Any
) -> StreamingQuery:
    """Start a query that copies what a topic has now, key and headers with it."""
    here = {"endpoints": endpoints}
    start = {"startingOffsets": "earliest", "topic": source}
    rows = spark.readStream.format("flotilla").options(**here, **start, **said).load()
    writer = rows.select("value", "key", "headers").writeStream.format("flotilla")
    writer = writer.options(**here, topic=target, checkpointLocation=checkpoint)
    return writer.trigger(availableNow=True).start()


def main() -> None:
    endpoints, checkpoint, offsets_max = sys.argv[1:]
    with session.opened(is_for_short=True) as spark:
        register(spark)
        said = {"maxOffsetsPerTrigger": offsets_max, "partitions": "2"}
        query = copy(spark, endpoints, checkpoint, SOURCE, TARGET, **said)
        told = 0
        while not query.awaitTermination(1):
            for progress in query.recentProgress[told:]:
                print(progress["batchId"], flush=True)
                told += 1


if __name__ == "__main__":
    main()
