"""Publications with a delay, in a real cluster whose leader is killed before they are due."""

from __future__ import annotations

import asyncio
import threading
import time
from datetime import timedelta
from pathlib import Path

import pytest

from cluster.local.local import LocalCluster
from flotilla_client import (
    AsyncClient,
    BadRequest,
    Client,
    Message,
    NoSubscribers,
    Publication,
    Unsupported,
)
from tests.conftest import ClusterFactory

DELAY_S = 1.5
WAIT_S = 20.0


@pytest.fixture
def cluster(local_cluster: ClusterFactory) -> LocalCluster:
    return local_cluster(3)


def read(reader: Client, count: int) -> list[Message]:
    """Return the reader's next publications, so many."""
    found: list[Message] = []
    end = time.monotonic() + WAIT_S
    while len(found) < count and time.monotonic() < end:
        delivery = reader.get("t", idle=1.0, max_count=count - len(found))
        found += [] if delivery is None else delivery
    return found


def test_what_is_delayed_comes_once_and_in_time_though_the_leader_is_killed_before_it_is_due(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    endpoints = [*cluster.endpoints().values()]
    with (
        Client(endpoints, state_dir=tmp_path / "writer") as writer,
        Client(endpoints, state_dir=tmp_path / "reader") as reader,
    ):
        reader.subscribe("t")
        with pytest.raises(Unsupported) as caught:
            writer.publish("t", "too early", deliver_after=1)
        assert (caught.value.details["needs"], caught.value.definite) == (5, True)
        cluster.begin_at_newest_level()
        started = time.monotonic()
        late = writer.publish("t", "second", deliver_after=timedelta(seconds=DELAY_S))
        assert (late.id, late.stored, late.delayed) == (0, True, True)
        first = writer.publish_soon("t", "first", deliver_after=0.9 * DELAY_S).result()
        assert first.delayed
        [several] = writer.publish_many(
            "t", [Publication(text, deliver_after=2 * DELAY_S) for text in ("third", "fourth")]
        )
        assert (several.count, several.delayed) == (2, True)
        at_once = writer.publish("t", "at once", key="k")
        assert (at_once.id, at_once.delayed) == (1, False)
        assert [each.publication for each in read(reader, 1)] == [b"at once"]
        killed = cluster.leader()
        cluster.kill(killed)
        assert [(m.id, m.publication, m.deliver_after_ms) for m in read(reader, 4)] == [
            (2, b"first", 900 * DELAY_S),
            (3, b"second", 1000 * DELAY_S),
            (4, b"third", 2000 * DELAY_S),
            (5, b"fourth", 2000 * DELAY_S),
        ]
        assert time.monotonic() - started >= 2 * DELAY_S
        cluster.start(killed)
        assert reader.get("t", idle=0.3) is None
        assert writer.next_counter("t") == 2


def test_what_nobody_wants_is_refused_and_so_is_a_mixture(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    cluster.begin_at_newest_level()
    endpoints = [*cluster.endpoints().values()]
    with Client(endpoints, state_dir=tmp_path / "writer") as writer:
        with pytest.raises(NoSubscribers, match="'nobody'"):
            writer.publish("nobody", "x", deliver_after=1)
        unheard = writer.publish("nobody", "x", deliver_after=1, allow_unheard=True)
        assert (unheard.stored, unheard.delayed) == (False, False)
        with pytest.raises(BadRequest, match="some of it has a delay"):
            writer.publish_many("t", ["now", Publication("later", deliver_after=1)])
        with (
            writer.producer("t") as producer,
            pytest.raises(BadRequest, match="a producer publishes at once"),
        ):
            producer.send(Publication("later", deliver_after=1))
        with pytest.raises(BadRequest, match="a year"):
            writer.publish("t", "x", deliver_after=timedelta(days=366))


def test_callers_with_and_without_a_delay_do_not_wait_for_each_other(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    cluster.begin_at_newest_level()
    endpoints = [*cluster.endpoints().values()]
    with (
        Client(endpoints, state_dir=tmp_path / "writer") as writer,
        Client(endpoints, state_dir=tmp_path / "reader") as reader,
    ):
        reader.subscribe("t")
        results: dict[int, bool] = {}

        def publish(number: int) -> None:
            delay = None if number % 2 else 0.001 * number
            results[number] = writer.publish("t", str(number), deliver_after=delay).delayed

        threads = [threading.Thread(target=publish, args=(number,)) for number in range(2, 42)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert results == {number: number % 2 == 0 for number in range(2, 42)}
        found = read(reader, 40)
        assert sorted(int(each.publication) for each in found) == list(range(2, 42))


def test_an_async_client_publishes_with_a_delay(cluster: LocalCluster, tmp_path: Path) -> None:
    cluster.begin_at_newest_level()
    endpoints = [*cluster.endpoints().values()]

    async def main() -> list[bytes]:
        found: list[bytes] = []
        async with AsyncClient(endpoints, state_dir=tmp_path / "client") as client:
            await client.subscribe("t")
            assert (await client.publish("t", "a", deliver_after=0.4)).delayed
            assert (await (await client.publish_soon("t", "b", deliver_after=0.1))).delayed
            while len(found) < 2:
                delivery = await client.get("t", idle=5.0, max_count=2)
                assert delivery is not None
                found += delivery.publications
        return found

    assert asyncio.run(main()) == [b"b", b"a"]
