"""`format("flotilla")` end to end: Spark and a real cluster, whose leaders die as queries do.

Rows out are rows in, each once.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from cluster.local.local import LocalCluster
from flotilla_client import Client, Publication
from flotilla_client.admin import Admin
from flotilla_client.spark import register
from tests.conftest import running
from tests.spark.copying import SOURCE, TARGET, copy

ROOT: Final = Path(__file__).resolve().parents[2]
COUNT: Final = 30_000
OFFSETS_MAX: Final = "6000"
PATIENCE_S: Final = 300
OF_THE_KILLED: Final = 60_000
OF_THE_KILLED_A_BATCH: Final = "3000"

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::ResourceWarning")]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Run three nodes."""
    with running(tmp_path_factory.mktemp("cluster") / "spark") as made:
        made.begin_at_newest_level()
        yield made


@pytest.fixture(scope="module")
def flotilla(spark: SparkSession) -> SparkSession:
    """Return a session that knows the format."""
    register(spark)
    return spark


Fill = Callable[[str, int], str]


@pytest.fixture
def topics(cluster: LocalCluster) -> Fill:
    """Return a function that makes a topic which keeps all, with so many publications."""

    def fill(name: str, count: int) -> str:
        with Admin(nodes_of(cluster)) as admin:
            admin.create_topic(name, keep="forever")
        with Client(nodes_of(cluster)) as client:
            if count:
                client.publish_many(name, texts(count))
        return name

    return fill


def nodes_of(cluster: LocalCluster) -> str:
    return ",".join(cluster.endpoints().values())


def texts(count: int) -> list[bytes]:
    return [b"%07d" % number for number in range(count)]


def rows_of(spark: SparkSession, cluster: LocalCluster, topic: str, **said: Any) -> DataFrame:
    reader = spark.read.format("flotilla").options(endpoints=nodes_of(cluster), topic=topic)
    return reader.options(**said).load()


def stored(cluster: LocalCluster, topic: str) -> list[bytes]:
    found: list[bytes] = []
    with Client(nodes_of(cluster)) as client:
        while delivery := client.read(topic, len(found) + 1, 65_536):
            found += delivery.publications
    return found


def test_a_topic_is_read_whole_and_by_ids(
    flotilla: SparkSession, cluster: LocalCluster, topics: Fill
) -> None:
    topic, before = topics("read", 9_998), datetime.now(UTC).replace(tzinfo=None)
    with Client(nodes_of(cluster)) as client:
        own = [Publication(b"a", "k", {"h": b"\xff"}), Publication("é", b"\x00")]
        client.publish_many(topic, own)
    whole = rows_of(flotilla, cluster, topic, partitions="7").cache()
    assert whole.rdd.getNumPartitions() == 7
    found = whole.orderBy("id").collect()
    assert [row.id for row in found] == list(range(1, 10_001))
    assert [bytes(row.value) for row in found[:9_998]] == texts(9_998)
    assert [row.topic for row in found[:2]] == [topic, topic]
    assert (found[0].key, found[0].headers) == (None, None)
    assert (found[-2].key, found[-2].headers, found[-2].value) == (b"k", {"h": b"\xff"}, b"a")
    assert (found[-1].key, found[-1].headers, found[-1].value) == (b"\x00", None, "é".encode())
    assert abs((found[-1].timestamp - before).total_seconds()) < 3_600
    some = rows_of(flotilla, cluster, topic, fromId="3", toId="5", partitions="2")
    assert [row.id for row in some.select("id").collect()] == [3, 4, 5]
    assert rows_of(flotilla, cluster, topic, fromId="10001").count() == 0


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"topic": "t"}, r"BadOption: read needs .option\('endpoints'"),
        ({"endpoints": "127.0.0.1:1"}, r"BadOption: read needs .option\('topic'"),
        ({"endpoints": "127.0.0.1:1", "topic": "t", "form": "1"}, r"BadOption: .*'form'"),
        ({"endpoints": "127.0.0.1:1", "topic": "t", "timeout": "0.5"}, "connection refused"),
    ],
)
def test_what_is_refused_is_said(flotilla: SparkSession, said: Any, message: str) -> None:
    with pytest.raises(PySparkException, match=message):
        flotilla.read.format("flotilla").options(**said).load().count()


def test_a_refusal_of_the_cluster_or_of_the_columns_is_said(
    flotilla: SparkSession, cluster: LocalCluster, topics: Fill
) -> None:
    with pytest.raises(PySparkException, match="UnknownTopic"):
        rows_of(flotilla, cluster, "no.such").count()
    here = {"endpoints": nodes_of(cluster), "topic": topics("refused", 0)}
    with pytest.raises(PySparkException, match="BadSchema: there is no column `value`; due is"):
        flotilla.range(3).write.format("flotilla").options(**here).mode("append").save()
    rows = flotilla.range(3).selectExpr("string(id) value")
    with pytest.raises(PySparkException, match="mode `overwrite` would rewrite"):
        rows.write.format("flotilla").options(**here).mode("overwrite").save()


def test_ids_that_are_gone_are_an_error_or_left_out(
    flotilla: SparkSession, cluster: LocalCluster, topics: Fill
) -> None:
    topic = topics("gone", 100)
    with Admin(nodes_of(cluster)) as admin:
        admin.purge(topic, 40)
    assert rows_of(flotilla, cluster, topic).count() == 60
    with pytest.raises(PySparkException, match="DataLost: ids 1 to 40 of 'gone' are not kept"):
        rows_of(flotilla, cluster, topic, fromId="1").count()
    assert rows_of(flotilla, cluster, topic, fromId="1", failOnDataLoss="false").count() == 60


def test_what_has_expired_is_an_error_or_left_out(
    flotilla: SparkSession, cluster: LocalCluster, topics: Fill
) -> None:
    topic = topics("brief", 5)
    with Client(nodes_of(cluster)) as client:
        client.publish_many(topic, [Publication(text, expires=0.2) for text in texts(5)])
        client.publish_many(topic, texts(5))
        end = time.monotonic() + PATIENCE_S
        while (found := client.read(topic, 6)) is not None and found.first_id == 6:
            assert time.monotonic() < end
            time.sleep(0.05)
    with pytest.raises(PySparkException, match="DataLost: ids 6 to 10 of 'brief' are not kept"):
        rows_of(flotilla, cluster, topic).count()
    left = rows_of(flotilla, cluster, topic, failOnDataLoss="false", partitions="4")
    assert sorted(row.id for row in left.select("id").collect()) == [*range(1, 6), *range(11, 16)]
    behind = rows_of(flotilla, cluster, topic, fromId="11")
    assert behind.count() == 5


def test_a_job_stores_its_rows_once_and_again_once_under_its_batch(
    flotilla: SparkSession, cluster: LocalCluster, topics: Fill
) -> None:
    topic = topics("job", 0)
    rows = flotilla.range(0, 1_000, 1, 3).select(
        F.col("id").cast("string").alias("value"),
        F.concat(F.lit("k"), F.col("id")).alias("key"),
        F.create_map(F.lit("h"), F.lit("v")).alias("headers"),
    )
    writer = rows.write.format("flotilla").options(endpoints=nodes_of(cluster), topic=topic)
    named = writer.options(producer="nightly", batch="7").mode("append")
    for _ in range(2):
        named.save()
    expected = sorted(b"%d" % number for number in range(1_000))
    assert sorted(stored(cluster, topic)) == expected
    with Client(nodes_of(cluster)) as client:
        [message] = client.read(topic, 1) or ()
        assert (message.key, message.headers) == ("k" + message.publication.decode(), {"h": "v"})
    anew = rows.write.format("flotilla").options(endpoints=nodes_of(cluster), topic=topic)
    anew.mode("append").save()
    assert sorted(stored(cluster, topic)) == sorted(expected * 2)
    with Client(nodes_of(cluster)) as client:
        journals = [row.topic for row in client.topics(everything=True) if ".7" not in row.topic]
    assert [name for name in journals if name.startswith("spark.") and "nightly" not in name] == []


def test_a_stream_starts_where_it_is_told_and_takes_no_more_than_it_may(
    flotilla: SparkSession, cluster: LocalCluster, topics: Fill, tmp_path: Path
) -> None:
    topic = topics("starts", 50)
    time.sleep(0.05)  # the next ones are of a later millisecond
    later_ms = round(time.time() * 1000)
    with Client(nodes_of(cluster)) as client:
        client.publish_many(topic, texts(50))

    def taken(name: str, **said: str) -> list[list[int]]:
        batches: list[list[int]] = []

        def take(rows: DataFrame, batch: int) -> None:
            batches.append(sorted(row.id for row in rows.select("id").collect()))

        reader = flotilla.readStream.format("flotilla")
        reader = reader.options(endpoints=nodes_of(cluster), topic=topic, **said)
        writer = reader.load().writeStream.foreachBatch(take)
        writer = writer.option("checkpointLocation", str(tmp_path / name))
        assert writer.trigger(availableNow=True).start().awaitTermination(PATIENCE_S) in (
            None,
            True,
        )
        return [batch for batch in batches if batch]

    def ids(first: int, last: int) -> list[int]:
        return list(range(first, last + 1))

    assert taken("all", startingOffsets="earliest", maxOffsetsPerTrigger="40") == [
        ids(1, 40),
        ids(41, 80),
        ids(81, 100),
    ]
    assert taken("id", startingOffsets="97") == [ids(97, 100)]
    assert taken("time", startingTimestamp=str(later_ms)) == [ids(51, 100)]
    assert taken("new") == []
    with Client(nodes_of(cluster)) as client:
        client.publish(topic, "one more")
    assert taken("new") == [[101]]  # from its checkpoint


def test_a_first_batch_that_runs_again_begins_where_it_began(
    flotilla: SparkSession, cluster: LocalCluster, topics: Fill, tmp_path: Path
) -> None:
    topic = topics("first", 50)

    def run(take: Callable[[DataFrame, int], None]) -> None:
        reader = flotilla.readStream.format("flotilla")
        reader = reader.options(
            endpoints=nodes_of(cluster), topic=topic, startingOffsets="earliest"
        )
        writer = reader.load().writeStream.foreachBatch(take)
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
        writer.trigger(availableNow=True).start().awaitTermination(PATIENCE_S)

    def fail(rows: DataFrame, batch: int) -> None:
        raise RuntimeError("the batch fails")

    with pytest.raises(PySparkException, match="the batch fails"):
        run(fail)
    with Admin(nodes_of(cluster)) as admin:
        admin.purge(topic, 30)
    with pytest.raises(PySparkException, match="ids 1 to 30 of 'first' are not kept"):
        run(lambda rows, batch: print(batch, rows.collect()))


def test_rows_out_are_rows_in_though_the_leader_dies_and_the_query_is_stopped(
    flotilla: SparkSession, cluster: LocalCluster, topics: Fill, tmp_path: Path
) -> None:
    source, target = topics("in", COUNT), topics("out", 0)
    checkpoint, nodes = str(tmp_path / "checkpoint"), nodes_of(cluster)
    said = {"maxOffsetsPerTrigger": OFFSETS_MAX, "partitions": "2"}
    for _ in range(2):
        query = copy(flotilla, nodes, checkpoint, source, target, **said)
        wait_until(lambda query=query: len(query.recentProgress) >= 1)
        leader = cluster.wait_for_leader()
        cluster.kill(leader)
        query.stop()  # wherever it is
        cluster.start(leader)
        cluster.wait_for_leader()
    query = copy(flotilla, nodes, checkpoint, source, target, maxOffsetsPerTrigger=OFFSETS_MAX)
    assert query.awaitTermination(PATIENCE_S)
    assert sorted(stored(cluster, target)) == texts(COUNT)


@pytest.mark.spark
@pytest.mark.timeout(1_200)
def test_rows_out_are_rows_in_though_drivers_and_leaders_are_killed(
    cluster: LocalCluster, topics: Fill, tmp_path: Path
) -> None:
    topics(SOURCE, OF_THE_KILLED)
    topics(TARGET, 0)
    for life in range(3):
        with driver_of(cluster, tmp_path) as driver:
            said = [next(driver) for _ in range(life + 1)]
            assert len(said) == life + 1, "so many batches were written"
            leader = cluster.wait_for_leader()
            cluster.kill(leader)
        cluster.start(leader)
        cluster.wait_for_leader()
    between = len(stored(cluster, TARGET))
    assert 0 < between < OF_THE_KILLED, "they were killed in the middle"
    with driver_of(cluster, tmp_path) as driver:
        assert list(driver), "it wrote the rest"
    assert sorted(stored(cluster, TARGET)) == texts(OF_THE_KILLED)


@contextmanager
def driver_of(cluster: LocalCluster, directory: Path) -> Iterator[Iterator[str]]:
    """Run a driver with a JVM of its own; kill both at the end. Its tasks outlive it a moment."""
    arguments = [nodes_of(cluster), str(directory / "checkpoint"), OF_THE_KILLED_A_BATCH]
    path = os.pathsep.join([str(ROOT), str(ROOT / "client")])
    driver = subprocess.Popen(
        [sys.executable, "-m", "tests.spark.copying", *arguments],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": path},
        start_new_session=True,
    )
    with driver:
        assert driver.stdout is not None
        try:
            yield driver.stdout
        finally:
            with suppress(ProcessLookupError):
                os.killpg(driver.pid, signal.SIGKILL)


def wait_until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < end, "in time"
        time.sleep(0.05)
