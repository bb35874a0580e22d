"""What clients can make a node hold is bounded, and others are served meanwhile."""

from __future__ import annotations

import json
import resource
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
import zmq

from cluster.local.local import LocalCluster
from cluster.serve.client_port import READ_BYTES, UNREAD_BYTES_MAX
from flotilla_client import Client
from tests.cluster.by_hand import ByHand
from tests.cluster.raw_client import Raw, long_frame, memory_mb, request
from tests.conftest import ClusterFactory

MIB = 1024 * 1024
PATIENT_S = 60.0  # for what waits in line on a busy machine
SHARED_MB = 128  # limits.unfinished_bytes_max
SLACK_MB = 128  # what the allocator keeps (210 seen in all beside other tests), of 1,480 sent
ANSWERED_BYTES = 10_000  # a reply is on its way, and not the handshake alone
SERVED_S = 10.0  # a request of somebody else, while an attack goes on and the machine is busy


class BusyNode:
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
def victim(local_cluster: ClusterFactory) -> BusyNode:
    return BusyNode(local_cluster(1))


def test_an_endless_message_is_cut_off(victim: BusyNode) -> None:
    for part in (long_frame(64 * 1024, more=True) + bytes(64 * 1024), b"\x01\x00", b"\x01\x01x"):
        with Raw(victim.endpoint) as raw:
            sent = raw.send_until_closed(part * (1 + MIB // len(part)), 200 * MIB)
        print(sent, "bytes in parts of", len(part))
    assert victim.grown_mb() < 32
    victim.serves_others()


@pytest.mark.slow
def test_unfinished_messages_hold_a_bounded_share(victim: BusyNode) -> None:
    unfinished = long_frame(4 * MIB) + bytes(4 * MIB - 1)
    with ExitStack() as stack:
        raws = [stack.enter_context(Raw(victim.endpoint)) for _ in range(400)]
        sent = sum(raw.offer(unfinished) for raw in raws)
        victim.serves_others()
        # Behind 400 in line, each of which may take half a second of a share (there are 32).
        endpoint = victim.endpoint.removeprefix("tcp://")
        with Client([endpoint], timeout=PATIENT_S) as client:
            assert client.publish("t", bytes(MIB)).stored, "large ones have their turn"
        print(sent // MIB, "MiB sent, grown by", victim.grown_mb())
    assert victim.grown_mb() < SHARED_MB + 400 * READ_BYTES // MIB + SLACK_MB
    victim.serves_others()


def test_replies_that_nobody_reads_hold_a_bounded_share(victim: BusyNode) -> None:
    with ByHand(victim.endpoint) as hand:
        reader = str(hand.ack("REQUEST_ID")["client_id"])
        hand.ack("SUB", "big", reader)
    with Client([victim.endpoint.removeprefix("tcp://")]) as client:
        client.publish("big", bytes(MIB))
    get = request("GET", "big", reader, last_id=0)
    with ExitStack() as stack:
        raws = [stack.enter_context(Raw(victim.endpoint)) for _ in range(8)]
        for raw in raws:
            raw.offer(get * 250)
        for raw in raws:
            raw.wait_for(ANSWERED_BYTES)
        for _ in range(20):
            victim.serves_others()
        print("grown by", victim.grown_mb())
    assert victim.grown_mb() < 8 * UNREAD_BYTES_MAX // MIB + SLACK_MB
    victim.serves_others()


@pytest.mark.slow
def test_large_headers_hold_a_bounded_share(victim: BusyNode) -> None:
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


# --- connections ----------------------------------------------------------------------------------


@contextmanager
def many_descriptors() -> Iterator[int]:
    """Let this process open as many as it may; yield how many that is."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        yield hard
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def idle(stack: ExitStack, endpoint: str, count: int, handshake: bool) -> list[Raw]:
    """Open connections that say nothing more; the node may close them."""
    raws = []
    for _ in range(count):
        try:
            raws.append(stack.enter_context(Raw(endpoint, handshake=handshake)))
        except ConnectionError:  # closed already
            continue
    return raws


@pytest.mark.parametrize("handshake", [False, True], ids=["strangers", "clients"])
def test_idle_connections_over_the_limit_are_refused_and_who_is_there_goes_on(
    local_cluster: ClusterFactory, handshake: bool
) -> None:
    victim = BusyNode(local_cluster(1, {"limits.connections_max": 200}))
    with many_descriptors(), ByHand(victim.endpoint) as hand:
        hand.ack("STATUS")
        with ExitStack() as stack:
            idle(stack, victim.endpoint, 3_000, handshake)
            for _ in range(20):
                hand.ack("STATUS")
            if not handshake:
                victim.serves_others()  # strangers give way to who says who it is
        assert victim.grown_mb() < SLACK_MB
        victim.serves_others()
    assert "limits.connections_max" in victim.cluster.log_file("n1").read_text()


@pytest.mark.slow
@pytest.mark.timeout(400)  # 20,000 connections, and a node that takes some hundred a second
def test_descriptors_are_left_for_journal_and_store_however_many_connect(
    local_cluster: ClusterFactory,
) -> None:
    settings = {"limits.connections_max": 1_000_000, "journal.segment_bytes": 64 * 1024}
    victim = BusyNode(local_cluster(1, settings | {"journal.keep_bytes": 64 * 1024}))
    with many_descriptors() as descriptors, ByHand(victim.endpoint) as hand, ExitStack() as stack:
        hand.ack("STATUS")
        idle(stack, victim.endpoint, min(20_000, descriptors - 500), handshake=True)
        for counter in range(2, 42):  # several segments of the journal
            hand.ack("PUT", "t", victim.me, counter=counter, publication="x" * 10_000)
        fds = len(list(Path(f"/proc/{victim.cluster.pids()['n1']}/fd").iterdir()))
        print("descriptors", fds, "grown by", victim.grown_mb())
        assert fds < descriptors // 2 + 100
    assert victim.cluster.pids(), victim.cluster.tails()


# --- identities -----------------------------------------------------------------------------------


def test_a_second_connection_with_a_living_identity_gets_nothing_of_the_first(
    victim: BusyNode,
) -> None:
    with ByHand(victim.endpoint) as hand:
        hand.ack("SUB", "empty", victim.me)
    header = {"type": "GET", "topic": "empty", "client_id": victim.me, "request_id": "parked"}
    get = json.dumps(header | {"body": {"wait_ms": 2_000}}).encode()
    status = b'{"type":"STATUS","request_id":"status"}'
    with (
        zmq.Context() as context,
        context.socket(zmq.DEALER) as first,
        context.socket(zmq.DEALER) as second,
    ):
        for dealer in (first, second):
            dealer.setsockopt(zmq.LINGER, 0)
            dealer.setsockopt(zmq.IDENTITY, b"me")
        first.connect(victim.endpoint)
        first.send_multipart([b"", get])
        first.send_multipart([b"", status])
        assert b'"status"' in first.recv_multipart()[1], "the GET before it is parked"
        second.connect(victim.endpoint)
        second.send_multipart([b"", status])
        assert first.poll(10_000)
        assert b'"parked"' in first.recv_multipart()[1]
        assert not second.poll(0)
        first.close()
        deadline = time.monotonic() + 10
        while not second.poll(200):  # what it sent before it was refused is lost
            assert time.monotonic() < deadline, "the identity is free"
            second.send_multipart([b"", status])
        assert b'"status"' in second.recv_multipart()[1]
