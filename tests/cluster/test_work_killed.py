"""Four workers and a leader, some of them killed with -9: nothing is lost or acknowledged twice."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.local.local import LocalCluster
from flotilla_client import Admin, Client
from tests.conftest import running

COUNT = 3_000
WORKERS = 4
PATIENCE_S = 90.0
RUNS = {"FLOTILLA_TEST_KILLED_RUNS": "200", "FLOTILLA_TEST_KILLED_FROM": "1000"}  # of the deep test


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Run three nodes at the level of groups."""
    with running(tmp_path_factory.mktemp("cluster") / "killed") as made:
        made.begin_at_newest_level()
        yield made


@pytest.mark.parametrize("seed", range(2))
def test_whoever_is_killed_nothing_is_lost_and_nothing_acknowledged_twice(
    cluster: LocalCluster, tmp_path: Path, seed: int
) -> None:
    check_run(cluster, tmp_path, seed)


@pytest.mark.slow
@pytest.mark.timeout(14_400)
def test_two_hundred_times_whoever_is_killed_nothing_is_lost_or_acknowledged_twice(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    """`FLOTILLA_TEST_KILLED_RUNS` in the environment: so many; `…_FROM`: from that seed on."""
    runs, first = (int(os.environ.get(name, many)) for name, many in RUNS.items())
    for seed in range(first, first + runs):
        check_run(cluster, tmp_path, seed)
        print(f"seed {seed}: nothing lost, nothing acknowledged twice", flush=True)


def check_run(cluster: LocalCluster, directory: Path, seed: int) -> None:
    """Publish, let four work, kill one of them at random and the leader, and see what was done."""
    rng = random.Random(seed)
    endpoints, topic = [*cluster.endpoints().values()], f"jobs-{seed}"
    with Client(endpoints, timeout=30) as client:
        client.make_group(topic, "g")
        client.publish_many(topic, [f"{each}" for each in range(COUNT // 2)])
        files = [directory / f"worker-{seed}-{number}" for number in range(WORKERS)]
        workers = [_started(endpoints, topic, file) for file in files]
        victims = [lambda: workers[rng.randrange(WORKERS)].kill(), lambda: _kill_leader(cluster)]
        rng.shuffle(victims)
        for kill in victims:
            time.sleep(rng.uniform(0.3, 1.5))  # anywhere in what they do
            kill()
        client.publish_many(topic, [f"{each}" for each in range(COUNT // 2, COUNT)])
        for worker in workers:
            worker.wait(timeout=PATIENCE_S)
    with Admin(endpoints, timeout=30) as admin:
        [row] = [row for row in admin.groups() if row.topic == topic]
    assert (row.cursor, row.backlog, row.leased) == (COUNT, 0, 0), row
    lines = [line.split() for file in files for line in _lines(file)]
    given = Counter((int(id_), int(attempt)) for _, id_, attempt in _of("given", lines))
    done = Counter(int(id_) for _, id_ in _of("done", lines))
    assert {id_ for id_, _ in given} == set(range(1, COUNT + 1)), "something was lost"
    assert max(given.values()) == 1, "one attempt was given to two"
    assert max(done.values()) == 1, "something was acknowledged twice"
    # A victim may have acknowledged what it had no time to tell; and may have had some in hand.
    assert COUNT - len(done) <= 2 * 16, len(done)
    cluster.start_all()
    cluster.wait_for_leader()


def _started(endpoints: list[str], topic: str, file: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "tests.cluster.worker", ",".join(endpoints), topic]
    with file.open("wb") as output:
        return subprocess.Popen(command, stdout=output)


def _kill_leader(cluster: LocalCluster) -> None:
    leader = cluster.leader()
    if leader is not None:
        cluster.kill(leader)


def _lines(file: Path) -> list[str]:
    """Return whole lines: a victim may have been killed in the middle of one."""
    return file.read_text().split("\n")[:-1]


def _of(what: str, lines: list[list[str]]) -> list[list[str]]:
    return [line for line in lines if line[0] == what]
