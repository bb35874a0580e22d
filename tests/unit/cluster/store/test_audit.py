"""The running digest of the state, and what nodes make of each other's."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from cluster.node.audit import KEPT_MAX, TOLD_MAX, Differs, StateComparison, to_tell
from cluster.store import audit
from cluster.store.audit import MARKS_MAX
from cluster.store.commands import (
    Advance,
    Forget,
    Hear,
    Operation,
    Put,
    Raise,
    Register,
    Subscribe,
    Unsubscribe,
    encode,
)
from cluster.store.store import Store
from cluster.store.tables import row_crc
from cluster.wire.levels import LEVEL_OF_AUDIT
from flotilla_client.protocol import pack
from tests.unit.model_store import MEMBERS

FEW = 4  # entries between two agreed indexes


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "EVERY", FEW)


def entries(seed: int, count: int = 120) -> list[bytes]:
    """Return the payloads of a small busy cluster's log, its level raised by the first."""
    rng, stamp_ms = random.Random(seed), 0
    payloads = [encode(0, [Raise(LEVEL_OF_AUDIT)])]
    while len(payloads) < count:
        stamp_ms += rng.choice((1, 1_000, 3_600_000))
        client, topic = rng.choice("abcdefgh"), rng.choice("tuv")
        operations: list[Operation] = [
            rng.choice((
                Register(client, True, None, ""),
                Register(client, False, None, ""),
                Subscribe(client, None, topic, None),
                Unsubscribe(client, None, topic, None),
                Put(client, None, topic, rng.randrange(1, 9), *pack([b"x" * rng.randrange(9)])),
                Put(client, None, topic, rng.randrange(1, 9), *pack([b"x", b"y"])),
                Advance(client, None, {topic: rng.randrange(4)}),
                Hear([client]),
                Forget([client], 20 * 3_600_000),
            ))
            for _ in range(rng.randrange(1, 4))
        ]  # fmt: skip
        payloads.append(encode(stamp_ms, operations))
    payloads.append(b"")
    return payloads


def applied(path: Path, payloads: list[bytes], rng: random.Random | None = None) -> Store:
    """Return a store of the entries; `rng`: when it commits, collects and is started again."""
    store = Store.open(path, MEMBERS)
    for index, payload in enumerate(payloads, 1):
        store.apply(index, 1, payload)
        chance = rng.random() if rng is not None else 1.0
        if chance < 0.5:
            store.commit()
        if chance < 0.3:
            store.collect_garbage(1)
            store.commit()
        if chance < 0.1:
            marks = store.audit.marks
            store.close()
            store = Store.open(path, {})
            store.audit.marks.update(marks)
    return store


@pytest.mark.parametrize("seed", range(8))
def test_nodes_with_the_same_log_have_the_same_digests_whenever_they_write_or_start(
    seed: int, tmp_path: Path
) -> None:
    payloads = entries(seed)
    first = applied(tmp_path / "1.db", payloads)
    second = applied(tmp_path / "2.db", payloads, random.Random(seed))
    assert len(first.audit.marks) == len(payloads) // FEW
    assert first.audit.marks == second.audit.marks
    assert len(set(first.audit.marks.values())) == len(first.audit.marks)


def test_another_entry_makes_another_digest_from_there_on(tmp_path: Path) -> None:
    payloads = entries(1)
    other = list(payloads)
    other[60] = encode(10**9, [Register("new", True, None, "")])
    one, two = applied(tmp_path / "1.db", payloads), applied(tmp_path / "2.db", other)
    same = [index for index in one.audit.marks if one.audit.marks[index] == two.audit.marks[index]]
    assert same == list(range(FEW, 61, FEW))


def test_other_bytes_under_the_same_ids_make_another_digest(tmp_path: Path) -> None:
    stores = []
    for text in (b"x", b"y"):
        store = Store.open(tmp_path / f"{text.decode()}.db", MEMBERS)
        put = Put("p", None, "t", 1, *pack([text]))
        log = [Raise(LEVEL_OF_AUDIT)], _JOINS, [put], [Hear([])]
        for index, operations in enumerate(log, 1):
            store.apply(index, 1, encode(1, operations))
        stores.append(store)
    one, two = (store.audit.marks for store in stores)
    assert one.keys() == two.keys() == {FEW}
    assert one[FEW] != two[FEW]


_JOINS: list[Operation] = [Register("p", True, None, ""), Subscribe("p", None, "t", None)]


def _lower_a_cursor(store: Store) -> None:
    topic = store._topics.active["t"]
    subscription = topic.subscribers["s"]
    del topic.cursors[subscription.cursor]
    subscription.cursor -= 1
    topic.cursors[subscription.cursor] = 1


def _raise_a_counter(store: Store) -> None:
    row = (1, 1, "t", 7, 3)
    [(recent,)] = store._database.query("SELECT recent FROM producers")
    sql = "UPDATE producers SET counter = 7, crc = ? WHERE number = 1"
    store._database.write(sql, [(row_crc(row, recent),)])


def _lose_a_topic_s_end(store: Store) -> None:
    store._topics.active["t"].last_id += 1


def _purge_on_one_node(store: Store) -> None:
    topic = store._topics.active["t"]
    topic.purged_id = topic.floor_id  # nothing else differs by it


def _forget_a_client(store: Store) -> None:
    store._database.write("DELETE FROM clients WHERE client_id = ?", [("idle",)])


@pytest.mark.parametrize(
    "damage",
    [_lower_a_cursor, _raise_a_counter, _lose_a_topic_s_end, _purge_on_one_node, _forget_a_client],
)
def test_a_state_that_differs_is_found_though_no_operation_meets_the_difference(
    damage: object, tmp_path: Path
) -> None:
    assert callable(damage)
    setup = [
        [Raise(LEVEL_OF_AUDIT)],
        [Register(client, True, None, "") for client in ("p", "s", "idle", "other")],
        [Subscribe("s", None, "t", None)],
        *([Put("p", None, "t", number, *pack([b"x"]))] for number in (1, 2, 3)),
        [Advance("s", None, {"t": 2})],
    ]
    stores = []
    for name in ("1.db", "2.db"):
        store = Store.open(tmp_path / name, MEMBERS)
        for index, operations in enumerate(setup, 1):
            store.apply(index, 1, encode(1, operations))
        store.commit()
        stores.append(store)
    damage(stores[1])
    for index in range(len(setup) + 1, len(setup) + 2 * FEW):
        for store in stores:
            store.apply(index, 1, encode(1, [Put("other", None, "u", index, *pack([b"x"]))]))
    one, two = (store.audit.marks for store in stores)
    assert one[FEW] == two[FEW]
    assert one[3 * FEW] != two[3 * FEW]


def test_below_the_level_there_is_no_digest(tmp_path: Path) -> None:
    store = applied(tmp_path / "store.db", entries(1)[1:40])
    assert store.audit.marks == {}


def test_digests_of_old_indexes_are_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit, "MARKS_MAX", 3)
    store = applied(tmp_path / "store.db", entries(1))
    assert list(store.audit.marks) == [112, 116, 120]


# --- what nodes make of each other's -------------------------------------------------------------


def marks(count: int, *, wrong_from: int = 2**60) -> dict[int, str]:
    """Return the digests of so many agreed indexes, wrong ones from an index on."""
    made = (FEW * number for number in range(1, count + 1))
    return {index: ("bad" if index >= wrong_from else "good") + str(index) for index in made}


def test_two_nodes_have_some_index_in_common_however_far_apart_they_say_it() -> None:
    for behind in (0, 1, 5, 30, 200):
        told = to_tell(marks(MARKS_MAX))
        assert len(told) <= TOLD_MAX
        common = told.keys() & to_tell(marks(MARKS_MAX - behind)).keys()
        assert common, behind
        assert max(common) >= FEW * (MARKS_MAX - 4 * max(behind, 1) - 4), behind


def test_the_one_that_differs_from_a_majority_stops_and_says_since_when() -> None:
    comparison = StateComparison()
    mine = marks(20, wrong_from=FEW * 11)
    for name in ("b", "c"):
        comparison.take(name, "once", to_tell(marks(10)))
    assert comparison.judge(mine, of("bc"), 2) == (0, [])
    assert comparison.agreed == FEW * 10
    comparison.take("b", "once", to_tell(marks(20)))
    index, who = comparison.judge(mine, of("bc"), 2)
    assert (index, who) == (FEW * 20, ["b"])  # one word against another
    comparison.take("c", "once", to_tell(marks(20)))
    with pytest.raises(Differs, match=f"between entries {FEW * 10} and {FEW * 16}") as caught:
        comparison.judge(mine, of("bc"), 2)
    assert caught.value.agreed == FEW * 10


def test_those_who_are_the_majority_say_who_differs_once_and_go_on() -> None:
    comparison = StateComparison()
    comparison.take("b", "once", to_tell(marks(20)))
    comparison.take("c", "once", to_tell(marks(20, wrong_from=FEW * 20)))
    assert comparison.judge(marks(20), of("bc"), 2) == (FEW * 20, ["c"])
    assert comparison.judge(marks(20), of("bc"), 2) == (0, [])
    assert comparison.agreed == FEW * 20


def test_nobody_s_word_counts_who_is_no_member_and_one_other_s_is_no_majority() -> None:
    comparison = StateComparison()
    for name in ("b", "c", "stranger"):
        comparison.take(name, "once", to_tell(marks(20, wrong_from=0)))
    assert comparison.judge(marks(20), {}, 2) == (0, [])
    assert comparison.judge(marks(20), of("b"), 2)[1] == ["b"]
    with pytest.raises(Differs):
        comparison.judge(marks(20), of("bc"), 2)


def test_of_five_two_s_word_stops_nobody() -> None:
    comparison = StateComparison()
    for name in ("b", "c"):
        comparison.take(name, "once", to_tell(marks(20, wrong_from=0)))
    assert comparison.judge(marks(20), of("bcde"), 3) == (FEW * 20, ["b", "c"])


def test_of_five_two_may_differ() -> None:
    comparison = StateComparison()
    for name, wrong_from in (("b", 0), ("c", 2**60), ("d", 2**60), ("e", 0)):
        comparison.take(name, "once", to_tell(marks(20, wrong_from=wrong_from)))
    index, who = comparison.judge(marks(20), of("bcde"), 3)
    assert (index, who) == (FEW * 20, ["b", "e"])
    comparison.take("e", "once", to_tell(marks(20)))
    with pytest.raises(Differs):
        comparison.judge(marks(20, wrong_from=0), of("bcde"), 3)


def test_what_one_tells_is_kept_in_bounded_space() -> None:
    comparison = StateComparison()
    for start in range(0, 100_000, 50):
        comparison.take("b", "once", {start + number: "x" for number in range(50)})
    incarnation, told = comparison._told["b"]
    assert (incarnation, len(told), min(told)) == ("once", KEPT_MAX, 100_000 - KEPT_MAX)


def test_a_state_is_in_dispute_until_a_majority_has_this_node_s_own() -> None:
    comparison = StateComparison()
    comparison.take("b", "once", to_tell(marks(20, wrong_from=FEW * 16)))
    comparison.judge(marks(20), of("bc"), 2)
    assert comparison.in_dispute == ["b"]
    comparison.take("c", "once", to_tell(marks(20)))
    comparison.judge(marks(20), of("bc"), 2)
    assert comparison.in_dispute == []


def test_what_an_earlier_incarnation_told_is_disputed_no_more() -> None:
    comparison = StateComparison()
    comparison.take("b", "once", to_tell(marks(20, wrong_from=FEW * 16)))
    comparison.judge(marks(20), of("bc"), 2)
    assert comparison.in_dispute == ["b"]
    comparison.judge(marks(20), of("bc", "again"), 2)
    assert comparison.in_dispute == []
    comparison.take("b", "again", {})
    comparison.judge(marks(20), of("bc", "again"), 2)
    assert comparison.in_dispute == []


def of(names: str, incarnation: str = "once") -> dict[str, str]:
    return dict.fromkeys(names, incarnation)
