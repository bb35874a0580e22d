"""What the logger `flotilla` tells: fail-overs and retries, each once, and nothing unasked."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from flotilla_client import Client
from flotilla_client.errors import Unavailable
from flotilla_client.protocol import PUT
from tests.unit.fake_node import FakeCluster, FakeNode, client_of, nak


def said(caplog: pytest.LogCaptureFixture, level: int) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == level]


@pytest.fixture(autouse=True)
def everything(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, logger="flotilla")


def test_a_fail_over_is_told_with_both_endpoints_and_the_new_leader(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    cluster = FakeCluster()
    with (
        FakeNode("a", cluster) as first,
        FakeNode("b", cluster) as second,
        Client([first.endpoint, second.endpoint], state_dir=tmp_path) as client,
    ):
        client.subscribe("t")
        assert said(caplog, logging.INFO) == [f"a leads, says {first.endpoint}"]
        first.stop()
        cluster.leader = "b"
        client.publish("t", "x")
    [warning] = said(caplog, logging.WARNING)
    assert warning.startswith(f"{first.endpoint}: ")
    assert warning.endswith(f"; next: {second.endpoint}")
    assert said(caplog, logging.INFO)[1:] == [f"b leads, says {second.endpoint}"]


def test_a_retry_is_told_once_an_operation(
    node: FakeNode, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    with client_of(node, tmp_path) as client:
        client.subscribe("t")
        node.script(PUT, *[nak("electing")] * 3)
        client.publish("t", "x")
    again = f"{node.endpoint}: electing; asking again"
    assert said(caplog, logging.INFO)[1:] == [again]
    assert said(caplog, logging.DEBUG) == [again, again]
    assert said(caplog, logging.WARNING) == []


def test_an_outage_does_not_fill_the_log(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    with FakeNode() as node, client_of(node, tmp_path, timeout=1) as client:
        client.subscribe("t")
        node.stop()
        for _ in range(2):
            with pytest.raises(Unavailable):
                client.publish("t", "x")
    silent, *gave_up = said(caplog, logging.WARNING)
    assert silent.startswith(f"{node.endpoint}: ")
    assert len(gave_up) == 2
    assert all(text.startswith("gave up at the deadline, after ") for text in gave_up)
    assert len(said(caplog, logging.DEBUG)) > 2


def test_without_a_handler_nothing_is_written(node: FakeNode) -> None:
    code = (
        "import sys, flotilla_client\n"
        "client = flotilla_client.Client('127.0.0.1:1', timeout=0.2)\n"
        "try: client.publish('t', 'x')\n"
        "except flotilla_client.Unavailable: client.close()\n"
    )
    environ = os.environ | {"PYTHONPATH": "client"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environ, capture_output=True, check=True
    )
    assert (done.stdout, done.stderr) == (b"", b"")
