"""A real cluster over HTTP: what it shows while nodes die, and whom it refuses at its start."""

from __future__ import annotations

import contextlib
import http.client
import json
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

import pytest
from prometheus_client.parser import text_string_to_metric_families

from cluster.keys.authority import Authority
from cluster.keys.directory import AUTHORITIES, CERTIFICATE
from cluster.local.local import LocalCluster
from flotilla_client import Admin, Client
from flotilla_client.errors import NotUpgraded
from tests.waiting import until

WAIT_S = 30.0


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    """Return three running nodes with pages, and a leader."""
    with LocalCluster(tmp_path / "cluster") as made:
        made.create(3, pages=True)
        made.start_all()
        made.wait_for_leader()
        yield made


def fetch(page: str, path: str, **headers: str) -> tuple[int, bytes]:
    """Return (status, body); status 0 where nobody answers."""
    try:
        with urlopen(Request(page + path, headers=headers), timeout=5) as response:
            return response.status, response.read()
    except HTTPError as error:
        return error.code, error.read()
    except (OSError, http.client.HTTPException):
        return 0, b""


def metrics_of(page: str) -> dict[tuple[str, ...], float]:
    status, body = fetch(page, "/metrics")
    assert status == 200, body
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(body.decode())
        for sample in family.samples
    }


@pytest.mark.slow
def test_numbers_grow_with_what_clients_do(cluster: LocalCluster, tmp_path: Path) -> None:
    leader = cluster.wait_for_leader()
    page = cluster.pages()[leader]
    with Client(list(cluster.endpoints().values()), state_dir=tmp_path / "client") as client:
        client.subscribe("orders")
        for number in range(20):
            client.publish("orders", b"%d" % number)
        assert client.get("orders") is not None

    def is_there() -> dict[tuple[str, ...], float] | None:
        found = metrics_of(page)
        return found if found.get(("flotilla_topic_publications_total", "orders")) else None

    found = until(is_there)
    assert found["flotilla_put_seconds_count",] == 20
    assert found["flotilla_publications_stored_total",] == 20
    assert found["flotilla_publications_delivered_total",] >= 1
    assert found["flotilla_journal_fsync_seconds_count",] >= 20
    assert found["flotilla_journal_fsync_seconds_sum",] > 0
    assert found["flotilla_requests_total", "PUT"] >= 20
    assert found["flotilla_raft_role", "leader"] == 1
    assert found["flotilla_topic_subscribers", "orders"] == 1
    assert 19 <= found["flotilla_topic_backlog_publications", "orders"] <= 20
    follower = next(name for name in cluster.pages() if name != leader)
    theirs = until(lambda: metrics_of(cluster.pages()[follower]))
    assert theirs["flotilla_publications_stored_total",] == 20
    assert not [key for key in theirs if key[0].startswith("flotilla_topic_")]


def test_a_refusal_is_counted_by_its_code(cluster: LocalCluster) -> None:
    page = cluster.pages()[cluster.wait_for_leader()]
    endpoint = cluster.endpoints()[cluster.wait_for_leader()]
    with Client([endpoint]) as client, pytest.raises(NotUpgraded):
        client.upgrade(200)
    until(lambda: metrics_of(page).get(("flotilla_refused_total", "not_upgraded")))


def test_a_killed_leader_is_seen_and_a_lone_node_is_alive_but_not_ready(
    cluster: LocalCluster,
) -> None:
    pages = cluster.pages()
    for page in pages.values():
        until(lambda page=page: fetch(page, "/readyz")[0] == 200)
    status = until(lambda: _with_all_pages(pages["n1"], 2))
    assert {status["http"], *status["pages"].values()} == set(pages.values())

    first = cluster.wait_for_leader()
    cluster.kill(first)
    assert fetch(pages[first], "/healthz")[0] == 0
    second = cluster.wait_for_leader()
    until(lambda: fetch(pages[second], "/readyz")[0] == 200)
    until(lambda: metrics_of(pages[second])["flotilla_peer_connected", first] == 0)
    until(lambda: metrics_of(pages[second])["flotilla_raft_elections_total",] == 1)

    cluster.kill(second)
    [last] = cluster.pids()
    assert until(lambda: fetch(pages[last], "/readyz") == (503, b"no leader is known\n"))
    assert fetch(pages[last], "/healthz") == (200, b"ok\n")
    until(lambda: metrics_of(pages[last])["flotilla_raft_leaderless_seconds_total",] > 0)


def _with_all_pages(page: str, others: int) -> dict[str, Any] | None:
    status: dict[str, Any] = json.loads(fetch(page, "/status.json")[1])["status"]
    return status if len(status["pages"]) == others else None


def test_a_frozen_loop_can_not_call_itself_well(cluster: LocalCluster) -> None:
    cluster.kill("n1", "STOP")
    try:
        until(lambda: fetch(cluster.pages()["n1"], "/healthz")[0] == 0)  # the signal is on its way
    finally:
        cluster.kill("n1", "CONT")
    until(lambda: fetch(cluster.pages()["n1"], "/healthz")[0] == 200)


def test_a_leader_that_stops_lets_nobody_wait_for_its_page(cluster: LocalCluster) -> None:
    leader = cluster.wait_for_leader()
    with urlopen(cluster.pages()[leader] + "/events", timeout=5) as events:
        assert events.readline().startswith(b"data: ")
        cluster.kill(leader, "TERM")
        assert cluster.exit_codes[leader] == 0
        with contextlib.suppress(http.client.IncompleteRead):
            events.read()


def started(directory: Path, **settings: str) -> subprocess.CompletedProcess[str]:
    """Start a node that refuses its settings."""
    environ = {
        "FLOTILLA_CLUSTER_ID": "c",
        "FLOTILLA_NODE": "n1",
        "FLOTILLA_DATA_DIR": str(directory / "data"),
        "FLOTILLA_CLIENT_LISTEN": "127.0.0.1:1",
        "FLOTILLA_PEER_LISTEN": "127.0.0.1:2",
        "FLOTILLA_MEMBERS": "n1=127.0.0.1:2",
        **settings,
    }
    return subprocess.run(
        [sys.executable, "-m", "cluster"],
        env={"PYTHONPATH": ":".join(sys.path), **environ},
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )


def test_another_address_than_loopback_needs_a_token(tmp_path: Path) -> None:
    ended = started(tmp_path, FLOTILLA_HTTP_LISTEN="0.0.0.0:7201")

    assert ended.returncode == 78
    assert "http_listen: 0.0.0.0:7201 is not this machine's alone" in ended.stderr
    assert "give http_token_file as well" in ended.stderr


def test_the_token_of_the_file_opens_the_metrics_and_stands_in_no_log(tmp_path: Path) -> None:
    token = "correct-horse-battery-staple"
    (tmp_path / "token").write_text(f"{token}\n")
    with LocalCluster(tmp_path / "cluster") as made:
        made.create(1, pages=True, settings={"http_token_file": str(tmp_path / "token")})
        made.start_all()
        made.wait_for_leader()
        page = made.pages()["n1"]
        assert until(lambda: fetch(page, "/readyz")[0] == 200)
        assert fetch(page, "/metrics")[0] == 401
        assert fetch(page, "/metrics", Authorization=f"Bearer {token}")[0] == 200
        log = made.log_file("n1").read_text()
    assert token not in log


def test_publications_are_looked_at_as_the_user_that_the_node_names(tmp_path: Path) -> None:
    with LocalCluster(tmp_path / "cluster") as made:
        made.create(1, pages=True, keys=True, settings={"http_reads_as": "board"})
        made.start_all()
        made.wait_for_leader()
        made.begin_at_newest_level()
        page, endpoints = made.pages()["n1"], list(made.endpoints().values())
        with Client(endpoints, state_dir=tmp_path / "client", key=made.key) as client:
            client.subscribe("orders")
            client.publish("orders", b"hello")
            status, body = fetch(page, "/publications.json?topic=orders")
            assert status == 200, body
            [row] = json.loads(body)["rows"]
            assert (row["id"], row["text"]) == (1, "hello")
            assert client.get("orders") is not None, "it was looked at, and is unread"
        with Admin(endpoints, key=made.admin_key) as admin:
            admin.add_user("board", observe=True)
        assert until(lambda: fetch(page, "/publications.json?topic=orders")[0] == 403)


def test_with_a_certificate_nothing_is_said_in_the_clear(tmp_path: Path) -> None:
    keys = Authority.create(tmp_path / "keys", "c")
    certificate = keys.node("n1") / CERTIFICATE
    with LocalCluster(tmp_path / "cluster") as made:
        settings = {"http_certificate_file": str(certificate)}
        made.create(1, pages=True, settings=settings)
        made.start_all()
        made.wait_for_leader()
        page = made.pages()["n1"]
        assert page.startswith("https://127.0.0.1:")
        context = ssl.create_default_context(cafile=str(certificate.with_name(AUTHORITIES)))
        context.check_hostname = False  # this one is of nodes, and names no address

        def secure() -> int:
            try:
                with urlopen(page + "/metrics", timeout=5, context=context) as response:
                    assert response.read()
                    return int(response.status)
            except URLError:
                return 0

        assert until(lambda: secure() == 200)
        assert fetch(page.replace("https", "http"), "/healthz")[0] == 0
        with socket.create_connection(("127.0.0.1", int(page.rpartition(":")[2]))) as silent:
            assert secure() == 200, "somebody who does not shake hands keeps nobody waiting"
            silent.settimeout(WAIT_S)
            assert silent.recv(1) == b"", "and is cut off"


@pytest.mark.parametrize("content", [None, "no certificate"])
def test_a_certificate_that_is_none_ends_the_start(tmp_path: Path, content: str | None) -> None:
    file = tmp_path / "http.pem"
    if content is not None:
        file.write_text(content)

    ended = started(
        tmp_path,
        FLOTILLA_CLIENT_LISTEN=f"127.0.0.1:{free_port()}",
        FLOTILLA_PEER_LISTEN=f"127.0.0.1:{free_port()}",
        FLOTILLA_HTTP_LISTEN=f"127.0.0.1:{free_port()}",
        FLOTILLA_HTTP_CERTIFICATE_FILE=str(file),
    )

    assert ended.returncode == 78, ended.stderr
    assert f"http_certificate_file: {file}" in ended.stderr


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port


def test_a_page_s_port_that_is_taken_ends_the_start(cluster: LocalCluster) -> None:
    address = cluster.pages()["n1"].removeprefix("http://")
    file = cluster.directory / "n2" / "node.toml"
    cluster.kill("n2")
    mine = cluster.pages()["n2"].removeprefix("http://")
    file.write_text(file.read_text().replace(mine, address))

    cluster.start("n2")

    until(lambda: "n2" not in cluster.pids())
    assert cluster.exit_codes["n2"] == 78
    assert f"http_listen: {address} is taken" in cluster.log_file("n2").read_text()


@pytest.mark.slow
def test_signals_still_end_a_node_whose_page_is_asked_all_the_time(cluster: LocalCluster) -> None:
    page = cluster.pages()["n1"]
    for _ in range(20):
        assert fetch(page, "/metrics")[0] == 200
    cluster.kill("n1", signal.Signals.SIGTERM.name.removeprefix("SIG"))
    assert cluster.exit_codes["n1"] == 0
