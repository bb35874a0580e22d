"""An application that is killed, and the leader of its cluster: it records itself, Spark judges."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from analytics.anomalies import CHECKS
from analytics.common import session
from analytics.common.verdict import NAMELESS, Report, Verdict
from analytics.intake.seal import seal
from analytics.judge.check import check
from flotilla_client.recording import read
from tests.conftest import ClusterFactory

PUT_S_MAX: Final = 60.0
SPARK_S_MAX: Final = 240
PUBLICATIONS: Final = 400  # half of them one by one, half by a producer
KILL_AFTER: Final = 40
CLAIMS: Final = {one.name: one.claim for one in CHECKS}
NAMED: Final = {name for name, claim in CLAIMS.items() if claim.needs_names}
NOT_JUDGED: Final = NAMED | {name for name, claim in CLAIMS.items() if claim.needs_truth}

# Contents repeat on purpose: equal ones must not be taken for each other.
PUBLISHER: Final = """
import sys; from flotilla_client import Client
endpoints, state, record, count = *sys.argv[1:4], int(sys.argv[4])
with Client(endpoints, state_dir=state, record=record) as client:
    id = 0
    while id < count // 2:
        id = client.publish("orders", f"order {id % 7}").id
        print(id, flush=True)
    with client.producer("orders") as producer:
        futures = [producer.send(f"order {n % 7}") for n in range(count // 2)]
    print(all(future.result().id for future in futures), flush=True)
"""
SUBSCRIBER: Final = """
import sys; from flotilla_client import Client
endpoints, state, record, count = *sys.argv[1:4], int(sys.argv[4])
with Client(endpoints, state_dir=state, record=record) as client:
    client.subscribe("orders")
    print("subscribed", flush=True)
    for message in client.messages("orders"):
        if message.id == count:
            break
"""


def start(code: str, endpoints: str, state: Path, record: Path) -> subprocess.Popen[str]:
    arguments = (endpoints, str(state), str(record), str(PUBLICATIONS))
    command = [sys.executable, "-c", code, *arguments]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path or "." for path in sys.path)}
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)


def heard(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


@pytest.fixture
def record(local_cluster: ClusterFactory, tmp_path: Path) -> Path:
    """Return the directory in which three processes recorded themselves while one of them died, and
    the leader.
    """
    cluster = local_cluster(3)
    endpoints = ",".join(cluster.endpoints().values())
    directory = tmp_path / "record"
    with start(SUBSCRIBER, endpoints, tmp_path / "reader", directory) as subscriber:
        assert heard(subscriber) == "subscribed"
        with start(PUBLISHER, endpoints, tmp_path / "writer", directory) as publisher:
            for number in range(1, KILL_AFTER + 1):
                assert heard(publisher) == str(number)
            publisher.kill()
        with start(PUBLISHER, endpoints, tmp_path / "writer", directory) as publisher:
            for _ in range(KILL_AFTER):
                assert int(heard(publisher)) > KILL_AFTER
            cluster.kill(cluster.wait_for_leader())
            assert publisher.stdout is not None
            assert publisher.stdout.read().endswith("True\n")
            assert publisher.wait(PUT_S_MAX) == 0
        assert subscriber.wait(PUT_S_MAX) == 0
    return directory


def with_an_answer_lost(record: Path, to: Path) -> tuple[Path, int]:
    """Copy a record without one GET's answer; return it and the first id that it had."""
    shutil.copytree(record, to, ignore=shutil.ignore_patterns("parquet"))
    for path in (to / "history").iterdir():
        lines = path.read_bytes().splitlines(keepends=True)
        answers = [line for line in lines if b'"f":"get"' in line and b'"digests"' in line]
        if answers:
            lost = json.loads(answers[len(answers) // 2])
            lines.remove(answers[len(answers) // 2])
            path.write_bytes(b"".join(lines))
            seal(to)
            return to, lost["first_id"]
    raise AssertionError("nobody got anything")


def standings(report: Report) -> dict[str, Verdict | None]:
    return {one.name: one.verdict for one in report.checks}


@pytest.mark.spark
@pytest.mark.timeout(2 * PUT_S_MAX + SPARK_S_MAX)
@pytest.mark.slow  # two whole checks by Spark
def test_what_an_application_recorded_through_a_failover_is_valid_and_a_lost_answer_is_found(
    record: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    doctored, lost_id = with_an_answer_lost(record, tmp_path / "doctored")
    events = [event for path in (record / "history").iterdir() for event in read(path)]
    terms = {event["term"] for event in events if event["type"] == "ok"}
    assert len(terms) > 1, "no other leader has answered"

    with session.opened(is_for_short=True):
        clean = check(record)
        lost_alone = tuple(one for one in CHECKS if one.name == "lost")
        monkeypatch.setattr("analytics.judge.check.CHECKS", lost_alone)  # the others take a while
        found = check(doctored)

    assert (clean.verdict, clean.reasons) == (Verdict.VALID, ())
    assert (clean.observations.acknowledged, clean.observations.delivered) == (400, 400)
    assert {name for name, verdict in standings(clean).items() if verdict is None} == NOT_JUDGED
    assert {one.not_judged for one in clean.checks if one.name in NAMED} == {NAMELESS}
    [remark] = clean.remarks  # the file of the publisher that was killed
    assert "was not closed, so only 0 of its " in remark

    assert found.verdict is Verdict.INVALID
    [lost] = found.checks
    witness = lost.witnesses[0]
    assert (witness.id, witness.detail, witness.topic) == (lost_id, "middle", "orders")
    place = witness.operations[0].lines[0]
    name, _, number = place.partition(":")
    line = json.loads((doctored / name).read_bytes().splitlines()[int(number) - 1])
    assert (line["f"], line["type"]) == ("put", "invoke")
