"""What of a partition of a batch is stored, so that nothing is stored twice.

What lives here: the records of a producer's journal, and what follows from them and from the
counter that the cluster has of the producer. What must not: Spark, connections.

Before rows are published, a record of them stands in the journal, a topic of the producer's own:
the batch, the counter of the first row, a digest of each. So after any crash the records and the
last counter say exactly which rows are stored: those recorded up to that counter. What is recorded
beyond it was never sent, or never came; the next record begins at its counter and replaces it. The
rows of a record are one PUT, so that they are taken, and kept or not, as a whole.
"""

from __future__ import annotations

import hashlib
import struct
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from flotilla_client.properties import Enveloped
from flotilla_client.spark.errors import NotRepeatable, StaleBatch

VERSION: Final = 1
DIGEST_BYTES: Final = 16  # two rows of a partition with one digest: not in the life of a cluster
CHUNK_ROWS: Final = 16_384  # of a record: 256 KiB of digests
HELD_BYTES_MAX: Final = 256 * 1024 * 1024  # of rows that wait for those stored before to be met
_HEAD: Final = struct.Struct("<BQQH")  # version, batch, counter, bytes of the topic's name
_DIGEST: Final = partial(hashlib.blake2b, digest_size=DIGEST_BYTES, usedforsecurity=False)
_WITH_PROPERTIES: Final = partial(_DIGEST, person=b"properties")


@dataclass(frozen=True, slots=True)
class RowsRecord:
    """Rows that are about to be published: the counter of the first, a digest of each."""

    batch: int
    topic: str
    counter: int
    digests: bytes

    @property
    def count(self) -> int:
        """How many rows it is of."""
        return len(self.digests) // DIGEST_BYTES

    def encode(self) -> bytes:
        """Return it as it stands in the journal."""
        name = self.topic.encode()
        return _HEAD.pack(VERSION, self.batch, self.counter, len(name)) + name + self.digests


def decode(data: bytes) -> RowsRecord:
    """Return a record of the journal. Raises ValueError for what is none."""
    if len(data) < _HEAD.size or data[0] != VERSION:
        raise ValueError(f"no record of a journal of version {VERSION}")
    _, batch, counter, name_bytes = _HEAD.unpack_from(data)
    start = _HEAD.size + name_bytes
    if start > len(data) or (len(data) - start) % DIGEST_BYTES:
        raise ValueError(f"a record of {len(data)} bytes that was cut off")
    return RowsRecord(batch, data[_HEAD.size : start].decode(), counter, data[start:])


def digest(row: bytes) -> bytes:
    """Return what a row is known by: its bytes, and whether they begin with properties."""
    return (_WITH_PROPERTIES if type(row) is Enveloped else _DIGEST)(row).digest()


class BatchLedger:
    """Which rows of a batch's partition still have to be stored, and under which counters.

    `records`: the journal, in its order. `last_counter`: of the producer, as the cluster has it.
    `was_stored(counter)`: whether what the cluster took under it was kept: where nobody subscribed
    it was acknowledged, and was not. Raises StaleBatch if a later batch was begun.
    """

    def __init__(
        self,
        topic: str,
        batch: int,
        records: Iterable[RowsRecord],
        last_counter: int,
        was_stored: Callable[[int], bool],
    ) -> None:
        self.topic, self.batch = topic, batch
        self.next_counter = last_counter + 1
        self.skipped = 0
        self.begins_batch = True  # no record of it stands in the journal yet, of any topic
        stored: list[RowsRecord] = []
        for record in records:
            if record.batch > batch:
                raise StaleBatch(
                    f"batch {batch} comes too late: batch {record.batch} of this producer was"
                    " begun. An earlier run is over; or a checkpoint was deleted or put back: then"
                    " a producer of another name begins anew"
                )
            if record.batch == batch:
                self.begins_batch = False
                if record.topic == topic:
                    stored.append(record)
        self._unmet: Counter[bytes] = Counter()
        beyond = self.next_counter  # a later record replaces what an earlier one says from there on
        for record in reversed(stored):
            count = max(0, min(record.count, beyond - record.counter))
            if count and was_stored(record.counter):
                self._unmet.update(_digests(record.digests[: count * DIGEST_BYTES]))
            beyond = min(beyond, record.counter)
        self._unmet_count = self._unmet.total()
        self._held: list[bytes] = []
        self._held_bytes = 0

    @property
    def unmet(self) -> int:
        """How many rows are stored that this run has not brought yet."""
        return self._unmet_count

    def take(self, rows: Iterable[bytes]) -> Sequence[tuple[bytes, bytes]]:
        """Take rows that this run brings; return those to be stored now, each with its digest.

        While rows are stored that were not met, others are held back, up to HELD_BYTES_MAX: if one
        of the stored never comes, nothing more is to be stored.
        """
        named = [(row, digest(row)) for row in rows]
        if not self._unmet_count:
            return named
        unmet = self._unmet
        for row, name in named:
            if unmet.get(name, 0):
                unmet[name] -= 1
                self._unmet_count -= 1
                self.skipped += 1
            else:
                self._held.append(row)
                self._held_bytes += len(row)
        if self._unmet_count and self._held_bytes <= HELD_BYTES_MAX:
            return ()
        released = [(row, digest(row)) for row in self._held]
        self._held.clear()
        self._held_bytes = 0
        return released

    def record(self, names: Iterable[bytes]) -> RowsRecord:
        """Return the record of rows that are stored next, by their digests."""
        record = RowsRecord(self.batch, self.topic, self.next_counter, b"".join(names))
        self.next_counter += record.count
        return record

    def finish(self) -> None:
        """Raise NotRepeatable if the run has not brought all that was stored before."""
        if self._unmet_count:
            raise NotRepeatable(
                f"batch {self.batch} runs again, and {self._unmet_count} of the rows that this"
                f" partition stored before ({self._unmet_count + self.skipped}) are not among those"
                " that it has now. A batch must bring the same rows to the same partitions each"
                " time; docs/spark.md says what breaks that, and what to do"
            )


def _digests(data: bytes) -> Iterable[bytes]:
    return (data[at : at + DIGEST_BYTES] for at in range(0, len(data), DIGEST_BYTES))
