"""A real run: real nodes, real clients, a real SIGKILL, and what Spark says about it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from analytics import twins
from chaos.workloads.history import read

SEED = 20_240
RUN_S_MAX = 90
SPARK_S_MAX = 240
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(path or "." for path in sys.path)}


def start(*arguments: str) -> subprocess.Popen[str]:
    print("seed", SEED)
    return subprocess.Popen(
        [sys.executable, "-m", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=ENVIRONMENT,
    )


def run(*arguments: str, seconds_max: float) -> tuple[int, str]:
    with start(*arguments) as process:
        try:
            text, _ = process.communicate(timeout=seconds_max)
        finally:
            process.kill()
        return process.returncode, text


def chaos_arguments(experiment: str, directory: Path) -> tuple[str, ...]:
    options = ("--duration", "5", "--seed", str(SEED), "--out", str(directory))
    return ("chaos", "run", experiment, *options)


def processes_of(directory: Path) -> list[str]:
    """Return the command lines of live processes that name the run's directory."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except (FileNotFoundError, ProcessLookupError):
            continue
        if str(directory) in command:
            found.append(command)
    return found


def events(directory: Path) -> list[dict[str, Any]]:
    return [event for path in (directory / "history").glob("*.jsonl") for event in read(path)]


@pytest.mark.spark
@pytest.mark.slow  # the whole way, Spark included; `make demo` goes it too
@pytest.mark.timeout(RUN_S_MAX + SPARK_S_MAX)
def test_a_run_that_kills_the_leader_is_valid_and_really_changed_the_leader(tmp_path: Path) -> None:
    directory = tmp_path / "run"
    code, text = run(*chaos_arguments("kill-leader", directory), seconds_max=RUN_S_MAX)
    assert code == 0, text

    outcome = json.loads((directory / "run.json").read_bytes())["outcome"]
    [victim] = outcome["injections"][0]["targets"]
    acknowledged = [e for e in events(directory) if (e["f"], e["type"]) == ("put", "ok")]
    killed_ns = outcome["injections"][0]["injected_ns"]
    before = max((e for e in acknowledged if e["t_ns"] <= killed_ns), key=lambda e: e["t_ns"])
    after = max(acknowledged, key=lambda e: e["t_ns"])
    assert before["node"] == victim
    assert after["term"] > before["term"]
    assert processes_of(directory) == []

    report = tmp_path / "report.json"
    code, text = run("analytics", str(directory), "--json", str(report), seconds_max=SPARK_S_MAX)
    assert code == 0, text
    judged = json.loads(report.read_bytes())
    assert judged["verdict"] == "valid", text
    assert judged["observations"]["acknowledged"] >= outcome["acknowledged"] > 50


@pytest.mark.timeout(RUN_S_MAX)
@pytest.mark.slow
def test_an_interrupt_in_the_middle_of_a_fault_leaves_no_process_behind(tmp_path: Path) -> None:
    directory = tmp_path / "run"
    with start(*chaos_arguments("kill-all", directory)) as process:
        deadline_s = time.monotonic() + RUN_S_MAX / 2
        while not _fault_rows(directory):
            assert process.poll() is None, process.communicate()[0]
            assert time.monotonic() < deadline_s, "no fault was injected"
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        text, _ = process.communicate(timeout=RUN_S_MAX / 2)
    assert process.returncode == 130, text
    assert processes_of(directory) == []
    assert [row["action"] for row in _fault_rows(directory)] == ["inject", "heal"]
    assert json.loads((directory / "run.json").read_bytes())["outcome"]["finished"] is False


@pytest.mark.timeout(2 * RUN_S_MAX)
@pytest.mark.slow  # `make chaos-short` runs the experiment, and judges it
def test_clients_that_die_while_nodes_do_go_on_where_they_were_and_nothing_is_lost(
    tmp_path: Path,
) -> None:
    directory = tmp_path / "run"
    code, text = run(*chaos_arguments("client-crash-and-kill", directory), seconds_max=RUN_S_MAX)
    assert code == 0, text
    happened = events(directory)
    sessions = {(e["process"], e["session"]) for e in happened}
    assert len(sessions) > len({process for process, _ in sessions}) + 2
    died_in = {(e["process"], e["session"], e["op_id"]) for e in happened if e["type"] == "invoke"}
    died_in -= {(e["process"], e["session"], e["op_id"]) for e in happened if e["type"] == "ok"}
    assert died_in, "nobody died between an operation's begin and its end"
    assert found(directory) == {}

    rows = truth(directory)
    states = [row for row in rows if row["kind"] == "state"]
    assert len(states) == 3
    assert len({(row["index"], row["digest"]) for row in states}) == 1
    led = {(row["node"], row["term"]) for row in rows if row["kind"] == "leadership"}
    answered = {(e["node"], e["term"]) for e in happened if e["type"] == "ok" and e.get("node")}
    assert answered, "nobody answered"
    assert answered <= led, "who answers as the leader has said so in its log"


@pytest.mark.slow
@pytest.mark.timeout(2 * RUN_S_MAX)
def test_of_two_processes_of_one_client_the_older_is_fenced_and_nothing_is_doubled(
    tmp_path: Path,
) -> None:
    directory = tmp_path / "run"
    code, text = run(*chaos_arguments("client-twin", directory), seconds_max=RUN_S_MAX)
    assert code == 0, text
    happened = events(directory)
    twin = next(e["process"] for e in happened if "-twin" in e["process"])
    [first] = {twin.removesuffix("-twin1")} & {e["process"] for e in happened}
    owners = {e["client_id"] for e in happened if e["process"] in (first, twin) and e["op_id"] > 1}
    assert len(owners - {None}) == 1
    last = [e for e in happened if e["process"] == first][-1]
    assert (last["type"], last["error"]) == ("fail", "fenced")
    assert found(directory) == {}


@pytest.mark.slow
@pytest.mark.timeout(2 * RUN_S_MAX)
def test_what_a_killed_runner_leaves_is_cleared_away(tmp_path: Path) -> None:
    directory = tmp_path / "run"
    with start(*chaos_arguments("pause-leader", directory)) as process:
        deadline_s = time.monotonic() + RUN_S_MAX / 2
        while not _fault_rows(directory):
            assert process.poll() is None, process.communicate()[0]
            assert time.monotonic() < deadline_s, "no fault was injected"
            time.sleep(0.05)
        process.kill()
        process.communicate()
    assert processes_of(directory) != []
    code, text = run("chaos", "heal", seconds_max=RUN_S_MAX)
    assert code == 0, text
    while processes_of(directory):  # clients end by themselves, when their operation has
        assert time.monotonic() < deadline_s + RUN_S_MAX, processes_of(directory)
        time.sleep(0.1)


def truth(directory: Path) -> list[dict[str, Any]]:
    files = sorted((directory / "truth").glob("*.jsonl"))
    return [json.loads(line) for file in files for line in file.read_bytes().splitlines()]


def found(directory: Path) -> dict[str, list[twins.Evidence]]:
    """Return the evidence of every check that has some, by the checks' twins in plain Python."""
    nodes = {node: True for node in ("n1", "n2", "n3")}
    evidence = twins.find_all(events(directory), truth(directory), nodes)
    return {check: rows for check, rows in evidence.items() if rows}


def _fault_rows(directory: Path) -> list[dict[str, Any]]:
    if not (directory / "history").exists():
        return []
    return [json.loads(event["error"]) for event in events(directory) if event["f"] == "fault"]
