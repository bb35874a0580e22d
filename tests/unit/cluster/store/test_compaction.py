"""Claims about compaction: what goes, who is told what, and that it is so on every node."""

from __future__ import annotations

import os
import random
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from chaos.simulation.checks.reference import Reference
from cluster.store import compaction, publications, rows, tables
from cluster.store.commands import (
    Advance,
    DeleteTopic,
    DropGroup,
    Hear,
    MakeGroup,
    Operation,
    Purge,
    Put,
    Raise,
    Register,
    Seek,
    SeekGroup,
    SetTopic,
    Stamp,
    Subscribe,
    Take,
    Unsubscribe,
    encode,
    level_of,
)
from cluster.store.outcomes import Delivery, Looked, Refused, compacted
from cluster.store.store import CorruptStore, Limits, Store
from cluster.wire.levels import LEVEL_OF_COMPACTION, LEVEL_OF_TOPICS
from flotilla_client.error_table import ProtocolError
from flotilla_client.policies import Policy, check_parts, parse_keep
from flotilla_client.properties import Enveloped, Properties
from flotilla_client.properties import encode as encode_properties
from flotilla_client.protocol import pack, unpack
from tests.seeds import seeds
from tests.unit.model_store import MEMBERS, answer_of
from tests.unit.store_bench import Bench, lose_the_last_of_three_rows

LIMITS = Limits()
COMPACT = {"keep": "forever", "amount": 0, "compact": True}


def of_key(key: str | bytes | None, text: str, expires_ms: int = 0) -> bytes:
    envelope = encode_properties(Properties(key, {}, expires_ms))
    return Enveloped(envelope + text.encode()) if envelope else text.encode()


def putting(counter: int, *those: bytes, topic: str = "t") -> Put:
    lengths, data = pack(those)
    has_properties = any(type(each) is Enveloped for each in those)
    has_expiry = any(type(each) is Enveloped and each[3] == 5 for each in those)
    return Put("p", None, topic, counter, lengths, data, None, has_properties, has_expiry)


def setting(parts: dict[str, Any], is_new: bool = True, topic: str = "t") -> SetTopic:
    return SetTopic(topic, parts, is_new, False)


class CompactionBench(Bench):
    """A store with p, who publishes, s, and t, a topic that is compacted."""

    counter = 0
    answers = 0  # that `all_from` took

    @classmethod
    def at_level(cls, path: Path) -> CompactionBench:
        bench = cls(path, LIMITS)
        bench.ok(Raise(LEVEL_OF_COMPACTION))
        for client in ("p", "s"):
            bench.ok(Register(client, True, None, ""))
        bench.ok(setting(COMPACT))
        return bench

    def publish(self, *those: bytes) -> int:
        self.counter += len(those)
        body: dict[str, Any] = self.ok(putting(self.counter + 1 - len(those), *those))
        return int(body["id"])

    def keys(self, keys: str) -> None:
        """Publish one of each key, all in one entry; a dot: of none."""
        self.publish(*(of_key(None if key == "." else key, key) for key in keys))

    def step(self) -> None:
        self.apply(Hear([]))

    def all_from(
        self, from_id: int = 1, knows_expiry: bool = True, knows_runs: bool = False
    ) -> list[Any]:
        """Return what a reader is given: (id, text), or (code, first id, last id)."""
        found: list[Any] = []
        self.answers = 0
        while True:
            self.answers += 1
            bounds = 100, 1_000_000
            got = self.store.read_from("t", from_id, *bounds, knows_expiry, {}, knows_runs)
            if isinstance(got, Refused):
                found.append((got.code, got.details["first_id"], got.details["last_id"]))
                from_id = got.details["last_id"] + 1
                continue
            if not got.count:
                return found
            if got.passed is not None:
                gone = got.passed.details
                found.append((got.passed.code, gone["first_id"], gone["last_id"]))
            texts = [each[-1:].decode() for each in unpack(got.lengths, got.data)]
            from_id = got.first_id
            for first_id, count in ((got.first_id, got.count), *got.runs):
                if first_id > from_id:
                    found.append(("compacted", from_id, first_id - 1))
                from_id = first_id + count
                found += zip(range(first_id, from_id), texts[:count], strict=True)
                del texts[:count]
            assert not texts
            assert sum(count for count, _ in got.times) == got.count_in_all

    @property
    def row(self) -> dict[str, Any]:
        row = self.store.topic_row("t")
        assert row is not None
        return row


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[CompactionBench]:
    bench = CompactionBench.at_level(tmp_path / "store.db")
    yield bench
    bench.store.close()


def test_of_each_key_the_last_stays_and_of_none_all_and_who_reads_is_told_of_the_runs(
    bench: CompactionBench,
) -> None:
    bench.keys("ab.aac.")
    assert [id_ for id_, _ in bench.all_from()] == [1, 2, 3, 4, 5, 6, 7]
    bench.step()
    stays = [
        ("compacted", 1, 1),
        *((2, "b"), (3, "."), ("compacted", 4, 4), (5, "a"), (6, "c"), (7, ".")),
    ]
    assert bench.all_from() == stays
    assert bench.all_from(knows_expiry=False)[0] == ("gap", 1, 1)
    bench.store.collect_garbage(100)
    bench.restart()
    assert bench.all_from() == stays
    assert bench.row["compacted_id"] == 7


def test_who_knows_several_runs_is_told_of_the_same_in_few_answers(
    bench: CompactionBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One answer for each key that stood alone."""
    monkeypatch.setattr(publications, "READ_ROWS_MAX", 4)
    for place in range(20):
        bench.keys(f"a{place % 10}a{chr(ord('k') + place)}")
    bench.step()
    alone = bench.all_from()
    assert bench.answers == 30
    assert bench.all_from(knows_runs=True) == alone
    assert bench.answers == 9, "of 31 publications, four each, and that nothing follows"
    assert bench.all_from(knows_expiry=False, knows_runs=True)[0] == ("gap", 1, 3)
    bench.store.collect_garbage(100)
    bench.reopen()
    assert bench.all_from(knows_runs=True) == alone


def test_further_runs_are_within_the_bounds_and_end_before_what_has_expired(
    bench: CompactionBench,
) -> None:
    bench.keys("ab")
    bench.publish(of_key("c", "c", 50))
    bench.keys(".bdabc")  # 1, 2, 3, 5, 6 are gone
    bench.publish(of_key("d", "d", 50))
    bench.keys("ef.eg")  # 11 is gone
    bench.step()

    def got(max_count: int, max_bytes: int) -> tuple[int, int, Any]:
        read = bench.store.read_from("t", 1, max_count, max_bytes, True, {}, True)
        assert isinstance(read, Delivery)
        return read.first_id, read.count, read.runs

    assert got(100, 1_000) == (4, 1, ((7, 4), (12, 4)))
    assert got(1, 1_000) == (4, 1, ())
    assert got(3, 1_000) == (4, 1, ((7, 2),))
    assert got(100, 1) == (4, 1, ())
    bench.now_ms += 60
    bench.step()
    assert got(100, 1_000) == (4, 1, ((7, 3),)), "10 has expired"


def test_an_answer_of_several_runs_says_when_the_first_of_all_expires(
    bench: CompactionBench,
) -> None:
    bench.publish(of_key("a", "1", 300))
    bench.keys("b")
    bench.publish(of_key("c", "3", 100))
    bench.keys("b")  # 2 is gone
    bench.step()
    read = bench.store.read_from("t", 1, 100, 1_000, True, {}, True)
    assert isinstance(read, Delivery)
    assert (read.first_id, read.count, read.runs) == (1, 1, ((3, 2),))
    assert read.over_ms == bench.store.idle.log_ms + 100


def test_a_key_of_text_and_one_of_the_same_bytes_are_two(bench: CompactionBench) -> None:
    bench.publish(of_key("k", "1"), of_key(b"k", "2"))
    bench.step()
    assert bench.all_from() == [(1, "1"), (2, "2")]


def test_nothing_goes_that_a_subscriber_has_not_read_who_stands_in_the_topic(
    bench: CompactionBench,
) -> None:
    bench.ok(Subscribe("s", None, "t", None))
    bench.keys("aaa")
    bench.step()
    assert [id_ for id_, _ in bench.all_from()] == [1, 2, 3]
    bench.ok(Advance("s", None, {"t": 2}))
    bench.step()
    assert bench.all_from() == [("compacted", 1, 1), (2, "a"), (3, "a")]
    got = bench.store.read("s", "t", 2, 9, 99)
    assert isinstance(got, Delivery)
    assert got.first_id == 3


def test_who_starts_at_the_earliest_or_seeks_back_keeps_what_he_is_still_to_read(
    bench: CompactionBench,
) -> None:
    bench.keys("ab")
    bench.step()
    bench.ok(Subscribe("s", None, "t", None, start="earliest"))
    bench.keys("abab")
    bench.step()
    assert bench.all_from() == [
        (id_, text) for id_, text in zip(range(1, 7), "ababab", strict=True)
    ]
    bench.ok(Advance("s", None, {"t": 6}, None, {"t": bench.store.placed("s")["t"]}))
    bench.step()
    bench.ok(Seek("s", None, "t", None, "earliest"))
    got = bench.store.read("s", "t", None, 9, 99)
    assert isinstance(got, Delivery)
    assert (got.first_id, got.passed) == (5, compacted("t", 0, 4, True))
    bench.keys("ab")
    bench.step()
    assert bench.all_from() == [("compacted", 1, 4), (5, "a"), (6, "b"), (7, "a"), (8, "b")]


def test_a_group_that_has_not_settled_something_keeps_it_and_passes_what_went(
    bench: CompactionBench,
) -> None:
    bench.ok(MakeGroup("s", None, "t", None, "g", 30_000, None, None))
    bench.keys("aa")
    given = bench.ok(Take("s", None, "t", "g", 1, 1, 99, None, [], [], []))
    bench.step()
    assert len(bench.all_from()) == 2
    acks = [[given["token"], 1, 1]]
    given = bench.ok(Take("s", None, "t", "g", 2, 1, 99, None, acks, [], []))
    bench.ok(Take("s", None, "t", "g", 3, 0, 99, None, [[given["token"], 2, 2]], [], []))
    bench.step()
    assert bench.all_from() == [("compacted", 1, 1), (2, "a")]
    bench.ok(SeekGroup("t", "g", "earliest", False))
    given = bench.ok(Take("s", None, "t", "g", 4, 9, 99, None, [], [], []))
    assert given["given"] == [[2, 2, 1]]


def test_keys_of_a_group_that_is_ordered_by_them_go_on_behind_what_is_gone(
    bench: CompactionBench,
) -> None:
    bench.keys("abab")
    bench.step()
    bench.ok(MakeGroup("s", None, "t", None, "g", 30_000, None, None, None, True, "earliest"))
    bench.keys("ab")
    given = bench.ok(Take("s", None, "t", "g", 1, 9, 99, None, [], [], []))
    assert given["given"] == [[3, 4, 1]]
    acks = [[given["token"], 3, 4]]
    assert bench.ok(Take("s", None, "t", "g", 2, 9, 99, None, acks, [], []))["given"] == [[5, 6, 1]]


def test_a_step_is_bounded_and_the_next_ones_go_on(
    bench: CompactionBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compaction, "KEPT_MAX", 2)
    monkeypatch.setattr(compaction, "LOOKED_MAX", 4)
    bench.keys("aaaaaabcdef")
    steps = []
    while bench.store.compaction.has_work:
        bench.step()
        steps.append(bench.row["compacted_id"])
    assert steps == [4, 7, 9, 11]
    assert [each for each in bench.all_from() if type(each[0]) is str] == [("compacted", 1, 5)]


def test_a_step_is_bounded_by_bytes_but_for_its_first_publication(
    bench: CompactionBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    large, small = of_key("large", "x" * 200), of_key("a", "x" * 100)
    monkeypatch.setattr(compaction, "BYTES_MAX", 2 * len(small) + 10)
    bench.publish(large, *[small] * 5)
    steps = []
    while bench.store.compaction.has_work:
        bench.step()
        steps.append(bench.row["compacted_id"])
    assert steps == [1, 3, 5, 6]


def test_the_disk_holds_of_each_key_one_however_much_is_published(bench: CompactionBench) -> None:
    for _ in range(50):
        bench.publish(*(of_key(f"key {n}", "x" * 100) for n in range(10)))
    bench.step()
    bench.store.commit()
    while bench.store.collect_garbage(100):
        bench.store.commit()
    one = len(of_key("key 0", "x" * 100)) + 4
    assert bench.store.total_backlog_bytes() == bench.row["held_bytes"] == 10 * one
    assert bench.store.all_topics("", 9)[0]["backlog_bytes"] == 10 * one


def test_a_bound_counts_what_is_there(bench: CompactionBench) -> None:
    bench.ok(setting({"max_bytes": 300}, is_new=False))
    for _ in range(20):
        bench.publish(of_key("k", "x" * 100))
        bench.step()
    assert bench.one(putting(bench.counter + 1, of_key("l", "x" * 190)))[0] == "backlog_full"


def test_a_bound_counts_nothing_that_was_purged_before_it_was_compacted(
    bench: CompactionBench,
) -> None:
    bench.ok(setting({"max_bytes": 300}, is_new=False))
    bench.apply(putting(1, of_key("k", "x" * 200)), Purge("t", 1, False))
    assert bench.row["held_bytes"] == 0


def test_what_is_too_old_and_what_is_purged_goes_of_the_last_ones_as_well(
    bench: CompactionBench,
) -> None:
    bench.keys("abcab")
    bench.step()
    bench.ok(Purge("t", 3, False))
    assert bench.all_from(4) == [(4, "a"), (5, "b")]
    assert bench.row["held_bytes"] > 2 * (len(of_key("a", "a")) + 4)
    bench.step()
    assert bench.row["held_bytes"] == 2 * (len(of_key("a", "a")) + 4)
    bench.ok(setting(parse_keep("1"), is_new=False))
    bench.step()
    assert (bench.row["first_id"], bench.all_from(5)) == (5, [(5, "b")])


def test_what_expires_and_stays_is_told_of_as_expired_also_behind_a_restart(
    tmp_path: Path,
) -> None:
    with closing(Store.open(tmp_path / "t.db", MEMBERS, LIMITS)) as store:
        made: list[Operation] = [
            Raise(LEVEL_OF_COMPACTION),
            Register("p", True, None, ""),
            setting(COMPACT),
        ]
        for index, operation in enumerate(made, 1):
            store.apply(index, 1, encode(0, [operation], 1))
        store.apply(4, 1, encode(0, [putting(1, of_key("k", "1"), of_key("k", "2", 50))], 1))
        store.apply(5, 1, encode(10, [Hear([])], 1))
        store.commit()
        store.collect_garbage(100)
        store.commit()
    with closing(Store.open(tmp_path / "t.db", {}, LIMITS)) as store:
        store.apply(6, 1, encode(49, [Hear([])], 1))
        assert isinstance(store.read_from("t", 2, 9, 99), Delivery)
        store.apply(7, 1, encode(50, [Hear([])], 1))
        told = store.read_from("t", 2, 9, 99)
        assert isinstance(told, Refused)
        assert told.code == "expired"


def test_what_expired_in_front_is_told_before_what_is_compacted_away(
    bench: CompactionBench,
) -> None:
    bench.ok(Subscribe("s", None, "t", None))
    bench.publish(of_key("k", "1", 50))
    bench.keys("aab")
    bench.ok(Advance("s", None, {"t": 4}))
    bench.step()
    bench.ok(Seek("s", None, "t", None, "earliest"))
    bench.now_ms += 50
    bench.step()
    told = bench.store.read("s", "t", None, 9, 99)
    assert isinstance(told, Refused)
    assert (told.code, told.details["first_id"], told.details["last_id"]) == ("expired", 1, 1)
    got = bench.store.read("s", "t", 1, 9, 99, bench.store.placed("s")["t"])
    assert isinstance(got, Delivery)
    assert (got.first_id, got.passed) == (3, compacted("t", 1, 2, True))


def test_a_topic_that_is_deleted_takes_all_with_it_and_comes_again_empty(
    bench: CompactionBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compaction, "SWEPT_MAX", 2)
    bench.keys("abcde")
    bench.step()
    bench.ok(DeleteTopic("t", False, False))
    bench.ok(setting(COMPACT))
    bench.keys("a")
    assert bench.all_from(6) == [(6, "a")]
    for _ in range(4):
        bench.step()
    assert bench.all_from(6) == [(6, "a")]
    assert bench.store.total_backlog_bytes() > 0
    bench.ok(DeleteTopic("t", False, False))
    for _ in range(4):
        bench.step()
    bench.store.commit()
    while bench.store.collect_garbage(100):
        bench.store.commit()
    assert bench.store.total_backlog_bytes() == 0
    assert not bench.store.compaction.has_work
    with closing(sqlite3.connect(bench.path)) as connection:
        for table in ("latest", "links", "compactions"):
            assert connection.execute(f"SELECT count(*) FROM {table}").fetchone() == (0,)


def test_several_topics_take_turns(bench: CompactionBench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "LOOKED_MAX", 1)
    bench.ok(setting(COMPACT, topic="u"))
    bench.keys("aaaaaa")
    bench.apply(putting(1, *(of_key("a", "a") for _ in range(6)), topic="u"))
    for _ in range(4):
        bench.step()
    compacted = [bench.store.topic_row(name) for name in ("t", "u")]
    assert all(row is not None and row["compacted_id"] >= 2 for row in compacted)


def test_whose_turn_it_is_follows_from_the_log_alone(
    bench: CompactionBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a node that was started since does another topic's step."""
    monkeypatch.setattr(compaction, "LOOKED_MAX", 1)
    bench.keys("a")
    bench.step()  # nothing is left to be done of it
    bench.ok(setting(COMPACT, topic="u"))
    bench.apply(putting(1, *(of_key("a", "a") for _ in range(6)), topic="u"))
    bench.keys("aaaaaa")
    due = bench.store.compaction._due()
    assert len(due) == 2
    bench.restart()
    assert bench.store.compaction._due() == due


def test_a_time_to_start_at_is_found_between_what_is_left(bench: CompactionBench) -> None:
    index = bench.store.applied_index
    for place, key in enumerate("aba"):
        index += 1
        put = putting(place + 1, of_key(key, key))
        bench.store.apply(index, 1, encode(0, [put], 1_000 * (place + 1)))
    for at_ms, cursor in ((500, 0), (1_500, 0), (2_000, 0), (2_001, 2), (2_500, 2), (9_000, 3)):
        for _ in range(2):
            index += 1
            asked = Subscribe("s", None, "t", None, start=f"@{at_ms}")
            [told] = bench.store.apply(index, 1, encode(0, [asked], 3_000))
            assert answer_of(told)[1]["last_id"] == cursor
            index += 1
            bench.store.apply(index, 1, encode(0, [Unsubscribe("s", None, "t", None)], 3_000))


@pytest.mark.parametrize(
    "parts",
    [
        {"compact": True},
        {**parse_keep("unread"), "compact": True},
        {**parse_keep("1MB"), "compact": True},
        {**COMPACT, "max_bytes": 10, "when_full": "drop-oldest"},
    ],
)
def test_what_makes_no_sense_together_is_refused(parts: dict[str, Any]) -> None:
    with pytest.raises(ProtocolError, match="compact"):
        Policy().changed(parts)


def test_whether_a_topic_is_compacted_never_changes(bench: CompactionBench) -> None:
    assert bench.one(setting({"compact": False}, is_new=False))[0] == "bad_request"
    bench.ok(setting(COMPACT))
    assert bench.ok(setting(parse_keep("7d"), is_new=False))["policy"]["compact"] is True
    with pytest.raises(ProtocolError, match="true or false"):
        check_parts({"compact": 1})


def test_an_entry_that_makes_such_a_topic_takes_its_level() -> None:
    assert level_of(encode(0, [setting(COMPACT)], 1)) == LEVEL_OF_COMPACTION
    assert level_of(encode(0, [setting(parse_keep("7d"))], 1)) == LEVEL_OF_TOPICS


# --- damage ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("table", ["latest", "links"])
def test_a_row_that_the_disk_has_lost_is_not_taken_for_compacted(
    table: str, bench: CompactionBench
) -> None:
    bench.keys("abab")
    bench.step()
    bench.store.commit()
    with closing(sqlite3.connect(bench.path)) as connection:
        connection.execute(f"DELETE FROM {table} WHERE key % 8 = 3")
        connection.commit()
    with pytest.raises(CorruptStore, match="missing"):
        bench.all_from()


def test_a_start_misses_what_the_disk_has_lost(bench: CompactionBench) -> None:
    bench.keys("abc")
    bench.step()
    bench.store.commit()
    bench.store.close()
    with closing(sqlite3.connect(bench.path)) as connection:
        connection.execute("DELETE FROM links WHERE key % 8 = 1")
        connection.commit()
    with pytest.raises(CorruptStore, match="2 of 3 compacted"):
        Store.open(bench.path, {}, LIMITS)
    bench.store = Store.open(bench.path.with_name("other.db"), MEMBERS, LIMITS)


def test_a_start_misses_how_far_a_topic_was_of_which_nothing_stays(bench: CompactionBench) -> None:
    for topic in "uv":
        bench.ok(setting(COMPACT, topic=topic))
        bench.ok(putting(1, of_key("a", "a"), topic=topic))
    bench.keys("a")
    bench.ok(Purge("v", 1, False))
    for _ in range(6):
        bench.step()
    assert [bench.store.topic_row(each)["compacted_id"] for each in "tuv"] == [1, 1, 1]
    bench.store.commit()
    bench.store.close()
    page = lose_the_last_of_three_rows(bench.path, "compactions")
    with pytest.raises(CorruptStore, match=f"table compactions: .* page {page}"):
        Store.open(bench.path, {}, LIMITS)
    bench.store = Store.open(bench.path.with_name("other.db"), MEMBERS, LIMITS)


def test_each_row_has_a_checksum_and_is_found_by_its_key(bench: CompactionBench) -> None:
    bench.keys("ab.")
    bench.step()
    bench.store.commit()
    with closing(tables.connect(bench.path, 1_000)) as connection:
        rows.check_rows(bench.path, connection, lambda size_bytes: None)
    place = rows.Place()
    assert not rows.check_slice(bench.path, place, 10_000, 10_000_000).damaged
    damages = {
        "latest": "UPDATE latest SET data = x'00'",
        "links": "UPDATE links SET before_id = before_id + 1",
        "compactions": "UPDATE compactions SET count = count + 1",
    }
    for table, sql in damages.items():
        with closing(sqlite3.connect(bench.path)) as connection:
            connection.execute(sql)
            connection.commit()
        damaged = rows.check_slice(bench.path, place, 10_000, 10_000_000).damaged
        assert table in {each.table for each in damaged}


def test_an_index_that_has_lost_a_key_is_reported(bench: CompactionBench) -> None:
    bench.publish(of_key("one", "1"), of_key("two", "2"), b"of none")
    bench.step()
    bench.store.commit()
    with closing(sqlite3.connect(bench.path)) as connection:
        sql = "SELECT rootpage FROM sqlite_master WHERE name = 'latest_by_name'"
        [root] = connection.execute(sql).fetchone()
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    bench.store.close()
    with bench.path.open("r+b") as file:
        start = (root - 1) * tables.PAGE_BYTES
        page = os.pread(file.fileno(), tables.PAGE_BYTES, start)
        os.pwrite(file.fileno(), b"twp", start + page.index(b"two"))
    damaged = rows.check_slice(bench.path, rows.Place(), 10_000, 10_000_000).damaged
    assert [(each.table, each.reason) for each in damaged] == [
        ("latest", "its index does not find it")
    ]


# --- against the reference ------------------------------------------------------------------------


@pytest.mark.parametrize("seed", seeds(3, 8))
def test_store_and_reference_agree_whatever_comes(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("LOOKED_MAX", 7), ("KEPT_MAX", 3), ("SWEPT_MAX", 2), ("BYTES_MAX", 200)):
        monkeypatch.setattr(compaction, name, value)
    monkeypatch.setattr(publications, "READ_ROWS_MAX", 4)
    rng = random.Random(seed)
    first, second = (Store.open(tmp_path / f"{name}.db", MEMBERS, LIMITS) for name in "ab")
    reference, counters, ms = Reference(LIMITS), dict[str, int](), 0
    payloads: list[bytes] = []
    for index in range(1, 400):
        ms += rng.choice((0, 1, 10, 100))
        operations = _operations(rng, index, counters, first)
        payloads.append(encode(ms, operations, 1 + ms))
        told = reference.apply(index, operations, 1, Stamp(ms, 1 + ms))
        outcomes = first.apply(index, 1, payloads[-1])
        for operation, outcome, result in zip(operations, outcomes, told, strict=True):
            code, body = answer_of(outcome)
            if result is not None:
                assert (code if code != "ok" else "") == result[0], operation
                assert body == result[1] or "duplicate" not in result[1]
                assert type(operation) is not Take or body == result[1] or code != "ok"
        second.apply(index, 1, payloads[-1])
        for name in ("t", "u"):
            assert first.topic_row(name) == next(iter(reference.topic_rows_at(name, index)), None)
            _check_reads(first, reference, name)
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
            assert first.audit.row() == second.audit.row()
            assert first._latest.topics == second._latest.topics
    gone = sum(len(topic.compaction.replaced) for topic in reference.topics.values())
    assert gone > 40
    first.close()
    second.close()


def _operations(
    rng: random.Random, index: int, counters: dict[str, int], store: Store
) -> list[Operation]:
    if index == 1:
        return [Raise(LEVEL_OF_COMPACTION)]
    if index == 2:
        return [Register(client, True, None, "") for client in "pst"]
    return [_operation(rng, counters, store) for _ in range(rng.choice((0, 1, 1, 2, 3)))]


def _operation(  # noqa: C901
    rng: random.Random, counters: dict[str, int], store: Store
) -> Operation:
    topic, client = rng.choice("tu"), rng.choice("st")
    end = store.topic_ends().get(topic, 0)
    near, start = rng.randint(1, end + 1), rng.choice(("new", "earliest", "earliest", "@50"))
    chance = rng.random()
    if chance < 0.45:
        those = [
            of_key(
                rng.choice("abcd.") if rng.random() < 0.8 else None,
                "x" * rng.randint(0, 30),
                rng.choice((0, 0, 50, 5_000)),
            )
            for _ in range(rng.choice((1, 1, 3, 6)))
        ]
        counter = counters.get(topic, 1)
        counters[topic] = counter + len(those)
        return putting(counter, *those, topic=topic)
    if chance < 0.5:
        keep = rng.choice(("forever", "forever", "20", "400ms"))
        parts = {**parse_keep(keep), "compact": True, "max_bytes": rng.choice((0, 0, 2_000))}
        return setting(parts, is_new=True, topic=topic)
    if chance < 0.53:
        return setting(parse_keep(rng.choice(("forever", "15"))), is_new=False, topic=topic)
    if chance < 0.57:
        return Subscribe(client, None, topic, None, start=start)
    if chance < 0.65:
        return Unsubscribe(client, None, topic, None)
    if chance < 0.75:
        placed = store.placed(client)
        return Advance(
            client, None, {topic: rng.choice((end, near))}, None, {topic: placed.get(topic, 0)}
        )
    if chance < 0.8:
        return Seek(client, None, topic, None, rng.choice((start, near)))
    if chance < 0.84:
        ordered = rng.choice((None, True))
        group = rng.choice("gh")
        attempts = rng.choice((None, 2))
        letters = "dead" if attempts else None
        return MakeGroup(
            client, None, topic, None, group, 40, attempts, letters, None, ordered, start
        )
    if chance < 0.94:
        group = rng.choice("gh")
        found = store.groups.get(topic, group)
        own = (
            []
            if found is None
            else [
                [lease.token, id_, id_]
                for id_, lease in found.open.items()
                if lease.client_id == client
            ]
        )
        acks = [each for each in own if rng.random() < 0.7]
        return Take(client, None, topic, group, None, rng.choice((0, 3, 9)), 60, None, acks, [], [])
    if chance < 0.96:
        return SeekGroup(topic, rng.choice("gh"), rng.choice(("earliest", "new", near)), False)
    if chance < 0.985:
        return DropGroup(topic, rng.choice("gh"), False)
    if chance < 0.992:
        return Purge(topic, near, False)
    return DeleteTopic(topic, True, False)


def _check_reads(store: Store, reference: Reference, name: str) -> None:
    """Read all from the floor on: what is given, and what is told, is as the reference says."""
    topic = reference.topics.get(name)
    row = store.topic_row(name)
    if topic is None or row is None:
        return
    for knows_runs in (False, True):
        _check_all(store, reference, topic, row, knows_runs)


def _check_all(
    store: Store, reference: Reference, topic: Any, row: dict[str, Any], knows_runs: bool
) -> None:
    name, index, from_id = row["topic"], reference.applied_index, row["first_id"]
    while from_id <= row["last_id"]:
        found = store.read_from(name, from_id, 3, 60, knows_runs=knows_runs)
        while isinstance(found, Looked):
            looked = {name: found}
            found = store.read_from(name, from_id, 3, 60, True, looked, knows_runs)
        gone = found.passed if isinstance(found, Delivery) else found
        if gone is not None:
            ids = range(gone.details["first_id"], gone.details["last_id"] + 1)
            said = {gone.code == "compacted"}
            assert {reference.is_compacted_at(name, each, index) for each in ids} == said
            if gone.code == "expired":
                assert all(reference.is_over_at(name, each, index) for each in ids)
            assert ids[0] == from_id
            from_id = ids[-1] + 1
        if isinstance(found, Delivery):
            runs = ((found.first_id, found.count), *found.runs)
            ids = [each for first, count in runs for each in range(first, first + count)]
            assert found.data == b"".join(topic.publications[each][1] for each in ids)
            assert ids[0] == from_id
            assert len(ids) == 1 or (len(ids) <= 3 and len(found.data) <= 60)
            for each in range(from_id, ids[-1] + 1):
                assert reference.is_compacted_at(name, each, index) == (each not in ids)
                assert each not in ids or not reference.is_over_at(name, each, index)
            from_id = ids[-1] + 1


def test_what_a_deleted_topic_has_left_goes_though_nobody_asks_for_anything(
    bench: CompactionBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compaction, "SWEPT_MAX", 2)
    bench.keys("abcde")
    bench.step()
    assert not bench.store.compaction.is_behind
    bench.ok(DeleteTopic("t", False, False))
    steps = 0
    while bench.store.compaction.is_behind:  # so that a leader makes an entry
        bench.step()
        steps += 1
    assert steps == 2
    bench.step()
    assert bench.store.statistics().get("compacted_bytes", 0) == 0
