"""What each principal has of the cluster, and that a leader gives nobody more than his quota."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from cluster.serve.broker import Answer
from cluster.serve.quotas import Quotas
from cluster.store.commands import (
    Advance,
    Forget,
    Hear,
    Put,
    Raise,
    Register,
    Subscribe,
    Unsubscribe,
    encode,
)
from cluster.store.holdings import SPANS_MAX
from cluster.store.store import Store
from cluster.wire.levels import LEVEL_OF_PATTERNS, LEVEL_OF_USERS
from flotilla_client.protocol import GET, PUT, REQUEST_ID, SUB, UNSUB, Request, decode_request, pack
from flotilla_client.protocol import encode_request as encoded
from tests.unit.cluster.serve.test_broker import BrokerBench, code_of
from tests.unit.store_bench import Bench

DAY_MS = 24 * 3_600_000


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    bench = Bench(tmp_path / "store.db")
    bench.ok(Raise(LEVEL_OF_USERS))
    return bench


def held(store: Store) -> tuple[dict[str, int], dict[str, int]]:
    """Return how many client ids and topics each principal has."""
    owners = sorted(store.holdings._topics)
    clients = {owner: count for owner, count in store.holdings.clients.items() if count}
    return clients, {owner: store.holdings.topics(owner) for owner in owners}


def test_ids_and_topics_are_counted_by_owner_also_behind_a_restart(bench: Bench) -> None:
    for client, owner in (("a1", "a"), ("a2", "a"), ("b1", "b"), ("c1", None)):
        bench.ok(Register(client, True, None, "", owner))
    for client, owner, topic in (
        ("a1", "a", "t"), ("a2", "a", "t"), ("a1", "a", "u"), ("b1", "b", "t"), ("c1", None, "v"),
    ):  # fmt: skip
        bench.ok(Subscribe(client, None, topic, None, owner))
    expected = {"a": 2, "b": 1}, {"a": 2, "b": 1}
    assert held(bench.store) == expected
    bench.restart()
    assert held(bench.store) == expected
    assert bench.store.holdings.subscriptions == {"a": 3, "b": 1}
    bench.ok(Unsubscribe("a1", None, "t", None, "a"))
    assert bench.store.holdings.subscriptions == {"a": 2, "b": 1}
    assert bench.store.holdings.holds("a", "t")  # by its other client
    bench.ok(Unsubscribe("a2", None, "t", None, "a"))
    assert held(bench.store) == ({"a": 2, "b": 1}, {"a": 1, "b": 1})
    bench.ok(Register("c1", False, None, "", "c"))  # takes possession of its subscription as well
    assert held(bench.store) == ({"a": 2, "b": 1, "c": 1}, {"a": 1, "b": 1, "c": 1})


def test_what_is_forgotten_is_nobody_s_any_more(bench: Bench) -> None:
    bench.ok(Register("a1", True, None, "", "a"))
    bench.ok(Subscribe("a1", None, "t", None, "a"))
    for _ in range(30):
        bench.store.idle._stamp_ms -= 3_600_000  # as if an hour had passed
        bench.ok(Hear([]))
    assert bench.ok(Forget(["a1"], DAY_MS))["forgotten"] == ["a1"]
    assert held(bench.store) == ({}, {})
    assert bench.store._database.query("SELECT * FROM owners") == []


def put(bench: Bench, client: str, counter: int, size_bytes: int, topic: str = "t") -> int:
    lengths, data = pack([bytes(size_bytes)])
    bench.ok(Put(client, None, topic, counter, lengths, data, client))
    return len(lengths) + len(data)


def test_unread_bytes_are_their_publisher_s_until_they_are_read_and_collected(
    bench: Bench,
) -> None:
    for client in ("a", "b", "s"):
        bench.ok(Register(client, True, None, "", client))
    bench.ok(Subscribe("s", None, "t", None, "s"))
    of_a = put(bench, "a", 1, 1000)
    of_b = put(bench, "b", 1, 50)
    unread = bench.store.holdings.unread_bytes
    assert (unread["a"], unread["b"]) == (of_a, of_b)
    bench.ok(Unsubscribe("s", None, "t", None, "s"))
    while bench.store.collect_garbage(1):
        pass
    assert not bench.store.holdings.unread_bytes
    assert not bench.store.holdings._spans


@pytest.mark.parametrize("seed", range(10))
def test_whatever_is_put_and_collected_the_shares_add_up_in_bounded_space(
    seed: int, bench: Bench
) -> None:
    rng, holdings = random.Random(seed), bench.store.holdings
    total = rng.randrange(1_000_000)
    holdings.before("t", total)
    for _ in range(600):
        if rng.random() < 0.6:
            size_bytes = rng.randrange(1, 400_000)
            principal = rng.choice(("a", "b", None))
            if principal is not None:
                holdings.before("t", total)
            holdings.put(principal, "t", size_bytes)
            total += size_bytes
        elif total:
            size_bytes = rng.randrange(1, total + 1) if rng.random() < 0.02 else min(total, 90_000)
            known = sum(span.total() for span in holdings._spans.get("t", ()))
            holdings.dropped("t", size_bytes)
            left = sum(span.total() for span in holdings._spans.get("t", ()))
            assert left == max(0, known - size_bytes)
            total -= size_bytes
        spans = holdings._spans.get("t", ())
        assert sum(span.total() for span in spans) in (total, 0)  # 0: nobody's is all of it
        assert len(spans) <= SPANS_MAX
        for owner in "ab":
            assert holdings.unread_bytes[owner] == sum(span[owner] for span in spans)
            assert holdings.unread_bytes[owner] >= 0
    holdings.dropped("t", total)
    assert not holdings.unread_bytes


def test_what_was_there_before_the_node_began_is_given_back_with_what_came_since(
    bench: Bench,
) -> None:
    for client in ("a", "s"):
        bench.ok(Register(client, True, None, "", client))
    bench.ok(Subscribe("s", None, "t", None, "s"))
    put(bench, "a", 1, 1000)
    bench.restart()
    assert bench.store.holdings.unread_bytes["a"] == 0
    of_a = put(bench, "a", 2, 1000)
    bench.ok(Advance("s", None, {"t": 1}, "s"))
    while bench.store.collect_garbage(1):
        pass
    assert bench.store.holdings.unread_bytes["a"] == of_a // 2, "both stand in one span"


# --- the leader -----------------------------------------------------------------------------------


class Leading(BrokerBench):
    """A broker in a cluster with keys; `told`: who met which quota."""

    def __init__(self, directory: Path, **quotas: int) -> None:
        super().__init__(directory)
        self.store.apply(self.store.applied_index + 1, 1, encode(1, [Raise(LEVEL_OF_USERS)]))
        self.broker.quotas = Quotas(**quotas)
        self.told: list[tuple[str, str]] = []
        self.broker.refused = lambda payer, quota: self.told.append((payer, quota))
        self.ids = iter(f"id-{number}" for number in range(1, 1000))
        self.broker.new_client_id = lambda: next(self.ids)

    def say(
        self, kind: str, topic: str = "", client_id: str = "", by: str = "shop", **body: Any
    ) -> None:
        made = Request(kind, "r", topic, client_id, None, body)
        waiting = self.broker.request(b"me", decode_request(encoded(made)), self.now_ms, by)
        if waiting is not None:
            self.barrier += 1
            self.broker.await_barrier(waiting, self.barrier, self.store.applied_index)

    def answered(self, kind: str, *arguments: str, **body: Any) -> Answer:
        self.say(kind, *arguments, **body)
        [answer] = self.turn()
        return answer


def test_a_principal_gets_no_more_client_ids_than_it_may_have_and_others_do(tmp_path: Path) -> None:
    lead = Leading(tmp_path, clients_max=2)
    for _ in range(2):
        assert code_of(lead.answered(REQUEST_ID)) == "ACK"
    refused = lead.answered(REQUEST_ID)
    assert code_of(refused) == "quota"
    assert refused.body["definite"]
    assert (refused.body["quota"], refused.body["limit"]) == ("clients_max", 2)
    assert "retry_after_ms" not in refused.body
    assert code_of(lead.answered(REQUEST_ID, client_id="id-1")) == "ACK"  # it takes one up again
    assert code_of(lead.answered(REQUEST_ID, by="orders")) == "ACK"
    assert lead.told == [("shop", "clients_max")]


def test_what_is_under_way_counts_as_well(tmp_path: Path) -> None:
    lead = Leading(tmp_path, clients_max=3)
    for _ in range(10):
        lead.say(REQUEST_ID)
    codes = sorted(code_of(answer) for answer in lead.turn())
    assert codes == ["ACK"] * 3 + ["quota"] * 7
    assert not lead.broker._asked
    for _ in range(5):
        lead.say(REQUEST_ID, by="orders")
    lead.broker.abdicate("b")
    assert not lead.broker._asked


def test_a_principal_takes_no_more_topics_than_it_may_have(tmp_path: Path) -> None:
    lead = Leading(tmp_path, topics_max=2)
    for _ in range(2):
        lead.answered(REQUEST_ID)
    for client, topic in (("id-1", "t"), ("id-1", "u"), ("id-2", "t"), ("id-1", "u")):
        assert code_of(lead.answered(SUB, topic, client)) == "ACK"
    assert code_of(lead.answered(SUB, "v", "id-2")) == "quota"
    assert code_of(lead.answered(UNSUB, "u", "id-1")) == "ACK"
    assert code_of(lead.answered(SUB, "v", "id-2")) == "ACK"
    assert lead.told == [("shop", "topics_max")]


@pytest.mark.parametrize(
    ("quota", "topics", "more"),
    [
        ("subscriptions_max", ["t", "t", "u"], {}),
        ("patterns_max", ["a.*", "b.*", "c.*"], {}),
        ("groups_max", ["t", "u", "v"], {"group": "g"}),
    ],
)
def test_a_principal_takes_no_more_of_what_all_share_than_it_may_have(
    tmp_path: Path, quota: str, topics: list[str], more: dict[str, Any]
) -> None:
    lead = Leading(tmp_path, **{quota: 2})
    raised = encode(1, [Raise(LEVEL_OF_PATTERNS)])
    lead.store.apply(lead.store.applied_index + 1, 1, raised)
    for by in ("shop", "shop", "orders"):
        lead.answered(REQUEST_ID, by=by)
    places = list(zip(topics, ("id-1", "id-2", "id-2"), strict=True))
    for topic, client in places:
        lead.say(SUB, topic, client, **more)
    refused = lead.turn()
    assert [code_of(answer) for answer in sorted(refused, key=code_of)] == ["ACK", "ACK", "quota"]
    assert lead.told == [("shop", quota)]
    assert code_of(lead.answered(SUB, topics[2], "id-2", **more)) == "quota"
    assert code_of(lead.answered(SUB, topics[0], "id-1", **more)) == "ACK", "it has that"
    assert code_of(lead.answered(SUB, topics[2], "id-3", by="orders", **more)) == "ACK"
    assert code_of(lead.answered(UNSUB, topics[0], "id-1", **more)) == "ACK"
    assert code_of(lead.answered(SUB, topics[0], "id-1", **more)) == "ACK", "one has ended"
    assert not lead.broker._asked


def test_a_principal_makes_so_many_topics_of_new_names_an_hour(tmp_path: Path) -> None:
    """Two SUBs and UNSUBs of each name took 8 million names, all that a cluster has."""
    lead = Leading(tmp_path, names_per_hour_max=2)
    lead.store.apply(lead.store.applied_index + 1, 1, encode(1, [Raise(LEVEL_OF_PATTERNS)]))
    for by in ("shop", "orders"):
        lead.answered(REQUEST_ID, by=by)
    for topic in ("u", "v"):
        assert code_of(lead.answered(SUB, topic, "id-1")) == "ACK"
        assert code_of(lead.answered(UNSUB, topic, "id-1")) == "ACK"
    for more in ({}, {"group": "g"}):
        refused = lead.answered(SUB, "w", "id-1", **more)
        assert (code_of(refused), refused.body["quota"]) == ("quota", "names_per_hour_max")
        assert 1_790_000 < refused.body["retry_after_ms"] <= 1_800_001
    assert lead.told == [("shop", "names_per_hour_max")] * 2
    assert code_of(lead.answered(SUB, "u", "id-1")) == "ACK", "that name is there"
    assert code_of(lead.answered(PUT, "w", "id-1", counter=1, publication="x")) == "ACK"
    assert code_of(lead.answered(SUB, "x.*", "id-2", by="orders")) == "ACK"
    refused = lead.answered(PUT, "x.y", "id-1", counter=1, publication="x")
    assert (code_of(refused), refused.body["quota"]) == ("quota", "names_per_hour_max")
    assert code_of(lead.answered(PUT, "x.y", "id-2", by="orders", counter=1, publication="x")) == (
        "ACK"
    )
    assert code_of(lead.answered(PUT, "x.y", "id-1", counter=1, publication="x")) == "ACK"
    lead.now_ms += 1_800_001
    assert code_of(lead.answered(SUB, "w", "id-1")) == "ACK"
    assert not lead.broker._asked


def test_the_leader_says_in_a_pattern_s_entry_what_its_principal_may_have(tmp_path: Path) -> None:
    lead = Leading(tmp_path, topics_max=3, subscriptions_max=2)
    lead.store.apply(lead.store.applied_index + 1, 1, encode(1, [Raise(LEVEL_OF_PATTERNS)]))
    lead.answered(REQUEST_ID)
    assert code_of(lead.answered(SUB, "x.*", "id-1")) == "ACK"
    for topic in ("x.a", "x.b", "x.c"):
        lead.answered(PUT, topic, "id-1", counter=1, publication="x")
    assert lead.store.holdings.subscriptions["shop"] == 2
    refused = lead.answered(GET, "", "id-1")
    assert (code_of(refused), refused.body["topic"]) == ("too_many", "x.c")


def test_what_was_asked_for_and_is_refused_for_another_quota_is_given_back(tmp_path: Path) -> None:
    lead = Leading(tmp_path, topics_max=1, subscriptions_max=2)
    for by in ("shop", "shop"):
        lead.answered(REQUEST_ID, by=by)
    assert code_of(lead.answered(SUB, "t", "id-1")) == "ACK"
    for _ in range(5):
        assert lead.answered(SUB, "u", "id-2").body["quota"] == "topics_max"
    assert not lead.broker._asked
    assert code_of(lead.answered(SUB, "t", "id-2")) == "ACK"


def test_a_subscription_that_is_refused_for_the_level_counts_for_no_quota(tmp_path: Path) -> None:
    """Simulation, seed 12: a principal's place among its topics was taken for ever."""
    lead = Leading(tmp_path, topics_max=2)
    lead.answered(REQUEST_ID)
    refused = lead.answered(SUB, "t", "id-1", start="earliest")
    assert code_of(refused) != "ACK"
    assert not lead.broker._asked


def test_unread_bytes_that_are_under_way_count_as_well(tmp_path: Path) -> None:
    lead = Leading(tmp_path, unread_bytes_max=1000)
    for by in ("shop", "reader", "orders"):
        lead.answered(REQUEST_ID, by=by)
    lead.answered(SUB, "w", "id-2", by="reader")
    for counter in range(10):
        lead.say(PUT, "w", "id-1", counter=counter, publication="x" * 300)
    lead.say(PUT, "w", "id-3", by="orders", counter=0, publication="x" * 300)
    codes = [code_of(answer) for answer in lead.turn()]
    assert sorted(codes) == ["ACK"] * 4 + ["quota"] * 7
    assert not lead.broker._put_bytes_of
    lead.say(PUT, "w", "id-3", by="orders", counter=1, publication="x" * 300)
    lead.broker.abdicate("b")
    assert not lead.broker._put_bytes_of


def test_a_principal_s_unread_bytes_are_bounded_and_what_is_stored_is_answered(
    tmp_path: Path,
) -> None:
    lead = Leading(tmp_path, unread_bytes_max=1000)
    for by in ("shop", "reader", "orders"):
        lead.answered(REQUEST_ID, by=by)
    lead.answered(SUB, "w", "id-2", by="reader")
    assert code_of(lead.answered(PUT, "w", "id-1", counter=1, publication="x" * 900)) == "ACK"
    refused = lead.answered(PUT, "w", "id-1", counter=2, publication="x" * 900)
    assert code_of(refused) == "quota"
    assert refused.body["quota"] == "unread_bytes_max"
    assert refused.body["retry_after_ms"] > 0
    again = lead.answered(PUT, "w", "id-1", counter=1, publication="x" * 900)
    assert code_of(again) == "ACK"
    assert again.body["duplicate"]
    assert (
        code_of(lead.answered(PUT, "w", "id-3", by="orders", counter=1, publication="x")) == "ACK"
    )
    assert code_of(lead.answered(GET, "w", "id-2", by="reader", last_id=1)) == "ACK"
    while lead.store.collect_garbage(10):
        pass
    assert code_of(lead.answered(PUT, "w", "id-1", counter=2, publication="x" * 900)) == "ACK"


def test_a_principal_s_waiting_gets_are_bounded(tmp_path: Path) -> None:
    lead = Leading(tmp_path, parked_gets_max=2)
    for by in ("shop", "orders"):
        lead.answered(REQUEST_ID, by=by)
        lead.answered(SUB, "t", "id-1" if by == "shop" else "id-2", by=by)
    for _ in range(2):
        lead.say(GET, "t", "id-1", wait_ms=500)
    lead.say(GET, "t", "id-2", by="orders", wait_ms=500)
    assert lead.turn() == []
    refused = lead.answered(GET, "t", "id-1", wait_ms=500)
    assert code_of(refused) == "quota"
    assert refused.body["retry_after_ms"] > 0
    lead.say(PUT, "t", "id-1", counter=1, publication="x")
    assert len(lead.turn()) + len(lead.turn()) == 4  # all are woken
    assert not lead.broker._parked_of
    for _ in range(2):
        lead.say(GET, "t", "id-1", wait_ms=500, last_id=1)
        lead.turn()
    assert lead.broker._parked_of["shop"] == 2
    lead.broker.users_changed()  # both are looked at again, and wait on
    lead.turn()
    assert lead.broker._parked_of["shop"] == 2
    lead.now_ms += 501
    lead.turn()
    assert not lead.broker._parked_of
    for _ in range(2):
        lead.say(GET, "t", "id-1", wait_ms=500, last_id=1)
        lead.turn()
    lead.broker.abdicate("b")  # when it leads again, nobody waits at it
    lead.turn()
    for _ in range(2):
        lead.say(GET, "t", "id-1", wait_ms=500, last_id=1)
        assert lead.turn() == []
