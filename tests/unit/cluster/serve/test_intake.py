"""Requests that wait for a turn: in order, both kinds in turn, bounded."""

from __future__ import annotations

import pytest

from cluster.serve import intake as intake_module
from cluster.serve.intake import Intake
from cluster.serve.shares import (
    CONTENDED_S,
    PAYER_SHARE,
    REST_S_MAX,
    REST_TURNS,
    WEIGHT_ANSWER_BYTES,
    WEIGHT_BYTES,
    WEIGHT_IDS,
    WEIGHT_PATTERN,
    WEIGHT_S,
    Rests,
    Shares,
    weight,
)
from cluster.wire.messages import Relay
from flotilla_client.protocol import PUT, SUB, TAKE, UNSUB, Request, encode_request


def request(name: str) -> tuple[bytes, list[bytes]]:
    return name.encode(), [b"header"]


def relay(number: int, size_bytes: int = 10) -> Relay:
    return Relay(number, [bytes(size_bytes)])


def test_requests_of_clients_and_of_nodes_are_taken_in_turn_each_in_order() -> None:
    intake = Intake(Shares(PAYER_SHARE))
    intake.add_clients([request("1"), request("2"), request("3")], 0.0)
    for number in range(5):
        assert intake.add_relay("n2", relay(number), 0.0)
    taken = []
    intake.begin_turn(0.0)
    while found := intake.take():
        sender, what = found
        taken.append(f"relay {what.relay_id}" if isinstance(what, Relay) else sender.decode())
    assert taken == [
        "relay 0", "1", "relay 1", "2", "relay 2", "3", "relay 3", "relay 4",
    ]  # fmt: skip


def test_clients_are_asked_for_more_when_the_last_ones_are_through() -> None:
    intake = Intake(Shares(PAYER_SHARE))
    assert intake.wants_clients
    intake.add_clients([request("1")], 0.0)
    intake.add_relay("n2", relay(1), 0.0)
    assert not intake.wants_clients
    intake.begin_turn(0.0)
    while not intake.wants_clients:
        intake.take()


@pytest.mark.parametrize(("count", "size_bytes"), [(3, 10), (2, 400)])
def test_relays_are_bounded_by_number_and_by_bytes(
    monkeypatch: pytest.MonkeyPatch, count: int, size_bytes: int
) -> None:
    monkeypatch.setattr(intake_module, "RELAYS_WAITING_MAX", 3)
    monkeypatch.setattr(intake_module, "RELAYS_WAITING_BYTES_MAX", 1000)
    intake = Intake(Shares(PAYER_SHARE))
    for number in range(count):
        assert intake.add_relay("n2", relay(number, size_bytes), 0.0)
    assert not intake.add_relay("n2", relay(9, size_bytes), 0.0)
    intake.begin_turn(0.0)
    intake.take()
    assert intake.add_relay("n3", relay(9, size_bytes), 0.0)


def test_a_flood_through_one_node_leaves_others_their_place_and_a_turn_short() -> None:
    intake = Intake(Shares(PAYER_SHARE))
    for number in range(1000):
        assert intake.add_relay("n2", relay(number), 0.0)
    assert intake.add_relay("n3", relay(5000), 0.0)
    intake.add_clients([request("1")], 0.0)
    intake.begin_turn(0.0)
    taken = []
    while found := intake.take():
        taken.append(found[0])
    assert taken[:3] == ["n2", b"1", "n3"]
    assert taken.count("n2") == PAYER_SHARE
    intake.begin_turn(CONTENDED_S)  # nobody else has asked since
    rest = 0
    while intake.take():
        rest += 1
    assert rest == 1000 - PAYER_SHARE


def taken_by(intake: Intake, now: float) -> list[str | bytes]:
    intake.begin_turn(now)
    taken = []
    while found := intake.take():
        taken.append(found[0])
    return taken


def test_each_principal_has_a_share_of_what_one_node_passes_on_and_the_flood_rests() -> None:
    intake = Intake(Shares(PAYER_SHARE))
    for number in range(200):
        assert intake.add_relay("n2", Relay(number, [b"flood"], "mallory"), 0.0)
    assert intake.add_relay("n2", Relay(500, [b"only this"], "alice"), 0.0)
    intake.add_clients([request("1")], 0.0)
    assert len(taken_by(intake, 0.0)) == PAYER_SHARE + 2, "alice's is not behind mallory's"
    intake.end_turn(0.002, 0.002, {})
    rest_s = REST_TURNS * 0.002
    assert intake.next_deadline() == pytest.approx(0.002 + rest_s)
    assert intake
    assert not intake.is_due, "the next turn is not due at once"
    assert intake.add_relay("n2", Relay(501, [b"and this"], "alice"), 0.003)
    assert intake.is_due
    assert taken_by(intake, 0.003) == ["n2"]
    intake.end_turn(0.001, 0.004, {})
    assert len(taken_by(intake, 0.002 + rest_s)) == PAYER_SHARE


@pytest.mark.parametrize(("count", "size_bytes"), [(6, 10), (3, 250)])
def test_one_principal_takes_no_more_than_three_quarters_of_the_places_by_whatever_node(
    monkeypatch: pytest.MonkeyPatch, count: int, size_bytes: int
) -> None:
    monkeypatch.setattr(intake_module, "RELAYS_WAITING_MAX", 8)
    monkeypatch.setattr(intake_module, "RELAYS_WAITING_BYTES_MAX", 1000)
    intake = Intake(Shares(PAYER_SHARE))

    def came(node: str, principal: str | None) -> bool:
        return intake.add_relay(node, Relay(1, [bytes(size_bytes)], principal), 0.0)

    assert [came(f"n{number % 2}", "mallory") for number in range(count)] == [True] * count
    assert not came("n3", "mallory")
    assert came("n0", "alice")
    intake.begin_turn(0.0)
    intake.take()
    intake.take()
    assert [came("n3", "mallory") for _ in range(3)] == [True, True, False], "as many as went"
    while taken_by(intake, 0.0):
        pass
    assert not intake._of
    assert not intake._bytes_of
    assert [came("n0", "mallory") for _ in range(count + 1)] == [*[True] * count, False]


@pytest.mark.parametrize("principals", [("mallory", "mallory"), (None, None)])
def test_nobody_rests_who_is_alone_or_whom_nobody_knows(principals: tuple[str | None, ...]) -> None:
    intake = Intake(Shares(PAYER_SHARE))
    for number in range(200):
        assert intake.add_relay("n2", Relay(number, [b"flood"], principals[0]), 0.0)
    assert intake.add_relay("n3", Relay(500, [b"only this"], principals[1]), 0.0)
    taken_by(intake, 0.0)
    intake.end_turn(0.002, 0.002, {})
    assert intake.is_due
    assert intake.next_deadline() == float("inf")


def test_large_requests_that_are_passed_on_count_as_several() -> None:
    intake = Intake(Shares(PAYER_SHARE))
    for number in range(20):
        assert intake.add_relay("n2", relay(number, PAYER_SHARE // 4 * WEIGHT_BYTES), 0.0)
    intake.add_clients([request("1")], 0.0)
    assert taken_by(intake, 0.0).count("n2") == 4


def test_who_was_answered_a_lot_rests_as_who_asked_for_a_lot() -> None:
    payers = Shares(PAYER_SHARE)
    intake = Intake(payers)
    large = PAYER_SHARE * WEIGHT_ANSWER_BYTES
    for principal in ("alice", "mallory", "alice"):
        relayed = Relay(1, [b"h"], principal)
        assert intake.add_relay("n2", relayed, 0.0)
    assert intake.add_relay("n3", Relay(1, [b"h"]), 0.0)
    answered = {("n2", "mallory"): large, ("n2", "alice"): large - 1, ("n3", None): large}
    intake.end_turn(0.0, 0.0, answered)
    assert intake.next_deadline() == pytest.approx(REST_TURNS * PAYER_SHARE * WEIGHT_S)
    intake.begin_turn(0.0)
    taken = [(node, found.principal) for node, found in iter(intake.take, None)]
    assert sorted(taken, key=str) == [("n2", "alice"), ("n2", "alice"), ("n3", None)]


ACKS = {"group": "g", "acks": [[1, 1, 4096]]}
EXTENDS = {"group": "g", "max_count": 0, "extends": [[1, 1, 4096, 1000], [2, 5000, 9095, 1000]]}


@pytest.mark.parametrize(
    ("kind", "topic", "body", "expected"),
    [
        (TAKE, "t", ACKS, 1 + 4_096 // WEIGHT_IDS),
        (TAKE, "t", EXTENDS, 1 + 8_192 // WEIGHT_IDS),
        (TAKE, "t", {"group": "g"}, 1),
        (TAKE, "t", {"group": "g", "acks": [["1", "2", "3"]]}, 1),  # it will be refused
        (SUB, "orders.>", {}, 1 + WEIGHT_PATTERN),
        (UNSUB, "orders.*", {}, 1 + WEIGHT_PATTERN),
        (SUB, "orders", {}, 1),
        (PUT, "t", {"counter": 1, "publication": '"TAKE" SUB"'}, 1),
    ],
)
def test_what_asks_for_much_in_few_bytes_counts_as_several(
    kind: str, topic: str, body: dict[str, object], expected: int
) -> None:
    assert weight(encode_request(Request(kind, "r", topic, "me", None, body))) == expected


def test_what_is_no_request_counts_as_one() -> None:
    assert [weight(frames) for frames in ([], [b""], [b'{"TAKE"'], [b'SUB"'])] == [1, 1, 1, 1]


def test_who_has_asked_for_much_rests_as_long_as_that_takes_whatever_the_turn_took() -> None:
    rests = Rests[str]()
    rests.spent("light", 2)
    rests.spent("heavy", 100)
    rests.spent("very heavy", 10_000)
    rests.begin(0.001, 0.0)
    for who, rest_s in (
        ("light", REST_TURNS * 0.001),
        ("heavy", REST_TURNS * 100 * WEIGHT_S),
        ("very heavy", REST_S_MAX),
    ):
        rests.end(rest_s - 1e-6)
        assert who in rests
        rests.end(rest_s + 1e-6)
        assert who not in rests


def test_the_most_that_somebody_has_asked_for_in_a_turn_counts_whatever_comes_behind_it() -> None:
    rests = Rests[str]()
    for weight_ in (100, 2, 0):
        rests.spent("heavy", weight_)
    rests.begin(0.001, 0.0)
    rests.end(REST_TURNS * 100 * WEIGHT_S - 1e-6)
    assert "heavy" in rests
