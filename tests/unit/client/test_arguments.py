"""Wrong arguments, closed clients: typed errors, before anything is stored or sent."""

from __future__ import annotations

import asyncio
import inspect
import os
import random
import subprocess
import sys
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from flotilla_client import AsyncClient, BadRequest, Client, Closed, FlotillaError, TooLarge
from flotilla_client.observer import Silent
from tests.unit.fake_node import FakeNode, client_of

NAN, INFINITE = float("nan"), float("inf")

WRONG_OPTIONS: list[tuple[dict[str, Any], type[Exception], str]] = [
    *[({"timeout": value}, ValueError, "timeout") for value in (0, -1, NAN, INFINITE)],
    *[({"timeout": value}, TypeError, "timeout") for value in (True, "5", Decimal())],
    *[({"outbox_bytes_max": value}, ValueError, "outbox_bytes_max") for value in (0, -1)],
    *[({"outbox_bytes_max": value}, TypeError, "outbox_bytes_max") for value in (1.5, True, "1")],
    *[({"state_dir": value}, TypeError, "state_dir") for value in (5, b"state", True, ["a"])],
    *[({"state_dir": value}, ValueError, "state_dir") for value in ("", "a\0b")],
    ({"record": 5}, TypeError, "record"),
    ({"record": ""}, ValueError, "record"),
    ({"record": "a", "observer": Silent()}, ValueError, "not both"),
    ({"rng": 5}, TypeError, "rng"),
    ({"observer": 5}, TypeError, "observer"),
    *[({name: "\ud800"}, ValueError, name) for name in ("state_dir", "record", "key")],
]

WRONG_ENDPOINTS: list[tuple[Any, type[Exception]]] = [
    *[(value, TypeError) for value in (None, 7001, b"127.0.0.1:7001", [7001], {"a:1"}, {"a:1": 1})],
    *[(value, ValueError) for value in ("", ",", [], "a", "a:0", "a:65536", "a:٧٠", [""])],
    ("ipc:///" + "a" * 107, ValueError),
]

Call = Callable[[Client], object]
WRONG_CALLS: dict[str, tuple[Call, type[Exception]]] = {
    "publish_many of a text": (lambda c: c.publish_many("t", "abc"), TypeError),
    "publish_many of bytes": (lambda c: c.publish_many("t", b"abc"), TypeError),  # type: ignore[arg-type]
    "publish_many of a set": (lambda c: c.publish_many("t", {"a"}), TypeError),  # type: ignore[arg-type]
    "publish_many of a dict": (lambda c: c.publish_many("t", {"a": 1}), TypeError),  # type: ignore[arg-type]
    "publish_many of None": (lambda c: c.publish_many("t", None), TypeError),  # type: ignore[arg-type]
    "publish_many of numbers": (lambda c: c.publish_many("t", [1]), TypeError),  # type: ignore[list-item]
    "publish None": (lambda c: c.publish("t", None), TypeError),  # type: ignore[arg-type]
    "publish a list": (lambda c: c.publish("t", ["a"]), TypeError),  # type: ignore[arg-type]
    "publish a lone surrogate": (lambda c: c.publish("t", "\ud800"), ValueError),
    "publish unheard, perhaps": (lambda c: c.publish("t", "a", allow_unheard="no"), TypeError),  # type: ignore[arg-type]
    "publish to no topic": (lambda c: c.publish("", "a"), BadRequest),
    "publish to a long topic": (lambda c: c.publish("t" * 256, "a"), TooLarge),
    "publish to a line": (lambda c: c.publish("a\nb", "a"), BadRequest),
    "publish to None": (lambda c: c.publish(None, "a"), TypeError),  # type: ignore[arg-type]
    "publish to bytes": (lambda c: c.publish(b"t", "a"), TypeError),  # type: ignore[arg-type]
    "publish to a list": (lambda c: c.publish(["t"], "a"), TypeError),  # type: ignore[arg-type]
    "subscribe to 5": (lambda c: c.subscribe(5), TypeError),  # type: ignore[arg-type]
    "end a long group": (lambda c: c.end_group("t", "g" * 129), TooLarge),
    "unsubscribe a long id": (lambda c: c.unsubscribe("t", client_id="c" * 129), TooLarge),
    "unsubscribe from None": (lambda c: c.unsubscribe(None), TypeError),  # type: ignore[arg-type]
    "unsubscribe nobody": (lambda c: c.unsubscribe("t", client_id=""), BadRequest),
    "unsubscribe the fifth": (lambda c: c.unsubscribe("t", client_id=5), TypeError),  # type: ignore[arg-type]
    "next_counter of None": (lambda c: c.next_counter(None), TypeError),  # type: ignore[arg-type]
    "get from 5": (lambda c: c.get(5), TypeError),  # type: ignore[arg-type]
    "get from no topic": (lambda c: c.get(""), BadRequest),
    "get with a negative wait": (lambda c: c.get("t", idle=-1), ValueError),
    "get with an endless wait": (lambda c: c.get("t", idle=INFINITE), ValueError),
    "get with no number as wait": (lambda c: c.get("t", idle=NAN), ValueError),
    "get with a bool as wait": (lambda c: c.get("t", idle=True), TypeError),
    "get of none": (lambda c: c.get("t", max_count=0), ValueError),
    "get of a half": (lambda c: c.get("t", max_count=1.5), TypeError),  # type: ignore[arg-type]
    "status of the ninth": (lambda c: c.status(9), ValueError),
    "status of the one before": (lambda c: c.status(-1), ValueError),
    "status of True": (lambda c: c.status(True), TypeError),
    "status of a name": (lambda c: c.status("a"), TypeError),  # type: ignore[arg-type]
    "producer of None": (lambda c: c.producer(None), TypeError),  # type: ignore[arg-type]
    "producer lingers before": (lambda c: c.producer("t", linger_ms=-1), ValueError),
    "producer lingers for ever": (lambda c: c.producer("t", linger_ms=INFINITE), ValueError),
    "producer of empty batches": (lambda c: c.producer("t", batch_bytes=0), ValueError),
    "producer of huge batches": (lambda c: c.producer("t", batch_bytes=2**30), ValueError),
    "producer of none in flight": (lambda c: c.producer("t", in_flight_max=0), ValueError),
    "producer of too many": (lambda c: c.producer("t", in_flight_max=1_000), ValueError),
    "producer of a half": (lambda c: c.producer("t", in_flight_max=1.5), TypeError),  # type: ignore[arg-type]
    "publish_soon None": (lambda c: c.publish_soon("t", None), TypeError),  # type: ignore[arg-type]
    "publish_soon to no topic": (lambda c: c.publish_soon("", "a"), BadRequest),
    "publish with a key of 5": (lambda c: c.publish("t", "a", key=5), TypeError),  # type: ignore[arg-type]
    "publish with listed headers": (lambda c: c.publish("t", "a", headers=[1]), TypeError),  # type: ignore[arg-type]
    "publish what is expired": (lambda c: c.publish("t", "a", expires=-1), BadRequest),
    "publish for the day before": (lambda c: c.publish("t", "a", deliver_after=-1), BadRequest),
    "publish within no time": (lambda c: c.publish("t", "a", timeout=0), ValueError),
    "publish within a name": (lambda c: c.publish("t", "a", timeout="1"), TypeError),  # type: ignore[arg-type]
    "enqueue a text": (lambda c: c.enqueue("t", "abc"), TypeError),
    "enqueue to None": (lambda c: c.enqueue(None, ["a"]), TypeError),  # type: ignore[arg-type]
    "acknowledge of None": (lambda c: _awaitable(c.acknowledge(None, 1)), TypeError),  # type: ignore[arg-type, func-returns-value]
    "acknowledge a half": (lambda c: _awaitable(c.acknowledge("t", 1.5)), TypeError),  # type: ignore[arg-type, func-returns-value]
    "acknowledge below 0": (lambda c: _awaitable(c.acknowledge("t", -1)), ValueError),  # type: ignore[func-returns-value]
    "get acknowledged somehow": (lambda c: c.get("t", ack="none"), ValueError),  # type: ignore[arg-type]
    "get with two waits": (lambda c: c.get("t", idle=1, timeout=1), TypeError),
    "messages acknowledged somehow": (lambda c: _first(c.messages("t", ack="none")), ValueError),  # type: ignore[arg-type]
    "messages of 5": (lambda c: _first(c.messages(5)), TypeError),  # type: ignore[arg-type]
    "messages with a negative wait": (lambda c: _first(c.messages("t", idle=-1)), ValueError),
    "subscribe from a float": (lambda c: c.subscribe("t", start=1.5), TypeError),  # type: ignore[arg-type]
    "subscribe from the middle": (lambda c: c.subscribe("t", start="middle"), ValueError),
    "seek before the first": (lambda c: c.seek("t", -1), ValueError),
    "seek in None": (lambda c: c.seek(None, "earliest"), TypeError),  # type: ignore[arg-type]
    "read from a text": (lambda c: c.read("t", "1"), TypeError),  # type: ignore[arg-type]
    "read none": (lambda c: c.read("t", 1, 0), ValueError),
    "topics of one": (lambda c: c.topics("orders"), TypeError),  # type: ignore[arg-type]
    "subscribers of 5": (lambda c: c.subscribers(5), TypeError),  # type: ignore[arg-type]
    "upgrade to 0": (lambda c: c.upgrade(0), ValueError),
    "upgrade to a text": (lambda c: c.upgrade("5"), TypeError),  # type: ignore[arg-type]
    "make a group of None": (lambda c: c.make_group("t", None), TypeError),  # type: ignore[arg-type]
    "make a group of a pattern": (lambda c: c.make_group("a.>", "g"), BadRequest),
    "make a group of short leases": (lambda c: c.make_group("t", "g", lease=0), ValueError),
    "make a group of less than no attempts": (
        lambda c: c.make_group("t", "g", max_attempts=-1),
        ValueError,
    ),
    "dead letters of any number of attempts": (
        lambda c: c.make_group("t", "g", max_attempts=0, dead_letter="d"),
        ValueError,
    ),
    "make a group by a key's name": (
        lambda c: c.make_group("t", "g", ordered_by_key="k"),
        TypeError,
    ),  # type: ignore[arg-type]
    "work of no group": (lambda c: _first(c.work("t", "")), BadRequest),
    "work of a pattern": (lambda c: _first(c.work("a.>", "g")), BadRequest),
    "work acknowledged at once": (
        lambda c: _first(c.work("t", "g", ack="at-most-once")),
        ValueError,
    ),  # type: ignore[arg-type]
    "work of none at once": (lambda c: _first(c.work("t", "g", prefetch=0)), ValueError),
    "work with a negative wait": (lambda c: _first(c.work("t", "g", idle=-1)), ValueError),
}


def _first(items: Any) -> Any:
    """Return the first item, or what of asyncio's is awaited for it."""
    return anext(items) if hasattr(items, "__anext__") else next(items)


async def _nothing() -> None:
    pass


def _awaitable(_: None) -> Any:
    """Return what can be awaited for a call that both clients carry out at once."""
    return _nothing()


CALLS: dict[str, Call] = {
    "open": lambda c: c.open(),
    "subscribe": lambda c: c.subscribe("t"),
    "unsubscribe": lambda c: c.unsubscribe("t"),
    "unsubscribe another": lambda c: c.unsubscribe("t", client_id="other"),
    "subscribers": lambda c: c.subscribers("t"),
    "adopt": lambda c: c.adopt(),
    "upgrade": lambda c: c.upgrade(),
    "publish": lambda c: c.publish("t", "a"),
    "publish_many": lambda c: c.publish_many("t", ["a"]),
    "flush": lambda c: c.flush(),
    "next_counter": lambda c: c.next_counter("t"),
    "get": lambda c: c.get("t"),
    "messages": lambda c: next(iter(c.messages("t", idle=0))),
    "acknowledge": lambda c: c.acknowledge("t", 1),
    "topics": lambda c: c.topics(),
    "status": lambda c: c.status(),
    "producer": lambda c: c.producer("t"),
    "enqueue": lambda c: c.enqueue("t", ["a"]),
    "publish_soon": lambda c: c.publish_soon("t", "a"),
    "seek": lambda c: c.seek("t", "earliest"),
    "read": lambda c: c.read("t", 1),
    "read_runs": lambda c: c.read_runs("t", 1),
    "patterns": lambda c: c.patterns(),
    "all topics": lambda c: c.topics(everything=True),
    "make_group": lambda c: c.make_group("t", "g"),
    "end_group": lambda c: c.end_group("t", "g"),
    "work": lambda c: _first(c.work("t", "g", idle=0)),
}


@pytest.mark.parametrize(("options", "error", "name"), WRONG_OPTIONS)
@pytest.mark.parametrize("kind", [Client, AsyncClient])
def test_a_wrong_option_is_named_and_makes_no_directory(
    kind: type,
    options: dict[str, Any],
    error: type[Exception],
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(error, match=name):
        kind("127.0.0.1:1", **options)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("endpoints", "error"), WRONG_ENDPOINTS, ids=repr)
def test_wrong_endpoints_are_refused(endpoints: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        Client(endpoints)


def test_all_behind_the_endpoints_and_all_of_a_producers_options_are_said_by_name() -> None:
    for function in (Client, AsyncClient, Client.producer, AsyncClient.producer):
        _, *rest = [p for p in inspect.signature(function).parameters.values() if p.name != "self"]
        assert {parameter.kind for parameter in rest} == {inspect.Parameter.KEYWORD_ONLY}


@pytest.mark.parametrize("name", WRONG_CALLS)
def test_a_wrong_argument_is_an_error_of_its_own_and_nothing_is_sent(
    name: str, node: FakeNode
) -> None:
    call, error = WRONG_CALLS[name]
    with client_of(node) as client:
        with pytest.raises(error):
            call(client)
        assert client._session.state.outbox() == []
        assert not client._session.producers
    kinds = {request.type for request in node.requests}
    assert kinds <= {"REQUEST_ID"}, kinds


@pytest.mark.parametrize("name", WRONG_CALLS)
def test_an_async_client_refuses_the_same(name: str, node: FakeNode) -> None:
    call, error = WRONG_CALLS[name]

    async def scenario() -> None:
        async with AsyncClient(node.endpoint) as client:
            with pytest.raises(error):
                await call(client)  # type: ignore[arg-type, misc]

    asyncio.run(scenario())


@pytest.mark.parametrize("name", CALLS)
def test_a_closed_client_says_so_at_once(name: str, tmp_path: Path) -> None:
    client = Client("127.0.0.1:1", state_dir=tmp_path)
    client.close()
    client.close()
    with pytest.raises(Closed) as caught:
        CALLS[name](client)
    assert (caught.value.code, caught.value.definite) == ("closed", True)
    assert client.client_id == ""
    assert client.endpoints == ("127.0.0.1:1",)


@pytest.mark.parametrize("name", sorted(CALLS.keys() - {"messages"}))
def test_a_closed_async_client_says_so_at_once(name: str) -> None:
    async def scenario() -> None:
        client = AsyncClient("127.0.0.1:1")
        await client.close()
        await client.close()
        with pytest.raises(Closed):
            await CALLS[name](client)  # type: ignore[arg-type, misc]

    asyncio.run(scenario())


def test_a_closed_producer_says_so(node: FakeNode) -> None:
    with client_of(node) as client:
        out = client.producer("t")
        out.close()
        with pytest.raises(Closed):
            out.send("a")
        again = client.producer("t")
    with pytest.raises(Closed):
        again.send("a")


def test_the_same_is_refused_without_asserts(tmp_path: Path) -> None:
    code = (
        "from flotilla_client import Client, observer as silent\n"
        "from tests.unit.client.test_arguments import WRONG_CALLS\n"
        "for options in ({'timeout': 0}, {'observer': silent.Silent(), 'record': 'r'}):\n"
        "    try: Client('127.0.0.1:1', **options)\n"
        "    except ValueError: print('refused')\n"
        "with Client('127.0.0.1:1', timeout=0.1) as client:\n"
        "    for name, (call, due) in WRONG_CALLS.items():\n"
        "        try: call(client)\n"
        "        except due: print('refused')\n"
        "        except Exception as error: print(name, repr(error))\n"
        "        else: print(name)\n"
    )
    env = os.environ | {"PYTHONPATH": os.pathsep.join((os.getcwd(), *sys.path))}
    run = [sys.executable, "-O", "-c", code]
    said = subprocess.run(run, env=env, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert said.stdout.splitlines() == ["refused"] * (2 + len(WRONG_CALLS)), said


def test_a_generator_of_publications_is_a_list_of_them(node: FakeNode) -> None:
    with client_of(node, rng=random.Random(1)) as client:
        client.subscribe("t")
        [result] = client.publish_many("t", (text for text in ("a", "b")))  # type: ignore[arg-type]
        assert result.count == 2


def test_every_error_that_is_refused_here_is_definite(node: FakeNode) -> None:
    with client_of(node) as client, pytest.raises(FlotillaError) as caught:
        client.publish("", "a")
    assert caught.value.definite
