"""Claims about what is delayed: when it comes, once, in which order, and what it counts as."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from chaos.simulation.checks.reference import Reference
from cluster.node.reaper import Reaper
from cluster.store import delayed
from cluster.store.commands import (
    Advance,
    DamagedEntry,
    DeleteTopic,
    Hear,
    MakeGroup,
    Operation,
    Purge,
    Put,
    Raise,
    Register,
    SetTopic,
    Stamp,
    Subscribe,
    SubscribePattern,
    Take,
    Unsubscribe,
    decode,
    encode,
    level_of,
)
from cluster.store.outcomes import Delivery, Outcome
from cluster.store.store import CorruptStore, Limits, Store
from cluster.store.tables import Database
from cluster.wire.levels import LEVEL_OF_DELAY
from flotilla_client.policies import parse_keep
from flotilla_client.properties import Properties
from flotilla_client.properties import encode as encode_properties
from flotilla_client.protocol import Enveloped, pack, text_of, unpack
from tests.seeds import seeds
from tests.unit.model_store import MEMBERS, answer_of
from tests.unit.store_bench import Bench

LIMITS = Limits()


def later(text: bytes, delay_ms: int, expires_ms: int = 0) -> bytes:
    envelope = encode_properties(Properties(None, {}, expires_ms, delay_ms))
    return Enveloped(envelope + text) if envelope else text


def putting(counter: int, *publications: bytes, topic: str = "t", is_delayed: bool = True) -> Put:
    return Put("p", None, topic, counter, *pack(publications), None, is_delayed, False, is_delayed)


class DelayBench(Bench):
    """A store at the level of delays with p, who publishes, and s, who subscribes to t."""

    now_ms = 0
    counter = 0

    @classmethod
    def at_level(cls, path: Path) -> DelayBench:
        bench = cls(path, LIMITS)
        bench.ok(Raise(LEVEL_OF_DELAY))
        for client in ("p", "s"):
            bench.ok(Register(client, True, None, ""))
        bench.ok(Subscribe("s", None, "t", None))
        return bench

    def publish(self, *publications: bytes) -> dict[str, Any]:
        self.counter += len(publications)
        return self.ok(putting(self.counter - len(publications) + 1, *publications))

    def passing(self, ms: int) -> None:
        self.now_ms += ms
        self.apply(Hear([]))

    def texts(self, topic: str = "t") -> list[bytes]:
        """Return what s is given, without properties."""
        return [text_of(each) for each in self.get("s", topic=topic)]

    @property
    def waiting(self) -> int:
        row = self.store.topic_row("t")
        assert row is not None
        return int(row["delayed"])


@pytest.fixture
def bench(tmp_path: Path) -> DelayBench:
    return DelayBench.at_level(tmp_path / "store.db")


def test_what_is_delayed_comes_when_it_is_due_and_not_before(bench: DelayBench) -> None:
    told = bench.publish(later(b"a", 100))
    assert told == {"id": 1, "count": 1, "duplicate": False, "stored": True, "delayed": True}
    assert (bench.texts(), bench.waiting) == ([], 1)
    bench.passing(99)
    assert (bench.texts(), bench.waiting) == ([], 1)
    bench.passing(1)
    assert (bench.texts(), bench.waiting) == ([b"a"], 0)
    bench.passing(1_000)
    assert bench.texts() == [b"a"]


def test_it_comes_in_the_order_of_due_times_and_behind_what_was_put_meanwhile(
    bench: DelayBench,
) -> None:
    bench.publish(later(b"slow", 200), later(b"first", 50), later(b"second", 50))
    bench.passing(10)
    bench.publish(later(b"third", 40))
    bench.put(1, b"at once")
    bench.passing(1_000)
    assert bench.texts() == [b"at once", b"first", b"second", b"third", b"slow"]


def test_counters_of_what_is_delayed_are_its_own_and_a_repeated_put_is_stored_once(
    bench: DelayBench,
) -> None:
    bench.put(1, b"now")
    first = bench.publish(later(b"a", 100), later(b"b", 100))
    again = bench.ok(putting(1, later(b"a", 100), later(b"b", 100)))
    assert again == first | {"duplicate": True}
    bench.passing(100)
    assert bench.ok(putting(1, later(b"a", 100), later(b"b", 100))) == again
    bench.passing(1_000)
    assert bench.texts() == [b"now", b"a", b"b"]
    assert bench.one(putting(4, later(b"c", 1)))[0] == "counter_gap"
    assert bench.store.counters("p", "", 10) == {"t": 1, "t\x1fdelayed": 2}


def test_it_waits_on_the_disk_and_a_damaged_row_stops_the_node(bench: DelayBench) -> None:
    bench.publish(later(b"a", 100), later(b"b", 200))
    bench.restart()
    assert bench.waiting == 2
    bench.passing(100)
    assert bench.texts() == [b"a"]
    bench.restart()
    bench.store._database.write("UPDATE delayed SET due_ms = due_ms - 1", [()])
    with pytest.raises(CorruptStore, match="checksum"):
        bench.passing(100)


def test_an_expiry_begins_when_it_comes(bench: DelayBench) -> None:
    bench.publish(later(b"a", 100, expires_ms=50))
    bench.passing(100)
    assert bench.texts() == [b"a"]
    bench.passing(49)
    assert bench.texts() == [b"a"]
    bench.passing(1)
    assert not isinstance(bench.store.read("s", "t", None, 10, 1_000), Delivery)


def test_where_nobody_wants_it_when_it_is_due_it_is_gone(bench: DelayBench) -> None:
    bench.publish(later(b"a", 100), later(b"b", 200))
    bench.ok(Unsubscribe("s", None, "t", None))
    bench.passing(100)
    bench.ok(Subscribe("s", None, "t", None))
    bench.passing(100)
    assert bench.texts() == [b"b"]


def test_where_nobody_subscribes_nothing_is_stored_and_a_pattern_makes_the_topic(
    bench: DelayBench,
) -> None:
    told = bench.ok(putting(1, later(b"a", 100), topic="x.y"))
    assert (told["stored"], told["id"]) == (False, 0)
    bench.ok(SubscribePattern("s", None, "x.*", None, "new", 0))
    assert bench.ok(putting(2, later(b"b", 100), topic="x.y"))["stored"] is True
    bench.passing(100)
    assert bench.texts("x.y") == [b"b"]


def test_what_waits_goes_with_its_topic_and_its_rows_in_steps(
    bench: DelayBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delayed, "DROPPED_ROWS_MAX", 2)
    bench.publish(*(later(b"x", ms) for ms in (10, 20, 30, 40, 50)))
    bench.ok(DeleteTopic("t", True, False))
    bench.ok(Subscribe("s", None, "t", None))
    assert bench.waiting == 0
    assert bench.store.delayed.has_work
    bench.restart()
    bench.publish(later(b"new", 5))
    bench.passing(5)
    assert not bench.store.delayed.has_work
    bench.passing(1_000)
    assert bench.texts() == [b"new"]
    assert bench.store.delayed.due_ms == delayed.NEVER
    assert bench.store.total_backlog_bytes() == bench.store.backlog_bytes("t")


def test_to_delete_a_topic_takes_no_look_at_all_that_waits_for_it(
    bench: DelayBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.publish(*(later(b"x", ms) for ms in (10, 20, 30)))
    asked: list[str] = []
    query = Database.query

    def noted(database: Database, sql: str, arguments: Any = ()) -> list[Any]:
        asked.append(sql)
        return query(database, sql, arguments)

    monkeypatch.setattr(Database, "query", noted)
    bench.ok(DeleteTopic("t", True, False))
    assert bench.store.delayed.count == 0
    assert [sql for sql in asked if "FROM delayed" in sql and "sum(" in sql] == []


@pytest.mark.parametrize(("rows_max", "ms"), [(2, 1), (0, 20)])
def test_rows_that_are_gone_to_the_last_one_hold_up_nothing(
    bench: DelayBench, monkeypatch: pytest.MonkeyPatch, rows_max: int, ms: int
) -> None:
    """Else a node that was started since is a step ahead with the rows of the next topic."""
    monkeypatch.setattr(delayed, "DROPPED_ROWS_MAX", rows_max)
    bench.publish(later(b"x", 10), later(b"y", 20))
    bench.ok(DeleteTopic("t", True, False))
    assert bench.store.delayed.has_work
    bench.passing(ms)
    assert not bench.store.delayed.has_work
    assert bench.store.delayed._lanes == {}


def test_what_is_due_of_a_topic_that_is_gone_leaves_nothing_to_remove_of_it(
    bench: DelayBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delayed, "DROPPED_ROWS_MAX", 0)  # rows of the first topic stay
    bench.ok(Subscribe("s", None, "u", None))
    bench.publish(later(b"x", 10_000))
    bench.ok(putting(2, later(b"y", 20), topic="u"))
    bench.ok(DeleteTopic("t", True, False))
    bench.ok(DeleteTopic("u", True, False))
    assert [lane.name for lane in bench.store.delayed._dropped.values()] == ["t", "u"]
    bench.passing(20)
    assert [lane.name for lane in bench.store.delayed._dropped.values()] == ["t"]


def test_whose_bytes_went_with_a_topic_is_known_each_time_it_goes(
    bench: DelayBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delayed, "DROPPED_ROWS_MAX", 0)  # rows of the first go are still there
    waiting, bytes_left = bench.store.delayed, []
    for counter in (1, 2):
        put = putting(counter, later(b"a", 10_000))
        put.principal = "ann"
        bench.apply(put)
        bench.ok(DeleteTopic("t", True, False))
        bytes_left.append((waiting.count, waiting.size_bytes, dict(waiting.bytes_of)))
        bench.ok(Subscribe("s", None, "t", None))
    assert bytes_left == [(0, 0, {}), (0, 0, {})]


def test_when_its_rows_are_gone_nothing_of_a_topic_is_due_or_known(bench: DelayBench) -> None:
    bench.publish(later(b"a", 100))
    bench.ok(DeleteTopic("t", True, False))
    bench.passing(1)
    assert (bench.store.delayed.has_work, bench.store.delayed.due_ms) == (False, delayed.NEVER)
    assert bench.store.delayed._lanes == {}


def test_what_waits_has_its_ids_whatever_is_put_meanwhile(bench: DelayBench) -> None:
    bench.restart(replace(LIMITS, id_max=5))
    bench.publish(later(b"a", 100), later(b"b", 100))
    assert bench.put(1, b"1", b"2", b"3")[0] == "ok"
    assert bench.put(4, b"4")[0] == "too_many"
    assert bench.one(putting(3, later(b"c", 100)))[0] == "too_many"
    bench.passing(100)
    assert bench.texts() == [b"1", b"2", b"3", b"a", b"b"]


def test_a_purge_leaves_what_waits(bench: DelayBench) -> None:
    bench.put(1, b"now")
    bench.publish(later(b"a", 100))
    bench.ok(Purge("t", 1, False))
    bench.passing(100)
    assert [text_of(each) for each in bench.get("s", 1)] == [b"a"]


def test_an_entry_takes_so_many_rows_and_the_next_one_more(
    bench: DelayBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delayed, "DUE_ROWS_MAX", 2)
    bench.publish(*(later(b"%d" % place, 10 + place) for place in range(5)))
    bench.passing(100)
    assert (len(bench.texts()), bench.waiting) == (2, 3)
    bench.passing(0)
    bench.passing(0)
    assert bench.texts() == [b"0", b"1", b"2", b"3", b"4"]


def test_an_entry_takes_so_many_bytes_and_a_row_at_least(
    bench: DelayBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delayed, "DUE_BYTES_MAX", 1)
    bench.publish(*(later(b"%d" % place, 10 + place) for place in range(3)))
    bench.passing(100)
    assert (bench.texts(), bench.waiting) == ([b"0"], 2)
    bench.passing(0)
    assert (bench.texts(), bench.waiting) == ([b"0", b"1"], 1)


def test_what_waits_counts_as_held_by_its_topic(bench: DelayBench) -> None:
    bench.ok(SetTopic("t", parse_keep("forever") | {"max_bytes": 100}, True, False))
    bench.publish(later(b"x" * 50, 100))
    bench.counter += 1
    code, details = bench.one(putting(2, later(b"x" * 50, 100)))
    assert code == "backlog_full", details
    assert bench.put(1, b"x" * 50)[0] == "backlog_full"
    bench.passing(100)
    assert bench.put(1, b"x" * 10)[0] == "ok"


def test_a_topic_that_drops_its_oldest_drops_nothing_that_waits(bench: DelayBench) -> None:
    policy = parse_keep("forever") | {"max_bytes": 150, "when_full": "drop-oldest"}
    bench.ok(SetTopic("t", policy, True, False))
    bench.publish(later(b"x" * 50, 100))
    for counter in range(1, 9):
        assert bench.put(counter, b"y" * 40)[0] == "ok"
    assert bench.one(putting(2, later(b"x" * 100, 100)))[0] == "backlog_full"
    bench.passing(100)
    row = bench.store.topic_row("t")
    assert row is not None
    assert row["last_id"] == 9
    assert row["held_bytes"] <= 150


def test_whose_bytes_wait_is_known_behind_a_restart(bench: DelayBench) -> None:
    put = putting(1, later(b"a", 100))
    put.principal = "ann"
    bench.apply(put)
    size_bytes = len(put.lengths) + len(put.data)
    assert bench.store.unread_bytes_of("ann") == size_bytes
    bench.restart()
    assert bench.store.unread_bytes_of("ann") == size_bytes
    bench.passing(100)
    assert bench.store.unread_bytes_of("ann") == size_bytes
    assert bench.store.delayed.bytes_of == {}


def test_a_leader_sees_to_an_entry_when_something_is_due(bench: DelayBench) -> None:
    reaper = Reaper(0, lambda *_, **__: None)

    def proposed(now_ms: int) -> bool:
        return bool(reaper.operations(bench.store, list, 1, now_ms / 1000))

    assert not proposed(1_000_000)
    bench.publish(later(b"a", 100))
    assert not proposed(99)
    assert proposed(100)
    assert not proposed(101), "one is under way"
    bench.passing(99)
    assert not proposed(99)
    assert reaper.operations(bench.store, list, 2, 0.0), "a new leader has the log's time go on"


def test_an_entry_with_a_delay_takes_its_level_and_is_read_strictly() -> None:
    put = putting(1, later(b"a", 100))
    payload = encode(5, [put], 7)
    assert level_of(payload) == LEVEL_OF_DELAY
    assert decode(payload) == (Stamp(5, 7), [put])
    mixed = putting(1, later(b"a", 100), b"plain")
    with pytest.raises(DamagedEntry, match="some publications have none"):
        decode(encode(5, [mixed], 7))


@pytest.mark.parametrize("seed", seeds(3, 6))
def test_store_and_reference_agree_whatever_comes(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delayed, "DUE_ROWS_MAX", 3)
    monkeypatch.setattr(delayed, "DROPPED_ROWS_MAX", 2)
    rng = random.Random(seed)
    first, second = (Store.open(tmp_path / f"{name}.db", MEMBERS, LIMITS) for name in "ab")
    reference, counters, ms = Reference(LIMITS), dict[tuple[str, bool], int](), 0
    payloads: list[bytes] = []
    for index in range(1, 400):
        ms += rng.choice((0, 1, 10, 100))
        operations = _operations(rng, index, counters)
        payloads.append(encode(ms, operations, 1 + ms))
        told = reference.apply(index, operations, 1, Stamp(ms, 1 + ms))
        _check_told(first.apply(index, 1, payloads[-1]), told)
        second.apply(index, 1, payloads[-1])
        for name in ("t", "u"):
            assert [first.topic_row(name)] == (reference.topic_rows_at(name, index) or [None])
            _check_read(first, reference, name)
        if rng.random() < 0.3:
            first.commit()
        if rng.random() < 0.1:  # what was not committed is applied again
            second.close()
            second = Store.open(tmp_path / "b.db", {}, LIMITS)
            for again in range(second.applied_index + 1, index + 1):
                second.apply(again, 1, payloads[again - 1])
        if rng.random() < 0.3:
            second.collect_garbage(100)
            second.commit()
        if index % 20 == 0:
            assert first.digest() == second.digest()
    assert sum(len(topic.publications) for topic in reference.topics.values()) > 50
    first.close()
    second.close()


def _check_told(outcomes: list[Outcome], told: list[Any]) -> None:
    for outcome, result in zip(outcomes, told, strict=True):
        code, body = answer_of(outcome)
        if result is not None:
            assert (code if code != "ok" else "") == result[0]
            assert body == result[1] or "duplicate" not in result[1]


def _check_read(store: Store, reference: Reference, name: str) -> None:
    for client_id in store.subscribers(name):
        got = store.read(client_id, name, None, 100, 1_000_000)
        if isinstance(got, Delivery) and got.count:
            kept = reference.topics[name].publications
            ids = range(got.first_id, got.first_id + got.count)
            assert unpack(got.lengths, got.data) == [kept[id_][1] for id_ in ids]


def _operations(
    rng: random.Random, index: int, counters: dict[tuple[str, bool], int]
) -> list[Operation]:
    if index == 1:
        return [
            Raise(LEVEL_OF_DELAY),
            *(Register(each, True, None, "") for each in "psq"),
            *(Subscribe("s", None, each, None) for each in "tu"),
        ]
    topic, chance = rng.choice("tu"), rng.random()
    if chance < 0.6:
        is_delayed = rng.random() < 0.7
        counter = counters.get((topic, is_delayed), 0) + 1
        delays = (5, 50, 50, 500, 5_000) if is_delayed else (0,)
        batch = [
            later(b"%d" % rng.randrange(99), rng.choice(delays), rng.choice((0, 0, 100)))
            for _ in range(rng.randint(1, 4))
        ]
        counters[topic, is_delayed] = counter + len(batch) - 1
        put = putting(counter, *batch, topic=topic, is_delayed=is_delayed)
        put.has_properties = any(type(each) is Enveloped for each in batch)
        put.has_expiry = put.has_properties
        return [put]
    if chance < 0.7:
        return [rng.choice((Subscribe, Unsubscribe))("q", None, topic, None)]
    if chance < 0.75:
        return [rng.choice((Subscribe, Unsubscribe))("s", None, topic, None)]
    if chance < 0.8:
        return [DeleteTopic(topic, True, False), Subscribe("s", None, topic, None)]
    if chance < 0.83:
        return [MakeGroup("s", None, topic, None, "g", 150, 0, "")]
    if chance < 0.86:
        return [Take("q", None, topic, "g", None, 3, 1_000, None, [], [], [])]
    if chance < 0.9:
        keep = parse_keep(rng.choice(("unread", "forever", "5", "64B")))
        return [SetTopic(topic, keep, rng.random() < 0.5, False)]
    if chance < 0.95:
        return [Advance("s", None, {topic: rng.randrange(3)}, placed={})]
    return [Hear([])]
