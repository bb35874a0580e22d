"""fork() after a client was made: a clear error, or a new client where there is no directory."""

from __future__ import annotations

import asyncio
import gc
import http.client
import json
import multiprocessing
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from flotilla_client import AsyncClient, Client, FlotillaError
from flotilla_client.protocol import PUT, REQUEST_ID
from tests.unit.fake_node import FakeNode, client_of, impatient, texts_of

CHILD_S = 20  # no child needs as long; one that hangs is killed and fails its test
CHILDREN = 4
PUTS = 40
ENVIRONMENT = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}


def _in_child(work: Callable[[], Any]) -> Any:
    """Return what `work` returns in a forked process, as JSON tells it."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        signal.alarm(CHILD_S)
        said = {"error": "none of ours"}
        try:
            said = {"result": work()}
        except FlotillaError as error:
            said = {"error": type(error).__name__, "text": str(error)}
        finally:
            os.write(writing, json.dumps(said).encode())
            gc.collect()
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as file:
        text = file.read()
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0, (status, text)
    return json.loads(text)


CALLS: dict[str, Callable[[Client], Any]] = {
    "open": lambda c: c.open(),
    "subscribe": lambda c: c.subscribe("t"),
    "unsubscribe": lambda c: c.unsubscribe("t"),
    "publish": lambda c: c.publish("t", "a"),
    "publish_many": lambda c: c.publish_many("t", ["a"]),
    "flush": lambda c: c.flush(),
    "next_counter": lambda c: c.next_counter("t"),
    "get": lambda c: c.get("t"),
    "messages": lambda c: next(iter(c.messages("t", idle=0))),
    "acknowledge": lambda c: c.acknowledge("t", 1),
    "topics": lambda c: c.topics(),
    "status": lambda c: c.status(),
    "producer": lambda c: c.producer("t"),
    "publish_soon": lambda c: c.publish_soon("t", "a"),
    "enqueue": lambda c: c.enqueue("t", ["a"]),
    "seek": lambda c: c.seek("t", "earliest"),
    "read": lambda c: c.read("t", 1),
    "read_runs": lambda c: c.read_runs("t", 1),
    "patterns": lambda c: c.patterns(),
    "subscribers": lambda c: c.subscribers("t"),
    "upgrade": lambda c: c.upgrade(),
    "adopt": lambda c: c.adopt(),
    "make_group": lambda c: c.make_group("t", "g"),
    "end_group": lambda c: c.end_group("t", "g"),
    "work": lambda c: next(c.work("t", "g", idle=0)),
    "client_id": lambda c: c.client_id,
}


@pytest.mark.parametrize("name", CALLS)
def test_a_client_with_a_directory_says_in_a_child_where_it_belongs(
    name: str, node: FakeNode
) -> None:
    with client_of(node) as client:
        client.subscribe("t")
        client.publish("t", "before")
        before = len(node.requests)
        said = _in_child(lambda: CALLS[name](client))
        assert said.get("error") == "Forked", said
        assert f"made in process {os.getpid()}" in said["text"]
        assert "after the fork" in said["text"]
        assert len(node.requests) == before
        client.publish("t", "after")
        assert texts_of(client) == [b"before", b"after"]


@pytest.mark.parametrize("name", CALLS)
def test_a_client_with_a_name_says_so_too(name: str, node: FakeNode) -> None:
    with Client(node.endpoint, name="billing") as client:
        client.subscribe("t")
        client.publish("t", "before")
        said = _in_child(lambda: CALLS[name](client))
        assert said.get("error") == "Forked", said
        assert "its name 'billing' belongs to that process" in said["text"]
        assert texts_of(client) == [b"before"]


@pytest.mark.parametrize("name", sorted(CALLS.keys() - {"messages", "client_id", "work"}))
def test_an_async_client_says_the_same(name: str, node: FakeNode) -> None:
    client = AsyncClient(node.endpoint, state_dir=node.new_directory())

    async def call() -> None:
        await CALLS[name](client)  # type: ignore[arg-type]

    said = _in_child(lambda: asyncio.run(call()))
    assert said.get("error") == "Forked", said
    asyncio.run(client.close())


HANDED: dict[str, Callable[[Client], Any]] = {
    "a message": lambda c: next(c.messages("t", ack="manual", idle=0)),
    "a delivery": lambda c: c.get("t", ack="manual"),
}


@pytest.mark.parametrize("name", HANDED)
def test_what_a_child_inherits_in_hand_it_cannot_acknowledge(
    name: str, node: FakeNode, tmp_path: Path
) -> None:
    """Not even while a thread of its parent, which does not follow, was about to."""
    record = tmp_path / "record"
    directory = node.new_directory()
    with client_of(node, directory, record=record) as client:
        client.subscribe("t")
        client.publish("t", "a")
        handed = HANDED[name](client)
        with held(client._readers._lock):
            before = _bytes_below(directory), _bytes_below(record)
            said = _in_child(handed.ack)
            assert said["error"] == "Forked"
            assert "what it was handed is acknowledged there" in said["text"]
            assert (_bytes_below(directory), _bytes_below(record)) == before
        handed.ack()
    with client_of(node, directory) as again:
        assert texts_of(again) == []


@contextmanager
def held(lock: Any) -> Iterator[None]:
    """Have another thread hold a lock."""
    is_held, is_over = threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            is_held.set()
            is_over.wait(CHILD_S)

    holder = threading.Thread(target=hold)
    holder.start()
    try:
        assert is_held.wait(CHILD_S)
        yield
    finally:
        is_over.set()
        holder.join()


def _bytes_below(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def _given(node: FakeNode, client: Client, texts: str) -> Any:
    """Return a loop over work that has taken what there is, and handed over the first of it."""
    with client_of(node) as publisher:
        publisher.subscribe("t")
        publisher.publish_many("t", list(texts))
    items = client.work("t", "g")
    assert next(items).publication == b"a"
    return items


LEASED: dict[str, Callable[[Any, Any], Any]] = {
    "next": lambda items, item: next(items).id,
    "ack": lambda items, item: item.ack(),
    "nak": lambda items, item: item.nak(),
    "extend": lambda items, item: item.extend(),
}


@pytest.mark.parametrize("name", LEASED)
@pytest.mark.parametrize("has_directory", [True, False])
def test_the_work_that_a_child_inherits_is_its_parents(
    has_directory: bool, name: str, node: FakeNode
) -> None:
    directory = node.new_directory() if has_directory else None
    with Client(node.endpoint, state_dir=directory) as client:
        items = _given(node, client, "abc")
        item = items._loop._item
        with held(items._loop.book.lock):
            said = _in_child(lambda: LEASED[name](items, item))
            assert said["error"] == "Forked"
            assert "made in process" in said["text"]
        assert [next(items).publication for _ in range(2)] == [b"b", b"c"]


def test_a_child_that_leaves_the_loop_over_work_that_it_inherits_gives_nothing_back(
    node: FakeNode,
) -> None:
    with Client(node.endpoint) as client:
        items = _given(node, client, "abc")
        with held(items._loop.book.lock):
            before = len(node.requests)
            assert _in_child(items.close) == {"result": None}
            assert len(node.requests) == before
        assert next(items).publication == b"b"


def test_without_a_directory_a_child_works_for_a_group_by_itself(node: FakeNode) -> None:
    with Client(node.endpoint) as client:
        items = _given(node, client, "abc")
        node.cluster.topics["t"].append(b"d")
        said = _in_child(lambda: [next(client.work("t", "g")).id, client.client_id])
        assert said["result"][0] == 4
        assert said["result"][1] != client.client_id
        assert next(items).publication == b"b"


@pytest.mark.parametrize("directory", [True, False])
def test_a_future_whose_answer_had_not_come_says_so_in_a_child(
    node: FakeNode, tmp_path: Path, directory: bool
) -> None:
    state_dir = tmp_path if directory else None
    with client_of(node) as reader, Client(node.endpoint, state_dir=state_dir) as client:
        reader.subscribe("t")
        called: list[object] = []
        with client.producer("t", linger_ms=0) as out:
            done = out.send("a")
            assert done.result(5).id == 1
            node.script(PUT, "late")
            pending = out.send("b")
            pending.add_done_callback(called.append)
            node.await_requests(PUT, 2)

            def ask() -> list[object]:
                error = pending.exception()
                return [done.result(5).id, type(error).__name__, called]

            assert _in_child(ask)["result"] == [1, "Forked", []]
            said = _in_child(lambda: pending.result())
            assert said["error"] == "Forked"
            assert "the answer to a publication comes to that process" in said["text"]
            assert out.send("c").result(5).id == 3
            assert pending.result(5).id == 2


def test_what_was_published_soon_and_had_no_answer_says_so_in_a_child(node: FakeNode) -> None:
    with client_of(node) as reader, Client(node.endpoint) as client:
        reader.subscribe("t")
        done = client.publish_soon("t", "a")
        assert done.result(5).id == 1
        node.script(PUT, "late")
        pending = client.publish_soon("t", "b")
        node.await_requests(PUT, 2)

        assert _in_child(lambda: done.result(5).id)["result"] == 1
        assert _in_child(lambda: type(pending.exception()).__name__)["result"] == "Forked"
        assert _in_child(lambda: pending.result())["error"] == "Forked"
        assert pending.result(5).id == 2


def test_a_producer_says_so_and_its_parents_goes_on(node: FakeNode) -> None:
    with client_of(node) as client:
        client.subscribe("t")
        with client.producer("t") as out:
            out.send("a").result(5)
            for work in (lambda: out.send("b"), out.flush):
                assert _in_child(work)["error"] == "Forked"
            assert _in_child(out.close) == {"result": None}
            assert out.send("c").result(5).id == 2
    assert node.cluster.topics["t"] == [b"a", b"c"]


def test_a_child_that_closes_and_collects_what_it_inherited_harms_nobody(node: FakeNode) -> None:
    directory = node.new_directory()
    client = client_of(node, directory)
    client.subscribe("t")
    box = [client]

    def forget() -> None:
        with box[0]:
            pass
        box.clear()

    for number in range(3):
        box = [client]
        assert _in_child(forget) == {"result": None}
        client.publish("t", str(number))
    client.close()
    with client_of(node, directory) as again:
        assert texts_of(again) == [b"0", b"1", b"2"]


def test_a_directory_is_free_when_its_owner_has_died_though_children_live(
    node: FakeNode, tmp_path: Path
) -> None:
    code = (
        "import os, sys, time; from flotilla_client import Client\n"
        "client = Client(sys.argv[1], state_dir=sys.argv[2]); client.open()\n"
        "if os.fork() == 0:\n"
        "    os.write(1, b'child\\n'); time.sleep(60); os._exit(0)\n"
        "os.write(1, b'parent\\n'); time.sleep(60)\n"
    )
    owner = subprocess.Popen(
        [sys.executable, "-c", code, node.endpoint, tmp_path],
        stdout=subprocess.PIPE,
        env=ENVIRONMENT,
        start_new_session=True,
    )
    with owner:
        assert owner.stdout is not None
        try:
            assert {owner.stdout.readline(), owner.stdout.readline()} == {b"child\n", b"parent\n"}
            owner.kill()
            owner.wait(10)
            with client_of(node, tmp_path) as client:
                client.open()
        finally:
            os.killpg(owner.pid, signal.SIGKILL)


def _publish(client: Client, number: int) -> list[int]:
    return [client.publish("t", f"{number}.{turn}").id for turn in range(PUTS)]


def test_without_a_directory_each_child_is_a_client_of_its_own(node: FakeNode) -> None:
    with client_of(node) as reader, Client(node.endpoint) as client:
        reader.subscribe("t")
        client.publish("t", "parent")
        mine = client.client_id
        said = _in_child(
            lambda: [client.client_id, client.publish("t", "child").id, client.client_id]
        )
        before, id_, after = said["result"]
        assert (before, id_) == ("", 2)
        assert after not in ("", mine)
        assert client.publish("t", "parent again").id == 3
        assert client.client_id == mine


def test_what_a_parent_has_not_sent_its_child_does_not_send(node: FakeNode) -> None:
    with client_of(node) as reader, Client(node.endpoint) as client:
        reader.subscribe("t")
        client.open()
        node.always(PUT, "deaf")
        with impatient(client), pytest.raises(FlotillaError):
            client.publish("t", "parent")
        out = client.producer("u", linger_ms=60_000)
        out.send("queued")
        node.always(PUT, None)
        said = _in_child(lambda: [client.flush(), client.publish("t", "child").id])
        assert said == {"result": [None, 1]}
        client.flush()
        assert node.cluster.topics["t"] == [b"child", b"parent"]
        assert [put.topic for put in node.of_type(PUT) if put.topic == "u"] == []
        with pytest.warns(UserWarning, match="'u'"):
            out.close()


def test_children_of_a_busy_client_publish_each_once(node: FakeNode) -> None:
    """Fork again and again while threads are inside of all that a client has."""
    with client_of(node) as mine, Client(node.endpoint, timeout=10) as client:
        mine.subscribe("t")
        is_over = threading.Event()

        def work() -> None:
            while not is_over.wait(0.001):  # most forks meet somebody inside all the same
                client.publish("t", "x")
                mine.publish("t", "y")

        threads = [threading.Thread(target=work) for _ in range(3)]
        mine.subscribe("p")
        with mine.producer("p", linger_ms=0) as out:
            for thread in threads:
                thread.start()
            try:
                for number in range(CHILDREN):
                    out.send("z")
                    begun_s = time.monotonic()
                    said = _in_child(lambda: _publish(client, number))  # noqa: B023
                    assert len(said["result"]) == PUTS, said
                    assert _in_child(lambda: mine.publish("t", "a"))["error"] == "Forked"
                    assert time.monotonic() - begun_s < CHILD_S
            finally:
                is_over.set()
                for thread in threads:
                    thread.join(10)
    stored = [text for text in node.cluster.topics["t"] if b"." in text]
    expected = [b"%d.%d" % (number, turn) for number in range(CHILDREN) for turn in range(PUTS)]
    assert stored == expected


def test_a_thread_that_waits_holds_no_childs_turn(node: FakeNode) -> None:
    with client_of(node) as reader, Client(node.endpoint) as client:
        reader.subscribe("t")
        node.always(PUT, "deaf")

        def hold() -> None:
            with pytest.raises(FlotillaError):
                client.publish("t", "a")

        held = threading.Thread(target=hold)
        client._session.deadline_ms = 3_000
        held.start()
        node.await_requests(PUT, 1)
        said = _in_child(lambda: client.status()["node"])
        assert said == {"result": "a"}
        held.join(10)


# --- multiprocessing, and servers that fork -----------------------------------------------------

_shared: Any = None


def _pooled(number: int) -> tuple[str, str]:
    try:
        return "id", _shared.publish("t", f"{number}").id and _shared.client_id
    except FlotillaError as error:
        return type(error).__name__, str(error)


@pytest.mark.parametrize("has_directory", [True, False])
def test_a_pool_of_forked_processes(has_directory: bool, node: FakeNode) -> None:
    global _shared
    directory = node.new_directory() if has_directory else None
    with client_of(node) as reader, Client(node.endpoint, state_dir=directory) as client:
        reader.subscribe("t")
        client.publish("t", "parent")
        _shared = client
        with multiprocessing.get_context("fork").Pool(2) as pool:
            said = pool.map_async(_pooled, range(8), chunksize=1).get(CHILD_S)
        _shared = None
        assert client.publish("t", "parent again").stored
    if has_directory:
        assert {kind for kind, _ in said} == {"Forked"}
        assert len(node.cluster.topics["t"]) == 2
    else:
        assert {kind for kind, _ in said} == {"id"}
        assert client.client_id not in {who for _, who in said}
        assert len(node.cluster.topics["t"]) == 10


@pytest.mark.parametrize("kind", [Client, AsyncClient])
def test_a_client_cannot_be_pickled_for_another_process(kind: type, node: FakeNode) -> None:
    client = kind(node.endpoint)
    with pytest.raises(TypeError, match="make one there"):
        pickle.dumps(client)
    closing = client.close()
    if closing is not None:
        asyncio.run(closing)


_SERVER = """
import os, signal, sys
from flotilla_client import Client, FlotillaError
client = Client(sys.argv[1], state_dir=sys.argv[2] or None, timeout=5)  # at import
client.publish("t", "master")
children = []
for number in range(3):
    pid = os.fork()
    if pid == 0:
        try:
            for turn in range(10):
                client.publish("t", f"{number}.{turn}")
            with client.producer("t") as out:
                out.send(f"{number}.last")
            os.write(1, b"served\\n")
        except FlotillaError as error:
            os.write(1, error.code.encode() + b"\\n")
        sys.exit(0)
    children.append(pid)
for pid in children:
    assert os.waitpid(pid, 0)[1] == 0
client.publish("t", "master again")
client.close()
"""


@pytest.mark.parametrize("has_directory", [True, False])
def test_a_server_that_loads_its_application_and_then_forks_its_workers(
    has_directory: bool, node: FakeNode, tmp_path: Path
) -> None:
    """As gunicorn does with `--preload`."""
    with client_of(node) as reader:
        reader.subscribe("t")
        arguments = [node.endpoint, str(tmp_path / "state") if has_directory else ""]
        done = subprocess.run(
            [sys.executable, "-c", _SERVER, *arguments],
            env=ENVIRONMENT,
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        texts = texts_of(reader)
    assert done.stderr == ""
    assert done.stdout.split() == [("forked" if has_directory else "served")] * 3
    assert len(texts) == len(set(texts)) == (2 if has_directory else 2 + 3 * 11)
    ids = {request.client_id for request in node.of_type(PUT)}
    assert len(ids) == (1 if has_directory else 4)
    assert len(node.of_type(REQUEST_ID)) == 1 + len(ids)


_APPLICATION = """
import os
from flotilla_client import Client, FlotillaError
client = Client(os.environ["ENDPOINT"], state_dir=os.environ["STATE"] or None, timeout=5)
client.publish("t", "master")

def application(environ, start_response):
    try:
        client.publish("t", environ["PATH_INFO"])
        said = "stored"
    except FlotillaError as error:
        said = error.code
    start_response("200 OK", [])
    return [said.encode()]
"""


@pytest.mark.parametrize("has_directory", [True, False])
def test_a_client_that_gunicorn_preloads(
    has_directory: bool, node: FakeNode, tmp_path: Path
) -> None:
    (tmp_path / "app.py").write_text(_APPLICATION)
    settings = {"ENDPOINT": node.endpoint, "STATE": str(tmp_path / "state") * has_directory}
    with client_of(node) as reader, socket.create_server(("127.0.0.1", 0)) as listener:
        reader.subscribe("t")
        handed = f"fd://{listener.fileno()}"
        gunicorn = (sys.executable, "-m", "gunicorn", "--preload", "--workers", "2")
        with subprocess.Popen(
            [*gunicorn, "--bind", handed, "--chdir", str(tmp_path), "app:application"],
            env=ENVIRONMENT | settings,
            pass_fds=[listener.fileno()],
            stderr=subprocess.PIPE,
            text=True,
        ) as server:
            try:
                said = [_page(listener.getsockname()[1], f"/{number}") for number in range(10)]
            finally:
                server.terminate()
                _, log = server.communicate(timeout=CHILD_S)
        texts = texts_of(reader)
    assert said == ["forked" if has_directory else "stored"] * 10, log
    stored = [] if has_directory else [b"/%d" % number for number in range(10)]
    assert sorted(texts) == sorted([b"master", *stored])
    assert "Traceback" not in log


def _page(port: int, path: str) -> str:
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=CHILD_S)) as connection:
        connection.request("GET", path)
        return connection.getresponse().read().decode()
