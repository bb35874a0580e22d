"""The same checks on a Spark cluster: a standalone master with two workers, on loopback.

Real processes, started here and killed here; what they print stands in the test's directory.
"""

import json
import os
import random
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pyspark
import pytest

from analytics.common import session
from tests.spark.histories import CorrectBroker, clean_run, write

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]

PATIENCE_S = 60  # two JVMs that start on a busy machine
WORKERS = 2
CHECK_S_MAX = 500  # half a minute on an idle machine
SPARK_HOME = Path(pyspark.__path__[0])
CHECK = Path(session.__file__).parents[1] / "__main__.py"


class Daemon:
    """A process of Spark's, and what it prints."""

    def __init__(self, log: Path, home: Path, *arguments: str) -> None:
        self.log = log
        self._out: IO[bytes] = log.open("wb")
        environment = {
            **os.environ,
            "JAVA_HOME": str(home),
            "SPARK_HOME": str(SPARK_HOME),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_DAEMON_MEMORY": "256m",
        }
        command = [str(SPARK_HOME / "bin" / "spark-class"), *arguments]
        self._process = subprocess.Popen(
            command, env=environment, stdout=self._out, stderr=subprocess.STDOUT
        )

    def said(self, pattern: str) -> str:
        """Return what matched `pattern` in its output, as soon as it is there."""
        deadline_s = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline_s:
            found = re.search(pattern, self.log.read_text(errors="replace"))
            if found:
                return found[1]
            assert self._process.poll() is None, self.log.read_text(errors="replace")[-2000:]
            time.sleep(0.1)
        raise AssertionError(f"{pattern!r} not in {self.log.read_text(errors='replace')[-2000:]}")

    def stop(self) -> None:
        self._process.kill()  # behind our shim a JVM is deaf to SIGTERM (session.py)
        self._process.wait(PATIENCE_S)
        self._out.close()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Yield the URL of a master with two registered workers of one core each."""
    base = tmp_path_factory.mktemp("cluster")
    home = session.write_shim(session.found_java(), base / "java")
    master = "org.apache.spark.deploy.master.Master"
    worker = "org.apache.spark.deploy.worker.Worker"
    address = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
    daemons = [Daemon(base / "master.log", home, master, *address)]
    try:
        url = daemons[0].said(r"Starting Spark master at (spark://\S+)")
        for number in range(WORKERS):
            limits = ("--cores", "1", "--memory", "1g", "--work-dir", str(base / f"work-{number}"))
            daemons.append(
                Daemon(base / f"worker-{number}.log", home, worker, *address, *limits, url)
            )
        for one in daemons[1:]:
            one.said(r"(Successfully registered with master)")
        yield url
    finally:
        for one in reversed(daemons):
            one.stop()


def checked(arguments: list[str], home: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run the check in a process of its own: this one may have a session of its own already."""
    environment = {
        **os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable
    }  # fmt: skip
    if home is not None:
        environment["JAVA_HOME"] = str(home)
    return subprocess.run(
        arguments, env=environment, capture_output=True, text=True, timeout=CHECK_S_MAX, check=False
    )


def verdict_of(report: Path) -> tuple[str, dict[str, int]]:
    """Return the verdict in a report, and the counts of the checks that found something."""
    document = json.loads(report.read_text())
    counts = {one["name"]: one["count"] for one in document["checks"] if one["count"]}
    return document["verdict"], counts


def test_cluster_finds_what_is_planted_behind_a_url(cluster: str, tmp_path: Path) -> None:
    broker = CorrectBroker(random.Random(1), "run", 400)
    broker.work()
    broker.stored.append(broker.stored[3])  # stored twice
    broker.drain()
    write(tmp_path / "run", broker.run.rows)
    report = tmp_path / "report.json"

    done = checked(
        [sys.executable, "-m", "analytics", (tmp_path / "run").as_uri(), "--master", cluster,
         "--memory", "512m", "--json", str(report), "--no-report"]
    )  # fmt: skip

    assert done.returncode == 1, done.stdout + done.stderr
    assert verdict_of(report) == ("invalid", {"duplicate_stored": 1})
    document = json.loads(report.read_text())
    witness = document["checks"][1]["witnesses"][0]
    assert all(operation["lines"] for operation in witness["operations"]), witness


def test_spark_submit_runs_the_check_on_the_cluster(cluster: str, tmp_path: Path) -> None:
    write(tmp_path / "run", clean_run(1, publications=50))
    report = tmp_path / "report.json"
    home = session.write_shim(session.found_java(), tmp_path / "java")

    done = checked(
        [str(SPARK_HOME / "bin" / "spark-submit"), "--master", cluster,
         "--conf", "spark.executor.memory=512m", str(CHECK), str(tmp_path / "run"),
         "--json", str(report), "--no-report"],
        home,
    )  # fmt: skip

    assert done.returncode == 0, done.stdout + done.stderr
    assert verdict_of(report) == ("valid", {})
