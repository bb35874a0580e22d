"""What is published soon keeps the law, though leaders and publishers die."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.local.local import LocalCluster
from flotilla_client import AsyncClient, Client
from tests.conftest import running

PATIENCE_S = 40
COUNT = 2_000
LIVES = 3
PUBLISHER = """
    import sys, threading
    from flotilla_client import Client
    nodes, directory, life, count = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
    said = threading.Lock()
    def answered(text):
        def say(future):
            with said:
                print(text, future.result().id, flush=True)
        return say
    with Client(nodes, state_dir=directory, timeout=40) as client:
        for number in range(count):
            text = f"{life}-{number}"
            client.publish_soon("t", text).add_done_callback(answered(text))
            if number % 100 == 99:  # in between: by the way of one that waits
                client.publish("t", f"{life}-{number}-waited")
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Run three nodes."""
    with running(tmp_path_factory.mktemp("cluster") / "soon") as made:
        yield made


def expected(life: int, last: int) -> list[str]:
    texts = []
    for number in range(last + 1):
        texts.append(f"{life}-{number}")
        if number % 100 == 99:
            texts.append(f"{life}-{number}-waited")
    return texts


def read_all(nodes: str, directory: Path, topic: str) -> list[str]:
    with Client(nodes, state_dir=directory, timeout=PATIENCE_S) as reader:
        return [message.publication.decode() for message in reader.messages(topic, idle=0.5)]


def test_publishers_and_a_leader_die_and_each_is_stored_once_in_its_order(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    nodes = ",".join(cluster.endpoints().values())
    with Client(nodes, state_dir=tmp_path / "reader", timeout=PATIENCE_S) as reader:
        reader.subscribe("t")
    acknowledged: dict[str, int] = {}
    for life in range(LIVES):
        arguments = [nodes, str(tmp_path / "writer"), str(life), str(COUNT)]
        command = [sys.executable, "-c", textwrap.dedent(PUBLISHER), *arguments]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            for lines, line in enumerate(process.stdout, 1):
                text, id_ = line.split()
                acknowledged[text] = int(id_)
                if life == 1 and lines == COUNT // 4:
                    cluster.kill(cluster.wait_for_leader())
                if life < LIVES - 1 and lines == COUNT // 2:
                    process.kill()
                    break
            for line in process.stdout:  # what was said before it died
                if line.endswith("\n"):
                    text, id_ = line.split()
                    acknowledged[text] = int(id_)
            assert process.wait(PATIENCE_S) in (0, -signal.SIGKILL)
        cluster.start_all()

    stored = read_all(nodes, tmp_path / "reader", "t")

    assert len(set(stored)) == len(stored)  # none twice
    place = {text: number for number, text in enumerate(stored, 1)}
    assert {text: place[text] for text in acknowledged} == acknowledged  # none lost, each at its id
    for life in range(LIVES):  # a beginning of what it published, in that order: no hole
        own = [text for text in stored if text.startswith(f"{life}-")]
        assert own == expected(life, COUNT - 1)[: len(own)]
    assert stored[-len(expected(2, COUNT - 1)) :] == expected(2, COUNT - 1)


@pytest.mark.parametrize("way", ["threads", "tasks"])
def test_many_callers_keep_their_order_though_the_leader_dies(
    way: str, cluster: LocalCluster, tmp_path: Path
) -> None:
    nodes = ",".join(cluster.endpoints().values())
    with Client(nodes, state_dir=tmp_path / "reader", timeout=PATIENCE_S) as reader:
        reader.subscribe(way)
    begun = threading.Event()

    def work(client: Client, caller: int) -> None:
        futures = [client.publish_soon(way, f"{caller}-{n}") for n in range(COUNT // 2)]
        futures[0].result(PATIENCE_S)
        begun.set()
        client.publish(way, f"{caller}-{COUNT // 2}")
        assert all(future.done() for future in futures)

    async def run() -> None:
        async with AsyncClient(nodes, state_dir=tmp_path / "writer", timeout=PATIENCE_S) as client:

            async def caller(number: int) -> None:
                futures = [
                    await client.publish_soon(way, f"{number}-{n}") for n in range(COUNT // 2)
                ]
                await futures[0]
                begun.set()
                await client.publish(way, f"{number}-{COUNT // 2}")
                assert all(future.done() for future in futures)

            await asyncio.gather(*map(caller, range(4)))

    def kill() -> None:
        assert begun.wait(PATIENCE_S)
        cluster.kill(cluster.wait_for_leader())

    killer = threading.Thread(target=kill)
    killer.start()
    if way == "tasks":
        asyncio.run(run())
    else:
        with Client(nodes, state_dir=tmp_path / "writer", timeout=PATIENCE_S) as client:
            callers = [threading.Thread(target=work, args=(client, each)) for each in range(4)]
            for thread in callers:
                thread.start()
            for thread in callers:
                thread.join(2 * PATIENCE_S)
    killer.join(PATIENCE_S)
    cluster.start_all()

    stored = read_all(nodes, tmp_path / "reader", way)

    for caller in range(4):
        own = [text for text in stored if text.startswith(f"{caller}-")]
        assert own == [f"{caller}-{number}" for number in range(COUNT // 2 + 1)]
