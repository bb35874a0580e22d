"""The data source `flotilla`: what Spark makes readers and writers of, and the readers.

What lives here: the classes that Spark calls, in the driver and in executors. What must not: what
options mean (options.py), which ids are read (offsets.py), what a row is made of (columns.py).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from flotilla_client.client import Client
from flotilla_client.errors import BadRequest, Compacted, Expired, Gap, UnknownTopic
from flotilla_client.protocol import BATCH_COUNT_MAX, EARLIEST
from flotilla_client.spark import columns, offsets
from flotilla_client.spark.errors import DataLost
from flotilla_client.spark.options import (
    LATEST,
    ReadOptions,
    StreamOptions,
    TopicAt,
    read_options,
    stream_options,
    write_options,
)
from flotilla_client.spark.sink import TopicStreamWriter, TopicWriter

if TYPE_CHECKING:
    import pyarrow as pa

LOG: Final = logging.getLogger("flotilla.spark")
# {"id": the next to be read, "start" and "partitions": of the batch that ends there}
Offset = dict[str, Any]


class FlotillaDataSource(DataSource):
    """`format("flotilla")`: a topic as rows, and rows into a topic (docs/spark.md)."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "flotilla"

    def schema(self) -> StructType:
        """Return the columns of a publication."""
        return columns.SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return what reads a range of ids. Raises BadOption, BadSchema."""
        columns.check_readable(schema)
        return IdRangeReader(read_options(self.options), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """Return what reads a topic as it grows. Raises BadOption, BadSchema."""
        columns.check_readable(schema)
        return TopicStreamReader(stream_options(self.options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> TopicWriter:
        """Return what publishes the rows of a job. Raises BadOption, BadSchema."""
        return TopicWriter(write_options(self.options, is_stream=False), schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> TopicStreamWriter:  # noqa: N802
        """Return what publishes the rows of micro-batches. Raises BadOption, BadSchema."""
        return TopicStreamWriter(write_options(self.options, is_stream=True), schema, overwrite)


@dataclass
class IdRange(InputPartition):
    """Ids from `start` up to `end`, which is not one of them."""

    start: int
    end: int


class IdRangeReader(DataSourceReader):
    """Reads a range of ids in partitions; what it finds at the end when it is planned is it."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options, self._schema = options, schema

    def partitions(self) -> Sequence[InputPartition]:
        """Return ranges of ids, of nearly one size."""
        options = self._options
        with _client(options.connection) as client:
            kept = offsets.extent(client, options.connection.topic)
        start = kept.first_id if options.from_id is None else options.from_id
        end = kept.end if options.to_id is None else min(kept.end, options.to_id + 1)
        if start < kept.first_id and start < end:
            _tell(lost(options.connection.topic, start, kept.first_id), options.fails_on_loss)
            start = kept.first_id
        count = options.partitions or offsets.partitions_of(end - start)
        ranges = [IdRange(*each) for each in offsets.split(start, end, count)]
        return ranges or [IdRange(end, end)]  # Spark makes a range of its own of none

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one of the ranges."""
        assert isinstance(partition, IdRange)
        options = self._options
        return read_range(options.connection, partition, self._schema, options.fails_on_loss)


class TopicStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads a topic in micro-batches. An offset is the id that is read next.

    It says besides where the batch that ends there begins, and into how many partitions it is
    split. So a batch that is run again, under other options, is split as it was; and a query's
    first one begins where it began, though Spark asks for the initial offset anew.
    """

    def __init__(self, options: StreamOptions, schema: StructType) -> None:
        self._options, self._schema = options, schema
        self._opened: Client | None = None  # in the driver alone
        self._end_max: int | None = None  # with the trigger AvailableNow
        self._end_seen: int | None = None

    def initialOffset(self) -> Offset:  # noqa: N802
        """Return where a new query starts."""
        options, client = self._options, self._client()
        topic = options.connection.topic
        if options.start_ms is not None:
            start = offsets.first_since(client, topic, options.start_ms)
        elif options.start == LATEST:
            start = offsets.end_of(client, topic)
        elif options.start == EARLIEST:
            start = offsets.extent(client, topic).first_id
        else:
            start = int(options.start)
            kept = offsets.extent(client, topic)
            if start > kept.end:
                _tell(_beyond(topic, start, kept.end), options.fails_on_loss)
                start = kept.end
        return _offset(start, start, 0)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return what `maxOffsetsPerTrigger` says."""
        most = self._options.offsets_max
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802
        """Return up to where the next batch goes: `start` itself if there is nothing."""
        options = self._options
        kept = offsets.extent(self._client(), options.connection.topic)
        self._end_seen = kept.end
        first, end = int(start["id"]), kept.end
        if end < first:
            _tell(_beyond(options.connection.topic, first, end), fails=True)
        if first < kept.first_id:
            _tell(lost(options.connection.topic, first, kept.first_id), options.fails_on_loss)
        if self._end_max is not None:
            end = min(end, max(first, self._end_max))
        if isinstance(limit, ReadMaxRows):
            end = min(end, max(first, kept.first_id) + limit.max_rows)
        elif not isinstance(limit, ReadAllAvailable):
            raise NotImplementedError(f"a limit of the kind {type(limit).__name__}")
        if end <= first:
            return start
        return _offset(first, end, options.partitions or offsets.partitions_of(end - first))

    def reportLatestOffset(self) -> Offset | None:  # noqa: N802
        """Return the topic's end, as it was last seen, for the query's progress."""
        return None if self._end_seen is None else {"id": self._end_seen}

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Take the topic's end of now for the last one."""
        self._end_max = offsets.end_of(self._client(), self._options.connection.topic)

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """Return ranges of ids, the same for the same offsets each time."""
        first = end["start"] if "start" in end else start["id"]  # an older one does not say it
        ranges = offsets.split(int(first), int(end["id"]), max(1, int(end["partitions"])))
        return [IdRange(*each) for each in ranges]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one of the ranges."""
        assert isinstance(partition, IdRange)
        options = self._options
        return read_range(options.connection, partition, self._schema, options.fails_on_loss)

    def commit(self, end: Offset) -> None:
        """Do nothing: the query's place is its checkpoint's, and reading moves nothing."""

    def stop(self) -> None:
        """Close the connection of the driver."""
        if self._opened is not None:
            self._opened.close()
            self._opened = None

    def _client(self) -> Client:
        if self._opened is None:
            self._opened = _client(self._options.connection)
        return self._opened


def read_range(
    connection: TopicAt, ids: IdRange, schema: StructType, fails_on_loss: bool
) -> Iterator[pa.RecordBatch]:
    """Read a range of ids, a batch an answer. Raises DataLost."""
    arrow = columns.arrow_schema(schema)
    next_id, topic = ids.start, connection.topic
    with _client(connection) as client:
        while next_id < ids.end:
            count = min(BATCH_COUNT_MAX, ids.end - next_id)
            try:
                found = client.read_runs(topic, next_id, count)
            except (Gap, Expired, Compacted) as gone:
                kept_id = gone.details["last_id"] + 1
                _tell(lost(topic, next_id, min(kept_id, ids.end)), fails_on_loss)
                next_id = kept_id
                continue
            except BadRequest as error:
                if "end" not in error.details:
                    raise
                raise _beyond(topic, next_id, error.details["end"] + 1) from error
            except UnknownTopic as error:
                raise DataLost(
                    f"topic {topic!r} was deleted before id {next_id} was read"
                ) from error
            if not found:
                end_id = offsets.end_of(client, topic)
                if end_id <= next_id:
                    raise _beyond(topic, ids.end - 1, next_id)
                # What was there until now is gone, up to the end.
                _tell(lost(topic, next_id, min(end_id, ids.end)), fails_on_loss)
                next_id = end_id
            for delivery in found:
                if delivery.first_id > next_id:  # what is between has expired, or is compacted away
                    _tell(lost(topic, next_id, min(delivery.first_id, ids.end)), fails_on_loss)
                    next_id = delivery.first_id
                if next_id >= ids.end:  # asked for again, it may have expired
                    break
                delivery = delivery.up_to(ids.end - 1)
                next_id = delivery.last_id + 1
                yield columns.batch_of(delivery, arrow)


def lost(topic: str, first_id: int, kept_id: int) -> DataLost:
    """Return the error of ids that are not kept any more."""
    return DataLost(
        f"ids {first_id} to {kept_id - 1} of {topic!r} are not kept any more: everybody who"
        " subscribes has read them, they have expired, were over the topic's policy or purged. With"
        " failOnDataLoss=false they are left out; `flotilla topic create` or `alter` says with"
        " --keep what stays"
    )


def _beyond(topic: str, start: int, end: int) -> DataLost:
    return DataLost(
        f"id {start} of {topic!r} is to be read, and the topic ends before {end}: the offset is of"
        " another topic or cluster, or the cluster was recovered and has lost what it had"
    )


def _tell(error: DataLost, fails: bool) -> None:
    if fails:
        raise error
    LOG.warning("%s", error)


def _offset(start: int, next_id: int, partitions: int) -> Offset:
    return {"id": next_id, "start": start, "partitions": partitions}


def _client(connection: TopicAt) -> Client:
    return Client(connection.endpoints, key=connection.key_file, timeout=connection.timeout_s)
