"""How many rows a second go through `format("flotilla")`, and what they cost.

`python -m tests.spark.measure [ROWS]`: three nodes, a JVM and its tasks share this machine. Each
line says rows a second of wall time, and processor time: of Spark (the JVM and its tasks) and of
the nodes. Each job is run once on few rows before, so that no JVM is measured that has just begun.
"""

import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from pyspark import SparkContext
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from analytics.common import session
from cluster.local.local import LocalCluster
from flotilla_client import Client
from flotilla_client.admin import Admin
from flotilla_client.spark import register

ROWS: Final = 1_000_000
FEW: Final = 1_000
ROW_BYTES: Final = 100
TICKS: Final = os.sysconf("SC_CLK_TCK")
PARTITIONS: Final = "4"


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else ROWS
    with tempfile.TemporaryDirectory() as directory, LocalCluster(Path(directory) / "c") as cluster:
        cluster.create(3, port=0)
        cluster.start_all()
        cluster.wait_for_leader()
        cluster.begin_at_newest_level()
        try:
            with session.opened(is_for_short=False) as spark:
                register(spark)
                measure_all(spark, cluster, count, Path(directory))
        finally:
            cluster.down(patience_s=0.0)


def measure_all(spark: SparkSession, cluster: LocalCluster, count: int, directory: Path) -> None:
    """Fill a topic, read it, write as much, and copy it by a stream."""
    here = {"endpoints": ",".join(cluster.endpoints().values()), "partitions": PARTITIONS}
    with Admin(here["endpoints"]) as admin:
        for name in ("in", "few", "batch", "stream"):
            admin.create_topic(name, keep="forever")
    with Client(here["endpoints"]) as client:
        for name, rows in (("in", count), ("few", FEW)):
            for first in range(0, rows, FEW * 10):
                numbers = range(first, min(rows, first + FEW * 10))
                client.publish_many(name, [b"%0*d" % (ROW_BYTES, number) for number in numbers])

    def read(topic: str, rows: int) -> None:
        found = spark.read.format("flotilla").options(**here, topic=topic).load()
        [[said, size_bytes]] = found.agg(F.count("id"), F.sum(F.length("value"))).collect()
        assert (said, size_bytes) == (rows, rows * ROW_BYTES)

    def write(rows: int) -> None:
        made = spark.range(0, rows, 1, int(PARTITIONS))
        made = made.select(F.lpad(F.col("id").cast("string"), ROW_BYTES, "0").alias("value"))
        writer = made.write.format("flotilla").option("endpoints", here["endpoints"])
        writer.option("topic", "batch").mode("append").save()

    def stream(topic: str, rows: int) -> None:
        reader = spark.readStream.format("flotilla").options(**here, topic=topic)
        found = reader.option("startingOffsets", "earliest").load().select("value")
        writer = found.writeStream.format("flotilla").option("endpoints", here["endpoints"])
        writer = writer.options(topic="stream", checkpointLocation=str(directory / topic))
        query = writer.trigger(availableNow=True).start()
        assert query.awaitTermination(600)

    nodes = cluster.pids().values()
    for what, warm, job in (
        ("read", lambda: read("few", FEW), lambda: read("in", count)),
        ("written", lambda: write(FEW), lambda: write(count)),
        ("read and written by a stream", lambda: stream("few", FEW), lambda: stream("in", count)),
    ):
        warm()
        told(what, count, nodes, job)


def told(what: str, rows: int, nodes: Iterable[int], job: Callable[[], None]) -> None:
    """Run a job and print what it took."""

    def spark_used_s() -> float:
        return of_tree_s(SparkContext._gateway.proc.pid) + time.process_time()

    began_s, nodes_s, spark_s = time.monotonic(), sum(map(used_s, nodes)), spark_used_s()
    job()
    wall_s = time.monotonic() - began_s
    nodes_s = sum(map(used_s, nodes)) - nodes_s
    spark_s = spark_used_s() - spark_s
    print(
        f"{what}: {rows / wall_s:,.0f} rows/s ({wall_s:.1f} s), load {os.getloadavg()[0]:.1f};"
        f" processor time: Spark {spark_s:.1f} s, nodes {nodes_s:.1f} s:"
        f" {2 * rows / (spark_s + nodes_s):,.0f} rows/s on 2 processors",
        flush=True,
    )


def used_s(pid: int) -> float:
    """Return the processor time of a process and of its children that have ended."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except FileNotFoundError:
        return 0.0
    return sum(map(int, stat[11:15])) / TICKS


def of_tree_s(pid: int) -> float:
    """Return that of a process and all below it."""
    children = [
        int(child)
        for task in Path(f"/proc/{pid}/task").glob("*/children")
        for child in task.read_text().split()
    ]
    return used_s(pid) + sum(map(of_tree_s, children))


if __name__ == "__main__":
    main()
