"""How the rows of a partition become requests, and records of these before them."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from flotilla_client.operations import Ask, Steps
from flotilla_client.protocol import Request
from flotilla_client.spark import sink
from flotilla_client.spark.ledger import BatchLedger, RowsRecord, decode, digest
from flotilla_client.spark.sink import _Writer


class JournalInMemory:
    """In a client's place: its journal, and how many rows each request had."""

    def __init__(self) -> None:
        self.records: list[RowsRecord] = []
        self.requests: list[int] = []

    def next_counter(self, topic: str) -> int:
        return sum(self.requests) + 1

    def publish(self, journal: str, record: bytes) -> Any:
        self.records.append(decode(record))
        return SimpleNamespace(id=len(self.records))

    def seek(self, journal: str, start: int) -> None:
        assert start == 1, "a batch begins with its first record"

    def publish_many(self, topic: str, rows: list[bytes], *, allow_unheard: bool) -> None:
        self.requests.append(len(rows))


@pytest.mark.parametrize(
    ("rows_max", "bytes_max", "requests"), [(3, 1_000, [3, 3, 3, 1]), (100, 45, [4, 4, 2])]
)
def test_a_request_has_so_many_rows_and_bytes_and_a_record_before_it(
    monkeypatch: pytest.MonkeyPatch, rows_max: int, bytes_max: int, requests: list[int]
) -> None:
    monkeypatch.setattr(sink, "CHUNK_ROWS", rows_max)
    monkeypatch.setattr(sink, "BATCH_BYTES_MAX", bytes_max)
    client: Any = JournalInMemory()
    ledger = BatchLedger("t", 5, [], 0, lambda counter: True)
    writer = _Writer(client, "journal", ledger, allows_unheard=False)
    rows = [b"%010d" % number for number in range(10)]
    writer.store([(row, digest(row)) for row in rows])
    writer.flush()
    assert client.requests == requests
    assert [record.count for record in client.records] == requests
    assert [record.counter for record in client.records] == [
        1 + sum(requests[:place]) for place in range(len(requests))
    ]
    assert b"".join(record.digests for record in client.records) == b"".join(map(digest, rows))
    assert writer.stored == 10


def test_a_row_over_the_bound_goes_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sink, "BATCH_BYTES_MAX", 10)
    client: Any = JournalInMemory()
    writer = _Writer(client, "journal", BatchLedger("t", 5, [], 0, lambda counter: True), False)
    for row in (b"a", b"b" * 20, b"c"):
        writer.store([(row, digest(row))])
    writer.flush()
    assert client.requests == [1, 1, 1]


@pytest.mark.parametrize(("stored", "counts"), [(True, True), (False, False), (None, True)])
def test_what_was_taken_too_long_ago_to_be_known_counts_as_kept(
    stored: bool | None, counts: bool
) -> None:
    def asked(ask: Ask) -> Steps[Any]:
        yield ask
        body = {"duplicate": True, "stored": stored}
        return SimpleNamespace(reply=SimpleNamespace(body=body))

    def run(steps: Steps[bool]) -> bool:
        ask = next(steps)
        assert isinstance(ask, Ask)
        assert ask.request.body == {"counter": 7, "count": 1}
        with pytest.raises(StopIteration) as ended:
            steps.send(None)
        return bool(ended.value.value)

    request = partial(Request, client_id="c")
    operations = SimpleNamespace(
        asked=asked, request=lambda kind, topic, body: request(kind, "", topic, body=body)
    )
    client: Any = SimpleNamespace(_operations=operations, _run=run)
    assert sink._was_stored(client, "t", 7) is counts
