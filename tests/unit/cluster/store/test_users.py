"""Who may what: patterns, changes of users, and what the store and the leader do about it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.serve.broker import Answer
from cluster.store import tables
from cluster.store.commands import (
    Advance,
    ChangeUser,
    DamagedEntry,
    DropSubscription,
    Put,
    Raise,
    Register,
    Stamp,
    Subscribe,
    Unsubscribe,
    decode,
    encode,
    level_of,
)
from cluster.store.rows import check_rows
from cluster.store.store import CorruptStore, Limits, Refused, Store
from cluster.store.users import PUBLISH, SUBSCRIBE, matches
from cluster.wire.levels import BUILD, LEVEL_OF_USERS, Build, UnsupportedLevel
from flotilla_client.protocol import (
    ACK,
    ADMIN,
    GET,
    INSPECT,
    PUT,
    READ,
    REQUEST_ID,
    SUB,
    TEXT_HEADER_BYTES_MAX,
    TOPICS,
    UNSUB,
    UPGRADE,
    ProtocolError,
    Request,
    check_pattern,
    check_user,
    decode_request,
    encode_request,
    pack,
)
from tests.unit import store_bench
from tests.unit.cluster.serve import test_broker
from tests.unit.cluster.serve.test_broker import code_of
from tests.unit.model_store import MEMBERS, answer_of

# --- patterns ---


@pytest.mark.parametrize(
    ("pattern", "topic", "is_one"),
    [
        ("orders", "orders", True),
        ("orders", "orders.new", False),
        ("orders.*", "orders.new", True),
        ("orders.*", "orders", False),
        ("orders.*", "orders.new.eu", False),
        ("orders.*", "ordersX.new", False),
        ("*.new", "orders.new", True),
        ("*.new", "orders.old", False),
        ("orders.>", "orders.new", True),
        ("orders.>", "orders.new.eu", True),
        ("orders.>", "orders", False),
        ("orders.>", "order.new", False),
        (">", "orders", True),
        (">", "a.b.c", True),
        ("*", "orders", True),
        ("*", "a.b", False),
        ("a.*.c", "a.b.c", True),
        ("a.*.>", "a.b", False),
        ("a.*.>", "a.b.c.d", True),
        ("a..b", "a..b", True),
        ("a.*.b", "a..b", True),
        ("Orders", "orders", False),
        ("orders.new", "orders.*", False),  # a topic may be called so; it is one all the same
    ],
)
def test_a_pattern_means_what_it_means_in_nats(pattern: str, topic: str, is_one: bool) -> None:
    check_pattern(pattern)
    assert matches(pattern, topic) is is_one


words = st.lists(st.sampled_from(["a", "b", "", "*", ">"]), min_size=1, max_size=4)


@given(words, words)
def test_patterns_agree_with_a_definition_by_recursion(
    pattern: list[str], topic: list[str]
) -> None:
    def is_one(left: list[str], names: list[str]) -> bool:
        if left == [">"]:
            return bool(names)
        if not left or not names:
            return not left and not names
        return left[0] in ("*", names[0]) and is_one(left[1:], names[1:])

    if ">" in pattern[:-1] or ".".join(pattern) == "":
        return
    assert matches(".".join(pattern), ".".join(topic)) == is_one(pattern, topic)


@pytest.mark.parametrize("pattern", ["", "ord*", "a.b>", ">.a", "a.>.b", "a.**", "a\nb", "x" * 256])
def test_what_is_no_pattern_is_refused(pattern: str) -> None:
    with pytest.raises(ProtocolError):
        check_pattern(pattern)


@pytest.mark.parametrize("name", ["", "Shop", "a b", "x" * 33, "**", "shop\n"])
def test_what_is_no_key_s_name_is_no_user(name: str) -> None:
    with pytest.raises(ProtocolError):
        check_user(name)


# --- changes ---


def change(
    act: str, user: str, by: str | None = None, root: bool = True, **rights: Any
) -> ChangeUser:
    lists = [rights.get(name, []) for name in ("publish", "subscribe")]
    flags = [rights.get(name, False) for name in ("observe", "admin")]
    return ChangeUser(f"user-{act}", user, *lists, *flags, root, by)


@pytest.fixture
def bench(tmp_path: Path) -> store_bench.Bench:
    """Return a cluster at the level of users, in which everybody may do everything."""
    bench = store_bench.Bench(tmp_path / "store.db", Limits(users_max=4))
    bench.ok(Raise(LEVEL_OF_USERS))
    return bench


def closed(bench: store_bench.Bench, **users: dict[str, Any]) -> None:
    """Let these alone do anything."""
    for name, rights in users.items():
        bench.ok(change("add", name, **rights))
    bench.ok(change("remove", "*"))


def test_a_cluster_that_gets_users_lets_everybody_go_on(bench: store_bench.Bench) -> None:
    users = bench.store.users
    assert [row["user"] for row in users.page("", 9)] == ["*"]
    for right in (PUBLISH, SUBSCRIBE):
        assert users.may("anybody", right, "any.topic")
    assert users.may_observe("anybody")
    assert not users.may_administrate("anybody"), "only the settings name the first one"


def test_nobody_may_anything_who_is_not_named_once_everybody_else_is_removed(
    bench: store_bench.Bench,
) -> None:
    closed(bench, shop={"publish": ["orders.*"], "subscribe": ["stock.>"]})
    users = bench.store.users

    assert users.may("shop", PUBLISH, "orders.new")
    assert not users.may("shop", PUBLISH, "stock.eu")
    assert users.may("shop", SUBSCRIBE, "stock.eu.1")
    assert not users.may("shop", SUBSCRIBE, "orders.new")
    assert not users.may_observe("shop")
    assert not users.may("stranger", PUBLISH, "orders.new")


def test_denied_is_denied_whatever_is_allowed_besides(bench: store_bench.Bench) -> None:
    closed(bench, shop={"publish": [">"], "observe": True, "admin": True})
    users = bench.store.users

    assert users.may("shop", PUBLISH, "pay.card")
    bench.ok(change("deny", "shop", publish=["pay.*"]))
    bench.ok(change("allow", "shop", publish=["pay.card"]))  # another pattern
    assert not users.may("shop", PUBLISH, "pay.card")
    assert users.may("shop", PUBLISH, "orders")
    bench.ok(change("allow", "shop", publish=["pay.*"]))
    assert users.may("shop", PUBLISH, "pay.card"), "allowing the same takes the denial back"
    bench.ok(change("deny", "shop", publish=[">"]))
    assert not users.may("shop", PUBLISH, "orders")

    bench.ok(change("deny", "shop", observe=True))
    assert users.may_observe("shop"), "who is admin may observe"
    bench.ok(change("deny", "shop", admin=True))
    assert not users.may_observe("shop")
    assert not users.may_administrate("shop")


def test_the_same_change_twice_is_as_good_as_once(bench: store_bench.Bench) -> None:
    for asked in (
        change("add", "shop", publish=["a"]),
        change("allow", "shop", publish=["b"]),
        change("deny", "shop", publish=["a"]),
        change("remove", "shop"),
    ):
        first, rows = bench.one(asked), bench.store.users.page("", 9)
        again = bench.one(asked)
        assert (again[0], first[0]) == ("ok", "ok")
        assert bench.store.users.page("", 9) == rows
        if asked.change != "user-remove":
            assert again == first


def test_changes_of_nobody_and_of_too_many_are_refused(bench: store_bench.Bench) -> None:
    assert bench.one(change("allow", "nobody", observe=True))[0] == "bad_request"
    assert bench.one(change("deny", "nobody", observe=True))[0] == "bad_request"
    bench.ok(change("add", "a", publish=["x"]))
    assert bench.one(change("add", "a", publish=["y"]))[0] == "bad_request"
    bench.ok(change("add", "b"))
    bench.ok(change("add", "c"))
    assert bench.one(change("add", "d")) == ("too_many", {"limit": 4})
    many = [f"t{number}" for number in range(64)]
    bench.ok(change("allow", "a", subscribe=many))
    assert bench.one(change("allow", "a", subscribe=["more"])) == ("too_many", {"limit": 64})


def test_only_an_administrator_changes_users(bench: store_bench.Bench) -> None:
    bench.ok(change("add", "boss", admin=True))
    bench.ok(change("add", "shop", publish=[">"]))

    asked = change("allow", "shop", by="shop", root=False, admin=True)
    assert bench.one(asked) == ("unauthorized", {"needs": "admin"})
    assert not bench.store.users.may_administrate("shop")
    bench.ok(change("allow", "shop", by="boss", root=False, admin=True))
    bench.ok(change("deny", "boss", by="shop", root=False, admin=True))
    asked = change("deny", "shop", by="boss", root=False, admin=True)
    assert bench.one(asked)[0] == "unauthorized"
    bench.ok(change("deny", "shop", by="whom-the-settings-name", root=True, admin=True))


# --- what the log carries out ---


def test_what_a_principal_may_not_is_refused_where_it_stands_in_the_log(
    bench: store_bench.Bench,
) -> None:
    bench.ok(Register("p", True, None, "", "shop"))
    bench.ok(Subscribe("p", None, "t", None, "shop"))
    put = Put("p", None, "t", 1, *pack([b"x"]), "shop")
    again = Put("p", None, "t", 2, *pack([b"y"]), "shop")
    both = Put("p", None, "t", 3, *pack([b"z"]), "shop")
    answers = bench.apply(put, change("add", "shop", subscribe=["t"]), again)
    assert [code for code, _ in answers] == ["ok", "ok", "unauthorized"]
    assert answers[2][1] == {"needs": "publish"}

    assert bench.one(put)[1]["duplicate"] is True, "what is stored is stored, and he hears so"
    assert bench.one(both)[0] == "unauthorized", "a gap is not told to who may not publish"
    bench.ok(change("allow", "shop", publish=["t"]))
    assert bench.one(both) == ("counter_gap", {"expected": 2}), "no counter was taken"
    assert bench.one(again)[1]["id"] == 2


def test_who_may_not_subscribe_does_not(bench: store_bench.Bench) -> None:
    closed(bench, shop={"publish": ["t"]})
    bench.ok(Register("c", True, None, "", "shop"))
    assert bench.one(Subscribe("c", 1, "t", 1, "shop")) == ("unauthorized", {"needs": "subscribe"})
    assert bench.one(Subscribe("c", 1, "t", 0, "shop"))[0] == "stale_request", (
        "its sequence is taken"
    )
    assert bench.store.subscriptions("c") == {}


def test_who_may_nothing_gets_no_client_id(bench: store_bench.Bench) -> None:
    closed(bench, watcher={"observe": True})
    for principal in ("watcher", "stranger"):
        assert bench.one(Register("c", True, None, "", principal))[0] == "unauthorized"
    assert bench.one(Register("c", True, None, ""))[0] == "ok", "a cluster without keys asks nobody"


def test_a_client_is_its_principal_s_alone(bench: store_bench.Bench) -> None:
    bench.ok(Register("c", True, None, "", "shop"))
    bench.ok(Subscribe("c", 1, "t", 1, "shop"))
    put = pack([b"x"])
    for asked in (
        Register("c", False, 9, "n", "thief"),
        Subscribe("c", 1, "t", 9, "thief"),
        Unsubscribe("c", None, "t", None, "thief"),
        Put("c", None, "t", 1, *put, "thief"),
        Advance("c", None, {"t": 0}, "thief"),
    ):
        assert bench.one(asked) == ("unauthorized", {"needs": "client_id"}), asked
    assert bench.store.subscriptions("c") == {"t": 0}
    assert answer_of_refused(bench.store.check_client("c", 1, "thief")) == "unauthorized"
    assert bench.store.check_client("c", 1, "shop") is None
    bench.restart()
    assert answer_of_refused(bench.store.check_client("c", 1, "thief")) == "unauthorized"


def answer_of_refused(refused: Refused | None) -> str:
    assert refused is not None
    return refused.code


def test_clients_are_listed_with_whose_they_are(bench: store_bench.Bench) -> None:
    for name, owner in (("c1", "shop"), ("c2", None)):
        bench.ok(Register(name, True, None, "", owner))
    rows = bench.store.clients_page("", 9)
    assert [(row["client_id"], row["principal"]) for row in rows] == [("c1", "shop"), ("c2", None)]
    assert bench.store.client_row("c1")["principal"] == "shop"
    bench.store.close()
    with tables.connect(bench.path, 0) as connection:
        connection.execute("UPDATE owners SET owner = 'thief'")
    store = Store.open(bench.path, {})
    with pytest.raises(CorruptStore):
        store.clients_page("", 9)
    store.close()


def test_a_client_of_before_belongs_to_who_takes_it_up_and_not_to_who_names_it(
    bench: store_bench.Bench,
) -> None:
    for name in "abc":
        bench.ok(Register(name, True, None, ""))
    bench.ok(Unsubscribe("a", None, "t", None, "operator"))
    assert bench.store.check_client("a", None, "shop") is None, "by hand"
    bench.ok(Register("a", False, 1, "n", "shop"))
    bench.ok(Put("b", 1, "t", 1, *pack([b"x"]), "shop"))
    assert bench.one(Put("c", 9, "t", 1, *pack([b"x"]), "shop"))[0] == "recovered", (
        "not its process"
    )
    for name, is_taken in (("a", True), ("b", True), ("c", False)):
        assert (bench.store.check_client(name, None, "thief") is not None) is is_taken, name


def test_a_revoked_topic_neither_holds_up_the_others_nor_tells_of_itself(
    bench: store_bench.Bench,
) -> None:
    bench.ok(Register("c", True, None, "", "shop"))
    for topic in ("mine", "theirs"):
        bench.ok(Subscribe("c", 1, topic, None, "shop"))
        bench.ok(Put("c", 1, topic, 1, *pack([b"x"]), "shop"))
    bench.ok(change("add", "shop", subscribe=["mine"]))
    store = bench.store

    delivery = store.read_any("c", {"theirs": 0}, 9, 99, "shop")
    assert not isinstance(delivery, Refused)
    assert (delivery.topic, delivery.count) == ("mine", 1)
    assert [row["topic"] for row in store.topics_of("c", "", 9, "shop")] == ["mine"]
    assert store.since_recovery("c", None, "shop")["ends"] == {"mine": 1}
    bench.ok(Advance("c", 1, {"mine": 1, "theirs": 1}, "shop"))
    assert store.subscriptions("c") == {"mine": 1, "theirs": 0}, "it is left where it is"
    for last_id in (1, 10**9):
        asked = Advance("c", 1, {"theirs": last_id}, "shop")
        assert bench.one(asked) == ("unauthorized", {"needs": "subscribe"})
    for topic in ("theirs", "of-nobody"):
        refused = store.lacks("shop", SUBSCRIBE, topic)
        assert refused is not None
        assert refused.message == f"shop lacks `subscribe` on {topic!r}"

    bench.ok(change("deny", "shop", subscribe=["mine"]))
    nothing = store.read_any("c", {}, 9, 99, "shop")
    assert isinstance(nothing, Refused)
    assert nothing.code == "unauthorized"
    assert bench.one(Unsubscribe("c", 1, "theirs", None, "shop"))[1] == {"was_subscribed": True}


def test_an_administrator_ends_what_others_have_left(bench: store_bench.Bench) -> None:
    bench.ok(Register("c", True, None, "", "shop"))
    bench.ok(Subscribe("c", 1, "t", 1, "shop"))
    bench.ok(change("add", "boss", admin=True))
    for principal, root, code in (("shop", False, "unauthorized"), ("boss", False, "ok")):
        assert bench.one(DropSubscription("c", "t", root, principal))[0] == code
    assert bench.store.subscriptions("c") == {}
    assert bench.one(DropSubscription("c", "t", True, "admin")) == ("ok", {"was_subscribed": False})
    assert bench.one(DropSubscription("nobody", "t", True, "admin"))[0] == "unknown_client"
    assert level_of(encode(1, [DropSubscription("c", "t", True)])) == LEVEL_OF_USERS


# --- encoding, copies, levels ---


def test_an_entry_that_says_who_asked_needs_the_level_and_no_other_does() -> None:
    for operation in (Register("c", True, None, ""), Put("c", None, "t", 1, *pack([b"x"]))):
        assert level_of(encode(1, [operation])) == 1
        operation.principal = "shop"
        payload = encode(1, [operation])
        assert level_of(payload) == LEVEL_OF_USERS
        assert decode(payload) == (Stamp(1), [operation])
        with pytest.raises(DamagedEntry):
            decode(payload, LEVEL_OF_USERS - 1)
        with pytest.raises(DamagedEntry, match="metas"):
            decode(b"\x02" + payload[1:])
    assert level_of(encode(1, [change("add", "a")])) == LEVEL_OF_USERS
    mixed = [
        Register("a", True, None, "", "shop"),
        Raise(LEVEL_OF_USERS),
        Register("b", True, 1, ""),
    ]
    assert decode(encode(1, mixed)) == (Stamp(1), mixed)


def test_users_and_owners_outlive_restarts_and_count_in_the_digest(
    bench: store_bench.Bench, tmp_path: Path
) -> None:
    bench.ok(change("add", "shop", publish=["a.*"], observe=True))
    bench.ok(Register("c", True, None, "", "shop"))
    rows, before = bench.store.users.page("", 9), bench.store.digest()
    bench.restart()
    assert bench.store.users.page("", 9) == rows
    assert bench.store.digest() == before
    bench.ok(change("deny", "shop", observe=True))
    changed = bench.store.digest()
    assert changed != before
    twin = store_bench.Bench(tmp_path / "twin.db", Limits(users_max=4))
    for owner, is_same in (("shop", True), ("other", False)):
        twin = store_bench.Bench(tmp_path / f"{owner}.db", Limits(users_max=4))
        twin.ok(Raise(LEVEL_OF_USERS))
        twin.ok(change("add", "shop", publish=["a.*"], observe=True))
        twin.ok(Register("c", True, None, "", owner))
        assert (twin.store.digest() == before) is is_same, owner


def test_a_changed_row_of_a_user_or_an_owner_is_noticed(bench: store_bench.Bench) -> None:
    bench.ok(Register("c", True, None, "", "shop"))
    path = bench.path
    bench.store.close()
    with tables.connect(path, 0) as connection:
        connection.execute("UPDATE owners SET owner = 'thief'")
        with pytest.raises(CorruptStore, match="owners"):
            check_rows(path, connection, lambda size_bytes: None)
    store = Store.open(path, {})
    with pytest.raises(CorruptStore):
        store.check_client("c", 1)
    store.close()
    with tables.connect(path, 0) as connection:
        connection.execute("UPDATE users SET rights = replace(rights, 'false', 'true')")
    with pytest.raises(CorruptStore):
        Store.open(path, {})


def test_a_database_of_before_is_opened_and_gets_users(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    Store.open(path, MEMBERS).close()
    with tables.connect(path, 0) as connection:
        connection.executescript("DROP TABLE users; DROP TABLE owners")
        check_rows(path, connection, lambda size_bytes: None)
    store = Store.open(path, {})
    before = store.digest()
    assert store.users.page("", 9) == []
    [outcome] = store.apply(1, 1, encode(1, [Raise(LEVEL_OF_USERS)]))
    assert answer_of(outcome)[0] == "ok"
    assert [row["user"] for row in store.users.page("", 9)] == ["*"]
    assert store.digest() != before
    store.close()
    with pytest.raises(UnsupportedLevel):
        Store.open(path, {}, build=Build("older", 1, LEVEL_OF_USERS - 1))


# --- the leader ---


class UsersBench(test_broker.BrokerBench):
    """A leader of a cluster with keys, at the level of users."""

    def __init__(self, directory: Path, level: int = LEVEL_OF_USERS) -> None:
        self.principal: str | None = "shop"
        super().__init__(directory)
        self.broker.admins = frozenset({"admin"})
        self.broker.level_for = lambda asked: asked or BUILD.level_max
        if level >= LEVEL_OF_USERS:
            self.as_("admin", UPGRADE, client_id="", level=level)

    def ask(
        self,
        kind: str,
        topic: str = "",
        client_id: str = test_broker.ME,
        epoch: int | None = None,
        **body: Any,
    ) -> None:
        made = Request(kind, "r", topic, client_id, epoch, body)
        request = decode_request(encode_request(made))
        waiting = self.broker.request(b"me", request, self.now_ms, self.principal)
        if waiting is not None:
            self.barrier += 1
            self.broker.await_barrier(waiting, self.barrier, self.store.applied_index)

    def turn(self) -> list[Answer]:
        changes = self.store.users.changes
        answers = super().turn()
        if self.store.users.changes != changes:  # as a replica does
            self.broker.users_changed()
            self.serve(self.barrier, self.store.applied_index)
            answers += self.taken()
        return answers

    def as_(self, principal: str, kind: str, topic: str = "", **fields: Any) -> list[Answer]:
        """Ask as a principal, and return what was answered in that turn."""
        self.principal, before = principal, self.principal
        self.ask(kind, topic, **fields)
        self.principal = before
        return self.turn()

    def user(self, act: str, user: str, **rights: Any) -> Answer:
        fields = {"act": f"user-{act}", "user": user, **rights}
        return self.as_("admin", ADMIN, client_id="", **fields)[0]

    def entries(self) -> int:
        return self.store.applied_index


@pytest.fixture
def leader(tmp_path: Path) -> UsersBench:
    """Return a leader; the principal `shop` has a client that subscribes to t."""
    return UsersBench(tmp_path)


def test_users_take_the_feature_level_and_the_refusal_names_it(tmp_path: Path) -> None:
    leader = UsersBench(tmp_path, level=1)
    answer = leader.user("add", "shop")
    assert (code_of(answer), answer.body["level"], answer.body["needs"]) == ("unsupported", 1, 3)
    assert "flotilla upgrade" in answer.body["message"]
    assert answer.body["definite"] is True
    [answer] = leader.as_("anybody", INSPECT, client_id="", what="users")
    assert code_of(answer) == "unsupported"
    [answer] = leader.as_("anybody", UPGRADE, client_id="", level=LEVEL_OF_USERS)
    assert answer.body == {"level": LEVEL_OF_USERS, "before": 1}


def test_a_refusal_costs_no_entry_and_waits_for_a_barrier(leader: UsersBench) -> None:
    leader.user("add", "shop", subscribe=["t"])
    before = leader.entries()
    leader.put(1, b"p" * 1000)
    waiting = leader.broker._reads[-1].waiting
    assert waiting.request.data == b"", "nobody's publication is kept who may not publish it"
    leader.barrier -= 1
    assert leader.turn() == [], "its barrier has not passed"
    leader.barrier += 1
    [answer] = leader.turn()
    assert (code_of(answer), answer.body["needs"]) == ("unauthorized", "publish")
    assert answer.body["message"] == "shop lacks `publish` on 't'"
    assert leader.entries() == before


def test_users_with_many_patterns_are_listed_in_answers_that_fit_a_header(
    leader: UsersBench,
) -> None:
    """No client takes a larger one, and to be relayed it would end the leader."""
    users = [f"shop-{number:03}" for number in range(150)]
    patterns = [f"{number:02}{'x' * 250}" for number in range(30)]
    for user in users:
        assert leader.user("add", user, publish=patterns, subscribe=patterns).type == ACK
    told: list[str] = ["*"]
    is_more = True
    while is_more:
        [answer] = leader.as_("admin", INSPECT, client_id="", what="users", after=told[-1])
        assert len(orjson.dumps(answer.body)) < TEXT_HEADER_BYTES_MAX
        told += [row["user"] for row in answer.body["rows"]]
        is_more = answer.body["more"]
    assert told == ["*", *users]


def test_what_was_allowed_meanwhile_is_asked_again(leader: UsersBench) -> None:
    leader.user("add", "shop", subscribe=["t"])
    leader.put(1)
    answers = leader.as_("admin", ADMIN, client_id="", act="user-allow", user="shop", publish=["t"])
    assert sorted(map(code_of, answers)) == ["ACK", "overloaded"]
    leader.put(1)
    [answer] = leader.turn()
    assert answer.body["id"] == 1


@pytest.mark.parametrize("topic", ["t", ""])
def test_a_get_whose_acknowledgment_was_left_out_is_not_answered_as_if_it_were_not(
    leader: UsersBench, topic: str
) -> None:
    for counter in (1, 2):
        leader.put(counter)
    leader.turn()
    leader.user("add", "shop", publish=["t"])  # and may not read, when it acknowledges
    leader.ask(GET, topic, **({"last_id": 1} if topic else {"last_ids": {"t": 1}}))
    change = {"act": "user-allow", "user": "shop", "subscribe": ["t"]}
    answers = leader.as_("admin", ADMIN, client_id="", **change)
    assert sorted(map(code_of, answers)) == ["ACK", "overloaded"]
    assert leader.store.cursor(test_broker.ME, "t") == 0
    leader.ask(GET, topic, **({"last_id": 1} if topic else {"last_ids": {"t": 1}}))
    assert [answer.body.get("id") for answer in leader.turn()] == [2]
    assert leader.store.cursor(test_broker.ME, "t") == 1


def test_a_get_whose_acknowledgment_was_carried_out_in_part_is_in_doubt(leader: UsersBench) -> None:
    leader.ask(SUB, "u", sequence=None)
    leader.put(1)
    leader.ask(PUT, "u", counter=1, publication="p")
    leader.turn()
    leader.user("add", "shop", subscribe=["u"])  # and may not read t, when it acknowledges
    leader.ask(GET, last_ids={"t": 1, "u": 1})
    change = {"act": "user-allow", "user": "shop", "subscribe": ["t"]}
    answers = leader.as_("admin", ADMIN, client_id="", **change)
    assert sorted(map(code_of, answers)) == ["ACK", "uncertain"]
    assert [leader.store.cursor(test_broker.ME, topic) for topic in "tu"] == [0, 1]


def test_a_put_that_was_admitted_before_its_revocation_is_refused_at_its_entry(
    leader: UsersBench,
) -> None:
    leader.put(1)
    [(index, put)] = leader.submit()  # it waits for a majority
    leader.principal = "admin"
    leader.ask(ADMIN, client_id="", act="user-add", user="shop", subscribe=["t"])
    [(operations, _)] = leader.broker.take_entries()
    change_of_user = encode(0, operations)
    revoked = leader.store.apply(index, 1, change_of_user)  # another leader's comes first
    assert answer_of(revoked[0])[0] == "ok"
    [outcome] = leader.store.apply(index + 1, 1, put)
    assert answer_of(outcome) == ("unauthorized", {"needs": "publish"})


def test_a_retry_of_what_is_stored_is_answered_with_its_result(leader: UsersBench) -> None:
    leader.put(1)
    leader.turn()
    leader.user("add", "shop", subscribe=["t"])
    leader.put(1)
    [answer] = leader.turn()
    assert (answer.body["id"], answer.body["duplicate"]) == (1, True)
    leader.put(2)
    assert [code_of(answer) for answer in leader.turn()] == ["unauthorized"]


def test_a_revocation_reaches_who_waits_for_publications(leader: UsersBench) -> None:
    leader.ask(GET, "t", wait_ms=60_000)
    leader.ask(GET, "", wait_ms=60_000)
    assert leader.turn() == []
    answers = leader.as_("admin", ADMIN, client_id="", act="user-add", user="shop", publish=["t"])
    assert [code_of(answer) for answer in answers] == ["ACK", "unauthorized", "unauthorized"]
    assert leader.broker.load()["publication"] == 0


def test_who_may_goes_on_waiting_behind_a_change_of_another(leader: UsersBench) -> None:
    leader.ask(GET, "t", wait_ms=60_000)
    leader.turn()
    leader.user("add", "another", publish=["t"])
    assert leader.broker.load()["publication"] == 1
    leader.put(1)
    assert [answer.body.get("count") for answer in leader.turn()] == [1, 1]


def test_what_belongs_to_others_takes_a_permission(leader: UsersBench) -> None:
    for name, rights in (("watcher", {"observe": True}), ("boss", {"admin": True})):
        leader.user("add", name, **rights)
    leader.user("remove", "*")
    cases: list[tuple[str, str, dict[str, Any], str]] = [
        (INSPECT, "", {"what": "clients"}, "observe"),
        (INSPECT, "", {"what": "subscriptions"}, "observe"),
        (TOPICS, "t", {"subscribers": True}, "observe"),
        (INSPECT, "", {"what": "users"}, "admin"),
        (UPGRADE, "", {}, "admin"),
        (ADMIN, "", {"act": "user-add", "user": "x"}, "admin"),
    ]
    for kind, topic, body, needs in cases:
        for principal, may in (
            ("boss", True),
            ("admin", True),
            ("watcher", needs == "observe"),
            ("shop", False),
        ):
            [answer] = leader.as_(principal, kind, topic, client_id="", **body)
            assert code_of(answer) == ("ACK" if may else "unauthorized"), (kind, body, principal)
            if not may:
                assert answer.body["needs"] == needs


def test_who_may_not_subscribe_to_a_topic_does_not_read_it_by_id(leader: UsersBench) -> None:
    leader.user("add", "writer", publish=["t"])
    [answer] = leader.as_("writer", READ, "t", client_id="", from_id=1)
    assert (code_of(answer), answer.body.get("needs")) == ("unauthorized", "subscribe")
    leader.user("allow", "writer", subscribe=["t"])
    [answer] = leader.as_("writer", READ, "t", client_id="", from_id=1)
    assert code_of(answer) == "ACK"


def test_a_group_buries_nothing_where_who_makes_it_may_not_publish(tmp_path: Path) -> None:
    leader = UsersBench(tmp_path, BUILD.level_max)
    leader.user("add", "shop", publish=["t"], subscribe=["t", "dead"])
    group: dict[str, Any] = {"group": "g", "max_attempts": 1, "dead_letter": "dead"}
    [answer] = leader.as_("shop", SUB, "t", **group)
    assert (code_of(answer), answer.body.get("needs")) == ("unauthorized", "publish")
    leader.user("allow", "shop", publish=["dead"])
    [answer] = leader.as_("shop", SUB, "t", **group)
    assert code_of(answer) == "ACK"


def test_a_list_of_topics_has_what_one_may_see(
    leader: UsersBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    for topic in ("a.1", "a.2", "b.1", "b.2", "c.1"):
        leader.as_("shop", SUB, topic)
    leader.user("add", "reader", subscribe=["b.*"], publish=["c.>"])
    leader.user("add", "watcher", observe=True)
    leader.user("add", "boss", admin=True)
    leader.user("remove", "*")

    def topics(principal: str) -> tuple[list[str], bool]:
        [answer] = leader.as_(principal, TOPICS, client_id="", all=True)
        return [row["topic"] for row in answer.body["topics"]], answer.body["more"]

    assert topics("reader") == (["b.1", "b.2", "c.1"], False)
    assert topics("stranger") == ([], False)
    assert [len(topics(each)[0]) for each in ("watcher", "boss", "admin")] == [6, 6, 6]
    monkeypatch.setattr("cluster.serve.broker.TOPICS_COUNT_MAX", 2)
    assert topics("reader") == (["b.1", "b.2"], True), "in steps"
    assert topics("stranger") == ([], False)
    leader.user("add", "other", subscribe=["a.2", "b.1", "b.2"])
    assert topics("other") == (["a.2", "b.1"], True), "as many as an answer has, in its first step"


def test_another_s_client_is_refused_whatever_is_asked(leader: UsersBench) -> None:
    leader.as_("shop", REQUEST_ID, sequence=1, nonce="n")
    for kind, topic, body in (
        (REQUEST_ID, "", {"sequence": 9, "nonce": "n"}),
        (SUB, "t", {}),
        (UNSUB, "t", {}),
        (PUT, "t", {"counter": 1, "publication": "p"}),
        (GET, "t", {}),
        (GET, "", {}),
        (TOPICS, "", {}),
    ):
        before = leader.entries()
        [answer] = leader.as_("thief", kind, topic, **body)
        assert (code_of(answer), answer.body.get("needs")) == ("unauthorized", "client_id"), kind
        assert leader.entries() == before
        assert "shop" not in answer.body["message"]


def test_who_may_observe_looks_at_others_clients_and_an_administrator_ends_their_subscriptions(
    leader: UsersBench,
) -> None:
    leader.as_("shop", REQUEST_ID, sequence=1, nonce="n")
    leader.user("add", "watcher", observe=True)
    [answer] = leader.as_("watcher", INSPECT, what="client")
    assert [row["topic"] for row in answer.body["rows"]] == ["t"]
    leader.ask(GET, "t", wait_ms=60_000)
    leader.turn()
    [answer] = leader.as_("watcher", ADMIN, "t", act="drop-subscription")
    assert (code_of(answer), answer.body["needs"]) == ("unauthorized", "admin")
    answers = leader.as_("admin", ADMIN, "t", act="drop-subscription")
    assert [code_of(answer) for answer in answers] == ["ACK", "unknown_topic"], "who waits hears so"


def test_an_administrator_ends_and_moves_groups_of_topics_that_he_may_not_read(
    tmp_path: Path,
) -> None:
    leader = UsersBench(tmp_path, BUILD.level_max)
    leader.user("add", "shop", publish=["t"], subscribe=["t"])
    leader.user("remove", "*")
    assert [code_of(answer) for answer in leader.as_("shop", SUB, "t", group="g")] == ["ACK"]
    where: dict[str, Any] = {"topic": "t", "client_id": "", "group": "g"}
    for act, body in (("seek-group", {"start": "new"}), ("drop-group", {})):
        for principal, needs in (("shop", "admin"), ("stranger", "admin"), ("admin", None)):
            [answer] = leader.as_(principal, ADMIN, act=act, **body, **where)
            assert answer.body.get("needs") == needs, (act, principal)
            assert code_of(answer) == ("unauthorized" if needs else "ACK"), (act, principal)


def test_an_insecure_cluster_asks_nobody(leader: UsersBench) -> None:
    leader.user("remove", "*")
    leader.principal = None
    leader.put(1)
    assert [code_of(answer) for answer in leader.turn()] == ["ACK"]
    leader.ask(ADMIN, client_id="", act="user-add", user="shop", publish=["t"])
    assert [code_of(answer) for answer in leader.turn()] == ["ACK"]


def test_what_is_allowed_again_is_denied_no_more(tmp_path: Path) -> None:
    bench = store_bench.Bench(tmp_path / "store.db", Limits())
    bench.ok(Raise(LEVEL_OF_USERS))
    for change, topics in (("user-add", [">"]), ("user-deny", ["x"]), ("user-allow", ["x"])):
        bench.ok(ChangeUser(change, "shop", topics, topics, False, False, True))
    for right in (PUBLISH, SUBSCRIBE):
        assert bench.store.users.may("shop", right, "x"), right


def test_answers_are_kept_in_bounded_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cluster.store.users.ANSWERS_CACHED_MAX", 3)
    users = UsersBench(tmp_path).store.users
    for number in range(20):
        assert users.may("shop", SUBSCRIBE, f"o.{number}")
        assert len(users._answers) <= 3
