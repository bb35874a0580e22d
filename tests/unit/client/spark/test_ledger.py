"""What of a batch is stored: by the journal's records and the counter, and nothing else.

The last test runs a partition over and over against a model of a cluster, killed anywhere.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flotilla_client.properties import Enveloped
from flotilla_client.spark import ledger as module
from flotilla_client.spark.errors import NotRepeatable, StaleBatch
from flotilla_client.spark.ledger import DIGEST_BYTES, BatchLedger, RowsRecord, decode, digest


def rows_of(*texts: str) -> list[bytes]:
    return [text.encode() for text in texts]


def record_of(batch: int, counter: int, *texts: str, topic: str = "t") -> RowsRecord:
    return RowsRecord(batch, topic, counter, b"".join(map(digest, rows_of(*texts))))


def ledger_of(
    batch: int,
    records: Sequence[RowsRecord],
    last_counter: int,
    was_stored: Callable[[int], bool] = lambda counter: True,
) -> BatchLedger:
    return BatchLedger("t", batch, records, last_counter, was_stored)


def texts_of(rows: Sequence[tuple[bytes, bytes]]) -> list[str]:
    assert all(digest(row) == name for row, name in rows)
    return [row.decode() for row, _ in rows]


def test_a_record_is_read_as_it_was_written() -> None:
    record = record_of(7, 2**52, "a", "b", topic="bücher")
    assert decode(record.encode()) == record
    assert record.count == 2


@pytest.mark.parametrize("cut", [0, 1, 10, -1])
def test_what_is_no_record_is_refused(cut: int) -> None:
    with pytest.raises(ValueError, match="record"):
        decode(record_of(7, 1, "a").encode()[:cut])
    with pytest.raises(ValueError, match="version"):
        decode(b"\x02" + record_of(7, 1, "a").encode()[1:])


def test_a_row_with_properties_is_another_one() -> None:
    assert digest(b"abc") != digest(Enveloped(b"abc"))
    assert len(digest(b"")) == DIGEST_BYTES


def test_a_first_run_stores_everything_in_order() -> None:
    ledger = ledger_of(0, [], 0)
    assert ledger.begins_batch
    assert texts_of(ledger.take(rows_of("b", "a", "b"))) == ["b", "a", "b"]
    record = ledger.record([digest(b"b"), digest(b"a"), digest(b"b")])
    assert (record.counter, record.count, ledger.next_counter) == (1, 3, 4)
    ledger.finish()


def test_what_is_stored_is_skipped_and_what_was_recorded_alone_is_not() -> None:
    ledger = ledger_of(3, [record_of(2, 1, "z"), record_of(3, 2, "a", "b", "c")], 1)
    assert not ledger.begins_batch
    assert texts_of(ledger.take(rows_of("a", "b", "c"))) == ["a", "b", "c"]
    ledger = ledger_of(3, [record_of(2, 1, "z"), record_of(3, 2, "a", "b", "c")], 4)
    assert texts_of(ledger.take(rows_of("a", "b", "c", "d"))) == ["d"]
    assert ledger.skipped == 3
    ledger.finish()


def test_a_later_record_replaces_what_an_earlier_one_says_from_its_counter_on() -> None:
    records = [record_of(3, 1, "a", "b"), record_of(3, 3, "c", "d"), record_of(3, 3, "e")]
    ledger = ledger_of(3, records, 3)  # the second one's rows never came
    assert texts_of(ledger.take(rows_of("a", "b", "c", "d", "e"))) == ["c", "d"]


def test_another_order_is_met_and_equal_rows_are_counted() -> None:
    ledger = ledger_of(3, [record_of(3, 1, "a", "b", "a")], 3)
    assert texts_of(ledger.take(rows_of("x", "a", "a", "a"))) == []  # b was not met yet
    assert texts_of(ledger.take(rows_of("y", "b", "z"))) == ["x", "a", "y", "z"]
    ledger.finish()


def test_a_run_that_lacks_a_stored_row_stores_nothing() -> None:
    ledger = ledger_of(3, [record_of(3, 1, "a", "b")], 2)
    assert texts_of(ledger.take(rows_of("x", "a", "y"))) == []
    assert ledger.unmet == 1
    with pytest.raises(NotRepeatable, match=r"1 of the rows .* \(2\)"):
        ledger.finish()


def test_more_than_may_be_held_back_is_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HELD_BYTES_MAX", 3)
    ledger = ledger_of(3, [record_of(3, 1, "a")], 1)
    assert texts_of(ledger.take(rows_of("xx"))) == []
    assert texts_of(ledger.take(rows_of("yy"))) == ["xx", "yy"]
    assert texts_of(ledger.take(rows_of("a", "zz"))) == ["zz"]
    ledger.finish()


def test_an_earlier_batch_comes_too_late() -> None:
    with pytest.raises(StaleBatch, match="batch 4 of this producer"):
        ledger_of(3, [record_of(3, 1, "a"), record_of(4, 2, "b")], 2)
    with pytest.raises(StaleBatch):
        ledger_of(3, [record_of(4, 2, "b", topic="another")], 1)


def test_batches_of_another_topic_are_not_this_ones() -> None:
    ledger = ledger_of(3, [record_of(3, 1, "a", topic="another")], 0)
    assert not ledger.begins_batch  # its records must not go yet
    assert texts_of(ledger.take(rows_of("a"))) == ["a"]


def test_what_nobody_kept_is_stored_again() -> None:
    records = [record_of(3, 1, "a", "b"), record_of(3, 3, "c")]
    asked: list[int] = []

    def was_stored(counter: int) -> bool:
        asked.append(counter)
        return counter != 3

    ledger = ledger_of(3, records, 3, was_stored)
    assert texts_of(ledger.take(rows_of("a", "b", "c"))) == ["c"]
    assert sorted(asked) == [1, 3]
    assert ledger.next_counter == 4


class ClusterInMemory:
    """A journal, and a topic with counters; PUTs that are cut off came or did not."""

    def __init__(self) -> None:
        self.journal: list[bytes] = []
        self.stored: list[bytes] = []
        self.last_counter = 0


class TaskKilled(Exception):
    pass


def run_once(
    cluster: ClusterInMemory, batch: int, rows: Sequence[bytes], chunk: int, steps: Iterator[str]
) -> None:
    """Do what a task does; `steps` say of each request whether it comes, and is survived."""
    ledger = BatchLedger(
        "t", batch, map(decode, cluster.journal), cluster.last_counter, lambda _: True
    )
    fresh: list[tuple[bytes, bytes]] = []
    for at in range(0, len(rows), chunk):
        fresh += ledger.take(rows[at : at + chunk])
    ledger.finish()
    for at in range(0, len(fresh), chunk):
        part = fresh[at : at + chunk]
        record = ledger.record([name for _, name in part]).encode()
        for effect in (
            lambda record=record: cluster.journal.append(record),
            lambda part=part: cluster.stored.extend(row for row, _ in part),
        ):
            step = next(steps, "done")
            if step != "lost":
                effect()
                cluster.last_counter = len(cluster.stored)
            if step != "done":
                raise TaskKilled


@given(
    batches=st.lists(st.lists(st.sampled_from("abcd"), max_size=12), min_size=1, max_size=4),
    chunk=st.integers(1, 4),
    steps=st.lists(st.sampled_from(["done", "done", "lost", "killed"]), max_size=40),
    shuffles=st.booleans(),
    rng=st.randoms(use_true_random=False),
)
def test_each_row_is_stored_once_whatever_is_killed(
    batches: list[list[str]], chunk: int, steps: list[str], shuffles: bool, rng: random.Random
) -> None:
    cluster, ways = ClusterInMemory(), iter(steps)
    for number, texts in enumerate(batches):
        rows = rows_of(*texts)
        before = len(cluster.stored)
        for _ in range(len(steps) + 1):
            if shuffles:
                rng.shuffle(rows)
            try:
                run_once(cluster, number, rows, chunk, ways)
            except TaskKilled:
                continue
            break
        else:
            pytest.fail("a run that nothing kills does not end")
        run_once(cluster, number, rows, chunk, iter(()))  # as a zombie would
        assert Counter(cluster.stored[before:]) == Counter(rows)
        if not shuffles:
            assert cluster.stored[before:] == rows
    if len(batches) > 1 and batches[-1]:
        with pytest.raises(StaleBatch):
            run_once(cluster, 0, [], chunk, iter(()))
