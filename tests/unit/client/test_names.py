"""Look-ups of hosts' names: bounded in number and in time, whatever the resolver does."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from flotilla_client import AsyncClient, Client, Unavailable
from flotilla_client.names import LOOKUPS_MAX, NOT_IN_TIME, UNKNOWN, Address, _lookups
from flotilla_client.retry import NO_ANSWER_YET
from tests.unit.fake_node import FakeNode

RELEASE_S_MAX = 60.0
TIMEOUT_S = 1.5


class Resolver:
    """Stands in for getaddrinfo: names with `hangs` in them have no answer before `release`."""

    def __init__(self) -> None:
        self.release, self.asked, self.was_asked = threading.Event(), [], threading.Event()

    def __call__(self, host: str, port: object, *arguments: Any, **options: Any) -> Any:
        self.asked.append(host)
        self.was_asked.set()
        if "hangs" in host:
            self.release.wait(RELEASE_S_MAX)
            raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
        if "unknown" in host:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 0))]


@pytest.fixture
def resolver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Resolver]:
    resolver = Resolver()
    monkeypatch.setattr(socket, "getaddrinfo", resolver)
    yield resolver
    resolver.release.set()
    end_s = time.monotonic() + RELEASE_S_MAX
    while _lookups._running and time.monotonic() < end_s:
        time.sleep(0.01)
    assert not _lookups._running


def test_a_name_becomes_an_address_and_what_is_none_stays(resolver: Resolver) -> None:
    for endpoint, address in (
        ("known:7001", "tcp://127.0.0.1:7001"),
        ("tcp://known:7001", "tcp://127.0.0.1:7001"),
        ("127.0.0.9:7001", "tcp://127.0.0.9:7001"),
        ("[::1]:7001", "tcp://[::1]:7001"),
        ("ipc:///tmp/x:1", "ipc:///tmp/x:1"),
        ("tcp://127.0.0.1:0;127.0.0.1:7001", "tcp://127.0.0.1:0;127.0.0.1:7001"),
    ):
        found = Address(endpoint)
        found.wait(5)
        assert (str(found), found.failure) == (address, "")
    assert resolver.asked == ["known", "known"]


def test_a_name_that_nobody_knows_is_said_so(resolver: Resolver) -> None:
    found = Address("unknown:7001")
    found.wait(5)
    assert found.failure == UNKNOWN


def test_look_ups_that_hang_are_bounded_in_number_and_one_a_host(resolver: Resolver) -> None:
    hanging = [Address(f"hangs-{number}:1") for number in range(2 * LOOKUPS_MAX)]
    again = Address("hangs-0:2")
    assert len(resolver.asked) == LOOKUPS_MAX
    assert [one.is_over() for one in hanging] == [False] * LOOKUPS_MAX + [True] * LOOKUPS_MAX
    assert {one.failure for one in hanging} == {NOT_IN_TIME}
    resolver.release.set()
    again.wait(5)
    assert again.failure == UNKNOWN
    assert Address("known:1").failure in ("", NOT_IN_TIME)  # there is room again


def test_a_name_that_hangs_cuts_nobody_off_from_the_other_nodes(resolver: Resolver) -> None:
    with FakeNode() as node:
        began_s = time.monotonic()
        client = Client(["hangs:7001", node.endpoint], timeout=5)
        assert client.status()["node"] == "a"
        before = threading.active_count()
        for _ in range(3):
            client.topics(everything=True)
        assert threading.active_count() <= before
        client.close()
        assert time.monotonic() - began_s < 5
        assert resolver.asked == ["hangs"]


def test_where_every_name_hangs_the_deadline_is_kept_and_the_cause_named(
    resolver: Resolver,
) -> None:
    client = Client(["hangs-1:7001", "hangs-2:7001"], timeout=TIMEOUT_S)
    for _ in range(2):
        began_s = time.monotonic()
        with pytest.raises(Unavailable) as caught:
            client.topics(everything=True)
        assert time.monotonic() - began_s < TIMEOUT_S + 1
        assert set(caught.value.details["causes"].values()) == {NOT_IN_TIME}
    client.close()
    assert sorted(resolver.asked) == ["hangs-1", "hangs-2"]


def test_a_task_with_less_time_than_the_name_takes_hears_what_was_known(resolver: Resolver) -> None:
    async def work() -> None:
        async with AsyncClient("hangs:7001") as client:
            long = asyncio.create_task(client.publish("long", "x", timeout=TIMEOUT_S))
            await asyncio.to_thread(resolver.was_asked.wait, RELEASE_S_MAX)
            short = asyncio.create_task(client.publish("short", "x", timeout=TIMEOUT_S / 3))
            for task, cause in ((short, NO_ANSWER_YET), (long, NOT_IN_TIME)):
                with pytest.raises(Unavailable) as caught:
                    await task
                assert caught.value.details["causes"] == {"hangs:7001": cause}
                assert caught.value.details["kept"] == 1
                assert cause in caught.value.message

    asyncio.run(work())


def test_asyncio_goes_on_beside_a_name_that_hangs(resolver: Resolver) -> None:
    async def work() -> tuple[str, int]:
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                await asyncio.sleep(0.01)
                ticks += 1

        ticking = asyncio.create_task(tick())
        async with AsyncClient(["hangs:7001", node.endpoint], timeout=5) as client:
            name = (await client.status())["node"]
        ticking.cancel()
        return name, ticks

    with FakeNode() as node:
        name, ticks = asyncio.run(work())
    assert name == "a"
    assert ticks > 5


_HANGING = """
import os, socket, sys, time
socket.getaddrinfo = lambda *arguments, **options: time.sleep(60)
from flotilla_client import Client, Unavailable
client = Client("hangs:7001", timeout=0.3)
try:
    client.publish("t", "x")
except Unavailable as error:
    print(error.message)
"""


@pytest.mark.parametrize(
    "end", ["", "client.close()", "os.fork() or print('child'); client.close()"]
)
def test_a_name_that_hangs_does_not_keep_the_interpreter(end: str) -> None:
    began_s = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _HANGING + end],
        capture_output=True,
        env=os.environ | {"PYTHONPATH": "client"},
        timeout=50,
        check=True,
    )
    assert NOT_IN_TIME.encode() in done.stdout
    assert done.stderr == b""
    assert time.monotonic() - began_s < 40  # the look-up lasts 60
