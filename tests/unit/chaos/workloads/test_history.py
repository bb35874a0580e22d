"""What history.py promises: docs/history.md, line by line, even when a process is killed."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from chaos.workloads import history, payload
from chaos.workloads.history import HistoryFileError, ProcessRecorder, WorkloadObserver
from flotilla_client import Operation, Outcome


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def recorder(directory: Path) -> ProcessRecorder:
    return ProcessRecorder(directory, "p", "run", monotonic_ns=lambda: 11, wall_ns=lambda: 22)


def test_invoke_and_completion_share_op_id_and_say_where_and_when(tmp_path: Path) -> None:
    with recorder(tmp_path) as made:
        made.client_id, made.phase = "c1", "steady"
        op_id = made.invoke("put", "t", counter=5, count=1)
        made.complete(op_id, "ok", first_id=9, last_id=9, attempt=2, duplicate=False)
    invoke, ok = lines(tmp_path / "p.jsonl")
    common = {"run_id": "run", "process": "p", "client_id": "c1", "op_id": 1, "session": 1}
    common |= {"f": "put", "topic": "t", "t_ns": 11, "wall_ns": 22, "phase": "steady"}
    common |= {"host": invoke["host"]}
    assert invoke == {**common, "type": "invoke", "counter": 5, "count": 1}
    outcome = {"first_id": 9, "last_id": 9, "attempt": 2, "duplicate": False}
    assert ok == {**common, "type": "ok", "counter": 5, "count": 1, "invoke_ns": 11, **outcome}


def test_an_invoke_is_in_the_file_before_invoke_returns(tmp_path: Path) -> None:
    script = (
        "import os, signal, pathlib; from chaos.workloads.history import ProcessRecorder\n"
        f"recorder = ProcessRecorder(pathlib.Path({str(tmp_path)!r}), 'p', 'r')\n"
        "recorder.invoke('put', 't', counter=1)\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", script], env=environment, check=False)
    assert done.returncode == -signal.SIGKILL
    assert [event["type"] for event in lines(tmp_path / "p.jsonl")] == ["invoke"]


def test_fields_that_do_not_apply_are_left_out(tmp_path: Path) -> None:
    with recorder(tmp_path) as made:
        made.mark_phase("warmup")
    [event] = lines(tmp_path / "p.jsonl")
    assert not {"client_id", "topic", "counter", "error"} & event.keys()
    assert (event["type"], event["f"], event["phase"]) == ("info", "phase", "warmup")


def test_a_fault_is_recorded_as_json_text_in_error(tmp_path: Path) -> None:
    with recorder(tmp_path) as made:
        assert made.mark_fault("kill-leader", "inject", ["n2"]) == 11
    [event] = lines(tmp_path / "p.jsonl")
    assert event["f"] == "fault"
    detail = {"name": "kill-leader", "action": "inject", "targets": ["n2"]}
    assert json.loads(event["error"]) == detail


def test_a_process_that_comes_back_goes_on_with_the_next_session_and_op_id(tmp_path: Path) -> None:
    with recorder(tmp_path) as first:
        first.invoke("get", "t")
        first.invoke("get", "t")
    with recorder(tmp_path) as second:
        assert second.invoke("get", "t") == 3
    assert [event["session"] for event in lines(tmp_path / "p.jsonl")] == [1, 1, 2]


def test_a_torn_last_line_stays_with_a_mark_and_does_not_swallow_the_next_event(
    tmp_path: Path,
) -> None:
    with recorder(tmp_path) as first:
        first.invoke("get", "t")
    with (tmp_path / "p.jsonl").open("ab") as file:
        file.write(b'{"op_id": 2, "ty')
    with recorder(tmp_path) as second:
        second.mark_phase("done")
    raw = (tmp_path / "p.jsonl").read_bytes().split(b"\n")
    assert raw[1] == b'{"op_id": 2, "ty\x18'
    assert [event["f"] for event in history.read(tmp_path / "p.jsonl")] == ["get", "phase"]


def test_a_last_line_that_lacks_only_its_end_is_an_event(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    with recorder(tmp_path) as first:
        first.invoke("get", "t")
    path.write_bytes(path.read_bytes().rstrip(b"\n"))
    with recorder(tmp_path) as second:
        second.mark_phase("done")
    assert [event["f"] for event in lines(path)] == ["get", "phase"]


def test_what_begins_is_numbered_without_a_hole_over_torn_lines_and_restarts(
    tmp_path: Path,
) -> None:
    path = tmp_path / "p.jsonl"
    with recorder(tmp_path) as first:
        first.invoke("put", "t")  # stays open
        first.mark_phase("steady")
    for torn in (b'{"op_id": 3, "type":"invoke"', b'{"op', b""):  # twice in one session's place
        with path.open("ab") as file:
            file.write(torn)
        recorder(tmp_path).close()
    with recorder(tmp_path) as last:
        op_id = last.invoke("get", "t")
        last.mark_phase("done")
        last.complete(op_id, "ok")
    rows = list(history.read(path))
    assert [row["op_id"] for row in rows] == [1, 2, 3, 4, 3]
    assert [row["session"] for row in rows] == [1, 1, 2, 2, 2]


def test_an_end_has_the_client_of_its_invoke(tmp_path: Path) -> None:
    with recorder(tmp_path) as made:
        made.client_id = "c1"
        op_id = made.invoke("put", "t")
        made.client_id = "c2"  # the state's client was renewed meanwhile
        made.complete(op_id, "ok")
    assert [row["client_id"] for row in lines(tmp_path / "p.jsonl")] == ["c1", "c1"]


def test_an_operation_ends_once(tmp_path: Path) -> None:
    with recorder(tmp_path) as made:
        op_id = made.invoke("put", "t")
        made.complete(op_id, "info", error="unavailable")
        with pytest.raises(AssertionError, match="ended already"):
            made.complete(op_id, "ok")


def test_a_disk_that_refuses_is_an_error_not_a_hole(tmp_path: Path) -> None:
    made = recorder(tmp_path)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (64, before[1]))
    try:
        with pytest.raises(HistoryFileError):
            made.mark_phase("warmup")
        with pytest.raises(HistoryFileError):
            made.invoke("get", "t")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)
    with made:
        assert made.invoke("get", "t") == 1  # what is not there has no number either


def observed(tmp_path: Path, operation: Operation, outcome: Outcome) -> dict[str, Any]:
    with recorder(tmp_path) as made:
        observer = WorkloadObserver(made)
        observer.on_invoke(operation)
        observer.on_complete(operation, outcome)
    [invoke, end] = lines(tmp_path / "p.jsonl")
    assert (invoke["type"], invoke["op_id"], invoke["client_id"]) == ("invoke", 1, "c")
    assert end.pop("invoke_ns") == invoke["t_ns"]
    return {name: end[name] for name in end if name not in invoke or end[name] != invoke[name]}


def test_an_acknowledged_put_has_its_ids_the_leader_and_its_term(tmp_path: Path) -> None:
    outcome = Outcome(2, "n1", "n3", 4, topic="t", first_id=7, count=3, duplicate=True)
    assert observed(tmp_path, Operation(1, "c", "put", "t", 5, 3), outcome) == {
        "type": "ok",
        "attempt": 2,
        "node": "n3",
        "term": 4,
        "first_id": 7,
        "last_id": 9,
        "duplicate": True,
    }


def test_a_put_that_nobody_subscribed_to_has_the_ids_0_and_0(tmp_path: Path) -> None:
    outcome = Outcome(1, "n1", "n1", 1, topic="t", first_id=0, count=3, duplicate=False)
    end = observed(tmp_path, Operation(1, "c", "put", "t", 5, 3), outcome)
    assert (end["first_id"], end["last_id"]) == (0, 0)


@pytest.mark.parametrize(("definite", "kind"), [(True, "fail"), (False, "info")])
def test_only_a_definite_error_is_a_fail(tmp_path: Path, definite: bool, kind: str) -> None:
    outcome = Outcome(3, error="unavailable", definite=definite, topic="t")
    end = observed(tmp_path, Operation(1, "c", "put", "t", 5, 1), outcome)
    assert end == {"type": kind, "attempt": 3, "error": "unavailable"}


def test_a_delivery_is_recorded_as_runs_with_what_is_corrupt_beside_them(tmp_path: Path) -> None:
    publications = (payload.make("p", "t", 1, "f").encode(), b"rubbish")
    outcome = Outcome(1, "n1", "n1", 1, topic="t", first_id=4, publications=publications, count=2)
    end = observed(tmp_path, Operation(1, "c", "get", "", last_id=None), outcome)
    assert (end["topic"], end["count"], end["first_id"], end["last_id"]) == ("t", 2, 4, 5)
    assert (end["items"], end["corrupt"]) == ([[4, "p", 1, 1]], [[5, "format"]])


def test_a_get_that_brought_nothing_has_the_count_0_and_no_ids(tmp_path: Path) -> None:
    outcome = Outcome(1, "n1", "n1", 1, topic="t")
    end = observed(tmp_path, Operation(1, "c", "get", "t", last_id=3), outcome)
    assert end["count"] == 0
    assert not {"first_id", "items"} & end.keys()


def test_what_the_client_had_by_then_is_told_apart_from_nothing(tmp_path: Path) -> None:
    outcome = Outcome(1, "n1", "n1", 1, topic="t", first_id=4, count=0)
    end = observed(tmp_path, Operation(1, "c", "get", "t", last_id=3), outcome)
    assert (end["count"], end["first_id"]) == (0, 4)


def test_a_subscription_is_recorded_with_its_start_and_the_brokers_cursor(tmp_path: Path) -> None:
    outcome = Outcome(1, "n1", "n1", 1, topic="t", last_id=12, resumed=True, cursor=9)
    end = observed(tmp_path, Operation(1, "c", "sub", "t"), outcome)
    assert (end["last_id"], end["resumed"], end["cursor"]) == (12, True, 9)


def test_the_epoch_of_a_request_is_recorded_if_it_has_one(tmp_path: Path) -> None:
    with recorder(tmp_path) as made:
        observer = WorkloadObserver(made)
        observer.on_invoke(Operation(1, "c", "get", "t", epoch=3))
        observer.on_invoke(Operation(2, "c", "get", "t"))
    with_epoch, without = lines(tmp_path / "p.jsonl")
    assert with_epoch["epoch"] == 3
    assert "epoch" not in without


@pytest.mark.parametrize(
    ("times_ns", "gap_ns"),
    [
        ([10, 20, 80, 90, 94], 60),  # the gap that the fault at 15 opened
        ([10, 75, 90], 65),  # it reaches back to the last acknowledgment before the fault
        ([1, 14, 16, 80, 90], 64),  # a reply on its way at the kill does not hide the gap
        ([14, 20, 50, 90, 500], 40),  # the outage of the next fault, at 95, is not this one's
        ([14, 20, 56], 39),  # nor does the gap end later than the window
        ([1, 14, 16, 17], None),  # a reply on its way, and then nothing: not back in the window
        ([14, 99], None),  # back too late
        ([60, 70, 90], None),  # nothing before the fault: no begin of the gap
        ([], None),
    ],
)
def test_the_gap_of_a_fault_is_the_longest_silence_in_its_own_window(
    times_ns: list[int], gap_ns: int | None
) -> None:
    assert history.longest_gap_ns(times_ns, 15, 95) == gap_ns
