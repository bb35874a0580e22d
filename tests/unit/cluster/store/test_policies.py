"""Claims about topics' policies, starts and seeks: what the store keeps, drops, tells and moves."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from cluster.store import retention
from cluster.store.commands import (
    Advance,
    DeleteTopic,
    Operation,
    Purge,
    Put,
    Raise,
    Register,
    Seek,
    SetTopic,
    Stamp,
    Subscribe,
    Unsubscribe,
    decode,
    encode,
    level_of,
)
from cluster.store.store import CorruptStore, Delivery, Limits, Refused, Store
from cluster.wire.levels import LEVEL_OF_PROPERTIES, LEVEL_OF_TOPICS
from flotilla_client.policies import Policy, check_parts, parse_keep, parse_size
from flotilla_client.protocol import ProtocolError, pack, unpack
from tests.unit import store_bench
from tests.unit.model_store import MEMBERS, Answer, answer_of

HOUR_MS = 3_600_000
LIMITS = Limits()


class PolicyBench(store_bench.Bench):
    """A store at the level of topics, with p, who publishes; entries have times of their own."""

    now_ms = 0

    @classmethod
    def at_level(cls, path: Path) -> PolicyBench:
        bench = cls(path, LIMITS)
        bench.ok(Raise(LEVEL_OF_TOPICS))
        for client in ("p", "s"):
            bench.ok(Register(client, True, None, ""))
        return bench

    def sub(self, start: Any = "new", topic: str = "t", client: str = "s") -> dict[str, Any]:
        return self.ok(Subscribe(client, None, topic, None, start=start))

    def create(self, keep: str = "forever", topic: str = "t", **parts: Any) -> dict[str, Any]:
        return self.ok(SetTopic(topic, parse_keep(keep) | parts, True, False))

    def texts(self, count: int, topic: str = "t", size: int = 6) -> None:
        """Publish texts of that size, each in an entry of its own: four bytes more are counted."""
        for _ in range(count):
            self.number = getattr(self, "number", 0) + 1
            body = self.put(self.number, b"%0*d" % (size, self.number), topic=topic)
            assert body[0] == "ok", body

    def kept(self, topic: str = "t") -> list[int]:
        row = self.store.topic_row(topic)
        assert row is not None
        return list(range(row["first_id"], row["last_id"] + 1))


@pytest.fixture
def bench(tmp_path: Path) -> PolicyBench:
    return PolicyBench.at_level(tmp_path / "store.db")


def refused(answer: Any) -> tuple[str, dict[str, Any]]:
    assert isinstance(answer, Refused), answer
    return answer.code, answer.details


# --- what a policy keeps --------------------------------------------------------------------------


def test_topic_that_keeps_stores_without_a_subscriber_and_survives_a_restart(
    bench: PolicyBench,
) -> None:
    assert bench.create()["created"]
    assert bench.put(1, b"a", b"b") == (
        "ok",
        {"id": 1, "count": 2, "duplicate": False, "stored": True},
    )
    bench.restart()
    assert bench.kept() == [1, 2]
    assert bench.sub("earliest")["last_id"] == 0
    assert bench.get("s") == [b"a", b"b"]


def test_topic_that_keeps_what_is_unread_stores_nothing_that_nobody_waits_for(
    bench: PolicyBench,
) -> None:
    bench.create("unread")
    assert bench.put(1)[1]["stored"] is False
    bench.sub()
    assert bench.put(2)[1] == {"id": 1, "count": 1, "duplicate": False, "stored": True}
    bench.ok(Advance("s", None, {"t": 1}))
    assert bench.kept() == []


def test_what_everybody_has_read_stays_as_the_policy_says_and_what_is_unread_always(
    bench: PolicyBench,
) -> None:
    bench.create("3")
    bench.sub()
    bench.texts(10)
    assert bench.kept() == list(range(1, 11)), "unread"
    bench.ok(Advance("s", None, {"t": 10}))
    assert bench.kept() == [8, 9, 10]
    bench.ok(Unsubscribe("s", None, "t", None))
    bench.texts(2)
    assert bench.kept() == [10, 11, 12]
    assert bench.store.collect_garbage(100) == 9
    assert bench.sub("earliest", client="p")["last_id"] == 9


def test_a_size_keeps_at_least_as_much_and_a_part_more_at_most(bench: PolicyBench) -> None:
    bench.create("3200B")  # of publications of ten bytes: a part is ten of them
    bench.texts(1_000)
    kept = len(bench.kept())
    assert 320 <= kept <= 320 + 2 * 10
    bench.restart()
    assert len(bench.kept()) == kept


def test_an_age_goes_by_the_logs_time_without_anybody_touching_the_topic(
    bench: PolicyBench,
) -> None:
    bench.create("32m")
    for _ in range(64):
        bench.now_ms += 60_000
        bench.texts(1)
    assert len(bench.kept()) in (32, 33, 34)
    bench.restart()
    before = bench.kept()
    for _ in range(10):
        bench.now_ms += 60_000
        bench.ok(Register(f"c{bench.now_ms}", True, None, ""))
    assert bench.kept() == before[10:]
    bench.now_ms += HOUR_MS
    bench.ok(Register("last", True, None, ""))
    assert bench.kept() == []
    assert bench.put(999, b"x")[0] == "counter_gap"


def test_what_came_last_into_a_part_is_kept_for_the_whole_age(bench: PolicyBench) -> None:
    bench.create("32m")
    for _ in range(4):  # a part is a minute
        bench.texts(1)
        bench.now_ms += 14_000
    bench.now_ms += 32 * 60_000 - 14_000 - 1
    bench.ok(Register("c", True, None, ""))
    assert 4 in bench.kept()
    bench.now_ms += 60_000
    bench.ok(Register("d", True, None, ""))
    assert bench.kept() == []


def test_stretches_are_few_however_much_is_unread(bench: PolicyBench) -> None:
    bench.create("320B")
    bench.sub()
    bench.texts(2_000)
    topic = bench.store._topics.active["t"]
    assert topic.retention is not None
    assert len(topic.retention.stretches) <= retention.STRETCHES_MAX
    bench.ok(Advance("s", None, {"t": 2_000}))
    assert 32 <= len(bench.kept()) <= 34, "the newest stretches stayed as fine as they were"


def test_an_altered_policy_holds_from_then_on_and_brings_nothing_back(bench: PolicyBench) -> None:
    bench.create("5")
    bench.texts(10)
    altered = bench.ok(SetTopic("t", parse_keep("forever"), False, False))
    assert altered == {
        "policy": Policy("forever").parts(),
        "created": False,
        "last_id": 10,
    }
    bench.texts(5)
    assert bench.kept() == list(range(6, 16))
    bench.ok(SetTopic("t", parse_keep("2"), False, False))
    bench.restart()
    assert bench.kept() == [14, 15]
    assert bench.one(SetTopic("none", {}, False, False))[0] == "unknown_topic"


def test_create_is_repeated_with_the_same_policy_alone(bench: PolicyBench) -> None:
    bench.create("5")
    assert bench.create("5")["created"] is False
    assert bench.one(SetTopic("t", parse_keep("6"), True, False))[0] == "bad_request"
    assert (
        bench.one(SetTopic("u", {"when_full": "drop-oldest"}, True, False))[0] == "bad_request"
    ), "a topic without a bound is never full"


# --- a full topic ---------------------------------------------------------------------------------


def test_full_topic_refuses_at_the_entry_and_takes_again_when_it_was_read(
    bench: PolicyBench,
) -> None:
    bench.create("unread", max_bytes=100, when_full="refuse")
    bench.sub()
    bench.texts(10)
    assert bench.put(11, b"123456") == ("backlog_full", {"limit": 100})
    # What will never fit as well: `too_large` has a client forget an attempt that may be stored.
    assert bench.put(11, b"x" * 200) == ("backlog_full", {"limit": 100})
    # Two in one entry: the second finds the first one's bytes.
    bench.ok(Advance("s", None, {"t": 9}))
    lengths, data = pack([b"x" * 56])
    both = [Put("p", None, "t", 11, lengths, data), Put("p", None, "t", 12, lengths, data)]
    assert [code for code, _ in bench.apply(*both)] == ["ok", "backlog_full"]
    bench.ok(Advance("s", None, {"t": 11}))
    assert bench.put(12, b"x" * 96)[0] == "ok"


def test_full_topic_that_drops_takes_everything_and_tells_who_missed_it_once(
    bench: PolicyBench,
) -> None:
    bench.create("unread", max_bytes=100, when_full="drop-oldest")
    bench.sub()
    bench.texts(25)
    first = bench.kept()[0]
    assert first == 16
    gap = {"topic": "t", "first_id": 1, "last_id": 15, "missed": 15}
    assert refused(bench.store.read("s", "t", 0, 9, 9)) == ("gap", gap)
    assert refused(bench.store.read_any("s", {}, 9, 9)) == ("gap", gap)
    bench.restart()
    assert refused(bench.store.read("s", "t", None, 9, 9)) == ("gap", gap)
    assert bench.get("s", 15)[0] == b"000016"
    assert bench.store.subscriptions_page("", "", 9)[0]["backlog"] == 10
    assert bench.store.collect_garbage(100) == 15


def test_a_bound_that_comes_later_counts_nothing_that_was_gone_before(bench: PolicyBench) -> None:
    bench.create("2")
    bench.texts(20)
    bench.ok(SetTopic("t", {"max_bytes": 100, "when_full": "refuse"}, False, False))
    bench.texts(2)


def test_what_was_purged_and_what_was_dropped_are_told_apart_by_what_is_last(
    bench: PolicyBench,
) -> None:
    bench.create("unread", max_bytes=100, when_full="drop-oldest")
    bench.sub()
    bench.texts(20)
    bench.ok(Purge("t", 15, False))
    assert refused(bench.store.read("s", "t", 0, 9, 9))[0] == "purged"
    bench.texts(20)
    assert refused(bench.store.read("s", "t", 0, 9, 9))[0] == "gap"


# --- deleting -------------------------------------------------------------------------------------


def test_deleting_takes_all_and_ids_never_restart(bench: PolicyBench) -> None:
    bench.create()
    bench.texts(3)
    bench.sub("earliest")
    assert bench.one(DeleteTopic("t", False, False)) == ("bad_request", {"subscribers": 1})
    done = bench.ok(DeleteTopic("t", True, False))
    assert done == {"last_id": 3, "deleted": 3, "ended": 1}
    assert bench.one(DeleteTopic("t", True, False))[0] == "unknown_topic"
    assert refused(bench.store.read("s", "t", None, 9, 9))[0] == "unknown_topic"
    bench.restart()
    assert bench.store.collect_garbage(100) == 3
    bench.create("2")
    assert bench.kept() == []
    bench.texts(1)
    assert bench.kept() == [4]
    assert bench.store.total_backlog_bytes() == 10


# --- where a subscription starts ------------------------------------------------------------------


def test_subscription_starts_where_it_is_told_to(bench: PolicyBench) -> None:
    bench.create("5")
    bench.texts(10)
    for start, cursor in (("new", 10), ("earliest", 5), (6, 5), (8, 7), (11, 10)):
        body = bench.sub(start)
        assert body["last_id"] == cursor
        assert body.get("placed", 0) == (0 if start == "new" else bench.store.applied_index)
        assert bench.sub("earliest") == body | {"resumed": True}, "it stands where it stands"
        bench.ok(Unsubscribe("s", None, "t", None))
    gap = {"topic": "t", "first_id": 3, "last_id": 5, "missed": 3}
    assert bench.one(Subscribe("s", None, "t", None, start=3)) == ("gap", gap)
    assert bench.one(Subscribe("s", None, "t", None, start=12)) == ("bad_request", {"end": 10})
    assert bench.one(Subscribe("s", None, "none", None, start=2)) == ("bad_request", {"end": 0})
    assert bench.sub(1, topic="none")["last_id"] == 0


def test_subscription_starts_at_a_time_by_the_publications_timestamps(bench: PolicyBench) -> None:
    """Also where the entry that begins it brings publications, and behind a restart."""
    bench.create()
    index = bench.store.applied_index
    times = (1_000, 2_000, 2_000, 1_500, 9_000)  # a clock that goes back: timestamps do not
    for counter, wall_ms in enumerate(times, 1):
        put = [Put("p", None, "t", 2 * counter - 1, *pack([b"x", b"y"]))]
        bench.store.apply(index + counter, 1, encode(0, put, wall_ms))
    bench.store.commit()
    for at_ms, cursor in ((0, 0), (1_000, 0), (1_001, 2), (2_000, 2), (2_001, 8), (9_001, 10)):
        assert bench.sub(f"@{at_ms}")["last_id"] == cursor, at_ms
        bench.ok(Unsubscribe("s", None, "t", None))
        bench.restart()
    both = [
        Put("p", None, "t", 11, *pack([b"z"])),
        Subscribe("s", None, "t", None, start="@9500"),
    ]
    outcomes = bench.store.apply(bench.store.applied_index + 1, 1, encode(0, both, 9_600))
    assert answer_of(outcomes[1])[1]["last_id"] == 10


def test_a_place_that_damaged_times_would_give_is_given_to_nobody(bench: PolicyBench) -> None:
    """Where a subscription starts is part of the state: one node's flipped bit must not decide."""
    bench.create()
    index = bench.store.applied_index
    for counter in range(1, 9):
        put = [Put("p", None, "t", counter, *pack([b"x"]))]
        bench.store.apply(index + counter, 1, encode(0, put, 1_000 * counter))
    bench.store.commit()
    change = "UPDATE publications SET timestamp_ms = timestamp_ms + 65536 WHERE timestamp_ms = 4000"
    bench.store._database.write(change, [()])
    with pytest.raises(CorruptStore, match=r"checksum|out of order"):
        bench.sub("@5000")


def test_seek_moves_the_own_cursor_to_either_side(bench: PolicyBench) -> None:
    bench.create()
    bench.sub()
    bench.texts(10)
    bench.ok(Advance("s", None, {"t": 10}))
    for start, cursor in (("earliest", 0), (4, 3), ("new", 10), (9, 8)):
        body = bench.ok(Seek("s", None, "t", None, start))
        assert body == {"last_id": cursor, "placed": bench.store.applied_index}
        bench.restart()
        assert bench.store.cursor("s", "t") == cursor
    assert bench.get("s") == [b"000009", b"000010"]
    assert bench.one(Seek("p", None, "t", None, "new"))[0] == "not_subscribed"
    assert bench.one(Seek("s", None, "t", None, 12)) == ("bad_request", {"end": 10})


def test_what_a_seek_leaves_behind_is_collected(bench: PolicyBench) -> None:
    bench.sub()
    bench.texts(3)
    bench.ok(Seek("s", None, "t", None, "new"))
    assert bench.store.collect_garbage(9) > 0
    assert bench.store.total_backlog_bytes() == 0


def test_nothing_read_before_a_seek_acknowledges_behind_it(bench: PolicyBench) -> None:
    """A late GET says what it has of the place before: that is no acknowledgment of this one."""
    bench.create()
    bench.sub()
    bench.texts(10)
    placed = bench.ok(Seek("s", None, "t", None, "earliest"))["placed"]
    told = {"topic": "t", "cursor": 0, "placed": placed}
    assert bench.one(Advance("s", None, {"t": 10})) == ("moved", told)
    assert refused(bench.store.read("s", "t", 10, 9, 9)) == ("moved", told)
    assert refused(bench.store.read_any("s", {"t": 10}, 9, 9)) == ("moved", told)
    bench.restart()
    assert bench.store.cursor("s", "t") == 0
    assert bench.store.placed("s") == {"t": placed}
    bench.ok(Advance("s", None, {"t": 4}, placed={"t": placed}))
    bench.ok(Unsubscribe("s", None, "t", None))
    bench.sub("earliest")
    assert bench.one(Advance("s", None, {"t": 4}, placed={"t": placed}))[0] == "moved"


def test_topic_is_read_without_a_subscription_and_nothing_moves(bench: PolicyBench) -> None:
    bench.create("5")
    bench.texts(10)
    read = bench.store.read_from("t", 7, 2, 1_000)
    assert isinstance(read, Delivery)
    assert (read.first_id, unpack(read.lengths, read.data)) == (7, [b"000007", b"000008"])
    end = bench.store.read_from("t", 11, 2, 1_000)
    assert isinstance(end, Delivery)
    assert end.count == 0
    assert refused(bench.store.read_from("t", 5, 2, 9))[0] == "gap"
    assert refused(bench.store.read_from("t", 12, 2, 9)) == ("bad_request", {"end": 10})
    assert refused(bench.store.read_from("none", 1, 2, 9))[0] == "unknown_topic"


# --- the log --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "operation",
    [
        Subscribe("c", 1, "t", 2, start="earliest"),
        Subscribe("c", 1, "t", 2, "shop", start=7),
        Seek("c", 1, "t", 2, "new"),
        Advance("c", 1, {"t": 3}, placed={"t": 4}),
        SetTopic("t", parse_keep("7d") | {"max_bytes": 9}, True, False, "root", "act", 5),
        DeleteTopic("t", True, False, None, "act", 5),
    ],
    ids=lambda operation: type(operation).__name__,
)
def test_what_is_new_is_written_for_its_level_and_read_as_written(operation: Operation) -> None:
    payload = encode(1, [operation])
    assert level_of(payload) == LEVEL_OF_TOPICS
    assert decode(payload) == (Stamp(1), [operation])


def test_what_is_not_new_is_written_as_before() -> None:
    plain = [Subscribe("c", 1, "t", 2), Advance("c", 1, {"t": 3})]
    assert b'["S","c",1,"t",2],["A","c",1,{"t":3}]' in encode(1, plain)
    assert level_of(encode(1, plain)) == 1


def test_two_nodes_are_the_same_whatever_they_collected_and_when_they_restarted(
    tmp_path: Path,
) -> None:
    """Random operations on two stores: one collects and restarts at random, one never does."""
    for seed in range(15):
        rng = random.Random(seed)
        paths = [tmp_path / f"{seed}-{name}.db" for name in "ab"]
        one, other = (Store.open(path, MEMBERS) for path in paths)
        counters = {"t": 1, "u": 1}
        for index in range(1, 250):
            operations = _operations(rng, index, dict(counters))
            payload = encode(index * 40, operations)
            told = [answer_of(each) for each in one.apply(index, 1, payload)]
            for put, (code, _) in zip(operations, told, strict=True):
                if isinstance(put, Put) and code == "ok":
                    counters[put.topic] = put.counter + len(put.lengths) // 4
            assert [answer_of(each) for each in other.apply(index, 1, payload)] == told
            if rng.random() < 0.2:
                other.commit()
                other.collect_garbage(rng.randint(1, 20))
            if rng.random() < 0.05:
                at = other.applied_index
                other.commit()
                other.close()
                other = Store.open(paths[1], {})
                assert other.applied_index == at
        assert one.digest() == other.digest(), seed
        one.close()
        other.close()


def _operations(rng: random.Random, index: int, counters: dict[str, int]) -> list[Operation]:
    if index == 1:
        return [Raise(LEVEL_OF_TOPICS), *(Register(each, True, None, "") for each in "ps")]
    made: list[Operation] = []
    for _ in range(rng.randint(1, 3)):
        topic = rng.choice("tu")
        start: Any = rng.choice(("new", "earliest", rng.randint(1, 40)))
        keep = parse_keep(rng.choice(("unread", "forever", "5", "64B", "200ms", "2s")))
        full: dict[str, Any] = rng.choice(
            (
                {"max_bytes": 0, "when_full": "refuse"},
                {"max_bytes": 90},
                {"max_bytes": 70, "when_full": "drop-oldest"},
            )
        )
        batch = pack([b"x" * rng.randint(0, 9) for _ in range(rng.randint(1, 3))])
        client = rng.choice("ps")
        if rng.random() < 0.4:
            made.append(Put("p", None, topic, counters[topic], *batch))
            counters[topic] += len(batch[0]) // 4
            continue
        made.append(
            rng.choice(
                (
                    Subscribe(client, None, topic, None, start=start),
                    Unsubscribe(client, None, topic, None),
                    Seek(client, None, topic, None, start),
                    Advance(client, None, {topic: rng.randint(0, 40)}),
                    SetTopic(topic, keep | full, rng.random() < 0.7, False),
                    DeleteTopic(topic, rng.random() < 0.5, False),
                    Purge(topic, rng.randint(0, 30), False),
                )
            )
        )
    return made


# --- texts ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "keep", "amount", "shown"),
    [
        ("unread", "unread", 0, "unread"),
        ("forever", "forever", 0, "forever"),
        ("10GB", "bytes", 10**10, "10GB"),
        ("512MiB", "bytes", 2**29, "512MiB"),
        ("7d", "ms", 604_800_000, "1w"),
        ("90m", "ms", 5_400_000, "90m"),
        ("250 ms", "ms", 250, "250ms"),
        ("1000", "count", 1000, "1000"),
    ],
)
def test_what_to_keep_is_read_from_a_text_and_shown_as_one(
    text: str, keep: str, amount: int, shown: str
) -> None:
    assert parse_keep(text) == {"keep": keep, "amount": amount}
    assert Policy(keep, amount).keep_text == shown
    assert parse_keep(shown) == {"keep": keep, "amount": amount}


def test_a_policy_says_nothing_of_dead_letters_that_go_nowhere() -> None:
    assert "dead_letter" not in Policy().parts()
    policy = Policy(dead_letter="dead")
    assert Policy(**policy.parts()) == policy
    assert str(policy) == "keep unread, dead letters to 'dead'"


@pytest.mark.parametrize("text", ["", "0", "ten", "-1", "5 parsecs", "1.5GB", "99999999999999999"])
def test_what_is_no_amount_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"none of unread|is not from 1"):
        parse_keep(text)
    with pytest.raises(ValueError, match=r"is no size|is not from 1"):
        parse_size(text)


@pytest.mark.parametrize(
    "parts",
    [
        {"kept": 1},
        {"keep": "bytes"},
        {"keep": "bytes", "amount": 0},
        {"keep": "forever", "amount": 1},
        {"keep": "unread", "amount": True},
        {"keep": 5, "amount": 5},
        {"max_bytes": -1},
        {"when_full": "explode"},
        {"dead_letter": 5},
        {"dead_letter": "a\nb"},
    ],
)
def test_parts_of_a_policy_that_make_no_sense_are_refused(parts: dict[str, Any]) -> None:
    with pytest.raises(ProtocolError):
        check_parts(parts)


# --- one entry, clocks, and policies that change --------------------------------------------------


def timed_entry(bench: PolicyBench, wall_ms: int, *operations: Operation) -> list[Answer]:
    payload = encode(bench.now_ms, operations, wall_ms)
    outcomes = bench.store.apply(bench.store.applied_index + 1, 1, payload)
    bench.store.commit()
    return [answer_of(outcome) for outcome in outcomes]


def putting(counter: int) -> Put:
    return Put("p", None, "t", counter, *pack([b"x"]))


@pytest.fixture
def timed(bench: PolicyBench) -> PolicyBench:
    """A topic that keeps everything, in a cluster whose publications have times."""
    bench.ok(Raise(LEVEL_OF_PROPERTIES))
    bench.create()
    assert timed_entry(bench, 1_000, putting(1))[0][0] == "ok"
    return bench


@pytest.mark.parametrize(
    ("wall_ms", "start", "last_id"),
    [(2_000, "@3000", 2), (2_000, "@2000", 1), (500, "@1000", 0), (500, "@1001", 2)],
)
def test_a_start_by_time_knows_when_what_its_own_entry_publishes_came(
    timed: PolicyBench, wall_ms: int, start: str, last_id: int
) -> None:
    """A leader whose clock is behind stamps what it takes with the latest time that was said."""
    subscribe = Subscribe("s", None, "t", None, start=start)
    _, (code, body) = timed_entry(timed, wall_ms, putting(2), subscribe)
    assert (code, body["last_id"]) == ("ok", last_id)


def test_a_start_by_time_follows_what_its_own_entry_has_published_and_acknowledged(
    timed: PolicyBench,
) -> None:
    """Nothing of that can be read yet, and nothing before it is kept."""
    timed.ok(SetTopic("t", parse_keep("unread"), False, False))
    timed.sub()
    timed.ok(Register("q", True, None, ""))
    acknowledge = Advance("s", None, {"t": 2})
    subscribe = Subscribe("q", None, "t", None, start="@0")
    *_, answer = timed_entry(timed, 2_000, putting(2), acknowledge, subscribe)
    assert (answer[0], answer[1]["last_id"]) == ("ok", 2)


def test_a_start_by_time_follows_what_its_own_entry_has_published_and_dropped(
    timed: PolicyBench,
) -> None:
    timed.ok(SetTopic("t", {"max_bytes": 5, "when_full": "drop-oldest"}, False, False))
    subscribe = Subscribe("s", None, "t", None, start="@0")
    *_, (code, body) = timed_entry(timed, 2_000, putting(2), putting(3), subscribe)
    assert (code, body["last_id"]) == ("ok", 2)
    assert timed.get("s", None) == [b"x"]


def test_a_policy_that_keeps_more_keeps_what_the_one_before_would_not(bench: PolicyBench) -> None:
    bench.create("1")
    bench.sub("earliest")
    bench.texts(5)
    assert bench.kept() == [1, 2, 3, 4, 5], "nobody has read it"
    bench.ok(SetTopic("t", parse_keep("1h"), False, False))
    bench.ok(Advance("s", None, {"t": 5}, placed=bench.store.placed("s")))
    assert bench.kept() == [1, 2, 3, 4, 5]


def test_what_gets_too_old_goes_from_a_topic_that_was_deleted_and_made_again(
    bench: PolicyBench,
) -> None:
    bench.create("1s")
    bench.texts(1)
    bench.ok(DeleteTopic("t", False, False))
    while bench.store.collect_garbage(10):
        bench.store.commit()
    bench.create("1h")
    bench.texts(1)
    bench.now_ms += 2_000
    bench.ok(Raise(LEVEL_OF_TOPICS))  # nothing of the topic
    assert bench.kept() == [2]
    for _ in range(3):
        bench.now_ms += HOUR_MS
        bench.ok(Raise(LEVEL_OF_TOPICS))
    assert bench.kept() == []


def test_a_topic_that_is_made_again_may_be_due_when_the_one_before_it_was(
    bench: PolicyBench,
) -> None:
    bench.create("10s")
    bench.texts(1)
    bench.ok(DeleteTopic("t", False, False))
    while bench.store.collect_garbage(10):
        bench.store.commit()
    bench.now_ms += 1_000
    bench.create("9s")
    bench.texts(1)
    bench.now_ms += 9_000
    bench.ok(Raise(LEVEL_OF_TOPICS))
    assert bench.kept() == []


def test_joined_stretches_end_where_the_later_one_of_a_pair_does() -> None:
    kept = retention.Retention(Policy(keep="ms", amount=retention.PARTS), 0)
    count = retention.STRETCHES_MAX + 1
    for number in range(1, count + 1):
        kept.added(number, number * 10, number * 10)
    ends = [each.last_id for each in kept.stretches]
    half = retention.STRETCHES_MAX // 2
    assert ends == [*range(2, half + 1, 2), *range(half + 1, count + 1)]
