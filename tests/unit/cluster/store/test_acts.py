"""What administrators do: each act once, in a bounded history; and what a purge leaves."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from cluster.serve.broker import Answer
from cluster.store import acts
from cluster.store.commands import (
    Admit,
    Advance,
    ChangeUser,
    Checkpoint,
    DamagedEntry,
    DropClient,
    DropSubscription,
    Operation,
    Purge,
    Raise,
    Register,
    Stamp,
    Subscribe,
    TransferLeader,
    Unsubscribe,
    decode,
    encode,
    level_of,
)
from cluster.store.store import Refused, Store
from cluster.wire.levels import BUILD, LEVEL_OF_USERS, Build
from flotilla_client.protocol import (
    ADMIN,
    GET,
    INSPECT,
    ProtocolError,
    Request,
    decode_request,
    encode_request,
)
from tests.unit import store_bench
from tests.unit.cluster.serve import test_broker
from tests.unit.cluster.serve.test_broker import code_of
from tests.unit.cluster.store.test_users import UsersBench
from tests.unit.model_store import MEMBERS

ROOT = True


@pytest.fixture
def bench(tmp_path: Path) -> store_bench.Bench:
    found = store_bench.Bench.started(tmp_path / "store.db")
    found.ok(Raise(LEVEL_OF_USERS))
    return found


def reopened(bench: store_bench.Bench) -> store_bench.Bench:
    digest = bench.store.digest()
    bench.restart()
    assert bench.store.digest() == digest
    return bench


def history(bench: store_bench.Bench) -> list[dict[str, Any]]:
    rows, more = bench.store.acts.page(0)
    assert not more
    return rows


# --- entries ---

ACTS: list[Operation] = [
    ChangeUser("user-add", "shop", ["a"], [], True, False, ROOT, "boss", "1", 7),
    DropSubscription("c", "t", False, "boss", "2", 8),
    DropClient("c", ROOT, None, "", 0),
    Purge("t", 5, False, "boss", "3", 9),
    TransferLeader("", "n2", False, "boss", "4", 9),
    Checkpoint(False, "boss", "5", 9),
    Raise(LEVEL_OF_USERS, ROOT, "boss", "", 9),
]


@pytest.mark.parametrize("act", ACTS, ids=lambda act: type(act).__name__)
def test_an_act_stands_in_its_entry_with_who_asked_its_name_and_the_time(act: Operation) -> None:
    payload = encode(5, [act])
    assert level_of(payload) == LEVEL_OF_USERS
    assert decode(payload) == (Stamp(5), [act])


def test_a_raise_to_level_2_is_written_as_version_0_2_reads_it() -> None:
    payload = encode(5, [Raise(2)])
    assert payload[5:] == b'[5,[["L",2]]]'
    assert decode(payload) == (Stamp(5), [Raise(2)])
    forged = b'[5,[["L",2]],["boss"]]'
    with pytest.raises(DamagedEntry, match="Raise of principal"):
        decode(bytes([3]) + len(forged).to_bytes(4, "little") + forged)


# --- the history ---


def test_every_act_is_in_the_history_with_who_did_it_and_when(bench: store_bench.Bench) -> None:
    bench.ok(ChangeUser("user-add", "boss", [], [], False, True, ROOT, "admin", "a1", 1_000))
    bench.put(1)
    bench.ok(Purge("t", 1, False, "boss", "b1", 2_000))
    bench.ok(DropSubscription("s", "t", False, "boss", "b2", 3_000))
    bench.ok(DropClient("s", False, "boss", "b3", 4_000))
    bench.ok(TransferLeader("", "b", False, "boss", "b4", 5_000))
    bench.ok(Checkpoint(False, "boss", "b5", 6_000))
    bench.ok(Admit("b", "another"))
    bench.ok(Admit("b", "another"))  # changes nothing
    rows = history(reopened(bench))
    assert [(row["number"], row["act"], row["principal"], row["at_ms"]) for row in rows] == [
        (1, "raise-level", None, 0),
        (2, "user-add", "admin", 1_000),
        (3, "purge", "boss", 2_000),
        (4, "drop-subscription", "boss", 3_000),
        (5, "drop-client", "boss", 4_000),
        (6, "transfer-leader", "boss", 5_000),
        (7, "checkpoint", "boss", 6_000),
        (8, "admit", None, 0),
    ]
    assert rows[2]["about"] == {"topic": "t", "last_id": 1}
    assert rows[2]["result"] == {"purged": 1, "last_id": 1}
    assert [row["index"] for row in rows] == sorted({row["index"] for row in rows})
    assert {row["log_ms"] for row in rows} == {0}, "every entry of the bench has one stamp"


def test_what_was_refused_is_no_act(bench: store_bench.Bench) -> None:
    before = len(history(bench))
    for refused in (
        Purge("t", 0, False, "nobody", "x"),
        Purge("none", 0, ROOT, "admin", "x"),
        Purge("t", 1, ROOT, "admin", "x"),
        DropClient("none", ROOT, "admin", "x"),
    ):
        assert bench.one(refused)[0] != "ok"
    assert len(history(bench)) == before


@pytest.mark.parametrize(("limit", "value"), [("ACTS_MAX", 3), ("ACTS_BYTES_MAX", 350)])
def test_the_history_is_bounded_and_its_numbers_go_on(
    bench: store_bench.Bench, monkeypatch: pytest.MonkeyPatch, limit: str, value: int
) -> None:
    monkeypatch.setattr(acts, limit, value)
    for number in range(5):
        bench.ok(Checkpoint(ROOT, "admin", f"c{number}"))
    assert [row["number"] for row in history(bench)] == [4, 5, 6]
    bench = reopened(bench)
    bench.ok(Checkpoint(ROOT, "admin", "c5"))
    assert [row["number"] for row in history(bench)] == [5, 6, 7]


def test_the_history_comes_in_pages_that_fit_an_answer(
    bench: store_bench.Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(5):
        bench.ok(Checkpoint(ROOT, "admin", f"c{number}"))
    rows, more = bench.store.acts.page(2, 3)
    assert ([row["number"] for row in rows], more) == ([3, 4, 5], True)
    monkeypatch.setattr(acts, "PAGE_BYTES_MAX", 1)
    rows, more = bench.store.acts.page(4)
    assert ([row["number"] for row in rows], more) == ([5], True), "one at least"
    assert bench.store.acts.page(5)[1] is False


def test_a_damaged_act_stops_the_node(bench: store_bench.Bench) -> None:
    bench.ok(Checkpoint(ROOT, "admin", "c"))
    bench.store._database.write("UPDATE acts SET text = 'x' WHERE number = 2", [()])
    with pytest.raises(Exception, match="checksum of the row"):
        bench.store.acts.page(0)


# --- once ---


def test_a_repeated_purge_leaves_what_came_after_the_first(bench: store_bench.Bench) -> None:
    bench.put(1, b"old")
    purge = Purge("t", 1, ROOT, "admin", "p1")
    first = bench.ok(purge)
    bench.put(2, b"new")
    assert bench.ok(purge) == first == {"purged": 1, "last_id": 1}
    assert bench.get("s", 1) == [b"new"]
    assert [row["act"] for row in history(bench)].count("purge") == 1
    by_hand = Purge("t", 1, ROOT, "admin")
    assert bench.ok(by_hand) == {"purged": 0, "last_id": 1}
    assert bench.get("s", 1) == [b"new"]


REPEATED: list[tuple[str, Operation, Callable[[store_bench.Bench], object]]] = [
    (
        "a subscription that was made anew",
        DropSubscription("s", "t", ROOT, "admin", "1"),
        lambda bench: bench.ok(Subscribe("s", None, "t", None)),
    ),
    (
        "a permission that was taken away since",
        ChangeUser("user-allow", "x", ["a"], [], False, False, ROOT, "admin", "2"),
        lambda bench: bench.ok(
            ChangeUser("user-deny", "x", ["a"], [], False, False, ROOT, "admin", "3")
        ),
    ),
    (
        "a user that was added anew",
        ChangeUser("user-remove", "x", [], [], False, False, ROOT, "admin", "4"),
        lambda bench: bench.ok(
            ChangeUser("user-add", "x", ["b"], [], False, False, ROOT, "admin", "5")
        ),
    ),
]


@pytest.mark.parametrize(("what", "act", "later"), REPEATED, ids=[case[0] for case in REPEATED])
def test_a_repeated_act_leaves_what_was_done_since(
    bench: store_bench.Bench,
    what: str,
    act: Operation,
    later: Callable[[store_bench.Bench], object],
) -> None:
    bench.ok(ChangeUser("user-add", "x", [], [], False, False, ROOT, "admin"))
    first = bench.ok(act)
    later(bench)
    subscriptions, users = bench.store.subscriptions("s"), bench.store.users.page("", 10)
    bench = reopened(bench)
    assert orjson.dumps(bench.ok(act)) == orjson.dumps(first)
    assert bench.store.subscriptions("s") == subscriptions
    assert bench.store.users.page("", 10) == users


def test_a_dropped_client_is_dropped_once_and_its_repeat_hears_so(bench: store_bench.Bench) -> None:
    act = DropClient("s", ROOT, "admin", "d")
    assert bench.ok(act) == bench.ok(act) == {"forgotten": ["s"], "left": ["t"]}
    assert bench.one(DropClient("s", ROOT, "admin", "e"))[0] == "forgotten"
    assert bench.one(Register("s", False, 1, ""))[0] == "forgotten"
    assert bench.one(Unsubscribe("s", None, "t", None))[0] == "forgotten"
    assert bench.store.idle.forgotten == 1


def test_a_name_stands_for_one_act_of_one_principal(bench: store_bench.Bench) -> None:
    bench.put(1)
    bench.ok(Purge("t", 0, ROOT, "admin", "p"))
    for other in (
        Purge("t", 1, ROOT, "admin", "p"),
        Purge("t", 0, ROOT, "boss", "p"),
        Checkpoint(ROOT, "admin", "p"),
    ):
        assert bench.one(other)[0] == "bad_request"
    assert bench.get("s", 0) == [b"x"]


def test_a_transfer_or_checkpoint_is_asked_of_the_node_once(bench: store_bench.Bench) -> None:
    store = bench.store
    bench.ok(TransferLeader("", "b", ROOT, "admin", "t"))
    assert (store.take_successor(), store.take_successor()) == ("b", "")
    assert bench.ok(TransferLeader("", "", ROOT, "admin", "t")) == {"node": "b"}
    assert store.take_successor() == ""
    index = bench.ok(Checkpoint(ROOT, "admin", "c"))["index"]
    assert store.checkpoint_index == index == store.applied_index
    bench.ok(Checkpoint(ROOT, "admin", "c"))
    assert store.checkpoint_index == index


# --- permissions ---


def test_an_act_is_judged_at_its_entry_and_its_repeat_by_what_was_done(
    bench: store_bench.Bench,
) -> None:
    def purge(act_id: str) -> Purge:
        return Purge("t", 0, False, "boss", act_id)

    def change(change: str) -> ChangeUser:
        return ChangeUser(change, "boss", [], [], False, True, ROOT, "admin")

    assert bench.one(purge("1")) == ("unauthorized", {"needs": "admin"})
    bench.ok(change("user-add"))
    done = bench.ok(purge("2"))
    bench.ok(change("user-deny"))
    assert bench.one(purge("3"))[0] == "unauthorized"
    assert bench.ok(purge("2")) == done


def test_a_raise_above_the_level_of_users_is_judged_at_its_entry(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "store.db", MEMBERS, build=Build("next", 1, BUILD.level_max + 1))
    store.apply(1, 1, encode(1, [Raise(LEVEL_OF_USERS)]))
    [outcome] = store.apply(2, 1, encode(1, [Raise(BUILD.level_max + 1, False, "boss")]))
    assert isinstance(outcome, Refused)
    assert (outcome.code, store.level) == ("unauthorized", LEVEL_OF_USERS)
    store.apply(3, 1, encode(1, [Raise(BUILD.level_max + 1, ROOT, "admin")]))
    assert store.level == BUILD.level_max + 1
    store.close()


def test_below_the_level_anybody_raises_it_and_above_it_who_may(tmp_path: Path) -> None:
    bench = store_bench.Bench.started(tmp_path / "store.db")
    assert bench.ok(Raise(LEVEL_OF_USERS, False, "shop", "", 5))["before"] == 1
    [row] = history(bench)
    assert (row["act"], row["principal"], row["at_ms"]) == ("raise-level", "shop", 5)


# --- purge ---


def test_who_has_not_read_what_is_purged_is_told_until_he_goes_on_behind_it(
    bench: store_bench.Bench,
) -> None:
    bench.put(1, b"1", b"2", b"3", b"4")
    bench.ok(Advance("s", None, {"t": 1}))
    bench.ok(Purge("t", 3, ROOT, "admin"))
    bench = reopened(bench)
    store = bench.store
    for last_id in (None, 1, 2):
        told = store.read("s", "t", last_id, 9, 99)
        assert isinstance(told, Refused)
        assert told.code == "purged"
        first_id = 2 if last_id is None else last_id + 1
        assert told.details == {"topic": "t", "first_id": first_id, "last_id": 3}
    told = store.read_any("s", {}, 9, 99)
    assert isinstance(told, Refused)
    assert told.details == {"topic": "t", "first_id": 2, "last_id": 3}
    assert store.subscribers_of("t", "", 9) == [{"client_id": "s", "cursor": 1, "backlog": 1}]
    bench.ok(Advance("s", None, {"t": 3}))
    assert bench.get("s") == [b"4"]


def test_who_comes_after_a_purge_is_told_nothing_and_ids_go_on(bench: store_bench.Bench) -> None:
    bench.put(1, b"1", b"2")
    bench.ok(Purge("t", 2, ROOT, "admin"))
    bench.ok(Subscribe("p", None, "t", None))
    assert bench.put(3) == ("ok", {"id": 3, "count": 1, "duplicate": False, "stored": True})
    assert bench.get("p") == [b"x"]


def test_a_purge_takes_what_it_names_and_nothing_behind(bench: store_bench.Bench) -> None:
    store = bench.store
    bench.put(1, b"1", b"2", b"3")
    bench.put(4, b"4")
    assert bench.ok(Purge("t", 2, ROOT, "admin")) == {"purged": 2, "last_id": 2}
    assert bench.get("s", 2) == [b"3", b"4"]
    assert store.unread_publications() == 2
    assert store.collect_garbage(100) == 0, "its row holds what is not purged"
    assert bench.ok(Purge("t", 1, ROOT, "admin")) == {"purged": 0, "last_id": 1}
    assert bench.get("s", 2) == [b"3", b"4"]
    assert bench.ok(Purge("t", 3, ROOT, "admin")) == {"purged": 1, "last_id": 3}
    assert store.collect_garbage(100) == 1
    assert bench.get("s", 3) == [b"4"]
    assert bench.one(Purge("t", 5, ROOT, "admin")) == ("bad_request", {"end": 4})
    assert store.holders("t", 5) == ["s"]


def test_a_topic_that_was_left_and_comes_back_has_what_was_purged_before(
    bench: store_bench.Bench,
) -> None:
    bench.put(1, b"1", b"2")
    bench.ok(Purge("t", 1, ROOT, "admin"))
    bench.ok(Unsubscribe("s", None, "t", None))
    bench.ok(Subscribe("s", None, "t", None))
    bench.put(3, b"3")
    assert bench.get("s") == [b"3"]
    digest = bench.store.digest()
    assert reopened(bench).store.digest() == digest


# --- the leader ---


@pytest.fixture
def leader(tmp_path: Path) -> UsersBench:
    found = UsersBench(tmp_path)
    found.broker.wall_ms = lambda: 123
    found.broker.successor = lambda asked: asked or "b"
    return found


def act(leader: UsersBench, principal: str, what: str, **fields: Any) -> list[Answer]:
    fields = {"client_id": "", "topic": "", "act": what, **fields}
    return leader.as_(principal, ADMIN, **fields)


def test_the_leader_says_in_the_entry_when_it_was_and_that_its_settings_name_who_asks(
    leader: UsersBench,
) -> None:
    leader.put(1)
    leader.turn()
    [answer] = act(leader, "admin", "purge", topic="t", last_id=1, act_id="p")
    assert answer.body == {"purged": 1, "last_id": 1}
    [answer] = leader.as_("admin", INSPECT, client_id="", what="audit")
    assert [(row["act"], row["principal"], row["at_ms"]) for row in answer.body["rows"]] == [
        ("raise-level", "admin", 0),
        ("purge", "admin", 123),
    ]
    [answer] = leader.as_("admin", INSPECT, client_id="", what="audit", after="1")
    assert [row["act"] for row in answer.body["rows"]] == ["purge"]


@pytest.mark.parametrize(
    ("what", "fields"),
    [
        ("purge", {"topic": "t", "last_id": 0}),
        ("drop-client", {"client_id": test_broker.ME}),
        ("transfer-leader", {}),
        ("checkpoint", {}),
    ],
)
def test_who_may_not_administrate_gets_no_act_into_the_log(
    leader: UsersBench, what: str, fields: dict[str, Any]
) -> None:
    before = leader.entries()
    [answer] = act(leader, "shop", what, **fields)
    assert (code_of(answer), answer.body["needs"]) == ("unauthorized", "admin")
    [answer] = leader.as_("shop", INSPECT, client_id="", what="audit")
    assert (code_of(answer), answer.body["needs"]) == ("unauthorized", "admin")
    assert leader.entries() == before


def test_who_took_his_own_right_away_is_told_so_when_he_asks_again(leader: UsersBench) -> None:
    leader.user("add", "boss", admin=True)
    deny = {"act_id": "d", "user": "boss", "admin": True}
    first = act(leader, "boss", "user-deny", **deny)
    [again] = act(leader, "boss", "user-deny", **deny)
    assert orjson.dumps(first[0].body) == orjson.dumps(again.body)
    assert again.body["user"]["admin"] is False
    [answer] = act(leader, "boss", "checkpoint", act_id="e")
    assert code_of(answer) == "unauthorized"


def test_who_waits_at_the_end_of_a_purged_topic_waits_on(leader: UsersBench) -> None:
    leader.put(1)
    leader.turn()
    leader.ask(GET, "t", last_id=1, wait_ms=60_000)
    assert leader.turn() == []
    answers = act(leader, "admin", "purge", topic="t", last_id=1)
    assert [code_of(answer) for answer in answers] == ["ACK"], "who has it all waits on"
    leader.put(2)
    assert [code_of(answer) for answer in leader.turn()] == ["ACK", "ACK"]
    for topic in ("t", ""):
        leader.ask(GET, topic)
        [answer] = leader.turn()
        assert code_of(answer) == "ACK"


def test_a_repeated_transfer_asks_for_no_other_successor(leader: UsersBench) -> None:
    [first] = act(leader, "admin", "transfer-leader", act_id="t")
    assert first.body == {"node": "b"}

    def nobody(asked: str) -> str:
        raise ProtocolError("not_ready", "nobody is there")

    leader.broker.successor = nobody
    [again] = act(leader, "admin", "transfer-leader", act_id="t")
    assert again.body == first.body
    [other] = act(leader, "admin", "transfer-leader", act_id="u")
    assert code_of(other) == "not_ready"


def test_below_the_level_acts_are_unsupported(tmp_path: Path) -> None:
    bench = UsersBench(tmp_path, level=1)
    for what, fields in (("purge", {"topic": "t", "last_id": 0}), ("checkpoint", {})):
        [answer] = act(bench, "admin", what, **fields)
        assert (code_of(answer), answer.body["needs"]) == ("unsupported", LEVEL_OF_USERS)
    [answer] = bench.as_("admin", INSPECT, client_id="", what="audit")
    assert code_of(answer) == "unsupported"


# --- the request ---


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (Request(ADMIN, "r", body={"act": "shred"}), "known: checkpoint, drop-client"),
        (Request(ADMIN, "r", body={"act": "purge", "last_id": 1}), "needs a topic"),
        (Request(ADMIN, "r", "t", body={"act": "purge"}), "needs a `last_id`"),
        (Request(ADMIN, "r", "t", body={"act": "purge", "last_id": -1}), "not an integer"),
        (Request(ADMIN, "r", body={"act": "drop-client"}), "needs a client_id"),
        (Request(ADMIN, "r", body={"act": "checkpoint", "act_id": 7}), "not a string"),
        (Request(INSPECT, "r", body={"what": "audit", "after": "x"}), "number of an act"),
    ],
)
def test_what_is_no_act_is_refused(request_: Request, message: str) -> None:
    with pytest.raises(ProtocolError, match=message):
        decode_request(encode_request(request_))
