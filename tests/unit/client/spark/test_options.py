"""Options of the data source `flotilla`: a text is a value, or an error that says what is due."""

from __future__ import annotations

import pytest

from flotilla_client.spark.errors import BadOption
from flotilla_client.spark.options import (
    PARTITIONS_MAX,
    PRODUCER_BYTES_MAX,
    TIMEOUT_S,
    read_options,
    stream_options,
    write_options,
)

HERE = {"endpoints": "127.0.0.1:7001", "topic": "orders"}


def test_little_is_needed() -> None:
    said = read_options(HERE)
    assert said.connection.endpoints == "127.0.0.1:7001"
    assert said.connection.topic == "orders"
    assert said.connection.timeout_s == TIMEOUT_S
    assert said.connection.key_file is None
    assert (said.from_id, said.to_id, said.partitions, said.fails_on_loss) == (None,) * 3 + (True,)
    assert stream_options(HERE).start == "latest"
    written = write_options(HERE, is_stream=True)
    assert (written.producer, written.batch, written.allows_unheard) == ("", None, False)


def test_names_of_options_know_no_capitals() -> None:
    said = read_options(HERE | {"FROMID": "3", "toId": "9", "FailOnDataLoss": "False"})
    assert (said.from_id, said.to_id, said.fails_on_loss) == (3, 9, False)


@pytest.mark.parametrize("lacking", ["endpoints", "topic"])
def test_what_is_needed_is_named(lacking: str) -> None:
    given = {name: value for name, value in HERE.items() if name != lacking}
    with pytest.raises(BadOption, match=rf"readStream needs .option\('{lacking}'"):
        stream_options(given)


def test_an_unknown_option_is_refused_with_those_that_are_known() -> None:
    with pytest.raises(BadOption, match=r"no option 'topics'; known: .*topic"):
        read_options(HERE | {"topics": "a"})


def test_an_option_of_elsewhere_is_named_as_such() -> None:
    with pytest.raises(BadOption, match="one of readStream"):
        read_options(HERE | {"startingOffsets": "latest"})
    with pytest.raises(BadOption, match="one of write"):
        write_options(HERE | {"batch": "3"}, is_stream=True)


def test_a_path_is_no_topic() -> None:
    with pytest.raises(BadOption, match="a topic has no path"):
        read_options(HERE | {"path": "orders"})


def test_what_spark_says_of_itself_is_passed_over() -> None:
    assert write_options(HERE | {"checkpointLocation": "/tmp/x"}, is_stream=True)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("endpoints", "nowhere"),
        ("endpoints", "here:0"),
        ("topic", "orders.*"),
        ("topic", "a\nb"),
        ("topic", "t" * 256),
        ("timeout", "soon"),
        ("timeout", "0"),
        ("timeout", "nan"),
        ("timeout", "inf"),
        ("partitions", "0"),
        ("partitions", str(PARTITIONS_MAX + 1)),
        ("partitions", "-1"),
        ("failOnDataLoss", "yes"),
        ("fromId", "0"),
        ("fromId", "1.5"),
        ("toId", "²"),
    ],
)
def test_a_bad_value_is_refused_by_its_name(name: str, value: str) -> None:
    with pytest.raises(BadOption, match=name):
        read_options(HERE | {name: value})


def test_a_range_that_ends_before_it_begins_is_refused() -> None:
    with pytest.raises(BadOption, match="toId 3 is before fromId 5"):
        read_options(HERE | {"fromId": "5", "toId": "3"})


def test_a_stream_starts_at_a_word_an_id_or_a_time() -> None:
    def start(**said: str) -> tuple[str | int, int | None]:
        options = stream_options(HERE | said)
        return options.start, options.start_ms

    assert start(startingOffsets="EARLIEST") == ("earliest", None)
    assert start(startingOffsets="17") == (17, None)
    assert start(startingTimestamp="1700000000000")[1] == 1_700_000_000_000
    assert start(startingTimestamp="1970-01-01T01:00:01+01:00")[1] == 1_000
    for bad in ("yesterday", "2026-05-04T17:00", "1" * 20):
        with pytest.raises(BadOption, match="its zone"):
            start(startingTimestamp=bad)
    with pytest.raises(BadOption, match="`earliest`, `latest` or an id"):
        start(startingOffsets="newest")
    with pytest.raises(BadOption, match="not both"):
        start(startingOffsets="1", startingTimestamp="1")


def test_a_producer_and_its_batch_belong_together() -> None:
    said = write_options(HERE | {"producer": "nightly", "batch": "7"}, is_stream=False)
    assert (said.producer, said.batch) == ("nightly", 7)
    for half in ({"producer": "nightly"}, {"batch": "7"}):
        with pytest.raises(BadOption, match="belong together"):
            write_options(HERE | half, is_stream=False)
    assert write_options(HERE | {"producer": "nightly"}, is_stream=True).producer == "nightly"


@pytest.mark.parametrize("name", ["a b*", "x\x00", "é" * PRODUCER_BYTES_MAX])
def test_a_producer_is_a_part_of_a_topics_name(name: str) -> None:
    with pytest.raises(BadOption, match="producer"):
        write_options(HERE | {"producer": name}, is_stream=True)
