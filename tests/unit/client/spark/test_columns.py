"""Publications as columns and back: nothing is lost, nothing else is taken."""

from __future__ import annotations

from datetime import UTC, datetime

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    BinaryType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
)

from flotilla_client.errors import TooLarge
from flotilla_client.properties import Enveloped, Properties, decode
from flotilla_client.protocol import PUBLICATION_BYTES_MAX
from flotilla_client.reading import Delivery
from flotilla_client.spark.columns import (
    SCHEMA,
    arrow_schema,
    batch_of,
    check_readable,
    check_writable,
    publications_of,
)
from flotilla_client.spark.errors import BadSchema

DELIVERY = Delivery(
    "t",
    7,
    (b"one", b"", b"three"),
    properties={8: Properties("key", {"a": "text", "b": b"\xff"}), 9: Properties(b"\x00")},
    timestamps=((7, None), (9, 1_700_000_000_123)),
)


TYPES = {
    "STRING": StringType(),
    "BINARY": BinaryType(),
    "INT": IntegerType(),
    "BIGINT": LongType(),
    "MAP<STRING,STRING>": MapType(StringType(), StringType()),
    "MAP<STRING,INT>": MapType(StringType(), IntegerType()),
}


def schema_of(text: str) -> StructType:
    """Return what Spark makes of a text; itself it takes a JVM for that."""
    fields = [field.split(maxsplit=1) for field in text.split("; ")]
    return StructType([StructField(name, TYPES[kind]) for name, kind in fields])


def test_a_delivery_becomes_columns() -> None:
    batch = batch_of(DELIVERY, arrow_schema(SCHEMA))
    assert batch.schema.equals(arrow_schema(SCHEMA))
    batch.validate(full=True)
    at = datetime.fromtimestamp(1_700_000_000.123, UTC)
    assert batch.to_pydict() == {
        "topic": ["t"] * 3,
        "id": [7, 8, 9],
        "timestamp": [None, at, at],
        "key": [None, b"key", b"\x00"],
        "headers": [None, [("a", b"text"), ("b", b"\xff")], None],
        "value": [b"one", b"", b"three"],
    }


def test_what_a_node_says_no_times_of_has_none() -> None:
    batch = batch_of(Delivery("t", 1, (b"x",)), arrow_schema(SCHEMA))
    assert batch.to_pydict()["timestamp"] == [None]
    assert batch.to_pydict()["key"] == batch.to_pydict()["headers"] == [None]


def test_columns_that_are_not_asked_for_are_not_made() -> None:
    schema = schema_of("value BINARY; id BIGINT")
    check_readable(schema)
    assert batch_of(DELIVERY, arrow_schema(schema)).schema.names == ["value", "id"]


@pytest.mark.parametrize("ddl", ["value STRING", "id INT", "offset BIGINT"])
def test_another_schema_is_refused_with_the_columns_that_there_are(ddl: str) -> None:
    with pytest.raises(BadSchema, match=r"timestamp timestamp, key binary"):
        check_readable(schema_of(ddl))


@pytest.mark.parametrize(
    "ddl",
    [
        "id BIGINT",
        "value INT",
        "value BINARY; id BIGINT",
        "value BINARY; key INT",
        "value BINARY; headers MAP<STRING,INT>",
        "value BINARY; headers STRING",
    ],
)
def test_columns_that_are_none_of_a_publication_are_refused(ddl: str) -> None:
    with pytest.raises(BadSchema, match=r"select\(…\) these"):
        check_writable(schema_of(ddl))


@pytest.mark.parametrize(
    "ddl", ["value STRING", "value BINARY; headers MAP<STRING,STRING>; key STRING"]
)
def test_texts_are_taken_as_well(ddl: str) -> None:
    check_writable(schema_of(ddl))


def test_what_was_read_is_published_as_it_was() -> None:
    read = batch_of(DELIVERY, arrow_schema(SCHEMA)).select(["headers", "value", "key"])
    rows = list(publications_of(read))
    assert rows[0] == b"one"
    assert [type(row) for row in rows] == [bytes, Enveloped, Enveloped]
    properties, size = decode(rows[1])
    assert properties == Properties(b"key", {"a": b"text", "b": b"\xff"})
    assert rows[1][size:] == b""


def test_texts_are_published_as_texts() -> None:
    batch = pa.RecordBatch.from_pydict({"value": ["é"], "key": ["k"]})
    [row] = publications_of(batch)
    assert decode(row)[0] == Properties("k")
    assert row.endswith("é".encode())
    [alone] = publications_of(batch.select(["value"]))
    assert alone == "é".encode()


def test_a_null_is_no_publication() -> None:
    with pytest.raises(BadSchema, match="`value` is null"):
        publications_of(pa.RecordBatch.from_pydict({"value": [b"x", None]}))
    kind = pa.map_(pa.string(), pa.binary())
    headers = pa.array([[("a", None)]], kind)
    with pytest.raises(BadSchema, match="header 'a'"):
        list(publications_of(pa.RecordBatch.from_pydict({"value": [b"x"], "headers": headers})))


def test_a_row_over_a_publications_size_is_refused() -> None:
    batch = pa.RecordBatch.from_pydict({"value": [bytes(PUBLICATION_BYTES_MAX + 1)]})
    with pytest.raises(TooLarge):
        list(publications_of(batch))
