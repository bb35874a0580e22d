"""Claims about cluster/store/store.py: the rules of docs/protocol.md, alone and against a model."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from cluster.store.commands import (
    Admit,
    Advance,
    DamagedEntry,
    Operation,
    Put,
    Register,
    Subscribe,
    Unsubscribe,
    encode,
)
from cluster.store.publications import Publications
from cluster.store.store import Delivery, Limits, Refused, Store
from cluster.store.topics import Topic, Topics
from flotilla_client.protocol import INTEGER_MAX, TEXT_HEADER_BYTES_MAX, pack
from tests.unit.model_store import (
    CLIENTS,
    MEMBERS,
    SMALL,
    TOPICS,
    Answer,
    ModelStore,
    answer_of,
    check_delivery,
    random_entries,
    random_operation,
    random_payloads,
)
from tests.unit.store_bench import Bench, replay

# --- applying -------------------------------------------------------------------------------------


def test_an_entry_is_applied_once_and_in_order(bench: Bench) -> None:
    payload = encode(1, [Put("p", None, "t", 0, *pack([b"x"]))])
    index = bench.store.applied_index + 1
    assert len(bench.store.apply(index, 3, payload)) == 1
    assert bench.store.apply(index, 3, payload) == []
    with pytest.raises(AssertionError, match="after"):
        bench.store.apply(index + 2, 3, payload)
    assert (bench.store.applied_index, bench.store.applied_term) == (index, 3)
    assert len(bench.get("s")) == 1


def test_a_no_op_moves_only_the_position(bench: Bench) -> None:
    index = bench.store.applied_index + 1
    assert bench.store.apply(index, 9, b"") == []
    bench.store.commit()
    assert (bench.store.applied_index, bench.store.applied_term) == (index, 9)


def test_bytes_that_are_no_entry_are_raised(bench: Bench) -> None:
    with pytest.raises(DamagedEntry):
        bench.store.apply(bench.store.applied_index + 1, 1, b"\x01garbage")


def _applied(store: Store, *operations: Operation) -> list[Answer]:
    """Apply an entry as a turn does whose commit is not due."""
    payload = encode(1, operations)
    outcomes = store.apply(store.applied_index + 1, 1, payload)
    store.settle(is_due=False)
    return [answer_of(outcome) for outcome in outcomes]


def test_what_is_not_committed_yet_is_read_and_opens_no_transaction(bench: Bench) -> None:
    bench.ok(Subscribe("s", None, "u", None))
    bench.put(0, b"0", b"1")
    for counter in range(2, 6):
        _applied(bench.store, Put("p", None, "u", counter - 2, *pack([b"u"])))
        _applied(bench.store, Put("p", None, "t", counter, *pack([b"%d" % counter])))
    assert bench.store.uncommitted == 8
    for last_id in range(7):  # from what is committed, over both, and from each that is not
        assert bench.get("s", last_id) == [b"%d" % number for number in range(last_id, 6)]
    assert bench.get("s", topic="u") == [b"u"] * 4
    told = {"t": 2}
    waiting = bench.store.read_any("s", told, 9, 99)
    assert isinstance(waiting, Delivery)
    assert waiting.topic == "u"  # its first came an entry sooner than the third of t
    assert bench.store.uncommitted == 8
    bench.reopen()
    assert bench.get("s") == [b"0", b"1"]


def test_what_is_written_for_a_chore_is_committed_in_its_turn_with_its_position(
    bench: Bench,
) -> None:
    bench.put(0, b"0")
    _applied(bench.store, Advance("s", None, {"t": 1}))
    _applied(bench.store, Put("p", None, "t", 1, *pack([b"1"])))
    assert bench.store.collect_garbage(10) == 1
    index = bench.store.applied_index
    bench.store.settle(is_due=False)
    assert bench.store.uncommitted == 0
    bench.reopen()
    assert bench.store.applied_index == index
    assert (bench.store.cursor("s", "t"), bench.get("s")) == (1, [b"1"])


def test_what_a_crash_takes_is_applied_again_to_the_same_answers_and_the_same_state(
    bench: Bench,
) -> None:
    bench.put(0, b"0")
    entries: list[Operation] = [
        Put("p", None, "t", 1, *pack([b"1", b"2"])),
        Advance("s", None, {"t": 2}),
        Put("p", None, "t", 1, *pack([b"1", b"2"])),  # as its client sends it again
        Unsubscribe("s", None, "t", None),
        Subscribe("s", None, "t", None),
        Put("p", None, "t", 3, *pack([b"3"])),
    ]
    committed = bench.store.applied_index
    answers = [_applied(bench.store, entry) for entry in entries]
    bench.reopen()
    assert bench.store.applied_index == committed
    assert [_applied(bench.store, entry) for entry in entries] == answers
    again = bench.store.digest()
    bench.reopen()
    assert bench.store.digest() == again
    assert bench.get("s") == [b"3"]


def test_what_was_not_committed_is_gone_after_a_restart(bench: Bench) -> None:
    index = bench.store.applied_index
    bench.store.apply(index + 1, 1, encode(1, [Put("p", None, "t", 0, *pack([b"x"]))]))
    assert bench.get("s") == [b"x"]  # written, for the read
    bench.store.close()
    bench.store = Store.open(bench.path, {})
    assert bench.store.applied_index == index
    assert bench.get("s") == []


def test_a_large_backlog_of_one_turn_does_not_stay_in_memory(bench: Bench) -> None:
    put = Put("p", None, "t", 0, *pack([bytes(1_000_000)]))
    for counter in range(20):
        put.counter = counter
        bench.store.apply(bench.store.applied_index + 1, 1, encode(1, [put]))
        assert bench.store._publications.buffered_bytes < 10_000_000


def test_admit_changes_a_members_incarnation_and_no_stranger_s(bench: Bench) -> None:
    bench.ok(Admit("b", "new"))
    assert bench.one(Admit("zz", "new"))[0] == "bad_request"
    assert bench.store.members == MEMBERS | {"b": "new"}
    bench.store.close()
    bench.store = Store.open(bench.path, {})
    assert bench.store.members == MEMBERS | {"b": "new"}


# --- subscriptions --------------------------------------------------------------------------------


def test_a_subscriber_gets_what_comes_after_its_sub(bench: Bench) -> None:
    bench.put(0, b"a", b"b")
    assert bench.ok(Subscribe("p", None, "t", None)) == {"last_id": 2, "resumed": False}
    bench.put(2, b"c")
    assert bench.get("p") == [b"c"]
    assert bench.get("s") == [b"a", b"b", b"c"]
    assert bench.ok(Subscribe("p", None, "t", None)) == {"last_id": 2, "resumed": True}


def test_unsub_is_idempotent(bench: Bench) -> None:
    assert bench.ok(Unsubscribe("s", None, "t", None)) == {"was_subscribed": True}
    assert bench.ok(Unsubscribe("s", None, "t", None)) == {"was_subscribed": False}
    assert bench.ok(Unsubscribe("s", None, "never", None)) == {"was_subscribed": False}


@pytest.mark.parametrize("collect", [False, True])
@pytest.mark.parametrize("reopen", [False, True])
def test_ids_go_on_in_a_topic_that_was_deleted(bench: Bench, collect: bool, reopen: bool) -> None:
    bench.put(0, b"a", b"b")
    bench.ok(Unsubscribe("s", None, "t", None))
    assert bench.store.all_topics("", 9) == []
    if collect:
        assert bench.store.collect_garbage(10) == 1
        bench.store.commit()
    if reopen:
        bench.store.close()
        bench.store = Store.open(bench.path, {})
    assert bench.ok(Subscribe("s", None, "t", None)) == {"last_id": 2, "resumed": False}
    assert bench.put(2, b"c")[1]["id"] == 3
    assert bench.get("s") == [b"c"]
    bench.store.collect_garbage(10)
    assert bench.store.total_backlog_bytes() == bench.store.backlog_bytes("t") == 5


def test_a_topic_deleted_and_created_within_one_entry_goes_on(bench: Bench) -> None:
    def put(counter: int) -> Put:
        return Put("p", None, "t", counter, *pack([b"%d" % counter]))

    bench.apply(
        put(0),
        Unsubscribe("s", None, "t", None),
        put(1),
        Subscribe("s", None, "t", None),
        put(2),
    )
    assert bench.get("s") == [b"2"]
    bench.put(3, b"3")
    digest = bench.store.digest()
    bench.store.close()
    bench.store = Store.open(bench.path, {})
    assert bench.get("s") == [b"2", b"3"]
    assert bench.store.digest() == digest
    assert bench.store.total_backlog_bytes() == 3 * 5


def test_limits_refuse_one_more_and_everything_else_goes_on(bench: Bench) -> None:
    for topic in "uv":
        bench.ok(Subscribe("s", None, topic, None))
    assert bench.one(Subscribe("s", None, "w", None)) == ("too_many", {"limit": 3})  # of the client
    for client in "qr":
        bench.ok(Register(client, True, None, ""))
    assert bench.one(Register("z", True, None, "")) == ("too_many", {"limit": 4})
    for topic in "tuv":
        bench.ok(Subscribe("q", None, topic, None))
    assert bench.one(Subscribe("r", None, "t", None)) == ("too_many", {"limit": 6})
    bench.ok(Unsubscribe("q", None, "v", None))
    bench.ok(Unsubscribe("s", None, "v", None))
    bench.ok(Subscribe("r", None, "fourth", None))
    bench.ok(Unsubscribe("r", None, "fourth", None))
    assert bench.one(Subscribe("r", None, "fifth", None)) == ("too_many", {"limit": 4})  # names
    bench.ok(Subscribe("r", None, "v", None))
    for topic in range(4):
        assert bench.put(0, topic=f"x{topic}")[0] == "ok"
    assert bench.put(0, topic="x4") == ("too_many", {"limit": 4})
    assert bench.put(1, topic="x3")[0] == "ok"


def test_ids_end_before_they_overflow_the_row_s_key(bench: Bench) -> None:
    assert bench.put(0, *[b"x"] * 199)[0] == "ok"
    assert bench.put(199, b"x", b"x") == ("too_many", {"limit": 200})
    assert bench.put(199, b"x")[0] == "ok"


def test_counters_of_a_client_fit_into_one_reply(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "store.db", Limits())
    bench.ok(Register("p", True, None, ""))
    puts = [Put("p", None, '"' * 240 + str(i), 0, *pack([b""])) for i in range(3000)]
    answers = bench.apply(*puts)
    assert answers[-1] == ("too_many", {"limit": 1024 * 1024})
    assert len(repr(bench.store.counters("p", "", 10_000))) < TEXT_HEADER_BYTES_MAX // 2
    bench.store.close()


# --- PUT ------------------------------------------------------------------------------------------


def test_counters_are_contiguous_and_a_duplicate_gets_its_id(bench: Bench) -> None:
    assert bench.put(40, b"a", b"b") == (
        "ok",
        {"id": 1, "count": 2, "duplicate": False, "stored": True},
    )
    assert bench.put(42, b"c") == ("ok", {"id": 3, "count": 1, "duplicate": False, "stored": True})
    assert bench.put(40, b"a", b"b") == (
        "ok",
        {"id": 1, "count": 2, "duplicate": True, "stored": True},
    )
    assert bench.put(41, b"b") == ("ok", {"id": 2, "count": 1, "duplicate": True, "stored": True})
    assert bench.put(44) == ("counter_gap", {"expected": 43})
    assert bench.put(42, b"c", b"d") == ("bad_request", {})
    assert bench.put(39) == ("ok", {"id": 0, "count": 1, "duplicate": True, "stored": None})
    assert bench.get("s") == [b"a", b"b", b"c"]


def test_what_was_taken_is_known_up_to_the_last_counter_and_not_beyond(bench: Bench) -> None:
    bench.put(40, b"a", b"b")
    assert [bench.store.has_taken("p", "t", counter) for counter in (40, 41, 42)] == [
        True,
        True,
        False,
    ]
    assert not bench.store.has_taken("p", "another", 40)
    assert not bench.store.has_taken("nobody", "t", 40)


def test_a_put_without_subscriber_is_not_stored_but_counted(bench: Bench) -> None:
    assert bench.put(5, topic="u") == (
        "ok",
        {"id": 0, "count": 1, "duplicate": False, "stored": False},
    )
    bench.ok(Subscribe("s", None, "u", None))
    assert bench.put(5, topic="u") == (
        "ok",
        {"id": 0, "count": 1, "duplicate": True, "stored": False},
    )
    assert bench.put(6, topic="u")[1]["id"] == 1


def test_counters_outlive_the_topic(bench: Bench) -> None:
    bench.put(0, b"a")
    bench.ok(Unsubscribe("s", None, "t", None))
    bench.ok(Subscribe("s", None, "t", None))
    assert bench.put(0, b"a") == ("ok", {"id": 1, "count": 1, "duplicate": True, "stored": True})
    assert bench.get("s") == []


def test_a_counter_never_leaves_what_json_can_say(bench: Bench) -> None:
    assert bench.put(INTEGER_MAX, b"a", b"b")[0] == "bad_request"
    assert bench.put(INTEGER_MAX, b"a")[0] == "ok"
    assert bench.put(INTEGER_MAX, b"a")[1]["duplicate"] is True


# --- reads ----------------------------------------------------------------------------------------


def test_reads_are_refused_with_the_code_that_says_why(bench: Bench) -> None:
    bench.put(0, b"a", b"b")
    bench.ok(Advance("s", None, {"t": 1}))

    def code(client: str, topic: str, last_id: int | None) -> str:
        answer = bench.store.read(client, topic, last_id, 1, 1)
        assert isinstance(answer, Refused)
        return answer.code

    assert code("s", "u", None) == "unknown_topic"
    assert code("p", "t", None) == "not_subscribed"
    assert code("s", "t", 3) == "bad_request"
    assert code("s", "t", 0) == "already_acknowledged"
    any_topic = bench.store.read_any("s", {"t": 0}, 1, 1)
    assert isinstance(any_topic, Refused)
    assert any_topic.details == {"topic": "t", "cursor": 1}


def test_a_read_below_the_cursor_is_answered_while_another_subscriber_keeps_it(
    bench: Bench,
) -> None:
    bench.ok(Subscribe("p", None, "t", None))
    bench.put(0, b"a", b"b")
    bench.ok(Advance("s", None, {"t": 2}))
    assert bench.get("s") == []
    assert bench.get("s", 0) == [b"a", b"b"]
    bench.ok(Advance("p", None, {"t": 1}))
    assert isinstance(bench.store.read("s", "t", 0, 9, 9), Refused)
    assert bench.get("s", 1) == [b"b"]


def test_any_topic_gives_the_one_that_waits_longest(bench: Bench) -> None:
    for topic in "uv":
        bench.ok(Subscribe("s", None, topic, None))
    bench.put(0, b"first", topic="v")
    bench.put(0, b"second", topic="t")
    bench.put(1, b"third", topic="v")

    def next_one(last_ids: dict[str, int]) -> tuple[str, bytes]:
        delivery = bench.store.read_any("s", last_ids, 1, 99)
        assert isinstance(delivery, Delivery)
        if delivery.count:
            bench.store.note_turn("s", delivery.topic)
        return delivery.topic, delivery.data

    assert next_one({}) == ("v", b"first")
    assert next_one({"v": 1}) == ("t", b"second")
    assert next_one({"v": 1, "t": 1}) == ("v", b"third")
    assert next_one({"v": 2, "t": 1}) == ("", b"")


def test_no_topic_waits_behind_a_hot_one_for_more_than_a_round(bench: Bench) -> None:
    for topic in "uv":
        bench.ok(Subscribe("s", None, topic, None))
    for counter in range(9):
        bench.put(counter, b"hot", topic="t")
    last_ids, got = {"t": 0, "u": 0, "v": 0}, []
    for turn in range(7):
        if turn == 2:
            bench.put(0, b"late", b"later", topic="u")
            bench.put(0, b"late", topic="v")
        delivery = bench.store.read_any("s", last_ids, 1, 99)
        assert isinstance(delivery, Delivery)
        bench.store.note_turn("s", delivery.topic)
        got.append(delivery.topic)
        last_ids[delivery.topic] += 1
    assert "".join(got) == "ttuvtut"


def test_a_thousand_topics_that_wait_are_looked_up_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(tmp_path / "store.db", Limits())
    bench.apply(Register("p", True, None, ""), Register("s", True, None, ""))
    names = [f"t{i:04}" for i in range(1000)]
    bench.apply(*(Subscribe("s", None, name, None) for name in names))
    for start in range(0, 1000, 100):
        batch = names[start : start + 100]
        bench.apply(*(Put("p", None, name, 0, *pack([b"1", b"2"])) for name in batch))
    lookups = 0
    entry_of = Publications.entry_of

    def counted(publications: Publications, topic: Topic, number: int) -> int:
        nonlocal lookups
        lookups += 1
        return entry_of(publications, topic, number)

    monkeypatch.setattr(Publications, "entry_of", counted)
    cursors = dict.fromkeys(names, 0)
    got = []
    for _ in range(50):
        delivery = bench.store.read_any("s", cursors, 9, 99)
        assert isinstance(delivery, Delivery)
        bench.store.note_turn("s", delivery.topic)
        got.append(delivery.topic)
        cursors[delivery.topic] = 2
    assert got == names[:50]
    assert lookups == 1000
    bench.store.close()


def test_a_page_of_topics_touches_as_many_topics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(tmp_path / "store.db", Limits())
    bench.ok(Register("s", True, None, ""))
    names = [f"t{i:03}" for i in range(900)]
    for name in reversed(names):
        bench.apply(Subscribe("s", None, name, None))
    for name in names[::3]:
        bench.apply(Unsubscribe("s", None, name, None))
    left = [name for name in names if name not in set(names[::3])]
    bench.reopen(Limits())
    touched = 0
    page = Topics.page

    def counted(topics: Topics, after: str, count_max: int) -> list[Topic]:
        nonlocal touched
        found = page(topics, after, count_max)
        touched += len(found)
        return found

    monkeypatch.setattr(Topics, "page", counted)
    rows: list[str] = []
    after = ""
    while some := bench.store.all_topics(after, 100):
        rows += [row["topic"] for row in some]
        after = rows[-1]
    assert rows == left
    assert touched == len(left)
    bench.store.close()


# --- acknowledgments ------------------------------------------------------------------


def test_advance_only_moves_up_and_all_or_nothing(bench: Bench) -> None:
    bench.put(0, b"a", b"b", b"c")
    bench.ok(Advance("s", None, {"t": 2}))
    bench.ok(Advance("s", None, {"t": 1}))
    assert bench.store.cursor("s", "t") == 2
    assert bench.one(Advance("s", None, {"t": 3, "u": 0})) == ("unknown_topic", {})
    assert bench.one(Advance("p", None, {"t": 3})) == ("not_subscribed", {})
    assert bench.one(Advance("s", None, {"t": 4})) == ("bad_request", {"end": 3})
    assert bench.store.cursor("s", "t") == 2


# --- views ----------------------------------------------------------------------------------------


def test_views_tell_what_topics_lists(bench: Bench) -> None:
    bench.put(0, b"abc", b"d")
    bench.ok(Advance("s", None, {"t": 1}))
    assert bench.store.topics_of("s", "", 9) == [
        {"topic": "t", "last_id": 2, "cursor": 1, "backlog": 1}
    ]
    assert bench.store.topics_of("p", "", 9) == []
    assert bench.store.all_topics("", 9) == [
        {"topic": "t", "last_id": 2, "subscribers": 1, "backlog_bytes": 12, "delayed": 0}
    ]
    assert bench.store.statistics() == {
        "applied_index": bench.store.applied_index,
        "applied_term": 1,
        "clients": 2,
        "clients_forgotten": 0,
        "producers": 1,
        "topics": 1,
        "topic_names": 1,
        "subscriptions": 1,
        "groups": 0,
        "backlog_bytes": 12,
        "delayed": 0,
    }


# --- against the model ----------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(12))
def test_answers_reads_and_restarts_are_the_model_s(tmp_path: Path, seed: int) -> None:
    rng, model = random.Random(seed), ModelStore()
    path = tmp_path / "store.db"
    store = Store.open(path, MEMBERS, SMALL)
    for index in range(1, 250):
        model.begin_entry()
        operations, answers = [], []
        for _ in range(rng.randrange(6)):
            operations.append(random_operation(rng, model))
            answers.append(model.operate(operations[-1]))
        outcomes = store.apply(index, 1, encode(1, operations))
        assert list(map(answer_of, outcomes)) == answers, (seed, index, operations)
        action = rng.random()
        if action < 0.3:
            store.commit()
        elif action < 0.4:
            store.collect_garbage(rng.randrange(1, 4))
        elif action < 0.45:
            store.commit()
            store.close()
            store = Store.open(path, {}, SMALL)
            model.reopened()
        _check_reads(rng, store, model)
    store.close()


def _check_reads(rng: random.Random, store: Store, model: ModelStore) -> None:
    client, topic = rng.choice(CLIENTS), rng.choice(TOPICS)
    count, size = rng.choice((1, 3, 100)), rng.choice((1, 50, 10_000))
    last_id = rng.choice((None, rng.randrange(model.last_id(topic) + 2)))
    expected = model.read(client, topic, last_id)
    delivery = store.read(client, topic, last_id, count, size, model.placed(client, topic))
    check_delivery(delivery, expected, count, size)
    delivery = store.read_any(client, {}, count, size)
    if model.has_missed(client):
        assert isinstance(delivery, Refused)
        assert delivery.code == "too_many"
    else:
        due = model.next_of_any(client)
        assert isinstance(delivery, Delivery)
        assert delivery.topic == due
        if due:
            store.note_turn(client, due)
            check_delivery(delivery, model.read(client, due, None), count, size)
    cursors = model.cursors(topic)
    assert store.cursor(client, topic) == cursors.get(client)
    assert store.subscriptions(client) == model.subscriptions(client)
    if client in model.reference.clients:
        assert store.counters(client, "", 9) == model.counters(client)
    assert [row["topic"] for row in store.all_topics("", 9)] == model.topics()
    assert store.members == model.members


@pytest.mark.parametrize("seed", range(4))
def test_the_state_depends_on_the_entries_alone(tmp_path: Path, seed: int) -> None:
    payloads = random_payloads(seed, 300)
    eager = replay(Store.open(tmp_path / "eager.db", MEMBERS, SMALL), payloads, lambda _: True)
    rng = random.Random(seed)
    path = tmp_path / "lazy.db"
    lazy = Store.open(path, MEMBERS, SMALL)
    for index, payload in enumerate(payloads, 1):
        lazy.apply(index, 1, payload)
        if rng.random() < 0.05:
            lazy.commit()
            lazy.close()
            lazy = Store.open(path, {}, SMALL)
        elif rng.random() < 0.1:
            lazy.collect_garbage(rng.randrange(1, 3))
    assert eager.digest() == lazy.digest()
    eager.close()
    lazy.close()


def test_the_digest_sees_every_kind_of_change(bench: Bench) -> None:
    digests = [bench.store.digest()]
    for operation in (
        Admit("a", "other"),
        Register("p", False, None, ""),
        Subscribe("p", None, "t", None),
        Put("p", None, "t", 0, *pack([b"a", b"b"])),
        Put("p", None, "nobody's", 0, *pack([b"a"])),
        Advance("p", None, {"t": 1}),
        Unsubscribe("p", None, "t", None),
    ):
        bench.ok(operation)
        digests.append(bench.store.digest())
    assert len(set(digests)) == len(digests)


def test_the_model_s_entries_are_not_all_refusals() -> None:
    answers = [a for _, answers in random_entries(1, 2000) for a in answers]
    codes = {code for code, _ in answers}
    assert sum(code == "ok" for code, _ in answers) > len(answers) / 4
    assert codes >= {"ok", "too_many", "fenced", "stale_request", "counter_gap", "unknown_topic"}


def test_a_topic_s_subscribers_are_listed_by_id_a_page_at_a_time(bench: Bench) -> None:
    for client in ("a", "b"):
        bench.ok(Register(client, True, None, ""))
    for client in ("p", "a", "b"):
        bench.ok(Subscribe(client, None, "u", None))
        bench.put(1, topic="u", client=client)
    store = bench.store
    rows = store.subscribers_of("u", "", 2)
    assert rows == [
        {"client_id": "a", "cursor": 1, "backlog": 2},
        {"client_id": "b", "cursor": 2, "backlog": 1},
    ]
    assert [row["client_id"] for row in store.subscribers_of("u", "b", 2)] == ["p"]
    assert store.subscribers_of("u", "p", 2) == store.subscribers_of("nowhere", "", 2) == []
