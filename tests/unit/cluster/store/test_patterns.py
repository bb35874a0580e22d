"""Subscriptions to patterns in the store: what they bring, and to whom."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster.store import patterns as patterns_module
from cluster.store.commands import (
    ChangeUser,
    DeleteTopic,
    DropSubscription,
    Operation,
    Put,
    Raise,
    Register,
    SetTopic,
    Subscribe,
    SubscribePattern,
    Unsubscribe,
    UnsubscribePattern,
    decode,
    encode,
    level_of,
)
from cluster.store.outcomes import Delivery, Refused
from cluster.store.patterns import Pattern, Patterns
from cluster.store.store import Limits
from cluster.store.tables import Database
from flotilla_client.losses import found
from flotilla_client.protocol import matches, pack
from tests.unit.store_bench import Bench

MEMBERS = {"a": "ia"}


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path / "store.db", Limits())
    made.ok(Raise(4))
    for name in ("p", "s"):
        made.ok(Register(name, True, None, ""))
    yield made
    made.store.close()


def follow(pattern: str, start: str = "new", client: str = "s", **fields: Any) -> SubscribePattern:
    return SubscribePattern(
        client, None, pattern, None, start, fields.pop("topics_max", 0), **fields
    )


def leave(pattern: str, client: str = "s") -> UnsubscribePattern:
    return UnsubscribePattern(client, None, pattern, None)


def put(bench: Bench, topic: str, counter: int = 1, **fields: Any) -> dict[str, Any]:
    return bench.ok(Put("p", None, topic, counter, *pack([b"x"]), **fields))


def user(name: str, change: str = "user-add", **rights: Any) -> ChangeUser:
    subscribe, publish = rights.get("subscribe", []), rights.get("publish", [])
    return ChangeUser(change, name, publish, subscribe, False, False, True)


def test_a_pattern_has_what_there_is_at_its_end_and_what_comes_from_its_beginning(
    bench: Bench,
) -> None:
    bench.ok(Subscribe("p", None, "o.eu", None))
    put(bench, "o.eu")
    at = bench.store.applied_index + 1
    assert bench.ok(follow("o.*")) == {
        "last_id": 0,
        "resumed": False,
        "pattern": at,
        "topics": {"o.eu": 1},
        "placed": {},
    }
    assert put(bench, "o.us")["stored"]
    assert not put(bench, "o.us.ny")["stored"]
    assert bench.store.subscriptions("s") == {"o.eu": 1, "o.us": 0}
    again = bench.ok(follow("o.*"))
    assert (again["resumed"], again["pattern"]) == (True, at)


@pytest.mark.parametrize("make", ["subscription", "policy"])
def test_a_topic_that_somebody_makes_joins_those_whose_pattern_it_is_of(
    bench: Bench, make: str
) -> None:
    bench.ok(follow("o.>"))
    operation: Operation = Subscribe("p", None, "o.a.b", None)
    if make == "policy":
        operation = SetTopic("o.a.b", {"keep": "forever", "amount": 0}, True, True)
    bench.ok(operation)
    assert bench.store.subscriptions("s") == {"o.a.b": 0}


def test_a_pattern_that_an_earlier_build_wrote_has_no_bound_of_subscriptions(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as earlier:
        earlier.setattr(patterns_module, "_record", lambda each: f'[{each.at},"bob",7,"o.b"]')
        bench.ok(follow("o.*", topics_max=7))
        bench.store.commit()
    bench.reopen(Limits())
    (pattern,) = bench.store.patterns.of("s").values()
    assert (pattern.topics_max, pattern.missed, pattern.subscriptions_max) == (7, "o.b", 0)


def test_a_pattern_and_what_it_brought_outlive_the_process(bench: Bench) -> None:
    bench.ok(follow("o.*"))
    put(bench, "o.a")
    bench.ok(Subscribe("s", None, "o.b", None))
    digest = bench.store.digest()
    bench.reopen(Limits())
    assert bench.store.digest() == digest
    assert put(bench, "o.c")["stored"]
    left = bench.ok(leave("o.*"))
    assert left == {"was_subscribed": True, "topics": ["o.b"]}
    assert bench.ok(leave("o.*")) == {"was_subscribed": False, "topics": ["o.b"]}


def test_a_topic_is_left_with_the_last_pattern_that_brings_it(bench: Bench) -> None:
    bench.ok(follow("o.*"))
    bench.ok(follow("o.>"))
    put(bench, "o.a")
    refused = bench.one(Unsubscribe("s", None, "o.a", None))
    assert refused == ("bad_request", {"pattern": "o.*"})
    assert bench.ok(leave("o.>"))["topics"] == ["o.a"]
    bench.ok(Subscribe("s", None, "o.a", None))  # by its name as well
    assert bench.ok(leave("o.*"))["topics"] == ["o.a"]
    assert bench.ok(Unsubscribe("s", None, "o.a", None)) == {"was_subscribed": True}


def test_a_deleted_topic_comes_again_behind_the_ids_that_it_had(bench: Bench) -> None:
    bench.ok(follow("o.*"))
    put(bench, "o.a")
    bench.ok(DeleteTopic("o.a", True, True))
    assert bench.store.subscriptions("s") == {}
    assert put(bench, "o.a", 2)["id"] == 2
    assert bench.store.subscriptions("s") == {"o.a": 1}


def test_an_operator_ends_a_pattern_in_its_subscriber_s_place(bench: Bench) -> None:
    bench.ok(follow("o.*"))
    put(bench, "o.a")
    bench.ok(DropSubscription("s", "o.*", True))
    assert bench.store.subscriptions("s") == {}
    assert not bench.store.patterns.count


def test_a_name_with_wildcards_is_of_no_pattern_and_goes_on_for_who_has_it(bench: Bench) -> None:
    bench.ok(Subscribe("p", None, "o.*", None))  # as version 0.1 took it
    bench.ok(follow(">"))
    assert bench.store.subscriptions("s") == {}
    assert put(bench, "o.*")["stored"]
    assert not put(bench, "o.>")["stored"]
    assert bench.ok(follow("o.*", client="p"))["resumed"]
    assert bench.ok(leave("o.*", "p"))["was_subscribed"]
    assert bench.store.patterns.count == 1


def test_what_a_principal_may_not_read_no_pattern_brings_him(bench: Bench) -> None:
    bench.ok(Register("c", True, None, "", "shop"))
    bench.ok(user("shop", subscribe=["o.>"]))
    bench.ok(user("shop", "user-deny", subscribe=["o.secret"]))
    asked = follow("o.*", client="c", principal="shop")
    assert bench.one(follow(">", client="c", principal="shop"))[0] == "unauthorized"
    bench.ok(Subscribe("p", None, "o.secret", None))
    assert bench.ok(asked)["topics"] == {}
    bench.ok(Unsubscribe("p", None, "o.secret", None))
    assert not put(bench, "o.secret")["stored"], "nobody else wants it"
    assert put(bench, "o.open")["stored"]
    bench.ok(Subscribe("p", None, "o.secret", None))
    assert bench.store.subscriptions("c") == {"o.open": 0}
    bench.ok(user("shop", "user-allow", subscribe=["o.secret"]))
    assert bench.ok(asked)["topics"] == {"o.open": 0, "o.secret": 0}


def test_who_misses_a_topic_for_want_of_room_is_told_until_he_asks_again(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "small.db", Limits(subscriptions_per_client_max=2))
    bench.ok(Raise(4))
    for name in ("p", "s"):
        bench.ok(Register(name, True, None, ""))
    bench.ok(follow("o.*"))
    for name, stored in (("o.a", True), ("o.b", True), ("o.c", False), ("o.d", False)):
        assert put(bench, name)["stored"] is stored
    for _ in range(2):
        told = bench.store.read_any("s", {}, 9, 99)
        assert isinstance(told, Refused)
        assert (told.code, told.details) == ("too_many", {"pattern": "o.*", "topic": "o.c"})
        bench.reopen(Limits(subscriptions_per_client_max=2))
    bench.ok(follow("o.*"))
    assert isinstance(bench.store.read_any("s", {}, 9, 99), Delivery)
    bench.ok(Subscribe("p", None, "o.e", None))
    assert isinstance(bench.store.read_any("s", {}, 9, 99), Refused)
    assert bench.one(follow("o.*")) == ("too_many", {"limit": 2}), "all of them, or none"
    bench.store.close()


def test_a_quota_that_stands_in_the_entry_bounds_what_a_pattern_brings(bench: Bench) -> None:
    bench.ok(Register("c", True, None, "", "shop"))
    bench.ok(user("shop", subscribe=[">"]))
    bench.ok(follow("o.*", client="c", principal="shop", topics_max=1))
    assert put(bench, "o.a")["stored"]
    assert not put(bench, "o.b")["stored"]
    assert bench.store.patterns.page("", "", 9)[0]["missed"] == "o.b"


def test_what_a_pattern_brings_leaves_a_principal_no_more_subscriptions_than_its_quota(
    bench: Bench,
) -> None:
    """By patterns of its clients one principal could have all 100,000 subscriptions."""
    bench.ok(user("shop", subscribe=[">"]))
    for client in "cd":
        bench.ok(Register(client, True, None, "", "shop"))
        bench.ok(follow("o.*", client=client, principal="shop", subscriptions_max=3))
    assert put(bench, "o.a")["stored"]
    assert put(bench, "o.b")["stored"], "one of the two has room for it"
    assert bench.store.holdings.subscriptions["shop"] == 3
    missed = {row["client_id"]: row["missed"] for row in bench.store.patterns.page("", "", 9)}
    assert missed == {"c": "", "d": "o.b"}
    assert isinstance(bench.store.read_any("d", {}, 9, 99), Refused)
    bench.reopen()
    bench.ok(Register("e", True, None, "", "shop"))
    refused = bench.one(follow("o.*", client="e", principal="shop", subscriptions_max=3))
    assert refused == ("quota", {"quota": "subscriptions_max", "limit": 3})
    assert not put(bench, "o.c")["stored"]
    bench.ok(follow("o.*", client="d", principal="shop", subscriptions_max=5))
    assert isinstance(bench.store.read_any("d", {}, 9, 99), Delivery)


def test_who_has_more_than_the_quota_may_still_ask_for_what_he_has(bench: Bench) -> None:
    bench.ok(Register("c", True, None, "", "shop"))
    bench.ok(user("shop", subscribe=[">"]))
    bench.ok(follow("o.*", client="c", principal="shop", topics_max=2))
    assert put(bench, "o.a")["stored"]
    assert put(bench, "o.b")["stored"]
    body = bench.ok(follow("o.*", client="c", principal="shop", topics_max=1))
    assert (body["resumed"], sorted(body["topics"])) == (True, ["o.a", "o.b"])
    assert not put(bench, "o.c")["stored"]
    assert bench.one(follow("o.*", "earliest", client="c", principal="shop", topics_max=1))[0] == (
        "ok"
    ), "there is no o.c"
    bench.ok(Register("d", True, None, "", "else"))
    bench.ok(Subscribe("d", None, "o.c", None))
    refused = bench.one(follow("o.*", client="c", principal="shop", topics_max=1))
    assert refused == ("quota", {"quota": "topics_max", "limit": 1})


@pytest.mark.parametrize(
    ("limits", "limit"),
    [(Limits(patterns_per_client_max=2), 2), (Limits(patterns_max=2), 2)],
)
def test_patterns_are_bounded(tmp_path: Path, limits: Limits, limit: int) -> None:
    bench = Bench(tmp_path / "small.db", limits)
    bench.ok(Raise(4))
    bench.ok(Register("s", True, None, ""))
    assert [bench.one(follow(each))[0] for each in ("a.*", "b.*", "a.*")] == ["ok"] * 3
    assert bench.one(follow("c.*")) == ("too_many", {"limit": limit})
    bench.store.close()


def test_the_tree_finds_what_comparing_with_each_pattern_finds(tmp_path: Path) -> None:
    database = Database(tmp_path / "tree.db", MEMBERS)
    tree, words = Patterns(database), ("a", "b", "*", ">")
    texts = [".".join((x, y, z)) for x in "ab*" for y in "ab*" for z in words] + [*words, "a.>"]
    for text in texts:
        tree.set(Pattern("c", 1, text, 1, None, 0))
    names = ["a", "b", "c", "a.b", "a.b.a", "b.a.b.a", "c.c.c", "a..b", "", "a.*", "a.b.>"]
    for name in names:
        found = [each.text for _, patterns in tree.of_topic(name) for each in patterns]
        expected = [text for text in sorted(texts) if matches(text, name)]
        assert found == ([] if "*" in name or ">" in name else expected), name
    for text in texts:
        tree.end(tree.of("c")[text])
    assert tree._root == patterns_module._TreeNode(), "what leads nowhere is gone"
    database.close()


def test_a_put_to_a_topic_that_is_there_looks_for_no_pattern(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[str] = []
    of_topic = Patterns.of_topic

    def counted(patterns: Patterns, name: str) -> Any:
        looked.append(name)
        return of_topic(patterns, name)

    bench.ok(follow(">"))
    monkeypatch.setattr(Patterns, "of_topic", counted)
    put(bench, "o.a")
    looked.clear()
    for counter in range(2, 9):
        put(bench, "o.a", counter)
    assert looked == []


def test_an_entry_with_a_pattern_needs_the_level_and_is_read_back() -> None:
    operations: list[Operation] = [follow("o.*", "earliest", topics_max=3), leave("o.*")]
    payload = encode(7, operations)
    assert level_of(payload) == 4
    assert decode(payload)[1] == operations


def test_what_a_pattern_brought_is_no_subscription_that_came_back_behind_a_recovery() -> None:
    body = {"subscriptions": {"o.a": 1, "x": 1}, "patterns": {"o.*": 3}, "settled": {}}
    lost = found({}, {}, body, {"o.*": 3, "gone.*": 4})
    assert (lost.subscriptions, lost.returned) == (("gone.*",), ("x",))


def test_a_pattern_that_was_said_twice_is_left_at_once(bench: Bench) -> None:
    for _ in range(2):
        bench.ok(follow("o.*"))
    assert bench.store.patterns.count == 1
    bench.ok(leave("o.*"))
    assert not put(bench, "o.eu")["stored"]
    assert bench.store.patterns.count == 0


def test_a_name_that_was_looked_for_is_no_more_of_a_pattern_that_was_left(bench: Bench) -> None:
    bench.ok(follow("o.*"))
    assert put(bench, "o.eu")["stored"]
    bench.ok(leave("o.*"))
    assert not put(bench, "o.eu", 2)["stored"]


def test_a_pattern_of_too_many_topics_is_refused_without_a_look_at_all_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(tmp_path / "small.db", Limits(subscriptions_per_client_max=2))
    bench.ok(Raise(4))
    for number in range(3):
        bench.ok(Register(f"p{number}", True, None, ""))
        for each in range(2):
            bench.ok(Subscribe(f"p{number}", None, f"t.{number}{each}", None))
    bench.ok(Register("s", True, None, ""))
    looked_at: list[str] = []
    lacks = bench.store.lacks

    def noted(principal: str | None, right: str, topic: str) -> Refused | None:
        looked_at.append(topic)
        return lacks(principal, right, topic)

    monkeypatch.setattr(bench.store, "lacks", noted)
    [(code, _)] = bench.apply(follow("t.*"))
    assert code == "too_many"
    assert looked_at == ["t.*", "t.00", "t.01", "t.10"], "one more than there is room for"
    bench.store.close()


def test_a_topic_comes_by_the_pattern_that_has_room_whatever_another_one_of_it_has(
    bench: Bench,
) -> None:
    bench.ok(Register("c", True, None, "", "shop"))
    bench.ok(follow("o.*", client="c", principal="shop", topics_max=1))
    bench.ok(follow("*.b", client="c", principal="shop"))
    for topic in ("o.a", "o.b"):
        put(bench, topic)
    assert bench.store.subscriptions("c") == {"o.a": 0, "o.b": 0}
    assert [row["missed"] for row in bench.store.patterns.page("", "", 9)] == ["", ""]


def test_names_that_were_looked_for_are_kept_in_bounded_number(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patterns_module, "NAMES_CACHED_MAX", 3)
    bench.ok(follow("o.*"))
    patterns = bench.store.patterns
    for number in range(20):
        for name in (f"o.{number}", f"other.{number}"):
            assert [client for client, _ in patterns.of_topic(name)] == ["s"] * (name[1] == ".")
            assert len(patterns._found) <= 3
