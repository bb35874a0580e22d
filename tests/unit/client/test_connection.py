"""The sockets: framing, and how silence, refusal and loss look."""

from __future__ import annotations

import asyncio
import time
from functools import partial

import pytest
import zmq

from flotilla_client import AsyncClient, Client, Unavailable
from flotilla_client.connection import EndpointSockets
from flotilla_client.protocol import STATUS, Request, encode_request
from tests.unit.fake_node import FakeNode

STATUS_FRAMES = encode_request(Request(STATUS, "r.1"))


@pytest.fixture
def node() -> FakeNode:
    with FakeNode() as node:
        yield node


def test_a_request_is_answered(node: FakeNode) -> None:
    connection = EndpointSockets([node.endpoint])
    assert connection.send(0, STATUS_FRAMES, 1_000)
    reply = connection.receive(0, 1_000)
    assert reply is not None
    assert (reply.request_id, reply.node) == ("r.1", "a")
    connection.close_all()


def test_a_tcp_address_works_as_well_as_host_and_port(node: FakeNode) -> None:
    connection = EndpointSockets([f"tcp://{node.endpoint}"])
    assert connection.send(0, STATUS_FRAMES, 1_000)
    connection.close_all()


def test_a_refused_connection_is_noticed_at_once_and_nothing_was_sent() -> None:
    connection = EndpointSockets(["127.0.0.1:1"])
    before_s = time.monotonic()
    assert not connection.send(0, STATUS_FRAMES, 60_000)
    assert time.monotonic() - before_s < 30  # not the 60 that it might have waited
    connection.close_all()


def test_silence_is_none(node: FakeNode) -> None:
    node.script(STATUS, "deaf")
    connection = EndpointSockets([node.endpoint])
    connection.send(0, STATUS_FRAMES, 1_000)
    assert connection.receive(0, 50) is None
    connection.close_all()


def test_bytes_that_are_no_reply_count_as_silence(node: FakeNode) -> None:
    node.script(STATUS, "garbage")
    connection = EndpointSockets([node.endpoint])
    connection.send(0, STATUS_FRAMES, 1_000)
    assert connection.receive(0, 5_000) is None
    connection.close_all()


def test_a_node_that_dies_is_noticed_before_the_timeout(node: FakeNode) -> None:
    node.script(STATUS, "deaf")
    connection = EndpointSockets([node.endpoint])
    connection.send(0, STATUS_FRAMES, 1_000)
    node.await_requests(STATUS, 1)
    node.stop()
    with pytest.raises(ConnectionResetError, match=node.endpoint):
        connection.receive(0, 60_000)
    connection.close_all()


def test_a_lost_link_is_opened_anew_for_the_next_request() -> None:
    with FakeNode() as first:
        connection = EndpointSockets([first.endpoint])
        connection.send(0, STATUS_FRAMES, 1_000)
        connection.receive(0, 1_000)
    with pytest.raises(ConnectionResetError):
        connection.receive(0, 5_000)
    router = zmq.Context.instance().socket(zmq.ROUTER)
    router.bind(f"tcp://{first.endpoint}")
    assert connection.send(0, STATUS_FRAMES, 1_000)
    _, delimiter, header = router.recv_multipart()
    assert (delimiter, header) == (b"", STATUS_FRAMES[0])
    connection.close_all()
    router.close(linger=0)


def test_after_closing_a_late_reply_is_never_seen(node: FakeNode) -> None:
    node.script(STATUS, "late")
    connection = EndpointSockets([node.endpoint])
    connection.send(0, STATUS_FRAMES, 1_000)
    node.await_requests(STATUS, 1)
    connection.close(0)
    assert connection.send(0, encode_request(Request(STATUS, "r.2")), 1_000)
    reply = connection.receive(0, 1_000)
    assert reply is not None
    assert reply.request_id == "r.2"
    assert connection.receive(0, 50) is None
    connection.close_all()


def test_without_a_socket_to_be_had_both_clients_try_until_their_deadline_and_say_why(
    node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = zmq.Context()
    context.max_sockets = 2  # a link takes three
    monkeypatch.setattr(zmq.Context, "instance", lambda: context)

    async def publish() -> None:
        async with AsyncClient(node.endpoint, timeout=0.3) as client:
            await client.publish("t", "a")

    async def status() -> None:
        async with AsyncClient(node.endpoint, timeout=0.3) as client:
            await client.status()

    for call in (publish, status):
        with pytest.raises(Unavailable, match="ZeroMQ too many sockets"):
            asyncio.run(call())
    with Client(node.endpoint, timeout=0.3) as client:
        for ask in (client.status, partial(client.publish, "t", "a")):
            with pytest.raises(Unavailable, match="ZeroMQ too many sockets"):
                ask()
    context.term()
