"""A program that ends with an open producer: all it sent is stored, or it says what is not."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from flotilla_client.protocol import PUT
from flotilla_client.state import State
from tests.unit.fake_node import FakeNode, client_of

ENVIRONMENT = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
SENDS = 3_000
DEADLINE_S = 5.0

_BEGIN = f"""
import asyncio, multiprocessing, os, sys, threading, time
from flotilla_client import AsyncClient, Client
endpoint, state, timeout = sys.argv[1], sys.argv[2] or None, float(sys.argv[3])

def publish(count={SENDS}, topic="t"):
    global client, out
    client = Client(endpoint, state_dir=state, timeout=timeout)
    out = client.producer(topic, batch_bytes=200)
    for number in range(count):
        out.send("%05d" % number)

def publish_soon(count):
    out.close()
    for number in range(count):
        client.publish_soon("t", "%05d" % number)

async def publish_awaiting():
    client = AsyncClient(endpoint, state_dir=state, timeout=timeout)
    out = await client.producer("t", batch_bytes=200)
    for number in range({SENDS}):
        await out.send("%05d" % number)

def publish_from_a_thread():
    publish(1)
    def late():
        time.sleep(0.3)
        for number in range(1, {SENDS}):
            out.send("%05d" % number)
    threading.Thread(target=late).start()

def in_process(method):
    process = multiprocessing.get_context(method).Process(target=publish)
    process.start()
    process.join()
    sys.exit(process.exitcode)
"""

ENDS = {
    "the end of main": ("publish()", 0),
    "sys.exit": ("publish(); sys.exit(7)", 7),
    "an exception": ("publish(); raise SystemExit(5)", 5),
    "a daemon beside it": (
        "threading.Thread(target=time.sleep, args=(60,), daemon=True).start(); publish()",
        0,
    ),
    "a thread that publishes on": ("publish_from_a_thread()", 0),
    "asyncio": ("asyncio.run(publish_awaiting())", 0),
    "a forked process of multiprocessing": ("in_process('fork')", 0),
    "a child of fork": ("pid = os.fork()\nif pid == 0: publish()\nelse: os.waitpid(pid, 0)", 0),
}


def _run(
    node: FakeNode, code: str, state: Path | None, timeout: float = DEADLINE_S
) -> subprocess.CompletedProcess[str]:
    arguments = [node.endpoint, str(state or ""), str(timeout)]
    return subprocess.run(
        [sys.executable, "-c", f"{_BEGIN}\n{code}", *arguments],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def _subscribe(node: FakeNode, *topics: str) -> None:
    with client_of(node) as reader:
        for topic in topics:
            reader.subscribe(topic)


@pytest.mark.parametrize("has_directory", [True, False])
@pytest.mark.parametrize("name", ENDS)
def test_what_was_sent_is_stored_however_the_program_ends(
    name: str, has_directory: bool, node: FakeNode, tmp_path: Path
) -> None:
    _subscribe(node, "t")
    code, exit_code = ENDS[name]
    done = _run(node, code, tmp_path / "state" if has_directory else None)
    assert (done.returncode, done.stderr) == (exit_code, "")
    assert node.cluster.topics["t"] == [b"%05d" % number for number in range(SENDS)]


def test_what_a_dead_cluster_did_not_take_stands_in_the_outbox_and_that_is_said(
    node: FakeNode, tmp_path: Path
) -> None:
    _subscribe(node, "t")
    node.always(PUT, "deaf")
    begun_s = time.monotonic()
    done = _run(node, "publish(500)", tmp_path / "state", timeout=1)
    assert time.monotonic() - begun_s < 20
    assert done.stderr == (
        "flotilla: the process ended with an open producer of t: 500 publications were not stored;"
        f" they stand in the outbox in {tmp_path / 'state'}, for the next process with this"
        " directory\n"
    )
    node.always(PUT, None)
    with client_of(node, tmp_path / "state") as client:
        client.flush()
    assert node.cluster.topics["t"] == [b"%05d" % number for number in range(500)]


def test_what_a_dead_cluster_did_not_take_is_lost_without_a_directory_and_that_is_said(
    node: FakeNode,
) -> None:
    _subscribe(node, "t")
    node.always(PUT, "deaf")
    done = _run(node, "publish(500)", None, timeout=1)
    assert done.stderr == (
        "flotilla: the process ended with an open producer of t: 500 publications were not stored"
        " and are lost\n"
    )


def test_several_producers_end_within_one_deadline(node: FakeNode) -> None:
    _subscribe(node, "t")
    node.always(PUT, "deaf")
    code = (
        "publish(1)\nfor topic in 'uvwxyz': client.producer(topic).send('a')\n"
        "begun = time.monotonic()\n"
        "import atexit; atexit.register(lambda: None)\n"
        "import flotilla_client.producer as p; p._finish_at_exit(); print(time.monotonic() - begun)"
    )
    done = _run(node, code, None, timeout=1.5)
    assert float(done.stdout) < 3
    assert len(done.stderr.splitlines()) == 7


def test_a_producer_whose_errors_were_told_says_nothing_more(node: FakeNode) -> None:
    _subscribe(node, "t")
    node.always(PUT, "deaf")
    code = "publish(1)\nprint(type(out.send('b').exception(10)).__name__)"
    done = _run(node, code, None, timeout=0.5)
    assert (done.stdout, done.stderr) == ("Unavailable\n", "")


def test_ctrl_c_at_the_end_is_obeyed_and_says_what_is_left(node: FakeNode) -> None:
    _subscribe(node, "t")
    node.always(PUT, "deaf")
    code = f"{_BEGIN}\npublish(10)"
    process = subprocess.Popen(
        [sys.executable, "-c", code, node.endpoint, "", "30000"],
        env=ENVIRONMENT,
        stderr=subprocess.PIPE,
    )
    with process:
        node.await_requests(PUT, 1)
        time.sleep(0.5)  # into the wait at the end, or just before: either is right
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=10)
    assert b"10 publications were not stored and are lost" in err


@pytest.mark.parametrize(
    "publish", [f"publish({SENDS})", f"publish(0); publish_soon({SENDS})"], ids=["producer", "soon"]
)
def test_ctrl_c_at_the_end_calls_kept_what_stands_in_the_outbox_and_the_rest_lost(
    publish: str, node: FakeNode, tmp_path: Path
) -> None:
    _subscribe(node, "t")
    node.always(PUT, "deaf")
    code = f"{_BEGIN}\n{publish}\nprint('sent', flush=True)"
    process = subprocess.Popen(
        [sys.executable, "-c", code, node.endpoint, str(tmp_path), "30000"],
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "sent\n"
        time.sleep(0.5)  # into the wait at the end
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=10)
    said = {
        how: int(count)
        for count, how in re.findall(r"([0-9]+) publications were not stored(; they|)", err)
    }
    with closing(State(tmp_path)) as state:
        kept = state.waiting()
    assert (said.get("; they", 0), said.get("", 0)) == (kept, SENDS - kept)


def test_a_closed_producer_says_nothing_at_exit(node: FakeNode, tmp_path: Path) -> None:
    _subscribe(node, "t")
    node.always(PUT, "deaf")
    done = _run(node, "publish(5); client.close()", tmp_path / "state", timeout=0.5)
    assert (done.returncode, done.stderr) == (0, "")


def test_what_nobody_subscribes_to_is_told_at_exit_too(node: FakeNode) -> None:
    done = _run(node, "publish(5)", None)
    assert done.returncode == 0
    assert "UnheardWarning: nobody subscribes to 't'" in done.stderr
