"""What clients read through a follower never keeps Raft's messages waiting."""

from __future__ import annotations

import json
import threading
import time
from contextlib import closing

import pytest
import zmq

from cluster.local.local import LocalCluster
from flotilla_client import Client
from flotilla_client.protocol import decode_reply
from tests.cluster.by_hand import ByHand
from tests.conftest import ANSWER_MS, PATIENT, ClusterFactory

READERS = 150
READING_S = 5.0
WRITE_GAP_S = 5.0  # of a machine that is busy with it all; an election would be in the terms
PUBLICATION = bytes(1_000_000)


def terms(cluster: LocalCluster) -> set[int]:
    return {status["term"] for status in cluster.statuses(ANSWER_MS).values()}


class RelayedReaders:
    """Clients of one node that ask for 1 MB again and again, and take their replies."""

    def __init__(self, endpoint: str, client_id: str) -> None:
        self.replies: dict[str, int] = {}
        self._endpoint, self._client_id = endpoint, client_id
        self._is_done = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def close(self) -> None:
        self._is_done.set()
        self._thread.join()

    def _run(self) -> None:
        header = {"type": "GET", "topic": "t", "client_id": self._client_id, "request_id": "r"}
        ask = [b"", json.dumps(header | {"body": {"last_id": 0}}).encode()]
        context, poller = zmq.Context(), zmq.Poller()
        for _ in range(READERS):
            reader = context.socket(zmq.DEALER)
            reader.connect(self._endpoint)
            poller.register(reader, zmq.POLLIN)
            reader.send_multipart(ask)
        try:
            while not self._is_done.is_set():
                for reader, _ in poller.poll(100):
                    reply = decode_reply(reader.recv_multipart()[1:])
                    outcome = "ACK" if reply.ok else reply.body["error"]
                    self.replies[outcome] = self.replies.get(outcome, 0) + 1
                    reader.send_multipart(ask)
        finally:
            context.destroy(linger=0)


@pytest.mark.slow
def test_many_readers_of_a_follower_depose_no_leader_and_stop_no_writer(
    local_cluster: ClusterFactory,
) -> None:
    cluster = local_cluster(3, PATIENT)
    leader = cluster.wait_for_leader()
    follower = next(name for name in cluster.endpoints() if name != leader)
    endpoints = cluster.endpoints()
    with ByHand(endpoints[leader]) as hand, Client([endpoints[leader]]) as client:
        me = str(hand.ack("REQUEST_ID")["client_id"])
        hand.ack("SUB", "t", me)
        client.publish("t", PUBLICATION)
        before = terms(cluster)
        worst_s, counter = 0.0, 0
        with closing(RelayedReaders(endpoints[follower], me)) as readers:
            end_at = time.monotonic() + READING_S
            while time.monotonic() < end_at:
                began, counter = time.monotonic(), counter + 1
                hand.ack("PUT", "t", me, counter=counter, publication="x")
                worst_s = max(worst_s, time.monotonic() - began)
        print(readers.replies, "written", counter, "slowest", worst_s)
        log = cluster.log_file(leader).read_text() + cluster.log_file(follower).read_text()
        assert "peer_disconnected" not in log
        assert terms(cluster) == before, cluster.tails()
        assert worst_s < WRITE_GAP_S
        assert readers.replies["ACK"] > 0
        assert readers.replies.keys() <= {"ACK", "overloaded"}
