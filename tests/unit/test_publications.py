"""Claims about cluster/publications.py and the floor of cluster/topics.py."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster import publications
from cluster.commands import Advance, Put, Register, Subscribe, Unsubscribe
from cluster.store import Delivery, Limits, Store
from flotilla.protocol import pack, unpack
from tests.unit.store_bench import Bench


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    """A cluster with the client p, and s subscribed to t."""
    bench = Bench.started(tmp_path / "store.db")
    yield bench
    bench.store.close()


def test_a_delivery_keeps_both_limits_but_never_starves(bench: Bench) -> None:
    bench.put(0, b"aaaa", b"bb", b"cc")
    bench.put(3, b"dd")

    def read(last_id: int, count: int, size: int) -> list[bytes]:
        delivery = bench.store.read("s", "t", last_id, count, size)
        assert isinstance(delivery, Delivery)
        assert delivery.first_id == last_id + 1
        return unpack(delivery.lengths, delivery.data)

    assert read(0, 9, 1) == [b"aaaa"]
    assert read(0, 9, 6) == [b"aaaa", b"bb"]
    assert read(0, 1, 99) == [b"aaaa"]
    assert read(1, 9, 5) == [b"bb", b"cc"]
    assert read(1, 9, 6) == [b"bb", b"cc", b"dd"]  # across rows
    assert read(0, 4, 99) == [b"aaaa", b"bb", b"cc", b"dd"]


def test_a_read_joins_a_bounded_number_of_rows(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publications, "READ_ROWS_MAX", 3)
    for counter in range(5):
        bench.put(counter, b"%d" % counter)
    assert bench.get("s") == [b"0", b"1", b"2"]


def test_the_row_cache_stays_within_its_bytes(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publications, "ROWS_CACHED_BYTES_MAX", 100)
    for counter in range(9):
        bench.put(counter, bytes(40))
    for _ in range(2):
        assert bench.get("s") == [bytes(40)] * 9
    store = bench.store._publications
    assert store._cache_bytes == sum(len(row.data) for row in store._cache.values()) <= 100


def test_rows_go_when_every_subscriber_has_passed_them(bench: Bench) -> None:
    bench.ok(Subscribe("p", None, "t", None))
    bench.put(0, b"a", b"b")
    bench.put(2, b"c")
    bench.ok(Advance("s", None, {"t": 3}))
    assert bench.store.collect_garbage(10) == 0
    bench.ok(Advance("p", None, {"t": 1}))
    assert bench.store.collect_garbage(10) == 0  # half of the row lives
    bench.ok(Advance("p", None, {"t": 2}))
    assert bench.store.collect_garbage(10) == 1
    assert bench.store.backlog_bytes("t") == bench.store.total_backlog_bytes() == 5
    bench.ok(Unsubscribe("p", None, "t", None))
    assert bench.store.collect_garbage(10) == 1
    assert bench.store.backlog_bytes("t") == bench.store.total_backlog_bytes() == 0


def test_what_was_put_and_abandoned_within_one_entry_is_collected(bench: Bench) -> None:
    bench.apply(Put("p", None, "t", 0, *pack([b"x"])), Unsubscribe("s", None, "t", None))
    assert bench.store.total_backlog_bytes() == 5
    assert bench.store.collect_garbage(10) == 1
    assert bench.store.total_backlog_bytes() == 0


def test_garbage_is_collected_in_bounded_steps(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    for counter in range(10):
        bench.put(counter, bytes(96))
    bench.ok(Advance("s", None, {"t": 9}))
    assert bench.store.collect_garbage(2) == 2
    monkeypatch.setattr(publications, "COLLECT_BYTES_MAX", 300)
    assert bench.store.collect_garbage(100) == 3
    bench.store.commit()
    bench.store.close()
    bench.store = Store.open(bench.path, {})  # the rest is found again
    assert bench.store.total_backlog_bytes() == 500
    assert bench.store.collect_garbage(100) == 3
    assert bench.store.collect_garbage(100) == 1
    assert bench.store.collect_garbage(100) == 0
    assert bench.store.total_backlog_bytes() == 100


def test_the_floor_is_searched_only_when_the_last_subscriber_left_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(tmp_path / "store.db", Limits())
    names = [f"c{i}" for i in range(50)]
    for name in names:
        bench.apply(Register(name, True, None, ""), Subscribe(name, None, "t", None))
    bench.put(0, b"x", client="c0")
    topic = bench.store._topics.active["t"]
    searches: list[int] = []
    find_floor = type(topic).find_floor

    def count(self: Any) -> None:
        searches.append(1)
        find_floor(self)

    monkeypatch.setattr(type(topic), "find_floor", count)
    for name in names:
        bench.ok(Advance(name, None, {"t": 1}))
    assert len(searches) == 1
    assert (topic.floor_id, topic.at_floor) == (1, 50)
    bench.store.close()
