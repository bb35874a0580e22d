"""Claims about cluster/store/publications.py and the floor of cluster/store/topics.py."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest

from cluster.store import publications
from cluster.store.commands import Advance, Put, Raise, Register, Subscribe, Unsubscribe, encode
from cluster.store.store import CorruptStore, Delivery, Limits, Store
from cluster.store.topics import STALE_CURSORS_MIN
from cluster.wire.levels import LEVEL_OF_PROPERTIES
from flotilla_client.properties import Enveloped, Properties
from flotilla_client.properties import encode as envelope_of
from flotilla_client.protocol import pack, unpack
from tests.unit.store_bench import Bench


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
    assert store._cache_bytes == sum(row.size_bytes for row in store._cache.values()) <= 100


def test_the_row_cache_counts_what_it_knows_of_publications_that_have_no_bytes(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a thousand rows of 65,536 such publications each take a gibibyte."""
    monkeypatch.setattr(publications, "ROWS_CACHED_BYTES_MAX", 100)
    for counter in range(0, 20, 5):
        assert bench.put(counter, *[b""] * 5)[0] == "ok"
    for last_id in range(0, 20, 5):
        bench.store.read("s", "t", last_id, 1, 1_000)
    assert len(bench.store._publications._cache) == 1


def test_what_is_written_is_held_in_memory_no_more(bench: Bench) -> None:
    bench.put(0, b"a")
    bench.store.commit()
    store = bench.store._publications
    assert (store._buffered, store._buffered_keys) == ({}, {})


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


def test_a_row_whose_count_was_flipped_is_damage_when_it_is_to_be_collected(bench: Bench) -> None:
    bench.put(0, b"a")
    bench.put(1, b"b")
    bench.store.commit()
    bench.store._database.write(
        "UPDATE publications SET count = ? WHERE count = 1", [(1 | 1 << 17,)]
    )
    bench.ok(Advance("s", None, {"t": 1}))
    with pytest.raises(CorruptStore, match="does not end at 1"):
        bench.store.collect_garbage(10)


@pytest.mark.parametrize("change", ["count = x'01'", "count = 1.5", "before_bytes = 'x'"])
@pytest.mark.parametrize("is_begun_anew", [True, False])
def test_a_row_whose_numbers_are_none_any_more_is_damage(
    bench: Bench, change: str, is_begun_anew: bool
) -> None:
    """A bit of what SQLite keeps of a value's type makes another one of it."""
    bench.put(0, b"a")
    bench.put(1, b"b")
    bench.store._database.write(f"UPDATE publications SET {change} WHERE count = ?", [(1,)])
    bench.ok(Advance("s", None, {"t": 1}))  # commits all
    read = bench.reopen if is_begun_anew else functools.partial(bench.store.collect_garbage, 10)
    with pytest.raises(CorruptStore, match="no numbers in the row"):
        read()


@pytest.mark.parametrize("change", ["count = 1 | 1 << 17", "count = 0", "before_bytes = 1 << 40"])
def test_an_oldest_row_that_can_t_be_is_damage_at_a_start(bench: Bench, change: str) -> None:
    bench.put(0, b"a")
    bench.store._database.write(f"UPDATE publications SET {change} WHERE count = ?", [(1,)])
    bench.put(1, b"b")  # commits both
    with pytest.raises(CorruptStore, match="behind all there is"):
        bench.reopen()


def test_what_was_put_and_abandoned_within_one_entry_is_collected(bench: Bench) -> None:
    bench.apply(Put("p", None, "t", 0, *pack([b"x"])), Unsubscribe("s", None, "t", None))
    assert bench.store.total_backlog_bytes() == 5
    assert bench.store.collect_garbage(10) == 1
    assert bench.store.total_backlog_bytes() == 0


def test_what_was_put_and_abandoned_in_one_turn_is_collected_before_it_is_committed(
    bench: Bench,
) -> None:
    store = bench.store
    for operation in (Put("p", None, "t", 0, *pack([b"x"])), Unsubscribe("s", None, "t", None)):
        store.apply(store.applied_index + 1, 1, encode(1, [operation]))
    assert store.collect_garbage(10) == 1
    store.commit()
    assert store.total_backlog_bytes() == 0


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


def test_a_floor_is_found_in_a_few_steps_however_many_subscribers_there_are(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "store.db", Limits())
    names = [f"c{i:03}" for i in range(500)]
    bench.apply(*(Register(name, True, None, "") for name in names))
    bench.apply(*(Subscribe(name, None, "t", None) for name in names))
    bench.put(0, *[b"x"] * 500, client="c000")
    bench.apply(*(Advance(name, None, {"t": i}) for i, name in enumerate(names) if i))
    topic = bench.store._topics.active["t"]
    steps = 0

    class Counting(dict[int, int]):
        def __contains__(self, key: object) -> bool:
            nonlocal steps
            steps += 1
            return super().__contains__(key)

    topic.cursors = Counting(topic.cursors)
    for i, name in enumerate(names[:-1]):  # each was alone at the floor
        bench.ok(Unsubscribe(name, None, "t", None))
        assert topic.floor_id == i + 1
    assert steps < 3 * len(names)
    bench.store.close()


def test_cursors_that_nobody_is_at_do_not_pile_up(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "store.db", Limits())
    for name in ("slow", "fast"):
        bench.apply(Register(name, True, None, ""), Subscribe(name, None, "t", None))
    bench.put(0, *[b"x"] * 300, client="fast")
    topic = bench.store._topics.active["t"]
    for cursor in range(1, 301):
        bench.ok(Advance("fast", None, {"t": cursor}))
        assert len(topic.heap) <= 2 * len(topic.cursors) + STALE_CURSORS_MIN + 1
        assert topic.floor_id == 0
    bench.ok(Advance("slow", None, {"t": 299}))
    assert topic.floor_id == 299
    bench.store.close()


def test_a_topic_that_comes_back_before_its_garbage_is_gone_is_counted_once(bench: Bench) -> None:
    for counter in range(3):
        bench.put(counter, bytes(100))
    bench.ok(Unsubscribe("s", None, "t", None))
    bench.ok(Subscribe("s", None, "t", None))
    assert bench.store.backlog_bytes("t") == 3 * 104, "on this node's disk until it is collected"
    bench.put(3, bytes(10))
    assert bench.store.collect_garbage(100) == 3
    assert bench.store.backlog_bytes("t") == bench.store.total_backlog_bytes() == 14
    assert bench.get("s") == [bytes(10)]


def test_the_floor_moves_when_the_slowest_subscriber_leaves(bench: Bench) -> None:
    bench.ok(Subscribe("p", None, "t", None))
    for counter in range(3):
        bench.put(counter, bytes(100))
    bench.ok(Advance("p", None, {"t": 3}))
    assert bench.store.collect_garbage(100) == 0
    bench.ok(Unsubscribe("s", None, "t", None))
    assert bench.store.collect_garbage(100) == 3
    assert bench.store.total_backlog_bytes() == 0


def test_the_cache_counts_what_leaves_it_and_not_what_comes(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publications, "ROWS_CACHED_BYTES_MAX", 100)
    for counter, size in enumerate((90, 10, 60, 5, 80, 1)):
        bench.put(counter, bytes(size))
    for last_id in (0, 1, 2, 3, 4, 5, 2, 4, 0):
        bench.store.read("s", "t", last_id, 1, 1_000)
        rows = bench.store._publications
        assert rows._cache_bytes == sum(row.size_bytes for row in rows._cache.values())


def test_of_several_rows_any_has_properties(tmp_path: Path) -> None:
    bench = Bench.started(tmp_path / "store.db")
    bench.ok(Raise(LEVEL_OF_PROPERTIES))
    enveloped = Enveloped(envelope_of(Properties("k")) + b"x")
    bench.ok(Put("p", None, "t", 1, *pack([enveloped]), has_properties=True))
    bench.put(2, b"y")
    delivery = bench.store.read("s", "t", None, 10, 1000)
    assert isinstance(delivery, Delivery), delivery
    assert (delivery.count, delivery.has_properties) == (2, True)
