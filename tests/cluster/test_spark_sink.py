"""What a task of Spark does with a real cluster: each row once, whatever cuts it off.

No JVM: what Spark calls is called here, as often and as badly as Spark may.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, StructField, StructType

from cluster.local.local import LocalCluster
from flotilla_client import Client, Fenced, NoSubscribers
from flotilla_client.admin import Admin
from flotilla_client.spark.errors import NotRepeatable, StaleBatch
from flotilla_client.spark.options import WriteOptions, write_options
from flotilla_client.spark.sink import RowsWritten, TopicWriter, name_of, write_partition
from tests.conftest import running

COUNT: Final = 40_000  # three requests
CUT_AT: Final = 35_000
ROWS_A_BATCH: Final = 5_000


class CutOff(Exception):
    """What ends a task in the middle."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Run three nodes."""
    with running(tmp_path_factory.mktemp("cluster") / "sink") as made:
        made.begin_at_newest_level()
        yield made


@pytest.fixture
def topic(cluster: LocalCluster, request: pytest.FixtureRequest) -> str:
    """Make a topic of the test's own that keeps all."""
    name = request.node.name.removeprefix("test_")
    with Admin(nodes_of(cluster)) as admin:
        admin.create_topic(name, keep="forever")
    return name


def nodes_of(cluster: LocalCluster) -> str:
    return ",".join(cluster.endpoints().values())


def options_of(cluster: LocalCluster, topic: str, **said: str) -> WriteOptions:
    return write_options({"endpoints": nodes_of(cluster), "topic": topic} | said, is_stream=True)


def texts(count: int = COUNT) -> list[bytes]:
    return [b"%07d" % number for number in range(count)]


def batches(rows: Iterable[bytes], cut_at: int | None = None) -> Iterator[pa.RecordBatch]:
    listed = list(rows)
    for at in range(0, len(listed), ROWS_A_BATCH):
        if cut_at is not None and at >= cut_at:
            raise CutOff
        yield pa.RecordBatch.from_pydict({"value": listed[at : at + ROWS_A_BATCH]})


def stored(cluster: LocalCluster, topic: str) -> list[bytes]:
    found: list[bytes] = []
    with Client(nodes_of(cluster)) as client:
        while delivery := client.read(topic, len(found) + 1, 65_536):
            found += delivery.publications
    return found


def test_a_task_that_was_cut_off_goes_on_where_it_was(cluster: LocalCluster, topic: str) -> None:
    options = options_of(cluster, topic)
    with pytest.raises(CutOff):
        write_partition(options, f"spark.{topic}.0", 5, batches(texts(), CUT_AT))
    before = len(stored(cluster, topic))
    assert 0 < before < COUNT
    done = write_partition(options, f"spark.{topic}.0", 5, batches(texts()))
    assert done == RowsWritten(stored=COUNT - before, skipped=before)
    assert write_partition(options, f"spark.{topic}.0", 5, batches(texts())).stored == 0
    assert stored(cluster, topic) == texts()


def test_a_task_whose_rows_come_in_another_order_stores_none_twice(
    cluster: LocalCluster, topic: str
) -> None:
    options = options_of(cluster, topic)
    with pytest.raises(CutOff):
        write_partition(options, f"spark.{topic}.0", 5, batches(texts(), CUT_AT))
    write_partition(options, f"spark.{topic}.0", 5, batches(reversed(texts())))
    assert sorted(stored(cluster, topic)) == texts()


def test_a_task_that_lacks_rows_of_before_stores_nothing_more(
    cluster: LocalCluster, topic: str
) -> None:
    options = options_of(cluster, topic)
    with pytest.raises(CutOff):
        write_partition(options, f"spark.{topic}.0", 5, batches(texts(), CUT_AT))
    before = stored(cluster, topic)
    with pytest.raises(NotRepeatable, match=r"1 of the rows that this partition stored before"):
        write_partition(options, f"spark.{topic}.0", 5, batches(texts()[1:]))
    assert stored(cluster, topic) == before


def test_the_next_batch_may_bring_the_same_rows_and_an_earlier_one_comes_too_late(
    cluster: LocalCluster, topic: str
) -> None:
    options = options_of(cluster, topic)
    for batch in (0, 1, 3):
        write_partition(options, f"spark.{topic}.0", batch, batches(texts(10)))
    with pytest.raises(StaleBatch, match="batch 3 of this producer was begun"):
        write_partition(options, f"spark.{topic}.0", 1, batches(texts(20)))
    assert stored(cluster, topic) == texts(10) * 3
    with Admin(nodes_of(cluster)) as admin:
        [journal] = [row for row in admin.subscriptions() if row.topic == f"spark.{topic}.0"]
    assert journal.backlog == 1, "the records of earlier batches are gone"


def test_a_zombie_is_fenced_by_the_task_beside_it(cluster: LocalCluster, topic: str) -> None:
    options, name = options_of(cluster, topic), f"spark.{topic}.0"
    has_begun, may_go_on = threading.Event(), threading.Event()

    def slowly() -> Iterator[pa.RecordBatch]:
        for number, batch in enumerate(batches(texts())):
            if number == CUT_AT // ROWS_A_BATCH:
                has_begun.set()
                assert may_go_on.wait(60)
            yield batch

    errors: list[BaseException] = []

    def zombie() -> None:
        try:
            write_partition(options, name, 5, slowly())
        except Fenced as error:
            errors.append(error)

    thread = threading.Thread(target=zombie)
    thread.start()
    assert has_begun.wait(60)
    done = write_partition(options, name, 5, batches(texts()))
    may_go_on.set()
    thread.join(60)
    assert done.skipped > 0
    assert len(errors) == 1
    assert stored(cluster, topic) == texts()


def test_rows_that_nobody_kept_are_stored_once_somebody_does(cluster: LocalCluster) -> None:
    topic = "nobody.yet"
    options = options_of(cluster, topic)
    with pytest.raises(NoSubscribers):
        write_partition(options, "spark.unheard.0", 0, batches(texts()))
    with Admin(nodes_of(cluster)) as admin:
        admin.create_topic(topic, keep="forever")
    assert write_partition(options, "spark.unheard.0", 0, batches(texts())).skipped == 0
    assert write_partition(options, "spark.unheard.0", 0, batches(texts())).stored == 0
    assert stored(cluster, topic) == texts()


def test_rows_that_nobody_has_to_keep_are_done_with(cluster: LocalCluster) -> None:
    options = options_of(cluster, "nobody.ever", allowUnheard="true")
    write_partition(options, "spark.ever.0", 0, batches(texts(10)))
    assert write_partition(options, "spark.ever.0", 0, batches(texts(10))).skipped == 10


def test_a_task_that_begins_behind_the_end_of_its_job_stores_nothing(
    cluster: LocalCluster, topic: str
) -> None:
    job = TopicWriter(
        write_options({"endpoints": nodes_of(cluster), "topic": topic}, is_stream=False),
        StructType([StructField("value", BinaryType())]),
        overwrite=False,
    )
    name = name_of(job._producer, 0)
    done = write_partition(job._options, name, 0, batches(texts(10)))
    job.commit([done])
    with pytest.raises(StaleBatch, match="was ended"):
        write_partition(job._options, name, 0, batches(texts(10)))
    assert stored(cluster, topic) == texts(10)


def test_a_leader_that_dies_costs_no_row(cluster: LocalCluster, topic: str, tmp_path: Path) -> None:
    options = options_of(cluster, topic)

    def with_a_kill() -> Iterator[pa.RecordBatch]:
        for number, batch in enumerate(batches(texts())):
            if number == CUT_AT // ROWS_A_BATCH:
                leader = cluster.wait_for_leader()
                cluster.kill(leader)
                killed.append(leader)
            yield batch

    killed: list[str] = []
    write_partition(options, f"spark.{topic}.0", 0, with_a_kill())
    cluster.start(killed[0])
    assert stored(cluster, topic) == texts()
