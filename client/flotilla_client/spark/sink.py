"""The writers of the data source `flotilla`: rows of a batch into a topic, each once.

What lives here: the classes that Spark calls for a write, and the order of what they do. What must
not: which rows are stored already (ledger.py), what options mean (options.py).

A task of partition P of the producer Q is the client `spark.Q.P`, and has a journal of that name.
Taking up the name fences whatever task of that partition is still at work; then the journal and the
counter say what is stored. The order is the contract: a record before the rows it is of; and the
records of the batch before go only once one of this batch stands.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Final

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from flotilla_client.client import Client
from flotilla_client.errors import FlotillaError
from flotilla_client.log import LOG
from flotilla_client.operations import Ask, Steps
from flotilla_client.protocol import BATCH_BYTES_MAX, BATCH_COUNT_MAX, PUT, pack
from flotilla_client.retry import Done
from flotilla_client.spark import columns
from flotilla_client.spark.errors import BadOption, SparkError, StaleBatch
from flotilla_client.spark.ledger import CHUNK_ROWS, BatchLedger, RowsRecord, decode
from flotilla_client.spark.options import TopicAt, WriteOptions

if TYPE_CHECKING:
    import pyarrow as pa

QUERY_ID: Final = "sql.streaming.queryId"  # properties of a task that a query has started
BATCH_ID: Final = "streaming.sql.batchId"


@dataclass
class RowsWritten(WriterCommitMessage):
    """What a task has done: rows stored, and rows that an earlier attempt had stored."""

    stored: int
    skipped: int


class TopicStreamWriter(DataSourceStreamArrowWriter):
    """Publishes the rows of a query's micro-batches, each once, however often a batch is run."""

    def __init__(self, options: WriteOptions, schema: StructType, overwrite: bool) -> None:
        columns.check_writable(schema)
        if overwrite:
            raise BadOption("outputMode `complete` would rewrite a topic: say `append` or `update`")
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Publish a partition of a micro-batch."""
        task = _task()
        query, batch = task.getLocalProperty(QUERY_ID), task.getLocalProperty(BATCH_ID)
        if not query or not batch:
            raise SparkError(
                f"Spark has not said which query and batch this task is of ({QUERY_ID}:"
                f" {query!r}, {BATCH_ID}: {batch!r}); queries of micro-batches can be written alone"
            )
        name = name_of(self._options.producer or query, task.partitionId())
        return write_partition(self._options, name, int(batch), iterator)


class TopicWriter(DataSourceArrowWriter):
    """Publishes the rows of a job, each once, however often its tasks are run.

    A job with a `producer` and a `batch` may be run again as a whole. One without has a name of its
    own, which is given up at its end.
    """

    def __init__(self, options: WriteOptions, schema: StructType, overwrite: bool) -> None:
        columns.check_writable(schema)
        if overwrite:
            raise BadOption("mode `overwrite` would rewrite a topic: say .mode('append')")
        self._options = options
        self._is_named = bool(options.producer)
        self._producer = options.producer or uuid.uuid4().hex

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Publish a partition of the job."""
        name = name_of(self._producer, _task().partitionId())
        return write_partition(self._options, name, self._options.batch or 0, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Give up what a job of no name needed to be run once."""
        self._end(len(messages))

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Do the same. What was published stays: subscribers may have it."""
        self._end(len(messages))

    def _end(self, partitions: int) -> None:
        if self._is_named:
            return
        for partition in range(partitions):
            name = name_of(self._producer, partition)
            try:
                with _client(self._options.connection, name) as client:
                    client.unsubscribe(name)
            except FlotillaError as error:
                LOG.warning("journal %r is left over: %s", name, error)


def name_of(producer: str, partition: int) -> str:
    """Return the name of a partition's client, and of its journal."""
    return f"spark.{producer}.{partition}"


def write_partition(
    options: WriteOptions, name: str, batch: int, rows: Iterator[pa.RecordBatch]
) -> RowsWritten:
    """Publish the rows of a partition of a batch that are not stored yet, in their order.

    Raises StaleBatch, NotRepeatable, and as `Client.publish_many`, NoSubscribers among them.
    """
    topic = options.connection.topic
    with _client(options.connection, name) as client:
        _check_journal(client, name)
        before = client.subscribe(name).last_id
        ledger = BatchLedger(
            topic,
            batch,
            _journal(client, name, before),
            client.next_counter(topic) - 1,
            lambda counter: options.allows_unheard or _was_stored(client, topic, counter),
        )
        writer = _Writer(client, name, ledger, options.allows_unheard)
        for columns_ in rows:
            publications = columns.publications_of(columns_)
            while chunk := list(islice(publications, CHUNK_ROWS)):
                writer.store(ledger.take(chunk))
        ledger.finish()
        writer.flush()
    return RowsWritten(writer.stored, ledger.skipped)


class _Writer:
    """Collects rows until they fill a request, then stores a record of them, and them."""

    def __init__(
        self, client: Client, journal: str, ledger: BatchLedger, allows_unheard: bool
    ) -> None:
        self.stored = 0
        self._client, self._journal, self._ledger = client, journal, ledger
        self._allows_unheard = allows_unheard
        self._rows: list[bytes] = []
        self._names: list[bytes] = []
        self._bytes = 0

    def store(self, rows: Sequence[tuple[bytes, bytes]]) -> None:
        """Store rows with their digests, some of them with later ones."""
        for row, name in rows:
            if self._rows and (
                len(self._rows) == CHUNK_ROWS or self._bytes + len(row) > BATCH_BYTES_MAX
            ):
                self.flush()
            self._rows.append(row)
            self._names.append(name)
            self._bytes += len(row)

    def flush(self) -> None:
        """Store what was collected."""
        if not self._rows:
            return
        client, ledger = self._client, self._ledger
        assert client.next_counter(ledger.topic) == ledger.next_counter, ledger.next_counter
        record = client.publish(self._journal, ledger.record(self._names).encode())
        if ledger.begins_batch:
            client.seek(self._journal, record.id)
            ledger.begins_batch = False
        client.publish_many(ledger.topic, self._rows, allow_unheard=self._allows_unheard)
        self.stored += len(self._rows)
        self._rows, self._names, self._bytes = [], [], 0


def _check_journal(client: Client, name: str) -> None:
    """Refuse to begin a journal anew: which rows are stored would be forgotten. Raises StaleBatch.

    A task may be on its way still when its job is over, and begin behind the end of its journal.
    """
    has_records = client.next_counter(name) > 1
    if has_records and client._session.state.cursor(name) is None:
        raise StaleBatch(
            f"the journal {name!r} was ended, and with it what is known of the rows that this"
            " partition has stored: its job is over, or somebody has unsubscribed it. A producer"
            " of another name begins anew"
        )


def _journal(client: Client, name: str, last_id: int) -> Iterator[RowsRecord]:
    """Read a journal behind an id, to its end."""
    while delivery := client.read(name, last_id + 1, BATCH_COUNT_MAX):
        for publication in delivery.publications:
            yield decode(publication)
        last_id = delivery.last_id


def _was_stored(client: Client, topic: str, counter: int) -> bool:
    """Ask whether what was taken under a counter was kept, by a PUT of the same again.

    It is a duplicate, whatever it holds. What was taken too long ago to be known counts as kept.
    """
    operations = client._operations
    request = operations.request(PUT, topic, {"counter": counter, "count": 1})
    request.lengths, request.data = pack([b""])

    def steps() -> Steps[bool]:
        done: Done = yield from operations.asked(Ask(request))
        assert done.reply.body["duplicate"], (topic, counter)
        return done.reply.body["stored"] is not False

    return client._run(steps())


def _task() -> TaskContext:
    task = TaskContext.get()
    assert task is not None, "a write runs in a task"
    return task


def _client(connection: TopicAt, name: str) -> Client:
    return Client(
        connection.endpoints, key=connection.key_file, timeout=connection.timeout_s, name=name
    )
