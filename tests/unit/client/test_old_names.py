"""Old names of the public surface: they work as they did, and each says what to say instead.

Everywhere else a DeprecationWarning of ours is an error, in the processes that tests start, too
(tests/conftest.py).
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import warnings
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from flotilla_client import (
    Admin,
    AsyncClient,
    Client,
    Publication,
    PutResult,
    Unavailable,
    UnheardWarning,
)
from tests.unit.fake_node import FakeNode, client_of

Call = Callable[[Any], Any]
OLD: dict[str, tuple[Call, str]] = {
    "put": (lambda c: c.put("t", "a"), "put is an old name, .*: say publish; with allow_unheard"),
    "put_many": (lambda c: c.put_many("t", ["a"]), "put_many is an old .*: say publish_many; with"),
    "wait_ms": (lambda c: c.get("t", wait_ms=0), "wait_ms is an old .*: say idle, in seconds"),
    "wait_ms by place": (lambda c: c.get("t", 0, 5, "manual"), "wait_ms is an old name"),
    "idle_ms": (lambda c: c.messages("t", idle_ms=0), "idle_ms is an old .*: say idle, in seconds"),
    "idle_ms by place": (lambda c: c.messages("t", "manual", 0), "idle_ms is an old name"),
}


def _told(caught: list[warnings.WarningMessage], category: type[Warning]) -> list[str]:
    """Return the warnings of a category; all point at this file, whatever lies in between."""
    assert {row.filename for row in caught} <= {__file__}, "it does not point at the caller"
    return [str(row.message) for row in caught if row.category is category]


@pytest.mark.parametrize("name", OLD)
def test_an_old_name_says_once_a_place_what_to_say_instead(name: str, node: FakeNode) -> None:
    call, new = OLD[name]
    with client_of(node) as client, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        client.subscribe("t")
        call(client)
        for _ in range(3):
            call(client)
    [said] = _told(caught, DeprecationWarning)
    assert said.startswith("flotilla_client: ")
    with pytest.warns(DeprecationWarning, match=new):
        warnings.warn(said, DeprecationWarning, stacklevel=1)


@pytest.mark.parametrize("name", OLD)
def test_an_async_client_says_the_same_where_it_is_called(name: str, node: FakeNode) -> None:
    call, new = OLD[name]

    async def work() -> None:
        async with AsyncClient(node.endpoint, state_dir=node.new_directory()) as client:
            await client.subscribe("t")
            with pytest.warns(DeprecationWarning, match=new) as caught:
                called = call(client)
            assert _told(list(caught), DeprecationWarning)
            if isinstance(called, Coroutine):
                await asyncio.create_task(called)

    asyncio.run(work())


@pytest.mark.parametrize("make", [Client, AsyncClient, Admin])
def test_deadline_ms_is_the_timeout_in_ms(make: Any, node: FakeNode) -> None:
    with pytest.warns(DeprecationWarning, match="deadline_ms is .*: say timeout, in s") as caught:
        made = make(node.endpoint, deadline_ms=1_234)
    assert _told(list(caught), DeprecationWarning)
    session = made._client._session if make is Admin else made._session
    assert session.deadline_ms == 1_234
    asyncio.run(made.close()) if make is AsyncClient else made.close()


@pytest.mark.parametrize("options", [{"timeout": 2}, {"timeout": 2, "deadline_ms": 1}])
@pytest.mark.filterwarnings("ignore:flotilla_client:DeprecationWarning")
def test_a_timeout_goes_first(options: dict[str, int], node: FakeNode) -> None:
    with Client(node.endpoint, **options) as client:  # type: ignore[arg-type]
        assert client._session.deadline_ms == 2_000


@pytest.mark.filterwarnings("ignore:flotilla_client:DeprecationWarning")
@pytest.mark.parametrize(
    ("options", "error"),
    [
        *[({"deadline_ms": value}, ValueError) for value in (0, -1, float("nan"), float("inf"))],
        *[({"deadline_ms": value}, TypeError) for value in (True, "5")],
    ],
)
def test_a_wrong_deadline_is_named(
    options: dict[str, Any], error: type[Exception], node: FakeNode
) -> None:
    with pytest.raises(error, match="deadline_ms"):
        Client(node.endpoint, **options)


@pytest.mark.filterwarnings("ignore:flotilla_client:DeprecationWarning")
@pytest.mark.parametrize(
    ("call", "error", "what"),
    [
        (lambda c: c.get("t", wait_ms=-1), ValueError, "wait_ms"),
        (lambda c: c.get("t", wait_ms=True), TypeError, "wait_ms"),
        (lambda c: c.get("t", 100, timeout=1), TypeError, "timeout includes idle"),
        (lambda c: c.get("t", 100, idle=1), TypeError, "idle and wait_ms"),
        (lambda c: c.messages("t", idle_ms=float("nan")), ValueError, "idle_ms"),
        (lambda c: c.messages("t", idle_ms=5, idle=1), TypeError, "idle and idle_ms"),
    ],
)
def test_wrong_times_are_named(
    call: Call, error: type[Exception], what: str, node: FakeNode
) -> None:
    with client_of(node) as client, pytest.raises(error, match=what):
        call(client)


@pytest.mark.filterwarnings("ignore:flotilla_client:DeprecationWarning")
def test_old_names_do_what_the_new_ones_do(node: FakeNode) -> None:
    with client_of(node) as client:
        client.subscribe("t")
        assert client.put("t", "a", key="k", headers={"h": "1"}, expires=60).id == 1
        [result] = client.put_many("t", [Publication("b", "k"), "c"])
        assert (result.id, result.count) == (2, 2)
        delivery = client.get("t", 0, 1)
        assert delivery is not None
        assert [(m.publication, m.key) for m in delivery] == [(b"a", "k")]
        assert [m.publication for m in client.messages("t", idle_ms=0)] == [b"b", b"c"]
        assert client.get("t", wait_ms=50) is None


@pytest.mark.filterwarnings("ignore:flotilla_client:DeprecationWarning")
def test_what_nobody_hears_warns_once_for_each_client_and_topic(node: FakeNode) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UnheardWarning)
        with client_of(node) as client, client_of(node) as other:
            for _ in range(2):
                assert client.put("t", "a") in (PutResult(0, 1, False, False),)
                client.put_many("u", ["a", "b"])
            other.put("t", "a")
    said = _told(caught, UnheardWarning)
    assert [text.split("'")[1] for text in said] == ["t", "u", "t"]


@pytest.mark.filterwarnings("ignore:flotilla_client:DeprecationWarning")
def test_a_warning_that_is_an_error_leaves_all_in_order(node: FakeNode) -> None:
    async def work() -> None:
        async with AsyncClient(node.endpoint) as client:
            with pytest.warns(UnheardWarning):
                await client.put("u", "a")

    with client_of(node) as client:
        with pytest.raises(UnheardWarning):
            client.put("t", "a")
        assert client.put("t", "b").stored is False
    asyncio.run(work())


@pytest.mark.filterwarnings("ignore:flotilla_client:DeprecationWarning")
def test_what_has_no_answer_is_kept(tmp_path: Path, node: FakeNode) -> None:
    client = Client("127.0.0.1:1", state_dir=tmp_path, deadline_ms=300)
    with client, pytest.raises(Unavailable):
        client.put("t", "a")
    with client_of(node) as reader, client_of(node, tmp_path) as again:
        reader.subscribe("t")
        assert again.put("t", "b").id == 2


def test_a_process_that_a_test_starts_ends_by_an_old_name(node: FakeNode) -> None:
    code = "import sys, flotilla_client; flotilla_client.Client(sys.argv[1], deadline_ms=5)"
    done = subprocess.run(
        [sys.executable, "-c", code, node.endpoint], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 1
    assert "DeprecationWarning: flotilla_client: deadline_ms is an old name" in done.stderr
