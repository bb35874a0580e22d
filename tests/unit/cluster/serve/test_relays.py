"""Requests that were passed on: bounded, and answered by nobody's reply but their own."""

from __future__ import annotations

from cluster.serve.relays import RELAY_ID_BITS, RELAY_MS_MAX, Relays
from cluster.wire.messages import INTEGER_MAX
from flotilla_client.protocol import GET_WAIT_MS_MAX


def test_one_relay_over_the_limit_is_refused_until_another_ends() -> None:
    relays = Relays(2, 0)
    first = relays.add(b"c", "r1", "n1", 0.0)
    assert relays.add(b"c", "r2", "n1", 0.0) is not None
    assert relays.add(b"c", "r3", "n1", 0.0) is None
    assert first is not None
    assert relays.finish(first) is not None
    assert relays.add(b"c", "r3", "n1", 0.0) is not None


def test_what_was_answered_gives_its_place_back_to_its_principal() -> None:
    relays = Relays(4, 0)
    for _ in range(relays.limit("p") + 1):
        number = relays.add(b"c", "r1", "n1", 0.0, "p")
        assert number is not None, "its requests that were answered are under way no more"
        assert relays.finish(number) is not None


def test_a_reply_to_a_request_of_the_last_life_finds_nobody() -> None:
    before, after = Relays(9, 1000), Relays(9, 2**40)
    old = before.add(b"c", "r1", "n1", 0.0)
    after.add(b"d", "r2", "n1", 0.0)
    assert old is not None
    assert after.finish(old) is None
    assert len(after) == 1


def test_ids_stay_within_what_the_message_holds() -> None:
    number = Relays(1, 2**RELAY_ID_BITS - 1).add(b"c", "r1", "n1", 0.0)
    assert number is not None
    assert number <= INTEGER_MAX


def test_a_lost_leader_s_relays_are_given_back_and_no_other_s() -> None:
    relays = Relays(9, 0)
    relays.add(b"c", "r1", "n1", 0.0)
    relays.add(b"c", "r2", "n2", 0.0)
    assert [relay.request_id for relay in relays.abandon("n1")] == ["r1"]
    assert len(relays) == 1


def test_all_relays_of_a_lost_leader_are_given_back() -> None:
    relays = Relays(9, 0)
    for request_id in ("r1", "r2", "r3"):
        relays.add(b"c", request_id, "n1", 0.0)
    assert [relay.request_id for relay in relays.abandon("n1")] == ["r1", "r2", "r3"]
    assert len(relays) == 0


def test_a_relay_outlasts_the_longest_wait_of_a_get() -> None:
    relays = Relays(9, 0)
    relays.add(b"c", "r1", "n1", 0.0)
    assert relays.expire(GET_WAIT_MS_MAX + 1_000.0) == []


def test_those_that_expire_together_take_no_other_along() -> None:
    relays = Relays(9, 0)
    for request_id, now_ms in (("r1", 0.0), ("r2", 1.0), ("r3", 2.0), ("r4", 3.0)):
        relays.add(b"c", request_id, "n1", now_ms)
    assert [relay.request_id for relay in relays.expire(RELAY_MS_MAX + 2.0)] == ["r1", "r2", "r3"]
    assert [relay.request_id for relay in relays.abandon("n1")] == ["r4"]


def test_a_relay_that_nobody_waits_for_is_dropped() -> None:
    relays = Relays(9, 0)
    relays.add(b"c", "r1", "n1", 0.0)
    relays.add(b"c", "r2", "n1", 1.0)
    relays.expire(RELAY_MS_MAX)
    assert len(relays) == 1
