"""README's reader is killed again and again on a real cluster; whoever judges its record agrees."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import pytest

from analytics import twins
from analytics.command import plain
from flotilla_client import Client
from flotilla_client.reading import Reader, Readers
from flotilla_client.recording import read
from tests.conftest import ClusterFactory

KILLS: Final = 48
PUBLICATIONS: Final = 1_000
WAIT_S: Final = 60

READER: Final = """
import sys
from flotilla_client import Client

endpoints, state, record = sys.argv[1:]
with Client(endpoints, state_dir=state, record=record) as client:
    for message in client.messages():
        print(message.id, message.redelivered, flush=True)
        print("done", message.id, flush=True)
"""


def killed_reader(endpoints: str, state: Path, record: Path, lines: int) -> list[str]:
    """Return what a reader has written to a pipe until it was killed, which the kernel keeps."""
    with subprocess.Popen(
        [sys.executable, "-c", READER, endpoints, str(state), str(record)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(path or "." for path in sys.path)},
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        written = [process.stdout.readline() for _ in range(lines)]
        process.send_signal(signal.SIGKILL)
        return [line for line in [*written, *process.stdout] if line.endswith("\n")]


def evidence(record: Path) -> dict[str, list[twins.Evidence]]:
    rows = [row for path in sorted((record / "history").iterdir()) for row in read(path)]
    return {name: found for name, found in twins.find_all(rows).items() if found}


def published(endpoints: Sequence[str], state: Path, record: Path, count: int) -> None:
    with Client(endpoints, state_dir=state, record=record) as client:
        for first in range(0, count, 100):
            client.publish_many("t", [str(number) for number in range(first, first + 100)])


@pytest.mark.slow  # 48 processes, each of a second or two
@pytest.mark.timeout(900)
def test_48_kills_of_a_reader_lose_nothing_and_its_record_is_valid(
    local_cluster: ClusterFactory, tmp_path: Path
) -> None:
    seed = random.randrange(2**32)
    rng = random.Random(seed)
    endpoints = list(local_cluster(3).endpoints().values())
    state, record = tmp_path / "reader", tmp_path / "record"
    with Client(endpoints, state_dir=state, record=record) as client:
        client.subscribe("t")
    published(endpoints, tmp_path / "writer", record, PUBLICATIONS)
    lines: list[str] = []
    for _ in range(KILLS):
        after = rng.randint(1, 2 * PUBLICATIONS // KILLS)
        lines += killed_reader(",".join(endpoints), state, record, after)
    with Client(endpoints, state_dir=state, record=record) as client:
        rest = [(one.id, one.redelivered) for one in client.messages("t", idle=2)]
    rows = [line.split() for line in lines]
    begun = [(int(row[0]), row[1] == "True") for row in rows if row[0] != "done"] + rest
    done = {int(row[1]) for row in rows if row[0] == "done"} | {id_ for id_, _ in rest}
    assert done == set(range(1, PUBLICATIONS + 1)), f"seed {seed}"
    seen: set[int] = set()
    for id_, redelivered in begun:
        assert redelivered or id_ not in seen, f"seed {seed}: {id_} again, unsaid"
        seen.add(id_)
    assert evidence(record) == {}, f"seed {seed}"


@pytest.mark.slow  # ten seconds, most of them of waiting for what does not come
def test_a_library_that_lets_four_threads_read_one_subscription_is_judged_invalid(
    local_cluster: ClusterFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So it was in version 0.1: 200 ids were handed over 772 times, and no record said so."""

    def begin(readers: Readers, reader: Reader) -> None:
        readers._open.append(reader)

    monkeypatch.setattr(Readers, "begin", begin)
    endpoints = list(local_cluster(3).endpoints().values())
    record = tmp_path / "record"
    with Client(endpoints, state_dir=tmp_path / "reader", record=record) as client:
        client.subscribe("t")
        published(endpoints, tmp_path / "writer", record, 200)
        begun = threading.Barrier(4)

        def work() -> list[int]:
            messages, handed = client.messages("t", idle=0.5), []
            begun.wait(WAIT_S)
            for message in messages:
                handed.append(message.id)
            return handed

        with ThreadPoolExecutor(4) as pool:
            threads: list[Any] = [pool.submit(work) for _ in range(4)]
            handed = [id_ for thread in threads for id_ in thread.result(WAIT_S)]
    assert len(handed) > len(set(handed)) == 200
    assert list(evidence(record)) == ["duplicate_delivered"]
    assert plain.judge(record) == "invalid"
