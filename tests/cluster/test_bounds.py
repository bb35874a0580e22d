"""What clients can make a node hold is bounded, and others are served meanwhile."""

from __future__ import annotations

import select
import threading
import time
from contextlib import ExitStack

import pytest

from cluster.client_port import READ_BYTES, UNREAD_BYTES_MAX
from cluster.local import LocalCluster
from flotilla import Client
from tests.cluster.by_hand import ByHand
from tests.cluster.raw_client import Raw, long_frame, memory_mb, request
from tests.conftest import ClusterFactory

MIB = 1024 * 1024
SHARED_MB = 128  # limits.unfinished_bytes_max
SLACK_MB = 64  # what the allocator keeps, and what a turn holds
SERVED_S = 2.0  # a request of somebody else, while an attack goes on and the machine is busy


class Victim:
    """A cluster of one node, and somebody who uses it meanwhile."""

    def __init__(self, cluster: LocalCluster) -> None:
        self.cluster = cluster
        [self.endpoint] = cluster.endpoints().values()
        with ByHand(self.endpoint) as hand:
            self.me = str(hand.ack("REQUEST_ID")["client_id"])
            hand.ack("SUB", "t", self.me)
            hand.ack("PUT", "t", self.me, counter=1, publication="small")
        self._memory_mb = memory_mb(cluster, "n1")
        self._counter = 1

    def grown_mb(self) -> int:
        return memory_mb(self.cluster, "n1") - self._memory_mb

    def serves_others(self) -> None:
        began = time.monotonic()
        with ByHand(self.endpoint) as hand:
            self._counter += 1
            hand.ack("PUT", "t", self.me, counter=self._counter, publication="more")
            assert hand.ack("GET", "t", self.me, last_id=0, text=True)["publication"] == "small"
        assert time.monotonic() - began < SERVED_S


@pytest.fixture
def victim(local_cluster: ClusterFactory) -> Victim:
    return Victim(local_cluster(1))


def test_an_endless_message_is_cut_off(victim: Victim) -> None:
    for part in (long_frame(64 * 1024, more=True) + bytes(64 * 1024), b"\x01\x00", b"\x01\x01x"):
        with Raw(victim.endpoint) as raw:
            sent = raw.send_until_closed(part * (1 + MIB // len(part)), 200 * MIB)
        print(sent, "bytes in parts of", len(part))
    assert victim.grown_mb() < 32
    victim.serves_others()


def test_unfinished_messages_hold_a_bounded_share(victim: Victim) -> None:
    unfinished = long_frame(4 * MIB) + bytes(4 * MIB - 1)
    with ExitStack() as stack:
        raws = [stack.enter_context(Raw(victim.endpoint)) for _ in range(400)]
        sent = sum(raw.offer(unfinished) for raw in raws)
        victim.serves_others()
        print(sent // MIB, "MiB sent, grown by", victim.grown_mb())
    assert victim.grown_mb() < SHARED_MB + 400 * READ_BYTES // MIB + SLACK_MB
    victim.serves_others()


def test_replies_that_nobody_reads_hold_a_bounded_share(victim: Victim) -> None:
    with ByHand(victim.endpoint) as hand:
        reader = str(hand.ack("REQUEST_ID")["client_id"])
        hand.ack("SUB", "big", reader)
    with Client([victim.endpoint.removeprefix("tcp://")]) as client:
        client.put("big", bytes(MIB))
    get = request("GET", "big", reader, last_id=0)
    with ExitStack() as stack:
        raws = [stack.enter_context(Raw(victim.endpoint)) for _ in range(8)]
        for raw in raws:
            raw.offer(get * 250)
        for raw in raws:
            assert select.select([raw.socket], [], [], SERVED_S)[0], "it is answered"
        victim.serves_others()
        print("grown by", victim.grown_mb())
    assert victim.grown_mb() < 8 * UNREAD_BYTES_MAX // MIB + SLACK_MB
    victim.serves_others()


def test_large_headers_hold_a_bounded_share(victim: Victim) -> None:
    header = b'{"type":"STATUS","request_id":"r","body":{"x":[' + b"1," * 900_000 + b"1]}}"
    message = b"\x01\x00" + long_frame(len(header)) + header
    connections, messages = 9, 79
    with ExitStack() as stack:
        raws = [stack.enter_context(Raw(victim.endpoint)) for _ in range(connections)]

        def send(raw: Raw) -> None:
            for _ in range(messages):
                raw.socket.sendall(message)

        senders = [threading.Thread(target=send, args=(raw,)) for raw in raws]
        for sender in senders:
            sender.start()
        while any(sender.is_alive() for sender in senders):
            victim.serves_others()
        for raw in raws:
            assert raw.read_until(b"too_large", messages), "each is answered"
        print("grown by", victim.grown_mb())
    assert victim.grown_mb() < SHARED_MB + SLACK_MB
