"""Publications as columns, and back.

What lives here: the schema, Arrow batches of what a READ has brought, publications of the rows that
Spark brings. What must not: connections, options.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    BinaryType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from flotilla_client.batches import as_bytes
from flotilla_client.properties import Properties, Publication
from flotilla_client.reading import Delivery
from flotilla_client.spark.errors import BadSchema

SCHEMA: Final = StructType(
    [
        StructField("topic", StringType(), nullable=False),
        StructField("id", LongType(), nullable=False),
        StructField("timestamp", TimestampType()),
        StructField("key", BinaryType()),
        StructField("headers", MapType(StringType(), BinaryType())),
        StructField("value", BinaryType(), nullable=False),
    ]
)
_TEXT_OR_BYTES: Final = (StringType(), BinaryType())
WRITABLE: Final = (
    "`value`, and if need be `key` (each STRING or BINARY) and `headers` (MAP<STRING, STRING> or"
    " MAP<STRING, BINARY>): select(…) these alone"
)


# --- out of a topic -----------------------------------------------------------------------------


def check_readable(schema: StructType) -> None:
    """Refuse a schema that asks for something else than some of SCHEMA's columns."""
    known = {field.name: field for field in SCHEMA}
    for field in schema:
        own = known.get(field.name)
        if own is None or own.dataType != field.dataType:
            raise BadSchema(
                f"`{field.name} {field.dataType.simpleString()}` is no column of a topic; these"
                f" are: {', '.join(f'{f.name} {f.dataType.simpleString()}' for f in SCHEMA)}"
            )


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return what Spark expects batches of that schema to be."""
    return to_arrow_schema(schema, timezone="UTC")


def batch_of(delivery: Delivery, schema: pa.Schema) -> pa.RecordBatch:
    """Return a delivery as columns, those that the schema asks for."""
    arrays = [_COLUMNS[field.name](delivery).cast(field.type) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _topics(delivery: Delivery) -> pa.Array:
    return pa.repeat(pa.scalar(delivery.topic, pa.string()), len(delivery.publications))


def _ids(delivery: Delivery) -> pa.Array:
    return pa.array(range(delivery.first_id, delivery.last_id + 1), pa.int64())


def _timestamps(delivery: Delivery) -> pa.Array:
    times: list[pa.Array] = []
    next_id = delivery.first_id
    for last_id, timestamp_ms in delivery.timestamps:
        at = pa.scalar(None if timestamp_ms is None else timestamp_ms * 1000, pa.int64())
        times.append(pa.repeat(at, last_id + 1 - next_id))
        next_id = last_id + 1
    times.append(pa.nulls(delivery.last_id + 1 - next_id, pa.int64()))
    return pa.concat_arrays(times).cast(pa.timestamp("us", tz="UTC"))


def _keys(delivery: Delivery) -> pa.Array:
    if not delivery.properties:
        return pa.nulls(len(delivery.publications), pa.binary())
    none = Properties()
    found = (delivery.properties.get(id_, none).key for id_ in _range(delivery))
    return pa.array([None if key is None else _bytes(key) for key in found], pa.binary())


def _headers(delivery: Delivery) -> pa.Array:
    kind = pa.map_(pa.string(), pa.binary())
    if not delivery.properties:
        return pa.nulls(len(delivery.publications), kind)
    none = Properties()
    found = (delivery.properties.get(id_, none).headers for id_ in _range(delivery))
    rows = [[(name, _bytes(value)) for name, value in each.items()] or None for each in found]
    return pa.array(rows, kind)


def _values(delivery: Delivery) -> pa.Array:
    return pa.array(delivery.publications, pa.binary())


def _range(delivery: Delivery) -> range:
    return range(delivery.first_id, delivery.last_id + 1)


def _bytes(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else value


_COLUMNS: Final = {
    "topic": _topics,
    "id": _ids,
    "timestamp": _timestamps,
    "key": _keys,
    "headers": _headers,
    "value": _values,
}


# --- into a topic -------------------------------------------------------------------------------


def check_writable(schema: StructType) -> None:
    """Refuse columns that are not those of a publication: nothing is left out in silence."""
    types = {field.name: field.dataType for field in schema}
    if "value" not in types:
        raise BadSchema(f"there is no column `value`; due is {WRITABLE}")
    for name, kind in types.items():
        if name in ("value", "key"):
            fits = kind in _TEXT_OR_BYTES
        elif name == "headers":
            fits = (
                isinstance(kind, MapType)
                and kind.keyType == StringType()
                and kind.valueType in _TEXT_OR_BYTES
            )
        else:
            fits = False
        if not fits:
            column = f"`{name} {kind.simpleString()}`"
            raise BadSchema(f"{column} is none of a publication; due is {WRITABLE}")


def publications_of(batch: pa.RecordBatch) -> Iterator[bytes]:
    """Return the rows of a batch as they are published, with their properties.

    Raises BadSchema for a row without a value, and TooLarge, BadRequest as `publish` does.
    """
    names = batch.schema.names
    values = batch.column(names.index("value"))
    if values.null_count:
        raise BadSchema("a row's `value` is null: a publication has bytes, if need be none")
    own = [
        batch.column(names.index(name)).to_pylist() if name in names else None
        for name in ("key", "headers")
    ]
    if all(column is None for column in own):
        return map(as_bytes, values.to_pylist())
    rows = zip(
        values.to_pylist(),
        *([None] * batch.num_rows if column is None else column for column in own),
        strict=True,
    )
    return map(_publication_of, rows)


def _publication_of(row: tuple[str | bytes, str | bytes | None, list[tuple[str, object]]]) -> bytes:
    value, key, headers = row
    if key is None and not headers:
        return as_bytes(value)
    for name, content in headers or ():
        if content is None:
            raise BadSchema(f"header {name!r} of a row is null")
    return as_bytes(Publication(value, key, dict(headers or ())))  # type: ignore[arg-type]
