"""What an application's clients record with `record=DIR`, also when disks and processes give up."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import itertools
import json
import os
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Any

import pytest

from flotilla_client import (
    AsyncClient,
    Client,
    ClusterRecovered,
    Publication,
    Purged,
    RecordError,
    Unavailable,
    cli,
    recording,
)
from flotilla_client.observer import Operation, Outcome
from flotilla_client.pipeline import Pipeline
from flotilla_client.protocol import GET, PUT
from flotilla_client.recording import Recorder, Recording, digests, read
from flotilla_client.state import State
from tests.unit.fake_node import FakeNode, client_of, nak

Row = dict[str, Any]
DIGEST_OF_A = "40f89e395b66422f"
SLACK_BYTES = 60  # a line's numbers may have grown by some digits
ENVIRONMENT = os.environ | {"PYTHONPATH": "client"}


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "record"


@pytest.fixture
def client(node: FakeNode, directory: Path) -> Iterator[Client]:
    state = node.new_directory()
    with Client(node.endpoint, state_dir=state, timeout=3, record=directory) as client:
        yield client


@pytest.fixture
def publisher(node: FakeNode, directory: Path) -> Iterator[Client]:
    """A client whose state no limit on files reaches; somebody else subscribes to `t`."""
    with Client(node.endpoint, timeout=3, record=directory) as client:
        client.open()
        with client_of(node) as reader:
            reader.subscribe("t")
        yield client


def _file(directory: Path) -> Path:
    [path] = (directory / "history").glob("*.jsonl")
    return path


def _rows(directory: Path) -> list[Row]:
    """Return all rows; every line has to be whole."""
    return [json.loads(line) for line in _file(directory).read_bytes().splitlines()]


def _about(directory: Path) -> Row:
    about: Row = json.loads((directory / "run.json").read_bytes())
    return about


def _is_counted(rows: list[Row]) -> bool:
    """Return whether what begins is numbered 1, 2, 3, … in the order of lines."""
    invokes = {row["op_id"] for row in rows if row["type"] == "invoke"}
    begins = [
        row["op_id"] for row in rows if row["type"] == "invoke" or row["op_id"] not in invokes
    ]
    return begins == list(range(1, len(begins) + 1))


def _kinds(rows: list[Row]) -> list[tuple[str, str]]:
    return [(row["f"], row["type"]) for row in rows]


@contextmanager
def _disk_with(bytes_left: int, path: Path) -> Iterator[None]:
    """Let `path` grow by `bytes_left` at most, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + bytes_left, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)


def _room_for_an_invoke(directory: Path, f: str) -> int:
    """Return so many bytes that the invoke of such an operation fits and its end does not."""
    lines = _file(directory).read_bytes().splitlines()
    [line] = [line for line in lines if (b'"f":"%s"' % f.encode()) in line and b'"invoke"' in line]
    return len(line) + SLACK_BYTES


# --- rows ---------------------------------------------------------------------------------------


def test_a_put_and_a_get_are_recorded_with_equal_digests_of_equal_contents(
    client: Client, directory: Path
) -> None:
    client.subscribe("t")
    client.publish_many("t", ["a", "b"])
    client.get("t", max_count=2)
    rows = _rows(directory)
    *operations, handed = rows
    functions = ("sub", "put", "get")
    assert _kinds(operations) == [(f, kind) for f in functions for kind in ("invoke", "ok")]
    _, subscribed, put, stored, asked, got = operations
    assert (subscribed["last_id"], subscribed["resumed"], subscribed["cursor"]) == (0, False, 0)
    assert (put["counter"], put["count"], put["client_id"]) == (1, 2, client.client_id)
    assert (stored["first_id"], stored["last_id"], stored["duplicate"]) == (1, 2, False)
    assert (stored["node"], stored["term"], stored["attempt"]) == ("a", 1, 1)
    assert (asked["last_id"], got["first_id"], got["last_id"], got["count"]) == (0, 1, 2, 2)
    assert put["digests"] == got["digests"] == digests([b"a", b"b"])
    assert "digests" not in stored
    assert (handed["f"], handed["first_id"], handed["last_id"], handed["cursor"]) == (
        "hand",
        1,
        2,
        0,
    )


def test_what_the_application_acknowledges_is_recorded_and_what_it_is_handed_again(
    client: Client, directory: Path
) -> None:
    client.subscribe("t")
    client.publish_many("t", ["a", "b", "c"])
    with client.messages("t", idle=0) as messages:
        assert (next(messages).id, next(messages).id) == (1, 2)
    for message in client.messages("t"):
        assert message.id == 3
        break
    assert [message.redelivered for message in client.messages("t", idle=0)] == [True]
    client.publish("t", "d")
    assert client.get("t", ack="at-most-once") is not None
    names = ("f", "first_id", "last_id", "cursor", "redelivered")
    rows = [tuple(row.get(name) for name in names) for row in _rows(directory)]
    assert [row for row in rows if row[0] in ("hand", "ack", "release")] == [
        ("hand", 1, 1, 0, None),
        ("ack", None, 1, 0, None),
        ("hand", 2, 2, 1, None),
        ("ack", None, 2, 1, None),
        ("hand", 3, 3, 2, None),
        ("release", 3, 3, 2, None),
        ("hand", 3, 3, 2, 1),
        ("ack", None, 3, 2, None),
        ("ack", 4, 4, 3, None),
        ("hand", 4, 4, 4, None),
    ]


def test_a_digest_is_16_hex_digits_of_blake2b_for_good() -> None:
    assert digests([b"a"]) == DIGEST_OF_A
    assert digests([b"a", b"", b"a"]) == DIGEST_OF_A + digests([b""]) + DIGEST_OF_A


def test_all_rows_of_a_process_name_run_process_host_and_session(
    client: Client, directory: Path
) -> None:
    client.subscribe("t")
    about = json.loads((directory / "run.json").read_bytes())
    for row in _rows(directory):
        assert (row["run_id"], row["session"]) == (about["run_id"], 1)
        assert row["process"] == _file(directory).stem
        assert row["host"] == recording.this_host()
    assert about["recorded_by"] == "application"


def test_a_definite_error_is_recorded_as_fail(
    client: Client, directory: Path, node: FakeNode
) -> None:
    node.script(PUT, nak("too_large"))
    with pytest.raises(Exception, match="too_large"):
        client.publish("t", "x")
    [_, end] = _rows(directory)
    assert (end["type"], end["error"]) == ("fail", "too_large")


def test_who_is_told_of_a_purge_at_its_second_attempt_has_its_answer(
    client: Client, node: FakeNode, directory: Path
) -> None:
    client.subscribe("t")
    gone = nak("purged", definite=False, topic="t", first_id=1, last_id=3)
    node.script(GET, gone)
    with pytest.raises(Purged):
        client.get("t")
    told = [row for row in _rows(directory) if row["f"] == "get"][-1]
    assert (told["type"], told["error"]) == ("fail", "purged")
    assert (told["topic"], told["first_id"], told["last_id"]) == ("t", 1, 3)


def test_who_goes_on_behind_what_has_expired_has_that_answer_on_record(
    client: Client, node: FakeNode, directory: Path
) -> None:
    client.subscribe("t")
    client.publish_many("t", ["a", "b", "c"])
    node.script(GET, nak("expired", topic="t", first_id=1, last_id=2))
    assert client.get("t") is not None
    told, given = (row for row in _rows(directory) if row["f"] == "get" and row["type"] != "invoke")
    assert (told["type"], told["error"], told["topic"]) == ("fail", "expired", "t")
    assert (told["first_id"], told["last_id"]) == (1, 2)
    assert (given["type"], given["first_id"]) == ("ok", 3)


def test_what_was_asked_beside_another_operation_began_with_it(tmp_path: Path) -> None:
    times = itertools.count(100, 10)
    with Recorder(tmp_path, "p", "run", monotonic_ns=lambda: next(times)) as recorder:
        first = recorder.invoke("get", "t", last_id=3)
        second = recorder.invoke("get", "t", beside=first)
        recorder.complete(first, "fail", error="expired", first_id=4, last_id=8)
        recorder.complete(second, "ok", first_id=9, count=0)
    rows = [json.loads(line) for line in (tmp_path / "p.jsonl").read_text().splitlines()]
    assert [(row["op_id"], row["t_ns"]) for row in rows] == [(1, 100), (2, 100), (1, 120), (2, 130)]
    assert [row.get("invoke_ns") for row in rows] == [None, None, 100, 100]
    assert rows[1]["wall_ns"] <= rows[2]["wall_ns"]
    assert "beside" not in rows[1]


def test_what_was_sent_beside_another_operation_is_not_said_not_to_have_been(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(recorder: Recorder, line: bytes) -> None:
        raise OSError(errno.ENOSPC, "no space", str(recorder.path))

    own = Recording(directory)
    first = Operation(1, "c", "get", "t", last_id=3)
    own.on_invoke(first)
    monkeypatch.setattr(Recorder, "_write_bytes", full)
    for operation, definite in (
        (replace(first, number=2), True),
        (replace(first, number=3, beside=1), False),
    ):
        with pytest.raises(RecordError) as caught:
            own.on_invoke(operation)
        assert caught.value.definite is definite
    own.close()


def test_a_producer_that_outlives_its_client_ends_as_where_the_disk_fails(
    directory: Path, node: FakeNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed, abandon = threading.Event(), Pipeline.abandon

    def late(pipeline: Pipeline) -> None:
        assert closed.wait(10)
        abandon(pipeline)

    monkeypatch.setattr(Pipeline, "abandon", late)
    client = client_of(node, timeout=0.4, record=directory, state_dir=tmp_path / "state")
    client.subscribe("t")
    node.script(PUT, *["deaf"] * 20)
    future = client.producer("t", linger_ms=0).send(b"x")
    node.await_requests(PUT, 1)
    client.close()
    closed.set()
    error = future.exception(timeout=5)
    assert isinstance(error, Unavailable | RecordError), "a defect ends its thread with a traceback"
    assert not error.definite


def test_a_put_says_what_expires_under_which_counters_and_ids(
    client: Client, directory: Path
) -> None:
    client.subscribe("t")
    client.publish("t", "before")
    brief = [Publication(text, key="k", expires=2) for text in "ab"]
    client.publish_many("t", [*brief, "stays", Publication("c", expires=0.5)])
    begun, ended = (row for row in _rows(directory) if row["f"] == "put" and row["count"] == 4)
    first = begun["counter"]
    assert begun["expires"] == [[first, first + 1, 2_000], [first + 3, first + 3, 500]]
    assert ended["expires"] == [[2, 3, 2_000], [5, 5, 500]]
    assert ended["marked"] == [2, 3]  # an expiry alone is no property that all readers are sent


def test_a_put_with_a_delay_says_when_what_is_due(client: Client, directory: Path) -> None:
    client.subscribe("t")
    client.publish("t", "at once", expires=9)
    slow = [Publication(text, deliver_after=2) for text in "ab"]
    client.publish_many("t", [*slow, Publication("c", deliver_after=0.5)])
    at_once, delayed = (
        row for row in _rows(directory) if row["f"] == "put" and row["type"] == "invoke"
    )
    assert "delays" not in at_once
    first = delayed["counter"]
    assert delayed["topic"] == "t\x1fdelayed"
    assert delayed["delays"] == [[first, first + 1, 2_000], [first + 2, first + 2, 500]]


def test_a_producers_batches_are_recorded(client: Client, directory: Path) -> None:
    client.subscribe("t")
    with client.producer("t") as producer:
        futures = [producer.send(str(number)) for number in range(300)]
    assert [future.result().id for future in futures] == list(range(1, 301))
    rows = [row for row in _rows(directory) if row["f"] == "put"]
    recorded = "".join(row["digests"] for row in rows if row["type"] == "invoke")
    assert recorded == digests([str(number).encode() for number in range(300)])
    assert sum(row["count"] for row in rows if row["type"] == "ok") == 300


def test_hosts_are_told_apart_by_their_boot(monkeypatch: pytest.MonkeyPatch) -> None:
    assert recording.this_host() == recording.this_host()
    monkeypatch.setattr(recording, "BOOT_ID", Path("/nowhere/boot_id"))
    assert recording.this_host() != recording.this_host()


# --- one directory, many processes --------------------------------------------------------------

_CLIENT = """
import sys; from flotilla_client import Client
with Client(sys.argv[1], state_dir=sys.argv[2] + sys.argv[3], record=sys.argv[2]) as client:
    client.subscribe(sys.argv[3])
"""


def test_processes_that_begin_together_record_one_run_in_files_of_their_own(
    node: FakeNode, directory: Path
) -> None:
    commands = [[sys.executable, "-c", _CLIENT, node.endpoint, directory, f"t{n}"] for n in "1234"]
    processes = [subprocess.Popen(command, env=ENVIRONMENT) for command in commands]
    assert [process.wait(60) for process in processes] == [0] * 4
    files = sorted((directory / "history").glob("*.jsonl"))
    events = [json.loads(line) for file in files for line in file.read_bytes().splitlines()]
    assert len(files) == 4
    assert {event["topic"] for event in events} == {"t1", "t2", "t3", "t4"}
    assert len({event["run_id"] for event in events}) == 1
    names = ["history", "recovery", "run.json", "run.json.lock"]
    assert [path.name for path in sorted(directory.iterdir())] == names
    vouched = json.loads((directory / "run.json").read_bytes())["history"]
    assert vouched == {file.name: recording.described(file) for file in files}
    assert all(file["closed"] and file["lines"] == 2 for file in vouched.values())


_PUBLISHER = """
import sys; from flotilla_client import Client
Client(sys.argv[1], record=sys.argv[2]).publish("t", "a")
"""


def test_a_process_killed_before_its_answer_has_recorded_what_it_asked(
    node: FakeNode, directory: Path
) -> None:
    node.script(PUT, "deaf")
    command = [sys.executable, "-c", _PUBLISHER, node.endpoint, directory]
    with subprocess.Popen(command, env=ENVIRONMENT) as process:
        node.await_requests(PUT, 1)
        process.kill()
    [row] = _rows(directory)
    assert (row["f"], row["type"], row["digests"]) == ("put", "invoke", DIGEST_OF_A)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ('{"run_id": "r", "experiment": {}}', "names no recording of an application"),
        ("[]", "names no recording of an application"),
        ("{", "is not JSON"),
        ('{"recorded_by": "application"}', "has no run_id"),
    ],
)
def test_a_directory_of_something_else_is_refused_and_the_state_let_go(
    tmp_path: Path, directory: Path, content: str, complaint: str
) -> None:
    directory.mkdir()
    (directory / "run.json").write_text(content)
    with pytest.raises(RecordError, match=complaint) as caught:
        Client("127.0.0.1:1", state_dir=tmp_path / "state", record=directory)
    assert caught.value.details == {"file": str(directory / "run.json")}
    State(tmp_path / "state").close()


def test_nothing_is_recorded_in_a_directory_that_is_no_run_s(
    node: FakeNode, tmp_path: Path
) -> None:
    (tmp_path / "passwd").touch()
    with pytest.raises(RecordError, match=f"{tmp_path} holds no run but 'passwd'"):
        Client(node.endpoint, record=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["passwd"]


def test_a_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(RecordError, match="file/record") as caught:
        Recording(tmp_path / "file" / "record")
    assert caught.value.definite


def test_run_json_says_what_each_file_is_when_its_client_is_closed(
    client: Client, directory: Path
) -> None:
    empty = {"lines": 0, "bytes": 0, "blake2b": recording.described(Path(os.devnull))["blake2b"]}
    assert _about(directory)["history"] == {_file(directory).name: {**empty, "closed": False}}
    client.subscribe("t")
    client.close()
    data = _file(directory).read_bytes()
    said = _about(directory)["history"][_file(directory).name]
    assert (said["lines"], said["bytes"], said["closed"]) == (2, len(data), True)
    assert said["blake2b"] == blake2b(data, digest_size=16).hexdigest()
    client.close()
    assert _about(directory)["history"][_file(directory).name] == said


def test_a_client_that_is_killed_leaves_its_file_open_and_the_others_as_they_are(
    node: FakeNode, directory: Path
) -> None:
    with Client(node.endpoint, record=directory) as first:
        first.open()
    [before] = _about(directory)["history"].items()
    node.script(PUT, "deaf")
    command = [sys.executable, "-c", _PUBLISHER, node.endpoint, directory]
    with subprocess.Popen(command, env=ENVIRONMENT) as process:
        node.await_requests(PUT, 1)
        process.kill()
    with Client(node.endpoint, record=directory) as last:
        last.open()
    history = _about(directory)["history"]
    assert history.keys() == {path.name for path in (directory / "history").iterdir()}
    assert history[before[0]] == before[1]
    assert sorted(one["closed"] for one in history.values()) == [False, True, True]


def test_what_is_said_of_files_is_written_anew_where_a_writer_was_killed(
    node: FakeNode, directory: Path
) -> None:
    with Client(node.endpoint, record=directory) as first:
        first.open()
    (directory / "run.json.new").write_text('{"run_id": "ha')
    with Client(node.endpoint, record=directory) as second:
        second.open()
    assert len(_about(directory)["history"]) == 2
    assert not (directory / "run.json.new").exists()


def test_a_record_that_version_0_2_began_says_nothing_of_files(
    node: FakeNode, directory: Path
) -> None:
    directory.mkdir()
    about = {"run_id": "r", "recorded_by": "application", "start": "2026-01-01T00:00:00+00:00"}
    (directory / "run.json").write_text(json.dumps(about))
    with Client(node.endpoint, record=directory) as client:
        client.open()
    assert _about(directory) == about


def test_a_run_json_that_somebody_holds_is_waited_for_and_then_refused(
    node: FakeNode, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recording, "LOCK_S_MAX", 0.05)
    directory.mkdir()
    with (directory / "run.json.lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        (directory / "history").mkdir()
        with pytest.raises(RecordError, match=r"another process has held .*run\.json\.lock"):
            Client(node.endpoint, record=directory)
    with Client(node.endpoint, record=directory) as client:
        client.open()


def test_a_run_json_that_names_too_many_clients_is_refused(
    node: FakeNode, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Client(node.endpoint, record=directory) as client:
        client.open()
    monkeypatch.setattr(recording, "RUN_FILE_BYTES_MAX", 100)
    with pytest.raises(RecordError, match="names too many clients"):
        Client(node.endpoint, record=directory)


def test_a_get_says_what_it_asked_for_and_how_much_came(client: Client, directory: Path) -> None:
    client.subscribe("t")
    client.publish_many("t", ["a", "bcd", "e"])
    client.get("t", max_count=2)
    asked, got = [row for row in _rows(directory) if row["f"] == "get"]
    assert (asked["max_count"], got["max_count"]) == (2, 2)
    assert (got["topic"], got["count"], got["bytes"]) == ("t", 2, 4)


def test_an_answer_is_recorded_under_the_topic_that_it_names(
    client: Client, directory: Path, node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.subscribe("t")
    client.subscribe("u")
    client.publish("t", "a")
    answer = node.cluster._get
    monkeypatch.setattr(
        node.cluster, "_get", lambda asked: (answer(asked)[0] | {"topic": "u"}, *answer(asked)[1:])
    )
    delivery = client.get("t")
    assert delivery is not None
    assert delivery.topic == "u"  # the library believes the reply: the checks don't
    asked, got = [row for row in _rows(directory) if row["f"] == "get"]
    assert (asked["topic"], got["topic"]) == ("t", "u")


class InterruptedFile:
    """A file behind each of whose writes ctrl-C comes."""

    closed = False

    def __init__(self, file: Any) -> None:
        self.file, self.fileno = file, file.fileno

    def write(self, data: bytes) -> None:
        self.file.write(data)
        raise KeyboardInterrupt


def test_no_two_operations_have_one_number_though_ctrl_c_comes_behind_a_line(
    tmp_path: Path,
) -> None:
    with Recorder(tmp_path, "client", "run") as recorder:
        recorder.invoke("put", "t")
        file = recorder._file
        recorder._file = InterruptedFile(file)  # type: ignore[assignment]
        for line in (partial(recorder.invoke, "put", "t"), partial(recorder.single, "ack")):
            with pytest.raises(KeyboardInterrupt):
                line()
        recorder._file = file
        recorder.invoke("get", "t")
    found = list(read(tmp_path / "client.jsonl"))
    assert [(event["op_id"], event["f"]) for event in found] == [(1, "put"), (2, "get")]


# --- a disk that is full ------------------------------------------------------------------------


def test_what_cannot_be_recorded_is_not_sent(
    publisher: Client, directory: Path, node: FakeNode
) -> None:
    with _disk_with(20, _file(directory)):
        with pytest.raises(RecordError) as caught:
            publisher.publish("t", "a")
        with pytest.raises(RecordError) as behind_it:
            publisher.publish("t", "never taken")
        with pytest.raises(RecordError):
            publisher.get("t")
    assert behind_it.value.definite
    error = caught.value
    assert (error.definite, error.details["kept"]) == (False, 1)
    assert error.details["file"] == str(_file(directory))
    assert (node.of_type(PUT), node.of_type(GET)) == ([], [])
    publisher.publish("t", "b")
    assert node.cluster.topics["t"] == [b"a", b"b"]
    ends = [("put", "invoke"), ("put", "ok")] * 2
    assert _kinds(_rows(directory)) == ends  # no half of a line
    assert _is_counted(_rows(directory))  # and no hole


def test_a_delivery_that_cannot_be_recorded_comes_again(client: Client, directory: Path) -> None:
    client.subscribe("t")
    client.publish_many("t", [str(number) for number in range(40)])
    assert client.get("t") is not None
    client.acknowledge("t", 1)
    with _disk_with(_room_for_an_invoke(directory, "get"), _file(directory)):
        with pytest.raises(RecordError) as caught:
            client.get("t", max_count=30)
        assert not caught.value.definite
    delivery = client.get("t", max_count=30)
    assert delivery is not None
    assert (delivery.first_id, delivery.last_id) == (2, 31)
    kinds = [("get", "invoke"), ("get", "invoke"), ("get", "ok"), ("hand", "info")]
    assert _kinds(_rows(directory))[-4:] == kinds


def test_a_put_whose_end_cannot_be_recorded_is_asked_again_and_stored_once(
    publisher: Client, directory: Path, node: FakeNode
) -> None:
    publisher.publish("t", "a")
    with (
        _disk_with(_room_for_an_invoke(directory, "put"), _file(directory)),
        pytest.raises(RecordError) as caught,
    ):
        publisher.publish("t", "b")
    assert (caught.value.definite, caught.value.details["kept"]) == (False, 1)
    publisher.flush()
    assert node.cluster.topics["t"] == [b"a", b"b"]
    *_, first, again, end = _rows(directory)
    assert (first["counter"], first["type"]) == (again["counter"], again["type"]) == (2, "invoke")
    assert (end["type"], end["first_id"], end["duplicate"]) == ("ok", 2, True)


@pytest.mark.parametrize("room", [lambda _: 20, lambda place: _room_for_an_invoke(place, "put")])
def test_a_producer_that_cannot_record_ends_and_leaves_everything_in_the_outbox(
    publisher: Client, directory: Path, node: FakeNode, room: Callable[[Path], int]
) -> None:
    publisher.publish("t", "0")
    with _disk_with(room(directory), _file(directory)):
        producer = publisher.producer("t", linger_ms=1)
        future = producer.send("1")
        error = future.exception(10)
        assert isinstance(error, RecordError)
        assert not error.definite
        with pytest.raises(RecordError):
            producer.send("2")
        producer.close()
    with publisher.producer("t") as other:
        assert other.send("3").result(10).id == 3
    assert node.cluster.topics["t"] == [b"0", b"1", b"3"]
    assert _is_counted(_rows(directory))


def test_a_client_that_cannot_say_what_its_file_is_says_so_and_has_recorded_all(
    node: FakeNode, directory: Path
) -> None:
    client = Client(node.endpoint, record=directory)
    client.open()
    (directory / "run.json").write_text("{")
    with pytest.raises(RecordError, match=r"run\.json is not JSON"):
        client.close()
    client.close()


# --- the other front doors ----------------------------------------------------------------------


def test_the_asynchronous_client_records_and_a_cancelled_get_has_no_end(
    node: FakeNode, directory: Path
) -> None:
    async def work() -> None:
        state = node.new_directory()
        async with AsyncClient(node.endpoint, state_dir=state, record=directory) as client:
            await client.subscribe("t")
            waiting = asyncio.create_task(client.get("t", idle=2))
            await asyncio.to_thread(node.await_requests, GET, 1)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            await client.publish("t", "a")
            assert await client.get("t") is not None

    asyncio.run(work())
    pairs = itertools.groupby(sorted(_rows(directory), key=lambda row: row["op_id"]), _op_id)
    ends = [[row["type"] for row in rows] for _, rows in pairs]
    operations = [["invoke", "ok"], ["invoke"], ["invoke", "ok"], ["invoke", "ok"]]
    assert ends == [*operations, ["info"], ["info"]]  # handed over, acknowledged by the close


def _op_id(row: Row) -> int:
    op_id: int = row["op_id"]
    return op_id


def test_operations_that_never_end_do_not_pile_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recording, "OPEN_OPERATIONS_MAX", 3)
    with Recorder(tmp_path, "p", "r") as recorder:
        op_ids = [recorder.invoke("get", "t") for _ in range(9)]
        assert len(recorder._open) == 3
        recorder.complete(op_ids[-1], "ok")


def test_the_command_line_records(
    node: FakeNode, directory: Path, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    base = ("-e", node.endpoint, "--state", str(tmp_path / "state"), "--record", str(directory))
    assert [cli.main([*base, "sub", "t"]), cli.main([*base, "put", "t", "a"])] == [0, 0]
    assert cli.main([*base, "get", "t"]) == 0
    assert capfdbinary.readouterr().out.endswith(b"1\na\n")
    files = (directory / "history").glob("*.jsonl")
    events = [json.loads(line) for file in files for line in file.read_bytes().splitlines()]
    operations = [(f, kind) for f in ("sub", "put", "get") for kind in ("invoke", "ok")]
    assert sorted(_kinds(events)) == sorted([*operations, ("hand", "info"), ("ack", "info")])
    assert cli.main(["--record", "/proc/none", *base[:4], "sub", "t"]) == 3
    assert b"record_failed" in capfdbinary.readouterr().err


# --- a cluster that was recovered -----------------------------------------------------------------


def test_no_client_goes_on_with_a_record_over_a_recovery(
    client: Client, publisher: Client, node: FakeNode, directory: Path
) -> None:
    client.publish("t", "a")
    node.cluster.recovery = "a recovery"
    node.script(PUT, nak("recovered"))
    before = len(_all_rows(directory))
    with pytest.raises(RecordError, match="begin a new record") as caught:
        client.publish("t", "b")  # running, and it has lost nothing
    assert caught.value.details["file"] == str(directory / "recovery")
    assert len(_all_rows(directory)) == before + 2  # what it asked, and that it was refused
    for record, is_refused in ((directory, True), (directory.with_name("new"), False)):
        with Client(node.endpoint, record=record) as other:
            if is_refused:
                with pytest.raises(RecordError, match="begin a new record"):
                    other.publish("t", "c")
            else:
                other.publish("t", "d")
    with Client(node.endpoint) as unrecorded:
        unrecorded.publish("t", "e")


def _all_rows(directory: Path) -> list[bytes]:
    files = (directory / "history").glob("*.jsonl")
    return [line for file in files for line in file.read_bytes().splitlines()]


def test_an_adoption_is_no_part_of_a_record(node: FakeNode, directory: Path) -> None:
    state = node.new_directory()
    with Client(node.endpoint, state_dir=state, record=directory) as client:
        client.subscribe("t")
        client.publish_many("t", ["a", "b"])
    node.cluster.clients[client.client_id].counters["t"] = 1
    node.cluster.recovery = "a recovery"
    with Client(node.endpoint, state_dir=state, record=directory) as client:
        with pytest.raises(ClusterRecovered):
            client.publish("t", "c")
        with pytest.raises(RecordError, match="begin a new record"):
            client.adopt()
        with pytest.raises(ClusterRecovered):
            client.publish("t", "c")
    with Client(node.endpoint, state_dir=state) as client:
        assert client.adopt().publications == {"t": 1}
    with (
        Client(node.endpoint, state_dir=state, record=directory) as client,
        pytest.raises(RecordError, match="begin a new record"),
    ):
        client.publish("t", "d")
    with Client(node.endpoint, state_dir=state, record=directory.with_name("new")) as client:
        client.publish("t", "e")


def test_an_observer_beside_a_recording_is_a_programmers_error(directory: Path) -> None:
    made = Recording(directory)
    with pytest.raises(ValueError, match="not both"):
        Client("127.0.0.1:1", observer=made, record=directory)
    made.close()


def test_times_are_recorded_of_what_came_alone() -> None:
    times = ((3, 100), (6, 200), (7, None), (9, 300))
    outcome = Outcome(1, topic="t", first_id=5, publications=(b"",) * 5, timestamps=times)
    assert recording._times(outcome) == [[5, 6, 200], [8, 9, 300]]
