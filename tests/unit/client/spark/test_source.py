"""What a range of ids brings where some of it has expired, read of a topic in memory."""

from __future__ import annotations

import logging
from typing import Self

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from flotilla_client.reading import Delivery
from flotilla_client.spark import columns, source
from flotilla_client.spark.errors import DataLost
from flotilla_client.spark.options import TopicAt, read_options, stream_options
from flotilla_client.spark.source import IdRange, TopicStreamReader, read_range
from tests.unit.client.spark.test_offsets import TopicInMemory


class ClientInMemory(TopicInMemory):
    """Answers with as many as are asked for: the next run, or `runs_max` of them."""

    runs_max = 1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def read_runs(self, topic: str, from_id: int, max_count: int = 1) -> list[Delivery]:
        found: list[Delivery] = []
        while len(found) < self.runs_max and max_count and (first := self.read(topic, from_id)):
            end_id = first.first_id + 1
            while end_id <= len(self.times) and end_id not in self.over:
                end_id += 1
            count = min(max_count, end_id - first.first_id)
            last_id = first.first_id + count - 1
            found.append(Delivery("t", first.first_id, (b"",) * count, timestamps=((last_id, 5),)))
            from_id, max_count = last_id + 1, max_count - count
        return found


def ids_read(
    monkeypatch: pytest.MonkeyPatch,
    over: set[int],
    start: int,
    end: int,
    fails: bool,
    runs_max: int = 1,
) -> list[int]:
    """Read ids from `start` up to `end`, which is not one of them, of a topic of ten."""
    client = ClientInMemory([5] * 10, over=over)
    client.runs_max = runs_max
    monkeypatch.setattr(source, "_client", lambda connection: client)
    at: TopicAt = read_options({"endpoints": "127.0.0.1:1", "topic": "t"}).connection
    batches = read_range(at, IdRange(start, end), columns.SCHEMA, fails)
    return [id_ for batch in batches for id_ in batch.column("id").to_pylist()]


@pytest.mark.parametrize("runs_max", [1, 2, 10])
@pytest.mark.parametrize(
    ("over", "lost", "left"),
    [
        ({1, 2}, "ids 1 to 2 of 't'", [3, 4, 5, 6]),
        ({3}, "ids 3 to 3 of 't'", [1, 2, 4, 5, 6]),
        ({6, 7, 8}, "ids 6 to 6 of 't'", [1, 2, 3, 4, 5]),
        ({5, 6, 7, 8, 9, 10}, "ids 5 to 6 of 't'", [1, 2, 3, 4]),
    ],
)
def test_what_has_expired_is_an_error_or_left_out_and_said(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    over: set[int],
    lost: str,
    left: list[int],
    runs_max: int,
) -> None:
    with pytest.raises(DataLost, match=lost):
        ids_read(monkeypatch, over, 1, 7, True, runs_max)
    with caplog.at_level(logging.WARNING, "flotilla.spark"):
        assert ids_read(monkeypatch, over, 1, 7, False, runs_max) == left
    [record] = caplog.records
    assert lost in record.getMessage()
    assert "have expired" in record.getMessage()


def test_a_topic_that_ends_before_the_range_is_an_error_in_any_case(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(DataLost, match="ends before 11"):
        ids_read(monkeypatch, set(), 8, 13, fails=False)


def test_a_query_of_what_is_there_ends_where_the_topic_did_when_it_began(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client = ClientInMemory([5] * 10)
    monkeypatch.setattr(source, "_client", lambda connection: client)
    said = {"endpoints": "127.0.0.1:1", "topic": "t", "startingOffsets": "earliest"}
    reader = TopicStreamReader(stream_options(said), columns.SCHEMA)
    start = reader.initialOffset()
    reader.prepareForTriggerAvailableNow()
    client.times += [5] * 5  # while it runs
    first = reader.latestOffset(start, ReadMaxRows(7))
    last = reader.latestOffset(first, ReadAllAvailable())
    assert [each["id"] for each in (start, first, last)] == [1, 8, 11]
    assert reader.latestOffset(last, ReadAllAvailable()) == last
    assert reader.reportLatestOffset() == {"id": 16}


def test_a_first_batch_that_runs_again_is_as_it_was_though_the_topic_has_grown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client = ClientInMemory([5] * 10)
    monkeypatch.setattr(source, "_client", lambda connection: client)
    said = {"endpoints": "127.0.0.1:1", "topic": "t", "partitions": "2"}
    reader = TopicStreamReader(stream_options(said), columns.SCHEMA)
    start = reader.initialOffset()
    client.times += [5] * 4
    end = reader.latestOffset(start, ReadAllAvailable())
    ranges = [IdRange(11, 13), IdRange(13, 15)]
    assert reader.partitions(start, end) == ranges
    client.times += [5] * 4
    assert reader.partitions(reader.initialOffset(), end) == ranges
    of_before = {"id": end["id"], "partitions": end["partitions"]}
    assert reader.partitions(start, of_before) == ranges
