"""Publish an alarm for each price above a limit, once: `alarms.py LIMIT CHECKPOINT`."""

from __future__ import annotations

import os
import sys

from pyspark.sql import SparkSession

from flotilla_client.spark import register

NODES = os.environ.get("FLOTILLA_ENDPOINTS", "127.0.0.1:7001,127.0.0.1:7002,127.0.0.1:7003")


def main(limit: int, checkpoint: str) -> None:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # for the tasks, on this machine
    spark = SparkSession.builder.master("local[2]").appName("alarms").getOrCreate()
    register(spark)
    reader = spark.readStream.format("flotilla").options(endpoints=NODES, topic="prices")
    prices = reader.option("startingOffsets", "earliest").load()
    alarms = prices.where(f"int(string(value)) > {limit}").select("value", "key")
    writer = alarms.writeStream.format("flotilla").options(endpoints=NODES, topic="alarms")
    query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
    query.awaitTermination()
    print(sum(progress["numInputRows"] for progress in query.recentProgress), "prices read")
    spark.stop()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
