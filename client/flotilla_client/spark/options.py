"""What the options of a DataFrame's reader or writer say, checked.

What lives here: each option's name, meaning, default and bounds; a text of Spark's becomes a value
or a BadOption. What must not: Spark, a connection. docs/spark.md has the table of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from flotilla_client.client import endpoints_of
from flotilla_client.errors import FlotillaError
from flotilla_client.operations import check_client_id, check_no_pattern, check_topic
from flotilla_client.protocol import EARLIEST, INTEGER_MAX, NAME_BYTES_MAX
from flotilla_client.spark.errors import BadOption

LATEST: Final = "latest"
PARTITIONS_MAX: Final = 10_000  # Spark's driver holds one of each; a task is worth 1,000 rows
TIMEOUT_S: Final = 60.0  # of each call: an executor has more patience than a person
TIMEOUT_S_MAX: Final = 24 * 3600.0
PARTITION_DIGITS: Final = 6  # of a partition's number behind a producer's name
PRODUCER_BYTES_MAX: Final = NAME_BYTES_MAX - len("spark..") - PARTITION_DIGITS
DIGITS_MAX: Final = 16  # of a number: what has more is over every bound

_EVERY: Final = ("endpoints", "topic", "keyFile", "timeout")
_READ: Final = (*_EVERY, "partitions", "failOnDataLoss")
_WRITE: Final = (*_EVERY, "producer", "allowUnheard")
KNOWN: Final[Mapping[str, tuple[str, ...]]] = {
    "read": (*_READ, "fromId", "toId"),
    "readStream": (*_READ, "startingOffsets", "startingTimestamp", "maxOffsetsPerTrigger"),
    "write": (*_WRITE, "batch"),
    "writeStream": _WRITE,
}
# Spark hands its own options to a source as well.
SPARKS_OWN: Final = frozenset({"checkpointlocation", "queryname"})


@dataclass(frozen=True, slots=True)
class TopicAt:
    """Which topic of which cluster, and how it is reached. Times in seconds."""

    endpoints: str
    topic: str
    key_file: str | None
    timeout_s: float


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """Which ids are read, both included. `to_id` None: up to the topic's end when it is planned.

    `from_id` None: from the first that the topic keeps. `partitions` None: by the number of ids.
    """

    connection: TopicAt
    from_id: int | None
    to_id: int | None
    partitions: int | None
    fails_on_loss: bool


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """Where a new query starts: "earliest", "latest", an id, or a time of day in ms since 1970."""

    connection: TopicAt
    start: str | int
    start_ms: int | None
    offsets_max: int | None
    partitions: int | None
    fails_on_loss: bool


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """Who writes. `producer` "": Spark's id of the query, or a name of this job's own.

    `batch` None: of a stream, whose batches Spark counts, or of a job that is not run again.
    """

    connection: TopicAt
    producer: str
    batch: int | None
    allows_unheard: bool


def read_options(options: Mapping[str, str]) -> ReadOptions:
    """Return what `spark.read` was told. Raises BadOption."""
    said = _OptionsSaid("read", options)
    from_id = said.integer("fromId", 1, INTEGER_MAX)
    to_id = said.integer("toId", 0, INTEGER_MAX)
    if from_id is not None and to_id is not None and to_id < from_id - 1:
        raise BadOption(f"toId {to_id} is before fromId {from_id}")
    return ReadOptions(said.connection(), from_id, to_id, said.partitions(), said.fails_on_loss())


def stream_options(options: Mapping[str, str]) -> StreamOptions:
    """Return what `spark.readStream` was told. Raises BadOption."""
    said = _OptionsSaid("readStream", options)
    offsets, time = said.text("startingOffsets"), said.text("startingTimestamp")
    if offsets and time:
        raise BadOption("give startingOffsets or startingTimestamp, not both")
    start: str | int = offsets.lower() or LATEST
    if start not in (EARLIEST, LATEST):
        start = (
            said.integer("startingOffsets", 1, INTEGER_MAX, "`earliest`, `latest` or an id") or 1
        )
    return StreamOptions(
        said.connection(),
        start,
        _milliseconds(time) if time else None,
        said.integer("maxOffsetsPerTrigger", 1, INTEGER_MAX),
        said.partitions(),
        said.fails_on_loss(),
    )


def write_options(options: Mapping[str, str], is_stream: bool) -> WriteOptions:
    """Return what a writer was told. Raises BadOption."""
    said = _OptionsSaid("writeStream" if is_stream else "write", options)
    producer = said.text("producer")
    batch = None if is_stream else said.integer("batch", 0, INTEGER_MAX)
    if not is_stream and bool(producer) != (batch is not None):
        raise BadOption(
            "`producer` and `batch` belong together: a job that is run again under the same"
            " producer and batch stores nothing twice"
        )
    if producer:
        _check_producer(producer)
    return WriteOptions(said.connection(), producer, batch, said.flag("allowUnheard", False))


def _check_producer(producer: str) -> None:
    if len(producer.encode()) > PRODUCER_BYTES_MAX:
        raise BadOption(f"producer has {PRODUCER_BYTES_MAX} bytes at most")
    try:
        check_client_id(producer)
        check_no_pattern(producer)
    except FlotillaError as error:
        raise BadOption(f"producer {producer!r}: {error.message}") from error


def _milliseconds(text: str) -> int:
    """Return a time of day in ms since 1970, of its number or of ISO 8601 with a zone."""
    if text.isascii() and text.isdigit() and len(text) <= 15:
        return int(text)
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        time = datetime.min
    if time.tzinfo is None:
        raise BadOption(
            f"startingTimestamp {text!r}: milliseconds since 1970 are due, or ISO 8601 with its"
            " zone, as 2026-05-04T17:00+02:00"
        )
    return max(0, round(time.timestamp() * 1000))


def _lower(names: Iterable[str]) -> set[str]:
    return {name.lower() for name in names}


class _OptionsSaid:
    """The options of one use, by their names in small letters, as Spark has them."""

    def __init__(self, use: str, options: Mapping[str, str]) -> None:
        self._use = use
        self._options = {name.lower(): value for name, value in options.items()}
        if "path" in self._options:
            raise BadOption("a topic has no path: say .option('topic', …) and .load() or .start()")
        for name in sorted(self._options.keys() - _lower(KNOWN[use]) - SPARKS_OWN):
            elsewhere = [other for other, known in KNOWN.items() if name in _lower(known)]
            known = ", ".join(sorted(KNOWN[use]))
            also = f" (it is one of {', '.join(elsewhere)})" if elsewhere else ""
            raise BadOption(f"{use} has no option {name!r}{also}; known: {known}")

    def text(self, name: str) -> str:
        return self._options.get(name.lower(), "").strip()

    def connection(self) -> TopicAt:
        for name, example in (("endpoints", "HOST:PORT,HOST:PORT"), ("topic", "orders")):
            if not self.text(name):
                raise BadOption(f"{self._use} needs .option({name!r}, {example!r})")
        endpoints, topic = self.text("endpoints"), self.text("topic")
        try:
            endpoints_of(endpoints)
        except ValueError as error:
            raise BadOption(f"endpoints: {error}") from error
        try:
            check_topic(topic)
            check_no_pattern(topic)
        except FlotillaError as error:
            raise BadOption(f"topic {topic!r}: {error.message}") from error
        return TopicAt(endpoints, topic, self.text("keyFile") or None, self._timeout())

    def _timeout(self) -> float:
        text = self.text("timeout")
        try:
            timeout_s = float(text) if text else TIMEOUT_S
        except ValueError:
            timeout_s = 0.0
        if not 0.001 <= timeout_s <= TIMEOUT_S_MAX:
            raise BadOption(f"timeout {text!r}: seconds are due, {TIMEOUT_S_MAX:,.0f} at most")
        return timeout_s

    def partitions(self) -> int | None:
        return self.integer("partitions", 1, PARTITIONS_MAX)

    def fails_on_loss(self) -> bool:
        return self.flag("failOnDataLoss", True)

    def flag(self, name: str, default: bool) -> bool:
        text = self.text(name).lower()
        if text not in ("", "true", "false"):
            raise BadOption(f"{name} is `true` or `false`, not {text!r}")
        return text == "true" if text else default

    def integer(self, name: str, low: int, high: int, what: str = "a whole number") -> int | None:
        text = self.text(name)
        if not text:
            return None
        is_number = text.isascii() and text.isdigit() and len(text) <= DIGITS_MAX
        if not (is_number and low <= int(text) <= high):
            raise BadOption(f"{name} {text!r}: {what} from {low:,} to {high:,} is due")
        return int(text)
