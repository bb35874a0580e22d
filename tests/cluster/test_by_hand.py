"""A raw REQ socket that sends the JSON by hand gets every request type served, at any node.

One cluster for all of them: each has topics of its own.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from cluster.local.local import LocalCluster
from tests.cluster.by_hand import ByHand
from tests.conftest import running


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with running(tmp_path_factory.mktemp("by-hand") / "cluster") as made:
        yield made


@pytest.fixture
def hands(cluster: LocalCluster) -> Iterator[dict[str, ByHand]]:
    """One person at each node."""
    hands = {name: ByHand(endpoint) for name, endpoint in cluster.endpoints().items()}
    yield hands
    for hand in hands.values():
        hand.__exit__(None, None, None)


def follower_of(cluster: LocalCluster) -> str:
    leader = cluster.wait_for_leader()
    return next(name for name in cluster.endpoints() if name != leader)


def test_every_request_type_is_served_through_every_node(hands: dict[str, ByHand]) -> None:
    for number, (name, hand) in enumerate(hands.items()):
        topic = f"topic-{number}"
        me = hand.ack("REQUEST_ID")["client_id"]
        assert hand.ack("SUB", topic, me) == {"last_id": 0, "resumed": False}
        assert hand.ack("SUB", topic, me) == {"last_id": 0, "resumed": True}
        for counter in (7, 8):
            put = hand.ack("PUT", topic, me, counter=counter, publication=f"p{counter}")
            assert put == {"id": counter - 6, "count": 1, "duplicate": False, "stored": True}
        again = hand.ack("PUT", topic, me, counter=7, publication="p7")
        assert again == {"id": 1, "count": 1, "duplicate": True, "stored": True}
        got = hand.ack("GET", topic, me, text=True)
        assert got == {"topic": topic, "id": 1, "count": 1, "publication": "p7"}
        assert hand.ack("GET", topic, me, text=True) == got, "a GET can be repeated"
        got = hand.ack("GET", topic, me, text=True, last_id=1)
        assert got["publication"] == "p8"
        assert hand.ack("GET", "", me, text=True, last_ids={topic: 1})["id"] == 2
        assert hand.ack("GET", topic, me, text=True, last_id=2)["count"] == 0
        mine = hand.ack("TOPICS", "", me)["topics"]
        assert mine == [{"topic": topic, "last_id": 2, "cursor": 2, "backlog": 0}]
        assert topic in {row["topic"] for row in hand.ack("TOPICS", all=True)["topics"]}
        assert hand.ack("STATUS")["node"] == name
        assert hand.ack("UNSUB", topic, me) == {"was_subscribed": True}
        assert hand.ack("UNSUB", topic, me) == {"was_subscribed": False}
        assert hand.error("GET", topic, me) == "unknown_topic"


def test_a_topic_made_again_goes_on_with_its_ids_and_counters(hands: dict[str, ByHand]) -> None:
    hand = hands["n1"]
    me = hand.ack("REQUEST_ID")["client_id"]
    hand.ack("SUB", "again", me)
    hand.ack("PUT", "again", me, counter=1, publication="a")
    hand.ack("UNSUB", "again", me)
    unread = hand.ack("PUT", "again", me, counter=2, publication="nobody reads this")
    assert unread == {"id": 0, "count": 1, "duplicate": False, "stored": False}
    assert hand.ack("SUB", "again", me) == {"last_id": 1, "resumed": False}
    assert hand.ack("PUT", "again", me, counter=2, publication="late retry")["duplicate"]
    assert hand.ack("PUT", "again", me, counter=3, publication="b")["id"] == 2


def test_errors_are_typed_and_say_whether_they_are_definite(hands: dict[str, ByHand]) -> None:
    hand = hands["n2"]
    me = hand.ack("REQUEST_ID")["client_id"]
    other = hand.ack("REQUEST_ID")["client_id"]
    hand.ack("SUB", "errors", me)
    hand.ack("PUT", "errors", me, counter=1, publication="a")
    gap = hand.ask("PUT", "errors", me, counter=9, publication="a")["body"]
    assert (gap["error"], gap["expected"], gap["definite"]) == ("counter_gap", 2, True)
    assert hand.error("GET", "errors", other) == "not_subscribed"
    assert hand.error("GET", "elsewhere", me) == "unknown_topic"
    assert hand.error("GET", "errors", me, last_id=5) == "bad_request"
    assert hand.error("SUB", "errors", "nobody") == "unknown_client"
    assert hand.error("SUB", "", me) == "bad_request"
    assert hand.error("NONSENSE") == "bad_request"
    too_large = "x" * (1024**2 + 1)
    assert hand.error("PUT", "errors", me, counter=2, publication=too_large) == "too_large"


def test_who_speaks_a_later_version_is_refused_under_its_own_request_id(
    cluster: LocalCluster, hands: dict[str, ByHand]
) -> None:
    for hand in hands.values():
        reply = hand.ask_in_version(2, "SPLICE", frames=(b"a", b"b", b"c"))
        assert (reply["type"], reply["v"], reply["body"]["version"]) == ("NAK", 1, 1)
        assert hand.ack("STATUS"), "the connection goes on"


def test_a_newer_process_fences_the_older_one(hands: dict[str, ByHand]) -> None:
    hand = hands["n3"]
    me = hand.ack("REQUEST_ID")["client_id"]
    hand.ack("SUB", "fenced", me)
    assert hand.ack("REQUEST_ID", "", me)["epoch"] == 2
    header: dict[str, Any] = {"topic": "fenced", "client_id": me}
    reply = hand.ask("PUT", **header, counter=1, publication="by hand, without an epoch")
    assert reply["type"] == "ACK", "a request without an epoch is not fenced"


def test_a_parked_get_is_answered_by_the_next_put(
    cluster: LocalCluster, hands: dict[str, ByHand]
) -> None:
    follower = follower_of(cluster)
    me = hands["n1"].ack("REQUEST_ID")["client_id"]
    hands["n1"].ack("SUB", "parked", me)
    answers: list[dict[str, Any]] = []
    with ByHand(cluster.endpoints()[follower]) as waiting:
        thread = threading.Thread(
            target=lambda: answers.append(
                waiting.ack("GET", "parked", me, last_id=0, wait_ms=9000, text=True)
            )
        )
        thread.start()
        hands["n1"].ack("PUT", "parked", me, counter=1, publication="news")
        thread.join(timeout=10)
    assert [answer["publication"] for answer in answers] == ["news"]
