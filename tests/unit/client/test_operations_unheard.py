"""What nobody subscribes to: acknowledged, not stored, and the publisher is told."""

from __future__ import annotations

import asyncio
import warnings
from pathlib import Path
from typing import Any

import pytest

from flotilla_client import AsyncClient, Client, PutResult, Unavailable, UnheardWarning
from flotilla_client.operations import _was_stored
from flotilla_client.protocol import PUT
from tests.unit.fake_node import IMPATIENT_S, FakeNode, client_of


def _warned(caught: list[warnings.WarningMessage]) -> list[str]:
    assert {row.category for row in caught} <= {UnheardWarning}
    assert {row.filename for row in caught} <= {__file__}, "it does not point at the caller"
    return [str(row.message).partition("'")[2].partition("'")[0] for row in caught]


def test_a_result_says_whether_it_is_stored(node: FakeNode) -> None:
    with client_of(node) as reader, client_of(node) as client:
        unheard = client.publish("t", "a", allow_unheard=True)
        assert unheard == PutResult(0, 1, False, False)
        reader.subscribe("t")
        assert client.publish("t", "b") == PutResult(1, 1, False, True)


def test_a_duplicate_says_whether_the_first_was_stored(node: FakeNode) -> None:
    with client_of(node) as reader, client_of(node) as client:
        node.script(PUT, "silent")
        unheard = client.publish("t", "a", allow_unheard=True)
        assert unheard == PutResult(0, 1, True, False)
        reader.subscribe("t")
        node.script(PUT, "silent")
        assert client.publish("t", "b") == PutResult(1, 1, True, True)


def test_a_duplicate_too_old_to_remember_says_neither(node: FakeNode) -> None:
    with client_of(node) as client:
        client.open()
        node.cluster.clients[client.client_id].counters["t"] = 9
        assert client.publish("t", "a") == PutResult(0, 1, True, None)


@pytest.mark.parametrize(
    ("body", "stored"),
    [
        ({"id": 7, "count": 1, "duplicate": False}, True),
        ({"id": 7, "count": 1, "duplicate": True}, True),
        ({"id": 0, "count": 1, "duplicate": False}, False),
        ({"id": 0, "count": 1, "duplicate": True}, None),
    ],
)
def test_a_node_of_version_0_1_does_not_say_and_is_understood(
    body: dict[str, Any], stored: bool | None
) -> None:
    assert _was_stored(body) is stored


def test_what_was_kept_in_the_outbox_warns_when_it_is_sent(tmp_path: Path, node: FakeNode) -> None:
    client = Client("127.0.0.1:1", state_dir=tmp_path, timeout=IMPATIENT_S)
    with client, pytest.raises(Unavailable):
        client.publish("t", "a")
    with client_of(node, tmp_path) as client, pytest.warns(UnheardWarning):
        client.flush()


@pytest.mark.parametrize("moment", ["send", "flush", "close", "close of the client"])
def test_a_producer_warns_in_the_applications_thread(moment: str, node: FakeNode) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with client_of(node) as client:
            out = client.producer("t", linger_ms=0)
            result = out.send("a").result(5)
            assert not caught
            if moment == "send":
                out.send("b")
            elif moment == "flush":
                out.flush()
            elif moment == "close":
                out.close()
            assert len(caught) == (moment != "close of the client")
    assert result == PutResult(0, 1, False, False)
    assert _warned(caught) == ["t"]


def test_a_warning_that_is_an_error_leaves_all_in_order(node: FakeNode) -> None:
    with client_of(node) as client:
        with pytest.raises(UnheardWarning), client.producer("u") as out:
            out.send("c")
        with client.producer("u") as out:
            assert out.send("d").result(5).stored is False
        assert client.publish("t", "b", allow_unheard=True).stored is False
    assert client._session.state.client_id


def test_an_async_producer_warns_too(node: FakeNode) -> None:
    async def scenario() -> None:
        async with AsyncClient(node.endpoint) as client, await client.producer("u") as out:
            assert (await (await out.send("a"))).stored is False

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        asyncio.run(scenario())
    assert _warned(caught) == ["u"]
