"""Clients' requests at a node that does not lead: passed on, bounded, answered exactly once."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from cluster.members.peers import BULK_BYTES_LONG_REPLIES, BULK_BYTES_SERVED
from cluster.serve.broker import Answer
from cluster.serve.frontend import SHORT_REPLY_BYTES, ClientRoutes, Frontend
from cluster.serve.quotas import Quotas, Rates, Refusals
from cluster.serve.relays import RELAY_MS_MAX
from cluster.store.outcomes import Refused
from cluster.wire.levels import BUILD, BUILD_0_1, LEVEL_OF_USERS, Build
from cluster.wire.messages import Message, Relay, RelayReply
from flotilla_client.protocol import (
    ACK,
    GET,
    INSPECT,
    NAK,
    SETTINGS,
    STATUS,
    TOPICS,
    Reply,
    Request,
    decode_reply,
    encode_reply,
    encode_request,
    pack,
)
from tests.simulation.bench import WorldBench

RELAYS_MAX = 2
LONG = b"x" * (SHORT_REPLY_BYTES + 1)


def never() -> bool:
    return False


class FrontendBench:
    """A follower `b` of the leader `a`, linked."""

    def __init__(self, seed: int = 1, relays_max: int = RELAYS_MAX) -> None:
        self.sent: list[tuple[str, Message]] = []
        self.linked = {"a"}
        self.room_bytes = {"peer": 1, "client": 1}
        peers: Any = SimpleNamespace(
            send=lambda name, message: self.sent.append((name, message)),
            room_bytes=lambda _: self.room_bytes["peer"],
            hello_of=lambda _: SimpleNamespace(extension=SimpleNamespace(build=self.theirs)),
        )
        self.theirs = BUILD
        self.front = Frontend(
            "b",
            relays_max,
            random.Random(seed),
            peers,
            BUILD,
            ClientRoutes(lambda _: self.room_bytes["client"]),
            dict,
            {},
            Quotas(),
        )
        self.raft = SimpleNamespace(leader="a", serving=False, term=3)
        self.broker: Any = SimpleNamespace(take_answers=list)
        lead: Any = SimpleNamespace(raft=self.raft, broker=self.broker, linked=self.linked)
        self.front.serve_as(lead)
        self.front.begin_turn(0.0, {})

    def ask(self, request_id: str, kind: str = TOPICS) -> None:
        request = Request(kind, request_id, client_id="me")
        self.front.take_request(b"client", encode_request(request))

    def replies(self) -> list[Reply]:
        return [decode_reply(frames) for _, frames in self.front.take_replies(never)]

    def relayed(self) -> list[Relay]:
        return [message for _, message in self.sent if isinstance(message, Relay)]


@pytest.fixture
def bench() -> FrontendBench:
    return FrontendBench()


def errors(replies: list[Reply]) -> list[tuple[str, str]]:
    return [(reply.request_id, str(reply.body.get("error"))) for reply in replies]


def test_a_follower_passes_a_request_on_and_its_reply_back(bench: FrontendBench) -> None:
    bench.ask("r1")
    [relay] = bench.relayed()
    assert not bench.front.is_idle()
    frames = encode_reply(Reply("ACK", "r1", "b", "a", 3, {}))
    bench.front.take_relay_reply(RelayReply(relay.relay_id, frames))
    bench.front.take_relay_reply(RelayReply(relay.relay_id, frames))
    assert [reply.request_id for reply in bench.replies()] == ["r1"]
    assert bench.front.is_idle()


def test_one_relay_over_the_limit_is_refused(bench: FrontendBench) -> None:
    for number in range(RELAYS_MAX + 1):
        bench.ask(f"r{number}")
    [refused] = bench.replies()
    assert errors([refused]) == [("r2", "overloaded")]
    assert refused.body["limit"] == RELAYS_MAX


def test_a_relay_that_nobody_waits_for_makes_room(bench: FrontendBench) -> None:
    for number in range(RELAYS_MAX):
        bench.ask(f"r{number}")
    bench.front.begin_turn(RELAY_MS_MAX, {})
    bench.ask("late")
    assert len(bench.relayed()) == RELAYS_MAX + 1


def test_who_waits_for_a_lost_leader_is_told_that_the_outcome_is_unknown(
    bench: FrontendBench,
) -> None:
    bench.ask("r1")
    bench.front.abandon_relays("c")
    assert bench.replies() == []
    bench.front.abandon_relays("a")
    [reply] = bench.replies()
    assert (errors([reply]), reply.body["definite"]) == ([("r1", "uncertain")], False)


@pytest.mark.parametrize("leader", ["", "b", "c"])
def test_a_node_that_reaches_no_leader_says_electing(bench: FrontendBench, leader: str) -> None:
    bench.raft.leader = leader
    bench.ask("r1")
    assert errors(bench.replies()) == [("r1", "electing")]
    assert bench.sent == []


def test_a_node_that_starts_again_gives_its_relays_other_numbers() -> None:
    lives = FrontendBench(), FrontendBench(seed=2)
    for life in lives:
        life.ask("r1")
    first, second = (life.relayed()[0].relay_id for life in lives)
    assert abs(first - second) > 2**32, "a late reply to one life must not meet the next"


def test_a_relayed_request_is_not_passed_on_again(bench: FrontendBench) -> None:
    bench.front.take_relay("c", Relay(7, encode_request(Request(GET, "r1", "t", "me"))))
    assert bench.front.take_replies(never) == []
    [(name, message)] = bench.sent
    assert isinstance(message, RelayReply)
    reply = decode_reply(message.frames)
    assert (name, message.relay_id, reply.node) == ("c", 7, "c")
    assert errors([reply]) == [("r1", "electing")]


def test_a_reply_too_long_for_a_node_that_is_far_behind_becomes_a_short_one(
    bench: FrontendBench,
) -> None:
    answers = [
        Answer(("c", 7), "r7", ACK, {}, *pack([LONG])),
        Answer(("c", 8), "r8", ACK, {"id": 1}),
    ]
    bench.room_bytes["peer"] = BULK_BYTES_SERVED - BULK_BYTES_LONG_REPLIES - 1
    bench.broker.take_answers = lambda: [answers.pop() for _ in answers[:]]
    assert bench.front.take_replies(never) == []
    replies = [message for _, message in bench.sent if isinstance(message, RelayReply)]
    said = [(message.relay_id, decode_reply(message.frames)) for message in replies]
    assert [(number, reply.type) for number, reply in said] == [(8, ACK), (7, NAK)]
    told = said[-1][1]
    assert errors([told]) == [("r7", "uncertain")]
    assert told.body["definite"] is False
    assert told.body["message"] == "too many replies wait on the way from b to c"


def test_what_other_nodes_are_answered_counts_by_whose_requests_those_were(
    bench: FrontendBench,
) -> None:
    answers = [
        Answer(("c", 7), "r7", ACK, {}, *pack([LONG]), principal="alice"),
        Answer(("c", 8), "r8", ACK, {}, principal="alice"),
        Answer(("a", 9), "r9", ACK, {}),
        Answer(b"own", "r10", ACK, {}, *pack([LONG]), principal="alice"),
    ]
    bench.broker.take_answers = lambda: [answers.pop(0) for _ in answers[:]]
    bench.front.take_replies(never)
    sent: Counter[tuple[str, str | None]] = Counter()
    for name, message in bench.sent:
        assert isinstance(message, RelayReply)
        sent[name, None if name == "a" else "alice"] += sum(map(len, message.frames))
    assert bench.front.take_answered() == sent
    assert len(sent) == 2
    assert bench.front.take_answered() == {}, "once"


def test_a_stopping_node_takes_nothing_but_status(bench: FrontendBench) -> None:
    bench.front.stop()
    bench.front.lead = None
    bench.ask("r1")
    bench.ask("r2", STATUS)
    first, second = bench.replies()
    assert {first.request_id, second.request_id} == {"r1", "r2"}
    assert {first.body.get("error"), second.body.get("role")} == {"shutting_down", "joining"}


def test_a_leader_that_is_not_connected_is_not_named_by_status(
    make_bench: Callable[..., WorldBench],
) -> None:
    bench = make_bench()
    leader = bench.wait_for_leader()
    survivor, other = sorted({*"abc"} - {leader})

    def named() -> str:
        return str(bench.replica(survivor).frontend.status()["leader"])

    bench.until(lambda: named() == leader)
    bench.crash(other)
    bench.crash(leader)
    bench.until(lambda: named() == "")
    assert bench.replica(survivor).frontend.status()["role"] == "follower"


def test_what_is_no_request_gets_its_id_back(bench: FrontendBench) -> None:
    bench.front.take_request(b"client", [b'{"type": "DANCE", "request_id": "r1"}'])
    bench.front.take_request(b"client", [])
    assert errors(bench.replies()) == [("r1", "bad_request"), ("", "bad_request")]


@pytest.mark.parametrize("full", ["peer", "client"])
def test_a_request_is_not_relayed_while_its_way_is_full(bench: FrontendBench, full: str) -> None:
    bench.room_bytes[full] = 0
    bench.ask("r1")
    assert errors(bench.replies()) == [("r1", "overloaded")]
    assert bench.relayed() == []


def test_a_relay_that_the_leader_never_answers_is_answered_at_last(bench: FrontendBench) -> None:
    bench.ask("r1")
    bench.front.begin_turn(RELAY_MS_MAX, {})
    assert errors(bench.replies()) == [("r1", "uncertain")]
    assert bench.front.is_idle()


def test_a_request_over_a_rate_is_refused_where_it_comes_in_with_the_time_to_wait(
    bench: FrontendBench,
) -> None:
    bench.front.rates = Rates(Quotas(requests_per_s_max=2))
    bench.front.payer_of = lambda route: ("shop", False)
    for number in range(3):
        bench.ask(f"r{number}")
    [refused] = bench.replies()
    assert refused.request_id == "r2"
    assert refused.body["error"] == "quota"
    assert refused.body["definite"]
    assert refused.body["quota"] == "requests_per_s_max"
    assert refused.body["limit"] == 2
    assert len(bench.relayed()) == 2
    assert bench.front.refusals.total == {("shop", "requests_per_s_max"): 1}
    bench.front.begin_turn(refused.body["retry_after_ms"], {})
    bench.ask("r3")
    assert errors(bench.replies()) == [("r3", "overloaded")]  # two are under way


def test_a_long_reply_counts_as_bytes_of_who_asked(bench: FrontendBench) -> None:
    bench.front.rates = Rates(Quotas(bytes_per_s_max=1000))
    bench.front.payer_of = lambda route: ("shop", False)
    bench.ask("r1")
    [relay] = bench.relayed()
    frames = [*encode_reply(Reply("ACK", "r1", "b", "a", 3, {})), LONG]
    bench.front.take_relay_reply(RelayReply(relay.relay_id, frames))
    assert len(bench.front.take_replies(never)) == 1
    bench.ask("r2")
    assert errors(bench.replies()) == [("r2", "quota")]


def test_refusals_for_a_quota_use_up_nothing_of_it(bench: FrontendBench) -> None:
    bench.front.rates = Rates(Quotas(bytes_per_s_max=100))
    bench.front.payer_of = lambda route: ("shop", False)
    for number in range(4):
        bench.ask(f"r{number}")
    bench.replies()
    waits = set()
    for number in range(4, 14):
        bench.ask(f"r{number}")
        [refused] = bench.replies()
        waits.add((refused.body["error"], refused.body["retry_after_ms"]))
    assert len(waits) == 1, "however often it asks, it waits no longer"
    [(error, retry_after_ms)] = waits
    assert error == "quota"
    bench.front.begin_turn(retry_after_ms, {})
    bench.ask("r14")
    assert "quota" not in dict(errors(bench.replies())).values()


def test_what_a_surplus_connection_asks_is_refused_for_good(bench: FrontendBench) -> None:
    bench.front.rates = Rates(Quotas(connections_max=5))
    bench.front.payer_of = lambda route: ("shop", True)
    bench.ask("r1", STATUS)
    [refused] = bench.replies()
    assert refused.body["error"] == "quota"
    assert (refused.body["quota"], refused.body["limit"]) == ("connections_max", 5)
    assert "retry_after_ms" not in refused.body


# --- principals ---


def test_whatever_one_principal_has_under_way_another_s_request_is_passed_on() -> None:
    """A key that has GETs parked by way of a follower took all of its places, for all others."""
    bench = FrontendBench(relays_max=8)
    bench.front.principal_of = lambda route: "flood"
    for number in range(9):
        bench.ask(f"f{number}", GET)
    refused = bench.replies()
    assert errors(refused) == [(f"f{number}", "overloaded") for number in (6, 7, 8)]
    assert {reply.body["limit"] for reply in refused} == {6}
    bench.front.principal_of = lambda route: "shop"
    for number in range(3):
        bench.ask(f"s{number}", GET)
    assert errors(bench.replies()) == [("s2", "overloaded")], "two places were left"
    bench.front.principal_of = lambda route: "flood"
    for way in ("answered", "expired", "abandoned"):
        if way == "answered":
            for relay in bench.relayed()[:6]:
                frames = encode_reply(Reply("ACK", "f", "b", "a", 3, {}))
                bench.front.take_relay_reply(RelayReply(relay.relay_id, frames))
        elif way == "expired":
            bench.front.begin_turn(2 * RELAY_MS_MAX, {})
        else:
            bench.front.abandon_relays("a")
        bench.replies()
        for number in range(7):
            bench.ask(f"f{number}", GET)
        assert errors(bench.replies())[-1:] == [("f6", "overloaded")], way


def test_a_relay_says_whose_key_the_client_has(bench: FrontendBench) -> None:
    bench.ask("r1")
    bench.front.principal_of = lambda route: f"{route.decode()}-key"
    bench.ask("r2")
    for theirs in (BUILD_0_1, Build("before", 1, LEVEL_OF_USERS - 1)):
        bench.theirs = theirs
        bench.front.abandon_relays("a")
        bench.ask("r3")
    assert [relay.principal for relay in bench.relayed()] == [None, "client-key", None, None]


@pytest.mark.parametrize("level", [LEVEL_OF_USERS - 1, LEVEL_OF_USERS])
def test_a_leader_with_keys_carries_out_nothing_of_which_it_does_not_know_who_asks(
    bench: FrontendBench, level: int
) -> None:
    asked: list[str | None] = []
    bench.raft.serving, bench.raft.uncommitted_entries = True, 0
    bench.front.lead.uncommitted_entries_max = 1  # type: ignore[union-attr]
    bench.broker.store = SimpleNamespace(level=level)
    bench.broker.request = lambda *arguments: asked.append(arguments[-1])
    bench.front.principal_of = lambda route: "local"
    frames = encode_request(Request(GET, "r1", "t", "me"))

    bench.front.take_relay("c", Relay(7, frames))
    bench.front.take_relay("c", Relay(8, frames, "shop"))
    bench.front.take_request(b"client", frames)

    is_asked = level < LEVEL_OF_USERS
    assert asked == [*([None] if is_asked else []), "shop", "local"]
    bench.front.take_replies(never)
    refused = [m.relay_id for _, m in bench.sent if isinstance(m, RelayReply)]
    assert refused == ([] if is_asked else [7])


def test_the_status_of_a_damaged_node_names_nobody_to_who_may_not_observe(
    bench: FrontendBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The key of a damaged row may be a user's name, a pattern, a client's id."""
    damage = {"file": "store.db", "table": "users", "row": "rival", "reason": "its checksum"}
    monkeypatch.setattr(bench.front, "status", lambda: {"damage": [dict(damage)], "node": "b"})
    said = Refused("unauthorized", "shop lacks `observe`", {"needs": "observe"})
    bench.broker.forbidden = lambda principal, request: said if principal == "shop" else None
    whole = {"file": "store.db", "table": "users", "reason": "its checksum"}
    for principal, shown in (("shop", whole), ("board", damage)):
        bench.front.principal_of = lambda route, name=principal: name  # type: ignore[misc]
        bench.ask("r1", STATUS)
        assert bench.replies()[0].body["damage"] == [shown]
    bench.front.principal_of = None
    bench.ask("r1", STATUS)
    assert bench.replies()[0].body["damage"] == [damage]


def test_the_status_names_the_administrators_that_differ_to_who_may_observe(
    bench: FrontendBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    differing = {"a": {"admins": ["boss", "chief"]}, "c": {"x": [1, 2], "admins": ["boss", ""]}}
    monkeypatch.setattr(bench.front, "status", lambda: {"settings_differ": dict(differing)})
    said = Refused("unauthorized", "shop lacks `observe`", {"needs": "observe"})
    bench.broker.forbidden = lambda principal, request: said if principal == "shop" else None
    for principal, shown in (("shop", {"c": {"x": [1, 2]}}), ("board", differing)):
        bench.front.principal_of = lambda route, name=principal: name  # type: ignore[misc]
        bench.ask("r1", STATUS)
        assert bench.replies()[0].body["settings_differ"] == shown


def test_a_node_shows_its_settings_to_who_may_observe_by_its_own_state(
    bench: FrontendBench,
) -> None:
    request = Request(INSPECT, "r1", body={"what": SETTINGS})
    said = Refused("unauthorized", "shop lacks `observe`", {"needs": "observe"})
    bench.front.settings = {"node": "b"}
    bench.broker.forbidden = lambda principal, request: said if principal == "shop" else None
    bench.broker.denied = Refusals()
    for principal, code in (("shop", "unauthorized"), ("boss", "None")):
        bench.front.principal_of = lambda route, name=principal: name  # type: ignore[misc]
        bench.front.take_request(b"client", encode_request(request))
        [reply] = bench.replies()
        assert errors([reply]) == [("r1", code)]
        assert ("settings" in reply.body) is (principal == "boss")
    assert bench.broker.denied.total == {("shop", "observe"): 1}, "it is told as all others are"
    bench.front.lead = None
    bench.front.take_request(b"client", encode_request(request))
    assert errors(bench.replies()) == [("r1", "electing")], "it does not know yet who may"
