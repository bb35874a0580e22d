"""What clients may ask for deposes no leader: a turn's time is bounded, whatever is asked."""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
import zmq

from cluster.local.local import LocalCluster
from tests.cluster.by_hand import ByHand
from tests.conftest import ANSWER_MS, PATIENT, ClusterFactory

TOPICS = 10_000
CLIENTS = 10  # with as many topics as a client may have
AT_ONCE = 250  # requests of one connection under way: half of limits.client_queue_max
READS = 800
WAIT_MS = 60_000


class DealerLine:
    """A DEALER that has many requests under way, and repeats what has to be asked again."""

    def __init__(self, endpoint: str) -> None:
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.RCVTIMEO, WAIT_MS)
        self._socket.connect(endpoint)
        self._numbers = itertools.count(1)

    def __enter__(self) -> DealerLine:
        return self

    def __exit__(self, *_: object) -> None:
        self._context.destroy(linger=0)

    def ask(self, requests: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        """Yield the bodies of the ACKs, in whatever order they come."""
        waiting, under_way = iter(requests), dict[str, dict[str, Any]]()
        while True:
            for request in itertools.islice(waiting, AT_ONCE - len(under_way)):
                self._send(request, under_way)
            if not under_way:
                return
            reply = json.loads(self._socket.recv_multipart()[1])
            request = under_way.pop(reply["request_id"])
            if reply["type"] == "ACK":
                yield reply["body"]
            else:
                assert reply["body"]["error"] == "overloaded", reply
                self._send(request, under_way)

    def _send(self, request: dict[str, Any], under_way: dict[str, dict[str, Any]]) -> None:
        request_id = str(next(self._numbers))
        under_way[request_id] = request
        header = json.dumps(request | {"request_id": request_id}).encode()
        self._socket.send_multipart([b"", header])


def name_of(number: int) -> str:
    return f"topic-{number:05}"


@pytest.fixture
def crowded(local_cluster: ClusterFactory) -> tuple[LocalCluster, list[str]]:
    """A cluster with 10,000 topics, a publication in each, and the clients that subscribe to them.

    The first client has put to all of them.
    """
    cluster = local_cluster(3, PATIENT)
    with DealerLine(cluster.endpoints()[cluster.wait_for_leader()]) as line:
        asked = line.ask({"type": "REQUEST_ID"} for _ in range(CLIENTS))
        clients = [str(body["client_id"]) for body in asked]
        subs = (
            {"type": "SUB", "topic": name_of(n), "client_id": clients[n % CLIENTS]}
            for n in range(TOPICS)
        )
        assert sum(1 for _ in line.ask(subs)) == TOPICS
        body = {"counter": 1, "publication": "first"}
        puts = (
            {"type": "PUT", "topic": name_of(n), "client_id": clients[0], "body": body}
            for n in range(TOPICS)
        )
        assert all(body["id"] == 1 for body in line.ask(puts))
    return cluster, clients


def all_pages(endpoint: str, counts: list[int]) -> None:
    """Ask for all topics, page by page; note how many there were."""
    with ByHand(endpoint) as hand:
        after, count, more = "", 0, True
        while more:
            body = hand.ack("TOPICS", all=True, after=after)
            count += len(body["topics"])
            after, more = body["topics"][-1]["topic"], body["more"]
    counts.append(count)


def standing(cluster: LocalCluster) -> dict[str, tuple[str, int]]:
    """Return {node: (role, term)}."""
    return {name: (s["role"], s["term"]) for name, s in cluster.statuses(ANSWER_MS).items()}


@pytest.mark.slow
def test_what_is_long_to_answer_deposes_no_leader(crowded: tuple[LocalCluster, list[str]]) -> None:
    cluster, clients = crowded
    leader = cluster.wait_for_leader()
    endpoint, before = cluster.endpoints()[leader], standing(cluster)
    counts: list[int] = []
    threads = [threading.Thread(target=all_pages, args=(endpoint, counts)) for _ in range(30)]
    for thread in threads:
        thread.start()
    with DealerLine(endpoint) as line:
        registrations = ({"type": "REQUEST_ID", "client_id": clients[0]} for _ in range(20))
        assert {len(body["counters"]) for body in line.ask(registrations)} == {TOPICS}
        reads = ({"type": "GET", "client_id": clients[0]} for _ in range(READS))
        given = {body["topic"] for body in line.ask(reads)}
        assert len(given) == READS, "each brings the topic that was given longest ago"
    with ByHand(endpoint) as hand:
        for counter in range(1, 51):
            hand.ack("PUT", name_of(1), clients[1], counter=counter, publication="steady")
    for thread in threads:
        thread.join()
    assert counts == [TOPICS] * 30
    assert standing(cluster) == before
