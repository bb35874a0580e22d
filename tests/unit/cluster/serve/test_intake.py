"""Requests that wait for a turn: in order, both kinds in turn, bounded."""

from __future__ import annotations

import pytest

from cluster.serve import intake as intake_module
from cluster.serve.intake import Intake
from cluster.serve.shares import CONTENDED_S, PAYER_SHARE
from cluster.wire.messages import Relay


def request(name: str) -> tuple[bytes, list[bytes]]:
    return name.encode(), [b"header"]


def relay(number: int, size_bytes: int = 10) -> Relay:
    return Relay(number, [bytes(size_bytes)])


def test_requests_of_clients_and_of_nodes_are_taken_in_turn_each_in_order() -> None:
    intake = Intake()
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
    intake = Intake()
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
    intake = Intake()
    for number in range(count):
        assert intake.add_relay("n2", relay(number, size_bytes), 0.0)
    assert not intake.add_relay("n2", relay(9, size_bytes), 0.0)
    intake.begin_turn(0.0)
    intake.take()
    assert intake.add_relay("n3", relay(9, size_bytes), 0.0)


def test_a_flood_through_one_node_leaves_others_their_place_and_a_turn_short() -> None:
    intake = Intake()
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
