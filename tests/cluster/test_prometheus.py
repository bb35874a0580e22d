"""A real Prometheus scrapes a cluster whose leader is killed: every query answers, alerts come."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest

from cluster.local.local import LocalCluster
from flotilla_client import Client
from flotilla_client.errors import FlotillaError
from tests.unit.cluster.observe.test_queries import RULES, dashboard_queries, rule_queries
from tests.waiting import until

# What a dashboard shows of a cluster where nothing goes wrong is empty for these alone.
MAY_BE_EMPTY: Final = ("flotilla_refused_total", "changes(")

pytestmark = [
    pytest.mark.needs("prometheus"),
    pytest.mark.slow,
    pytest.mark.timeout(300),
]


class Prometheus:
    """A server that scrapes each second."""

    def __init__(self, directory: Path, pages: list[str]) -> None:
        with socket.create_server(("127.0.0.1", 0)) as probe:
            self.address = f"127.0.0.1:{probe.getsockname()[1]}"
        shutil.copy(RULES, directory / RULES.name)
        targets = [page.removeprefix("http://") for page in pages]
        config = {
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": [RULES.name],
            "scrape_configs": [{"job_name": "flotilla", "static_configs": [{"targets": targets}]}],
        }
        file = directory / "prometheus.yml"
        file.write_text(json.dumps(config))
        self._log = (directory / "prometheus.log").open("w")
        self.process = subprocess.Popen(
            [
                "prometheus",
                f"--config.file={file}",
                f"--storage.tsdb.path={directory / 'tsdb'}",
                f"--web.listen-address={self.address}",
            ],
            stdout=self._log,
            stderr=subprocess.STDOUT,
        )

    def close(self) -> None:
        self.process.terminate()
        self.process.wait(30)
        self._log.close()

    def is_ready(self) -> bool:
        """Whether it answers queries: it listens before it does, and says 503 until then."""
        assert self.process.poll() is None, "Prometheus has ended: see prometheus.log"
        try:
            with urlopen(f"http://{self.address}/-/ready", timeout=10):
                return True
        except OSError:
            return False

    def ask(self, path: str, **parameters: str) -> Any:
        url = f"http://{self.address}/api/v1/{path}?{urlencode(parameters)}"
        try:
            with urlopen(url, timeout=10) as response:
                document = json.load(response)
        except HTTPError as error:
            raise AssertionError(error.read()) from error
        assert document["status"] == "success", document
        return document["data"]

    def query(self, query: str) -> list[dict[str, Any]]:
        return self.ask("query", query=query)["result"]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path / "cluster") as made:
        made.create(3, pages=True)
        made.start_all()
        made.wait_for_leader()
        yield made


@pytest.fixture
def prometheus(cluster: LocalCluster, tmp_path: Path) -> Iterator[Prometheus]:
    made = Prometheus(tmp_path, list(cluster.pages().values()))
    try:
        until(made.is_ready)
        yield made
    finally:
        made.close()


def test_every_query_answers_and_a_killed_leader_is_an_alert(
    cluster: LocalCluster, prometheus: Prometheus, tmp_path: Path
) -> None:
    stop = threading.Event()

    def load() -> None:
        with Client(list(cluster.endpoints().values()), state_dir=tmp_path / "c") as client:
            client.subscribe("orders")
            while not stop.is_set():
                try:
                    client.publish("orders", b"x" * 100)
                except FlotillaError:
                    continue  # while nobody leads
                stop.wait(0.01)

    loading = threading.Thread(target=load)
    loading.start()
    try:
        until(lambda: len(prometheus.query("up == 1")) == 3)
        until(lambda: prometheus.query("rate(flotilla_put_seconds_count[10s]) > 0"))
        until(lambda: prometheus.query("flotilla_subscription_lag_publications > 0"))
        for query in dashboard_queries():
            asked = query.replace("$__rate_interval", "10s").replace("$__interval", "10s")
            asked = asked.replace("$cluster", "local")
            found = prometheus.query(asked)
            assert found or any(sign in query for sign in MAY_BE_EMPTY), asked
        for query in rule_queries():
            prometheus.query(query)  # raises if it is none

        before = prometheus.query("sum(flotilla_raft_elections_total)")
        cluster.kill(cluster.wait_for_leader())
        cluster.wait_for_leader()
        until(lambda: len(prometheus.query("up == 0")) == 1)
        until(lambda: prometheus.query("flotilla_raft_serving == 1"))
        pending = until(lambda: [
            each["labels"]["alertname"] for each in prometheus.ask("alerts")["alerts"]
            if each["labels"]["alertname"] in ("FlotillaNodeDown", "FlotillaMemberAway")
        ])  # fmt: skip
        assert pending
        assert before
        until(lambda: prometheus.query("rate(flotilla_put_seconds_count[5s]) > 0"))
        health = prometheus.ask("rules")["groups"][0]["rules"]
        assert [rule["name"] for rule in health if rule["health"] != "ok"] == []
    finally:
        stop.set()
        loading.join()
