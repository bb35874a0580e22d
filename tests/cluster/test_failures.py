"""Real processes that are stopped, paused, killed and wiped keep the promises."""

from __future__ import annotations

import json
import time

import pytest

from cluster.local.local import LocalCluster
from tests.cluster.by_hand import ByHand
from tests.conftest import ClusterFactory

WAIT_S = 20.0


@pytest.fixture
def cluster(local_cluster: ClusterFactory) -> LocalCluster:
    return local_cluster(3)


def others(cluster: LocalCluster, name: str) -> list[str]:
    return [node for node in cluster.endpoints() if node != name]


def at(cluster: LocalCluster, name: str) -> ByHand:
    return ByHand(cluster.endpoints()[name])


def put_until_acknowledged(hand: ByHand, client_id: str, counter: int) -> dict[str, object]:
    """Retry a PUT as a client would; the reply says what became of it."""
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        reply = hand.ask("PUT", "t", client_id, counter=counter, publication=f"p{counter}")
        if reply["type"] == "ACK":
            body: dict[str, object] = reply["body"]
            return body
        assert reply["body"]["error"] in ("electing", "uncertain", "not_leader"), reply
        time.sleep(0.02)  # what `electing` asks for, by hand
    raise AssertionError(f"PUT {counter} was not acknowledged in {WAIT_S} s")


def test_a_stopped_leader_hands_over_and_exits_with_zero(cluster: LocalCluster) -> None:
    leader = cluster.wait_for_leader()
    with at(cluster, others(cluster, leader)[0]) as hand:
        me = hand.ack("REQUEST_ID")["client_id"]
        hand.ack("SUB", "t", me)
        put_until_acknowledged(hand, me, 1)
        cluster.kill(leader, "TERM")
        put_until_acknowledged(hand, me, 2)
        assert hand.ack("TOPICS", "", me)["topics"][0]["last_id"] == 2
    lines = [json.loads(line) for line in cluster.log_file(leader).read_text().splitlines()]
    assert lines[-1]["event"] == "stopped", lines[-5:]
    # It saw another term begin before it ended: nobody had to miss it first.
    roles = [line for line in lines if line["event"] == "role"]
    assert roles[-2]["role"] == "leader", roles
    assert roles[-1]["role"] == "follower", roles
    assert roles[-1]["term"] > roles[-2]["term"], roles


def test_nothing_is_lost_or_doubled_when_all_nodes_are_killed_at_once(
    cluster: LocalCluster,
) -> None:
    node = next(iter(cluster.endpoints()))
    with at(cluster, node) as hand:
        me = hand.ack("REQUEST_ID")["client_id"]
        hand.ack("SUB", "t", me)
        for counter in range(1, 51):
            hand.ack("PUT", "t", me, counter=counter, publication=f"p{counter}")
    for name in cluster.endpoints():
        cluster.kill(name)
    cluster.start_all()
    with at(cluster, node) as hand:
        cluster.wait_for_leader()
        assert put_until_acknowledged(hand, me, 50) == {
            "id": 50,
            "count": 1,
            "duplicate": True,
            "stored": True,
        }
        assert put_until_acknowledged(hand, me, 51) == {
            "id": 51,
            "count": 1,
            "duplicate": False,
            "stored": True,
        }
        for id_ in range(1, 52):
            got = hand.ack("GET", "t", me, last_id=id_ - 1, text=True)
            assert (got["id"], got["publication"]) == (id_, f"p{id_}")


def test_a_paused_leader_that_comes_back_shows_no_old_state(cluster: LocalCluster) -> None:
    old = cluster.wait_for_leader()
    with at(cluster, others(cluster, old)[0]) as hand, at(cluster, old) as old_hand:
        me = hand.ack("REQUEST_ID")["client_id"]
        hand.ack("SUB", "t", me)
        old_hand.ack("STATUS")  # connected before the pause
        cluster.kill(old, "STOP")
        put_until_acknowledged(hand, me, 1)  # by the new leader
        import threading

        replies: list[dict[str, object]] = []
        asking = threading.Thread(
            target=lambda: replies.append(old_hand.ask("GET", "t", me, last_id=0, text=True))
        )
        asking.start()  # waits in the paused process's socket
        time.sleep(0.2)
        cluster.kill(old, "CONT")
        asking.join(timeout=15)
    reply = replies[0]
    body = reply["body"]
    assert isinstance(body, dict)
    shown = reply["type"] == "NAK" or body.get("publication") == "p1"
    assert shown, f"the deposed leader answered with an old state: {reply}"


@pytest.mark.slow
def test_a_wiped_node_is_readmitted_while_writes_go_on(cluster: LocalCluster) -> None:
    leader = cluster.wait_for_leader()
    wiped, other = others(cluster, leader)
    with at(cluster, other) as hand:
        me = hand.ack("REQUEST_ID")["client_id"]
        hand.ack("SUB", "t", me)
        put_until_acknowledged(hand, me, 1)
        cluster.kill(wiped)
        cluster.wipe(wiped)
        cluster.start(wiped)
        counter = 1
        deadline = time.monotonic() + WAIT_S
        while cluster.statuses().get(wiped, {}).get("applied_index", 0) < 3:
            assert time.monotonic() < deadline, cluster.tails()
            counter += 1
            put_until_acknowledged(hand, me, counter)
        # The readmitted node now makes the majority with either of the others.
        cluster.kill(leader)
        put_until_acknowledged(hand, me, counter + 1)
        assert hand.ack("TOPICS", "", me)["topics"][0]["last_id"] == counter + 1


def test_a_minority_does_not_acknowledge(cluster: LocalCluster) -> None:
    leader = cluster.wait_for_leader()
    with at(cluster, leader) as hand:
        me = hand.ack("REQUEST_ID")["client_id"]
        hand.ack("SUB", "t", me)
        for name in others(cluster, leader):
            cluster.kill(name, "STOP")
        reply = hand.ask("PUT", "t", me, counter=1, publication="alone")
        assert reply["type"] == "NAK", reply
        assert reply["body"]["error"] in ("uncertain", "electing"), reply
        for name in others(cluster, leader):
            cluster.kill(name, "CONT")
        assert put_until_acknowledged(hand, me, 1)["id"] == 1, "stored once, either way"
        assert put_until_acknowledged(hand, me, 2)["id"] == 2
