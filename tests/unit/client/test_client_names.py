"""Clients that the cluster knows by a name: no disk, and what follows from that."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from flotilla_client import (
    AsyncClient,
    BadRequest,
    Client,
    Closed,
    Fenced,
    RecordError,
    TooLarge,
    Unavailable,
)
from flotilla_client.observer import Handling, Silent
from flotilla_client.protocol import GET, REQUEST_ID
from tests.unit.fake_node import FakeNode, client_of


def named(node: FakeNode, name: str = "billing", **settings: Any) -> Client:
    return Client(node.endpoint, name=name, timeout=3, **settings)


def test_the_name_is_the_id_and_a_later_process_goes_on_with_it(node: FakeNode) -> None:
    with named(node) as client:
        client.subscribe("t")
        assert client.client_id == "billing"
        client.publish_many("t", ["a", "b"])
        first = client.get("t", timeout=2)
        assert first is not None
    with named(node) as client:
        assert client.publish("t", "c").id == 3  # counters go on
        assert [message.publication for message in client.messages("t", idle=0)] == [b"b", b"c"]
    assert node.cluster.clients.keys() == {"billing"}


def test_the_older_of_two_processes_is_fenced(node: FakeNode) -> None:
    with named(node) as older, named(node) as newer:
        older.subscribe("t")
        newer.open()
        with pytest.raises(Fenced):
            older.publish("t", "too late")
        assert newer.publish("t", "goes on").id == 1


def test_what_may_have_been_handed_to_a_process_before_is_marked(node: FakeNode) -> None:
    with named(node) as client:
        client.subscribe("t")
        client.publish("t", "maybe")
        client.get("t", timeout=2, ack="manual")  # and it dies
        node.cluster.ends["t"] = 1
    with named(node) as client:
        client.open()
        client.publish("t", "new")
        marks = [message.redelivered for message in client.messages("t", idle=0)]
    assert marks == [True, False]


def test_a_cluster_that_was_recovered_keeps_nobody_of_a_name_out(node: FakeNode) -> None:
    with named(node) as client:
        client.subscribe("t")
    node.cluster.recovery = "behind it"
    with named(node) as client:
        assert client.publish("t", "a").id == 1


def test_a_refusal_as_another_has_come_first_is_asked_again(node: FakeNode) -> None:
    node.script(REQUEST_ID, ("nak", "bad_request", {}))
    with named(node) as client:
        client.open()
        assert client.client_id == "billing"


def test_the_same_with_asyncio(node: FakeNode) -> None:
    async def run() -> None:
        for _ in range(2):
            async with AsyncClient(node.endpoint, name="billing", timeout=3) as client:
                await client.subscribe("t")
                await client.publish("t", "a")

    asyncio.run(run())
    assert node.cluster.clients.keys() == {"billing"}


@pytest.mark.parametrize(
    ("name", "error"),
    [("", BadRequest), ("a\n", BadRequest), ("x" * 300, TooLarge), (7, TypeError)],
)
def test_a_wrong_name_is_refused_at_once(name: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        Client("127.0.0.1:1", name=name)


def test_a_state_directory_and_a_name_exclude_each_other(node: FakeNode, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="`state_dir` or `name`"):
        client_of(node, tmp_path, name="billing")


class Unwritable(Silent):
    """An observer whose disk is full by the time that something is acknowledged."""

    def on_handling(self, handling: Handling) -> None:
        if handling.f == "ack":
            raise RecordError("the disk is full")


def test_a_client_whose_record_is_full_is_closed_all_the_same(node: FakeNode) -> None:
    client = named(node, observer=Unwritable())
    client.subscribe("t")
    client.publish("t", "a")
    assert client.get("t", timeout=2) is not None
    with pytest.raises(RecordError):
        client.close()
    with pytest.raises(Closed):
        client.publish("t", "b")
    assert not client._parts.here().connection._links

    async def work() -> None:
        client = AsyncClient(node.endpoint, name="other", timeout=3, observer=Unwritable())
        await client.subscribe("t")
        await client.publish("t", "a")
        assert await client.get("t", timeout=2) is not None
        with pytest.raises(RecordError):
            await client.close()
        assert not client._parts.here().links

    asyncio.run(work())


def test_a_close_is_held_up_by_nobody_who_waits_for_publications(
    node: FakeNode, caplog: pytest.LogCaptureFixture
) -> None:
    def read() -> None:
        with pytest.raises(Unavailable, match="closed"):
            client.get("t", idle=60)

    client = Client(node.endpoint, name="billing", timeout=60)
    client.subscribe("t")
    reading = threading.Thread(target=read)
    reading.start()
    node.await_requests(GET, 1)
    client.close()
    reading.join(10)
    assert not caplog.text, "it has told all"
